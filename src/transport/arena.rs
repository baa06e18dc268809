//! The memory that a rank shows to the other ranks of its host.
//!
//! ```text
//! offset            width      meaning
//! 0                 16         done: flat operations this rank has finished, raised after rooted ones
//! 16                8          witness: where the rank's process keeps its token (see `peer_reads`)
//! 64                64         lease: who may touch this rank's user buffers (see `lease`)
//! 128               32 × 64    flags of plans: 8 for each of 4 lanes
//! 2176              64 × 64    lines of flat slots: flag 16, label 24, up to 24 of data
//! 6272              2 × 64     arrivals: of the ranks of a team, and of teams
//! 6400              2 × 64     lines of two more slots: of a team's part of a reduction, and of its result
//! to the next page  66 × 1 K   data of flat slots and of these two, where it is more than fits a line
//! to the next page  66 × 16 K  the same, where it is more than 1 KiB
//! 1159168           scratch    scratch of plans
//! ```

use std::ptr::NonNull;

use crate::device::HostRegion;
#[cfg(test)]
use crate::device::{HostMemory, Sharing};
#[cfg(test)]
use crate::error::Result;
use crate::sync::primitive::{AtomicU64, Ordering};
use crate::sync::ring::Label;
use crate::sync::{Arrivals, Flag};
use crate::transport::lease::Lease;

/// One rank's arena, mapped. Clones share the mapping.
#[derive(Debug, Clone)]
pub struct Arena {
    memory: HostRegion,
}

/// One of a rank's slots for announcing an operation and, where they are few, its bytes.
#[derive(Debug, Clone, Copy)]
pub struct FlatSlot<'a> {
    /// Raised to the operation's number plus one.
    pub flag: &'a Flag,
    arena: &'a Arena,
    line: NonNull<u8>,
    slot: usize,
}

impl Arena {
    /// Bytes of an arena with `scratch` bytes of scratch.
    pub fn memory_bytes(scratch: usize) -> usize {
        SCRATCH_OFFSET + scratch
    }

    /// The arena in `memory`, which starts zeroed.
    ///
    /// # Panics
    /// Where the memory is smaller than the fixed part; arenas are made by [`Arena::memory_bytes`].
    pub fn new(memory: HostRegion) -> Arena {
        assert!(memory.bytes() >= SCRATCH_OFFSET, "an arena is made for its layout");
        Arena { memory }
    }

    /// A new arena of its own.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where there is no memory.
    #[cfg(test)]
    pub fn create(scratch: usize, sharing: Sharing) -> Result<Arena> {
        HostMemory.allocate_host(Arena::memory_bytes(scratch), sharing).map(Arena::new)
    }

    /// Flat operations that the rank has finished.
    pub fn done(&self) -> &Flag {
        self.flag_at(DONE_OFFSET)
    }

    /// The owner says where its process keeps its token, before it announces its first operation.
    pub fn show_witness(&self, address: u64) {
        // Relaxed: the flags of operations publish it.
        self.witness_word().store(address, Ordering::Relaxed);
    }

    /// Where the owner's process keeps its token, once the owner has announced an operation: a number, which only the
    /// kernel is given.
    pub fn witness(&self) -> u64 {
        self.witness_word().load(Ordering::Relaxed)
    }

    fn witness_word(&self) -> &AtomicU64 {
        // SAFETY: aligned to 8 in a page-aligned mapping that `self` keeps, touched here only.
        unsafe { self.memory.at(WITNESS_OFFSET, 8).cast::<AtomicU64>().as_ref() }
    }

    /// Flag `index` of lane `lane`.
    #[inline]
    pub fn flag(&self, lane: usize, index: u8) -> &Flag {
        assert!(lane < FLAG_LANES && usize::from(index) < LANE_FLAGS, "programs with windows keep to an arena's flags");
        self.flag_at(FLAGS_OFFSET + (lane * LANE_FLAGS + usize::from(index)) * Flag::LINE)
    }

    /// Who may touch the rank's user buffers.
    pub fn lease(&self) -> &Lease {
        // SAFETY: a 64-byte line of a page-aligned mapping that `self` keeps, zeroed at first and used through `Lease`
        // only.
        unsafe { Lease::at(self.memory.at(LEASE_OFFSET, Flag::LINE)) }
    }

    /// The slot of flat operation `number`.
    #[inline]
    pub fn flat(&self, number: u64) -> FlatSlot<'_> {
        let slot = usize::try_from(number % FLAT_SLOTS).expect("below FLAT_SLOTS");
        self.slot_at(LINES_OFFSET + slot * Flag::LINE, slot)
    }

    /// Counts the ranks of a team, of which the arena's owner is the first, that have announced an operation.
    #[inline]
    pub fn arrivals(&self) -> &Arrivals {
        self.arrivals_at(ARRIVALS_OFFSET)
    }

    /// Counts the teams whose ranks have all announced an operation.
    #[inline]
    pub fn team_arrivals(&self) -> &Arrivals {
        self.arrivals_at(ARRIVALS_OFFSET + Flag::LINE)
    }

    /// What a team's ranks have together.
    #[inline]
    pub fn partial(&self) -> FlatSlot<'_> {
        self.slot_at(PARTIAL_OFFSET, SLOTS)
    }

    /// What all ranks have together, for the ranks of a team.
    #[inline]
    pub fn result(&self) -> FlatSlot<'_> {
        self.slot_at(PARTIAL_OFFSET + Flag::LINE, SLOTS + 1)
    }

    #[inline]
    fn slot_at(&self, line: usize, slot: usize) -> FlatSlot<'_> {
        let line = self.memory.at(line, Flag::LINE);
        // SAFETY: as in `flag_at`; the flag is the first part of its line.
        let flag = unsafe { Flag::at(line) };
        FlatSlot { flag, arena: self, line, slot }
    }

    fn arrivals_at(&self, offset: usize) -> &Arrivals {
        // SAFETY: offsets are multiples of 64 in a page-aligned mapping that `self` keeps; the first 8 bytes there are
        // touched through `Arrivals` only.
        unsafe { Arrivals::at(self.memory.at(offset, 8)) }
    }

    /// Bytes of scratch.
    pub fn scratch_bytes(&self) -> usize {
        self.memory.bytes() - SCRATCH_OFFSET
    }

    /// The scratch.
    pub fn scratch(&self) -> NonNull<u8> {
        self.memory.at(SCRATCH_OFFSET, self.scratch_bytes())
    }

    fn flag_at(&self, offset: usize) -> &Flag {
        // SAFETY: offsets are multiples of 64 in a page-aligned mapping that `self` keeps; the first 16 bytes there are
        // touched through `Flag` only.
        unsafe { Flag::at(self.memory.at(offset, Flag::BYTES)) }
    }
}

impl FlatSlot<'_> {
    /// The address of the slot's line, for prefetches.
    #[inline]
    pub fn line(&self) -> *const u8 {
        self.line.as_ptr()
    }

    /// Where `bytes` of data lie: beside the label if they fit, so that flag, label and data are one cache line. Small
    /// data of all slots lie together: the first operations that go round the slots take a page fault for each page.
    #[inline]
    pub fn data(&self, bytes: usize) -> NonNull<u8> {
        let memory = &self.arena.memory;
        if bytes > SMALL_BYTES {
            return memory.at(BODIES_OFFSET + self.slot * FLAT_BYTES, FLAT_BYTES);
        }
        if bytes > INLINE_BYTES {
            return memory.at(SMALL_OFFSET + self.slot * SMALL_BYTES, SMALL_BYTES);
        }
        // SAFETY: inside the slot's line.
        unsafe { self.line.add(INLINE_OFFSET) }
    }

    /// Writes the label; the owner does, before it raises the flag. Word by word, since the words have just been
    /// computed: a copy of the array reads 16 bytes at once, and waits until they have left the store buffer.
    #[inline]
    pub fn write_label(&self, label: Label) {
        let place = self.label_place().cast::<u64>();
        for (at, word) in label.into_iter().enumerate() {
            // SAFETY: inside the line.
            let place = unsafe { place.add(at) };
            // SAFETY: aligned to 8; the slot is the owner's until the flag is raised.
            unsafe { place.write_volatile(word) };
        }
    }

    /// Reads the label, after the flag has been seen.
    #[inline]
    pub fn read_label(&self) -> Label {
        let place = self.label_place();
        // SAFETY: inside the line and aligned to 8; once, volatile, so that a later change by the peer changes nothing
        // here.
        unsafe { place.read_volatile() }
    }

    fn label_place(&self) -> NonNull<Label> {
        // SAFETY: offset 16 lies inside the slot's line.
        unsafe { self.line.add(Flag::BYTES) }.cast()
    }
}

/// Flat slots of an arena: how many operations a root may run ahead of its readers. Models go round fewer of them.
pub const FLAT_SLOTS: u64 = if cfg!(all(loom, test)) { 2 } else { 64 };
/// Bytes that a flat slot carries.
pub const FLAT_BYTES: usize = 16 << 10;
/// Lanes that have flags in an arena: programs whose ranks work in each other's memory have as many at most.
pub const FLAG_LANES: usize = 4;
/// Flags of such a lane.
pub const LANE_FLAGS: usize = 8;
/// Bytes that travel in the flag's own cache line.
pub const INLINE_BYTES: usize = Flag::LINE - INLINE_OFFSET;

const INLINE_OFFSET: usize = Flag::BYTES + size_of::<Label>();
const DONE_OFFSET: usize = 0;
const WITNESS_OFFSET: usize = Flag::BYTES;
const LEASE_OFFSET: usize = 64;
const FLAGS_OFFSET: usize = 128;
const LINES_OFFSET: usize = FLAGS_OFFSET + FLAG_LANES * LANE_FLAGS * Flag::LINE;
#[expect(clippy::cast_possible_truncation, reason = "a few slots")]
const SLOTS: usize = FLAT_SLOTS as usize;
const ARRIVALS_OFFSET: usize = LINES_OFFSET + SLOTS * Flag::LINE;
const PARTIAL_OFFSET: usize = ARRIVALS_OFFSET + 2 * Flag::LINE;
/// Bytes of a slot's place for small data.
const SMALL_BYTES: usize = 1 << 10;
const SMALL_OFFSET: usize = (PARTIAL_OFFSET + 2 * Flag::LINE).next_multiple_of(4096);
const BODIES_OFFSET: usize = (SMALL_OFFSET + (SLOTS + 2) * SMALL_BYTES).next_multiple_of(4096);
const SCRATCH_OFFSET: usize = BODIES_OFFSET + (SLOTS + 2) * FLAT_BYTES;

const _: () = assert!(LINES_OFFSET.is_multiple_of(64) && INLINE_BYTES == 24);
const _: () = assert!(SCRATCH_OFFSET == 1_159_168 || FLAT_SLOTS != 64, "as the table above says");

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Where the data of every slot lie, for messages of so many bytes.
    fn places(arena: &Arena, bytes: usize) -> Vec<usize> {
        let base = std::ptr::from_ref(arena.done()).addr();
        let slots = (0..FLAT_SLOTS).map(|number| arena.flat(number)).chain([arena.partial(), arena.result()]);
        slots.map(|slot| slot.data(bytes).addr().get() - base).collect()
    }

    #[test]
    fn data_of_slots_never_overlap() {
        let arena = Arena::create(4096, Sharing::Threads).unwrap();
        let of_class = |bytes| places(&arena, bytes).into_iter().map(move |start| (start, start + bytes));
        let mut ranges: Vec<_> = [INLINE_BYTES, SMALL_BYTES, FLAT_BYTES].into_iter().flat_map(of_class).collect();
        ranges.sort_unstable();
        assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
        assert!(ranges.iter().all(|(_, end)| *end <= SCRATCH_OFFSET));
        let sizes = [1, INLINE_BYTES, INLINE_BYTES + 1, SMALL_BYTES, SMALL_BYTES + 1, FLAT_BYTES];
        let classes: BTreeSet<_> = sizes.map(|bytes| places(&arena, bytes)).into_iter().collect();
        assert_eq!(classes.len(), 3, "two sizes in each class");
    }

    /// One slot for each of 64 operations of 1 KiB once lay in a page of its own.
    #[test]
    fn going_round_all_slots_with_small_data_touches_few_pages() {
        let arena = Arena::create(4096, Sharing::Threads).unwrap();
        let pages = |bytes| places(&arena, bytes).into_iter().map(|place| place / 4096).collect::<BTreeSet<_>>().len();
        let slots = usize::try_from(FLAT_SLOTS).unwrap() + 2;
        assert!(pages(INLINE_BYTES + 1) <= slots.div_ceil(4) + 1);
        assert!(pages(SMALL_BYTES) <= slots.div_ceil(4) + 1);
        assert_eq!(pages(SMALL_BYTES + 1), slots);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;

    impl Arena {
        /// An arena without scratch, whose flags of flat operations loom knows.
        pub(crate) fn laid() -> Result<Arena> {
            let arena = Arena::create(0, Sharing::Threads)?;
            let slots = (0..SLOTS).map(|slot| LINES_OFFSET + slot * Flag::LINE);
            for offset in slots.chain([DONE_OFFSET, PARTIAL_OFFSET, PARTIAL_OFFSET + Flag::LINE]) {
                // SAFETY: the layout's own offset, and nobody else has the arena yet.
                unsafe { Flag::lay(arena.memory.at(offset, Flag::BYTES)) };
            }
            for offset in [ARRIVALS_OFFSET, ARRIVALS_OFFSET + Flag::LINE] {
                // SAFETY: as above.
                unsafe { Arrivals::lay(arena.memory.at(offset, Flag::LINE)) };
            }
            Ok(arena)
        }
    }
}
