//! Runs programs on host memory.

use crate::device::Store;
use crate::error::Result;
use crate::exec::call::Begun;
use crate::exec::drive::{WaitContext, drive};
use crate::exec::epoch::Epoch;
use crate::exec::history::History;
use crate::exec::interpret::{Memory, PlanRun, Setting};
use crate::exec::program::Program;
use crate::plan::{ScratchSets, Windows};
use crate::transport::HostWindows;

/// What the run of a program needs besides the call.
#[derive(Debug)]
pub struct RunContext<'a> {
    /// The host's windows, where the plan names any.
    pub windows: Option<&'a HostWindows>,
    /// Scratch of plans that need some without windows.
    pub scratch: &'a mut [u8],
    /// What this rank has called before.
    pub history: &'a History,
    /// Plans with windows that ran before, the same on all ranks of the host.
    pub runs: u64,
    /// What the flags of my host stood at when the plan began.
    pub flag_base: u64,
    /// Output of at least so many bytes passes the caches by.
    pub streaming_bytes: u64,
}

/// Runs `program`, whose plan was built for the call, to its end; in `epoch` where it works in users' buffers. Its needs are connected.
///
/// # Errors
/// Of waiting, of sockets, and of peers that run another operation.
pub(crate) fn run(
    program: &Program,
    begun: &Begun<'_>,
    epoch: Option<&mut Epoch<'_>>,
    context: RunContext<'_>,
    idle: &mut WaitContext<'_>,
) -> Result<()> {
    let Begun { call, operation, kernel, world } = *begun;
    let plan = program.plan();
    let user = match epoch {
        Some(epoch) if plan.spec.windows == Windows::User => epoch.enter(program, begun)?,
        Some(_) | None => Vec::new(),
    };
    let (_, output) = call.lengths(world)?;
    let streams = output.0 * u64::from(call.data_type.size()) >= context.streaming_bytes;
    let scratch = context.windows.map_or(context.scratch.as_mut_ptr(), |windows| windows.mine().scratch().as_ptr());
    let setting = Setting {
        kernel,
        memory: Memory { input: call.buffers.source(), output: call.buffers.target() },
        operation,
        history: context.history,
        windows: context.windows,
        user,
        scratch,
        scratch_shift: scratch_shift(program, context.runs, call.data_type.size() as usize),
        flag_base: context.flag_base,
        store: if streams { Store::Streaming } else { Store::Cached },
    };
    // SAFETY: the engine has checked the buffers against the call that the plan is for, and `Buffers` vouches for them; peers'
    // buffers are entered, and the epoch holds the leases until after this run; scratch is as large as the plan's limits say.
    let mut run = unsafe { PlanRun::new(plan, setting) };
    drive(&mut [&mut run], idle)
}

/// The runs of a communicator rotate through several sets of scratch: rewriting lines that a peer has just cached costs a coherence miss
/// per line; lines that its cache has dropped since do not.
fn scratch_shift(program: &Program, runs: u64, element_bytes: usize) -> usize {
    let plan = program.plan();
    if plan.spec.windows != Windows::Scratch {
        return 0;
    }
    let ScratchSets { count, stride } = program.scratch_sets();
    let enough = TURNED_BYTES / (stride.index() * element_bytes * plan.lanes.len().max(1));
    let turn = runs % count.min(u64::try_from(enough).unwrap_or(u64::MAX)).max(1);
    (stride * turn).index() * element_bytes
}

/// Scratch that sets take turns in: more than second-level caches hold, so little that it stays in the third (measured from 1 to 4 MiB).
const TURNED_BYTES: usize = 2 << 20;
