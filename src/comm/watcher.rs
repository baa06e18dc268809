//! The watcher: the one thread of the process that moves what nobody drives.
//!
//! While nothing is outstanding it is parked. While something is, it wakes at each tick. Where the program has driven
//! the requests of a communicator since the last tick, it leaves them alone: so it never touches a request that is
//! waited for soon, and a program that begins and ends requests all the time makes no call of the system for it. Where
//! the program computes, or waits elsewhere, the watcher visits: it takes a turn on the engine, moves what moves, and
//! gives the engine back; while something moves it comes back sooner. Beside requests of one communicator it sleeps
//! inside of its visit until one can move ([`LongRest`](super::long_rest)), and leaves when the program rings. It
//! begins at once with a request that is large.
//!
//! It keeps to duties that never wait: collectives are resumed, and messages moved, as far as they go. So one thread is
//! enough for all communicators.

use std::thread::JoinHandle;
use std::time::Duration;

use crate::comm::engine_home::EngineHome;
use crate::comm::long_rest::LongRest;
use crate::comm::outcome::LeftOver;
use crate::error::Result;
use crate::sync::Chime;
use crate::sync::primitive::{Arc, AtomicBool, Mutex, Ordering, Weak, fence};
use crate::sys::fork::PerProcess;
use crate::sys::thread;

/// The watcher of this process.
static WATCHER: PerProcess<Watcher> = PerProcess::new();

#[derive(Debug, Default)]
struct Watcher(Mutex<Watched>);

/// The communicators that have, or have had, requests; and the thread, while there are any.
#[derive(Debug, Default)]
struct Watched {
    post: Option<(Arc<Post>, JoinHandle<()>)>,
}

/// What the thread looks at.
#[derive(Debug, Default)]
struct Post {
    homes: Mutex<Vec<Weak<EngineHome>>>,
    /// Rung for what cannot wait for a tick, and to end.
    chime: Arc<Chime>,
    /// What threads that have moved requests have left to this one.
    due: Mutex<LeftOver>,
    /// Whether the thread sleeps until it is rung for.
    is_parked: AtomicBool,
    ends: AtomicBool,
}

/// The watcher looks after `shared` from now on.
///
/// # Errors
/// [`crate::error::Kind::System`] where no thread can be started.
pub(super) fn watch(shared: &Arc<EngineHome>) -> Result<()> {
    let mut watched = WATCHER.get_or_init(Watcher::default).0.lock();
    if watched.post.is_none() {
        let post = Arc::<Post>::default();
        let served = Arc::clone(&post);
        let thread = thread::spawn("rsccl watcher", move || served.serve())?;
        watched.post = Some((post, thread));
    }
    if let Some((post, _)) = &watched.post {
        post.homes.lock().push(Arc::downgrade(shared));
    }
    Ok(())
}

/// The watcher looks after `shared` no more. The last one ends its thread.
pub(super) fn forget(shared: &Arc<EngineHome>) {
    let Some(watcher) = WATCHER.get() else { return };
    let mut watched = watcher.0.lock();
    let Some((post, _)) = &watched.post else { return };
    let mut homes = post.homes.lock();
    homes.retain(|other| other.upgrade().is_some_and(|other| !Arc::ptr_eq(&other, shared)));
    let is_last = homes.is_empty();
    drop(homes);
    if is_last && let Some((post, thread)) = watched.post.take() {
        drop(watched);
        post.ends.store(true, Ordering::Relaxed);
        post.chime.ring();
        // The buffers of a request may own a communicator, and the watcher drops them: it does not wait for itself.
        if thread.thread().id() != std::thread::current().id() {
            drop(thread.join());
        }
    }
}

/// Something is outstanding of a communicator of which nothing was before.
pub(super) fn note_work() {
    // Partner of the fence before the watcher parks: of the two, one sees what the other has stored.
    fence(Ordering::SeqCst);
    on_post(|post| {
        if post.is_parked.load(Ordering::Relaxed) {
            post.chime.ring();
        }
    });
}

/// Something is not to wait for a tick.
pub(super) fn wake() {
    on_post(|post| post.chime.ring());
}

/// Runs what is due of requests that another thread has moved and is not to run itself.
pub(super) fn release(due: LeftOver) {
    if due.is_empty() {
        return;
    }
    let mut due = Some(due);
    on_post(|post| {
        due.take().into_iter().for_each(|due| post.due.lock().add(due));
        post.chime.ring();
    });
    // Without a watcher there are no requests.
    due.into_iter().for_each(LeftOver::run);
}

fn on_post(body: impl FnOnce(&Post)) {
    if let Some(watcher) = WATCHER.get()
        && let Some((post, _)) = &watcher.0.lock().post
    {
        body(post);
    }
}

impl Post {
    fn serve(&self) {
        let mut beats: Vec<(Weak<EngineHome>, u64)> = Vec::new();
        let (mut quiet, mut vain) = (0, 0);
        let mut rest = LongRest::new(&self.chime);
        while !self.ends.load(Ordering::Relaxed) {
            let heard = self.chime.count();
            self.take_over(&mut beats);
            let due = std::mem::take(&mut *self.due.lock());
            due.run();
            let (is_outstanding, has_moved, is_wanted) = self.look(&mut beats, &mut rest);
            // The program rings where it wants its engine back: who came back at once would be there before it, above
            // all on one processor.
            let heard = if is_wanted { self.chime.count() } else { heard };
            quiet = if is_outstanding { 0 } else { quiet + 1 };
            vain = if has_moved || self.chime.count() != heard { 0 } else { vain + 1 };
            let tick = match (has_moved, quiet > QUIET_TICKS) {
                (true, _) => SHORT_TICK,
                (false, false) => TICK * (1 + vain / VAIN_TICKS).min(MOST_TICKS),
                (false, true) => {
                    self.park(heard);
                    continue;
                }
            };
            self.chime.sleep(heard, &[], tick);
        }
    }

    /// Sleeps until something is begun.
    fn park(&self, heard: u64) {
        if self.is_quiet_but_for(None) {
            self.chime.sleep(heard, &[], LONG);
        }
        self.is_parked.store(false, Ordering::Relaxed);
    }

    /// Lets those who begin requests ring. Whether nothing is outstanding but what `shared` has.
    fn is_quiet_but_for(&self, shared: Option<&Weak<EngineHome>>) -> bool {
        self.is_parked.store(true, Ordering::Relaxed);
        // Partner of the fence in `note_work`.
        fence(Ordering::SeqCst);
        // All that are known by now: a new one is entered before it has something outstanding.
        let known = self.homes.lock().clone();
        let is_other = |other: &&Weak<EngineHome>| shared.is_none_or(|shared| !shared.ptr_eq(other));
        !known.iter().filter(is_other).any(|other| other.upgrade().is_some_and(|other| other.is_outstanding()))
    }

    /// Visits what the program has left alone since the last look. Whether anything is outstanding, whether anything
    /// has moved, and whether the program has ended a visit.
    fn look(&self, beats: &mut [(Weak<EngineHome>, u64)], rest: &mut LongRest) -> (bool, bool, bool) {
        let (mut is_outstanding, mut has_moved, mut is_wanted) = (false, false, false);
        for (known, last) in beats {
            let Some(shared) = known.upgrade().filter(|shared| shared.is_outstanding()) else { continue };
            is_outstanding = true;
            if shared.is_unattended(last) {
                has_moved |= shared.visit(rest, || self.is_quiet_but_for(Some(known)));
                self.is_parked.store(false, Ordering::Relaxed);
                is_wanted |= shared.is_wanted();
            }
        }
        (is_outstanding, has_moved, is_wanted)
    }

    /// Learns of new communicators, and forgets those that have gone.
    fn take_over(&self, beats: &mut Vec<(Weak<EngineHome>, u64)>) {
        let homes = self.homes.lock();
        beats.retain(|(known, _)| homes.iter().any(|shared| shared.ptr_eq(known)));
        for shared in &*homes {
            if !beats.iter().any(|(known, _)| known.ptr_eq(shared)) {
                beats.push((Weak::clone(shared), 0));
            }
        }
    }
}

/// How often the watcher looks while something is outstanding: a request that is waited for within it is never touched.
const TICK: Duration = Duration::from_millis(1);
/// The same while what it moves goes on moving.
const SHORT_TICK: Duration = Duration::from_micros(20);
/// After so many ticks in which nothing has moved they come later by one tick each time, and by so many at most: each
/// visit interrupts the other processors for a moment, and a peer that has not come for long often does not come soon.
const VAIN_TICKS: u32 = 64;
const MOST_TICKS: u32 = 5;
/// After how many ticks without anything outstanding it parks: the next request pays for its wake.
const QUIET_TICKS: u32 = 20;
/// No duty depends on it.
const LONG: Duration = Duration::from_secs(3600);
