//! Plans on layouts whose channels were searched for, on descriptions of machines: they are proved, and what goes
//! through slots follows the channels.

use std::path::Path;
use std::sync::Arc;

use rsccl::internals::plan::{Count, Layout, Operand, Plan, Spec, Windows, algorithms};
use rsccl::internals::topo::channels::{SystemChannels, rails};
use rsccl::internals::topo::search::between::CrossNic;
use rsccl::internals::topo::system::System;
use rsccl::internals::topo::xml;
use rsccl::internals::types::Elements;
use rsccl::types::{Algorithm, Collective, Rank, World};

use crate::{Action, base, limits, plans, prove};

/// The machines, how many of each, and how many rings pass all of them: see the bounds in `topo::search`.
const MACHINES: [(&str, u32, u32); 7] = [
    ("dgx1v", 1, 6),
    ("a100x4mesh", 1, 12),
    ("ncv4-gen4", 1, 2),
    ("p4d", 2, 4),
    ("r8pcie", 2, 2),
    ("dgx1v", 3, 4),
    ("h100x8", 2, 8),
];

fn searched(name: &str, hosts: u32) -> Arc<Layout> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../src/topo/machines/{name}.xml"));
    let (machine, _) = xml::parse(name, &std::fs::read_to_string(path).expect("a file")).expect("a machine");
    let system = System::new(&machine.repeated(hosts)).expect("a graph");
    let gpus = system.gpus();
    let channels =
        SystemChannels::search(&system, CrossNic::IfBetter).orders(&gpus).expect("orders").expect("channels");
    let layout = Layout::of_gpus(&system, &gpus).with_rails(&rails(&system, &gpus));
    Arc::new(layout.with_channels(channels).expect("its ranks"))
}

/// Every rank's peers of a lane, to which it sends.
fn sends(plans: &[Plan], lane: usize) -> Vec<(Rank, Rank)> {
    let mut pairs = Vec::new();
    for plan in plans {
        for step in plan.lanes.iter().filter(|at| usize::from(at.channel) == lane).flat_map(|lane| lane.steps.iter()) {
            let Action::Combine(combine) = &step.action else { continue };
            let to = |target: &Operand| match target {
                Operand::Slot(peer) => Some((plan.spec.world.rank, *peer)),
                _ => None,
            };
            pairs.extend(combine.targets.iter().filter_map(to));
        }
    }
    pairs.sort_unstable();
    pairs.dedup();
    pairs
}

#[test]
fn plans_follow_the_channels_that_were_found() {
    for (name, hosts, rings) in MACHINES {
        let layout = searched(name, hosts);
        let size = u32::try_from(layout.size()).expect("a few ranks");
        // Inside a host each of few rings has two lanes.
        let ring_lanes = if hosts == 1 && rings <= 8 { 2 * rings } else { rings };
        assert_eq!(layout.lanes_of(Algorithm::Ring), Some(ring_lanes), "{name}");
        let chains = u32::try_from(layout.channels().chains().len()).expect("a few channels");
        let tree_lanes = if hosts == 1 { chains } else { 2 * chains };
        assert_eq!(layout.lanes_of(Algorithm::Tree), Some(tree_lanes), "{name}");
        for (algorithm, lanes) in [(Algorithm::Ring, ring_lanes), (Algorithm::Tree, tree_lanes)] {
            for collective in Collective::ALL.iter().copied() {
                if !algorithms(collective).contains(&algorithm) || collective == Collective::Barrier {
                    continue;
                }
                let spec = spec((collective, algorithm), &layout, size, lanes);
                let plans = plans(&spec);
                prove(&plans).unwrap_or_else(|flaw| panic!("{name} {hosts} {collective} {algorithm}: {flaw}"));
                for lane in 0..lanes as usize {
                    let found = layout.searched(algorithm, lane).expect("channels");
                    let whole = found.order.concat();
                    let sent = sends(&plans, lane);
                    assert!(!sent.is_empty(), "{name} {collective} lane {lane}");
                    for (from, to) in sent {
                        let [at, next] = [from, to].map(|rank| whole.iter().position(|other| *other == rank).unwrap());
                        let follows = (at + 1) % whole.len() == next || (next + 1) % whole.len() == at;
                        let of_domain =
                            |rank: Rank| found.order.iter().position(|ranks| ranks.contains(&rank)).unwrap();
                        let inside = of_domain(from) == of_domain(to);
                        // Of chains that are turned to their root, the first rank follows the last.
                        let ranks = &found.order[of_domain(from)];
                        let turned =
                            inside && [from, to].iter().all(|rank| [ranks[0], ranks[ranks.len() - 1]].contains(rank));
                        match algorithm {
                            Algorithm::Ring => assert!(follows, "{name} {collective} lane {lane}: {from} to {to}"),
                            _ => assert!(
                                follows || turned || !inside,
                                "{name} {collective} lane {lane}: {from} to {to} of {ranks:?}"
                            ),
                        }
                    }
                }
            }
        }
    }
}

fn spec((collective, algorithm): (Collective, Algorithm), layout: &Arc<Layout>, size: u32, lanes: u32) -> Spec {
    let mut limits = limits(size)[0];
    limits.channels = lanes;
    // As many elements as fill every lane.
    let base = base(collective, algorithm, Windows::None);
    let each = u64::from(lanes) * limits.slot.0 * 2 + 5;
    let uneven = || (0..u64::from(size)).map(|rank| Elements(each - rank % 3)).collect();
    let count = match collective {
        Collective::AllGatherV | Collective::ReduceScatterV => Count::PerRank(uneven()),
        _ => Count::Each(Elements(each)),
    };
    Spec {
        count,
        layout: Arc::clone(layout),
        world: World { rank: Rank::new(0), size },
        root: Rank::new(size - 2),
        limits,
        ..base
    }
}

/// Rails join the ranks of one seat: the cables of the second host are crossed, and the ranks of a team stand by rail.
#[test]
fn hierarchies_along_rails_are_proved() {
    let hosts = [vec![0, 1, 2, 3], vec![4, 5, 6, 7]].map(|host| host.into_iter().map(Rank::new).collect());
    let rails = [0, 1, 2, 3, 1, 0, 3, 2].map(Some);
    let layout = Arc::new(Layout::of_hosts(&hosts).unwrap().with_rails(&rails));
    assert_eq!(layout.teams()[1], [5, 4, 7, 6].map(Rank::new));
    for algorithm in [Algorithm::Ring, Algorithm::Tree] {
        let spec = Spec { windows: Windows::Scratch, ..spec((Collective::AllReduce, algorithm), &layout, 8, 2) };
        let plans = plans(&spec);
        prove(&plans).unwrap();
        for (from, to) in sends(&plans, 0) {
            assert_eq!(rails[from.index()], rails[to.index()], "{from} to {to}");
        }
    }
}
