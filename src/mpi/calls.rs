//! Every call of MPI, behind safe functions. No other file of the library touches MPI.
//!
//! Calls that wait for other ranks are started here and completed elsewhere ([`PendingCall`]). Nothing in this file
//! blocks, except [`Private::shared_memory_ranks`], which is called only when all ranks are known to be ready.

use ::mpi::ffi::{self, MPI_Comm};
use ::mpi::raw::AsRaw;

use crate::error::{Error, Kind, Result};
use crate::types::{Rank, World};

/// The state of MPI in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// `MPI_Init` has not been called yet.
    Before,
    /// MPI may be called.
    Running,
    /// `MPI_Finalize` has been called.
    Over,
}

/// The state of MPI in this process. May be called at any time, from any thread.
pub(super) fn stage() -> Stage {
    let (mut begun, mut ended) = (0, 0);
    // SAFETY: allowed at any time; writes one int, which `begun` is.
    unsafe { ffi::MPI_Initialized(&raw mut begun) };
    // SAFETY: as above.
    unsafe { ffi::MPI_Finalized(&raw mut ended) };
    match (begun != 0, ended != 0) {
        (_, true) => Stage::Over,
        (true, false) => Stage::Running,
        (false, false) => Stage::Before,
    }
}

/// Checks that this thread may call MPI now; yields whether any thread may at any time (`MPI_THREAD_MULTIPLE`).
///
/// # Errors
/// [`Kind::InvalidUsage`] if MPI is not running, or if its thread level forbids this thread to call it.
pub(super) fn check_thread() -> Result<bool> {
    match stage() {
        Stage::Running => {}
        Stage::Before => {
            return Err(Error::invalid_usage(
                "MPI is not initialised: call MPI_Init_thread (rsmpi: mpi::initialize_with_threading) before this",
            ));
        }
        Stage::Over => {
            return Err(Error::invalid_usage(
                "MPI is already finalised: call this before MPI_Finalize (rsmpi: while the Universe lives)",
            ));
        }
    }
    let (mut level, mut is_main) = (0, 0);
    // SAFETY: MPI is up, as was just seen; writes one int, which `level` is.
    check(unsafe { ffi::MPI_Query_thread(&raw mut level) }, "MPI_Query_thread")?;
    // SAFETY: as above.
    check(unsafe { ffi::MPI_Is_thread_main(&raw mut is_main) }, "MPI_Is_thread_main")?;
    // SAFETY: a constant that the library has set when it was loaded.
    let serialized = unsafe { ffi::RSMPI_THREAD_SERIALIZED };
    // SAFETY: as above.
    let multiple = unsafe { ffi::RSMPI_THREAD_MULTIPLE };
    if level < serialized && is_main == 0 {
        return Err(Error::invalid_usage(
            "at this thread level of MPI only the thread that initialised it may call it, and this is another: \
             initialise MPI with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE, or call from that thread",
        ));
    }
    Ok(level >= multiple)
}

/// A communicator of the user's, checked to be an intracommunicator. It is only borrowed.
#[derive(Debug)]
pub(super) struct Theirs<'a> {
    raw: MPI_Comm,
    world: World,
    lives: std::marker::PhantomData<&'a ()>,
}

impl<'a> Theirs<'a> {
    /// Checks `comm`.
    ///
    /// # Errors
    /// [`Kind::InvalidUsage`] as for [`check_thread`]; [`Kind::InvalidArgument`] for `MPI_COMM_NULL` and an
    /// intercommunicator.
    pub(super) fn new(comm: &'a impl AsRaw<Raw = MPI_Comm>) -> Result<Theirs<'a>> {
        check_thread()?;
        let raw = comm.as_raw();
        if is_null(raw) {
            return Err(Error::invalid_argument(
                "the communicator is MPI_COMM_NULL: a rank that is not in an MPI communicator must not call this",
            ));
        }
        let mut inter = 0;
        // SAFETY: MPI is up and this thread may call it, as was just checked; `AsRaw` promises a handle that is valid.
        check(unsafe { ffi::MPI_Comm_test_inter(raw, &raw mut inter) }, "MPI_Comm_test_inter")?;
        if inter != 0 {
            return Err(Error::invalid_argument(
                "the communicator is an intercommunicator, which has two groups of ranks: merge them by \
                 MPI_Intercomm_merge",
            ));
        }
        Ok(Theirs { raw, world: world_of(raw)?, lives: std::marker::PhantomData })
    }

    /// This process's rank in it, and its size.
    pub(super) fn world(&self) -> World {
        self.world
    }

    /// For each of its ranks, in order, the rank in `MPI_COMM_WORLD`. Local: sends no message.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] if a rank belongs to another `MPI_COMM_WORLD` (a spawned or connected job).
    pub(super) fn ranks_in_world(&self) -> Result<Vec<u32>> {
        // SAFETY: a constant that the library has set when it was loaded.
        translate(self.raw, unsafe { ffi::RSMPI_COMM_WORLD })?.into_iter().collect::<Option<Vec<u32>>>().ok_or_else(
            || Error::invalid_argument("the MPI communicator has ranks that are not in this process's MPI_COMM_WORLD"),
        )
    }

    /// Starts to make a private duplicate: collective over the communicator.
    pub(super) fn duplicate(&self) -> Result<PendingCall<Vec<MPI_Comm>>> {
        duplicate(self.raw)
    }
}

/// Whether `comm` is `MPI_COMM_NULL`.
pub(super) fn is_null(comm: MPI_Comm) -> bool {
    // SAFETY: a constant that the library has set when it was loaded.
    comm == unsafe { ffi::RSMPI_COMM_NULL }
}

/// This process's rank in `MPI_COMM_WORLD`.
pub(super) fn rank_in_world() -> Result<u32> {
    check_thread()?;
    // SAFETY: a constant that the library has set when it was loaded.
    Ok(world_of(unsafe { ffi::RSMPI_COMM_WORLD })?.rank.get())
}

/// A duplicate on which only rsccl sends, and which returns errors. Only [`Private::free`] frees it, because freeing is
/// collective: a duplicate that is dropped after an error stays allocated in MPI.
#[derive(Debug)]
pub(super) struct Private {
    raw: MPI_Comm,
    world: World,
}

impl Private {
    /// The duplicate that [`Theirs::duplicate`] has made.
    pub(super) fn adopt(made: &[MPI_Comm]) -> Result<Private> {
        let raw = *made.first().ok_or_else(|| Error::internal("a duplicate has no handle"))?;
        // SAFETY: a constant that the library has set when it was loaded.
        let returns = unsafe { ffi::RSMPI_ERRORS_RETURN };
        // SAFETY: the duplicate is finished and ours.
        check(unsafe { ffi::MPI_Comm_set_errhandler(raw, returns) }, "MPI_Comm_set_errhandler")?;
        Ok(Private { raw, world: world_of(raw)? })
    }

    /// This process's rank in it, and its size: those of the original.
    pub(super) fn world(&self) -> World {
        self.world
    }

    /// Frees it. All ranks do so, after they have agreed on something.
    pub(super) fn free(mut self) -> Result<()> {
        // SAFETY: ours, with nothing pending on it; `self` is consumed, so nobody uses the handle again.
        check(unsafe { ffi::MPI_Comm_free(&raw mut self.raw) }, "MPI_Comm_free")
    }

    /// Starts to compute the element-wise minimum over all ranks.
    pub(super) fn least(&self, values: Vec<i64>) -> Result<PendingCall<(Vec<i64>, Vec<i64>)>> {
        let count = int(values.len())?;
        let mut pending = PendingCall::new((values.clone(), values));
        // SAFETY: a constant that the library has set when it was loaded.
        let of = unsafe { ffi::RSMPI_INT64_T };
        // SAFETY: as above.
        let op = unsafe { ffi::RSMPI_MIN };
        let (mine, all) = pending.buffers();
        let (mine, all) = (mine.as_ptr().cast(), all.as_mut_ptr().cast());
        let request = &raw mut pending.request;
        // SAFETY: both buffers hold `count` values, and `PendingCall` keeps them, and lets nobody at them, until the
        // call is complete.
        check(unsafe { ffi::MPI_Iallreduce(mine, all, count, of, op, self.raw, request) }, "MPI_Iallreduce")?;
        Ok(pending.begun())
    }

    /// Starts a broadcast of `root`'s bytes; all ranks must pass the same number of bytes.
    pub(super) fn spread(&self, root: Rank, bytes: Vec<u8>) -> Result<PendingCall<Vec<u8>>> {
        let (count, root) = (int(bytes.len())?, int(root.index())?);
        let mut pending = PendingCall::new(bytes);
        let buffer = pending.buffers().as_mut_ptr().cast();
        let request = &raw mut pending.request;
        // SAFETY: the buffer holds `count` bytes; `PendingCall` keeps it, and lets nobody at it, until the call is
        // complete.
        check(unsafe { ffi::MPI_Ibcast(buffer, count, bytes_type(), root, self.raw, request) }, "MPI_Ibcast")?;
        Ok(pending.begun())
    }

    /// Starts to gather one byte of every rank.
    pub(super) fn gather(&self, mine: u8) -> Result<PendingCall<(Vec<u8>, Vec<u8>)>> {
        let mut pending = PendingCall::new((vec![mine], vec![0; self.world.size as usize]));
        let (mine, all) = pending.buffers();
        let (mine, all, of) = (mine.as_ptr().cast(), all.as_mut_ptr().cast(), bytes_type());
        let request = &raw mut pending.request;
        // SAFETY: one byte is sent and one for each rank received; `PendingCall` keeps both buffers until the call is
        // complete.
        check(unsafe { ffi::MPI_Iallgather(mine, 1, of, all, 1, of, self.raw, request) }, "MPI_Iallgather")?;
        Ok(pending.begun())
    }

    /// Starts to send a signal (an empty message) to `peer`.
    pub(super) fn signal(&self, peer: Rank) -> Result<PendingCall<()>> {
        let (to, of, mut pending) = (int(peer.index())?, bytes_type(), PendingCall::new(()));
        let request = &raw mut pending.request;
        // SAFETY: no bytes are read; the request is written.
        check(unsafe { ffi::MPI_Isend(std::ptr::null(), 0, of, to, SIGNAL, self.raw, request) }, "MPI_Isend")?;
        Ok(pending.begun())
    }

    /// Starts to receive the signal of `peer`.
    pub(super) fn take_signal(&self, peer: Rank) -> Result<PendingCall<()>> {
        let (from, of, mut pending) = (int(peer.index())?, bytes_type(), PendingCall::new(()));
        let request = &raw mut pending.request;
        // SAFETY: no bytes are written; the request is.
        check(unsafe { ffi::MPI_Irecv(std::ptr::null_mut(), 0, of, from, SIGNAL, self.raw, request) }, "MPI_Irecv")?;
        Ok(pending.begun())
    }

    /// Whether a signal has arrived; it is not received.
    pub(super) fn is_signalled(&self) -> Result<bool> {
        // SAFETY: a constant that the library has set when it was loaded.
        probe(self.raw, unsafe { ffi::RSMPI_ANY_SOURCE }, SIGNAL)
    }

    /// The ranks that MPI says share memory with this one, including itself, in order. Blocks until all ranks have
    /// called it.
    pub(super) fn shared_memory_ranks(&self) -> Result<Vec<Rank>> {
        // SAFETY: a constant that the library has set when it was loaded.
        let mut node = unsafe { ffi::RSMPI_COMM_NULL };
        // SAFETY: as above.
        let shared = unsafe { ffi::RSMPI_COMM_TYPE_SHARED };
        // SAFETY: as above.
        let no_hints = unsafe { ffi::RSMPI_INFO_NULL };
        let key = int(self.world.rank.index())?;
        // SAFETY: ours and live; writes one handle.
        let status = unsafe { ffi::MPI_Comm_split_type(self.raw, shared, key, no_hints, &raw mut node) };
        check(status, "MPI_Comm_split_type")?;
        let ranks = translate(node, self.raw);
        // SAFETY: made above, with nothing pending on it.
        check(unsafe { ffi::MPI_Comm_free(&raw mut node) }, "MPI_Comm_free")?;
        let ranks: Option<Vec<u32>> = ranks?.into_iter().collect();
        let ranks = ranks.ok_or_else(|| Error::internal("MPI_Comm_split_type yields ranks that it was not given"))?;
        Ok(ranks.into_iter().map(Rank::new).collect())
    }
}

/// Lets MPI progress: probes for a message that is never sent. MPI progresses nothing if the probe finds a message, and
/// MPICH progresses nothing for `MPI_COMM_SELF`.
pub(super) fn poke() -> Result<()> {
    // SAFETY: a constant that the library has set when it was loaded.
    let world = unsafe { ffi::RSMPI_COMM_WORLD };
    let me = int(world_of(world)?.rank.index())?;
    probe(world, me, QUIET).map(|_found| ())
}

/// Ends all ranks of the job with `code`; may return if MPI is not running, or fails to.
pub(super) fn abort(code: i32) {
    if stage() != Stage::Running {
        return;
    }
    // SAFETY: a constant that the library has set when it was loaded.
    let world = unsafe { ffi::RSMPI_COMM_WORLD };
    // SAFETY: MPI is up. The thread level is not looked at: the process ends here one way or the other.
    unsafe { ffi::MPI_Abort(world, code) };
}

/// A call that MPI has started, with the buffers that it reads and writes. If it is dropped before its completion, the
/// buffers are leaked, because MPI may still write to them.
#[derive(Debug)]
pub(super) struct PendingCall<B> {
    request: ffi::MPI_Request,
    buffers: Option<B>,
    /// Whether MPI uses the buffers now.
    lent: bool,
}

impl<B> PendingCall<B> {
    fn new(buffers: B) -> PendingCall<B> {
        // SAFETY: a constant that the library has set when it was loaded.
        PendingCall { request: unsafe { ffi::RSMPI_REQUEST_NULL }, buffers: Some(buffers), lent: false }
    }

    fn buffers(&mut self) -> &mut B {
        self.buffers.as_mut().expect("buffers leave with the whole value only")
    }

    fn begun(mut self) -> PendingCall<B> {
        self.lent = true;
        self
    }

    /// Lets MPI progress; yields whether the call is complete.
    pub(super) fn test(&mut self) -> Result<bool> {
        if !self.lent {
            return Ok(true);
        }
        let mut done = 0;
        // SAFETY: a constant that the library has set when it was loaded.
        let ignore = unsafe { ffi::RSMPI_STATUS_IGNORE };
        // SAFETY: the request is one that MPI has begun and not completed; the buffers that it speaks of live, see
        // `Drop`.
        check(unsafe { ffi::MPI_Test(&raw mut self.request, &raw mut done, ignore) }, "MPI_Test")?;
        self.lent = done == 0;
        Ok(done != 0)
    }

    /// The buffers of a completed call.
    pub(super) fn take(mut self) -> Result<B> {
        match self.buffers.take() {
            Some(buffers) if !self.lent => Ok(buffers),
            kept => {
                self.buffers = kept;
                Err(Error::internal("a call of MPI was taken before its end"))
            }
        }
    }
}

impl<B> Drop for PendingCall<B> {
    fn drop(&mut self) {
        if self.lent {
            std::mem::forget(self.buffers.take());
        }
    }
}

fn duplicate(comm: MPI_Comm) -> Result<PendingCall<Vec<MPI_Comm>>> {
    // SAFETY: a constant that the library has set when it was loaded.
    let mut pending = PendingCall::new(vec![unsafe { ffi::RSMPI_COMM_NULL }]);
    let made = pending.buffers().as_mut_ptr();
    let request = &raw mut pending.request;
    // SAFETY: the caller's handle is checked; one handle is written at `made`, which `PendingCall` keeps until the call
    // is complete.
    check(unsafe { ffi::MPI_Comm_idup(comm, made, request) }, "MPI_Comm_idup")?;
    Ok(pending.begun())
}

fn probe(comm: MPI_Comm, source: i32, tag: i32) -> Result<bool> {
    let mut found = 0;
    // SAFETY: a constant that the library has set when it was loaded.
    let ignore = unsafe { ffi::RSMPI_STATUS_IGNORE };
    // SAFETY: the handle is a live communicator's; writes one int, which `found` is.
    check(unsafe { ffi::MPI_Iprobe(source, tag, comm, &raw mut found, ignore) }, "MPI_Iprobe")?;
    Ok(found != 0)
}

fn world_of(comm: MPI_Comm) -> Result<World> {
    let (mut rank, mut size) = (0, 0);
    // SAFETY: the handle is a live communicator's; writes one int.
    check(unsafe { ffi::MPI_Comm_rank(comm, &raw mut rank) }, "MPI_Comm_rank")?;
    // SAFETY: as above.
    check(unsafe { ffi::MPI_Comm_size(comm, &raw mut size) }, "MPI_Comm_size")?;
    match (u32::try_from(rank), u32::try_from(size)) {
        (Ok(rank), Ok(size)) if rank < size => Ok(World { rank: Rank::new(rank), size }),
        _ => Err(Error::internal(format!("MPI reports rank {rank} of {size}"))),
    }
}

/// For each rank of `from`, in order, its rank in `to`; `None` if it has none.
fn translate(from: MPI_Comm, to: MPI_Comm) -> Result<Vec<Option<u32>>> {
    let size = world_of(from)?.size;
    let ranks: Vec<i32> = (0..size).map(|rank| int(rank as usize)).collect::<Result<_>>()?;
    let mut found = vec![0; ranks.len()];
    let (mut mine, mut theirs) = (group_of(from)?, group_of(to)?);
    let (count, asked, told) = (int(ranks.len())?, ranks.as_ptr(), found.as_mut_ptr());
    // SAFETY: both groups were just made; `asked` and `told` hold `count` ints.
    let status = unsafe { ffi::MPI_Group_translate_ranks(mine, count, asked, theirs, told) };
    for group in [&mut mine, &mut theirs] {
        // SAFETY: made above; used no more.
        check(unsafe { ffi::MPI_Group_free(group) }, "MPI_Group_free")?;
    }
    check(status, "MPI_Group_translate_ranks")?;
    // A rank that is not there is MPI_UNDEFINED, a negative number.
    Ok(found.into_iter().map(|rank| u32::try_from(rank).ok()).collect())
}

fn group_of(comm: MPI_Comm) -> Result<ffi::MPI_Group> {
    // SAFETY: a constant that the library has set when it was loaded.
    let mut group = unsafe { ffi::RSMPI_GROUP_NULL };
    // SAFETY: the handle is a live communicator's; writes one handle.
    check(unsafe { ffi::MPI_Comm_group(comm, &raw mut group) }, "MPI_Comm_group")?;
    Ok(group)
}

fn bytes_type() -> ffi::MPI_Datatype {
    // SAFETY: a constant that the library has set when it was loaded.
    unsafe { ffi::RSMPI_UINT8_T }
}

fn int(count: usize) -> Result<i32> {
    i32::try_from(count).map_err(|_| Error::invalid_argument(format!("MPI cannot count to {count}")))
}

/// The error of a failed call, with MPI's text.
#[cold]
fn failed(code: i32, call: &str) -> Error {
    let mut text = [0u8; MAX_ERROR_BYTES];
    let (mut length, buffer) = (0, text.as_mut_ptr().cast());
    // SAFETY: the buffer holds MPI_MAX_ERROR_STRING bytes, as the assertion below proves.
    let status = unsafe { ffi::MPI_Error_string(code, buffer, &raw mut length) };
    let length = if status == SUCCESS { usize::try_from(length).unwrap_or(0).min(MAX_ERROR_BYTES) } else { 0 };
    let words = String::from_utf8_lossy(&text[..length]).replace('\n', " ");
    Error::new(Kind::System, format!("{call} failed with code {code}: {}", words.trim_end_matches('\0')))
}

fn check(code: i32, call: &str) -> Result<()> {
    if code == SUCCESS { Ok(()) } else { Err(failed(code, call)) }
}

/// `MPI_SUCCESS`, which is 0 by the standard.
const SUCCESS: i32 = 0;
/// The tag of signals; only rsccl sends on a private duplicate.
const SIGNAL: i32 = 0;
/// The highest tag that every MPI must support: a program is unlikely to send itself a message with it.
const QUIET: i32 = 32767;
/// At least `MPI_MAX_ERROR_STRING` of every MPI.
const MAX_ERROR_BYTES: usize = 2048;
const _: () = assert!(ffi::MPI_MAX_ERROR_STRING as usize <= MAX_ERROR_BYTES, "error texts fit");
