//! A mismatch that only the end of a communicator finds is told on standard error where the communicator is dropped,
//! and nothing else is: once a communicator, not by ranks that panic, not where the program has got the error.
//!
//! Each case runs in a process of its own, whose standard error is read.

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;

use rsccl::error::Kind;
use rsccl::{Communicator, Config, ReduceOp, Result, local};

/// What a rank does with a communicator, which it drops if it does nothing else.
type Case = fn(Communicator) -> Result<()>;

const CASES: &[(&str, Case)] = &[
    ("roots", two_roots),
    ("scatters", |comm| comm.scatter(&[1, 2], &mut [0], comm.rank())),
    ("well", |comm| comm.broadcast(&mut [7; 4], 1)),
    ("finalized", |comm| {
        comm.broadcast(&mut [7; 4], comm.rank())?;
        // At least the rank that ends last gets the error.
        drop(comm.finalize());
        Ok(())
    }),
    ("heard", |comm| {
        comm.broadcast(&mut [7; 4], comm.rank())?;
        let error = comm.barrier().expect_err("the roots differ");
        assert_eq!(error.kind(), Kind::Mismatch, "{error}");
        Ok(())
    }),
    ("panics", |comm| {
        drop(catch_unwind(AssertUnwindSafe(move || {
            let comm = comm;
            comm.broadcast(&mut [7; 4], comm.rank()).expect("a root waits for nobody");
            panic!("on purpose");
        })));
        Ok(())
    }),
    ("aborted", |comm| {
        comm.broadcast(&mut [7; 4], comm.rank())?;
        comm.abort("on purpose");
        Ok(())
    }),
    ("children", |comm| {
        // The same calls on two communicators: the lines must differ.
        let child = comm.split(Some(0), 0)?.expect("a color");
        (0..2).try_for_each(|root| child.broadcast(&mut [0; 4], root))?;
        two_roots(child)?;
        two_roots(comm)
    }),
    ("request", |comm| {
        let rank = comm.rank();
        comm.start(vec![7; 4], |calls, buffer| calls.broadcast(buffer, rank))?.wait().map(drop)
    }),
    ("forgotten request", |comm| {
        let count = 3 + comm.rank() as usize;
        drop(comm.start(vec![7; count], |calls, buffer| calls.all_reduce_in_place(buffer, ReduceOp::Sum))?);
        Ok(())
    }),
    ("heard request", |comm| {
        let count = 3 + comm.rank() as usize;
        let request = comm.start(vec![7; count], |calls, buffer| calls.all_reduce_in_place(buffer, ReduceOp::Sum))?;
        assert_eq!(request.wait().expect_err("the counts differ").kind(), Kind::Mismatch);
        Ok(())
    }),
];

fn two_roots(comm: Communicator) -> Result<()> {
    comm.broadcast(&mut [7; 4], comm.rank())
}

/// A process of one case.
#[test]
#[ignore = "a part of the other tests, which start it"]
fn process() {
    #![expect(clippy::disallowed_methods, reason = "which case it is, is no configuration of the library")]
    let (Ok(wanted), Ok(transport)) = (std::env::var("CASE"), std::env::var("TRANSPORT")) else { return };
    let case = CASES.iter().find(|(name, _)| *name == wanted).expect("a case").1;
    let config = Config::default().with_p2p_disable(transport != "local").with_shm_disable(transport == "net");
    local::run_with(2, &config, |comm| {
        // Opens the connections, in which ranks wait for each other.
        for root in 0..2 {
            comm.broadcast(&mut [0; 4], root)?;
            comm.scatter(&[1, 2], &mut [0], root)?;
        }
        case(comm)
    })
    .expect("the calls go through");
    // So that a case that was not found, and said nothing, does not pass for one that has nothing to tell.
    std::io::stdout().write_all(format!("{RAN}{wanted}\n").as_bytes()).expect("standard output can be written");
}

/// The lines of the library on the standard error of a case.
fn lines(case: &str, transport: &str) -> Vec<String> {
    let program = std::env::current_exe().expect("a test has a path");
    let mut command = Command::new(program);
    command.args(["process", "--exact", "--ignored", "--nocapture"]).env("CASE", case).env("TRANSPORT", transport);
    let output = command.env_remove("NCCL_DEBUG").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case} by {transport}: {text}");
    let said = String::from_utf8_lossy(&output.stdout);
    let ran = said.lines().filter_map(|line| line.split_once(RAN)).any(|(_, ran)| ran == case);
    assert!(ran, "{case} by {transport} has not run: {said}");
    text.lines().filter(|line| line.starts_with("rsccl: ")).map(str::to_owned).collect()
}

fn tells(case: &str, least: usize, most: usize, words: &[&str]) {
    for transport in ["local", "shm", "net"] {
        let lines = lines(case, transport);
        assert!((least..=most).contains(&lines.len()), "{case} by {transport}: {lines:#?}");
        for line in &lines {
            assert!(words.iter().all(|word| line.contains(word)), "{case} by {transport}: {line}");
        }
    }
}

#[test]
fn a_mismatch_is_told_where_the_communicator_is_dropped() {
    let words = ["finalize()", "broadcast", "root 0", "root 1"];
    tells("roots", 1, 2, &words);
    tells("scatters", 1, 2, &["scatter", "root 0", "root 1"]);
    tells("request", 1, 2, &words);
    // A line for each communicator, though the words are the same.
    tells("children", 2, 4, &words);
}

#[test]
fn a_mismatch_of_a_request_that_nobody_waited_for_is_told() {
    tells("forgotten request", 1, 2, &["all_reduce", "3", "4"]);
}

#[test]
fn nothing_is_told_that_the_program_knows() {
    for case in ["well", "finalized", "heard", "panics", "aborted", "heard request"] {
        tells(case, 0, 0, &[]);
    }
}

/// Begins the line that a process says when its case has run.
const RAN: &str = "ran ";
