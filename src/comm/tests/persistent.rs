//! Persistent calls: what they give against plain ones, what runs beside what, and how they end.

use std::time::Duration;

use crate::comm::{Buffer, Communicator, Member, PersistentCall, local, start_all, test_all, wait_some};
use crate::config::Config;
use crate::error::{Kind, Result};
use crate::types::{Element, NO_RANK, ReduceOp, bf16, f16};

type Pair<T> = (Vec<T>, Vec<T>);

/// Threads of a process, ranks that share memory as processes do, and ranks that share none.
fn ways() -> [Config; 3] {
    [(false, false), (true, false), (true, true)].map(|(no_local, no_shm)| {
        let config = Config::default().with_p2p_disable(no_local).with_shm_disable(no_shm);
        config.with_timeout(Duration::from_secs(60)).with_socket_interfaces("lo")
    })
}

/// A collective or message of three ranks, with how many blocks of `count` it has on each side.
struct Case<T> {
    name: &'static str,
    blocks: (usize, usize),
    persistent: for<'a> fn(&mut Member<'_, 'a>, &'a mut [T], &'a mut [T], u32) -> Result<()>,
    plain: fn(&Communicator, &mut [T], &mut [T]) -> Result<()>,
}

macro_rules! cases {
    ($($name:ident($send:literal, $recv:literal): |$me:ident, $a:ident, $b:ident| [$($argument:expr),*];)+) => {
        vec![$(Case {
            name: stringify!($name),
            blocks: ($send, $recv),
            persistent: |calls, $a, $b, $me| {
                let (_, _, _) = ($me, &mut *$a, &mut *$b);
                calls.$name($($argument),*)
            },
            plain: |comm, $a, $b| {
                let $me = comm.rank();
                let (_, _, _) = ($me, &mut *$a, &mut *$b);
                comm.$name($($argument),*)
            },
        }),+]
    };
}

/// In a row of three.
fn next(me: u32) -> u32 {
    if me == 2 { NO_RANK } else { me + 1 }
}

fn counts(elements: usize, me: u32) -> [usize; 3] {
    let _same_on_all = me;
    [1, 2, elements - 3]
}

fn cases<T: Element>() -> Vec<Case<T>> {
    use ReduceOp::{Max, Min, Sum};
    cases! {
        all_reduce(1, 1): |me, a, b| [a, b, Sum];
        all_reduce_in_place(1, 1): |me, a, b| [b, Max];
        broadcast(1, 1): |me, a, b| [b, 1];
        broadcast_into(1, 1): |me, a, b| [a, b, 2];
        reduce(1, 1): |me, a, b| [a, b, Sum, 1];
        reduce_in_place(1, 1): |me, a, b| [b, Min, 2];
        all_gather(1, 3): |me, a, b| [a, b];
        all_gather_in_place(1, 3): |me, a, b| [b];
        reduce_scatter(3, 1): |me, a, b| [a, b, Sum];
        all_to_all(3, 3): |me, a, b| [a, b];
        gather(1, 3): |me, a, b| [a, b, 1];
        scatter(3, 1): |me, a, b| [a, b, 2];
        all_gather_v(1, 3): |me, a, b| [&a[..counts(b.len(), me)[me as usize]], b, &counts(b.len(), me)];
        reduce_scatter_v(3, 1): |me, a, b| [a, &mut b[..counts(a.len(), me)[me as usize]], &counts(a.len(), me), Sum];
        gather_v(1, 3): |me, a, b| [&a[..counts(b.len(), me)[me as usize]], b, &counts(b.len(), me), 0];
        scatter_v(3, 1): |me, a, b| [a, &mut b[..counts(a.len(), me)[me as usize]], &counts(a.len(), me), 1];
        all_to_all_v(3, 3): |me, a, b| [a, b, (&[a.len() / 3; 3], &[b.len() / 3; 3])];
        scan(1, 1): |me, a, b| [a, b, Sum];
        scan_in_place(1, 1): |me, a, b| [b, Sum];
        exscan(1, 1): |me, a, b| [a, b, Max];
        exscan_in_place(1, 1): |me, a, b| [b, Sum];
        send_recv(1, 1): |me, a, b| [a, (me + 1) % 3, b, (me + 2) % 3];
        send_recv(1, 1): |me, a, b| [a, next(me), b, me.checked_sub(1).unwrap_or(NO_RANK)];
    }
}

fn fill<T: Element>(buffer: &mut [T], seed: u32, value: impl Fn(u8) -> T) {
    for (at, element) in (seed..).zip(buffer) {
        *element = value((at * 7 % 5).to_le_bytes()[0]);
    }
}

/// Each call, with data that changes from round to round, in both forms of a round.
fn equal_plain_ones<T: Element + PartialEq + std::fmt::Debug>(
    comm: &Communicator,
    count: usize,
    value: fn(u8) -> T,
) -> Result<()> {
    for Case { name, blocks, persistent, plain } in cases::<T>() {
        // A vector form has as many elements on the one side as the counts say on the other.
        let most = |blocks: usize| vec![value(0); 3 * count * if name.ends_with("_v") { 1 } else { blocks }];
        let sizes =
            |blocks| if name.ends_with("_v") && !name.starts_with("all_to_all") { 3 * count } else { blocks * count };
        let (mut input, mut output) = (most(1), most(1));
        input.resize(sizes(blocks.0), value(0));
        output.resize(sizes(blocks.1), value(0));
        let buffers = (input.clone(), output.clone());
        let me = comm.rank();
        let mut call = comm.prepare(buffers, |calls, (a, b)| persistent(calls, a, b, me))?;
        for round in 0..5 {
            let (a, b) = call.buffers()?;
            for (one, other) in [(a, &mut input), (b, &mut output)] {
                fill(one, round + me, value);
                other.copy_from_slice(one);
            }
            if round % 2 == 0 {
                call.run()?;
            } else {
                call.start()?;
                call.wait()?;
            }
            plain(comm, &mut input, &mut output)?;
            let (a, b) = call.buffers()?;
            assert_eq!((&*a, &*b), (&input[..], &output[..]), "{name}, {count} elements, round {round}");
        }
        let (a, b): Pair<T> = call.into_buffers()?;
        assert_eq!((a, b), (input, output), "{name}");
    }
    Ok(())
}

#[test]
fn rounds_give_what_plain_calls_give() {
    for config in ways() {
        local::run_with(3, &config, |comm| {
            // Flat slots, a larger one of them, and plans.
            for count in [1, 500, 30_000] {
                equal_plain_ones::<u64>(&comm, count.max(2), u64::from)?;
            }
            equal_plain_ones::<f32>(&comm, 10, f32::from)?;
            equal_plain_ones::<i8>(&comm, 10, |value| value.cast_signed())?;
            equal_plain_ones::<f16>(&comm, 10, f16::from)?;
            equal_plain_ones::<bf16>(&comm, 10, bf16::from)?;
            let mut barrier = comm.prepare((), |calls, ()| calls.barrier())?;
            (0..3).try_for_each(|_| barrier.run())?;
            comm.finalize()
        })
        .unwrap();
    }
}

#[test]
fn a_thousand_rounds() {
    local::run(2, |comm| {
        let mut call = comm.prepare(vec![0u64], |calls, word| calls.all_reduce_in_place(word, ReduceOp::Sum))?;
        for round in 0..1000 {
            call.buffers()?[0] = round + u64::from(comm.rank());
            call.run()?;
            assert_eq!(call.buffers()?[0], 2 * round + 1);
        }
        // One rank alone reads: the writer runs ahead as far as there are slots.
        let mut word = comm.prepare(vec![0u64], |calls, word| calls.broadcast(word, 0))?;
        for round in 0..1000 {
            word.buffers()?[0] = if comm.rank() == 0 { round } else { 0 };
            word.run()?;
            assert_eq!(word.buffers()?[0], round);
        }
        Ok(())
    })
    .unwrap();
}

/// Collectives and messages of several sizes at once, waited for in another order than they were started.
#[test]
fn several_are_under_way_at_once_beside_blocking_calls_and_requests() {
    for config in ways() {
        local::run_with(2, &config, |comm| {
            let (me, peer) = (comm.rank(), 1 - comm.rank());
            let sum = |count: usize| {
                comm.prepare(vec![0u32; count], |calls, buffer| calls.all_reduce_in_place(buffer, ReduceOp::Sum))
            };
            let mut sums = [sum(1)?, sum(100)?, sum(50_000)?];
            let exchange = |count: usize| {
                comm.prepare((vec![0u32; count], vec![0u32; count]), |calls, (mine, theirs)| {
                    calls.recv(theirs, peer)?;
                    calls.send(mine, peer)
                })
            };
            let mut exchanges = [exchange(2)?, exchange(200_000)?];
            for round in 0..20 {
                for call in &mut sums {
                    call.buffers()?.fill(round + me);
                }
                for call in &mut exchanges {
                    call.buffers()?.0.fill(round + 10 * me);
                }
                start_all(&mut exchanges)?;
                // Its message goes behind theirs.
                let received = comm.start(vec![0u32; 3], |calls, buffer| calls.recv(buffer, peer))?;
                start_all(&mut sums)?;
                comm.send(&[round; 3], peer)?;
                assert_eq!(comm.all_reduce_value(round, ReduceOp::Sum)?, 2 * round);
                assert_eq!(received.wait()?, [round; 3]);
                if round % 2 == 0 {
                    sums.iter_mut().rev().try_for_each(PersistentCall::wait)?;
                }
                while !test_all(&exchanges) {
                    std::thread::yield_now();
                }
                assert_eq!(wait_some(&exchanges), [0, 1]);
                exchanges.iter_mut().try_for_each(PersistentCall::wait)?;
                for call in &mut exchanges {
                    assert!(call.buffers()?.1.iter().all(|value| *value == round + 10 * peer));
                }
                sums.iter_mut().try_for_each(PersistentCall::wait)?;
                for call in &mut sums {
                    assert!(call.buffers()?.iter().all(|value| *value == 2 * round + 1));
                }
            }
            comm.finalize()
        })
        .unwrap();
    }
}

/// A round while requests are under way, of messages behind those of requests.
#[test]
fn a_round_runs_beside_requests() {
    local::run(2, |comm| {
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        let mut sum = comm.prepare(vec![me], |calls, word| calls.all_reduce_in_place(word, ReduceOp::Sum))?;
        let mut word =
            comm.prepare((vec![me], vec![9]), |calls, (mine, theirs)| calls.send_recv(mine, peer, theirs, peer))?;
        let large = comm.start(vec![me; 500_000], |calls, buffer| calls.recv(buffer, peer))?;
        let reduced = comm.start(vec![me; 50_000], |calls, buffer| calls.all_reduce_in_place(buffer, ReduceOp::Sum))?;
        sum.run()?;
        comm.send(&vec![me; 500_000], peer)?;
        word.run()?;
        assert_eq!((&*sum.buffers()?, &*word.buffers()?.1), (&[1][..], &[peer][..]));
        assert_eq!((large.wait()?[499_999], reduced.wait()?[0]), (peer, 1));
        comm.finalize()
    })
    .unwrap();
}

#[test]
fn a_group_of_calls_is_one_persistent_call_and_buffers_may_be_registered() {
    local::run(3, |comm| {
        let me = comm.rank();
        let shared = Buffer::<u32>::new(60_000)?;
        comm.register(&shared)?;
        let own = [vec![me], vec![9]];
        let mut both = comm.prepare((shared, own, vec![me]), |calls, (shared, [mine, got], word)| {
            calls.send(mine, me)?;
            calls.all_reduce_in_place(shared, ReduceOp::Sum)?;
            calls.all_reduce_in_place(word, ReduceOp::Max)?;
            calls.recv(got, me)
        })?;
        for round in 1..4 {
            let (shared, [_, got], word) = both.buffers()?;
            shared.fill(round);
            (got[0], word[0]) = (9, me + round);
            both.run()?;
            let (shared, [_, got], word) = both.buffers()?;
            assert!(shared.iter().all(|value| *value == 3 * round));
            assert_eq!((got[0], word[0]), (me, 2 + round));
        }
        let (shared, ..) = both.into_buffers()?;
        comm.deregister(&shared)
    })
    .unwrap();
}

/// What one rank alone can see is told where the call is prepared, and what is done in a wrong order where it is done:
/// neither ends anything.
#[test]
fn own_mistakes_leave_the_communicator_as_it_was() {
    local::run(2, |comm| {
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        let wrong = [
            comm.prepare(vec![0u32; 2], |calls, buffer| calls.broadcast(buffer, 7)).err(),
            comm.prepare((vec![0u32; 2], vec![0u32; 3]), |calls, (a, b)| calls.all_reduce(a, b, ReduceOp::Sum)).err(),
            comm.prepare(vec![0f32; 2], |calls, buffer| calls.all_reduce_in_place(buffer, ReduceOp::BitAnd)).err(),
        ];
        for error in wrong {
            let error = error.expect("one rank sees it");
            assert_eq!((error.kind(), error.rank()), (Kind::InvalidArgument, Some(me)), "{error}");
        }
        let alone = comm.prepare(vec![0u32; 2], |calls, buffer| calls.send(buffer, me)).unwrap_err();
        assert_eq!(alone.kind(), Kind::InvalidUsage, "{alone}");
        let mut call = comm.prepare(vec![me], |calls, word| calls.recv(word, peer))?;
        call.start()?;
        for refused in [call.start(), call.run(), call.buffers().map(drop)] {
            let refused = refused.unwrap_err();
            assert_eq!((refused.kind(), refused.rank()), (Kind::InvalidUsage, Some(me)), "{refused}");
        }
        assert!(format!("{call:?}").contains("is_finished"));
        comm.send(&[me], peer)?;
        call.wait()?;
        assert_eq!(call.buffers()?, [peer]);
        call.wait()?;
        comm.finalize()
    })
    .unwrap();
}

/// Ranks whose prepared calls differ, and ranks that start theirs in another order, are named in both forms of a round.
#[test]
fn ranks_that_differ_are_named() {
    for config in ways() {
        for by_order in [false, true] {
            for starts in [false, true] {
                local::run_with(2, &config, |comm| {
                    let me = comm.rank();
                    let sum = |count: usize| {
                        comm.prepare(vec![0u32; count], |calls, all| calls.all_reduce_in_place(all, ReduceOp::Sum))
                    };
                    let (mut one, mut other) = (sum(3)?, sum(4)?);
                    let round = |call: &mut PersistentCall<Vec<u32>>| match starts {
                        false => call.run(),
                        true => call.start().and_then(|()| call.wait()),
                    };
                    round(&mut one)?;
                    let first = if me == 0 { round(&mut one) } else { round(&mut other) };
                    let ended = match by_order {
                        false => first,
                        true => first.and_then(|()| if me == 0 { round(&mut other) } else { round(&mut one) }),
                    };
                    let error = ended.expect_err("the counts differ");
                    assert_eq!(error.kind(), Kind::Mismatch, "{error}");
                    assert!(error.message().contains("count 3") && error.message().contains("count 4"), "{error}");
                    assert_eq!(round(&mut one).unwrap_err().kind(), Kind::Mismatch);
                    Ok(())
                })
                .unwrap();
            }
        }
    }
}

/// A rank goes, or the program aborts, while a round is under way.
#[test]
fn a_round_ends_with_an_error_where_a_rank_does_not_come() {
    for config in ways() {
        for aborts in [false, true] {
            local::run_with(2, &config, |comm| {
                let mut large =
                    comm.prepare(vec![1u32; 50_000], |calls, all| calls.all_reduce_in_place(all, ReduceOp::Sum))?;
                let mut small = comm.prepare(vec![1u32], |calls, all| calls.all_reduce_in_place(all, ReduceOp::Sum))?;
                large.run()?;
                if comm.rank() == 1 && !aborts {
                    return comm.finalize();
                }
                small.start()?;
                if comm.rank() == 1 {
                    comm.abort("enough");
                    let kinds = [small.wait(), large.run()].map(|ended| ended.map_err(|error| error.kind()));
                    assert!(kinds.contains(&Err(Kind::Aborted)), "{kinds:?}");
                    return Ok(());
                }
                // The other rank's part of the small one may have come.
                let ended = small.wait().and_then(|()| large.run()).expect_err("the other does not come");
                let expected = if aborts { Kind::Aborted } else { Kind::Remote };
                assert_eq!(ended.kind(), expected, "{ended}");
                assert_eq!(large.start().and_then(|()| large.wait()).unwrap_err().kind(), expected);
                Ok(())
            })
            .unwrap();
        }
    }
}

/// Dropped or forgotten while a round is under way, or without a communicator.
#[test]
fn a_call_that_is_dropped_leaves_its_round_alone() {
    local::run(2, |comm| {
        let (me, peer) = (comm.rank(), 1 - comm.rank());
        let receive = || comm.prepare(vec![9u32; 1000], |calls, buffer| calls.recv(buffer, peer));
        let (mut dropped, mut forgotten, mut left) = (receive()?, receive()?, receive()?);
        start_all([&mut dropped, &mut forgotten])?;
        drop(dropped);
        std::mem::forget(forgotten);
        let mut sum = comm.prepare(vec![1u32], |calls, all| calls.all_reduce_in_place(all, ReduceOp::Sum))?;
        sum.start()?;
        drop(sum);
        comm.send(&[me; 1000], peer)?;
        comm.send(&[me; 1000], peer)?;
        comm.barrier()?;
        comm.finalize()?;
        let closed = [left.start(), left.run()].map(|ended| ended.map_err(|error| error.kind()));
        assert_eq!(closed, [Err(Kind::InvalidUsage); 2]);
        assert_eq!(left.into_buffers()?, [9; 1000]);
        Ok(())
    })
    .unwrap();
}

/// A rank alone, and a communicator whose child is made meanwhile.
#[test]
fn rounds_of_one_rank_and_beside_a_split() {
    local::run(1, |comm| {
        let mut alone = comm.prepare((vec![3u32], vec![0]), |calls, (a, b)| calls.all_reduce(a, b, ReduceOp::Sum))?;
        alone.run()?;
        alone.start()?;
        alone.wait()?;
        assert_eq!(alone.buffers()?.1, [3]);
        Ok(())
    })
    .unwrap();
    let config = Config::default().with_blocking(false).with_timeout(Duration::from_secs(60));
    local::run_with(2, &config, |comm| {
        while comm.async_error().is_some_and(|error| error.kind() == Kind::InProgress) {
            std::thread::yield_now();
        }
        let mut sum = comm.prepare(vec![1u32], |calls, all| calls.all_reduce_in_place(all, ReduceOp::Sum))?;
        let child = comm.by_color(0, 0)?;
        while let Err(error) = sum.run() {
            assert_eq!(error.kind(), Kind::InProgress, "{error}");
            std::thread::yield_now();
        }
        assert_eq!(sum.buffers()?, [2]);
        assert_eq!(child.size(), 2);
        Ok(())
    })
    .unwrap();
}
