//! How the watcher sleeps beside requests that do not move: without an end, and until something moves them.
//!
//! # What wakes it
//! The program that wants its engine back, new requests, an abort and news of peers ring a [`Chime`]. Peers that share
//! memory raise the flags of rings, and wake whoever is parked there, as they do for a call that waits. Sockets make
//! descriptors readable. One system call waits for flags and the chime (`futex_waitv`, since Linux 5.16); none waits
//! for flags and descriptors. So a second thread, the ear, sleeps on the descriptors and rings the chime: it is started
//! for the first sleep with descriptors, and stays as long as the watcher does. A process without requests that last
//! never has it.
//!
//! # Where it cannot
//! With a progress hook, which has to run; beside a collective that waits for something but flags (for its connections,
//! for a device); while a connection is being opened whose peer has come; on older kernels where a flag is waited for,
//! or where more than 127 flags are; where no descriptor or thread is left. Then the watcher comes back at its next
//! tick.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::bootstrap::Sources;
use crate::comm::under_way::UnderWay;
use crate::error::Result;
use crate::log;
use crate::session::Session;
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sync::{Chime, Flag};
use crate::sys::bell::Bell;
use crate::sys::poller::{self, Interest};
use crate::sys::{clock, thread};
use crate::transport::Fabric;

/// The long sleeps of the watcher, each beside the requests of one communicator.
#[derive(Debug)]
pub(super) struct LongRest {
    chime: Arc<Chime>,
    ear: Option<Ear>,
    /// Whether the ear has descriptors.
    listens: bool,
}

/// What came of a long sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slept {
    /// It has lasted until something woke it.
    Well,
    /// There was none: something has to be looked at.
    NotNow,
    /// The system cannot.
    Never,
}

impl LongRest {
    /// Sleeps that others end by `chime`.
    pub(super) fn new(chime: &Arc<Chime>) -> LongRest {
        LongRest { chime: Arc::clone(chime), ear: None, listens: false }
    }

    /// What ends the sleeps.
    pub(super) fn chime(&self) -> &Arc<Chime> {
        &self.chime
    }

    /// Sleeps until the chime has rung more than `heard` times, there is something to do for `requests`, or one of the
    /// flags of a collective has reached the value beside it; at most `limit`.
    pub(super) fn sleep(
        &mut self,
        (session, fabric): (&Session, &mut Fabric),
        (requests, of_collective): (&UnderWay, Option<Vec<(&Flag, u64)>>),
        (heard, limit): (u64, Duration),
    ) -> Slept {
        let only_pushes = requests.is_nothing() && of_collective.is_none();
        let Some(sources) = self.sources((session, &mut *fabric), only_pushes) else { return Slept::NotNow };
        let timeout = sources.at_most.min(session.longest_sleep(clock::now())).min(limit);
        let Some(of_messages) = requests.flags(fabric.links()) else { return Slept::NotNow };
        let flags: Vec<(&Flag, u64)> = of_messages.into_iter().chain(of_collective.into_iter().flatten()).collect();
        if flags.len() > MOST_FLAGS {
            return Slept::NotNow;
        }
        if !self.listen(sources.descriptors) {
            return Slept::Never;
        }
        session.abort.mirror(&self.chime);
        clock::may_sleep(timeout);
        if self.chime.sleep(heard, &flags, timeout) { Slept::Well } else { Slept::Never }
    }

    /// The sleeps beside these requests are over: the ear gives their descriptors back, which would keep connections
    /// open.
    pub(super) fn end(&mut self) {
        if std::mem::take(&mut self.listens)
            && let Some(ear) = &self.ear
        {
            ear.listen(Vec::new());
        }
    }

    fn sources(&self, (session, fabric): (&Session, &mut Fabric), only_pushes: bool) -> Option<Sources> {
        let sources = match only_pushes {
            true => fabric.sources_of_pumps(),
            false => fabric.sources(&*session.bootstrap, &self.chime),
        };
        sources.unwrap_or_else(|error| {
            log::detail!(Init @ session.world.rank, "the watcher of requests naps, and does not sleep: {error}");
            None
        })
    }

    /// Lets the ear listen to `descriptors`; false where there can be none.
    fn listen(&mut self, descriptors: Vec<OwnedFd>) -> bool {
        if descriptors.is_empty() {
            self.end();
            return true;
        }
        // One that has ended is replaced.
        if !self.ear.as_ref().is_some_and(Ear::is_there) {
            self.ear = Ear::start(&self.chime).ok();
        }
        self.listens = self.ear.as_ref().is_some_and(|ear| ear.listen(descriptors));
        self.listens
    }
}

/// The thread that rings the chime when a descriptor is readable: once, then it waits for new orders. Dropping it ends
/// it.
#[derive(Debug)]
struct Ear {
    shared: Arc<EarShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct EarShared {
    chime: Arc<Chime>,
    /// Rung for new orders.
    bell: Bell,
    orders: Mutex<EarOrders>,
}

#[derive(Debug, Default)]
struct EarOrders {
    /// New descriptors to listen to, in place of the old ones.
    descriptors: Option<Vec<OwnedFd>>,
    /// The thread ends, or has ended because the system did not let it listen.
    ends: bool,
}

impl Ear {
    fn start(chime: &Arc<Chime>) -> Result<Ear> {
        let (chime, bell, orders) = (Arc::clone(chime), Bell::new()?, Mutex::default());
        let shared = Arc::new(EarShared { chime, bell, orders });
        let heard = Arc::clone(&shared);
        let thread = thread::spawn("rsccl ear", move || heard.run())?;
        Ok(Ear { shared, thread: Some(thread) })
    }

    fn is_there(&self) -> bool {
        !self.shared.orders().ends
    }

    /// False where it cannot.
    fn listen(&self, descriptors: Vec<OwnedFd>) -> bool {
        let mut orders = self.shared.orders();
        let is_there = !orders.ends;
        orders.descriptors = Some(descriptors);
        drop(orders);
        self.shared.bell.ring();
        is_there
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.shared.orders().ends = true;
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            // One that panicked has ended too, and holds nothing.
            let _ended = thread.join();
        }
    }
}

impl EarShared {
    fn orders(&self) -> MutexGuard<'_, EarOrders> {
        self.orders.lock()
    }

    fn run(&self) {
        let mut listened: Vec<OwnedFd> = Vec::new();
        loop {
            // Before the look at the orders: those that come after it ring again.
            self.bell.hush();
            let mut orders = self.orders();
            if orders.ends {
                return;
            }
            listened = orders.descriptors.take().unwrap_or(listened);
            drop(orders);
            let all: Vec<(BorrowedFd<'_>, Interest)> =
                std::iter::once(self.bell.as_fd()).chain(listened.iter().map(AsFd::as_fd)).map(reads).collect();
            match poller::ready(&all, SLICE) {
                Ok(ready) if ready.iter().skip(1).any(|ready| *ready) => {
                    // Rung once: it stays readable until the other thread has looked.
                    listened.clear();
                    self.chime.ring();
                }
                Ok(_) => {}
                Err(_) => {
                    self.orders().ends = true;
                    self.chime.ring();
                }
            }
        }
    }
}

fn reads(descriptor: BorrowedFd<'_>) -> (BorrowedFd<'_>, Interest) {
    (descriptor, Interest::Read)
}

/// One system call waits for 128 words at most, and the chime is one of them.
const MOST_FLAGS: usize = 127;
/// How long the ear sleeps at a time: no deadline depends on it.
const SLICE: Duration = Duration::from_secs(3600);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Regression: each communicator that went from requests to none and back had a new thread for its sockets.
    #[test]
    fn one_ear_listens_for_all_and_gives_back_what_it_has() {
        let mut rest = LongRest::new(&Arc::default());
        let mut first = None;
        for _ in 0..3 {
            let (mine, mut theirs) = UnixStream::pair().unwrap();
            let heard = rest.chime.count();
            assert!(rest.listen(vec![mine.into()]));
            std::io::Write::write_all(&mut theirs, &[1]).unwrap();
            while rest.chime.count() == heard {
                assert!(rest.chime.sleep(heard, &[], LONG));
            }
            rest.end();
            // It has closed its end.
            theirs.set_read_timeout(Some(LONG)).unwrap();
            let end = theirs.read(&mut [0]);
            assert!(end.as_ref().is_ok_and(|bytes| *bytes == 0) || end.is_err_and(|error| is_reset(&error)));
            let ear = rest.ear.as_ref().and_then(|ear| ear.thread.as_ref()).map(|thread| thread.thread().id());
            assert!(ear.is_some() && *first.get_or_insert(ear) == ear);
        }
    }

    /// What was written was not read.
    fn is_reset(error: &std::io::Error) -> bool {
        error.kind() == std::io::ErrorKind::ConnectionReset
    }
}
