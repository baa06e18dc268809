//! Splits and shrinks of non-blocking communicators return at once, whatever the other ranks do.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::sync::Barrier;
use std::time::Duration;

use rsccl::error::Kind;
use rsccl::{Communicator, Config, ReduceOp, Result};

fn config() -> Config {
    Config::default()
        .with_blocking(false)
        .with_timeout(Duration::from_secs(20))
        .with_init_timeout(Duration::from_secs(20))
}

/// Waits until `comm` is no longer in progress.
fn settled(comm: &Communicator) -> Option<rsccl::Error> {
    let mut state = None;
    let over = machine::until(Duration::from_secs(30), || {
        state = comm.async_error();
        state.as_ref().is_none_or(|error| error.kind() != Kind::InProgress)
    });
    assert!(over, "still in progress");
    state
}

fn in_progress(comm: &Communicator) -> bool {
    comm.async_error().is_some_and(|error| error.kind() == Kind::InProgress)
}

/// Each rank's `body` on a thread of its own.
fn ranks<T: Send>(size: u32, body: impl Fn(Communicator) -> Result<T> + Sync) -> Vec<T> {
    let comms = Communicator::init_all(size, &config()).unwrap();
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = comms.into_iter().map(|comm| scope.spawn(move || body(comm).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn sum(comm: &Communicator) -> Result<u32> {
    let mut sum = [1u32];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}

#[test]
fn a_split_returned_only_when_all_ranks_had_come() {
    let others_are_back = Barrier::new(4);
    ranks(4, |comm| {
        let rank = comm.rank();
        if rank == 3 {
            // Does not split before the others have their communicators.
            others_are_back.wait();
        }
        let child = comm.split(Some(rank % 2), -i64::from(rank))?.expect("a color was passed");
        if rank != 3 {
            assert!(in_progress(&child) && in_progress(&comm), "rank {rank}");
            let error = sum(&child).expect_err("it is not made yet");
            assert_eq!(error.kind(), Kind::InProgress);
            assert_eq!(comm.barrier().expect_err("its engine is away").kind(), Kind::InProgress);
            others_are_back.wait();
        }
        assert!(settled(&child).is_none() && settled(&comm).is_none());
        assert_eq!((child.rank(), child.size()), (1 - rank / 2, 2));
        assert_eq!((sum(&child)?, sum(&comm)?), (2, 4));
        Ok(())
    });
}

/// Regression: both asked all ranks where they are, although each knows that from init.
#[test]
fn local_and_cross_returned_only_when_all_ranks_had_come() {
    for make in [Communicator::on_my_host, Communicator::cross] {
        let other_is_back = Barrier::new(2);
        ranks(2, |comm| {
            if comm.rank() == 1 {
                other_is_back.wait();
            }
            let child = make(&comm)?;
            if comm.rank() == 0 {
                assert!(in_progress(&child) && in_progress(&comm));
                other_is_back.wait();
            }
            assert!(settled(&child).is_none() && settled(&comm).is_none());
            assert_eq!(sum(&child)?, child.size());
            Ok(())
        });
    }
}

#[test]
fn rank_and_size_of_a_child_wait_for_it() {
    ranks(3, |comm| {
        let child = comm.split(Some(0), 0)?.expect("a color was passed");
        assert_eq!((child.rank(), child.size()), (comm.rank(), 3));
        assert!(child.async_error().is_none());
        sum(&child).map(|sum| assert_eq!(sum, 3))
    });
}

#[test]
fn a_rank_with_no_color_gets_none_at_once_and_its_communicator_back_later() {
    let first_is_back = Barrier::new(3);
    ranks(3, |comm| {
        let color = (comm.rank() != 0).then_some(7);
        if comm.rank() == 0 {
            assert!(comm.split(color, 0)?.is_none());
            assert!(in_progress(&comm));
            first_is_back.wait();
        } else {
            first_is_back.wait();
            let child = comm.split(color, 0)?.expect("a color was passed");
            assert!(settled(&child).is_none());
            assert_eq!(sum(&child)?, 2);
        }
        assert!(settled(&comm).is_none());
        sum(&comm).map(|sum| assert_eq!(sum, 3))
    });
}

#[test]
fn a_shrink_returned_only_when_all_survivors_had_come() {
    let other_is_back = Barrier::new(2);
    ranks(4, |comm| {
        let rank = comm.rank();
        if rank == 1 || rank == 2 {
            return Ok(()); // leaves
        }
        if rank == 3 {
            other_is_back.wait();
        }
        let rest = comm.shrink(&[2, 1])?;
        assert_eq!((rest.rank(), rest.size()), (rank / 3, 2), "known at once");
        if rank == 0 {
            assert!(in_progress(&rest) && in_progress(&comm));
            other_is_back.wait();
        }
        assert!(settled(&rest).is_none());
        sum(&rest).map(|sum| assert_eq!(sum, 2))
    });
}

#[test]
fn a_rank_that_leaves_ends_the_split_of_the_others_and_is_named() {
    ranks(3, |comm| {
        if comm.rank() == 1 {
            return Ok(());
        }
        let child = comm.split(Some(0), 0)?.expect("a color was passed");
        for comm in [&child, &comm] {
            let error = settled(comm).expect("rank 1 does not come");
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)), "{error}");
        }
        assert_eq!((child.rank(), child.size()), (0, 0), "it has none");
        // The communicator can be shrunk as after any failure.
        let rest = comm.shrink(&[1])?;
        assert!(settled(&rest).is_none());
        sum(&rest).map(|sum| assert_eq!(sum, 2))
    });
}

#[test]
fn a_child_lives_on_though_its_parent_is_dropped_before_it_is_made() {
    ranks(3, |comm| {
        let child = comm.split(Some(0), 0)?.expect("a color was passed");
        drop(comm);
        assert!(settled(&child).is_none());
        sum(&child).map(|sum| assert_eq!(sum, 3))
    });
}
