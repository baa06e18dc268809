//! One turn of a wait: what a rank does while it waits, whatever it waits for.

use std::time::Duration;

use crate::error::Result;
use crate::sync::{Backoff, Waiting};

/// What a rank does in each turn of each wait: it looks whether the wait can still end well, moves what peers wait for,
/// and calls the program's hook. `M` is what moves data; who waits has it in hand.
///
/// A call has one, which it passes down to all that wait for it. There is one implementation, `exec`'s: a wait that
/// takes it forgets none of these duties.
pub trait Turn<M: ?Sized> {
    /// One turn, after the wait has looked in vain for what it waits for, which `waiting_for` names. While the wait
    /// only spins, the turn does nothing but what was begun before.
    ///
    /// # Errors
    /// Why the wait is given up: a deadline, an abort, a dead peer; what goes wrong in the work that goes on.
    fn turn(&mut self, mover: &mut M, backoff: &mut Backoff, waiting_for: &dyn Waiting) -> Result<Turned>;
}

/// What came of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turned {
    /// Something has moved: the wait looks again, and may begin anew.
    Moved,
    /// Nothing has, and the wait stays awake.
    Awake,
    /// Nothing has: the wait may sleep for so long, at most.
    Tired(Duration),
}
