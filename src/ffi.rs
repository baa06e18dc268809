//! The bridge under the C++ classes of `cpp/`: every function of them that is not a template ends in one of these.
//!
//! No panic and no exception crosses. A function that can fail returns a [`Failure`], null where all went well, so that
//! a call that succeeds costs a register; the C++ side turns it into the exception of its kind. What a panic leaves
//! behind is an error of kind internal, and a communicator that has ended.
//!
//! Opaque things are made empty and filled by a call that can fail. Any thread may call a function that takes a
//! `&Comm`: where another thread is in a call, that is an error.

mod call;
mod failure;
mod foreign;
mod memory;
mod over_mpi;
mod persistent;
mod places;
mod stores;
mod stream;
mod windows;

use std::collections::VecDeque;
use std::time::Duration;

use crate::bootstrap::UniqueId;
use crate::comm::{AbortHandle, Communicator, Pending};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::sync::{AbortFlag, Progress, Wait};
use crate::types::{DataType, F8E4M3, F8E5M2, Rank, World, bf16, f16};

use call::{Batch, Work};
use failure::{Failure, explain, guard, nccl_code};
use foreign::{Foreign, set_log};
use memory::{
    Memory, allocate, give_block, make_pool, memory, move_in_place, place, pool_use, refusal, register_memory,
    take_block, trim_pool,
};
use over_mpi::{mpi_check, mpi_check_thread, mpi_join, mpi_like, mpi_placement, mpi_poke};
use persistent::{Persistent, await_round, is_round_over, persistent, prepare, run_round, start_round, wait_round};
use places::{cross, memory_use, on_my_host, placement};
use stores::{
    Keep, keep, keep_address, keep_file, keep_hash, keep_remote, keep_same, keep_served, share, store_add, store_get,
    store_remove, store_set, store_wait,
};
use windows::{
    GpuMemory, GpuWindow, allocate_on_gpu, deregister_window, gpu_memory, gpu_place, gpu_window, is_direct,
    register_memory_of, register_window,
};

#[allow(
    unreachable_pub,
    clippy::multiple_unsafe_ops_per_block,
    reason = "what the generator writes is public and unsafe as it likes; it takes no `expect`"
)]
#[cxx::bridge(namespace = "rsccl::ffi")]
mod bridge {
    /// What a [`Failure`](super::Failure) says. Code 0 is none.
    struct Status {
        code: i32,
        message: String,
        /// -1 where unknown.
        rank: i32,
        /// -1 where unknown.
        peer: i32,
        operation: String,
    }

    /// The numbers of `rsccl::ErrorCode`.
    #[repr(i32)]
    enum Code {
        None = 0,
        InvalidArgument = 1,
        InvalidUsage = 2,
        Mismatch = 3,
        Remote = 4,
        Timeout = 5,
        System = 6,
        Internal = 7,
        Aborted = 8,
        InProgress = 9,
    }

    /// The numbers of `rsccl::DataType`.
    #[repr(i32)]
    enum TypeCode {
        I8 = 0,
        U8 = 1,
        I32 = 2,
        U32 = 3,
        I64 = 4,
        U64 = 5,
        F16 = 6,
        F32 = 7,
        F64 = 8,
        BF16 = 9,
        F8E4M3 = 10,
        F8E5M2 = 11,
    }

    /// The numbers of `rsccl::ReduceOp`.
    #[repr(i32)]
    enum OpCode {
        Sum = 0,
        Prod = 1,
        Min = 2,
        Max = 3,
        Avg = 4,
        BitAnd = 5,
        BitOr = 6,
        BitXor = 7,
        PreMulSum = 8,
    }

    /// The numbers of `rsccl::ReduceOp::Scalar`.
    #[repr(i32)]
    enum ScalarCode {
        None = 0,
        Integer = 1,
        Natural = 2,
        Real = 3,
    }

    /// The number of `rsccl::detail::Kind` that is no collective's. The others are those of `types::Collective`, which
    /// tests/parity.rs compares.
    #[repr(u8)]
    enum CallCode {
        /// A send and a recv side by side.
        SendRecv = 255,
    }

    /// A call but for its memory.
    struct What {
        /// Elements for each rank.
        count: u64,
        /// The scalar, where it is an integer; an unsigned one has the bits of the signed one.
        integer: i64,
        /// The scalar, where it is a float.
        real: f64,
        data_type: i32,
        op: i32,
        scalar: i32,
        /// Root or peer; of a `send_recv` whom it sends to.
        other: i32,
        /// Of a `send_recv`: whom it receives from.
        source: i32,
        kind: u8,
        /// Whether the call goes into a CUDA stream.
        on_stream: bool,
        /// The stream's handle.
        stream: usize,
    }

    /// A line of the log.
    struct Line<'a> {
        level: i32,
        /// -1 where unknown.
        rank: i32,
        text: &'a str,
        printed: &'a str,
    }

    /// Where a rank is. -1 and empty for what is not there.
    struct Place {
        host_name: String,
        host: i32,
        hosts: i32,
        local_rank: i32,
        local_size: i32,
        leader_rank: i32,
        device: i32,
        bus_id: String,
        shared_by: i32,
        printed: String,
    }

    extern "Rust" {
        type Failure;
        fn explain(failure: &Failure) -> Status;
        fn nccl_code(code: i32) -> i32;
        fn provoke_panic() -> *mut Failure;

        fn version() -> String;
        fn type_name(code: i32) -> &'static str;
        fn call_name(kind: u8) -> &'static str;
        fn encode(data_type: i32, value: f32) -> u16;
        fn decode(data_type: i32, bits: u16) -> f32;

        type Settings;
        fn settings() -> Box<Settings>;
        fn set(settings: &mut Settings, name: &[u8], text: &[u8]) -> *mut Failure;

        fn generate_id(settings: &Settings, id: &mut [u8; 128]) -> *mut Failure;
        fn check_id(bytes: &[u8]) -> *mut Failure;

        type Comm;
        fn comm() -> Box<Comm>;
        fn join(comm: &mut Comm, ids: &[u8], rank: i32, size: i32, settings: &Settings) -> *mut Failure;
        fn join_launched(comm: &mut Comm, settings: &Settings) -> *mut Failure;
        fn is_open(comm: &Comm) -> bool;
        fn rank(comm: &Comm) -> i32;
        fn world_now(comm: &Comm, rank: &mut i32, size: &mut i32) -> *mut Failure;
        fn knows_world(comm: &Comm, rank: &mut i32, size: &mut i32) -> bool;
        fn size(comm: &Comm) -> i32;
        unsafe fn run(comm: &Comm, what: &What, send: *const u8, recv: *mut u8) -> *mut Failure;
        unsafe fn run_v(
            comm: &Comm,
            what: &What,
            send: *const u8,
            recv: *mut u8,
            send_counts: &[usize],
            recv_counts: &[usize],
        ) -> *mut Failure;
        fn split(comm: &Comm, color: i64, key: i64, child: &mut Comm) -> *mut Failure;
        fn shrink(comm: &Comm, excluded: &[i32], child: &mut Comm) -> *mut Failure;
        fn on_my_host(comm: &Comm, child: &mut Comm) -> *mut Failure;
        fn cross(comm: &Comm, child: &mut Comm) -> *mut Failure;
        fn placement(comm: &Comm, place: &mut Place) -> *mut Failure;
        fn memory_use(comm: &Comm, held: &mut Vec<u64>) -> *mut Failure;
        fn async_error(comm: &Comm) -> *mut Failure;
        fn finalize(comm: &Comm) -> *mut Failure;
        fn discard(comm: &Comm, deserted: bool);
        fn register_memory(comm: &Comm, memory: &Memory, takes_back: bool) -> *mut Failure;
        fn set_progress(comm: &Comm, hook: UniquePtr<Hook>) -> *mut Failure;
        fn provoke_panic_in(comm: &Comm) -> *mut Failure;

        type Family;
        fn family() -> Box<Family>;
        fn join_all(family: &mut Family, ranks: i32, settings: &Settings) -> *mut Failure;
        fn take(family: &mut Family) -> Box<Comm>;

        unsafe fn mpi_join(comm: &mut Comm, calls: *const u8, theirs: u64, settings: &Settings) -> *mut Failure;
        unsafe fn mpi_like(comm: &Comm, calls: *const u8, sub: u64, child: &mut Comm) -> *mut Failure;
        unsafe fn mpi_check(comm: &Comm, calls: *const u8, theirs: u64) -> *mut Failure;
        unsafe fn mpi_placement(comm: &Comm, calls: *const u8, theirs: u64, place: &mut Place) -> *mut Failure;
        unsafe fn mpi_check_thread(calls: *const u8, everywhere: &mut bool) -> *mut Failure;
        unsafe fn mpi_poke(calls: *const u8) -> *mut Failure;

        type Stop;
        fn stop(comm: &Comm) -> Box<Stop>;
        fn same(stop: &Stop) -> Box<Stop>;
        fn abort(stop: &Stop, reason: &[u8]);

        type Waiting;
        fn waiting() -> Box<Waiting>;
        unsafe fn begin(
            comm: &Comm,
            what: &What,
            send: *const u8,
            recv: *mut u8,
            send_counts: &[usize],
            recv_counts: &[usize],
            request: &mut Waiting,
        ) -> *mut Failure;
        fn wait(request: &Waiting) -> *mut Failure;
        fn await_end(request: &Waiting);
        fn is_finished(request: &Waiting) -> bool;

        type Persistent;
        fn persistent() -> Box<Persistent>;
        unsafe fn prepare(
            comm: &Comm,
            what: &What,
            send: *const u8,
            recv: *mut u8,
            send_counts: &[usize],
            recv_counts: &[usize],
            call: &mut Persistent,
        ) -> *mut Failure;
        fn start_round(call: &mut Persistent) -> *mut Failure;
        fn wait_round(call: &mut Persistent) -> *mut Failure;
        fn await_round(call: &mut Persistent);
        fn is_round_over(call: &Persistent) -> bool;
        fn run_round(call: &mut Persistent) -> *mut Failure;

        type Batch;
        fn batch() -> Box<Batch>;
        unsafe fn add(
            batch: &mut Batch,
            comm: *const Comm,
            what: &What,
            send: *const u8,
            recv: *mut u8,
            send_counts: &[usize],
            recv_counts: &[usize],
        ) -> *mut Failure;
        unsafe fn run_batch(batch: &mut Batch) -> *mut Failure;

        type Memory;
        fn memory() -> Box<Memory>;
        fn allocate(memory: &mut Memory, count: usize, element_bytes: usize) -> *mut Failure;
        fn place(memory: &mut Memory) -> *mut u8;
        unsafe fn move_in_place(memory: &mut Memory, start: *mut u8, bytes: usize, is_unpinned: bool) -> *mut Failure;
        fn refusal(memory: &Memory) -> String;
        fn make_pool(memory: &mut Memory, bytes: usize) -> *mut Failure;
        fn take_block(memory: &Memory, bytes: usize, align: usize) -> *mut u8;
        fn give_block(memory: &Memory, address: usize) -> bool;
        fn pool_use(memory: &Memory) -> [usize; 2];
        fn trim_pool(memory: &Memory);

        type GpuMemory;
        fn gpu_memory() -> Box<GpuMemory>;
        unsafe fn allocate_on_gpu(
            memory: &mut GpuMemory,
            count: usize,
            element_bytes: usize,
            handle: usize,
        ) -> *mut Failure;
        fn gpu_place(memory: &GpuMemory) -> usize;
        type GpuWindow;
        fn gpu_window() -> Box<GpuWindow>;
        fn register_window(comm: &Comm, memory: &GpuMemory, window: &mut GpuWindow) -> *mut Failure;
        unsafe fn register_memory_of(
            comm: &Comm,
            address: usize,
            bytes: usize,
            handle: usize,
            window: &mut GpuWindow,
        ) -> *mut Failure;
        fn deregister_window(comm: &Comm, window: &mut GpuWindow) -> *mut Failure;
        fn is_direct(window: &GpuWindow) -> bool;

        type Keep;
        fn keep() -> Box<Keep>;
        fn keep_hash() -> Box<Keep>;
        fn keep_file(keep: &mut Keep, folder: &[u8], timeout_ms: u64) -> *mut Failure;
        fn keep_served(keep: &mut Keep, address: &[u8], settings: &Settings) -> *mut Failure;
        fn keep_remote(keep: &mut Keep, address: &[u8], settings: &Settings) -> *mut Failure;
        fn keep_same(keep: &Keep) -> Box<Keep>;
        fn keep_address(keep: &Keep) -> String;
        fn store_set(keep: &Keep, key: &[u8], value: &[u8], timeout_ms: u64) -> *mut Failure;
        fn store_get(keep: &Keep, key: &[u8], timeout_ms: u64, value: &mut Vec<u8>) -> *mut Failure;
        fn store_add(keep: &Keep, key: &[u8], amount: i64, timeout_ms: u64, sum: &mut i64) -> *mut Failure;
        fn store_wait(keep: &Keep, keys: &[String], timeout_ms: u64) -> *mut Failure;
        fn store_remove(keep: &Keep, key: &[u8], timeout_ms: u64, was_there: &mut bool) -> *mut Failure;
        fn share(
            store: &ForeignStore,
            key: &[u8],
            rank: i32,
            size: i32,
            settings: &Settings,
            id: &mut [u8; 128],
        ) -> *mut Failure;

        fn set_log(callback: UniquePtr<LogCallback>);
        fn warn_discarded();
    }

    // C++ takes failures over as boxes, though no function passes one as such.
    impl Box<Failure> {}

    // All of them are `noexcept`: what the program's own code throws comes back as a Status.
    unsafe extern "C++" {
        include!("foreign.hpp");

        /// A progress hook.
        type Hook;
        fn turn(self: &Hook) -> Status;

        /// What takes the lines of the log.
        type LogCallback;
        fn take(self: &LogCallback, line: &Line);

        /// A store that C++ has.
        type ForeignStore;
        fn set(self: &ForeignStore, key: &str, value: &[u8], timeout_ms: u64) -> Status;
        fn get(self: &ForeignStore, key: &str, timeout_ms: u64, value: &mut Vec<u8>) -> Status;
        fn add(self: &ForeignStore, key: &str, amount: i64, timeout_ms: u64, sum: &mut i64) -> Status;
        fn wait(self: &ForeignStore, keys: &[&str], timeout_ms: u64) -> Status;
        fn remove(self: &ForeignStore, key: &str, timeout_ms: u64, was_there: &mut bool) -> Status;
    }
}

use bridge::{Hook, What};

/// A configuration that is being made.
struct Settings(Config);

/// A communicator; `None` before it has joined.
struct Comm(Option<Communicator>);

/// Communicators of one process that nobody has taken yet.
struct Family(VecDeque<Communicator>);

/// What stops a communicator.
struct Stop(Option<AbortHandle>);

/// A request; `None` before it has begun.
struct Waiting(Option<Pending>);

impl Comm {
    /// Runs `body` on the communicator; a panic of it ends the communicator.
    #[inline]
    fn on(&self, body: impl FnOnce(&Communicator) -> Result<()>) -> *mut Failure {
        let comm = match &self.0 {
            Some(comm) if comm.is_closed() => {
                return failure::pass(Error::invalid_usage("the communicator was finalized"));
            }
            Some(comm) => comm,
            None => return failure::pass(Error::invalid_usage("there is no communicator: it was never made")),
        };
        let end = || self.end("a panic inside rsccl");
        // Not `rank`, which waits for a child that is being made.
        let rank = comm.known_world().map(|world| world.rank);
        failure::guard_or(rank, || body(comm), end)
    }

    /// Ends the communicator and tells the others why.
    fn end(&self, why: &str) {
        if let Some(comm) = &self.0 {
            comm.abort_handle().abort(why);
            // Any call tells the others of an abort; its own error is the abort's.
            drop(comm.run(&call::barrier()));
        }
    }
}

fn provoke_panic() -> *mut Failure {
    guard(|| panic!("provoked"))
}

fn provoke_panic_in(comm: &Comm) -> *mut Failure {
    comm.on(|_| panic!("provoked"))
}

fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}

fn type_name(code: i32) -> &'static str {
    call::data_type(code).map_or("unknown", DataType::name)
}

fn call_name(kind: u8) -> &'static str {
    call::name_of(kind)
}

fn encode(data_type: i32, value: f32) -> u16 {
    match call::data_type(data_type) {
        Ok(DataType::F16) => f16::from_f32(value).to_bits(),
        Ok(DataType::BF16) => bf16::from_f32(value).to_bits(),
        Ok(DataType::F8E4M3) => F8E4M3::from_f32(value).0.into(),
        Ok(DataType::F8E5M2) => F8E5M2::from_f32(value).0.into(),
        _ => 0,
    }
}

fn decode(data_type: i32, bits: u16) -> f32 {
    let low = bits.to_le_bytes()[0];
    match call::data_type(data_type) {
        Ok(DataType::F16) => f16::from_bits(bits).to_f32(),
        Ok(DataType::BF16) => bf16::from_bits(bits).to_f32(),
        Ok(DataType::F8E4M3) => F8E4M3(low).to_f32(),
        Ok(DataType::F8E5M2) => F8E5M2(low).to_f32(),
        _ => 0.0,
    }
}

fn settings() -> Box<Settings> {
    Box::new(Settings(Config::default()))
}

fn set(settings: &mut Settings, name: &[u8], text: &[u8]) -> *mut Failure {
    guard(|| {
        let config = std::mem::take(&mut settings.0);
        settings.0 = config.with_variable(text_of("name", name)?, text_of("value", text)?)?;
        Ok(())
    })
}

fn generate_id(settings: &Settings, id: &mut [u8; 128]) -> *mut Failure {
    guard(|| {
        *id = *Communicator::unique_id(&settings.0)?.as_bytes();
        Ok(())
    })
}

fn check_id(bytes: &[u8]) -> *mut Failure {
    guard(|| UniqueId::from_bytes(bytes).map(drop))
}

fn comm() -> Box<Comm> {
    Box::new(Comm(None))
}

fn join(comm: &mut Comm, ids: &[u8], rank: i32, size: i32, settings: &Settings) -> *mut Failure {
    guard(|| {
        let world = world_of(rank, size)?;
        let ids = ids.chunks(UniqueId::BYTES).map(UniqueId::from_bytes).collect::<Result<Vec<_>>>()?;
        let joined = Communicator::init_scalable(&ids, world.rank.get(), world.size, &settings.0)?;
        comm.0 = Some(joined);
        Ok(())
    })
}

fn join_launched(comm: &mut Comm, settings: &Settings) -> *mut Failure {
    guard(|| {
        comm.0 = Some(Communicator::from_env_with(&settings.0)?);
        Ok(())
    })
}

/// Whether it has joined and was not finalized.
fn is_open(comm: &Comm) -> bool {
    comm.0.as_ref().is_some_and(|comm| !comm.is_closed())
}

fn rank(comm: &Comm) -> i32 {
    comm.0.as_ref().map_or(-1, |comm| int_of(comm.rank()))
}

/// Rank and size for a call, which does not wait for them.
fn world_now(comm: &Comm, rank: &mut i32, size: &mut i32) -> *mut Failure {
    comm.on(|comm| {
        let world = comm.world()?;
        (*rank, *size) = (int_of(world.rank.get()), int_of(world.size));
        Ok(())
    })
}

/// Whether rank and size are known, and if so which.
fn knows_world(comm: &Comm, rank: &mut i32, size: &mut i32) -> bool {
    let world = comm.0.as_ref().and_then(|comm| comm.known_world());
    if let Some(world) = world {
        (*rank, *size) = (int_of(world.rank.get()), int_of(world.size));
    }
    world.is_some()
}

fn size(comm: &Comm) -> i32 {
    comm.0.as_ref().map_or(0, |comm| int_of(comm.size()))
}

/// # Safety
/// The memory that `what` and the rank and size of `comm` call for lies at `send` and `recv`, is good for reading and
/// writing, and nobody else touches it until the call returns. On a stream: it is GPU memory, nobody else touches it
/// until the stream has done the call, and the stream lives until then.
unsafe fn run(comm: &Comm, what: &What, send: *const u8, recv: *mut u8) -> *mut Failure {
    comm.on(|comm| {
        let memory = (send, recv);
        // SAFETY: the caller's promise, for as long as the call runs; nothing keeps the memory after that.
        let work = unsafe { call::work(comm, what, memory, (&[], &[])) }?;
        if what.on_stream {
            // SAFETY: the caller's promise.
            return unsafe { stream::run(comm, what.stream, work) };
        }
        match work {
            Work::Collective(call) => comm.run(&call),
            Work::Message(message) => comm.message(message),
            Work::Messages(messages) => comm.messages(messages),
            Work::Exchange(messages) => comm.exchange(messages),
        }
    })
}

/// # Safety
/// As [`run`], with the counts of `send_counts` and `recv_counts`.
unsafe fn run_v(
    comm: &Comm,
    what: &What,
    send: *const u8,
    recv: *mut u8,
    send_counts: &[usize],
    recv_counts: &[usize],
) -> *mut Failure {
    comm.on(|comm| {
        // SAFETY: the caller's promise, for as long as the call runs; nothing keeps the memory after that.
        let work = unsafe { call::work(comm, what, (send, recv), (send_counts, recv_counts)) }?;
        if what.on_stream {
            // SAFETY: the caller's promise.
            return unsafe { stream::run(comm, what.stream, work) };
        }
        match work {
            Work::Collective(call) => comm.run(&call),
            Work::Message(message) => comm.message(message),
            Work::Messages(messages) => comm.messages(messages),
            Work::Exchange(messages) => comm.exchange(messages),
        }
    })
}

fn split(comm: &Comm, color: i64, key: i64, child: &mut Comm) -> *mut Failure {
    comm.on(|comm| {
        let color = if color < 0 { None } else { Some(call::unsigned("color", color)?) };
        child.0 = comm.split(color, key)?;
        Ok(())
    })
}

fn shrink(comm: &Comm, excluded: &[i32], child: &mut Comm) -> *mut Failure {
    comm.on(|comm| {
        let rank = |rank: &i32| call::unsigned("rank", i64::from(*rank));
        let excluded = excluded.iter().map(rank).collect::<Result<Vec<_>>>()?;
        child.0 = Some(comm.shrink(&excluded)?);
        Ok(())
    })
}

fn async_error(comm: &Comm) -> *mut Failure {
    comm.on(|comm| comm.async_error().map_or(Ok(()), Err))
}

fn finalize(comm: &Comm) -> *mut Failure {
    comm.on(Communicator::close_now)
}

/// Ends a communicator without a word: `deserted` where an exception takes its owner away, which the others must hear.
fn discard(comm: &Comm, deserted: bool) {
    if !is_open(comm) {
        return;
    }
    if deserted {
        // A split that is under way is no failure: the abort ends it too.
        let mut is_over = true;
        failure::drop_failure(comm.on(|comm| {
            is_over = comm.async_error().is_some_and(|error| error.kind() != Kind::InProgress);
            Ok(())
        }));
        if !is_over {
            failure::drop_failure(guard(|| {
                comm.end("an exception left the scope of its communicator");
                Ok(())
            }));
        }
    }
    // A destructor has nobody to tell; of a mismatch it tells on standard error.
    failure::drop_failure(comm.on(Communicator::discard));
}

fn set_progress(comm: &Comm, hook: cxx::UniquePtr<Hook>) -> *mut Failure {
    comm.on(|comm| {
        let hook = (!hook.is_null()).then(|| {
            let hook = Foreign::new(hook);
            Progress::new(move || foreign::result(hook.get().turn()))
        });
        comm.set_progress(hook)
    })
}

fn family() -> Box<Family> {
    Box::new(Family(VecDeque::new()))
}

fn join_all(family: &mut Family, ranks: i32, settings: &Settings) -> *mut Failure {
    guard(|| {
        family.0 = Communicator::init_all(call::unsigned("number of ranks", i64::from(ranks))?, &settings.0)?.into();
        Ok(())
    })
}

/// The next of the family; an empty one where all were taken.
fn take(family: &mut Family) -> Box<Comm> {
    Box::new(Comm(family.0.pop_front()))
}

fn stop(comm: &Comm) -> Box<Stop> {
    Box::new(Stop(comm.0.as_ref().map(|comm| comm.abort_handle())))
}

/// Another handle of the same communicator.
fn same(stop: &Stop) -> Box<Stop> {
    Box::new(Stop(stop.0.clone()))
}

fn abort(stop: &Stop, reason: &[u8]) {
    if let Some(handle) = &stop.0 {
        handle.abort(&String::from_utf8_lossy(reason));
    }
}

fn waiting() -> Box<Waiting> {
    Box::new(Waiting(None))
}

/// # Safety
/// As [`run_v`], until the request has ended.
unsafe fn begin(
    comm: &Comm,
    what: &What,
    send: *const u8,
    recv: *mut u8,
    send_counts: &[usize],
    recv_counts: &[usize],
    request: &mut Waiting,
) -> *mut Failure {
    comm.on(|comm| {
        if what.on_stream {
            let message = "a call on a stream (its last argument; a literal 0 is CUDA's default stream) returns at \
                           once: call it on the communicator itself, not by start(); leave the stream out for memory \
                           of the host";
            return Err(Error::invalid_usage(message).at(comm.world()?.rank));
        }
        // SAFETY: the caller's promise, until the request has ended, which is when nobody uses the memory any more.
        let pending = match unsafe { call::work(comm, what, (send, recv), (send_counts, recv_counts)) }? {
            Work::Collective(call) => comm.begin(call),
            Work::Message(message) => comm.begin_message(message),
            Work::Messages(messages) => comm.begin_messages(messages),
            Work::Exchange(messages) => comm.begin_exchange(messages),
        };
        request.0 = Some(pending?);
        Ok(())
    })
}

fn wait(request: &Waiting) -> *mut Failure {
    guard(|| request.0.as_ref().map_or(Ok(()), Pending::wait))
}

/// For a destructor, which cannot give the program an error.
fn await_end(request: &Waiting) {
    failure::drop_failure(guard(|| {
        request.0.iter().for_each(Pending::await_end);
        Ok(())
    }));
}

fn is_finished(request: &Waiting) -> bool {
    request.0.as_ref().is_none_or(Pending::is_finished)
}

fn batch() -> Box<Batch> {
    Box::default()
}

/// # Safety
/// As [`run_v`], until the batch has run or is gone; and `comm` lives as long.
unsafe fn add(
    batch: &mut Batch,
    comm: *const Comm,
    what: &What,
    send: *const u8,
    recv: *mut u8,
    send_counts: &[usize],
    recv_counts: &[usize],
) -> *mut Failure {
    // SAFETY: the caller's promise.
    guard(|| unsafe { batch.add(comm, what, (send, recv), (send_counts, recv_counts)) })
}

/// Says that a group was forgotten.
fn warn_discarded() {
    crate::log::warn!(Coll, "a group was destroyed without end(): nothing of it has run");
}

/// # Safety
/// The promises of [`add`] hold.
unsafe fn run_batch(batch: &mut Batch) -> *mut Failure {
    // SAFETY: the caller's promise.
    guard(|| unsafe { std::mem::take(batch).run() })
}

/// The number as C++ has it: worlds are far smaller.
fn int_of(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn world_of(rank: i32, size: i32) -> Result<World> {
    match (u32::try_from(rank), u32::try_from(size)) {
        (Ok(mine), Ok(all)) if rank < size => Ok(World { rank: Rank::new(mine), size: all }),
        _ => {
            let message = format!("rank {rank} is out of range: the world has {size} ranks");
            Err(Error::invalid_argument(message))
        }
    }
}

fn wait_of(timeout_ms: u64) -> Wait {
    Wait::new(Duration::from_millis(timeout_ms), &AbortFlag::new())
}

fn text_of<'a>(what: &str, bytes: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|_| Error::invalid_argument(format!("the {what} is not UTF-8 text")))
}

#[cfg(test)]
mod tests;
