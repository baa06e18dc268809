//! The mapped memory of all ranks of a host, as executors use it.

use std::ops::Range;
use std::ptr::NonNull;

use crate::device::{Generation, HostRegion};
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, AtomicU64, AtomicUsize, Ordering, Weak};
use crate::sys::alive::Process;
use crate::sys::in_place::{PlacedMemory, PlacedRange};
use crate::transport::Arena;
use crate::transport::peer_reads::PeerReads;
use crate::types::Rank;

/// The arenas, and what else is mapped, of the ranks of my host.
#[derive(Debug)]
pub struct HostWindows {
    /// The host's ranks in order.
    pub ranks: Vec<Rank>,
    /// My place among them.
    pub me: usize,
    /// Their arenas, in the same order.
    pub arenas: Vec<Arena>,
    /// By what each of them reaches my memory, in the same order.
    pub neighbours: Vec<Neighbour>,
    /// Where threads of one process say where their user buffers are; present where all ranks of the host are one
    /// process.
    pub boards: Option<Vec<UserBoard>>,
    /// Registered buffers, by number: for each registration, every host rank's memory. `None`: one that was given back.
    pub registered: Vec<Option<Registration>>,
}

/// By what a rank of my host reaches memory that I have shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Neighbour {
    /// By my own mapping: a thread of this process, or I myself.
    Thread,
    /// By a mapping of its own, in a process that may be out of sight.
    Process(Option<Process>),
}

/// Where a thread's user buffers of the running operation are. Written by the owner before it opens its lease, read by
/// who entered.
#[derive(Debug, Default)]
pub struct UserPointers {
    input: AtomicUsize,
    output: AtomicUsize,
}

/// [`UserPointers`] of one rank among those of its neighbours.
#[derive(Debug, Clone)]
pub struct UserBoard {
    all: Arc<[UserPointers]>,
    place: usize,
}

/// One registration: the buffers of all ranks of the host.
#[derive(Debug, Clone)]
pub struct Registration {
    /// How many there have been before it: numbers are used again, this is not.
    pub serial: u32,
    /// Each rank's memory, mapped here.
    pub memory: Vec<HostRegion>,
    /// What of my own memory the others have mapped.
    pub generation: Generation,
    /// As long as my own buffer: gone where I have let go of the registration.
    pub life: Weak<()>,
    /// Of my own buffer.
    pub calls: PeerCalls,
    /// Where my own memory is, if the program has it at other addresses than `memory`.
    pub placed: Option<PlacedBuffer>,
}

/// A buffer, for communicators that know it longer than it lives.
#[derive(Debug, Clone)]
pub struct KnownBuffer {
    /// The memory, to hand it to peers.
    pub memory: HostRegion,
    /// Which pages of it, where it must not be shared anew: somebody may be writing it.
    pub generation: Option<Generation>,
    /// Of the buffer.
    pub life: Weak<()>,
    /// Those in it, on all communicators.
    pub calls: PeerCalls,
    /// Where the program has it, if `memory` is a second mapping.
    pub placed: Option<PlacedBuffer>,
}

/// Memory of the program that is registered where it lies.
#[derive(Debug, Clone)]
pub struct PlacedBuffer {
    range: PlacedRange,
    /// Of memory that only a promise of the program keeps where it is.
    promised: Weak<PlacedMemory>,
}

impl PlacedBuffer {
    /// Memory at these addresses.
    pub fn new(range: PlacedRange) -> PlacedBuffer {
        PlacedBuffer { range, promised: Weak::new() }
    }

    /// The same of memory that its owner has promised neither to free nor to resize: each loan looks in a debug build.
    #[must_use]
    pub fn promised(self, memory: &Arc<PlacedMemory>) -> PlacedBuffer {
        PlacedBuffer { promised: Arc::downgrade(memory), ..self }
    }

    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] where other memory is there by now, as far as a debug build looks.
    fn check_promise(&self) -> Result<()> {
        let memory = if cfg!(debug_assertions) { self.promised.upgrade() } else { None };
        if memory.is_none_or(|memory| memory.is_there()) { Ok(()) } else { Err(promise_broken()) }
    }
}

/// In how many calls peers worked in memory that was registered. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct PeerCalls(Arc<AtomicU64>);

impl PeerCalls {
    /// A call has ended in which peers worked there.
    pub fn note(&self) {
        // Relaxed: a figure for the log, of calls that have ended.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How many have.
    pub fn count(&self) -> u64 {
        // Relaxed: as above.
        self.0.load(Ordering::Relaxed)
    }
}

/// A place in a registered buffer, as it is announced: which registration, and how far in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRange {
    /// The registration's number.
    pub window: u16,
    /// Bytes from its start.
    pub offset: u64,
}

/// A place in a registered buffer that holds a message. The ranks may register and deregister before the receiver looks
/// there: the serial number says whether the registration is still the one that the sender meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfferedRange {
    /// The place.
    pub range: UserRange,
    /// The registration's [serial number](Registration::serial).
    pub serial: u32,
}

impl OfferedRange {
    /// As the whereabouts of a message: the first word is no address.
    pub fn words(self) -> [u64; 2] {
        [IN_WINDOW | u64::from(self.serial) << u16::BITS | u64::from(self.range.window), self.range.offset]
    }

    /// What [`OfferedRange::words`] has said; `None` where they are an address.
    pub fn of_words([first, offset]: [u64; 2]) -> Option<OfferedRange> {
        let first = first ^ IN_WINDOW;
        let serial = u32::try_from(first >> u16::BITS).ok()?;
        let window = u16::try_from(first & u64::from(u16::MAX)).ok()?;
        Some(OfferedRange { range: UserRange { window, offset }, serial })
    }
}

/// No user address has this bit.
const IN_WINDOW: u64 = 1 << 63;

/// A part of a registered buffer of mine that peers may work in while an operation lasts.
#[derive(Debug)]
pub struct Loan<'a> {
    memory: &'a HostRegion,
    generation: Generation,
    range: UserRange,
    serial: u32,
    calls: &'a PeerCalls,
    placed: Option<PlacedLoan<'a>>,
}

/// A part of memory that is registered where it lies, and its twin in the second mapping.
#[derive(Debug)]
struct PlacedLoan<'a> {
    buffer: &'a PlacedBuffer,
    user: *mut u8,
    bytes: usize,
    twin: NonNull<u8>,
}

impl Loan<'_> {
    /// Where it is, for the peers.
    pub fn range(&self) -> UserRange {
        self.range
    }

    /// The same for the receiver of a message.
    pub fn offered(&self) -> OfferedRange {
        OfferedRange { range: self.range, serial: self.serial }
    }

    /// Where the operation works instead of the place that its caller has named, if the memory is registered where it
    /// lies: what peers see is there as a whole.
    pub fn twin(&self) -> Option<NonNull<u8>> {
        self.placed.as_ref().map(|placed| placed.twin)
    }

    /// Whether what [`Loan::copy_in`] copies for `other` is among what it copies for this one. Two registrations may
    /// share a page at an edge, of which each has a copy of its own.
    pub fn covers(&self, other: &Loan<'_>) -> bool {
        if self.range.window != other.range.window {
            return false;
        }
        let (Some(mine), Some(theirs)) = (&self.placed, &other.placed) else { return false };
        let (mine, theirs) = (mine.addresses(), theirs.addresses());
        mine.start <= theirs.start && theirs.end <= mine.end
    }

    /// Copies what peers would not see otherwise into what they see: before they are told of the loan.
    ///
    /// # Safety
    /// What was lent is good for reading.
    pub unsafe fn copy_in(&self) {
        let Some(placed) = &self.placed else { return };
        for (user, twin, bytes) in placed.edges() {
            // SAFETY: the twin is inside the second mapping, and what was lent is good for reading. Another operation
            // may copy the same bytes there, if both only read them.
            unsafe { std::ptr::copy_nonoverlapping(user.cast_const(), twin, bytes) };
        }
    }

    /// Copies what peers have written for the caller and it would not see otherwise: after an operation that ended
    /// well, in what [`Loan::twin`] says.
    ///
    /// # Safety
    /// What was lent is good for writing, and nobody else touches it.
    pub unsafe fn copy_out(&self) {
        let Some(placed) = &self.placed else { return };
        for (user, twin, bytes) in placed.edges() {
            // SAFETY: as in `copy_in`, and by the caller's promise.
            unsafe { std::ptr::copy_nonoverlapping(twin.cast_const(), user, bytes) };
        }
    }

    /// Where to count the operation once it has ended, if peers worked in the memory.
    pub fn calls(&self) -> &PeerCalls {
        self.calls
    }

    /// [`crate::device::Keep::detach`] of the whole buffer: a peer that is still in it goes on in pages that are no
    /// longer this rank's.
    ///
    /// # Errors
    /// As [`crate::device::Keep::detach`].
    pub fn detach(&self) -> Result<()> {
        self.memory.keep().detach()
    }

    /// Ends the loan. False where the buffer was detached meanwhile, by another operation on it that failed: what peers
    /// wrote may be missing.
    pub fn end(self) -> bool {
        let this = std::mem::ManuallyDrop::new(self);
        let (memory, generation) = (this.memory, this.generation);
        memory.keep().take_back(generation)
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        // The operation has failed, so nobody asks what is missing.
        self.memory.keep().take_back(self.generation);
    }
}

impl PlacedLoan<'_> {
    fn addresses(&self) -> Range<usize> {
        self.user.addr()..self.user.addr() + self.bytes
    }

    /// What lies on pages that the program has for itself: where the program has it, where its twin is, how long it is.
    fn edges(&self) -> impl Iterator<Item = (*mut u8, *mut u8, usize)> {
        let start = self.user.addr();
        let edges = self.buffer.range.edges(&self.addresses());
        edges.into_iter().filter(|edge| !edge.is_empty()).map(move |edge| {
            let into = edge.start - start;
            (self.user.wrapping_add(into), self.twin.as_ptr().wrapping_add(into), edge.len())
        })
    }
}

impl UserBoard {
    /// Those of all ranks, in their order.
    pub(super) fn all(pointers: &Arc<[UserPointers]>) -> Vec<UserBoard> {
        (0..pointers.len()).map(|place| UserBoard { all: Arc::clone(pointers), place }).collect()
    }
}

impl std::ops::Deref for UserBoard {
    type Target = UserPointers;

    fn deref(&self) -> &UserPointers {
        &self.all[self.place]
    }
}

impl UserPointers {
    /// The owner writes its buffers' addresses; the lease's release publishes them.
    pub fn write(&self, input: *const u8, output: *mut u8) {
        self.input.store(input.expose_provenance(), Ordering::Relaxed);
        self.output.store(output.expose_provenance(), Ordering::Relaxed);
    }

    /// The addresses, for who has entered the lease. They come from a thread of this process, never from a message.
    pub fn read(&self) -> (*const u8, *mut u8) {
        let input = std::ptr::with_exposed_provenance(self.input.load(Ordering::Relaxed));
        let output = std::ptr::with_exposed_provenance_mut(self.output.load(Ordering::Relaxed));
        (input, output)
    }
}

impl HostWindows {
    /// The same without registered buffers.
    pub(super) fn alike(&self) -> HostWindows {
        HostWindows {
            ranks: self.ranks.clone(),
            me: self.me,
            arenas: self.arenas.clone(),
            neighbours: self.neighbours.clone(),
            boards: self.boards.clone(),
            registered: Vec::new(),
        }
    }

    /// The place of `rank` among the host's ranks.
    ///
    /// # Panics
    /// Where the rank is on another host; plans name windows of their own host only.
    #[inline]
    pub fn place(&self, rank: Rank) -> usize {
        self.ranks.binary_search(&rank).expect("plans name windows of their own host only")
    }

    /// My arena.
    #[inline]
    pub fn mine(&self) -> &Arena {
        &self.arenas[self.me]
    }

    /// Finds whether this rank can read the memory of all others, each of which has said how it is read.
    pub fn probe(&self, reads: &mut PeerReads) {
        let others = self.ranks.iter().zip(&self.arenas).enumerate().filter(|(place, _)| *place != self.me);
        reads.probe(others.map(|(_, (rank, arena))| (*rank, arena.witness())));
    }

    /// Lets peers work in `range`, where it lies in one of my registered buffers that they still reach.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] for registered memory that has been freed or resized, in a debug build.
    pub fn lend(&self, range: Range<*const u8>) -> Result<Option<Loan<'_>>> {
        let loan = self.loan(range);
        if let Some(PlacedLoan { buffer, .. }) = loan.as_ref().and_then(|loan| loan.placed.as_ref()) {
            buffer.check_promise()?;
        }
        Ok(loan)
    }

    fn loan(&self, range: Range<*const u8>) -> Option<Loan<'_>> {
        let (start, end) = (range.start.addr(), range.end.addr());
        self.registered.iter().enumerate().find_map(|(window, registered)| {
            let registered = registered.as_ref().filter(|registered| registered.life.strong_count() > 0)?;
            let memory = &registered.memory[self.me];
            let base = memory.base().as_ptr().addr();
            let inside = || (base <= start && end <= base + memory.bytes()).then(|| start - base);
            let placed = registered.placed.as_ref();
            let offset = placed.map_or_else(inside, |placed| placed.range.offset_of(&(start..end)))?;
            let placed = placed.map(|buffer| {
                let (user, bytes) = (range.start.cast_mut(), end - start);
                PlacedLoan { buffer, user, bytes, twin: memory.at(offset, bytes) }
            });
            let offset = u64::try_from(offset).expect("addresses are at most 64 bits");
            let range = UserRange { window: u16::try_from(window).ok()?, offset };
            let Registration { generation, serial, ref calls, .. } = *registered;
            memory.keep().lend(generation).then_some(Loan { memory, generation, range, serial, calls, placed })
        })
    }

    /// Where `bytes` begin that `peer` has lent for a message, if they lie in what it has registered, and that is not
    /// another registration by now.
    pub fn lent_by(
        &self,
        peer: Rank,
        OfferedRange { range, serial }: OfferedRange,
        bytes: usize,
    ) -> Option<NonNull<u8>> {
        let registered = self.registered.get(usize::from(range.window))?.as_ref();
        registered.filter(|registered| registered.serial == serial)?;
        self.resolve(self.ranks.binary_search(&peer).ok()?, range, bytes)
    }

    /// What a peer announced as a pointer into my mapping of its buffer, if `bytes` there lie inside it.
    pub fn resolve(&self, place: usize, announced: UserRange, bytes: usize) -> Option<NonNull<u8>> {
        let memory = self.registered.get(usize::from(announced.window))?.as_ref()?.memory.get(place)?;
        let offset = usize::try_from(announced.offset).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= memory.bytes()).then(|| memory.at(offset, bytes))
    }
}

#[cold]
fn promise_broken() -> Error {
    Error::invalid_usage(
        "memory that was registered where it lies is no longer there: it was freed or resized while it was registered \
         (a vector that grows moves); destroy the registration first",
    )
}
