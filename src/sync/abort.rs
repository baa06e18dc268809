//! The abort flag: one word that every wait looks at.

use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, AtomicBool, Mutex, Ordering};

/// Tells every wait of a communicator to stop, and why. Clones share the flag.
#[derive(Debug, Clone, Default)]
pub struct AbortFlag(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    raised: AtomicBool,
    reason: Mutex<Option<Error>>,
}

impl AbortFlag {
    /// A flag that is not raised.
    pub fn new() -> AbortFlag {
        AbortFlag::default()
    }

    /// Raises the flag. The first reason stays.
    pub fn raise(&self, reason: Error) {
        let mut held = self.0.reason.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        held.get_or_insert(reason);
        // Pairs with the acquire in `is_raised`: whoever sees the flag finds the reason.
        self.0.raised.store(true, Ordering::Release);
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
}
