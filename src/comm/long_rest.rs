//! What ends a sleep of the progress thread beside requests that do not move.
//!
//! The program that wants its engine back, new requests, an abort and news of peers ring the thread's chime. Peers that
//! share memory raise the flags of rings, and wake whoever is parked there, as they do for a call that waits. Sockets
//! make descriptors readable.
//!
//! # Where it cannot sleep long
//! With a progress hook, which has to run; beside a collective that waits for something but flags (for its connections,
//! for a device); while a connection is being opened whose peer has come; on older kernels where a flag is waited for;
//! where no descriptor or thread is left. Then the thread comes back at its next tick. Beside requests that wait for
//! more than 127 flags it sleeps on the first of them, and looks at the others now and then.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use crate::comm::under_way::UnderWay;
use crate::error::Result;
use crate::exec::AwaitedFlags;
use crate::log;
use crate::session::Session;
use crate::sync::Chime;
use crate::sync::primitive::Arc;
use crate::sys::clock;
use crate::sys::poller::{Interest, Poller};
use crate::transport::Fabric;

/// One sleep beside the requests of any number of communicators, while it is prepared.
#[derive(Debug)]
pub(super) struct LongRest {
    chime: Arc<Chime>,
    /// Whether nobody listens to descriptors.
    is_deaf: bool,
    poller: Option<Poller>,
    known: BTreeSet<RawFd>,
}

/// What ends a sleep beside the requests of one communicator.
#[derive(Debug)]
pub(super) struct Wakes<'a> {
    pub(super) flags: AwaitedFlags<'a>,
    pub(super) at_most: Duration,
}

impl Wakes<'_> {
    /// Whether a flag has reached the value that is waited for.
    pub(super) fn is_up(&self) -> bool {
        self.flags.iter().any(|(flag, target)| flag.reached(*target))
    }
}

impl LongRest {
    /// A sleep that others end by `chime`. Where it does not listen, descriptors do not end it.
    pub(super) fn new(chime: &Arc<Chime>, listens: bool) -> LongRest {
        LongRest { chime: Arc::clone(chime), is_deaf: !listens, poller: None, known: BTreeSet::new() }
    }

    /// What ends the sleep beside these requests, and beside a collective that waits for flags; at most `limit`. `None`
    /// where something has to be looked at.
    pub(super) fn beside<'a>(
        &mut self,
        (session, fabric): (&Session, &'a mut Fabric),
        (requests, of_collective): (&'a UnderWay, Option<AwaitedFlags<'a>>),
        limit: Duration,
    ) -> Option<Wakes<'a>> {
        let only_pushes = requests.is_nothing() && of_collective.is_none();
        let at_most = self.await_work((session, &mut *fabric), only_pushes)?;
        let at_most = at_most.min(session.longest_sleep(clock::now())).min(limit);
        session.abort.mirror(&self.chime);
        // What comes by sockets raises its flags in turns of the pumps, which have descriptors.
        let by_sockets = fabric.links().is_all_pumps();
        let of_messages = requests.flags(fabric.links())?.into_iter().filter(|_| !by_sockets);
        Some(Wakes { flags: of_messages.chain(of_collective.into_iter().flatten()).collect(), at_most })
    }

    /// What is readable when one of the descriptors is that were added.
    pub(super) fn descriptors(self) -> Option<Poller> {
        self.poller
    }

    fn await_work(&mut self, (session, fabric): (&Session, &mut Fabric), only_pushes: bool) -> Option<Duration> {
        let chime = Arc::clone(&self.chime);
        let mut listen = |descriptor: BorrowedFd<'_>, interest| self.add(descriptor, interest);
        let at_most = match only_pushes {
            true => fabric.await_pumps(&mut listen),
            false => fabric.await_work(&*session.bootstrap, &chime, &mut listen),
        };
        at_most.unwrap_or_else(|error| {
            log::detail!(Init @ session.world.rank, "the watcher of requests naps, and does not sleep: {error}");
            None
        })
    }

    fn add(&mut self, descriptor: BorrowedFd<'_>, interest: Interest) -> Result<()> {
        // Communicators may share one.
        if self.is_deaf || !self.known.insert(descriptor.as_raw_fd()) {
            return Ok(());
        }
        let poller = match &mut self.poller {
            Some(poller) => poller,
            none => none.insert(Poller::new()?),
        };
        poller.add(descriptor, 0, interest)
    }
}
