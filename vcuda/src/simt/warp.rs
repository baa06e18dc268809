//! A warp: 32 lanes with a register file, in groups of lanes that stand at the same instruction.
//!
//! Every lane has its own position. Lanes at the same position form a [`Group`], and one instruction runs for a whole
//! group. The group at the lowest position goes first, so lanes that parted in a branch meet again after it; a group that
//! jumps back often lets the others go, so that no lane starves another.

use super::access::Core;
use super::calls::Frame;
use super::poll::Poll;
use crate::alu::Row;
use crate::ptx::instruction::{Flag, RowIndex};

/// Lanes of a warp.
pub(super) const LANES: usize = 32;

/// What a group waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Ready,
    /// Until the other lanes of its mask come to this instruction.
    AtWarpSync,
    /// Until the block's barrier of this number is full.
    AtBarrier(usize),
    /// Until some memory changes: it has read the same words again and again.
    Polling,
}

/// Lanes that stand at the same instruction.
#[derive(Debug, Clone)]
pub(super) struct Group {
    pub(super) position: u32,
    pub(super) mask: u32,
    pub(super) state: State,
    /// Jumps back since another group of the warp had its turn.
    pub(super) turns: u32,
    pub(super) poll: Poll,
}

/// A warp of a resident block.
#[derive(Debug)]
pub(super) struct Warp {
    pub(super) index: u32,
    pub(super) rows: Vec<Row>,
    pub(super) flags: Vec<u32>,
    /// With checks: for each row and lane, a bit a byte that has been set.
    pub(super) defined: Vec<[u8; LANES]>,
    pub(super) flags_defined: Vec<u32>,
    pub(super) groups: Vec<Group>,
    /// Lanes that have not ended.
    pub(super) live: u32,
    /// Local memory of the lanes, one after the other.
    pub(super) local: Vec<u8>,
    pub(super) local_defined: Vec<bool>,
    /// The calls that each lane is in.
    pub(super) stacks: Vec<Vec<Frame>>,
    /// The group that runs.
    pub(super) current: usize,
}

/// Jumps back after which a group lets others of its warp go.
const PATIENCE: u32 = 32;

impl Warp {
    pub(super) fn new(index: u32, lanes: u32, rows: usize, flags: usize, checks: bool) -> Self {
        let live = if lanes >= 32 { u32::MAX } else { (1 << lanes) - 1 };
        let mut first = vec![0; flags];
        first[0] = u32::MAX;
        let group = Group { position: 0, mask: live, state: State::Ready, turns: 0, poll: Poll::default() };
        Self {
            index,
            rows: vec![[0; LANES]; rows],
            flags: first,
            defined: if checks { vec![[0; LANES]; rows] } else { Vec::new() },
            flags_defined: if checks { vec![0; flags] } else { Vec::new() },
            groups: vec![group],
            live,
            local: Vec::new(),
            local_defined: Vec::new(),
            stacks: (0..LANES).map(|_| Vec::new()).collect(),
            current: 0,
        }
    }

    /// The lanes of `mask` for which a predicate holds.
    #[inline]
    pub(super) fn lanes_with(&self, flag: Flag, mask: u32) -> u32 {
        let bits = self.flags[flag.index as usize];
        mask & if flag.negated { !bits } else { bits }
    }

    #[inline]
    pub(super) fn row(&self, row: RowIndex) -> &Row {
        &self.rows[row as usize]
    }

    /// Sets the lanes of `mask`.
    #[inline]
    pub(super) fn write(&mut self, row: RowIndex, values: &Row, mask: u32) {
        let target = &mut self.rows[row as usize];
        if mask == u32::MAX {
            *target = *values;
            return;
        }
        for (lane, (target, value)) in target.iter_mut().zip(values).enumerate() {
            if mask >> lane & 1 == 1 {
                *target = *value;
            }
        }
    }

    /// Sets a predicate's lanes of `mask`.
    #[inline]
    pub(super) fn write_flag(&mut self, flag: u32, bits: u32, mask: u32) {
        let target = &mut self.flags[flag as usize];
        *target = (*target & !mask) | (bits & mask);
    }

    /// Chooses the group that goes next; false where none is ready.
    pub(super) fn pick(&mut self) -> bool {
        if let [only] = &self.groups[..] {
            self.current = 0;
            return only.state == State::Ready;
        }
        self.merge();
        let tired = |group: &Group| group.turns >= PATIENCE;
        let ready = |group: &Group| group.state == State::Ready;
        if self.groups.iter().filter(|group| ready(group)).all(tired) {
            self.groups.iter_mut().for_each(|group| group.turns = 0);
        }
        let chosen = self
            .groups
            .iter()
            .enumerate()
            .filter(|(_, group)| ready(group) && !tired(group))
            .min_by_key(|(_, group)| group.position);
        match chosen {
            Some((index, _)) => {
                self.current = index;
                true
            }
            None => false,
        }
    }

    /// Joins ready groups that stand at the same instruction.
    fn merge(&mut self) {
        let mut index = 0;
        while index < self.groups.len() {
            let (position, state) = (self.groups[index].position, self.groups[index].state);
            let mut other = index + 1;
            while other < self.groups.len() {
                if state == State::Ready
                    && self.groups[other].state == State::Ready
                    && self.groups[other].position == position
                {
                    let joined = self.groups.swap_remove(other);
                    self.groups[index].mask |= joined.mask;
                    self.groups[index].turns = self.groups[index].turns.min(joined.turns);
                    self.groups[index].poll = Poll::default();
                } else {
                    other += 1;
                }
            }
            index += 1;
        }
    }

    /// Parts `lanes` from the current group; they go on at `position`. Returns whether a lane stays behind.
    pub(super) fn split(&mut self, lanes: u32, position: u32) -> bool {
        let group = &mut self.groups[self.current];
        if lanes == group.mask {
            group.position = position;
            return false;
        }
        group.mask &= !lanes;
        let mut parted = group.clone();
        parted.mask = lanes;
        parted.position = position;
        parted.state = State::Ready;
        self.groups.push(parted);
        true
    }

    /// Ends `lanes` of the current group.
    pub(super) fn end(&mut self, lanes: u32) {
        self.live &= !lanes;
        let group = &mut self.groups[self.current];
        group.mask &= !lanes;
        if group.mask == 0 {
            self.groups.swap_remove(self.current);
            self.current = 0;
        }
        // Whoever waits for a lane that has ended waits for one less.
        for group in &mut self.groups {
            if group.state == State::AtWarpSync {
                group.state = State::Ready;
            }
        }
    }

    /// Lets groups look again that poll a word that has changed; whether there were any.
    pub(super) fn wake(&mut self, core: &Core) -> bool {
        let mut any = false;
        for group in self.groups.iter_mut().filter(|group| group.state == State::Polling) {
            if core.has_news(&group.poll) {
                group.state = State::Ready;
                group.poll.wake(|word| core.has_changed(word));
                any = true;
            }
        }
        any
    }

    /// Lets all groups that poll look again.
    pub(super) fn wake_anyhow(&mut self) {
        for group in self.groups.iter_mut().filter(|group| group.state == State::Polling) {
            group.state = State::Ready;
            group.poll.wake_anyhow();
        }
    }

    /// Whether a group polls a word that has changed.
    pub(super) fn has_news(&self, core: &Core) -> bool {
        self.groups.iter().any(|group| group.state == State::Polling && core.has_news(&group.poll))
    }
}
