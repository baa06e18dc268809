//! Running tasks side by side, and waiting when none can move.

use std::time::Duration;

use crate::error::Result;
use crate::sync::{Backoff, Flag, Patience, Watch};
use crate::transport::Links;

/// What a look at a task or a pump found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Nothing could be done.
    Idle,
    /// Something was done; there is more.
    Moved,
    /// All is done.
    Done,
}

/// What a task that cannot move waits for.
#[derive(Debug)]
pub struct Blocked<'a> {
    /// The flag, and the value it must come to.
    pub flag: (&'a Flag, u64),
}

/// Something that runs in steps and never blocks.
pub trait Task {
    /// Does what can be done now.
    ///
    /// # Errors
    /// Of a peer that breaks the protocol or disagrees.
    fn progress(&mut self, links: &mut Links) -> Result<Progress>;

    /// What the task waits for, where that is a single flag.
    fn blocked<'a>(&'a self, links: &'a Links) -> Option<Blocked<'a>>;

    /// In words, for the error of a wait that ends badly: "rank 3 (its message of lane 0, round 2)".
    fn waiting_for(&self) -> String;
}

/// How to wait: patience, and what to look at.
pub struct Idle<'a> {
    /// How long to stay awake.
    pub patience: Patience,
    /// Looked at on every slow turn.
    pub watch: &'a mut dyn Watch,
}

impl std::fmt::Debug for Idle<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Idle").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl Idle<'_> {
    /// Waits until `flag` has come to `target`.
    ///
    /// # Errors
    /// What the watch found.
    #[inline]
    pub fn until(&mut self, flag: &Flag, target: u64, waiting_for: &dyn Fn() -> String) -> Result<()> {
        if flag.reached(target) { Ok(()) } else { self.until_slow(flag, target, waiting_for) }
    }

    #[cold]
    fn until_slow(&mut self, flag: &Flag, target: u64, waiting_for: &dyn Fn() -> String) -> Result<()> {
        let mut backoff = Backoff::new(self.patience);
        while !flag.reached(target) {
            if let Some(slice) = backoff.turn(self.watch, waiting_for)? {
                flag.park(target, slice);
            }
        }
        Ok(())
    }
}

/// Runs all tasks to their ends, side by side.
///
/// # Errors
/// The first error of a task or of the watch; the other tasks are left where they are.
pub fn drive(tasks: &mut [&mut dyn Task], links: &mut Links, idle: &mut Idle<'_>) -> Result<()> {
    let mut done = vec![false; tasks.len()];
    let mut patience = idle.patience;
    if links.has_pumps() {
        patience.spins = patience.spins.min(SOCKET_SPINS);
        patience.awake = patience.awake.min(SOCKET_AWAKE);
    }
    let mut backoff = Backoff::new(patience);
    loop {
        let mut moved = links.pump()?;
        for (task, done) in tasks.iter_mut().zip(&mut done).filter(|(_, done)| !**done) {
            match task.progress(links)? {
                Progress::Idle => {}
                Progress::Moved => moved = true,
                Progress::Done => {
                    moved = true;
                    *done = true;
                }
            }
        }
        if done.iter().all(|done| *done) && links.drained() {
            return Ok(());
        }
        if moved {
            backoff.reset();
            continue;
        }
        let waiting = || describe(tasks, &done);
        if let Some(slice) = backoff.turn(idle.watch, &waiting)? {
            rest(tasks, &done, links, slice)?;
        }
    }
}

fn describe(tasks: &[&mut dyn Task], done: &[bool]) -> String {
    let waiting = tasks.iter().zip(done).filter(|(_, done)| !**done).map(|(task, _)| task.waiting_for());
    let named: Vec<String> = waiting.take(NAMED_TASKS).collect();
    if named.is_empty() { "peers that take what was sent".to_owned() } else { named.join("; ") }
}

/// Sleeps until something may have changed: on the one flag that is waited for, on the sockets, or for a short while.
fn rest(tasks: &[&mut dyn Task], done: &[bool], links: &Links, slice: Duration) -> Result<()> {
    let mut waiting = tasks.iter().zip(done).filter(|(_, done)| !**done).map(|(task, _)| task);
    let (first, second) = (waiting.next(), waiting.next());
    let single = if second.is_none() { first.and_then(|task| task.blocked(links)) } else { None };
    if links.has_pumps() {
        // A flag may be raised by shared memory while we sleep on sockets: look again soon.
        links.rest_on_sockets(SHORT_REST.min(slice))?;
    } else if let Some(Blocked { flag: (flag, target) }) = single {
        flag.park(target, slice);
    } else {
        crate::sys::futex::nap(SHORT_REST);
    }
    Ok(())
}

/// Looks at sockets before the processor is offered to others: each is a system call or several.
const SOCKET_SPINS: u32 = 16;
/// How long a wait on sockets stays awake: a few round trips inside a host. Sleeping on sockets costs one more wake-up.
const SOCKET_AWAKE: Duration = Duration::from_micros(50);
/// Tasks that an error names.
const NAMED_TASKS: usize = 4;
/// How long a wait on several flags sleeps between two looks.
const SHORT_REST: Duration = Duration::from_micros(500);
