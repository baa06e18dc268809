//! Calls that compilers cannot place in line (`ptx/calls.cu`): recursion, and calls by address.

mod flat;

use flat::{Flat, Parameters, config, launch};
use vcuda::ptx::Module;
use vcuda::simt::{FaultKind, KernelFault};

fn module() -> Module {
    Module::parse(include_str!("ptx/calls.ptx")).expect("NVRTC's text loads")
}

/// Runs a kernel of one parameter with every check, also weak; gives back the first `count` words that it wrote.
fn run(kernel: &str, threads: u32, count: usize) -> Vec<u32> {
    let run = |watched: bool| {
        let memory = Flat::new(watched);
        let out = memory.allocate(Some(0), count * 4);
        let mut config = config(1, threads, Parameters::default().long(out));
        (config.weak, config.checks) = (watched, watched);
        launch(&module(), kernel, config, &memory).unwrap_or_else(|fault| panic!("{fault}"));
        memory.words(out, count)
    };
    let words = run(true);
    assert_eq!(words, run(false));
    words
}

fn fault(kernel: &str, stack_bytes: u32) -> KernelFault {
    let memory = Flat::new(false);
    let out = memory.allocate(Some(0), 4);
    memory.write_words(out, &[1]);
    let wrong = memory.allocate(Some(0), 16);
    let mut config = config(1, 1, Parameters::default().long(out).long(wrong));
    config.stack_bytes = stack_bytes;
    launch(&module(), kernel, config, &memory).expect_err("it does what it must not")
}

#[test]
fn a_function_calls_itself_twice() {
    let fibonacci = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55];
    let want: Vec<u32> = (0..40).map(|thread| fibonacci[thread % 11]).collect();
    assert_eq!(run("recurse", 40, 40), want);
}

#[test]
fn two_functions_call_each_other() {
    let want: Vec<u32> = (0..20).map(|thread| u32::from(thread % 2 == 0)).collect();
    assert_eq!(run("mutual", 20, 20), want);
}

#[test]
fn each_level_of_a_recursion_has_its_own_variables() {
    fn fill(depth: u32) -> [u32; 4] {
        let own = if depth > 0 { fill(depth - 1) } else { [0; 4] };
        std::array::from_fn(|i| own[i] + depth + u32::try_from(i).expect("small"))
    }
    let want: Vec<u32> = (0..33).flat_map(|thread| fill(thread % 5)).collect();
    assert_eq!(run("frames", 33, 132), want);
}

#[test]
fn lanes_of_a_warp_call_different_functions_by_address() {
    let want = (0..32).flat_map(|thread: u32| {
        let mut pair = [thread, 3];
        for i in 0..6 {
            let x = i + 1;
            pair = match (thread + i) % 3 {
                0 => [pair[0] + x, pair[1]],
                1 => [pair[0], pair[1] * x],
                _ if x % 2 == 1 => [pair[1], pair[0]],
                _ => pair,
            };
        }
        pair
    });
    assert_eq!(run("by_address", 32, 64), want.collect::<Vec<_>>());
}

#[test]
fn virtual_functions_are_found_by_their_tables() {
    let want: Vec<u32> = (0..32).map(|thread| if thread % 2 == 1 { thread * thread } else { thread + 100 }).collect();
    assert_eq!(run("virtual_calls", 32, 32), want);
}

#[test]
fn a_stack_that_is_full_is_a_fault_with_the_functions_name() {
    let small = fault("too_deep", 1024);
    assert_eq!(small.kind, FaultKind::StackError);
    assert!(small.what.contains("`_Z4fillPjj` needs") && small.what.contains("limit is 1024 bytes"), "{small}");
    let large = fault("too_deep", 8192);
    let depth =
        |fault: &KernelFault| fault.what.split("below ").nth(1).map(|rest| rest.split(' ').next().map(str::to_owned));
    assert_ne!(depth(&small), depth(&large), "a larger stack holds more calls");
}

#[test]
fn a_call_of_what_is_no_function_is_a_fault() {
    let fault = fault("no_function", 1024);
    assert_eq!(fault.kind, FaultKind::InvalidCounter);
    assert!(fault.what.contains("no function begins") && fault.address.is_some(), "{fault}");
}

#[test]
fn what_a_call_cannot_be_is_refused_with_line_and_name() {
    let refused = |body: &str| {
        let functions = ".func (.param .b32 r) f(.param .b32 a)\n{\nret;\n}\n";
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n{functions}.entry k()\n{{\n.reg .b64 %rd<3>;\n{body}\nret;\n}}\n"
        );
        Module::parse(&text).expect_err("refused").to_string()
    };
    assert_eq!(refused("call nobody;"), "PTX line 11: the function `nobody` has no body here");
    let calls = "call (%rd1), %rd1, ();";
    assert_eq!(refused(calls), "PTX line 11: `%rd1` is no `.param` variable");
    assert_eq!(refused("call %rd1, (), unknown;"), "PTX line 11: `unknown` is no prototype and no list of functions");
    let alloca = refused("alloca.u64 %rd1, 8;");
    assert_eq!(alloca, "PTX line 11: the opcode `alloca.u64` is not supported");
}
