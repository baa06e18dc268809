//! Lends memory that peers have mapped to them, and takes it back: a generation and a count of operations.

use crate::sync::primitive::{AtomicU64, Ordering};

/// Which memory is behind an address: changes when it goes out of the peers' reach, and when it is shared anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generation(u64);

/// The generation in the upper half, operations that have lent the memory in the lower. Even generations are shared.
#[derive(Debug)]
pub struct Lending(AtomicU64);

impl Lending {
    /// Memory that is shared as it was made.
    pub fn new() -> Lending {
        Lending(AtomicU64::new(0))
    }

    /// An operation lets peers work in the memory, of which they have mapped `generation`. False where another
    /// generation is behind it by now: they must not.
    pub fn lend(&self, generation: Generation) -> bool {
        let lent = |state| (state >> COUNT_BITS == generation.0).then(|| state + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, lent).is_ok()
    }

    /// The operation is over. False where the memory went out of the peers' reach meanwhile: what they wrote may be
    /// missing.
    pub fn take_back(&self, generation: Generation) -> bool {
        // One order with the change in `part`: where this comes first, `part` acquires what peers have written until
        // now.
        self.0.fetch_sub(1, Ordering::AcqRel) >> COUNT_BITS == generation.0
    }

    /// The memory goes out of the peers' reach. A second call does nothing.
    pub fn part(&self) {
        if !self.is_parted() {
            self.0.fetch_add(ONE_GENERATION, Ordering::AcqRel);
        }
    }

    /// The memory is shared anew, if it had gone out of the peers' reach.
    pub fn renew(&self) {
        if self.is_parted() {
            self.0.fetch_add(ONE_GENERATION, Ordering::AcqRel);
        }
    }

    /// Whether the memory is out of the peers' reach.
    pub fn is_parted(&self) -> bool {
        self.0.load(Ordering::Acquire) & ONE_GENERATION != 0
    }

    /// What peers can map of the memory; `None` where it is out of their reach.
    pub fn shared(&self) -> Option<Generation> {
        let generation = self.generation();
        generation.0.is_multiple_of(2).then_some(generation)
    }

    /// What is behind the memory now.
    pub fn generation(&self) -> Generation {
        Generation(self.0.load(Ordering::Acquire) >> COUNT_BITS)
    }
}

/// Room for the count of operations beside the generation.
const COUNT_BITS: u32 = 32;
const ONE_GENERATION: u64 = 1 << COUNT_BITS;
