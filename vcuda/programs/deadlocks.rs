//! Deadlocks known from life, each with its mended twin. On real hardware the first kind hangs for ever; a virtual machine
//! reports who waits for whom, and the call answers an error.

use crate::driver::{ATTRIBUTE_SMS, Driver, Failure, Gpu, Shape};

const SPIN: &[u8] = include_bytes!("../samples/compiled/spin.ptx.z");
/// Streams take the machine's 8 hardware queues in turn.
const SHARES_QUEUE_OF_FIRST: usize = 8;

/// The program must not get through: the error's call and code are printed.
fn must_hang(name: &str, outcome: Result<(), Failure>) -> Result<(), String> {
    match outcome {
        Ok(()) => Err(format!("{name}: it got through, where real machines hang")),
        Err(failure) => {
            println!("{name}: {} answered {}", failure.call, failure.code);
            Ok(())
        }
    }
}

fn must_work(name: &str, outcome: Result<(), Failure>) -> Result<(), String> {
    outcome.map_err(|failure| format!("{name}: {failure}"))?;
    println!("{name}: right");
    Ok(())
}

/// A kernel waits in one stream; the store that it waits for is queued on the null stream, which waits for all blocking
/// streams before it begins.
pub(crate) fn null_stream(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    must_hang("null_stream", through_null_stream(&gpu, false)?)
}

/// A non-blocking stream: the null stream does not wait for it.
pub(crate) fn null_stream_mended(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    must_work("null_stream_mended", through_null_stream(&gpu, true)?)
}

fn through_null_stream(gpu: &Gpu<'_>, mended: bool) -> Result<Result<(), Failure>, String> {
    let module = gpu.module(SPIN)?;
    let (wait, set) = (module.function("wait_for")?, module.function("set_to")?);
    wait.finish_loading()?;
    set.finish_loading()?;
    let word = gpu.zeroed(4)?;
    let stream = if mended { gpu.stream()? } else { gpu.blocking_stream()? };
    wait.launch(Some(&stream), Shape::new(1, 1), &[word.address, 1])?;
    let released = set.launch(None, Shape::new(1, 1), &[word.address, 1]);
    Ok(released.and_then(|()| gpu.synchronize()))
}

/// A stream waits for a value; the stream that would write it shares its hardware queue, behind it.
pub(crate) fn aliased_queues(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    let streams = (0..=SHARES_QUEUE_OF_FIRST).map(|_| gpu.stream()).collect::<Result<Vec<_>, _>>()?;
    let word = gpu.zeroed(4)?;
    streams[0].wait_value(word.address, 1)?;
    let written = streams[SHARES_QUEUE_OF_FIRST].write_value(word.address, 1);
    must_hang("aliased_queues", written.and_then(|()| gpu.synchronize()))
}

/// The writer comes first, so that nothing stands before it.
pub(crate) fn aliased_queues_mended(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    let streams = (0..=SHARES_QUEUE_OF_FIRST).map(|_| gpu.stream()).collect::<Result<Vec<_>, _>>()?;
    let word = gpu.zeroed(4)?;
    let written = streams[SHARES_QUEUE_OF_FIRST].write_value(word.address, 1);
    let outcome = written.and_then(|()| streams[0].wait_value(word.address, 1)).and_then(|()| gpu.synchronize());
    must_work("aliased_queues_mended", outcome)
}

/// A kernel waits; the one that would release it has never been launched, and loading it waits for running kernels.
pub(crate) fn lazy_loading(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    must_hang("lazy_loading", first_launch(&gpu, false)?)
}

/// Both are loaded before either is launched.
pub(crate) fn lazy_loading_mended(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    must_work("lazy_loading_mended", first_launch(&gpu, true)?)
}

fn first_launch(gpu: &Gpu<'_>, mended: bool) -> Result<Result<(), Failure>, String> {
    let module = gpu.module(SPIN)?;
    let (wait, release) = (module.function("wait_for")?, module.function("never_launched_before")?);
    if mended {
        wait.finish_loading()?;
        release.finish_loading()?;
    }
    let word = gpu.zeroed(4)?;
    let (waiting, releasing) = (gpu.stream()?, gpu.stream()?);
    wait.launch(Some(&waiting), Shape::new(1, 1), &[word.address, 1])?;
    let released = release.launch(Some(&releasing), Shape::new(1, 1), &[word.address, 1]);
    Ok(released.and_then(|()| gpu.synchronize()))
}

/// A kernel waits for a word that the host sets after freeing something; the free waits for the kernel.
pub(crate) fn free_under_kernel(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    must_hang("free_under_kernel", free_beside_a_kernel(&gpu, false)?)
}

/// The host sets the word first.
pub(crate) fn free_under_kernel_mended(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    must_work("free_under_kernel_mended", free_beside_a_kernel(&gpu, true)?)
}

fn free_beside_a_kernel(gpu: &Gpu<'_>, mended: bool) -> Result<Result<(), Failure>, String> {
    let module = gpu.module(SPIN)?;
    let wait = module.function("wait_for")?;
    wait.finish_loading()?;
    let (word, other) = (gpu.pinned(4)?, gpu.zeroed(1 << 20)?);
    let stream = gpu.stream()?;
    wait.launch(Some(&stream), Shape::new(1, 1), &[word.address, 1])?;
    if mended {
        word.store(1);
    }
    let freed = other.free();
    word.store(1);
    Ok(freed.and_then(|()| gpu.synchronize()))
}

/// A barrier of the whole grid with one block more than the GPU holds: the resident ones wait for it, and it for room.
pub(crate) fn half_resident(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    must_hang("half_resident", grid_barrier(&gpu, 1)?)
}

/// As many blocks as the GPU holds, launched together.
pub(crate) fn half_resident_mended(driver: &Driver) -> Result<(), String> {
    let gpu = driver.gpu(0)?;
    must_work("half_resident_mended", grid_barrier(&gpu, 0)?)
}

fn grid_barrier(gpu: &Gpu<'_>, more: u32) -> Result<Result<(), Failure>, String> {
    const THREADS: u32 = 1_024;
    let module = gpu.module(SPIN)?;
    let barrier = module.function("barrier_of_grid")?;
    barrier.finish_loading()?;
    let sms = gpu.driver.attribute(gpu.device, ATTRIBUTE_SMS)?;
    let resident = sms * barrier.occupancy(1_024)?;
    let shape = Shape::new(resident.unsigned_abs() + more, THREADS);
    let arrived = gpu.zeroed(4)?;
    let stream = gpu.stream()?;
    let launched = match more {
        0 => barrier.launch_together(&stream, shape, &[arrived.address]),
        _ => barrier.launch(Some(&stream), shape, &[arrived.address]),
    };
    Ok(launched.and_then(|()| gpu.synchronize()))
}
