//! Requests: what runs beside what, who moves it, and how it ends.

use std::pin::Pin;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Context;
use std::time::Duration;

use crate::comm::long_rest::LongRest;
use crate::comm::{Buffer, Buffers, Call, CallCount, Communicator, Home, Message, local};
use crate::config::Config;
use crate::error::{Error, Kind};
use crate::exec::Asides;
use crate::sync::Deadline;
use crate::sync::primitive::Arc;
use crate::sys::thread;
use crate::types::{Collective, DataType, Rank, ReduceOp};

fn leaked(count: usize, value: u32) -> &'static mut [u32] {
    Box::leak(vec![value; count].into())
}

fn sum(buffer: &'static mut [u32]) -> Call<'static> {
    let (count, buffers) = (CallCount::Each(buffer.len() as u64), Buffers::shared(buffer));
    let (collective, data_type, op) = (Collective::AllReduce, DataType::U32, Some(ReduceOp::Sum));
    Call { collective, data_type, op, root: None, count, buffers }
}

fn sum_of(count: usize, value: u32) -> Call<'static> {
    sum(leaked(count, value))
}

/// Regression: any error that a request had returned counted as the one that ended the communicator, of which nothing
/// is told any more when it is dropped.
#[test]
fn the_error_is_heard_from_the_request_that_has_failed_and_no_other() {
    local::run(2, |comm| {
        let rank = comm.rank();
        let abort = comm.shared.status.abort.clone();
        let other = Rank::new(1 - rank);
        // Found by the rank that receives, where the request is moved; its own fault ends nothing.
        let own = Message::send(leaked(1, 9), Rank::new(rank));
        comm.begin_message(own).expect_err("a send to itself has no recv");
        let count = 1 + rank as usize;
        let pending = match rank {
            0 => comm.begin_message(Message::send(leaked(count, 7), other))?,
            _ => comm.begin_message(Message::recv(leaked(count, 9), other))?,
        };
        if rank == 0 {
            pending.wait()?;
            comm.barrier().expect_err("the receiver has ended the communicator");
            return Ok(());
        }
        while !pending.is_finished() {
            std::thread::yield_now();
        }
        assert!(!abort.is_heard(), "to look whether it has ended tells nothing");
        pending.wait().expect_err("the counts differ");
        assert!(abort.is_heard());
        Ok(())
    })
    .unwrap();
}

/// Calls of every kind in one order, on ranks that have requests under way and on ranks that have none.
/// What fits its slot, and what has come already, end where they begin, and nobody has to tell of their end.
#[test]
fn what_ends_as_it_begins_needs_no_promise() {
    let heard = std::sync::Barrier::new(2);
    local::run(2, |comm| {
        let other = 1 - comm.rank();
        // The connections are there from now on.
        comm.send_recv(&[1_u8], other, &mut [0_u8], other)?;
        let (mut word, mine) = ([0_u8], [7_u8]);
        comm.scope(|scope| {
            if comm.rank() == 0 {
                let sent = scope.send(&mine, other)?;
                assert!(sent.ended_at_once() && sent.is_finished());
                heard.wait();
                return sent.wait();
            }
            heard.wait();
            let received = scope.recv(&mut word, other)?;
            assert!(received.ended_at_once());
            received.wait()
        })?;
        assert_eq!(word, if comm.rank() == 0 { [0] } else { [7] });
        Ok(())
    })
    .unwrap();
}

/// A request that fails as it begins does not pass for one that ended well.
#[test]
fn what_fails_as_it_begins_has_an_outcome() {
    local::run(2, |comm| {
        let (peer, other) = (1 - comm.rank(), Rank::new(1 - comm.rank()));
        comm.send_recv(&[1_u8], peer, &mut [0_u8], peer)?;
        // Counts that differ: what is received fails, where it begins or later.
        let sent = comm.begin_message(Message::send(leaked(1, 7), other));
        let received = comm.begin_message(Message::recv(leaked(2, 9), other));
        let ended: Vec<_> =
            [sent, received].into_iter().map(|begun| begun.and_then(|pending| pending.wait())).collect();
        assert!(ended[1].is_err(), "{ended:?}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn calls_run_beside_requests_and_without_any() {
    local::run(3, |comm| {
        let (rank, size) = (comm.rank(), comm.size());
        let (right, left) = (Rank::new((rank + 1) % size), Rank::new((rank + 2) % size));
        let own = Rank::new(rank);
        for busy in [0, 1, 2] {
            // What rank `busy` has begun is taken only behind other calls.
            let receives = own.after(2, size) == Rank::new(busy);
            let sends = rank == busy;
            let early = sends.then(|| comm.begin_message(Message::send(leaked(300_000, 7), right))).transpose()?;
            comm.run(&sum(leaked(10, rank)))?;
            let mut group = vec![Message::send(leaked(3, rank), own), Message::recv(leaked(3, 9), own)];
            group.extend([Message::send(leaked(5, rank), left), Message::recv(leaked(5, 9), right)]);
            comm.begin_all(group, vec![sum(leaked(4, 1)), sum(leaked(4, 2))])?.wait()?;
            let both = |peer: u32| {
                let peer = Rank::new(peer);
                [Message::send(leaked(2, rank), peer), Message::recv(leaked(2, 9), peer)]
            };
            if receives {
                comm.message(Message::recv(leaked(300_000, 9), left))?;
            }
            comm.exchange((0..size).flat_map(both).collect())?;
            comm.begin_exchange((0..size).flat_map(both).collect())?.wait()?;
            {
                comm.messages((0..size).flat_map(both).collect())?;
                comm.begin_messages((0..size).flat_map(both).collect())?.wait()?;
            }
            if let Some(early) = early {
                early.wait()?;
                assert!(early.is_finished());
            }
        }
        comm.barrier()?;
        assert!(comm.async_error().is_none());
        comm.finalize()
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
            for count in [1, 300_000] {
                let early = (rank == 0).then(|| comm.begin_message(Message::send(leaked(count, 7), Rank::new(1))));
                let late = (rank == 0).then(|| comm.begin_message(Message::recv(leaked(count, 9), Rank::new(2))));
                if rank == 1 {
                    comm.message(Message::recv(leaked(count, 9), Rank::new(0)))?;
                }
                let half = comm.split(Some(rank % 2), 0)?.ok_or_else(|| Error::internal("no child"))?;
                assert_eq!((half.rank(), half.size()), (rank / 2, 2 - rank % 2));
                assert_eq!(
                    (comm.placement()?.local_rank, comm.on_my_host()?.size(), comm.cross()?.size()),
                    (rank, size, 1)
                );
                assert!(comm.split((rank == 1).then_some(0), 0)?.is_some() == (rank == 1));
                comm.register(&Buffer::<u32>::new(100)?)?;
                half.barrier()?;
                if rank == 2 {
                    comm.message(Message::send(leaked(count, 5), Rank::new(0)))?;
                }
                for pending in early.into_iter().chain(late) {
                    pending?.wait()?;
                }
            }
            comm.finalize()
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
        if rank == 1 {
            let call = Call {
                collective: Collective::AllReduce,
                data_type: DataType::U32,
                op: Some(ReduceOp::Sum),
                root: None,
                count: CallCount::Each(1),
                buffers: Buffers::shared(leaked(1, 1)),
            };
            return Ok(comm.run(&call).expect_err("the other rank is elsewhere"));
        }
        let pending = comm.begin_message(Message::recv(leaked(1, 9), Rank::new(1)))?;
        let end = comm.split(Some(0), 0).expect_err("the other rank is elsewhere");
        pending.wait().expect_err("its communicator has failed");
        Ok(end)
    })
    .unwrap();
    for end in ends {
        assert_eq!(end.kind(), Kind::Mismatch, "{end}");
        assert!(end.message().contains("called split, rank 1 called all_reduce #0"), "{end}");
    }
}

/// What MPI programs do: a receive is begun, other calls block, then the receive is waited for. Each rank's message is
/// sent behind the calls, and the large ones need both ranks at the same time.
#[test]
fn blocking_calls_run_beside_requests() {
    for (no_local, no_shm) in [(false, false), (true, false), (true, true)] {
        let config = Config::default().with_p2p_disable(no_local).with_shm_disable(no_shm);
        local::run_with(2, &config.with_timeout(Duration::from_secs(30)), |comm| {
            let (rank, other) = (comm.rank(), 1 - comm.rank());
            for count in [1, 300_000] {
                let pending = comm.begin_message(Message::recv(leaked(count, 9), Rank::new(other)))?;
                assert!(!pending.is_finished());
                let mut sum = vec![rank; count];
                comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
                assert!(sum.iter().all(|sum| *sum == 1));
                comm.barrier()?;
                comm.send(&vec![rank; count], other)?;
                pending.wait()?;
                // A collective of a request, and calls behind it.
                let early = comm.begin(sum_of(count, 1))?;
                let sent = comm.begin_message(Message::send(leaked(count, 7), Rank::new(other)))?;
                comm.broadcast(&mut sum, 0)?;
                let mut got = vec![9u32; count];
                comm.recv(&mut got, other)?;
                assert!(early.is_finished() && got == vec![7; count]);
                sent.wait()?;
                early.wait()?;
            }
            assert_eq!(
                comm.begin_message(Message::send(leaked(1, 9), Rank::new(rank))).unwrap_err().kind(),
                Kind::InvalidUsage
            );
            comm.finalize()
        })
        .unwrap();
    }
}

/// One rank begins a collective, and sends before it waits for it; the other receives before it begins it: as in MPI, a
/// message does not wait for the end of a collective that was begun before it. Large ones need more than slots hold.
#[test]
fn a_message_does_not_wait_for_a_collective_that_was_begun_before_it() {
    for (no_local, no_shm) in [(false, false), (true, false), (true, true)] {
        let config = Config::default().with_p2p_disable(no_local).with_shm_disable(no_shm);
        local::run_with(2, &config.with_timeout(Duration::from_secs(30)), |comm| {
            let other = 1 - comm.rank();
            for count in [1, 300_000] {
                let mut words = vec![7u32; count];
                if comm.rank() == 0 {
                    let early = comm.begin(sum_of(count, 1))?;
                    comm.send(&words, other)?;
                    early.wait()?;
                } else {
                    comm.recv(&mut words, other)?;
                    comm.begin(sum_of(count, 1))?.wait()?;
                }
            }
            comm.finalize()
        })
        .unwrap();
    }
}

/// Collectives of two communicators in different orders, of which each rank waits for another first.
#[test]
fn collectives_of_two_communicators_wait_for_each_other_in_any_order() {
    local::run_with(2, &Config::default().with_timeout(Duration::from_secs(30)), |comm| {
        let beside = comm.by_color(0, 0)?;
        for count in [1, 300_000] {
            let order = if comm.rank() == 0 { [&comm, &beside] } else { [&beside, &comm] };
            let begun = order.map(|comm| comm.begin(sum_of(count, 1)));
            for pending in begun {
                pending?.wait()?;
            }
        }
        Ok(())
    })
    .unwrap();
}

/// Nobody drives one rank's requests but the watcher: its program waits for what comes of them at the other rank.
#[test]
fn the_watcher_moves_what_the_program_leaves_alone() {
    for (no_local, no_shm) in [(false, false), (true, false), (true, true)] {
        let (told, heard) = std::sync::mpsc::channel::<()>();
        let heard = std::sync::Mutex::new(heard);
        let config = Config::default().with_p2p_disable(no_local).with_shm_disable(no_shm);
        local::run_with(2, &config.with_timeout(Duration::from_secs(30)), |comm| {
            for count in [1, 300_000] {
                let (send, recv) = (Rank::new(1), Rank::new(0));
                if comm.rank() == 0 {
                    let sum = comm.begin(sum_of(count, 1))?;
                    let sent = comm.begin_message(Message::send(leaked(count, 7), send))?;
                    let came = heard.lock().expect("one thread has it").recv_timeout(Duration::from_secs(30));
                    assert!(came.is_ok(), "the other rank has waited for ever");
                    sum.wait()?;
                    sent.wait()?;
                } else {
                    let sum = comm.begin(sum_of(count, 1))?;
                    comm.begin_message(Message::recv(leaked(count, 9), recv))?.wait()?;
                    sum.wait()?;
                    told.send(()).expect("the other rank listens");
                }
            }
            comm.finalize()
        })
        .unwrap();
    }
}

/// A forgotten request goes on, and ends with its communicator at the latest.
#[test]
fn requests_are_dropped_and_forgotten_in_any_order() {
    local::run(2, |comm| {
        let other = Rank::new(1 - comm.rank());
        for count in [1, 100_000] {
            let received = comm.begin_message(Message::recv(leaked(count, 9), other))?;
            std::mem::forget(comm.begin(sum_of(count, 1))?);
            drop(comm.begin_message(Message::send(leaked(count, 7), other))?);
            let last = comm.begin(sum_of(count, 1))?;
            drop(received);
            last.wait()?;
        }
        comm.finalize()
    })
    .unwrap();
}

#[test]
fn a_request_that_fails_ends_the_communicator_on_all_ranks() {
    local::run(3, |comm| {
        let rank = comm.rank();
        let count = if rank == 2 { 2000 } else { 1000 };
        let error = comm.begin(sum(leaked(count, rank)))?.wait().unwrap_err();
        assert_eq!(error.kind(), Kind::Mismatch, "{error}");
        assert!(comm.async_error().is_some());
        assert!(comm.run(&sum(leaked(1, 1))).is_err() && comm.begin(sum(leaked(1, 1))).is_err());
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
            let pending = match kind {
                0 => comm.begin(sum(leaked(1000 + rank as usize, 1)))?,
                _ if rank == 0 => comm.begin_message(Message::send(leaked(1, 7), Rank::new(1)))?,
                _ => comm.begin_message(Message::recv(leaked(2, 9), Rank::new(0)))?,
            };
            if kind == 1 && rank == 0 {
                // The message has gone; the error is the receiver's, and comes with a call.
                pending.wait()?;
                comm.run(&sum(leaked(1, 1))).expect_err("the receiver has ended the communicator");
                return Ok(());
            }
            let seen = std::thread::scope(|threads| {
                let watchdog = threads.spawn(|| {
                    while !pending.is_finished() {
                        std::thread::yield_now();
                    }
                    comm.async_error().map(|error| error.kind())
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
fn threads_share_a_communicator_with_requests_and_come_one_at_a_time() {
    let refused = local::run(2, |comm| {
        let rank = comm.rank();
        let refused = std::thread::scope(|threads| {
            let calls = || {
                let mut refused = 0;
                for _ in 0..200 {
                    // To the rank itself: a call with a peer that was refused on one side would wait for ever.
                    match comm.begin_all(own_pair(rank), Vec::new()).map(|pending| pending.wait()) {
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
        comm.barrier()?;
        comm.finalize()?;
        Ok(refused)
    });
    // How many is up to the system; each of them did no harm.
    assert!(refused.unwrap().iter().all(|refused| *refused < 400));
}

/// Regression: where several threads have used a communicator, a thread that waited for a request, or looked whether
/// one has ended, made another thread's call an error.
#[test]
fn a_call_does_not_fail_because_another_thread_waits_for_a_request() {
    local::run_with(2, &Config::default().with_timeout(Duration::from_secs(30)), |comm| {
        let (rank, other) = (comm.rank(), Rank::new(1 - comm.rank()));
        // From now on no thread has a privilege.
        std::thread::scope(|threads| threads.spawn(|| comm.barrier()).join()).expect("it does not panic")?;
        let pending = [0, 1].map(|_| comm.begin_message(Message::recv(leaked(10, 9), other)));
        let [waited, looked] = pending;
        let (waited, looked) = (waited?, looked?);
        std::thread::scope(|threads| {
            let waits = threads.spawn(|| waited.wait());
            let looks = threads.spawn(|| {
                while !looked.is_finished() {
                    std::thread::yield_now();
                }
            });
            for _ in 0..200 {
                comm.begin_all(own_pair(rank), Vec::new())?.wait()?;
                comm.barrier()?;
            }
            comm.send(&[1u32; 10], other.get())?;
            comm.send(&[1u32; 10], other.get())?;
            looks.join().expect("it does not panic");
            waits.join().expect("it does not panic")
        })?;
        looked.wait()?;
        comm.finalize()
    })
    .unwrap();
}

/// A message of this rank to itself.
fn own_pair(rank: u32) -> Vec<Message<'static>> {
    let own = Rank::new(rank);
    vec![Message::send(leaked(3, rank), own), Message::recv(leaked(3, 9), own)]
}

#[test]
fn a_communicator_that_is_dropped_waits_for_its_requests() {
    local::run(2, |comm| {
        let theirs = Rank::new(1 - comm.rank());
        let sends = comm.rank() == 0;
        let pending = match sends {
            true => comm.begin_message(Message::send(leaked(300_000, 7), theirs))?,
            false => comm.begin_message(Message::recv(leaked(300_000, 9), theirs))?,
        };
        drop(comm);
        assert!(pending.is_finished());
        pending.wait()
    })
    .unwrap();
}

/// Regression: a message behind an `all_to_all_v` that had not begun held up the collectives behind it until it ended.
#[test]
fn a_message_that_has_to_wait_for_its_place_holds_up_no_collective() {
    local::run_with(2, &Config::default().with_timeout(Duration::from_secs(30)), |comm| {
        let other = 1 - comm.rank();
        let reduced = comm.start(vec![1u32; 100_000], |calls, values| calls.all_reduce_in_place(values, ReduceOp::Sum));
        let swapped = comm.start(([comm.rank(); 2], [9; 2]), |calls, (mine, theirs)| {
            calls.all_to_all_v(mine, theirs, (&[1; 2], &[1; 2]))
        })?;
        let late = match comm.rank() {
            0 => Some(comm.start([9u32], |calls, got| calls.recv(got, other))?),
            _ => None,
        };
        comm.barrier()?;
        match late {
            Some(late) => assert_eq!(late.wait()?, [7]),
            None => comm.send(&[7u32], other)?,
        }
        assert_eq!(reduced?.wait()?[99_999], 2);
        assert_eq!(swapped.wait()?.1, [0, 1]);
        comm.barrier()
    })
    .unwrap();
}

#[test]
fn a_communicator_shrinks_once_its_requests_have_ended() {
    local::run(3, |comm| {
        comm.start([1u32], |calls, value| calls.all_reduce_in_place(value, ReduceOp::Sum))?.wait()?;
        if comm.rank() < 2 {
            let pair = comm.shrink(&[2])?;
            assert_eq!(pair.size(), 2);
            pair.barrier()?;
        }
        Ok(())
    })
    .unwrap();
}

/// Regression: the buffers of a request that was dropped were dropped by whoever moved it, with the engine in hand: a
/// communicator in them then waited for itself, and a panic ended the thread that serves all requests.
#[test]
fn buffers_that_are_dropped_with_their_request_may_own_the_communicator_and_may_panic() {
    struct Bad;
    impl Drop for Bad {
        fn drop(&mut self) {
            panic!("on purpose");
        }
    }
    local::run_with(2, &Config::default().with_timeout(Duration::from_secs(30)), |comm| {
        let other = 1 - comm.rank();
        let child = std::sync::Arc::new(comm.split(Some(0), 0)?.expect("a color"));
        let owned = std::sync::Arc::clone(&child);
        drop(child.start((vec![9u32; 10], owned), |calls, (got, _)| calls.recv(got, other))?);
        drop(comm.start((vec![9u32; 10], Bad), |calls, (got, _)| calls.recv(got, other))?);
        let sent = child.start(vec![1u32; 10], |calls, mine| calls.send(mine, other))?;
        drop(child);
        sent.wait()?;
        comm.send(&[1u32; 10], other)?;
        comm.barrier()?;
        // The thread that moves what is left alone is still there.
        let reduced =
            comm.start(vec![1u32; 200_000], |calls, values| calls.all_reduce_in_place(values, ReduceOp::Sum))?;
        assert_eq!(reduced.wait()?[0], 2);
        comm.barrier()
    })
    .unwrap();
}

/// Regression: of two ranks of one process whose collectives are inside each other's buffers, the one that failed first
/// waited, on the one thread that moves both, for the other to leave.
#[test]
fn collectives_that_nobody_drives_leave_each_others_buffers_after_an_abort() {
    for _ in 0..MOST_TRIES {
        let comms = Communicator::init_all(2, &Config::default()).unwrap();
        let begin = || -> Vec<_> { comms.iter().map(|comm| comm.begin(sum_of(300_000, 1)).unwrap()).collect() };
        // The first call maps their memory.
        begin().iter().for_each(|pending| pending.wait().unwrap());
        // Behind the exchange in which they meet, each works in the other's buffers, and waits for it there.
        let begun = begin();
        comms[0].shared.poll();
        comms.iter().for_each(|comm| comm.abort_handle().abort("enough"));
        let is_over = || begun.iter().all(|pending| pending.has_ended());
        let deadline = Deadline::after(Duration::from_secs(10));
        while !is_over() && !deadline.is_over() {
            std::thread::yield_now();
        }
        if !is_over() {
            // To drop them would wait for the same.
            comms.into_iter().for_each(std::mem::forget);
            panic!("they wait for each other");
        }
        // The watcher may have been fast enough to end them well.
        if begun.iter().all(|pending| pending.wait().is_err()) {
            return;
        }
    }
    panic!("all of them were over before the abort");
}

const MOST_TRIES: u32 = 100;

/// Regression: a collective that the watcher had begun behind another made the watcher's thread the one that stands in
/// the communicator's call, of which others are told who wait for this rank.
#[test]
fn the_thread_that_has_begun_a_request_stands_in_its_call_whoever_moves_it() {
    local::run_with(2, &Config::default().with_timeout(Duration::from_secs(30)), |comm| {
        let begun = [0, 1].map(|_| comm.begin(sum_of(10, 1)));
        let deadline = Deadline::after(Duration::from_secs(20));
        for pending in begun {
            let pending = pending?;
            // Nobody drives here.
            while !pending.has_ended() && !deadline.is_over() {
                std::thread::yield_now();
            }
            pending.wait()?;
        }
        comm.with_engine(|engine| {
            assert_eq!(engine.session.user(), thread::number());
            Ok(())
        })?;
        comm.finalize()
    })
    .unwrap();
}

/// Regression: beside a collective the watcher came at each tick, and did not sleep until a peer woke it.
#[test]
fn the_watcher_sleeps_beside_a_collective_until_a_peer_wakes_it() {
    for count in [1, 300_000] {
        let comms = Communicator::init_all(2, &Config::default()).unwrap();
        let begin = || -> Vec<_> { comms.iter().map(|comm| comm.begin(sum_of(count, 1)).unwrap()).collect() };
        // The first call maps their memory.
        begin().iter().for_each(|pending| pending.wait().unwrap());
        let early = comms[0].begin(sum_of(count, 1)).unwrap();
        (0..4).for_each(|_| comms[0].shared.poll());
        let mut rest = LongRest::new(&Arc::default(), false);
        match &mut *comms[0].home() {
            Home::Busy(requests) => {
                // From the first time on the bootstrap rings the chime for news.
                let wakes = (0..2).any(|_| requests.wakes(&mut rest).is_some_and(|wakes| !wakes.is_up()));
                assert!(wakes, "it comes at each tick");
            }
            _ => panic!("it has ended without its peer"),
        }
        comms[1].begin(sum_of(count, 1)).unwrap().wait().unwrap();
        early.wait().unwrap();
    }
}

/// Wakes by waiting: until the test ends, or for a while.
struct Blocks(Mutex<Receiver<()>>, Sender<()>);

impl std::task::Wake for Blocks {
    fn wake(self: std::sync::Arc<Self>) {
        // The test may have ended by an assertion.
        let _unheard = self.1.send(());
        let _passed = self.0.lock().expect("one thread has it").recv_timeout(Duration::from_secs(20));
    }
}

/// Regression: a thread that waited on one communicator left the requests of its others to the watcher, which is busy
/// here. The other rank goes on only once it has a message of such a request.
#[test]
fn a_wait_moves_the_requests_of_other_communicators_of_its_thread() {
    local::run_with(2, &Config::default().with_timeout(Duration::from_secs(10)), |comm| {
        let (beside, busy) = (comm.by_color(0, 0)?, comm.by_color(0, 0)?);
        const LARGE: usize = 1 << 20;
        if comm.rank() == 1 {
            busy.send(&[1u32], 0)?;
            for kind in 0..3 {
                let mut words = vec![9u32; LARGE];
                beside.recv(&mut words, 0)?;
                assert_eq!(words, [7; LARGE]);
                match kind {
                    0 | 1 => comm.send(&[1u32], 0)?,
                    _ => comm.run(&sum_of(1, 1))?,
                }
            }
            return comm.barrier();
        }
        let (frees, freed) = channel();
        let (tells, told) = channel();
        let mut woken = busy.start([9u32], |calls, word| calls.recv(word, 1))?.into_future();
        let waker = std::task::Waker::from(std::sync::Arc::new(Blocks(Mutex::new(freed), tells)));
        if Pin::new(&mut woken).poll(&mut Context::from_waker(&waker)).is_pending() {
            told.recv_timeout(Duration::from_secs(20)).expect("the watcher has woken it");
        }
        for kind in 0..3 {
            let sent = beside.begin_message(Message::send(leaked(LARGE, 7), Rank::new(1)))?;
            match kind {
                0 => comm.recv(&mut [9u32], 1)?,
                1 => comm.begin_message(Message::recv(leaked(1, 9), Rank::new(1)))?.wait()?,
                _ => comm.begin(sum_of(1, 1))?.wait()?,
            }
            sent.wait()?;
        }
        frees.send(()).expect("the waker listens");
        comm.barrier()
    })
    .unwrap();
}

/// The requests of the communicator on which a thread waits are no others: its wait sleeps until they move.
#[test]
fn requests_are_beside_waits_for_others_alone() {
    local::run(2, |comm| {
        let other = Rank::new(1 - comm.rank());
        assert!(!Asides::is_any());
        let received = comm.begin_message(Message::recv(leaked(1, 9), other))?;
        // The watcher may have it, and gives it back to a call.
        let deadline = Deadline::after(Duration::from_secs(20));
        while !Asides::is_any() && !deadline.is_over() {
            drop(comm.home());
        }
        assert!(!deadline.is_over());
        let home = comm.home();
        assert!(!Asides::is_any() && Asides::turn().is_none());
        drop(home);
        comm.barrier()?;
        comm.send(&[1u32], other.get())?;
        received.wait()?;
        comm.finalize()
    })
    .unwrap();
}

/// Small collectives of requests are announced; where ranks form teams, none is. Ranks that share processors do from 9
/// on, others from 17 on.
#[test]
fn small_collectives_of_requests_end_well_for_any_number_of_ranks() {
    for ranks in [2, 8, 9, 16, 17] {
        local::run_with(ranks, &Config::default().with_timeout(Duration::from_secs(60)), |comm| {
            let me = comm.rank();
            let (right, left) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
            for round in 0..12 {
                let root = round % ranks;
                let (mut sum, mut word, mut got) = ([me + round], [if me == root { round } else { 99 }], [99]);
                let (mine, mut all) = ([me * 100 + round], vec![99; ranks as usize]);
                comm.scope(|scope| {
                    let summed = scope.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
                    // Ranks wait in one order or the other.
                    let passed = scope.send_recv(&mine, right, &mut got, left)?;
                    let told = scope.broadcast(&mut word, root)?;
                    let gathered = scope.all_gather(&mine, &mut all)?;
                    if (me + round) % 2 == 0 {
                        [gathered, told, passed, summed].into_iter().try_for_each(|request| request.wait())
                    } else {
                        [summed, passed, told, gathered].into_iter().try_for_each(|request| request.wait())
                    }
                })?;
                assert_eq!(
                    (sum, word, got),
                    ([ranks * (ranks - 1) / 2 + ranks * round], [round], [left * 100 + round])
                );
                assert!(all.iter().zip(0..).all(|(found, rank)| *found == rank * 100 + round), "{all:?}");
            }
            Ok(())
        })
        .unwrap_or_else(|error| panic!("{ranks} ranks: {error}"));
    }
}
