//! What goes over each connection, in life and in the simulation.

use std::time::Duration;

use crate::comm::{Buffers, Call, CallCount, local};
use crate::config::Config;
use crate::topo::Topology;
use crate::tune::{Costs, Folding, Terrain, Traffic, simulate};
use crate::types::{Collective, DataType, Rank, ReduceOp, TransportKind};

/// Every connection of a plan over slots carries as many messages and bytes as the simulation says.
fn compare(ranks: u32, (collective, algorithm): (Collective, &str), count: usize) {
    let config = Config::default().with_algo(algorithm).with_timeout(Duration::from_secs(20));
    let told = local::run_with(ranks, &config, |comm| {
        let shares = if collective == Collective::AllGather { comm.size() as usize } else { 1 };
        let (mine, mut all) = (vec![1f32; count], vec![0f32; count * shares]);
        let op = collective.reduces().then_some(ReduceOp::Sum);
        let root = collective.rooted().then_some(Rank::new(1));
        let buffers = Buffers::apart(&mine, &mut all);
        let count = CallCount::Each(count as u64);
        let call = Call { collective, data_type: DataType::F32, op, root, count, buffers };
        comm.run(&call)?;
        comm.with_engine(|engine| engine.plan_and_traffic(&call))
    })
    .unwrap();
    let mut sent: Vec<Traffic> = Vec::new();
    let mut plans = Vec::new();
    for (from, (plan, of_rank)) in (0..).map(Rank::new).zip(told) {
        let traffic = |(to, channel, (messages, bytes))| Traffic { from, to, channel, messages, bytes };
        sent.extend(of_rank.into_iter().map(traffic).filter(|traffic| traffic.messages > 0));
        plans.push(Ok(plan));
    }
    sent.sort_unstable();
    let hosts = Topology::new(vec![0; ranks as usize]).hosts().to_vec();
    let terrain = Terrain::of_hosts(&hosts, TransportKind::Local, &Costs::default());
    let simulated = simulate(plans, DataType::F32.size(), (&terrain, Folding::Exact)).unwrap();
    assert!(!sent.is_empty(), "{collective} {algorithm} sends something");
    assert_eq!(simulated.traffic, sent, "{collective} {algorithm} {ranks} ranks {count}");
}

#[test]
fn the_simulation_sends_the_messages_of_the_executor() {
    for ranks in [2, 3, 8] {
        for count in [20_000, 300_001, 1_000_000] {
            compare(ranks, (Collective::AllReduce, "Ring"), count);
            compare(ranks, (Collective::AllReduce, "Tree"), count);
            compare(ranks, (Collective::AllGather, "PAT"), count / 8);
            compare(ranks, (Collective::AllGather, "Ring"), count / 8);
            compare(ranks, (Collective::Reduce, "Ring"), count);
            compare(ranks, (Collective::Broadcast, "Tree"), count);
        }
    }
}
