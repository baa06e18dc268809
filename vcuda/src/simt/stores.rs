//! Stores on their way to memory.
//!
//! Each block has a queue, and each GPU of a process a second one for stores whose memory lies elsewhere (a peer's, the
//! host's). A store leaves a queue at random, by seed, as soon as nothing that it must follow is left in it:
//!
//! - older stores of the block to the same granule, so that one address has one order for all;
//! - what happened before a release of its thread, or an acquire-release fence: the thread's own older stores, its warp's
//!   up to the last `bar.warp.sync`, and the block's up to the last `bar.sync` or acquire. A fence is a mark on the stores
//!   that follow it and waits for nothing itself; only `fence.sc` empties queues.
//!
//! A release of GPU scope orders the block's queue, one of system scope the GPU's too. One of block scope orders nothing
//! here, because the block's own loads look into its queue.

use super::memory::{Extent, GlobalMemory, Home};
use super::random::Random;
use super::shadow::{GRANULE, LINE, Line, Shadow, Writer};
use super::translate::{Cell, Checked, Translation};

/// A store that has not arrived; at most 8 bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Counts the block's stores.
    pub(super) number: u64,
    pub(super) warp: u32,
    pub(super) lane: u32,
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) value: u64,
    /// A bit for each byte that is defined.
    pub(super) defined: u8,
    pub(super) after: After,
    /// Stores of one 128-byte line that arrive as one have the same number here; 0 for all others.
    pub(super) line: u64,
    /// The block that stored.
    pub(super) block: u32,
}

/// What a store must follow: stores with numbers below these.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct After {
    pub(super) own: u64,
    pub(super) warp: u64,
    pub(super) block: u64,
    /// Whether it must also follow the GPU's stores to other places.
    pub(super) system: bool,
}

impl Entry {
    pub(super) fn granule(&self) -> u64 {
        self.address / GRANULE
    }

    /// Whether this entry has to wait for `older`, which stands before it in a block's queue.
    fn follows(&self, older: &Self) -> bool {
        let after = &self.after;
        if self.block != older.block {
            return false;
        }
        older.granule() == self.granule()
            || older.number < after.block
            || (older.warp == self.warp && older.number < after.warp)
            || (older.warp == self.warp && older.lane == self.lane && older.number < after.own)
    }
}

/// A queue of a block or a GPU.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// In a GPU's queue, what a release of system scope precedes follows everything before it.
    is_gpu: bool,
    /// On purpose, for tests: stores to one address may cross.
    crosses: bool,
    pub(super) entries: Vec<Entry>,
    /// The entries' granules, in the same order: side by side, they are searched fast.
    granules: Vec<u64>,
    /// How many entries there are by the low bits of their granule: most loads need not look further.
    counts: Box<Counts>,
}

#[derive(Debug)]
struct Counts([u16; 256]);

impl Default for Counts {
    fn default() -> Self {
        Self([0; 256])
    }
}

fn slot(granule: u64) -> usize {
    usize::try_from(granule % 256).expect("below 256")
}

impl Queue {
    /// A block's queue.
    pub(super) fn of_block(crosses: bool) -> Self {
        Self { crosses, ..Self::default() }
    }

    /// A GPU's queue.
    pub(super) fn of_gpu() -> Self {
        Self { is_gpu: true, ..Self::default() }
    }

    pub(super) fn push(&mut self, entry: Entry) {
        self.counts.0[slot(entry.granule())] += 1;
        self.granules.push(entry.granule());
        self.entries.push(entry);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn may_hold(&self, granule: u64) -> bool {
        self.counts.0[slot(granule)] > 0
    }

    /// The bytes at `address` where stores on their way replace those of `value`, and their definedness.
    pub(super) fn overlay(&self, address: u64, bytes: u32, value: &mut u64, defined: &mut u8) {
        let granule = address / GRANULE;
        if !self.may_hold(granule) {
            return;
        }
        let end = address + u64::from(bytes);
        // Accesses are aligned and at most 8 bytes: none goes over a granule's end.
        for (entry, _) in self.entries.iter().zip(&self.granules).filter(|(_, other)| **other == granule) {
            let (first, last) = (entry.address.max(address), (entry.address + u64::from(entry.bytes)).min(end));
            for at in first..last {
                let (from, to) = (8 * (at - entry.address), 8 * (at - address));
                *value = (*value & !(0xff << to)) | ((entry.value >> from & 0xff) << to);
                let set = entry.defined >> (at - entry.address) & 1;
                *defined = (*defined & !(1 << (at - address))) | set << (at - address);
            }
        }
    }

    /// The last entry of a granule.
    pub(super) fn last_of(&self, granule: u64) -> Option<usize> {
        if !self.may_hold(granule) {
            return None;
        }
        self.granules.iter().rposition(|other| *other == granule)
    }

    /// The entries (one, or those of a line) that may leave so that `wanted` can leave after them.
    fn first_needed(&self, wanted: usize) -> Vec<usize> {
        let mut chosen = wanted;
        loop {
            let group = self.group(chosen);
            match group.iter().find_map(|member| self.blocker(*member, &group)) {
                Some(older) => chosen = older,
                None => return group,
            }
        }
    }

    /// An older entry outside its own group that an entry must follow.
    fn blocker(&self, index: usize, group: &[usize]) -> Option<usize> {
        let entry = &self.entries[index];
        let ordered = if self.is_gpu {
            entry.after.system
        } else {
            // A block's entries stand in the order of their numbers.
            entry.after.own.max(entry.after.warp).max(entry.after.block) > self.entries[0].number
        };
        let outside = |older: &usize| !group.contains(older);
        if ordered || self.crosses {
            return (0..index).filter(outside).find(|older| self.must_follow(entry, &self.entries[*older]));
        }
        // Most entries follow none but those of their own granule.
        let granule = self.granules[index];
        if self.counts.0[slot(granule)] == 1 {
            return None;
        }
        let older = &self.granules[..index];
        let first = older.iter().position(|other| *other == granule)?;
        (first..index).filter(outside).find(|place| older[*place] == granule)
    }

    fn must_follow(&self, entry: &Entry, older: &Entry) -> bool {
        if self.crosses && entry.granule() == older.granule() {
            return false;
        }
        if self.is_gpu { entry.granule() == older.granule() || entry.after.system } else { entry.follows(older) }
    }

    fn group(&self, index: usize) -> Vec<usize> {
        let Entry { line, block, .. } = self.entries[index];
        if line == 0 {
            return vec![index];
        }
        let same = |other: &usize| self.entries[*other].line == line && self.entries[*other].block == block;
        (0..self.entries.len()).filter(same).collect()
    }

    /// The first entry that a thread's release covers.
    pub(super) fn first_before(&self, after: After, warp: u32, lane: u32) -> Option<usize> {
        let covered = |entry: &Entry| {
            entry.number < after.block
                || (entry.warp == warp && entry.number < after.warp)
                || (entry.warp == warp && entry.lane == lane && entry.number < after.own)
        };
        self.entries.iter().position(covered)
    }

    /// Takes the entries that have to leave first so that `wanted` can; whether `wanted` is among them.
    pub(super) fn take(&mut self, wanted: usize) -> (Vec<Entry>, bool) {
        debug_assert_eq!(self.entries.len(), self.granules.len(), "both grow and shrink together");
        let mut indices = self.first_needed(wanted);
        let is_last = indices.contains(&wanted);
        indices.sort_unstable();
        let mut taken = Vec::with_capacity(indices.len());
        for index in indices.iter().rev() {
            let entry = self.entries.remove(*index);
            self.granules.remove(*index);
            self.counts.0[slot(entry.granule())] -= 1;
            taken.push(entry);
        }
        taken.reverse();
        (taken, is_last)
    }

    /// Takes some entry that may leave.
    pub(super) fn take_any(&mut self, random: &mut Random) -> Vec<Entry> {
        let wanted = random.below(self.entries.len());
        self.take(wanted).0
    }
}

/// Where stores arrive.
pub(super) struct Arrival<'a> {
    pub(super) memory: &'a dyn GlobalMemory,
    pub(super) translation: &'a mut Translation,
    pub(super) gpu: u32,
    pub(super) actor: u32,
}

impl Arrival<'_> {
    /// Where an entry's memory lies.
    pub(super) fn home(&mut self, entry: &Entry) -> Checked<Home> {
        let extent = self.translation.find(self.memory, self.gpu, entry.address, u64::from(entry.bytes), true)?;
        Ok(extent.home)
    }

    /// Puts entries in memory, those of one line under one lock.
    pub(super) fn put(&mut self, entries: &[Entry]) -> Checked<()> {
        let time = self.memory.bump();
        let mut locked: Option<(u64, Option<Line>)> = None;
        for entry in entries {
            let extent = *self.translation.find(self.memory, self.gpu, entry.address, u64::from(entry.bytes), true)?;
            let line = entry.address / LINE;
            if locked.as_ref().is_none_or(|(held, _)| *held != line) {
                // One lock at a time: the old one goes before the new one is taken.
                drop(locked.take());
                locked = Some((line, Line::lock(&extent, entry.address)));
            }
            let writer = Writer { actor: self.actor, block: entry.block };
            overwrite(&extent, entry, time, writer);
        }
        drop(locked);
        // The first count is the stores' time, taken before any of them can be seen. Somebody who polls may have looked
        // between that count and the store, and sleeps until the count changes: it changes once more.
        self.memory.bump();
        Ok(())
    }
}

/// Stores an entry, its line being locked.
fn overwrite(extent: &Extent, entry: &Entry, time: u64, writer: Writer) {
    if let Some(shadow) = Shadow::of(extent, entry.address) {
        shadow.note(time, writer, present(extent, entry.address));
    }
    Cell::new(extent, entry.address, entry.bytes).store(entry.value);
    super::definedness::set(extent, entry.address, entry.bytes, entry.defined);
}

/// The two halves of a granule as they are.
pub(super) fn present(extent: &Extent, address: u64) -> [u64; 2] {
    let first = address & !(GRANULE - 1);
    [first, first + 8].map(|at| {
        // The memory behind an allocation's last byte, up to the granule's end, is mapped: blocks are whole granules.
        Cell::new(extent, at, 8).load()
    })
}
