//! How the thread of requests sleeps while nothing moves: without an end, and until something moves it.
//!
//! # What wakes it
//! Jobs, a thread that begins to wait for a request, an abort and news of peers ring a [`Chime`]. Peers that share
//! memory raise the flags of rings, and wake whoever is parked there, as they do for a call that waits. Sockets make
//! descriptors readable. One system call waits for flags and the chime (`futex_waitv`, since Linux 5.16); none waits
//! for flags and descriptors. So a second thread, the ear, sleeps on the descriptors and rings the chime: it is started
//! for the first sleep with descriptors, and a communicator without requests that last never has it.
//!
//! # Where it naps
//! With a progress hook, which has to run; while a connection is being opened whose peer has come; on older kernels
//! where a flag is waited for, or where more than 127 flags are; where no descriptor or thread is left.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::bootstrap::Sources;
use crate::engine::Engine;
use crate::error::Result;
use crate::log;
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sync::{Backoff, Chime, Flag};
use crate::sys::bell::Bell;
use crate::sys::poller::{self, Interest};
use crate::sys::{clock, thread};
use crate::transport::Links;

/// The long sleeps of one thread of requests.
#[derive(Debug)]
pub(super) struct LongRest {
    chime: Arc<Chime>,
    ear: Option<Ear>,
    /// Whether the last turn has looked at everything and found nothing.
    has_looked: bool,
    /// Whether the system cannot do it.
    is_refused: bool,
}

/// What a thread of requests has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkLeft {
    /// It moves what is under way, and no thread waits for any of it.
    Unawaited,
    /// It moves what is under way, and a thread waits.
    Awaited,
    /// It hands over what was sent.
    ToPush,
}

/// The requests of one thread.
pub(super) trait RequestsUnderWay {
    /// What the thread has to do.
    fn work(&self) -> WorkLeft;

    /// What they wait for that can move next, each the first of its connection.
    fn flags<'a>(&'a self, links: &'a Links) -> AwaitedFlags<'a>;
}

/// The flags that requests wait for, each with the value beside it; `None` where something else has to be looked at.
pub(super) type AwaitedFlags<'a> = Option<Vec<(&'a Flag, u64)>>;

impl LongRest {
    /// The rests of a thread for which others ring `chime`.
    pub(super) fn new(chime: &Arc<Chime>) -> LongRest {
        LongRest { chime: Arc::clone(chime), ear: None, has_looked: false, is_refused: false }
    }

    /// Something has moved.
    pub(super) fn note_moved(&mut self) {
        self.has_looked = false;
    }

    /// To be called after a turn that has moved nothing. If that turn has looked at everything, it sleeps until the
    /// chime has rung more than `heard` times, as counted before the turn, or there is something to do. Otherwise it
    /// makes the next turn look at everything.
    pub(super) fn rest(
        &mut self,
        engine: &mut Engine,
        (heard, requests): (u64, &dyn RequestsUnderWay),
        backoff: &mut Backoff,
    ) -> Result<()> {
        let work = requests.work();
        if self.is_refused || (backoff.waited() < AWAKE && work != WorkLeft::ToPush) {
            return Ok(());
        }
        backoff.look_soon();
        if !std::mem::replace(&mut self.has_looked, true) {
            return Ok(());
        }
        let Some(sources) = self.sources(engine, work) else { return Ok(()) };
        let now = clock::now();
        let left = backoff.started().map_or(Duration::MAX, |started| {
            engine.session.settings.timeout.time.saturating_sub(now.saturating_duration_since(started))
        });
        let most = match work {
            WorkLeft::Unawaited => engine.session.longest_sleep(now).min(left.max(LEAST)),
            WorkLeft::Awaited => WAITED_FOR,
            WorkLeft::ToPush => engine.session.longest_sleep(now),
        };
        let timeout = sources.at_most.min(most);
        let Some(flags) = requests.flags(engine.fabric().links()) else { return Ok(()) };
        if flags.len() > MOST_FLAGS {
            return Ok(());
        }
        if !self.listen(sources.descriptors) {
            self.is_refused = true;
            return Ok(());
        }
        clock::may_sleep(timeout);
        self.is_refused = !self.chime.sleep(heard, &flags, timeout);
        Ok(())
    }

    fn sources(&self, engine: &mut Engine, work: WorkLeft) -> Option<Sources> {
        if engine.hook().is_some() {
            return None;
        }
        let session = Arc::clone(&engine.session);
        let sources = match work {
            WorkLeft::ToPush => engine.fabric().sources_of_pumps(),
            WorkLeft::Unawaited | WorkLeft::Awaited => engine.fabric().sources(&*session.bootstrap, &self.chime),
        };
        sources.unwrap_or_else(|error| {
            log::detail!(Init @ session.world.rank, "the thread of requests naps, and does not sleep: {error}");
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
/// How long nothing has moved before the thread sleeps without an end: a few naps.
const AWAKE: Duration = Duration::from_millis(2);
/// A deadline that has all but passed.
const LEAST: Duration = Duration::from_millis(1);
/// The longest sleep while a thread waits for a request: as of a call that waits.
const WAITED_FOR: Duration = Duration::from_millis(20);
/// How long the ear sleeps at a time: no deadline depends on it.
const SLICE: Duration = Duration::from_secs(3600);
