//! Data between hosts by verbs (`NCCL_NET=IB`), over soft RoCE: in one virtual machine, whose ranks are hosts by their
//! settings alone, and between two. `tests/labs/roce.sh` makes the machines, in which this program runs its tests of the
//! modules `one` and `pair`.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod verbs {
    mod one;
    mod pair;
}

use std::io::{Write, stderr};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use testing::ranks::Job;
use testing::worker;

/// Where a test starts this program as a rank, this is the rank.
#[test]
#[ignore = "one rank of the jobs that the tests of this file start: alone it is no test"]
fn worker() {
    if worker::is_wanted() {
        worker::run();
    }
}

/// One start of the machine for all tests of one machine.
#[test]
#[ignore = "a minute and more of both processors: ./test.sh --all runs it"]
fn soft_roce_in_one_machine() {
    run_in_machines("one", "one::");
}

#[test]
#[ignore = "a minute and more of both processors: ./test.sh --all runs it"]
fn soft_roce_between_two_machines() {
    run_in_machines("pair", "pair::");
}

/// Runs the tests of this program whose names have `filter` in them, in the machines of this kind.
fn run_in_machines(kind: &str, filter: &str) {
    // The machines of one test keep both processors of a small host busy.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::Builder::new().prefix("roce").tempdir_in("/tmp").unwrap();
    let program = std::env::current_exe().unwrap();
    std::fs::copy(&program, folder.path().join("verbs")).unwrap();
    copy_libraries(&program, &folder.path().join("lib"));
    // What is left of queue pairs and memory has the number of a process in its line; the kernel's own has none.
    let job = format!(
        "export RSCCL_TEST_MACHINE=$1\n\
         cp /host/verbs /tmp/verbs\n\
         export LD_LIBRARY_PATH=$LD_LIBRARY_PATH:/host/lib\n\
         /tmp/verbs {filter} --ignored --test-threads=1 --nocapture\n\
         code=$?\n\
         rdma resource show qp; rdma resource show mr; rdma resource show pd\n\
         if rdma resource show qp | grep -q ' pid '; then echo 'queue pairs are left'; code=1; fi\n\
         if rdma resource show mr | grep -q ' pid '; then echo 'memory is left'; code=1; fi\n\
         [ $code = 0 ]\n"
    );
    std::fs::write(folder.path().join("job"), job).unwrap();
    let lab = concat!(env!("CARGO_MANIFEST_DIR"), "/labs/roce.sh");
    let ran = Command::new(lab).arg(kind).arg(folder.path()).env("LAB_LIMIT_S", LIMIT_S).output().unwrap();
    let told = String::from_utf8_lossy(&ran.stdout).into_owned();
    if told.starts_with("skipped: ") {
        // Past the capture of tests, so that it is seen.
        stderr().write_all(told.as_bytes()).unwrap();
        return;
    }
    let said = shown(folder.path(), if kind == "one" { &["one"] } else { &["a", "b"] });
    eprintln!("{said}");
    assert!(ran.status.success(), "{:?} {told}{}\n{said}", ran.status, String::from_utf8_lossy(&ran.stderr));
    let passed = said.lines().filter(|line| line.starts_with("test result: ok. ") && !line.contains(" 0 passed"));
    assert_eq!(passed.count(), if kind == "one" { 1 } else { 2 }, "{said}");
}

/// Copies what a program is linked with, by features of the library: C++'s library, an MPI. The machine has its own of the
/// system's.
fn copy_libraries(program: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    let told = Command::new("ldd").arg(program).output().unwrap();
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    for (name, line) in told.lines().filter_map(|line| line.trim().split_once(" => ")) {
        if let Some(path) = line.split(' ').next().filter(|path| path.starts_with('/')) {
            std::fs::copy(path, to.join(name)).unwrap();
        }
    }
}

/// What machines have written.
fn shown(folder: &Path, roles: &[&str]) -> String {
    let read = |name: String| {
        let bytes = std::fs::read(folder.join(&name)).unwrap_or_default();
        format!("== {name}\n{}\n", String::from_utf8_lossy(&bytes))
    };
    roles.iter().flat_map(|role| [read(format!("console.{role}")), read(format!("out.{role}"))]).collect()
}

/// Each rank has said what it uses, and of each connection that it goes by that.
fn must_use_verbs(job: &Job) {
    for rank in &job.ranks {
        let log = rank.log();
        assert!(log.contains("NET/IB : Using RoCE, GID "), "rank {}:\n{log}", rank.number);
        assert!(log.contains("via NET/IB, ") && !log.contains("via NET/Socket"), "rank {}:\n{log}", rank.number);
    }
}

/// Runs a command of the shell, and what it prints.
fn sh(command: &str) -> String {
    let ran = Command::new("/bin/sh").args(["-c", command]).output().unwrap();
    assert!(ran.status.success(), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8_lossy(&ran.stdout).into_owned()
}

/// Ranks that ask for verbs, and log by what connections go.
const ASKS: [(&str, &str); 2] = [("NCCL_NET", "IB"), ("NCCL_DEBUG_SUBSYS", "INIT,NET")];
/// Far more than the machines need.
const LIMIT_S: &str = "150";
