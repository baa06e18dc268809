//! Loads, stores, atomic operations, fences and addresses.

use super::super::PtxError;
use super::super::instruction::{Address, Constant, Float, Op, RowIndex, Update};
use super::super::opcode::Opcode;
use super::super::syntax::Operand;
use super::super::types::{LOCAL_WINDOW, Order, PARAMETER_WINDOW, SHARED_WINDOW, Scope, Space, Type};
use super::{Lowering, Symbol};
use crate::alu::integer;

impl<'a> Lowering<'a> {
    pub(super) fn memory(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        match opcode.root {
            "ld" | "ldu" => self.load(opcode, operands),
            "st" => self.store(opcode, operands),
            "atom" | "red" => self.atomic(opcode, operands),
            "fence" | "membar" => self.fence(opcode),
            "prefetch" | "prefetchu" => self.emit(Op::Nothing),
            "isspacep" => {
                let space = opcode.space();
                opcode.finish()?;
                let [d, a] = self.count::<2>(opcode, operands)?;
                let Operand::Name(name) = d else { return Err(opcode.unsupported()) };
                let (d, a) = (self.flag_of(name)?, self.source(a, Type::B64)?);
                self.emit(Op::IsSpace { space, d, a })
            }
            _ => self.convert_address(opcode, operands),
        }
    }

    /// An address operand; a variable's name tells its space where the opcode does not.
    fn address(&mut self, operand: &'a Operand<'a>, space: Space) -> Result<Address, PtxError> {
        let Operand::Address(name, offset) = operand else { return Err(self.error("expected an address in brackets")) };
        let Some(name) = name else {
            let base = self.value(0);
            return Ok(Address { base, offset: *offset, space });
        };
        let named = self.space_of(name);
        let space = match (space, named) {
            // A parameter of a function in line lies in local memory.
            (Space::Generic | Space::Parameter, Some(named)) => named,
            _ => space,
        };
        if let Some(Symbol::Register(base, _)) = self.find(name) {
            return Ok(Address { base, offset: *offset, space });
        }
        if let (Some(frame), Some(Symbol::Local(at))) = (self.frame, self.find(name)) {
            return Ok(Address { base: frame, offset: i64::from(at).wrapping_add(*offset), space });
        }
        let base = self.address_of(name, *offset)?;
        Ok(Address { base, offset: 0, space })
    }

    fn parts(&mut self, operand: &'a Operand<'a>) -> &'a [Operand<'a>] {
        match operand {
            Operand::Vector(parts) => parts,
            single => std::slice::from_ref(single),
        }
    }

    fn vector_length(opcode: &mut Opcode<'_>) -> usize {
        match opcode.take_any(&["v2", "v4"]) {
            Some("v2") => 2,
            Some(_) => 4,
            None => 1,
        }
    }

    fn load(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        let space = opcode.space();
        let order = opcode.order(Order::Weak);
        opcode.cache_hints();
        let length = Self::vector_length(opcode);
        opcode.finish()?;
        let [d, address] = self.count::<2>(opcode, operands)?;
        let parts = self.parts(d);
        if parts.len() != length {
            return Err(self.error(format!("`{}` loads {length} registers, got {}", opcode.whole, parts.len())));
        }
        let address = self.address(address, space)?;
        let mut to = Vec::new();
        let mut register_bits = kind.bits();
        for part in parts {
            if *part == Operand::Name("_") {
                to.push(None);
                continue;
            }
            let (row, register) = self.register_of(part)?;
            register_bits = register.bits();
            to.push(Some(row));
        }
        if register_bits < kind.bits() {
            return Err(self.error(format!("`{}` loads more bits than its register has", opcode.whole)));
        }
        if let (Space::Parameter, Operand::Address(Some(name), offset)) = (address.space, &operands[1])
            && let Some(Symbol::Parameter(at)) = self.find(name)
        {
            let first = i64::from(at) + offset;
            return self.load_parameters(&to, kind, register_bits, first);
        }
        self.emit(Op::Load { to, kind, register_bits, order, address })
    }

    /// A parameter at a known place is a constant of the launch.
    fn load_parameters(&mut self, to: &[Option<RowIndex>], kind: Type, bits: u32, first: i64) -> Result<(), PtxError> {
        let bytes = kind.bytes();
        for (index, d) in to.iter().enumerate() {
            let at = first + i64::try_from(index).expect("at most four") * i64::from(bytes);
            let Some(d) = *d else { continue };
            let Ok(offset) = u32::try_from(at) else { return Err(self.error("a parameter is read before its start")) };
            let a = self.constant(Constant::Parameter { offset, bytes, signed: kind.is_signed(), bits });
            self.emit(Op::Move { d, a })?;
        }
        Ok(())
    }

    fn store(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        let space = opcode.space();
        let order = opcode.order(Order::Weak);
        opcode.cache_hints();
        let length = Self::vector_length(opcode);
        opcode.finish()?;
        let [address, value] = self.count::<2>(opcode, operands)?;
        let parts = self.parts(value);
        if parts.len() != length {
            return Err(self.error(format!("`{}` stores {length} registers, got {}", opcode.whole, parts.len())));
        }
        let address = self.address(address, space)?;
        if matches!(address.space, Space::Parameter | Space::Constant) {
            return Err(self.error("parameters of a kernel and `.const` variables are read only"));
        }
        let mut from = Vec::new();
        for part in parts {
            from.push(self.source(part, kind)?);
        }
        self.emit(Op::Store { from, kind, order, address })
    }

    fn atomic(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let kind = opcode.kind()?;
        let space = opcode.space();
        let order = opcode.order(Order::Relaxed(Scope::Gpu));
        opcode.cache_hints();
        let update = update(opcode).ok_or_else(|| opcode.unsupported())?;
        opcode.finish()?;
        if !atomic_exists(update, kind) {
            return Err(opcode.unsupported());
        }
        let (d, rest) = match (opcode.root, operands) {
            ("atom", [d, rest @ ..]) => (self.optional_destination(d)?, rest),
            _ => (None, operands),
        };
        let exchange = update == Update::CompareExchange;
        let (address, b, c) = match rest {
            [address, b] if !exchange => (address, b, b),
            [address, b, c] if exchange => (address, b, c),
            _ => return Err(opcode.unsupported()),
        };
        let address = self.address(address, space)?;
        let (b, c) = (self.source(b, kind)?, self.source(c, kind)?);
        self.emit(Op::Atomic { update, d, kind, order, address, b, c })
    }

    fn fence(&mut self, opcode: &mut Opcode<'_>) -> Result<(), PtxError> {
        if opcode.root == "membar" {
            // `membar` is the sequentially consistent fence of its level.
            let scope = match opcode.take_any(&["cta", "gl", "sys"]) {
                Some("cta") => Scope::Block,
                Some("gl") => Scope::Gpu,
                Some(_) => Scope::System,
                None => return Err(opcode.unsupported()),
            };
            opcode.finish()?;
            return self.emit(Op::Fence { scope, sequential: true });
        }
        let sequential = match opcode.take_any(&["sc", "acq_rel"]) {
            Some("sc") => true,
            Some(_) => false,
            None => return Err(opcode.unsupported()),
        };
        let scope = opcode.scope().ok_or_else(|| opcode.unsupported())?;
        opcode.finish()?;
        self.emit(Op::Fence { scope, sequential })
    }

    /// `cvta`: between an address in a space and a generic one. Global addresses are their own generic ones.
    fn convert_address(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        let to = opcode.take("to");
        let space = opcode.space();
        opcode.finish()?;
        let [d, a] = self.count::<2>(opcode, operands)?;
        let (a, d) = (self.source(a, Type::B64)?, self.destination(d)?);
        let window = match space {
            Space::Shared => SHARED_WINDOW,
            Space::Local => LOCAL_WINDOW,
            Space::Parameter => PARAMETER_WINDOW,
            Space::Generic => return Err(opcode.unsupported()),
            Space::Global | Space::Constant => return self.emit(Op::Move { d, a }),
        };
        let Some(run) = integer::binary(if to { "sub" } else { "add" }, Type::U64) else {
            return Err(opcode.unsupported());
        };
        let b = self.value(window);
        self.emit(Op::Binary { run, d, a, b, float: Float::default() })
    }
}

/// The operation of `atom`, `red` and `redux`.
pub(super) fn update(opcode: &mut Opcode<'_>) -> Option<Update> {
    Some(match opcode.take_any(&["add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"])? {
        "add" => Update::Add,
        "min" => Update::Min,
        "max" => Update::Max,
        "and" => Update::And,
        "or" => Update::Or,
        "xor" => Update::Xor,
        "exch" => Update::Exchange,
        "cas" => Update::CompareExchange,
        "inc" => Update::Increment,
        _ => Update::Decrement,
    })
}

fn atomic_exists(update: Update, kind: Type) -> bool {
    use Type::{B16, B32, B64, Bf16, Bf16x2, F16, F16x2, F32, F64, S32, S64, U32, U64};
    match update {
        Update::Add => matches!(kind, U32 | S32 | U64 | S64 | F32 | F64 | F16 | F16x2 | Bf16 | Bf16x2),
        Update::Min | Update::Max => matches!(kind, U32 | S32 | U64 | S64),
        Update::And | Update::Or | Update::Xor => matches!(kind, B32 | B64 | U32 | U64 | S32 | S64),
        Update::Exchange => matches!(kind, B32 | B64 | U32 | U64 | S32 | F32 | F64 | S64),
        Update::CompareExchange => matches!(kind, B16 | B32 | B64 | U32 | U64 | S32 | S64),
        Update::Increment | Update::Decrement => kind == U32,
    }
}
