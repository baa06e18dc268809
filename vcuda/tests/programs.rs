//! The programs of `programs/` on the ready machines: samples, pairs of GPUs and of processes, mistakes, deadlocks, faults.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod support;

use support::{Finished, finish, on_machine, programs};

const MACHINES: [&str; 6] = ["1", "2-nvswitch", "4-nvswitch", "8-nvswitch", "8-cube-mesh", "4-pcie"];

/// How long nothing may move before the machine calls it a deadlock: long enough for a busy computer.
const STUCK_MS: &str = "3000";

fn run(machine: &str, program: &str) -> Finished {
    finish(&mut on_machine(machine, &[&programs(), program]))
}

/// The program succeeds, prints this line, and leaves nothing.
#[track_caller]
fn must_print(machine: &str, program: &str, line: &str) {
    let finished = run(machine, program);
    assert!(finished.must_succeed().lines().any(|printed| printed == line), "{machine}: {}", finished.output);
    assert!(!finished.errors.contains("leaked"), "{machine}: {}", finished.errors);
}

/// The program ends well, since it expected the error, and the report names all this.
#[track_caller]
fn must_be_reported(machine: &str, program: &str, report: &[&str]) {
    let finished = finish(on_machine(machine, &[&programs(), program]).env("VCUDA_STUCK_MS", STUCK_MS));
    finished.must_succeed();
    finished.must_tell(report);
}

#[test]
fn nvml_tells_the_links_of_each_machine() {
    must_print("8-cube-mesh", "nvml", "NVLink 0 to 4: yes");
    must_print("8-cube-mesh", "nvml", "NVLink 0 to 5: no");
    must_print("4-pcie", "nvml", "NVLink 0 to 1: no");
    must_print("8-nvswitch", "nvml", "NVLink 7 to 0: yes");
    must_print("1", "nvml", "NVML devices: 1");
}

#[test]
fn memory_operations_of_version_1_are_not_supported() {
    must_print("1", "refusals", "a wait of the first version: 801");
}

#[test]
fn memory_of_a_pool_has_no_handle() {
    must_print("1", "refusals", "a handle of a pool's memory: 1");
}

#[test]
fn fabric_memory_is_refused_where_the_attribute_lies() {
    must_print("2-nvswitch", "refusals", "fabric memory, attribute 1: 800");
    must_print("1", "refusals", "fabric memory, attribute 0: 801");
    must_print("2x4-mnnvl", "refusals", "fabric memory, attribute 1: 0");
}

#[test]
fn samples_run_on_every_gpu_of_every_machine() {
    for machine in MACHINES {
        for program in ["vector_add", "reduce", "histogram", "memory_runs_out"] {
            must_print(machine, program, &format!("{program}: right"));
        }
    }
}

#[test]
fn small_floats_convert_as_their_tables_say() {
    let finished = run("1", "convert");
    assert_eq!(finished.must_succeed().lines().filter(|line| line.contains("right")).count(), 8, "{}", finished.output);
}

#[test]
fn a_consumer_on_one_gpu_spins_for_a_producer_on_another() {
    for machine in MACHINES {
        must_print(machine, "pair", "pair: right");
    }
}

#[test]
fn orders_that_suffice_hold_with_every_seed_of_weak_memory() {
    for seed in 1..=5 {
        for program in ["pair", "lines", "processes"] {
            let mut command = on_machine("2-nvswitch", &[&programs(), program]);
            let finished = finish(command.env("VCUDA_SEED", seed.to_string()));
            assert_eq!(finished.status, 0, "{program}, seed {seed}: {}{}", finished.output, finished.errors);
        }
    }
}

#[test]
fn what_a_program_leaves_allocated_is_listed() {
    let finished = finish(support::vcuda().args(["run", "--strict", "1", "--", &programs(), "leaks"]));
    assert_eq!(finished.status, 97, "{}", finished.errors);
    finished.must_tell(&["leaked", "GPU 0, by process"]);
}

#[test]
fn lines_carry_their_own_flags() {
    for machine in MACHINES {
        must_print(machine, "lines", "ll: right");
    }
    must_print("2-nvswitch", "lines", "ll128: right");
    must_print("4-pcie", "lines", "ll128: no path that keeps lines whole");
}

#[test]
fn a_producer_in_another_process_opens_the_memory() {
    for machine in MACHINES {
        must_print(machine, "processes", "processes: right");
    }
}

/// A machine of one GPU with these lines in its file; the file is gone when this is dropped.
struct OwnMachine(std::path::PathBuf);

impl OwnMachine {
    fn new(name: &str, lines: &str) -> Self {
        let path = std::env::temp_dir().join(format!("vcuda-{name}-{}.toml", std::process::id()));
        std::fs::write(&path, format!("{lines}\n[[gpu]]\nkind = \"h100\"\nmemory_mib = 256\nsms = 2\n")).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for OwnMachine {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn processes_on_one_gpu_run_together_under_mps() {
    // Nothing may seem to stand still while words go back and forth, with weak memory and without.
    for lines in ["mps = true", "mps = true\nweak = false", "mps = true\nweak = false\nchecks = false"] {
        let machine = OwnMachine::new("mps", lines);
        for program in ["ping_pong", "processes"] {
            must_print(machine.path(), program, &format!("{program}: right"));
        }
    }
}

#[test]
fn processes_on_one_gpu_take_turns_without_mps() {
    let machine = OwnMachine::new("turns", "mps = false");
    must_print(machine.path(), "ping_pong", "ping_pong: right");
}

#[test]
fn a_program_on_cudarcs_safe_api_runs_unchanged() {
    for machine in ["1", "4-pcie"] {
        must_print(machine, "safe_api", "safe_api: right");
    }
}

#[test]
fn mistakes_of_kernels_are_reported_with_kernel_and_line() {
    for program in ["illegal_address", "out_of_bounds", "freed", "misaligned", "trap"] {
        must_be_reported("1", program, &["line"]);
    }
    must_be_reported("1", "out_of_bounds", &["store_at"]);
    let place = |kernel: &'static str| [kernel, "PTX line ", "block (0, 0, 0), thread ("];
    must_be_reported("1", "uninitialised", &place("kernel count_set"));
    must_be_reported("1", "uninitialised", &["the branch depends on bytes that were never set"]);
    must_be_reported("1", "uninitialised_copied", &place("kernel count_set"));
    must_be_reported("1", "race", &place("kernel race"));
    must_be_reported("1", "race", &["address 0x", "a race in shared memory: the thread loads byte 0x"]);
    must_be_reported("1", "freed", &["in freed memory"]);
}

#[test]
fn deadlocks_known_from_life_are_reported_and_their_mended_twins_run() {
    for program in ["null_stream", "aliased_queues", "lazy_loading", "free_under_kernel"] {
        must_be_reported("1", program, &["deadlock", "waits for"]);
        let mended = format!("{program}_mended");
        must_print("1", &mended, &format!("{mended}: right"));
    }
}

#[test]
fn one_thread_that_launches_on_two_gpus_hangs_where_launches_block() {
    // Each launch waits for its kernel, and the kernel for one that is launched later.
    let mut command = on_machine("2-nvswitch", &[&programs(), "pair"]);
    let finished = finish(command.envs([("CUDA_LAUNCH_BLOCKING", "1"), ("VCUDA_STUCK_MS", STUCK_MS)]));
    assert_eq!(finished.status, 1, "{}", finished.output);
    finished.must_tell(&["deadlock", "in cuLaunchKernel", "cuLaunchKernel answered 702"]);
}

#[test]
fn a_half_resident_grid_is_reported_and_a_resident_one_runs() {
    // One block more than 2 SMs hold is enough, and quickly interpreted.
    let machine = OwnMachine::new("small", "");
    let path = machine.path();
    let reported = finish(on_machine(path, &[&programs(), "half_resident"]).env("VCUDA_STUCK_MS", STUCK_MS));
    let resident = run(path, "half_resident_mended");
    reported.must_succeed();
    reported.must_tell(&["deadlock", "waits for"]);
    assert_eq!(resident.must_succeed(), "half_resident_mended: right\n");
}

#[test]
fn any_call_fails_on_its_nth_time_with_its_code() {
    let with = |list: &str, program: &str| finish(on_machine("1", &[&programs(), program]).env("VCUDA_FAIL", list));
    with("cuMemAlloc_v2:2:2", "vector_add").must_tell(&["cuMemAlloc_v2 answered 2"]);
    with("cuInit:1:100", "devices").must_tell(&["cuInit answered 100"]);
    with("cuLaunchKernel:1", "reduce").must_tell(&["cuLaunchKernel answered 999"]);
    with("lost:0:10", "histogram").must_tell(&["answered 999"]);
    with("memory:0:1M", "memory_runs_out").must_tell(&["answered 2"]);
    with("nvmlInit_v2:1:9", "nvml").must_tell(&["nvmlInit_v2 answered 9"]);
    let hung = finish(
        on_machine("1", &[&programs(), "vector_add"])
            .envs([("VCUDA_FAIL", "hang:vector_add:1"), ("VCUDA_STUCK_MS", STUCK_MS)]),
    );
    hung.must_tell(&["it hangs, because VCUDA_FAIL says so", "answered 702"]);
    with("", "vector_add").must_succeed();
}

#[test]
fn two_hosts_run_the_program_each_on_its_own_gpus() {
    let finished = run("2x4", "pair");
    assert_eq!(finished.must_succeed().matches("pair: right\n").count(), 2, "{}", finished.output);
}
