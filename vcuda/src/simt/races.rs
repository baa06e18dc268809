//! Races in shared memory: two threads of a block touch a byte, one of them stores, and no barrier lies between.
//!
//! Each warp has a clock, and knows how far each other warp was when they last met at a barrier. A byte remembers its last
//! store and its last load. Strong accesses (volatile, relaxed, atomic) are how threads signal and are no races; whoever
//! makes one is taken to know all that others did before their last fence or strong access.

use super::FaultKind;
use super::translate::{Checked, Trouble};

/// Who touched a byte, and when on the clock of its warp; time 0 is never.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    time: u32,
    warp: u8,
    lane: u8,
}

#[derive(Debug, Clone, Copy, Default)]
struct Byte {
    stored: Mark,
    loaded: Mark,
}

/// The clocks of a block's warps, and what its shared memory remembers.
#[derive(Debug)]
pub(super) struct Races {
    bytes: Vec<Byte>,
    /// For each warp, how far it knows each warp; its own entry is its clock.
    known: Vec<Vec<u32>>,
    come: Vec<u32>,
}

impl Races {
    pub(super) fn new(shared_bytes: usize, warps: usize) -> Self {
        let mut known = vec![vec![0; warps]; warps];
        known.iter_mut().enumerate().for_each(|(warp, known)| known[warp] = 1);
        Self { bytes: vec![Byte::default(); shared_bytes], known, come: vec![0; 16] }
    }

    /// A warp has come to a barrier.
    pub(super) fn reach(&mut self, warp: u32, barrier: usize) {
        self.come[barrier] |= 1 << warp;
    }

    /// A barrier has opened: whoever came knows what all who came knew.
    pub(super) fn open(&mut self, barrier: usize) {
        let members = std::mem::take(&mut self.come[barrier]);
        let warps = self.known.len();
        let mut joined = vec![0; warps];
        for known in (0..warps).filter(|warp| members >> warp & 1 == 1).map(|warp| &self.known[warp]) {
            joined.iter_mut().zip(known).for_each(|(joined, known)| *joined = (*joined).max(*known));
        }
        for warp in (0..warps).filter(|warp| members >> warp & 1 == 1) {
            self.known[warp].clone_from(&joined);
            self.known[warp][warp] += 1;
        }
    }

    /// The lanes of a warp have met, or one of them has published what it did.
    pub(super) fn advance(&mut self, warp: u32) {
        self.known[warp as usize][warp as usize] += 1;
    }

    /// A strong access: it may have shown its thread what others published.
    pub(super) fn learn(&mut self, warp: u32) {
        let warp = warp as usize;
        for other in (0..self.known.len()).filter(|other| *other != warp) {
            let published = self.known[other][other] - 1;
            self.known[warp][other] = self.known[warp][other].max(published);
        }
        self.advance(u32::try_from(warp).unwrap_or(0));
    }

    fn is_ordered(&self, mark: Mark, warp: u32, lane: u32) -> bool {
        if u32::from(mark.warp) == warp {
            return u32::from(mark.lane) == lane || mark.time < self.known[warp as usize][warp as usize];
        }
        mark.time <= self.known[warp as usize][usize::from(mark.warp)]
    }

    fn mark(&self, warp: u32, lane: u32) -> Mark {
        let time = self.known[warp as usize][warp as usize];
        Mark { time, warp: u8::try_from(warp).unwrap_or(0), lane: u8::try_from(lane).unwrap_or(0) }
    }

    /// A weak load of these bytes.
    pub(super) fn load(&mut self, at: usize, bytes: usize, warp: u32, lane: u32) -> Checked<()> {
        let mark = self.mark(warp, lane);
        for offset in at..at + bytes {
            let stored = self.bytes[offset].stored;
            if stored.time > 0 && !self.is_ordered(stored, warp, lane) {
                return Err(race(offset, "loads", "store", stored));
            }
            self.bytes[offset].loaded = mark;
        }
        Ok(())
    }

    /// A weak store; `same` tells whether it leaves the bytes as they are, which is how threads agree on one value.
    pub(super) fn store(&mut self, at: usize, bytes: usize, (warp, lane): (u32, u32), same: bool) -> Checked<()> {
        let mark = self.mark(warp, lane);
        for offset in at..at + bytes {
            let Byte { stored, loaded } = self.bytes[offset];
            if !same && stored.time > 0 && !self.is_ordered(stored, warp, lane) {
                return Err(race(offset, "stores", "store", stored));
            }
            if !same && loaded.time > 0 && !self.is_ordered(loaded, warp, lane) {
                return Err(race(offset, "stores", "load", loaded));
            }
            self.bytes[offset].stored = mark;
        }
        Ok(())
    }
}

fn race(offset: usize, does: &str, other: &str, mark: Mark) -> Box<Trouble> {
    let thread = u32::from(mark.warp) * 32 + u32::from(mark.lane);
    let what = format!(
        "a race in shared memory: the thread {does} byte {offset:#x}, and no barrier lies after the {other} of it by thread number {thread}"
    );
    Trouble::new(FaultKind::LaunchFailed, Some(offset as u64), what)
}
