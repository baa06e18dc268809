//! How the progress thread sleeps: beside flags, descriptors, and a [`Chime`] that its process rings.
//!
//! One system call waits for flags and the chime (`futex_waitv`, since Linux 5.16), another one for descriptors and the
//! chime's bell (`ppoll`). None waits for flags and descriptors: a descriptor cannot be a futex, and `io_uring`, which
//! could wait for both, is forbidden in most containers. So where a sleep has both, the service thread sleeps on the
//! descriptors and rings the chime: one of its duties is the ear, from the first such sleep on until the progress
//! thread ends.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::error::Result;
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sync::service_thread::{self, Served, ServiceDuty, ServiceSeat};
use crate::sync::{Chime, Flag};
use crate::sys::clock;
use crate::sys::poller::{Interest, Poller};

/// What ends a sleep, beside the chime.
#[derive(Debug, Clone)]
pub(crate) struct RestEnds<'a> {
    /// Each may have reached the value beside it.
    pub(crate) flags: Vec<(&'a Flag, u64)>,
    /// Each may be ready for what stands beside it.
    pub(crate) descriptors: Vec<(BorrowedFd<'a>, Interest)>,
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
            ear.stop_listening();
        }
        has_slept
    }

    /// Lets the ear listen to the descriptors; false where there can be none.
    fn listen(&mut self, descriptors: &[(BorrowedFd<'_>, Interest)]) -> bool {
        // One that has ended is replaced.
        if !self.ear.as_ref().is_some_and(Ear::is_there) {
            self.ear = Ear::start(&self.chime).ok();
        }
        let Ok(poller) = poller_of(descriptors) else { return false };
        self.ear.as_ref().is_some_and(|ear| ear.listen(poller))
    }
}

fn poller_of(descriptors: &[(BorrowedFd<'_>, Interest)]) -> Result<Poller> {
    let poller = Poller::new()?;
    descriptors.iter().try_for_each(|(descriptor, interest)| poller.add(*descriptor, 0, *interest))?;
    Ok(poller)
}

/// Rings the chime when a descriptor is readable: once, then it waits for new orders. A duty of the service thread.
#[derive(Debug)]
struct Ear {
    shared: Arc<EarShared>,
    seat: ServiceSeat,
}

#[derive(Debug)]
struct EarShared {
    chime: Arc<Chime>,
    orders: Mutex<EarOrders>,
}

#[derive(Debug, Default)]
struct EarOrders {
    /// What to listen to from now on, in place of what was before: descriptors, or nothing.
    poller: Option<Option<Poller>>,
    /// It ends, or has ended because the system did not let it listen.
    ends: bool,
}

impl Ear {
    fn start(chime: &Arc<Chime>) -> Result<Ear> {
        let shared = Arc::new(EarShared { chime: Arc::clone(chime), orders: Mutex::default() });
        let heard = Arc::clone(&shared);
        let seat = service_thread::enter(|_| Box::new(Listening { shared: heard, listened: None }))?;
        Ok(Ear { shared, seat })
    }

    fn is_there(&self) -> bool {
        !self.shared.orders().ends
    }

    /// False where it cannot.
    fn listen(&self, poller: Poller) -> bool {
        let mut orders = self.shared.orders();
        let is_there = !orders.ends;
        orders.poller = Some(Some(poller));
        drop(orders);
        self.seat.ring();
        is_there
    }

    /// The sleep is over. What is heard until the thread learns of it wakes that thread for nothing, once.
    fn stop_listening(&self) {
        self.shared.orders().poller = Some(None);
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        // The seat, which is dropped behind this, wakes the thread.
        self.shared.orders().ends = true;
    }
}

impl EarShared {
    fn orders(&self) -> MutexGuard<'_, EarOrders> {
        self.orders.lock()
    }
}

/// What the thread has of it.
#[derive(Debug)]
struct Listening {
    shared: Arc<EarShared>,
    listened: Option<Poller>,
}

impl Drop for Listening {
    /// Where it ends by itself, which a defect of ours may do too, its owner hears it.
    fn drop(&mut self) {
        self.deafen();
    }
}

impl ServiceDuty for Listening {
    fn serve(&mut self, is_ready: bool) -> Served {
        let mut orders = self.shared.orders();
        if orders.ends {
            return Served::Over;
        }
        let news = orders.poller.take();
        drop(orders);
        match news {
            Some(listened) => self.listened = listened,
            None if is_ready => {
                // Rung once: it stays readable until the other thread has looked.
                self.listened = None;
                self.shared.chime.ring();
            }
            None => {}
        }
        Served::Until(None)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.listened.as_ref().map(AsFd::as_fd)
    }

    fn deafen(&mut self) {
        self.shared.orders().ends = true;
        self.shared.chime.ring();
    }
}

fn count_of(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

/// One system call waits for 128 words at most, and the chime is one of them.
const MOST_FLAGS: usize = 127;
/// Of more flags, a look at all of them comes once in so long for each: looking takes a small part of that.
const LOOK_AT_ONE: Duration = Duration::from_micros(20);

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
        let descriptors = ends.iter().map(|(mine, _)| (mine.as_fd(), Interest::Read)).collect();
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
        let mut first: Option<Arc<EarShared>> = None;
        for _ in 0..3 {
            sleep_beside_sockets(&mut sleeper, &[(flag(), 1)]);
            let ear = Arc::clone(&sleeper.ear.as_ref().expect("it listens").shared);
            assert!(Arc::ptr_eq(first.get_or_insert_with(|| Arc::clone(&ear)), &ear));
        }
    }

    #[test]
    fn where_no_flag_is_waited_for_nobody_else_listens() {
        let mut sleeper = Sleeper::new(&Arc::default());
        (0..3).for_each(|_| sleep_beside_sockets(&mut sleeper, &[]));
        assert!(sleeper.ear.is_none());
    }
}
