//! The types and spaces that PTX names.

/// A type of a register, variable or operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Type {
    /// Bits without meaning.
    B8,
    B16,
    B32,
    B64,
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    F32,
    F64,
    U16x2,
    S16x2,
    E4m3x2,
    E5m2x2,
    /// A predicate.
    Pred,
}

/// What the bits of a type mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Bits,
    Unsigned,
    Signed,
    Float,
    Packed,
    Predicate,
}

impl Type {
    /// The type of this name, written without its point.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "u16x2" => Self::U16x2,
            "s16x2" => Self::S16x2,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            "pred" => Self::Pred,
            _ => return None,
        })
    }

    /// Its width; a predicate counts as 1.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Pred => 1,
            Self::B8 | Self::U8 | Self::S8 => 8,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 | Self::E4m3x2 | Self::E5m2x2 => 16,
            Self::B32 | Self::U32 | Self::S32 | Self::F32 => 32,
            Self::F16x2 | Self::Bf16x2 | Self::U16x2 | Self::S16x2 => 32,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 64,
        }
    }

    /// Its width in memory.
    pub(crate) fn bytes(self) -> u32 {
        self.bits().div_ceil(8)
    }

    pub(crate) fn class(self) -> Class {
        match self {
            Self::B8 | Self::B16 | Self::B32 | Self::B64 => Class::Bits,
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Class::Unsigned,
            Self::S8 | Self::S16 | Self::S32 | Self::S64 => Class::Signed,
            Self::F16 | Self::Bf16 | Self::F32 | Self::F64 => Class::Float,
            Self::F16x2 | Self::Bf16x2 | Self::U16x2 | Self::S16x2 | Self::E4m3x2 | Self::E5m2x2 => Class::Packed,
            Self::Pred => Class::Predicate,
        }
    }

    pub(crate) fn is_signed(self) -> bool {
        self.class() == Class::Signed
    }
}

/// Where a load, store or variable lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    /// Found out from the address when the instruction runs.
    Generic,
    Global,
    Constant,
    Shared,
    Local,
    /// The kernel's parameters.
    Parameter,
}

/// Whose accesses a strong operation or fence orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    Block,
    Gpu,
    System,
}

/// The memory order of a load or store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// `weak`, and accesses that name none.
    Weak,
    /// `relaxed` and `volatile`.
    Relaxed(Scope),
    Acquire(Scope),
    Release(Scope),
    AcquireRelease(Scope),
}

/// First generic address of shared memory.
pub(crate) const SHARED_WINDOW: u64 = 0xfff1_0000_0000_0000;
/// First generic address of a thread's local memory.
pub(crate) const LOCAL_WINDOW: u64 = 0xfff2_0000_0000_0000;
/// First generic address of the kernel's parameters.
pub(crate) const PARAMETER_WINDOW: u64 = 0xfff3_0000_0000_0000;
/// First address of device functions.
pub(crate) const FUNCTION_WINDOW: u64 = 0xfff4_0000_0000_0000;
/// The bits of a generic address that tell the windows apart.
pub(crate) const WINDOW_MASK: u64 = 0xffff_0000_0000_0000;
