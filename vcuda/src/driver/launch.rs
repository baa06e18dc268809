//! Launches of kernels: the checks of their shape, and the way into a stream or a capture.

use super::{CUresult, Driver, Outcome};
use crate::fault;
use crate::schedule::{Launch, Occupancy, Reason, Work};

/// The parameters of a launch, laid out as the kernel has them.
#[derive(Debug, Clone, Default)]
pub struct Parameters(pub Vec<u8>);

/// What a launch asks for.
#[derive(Debug, Clone)]
pub struct LaunchRequest {
    /// The function's handle.
    pub function: u64,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// The stream's handle.
    pub stream: u64,
    /// The parameters.
    pub parameters: Parameters,
    /// Whether all blocks must be resident together.
    pub cooperative: bool,
}

/// Blocks in x, y and z, at most.
const GRID: [u32; 3] = [u32::MAX >> 1, 65_535, 65_535];
/// Threads of a block in x, y and z, at most.
const BLOCK: [u32; 3] = [1024, 1024, 64];

impl Driver {
    /// `cuLaunchKernel` and its kin.
    pub fn launch(&self, request: LaunchRequest) -> Outcome {
        let function = self.function(request.function)?;
        let (_, current) = self.stream(request.stream)?;
        if function.context != current.context {
            return Err(if request.stream <= 2 { CUresult::INVALID_CONTEXT } else { CUresult::INVALID_HANDLE });
        }
        let in_range = |sides: [u32; 3], limits: [u32; 3]| {
            sides.iter().zip(limits).all(|(side, limit)| (1..=limit).contains(side))
        };
        if !in_range(request.grid, GRID) || !in_range(request.block, BLOCK) {
            return Err(CUresult::INVALID_VALUE);
        }
        let threads: u32 = request.block.iter().product();
        if threads > function.function.max_threads.min(1024) {
            return Err(CUresult::INVALID_VALUE);
        }
        if request.shared_bytes > self.dynamic_limit(&function) {
            return Err(CUresult::INVALID_VALUE);
        }
        if request.parameters.0.len() != function.function.parameter_bytes() as usize {
            return Err(CUresult::INVALID_VALUE);
        }
        let blocks_per_sm = self.blocks_per_sm(&function, threads, request.shared_bytes);
        if blocks_per_sm == 0 {
            return Err(CUresult::LAUNCH_OUT_OF_RESOURCES);
        }
        let model = &self.machine.gpus[current.gpu as usize];
        let blocks: u64 = request.grid.iter().map(|side| u64::from(*side)).product();
        if request.cooperative && blocks > u64::from(blocks_per_sm) * u64::from(model.sms) {
            return Err(CUresult::COOPERATIVE_LAUNCH_TOO_LARGE);
        }
        self.function_load(request.function)?;
        let shared = function.function.static_shared_bytes + request.shared_bytes;
        let need = Occupancy(&model.limits).need(threads, function.function.registers_on(model.capability), shared);
        let hangs = fault::hangs(&function.function.name);
        let launch = Launch {
            function: function.function,
            globals: function.globals,
            grid: request.grid,
            block: request.block,
            shared_bytes: request.shared_bytes,
            stack_bytes: self.stack_bytes()?,
            parameters: request.parameters.0,
            cooperative: request.cooperative,
            need,
            hangs,
        };
        let operation = self.enqueue(request.stream, Work::Kernel(Box::new(launch)))?;
        match operation.filter(|_| self.settings.launch_blocking) {
            Some(operation) => self.engine.wait_for(current.context, vec![operation], Reason::Asked),
            None => Ok(()),
        }
    }
}
