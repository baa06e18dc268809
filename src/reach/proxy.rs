//! The thread that moves messages between kernels and ranks of other hosts.
//!
//! A kernel works in slots in pinned memory of the host (`transport::KernelSlots`), where a pump of this thread has the
//! other end. The thread calls no driver, so it waits for no kernel.
//!
//! # When it looks
//! What comes from peers, and room for what goes to them, wakes it by the descriptors of the sockets. Kernels wake
//! nobody: what they publish, and the slots that they give back, it finds by looking at words. It does that while a
//! launch that uses such slots is under way, which the host knows. A graph replays launches with no host code in
//! between, so while one with such a launch exists the thread looks too, up to [`GRAPH_NAP`] apart where nothing moves:
//! a rule that no replay escapes, and that needs no host function in the graph, which would hold up each replay. Else
//! the thread sleeps until a descriptor is ready.

use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::device::{DeviceIdentity, StatusPage};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::peer_status::WaitingFor;
use crate::sync::primitive::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::sync::{Deadline, Mirror};
use crate::sys::bell::Bell;
use crate::sys::{clock, cpu, gpus, thread};
use crate::transport::{FarEnd, KernelSlots, Pumps};

/// The thread of one communicator. Dropping it waits until what kernels have published has been handed to the system:
/// the launches have ended before. What cannot be handed over any more ends the communicator.
#[derive(Debug)]
pub(super) struct Proxy {
    shared: Arc<Shared>,
    status: Arc<StatusPage>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    session: Arc<Session>,
    wanted: Arc<Wanted>,
    /// Connections that the thread has not taken yet.
    joining: Mutex<Vec<(FarEnd, KernelSlots)>>,
    ends: AtomicBool,
}

/// For what the thread has to look at what kernels do. A graph may keep it for longer than the communicator lives.
#[derive(Debug)]
struct Wanted {
    bell: Bell,
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

/// What the thread knows between two turns.
struct Turns {
    pumps: Pumps,
    /// When something moved last.
    moved: Instant,
    /// When it asked for news of peers last.
    asked: Instant,
    /// Why it moves nothing any more. The error waits for a launch that needs the connection.
    broken: Option<Error>,
    is_broken: bool,
}

impl Proxy {
    /// A thread without connections, on processors near `device`. `status` is shown to this rank's kernels.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where no thread can be started, or no descriptor is left.
    pub fn start(session: Arc<Session>, status: Arc<StatusPage>, device: DeviceIdentity) -> Result<Proxy> {
        let (launches, captured) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let wanted = Arc::new(Wanted { bell: Bell::new()?, launches, captured });
        let (joining, ends) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { session, wanted, joining, ends });
        let driven = Arc::clone(&shared);
        let thread = thread::spawn("rsccl proxy", move || {
            gpus::settle_near(device.0);
            driven.run();
        })?;
        Ok(Proxy { shared, status, thread: Some(thread) })
    }

    /// Gives a connection to the thread.
    pub fn join(&self, end: FarEnd, slots: KernelSlots) {
        self.shared.joining.lock().push((end, slots));
        self.shared.wanted.bell.ring();
    }

    /// Makes the thread look at what kernels do until a launch, or a graph that keeps the value, has ended.
    pub fn attend(&self, of_graph: bool) -> Attention {
        let wanted = Arc::clone(&self.shared.wanted);
        // Release, as all that is done to the counts: pairs with the loads in `Shared::run`.
        wanted.count(of_graph).fetch_add(1, Ordering::Release);
        wanted.bell.ring();
        Attention { wanted, of_graph }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Release: pairs with the load in `Shared::run`.
        self.shared.ends.store(true, Ordering::Release);
        self.shared.wanted.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked moves nothing any more; there is nobody to tell here.
            let _ended = thread.join();
        }
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
        self.wanted.bell.ring();
    }
}

impl Wanted {
    fn count(&self, of_graph: bool) -> &AtomicUsize {
        if of_graph { &self.captured } else { &self.launches }
    }
}

impl Shared {
    fn run(&self) {
        let now = clock::now();
        let mut turns = Turns { pumps: Pumps::default(), moved: now, asked: now, broken: None, is_broken: false };
        let mut last_turns: Option<Deadline> = None;
        loop {
            // First, so that what is told from here on wakes the sleep at the end of this turn.
            self.wanted.bell.hush();
            // Looked at before the pumps are: all that was published by then is found.
            // Acquire: pairs with the store in `Proxy::drop`.
            let ends = self.ends.load(Ordering::Acquire);
            let launches = self.wanted.launches.load(Ordering::Acquire) > 0;
            let captured = self.wanted.captured.load(Ordering::Acquire) > 0;
            let moved = self.turn(&mut turns);
            let is_left_over = ends && !turns.pumps.drained();
            if (captured || is_left_over) && !moved && !turns.is_broken {
                self.ask_for_news(&mut turns);
            }
            if is_left_over {
                let timeout = self.session.settings.timeout.time;
                if last_turns.get_or_insert_with(|| Deadline::after(timeout)).is_over() {
                    turns.stop(overdue(timeout));
                }
            }
            // Behind all that finds an error but the rest, after which the next turn comes at once.
            self.end_for(&mut turns, launches || captured || is_left_over);
            if ends && (!is_left_over || turns.is_broken || self.session.abort.is_raised()) {
                return;
            }
            if moved {
                turns.moved = clock::now();
                continue;
            }
            if let Err(error) = self.rest(&mut turns, (launches || ends, captured)) {
                turns.stop(error);
            }
        }
    }

    /// Ends the communicator where it `needs` a connection that has broken.
    fn end_for(&self, turns: &mut Turns, needs: bool) {
        if let Some(error) = turns.broken.take_if(|_| needs) {
            // All ranks are told, and this rank's kernels by the flag.
            let _told = self.session.fail(error, &|_| None);
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

    /// Sleeps until there may be something to do.
    fn rest(&self, turns: &mut Turns, (launches, captured): (bool, bool)) -> Result<()> {
        let is_over = turns.is_broken || self.session.abort.is_raised();
        let quiet = clock::now().duration_since(turns.moved);
        let nap = match (is_over, launches, captured) {
            (false, true, _) if quiet < SPIN => {
                cpu::relax();
                return Ok(());
            }
            (false, true, _) => (quiet / NAP_SHARE).clamp(LEAST_NAP, LAUNCH_NAP),
            (false, false, true) => (quiet / NAP_SHARE).clamp(LEAST_NAP, GRAPH_NAP),
            (false, false, false) => LONGEST_NAP,
            // The descriptors of pumps that nobody calls would wake it for nothing.
            (true, ..) => return Pumps::default().rest(LONGEST_NAP, Some(self.wanted.bell.as_fd())),
        };
        turns.pumps.rest(nap, Some(self.wanted.bell.as_fd()))
    }
}

#[cold]
fn overdue(timeout: Duration) -> Error {
    let waited = timeout.as_secs_f64();
    Error::timeout(format!("timed out after {waited:.1} s handing messages of ended launches to ranks of other hosts"))
}

impl Turns {
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

    /// The error of a connection ends the communicator when a launch needs the connection, and not before.
    #[test]
    fn a_connection_that_breaks_waits_for_a_launch() {
        let (proxy, _status) = proxy();
        let session = Arc::clone(&proxy.shared.session);
        let now = clock::now();
        let mut turns = Turns { pumps: Pumps::default(), moved: now, asked: now, broken: None, is_broken: false };
        for peer in [1, 2] {
            turns.stop(Error::internal("broken").about(Rank::new(peer)));
        }
        assert!(!proxy.shared.turn(&mut turns) && session.abort.check().is_ok());
        assert_eq!(turns.broken.as_ref().and_then(Error::peer), Some(1), "the first error stays");
        proxy.shared.end_for(&mut turns, false);
        assert!(session.abort.check().is_ok());
        proxy.shared.end_for(&mut turns, true);
        assert_eq!(session.abort.check().unwrap_err().peer(), Some(1));
    }
}
