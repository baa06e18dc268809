//! Windows: memory of devices that all ranks of a communicator have registered alike, so that calls between devices and
//! between processes work in it in place.
//!
//! An address is valid in one process only, and a program's own memory of one device need not be reached from another.
//! When a window is registered, each rank maps the memory of all others. From then on a rank that is called with
//! buffers in windows knows where the others' buffers are: as far inside their memory as its own are in its own. It
//! asks nobody, so such calls can be captured. All ranks' memory has the same length, and a place is compared with it
//! here, so that a rank which breaks the promise reaches no other memory. It is found by the label, in which each rank
//! names the places ([`Placed::check_sum`]).
//!
//! Peers work in those buffers alone that every rank passes, all of one length: `plan`'s symmetric buffers, such as the
//! inputs of a reduce. The other buffer may lie anywhere, so that it does not matter what a rank passes which has none.

use crate::device::{self, Region};
use crate::error::{Error, Result};
use crate::exec::Call;
use crate::plan::{Pattern, RankBuffer};
use crate::sync::primitive::{Arc, Weak};
use crate::types::{Elements, Rank, ReduceOp, World};

/// A window, for whoever has registered it.
#[derive(Debug)]
pub struct RegisteredWindow {
    pub(super) open: Weak<OpenWindow>,
    pub(super) direct: bool,
}

impl RegisteredWindow {
    /// Whether ranks of other processes and devices work in it.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

/// The windows of a rank.
#[derive(Debug, Default)]
pub(super) struct DeviceWindows {
    pub(super) open: Vec<Arc<OpenWindow>>,
    /// How many were registered so far: the number of the next one.
    pub(super) registered: u32,
}

/// A window that is registered.
#[derive(Debug)]
pub(super) struct OpenWindow {
    pub(super) number: u32,
    pub(super) mine: Region,
    /// What other processes have imported, where they have it open only as long as it is kept: of several allocations
    /// each has what it needs.
    pub(super) offered: Vec<Region>,
    /// Where each rank's memory begins in this process, for this rank's device. Empty where calls go through scratch.
    pub(super) bases: Vec<u64>,
    /// Keeps the others' memory mapped.
    pub(super) others: Vec<Region>,
}

/// A place in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct InWindow {
    /// The window's place among the open ones.
    place: usize,
    number: u32,
    /// How far inside.
    offset: u64,
}

/// Where the buffers of a call in which peers work lie in windows: one of them at least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Placed {
    input: Option<InWindow>,
    output: Option<InWindow>,
}

impl Placed {
    /// What stands for these places in a call's label: never 0. Of calls that work in one buffer, two places in one
    /// window never have the same; of all others one pair in 2^64 has.
    pub(super) fn check_sum(&self) -> u64 {
        let words = self.places().flat_map(|place| [u64::from(place.number), place.offset]);
        let mixed = words.fold(1_u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(SPREAD));
        // The high bits of a product depend on all bits of the factors. A label shows the low ones.
        mixed.rotate_left(u16::BITS).max(1)
    }

    fn places(&self) -> impl Iterator<Item = InWindow> {
        [self.input, self.output].into_iter().flatten()
    }
}

impl DeviceWindows {
    /// Where the buffers of a call lie; `None` where it does not work in windows.
    pub(super) fn find(&self, call: &Call<'_>, world: World) -> Option<Placed> {
        // Where each rank scales its input by a number of its own, peers cannot read it as it is.
        if self.open.is_empty() || matches!(call.op, Some(ReduceOp::PreMulSum(_))) {
            return None;
        }
        let shared = Pattern::of(call.collective)?.symmetric_buffers();
        let (lengths, places) = (call.lengths(world).ok()?, call.buffers.places());
        let placed = |buffer: RankBuffer, start: *const u8, count: Elements| match shared.contains(&buffer) {
            true => self.place(start.addr() as u64, count.0.checked_mul(u64::from(call.data_type.size()))?).map(Some),
            false => Some(None),
        };
        let input = placed(RankBuffer::Input, places.0, lengths.0)?;
        let output = placed(RankBuffer::Output, places.1, lengths.1)?;
        (input.is_some() || output.is_some()).then_some(Placed { input, output })
    }

    /// The place of `bytes` from `start` on. Of several windows that hold it the first counts.
    fn place(&self, start: u64, bytes: u64) -> Option<InWindow> {
        if bytes == 0 {
            return None;
        }
        self.open.iter().enumerate().filter(|(_, window)| !window.bases.is_empty()).find_map(|(place, window)| {
            let offset = start.checked_sub(window.mine.base().addr().get() as u64)?;
            let end = offset.checked_add(bytes)?;
            (end <= window.mine.bytes() as u64).then_some(InWindow { place, number: window.number, offset })
        })
    }

    /// The input and the output of each rank, behind each other; 0 for a buffer in which peers do not work.
    pub(super) fn bases(&self, placed: &Placed, world: World) -> Vec<u64> {
        let of = |rank: Rank, place: Option<InWindow>| {
            place.map_or(0, |place| self.open[place.place].bases[rank.index()] + place.offset)
        };
        world.ranks().flat_map(|rank| [of(rank, placed.input), of(rank, placed.output)]).collect()
    }

    /// Refuses memory of the program that is no longer what was registered.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`]; where the device has failed.
    pub(super) fn check(&self, placed: &Placed) -> Result<()> {
        for InWindow { place, number, .. } in placed.places() {
            let memory = &self.open[place].mine;
            if !memory.keep().adopted().is_empty() && !device::programs_of(memory.home())?.is_still_there(memory)? {
                let text = format!("the memory of window {number} was freed: take the window back first");
                return Err(Error::invalid_usage(text));
            }
        }
        Ok(())
    }

    /// The number of a window; `None` where it is not one of these.
    pub(super) fn number(&self, window: &RegisteredWindow) -> Option<u32> {
        let open = window.open.upgrade()?;
        self.open.iter().any(|mine| Arc::ptr_eq(mine, &open)).then_some(open.number)
    }

    /// Takes a window back that no peer needs to hear of.
    pub(super) fn forget(&mut self, window: &RegisteredWindow) {
        if let Some(open) = window.open.upgrade() {
            self.open.retain(|other| !Arc::ptr_eq(other, &open));
        }
    }

    /// What a launch in these places has to keep.
    pub(super) fn kept(&self, placed: &Placed) -> impl Iterator<Item = Region> + '_ {
        let mut places: Vec<usize> = placed.places().map(|found| found.place).collect();
        places.dedup();
        places.into_iter().flat_map(|place| self.open[place].others.iter().chain([&self.open[place].mine])).cloned()
    }
}

/// An odd number whose bits have no pattern: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::exec;
    use crate::types::{Collective, DataType};

    /// The label of a call at this place.
    fn label_at(offset: u64, count: u64) -> crate::sync::ring::Label {
        let place = InWindow { place: 0, number: 3, offset };
        let operation = exec::Operation {
            collective: Collective::AllGather,
            data_type: DataType::F32,
            op: None,
            root: None,
            count,
            sequence: 7,
            past: 0,
            on_device: true,
            windows: Placed { input: None, output: Some(place) }.check_sum(),
        };
        operation.label()
    }

    /// Regression: one place in 65,535 had the check sum of the promised one, and ranks worked in each other's memory
    /// at different places.
    #[test]
    fn ranks_at_different_places_always_have_different_labels() {
        const PLACES: u64 = 400_000;
        let labels: HashSet<_> = (0..PLACES).map(|place| label_at(place * 16, 100)).collect();
        assert_eq!(labels.len() as u64, PLACES);
        // The short sums of so many places are not all different: the test would see labels that have no more.
        let short: HashSet<_> = labels.iter().map(|label| label[0]).collect();
        assert!(short.len() as u64 <= 1 << 16);
        // Nor does another count make up for another place.
        let others = (0..PLACES).filter(|place| labels.contains(&label_at(place * 16, 101))).count();
        assert_eq!(others, 0);
    }
}
