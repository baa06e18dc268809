//! Whether a test has the GPUs that it needs: the one place where a test of GPUs may have nothing to do. The unit tests of
//! the library use it too.
//!
//! Outside of virtual machines a computer without a GPU skips such tests, and one with fewer GPUs than a test needs skips
//! that test. On a virtual machine a test that finds fewer GPUs than it needs fails. Each test that has its GPUs says so in a line, and [`all_have_seen`]
//! compares these lines with the tests that passed, so that none passes because it looked for no GPU.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::io::Write as _;
use std::sync::Once;

/// The GPUs that the driver told of, if there are at least as many as the test needs. `None`: the test is skipped.
///
/// # Panics
/// On a virtual machine where there are fewer, and where `RSCCL_TEST_REAL_GPU` says that there is a real GPU and none is
/// found.
pub fn enough<T, E: Display>(needed: usize, told: Result<&'static [T], E>) -> Option<&'static [T]> {
    let found = told.as_ref().map_or(0, |gpus| gpus.len());
    let why = match told {
        Ok(gpus) if gpus.len() >= needed => {
            let (test, process) = (name(), std::process::id());
            say(&format!("{SEEN}{} on host {}: {test} in process {process}", gpus.len(), variable("VCUDA_HOST")));
            return Some(gpus);
        }
        Ok(gpus) => format!("the test needs {needed} GPUs and finds {}", gpus.len()),
        Err(error) => error.to_string(),
    };
    assert!(variable("VCUDA_STATE").is_empty(), "a virtual machine has GPUs, but: {why}");
    let line = skipped(found, variable("RSCCL_TEST_REAL_GPU") == "1", &why);
    static TOLD: Once = Once::new();
    match found {
        0 => TOLD.call_once(|| say(&line)),
        _ => say(&line),
    }
    None
}

/// The line about a test that has fewer GPUs than it needs, of which this process has found `found`.
///
/// # Panics
/// If there is none although one `is_promised`.
fn skipped(found: usize, is_promised: bool, why: &str) -> String {
    assert!(found > 0 || !is_promised, "RSCCL_TEST_REAL_GPU says that there is a GPU, but: {why}");
    match found {
        0 => format!("skipped: no GPU for the tests of this program that need one: {why}"),
        _ => format!("skipped: {}: {why}", name()),
    }
}

/// What is wrong with a run of tests on a virtual machine, of which `output` is left: not all passed, or one has not seen
/// its GPUs, or there are not as many of them as the name of the machine says.
pub fn all_have_seen(machine: &str, output: &str) -> Result<(), String> {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    let passed: Vec<usize> = results.filter_map(|rest| rest.split(' ').next()?.parse().ok()).collect();
    if passed.is_empty() || passed.contains(&0) {
        return Err("no test passed".to_owned());
    }
    let seen: BTreeSet<&str> = output.split(SEEN).skip(1).filter_map(|rest| rest.lines().next()).collect();
    let passed: usize = passed.iter().sum();
    if seen.len() < passed {
        return Err(format!("{passed} tests passed, but only these have looked for their GPUs: {seen:#?}"));
    }
    let few = seen.iter().find(|line| named(machine).is_some_and(|count| !line.starts_with(&format!("{count} on "))));
    few.map_or(Ok(()), |line| Err(format!("a test has seen GPUs other than those of {machine}: {line}")))
}

/// How many GPUs each host of a ready machine has, by its name: `4-pcie`, or `2x4` for two hosts.
fn named(machine: &str) -> Option<u32> {
    let first = machine.split('-').next()?;
    first.rsplit('x').next()?.parse().ok()
}

/// Tests run on threads of their name; those of one process are told from each other by it.
fn name() -> String {
    std::thread::current().name().unwrap_or("a thread").to_owned()
}

fn variable(name: &str) -> String {
    #![expect(clippy::disallowed_methods, reason = "the place of a test's process is no configuration of the library")]
    std::env::var(name).unwrap_or_default()
}

/// Past the capture of the test's output, in one piece.
fn say(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).expect("standard error can be written");
}

const SEEN: &str = "the test has its GPUs: ";

#[test]
fn a_run_in_which_a_test_saw_no_gpu_is_found_out() {
    let seen = |name: &str| format!("{SEEN}2 on host 0: {name}\n");
    let result = "test result: ok. 2 passed; 0 failed\n";
    let judge = |machine: &str, lines: &[&str]| all_have_seen(machine, &[lines, &[result]].concat().concat());
    assert_eq!(judge("2-nvswitch", &[&seen("one"), &seen("other")]), Ok(()));
    assert_eq!(judge("own.toml", &[&seen("one"), &seen("other"), &seen("one")]), Ok(()));
    for (machine, lines) in
        [("2-nvswitch", vec![seen("one"), seen("one")]), ("4-pcie", vec![seen("one"), seen("other")])]
    {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert!(judge(machine, &lines).is_err(), "{machine}");
    }
    assert!(all_have_seen("1", "test result: ok. 0 passed; 0 failed\n").is_err());
    assert!(all_have_seen("1", "").is_err());
    assert_eq!(
        (named("2x4-mnnvl"), named("8-cube-mesh"), named("1"), named("own.toml")),
        (Some(4), Some(8), Some(1), None)
    );
}

#[test]
fn only_a_machine_without_any_gpu_breaks_the_promise_of_one() {
    let line = skipped(1, true, "the test needs 4 GPUs and finds 1");
    assert!(line.starts_with("skipped: ") && line.ends_with(": the test needs 4 GPUs and finds 1"), "{line}");
    assert_eq!(line, skipped(1, false, "the test needs 4 GPUs and finds 1"));
    assert!(skipped(0, false, "no driver").ends_with("need one: no driver"));
    let broken = std::panic::catch_unwind(|| skipped(0, true, "no driver")).unwrap_err();
    assert_eq!(
        broken.downcast_ref::<String>().unwrap(),
        "RSCCL_TEST_REAL_GPU says that there is a GPU, but: no driver"
    );
}
