//! Tests that cannot share a GPU with others, because they stop it or break it: each has a run of its own.

use std::ffi::{c_int, c_uint};
use std::io::Write as _;
use std::time::Duration;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use super::gpu::{Members, at, gpu, read, symbol, write};
use crate::device::cuda::gpus;
use crate::device::{Average, Device, DeviceMemory, FabricHandle, FabricMemory, Kernel, Pass, Sharing, Store};
use crate::error::Kind;
use crate::sync::Deadline;
use crate::sys::clock;
use crate::types::{DataType, ReduceOp};
use machine::gpus::enough;

/// `CU_STREAM_WAIT_VALUE_GEQ`
const AT_LEAST: c_uint = 0;

#[test]
fn memory_is_not_freed_while_work_is_under_way() {
    let Some(gpu) = gpu() else { return };
    let all = Members::new(gpu, 1);
    let flag = gpu.allocate(4, Sharing::Threads).unwrap();
    // SAFETY: the type that cuda.h declares.
    let wait_value: unsafe extern "C" fn(CUstream, CUdeviceptr, u32, c_uint) -> c_int =
        unsafe { symbol(c"cuStreamWaitValue32_v2") };
    let waiting = gpu.allocate(4096, Sharing::Threads).unwrap();
    let entered = all.active.primary().enter().unwrap();
    let address = flag.base().as_ptr().expose_provenance() as CUdeviceptr;
    // SAFETY: the flag lives until the stream has come past it.
    assert_eq!(unsafe { wait_value(all.streams[0].handle().0, address, 1, AT_LEAST) }, 0);
    all.sum(&all.handles()).unwrap();
    drop(entered);
    // The driver's own call would wait for the stream, which waits for this thread.
    drop(waiting);
    assert_eq!(all.active.count_retired(), 1);
    write(gpu, at(&flag, 0, 4), &mut 1_u32.to_ne_bytes());
    all.streams[0].drain().unwrap();
    drop(gpu.allocate(4096, Sharing::Threads).unwrap());
    assert_eq!(all.active.count_retired(), 0);
}

/// The driver's call waits for the kernels of all GPUs, also of those that have nothing to do with the memory's.
#[test]
fn memory_is_not_freed_while_another_gpu_works() {
    let Some([gpu, other, ..]) = enough(2, gpus()) else { return };
    let (mine, others) = (gpu.active().unwrap(), other.active().unwrap());
    let flag = other.allocate(4, Sharing::Threads).unwrap();
    // SAFETY: the type that cuda.h declares.
    let wait_value: unsafe extern "C" fn(CUstream, CUdeviceptr, u32, c_uint) -> c_int =
        unsafe { symbol(c"cuStreamWaitValue32_v2") };
    let waiting = gpu.allocate(4096, Sharing::Processes).unwrap();
    let stream = others.stream().unwrap();
    let entered = others.primary().enter().unwrap();
    let address = flag.base().as_ptr().expose_provenance() as CUdeviceptr;
    // SAFETY: the flag lives until the stream has come past it.
    assert_eq!(unsafe { wait_value(stream.handle().0, address, 1, AT_LEAST) }, 0);
    drop(entered);
    drop(waiting);
    assert_eq!(mine.count_retired(), 1);
    // A rank on that GPU that launches holds nobody up, and is not held up.
    let launching = mine.primary().gate().launch();
    write(other, at(&flag, 0, 4), &mut 1_u32.to_ne_bytes());
    stream.drain().unwrap();
    mine.free_retired();
    assert_eq!(mine.count_retired(), 1);
    drop(launching);
    mine.free_retired();
    assert_eq!(mine.count_retired(), 0);
}

/// It can be mapped by other processes of this host whatever the driver says of other hosts.
#[test]
fn memory_for_other_hosts_is_at_least_memory_for_this_one() {
    let Some(gpu) = gpu() else { return };
    let mine = gpu.allocate(BYTES, Sharing::Hosts).unwrap();
    write(gpu, at(&mine, 0, BYTES), &mut [3; BYTES]);
    let here = gpu.import(gpu.export(&mine).unwrap(), BYTES).unwrap();
    assert_eq!(read(gpu, at(&here, 0, BYTES)), [3; BYTES]);
    let usual = gpu.fabric_handle(&gpu.allocate(BYTES, Sharing::Processes).unwrap()).unwrap_err();
    let outcome = match gpu.fabric_handle(&mine) {
        Ok(handle) => {
            let there = gpu.import_fabric(&handle, BYTES).unwrap();
            assert_eq!(read(gpu, at(&there, 0, BYTES)), [3; BYTES]);
            assert_eq!(gpu.import_fabric(&handle, 2 * BYTES).unwrap_err().kind(), Kind::Remote);
            let other = gpu.import_fabric(&FabricHandle([7; FabricHandle::BYTES]), BYTES).unwrap_err();
            assert!(other.kind() == Kind::Remote && other.message().contains("fabric handle"), "{other}");
            assert!(mine.keep().detach().is_err() && gpu.fabric_clique().is_ok());
            "works"
        }
        Err(error) if gpu.fabric => {
            assert!(error.message().contains("cuMemCreate with fabric handles: CUDA_ERROR_NOT_"), "{error}");
            assert!(error.message().contains("IMEX"), "{error}");
            "refused"
        }
        Err(_) => {
            assert!(gpu.fabric_clique().unwrap_err().contains("no fabric handles"));
            "none"
        }
    };
    assert!(usual.message().contains("cannot leave this host") || outcome == "refused", "{usual}");
    writeln!(std::io::stderr(), "fabric handles: {outcome}").unwrap();
}

const BYTES: usize = 256;
/// A kernel that is stopped, on a busy computer.
const LONGEST: Duration = Duration::from_secs(20);

#[test]
fn after_a_lost_context_the_error_says_so_and_nothing_is_touched() {
    let Some(gpu) = gpu() else { return };
    let mut queue = gpu.queue().unwrap();
    let mine = gpu.allocate(BYTES, Sharing::Threads).unwrap();
    let kernel = Kernel::reduce(DataType::I32, ReduceOp::Sum, 2).unwrap();
    let (sources, targets) = ([std::ptr::without_provenance(64); 2], [mine.base().as_ptr()]);
    let (sources, targets) = (&sources[..], &targets[..]);
    let pass = Pass {
        sources,
        raw: None,
        targets,
        count: BYTES / 4,
        finish: true,
        average: Average::Sum,
        store: Store::Cached,
    };
    // SAFETY: the addresses are nobody's: the kernel is stopped.
    unsafe { queue.fold(&kernel, &pass) }.unwrap();
    let deadline = Deadline::after(LONGEST);
    let failed = loop {
        match queue.record().and_then(|event| event.is_done()) {
            Ok(_) => assert!(!deadline.passed(clock::now()), "the kernel fails"),
            Err(error) => break error,
        }
    };
    assert!(failed.message().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{failed}");
    let later = gpu.allocate(64, Sharing::Threads).unwrap_err();
    for part in ["GPU 0 failed before", "CUDA_ERROR_ILLEGAL_ADDRESS", "end the process"] {
        assert!(later.message().contains(part), "{later}");
    }
}
