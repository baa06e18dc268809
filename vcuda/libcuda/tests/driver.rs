//! The driver through its C entry points: codes, memory, streams, kernels, capture; by file, machines that cannot move, several
//! processes, and faults.

#[path = "driver/deadlocks.rs"]
mod deadlocks;
#[path = "driver/faults.rs"]
mod faults;
#[path = "driver/processes.rs"]
mod processes;
mod support;

use std::os::fd::FromRawFd;

use support::{Parts, call, get, kernels, launch, ok, place, play, run, slice, start, symbol, text, word};

/// Plays the part that another test of this file has started this process for.
#[test]
fn part() {
    play(PARTS);
}

const PARTS: Parts = &[
    ("codes", codes),
    ("memory", memory),
    ("virtual memory", virtual_memory),
    ("streams", streams),
    ("memory operations", memory_operations),
    ("kernels", kernels_run),
    ("peers", peers),
    ("capture", capture),
    ("graphs", graphs),
    ("pools", pools),
    ("aliased queues", deadlocks::aliased_queues),
    ("legacy stream", deadlocks::legacy_stream),
    ("free under a kernel", deadlocks::free_under_a_kernel),
    ("lazy loading", deadlocks::lazy_loading),
    ("half-resident grids", deadlocks::half_resident_grids),
    ("exporter", processes::exporter),
    ("importer", processes::importer),
    ("turns", processes::turns),
    ("polling host", deadlocks::polling_host),
    ("lost", lost),
    ("cycle of two processes", processes::cycle_of_two_processes),
    ("missing entry points", missing_entry_points),
    ("use", thread_use),
    ("fabric lies", processes::fabric_lies),
    ("fabric", processes::fabric),
    ("fabric importer", processes::fabric_importer),
    ("handle of another host", processes::handle_of_another_host),
    ("doomed exporter", processes::doomed_exporter),
    ("bereaved importer", processes::bereaved_importer),
    ("priorities", priorities),
    ("priorities swapped", priorities_swapped),
    ("graph update", graph_update),
    ("faults", faults::faults),
    ("memory ends", faults::memory_ends),
    ("hangs", faults::hangs),
    ("lost by count", faults::lost_by_count),
];

const NOT_READY: i32 = 600;
const ILLEGAL_ADDRESS: i32 = 700;
const LAUNCH_TIMEOUT: i32 = 702;

#[test]
fn codes_are_the_documented_ones() {
    run("codes", &[("VCUDA_MACHINE", "4-pcie")]);
}

fn codes() {
    let mut value = 0_u64;
    let result = place(&mut value);
    assert_eq!(call("cuDeviceGetCount", &[result]), 3, "not initialised");
    assert_eq!(call("cuInit", &[1]), 1);
    start(0);
    let table: &[(&str, &[u64], i32)] = &[
        ("cuDeviceGet", &[result, 4], 101),
        ("cuDeviceGetCount", &[0], 1),
        ("cuDeviceGetAttribute", &[result, 9999, 0], 1),
        ("cuMemAlloc_v2", &[result, 0], 1),
        ("cuMemAlloc_v2", &[0, 8], 1),
        ("cuMemAlloc_v2", &[result, 1 << 60], 2),
        ("cuMemFree_v2", &[12345], 1),
        ("cuMemFree_v2", &[0], 0),
        ("cuMemAllocManaged", &[result, 8, 1], 801),
        ("cuStreamCreate", &[result, 2], 1),
        ("cuStreamDestroy_v2", &[0x5555], 400),
        ("cuStreamSynchronize", &[0x5555], 400),
        ("cuEventRecord", &[0x5555, 0], 400),
        ("cuCtxSetCurrent", &[0x5555], 201),
        ("cuCtxEnablePeerAccess", &[0x5555, 0], 201),
        ("cuModuleLoadData", &[result, text("\x7fELF\0")], 209),
        ("cuModuleLoadData", &[result, text("no PTX\0")], 218),
        ("cuModuleUnload", &[0x5555], 400),
        ("cuMemHostUnregister", &[slice(&[1_u8])], 713),
        ("cuStreamWriteValue32", &[0, 0, 0, 0], 801),
        ("cuStreamWriteValue32_v2", &[0, 3, 0, 0], 1),
        ("cuStreamWaitValue64_v2", &[0, result, 0, 1 << 30], 801),
        ("cuGetErrorName", &[12345, result], 1),
        ("cuGetErrorName", &[700, result], 0),
        ("cuGetExportTable", &[result, 0], 801),
        ("cuCtxSetLimit", &[99, 1], 215),
        ("cuGraphLaunch", &[0x5555, 0], 1),
    ];
    for (name, arguments, code) in table {
        assert_eq!(call(name, arguments), *code, "{name} {arguments:x?}");
    }
    let second = get("cuDevicePrimaryCtxRetain", &[1]);
    assert_eq!(call("cuCtxEnablePeerAccess", &[second, 0]), 217, "no path");
    assert_eq!(call("cuGetProcAddress_v2", &[text("cuMemAlloc\0"), result, 12000, 0, 0]), 0);
    assert_eq!(value, symbol("cuMemAlloc_v2").expose_provenance() as u64);
    assert_eq!(call("cuGetProcAddress_v2", &[text("cuTexRefCreate\0"), result, 12000, 0, 0]), 0);
    assert_eq!(value, 0);
}

#[test]
fn memory_cannot_be_read_by_the_host() {
    run("memory", &[("VCUDA_MACHINE", "2-nvswitch")]);
}

fn memory() {
    start(0);
    let device = get("cuMemAlloc_v2", &[4096]);
    let fd = {
        // SAFETY: a terminated name, no other pointer.
        let fd = unsafe { libc::memfd_create(c"sink".as_ptr(), 0) };
        // SAFETY: a fresh descriptor.
        unsafe { std::fs::File::from_raw_fd(fd) }
    };
    let address = std::ptr::with_exposed_provenance::<libc::c_void>(usize::try_from(device).expect("an address"));
    // SAFETY: the kernel checks the address: that is what is tested.
    let written = unsafe { libc::write(std::os::fd::AsRawFd::as_raw_fd(&fd), address, 8) };
    assert_eq!(written, -1, "the host has read device memory");
    ok("cuMemsetD32_v2", &[device, 7, 1024]);
    assert_eq!(word(device + 4092), 7);
    assert_eq!(call("cuMemsetD32_v2", &[device, 7, 1025]), 1, "beyond its end");
    let values: Vec<u32> = (0..1024).collect();
    ok("cuMemcpyHtoD_v2", &[device, slice(&values), 4096]);
    let other = get("cuMemAlloc_v2", &[4096]);
    assert_eq!(other, device + 4096 + 512, "cut from the same block, with a gap");
    ok("cuMemcpyDtoD_v2", &[other, device, 4096]);
    assert_eq!(word(other + 400), 100);
    let (mut base, mut bytes) = (0_u64, 0_u64);
    ok("cuMemGetAddressRange_v2", &[place(&mut base), place(&mut bytes), other + 17]);
    assert_eq!((base, bytes), (other, 4096));
    let mut flag = 9_u8;
    ok("cuPointerGetAttribute", &[place(&mut flag), 10, other]);
    assert_eq!(flag, 1, "it can be shared by legacy IPC");
    let pinned = get("cuMemHostAlloc", &[64, 0]);
    ok("cuMemcpy", &[pinned, other + 40, 4]);
    let mut kind = 0_u32;
    ok("cuPointerGetAttribute", &[place(&mut kind), 2, pinned]);
    assert_eq!(kind, 1);
    assert_eq!(call("cuMemHostRegister_v2", &[pinned, 4096, 0]), 712);
    ok("cuMemFreeHost", &[pinned]);
    ok("cuMemFree_v2", &[device]);
    assert_eq!(call("cuMemcpyDtoH_v2", &[place(&mut flag), device, 1]), 1, "freed");
}

#[test]
fn mappings_have_rights() {
    run("virtual memory", &[("VCUDA_MACHINE", "2-nvswitch")]);
}

/// `CUmemAllocationProp` for pinned memory of a device that may be exported as a descriptor.
fn properties(device: u32) -> [u32; 8] {
    [1, 1, 1, device, 0, 0, 0, 0]
}

fn virtual_memory() {
    start(0);
    let wanted = properties(0);
    let unit = get("cuMemGetAllocationGranularity", &[slice(&wanted), 0]);
    assert_eq!(unit, 2 << 20);
    let fabric = [1_u32, 8, 1, 0, 0, 0, 0, 0];
    let mut handle = 0_u64;
    assert_eq!(call("cuMemCreate", &[place(&mut handle), unit, slice(&fabric), 0]), 800, "the attribute lies");
    assert_eq!(call("cuMemCreate", &[place(&mut handle), unit + 1, slice(&wanted), 0]), 1);
    let memory = get("cuMemCreate", &[unit, slice(&wanted), 0]);
    let at = get("cuMemAddressReserve", &[2 * unit, 0, 0, 0]);
    ok("cuMemMap", &[at, unit, 0, memory, 0]);
    ok("cuMemMap", &[at + unit, unit, 0, memory, 0]);
    let access = [1_u32, 0, 3];
    ok("cuMemSetAccess", &[at, 2 * unit, slice(&access), 1]);
    ok("cuMemsetD32_v2", &[at, 11, 64]);
    assert_eq!(word(at + unit), 11, "the same memory, mapped twice");
    let mut kept = 0_u64;
    ok("cuMemRetainAllocationHandle", &[place(&mut kept), at]);
    assert_eq!(kept, memory);
    ok("cuMemRelease", &[memory]);
    ok("cuMemRelease", &[memory]);
    assert_eq!(call("cuMemUnmap", &[at, unit / 2]), 1);
    ok("cuMemUnmap", &[at, 2 * unit]);
    ok("cuMemAddressFree", &[at, 2 * unit]);
}

#[test]
fn streams_and_events_keep_order() {
    run("streams", &[]);
}

extern "C" fn host_function(data: *mut std::ffi::c_void) {
    let mut count = 0_u32;
    assert_eq!(call("cuDeviceGetCount", &[place(&mut count)]), 800, "a host function may not call the driver");
    // SAFETY: the test gives the address of an atomic that outlives the work.
    let cell = unsafe { &*data.cast::<std::sync::atomic::AtomicU32>() };
    cell.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

fn streams() {
    start(0);
    let [a, b] = [(); 2].map(|()| get("cuStreamCreate", &[1]));
    let word_at = get("cuMemAlloc_v2", &[4096]);
    ok("cuMemsetD32_v2", &[word_at, 0, 1024]);
    ok("cuCtxSynchronize", &[]);
    let [start_of_it, end_of_it] = [(); 2].map(|()| get("cuEventCreate", &[0]));
    ok("cuEventQuery", &[end_of_it]);
    ok("cuEventRecord", &[start_of_it, a]);
    ok("cuStreamWaitValue32_v2", &[a, word_at, 1, 1]);
    ok("cuEventRecord", &[end_of_it, a]);
    ok("cuStreamWaitEvent", &[b, end_of_it, 0]);
    ok("cuMemsetD32Async", &[word_at + 4, 2, 1, b]);
    assert_eq!(call("cuStreamQuery", &[b]), NOT_READY);
    assert_eq!(call("cuEventQuery", &[end_of_it]), NOT_READY);
    let mut time = 0_f32;
    assert_eq!(call("cuEventElapsedTime", &[place(&mut time), start_of_it, end_of_it]), NOT_READY);
    let calls = std::sync::atomic::AtomicU32::new(0);
    let function = (host_function as extern "C" fn(*mut std::ffi::c_void) as *const ()).expose_provenance() as u64;
    ok("cuLaunchHostFunc", &[b, function, (&raw const calls).expose_provenance() as u64]);
    let c = get("cuStreamCreate", &[1]);
    ok("cuStreamWriteValue32_v2", &[c, word_at, 1, 0]);
    ok("cuStreamSynchronize", &[b]);
    assert_eq!(calls.load(std::sync::atomic::Ordering::SeqCst), 1);
    assert_eq!((word(word_at), word(word_at + 4)), (1, 2));
    ok("cuEventElapsedTime", &[place(&mut time), start_of_it, end_of_it]);
    assert!(time >= 0.0);
}

#[test]
fn batches_of_memory_operations_go_in_order() {
    run("memory operations", &[]);
}

fn memory_operations() {
    start(0);
    let page = get("cuMemHostAlloc", &[4096, 0]);
    let cell = |offset: u64| {
        let address = std::ptr::with_exposed_provenance_mut::<u32>(usize::try_from(page + offset).expect("an address"));
        // SAFETY: pinned memory of this test, aligned, used through atomics alone.
        unsafe { std::sync::atomic::AtomicU32::from_ptr(address) }
    };
    let order = std::sync::atomic::Ordering::SeqCst;
    let stream = get("cuStreamCreate", &[1]);
    // Write 1, wait until the second word has a bit, set it back.
    let entry = |operation: u64, at: u64, value: u64, flags: u64| [operation, page + at, value, flags, 0, 0];
    let batch = [entry(2, 0, 1, 0), entry(1, 4, 0xFF, 2), entry(2, 4, 0, 0)].concat();
    ok("cuStreamBatchMemOp_v2", &[stream, 3, slice(&batch), 0]);
    while cell(0).load(order) != 1 {
        std::hint::spin_loop();
    }
    assert_eq!(call("cuStreamQuery", &[stream]), NOT_READY);
    // The host releases the wait by a plain store.
    cell(4).store(0x80, order);
    ok("cuStreamSynchronize", &[stream]);
    assert_eq!(cell(4).load(order), 0);
    assert_eq!(call("cuStreamBatchMemOp_v2", &[stream, 257, slice(&batch), 0]), 1);
}

#[test]
fn kernels_wait_for_each_other_in_two_streams() {
    run("kernels", &[("VCUDA_STUCK_MS", "60000")]);
}

fn kernels_run() {
    start(0);
    let [wait_for, set_to, set_too] = kernels();
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 0, 16]);
    ok("cuCtxSynchronize", &[]);
    for function in [wait_for, set_to, set_too] {
        ok("cuFuncLoad", &[function]);
    }
    let [a, b] = [(); 2].map(|()| get("cuStreamCreate", &[1]));
    assert_eq!(launch(wait_for, 4, a, memory, 3), 0);
    assert_eq!(launch(set_to, 1, b, memory, 3), 0);
    ok("cuStreamSynchronize", &[a]);
    let mut registers = 0_u32;
    ok("cuFuncGetAttribute", &[place(&mut registers), 4, wait_for]);
    assert!((1..=255).contains(&registers));
    assert_eq!(launch(set_to, 0, a, memory, 3), 1, "no blocks");
    let arguments = [set_to, 1, 1, 1, 1025, 1, 1, 0, a, 0, 0];
    assert_eq!(call("cuLaunchKernel", &arguments), 1, "no parameters, too many threads");
    // An address where nothing is: the error stays with the context.
    assert_eq!(launch(set_to, 1, a, memory + 4096, 3), 0);
    assert_eq!(call("cuStreamSynchronize", &[a]), ILLEGAL_ADDRESS);
    assert_eq!(call("cuMemAlloc_v2", &[place(&mut registers), 64]), ILLEGAL_ADDRESS);
    assert_eq!(call("cuCtxSynchronize", &[]), ILLEGAL_ADDRESS);
}

#[test]
fn a_kernel_needs_peer_access() {
    let errors = run("peers", &[("VCUDA_MACHINE", "2-nvswitch")]);
    assert!(errors.contains("set_to"), "{errors}");
}

fn peers() {
    let first = start(0);
    let second = get("cuDevicePrimaryCtxRetain", &[1]);
    ok("cuCtxSetCurrent", &[second]);
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuCtxSetCurrent", &[first]);
    let [_, set_to, _] = kernels();
    ok("cuCtxEnablePeerAccess", &[second, 0]);
    assert_eq!(call("cuCtxEnablePeerAccess", &[second, 0]), 704);
    assert_eq!(launch(set_to, 1, 0, memory, 5), 0);
    ok("cuCtxSynchronize", &[]);
    assert_eq!(word(memory), 5);
    ok("cuCtxDisablePeerAccess", &[second]);
    assert_eq!(launch(set_to, 1, 0, memory, 6), 0);
    assert_eq!(call("cuCtxSynchronize", &[]), ILLEGAL_ADDRESS);
}

#[test]
fn capture_refuses_what_is_documented() {
    run("capture", &[]);
}

fn capture() {
    start(0);
    let [a, b] = [(); 2].map(|()| get("cuStreamCreate", &[1]));
    let blocking = get("cuStreamCreate", &[0]);
    let event = get("cuEventCreate", &[2]);
    let memory = get("cuMemAlloc_v2", &[64]);
    let mut graph = 0_u64;
    let begin = |stream, mode| {
        ok("cuStreamBeginCapture_v2", &[stream, mode]);
        ok("cuMemsetD32Async", &[memory, 1, 16, stream]);
    };
    assert_eq!(call("cuStreamBeginCapture_v2", &[0, 0]), 900, "the legacy stream");
    begin(a, 0);
    assert_eq!(call("cuMemAlloc_v2", &[place(&mut graph), 64]), 900, "unsafe in global mode");
    assert_eq!(call("cuStreamEndCapture", &[a, place(&mut graph)]), 901);
    begin(a, 2);
    ok("cuMemFree_v2", &[get("cuMemAlloc_v2", &[64])]);
    assert_eq!(call("cuStreamQuery", &[a]), 900);
    assert_eq!(call("cuStreamEndCapture", &[a, place(&mut graph)]), 901);
    begin(a, 2);
    ok("cuEventRecord", &[event, a]);
    assert_eq!(call("cuEventQuery", &[event]), 907);
    ok("cuStreamWaitEvent", &[b, event, 0]);
    ok("cuMemsetD32Async", &[memory, 2, 16, b]);
    assert_eq!(call("cuStreamEndCapture", &[b, place(&mut graph)]), 903, "not where it began");
    assert_eq!(call("cuStreamEndCapture", &[a, place(&mut graph)]), 901);
    begin(a, 2);
    ok("cuEventRecord", &[event, a]);
    ok("cuStreamWaitEvent", &[b, event, 0]);
    ok("cuMemsetD32Async", &[memory, 2, 16, b]);
    assert_eq!(call("cuStreamEndCapture", &[a, place(&mut graph)]), 904, "not joined");
    begin(blocking, 2);
    assert_eq!(call("cuMemsetD32Async", &[memory, 1, 16, 0]), 906, "the legacy stream would depend on it");
    assert_eq!(call("cuStreamEndCapture", &[blocking, place(&mut graph)]), 901);
    let live = get("cuEventCreate", &[2]);
    ok("cuEventRecord", &[live, b]);
    begin(a, 2);
    assert_eq!(call("cuStreamWaitEvent", &[a, live, 0]), 905, "work that is not captured");
    assert_eq!(call("cuStreamEndCapture", &[a, place(&mut graph)]), 901);
}

#[test]
fn a_graph_replays() {
    run("graphs", &[]);
}

extern "C" fn count_up(data: *mut std::ffi::c_void) {
    // SAFETY: the test gives the address of an atomic that outlives the graph.
    let cell = unsafe { &*data.cast::<std::sync::atomic::AtomicU32>() };
    cell.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

fn graphs() {
    start(0);
    let [wait_for, set_to, _] = kernels();
    let [a, b] = [(); 2].map(|()| get("cuStreamCreate", &[1]));
    let [fork, join] = [(); 2].map(|()| get("cuEventCreate", &[2]));
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 0, 16]);
    ok("cuCtxSynchronize", &[]);
    let mut graph = 0_u64;
    ok("cuStreamBeginCapture_v2", &[a, 0]);
    ok("cuMemsetD32Async", &[memory, 0, 16, a]);
    ok("cuEventRecord", &[fork, a]);
    ok("cuStreamWaitEvent", &[b, fork, 0]);
    assert_eq!(launch(set_to, 1, b, memory, 9), 0);
    assert_eq!(launch(wait_for, 2, a, memory, 9), 0);
    ok("cuEventRecord", &[join, b]);
    ok("cuStreamWaitEvent", &[a, join, 0]);
    ok("cuStreamWriteValue32_v2", &[a, memory + 4, 8, 0]);
    let (mut status, mut id, mut held) = (0_u32, 0_u64, 0_u64);
    ok("cuStreamGetCaptureInfo_v2", &[a, place(&mut status), place(&mut id), place(&mut held), 0, 0]);
    let counter = Box::leak(Box::new(std::sync::atomic::AtomicU32::new(0)));
    let destroy = (count_up as extern "C" fn(*mut std::ffi::c_void) as *const ()).expose_provenance() as u64;
    let object = get("cuUserObjectCreate", &[std::ptr::from_ref(counter).expose_provenance() as u64, destroy, 1, 1]);
    ok("cuGraphRetainUserObject", &[held, object, 1, 1]);
    ok("cuStreamEndCapture", &[a, place(&mut graph)]);
    assert_eq!((status, graph), (1, held));
    let mut count = 0_u64;
    ok("cuGraphGetNodes", &[graph, 0, place(&mut count)]);
    assert_eq!(count, 4, "fill, two kernels, memory operation");
    let exec = get("cuGraphInstantiateWithFlags", &[graph, 0]);
    ok("cuGraphDestroy", &[graph]);
    for _ in 0..100 {
        ok("cuGraphLaunch", &[exec, a]);
    }
    ok("cuStreamSynchronize", &[a]);
    assert_eq!((word(memory), word(memory + 4)), (9, 8));
    let order = std::sync::atomic::Ordering::SeqCst;
    assert_eq!(counter.load(order), 0, "the executable graph holds the object");
    ok("cuGraphExecDestroy", &[exec]);
    assert_eq!(counter.load(order), 1);
}

#[test]
fn pool_memory_cannot_be_shared() {
    run("pools", &[]);
}

fn pools() {
    start(0);
    let memory = get("cuMemAllocAsync", &[4096, 0]);
    let mut handle = [0_u8; 64];
    assert_eq!(call("cuIpcGetMemHandle", &[place(&mut handle), memory]), 1);
    let mut kept = 0_u64;
    assert_eq!(call("cuMemRetainAllocationHandle", &[place(&mut kept), memory]), 1);
    let mut flag = 9_u8;
    ok("cuPointerGetAttribute", &[place(&mut flag), 10, memory]);
    assert_eq!(flag, 0);
    ok("cuMemsetD8Async", &[memory, 1, 4096, 0]);
    ok("cuMemFreeAsync", &[memory, 0]);
    ok("cuCtxSynchronize", &[]);
    assert_eq!(call("cuMemsetD8_v2", &[memory, 1, 1]), 1);
    let legacy = get("cuMemAlloc_v2", &[64]);
    assert_eq!(call("cuMemFreeAsync", &[legacy, 0]), 1);
}

#[test]
fn a_gpu_that_falls_off_the_bus_ends_waits() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let path = folder.path().to_str().expect("a path");
    run("lost", &[("VCUDA_STATE", path), ("VCUDA_MACHINE", "2-nvswitch")]);
}

fn lost() {
    let first = start(0);
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 0, 16]);
    ok("cuStreamWaitValue32_v2", &[0, memory, 1, 1]);
    let folder = std::env::var("VCUDA_STATE").expect("a folder");
    let lose = std::thread::spawn(move || std::fs::write(format!("{folder}/lost.0"), b"").expect("a mark"));
    assert_eq!(call("cuCtxSynchronize", &[]), 999);
    lose.join().expect("it was lost");
    let mut other = 0_u64;
    assert_eq!(call("cuMemAlloc_v2", &[place(&mut other), 64]), 999);
    ok("cuCtxSetCurrent", &[get("cuDevicePrimaryCtxRetain", &[1])]);
    ok("cuMemFree_v2", &[get("cuMemAlloc_v2", &[64])]);
    ok("cuCtxSetCurrent", &[first]);
}

#[test]
fn entry_points_that_are_missing_are_told_in_one_line() {
    let errors = run("missing entry points", &[]);
    assert_eq!(errors.matches("vcuda: cuGetProcAddress").count(), 1, "{errors}");
    assert!(errors.contains("VCUDA_DEBUG=1") && !errors.contains("cuTexRefCreate"), "{errors}");
    let errors = run("missing entry points", &[("VCUDA_DEBUG", "1")]);
    for name in ["cuTexRefCreate", "cuMulticastCreate"] {
        assert!(errors.contains(&format!("{name} is not among the entry points")), "{errors}");
    }
}

#[test]
fn each_thread_is_told_what_it_has_asked_of_the_driver() {
    run("use", &[]);
}

fn thread_use() {
    #[repr(C)]
    struct Use {
        calls: u64,
        nanoseconds: u64,
    }
    // SAFETY: the function has this form, and the library stays.
    let ask: extern "C" fn() -> Use = unsafe { std::mem::transmute(symbol("vcudaThreadUse")) };
    start(0);
    let before = ask();
    for _ in 0..5 {
        ok("cuMemFree_v2", &[get("cuMemAlloc_v2", &[64])]);
    }
    // Others' calls do not count.
    std::thread::spawn(|| assert_eq!(call("cuCtxSynchronize", &[]), 201)).join().expect("a thread");
    let after = ask();
    assert_eq!(after.calls - before.calls, 10);
    assert!(after.nanoseconds > before.nanoseconds);
}

fn missing_entry_points() {
    let mut code = 7_u64;
    for name in ["cuTexRefCreate\0", "cuMulticastCreate\0", "cuTexRefCreate\0"] {
        assert_eq!(call("cuGetProcAddress_v2", &[text(name), place(&mut code), 12000, 0, 0]), 0);
        assert_eq!(code, 0, "{name}");
    }
}

#[test]
fn a_stream_of_higher_priority_goes_first() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let machine = folder.path().join("small.toml");
    std::fs::write(&machine, "[[gpu]]\nkind = \"h100\"\nmemory_mib = 256\nsms = 1\n").expect("a file");
    let machine = machine.to_str().expect("a path");
    run("priorities", &[("VCUDA_MACHINE", machine), ("VCUDA_STUCK_MS", "60000")]);
    let errors = run("priorities swapped", &[("VCUDA_MACHINE", machine), ("VCUDA_STUCK_MS", "300")]);
    assert!(errors.contains("find no room"), "{errors}");
}

/// Behind a kernel that fills the GPU stand one that fills it again until a word is set, and then the one that sets it. The code
/// of the first, when the second has the first priority and the third the second one.
fn two_behind_one(priorities: [i32; 2]) -> i32 {
    start(0);
    let (mut least, mut greatest) = (7_i32, 7_i32);
    ok("cuCtxGetStreamPriorityRange", &[place(&mut least), place(&mut greatest)]);
    assert!(least == 0 && greatest < 0, "{least} to {greatest}");
    let [wait_for, set_to, _] = kernels();
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 0, 16]);
    ok("cuCtxSynchronize", &[]);
    for function in [wait_for, set_to] {
        ok("cuFuncLoad", &[function]);
    }
    let stream = |priority: i32| get("cuStreamCreateWithPriority", &[1, u64::from(priority.cast_unsigned())]);
    let [first, second] = priorities.map(stream);
    let gate = stream(0);
    let mut told = 7_i32;
    ok("cuStreamGetPriority", &[second, place(&mut told)]);
    assert_eq!(told, priorities[1].max(greatest), "out of range is the nearest");
    ok("cuCtxSynchronize", &[]);
    let (mut sms, mut per_sm) = (0_u32, 0_u32);
    ok("cuDeviceGetAttribute", &[place(&mut sms), 16, 0]);
    ok("cuOccupancyMaxActiveBlocksPerMultiprocessor", &[place(&mut per_sm), wait_for, 32, 0]);
    let full = u64::from(sms * per_sm);
    assert_eq!(launch(wait_for, full, gate, memory, 1), 0);
    // More than fit at once, so that it fills the GPU whenever its blocks may enter.
    assert_eq!(launch(wait_for, full + 1, first, memory + 16, 1), 0);
    assert_eq!(launch(set_to, 1, second, memory + 16, 1), 0);
    let opener = stream(0);
    ok("cuStreamWriteValue32_v2", &[opener, memory, 1, 0]);
    call("cuStreamSynchronize", &[first])
}

fn priorities() {
    assert_eq!(two_behind_one([0, -100]), 0);
}

fn priorities_swapped() {
    assert_eq!(two_behind_one([-1, 0]), LAUNCH_TIMEOUT);
}

#[test]
fn an_executable_graph_takes_over_parameters_of_one_shape_only() {
    run("graph update", &[]);
}

fn graph_update() {
    start(0);
    let stream = get("cuStreamCreate", &[1]);
    let memory = get("cuMemAlloc_v2", &[64]);
    let [_, set_to, _] = kernels();
    ok("cuFuncLoad", &[set_to]);
    ok("cuMemsetD32_v2", &[memory, 0, 16]);
    ok("cuCtxSynchronize", &[]);
    let captured = |work: &dyn Fn()| {
        ok("cuStreamBeginCapture_v2", &[stream, 2]);
        work();
        let mut graph = 0_u64;
        ok("cuStreamEndCapture", &[stream, place(&mut graph)]);
        graph
    };
    let fill = |value: u64| ok("cuMemsetD32Async", &[memory, value, 1, stream]);
    let kernel = |value: u32| assert_eq!(launch(set_to, 1, stream, memory + 4, value), 0);
    let both = |value: u32| {
        fill(u64::from(value));
        kernel(value);
    };
    let exec = get("cuGraphInstantiateWithFlags", &[captured(&|| both(1)), 0]);
    let mut info = [9_u64; 3];
    let mut update = |graph: u64| {
        let code = call("cuGraphExecUpdate_v2", &[exec, graph, place(&mut info)]);
        (code, info[0] & 0xffff_ffff)
    };
    let found = || {
        ok("cuGraphLaunch", &[exec, stream]);
        ok("cuStreamSynchronize", &[stream]);
        (word(memory), word(memory + 4))
    };
    assert_eq!(found(), (1, 1));
    assert_eq!(update(captured(&|| both(2))), (0, 0));
    assert_eq!(found(), (2, 2));
    assert_eq!(update(captured(&|| fill(3))), (910, 2), "a node less");
    let turned = captured(&|| {
        kernel(3);
        fill(3);
    });
    assert_eq!(update(turned), (910, 3), "other types");
    assert_eq!(found(), (2, 2), "what was refused has changed nothing");
    assert_eq!(call("cuGraphExecUpdate_v2", &[0x5555, captured(&|| fill(1)), place(&mut [0_u64; 3])]), 1);
}
