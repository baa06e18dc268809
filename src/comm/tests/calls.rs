//! Collectives of every kind, alone, in a scope and in a group.

use std::time::Duration;

use crate::comm::{Buffers, Call, CallCount, Communicator, Message, local};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::sys::{float_mode, thread};
use crate::types::{Collective, DataType, NO_RANK, Rank, ReduceOp, values_of};

/// Regression: a call that lacked its root read a buffer that it had not checked; counts for each rank where there is
/// one for all panicked, or read what was not there; one without an operator returned some rank's input.
#[test]
fn a_described_call_that_lacks_what_its_collective_takes_is_refused() {
    use CallCount::{Each, PerRank};
    use Collective::{AllGather, AllGatherV, AllReduce, AllToAllV, Barrier, Broadcast, Gather, Reduce, Scatter, Send};
    let config = Config::default().with_timeout(Duration::from_secs(20));
    let (sum, root) = (Some(ReduceOp::Sum), Some(Rank::new(0)));
    let three = || PerRank(vec![3000; 3]);
    let wrong = [
        (Scatter, None, root, three(), "one count for all"),
        (AllReduce, sum, None, PerRank(vec![1, 2, 3]), "one count for all"),
        (AllGatherV, None, None, Each(4), "a count for each rank"),
        (AllGatherV, None, None, Each(100_000), "a count for each rank"),
        (Broadcast, None, None, Each(100), "needs a root"),
        (Gather, None, None, Each(100_000), "needs a root"),
        (AllReduce, None, None, Each(5), "needs an operator"),
        (Reduce, None, root, Each(5), "needs an operator"),
        (AllGather, sum, None, Each(5), "takes no operator"),
        (Barrier, None, root, Each(0), "takes no root"),
        (AllToAllV, None, None, Each(5), "messages"),
        (Send, None, None, Each(5), "messages"),
    ];
    local::run_with(3, &config, |comm| {
        for (collective, op, root, count, words) in &wrong {
            let (mine, mut all) = (vec![1u64; 100_000], vec![0u64; 300_000]);
            let (collective, op, root, count) = (*collective, *op, *root, count.clone());
            let buffers = Buffers::apart(&mine, &mut all);
            let call = Call { collective, data_type: DataType::U64, op, root, count, buffers };
            let error = comm.run(&call).expect_err(words);
            assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
            assert!(error.message().contains(words), "`{words}` is not in: {error}");
        }
        comm.barrier()
    })
    .unwrap();
}

/// They run beside messages of the same pairs, in a scope and in a group.
#[test]
fn vector_forms_and_scans_run_in_scopes_and_groups() {
    let config = Config::default().with_timeout(Duration::from_secs(20));
    local::run_with(3, &config, |comm| {
        let (me, ranks) = (comm.rank(), comm.size());
        let (right, left) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
        let large = vec![me; 300_000];
        let (mut from_left, mut own, mut sums, mut all) =
            (vec![9; 300_000], [9; 2], [me + 1], vec![9; if me == 2 { 3 } else { 0 }]);
        comm.scope(|scope| {
            let sent = scope.send(&large, right)?;
            let summed = scope.scan_in_place(&mut sums, ReduceOp::Sum)?;
            let gathered = scope.gather_v(&large[..me as usize], &mut all, &[0, 1, 2], 2)?;
            let myself = scope.send_recv(&large[..2], me, &mut own, me)?;
            scope.recv(&mut from_left, left)?.wait()?;
            [sent, summed, gathered, myself].into_iter().try_for_each(|request| request.wait())
        })?;
        assert_eq!((own, sums[0], from_left[299_999]), ([me; 2], [1, 3, 6][me as usize], left));
        assert!(me != 2 || all == [1, 2, 2], "{all:?}");
        let (mut below, mut part) = ([7u64], [0u32; 1]);
        crate::group(|group| {
            let mut member = group.on(&comm);
            member.exscan(&[5u64], &mut below, ReduceOp::Sum)?;
            member.send_recv(&large[..1], left, &mut own[..1], right)?;
            member.scatter_v(&large[..if me == 1 { 3 } else { 0 }], &mut part, &[1, 1, 1], 1)
        })?;
        assert_eq!((below[0], own[0], part[0]), ([7, 5, 10][me as usize], right, 1));
        Ok(())
    })
    .unwrap();
}

/// Every collective once, on what has them: a communicator, a scope, or a group's member. `$end` takes what each
/// returns.
macro_rules! every_collective {
    ($on:expr, $me:expr, $given:expr, $got:expr, $end:expr) => {{
        let (me, given, end): (usize, &[u32], &mut dyn FnMut(_)) = ($me, $given, &mut $end);
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = $got;
        end($on.all_reduce(given, a, ReduceOp::Sum)?);
        end($on.all_reduce_in_place(b, ReduceOp::Max)?);
        end($on.broadcast(c, 1)?);
        end($on.broadcast_into(given, d, 0)?);
        end($on.reduce(given, e, ReduceOp::Sum, 0)?);
        end($on.reduce_in_place(f, ReduceOp::Sum, 1)?);
        end($on.all_gather(&given[..1], g)?);
        end($on.all_gather_in_place(h)?);
        end($on.reduce_scatter(given, &mut i[..1], ReduceOp::Sum)?);
        end($on.reduce_scatter_in_place(j, ReduceOp::Sum)?);
        end($on.all_to_all(given, k)?);
        end($on.gather(&given[..1], l, 1)?);
        end($on.scatter(given, &mut m[..1], 0)?);
        end($on.all_to_all_v(given, n, (&[1, 1], &[1, 1]))?);
        end($on.all_gather_v(&given[..me], &mut o[..1], &[0, 1])?);
        end($on.reduce_scatter_v(given, &mut p[..2 * me], &[0, 2], ReduceOp::Min)?);
        end($on.barrier()?);
    }};
}

/// What [`every_collective`] leaves in its buffers on ranks 0 and 1, whose inputs, and buffers before, are 1, 2 and 11,
/// 12.
const EXPECTED: [[[u32; 2]; 2]; 16] = [
    [[12, 14], [12, 14]], // all_reduce
    [[11, 12], [11, 12]], // all_reduce_in_place, the greatest
    [[11, 12], [11, 12]], // broadcast from 1
    [[1, 2], [1, 2]],     // broadcast_into from 0
    [[12, 14], [11, 12]], // reduce to 0
    [[1, 2], [12, 14]],   // reduce_in_place to 1
    [[1, 11], [1, 11]],   // all_gather
    [[1, 12], [1, 12]],   // all_gather_in_place
    [[12, 2], [14, 12]],  // reduce_scatter to the first element
    [[12, 2], [11, 14]],  // reduce_scatter_in_place
    [[1, 11], [2, 12]],   // all_to_all
    [[1, 2], [1, 11]],    // gather to 1
    [[1, 2], [2, 12]],    // scatter from 0 to the first element
    [[1, 11], [2, 12]],   // all_to_all_v of one element each
    [[11, 2], [11, 12]],  // all_gather_v of rank 1's element to the first
    [[1, 2], [1, 2]],     // reduce_scatter_v of both elements to rank 1, the least
];

#[test]
fn every_collective_alone_in_a_scope_and_in_a_group() {
    local::run(2, |comm| {
        let me = comm.rank() as usize;
        let given = vec![10 * comm.rank() + 1, 10 * comm.rank() + 2];
        let fresh = || std::array::from_fn::<Vec<u32>, 16, _>(|_| given.clone());
        let (mut alone, mut begun, mut grouped) = (fresh(), fresh(), fresh());
        every_collective!(comm, me, &given, &mut alone, |()| ());
        comm.scope(|scope| {
            let mut requests = Vec::new();
            every_collective!(scope, me, &given, &mut begun, |request| requests.push(request));
            requests.into_iter().try_for_each(crate::comm::Request::wait)
        })?;
        crate::group(|group| {
            let mut member = group.on(&comm);
            every_collective!(member, me, &given, &mut grouped, |()| ());
            Ok(())
        })?;
        for (way, got) in [("alone", &alone), ("in a scope", &begun), ("in a group", &grouped)] {
            for (number, (got, expected)) in got.iter().zip(EXPECTED).enumerate() {
                assert_eq!(got[..], expected[me], "rank {me}, {way}, buffer {number}");
            }
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn vector_forms_stand_beside_other_calls_of_a_group() {
    local::run(3, |comm| {
        let (me, size) = (comm.rank(), comm.size() as usize);
        let (ones, mut sums) = (vec![me + 1; size], vec![0; size]);
        let (mut theirs, counts) = (vec![0; size], vec![1; size]);
        crate::group(|group| {
            let mut calls = group.on(&comm);
            calls.all_reduce(&ones, &mut sums, ReduceOp::Sum)?;
            calls.all_to_all_v(&ones, &mut theirs, (&counts, &counts))
        })?;
        assert_eq!((sums, theirs), (vec![6; size], vec![1, 2, 3]));
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_group_with_an_ended_communicator_gives_the_others_back() {
    let alone = || Communicator::init_all(1, &Config::default()).unwrap().remove(0);
    let (fine, ended) = (alone(), alone());
    ended.abort_handle().abort("on purpose");
    let (mut one, mut two) = ([1u32], [2u32]);
    let result = crate::group(|group| {
        group.on(&fine).all_reduce_in_place(&mut one, ReduceOp::Sum)?;
        group.on(&ended).all_reduce_in_place(&mut two, ReduceOp::Sum)
    });
    assert_eq!(result.unwrap_err().kind(), Kind::Aborted);
    fine.barrier().unwrap();
}

/// Regression: ranks fused scaled sums by their own scalars, and so disagreed about what travels together.
#[test]
fn a_group_of_scaled_sums_does_not_depend_on_the_ranks_scalars() {
    let config = Config::default().with_timeout(std::time::Duration::from_secs(20));
    local::run_with(2, &config, |comm| {
        let scalars = if comm.rank() == 0 { [2.0, 2.0] } else { [1.0, 3.0] };
        let ops = scalars.map(|scalar| ReduceOp::PreMulSum(crate::types::Scalar::Float(scalar)));
        let (mine, mut first, mut second) = ([1f32], [0f32], [0f32]);
        crate::group(|group| {
            group.on(&comm).all_reduce(&mine, &mut first, ops[0])?;
            group.on(&comm).all_reduce(&mine, &mut second, ops[1])
        })?;
        assert_eq!((first, second), ([3.0], [5.0]));
        Ok(())
    })
    .unwrap();
}

/// Regression: a request that failed beside others left these without an end, and who waited for them without one too.
#[test]
fn a_failed_request_ends_those_beside_it() {
    let config = Config::default().with_timeout(std::time::Duration::from_secs(20));
    let ended = local::run_with(2, &config, |comm| {
        let (peer, mine, mut one, mut two) = (1 - comm.rank(), [1u32; 3], [0u32; 2], [0u32; 4]);
        let failed = comm.scope(|scope| {
            let never = scope.recv(&mut one, peer)?;
            let beside = scope.recv(&mut two, peer)?;
            let sent = scope.send(&mine, peer)?;
            // All three end, in whatever order they are waited for.
            Ok([beside.wait(), never.wait(), sent.wait()].into_iter().filter(Result::is_err).count())
        });
        assert_eq!(failed.unwrap_err().kind(), Kind::Mismatch);
        Ok(())
    });
    ended.unwrap();
}

/// What a peer sends as bytes never becomes a bool unchecked, whatever it is.
#[test]
fn a_peer_that_sends_no_bools_is_found_out() {
    local::run(2, |comm| {
        let mut flags = if comm.rank() == 0 { [1, 7] } else { [0; 2] };
        comm.broadcast(&mut flags, 0)?;
        let error = values_of::<bool>(&flags).expect_err("7 is no bool");
        assert!(error.message().contains("element 1"), "{error}");
        Ok(())
    })
    .unwrap();
}

/// A peer that is nobody: nothing goes and nothing comes, whoever makes the call, and no rank waits for it.
#[test]
fn messages_to_and_from_nobody_do_nothing() {
    let config = Config::default().with_timeout(Duration::from_secs(20));
    local::run_with(3, &config, |comm| {
        let (rank, last) = (comm.rank(), comm.size() - 1);
        let left = if rank == 0 { NO_RANK } else { rank - 1 };
        let right = if rank == last { NO_RANK } else { rank + 1 };
        let mine = vec![rank; 300_000];
        let untouched = vec![9; mine.len()];
        let wanted = if rank == 0 { untouched.clone() } else { vec![rank - 1; mine.len()] };
        let mut from_left = untouched.clone();
        comm.send_recv(&mine, right, &mut from_left, left)?;
        assert_eq!(std::mem::replace(&mut from_left, untouched.clone()), wanted);
        comm.send_recv(&mine, NO_RANK, &mut from_left, NO_RANK)?;
        assert_eq!(from_left, untouched);
        crate::comm::group(|group| {
            group.on(&comm).send(&mine, right)?;
            group.on(&comm).recv(&mut from_left, left)?;
            group.on(&comm).add_message(Message::send(&mine, Rank::new(NO_RANK)))
        })?;
        assert_eq!(std::mem::replace(&mut from_left, untouched.clone()), wanted);
        comm.scope(|scope| {
            let received = scope.recv(&mut from_left, left)?;
            scope.send(&mine, right)?.wait()?;
            received.wait()
        })?;
        assert_eq!(std::mem::replace(&mut from_left, untouched.clone()), wanted);
        comm.send(&mine, NO_RANK)?;
        comm.recv(&mut from_left, NO_RANK)?;
        assert_eq!(from_left, untouched);
        let error = comm.broadcast(&mut from_left, NO_RANK).expect_err("nobody is no root");
        assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
        comm.barrier()
    })
    .unwrap();
}

/// Regression: the thread that a communicator keeps computed in the mode that the caller of its first group had.
#[test]
fn groups_over_communicators_compute_in_their_callers_mode() {
    local::run(2, |comm| {
        let child = comm.by_color(0, 0)?;
        let sums = || {
            // The smallest numbers: a thread that takes them for zero has another sum.
            let (mut first, mut second) = ([f32::from_bits(1)], [f32::from_bits(1)]);
            crate::group(|group| {
                group.on(&comm).all_reduce_in_place(&mut first, ReduceOp::Sum)?;
                group.on(&child).all_reduce_in_place(&mut second, ReduceOp::Sum)
            })?;
            let mut alone = [f32::from_bits(1)];
            comm.all_reduce_in_place(&mut alone, ReduceOp::Sum)?;
            Ok::<_, Error>([first, second, alone].map(|sum| sum[0].to_bits()))
        };
        assert_eq!(sums()?, [2; 3]);
        let unusual = float_mode::unusual();
        let found = sums();
        drop(unusual);
        let found = found?;
        assert!(found.iter().all(|bits| *bits == found[2]), "{found:?}");
        assert_eq!(sums()?, [2; 3]);
        Ok(())
    })
    .unwrap();
}

/// Regression: a group over several communicators started a thread for each of them, each time.
#[test]
fn groups_over_communicators_keep_their_threads() {
    local::run(2, |comm| {
        let (child, other) = (comm.by_color(0, 0)?, 1 - comm.rank());
        let before = thread::STARTED.get();
        for turn in 0..100_u32 {
            let (mine, mut theirs, mut sum) = ([turn + comm.rank()], [0], [turn]);
            crate::group(|group| {
                let mut on = group.on(&comm);
                on.recv(&mut theirs, other)?;
                on.send(&mine, other)?;
                group.on(&child).all_reduce_in_place(&mut sum, ReduceOp::Sum)
            })?;
            assert_eq!((theirs, sum), ([turn + other], [2 * turn]));
        }
        assert_eq!(thread::STARTED.get() - before, 2, "threads of 100 groups over two communicators");
        Ok(())
    })
    .unwrap();
}
