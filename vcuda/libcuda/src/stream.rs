//! Streams, events, host functions, memory operations.

use vcuda::driver::{self, CUresult};
use vcuda::schedule::Memop;

use crate::entry::{Address, In, Out, entries};

/// `CUstreamBatchMemOpParams`: operation, address, value, flags, alias.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct BatchEntry {
    operation: u32,
    address: u64,
    value: u64,
    flags: u32,
    alias: u64,
    pad: u64,
}

const _: () = assert!(size_of::<BatchEntry>() == 48);

/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`, which version 2 does not have.
const NO_MEMORY_BARRIER: u32 = 1;
/// `CUstreamBatchMemOpType`.
const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const FLUSH_REMOTE_WRITES: u32 = 3;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;
const BARRIER: u32 = 6;

entries! {
    cuStreamCreate(2000) (stream: Out<u64>, flags: u32) {
        stream.check()?;
        stream.put(driver::get()?.stream_create(flags, 0)?)
    }

    cuStreamCreateWithPriority(5050) (stream: Out<u64>, flags: u32, priority: i32) {
        stream.check()?;
        stream.put(driver::get()?.stream_create(flags, priority)?)
    }

    cuStreamDestroy_v2(4000) (stream: u64) { driver::get()?.stream_destroy(stream) }

    cuStreamSynchronize(2000) (stream: u64) { driver::get()?.stream_synchronize(stream) }

    cuStreamQuery(2000) (stream: u64) { driver::get()?.stream_query(stream) }

    cuStreamWaitEvent(3020) (stream: u64, event: u64, flags: u32) {
        driver::get()?.stream_wait_event(stream, event, flags)
    }

    cuStreamGetCtx(9020) (stream: u64, context: Out<u64>) {
        context.check()?;
        context.put(driver::get()?.stream_context(stream)?)
    }

    cuStreamGetFlags(5050) (stream: u64, flags: Out<u32>) { flags.put(driver::get()?.stream_flags(stream)?) }

    cuStreamGetPriority(5050) (stream: u64, priority: Out<i32>) {
        priority.put(driver::get()?.stream_priority(stream)?)
    }

    cuStreamGetId(12000) (stream: u64, id: Out<u64>) { id.put(driver::get()?.stream_id(stream)?) }

    cuLaunchHostFunc(10000) (stream: u64, function: Address, data: Address) {
        driver::get()?.launch_host_function(stream, function.0, data.0)
    }

    cuStreamWriteValue32(8000) (stream: u64, address: u64, value: u32, flags: u32) {
        version_1(stream, address, value.into(), flags)
    }

    cuStreamWriteValue64(9000) (stream: u64, address: u64, value: u64, flags: u32) {
        version_1(stream, address, value, flags)
    }

    cuStreamWaitValue32(8000) (stream: u64, address: u64, value: u32, flags: u32) {
        version_1(stream, address, value.into(), flags)
    }

    cuStreamWaitValue64(9000) (stream: u64, address: u64, value: u64, flags: u32) {
        version_1(stream, address, value, flags)
    }

    cuStreamBatchMemOp(8000) (stream: u64, count: u32, entries: In<BatchEntry>, flags: u32) {
        version_1(stream, entries.address(), count.into(), flags)
    }

    cuStreamWriteValue32_v2(11070) (stream: u64, address: u64, value: u32, flags: u32) {
        driver::get()?.memops(stream, vec![write(address, false, value.into(), flags)?])
    }

    cuStreamWriteValue64_v2(11070) (stream: u64, address: u64, value: u64, flags: u32) {
        driver::get()?.memops(stream, vec![write(address, true, value, flags)?])
    }

    cuStreamWaitValue32_v2(11070) (stream: u64, address: u64, value: u32, flags: u32) {
        driver::get()?.memops(stream, vec![Memop::Wait { address, wide: false, value: value.into(), how: flags }])
    }

    cuStreamWaitValue64_v2(11070) (stream: u64, address: u64, value: u64, flags: u32) {
        driver::get()?.memops(stream, vec![Memop::Wait { address, wide: true, value, how: flags }])
    }

    cuStreamBatchMemOp_v2(11070) (stream: u64, count: u32, entries: In<BatchEntry>, flags: u32) {
        if flags != 0 || count > 255 {
            return Err(CUresult::INVALID_VALUE);
        }
        let list: Result<Vec<Memop>, CUresult> = entries.get_all(count as usize)?.into_iter().map(memop).collect();
        driver::get()?.memops(stream, list?)
    }

    cuEventCreate(2000) (event: Out<u64>, flags: u32) {
        event.check()?;
        event.put(driver::get()?.event_create(flags)?)
    }

    cuEventDestroy_v2(4000) (event: u64) { driver::get()?.event_destroy(event) }

    cuEventRecord(2000) (event: u64, stream: u64) { driver::get()?.event_record(event, stream, 0) }

    cuEventRecordWithFlags(11010) (event: u64, stream: u64, flags: u32) {
        driver::get()?.event_record(event, stream, flags)
    }

    cuEventQuery(2000) (event: u64) { driver::get()?.event_query(event) }

    cuEventSynchronize(2000) (event: u64) { driver::get()?.event_synchronize(event) }

    cuEventElapsedTime(2000) (milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.check()?;
        milliseconds.put(driver::get()?.event_elapsed(start, end)?)
    }

    cuEventElapsedTime_v2(12080) (milliseconds: Out<f32>, start: u64, end: u64) {
        milliseconds.check()?;
        milliseconds.put(driver::get()?.event_elapsed(start, end)?)
    }
}

/// Memory operations of version 1 are off unless a parameter of the kernel module says otherwise; here they are off.
fn version_1(stream: u64, address: u64, value: u64, flags: u32) -> driver::Outcome {
    let _ = (address, value, flags);
    driver::get()?.stream_context(stream)?;
    Err(CUresult::NOT_SUPPORTED)
}

fn write(address: u64, wide: bool, value: u64, flags: u32) -> driver::Outcome<Memop> {
    match flags {
        0 => Ok(Memop::Write { address, wide, value }),
        NO_MEMORY_BARRIER => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

fn memop(entry: BatchEntry) -> driver::Outcome<Memop> {
    let BatchEntry { operation, address, value, flags, .. } = entry;
    match operation {
        WAIT_32 => Ok(Memop::Wait { address, wide: false, value: value & u64::from(u32::MAX), how: flags }),
        WAIT_64 => Ok(Memop::Wait { address, wide: true, value, how: flags }),
        WRITE_32 => write(address, false, value & u64::from(u32::MAX), flags),
        WRITE_64 => write(address, true, value, flags),
        BARRIER => Ok(Memop::Barrier),
        FLUSH_REMOTE_WRITES => Err(CUresult::NOT_SUPPORTED),
        _ => Err(CUresult::INVALID_VALUE),
    }
}
