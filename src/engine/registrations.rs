//! Registrations of host memory: what ranks of one host let each other work in.
//!
//! A registration is known to all ranks by one number. A rank lets go of it by `deregister`, or by dropping the buffer.
//! Whenever ranks meet to register or deregister, they tell each other of which registrations they have let go, and all
//! forget those that all have: what all ranks have let go of is no longer mapped.

use crate::engine::given::Given;
use crate::engine::host_side::HostSide;
use crate::error::{Error, Result};
use crate::exec::Background;
use crate::session::peer_status::WaitingFor;
use crate::sync::Wait;
use crate::transport::KnownBuffer;
use crate::types::Rank;

/// Lets the other ranks work in a buffer, where all are on one host and map each other's memory. Collective; else it
/// does nothing.
pub(super) fn register(
    (host, given): (&mut HostSide, &mut Given<'_>),
    buffer: &KnownBuffer,
    background: &mut dyn Background,
) -> Result<()> {
    if !host.chooser.grounds().reaches_buffers() {
        return Ok(());
    }
    // All ranks are in this call: a rank that is in another one learns that, and does not wait for memory.
    let met = given.meet("register", background)?;
    give_back((host, given), &met)?;
    host.open_windows(given, WaitingFor::Anything, background)?;
    given.set_up(WaitingFor::Anything, background, |fabric, setup| fabric.register(buffer, setup))?;
    host.take_windows(given);
    Ok(())
}

/// Takes a buffer back from the other ranks. Collective, as `register`; it waits for all ranks.
pub(super) fn deregister(
    (host, given): (&mut HostSide, &mut Given<'_>),
    buffer: &KnownBuffer,
    background: &mut dyn Background,
) -> Result<()> {
    if !host.chooser.grounds().reaches_buffers() {
        return Ok(());
    }
    let met = given.meet("deregister", background)?;
    given.mover.fabric.let_go(buffer);
    give_back((host, given), &met)
}

/// Forgets the registrations that all ranks have let go of. All ranks have met for this.
fn give_back((host, given): (&mut HostSide, &mut Given<'_>), met: &Wait) -> Result<()> {
    let fabric = &mut given.mover.fabric;
    // All ranks have as many.
    let Some(mine) = fabric.registrations_let_go() else { return Ok(()) };
    let told = given.session.bootstrap.all_gather(&mine, met)?;
    let mut all = mine;
    for (rank, theirs) in (0..).map(Rank::new).zip(&told) {
        if theirs.len() != all.len() {
            let message = format!("rank {rank} knows of another number of registered buffers");
            return Err(Error::remote(rank, message));
        }
        all.iter_mut().zip(theirs).for_each(|(all, theirs)| *all &= theirs);
    }
    fabric.unregister(|number| all.get(number / 8).is_some_and(|byte| byte >> (number % 8) & 1 == 1));
    // No other rank's call works in them any more: they have forgotten them too, in the same meeting.
    host.take_windows(given);
    Ok(())
}
