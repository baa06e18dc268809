//! Running tasks side by side, and waiting when none can move.

use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::error::Result;
use crate::sync::{AwaitedMessage, Backoff, Flag, Patience, Waiting, Watch, progress};
use crate::transport::{EndRequest, Fabric, Links};

/// What a look at a task or a pump found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// The task could do nothing.
    Idle,
    /// The task did something, and has more to do.
    Moved,
    /// The task has finished.
    Done,
}

/// What a task that cannot move waits for.
#[derive(Debug)]
pub struct Blocked<'a> {
    /// The flag, and the value that it must reach.
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

    /// In words, for the error of a wait that ends badly: "rank 3 (its data for this call)".
    fn waiting_for(&self) -> String;

    /// The messages that have not ended; the last one where all have. `None` where the task is no messages of the
    /// program's.
    fn messages(&self) -> Option<Vec<AwaitedMessage>> {
        None
    }
}

/// Work that progresses whenever an operation waits: messages that were begun before it, a hook of the user.
pub trait Background {
    /// Whether there is nothing to run.
    fn is_empty(&self) -> bool;

    /// Does what can be done now; returns whether something moved.
    ///
    /// # Errors
    /// What ends the communicator.
    fn turn(&mut self, fabric: &mut Fabric, bootstrap: &dyn Bootstrap) -> Result<bool>;

    /// The messages of this work that have not ended.
    fn messages(&self) -> Vec<AwaitedMessage>;

    /// Those for which the program waits.
    fn blocking(&self) -> Vec<AwaitedMessage>;
}

/// No background work.
#[derive(Debug)]
pub struct NoBackground;

impl Background for NoBackground {
    fn is_empty(&self) -> bool {
        true
    }

    fn turn(&mut self, _: &mut Fabric, _: &dyn Bootstrap) -> Result<bool> {
        Ok(false)
    }

    fn messages(&self) -> Vec<AwaitedMessage> {
        Vec::new()
    }

    fn blocking(&self) -> Vec<AwaitedMessage> {
        Vec::new()
    }
}

/// What a wait of this rank needs: patience, what to look at, and what to run meanwhile.
pub struct WaitContext<'a> {
    /// How long to stay awake.
    pub patience: &'a mut Patience,
    /// Looked at on every slow turn.
    pub watch: &'a mut dyn Watch,
    /// The connections.
    pub fabric: &'a mut Fabric,
    /// Carries what connections under way need.
    pub bootstrap: &'a dyn Bootstrap,
    /// Work that progresses while the wait lasts.
    pub background: &'a mut dyn Background,
    /// The program's own progress hook, which slow turns of the wait call.
    pub progress: Option<&'a crate::sync::Progress>,
}

impl std::fmt::Debug for WaitContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitContext").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// A way to wait for a flag.
pub trait FlagWait {
    /// Waits until `flag` has reached `target`. `waiting_for` yields the words for an error.
    ///
    /// # Errors
    /// Why the wait was given up: a deadline, an abort, a dead peer.
    fn until(&mut self, flag: &Flag, target: u64, waiting_for: &dyn Waiting) -> Result<()>;
}

impl FlagWait for WaitContext<'_> {
    #[inline]
    fn until(&mut self, flag: &Flag, target: u64, waiting_for: &dyn Waiting) -> Result<()> {
        if flag.reached(target) { Ok(()) } else { self.until_slow(flag, target, waiting_for) }
    }
}

impl WaitContext<'_> {
    fn until_slow(&mut self, flag: &Flag, target: u64, waiting_for: &dyn Waiting) -> Result<()> {
        let WaitContext { patience, watch, fabric, bootstrap, background, progress } = self;
        loop {
            let alone = background.is_empty() && !fabric.owes();
            let mut turn = || Ok(background.turn(fabric, *bootstrap)? | pay(fabric, *bootstrap)?);
            let background: Option<Turn<'_>> = if alone { None } else { Some(&mut turn) };
            match wait_on((flag, target), (patience, *watch, *progress), (background, *bootstrap), waiting_for)? {
                Woken::Reached => return Ok(()),
                Woken::Asked(ask) => fabric.open_for(ask, *bootstrap)?,
            }
        }
    }
}

/// Hands over memory that this rank has offered to peers that ask for it by now; returns whether one took it.
#[inline]
fn pay(fabric: &mut Fabric, bootstrap: &dyn Bootstrap) -> Result<bool> {
    if fabric.owes() { fabric.pay(bootstrap) } else { Ok(false) }
}

/// Runs the background work of a wait once; returns whether something moved.
type Turn<'a> = &'a mut dyn FnMut() -> Result<bool>;

/// What has ended a wait for a flag.
enum Woken {
    /// The flag has reached its value.
    Reached,
    /// A rank asks for this rank's end of a connection; the flag has not reached its value.
    Asked(EndRequest),
}

/// Waits until `flag` has reached `target`, or a sender asks for a connection.
fn wait_on(
    (flag, target): (&Flag, u64),
    (patience, watch, hook): (&mut Patience, &mut dyn Watch, Option<&crate::sync::Progress>),
    (mut background, bootstrap): (Option<Turn<'_>>, &dyn Bootstrap),
    waiting_for: &dyn Waiting,
) -> Result<Woken> {
    patience.heed_sleepers();
    let mut backoff = Backoff::new(*patience);
    while !flag.reached(target) {
        if let Some(background) = &mut background
            && background()?
        {
            continue;
        }
        if let Some(slice) = backoff.turn(watch, waiting_for)? {
            let slice = if background.is_some() { backoff.nap(SHORT_REST, LONG_REST) } else { slice };
            flag.park(target, progress::rest(hook, slice));
        }
        if backoff.started().is_some() {
            progress::turn(hook)?;
            if let Some(ask) = Fabric::asking(bootstrap) {
                return Ok(Woken::Asked(ask));
            }
        }
    }
    patience.learn(&backoff);
    Ok(Woken::Reached)
}

/// [`drive`] for one task that often waits for one flag only: it looks at nothing else while it spins, which is what
/// short messages feel.
///
/// # Errors
/// As [`drive`].
pub fn drive_one(task: &mut impl Task, wait_context: &mut WaitContext<'_>) -> Result<()> {
    if wait_context.fabric.links().has_pumps() || wait_context.fabric.owes() || !wait_context.background.is_empty() {
        return drive(&mut [task], wait_context);
    }
    let mut wakes = 0;
    loop {
        let links = wait_context.fabric.links();
        match task.progress(links)? {
            Progress::Done => return Ok(()),
            Progress::Moved => wakes = 0,
            Progress::Idle => {
                // A wait for a flag that is up returns at once and does not look at the deadline; `drive` does.
                if wakes == MOST_WAKES {
                    return drive(&mut [task], wait_context);
                }
                wakes += 1;
                let Some(Blocked { flag }) = task.blocked(links) else { return drive(&mut [task], wait_context) };
                let quiet = (None, wait_context.bootstrap);
                let waiting = OneTask(task);
                let WaitContext { patience, watch, progress, .. } = wait_context;
                let woken = wait_on(flag, (patience, *watch, *progress), quiet, &waiting)?;
                if let Woken::Asked(ask) = woken {
                    wait_context.fabric.open_for(ask, wait_context.bootstrap)?;
                    return drive(&mut [task], wait_context);
                }
            }
        }
    }
}

/// Runs all tasks to their ends, side by side.
///
/// # Errors
/// The first error of a task or of the watch; the other tasks are left where they are.
pub fn drive(tasks: &mut [&mut dyn Task], wait_context: &mut WaitContext<'_>) -> Result<()> {
    let (mut few, mut many) = ([false; FEW_TASKS], Vec::new());
    let done = if tasks.len() <= FEW_TASKS {
        &mut few[..tasks.len()]
    } else {
        many.resize(tasks.len(), false);
        &mut many[..]
    };
    let sockets = wait_context.fabric.links().has_pumps();
    let patience = |learnt: Patience| if sockets { learnt.no_more_than(SOCKET_SPINS, SOCKET_AWAKE) } else { learnt };
    wait_context.patience.heed_sleepers();
    let mut backoff = Backoff::new(patience(*wait_context.patience));
    let background = !wait_context.background.is_empty();
    loop {
        let links = wait_context.fabric.links();
        let mut moved = false;
        // Tasks first: what has come may be all that they need, and what they publish leaves in this turn.
        for (task, done) in tasks.iter_mut().zip(&mut *done).filter(|(_, done)| !**done) {
            match task.progress(links)? {
                Progress::Idle => {}
                Progress::Moved => moved = true,
                Progress::Done => {
                    moved = true;
                    *done = true;
                }
            }
        }
        let all_done = done.iter().all(|done| *done);
        if all_done && links.drained() {
            return Ok(());
        }
        moved |= links.pump()?;
        if all_done && links.drained() {
            return Ok(());
        }
        if background {
            moved |= wait_context.background.turn(wait_context.fabric, wait_context.bootstrap)?;
        }
        moved |= pay(wait_context.fabric, wait_context.bootstrap)?;
        if moved {
            match sockets {
                true => wait_context.patience.follow_processors(&backoff),
                false => wait_context.patience.learn(&backoff),
            }
            wait_context.patience.heed_sleepers();
            backoff = Backoff::new(patience(*wait_context.patience));
            continue;
        }
        let links = wait_context.fabric.links();
        let tired = backoff.turn(wait_context.watch, &Tasks { tasks, done, links })?;
        if backoff.started().is_some()
            && let Some(ask) = Fabric::asking(wait_context.bootstrap)
        {
            wait_context.fabric.open_for(ask, wait_context.bootstrap)?;
            continue;
        }
        if let Some(slice) = tired {
            let nap = backoff.nap(SHORT_REST, LONG_REST);
            let (nap, slice) = if background { (nap, nap) } else { (nap, slice) };
            let (nap, slice) =
                (progress::rest(wait_context.progress, nap), progress::rest(wait_context.progress, slice));
            rest(tasks, done, wait_context.fabric.links(), (nap, slice))?;
        }
        if backoff.started().is_some() {
            progress::turn(wait_context.progress)?;
        }
    }
}

/// What a wait for one task waits for.
struct OneTask<'a, T>(&'a T);

impl<T: Task> Waiting for OneTask<'_, T> {
    fn words(&self) -> String {
        self.0.waiting_for()
    }

    fn messages(&self) -> Option<Vec<AwaitedMessage>> {
        self.0.messages()
    }
}

/// What a wait for several tasks waits for: those that are not done, and where all are, the peers whose systems have
/// not taken what was sent to them.
struct Tasks<'a, 'b> {
    tasks: &'a [&'b mut dyn Task],
    done: &'a [bool],
    links: &'a Links,
}

impl Tasks<'_, '_> {
    fn all(&self) -> impl Iterator<Item = (&dyn Task, bool)> {
        self.tasks.iter().zip(self.done).map(|(task, done)| (&**task as &dyn Task, *done))
    }
}

impl Waiting for Tasks<'_, '_> {
    fn words(&self) -> String {
        let waiting = self.all().filter(|(_, done)| !done).map(|(task, _)| task.waiting_for());
        let named: Vec<String> = waiting.take(NAMED_TASKS).collect();
        if !named.is_empty() {
            return named.join("; ");
        }
        let mut peers = self.links.undrained().map(|peer| format!("rank {peer}"));
        let named: Vec<String> = peers.by_ref().take(NAMED_TASKS).collect();
        let more = if peers.next().is_some() { ", ..." } else { "" };
        format!("{}{more} to take what was sent", named.join(", "))
    }

    fn messages(&self) -> Option<Vec<AwaitedMessage>> {
        let mut open = Vec::new();
        for (task, done) in self.all() {
            let messages = task.messages()?;
            let is_open = |message: &AwaitedMessage| {
                !done || (message.sends && self.links.undrained().any(|peer| peer == message.peer))
            };
            open.extend(messages.into_iter().filter(is_open));
        }
        (!self.tasks.is_empty()).then_some(open)
    }
}

/// Sleeps until something may have changed: on the sockets or on a flag that is waited for. If nothing else has to be
/// looked at, for `slice` at most, else for `nap`.
fn rest(tasks: &[&mut dyn Task], done: &[bool], links: &mut Links, (nap, slice): (Duration, Duration)) -> Result<()> {
    if links.has_pumps() {
        // A flag may be raised in shared memory while we sleep on the pumps' descriptors: look again soon.
        let rest = if links.is_all_pumps() { slice } else { nap };
        return links.rest_on_pumps(rest);
    }
    let mut waiting = tasks.iter().zip(done).filter(|(_, done)| !**done).map(|(task, _)| task);
    let first = waiting.next();
    let alone = waiting.next().is_none();
    match first.and_then(|task| task.blocked(links)) {
        // The lanes of a call mostly wait for the same peer: the flag of one of them wakes all.
        Some(Blocked { flag: (flag, target) }) => flag.park(target, if alone { slice } else { nap }),
        None => crate::sys::futex::nap(nap),
    }
    Ok(())
}

/// How often in a row a task may find its flag up and have nothing to do. More than one flag may be missing to a step;
/// a peer that writes over shared memory may raise one for nothing.
const MOST_WAKES: u32 = 1024;
/// Looks at sockets before the processor is offered to others: each is a system call or several.
/// Waits on sockets do not teach [`Patience`]: what is learnt there is how often it pays to look at a flag, at a few
/// nanoseconds a look, and whether a yield lets the awaited rank run. What comes over a socket takes the network's time
/// and the kernel's, which say neither.
const SOCKET_SPINS: u32 = 16;
/// How long a wait on sockets stays awake: a few round trips inside a host. Sleeping on sockets costs one more wake-up.
const SOCKET_AWAKE: Duration = Duration::from_micros(50);
/// Tasks whose states stand on the stack: all but groups of messages and `all_to_all_v` have one.
const FEW_TASKS: usize = 4;
/// Tasks, or peers, that an error names.
const NAMED_TASKS: usize = 4;
/// How long a wait on several flags sleeps between two looks, unless the flag on which it sleeps rises.
const SHORT_REST: Duration = Duration::from_micros(500);
/// The same, of a wait that has lasted long.
const LONG_REST: Duration = Duration::from_millis(10);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::bootstrap::LocalBootstrap;
    use crate::error::Error;
    use crate::sync::primitive::{AtomicU64, Ordering};
    use crate::sync::ring::Shape;
    use crate::sync::{AbortFlag, Deadline, Wait};
    use crate::sys::clock;
    use crate::sys::numa::ThreadHome;
    use crate::sys::thread;
    use crate::transport::{Channel, Need, PeerInfo, Policy, Receivers, Setup, Sizes, SocketOptions, Way};
    use crate::types::{Rank, World};

    /// Ends a wait that lasts longer than any machine needs.
    struct Limit(Deadline);

    impl Watch for Limit {
        fn look(&mut self, waiting_for: &dyn Waiting) -> Result<()> {
            if self.0.passed(clock::now()) { Err(Error::timeout(waiting_for.words())) } else { Ok(()) }
        }
    }

    fn limit() -> Limit {
        Limit(Deadline::after(LIMIT))
    }

    const LIMIT: Duration = Duration::from_secs(60);

    /// Two ranks that reach each other's memory by descriptors only, though they are threads.
    fn fabric(rank: Rank) -> Fabric {
        let peers: Vec<PeerInfo> = (0..2)
            .map(|rank| {
                let (rank, home) = (Rank::new(rank), ThreadHome::default());
                PeerInfo {
                    rank,
                    host: 1,
                    process: 1,
                    pid: 1,
                    space: 0,
                    cores: 2,
                    settings: 0,
                    tuning: 0,
                    home,
                    switches: [0; 4],
                }
            })
            .collect();
        let sockets = SocketOptions { sockets: 1, send_buffer_bytes: None, receive_buffer_bytes: None };
        let shape = Shape { slots: 2, slot_bytes: 64 };
        let sizes =
            Sizes { shape, messages_in_memory: shape, messages_over_sockets: shape, scratch_bytes: 4096, sockets };
        Fabric::new(World { rank, size: 2 }, &peers, Policy { no_local: true, ..Policy::default() }, sizes)
    }

    /// Rank 0 offers the memory of a ring and goes into an operation, where it waits for rank 1. That rank takes the
    /// memory first.
    #[test]
    fn a_rank_that_waits_in_an_operation_hands_its_memory_over() {
        let words = [AtomicU64::new(0), AtomicU64::new(0)];
        // SAFETY: aligned to 8, zeroed, as large as a flag, and used as one only.
        let flag = unsafe { Flag::at(NonNull::from(&words).cast()) };
        let need = |way, peer| Need { way, peer: Rank::new(peer), channel: Channel::PointToPoint };
        let run = |bootstrap: LocalBootstrap| {
            let (rank, wait) = (bootstrap.world().rank, Wait::new(LIMIT, &AbortFlag::new()));
            let (mut fabric, mut watch) = (fabric(rank), limit());
            if rank.index() == 1 {
                let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, watch: &mut watch, background: None };
                fabric.connect(&[need(Way::Send, 0)], Receivers::Come, &mut setup).unwrap();
                flag.raise(1);
                return;
            }
            fabric.begin_connect(&[need(Way::Receive, 1)], Receivers::Come, (&bootstrap, &wait)).unwrap();
            assert!(fabric.owes());
            let mut wait_context = WaitContext {
                patience: &mut Patience::fixed(1, Duration::ZERO),
                watch: &mut watch,
                fabric: &mut fabric,
                bootstrap: &bootstrap,
                background: &mut NoBackground,
                progress: None,
            };
            wait_context.until(flag, 1, &|| "rank 1, which takes this rank's memory".to_owned()).unwrap();
            assert!(!fabric.owes());
        };
        thread::side_by_side("rank", LocalBootstrap::world(2).unwrap(), run, || ()).unwrap();
        assert_eq!(words[0].load(Ordering::Acquire), 1);
    }
}
