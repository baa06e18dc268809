//! This program's own tests, started again on virtual GPUs (`vcuda`), with faults of the driver where a test
//! asks.

mod alone;
mod faults;
mod gpu;
mod led;
mod lines;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::gpus;
use crate::device::{DeviceId, Home};
use crate::error::Kind;
use crate::sync::primitive::OnceLock;

/// What a run on a virtual machine printed, and whether it succeeded.
struct Finished {
    succeeded: bool,
    output: String,
}

/// No run takes longer, also on a busy computer; the machine reports a deadlock long before.
const LONGEST_S: &str = "300";

/// Builds the virtual machine, and says where its command is.
fn vcuda() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/vcuda/run");
        let built = Command::new(script).args(["1", "--", "true"]).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        // Beside the folder of this program.
        std::env::current_exe().unwrap().parent().unwrap().parent().unwrap().join("vcuda")
    })
}

/// Runs the tests of this program whose names have `filter`'s first word in them on a virtual machine; options of the
/// test program may follow.
fn on_machine(options: &[&str], filter: &str, environment: &[(&str, &str)]) -> Finished {
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LONGEST_S]).arg(vcuda()).arg("run").args(options).arg("--");
    command.arg(std::env::current_exe().unwrap()).args(filter.split(' ')).arg("--nocapture");
    if !filter.contains("--test-threads") {
        command.arg("--test-threads=2");
    }
    command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("CUDA_LAUNCH_BLOCKING").env_remove("CUDA_MODULE_LOADING");
    command.env_remove("VCUDA_FAIL").env_remove("VCUDA_SEED").envs(environment.iter().copied());
    let finished = command.stdin(Stdio::null()).output().unwrap();
    let text = [finished.stdout, finished.stderr].concat();
    Finished { succeeded: finished.status.success(), output: String::from_utf8_lossy(&text).into_owned() }
}

/// Runs them, and expects that some ran, that all passed, and that nothing was left on the GPUs.
#[track_caller]
fn must_pass(machine: &str, filter: &str, environment: &[(&str, &str)]) {
    let Finished { succeeded, output } = on_machine(&["--strict", machine], filter, environment);
    let seen = machine::gpus::all_have_seen(machine, &output);
    assert!(succeeded && seen.is_ok(), "{machine}, {environment:?}: {seen:?}\n{output}");
}

#[test]
fn everything_here_holds_on_virtual_gpus() {
    must_pass("1", "device::cuda::tests::gpu:: --skip guards_inside_of_guards", &[]);
    must_pass("2-nvswitch", "tests::gpu::guards_inside_of_guards", &[]);
    must_pass("1", "alone::memory_is_not_freed_while_work", &[]);
    must_pass("2-nvswitch", "alone::memory_is_not_freed_while_another", &[]);
    must_pass("1", "cuda::tests::lines::", &[]);
    // One after the other: streams of a process share hardware queues by the order in which they were made, and here
    // the leader and its member, two processes elsewhere, are one. In one queue the leader would stand behind who waits
    // for it.
    must_pass("1", "cuda::tests::led:: --test-threads=1", &[]);
    // What a stream is not told to wait for shows with some order of the streams.
    for seed in ["2", "3"] {
        must_pass("2-nvswitch", "tests::gpu::one_launch_serves", &[("VCUDA_SEED", seed)]);
    }
}

#[test]
fn every_call_that_fails_is_an_error_and_leaves_nothing() {
    const TEST: &str = "faults::attempts_go_on_after_failures";
    let Finished { succeeded, output } = on_machine(&["--strict", FABRIC], TEST, &[("VCUDA_DEBUG", "1")]);
    assert!(succeeded, "{output}");
    // How often each function is called.
    let mut calls = BTreeMap::<&str, usize>::new();
    for (name, _) in output.lines().filter_map(|line| line.strip_prefix("vcuda: ")?.split_once(": ")) {
        *calls.entry(name).or_default() += 1;
    }
    calls.retain(|name, _| name.starts_with("cu"));
    assert!(calls.len() > 40, "{calls:?}");
    // Each fails at its first call; then, in another run, in the midst of an attempt.
    for part in [usize::MAX, 4] {
        let faults: Vec<String> = calls.iter().map(|(name, count)| format!("{name}:{}", 1 + count / part)).collect();
        let faults = faults.join(",");
        let Finished { succeeded, output } = on_machine(&["--strict", FABRIC], TEST, &[("VCUDA_FAIL", &faults)]);
        assert!(succeeded, "{faults}:\n{output}");
        let told = output.lines().find_map(|line| line.strip_prefix("calls that failed: ")?.parse::<usize>().ok());
        // Some are retried, or are calls of destructors.
        assert!(told.is_some_and(|told| told > 25), "{faults}:\n{output}");
    }
}

/// A machine whose memory has fabric handles.
const FABRIC: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/gpu-fabric.toml");

/// Fabric handles work, are refused where the attribute says that there are some, and are not there.
#[test]
fn memory_leaves_the_host_where_the_driver_lets_it() {
    for (machine, outcome) in [(FABRIC, "works"), ("2-nvswitch", "refused"), ("1", "none")] {
        let Finished { succeeded, output } = on_machine(&["--strict", machine], "alone::memory_for_other_hosts", &[]);
        assert!(succeeded && output.contains(&format!("fabric handles: {outcome}")), "{machine}:\n{output}");
    }
    // The same where the driver refuses it in the other way.
    let refusal = [("VCUDA_FAIL", "cuMemCreate:1:801")];
    let Finished { succeeded, output } = on_machine(&["--strict", FABRIC], "alone::memory_for_other_hosts", &refusal);
    assert!(succeeded && output.contains("fabric handles: refused"), "{output}");
}

#[test]
fn a_sticky_error_is_told() {
    let Finished { succeeded, output } = on_machine(&["1"], "alone::after_a_lost_context", &[]);
    let seen = machine::gpus::all_have_seen("1", &output);
    assert!(succeeded && seen.is_ok() && output.contains("1 passed"), "{seen:?}\n{output}");
}

#[test]
fn without_a_driver_the_error_says_so() {
    // Where there is one, the tests above have used it.
    let Err(error) = gpus() else { return };
    assert!(error.kind() == Kind::System && error.message().contains("no GPU driver: "), "{error}");
    let error = crate::device::of(Home::Device(DeviceId(3))).unwrap_err();
    assert!(error.message().contains("the memory of device 3: no GPU driver"), "{error}");
    assert!(crate::device::of(Home::Host).is_ok());
}
