//! Calls of processes that share a GPU. Processes take turns there, so none of their kernels may wait for another's:
//! one process, the leader, launches the work of a call for the ranks of all: folds where all ranks of the communicator
//! are on this GPU, else the kernel that runs their programs beside those of other GPUs (`polling`).
//!
//! A member copies its input to its stage, memory of its own that the leader has mapped, and its output back from
//! there. The order between the streams of processes is kept by words in pages of host memory that all of them map
//! (`device::status`):
//!
//! | stream of | does |
//! |---|---|
//! | a member | copies (`bring`, kernels/meet.cu); writes its label and `arrived`, waits for `done`, makes it 0 again, all by memory operations; copies |
//! | the leader | waits for `arrived` of each member, makes it 0 again; compares the labels (`meet`); works; writes `done` |
//!
//! All values are the same in each call, and all words come back to 0, so that a captured call replays with no host in
//! between. A wait for a process that has died is let go on by the host ([`StatusPage`]), which has said so on the
//! leader's page before: the programs behind the meeting ask for that, because ranks of other GPUs would take what they
//! make of a stage that nobody has filled. Folds ask for nothing: what they make stays on this GPU, in calls that fail.
//! A member that was told to stop may have further calls in its stream, which goes on: so it brings nothing more to its
//! stage, on which the leader may still work, and the leader stops where it finds the fault on the member's page.

use std::ffi::c_void;

use cudarc::driver::sys::CUfunction;

use super::arguments::GridShape;
use super::kernels::Meets;
use super::levels::LevelLaunch;
use super::polling::{self, Seats, differ};
use crate::device::cuda::active::Active;
use crate::device::cuda::driver::raw::MemoryOperation;
use crate::device::cuda::driver::result::call;
use crate::device::cuda::driver::stream::StreamHandle;
use crate::device::records::{Across, LaunchPart, StageCopy};
use crate::device::{DeviceRanks, HostRegion, LaunchFault, Region, StatusPage};
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::sync::ring::Label;

/// What a rank has in a communicator in which several processes share a GPU, be it this one or another.
#[derive(Debug)]
pub(in crate::device::cuda) struct Membership {
    /// Where the page of the leader lies, as the GPU addresses it; those of the others follow it.
    pages: u64,
    ranks: DeviceRanks,
    /// `None` where all ranks of this GPU are of one process, which has nobody to wait for.
    meets: Option<Arc<Meets>>,
}

/// What a process puts into its stream between the copies from and to users' buffers.
enum Work {
    /// A member waits for the leader.
    Waits,
    /// The leader does the work of all ranks of the communicator.
    Folds(Arc<[LevelLaunch]>),
    /// The leader runs the programs of the ranks on this GPU.
    Programs,
}

/// `MOST_RANKS` of meet.cu.
const MOST_RANKS: usize = 64;

/// `MeetArguments`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct MeetArguments {
    pages: u64,
    label: Label,
    ranks: u32,
    reserved: u32,
    rank: [u32; MOST_RANKS],
    first: [u32; MOST_RANKS],
}

const _: () = assert!(size_of::<MeetArguments>() == 40 + 8 * MOST_RANKS && DeviceRanks::LEADER == 0);

/// `BringArguments`
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct BringArguments {
    page: u64,
    copy: StageCopy,
}

const _: () = assert!(size_of::<BringArguments>() == 32);

/// The status page of a rank, one of `pages`. For set-up: it loads kernels.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] where streams cannot wait for words of memory, or there are too many ranks.
pub(in crate::device::cuda) fn page(
    active: &Arc<Active>,
    (pages, reached): (&HostRegion, &Region),
    ranks: &DeviceRanks,
) -> Result<StatusPage> {
    if ranks.ranks.len() > MOST_RANKS {
        return Err(Error::invalid_usage(format!(
            "{} ranks of several processes on one GPU: at most {MOST_RANKS} are possible",
            ranks.ranks.len()
        )));
    }
    let page_of = |place: usize| pages.part(place * StatusPage::BYTES, StatusPage::BYTES);
    let first = ranks.first[ranks.me];
    let base = reached.base().addr().get() as u64;
    let meets = if ranks.members().next().is_none() {
        None
    } else {
        try_words(active, word(base, ranks.me, StatusPage::ARRIVED))?;
        Some(active.meets()?)
    };
    let mut seats = active.polling()?.take_seats(active, word(base, ranks.me, 0), ranks.launched_by_me())?;
    seats.across = Some(Membership { pages: base, ranks: ranks.clone(), meets });
    let status = StatusPage::on(page_of(ranks.me), Box::new(seats));
    if first != ranks.me {
        // The lowest rank of the process looks after the process's streams.
        return Ok(status);
    }
    let awaited = if first == DeviceRanks::LEADER {
        ranks.members().map(|other| (page_of(other), StatusPage::ARRIVED)).collect()
    } else {
        vec![(page_of(first), StatusPage::DONE)]
    };
    let fellows = ranks.first.iter().enumerate().filter(|(place, other)| **other == first && *place != ranks.me);
    Ok(status.with_awaited(awaited, fellows.map(|(place, _)| page_of(place)).collect()))
}

/// Where a word of the page at a place lies.
fn word(pages: u64, place: usize, offset: usize) -> u64 {
    pages + (place * StatusPage::BYTES + offset) as u64
}

/// Writes a word by a stream, waits for it and takes it back, to see whether the driver can do it.
fn try_words(active: &Active, address: u64) -> Result<()> {
    let _entered = active.primary().enter()?;
    let service = active.service();
    let words = [write(address, 1), wait(address), write(address, 0)];
    let tried = operate(active, service.handle(), &words).and_then(|()| service.drain());
    tried.map_err(|error| {
        Error::invalid_usage(format!(
            "streams of several processes cannot wait for each other on this GPU ({}): give each process a GPU of its \
             own, make its ranks threads of one process, or set RSCCL_COHORT=split for all ranks",
            error.message()
        ))
    })
}

/// Launches the parts of this process's ranks together with those of the other processes. The context must be current.
///
/// # Safety
/// As [`crate::device::Queue::launch`]; the buffers of absent parts are stages of other processes.
pub(in crate::device::cuda) unsafe fn launch(
    active: &Arc<Active>,
    stream: StreamHandle,
    mut parts: Vec<LaunchPart>,
) -> Result<()> {
    if differ(&parts) {
        return Ok(());
    }
    if parts.iter().any(|part| part.status.is_aborted()) {
        parts.iter().for_each(|part| part.status.report(LaunchFault::Aborted));
        return Ok(());
    }
    let acrosses: Vec<Across> = parts.iter_mut().filter_map(|part| part.across.take()).collect();
    let lowest = parts.first().ok_or_else(|| Error::internal("a launch without parts"))?;
    let (status, label) = (Arc::clone(&lowest.status), lowest.labels[0]);
    let members = status.place::<Seats>().and_then(|seats| seats.across.as_ref());
    let members = members.ok_or_else(|| Error::internal("a rank that shares no GPU with other processes"))?;
    let me = members.ranks.me;
    let work = if me != DeviceRanks::LEADER {
        Work::Waits
    } else {
        // Absent ranks' programs use the leader's status page, because the leader's host is sure to tell it when they
        // must end; a member's host may have died. A mismatch that they find is on that page, and `leave` copies it to
        // the members' pages.
        parts.extend(acrosses.iter().flat_map(|across| across.absent.iter().cloned()));
        // Each rank has mapped the memory of other processes for itself. One address for each byte, because the order
        // of the folds follows from addresses.
        let peers = Arc::clone(&parts[0].peers);
        parts.iter_mut().for_each(|part| part.peers = Arc::clone(&peers));
        if members.ranks.waits {
            Work::Programs
        } else {
            let Some(launches) = active.walks().launches(&parts)? else { return Ok(()) };
            Work::Folds(launches)
        }
    };
    let _nothing_is_freed = active.primary().gate().launch();
    let mut before = acrosses.iter().flat_map(|across| &across.before);
    // SAFETY: the caller's contract, for these copies too.
    before.try_for_each(|copy| unsafe { members.bring(active, stream, copy) })?;
    members.arrive(active, stream, label)?;
    match work {
        Work::Waits => {}
        Work::Folds(launches) => {
            for level in &*launches {
                let tables = (&level.steps[..], &level.operands[..]);
                // SAFETY: the caller's contract.
                unsafe { active.launch(stream, level.entry, tables, level.bytes) }?;
            }
        }
        // SAFETY: the caller's contract.
        Work::Programs => drop(unsafe { polling::launch(active, stream, &parts) }?),
    }
    members.leave(active, stream, label)?;
    // SAFETY: as above.
    acrosses.iter().flat_map(|across| &across.after).try_for_each(|copy| unsafe { put(active, stream, copy) })
}

impl Membership {
    /// Whether a collective begins with a meeting of processes.
    pub(super) fn meets_others(&self) -> bool {
        self.meets.is_some()
    }

    /// Copies to a stage; a member that was told to stop does not.
    ///
    /// # Safety
    /// Until it is done, both places are good for its bytes.
    unsafe fn bring(&self, active: &Arc<Active>, stream: StreamHandle, copy: &StageCopy) -> Result<()> {
        let me = self.ranks.me;
        let Some(meets) = self.meets.as_ref().filter(|_| me != DeviceRanks::LEADER) else {
            // Its stage is worked on in this stream alone.
            // SAFETY: the caller's contract.
            return unsafe { put(active, stream, copy) };
        };
        let mut arguments = BringArguments { page: word(self.pages, me, 0), copy: *copy };
        let mut parameters: [*mut c_void; 1] = [(&raw mut arguments).cast()];
        let GridShape { blocks, threads } = active.shape(meets.bring, copy.bytes);
        let (primary, function, none) = (active.primary(), meets.bring.handle, std::ptr::null_mut());
        let parameters = parameters.as_mut_ptr();
        // SAFETY: the function is loaded, and takes `BringArguments`, which the call copies; the page stays while a
        // part of the launch keeps it, and the caller vouches for the places.
        let launched = unsafe {
            call!(primary, cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream.0, parameters, none))
        };
        launched.map_err(|failure| primary.error(failure))
    }

    /// The leader waits for the members and compares the calls; a member says that it has come, and waits for the
    /// leader.
    fn arrive(&self, active: &Active, stream: StreamHandle, label: Label) -> Result<()> {
        let Some(meets) = &self.meets else { return Ok(()) };
        if self.ranks.me != DeviceRanks::LEADER {
            return operate(active, stream, &self.as_member(label));
        }
        operate(active, stream, &self.as_leader())?;
        self.run(active, stream, meets.meet, label)
    }

    /// The leader lets the members go on.
    fn leave(&self, active: &Active, stream: StreamHandle, label: Label) -> Result<()> {
        let Some(meets) = self.meets.as_ref().filter(|_| self.ranks.me == DeviceRanks::LEADER) else { return Ok(()) };
        self.run(active, stream, meets.leave, label)
    }

    fn as_member(&self, label: Label) -> Vec<MemoryOperation> {
        let words = label.iter().flat_map(|word| [word & u64::from(u32::MAX), word >> 32]);
        let own = |offset: usize| word(self.pages, self.ranks.me, offset);
        let at = |index: usize| own(StatusPage::LABEL + index * size_of::<u32>());
        let mut batch: Vec<MemoryOperation> = words.enumerate().map(|(index, word)| write(at(index), word)).collect();
        let [arrived, done] = [StatusPage::ARRIVED, StatusPage::DONE].map(own);
        batch.extend([write(arrived, 1), wait(done), write(done, 0)]);
        batch
    }

    fn as_leader(&self) -> Vec<MemoryOperation> {
        let arrived = self.ranks.members().map(|member| word(self.pages, member, StatusPage::ARRIVED));
        arrived.flat_map(|word| [wait(word), write(word, 0)]).collect()
    }

    /// Launches one of the kernels of meet.cu.
    fn run(&self, active: &Active, stream: StreamHandle, function: CUfunction, label: Label) -> Result<()> {
        let count = self.ranks.ranks.len();
        let ranks = u32::try_from(count).unwrap_or(0);
        let (mut rank, mut first) = ([0; MOST_RANKS], [0; MOST_RANKS]);
        rank[..count].copy_from_slice(&self.ranks.ranks);
        for (into, place) in first.iter_mut().zip(&self.ranks.first) {
            *into = u32::try_from(*place).unwrap_or(0);
        }
        let mut arguments = MeetArguments { pages: self.pages, label, ranks, reserved: 0, rank, first };
        let mut parameters: [*mut c_void; 1] = [(&raw mut arguments).cast()];
        let (primary, none) = (active.primary(), std::ptr::null_mut());
        // SAFETY: the function is loaded, and takes `MeetArguments`, which the call copies; the pages stay while a part
        // of the launch keeps its status page.
        let launched = unsafe {
            call!(primary, cuLaunchKernel(function, 1, 1, 1, WARP, 1, 1, 0, stream.0, parameters.as_mut_ptr(), none))
        };
        launched.map_err(|failure| primary.error(failure))
    }
}

/// Threads of a block, of which one works.
const WARP: u32 = 32;

/// Puts a copy into the stream.
///
/// # Safety
/// Until it is done, both places are good for its bytes.
unsafe fn put(active: &Active, stream: StreamHandle, copy: &StageCopy) -> Result<()> {
    let (primary, bytes) = (active.primary(), usize::try_from(copy.bytes).unwrap_or(usize::MAX));
    // SAFETY: the caller's contract.
    let put = unsafe { call!(primary, cuMemcpyAsync(copy.to, copy.from, bytes, stream.0)) };
    put.map_err(|failure| primary.error(failure))
}

/// Puts memory operations into the stream, one after the other.
fn operate(active: &Active, stream: StreamHandle, batch: &[MemoryOperation]) -> Result<()> {
    let (primary, count) = (active.primary(), u32::try_from(batch.len()).unwrap_or(u32::MAX));
    // SAFETY: the entries are ours, as many as are told, and the call copies them; they name words of pages that stay
    // while a part of the launch keeps its status page.
    let put = unsafe { call!(primary, cuStreamBatchMemOp(stream.0, count, batch.as_ptr(), 0)) };
    put.map_err(|failure| primary.error(failure))
}

/// A store, behind all that the stream did before.
fn write(address: u64, value: u64) -> MemoryOperation {
    MemoryOperation { operation: WRITE_32, padding: 0, address, value, flags: 0, reserved: 0, rest: [0; 2] }
}

/// A wait until the word is not 0.
fn wait(address: u64) -> MemoryOperation {
    let value = u64::from(u32::MAX);
    MemoryOperation { operation: WAIT_32, padding: 0, address, value, flags: ANY_BIT, reserved: 0, rest: [0; 2] }
}

/// `CU_STREAM_MEM_OP_WAIT_VALUE_32`, `CU_STREAM_MEM_OP_WRITE_VALUE_32`
const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
/// `CU_STREAM_WAIT_VALUE_AND`
const ANY_BIT: u32 = 2;
/// The driver takes fewer than 256 operations at once.
const _: () = assert!(2 * MOST_RANKS < 256);

#[cfg(test)]
#[test]
fn kernels_have_the_same_constants() {
    use crate::device::headers::constant;
    assert_eq!([MOST_RANKS as u64, DeviceRanks::LEADER as u64], ["MOST_RANKS", "LEADER"].map(constant));
}
