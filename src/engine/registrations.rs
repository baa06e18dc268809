//! The end of registrations: what all ranks have let go of is no longer mapped.
//!
//! A registration is known to all ranks by one number. A rank lets go of it by `deregister`, or by dropping the buffer.
//! Whenever ranks meet to register or deregister, they tell each other of which registrations they have let go, and all
//! forget those that all have.

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::exec::Background;
use crate::sync::Wait;
use crate::transport::KnownBuffer;
use crate::types::Rank;

impl Engine {
    /// Takes a buffer back from the other ranks. Collective, as `register`; it waits for all ranks.
    pub(crate) fn deregister(&mut self, buffer: &KnownBuffer, background: &mut dyn Background) -> Result<()> {
        if !self.chooser.grounds().reaches_buffers() {
            return Ok(());
        }
        let met = self.meet("deregister", background)?;
        self.mover.fabric.let_go(&buffer.memory);
        self.give_back_registrations(&met)
    }

    /// Forgets the registrations that all ranks have let go of. All ranks have met for this.
    pub(super) fn give_back_registrations(&mut self, met: &Wait) -> Result<()> {
        // All ranks have as many.
        let Some(mine) = self.mover.fabric.registrations_let_go() else { return Ok(()) };
        let bootstrap = &*self.session.bootstrap;
        let told = bootstrap.all_gather(&mine, met)?;
        let mut all = mine;
        for (rank, theirs) in (0..).map(Rank::new).zip(&told) {
            if theirs.len() != all.len() {
                let message = format!("rank {rank} knows of another number of registered buffers");
                return Err(Error::remote(rank, message));
            }
            all.iter_mut().zip(theirs).for_each(|(all, theirs)| *all &= theirs);
        }
        self.mover.fabric.unregister(|number| all.get(number / 8).is_some_and(|byte| byte >> (number % 8) & 1 == 1));
        // No other rank's call works in them any more: they have forgotten them too, in the same meeting.
        self.windows = self.mover.fabric.windows();
        Ok(())
    }

    /// Which registrations this rank knows, by number.
    #[cfg(test)]
    pub(crate) fn known_registrations(&self) -> Vec<bool> {
        let windows = self.windows.as_ref().expect("they are open");
        windows.registered.iter().map(Option::is_some).collect()
    }
}
