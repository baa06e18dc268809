//! Arithmetic, comparisons and conversions.

use super::super::PtxError;
use super::super::instruction::{Flag, Float, Join, Logic, Op, RowIndex};
use super::super::opcode::Opcode;
use super::super::syntax::Operand;
use super::super::types::{Class, Type};
use super::Lowering;
use crate::alu::convert::Conversion;
use crate::alu::formats::Round;
use crate::alu::integer::Part;
use crate::alu::{Test, float, integer, packed};

impl<'a> Lowering<'a> {
    pub(super) fn arithmetic(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let sets_carry = matches!(opcode.root, "add" | "sub") && opcode.take("cc");
        match opcode.root {
            "setp" | "set" | "testp" => self.comparison(opcode, operands),
            "selp" => self.select_by_flag(opcode, operands),
            "cvt" => self.conversion(opcode, operands),
            "bfi" | "lop3" => self.bits(opcode, operands),
            "dp2a" | "dp4a" => self.dot_product(opcode, operands),
            "slct" => self.select_by_sign(opcode, operands),
            "addc" | "subc" | "madc" => self.with_carry(opcode, operands),
            "add" | "sub" if sets_carry => self.carry(opcode, operands, None, true),
            "and" | "or" | "xor" | "not" if opcode.types == [Type::Pred] => self.predicates(opcode, operands),
            _ => match opcode.kind()?.class() {
                Class::Float => self.floats(opcode, operands),
                Class::Packed if !matches!(opcode.kind()?, Type::U16x2 | Type::S16x2) => self.pairs(opcode, operands),
                Class::Bits | Class::Unsigned | Class::Signed | Class::Packed => self.integers(opcode, operands),
                Class::Predicate => Err(opcode.unsupported()),
            },
        }
    }

    fn two(&mut self, operands: &'a [Operand<'a>; 3], kind: Type) -> Result<(RowIndex, RowIndex, RowIndex), PtxError> {
        let a = self.source(&operands[1], kind)?;
        let b = self.source(&operands[2], kind)?;
        Ok((self.destination(&operands[0])?, a, b))
    }

    fn three(
        &mut self,
        operands: &'a [Operand<'a>; 4],
        kinds: [Type; 3],
    ) -> Result<(RowIndex, [RowIndex; 3]), PtxError> {
        let mut abc = [0; 3];
        for (index, kind) in kinds.into_iter().enumerate() {
            abc[index] = self.source(&operands[index + 1], kind)?;
        }
        Ok((self.destination(&operands[0])?, abc))
    }

    fn integers(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        let float = Float::default();
        match opcode.root {
            "mul" | "mad" | "mul24" | "mad24" => self.products(opcode, operands),
            "not" | "neg" | "abs" | "cnot" | "brev" | "popc" | "clz" | "bfind" => {
                let name = if opcode.take("shiftamt") { "bfind.shiftamt" } else { opcode.root };
                let run = integer::unary(name, kind).ok_or_else(|| opcode.unsupported())?;
                opcode.finish()?;
                let [d, a] = self.count::<2>(opcode, operands)?;
                let (a, d) = (self.source(a, kind)?, self.destination(d)?);
                self.emit(Op::Unary { run, d, a, float })
            }
            "prmt" | "shf" | "sad" | "bfe" | "fns" => self.ternary_integers(opcode, operands),
            _ => {
                let name = match (opcode.root, opcode.take("sat")) {
                    ("add", true) => "add.sat",
                    ("sub", true) => "sub.sat",
                    (_, true) => return Err(opcode.unsupported()),
                    (root, false) => root,
                };
                let run = integer::binary(name, kind).ok_or_else(|| opcode.unsupported())?;
                opcode.finish()?;
                let operands = self.count::<3>(opcode, operands)?;
                if matches!(opcode.root, "shl" | "shr") {
                    let (a, b) = (self.source(&operands[1], kind)?, self.source(&operands[2], Type::B32)?);
                    let d = self.destination(&operands[0])?;
                    return self.emit(Op::Binary { run, d, a, b, float });
                }
                let (d, a, b) = self.two(operands, kind)?;
                self.emit(Op::Binary { run, d, a, b, float })
            }
        }
    }

    fn products(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        let part = match opcode.take_any(&["lo", "hi", "wide"]) {
            Some("hi") => Part::High,
            Some("wide") => Part::Wide,
            Some(_) => Part::Low,
            None => return Err(opcode.unsupported()),
        };
        let carry_out = opcode.root == "mad" && opcode.take("cc");
        opcode.finish()?;
        let float = Float::default();
        if opcode.root == "mul24" {
            let run = integer::multiply_24(part, kind).ok_or_else(|| opcode.unsupported())?;
            let (d, a, b) = self.two(self.count::<3>(opcode, operands)?, kind)?;
            return self.emit(Op::Binary { run, d, a, b, float });
        }
        if opcode.root == "mad24" {
            let run = integer::multiply_add_24(part, kind).ok_or_else(|| opcode.unsupported())?;
            let (d, abc) = self.three(self.count::<4>(opcode, operands)?, [kind; 3])?;
            return self.emit(Op::Ternary { run, d, abc, float });
        }
        if opcode.root == "mul" {
            let run = integer::multiply(part, kind).ok_or_else(|| opcode.unsupported())?;
            let operands = self.count::<3>(opcode, operands)?;
            let (d, a, b) = self.two(operands, kind)?;
            return self.emit(Op::Binary { run, d, a, b, float });
        }
        let operands = self.count::<4>(opcode, operands)?;
        if carry_out {
            return self.multiply_with_carry(part, kind, operands, (None, true));
        }
        let run = integer::multiply_add(part, kind).ok_or_else(|| opcode.unsupported())?;
        let wide = if part == Part::Wide { widened(kind) } else { kind };
        let (d, abc) = self.three(operands, [kind, kind, wide])?;
        self.emit(Op::Ternary { run, d, abc, float })
    }

    fn dot_product(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let half = if opcode.root == "dp2a" { opcode.take_any(&["lo", "hi"]) } else { Some("") };
        let [a, b] = opcode.types[..] else { return Err(opcode.unsupported()) };
        let name = format!("{}.{}", opcode.root, half.ok_or_else(|| opcode.unsupported())?);
        let run = integer::dot_product(&name, a, b).ok_or_else(|| opcode.unsupported())?;
        opcode.finish()?;
        let (d, abc) = self.three(self.count::<4>(opcode, operands)?, [a, b, Type::B32])?;
        self.emit(Op::Ternary { run, d, abc, float: Float::default() })
    }

    fn ternary_integers(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        let name = match opcode.root {
            "prmt" => opcode
                .take_any(&["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"])
                .map_or("prmt".into(), |mode| format!("prmt.{mode}")),
            "shf" => {
                let side = opcode.take_any(&["l", "r"]).ok_or_else(|| opcode.unsupported())?;
                let mode = opcode.take_any(&["wrap", "clamp"]).ok_or_else(|| opcode.unsupported())?;
                format!("shf.{side}.{mode}")
            }
            root => root.to_owned(),
        };
        let run = integer::ternary(&name, kind).ok_or_else(|| opcode.unsupported())?;
        opcode.finish()?;
        let operands = self.count::<4>(opcode, operands)?;
        let kinds = if opcode.root == "bfe" { [kind, Type::B32, Type::B32] } else { [kind, kind, kind] };
        let (d, abc) = self.three(operands, kinds)?;
        self.emit(Op::Ternary { run, d, abc, float: Float::default() })
    }

    fn bits(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        opcode.finish()?;
        let [d, a, b, c, e] = self.count::<5>(opcode, operands)?;
        if opcode.root == "bfi" {
            let (value, into) = (self.source(a, kind)?, self.source(b, kind)?);
            let (position, length) = (self.source(c, Type::B32)?, self.source(e, Type::B32)?);
            let d = self.destination(d)?;
            return self.emit(Op::Insert { d, value, into, position, length, width: kind.bits() });
        }
        let abc = [self.source(a, kind)?, self.source(b, kind)?, self.source(c, kind)?];
        let Operand::Number(super::super::text::Number::Integer(table @ 0..=255)) = e else {
            return Err(self.error("the table of `lop3` must be a number from 0 to 255"));
        };
        let table = u8::try_from(*table).expect("the pattern bounds it");
        let d = self.destination(d)?;
        self.emit(Op::Logic3 { d, abc, table })
    }

    fn carry_flag(&mut self) -> u32 {
        match self.carry {
            Some(flag) => flag,
            None => {
                let flag = self.flag_row();
                self.carry = Some(flag);
                flag
            }
        }
    }

    fn with_carry(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let out = opcode.take("cc");
        let carry = self.carry_flag();
        if opcode.root != "madc" {
            return self.carry(opcode, operands, Some(carry), out);
        }
        let kind = opcode.kind()?;
        let part = match opcode.take_any(&["lo", "hi"]) {
            Some("hi") => Part::High,
            Some(_) => Part::Low,
            None => return Err(opcode.unsupported()),
        };
        opcode.finish()?;
        let operands = self.count::<4>(opcode, operands)?;
        self.multiply_with_carry(part, kind, operands, (Some(carry), out))
    }

    fn carry(
        &mut self,
        opcode: &Opcode<'_>,
        operands: &'a [Operand<'a>],
        carry_in: Option<u32>,
        out: bool,
    ) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        opcode.finish()?;
        let (d, a, b) = self.two(self.count::<3>(opcode, operands)?, kind)?;
        let carry_out = if out { Some(self.carry_flag()) } else { None };
        let subtract = opcode.root.starts_with("sub");
        self.emit(Op::Carry { d, a, b, bits: kind.bits(), subtract, carry_in, carry_out })
    }

    fn multiply_with_carry(
        &mut self,
        part: Part,
        kind: Type,
        operands: &'a [Operand<'a>; 4],
        (carry_in, out): (Option<u32>, bool),
    ) -> Result<(), PtxError> {
        let Some(run) = integer::multiply(part, kind) else { return Err(self.error("this product is not supported")) };
        let (d, [a, b, c]) = self.three(operands, [kind; 3])?;
        let product = self.row();
        self.emit(Op::Binary { run, d: product, a, b, float: Float::default() })?;
        let carry_out = if out { Some(self.carry_flag()) } else { None };
        self.emit(Op::Carry { d, a: product, b: c, bits: kind.bits(), subtract: false, carry_in, carry_out })
    }

    fn predicates(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        opcode.finish()?;
        if opcode.root == "not" {
            let [d, a] = self.count::<2>(opcode, operands)?;
            let mut a = self.flag(a)?;
            a.negated = !a.negated;
            return self.predicate(d, Logic::And, a, Flag::TRUE);
        }
        let [d, a, b] = self.count::<3>(opcode, operands)?;
        let logic = match opcode.root {
            "and" => Logic::And,
            "or" => Logic::Or,
            _ => Logic::Xor,
        };
        let (a, b) = (self.flag(a)?, self.flag(b)?);
        self.predicate(d, logic, a, b)
    }

    pub(super) fn predicate(&mut self, d: &Operand<'a>, logic: Logic, a: Flag, b: Flag) -> Result<(), PtxError> {
        let Operand::Name(name) = d else { return Err(self.error("expected a predicate")) };
        let d = self.flag_of(name)?;
        self.emit(Op::Predicate { logic, d, a, b })
    }

    fn floats(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        let round = opcode.round().unwrap_or(Round::Nearest);
        let flush = opcode.take("ftz") && kind == Type::F32;
        let saturate = if opcode.take("sat") { Some(kind) } else { None };
        let float = Float { flush, saturate };
        let approximate = opcode.take("approx");
        match opcode.root {
            "fma" | "mad" => {
                let run = float::multiply_add(kind, round, opcode.take("relu")).ok_or_else(|| opcode.unsupported())?;
                opcode.finish()?;
                let (d, abc) = self.three(self.count::<4>(opcode, operands)?, [kind; 3])?;
                self.emit(Op::Ternary { run, d, abc, float })
            }
            "add" | "sub" | "mul" | "div" | "min" | "max" | "copysign" => {
                let full = opcode.take("full");
                let name = match (opcode.root, approximate || full, opcode.take("NaN")) {
                    ("div", true, false) => "div.approx",
                    ("min", false, true) => "min.NaN",
                    ("max", false, true) => "max.NaN",
                    (root, false, false) => root,
                    _ => return Err(opcode.unsupported()),
                };
                let run = float::binary(name, kind, round).ok_or_else(|| opcode.unsupported())?;
                opcode.finish()?;
                let (d, a, b) = self.two(self.count::<3>(opcode, operands)?, kind)?;
                self.emit(Op::Binary { run, d, a, b, float })
            }
            _ => {
                let run = float::unary(opcode.root, kind, round).ok_or_else(|| opcode.unsupported())?;
                opcode.finish()?;
                let [d, a] = self.count::<2>(opcode, operands)?;
                let (a, d) = (self.source(a, kind)?, self.destination(d)?);
                self.emit(Op::Unary { run, d, a, float })
            }
        }
    }

    fn pairs(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        opcode.take("rn");
        opcode.take("ftz");
        let float = Float::default();
        match opcode.root {
            "fma" => {
                let run = packed::multiply_add(kind).ok_or_else(|| opcode.unsupported())?;
                opcode.finish()?;
                let (d, abc) = self.three(self.count::<4>(opcode, operands)?, [kind; 3])?;
                self.emit(Op::Ternary { run, d, abc, float })
            }
            "neg" | "abs" => {
                let run = packed::unary(opcode.root, kind).ok_or_else(|| opcode.unsupported())?;
                opcode.finish()?;
                let [d, a] = self.count::<2>(opcode, operands)?;
                let (a, d) = (self.source(a, kind)?, self.destination(d)?);
                self.emit(Op::Unary { run, d, a, float })
            }
            _ => {
                let name = if opcode.take("NaN") { format!("{}.NaN", opcode.root) } else { opcode.root.to_owned() };
                let run = packed::binary(&name, kind).ok_or_else(|| opcode.unsupported())?;
                opcode.finish()?;
                let (d, a, b) = self.two(self.count::<3>(opcode, operands)?, kind)?;
                self.emit(Op::Binary { run, d, a, b, float })
            }
        }
    }

    fn join(&mut self, logic: Option<Logic>, operand: Option<&Operand<'a>>) -> Result<Option<Join>, PtxError> {
        match (logic, operand) {
            (None, None) => Ok(None),
            (Some(logic), Some(operand)) => Ok(Some(Join { logic, with: self.flag(operand)? })),
            _ => Err(self.error("a comparison joined with a predicate takes one operand more")),
        }
    }

    fn test(&self, opcode: &mut Opcode<'_>, kind: Type) -> Result<Test, PtxError> {
        let name = opcode.take_first().ok_or_else(|| opcode.unsupported())?;
        let found = match kind.class() {
            Class::Float if opcode.root == "testp" => float::property(name, kind),
            Class::Float => float::compare(name, kind),
            Class::Packed => packed::compare(name, kind),
            Class::Bits | Class::Unsigned | Class::Signed => integer::compare(name, kind),
            Class::Predicate => None,
        };
        found.ok_or_else(|| opcode.unsupported())
    }

    fn comparison(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = *opcode.types.last().ok_or_else(|| opcode.unsupported())?;
        let flush = opcode.take("ftz") && kind == Type::F32;
        let run = self.test(opcode, kind)?;
        let logic = opcode.take_any(&["and", "or", "xor"]).map(|word| match word {
            "and" => Logic::And,
            "or" => Logic::Or,
            _ => Logic::Xor,
        });
        opcode.finish()?;
        let [d, a, rest @ ..] = operands else { return Err(opcode.unsupported()) };
        let a_row = self.source(a, kind)?;
        if opcode.root == "testp" {
            let Operand::Name(name) = d else { return Err(opcode.unsupported()) };
            let d = Some(self.flag_of(name)?);
            return self.emit(Op::Compare { run, d, inverse: None, a: a_row, b: a_row, join: None, flush });
        }
        let [b, rest @ ..] = rest else { return Err(opcode.unsupported()) };
        let b = self.source(b, kind)?;
        let join = self.join(logic, rest.first())?;
        if opcode.root == "set" {
            let yes = match opcode.types[0] {
                Type::F32 => u64::from(1f32.to_bits()),
                Type::U32 | Type::S32 => 0xffff_ffff,
                _ => return Err(opcode.unsupported()),
            };
            let d = self.destination(d)?;
            return self.emit(Op::Set { run, d, a: a_row, b, join, yes, flush });
        }
        match d {
            Operand::Pair(first, second) if kind.class() == Class::Packed => {
                let (d, high) = (self.flag_of(first)?, self.flag_of(second)?);
                self.emit(Op::ComparePair { run, d, high, a: a_row, b, join })
            }
            Operand::Pair(first, second) => {
                let d = if *first == "_" { None } else { Some(self.flag_of(first)?) };
                let inverse = if *second == "_" { None } else { Some(self.flag_of(second)?) };
                self.emit(Op::Compare { run, d, inverse, a: a_row, b, join, flush })
            }
            Operand::Name(name) => {
                let d = Some(self.flag_of(name)?);
                self.emit(Op::Compare { run, d, inverse: None, a: a_row, b, join, flush })
            }
            _ => Err(self.error("expected a predicate")),
        }
    }

    fn select_by_flag(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        opcode.finish()?;
        let [d, a, b, flag] = self.count::<4>(opcode, operands)?;
        if kind == Type::Pred {
            return Err(opcode.unsupported());
        }
        let (a, b) = (self.source(a, kind)?, self.source(b, kind)?);
        let flag = self.flag(flag)?;
        let d = self.destination(d)?;
        self.emit(Op::Select { d, a, b, flag })
    }

    fn select_by_sign(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        opcode.take("ftz");
        let [kind, by] = opcode.types[..] else { return Err(opcode.unsupported()) };
        let name = if by == Type::F32 { "slct.f32" } else { "slct.s32" };
        let run = integer::ternary(name, kind).ok_or_else(|| opcode.unsupported())?;
        opcode.finish()?;
        let (d, abc) = self.three(self.count::<4>(opcode, operands)?, [kind, kind, by])?;
        self.emit(Op::Ternary { run, d, abc, float: Float::default() })
    }

    fn conversion(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let [to, from] = opcode.types[..] else { return Err(opcode.unsupported()) };
        let whole = opcode.round_whole();
        let round = opcode.round();
        let flush = opcode.take("ftz");
        let saturate = opcode.take("sat");
        if to.class() == Class::Packed || from.class() == Class::Packed {
            return self.packed_conversion(opcode, operands, round.unwrap_or(Round::Nearest));
        }
        opcode.finish()?;
        let [d, a] = self.count::<2>(opcode, operands)?;
        let a = self.source(a, from)?;
        let (d, register) = self.register_of(d)?;
        let conversion = Conversion {
            to,
            from,
            round: whole.or(round).unwrap_or(if from.class() == Class::Float && to.class() != Class::Float {
                Round::Zero
            } else {
                Round::Nearest
            }),
            whole: whole.is_some(),
            saturate,
            flush,
        };
        match conversion.fast() {
            Some(run) => self.emit(Op::Unary { run, d, a, float: Float::default() })?,
            None => self.emit(Op::Convert { conversion, d, a })?,
        }
        if register.bits() > to.bits() && to.is_signed() {
            self.emit(Op::Extend { d, a: d, from: to.bits(), to: register.bits(), signed: true })?;
        }
        Ok(())
    }

    fn packed_conversion(
        &mut self,
        opcode: &mut Opcode<'_>,
        operands: &'a [Operand<'a>],
        round: Round,
    ) -> Result<(), PtxError> {
        let [to, from] = opcode.types[..] else { return Err(opcode.unsupported()) };
        let float = Float::default();
        let eight = matches!(to, Type::E4m3x2 | Type::E5m2x2);
        if eight && !opcode.take("satfinite") {
            return Err(opcode.unsupported());
        }
        opcode.finish()?;
        if from == Type::F32 {
            let run = packed::pack(to, round).ok_or_else(|| opcode.unsupported())?;
            let (d, a, b) = self.two(self.count::<3>(opcode, operands)?, from)?;
            return self.emit(Op::Binary { run, d, a, b, float });
        }
        let run = packed::repack(to, from).ok_or_else(|| opcode.unsupported())?;
        let [d, a] = self.count::<2>(opcode, operands)?;
        let (a, d) = (self.source(a, from)?, self.destination(d)?);
        self.emit(Op::Unary { run, d, a, float })
    }
}

fn widened(kind: Type) -> Type {
    match kind {
        Type::U16 => Type::U32,
        Type::S16 => Type::S32,
        Type::U32 => Type::U64,
        Type::S32 => Type::S64,
        other => other,
    }
}
