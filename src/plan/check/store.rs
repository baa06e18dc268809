//! The memory of one rank in the proof: its user's buffers and its scratch.

use super::ask;
use super::memory::{Memory, Stamp};
use super::value::Value;
use crate::plan::{RankBuffer, Spec};
use crate::types::Rank;

/// The memory of a rank.
pub(super) struct Store {
    /// Input and output; in place, the one buffer that is both.
    pub(super) users: [Memory; 2],
    scratch: Memory,
    /// Which of `users` the input lies in, and its first element there.
    input: (usize, u64),
    pub(super) output: (usize, u64),
    sizes: (u64, u64),
}

impl Store {
    /// The memory as the thread `caller` hands it over: inputs are written, outputs and scratch are not.
    pub(super) fn new(spec: &Spec, rank: Rank, caller: usize) -> Store {
        let by = Stamp { thread: caller, time: 1 };
        let mut scratch = Memory::default();
        scratch.append(spec.limits.scratch.0, None, by);
        Store::handed_over(spec, rank, (by, scratch))
    }

    /// The caller hands over its buffers for another run.
    pub(super) fn refill(&mut self, spec: &Spec, rank: Rank, now: Stamp) {
        let scratch = std::mem::take(&mut self.scratch);
        *self = Store::handed_over(spec, rank, (now, scratch));
    }

    fn handed_over(spec: &Spec, rank: Rank, (by, scratch): (Stamp, Memory)) -> Store {
        let sizes = ask::sizes(spec, rank, ask::total(spec));
        let mut users = [Memory::default(), Memory::default()];
        let input = || Some(Value::input(rank.get(), 0));
        let (input, output) = match ask::overlap(spec, rank) {
            None => {
                users[0].append(sizes.0, input(), by);
                users[1].append(sizes.1, None, by);
                ((0, 0), (1, 0))
            }
            Some((inside, start)) => {
                users[0].append(inside, None, by);
                users[0].append(sizes.0, input(), by);
                let end = users[0].length();
                users[0].append((start + sizes.1).saturating_sub(end), None, by);
                ((0, inside), (0, start))
            }
        };
        Store { users, scratch, input, output, sizes }
    }

    /// How many elements a buffer has.
    pub(super) fn size(&self, buffer: RankBuffer) -> u64 {
        match buffer {
            RankBuffer::Input => self.sizes.0,
            RankBuffer::Output => self.sizes.1,
            RankBuffer::Scratch => self.scratch.length(),
        }
    }

    /// Where elements of a buffer lie that begin at `first`: the area, and the first element there.
    pub(super) fn place(&self, buffer: RankBuffer, first: u64) -> (usize, u64) {
        match buffer {
            RankBuffer::Input => (self.input.0, self.input.1 + first),
            RankBuffer::Output => (self.output.0, self.output.1 + first),
            RankBuffer::Scratch => (self.users.len(), first),
        }
    }

    /// An area by its index.
    pub(super) fn area(&mut self, index: usize) -> &mut Memory {
        self.users.get_mut(index).unwrap_or(&mut self.scratch)
    }
}
