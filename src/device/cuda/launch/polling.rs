//! Launches whose programs wait on the GPU: for ranks on other GPUs, or, with `RSCCL_COHORT=split`, for each other.
//!
//! One kernel (`kernels/program.cu`) interprets the programs of all ranks of a GPU. Its blocks wait for each other and
//! for blocks on other GPUs, so all of them must be resident at once, including those of other communicators: otherwise
//! a resident block may wait for one that never becomes resident. So each rank takes [`Seats`] when it first works on a
//! GPU, all seats together are at most as many blocks as the GPU holds, and the launch is cooperative: the driver
//! refuses a launch that does not fit.
//!
//! Once a rank has its seats, nothing here calls the driver to allocate, load or free: such calls wait for kernels, and
//! a kernel may wait for this thread's next launch.

mod arena;
mod image;

use std::ffi::c_void;

use super::arguments::{self, GridShape};
use super::kernels::{EntryPoint, INTERPRETERS, Interpreters};
use super::members::Membership;
use crate::device::cuda::active::{Active, Mark};
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::result::call;
use crate::device::cuda::driver::stream::StreamHandle;
use crate::device::records::LaunchPart;
use crate::device::{Kernel, LaunchFault, StatusPage};
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Mutex};
use crate::types::DataType;

use arena::ImageMemory;
use image::{Arithmetic, PartWords};

/// What such launches need on one GPU. It is made when the first rank needs it.
#[derive(Debug)]
pub(in crate::device::cuda) struct Polling {
    interpreters: Interpreters,
    arena: Arc<ImageMemory>,
    /// Blocks that the GPU holds at once.
    capacity: u32,
    /// How many of these blocks belong to ranks' seats.
    taken: Mutex<u32>,
}

/// The blocks that one rank of one communicator may have on a GPU at a time. Dropping it gives them back.
#[derive(Debug)]
pub(in crate::device::cuda) struct Seats {
    /// Blocks for a rank's part of a launch of a collective.
    collective: u32,
    /// How many such parts the rank brings: also those of ranks of other processes, where this one leads.
    parts: u32,
    /// Blocks for a launch of messages, which may run at the same time as one of a collective.
    messages: u32,
    /// The status page, as the GPU addresses it.
    page: u64,
    active: Arc<Active>,
    polling: Arc<Polling>,
    /// Where processes share the GPU, and one leads the collectives of all.
    pub(in crate::device::cuda) across: Option<Membership>,
}

/// The most blocks of a collective: more do not make four lanes faster.
const MOST_COLLECTIVE: u32 = 8;
/// The most blocks of messages.
const MOST_MESSAGES: u32 = 4;
/// One rank takes at most one part in this many of the free blocks for a collective, and half of that for messages.
const SHARE: u32 = 8;

impl Polling {
    /// Allocates memory and loads kernels, so it belongs in set-up.
    pub(in crate::device::cuda) fn new(
        primary: &Arc<Primary>,
        capability: (i32, i32),
        multiprocessors: u32,
    ) -> Result<Polling> {
        let interpreters = Interpreters::load(primary, capability)?;
        let capacity = interpreters.blocks().saturating_mul(multiprocessors);
        Ok(Polling { interpreters, arena: Arc::new(ImageMemory::new(primary)?), capacity, taken: Mutex::new(0) })
    }

    /// Takes the seats of one rank, and makes its status page, by which its launches and the host inform each other.
    pub(in crate::device::cuda) fn seat(self: &Arc<Polling>, active: &Arc<Active>) -> Result<StatusPage> {
        let (region, page) = self.arena.page(StatusPage::BYTES)?;
        Ok(StatusPage::on(region, Box::new(self.take_seats(active, page, 1)?)))
    }

    /// Takes the seats of one rank, whose status page has this address on the GPU, and which brings so many `parts` to
    /// a launch of a collective.
    pub(super) fn take_seats(self: &Arc<Polling>, active: &Arc<Active>, page: u64, parts: u32) -> Result<Seats> {
        // What the lock guards is a number.
        let mut taken = self.taken.lock();
        let free = self.capacity.saturating_sub(*taken);
        if free < parts.saturating_add(1) {
            return Err(Error::invalid_usage(format!(
                "GPU {} has no room for another communicator whose ranks wait on the GPU: it runs {} blocks at a \
                 time, and all such communicators together need more; drop communicators that are not used",
                active.primary().device(),
                self.capacity
            )));
        }
        let collective = (free / SHARE / parts).clamp(1, MOST_COLLECTIVE);
        let messages = (free / SHARE / 2).clamp(1, MOST_MESSAGES);
        let (active, polling) = (Arc::clone(active), Arc::clone(self));
        let seats = Seats { collective, parts, messages, page, active, polling, across: None };
        *taken += seats.blocks();
        Ok(seats)
    }
}

impl Seats {
    fn blocks(&self) -> u32 {
        self.collective * self.parts + self.messages
    }
}

impl Drop for Seats {
    fn drop(&mut self) {
        let blocks = self.blocks();
        let mut taken = self.polling.taken.lock();
        *taken -= blocks;
    }
}

/// Whether the parts belong to ranks that wait on the GPU. Either all ranks of a communicator do, or none.
pub(in crate::device::cuda) fn polls(parts: &[LaunchPart]) -> bool {
    parts.iter().any(|part| part.status.place::<Seats>().is_some())
}

/// Launches the programs of all parts, whose ranks have seats on this GPU. The context must be current. Returns the end
/// of the launch, unless nothing was launched or it is captured.
///
/// # Safety
/// As [`crate::device::Queue::launch`].
pub(in crate::device::cuda) unsafe fn launch(
    active: &Arc<Active>,
    stream: StreamHandle,
    parts: &[LaunchPart],
) -> Result<Option<Arc<Mark>>> {
    if differ(parts) {
        return Ok(None);
    }
    let mut polling = None;
    let mut words = Vec::with_capacity(parts.len());
    let mut entry = None;
    for part in parts {
        let seats = part.status.place::<Seats>().filter(|seats| Arc::ptr_eq(&seats.active, active));
        let seats = seats.ok_or_else(|| Error::internal("a rank has no seats on the GPU of its stream"))?;
        polling = Some(&seats.polling);
        let folding = part.folding;
        let kernel = match folding.op {
            Some(op) => Kernel::reduce(folding.data_type, op, folding.world)?,
            None => Kernel::copy(folding.data_type),
        };
        let arithmetic = Arithmetic::of(&kernel);
        entry = Some(arithmetic.interpreter);
        let blocks = if part.is_of_messages() { seats.messages } else { seats.collective };
        let asks = !part.is_of_messages() && seats.across.as_ref().is_some_and(Membership::meets_others);
        words.push(PartWords { part, arithmetic, page: seats.page, blocks, asks });
    }
    let (Some(polling), Some(entry)) = (polling, entry) else { return Ok(None) };
    let function = polling.interpreters.function(entry);
    let primary = active.primary();
    let _nothing_is_freed = primary.gate().launch();
    polling.arena.launch((active, stream), &words, |blocks, most_bytes| {
        // As many threads as the longest fold of a block has work for; of lines, a thread takes 8 bytes at a time.
        let has_lines = parts.iter().any(|part| part.records.have_lines());
        let GridShape { threads, .. } = GridShape::of(if has_lines { 2 * most_bytes } else { most_bytes }, 1);
        let mut argument: u64 = blocks.address;
        let mut parameters: [*mut c_void; 1] = [(&raw mut argument).cast()];
        // SAFETY: the function takes one address, that of the images, which stay until the launch is done; the caller
        // vouches for the memory that the programs name.
        let launched = unsafe {
            call!(
                primary,
                cuLaunchCooperativeKernel(
                    function.handle,
                    blocks.count,
                    1,
                    1,
                    threads,
                    1,
                    1,
                    0,
                    stream.0,
                    parameters.as_mut_ptr()
                )
            )
        };
        launched.map_err(|failure| primary.error(failure))
    })
}

/// Whether ranks of this GPU have called different collectives, which one launch cannot run. If so, tells all of them.
pub(super) fn differ(parts: &[LaunchPart]) -> bool {
    let label = |part: &LaunchPart| part.labels.first().copied().filter(|_| !part.is_of_messages());
    let Some((first, mine)) = parts.iter().find_map(|part| Some((part, label(part)?))) else { return false };
    let Some((other, theirs)) = parts.iter().find_map(|part| Some((part, label(part).filter(|label| *label != mine)?)))
    else {
        return false;
    };
    for part in parts {
        let fault = match label(part) {
            Some(own) if own != mine => LaunchFault::Mismatch { peer: first.rank, mine: own, theirs: mine },
            Some(own) => LaunchFault::Mismatch { peer: other.rank, mine: own, theirs },
            None => LaunchFault::Aborted,
        };
        part.status.report(fault);
    }
    true
}

/// The interpreter of a kernel, and which of its operators.
fn interpreter_of(kernel: &Kernel) -> (usize, u32) {
    const BITS: usize = INTERPRETERS - 1;
    match kernel.op().map(|op| arguments::entry_of(kernel.data_type(), op)) {
        None | Some(EntryPoint::Copy) => (BITS, 0),
        Some(EntryPoint::Bits(op)) => (BITS, op as u32),
        Some(EntryPoint::Fold(data_type, op)) => (usize::from(data_type.code()), op as u32),
    }
}

const _: () = assert!(INTERPRETERS == DataType::ALL.len() + 1);
