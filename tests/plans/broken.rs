//! Plans are broken on purpose, to see that the proof notices: steps left out, moved, given other operands, listeners
//! or turns.

use std::sync::Arc;

use rsccl::plan::check::{fits, prove, prove_repeated};
use rsccl::plan::{Action, Count, Limits, Plan, Spec, Step, Walk, Windows, algorithms};
use rsccl::types::{Algorithm, Collective, Elements, Rank, World};

use super::{Dice, base, combine_of, hosts_of, layout, mapped_bases, plans, spans_of, thrown};

/// Breaks a step, the `index`-th of a lane; `false` where there is nothing of the kind to break.
type Break = fn(&mut Vec<Step>, usize) -> bool;

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
            if breaking(&mut broken[rank].lanes[0].steps, index) && goes_unnoticed(&broken) {
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
                specs.extend([Windows::Scratch, Windows::User].map(|windows| Spec {
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
            lane.steps.retain(|step| !matches!(step.action, Action::Enter { .. }));
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
        let left = unnoticed(&spec, |steps, index| {
            let wait = matches!(steps[index].action, Action::Wait { .. });
            if wait {
                steps.remove(index);
            }
            wait
        });
        assert_eq!(left, [], "{} {:?}", spec.collective, spec.windows);
    }
}

#[test]
fn scratch_is_no_deeper_than_needed_and_shallower_is_noticed() {
    for spec in mapped_bases() {
        let left = unnoticed(&spec, |steps, index| {
            let mut shallower = false;
            for span in combine_of(steps, index).into_iter().flat_map(spans_of) {
                if let Walk::Cycle(depth) = &mut span.walk {
                    *depth -= 1;
                    shallower = true;
                }
            }
            shallower
        });
        assert_eq!(left, [], "{} {:?}", spec.collective, spec.windows);
    }
}

#[test]
fn a_combine_in_the_wrong_turn_is_noticed() {
    let spec = base(Collective::AllReduce, Algorithm::Direct, Windows::Scratch);
    let later = unnoticed(&spec, |steps, index| {
        steps[index].lag += 1;
        true
    });
    assert!(later.iter().all(|action| matches!(action, Action::Signal { .. })), "{later:?}");
    let sooner = unnoticed(&spec, |steps, index| {
        let lags = steps[index].lag > 0;
        steps[index].lag -= u8::from(lags);
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
                let Action::Signal { listeners, .. } = &mut broken[rank].lanes[0].steps[index].action else { continue };
                listeners.pop();
                let flaw = prove(&broken).expect_err("a rank waits for a signal that does not name it").to_string();
                assert!(flaw.ends_with("wait for it"), "{flaw}");
            }
        }
    }
    let staged = base(Collective::AllReduce, Algorithm::Direct, Windows::Scratch);
    let refused = |listeners: Vec<u32>| {
        let mut plan = plans(&staged).remove(0);
        plan.lanes[0].steps[3].action =
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
        ("a dropped step", |steps, index| {
            let hit = combine_of(steps, index).is_some();
            if hit {
                steps.remove(index);
            }
            hit
        }),
        ("a dropped source", |steps, index| {
            combine_of(steps, index).is_some_and(|combine| combine.sources.pop().is_some())
        }),
        ("a dropped target", |steps, index| {
            combine_of(steps, index).is_some_and(|combine| combine.targets.pop().is_some())
        }),
        ("a doubled source", |steps, index| {
            let combine = combine_of(steps, index);
            combine.is_some_and(|combine| {
                combine.sources.push(combine.sources[0]);
                true
            })
        }),
        ("a shifted span", |steps, index| {
            let mut combine = combine_of(steps, index);
            let span = combine.as_mut().and_then(|combine| spans_of(combine).next());
            span.map(|span| span.start = span.start + Elements(1)).is_some()
        }),
        ("a shorter block", |steps, index| {
            combine_of(steps, index).map(|combine| combine.block = combine.block - Elements(1)).is_some()
        }),
        ("half a piece", |steps, index| {
            combine_of(steps, index).map(|combine| combine.piece = Elements(combine.piece.0 / 2)).is_some()
        }),
        ("the other finish", |steps, index| {
            combine_of(steps, index).map(|combine| combine.finish = !combine.finish).is_some()
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
    broken[1].lanes[0].steps.clear();
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
        plan.lanes[0].steps[1].lag = 20;
        plan.lanes[0].steps[2].lag = 20;
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
