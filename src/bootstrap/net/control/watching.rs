//! How a control plane is driven: it learns which of its connections can move, and sleeps until one can.
//!
//! Few connections are polled, and the plane has no descriptor but theirs: a process may have a thousand communicators
//! of two ranks. Many are watched by a poller. Beside them a sleep hears the doorkeeper, who rings the chime of the
//! thread that sleeps when he has a connection for this rank.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::{ControlPlane, Entry};
use crate::bootstrap::Listen;
use crate::bootstrap::net::shortage;
use crate::error::Result;
use crate::sync::Chime;
use crate::sync::primitive::Arc;
use crate::sys::clock;
use crate::sys::poller::{self, Interest, Poller};

/// The most connections that are polled: those with the neighbours of the graph, and some that replace others.
const FEW_LINKS: usize = 8;
/// How long a sleep lasts that cannot hear the doorkeeper, for no descriptor is left.
const DEAF_NAP: Duration = Duration::from_millis(5);

impl ControlPlane {
    /// How often bytes may have moved, or a rank was found to be gone: by [`ControlPlane::drive`], but also by a send
    /// that finds that its connection has ended, and reads what came before. A waiter that sees a new number looks
    /// again before it sleeps.
    pub(in crate::bootstrap::net) fn moves(&self) -> u64 {
        self.moves
    }

    /// Moves bytes; waits at most `timeout` for some to move.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if polling itself fails.
    pub(in crate::bootstrap::net) fn drive(&mut self, timeout: Duration) -> Result<()> {
        let chime = Chime::of_thread();
        let heard = chime.count();
        self.drive_behind((&chime, heard), timeout)
    }

    /// [`ControlPlane::drive`] by the thread of `chime`: what rings that more often than `heard` times ends the wait.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if polling itself fails.
    pub(in crate::bootstrap::net) fn drive_behind(
        &mut self,
        chime: (&Arc<Chime>, u64),
        timeout: Duration,
    ) -> Result<()> {
        self.moves += 1;
        let now = clock::now();
        let timeout = self.next_moment(now, timeout);
        if !timeout.is_zero() {
            // By the real length: in the rest of a longer one a stop of this process would count as time that it ran.
            clock::may_sleep(timeout);
        }
        let slept = self.sleep(chime, timeout);
        let outcome = slept.and(self.look());
        let mut place = 0;
        while let Some(event) = self.ready.get(place) {
            self.serve(event.token, event.readable);
            place += 1;
        }
        // Behind the others, and once: who is about to prove itself must not make room for newcomers.
        self.accept();
        self.look_at_door();
        self.expire(clock::now());
        self.tell_news();
        outcome
    }

    /// How long a sleep may last at `now`, which is to last for `timeout` at most.
    pub(in crate::bootstrap::net) fn next_moment(&self, now: Instant, timeout: Duration) -> Duration {
        // A send has found a death: the next turn tells the others.
        if self.has_urgent_news() {
            return Duration::ZERO;
        }
        let until = |tokens: &BTreeSet<u64>| {
            tokens.first().and_then(|token| self.links.get(token)).and_then(|entry| entry.link.handshake_until)
        };
        let retry = self.retries.first().map(|(again, _)| *again);
        // A shortage counts as long as it is seen again and again.
        let shut = self.is_shut.then(|| now + shortage::PAUSE);
        let moments = [until(&self.strangers), until(&self.dialling), retry, self.farewell, shut];
        let next = moments.into_iter().flatten().chain(self.absent.next()).chain(self.call_backs.next()).min();
        next.map_or(timeout, |next| next.saturating_duration_since(now).min(timeout))
    }

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
    fn look(&mut self) -> Result<()> {
        match &self.poller {
            Some(poller) => poller.wait(&mut self.ready, Duration::ZERO),
            None => {
                let few = self.links.iter().map(|(token, entry)| (*token, entry.link.fd(), entry.link.told));
                poller::wait_few(few, &mut self.ready, Duration::ZERO)
            }
        }
    }

    /// Sleeps until a connection can move or one has come, or the chime has rung more than `heard` times, at most
    /// `timeout`.
    fn sleep(&mut self, (chime, heard): (&Arc<Chime>, u64), timeout: Duration) -> Result<()> {
        self.chime = Some(Arc::clone(chime));
        if timeout.is_zero() || !self.incoming.ring_at_arrival(chime) {
            return Ok(());
        }
        // What the door rang for before is no ring: a trouble that is not noted yet is looked at now.
        if self.own.seat.trouble().is_some() && !self.is_shut {
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
