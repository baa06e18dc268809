//! What `rsccl sim` plays is what communicators plan.

use std::time::Duration;

use crate::comm::CallCount;
use crate::comm::tests::layouts::each;
use crate::config::Config;
use crate::engine::choose::Question;
use crate::engine::foreseen::{ELEMENT, Foreseen, ForeseenCall, ForeseenRanks};
use crate::sys::cpu;
use crate::tune::RingSizes;
use crate::types::{Collective, Rank};

/// The collectives and elements that are compared: by flat slots, in windows, over slots.
fn calls() -> Vec<(Collective, u64)> {
    use Collective::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, ReduceScatter};
    let collectives = [AllReduce, Broadcast, AllGather, ReduceScatter, AllToAll, Gather, Barrier];
    collectives.iter().flat_map(|collective| [1, 3000, 70_000, 1 << 22].map(|count| (*collective, count))).collect()
}

/// The plans of four real ranks on these hosts, and those that are foreseen.
fn compare(hosts: &[Vec<Rank>], config: &Config) {
    let mut configs = vec![config.clone(); 4];
    for (number, ranks) in hosts.iter().enumerate() {
        ranks.iter().for_each(|rank| configs[rank.index()] = config.clone().with_host_id(format!("host {number}")));
    }
    let resolved = config.clone().resolve().unwrap();
    let ring = RingSizes::of_collectives(resolved.buffer_bytes);
    let cores = u32::try_from(cpu::allowed()).unwrap();
    let ranks = ForeseenRanks { hosts, cores, config: &resolved, ring, registered: false };
    let foreseen = Foreseen::on_processors(ranks).unwrap();
    let found = each(&configs, |comm| {
        let spec = |(collective, count): (Collective, u64)| {
            let count = CallCount::Each(count);
            comm.with_engine(|engine| engine.spec(Question { collective, data_type: ELEMENT, count: &count }))
        };
        calls().into_iter().map(spec).collect::<crate::Result<Vec<_>>>()
    });
    for (rank, specs) in (0..).map(Rank::new).zip(found.unwrap()) {
        for ((collective, count), real) in calls().into_iter().zip(specs) {
            let call = ForeseenCall::new(collective, count);
            let way = foreseen.way(&call).unwrap();
            let told = format!("{collective} of {count} on rank {rank} of {hosts:?}");
            assert_eq!(way.is_flat, real.is_none(), "{told}");
            if let Some(real) = real {
                assert_eq!(foreseen.spec(&call, way, rank), real, "{told}");
            }
        }
    }
}

#[test]
fn what_is_foreseen_on_processors_is_what_communicators_plan() {
    let folder = tempfile::tempdir().unwrap();
    let tune = folder.path().join("tune");
    std::fs::write(&tune, "rsccl-tune 1\nflag_us = 900000\n").unwrap();
    let base = Config::default().with_socket_interfaces("lo").with_p2p_disable(true);
    let base = base.with_timeout(Duration::from_secs(20)).with_init_timeout(Duration::from_secs(20));
    let ranks = |numbers: &[u32]| numbers.iter().copied().map(Rank::new).collect::<Vec<Rank>>();
    let standings =
        [vec![ranks(&[0, 1, 2, 3])], vec![ranks(&[0, 1]), ranks(&[2, 3])], vec![ranks(&[0, 2, 3]), ranks(&[1])]];
    let set = |name, value| base.clone().with_variable(name, value).unwrap();
    let wishes = [
        base.clone(),
        set("NCCL_ALGO", "Tree"),
        set("RSCCL_TUNE_FILE", tune.to_str().unwrap()),
        set("NCCL_BUFFSIZE", "4194304").with_reproducible(true),
        set("NCCL_MIN_NCHANNELS", "3"),
    ];
    for (hosts, config) in standings.iter().flat_map(|hosts| wishes.iter().map(move |config| (hosts, config))) {
        compare(hosts, config);
    }
}
