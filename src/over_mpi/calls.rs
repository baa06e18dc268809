//! Every call of MPI, behind safe functions over the [`Table`](super::Table). No other file of the protocol calls it.
//!
//! Calls that wait for other ranks are started here and completed elsewhere ([`PendingCall`]). Nothing in this file
//! blocks, except [`Private::shared_memory_ranks`], which is called only when all ranks are known to be ready.

use crate::error::{Error, Kind, Result};
use crate::over_mpi::{Handle, Mpi, ThreadLevel};
use crate::types::{Rank, World};

/// The state of MPI in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// `MPI_Init` has not been called yet.
    Before,
    /// MPI may be called.
    Running,
    /// `MPI_Finalize` has been called.
    Over,
}

/// The state of MPI in this process. May be called at any time, from any thread.
pub(crate) fn stage(mpi: Mpi) -> Stage {
    let (mut begun, mut ended) = (0, 0);
    // SAFETY: allowed at any time; writes one int, which `begun` is.
    unsafe { (mpi.initialized)(&raw mut begun) };
    // SAFETY: as above.
    unsafe { (mpi.finalized)(&raw mut ended) };
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
pub(crate) fn check_thread(mpi: Mpi) -> Result<bool> {
    match stage(mpi) {
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
    check(mpi, unsafe { (mpi.query_thread)(&raw mut level) }, "MPI_Query_thread")?;
    // SAFETY: as above.
    check(mpi, unsafe { (mpi.is_thread_main)(&raw mut is_main) }, "MPI_Is_thread_main")?;
    if level < ThreadLevel::Serialized as i32 && is_main == 0 {
        return Err(Error::invalid_usage(
            "at this thread level of MPI only the thread that initialised it may call it, and this is another: \
             initialise MPI with MPI_THREAD_SERIALIZED or MPI_THREAD_MULTIPLE, or call from that thread",
        ));
    }
    Ok(level >= ThreadLevel::Multiple as i32)
}

/// A communicator of the user's, checked to be an intracommunicator. It is only borrowed: the caller keeps it alive.
#[derive(Debug)]
pub(super) struct Theirs {
    mpi: Mpi,
    raw: Handle,
    world: World,
}

impl Theirs {
    /// Checks `comm`.
    ///
    /// # Errors
    /// [`Kind::InvalidUsage`] as for [`check_thread`]; [`Kind::InvalidArgument`] for `MPI_COMM_NULL` and an
    /// intercommunicator.
    ///
    /// # Safety
    /// `comm` is a handle of this MPI's, null or of a communicator that lives as long as this value.
    pub(super) unsafe fn new(mpi: Mpi, comm: Handle) -> Result<Theirs> {
        check_thread(mpi)?;
        if comm == mpi.null {
            return Err(Error::invalid_argument(
                "the communicator is MPI_COMM_NULL: a rank that is not in an MPI communicator must not call this",
            ));
        }
        let mut inter = 0;
        // SAFETY: MPI is up and this thread may call it, as was just checked; the handle is valid by the contract.
        check(mpi, unsafe { (mpi.test_inter)(comm, &raw mut inter) }, "MPI_Comm_test_inter")?;
        if inter != 0 {
            return Err(Error::invalid_argument(
                "the communicator is an intercommunicator, which has two groups of ranks: merge them by \
                 MPI_Intercomm_merge",
            ));
        }
        Ok(Theirs { mpi, raw: comm, world: world_of(mpi, comm)? })
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
        translate(self.mpi, self.raw, self.mpi.world)?.into_iter().collect::<Option<Vec<u32>>>().ok_or_else(|| {
            Error::invalid_argument("the MPI communicator has ranks that are not in this process's MPI_COMM_WORLD")
        })
    }

    /// Starts to make a private duplicate: collective over the communicator.
    pub(super) fn duplicate(&self) -> Result<PendingCall<Vec<Handle>>> {
        let mut pending = PendingCall::new(self.mpi, vec![Handle(0)]);
        let made = pending.buffers().as_mut_ptr();
        let request = &raw mut pending.request;
        // SAFETY: the handle is checked; one handle is written at `made`, which `PendingCall` keeps until the call is
        // complete.
        check(self.mpi, unsafe { (self.mpi.duplicate)(self.raw, made, request) }, "MPI_Comm_idup")?;
        Ok(pending.begun())
    }
}

/// The number of ranks of `MPI_COMM_WORLD`.
pub(super) fn size_of_world(mpi: Mpi) -> Result<u32> {
    world_of(mpi, mpi.world).map(|world| world.size)
}

/// This process's rank in `MPI_COMM_WORLD`.
pub(super) fn rank_in_world(mpi: Mpi) -> Result<u32> {
    check_thread(mpi)?;
    Ok(world_of(mpi, mpi.world)?.rank.get())
}

/// A duplicate on which only rsccl sends, and which returns errors. Only [`Private::free`] frees it, because freeing is
/// collective: a duplicate that is dropped after an error stays allocated in MPI.
#[derive(Debug)]
pub(super) struct Private {
    mpi: Mpi,
    raw: Handle,
    world: World,
}

impl Private {
    /// The duplicate that [`Theirs::duplicate`] has made.
    pub(super) fn adopt(mpi: Mpi, made: &[Handle]) -> Result<Private> {
        let raw = *made.first().ok_or_else(|| Error::internal("a duplicate has no handle"))?;
        // SAFETY: the duplicate is finished and ours.
        check(mpi, unsafe { (mpi.return_errors)(raw) }, "MPI_Comm_set_errhandler")?;
        Ok(Private { mpi, raw, world: world_of(mpi, raw)? })
    }

    /// This process's rank in it, and its size: those of the original.
    pub(super) fn world(&self) -> World {
        self.world
    }

    /// Frees it. All ranks do so, after they have agreed on something.
    pub(super) fn free(mut self) -> Result<()> {
        // SAFETY: ours, with nothing pending on it; `self` is consumed, so nobody uses the handle again.
        check(self.mpi, unsafe { (self.mpi.free)(&raw mut self.raw) }, "MPI_Comm_free")
    }

    /// Starts to compute the element-wise minimum over all ranks.
    pub(super) fn least(&self, values: Vec<i64>) -> Result<PendingCall<(Vec<i64>, Vec<i64>)>> {
        let count = int(values.len())?;
        let mut pending = PendingCall::new(self.mpi, (values.clone(), values));
        let (mine, all) = pending.buffers();
        let (mine, all) = (mine.as_ptr(), all.as_mut_ptr());
        let request = &raw mut pending.request;
        // SAFETY: both buffers hold `count` values, and `PendingCall` keeps them, and lets nobody at them, until the
        // call is complete.
        check(self.mpi, unsafe { (self.mpi.least)(mine, all, count, self.raw, request) }, "MPI_Iallreduce")?;
        Ok(pending.begun())
    }

    /// Starts a broadcast of `root`'s bytes; all ranks must pass the same number of bytes.
    pub(super) fn spread(&self, root: Rank, bytes: Vec<u8>) -> Result<PendingCall<Vec<u8>>> {
        let (count, root) = (int(bytes.len())?, int(root.index())?);
        let mut pending = PendingCall::new(self.mpi, bytes);
        let buffer = pending.buffers().as_mut_ptr();
        let request = &raw mut pending.request;
        // SAFETY: the buffer holds `count` bytes; `PendingCall` keeps it, and lets nobody at it, until the call is
        // complete.
        check(self.mpi, unsafe { (self.mpi.spread)(buffer, count, root, self.raw, request) }, "MPI_Ibcast")?;
        Ok(pending.begun())
    }

    /// Starts to gather one byte of every rank.
    pub(super) fn gather(&self, mine: u8) -> Result<PendingCall<(Vec<u8>, Vec<u8>)>> {
        let mut pending = PendingCall::new(self.mpi, (vec![mine], vec![0; self.world.size as usize]));
        let (mine, all) = pending.buffers();
        let (mine, all) = (mine.as_ptr(), all.as_mut_ptr());
        let request = &raw mut pending.request;
        // SAFETY: one byte is sent and one for each rank received; `PendingCall` keeps both buffers until the call is
        // complete.
        check(self.mpi, unsafe { (self.mpi.gather)(mine, all, self.raw, request) }, "MPI_Iallgather")?;
        Ok(pending.begun())
    }

    /// Starts to send a signal (an empty message) to `peer`.
    pub(super) fn signal(&self, peer: Rank) -> Result<PendingCall<()>> {
        let (to, mut pending) = (int(peer.index())?, PendingCall::new(self.mpi, ()));
        let request = &raw mut pending.request;
        // SAFETY: no bytes are read; the request is written.
        check(self.mpi, unsafe { (self.mpi.signal)(to, SIGNAL, self.raw, request) }, "MPI_Isend")?;
        Ok(pending.begun())
    }

    /// Starts to receive the signal of `peer`.
    pub(super) fn take_signal(&self, peer: Rank) -> Result<PendingCall<()>> {
        let (from, mut pending) = (int(peer.index())?, PendingCall::new(self.mpi, ()));
        let request = &raw mut pending.request;
        // SAFETY: no bytes are written; the request is.
        check(self.mpi, unsafe { (self.mpi.take_signal)(from, SIGNAL, self.raw, request) }, "MPI_Irecv")?;
        Ok(pending.begun())
    }

    /// Whether a signal has arrived; it is not received.
    pub(super) fn is_signalled(&self) -> Result<bool> {
        probe(self.mpi, self.raw, self.mpi.any_source, SIGNAL)
    }

    /// The ranks that MPI says share memory with this one, including itself, in order. Blocks until all ranks have
    /// called it.
    pub(super) fn shared_memory_ranks(&self) -> Result<Vec<Rank>> {
        let (mpi, mut node) = (self.mpi, self.mpi.null);
        let key = int(self.world.rank.index())?;
        // SAFETY: ours and live; writes one handle.
        let status = unsafe { (mpi.split_by_memory)(self.raw, key, &raw mut node) };
        check(mpi, status, "MPI_Comm_split_type")?;
        let ranks = translate(mpi, node, self.raw);
        // SAFETY: made above, with nothing pending on it.
        check(mpi, unsafe { (mpi.free)(&raw mut node) }, "MPI_Comm_free")?;
        let ranks: Option<Vec<u32>> = ranks?.into_iter().collect();
        let ranks = ranks.ok_or_else(|| Error::internal("MPI_Comm_split_type yields ranks that it was not given"))?;
        Ok(ranks.into_iter().map(Rank::new).collect())
    }
}

/// Lets MPI progress: probes for a message that is never sent. MPI progresses nothing if the probe finds a message, and
/// MPICH progresses nothing for `MPI_COMM_SELF`.
pub(crate) fn poke(mpi: Mpi) -> Result<()> {
    let me = int(world_of(mpi, mpi.world)?.rank.index())?;
    probe(mpi, mpi.world, me, QUIET).map(|_found| ())
}

/// A call that MPI has started, with the buffers that it reads and writes. If it is dropped before its completion, the
/// buffers are leaked, because MPI may still write to them.
#[derive(Debug)]
pub(super) struct PendingCall<B> {
    mpi: Mpi,
    request: Handle,
    buffers: Option<B>,
    /// Whether MPI uses the buffers now.
    lent: bool,
}

impl<B> PendingCall<B> {
    fn new(mpi: Mpi, buffers: B) -> PendingCall<B> {
        PendingCall { mpi, request: Handle(0), buffers: Some(buffers), lent: false }
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
        // SAFETY: the request is one that MPI has begun and not completed; the buffers that it speaks of live, see
        // `Drop`.
        check(self.mpi, unsafe { (self.mpi.test)(&raw mut self.request, &raw mut done) }, "MPI_Test")?;
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

fn probe(mpi: Mpi, comm: Handle, source: i32, tag: i32) -> Result<bool> {
    let mut found = 0;
    // SAFETY: the handle is a live communicator's; writes one int, which `found` is.
    check(mpi, unsafe { (mpi.probe)(source, tag, comm, &raw mut found) }, "MPI_Iprobe")?;
    Ok(found != 0)
}

fn world_of(mpi: Mpi, comm: Handle) -> Result<World> {
    let (mut rank, mut size) = (0, 0);
    // SAFETY: the handle is a live communicator's; writes one int.
    check(mpi, unsafe { (mpi.rank)(comm, &raw mut rank) }, "MPI_Comm_rank")?;
    // SAFETY: as above.
    check(mpi, unsafe { (mpi.size)(comm, &raw mut size) }, "MPI_Comm_size")?;
    match (u32::try_from(rank), u32::try_from(size)) {
        (Ok(rank), Ok(size)) if rank < size => Ok(World { rank: Rank::new(rank), size }),
        _ => Err(Error::internal(format!("MPI reports rank {rank} of {size}"))),
    }
}

/// For each rank of `from`, in order, its rank in `to`; `None` if it has none.
fn translate(mpi: Mpi, from: Handle, to: Handle) -> Result<Vec<Option<u32>>> {
    let size = world_of(mpi, from)?.size;
    let ranks: Vec<i32> = (0..size).map(|rank| int(rank as usize)).collect::<Result<_>>()?;
    let mut found = vec![0; ranks.len()];
    let (mut mine, mut theirs) = (group_of(mpi, from)?, group_of(mpi, to)?);
    let (count, asked, told) = (int(ranks.len())?, ranks.as_ptr(), found.as_mut_ptr());
    // SAFETY: both groups were just made; `asked` and `told` hold `count` ints.
    let status = unsafe { (mpi.translate)(mine, count, asked, theirs, told) };
    for group in [&mut mine, &mut theirs] {
        // SAFETY: made above; used no more.
        check(mpi, unsafe { (mpi.free_group)(group) }, "MPI_Group_free")?;
    }
    check(mpi, status, "MPI_Group_translate_ranks")?;
    // A rank that is not there is MPI_UNDEFINED, a negative number.
    Ok(found.into_iter().map(|rank| u32::try_from(rank).ok()).collect())
}

fn group_of(mpi: Mpi, comm: Handle) -> Result<Handle> {
    let mut group = Handle(0);
    // SAFETY: the handle is a live communicator's; writes one handle.
    check(mpi, unsafe { (mpi.group)(comm, &raw mut group) }, "MPI_Comm_group")?;
    Ok(group)
}

fn int(count: usize) -> Result<i32> {
    i32::try_from(count).map_err(|_| Error::invalid_argument(format!("MPI cannot count to {count}")))
}

/// The error of a failed call, with MPI's text.
#[cold]
fn failed(mpi: Mpi, code: i32, call: &str) -> Error {
    let mut text = [0u8; MAX_ERROR_BYTES];
    let room = i32::try_from(MAX_ERROR_BYTES).unwrap_or(0);
    // SAFETY: the buffer has that much room.
    let length = unsafe { (mpi.error_string)(code, text.as_mut_ptr(), room) };
    let length = usize::try_from(length).unwrap_or(0).min(MAX_ERROR_BYTES);
    let words = String::from_utf8_lossy(&text[..length]).replace('\n', " ");
    Error::new(Kind::System, format!("{call} failed with code {code}: {}", words.trim_end_matches('\0')))
}

fn check(mpi: Mpi, code: i32, call: &str) -> Result<()> {
    if code == SUCCESS { Ok(()) } else { Err(failed(mpi, code, call)) }
}

/// `MPI_SUCCESS`, which is 0 by the standard.
const SUCCESS: i32 = 0;
/// The tag of signals; only rsccl sends on a private duplicate.
const SIGNAL: i32 = 0;
/// The highest tag that every MPI must support: a program is unlikely to send itself a message with it.
const QUIET: i32 = 32767;
/// At least `MPI_MAX_ERROR_STRING` of every MPI; the table's function cuts longer texts off.
const MAX_ERROR_BYTES: usize = 2048;
