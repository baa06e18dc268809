//! Waits of the program's threads inside calls of the driver. A wait ends when its work is done, when its context has
//! met an error, or with `LAUNCH_TIMEOUT` when nothing on the machine can move.

use std::cell::Cell;
use std::time::Instant;

use super::{Engine, World};
use crate::driver::{CUresult, Outcome};

/// Why a call waits, for the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The program asked to wait.
    Asked,
    /// The call waits for running kernels by itself: allocation, free, registration, loading.
    Implicit,
}

/// A thread of the program in a call that waits.
#[derive(Debug)]
pub(super) struct HostWait {
    pub(super) call: &'static str,
    pub(super) thread: u64,
    pub(super) reason: Reason,
    pub(super) work: Vec<u64>,
}

thread_local! {
    static CALL: Cell<&'static str> = const { Cell::new("a call") };
}

/// Says which call of the driver this thread is in, for reports.
pub fn enter_call(name: &'static str) {
    CALL.set(name);
}

/// The call that this thread is in.
pub fn current_call() -> &'static str {
    CALL.get()
}

impl Engine {
    /// Waits until all of `work` is done.
    ///
    /// # Errors
    ///
    /// The error that `context` has met or meets; `LAUNCH_TIMEOUT` when nothing can move.
    pub fn wait_for(&self, context: u64, work: Vec<u64>, reason: Reason) -> Outcome {
        let around = &self.shared.around;
        let state = around.space.state();
        let mut world = self.lock();
        let is_over = |world: &World, work: &[u64]| work.iter().all(|id| world.is_done(*id));
        if is_over(&world, &work) {
            return world.check_context(context);
        }
        let id = world.next_wait;
        world.next_wait += 1;
        let wait = HostWait { call: current_call(), thread: thread_number(), reason, work: work.clone() };
        world.waits.insert(id, wait);
        let mut quiet = (state.moves(), Instant::now());
        let mut published = false;
        let outcome = loop {
            let step = around.conduct.stuck_after.min(std::time::Duration::from_millis(40)) / 2;
            world = self.shared.changed.wait(world, step);
            if let Err(error) = world.check_context(context) {
                break Err(error);
            }
            if is_over(&world, &work) {
                break Ok(());
            }
            world.fail_if_lost(context);
            if state.moves() != quiet.0 {
                quiet = (state.moves(), Instant::now());
            } else if quiet.1.elapsed() >= around.conduct.stuck_after {
                world.report_stuck(around);
                self.shared.changed.ring(&world);
            } else if !published && quiet.1.elapsed() >= around.conduct.stuck_after / 4 {
                state.publish_waits(&world.waits_as_text(around));
                published = true;
            }
        };
        world.waits.remove(&id);
        if published && outcome.is_ok() {
            state.publish_waits("");
        }
        outcome
    }

    /// Waits until no worker has anything in hand: what they touch may be unmapped then.
    pub fn wait_for_workers(&self) {
        let mut world = self.lock();
        while world.in_hand > 0 {
            // A worker brings back what it has after a bounded number of steps, or at the end of a copy.
            let step = std::time::Duration::from_millis(1);
            world = self.shared.changed.wait(world, step);
        }
    }

    /// A call that does not wait found that `context` still has work: counts time in which nothing moves.
    ///
    /// # Errors
    ///
    /// The error of the context; `LAUNCH_TIMEOUT` when nothing can move.
    pub fn looked_in_vain(&self, context: u64) -> Outcome {
        let around = &self.shared.around;
        let state = around.space.state();
        let mut world = self.lock();
        let moves = state.moves();
        match world.looked {
            Some((before, since)) if before == moves => {
                if since.elapsed() >= around.conduct.stuck_after {
                    world.report_stuck(around);
                    self.shared.changed.ring(&world);
                } else if since.elapsed() >= around.conduct.stuck_after / 4 {
                    state.publish_waits(&world.waits_as_text(around));
                }
            }
            _ => world.looked = Some((moves, Instant::now())),
        }
        world.check_context(context)
    }
}

fn thread_number() -> u64 {
    // SAFETY: gettid takes nothing and cannot fail.
    u64::try_from(unsafe { libc::gettid() }).unwrap_or(0)
}

impl World {
    /// A context whose GPU has fallen off the bus has met an error.
    fn fail_if_lost(&mut self, context: u64) {
        let gpu = self.contexts.get(&context).map(|context| context.gpu);
        if let Some(code) = gpu.and_then(crate::fault::lost) {
            self.fail(context, CUresult(code), "the GPU has fallen off the bus");
        }
    }

    /// Ends all work that cannot move, with a report.
    fn report_stuck(&mut self, around: &super::Surroundings) {
        let text = self.deadlock_report(around);
        around.space.state().publish_waits(&self.waits_as_text(around));
        eprintln!("{text}");
        let stuck: Vec<u64> =
            self.contexts.keys().copied().filter(|context| !self.unfinished(*context).is_empty()).collect();
        for context in stuck {
            self.fail(context, CUresult::LAUNCH_TIMEOUT, "its work cannot go on, see the report above");
        }
        around.space.state().moved();
    }
}
