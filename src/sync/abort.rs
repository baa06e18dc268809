//! The abort flag: one word that every wait checks, and its mirrors in memory that devices read.

use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, Weak};

/// Tells every wait of a communicator to stop, and why. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct AbortFlag(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    raised: AtomicBool,
    reason: Mutex<Option<Error>>,
    /// Whether the program has got the reason: a call has returned it, or the program has asked.
    heard: AtomicBool,
    /// Whether a wait for a stream has returned it.
    told: AtomicBool,
    /// The flags that are raised together with this one.
    followers: Mutex<Vec<Weak<Shared>>>,
    /// The flags that are raised when the program asks for an abort of this one, also where this one is raised already.
    program_followers: Mutex<Vec<Weak<Shared>>>,
    /// Words that show the flag to devices, which cannot read the flag itself.
    mirrors: Mutex<Vec<Weak<dyn Mirror>>>,
}

/// A word that repeats an abort flag in memory that a device reads.
pub(crate) trait Mirror: Send + Sync + std::fmt::Debug {
    /// Shows that the flag is raised. May be called several times, from any thread.
    fn raise(&self);
}

/// A word of this process: 0, or 1 if the flag is raised.
impl Mirror for AtomicU32 {
    fn raise(&self) {
        // Relaxed: the word stands alone; the reason is kept with the flag.
        self.store(1, Ordering::Relaxed);
    }
}

/// While this value lives, one flag is raised whenever another is.
#[derive(Debug)]
pub(crate) struct Following {
    leader: AbortFlag,
    follower: Weak<Shared>,
}

/// The same for the aborts that a program asks for.
#[derive(Debug)]
pub(crate) struct ProgramFollowing {
    leader: AbortFlag,
    follower: Weak<Shared>,
}

impl AbortFlag {
    /// A flag that is not raised.
    pub fn new() -> AbortFlag {
        AbortFlag::default()
    }

    /// Raises the flag. The first reason stays.
    pub fn raise(&self, reason: Error) {
        let mut held = self.0.reason.lock();
        let reason = held.get_or_insert(reason).duplicate();
        // Pairs with the acquire in `is_raised`: whoever sees the flag also sees the reason.
        self.0.raised.store(true, Ordering::Release);
        drop(held);
        let mirrors = self.mirrors().clone();
        mirrors.iter().filter_map(Weak::upgrade).for_each(|mirror| mirror.raise());
        let followers = self.followers().clone();
        for follower in followers.iter().filter_map(Weak::upgrade) {
            AbortFlag(follower).raise(reason.duplicate());
        }
    }

    /// Raises the flag because the program asks for it. What is under way beside a raised flag, a shrink, ends too.
    pub(crate) fn raise_by_program(&self, reason: Error) {
        self.raise(reason.duplicate());
        let followers = self.program_followers().clone();
        for follower in followers.iter().filter_map(Weak::upgrade) {
            AbortFlag(follower).raise(reason.duplicate());
        }
    }

    /// Raises this flag when the program asks for an abort of `leader` from now on, until the returned value is
    /// dropped.
    pub(crate) fn follow_program(&self, leader: &AbortFlag) -> ProgramFollowing {
        let follower = Arc::downgrade(&self.0);
        leader.program_followers().push(Weak::clone(&follower));
        ProgramFollowing { leader: leader.clone(), follower }
    }

    fn program_followers(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.0.program_followers.lock()
    }

    /// Says whether the program has got the reason from a call of the communicator, which it may end without a word
    /// then.
    pub(crate) fn set_heard(&self, heard: bool) {
        // Relaxed, here and below: nothing is read because of it.
        self.0.heard.store(heard, Ordering::Relaxed);
    }

    /// What [`AbortFlag::set_heard`] has said.
    pub(crate) fn is_heard(&self) -> bool {
        self.0.heard.load(Ordering::Relaxed)
    }

    /// Says that a wait for a stream has returned the reason.
    pub(crate) fn set_told(&self) {
        self.0.told.store(true, Ordering::Relaxed);
    }

    /// Whether the program has got the reason in one of the two ways.
    pub(crate) fn is_known(&self) -> bool {
        self.is_heard() || self.0.told.load(Ordering::Relaxed)
    }

    /// Raises this flag too when `leader` is raised (or now, if it has been raised), until the returned value is
    /// dropped.
    pub(crate) fn follow(&self, leader: &AbortFlag) -> Following {
        let follower = Arc::downgrade(&self.0);
        leader.followers().push(Weak::clone(&follower));
        // Checked under the lock: if `raise` held it before us, the flag is visible here.
        if let Err(reason) = leader.check() {
            self.raise(reason);
        }
        Following { leader: leader.clone(), follower }
    }

    /// Raises `mirror` too when this flag is raised, or has been already. A mirror that is dropped is forgotten.
    pub(crate) fn mirror(&self, mirror: &Arc<impl Mirror + 'static>) {
        let mine = Arc::clone(mirror);
        let word: Arc<dyn Mirror> = mine;
        let mut mirrors = self.mirrors();
        mirrors.retain(|other| other.strong_count() > 0);
        let word = Arc::downgrade(&word);
        if !mirrors.iter().any(|other| other.ptr_eq(&word)) {
            mirrors.push(word);
        }
        drop(mirrors);
        // Checked after the lock was held: if `raise` held it before us, the flag is visible here.
        if self.is_raised() {
            mirror.raise();
        }
    }

    fn mirrors(&self) -> MutexGuard<'_, Vec<Weak<dyn Mirror>>> {
        self.0.mirrors.lock()
    }

    fn followers(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.0.followers.lock()
    }

    /// Whether it is raised.
    pub fn is_raised(&self) -> bool {
        // Pairs with the release in `raise`.
        self.0.raised.load(Ordering::Acquire)
    }

    /// The reason as an error, once the flag is raised.
    ///
    /// # Errors
    /// The error that the flag was raised with.
    pub fn check(&self) -> Result<()> {
        if !self.is_raised() {
            return Ok(());
        }
        let held = self.0.reason.lock();
        Err(match &*held {
            Some(reason) => reason.duplicate(),
            None => Error::aborted("the communicator was aborted"),
        })
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.leader.followers().retain(|other| !Weak::ptr_eq(other, &self.follower));
    }
}

impl Drop for ProgramFollowing {
    fn drop(&mut self) {
        self.leader.program_followers().retain(|other| !Weak::ptr_eq(other, &self.follower));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn an_abort_that_the_program_asks_for_reaches_what_runs_beside_a_raised_flag() {
        let [leader, shrink] = std::array::from_fn(|_| AbortFlag::new());
        leader.raise(Error::internal("a peer has died"));
        let following = shrink.follow_program(&leader);
        leader.raise(Error::internal("another one, too"));
        assert!(!shrink.is_raised());
        leader.raise_by_program(Error::aborted("enough"));
        assert!(shrink.check().is_err_and(|reason| reason.message() == "enough"));
        drop(following);
        assert!(leader.program_followers().is_empty());
    }

    #[test]
    fn mirrors_show_the_flag_also_where_they_come_late_and_until_they_are_dropped() {
        let (leader, flag) = (AbortFlag::new(), AbortFlag::new());
        let [early, late, gone] = std::array::from_fn(|_| Arc::new(AtomicU32::new(0)));
        let read = |word: &AtomicU32| word.load(Ordering::Relaxed);
        flag.mirror(&gone);
        drop(gone);
        flag.mirror(&early);
        assert_eq!((read(&early), flag.mirrors().len()), (0, 1));
        let _following = flag.follow(&leader);
        leader.raise(Error::aborted("enough"));
        flag.mirror(&late);
        assert_eq!((read(&early), read(&late)), (1, 1));
    }

    #[test]
    fn a_flag_is_raised_with_the_one_that_it_follows_and_not_the_other_way_round() {
        let [leader, early, late, free] = std::array::from_fn(|_| AbortFlag::new());
        let following = early.follow(&leader);
        drop(free.follow(&leader));
        leader.raise(Error::aborted("enough"));
        let _later = late.follow(&leader);
        assert!(early.check().is_err_and(|reason| reason.message() == "enough"));
        assert!(late.is_raised() && !free.is_raised());
        drop(following);
        assert_eq!(leader.followers().len(), 1);
        let (leader, follower) = (AbortFlag::new(), AbortFlag::new());
        let _following = follower.follow(&leader);
        follower.raise(Error::aborted("mine"));
        assert!(!leader.is_raised());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sys::futex::{Membarrier, model};

    #[test]
    fn a_mirror_misses_no_raise() {
        model(Membarrier::Works, || {
            let (flag, word) = (AbortFlag::new(), Arc::new(AtomicU32::new(0)));
            let raised = flag.clone();
            let raiser = loom::thread::spawn(move || raised.raise(Error::aborted("enough")));
            flag.mirror(&word);
            raiser.join().expect("loom ends the model before a panic comes here");
            assert_eq!(word.load(Ordering::Relaxed), 1);
        });
    }

    #[test]
    fn whoever_sees_the_flag_finds_the_first_reason() {
        model(Membarrier::Works, || {
            let flag = AbortFlag::new();
            let raisers = ["mine", "theirs"].map(|reason| {
                let flag = flag.clone();
                loom::thread::spawn(move || flag.raise(Error::aborted(reason)))
            });
            let seen = flag.check().map_err(|error| error.to_string());
            for raiser in raisers {
                raiser.join().expect("loom ends the model before a panic comes here");
            }
            let reason = flag.check().expect_err("it was raised").to_string();
            assert!(reason.contains("mine") || reason.contains("theirs"), "{reason}");
            assert!(seen.is_ok() || seen == Err(reason), "the reason has changed");
        });
    }

    #[test]
    fn a_flag_that_begins_to_follow_misses_no_raise() {
        model(Membarrier::Works, || {
            let (leader, follower) = (AbortFlag::new(), AbortFlag::new());
            let raised = leader.clone();
            let raiser = loom::thread::spawn(move || raised.raise(Error::aborted("enough")));
            let _following = follower.follow(&leader);
            raiser.join().expect("loom ends the model before a panic comes here");
            assert!(follower.is_raised());
        });
    }
}
