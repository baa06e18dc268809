//! The decoded form that the interpreter runs.
//!
//! Registers and constants are rows, numbered together, and some registers share one ([`registers`](super::registers)). A
//! constant is a row that the interpreter fills once. Predicates
//! are bit masks over the lanes, numbered apart; predicate 0 is always true.

use super::types::{Order, Scope, Space, Type};
use crate::alu::convert::Conversion;
use crate::alu::{Binary, Ternary, Test, Unary};

/// Number of a row.
pub(crate) type RowIndex = u32;

/// A predicate, perhaps negated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flag {
    pub(crate) index: u32,
    pub(crate) negated: bool,
}

impl Flag {
    /// The flag that is always set.
    pub(crate) const TRUE: Self = Self { index: 0, negated: false };
}

/// An instruction.
#[derive(Debug, Clone)]
pub(crate) struct Instruction {
    /// Lanes whose flag is unset skip it.
    pub(crate) guard: Flag,
    /// Its line in the PTX text.
    pub(crate) line: u32,
    pub(crate) op: Op,
}

/// What happens to a float's sources and result beside the operation itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Float {
    /// `.ftz`
    pub(crate) flush: bool,
    /// `.sat`, of results of this type.
    pub(crate) saturate: Option<Type>,
}

impl Float {
    /// Whether there is nothing to do.
    pub(crate) fn is_plain(self) -> bool {
        self == Self::default()
    }
}

/// An address: a row, plus bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Address {
    pub(crate) base: RowIndex,
    pub(crate) offset: i64,
    pub(crate) space: Space,
}

/// A special register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Special {
    Thread(usize),
    BlockSize(usize),
    BlockIndex(usize),
    GridSize(usize),
    Lane,
    Warp,
    Warps,
    Multiprocessor,
    Multiprocessors,
    GridId,
    LanesEqual,
    LanesBelow,
    LanesBelowOrEqual,
    LanesAbove,
    LanesAboveOrEqual,
    Clock,
    ClockHigh,
    Clock64,
    GlobalTimer,
    GlobalTimerLow,
    GlobalTimerHigh,
    DynamicSharedBytes,
    TotalSharedBytes,
    Zero,
}

/// How two predicates make one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logic {
    And,
    Or,
    Xor,
}

/// A comparison's result joined with another predicate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Join {
    pub(crate) logic: Logic,
    pub(crate) with: Flag,
}

/// What an atomic operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Update {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exchange,
    CompareExchange,
    Increment,
    Decrement,
}

/// What a barrier reduces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BarrierReduce {
    Count(RowIndex),
    And(u32),
    Or(u32),
}

/// What a vote asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Vote {
    Any(u32),
    All(u32),
    Uniform(u32),
    Ballot(RowIndex),
}

/// Where a lane takes its value from in a shuffle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Index,
    Up,
    Down,
    Butterfly,
}

/// An operation.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Unary {
        run: Unary,
        d: RowIndex,
        a: RowIndex,
        float: Float,
    },
    Binary {
        run: Binary,
        d: RowIndex,
        a: RowIndex,
        b: RowIndex,
        float: Float,
    },
    Ternary {
        run: Ternary,
        d: RowIndex,
        abc: [RowIndex; 3],
        float: Float,
    },
    Convert {
        conversion: Conversion,
        d: RowIndex,
        a: RowIndex,
    },
    /// Sign-extends (or cuts) `from` bits to `to` bits.
    Extend {
        d: RowIndex,
        a: RowIndex,
        from: u32,
        to: u32,
        signed: bool,
    },
    Insert {
        d: RowIndex,
        value: RowIndex,
        into: RowIndex,
        position: RowIndex,
        length: RowIndex,
        width: u32,
    },
    Logic3 {
        d: RowIndex,
        abc: [RowIndex; 3],
        table: u8,
    },
    /// `add.cc` and its like; the carry is a predicate.
    Carry {
        d: RowIndex,
        a: RowIndex,
        b: RowIndex,
        bits: u32,
        subtract: bool,
        carry_in: Option<u32>,
        carry_out: Option<u32>,
    },
    Move {
        d: RowIndex,
        a: RowIndex,
    },
    /// Rows to rows, all at once.
    Pack {
        d: RowIndex,
        parts: Vec<RowIndex>,
        bits: u32,
    },
    Unpack {
        parts: Vec<Option<RowIndex>>,
        a: RowIndex,
        bits: u32,
    },
    Special {
        d: RowIndex,
        which: Special,
        bits: u32,
    },
    Compare {
        run: Test,
        d: Option<u32>,
        inverse: Option<u32>,
        a: RowIndex,
        b: RowIndex,
        join: Option<Join>,
        flush: bool,
    },
    /// `setp` of pairs: the low parts give `d`, the high ones `high`.
    ComparePair {
        run: Test,
        d: u32,
        high: u32,
        a: RowIndex,
        b: RowIndex,
        join: Option<Join>,
    },
    /// `set`: `yes` or 0.
    Set {
        run: Test,
        d: RowIndex,
        a: RowIndex,
        b: RowIndex,
        join: Option<Join>,
        yes: u64,
        flush: bool,
    },
    Select {
        d: RowIndex,
        a: RowIndex,
        b: RowIndex,
        flag: Flag,
    },
    Predicate {
        logic: Logic,
        d: u32,
        a: Flag,
        b: Flag,
    },
    Jump {
        target: u32,
    },
    JumpTable {
        index: RowIndex,
        targets: Vec<u32>,
    },
    Exit,
    Trap,
    /// `__assertfail`: the four parameters' offsets in local memory, or in the frame of this row.
    AssertFail {
        parameters: [u32; 4],
        frame: Option<RowIndex>,
    },
    /// A call of a function with a frame; the caller's places lie in local memory, or in its own frame.
    Call {
        callee: Callee,
        frame: Option<RowIndex>,
        returns: Vec<Place>,
        parameters: Vec<Place>,
    },
    /// The end of a function with a frame.
    Return,
    Load {
        to: Vec<Option<RowIndex>>,
        kind: Type,
        register_bits: u32,
        order: Order,
        address: Address,
    },
    Store {
        from: Vec<RowIndex>,
        kind: Type,
        order: Order,
        address: Address,
    },
    Atomic {
        update: Update,
        d: Option<RowIndex>,
        kind: Type,
        order: Order,
        address: Address,
        b: RowIndex,
        c: RowIndex,
    },
    Fence {
        scope: Scope,
        sequential: bool,
    },
    Barrier {
        id: RowIndex,
        count: Option<RowIndex>,
        reduce: Option<(BarrierReduce, Flag)>,
        arrive: bool,
    },
    WarpBarrier {
        mask: RowIndex,
    },
    Vote {
        vote: Vote,
        flag: Flag,
        mask: RowIndex,
    },
    Match {
        d: RowIndex,
        all: Option<u32>,
        is_all: bool,
        a: RowIndex,
        mask: RowIndex,
    },
    Shuffle {
        shuffle: Shuffle,
        d: RowIndex,
        valid: Option<u32>,
        a: RowIndex,
        b: RowIndex,
        c: RowIndex,
        mask: RowIndex,
    },
    Reduce {
        update: Update,
        kind: Type,
        d: RowIndex,
        a: RowIndex,
        mask: RowIndex,
    },
    Elect {
        d: Option<RowIndex>,
        flag: u32,
        mask: RowIndex,
    },
    ActiveMask {
        d: RowIndex,
    },
    /// `nanosleep`: lets others go first.
    Pause,
    Nothing,
    /// `isspacep`
    IsSpace {
        space: Space,
        d: u32,
        a: RowIndex,
    },
}

/// Where a constant row's value comes from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Constant {
    Value(u64),
    /// The address of a variable of the module.
    Global(String, i64),
    /// A kernel parameter, sign-extended to `bits` where asked.
    Parameter {
        offset: u32,
        bytes: u32,
        signed: bool,
        bits: u32,
    },
    /// Where the launch's own shared memory begins, plus bytes.
    DynamicShared(i64),
}

/// Some bytes of local memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) offset: u32,
    pub(crate) bytes: u32,
}

/// Which function a call reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Callee {
    /// The routine of this number.
    Routine(u32),
    /// The one whose address is in a row.
    Address(RowIndex),
}

/// A function with a frame: it calls itself, or is called by its address.
#[derive(Debug, Clone)]
pub(crate) struct Routine {
    pub(crate) name: String,
    pub(crate) address: u64,
    /// Position of its first instruction.
    pub(crate) entry: u32,
    /// The row with its frame's address.
    pub(crate) frame: RowIndex,
    pub(crate) frame_bytes: u32,
    /// Its rows and predicates, which a call of it from within itself saves.
    pub(crate) rows: Vec<RowIndex>,
    pub(crate) flags: std::ops::Range<u32>,
    /// Where its results and parameters lie in its frame.
    pub(crate) returns: Vec<Place>,
    pub(crate) parameters: Vec<Place>,
}

/// A kernel's instructions, and what a thread needs to run them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Program {
    pub(crate) code: Vec<Instruction>,
    /// Rows in all, constants among them.
    pub(crate) rows: u32,
    pub(crate) constants: Vec<(RowIndex, Constant)>,
    pub(crate) predicates: u32,
    /// Offset of the dynamic shared memory.
    pub(crate) dynamic_shared: u32,
    /// Functions with frames.
    pub(crate) routines: Vec<Routine>,
}
