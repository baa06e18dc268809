//! Ranks as processes that share their id through a folder. One is killed; the others learn its number and go on
//! without it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rsccl::error::Kind;
use rsccl::internals::bootstrap::{Bootstrap, NetBootstrap, Options, UniqueId};
use rsccl::store::{AbortFlag, Wait};
use rsccl::store::{FileStore, IdCounter};
use rsccl::types::{Rank, World};

const RANKS: u32 = 6;
const VICTIM: u32 = 2;

fn variable(name: &str) -> Option<String> {
    #![expect(clippy::disallowed_methods, reason = "tells the processes of this test apart")]
    std::env::var(name).ok()
}

fn wait() -> Wait {
    Wait::new(Duration::from_secs(30), &AbortFlag::new())
}

/// The life of one rank, where the other test starts this program as one.
#[test]
#[ignore = "one rank of the job that the test of this file starts: alone it is no test"]
fn rank_process() {
    let (Some(folder), Some(rank)) = (variable("RSCCL_TEST_FOLDER"), variable("RSCCL_TEST_RANK")) else { return };
    let rank = Rank::new(rank.parse().unwrap());
    let options = Options { interfaces: "=lo".parse().unwrap(), ..Options::default() };
    let store = FileStore::open(folder, &wait()).unwrap();
    let members = World { rank, size: RANKS };
    let id = IdCounter::new("ids").share(&store, members, || UniqueId::generate(&options), &wait()).unwrap();
    let bootstrap = NetBootstrap::join(&[id], rank, RANKS, &options, &wait()).unwrap();
    bootstrap.barrier(&wait()).unwrap();
    println!("ready");
    let error = match rank.get() {
        // Nobody sends this; the kill ends the wait.
        VICTIM => bootstrap.recv(Rank::new(0), 9, &wait()).unwrap_err(),
        _ => bootstrap.barrier(&wait()).unwrap_err(),
    };
    assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(VICTIM)), "{error}");
    let child = bootstrap.shrink(&[Rank::new(VICTIM)], &wait()).unwrap();
    let old = child.bootstrap.all_gather(&rank.get().to_le_bytes(), &wait()).unwrap();
    assert_eq!(old, [0u32, 1, 3, 4, 5].map(|rank| rank.to_le_bytes().to_vec()));
    child.bootstrap.close();
    bootstrap.close();
    println!("survived");
}

fn spawn(folder: &std::path::Path, rank: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["rank_process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
        .env("RSCCL_TEST_FOLDER", folder)
        .env("RSCCL_TEST_RANK", rank.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn a_killed_process_is_named_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let mut children: Vec<Child> = (0..RANKS).map(|rank| spawn(&path, rank)).collect();
    let mut outputs: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().unwrap()).lines()).collect();
    // Each process ends by its own deadlines, so these reads end.
    let says = |output: &mut std::io::Lines<BufReader<ChildStdout>>, word: &str| {
        output.by_ref().any(|line| line.unwrap().contains(word))
    };
    assert!(outputs.iter_mut().all(|output| says(output, "ready")));
    children[2].kill().unwrap();
    for (rank, (child, output)) in children.iter_mut().zip(&mut outputs).enumerate() {
        if rank != 2 {
            assert!(says(output, "survived"), "rank {rank}");
        }
        assert_eq!(child.wait().unwrap().success(), rank != 2, "rank {rank}");
    }
    let left: Vec<_> = path.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["lock"], "the shared id is removed once all have it");
}
