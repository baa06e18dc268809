//! The steps of one plan serve other counts: a plan that is resized is the plan that would be built for that count.

use rsccl::internals::plan::{Count, Plan, Spec, Windows};
use rsccl::internals::types::Elements;
use rsccl::types::{Algorithm, Collective, World};

use crate::{Dice, base, exhaustive, thrown};

/// The same spec with counts that are near, far, shorter and longer.
fn recounted(dice: &mut Dice, spec: &Spec) -> Spec {
    let other = |count: Elements, dice: &mut Dice| match dice.below(5) {
        0 => Elements(count.0 + dice.below(4)),
        1 => Elements(count.0.saturating_sub(dice.below(4))),
        2 => Elements(count.0 * 2 + dice.below(64)),
        3 => Elements(count.0 / 2),
        _ => Elements(dice.below(count.0 * 3 + 2)),
    };
    let count = match &spec.count {
        Count::Each(count) => Count::Each(other(*count, dice)),
        Count::PerRank(counts) => Count::PerRank(counts.iter().map(|count| other(*count, dice)).collect()),
    };
    Spec { count, ..spec.clone() }
}

/// Every rank shares its steps for the same counts: sizes and choices are the same on all ranks.
#[test]
fn a_resized_plan_is_the_plan_that_would_be_built() {
    let mut dice = Dice(5);
    let (mut shared, mut planned) = (0, 0);
    for case in 0..if exhaustive() { 200_000 } else { 6_000 } {
        let spec = thrown(&mut dice);
        let other = recounted(&mut dice, &spec);
        let of = |spec: &Spec, rank| Spec { world: World { rank, ..spec.world }, ..spec.clone() };
        let mut resizable = Vec::new();
        for rank in spec.world.ranks() {
            let plan = Plan::build(&of(&spec, rank)).expect("a plan");
            let resized = plan.resized(&of(&other, rank)).expect("the limits fit the other count too");
            let built = Plan::build(&of(&other, rank)).expect("a plan");
            resizable.push(resized.is_some());
            if let Some(resized) = resized {
                assert_eq!(resized, built, "case {case}, rank {rank}, {spec:?}, {:?}", other.count);
            }
        }
        assert!(resizable.iter().all(|is| *is == resizable[0]), "case {case}: {resizable:?} for {spec:?}");
        *(if resizable[0] { &mut shared } else { &mut planned }) += 1;
    }
    assert!(shared > planned, "{shared} of the counts shared steps, and {planned} did not");
}

#[test]
fn counts_of_a_class_share_steps_in_memory_and_others_do_not() {
    let spec = |count: u64| Spec {
        count: Count::Each(Elements(count)),
        ..base(Collective::AllReduce, Algorithm::Direct, Windows::Scratch)
    };
    let plan = Plan::build(&spec(5000)).expect("a plan");
    let near = plan.resized(&spec(7123)).expect("a valid count").expect("as many rounds as reuse the scratch");
    assert!(std::ptr::eq(&*near.lanes[0].steps, &*plan.lanes[0].steps));
    assert_ne!(near.lanes[0].sizes, plan.lanes[0].sizes);
    // One shot, without elements for every rank, not reusing scratch.
    for count in [1, 3, 4, 640] {
        assert_eq!(plan.resized(&spec(count)).expect("a valid count"), None, "{count} elements");
    }
    let in_place = Spec { in_place: true, ..spec(7123) };
    assert_eq!(plan.resized(&in_place).expect("a valid spec"), None, "more than the count differs");
    let error = plan.resized(&spec(u64::MAX / 2)).expect_err("too many").to_string();
    assert!(error.contains("can be counted"), "{error}");
}
