//! Runs a warp's instructions.

use super::FaultKind;
use super::access::Core;
use super::translate::{Checked, Trouble};
use super::warp::{LANES, State, Warp};
use crate::alu::convert::extend;
use crate::alu::{Row, float, integer};
use crate::ptx::instruction::{Flag, Float, Instruction, Join, Logic, Op, RowIndex, Special};
use crate::ptx::types::{LOCAL_WINDOW, PARAMETER_WINDOW, SHARED_WINDOW, Space, WINDOW_MASK};

/// Why a warp's turn is over.
#[derive(Debug)]
pub(super) enum Turn {
    /// Its instructions are used up, or none of its groups is ready.
    Over,
    /// The current group has come to a barrier of the block.
    Barrier,
    /// A thread has ended: barriers may be full now.
    Ended,
    Trouble(Box<Trouble>),
}

/// What comes after an instruction.
pub(super) enum After {
    /// The next instruction, for the whole group.
    Next,
    /// The group's position is set already; others may be ready before it.
    Choose,
    Turn(Turn),
}

impl Warp {
    /// Runs at most `quantum` instructions of the group that [`pick`](Self::pick) chose; returns how many.
    pub(super) fn run(&mut self, core: &mut Core, quantum: u32) -> (u32, Turn) {
        let function = std::sync::Arc::clone(&core.grid.function);
        let code = &function.program.code[..];
        let mut used = 0;
        while used < quantum {
            used += 1;
            let (position, mask) = {
                let group = &self.groups[self.current];
                (group.position, group.mask)
            };
            let instruction = &code[position as usize];
            let active = if instruction.guard == Flag::TRUE { mask } else { self.lanes_with(instruction.guard, mask) };
            core.at = (position, active);
            let after = match core.tick().and_then(|()| self.one(core, instruction, mask, active)) {
                Ok(after) => after,
                Err(trouble) => {
                    core.release_line();
                    return (used, Turn::Trouble(trouble));
                }
            };
            match after {
                After::Next => {
                    self.groups[self.current].position = position + 1;
                    if self.groups.len() > 1 && !self.pick() {
                        return (used, Turn::Over);
                    }
                }
                After::Choose => {
                    if !self.pick() {
                        return (used, Turn::Over);
                    }
                }
                After::Turn(turn) => return (used, turn),
            }
        }
        (used, Turn::Over)
    }

    fn one(&mut self, core: &mut Core, instruction: &Instruction, mask: u32, active: u32) -> Checked<After> {
        if core.checks() {
            let unset = self.check_defined(core, instruction, mask, active);
            if unset != 0 {
                core.at.1 = unset;
                return Err(Self::undefined(instruction));
            }
        }
        match &instruction.op {
            Op::Jump { target } => return Ok(self.jump(*target, mask, active)),
            Op::JumpTable { index, targets } => return self.jump_table(*index, targets, mask, active),
            Op::Exit => return Ok(self.exit(mask, active)),
            Op::Barrier { .. } => return Ok(self.at_barrier(mask, active)),
            Op::WarpBarrier { .. }
            | Op::Vote { .. }
            | Op::Match { .. }
            | Op::Shuffle { .. }
            | Op::Reduce { .. }
            | Op::Elect { .. } => return self.warp_sync(core, instruction, mask, active),
            Op::Trap if active != 0 => return Err(Trouble::new(FaultKind::Trap, None, "`trap` was executed")),
            Op::AssertFail { parameters, frame } if active != 0 => {
                return Err(self.assertion(core, parameters, *frame, active));
            }
            Op::Call { .. } => return self.call(core, &instruction.op, mask, active),
            Op::Return => return self.return_from(core, mask, active),
            Op::Load { to, kind, register_bits, order, address } if active != 0 => {
                self.load(core, to, (*kind, *register_bits, *order), *address, active)?;
            }
            Op::Store { from, kind, order, address } if active != 0 => {
                self.store(core, from, (*kind, *order), *address, active)?;
            }
            Op::Atomic { .. } if active != 0 => self.atomic(core, &instruction.op, active)?,
            Op::Fence { scope, sequential } if active != 0 => core.fence(self.index, active, *scope, *sequential)?,
            Op::Pause => {
                let group = &mut self.groups[self.current];
                group.turns = u32::MAX;
                group.position += 1;
                return Ok(After::Choose);
            }
            op => self.calculate(core, op, active),
        }
        Ok(After::Next)
    }

    fn jump(&mut self, target: u32, mask: u32, active: u32) -> After {
        let position = self.groups[self.current].position;
        if active == 0 {
            return After::Next;
        }
        let back = target <= position;
        if active != mask {
            // Those who stay go on behind the jump; the others become a group of their own.
            self.split(active, target);
            self.groups[self.current].position = position + 1;
            if back {
                let last = self.groups.len() - 1;
                self.turn_back(last);
            }
            return After::Choose;
        }
        self.groups[self.current].position = target;
        if back {
            self.turn_back(self.current);
        }
        After::Choose
    }

    /// A group has jumped back; it sleeps where it only looks at the same words.
    fn turn_back(&mut self, index: usize) {
        let group = &mut self.groups[index];
        group.turns = group.turns.saturating_add(1);
        if group.poll.round() {
            group.state = State::Polling;
        }
    }

    fn jump_table(&mut self, index: RowIndex, targets: &[u32], mask: u32, active: u32) -> Checked<After> {
        let position = self.groups[self.current].position;
        let mut left = active;
        while left != 0 {
            let first = left.trailing_zeros() as usize;
            let value = self.row(index)[first];
            let same = (0..LANES).filter(|lane| left >> lane & 1 == 1 && self.row(index)[*lane] == value);
            let lanes = same.fold(0, |bits, lane| bits | 1 << lane);
            let target = usize::try_from(value).ok().and_then(|value| targets.get(value));
            let Some(target) = target else {
                let what = format!("`brx.idx` with the index {value} into a list of {} targets", targets.len());
                return Err(Trouble::new(FaultKind::Trap, None, what));
            };
            if !self.split(lanes, *target) {
                return Ok(After::Choose);
            }
            left &= !lanes;
        }
        debug_assert_ne!(mask, active, "a group whose lanes all left was handled above");
        self.groups[self.current].position = position + 1;
        Ok(After::Choose)
    }

    fn exit(&mut self, mask: u32, active: u32) -> After {
        if active == 0 {
            return After::Next;
        }
        if active != mask {
            self.groups[self.current].position += 1;
        }
        self.end(active);
        After::Turn(Turn::Ended)
    }

    fn at_barrier(&mut self, mask: u32, active: u32) -> After {
        if active == 0 {
            return After::Next;
        }
        if active != mask {
            let position = self.groups[self.current].position;
            self.split(mask & !active, position + 1);
        }
        After::Turn(Turn::Barrier)
    }

    fn assertion(
        &mut self,
        core: &mut Core,
        parameters: &[u32; 4],
        frame: Option<RowIndex>,
        active: u32,
    ) -> Box<Trouble> {
        let lane = active.trailing_zeros() as usize;
        let base = frame.map_or(0, |row| usize::try_from(self.row(row)[lane]).unwrap_or(0));
        let word = |at: u32, bytes: usize| {
            let first = core.local_offset(lane) + base + at as usize;
            let mut value = [0; 8];
            if let Some(source) = self.local.get(first..first + bytes) {
                value[..bytes].copy_from_slice(source);
            }
            u64::from_le_bytes(value)
        };
        let (message, file, line) = (word(parameters[0], 8), word(parameters[1], 8), word(parameters[2], 4));
        let (message, file) = (core.text(message), core.text(file));
        Trouble::new(FaultKind::Assert, None, format!("{file}:{line}: assertion `{message}` failed"))
    }

    /// Operations on registers alone: they cannot fail.
    pub(super) fn calculate(&mut self, core: &mut Core, op: &Op, active: u32) {
        let mut out = [0; LANES];
        let d = match op {
            Op::Unary { run, d, a, float } => {
                if float.is_plain() {
                    run(self.row(*a), &mut out);
                } else {
                    run(&self.prepared(*a, *float), &mut out);
                    finish(*float, &mut out);
                }
                *d
            }
            Op::Binary { run, d, a, b, float } => {
                if float.is_plain() {
                    run(self.row(*a), self.row(*b), &mut out);
                } else {
                    run(&self.prepared(*a, *float), &self.prepared(*b, *float), &mut out);
                    finish(*float, &mut out);
                }
                *d
            }
            Op::Ternary { run, d, abc: [a, b, c], float } => {
                if float.is_plain() {
                    run(self.row(*a), self.row(*b), self.row(*c), &mut out);
                } else {
                    run(&self.prepared(*a, *float), &self.prepared(*b, *float), &self.prepared(*c, *float), &mut out);
                    finish(*float, &mut out);
                }
                *d
            }
            Op::Move { d, a } => {
                out = *self.row(*a);
                *d
            }
            Op::Convert { conversion, d, a } => {
                conversion.run(self.row(*a), &mut out);
                *d
            }
            Op::Extend { d, a, from, to, signed } => {
                for (out, value) in out.iter_mut().zip(self.row(*a)) {
                    *out = extend(*value, *from, *to, *signed);
                }
                *d
            }
            Op::Insert { d, value, into, position, length, width } => {
                let rows = [value, into, position, length].map(|row| self.row(*row));
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = integer::insert(rows[0][lane], rows[1][lane], rows[2][lane], rows[3][lane], *width);
                }
                *d
            }
            Op::Logic3 { d, abc, table } => {
                let rows = abc.map(|row| self.row(row));
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = integer::logic3(rows[0][lane], rows[1][lane], rows[2][lane], *table);
                }
                *d
            }
            Op::Select { d, a, b, flag } => {
                let chosen = self.lanes_with(*flag, u32::MAX);
                let (a, b) = (self.row(*a), self.row(*b));
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = if chosen >> lane & 1 == 1 { a[lane] } else { b[lane] };
                }
                *d
            }
            Op::Pack { d, parts, bits } => {
                for (index, part) in parts.iter().enumerate() {
                    let shift = bits * u32::try_from(index).expect("at most four parts");
                    for (out, value) in out.iter_mut().zip(self.row(*part)) {
                        *out |= extend(*value, *bits, 64, false) << shift;
                    }
                }
                *d
            }
            Op::Special { d, which, bits } => {
                self.special(core, *which, &mut out);
                out.iter_mut().for_each(|value| *value = extend(*value, *bits, 64, false));
                *d
            }
            Op::Set { run, d, a, b, join, yes, flush } => {
                let bits = self.joined(self.compared(*run, *a, *b, *flush), *join);
                for (lane, out) in out.iter_mut().enumerate() {
                    *out = if bits >> lane & 1 == 1 { *yes } else { 0 };
                }
                *d
            }
            other => return self.calculate_flags(other, active),
        };
        self.write(d, &out, active);
    }

    /// Operations with predicates or several results.
    fn calculate_flags(&mut self, op: &Op, active: u32) {
        match op {
            Op::Compare { run, d, inverse, a, b, join, flush } => {
                let bits = self.compared(*run, *a, *b, *flush);
                let (yes, no) = (self.joined(bits, *join), self.joined(!bits, *join));
                if let Some(d) = d {
                    self.write_flag(*d, yes, active);
                }
                if let Some(inverse) = inverse {
                    self.write_flag(*inverse, no, active);
                }
            }
            Op::ComparePair { run, d, high, a, b, join } => {
                let (a, b) = (*self.row(*a), *self.row(*b));
                let upper = (a.map(|value| value >> 16), b.map(|value| value >> 16));
                let (low_bits, high_bits) = (run(&a, &b), run(&upper.0, &upper.1));
                let (low_bits, high_bits) = (self.joined(low_bits, *join), self.joined(high_bits, *join));
                self.write_flag(*d, low_bits, active);
                self.write_flag(*high, high_bits, active);
            }
            Op::Predicate { logic, d, a, b } => {
                let (a, b) = (self.lanes_with(*a, u32::MAX), self.lanes_with(*b, u32::MAX));
                self.write_flag(*d, combined(*logic, a, b), active);
            }
            Op::Carry { d, a, b, bits, subtract, carry_in, carry_out } => {
                let carries = carry_in.map_or(0, |flag| self.flags[flag as usize]);
                let (sums, carries) = with_carry(self.row(*a), self.row(*b), (*bits, *subtract), carries);
                self.write(*d, &sums, active);
                if let Some(flag) = carry_out {
                    self.write_flag(*flag, carries, active);
                }
            }
            Op::Unpack { parts, a, bits } => {
                let source = *self.row(*a);
                for (index, part) in parts.iter().enumerate() {
                    let shift = bits * u32::try_from(index).expect("at most four parts");
                    if let Some(part) = part {
                        self.write(*part, &source.map(|value| extend(value >> shift, *bits, 64, false)), active);
                    }
                }
            }
            Op::ActiveMask { d } => self.write(*d, &[u64::from(active); LANES], active),
            Op::IsSpace { space, d, a } => {
                let mut bits = 0;
                for (lane, address) in self.row(*a).iter().enumerate() {
                    bits |= u32::from(space_of(*address) == *space) << lane;
                }
                self.write_flag(*d, bits, active);
            }
            // What is left has no lane to run for, or is run elsewhere.
            _ => {}
        }
    }

    fn prepared(&self, row: RowIndex, float: Float) -> Row {
        let mut copy = *self.row(row);
        if float.flush {
            float::flush(&mut copy);
        }
        copy
    }

    fn compared(&self, run: crate::alu::Test, a: RowIndex, b: RowIndex, flush: bool) -> u32 {
        if flush {
            let float = Float { flush, saturate: None };
            run(&self.prepared(a, float), &self.prepared(b, float))
        } else {
            run(self.row(a), self.row(b))
        }
    }

    fn joined(&self, bits: u32, join: Option<Join>) -> u32 {
        match join {
            Some(Join { logic, with }) => combined(logic, bits, self.lanes_with(with, u32::MAX)),
            None => bits,
        }
    }

    fn special(&self, core: &mut Core, which: Special, out: &mut Row) {
        let config = &core.grid.config;
        let same = match which {
            Special::Thread(axis) => {
                for (lane, out) in (0..).zip(out.iter_mut()) {
                    *out = u64::from(core.thread_index(self.index * 32 + lane)[axis]);
                }
                return;
            }
            Special::Lane
            | Special::LanesEqual
            | Special::LanesBelow
            | Special::LanesBelowOrEqual
            | Special::LanesAbove
            | Special::LanesAboveOrEqual => {
                for (lane, out) in (0u32..).zip(out.iter_mut()) {
                    *out = lane_value(which, lane);
                }
                return;
            }
            Special::BlockSize(axis) => u64::from(config.block[axis]),
            Special::BlockIndex(axis) => u64::from(core.index[axis]),
            Special::GridSize(axis) => u64::from(config.grid[axis]),
            Special::Warp => u64::from(self.index),
            Special::Warps => u64::from(config.block.iter().product::<u32>().div_ceil(32)),
            Special::Multiprocessor => u64::from(core.multiprocessor),
            Special::Multiprocessors => u64::from(config.sm_count),
            Special::GridId => core.grid.id,
            Special::Clock | Special::Clock64 => core.clock,
            Special::ClockHigh => core.clock >> 32,
            Special::GlobalTimer | Special::GlobalTimerLow => core.nanoseconds(),
            Special::GlobalTimerHigh => core.nanoseconds() >> 32,
            Special::DynamicSharedBytes => u64::from(config.dynamic_shared_bytes),
            Special::TotalSharedBytes => u64::from(core.grid.shared_bytes()),
            Special::Zero => 0,
        };
        *out = [same; LANES];
    }
}

fn lane_value(which: Special, lane: u32) -> u64 {
    let below = (1u64 << lane) - 1;
    match which {
        Special::LanesEqual => 1 << lane,
        Special::LanesBelow => below,
        Special::LanesBelowOrEqual => below | 1 << lane,
        Special::LanesAbove => 0xffff_ffff & !(below | 1 << lane),
        Special::LanesAboveOrEqual => 0xffff_ffff & !below,
        _ => u64::from(lane),
    }
}

fn finish(float: Float, out: &mut Row) {
    if let Some(kind) = float.saturate {
        float::saturate(kind, out);
    }
    if float.flush {
        float::flush(out);
    }
}

fn combined(logic: Logic, a: u32, b: u32) -> u32 {
    match logic {
        Logic::And => a & b,
        Logic::Or => a | b,
        Logic::Xor => a ^ b,
    }
}

/// Sums (or differences) and carries (or borrows) of every lane.
fn with_carry(a: &Row, b: &Row, (bits, subtract): (u32, bool), carries: u32) -> (Row, u32) {
    let mut out = [0; LANES];
    let mut carried = 0;
    for (lane, out) in out.iter_mut().enumerate() {
        let (a, b) = (u128::from(a[lane]), u128::from(b[lane]));
        let carry = u128::from(carries >> lane & 1);
        let wide = if subtract { a.wrapping_sub(b).wrapping_sub(carry) } else { a + b + carry };
        carried |= u32::from(wide >> bits & 1 == 1) << lane;
        let low = u64::try_from(wide & u128::from(u64::MAX)).expect("masked");
        *out = extend(low, bits, 64, false);
    }
    (out, carried)
}

/// The space that a generic address lies in.
pub(super) fn space_of(address: u64) -> Space {
    match address & WINDOW_MASK {
        SHARED_WINDOW => Space::Shared,
        LOCAL_WINDOW => Space::Local,
        PARAMETER_WINDOW => Space::Parameter,
        _ => Space::Global,
    }
}
