//! Running tasks side by side, and waiting when none can move.

use std::time::Duration;

use crate::device::StorePolicy;
use crate::error::{Error, Result};
use crate::exec::turn::{CallTurn, LONG_REST, Looked, SHORT_REST, WaitContext};
use crate::sync::{AwaitedMessage, Backoff, Flag, Patience, Waiting};
use crate::sys::unanswered::Unanswered;
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

    /// Whether it waits for a NIC that has memory of it, or has no room for more: no flag tells of that, but what this
    /// rank's pumps sleep on.
    fn is_with_nic(&self, _: &Links) -> bool {
        false
    }

    /// In words, for the error of a wait that ends badly: "rank 3 (its data for this call)".
    fn waiting_for(&self) -> String;

    /// The messages that have not ended; the last one where all have. `None` where the task is no messages of the
    /// program's.
    fn messages(&self) -> Option<Vec<AwaitedMessage>> {
        None
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
        let WaitContext { turn, fabric } = self;
        match wait_on((flag, target), turn, Some(&mut **fabric), waiting_for)? {
            None => Ok(()),
            Some(_) => Err(Error::internal("a wait that has the connections has opened none")),
        }
    }
}

/// Waits until `flag` has reached `target`. If the wait has no `fabric`, because the flag lies there, it ends where a
/// sender asks for a connection, too, and returns what it asks.
fn wait_on(
    (flag, target): (&Flag, u64),
    turn: &mut CallTurn<'_>,
    mut fabric: Option<&mut Fabric>,
    waiting_for: &dyn Waiting,
) -> Result<Option<EndRequest>> {
    turn.patience.heed_sleepers();
    let mut backoff = Backoff::new(*turn.patience);
    let mut busy = fabric.as_deref().is_some_and(|fabric| !turn.is_alone(fabric));
    let has_pumps = fabric.as_deref_mut().is_some_and(|fabric| fabric.links().has_pumps());
    while !flag.reached(target) {
        if busy && turn.background.note_flags(&mut std::iter::once(Some((flag, target)))) {
            backoff.only_look();
        }
        if (busy || (has_pumps && backoff.started().is_some()))
            && let Some(fabric) = &mut fabric
            && turn.move_on(fabric)?
        {
            continue;
        }
        match (turn.look(&mut backoff, waiting_for)?, fabric.as_deref_mut()) {
            (Looked::Awake, _) => {}
            // Nothing raises the flag where bytes come by a socket meanwhile.
            (Looked::Tired(slice), _) if has_pumps => flag.park(target, slice.min(backoff.nap(SHORT_REST, LONG_REST))),
            (Looked::Tired(slice), _) => flag.park(target, slice),
            (Looked::Asked(ask), Some(fabric)) => {
                fabric.open_for(ask, turn.bootstrap)?;
                busy = true;
            }
            (Looked::Asked(ask), None) => return Ok(Some(ask)),
        }
    }
    turn.patience.learn(&backoff);
    if busy {
        turn.background.note_moved();
    }
    if let Some(fabric) = fabric {
        forget_times(turn.patience, fabric.links());
    }
    Ok(None)
}

/// [`drive`] for one task that often waits for one flag only: it looks at nothing else while it spins, which is what
/// short messages feel.
///
/// # Errors
/// As [`drive`].
pub fn drive_one(task: &mut impl Task, wait_context: &mut WaitContext<'_>) -> Result<()> {
    let WaitContext { turn, fabric } = wait_context;
    if fabric.links().has_pumps() || !turn.is_alone(fabric) {
        return drive(&mut [task], wait_context);
    }
    let mut wakes = 0;
    loop {
        let WaitContext { turn, fabric } = wait_context;
        let links = fabric.links();
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
                if let Some(ask) = wait_on(flag, turn, None, &OneTask(task))? {
                    fabric.open_for(ask, turn.bootstrap)?;
                    return drive(&mut [task], wait_context);
                }
                fabric.links().shares_processor = turn.patience.shares_processor();
            }
        }
    }
}

/// [`drive`] for two tasks of which one often ends at once, as the sending end of a message that finds room: then the
/// other one is left alone with [`drive_one`].
///
/// # Errors
/// As [`drive`].
pub fn drive_pair<T: Task>(tasks: [&mut T; 2], wait_context: &mut WaitContext<'_>) -> Result<()> {
    let [first, second] = tasks;
    let WaitContext { turn, fabric } = wait_context;
    if fabric.links().has_pumps() || !turn.is_alone(fabric) {
        return drive(&mut [first, second], wait_context);
    }
    if first.progress(fabric.links())? == Progress::Done {
        return drive_one(second, wait_context);
    }
    if second.progress(fabric.links())? == Progress::Done {
        return drive_one(first, wait_context);
    }
    drive(&mut [first, second], wait_context)
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
    let WaitContext { turn, fabric } = wait_context;
    let sockets = fabric.links().has_pumps();
    let patience = |learnt: Patience| if sockets { learnt.no_more_than(SOCKET_SPINS, SOCKET_AWAKE) } else { learnt };
    turn.patience.heed_sleepers();
    let mut backoff = Backoff::new(patience(*turn.patience));
    let background = !turn.background.is_empty();
    loop {
        let links = fabric.links();
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
        if background {
            // A flag beside it that is up already would end each sleep at once.
            let open = tasks.iter().zip(&*done).filter(|(task, done)| !**done && !task.is_with_nic(links));
            if turn.background.note_flags(&mut open.map(|(task, _)| task.blocked(links).map(|blocked| blocked.flag))) {
                backoff.only_look();
            }
        }
        moved |= if background { turn.move_on(fabric)? } else { turn.keep_up(fabric)? };
        let links = fabric.links();
        if all_done && links.drained() {
            return Ok(());
        }
        if moved {
            turn.background.note_moved();
            match sockets {
                true => turn.patience.follow_processors(&backoff),
                false => turn.patience.learn(&backoff),
            }
            forget_times(turn.patience, links);
            turn.patience.heed_sleepers();
            backoff = Backoff::new(patience(*turn.patience));
            continue;
        }
        let looked = turn.look(&mut backoff, &Tasks { tasks, done, links })?;
        match looked {
            Looked::Awake => {}
            Looked::Tired(slice) => rest(tasks, done, links, (slice.min(backoff.nap(SHORT_REST, LONG_REST)), slice))?,
            Looked::Asked(ask) => fabric.open_for(ask, turn.bootstrap)?,
        }
    }
}

/// Forgets what copies took on other processors than those of now: a rank whose peers shared its processor would write
/// past the caches for the next 32 MiB, beside peers that have one of their own. And tells whether peers share it.
fn forget_times(patience: &mut Patience, links: &mut Links) {
    links.shares_processor = patience.shares_processor();
    if patience.found_other_processors() {
        links.staging = StorePolicy::default();
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

    fn beside(&self) -> Option<String> {
        let told = self.links.unanswered().map(|(peer, Unanswered { packets, times, packet_bytes })| {
            format!(
                "of what was sent to rank {peer}, {packets} packets of up to {packet_bytes} bytes are not acknowledged \
                 and were sent again {times} times: the network loses them"
            )
        });
        let told: Vec<String> = told.take(NAMED_TASKS).collect();
        (!told.is_empty()).then(|| told.join("; "))
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

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::ptr::NonNull;

    use super::*;
    use crate::bootstrap::{Bootstrap as _, LocalBootstrap};
    use crate::device::Store;
    use crate::exec::turn::NoBackground;
    use crate::sync::primitive::{AtomicU64, Ordering};
    use crate::sync::ring::Shape;
    use crate::sync::{AbortFlag, Deadline, Wait, Watch};
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
                    is_traced: false,
                }
            })
            .collect();
        let sockets = SocketOptions::default();
        let shape = Shape { slots: 2, slot_bytes: 64, spread: 1 };
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
                let mut turn = CallTurn {
                    patience: &mut Patience::fixed(1, Duration::ZERO),
                    watch: &mut watch,
                    bootstrap: &bootstrap,
                    background: &mut NoBackground,
                    progress: None,
                };
                let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, turn: &mut turn };
                fabric.connect(&[need(Way::Send, 0)], Receivers::Come, &mut setup).unwrap();
                flag.raise(1);
                return;
            }
            fabric.begin_connect(&[need(Way::Receive, 1)], Receivers::Come, (&bootstrap, &wait)).unwrap();
            assert!(fabric.owes());
            let turn = CallTurn {
                patience: &mut Patience::fixed(1, Duration::ZERO),
                watch: &mut watch,
                bootstrap: &bootstrap,
                background: &mut NoBackground,
                progress: None,
            };
            let mut wait_context = WaitContext { turn, fabric: &mut fabric };
            wait_context.until(flag, 1, &|| "rank 1, which takes this rank's memory".to_owned()).unwrap();
            // That rank has said so before it raised the flag.
            fabric.pay(&bootstrap).unwrap();
            assert!(!fabric.owes());
        };
        thread::side_by_side("rank", LocalBootstrap::world(2).unwrap(), run, || ()).unwrap();
        assert_eq!(words[0].load(Ordering::Acquire), 1);
    }

    /// Moves once, then is done.
    struct TwoSteps(u32);

    impl Task for TwoSteps {
        fn progress(&mut self, _: &mut Links) -> Result<Progress> {
            self.0 += 1;
            Ok(if self.0 == 1 { Progress::Moved } else { Progress::Done })
        }

        fn blocked<'a>(&'a self, _: &'a Links) -> Option<Blocked<'a>> {
            None
        }

        fn waiting_for(&self) -> String {
            "nobody".to_owned()
        }
    }

    /// Regression: a rank that had measured its copies while it shared its processor wrote past the caches for 64 calls
    /// after it had got one of its own, which took three times as long.
    #[test]
    fn times_of_copies_on_other_processors_are_forgotten() {
        let bootstrap = LocalBootstrap::world(2).unwrap().remove(0);
        let (mut fabric, mut watch) = (fabric(Rank::new(0)), limit());
        for (mut patience, streams) in
            [(Patience::fixed(1, Duration::ZERO), true), (Patience::on_other_processors(), false)]
        {
            fabric.links().staging = StorePolicy::far();
            let turn = CallTurn {
                patience: &mut patience,
                watch: &mut watch,
                bootstrap: &bootstrap,
                background: &mut NoBackground,
                progress: None,
            };
            drive(&mut [&mut TwoSteps(0)], &mut WaitContext { turn, fabric: &mut fabric }).unwrap();
            assert_eq!(fabric.links().staging.preferred(1 << 20) == Store::Streaming, streams);
        }
    }
}
