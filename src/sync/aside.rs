//! What a thread moves beside its own waits: work that it has begun, and that is no part of what it waits for.
//!
//! As in MPI, a wait in one communicator moves the requests of the others that its thread has begun. The slow turns of
//! all waits come here; the list is of the thread, so that a thread without such work pays one look.

use std::cell::{Cell, RefCell};
use std::fmt;

use crate::sync::primitive::Weak;

/// Work of a thread that goes on in its waits for other things.
pub(crate) trait Aside: fmt::Debug + Send + Sync {
    /// Moves what can move. Waits for nothing but, where it fails, a moment for the reason; runs no code of the
    /// program's but its hooks.
    fn go_on(&self) -> Went;

    /// Whether nobody moves it now: neither another thread, nor this one, as what it waits for.
    fn is_free(&self) -> bool;
}

/// What came of a turn of such work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Went {
    /// Something has moved.
    Moved,
    /// Nothing has.
    Idle,
    /// It is not free.
    Taken,
    /// Nothing is left. Whoever begins more adds it again.
    Over,
}

thread_local! {
    static WORK: RefCell<Vec<Weak<dyn Aside>>> = const { RefCell::new(Vec::new()) };
    /// Whether there may be some: a look at it takes an instruction or two.
    static MAY_BE: Cell<bool> = const { Cell::new(false) };
}

/// Lets `work` go on in this thread's waits, until it is over.
pub(crate) fn add(work: Weak<dyn Aside>) {
    MAY_BE.set(true);
    // A thread whose variables are gone waits no more.
    let _gone = WORK.try_with(|all| {
        let mut all = all.borrow_mut();
        if !all.iter().any(|other| other.ptr_eq(&work)) {
            all.push(work);
        }
    });
}

/// Whether this thread may have such work: what waits without any pay.
#[inline(never)]
pub(crate) fn may_be() -> bool {
    MAY_BE.get()
}

/// Stops such work in this thread until the result is dropped: while a stream is captured it must call neither hooks
/// nor the driver.
pub(crate) fn none() -> Paused {
    Paused { may_be: MAY_BE.replace(false) }
}

/// See [`none`].
#[derive(Debug)]
pub(crate) struct Paused {
    may_be: bool,
}

impl Drop for Paused {
    fn drop(&mut self) {
        MAY_BE.set(self.may_be || MAY_BE.get());
    }
}

/// Whether this thread has such work to move.
// Not inlined, as all that reads variables of a thread: a wait may go on on another one.
#[inline(never)]
pub(crate) fn is_any() -> bool {
    let is_free = |work: &Weak<dyn Aside>| work.upgrade().is_some_and(|work| work.is_free());
    WORK.try_with(|all| all.borrow().iter().any(is_free)).unwrap_or(false)
}

/// One turn of all such work: whether something has moved; `None` where there is none to move, or in such a turn.
#[cold]
#[inline(never)]
pub(crate) fn turn() -> Option<bool> {
    // Taken out meanwhile: its waits find nothing here.
    let mut all = WORK.try_with(|all| std::mem::take(&mut *all.borrow_mut())).ok()?;
    if all.is_empty() {
        return None;
    }
    let (mut moved, mut is_any) = (false, false);
    all.retain(|work| {
        let gone = work.upgrade().map_or(Went::Over, |work| work.go_on());
        moved |= gone == Went::Moved;
        is_any |= matches!(gone, Went::Moved | Went::Idle);
        gone != Went::Over
    });
    let _gone = WORK.try_with(|work| {
        let mut work = work.borrow_mut();
        all.append(&mut work);
        MAY_BE.set(!all.is_empty());
        *work = all;
    });
    is_any.then_some(moved)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::primitive::{Arc, AtomicU32, Ordering};

    /// Goes on for as many turns; each of its turns waits, too.
    #[derive(Debug)]
    struct Turns(AtomicU32);

    impl Aside for Turns {
        fn go_on(&self) -> Went {
            assert!(turn().is_none() && !is_any(), "a turn inside of a turn");
            match self.0.fetch_sub(1, Ordering::Relaxed) {
                1 => Went::Over,
                2 => Went::Taken,
                3 => Went::Idle,
                _ => Went::Moved,
            }
        }

        fn is_free(&self) -> bool {
            self.0.load(Ordering::Relaxed) != 2
        }
    }

    #[test]
    fn work_goes_on_until_it_is_over_or_dropped_and_on_its_own_thread() {
        let work = Arc::new(Turns(AtomicU32::new(4)));
        let known: Arc<dyn Aside> = Arc::clone(&work) as _;
        for _again in 0..2 {
            add(Arc::downgrade(&known));
        }
        std::thread::scope(|threads| threads.spawn(|| assert!(!is_any() && turn().is_none())).join())
            .expect("it does not panic");
        assert!(is_any());
        assert_eq!([turn(), turn()], [Some(true), Some(false)]);
        assert!(!is_any());
        assert_eq!([turn(), turn(), turn()], [None, None, None]);
        assert_eq!(work.0.load(Ordering::Relaxed), 0);
        add(Arc::downgrade(&known));
        drop((work, known));
        assert!(!is_any() && turn().is_none() && !may_be());
    }
}
