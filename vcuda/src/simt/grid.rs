//! A launch: what all its blocks share.

use super::block::Block;
use super::memory::{GlobalMemory, GpuStores};
use super::{LaunchConfig, LaunchError, ModuleGlobals};
use crate::alu::convert::extend;
use crate::ptx::FRAME_ALIGN;
use crate::ptx::Function;
use crate::ptx::instruction::{Constant, RowIndex};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// A kernel's launch, shared by its blocks.
pub struct Grid {
    pub(super) function: Arc<Function>,
    pub(super) config: LaunchConfig,
    pub(super) memory: Arc<dyn GlobalMemory>,
    pub(super) stores: Arc<GpuStores>,
    /// The values of the constant rows.
    pub(super) constants: Vec<(RowIndex, u64)>,
    pub(super) begun: Instant,
    pub(super) id: u64,
}

/// Threads of a block, on every architecture so far.
const THREADS: u32 = 1024;
static GRIDS: AtomicU64 = AtomicU64::new(1);
static BLOCKS: AtomicU32 = AtomicU32::new(1);

impl Grid {
    /// Prepares a launch.
    ///
    /// # Errors
    /// Sizes that no GPU takes, parameters of another size than the kernel's, a variable without address.
    pub fn new(
        function: Arc<Function>,
        globals: &Arc<ModuleGlobals>,
        config: LaunchConfig,
        memory: Arc<dyn GlobalMemory>,
        stores: Arc<GpuStores>,
    ) -> Result<Self, LaunchError> {
        let threads = config.block.iter().try_fold(1u32, |product, size| product.checked_mul(*size));
        let limit = THREADS.min(function.max_threads);
        if !threads.is_some_and(|threads| (1..=limit).contains(&threads)) || config.block[2] > 64 {
            let [x, y, z] = config.block;
            return refused(format!(
                "a block of {x} x {y} x {z} threads: {} allows 1 to {limit}, z at most 64",
                function.name
            ));
        }
        let [x, y, z] = config.grid;
        if x == 0 || y == 0 || z == 0 || x > 0x7fff_ffff || y > 65_535 || z > 65_535 {
            return refused(format!("a grid of {x} x {y} x {z} blocks: x is 1 to 2,147,483,647, y and z 1 to 65,535"));
        }
        let wanted = function.parameter_bytes() as usize;
        if config.parameters.len() < wanted {
            let got = config.parameters.len();
            return refused(format!("{} takes {wanted} bytes of parameters, got {got}", function.name));
        }
        let mut constants = Vec::new();
        for (row, constant) in &function.program.constants {
            constants.push((*row, resolve(constant, globals, &config, function.program.dynamic_shared)?));
        }
        let id = GRIDS.fetch_add(1, Ordering::Relaxed);
        Ok(Self { function, config, memory, stores, constants, begun: Instant::now(), id })
    }

    /// Makes a block resident on multiprocessor `sm`.
    #[must_use]
    pub fn block(self: &Arc<Self>, index: [u32; 3], sm: u32) -> Block {
        Block::new(Arc::clone(self), index, sm, BLOCKS.fetch_add(1, Ordering::Relaxed))
    }

    /// Where in a thread's local memory its first frame begins.
    pub(super) fn first_frame(&self) -> u32 {
        self.function.local_bytes.next_multiple_of(FRAME_ALIGN)
    }

    /// Bytes of local memory of each thread, the stack included where there are calls that need it.
    pub(super) fn local_bytes(&self) -> u32 {
        if self.function.program.routines.is_empty() {
            self.function.local_bytes
        } else {
            self.first_frame() + self.config.stack_bytes
        }
    }

    /// Bytes of shared memory of each block.
    #[must_use]
    pub fn shared_bytes(&self) -> u32 {
        let program = &self.function.program;
        let fixed = self.function.static_shared_bytes;
        if self.config.dynamic_shared_bytes == 0 {
            fixed
        } else {
            program.dynamic_shared + self.config.dynamic_shared_bytes
        }
    }
}

impl std::fmt::Debug for Grid {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("Grid")
            .field("kernel", &self.function.name)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

fn refused<T>(what: String) -> Result<T, LaunchError> {
    Err(LaunchError { what })
}

fn resolve(
    constant: &Constant,
    globals: &ModuleGlobals,
    config: &LaunchConfig,
    dynamic: u32,
) -> Result<u64, LaunchError> {
    Ok(match constant {
        Constant::Value(value) => *value,
        Constant::DynamicShared(offset) => (i64::from(dynamic) + offset).cast_unsigned(),
        Constant::Global(name, offset) => match globals.addresses.get(name) {
            Some(address) => address.wrapping_add_signed(*offset),
            None => return refused(format!("the variable `{name}` has no address")),
        },
        Constant::Parameter { offset, bytes, signed, bits } => {
            let (first, count) = (*offset as usize, *bytes as usize);
            let Some(source) = config.parameters.get(first..first + count) else {
                return refused(format!("bytes {first} to {} lie behind the parameters", first + count));
            };
            let mut value = [0; 8];
            value[..count].copy_from_slice(source);
            extend(u64::from_le_bytes(value), 8 * bytes, *bits, *signed)
        }
    })
}
