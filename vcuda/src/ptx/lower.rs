//! From the grammar to instructions: names become rows, labels positions, and calls the called function's own text.

mod arithmetic;
pub(crate) mod calls;
mod control;
mod memory;
mod together;

use super::instruction::{Constant, Flag, Instruction, Op, Program, Routine as Framing, RowIndex};
use super::opcode::Opcode;
use super::syntax::{File, Line, Operand, Routine, Statement, Variable};
use super::text::Number;
use super::types::{Space, Type};
use super::{Function, Parameter, PtxError};
use calls::{Ending, Framed, Signature};
use std::collections::HashMap;

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
enum Symbol {
    Register(RowIndex, Type),
    Flag(u32),
    Local(u32),
    Shared(u32),
    /// Shared memory whose size the launch gives.
    DynamicShared,
    /// A variable of the module.
    Global {
        constant: bool,
    },
    /// A parameter of the kernel: its offset.
    Parameter(u32),
    Label(usize),
    /// A function of the module, with its address.
    Function(u64),
}

/// Names of one pair of braces.
#[derive(Debug, Default)]
struct Scope<'a> {
    symbols: HashMap<&'a str, Symbol>,
    /// `%r<5>`: the prefix, its type and how many there are.
    families: HashMap<&'a str, (Type, u64)>,
    targets: HashMap<&'a str, Vec<&'a str>>,
    prototypes: HashMap<&'a str, Signature<'a>>,
}

/// Lowers one kernel.
struct Lowering<'a> {
    file: &'a File<'a>,
    scopes: Vec<Scope<'a>>,
    code: Vec<Instruction>,
    rows: u32,
    predicates: u32,
    constants: HashMap<Constant, RowIndex>,
    labels: Vec<Option<u32>>,
    local_bytes: u32,
    shared_bytes: u32,
    module_shared: HashMap<&'a str, u32>,
    carry: Option<u32>,
    /// The functions being lowered, innermost last, and where their `ret` goes.
    calls: Vec<(&'a str, Ending)>,
    /// Functions with frames, in the order in which they were asked for.
    framed: Vec<Framed<'a>>,
    /// The row with the frame's address, in a function that has one.
    frame: Option<RowIndex>,
    /// Whether a function is called by its address.
    calls_addresses: bool,
    line: u32,
    guard: Flag,
}

/// Most instructions of a kernel after its functions were put in line.
const INSTRUCTIONS: usize = 1 << 20;
/// Most local memory a thread, as on hardware.
const LOCAL_BYTES: u64 = 512 << 10;
/// Most shared memory of a block on any architecture so far.
const SHARED_BYTES: u64 = 227 << 10;

/// Makes a [`Function`] of a kernel.
pub(super) fn kernel<'a>(file: &'a File<'a>, routine: &'a Routine<'a>) -> Result<Function, PtxError> {
    let mut lowering = Lowering {
        file,
        scopes: vec![Scope::default()],
        code: Vec::new(),
        rows: 0,
        predicates: 1,
        constants: HashMap::new(),
        labels: Vec::new(),
        local_bytes: 0,
        shared_bytes: 0,
        module_shared: HashMap::new(),
        carry: None,
        calls: vec![(routine.name, Ending::Exit)],
        framed: Vec::new(),
        frame: None,
        calls_addresses: false,
        line: routine.line,
        guard: Flag::TRUE,
    };
    let parameters = lowering.kernel_parameters(routine)?;
    let Some(body) = &routine.body else {
        return Err(lowering.error(format!("the kernel `{}` has no body", routine.name)));
    };
    lowering.statements(body)?;
    lowering.emit(Op::Exit)?;
    let routines = lowering.framed_functions()?;
    let mut program = lowering.finish(routines)?;
    let estimated_registers = super::pressure::estimate(&program);
    let static_shared_bytes = lowering.shared_bytes;
    program.dynamic_shared = static_shared_bytes.next_multiple_of(16);
    Ok(Function {
        name: routine.name.to_owned(),
        line: routine.line,
        estimated_registers,
        counted_registers: Vec::new(),
        static_shared_bytes,
        local_bytes: lowering.local_bytes,
        constant_bytes: 0,
        max_threads: routine.max_threads.min(1024),
        min_blocks: routine.min_blocks,
        parameters,
        program,
    })
}

impl<'a> Lowering<'a> {
    fn error(&self, what: impl Into<String>) -> PtxError {
        PtxError { line: self.line, what: what.into() }
    }

    fn kernel_parameters(&mut self, routine: &'a Routine<'a>) -> Result<Vec<Parameter>, PtxError> {
        let mut found = Vec::new();
        let mut end = 0u64;
        for variable in &routine.parameters {
            self.line = variable.line;
            let offset = end.next_multiple_of(variable.align);
            end = offset + variable.bytes();
            // 4,096 bytes by the driver; the ISA allows 4,352.
            if end > 4096 {
                return Err(self.error(format!("the parameters of `{}` exceed 4,096 bytes", routine.name)));
            }
            let parameter = Parameter { offset: self.small(offset)?, bytes: self.small(variable.bytes())? };
            self.declare(variable.name, Symbol::Parameter(parameter.offset));
            found.push(parameter);
        }
        Ok(found)
    }

    fn small(&self, value: u64) -> Result<u32, PtxError> {
        u32::try_from(value).map_err(|_| self.error(format!("{value} is too large")))
    }

    fn declare(&mut self, name: &'a str, symbol: Symbol) {
        if let Some(scope) = self.scopes.last_mut() {
            scope.symbols.insert(name, symbol);
        }
    }

    fn row(&mut self) -> RowIndex {
        self.rows += 1;
        self.rows - 1
    }

    fn flag_row(&mut self) -> u32 {
        self.predicates += 1;
        self.predicates - 1
    }

    fn constant(&mut self, constant: Constant) -> RowIndex {
        if let Some(row) = self.constants.get(&constant) {
            return *row;
        }
        let row = self.row();
        self.constants.insert(constant, row);
        row
    }

    fn value(&mut self, value: u64) -> RowIndex {
        self.constant(Constant::Value(value))
    }

    fn label(&mut self) -> usize {
        self.labels.push(None);
        self.labels.len() - 1
    }

    fn place(&mut self, label: usize) -> Result<(), PtxError> {
        self.labels[label] = Some(self.small(self.code.len() as u64)?);
        Ok(())
    }

    fn emit(&mut self, op: Op) -> Result<(), PtxError> {
        if self.code.len() >= INSTRUCTIONS {
            return Err(self.error(format!("the kernel exceeds {INSTRUCTIONS} instructions")));
        }
        self.code.push(Instruction { guard: self.guard, line: self.line, op });
        Ok(())
    }

    /// A label as a jump's target, until [`finish`](Self::finish) puts its position there.
    fn target(&self, label: usize) -> Result<u32, PtxError> {
        self.small(label as u64)
    }

    fn statements(&mut self, body: &'a [Statement<'a>]) -> Result<(), PtxError> {
        for statement in body {
            if let Statement::Label(name) = statement {
                let label = self.label();
                self.declare(name, Symbol::Label(label));
            }
            match (statement, self.scopes.last_mut()) {
                (Statement::Targets(name, list), Some(scope)) => drop(scope.targets.insert(name, list.clone())),
                (Statement::Prototype(name, prototype), Some(scope)) => {
                    scope.prototypes.insert(name, Signature::Prototype(prototype));
                }
                (Statement::Callees(name, list), Some(scope)) => {
                    scope.prototypes.insert(name, Signature::Callees(list));
                }
                _ => {}
            }
        }
        for statement in body {
            match statement {
                Statement::Scope(inner) => {
                    self.scopes.push(Scope::default());
                    self.statements(inner)?;
                    self.scopes.pop();
                }
                Statement::Register { kind, name, count } => self.register(*kind, name, *count),
                Statement::Variable(variable) => self.variable(variable)?,
                Statement::Label(name) => {
                    if let Some(Symbol::Label(label)) = self.find(name) {
                        self.place(label)?;
                    }
                }
                Statement::Targets(..) | Statement::Prototype(..) | Statement::Callees(..) => {}
                Statement::Instruction(line) => self.instruction(line)?,
            }
        }
        Ok(())
    }

    fn register(&mut self, kind: Type, name: &'a str, count: Option<u64>) {
        match count {
            Some(count) => {
                if let Some(scope) = self.scopes.last_mut() {
                    scope.families.insert(name, (kind, count));
                }
            }
            None => {
                let symbol = self.fresh(kind);
                self.declare(name, symbol);
            }
        }
    }

    fn fresh(&mut self, kind: Type) -> Symbol {
        if kind == Type::Pred { Symbol::Flag(self.flag_row()) } else { Symbol::Register(self.row(), kind) }
    }

    fn variable(&mut self, variable: &'a Variable<'a>) -> Result<(), PtxError> {
        self.line = variable.line;
        let symbol = match variable.space {
            // A parameter of a call is a place in local memory.
            "local" | "param" => Symbol::Local(self.allocate_local(variable.bytes(), variable.align)?),
            "shared" => self.allocate_shared(variable)?,
            space => return Err(self.error(format!("a variable in `.{space}` inside a function is not supported"))),
        };
        self.declare(variable.name, symbol);
        Ok(())
    }

    fn allocate_local(&mut self, bytes: u64, align: u64) -> Result<u32, PtxError> {
        if self.frame.is_some() && align > u64::from(calls::FRAME_ALIGN) {
            let what = "a local variable aligned to more than 16 bytes, in a function that calls itself or is called by address";
            return Err(self.error(format!("{what}, is not supported")));
        }
        let offset = u64::from(self.local_bytes).next_multiple_of(align);
        let end = offset.saturating_add(bytes);
        if end > LOCAL_BYTES {
            return Err(self.error(format!("a thread's local memory exceeds {LOCAL_BYTES} bytes")));
        }
        self.local_bytes = self.small(end)?;
        self.small(offset)
    }

    fn allocate_shared(&mut self, variable: &Variable<'a>) -> Result<Symbol, PtxError> {
        if variable.count == 0 {
            return Ok(Symbol::DynamicShared);
        }
        let offset = u64::from(self.shared_bytes).next_multiple_of(variable.align);
        let end = offset.saturating_add(variable.bytes());
        if end > SHARED_BYTES {
            return Err(self.error(format!("the kernel's shared memory exceeds {SHARED_BYTES} bytes")));
        }
        self.shared_bytes = self.small(end)?;
        Ok(Symbol::Shared(self.small(offset)?))
    }

    /// What a name stands for, from the innermost braces outwards, then in the module.
    fn find(&mut self, name: &'a str) -> Option<Symbol> {
        let prefix = name.trim_end_matches(|digit: char| digit.is_ascii_digit());
        for index in (0..self.scopes.len()).rev() {
            if let Some(symbol) = self.scopes[index].symbols.get(name) {
                return Some(*symbol);
            }
            let Some((kind, count)) = self.scopes[index].families.get(prefix).copied() else { continue };
            let number = name[prefix.len()..].parse::<u64>().ok()?;
            if number >= count {
                return None;
            }
            let symbol = self.fresh(kind);
            self.scopes[index].symbols.insert(name, symbol);
            return Some(symbol);
        }
        let file = self.file;
        let Some(variable) = file.variables.iter().find(|variable| variable.name == name) else {
            return calls::address_of(file, name).map(Symbol::Function);
        };
        if variable.space != "shared" {
            return Some(Symbol::Global { constant: variable.space == "const" });
        }
        if let Some(offset) = self.module_shared.get(name) {
            return Some(Symbol::Shared(*offset));
        }
        let symbol = self.allocate_shared(variable).ok()?;
        if let Symbol::Shared(offset) = symbol {
            self.module_shared.insert(name, offset);
        }
        Some(symbol)
    }

    fn known(&mut self, name: &'a str) -> Result<Symbol, PtxError> {
        self.find(name).ok_or_else(|| self.error(format!("`{name}` is not declared")))
    }

    /// The row and type of a register.
    fn register_of(&mut self, operand: &Operand<'a>) -> Result<(RowIndex, Type), PtxError> {
        let Operand::Name(name) = operand else { return Err(self.error("expected a register")) };
        match self.known(name)? {
            Symbol::Register(row, kind) => Ok((row, kind)),
            _ => Err(self.error(format!("`{name}` is no register of this type"))),
        }
    }

    /// A destination row; `_` gives a row that nobody reads.
    fn destination(&mut self, operand: &Operand<'a>) -> Result<RowIndex, PtxError> {
        if *operand == Operand::Name("_") {
            return Ok(self.row());
        }
        Ok(self.register_of(operand)?.0)
    }

    fn optional_destination(&mut self, operand: &Operand<'a>) -> Result<Option<RowIndex>, PtxError> {
        if *operand == Operand::Name("_") { Ok(None) } else { Ok(Some(self.register_of(operand)?.0)) }
    }

    /// The predicate of a name.
    fn flag_of(&mut self, name: &'a str) -> Result<u32, PtxError> {
        match self.known(name)? {
            Symbol::Flag(index) => Ok(index),
            _ => Err(self.error(format!("`{name}` is no predicate"))),
        }
    }

    /// A predicate as a source: `p`, `!p` or a number.
    fn flag(&mut self, operand: &Operand<'a>) -> Result<Flag, PtxError> {
        match operand {
            Operand::Name(name) => Ok(Flag { index: self.flag_of(name)?, negated: false }),
            Operand::Not(name) => Ok(Flag { index: self.flag_of(name)?, negated: true }),
            Operand::Number(Number::Integer(value)) => Ok(Flag { index: 0, negated: *value == 0 }),
            _ => Err(self.error("expected a predicate")),
        }
    }

    /// A row with the value of a source.
    fn source(&mut self, operand: &Operand<'a>, kind: Type) -> Result<RowIndex, PtxError> {
        match operand {
            Operand::Number(number) => {
                let bits = self.literal(*number, kind)?;
                Ok(self.value(bits))
            }
            Operand::Name(name) => {
                if let Some((special, bits)) = control::special(name) {
                    let d = self.row();
                    self.emit(Op::Special { d, which: special, bits })?;
                    return Ok(d);
                }
                self.address_of(name, 0)
            }
            Operand::Offset(name, offset) => self.address_of(name, *offset),
            _ => Err(self.error("expected a register or a number")),
        }
    }

    fn literal(&self, number: Number, kind: Type) -> Result<u64, PtxError> {
        let mask = u64::MAX >> (64 - kind.bits().max(8));
        match (number, kind) {
            (Number::Integer(value), _) => Ok(value & mask),
            (Number::Single(bits), Type::F64) => Ok(f64::from(f32::from_bits(bits)).to_bits()),
            (Number::Single(bits), _) => Ok(u64::from(bits)),
            (Number::Double(bits), Type::F64 | Type::B64) => Ok(bits),
            (Number::Double(bits), Type::F32) => {
                let single = crate::alu::formats::SINGLE;
                Ok(single.rounded(f64::from_bits(bits), crate::alu::formats::Round::Nearest, false))
            }
            (Number::Double(_), _) => Err(self.error("a floating-point number stands where bits are expected")),
        }
    }

    /// The row of a register, or of a variable's address.
    fn address_of(&mut self, name: &'a str, offset: i64) -> Result<RowIndex, PtxError> {
        match self.known(name)? {
            Symbol::Register(row, _) if offset == 0 => Ok(row),
            Symbol::Register(..) => Err(self.error(format!("`{name}` plus a number is no operand"))),
            Symbol::Local(at) => self.local_address(i64::from(at).wrapping_add(offset)),
            Symbol::Function(address) => Ok(self.value(address.wrapping_add_signed(offset))),
            Symbol::Shared(at) | Symbol::Parameter(at) => {
                Ok(self.value(i64::from(at).wrapping_add(offset).cast_unsigned()))
            }
            Symbol::DynamicShared => Ok(self.constant(Constant::DynamicShared(offset))),
            Symbol::Global { .. } => Ok(self.constant(Constant::Global(name.to_owned(), offset))),
            Symbol::Flag(_) | Symbol::Label(_) => Err(self.error(format!("`{name}` has no value"))),
        }
    }

    /// The space that a variable's name gives to an address.
    fn space_of(&mut self, name: &'a str) -> Option<Space> {
        match self.find(name)? {
            Symbol::Local(_) => Some(Space::Local),
            Symbol::Shared(_) | Symbol::DynamicShared => Some(Space::Shared),
            Symbol::Parameter(_) => Some(Space::Parameter),
            Symbol::Global { constant: true } => Some(Space::Constant),
            Symbol::Global { constant: false } => Some(Space::Global),
            Symbol::Register(..) | Symbol::Flag(_) | Symbol::Label(_) | Symbol::Function(_) => None,
        }
    }

    fn instruction(&mut self, line: &'a Line<'a>) -> Result<(), PtxError> {
        self.line = line.line;
        self.guard = match line.guard {
            None => Flag::TRUE,
            Some((name, negated)) => Flag { index: self.flag_of(name)?, negated },
        };
        let mut opcode = Opcode::parse(line.opcode, line.line);
        if super::opcode::OPCODES.binary_search(&opcode.root).is_err() {
            return Err(self.error(format!("the opcode `{}` is not supported", line.opcode)));
        }
        let result = self.select(&mut opcode, &line.operands);
        self.guard = Flag::TRUE;
        result
    }

    fn select(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        match opcode.root {
            "ld" | "ldu" | "st" | "atom" | "red" | "fence" | "membar" | "cvta" | "isspacep" | "prefetch"
            | "prefetchu" => self.memory(opcode, operands),
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "griddepcontrol" | "mov" => {
                self.control(opcode, operands)
            }
            "bar" | "barrier" | "vote" | "match" | "shfl" | "redux" | "activemask" | "elect" => {
                self.together(opcode, operands)
            }
            _ => self.arithmetic(opcode, operands),
        }
    }

    fn count<const N: usize>(
        &self,
        opcode: &Opcode<'_>,
        operands: &'a [Operand<'a>],
    ) -> Result<&'a [Operand<'a>; N], PtxError> {
        <&[Operand<'a>; N]>::try_from(operands)
            .map_err(|_| self.error(format!("`{}` takes {N} operands, got {}", opcode.whole, operands.len())))
    }

    fn finish(&mut self, mut routines: Vec<Framing>) -> Result<Program, PtxError> {
        let labels = &self.labels;
        let position = |label: &mut u32| {
            if let Some(Some(position)) = labels.get(*label as usize) {
                *label = *position;
            }
        };
        for instruction in &mut self.code {
            match &mut instruction.op {
                Op::Jump { target } => position(target),
                Op::JumpTable { targets, .. } => targets.iter_mut().for_each(position),
                _ => {}
            }
        }
        let mut constants: Vec<_> = self.constants.drain().map(|(constant, row)| (row, constant)).collect();
        constants.sort_by_key(|(row, _)| *row);
        for routine in &mut routines {
            routine.rows.retain(|row| constants.binary_search_by_key(row, |(constant, _)| *constant).is_err());
        }
        Ok(Program {
            code: std::mem::take(&mut self.code),
            rows: self.rows,
            constants,
            predicates: self.predicates,
            dynamic_shared: 0,
            routines,
        })
    }
}
