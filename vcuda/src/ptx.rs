//! PTX text: from the text that NVRTC writes to a program that the interpreter runs.
//!
//! The entry point is [`Module::parse`]. It reads PTX ISA 8.0 (the subset that compilers emit for ordinary kernels),
//! checks every opcode, type and operand, places device functions in line, and gives back [`Function`]s whose
//! instructions are decoded once. Anything that the interpreter cannot run is an error that names line and opcode, so a
//! kernel either runs whole or is refused when it is loaded.

pub(crate) mod instruction;
mod lower;
mod opcode;
mod pressure;
mod registers;
mod syntax;
mod text;
pub(crate) mod types;

pub(crate) use lower::calls::FRAME_ALIGN;
pub use opcode::OPCODES;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A loaded PTX file: kernels and the variables of module scope.
#[derive(Debug, Clone)]
pub struct Module {
    /// The ISA version of the `.version` line, for example `(8, 0)`.
    pub version: (u32, u32),
    /// The architecture of the `.target` line, for example `sm_80`.
    pub target: String,
    /// The kernels (`.entry`), in the order of the text.
    pub functions: Vec<Arc<Function>>,
    /// The `.global` and `.const` variables, in the order of the text.
    pub globals: Vec<Global>,
}

/// A variable of module scope, for which the driver allocates device memory when it loads the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Global {
    /// Its name in the PTX text, by which `cuModuleGetGlobal` finds it.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Its alignment, a power of two.
    pub align: u64,
    /// Its first bytes; the rest, up to `bytes`, is zero.
    pub init: Vec<u8>,
    /// Addresses to store in it: at this offset, 8 bytes, the address of that variable plus a number.
    pub addresses: Vec<(u64, String, i64)>,
    /// Whether it lies in `.const` memory, which kernels only read.
    pub constant: bool,
}

/// A kernel (`.entry`): its resources, and its instructions.
#[derive(Clone)]
pub struct Function {
    /// Its name, by which `cuModuleGetFunction` finds it.
    pub name: String,
    /// The line of the PTX text on which it begins.
    pub line: u32,
    /// Registers a thread, estimated from how many the text names: ptxas may need more or fewer.
    pub(crate) estimated_registers: u32,
    /// Registers by architecture (`80` for `sm_80`), in order, as the assembler has counted them; empty where the text has no comment
    /// of them.
    pub(crate) counted_registers: Vec<(u32, u32)>,
    /// Bytes of shared memory that the kernel declares itself.
    pub static_shared_bytes: u32,
    /// Bytes of local memory a thread.
    pub local_bytes: u32,
    /// Bytes of constant memory that its module declares.
    pub constant_bytes: u32,
    /// The most threads a block (`.maxntid`), 1,024 where the text does not say.
    pub max_threads: u32,
    /// Blocks that are to fit on one multiprocessor (`.minnctapersm`), 0 where the text does not say.
    pub min_blocks: u32,
    /// The parameters, in order.
    pub parameters: Vec<Parameter>,
    pub(crate) program: instruction::Program,
}

/// Where a kernel's parameter lies in the launch's block of parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameter {
    /// Bytes from the start of the block of parameters.
    pub offset: u32,
    /// Its size.
    pub bytes: u32,
}

impl Module {
    /// Reads PTX text.
    ///
    /// # Errors
    /// The first line that is no PTX, or that the interpreter cannot run, with what is wrong there.
    pub fn parse(text: &str) -> Result<Self, PtxError> {
        let file = syntax::parse(text)?;
        let mut globals = Vec::new();
        for variable in file.variables.iter().filter(|variable| variable.space != "shared") {
            globals.push(global(&file, variable)?);
        }
        let constant_bytes = globals.iter().filter(|global| global.constant).map(|global| global.bytes).sum::<u64>();
        let mut functions = Vec::new();
        for routine in file.functions.iter().filter(|routine| routine.is_kernel) {
            let mut function = lower::kernel(&file, routine)?;
            registers::share_rows(&mut function.program);
            function.constant_bytes = u32::try_from(constant_bytes).unwrap_or(u32::MAX);
            function.counted_registers = pressure::counted(text, &function.name);
            functions.push(Arc::new(function));
        }
        Ok(Self { version: file.version, target: file.target.to_owned(), functions, globals })
    }

    /// The kernel of this name.
    #[must_use]
    pub fn function(&self, name: &str) -> Option<&Arc<Function>> {
        self.functions.iter().find(|function| function.name == name)
    }
}

/// Counts the opcodes of a text, with their modifiers: `ld.global.u32` and so on.
///
/// # Errors
/// The first line that is no PTX.
pub fn histogram(text: &str) -> Result<BTreeMap<String, usize>, PtxError> {
    fn count<'a>(statements: &[syntax::Statement<'a>], found: &mut BTreeMap<String, usize>) {
        for statement in statements {
            match statement {
                syntax::Statement::Scope(inner) => count(inner, found),
                syntax::Statement::Instruction(line) => *found.entry(line.opcode.to_owned()).or_default() += 1,
                syntax::Statement::Register { .. }
                | syntax::Statement::Variable(_)
                | syntax::Statement::Label(_)
                | syntax::Statement::Targets(..)
                | syntax::Statement::Prototype(..)
                | syntax::Statement::Callees(..) => {}
            }
        }
    }
    let file = syntax::parse(text)?;
    let mut found = BTreeMap::new();
    for body in file.functions.iter().filter_map(|routine| routine.body.as_ref()) {
        count(body, &mut found);
    }
    Ok(found)
}

/// A variable of module scope with its first bytes.
fn global(file: &syntax::File<'_>, variable: &syntax::Variable<'_>) -> Result<Global, PtxError> {
    let element = variable.kind.bytes();
    let mut init = Vec::new();
    let mut addresses = Vec::new();
    for value in &variable.init {
        let bits = match value {
            syntax::Initial::Number(text::Number::Integer(bits) | text::Number::Double(bits)) => *bits,
            syntax::Initial::Number(text::Number::Single(bits)) => u64::from(*bits),
            syntax::Initial::Address(name, offset) => {
                if element != 8 {
                    let what = format!("the address of `{name}` needs 8 bytes");
                    return Err(PtxError { line: variable.line, what });
                }
                match lower::calls::address_of(file, name) {
                    Some(function) => function.wrapping_add_signed(*offset),
                    None => {
                        addresses.push((init.len() as u64, (*name).to_owned(), *offset));
                        0
                    }
                }
            }
        };
        init.extend_from_slice(&bits.to_le_bytes()[..element as usize]);
    }
    let bytes = variable.bytes();
    if init.len() as u64 > bytes {
        let what = format!("`{}` has {bytes} bytes and {} initial ones", variable.name, init.len());
        return Err(PtxError { line: variable.line, what });
    }
    let constant = variable.space == "const";
    Ok(Global { name: variable.name.to_owned(), bytes, align: variable.align, init, addresses, constant })
}

impl Function {
    /// Registers a thread on a GPU of this capability.
    ///
    /// Where the text has a line `// registers KERNEL sm_80 40 sm_90 38`, as `kernels/build` writes them, it is the assembler's figure
    /// for the nearest architecture that is not newer. Else it is an estimate, and with it the number of blocks that are resident
    /// together: a deadlock of half-resident grids may be found with a few blocks more or fewer than on hardware.
    #[must_use]
    pub fn registers_on(&self, (major, minor): (u32, u32)) -> u32 {
        let fitting = self.counted_registers.iter().rev().find(|(architecture, _)| *architecture <= 10 * major + minor);
        fitting.map_or(self.estimated_registers, |(_, count)| *count)
    }

    /// The size of the block of parameters.
    #[must_use]
    pub fn parameter_bytes(&self) -> u32 {
        self.parameters.last().map_or(0, |last| last.offset + last.bytes)
    }
}

impl fmt::Debug for Function {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Function").field("name", &self.name).field("line", &self.line).finish_non_exhaustive()
    }
}

/// What is wrong with a PTX text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PtxError {
    /// The line, counted from 1.
    pub line: u32,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for PtxError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PTX line {}: {}", self.line, self.what)
    }
}

impl std::error::Error for PtxError {}
