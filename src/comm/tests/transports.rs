//! Transports forced on threads: every path of set-up without processes.

use std::time::Duration;

use crate::comm::local;
use crate::config::Config;
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

/// Regression: where the output was large enough to pass the caches by, a trial of copies that do so too was not timed,
/// so that a rank whose copies all write output learnt nothing, however far its peers.
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
