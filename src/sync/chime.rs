//! What threads of this process ring for one that sleeps.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::error::Result;
use crate::sync::primitive::{Arc, AtomicBool, AtomicU32, AtomicU64, OnceLock, Ordering, Weak, fence};
use crate::sync::{Flag, Mirror};
use crate::sys::bell::Bell;
use crate::sys::fork::Birthplace;
use crate::sys::futex;
use crate::sys::poller::{self, Interest};

/// Counts how often it was rung. One thread sleeps on it, together with flags or with descriptors: it reads the count
/// first, then looks for work, and does not fall asleep where the count has changed meanwhile.
#[derive(Debug, Default)]
pub struct Chime {
    rung: AtomicU64,
    /// [`NOBODY`], [`ON_WORD`] or [`ON_BELL`].
    sleeper: AtomicU32,
    /// For sleeps beside descriptors, from the first one on.
    bell: OnceLock<Bell>,
    /// Whether the bell has rung since it was hushed.
    has_rung: AtomicBool,
}

/// No thread sleeps.
const NOBODY: u32 = 0;
/// One sleeps until the count changes.
const ON_WORD: u32 = 1;
/// One sleeps until the bell is readable.
const ON_BELL: u32 = 2;

thread_local! {
    static OF_THREAD: RefCell<Option<(Birthplace, Weak<Chime>)>> = const { RefCell::new(None) };
}

impl Chime {
    /// That of this thread, for its sleeps beside descriptors: so these take a descriptor a thread that waits, and not
    /// one for each thing that is waited for. It lives as long as one of those keeps it. A forked child has its own.
    pub(crate) fn of_thread() -> Arc<Chime> {
        let of_this = OF_THREAD.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            let known =
                kept.take().filter(|(birthplace, _)| birthplace.is_here()).and_then(|(_, chime)| chime.upgrade());
            let chime = known.unwrap_or_default();
            *kept = Some((Birthplace::here(), Arc::downgrade(&chime)));
            chime
        });
        // A communicator may end with its thread, or with the process, when the thread's variables have gone.
        of_this.unwrap_or_default()
    }

    /// Whether a ring still wakes a thread that sleeps beside descriptors: the program may have closed all of them,
    /// which such a sleep does not notice.
    pub(crate) fn has_bell(&self) -> bool {
        self.bell().is_some_and(|bell| poller::ready(&[(bell.as_fd(), Interest::Read)], Duration::ZERO).is_ok())
    }

    /// Wakes the thread that sleeps on it, or keeps it from falling asleep. What the caller has written before is
    /// visible to that thread. Without a sleeper it costs no system call.
    pub(crate) fn ring(&self) {
        match self.count_up() {
            ON_WORD => futex::wake_all(&self.rung),
            ON_BELL => {
                self.bell.get().into_iter().for_each(Bell::ring);
                // Behind it: who sees this hushes a bell that has rung.
                self.has_rung.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Counts a ring. How the thread sleeps that is to be woken.
    fn count_up(&self) -> u32 {
        // SeqCst, all: their partners are in `fall_asleep`, and the kernel's look at the word. Either this thread sees
        // the sleeper, or the sleeper or the kernel sees the new count; with less, both could miss each other, and the
        // sleep would last.
        self.rung.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.sleeper.load(Ordering::SeqCst)
    }

    /// Says how this thread is about to sleep. Whether it may: whoever rings from now on wakes it so.
    fn fall_asleep(&self, heard: u64, how: u32) -> bool {
        // SeqCst, all: see `count_up`.
        self.sleeper.store(how, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.rung.load(Ordering::SeqCst) == heard
    }

    fn wake_up(&self) {
        // Relaxed: who still sees a sleeper makes a wake that nobody needs.
        self.sleeper.store(NOBODY, Ordering::Relaxed);
    }

    /// Whether its thread is asleep on it, or about to be so that a ring keeps it from that.
    #[cfg(test)]
    pub(crate) fn has_sleeper(&self) -> bool {
        // Relaxed: only this number counts.
        self.sleeper.load(Ordering::Relaxed) != NOBODY
    }

    /// How often it was rung.
    pub(crate) fn count(&self) -> u64 {
        // Pairs with `ring`: what was written before a ring that is counted is seen by whoever reads the count.
        self.rung.load(Ordering::Acquire)
    }

    /// Sleeps until the chime has rung more than `heard` times or one of `flags` may have reached the value beside it,
    /// at most `timeout`. False where the system cannot: then this thread has not slept.
    pub(crate) fn sleep(&self, heard: u64, flags: &[(&Flag, u64)], timeout: Duration) -> bool {
        let slept = !self.fall_asleep(heard, ON_WORD) || Flag::park_any(flags, (&self.rung, heard), timeout);
        self.wake_up();
        slept
    }

    /// The same, until one of `descriptors` is ready for what stands beside it.
    pub(crate) fn sleep_beside(
        &self,
        heard: u64,
        descriptors: &[(BorrowedFd<'_>, Interest)],
        timeout: Duration,
    ) -> bool {
        self.ready_beside(heard, descriptors, timeout).is_some()
    }

    /// The same; says of each descriptor whether it is ready, none where the chime has rung before. `None` where the
    /// system cannot.
    pub(crate) fn ready_beside(
        &self,
        heard: u64,
        descriptors: &[(BorrowedFd<'_>, Interest)],
        timeout: Duration,
    ) -> Option<Vec<bool>> {
        let bell = self.bell()?;
        // Before anybody is told to ring it: what rings between two sleeps is in the count.
        // Relaxed: a ring that is not seen yet ends the sleep for nothing, and is hushed before the next one.
        if self.has_rung.swap(false, Ordering::Relaxed) {
            bell.hush();
        }
        let all: Vec<_> = std::iter::once((bell.as_fd(), Interest::Read)).chain(descriptors.iter().copied()).collect();
        let ready = match self.fall_asleep(heard, ON_BELL) {
            true => poller::ready(&all, timeout).ok().map(|mut ready| ready.split_off(1)),
            false => Some(vec![false; descriptors.len()]),
        };
        self.wake_up();
        ready
    }

    /// Makes what sleeps beside descriptors take.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where no descriptor is left.
    pub(crate) fn prepare(&self) -> Result<()> {
        let bell = Bell::new()?;
        self.bell.get_or_init(|| bell);
        Ok(())
    }

    /// `None` where no descriptor is left.
    fn bell(&self) -> Option<&Bell> {
        match self.bell.get() {
            None => {
                let bell = Bell::new().ok()?;
                Some(self.bell.get_or_init(|| bell))
            }
            made => made,
        }
    }
}

/// It rings for an abort.
impl Mirror for Chime {
    fn raise(&self) {
        self.ring();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::error::Error;
    use crate::sync::AbortFlag;
    use crate::sys::{clock, thread};

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

    /// As a communicator that a variable of its thread holds: it ends when the thread's chime may have gone.
    #[test]
    fn a_thread_has_one_until_it_has_ended() {
        struct Last;
        impl Drop for Last {
            fn drop(&mut self) {
                Chime::of_thread().ring();
            }
        }
        thread_local! {
            static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
        }
        let ends = thread::spawn("ends", || {
            // Made first, and so dropped last.
            LAST.set(Some(Last));
            let _chime = Chime::of_thread();
        });
        ends.unwrap().join().unwrap();
    }

    /// A sleep of a minute ends at once by each of its ends, whether that comes before the sleep or in it.
    #[test]
    fn a_ring_a_flag_and_an_abort_end_a_sleep() {
        let (chime, abort) = (Arc::new(Chime::default()), AbortFlag::new());
        abort.mirror(&chime);
        let ends: [&(dyn Fn(&'static Flag) + Sync); 3] =
            [&|_| chime.ring(), &|flag| flag.raise(1), &|_| abort.raise(Error::aborted("enough"))];
        let (began, mut can_sleep) = (clock::now(), true);
        for (end, before) in ends.iter().flat_map(|end| [(end, true), (end, false)]) {
            for flags in 1..4 {
                let flags: Vec<&Flag> = (0..flags).map(|_| flag()).collect();
                let last = flags[flags.len() - 1];
                let awaited: Vec<_> = flags.iter().map(|flag| (*flag, 1)).collect();
                let heard = chime.count();
                std::thread::scope(|threads| {
                    if before {
                        end(last);
                    } else {
                        threads.spawn(|| end(last));
                    }
                    // Where the system cannot, it does not sleep, and says so.
                    can_sleep &= chime.sleep(heard, &awaited, LONG);
                });
            }
        }
        assert!(clock::now().duration_since(began) < LONG, "a sleep has lasted to its end");
        // Nothing ends it.
        let (began, short) = (clock::now(), Duration::from_millis(20));
        let slept = chime.sleep(chime.count(), &[(flag(), 1), (flag(), 1)], short);
        assert!(!slept || clock::now().duration_since(began) >= short, "it has not slept");
        assert_eq!(slept, can_sleep, "the system can, or cannot");
    }

    /// The same of a sleep beside descriptors; what has rung before ends no later one.
    #[test]
    #[cfg(not(miri))]
    fn a_ring_a_descriptor_and_an_abort_end_a_sleep_beside_descriptors() {
        let (chime, abort) = (Arc::new(Chime::default()), AbortFlag::new());
        abort.mirror(&chime);
        let (mine, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let ends: [&(dyn Fn() + Sync); 3] = [&|| chime.ring(), &|| abort.raise(Error::aborted("enough")), &|| {
            std::io::Write::write_all(&mut &theirs, &[1]).unwrap()
        }];
        let began = clock::now();
        for (end, before) in ends.iter().flat_map(|end| [(end, true), (end, false)]) {
            let heard = chime.count();
            std::thread::scope(|threads| {
                if before {
                    end();
                } else {
                    threads.spawn(end);
                }
                assert!(chime.sleep_beside(heard, &[(mine.as_fd(), Interest::Read)], LONG));
            });
        }
        assert!(clock::now().duration_since(began) < LONG, "a sleep has lasted to its end");
        let (began, short) = (clock::now(), Duration::from_millis(20));
        assert!(chime.sleep_beside(chime.count(), &[], short));
        assert!(clock::now().duration_since(began) >= short, "an old ring has ended it");
    }
}

#[cfg(all(loom, test))]
mod models {
    use super::*;

    /// Whoever has written work rings; whoever looks for work and finds none sleeps. The one sees the other.
    #[test]
    fn a_ring_is_heard_before_the_sleep_or_wakes_it() {
        loom::model(|| {
            let all = Arc::new((Chime::default(), AtomicBool::new(false), AtomicBool::new(false)));
            let theirs = Arc::clone(&all);
            let ringer = loom::thread::spawn(move || {
                let (chime, work, bell) = &*theirs;
                work.store(true, Ordering::Relaxed);
                if chime.count_up() == ON_BELL {
                    bell.store(true, Ordering::Relaxed);
                }
            });
            let (chime, work, bell) = &*all;
            let heard = chime.count();
            if work.load(Ordering::Relaxed) {
                ringer.join().expect("it does not panic");
                return;
            }
            if chime.fall_asleep(heard, ON_BELL) {
                ringer.join().expect("it does not panic");
                assert!(bell.load(Ordering::Relaxed), "it sleeps, and nobody has rung");
            } else {
                chime.count();
                assert!(work.load(Ordering::Relaxed), "it was woken for nothing");
                ringer.join().expect("it does not panic");
            }
        });
    }
}
