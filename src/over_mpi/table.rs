//! The calls of MPI that the protocol makes, as a table of functions. `cpp/include/rsccl/mpi.hpp` has the same, field
//! by field.
//!
//! Every function calls MPI once and returns its code, 0 for success; `i32` is C's `int`. Handles travel as
//! [`Handle`]s. What has no number of its own in MPI's standard (types, operators, info, error handlers) stays on the
//! other side.

use std::fmt;

/// A handle of MPI's (a communicator, a group, a request), whose bytes are the first of the number's and whose other
/// bytes are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) u64);

/// The calls of one MPI. It lives as long as the process.
pub(crate) type Mpi = &'static Table;

/// The levels of thread support, as [`Table::query_thread`] tells them; 0 is both at which only the thread that
/// initialised MPI may call it (`SINGLE` and `FUNNELED`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub(crate) enum ThreadLevel {
    /// Any thread may call, one at a time.
    Serialized = 2,
    /// Any thread may call at any time.
    Multiple = 3,
}

/// A call that yields one number.
type Asks = unsafe extern "C" fn(*mut i32) -> i32;

/// The calls of one MPI.
#[repr(C)]
pub(crate) struct Table {
    /// Bytes of this table on the side that has filled it.
    pub(crate) bytes: u64,
    /// `MPI_COMM_NULL`.
    pub(crate) null: Handle,
    /// `MPI_COMM_WORLD`.
    pub(crate) world: Handle,
    /// `MPI_ANY_SOURCE`.
    pub(crate) any_source: i32,
    /// `MPI_Initialized`.
    pub(crate) initialized: Asks,
    /// `MPI_Finalized`.
    pub(crate) finalized: Asks,
    /// `MPI_Query_thread`; the level as [`ThreadLevel`], or 0.
    pub(crate) query_thread: Asks,
    /// `MPI_Is_thread_main`.
    pub(crate) is_thread_main: Asks,
    /// `MPI_Error_string`: code, where the text goes, the room there; the text's length.
    pub(crate) error_string: unsafe extern "C" fn(i32, *mut u8, i32) -> i32,
    /// `MPI_Comm_test_inter`.
    pub(crate) test_inter: unsafe extern "C" fn(Handle, *mut i32) -> i32,
    /// `MPI_Comm_rank`.
    pub(crate) rank: unsafe extern "C" fn(Handle, *mut i32) -> i32,
    /// `MPI_Comm_size`.
    pub(crate) size: unsafe extern "C" fn(Handle, *mut i32) -> i32,
    /// `MPI_Comm_group`.
    pub(crate) group: unsafe extern "C" fn(Handle, *mut Handle) -> i32,
    /// `MPI_Group_translate_ranks`: from, count, ranks, to, translated.
    pub(crate) translate: unsafe extern "C" fn(Handle, i32, *const i32, Handle, *mut i32) -> i32,
    /// `MPI_Group_free`.
    pub(crate) free_group: unsafe extern "C" fn(*mut Handle) -> i32,
    /// `MPI_Comm_idup`: of, the duplicate (written when the request is complete), the request.
    pub(crate) duplicate: unsafe extern "C" fn(Handle, *mut Handle, *mut Handle) -> i32,
    /// `MPI_Comm_set_errhandler` with `MPI_ERRORS_RETURN`.
    pub(crate) return_errors: unsafe extern "C" fn(Handle) -> i32,
    /// `MPI_Comm_free`.
    pub(crate) free: unsafe extern "C" fn(*mut Handle) -> i32,
    /// `MPI_Iallreduce` of `MPI_INT64_T` by `MPI_MIN`: mine, all, count, communicator, request.
    pub(crate) least: unsafe extern "C" fn(*const i64, *mut i64, i32, Handle, *mut Handle) -> i32,
    /// `MPI_Ibcast` of `MPI_BYTE`: bytes, count, root, communicator, request.
    pub(crate) spread: unsafe extern "C" fn(*mut u8, i32, i32, Handle, *mut Handle) -> i32,
    /// `MPI_Iallgather` of one `MPI_BYTE`: mine, all, communicator, request.
    pub(crate) gather: unsafe extern "C" fn(*const u8, *mut u8, Handle, *mut Handle) -> i32,
    /// `MPI_Isend` of nothing: to, tag, communicator, request.
    pub(crate) signal: unsafe extern "C" fn(i32, i32, Handle, *mut Handle) -> i32,
    /// `MPI_Irecv` of nothing: from, tag, communicator, request.
    pub(crate) take_signal: unsafe extern "C" fn(i32, i32, Handle, *mut Handle) -> i32,
    /// `MPI_Iprobe`: source, tag, communicator, whether something is there.
    pub(crate) probe: unsafe extern "C" fn(i32, i32, Handle, *mut i32) -> i32,
    /// `MPI_Test`: request, whether it is complete.
    pub(crate) test: unsafe extern "C" fn(*mut Handle, *mut i32) -> i32,
    /// `MPI_Comm_split_type` with `MPI_COMM_TYPE_SHARED`: of, key, the part.
    pub(crate) split_by_memory: unsafe extern "C" fn(Handle, i32, *mut Handle) -> i32,
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

// `mpi.hpp` asserts the same: 4 words, then 22 functions.
const _: () = assert!(size_of::<Table>() == (4 + 22) * 8 && size_of::<usize>() == 8);
