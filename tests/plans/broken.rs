//! Plans are broken on purpose, to see that the proof notices: steps left out, moved, given other operands, listeners
//! or turns.

use std::sync::Arc;

use rsccl::internals::plan::check::{fits, prove, prove_repeated};
use rsccl::internals::plan::{Action, Block, Count, Lane, Limits, Plan, RankBuffer, Spec, Windows, algorithms};
use rsccl::internals::types::Elements;
use rsccl::types::{Algorithm, Collective, Rank, World};

use crate::{Dice, base, combine_of, hosts_of, layout, mapped_bases, plans, spans_of, steps_of, thrown};

/// Breaks a step, the `index`-th of a lane; `false` where there is nothing of the kind to break.
type Break = fn(&mut Lane, usize) -> bool;

/// Whether a proof finds nothing, or only that a signal's listeners are others than the ranks that wait: which waits
/// are needed is another matter.
fn goes_unnoticed(plans: &[Plan]) -> bool {
    prove(plans).err().is_none_or(|flaw| flaw.to_string().ends_with("wait for it"))
}

/// Breaks each step of each rank alone, and gives the steps whose breaking the proof did not notice.
fn unnoticed(spec: &Spec, breaking: Break) -> Vec<Action> {
    let whole = plans(spec);
    prove(&whole).expect("the whole plan is right");
    let mut unnoticed = Vec::new();
    for rank in 0..whole.len() {
        for (index, step) in whole[rank].lanes[0].steps.iter().enumerate() {
            let mut broken = whole.clone();
            if breaking(&mut broken[rank].lanes[0], index) && goes_unnoticed(&broken) {
                unnoticed.push(step.action.clone());
            }
        }
    }
    unnoticed
}

/// Every algorithm, flat and between hosts.
fn all_bases() -> Vec<Spec> {
    let mut specs = mapped_bases();
    for collective in Collective::ALL.iter().filter(|collective| **collective != Collective::Barrier) {
        for algorithm in algorithms(*collective) {
            let flat = base(*collective, *algorithm, Windows::None);
            let vector = matches!(collective, Collective::AllGatherV | Collective::ReduceScatterV);
            let count = if vector { Count::PerRank([500, 0, 433].map(Elements).to_vec()) } else { flat.count.clone() };
            let flat = Spec { count, ..flat };
            let hosts = layout(hosts_of(&[2, 2]));
            let world = World { size: 4, ..flat.world };
            if !vector {
                specs.extend([Windows::Scratch, Windows::User, Windows::Symmetric].map(|windows| Spec {
                    layout: Arc::clone(&hosts),
                    world,
                    windows,
                    ..flat.clone()
                }));
            }
            specs.push(flat);
        }
    }
    specs
}

/// If plans run in a row without the host, only the enter steps keep a rank from working in the memory of a rank that
/// has not begun the run yet.
#[test]
fn plans_run_behind_each_other_because_they_enter() {
    let mut needed = 0;
    for spec in mapped_bases() {
        let whole = plans(&spec);
        prove_repeated(&whole, 3).unwrap_or_else(|flaw| panic!("{} {:?}: {flaw}", spec.collective, spec.windows));
        let mut broken = whole;
        for lane in broken.iter_mut().flat_map(|plan| &mut plan.lanes) {
            Arc::make_mut(&mut lane.steps).retain(|step| !matches!(step.action, Action::Enter { .. }));
        }
        needed += u32::from(prove_repeated(&broken, 3).is_err());
    }
    assert!(needed > 0, "no plan needs to enter");
    let slots = base(Collective::AllReduce, Algorithm::Ring, Windows::None);
    prove_repeated(&plans(&slots), 3).expect("slots need no entering");
    let mut dice = Dice(9);
    for _ in 0..200 {
        let spec = thrown(&mut dice);
        prove_repeated(&plans(&spec), 2).unwrap_or_else(|flaw| panic!("{flaw} for {spec:?}"));
    }
}

#[test]
fn every_wait_is_needed_and_its_absence_noticed() {
    for spec in mapped_bases() {
        let left = unnoticed(&spec, |lane, index| {
            let wait = matches!(lane.steps[index].action, Action::Wait { .. });
            if wait {
                Arc::make_mut(&mut lane.steps).remove(index);
            }
            wait
        });
        assert_eq!(left, [], "{} {:?}", spec.collective, spec.windows);
    }
}

#[test]
fn scratch_is_no_deeper_than_needed_and_shallower_is_noticed() {
    for spec in mapped_bases().into_iter().filter(|spec| spec.windows == Windows::Scratch) {
        let mut shallow = plans(&spec);
        shallow.iter_mut().for_each(|plan| plan.lanes[0].sizes.depth -= 1);
        prove(&shallow).expect_err(&format!("{} {:?}", spec.collective, spec.windows));
    }
}

#[test]
fn a_combine_in_the_wrong_turn_is_noticed() {
    let spec = base(Collective::AllReduce, Algorithm::Direct, Windows::Scratch);
    let later = unnoticed(&spec, |lane, index| {
        Arc::make_mut(&mut lane.steps)[index].lag += 1;
        true
    });
    assert!(later.iter().all(|action| matches!(action, Action::Signal { .. })), "{later:?}");
    let sooner = unnoticed(&spec, |lane, index| {
        let step = &mut Arc::make_mut(&mut lane.steps)[index];
        let lags = step.lag > 0;
        step.lag -= u8::from(lags);
        lags
    });
    assert!(sooner.iter().all(|action| matches!(action, Action::Wait { .. })), "{sooner:?}");
}

#[test]
fn signals_name_exactly_those_who_wait_for_them() {
    for windows in [Windows::Scratch, Windows::User] {
        let whole = plans(&base(Collective::AllReduce, Algorithm::Direct, windows));
        for rank in 0..whole.len() {
            for index in 0..whole[rank].lanes[0].steps.len() {
                let mut broken = whole.clone();
                let Action::Signal { listeners, .. } = &mut steps_of(&mut broken[rank])[index].action else { continue };
                listeners.pop();
                let flaw = prove(&broken).expect_err("a rank waits for a signal that does not name it").to_string();
                assert!(flaw.ends_with("wait for it"), "{flaw}");
            }
        }
    }
    let staged = base(Collective::AllReduce, Algorithm::Direct, Windows::Scratch);
    let refused = |listeners: Vec<u32>| {
        let mut plan = plans(&staged).remove(0);
        steps_of(&mut plan)[3].action =
            Action::Signal { flag: 0, listeners: listeners.into_iter().map(Rank::new).collect() };
        fits(&plan).expect_err("no executor can run it").to_string()
    };
    assert_eq!(refused(vec![]), "rank 0 lane 0 step 3 signals flag 0 to nobody");
    assert_eq!(refused(vec![0]), "rank 0 lane 0 step 3 signals flag 0 to rank 0, which is not mapped");
    assert_eq!(refused(vec![2, 1]), "rank 0 lane 0 step 3 signals flag 0 to ranks that are not in order");
}

#[test]
fn broken_combines_are_noticed() {
    let breaks: [(&str, Break); 8] = [
        ("a dropped step", |lane, index| {
            let hit = combine_of(lane, index).is_some();
            if hit {
                Arc::make_mut(&mut lane.steps).remove(index);
            }
            hit
        }),
        ("a dropped source", |lane, index| {
            combine_of(lane, index).is_some_and(|combine| combine.sources.pop().is_some())
        }),
        ("a dropped target", |lane, index| {
            combine_of(lane, index).is_some_and(|combine| combine.targets.pop().is_some())
        }),
        ("a doubled source", |lane, index| {
            let combine = combine_of(lane, index);
            combine.is_some_and(|combine| {
                combine.sources.push(combine.sources[0]);
                true
            })
        }),
        ("a shifted span", |lane, index| {
            let blocks = lane.sizes.blocks.clone();
            let more = blocks.len();
            let Some(span) = combine_of(lane, index).and_then(|combine| spans_of(combine).next()) else { return false };
            if span.buffer == RankBuffer::Scratch {
                span.index += 1;
                return true;
            }
            let block = blocks[span.index as usize];
            span.index = u32::try_from(more).expect("a few blocks");
            let shifted = Block { input: block.input + Elements(1), output: block.output + Elements(1), ..block };
            lane.sizes.blocks.push(shifted);
            true
        }),
        ("a shorter block", |lane, index| {
            let blocks = lane.sizes.blocks.clone();
            let Some(combine) = combine_of(lane, index) else { return false };
            let block = blocks[combine.block as usize];
            combine.block = u32::try_from(blocks.len()).expect("a few blocks");
            lane.sizes.blocks.push(Block { length: block.length - Elements(1), ..block });
            true
        }),
        ("no block", |lane, index| combine_of(lane, index).map(|combine| combine.times = 0).is_some()),
        ("the other finish", |lane, index| {
            combine_of(lane, index).map(|combine| combine.finish = !combine.finish).is_some()
        }),
    ];
    for spec in all_bases() {
        for (what, breaking) in breaks {
            let left = unnoticed(&spec, breaking);
            assert_eq!(left, [], "{what} in {} {} {:?}", spec.collective, spec.algorithm, spec.windows);
        }
    }
}

#[test]
fn a_deadlock_names_who_waits_for_whom() {
    let spec = base(Collective::Broadcast, Algorithm::Ring, Windows::None);
    let mut broken = plans(&spec);
    steps_of(&mut broken[1]).clear();
    let flaw = prove(&broken).unwrap_err().to_string();
    let expected = "deadlock: rank 0 lane 0 step 0 round 0 waits for a message of rank 2; \
                    rank 2 lane 0 step 0 round 0 waits for a message of rank 1";
    assert_eq!(flaw, expected);
}

#[test]
fn credit_is_limited_by_the_slots() {
    let spec = base(Collective::AllGather, Algorithm::Ring, Windows::None);
    let mut plans = plans(&spec);
    // All ranks send all rounds before they take any: more messages than slots.
    for plan in &mut plans {
        steps_of(plan)[1].lag = 20;
        steps_of(plan)[2].lag = 20;
    }
    let flaw = prove(&plans).unwrap_err().to_string();
    assert!(flaw.contains("waits for rank 1 to free a slot"), "{flaw}");
}

#[test]
fn specs_that_contradict_themselves_are_refused() {
    let good = base(Collective::AllReduce, Algorithm::Ring, Windows::None);
    let refused = |change: fn(&mut Spec)| {
        let mut spec = good.clone();
        change(&mut spec);
        Plan::build(&spec).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(
        refused(|spec| spec.algorithm = Algorithm::Pat),
        "PAT does not do all_reduce; allowed are Ring, Tree, Direct"
    );
    assert_eq!(refused(|spec| spec.collective = Collective::Send), "send is not done by plans");
    assert_eq!(refused(|spec| spec.limits.slots = 1), "1 slots of 100 elements; plans need 2 slots of 1 element");
    assert_eq!(refused(|spec| spec.limits.channels = 0), "0 channels; allowed are 1 to 256");
    let mapped = Spec { limits: Limits { channels: 5, ..good.limits }, windows: Windows::Scratch, ..good.clone() };
    let error = Plan::build(&mapped).map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "5 channels; allowed are 1 to 4");
    assert_eq!(refused(|spec| spec.world.rank = Rank::new(3)), "rank 3 is not below the world's size, 3");
    assert_eq!(refused(|spec| spec.count = Count::PerRank(vec![])), "all_reduce takes one count for all ranks");
    assert_eq!(refused(|spec| spec.layout = layout(hosts_of(&[1]))), "a layout of 1 ranks for a world of 3");
    assert!(refused(|spec| spec.count = Count::Each(Elements(u64::MAX / 2))).contains("can be counted"));
    let scratch = Spec {
        limits: Limits { scratch: Elements(8), ..good.limits },
        ..base(Collective::AllReduce, Algorithm::Direct, Windows::Scratch)
    };
    let error = Plan::build(&scratch).map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        error,
        "Direct all_reduce of 3 ranks needs 9 elements of scratch in each of 1 lanes, and the limit leaves 8"
    );
}
