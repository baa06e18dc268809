//! Threads that are kept between pieces of work: work of microseconds does not pay for the start of a thread.

use std::any::Any;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::error::Result;
use crate::sys::cpu::Allowed;
use crate::sys::fork::Birthplace;
use crate::sys::thread;

/// A thread that does the pieces of work that it is given, one after the other. Dropping it waits until it has ended;
/// in a forked child, which has no such thread, dropping it does nothing.
pub struct KeptThread(Box<Kept>);

struct Kept {
    birthplace: Birthplace,
    /// Those of the thread that has started it, and so its own.
    processors: Option<Allowed>,
    hand: ManuallyDrop<Sender<Piece>>,
    thread: ManuallyDrop<JoinHandle<()>>,
}

impl KeptThread {
    /// Starts a thread called `name`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if the system cannot start a thread.
    pub fn start(name: &str) -> Result<KeptThread> {
        let (hand, taken) = channel::<Piece>();
        let (birthplace, processors) = (Birthplace::here(), Allowed::here());
        let thread = thread::spawn(name, move || serve(&taken))?;
        let (hand, thread) = (ManuallyDrop::new(hand), ManuallyDrop::new(thread));
        Ok(KeptThread(Box::new(Kept { birthplace, processors, hand, thread })))
    }

    /// Whether it may run on the processors of this thread, and on no others, as one that is started now.
    pub fn has_my_processors(&self) -> bool {
        self.0.processors == Allowed::here()
    }
}

impl fmt::Debug for KeptThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptThread").field("thread", &self.0.thread.thread().id()).finish_non_exhaustive()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // A child's copies: what the parent's thread had locked stays so.
        if !self.birthplace.is_here() {
            return;
        }
        // SAFETY: taken here only, once.
        drop(unsafe { ManuallyDrop::take(&mut self.hand) });
        // SAFETY: as above.
        let thread = unsafe { ManuallyDrop::take(&mut self.thread) };
        // Without its hand it ends. Pieces of work are ended, so that this does not wait for any; a piece that drops
        // its own thread leaves that to end by itself.
        if thread.thread().id() != std::thread::current().id() {
            drop(thread.join());
        }
    }
}

fn serve(taken: &Receiver<Piece>) {
    while let Ok(piece) = taken.recv() {
        // SAFETY: `run_on` keeps what the piece points to until the piece says that it has ended, and gives each piece
        // to one thread.
        unsafe { (piece.run)(piece.slot) };
    }
}

/// A piece of work on its way to a thread: a [`Slot`] of some type, and the function that runs slots of that type.
struct Piece {
    run: unsafe fn(*const ()),
    slot: *const (),
}

// SAFETY: it points to a slot, all of which other threads may use: `run_on` asks for that of work, results and body.
unsafe impl Send for Piece {}

/// A piece of work, and then its result.
struct Slot<'a, W, R, F> {
    work: Mutex<Option<W>>,
    body: &'a F,
    result: Mutex<Option<Ended<R>>>,
    /// Told when the result is there, by a copy: after that the slot may be gone.
    ended: Sender<()>,
}

/// What a piece has returned, or the panic that left it.
type Ended<R> = std::result::Result<R, Box<dyn Any + Send>>;

/// Runs a slot.
///
/// # Safety
/// `slot` is a live `Slot<'_, W, R, F>`, until it has told its end, and is run once.
unsafe fn run_slot<W: Send, R: Send, F: Fn(W) -> R + Sync>(slot: *const ()) {
    // SAFETY: the caller's promise.
    let slot = unsafe { &*slot.cast::<Slot<'_, W, R, F>>() };
    let ended = slot.ended.clone();
    let work = slot.work.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(work) = work {
        let result = catch_unwind(AssertUnwindSafe(|| (slot.body)(work)));
        *slot.result.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }
    // Whoever waits is there: see `Until`. Behind this the slot is not touched.
    let _heard = ended.send(());
}

/// Waits for the pieces that were handed out, also where the thread that handed them out unwinds.
struct Until {
    ends: Receiver<()>,
    left: usize,
}

impl Drop for Until {
    fn drop(&mut self) {
        for _ in 0..self.left {
            // Each piece has a sender until it has told its end, and threads end no piece early: a panic is caught.
            let _ended = self.ends.recv();
        }
    }
}

/// Runs `body` on each element of `work`, each on its own one of `threads`, and `meanwhile` on this one; yields the
/// results of `body` in order. There is a thread for each element.
///
/// # Panics
/// If `body` panics, once all have ended.
pub fn run_on<W: Send, R: Send, F: Fn(W) -> R + Sync>(
    threads: &[KeptThread],
    work: Vec<W>,
    body: F,
    meanwhile: impl FnOnce(),
) -> Vec<R> {
    assert_eq!(threads.len(), work.len(), "a thread for each piece of work");
    let (ended, ends) = channel();
    let slot = |work| {
        let (work, result) = (Mutex::new(Some(work)), Mutex::new(None));
        Slot { work, body: &body, result, ended: ended.clone() }
    };
    let slots: Vec<Slot<'_, W, R, F>> = work.into_iter().map(slot).collect();
    // Dropped before the slots, to which the pieces point.
    let mut until = Until { ends, left: 0 };
    for (thread, slot) in threads.iter().zip(&slots) {
        let piece = Piece { run: run_slot::<W, R, F>, slot: std::ptr::from_ref(slot).cast() };
        until.left += 1;
        if let Err(back) = thread.0.hand.send(piece) {
            // The thread is gone, which takes a panic of this file: the work is done here.
            // SAFETY: the slot lives, and nobody else has the piece.
            unsafe { (back.0.run)(back.0.slot) };
        }
    }
    meanwhile();
    drop(until);
    let result = |slot: Slot<'_, W, R, F>| {
        let result = slot.result.into_inner().unwrap_or_else(PoisonError::into_inner);
        match result.expect("a piece that has ended has left its result") {
            Ok(result) => result,
            Err(panic) => resume_unwind(panic),
        }
    };
    slots.into_iter().map(result).collect()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::sync::Deadline;
    use crate::sys::{clock, cpu, fork, host, numa};

    /// Regression: what a thread was started with stayed with it, however its caller was bound later.
    #[test]
    fn a_caller_on_other_processors_is_told_apart() {
        let all = numa::allowed_processors(Path::new("/"));
        if all.len() < 2 {
            return println!("skipped: one processor cannot be taken away");
        }
        let kept = KeptThread::start("kept").unwrap();
        assert!(kept.has_my_processors());
        cpu::bind_to_all(&all[..1]).unwrap();
        let bound = kept.has_my_processors();
        cpu::bind_to_all(&all).unwrap();
        assert!(!bound && kept.has_my_processors());
    }

    fn two() -> [KeptThread; 2] {
        [0, 1].map(|_| KeptThread::start("kept").unwrap())
    }

    #[test]
    fn the_same_threads_do_all_work_and_end_when_they_are_dropped() {
        let threads = two();
        let mut numbers = vec![1, 2];
        let mut tasks = None;
        for _ in 0..100 {
            let mut was_here = false;
            let body = |number: &mut u32| {
                *number += 1;
                host::thread_id()
            };
            let on = run_on(&threads, numbers.iter_mut().collect(), body, || was_here = true);
            assert!(was_here && on[0] != on[1] && !on.contains(&host::thread_id()));
            assert_eq!(*tasks.get_or_insert_with(|| on.clone()), on);
        }
        assert_eq!(numbers, [101, 102]);
        drop(threads);
        // The kernel takes a moment to forget a thread that was joined.
        let deadline = Deadline::after(Duration::from_secs(10));
        let is_there = |task: &u32| Path::new("/proc/self/task").join(task.to_string()).exists();
        while tasks.iter().flatten().any(is_there) {
            assert!(!deadline.passed(clock::now()), "a thread is left");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_panic_comes_back_when_all_have_ended_and_the_threads_go_on() {
        let threads = two();
        let ended = Mutex::new(0);
        for panics in [0, 1] {
            let body = |number: u32| {
                assert_ne!(number, panics, "on purpose");
                *ended.lock().unwrap() += 1;
            };
            let run = || run_on(&threads, vec![0, 1], body, || ());
            assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        }
        let run = || run_on(&threads, vec![0, 1], |_| *ended.lock().unwrap() += 1, || panic!("on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err());
        assert_eq!(*ended.lock().unwrap(), 4, "nobody is left behind");
    }

    #[test]
    fn a_forked_child_drops_them_and_has_its_own() {
        let mut threads = Some(two());
        run_on(threads.as_ref().unwrap(), vec![0, 1], |_| (), || ());
        assert!(fork::in_child(|| {
            drop(threads.take());
            run_on(&two(), vec![1, 2], |number| number, || ()) == [1, 2]
        }));
        assert_eq!(run_on(&threads.unwrap(), vec![3, 4], |number| number, || ()), [3, 4]);
    }
}
