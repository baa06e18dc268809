//! Machines that cannot move: the driver reports the cycle of what waits for what.

use crate::support::{call, get, kernels, launch, ok, place, run, start};
use crate::{LAUNCH_TIMEOUT, NOT_READY};

/// Runs a part that must be reported as a deadlock.
#[track_caller]
fn deadlock(name: &str, parts: &[&str]) {
    let errors = run(name, &[("VCUDA_STUCK_MS", "300"), ("VCUDA_MACHINE", "1")]);
    assert!(errors.contains("vcuda: deadlock: ") && errors.contains("as a cycle:"), "{errors}");
    for part in parts {
        assert!(errors.contains(part), "lacks {part:?}: {errors}");
    }
}

/// Sixteen words of device memory, all zero, for streams that do not wait for the legacy one too.
fn zeroed() -> u64 {
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 0, 16]);
    ok("cuCtxSynchronize", &[]);
    memory
}

/// The kernels `wait_for` and `set_to`, loaded, so that their first launches wait for nothing.
fn loaded() -> [u64; 2] {
    let [wait_for, set_to, _] = kernels();
    for function in [wait_for, set_to] {
        ok("cuFuncLoad", &[function]);
    }
    [wait_for, set_to]
}

#[test]
fn aliased_queues_are_reported() {
    deadlock("aliased queues", &["hardware queue", "a memory operation", "word"]);
}

pub(crate) fn aliased_queues() {
    start(0);
    let memory = zeroed();
    ok("cuCtxSynchronize", &[]);
    // Nine streams share eight queues: two of them share one.
    let streams: Vec<u64> = (0..9).map(|_| get("cuStreamCreate", &[1])).collect();
    ok("cuStreamWaitValue32_v2", &[streams[0], memory, 1, 1]);
    ok("cuStreamWriteValue32_v2", &[streams[8], memory, 1, 0]);
    assert_eq!(call("cuStreamSynchronize", &[streams[0]]), LAUNCH_TIMEOUT);
    assert_eq!(call("cuStreamSynchronize", &[streams[8]]), LAUNCH_TIMEOUT, "the error stays");
}

#[test]
fn the_legacy_streams_barrier_is_reported() {
    deadlock("legacy stream", &["the legacy stream", "kernel wait_for"]);
}

pub(crate) fn legacy_stream() {
    start(0);
    let [wait_for, set_to] = loaded();
    let memory = zeroed();
    ok("cuCtxSynchronize", &[]);
    let blocking = get("cuStreamCreate", &[0]);
    assert_eq!(launch(wait_for, 1, 0, memory, 1), 0);
    assert_eq!(launch(set_to, 1, blocking, memory, 1), 0);
    assert_eq!(call("cuCtxSynchronize", &[]), LAUNCH_TIMEOUT);
}

#[test]
fn a_free_under_a_kernel_is_reported() {
    deadlock("free under a kernel", &["cuMemFree_v2", "kernel wait_for", "synchronises"]);
}

pub(crate) fn free_under_a_kernel() {
    start(0);
    let [wait_for, ..] = kernels();
    let [memory, other] = [(); 2].map(|()| get("cuMemAlloc_v2", &[64]));
    ok("cuMemsetD32_v2", &[memory, 0, 16]);
    let stream = get("cuStreamCreate", &[1]);
    ok("cuCtxSynchronize", &[]);
    assert_eq!(launch(wait_for, 1, stream, memory, 1), 0);
    assert_eq!(call("cuMemFree_v2", &[other]), LAUNCH_TIMEOUT);
}

#[test]
fn lazy_loading_under_a_kernel_is_reported() {
    deadlock("lazy loading", &["cuLaunchKernel", "kernel wait_for"]);
}

pub(crate) fn lazy_loading() {
    start(0);
    let [wait_for, set_to, _] = kernels();
    let memory = zeroed();
    let [a, b] = [(); 2].map(|()| get("cuStreamCreate", &[1]));
    ok("cuCtxSynchronize", &[]);
    assert_eq!(launch(wait_for, 1, a, memory, 1), 0);
    assert_eq!(launch(set_to, 1, b, memory, 1), LAUNCH_TIMEOUT, "its first launch waits for the kernel");
}

#[test]
fn half_resident_grids_are_reported() {
    deadlock("half-resident grids", &["find no room", "kernel set_to"]);
}

pub(crate) fn half_resident_grids() {
    start(0);
    let [wait_for, set_to] = loaded();
    let memory = zeroed();
    let [a, b] = [(); 2].map(|()| get("cuStreamCreate", &[1]));
    ok("cuCtxSynchronize", &[]);
    let (mut sms, mut per_sm) = (0_u32, 0_u32);
    ok("cuDeviceGetAttribute", &[place(&mut sms), 16, 0]);
    ok("cuOccupancyMaxActiveBlocksPerMultiprocessor", &[place(&mut per_sm), wait_for, 32, 0]);
    let too_many = u64::from(sms * per_sm + 1);
    assert_eq!(launch(wait_for, too_many, a, memory, 1), 0);
    assert_eq!(launch(set_to, 1, b, memory, 1), 0);
    assert_eq!(call("cuStreamSynchronize", &[b]), LAUNCH_TIMEOUT);
}

#[test]
fn a_host_that_only_looks_is_told_too() {
    let errors = run("polling host", &[("VCUDA_STUCK_MS", "300")]);
    assert!(errors.contains("vcuda: deadlock: "), "{errors}");
}

pub(crate) fn polling_host() {
    start(0);
    let memory = zeroed();
    ok("cuStreamWaitValue32_v2", &[0, memory, 1, 1]);
    let mut code = NOT_READY;
    while code == NOT_READY {
        code = call("cuStreamQuery", &[0]);
    }
    assert_eq!(code, LAUNCH_TIMEOUT);
}
