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
//! for a device); while a connection is being opened whose peer has come; on older kernels where a flag is waited for;
//! where no descriptor or thread is left. Then the watcher comes back at its next tick. Beside requests that wait for
//! more than 127 flags it sleeps on the first of them, and looks at the others now and then.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::comm::under_way::UnderWay;
use crate::error::Result;
use crate::exec::AwaitedFlags;
use crate::log;
use crate::session::Session;
use crate::sync::Chime;
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sys::bell::Bell;
use crate::sys::poller::{self, Interest, Poller};
use crate::sys::{clock, thread};
use crate::transport::Fabric;

/// The long sleeps of the watcher, beside the requests of any number of communicators.
#[derive(Debug)]
pub(super) struct LongRest {
    chime: Arc<Chime>,
    ear: Option<Ear>,
    /// Whether the ear has descriptors.
    listens: bool,
    /// The descriptors of the next sleep.
    next: Descriptors,
}

/// Descriptors to sleep on.
#[derive(Debug, Default)]
struct Descriptors {
    /// Whether nobody listens to them.
    is_deaf: bool,
    poller: Option<Poller>,
    known: BTreeSet<RawFd>,
}

/// What ends a sleep beside the requests of one communicator.
#[derive(Debug)]
pub(super) struct Wakes<'a> {
    flags: AwaitedFlags<'a>,
    at_most: Duration,
}

impl Wakes<'_> {
    /// Whether a flag has reached the value that is waited for.
    pub(super) fn is_up(&self) -> bool {
        self.flags.iter().any(|(flag, target)| flag.reached(*target))
    }
}

impl LongRest {
    /// Sleeps that others end by `chime`.
    pub(super) fn new(chime: &Arc<Chime>) -> LongRest {
        LongRest { chime: Arc::clone(chime), ear: None, listens: false, next: Descriptors::default() }
    }

    /// Another sleep is prepared. Where it does not listen, descriptors do not end it.
    pub(super) fn prepare(&mut self, listens: bool) {
        self.next = Descriptors { is_deaf: !listens, ..Descriptors::default() };
    }

    /// What ends the next sleep beside these requests, and beside a collective that waits for flags; at most `limit`.
    /// `None` where something has to be looked at.
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

    /// Sleeps until one of `wakes` may end it or the chime has rung more than `heard` times, at most `limit`. False
    /// where the system cannot: then it has not slept.
    pub(super) fn sleep(&mut self, wakes: &[Wakes<'_>], (heard, limit): (u64, Duration)) -> bool {
        let at_most = wakes.iter().map(|wakes| wakes.at_most).fold(limit, Duration::min);
        let flags: AwaitedFlags<'_> = wakes.iter().flat_map(|wakes| &wakes.flags).copied().collect();
        let (flags, at_most) = match flags.get(..MOST_FLAGS) {
            Some(first) if flags.len() > MOST_FLAGS => (first, at_most.min(LOOK_AT_ONE * index_of(flags.len()))),
            _ => (&flags[..], at_most),
        };
        if !self.listen() {
            return false;
        }
        clock::may_sleep(at_most);
        self.chime.sleep(heard, flags, at_most)
    }

    /// A sleep is over, or does not come: the ear gives its descriptors back.
    pub(super) fn end(&mut self) {
        self.next = Descriptors::default();
        if std::mem::take(&mut self.listens)
            && let Some(ear) = &self.ear
        {
            ear.listen(None);
        }
    }

    fn await_work(&mut self, (session, fabric): (&Session, &mut Fabric), only_pushes: bool) -> Option<Duration> {
        let LongRest { next, chime, .. } = self;
        let mut listen = |descriptor: BorrowedFd<'_>| next.add(descriptor);
        let at_most = match only_pushes {
            true => fabric.await_pumps(&mut listen).map(|is_quiet| is_quiet.then_some(Duration::MAX)),
            false => fabric.await_work(&*session.bootstrap, chime, &mut listen),
        };
        at_most.unwrap_or_else(|error| {
            log::detail!(Init @ session.world.rank, "the watcher of requests naps, and does not sleep: {error}");
            None
        })
    }

    /// Lets the ear listen to the descriptors; false where there can be none.
    fn listen(&mut self) -> bool {
        let Some(poller) = std::mem::take(&mut self.next).poller else { return true };
        // One that has ended is replaced.
        if !self.ear.as_ref().is_some_and(Ear::is_there) {
            self.ear = Ear::start(&self.chime).ok();
        }
        self.listens = self.ear.as_ref().is_some_and(|ear| ear.listen(Some(poller)));
        self.listens
    }
}

impl Descriptors {
    fn add(&mut self, descriptor: BorrowedFd<'_>) -> Result<()> {
        // Communicators may share one.
        if self.is_deaf || !self.known.insert(descriptor.as_raw_fd()) {
            return Ok(());
        }
        let poller = match &mut self.poller {
            Some(poller) => poller,
            none => none.insert(Poller::new()?),
        };
        poller.add(descriptor, 0, Interest::Read)
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
    /// What to listen to from now on, in place of what was before: descriptors, or nothing.
    poller: Option<Option<Poller>>,
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
    fn listen(&self, poller: Option<Poller>) -> bool {
        let mut orders = self.shared.orders();
        let is_there = !orders.ends;
        orders.poller = Some(poller);
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
        let mut listened: Option<Poller> = None;
        loop {
            // Before the look at the orders: those that come after it ring again.
            self.bell.hush();
            let mut orders = self.orders();
            if orders.ends {
                return;
            }
            listened = orders.poller.take().unwrap_or(listened);
            drop(orders);
            let all: Vec<(BorrowedFd<'_>, Interest)> =
                std::iter::once(self.bell.as_fd()).chain(listened.as_ref().map(AsFd::as_fd)).map(reads).collect();
            match poller::ready(&all, SLICE) {
                Ok(ready) if ready.iter().skip(1).any(|ready| *ready) => {
                    // Rung once: it stays readable until the other thread has looked.
                    listened = None;
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

fn index_of(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// One system call waits for 128 words at most, and the chime is one of them.
const MOST_FLAGS: usize = 127;
/// Of more flags, a look at all of them comes once in so long for each: looking takes a small part of that.
const LOOK_AT_ONE: Duration = Duration::from_micros(20);
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
    fn one_ear_listens_for_all_until_the_sleep_is_over() {
        let mut rest = LongRest::new(&Arc::default());
        let mut first = None;
        for _ in 0..3 {
            let ends: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
            let heard = rest.chime.count();
            // Twice: communicators may share a descriptor.
            ends.iter().chain(&ends).for_each(|(mine, _)| rest.next.add(mine.as_fd()).unwrap());
            std::io::Write::write_all(&mut &ends[1].1, &[1]).unwrap();
            while rest.chime.count() == heard {
                assert!(rest.sleep(&[], (heard, LONG)));
            }
            rest.end();
            let ear = rest.ear.as_ref().and_then(|ear| ear.thread.as_ref()).map(|thread| thread.thread().id());
            assert!(ear.is_some() && *first.get_or_insert(ear) == ear);
            // It has let go of them: nobody but this thread has the socket.
            let [(mine, theirs), ..] = &ends[..] else { unreachable!("three") };
            mine.shutdown(std::net::Shutdown::Both).unwrap();
            theirs.set_read_timeout(Some(LONG)).unwrap();
            assert_eq!((&*theirs).read(&mut [0]).unwrap(), 0);
        }
    }
}
