//! Faults that `VCUDA_FAIL` asks for: calls that fail, memory that runs out, kernels that hang, GPUs that fall off the bus.

use crate::LAUNCH_TIMEOUT;
use crate::support::{call, get, kernels, launch, ok, place, run, start, word};

#[test]
fn calls_fail_on_their_nth_time() {
    run("faults", &[("VCUDA_FAIL", "cuMemAlloc_v2:2:2,cuStreamCreate:1+:304,any:12:46,cuEventQuery:1:700")]);
}

pub(crate) fn faults() {
    let mut value = 0_u64;
    let at = place(&mut value);
    // Calls 1 to 3.
    start(0);
    let codes: Vec<i32> = [
        ("cuMemAlloc_v2", 64),
        ("cuMemAlloc_v2", 64),
        ("cuMemAlloc_v2", 64),
        ("cuStreamCreate", 1),
        ("cuStreamCreate", 1),
    ]
    .map(|(name, argument)| call(name, &[at, argument]))
    .to_vec();
    assert_eq!(codes, [0, 2, 0, 304, 304]);
    // Calls 9 to 13.
    let codes: Vec<i32> = (9..=13).map(|_| call("cuDeviceGetCount", &[at])).collect();
    assert_eq!(codes, [0, 0, 0, 46, 0]);
    // A sticky code that was ordered is this call's alone: the context is well.
    let event = get("cuEventCreate", &[2]);
    assert_eq!((call("cuEventQuery", &[event]), call("cuEventQuery", &[event])), (700, 0));
    ok("cuCtxSynchronize", &[]);
}

#[test]
fn memory_runs_out_where_it_is_told_to() {
    run("memory ends", &[("VCUDA_FAIL", "memory:1:8M"), ("VCUDA_MACHINE", "2-nvswitch")]);
}

pub(crate) fn memory_ends() {
    start(1);
    let (mut free, mut total) = (0_u64, 0_u64);
    ok("cuMemGetInfo_v2", &[place(&mut free), place(&mut total)]);
    assert_eq!(total, 8 << 20);
    let first = get("cuMemAlloc_v2", &[6 << 20]);
    let mut other = 0_u64;
    assert_eq!(call("cuMemAlloc_v2", &[place(&mut other), 6 << 20]), 2);
    ok("cuMemFree_v2", &[first]);
    ok("cuMemFree_v2", &[get("cuMemAlloc_v2", &[6 << 20])]);
    ok("cuCtxSetCurrent", &[get("cuDevicePrimaryCtxRetain", &[0])]);
    ok("cuMemFree_v2", &[get("cuMemAlloc_v2", &[64 << 20])]);
}

#[test]
fn a_kernel_hangs_where_it_is_told_to() {
    let errors =
        run("hangs", &[("VCUDA_FAIL", "hang:set_to:2"), ("VCUDA_STUCK_MS", "300"), ("VCUDA_MACHINE", "2-nvswitch")]);
    assert!(errors.contains("it hangs, because VCUDA_FAIL says so"), "{errors}");
}

pub(crate) fn hangs() {
    let first = start(0);
    let second = get("cuDevicePrimaryCtxRetain", &[1]);
    let memory = get("cuMemAlloc_v2", &[64]);
    let [_, set_to, set_too] = kernels();
    assert_eq!(launch(set_to, 1, 0, memory, 1), 0);
    ok("cuCtxSynchronize", &[]);
    assert_eq!(launch(set_too, 1, 0, memory, 2), 0);
    ok("cuCtxSynchronize", &[]);
    assert_eq!(launch(set_to, 1, 0, memory, 3), 0);
    assert_eq!(call("cuCtxSynchronize", &[]), LAUNCH_TIMEOUT);
    // The other GPU is well.
    ok("cuCtxSetCurrent", &[second]);
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 4, 16]);
    assert_eq!(word(memory), 4);
    ok("cuCtxSetCurrent", &[first]);
    assert_eq!(call("cuCtxSynchronize", &[]), LAUNCH_TIMEOUT);
}

#[test]
fn a_gpu_falls_off_the_bus_at_a_call() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let path = folder.path().to_str().expect("a path");
    let settings = [("VCUDA_FAIL", "lost:0:6"), ("VCUDA_STATE", path), ("VCUDA_MACHINE", "2-nvswitch")];
    run("lost by count", &settings);
}

pub(crate) fn lost_by_count() {
    // Calls 1 to 3.
    start(0);
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 1, 16]);
    let mut value = 0_u32;
    assert_eq!(call("cuMemcpyDtoH_v2", &[place(&mut value), memory, 4]), 999, "the sixth call");
    assert_eq!(call("cuCtxSynchronize", &[]), 999);
    ok("cuCtxSetCurrent", &[get("cuDevicePrimaryCtxRetain", &[1])]);
    ok("cuMemFree_v2", &[get("cuMemAlloc_v2", &[64])]);
}
