//! Plans are proved, not tried: every collective, algorithm, kind of windows, world, placement and size; then plans are
//! broken on purpose to see that the proof notices.
//!
//! The default run proves a sample; `RSCCL_EXHAUSTIVE=1` proves all.

use rsccl::plan::check::{Flaw, Proof, prove};
use rsccl::plan::{Action, Combine, Count, Limits, Operand, Plan, Spec, Walk, Windows, algorithms};
use rsccl::types::{Algorithm, Collective, Elements, Protocol, Rank, World};

/// One in so many cases is proved by default; odd, so that no property of the cases keeps step with it.
const SAMPLE: u64 = 41;

/// Worlds of the default run; the exhaustive one takes all up to the last.
const WORLDS: [u32; 10] = [1, 2, 3, 4, 5, 7, 8, 12, 16, 32];

fn exhaustive() -> bool {
    #[expect(clippy::disallowed_methods, reason = "the switch of this test, not of the library")]
    std::env::var_os("RSCCL_EXHAUSTIVE").is_some()
}

fn plans(spec: &Spec) -> Vec<Plan> {
    let plan = |rank| Plan::build(&Spec { world: World { rank, ..spec.world }, ..spec.clone() });
    let plans: Result<Vec<Plan>, _> = spec.world.ranks().map(plan).collect();
    plans.unwrap_or_else(|error| panic!("{error} for {spec:?}"))
}

fn proof(spec: &Spec) -> Result<Proof, Flaw> {
    prove(&plans(spec))
}

/// Hosts of equal or nearly equal size, with neighbouring ranks together, or dealt out in turn.
fn placements(size: u32) -> Vec<Vec<Vec<Rank>>> {
    let mut all = Vec::new();
    for hosts in 1..=size.min(4) {
        let edge = |host: u32| size * host / hosts;
        all.push((0..hosts).map(|host| (edge(host)..edge(host + 1)).map(Rank::new).collect()).collect());
        if hosts > 1 && hosts < size {
            let every = usize::try_from(hosts).unwrap();
            all.push((0..hosts).map(|host| (host..size).step_by(every).map(Rank::new).collect()).collect());
        }
    }
    all
}

fn limits(size: u32) -> Vec<Limits> {
    let size = u64::from(size);
    let limits =
        |slot, slots, scratch, channels| Limits { slot: Elements(slot), slots, scratch: Elements(scratch), channels };
    vec![
        limits(3, 2, 16 * size, 1),
        limits(5, 4, 40 * size, 2),
        limits(4, 3, 70 * size, 3),
        limits(64, 2, 9 * 64 * size, 1),
        limits(4096, 8, 1 << 20, 4),
    ]
}

fn counts(collective: Collective, size: u32) -> Vec<Count> {
    let n = u64::from(size);
    let each = |counts: &[u64]| counts.iter().map(|count| Count::Each(Elements(*count))).collect();
    match collective {
        Collective::AllReduce | Collective::Broadcast | Collective::Reduce => {
            each(&[0, 1, n + 1, 3 * n + 1, 41 * n + 2, 2049 + n, 300 * n])
        }
        Collective::Barrier => each(&[0]),
        Collective::AllGatherV | Collective::ReduceScatterV => {
            let count = |unit: u64, salt: u64| {
                Count::PerRank((0..n).map(|rank| Elements((rank * 7 + salt) % 5 * unit + rank % 2)).collect())
            };
            vec![count(0, 0), count(1, 0), count(1, 3), count(9, 1)]
        }
        _ => each(&[0, 1, 2, 7, 41, 300]),
    }
}

struct Case {
    spec: Spec,
    number: u64,
}

fn cases(collective: Collective) -> Vec<Case> {
    let mut all = Vec::new();
    let worlds: Vec<u32> = if exhaustive() { (1..=32).collect() } else { WORLDS.to_vec() };
    for size in worlds {
        let mut roots = vec![Rank::new(0)];
        if collective.rooted() && size > 1 {
            roots.extend([Rank::new(size - 1), Rank::new(size / 2)]);
        }
        for hosts in placements(size) {
            for algorithm in algorithms(collective) {
                for windows in [Windows::None, Windows::Scratch, Windows::User] {
                    for (count, limits, root) in counts(collective, size).into_iter().flat_map(|count| {
                        let roots = &roots;
                        limits(size).into_iter().flat_map(move |limits| {
                            let count = count.clone();
                            roots.iter().map(move |root| (count.clone(), limits, *root))
                        })
                    }) {
                        for in_place in [false, true] {
                            let spec = Spec {
                                collective,
                                world: World { rank: Rank::new(0), size },
                                root,
                                count: count.clone(),
                                in_place,
                                algorithm: *algorithm,
                                protocol: Protocol::Simple,
                                windows,
                                hosts: hosts.clone(),
                                limits,
                            };
                            if !(in_place && collective == Collective::AllToAll) {
                                all.push(Case { spec, number: u64::try_from(all.len()).unwrap() });
                            }
                        }
                    }
                }
            }
        }
    }
    all
}

/// Elements in slots of the tiniest kind are many messages; long blocks go with larger limits.
fn bearable(spec: &Spec) -> bool {
    let large = u64::from(spec.world.size) * spec.count.longest().0;
    large / spec.limits.slot.0 <= 4000
}

fn prove_all(collective: Collective) {
    let all = cases(collective);
    let mut proved = 0_u32;
    for Case { spec, number } in &all {
        let sampled = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let small = spec.world.size <= 4 && sampled.is_multiple_of(5);
        let large = spec.world.size > 4 && sampled.is_multiple_of(SAMPLE);
        if exhaustive() || ((small || large) && bearable(spec)) {
            proved += 1;
            if let Err(flaw) = proof(spec) {
                panic!("{flaw}\nin {spec:?}");
            }
        }
    }
    println!("{collective}: {proved} of {} sets of plans proved", all.len());
    assert!(proved > 0);
}

macro_rules! proved {
    ($($name:ident: $collective:ident,)+) => {
        $(#[test] fn $name() { prove_all(Collective::$collective); })+
    };
}

proved! {
    all_reduce_is_proved: AllReduce,
    broadcast_is_proved: Broadcast,
    reduce_is_proved: Reduce,
    all_gather_is_proved: AllGather,
    reduce_scatter_is_proved: ReduceScatter,
    all_gather_v_is_proved: AllGatherV,
    reduce_scatter_v_is_proved: ReduceScatterV,
    all_to_all_is_proved: AllToAll,
    gather_is_proved: Gather,
    scatter_is_proved: Scatter,
    barrier_is_proved: Barrier,
}
