//! Runs programs on host memory.

use crate::device::Store;
use crate::error::Result;
use crate::exec::call::Begun;
use crate::exec::drive::drive;
use crate::exec::epoch::Epoch;
use crate::exec::history::History;
use crate::exec::interpret::{Memory, PlanRun, Setting};
use crate::exec::program::Program;
use crate::exec::step_spans::StepOwner;
use crate::exec::turn::WaitContext;
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
    /// Which set of its scratch each plan with windows takes.
    pub turns: &'a mut ScratchTurns,
    /// The values of the flags of my host when the plan began.
    pub flag_base: u64,
    /// An output of at least this many bytes is written past the caches.
    pub streaming_bytes: u64,
    /// For whom the trace has its steps, if at all.
    pub(crate) spans: Option<StepOwner>,
}

/// Runs `program`, whose plan was built for the call, to its end; in `epoch` where it works in users' buffers. Its
/// needs are connected.
///
/// # Errors
/// Of waiting, of sockets, and of peers that run another operation.
pub(crate) fn run(
    program: &Program,
    begun: &Begun<'_>,
    epoch: Option<&mut Epoch<'_>>,
    context: RunContext<'_>,
    wait_context: &mut WaitContext<'_>,
) -> Result<()> {
    let Begun { call, operation, kernel, .. } = *begun;
    let plan = program.plan();
    let (user, memory) = match epoch {
        Some(epoch) if plan.spec.windows == Windows::User => epoch.enter(program, begun)?,
        Some(_) | None => (Vec::new(), Memory { input: call.buffers.source(), output: call.buffers.target() }),
    };
    let streams = streams(begun, context.streaming_bytes);
    let scratch = context.windows.map_or(context.scratch.as_mut_ptr(), |windows| windows.mine().scratch().as_ptr());
    let setting = Setting {
        kernel: *kernel,
        memory,
        operation,
        history: context.history,
        windows: context.windows,
        user,
        scratch,
        scratch_shift: scratch_shift(program, context.turns, call.data_type.size() as usize),
        flag_base: context.flag_base,
        store: if streams { Store::Streaming } else { Store::Cached },
        spans: context.spans,
    };
    // SAFETY: the engine has checked the buffers against the call that the plan is for, and `Buffers` vouches for them;
    // peers' buffers are entered, and the epoch holds the leases until after this run; scratch is as large as the
    // plan's limits say.
    let mut run = unsafe { PlanRun::new(plan, setting) };
    drive(&mut [&mut run], wait_context)
}

/// Whether the call's output is so large that it is written past the caches.
pub(crate) fn streams(begun: &Begun<'_>, streaming_bytes: u64) -> bool {
    let output = begun.extent.output;
    output.0 * u64::from(begun.call.data_type.size()) >= streaming_bytes
}

/// Which of the sets of its scratch a plan with windows takes: runs take turns, because rewriting lines that a peer has
/// just cached costs a coherence miss per line; lines that its cache has dropped since do not. A communicator begins
/// with a few sets and adds sets slowly, because each set's first run takes a page fault for every page, here and at
/// the readers. All ranks of a host count in the same way.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScratchTurns {
    /// Plans with windows that ran before.
    runs: u64,
    /// Bytes of scratch that sets may take turns in so far.
    reach_bytes: usize,
}

impl ScratchTurns {
    /// The set of the next run, of `sets` sets that have `set_bytes` each.
    fn next(&mut self, sets: u64, set_bytes: usize) -> u64 {
        if self.runs.is_multiple_of(RUNS_PER_NEW_SET) {
            self.reach_bytes = self.reach_bytes.saturating_add(set_bytes).min(TURNED_BYTES);
        }
        let fit = |bytes: usize| u64::try_from(bytes / set_bytes.max(1)).unwrap_or(u64::MAX);
        let turned = fit(self.reach_bytes).max(FIRST_SETS).min(fit(TURNED_BYTES));
        let set = self.runs % sets.min(turned).max(1);
        self.runs += 1;
        set
    }
}

/// Where in the scratch the next run of `program` works: bytes from where its plan says.
fn scratch_shift(program: &Program, turns: &mut ScratchTurns, element_bytes: usize) -> usize {
    let plan = program.plan();
    if plan.spec.windows != Windows::Scratch {
        return 0;
    }
    let ScratchSets { count, stride } = program.scratch_sets();
    let turn = turns.next(count, stride.index() * element_bytes * plan.lanes.len().max(1));
    (stride * turn).index() * element_bytes
}

/// Scratch that sets take turns in: more than second-level caches hold, so little that it stays in the third (measured
/// from 1 to 4 MiB).
const TURNED_BYTES: usize = 2 << 20;
/// Sets that a communicator takes turns in from its first run on.
const FIRST_SETS: u64 = 2;
/// At most one in this many runs may be the first run in a new set.
const RUNS_PER_NEW_SET: u64 = 16;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// A set of 96 KiB, as of 64 KiB of two ranks: each of the first 21 runs once took pages that nobody had touched.
    #[test]
    fn few_runs_are_the_first_in_their_set() {
        const SET: usize = 96 << 10;
        let mut turns = ScratchTurns::default();
        let mut touched = [false; 21];
        let mut fresh = |runs: u64| {
            let first = |_: &u64| {
                let set = usize::try_from(turns.next(40, SET)).unwrap();
                !std::mem::replace(&mut touched[set], true)
            };
            (0..runs).filter(first).count()
        };
        assert_eq!([fresh(1), fresh(19), fresh(80)], [1, 1, 5]);
        assert_eq!(fresh(1000), 14, "in the end all sets of {TURNED_BYTES} bytes take turns");
        assert_eq!(fresh(1000), 0);
    }

    #[test]
    fn a_larger_size_begins_with_the_scratch_that_smaller_ones_have_used() {
        let mut turns = ScratchTurns::default();
        for _ in 0..320 {
            turns.next(40, 64 << 10);
        }
        let reach = turns.reach_bytes;
        assert_eq!(reach, 20 * (64 << 10));
        let set = 256 << 10;
        let furthest = (1..16).map(|_| (usize::try_from(turns.next(40, set)).unwrap() + 1) * set).max();
        assert!(furthest.is_some_and(|furthest| furthest <= reach + set), "{furthest:?} of {reach}");
        // A set that is larger than all that sets take turns in, and a scratch with room for one.
        assert_eq!([turns.next(40, 8 << 20), turns.next(1, 64)], [0, 0]);
    }
}
