use std::time::Duration;

use super::*;
use crate::comm::{Buffers, CallCount, local};
use crate::config::Config;
use crate::error::Kind;
use crate::types::{Collective, DataType, Rank, ReduceOp};

fn leaked(count: usize, value: u32) -> &'static mut [u32] {
    Box::leak(vec![value; count].into())
}

fn sum(buffer: &'static mut [u32]) -> Call<'static> {
    let (count, buffers) = (CallCount::Each(buffer.len() as u64), Buffers::shared(buffer));
    let (collective, data_type, op) = (Collective::AllReduce, DataType::U32, Some(ReduceOp::Sum));
    Call { collective, data_type, op, root: None, count, buffers }
}

/// Regression: any error that a request had returned counted as the one that ended the communicator.
#[test]
fn the_error_is_heard_from_the_request_that_has_failed_and_no_other() {
    let hooks = WaitingHooks::default();
    let (own, own_outcome) = Promise::new();
    let (failed, failed_outcome) = Promise::new();
    let (behind, behind_outcome) = Promise::new();
    own.set(Err(Error::invalid_argument("the count is too large")));
    failed.set(Err(Error::mismatch("the roots differ")));
    // The thread has ended, and works at nothing any more.
    drop(behind);
    let outcomes = [&own_outcome, &failed_outcome, &behind_outcome];
    let worker = Worker {
        birthplace: Birthplace::here(),
        jobs: None,
        thread: None,
        unfinished: outcomes.into_iter().map(Arc::clone).collect(),
        ended: Promise::new().1,
        hooks: hooks.clone(),
        resting: Arc::default(),
    };
    for outcome in [&own_outcome, &behind_outcome] {
        outcome.wait(&hooks).unwrap_err();
        assert!(!worker.is_heard(), "the program does not know that the roots differ");
    }
    assert!(failed_outcome.is_set() && !worker.is_heard(), "to look whether it has ended tells nothing");
    failed_outcome.wait(&hooks).unwrap_err();
    assert!(worker.is_heard());
}

/// Calls of every kind in one order, on ranks that have requests under way and on ranks that have none.
#[test]
fn calls_run_beside_requests_and_without_any() {
    local::run(3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let (right, left) = (Rank::new((rank + 1) % size), Rank::new((rank + 2) % size));
        let own = Rank::new(rank);
        let detached = Detached::new(comm);
        for busy in [0, 1, 2] {
            // What rank `busy` has begun is taken only behind other calls.
            let receives = own.after(2, size) == Rank::new(busy);
            let sends = rank == busy;
            let early = sends.then(|| detached.begin_message(Message::send(leaked(300_000, 7), right))).transpose()?;
            detached.run(sum(leaked(10, rank)))?;
            let mut group = vec![Message::send(leaked(3, rank), own), Message::recv(leaked(3, 9), own)];
            group.extend([Message::send(leaked(5, rank), left), Message::recv(leaked(5, 9), right)]);
            detached.begin_all(group, vec![sum(leaked(4, 1)), sum(leaked(4, 2))])?.wait()?;
            let both = |peer: u32| {
                let peer = Rank::new(peer);
                [Message::send(leaked(2, rank), peer), Message::recv(leaked(2, 9), peer)]
            };
            if receives {
                detached.message(Message::recv(leaked(300_000, 9), left))?;
            }
            detached.exchange((0..size).flat_map(both).collect())?;
            detached.begin_exchange((0..size).flat_map(both).collect())?.wait()?;
            // Of the C++ classes alone.
            #[cfg(feature = "cpp")]
            {
                detached.messages((0..size).flat_map(both).collect())?;
                detached.begin_messages((0..size).flat_map(both).collect())?.wait()?;
            }
            if let Some(early) = early {
                early.wait()?;
                assert!(early.is_finished());
            }
        }
        detached.at_rest()?.barrier()?;
        assert!(detached.async_error().is_none());
        detached.finalize()
    })
    .unwrap();
}

/// Splits and the like on ranks that have requests under way and on ranks that have none. A peer comes to the call
/// only when it has had, or before it sends, the message of a request.
#[test]
fn set_ups_run_beside_requests_and_what_is_under_way_goes_on_meanwhile() {
    for (no_local, no_shm) in [(false, false), (true, false), (true, true)] {
        let config = Config::default().with_p2p_disable(no_local).with_shm_disable(no_shm);
        local::run_with(3, &config.with_timeout(Duration::from_secs(30)), |comm| {
            let (rank, size) = (comm.rank(), comm.size());
            let detached = Detached::new(comm);
            for count in [1, 300_000] {
                let early = (rank == 0).then(|| detached.begin_message(Message::send(leaked(count, 7), Rank::new(1))));
                let late = (rank == 0).then(|| detached.begin_message(Message::recv(leaked(count, 9), Rank::new(2))));
                if rank == 1 {
                    detached.message(Message::recv(leaked(count, 9), Rank::new(0)))?;
                }
                let half = detached.split(Some(rank % 2), 0)?.ok_or_else(|| Error::internal("no child"))?;
                assert_eq!((half.rank(), half.size()), (rank / 2, 2 - rank % 2));
                assert_eq!(
                    (detached.placement()?.local_rank, detached.on_my_host()?.size(), detached.cross()?.size()),
                    (rank, size, 1)
                );
                assert!(detached.split((rank == 1).then_some(0), 0)?.is_some() == (rank == 1));
                detached.register(&Buffer::<u32>::new(100)?)?;
                half.barrier()?;
                if rank == 2 {
                    detached.message(Message::send(leaked(count, 5), Rank::new(0)))?;
                }
                for pending in early.into_iter().chain(late) {
                    pending?.wait()?;
                }
            }
            detached.finalize()
        })
        .unwrap();
    }
}

/// A rank that has a request under way hears of the stuck peer by its own watch, and not while it waits for the
/// exchange.
#[test]
fn a_split_beside_requests_and_a_collective_are_a_mismatch() {
    let soon = Duration::from_secs(30);
    let config = Config::default().with_timeout(soon).with_init_timeout(soon);
    let ends: Vec<Error> = local::run_with(2, &config, |comm| {
        let rank = comm.rank();
        let detached = Detached::new(comm);
        if rank == 1 {
            let call = Call {
                collective: Collective::AllReduce,
                data_type: DataType::U32,
                op: Some(ReduceOp::Sum),
                root: None,
                count: CallCount::Each(1),
                buffers: Buffers::shared(leaked(1, 1)),
            };
            return Ok(detached.run(call).expect_err("the other rank is elsewhere"));
        }
        let pending = detached.begin_message(Message::recv(leaked(1, 9), Rank::new(1)))?;
        let end = detached.split(Some(0), 0).expect_err("the other rank is elsewhere");
        pending.wait().expect_err("its communicator has failed");
        Ok(end)
    })
    .unwrap();
    for end in ends {
        assert_eq!(end.kind(), Kind::Mismatch, "{end}");
        assert!(end.message().contains("called split, rank 1 called all_reduce #0"), "{end}");
    }
}

#[test]
fn what_cannot_run_beside_requests_says_so() {
    local::run(2, |comm| {
        let rank = comm.rank();
        let detached = Detached::new(comm);
        let theirs = Rank::new(1 - rank);
        let pending = detached.begin_message(Message::recv(leaked(1, 9), theirs))?;
        assert_eq!(detached.at_rest().unwrap_err().kind(), Kind::InvalidUsage);
        let own = Message::send(leaked(1, 9), Rank::new(rank));
        assert_eq!(detached.begin_message(own).unwrap_err().kind(), Kind::InvalidUsage);
        detached.begin_message(Message::send(leaked(1, 7), theirs))?.wait()?;
        pending.wait()?;
        detached.at_rest().map(drop)
    })
    .unwrap();
}

#[test]
fn a_request_that_fails_ends_the_communicator_on_all_ranks() {
    local::run(3, |comm| {
        let rank = comm.rank();
        let detached = Detached::new(comm);
        let count = if rank == 2 { 2000 } else { 1000 };
        let error = detached.begin(sum(leaked(count, rank)))?.wait().unwrap_err();
        assert_eq!(error.kind(), Kind::Mismatch, "{error}");
        assert!(detached.async_error().is_some());
        assert!(detached.run(sum(leaked(1, 1))).is_err() && detached.begin(sum(leaked(1, 1))).is_err());
        Ok(())
    })
    .unwrap();
}

/// Whoever sees that a request has failed, in whatever way, finds the communicator ended, also from another thread
/// and while the failed request's engine is not back.
#[test]
fn a_failed_request_has_ended_the_communicator_before_it_says_so() {
    for kind in 0..2 {
        local::run(2, |comm| {
            let rank = comm.rank();
            let detached = Detached::new(comm);
            let pending = match kind {
                0 => detached.begin(sum(leaked(1000 + rank as usize, 1)))?,
                _ if rank == 0 => detached.begin_message(Message::send(leaked(1, 7), Rank::new(1)))?,
                _ => detached.begin_message(Message::recv(leaked(2, 9), Rank::new(0)))?,
            };
            if kind == 1 && rank == 0 {
                // The message has gone; the error is the receiver's, and comes with a call.
                pending.wait()?;
                detached.run(sum(leaked(1, 1))).expect_err("the receiver has ended the communicator");
                return Ok(());
            }
            let seen = std::thread::scope(|threads| {
                let watchdog = threads.spawn(|| {
                    while !pending.is_finished() {
                        std::thread::yield_now();
                    }
                    detached.async_error().map(|error| error.kind())
                });
                watchdog.join()
            });
            assert_eq!(seen.expect("it does not panic"), Some(Kind::Mismatch));
            assert_eq!(pending.wait().unwrap_err().kind(), Kind::Mismatch);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn threads_share_a_detached_communicator_and_come_one_at_a_time() {
    let refused = local::run(2, |comm| {
        let rank = comm.rank();
        let detached = Detached::new(comm);
        let refused = std::thread::scope(|threads| {
            let calls = || {
                let mut refused = 0;
                for _ in 0..200 {
                    // To the rank itself: a call with a peer that was refused on one side would wait for ever.
                    match detached.begin_all(own_pair(rank), Vec::new()).map(|pending| pending.wait()) {
                        Ok(waited) => waited?,
                        Err(error) if error.kind() == Kind::InvalidUsage => refused += 1,
                        Err(error) => return Err(error),
                    }
                }
                Ok(refused)
            };
            let other = threads.spawn(calls);
            let mine = calls()?;
            Ok(mine + other.join().expect("it does not panic")?)
        })?;
        detached.at_rest()?.barrier()?;
        detached.finalize()?;
        Ok(refused)
    });
    // How many is up to the system; each of them did no harm.
    assert!(refused.unwrap().iter().all(|refused| *refused < 400));
}

/// A message of this rank to itself.
fn own_pair(rank: u32) -> Vec<Message<'static>> {
    let own = Rank::new(rank);
    vec![Message::send(leaked(3, rank), own), Message::recv(leaked(3, 9), own)]
}

#[test]
fn a_detached_communicator_that_is_dropped_waits_for_its_requests() {
    local::run(2, |comm| {
        let theirs = Rank::new(1 - comm.rank());
        let sends = comm.rank() == 0;
        let detached = Detached::new(comm);
        let pending = match sends {
            true => detached.begin_message(Message::send(leaked(300_000, 7), theirs))?,
            false => detached.begin_message(Message::recv(leaked(300_000, 9), theirs))?,
        };
        drop(detached);
        assert!(pending.is_finished());
        pending.wait()
    })
    .unwrap();
}
