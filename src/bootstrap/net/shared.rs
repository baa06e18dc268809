//! A lock that a waiting thread holds almost all the time, and that other threads still get; and what they leave there
//! without waiting for it.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::sync::Chime;
use crate::sync::primitive::{Arc, AtomicBool, AtomicU32, Mutex, MutexGuard, Ordering, Weak, fence};
use crate::sys::futex;

/// A value that one thread drives in a loop and other threads use now and then.
///
/// A mutex is not fair: the loop would take it again before a thread that sleeps on it has woken up. So a thread that
/// must wait counts itself and rings for the loop, which may sleep with the lock ([`Shared::may_sleep`]); and the loop
/// sleeps a moment between two turns if the count is not 0 ([`Shared::give_way`]).
#[derive(Debug)]
pub(super) struct Shared<T: TakesNotes> {
    value: Mutex<T>,
    /// The number of threads that wait for the lock.
    waiting: AtomicU32,
    /// What threads have left that did not wait for the lock, oldest first.
    notes: Mutex<Vec<Vec<u8>>>,
    has_notes: AtomicBool,
    /// That of the thread that sleeps with the lock, or did so last.
    sleeper: Mutex<Weak<Chime>>,
}

/// A value for which threads leave notes while another one has it.
pub(super) trait TakesNotes {
    /// Takes them, oldest first, before whoever has the lock now does anything else.
    fn take_notes(&mut self, notes: Vec<Vec<u8>>);
}

/// The lock. Whoever drops it takes what was left meanwhile.
#[derive(Debug)]
pub(super) struct SharedGuard<'a, T: TakesNotes> {
    shared: &'a Shared<T>,
    value: Option<MutexGuard<'a, T>>,
}

impl<T: TakesNotes> Shared<T> {
    pub(super) fn new(value: T) -> Shared<T> {
        let (waiting, has_notes) = (AtomicU32::new(0), AtomicBool::new(false));
        Shared { value: Mutex::new(value), waiting, notes: Mutex::default(), has_notes, sleeper: Mutex::default() }
    }

    /// Takes the lock; waits for at most one turn of the loop. The value is consistent after every statement, so a
    /// poisoned lock may be used.
    pub(super) fn lock(&self) -> SharedGuard<'_, T> {
        if let Some(held) = self.try_lock() {
            return held;
        }
        // Relaxed: a loop that reads an old number gives way one turn later.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.wake();
        let value = self.value.lock();
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        self.held(value)
    }

    /// Takes the lock if it is free; `None` while another thread holds it.
    pub(super) fn try_lock(&self) -> Option<SharedGuard<'_, T>> {
        self.value.try_lock().map(|value| self.held(value))
    }

    fn held<'a>(&'a self, mut value: MutexGuard<'a, T>) -> SharedGuard<'a, T> {
        self.give_notes(&mut value);
        SharedGuard { shared: self, value: Some(value) }
    }

    fn give_notes(&self, value: &mut T) {
        // Relaxed: what is not seen yet is taken when the lock is dropped.
        if self.has_notes.load(Ordering::Relaxed) {
            self.has_notes.store(false, Ordering::Relaxed);
            let notes = std::mem::take(&mut *self.notes.lock());
            value.take_notes(notes);
        }
    }

    /// Leaves a note, and never waits: the value takes it now, or when the thread that has it lets it go.
    pub(super) fn leave(&self, note: Vec<u8>) {
        self.notes.lock().push(note);
        self.has_notes.store(true, Ordering::Relaxed);
        self.settle();
    }

    /// Has the value take what was left, unless another thread has it, which does that then.
    fn settle(&self) {
        loop {
            // SeqCst: a thread that leaves a note stores `has_notes` before this and then tries the lock; one that
            // drops the lock has freed it before this and then loads `has_notes`. With less, the first could find the
            // lock taken and the second find no notes, and nobody would take them.
            fence(Ordering::SeqCst);
            if !self.has_notes.load(Ordering::Relaxed) {
                return;
            }
            // Not by a guard of ours, whose drop would settle inside of this.
            let Some(mut value) = self.value.try_lock() else { return self.wake() };
            self.give_notes(&mut value);
        }
    }

    /// Says that this thread, which has the lock, is about to sleep on `chime`: from now on who needs the value rings
    /// it. False where somebody needs the value already.
    ///
    /// The sleep must end by rings that come behind a count of the chime from before this call.
    pub(super) fn may_sleep(&self, chime: &Arc<Chime>) -> bool {
        *self.sleeper.lock() = Arc::downgrade(chime);
        // Relaxed, both: who wrote them before this call has had the lock of `sleeper` since then, and before this
        // thread; who comes later rings.
        self.waiting.load(Ordering::Relaxed) == 0 && !self.has_notes.load(Ordering::Relaxed)
    }

    /// Ends the sleep of the thread that has the lock.
    fn wake(&self) {
        let sleeper = self.sleeper.lock().upgrade();
        sleeper.iter().for_each(|chime| chime.ring());
    }

    /// Gives the lock to threads that wait for it; the caller must not hold it.
    pub(super) fn give_way(&self) {
        // Relaxed: see `lock`.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            futex::nap(HANDOVER);
        }
    }
}

impl<T: TakesNotes> Deref for SharedGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is taken when this is dropped")
    }
}

impl<T: TakesNotes> DerefMut for SharedGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is taken when this is dropped")
    }
}

impl<T: TakesNotes> Drop for SharedGuard<'_, T> {
    fn drop(&mut self) {
        drop(self.value.take());
        self.shared.settle();
    }
}

/// How long the loop sleeps: longer than a thread takes to wake up.
const HANDOVER: Duration = Duration::from_micros(200);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    impl TakesNotes for Vec<Vec<u8>> {
        fn take_notes(&mut self, notes: Vec<Vec<u8>>) {
            self.extend(notes);
        }
    }

    /// Regression: it waited for a turn of the thread that had the lock, 20 ms at most.
    #[test]
    fn who_leaves_a_note_does_not_wait_for_the_lock() {
        let shared: Shared<Vec<Vec<u8>>> = Shared::new(Vec::new());
        let held = shared.lock();
        // This thread has the lock: to wait for it would be to wait for ever.
        shared.leave(vec![1]);
        shared.leave(vec![2]);
        assert!(held.is_empty());
        drop(held);
        assert_eq!(*shared.value.lock(), [[1], [2]]);
        shared.leave(vec![3]);
        assert_eq!(*shared.value.lock(), [[1], [2], [3]]);
    }

    /// Otherwise it would have to look again and again whether somebody needs the value.
    #[test]
    #[cfg(not(miri))]
    fn who_needs_the_value_ends_the_sleep_of_the_thread_that_has_it() {
        const LONG: Duration = Duration::from_secs(60);
        type Need = dyn Fn(&Shared<Vec<Vec<u8>>>) + Sync;
        let needs: [&Need; 2] = [&|shared| drop(shared.lock()), &|shared| shared.leave(vec![1])];
        let began = crate::sys::clock::now();
        for need in needs {
            let (shared, chime) = (Shared::new(Vec::new()), Chime::of_thread());
            std::thread::scope(|threads| {
                let heard = chime.count();
                let held = shared.lock();
                threads.spawn(|| need(&shared));
                if shared.may_sleep(&chime) {
                    assert!(chime.sleep_beside(heard, &[], LONG));
                }
                drop(held);
            });
        }
        assert!(crate::sys::clock::now().duration_since(began) < LONG, "a sleep has lasted to its end");
    }

    /// Leaves a note whenever it takes some, as often as it says.
    struct Echo {
        shared: std::sync::Weak<Shared<Echo>>,
        left: u32,
    }

    impl TakesNotes for Echo {
        fn take_notes(&mut self, notes: Vec<Vec<u8>>) {
            if let Some(left) = self.left.checked_sub(1) {
                self.left = left;
                notes.into_iter().for_each(|note| self.shared.upgrade().unwrap().leave(note));
            }
        }
    }

    /// Regression: each note that was left while others were taken was taken by a call inside of the last one.
    #[test]
    fn notes_that_follow_each_other_need_no_more_stack() {
        let shared = std::sync::Arc::new_cyclic(|shared| {
            Shared::new(Echo { shared: std::sync::Weak::clone(shared), left: 200_000 })
        });
        shared.leave(vec![1]);
        assert_eq!(shared.value.lock().left, 0);
    }

    /// Whoever drops the lock last takes all, whatever threads do meanwhile.
    #[test]
    fn no_note_is_left_behind() {
        const EACH: u8 = 200;
        let shared: Arc<Shared<Vec<Vec<u8>>>> = Arc::new(Shared::new(Vec::new()));
        std::thread::scope(|threads| {
            for _ in 0..2 {
                threads.spawn(|| (0..EACH).for_each(|number| shared.leave(vec![number])));
                threads.spawn(|| (0..EACH).for_each(|_| drop(shared.lock())));
            }
        });
        let all = shared.value.lock();
        assert_eq!(all.len(), 2 * usize::from(EACH));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sys::futex::{Membarrier, model};

    /// How many notes it has taken.
    struct NoteCount(usize);

    impl TakesNotes for NoteCount {
        fn take_notes(&mut self, notes: Vec<Vec<u8>>) {
            self.0 += notes.len();
        }
    }

    #[test]
    fn a_note_is_taken_by_whoever_has_the_lock_last() {
        model(Membarrier::Works, || {
            let shared = Arc::new(Shared::new(NoteCount(0)));
            let theirs = Arc::clone(&shared);
            let other = loom::thread::spawn(move || theirs.leave(vec![1]));
            drop(shared.lock());
            other.join().expect("loom ends the model before a panic comes here");
            assert_eq!(shared.value.lock().0, 1);
        });
    }

    #[test]
    fn a_thread_that_sleeps_with_the_lock_hears_of_a_note() {
        model(Membarrier::Works, || {
            let (shared, chime) = (Arc::new(Shared::new(NoteCount(0))), Arc::new(Chime::default()));
            let theirs = Arc::clone(&shared);
            let heard = chime.count();
            let held = shared.lock();
            let other = loom::thread::spawn(move || theirs.leave(vec![1]));
            let may_sleep = shared.may_sleep(&chime);
            other.join().expect("loom ends the model before a panic comes here");
            assert!(!may_sleep || chime.count() > heard, "it sleeps, and nobody has rung");
            drop(held);
            assert_eq!(shared.value.lock().0, 1);
        });
    }
}
