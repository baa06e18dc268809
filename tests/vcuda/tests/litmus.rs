//! The memory model, by litmus tests: each runs under 1,000 seeds.
//!
//! What PTX allows and hardware shows must be reached; what PTX forbids must never be seen. A test is a few threads in
//! PTX (`%x`, `%y`, `%z` are addresses, `%r0` to `%r9` registers that end up in the results), each a block of its own on
//! some GPU, stepped in random turns.

mod flat;

use flat::{Flat, Parameters, config};
use std::fmt::Write as _;
use std::sync::Arc;
use vcuda::ptx::Module;
use vcuda::simt::{GlobalMemory, GpuStores, Grid, ModuleGlobals, Step};

const SEEDS: u64 = 1000;

/// A thread, or several that run the same text.
struct Actor {
    gpu: u32,
    threads: u32,
    text: &'static str,
}

fn on(gpu: u32, text: &'static str) -> Actor {
    Actor { gpu, threads: 1, text }
}

/// What a run leaves: the registers of each actor's thread 0, and the words x, y, z.
struct Outcome {
    r: Vec<Vec<u32>>,
    x: u32,
    y: u32,
}

/// Where x, y and z lie: a GPU's memory, or the host's.
type Homes = [Option<u32>; 3];

const ONE_GPU: Homes = [Some(0); 3];

fn module(actors: &[Actor]) -> Module {
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
    Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs the actors under every seed; how often `seen` holds.
fn count(actors: &[Actor], homes: Homes, ll128: bool, seen: impl Fn(&Outcome) -> bool) -> usize {
    let module = module(actors);
    let memory = Flat::new(true);
    let [x, y, z] = homes.map(|home| memory.allocate_on(home, 512, ll128));
    let out: Vec<u64> = actors.iter().map(|actor| memory.allocate(Some(actor.gpu), 32)).collect();
    let stores = [Arc::new(GpuStores::new()), Arc::new(GpuStores::new())];
    let mut found = 0;
    for seed in 0..SEEDS {
        for address in [x, y, z] {
            memory.write(address, &[0; 512]);
        }
        let mut blocks = Vec::new();
        for (index, actor) in actors.iter().enumerate() {
            let parameters = Parameters::default().long(x).long(y).long(z).long(out[index]);
            let mut config = config(1, actor.threads, parameters);
            (config.gpu, config.seed, config.weak) = (actor.gpu, seed * 31 + index as u64, true);
            let function = Arc::clone(module.function(&format!("t{index}")).expect("made above"));
            let globals = Arc::new(ModuleGlobals::default());
            let memory = Arc::clone(&memory) as Arc<dyn GlobalMemory>;
            let grid = Grid::new(function, &globals, config, memory, Arc::clone(&stores[actor.gpu as usize]));
            blocks.push(Arc::new(grid.unwrap_or_else(|error| panic!("{error}"))).block([0, 0, 0], 0));
        }
        interleave(&mut blocks, seed);
        let r = out.iter().map(|address| memory.words(*address, 8)).collect();
        let outcome = Outcome { r, x: memory.words(x, 1)[0], y: memory.words(y, 1)[0] };
        found += usize::from(seen(&outcome));
    }
    found
}

/// Steps blocks a few instructions at a time, in an order that the seed gives.
fn interleave(blocks: &mut Vec<vcuda::simt::Block>, seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..100_000 {
        if blocks.is_empty() {
            return;
        }
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let index = usize::try_from(state >> 33).expect("31 bits") % blocks.len();
        let budget = 1 + u32::try_from(state >> 59).expect("five bits") / 4;
        match blocks[index].step(budget) {
            Step::Done => drop(blocks.swap_remove(index)),
            Step::Fault(fault) => panic!("{fault}"),
            Step::Ran | Step::Sleeping { .. } => {}
        }
    }
    panic!("seed {seed}: the test does not end");
}

fn reached(actors: &[Actor], homes: Homes, seen: impl Fn(&Outcome) -> bool) {
    let found = count(actors, homes, false, seen);
    assert!(found > 0, "PTX allows this, and no seed of {SEEDS} shows it");
}

fn never(actors: &[Actor], homes: Homes, seen: impl Fn(&Outcome) -> bool) {
    let found = count(actors, homes, false, seen);
    assert_eq!(found, 0, "PTX forbids this, and {found} of {SEEDS} seeds show it");
}

/// Message passing: the writer's and the reader's text around the flag `y`, data in `x`.
fn message(gpus: [u32; 2], writer: &'static str, reader: &'static str) -> [Actor; 2] {
    [on(gpus[0], writer), on(gpus[1], reader)]
}

fn stale(outcome: &Outcome) -> bool {
    outcome.r[1][0] == 1 && outcome.r[1][1] == 0
}

const SEND_GPU: &str = "st.global.u32 [%x], 1;\nfence.acq_rel.gpu;\nst.relaxed.gpu.global.u32 [%y], 1;";
const SEND_SYS: &str = "st.global.u32 [%x], 1;\nst.release.sys.global.u32 [%y], 1;";
const SEND_PLAIN: &str = "st.global.u32 [%x], 1;\nst.relaxed.sys.global.u32 [%y], 1;";
const SEND_CTA: &str = "st.global.u32 [%x], 1;\nfence.acq_rel.cta;\nst.relaxed.gpu.global.u32 [%y], 1;";
const TAKE_GPU: &str = "ld.relaxed.gpu.global.u32 %r0, [%y];\nfence.acq_rel.gpu;\nld.global.u32 %r1, [%x];";
const TAKE_SYS: &str = "ld.acquire.sys.global.u32 %r0, [%y];\nld.global.u32 %r1, [%x];";
const TAKE_PLAIN: &str = "ld.relaxed.sys.global.u32 %r0, [%y];\nld.global.u32 %r1, [%x];";
const TAKE_CTA: &str = "ld.acquire.cta.global.u32 %r0, [%y];\nld.global.u32 %r1, [%x];";

#[test]
fn messages_without_release_or_acquire_or_with_too_narrow_ones_arrive_late() {
    reached(&message([0, 0], SEND_PLAIN, TAKE_GPU), ONE_GPU, stale);
    reached(&message([0, 0], SEND_GPU, TAKE_PLAIN), ONE_GPU, stale);
    reached(&message([0, 0], SEND_CTA, TAKE_GPU), ONE_GPU, stale);
    reached(&message([0, 0], SEND_GPU, TAKE_CTA), ONE_GPU, stale);
    // Across GPUs a release of GPU scope is too narrow, on either side.
    reached(&message([0, 1], SEND_GPU, TAKE_SYS), [Some(1), Some(1), Some(1)], stale);
    reached(&message([0, 1], SEND_SYS, TAKE_GPU), [Some(1), Some(1), Some(1)], stale);
}

#[test]
fn data_on_a_peer_and_flag_on_the_host_need_a_system_fence() {
    let homes = [Some(1), None, Some(1)];
    let narrow = "st.global.u32 [%x], 1;\nfence.acq_rel.gpu;\nst.relaxed.sys.global.u32 [%y], 1;";
    reached(&message([0, 1], narrow, TAKE_SYS), homes, stale);
    never(&message([0, 1], SEND_SYS, TAKE_SYS), homes, stale);
}

#[test]
fn messages_with_right_scopes_arrive_whole() {
    never(&message([0, 0], SEND_GPU, TAKE_GPU), ONE_GPU, stale);
    never(&message([0, 0], SEND_SYS, TAKE_SYS), ONE_GPU, stale);
    for homes in [[Some(0); 3], [Some(1); 3], [Some(1), Some(0), None], [Some(0), Some(1), None], [None, Some(1), None]]
    {
        never(&message([0, 1], SEND_SYS, TAKE_SYS), homes, stale);
    }
    let exchange = "st.global.u32 [%x], 1;\natom.release.gpu.global.exch.b32 %r7, [%y], 1;";
    let add = "atom.acquire.gpu.global.add.u32 %r0, [%y], 0;\nld.global.u32 %r1, [%x];";
    never(&message([0, 0], exchange, add), ONE_GPU, stale);
    let fenced = "st.global.u32 [%x], 1;\nfence.acq_rel.sys;\nred.relaxed.sys.global.add.u32 [%y], 1;";
    never(&message([0, 1], fenced, TAKE_SYS), [Some(1), Some(0), None], stale);
}

/// 64 threads store, one of them signals.
fn block_signals(barrier: bool) -> [Actor; 2] {
    let text = if barrier {
        "mul.wide.u32 %d0, %t, 4;\nadd.s64 %d1, %x, %d0;\nst.global.u32 [%d1], 1;\nbar.sync 0;\nsetp.ne.u32 %p0, %t, 0;\n@%p0 ret;\nfence.acq_rel.gpu;\nst.relaxed.gpu.global.u32 [%y], 1;"
    } else {
        "mul.wide.u32 %d0, %t, 4;\nadd.s64 %d1, %x, %d0;\nst.global.u32 [%d1], 1;\nsetp.ne.u32 %p0, %t, 0;\n@%p0 ret;\nfence.acq_rel.gpu;\nst.relaxed.gpu.global.u32 [%y], 1;"
    };
    let reader = "ld.acquire.gpu.global.u32 %r0, [%y];\nld.global.u32 %r1, [%x+252];";
    [Actor { gpu: 0, threads: 64, text }, on(0, reader)]
}

#[test]
fn one_thread_signals_for_its_block_after_a_barrier_only() {
    reached(&block_signals(false), ONE_GPU, stale);
    never(&block_signals(true), ONE_GPU, stale);
}

#[test]
fn one_thread_acquires_for_its_block_by_a_barrier_only() {
    let reader = "setp.ne.u32 %p0, %t, 0;\n@%p0 bra L;\nld.acquire.gpu.global.u32 %r2, [%y];\nst.volatile.shared.u32 [s], %r2;\nL:\nbar.sync 0;\nsetp.ne.u32 %p0, %t, 33;\n@%p0 ret;\nld.shared.u32 %r0, [s];\nld.global.u32 %r1, [%x];\nst.global.u32 [%o], %r0;\nst.global.u32 [%o+4], %r1;";
    let text = Box::leak(format!(".shared .align 4 .b32 s;\n{reader}").into_boxed_str());
    let actors = [on(0, SEND_GPU), Actor { gpu: 0, threads: 64, text }];
    never(&actors, ONE_GPU, stale);
    // A relaxed look and a barrier are no acquire: the bug of a forgotten fence.
    let relaxed = Box::leak(text.replace("ld.acquire.gpu", "ld.relaxed.gpu").into_boxed_str());
    let actors = [on(0, SEND_GPU), Actor { gpu: 0, threads: 64, text: relaxed }];
    reached(&actors, ONE_GPU, stale);
}

fn buffering(fence: &str) -> [Actor; 2] {
    let text = |first: &str, second: &str| -> &'static str {
        Box::leak(
            format!("st.relaxed.gpu.global.u32 [%{first}], 1;\n{fence}\nld.relaxed.gpu.global.u32 %r0, [%{second}];")
                .into_boxed_str(),
        )
    };
    [on(0, text("x", "y")), on(0, text("y", "x"))]
}

#[test]
fn store_buffering_survives_all_but_sequentially_consistent_fences() {
    let both_old = |outcome: &Outcome| outcome.r[0][0] == 0 && outcome.r[1][0] == 0;
    reached(&buffering(""), ONE_GPU, both_old);
    reached(&buffering("fence.acq_rel.gpu;"), ONE_GPU, both_old);
    never(&buffering("fence.sc.gpu;"), ONE_GPU, both_old);
    never(&buffering("membar.gl;"), ONE_GPU, both_old);
    never(&buffering("fence.sc.sys;"), [Some(1), Some(0), None], both_old);
}

#[test]
fn stores_of_two_threads_cross() {
    let text = |a: &str, b: &str| -> &'static str {
        Box::leak(
            format!("st.relaxed.gpu.global.u32 [%{a}], 1;\nst.relaxed.gpu.global.u32 [%{b}], 2;").into_boxed_str(),
        )
    };
    // 2+2W, S and R, all relaxed.
    reached(&[on(0, text("x", "y")), on(0, text("y", "x"))], ONE_GPU, |outcome| outcome.x == 1 && outcome.y == 1);
    let first = "st.relaxed.gpu.global.u32 [%x], 2;\nst.relaxed.gpu.global.u32 [%y], 1;";
    let second = "ld.relaxed.gpu.global.u32 %r0, [%y];\nst.relaxed.gpu.global.u32 [%x], 1;";
    reached(&[on(0, first), on(0, second)], ONE_GPU, |outcome| outcome.r[1][0] == 1 && outcome.x == 2);
    let first = "st.relaxed.gpu.global.u32 [%x], 1;\nst.relaxed.gpu.global.u32 [%y], 1;";
    let second = "st.relaxed.gpu.global.u32 [%y], 2;\nld.relaxed.gpu.global.u32 %r0, [%x];";
    reached(&[on(0, first), on(0, second)], ONE_GPU, |outcome| outcome.y == 2 && outcome.r[1][0] == 0);
}

/// Write-to-read causality: 0 stores x, 1 sees it and stores y, 2 sees that and looks at x.
fn causality(gpus: [u32; 3], scope: &str) -> [Actor; 3] {
    let text = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    [
        on(gpus[0], "st.relaxed.sys.global.u32 [%x], 1;"),
        on(
            gpus[1],
            text(format!(
                "ld.relaxed.sys.global.u32 %r0, [%x];\nfence.acq_rel.{scope};\nst.relaxed.sys.global.u32 [%y], 1;"
            )),
        ),
        on(
            gpus[2],
            text(format!("ld.relaxed.sys.global.u32 %r0, [%y];\nfence.acq_rel.{scope};\nld.global.u32 %r1, [%x];")),
        ),
    ]
}

#[test]
fn causality_through_a_third_thread() {
    let broken = |outcome: &Outcome| outcome.r[1][0] == 1 && outcome.r[2][0] == 1 && outcome.r[2][1] == 0;
    never(&causality([0, 0, 0], "gpu"), ONE_GPU, broken);
    for homes in [[Some(0); 3], [Some(1); 3], [None; 3], [Some(0), Some(1), None]] {
        never(&causality([0, 0, 1], "sys"), homes, broken);
        never(&causality([0, 1, 0], "sys"), homes, broken);
    }
    reached(&causality([0, 0, 0], "cta"), ONE_GPU, broken);
    reached(&causality([0, 0, 1], "gpu"), [Some(1), Some(1), Some(1)], broken);
}

/// ISA2: 0 stores x and y, 1 sees y and stores z, 2 sees z and looks at x.
fn relay(gpus: [u32; 3], middle: &str) -> [Actor; 3] {
    let text = |text: String| -> &'static str { Box::leak(text.into_boxed_str()) };
    [
        on(gpus[0], "st.global.u32 [%x], 1;\nfence.acq_rel.sys;\nst.relaxed.sys.global.u32 [%y], 1;"),
        on(
            gpus[1],
            text(format!(
                "ld.relaxed.sys.global.u32 %r0, [%y];\nfence.acq_rel.{middle};\nst.relaxed.sys.global.u32 [%z], 1;"
            )),
        ),
        on(
            gpus[2],
            text("ld.relaxed.sys.global.u32 %r0, [%z];\nfence.acq_rel.sys;\nld.global.u32 %r1, [%x];".to_owned()),
        ),
    ]
}

#[test]
fn a_relay_passes_on_what_it_has_seen() {
    let broken = |outcome: &Outcome| outcome.r[1][0] == 1 && outcome.r[2][0] == 1 && outcome.r[2][1] == 0;
    for homes in [[Some(0); 3], [Some(1); 3], [Some(0), Some(1), None], [None, Some(0), Some(1)]] {
        never(&relay([0, 0, 1], "sys"), homes, broken);
        never(&relay([0, 1, 0], "sys"), homes, broken);
    }
    // Stores reach all at once here, so a narrow relay shows where its own, earlier store is overtaken.
    let text = "st.relaxed.sys.global.u32 [%x], 1;\nld.relaxed.sys.global.u32 %r0, [%y];\nfence.acq_rel.cta;\nst.relaxed.sys.global.u32 [%z], 1;";
    let last = "ld.relaxed.sys.global.u32 %r0, [%z];\nfence.acq_rel.sys;\nld.global.u32 %r1, [%x];";
    let actors = [on(0, "st.relaxed.sys.global.u32 [%y], 1;"), on(0, text), on(1, last)];
    reached(&actors, ONE_GPU, |outcome| outcome.r[1][0] == 1 && outcome.r[2][0] == 1 && outcome.r[2][1] == 0);
}

#[test]
fn one_address_has_one_order() {
    // CoWW, CoWR, CoRW.
    let twice = "st.global.u32 [%x], 1;\nst.global.u32 [%x], 2;\nld.global.u32 %r0, [%x];";
    never(&[on(0, twice)], ONE_GPU, |outcome| outcome.x != 2 || outcome.r[0][0] != 2);
    never(&[on(0, twice)], [Some(1); 3], |outcome| outcome.x != 2 || outcome.r[0][0] != 2);
    let reads_then_writes = "ld.relaxed.gpu.global.u32 %r0, [%x];\nst.relaxed.gpu.global.u32 [%x], 2;";
    let actors = [on(0, "st.relaxed.gpu.global.u32 [%x], 1;"), on(0, reads_then_writes)];
    never(&actors, ONE_GPU, |outcome| outcome.r[1][0] == 2 || (outcome.r[1][0] == 1 && outcome.x == 1));
    // CoRR, of strong loads and with a weak one after a strong one.
    for second in ["ld.relaxed.sys", "ld"] {
        let text = format!(
            "ld.relaxed.sys.global.u32 %r0, [%x];\n{second}.global.u32 %r1, [%x];\n{second}.global.u32 %r2, [%x];"
        );
        let text: &'static str = Box::leak(text.into_boxed_str());
        for homes in [[Some(0); 3], [Some(1); 3]] {
            let actors = [on(0, "st.relaxed.sys.global.u32 [%x], 1;"), on(1, text), on(0, text)];
            never(&actors, homes, |outcome| {
                (1..3).any(|actor| outcome.r[actor][0] == 1 && (outcome.r[actor][1] == 0 || outcome.r[actor][2] == 0))
            });
        }
    }
}

#[test]
fn vectors_are_torn_and_doublewords_are_not() {
    let store = "mov.u32 %r8, 1;\nst.relaxed.gpu.global.v4.u32 [%x], {%r8, %r8, %r8, %r8};".replace(".relaxed.gpu", "");
    let writer = on(0, Box::leak(store.into_boxed_str()));
    let reader = on(0, "ld.volatile.global.v4.u32 {%r0, %r1, %r2, %r3}, [%x];");
    reached(&[writer, reader], ONE_GPU, |outcome| outcome.r[1][0] != outcome.r[1][2]);
    let writer = on(0, "mov.b64 %d0, 0x100000001;\nst.relaxed.sys.global.b64 [%x], %d0;");
    let reader = "ld.global.b64 %d0, [%x];\nmov.b64 {%r0, %r1}, %d0;\nld.relaxed.sys.global.b64 %d0, [%x];\nmov.b64 {%r2, %r3}, %d0;";
    never(&[writer, on(1, reader)], ONE_GPU, |outcome| {
        outcome.r[1][0] != outcome.r[1][1] || outcome.r[1][2] != outcome.r[1][3]
    });
}

#[test]
fn atomic_operations_lose_nothing() {
    let text = "atom.global.add.u32 %r0, [%x], 1;\nred.global.add.u32 [%x], 1;\natom.global.sys.add.u32 %r1, [%x], 1;";
    let actors =
        [Actor { gpu: 0, threads: 40, text }, Actor { gpu: 0, threads: 3, text }, Actor { gpu: 1, threads: 7, text }];
    never(&actors, [Some(0); 3], |outcome| outcome.x != 150);
    never(&actors, [None; 3], |outcome| outcome.x != 150);
}

#[test]
fn no_value_comes_from_nowhere() {
    let text = |a: &str, b: &str| -> &'static str {
        Box::leak(
            format!("ld.relaxed.gpu.global.u32 %r0, [%{a}];\nst.relaxed.gpu.global.u32 [%{b}], %r0;").into_boxed_str(),
        )
    };
    never(&[on(0, text("x", "y")), on(0, text("y", "x"))], ONE_GPU, |outcome| outcome.x != 0 || outcome.y != 0);
}

/// A warp stores lines of 128 bytes, 16 bytes a lane; another loads them.
fn lines() -> [Actor; 2] {
    let store = "mov.b64 %d0, 0x100000001;\nand.b32 %r9, %t, 7;\nmul.wide.u32 %d1, %r9, 16;\nadd.s64 %d2, %x, %d1;\nst.volatile.global.v2.u64 [%d2], {%d0, %d0};";
    let load = "and.b32 %r9, %t, 7;\nmul.wide.u32 %d1, %r9, 16;\nadd.s64 %d2, %x, %d1;\nld.volatile.global.v2.u64 {%d3, %d4}, [%d2];\ncvt.u32.u64 %r10, %d3;\ncvt.u32.u64 %r11, %d4;\nadd.u32 %r12, %r10, %r11;\nsetp.ne.u32 %p0, %r10, 0;\nsetp.ne.u32 %p1, %r11, 0;\nvote.sync.ballot.b32 %r0, %p0, 0xff;\nvote.sync.ballot.b32 %r1, %p1, 0xff;";
    [Actor { gpu: 0, threads: 8, text: store }, Actor { gpu: 1, threads: 8, text: load }]
}

#[test]
fn lines_of_128_bytes_are_whole_where_the_path_says_so_only() {
    let torn = |outcome: &Outcome| ![[0, 0], [0xff, 0xff]].contains(&[outcome.r[1][0], outcome.r[1][1]]);
    let peer = [Some(1); 3];
    assert!(count(&lines(), peer, false, torn) > 0, "on a path without LL128 a line is torn");
    assert_eq!(count(&lines(), peer, true, torn), 0, "on a path with LL128 a line is whole");
    assert_eq!(count(&lines(), ONE_GPU, true, torn), 0, "on a path with LL128 a line is whole");
}
