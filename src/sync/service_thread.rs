//! The service thread: the one thread of the process that serves all its communicators, and moves none of their bytes.
//!
//! Its duties are the door at which connections come, the ear by which the progress thread hears sockets while it
//! sleeps on flags, and the monitor of what runs on streams. It starts with the first duty and ends with the last one.
//! A duty never waits, so that none holds up another one; one that panics is dropped, and the others go on. Between
//! their turns the thread sleeps beside their descriptors, until the first moment that one of them has named, or until
//! somebody rings its chime.
//!
//! A program may close all its descriptors, as daemons do. Then the thread is deaf: duties that have a descriptor are
//! over, the others go on, and those that come later get another thread.

use std::cell::Cell;
use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::sync::Chime;
use crate::sync::primitive::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::sys::fork::{Birthplace, PerProcess};
use crate::sys::poller::Interest;
use crate::sys::{clock, futex, thread};

/// Something that the thread does.
pub(crate) trait ServiceDuty: Debug + Send {
    /// Does what there is to do, and never waits. `is_ready`: its descriptor was readable. Also called where there is
    /// nothing to do.
    fn serve(&mut self, is_ready: bool) -> Served;

    /// What is readable when there is something to do, if that comes by a descriptor.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Nobody hears its descriptor any more: it is dropped behind this call.
    fn deafen(&mut self) {}
}

/// When a duty has something to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Served {
    /// When its descriptor is readable or the chime rings, and at this moment at the latest.
    Until(Option<Instant>),
    /// Never again.
    Over,
}

/// The thread of this process, while it has duties.
static SERVICE: PerProcess<Mutex<Option<Running>>> = PerProcess::new();

#[derive(Debug)]
struct Running {
    shared: Arc<Entrance>,
    thread: JoinHandle<()>,
    /// Its other end is dropped when the thread ends.
    ended: Receiver<()>,
}

/// What the thread is told by.
#[derive(Debug)]
struct Entrance {
    chime: Arc<Chime>,
    birthplace: Birthplace,
    /// Duties that the thread does not know yet.
    joining: Mutex<Vec<Box<dyn ServiceDuty>>>,
    /// Changed under the lock of [`SERVICE`].
    seats: AtomicUsize,
    ends: AtomicBool,
    is_deaf: AtomicBool,
}

/// Keeps the thread alive for one duty. To be dropped once the duty was told that it is over: the last one ends the
/// thread, and waits for it, unless it is the thread itself that drops it.
#[derive(Debug)]
pub(crate) struct ServiceSeat(Arc<Entrance>);

/// Gives the thread a duty, which `duty` makes for the chime that wakes the thread.
///
/// # Errors
/// [`crate::error::Kind::System`] where no thread can be started, or no descriptor is left to wake it by.
pub(crate) fn enter(duty: impl FnOnce(&Arc<Chime>) -> Box<dyn ServiceDuty>) -> Result<ServiceSeat> {
    let mut service = SERVICE.get_or_init(Mutex::default).lock();
    // Those who have seats there keep it alive, and what it still does.
    let _deaf = service.take_if(|running| running.shared.is_deaf());
    let running = match &mut *service {
        Some(running) => running,
        none => none.insert(Running::start()?),
    };
    // Relaxed: the lock orders it.
    running.shared.seats.fetch_add(1, Ordering::Relaxed);
    let shared = Arc::clone(&running.shared);
    drop(service);
    let duty = duty(&shared.chime);
    shared.joining.lock().push(duty);
    shared.chime.ring();
    Ok(ServiceSeat(shared))
}

impl ServiceSeat {
    /// Whether the thread hears no descriptors any more, so that a duty which has one is over.
    pub(crate) fn is_deaf(&self) -> bool {
        self.0.is_deaf()
    }

    /// Wakes the thread, which calls all its duties.
    pub(crate) fn ring(&self) {
        if self.0.birthplace.is_here() {
            self.0.chime.ring();
        }
    }
}

impl Drop for ServiceSeat {
    fn drop(&mut self) {
        // A forked child's copy is of a thread that the child has not.
        if !self.0.birthplace.is_here() {
            return;
        }
        let Some(service) = SERVICE.get() else { return };
        let mut service = service.lock();
        // Relaxed: the lock orders it.
        let is_last = self.0.seats.fetch_sub(1, Ordering::Relaxed) == 1;
        let last = service.take_if(|running| is_last && Arc::ptr_eq(&running.shared, &self.0));
        drop(service);
        if is_last {
            // Release: pairs with the load in `Entrance::run`.
            self.0.ends.store(true, Ordering::Release);
        }
        // The duty has another turn, in which it is over.
        self.0.chime.ring();
        let Some(Running { thread, ended, .. }) = last else { return };
        // A duty may drop the last communicator: the thread does not wait for itself. A deaf one may not be woken.
        if !is_here() && ended.recv_timeout(ENDS_WITHIN) == Err(RecvTimeoutError::Disconnected) {
            // It has nothing left to do, and catches what panics.
            let _ended = thread.join();
        }
    }
}

thread_local! {
    static IS_HERE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller is the thread: then it must not wait for what the thread does.
fn is_here() -> bool {
    IS_HERE.get()
}

impl Running {
    fn start() -> Result<Running> {
        let chime = Arc::<Chime>::default();
        chime.prepare()?;
        let shared = Arc::new(Entrance {
            chime,
            birthplace: Birthplace::here(),
            joining: Mutex::default(),
            seats: AtomicUsize::new(0),
            ends: AtomicBool::new(false),
            is_deaf: AtomicBool::new(false),
        });
        let (served, (runs, ended)) = (Arc::clone(&shared), channel());
        let thread = thread::spawn("rsccl service", move || {
            IS_HERE.set(true);
            served.run();
            drop::<std::sync::mpsc::Sender<()>>(runs);
        })?;
        Ok(Running { shared, thread, ended })
    }
}

/// A duty, and whether its descriptor was readable behind the last sleep.
#[derive(Debug)]
struct Seated {
    duty: Box<dyn ServiceDuty>,
    is_ready: bool,
}

impl Entrance {
    fn run(&self) {
        let mut duties: Vec<Seated> = Vec::new();
        loop {
            // First, so that what is told from here on ends the sleep behind these turns.
            let heard = self.chime.count();
            // Acquire: pairs with the store where the last seat is dropped.
            let ends = self.ends.load(Ordering::Acquire);
            duties.extend(self.joining.lock().drain(..).map(|duty| Seated { duty, is_ready: false }));
            let mut until: Option<Instant> = None;
            duties.retain_mut(|one| match one.serve() {
                Served::Until(moment) => {
                    until = until.into_iter().chain(moment).min();
                    true
                }
                Served::Over => false,
            });
            if ends && duties.is_empty() {
                return;
            }
            let limit = until.map_or(LONGEST, |until| until.saturating_duration_since(clock::now()));
            // Also where a moment has passed: what came by descriptors does not wait for a duty that is always late.
            self.rest(&mut duties, heard, limit);
        }
    }

    /// Whether no descriptor is heard any more, or none will be: a thread that sleeps while they are closed does not
    /// notice, and nobody can wake it.
    fn is_deaf(&self) -> bool {
        // Relaxed: once set it stays.
        self.is_deaf.load(Ordering::Relaxed) || !self.chime.has_bell()
    }

    fn rest(&self, duties: &mut Vec<Seated>, heard: u64, limit: Duration) {
        // Relaxed: only this thread changes it.
        if self.is_deaf.load(Ordering::Relaxed) {
            drop_hearers(duties);
            if !self.chime.sleep(heard, &[], limit) {
                futex::nap(limit.min(NAP));
            }
            return;
        }
        let descriptors: Vec<_> =
            duties.iter().filter_map(|one| Some((one.duty.descriptor()?, Interest::Read))).collect();
        let Some(ready) = self.chime.ready_beside(heard, &descriptors, limit) else {
            self.is_deaf.store(true, Ordering::Relaxed);
            return drop_hearers(duties);
        };
        let mut ready = ready.into_iter();
        for one in duties.iter_mut().filter(|one| one.duty.descriptor().is_some()) {
            one.is_ready = ready.next().unwrap_or(false);
        }
    }
}

/// Of a deaf thread: also a duty that has got its descriptor since then.
fn drop_hearers(duties: &mut Vec<Seated>) {
    duties.retain_mut(|one| {
        let hears = one.duty.descriptor().is_some();
        if hears {
            one.duty.deafen();
        }
        !hears
    });
}

impl Seated {
    /// A panic is a defect of ours, which the panic hook has told: the duty is dropped at once.
    fn serve(&mut self) -> Served {
        let is_ready = std::mem::take(&mut self.is_ready);
        let served = catch_unwind(AssertUnwindSafe(|| self.duty.serve(is_ready)));
        served.unwrap_or_else(|_| {
            let broken = std::mem::replace(&mut self.duty, Box::new(Dropped));
            // What it drops may be as broken as it is.
            let _second = catch_unwind(AssertUnwindSafe(|| drop(broken)));
            Served::Over
        })
    }
}

/// In the place of a duty that has panicked.
#[derive(Debug)]
struct Dropped;

impl ServiceDuty for Dropped {
    fn serve(&mut self, _: bool) -> Served {
        Served::Over
    }
}

/// No duty depends on it.
const LONGEST: Duration = Duration::from_secs(3600);
/// How long a deaf thread sleeps where the system does not let it sleep on its chime.
const NAP: Duration = Duration::from_millis(2);
/// How long the last owner waits for the end of the thread, which comes as soon as it looks. One that is not woken, for
/// the program has closed its descriptors, is left behind.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

#[cfg(test)]
#[cfg(not(loom))]
#[cfg(not(miri))]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::sync::mpsc::Sender;
    use std::thread::{self, ThreadId};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Reads a byte each time that one has come, and tells of it; panics at the byte 0, ends at the byte 255.
    #[derive(Debug)]
    struct Reads {
        socket: UnixStream,
        told: Sender<(u8, ThreadId)>,
    }

    impl ServiceDuty for Reads {
        fn serve(&mut self, is_ready: bool) -> Served {
            let mut byte = [0];
            if is_ready && self.socket.read(&mut byte).is_ok() {
                // The test may have ended by an assertion.
                let _unheard = self.told.send((byte[0], thread::current().id()));
                assert!(byte[0] != 0, "on purpose");
            }
            if byte[0] == 255 { Served::Over } else { Served::Until(None) }
        }

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            Some(self.socket.as_fd())
        }
    }

    /// Called at a moment, and by a ring; tells of each.
    #[derive(Debug)]
    struct Ticks {
        due: Instant,
        told: Sender<(u8, ThreadId)>,
        ends: Arc<AtomicBool>,
    }

    impl ServiceDuty for Ticks {
        fn serve(&mut self, _: bool) -> Served {
            if self.ends.load(Ordering::Acquire) {
                return Served::Over;
            }
            if clock::now() >= self.due {
                let _unheard = self.told.send((1, thread::current().id()));
                self.due = clock::now() + Duration::from_millis(1);
            }
            Served::Until(Some(self.due))
        }
    }

    /// Other tests of this process may have duties too: only what is ours is looked at.
    #[test]
    fn duties_share_one_thread_and_one_that_panics_leaves_the_others_alone() {
        let reader = || {
            let (mine, theirs) = UnixStream::pair().unwrap();
            mine.set_nonblocking(true).unwrap();
            let (told, heard) = channel();
            let seat = enter(|_| Box::new(Reads { socket: mine, told })).unwrap();
            (theirs, heard, seat)
        };
        let ((mut broken, of_broken, first), (mut whole, of_whole, second)) = (reader(), reader());
        let (told, of_ticks) = channel();
        let ends = Arc::new(AtomicBool::new(false));
        let ticks = Ticks { due: clock::now(), told, ends: Arc::clone(&ends) };
        let third = enter(|_| Box::new(ticks)).unwrap();
        let mut only = None;
        let mut said = |(byte, on)| {
            assert!(*only.get_or_insert(on) == on && on != thread::current().id());
            byte
        };
        broken.write_all(&[7]).unwrap();
        assert_eq!(said(of_broken.recv_timeout(LIMIT).unwrap()), 7);
        broken.write_all(&[0]).unwrap();
        assert_eq!(said(of_broken.recv_timeout(LIMIT).unwrap()), 0);
        assert_eq!(of_broken.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected), "it is dropped");
        for byte in [3, 4, 255] {
            whole.write_all(&[byte]).unwrap();
            assert_eq!(said(of_whole.recv_timeout(LIMIT).unwrap()), byte);
            assert_eq!(said(of_ticks.recv_timeout(LIMIT).unwrap()), 1);
        }
        assert_eq!(of_whole.recv_timeout(LIMIT), Err(RecvTimeoutError::Disconnected), "it is over");
        ends.store(true, Ordering::Release);
        third.ring();
        while of_ticks.recv_timeout(LIMIT).is_ok() {}
        drop((first, second, third));
    }
}
