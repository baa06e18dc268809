//! Follows which bytes of registers have ever been set.
//!
//! Moves, loads and stores carry one bit a byte. Arithmetic gives a defined result unless a source has no defined byte at
//! all: words of which a kernel uses a part (the tail of a vector, packed bytes) are no mistake. An undefined value is a
//! fault where it decides something: in a branch, a guard, an address.

use super::FaultKind;
use super::translate::Trouble;
use super::warp::{LANES, Warp};
use crate::ptx::instruction::{Callee, Flag, Instruction, Join, Op, RowIndex};

const ALL: [u8; LANES] = [u8::MAX; LANES];

impl Warp {
    /// Before an instruction runs: the lanes in which an undefined value would decide. Otherwise its result becomes as
    /// defined as its sources.
    pub(super) fn check_defined(&mut self, instruction: &Instruction, mask: u32, active: u32) -> u32 {
        let guard = instruction.guard;
        let unset = mask & !self.flag_defined(guard);
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
                self.follow(op, active);
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

    /// Lanes in which a row has no defined byte.
    fn unset(&self, row: RowIndex) -> u32 {
        self.defined[row as usize].iter().enumerate().fold(0, |bits, (lane, set)| bits | u32::from(*set == 0) << lane)
    }

    fn follow(&mut self, op: &Op, active: u32) {
        match op {
            Op::Move { d, a } => {
                let set = self.defined[*a as usize];
                self.mark(*d, &set, active);
            }
            Op::Unary { d, a, .. } | Op::Convert { d, a, .. } | Op::Extend { d, a, .. } => {
                self.follow_rows(*d, &[*a], active)
            }
            Op::Binary { d, a, b, .. } | Op::Carry { d, a, b, .. } => self.follow_rows(*d, &[*a, *b], active),
            Op::Ternary { d, abc, .. } | Op::Logic3 { d, abc, .. } => self.follow_rows(*d, abc, active),
            Op::Insert { d, position, length, .. } => self.follow_rows(*d, &[*position, *length], active),
            Op::Pack { d, parts, bits } => self.follow_pack(*d, parts, *bits, active),
            Op::Unpack { parts, a, bits } => {
                let source = self.defined[*a as usize];
                for (index, part) in parts.iter().enumerate() {
                    let shift = (bits / 8) as usize * index;
                    if let Some(part) = part {
                        let set = source.map(|set| fill(set >> shift, bits / 8));
                        self.mark(*part, &set, active);
                    }
                }
            }
            Op::Select { d, a, b, flag } => {
                let (chosen, known) = (self.lanes_with(*flag, u32::MAX), self.flag_defined(*flag));
                let (a, b) = (self.defined[*a as usize], self.defined[*b as usize]);
                let mut set = [0; LANES];
                for (lane, set) in set.iter_mut().enumerate().filter(|(lane, _)| known >> lane & 1 == 1) {
                    *set = if chosen >> lane & 1 == 1 { a[lane] } else { b[lane] };
                }
                self.mark(*d, &set, active);
            }
            Op::Set { d, a, b, .. } => self.follow_rows(*d, &[*a, *b], active),
            Op::Special { d, .. } | Op::ActiveMask { d } | Op::Match { d, .. } | Op::Reduce { d, .. } => {
                self.mark(*d, &ALL, active)
            }
            Op::Elect { d, flag, .. } => {
                if let Some(d) = d {
                    self.mark(*d, &ALL, active);
                }
                self.mark_flag(*flag, u32::MAX, active);
            }
            other => self.follow_flags(other, active),
        }
    }

    fn follow_flags(&mut self, op: &Op, active: u32) {
        use crate::ptx::instruction::{BarrierReduce, Vote};
        match op {
            Op::Compare { d, inverse, a, b, join, .. } => {
                let known = self.known(&[*a, *b], *join);
                for flag in [d, inverse].into_iter().flatten() {
                    self.mark_flag(*flag, known, active);
                }
            }
            Op::ComparePair { d, high, a, b, join, .. } => {
                let known = self.known(&[*a, *b], *join);
                self.mark_flag(*d, known, active);
                self.mark_flag(*high, known, active);
            }
            Op::Predicate { d, a, b, .. } => {
                let known = self.flag_defined(*a) & self.flag_defined(*b);
                self.mark_flag(*d, known, active);
            }
            Op::Vote { vote, flag, .. } => {
                let known = self.flag_defined(*flag);
                match vote {
                    Vote::Any(d) | Vote::All(d) | Vote::Uniform(d) => self.mark_flag(*d, known, active),
                    Vote::Ballot(d) => self.mark(*d, &ALL, active),
                }
            }
            Op::Barrier { reduce: Some((reduce, _)), .. } => match reduce {
                BarrierReduce::Count(d) => self.mark(*d, &ALL, active),
                BarrierReduce::And(d) | BarrierReduce::Or(d) => self.mark_flag(*d, u32::MAX, active),
            },
            Op::Shuffle { valid: Some(flag), .. } => self.mark_flag(*flag, u32::MAX, active),
            Op::IsSpace { d, a, .. } => {
                let known = !self.unset(*a);
                self.mark_flag(*d, known, active);
            }
            _ => {}
        }
        // `match.all` and carries give predicates that depend on rows already followed.
        if let Op::Match { all: Some(flag), .. } = op {
            self.mark_flag(*flag, u32::MAX, active);
        }
    }

    fn follow_rows(&mut self, d: RowIndex, sources: &[RowIndex], active: u32) {
        let mut set = ALL;
        for source in sources {
            for (set, from) in set.iter_mut().zip(&self.defined[*source as usize]) {
                *set = if *from == 0 { 0 } else { *set };
            }
        }
        self.mark(d, &set, active);
    }

    fn follow_pack(&mut self, d: RowIndex, parts: &[RowIndex], bits: u32, active: u32) {
        let bytes = bits / 8;
        let mut set = [0; LANES];
        for (index, part) in parts.iter().enumerate() {
            let field = u8::MAX >> (8 - bytes.clamp(1, 8));
            for (set, from) in set.iter_mut().zip(&self.defined[*part as usize]) {
                *set |= (from & field) << (bytes as usize * index);
            }
        }
        let width = bytes * u32::try_from(parts.len()).unwrap_or(4);
        self.mark(d, &set.map(|set| fill(set, width)), active);
    }

    fn known(&self, rows: &[RowIndex], join: Option<Join>) -> u32 {
        let rows = rows.iter().fold(u32::MAX, |known, row| known & !self.unset(*row));
        rows & join.map_or(u32::MAX, |join| self.flag_defined(join.with))
    }

    fn mark(&mut self, d: RowIndex, set: &[u8; LANES], active: u32) {
        for (lane, (target, set)) in self.defined[d as usize].iter_mut().zip(set).enumerate() {
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

/// The bits of `bytes` bytes; those above count as set where any of these is.
fn fill(set: u8, bytes: u32) -> u8 {
    let field = u8::MAX >> (8 - bytes.clamp(1, 8));
    if set & field == 0 { 0 } else { set | !field }
}
