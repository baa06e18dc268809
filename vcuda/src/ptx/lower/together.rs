//! Instructions that the lanes of a warp, or the warps of a block, carry out together.

use super::super::PtxError;
use super::super::instruction::{BarrierReduce, Flag, Op, Shuffle, Vote};
use super::super::opcode::Opcode;
use super::super::syntax::Operand;
use super::super::types::Type;
use super::Lowering;

impl<'a> Lowering<'a> {
    pub(super) fn together(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        match opcode.root {
            "bar" | "barrier" => self.barrier(opcode, operands),
            "activemask" => {
                let [d] = self.count::<1>(opcode, operands)?;
                let d = self.destination(d)?;
                self.emit(Op::ActiveMask { d })
            }
            _ => {
                if !opcode.take("sync") {
                    return Err(opcode.error(format!("`{}` without `.sync` is not supported", opcode.whole)));
                }
                match opcode.root {
                    "vote" => self.vote(opcode, operands),
                    "match" => self.matching(opcode, operands),
                    "shfl" => self.shuffle(opcode, operands),
                    "redux" => self.reduce(opcode, operands),
                    _ => self.elect(opcode, operands),
                }
            }
        }
    }

    fn barrier(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        opcode.take("cta");
        opcode.take("aligned");
        if opcode.take("warp") {
            opcode.take("sync");
            opcode.finish()?;
            let [mask] = self.count::<1>(opcode, operands)?;
            let mask = self.source(mask, Type::B32)?;
            return self.emit(Op::WarpBarrier { mask });
        }
        let kind = opcode.take_any(&["sync", "arrive", "red"]).ok_or_else(|| opcode.unsupported())?;
        let asked = opcode.take_any(&["popc", "and", "or"]);
        opcode.finish()?;
        let (d, operands) = match (kind, operands) {
            ("red", [d, rest @ ..]) => (Some(d), rest),
            _ => (None, operands),
        };
        let (operands, flag) = match (kind, operands) {
            ("red", [rest @ .., flag]) => (rest, Some(self.flag(flag)?)),
            _ => (operands, None),
        };
        let (id, count) = match operands {
            [id] => (self.source(id, Type::U32)?, None),
            [id, count] => (self.source(id, Type::U32)?, Some(self.source(count, Type::U32)?)),
            _ => return Err(opcode.unsupported()),
        };
        let reduce = match (asked, d, flag) {
            (Some("popc"), Some(d), Some(flag)) => Some((BarrierReduce::Count(self.destination(d)?), flag)),
            (Some("and"), Some(Operand::Name(d)), Some(flag)) => Some((BarrierReduce::And(self.flag_of(d)?), flag)),
            (Some("or"), Some(Operand::Name(d)), Some(flag)) => Some((BarrierReduce::Or(self.flag_of(d)?), flag)),
            (None, None, None) => None,
            _ => return Err(opcode.unsupported()),
        };
        let arrive = kind == "arrive";
        if arrive && count.is_none() {
            return Err(self.error("`bar.arrive` must give the number of threads"));
        }
        self.emit(Op::Barrier { id, count, reduce, arrive })
    }

    fn vote(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let mode = opcode.take_any(&["any", "all", "uni", "ballot"]).ok_or_else(|| opcode.unsupported())?;
        opcode.finish()?;
        let [d, flag, mask] = self.count::<3>(opcode, operands)?;
        let (flag, mask) = (self.flag(flag)?, self.source(mask, Type::B32)?);
        let vote = match (mode, d) {
            ("ballot", d) => Vote::Ballot(self.destination(d)?),
            ("any", Operand::Name(d)) => Vote::Any(self.flag_of(d)?),
            ("all", Operand::Name(d)) => Vote::All(self.flag_of(d)?),
            ("uni", Operand::Name(d)) => Vote::Uniform(self.flag_of(d)?),
            _ => return Err(opcode.unsupported()),
        };
        self.emit(Op::Vote { vote, flag, mask })
    }

    fn matching(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        let is_all = opcode.take_any(&["any", "all"]).ok_or_else(|| opcode.unsupported())? == "all";
        opcode.finish()?;
        let [d, a, mask] = self.count::<3>(opcode, operands)?;
        let (a, mask) = (self.source(a, kind)?, self.source(mask, Type::B32)?);
        let (d, all) = self.with_flag(d)?;
        self.emit(Op::Match { d, all, is_all, a, mask })
    }

    /// `d` or `d|p`.
    fn with_flag(&mut self, operand: &'a Operand<'a>) -> Result<(u32, Option<u32>), PtxError> {
        match operand {
            Operand::Pair(d, flag) => {
                let d = self.destination(&Operand::Name(d))?;
                Ok((d, if *flag == "_" { None } else { Some(self.flag_of(flag)?) }))
            }
            d => Ok((self.destination(d)?, None)),
        }
    }

    fn shuffle(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let shuffle = match opcode.take_any(&["idx", "up", "down", "bfly"]).ok_or_else(|| opcode.unsupported())? {
            "idx" => Shuffle::Index,
            "up" => Shuffle::Up,
            "down" => Shuffle::Down,
            _ => Shuffle::Butterfly,
        };
        opcode.finish()?;
        let [d, a, b, c, mask] = self.count::<5>(opcode, operands)?;
        let a = self.source(a, Type::B32)?;
        let (b, c, mask) = (self.source(b, Type::B32)?, self.source(c, Type::B32)?, self.source(mask, Type::B32)?);
        let (d, valid) = self.with_flag(d)?;
        self.emit(Op::Shuffle { shuffle, d, valid, a, b, c, mask })
    }

    fn reduce(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        let update = super::memory::update(opcode).ok_or_else(|| opcode.unsupported())?;
        opcode.finish()?;
        let [d, a, mask] = self.count::<3>(opcode, operands)?;
        let (a, mask) = (self.source(a, kind)?, self.source(mask, Type::B32)?);
        let d = self.destination(d)?;
        self.emit(Op::Reduce { update, kind, d, a, mask })
    }

    fn elect(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        opcode.finish()?;
        let [d, mask] = self.count::<2>(opcode, operands)?;
        let mask = self.source(mask, Type::B32)?;
        let Operand::Pair(d, flag) = d else { return Err(opcode.unsupported()) };
        let d = self.optional_destination(&Operand::Name(d))?;
        let flag = self.flag_of(flag)?;
        let _ = Flag::TRUE;
        self.emit(Op::Elect { d, flag, mask })
    }
}
