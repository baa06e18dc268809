//! Runs the program's progress hooks on the calling thread while threads of ours have the engines: some hooks (MPI
//! below `MPI_THREAD_MULTIPLE`) work on that thread only.

use crate::engine::Engine;
use crate::sync::primitive::{AtomicUsize, Ordering};
use crate::sync::{AbortFlag, Chime, Progress};

/// The hooks of engines that threads have, each with the abort flag of its communicator.
#[derive(Debug, Clone, Default)]
pub(super) struct WaitingHooks(Vec<(Progress, AbortFlag)>);

impl WaitingHooks {
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

/// The parts of a group that threads have not ended yet.
#[derive(Debug)]
pub(super) struct PartsLeft {
    left: AtomicUsize,
    chime: Chime,
}

impl PartsLeft {
    pub(super) fn new(left: usize) -> PartsLeft {
        PartsLeft { left: AtomicUsize::new(left), chime: Chime::default() }
    }

    /// A part has ended.
    pub(super) fn end_one(&self) {
        // Relaxed: the chime says it, and what the part has made goes another way.
        self.left.fetch_sub(1, Ordering::Relaxed);
        self.chime.ring();
    }

    /// Calls `hooks` until all parts have ended; without hooks it returns at once.
    pub(super) fn call_meanwhile(&self, hooks: &WaitingHooks) {
        loop {
            let heard = self.chime.count();
            if hooks.is_empty() || self.left.load(Ordering::Relaxed) == 0 {
                return;
            }
            hooks.turn();
            self.chime.sleep(heard, &[], Progress::REST);
        }
    }
}
