//! How the watcher sleeps beside requests that do not move: without an end, and until something moves them.
//!
//! # What wakes it
//! The program that wants its engine back, new requests, an abort and news of peers ring a [`Chime`]. Peers that share
//! memory raise the flags of rings, and wake whoever is parked there, as they do for a call that waits. Sockets make
//! descriptors readable. One system call waits for flags and the chime (`futex_waitv`, since Linux 5.16); none waits
//! for flags and descriptors. So a second thread, the ear, sleeps on the descriptors and rings the chime: it is started
//! for the first sleep with descriptors, and a communicator without requests that last never has it.
//!
//! # Where it cannot
//! With a progress hook, which has to run; beside a collective, which knows by itself what it waits for; while a
//! connection is being opened whose peer has come; on older kernels where a flag is waited for, or where more than 127
//! flags are; where no descriptor or thread is left. Then the watcher comes back at its next tick.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::bootstrap::Sources;
use crate::comm::under_way::UnderWay;
use crate::error::Result;
use crate::log;
use crate::session::Session;
use crate::sync::Chime;
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sys::bell::Bell;
use crate::sys::poller::{self, Interest};
use crate::sys::{clock, thread};
use crate::transport::Fabric;

/// The long sleeps beside the requests of one communicator.
#[derive(Debug)]
pub(super) struct LongRest {
    chime: Arc<Chime>,
    ear: Option<Ear>,
    /// Whether the system cannot do it.
    is_refused: bool,
}

impl LongRest {
    /// Sleeps that others end by `chime`.
    pub(super) fn new(chime: &Arc<Chime>) -> LongRest {
        LongRest { chime: Arc::clone(chime), ear: None, is_refused: false }
    }

    /// Sleeps until the chime has rung more than `heard` times, or there is something to do for `requests`; at most
    /// `limit`. False where it has not slept.
    pub(super) fn sleep(
        &mut self,
        (session, fabric): (&Session, &mut Fabric),
        requests: &UnderWay,
        (heard, limit): (u64, Duration),
    ) -> bool {
        if self.is_refused {
            return false;
        }
        let Some(sources) = self.sources((session, &mut *fabric), requests.is_nothing()) else { return false };
        let timeout = sources.at_most.min(session.longest_sleep(clock::now())).min(limit);
        let Some(flags) = requests.flags(fabric.links()).filter(|flags| flags.len() <= MOST_FLAGS) else {
            return false;
        };
        if !self.listen(sources.descriptors) {
            self.is_refused = true;
            return false;
        }
        clock::may_sleep(timeout);
        self.is_refused = !self.chime.sleep(heard, &flags, timeout);
        !self.is_refused
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
            return true;
        }
        if self.ear.is_none() {
            self.ear = Ear::start(&self.chime).ok();
        }
        self.ear.as_ref().is_some_and(|ear| ear.listen(descriptors))
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
