//! Jobs that meet in one folder, one after the other: files of a job that died in init must not harm the next job.

use std::path::Path;

use crate::SHM;
use testing::ranks::{Job, until};

/// A job of three that has not joined yet, and meets at `store`.
fn launched(store: &str, more: &[(&'static str, &'static str)]) -> Job {
    const NUMBERS: [&str; 3] = ["0", "1", "2"];
    Job::start_each(NUMBERS.len(), |rank| {
        let mut variables = vec![("RSCCL_RANK", NUMBERS[rank]), ("RSCCL_WORLD_SIZE", "3"), ("RSCCL_STORE", store)];
        variables.extend(SHM.iter().chain(&[("NCCL_DEBUG", "TRACE")]).chain(more));
        (Vec::new(), variables)
    })
}

fn files(folder: &Path) -> usize {
    folder.read_dir().map_or(0, Iterator::count)
}

/// A job that is killed, all ranks at once, when its first ranks have reached this stage of init.
fn killed_job(store: &str, folder: &Path, stage: usize) {
    let wrong = [("NCCL_SOCKET_IFNAME", "=nosuch0")];
    let mut job = launched(store, if stage == 4 { &wrong } else { &[] });
    match stage {
        // Rank 0 has shared its id, nobody has taken it.
        0 => {
            job.begin("from_env", |rank| rank == 0);
            until("rank 0 waits at its root", || job.ranks[0].log().contains("rank 0 has checked in"));
        }
        // One of two has taken it.
        1 => {
            job.begin("from_env", |rank| rank < 2);
            until("rank 1 is at the root", || job.ranks[0].log().contains("rank 1 has checked in"));
        }
        // Rank 0 has never come.
        2 => {
            job.begin("from_env", |rank| rank != 0);
            until("the store is there", || files(folder) > 0);
        }
        // All have checked in, and are killed at some moment after that.
        3 => {
            job.begin("from_env", |_| true);
            until("rank 2 is at the root", || job.ranks[0].log().contains("rank 2 has checked in"));
        }
        // Rank 0 cannot make an id and tells that.
        _ => {
            let before = files(folder);
            job.begin("from_env", |rank| rank == 0);
            until("the failure is told", || files(folder) > before.max(2));
        }
    }
    drop(job);
}

#[test]
fn the_next_jobs_start_in_a_store_that_a_dead_one_left() {
    for stages in [&[0][..], &[1], &[2], &[3], &[4], &[0, 4, 1, 2, 3, 1, 0]] {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("store");
        let store = format!("file://{}", place.display());
        for stage in stages {
            killed_job(&store, &place, *stage);
        }
        let mut good = launched(&store, &[]);
        good.must("from_env");
        good.must("call all_reduce 1000");
        assert_eq!(files(&place), 1, "the lock alone is left after {stages:?}");
    }
}

/// Rank 0, which serves the root, is killed after the others have got its address.
#[test]
fn rank_zero_that_dies_in_init_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let mut job = launched(&store, &[]);
    job.begin("from_env", |rank| rank < 2);
    until("rank 1 is at the root", || job.ranks[0].log().contains("rank 1 has checked in"));
    job.kill(0);
    let failure = job.ranks[0].failure();
    assert_eq!((failure.kind.as_str(), failure.peer), ("Remote", Some(0)), "{}", failure.text);
    assert!(failure.text.contains("rank 0 has died"), "{}", failure.text);
}

#[test]
fn two_jobs_with_one_store_at_one_time_are_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let mut first = launched(&store, &[]);
    first.begin("from_env", |rank| rank == 0);
    until("rank 0 waits at its root", || first.ranks[0].log().contains("rank 0 has checked in"));
    let mut second = launched(&store, &[]);
    let failure = second.ranks[0].fails("from_env");
    assert_eq!(failure.kind, "InvalidUsage", "{}", failure.text);
    for words in ["two jobs use one store", &format!("process {} ", first.ranks[0].process())] {
        assert!(failure.text.contains(words), "`{words}` is not in: {}", failure.text);
    }
    // The first job goes on undisturbed.
    first.begin("from_env", |rank| rank != 0);
    for rank in &first.ranks {
        rank.success("from_env");
    }
    first.must("call all_reduce 10");
}
