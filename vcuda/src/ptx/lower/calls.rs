//! Calls: in line where the compiler's text allows it, else by a frame of the thread's own.
//!
//! A function that is called by its name is put in line. One that calls itself, and every one whose address the text
//! takes, is lowered once, behind the kernel: a call gives it a [`Routine`]'s frame, in which its parameters and local
//! variables lie, and saves the registers of an outer call of it.

use super::super::PtxError;
use super::super::instruction::{Callee, Flag, Op, Place, Routine, RowIndex};
use super::super::opcode::Opcode;
use super::super::syntax::{self, File, Operand, Prototype, Statement, Variable};
use super::super::types::{FUNCTION_WINDOW, Type};
use super::{Lowering, Scope, Symbol};

/// Functions in line within functions: deeper ones get frames.
const DEPTH: usize = 64;
/// Frames begin at multiples of this many bytes.
pub(crate) const FRAME_ALIGN: u32 = 16;
/// Functions lie this far apart.
const FUNCTION_BYTES: u64 = 16;

/// Where `ret` goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Ending {
    /// The kernel's own text: the thread ends.
    Exit,
    /// Behind a function in line.
    Jump(usize),
    /// To the caller of a function with a frame.
    Return,
}

/// A function that gets a frame.
#[derive(Debug)]
pub(super) struct Framed<'a> {
    source: &'a syntax::Routine<'a>,
    label: usize,
}

/// The address of a device function with a body: functions are numbered in the order of the text.
pub(in crate::ptx) fn address_of(file: &File<'_>, name: &str) -> Option<u64> {
    let defined = file.functions.iter().filter(|routine| !routine.is_kernel && routine.body.is_some());
    let number = defined.map(|routine| routine.name).position(|other| other == name)?;
    Some(FUNCTION_WINDOW + FUNCTION_BYTES * (number as u64 + 1))
}

/// The names of functions whose address is taken, by an instruction or a variable's first value.
fn taken<'a>(file: &'a File<'a>) -> Vec<&'a str> {
    fn look<'a>(statements: &'a [Statement<'a>], found: &mut Vec<&'a str>) {
        for statement in statements {
            match statement {
                Statement::Scope(inner) => look(inner, found),
                Statement::Instruction(line) if !line.opcode.starts_with("call") => {
                    let names = line.operands.iter().filter_map(|operand| match operand {
                        Operand::Name(name) | Operand::Offset(name, _) => Some(*name),
                        _ => None,
                    });
                    found.extend(names);
                }
                Statement::Callees(_, names) => found.extend(names),
                Statement::Instruction(_)
                | Statement::Register { .. }
                | Statement::Variable(_)
                | Statement::Label(_)
                | Statement::Targets(..)
                | Statement::Prototype(..) => {}
            }
        }
    }
    let mut names = Vec::new();
    for body in file.functions.iter().filter_map(|routine| routine.body.as_ref()) {
        look(body, &mut names);
    }
    let values = file.variables.iter().flat_map(|variable| &variable.init);
    names.extend(values.filter_map(|value| match value {
        syntax::Initial::Address(name, _) => Some(*name),
        syntax::Initial::Number(_) => None,
    }));
    names.retain(|name| address_of(file, name).is_some());
    names.sort_unstable();
    names.dedup();
    names
}

impl<'a> Lowering<'a> {
    pub(super) fn call(&mut self, opcode: &mut Opcode<'_>, operands: &'a [Operand<'a>]) -> Result<(), PtxError> {
        opcode.finish()?;
        let (returns, called, rest) = match operands {
            [Operand::List(returns), called, rest @ ..] => (&returns[..], called, rest),
            [called, rest @ ..] => (&[][..], called, rest),
            [] => return Err(self.error("`call` names no function")),
        };
        let Operand::Name(name) = called else { return Err(self.error("expected a function or a register")) };
        let (parameters, signature) = match rest {
            [] => (&[][..], None),
            [Operand::List(parameters)] => (&parameters[..], None),
            [Operand::List(parameters), Operand::Name(signature)] => (&parameters[..], Some(*signature)),
            [Operand::Name(signature)] => (&[][..], Some(*signature)),
            _ => return Err(self.error("this form of `call` is not supported")),
        };
        let (returns, parameters) = (self.places(returns)?, self.places(parameters)?);
        if let (Some(signature), Some(Symbol::Register(row, kind))) = (signature, self.find(name)) {
            if kind.bits() != 64 {
                return Err(self.error(format!("`{name}` is no register of 64 bits")));
            }
            return self.call_address(row, signature, &returns, &parameters);
        }
        self.call_name(name, &returns, &parameters)
    }

    fn call_name(&mut self, name: &'a str, returns: &[u32], parameters: &[u32]) -> Result<(), PtxError> {
        let named = self.file.functions.iter().rev().filter(|routine| routine.name == name);
        let routine = named.max_by_key(|routine| routine.body.is_some());
        match (name, routine.and_then(|routine| routine.body.as_ref().map(|body| (routine, body)))) {
            ("__assertfail", None) => {
                let parameters = parameters.get(..4).and_then(|first| <[u32; 4]>::try_from(first).ok());
                let parameters = parameters.ok_or_else(|| self.error("`__assertfail` takes five parameters"))?;
                self.emit(Op::AssertFail { parameters, frame: self.frame })
            }
            (_, Some((routine, body))) => {
                if self.calls.len() >= DEPTH || self.calls.iter().any(|(called, _)| *called == name) {
                    let number = self.framed(routine)?;
                    let returns = self.sized(name, returns, &routine.returns)?;
                    let parameters = self.sized(name, parameters, &routine.parameters)?;
                    return self.emit(Op::Call {
                        callee: Callee::Routine(number),
                        frame: self.frame,
                        returns,
                        parameters,
                    });
                }
                let pairs = routine.returns.iter().zip(returns).chain(routine.parameters.iter().zip(parameters));
                let mut scope = Scope::default();
                for (variable, at) in pairs {
                    scope.symbols.insert(variable.name, Symbol::Local(*at));
                }
                self.inline(name, body, scope)
            }
            (_, None) => Err(self.error(format!("the function `{name}` has no body here"))),
        }
    }

    fn inline(&mut self, name: &'a str, body: &'a [Statement<'a>], scope: Scope<'a>) -> Result<(), PtxError> {
        let guard = std::mem::replace(&mut self.guard, Flag::TRUE);
        let end = self.label();
        let target = self.target(end)?;
        if guard != Flag::TRUE {
            let skip = Flag { negated: !guard.negated, ..guard };
            self.guard = skip;
            self.emit(Op::Jump { target })?;
            self.guard = Flag::TRUE;
        }
        let callers = std::mem::replace(&mut self.scopes, vec![scope]);
        self.calls.push((name, Ending::Jump(end)));
        self.statements(body)?;
        self.calls.pop();
        self.scopes = callers;
        self.place(end)
    }

    fn call_address(
        &mut self,
        row: RowIndex,
        signature: &'a str,
        returns: &[u32],
        parameters: &[u32],
    ) -> Result<(), PtxError> {
        let file = self.file;
        let prototype = self.scopes.iter().rev().find_map(|scope| scope.prototypes.get(signature).copied());
        let (of_returns, of_parameters) = match prototype {
            Some(Signature::Prototype(prototype)) => (&prototype.returns, &prototype.parameters),
            Some(Signature::Callees(names)) => {
                let first = file.functions.iter().find(|routine| names.first() == Some(&routine.name));
                let first = first.ok_or_else(|| self.error(format!("`{signature}` names no function of this text")))?;
                (&first.returns, &first.parameters)
            }
            None => return Err(self.error(format!("`{signature}` is no prototype and no list of functions"))),
        };
        let returns = self.sized(signature, returns, of_returns)?;
        let parameters = self.sized(signature, parameters, of_parameters)?;
        if !std::mem::replace(&mut self.calls_addresses, true) {
            for name in taken(file) {
                let named = |routine: &&syntax::Routine<'_>| routine.name == name && routine.body.is_some();
                if let Some(routine) = file.functions.iter().find(named) {
                    self.framed(routine)?;
                }
            }
        }
        self.emit(Op::Call { callee: Callee::Address(row), frame: self.frame, returns, parameters })
    }

    /// The places of a call with the sizes that the called function gives them.
    fn sized(&self, name: &str, places: &[u32], variables: &[Variable<'_>]) -> Result<Vec<Place>, PtxError> {
        if places.len() != variables.len() {
            let (wanted, got) = (variables.len(), places.len());
            return Err(self.error(format!("`{name}` takes or gives {wanted} values, and the call has {got}")));
        }
        let sized = places.iter().zip(variables);
        sized.map(|(offset, variable)| Ok(Place { offset: *offset, bytes: self.small(variable.bytes())? })).collect()
    }

    /// The number of a function with a frame.
    fn framed(&mut self, source: &'a syntax::Routine<'a>) -> Result<u32, PtxError> {
        let known = self.framed.iter().position(|framed| framed.source.name == source.name);
        let number = match known {
            Some(number) => number,
            None => {
                let label = self.label();
                self.framed.push(Framed { source, label });
                self.framed.len() - 1
            }
        };
        self.small(number as u64)
    }

    /// Lowers the functions with frames, behind the kernel; they may ask for more of their kind.
    pub(super) fn framed_functions(&mut self) -> Result<Vec<Routine>, PtxError> {
        let mut routines = Vec::new();
        while let Some(Framed { source, label }) = self.framed.get(routines.len()) {
            let (source, label) = (*source, *label);
            let kernels_bytes = std::mem::take(&mut self.local_bytes);
            let routine = self.framed_function(source, label)?;
            self.local_bytes = kernels_bytes;
            routines.push(routine);
        }
        Ok(routines)
    }

    fn framed_function(&mut self, source: &'a syntax::Routine<'a>, label: usize) -> Result<Routine, PtxError> {
        let Some(body) = &source.body else {
            return Err(self.error(format!("the function `{}` has no body here", source.name)));
        };
        self.line = source.line;
        self.place(label)?;
        let entry = self.small(self.code.len() as u64)?;
        let (first_row, first_flag) = (self.rows, self.predicates);
        let frame = self.row();
        (self.frame, self.carry) = (Some(frame), None);
        self.scopes = vec![Scope::default()];
        self.calls = vec![(source.name, Ending::Return)];
        let mut formals = [Vec::new(), Vec::new()];
        for (places, variables) in formals.iter_mut().zip([&source.returns, &source.parameters]) {
            for variable in variables {
                let offset = self.allocate_local(variable.bytes(), variable.align)?;
                self.declare(variable.name, Symbol::Local(offset));
                places.push(Place { offset, bytes: self.small(variable.bytes())? });
            }
        }
        self.statements(body)?;
        self.emit(Op::Return)?;
        let [returns, parameters] = formals;
        Ok(Routine {
            name: source.name.to_owned(),
            address: address_of(self.file, source.name).unwrap_or(0),
            entry,
            frame,
            // A call keeps its return address there in life.
            frame_bytes: (self.local_bytes + 8).next_multiple_of(FRAME_ALIGN),
            rows: (first_row..self.rows).collect(),
            flags: first_flag..self.predicates,
            returns,
            parameters,
        })
    }

    fn places(&mut self, list: &'a [Operand<'a>]) -> Result<Vec<u32>, PtxError> {
        let mut places = Vec::new();
        for operand in list {
            let Operand::Name(name) = operand else {
                return Err(self.error("a parameter must be a `.param` variable"));
            };
            match self.known(name)? {
                Symbol::Local(at) => places.push(at),
                _ => return Err(self.error(format!("`{name}` is no `.param` variable"))),
            }
        }
        Ok(places)
    }

    /// The row of an address in local memory: of the frame where the function has one.
    pub(super) fn local_address(&mut self, offset: i64) -> Result<RowIndex, PtxError> {
        let offset = self.value(offset.cast_unsigned());
        let Some(frame) = self.frame else { return Ok(offset) };
        let Some(run) = crate::alu::integer::binary("add", Type::U64) else {
            return Err(self.error("addresses cannot be added"));
        };
        let d = self.row();
        self.emit(Op::Binary { run, d, a: frame, b: offset, float: super::super::instruction::Float::default() })?;
        Ok(d)
    }
}

/// What a call by address says of the functions that it may reach.
#[derive(Debug, Clone, Copy)]
pub(super) enum Signature<'a> {
    Prototype(&'a Prototype<'a>),
    Callees(&'a [&'a str]),
}
