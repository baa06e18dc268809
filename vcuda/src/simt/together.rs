//! What the lanes of a warp, and the warps of a block, do together.

use super::FaultKind;
use super::access::Core;
use super::block::Block;
use super::execute::After;
use super::translate::{Checked, Trouble};
use super::update;
use super::warp::{LANES, State, Warp};
use crate::ptx::instruction::{BarrierReduce, Instruction, Op, RowIndex, Shuffle, Vote};

impl Warp {
    /// An instruction that waits for all lanes of its mask.
    pub(super) fn warp_sync(
        &mut self,
        core: &mut Core,
        instruction: &Instruction,
        mask: u32,
        active: u32,
    ) -> Checked<After> {
        if active == 0 {
            return Ok(After::Next);
        }
        let position = self.groups[self.current].position;
        if active != mask {
            self.split(mask & !active, position + 1);
        }
        self.absorb(position);
        let mut waiting = self.groups[self.current].mask;
        let masks = *self.row(mask_row(&instruction.op));
        let mut left = waiting;
        while left != 0 {
            let lane = left.trailing_zeros() as usize;
            let members: u32 = crate::alu::Lane::get(masks[lane]);
            let same = lanes_where(left, |lane| masks[lane] == masks[lane_of(left)]);
            left &= !same;
            if same & !members != 0 {
                let what = format!("the mask {members:#010x} of a `.sync` instruction leaves out a lane that runs it");
                return Err(Trouble::new(FaultKind::LaunchFailed, None, what));
            }
            if let Op::WarpBarrier { .. } = instruction.op {
                if self.warp_barrier(core, members, same) {
                    waiting &= !same;
                }
            } else if members & self.live & !same == 0 {
                core.warp_met(self.index);
                self.follow_together(&instruction.op, same);
                self.perform(&instruction.op, same);
                waiting &= !same;
                if waiting != 0 {
                    self.split(same, position + 1);
                }
            }
        }
        let group = &mut self.groups[self.current];
        if waiting == 0 {
            group.position = position + 1;
            group.state = State::Ready;
        } else {
            group.state = State::AtWarpSync;
        }
        Ok(After::Choose)
    }

    /// Takes in the groups that wait at this very instruction.
    fn absorb(&mut self, position: u32) {
        let mut index = 0;
        while index < self.groups.len() {
            let group = &self.groups[index];
            if index == self.current || group.position != position || group.state != State::AtWarpSync {
                index += 1;
                continue;
            }
            let mask = group.mask;
            self.groups[self.current].mask |= mask;
            let last = self.groups.len() - 1;
            self.groups.swap_remove(index);
            if self.current == last {
                self.current = index;
            }
        }
    }

    /// `bar.warp.sync`: lanes may wait for it at different places. Whether it is over, for the lanes `same` of the
    /// current group.
    fn warp_barrier(&mut self, core: &mut Core, members: u32, same: u32) -> bool {
        let function = std::sync::Arc::clone(&core.grid.function);
        let code = &function.program.code;
        let row_value =
            |warp: &Self, row: RowIndex, lane: u32| <u32 as crate::alu::Lane>::get(warp.row(row)[lane as usize]);
        let mut others = Vec::new();
        let mut come = same;
        for (index, group) in self.groups.iter().enumerate() {
            if index == self.current || group.state != State::AtWarpSync {
                continue;
            }
            let Op::WarpBarrier { mask } = code[group.position as usize].op else { continue };
            let lanes = (0..32).filter(|lane| group.mask >> lane & 1 == 1 && row_value(self, mask, *lane) == members);
            let lanes = lanes.fold(0u32, |bits, lane| bits | 1 << lane);
            if lanes != 0 {
                come |= lanes;
                others.push((index, lanes));
            }
        }
        if members & self.live & !come != 0 {
            return false;
        }
        core.warp_joined(self.index, come);
        let current = self.current;
        for (index, lanes) in others {
            let position = self.groups[index].position + 1;
            self.current = index;
            if self.split(lanes, position) {
                continue;
            }
            self.groups[index].state = State::Ready;
        }
        self.current = current;
        let group = &self.groups[current];
        if group.mask != same {
            let position = group.position + 1;
            self.split(same, position);
        }
        true
    }

    /// Every lane of the mask is here.
    pub(super) fn perform(&mut self, op: &Op, lanes: u32) {
        match op {
            Op::Vote { vote, flag, .. } => {
                let set = self.lanes_with(*flag, lanes);
                match vote {
                    Vote::Any(d) => self.write_flag(*d, all_if(set != 0), lanes),
                    Vote::All(d) => self.write_flag(*d, all_if(set == lanes), lanes),
                    Vote::Uniform(d) => self.write_flag(*d, all_if(set == lanes || set == 0), lanes),
                    Vote::Ballot(d) => self.write(*d, &[u64::from(set); LANES], lanes),
                }
            }
            Op::Match { d, all, is_all, a, .. } => self.matching(*d, *all, *is_all, *a, lanes),
            Op::Shuffle { shuffle, d, valid, a, b, c, .. } => {
                let sources = [*self.row(*a), *self.row(*b), *self.row(*c)];
                let (from, in_range) = shuffled(*shuffle, &sources[1], &sources[2]);
                let values = from.map(|lane| sources[0][lane]);
                self.write(*d, &values, lanes);
                if let Some(valid) = valid {
                    self.write_flag(*valid, in_range, lanes);
                }
                self.shuffle_defined(*d, *a, [*b, *c], &from, lanes);
            }
            Op::Reduce { update, kind, d, a, .. } => {
                let row = *self.row(*a);
                let mut values = (0..LANES).filter(|lane| lanes >> lane & 1 == 1).map(|lane| row[lane]);
                let first = values.next().unwrap_or(0);
                let result = values.fold(first, |sum, value| update::updated(*update, *kind, sum, value, 0));
                self.write(*d, &[result; LANES], lanes);
            }
            Op::Elect { d, flag, .. } => {
                let leader = lanes.trailing_zeros();
                self.write_flag(*flag, 1 << leader, lanes);
                if let Some(d) = d {
                    self.write(*d, &[u64::from(leader); LANES], lanes);
                }
            }
            _ => {}
        }
    }

    fn matching(&mut self, d: RowIndex, all: Option<u32>, is_all: bool, a: RowIndex, lanes: u32) {
        let row = *self.row(a);
        let mut out = [0; LANES];
        for (lane, out) in out.iter_mut().enumerate() {
            *out = u64::from(lanes_where(lanes, |other| row[other] == row[lane]));
        }
        if is_all {
            let equal = out[lane_of(lanes)] == u64::from(lanes);
            out = [if equal { u64::from(lanes) } else { 0 }; LANES];
            if let Some(flag) = all {
                self.write_flag(flag, all_if(equal), lanes);
            }
        }
        self.write(d, &out, lanes);
    }

    /// A lane that reads from one outside, or from one that undefined bytes choose, gets nothing that is defined.
    fn shuffle_defined(&mut self, d: RowIndex, a: RowIndex, by: [RowIndex; 2], from: &[usize; LANES], lanes: u32) {
        let Some(source) = self.defined.get(a as usize).copied() else { return };
        let chosen = by.map(|row| self.defined[row as usize]);
        for (lane, other) in from.iter().enumerate() {
            if lanes >> lane & 1 == 1 {
                let known = chosen.iter().all(|set| set[lane] == u8::MAX);
                self.defined[d as usize][lane] = if known && lanes >> other & 1 == 1 { source[*other] } else { 0 };
            }
        }
    }
}

fn all_if(yes: bool) -> u32 {
    if yes { u32::MAX } else { 0 }
}

fn lane_of(lanes: u32) -> usize {
    lanes.trailing_zeros() as usize
}

fn lanes_where(lanes: u32, holds: impl Fn(usize) -> bool) -> u32 {
    (0..LANES).filter(|lane| lanes >> lane & 1 == 1 && holds(*lane)).fold(0, |bits, lane| bits | 1 << lane)
}

fn mask_row(op: &Op) -> RowIndex {
    match op {
        Op::WarpBarrier { mask }
        | Op::Vote { mask, .. }
        | Op::Match { mask, .. }
        | Op::Shuffle { mask, .. }
        | Op::Reduce { mask, .. }
        | Op::Elect { mask, .. } => *mask,
        _ => 0,
    }
}

/// For each lane, the lane that it reads, and whether that lies in its segment.
fn shuffled(shuffle: Shuffle, b: &[u64; LANES], c: &[u64; LANES]) -> ([usize; LANES], u32) {
    let mut from = [0; LANES];
    let mut in_range = 0;
    for lane in 0..32i32 {
        let index = lane.unsigned_abs() as usize;
        let low = |value: u64| i32::try_from(value & 0x1f).expect("five bits");
        let (distance, clamp, segment) = (low(b[index]), low(c[index]), low(c[index] >> 8));
        let highest = (lane & segment) | (clamp & !segment & 0x1f);
        let lowest = lane & segment;
        let (wanted, valid) = match shuffle {
            Shuffle::Up => (lane - distance, lane - distance >= highest),
            Shuffle::Down => (lane + distance, lane + distance <= highest),
            Shuffle::Butterfly => (lane ^ distance, (lane ^ distance) <= highest),
            Shuffle::Index => {
                let wanted = lowest | (distance & !segment & 0x1f);
                (wanted, wanted <= highest)
            }
        };
        from[index] = if valid { wanted.unsigned_abs() as usize } else { index };
        in_range |= u32::from(valid) << index;
    }
    (from, in_range)
}

impl Block {
    /// The current group of a warp has come to a barrier.
    pub(super) fn barrier(&mut self, index: usize) -> Checked<()> {
        let function = std::sync::Arc::clone(&self.core.grid.function);
        let warp = &mut self.warps[index];
        let group = warp.groups[warp.current].clone();
        let Op::Barrier { id, count, reduce, arrive } = &function.program.code[group.position as usize].op else {
            return Ok(());
        };
        let lane = lane_of(group.mask);
        let number = usize::try_from(warp.row(*id)[lane]).unwrap_or(usize::MAX);
        let wanted = count.map(|row| crate::alu::Lane::get(warp.row(row)[lane]));
        let Some(barrier) = self.barriers.get_mut(number) else {
            let what = format!("barrier {number}: a block has 16, numbered from 0");
            return Err(Trouble::new(FaultKind::LaunchFailed, None, what));
        };
        if let Some(wanted @ 0..) = wanted
            && (wanted == 0 || wanted % 32 != 0)
        {
            let what = format!("a barrier of {wanted} threads: it must be a multiple of 32");
            return Err(Trouble::new(FaultKind::LaunchFailed, None, what));
        }
        let lanes = group.mask.count_ones();
        barrier.come += if wanted.is_some() && group.mask == warp.live { 32 } else { lanes };
        barrier.wanted = wanted;
        if let Some((_, flag)) = reduce {
            barrier.asked += lanes;
            let held = warp.lanes_with(*flag, group.mask);
            barrier.held += held.count_ones();
            let known = warp.flags_defined.get(flag.index as usize).map_or(u32::MAX, |known| *known);
            barrier.unknown |= group.mask & !known != 0;
            barrier.surely[0] |= group.mask & known & !held != 0;
            barrier.surely[1] |= known & held != 0;
        }
        let current = &mut warp.groups[warp.current];
        if *arrive {
            current.position += 1;
        } else {
            current.state = State::AtBarrier(number);
        }
        self.core.barrier_reached(self.warps[index].index, group.mask, number);
        self.open_if_full(number);
        Ok(())
    }

    /// A thread less to wait for.
    pub(super) fn thread_ended(&mut self, _index: usize) -> Checked<()> {
        for number in 0..self.barriers.len() {
            if self.barriers[number].come > 0 && self.barriers[number].wanted.is_none() {
                self.open_if_full(number);
            }
        }
        Ok(())
    }

    fn open_if_full(&mut self, number: usize) {
        let live = self.warps.iter().map(|warp| warp.live.count_ones()).sum::<u32>();
        let barrier = &self.barriers[number];
        if barrier.come < barrier.wanted.unwrap_or(live) {
            return;
        }
        let barrier = std::mem::take(&mut self.barriers[number]);
        let function = std::sync::Arc::clone(&self.core.grid.function);
        for warp in &mut self.warps {
            for index in 0..warp.groups.len() {
                let group = &mut warp.groups[index];
                if group.state != State::AtBarrier(number) {
                    continue;
                }
                let (position, mask) = (group.position, group.mask);
                group.position += 1;
                group.state = State::Ready;
                if let Op::Barrier { reduce: Some((reduce, _)), .. } = &function.program.code[position as usize].op {
                    match reduce {
                        BarrierReduce::Count(d) => warp.write(*d, &[u64::from(barrier.held); LANES], mask),
                        BarrierReduce::And(d) => warp.write_flag(*d, all_if(barrier.held == barrier.asked), mask),
                        BarrierReduce::Or(d) => warp.write_flag(*d, all_if(barrier.held > 0), mask),
                    }
                    warp.barrier_defined(*reduce, &barrier, mask);
                }
            }
        }
        self.core.barrier_opened(number);
    }
}
