//! A value that one thread at a time uses. Nobody queues for it: a thread that comes meanwhile is told so.
//!
//! The thread that takes the first turn is the value's home thread. Its turns cost two plain stores: a locked
//! instruction would wait until the stores of the turn before, into memory that a peer has in its cache, are done,
//! and a small collective is little more than that. The first other thread pays: it ends the home thread's privilege
//! by a [`futex::heavy_barrier`], and from then on every turn is a locked instruction.
//!
//! A *visitor*, such as the thread that moves requests while their program computes, pays for the barrier in each
//! visit, and the privilege returns to the home thread with the end of the visit. Where no thread has a privilege any
//! more, visitors take turns as all do, but a call that comes meanwhile knows that it finds a visitor: it waits until
//! the visitor leaves, where another call would be an error.

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::sync::primitive::{Arc, AtomicBool, AtomicU32, AtomicU64, Ordering};
#[cfg(test)]
use crate::sys::cpu;
use crate::sys::{futex, thread};

/// A value, used by one thread at a time.
pub struct Turns<T> {
    /// The number of the home thread, or [`UNCLAIMED`], [`ENDING`], [`VISITED`] or [`SHARED`].
    home: AtomicU64,
    /// Whether the home thread has a turn by its privilege. It alone writes this.
    at_home: AtomicBool,
    /// Who has a turn that anyone could have taken: [`FREE`], [`CALLER`] or [`VISITOR`].
    taken: AtomicU32,
    /// The number of the visitor that has a turn; 0 while none has.
    visitor: AtomicU64,
    /// The home thread whose privilege a visitor has suspended. That visitor alone reads and writes this.
    suspended: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: one thread at a time has a turn, and what it did happens before the next turn: see `take_or_why`.
unsafe impl<T: Send> Sync for Turns<T> {}
// Who has a turn while it unwinds leaves the value whole, as the owner of the value has to see to.
impl<T> UnwindSafe for Turns<T> {}
impl<T> RefUnwindSafe for Turns<T> {}

/// The right to use the value.
pub struct TurnGuard<'a, T> {
    turns: &'a Turns<T>,
    by: By,
}

/// A visit of whoever stays for long: it keeps the owner of the value alive.
pub struct KeptVisit<O, T: 'static> {
    // Declared, and so dropped, first: it points into the owner.
    guard: TurnGuard<'static, T>,
    owner: Arc<O>,
}

/// By what right a thread has a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    /// The home thread's privilege.
    Privilege,
    /// That of any thread.
    Claim,
    /// The same, of a visitor.
    ClaimedVisit,
    /// A visit; the privilege goes back to the home thread.
    Visit,
}

/// Why a thread gets no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// A call has it: of another thread, or of this one.
    InUse,
    /// A visitor has it, and leaves soon.
    Visited,
}

/// How long a thread that drives may keep its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// As long as it likes: it is the home thread.
    AtWill,
    /// Until a call wants the turn.
    UntilWanted,
    /// For a moment: the home thread waits.
    Briefly,
}

/// [`Turns::taken`] while nobody has such a turn.
const FREE: u32 = 0;
const CALLER: u32 = 1;
const VISITOR: u32 = 2;

/// [`Turns::home`] before the first turn.
const UNCLAIMED: u64 = 0;
/// A thread is about to end the privilege: the home thread takes no new turn by it.
const ENDING: u64 = 1;
/// No thread has a privilege.
const SHARED: u64 = 2;
/// A visitor has suspended the privilege: the home thread waits.
const VISITED: u64 = 3;
const _: () = assert!(thread::FIRST_NUMBER > VISITED);

impl<T> Turns<T> {
    /// Nobody has used `value` yet.
    pub fn new(value: T) -> Turns<T> {
        // ThreadSanitizer knows no barrier that one thread makes for another.
        let is_privileged = !cfg!(sanitize_thread) && futex::register_barrier();
        Turns {
            home: AtomicU64::new(if is_privileged { UNCLAIMED } else { SHARED }),
            at_home: AtomicBool::new(false),
            taken: AtomicU32::new(FREE),
            visitor: AtomicU64::new(0),
            suspended: AtomicU64::new(0),
            value: UnsafeCell::new(value),
        }
    }

    /// A turn, or `None` where somebody has one: another thread, or this one.
    #[inline]
    pub fn try_take(&self) -> Option<TurnGuard<'_, T>> {
        self.take_or_why().ok()
    }

    /// A turn, or why there is none.
    ///
    /// # Errors
    /// Who has one.
    #[inline]
    pub fn take_or_why(&self) -> Result<TurnGuard<'_, T>, Denied> {
        let me = thread::number();
        // Relaxed: the home thread orders nothing with itself. What visitors did it sees by the second load of `home`.
        if self.home.load(Ordering::Relaxed) != me {
            return self.take_shared(me);
        }
        if self.at_home.load(Ordering::Relaxed) {
            return Err(Denied::InUse);
        }
        self.at_home.store(true, Ordering::Relaxed);
        // Partner of the heavy barrier in `share`: after it, either the other thread sees `at_home`, or this one sees
        // that its privilege is ending.
        futex::light_barrier();
        // Acquire: pairs with the release with which a visitor gives the privilege back.
        if self.home.load(Ordering::Acquire) == me {
            return Ok(TurnGuard { turns: self, by: By::Privilege });
        }
        self.at_home.store(false, Ordering::Relaxed);
        self.take_shared(me)
    }

    #[cold]
    fn take_shared(&self, me: u64) -> Result<TurnGuard<'_, T>, Denied> {
        // Relaxed: nobody has had a turn yet, and the value was handed over as it was made.
        if self.home.compare_exchange(UNCLAIMED, me, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            return self.take_or_why();
        }
        self.share()?;
        self.claim(By::Claim)
    }

    /// A turn where no thread has a privilege.
    fn claim(&self, by: By) -> Result<TurnGuard<'_, T>, Denied> {
        let taker = if by == By::ClaimedVisit { VISITOR } else { CALLER };
        // Acquire, here and below: pairs with the release in the drop of the turn before.
        if let Err(found) = self.taken.compare_exchange(FREE, taker, Ordering::Acquire, Ordering::Relaxed) {
            return Err(if found == VISITOR { self.visited() } else { Denied::InUse });
        }
        if self.at_home.load(Ordering::Acquire) {
            // Release: as in the drop of a turn.
            self.taken.store(FREE, Ordering::Release);
            return Err(Denied::InUse);
        }
        Ok(TurnGuard { turns: self, by })
    }

    /// A turn of a thread that comes and goes, and leaves the home thread its privilege. `None` where somebody has a
    /// turn, or had none yet.
    pub fn try_visit(&self) -> Option<TurnGuard<'_, T>> {
        // Relaxed: claimed below.
        let home = self.home.load(Ordering::Relaxed);
        if home == SHARED {
            // It orders this thread behind the end of the privilege.
            self.share().ok()?;
            return self.claim(By::ClaimedVisit).ok().map(TurnGuard::of_visitor);
        }
        // A guess that spares both threads the barrier: the home thread has a turn already, and may keep it long.
        if self.at_home.load(Ordering::Relaxed) {
            return None;
        }
        // Acquire: pairs with the release of the visitor before.
        if home <= VISITED || self.home.compare_exchange(home, VISITED, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return None;
        }
        // Partner of the light barrier in `take_or_why`: after it, either this thread sees `at_home`, or the home
        // thread sees the visit. Acquire: pairs with the release in the drop of the home thread's turn.
        if !futex::heavy_barrier() || self.at_home.load(Ordering::Acquire) {
            // Release: this thread has read nothing; whoever visits next acquires.
            self.home.store(home, Ordering::Release);
            return None;
        }
        // Relaxed: one visitor at a time, which the compare and exchange of `home` orders behind the one before.
        self.suspended.store(home, Ordering::Relaxed);
        Some(TurnGuard { turns: self, by: By::Visit }.of_visitor())
    }

    /// Why there is no turn beside a visitor: one that waits for itself would wait for ever.
    #[cold]
    fn visited(&self) -> Denied {
        // Relaxed: only this thread stores its own number.
        if self.visitor.load(Ordering::Relaxed) == thread::number() { Denied::InUse } else { Denied::Visited }
    }

    /// A turn of the home thread's; else a visit.
    pub fn try_drive(&self) -> Option<TurnGuard<'_, T>> {
        // Relaxed: a guess, which both ways check.
        if self.home.load(Ordering::Relaxed) != thread::number() {
            return self.try_visit();
        }
        let mut turn = self.try_take()?;
        if turn.by == By::Claim {
            // The privilege has just ended. Relaxed: whoever comes meanwhile takes this thread for a call, as it was.
            self.taken.store(VISITOR, Ordering::Relaxed);
            turn.by = By::ClaimedVisit;
            turn = turn.of_visitor();
        }
        Some(turn)
    }

    /// Whether somebody has a turn, perhaps this thread.
    pub fn is_taken(&self) -> bool {
        // Relaxed: nothing is read because of it.
        let at_home = self.at_home.load(Ordering::Relaxed);
        at_home || self.is_visited() || self.taken.load(Ordering::Relaxed) != FREE
    }

    /// Whether a visitor has the turn, or is about to find that the home thread has it: it leaves soon.
    pub fn is_visited(&self) -> bool {
        // Relaxed: nothing is read because of it.
        self.home.load(Ordering::Relaxed) == VISITED || self.taken.load(Ordering::Relaxed) == VISITOR
    }

    /// Ends the privilege of the home thread.
    ///
    /// # Errors
    /// While a visitor has suspended it; and where the system has refused, so that nobody knows whether the home thread
    /// has a turn.
    fn share(&self) -> Result<(), Denied> {
        // Acquire: pairs with the release below. Whoever finds the privilege ended comes after the barrier that ended
        // it.
        let home = self.home.load(Ordering::Acquire);
        if home == SHARED {
            return Ok(());
        }
        // A visitor gives the privilege back first: it knows to whom.
        if home == VISITED {
            return Err(self.visited());
        }
        // Relaxed: the barrier orders it before the load of `at_home`. It fails where another thread ends the
        // privilege too.
        let ended = self.home.compare_exchange(home, ENDING, Ordering::Relaxed, Ordering::Relaxed);
        // Not by what it has become meanwhile: a visitor would find the privilege it gives back ended already.
        if ended.is_err_and(|found| found != ENDING && found != SHARED) {
            return Err(Denied::Visited);
        }
        if !futex::heavy_barrier() {
            return Err(Denied::InUse);
        }
        self.home.store(SHARED, Ordering::Release);
        Ok(())
    }

    /// A turn, as soon as whoever has one now is done: a thread that is only about to find that it comes at the wrong
    /// time.
    #[cfg(test)]
    pub fn take(&self) -> TurnGuard<'_, T> {
        loop {
            match self.try_take() {
                Some(turn) => return turn,
                None => cpu::yield_now(),
            }
        }
    }
}

impl<T> fmt::Debug for Turns<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turns").finish_non_exhaustive()
    }
}

impl<T> TurnGuard<'_, T> {
    /// How long its thread may keep it, where it drives.
    pub fn stay(&self) -> Stay {
        match self.by {
            By::Privilege => Stay::AtWill,
            By::Claim | By::ClaimedVisit => Stay::UntilWanted,
            By::Visit => Stay::Briefly,
        }
    }
}

impl<O, T> KeptVisit<O, T> {
    /// [`Turns::try_visit`] of the `turns` of `owner`.
    pub fn try_begin(owner: &Arc<O>, turns: impl FnOnce(&O) -> &Turns<T>) -> Option<KeptVisit<O, T>> {
        let owner = Arc::clone(owner);
        let turns: *const Turns<T> = turns(&owner);
        // SAFETY: it is borrowed from the owner, which does not move and lives as long as `owner`, that is, longer than
        // the guard: nobody can borrow it mutably meanwhile.
        let guard = unsafe { &*turns }.try_visit()?;
        Some(KeptVisit { guard, owner })
    }

    /// The owner of the value.
    pub fn owner(&self) -> &O {
        &self.owner
    }

    /// The value, and its owner.
    pub fn parts(&mut self) -> (&mut T, &O) {
        (&mut self.guard, &self.owner)
    }
}

impl<O, T> fmt::Debug for KeptVisit<O, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptVisit").finish_non_exhaustive()
    }
}

impl<T> Deref for TurnGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: only a turn gives references to the value, and there is one turn at a time.
        unsafe { &*self.turns.value.get() }
    }
}

impl<T> DerefMut for TurnGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above; the turn is borrowed for as long as the reference.
        unsafe { &mut *self.turns.value.get() }
    }
}

impl<T> TurnGuard<'_, T> {
    fn of_visitor(self) -> Self {
        // Relaxed: see `visited`.
        self.turns.visitor.store(thread::number(), Ordering::Relaxed);
        self
    }
}

impl<T> Drop for TurnGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Release, all four: pairs with the acquires in `take_or_why`, `claim` and `try_visit`.
        match self.by {
            By::Privilege => self.turns.at_home.store(false, Ordering::Release),
            By::Claim => self.turns.taken.store(FREE, Ordering::Release),
            By::ClaimedVisit => {
                self.turns.visitor.store(0, Ordering::Relaxed);
                self.turns.taken.store(FREE, Ordering::Release);
            }
            By::Visit => {
                self.turns.visitor.store(0, Ordering::Relaxed);
                // Relaxed: this thread has stored it.
                let home = self.turns.suspended.load(Ordering::Relaxed);
                self.turns.home.store(home, Ordering::Release);
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for TurnGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TurnGuard").field(&**self).finish()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_visit_that_is_kept_ends_before_its_owner() {
        let owner = Arc::new((Turns::new(1), "the owner"));
        assert!(KeptVisit::try_begin(&owner, |owner| &owner.0).is_none(), "nobody has used it yet");
        drop(owner.0.take());
        let mut kept = std::thread::scope(|threads| {
            let begin = || KeptVisit::try_begin(&owner, |owner| &owner.0).is_some();
            // Where the system has no barrier there are no visits but by a claim.
            threads.spawn(begin).join().expect("it does not panic")
        })
        .then(|| KeptVisit::try_begin(&owner, |owner| &owner.0))
        .flatten()
        .expect("nobody has a turn");
        *kept.parts().0 += 1;
        assert!(owner.0.try_take().is_none() && owner.0.is_visited());
        let turns = Arc::downgrade(&owner);
        drop(owner);
        assert_eq!((kept.owner().1, turns.upgrade().is_some()), ("the owner", true));
        drop(kept);
        assert!(turns.upgrade().is_none());
    }

    /// Regression: the hook of a thread that drove by a visit made a call, and waited until its own visit was over.
    #[test]
    fn a_call_inside_of_a_visit_of_its_own_thread_does_not_wait_for_it() {
        let turns = Turns::new(0);
        drop(turns.try_take());
        std::thread::scope(|threads| threads.spawn(|| drop(turns.try_take())).join()).expect("it does not panic");
        let visit = turns.try_drive().expect("nobody has a turn");
        assert_eq!(visit.stay(), Stay::UntilWanted);
        assert_eq!(turns.take_or_why().map(drop), Err(Denied::InUse));
        assert_eq!(another_thread(&turns), Err(Denied::Visited), "another thread gets the turn soon");
        drop(visit);
        assert_eq!(turns.take_or_why().map(drop), Ok(()));
    }

    fn another_thread(turns: &Turns<i32>) -> Result<(), Denied> {
        std::thread::scope(|threads| threads.spawn(|| turns.take_or_why().map(drop)).join()).expect("it does not panic")
    }

    #[test]
    fn a_call_inside_of_a_call_gets_no_turn() {
        let turns = Turns::new(0);
        for _before_and_after_sharing in 0..2 {
            let turn = turns.try_take().expect("nobody has one");
            assert!(turns.try_take().is_none());
            drop(turn);
            assert!(turns.try_take().is_some());
            std::thread::scope(|threads| threads.spawn(|| drop(turns.try_take().expect("nobody has one"))).join())
                .expect("it does not panic");
        }
    }

    #[test]
    fn a_thread_that_comes_meanwhile_gets_no_turn() {
        let turns = Turns::new(0);
        let turn = turns.try_take().expect("nobody has one");
        let other = || std::thread::scope(|threads| threads.spawn(|| turns.try_take().is_some()).join());
        assert!(!other().expect("it does not panic"));
        assert!(turns.try_take().is_none());
        drop(turn);
        assert!(other().expect("it does not panic"));
    }

    #[test]
    fn a_visitor_leaves_the_home_thread_its_privilege() {
        let turns = Turns::new(0);
        assert!(turns.try_visit().is_none(), "nobody has had a turn");
        *turns.try_take().expect("nobody has one") += 1;
        let visit = || {
            let turn = turns.try_visit();
            turn.map(|mut turn| *turn += 1).is_some()
        };
        let visited = |expected| {
            let came = std::thread::scope(|threads| threads.spawn(visit).join()).expect("it does not panic");
            assert_eq!(came, expected);
        };
        visited(true);
        let turn = turns.try_take().expect("the visitor has left");
        assert_eq!((*turn, turn.by == By::Claim), (2, cfg!(sanitize_thread)));
        visited(false);
        drop(turn);
        // A visitor is no reason for an error, and whoever is not at home waits for it too.
        std::thread::scope(|threads| drop(threads.spawn(|| *turns.take() += 1)));
        visited(true);
        assert_eq!(*turns.take(), 4);
    }

    /// A home thread that takes turns without end, a visitor, and others that come and go.
    #[test]
    fn no_addition_is_lost() {
        const EACH: u64 = 20_000;
        let turns = Turns::new(0u64);
        let add = || (0..EACH).for_each(|_| *turns.take() += 1);
        (0..EACH).for_each(|_| *turns.take() += 1);
        std::thread::scope(|threads| {
            let visit = || {
                let mut left = EACH;
                while left > 0 {
                    if let Some(mut turn) = turns.try_visit() {
                        *turn += 1;
                        left -= 1;
                    }
                }
            };
            let visitor = threads.spawn(visit);
            add();
            let others: Vec<_> = (0..2).map(|_| threads.spawn(add)).chain([visitor]).collect();
            add();
            others.into_iter().for_each(|other| other.join().expect("it does not panic"));
        });
        assert_eq!(*turns.take(), 6 * EACH);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::primitive::Arc;
    use crate::sys::futex::{Membarrier, model};

    /// Adds one in a turn, if it gets one. Relaxed: only turns order the additions.
    fn add(turns: &Turns<AtomicU64>) -> u64 {
        let Some(turn) = turns.try_take() else { return 0 };
        turn.store(turn.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        1
    }

    /// A call that comes while others visit, where no thread has a privilege any more.
    fn visitors_refuse_no_call() {
        let turns = Arc::new(Turns::new(AtomicU64::new(0)));
        let first = Arc::clone(&turns);
        let first = loom::thread::spawn(move || add(&first)).join().expect("it does not panic");
        let added = first + add(&turns);
        let visitors = [0, 1].map(|_| {
            let turns = Arc::clone(&turns);
            loom::thread::spawn(move || {
                let Some(turn) = turns.try_drive() else { return 0 };
                turn.store(turn.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                1
            })
        });
        let mine = match turns.take_or_why() {
            Ok(turn) => {
                turn.store(turn.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                1
            }
            Err(denied) => {
                assert_eq!(denied, Denied::Visited);
                0
            }
        };
        let added = added + mine;
        let added = visitors.into_iter().fold(added, |sum, thread| sum + thread.join().expect("no panic"));
        assert_eq!(turns.take().load(Ordering::Relaxed), added);
    }

    #[test]
    fn a_call_is_not_refused_because_of_visitors() {
        model(Membarrier::Works, visitors_refuse_no_call);
    }

    fn turns_exclude_each_other() {
        let turns = Arc::new(Turns::new(AtomicU64::new(0)));
        let added = add(&turns);
        assert_eq!(added, 1);
        let others = [0, 1].map(|_| {
            let turns = Arc::clone(&turns);
            loom::thread::spawn(move || add(&turns))
        });
        let added = added + add(&turns) + add(&turns);
        let added = others.into_iter().fold(added, |added, other| added + other.join().expect("it does not panic"));
        assert_eq!(turns.take().load(Ordering::Relaxed), added);
    }

    /// The home thread comes twice while a visitor does, and another thread that ends the privilege.
    fn visits_exclude_turns() {
        let turns = Arc::new(Turns::new(AtomicU64::new(0)));
        let added = add(&turns);
        let (visited, other) = (Arc::clone(&turns), Arc::clone(&turns));
        let visitor = loom::thread::spawn(move || {
            let Some(turn) = visited.try_visit() else { return 0 };
            turn.store(turn.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            1
        });
        let other = loom::thread::spawn(move || add(&other));
        let added = added + add(&turns) + add(&turns);
        let added = [visitor, other].into_iter().fold(added, |sum, thread| sum + thread.join().expect("no panic"));
        assert_eq!(turns.take().load(Ordering::Relaxed), added);
    }

    #[test]
    fn turns_of_a_home_thread_and_of_a_visitor_exclude_each_other() {
        model(Membarrier::Works, visits_exclude_turns);
        model(Membarrier::Refused, visits_exclude_turns);
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn without_the_barrier_the_model_finds_a_visitor_beside_the_home_thread() {
        model(Membarrier::Lies, visits_exclude_turns);
    }

    #[test]
    fn turns_of_a_home_thread_and_of_others_exclude_each_other() {
        model(Membarrier::Works, turns_exclude_each_other);
    }

    #[test]
    fn turns_exclude_each_other_without_a_barrier() {
        model(Membarrier::Refused, turns_exclude_each_other);
    }

    #[test]
    #[should_panic(expected = "assertion")]
    fn without_the_barrier_the_model_finds_two_turns_at_once() {
        model(Membarrier::Lies, turns_exclude_each_other);
    }
}
