//! How a control plane learns which of its connections can move, and how it sleeps until one can.
//!
//! Few connections are polled, and the plane has no descriptor but theirs: a process may have a thousand communicators
//! of two ranks. Many are watched by a poller. Beside them a sleep hears the doorkeeper, who rings the chime of the
//! thread that sleeps when he has a connection for this rank.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use super::{ControlPlane, Entry};
use crate::bootstrap::Listen;
use crate::error::Result;
use crate::sync::Chime;
use crate::sync::primitive::Arc;
use crate::sys::poller::{self, Interest, Poller};

/// The most connections that are polled: those with the neighbours of the graph, and some that replace others.
const FEW_LINKS: usize = 8;
/// How long a sleep lasts that cannot hear the doorkeeper, for no descriptor is left.
const DEAF_NAP: Duration = Duration::from_millis(5);

impl ControlPlane {
    /// Reports of `entry`, which is about to be one of the connections, carry `token`.
    pub(super) fn watch(&mut self, token: u64, entry: &Entry) -> Result<()> {
        if self.poller.is_none() && self.links.len() >= FEW_LINKS {
            // Without a descriptor for it, or room for all of them in it, all of them are polled, which takes longer.
            self.poller = Poller::new().ok().filter(|poller| {
                let mut all = self.links.iter();
                all.all(|(token, entry)| poller.add(entry.link.fd(), *token, entry.link.told).is_ok())
            });
        }
        self.poller.as_ref().map_or(Ok(()), |poller| poller.add(entry.link.fd(), token, entry.link.told))
    }

    /// What a connection waits for may have changed.
    pub(super) fn tell_poller(&mut self, token: u64) {
        let Some(entry) = self.links.get_mut(&token) else { return };
        let wanted = entry.link.interest();
        if wanted != entry.link.told {
            let told = self.poller.as_ref().map_or(Ok(()), |poller| poller.modify(entry.link.fd(), token, wanted));
            match told {
                Ok(()) => entry.link.told = wanted,
                Err(error) => self.inbox.failed(error),
            }
        }
    }

    /// Asks which connections can move.
    pub(super) fn look(&mut self) -> Result<()> {
        match &self.poller {
            Some(poller) => poller.wait(&mut self.ready, Duration::ZERO),
            None => {
                let few = self.links.iter().map(|(token, entry)| (*token, entry.link.fd(), entry.link.told));
                poller::wait_few(few, &mut self.ready, Duration::ZERO)
            }
        }
    }

    /// Sleeps until a connection can move or one has come, at most `timeout`.
    pub(super) fn sleep(&mut self, timeout: Duration) -> Result<()> {
        let chime = Arc::clone(self.chime.insert(Chime::of_thread()));
        let heard = chime.count();
        if timeout.is_zero() || !self.incoming.ring_at_arrival(&chime) {
            return Ok(());
        }
        let descriptors: Vec<_> = self.descriptors().collect();
        if chime.sleep_beside(heard, &descriptors, timeout) {
            return Ok(());
        }
        poller::wait_any(&descriptors, timeout.min(DEAF_NAP))
    }

    /// Lets `listen` hear the connections, and rings `chime` for one that comes. False where one has come, or none can.
    pub(super) fn listen_with(&self, chime: &Arc<Chime>, listen: Listen<'_>) -> Result<bool> {
        let is_heard = self.incoming.ring_at_arrival(chime);
        self.descriptors().try_for_each(|(descriptor, interest)| listen(descriptor, interest))?;
        Ok(is_heard && self.own.seat.trouble().is_none())
    }

    fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, Interest)> {
        let poller = self.poller.as_ref().map(|poller| (poller.as_fd(), Interest::Read));
        let few = self.links.values().filter(|_| self.poller.is_none());
        poller.into_iter().chain(few.map(|entry| (entry.link.fd(), entry.link.told)))
    }
}
