//! Kernels that NVRTC compiled (`ptx/kernels.cu`), run by the interpreter.

mod flat;

use flat::{Flat, Parameters, config, launch};
use std::sync::Arc;
use vcuda::ptx::Module;
use vcuda::simt::FaultKind;

fn module() -> Module {
    Module::parse(include_str!("ptx/kernels.ptx")).expect("NVRTC's text loads")
}

/// The parameter block of `struct Args { const void* src[8]; void* dst; size_t n; int k; int op; }`.
fn fold_arguments(sources: &[u64], target: u64, count: u64) -> Parameters {
    let mut parameters = Parameters::default();
    for index in 0..8 {
        parameters = parameters.long(sources.get(index).copied().unwrap_or(0));
    }
    parameters.long(target).long(count).word(u32::try_from(sources.len()).expect("few")).word(0)
}

fn fold(kernel: &str, sources: &[Vec<u8>], width: usize) -> Vec<u8> {
    let memory = Flat::new(false);
    let bytes = sources[0].len();
    let addresses: Vec<u64> = sources
        .iter()
        .map(|source| {
            let address = memory.allocate(Some(0), bytes);
            memory.write(address, source);
            address
        })
        .collect();
    let target = memory.allocate(Some(0), bytes);
    let arguments = fold_arguments(&addresses, target, (bytes / width) as u64);
    launch(&module(), kernel, config(3, 96, arguments), &memory).unwrap_or_else(|fault| panic!("{fault}"));
    memory.read(target, bytes)
}

fn bytes_of<const N: usize, T>(values: &[T], bytes: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(bytes).collect()
}

#[test]
fn folds_of_singles_and_doubles() {
    let a: Vec<f32> = (0..1000u16).map(|index| f32::from(index) * 0.1).collect();
    let b: Vec<f32> = (0..1000u16).map(|index| 1.0 / f32::from(index + 1)).collect();
    let want: Vec<f32> = a.iter().zip(&b).map(|(a, b)| (a + b) + a).collect();
    let sources = [&a, &b, &a].map(|source| bytes_of(source, |value| value.to_le_bytes()));
    assert_eq!(fold("fold_f32", &sources, 4), bytes_of(&want, |value| value.to_le_bytes()));

    let a: Vec<f64> = (0..77u16).map(|index| f64::from(index) - 30.0).collect();
    let b: Vec<f64> = (0..77u16).map(|index| 20.0 - f64::from(index)).collect();
    let want: Vec<f64> = a.iter().zip(&b).map(|(a, b)| a.max(*b)).collect();
    let sources = [&a, &b].map(|source| bytes_of(source, |value| value.to_le_bytes()));
    assert_eq!(fold("fold_f64", &sources, 8), bytes_of(&want, |value| value.to_le_bytes()));
}

#[test]
fn folds_of_bytes_and_longs() {
    let a: Vec<u8> = (0..=255).collect();
    let b: Vec<u8> = (0..=255).rev().collect();
    let want: Vec<u8> = a.iter().zip(&b).map(|(a, b)| *a.max(b)).collect();
    assert_eq!(fold("fold_u8", &[a, b], 1), want);

    let a: Vec<i64> = (0..50).map(|index| index * 1_000_000_007 - 25_000_000_000).collect();
    let b: Vec<i64> = (0..50).map(|index| -index * 999_999_937).collect();
    let want: Vec<i64> = a.iter().zip(&b).map(|(a, b)| *a.max(b)).collect();
    let sources = [&a, &b].map(|source| bytes_of(source, |value| value.to_le_bytes()));
    assert_eq!(fold("fold_i64", &sources, 8), bytes_of(&want, |value| value.to_le_bytes()));
}

#[test]
fn a_reduction_by_shuffles_and_shared_memory() {
    let memory = Flat::new(false);
    let values: Vec<f32> = (0..1000u16).map(f32::from).collect();
    let (source, target) = (memory.allocate(Some(0), 4000), memory.allocate(Some(0), 4));
    memory.write(source, &bytes_of(&values, |value| value.to_le_bytes()));
    let parameters = Parameters::default().long(source).long(target).word(1000);
    launch(&module(), "reduce_shfl", config(1, 256, parameters), &memory).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(memory.words(target, 1), [499_500f32.to_bits()]);
}

#[test]
fn a_histogram_by_atomics_in_dynamic_shared_memory() {
    let memory = Flat::new(false);
    let data: Vec<u8> = (0..5000u32).map(|index| u8::try_from(index * index % 251).expect("below 251")).collect();
    let (source, target) = (memory.allocate(Some(0), data.len()), memory.allocate(Some(0), 1024));
    memory.write(source, &data);
    memory.write(target, &[0; 1024]);
    let parameters = Parameters::default().long(source).long(target).long(data.len() as u64);
    let mut config = config(4, 128, parameters);
    config.dynamic_shared_bytes = 1024;
    launch(&module(), "hist", config, &memory).unwrap_or_else(|fault| panic!("{fault}"));
    let mut want = vec![0u32; 256];
    data.iter().for_each(|byte| want[usize::from(*byte)] += 1);
    assert_eq!(memory.words(target, 256), want);
}

#[test]
fn functions_are_placed_in_line_and_switches_branch() {
    let memory = Flat::new(false);
    let (numbers, floats) = (memory.allocate(Some(0), 64), memory.allocate(Some(0), 8));
    memory.write_words(numbers, &[7, 6, 0, 21]);
    memory.write_words(floats, &[0, 0]);
    let parameters = Parameters::default().long(numbers).long(floats);
    launch(&module(), "calls", config(1, 1, parameters), &memory).unwrap_or_else(|fault| panic!("{fault}"));
    // 42 + 0, then 42 more than 42 * 2 + 0.
    assert_eq!(memory.words(numbers, 3), [7, 6, 126]);
    assert_eq!(memory.words(floats, 2), [7f32.to_bits(), 42f32.to_bits()]);
    let parameters = Parameters::default().long(numbers).word(2);
    launch(&module(), "sw", config(1, 3, parameters), &memory).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(memory.words(numbers, 4), [7, 6, 42, 21]);
    let parameters = Parameters::default().long(numbers).word(9);
    let fault = launch(&module(), "sw", config(1, 3, parameters), &memory).expect_err("it traps");
    assert_eq!(fault.kind, FaultKind::Trap);
}

#[test]
fn an_access_out_of_bounds_names_kernel_line_thread_and_address() {
    let memory = Flat::new(false);
    let (source, target) = (memory.allocate(Some(0), 160), memory.allocate(Some(0), 144));
    let parameters = Parameters::default().long(source).long(target).word(10);
    let fault = launch(&module(), "vec", config(1, 32, parameters), &memory).expect_err("two vectors too many");
    assert_eq!((fault.kind, fault.thread, fault.address), (FaultKind::IllegalAddress, [9, 0, 0], Some(target + 144)));
    let said = fault.to_string();
    assert!(said.starts_with("kernel vec, PTX line "), "{said}");
    assert!(said.contains("a store of 4 bytes out of bounds"), "{said}");
    memory.free(target);
    let parameters = Parameters::default().long(source).long(target).word(1);
    let fault = launch(&module(), "vec", config(1, 32, parameters), &memory).expect_err("freed");
    assert!(fault.what.contains("freed memory"), "{fault}");
    let parameters = Parameters::default().long(source + 4).long(target).word(1);
    let fault = launch(&module(), "vec", config(1, 32, parameters), &memory).expect_err("misaligned");
    assert_eq!(fault.kind, FaultKind::MisalignedAddress);
}

#[test]
fn a_consumer_sleeps_until_its_producer_has_stored() {
    let (memory, module) = (Flat::new(false), module());
    let (flag, data, out) = (memory.allocate(Some(0), 4), memory.allocate(Some(0), 256), memory.allocate(Some(0), 256));
    memory.write_words(flag, &[0]);
    let stores = Arc::new(vcuda::simt::GpuStores::new());
    let parameters = |who| Parameters::default().long(flag).long(data).long(out).word(who);
    let mut consumer = flat::blocks(&module, "prodcons", config(1, 64, parameters(1)), &memory, &stores).remove(0);
    let mut slept = None;
    for _ in 0..10 {
        if let vcuda::simt::Step::Sleeping { polled, what, .. } = consumer.step(10_000) {
            slept = Some((polled, what));
        }
    }
    let (polled, what) = slept.expect("nothing comes yet");
    assert_eq!(polled, [flag]);
    assert!(what.starts_with("block (0, 0, 0) of prodcons polls 0x"), "{what}");
    launch(&module, "prodcons", config(1, 64, parameters(0)), &memory).unwrap_or_else(|fault| panic!("{fault}"));
    flat::run(vec![consumer], 100).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(memory.words(out, 64), (0..64).collect::<Vec<_>>());
}

#[test]
fn atomics_votes_and_local_arrays() {
    let (memory, module) = (Flat::new(false), module());
    let at: Vec<u64> = (0..6).map(|_| memory.allocate(Some(0), 64)).collect();
    at.iter().for_each(|address| memory.write(*address, &[0; 64]));
    let parameters = at.iter().fold(Parameters::default(), |parameters, address| parameters.long(*address));
    launch(&module, "atomics", config(1, 4, parameters), &memory).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(memory.read(at[0], 8), 4f64.to_le_bytes());
    assert_eq!(memory.words(at[5], 1), [10f32.to_bits()]);

    let out = memory.allocate(Some(0), 256);
    let parameters = Parameters::default().long(out).word(u32::MAX);
    launch(&module, "votes", config(1, 32, parameters), &memory).unwrap_or_else(|fault| panic!("{fault}"));

    let numbers: Vec<u32> = (0..64).map(|index| index * 3 % 17).collect();
    memory.write_words(out, &numbers);
    let parameters = Parameters::default().long(out).word(9);
    launch(&module, "locals", config(1, 1, parameters), &memory).unwrap_or_else(|fault| panic!("{fault}"));
    let a: Vec<u32> = numbers.iter().take(32).map(|number| number * 9).collect();
    let sum = (0..9).map(|index| a[(index * numbers[index] as usize) & 31]).sum::<u32>();
    assert_eq!(memory.words(out, 1), [sum]);
}

/// A kernel from a body that knows `%x`, an address, and `%t`, the thread's number.
fn small(body: &str) -> Module {
    let head = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a)\n{";
    let registers = ".reg .b32 %r<20>;\n.reg .b64 %d<20>;\n.reg .pred %p<9>;\n.reg .b32 %t;\n.reg .b64 %x;\n.shared .align 16 .b8 s[512];";
    let text = format!("{head}\n{registers}\nld.param.u64 %x, [a];\nmov.u32 %t, %tid.x;\n{body}\nret;\n}}\n");
    Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Runs it with all checks.
fn checked(body: &str, threads: u32) -> Result<(), vcuda::simt::KernelFault> {
    let memory = Flat::new(true);
    let address = memory.allocate(Some(0), 1024);
    memory.write(address, &[1; 512]);
    let mut config = config(1, threads, Parameters::default().long(address));
    (config.checks, config.weak) = (true, true);
    launch(&small(body), "k", config, &memory)
}

const OWN_WORD: &str = "mul.wide.u32 %d0, %t, 4;\nadd.s64 %d1, %x, %d0;\nmul.lo.u32 %r0, %t, 4;\nmov.u32 %r1, s;\nadd.u32 %r2, %r1, %r0;\n";

#[test]
fn a_branch_on_bytes_that_were_never_set_is_a_fault() {
    let branch = "setp.eq.u32 %p0, %r3, 7;\n@%p0 bra L;\nst.global.u32 [%x], 1;\nL:\n";
    let fault = checked(&format!("ld.global.u32 %r3, [%x+600];\n{branch}"), 3).expect_err("never set");
    assert_eq!(fault.what, "the branch depends on bytes that were never set");
    checked(&format!("ld.global.u32 %r3, [%x+500];\n{branch}"), 3).unwrap_or_else(|fault| panic!("{fault}"));
    // A store of undefined bytes is none yet; what is loaded back stays undefined.
    let through = format!(
        "ld.global.v2.u32 {{%r4, %r5}}, [%x+600];\nst.global.u32 [%x], %r4;\nld.global.u32 %r3, [%x];\n{branch}"
    );
    assert!(checked(&through, 1).is_err());
    let address = "ld.global.u64 %d2, [%x+640];\nadd.s64 %d3, %x, %d2;\nld.global.u32 %r3, [%d3];\n";
    let fault = checked(address, 1).expect_err("never set");
    assert_eq!(fault.what, "the address was computed from bytes that were never set");
    // Half of a word is set: kernels load whole words and use a part.
    checked(&format!("st.global.u8 [%x+700], %t;\nld.global.u32 %r3, [%x+700];\nand.b32 %r3, %r3, 255;\n{branch}"), 1)
        .unwrap_or_else(|fault| panic!("{fault}"));
}

#[test]
fn undefined_bytes_travel_through_copies_and_calculations() {
    let fails = |body: &str| {
        let fault = checked(body, 32).expect_err(body);
        assert_eq!(fault.what, "the branch depends on bytes that were never set", "{body}");
    };
    let runs = |body: &str| checked(body, 32).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
    let own = "mul.lo.u32 %r9, %t, 4;\nmov.u32 %r1, s;\nadd.u32 %r2, %r1, %r9;\n";
    // Two bytes of the word are set, two are not; it goes through registers, shared memory and global memory.
    let word = format!(
        "{own}setp.ne.u32 %p1, %t, 0;\n@!%p1 st.global.u16 [%x+700], 258;\nld.global.u32 %r10, [%x+700];\nst.shared.u32 [%r2], %r10;\n\
         ld.shared.u32 %r11, [%r2];\n@!%p1 st.global.u32 [%x+704], %r11;\nld.global.u32 %r3, [%x+704];\n"
    );
    let decide =
        |how: &str| format!("{word}{how}\nsetp.gt.u32 %p0, %r3, 300;\n@%p0 bra L;\nadd.u32 %r4, %r4, 1;\nL:\n");
    runs(&decide("and.b32 %r3, %r3, 65535;"));
    fails(&decide("and.b32 %r3, %r3, 65536;"));
    runs(&decide("shl.b32 %r3, %r3, 16;"));
    fails(&decide("shr.u32 %r3, %r3, 16;"));
    runs(&decide("prmt.b32 %r3, %r3, 0, 0x4410;"));
    fails(&decide("prmt.b32 %r3, %r3, 0, 0x4412;"));
    runs(&decide("shf.l.wrap.b32 %r3, 5, %r3, 16;"));
    fails(&decide("shf.r.wrap.b32 %r3, %r3, 0, 16;"));
    runs(&decide("or.b32 %r3, %r3, 0xffff0000;"));
    runs(&decide("mul.lo.u32 %r3, %r3, 0;"));
    fails(&decide("add.u32 %r3, %r3, 1;"));
    fails(&decide("xor.b32 %r3, %r3, %r10;\nadd.u32 %r3, %r3, %r10;"));
    runs(&decide("add.f16x2 %r3, %r3, %r3;\nand.b32 %r3, %r3, 65535;"));
    fails(&decide("add.f16x2 %r3, %r3, %r3;\nand.b32 %r3, %r3, -65536;"));
    fails(&decide("cvt.rn.f32.s32 %r3, %r3;\nshr.u32 %r3, %r3, 22;"));
    fails(&decide("shfl.sync.bfly.b32 %r3, %r3, 1, 31, -1;"));
    fails(&decide("redux.sync.add.s32 %r3, %r3, -1;\nand.b32 %r3, %r3, -65536;"));
    // What a comparison finds is known where no undefined byte can change it.
    let compare = |how: &str| format!("{word}{how}\n@%p0 bra L;\nadd.u32 %r4, %r4, 1;\nL:\n");
    fails(&compare("setp.eq.u32 %p0, %r3, 258;"));
    fails(&compare("setp.eq.u32 %p0, %r3, 0x77770102;"));
    runs(&compare("setp.eq.u32 %p0, %r3, 259;"));
    fails(&compare("setp.lt.s32 %p0, %r3, 0;"));
    fails(&compare("setp.eq.u32 %p0, %r3, 258;\nvote.sync.any.pred %p0, %p0, -1;"));
    runs(&compare("setp.eq.u32 %p0, %r3, 259;\nvote.sync.any.pred %p0, %p0, -1;"));
    fails(&compare("setp.eq.u32 %p0, %r3, 258;\nbar.red.or.pred %p0, 0, %p0;"));
    fails(&compare("setp.eq.u32 %p0, %r3, 258;\nbar.red.popc.u32 %r5, 0, %p0;\nsetp.eq.u32 %p0, %r5, 1;"));
    runs(&compare("setp.eq.u32 %p0, %r3, 258;\nsetp.ne.and.u32 %p0, %t, 5, %p0;\nbar.red.and.pred %p0, 0, %p0;"));
}

#[test]
fn atomic_operations_on_bytes_that_were_never_set_set_nothing() {
    let branch = "setp.eq.u32 %p0, %r3, 7;\n@%p0 bra L;\nst.global.u32 [%x], 1;\nL:\n";
    for space in ["global", "shared"] {
        let base = if space == "global" { "%x" } else { "%r1" };
        let run = |update: &str| {
            checked(
                &format!("mov.u32 %r1, s;\n{update}\n{branch}")
                    .replace("PLACE", &format!("[{base}+508]"))
                    .replace("SPACE", space),
                1,
            )
        };
        // Global memory is set up to byte 511, so the test looks behind it.
        let run_behind = |update: &str| {
            run(&update.replace("PLACE", &format!("[{base}+{}]", if space == "global" { 512 } else { 500 })))
        };
        assert!(run_behind("red.SPACE.add.u32 PLACE, 1;\nld.SPACE.u32 %r3, PLACE;").is_err());
        assert!(run_behind("atom.SPACE.add.u32 %r3, PLACE, 1;").is_err());
        assert!(run_behind("atom.SPACE.cas.b32 %r3, PLACE, 1, 2;\nld.SPACE.u32 %r3, PLACE;").is_err());
        assert!(run_behind("atom.SPACE.exch.b32 %r4, PLACE, 1;\nld.SPACE.u32 %r3, PLACE;").is_ok());
        assert!(run_behind("st.SPACE.u32 PLACE, 4;\nred.SPACE.add.u32 PLACE, 1;\nld.SPACE.u32 %r3, PLACE;").is_ok());
    }
}

#[test]
fn races_in_shared_memory_are_faults_and_barriers_end_them() {
    let turned = "sub.u32 %r4, 63, %t;\nmul.lo.u32 %r5, %r4, 4;\nadd.u32 %r6, %r1, %r5;\nld.shared.u32 %r7, [%r6];\nst.global.u32 [%d1], %r7;\n";
    let fault = checked(&format!("{OWN_WORD}st.shared.u32 [%r2], %t;\n{turned}"), 64).expect_err("no barrier");
    assert!(fault.what.starts_with("a race in shared memory: the thread "), "{fault}");
    checked(&format!("{OWN_WORD}st.shared.u32 [%r2], %t;\nbar.sync 0;\n{turned}"), 64)
        .unwrap_or_else(|fault| panic!("{fault}"));
    // Loaded by the others, stored again without a barrier.
    let again = format!("{OWN_WORD}st.shared.u32 [%r2], %t;\nbar.sync 0;\n{turned}st.shared.u32 [%r2], 99;\n");
    let fault = checked(&again, 64).expect_err("no barrier before the second store");
    assert!(
        fault.what.contains("after the load of it by thread number") || fault.what.contains("the thread loads"),
        "{fault}"
    );
    // Lanes of one warp meet at `bar.warp.sync`.
    let neighbours =
        "xor.b32 %r4, %t, 1;\nmul.lo.u32 %r5, %r4, 4;\nadd.u32 %r6, %r1, %r5;\nld.shared.u32 %r7, [%r6];\n";
    assert!(checked(&format!("{OWN_WORD}st.shared.u32 [%r2], %t;\n{neighbours}"), 32).is_err());
    checked(&format!("{OWN_WORD}st.shared.u32 [%r2], %t;\nbar.warp.sync 0xffffffff;\n{neighbours}"), 32)
        .unwrap_or_else(|fault| panic!("{fault}"));
    // Atomic operations are no races, nor is one value that all store.
    checked("atom.shared.exch.b32 %r3, [s], 5;\nbar.sync 0;\natom.shared.add.u32 %r3, [s], 1;\n", 64)
        .unwrap_or_else(|fault| panic!("{fault}"));
    checked("st.shared.u32 [s+8], 5;\n", 1).unwrap_or_else(|fault| panic!("{fault}"));
}

#[test]
fn a_block_whose_threads_wait_for_each_other_for_ever_is_a_fault() {
    let body = "setp.lt.u32 %p0, %t, 32;\n@%p0 bra L;\nbar.sync 1;\nret;\nL:\nbar.sync 2;\n";
    let fault = checked(body, 64).expect_err("two barriers");
    assert!(
        fault.what.starts_with("the block can never go on: lanes 0xffffffff of warp 0 wait for barrier 2"),
        "{fault}"
    );
}

#[test]
fn compiled_kernels_pass_all_checks() {
    let memory = Flat::new(true);
    let values: Vec<f32> = (0..1000u16).map(f32::from).collect();
    let (source, target) = (memory.allocate(Some(0), 4000), memory.allocate(Some(0), 1024));
    memory.write(source, &bytes_of(&values, |value| value.to_le_bytes()));
    let parameters = Parameters::default().long(source).long(target).word(1000);
    let mut sum = config(1, 256, parameters);
    (sum.checks, sum.weak) = (true, true);
    launch(&module(), "reduce_shfl", sum, &memory).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(memory.words(target, 1), [499_500f32.to_bits()]);
    memory.write(target, &[0; 1024]);
    let parameters = Parameters::default().long(source).long(target).long(4000);
    let mut histogram = config(4, 128, parameters);
    (histogram.checks, histogram.weak, histogram.dynamic_shared_bytes) = (true, true, 1024);
    launch(&module(), "hist", histogram, &memory).unwrap_or_else(|fault| panic!("{fault}"));
    assert_eq!(memory.words(target, 256).iter().sum::<u32>(), 4000);
}

/// What a thread leaves of one instruction on three words.
fn result_of(instruction: &str, [a, b, c]: [u32; 3]) -> u32 {
    let memory = Flat::new(true);
    let address = memory.allocate(Some(0), 16);
    memory.write_words(address, &[a, b, c, 0]);
    let body = format!(
        "ld.global.u32 %r1, [%x];\nld.global.u32 %r2, [%x+4];\nld.global.u32 %r3, [%x+8];\n{instruction};\nst.global.u32 [%x+12], %r0;"
    );
    launch(&small(&body), "k", config(1, 1, Parameters::default().long(address)), &memory)
        .unwrap_or_else(|fault| panic!("{fault}"));
    memory.words(address, 4)[3]
}

const WORDS: [u32; 9] = [0, 1, 0x7f, 0x8000_0000, 0xffff_ffff, 0x0102_0304, 0x80ff_7f01, 0x00ff_ffff, 0x0080_0000];

#[test]
fn dot_products_of_bytes_are_those_of_the_host() {
    let byte = |value: u32, index: usize, signed: bool| {
        let byte = value.to_le_bytes()[index];
        if signed { i64::from(byte.cast_signed()) } else { i64::from(byte) }
    };
    let half = |value: u32, index: usize, signed: bool| {
        let half = (value >> (16 * index)) & 0xffff;
        if signed { i64::from(half) - if half > 0x7fff { 0x1_0000 } else { 0 } } else { i64::from(half) }
    };
    let word = |sum: i64| u32::try_from(sum & 0xffff_ffff).expect("32 bits");
    for (name, signed) in [("u32", false), ("s32", true)] {
        for (other, other_signed) in [("u32", false), ("s32", true)] {
            for a in WORDS {
                for b in WORDS {
                    let c = 0xffff_fff0_u32;
                    let of_four = (0..4).map(|i| byte(a, i, signed) * byte(b, i, other_signed)).sum::<i64>();
                    let found = result_of(&format!("dp4a.{name}.{other} %r0, %r1, %r2, %r3"), [a, b, c]);
                    assert_eq!(found, word(of_four + i64::from(c)), "dp4a {name} {other} {a:x} {b:x}");
                    for (part, first) in [("lo", 0), ("hi", 2)] {
                        let of_two = (0..2).map(|i| half(a, i, signed) * byte(b, first + i, other_signed)).sum::<i64>();
                        let found = result_of(&format!("dp2a.{part}.{name}.{other} %r0, %r1, %r2, %r3"), [a, b, c]);
                        assert_eq!(found, word(of_two + i64::from(c)), "dp2a {part} {name} {other} {a:x} {b:x}");
                    }
                }
            }
        }
    }
}

#[test]
fn products_of_24_bits_are_those_of_the_host() {
    for a in WORDS {
        for b in WORDS {
            let low = |value: u32| i64::from(value & 0xff_ffff);
            let extended = |value: u32| if value & 0x80_0000 == 0 { low(value) } else { low(value) - (1 << 24) };
            for (kind, product) in [("u32", low(a) * low(b)), ("s32", extended(a) * extended(b))] {
                for (part, expected) in [("lo", product), ("hi", product >> 16)] {
                    let expected = u32::try_from(expected & 0xffff_ffff).expect("32 bits");
                    let found = result_of(&format!("mul24.{part}.{kind} %r0, %r1, %r2"), [a, b, 0]);
                    assert_eq!(found, expected, "mul24.{part}.{kind} {a:x} {b:x}");
                    let found = result_of(&format!("mad24.{part}.{kind} %r0, %r1, %r2, %r3"), [a, b, 77]);
                    assert_eq!(found, expected.wrapping_add(77), "mad24.{part}.{kind} {a:x} {b:x}");
                }
            }
        }
    }
}

/// An integer as a double, rounded towards minus infinity.
fn rounded_down(value: i128) -> f64 {
    let size = value.unsigned_abs();
    let extra = 128_u32.saturating_sub(size.leading_zeros() + 53);
    let kept = size >> extra;
    let lost = size != kept << extra;
    // Away from zero where it is negative.
    let kept = kept + u128::from(lost && value < 0);
    let scale = f64::from_bits(u64::from(extra + 1023) << 52);
    let size = u64::try_from(kept).expect("54 bits") as f64 * scale;
    if value < 0 { -size } else { size }
}

#[test]
fn directed_products_of_doubles_are_those_of_integers() {
    let body = |round: &str| {
        format!(
            "ld.global.f64 %d1, [%x];\nld.global.f64 %d2, [%x+8];\nld.global.f64 %d3, [%x+16];\nfma.{round}.f64 %d4, %d1, %d2, %d3;\nst.global.f64 [%x+24], %d4;"
        )
    };
    let kernels = ["rm", "rp", "rz"].map(|round| small(&body(round)));
    let result = |module: &Module, values: [f64; 3]| {
        let memory = Flat::new(true);
        let address = memory.allocate(Some(0), 32);
        memory.write(address, &values.map(f64::to_le_bytes).concat());
        launch(module, "k", config(1, 1, Parameters::default().long(address)), &memory)
            .unwrap_or_else(|fault| panic!("{fault}"));
        f64::from_le_bytes(memory.read(address + 24, 8).try_into().expect("eight"))
    };
    let mut state = 1_u64;
    let mut random = |bits: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let size = i64::try_from(state >> (64 - bits)).expect("below 63 bits");
        if state & 1 == 0 { size } else { -size }
    };
    for bits in [3, 20, 30, 53] {
        for _ in 0..100 {
            let (a, b, c) = (random(bits), random(53), random(53));
            let exact = i128::from(a) * i128::from(b) + i128::from(c);
            let down = rounded_down(exact);
            let up = -rounded_down(-exact);
            let zero = if exact < 0 { up } else { down };
            let values = [a, b, c].map(|value| value as f64);
            for (module, expected) in kernels.iter().zip([down, up, zero]) {
                let found = result(module, values);
                assert!(found == expected, "{values:?}: {found:e}, not {expected:e}");
            }
        }
    }
    // Overflow, underflow, and zeros of both signs.
    let edges = [
        ([f64::MAX, 2.0, 0.0], [f64::MAX, f64::INFINITY, f64::MAX]),
        ([f64::MAX, -2.0, 0.0], [f64::NEG_INFINITY, f64::MIN, f64::MIN]),
        ([1e-300, 1e-300, 0.0], [0.0, 5e-324, 0.0]),
        ([1e-300, -1e-300, 0.0], [-5e-324, -0.0, -0.0]),
        ([1.0, 1.0, -1.0], [-0.0, 0.0, 0.0]),
    ];
    for (values, expected) in edges {
        for (module, expected) in kernels.iter().zip(expected) {
            let found = result(module, values);
            assert_eq!(found.to_bits(), expected.to_bits(), "{values:?}: {found:e}, not {expected:e}");
        }
    }
}
