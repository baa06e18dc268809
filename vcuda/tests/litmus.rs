//! The memory model, by litmus tests: each runs under 1,000 seeds, with all threads in one process and with each in a
//! process of its own.
//!
//! What PTX allows and hardware shows must be reached; what PTX forbids must never be seen. A test is a few threads in
//! PTX (`%x`, `%y`, `%z` are addresses, `%r0` to `%r9` registers that end up in the results), each a block of its own on
//! some GPU, stepped in random turns. `WIDE` in a text is the least scope that holds all threads: `gpu` in one process,
//! `sys` in several, since a GPU's scope ends with the program. Processes take turns as blocks do, so that a seed gives the
//! same run each time.
//!
//! The last test breaks the model on purpose, one part at a time: some test of the forbidden must notice each.

mod flat;

use flat::{Flat, Parameters, config};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use vcuda::ptx::Module;
use vcuda::simt::{Block, GlobalMemory, GpuStores, Grid, ModuleGlobals, Mutation, Step};

const SEEDS: u64 = 1000;

/// Where the threads of a test run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum World {
    OneProcess,
    SeveralProcesses,
}

use World::{OneProcess, SeveralProcesses};

/// Runs each test in both worlds.
macro_rules! in_both_worlds {
    ($($test:ident)+) => {
        mod one_process {
            $(#[test] fn $test() { super::$test(super::OneProcess); })+
        }
        mod several_processes {
            $(#[test] fn $test() { super::$test(super::SeveralProcesses); })+
        }
    };
}

in_both_worlds! {
    messages_without_release_or_acquire_or_with_too_narrow_ones_arrive_late
    data_on_a_peer_and_flag_on_the_host_need_a_system_fence
    messages_with_right_scopes_arrive_whole
    one_thread_signals_for_its_block_after_a_barrier_only
    one_thread_acquires_for_its_block_by_a_barrier_only
    store_buffering_survives_all_but_sequentially_consistent_fences
    stores_of_two_threads_cross
    causality_through_a_third_thread
    a_relay_passes_on_what_it_has_seen
    one_address_has_one_order
    vectors_are_torn_and_doublewords_are_not
    atomic_operations_lose_nothing
    no_value_comes_from_nowhere
    lines_of_128_bytes_are_whole_where_the_path_says_so_only
    a_broken_model_is_noticed
}

/// A thread, or several that run the same text.
struct Actor {
    gpu: u32,
    threads: u32,
    text: String,
}

fn on(gpu: u32, text: impl Into<String>) -> Actor {
    Actor { gpu, threads: 1, text: text.into() }
}

/// What a run leaves: the registers of each actor's thread 0, and the words x and y.
struct Outcome {
    r: Vec<Vec<u32>>,
    x: u32,
    y: u32,
}

/// Where x, y and z lie: a GPU's memory, or the host's.
type Homes = [Option<u32>; 3];

const ONE_GPU: Homes = [Some(0); 3];

/// Where a test runs, and on which memory.
#[derive(Clone, Copy)]
struct Setting {
    world: World,
    homes: Homes,
    ll128: bool,
    mutation: Option<Mutation>,
}

fn in_memory(world: World, homes: Homes) -> Setting {
    Setting { world, homes, ll128: false, mutation: None }
}

fn text_of(actors: &[Actor], world: World) -> String {
    let mut text = ".version 8.0\n.target sm_80\n.address_size 64\n".to_owned();
    for (index, actor) in actors.iter().enumerate() {
        let parameters = ["x", "y", "z", "o"].map(|name| format!(".param .u64 p{name}")).join(", ");
        writeln!(
            text,
            ".visible .entry t{index}({parameters})\n{{\n.reg .b32 %r<40>;\n.reg .b64 %d<8>;\n.reg .pred %p<8>;"
        )
        .expect("a string");
        writeln!(text, ".reg .b64 %x, %y, %z, %o;\n.reg .b32 %t;\nmov.u32 %t, %tid.x;").expect("a string");
        for name in ["x", "y", "z", "o"] {
            writeln!(text, "ld.param.u64 %{name}, [p{name}];").expect("a string");
        }
        for register in 0..8 {
            writeln!(text, "mov.u32 %r{register}, 0;").expect("a string");
        }
        writeln!(text, "{}\nsetp.ne.u32 %p7, %t, 0;\n@%p7 ret;", actor.text).expect("a string");
        for register in 0..8 {
            writeln!(text, "st.global.u32 [%o+{}], %r{register};", 4 * register).expect("a string");
        }
        text.push_str("ret;\n}\n");
    }
    text.replace("WIDE", if world == OneProcess { "gpu" } else { "sys" })
}

/// The addresses of x, y, z and of each actor's results: the same in every process that asks.
fn allocate(memory: &Flat, homes: Homes, ll128: bool, gpus: &[u32]) -> ([u64; 3], Vec<u64>) {
    let words = homes.map(|home| memory.allocate_on(home, 512, ll128));
    (words, gpus.iter().map(|gpu| memory.allocate(Some(*gpu), 32)).collect())
}

/// What makes the blocks of a process.
struct Maker {
    module: Module,
    memory: Arc<Flat>,
    words: [u64; 3],
    out: Vec<u64>,
    stores: [Arc<GpuStores>; 2],
    mutation: Option<Mutation>,
}

impl Maker {
    fn block(&self, index: usize, gpu: u32, threads: u32, seed: u64) -> Block {
        let [x, y, z] = self.words;
        let parameters = Parameters::default().long(x).long(y).long(z).long(self.out[index]);
        let mut config = config(1, threads, parameters);
        (config.gpu, config.seed, config.weak) = (gpu, seed * 31 + index as u64, true);
        config.mutation = self.mutation;
        let function = Arc::clone(self.module.function(&format!("t{index}")).expect("every actor has one"));
        let globals = Arc::new(ModuleGlobals::default());
        let memory = Arc::clone(&self.memory) as Arc<dyn GlobalMemory>;
        let grid = Grid::new(function, &globals, config, memory, Arc::clone(&self.stores[gpu as usize]));
        Arc::new(grid.unwrap_or_else(|error| panic!("{error}"))).block([0, 0, 0], 0)
    }
}

fn parsed(text: &str) -> Module {
    Module::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn two_queues() -> [Arc<GpuStores>; 2] {
    [Arc::new(GpuStores::new()), Arc::new(GpuStores::new())]
}

/// Runs the actors under every seed; how often `seen` holds.
fn count(actors: &[Actor], setting: Setting, seen: impl Fn(&Outcome) -> bool) -> usize {
    let Setting { world, homes, ll128, mutation } = setting;
    let text = text_of(actors, world);
    let memory = Flat::new(true);
    let gpus: Vec<u32> = actors.iter().map(|actor| actor.gpu).collect();
    let (words, out) = allocate(&memory, homes, ll128, &gpus);
    let stores = two_queues();
    let maker = Maker { module: parsed(&text), memory: Arc::clone(&memory), words, out: out.clone(), stores, mutation };
    let mut workers = Vec::new();
    if world == SeveralProcesses {
        let all = (0..actors.len()).map(|index| Worker::start(&memory, &text, actors, index, setting));
        workers = all.collect();
    }
    let mut found = 0;
    for seed in 0..SEEDS {
        for address in words {
            memory.write(address, &[0; 512]);
        }
        match world {
            OneProcess => {
                let make = |(index, actor): (usize, &Actor)| maker.block(index, actor.gpu, actor.threads, seed);
                interleave(actors.iter().enumerate().map(make).collect(), seed, |block: &mut Block, budget| {
                    stepped(block, budget)
                });
            }
            SeveralProcesses => {
                workers.iter_mut().for_each(|worker| {
                    worker.ask(SEED, seed);
                });
                interleave(workers.iter_mut().collect(), seed, |worker, budget| worker.ask(STEP, budget.into()));
            }
        }
        let r = out.iter().map(|address| memory.words(*address, 8)).collect();
        let outcome = Outcome { r, x: memory.words(words[0], 1)[0], y: memory.words(words[1], 1)[0] };
        found += usize::from(seen(&outcome));
    }
    found
}

/// Steps a block; whether it is done.
fn stepped(block: &mut Block, budget: u32) -> bool {
    match block.step(budget) {
        Step::Done => true,
        Step::Fault(fault) => panic!("{fault}"),
        Step::Ran | Step::Sleeping { .. } => false,
    }
}

/// Steps blocks a few instructions at a time, in an order that the seed gives.
fn interleave<B>(mut blocks: Vec<B>, seed: u64, mut step: impl FnMut(&mut B, u32) -> bool) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..100_000 {
        if blocks.is_empty() {
            return;
        }
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = usize::try_from(state >> 33).expect("31 bits") % blocks.len();
        let budget = 1 + u32::try_from(state >> 59).expect("five bits") / 4;
        if step(&mut blocks[index], budget) {
            drop(blocks.swap_remove(index));
        }
    }
    panic!("seed {seed}: the test does not end");
}

/// A process that runs one actor. It is told a byte and 8 bytes of a number, and answers a byte: 1 where its block is done.
struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

/// Make the block of this seed.
const SEED: u8 = 0;
/// Step it by so many instructions.
const STEP: u8 = 1;
/// In the environment of a worker: what it needs, in words.
const WORKER: &str = "VCUDA_LITMUS_WORKER";
/// The line behind which its answers stand; what the test harness prints stands before.
const READY: &str = "the worker is ready";
/// No test takes longer, also on a busy machine: then a worker ends itself, and its test fails.
const WORKER_LIMIT_S: u32 = 200;

impl Worker {
    fn start(memory: &Flat, text: &str, actors: &[Actor], index: usize, setting: Setting) -> Self {
        let Setting { homes, ll128, mutation, .. } = setting;
        let homes = homes.map(|home| home.map_or("-".to_owned(), |gpu| gpu.to_string())).join(" ");
        let mutation = mutation.and_then(|mutation| MUTATIONS.iter().position(|known| *known == mutation));
        let mutation = mutation.map_or("-".to_owned(), |index| index.to_string());
        let gpus: Vec<String> = actors.iter().map(|actor| actor.gpu.to_string()).collect();
        let path = memory.path();
        let words = format!("{path} {index} {} {ll128} {mutation} {homes} {}", actors[index].threads, gpus.join(" "));
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["--exact", "worker", "--nocapture", "--test-threads=1"]).env(WORKER, words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let mut input = child.stdin.take().expect("a pipe");
        let mut output = BufReader::new(child.stdout.take().expect("a pipe"));
        input.write_all(&(text.len() as u64).to_le_bytes()).expect("the worker reads");
        input.write_all(text.as_bytes()).expect("the worker reads");
        let mut line = String::new();
        while !line.trim_end().ends_with(READY) {
            line.clear();
            assert!(output.read_line(&mut line).expect("text") > 0, "the worker has ended");
        }
        Self { child, input: Some(input), output }
    }

    fn ask(&mut self, what: u8, number: u64) -> bool {
        let mut message = [what; 9];
        message[1..].copy_from_slice(&number.to_le_bytes());
        self.input.as_mut().expect("until it is dropped").write_all(&message).expect("the worker reads");
        let mut answer = [0];
        self.output.read_exact(&mut answer).expect("the worker answers: what ended it stands above");
        answer == [1]
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It ends when its input does.
        drop(self.input.take());
        let mut rest = Vec::new();
        let read = self.output.read_to_end(&mut rest);
        let status = self.child.wait();
        if !std::thread::panicking() {
            read.expect("its output");
            assert!(status.expect("our child").success(), "{}", String::from_utf8_lossy(&rest));
        }
    }
}

/// A worker's part: another test of this file has started this process for it.
#[test]
fn worker() {
    let Ok(words) = std::env::var(WORKER) else { return };
    // SAFETY: it only asks for a signal, which ends the process.
    unsafe { libc::alarm(WORKER_LIMIT_S) };
    let words: Vec<&str> = words.split(' ').collect();
    let [path, index, threads, ll128, mutation, x, y, z, gpus @ ..] = &words[..] else { panic!("{words:?}") };
    let number = |word: &str| word.parse::<u32>().expect("a number");
    let home = |word: &str| if word == "-" { None } else { Some(number(word)) };
    let gpus: Vec<u32> = gpus.iter().map(|gpu| number(gpu)).collect();
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    let mut length = [0; 8];
    input.read_exact(&mut length).expect("the text's length");
    let mut text = vec![0; usize::try_from(u64::from_le_bytes(length)).expect("small")];
    input.read_exact(&mut text).expect("the text");
    let memory = Flat::opened(path);
    let (words, out) = allocate(&memory, [home(x), home(y), home(z)], *ll128 == "true", &gpus);
    let mutation = home(mutation).map(|index| MUTATIONS[index as usize]);
    let module = parsed(std::str::from_utf8(&text).expect("PTX is text"));
    let maker = Maker { module, memory, words, out, stores: two_queues(), mutation };
    let (index, threads) = (number(index) as usize, number(threads));
    let mut block = None;
    writeln!(output, "{READY}").expect("the test reads");
    let mut message = [0; 9];
    while input.read_exact(&mut message).is_ok() {
        let number = u64::from_le_bytes(message[1..].try_into().expect("eight"));
        let done = if message[0] == SEED {
            block = Some(maker.block(index, gpus[index], threads, number));
            false
        } else {
            stepped(block.as_mut().expect("a seed comes first"), u32::try_from(number).expect("small"))
        };
        output.write_all(&[u8::from(done)]).expect("the test reads");
        output.flush().expect("the test reads");
    }
}

#[track_caller]
fn reached(actors: &[Actor], setting: Setting, seen: impl Fn(&Outcome) -> bool) {
    let found = count(actors, setting, seen);
    assert!(found > 0, "PTX allows this, and no seed of {SEEDS} shows it");
}

#[track_caller]
fn never(actors: &[Actor], setting: Setting, seen: impl Fn(&Outcome) -> bool) {
    let found = count(actors, setting, seen);
    assert_eq!(found, 0, "PTX forbids this, and {found} of {SEEDS} seeds show it");
}

/// Message passing: the writer's and the reader's text around the flag `y`, data in `x`.
fn message(gpus: [u32; 2], writer: &str, reader: &str) -> [Actor; 2] {
    [on(gpus[0], writer), on(gpus[1], reader)]
}

fn stale(outcome: &Outcome) -> bool {
    outcome.r[1][0] == 1 && outcome.r[1][1] == 0
}

const SEND_WIDE: &str = "st.global.u32 [%x], 1;\nfence.acq_rel.WIDE;\nst.relaxed.WIDE.global.u32 [%y], 1;";
const SEND_GPU: &str = "st.global.u32 [%x], 1;\nfence.acq_rel.gpu;\nst.relaxed.gpu.global.u32 [%y], 1;";
const SEND_SYS: &str = "st.global.u32 [%x], 1;\nst.release.sys.global.u32 [%y], 1;";
const SEND_PLAIN: &str = "st.global.u32 [%x], 1;\nst.relaxed.sys.global.u32 [%y], 1;";
const SEND_CTA: &str = "st.global.u32 [%x], 1;\nfence.acq_rel.cta;\nst.relaxed.WIDE.global.u32 [%y], 1;";
const TAKE_WIDE: &str = "ld.relaxed.WIDE.global.u32 %r0, [%y];\nfence.acq_rel.WIDE;\nld.global.u32 %r1, [%x];";
const TAKE_GPU: &str = "ld.relaxed.gpu.global.u32 %r0, [%y];\nfence.acq_rel.gpu;\nld.global.u32 %r1, [%x];";
const TAKE_SYS: &str = "ld.acquire.sys.global.u32 %r0, [%y];\nld.global.u32 %r1, [%x];";
const TAKE_PLAIN: &str = "ld.relaxed.sys.global.u32 %r0, [%y];\nld.global.u32 %r1, [%x];";
const TAKE_CTA: &str = "ld.acquire.cta.global.u32 %r0, [%y];\nld.global.u32 %r1, [%x];";

fn messages_without_release_or_acquire_or_with_too_narrow_ones_arrive_late(world: World) {
    let here = in_memory(world, ONE_GPU);
    reached(&message([0, 0], SEND_PLAIN, TAKE_WIDE), here, stale);
    reached(&message([0, 0], SEND_WIDE, TAKE_PLAIN), here, stale);
    reached(&message([0, 0], SEND_CTA, TAKE_WIDE), here, stale);
    reached(&message([0, 0], SEND_WIDE, TAKE_CTA), here, stale);
    // Across GPUs a release of GPU scope is too narrow, on either side.
    let there = in_memory(world, [Some(1); 3]);
    reached(&message([0, 1], SEND_GPU, TAKE_SYS), there, stale);
    reached(&message([0, 1], SEND_SYS, TAKE_GPU), there, stale);
    if world == SeveralProcesses {
        // So is an acquire of GPU scope on one GPU, from another process.
        reached(&message([0, 0], SEND_SYS, TAKE_GPU), here, stale);
    }
}

fn data_on_a_peer_and_flag_on_the_host_need_a_system_fence(world: World) {
    let apart = in_memory(world, [Some(1), None, Some(1)]);
    let narrow = "st.global.u32 [%x], 1;\nfence.acq_rel.gpu;\nst.relaxed.sys.global.u32 [%y], 1;";
    reached(&message([0, 1], narrow, TAKE_SYS), apart, stale);
    never(&message([0, 1], SEND_SYS, TAKE_SYS), apart, stale);
}

fn messages_with_right_scopes_arrive_whole(world: World) {
    let here = in_memory(world, ONE_GPU);
    never(&message([0, 0], SEND_WIDE, TAKE_WIDE), here, stale);
    never(&message([0, 0], SEND_SYS, TAKE_SYS), here, stale);
    for homes in [[Some(0); 3], [Some(1); 3], [Some(1), Some(0), None], [Some(0), Some(1), None], [None, Some(1), None]]
    {
        never(&message([0, 1], SEND_SYS, TAKE_SYS), in_memory(world, homes), stale);
    }
    let exchange = "st.global.u32 [%x], 1;\natom.release.WIDE.global.exch.b32 %r7, [%y], 1;";
    let add = "atom.acquire.WIDE.global.add.u32 %r0, [%y], 0;\nld.global.u32 %r1, [%x];";
    never(&message([0, 0], exchange, add), here, stale);
    let fenced = "st.global.u32 [%x], 1;\nfence.acq_rel.sys;\nred.relaxed.sys.global.add.u32 [%y], 1;";
    never(&message([0, 1], fenced, TAKE_SYS), in_memory(world, [Some(1), Some(0), None]), stale);
}

/// 64 threads store, one of them signals.
fn block_signals(barrier: &str) -> [Actor; 2] {
    let text = format!(
        "mul.wide.u32 %d0, %t, 4;\nadd.s64 %d1, %x, %d0;\nst.global.u32 [%d1], 1;\n{barrier}\nsetp.ne.u32 %p0, %t, 0;\n@%p0 ret;\nfence.acq_rel.WIDE;\nst.relaxed.WIDE.global.u32 [%y], 1;"
    );
    let reader = "ld.acquire.WIDE.global.u32 %r0, [%y];\nld.global.u32 %r1, [%x+252];";
    [Actor { gpu: 0, threads: 64, text }, on(0, reader)]
}

fn one_thread_signals_for_its_block_after_a_barrier_only(world: World) {
    let here = in_memory(world, ONE_GPU);
    reached(&block_signals(""), here, stale);
    never(&block_signals("bar.sync 0;"), here, stale);
}

fn one_thread_acquires_for_its_block_by_a_barrier_only(world: World) {
    let here = in_memory(world, ONE_GPU);
    let reader = "setp.ne.u32 %p0, %t, 0;\n@%p0 bra L;\nld.acquire.WIDE.global.u32 %r2, [%y];\nst.volatile.shared.u32 [s], %r2;\nL:\nbar.sync 0;\nsetp.ne.u32 %p0, %t, 33;\n@%p0 ret;\nld.shared.u32 %r0, [s];\nld.global.u32 %r1, [%x];\nst.global.u32 [%o], %r0;\nst.global.u32 [%o+4], %r1;";
    let text = format!(".shared .align 4 .b32 s;\n{reader}");
    // A relaxed look and a barrier are no acquire: the bug of a forgotten fence.
    let relaxed = text.replace("ld.acquire", "ld.relaxed");
    never(&[on(0, SEND_WIDE), Actor { gpu: 0, threads: 64, text }], here, stale);
    reached(&[on(0, SEND_WIDE), Actor { gpu: 0, threads: 64, text: relaxed }], here, stale);
}

fn buffering(fence: &str) -> [Actor; 2] {
    let text = |first: &str, second: &str| {
        format!("st.relaxed.WIDE.global.u32 [%{first}], 1;\n{fence}\nld.relaxed.WIDE.global.u32 %r0, [%{second}];")
    };
    [on(0, text("x", "y")), on(0, text("y", "x"))]
}

fn both_old(outcome: &Outcome) -> bool {
    outcome.r[0][0] == 0 && outcome.r[1][0] == 0
}

fn store_buffering_survives_all_but_sequentially_consistent_fences(world: World) {
    let here = in_memory(world, ONE_GPU);
    reached(&buffering(""), here, both_old);
    reached(&buffering("fence.acq_rel.WIDE;"), here, both_old);
    never(&buffering("fence.sc.WIDE;"), here, both_old);
    never(&buffering(if world == OneProcess { "membar.gl;" } else { "membar.sys;" }), here, both_old);
    never(&buffering("fence.sc.sys;"), in_memory(world, [Some(1), Some(0), None]), both_old);
}

fn stores_of_two_threads_cross(world: World) {
    let here = in_memory(world, ONE_GPU);
    let text =
        |a: &str, b: &str| format!("st.relaxed.WIDE.global.u32 [%{a}], 1;\nst.relaxed.WIDE.global.u32 [%{b}], 2;");
    // 2+2W, S and R, all relaxed.
    reached(&[on(0, text("x", "y")), on(0, text("y", "x"))], here, |outcome| outcome.x == 1 && outcome.y == 1);
    let first = "st.relaxed.WIDE.global.u32 [%x], 2;\nst.relaxed.WIDE.global.u32 [%y], 1;";
    let second = "ld.relaxed.WIDE.global.u32 %r0, [%y];\nst.relaxed.WIDE.global.u32 [%x], 1;";
    reached(&[on(0, first), on(0, second)], here, |outcome| outcome.r[1][0] == 1 && outcome.x == 2);
    let first = "st.relaxed.WIDE.global.u32 [%x], 1;\nst.relaxed.WIDE.global.u32 [%y], 1;";
    let second = "st.relaxed.WIDE.global.u32 [%y], 2;\nld.relaxed.WIDE.global.u32 %r0, [%x];";
    reached(&[on(0, first), on(0, second)], here, |outcome| outcome.y == 2 && outcome.r[1][0] == 0);
}

/// Write-to-read causality: 0 stores x, 1 sees it and stores y, 2 sees that and looks at x.
fn causality(gpus: [u32; 3], scope: &str) -> [Actor; 3] {
    [
        on(gpus[0], "st.relaxed.sys.global.u32 [%x], 1;"),
        on(
            gpus[1],
            format!("ld.relaxed.sys.global.u32 %r0, [%x];\nfence.acq_rel.{scope};\nst.relaxed.sys.global.u32 [%y], 1;"),
        ),
        on(gpus[2], format!("ld.relaxed.sys.global.u32 %r0, [%y];\nfence.acq_rel.{scope};\nld.global.u32 %r1, [%x];")),
    ]
}

/// The last of three has seen the flag and not what it stands for.
fn broken(outcome: &Outcome) -> bool {
    outcome.r[1][0] == 1 && outcome.r[2][0] == 1 && outcome.r[2][1] == 0
}

fn causality_through_a_third_thread(world: World) {
    let here = in_memory(world, ONE_GPU);
    never(&causality([0, 0, 0], "WIDE"), here, broken);
    for homes in [[Some(0); 3], [Some(1); 3], [None; 3], [Some(0), Some(1), None]] {
        never(&causality([0, 0, 1], "sys"), in_memory(world, homes), broken);
        never(&causality([0, 1, 0], "sys"), in_memory(world, homes), broken);
    }
    reached(&causality([0, 0, 0], "cta"), here, broken);
    reached(&causality([0, 0, 1], "gpu"), in_memory(world, [Some(1); 3]), broken);
}

/// ISA2: 0 stores x and y, 1 sees y and stores z, 2 sees z and looks at x.
fn relay(gpus: [u32; 3], middle: &str) -> [Actor; 3] {
    [
        on(gpus[0], "st.global.u32 [%x], 1;\nfence.acq_rel.sys;\nst.relaxed.sys.global.u32 [%y], 1;"),
        on(
            gpus[1],
            format!(
                "ld.relaxed.sys.global.u32 %r0, [%y];\nfence.acq_rel.{middle};\nst.relaxed.sys.global.u32 [%z], 1;"
            ),
        ),
        on(gpus[2], "ld.relaxed.sys.global.u32 %r0, [%z];\nfence.acq_rel.sys;\nld.global.u32 %r1, [%x];"),
    ]
}

fn a_relay_passes_on_what_it_has_seen(world: World) {
    for homes in [[Some(0); 3], [Some(1); 3], [Some(0), Some(1), None], [None, Some(0), Some(1)]] {
        never(&relay([0, 0, 1], "sys"), in_memory(world, homes), broken);
        never(&relay([0, 1, 0], "sys"), in_memory(world, homes), broken);
    }
    // Stores reach all at once here, so a narrow relay shows where its own, earlier store is overtaken.
    let text = "st.relaxed.sys.global.u32 [%x], 1;\nld.relaxed.sys.global.u32 %r0, [%y];\nfence.acq_rel.cta;\nst.relaxed.sys.global.u32 [%z], 1;";
    let last = "ld.relaxed.sys.global.u32 %r0, [%z];\nfence.acq_rel.sys;\nld.global.u32 %r1, [%x];";
    let actors = [on(0, "st.relaxed.sys.global.u32 [%y], 1;"), on(0, text), on(1, last)];
    reached(&actors, in_memory(world, ONE_GPU), broken);
}

/// CoWW and CoWR.
const TWICE: &str = "st.global.u32 [%x], 1;\nst.global.u32 [%x], 2;\nld.global.u32 %r0, [%x];";

fn not_the_second(outcome: &Outcome) -> bool {
    outcome.x != 2 || outcome.r[0][0] != 2
}

/// CoRR: one stores, others on another GPU and on the same one look three times.
fn looks(second: &str) -> [Actor; 3] {
    let text =
        format!("ld.relaxed.sys.global.u32 %r0, [%x];\n{second}.global.u32 %r1, [%x];\n{second}.global.u32 %r2, [%x];");
    [on(0, "st.relaxed.sys.global.u32 [%x], 1;"), on(1, text.clone()), on(0, text)]
}

fn went_back(outcome: &Outcome) -> bool {
    (1..3).any(|actor| outcome.r[actor][0] == 1 && (outcome.r[actor][1] == 0 || outcome.r[actor][2] == 0))
}

fn one_address_has_one_order(world: World) {
    let here = in_memory(world, ONE_GPU);
    never(&[on(0, TWICE)], here, not_the_second);
    never(&[on(0, TWICE)], in_memory(world, [Some(1); 3]), not_the_second);
    // CoRW.
    let reads_then_writes = "ld.relaxed.WIDE.global.u32 %r0, [%x];\nst.relaxed.WIDE.global.u32 [%x], 2;";
    let actors = [on(0, "st.relaxed.WIDE.global.u32 [%x], 1;"), on(0, reads_then_writes)];
    never(&actors, here, |outcome| outcome.r[1][0] == 2 || (outcome.r[1][0] == 1 && outcome.x == 1));
    // Of strong loads, and with a weak one after a strong one.
    for second in ["ld.relaxed.sys", "ld"] {
        for homes in [[Some(0); 3], [Some(1); 3]] {
            never(&looks(second), in_memory(world, homes), went_back);
        }
    }
}

/// One stores 8 bytes, one on another GPU looks at them twice.
fn doublewords() -> [Actor; 2] {
    let reader = "ld.global.b64 %d0, [%x];\nmov.b64 {%r0, %r1}, %d0;\nld.relaxed.sys.global.b64 %d0, [%x];\nmov.b64 {%r2, %r3}, %d0;";
    [on(0, "mov.b64 %d0, 0x100000001;\nst.relaxed.sys.global.b64 [%x], %d0;"), on(1, reader)]
}

fn half(outcome: &Outcome) -> bool {
    outcome.r[1][0] != outcome.r[1][1] || outcome.r[1][2] != outcome.r[1][3]
}

fn vectors_are_torn_and_doublewords_are_not(world: World) {
    let here = in_memory(world, ONE_GPU);
    let writer = on(0, "mov.u32 %r8, 1;\nst.global.v4.u32 [%x], {%r8, %r8, %r8, %r8};");
    let reader = on(0, "ld.volatile.global.v4.u32 {%r0, %r1, %r2, %r3}, [%x];");
    reached(&[writer, reader], here, |outcome| outcome.r[1][0] != outcome.r[1][2]);
    never(&doublewords(), here, half);
}

/// 50 threads in three blocks on two GPUs add 3 each.
fn adders() -> [Actor; 3] {
    let text = "atom.relaxed.sys.global.add.u32 %r0, [%x], 1;\nred.relaxed.sys.global.add.u32 [%x], 1;\natom.global.sys.add.u32 %r1, [%x], 1;";
    [40, 3, 7].map(|threads| Actor { gpu: u32::from(threads == 7), threads, text: text.to_owned() })
}

fn lost(outcome: &Outcome) -> bool {
    outcome.x != 150
}

fn atomic_operations_lose_nothing(world: World) {
    never(&adders(), in_memory(world, [Some(0); 3]), lost);
    never(&adders(), in_memory(world, [None; 3]), lost);
}

fn no_value_comes_from_nowhere(world: World) {
    let text =
        |a: &str, b: &str| format!("ld.relaxed.WIDE.global.u32 %r0, [%{a}];\nst.relaxed.WIDE.global.u32 [%{b}], %r0;");
    let actors = [on(0, text("x", "y")), on(0, text("y", "x"))];
    never(&actors, in_memory(world, ONE_GPU), |outcome| outcome.x != 0 || outcome.y != 0);
}

/// A warp stores lines of 128 bytes, 16 bytes a lane; another loads them.
fn lines() -> [Actor; 2] {
    let store = "mov.b64 %d0, 0x100000001;\nand.b32 %r9, %t, 7;\nmul.wide.u32 %d1, %r9, 16;\nadd.s64 %d2, %x, %d1;\nst.volatile.global.v2.u64 [%d2], {%d0, %d0};";
    let load = "and.b32 %r9, %t, 7;\nmul.wide.u32 %d1, %r9, 16;\nadd.s64 %d2, %x, %d1;\nld.volatile.global.v2.u64 {%d3, %d4}, [%d2];\ncvt.u32.u64 %r10, %d3;\ncvt.u32.u64 %r11, %d4;\nadd.u32 %r12, %r10, %r11;\nsetp.ne.u32 %p0, %r10, 0;\nsetp.ne.u32 %p1, %r11, 0;\nvote.sync.ballot.b32 %r0, %p0, 0xff;\nvote.sync.ballot.b32 %r1, %p1, 0xff;";
    [Actor { gpu: 0, threads: 8, text: store.to_owned() }, Actor { gpu: 1, threads: 8, text: load.to_owned() }]
}

fn torn(outcome: &Outcome) -> bool {
    ![[0, 0], [0xff, 0xff]].contains(&[outcome.r[1][0], outcome.r[1][1]])
}

fn lines_of_128_bytes_are_whole_where_the_path_says_so_only(world: World) {
    let (here, there) = (in_memory(world, ONE_GPU), in_memory(world, [Some(1); 3]));
    reached(&lines(), there, torn);
    never(&lines(), Setting { ll128: true, ..there }, torn);
    never(&lines(), Setting { ll128: true, ..here }, torn);
}

const MUTATIONS: [Mutation; 9] = [
    Mutation::Release,
    Mutation::Acquire,
    Mutation::Sequential,
    Mutation::Barrier,
    Mutation::SameAddress,
    Mutation::LoadOrder,
    Mutation::Doubleword,
    Mutation::Line,
    Mutation::Atomic,
];

fn a_broken_model_is_noticed(world: World) {
    let here = in_memory(world, ONE_GPU);
    for mutation in MUTATIONS {
        let here = Setting { mutation: Some(mutation), ..here };
        let found = match mutation {
            Mutation::Release | Mutation::Acquire => count(&message([0, 0], SEND_WIDE, TAKE_WIDE), here, stale),
            Mutation::Sequential => count(&buffering("fence.sc.WIDE;"), here, both_old),
            Mutation::Barrier => count(&block_signals("bar.sync 0;"), here, stale),
            Mutation::SameAddress => count(&[on(0, TWICE)], here, not_the_second),
            Mutation::LoadOrder => count(&looks("ld"), here, went_back),
            Mutation::Doubleword => count(&doublewords(), here, half),
            Mutation::Line => count(&lines(), Setting { ll128: true, ..here }, torn),
            Mutation::Atomic => count(&adders(), here, lost),
        };
        assert!(found > 0, "{mutation:?}: no seed of {SEEDS} shows the forbidden outcome");
    }
}
