//! Runs the program's progress hooks on the calling thread while threads of ours have the engines: some hooks (MPI
//! below `MPI_THREAD_MULTIPLE`) work on that thread only.

use crate::engine::Engine;
use crate::sync::{AbortFlag, Progress};

/// The hooks of engines that threads have, each with the abort flag of its communicator.
#[derive(Debug, Clone, Default)]
pub(super) struct WaitingHooks(Vec<(Progress, AbortFlag)>);

impl WaitingHooks {
    /// The hook of one engine, which a thread is about to have.
    pub(super) fn of(engine: &Engine) -> WaitingHooks {
        WaitingHooks(engine.hook().into_iter().collect())
    }

    /// The hooks of several engines.
    pub(super) fn of_all<'a>(engines: impl IntoIterator<Item = &'a Engine>) -> WaitingHooks {
        WaitingHooks(engines.into_iter().filter_map(Engine::hook).collect())
    }

    /// Whether there is no hook to call.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls each hook once. A hook that fails ends its communicator: the thread that has the engine sees the abort
    /// flag, and the operation ends with the hook's error.
    pub(super) fn turn(&self) {
        for (hook, abort) in &self.0 {
            if !abort.is_raised()
                && let Err(error) = hook.turn()
            {
                abort.raise(error);
            }
        }
    }
}
