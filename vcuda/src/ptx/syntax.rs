//! PTX's grammar: the text as functions, variables and statements, nothing resolved yet.

use super::PtxError;
use super::text::{Number, Placed, Token, tokens};
use super::types::Type;

/// A PTX file.
#[derive(Debug, Default)]
pub(super) struct File<'a> {
    pub(super) version: (u32, u32),
    pub(super) target: &'a str,
    pub(super) variables: Vec<Variable<'a>>,
    pub(super) functions: Vec<Routine<'a>>,
}

/// A kernel or a device function.
#[derive(Debug)]
pub(super) struct Routine<'a> {
    pub(super) name: &'a str,
    pub(super) line: u32,
    pub(super) is_kernel: bool,
    pub(super) returns: Vec<Variable<'a>>,
    pub(super) parameters: Vec<Variable<'a>>,
    pub(super) max_threads: u32,
    pub(super) min_blocks: u32,
    /// None for a declaration.
    pub(super) body: Option<Vec<Statement<'a>>>,
}

/// A variable or parameter.
#[derive(Debug, Clone)]
pub(super) struct Variable<'a> {
    pub(super) line: u32,
    /// `.global`, `.shared`, `.param` and so on, without the point.
    pub(super) space: &'a str,
    pub(super) name: &'a str,
    pub(super) kind: Type,
    pub(super) align: u64,
    /// Elements: 1 where it is no array, 0 where its length is open.
    pub(super) count: u64,
    pub(super) init: Vec<Initial<'a>>,
}

impl Variable<'_> {
    pub(super) fn bytes(&self) -> u64 {
        self.count * u64::from(self.kind.bytes())
    }
}

/// A first value of a variable's element.
#[derive(Debug, Clone, Copy)]
pub(super) enum Initial<'a> {
    Number(Number),
    Address(&'a str, i64),
}

#[derive(Debug)]
pub(super) enum Statement<'a> {
    /// `{ ... }`: names inside end with it.
    Scope(Vec<Statement<'a>>),
    /// `.reg .b32 %r<5>`: a family of that many, or one register.
    Register {
        kind: Type,
        name: &'a str,
        count: Option<u64>,
    },
    Variable(Variable<'a>),
    Label(&'a str),
    /// `name: .branchtargets a, b;`
    Targets(&'a str, Vec<&'a str>),
    /// `name: .callprototype (.param .b32 _) _ (.param .b64 _);`
    Prototype(&'a str, Prototype<'a>),
    /// `name: .calltargets f, g;`
    Callees(&'a str, Vec<&'a str>),
    Instruction(Line<'a>),
}

/// What a function called by its address gives and takes.
#[derive(Debug)]
pub(super) struct Prototype<'a> {
    pub(super) returns: Vec<Variable<'a>>,
    pub(super) parameters: Vec<Variable<'a>>,
}

/// An instruction as written.
#[derive(Debug)]
pub(super) struct Line<'a> {
    pub(super) line: u32,
    /// The predicate, and whether it is negated.
    pub(super) guard: Option<(&'a str, bool)>,
    pub(super) opcode: &'a str,
    pub(super) operands: Vec<Operand<'a>>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Operand<'a> {
    Name(&'a str),
    /// `!p`
    Not(&'a str),
    Number(Number),
    /// `[name + 4]`, `[%rd1]`, `[16]`
    Address(Option<&'a str>, i64),
    /// `name + 4`: the address as a value.
    Offset(&'a str, i64),
    /// `{a, b}`
    Vector(Vec<Operand<'a>>),
    /// `a|b`
    Pair(&'a str, &'a str),
    /// `(a, b)` of a call.
    List(Vec<Operand<'a>>),
}

/// Parses a file.
pub(super) fn parse(text: &str) -> Result<File<'_>, PtxError> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let mut file = File::default();
    while parser.peek().is_some() {
        parser.item(&mut file)?;
    }
    if file.version == (0, 0) {
        return Err(PtxError { line: 1, what: "this is no PTX text: it has no `.version`".to_owned() });
    }
    Ok(file)
}

struct Parser<'a> {
    tokens: Vec<Placed<'a>>,
    at: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|placed| placed.token)
    }

    fn line(&self) -> u32 {
        let at = self.at.min(self.tokens.len().saturating_sub(1));
        self.tokens.get(at).map_or(1, |placed| placed.line)
    }

    fn error<T>(&self, what: impl Into<String>) -> Result<T, PtxError> {
        Err(PtxError { line: self.line(), what: what.into() })
    }

    fn unexpected<T>(&self, wanted: &str) -> Result<T, PtxError> {
        match self.peek() {
            Some(Token::Word(word)) => self.error(format!("expected {wanted}, found `{word}`")),
            Some(Token::Sign(sign)) => self.error(format!("expected {wanted}, found `{sign}`")),
            Some(Token::Number(_) | Token::Text(_)) => self.error(format!("expected {wanted}, found a literal")),
            None => self.error(format!("expected {wanted}, found the end of the text")),
        }
    }

    fn take_sign(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn sign(&mut self, sign: char) -> Result<(), PtxError> {
        if self.take_sign(sign) { Ok(()) } else { self.unexpected(&format!("`{sign}`")) }
    }

    fn take_word(&mut self, wanted: &str) -> bool {
        let found = self.peek() == Some(Token::Word(wanted));
        self.at += usize::from(found);
        found
    }

    fn word(&mut self) -> Result<&'a str, PtxError> {
        let Some(Token::Word(word)) = self.peek() else { return self.unexpected("a name") };
        self.at += 1;
        Ok(word)
    }

    fn integer(&mut self) -> Result<u64, PtxError> {
        let Some(Token::Number(Number::Integer(value))) = self.peek() else { return self.unexpected("a whole number") };
        self.at += 1;
        Ok(value)
    }

    fn small(&mut self) -> Result<u32, PtxError> {
        let value = self.integer()?;
        u32::try_from(value).or_else(|_| self.error(format!("{value} is too large")))
    }

    fn skip_to(&mut self, end: char) {
        while self.peek().is_some() && !self.take_sign(end) {
            self.at += 1;
        }
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.peek().is_some() && self.line() == line {
            self.at += 1;
        }
    }

    fn item(&mut self, file: &mut File<'a>) -> Result<(), PtxError> {
        match self.peek() {
            Some(Token::Word(".version")) => {
                self.at += 1;
                file.version = self.version()?;
            }
            Some(Token::Word(".target")) => {
                self.at += 1;
                file.target = self.word()?;
                while self.take_sign(',') {
                    self.word()?;
                }
            }
            Some(Token::Word(".address_size")) => {
                self.at += 1;
                if self.integer()? != 64 {
                    return self.error("only `.address_size 64` is supported");
                }
            }
            Some(Token::Word(".file" | ".loc")) => self.skip_line(),
            Some(Token::Word(".pragma")) => self.skip_to(';'),
            Some(Token::Word(".section")) => self.skip_to('}'),
            Some(Token::Sign(';')) => self.at += 1,
            Some(Token::Word(_)) => self.definition(file)?,
            _ => return self.unexpected("a directive"),
        }
        Ok(())
    }

    fn version(&mut self) -> Result<(u32, u32), PtxError> {
        let Some(Token::Number(Number::Double(bits))) = self.peek() else {
            return self.unexpected("a version like 8.0");
        };
        self.at += 1;
        let tenths = format!("{:.1}", f64::from_bits(bits));
        let (major, minor) = tenths.split_once('.').unwrap_or(("0", "0"));
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => Ok((major, minor)),
            _ => self.error("expected a version like 8.0"),
        }
    }

    fn definition(&mut self, file: &mut File<'a>) -> Result<(), PtxError> {
        while self.take_word(".visible")
            || self.take_word(".weak")
            || self.take_word(".extern")
            || self.take_word(".common")
        {}
        match self.peek() {
            Some(Token::Word(".entry")) => file.functions.push(self.routine(true)?),
            Some(Token::Word(".func")) => file.functions.push(self.routine(false)?),
            Some(Token::Word(".global" | ".const" | ".shared")) => {
                file.variables.extend(self.variables()?);
                self.sign(';')?;
            }
            Some(Token::Word(word)) => return self.error(format!("the directive `{word}` is not supported")),
            _ => return self.unexpected("`.entry`, `.func` or a variable"),
        }
        Ok(())
    }

    fn routine(&mut self, is_kernel: bool) -> Result<Routine<'a>, PtxError> {
        let line = self.line();
        self.at += 1;
        let returns = if !is_kernel && self.peek() == Some(Token::Sign('(')) { self.parameters()? } else { Vec::new() };
        let name = self.word()?;
        let parameters = if self.peek() == Some(Token::Sign('(')) { self.parameters()? } else { Vec::new() };
        let mut routine =
            Routine { name, line, is_kernel, returns, parameters, max_threads: 1024, min_blocks: 0, body: None };
        loop {
            match self.peek() {
                Some(Token::Word(".maxntid" | ".reqntid")) => {
                    self.at += 1;
                    routine.max_threads = self.product()?;
                }
                Some(Token::Word(".minnctapersm")) => {
                    self.at += 1;
                    routine.min_blocks = self.small()?;
                }
                Some(Token::Word(".maxnreg" | ".maxnctapersm")) => {
                    self.at += 1;
                    self.small()?;
                }
                Some(Token::Word(".noreturn")) => self.at += 1,
                Some(Token::Word(".pragma")) => self.skip_to(';'),
                Some(Token::Word(word)) => return self.error(format!("the directive `{word}` is not supported")),
                Some(Token::Sign('{')) => {
                    self.at += 1;
                    routine.body = Some(self.statements()?);
                    return Ok(routine);
                }
                _ => {
                    self.take_sign(';');
                    return Ok(routine);
                }
            }
        }
    }

    fn product(&mut self) -> Result<u32, PtxError> {
        let mut product = self.small()?;
        while self.take_sign(',') {
            product = product.saturating_mul(self.small()?);
        }
        Ok(product)
    }

    fn parameters(&mut self) -> Result<Vec<Variable<'a>>, PtxError> {
        self.sign('(')?;
        let mut found = Vec::new();
        while !self.take_sign(')') {
            found.extend(self.variables()?);
            self.take_sign(',');
        }
        Ok(found)
    }

    /// `.space .align 4 .b8 name[12] = {..}`; parameters may say `.ptr .global .align 4` between type and name.
    fn variables(&mut self) -> Result<Vec<Variable<'a>>, PtxError> {
        let line = self.line();
        let space = self.word()?.trim_start_matches('.');
        let mut align = None;
        let mut kind = None;
        while let Some(Token::Word(word)) = self.peek() {
            let Some(directive) = word.strip_prefix('.') else { break };
            self.at += 1;
            match directive {
                "align" => {
                    let value = self.integer()?;
                    // In a parameter's `.ptr .align 16` it is what the pointer points to.
                    align = align.or(if kind.is_none() { Some(value) } else { None });
                }
                "ptr" | "global" | "const" | "shared" | "local" | "visible" | "noalias" => {}
                _ => match Type::named(directive) {
                    Some(named) => kind = Some(named),
                    None => return self.error(format!("the type `.{directive}` is not supported")),
                },
            }
        }
        let Some(kind) = kind else { return self.unexpected("a type") };
        let name = self.word()?;
        let count = self.lengths()?;
        let align = align.unwrap_or(u64::from(kind.bytes()));
        if !align.is_power_of_two() {
            return self.error(format!("an alignment must be a power of two, got {align}"));
        }
        let init = if self.take_sign('=') { self.initial()? } else { Vec::new() };
        let count = if count == 0 && !init.is_empty() { init.len() as u64 } else { count };
        Ok(vec![Variable { line, space, name, kind, align, count, init }])
    }

    fn lengths(&mut self) -> Result<u64, PtxError> {
        let mut count = 1u64;
        while self.take_sign('[') {
            if self.take_sign(']') {
                count = 0;
            } else {
                let length = self.integer()?;
                let Some(product) = count.checked_mul(length) else { return self.error("the array is too large") };
                count = product;
                self.sign(']')?;
            }
        }
        Ok(count)
    }

    fn initial(&mut self) -> Result<Vec<Initial<'a>>, PtxError> {
        if self.take_sign('{') {
            let mut found = Vec::new();
            while !self.take_sign('}') {
                found.extend(self.initial()?);
                self.take_sign(',');
            }
            return Ok(found);
        }
        if let Some(Token::Word(word)) = self.peek() {
            self.at += 1;
            if word == "generic" {
                self.sign('(')?;
                let name = self.word()?;
                self.sign(')')?;
                let offset = self.offset()?;
                return Ok(vec![Initial::Address(name, offset)]);
            }
            let offset = self.offset()?;
            return Ok(vec![Initial::Address(word, offset)]);
        }
        Ok(vec![Initial::Number(self.number()?)])
    }

    fn number(&mut self) -> Result<Number, PtxError> {
        let negative = self.take_sign('-');
        let Some(Token::Number(number)) = self.peek() else { return self.unexpected("a number") };
        self.at += 1;
        Ok(match number {
            Number::Integer(value) if negative => Number::Integer(value.wrapping_neg()),
            Number::Single(bits) if negative => Number::Single(bits ^ (1 << 31)),
            Number::Double(bits) if negative => Number::Double(bits ^ (1 << 63)),
            positive => positive,
        })
    }

    /// `+ 4`, `- 4`, `+ -4` or nothing.
    fn offset(&mut self) -> Result<i64, PtxError> {
        let negative = match self.peek() {
            Some(Token::Sign('+')) => false,
            Some(Token::Sign('-')) => true,
            _ => return Ok(0),
        };
        self.at += 1;
        match self.number()? {
            Number::Integer(value) if negative => Ok(value.wrapping_neg().cast_signed()),
            Number::Integer(value) => Ok(value.cast_signed()),
            Number::Single(_) | Number::Double(_) => self.error("an offset must be a whole number"),
        }
    }

    fn statements(&mut self) -> Result<Vec<Statement<'a>>, PtxError> {
        let mut found = Vec::new();
        loop {
            match self.peek() {
                Some(Token::Sign('}')) => {
                    self.at += 1;
                    return Ok(found);
                }
                Some(Token::Sign('{')) => {
                    self.at += 1;
                    found.push(Statement::Scope(self.statements()?));
                }
                Some(Token::Sign(';')) => self.at += 1,
                Some(Token::Sign('@')) => found.push(Statement::Instruction(self.instruction()?)),
                Some(Token::Word(".loc" | ".file")) => self.skip_line(),
                Some(Token::Word(".pragma")) => self.skip_to(';'),
                Some(Token::Word(".reg")) => self.registers(&mut found)?,
                Some(Token::Word(".local" | ".shared" | ".param" | ".global" | ".const")) => {
                    found.extend(self.variables()?.into_iter().map(Statement::Variable));
                    self.sign(';')?;
                }
                Some(Token::Word(word)) if word.starts_with('.') => {
                    return self.error(format!("the directive `{word}` is not supported"));
                }
                Some(Token::Word(word))
                    if self.tokens.get(self.at + 1).map(|next| next.token) == Some(Token::Sign(':')) =>
                {
                    self.at += 2;
                    if self.take_word(".branchtargets") {
                        found.push(Statement::Targets(word, self.names()?));
                        self.sign(';')?;
                    } else if self.take_word(".calltargets") {
                        found.push(Statement::Callees(word, self.names()?));
                        self.sign(';')?;
                    } else if self.take_word(".callprototype") {
                        found.push(Statement::Prototype(word, self.prototype()?));
                    } else {
                        found.push(Statement::Label(word));
                    }
                }
                Some(Token::Word(_)) => found.push(Statement::Instruction(self.instruction()?)),
                _ => return self.unexpected("an instruction or `}`"),
            }
        }
    }

    fn prototype(&mut self) -> Result<Prototype<'a>, PtxError> {
        let returns = if self.peek() == Some(Token::Sign('(')) { self.parameters()? } else { Vec::new() };
        self.word()?;
        let parameters = if self.peek() == Some(Token::Sign('(')) { self.parameters()? } else { Vec::new() };
        self.take_word(".noreturn");
        self.sign(';')?;
        Ok(Prototype { returns, parameters })
    }

    fn names(&mut self) -> Result<Vec<&'a str>, PtxError> {
        let mut names = vec![self.word()?];
        while self.take_sign(',') {
            names.push(self.word()?);
        }
        Ok(names)
    }

    fn registers(&mut self, found: &mut Vec<Statement<'a>>) -> Result<(), PtxError> {
        self.at += 1;
        let word = self.word()?;
        let Some(kind) = Type::named(word.trim_start_matches('.')) else {
            return self.error(format!("registers of type `{word}` are not supported"));
        };
        loop {
            let name = self.word()?;
            let count = if self.take_sign('<') {
                let count = self.integer()?;
                self.sign('>')?;
                Some(count)
            } else {
                None
            };
            found.push(Statement::Register { kind, name, count });
            if !self.take_sign(',') {
                return self.sign(';');
            }
        }
    }

    fn instruction(&mut self) -> Result<Line<'a>, PtxError> {
        let guard = if self.take_sign('@') {
            let negated = self.take_sign('!');
            Some((self.word()?, negated))
        } else {
            None
        };
        let line = self.line();
        let opcode = self.word()?;
        let mut operands = Vec::new();
        while !self.take_sign(';') {
            operands.push(self.operand()?);
            if !self.take_sign(',') {
                self.sign(';')?;
                break;
            }
        }
        Ok(Line { line, guard, opcode, operands })
    }

    fn operand(&mut self) -> Result<Operand<'a>, PtxError> {
        match self.peek() {
            Some(Token::Sign('[')) => {
                self.at += 1;
                let operand = self.address()?;
                self.sign(']')?;
                Ok(operand)
            }
            Some(Token::Sign('{')) => {
                self.at += 1;
                Ok(Operand::Vector(self.operands('}')?))
            }
            Some(Token::Sign('(')) => {
                self.at += 1;
                Ok(Operand::List(self.operands(')')?))
            }
            Some(Token::Sign('!')) => {
                self.at += 1;
                Ok(Operand::Not(self.word()?))
            }
            Some(Token::Word(word)) => {
                self.at += 1;
                if self.take_sign('|') {
                    return Ok(Operand::Pair(word, self.word()?));
                }
                let offset = self.offset()?;
                Ok(if offset == 0 { Operand::Name(word) } else { Operand::Offset(word, offset) })
            }
            _ => Ok(Operand::Number(self.number()?)),
        }
    }

    fn address(&mut self) -> Result<Operand<'a>, PtxError> {
        if let Some(Token::Word(word)) = self.peek() {
            self.at += 1;
            let offset = self.offset()?;
            return Ok(Operand::Address(Some(word), offset));
        }
        match self.number()? {
            Number::Integer(value) => Ok(Operand::Address(None, value.cast_signed())),
            Number::Single(_) | Number::Double(_) => self.error("an address must be a whole number"),
        }
    }

    fn operands(&mut self, end: char) -> Result<Vec<Operand<'a>>, PtxError> {
        let mut found = Vec::new();
        while !self.take_sign(end) {
            found.push(self.operand()?);
            self.take_sign(',');
        }
        Ok(found)
    }
}
