//! Counts the instructions of small calls, under valgrind: a count is the same on a busy machine, where a time is not.
//!
//! Two ranks, as threads on one processor, call again and again; valgrind runs one thread at a time and counts. A run
//! with more calls less a run with fewer leaves what the calls take: both ranks' work, and the turns in which one gives
//! the processor to the other.

use std::io::Write;
use std::process::Command;

use rsccl::ReduceOp;

/// Instructions of one all-reduce of 8 bytes, both ranks together, in a build of tests. Measured: 4,685 (rustc 1.95,
/// x86-64). The bound leaves room for other compilers; a failure means that calls have become dearer by a third.
const MOST_INSTRUCTIONS: u64 = 7_000;

/// How many of a hundred instructions of a plain call a round of a prepared one takes at most: a call that equals one
/// of the last is settled already, too.
const MOST_OF_PLAIN: u64 = 100;

/// Instructions of one broadcast of 8 bytes, both ranks together: nearly all of them the call's own, since its root waits
/// for nobody. Measured: 2,501 (rustc 1.95, x86-64).
const MOST_OF_BROADCAST: u64 = 3_300;

/// How many of a hundred instructions of a blocking `send_recv` of 8 bytes a recv and a send take at most that are begun
/// in a scope and waited for. Measured: 200 (rustc 1.95, x86-64).
const MOST_OF_EXCHANGE: u64 = 230;

const FEW_CALLS: u64 = 2_000;
const MANY_CALLS: u64 = 6_000;
/// Tells this program, run under valgrind, how and how often to call.
const CALLS: &str = "RSCCL_TEST_CALLS";

#[test]
fn a_call_of_eight_bytes_takes_few_instructions() {
    #[expect(clippy::disallowed_methods, reason = "this test's own variable, which it gives to itself")]
    if let Ok(calls) = std::env::var(CALLS) {
        let (how, calls) = calls.split_once(' ').expect("two words");
        let calls = calls.parse().expect("a number");
        return match how {
            "plain" => call(calls),
            "prepared" => rounds(calls),
            "broadcast" => broadcasts(calls),
            _ => exchanges(calls, how == "scope"),
        };
    }
    for tool in ["valgrind", "taskset"] {
        if Command::new(tool).arg("--version").output().is_err() {
            writeln!(std::io::stderr(), "skipped: valgrind counts instructions, and {tool} is not installed")
                .expect("standard error can be written");
            return;
        }
    }
    let kinds = ["plain", "prepared", "broadcast", "exchange", "scope"];
    let [each, round, broadcast, exchange, scope] = kinds.map(|how| {
        let (few, many) = (count(how, FEW_CALLS), count(how, MANY_CALLS));
        (many - few) / (MANY_CALLS - FEW_CALLS)
    });
    println!("{each} instructions for an all-reduce of 8 bytes by two ranks, {round} for a round of a prepared one");
    println!(
        "{broadcast} for a broadcast; {exchange} for an exchange of messages, {scope} for one of requests in a scope"
    );
    assert!(each > 200, "{each} instructions for each call: this count sees too little");
    assert!(
        each <= MOST_INSTRUCTIONS,
        "an all-reduce of 8 bytes takes {each} instructions, and may take {MOST_INSTRUCTIONS}"
    );
    assert!(
        round * 100 <= each * MOST_OF_PLAIN,
        "a round of a prepared all-reduce takes {round} instructions, a plain one {each}"
    );
    assert!(
        broadcast <= MOST_OF_BROADCAST,
        "a broadcast of 8 bytes takes {broadcast} instructions, and may take {MOST_OF_BROADCAST}"
    );
    assert!(
        scope * 100 <= exchange * MOST_OF_EXCHANGE,
        "an exchange of requests in a scope takes {scope} instructions, a blocking one {exchange}"
    );
}

/// What is counted.
fn call(calls: u64) {
    let sums = rsccl::local::run(2, |comm| {
        let mut last = 0;
        for turn in 0..calls {
            let mut value = [turn + u64::from(comm.rank())];
            comm.all_reduce_in_place(&mut value, ReduceOp::Sum)?;
            last = value[0];
        }
        Ok(last)
    });
    assert_eq!(sums.expect("both ranks call alike"), [2 * (calls - 1) + 1; 2]);
}

/// Calls of which the root waits for nobody, but where all slots are taken.
fn broadcasts(calls: u64) {
    let last = rsccl::local::run(2, |comm| {
        let mut value = [0];
        for turn in 0..calls {
            value[0] += u64::from(comm.rank() == 0) + turn;
            comm.broadcast(&mut value, 0)?;
        }
        Ok(value[0])
    });
    assert_eq!(last.expect("both ranks call alike"), [calls + calls * (calls - 1) / 2; 2]);
}

/// A message to the other rank and one from it: as one call, or begun in a scope and waited for.
fn exchanges(calls: u64, in_scope: bool) {
    let last = rsccl::local::run(2, |comm| {
        let (peer, mut theirs) = (1 - comm.rank(), [0]);
        for turn in 0..calls {
            let mine = [turn + u64::from(comm.rank())];
            if !in_scope {
                comm.send_recv(&mine, peer, &mut theirs, peer)?;
                continue;
            }
            comm.scope(|scope| {
                let received = scope.recv(&mut theirs, peer)?;
                let sent = scope.send(&mine, peer)?;
                received.wait()?;
                sent.wait()
            })?;
        }
        Ok(theirs[0])
    });
    assert_eq!(last.expect("both ranks call alike"), [calls, calls - 1]);
}

/// The same calls, prepared.
fn rounds(calls: u64) {
    let sums = rsccl::local::run(2, |comm| {
        let mut sum = comm.prepare(vec![0], |calls, value| calls.all_reduce_in_place(value, ReduceOp::Sum))?;
        let mut last = 0;
        for turn in 0..calls {
            sum.buffers()?[0] = turn + u64::from(comm.rank());
            sum.run()?;
            last = sum.buffers()?[0];
        }
        Ok(last)
    });
    assert_eq!(sums.expect("both ranks call alike"), [2 * (calls - 1) + 1; 2]);
}

/// The instructions of a run of `calls` calls.
fn count(how: &str, calls: u64) -> u64 {
    let program = std::env::current_exe().expect("a test has a path");
    let mut valgrind = Command::new("taskset");
    valgrind.args(["--cpu-list", &first_processor(), "valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]);
    valgrind.arg(program).args(["--exact", "a_call_of_eight_bytes_takes_few_instructions", "--test-threads=1"]);
    let output = valgrind.env(CALLS, format!("{how} {calls}")).output().expect("taskset is installed");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    assert!(output.status.success(), "{text}");
    let (_, collected) = collected.unwrap_or_else(|| panic!("valgrind has counted nothing:\n{text}"));
    collected.trim().parse().expect("a number of instructions")
}

/// The first processor that this process may use.
fn first_processor() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or("0");
    allowed.trim().split([',', '-']).next().unwrap_or("0").to_owned()
}
