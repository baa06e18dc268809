//! Small collectives inside a host: one hop, no plan.
//!
//! Each rank writes its bytes with a label into its own flat slot; who needs them reads them there. Everyone reduces in rank order,
//! so that all ranks get the same bits. The slot's flag, the label and up to 24 bytes of data are one cache line.
//!
//! # When a slot may be used again
//! Slots go round; the writer of operation n needs everyone to have finished operation n - [`FLAT_SLOTS`]. In a symmetric operation
//! each rank waits for all others, so having finished it proves that all have finished the one before. Rooted operations
//! prove nothing, so each rank raises its `done` flag after them, and a writer looks at these flags when it runs out of slots.

use std::ptr::NonNull;

use crate::device::{Kernel, Pass, Store};
use crate::error::Result;
use crate::exec::{Idle, Operation};
use crate::sync::ring::Label;
use crate::transport::{FLAT_BYTES, FLAT_SLOTS, FlatSlot, HostWindows};

/// The state of one rank's flat operations.
#[derive(Debug, Default)]
pub struct Flat {
    /// The number of the next operation.
    next: u64,
    /// All ranks have finished the operations below this number.
    finished: u64,
}

/// One flat operation under way: announced, not yet finished.
#[derive(Debug)]
pub struct Exchange<'a> {
    windows: &'a HostWindows,
    operation: &'a Operation,
    label: Label,
    number: u64,
}

impl Flat {
    /// Announces `operation` in my slot, with `bytes` of data that `fill` writes.
    ///
    /// # Errors
    /// Of waiting for a slot.
    ///
    /// # Panics
    /// Where `bytes` is above [`FLAT_BYTES`]; callers choose another path then.
    #[inline]
    pub fn announce<'a>(
        &mut self,
        windows: &'a HostWindows,
        operation: &'a Operation,
        idle: &mut Idle<'_>,
        (bytes, fill): (usize, impl FnOnce(NonNull<u8>)),
    ) -> Result<Exchange<'a>> {
        assert!(bytes <= FLAT_BYTES, "flat operations fit their slot");
        let number = self.next;
        if number >= self.finished.saturating_add(FLAT_SLOTS) {
            self.make_room(windows, idle)?;
        }
        self.next += 1;
        let label = operation.label();
        let slot = windows.mine().flat(number);
        fill(slot.data(bytes));
        slot.write_label(label);
        slot.flag.raise(number + 1);
        Ok(Exchange { windows, operation, label, number })
    }

    /// Ends an operation in which I have waited for everyone.
    #[inline]
    pub fn finish_symmetric(&mut self, exchange: &Exchange<'_>) {
        self.finished = self.finished.max(exchange.number);
    }

    /// Ends an operation in which I have not.
    #[inline]
    pub fn finish_rooted(&mut self, exchange: &Exchange<'_>) {
        exchange.windows.mine().done().raise(exchange.number + 1);
    }

    #[cold]
    fn make_room(&mut self, windows: &HostWindows, idle: &mut Idle<'_>) -> Result<()> {
        // Half of the slots at once: a root whose readers share its processor gives it away once for so many operations.
        let needed = self.next - FLAT_SLOTS / 2;
        let mut least = u64::MAX;
        for (arena, rank) in windows.arenas.iter().zip(&windows.ranks) {
            if *rank == windows.ranks[windows.me] {
                continue;
            }
            let done = arena.done();
            idle.until(done, needed, &|| format!("rank {rank} (to finish an operation {} back)", FLAT_SLOTS / 2))?;
            least = least.min(done.value());
        }
        self.finished = self.finished.max(least);
        Ok(())
    }
}

impl<'a> Exchange<'a> {
    /// Waits for the slot of the host's rank at `place`, and sees that it runs the same operation.
    ///
    /// # Errors
    /// Of the wait; [`crate::error::Kind::Mismatch`] where the rank runs another operation.
    #[inline]
    pub fn read(&self, place: usize, idle: &mut Idle<'_>) -> Result<FlatSlot<'a>> {
        let slot = self.windows.arenas[place].flat(self.number);
        let rank = self.windows.ranks[place];
        idle.until(slot.flag, self.number + 1, &|| format!("rank {rank} (to call {})", self.operation))?;
        let theirs = slot.read_label();
        if theirs != self.label { Err(self.operation.mismatch(rank, theirs)) } else { Ok(slot) }
    }

    /// Waits for everyone.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    #[inline]
    pub fn read_all(&self, idle: &mut Idle<'_>) -> Result<()> {
        for place in 0..self.windows.ranks.len() {
            self.read(place, idle)?;
        }
        Ok(())
    }

    /// Waits for everyone, and reduces `count` elements that lie `offset` bytes into each slot's `bytes` into `target`.
    ///
    /// # Errors
    /// As [`Exchange::read`].
    ///
    /// # Safety
    /// `target` is good for writing `count` elements of the kernel's type, and `offset` plus their size is at most `bytes`.
    #[inline]
    pub unsafe fn reduce(
        &self,
        kernel: &Kernel,
        idle: &mut Idle<'_>,
        (bytes, offset): (usize, usize),
        (target, count): (*mut u8, usize),
    ) -> Result<()> {
        let ranks = self.windows.ranks.len();
        let mut few = [std::ptr::null::<u8>(); FEW_RANKS];
        let mut many = Vec::new();
        let sources = if ranks <= FEW_RANKS {
            &mut few[..ranks]
        } else {
            many.resize(ranks, std::ptr::null());
            &mut many[..]
        };
        for (place, source) in sources.iter_mut().enumerate() {
            let data = self.read(place, idle)?.data(bytes);
            *source = data.as_ptr().wrapping_add(offset);
        }
        let pass = Pass { sources, raw: 0, targets: &[target], count, finish: true, store: Store::Cached };
        // SAFETY: each source is a slot of at least `offset` + count elements that its owner does not touch before everyone is done;
        // the target is the caller's.
        unsafe { kernel.run(&pass) };
        Ok(())
    }
}

/// Ranks whose sources stand on the stack.
const FEW_RANKS: usize = 8;
