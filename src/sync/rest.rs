//! How the progress thread sleeps: beside flags, descriptors, and a [`Chime`] that its process rings.
//!
//! One system call waits for flags and the chime (`futex_waitv`, since Linux 5.16), another one for descriptors and the
//! chime's bell (`ppoll`). None waits for flags and descriptors: a descriptor cannot be a futex, and `io_uring`, which
//! could wait for both, is forbidden in most containers. So where a sleep has both, a second thread, the ear, sleeps on
//! the descriptors and rings the chime. It is started for the first such sleep, and ends with the progress thread. A
//! process whose requests go by sockets alone, or by shared memory alone, never has it.

use std::os::fd::{AsFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::Result;
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sync::{Chime, Flag};
use crate::sys::bell::Bell;
use crate::sys::poller::{self, Interest, Poller};
use crate::sys::{clock, thread};

/// What ends a sleep, beside the chime.
#[derive(Debug, Clone)]
pub(crate) struct RestEnds<'a> {
    /// Each may have reached the value beside it.
    pub(crate) flags: Vec<(&'a Flag, u64)>,
    /// Each may be readable.
    pub(crate) descriptors: Vec<BorrowedFd<'a>>,
    /// How long it lasts at most.
    pub(crate) limit: Duration,
}

impl RestEnds<'_> {
    /// Nothing but `limit` ends it.
    pub(crate) fn at(limit: Duration) -> RestEnds<'static> {
        RestEnds { flags: Vec::new(), descriptors: Vec::new(), limit }
    }
}

/// The sleeps of one thread.
#[derive(Debug)]
pub(super) struct Sleeper {
    chime: Arc<Chime>,
    ear: Option<Ear>,
}

impl Sleeper {
    /// Sleeps that others end by `chime`.
    pub(super) fn new(chime: &Arc<Chime>) -> Sleeper {
        Sleeper { chime: Arc::clone(chime), ear: None }
    }

    /// Sleeps until one of `ends` may have come or the chime has rung more than `heard` times. False where the system
    /// cannot: then it has not slept.
    pub(super) fn sleep(&mut self, heard: u64, ends: &RestEnds<'_>) -> bool {
        let RestEnds { flags, descriptors, limit } = ends;
        let (flags, limit) = match flags.get(..MOST_FLAGS) {
            Some(first) if flags.len() > MOST_FLAGS => (first, (*limit).min(LOOK_AT_ONE * count_of(flags.len()))),
            _ => (&flags[..], *limit),
        };
        if flags.is_empty() && !descriptors.is_empty() {
            clock::may_sleep(limit);
            return self.chime.sleep_beside(heard, descriptors, limit);
        }
        if !descriptors.is_empty() && !self.listen(descriptors) {
            return false;
        }
        clock::may_sleep(limit);
        let has_slept = self.chime.sleep(heard, flags, limit);
        if let Some(ear) = self.ear.as_ref().filter(|_| !descriptors.is_empty()) {
            ear.listen(None);
        }
        has_slept
    }

    /// Lets the ear listen to the descriptors; false where there can be none.
    fn listen(&mut self, descriptors: &[BorrowedFd<'_>]) -> bool {
        // One that has ended is replaced.
        if !self.ear.as_ref().is_some_and(Ear::is_there) {
            self.ear = Ear::start(&self.chime).ok();
        }
        let Ok(poller) = poller_of(descriptors) else { return false };
        self.ear.as_ref().is_some_and(|ear| ear.listen(Some(poller)))
    }
}

fn poller_of(descriptors: &[BorrowedFd<'_>]) -> Result<Poller> {
    let poller = Poller::new()?;
    descriptors.iter().try_for_each(|descriptor| poller.add(*descriptor, 0, Interest::Read))?;
    Ok(poller)
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

fn count_of(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

/// One system call waits for 128 words at most, and the chime is one of them.
const MOST_FLAGS: usize = 127;
/// Of more flags, a look at all of them comes once in so long for each: looking takes a small part of that.
const LOOK_AT_ONE: Duration = Duration::from_micros(20);
/// How long the ear sleeps at a time: no deadline depends on it.
const SLICE: Duration = Duration::from_secs(3600);

#[cfg(test)]
#[cfg(not(loom))]
#[cfg(not(miri))]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::ptr::NonNull;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// A flag's memory.
    #[derive(Default)]
    #[repr(C, align(16))]
    struct Place([u64; 2]);

    fn flag() -> &'static Flag {
        let place: &'static mut Place = Box::leak(Box::default());
        // SAFETY: aligned to 16 bytes, zeroed, never freed, and used as a flag only.
        unsafe { Flag::at(NonNull::from(place).cast()) }
    }

    /// Sleeps beside three sockets, of which one has bytes, and beside `flags`.
    fn sleep_beside_sockets(sleeper: &mut Sleeper, flags: &[(&Flag, u64)]) {
        let ends: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        std::io::Write::write_all(&mut &ends[1].1, &[1]).unwrap();
        let descriptors = ends.iter().map(|(mine, _)| mine.as_fd()).collect();
        let rest = RestEnds { flags: flags.to_vec(), descriptors, limit: LONG };
        let (began, heard) = (clock::now(), sleeper.chime.count());
        assert!(sleeper.sleep(heard, &rest) && clock::now().duration_since(began) < LONG);
        // Nobody but this thread has the socket now.
        let [(mine, theirs), ..] = &ends[..] else { unreachable!("three") };
        mine.shutdown(std::net::Shutdown::Both).unwrap();
        theirs.set_read_timeout(Some(LONG)).unwrap();
        assert_eq!((&*theirs).read(&mut [0]).unwrap(), 0);
    }

    /// Regression: each communicator that went from requests to none and back had a new thread for its sockets.
    #[test]
    fn one_ear_listens_for_all_until_the_sleep_is_over() {
        let chime = Arc::new(Chime::default());
        if !chime.sleep(0, &[(flag(), 1), (flag(), 1)], Duration::from_millis(1)) {
            return println!("skipped: this system cannot sleep beside flags");
        }
        let mut sleeper = Sleeper::new(&chime);
        let mut first = None;
        for _ in 0..3 {
            sleep_beside_sockets(&mut sleeper, &[(flag(), 1)]);
            let ear = sleeper.ear.as_ref().and_then(|ear| ear.thread.as_ref()).map(|thread| thread.thread().id());
            assert!(ear.is_some() && *first.get_or_insert(ear) == ear);
        }
    }

    #[test]
    fn where_no_flag_is_waited_for_there_is_no_second_thread() {
        let mut sleeper = Sleeper::new(&Arc::default());
        (0..3).for_each(|_| sleep_beside_sockets(&mut sleeper, &[]));
        assert!(sleeper.ear.is_none());
    }
}
