//! The table of MPI's calls, filled by the crate `mpi`: the only file of the library that calls MPI itself.
//!
//! `over_mpi` alone calls the functions of the table, under the preconditions of the calls of MPI that they make.
//! Each hands on what it gets, and every `SAFETY` line that says "the table's contract" means that.

use ::mpi::ffi::{self, MPI_Comm, MPI_Group, MPI_Request};
use ::mpi::raw::AsRaw;

use crate::over_mpi::calls::{Stage, stage};
use crate::over_mpi::{Handle, Mpi, Table, ThreadLevel};
use crate::sync::primitive::OnceLock;

/// This program's MPI.
pub(super) fn mpi_calls() -> Mpi {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(fill)
}

/// The handle of a communicator.
pub(super) fn handle_of(comm: &impl AsRaw<Raw = MPI_Comm>) -> Handle {
    handle(comm.as_raw())
}

/// Ends all ranks of the job with `code`; may return if MPI is not running, or fails to.
pub(super) fn abort(code: i32) {
    if stage(mpi_calls()) != Stage::Running {
        return;
    }
    // SAFETY: a constant that the library has set when it was loaded.
    let world = unsafe { ffi::RSMPI_COMM_WORLD };
    // SAFETY: MPI is up. The thread level is not looked at: the process ends here one way or the other.
    unsafe { ffi::MPI_Abort(world, code) };
}

fn fill() -> Table {
    // SAFETY: a constant that the library has set when it was loaded.
    let null = unsafe { ffi::RSMPI_COMM_NULL };
    // SAFETY: as above.
    let world = unsafe { ffi::RSMPI_COMM_WORLD };
    // SAFETY: as above.
    let any_source = unsafe { ffi::RSMPI_ANY_SOURCE };
    Table {
        bytes: size_of::<Table>() as u64,
        null: handle(null),
        world: handle(world),
        any_source,
        initialized: ffi::MPI_Initialized,
        finalized: ffi::MPI_Finalized,
        query_thread,
        is_thread_main: ffi::MPI_Is_thread_main,
        error_string,
        test_inter,
        rank,
        size,
        group,
        translate,
        free_group,
        duplicate,
        return_errors,
        free,
        least,
        spread,
        gather,
        signal,
        take_signal,
        probe,
        test,
        split_by_memory,
    }
}

/// A handle of MPI's as a number.
fn handle<T: Copy>(of: T) -> Handle {
    const { assert!(size_of::<T>() <= size_of::<Handle>() && align_of::<T>() <= align_of::<Handle>()) };
    let mut handle = Handle(0);
    // SAFETY: the number is at least as large and as aligned, as was just asserted, and any bytes are one.
    unsafe { (&raw mut handle).cast::<T>().write(of) };
    handle
}

/// The handle that a number was made of.
fn raw<T: Copy>(handle: Handle) -> T {
    const { assert!(size_of::<T>() <= size_of::<Handle>() && align_of::<T>() <= align_of::<Handle>()) };
    // SAFETY: the number was made of such a handle, by `handle` or by a call of MPI that wrote one there.
    unsafe { (&raw const handle).cast::<T>().read() }
}

fn bytes_type() -> ffi::MPI_Datatype {
    // SAFETY: a constant that the library has set when it was loaded.
    unsafe { ffi::RSMPI_UINT8_T }
}

unsafe extern "C" fn query_thread(level: *mut i32) -> i32 {
    // SAFETY: the table's contract.
    let status = unsafe { ffi::MPI_Query_thread(level) };
    // SAFETY: a constant that the library has set when it was loaded.
    let serialized = unsafe { ffi::RSMPI_THREAD_SERIALIZED };
    // SAFETY: as above.
    let multiple = unsafe { ffi::RSMPI_THREAD_MULTIPLE };
    // SAFETY: the table's contract: it is one int.
    let theirs = unsafe { level.read() };
    let ours = match theirs {
        theirs if theirs >= multiple => ThreadLevel::Multiple as i32,
        theirs if theirs >= serialized => ThreadLevel::Serialized as i32,
        _ => 0,
    };
    // SAFETY: as above.
    unsafe { level.write(ours) };
    status
}

unsafe extern "C" fn error_string(code: i32, text: *mut u8, room: i32) -> i32 {
    let mut words = [0u8; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the buffer is as long as MPI's longest text.
    let status = unsafe { ffi::MPI_Error_string(code, words.as_mut_ptr().cast(), &raw mut length) };
    let length = if status == 0 { length.clamp(0, room) } else { 0 };
    let bytes = usize::try_from(length).unwrap_or(0).min(words.len());
    // SAFETY: `text` has room for that much.
    unsafe { text.copy_from_nonoverlapping(words.as_ptr(), bytes) };
    length
}

unsafe extern "C" fn test_inter(comm: Handle, inter: *mut i32) -> i32 {
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Comm_test_inter(raw(comm), inter) }
}

unsafe extern "C" fn rank(comm: Handle, rank: *mut i32) -> i32 {
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Comm_rank(raw(comm), rank) }
}

unsafe extern "C" fn size(comm: Handle, size: *mut i32) -> i32 {
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Comm_size(raw(comm), size) }
}

unsafe extern "C" fn group(comm: Handle, group: *mut Handle) -> i32 {
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Comm_group(raw(comm), group.cast::<MPI_Group>()) }
}

unsafe extern "C" fn translate(from: Handle, count: i32, asked: *const i32, to: Handle, told: *mut i32) -> i32 {
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Group_translate_ranks(raw(from), count, asked, raw(to), told) }
}

unsafe extern "C" fn free_group(group: *mut Handle) -> i32 {
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Group_free(group.cast()) }
}

unsafe extern "C" fn duplicate(comm: Handle, made: *mut Handle, request: *mut Handle) -> i32 {
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Comm_idup(raw(comm), made.cast::<MPI_Comm>(), request.cast::<MPI_Request>()) }
}

unsafe extern "C" fn return_errors(comm: Handle) -> i32 {
    // SAFETY: a constant that the library has set when it was loaded.
    let returns = unsafe { ffi::RSMPI_ERRORS_RETURN };
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Comm_set_errhandler(raw(comm), returns) }
}

unsafe extern "C" fn free(comm: *mut Handle) -> i32 {
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Comm_free(comm.cast()) }
}

unsafe extern "C" fn least(mine: *const i64, all: *mut i64, count: i32, comm: Handle, request: *mut Handle) -> i32 {
    // SAFETY: a constant that the library has set when it was loaded.
    let of = unsafe { ffi::RSMPI_INT64_T };
    // SAFETY: as above.
    let op = unsafe { ffi::RSMPI_MIN };
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Iallreduce(mine.cast(), all.cast(), count, of, op, raw(comm), request.cast()) }
}

unsafe extern "C" fn spread(bytes: *mut u8, count: i32, root: i32, comm: Handle, request: *mut Handle) -> i32 {
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Ibcast(bytes.cast(), count, bytes_type(), root, raw(comm), request.cast()) }
}

unsafe extern "C" fn gather(mine: *const u8, all: *mut u8, comm: Handle, request: *mut Handle) -> i32 {
    let of = bytes_type();
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Iallgather(mine.cast(), 1, of, all.cast(), 1, of, raw(comm), request.cast()) }
}

unsafe extern "C" fn signal(to: i32, tag: i32, comm: Handle, request: *mut Handle) -> i32 {
    // SAFETY: the table's contract; no bytes are read.
    unsafe { ffi::MPI_Isend(std::ptr::null(), 0, bytes_type(), to, tag, raw(comm), request.cast()) }
}

unsafe extern "C" fn take_signal(from: i32, tag: i32, comm: Handle, request: *mut Handle) -> i32 {
    // SAFETY: the table's contract; no bytes are written.
    unsafe { ffi::MPI_Irecv(std::ptr::null_mut(), 0, bytes_type(), from, tag, raw(comm), request.cast()) }
}

unsafe extern "C" fn probe(source: i32, tag: i32, comm: Handle, found: *mut i32) -> i32 {
    // SAFETY: a constant that the library has set when it was loaded.
    let ignore = unsafe { ffi::RSMPI_STATUS_IGNORE };
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Iprobe(source, tag, raw(comm), found, ignore) }
}

unsafe extern "C" fn test(request: *mut Handle, done: *mut i32) -> i32 {
    // SAFETY: a constant that the library has set when it was loaded.
    let ignore = unsafe { ffi::RSMPI_STATUS_IGNORE };
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Test(request.cast(), done, ignore) }
}

unsafe extern "C" fn split_by_memory(comm: Handle, key: i32, part: *mut Handle) -> i32 {
    // SAFETY: a constant that the library has set when it was loaded.
    let shared = unsafe { ffi::RSMPI_COMM_TYPE_SHARED };
    // SAFETY: as above.
    let no_hints = unsafe { ffi::RSMPI_INFO_NULL };
    // SAFETY: the table's contract.
    unsafe { ffi::MPI_Comm_split_type(raw(comm), shared, key, no_hints, part.cast()) }
}
