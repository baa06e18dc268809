//! What a backend of a communication library asks of the driver: the entry points that `driver.rs` does not call.

mod support;

use support::{Parts, call, get, kernels, launch, ok, place, play, run, slice, start, symbol, text, word};

/// Plays the part that another test of this file has started this process for.
#[test]
fn part() {
    play(PARTS);
}

const PARTS: Parts = &[
    ("devices", devices),
    ("contexts", contexts),
    ("modules", modules),
    ("launches", launches),
    ("pointers", pointers),
    ("copies", copies),
    ("own pools", own_pools),
    ("registered", registered),
    ("memops", memops),
    ("threads that capture", threads_that_capture),
    ("looks at a capture", looks_at_a_capture),
    ("dependencies", dependencies),
    ("user objects", user_objects),
    ("waits", waits),
    ("survivor", survivor),
    ("doomed spinner", doomed_spinner),
];

const ILLEGAL_ADDRESS: i32 = 700;
const INVALID_VALUE: i32 = 1;
const CAPTURE_UNSUPPORTED: i32 = 900;

/// Calls that wait for the running kernels of their context by themselves.
const WAITING: [&str; 9] = [
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemUnmap",
    "cuModuleLoadData",
    "cuModuleUnload",
];

/// The driver's entry points, as exported.
const ENTRY_POINTS: &str = "\
     cuCtxCreate_v2 cuCtxCreate_v4 cuCtxDestroy_v2 cuCtxDisablePeerAccess cuCtxEnablePeerAccess \
     cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice cuCtxGetFlags cuCtxGetId \
     cuCtxGetLimit cuCtxGetStreamPriorityRange cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuCtxSetCacheConfig \
     cuCtxSetCurrent cuCtxSetFlags cuCtxSetLimit cuCtxSynchronize cuDeviceCanAccessPeer \
     cuDeviceComputeCapability cuDeviceGet cuDeviceGetAttribute cuDeviceGetByPCIBusId cuDeviceGetCount \
     cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuDeviceGetName cuDeviceGetP2PAttribute cuDeviceGetPCIBusId \
     cuDeviceGetUuid cuDeviceGetUuid_v2 cuDevicePrimaryCtxGetState cuDevicePrimaryCtxRelease_v2 \
     cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain cuDevicePrimaryCtxSetFlags_v2 cuDeviceSetMemPool \
     cuDeviceTotalMem_v2 cuDriverGetVersion cuEventCreate cuEventDestroy_v2 cuEventElapsedTime \
     cuEventElapsedTime_v2 cuEventQuery cuEventRecord cuEventRecordWithFlags cuEventSynchronize \
     cuFuncGetAttribute cuFuncGetModule cuFuncGetName cuFuncIsLoaded cuFuncLoad cuFuncSetAttribute \
     cuFuncSetCacheConfig cuGetErrorName cuGetErrorString cuGetExportTable cuGetProcAddress \
     cuGetProcAddress_v2 cuGraphCreate cuGraphDestroy cuGraphExecDestroy cuGraphExecUpdate_v2 cuGraphGetNodes \
     cuGraphInstantiateWithFlags cuGraphLaunch cuGraphNodeGetType cuGraphReleaseUserObject \
     cuGraphRetainUserObject cuGraphUpload cuInit cuIpcCloseMemHandle cuIpcGetMemHandle cuIpcOpenMemHandle_v2 \
     cuLaunchCooperativeKernel cuLaunchHostFunc cuLaunchKernel cuLaunchKernelEx cuMemAddressFree \
     cuMemAddressReserve cuMemAllocAsync cuMemAllocFromPoolAsync cuMemAllocHost_v2 cuMemAllocManaged \
     cuMemAlloc_v2 cuMemCreate cuMemExportToShareableHandle cuMemFreeAsync cuMemFreeHost cuMemFree_v2 \
     cuMemGetAccess cuMemGetAddressRange_v2 cuMemGetAllocationGranularity \
     cuMemGetAllocationPropertiesFromHandle cuMemGetInfo_v2 cuMemHostAlloc cuMemHostGetDevicePointer_v2 \
     cuMemHostGetFlags cuMemHostRegister_v2 cuMemHostUnregister cuMemImportFromShareableHandle cuMemMap \
     cuMemPoolCreate cuMemPoolDestroy cuMemPoolGetAttribute cuMemPoolSetAttribute cuMemPoolTrimTo \
     cuMemRelease cuMemRetainAllocationHandle cuMemSetAccess cuMemUnmap cuMemcpy cuMemcpyAsync \
     cuMemcpyDtoDAsync_v2 cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoDAsync_v2 \
     cuMemcpyHtoD_v2 cuMemcpyPeer cuMemcpyPeerAsync cuMemsetD16Async cuMemsetD16_v2 cuMemsetD32Async \
     cuMemsetD32_v2 cuMemsetD8Async cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2 \
     cuModuleGetLoadingMode cuModuleLoadData cuModuleLoadDataEx cuModuleUnload \
     cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags \
     cuOccupancyMaxPotentialBlockSize cuPointerGetAttribute cuPointerGetAttributes cuPointerSetAttribute \
     cuStreamBatchMemOp cuStreamBatchMemOp_v2 cuStreamBeginCapture_v2 cuStreamCreate \
     cuStreamCreateWithPriority cuStreamDestroy_v2 cuStreamEndCapture cuStreamGetCaptureInfo_v2 \
     cuStreamGetCaptureInfo_v3 cuStreamGetCtx cuStreamGetFlags cuStreamGetId cuStreamGetPriority \
     cuStreamIsCapturing cuStreamQuery cuStreamSynchronize cuStreamUpdateCaptureDependencies \
     cuStreamUpdateCaptureDependencies_v2 cuStreamWaitEvent cuStreamWaitValue32 cuStreamWaitValue32_v2 \
     cuStreamWaitValue64 cuStreamWaitValue64_v2 cuStreamWriteValue32 cuStreamWriteValue32_v2 \
     cuStreamWriteValue64 cuStreamWriteValue64_v2 cuThreadExchangeStreamCaptureMode cuUserObjectCreate \
     cuUserObjectRelease cuUserObjectRetain";

#[test]
fn every_entry_point_of_the_list_is_exported() {
    for name in ENTRY_POINTS.split_whitespace() {
        assert!(!symbol(name).is_null());
    }
    assert!(ENTRY_POINTS.split_whitespace().count() >= 150);
}

#[test]
fn devices_are_known_by_their_uuid_and_bus() {
    run("devices", &[("VCUDA_MACHINE", "8-cube-mesh")]);
}

fn devices() {
    ok("cuInit", &[0]);
    let (mut first, mut second) = ([0_u8; 16], [0_u8; 16]);
    ok("cuDeviceGetUuid_v2", &[place(&mut first), 0]);
    ok("cuDeviceGetUuid", &[place(&mut second), 0]);
    assert_eq!(first, second);
    ok("cuDeviceGetUuid_v2", &[place(&mut second), 1]);
    assert_ne!(first, second);
    let mut bus = [0_u8; 32];
    ok("cuDeviceGetPCIBusId", &[place(&mut bus), 32, 3]);
    assert_eq!(get("cuDeviceGetByPCIBusId", &[slice(&bus)]), 3);
    assert_eq!(get("cuDeviceTotalMem_v2", &[0]) % (1 << 20), 0);
    let (mut linked, mut not) = (7_u32, 7_u32);
    // CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED
    ok("cuDeviceGetP2PAttribute", &[place(&mut linked), 2, 0, 1]);
    ok("cuDeviceGetP2PAttribute", &[place(&mut not), 2, 0, 5]);
    assert_eq!((linked, not), (1, 0));
    let (mut flags, mut active) = (9_u32, 9_u32);
    ok("cuDevicePrimaryCtxGetState", &[0, place(&mut flags), place(&mut active)]);
    assert_eq!(active, 0);
    ok("cuDevicePrimaryCtxSetFlags_v2", &[0, 4]);
    start(0);
    ok("cuDevicePrimaryCtxGetState", &[0, place(&mut flags), place(&mut active)]);
    assert_eq!((flags & 4, active), (4, 1));
    let mut kind = std::ptr::null::<std::ffi::c_char>();
    ok("cuGetErrorString", &[700, place(&mut kind)]);
    assert!(!kind.is_null());
}

#[test]
fn each_thread_has_a_stack_of_contexts() {
    run("contexts", &[]);
}

fn contexts() {
    let primary = start(0);
    let own = get("cuCtxCreate_v2", &[0, 0]);
    assert_eq!(get("cuCtxGetCurrent", &[]), own, "a new context is current");
    ok("cuCtxPushCurrent_v2", &[primary]);
    assert_eq!(get("cuCtxPopCurrent_v2", &[]), primary);
    assert_eq!(get("cuCtxGetCurrent", &[]), own);
    assert_eq!(get("cuCtxGetDevice", &[]), 0);
    let (mut one, mut other) = (0_u64, 0_u64);
    ok("cuCtxGetId", &[own, place(&mut one)]);
    ok("cuCtxGetId", &[primary, place(&mut other)]);
    assert_ne!(one, other);
    let stream = get("cuStreamCreate", &[1]);
    let mut context = 0_u64;
    ok("cuStreamGetCtx", &[stream, place(&mut context)]);
    assert_eq!(context, own);
    ok("cuStreamGetCtx", &[0, place(&mut context)]);
    assert_eq!(context, own, "the null stream is the current context's");
    let (mut flags, mut id, mut other) = (0_u32, 0_u64, 0_u64);
    ok("cuStreamGetFlags", &[stream, place(&mut flags)]);
    ok("cuStreamGetId", &[stream, place(&mut id)]);
    ok("cuStreamGetId", &[1, place(&mut other)]);
    assert!(flags == 1 && id != other);
    assert_eq!(get("cuCtxGetLimit", &[0]), 1024, "the stack");
    ok("cuCtxSetLimit", &[0, 8192]);
    assert_eq!(get("cuCtxGetLimit", &[0]), 8192);
    assert_eq!(call("cuCtxSetLimit", &[0, 1 << 30]), INVALID_VALUE);
    ok("cuCtxDestroy_v2", &[own]);
    assert_eq!(call("cuStreamQuery", &[stream]), 400, "it went with its context");
    ok("cuCtxSetCurrent", &[primary]);
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuDevicePrimaryCtxReset_v2", &[0]);
    assert_eq!(call("cuMemFree_v2", &[memory]), 709, "reset");
}

#[test]
fn a_module_tells_of_its_functions_and_variables() {
    run("modules", &[]);
}

const VARIABLE: &str = "
.version 8.0
.target sm_80
.address_size 64
.visible .global .align 4 .u32 counter = 5;
.visible .entry count(.param .u64 p) .maxntid 128, 1, 1
{
    .reg .b32 %r<3>; .reg .b64 %rd<3>;
    .shared .align 4 .b8 room[1024];
    ld.param.u64 %rd1, [p];
    atom.global.add.u32 %r1, [counter], 1;
    st.global.u32 [%rd1], %r1;
    ret;
}
\0";

fn modules() {
    start(0);
    let module = get("cuModuleLoadDataEx", &[text(VARIABLE), 0, 0, 0]);
    let (mut counter, mut bytes) = (0_u64, 0_u64);
    ok("cuModuleGetGlobal_v2", &[place(&mut counter), place(&mut bytes), module, text("counter\0")]);
    assert_eq!((bytes, word(counter)), (4, 5));
    let count = get("cuModuleGetFunction", &[module, text("count\0")]);
    let mut of = 0_u64;
    ok("cuFuncGetModule", &[place(&mut of), count]);
    assert_eq!(of, module);
    let (mut state, mut name) = (9_u32, std::ptr::null::<std::ffi::c_char>());
    ok("cuFuncIsLoaded", &[place(&mut state), count]);
    assert_eq!(state, 0, "loading is lazy");
    ok("cuFuncGetName", &[place(&mut name), count]);
    // SAFETY: the driver keeps the name, with a zero byte behind it.
    assert_eq!(unsafe { std::ffi::CStr::from_ptr(name) }, c"count");
    let attribute = |number: u64| {
        let mut value = 0_u32;
        ok("cuFuncGetAttribute", &[place(&mut value), number, count]);
        value
    };
    assert_eq!((attribute(0), attribute(1)), (128, 1024), "most threads, shared memory");
    ok("cuFuncIsLoaded", &[place(&mut state), count]);
    assert_eq!(state, 1);
    let occupancy = |threads: u64, dynamic: u64| {
        let mut blocks = 0_u32;
        ok("cuOccupancyMaxActiveBlocksPerMultiprocessor", &[place(&mut blocks), count, threads, dynamic]);
        let mut same = 0_u32;
        let arguments = [place(&mut same), count, threads, dynamic, 0];
        ok("cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", &arguments);
        assert_eq!(blocks, same);
        blocks
    };
    assert_eq!(occupancy(128, 0), 16, "2,048 threads an SM");
    assert_eq!(occupancy(128, 40 << 10), 5, "227 KiB of shared memory");
    // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    let memory = get("cuMemAlloc_v2", &[64]);
    let mut address = memory;
    let parameters = [place(&mut address)];
    let run = |dynamic: u64| call("cuLaunchKernel", &[count, 1, 1, 1, 1, 1, 1, dynamic, 0, slice(&parameters), 0]);
    assert_eq!(run(60 << 10), INVALID_VALUE, "more than 48 KiB has to be asked for");
    ok("cuFuncSetAttribute", &[count, 8, 60 << 10]);
    assert_eq!(run(60 << 10), 0);
    ok("cuFuncSetCacheConfig", &[count, 1]);
    ok("cuCtxSynchronize", &[]);
    assert_eq!((word(memory), word(counter)), (5, 6));
    let (mut blocks, mut threads) = (0_u32, 0_u32);
    ok("cuOccupancyMaxPotentialBlockSize", &[place(&mut blocks), place(&mut threads), count, 0, 0, 0]);
    assert!(threads == 128 && blocks > 0);
    let mut mode = 0_u32;
    ok("cuModuleGetLoadingMode", &[place(&mut mode)]);
    assert_eq!(mode, 2, "lazy");
    ok("cuModuleUnload", &[module]);
    assert_eq!(call("cuModuleLoadData", &[place(&mut of), text("\x7fELF\0")]), 209, "machine code");
}

#[test]
fn a_cooperative_launch_must_fit_whole() {
    run("launches", &[]);
}

/// `cuLaunchKernelEx` of a kernel of the support's text, cooperative.
fn launch_cooperative(function: u64, blocks: u32, stream: u64, word: u64, value: u32) -> i32 {
    #[repr(C)]
    struct Config {
        shape: [u32; 7],
        stream: u64,
        attributes: *const [u64; 9],
        count: u32,
    }
    let (mut word, mut value) = (word, value);
    let parameters = [place(&mut word), place(&mut value)];
    // CU_LAUNCH_ATTRIBUTE_COOPERATIVE = 1
    let attribute = [2, 1, 0, 0, 0, 0, 0, 0, 0];
    let mut config = Config { shape: [blocks, 1, 1, 32, 1, 1, 0], stream, attributes: &raw const attribute, count: 1 };
    call("cuLaunchKernelEx", &[place(&mut config), function, slice(&parameters), 0])
}

fn launches() {
    start(0);
    let [wait_for, set_to, _] = kernels();
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 7, 16]);
    // The fill is queued on the legacy stream, which a non-blocking stream does not wait for.
    ok("cuCtxSynchronize", &[]);
    let stream = get("cuStreamCreate", &[1]);
    assert_eq!(launch_cooperative(wait_for, 100, stream, memory, 7), 0);
    assert_eq!(launch_cooperative(set_to, 1, stream, memory, 8), 0);
    assert_eq!(launch_cooperative(wait_for, 1 << 20, stream, memory, 7), 720, "COOPERATIVE_LAUNCH_TOO_LARGE");
    ok("cuStreamSynchronize", &[stream]);
    assert_eq!(word(memory), 8);
}

#[test]
fn attributes_of_pointers_come_in_one_call() {
    run("pointers", &[]);
}

fn pointers() {
    let context = start(0);
    let memory = get("cuMemAlloc_v2", &[4096]);
    let ask = |address: u64| {
        let (mut of, mut kind, mut id, mut start, mut bytes, mut types) = (9_u64, 9_u32, 9_u64, 9_u64, 9_u64, 9_u64);
        let (mut ordinal, mut legacy) = (9_i32, 9_u8);
        let attributes = [1_i32, 2, 7, 9, 10, 11, 12, 14];
        let places = [
            place(&mut of),
            place(&mut kind),
            place(&mut id),
            place(&mut ordinal),
            place(&mut legacy),
            place(&mut start),
            place(&mut bytes),
            place(&mut types),
        ];
        ok("cuPointerGetAttributes", &[8, slice(&attributes), slice(&places), address]);
        (of, kind, id, ordinal, legacy, (start, bytes, types))
    };
    let (of, kind, id, ordinal, legacy, range) = ask(memory + 100);
    assert_eq!((of, kind, ordinal, legacy, range), (context, 2, 0, 1, (memory, 4096, 0)));
    ok("cuMemFree_v2", &[memory]);
    let again = get("cuMemAlloc_v2", &[4096]);
    assert_eq!(again, memory, "the same address");
    assert_ne!(ask(again).2, id, "and another buffer: a kept registration is stale");
    let mut own = 0_u64;
    let (of, kind, id, ordinal, ..) = ask(place(&mut own));
    assert_eq!((of, kind, id, ordinal), (0, 0, 0, -2), "ordinary memory of the host");
    // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
    let mut yes = 1_u32;
    ok("cuPointerSetAttribute", &[place(&mut yes), 6, again]);
    let properties = [1_u32, 1, 1, 0, 0, 0, 0, 0];
    let physical = get("cuMemCreate", &[2 << 20, slice(&properties), 0]);
    let at = get("cuMemAddressReserve", &[2 << 20, 0, 0, 0]);
    ok("cuMemMap", &[at, 2 << 20, 0, physical, 0]);
    ok("cuMemSetAccess", &[at, 2 << 20, slice(&[1_u32, 0, 3]), 1]);
    let (_, kind, _, _, legacy, (.., types)) = ask(at);
    assert_eq!((kind, legacy, types), (2, 0, 1), "by descriptor, not by legacy handle");
    let mut flags = 0_u64;
    ok("cuMemGetAccess", &[place(&mut flags), slice(&[1_u32, 0]), at]);
    assert_eq!(flags, 3);
    let mut found = [9_u32; 8];
    ok("cuMemGetAllocationPropertiesFromHandle", &[place(&mut found), physical]);
    assert_eq!(found[..4], properties[..4]);
}

#[test]
fn copies_of_every_direction_keep_the_streams_order() {
    run("copies", &[("VCUDA_MACHINE", "2-nvswitch")]);
}

fn copies() {
    let first = start(0);
    let [a, b] = [(); 2].map(|()| get("cuMemAlloc_v2", &[256]));
    let second = get("cuDevicePrimaryCtxRetain", &[1]);
    ok("cuCtxSetCurrent", &[second]);
    let there = get("cuMemAlloc_v2", &[256]);
    ok("cuCtxSetCurrent", &[first]);
    let stream = get("cuStreamCreate", &[1]);
    let values: Vec<u32> = (100..164).collect();
    let mut back = vec![0_u32; 64];
    ok("cuMemsetD16Async", &[a, 0x0101, 128, stream]);
    ok("cuMemcpyHtoDAsync_v2", &[a, slice(&values), 128, stream]);
    ok("cuMemcpyDtoDAsync_v2", &[b, a, 256, stream]);
    ok("cuMemcpyPeerAsync", &[there, second, b, first, 256, stream]);
    ok("cuMemcpyAsync", &[a, there, 256, stream]);
    ok("cuMemcpyDtoHAsync_v2", &[place(&mut back[0]), a, 256, stream]);
    ok("cuStreamSynchronize", &[stream]);
    assert_eq!(back[..32], values[..32]);
    assert_eq!(back[32..], [0x0101_0101; 32]);
    ok("cuMemsetD16_v2", &[b, 3, 128]);
    ok("cuMemcpyPeer", &[there, second, b, first, 256]);
    assert_eq!(word(there + 252), 0x0003_0003);
}

#[test]
fn a_pool_of_ones_own_gives_memory() {
    run("own pools", &[]);
}

fn own_pools() {
    start(0);
    // CU_MEM_ALLOCATION_TYPE_PINNED, no handles, on device 0.
    let mut properties = [0_u32; 22];
    properties[..4].copy_from_slice(&[1, 0, 1, 0]);
    let pool = get("cuMemPoolCreate", &[slice(&properties)]);
    let memory = get("cuMemAllocFromPoolAsync", &[4096, pool, 0]);
    let mut threshold = u64::MAX;
    ok("cuMemPoolSetAttribute", &[pool, 4, place(&mut threshold)]);
    let mut used = 0_u64;
    ok("cuMemPoolGetAttribute", &[pool, 7, place(&mut used)]);
    assert!(used >= 4096, "{used}");
    ok("cuMemFreeAsync", &[memory, 0]);
    ok("cuCtxSynchronize", &[]);
    ok("cuMemPoolTrimTo", &[pool, 0]);
    let usual = get("cuDeviceGetDefaultMemPool", &[0]);
    assert_eq!(get("cuDeviceGetMemPool", &[0]), usual);
    ok("cuDeviceSetMemPool", &[0, pool]);
    assert_eq!(get("cuDeviceGetMemPool", &[0]), pool);
    ok("cuDeviceSetMemPool", &[0, usual]);
    ok("cuMemPoolDestroy", &[pool]);
}

#[test]
fn a_shared_mapping_that_is_registered_is_polled_by_kernel_stream_and_host() {
    run("registered", &[]);
}

fn registered() {
    start(0);
    // SAFETY: a terminated name, no other pointer.
    let fd = unsafe { libc::memfd_create(c"control".as_ptr(), 0) };
    // SAFETY: the descriptor was made above.
    assert_eq!(unsafe { libc::ftruncate(fd, 8192) }, 0);
    let map = || {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file of this length.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), 8192, rights, libc::MAP_SHARED, fd, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        at.expose_provenance() as u64
    };
    // As two processes have it: two mappings of one file, each registered.
    let (mine, theirs) = (map(), map());
    // CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP
    ok("cuMemHostRegister_v2", &[mine, 8192, 3]);
    ok("cuMemHostRegister_v2", &[theirs, 8192, 3]);
    let (mut to_mine, mut to_theirs, mut flags) = (0_u64, 0_u64, 0_u32);
    ok("cuMemHostGetDevicePointer_v2", &[place(&mut to_mine), mine, 0]);
    ok("cuMemHostGetDevicePointer_v2", &[place(&mut to_theirs), theirs, 0]);
    ok("cuMemHostGetFlags", &[place(&mut flags), mine]);
    assert_eq!(flags & 3, 3);
    let [wait_for, set_to, _] = kernels();
    for function in [wait_for, set_to] {
        ok("cuFuncLoad", &[function]);
    }
    let [a, b] = [(); 2].map(|()| get("cuStreamCreate", &[1]));
    assert_eq!(launch(wait_for, 1, a, to_theirs, 5), 0);
    ok("cuStreamWaitValue32_v2", &[b, to_mine + 4096, 6, 1]);
    assert_eq!(launch(set_to, 1, b, to_mine, 5), 0);
    assert_eq!(call("cuStreamQuery", &[a]), 600);
    let cell = std::ptr::with_exposed_provenance_mut::<u32>(usize::try_from(theirs + 4096).expect("an address"));
    // SAFETY: mapped above, aligned, used through atomics alone.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(cell) }.store(6, std::sync::atomic::Ordering::Release);
    ok("cuStreamSynchronize", &[a]);
    ok("cuStreamSynchronize", &[b]);
    ok("cuMemHostUnregister", &[mine]);
    assert_eq!(call("cuMemHostUnregister", &[mine]), 713, "HOST_MEMORY_NOT_REGISTERED");
    assert_eq!(launch(set_to, 1, a, to_mine, 1), 0);
    assert_eq!(call("cuStreamSynchronize", &[a]), ILLEGAL_ADDRESS, "no longer mapped for the GPU");
}

#[test]
fn memory_operations_of_both_widths_are_checked() {
    run("memops", &[]);
}

fn memops() {
    start(0);
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 0, 16]);
    ok("cuCtxSynchronize", &[]);
    let stream = get("cuStreamCreate", &[1]);
    ok("cuStreamWriteValue64_v2", &[stream, memory, 1 << 40 | 3, 0]);
    ok("cuStreamWaitValue64_v2", &[stream, memory, 1 << 40, 0]);
    ok("cuStreamSynchronize", &[stream]);
    assert_eq!((word(memory), word(memory + 4)), (3, 256));
    for (name, code) in [("cuStreamWriteValue64", 801), ("cuStreamWaitValue64", 801)] {
        assert_eq!(call(name, &[stream, memory, 1, 0]), code, "version 1 is off");
    }
    assert_eq!(call("cuStreamWriteValue32_v2", &[stream, memory + 2, 1, 0]), INVALID_VALUE, "not aligned");
    let mut own = 0_u64;
    assert_eq!(call("cuStreamWriteValue32_v2", &[stream, place(&mut own), 1, 0]), INVALID_VALUE, "not registered");
    assert_eq!(call("cuStreamWaitValue32_v2", &[stream, memory, 1, 1 << 30]), 801, "a flush that it cannot do");
    let entries: Vec<[u64; 6]> = (0..256).map(|_| [2, memory, 1, 0, 0, 0]).collect();
    ok("cuStreamBatchMemOp_v2", &[stream, 255, slice(&entries), 0]);
    assert_eq!(call("cuStreamBatchMemOp_v2", &[stream, 256, slice(&entries), 0]), INVALID_VALUE, "less than 256");
    let mut event = [0_u64; 2].map(|_| get("cuEventCreate", &[0]));
    ok("cuEventRecordWithFlags", &[event[0], stream, 0]);
    ok("cuEventRecord", &[event[1], stream]);
    ok("cuEventSynchronize", &[event[1]]);
    let mut time = -1_f32;
    ok("cuEventElapsedTime_v2", &[place(&mut time), event[0], event[1]]);
    assert!(time >= 0.0);
    ok("cuEventDestroy_v2", &[std::mem::take(&mut event[0])]);
}

#[test]
fn a_thread_in_relaxed_mode_disturbs_no_capture() {
    run("threads that capture", &[]);
}

fn threads_that_capture() {
    let context = start(0);
    let stream = get("cuStreamCreate", &[1]);
    let memory = get("cuMemAlloc_v2", &[64]);
    let mut graph = 0_u64;
    let from_other_thread = |relaxed: bool| {
        std::thread::spawn(move || {
            ok("cuCtxSetCurrent", &[context]);
            // CU_STREAM_CAPTURE_MODE_RELAXED
            let mut mode = 2_u32;
            if relaxed {
                ok("cuThreadExchangeStreamCaptureMode", &[place(&mut mode)]);
                assert_eq!(mode, 0, "a thread begins in global mode");
            }
            let mut other = 0_u64;
            let code = call("cuMemAlloc_v2", &[place(&mut other), 64]);
            if relaxed {
                ok("cuThreadExchangeStreamCaptureMode", &[place(&mut mode)]);
                assert_eq!(mode, 2, "what was set");
            }
            code
        })
        .join()
        .expect("it ends")
    };
    for (relaxed, code) in [(false, CAPTURE_UNSUPPORTED), (true, 0)] {
        ok("cuStreamBeginCapture_v2", &[stream, 0]);
        ok("cuMemsetD32Async", &[memory, 1, 16, stream]);
        let mut status = 9_u32;
        ok("cuStreamIsCapturing", &[stream, place(&mut status)]);
        assert_eq!(status, 1);
        assert_eq!(from_other_thread(relaxed), code);
        let ended = call("cuStreamEndCapture", &[stream, place(&mut graph)]);
        assert_eq!(ended, if relaxed { 0 } else { 901 });
    }
    ok("cuGraphDestroy", &[graph]);
}

#[test]
fn a_look_by_another_thread_or_at_the_legacy_stream_ends_a_capture() {
    run("looks at a capture", &[]);
}

fn looks_at_a_capture() {
    let context = start(0);
    let (stream, blocking) = (get("cuStreamCreate", &[1]), get("cuStreamCreate", &[0]));
    let event = get("cuEventCreate", &[2]);
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuEventRecord", &[event, stream]);
    ok("cuStreamSynchronize", &[stream]);
    let mut graph = 0_u64;
    for (mode, code, ended) in [(0, CAPTURE_UNSUPPORTED, 901), (1, 0, 0)] {
        ok("cuStreamBeginCapture_v2", &[stream, mode]);
        ok("cuMemsetD32Async", &[memory, 1, 16, stream]);
        let look = move || {
            ok("cuCtxSetCurrent", &[context]);
            call("cuEventQuery", &[event])
        };
        assert_eq!(std::thread::spawn(look).join().expect("it ends"), code, "mode {mode}");
        assert_eq!(call("cuStreamEndCapture", &[stream, place(&mut graph)]), ended, "mode {mode}");
    }
    ok("cuStreamBeginCapture_v2", &[blocking, 2]);
    ok("cuMemsetD32Async", &[memory, 1, 16, blocking]);
    let mut status = 9_u32;
    assert_eq!(call("cuStreamIsCapturing", &[0, place(&mut status)]), 906, "STREAM_CAPTURE_IMPLICIT");
    assert_eq!(call("cuStreamEndCapture", &[blocking, place(&mut graph)]), 901);
}

#[test]
fn a_capture_is_told_and_given_its_dependencies() {
    run("dependencies", &[]);
}

fn dependencies() {
    start(0);
    let stream = get("cuStreamCreate", &[1]);
    let memory = get("cuMemAlloc_v2", &[64]);
    let info = || {
        let (mut status, mut id, mut graph) = (0_u32, 0_u64, 0_u64);
        let (mut nodes, mut edges, mut count) = (std::ptr::null::<u64>(), std::ptr::null::<u64>(), 0_usize);
        let places = [place(&mut id), place(&mut graph), place(&mut nodes), place(&mut edges), place(&mut count)];
        ok("cuStreamGetCaptureInfo_v3", &[&[stream, place(&mut status)], &places[..]].concat());
        assert_eq!(status, 1);
        // SAFETY: the driver keeps so many nodes until this thread's next call.
        unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec()
    };
    ok("cuStreamBeginCapture_v2", &[stream, 2]);
    ok("cuMemsetD32Async", &[memory, 1, 16, stream]);
    let first = info();
    assert_eq!(first.len(), 1);
    ok("cuMemsetD32Async", &[memory, 2, 16, stream]);
    let second = info();
    assert_ne!(first, second);
    // CU_STREAM_ADD_CAPTURE_DEPENDENCIES, then CU_STREAM_SET_CAPTURE_DEPENDENCIES
    ok("cuStreamUpdateCaptureDependencies", &[stream, slice(&first), 1, 0]);
    assert_eq!(info().len(), 2);
    ok("cuStreamUpdateCaptureDependencies_v2", &[stream, slice(&second), 0, 1, 1]);
    assert_eq!(info(), second);
    let mut batch = [[2_u64, memory, 5, 0, 0, 0], [1, memory, 5, 1, 0, 0], [2, memory, 0, 0, 0, 0]];
    ok("cuStreamBatchMemOp_v2", &[stream, 3, place(&mut batch), 0]);
    let mut graph = 0_u64;
    ok("cuStreamEndCapture", &[stream, place(&mut graph)]);
    let (mut nodes, mut count) = ([0_u64; 8], 8_u64);
    ok("cuGraphGetNodes", &[graph, place(&mut nodes), place(&mut count)]);
    assert_eq!(count, 3);
    let kinds: Vec<u32> = nodes[..3]
        .iter()
        .map(|node| {
            let mut kind = 99_u32;
            ok("cuGraphNodeGetType", &[*node, place(&mut kind)]);
            kind
        })
        .collect();
    assert_eq!(kinds, [2, 2, 12], "two fills and a batch of memory operations");
    let exec = get("cuGraphInstantiateWithFlags", &[graph, 0]);
    ok("cuGraphUpload", &[exec, stream]);
    for _ in 0..10 {
        ok("cuGraphLaunch", &[exec, stream]);
        // Live work between replays, on the same words.
        ok("cuStreamWriteValue32_v2", &[stream, memory, 7, 0]);
    }
    ok("cuStreamSynchronize", &[stream]);
    assert_eq!((word(memory), word(memory + 4)), (7, 2));
    ok("cuGraphExecDestroy", &[exec]);
    ok("cuGraphDestroy", &[graph]);
    ok("cuGraphDestroy", &[get("cuGraphCreate", &[0])]);
}

#[test]
fn a_user_object_lives_as_long_as_its_references() {
    run("user objects", &[]);
}

extern "C" fn count_up(data: *mut std::ffi::c_void) {
    // SAFETY: the test gives the address of an atomic that outlives the object.
    let cell = unsafe { &*data.cast::<std::sync::atomic::AtomicU32>() };
    cell.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
}

fn user_objects() {
    start(0);
    let counter = Box::leak(Box::new(std::sync::atomic::AtomicU32::new(0)));
    let destroyed = || counter.load(std::sync::atomic::Ordering::SeqCst);
    let destroy = (count_up as extern "C" fn(*mut std::ffi::c_void) as *const ()).expose_provenance() as u64;
    // CU_USER_OBJECT_NO_DESTRUCTOR_SYNC
    let object = get("cuUserObjectCreate", &[std::ptr::from_ref(counter).expose_provenance() as u64, destroy, 1, 1]);
    ok("cuUserObjectRetain", &[object, 2]);
    ok("cuUserObjectRelease", &[object, 2]);
    let graph = get("cuGraphCreate", &[0]);
    ok("cuGraphRetainUserObject", &[graph, object, 2, 0]);
    ok("cuUserObjectRelease", &[object, 1]);
    ok("cuGraphReleaseUserObject", &[graph, object, 1]);
    assert_eq!(destroyed(), 0, "the graph holds one reference");
    ok("cuGraphDestroy", &[graph]);
    assert_eq!(destroyed(), 1);
}

#[test]
fn calls_that_wait_for_kernels_are_reported_beside_one_that_spins() {
    std::thread::scope(|scope| {
        for name in WAITING {
            scope.spawn(move || {
                let errors = run("waits", &[("VCUDA_TEST_CALL", name), ("VCUDA_STUCK_MS", "1500")]);
                let wait = format!("in {name} (process ");
                let why = "the call synchronises with the context's work by itself";
                assert!(errors.contains("vcuda: deadlock: "), "{name}: {errors}");
                assert!(errors.lines().any(|line| line.contains(&wait) && line.ends_with(why)), "{name}: {errors}");
            });
        }
    });
}

/// A kernel spins for a word that this thread would set after the call.
fn waits() {
    start(0);
    let name = std::env::var("VCUDA_TEST_CALL").expect("the name of a call");
    let [wait_for, ..] = kernels();
    ok("cuFuncLoad", &[wait_for]);
    let (word_at, freed, pinned) =
        (get("cuMemAlloc_v2", &[64]), get("cuMemAlloc_v2", &[64]), get("cuMemHostAlloc", &[64, 0]));
    ok("cuMemsetD32_v2", &[word_at, 0, 16]);
    // The kernel's stream does not wait for the default one, where the fill may be under way still.
    ok("cuCtxSynchronize", &[]);
    let mut pages = vec![0_u8; 8192];
    let page = place(&mut pages[0]).next_multiple_of(4096);
    if name == "cuMemHostUnregister" {
        ok("cuMemHostRegister_v2", &[page, 4096, 0]);
    }
    let module = get("cuModuleLoadData", &[text(support::PTX)]);
    let physical = get("cuMemCreate", &[2 << 20, slice(&[1_u32, 1, 1, 0, 0, 0, 0, 0]), 0]);
    let at = get("cuMemAddressReserve", &[2 << 20, 0, 0, 0]);
    ok("cuMemMap", &[at, 2 << 20, 0, physical, 0]);
    let stream = get("cuStreamCreate", &[1]);
    assert_eq!(launch(wait_for, 1, stream, word_at, 1), 0);
    let mut result = 0_u64;
    let out = place(&mut result);
    let code = match name.as_str() {
        "cuMemAlloc_v2" => call("cuMemAlloc_v2", &[out, 64]),
        "cuMemFree_v2" => call("cuMemFree_v2", &[freed]),
        "cuMemHostAlloc" => call("cuMemHostAlloc", &[out, 64, 0]),
        "cuMemFreeHost" => call("cuMemFreeHost", &[pinned]),
        "cuMemHostRegister_v2" => call("cuMemHostRegister_v2", &[page, 4096, 0]),
        "cuMemHostUnregister" => call("cuMemHostUnregister", &[page]),
        "cuMemUnmap" => call("cuMemUnmap", &[at, 2 << 20]),
        "cuModuleLoadData" => call("cuModuleLoadData", &[out, text(support::PTX)]),
        "cuModuleUnload" => call("cuModuleUnload", &[module]),
        other => panic!("{other} is not among the calls that wait"),
    };
    assert_eq!(code, 702, "LAUNCH_TIMEOUT: nothing can move");
}

#[test]
fn the_turn_of_a_process_that_is_killed_passes_on() {
    let folder = tempfile::tempdir_in("/dev/shm").expect("a folder");
    let path = folder.path().to_str().expect("a path");
    run("survivor", &[("VCUDA_STATE", path), ("VCUDA_MACHINE", "1")]);
}

/// Its kernel spins until it is killed.
fn doomed_spinner() {
    start(0);
    let [wait_for, ..] = kernels();
    let memory = get("cuMemAlloc_v2", &[64]);
    ok("cuMemsetD32_v2", &[memory, 0, 16]);
    assert_eq!(launch(wait_for, 600, 0, memory, 1), 0, "more blocks than all look again in a millisecond");
    eprintln!("spins");
    // The survivor holds the other end of the input: this ends with it at the latest.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).expect("a pipe");
}

fn survivor() {
    use std::io::BufRead as _;
    start(0);
    let [_, set_to, _] = kernels();
    let memory = get("cuMemAlloc_v2", &[64]);
    let mut command = support::part("doomed spinner", &[]);
    let mut spinner = command.stdin(std::process::Stdio::piped()).spawn().expect("a process");
    let errors = std::io::BufReader::new(spinner.stderr.take().expect("a pipe"));
    assert!(errors.lines().any(|line| line.expect("text") == "spins"));
    let launches = |values: std::ops::RangeInclusive<u32>| {
        for value in values {
            assert_eq!(launch(set_to, 3, 0, memory, value), 0);
            ok("cuCtxSynchronize", &[]);
            assert_eq!(word(memory), value);
        }
    };
    launches(1..=5);
    spinner.kill().expect("our child");
    spinner.wait().expect("our child");
    launches(6..=10);
}
