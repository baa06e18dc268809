//! Moves, jumps and ends.

use super::super::PtxError;
use super::super::instruction::{Flag, Logic, Op, Special};
use super::super::opcode::Opcode;
use super::super::syntax::Operand;
use super::super::types::Type;
use super::calls::Ending;
use super::{Lowering, Symbol};

impl<'a> Lowering<'a> {
    pub(super) fn control(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        opcode.take("uni");
        match opcode.root {
            "mov" => return self.mov(opcode, operands),
            "bra" => {
                opcode.finish()?;
                let [Operand::Name(name)] = operands else { return Err(opcode.unsupported()) };
                let target = self.label_of(name)?;
                return self.emit(Op::Jump { target });
            }
            "brx" => return self.table(opcode, operands),
            "call" => return self.call(opcode, operands),
            "nanosleep" => return self.emit(Op::Pause),
            "griddepcontrol" => return self.emit(Op::Nothing),
            "trap" | "brkpt" => return self.emit(Op::Trap),
            _ => {}
        }
        opcode.finish()?;
        match (opcode.root, self.calls.last().map(|(_, ending)| *ending)) {
            ("ret", Some(Ending::Jump(end))) => {
                let target = self.target(end)?;
                self.emit(Op::Jump { target })
            }
            ("ret", Some(Ending::Return)) => self.emit(Op::Return),
            _ => self.emit(Op::Exit),
        }
    }

    fn label_of(&mut self, name: &'a str) -> Result<u32, PtxError> {
        match self.known(name)? {
            Symbol::Label(label) => self.target(label),
            _ => Err(self.error(format!("`{name}` is no label"))),
        }
    }

    fn table(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        opcode.take("idx");
        opcode.finish()?;
        let [index, Operand::Name(list)] = self.count::<2>(opcode, operands)? else { return Err(opcode.unsupported()) };
        let index = self.source(index, Type::U32)?;
        let found = self.scopes.iter().rev().find_map(|scope| scope.targets.get(list).cloned());
        let Some(names) = found else { return Err(self.error(format!("`{list}` is no list of branch targets"))) };
        let mut targets = Vec::new();
        for name in names {
            targets.push(self.label_of(name)?);
        }
        self.emit(Op::JumpTable { index, targets })
    }

    fn mov(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        opcode.finish()?;
        let [d, a] = self.count::<2>(opcode, operands)?;
        if kind == Type::Pred {
            let a = self.flag(a)?;
            return self.predicate(d, Logic::And, a, Flag::TRUE);
        }
        match (d, a) {
            (Operand::Vector(parts), Operand::Vector(_)) => {
                Err(self.error(format!("`{}` of {} parts to parts is not supported", opcode.whole, parts.len())))
            }
            (Operand::Vector(parts), a) => {
                let bits = self.part_bits(parts.len(), kind)?;
                let a = self.source(a, kind)?;
                let mut rows = Vec::new();
                for part in parts {
                    rows.push(self.optional_destination(part)?);
                }
                self.emit(Op::Unpack { parts: rows, a, bits })
            }
            (d, Operand::Vector(parts)) => {
                let bits = self.part_bits(parts.len(), kind)?;
                let mut rows = Vec::new();
                for part in parts {
                    rows.push(self.source(part, kind)?);
                }
                let d = self.destination(d)?;
                self.emit(Op::Pack { d, parts: rows, bits })
            }
            (d, a) => {
                let d = self.destination(d)?;
                if let Operand::Name(name) = a
                    && let Some((which, bits)) = special(name)
                {
                    return self.emit(Op::Special { d, which, bits });
                }
                let a = self.source(a, kind)?;
                self.emit(Op::Move { d, a })
            }
        }
    }

    fn part_bits(&self, parts: usize, kind: Type) -> Result<u32, PtxError> {
        match (parts, kind.bits()) {
            (2, bits @ (16 | 32 | 64)) => Ok(bits / 2),
            (4, bits @ (32 | 64)) => Ok(bits / 4),
            (parts, bits) => Err(self.error(format!("{bits} bits cannot be split in {parts} parts"))),
        }
    }
}

/// The special register of this name, and its width.
pub(super) fn special(name: &str) -> Option<(Special, u32)> {
    let axis = |name: &str| ["x", "y", "z"].iter().position(|axis| *axis == name);
    if let Some((register, component)) = name.split_once('.') {
        let axis = axis(component)?;
        return Some(match register {
            "%tid" => (Special::Thread(axis), 32),
            "%ntid" => (Special::BlockSize(axis), 32),
            "%ctaid" => (Special::BlockIndex(axis), 32),
            "%nctaid" => (Special::GridSize(axis), 32),
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => (Special::Lane, 32),
        "%warpid" => (Special::Warp, 32),
        "%nwarpid" => (Special::Warps, 32),
        "%smid" => (Special::Multiprocessor, 32),
        "%nsmid" => (Special::Multiprocessors, 32),
        "%gridid" => (Special::GridId, 64),
        "%lanemask_eq" => (Special::LanesEqual, 32),
        "%lanemask_lt" => (Special::LanesBelow, 32),
        "%lanemask_le" => (Special::LanesBelowOrEqual, 32),
        "%lanemask_gt" => (Special::LanesAbove, 32),
        "%lanemask_ge" => (Special::LanesAboveOrEqual, 32),
        "%clock" => (Special::Clock, 32),
        "%clock_hi" => (Special::ClockHigh, 32),
        "%clock64" => (Special::Clock64, 64),
        "%globaltimer" => (Special::GlobalTimer, 64),
        "%globaltimer_lo" => (Special::GlobalTimerLow, 32),
        "%globaltimer_hi" => (Special::GlobalTimerHigh, 32),
        "%dynamic_smem_size" => (Special::DynamicSharedBytes, 32),
        "%total_smem_size" => (Special::TotalSharedBytes, 32),
        "%envreg1" | "%envreg2" => (Special::Zero, 32),
        _ => return None,
    })
}
