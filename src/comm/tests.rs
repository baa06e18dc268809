//! Transports forced on threads: every path of set-up without processes. Groups that cannot begin. The progress hook.

use std::time::Duration;

use crate::comm::{Buffers, Call, CallCount, Communicator, Desk, local, split};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::exec::Nothing;
use crate::sync::primitive::{Arc, AtomicBool, Ordering};
use crate::sync::{AbortFlag, Progress, Wait};
use crate::sys::{fork, host, thread};
use crate::transport::Policy;
use crate::types::{Collective, DataType, Rank, ReduceOp};

fn sums(policy: Policy, ranks: u32) {
    let config = Config::default()
        .with_p2p_disable(policy.no_local)
        .with_shm_disable(policy.no_shm)
        .with_timeout(std::time::Duration::from_secs(20));
    for count in [0usize, 1, 5, 5000, 100_003, 1_000_001] {
        local::run_with(ranks, &config, |comm| {
            let n = comm.size() as usize;
            let send: Vec<f32> = (0..count).map(|i| (i % 13 + comm.me().index()) as f32).collect();
            let mut recv = vec![0f32; count];
            for _ in 0..2 {
                comm.all_reduce(&send, &mut recv, ReduceOp::Sum)?;
            }
            for (i, value) in recv.iter().enumerate() {
                assert_eq!(*value, (i % 13 * n + n * (n - 1) / 2) as f32, "{ranks} ranks, element {i} of {count}");
            }
            comm.barrier()
        })
        .unwrap();
    }
}

#[test]
fn local() {
    for ranks in [1, 2, 3, 8] {
        sums(Policy::default(), ranks);
    }
}

#[test]
fn shm() {
    for ranks in [2, 3, 8] {
        sums(Policy { no_local: true, no_shm: false }, ranks);
    }
}

/// What peers read passes the caches by, in flat slots, rings and scratch, and in passes that write output too.
#[test]
fn shm_between_processors_that_are_far() {
    let config = Config::default().with_p2p_disable(true).with_timeout(Duration::from_secs(20));
    for (ranks, count) in [2u32, 3, 4].into_iter().flat_map(|ranks| [3000, 50_001, 400_000].map(|count| (ranks, count)))
    {
        local::run_with(ranks, &config, |comm| {
            comm.with_engine(|engine| {
                engine.take_peers_for_far();
                Ok(())
            })?;
            let given = |rank: u32, i: usize| u32::try_from(i).expect("few") * 7 + rank;
            let (n, me) = (comm.size() as usize, comm.rank());
            let total = |i: usize| (0..ranks).map(|rank| given(rank, i)).sum::<u32>();
            let mine: Vec<u32> = (0..count).map(|i| given(me, i)).collect();
            let wide: Vec<u32> = (0..count * n).map(|i| given(me, i)).collect();
            let check = |what: &str, found: &[u32], wanted: &dyn Fn(usize) -> u32| {
                let wrong = (0..found.len()).find(|i| found[*i] != wanted(*i));
                assert_eq!(wrong, None, "{what} of {count} on rank {me} of {ranks}");
            };
            let (mut block, mut blocks) = (vec![0; count], vec![0; count * n]);
            for _ in 0..2 {
                comm.all_reduce(&mine, &mut block, ReduceOp::Sum)?;
                check("all_reduce", &block, &total);
                comm.reduce(&mine, &mut block, ReduceOp::Sum, 0)?;
                check("reduce", &block, &total);
                block.copy_from_slice(&mine);
                comm.broadcast(&mut block, ranks - 1)?;
                check("broadcast", &block, &|i| given(ranks - 1, i));
                comm.all_gather(&mine, &mut blocks)?;
                check("all_gather", &blocks, &|i| given(u32::try_from(i / count).expect("few"), i % count));
                comm.reduce_scatter(&wide, &mut block, ReduceOp::Sum)?;
                check("reduce_scatter", &block, &|i| total(me as usize * count + i));
                comm.all_to_all(&wide, &mut blocks)?;
                let place = |i: usize| me as usize * count + i % count;
                check("all_to_all", &blocks, &|i| given(u32::try_from(i / count).expect("few"), place(i)));
                let (next, last) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
                crate::group(|group| {
                    group.on(&comm).send(&mine, next)?;
                    group.on(&comm).recv(&mut block, last)
                })?;
                check("send and recv", &block, &|i| given(last, i));
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Regression: where the output was large enough to pass the caches by, a trial of copies that do so too was not timed, so that a rank
/// whose copies all write output learnt nothing, however far its peers.
#[test]
fn large_all_gathers_teach_how_far_peers_are() {
    let config = Config::default().with_p2p_disable(true).with_timeout(Duration::from_secs(20));
    local::run_with(2, &config, |comm| {
        let (mine, mut all) = (vec![7u8; 5 << 20], vec![0u8; 10 << 20]);
        for _ in 0..8 {
            comm.all_gather(&mine, &mut all)?;
        }
        comm.with_engine(|engine| {
            assert!(engine.knows_both_ways());
            Ok(())
        })
    })
    .unwrap();
}

/// Regression: a call that lacked its root read a buffer that it had not checked; counts for each rank where there is one for all
/// panicked, or read what was not there; one without an operator returned some rank's input.
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

/// What collectives that are made of messages say where ranks disagree.
#[test]
fn vector_forms_and_scans_at_odds_are_mismatches() {
    let soon = Duration::from_secs(20);
    let config = Config::default().with_timeout(soon);
    type Call = fn(&Communicator) -> Result<()>;
    let calls: [(Call, &str); 3] = [
        // Rank 2 passes other lengths than the root says.
        (|comm| comm.gather_v(&[1u32; 2][comm.rank() as usize / 2..], &mut [0; 6], &[2, 2, 2], 0), "gather_v"),
        (|comm| comm.scatter_v(&[1u32; 6], &mut [0; 2][comm.rank() as usize / 2..], &[2, 2, 2], 0), "scatter_v"),
        (
            |comm| {
                comm.scan(
                    &vec![1u32; 1 + comm.rank() as usize / 2],
                    &mut vec![0; 1 + comm.rank() as usize / 2],
                    ReduceOp::Sum,
                )
            },
            "scan",
        ),
    ];
    for (call, name) in calls {
        let ends =
            local::run_with(3, &config, |comm| Ok(call(&comm).and_then(|()| comm.barrier()).expect_err("at odds")))
                .unwrap();
        assert!(
            ends.iter().any(|end| end.kind() == Kind::Mismatch && end.message().contains(name)),
            "{name}: {ends:?}"
        );
    }
    local::run_with(3, &config, |comm| {
        let (mine, mut all) = ([1u32; 2], [0u32; 6]);
        let refused = [
            comm.exscan(&mine, &mut all[..2], ReduceOp::Avg),
            comm.scan(&mine, &mut all[..2], ReduceOp::premul_sum(2)),
            comm.scan(&mine, &mut all, ReduceOp::Sum),
            if comm.rank() == 1 {
                comm.gather_v(&mine, &mut all, &[2, 2], 1)
            } else {
                comm.scan(&mine, &mut [], ReduceOp::Sum)
            },
            comm.gather_v(&mine, &mut all, &[2, 2, 2], 3),
        ];
        assert!(
            refused.iter().all(|end| end.as_ref().is_err_and(|error| error.kind() == Kind::InvalidArgument)),
            "{refused:?}"
        );
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

/// Regression: without shared memory each rank took itself for alone on its host.
#[test]
fn locality_does_not_depend_on_the_transport() {
    local::run_with(3, &Config::default().with_p2p_disable(true).with_shm_disable(true), |comm| {
        let here = comm.locality()?;
        assert_eq!((here.local_rank, here.local_size, here.hosts), (comm.rank(), 3, 1));
        Ok(())
    })
    .unwrap();
}

#[test]
fn net() {
    for ranks in [2, 3, 8] {
        sums(Policy { no_local: true, no_shm: true }, ranks);
    }
}

/// Every collective once, on what has them: a communicator, a scope, or a group's member. `$end` takes what each returns.
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
        end($on.all_to_all_v(given, &[1, 1], n, &[1, 1])?);
        end($on.all_gather_v(&given[..me], &mut o[..1], &[0, 1])?);
        end($on.reduce_scatter_v(given, &mut p[..2 * me], &[0, 2], ReduceOp::Min)?);
        end($on.barrier()?);
    }};
}

/// What [`every_collective`] leaves in its buffers on ranks 0 and 1, whose inputs, and buffers before, are 1, 2 and 11, 12.
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
            calls.all_to_all_v(&ones, &counts, &mut theirs, &counts)
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

/// What a program has for its own errors and rsccl's.
#[derive(Debug)]
enum Own {
    Input(u32),
    Rsccl(Error),
}

impl From<Error> for Own {
    fn from(error: Error) -> Own {
        Own::Rsccl(error)
    }
}

#[test]
fn closures_give_errors_of_the_programs_own_type() {
    let ended = local::try_run::<(), Own>(3, &Config::default().with_timeout(Duration::from_secs(20)), |comm| {
        let (peer, mut word) = ((comm.rank() + 1) % 3, [0u32]);
        let refused = crate::comm::try_group::<Own>(|group| {
            group.on(&comm).send(&[1u32], peer)?;
            Err(Own::Input(1))
        });
        assert!(matches!(refused, Err(Own::Input(1))), "nothing of a group runs where its body fails: {refused:?}");
        let scoped = comm.try_scope::<u32, Own>(|scope| {
            scope.all_reduce_in_place(&mut word, ReduceOp::Sum)?.wait()?;
            Err(Own::Input(2))
        });
        assert!(matches!(scoped, Err(Own::Input(2))), "{scoped:?}");
        // The others' error is the consequence of this one.
        if comm.rank() == 2 {
            return Err(Own::Input(3));
        }
        Ok(comm.barrier()?)
    });
    assert!(matches!(ended, Err(Own::Input(3))), "{ended:?}");
    let none = local::try_run::<(), Own>(0, &Config::default(), |_| Ok(()));
    assert!(matches!(none, Err(Own::Rsccl(error)) if error.kind() == Kind::InvalidArgument));
}

type Attempt = fn(&Communicator) -> Result<()>;

/// What each of three ranks gets where rank 0 makes one call and the others another.
fn at_odds(one: Attempt, others: Attempt) -> Vec<Error> {
    let config = Config::default().with_timeout(Duration::from_secs(20)).with_init_timeout(Duration::from_secs(20));
    let call = |comm: Communicator| {
        let call = if comm.rank() == 0 { one } else { others };
        Ok(call(&comm).expect_err("the ranks make different calls"))
    };
    local::run_with(3, &config, call).unwrap()
}

/// Regression: a rank in a placement or a split and ranks in a collective waited for each other until the deadline.
#[test]
fn an_exchange_beside_a_collective_is_a_mismatch_that_names_both() {
    let exchanges: [(Attempt, &str); 2] =
        [(|comm| comm.placement().map(drop), "placement"), (|comm| comm.split(Some(0), 0).map(drop), "split")];
    for (exchange, name) in exchanges {
        for errors in [at_odds(exchange, Communicator::barrier), at_odds(Communicator::barrier, exchange)] {
            for error in errors {
                assert_eq!(error.kind(), Kind::Mismatch, "{error}");
                let text = error.to_string();
                assert!(text.contains(&format!("called {name}")) && text.contains("called barrier"), "{text}");
            }
        }
    }
}

/// Regression: crossed calls of register ended at the deadline, with the number of an internal message.
#[test]
fn a_register_beside_another_call_is_a_mismatch_that_names_both() {
    let register: Attempt = |comm| comm.register(&crate::comm::Buffer::<u32>::new(100)?);
    let others: [(Attempt, &str); 3] = [
        (Communicator::barrier, "barrier"),
        (|comm| comm.split(Some(0), 0).map(drop), "split"),
        (|comm| comm.placement().map(drop), "placement"),
    ];
    for (other, name) in others {
        for errors in [at_odds(register, other), at_odds(other, register)] {
            for error in errors {
                assert_eq!(error.kind(), Kind::Mismatch, "{error}");
                let text = error.to_string();
                assert!(text.contains("called register") && text.contains(&format!("called {name}")), "{text}");
            }
        }
    }
}

/// Regression: the error of ranks that shrink with different lists was about whom they waited for.
#[test]
fn differing_lists_of_a_shrink_are_a_mismatch_that_names_both() {
    let config = Config::default().with_init_timeout(Duration::from_millis(500));
    let errors = local::run_with(4, &config, |comm| match comm.rank() {
        3 => Ok(None),
        0 => Ok(comm.shrink(&[3, 2]).err()),
        _ => Ok(comm.shrink(&[3]).err()),
    });
    let errors: Vec<Error> = errors.unwrap().into_iter().flatten().collect();
    assert_eq!(errors.len(), 3);
    let (first, second) = (&errors[0], &errors[1]);
    assert_eq!((first.kind(), second.kind()), (Kind::Mismatch, Kind::Mismatch), "{first}; {second}");
    let lists = " excludes 3, this rank excludes 2-3";
    assert!(matches!(first.peer(), Some(1 | 2)) && first.message().contains(lists), "{first}");
    assert_eq!(second.peer(), Some(0), "{second}");
    assert!(second.message().contains("rank 0 excludes 2-3, this rank excludes 3"), "{second}");
}

/// Regression: a rank in a split took what others told of their places for their parts of the split.
#[test]
fn a_split_beside_a_placement_is_a_mismatch() {
    let errors = at_odds(|comm| comm.split(Some(0), 0).map(drop), |comm| comm.placement().map(drop));
    for error in errors {
        assert_eq!(error.kind(), Kind::Mismatch, "{error}");
        assert!(error.to_string().contains("split"), "{error}");
    }
}

#[test]
fn exchanges_between_collectives_are_no_mismatch() {
    local::run(3, |comm| {
        for round in 0..20u32 {
            comm.barrier()?;
            let child = comm.split(Some(comm.rank() % 2), 0)?.expect("a color was passed");
            let mut sum = [round];
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            child.placement()?;
            child.barrier()?;
        }
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_communicator_prints_as_a_line_and_not_as_its_buffers() {
    local::run(2, |comm| {
        let expected = format!("Communicator {{ rank: {}, size: 2, state: \"ready\", .. }}", comm.rank());
        assert_eq!(format!("{comm:?}"), expected);
        comm.barrier()?;
        comm.abort_handle().abort("enough");
        let error = comm.barrier().unwrap_err().to_string();
        assert!(format!("{comm:?}").contains(&format!("state: failed: {error}")));
        Ok(())
    })
    .unwrap();
}

/// A hook that hands a token on: rank 0's call waits for rank 1, whose program waits for the token that only rank 0's hook gives, and
/// only on the thread of rank 0's program: so is a library that may be called on one thread alone.
fn needs_the_hook(call: impl Fn(&Communicator) -> Result<()> + Sync) {
    needs_the_hook_at_a_desk(|desk| call(desk.at_rest()?));
}

fn needs_the_hook_at_a_desk(call: impl Fn(&Desk) -> Result<()> + Sync) {
    for transport in ["local", "net"] {
        let config = Config::default().with_p2p_disable(transport == "net").with_shm_disable(transport == "net");
        let given = Arc::new(AtomicBool::new(false));
        local::run_with(2, &config, |comm| {
            let rank = comm.rank();
            let desk = Desk::new(comm);
            // Connections are open before.
            call(&desk)?;
            if rank == 0 {
                let (give, program) = (Arc::clone(&given), host::thread_id());
                desk.at_rest()?.set_progress(Some(Progress::new(move || {
                    give.fetch_or(host::thread_id() == program, Ordering::Release);
                    Ok(())
                })))?;
            } else {
                let wait = Wait::new(Duration::from_secs(30), &AbortFlag::new());
                while !given.load(Ordering::Acquire) {
                    wait.check(|| "rank 0's hook was not called".to_owned())?;
                    std::thread::yield_now();
                }
            }
            call(&desk)
        })
        .unwrap();
    }
}

#[test]
fn the_progress_hook_is_called_while_a_call_waits() {
    needs_the_hook(Communicator::barrier);
    needs_the_hook(|comm| comm.all_reduce_in_place(&mut vec![1.0f32; 300_000], ReduceOp::Sum));
    needs_the_hook(|comm| comm.split(Some(0), 0).map(drop));
    needs_the_hook(|comm| {
        let mut word = [0u8];
        if comm.rank() == 0 { comm.recv(&mut word, 1) } else { comm.send(&[7u8], 0) }
    });
    needs_the_hook(|comm| {
        let mut word = [0u8];
        comm.scope(
            |scope| {
                if comm.rank() == 0 { scope.recv(&mut word, 1)?.wait() } else { scope.send(&[7u8], 0)?.wait() }
            },
        )
    });
}

#[test]
fn the_progress_hook_is_called_while_the_program_waits_for_threads_of_ours() {
    // Nobody waits for the request but the end of the scope.
    needs_the_hook(|comm| comm.scope(|scope| scope.barrier().map(drop)));
    needs_the_hook(|comm| {
        let alone = Communicator::init_all(1, &Config::default())?.remove(0);
        let (mut mine, mut all) = ([1u32; 2], [1u32; 3]);
        crate::group(|group| {
            group.on(&alone).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
            group.on(comm).all_reduce_in_place(&mut all, ReduceOp::Sum)
        })
    });
    let begin_barrier = |desk: &Desk| {
        let (collective, count, buffers) = (Collective::Barrier, CallCount::Each(0), Buffers::none());
        desk.begin(Call { collective, data_type: DataType::U8, op: None, root: None, count, buffers })
    };
    needs_the_hook_at_a_desk(|desk| begin_barrier(desk)?.wait());
}

/// The hook works on the program's thread only, which waits for a thread of ours: its failure ends that thread's wait too.
#[test]
fn a_hook_that_fails_while_the_program_waits_for_a_request_ends_it() {
    let texts = local::run(2, |comm| {
        comm.barrier()?;
        if comm.rank() == 0 {
            let program = host::thread_id();
            let fails = move || match host::thread_id() == program {
                true => Err(Error::invalid_usage("no more turns")),
                false => Ok(()),
            };
            comm.set_progress(Some(Progress::new(fails)))?;
            let error = comm.scope(|scope| scope.barrier()?.wait()).unwrap_err();
            assert_eq!(error.kind(), Kind::Aborted);
            return Ok(error.to_string());
        }
        let mut word = [0u8];
        Ok(comm.recv(&mut word, 0).unwrap_err().to_string())
    })
    .unwrap();
    for text in texts {
        assert!(text.contains("the progress hook failed: no more turns"), "{text}");
    }
}

#[test]
fn a_hook_that_fails_or_panics_ends_the_communicator_and_says_so() {
    for panics in [false, true] {
        let texts = local::run(2, |comm| {
            comm.barrier()?;
            if comm.rank() == 1 {
                let error = comm.barrier().unwrap_err();
                return Ok(error.to_string());
            }
            comm.set_progress(Some(Progress::new(move || {
                assert!(!panics, "on purpose");
                Err(Error::invalid_usage("no more turns"))
            })))?;
            let mut word = [0u8];
            let error = comm.recv(&mut word, 1).unwrap_err();
            assert_eq!(error.kind(), Kind::Aborted);
            assert!(comm.async_error().is_some());
            Ok(error.to_string())
        })
        .unwrap();
        for text in texts {
            let words = if panics { "the progress hook panicked" } else { "the progress hook failed: no more turns" };
            assert!(text.contains(words), "{text}");
        }
    }
}

/// What a forked child can do with `comm`, and drop it; whether all of it was refused.
fn is_refused_in_a_child(comm: Communicator) -> bool {
    let is_forked = |error: Error| error.kind() == Kind::InvalidUsage && error.message().contains("forked");
    let (mut word, mut other) = ([1u32], [0u32]);
    comm.abort_handle().abort("by a child");
    let refused = [
        comm.all_reduce_in_place(&mut word, ReduceOp::Sum).is_err_and(is_forked),
        comm.send(&word, 1 - comm.rank()).is_err_and(is_forked),
        comm.recv(&mut other, 1 - comm.rank()).is_err_and(is_forked),
        comm.barrier().is_err_and(is_forked),
        comm.split(Some(0), 0).is_err_and(is_forked),
        comm.shrink(&[1 - comm.rank()]).is_err_and(is_forked),
        comm.placement().is_err_and(is_forked),
        comm.scope(|scope| scope.barrier()?.wait()).is_err_and(is_forked),
        crate::group(|group| group.on(&comm).barrier()).is_err_and(is_forked),
        comm.async_error().is_some_and(is_forked),
    ];
    let desk = Desk::new(comm);
    let call = Call {
        collective: Collective::Barrier,
        data_type: DataType::U8,
        op: None,
        root: None,
        count: CallCount::Each(0),
        buffers: Buffers::none(),
    };
    let refused_by_the_desk = [
        desk.run(call).is_err_and(is_forked),
        desk.placement().is_err_and(is_forked),
        desk.async_error().is_some_and(is_forked),
        desk.finalize().is_err_and(is_forked),
    ];
    refused == [true; 10] && refused_by_the_desk == [true; 4]
}

/// Regression: a child's call took its parent's place, so that sums were wrong with no error, and its drop ended the parent's
/// communicator.
#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    for (no_local, no_shm) in [(false, false), (true, false), (true, true)] {
        let config = Config::default().with_p2p_disable(no_local).with_shm_disable(no_shm).with_socket_interfaces("lo");
        let config = config.with_timeout(Duration::from_secs(30));
        let id = Communicator::unique_id(&config).unwrap();
        let rank = |rank: u32| {
            let mut comm = Some(Communicator::init(&id, rank, 2, &config).unwrap());
            for turn in 0..4u32 {
                let own = comm.as_ref().unwrap();
                let (mut word, mut many) = ([turn + rank], vec![turn + rank; 50_000]);
                own.all_reduce_in_place(&mut word, ReduceOp::Sum).unwrap();
                own.all_reduce_in_place(&mut many, ReduceOp::Sum).unwrap();
                assert!(many.iter().chain(&word).all(|sum| *sum == 2 * turn + 1), "{word:?}");
                if rank == 0 {
                    assert!(fork::in_child(|| comm.take().is_some_and(is_refused_in_a_child)));
                }
            }
            comm.unwrap().finalize().unwrap();
        };
        thread::side_by_side("rank", vec![0, 1], rank, || ()).unwrap();
    }
}

/// The child has none of the threads that its parent's requests are with.
#[test]
fn requests_are_refused_in_a_forked_child() {
    local::run(2, |comm| {
        let (mine, mut word, theirs) = ([comm.rank()], [0u32], 1 - comm.rank());
        comm.scope(|scope| {
            let received = scope.recv(&mut word, theirs)?;
            let mut parts = Some((received, scope.barrier()?));
            assert!(fork::in_child(|| {
                let is_refused = |ended: Result<()>| ended.is_err_and(|error| error.message().contains("forked"));
                let refused = parts
                    .take()
                    .is_some_and(|(received, barrier)| is_refused(received.wait()) && is_refused(barrier.wait()));
                refused && is_refused(scope.barrier().map(drop))
            }));
            scope.send(&mine, theirs)?.wait()?;
            let (received, barrier) = parts.expect("only the child has taken them");
            received.wait().and(barrier.wait())
        })?;
        assert_eq!(word, [theirs]);
        Ok(())
    })
    .unwrap();
}

#[test]
fn errors_of_arguments_name_rank_operation_and_what_is_allowed() {
    local::run(2, |comm| {
        let rank = comm.rank();
        let mut one = [0u32];
        let said = |result: Result<()>| result.unwrap_err().to_string();
        assert_eq!(
            said(comm.all_reduce(&[1, 2], &mut one, ReduceOp::Sum)),
            format!("rank {rank}: all_reduce: `recv` has 1 elements where 2 are needed")
        );
        assert_eq!(
            said(comm.broadcast(&mut one, 7)),
            format!("rank {rank}: broadcast: root 7 is out of range: the world has 2 ranks")
        );
        assert_eq!(
            said(comm.send(&one, 9)),
            format!("rank {rank}: send: peer 9 is out of range: the world has 2 ranks")
        );
        let error = said(comm.scope(|scope| scope.all_gather(&[1u32], &mut one).map(drop)));
        assert_eq!(error, format!("rank {rank}: all_gather: `recv` has 1 elements where 2 are needed"));
        let error = said(comm.split(Some(0), 0)?.map_or(Ok(()), |half| half.shrink(&[5]).map(drop)));
        assert!(error.contains("excluded rank 5 is out of range: the world has 2 ranks"), "{error}");
        comm.barrier()
    })
    .unwrap();
}

/// Regression: the second half of a split, of the child's ranks alone, went on for its whole time-out.
#[test]
fn an_abort_of_the_parent_ends_the_birth_of_a_child() {
    let config = Config::default().with_init_timeout(Duration::from_secs(60));
    let late = std::sync::Barrier::new(2);
    local::run_with(2, &config, |comm| {
        let child =
            comm.with_engine(|engine| split::begin_split(engine, (Some(0), 0), &mut Nothing))?.expect("a color");
        if comm.rank() == 1 {
            // It comes when rank 0 has given up.
            late.wait();
            assert!(child.finish().is_err());
            return Ok(());
        }
        let handle = comm.abort_handle();
        let aborter = thread::spawn("aborter", move || handle.abort("enough of this"))?;
        let error = child.finish().expect_err("rank 1 has not come");
        late.wait();
        aborter.join().expect("it does not panic");
        assert_eq!(error.kind(), Kind::Aborted, "{error}");
        assert!(error.message().contains("enough of this"), "{error}");
        Ok(())
    })
    .unwrap();
}

/// Both ends of a message have the label of a send; the receiver said of itself that it had called one.
#[test]
fn a_receiver_says_that_it_called_recv() {
    let result = local::run(2, |comm| match comm.rank() {
        0 => comm.send(&[1f32; 3], 1),
        _ => comm.recv(&mut [0f32; 4], 0),
    });
    let error = result.unwrap_err().to_string();
    let mine = "this rank called recv #0 (count 4, float), rank 0 called send #0 (count 3, float)";
    assert!(error.contains(mine), "{error}");
}
