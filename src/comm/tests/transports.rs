//! Transports forced on threads: every path of set-up without processes.

use std::time::Duration;

use crate::comm::{Communicator, local};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::transport::Policy;
use crate::types::ReduceOp;

fn sums(policy: Policy, ranks: u32) {
    let config = Config::default()
        .with_p2p_disable(policy.no_local)
        .with_shm_disable(policy.no_shm)
        .with_timeout(std::time::Duration::from_secs(20));
    for count in [0usize, 1, 5, 5000, 100_003, 1_000_001] {
        local::run_with(ranks, &config, |comm| {
            let n = comm.size() as usize;
            let send: Vec<f32> = (0..count).map(|i| (i % 13 + comm.rank() as usize) as f32).collect();
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
        sums(Policy { no_local: true, ..Policy::default() }, ranks);
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

/// Regression: where the output was large enough to pass the caches by, a trial of copies that do so too was not timed,
/// so that a rank whose copies all write output learnt nothing, however far its peers.
#[test]
fn large_all_gathers_teach_how_far_peers_are() {
    let config = Config::default().with_p2p_disable(true).with_cma_disable(true).with_timeout(Duration::from_secs(20));
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

#[test]
fn net() {
    for ranks in [2, 3, 8] {
        sums(Policy { no_local: true, no_shm: true, ..Policy::default() }, ranks);
    }
}

/// Every way two ranks can be connected: as threads, as processes of a host, and as hosts.
fn policies() -> [Policy; 3] {
    [(false, false), (true, false), (true, true)].map(|(no_local, no_shm)| Policy {
        no_local,
        no_shm,
        ..Policy::default()
    })
}

fn with(policy: Policy, timeout: Duration) -> Config {
    Config::default().with_p2p_disable(policy.no_local).with_shm_disable(policy.no_shm).with_timeout(timeout)
}

/// Regression: a ring of small sends, as MPI and NCCL programs have them, waited until the deadline: a receiver opened
/// its end of a connection in its recv only.
#[test]
fn a_ring_of_small_sends_goes_through() {
    for (policy, ranks) in policies().into_iter().flat_map(|policy| [2, 3, 7].map(|ranks| (policy, ranks))) {
        local::run_with(ranks, &with(policy, Duration::from_secs(60)), |comm| {
            let (me, right, left) = (comm.rank(), (comm.rank() + 1) % ranks, (comm.rank() + ranks - 1) % ranks);
            for turn in 0..20 {
                comm.send(&[me, turn], right)?;
                let mut got = [9, 9];
                comm.recv(&mut got, left)?;
                assert_eq!(got, [left, turn]);
            }
            // What the slots hold goes through too: 8 messages, and as many bytes as the buffer has.
            let large = vec![me; 1 << 18];
            comm.send(&large, right)?;
            let mut got = vec![9; 1 << 18];
            comm.recv(&mut got, left)?;
            assert!(got.iter().all(|word| *word == left));
            (0..8).try_for_each(|turn| comm.send(&[turn], right))?;
            (0..8).try_for_each(|turn| {
                let mut got = [9];
                comm.recv(&mut got, left)?;
                assert_eq!(got, [turn]);
                Ok(())
            })
        })
        .unwrap();
    }
}

/// The receiver is asked in whatever wait it is: another collective, a split, a group, a scope, another set-up.
#[test]
fn a_first_send_reaches_a_receiver_that_waits_elsewhere() {
    type Wait = fn(&Communicator) -> Result<()>;
    let waits: [(Wait, &str); 5] = [
        (Communicator::barrier, "barrier"),
        (|comm| comm.all_reduce_in_place(&mut vec![1f32; 300_000], ReduceOp::Sum), "all_reduce"),
        (|comm| comm.split(Some(0), 0).map(drop), "split"),
        (|comm| comm.register(&crate::comm::Buffer::<u32>::new(100)?), "register"),
        (
            |comm| {
                let mut sum = [1];
                comm.scope(|scope| scope.all_reduce_in_place(&mut sum, ReduceOp::Sum)?.wait())
            },
            "scope",
        ),
    ];
    for (policy, (wait, name)) in policies().into_iter().flat_map(|policy| waits.map(|wait| (policy, wait))) {
        local::run_with(3, &with(policy, Duration::from_secs(60)), |comm| {
            let mut got = [0];
            if comm.rank() == 0 {
                comm.send(&[7], 1)?;
                crate::comm::group(|group| group.on(&comm).send(&[7], 2))?;
                wait(&comm)?;
            } else {
                wait(&comm)?;
                comm.recv(&mut got, 0)?;
                assert_eq!(got, [7], "{name}");
            }
            comm.barrier()
        })
        .unwrap_or_else(|error| panic!("{name}, {policy:?}: {error}"));
    }
}

/// A send that nobody receives waits until its deadline, and says for whom: a first one of a rank that makes no call,
/// and a large one of a rank that waits elsewhere.
#[test]
fn a_send_whose_receiver_never_comes_times_out_with_its_name() {
    for policy in policies() {
        let (done, ended) = (std::sync::Barrier::new(3), Duration::from_secs(1));
        let ends = local::run_with(3, &with(policy, ended), |comm| {
            let end = match comm.rank() {
                0 => comm.send(&[7], 2).err(),
                1 => comm.send(&vec![7u8; 64 << 20], 0).err(),
                _ => None,
            };
            done.wait();
            Ok(end)
        })
        .unwrap();
        let [Some(first), Some(second), None] = &ends[..] else { panic!("{ends:?}") };
        // Which of the two comes to its end first tells the other.
        let told = |error: &Error, words: &str| error.kind() == Kind::Timeout && error.to_string().contains(words);
        let named = told(first, "waiting for rank 2 (to make the matching call")
            || told(second, "waiting for rank 0 (its recv for send #0)");
        assert!(named, "{policy:?}: {first}; {second}");
    }
}
