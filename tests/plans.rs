//! Plans are proved, not tried: every collective, algorithm, kind of windows, world, placement and size. `broken`
//! breaks plans on purpose to see that the proof notices.
//!
//! The default run proves a sample; `RSCCL_EXHAUSTIVE=1` proves all.

mod plans {
    mod broken;
    mod channels;
    mod inputs;
    mod layouts;
    mod printed;
    mod resized;
}

use std::sync::Arc;

use rsccl::internals::plan::check::{Flaw, Proof, fits, prove};
use rsccl::internals::plan::{
    Action, Combine, Count, Lane, Layout, Limits, Operand, Plan, RankBuffer, ScratchSets, Span, Spec, Step, Windows,
    algorithms,
};
use rsccl::internals::types::Elements;
use rsccl::types::{Algorithm, Collective, Protocol, Rank, World};

/// By default one case of this many is proved. The number is odd, so that the sample has cases with every property.
const SAMPLE: u64 = 13;

/// Worlds of the default run; the exhaustive one takes all up to the last.
const WORLDS: [u32; 10] = [1, 2, 3, 4, 5, 7, 8, 12, 16, 32];

/// What of peers' memory plans may name.
const WINDOWS: [Windows; 4] = [Windows::None, Windows::Scratch, Windows::User, Windows::Symmetric];

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
fn placements(size: u32) -> Vec<Arc<Layout>> {
    let mut all: Vec<Vec<Vec<Rank>>> = Vec::new();
    for hosts in 1..=size.min(4) {
        let edge = |host: u32| size * host / hosts;
        all.push((0..hosts).map(|host| (edge(host)..edge(host + 1)).map(Rank::new).collect()).collect());
        if hosts > 1 && hosts < size {
            let every = usize::try_from(hosts).expect("a few hosts");
            all.push((0..hosts).map(|host| (host..size).step_by(every).map(Rank::new).collect()).collect());
        }
    }
    all.into_iter().map(layout).collect()
}

fn layout(hosts: Vec<Vec<Rank>>) -> Arc<Layout> {
    Layout::of_hosts(&hosts).expect("each rank once").into()
}

/// Hosts with these numbers of ranks, in rank order.
fn hosts_of(sizes: &[u32]) -> Vec<Vec<Rank>> {
    let mut ranks = (0..).map(Rank::new);
    sizes.iter().map(|size| ranks.by_ref().take(*size as usize).collect()).collect()
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
        for layout in placements(size) {
            for algorithm in algorithms(collective) {
                for windows in WINDOWS {
                    for count in counts(collective, size) {
                        for limits in limits(size) {
                            // Roots and places take turns: all meet all over the worlds.
                            let turn = all.len();
                            let spec = Spec {
                                collective,
                                world: World { rank: Rank::new(0), size },
                                root: roots[turn / 2 % roots.len()],
                                count: count.clone(),
                                in_place: turn % 2 == 1 && collective != Collective::AllToAll,
                                algorithm: *algorithm,
                                protocol: Protocol::Simple,
                                windows,
                                layout: Arc::clone(&layout),
                                limits,
                            };
                            all.push(Case { spec, number: u64::try_from(turn).expect("few cases") });
                        }
                    }
                }
            }
        }
    }
    all
}

/// Long blocks are for large slots: more messages than this prove nothing new.
const MESSAGES: u64 = 40_000;
const MESSAGES_OF_SAMPLE: u64 = 8_000;

fn bearable(spec: &Spec) -> bool {
    use Collective::{AllReduce, Barrier, Broadcast, Reduce};
    let world = u64::from(spec.world.size);
    let blocks =
        if matches!(spec.collective, AllReduce | Broadcast | Reduce | Barrier) { world } else { world * world };
    blocks * spec.count.longest().0 / spec.limits.slot.0 <= if exhaustive() { MESSAGES } else { MESSAGES_OF_SAMPLE }
}

/// The cases of this run.
fn chosen(collective: Collective) -> impl Iterator<Item = Spec> {
    let is_chosen = |Case { spec, number }: &Case| {
        let sampled = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let small = spec.world.size <= 4 && sampled.is_multiple_of(3);
        let large = spec.world.size > 4 && sampled.is_multiple_of(SAMPLE);
        (exhaustive() || small || large) && bearable(spec)
    };
    cases(collective).into_iter().filter(is_chosen).map(|case| case.spec)
}

/// Proves the cases of this run, of which there are `[sample, all]`: fewer would be a proof that shrank unseen. A
/// change to the cases changes the numbers; look at both before you do.
fn prove_all(collective: Collective, [sample, all]: [u32; 2]) {
    let mut proved = 0_u32;
    for spec in chosen(collective) {
        proved += 1;
        if let Err(flaw) = proof(&spec) {
            panic!("{flaw}\nin {spec:?}");
        }
    }
    assert_eq!(proved, if exhaustive() { all } else { sample }, "sets of plans of {collective} in this run");
}

macro_rules! proved {
    ($($name:ident: $collective:ident, $numbers:expr,)+) => {
        $(#[test] fn $name() { prove_all(Collective::$collective, $numbers); })+
    };
}

proved! {
    all_reduce_is_proved: AllReduce, [3063, 85428],
    broadcast_is_proved: Broadcast, [3063, 85428],
    reduce_is_proved: Reduce, [3063, 85428],
    all_gather_is_proved: AllGather, [2650, 72888],
    reduce_scatter_is_proved: ReduceScatter, [2650, 72888],
    all_gather_v_is_proved: AllGatherV, [1193, 33440],
    reduce_scatter_v_is_proved: ReduceScatterV, [1193, 33440],
    all_to_all_is_proved: AllToAll, [881, 24296],
    gather_is_proved: Gather, [881, 24296],
    scatter_is_proved: Scatter, [881, 24296],
    barrier_is_proved: Barrier, [301, 8360],
}

/// Elements that a rank writes, not counting those that lie there already.
fn written(plan: &Plan) -> u64 {
    let in_place = plan.spec.in_place;
    let one = |lane: &Lane, combine: &Combine| {
        let stays = |target: &&Operand| match (&combine.sources[..], target) {
            ([Operand::Local(from)], Operand::Local(to)) => {
                in_place
                    && from.buffer == RankBuffer::Input
                    && to.buffer == RankBuffer::Output
                    && from.index == to.index
            }
            _ => false,
        };
        let written = combine.targets.iter().filter(|target| !stays(target)).count();
        lane.sizes.block(combine).0 * u64::try_from(written).expect("few targets")
    };
    let steps = plan.lanes.iter().flat_map(|lane| lane.steps.iter().map(move |step| (lane, step)));
    steps.map(|(lane, step)| if let Action::Combine(combine) = &step.action { one(lane, combine) } else { 0 }).sum()
}

/// The root stages each element once and copies nothing back. Every other rank writes its own output, and its share for
/// the others. Regression: the root copied half of two ranks' data back from rank 1's scratch.
#[test]
fn a_broadcast_moves_each_element_once_through_scratch() {
    const COUNT: u64 = 1 << 18;
    for (size, in_place) in [2_u32, 3, 4, 8].into_iter().flat_map(|size| [(size, false), (size, true)]) {
        for windows in [Windows::Scratch, Windows::User, Windows::Symmetric] {
            let spec = Spec {
                world: World { rank: Rank::new(0), size },
                root: Rank::new(1),
                count: Count::Each(Elements(COUNT)),
                in_place,
                layout: layout(hosts_of(&[size])),
                limits: Limits { slot: Elements(1 << 15), slots: 8, scratch: Elements(1 << 22), channels: 1 },
                ..base(Collective::Broadcast, Algorithm::Direct, windows)
            };
            let share = COUNT / u64::from(size);
            for plan in plans(&spec) {
                let is_root = plan.spec.world.rank == spec.root;
                let own = if is_root && in_place { 0 } else { COUNT };
                let most = match windows {
                    // Everybody writes a share of everybody's output, but for the root's.
                    Windows::User | Windows::Symmetric if is_root => share * u64::from(size - 1) + own,
                    Windows::User | Windows::Symmetric => share * u64::from(size - 1),
                    Windows::None | Windows::Scratch if is_root => COUNT + own,
                    Windows::None | Windows::Scratch => COUNT,
                };
                let (rank, written) = (plan.spec.world.rank, written(&plan));
                // Shares begin at multiples of 64 elements.
                let most = most + 64 * u64::from(size);
                assert!(written <= most, "rank {rank} of {size} writes {written}, not {most}\n{plan}");
            }
        }
    }
}

/// In symmetric windows: what peers do depends on no buffer but their own and those that all ranks pass. A rank need not
/// know whether the root is in place, and its own steps are the same if it is.
#[test]
fn ranks_plan_alike_whether_the_root_is_in_place_or_not() {
    use Collective::{Broadcast, Gather, Reduce, Scatter};
    for collective in [Broadcast, Gather, Reduce, Scatter] {
        for count in [3, 2500] {
            let spec =
                Spec { count: Count::Each(Elements(count)), ..base(collective, Algorithm::Direct, Windows::Symmetric) };
            let in_place = plans(&Spec { in_place: true, ..spec.clone() });
            for (apart, in_place) in plans(&spec).iter().zip(&in_place) {
                if apart.spec.world.rank != spec.root {
                    assert_eq!(apart.lanes, in_place.lanes, "{collective} of {count}");
                }
            }
        }
    }
}

/// Where the root alone has a buffer, no other rank names it; all of the data goes from user buffer to user buffer, but
/// for the results of a reduction.
#[test]
fn in_symmetric_windows_no_rank_names_what_it_cannot_find() {
    use RankBuffer::{Input, Output, Scratch};
    let named: [(Collective, &[RankBuffer]); 10] = [
        (Collective::AllReduce, &[Input, Output]),
        (Collective::AllGather, &[Output]),
        (Collective::AllGatherV, &[Output]),
        (Collective::ReduceScatter, &[Input]),
        (Collective::ReduceScatterV, &[Input]),
        (Collective::AllToAll, &[Input]),
        (Collective::Broadcast, &[Output]),
        (Collective::Reduce, &[Input, Scratch]),
        (Collective::Gather, &[Input]),
        (Collective::Scatter, &[Output]),
    ];
    for (collective, wanted) in named {
        let vector = matches!(collective, Collective::AllGatherV | Collective::ReduceScatterV);
        let spec = base(collective, Algorithm::Direct, Windows::Symmetric);
        let counts = Count::PerRank([2500, 0, 433].map(Elements).to_vec());
        let spec = Spec { count: if vector { counts } else { spec.count.clone() }, ..spec };
        let mut whole = plans(&spec);
        let steps = whole.iter_mut().flat_map(|plan| steps_of(plan).iter_mut());
        let mut found: Vec<RankBuffer> = Vec::new();
        for step in steps {
            let Action::Combine(combine) = &step.action else { continue };
            found.extend(combine.sources.iter().chain(&combine.targets).filter_map(|operand| match operand {
                Operand::Window(_, span) => Some(span.buffer),
                Operand::Local(_) | Operand::Slot(_) => None,
            }));
        }
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, wanted, "{collective}");
    }
}

#[test]
fn a_buffer_that_cannot_be_found_in_symmetric_windows_is_refused() {
    let mut whole = plans(&base(Collective::Gather, Algorithm::Direct, Windows::User));
    whole.iter_mut().for_each(|plan| plan.spec.windows = Windows::Symmetric);
    let wanted = "names Output of rank 1, which is not mapped";
    for flaw in [fits(&whole[0]).expect_err("rank 0 writes the root's output"), prove(&whole).expect_err("as well")] {
        assert!(flaw.to_string().ends_with(wanted), "{flaw}");
    }
}

/// Worlds of 64 ranks and more, which the samples do not reach, on hosts of equal and of uneven size.
#[test]
fn plans_of_many_ranks_fit_their_buffers() {
    let mut built = 0;
    for size in [66_u32, 130, 300] {
        let uneven = vec![(0..65).map(Rank::new).collect(), (65..size).map(Rank::new).collect()];
        for (collective, layout) in Collective::ALL.iter().flat_map(|all| {
            [vec![(0..size).map(Rank::new).collect()], uneven.clone()].map(|hosts| (*all, layout(hosts)))
        }) {
            for algorithm in algorithms(collective) {
                for windows in WINDOWS {
                    let vector = matches!(collective, Collective::AllGatherV | Collective::ReduceScatterV);
                    let counts: Vec<_> = (0..size).map(|rank| Elements(u64::from(rank * 7 % 5 * 30))).collect();
                    for rank in [0, 63, 64, 65, size - 1] {
                        let spec = Spec {
                            collective,
                            world: World { rank: Rank::new(rank), size },
                            root: Rank::new(size - 1),
                            count: if vector { Count::PerRank(counts.clone()) } else { Count::Each(Elements(1003)) },
                            in_place: false,
                            algorithm: *algorithm,
                            protocol: Protocol::Simple,
                            windows,
                            layout: Arc::clone(&layout),
                            limits: Limits { slot: Elements(256), slots: 4, scratch: Elements(1 << 20), channels: 2 },
                        };
                        let plan = Plan::build(&spec).unwrap_or_else(|error| panic!("{error}\nfor {spec:?}"));
                        fits(&plan).expect("a plan that was built");
                        built += 1;
                    }
                }
            }
        }
    }
    assert_eq!(built, 2880);
}

/// Reductions of more ranks than a word has bits, each in rank order and each contribution scaled once.
#[test]
fn direct_reductions_of_66_ranks_are_proved() {
    use Collective::{AllReduce, Reduce, ReduceScatter};
    for collective in [AllReduce, Reduce, ReduceScatter] {
        for count in [3, 200] {
            let world = World { rank: Rank::new(0), size: 66 };
            let spec = Spec {
                world,
                root: Rank::new(65),
                count: Count::Each(Elements(count)),
                layout: layout(hosts_of(&[65, 1])),
                limits: Limits { slot: Elements(100), slots: 4, scratch: Elements(1000), channels: 1 },
                ..base(collective, Algorithm::Direct, Windows::None)
            };
            proof(&spec).unwrap_or_else(|flaw| panic!("{flaw}\nin {collective} of {count}"));
        }
    }
}

#[test]
fn plans_beyond_the_executors_limits_are_refused() {
    let spec = base(Collective::AllReduce, Algorithm::Direct, Windows::Scratch);
    let whole = Plan::build(&spec).expect("a plan");
    let refused = |change: fn(&mut Plan)| {
        let mut plan = whole.clone();
        change(&mut plan);
        fits(&plan).expect_err("no executor can run it").to_string()
    };
    fn combine(plan: &mut Plan, index: usize) -> &mut Combine {
        combine_of(&mut plan.lanes[0], index).expect("a combine")
    }
    let text = whole.to_string();
    // Step 6 reduces: my input and the others' scratch.
    let twice = refused(|plan| {
        let own = Operand::Local(Span { buffer: RankBuffer::Input, index: 0 });
        combine(plan, 6).sources.push(own);
    });
    assert_eq!(twice, "rank 0 lane 0 step 6 reads more than 1 raw input of its own", "{text}");
    let parted = refused(|plan| combine(plan, 6).sources.insert(1, Operand::Slot(Rank::new(1))));
    assert_eq!(parted, "rank 0 lane 0 step 6 reads inputs that do not stand side by side");
    let flag = refused(|plan| steps_of(plan)[3].action = Action::Signal { flag: 8, listeners: vec![Rank::new(1)] });
    assert_eq!(flag, "rank 0 lane 0 step 3 names flag 8; a lane has 8");
    let lanes = refused(|plan| plan.lanes = vec![plan.lanes[0].clone(); 5]);
    assert_eq!(lanes, "the plan has 5 lanes; with windows it may have 4");
    let beyond = refused(|plan| {
        let sizes = &mut plan.lanes[0].sizes;
        sizes.blocks.iter_mut().for_each(|block| block.length = Elements(2600));
        sizes.rounds = 40;
    });
    assert!(beyond.starts_with("rank 0 lane 0 step 1 names Input[") && beyond.ends_with("which has 2500"), "{beyond}");
    let scratch = refused(|plan| plan.lanes[0].sizes.scratch.end = Elements(600));
    assert!(scratch.contains("names Scratch[") && scratch.ends_with("and its lane has [0..600]"), "{scratch}");
    let rounds = refused(|plan| plan.lanes[0].sizes.rounds = u32::MAX);
    assert!(rounds.contains("more than can be counted"), "{rounds}");
    let user = refused(|plan| plan.spec.windows = Windows::None);
    assert!(user.ends_with("and the plan has no windows"), "{user}");
    let slots = Plan::build(&base(Collective::AllReduce, Algorithm::Ring, Windows::None)).expect("a plan");
    let mut long = slots;
    long.lanes[0].sizes.piece = Elements(101);
    let long = fits(&long).expect_err("no slot holds it").to_string();
    assert!(long.ends_with("sends 101 elements at once, and a slot holds 100"), "{long}");
}

/// Numbers that look random and are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        let at = self.below(u64::try_from(items.len()).expect("few items"));
        items[usize::try_from(at).expect("few items")]
    }
}

/// Ranks dealt to hosts in any order and number, sizes without a pattern.
fn thrown(dice: &mut Dice) -> Spec {
    let planned: Vec<Collective> =
        Collective::ALL.iter().copied().filter(|collective| !algorithms(*collective).is_empty()).collect();
    let collective = dice.pick(&planned);
    let size = u32::try_from(dice.below(12) + 1).expect("a small world");
    let mut ranks: Vec<Rank> = (0..size).map(Rank::new).collect();
    let mut hosts = vec![Vec::new(); usize::try_from(dice.below(4) + 1).expect("few hosts")];
    while !ranks.is_empty() {
        let rank = dice.pick(&ranks);
        ranks.retain(|other| *other != rank);
        let host = dice.below(u64::try_from(hosts.len()).expect("few hosts"));
        hosts[usize::try_from(host).expect("few hosts")].push(rank);
    }
    hosts.retain(|host| !host.is_empty());
    let most = usize::try_from(dice.below(8) + 1).expect("a few ranks");
    let layout = Layout::of_hosts(&hosts).expect("each rank once").with_teams_of(most);
    let world = u64::from(size);
    let slot = dice.below(40) + 1;
    let count = Elements(dice.below(slot * 30));
    let vector = matches!(collective, Collective::AllGatherV | Collective::ReduceScatterV);
    let counts = (0..size).map(|_| Elements(dice.below(3) * dice.below(slot * 9))).collect();
    Spec {
        collective,
        world: World { rank: Rank::new(0), size },
        root: Rank::new(u32::try_from(dice.below(world)).expect("a small world")),
        count: if vector { Count::PerRank(counts) } else { Count::Each(count) },
        in_place: dice.below(2) == 1 && collective != Collective::AllToAll,
        algorithm: dice.pick(algorithms(collective)),
        protocol: Protocol::Simple,
        windows: dice.pick(&WINDOWS),
        layout: Arc::new(layout),
        limits: Limits {
            slot: Elements(slot),
            slots: u32::try_from(dice.below(7) + 2).expect("few slots"),
            scratch: Elements(world * 64 + dice.below(4000)),
            channels: u32::try_from(dice.below(4) + 1).expect("few channels"),
        },
    }
}

#[test]
fn specs_without_a_pattern_are_proved() {
    let mut dice = Dice(1);
    for _ in 0..if exhaustive() { 200_000 } else { 2_000 } {
        let spec = thrown(&mut dice);
        if let Err(flaw) = proof(&spec) {
            panic!("{flaw}\nin {spec:?}");
        }
    }
}

/// Turns each plan to the last set of its scratch.
fn turned(mut plans: Vec<Plan>) -> (Vec<Plan>, u64) {
    let ScratchSets { count, stride } = plans[0].scratch_sets();
    let shift = stride * (count - 1);
    for lane in plans.iter_mut().flat_map(|plan| &mut plan.lanes) {
        // Regions are counted from the beginning of the lane's part.
        let scratch = &mut lane.sizes.scratch;
        *scratch = scratch.start + shift..scratch.end + shift;
    }
    (plans, count)
}

#[test]
fn plans_are_right_in_the_last_set_of_scratch() {
    let mut dice = Dice(2);
    let mut most = 0;
    for _ in 0..500 {
        let spec = Spec { windows: Windows::Scratch, ..thrown(&mut dice) };
        let (plans, count) = turned(plans(&spec));
        most = most.max(count);
        if let Err(flaw) = prove(&plans) {
            panic!(
                "{flaw}
in {spec:?}, set {count}"
            );
        }
    }
    assert!(most > 10, "some of the plans leave room for many sets, not {most}");
}

#[test]
fn a_lane_keeps_to_its_scratch() {
    for spec in mapped_bases().into_iter().filter(|spec| spec.windows == Windows::Scratch) {
        let whole = plans(&spec);
        let narrowed =
            |plan: &mut Plan| plan.lanes[0].sizes.scratch.end = plan.lanes[0].sizes.scratch.end - Elements(1);
        let mut broken = whole.clone();
        broken.iter_mut().for_each(narrowed);
        let flaw = prove(&broken).expect_err("the last element is used").to_string();
        assert!(flaw.contains("and its lane has [0.."), "{flaw}");
        let mut broken = whole;
        narrowed(&mut broken[2]);
        let flaw = prove(&broken).expect_err("rank 2 would shift by another stride").to_string();
        assert_eq!(flaw, "rank 2 has other lanes (channel, rounds, piece, depth, scratch) than rank 0");
    }
}

/// The second lane's part of 548 elements is longer than its part of 608.
#[test]
fn a_lane_may_have_more_of_a_shorter_block() {
    let spec = Spec {
        count: Count::PerRank([608, 548, 0].map(Elements).to_vec()),
        limits: Limits { slot: Elements(36), slots: 3, scratch: Elements(3000), channels: 2 },
        ..base(Collective::AllGatherV, Algorithm::Direct, Windows::None)
    };
    proof(&spec).expect("all elements are there");
}

/// A spec to break: three ranks of one host, many rounds.
fn base(collective: Collective, algorithm: Algorithm, windows: Windows) -> Spec {
    Spec {
        collective,
        world: World { rank: Rank::new(0), size: 3 },
        root: Rank::new(1),
        count: Count::Each(Elements(2500)),
        in_place: false,
        algorithm,
        protocol: Protocol::Simple,
        windows,
        layout: layout(hosts_of(&[3])),
        limits: Limits { slot: Elements(100), slots: 4, scratch: Elements(9 * 70), channels: 1 },
    }
}

/// The steps of a plan's first lane.
fn steps_of(plan: &mut Plan) -> &mut Vec<Step> {
    Arc::make_mut(&mut plan.lanes[0].steps)
}

fn combine_of(lane: &mut Lane, index: usize) -> Option<&mut Combine> {
    match &mut Arc::make_mut(&mut lane.steps)[index].action {
        Action::Combine(combine) => Some(combine),
        Action::Enter { .. } | Action::Signal { .. } | Action::Wait { .. } => None,
    }
}

fn spans_of(combine: &mut Combine) -> impl Iterator<Item = &mut Span> {
    combine.sources.iter_mut().chain(&mut combine.targets).filter_map(|operand| match operand {
        Operand::Local(span) | Operand::Window(_, span) => Some(span),
        Operand::Slot(_) => None,
    })
}

/// All collectives through windows, each big enough to go round its scratch many times.
fn mapped_bases() -> Vec<Spec> {
    use Collective::{AllGather, AllReduce, AllToAll, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    let collectives = [AllReduce, AllGather, ReduceScatter, Broadcast, Reduce, Gather, Scatter, AllToAll];
    let specs = collectives.into_iter().flat_map(|collective| {
        [Windows::Scratch, Windows::User, Windows::Symmetric]
            .map(|windows| base(collective, Algorithm::Direct, windows))
    });
    specs.collect()
}
