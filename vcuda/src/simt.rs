//! Kernels in execution: blocks of warps of 32 threads, interpreted instruction by instruction.
//!
//! A driver makes a [`Grid`] of a kernel's launch, and a [`Block`] of each of its blocks when the block becomes resident;
//! it then calls [`Block::step`] in turns, from any of its threads, until the block is done. The interpreter allocates
//! no device memory and knows no addresses: it asks the driver by [`GlobalMemory`].

mod access;
mod block;
mod calls;
mod defined;
mod definedness;
mod execute;
mod grid;
mod memory;
mod poll;
mod races;
mod random;
mod shadow;
mod stores;
mod together;
mod translate;
mod update;
mod warp;
mod weak;

pub use block::Block;
pub use grid::Grid;
pub use memory::{Extent, GlobalMemory, GpuStores, Home, MemoryFault, SHADOW_BYTES_PER_16};

use std::collections::HashMap;
use std::fmt;

/// Device addresses of a module's variables, by name: the driver allocates them when it loads the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModuleGlobals {
    /// Address by name.
    pub addresses: HashMap<String, u64>,
}

/// What a launch asks for.
#[derive(Debug, Clone)]
pub struct LaunchConfig {
    /// Blocks in x, y, z.
    pub grid: [u32; 3],
    /// Threads a block in x, y, z.
    pub block: [u32; 3],
    /// Shared memory beside what the kernel declares itself.
    pub dynamic_shared_bytes: u32,
    /// A thread's stack, for functions that call themselves or are called by their address.
    pub stack_bytes: u32,
    /// The block of parameters, laid out as [`Function::parameters`](crate::ptx::Function::parameters) says.
    pub parameters: Vec<u8>,
    /// Whether all blocks are resident together.
    pub cooperative: bool,
    /// The GPU on which it runs, as [`GlobalMemory::extent`] counts.
    pub gpu: u32,
    /// Multiprocessors of that GPU (`%nsmid`).
    pub sm_count: u32,
    /// From which all random choices come.
    pub seed: u64,
    /// Whether stores are seen late and loads may be old, within what PTX allows.
    pub weak: bool,
    /// Whether uses of undefined bytes and races in shared memory are faults.
    pub checks: bool,
    /// A defect of the memory model, on purpose; always `None` but in tests.
    pub mutation: Option<Mutation>,
}

/// A defect of the memory model, on purpose: the litmus tests must notice each, or they would not notice a real one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mutation {
    /// Releases and fences order no stores.
    Release,
    /// Acquires and fences order no loads.
    Acquire,
    /// `fence.sc` leaves stores in their queues.
    Sequential,
    /// `bar.sync` orders nothing.
    Barrier,
    /// Stores of one thread to one address may cross.
    SameAddress,
    /// A weak load may go back behind a strong load of the same address.
    LoadOrder,
    /// 8 bytes are stored as two halves.
    Doubleword,
    /// Lines of 128 bytes are torn also where the path keeps them whole.
    Line,
    /// An atomic operation's store goes through the queue.
    Atomic,
}

/// What became of a call of [`Block::step`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Instructions were run, and there are more.
    Ran,
    /// Every warp waits, and at least one polls memory. Call again when [`GlobalMemory::changes`] differs from
    /// `since_change`, and about every millisecond all the same: the host stores into pinned memory without a word.
    Sleeping {
        /// The count of changes at which the block looked last.
        since_change: u64,
        /// The polled words, for a report of who waits for whom: addresses, in order, without duplicates.
        polled: Vec<u64>,
        /// The same as a sentence, with the PTX line.
        what: String,
    },
    /// Every thread has ended.
    Done,
    /// A thread did what it must not; the grid is over.
    Fault(KernelFault),
}

/// What a thread did wrong, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelFault {
    /// The kind, from which the driver takes its code.
    pub kind: FaultKind,
    /// The kernel's name.
    pub kernel: String,
    /// The line of the PTX text.
    pub line: u32,
    /// The block's index.
    pub block: [u32; 3],
    /// The thread's index in its block.
    pub thread: [u32; 3],
    /// The address that it used, where it used one.
    pub address: Option<u64>,
    /// What is wrong, as a sentence.
    pub what: String,
}

/// Kinds of faults, by the code that the real driver gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`: not mapped, freed, out of bounds, no peer access.
    IllegalAddress,
    /// `CUDA_ERROR_MISALIGNED_ADDRESS`.
    MisalignedAddress,
    /// `CUDA_ERROR_ASSERT`: a failed `assert`.
    Assert,
    /// `CUDA_ERROR_LAUNCH_FAILED` too, as the driver 13.0 gives it on an H200: `trap`, `brkpt`.
    Trap,
    /// `CUDA_ERROR_HARDWARE_STACK_ERROR`: calls deeper than the stack.
    StackError,
    /// `CUDA_ERROR_INVALID_PC`: a call of what is no function.
    InvalidCounter,
    /// `CUDA_ERROR_LAUNCH_FAILED`: a check that hardware does not have (undefined bytes, races), or a block that can
    /// never go on.
    LaunchFailed,
}

/// Why a launch is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchError {
    /// What is wrong, as a sentence.
    pub what: String,
}

impl fmt::Display for KernelFault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([bx, by, bz], [x, y, z]) = (self.block, self.thread);
        write!(
            formatter,
            "kernel {}, PTX line {}, block ({bx}, {by}, {bz}), thread ({x}, {y}, {z})",
            self.kernel, self.line
        )?;
        if let Some(address) = self.address {
            write!(formatter, ", address {address:#x}")?;
        }
        write!(formatter, ": {}", self.what)
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.what)
    }
}

impl std::error::Error for LaunchError {}
