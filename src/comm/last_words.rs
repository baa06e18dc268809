//! What is said on standard error of a communicator that is dropped and not finalized: nobody gets its error.
//!
//! Most errors need no words here. A call has returned them, or the other ranks get them. A mismatch that only the last
//! look finds is another matter: all calls of all ranks have returned well, and results are wrong.

use crate::engine::Engine;
use crate::error::{Error, Kind, Result};
use crate::log;

/// The engine of a communicator that is dropped takes its last look, as `finalize` does, and says goodbye. A mismatch
/// of which the program does not know is told.
pub(super) fn leave(engine: &mut Engine) {
    let is_known = engine.session.abort.is_known();
    // An abort, or an error of a stream, may have stopped ranks anywhere: their last calls need not match.
    let looked = if engine.session.abort.is_raised() { Ok(()) } else { engine.last_look() };
    let looked = looked.map_err(|error| engine.fail(error.during("drop")));
    let left = engine.leave();
    if !is_known {
        tell(engine, looked.and(left));
    }
}

/// The same of a communicator that `error` has ended.
pub(super) fn leave_failed(engine: &mut Engine, error: Error) {
    // Its launches have been told to end; their error is this one.
    let _same = engine.leave();
    engine.fabric().links().forsake();
    if !engine.session.abort.is_known() {
        tell(engine, Err(error));
    }
}

/// Tells of a mismatch, in one line for each communicator: its number makes the text new. Other errors are not told.
fn tell(engine: &Engine, ended: Result<()>) {
    let Err(error) = ended else { return };
    if error.kind() != Kind::Mismatch {
        return;
    }
    log::tell(&format!(
        "communicator {:016x} was dropped, and nobody got this error, which finalize() returns: {}",
        engine.session.bootstrap.id(),
        error.at(engine.session.world.rank)
    ));
}
