//! The correctness matrix: every collective × type × operator × size × ranks, in place and out of place, compared bit
//! by bit.
//!
//! Ranks are threads. Inputs, expected results and guards are those of `rsccl perf -c`. A failure prints the seed,
//! which `RSCCL_TEST_SEED` sets.

mod matrix {
    mod averages;
    mod devices;
    mod extremes;
    mod faults;
    mod float_modes;
    mod floats;
    #[cfg(feature = "cuda")]
    mod gpu;
    #[cfg(feature = "cuda")]
    mod gpu_between;
    #[cfg(feature = "cuda")]
    mod gpu_floats;
    #[cfg(feature = "cuda")]
    mod gpu_lines;
    #[cfg(feature = "cuda")]
    mod gpu_messages;
    #[cfg(feature = "cuda")]
    mod gpu_processes;
    #[cfg(feature = "cuda")]
    mod gpu_traffic;
    #[cfg(feature = "cuda")]
    mod gpu_traps;
    #[cfg(feature = "cuda")]
    mod gpu_windows;
    mod layouts;
    mod mismatches;
    mod registered;
    mod rounding;
}

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::LazyLock;
use std::time::Duration;

use rsccl::internals::plan;
use rsccl::types::Algorithm;
use rsccl::{Communicator, Config, DataType, ReduceOp, Result, local};
use testing::case::{Case, Placed, every_program};
use testing::random::{self, Luck};
use testing::verify::{Op, Placement, Program, RankBuffers, Sample, Shape, Source, Tables, with_type};

/// Runs all cases as one rank, and returns what was wrong.
fn run_rank(comm: Communicator, kind: &Placed, cases: &[Case], seed: u64) -> Result<Vec<String>> {
    let mut failures = Vec::new();
    for case in cases {
        match case.run(&comm, kind, seed.wrapping_add(number(&case.to_string()))) {
            Ok(None) => {}
            Ok(Some(wrong)) => failures.push(format!("{case}: {wrong}")),
            Err(error) => {
                // The other ranks cannot go on without this rank, so they end too.
                failures.push(format!("{case}: {error}"));
                return Ok(failures);
            }
        }
    }
    comm.finalize()?;
    Ok(failures)
}

/// A number of the words: a case has the same inputs whichever others are tried beside it.
fn number(words: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    words.hash(&mut hasher);
    hasher.finish()
}

/// Runs all cases on one communicator.
fn run(ranks: u32, cases: &[Case]) {
    run_with(ranks, Config::default(), cases);
}

/// [`run`] with a configuration.
fn run_with(ranks: u32, config: Config, cases: &[Case]) {
    let (seed, config) = (seed(), config.with_timeout(TIMEOUT));
    let name = format!("{ranks} ranks, {:?}, seed {seed}", config.algo);
    let cases = &*tried(cases, &name);
    let failures = local::run_with(ranks, &config, |comm| run_rank(comm, &Placed::Slices, cases, seed));
    judge(&name, failures.expect("ranks start and end").concat());
}

/// Runs all cases on ranks that act as if they were on several hosts: `hosts` has the host of each rank.
fn run_on_hosts(hosts: &[u32], config: &Config, cases: &[Case]) {
    let seed = seed();
    let name = format!("hosts {hosts:?}, {:?}, seed {seed}", config.algo);
    let config = config.clone().with_socket_interfaces("lo").with_timeout(TIMEOUT);
    let cases = &*tried(cases, &name);
    let failures = on_hosts(hosts, &config, |comm| run_rank(comm, &Placed::Slices, cases, seed));
    judge(&name, failures.expect("ranks start and end").concat());
}

/// What `body` returns on each of the ranks.
fn on_hosts<T: Send>(
    hosts: &[u32],
    config: &Config,
    body: impl Fn(Communicator) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let own = hosts.iter().map(|host| config.clone().with_host_id(format!("host {host}")));
    each_with(&own.collect::<Vec<_>>(), body)
}

/// What `body` returns on each of the ranks, which have these configurations.
fn each_with<T: Send>(configs: &[Config], body: impl Fn(Communicator) -> Result<T> + Sync) -> Result<Vec<T>> {
    let id = &Communicator::unique_id(&configs[0])?;
    let world = u32::try_from(configs.len()).expect("a few");
    let body = &body;
    std::thread::scope(|scope| {
        let join = |(rank, config)| scope.spawn(move || body(Communicator::init(id, rank, world, config)?));
        let threads: Vec<_> = (0..world).zip(configs).map(join).collect();
        threads.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
    })
}

fn judge(name: &str, failures: Vec<String>) {
    let shown: Vec<&str> = failures.iter().take(SHOWN_FAILURES).map(String::as_str).collect();
    assert!(failures.is_empty(), "{name}: {} wrong:\n{}", failures.len(), shown.join("\n"));
}

/// The cases that this run tries: all of a short list, and of a long one each with a chance of one in five, by a seed
/// that changes with each run and is printed. All of them with `RSCCL_EXHAUSTIVE=1`, with the same inputs: so a case that
/// fails does so there too.
fn tried<'a>(cases: &'a [Case], name: &str) -> Cow<'a, [Case]> {
    static SEED: LazyLock<u64> = LazyLock::new(|| random::changing_seed("matrix"));
    if cases.len() <= SHORT_LIST || is_exhaustive() {
        return Cow::Borrowed(cases);
    }
    let mut luck = Luck::new(&[*SEED, number(name)]);
    Cow::Owned(cases.iter().filter(|_| *luck.pick(&[true, false, false, false, false])).copied().collect())
}

fn is_exhaustive() -> bool {
    #![expect(clippy::disallowed_methods, reason = "what a test shall do is no configuration of the library")]
    std::env::var_os("RSCCL_EXHAUSTIVE").is_some()
}

fn seed() -> u64 {
    #![expect(clippy::disallowed_methods, reason = "the seed of a test is no configuration of the library")]
    std::env::var("RSCCL_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(USUAL_SEED)
}

/// Every operator on every type that it fits, by the collectives that reduce.
fn every_operator(sizes: &[usize]) -> Vec<Case> {
    let mut cases = Vec::new();
    for data_type in DataType::ALL.iter().copied() {
        for op in Op::ALL.iter().copied().filter(|op| op.fits(data_type)) {
            for program in Program::ALL.iter().copied().filter(|program| program.takes(op)) {
                for elements in sizes.iter().copied() {
                    let placement = if elements % 2 == 0 { Placement::InPlace } else { Placement::OutOfPlace };
                    cases.push(Case { program, data_type, op: Some(op), root: 0, elements, placement, skew: 1 });
                }
            }
        }
    }
    cases
}

/// Every program that `algorithm` does, with the filter that forces it.
fn every_program_by(algorithm: Algorithm, ranks: u32, sizes: &[usize]) -> (String, Vec<Case>) {
    let can = |program: Program| program.collective().is_some_and(|all| plan::algorithms(all).contains(&algorithm));
    let programs = Program::ALL.iter().copied().filter(|program| can(*program));
    let forced = programs.filter_map(Program::collective).map(|name| format!("{name}:{algorithm}"));
    let mut cases = every_program(ranks, sizes, SLOT_KINDS);
    cases.retain(|case| can(case.program));
    (forced.collect::<Vec<_>>().join(";"), cases)
}

/// None, one, fewer than ranks, odd, and what takes the windows.
const SIZES: &[usize] = &[0, 1, 5, 1_003, 20_011];
/// A type of each width, each operator once or more.
const KINDS: &[(DataType, Op)] = &[
    (DataType::F32, Op::Sum),
    (DataType::F64, Op::Prod),
    (DataType::U8, Op::BitXor),
    (DataType::I64, Op::Min),
    (DataType::F16, Op::Avg),
    (DataType::BF16, Op::MulSum),
];

#[test]
fn one_rank() {
    run(1, &every_program(1, SIZES, KINDS));
}

#[test]
fn two_ranks() {
    run(2, &every_program(2, SIZES, KINDS));
}

#[test]
fn three_ranks() {
    run(3, &every_program(3, SIZES, KINDS));
}

#[test]
fn four_ranks() {
    run(4, &every_program(4, SIZES, KINDS));
}

#[test]
fn seven_ranks() {
    run(7, &every_program(7, SIZES, &KINDS[..3]));
}

#[test]
fn eight_ranks() {
    run(8, &every_program(8, SIZES, &KINDS[3..]));
}

#[test]
fn large_buffers() {
    // Beyond the scratch of a rank, and in many rounds of slots.
    run(2, &every_program(2, &[3_000_017], &KINDS[..1]));
    run(3, &every_program(3, &[1_500_007], &KINDS[..1]));
    run(8, &every_program(8, &[400_009], &KINDS[..1]));
}

#[test]
fn every_operator_on_every_type() {
    for ranks in [2, 3, 8] {
        run(ranks, &every_operator(&[131, 9_000]));
    }
}

#[test]
fn more_ranks_than_a_small_float_can_add_up() {
    run(24, &every_operator(&[97]));
}

#[test]
fn shared_memory_between_threads() {
    for ranks in [2, 3, 8] {
        let config = Config::default().with_p2p_disable(true).with_cma_force(true);
        run_with(ranks, config.clone(), &every_program(ranks, SIZES, SLOT_KINDS));
        run_with(ranks, config.clone(), &every_program(ranks, &[700_001], &SLOT_KINDS[..1]));
        // Once without reading in place, which the lines above do.
        run_with(ranks, config.with_cma_disable(true), &every_program(ranks, &[20_011], &SLOT_KINDS[..1]));
    }
}

/// Each algorithm forced, at every number of ranks. Inside a host Direct goes through windows, small calls too, and the
/// others through slots; over sockets all go through slots.
fn every_algorithm(config: &Config) {
    for ranks in [1, 2, 3, 4, 7, 8] {
        for algorithm in Algorithm::ALL.iter().copied() {
            let (forced, cases) = every_program_by(algorithm, ranks, slot_sizes(ranks));
            run_with(ranks, config.clone().with_algo(forced).with_proto("Simple"), &cases);
        }
    }
}

#[test]
fn every_algorithm_between_threads() {
    every_algorithm(&Config::default());
}

#[test]
fn every_algorithm_through_shared_memory() {
    every_algorithm(&Config::default().with_p2p_disable(true));
}

#[test]
fn every_algorithm_over_sockets() {
    every_algorithm(&Config::default().with_p2p_disable(true).with_shm_disable(true));
}

/// Regression: from the 65th rank on, direct reductions over slots did not scale a rank's own input.
#[test]
fn more_ranks_than_a_word_has_bits() {
    let mut cases = every_program(66, &[1, 131], MANY_KINDS);
    cases.retain(|case| case.program.reduces());
    let config = Config::default().with_reproducible(true);
    run_with(66, config.clone(), &cases);
    let uneven: Vec<u32> = (0..66).map(|rank| u32::from(rank == 65)).collect();
    run_on_hosts(&uneven, &config, &cases);
}

/// More ranks of a host than work with each other at once: flat slots in teams, and a hierarchy of teams.
#[test]
fn hosts_of_many_ranks() {
    for ranks in [66, 96] {
        run(ranks, &every_program(ranks, &[5], &MANY_KINDS[..1]));
        let shared = Config::default().with_p2p_disable(true).with_proto("Simple");
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::Direct] {
            let (forced, mut cases) = every_program_by(algorithm, ranks, &[131]);
            cases.retain(|case| case.placement == Placement::OutOfPlace && case.root == 0);
            run_with(ranks, shared.clone().with_algo(forced), &cases);
        }
    }
    // A host that is cut, and one whose only rank has the only seat.
    let uneven: Vec<u32> = (0..66).map(|rank| u32::from(rank == 65)).collect();
    run_on_hosts(&uneven, &Config::default(), &every_program(66, &[5], &MANY_KINDS[..1]));
}

#[test]
fn messages_over_sockets() {
    let config = Config::default().with_p2p_disable(true).with_shm_disable(true);
    let mut cases = every_program(3, SLOT_SIZES, SLOT_KINDS);
    cases.retain(|case| case.program.collective().is_none());
    run_with(3, config, &cases);
}

/// The documented room of a connection: the receiver comes only once all sends have returned. Over sockets that is what
/// any system's buffers take.
#[test]
fn messages_that_find_room_do_not_wait_for_their_receiver() {
    const EIGHTH: usize = 128 << 10;
    let over_sockets = Config::default().with_p2p_disable(true).with_shm_disable(true);
    let in_memory =
        [vec![8 * EIGHTH], vec![EIGHTH; 8], vec![EIGHTH - 1; 8], vec![33_001; 8], vec![9 << 10; 8], vec![1; 8]];
    let cases = in_memory.map(|lengths| (Config::default(), lengths)).into_iter();
    for (config, lengths) in cases.chain([(over_sockets, vec![16 << 10])]) {
        let (returned, has_returned) = std::sync::mpsc::channel();
        let has_returned = std::sync::Mutex::new(has_returned);
        let sent: Vec<u8> = (0..8 * EIGHTH + 8).map(|at| u8::try_from(at % 251).expect("below 251")).collect();
        let body = |comm: Communicator| -> Result<()> {
            let mut got = vec![0; sent.len()];
            let places = lengths.iter().enumerate().map(|(at, length)| at..at + length);
            if comm.rank() == 0 {
                comm.send(&sent[..1], 1)?;
                places.clone().try_for_each(|place| comm.send(&sent[place], 1))?;
                returned.send(()).expect("rank 1 is there");
            } else {
                comm.recv(&mut got[..1], 0)?;
                has_returned.lock().expect("one rank").recv_timeout(TIMEOUT).expect("the sends return first");
                for place in places {
                    comm.recv(&mut got[place.clone()], 0)?;
                    assert!(got[place.clone()] == sent[place.clone()], "{place:?} of {lengths:?}");
                }
            }
            comm.finalize()
        };
        each_with(&[config.clone(), config], body).unwrap();
    }
}

/// Over sockets a peer takes a message in while its own send waits for room, and while it sets up the connections of
/// its first barrier, to which the sender has yet to come. The system's buffers hold little, so that somebody must.
#[test]
fn a_peer_that_waits_takes_in_what_the_room_of_a_socket_connection_holds() {
    const ROOM: usize = 4 << 20;
    const SYSTEM: u64 = 64 << 10;
    let config = Config::default().with_p2p_disable(true).with_shm_disable(true).with_timeout(TIMEOUT);
    let config = config.with_socket_send_bytes(SYSTEM).with_socket_receive_bytes(SYSTEM);
    let of_rank = |rank: u32| -> Vec<u8> {
        (0..ROOM).map(|at| u8::try_from((at + rank as usize) % 251).expect("below 251")).collect()
    };
    let body = |comm: Communicator| -> Result<()> {
        let (sent, mut got, peer) = (of_rank(comm.rank()), vec![0; ROOM], 1 - comm.rank());
        comm.send(&sent, peer)?;
        comm.recv(&mut got, peer)?;
        assert!(got == of_rank(peer), "rank {}", comm.rank());
        if comm.rank() == 0 {
            comm.send(&sent, 1)?;
            comm.barrier()?;
        } else {
            comm.barrier()?;
            comm.recv(&mut got, 0)?;
            assert!(got == of_rank(0), "after the barrier");
        }
        comm.finalize()
    };
    each_with(&[config.clone(), config], body).unwrap();
}

/// The same of a rank that waits for one of its own host only, which waits for the sender.
#[test]
fn a_peer_that_waits_for_its_own_host_takes_in_what_a_socket_connection_holds() {
    const ROOM: usize = 4 << 20;
    const SYSTEM: u64 = 64 << 10;
    let config = Config::default().with_socket_send_bytes(SYSTEM).with_socket_receive_bytes(SYSTEM);
    let config = config.with_socket_interfaces("lo").with_timeout(Duration::from_secs(10));
    let body = |comm: Communicator| -> Result<()> {
        let (mut values, mut long, mut word) = (vec![comm.rank(); 100_000], vec![comm.rank(); ROOM / 4], [0_u32]);
        comm.all_reduce_in_place(&mut values, ReduceOp::Max)?;
        // Connections are opened.
        match comm.rank() {
            0 => comm.recv(&mut word, 2)?,
            1 => comm.recv(&mut word, 2)?,
            _ => (0..2).try_for_each(|peer| comm.send(&[7_u32], peer))?,
        }
        match comm.rank() {
            0 => {
                comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
                comm.recv(&mut long, 2)?;
                assert!(long.iter().all(|value| *value == 2));
            }
            1 => {
                comm.recv(&mut word, 2)?;
                comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
            }
            _ => {
                comm.send(&long, 0)?;
                comm.send(&[7_u32], 1)?;
                comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
            }
        }
        assert!(values.iter().all(|value| *value == 6), "rank {}", comm.rank());
        comm.finalize()
    };
    on_hosts(&[0, 0, 1], &config, body).unwrap();
}

#[test]
fn several_hosts() {
    let worlds: [&[u32]; 4] = [&[0, 0, 1, 1], &[0, 1, 0, 1, 2, 2], &[0, 0, 1], &[0, 1, 1, 1, 0, 2]];
    for hosts in worlds {
        let ranks = u32::try_from(hosts.len()).expect("a few");
        run_on_hosts(hosts, &Config::default(), &every_program(ranks, slot_sizes(ranks), SLOT_KINDS));
        for algorithm in [Algorithm::Ring, Algorithm::Tree] {
            let (forced, cases) = every_program_by(algorithm, ranks, &[1_003, 40_009]);
            run_on_hosts(hosts, &Config::default().with_algo(forced), &cases);
        }
    }
}

/// Programs of random steps on ranks that are threads, with settings that follow from the seed. `test` is the name of
/// the test that runs them.
fn random_programs(test: &str, worlds: &[u32], config: &Config) {
    random_programs_by(test, worlds, |ranks, seed, play| {
        let config = random::settings(config.clone().with_timeout(TIMEOUT), seed)?;
        local::run_with(ranks, &config, |comm| Ok(play(comm)))
    });
}

/// Runs a program on each world by `start`, which gives each rank its communicator.
fn random_programs_by(
    test: &str,
    worlds: &[u32],
    start: impl Fn(u32, u64, &(dyn Fn(Communicator) -> Played + Sync)) -> Result<Vec<Played>>,
) {
    let (base, steps) = (random::seed(), random::steps());
    for ranks in worlds.iter().copied() {
        let again =
            format!("RSCCL_TEST_SEED={base} RSCCL_RANDOM_STEPS={steps} cargo test --features cli --test matrix {test}");
        let seed = base ^ u64::from(ranks);
        let script = random::Script { seed, steps, strict: true, tell: || () };
        let played = start(ranks, seed, &|comm| random::run(comm, script));
        let played = played.unwrap_or_else(|error| panic!("{again}\n{ranks} ranks: {error}"));
        let wrong: Vec<String> = played.into_iter().filter_map(Played::err).collect();
        assert!(wrong.is_empty(), "{again}\n{ranks} ranks:\n{}", wrong.join("\n"));
    }
}

/// How a rank ended a random program.
type Played = std::result::Result<(), String>;

#[test]
fn random_programs_of_threads() {
    random_programs("random_programs_of_threads", &[1, 2, 3, 5, 8], &Config::default());
}

#[test]
fn random_programs_through_shared_memory() {
    random_programs("random_programs_through_shared_memory", &[2, 3, 5, 8], &Config::default().with_p2p_disable(true));
}

#[test]
fn random_programs_over_sockets() {
    let config = Config::default().with_p2p_disable(true).with_shm_disable(true);
    random_programs("random_programs_over_sockets", &[2, 3, 5], &config);
}

#[test]
fn random_programs_on_several_hosts() {
    random_programs_by("random_programs_on_several_hosts", &[4, 5], |ranks, seed, play| {
        let config = Config::default().with_socket_interfaces("lo").with_timeout(TIMEOUT);
        let config = random::settings(config, seed)?;
        on_hosts(&(0..ranks).map(|rank| rank / 2).collect::<Vec<_>>(), &config, |comm| Ok(play(comm)))
    });
}

#[test]
fn the_check_finds_what_is_wrong() {
    let shape = Shape::new(Program::AllReduce, (1, 3), 0, 100_000).expect("a rank of three");
    let tables = Tables::<f32>::new(1, 3, Some(Op::Sum), shape.indices());
    let mut buffers = RankBuffers::new(&shape, Placement::OutOfPlace, 0).expect("memory");
    let wrong = |buffers: &RankBuffers<f32>| buffers.check(&shape, &tables).expect("a placement that there is");
    buffers.fill(&shape, &tables).expect("a placement that there is");
    assert_eq!(wrong(&buffers).elements, 100_000, "nothing was done");
    tables.fill(Source::Reduced, 0, buffers.recv.slice_mut());
    assert_eq!(wrong(&buffers).elements, 0);
    buffers.recv.slice_mut()[99_999] = f32::INFINITY;
    buffers.send.slice_mut()[7] = f32::NAN;
    let found = wrong(&buffers);
    assert_eq!(found.elements, 2);
    assert!(found.first.is_some_and(|first| first.contains("rank 1 of 3: all_reduce element 99999: expected")));
    tables.fill(Source::Reduced, 1, buffers.recv.slice_mut());
    assert!(wrong(&buffers).elements > 90_000, "all is one element off");
}

#[test]
fn inputs_are_exact_in_every_order() {
    fn exact<T: Sample>(op: Op, world: u32) {
        let tables = Tables::<T>::new(7, world, Some(op), 500);
        for index in 0..500 {
            let all = (0..world).rev().map(|rank| tables.at(Source::Of(rank), index));
            // Each partial result is rounded to the type, as a ring passes it on.
            let folded = all.reduce(|one, other| T::reduce(op, [one, other].into_iter())).expect("at least one rank");
            let expected = tables.at(Source::Reduced, index);
            assert_eq!(folded.bits(), expected.bits(), "{} {}, {world} ranks, index {index}", T::DATA_TYPE, op.name());
        }
    }
    // Averages and scaled sums are sums of the same kind, and say so less simply.
    let ops = Op::ALL.iter().copied().filter(|op| !matches!(op, Op::Avg | Op::MulSum));
    for op in ops {
        for data_type in DataType::ALL.iter().copied().filter(|data_type| op.fits(*data_type)) {
            for world in [1, 2, 3, 8, 13, 64, 200] {
                with_type!(data_type, T => exact::<T>(op, world), else panic!("a type that this test does not know"));
            }
        }
    }
}

/// Of each width one that rounds what it passes on, and one with a scalar of each rank's own.
const SLOT_KINDS: &[(DataType, Op)] =
    &[(DataType::F32, Op::Sum), (DataType::F16, Op::Avg), (DataType::I64, Op::MulSum)];
/// What each rank scales for itself.
const MANY_KINDS: &[(DataType, Op)] = &[(DataType::F32, Op::MulSum), (DataType::I64, Op::MulSum)];
/// None, one, odd, and more than all slots of a connection hold.
const SLOT_SIZES: &[usize] = &[0, 1, 1_003, 300_007];

/// Many ranks on few processors move less.
fn slot_sizes(ranks: u32) -> &'static [usize] {
    if ranks < 4 { SLOT_SIZES } else { &[0, 1, 1_003, 40_009] }
}

/// A hang becomes an error that says who waits for whom.
const TIMEOUT: Duration = Duration::from_secs(60);
const USUAL_SEED: u64 = 20_260_101;
/// Cases that a run tries all of.
const SHORT_LIST: usize = 60;
const SHOWN_FAILURES: usize = 12;
