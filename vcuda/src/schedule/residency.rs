//! Which blocks are resident: room on the multiprocessors, in the order in which kernels have started.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::order::Work;
use super::work::LOOK_AGAIN;
use super::{Surroundings, World};
use crate::driver::CUresult;
use crate::machine::{Gpu as Model, Limits};
use crate::simt::{Block, GpuStores, Grid, LaunchConfig};
use crate::space::View;

/// What a block needs of a multiprocessor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Threads, a multiple of 32.
    pub threads: u32,
    /// Registers.
    pub registers: u32,
    /// Shared memory, with what the driver takes.
    pub shared_bytes: u32,
}

/// How many blocks fit on a multiprocessor.
#[derive(Debug, Clone, Copy)]
pub struct Occupancy<'a>(pub &'a Limits);

impl Occupancy<'_> {
    /// What a block of a kernel needs.
    pub fn need(&self, threads: u32, registers: u32, shared_bytes: u32) -> Need {
        let warps = threads.div_ceil(32);
        let unit = self.0.register_unit.max(1);
        let per_warp = (registers.max(16) * 32).div_ceil(unit) * unit;
        Need {
            threads: warps * 32,
            registers: per_warp * warps,
            shared_bytes: shared_bytes.next_multiple_of(128) + self.0.shared_bytes_reserved,
        }
    }

    /// How many such blocks are resident on one multiprocessor, at most.
    pub fn blocks(&self, need: Need) -> u32 {
        let by = |limit: u32, each: u32| limit.checked_div(each).unwrap_or(u32::MAX);
        by(self.0.threads_per_sm, need.threads)
            .min(by(self.0.registers_per_sm, need.registers))
            .min(by(self.0.shared_bytes_per_sm, need.shared_bytes))
            .min(self.0.blocks_per_sm)
    }
}

/// A GPU's multiprocessors and the kernels on them.
#[derive(Debug)]
pub(super) struct Gpu {
    sms: Vec<Sm>,
    pub(super) grids: VecDeque<RunningGrid>,
    pub(super) blocks: VecDeque<Resident>,
    stores: Arc<GpuStores>,
    /// Since when this process has the GPU's turn.
    pub(super) turn_since: Option<Instant>,
    /// Whether this process has asked for the turn.
    pub(super) wants_turn: bool,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sm {
    threads: u32,
    registers: u32,
    shared_bytes: u32,
    blocks: u32,
}

/// A kernel whose blocks are, or are to become, resident.
#[derive(Debug)]
pub(super) struct RunningGrid {
    pub(super) operation: u64,
    priority: i32,
    grid: Arc<Grid>,
    size: [u32; 3],
    next: u64,
    /// Blocks that are resident.
    pub(super) resident: u64,
    need: Need,
    cooperative: bool,
    hangs: bool,
}

/// A resident block.
#[derive(Debug)]
pub(super) struct Resident {
    pub(super) operation: u64,
    pub(super) sm: usize,
    need: Need,
    /// Away while a worker runs it.
    pub(super) block: Option<Box<Block>>,
    pub(super) sleep: Option<Sleep>,
    /// How often it was called though no word had changed.
    pub(super) rests: u32,
    pub(super) hangs: bool,
}

/// Why a block has nothing to do.
#[derive(Debug, Clone)]
pub(super) struct Sleep {
    pub(super) since_change: u64,
    /// When it was looked whether the words have changed.
    pub(super) since: Instant,
    /// When it sees for itself at the latest: a loop may count, or look at a clock.
    pub(super) until: Instant,
    pub(super) polled: Vec<u64>,
    pub(super) what: String,
}

impl Resident {
    /// Whether the block has something to do, `changes` being the count of memory's changes.
    pub(super) fn can_run(&mut self, changes: u64, now: Instant) -> bool {
        let (Some(block), sleep) = (&self.block, &mut self.sleep) else { return false };
        let Some(sleep) = sleep else { return true };
        if sleep.since_change == changes && now < sleep.since + LOOK_AGAIN {
            return false;
        }
        (sleep.since_change, sleep.since) = (changes, now);
        let has_news = block.has_news();
        if has_news {
            self.rests = 0;
        }
        has_news || now >= sleep.until
    }
}

impl RunningGrid {
    pub(super) fn total(&self) -> u64 {
        self.size.iter().map(|side| u64::from(*side)).product()
    }

    pub(super) fn waiting(&self) -> u64 {
        self.total() - self.next
    }

    fn index(&self, linear: u64) -> [u32; 3] {
        let [x, y, _] = self.size.map(u64::from);
        let part = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
        [part(linear % x), part(linear / x % y), part(linear / x / y)]
    }
}

impl Gpu {
    pub(super) fn new(model: &Model) -> Gpu {
        Gpu {
            sms: vec![Sm::default(); model.sms as usize],
            grids: VecDeque::new(),
            blocks: VecDeque::new(),
            stores: Arc::new(GpuStores::new()),
            turn_since: None,
            wants_turn: false,
        }
    }

    /// Forgets kernels; blocks that a worker has in hand are dropped when it brings them back.
    pub(super) fn drop_grids(&mut self, operations: &[u64]) {
        self.grids.retain(|grid| !operations.contains(&grid.operation));
        let blocks = std::mem::take(&mut self.blocks);
        for resident in blocks {
            if operations.contains(&resident.operation) {
                self.leave(resident.sm, resident.need);
            } else {
                self.blocks.push_back(resident);
            }
        }
    }

    /// A block is done; true if it was its kernel's last.
    pub(super) fn retire(&mut self, operation: u64, sm: usize) -> bool {
        let is_it =
            |resident: &Resident| resident.operation == operation && resident.sm == sm && resident.block.is_none();
        if let Some(at) = self.blocks.iter().position(is_it)
            && let Some(resident) = self.blocks.remove(at)
        {
            self.leave(sm, resident.need);
        }
        let Some(at) = self.grids.iter().position(|grid| grid.operation == operation) else { return false };
        self.grids[at].resident -= 1;
        let is_over = self.grids[at].resident == 0 && self.grids[at].waiting() == 0;
        if is_over {
            self.grids.remove(at);
        }
        is_over
    }

    fn leave(&mut self, sm: usize, need: Need) {
        let sm = &mut self.sms[sm];
        sm.threads -= need.threads;
        sm.registers -= need.registers;
        sm.shared_bytes -= need.shared_bytes;
        sm.blocks -= 1;
    }

    fn enter(&mut self, sm: usize, need: Need) {
        let sm = &mut self.sms[sm];
        sm.threads += need.threads;
        sm.registers += need.registers;
        sm.shared_bytes += need.shared_bytes;
        sm.blocks += 1;
    }

    /// The least crowded multiprocessor with room, as hardware spreads blocks.
    fn room(&self, limits: &Limits, need: Need) -> Option<usize> {
        let fits = |sm: &Sm| {
            sm.threads + need.threads <= limits.threads_per_sm
                && sm.registers + need.registers <= limits.registers_per_sm
                && sm.shared_bytes + need.shared_bytes <= limits.shared_bytes_per_sm
                && sm.blocks < limits.blocks_per_sm
        };
        let roomy = self.sms.iter().enumerate().filter(|(_, sm)| fits(sm));
        roomy.min_by_key(|(_, sm)| sm.blocks).map(|(index, _)| index)
    }

    /// Makes blocks of the kernels resident, oldest kernel of the highest priority first: while one has blocks left that
    /// find no room, those behind it get none.
    fn dispatch(&mut self, limits: &Limits) {
        for at in 0..self.grids.len() {
            if self.grids[at].cooperative && self.grids[at].next == 0 && !self.whole_grid_fits(limits, at) {
                return;
            }
            while self.grids[at].waiting() > 0 {
                let need = self.grids[at].need;
                let Some(sm) = self.room(limits, need) else { return };
                self.enter(sm, need);
                let grid = &mut self.grids[at];
                let index = grid.index(grid.next);
                grid.next += 1;
                grid.resident += 1;
                let block = Box::new(grid.grid.block(index, u32::try_from(sm).unwrap_or(0)));
                let (operation, hangs) = (grid.operation, grid.hangs);
                self.blocks.push_back(Resident {
                    operation,
                    sm,
                    need,
                    block: Some(block),
                    sleep: None,
                    rests: 0,
                    hangs,
                });
            }
        }
    }

    fn whole_grid_fits(&self, limits: &Limits, at: usize) -> bool {
        let grid = &self.grids[at];
        let mut trial = Gpu {
            sms: self.sms.clone(),
            grids: VecDeque::new(),
            blocks: VecDeque::new(),
            stores: Arc::clone(&self.stores),
            turn_since: None,
            wants_turn: false,
        };
        (0..grid.total()).all(|_| match trial.room(limits, grid.need) {
            Some(sm) => {
                trial.enter(sm, grid.need);
                true
            }
            None => false,
        })
    }
}

impl World {
    /// A kernel has started: it waits for room, behind those of its priority.
    pub(super) fn enlist(&mut self, operation: u64) {
        self.pending_kernels.push_back(operation);
    }

    /// Makes grids of kernels that have started, and blocks of grids resident.
    pub(super) fn make_resident(&mut self, around: &Surroundings) {
        while let Some(id) = self.pending_kernels.pop_front() {
            self.make_grid(around, id);
        }
        for (gpu, model) in self.gpus.iter_mut().zip(&around.machine.gpus) {
            gpu.dispatch(&model.limits);
        }
    }

    fn make_grid(&mut self, around: &Surroundings, id: u64) {
        let Some(operation) = self.operations.get(&id) else { return };
        let Work::Kernel(launch) = &operation.work else { return };
        let (context, gpu, priority) = (operation.context, operation.gpu, operation.priority);
        let model = &around.machine.gpus[gpu as usize];
        let config = LaunchConfig {
            grid: launch.grid,
            block: launch.block,
            dynamic_shared_bytes: launch.shared_bytes,
            stack_bytes: launch.stack_bytes,
            parameters: launch.parameters.clone(),
            cooperative: launch.cooperative,
            gpu,
            sm_count: model.sms,
            seed: around.conduct.seed ^ id.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            weak: around.machine.weak,
            checks: around.machine.checks,
            mutation: None,
        };
        let view = Arc::new(View::new(Arc::clone(&around.space), context, gpu));
        let stores = Arc::clone(&self.gpus[gpu as usize].stores);
        let running =
            Grid::new(Arc::clone(&launch.function), &launch.globals, config, view, stores).map(|grid| RunningGrid {
                operation: id,
                priority,
                grid: Arc::new(grid),
                size: launch.grid,
                next: 0,
                resident: 0,
                need: launch.need,
                cooperative: launch.cooperative,
                hangs: launch.hangs,
            });
        match running {
            Ok(running) => {
                let grids = &mut self.gpus[gpu as usize].grids;
                // A kernel of higher priority goes before those of which no block is resident yet.
                let behind = |grid: &RunningGrid| grid.resident > 0 || grid.priority <= running.priority;
                let at = grids.iter().rposition(behind).map_or(0, |at| at + 1);
                grids.insert(at, running);
            }
            Err(error) => {
                let what = format!("kernel {} cannot start: {error}", launch.function.name);
                self.fail(context, CUresult::LAUNCH_FAILED, &what);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn occupancy_is_that_of_the_scarcest_resource() {
        let machine = Machine::load("1").expect("a ready machine");
        let occupancy = Occupancy(&machine.gpus[0].limits);
        let blocks = |threads, registers, shared| occupancy.blocks(occupancy.need(threads, registers, shared));
        assert_eq!(blocks(1024, 32, 0), 2, "threads");
        assert_eq!(blocks(32, 16, 0), 32, "blocks");
        assert_eq!(blocks(256, 255, 0), 1, "registers");
        assert_eq!(blocks(64, 32, 100 << 10), 2, "shared memory");
    }
}
