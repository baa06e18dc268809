//! The mapped memory of all ranks of a host, as executors use it.

use std::ops::Range;
use std::ptr::NonNull;

use crate::device::{Generation, HostRegion};
use crate::error::Result;
use crate::sync::primitive::{Arc, AtomicUsize, Ordering, Weak};
use crate::sys::alive::Process;
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
    pub registered: Vec<Option<Registered>>,
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
pub struct Registered {
    /// Each rank's memory, mapped here.
    pub memory: Vec<HostRegion>,
    /// What of my own memory the others have mapped.
    pub generation: Generation,
    /// As long as my own buffer: gone where I have let go of the registration.
    pub life: Weak<()>,
}

/// A buffer, for communicators that know it longer than it lives.
#[derive(Debug, Clone)]
pub struct KnownBuffer {
    /// The memory, to hand it to peers.
    pub memory: HostRegion,
    /// Of the buffer.
    pub life: Weak<()>,
}

/// A place in a registered buffer, as it is announced: which registration, and how far in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserRange {
    /// The registration's number.
    pub window: u16,
    /// Bytes from its start.
    pub offset: u64,
}

/// A part of a registered buffer of mine that peers may work in while an operation lasts.
#[derive(Debug)]
pub struct Loan<'a> {
    memory: &'a HostRegion,
    generation: Generation,
    range: UserRange,
}

impl Loan<'_> {
    /// Where it is, for the peers.
    pub fn range(&self) -> UserRange {
        self.range
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
        let Loan { memory, generation, .. } = *std::mem::ManuallyDrop::new(self);
        memory.keep().take_back(generation)
    }
}

impl Drop for Loan<'_> {
    fn drop(&mut self) {
        // The operation has failed, so nobody asks what is missing.
        self.memory.keep().take_back(self.generation);
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
    pub fn lend(&self, range: Range<*const u8>) -> Option<Loan<'_>> {
        let (start, end) = (range.start.addr(), range.end.addr());
        self.registered.iter().enumerate().find_map(|(window, registered)| {
            let registered = registered.as_ref().filter(|registered| registered.life.strong_count() > 0)?;
            let memory = &registered.memory[self.me];
            let base = memory.base().as_ptr().addr();
            if start < base || end > base + memory.bytes() {
                return None;
            }
            let offset = u64::try_from(start - base).expect("addresses are at most 64 bits");
            let range = UserRange { window: u16::try_from(window).ok()?, offset };
            let generation = registered.generation;
            memory.keep().lend(generation).then_some(Loan { memory, generation, range })
        })
    }

    /// What a peer announced as a pointer into my mapping of its buffer, if `bytes` there lie inside it.
    pub fn resolve(&self, place: usize, announced: UserRange, bytes: usize) -> Option<NonNull<u8>> {
        let memory = self.registered.get(usize::from(announced.window))?.as_ref()?.memory.get(place)?;
        let offset = usize::try_from(announced.offset).ok()?;
        let end = offset.checked_add(bytes)?;
        (end <= memory.bytes()).then(|| memory.at(offset, bytes))
    }
}
