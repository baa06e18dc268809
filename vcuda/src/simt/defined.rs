//! Follows which bytes of registers have ever been set.
//!
//! Loads, stores, moves and shuffles carry one bit for each byte. A calculation whose sources are not all defined is made
//! again with other bytes in place of the undefined ones ([`TRIALS`]): bytes of the result that change are undefined. So
//! masks, shifts, packed halves and products with zero need no rules of their own. It is a fault if an undefined value
//! decides something: a branch, a guard, an address, a call.

use super::FaultKind;
use super::access::Core;
use super::block::Barrier;
use super::translate::Trouble;
use super::warp::{LANES, Warp};
use crate::ptx::instruction::{BarrierReduce, Callee, Flag, Instruction, Join, Op, RowIndex, Vote};

const ALL: [u8; LANES] = [u8::MAX; LANES];
/// How often a calculation is made again: undefined bytes are all zero, all one, the largest and the smallest signed
/// numbers, those of the other source (a comparison finds them equal) and their inverse, then twice random.
const TRIALS: u64 = 8;

/// What a calculation reads and writes.
#[derive(Debug, Default)]
struct Operands {
    rows: [Option<RowIndex>; 4],
    flags: [Option<u32>; 2],
    to_rows: [Option<RowIndex>; 4],
    to_flags: [Option<u32>; 2],
}

impl Operands {
    fn new(rows: &[RowIndex], to: RowIndex) -> Self {
        Self { to_rows: [Some(to), None, None, None], ..Self::reading(rows) }
    }

    fn reading(rows: &[RowIndex]) -> Self {
        Self { rows: std::array::from_fn(|index| rows.get(index).copied()), ..Self::default() }
    }

    fn joined(mut self, join: Option<Join>) -> Self {
        self.flags[0] = join.map(|join| join.with.index);
        self
    }

    fn with_flags(self, flags: [Option<u32>; 2], to_flags: [Option<u32>; 2]) -> Self {
        Self { flags, to_flags, ..self }
    }

    /// Of an operation on registers and predicates that a lane makes alone; None for all others.
    fn of(op: &Op) -> Option<Self> {
        Some(match op {
            Op::Unary { d, a, .. } | Op::Convert { d, a, .. } | Op::Extend { d, a, .. } => Self::new(&[*a], *d),
            Op::Binary { d, a, b, .. } => Self::new(&[*a, *b], *d),
            Op::Ternary { d, abc, .. } | Op::Logic3 { d, abc, .. } => Self::new(abc, *d),
            Op::Insert { d, value, into, position, length, .. } => Self::new(&[*value, *into, *position, *length], *d),
            Op::Carry { d, a, b, carry_in, carry_out, .. } => {
                Self::new(&[*a, *b], *d).with_flags([*carry_in, None], [*carry_out, None])
            }
            Op::Pack { d, parts, .. } => Self::new(parts, *d),
            Op::Unpack { parts, a, .. } => {
                let to_rows = std::array::from_fn(|index| parts.get(index).copied().flatten());
                Self { to_rows, ..Self::reading(&[*a]) }
            }
            Op::Select { d, a, b, flag } => Self::new(&[*a, *b], *d).with_flags([Some(flag.index), None], [None; 2]),
            Op::Set { d, a, b, join, .. } => Self::new(&[*a, *b], *d).joined(*join),
            Op::Compare { d, inverse, a, b, join, .. } => {
                Self { to_flags: [*d, *inverse], ..Self::reading(&[*a, *b]).joined(*join) }
            }
            Op::ComparePair { d, high, a, b, join, .. } => {
                Self { to_flags: [Some(*d), Some(*high)], ..Self::reading(&[*a, *b]).joined(*join) }
            }
            Op::Predicate { d, a, b, .. } => {
                Self::default().with_flags([Some(a.index), Some(b.index)], [Some(*d), None])
            }
            Op::IsSpace { d, a, .. } => Self::reading(&[*a]).with_flags([None; 2], [Some(*d), None]),
            _ => return None,
        })
    }

    /// Of an operation that lanes make together; None for all others.
    fn of_together(op: &Op) -> Option<Self> {
        Some(match op {
            Op::Vote { vote, flag, .. } => {
                let flags = [Some(flag.index), None];
                match vote {
                    Vote::Any(d) | Vote::All(d) | Vote::Uniform(d) => {
                        Self::default().with_flags(flags, [Some(*d), None])
                    }
                    Vote::Ballot(d) => Self::new(&[], *d).with_flags(flags, [None; 2]),
                }
            }
            Op::Match { d, all, a, .. } => Self::new(&[*a], *d).with_flags([None; 2], [*all, None]),
            Op::Reduce { d, a, .. } => Self::new(&[*a], *d),
            Op::Elect { d, flag, .. } => {
                let to_rows = [*d, None, None, None];
                Self { to_rows, to_flags: [Some(*flag), None], ..Self::default() }
            }
            // `shuffle_defined` marks the row.
            Op::Shuffle { valid, .. } => Self { to_flags: [*valid, None], ..Self::default() },
            _ => return None,
        })
    }
}

impl Warp {
    /// Before an instruction runs: the lanes in which an undefined value would decide. Otherwise its result becomes as
    /// defined as its sources.
    pub(super) fn check_defined(&mut self, core: &mut Core, instruction: &Instruction, mask: u32, active: u32) -> u32 {
        let unset = mask & !self.flag_defined(instruction.guard);
        if unset != 0 {
            return unset;
        }
        match &instruction.op {
            Op::JumpTable { index, .. } => active & self.unset(*index),
            Op::Call { callee: Callee::Address(row), .. } => active & self.unset(*row),
            Op::Load { address, .. } | Op::Store { address, .. } | Op::Atomic { address, .. } => {
                active & self.unset(address.base)
            }
            op => {
                self.follow(core, op, active);
                0
            }
        }
    }

    /// The fault of an undefined value that decides.
    pub(super) fn undefined(instruction: &Instruction) -> Box<Trouble> {
        let what = match instruction.op {
            Op::Load { .. } | Op::Store { .. } | Op::Atomic { .. } => {
                "the address was computed from bytes that were never set"
            }
            _ => "the branch depends on bytes that were never set",
        };
        Trouble::new(FaultKind::LaunchFailed, None, what)
    }

    fn flag_defined(&self, flag: Flag) -> u32 {
        self.flags_defined[flag.index as usize]
    }

    /// Lanes in which a row has an undefined byte.
    fn unset(&self, row: RowIndex) -> u32 {
        let set = &self.defined[row as usize];
        if *set == ALL {
            return 0;
        }
        set.iter().enumerate().fold(0, |bits, (lane, set)| bits | u32::from(*set != u8::MAX) << lane)
    }

    fn follow(&mut self, core: &mut Core, op: &Op, active: u32) {
        match op {
            Op::Move { d, a } => {
                let set = self.defined[*a as usize];
                self.mark(*d, &set, active);
            }
            Op::Special { d, .. } | Op::ActiveMask { d } => self.mark(*d, &ALL, active),
            op => {
                if let Some(operands) = Operands::of(op) {
                    self.follow_operands(&operands, active, |warp| warp.calculate(core, op, active));
                }
            }
        }
    }

    /// The same for what the lanes of a warp do together, once all of `lanes` are here.
    pub(super) fn follow_together(&mut self, op: &Op, lanes: u32) {
        if self.defined.is_empty() {
            return;
        }
        if let Some(operands) = Operands::of_together(op) {
            self.follow_operands(&operands, lanes, |warp| warp.perform(op, lanes));
        }
    }

    /// A barrier's result that undefined predicates might change is undefined.
    pub(super) fn barrier_defined(&mut self, reduce: BarrierReduce, barrier: &Barrier, lanes: u32) {
        if self.defined.is_empty() {
            return;
        }
        let known = |surely: bool| if barrier.unknown && !surely { 0 } else { u32::MAX };
        match reduce {
            BarrierReduce::Count(d) => self.mark(d, if barrier.unknown { &[0; LANES] } else { &ALL }, lanes),
            BarrierReduce::And(d) => self.mark_flag(d, known(barrier.surely[0]), lanes),
            BarrierReduce::Or(d) => self.mark_flag(d, known(barrier.surely[1]), lanes),
        }
    }

    fn follow_operands(&mut self, operands: &Operands, active: u32, run: impl FnMut(&mut Self)) {
        let rows = operands.rows.iter().flatten().fold(0, |unset, row| unset | self.unset(*row));
        let unset =
            operands.flags.iter().flatten().fold(rows, |unset, flag| unset | !self.flags_defined[*flag as usize]);
        if unset & active != 0 {
            return self.try_others(operands, active, run);
        }
        for row in operands.to_rows.iter().flatten() {
            self.mark(*row, &ALL, active);
        }
        for flag in operands.to_flags.iter().flatten() {
            self.mark_flag(*flag, u32::MAX, active);
        }
    }

    /// Makes a calculation with other bytes in place of the undefined ones: what changes is undefined.
    #[cold]
    fn try_others(&mut self, operands: &Operands, active: u32, mut run: impl FnMut(&mut Self)) {
        let rows: Vec<RowIndex> = operands.rows.iter().chain(&operands.to_rows).flatten().copied().collect();
        let flags: Vec<u32> = operands.flags.iter().chain(&operands.to_flags).flatten().copied().collect();
        let kept_rows: Vec<_> = rows.iter().map(|row| self.rows[*row as usize]).collect();
        let kept_flags: Vec<_> = flags.iter().map(|flag| self.flags[*flag as usize]).collect();
        let restore = |warp: &mut Self| {
            rows.iter().zip(&kept_rows).for_each(|(row, kept)| warp.rows[*row as usize] = *kept);
            flags.iter().zip(&kept_flags).for_each(|(flag, kept)| warp.flags[*flag as usize] = *kept);
        };
        let (mut set, mut known) = ([ALL; 4], [u32::MAX; 2]);
        run(self);
        let first_rows = operands.to_rows.map(|row| row.map(|row| self.rows[row as usize]));
        let first_flags = operands.to_flags.map(|flag| flag.map(|flag| self.flags[flag as usize]));
        for trial in 0..TRIALS {
            restore(self);
            self.replace_undefined(operands, trial);
            run(self);
            for (index, (row, first)) in operands.to_rows.iter().zip(&first_rows).enumerate() {
                let (Some(row), Some(first)) = (row, first) else { continue };
                let now = &self.rows[*row as usize];
                for (set, (first, now)) in set[index].iter_mut().zip(first.iter().zip(now)) {
                    *set &= equal_bytes(*first, *now);
                }
            }
            for (index, (flag, first)) in operands.to_flags.iter().zip(first_flags).enumerate() {
                if let (Some(flag), Some(first)) = (flag, first) {
                    known[index] &= !(first ^ self.flags[*flag as usize]);
                }
            }
        }
        restore(self);
        for (row, set) in operands.to_rows.iter().zip(&set) {
            if let Some(row) = row {
                self.mark(*row, set, active);
            }
        }
        for (flag, known) in operands.to_flags.iter().zip(known) {
            if let Some(flag) = flag {
                self.mark_flag(*flag, known, active);
            }
        }
    }

    /// Puts other bytes in place of the sources' undefined ones.
    fn replace_undefined(&mut self, operands: &Operands, trial: u64) {
        let [first, second, ..] = operands.rows;
        let kept = [first, second].map(|row| row.map(|row| self.rows[row as usize]));
        for row in operands.rows.iter().flatten() {
            let other = if Some(*row) == first { kept[1] } else { kept[0] };
            for lane in 0..LANES {
                let set = self.defined[*row as usize][lane];
                if set == u8::MAX {
                    continue;
                }
                let pattern = match trial {
                    0 => 0,
                    1 => u64::MAX,
                    2 => 0x7f7f_7f7f_7f7f_7f7f,
                    3 => 0x8080_8080_8080_8080,
                    4 => other.map_or(0, |other| other[lane]),
                    5 => other.map_or(0, |other| !other[lane]),
                    _ => mixed(trial << 32 | u64::from(*row) << 8 | lane as u64),
                };
                let keep = bytes_of(set);
                let value = &mut self.rows[*row as usize][lane];
                *value = (*value & keep) | (pattern & !keep);
            }
        }
        for flag in operands.flags.iter().flatten() {
            let random = mixed(trial << 32 | u64::from(*flag)) & u64::from(u32::MAX);
            let pattern = match trial {
                0 => 0,
                1 => u32::MAX,
                _ => u32::try_from(random).unwrap_or(0),
            };
            let known = self.flags_defined[*flag as usize];
            let bits = &mut self.flags[*flag as usize];
            *bits = (*bits & known) | (pattern & !known);
        }
    }

    fn mark(&mut self, d: RowIndex, set: &[u8; LANES], active: u32) {
        let target = &mut self.defined[d as usize];
        if active == u32::MAX {
            *target = *set;
            return;
        }
        for (lane, (target, set)) in target.iter_mut().zip(set).enumerate() {
            if active >> lane & 1 == 1 {
                *target = *set;
            }
        }
    }

    fn mark_flag(&mut self, flag: u32, known: u32, active: u32) {
        let target = &mut self.flags_defined[flag as usize];
        *target = (*target & !active) | (known & active);
    }
}

/// A bit for each byte in which two words are equal.
fn equal_bytes(a: u64, b: u64) -> u8 {
    let (a, b) = (a.to_le_bytes(), b.to_le_bytes());
    (0..8).fold(0, |bits, index| bits | u8::from(a[index] == b[index]) << index)
}

/// All bits of the bytes that are set.
fn bytes_of(set: u8) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|index| if set >> index & 1 == 1 { u8::MAX } else { 0 }))
}

/// Bits that look random.
fn mixed(number: u64) -> u64 {
    let number = (number ^ number >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (number ^ number >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ number >> 32
}
