//! The abort flag: one word that every wait looks at.

use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, AtomicBool, Mutex, MutexGuard, Ordering, Weak};

/// Tells every wait of a communicator to stop, and why. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct AbortFlag(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    raised: AtomicBool,
    reason: Mutex<Option<Error>>,
    /// Raised with this flag.
    followers: Mutex<Vec<Weak<Shared>>>,
}

/// While it lives, one flag is raised with another.
#[derive(Debug)]
pub(crate) struct Following {
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
        let mut held = self.0.reason.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let reason = held.get_or_insert(reason).duplicate();
        // Pairs with the acquire in `is_raised`: whoever sees the flag finds the reason.
        self.0.raised.store(true, Ordering::Release);
        drop(held);
        let followers = self.followers().clone();
        for follower in followers.iter().filter_map(Weak::upgrade) {
            AbortFlag(follower).raise(reason.duplicate());
        }
    }

    /// Raises this flag too whenever `leader` is raised, or has been already, until the value is dropped.
    pub(crate) fn follow(&self, leader: &AbortFlag) -> Following {
        let follower = Arc::downgrade(&self.0);
        leader.followers().push(Weak::clone(&follower));
        // Behind the lock: where `raise` had it before us, the flag is seen here.
        if let Err(reason) = leader.check() {
            self.raise(reason);
        }
        Following { leader: leader.clone(), follower }
    }

    /// The data behind the lock is whole after every statement, so a panic elsewhere does not spoil it.
    fn followers(&self) -> MutexGuard<'_, Vec<Weak<Shared>>> {
        self.0.followers.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
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
        let held = self.0.reason.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

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
