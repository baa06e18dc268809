//! The engine's threads: they run blocks of kernels, copies and fills, and call host functions.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::order::Work;
use super::residency::{Need, Sleep};
use super::{Shared, Surroundings, World};
use crate::driver::CUresult;
use crate::ptx::Function;
use crate::simt::{Block, FaultKind, KernelFault, ModuleGlobals, Step};
use crate::space::{Agent, TransferError};

/// Warp instructions of a block before another block has its turn.
const BUDGET: u32 = 2048;
/// How long a process keeps a GPU that others want, as on hardware.
const SLICE: Duration = Duration::from_millis(2);
/// The host stores into pinned memory without a word: sleepers look again after this long.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// Blocks whose words do not change run all the same after this long, since they may count.
const REST: Duration = Duration::from_millis(4);
/// Such rests in a row, until the longer ones.
const SHORT_RESTS: u32 = 64;
const LONG_REST: Duration = Duration::from_millis(64);
/// A worker that found nothing to run at this many changes of memory in a row looks again after `NAP` at the soonest, or
/// when there is new work: a kernel that runs changes memory all the time.
const LOOKS: u32 = 4;
const NAP: Duration = Duration::from_micros(100);
/// A worker without work looks again after this long, in case a wake-up was lost.
const IDLE: Duration = Duration::from_millis(50);

/// A kernel's launch.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The kernel.
    pub function: Arc<Function>,
    /// Where its module's variables lie.
    pub globals: Arc<ModuleGlobals>,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// A thread's stack.
    pub stack_bytes: u32,
    /// The block of parameters.
    pub parameters: Vec<u8>,
    /// Whether all blocks are resident together.
    pub cooperative: bool,
    /// What a block needs of a multiprocessor.
    pub need: Need,
    /// Whether it never ends: a fault that the test has asked for.
    pub hangs: bool,
}

/// A copy.
#[derive(Debug, Clone)]
pub struct Copy {
    /// First address of the target.
    pub target: u64,
    /// First address of the source.
    pub source: u64,
    /// Bytes.
    pub bytes: u64,
    /// What the source held at the call, where it is ordinary memory of the host that the call had to read at once.
    pub staged: Option<Arc<Vec<u8>>>,
}

/// What a worker does next.
enum Job {
    Transfer {
        id: u64,
        agent: Agent,
        work: Work,
    },
    Block {
        gpu: usize,
        operation: u64,
        sm: usize,
        block: Box<Block>,
    },
    /// Nothing, but something waits for memory or for the GPU's turn.
    Watch,
    Nothing,
}

thread_local! {
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a host function, which may not call the driver.
pub fn is_in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}

/// The life of a worker.
pub(super) fn run_worker(shared: &Shared) {
    let around = &shared.around;
    let state = around.space.state();
    let (mut first_gpu, mut looks) = (0, 0);
    loop {
        let seen = state.changes();
        let mut world = shared.lock();
        if world.start_what_can(around) {
            shared.announce(&mut world);
        }
        first_gpu += 1;
        let job = world.next_job(around, first_gpu);
        looks = if matches!(job, Job::Watch) { looks + 1 } else { 0 };
        match job {
            Job::Transfer { id, agent, work } => {
                world.in_hand += 1;
                drop(world);
                let result = transfer(around, agent, &work);
                let mut world = shared.lock();
                world.let_go();
                match result {
                    Ok(()) => world.finish(id),
                    Err(error) => {
                        let what = format!("a copy or fill at address {:#x}: {:?}", error.address, error.fault);
                        world.fail(agent.context, CUresult::ILLEGAL_ADDRESS, &what);
                    }
                }
                shared.kick(&mut world);
            }
            Job::Block { gpu, operation, sm, mut block } => {
                world.in_hand += 1;
                drop(world);
                let step = step_without_panic(&mut block);
                let mut world = shared.lock();
                world.let_go();
                if world.bring_back(around, (gpu, operation, sm), block, step) {
                    shared.kick(&mut world);
                }
            }
            Job::Watch => {
                if looks > LOOKS {
                    drop(shared.work.wait(world, NAP));
                } else {
                    drop(world);
                }
                state.sleep_until_change(seen, LOOK_AGAIN);
                if state.changes() == seen {
                    looks = 0;
                }
            }
            Job::Nothing => {
                // A spurious or late wake-up does no harm: the loop looks again.
                drop(shared.work.wait(world, IDLE));
            }
        }
    }
}

/// Runs a block for a while. A panic of the interpreter is our mistake: it ends the kernel, not the worker.
fn step_without_panic(block: &mut Block) -> Step {
    let step = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block.step(BUDGET)));
    step.unwrap_or_else(|_| {
        Step::Fault(KernelFault {
            kind: FaultKind::LaunchFailed,
            kernel: "unknown".to_owned(),
            line: 0,
            block: [0; 3],
            thread: [0; 3],
            address: None,
            what: "the interpreter panicked: this is a bug in vcuda".to_owned(),
        })
    })
}

/// The life of the thread that calls host functions, one after the other.
pub(super) fn run_host_functions(shared: &Shared) {
    IN_HOST_FUNCTION.set(true);
    let mut world = shared.lock();
    loop {
        let Some(id) = world.host_calls.pop_front() else {
            world = shared.calls.wait(world, IDLE);
            continue;
        };
        let Some(Work::Host { function, data }) = world.operations.get(&id).map(|operation| operation.work.clone())
        else {
            continue;
        };
        drop(world);
        call_host_function(function, data);
        world = shared.lock();
        world.finish(id);
        shared.kick(&mut world);
    }
}

pub(crate) fn call_host_function(function: usize, data: usize) {
    type HostFunction = extern "C" fn(*mut std::ffi::c_void);
    let address = std::ptr::with_exposed_provenance::<()>(function);
    // SAFETY: the program gave this address to `cuLaunchHostFunc` as a `CUhostFn`, which has this signature.
    let function = unsafe { std::mem::transmute::<*const (), HostFunction>(address) };
    function(std::ptr::with_exposed_provenance_mut(data));
}

fn transfer(around: &Surroundings, agent: Agent, work: &Work) -> Result<(), TransferError> {
    match work {
        Work::Copy(Copy { target, bytes, staged: Some(staged), .. }) => {
            around.space.copy(agent, *target, staged.as_ptr().expose_provenance() as u64, *bytes)
        }
        Work::Copy(Copy { target, source, bytes, staged: None }) => around.space.copy(agent, *target, *source, *bytes),
        Work::Fill { target, pattern, count } => around.space.fill(agent, *target, pattern, *count),
        _ => Ok(()),
    }
}

impl World {
    /// A worker no longer touches what it had in hand. Calls that unmap memory wait until none does.
    fn let_go(&mut self) {
        self.in_hand -= 1;
        self.has_news |= self.in_hand == 0;
    }

    fn next_job(&mut self, around: &Surroundings, first_gpu: usize) -> Job {
        if let Some(id) = self.transfers.pop_front()
            && let Some(operation) = self.operations.get(&id)
        {
            return Job::Transfer { id, agent: operation.agent(), work: operation.work.clone() };
        }
        let mut watch = false;
        for step in 0..self.gpus.len() {
            let gpu = (first_gpu + step) % self.gpus.len();
            watch |= !self.gpus[gpu].blocks.is_empty();
            if self.has_turn(around, gpu) {
                if self.slice_is_over(around, gpu) && (self.has_block_in_hand(gpu) || self.pass_turn(around, gpu)) {
                    // Blocks that others have in hand come back first; no further one begins.
                    continue;
                }
                if let Some(job) = self.take_block(around, gpu) {
                    return job;
                }
                self.pass_turn(around, gpu);
            }
        }
        let waits = |queue: &std::collections::VecDeque<u64>| !queue.is_empty();
        watch |= self.contexts.values().any(|context| context.queues.iter().any(waits));
        if watch { Job::Watch } else { Job::Nothing }
    }

    /// Takes the next block that has something to do.
    fn take_block(&mut self, around: &Surroundings, gpu: usize) -> Option<Job> {
        let changes = around.space.state().changes();
        let now = Instant::now();
        let blocks = &mut self.gpus[gpu].blocks;
        let at = blocks.iter_mut().position(|resident| !resident.hangs && resident.can_run(changes, now))?;
        let mut resident = blocks.remove(at)?;
        let block = resident.block.take()?;
        let (operation, sm) = (resident.operation, resident.sm);
        blocks.push_back(resident);
        Some(Job::Block { gpu, operation, sm, block })
    }

    /// Puts a block back after a step; true if its kernel is done or failed, or others may have room now.
    fn bring_back(
        &mut self,
        around: &Surroundings,
        (gpu, operation, sm): (usize, u64, usize),
        block: Box<Block>,
        step: Step,
    ) -> bool {
        let away = |resident: &&mut super::residency::Resident| {
            resident.operation == operation && resident.sm == sm && resident.block.is_none()
        };
        let Some(place) = self.gpus[gpu].blocks.iter_mut().find(away) else { return false };
        match step {
            Step::Ran => {
                if !block.only_looks() {
                    around.space.state().moved();
                }
                place.block = Some(block);
                place.sleep = None;
                false
            }
            Step::Sleeping { since_change, polled, what } => {
                place.block = Some(block);
                let since = Instant::now();
                let rest = if place.rests < SHORT_RESTS { REST } else { LONG_REST };
                place.rests = place.rests.saturating_add(1);
                place.sleep = Some(Sleep { since_change, since, until: since + rest, polled, what });
                false
            }
            Step::Done => {
                if self.gpus[gpu].retire(operation, sm) {
                    self.finish(operation);
                }
                true
            }
            Step::Fault(fault) => {
                if let Some(context) = self.operations.get(&operation).map(|operation| operation.context) {
                    self.fail(context, code_of(&fault), &fault.to_string());
                }
                true
            }
        }
    }

    /// Whether this process's kernels may run on a GPU now.
    fn has_turn(&mut self, around: &Surroundings, gpu: usize) -> bool {
        let state = around.space.state();
        let line = &mut self.gpus[gpu];
        if around.machine.mps || state.folder().is_none() {
            return !line.blocks.is_empty();
        }
        if line.blocks.is_empty() {
            // Another process may have passed the turn to this one just after its last kernel ended.
            line.turn_since = None;
            if std::mem::take(&mut line.wants_turn) || state.owns_turn(gpu) {
                state.leave_turn(gpu);
            }
            return false;
        }
        line.wants_turn = true;
        let mine = state.want_turn(gpu);
        if mine {
            line.turn_since.get_or_insert_with(Instant::now);
        } else {
            line.turn_since = None;
        }
        mine
    }

    /// Whether this process has had a GPU for a slice that others want.
    fn slice_is_over(&self, around: &Surroundings, gpu: usize) -> bool {
        let since = self.gpus[gpu].turn_since;
        since.is_some_and(|since| since.elapsed() >= SLICE) && around.space.state().others_want(gpu)
    }

    fn has_block_in_hand(&self, gpu: usize) -> bool {
        self.gpus[gpu].blocks.iter().any(|resident| resident.block.is_none())
    }

    /// Gives the turn to another process; false if none wants it, or it cannot be given now.
    fn pass_turn(&mut self, around: &Surroundings, gpu: usize) -> bool {
        // Blocks that other workers have in hand run to the end of their budget first: no two processes at a time.
        let can_pass = self.gpus[gpu].turn_since.is_some() && !self.has_block_in_hand(gpu);
        let passed = can_pass && around.space.state().pass_turn(gpu);
        if passed {
            self.gpus[gpu].turn_since = None;
        }
        passed
    }
}

fn code_of(fault: &KernelFault) -> CUresult {
    match fault.kind {
        FaultKind::IllegalAddress => CUresult::ILLEGAL_ADDRESS,
        FaultKind::MisalignedAddress => CUresult::MISALIGNED_ADDRESS,
        FaultKind::Assert => CUresult::ASSERT,
        FaultKind::Trap => CUresult::LAUNCH_FAILED,
        FaultKind::StackError => CUresult::HARDWARE_STACK_ERROR,
        FaultKind::InvalidCounter => CUresult::INVALID_PC,
        FaultKind::LaunchFailed => CUresult::LAUNCH_FAILED,
    }
}
