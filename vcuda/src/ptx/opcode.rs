//! An opcode and its modifiers.

use super::PtxError;
use super::types::{Order, Scope, Space, Type};
use crate::alu::formats::Round;

/// Every opcode that the loader knows, in order: the first word of an instruction.
pub const OPCODES: &[&str] = &[
    "abs",
    "activemask",
    "add",
    "addc",
    "and",
    "atom",
    "bar",
    "barrier",
    "bfe",
    "bfi",
    "bfind",
    "bra",
    "brev",
    "brkpt",
    "brx",
    "call",
    "clz",
    "cnot",
    "copysign",
    "cos",
    "cvt",
    "cvta",
    "div",
    "dp2a",
    "dp4a",
    "elect",
    "ex2",
    "exit",
    "fence",
    "fma",
    "fns",
    "griddepcontrol",
    "isspacep",
    "ld",
    "ldu",
    "lg2",
    "lop3",
    "mad",
    "mad24",
    "madc",
    "match",
    "max",
    "membar",
    "min",
    "mov",
    "mul",
    "mul24",
    "nanosleep",
    "neg",
    "not",
    "or",
    "popc",
    "prefetch",
    "prefetchu",
    "prmt",
    "rcp",
    "red",
    "redux",
    "rem",
    "ret",
    "rsqrt",
    "sad",
    "selp",
    "set",
    "setp",
    "shf",
    "shfl",
    "shl",
    "shr",
    "sin",
    "slct",
    "sqrt",
    "st",
    "sub",
    "subc",
    "tanh",
    "testp",
    "trap",
    "vote",
    "xor",
];

/// An opcode taken apart.
#[derive(Debug)]
pub(super) struct Opcode<'a> {
    pub(super) whole: &'a str,
    pub(super) root: &'a str,
    /// The types, in order.
    pub(super) types: Vec<Type>,
    modifiers: Vec<&'a str>,
    line: u32,
}

impl<'a> Opcode<'a> {
    pub(super) fn parse(whole: &'a str, line: u32) -> Self {
        let mut parts = whole.split('.');
        let root = parts.next().unwrap_or_default();
        let mut types = Vec::new();
        let mut modifiers = Vec::new();
        for part in parts {
            match Type::named(part) {
                Some(kind) => types.push(kind),
                None => modifiers.push(part),
            }
        }
        Self { whole, root, types, modifiers, line }
    }

    pub(super) fn error(&self, what: impl Into<String>) -> PtxError {
        PtxError { line: self.line, what: what.into() }
    }

    /// The error of a form that the interpreter does not know.
    pub(super) fn unsupported(&self) -> PtxError {
        self.error(format!("`{}` is not supported", self.whole))
    }

    /// The type, where there is one only.
    pub(super) fn kind(&self) -> Result<Type, PtxError> {
        match self.types[..] {
            [kind] => Ok(kind),
            _ => Err(self.error(format!("`{}` must name one type", self.whole))),
        }
    }

    /// Takes a modifier away; whether it was there.
    pub(super) fn take(&mut self, modifier: &str) -> bool {
        match self.modifiers.iter().position(|part| *part == modifier) {
            Some(index) => {
                self.modifiers.remove(index);
                true
            }
            None => false,
        }
    }

    /// Takes the first of these that is there.
    pub(super) fn take_any(&mut self, choices: &[&'static str]) -> Option<&'static str> {
        choices.iter().copied().find(|choice| self.take(choice))
    }

    /// Takes the modifier that stands first.
    pub(super) fn take_first(&mut self) -> Option<&'a str> {
        if self.modifiers.is_empty() { None } else { Some(self.modifiers.remove(0)) }
    }

    /// Every modifier must have been taken.
    pub(super) fn finish(&self) -> Result<(), PtxError> {
        match self.modifiers.first() {
            None => Ok(()),
            Some(modifier) => Err(self.error(format!("`.{modifier}` of `{}` is not supported", self.whole))),
        }
    }

    /// `.rn`, `.rz`, `.rm`, `.rp`.
    pub(super) fn round(&mut self) -> Option<Round> {
        Some(match self.take_any(&["rn", "rz", "rm", "rp"])? {
            "rn" => Round::Nearest,
            "rz" => Round::Zero,
            "rm" => Round::Down,
            _ => Round::Up,
        })
    }

    /// `.rni`, `.rzi`, `.rmi`, `.rpi`.
    pub(super) fn round_whole(&mut self) -> Option<Round> {
        Some(match self.take_any(&["rni", "rzi", "rmi", "rpi"])? {
            "rni" => Round::Nearest,
            "rzi" => Round::Zero,
            "rmi" => Round::Down,
            _ => Round::Up,
        })
    }

    pub(super) fn scope(&mut self) -> Option<Scope> {
        Some(match self.take_any(&["cta", "gpu", "sys", "cluster"])? {
            "cta" => Scope::Block,
            // A cluster is part of a GPU: ordering for the whole of it is never too little.
            "gpu" | "cluster" => Scope::Gpu,
            _ => Scope::System,
        })
    }

    /// The order and scope of a load, store or atomic operation.
    pub(super) fn order(&mut self, default: Order) -> Order {
        let word = self.take_any(&["weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"]);
        let scope = self.scope();
        match word {
            None => match (default, scope) {
                (Order::Relaxed(_), Some(scope)) => Order::Relaxed(scope),
                _ => default,
            },
            Some("weak") => Order::Weak,
            // A volatile access is a relaxed one of system scope.
            Some("volatile" | "mmio") => {
                self.take("relaxed");
                Order::Relaxed(Scope::System)
            }
            Some("relaxed") => Order::Relaxed(scope.unwrap_or(Scope::Gpu)),
            Some("acquire") => Order::Acquire(scope.unwrap_or(Scope::Gpu)),
            Some("release") => Order::Release(scope.unwrap_or(Scope::Gpu)),
            Some(_) => Order::AcquireRelease(scope.unwrap_or(Scope::Gpu)),
        }
    }

    /// `.global` and its like, generic where none is named.
    pub(super) fn space(&mut self) -> Space {
        match self.take_any(&["global", "shared", "shared::cta", "local", "const", "param"]) {
            Some("global") => Space::Global,
            Some("shared" | "shared::cta") => Space::Shared,
            Some("local") => Space::Local,
            Some("const") => Space::Constant,
            Some("param") => Space::Parameter,
            _ => Space::Generic,
        }
    }

    /// Cache operators change no result.
    pub(super) fn cache_hints(&mut self) {
        while self.take_any(&["ca", "cg", "cs", "cv", "lu", "wb", "wt", "nc", "uni", "noftz"]).is_some() {}
        self.modifiers.retain(|part| !part.starts_with("L1::") && !part.starts_with("L2::"));
    }
}
