//! A resident block: its warps take turns.

use super::access::Core;
use super::execute::Turn;
use super::grid::Grid;
use super::translate::Trouble;
use super::warp::{LANES, State, Warp};
use super::{FaultKind, KernelFault, Step};
use std::sync::Arc;

/// A block of a grid while it is resident.
#[derive(Debug)]
pub struct Block {
    pub(super) core: Core,
    pub(super) warps: Vec<Warp>,
    pub(super) barriers: Vec<Barrier>,
    next: usize,
    /// Whether it slept at the end of the last step.
    sleeps: bool,
    /// See [`Self::only_looks`].
    only_looks: bool,
    ended: bool,
}

/// One of a block's 16 named barriers.
#[derive(Debug, Clone, Default)]
pub(super) struct Barrier {
    /// Threads that have come; a warp that came whole counts as 32.
    pub(super) come: u32,
    /// Threads for which it waits, where the instruction says so.
    pub(super) wanted: Option<u32>,
    /// Threads that have come with a predicate, and of these those for which it held.
    pub(super) asked: u32,
    pub(super) held: u32,
    /// With checks: whether a predicate was undefined, and whether one of the others held or did not.
    pub(super) unknown: bool,
    pub(super) surely: [bool; 2],
}

/// Instructions that a warp runs before the next one has its turn, at most.
const QUANTUM: usize = 64;

impl Block {
    pub(super) fn new(grid: Arc<Grid>, index: [u32; 3], sm: u32, number: u32) -> Self {
        let program = &grid.function.program;
        let threads = grid.config.block.iter().product::<u32>();
        let count = threads.div_ceil(32);
        let mut warps = Vec::new();
        for warp in 0..count {
            let lanes = (threads - warp * 32).min(32);
            let mut warp =
                Warp::new(warp, lanes, program.rows as usize, program.predicates as usize, grid.config.checks);
            for (row, value) in &grid.constants {
                warp.rows[*row as usize] = [*value; LANES];
            }
            if grid.config.checks {
                warp.flags_defined[0] = u32::MAX;
                for (row, _) in &grid.constants {
                    warp.defined[*row as usize] = [u8::MAX; LANES];
                }
            }
            warps.push(warp);
        }
        let core = Core::new(grid, index, sm, number, threads);
        Self {
            core,
            warps,
            barriers: vec![Barrier::default(); 16],
            next: 0,
            sleeps: false,
            only_looks: false,
            ended: false,
        }
    }

    /// Runs at most `budget` warp instructions; it never blocks the calling thread.
    pub fn step(&mut self, budget: u32) -> Step {
        if self.ended {
            return Step::Done;
        }
        let since_change = self.core.begin();
        let has_news = self.wake();
        if has_news {
            self.only_looks = false;
        } else if self.sleeps {
            self.only_looks = true;
            // Called again though nothing has changed: all look, since there may be a loop that counts.
            self.warps.iter_mut().for_each(Warp::wake_anyhow);
        }
        self.sleeps = false;
        let step = self.turns(budget, since_change);
        self.ended = matches!(step, Step::Done | Step::Fault(_));
        self.core.finish();
        step
    }

    /// Warp instructions so far.
    #[must_use]
    pub fn instructions(&self) -> u32 {
        u32::try_from(self.core.clock).unwrap_or(u32::MAX)
    }

    /// Whether all it has done since it slept is to look again at words that had not changed.
    #[must_use]
    pub fn only_looks(&self) -> bool {
        self.only_looks
    }

    /// Whether a block that sleeps polls a word that has changed, as far as can be told without running it.
    #[must_use]
    pub fn has_news(&self) -> bool {
        !self.core.knows_memory() || self.warps.iter().any(|warp| warp.has_news(&self.core))
    }

    /// Wakes those who poll a word that has changed; whether there were any.
    fn wake(&mut self) -> bool {
        let core = &self.core;
        // All of them, not the first alone.
        self.warps.iter_mut().map(|warp| warp.wake(core)).fold(false, std::ops::BitOr::bitor)
    }

    fn turns(&mut self, budget: u32, since_change: u64) -> Step {
        let mut left = budget;
        while left > 0 {
            let Some(index) = self.choose() else {
                return self.nobody_ready(since_change);
            };
            let quantum = if self.core.is_weak() { 1 + self.core.random.below(QUANTUM) } else { QUANTUM };
            let quantum = u32::try_from(quantum).unwrap_or(1).min(left);
            let (used, turn) = self.warps[index].run(&mut self.core, quantum);
            left -= used.min(left);
            if self.core.take_stored() {
                self.only_looks = false;
                self.wake();
            }
            self.only_looks &= matches!(turn, Turn::Over);
            let result = match turn {
                Turn::Over => Ok(()),
                Turn::Barrier => self.barrier(index),
                Turn::Ended => self.thread_ended(index),
                Turn::Trouble(trouble) => Err(trouble),
            };
            if let Err(trouble) = result {
                return Step::Fault(self.fault(index, &trouble));
            }
        }
        Step::Ran
    }

    /// No warp can go on: the block is over, sleeps, or is stuck.
    fn nobody_ready(&mut self, since_change: u64) -> Step {
        let polls = self.warps.iter().flat_map(|warp| &warp.groups).any(|group| group.state == State::Polling);
        let over = self.warps.iter().all(|warp| warp.live == 0);
        if !over && !polls {
            return Step::Fault(self.stuck());
        }
        // Stores that have not arrived must arrive before the block sleeps or ends.
        match self.core.settle() {
            Err(trouble) => Step::Fault(self.fault(0, &trouble)),
            Ok(false) => Step::Ran,
            Ok(true) if over => Step::Done,
            Ok(true) => {
                self.sleeps = true;
                self.sleeping(since_change)
            }
        }
    }

    /// The warp that goes next, None where none can.
    fn choose(&mut self) -> Option<usize> {
        let count = self.warps.len();
        let first = if self.core.is_weak() { self.core.random.below(count) } else { self.next };
        for ahead in 0..count {
            let index = (first + ahead) % count;
            if self.warps[index].pick() {
                self.next = (index + 1) % count;
                return Some(index);
            }
        }
        None
    }

    fn fault(&self, warp: usize, trouble: &Trouble) -> KernelFault {
        let warp = &self.warps[warp];
        let (position, mask) = self.core.at;
        let line = self.core.line_of(position);
        let lane = if mask == 0 { 0 } else { mask.trailing_zeros() };
        KernelFault {
            kind: trouble.kind,
            kernel: self.core.grid.function.name.clone(),
            line,
            block: self.core.index,
            thread: self.core.thread_index(warp.index * 32 + lane),
            address: trouble.address,
            what: trouble.what.clone(),
        }
    }

    /// Nobody can go on, and nobody polls: the threads wait for each other.
    fn stuck(&self) -> KernelFault {
        let mut waits = Vec::new();
        let mut first = None;
        for warp in &self.warps {
            for group in &warp.groups {
                let line = self.core.line_of(group.position);
                let thread = warp.index * 32 + group.mask.trailing_zeros();
                first.get_or_insert((line, thread));
                let at = match group.state {
                    State::AtBarrier(id) => format!("barrier {id}"),
                    State::AtWarpSync => "other lanes of its warp".to_owned(),
                    State::Ready | State::Polling => "nothing".to_owned(),
                };
                if waits.len() < 8 {
                    waits.push(format!(
                        "lanes {:#010x} of warp {} wait for {at} at line {line}",
                        group.mask, warp.index
                    ));
                }
            }
        }
        let (line, thread) = first.unwrap_or((0, 0));
        KernelFault {
            kind: FaultKind::LaunchFailed,
            kernel: self.core.grid.function.name.clone(),
            line,
            block: self.core.index,
            thread: self.core.thread_index(thread),
            address: None,
            what: format!("the block can never go on: {}", waits.join("; ")),
        }
    }

    fn sleeping(&self, since_change: u64) -> Step {
        let mut polled = Vec::new();
        let mut line = 0;
        for group in self.warps.iter().flat_map(|warp| &warp.groups).filter(|group| group.state == State::Polling) {
            let (words, at) = group.poll.polled();
            polled.extend(words);
            line = if line == 0 { at } else { line };
        }
        polled.sort_unstable();
        polled.dedup();
        let [x, y, z] = self.core.index;
        let words = polled.iter().take(4).map(|word| format!("{word:#x}")).collect::<Vec<_>>().join(", ");
        let name = &self.core.grid.function.name;
        let what = format!("block ({x}, {y}, {z}) of {name} polls {words} at PTX line {line}");
        Step::Sleeping { since_change, polled, what }
    }
}
