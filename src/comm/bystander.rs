//! The side of a program that waits while threads of ours have its engines: its hooks go on, for they may work on its thread only.

use crate::comm::engine::Engine;
use crate::sync::{AbortFlag, Progress};

/// The hooks of the engines that threads have, and the flag of each engine's communicator.
#[derive(Debug, Clone, Default)]
pub(super) struct Bystander(Vec<(Progress, AbortFlag)>);

impl Bystander {
    /// Of one engine, before a thread has it.
    pub(super) fn beside(engine: &Engine) -> Bystander {
        Bystander(engine.hook().into_iter().collect())
    }

    /// Of several.
    pub(super) fn beside_all<'a>(engines: impl IntoIterator<Item = &'a Engine>) -> Bystander {
        Bystander(engines.into_iter().filter_map(Engine::hook).collect())
    }

    /// Whether there is no hook to call.
    pub(super) fn is_idle(&self) -> bool {
        self.0.is_empty()
    }

    /// Calls each hook once. One that fails ends its communicator: the thread that has the engine sees the flag, and what is waited for
    /// ends with the hook's error.
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
