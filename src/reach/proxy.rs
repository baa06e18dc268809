//! What moves messages between kernels and ranks of other hosts: one proxy for each communicator, and the progress
//! thread of the process ([`progress_thread`]), which drives all of them.
//!
//! A kernel works in slots in pinned memory of the host (`transport::KernelSlots`), where a pump of the proxy has the
//! other end. The thread calls no driver here, so it waits for no kernel; and it waits for no peer, so no communicator
//! holds up another one: where one fails, a thread of its own tells its ranks, which may take a moment.
//!
//! # When it looks
//! What comes from peers, and room for what goes to them, wakes it by the descriptors of the sockets. Kernels wake
//! nobody: what they publish, and the slots that they give back, it finds by looking at words. It does that while a
//! launch that uses such slots is under way, which the host knows. A graph replays launches with no host code in
//! between, so while one with such a launch exists the thread looks too, up to [`GRAPH_NAP`] apart where nothing moves:
//! a rule that no replay escapes, and that needs no host function in the graph, which would hold up each replay. Else
//! the thread sleeps until a descriptor is ready.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::device::{DeviceIdentity, StatusPage};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::peer_status::WaitingFor;
use crate::sync::primitive::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::sync::progress_thread::{self, AfterRound, ProgressDuty, ProgressSeat};
use crate::sync::{Chime, Deadline, Ending, Mirror, RestEnds};
use crate::sys::fork::PerProcess;
use crate::sys::{clock, cpu, gpus, thread};
use crate::transport::{FarEnd, KernelSlots, PumpSources, Pumps};

/// The proxy of one communicator. Dropping it waits until what kernels have published has been handed to the system:
/// the launches have ended before. What cannot be handed over any more ends the communicator.
#[derive(Debug)]
pub(super) struct Proxy {
    shared: Arc<Shared>,
    status: Arc<StatusPage>,
}

/// What drives the proxies of this process, while there are any.
static DRIVER: PerProcess<Mutex<Option<Driver>>> = PerProcess::new();

#[derive(Debug)]
struct Driver {
    post: Arc<Post>,
    seat: ProgressSeat,
    proxies: usize,
}

/// What the thread is told by.
#[derive(Debug)]
struct Post {
    chime: Arc<Chime>,
    /// Proxies that the thread does not drive yet.
    joining: Mutex<Vec<Arc<Shared>>>,
    ends: AtomicBool,
}

/// The proxies, on the progress thread.
#[derive(Debug)]
struct Proxies {
    post: Arc<Post>,
    all: Vec<(Arc<Shared>, Turns)>,
    /// Near which the thread is to be, where that is not done.
    near: Option<DeviceIdentity>,
    /// How long the sleep behind the last round may last.
    nap: Duration,
}

#[derive(Debug)]
struct Shared {
    session: Arc<Session>,
    wanted: Arc<Wanted>,
    /// Connections that the thread has not taken yet.
    joining: Mutex<Vec<(FarEnd, KernelSlots)>>,
    ends: AtomicBool,
    /// The thread drives it no more, and has dropped what it had of it.
    ending: Arc<Ending>,
    /// The thread that tells the ranks of an error.
    failing: Mutex<Option<JoinHandle<()>>>,
}

/// For what the thread has to look at what kernels do. A graph may keep it for longer than the communicator lives.
#[derive(Debug)]
struct Wanted {
    post: Arc<Post>,
    /// Launches under way that use slots of the thread.
    launches: AtomicUsize,
    /// Captured launches of graphs that exist.
    captured: AtomicUsize,
}

/// Makes the thread look at what kernels do, as long as this value lives.
#[derive(Debug)]
pub struct Attention {
    wanted: Arc<Wanted>,
    of_graph: bool,
}

/// What the thread knows of a proxy between two turns.
#[derive(Debug)]
struct Turns {
    pumps: Pumps,
    /// When something moved last.
    moved: Instant,
    /// When it asked for news of peers last.
    asked: Instant,
    /// Why it moves nothing any more. The error waits for a launch that needs the connection.
    broken: Option<Error>,
    is_broken: bool,
    /// When what is left has to be handed over.
    last_turns: Option<Deadline>,
}

impl Proxy {
    /// A proxy without connections. The thread is on processors near the `device` of the first. `status` is shown to
    /// this rank's kernels.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where no thread can be started.
    pub fn start(session: Arc<Session>, status: Arc<StatusPage>, device: DeviceIdentity) -> Result<Proxy> {
        let mut driver = DRIVER.get_or_init(Mutex::default).lock();
        let running = match &mut *driver {
            Some(running) => running,
            none => none.insert(Driver::start(device)?),
        };
        running.proxies += 1;
        let post = Arc::clone(&running.post);
        let shared = Arc::new(Shared::new(session, &post));
        post.joining.lock().push(Arc::clone(&shared));
        Ok(Proxy { shared, status })
    }

    /// Gives a connection to the thread.
    pub fn join(&self, end: FarEnd, slots: KernelSlots) {
        self.shared.joining.lock().push((end, slots));
        self.shared.wanted.post.chime.ring();
    }

    /// Makes the thread look at what kernels do until a launch, or a graph that keeps the value, has ended.
    pub fn attend(&self, of_graph: bool) -> Attention {
        let wanted = Arc::clone(&self.shared.wanted);
        // Release, as all that is done to the counts: pairs with the loads in `Shared::step`.
        wanted.count(of_graph).fetch_add(1, Ordering::Release);
        wanted.post.chime.ring();
        Attention { wanted, of_graph }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Release: pairs with the load in `Shared::step`.
        self.shared.ends.store(true, Ordering::Release);
        self.shared.wanted.post.chime.ring();
        // Code of the program's that the thread runs may drop a communicator. What is left is handed over behind it.
        if !progress_thread::is_here() {
            self.shared.ending.await_told();
            if let Some(thread) = self.shared.failing.lock().take() {
                // One that panicked has told what it could.
                let _ended = thread.join();
            }
        }
        leave(&self.shared.wanted.post);
        // Relaxed: the count only says whether there is anybody to tell.
        if self.shared.wanted.captured.load(Ordering::Relaxed) > 0 {
            // Nobody serves the slots of graphs any more: what is replayed from now on must end.
            self.status.raise();
        }
    }
}

impl Drop for Attention {
    fn drop(&mut self) {
        // Release: what the launch has published was published before.
        self.wanted.count(self.of_graph).fetch_sub(1, Ordering::Release);
        self.wanted.post.chime.ring();
    }
}

impl Wanted {
    fn count(&self, of_graph: bool) -> &AtomicUsize {
        if of_graph { &self.captured } else { &self.launches }
    }
}

impl Driver {
    fn start(device: DeviceIdentity) -> Result<Driver> {
        let mut post = None;
        let seat = progress_thread::enter(|chime| {
            let (joining, ends) = (Mutex::default(), AtomicBool::new(false));
            let post = post.insert(Arc::new(Post { chime: Arc::clone(chime), joining, ends }));
            Box::new(Proxies::new(Arc::clone(post), device))
        })?;
        let post = post.ok_or_else(|| Error::internal("the progress thread has not taken its duty"))?;
        Ok(Driver { post, seat, proxies: 0 })
    }
}

/// Whether there are proxies: then kernels may wait for the progress thread.
pub(crate) fn is_any() -> bool {
    DRIVER.get().is_some_and(|driver| driver.lock().is_some())
}

/// Runs `body` while there is a proxy.
#[cfg(test)]
#[cfg(not(loom))]
pub(crate) fn beside_one(session: Arc<Session>, body: impl FnOnce()) {
    let status = Arc::new(StatusPage::new().expect("the test has memory"));
    let _proxy = Proxy::start(session, status, DeviceIdentity([0; 16])).expect("the test has a thread");
    body();
}

/// A proxy of `post` has gone. The last one ends the duty.
fn leave(post: &Arc<Post>) {
    let Some(driver) = DRIVER.get() else { return };
    let mut driver = driver.lock();
    let is_last = driver.as_mut().filter(|running| Arc::ptr_eq(&running.post, post)).is_some_and(|running| {
        running.proxies -= 1;
        running.proxies == 0
    });
    let last = driver.take_if(|_| is_last);
    drop(driver);
    if let Some(Driver { post, seat, .. }) = last {
        // Release: pairs with the load in `Proxies::round`.
        post.ends.store(true, Ordering::Release);
        post.chime.ring();
        drop(seat);
    }
}

impl Proxies {
    fn new(post: Arc<Post>, device: DeviceIdentity) -> Proxies {
        Proxies { post, all: Vec::new(), near: Some(device), nap: Duration::ZERO }
    }
}

impl Drop for Proxies {
    /// Where the duty was dropped because it panicked, nobody moves anything for these proxies any more: whoever waits
    /// for their ends is told, and the next communicator begins a new duty.
    fn drop(&mut self) {
        let taken =
            DRIVER.get().and_then(|driver| driver.lock().take_if(|running| Arc::ptr_eq(&running.post, &self.post)));
        // Behind that nobody joins.
        let joining = std::mem::take(&mut *self.post.joining.lock());
        let left: Vec<_> = self.all.drain(..).map(|(shared, _)| shared).chain(joining).collect();
        for shared in left {
            shared.session.abort.raise(Error::internal("what moves the messages of kernels has panicked"));
            let ending = Arc::clone(&shared.ending);
            drop(shared);
            ending.tell();
        }
        drop(taken);
        // It moved the thread near its device.
        progress_thread::first_processors().into_iter().for_each(|processors| processors.bind());
    }
}

impl ProgressDuty for Proxies {
    fn round(&mut self, _: u64) -> AfterRound {
        self.near.take().into_iter().for_each(|device| gpus::settle_near(device.0));
        let Proxies { post, all, nap, .. } = self;
        // Acquire: pairs with the store in `leave`.
        let ends = post.ends.load(Ordering::Acquire);
        all.extend(post.joining.lock().drain(..).map(|shared| (shared, Turns::new())));
        let mut over = Vec::new();
        *nap = LONGEST_NAP;
        all.retain_mut(|(shared, turns)| {
            let step = catch_unwind(AssertUnwindSafe(|| shared.step(turns))).unwrap_or_else(|panic| {
                turns.stop(Error::of_panic("the proxy", &*panic));
                Some(Duration::ZERO)
            });
            *nap = step.map_or(*nap, |next| next.min(*nap));
            if step.is_none() {
                over.push(Arc::clone(&shared.ending));
            }
            step.is_some()
        });
        over.iter().for_each(|ending| ending.tell());
        match (ends && all.is_empty(), nap.is_zero()) {
            (true, _) => AfterRound::Over,
            (false, true) => AfterRound::GoesOn,
            (false, false) => AfterRound::Rests,
        }
    }

    /// Sleeps until there may be something to do for any of them.
    fn rest(&mut self, ends: RestEnds<'_>, sleep: &mut dyn FnMut(&RestEnds<'_>) -> bool) -> bool {
        let (mut ends, mut nap) = (ends, self.nap);
        // The descriptors of pumps that nobody calls would wake it for nothing.
        for (_, turns) in self.all.iter_mut().filter(|(shared, turns)| !shared.is_over(turns)) {
            let Turns { pumps, broken, is_broken, .. } = turns;
            match pumps.sources() {
                Ok(Some(PumpSources { descriptors, at_most })) => {
                    ends.descriptors.extend(descriptors);
                    nap = nap.min(at_most);
                }
                Ok(None) => nap = nap.min(LEAST_NAP),
                Err(error) => {
                    (*broken, *is_broken) = (Some(error), true);
                    nap = Duration::ZERO;
                }
            }
        }
        ends.limit = ends.limit.min(nap);
        sleep(&ends)
    }
}

impl Shared {
    fn new(session: Arc<Session>, post: &Arc<Post>) -> Shared {
        let (launches, captured) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let wanted = Arc::new(Wanted { post: Arc::clone(post), launches, captured });
        let (joining, ends, failing) = (Mutex::default(), AtomicBool::new(false), Mutex::default());
        Shared { session, wanted, joining, ends, ending: Arc::new(Ending::new()), failing }
    }

    /// One turn. How long the thread may sleep behind it; `None` once it is over.
    fn step(&self, turns: &mut Turns) -> Option<Duration> {
        // Looked at before the pumps are: all that was published by then is found.
        // Acquire: pairs with the store in `Proxy::drop`.
        let ends = self.ends.load(Ordering::Acquire);
        let launches = self.wanted.launches.load(Ordering::Acquire) > 0;
        let captured = self.wanted.captured.load(Ordering::Acquire) > 0;
        let moved = self.turn(turns);
        let is_left_over = ends && !turns.pumps.drained();
        if (captured || is_left_over) && !moved && !turns.is_broken {
            self.ask_for_news(turns);
        }
        if is_left_over {
            let timeout = self.session.settings.timeout.time;
            if turns.last_turns.get_or_insert_with(|| Deadline::after(timeout)).is_over() {
                turns.stop(overdue(timeout));
            }
        }
        self.end_for(turns, launches || captured || is_left_over);
        if ends && (!is_left_over || self.is_over(turns)) {
            return None;
        }
        if moved {
            turns.moved = clock::now();
            return Some(Duration::ZERO);
        }
        let quiet = clock::now().duration_since(turns.moved);
        Some(match (self.is_over(turns), launches || ends, captured) {
            (false, true, _) if quiet < SPIN => {
                cpu::relax();
                Duration::ZERO
            }
            (false, true, _) => (quiet / NAP_SHARE).clamp(LEAST_NAP, LAUNCH_NAP),
            (false, false, true) => (quiet / NAP_SHARE).clamp(LEAST_NAP, GRAPH_NAP),
            (false, false, false) | (true, ..) => LONGEST_NAP,
        })
    }

    /// Whether nothing moves any more.
    fn is_over(&self, turns: &Turns) -> bool {
        turns.is_broken || self.session.abort.is_raised()
    }

    /// Ends the communicator where it `needs` a connection that has broken.
    fn end_for(&self, turns: &mut Turns, needs: bool) {
        if let Some(error) = turns.broken.take_if(|_| needs) {
            // All ranks are told, and this rank's kernels by the flag. That waits a moment for a better reason, for
            // which the other communicators do not wait.
            let (session, told) = (Arc::clone(&self.session), error.duplicate());
            match thread::spawn("rsccl failure", move || drop(session.fail(told, &|_| None))) {
                Ok(thread) => *self.failing.lock() = Some(thread),
                Err(_) => drop(self.session.fail(error, &|_| None)),
            }
        }
    }

    /// Takes new connections, and lets the pumps move. False where nothing moved.
    fn turn(&self, turns: &mut Turns) -> bool {
        let joining = std::mem::take(&mut *self.joining.lock());
        if turns.is_broken || self.session.abort.is_raised() {
            return false;
        }
        let joined = joining.into_iter().try_for_each(|(end, slots)| end.join(slots, &mut turns.pumps));
        joined.and_then(|()| turns.pumps.pump()).unwrap_or_else(|error| {
            turns.stop(error);
            false
        })
    }

    /// Finds out about the death of peers, for which nobody else looks while graphs replay.
    fn ask_for_news(&self, turns: &mut Turns) {
        let now = clock::now();
        if now.duration_since(turns.asked) < NEWS_EVERY {
            return;
        }
        turns.asked = now;
        if let Err(error) = self.session.look_at_peers(WaitingFor::Anything, now) {
            turns.stop(error);
        }
    }
}

#[cold]
fn overdue(timeout: Duration) -> Error {
    let waited = timeout.as_secs_f64();
    Error::timeout(format!("timed out after {waited:.1} s handing messages of ended launches to ranks of other hosts"))
}

impl Turns {
    fn new() -> Turns {
        let (moved, broken) = (clock::now(), None);
        Turns { pumps: Pumps::default(), moved, asked: moved, broken, is_broken: false, last_turns: None }
    }

    fn stop(&mut self, error: Error) {
        if !self.is_broken {
            self.broken = Some(error);
            self.is_broken = true;
        }
    }
}

/// How long the thread stays awake after something has moved.
const SPIN: Duration = Duration::from_micros(20);
/// A nap is so much shorter than what was quiet before it.
const NAP_SHARE: u32 = 4;
const LEAST_NAP: Duration = Duration::from_micros(10);
/// The longest nap while a launch is under way.
const LAUNCH_NAP: Duration = Duration::from_micros(200);
/// The longest nap while a graph exists that may be replayed.
const GRAPH_NAP: Duration = Duration::from_millis(1);
/// The longest nap where only descriptors and the bell bring work.
const LONGEST_NAP: Duration = Duration::from_secs(3600);
/// How often news of peers is asked for while graphs exist.
const NEWS_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::bootstrap::LocalBootstrap;
    use crate::config::Config;
    use crate::session::settings::Settings;
    use crate::sync::AbortFlag;
    use crate::sys::futex;
    use crate::types::Rank;

    fn session_of(rank: LocalBootstrap) -> Arc<Session> {
        let settings = Settings::read(&Config::default()).unwrap();
        Arc::new(Session::new(Box::new(rank), settings, AbortFlag::new()))
    }

    fn proxy() -> (Proxy, Arc<StatusPage>) {
        proxy_of(session_of(LocalBootstrap::world(1).unwrap().remove(0)))
    }

    fn proxy_of(session: Arc<Session>) -> (Proxy, Arc<StatusPage>) {
        let status = Arc::new(StatusPage::new().unwrap());
        (Proxy::start(session, Arc::clone(&status), DeviceIdentity([0; 16])).unwrap(), status)
    }

    #[test]
    fn a_graph_that_outlives_its_communicator_is_told_to_end() {
        let (proxy, status) = proxy();
        drop((proxy.attend(true), proxy.attend(false)));
        drop(proxy);
        assert!(!status.is_aborted(), "no graph has lived as long");
        let (proxy, status) = self::proxy();
        let graphs = proxy.attend(true);
        drop(proxy);
        assert!(status.is_aborted());
        drop(graphs);
    }

    /// Regression: the thread hushed its bell after it had looked, and slept through what was told in between.
    /// This is a sample: with the old order one run in some hundreds hung.
    #[test]
    fn what_is_told_at_any_moment_wakes_the_thread() {
        let (told, ended) = std::sync::mpsc::channel();
        let _thread = thread::spawn("proxies", move || {
            for _ in 0..500 {
                let (proxy, _status) = proxy();
                drop(proxy.attend(false));
                drop(proxy);
            }
            told.send(()).unwrap();
        })
        .unwrap();
        ended.recv_timeout(Duration::from_secs(60)).expect("each thread hears that it ends");
    }

    #[test]
    fn communicators_share_the_thread_and_fail_alone() {
        let [(first, _), (second, _)] = [proxy(), proxy()];
        let post = |proxy: &Proxy| Arc::clone(&proxy.shared.wanted.post);
        assert!(Arc::ptr_eq(&post(&first), &post(&second)));
        // One that has failed is over at once, and the other one goes on.
        first.shared.session.abort.raise(Error::aborted("enough"));
        let attention = second.attend(false);
        drop(first);
        assert!(second.shared.session.abort.check().is_ok());
        drop((attention, second));
    }

    /// Regression: the thread heard of the death, slept for an hour, and kernels of graphs polled for ever.
    #[test]
    fn the_death_of_a_peer_ends_what_graphs_replay() {
        let [mine, theirs] = LocalBootstrap::world(2).unwrap().try_into().unwrap();
        let session = session_of(mine);
        let (proxy, _status) = proxy_of(Arc::clone(&session));
        let graph = proxy.attend(true);
        drop(session_of(theirs));
        let deadline = Deadline::after(Duration::from_secs(60));
        while !session.abort.is_raised() {
            assert!(!deadline.passed(clock::now()), "nobody tells the kernels");
            futex::nap(Duration::from_millis(1));
        }
        assert_eq!(session.abort.check().unwrap_err().peer(), Some(1));
        drop((graph, proxy));
    }

    /// Regression: the ends of proxies whose duty had panicked were waited for, for ever.
    #[test]
    fn a_duty_that_is_dropped_tells_those_who_wait_for_it() {
        let (chime, ends) = (Arc::default(), AtomicBool::new(false));
        let post = Arc::new(Post { chime, joining: Mutex::default(), ends });
        let shared = || {
            let session = session_of(LocalBootstrap::world(1).unwrap().remove(0));
            Arc::new(Shared::new(session, &post))
        };
        let mut duty = Proxies::new(Arc::clone(&post), DeviceIdentity([0; 16]));
        let (driven, joins) = (shared(), shared());
        duty.all.push((Arc::clone(&driven), Turns::new()));
        post.joining.lock().push(Arc::clone(&joins));
        drop(duty);
        for shared in [driven, joins] {
            assert!(shared.ending.is_told() && shared.session.abort.is_raised());
        }
    }

    /// The error of a connection ends the communicator when a launch needs the connection, and not before.
    #[test]
    fn a_connection_that_breaks_waits_for_a_launch() {
        let (proxy, _status) = proxy();
        let session = Arc::clone(&proxy.shared.session);
        let mut turns = Turns::new();
        for peer in [1, 2] {
            turns.stop(Error::internal("broken").about(Rank::new(peer)));
        }
        assert!(!proxy.shared.turn(&mut turns) && session.abort.check().is_ok());
        assert_eq!(turns.broken.as_ref().and_then(Error::peer), Some(1), "the first error stays");
        proxy.shared.end_for(&mut turns, false);
        assert!(session.abort.check().is_ok());
        proxy.shared.end_for(&mut turns, true);
        proxy.shared.failing.lock().take().expect("a thread").join().unwrap();
        assert_eq!(session.abort.check().unwrap_err().peer(), Some(1));
    }
}
