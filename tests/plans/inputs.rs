//! Which sources of a step are inputs, as an average that carries partial results scales them: each of them once.

use std::collections::BTreeSet;

use rsccl::internals::plan::{Action, Combine, Count, Layout, Limits, Operand, Plan, RankBuffer, Spec, Windows};
use rsccl::internals::types::Elements;
use rsccl::types::{Algorithm, Collective, Rank, World};

use crate::{Dice, base, hosts_of, layout, plans, thrown};

fn combines(plan: &Plan) -> impl Iterator<Item = (usize, &Combine)> {
    let steps =
        plan.lanes.iter().enumerate().flat_map(|(lane, steps)| steps.steps.iter().map(move |step| (lane, step)));
    steps.filter_map(|(lane, step)| match &step.action {
        Action::Combine(combine) => Some((lane, combine)),
        Action::Enter { .. } | Action::Signal { .. } | Action::Wait { .. } => None,
    })
}

/// The regions of scratch, by lane, that this rank fills with its input as it is, and those that it fills with results.
fn regions(plan: &Plan) -> [BTreeSet<(usize, u32)>; 2] {
    let mut regions = [BTreeSet::new(), BTreeSet::new()];
    for (lane, combine) in combines(plan) {
        let reads_input = combine.sources.iter().any(|source| is_of(source, RankBuffer::Input));
        let is_raw = reads_input && combine.inputs().is_empty();
        for target in &combine.targets {
            match target {
                Operand::Local(span) if span.buffer == RankBuffer::Scratch => {
                    regions[usize::from(!is_raw)].insert((lane, span.index));
                }
                _ => assert!(!is_raw, "only scratch holds inputs as they are: {combine:?}"),
            }
        }
    }
    regions
}

fn is_of(operand: &Operand, buffer: RankBuffer) -> bool {
    matches!(operand, Operand::Local(span) | Operand::Window(_, span) if span.buffer == buffer)
}

/// Whether each source of each step that is not scaled yet is an input there, and no other.
fn holds(spec: &Spec) {
    let plans = plans(spec);
    let all: Vec<_> = plans.iter().map(regions).collect();
    for [raw, results] in &all {
        assert!(raw.is_disjoint(results), "one region for two things: {spec:?}");
    }
    for (plan, me) in plans.iter().zip(spec.world.ranks()) {
        for (lane, combine) in combines(plan) {
            let inputs = combine.inputs();
            let is_copied =
                |source: &Operand| inputs.is_empty() && combine.sources.len() == 1 && is_of(source, RankBuffer::Input);
            for (index, source) in combine.sources.iter().enumerate() {
                let is_raw = match source {
                    Operand::Slot(_) => false,
                    Operand::Local(span) | Operand::Window(_, span) => match span.buffer {
                        RankBuffer::Input => !is_copied(source),
                        RankBuffer::Output => false,
                        RankBuffer::Scratch => {
                            let owner = if let Operand::Window(peer, _) = source { *peer } else { me };
                            all[owner.index()][0].contains(&(lane, span.index))
                        }
                    },
                };
                assert_eq!(inputs.contains(&index), is_raw, "rank {me}, source {index} of {combine:?} in {spec:?}");
            }
        }
    }
}

#[test]
fn each_input_is_scaled_once_where_partial_results_travel() {
    let mut dice = Dice(3);
    let (mut held, mut staged) = (0, 0);
    while held < 1500 {
        let spec = thrown(&mut dice);
        if spec.collective.reduces() && spec.algorithm != Algorithm::Direct {
            assert!(spec.carries_partials());
            holds(&spec);
            held += 1;
            staged += u32::from(!regions(&plans(&spec)[0])[0].is_empty());
        }
    }
    assert!(staged > 50, "some of the plans copy inputs to scratch, not {staged}");
}

/// A team of any number of ranks, and direct plans on layouts with teams, which carry nothing.
#[test]
fn large_teams_and_direct_plans() {
    let spec = |algorithm| Spec {
        world: World { rank: Rank::new(0), size: 202 },
        root: Rank::new(0),
        count: Count::Each(Elements(500)),
        layout: layout(hosts_of(&[200, 2])),
        limits: Limits { slot: Elements(100), slots: 4, scratch: Elements(100_000), channels: 1 },
        ..base(Collective::AllReduce, algorithm, Windows::Scratch)
    };
    let ring = spec(Algorithm::Ring);
    holds(&ring);
    let plan = Plan::build(&ring).expect("a plan");
    assert_eq!(combines(&plan).map(|(_, combine)| combine.inputs().len()).max(), Some(200));
    assert!(ring.carries_partials() && !spec(Algorithm::Direct).carries_partials());
    let one_host = Layout::of_hosts(&hosts_of(&[130])).expect("each rank once").with_teams_of(32);
    let direct = Spec {
        world: World { rank: Rank::new(0), size: 130 },
        layout: std::sync::Arc::new(one_host),
        ..spec(Algorithm::Direct)
    };
    assert!(!direct.carries_partials(), "all inputs meet in one step, whatever the teams are");
}
