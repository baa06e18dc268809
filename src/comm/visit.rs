//! A visit of the watcher's: it has the engine of a communicator, moves its requests, and sleeps beside them.

use crate::comm::Home;
use crate::comm::engine_home::EngineHome;
use crate::comm::long_rest::{LongRest, Wakes};
use crate::comm::outcome;
use crate::sync::KeptVisit;
use crate::sync::primitive::Arc;
use crate::sys::cpu;

/// A visit that lasts until the program wants its engine back, or nothing is left to move.
#[derive(Debug)]
pub(super) struct Visit(KeptVisit<EngineHome, Home>);

/// What came of a turn in a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drove {
    /// Nothing is left to move.
    Over,
    /// What is left cannot move now.
    Dry,
    /// The same, and something has moved before.
    Moved,
    /// There may be more to move; others have their turns first.
    GoesOn,
}

impl Visit {
    /// Begins one, if nobody has the engine.
    pub(super) fn begin(shared: &Arc<EngineHome>) -> Option<Visit> {
        let turn = KeptVisit::try_begin(shared, |shared| &shared.home)?;
        turn.owner().note_visit();
        Some(Visit(turn))
    }

    /// Whether the program waits for its end.
    pub(super) fn is_wanted(&self) -> bool {
        self.0.owner().is_wanted()
    }

    /// Whether a turn calls a hook of the program's, which may make calls of other communicators.
    pub(super) fn calls_hook(&mut self) -> bool {
        matches!(self.0.parts().0, Home::Busy(requests) if requests.has_hook())
    }

    /// Moves what can move, until nothing has moved for a moment or others are to have their turns. Never waits.
    pub(super) fn drive(&mut self) -> Drove {
        let (home, shared) = self.0.parts();
        let (mut has_moved, mut dry) = (false, 0);
        for _ in 0..LOOKS_AT_ONCE {
            if shared.is_wanted() {
                break;
            }
            if shared.drive_once(home) {
                (has_moved, dry) = (true, 0);
                // Who waits for what has ended is told before anything else is looked for.
                match (shared.is_left(home), outcome::is_due()) {
                    (false, _) => return Drove::Over,
                    (true, true) => return Drove::GoesOn,
                    (true, false) => continue,
                }
            }
            dry += 1;
            if has_moved && dry < DRY_LOOKS {
                cpu::yield_now();
                continue;
            }
            return match (shared.is_left(home), has_moved) {
                (false, _) => Drove::Over,
                (true, true) => Drove::Moved,
                (true, false) => Drove::Dry,
            };
        }
        Drove::GoesOn
    }

    /// What ends a sleep in the visit; `None` where it has to be driven again soon.
    pub(super) fn wakes(&mut self, rest: &mut LongRest) -> Option<Wakes<'_>> {
        match self.0.parts().0 {
            Home::Busy(requests) => requests.wakes(rest),
            _ => None,
        }
    }
}

/// How often in a row a visitor looks in vain behind what has moved.
const DRY_LOOKS: u32 = 32;
/// After so many looks the other communicators have their turns.
const LOOKS_AT_ONCE: u32 = 256;
