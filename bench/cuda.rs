//! What a call of 8 bytes of the ranks of a GPU takes, beside an empty kernel with the same joins of streams:
//! `cargo bench --features cuda,internals --bench cuda`, or under `vcuda/run 1 --` the program that this builds. On a virtual
//! GPU the figures hold the virtual driver's own work, which is many times a real driver's.
//!
//! `host` is what the host does until the streams have the calls, `done` what a call takes until the GPU is through as
//! well, both of calls back to back. On a virtual GPU, `own` is the part of `host` that the thread of rank 0 is not in the
//! driver, waits for other ranks included and what the driver's counting costs taken away, and `asks` how many driver
//! calls it makes; a real driver does not count them.
//! `--quick` makes few of them, `--ranks N` takes N ranks only.
#![allow(clippy::print_stdout, reason = "a bench prints its table")]

use std::ffi::{CString, c_char, c_void};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use cudarc::driver::sys::CUfunction;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result};
use rsccl::comm::DeviceStream;
use rsccl::internals::device::cuda::gpus;
use rsccl::internals::sys::clock;
use rsccl::{ReduceOp, local};

/// Calls that are timed; between batches the GPU catches up, so that no queue is ever full.
const BATCHES: u32 = 40;
const QUICK_BATCHES: u32 = 2;
const BATCH: u32 = 25;
const RANKS: [u32; 4] = [1, 2, 4, 8];
const ELEMENTS: usize = 2;
const EMPTY: &str = ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry empty() { ret; }\n";

fn main() {
    let gpu = match gpus() {
        Ok(gpus) => &gpus[0],
        Err(error) => return println!("skipped: no GPU: {error}"),
    };
    let batches = if std::env::args().any(|word| word == "--quick") { QUICK_BATCHES } else { BATCHES };
    let context = CudaContext::new(0).expect("a context beside ours");
    let empty = empty_kernel().expect("the kernel loads");
    println!("{}: µs for one all-reduce of 8 bytes or one empty kernel, median of {batches} batches", gpu.name());
    let counting = cost_of_counting();
    println!(
        "{:>5} {:>8} {:>9} {:>9} {:>9} {:>5} {:>11} {:>11}",
        "ranks", "streams", "host", "done", "own", "asks", "empty host", "empty done"
    );
    for ranks in ranks_asked() {
        let streams: Vec<_> = (0..ranks).map(|_| context.new_stream().expect("a stream")).collect();
        let one = vec![streams[0].clone(); streams.len()];
        for (name, streams) in [("own", streams), ("one", one)] {
            let (calls, kernels) = (time(&streams, batches), time_empty(empty, &streams, batches));
            let [host, done, empty_host, empty_done] = [calls.host, calls.done, kernels.host, kernels.done];
            let (own, asks) = match calls.of_driver {
                Some(OfDriver { own, asks }) => (format!("{:.2}", own - asks * counting), format!("{asks:.0}")),
                None => ("-".to_owned(), "-".to_owned()),
            };
            println!(
                "{ranks:>5} {name:>8} {host:>9.2} {done:>9.2} {own:>9} {asks:>5} {empty_host:>11.2} {empty_done:>11.2}"
            );
        }
    }
}

/// The numbers of ranks to take, one after the other.
fn ranks_asked() -> Vec<u32> {
    let mut words = std::env::args().skip_while(|word| word != "--ranks").skip(1);
    let asked = words.next().map(|word| vec![word.parse().expect("--ranks is followed by a number")]);
    asked.unwrap_or_else(|| RANKS.to_vec())
}

/// Microseconds of a call.
#[derive(Debug, Clone, Copy)]
struct Times {
    host: f64,
    done: f64,
    of_driver: Option<OfDriver>,
}

/// What a driver that counts says of a call.
#[derive(Debug, Clone, Copy)]
struct OfDriver {
    /// Microseconds outside the driver.
    own: f64,
    /// Driver calls.
    asks: f64,
}

/// What a thread has asked of a driver: `Use` in `vcuda/libcuda/src/entry.rs`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct DriverUse {
    calls: u64,
    nanoseconds: u64,
}

/// Microseconds outside the driver of a driver call that does next to nothing: what the driver's clock and the way
/// there and back take. 0 for a real driver.
fn cost_of_counting() -> f64 {
    const ASKS: u32 = 10_000;
    let Some(before) = driver_use() else { return 0.0 };
    let start = clock::now();
    for _ in 0..ASKS {
        result::ctx::get_current().expect("the driver answers");
    }
    let took = clock::now() - start;
    let inside = driver_use().map_or(0, |after| after.nanoseconds - before.nanoseconds);
    took.saturating_sub(Duration::from_nanos(inside)).as_secs_f64() * 1e6 / f64::from(ASKS)
}

/// Asks the driver what this thread has asked of it; `None` of a real driver.
fn driver_use() -> Option<DriverUse> {
    const LIBRARY: *const c_char = c"libcuda.so.1".as_ptr();
    // SAFETY: the name ends with a zero; the library is there already, and is not loaded anew.
    let library = unsafe { libc::dlopen(LIBRARY, libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is open, and the name ends with a zero.
    let address: *mut c_void = unsafe { libc::dlsym(library, c"vcudaThreadUse".as_ptr()) };
    // SAFETY: only the virtual driver has a function of this name, and it has this form; the library is never unloaded.
    let ask: Option<extern "C" fn() -> DriverUse> = unsafe { std::mem::transmute(address) };
    ask.map(|ask| ask())
}

/// The times of a call of as many ranks, threads of this process, as there are streams.
fn time(streams: &[Arc<CudaStream>], batches: u32) -> Times {
    let meeting = Barrier::new(streams.len());
    let ranks = u32::try_from(streams.len()).expect("few ranks");
    let times = local::run(ranks, |comm| {
        let stream = DeviceStream::from_cudarc(&streams[comm.rank() as usize])?;
        let mut values = stream.alloc::<f32>(ELEMENTS)?;
        let mut result = Ok(());
        let call = || {
            let called = comm.on(&stream).all_reduce_in_place(values.slice_mut(..), ReduceOp::Sum);
            result = std::mem::replace(&mut result, Ok(())).and(called);
        };
        let own = &streams[comm.rank() as usize];
        let finish = || own.synchronize().expect("the GPU goes on");
        let meet = || {
            meeting.wait();
        };
        let taken = measure(batches, call, finish, meet);
        result.map(|()| taken)
    });
    times.expect("all ranks end well")[0]
}

/// The times of an empty kernel for which all streams meet, and which all of them wait for.
fn time_empty(kernel: CUfunction, streams: &[Arc<CudaStream>], batches: u32) -> Times {
    let (first, all) = (&streams[0], streams);
    let others: Vec<&Arc<CudaStream>> = all.iter().filter(|stream| !Arc::ptr_eq(stream, first)).collect();
    let event = |stream: &Arc<CudaStream>| stream.record_event(None).expect("an event");
    let arrived: Vec<CudaEvent> = others.iter().map(|stream| event(stream)).collect();
    let launched = event(first);
    let call = || {
        let launch = || -> Result<(), DriverError> {
            for (stream, event) in others.iter().zip(&arrived) {
                event.record(stream)?;
                first.wait(event)?;
            }
            // SAFETY: the kernel has no parameters, and its module is never unloaded.
            unsafe { result::launch_kernel(kernel, (1, 1, 1), (1, 1, 1), 0, first.cu_stream(), &mut []) }?;
            if !others.is_empty() {
                launched.record(first)?;
            }
            others.iter().try_for_each(|stream| stream.wait(&launched))
        };
        launch().expect("the kernel is launched");
    };
    let finish = || all.iter().for_each(|stream| stream.synchronize().expect("the GPU goes on"));
    measure(batches, call, finish, || ())
}

fn empty_kernel() -> Result<CUfunction, DriverError> {
    let (text, name) = (CString::new(EMPTY).expect("no zero"), CString::new("empty").expect("no zero"));
    // SAFETY: the text ends with a zero.
    let module = unsafe { result::module::load_data(text.as_ptr().cast()) }?;
    // SAFETY: the module has just been loaded.
    unsafe { result::module::get_function(module, name) }
}

/// The median times of a call. `meet` comes after each batch and is not timed.
fn measure(batches: u32, mut call: impl FnMut(), finish: impl Fn(), meet: impl Fn()) -> Times {
    let (mut host, mut done, mut own, mut asks) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..batches {
        meet();
        let before = driver_use();
        let start = clock::now();
        (0..BATCH).for_each(|_| call());
        let took = clock::now() - start;
        if let (Some(before), Some(after)) = (before, driver_use()) {
            own.push(took.saturating_sub(Duration::from_nanos(after.nanoseconds - before.nanoseconds)));
            asks = after.calls - before.calls;
        }
        host.push(took);
        finish();
        done.push(clock::now() - start);
    }
    let of_driver = (!own.is_empty()).then(|| OfDriver { own: median(own), asks: asks as f64 / f64::from(BATCH) });
    Times { host: median(host), done: median(done), of_driver }
}

fn median(mut batches: Vec<Duration>) -> f64 {
    batches.sort_unstable();
    batches[batches.len() / 2].as_secs_f64() * 1e6 / f64::from(BATCH)
}
