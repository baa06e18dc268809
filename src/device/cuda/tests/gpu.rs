//! Tests that need a GPU: they do nothing where there is none, and `everything_here_holds_on_virtual_gpus` runs them on
//! one.

use std::ffi::{CStr, c_int, c_uint};
use std::time::Duration;

use cudarc::driver::sys::{CUcontext, CUdeviceptr, CUfunction, CUgraph, CUgraphExec, CUstream};

use super::super::active::Active;
use super::super::driver::result::{Driver, call};
use super::super::driver::stream::{OwnEvent, OwnStream};
use super::super::{Cuda, StreamHandle, gpus, locate};
use crate::device::{
    Average, Device, DeviceMemory, Event, Home, Kernel, Pass, Place, Region, Sharing, Store, Surroundings,
};
use crate::error::{Kind, Result};
use crate::sync::Deadline;
use crate::sync::primitive::Arc;
use crate::sys::clock;
use crate::sys::library::Library;
use crate::sys::thread;
use crate::types::{DataType, ReduceOp, Scalar};
use machine::gpus::enough;

/// The first GPU, if there is one.
pub(super) fn gpu() -> Option<&'static Cuda> {
    enough(1, gpus())?.first()
}

/// A function of the driver that the library itself does not use.
///
/// # Safety
/// `F` is the function's type.
pub(super) unsafe fn symbol<F: Copy>(name: &CStr) -> F {
    let library = Library::open(c"libcuda.so.1").unwrap();
    // SAFETY: the caller knows the type.
    unsafe { library.function(name) }.unwrap()
}

pub(super) fn wait(event: &dyn Event) {
    until(|| event.is_done().unwrap());
}

pub(super) fn until(mut is_so: impl FnMut() -> bool) {
    let deadline = Deadline::after(LONGEST);
    while !is_so() {
        assert!(!deadline.passed(clock::now()), "the work ends");
        std::thread::yield_now();
    }
}

/// Some copies and folds of a few KiB, on a busy computer.
const LONGEST: Duration = Duration::from_secs(20);

/// The bytes of a region from `offset` on.
pub(super) fn at(region: &Region, offset: usize, bytes: usize) -> Place {
    Place { address: region.at(offset, bytes).as_ptr(), bytes, home: region.home() }
}

pub(super) fn write(gpu: &Cuda, to: Place, bytes: &mut [u8]) {
    let mut queue = gpu.queue().unwrap();
    // SAFETY: both places have as many bytes and live until the event is done.
    unsafe { queue.copy(Place::on_host(bytes.as_mut_ptr(), bytes.len()), to) }.unwrap();
    wait(&*queue.record().unwrap());
}

pub(super) fn read(gpu: &Cuda, from: Place) -> Vec<u8> {
    let mut bytes = vec![0xee; from.bytes];
    let mut queue = gpu.queue().unwrap();
    // SAFETY: both places have as many bytes and live until the event is done.
    unsafe { queue.copy(from, Place::on_host(bytes.as_mut_ptr(), bytes.len())) }.unwrap();
    wait(&*queue.record().unwrap());
    bytes
}

/// The same bytes each time.
fn some_bytes(count: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    };
    std::iter::repeat_with(next).take(count).collect()
}

#[test]
fn a_gpu_has_a_name_and_a_uuid_and_knows_its_addresses() {
    let Some(gpus) = enough(1, gpus()) else { return };
    for gpu in gpus {
        assert!(!gpu.name().is_empty());
        assert!(gpu.uuid().to_string().starts_with("GPU-"), "{}", gpu.uuid());
        assert!(gpus.iter().filter(|other| other.uuid() == gpu.uuid()).count() == 1);
        let region = gpu.allocate(1000, Sharing::Threads).unwrap();
        assert_eq!(locate(region.at(999, 1).addr().get() as u64).unwrap(), Some(gpu.home()));
        assert_eq!(locate((&raw const region).addr() as u64).unwrap(), None);
        assert_eq!(super::super::of(gpu.id()).unwrap().uuid(), gpu.uuid());
    }
    let absent = super::super::of(crate::device::DeviceId(99)).unwrap_err();
    assert_eq!(absent.kind(), Kind::InvalidArgument);
}

/// Operators of a type, with the averages' and the scalar's forms.
fn operators(data_type: DataType) -> Vec<ReduceOp> {
    let mut all = vec![ReduceOp::Sum, ReduceOp::Prod, ReduceOp::Min, ReduceOp::Max, ReduceOp::Avg];
    if data_type.is_float() {
        all.push(ReduceOp::PreMulSum(Scalar::Float(0.375)));
    } else {
        all.extend([ReduceOp::BitAnd, ReduceOp::BitOr, ReduceOp::BitXor]);
        all.push(ReduceOp::PreMulSum(if matches!(data_type, DataType::I8 | DataType::I32 | DataType::I64) {
            Scalar::Signed(-3)
        } else {
            Scalar::Unsigned(3)
        }));
    }
    all
}

/// Checks a fold of `sources` operands, of which the first is a target too, against the host's bits.
fn check_fold(gpu: &Cuda, data_type: DataType, op: ReduceOp, sources: usize) {
    const COUNT: usize = 37;
    let size = usize::try_from(data_type.size()).unwrap();
    let (bytes, room) = (COUNT * size, 512);
    let kernel = Kernel::reduce(data_type, op, 3).unwrap();
    let mut inputs: Vec<Vec<u8>> = (0..sources).map(|source| some_bytes(bytes, source as u64 + 1)).collect();
    let mut expected = vec![0; bytes];
    let from: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
    let on_host = [expected.as_mut_ptr()];
    let pass = Pass {
        sources: &from,
        raw: Some(1),
        targets: &on_host,
        count: COUNT,
        finish: true,
        average: Average::Sum,
        store: Store::Cached,
    };
    // SAFETY: all have as many elements, and nobody else uses them.
    unsafe { kernel.run(&pass) };
    let region = gpu.allocate(room * (sources + 1), Sharing::Threads).unwrap();
    // Unequal alignments.
    let places: Vec<Place> =
        (0..=sources).map(|operand| at(&region, operand * room + operand % 3 * 8, bytes)).collect();
    for (place, input) in places.iter().zip(&mut inputs) {
        write(gpu, *place, input);
    }
    let from: Vec<*const u8> = places[..sources].iter().map(|place| place.address.cast_const()).collect();
    let targets = [places[sources].address, places[0].address];
    let mut queue = gpu.queue().unwrap();
    // SAFETY: the places lie in the region, which lives until the event is done.
    unsafe { queue.fold(&kernel, &Pass { sources: &from, targets: &targets, ..pass }) }.unwrap();
    wait(&*queue.record().unwrap());
    for target in [places[sources], places[0]] {
        assert_eq!(read(gpu, target), expected, "{data_type} {op} of {sources}");
    }
}

#[test]
fn every_type_and_operator_folds_to_the_hosts_bits() {
    let Some(gpu) = gpu() else { return };
    let _kept = gpu.queue().unwrap();
    for data_type in DataType::ALL {
        for op in operators(*data_type) {
            check_fold(gpu, *data_type, op, 3);
        }
    }
    // A copy, and tables that no launch's parameter holds.
    check_fold(gpu, DataType::F32, ReduceOp::Sum, 1);
    check_fold(gpu, DataType::F32, ReduceOp::Sum, 300);
}

#[test]
fn all_functions_are_loaded_when_the_gpu_is_set_up() {
    let Some(gpu) = gpu() else { return };
    let active = gpu.active().unwrap();
    // SAFETY: the type that cuda.h declares.
    let is_loaded: unsafe extern "C" fn(*mut c_int, CUfunction) -> c_int = unsafe { symbol(c"cuFuncIsLoaded") };
    let functions = active.kernels().all();
    assert_eq!(functions.len(), 64);
    for function in functions {
        let mut state = 0;
        // SAFETY: the function is one of the kernels', and the place is ours.
        assert_eq!(unsafe { is_loaded(&raw mut state, function.handle) }, 0);
        assert_eq!(state, 1);
    }
}

/// Uses all of the device once.
fn use_everything(gpu: &Cuda) {
    let shared = gpu.allocate(4096, Sharing::Processes).unwrap();
    let theirs = gpu.import(gpu.export(&shared).unwrap(), 4096).unwrap();
    shared.keep().detach().unwrap();
    check_fold(gpu, DataType::I32, ReduceOp::Sum, 2);
    assert_eq!(read(gpu, at(&theirs, 0, 64)), [0; 64]);
    // SAFETY: the null stream always exists.
    let null = unsafe { StreamHandle::new(std::ptr::null_mut()) };
    drop(gpu.queue_of(null, None).unwrap());
}

#[test]
fn the_callers_context_and_capture_mode_are_as_they_were() {
    let Some(gpu) = gpu() else { return };
    let functions = Driver::get().unwrap().functions();
    // SAFETY: the types that cuda.h declares.
    let create: unsafe extern "C" fn(*mut CUcontext, c_uint, c_int) -> c_int = unsafe { symbol(c"cuCtxCreate_v2") };
    // SAFETY: as above.
    let destroy: unsafe extern "C" fn(CUcontext) -> c_int = unsafe { symbol(c"cuCtxDestroy_v2") };
    let state = || {
        let (mut context, mut mode) = (std::ptr::null_mut(), 1);
        // SAFETY: the place is ours.
        assert_eq!(unsafe { (functions.cuCtxGetCurrent)(&raw mut context) }, 0);
        // SAFETY: as above; the mode goes in and comes out.
        assert_eq!(unsafe { (functions.cuThreadExchangeStreamCaptureMode)(&raw mut mode) }, 0);
        (context, mode)
    };
    assert_eq!(state(), (std::ptr::null_mut(), 0), "a thread begins with no context, in global mode");
    use_everything(gpu);
    assert_eq!(state(), (std::ptr::null_mut(), 1), "`state` left thread-local mode");
    let mut own = std::ptr::null_mut();
    // SAFETY: the place is ours; the context becomes current.
    assert_eq!(unsafe { create(&raw mut own, 0, 0) }, 0);
    use_everything(gpu);
    assert_eq!(state(), (own, 1));
    let refused = gpu.allocate(1 << 50, Sharing::Threads).unwrap_err();
    assert!(refused.message().contains("cuMemCreate: CUDA_ERROR_OUT_OF_MEMORY (2)"), "{refused}");
    assert_eq!(state(), (own, 1), "after a failure too");
    // SAFETY: ours, and nothing lives in it.
    assert_eq!(unsafe { destroy(own) }, 0);
}

/// A GPU may be entered again inside of its own guard, also behind another GPU's: each guard makes its GPU current, and
/// puts back what was current before it.
#[test]
fn guards_inside_of_guards_leave_what_they_found() {
    let Some([one, other, ..]) = enough(2, gpus()) else { return };
    let functions = Driver::get().unwrap().functions();
    let current = || {
        let mut context = std::ptr::null_mut();
        // SAFETY: the place is ours.
        assert_eq!(unsafe { (functions.cuCtxGetCurrent)(&raw mut context) }, 0);
        context.addr() as u64
    };
    let (one, other) = (one.active().unwrap(), other.active().unwrap());
    let (one, other) = (one.primary(), other.primary());
    let both = [one.number(), other.number()];
    one.around(&mut || {
        assert_eq!(current(), both[0]);
        let again = one.enter().unwrap();
        let elsewhere = other.enter().unwrap();
        assert_eq!(current(), both[1]);
        let back = one.enter().unwrap();
        assert_eq!(current(), both[0]);
        drop(back);
        assert_eq!(current(), both[1]);
        drop(elsewhere);
        assert_eq!(current(), both[0]);
        drop(again);
        assert_eq!(current(), both[0]);
    });
    assert_eq!(current(), 0);
}

/// Capture and graphs, which the library leaves to programs.
struct Graphs {
    begin: unsafe extern "C" fn(CUstream, c_int) -> c_int,
    end: unsafe extern "C" fn(CUstream, *mut CUgraph) -> c_int,
    instantiate: unsafe extern "C" fn(*mut CUgraphExec, CUgraph, u64) -> c_int,
    launch: unsafe extern "C" fn(CUgraphExec, CUstream) -> c_int,
    forget: unsafe extern "C" fn(CUgraphExec) -> c_int,
    destroy: unsafe extern "C" fn(CUgraph) -> c_int,
}

/// `CU_STREAM_CAPTURE_MODE_GLOBAL`: any unsafe call of any thread spoils the capture.
const GLOBAL: c_int = 0;

impl Graphs {
    fn new() -> Graphs {
        Graphs {
            // SAFETY: the type that cuda.h declares for the name; the same holds for the others.
            begin: unsafe { symbol(c"cuStreamBeginCapture_v2") },
            // SAFETY: as above.
            end: unsafe { symbol(c"cuStreamEndCapture") },
            // SAFETY: as above.
            instantiate: unsafe { symbol(c"cuGraphInstantiateWithFlags") },
            // SAFETY: as above.
            launch: unsafe { symbol(c"cuGraphLaunch") },
            // SAFETY: as above.
            forget: unsafe { symbol(c"cuGraphExecDestroy") },
            // SAFETY: as above.
            destroy: unsafe { symbol(c"cuGraphDestroy") },
        }
    }

    fn begin(&self, stream: StreamHandle) {
        // SAFETY: the stream lives.
        assert_eq!(unsafe { (self.begin)(stream.0, GLOBAL) }, 0);
    }

    fn end(&self, stream: StreamHandle) -> CUgraph {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream lives, and the place is ours.
        assert_eq!(unsafe { (self.end)(stream.0, &raw mut graph) }, 0, "the capture is valid");
        graph
    }

    fn destroy(&self, graph: CUgraph) {
        // SAFETY: the graph is ours.
        assert_eq!(unsafe { (self.destroy)(graph) }, 0);
    }

    /// Runs the graph so many times, with `between` after each.
    fn replay(&self, graph: CUgraph, stream: &OwnStream, times: usize, mut between: impl FnMut(usize)) {
        let mut ready = std::ptr::null_mut();
        // SAFETY: the graph is ours, and so is the place.
        assert_eq!(unsafe { (self.instantiate)(&raw mut ready, graph, 0) }, 0);
        for turn in 0..times {
            // SAFETY: both live.
            assert_eq!(unsafe { (self.launch)(ready, stream.handle().0) }, 0);
            stream.drain().unwrap();
            between(turn);
        }
        // SAFETY: ours.
        assert_eq!(unsafe { (self.forget)(ready) }, 0);
        self.destroy(graph);
    }
}

#[test]
fn a_capture_of_another_thread_stays_valid() {
    let Some(gpu) = gpu() else { return };
    let active = gpu.active().unwrap();
    let (stream, graphs) = (OwnStream::new(active.primary()).unwrap(), Graphs::new());
    // Both threads are in global mode, in which any call that is not allowed spoils the capture.
    graphs.begin(stream.handle());
    thread::side_by_side("beside", vec![gpu], use_everything, || {}).unwrap();
    use_everything(gpu);
    graphs.destroy(graphs.end(stream.handle()));
}

/// Ranks of one GPU, each with its stream, an input of `COUNT` words and a result.
pub(super) struct Members {
    pub(super) active: Arc<Active>,
    gpu: &'static Cuda,
    pub(super) streams: Vec<OwnStream>,
    inputs: Region,
    results: Region,
}

const COUNT: usize = 300;
const BYTES: usize = COUNT * 4;

impl Members {
    pub(super) fn new(gpu: &'static Cuda, ranks: usize) -> Members {
        let active = gpu.active().unwrap();
        let streams = (0..ranks).map(|_| OwnStream::new(active.primary()).unwrap()).collect();
        let region = || gpu.allocate(ranks * BYTES, Sharing::Threads).unwrap();
        Members { gpu, streams, inputs: region(), results: region(), active }
    }

    fn input(&self, rank: usize) -> Place {
        at(&self.inputs, rank * BYTES, BYTES)
    }

    fn result(&self, rank: usize) -> Place {
        at(&self.results, rank * BYTES, BYTES)
    }

    /// Puts a rank's input into its stream: `value` in each byte.
    fn fill(&self, rank: usize, value: u8) {
        let primary = self.active.primary();
        let _entered = primary.enter().unwrap();
        let address = self.input(rank).address.expose_provenance() as CUdeviceptr;
        // SAFETY: the input has as many bytes, and the stream lives.
        let put = unsafe { call!(primary, cuMemsetD8Async(address, value, BYTES, self.streams[rank].handle().0)) };
        put.unwrap();
    }

    /// Puts a copy of a rank's result back into its input, in its stream.
    fn take(&self, rank: usize) {
        let primary = self.active.primary();
        let _entered = primary.enter().unwrap();
        let [into, from] = [self.input(rank), self.result(rank)].map(|place| place.address.expose_provenance());
        let (into, from) = (into as CUdeviceptr, from as CUdeviceptr);
        // SAFETY: both have as many bytes, and the stream lives.
        unsafe { call!(primary, cuMemcpyAsync(into, from, BYTES, self.streams[rank].handle().0)) }.unwrap();
    }

    /// The sum of all inputs to all results, on these streams.
    pub(super) fn sum(&self, streams: &[StreamHandle]) -> Result<()> {
        let ranks = self.streams.len();
        let sources: Vec<*const u8> = (0..ranks).map(|rank| self.input(rank).address.cast_const()).collect();
        let targets: Vec<*mut u8> = (0..ranks).map(|rank| self.result(rank).address).collect();
        let kernel = Kernel::reduce(DataType::U32, ReduceOp::Sum, u32::try_from(ranks).unwrap()).unwrap();
        let (sources, targets) = (&sources[..], &targets[..]);
        let pass = Pass {
            sources,
            raw: None,
            targets,
            count: COUNT,
            finish: true,
            average: Average::Sum,
            store: Store::Cached,
        };
        let mut queues = streams.iter().map(|stream| self.gpu.queue_of(*stream, None)).collect::<Result<Vec<_>>>()?;
        let (leader, others) = queues.split_first_mut().unwrap();
        others.iter_mut().try_for_each(|other| leader.after(&other.record()?))?;
        // SAFETY: inputs and results live until the test has waited for all streams.
        unsafe { leader.fold(&kernel, &pass) }?;
        let done = leader.record()?;
        others.iter_mut().try_for_each(|other| other.after(&done))
    }

    pub(super) fn handles(&self) -> Vec<StreamHandle> {
        self.streams.iter().map(OwnStream::handle).collect()
    }
}

/// What every word of a sum is, of ranks whose bytes are `first`, `first + 1` and so on.
fn word_of(first: u8, ranks: u8) -> u32 {
    (0..ranks).fold(0, |sum: u32, rank| sum.wrapping_add(u32::from_ne_bytes([first + rank; 4])))
}

#[test]
fn one_launch_serves_all_ranks_after_their_work_and_before_what_they_do_next() {
    let Some(gpu) = gpu() else { return };
    for ranks in [1_u8, 2, 5] {
        let all = Members::new(gpu, ranks.into());
        for turn in 0..10 {
            for rank in 0..ranks {
                all.fill(rank.into(), turn + rank);
            }
            all.sum(&all.handles()).unwrap();
            for rank in 0..usize::from(ranks) {
                all.take(rank);
                all.streams[rank].drain().unwrap();
                let word = word_of(turn, ranks).to_ne_bytes();
                assert_eq!(read(gpu, all.input(rank)), word.repeat(COUNT), "rank {rank} of {ranks}, turn {turn}");
            }
        }
    }
}

/// Lets all other streams join the capture that the first has begun.
fn fork(all: &Members) {
    let event = OwnEvent::new(all.active.primary()).unwrap();
    event.record(all.streams[0].handle()).unwrap();
    all.streams[1..].iter().for_each(|stream| event.holds_up(stream.handle()).unwrap());
}

/// Lets the first stream wait for the others again.
fn join(all: &Members) {
    for stream in &all.streams[1..] {
        let event = OwnEvent::new(all.active.primary()).unwrap();
        event.record(stream.handle()).unwrap();
        event.holds_up(all.streams[0].handle()).unwrap();
    }
}

#[test]
fn a_captured_call_replays_between_live_ones() {
    let Some(gpu) = gpu() else { return };
    // The second has tables that lie in memory, which the graph keeps.
    for ranks in [3_u8, 130] {
        let all = Members::new(gpu, ranks.into());
        let (graphs, _entered) = (Graphs::new(), all.active.primary().enter().unwrap());
        graphs.begin(all.streams[0].handle());
        fork(&all);
        all.sum(&all.handles()).unwrap();
        join(&all);
        let graph = graphs.end(all.streams[0].handle());
        let fill = |first: u8| {
            for rank in 0..ranks {
                all.fill(rank.into(), first + rank);
                all.streams[usize::from(rank)].drain().unwrap();
            }
        };
        let holds = |first: u8, what: &str| {
            let word = word_of(first, ranks).to_ne_bytes();
            assert_eq!(read(gpu, all.result(usize::from(ranks) - 1)), word.repeat(COUNT), "{what} of {ranks}");
        };
        fill(0);
        graphs.replay(graph, &all.streams[0], 5, |turn| {
            let first = u8::try_from(turn).unwrap();
            holds(first, "a replay");
            all.sum(&all.handles()).unwrap();
            all.streams.iter().for_each(|stream| stream.drain().unwrap());
            holds(first, "a live call");
            fill(first + 1);
        });
    }
}

#[test]
fn a_stream_of_another_context_is_refused() {
    let Some(gpu) = gpu() else { return };
    // SAFETY: the types that cuda.h declares.
    let create: unsafe extern "C" fn(*mut CUcontext, c_uint, c_int) -> c_int = unsafe { symbol(c"cuCtxCreate_v2") };
    // SAFETY: as above.
    let destroy: unsafe extern "C" fn(CUcontext) -> c_int = unsafe { symbol(c"cuCtxDestroy_v2") };
    let functions = Driver::get().unwrap().functions();
    let (mut context, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the place is ours; the context becomes current.
    assert_eq!(unsafe { create(&raw mut context, 0, 0) }, 0);
    // SAFETY: the place is ours.
    assert_eq!(unsafe { (functions.cuStreamCreate)(&raw mut stream, 1) }, 0);
    // SAFETY: the stream lives until its context is destroyed below.
    let refused = gpu.queue_of(unsafe { StreamHandle::new(stream) }, None).unwrap_err();
    let told = refused.message().contains("not of the primary context of GPU 0");
    assert!(refused.kind() == Kind::InvalidArgument && told, "{refused}");
    // SAFETY: ours.
    assert_eq!(unsafe { (functions.cuStreamDestroy)(stream) }, 0);
    // SAFETY: ours, and nothing lives in it.
    assert_eq!(unsafe { destroy(context) }, 0);
}

#[test]
fn a_forked_child_is_refused() {
    let Some(gpu) = gpu() else { return };
    let _kept = gpu.queue().unwrap();
    let refused = || gpu.allocate(64, Sharing::Threads).is_err_and(|error| error.kind() == Kind::InvalidUsage);
    assert!(crate::sys::fork::in_child(refused));
    assert_eq!(gpu.home(), Home::Device(gpu.id()));
}
