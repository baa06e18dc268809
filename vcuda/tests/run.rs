//! `vcuda run`: environment, exit status, orphans, signals, folders, hosts.

#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod support;

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::{Lines, finish, finish_child, on_machine, vcuda};

#[test]
fn a_program_finds_its_machine_and_its_folder_goes_away() {
    let script = "test -e $VCUDA_STATE/machine.toml && test $VCUDA_MACHINE = $VCUDA_STATE/machine.toml && \
                  test -e ${LD_LIBRARY_PATH%%:*}/libcuda.so.1 && echo $VCUDA_SEED $VCUDA_STATE";
    let finished = finish(on_machine("2-nvswitch", &["sh", "-c", script]).env("VCUDA_SEED", "7"));
    let (seed, state) = finished.must_succeed().trim().split_once(' ').unwrap();
    assert_eq!(seed, "7");
    assert!(!fs::exists(state).unwrap(), "{state} remains");
    assert_eq!(finished.errors, "");
}

#[test]
fn the_exit_status_is_the_programs() {
    assert_eq!(finish(&mut on_machine("1", &["sh", "-c", "exit 3"])).status, 3);
    let killed = finish(&mut on_machine("1", &["sh", "-c", "kill -KILL $$"]));
    assert_eq!(killed.status, 128 + 9);
    killed.must_tell(&["machine 1, seed 1"]);
    finish(&mut on_machine("1", &["/no/such/program"])).must_tell(&["cannot start /no/such/program"]);
}

#[test]
fn an_orphan_is_ended_and_listed() {
    // The orphan's output goes elsewhere, so that nothing waits for it; it says its number before its parent ends.
    let script = "(sleep 600 </dev/null >/dev/null 2>&1 & echo $!)";
    let finished = finish(&mut on_machine("1", &["sh", "-c", script]));
    let pid = finished.must_succeed().trim().to_owned();
    finished.must_tell(&[&format!("process {pid} (sleep) still ran and was ended")]);
    assert!(!fs::exists(format!("/proc/{pid}")).unwrap());
    let strict = finish(vcuda().args(["run", "--strict", "1", "--", "sh", "-c", script]));
    assert_eq!(strict.status, 97, "a strict run fails");
}

#[test]
fn a_signal_is_passed_on_and_the_folder_goes_away() {
    let script = "trap 'echo told; exit 5' TERM; echo $VCUDA_STATE; while :; do sleep 0.01; done";
    let mut command = on_machine("1", &["sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = Lines::of(&mut child);
    let state = output.next(&mut child);
    assert!(fs::exists(state.trim()).unwrap());
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: it is our child and not reaped, so that the number is its own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGTERM) }, 0);
    assert_eq!(output.next(&mut child), "told");
    assert_eq!(finish_child(child).status, 5);
    assert!(!fs::exists(state.trim()).unwrap());
}

#[test]
fn when_the_run_is_killed_its_program_dies_and_the_next_run_removes_the_folder() {
    let script = "echo $$ $VCUDA_STATE; exec sleep 600";
    let mut command = on_machine("1", &["sh", "-c", script]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = Lines::of(&mut child);
    let line = output.next(&mut child);
    let (pid, state) = line.trim().split_once(' ').unwrap();
    child.kill().unwrap();
    // Its output ends when the program has closed it, which a process does a moment before it has ended.
    assert_eq!(finish_child(child).status, -1);
    let begun = Instant::now();
    loop {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if stat.is_empty() || stat.contains(") Z ") {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "process {pid} lives: {stat}");
        std::thread::yield_now();
    }
    finish(&mut on_machine("1", &["true"])).must_succeed();
    assert!(!fs::exists(state).unwrap(), "{state} remains");
}

#[test]
fn two_hosts_have_networks_and_folders_of_their_own() {
    let script = "echo $(hostname) $VCUDA_HOST $(ls /dev/shm | wc -l) $(ip -4 -o addr show eth0 | grep -o '10.77.0.[0-9]*/') >> $OUT.$VCUDA_HOST";
    let out = std::env::temp_dir().join(format!("vcuda-hosts-{}", std::process::id()));
    let finished = finish(on_machine("2x4", &["sh", "-c", script]).env("OUT", &out));
    finished.must_succeed();
    let told = |host: u32| {
        let path = format!("{}.{host}", out.display());
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(path).unwrap();
        text.trim().to_owned()
    };
    let (first, second) = (told(0), told(1));
    if finished.errors.contains("namespaces could not be made") {
        writeln!(std::io::stderr(), "skipped: hosts need network namespaces, root and iproute2").unwrap();
        return;
    }
    assert_eq!(first, "vcuda-host0 0 1 10.77.0.1/");
    assert_eq!(second, "vcuda-host1 1 1 10.77.0.2/");
}

#[test]
fn mistakes_are_named_before_anything_starts() {
    let told = |words: &[&str], expected: &str| {
        let finished = finish(vcuda().args(words));
        assert_eq!(finished.status, 125);
        finished.must_tell(&[expected]);
    };
    told(&["run", "9-nvswitch", "--", "true"], "8-cube-mesh");
    told(&["run", "1", "true"], "`--` stands between");
    told(&["run", "--seed", "x", "1", "--", "true"], "seed \"x\"");
    told(&["run", "1", "--"], "no program");
    told(&["lose", "0"], "inside `vcuda run`");
    let finished = finish(on_machine("1", &["true"]).env("VCUDA_FAIL", "cuInit"));
    finished.must_tell(&["VCUDA_FAIL", "cuMemAlloc_v2:3:2"]);
}

#[test]
fn a_gpu_is_lost_from_inside() {
    let script =
        format!("{} lose 1 && ls $VCUDA_STATE && {} lose 2", env!("CARGO_BIN_EXE_vcuda"), env!("CARGO_BIN_EXE_vcuda"));
    let finished = finish(&mut on_machine("2-nvswitch", &["sh", "-c", &script]));
    assert!(finished.output.contains("lost.1"), "{}", finished.output);
    finished.must_tell(&["GPU \"2\" (0 to 1)"]);
}
