//! What a rank knows of its communicator, apart from what moves data: its world, its settings, its peers, its counters,
//! its deadlines and its abort flag.
//!
//! Any thread may look at a [`Session`]: a call that waits looks at it in each slow turn, and where nobody waits,
//! because a device or a thread of its own does the work, a monitor can. One thread at a time begins operations: it
//! alone counts up the counters.

pub(crate) mod clocks;
pub mod culprit;
pub(crate) mod elsewhere;
pub mod failure_watch;
mod filters;
pub(crate) mod flight_record;
pub mod host_names;
pub mod page;
pub mod page_view;
pub mod peer_status;
pub(crate) mod ras;
pub mod seats;
pub mod settings;
pub mod stall;
pub(crate) mod trace_text;

use std::time::{Duration, Instant};

use crate::bootstrap::cause::failure_note;
use crate::bootstrap::{Bootstrap, Event};
use crate::error::{Error, Kind, Result};
use crate::exec::History;
use crate::log;
use crate::log::spans::{SpanOwner, TraceUser};
use crate::session::culprit::Culprit;
use crate::session::elsewhere::{OwnRank, RemoteRank};
use crate::session::host_names::HostNames;
use crate::session::page::OwnPage;
use crate::session::peer_status::{BootstrapCall, PeerStatus, WaitingFor};
use crate::session::seats::HostSeats;
use crate::session::settings::Settings;
use crate::session::stall::{BegunMessages, ElsewhereStall, Stall};
use crate::sync::primitive::mapped::AtomicU64;
use crate::sync::primitive::{Arc, Mutex, MutexGuard, Ordering, Weak};
use crate::sync::{AbortFlag, AwaitedMessage, Deadline, HookSlot, NoteReader, Wait};
use crate::sys::alive::Process;
use crate::sys::{clock, futex, thread};
use crate::transport::PeerInfo;
use crate::types::{Rank, World};

/// What a rank knows of its communicator, apart from what moves data.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) world: World,
    pub(crate) settings: Settings,
    pub(crate) bootstrap: Box<dyn Bootstrap>,
    pub(crate) abort: AbortFlag,
    /// The labels of the latest collectives, to compare them with a peer's.
    pub(crate) history: History,
    peers: Mutex<PeerStatus>,
    /// What this rank has told the others of its stall.
    told: Mutex<ToldStall>,
    /// Whether the ranks are on more than one host.
    pub(crate) spans_hosts: bool,
    /// What the ranks of this rank's host see of its GPUs.
    pub(crate) seats: HostSeats,
    /// What the program wants called while a call waits.
    pub(crate) hook: HookSlot,
    /// The processes of the other ranks that this one can see.
    processes: Vec<(Rank, Process)>,
    /// The ranks on other hosts: the number of the host, and the process there.
    remote: Vec<(Rank, u64, u32)>,
    host_names: HostNames,
    /// What this rank shows from outside. It has the number of the thread that has begun the latest operation, or has
    /// made this, and the number of collectives begun, which all ranks count alike.
    pub(crate) page: OwnPage,
    /// Messages begun with each peer. The two ranks of a pair count alike.
    messages: Box<[MessageCounts]>,
    /// The clock of the call that is under way.
    call: CallClock,
    trace: TraceUser,
}

/// Since when a call of this rank waits, all its parts together: the set-up of a first call, its rounds, what comes
/// behind a failure. It costs no look at the clock where nothing has to be waited for.
#[derive(Debug)]
struct CallClock {
    /// When this clock was made.
    start: Instant,
    /// Nanoseconds since then, and one; 0 while the call has not waited.
    waits_since: AtomicU64,
}

impl CallClock {
    fn new() -> CallClock {
        CallClock { start: clock::now(), waits_since: AtomicU64::new(0) }
    }

    // Relaxed in all: one thread at a time makes calls, and nothing else is published by the number.
    fn reset(&self) {
        self.waits_since.store(0, Ordering::Relaxed);
    }

    fn has_waited(&self) -> bool {
        self.waits_since.load(Ordering::Relaxed) > 0
    }

    /// Since when the call waits, which may be `now`.
    fn waits_since(&self, now: Instant) -> Instant {
        match self.waits_since.load(Ordering::Relaxed) {
            0 => self.begin_at(now),
            known => self.start + Duration::from_nanos(known - 1),
        }
    }

    fn begin_at(&self, since: Instant) -> Instant {
        let nanoseconds = since.saturating_duration_since(self.start).as_nanos();
        self.waits_since.store(u64::try_from(nanoseconds).unwrap_or(0) + 1, Ordering::Relaxed);
        since
    }

    /// Leaves a call that may wait for `limit` the time `least` from `now` on.
    fn leave(&self, least: Duration, limit: Duration, now: Instant) {
        let earliest = now.checked_sub(limit.saturating_sub(least));
        if let Some(earliest) = earliest.filter(|earliest| self.waits_since(now) < *earliest) {
            self.begin_at(earliest);
        }
    }
}

/// What a rank has told the others of its stall.
#[derive(Debug, Default)]
struct ToldStall {
    stall: Option<Stall>,
    /// The other communicators in which it has told of the stall.
    elsewhere: Vec<Weak<dyn OwnRank>>,
    /// Of messages for which they wait.
    begun: Vec<BegunMessages>,
    /// Until when news are waited for that say why it fails.
    cause_due: Option<Deadline>,
}

/// Counts up a number that one thread counts up and any thread may read; the number before, for what is counted now.
#[inline]
fn count_up(number: &AtomicU64) -> u64 {
    // Relaxed, here and where it is read: nothing else is published by the number.
    let before = number.load(Ordering::Relaxed);
    number.store(before + 1, Ordering::Relaxed);
    before
}

/// Messages begun with one peer.
#[derive(Debug, Default)]
struct MessageCounts {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.settings.record_dir.is_some() {
            flight_record::settle();
        }
    }
}

impl Session {
    /// One that nobody sees from outside.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn new(bootstrap: Box<dyn Bootstrap>, settings: Settings, abort: AbortFlag) -> Session {
        Session::on(OwnPage::hidden(), bootstrap, settings, abort)
    }

    /// One that shows itself on this page.
    pub(crate) fn on(page: OwnPage, bootstrap: Box<dyn Bootstrap>, settings: Settings, abort: AbortFlag) -> Session {
        let world = bootstrap.world();
        let hook = HookSlot::new(settings.progress.clone());
        let history = History::on(page.memory());
        page.user().store(thread::number(), Ordering::Relaxed);
        Session {
            world,
            settings,
            hook,
            bootstrap,
            abort,
            history,
            peers: Mutex::new(PeerStatus::new(world)),
            told: Mutex::default(),
            spans_hosts: false,
            seats: HostSeats::default(),
            processes: Vec::new(),
            remote: Vec::new(),
            host_names: HostNames::default(),
            page,
            messages: world.ranks().map(|_| MessageCounts::default()).collect(),
            call: CallClock::new(),
            trace: TraceUser::enter(),
        }
    }

    /// For whom the trace has what this rank does.
    pub(crate) fn span_owner(&self) -> SpanOwner {
        let (rank, communicator) = (self.world.rank, self.bootstrap.id());
        SpanOwner { track: self.settings.first_rank.unwrap_or(rank).get(), rank: rank.get(), communicator }
    }

    /// Watches the processes of `peers` that mean the same by a process's number as `mine`, and notes those of other
    /// hosts.
    pub(crate) fn watch_processes(&mut self, mine: &PeerInfo, (peers, names): (&[PeerInfo], HostNames)) {
        let is_seen = |peer: &&PeerInfo| peer.space == mine.space && mine.space != 0 && peer.process != mine.process;
        let process = |peer: &PeerInfo| Some((peer.rank, Process::of(i32::try_from(peer.pid).ok()?)?));
        self.processes = peers.iter().filter(is_seen).filter_map(process).collect();
        let remote = peers.iter().filter(|peer| peer.host != mine.host);
        self.remote = remote.map(|peer| (peer.rank, peer.host, peer.pid)).collect();
        self.host_names = names;
    }

    /// Looks whether processes of other ranks have ended, as a wait that lasts does now and then. Their connections
    /// tell that at once, unless a process that the rank has made by a bare `clone` has copies of them.
    pub(crate) fn look_at_processes(&self) {
        // A goodbye of a rank without a connection to this one may be long on its way.
        let is_heard = |rank: Rank| self.bootstrap.is_linked(rank);
        let ended = self.processes.iter().filter(|(rank, process)| process.has_ended() && is_heard(*rank));
        let ended: Vec<Rank> = ended.map(|(rank, _)| *rank).collect();
        let mut peers = self.peers();
        for rank in peers.ended(ended) {
            let why = "its process has ended, and a process that it has made keeps its connections open".to_owned();
            peers.hear(Event::Died(rank, why), &self.history);
        }
    }

    /// Lets the threads that use this communicator tell its ranks when they stand in another one.
    pub(crate) fn make_known(self: &Arc<Session>) {
        let rank: Weak<Session> = Arc::downgrade(self);
        elsewhere::enter(rank);
    }

    /// Notes that this thread begins an operation.
    #[inline]
    pub(crate) fn use_here(&self) {
        self.used_by(thread::number());
    }

    /// The number of the thread that has begun the latest operation.
    pub(crate) fn user(&self) -> u64 {
        // Relaxed, as below: that thread alone finds its own number, and nothing is published by it.
        self.page.user().load(Ordering::Relaxed)
    }

    /// Notes that the latest operation was begun for the thread of this number.
    #[inline]
    pub(crate) fn used_by(&self, user: u64) {
        self.page.user().store(user, Ordering::Relaxed);
    }

    /// Collectives that this rank has begun.
    pub(crate) fn collectives(&self) -> u64 {
        self.page.begun().load(Ordering::Relaxed)
    }

    /// The number of a collective that begins now.
    #[inline]
    pub(crate) fn next_collective(&self) -> u64 {
        self.use_here();
        count_up(self.page.begun())
    }

    /// The number, among the messages to `peer`, of a send that begins now.
    #[inline]
    pub(crate) fn next_send(&self, peer: Rank) -> u64 {
        self.use_here();
        count_up(&self.messages[peer.index()].sent)
    }

    /// The number, among the messages from `peer`, of a receive that begins now.
    #[inline]
    pub(crate) fn next_receive(&self, peer: Rank) -> u64 {
        self.use_here();
        count_up(&self.messages[peer.index()].received)
    }

    /// A call of this rank begins: its waits have one deadline.
    #[inline]
    pub(crate) fn begin_call(&self) {
        self.call.reset();
    }

    /// Since when the call that is under way waits: since `now`, if this is its first wait.
    pub(crate) fn call_waits_since(&self, now: Instant) -> Instant {
        self.call.waits_since(now)
    }

    /// A part of the call that is under way begins to wait. Between two parts the process may stand still, as in a
    /// wait.
    pub(crate) fn begin_part_of_call(&self) {
        if self.call.has_waited() { clock::look() } else { clock::begin_wait() }
    }

    /// The deadline of the call that is under way, for a wait that begins now.
    pub(crate) fn deadline_of_call(&self) -> Deadline {
        self.begin_part_of_call();
        self.settings.timeout.deadline_since(self.call_waits_since(clock::now()))
    }

    /// All ranks have come to the call that is under way, the last perhaps at the last moment: what they exchange now
    /// has [`LAST_MOMENT`] at least.
    pub(crate) fn all_have_come(&self) {
        self.call.leave(LAST_MOMENT, self.settings.timeout.time, clock::now());
    }

    /// A wait of the call that is under way.
    pub(crate) fn wait(&self) -> Wait {
        Wait { deadline: self.deadline_of_call(), abort: self.abort.clone(), progress: None, notes: None }
    }

    /// Hears what peers have told, and says whether something that waits for `waiting_for` now can still end well.
    ///
    /// # Errors
    /// The failure of a peer, its death, or its leaving before it has done its part.
    pub(crate) fn look_at_peers(&self, waiting_for: WaitingFor<'_>, now: Instant) -> Result<()> {
        let events = self.bootstrap.poll();
        let mut peers = self.peers();
        events.into_iter().for_each(|event| peers.hear(event, &self.history));
        peers.check(waiting_for, now)
    }

    /// How long a wait that was just looked at may sleep where nothing wakes it: what a peer's goodbye means is known
    /// after a moment. A stop of this process in a sleep counts as time of the wait, so that a sleep is a part of the
    /// time-out only.
    pub(crate) fn longest_sleep(&self, now: Instant) -> Duration {
        let longest = if self.is_asked_aside() { ASKED_SLEEP } else { LONGEST_SLEEP };
        let most = (self.settings.timeout.time / SLEEPS).min(longest);
        self.peers().last_words(now).map_or(most, |time| time.min(most))
    }

    /// Tells the others where this rank is stuck, unless it has: a rank that waits in another call finds the
    /// difference, and one whose deadline passes knows who waits for whom.
    pub(crate) fn tell_stall(&self, stall: Stall) {
        let mut told = self.told();
        if told.stall.as_ref() != Some(&stall) {
            self.bootstrap.publish(&stall.encode());
            told.stall = Some(stall);
        }
    }

    /// Tells the ranks of the other communicators of this thread that it is stuck here, in `stall`. A thread that only
    /// watches an operation, for which nobody waits, is stuck nowhere.
    pub(crate) fn tell_elsewhere(&self, stall: &Stall) {
        let mut others = if self.is_used_here() { elsewhere::of_this_thread() } else { Vec::new() };
        others.retain(|other| other.place() != self.place());
        if others.is_empty() {
            return;
        }
        let begun = self.begun();
        let awaited = self.peers().picture((stall, &begun), &elsewhere::is_this_thread).awaited();
        let (communicator, name) = (self.bootstrap.id(), self.settings.name.clone());
        let stall = ElsewhereStall { communicator, name, awaited };
        others.iter().for_each(|other| other.tell_of(&stall));
        self.told().elsewhere = others.iter().map(Arc::downgrade).collect();
    }

    /// Tells the others in which [`Session::tell_elsewhere`] has told of a stall that it is over: by `note`.
    pub(crate) fn comes_back(&self, note: &[u8]) {
        let others = std::mem::take(&mut self.told().elsewhere);
        others.iter().filter_map(Weak::upgrade).for_each(|other| other.tell_back(self.bootstrap.id(), note));
    }

    /// Tells the others of messages for which they wait and which this rank has begun: what it has sent may be lost on
    /// the way.
    pub(crate) fn tell_begun(&self) {
        let begun = self.begun();
        let mut told = self.told();
        if !begun.is_empty() && told.begun != begun {
            self.bootstrap.publish(&BegunMessages::encode(&begun));
            told.begun = begun;
        }
    }

    /// How many messages this rank has begun, where peers wait for one of them.
    fn begun(&self) -> Vec<BegunMessages> {
        let wanted = self.peers().wanted_of(self.world.rank);
        let begun = wanted.into_iter().map(|AwaitedMessage { peer, number, sends, .. }| {
            let counts = &self.messages[peer.index()];
            let count = if sends { &counts.sent } else { &counts.received }.load(Ordering::Relaxed);
            (count > number).then_some(BegunMessages { peer, sends, count })
        });
        let mut begun: Vec<BegunMessages> = begun.flatten().collect();
        begun.sort_unstable_by_key(|begun| (begun.peer, begun.sends));
        begun.dedup();
        begun
    }

    /// Tells the others that this rank goes on, if it has told that it is stuck.
    pub(crate) fn goes_on(&self) {
        self.page.goes_on();
        if self.told().stall.take().is_some() {
            self.bootstrap.publish(stall::GOES_ON);
        }
        self.comes_back(stall::GOES_ON);
    }

    /// Who holds up this rank, which is stuck in `stall`.
    pub(crate) fn culprit(&self, stall: &Stall) -> Culprit {
        let begun = self.begun();
        self.peers().picture((stall, &begun), &elsewhere::is_this_thread).culprit()
    }

    /// What ends a collective call of the bootstrap early: a peer's failure, or a peer that is stuck in another call.
    ///
    /// # Errors
    /// [`Kind::Mismatch`] where a peer has said already that it is stuck in another call.
    pub(crate) fn note_reader(&self, call: BootstrapCall) -> Result<NoteReader> {
        self.peers().reader(call)
    }

    /// Ends the communicator: the cause of `error`, of which all ranks have been told. `first_difference` reads what a
    /// peer's flat slots say of the first call that differs.
    pub(crate) fn fail(&self, error: Error, first_difference: &dyn Fn(Rank) -> Option<Error>) -> Error {
        let error = self.cause(error, first_difference).at(self.world.rank);
        self.page.fails(&error.to_string());
        self.publish_failure(&error);
        self.comes_back(stall::GAVE_UP);
        self.abort.raise(error.duplicate());
        // When the others know: a folder on a network may take its time.
        if error.kind() == Kind::Timeout
            && let Some(folder) = &self.settings.record_dir
        {
            flight_record::write(folder, &error.to_string(), self.world.rank);
        }
        error
    }

    /// Tells everyone of `error`, so that nobody waits for this rank any more.
    pub(crate) fn publish_failure(&self, error: &Error) {
        self.bootstrap.publish(&failure_note(error));
    }

    /// Whether [`Session::fail`] with this error would wait for news of its cause: the caller is to come again in a
    /// moment instead. Never waits.
    pub(crate) fn awaits_cause(&self, error: &Error) -> bool {
        let peer = match error.kind() {
            Kind::Remote => error.peer(),
            Kind::Mismatch if self.history.is_unnamed() => None,
            _ => return false,
        };
        if self.peers().is_cause {
            return false;
        }
        let begun = self.told().cause_due.is_some();
        if !begun && error.kind() == Kind::Mismatch {
            self.tell_latest();
        }
        let events = self.bootstrap.poll();
        let is_told = self.peers().explain(peer, events, &self.history).is_some();
        !is_told && !self.cause_due().is_over()
    }

    /// Until when news of a failure's cause are waited for.
    fn cause_due(&self) -> Deadline {
        *self.told().cause_due.get_or_insert_with(|| Deadline::after(CAUSE_PATIENCE))
    }

    /// The error behind `error`. A data connection that breaks says nothing of why; the bootstrap's news do, which may
    /// come a moment later.
    pub(crate) fn cause(&self, error: Error, first_difference: &dyn Fn(Rank) -> Option<Error>) -> Error {
        match error.kind() {
            Kind::Mismatch => self.first_mismatch(error, first_difference),
            Kind::Remote => {
                let due = if self.peers().is_cause { Deadline::after(Duration::ZERO) } else { self.cause_due() };
                let told = self.await_explanation(error.peer(), &due);
                // Now we have the cause, or no better one will come: no later error waits for news again.
                self.peers().is_cause = true;
                match (told, error.operation()) {
                    (Some(told), Some(operation)) => told.during(operation),
                    (Some(told), None) => told,
                    (None, _) => error,
                }
            }
            // The late rank may wait in MPI for a message of this rank, which MPI moves only inside its own calls.
            // A peer that tells of its time-out has said so.
            Kind::Timeout if self.settings.beside_mpi && !self.hook.is_set() => {
                if error.to_string().contains(MPI_RESTS) { error } else { error.advising(MPI_RESTS) }
            }
            _ => error,
        }
    }

    /// Waits for news that say why `peer` has gone.
    fn await_explanation(&self, peer: Option<u32>, deadline: &Deadline) -> Option<Error> {
        loop {
            let events = self.bootstrap.poll();
            let told = self.peers().explain(peer, events, &self.history);
            if told.is_some() || deadline.is_over() {
                return told;
            }
            futex::nap(CAUSE_NAP);
        }
    }

    /// The first call that differs, for a mismatch that this rank has found: a rank in whose call nobody waits, such as
    /// a root, goes on, and the difference shows in a later call.
    fn first_mismatch(&self, error: Error, first_difference: &dyn Fn(Rank) -> Option<Error>) -> Error {
        if std::mem::replace(&mut self.peers().is_cause, true) {
            return error;
        }
        let named = match error.peer().map(Rank::new).and_then(first_difference) {
            Some(named) => Some(named),
            None if self.history.is_unnamed() => self.ask_for_the_first_difference(),
            None => None,
        };
        match (named, error.operation()) {
            (Some(named), Some(operation)) => named.during(operation),
            (Some(named), None) => named,
            (None, _) => error,
        }
    }

    /// Tells the others what this rank has called, and waits a little for one that has called something else.
    fn ask_for_the_first_difference(&self) -> Option<Error> {
        if !self.tell_latest() {
            return None;
        }
        self.await_explanation(None, &self.cause_due()).filter(|told| told.kind() == Kind::Mismatch)
    }

    /// Tells the others what this rank has called last; false where it has called nothing.
    fn tell_latest(&self) -> bool {
        let latest = self.history.latest(1).first().copied();
        if let Some(latest) = latest {
            self.bootstrap.publish(&stall::comparison_note(latest, self.bootstrap.exchanges(), &self.history));
        }
        latest.is_some()
    }

    /// Says goodbye.
    pub(crate) fn leave(&self) {
        self.page.leaves();
        self.bootstrap.leave(self.collectives());
        let (World { rank, size }, id) = (self.world, self.bootstrap.id());
        log::info!(Init @ rank, "comm {id:016x} rank {rank} nranks {size} - Destroy COMPLETE");
        log::trace!(Call @ rank, "CommFinalize({id:016x})");
        self.trace.leave();
    }

    /// Whether the thread that answers `ncclras` hears news for this rank. A call that has looked and is about to sleep
    /// is not woken by what that thread has taken meanwhile.
    fn is_asked_aside(&self) -> bool {
        !self.remote.is_empty() && self.settings.ras_addr.is_some()
    }

    fn told(&self) -> MutexGuard<'_, ToldStall> {
        self.told.lock()
    }

    fn peers(&self) -> MutexGuard<'_, PeerStatus> {
        self.peers.lock()
    }
}

/// The least time for what ranks exchange once all have come to a call: many round trips.
const LAST_MOMENT: Duration = Duration::from_secs(5);
/// Into how many sleeps at least a wait divides its time-out.
const SLEEPS: u32 = 8;
/// The longest sleep of a wait whose time-out is longer.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);
/// The longest sleep where another thread may have heard the news that the wait needs.
const ASKED_SLEEP: Duration = Duration::from_secs(1);

impl OwnRank for Session {
    fn place(&self) -> (u64, Rank) {
        (self.bootstrap.id(), self.world.rank)
    }

    fn is_used_here(&self) -> bool {
        self.user() == thread::number()
    }

    fn tell_of(&self, stall: &ElsewhereStall) {
        // A hook of a call here may make the call there: this one says more.
        if matches!(self.told().stall, None | Some(Stall::Elsewhere(_))) {
            self.tell_stall(Stall::Elsewhere(stall.clone()));
        }
    }

    fn tell_back(&self, communicator: u64, note: &[u8]) {
        let mut told = self.told();
        if let Some(Stall::Elsewhere(stall)) = &told.stall
            && stall.communicator == communicator
        {
            told.stall = None;
            self.bootstrap.publish(note);
        }
    }

    fn remote_ranks(&self) -> Vec<RemoteRank> {
        if self.remote.is_empty() {
            return Vec::new();
        }
        // After a failure the calls of this rank alone hear more: its words may be the cause that they wait for.
        let hears = self.is_asked_aside() && !self.peers().is_cause;
        let events = if hears { self.bootstrap.poll() } else { Vec::new() };
        let mut peers = self.peers();
        events.into_iter().for_each(|event| peers.hear(event, &self.history));
        let known = |(rank, host, pid): &(Rank, u64, u32)| RemoteRank {
            communicator: self.bootstrap.id(),
            rank: rank.get(),
            size: self.world.size,
            host: *host,
            host_name: self.host_names.of(*host).unwrap_or("-").to_owned(),
            pid: *pid,
            standing: peers.standing(*rank),
        };
        self.remote.iter().map(known).collect()
    }
}

/// What helps where a wait for a rank that waits in MPI has timed out.
const MPI_RESTS: &str = "where that rank waits in MPI for a message of this rank, MPI moves it only while this rank \
                         is in a call of MPI: complete it first, or call comm.set_progress(mpi::progress())";
/// How long a rank waits for news of a peer whose data connection broke: goodbyes and deaths travel as fast as data.
const CAUSE_PATIENCE: Duration = Duration::from_millis(200);
/// How long it sleeps between two looks for them.
const CAUSE_NAP: Duration = Duration::from_millis(1);
