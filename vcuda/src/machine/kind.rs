//! The products that a machine file may name: what a program can ask of each.

/// What an SM of a GPU holds at a time, what a block may ask for, and clocks for those who print them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// 32-bit registers of an SM.
    pub registers_per_sm: u32,
    /// Registers are given to warps in units of this many.
    pub register_unit: u32,
    /// Shared memory of an SM.
    pub shared_bytes_per_sm: u32,
    /// Shared memory that a block has without asking.
    pub shared_bytes_per_block: u32,
    /// Shared memory that a block has when its function asks by `cuFuncSetAttribute`.
    pub shared_bytes_per_block_optin: u32,
    /// Shared memory that the driver takes of each resident block.
    pub shared_bytes_reserved: u32,
    /// Resident threads of an SM.
    pub threads_per_sm: u32,
    /// Resident blocks of an SM.
    pub blocks_per_sm: u32,
    /// L2 cache.
    pub l2_bytes: u32,
    /// Clock of the SMs.
    pub clock_khz: u32,
    /// Clock of the memory.
    pub memory_clock_khz: u32,
    /// Width of the memory's bus.
    pub memory_bus_bits: u32,
}

/// A product.
pub(super) struct Kind {
    pub(super) kind: &'static str,
    pub(super) name: &'static str,
    pub(super) capability: (u32, u32),
    pub(super) memory_mib: u64,
    pub(super) sms: u32,
    pub(super) pcie_generation: u32,
    pub(super) limits: Limits,
}

pub(super) fn find(kind: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|known| known.kind == kind)
}

pub(super) fn names() -> String {
    KINDS.iter().map(|kind| kind.kind).collect::<Vec<_>>().join(", ")
}

/// Figures of the CUDA programming guide's table of compute capabilities, and of the products' data sheets.
const KINDS: [Kind; 4] = [
    Kind {
        kind: "a100",
        name: "NVIDIA A100-SXM4-80GB",
        capability: (8, 0),
        memory_mib: 81_920,
        sms: 108,
        pcie_generation: 4,
        limits: Limits {
            shared_bytes_per_sm: 164 << 10,
            shared_bytes_per_block_optin: 163 << 10,
            l2_bytes: 40 << 20,
            clock_khz: 1_410_000,
            memory_clock_khz: 1_593_000,
            memory_bus_bits: 5_120,
            ..COMMON
        },
    },
    Kind {
        kind: "h100",
        name: "NVIDIA H100 80GB HBM3",
        capability: (9, 0),
        memory_mib: 81_559,
        sms: 132,
        pcie_generation: 5,
        limits: COMMON,
    },
    Kind {
        kind: "b200",
        name: "NVIDIA B200",
        capability: (10, 0),
        memory_mib: 183_359,
        sms: 148,
        pcie_generation: 5,
        limits: Limits {
            l2_bytes: 126 << 20,
            clock_khz: 1_965_000,
            memory_clock_khz: 3_996_000,
            memory_bus_bits: 8_192,
            ..COMMON
        },
    },
    Kind {
        kind: "rtx5090",
        name: "NVIDIA GeForce RTX 5090",
        capability: (12, 0),
        memory_mib: 32_607,
        sms: 170,
        pcie_generation: 5,
        limits: Limits {
            shared_bytes_per_sm: 100 << 10,
            shared_bytes_per_block_optin: 99 << 10,
            threads_per_sm: 1_536,
            l2_bytes: 96 << 20,
            clock_khz: 2_407_000,
            memory_clock_khz: 14_001_000,
            memory_bus_bits: 512,
            ..COMMON
        },
    },
];

const COMMON: Limits = Limits {
    registers_per_sm: 65_536,
    register_unit: 256,
    shared_bytes_per_sm: 228 << 10,
    shared_bytes_per_block: 48 << 10,
    shared_bytes_per_block_optin: 227 << 10,
    shared_bytes_reserved: 1 << 10,
    threads_per_sm: 2_048,
    blocks_per_sm: 32,
    l2_bytes: 50 << 20,
    clock_khz: 1_980_000,
    memory_clock_khz: 2_619_000,
    memory_bus_bits: 5_120,
};
