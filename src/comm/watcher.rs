//! The watcher: what moves requests that nobody drives, on the progress thread of the process.
//!
//! While nothing is outstanding it has nothing to do. While something is, it looks at each tick. Where the program has
//! driven the requests of a communicator since the last tick, it leaves them alone: so it never touches a request that
//! is waited for soon, and a program that begins and ends requests all the time makes no call of the system for it.
//! Where the program computes, or waits elsewhere, the watcher begins a [`Visit`]: it takes the engine, moves what
//! moves, and keeps the engine until the program rings for it. It begins at once with a request that is large.
//!
//! Once it visits all communicators that have something outstanding, there are no more ticks: it sleeps until something
//! can move, beside any number of visits ([`LongRest`]). It lets go of all of them before it runs code of the program's
//! (wakers, buffers that are dropped, hooks), which may make calls of any communicator.
//!
//! It keeps to duties that never wait: collectives are resumed, and messages moved, as far as they go, and no
//! communicator for long while others have something to move. So one thread is enough for all communicators.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::comm::engine_home::EngineHome;
use crate::comm::long_rest::{LongRest, Wakes};
use crate::comm::outcome::{self, LeftOver};
use crate::comm::visit::{Drove, Visit};
use crate::error::Result;
use crate::reach::proxy;
use crate::sync::primitive::{Arc, AtomicBool, AtomicU64, Mutex, OnceLock, Ordering, Weak, fence};
use crate::sync::progress_thread::{self, AfterRound, ProgressDuty, ProgressSeat};
use crate::sync::{Chime, RestEnds};
use crate::sys::fork::PerProcess;
use crate::sys::poller::{Interest, Poller};
use crate::sys::{clock, thread};

/// The watcher of this process.
static WATCHER: PerProcess<Watcher> = PerProcess::new();

#[derive(Debug, Default)]
struct Watcher(Mutex<Watched>);

/// The communicators that have, or have had, requests; and the seat of the watcher, while there are any.
#[derive(Debug, Default)]
struct Watched {
    post: Option<(Arc<Post>, ProgressSeat)>,
}

/// What the watcher looks at.
#[derive(Debug, Default)]
struct Post {
    homes: Mutex<Vec<Weak<EngineHome>>>,
    /// How often these have changed.
    changes: AtomicU64,
    /// That of the progress thread, once it is known.
    chime: OnceLock<Arc<Chime>>,
    /// How often this watcher was rung for: for what cannot wait for a tick, and to end.
    rings: AtomicU64,
    /// What threads that have moved requests have left to this one.
    due: Mutex<LeftOver>,
    /// Whether the watcher sleeps until it is rung for.
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
        let seat = progress_thread::enter(|chime| {
            // Nobody else has it yet.
            let _first = post.chime.set(Arc::clone(chime));
            Box::new(Rounds::new(Arc::clone(&post), chime))
        })?;
        watched.post = Some((post, seat));
    }
    if let Some((post, _)) = &watched.post {
        post.homes.lock().push(Arc::downgrade(shared));
        // Relaxed, as below: the list is read under its lock, and at the next tick at the latest.
        post.changes.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// The watcher looks after `shared` no more. The last one ends it.
pub(super) fn forget(shared: &Arc<EngineHome>) {
    let Some(watcher) = WATCHER.get() else { return };
    let mut watched = watcher.0.lock();
    let Some((post, _)) = &watched.post else { return };
    let mut homes = post.homes.lock();
    homes.retain(|other| other.upgrade().is_some_and(|other| !Arc::ptr_eq(&other, shared)));
    let is_last = homes.is_empty();
    drop(homes);
    post.changes.fetch_add(1, Ordering::Relaxed);
    if is_last && let Some((post, seat)) = watched.post.take() {
        drop(watched);
        post.ends.store(true, Ordering::Relaxed);
        post.ring();
        drop(seat);
    }
}

/// Something is outstanding of a communicator of which nothing was before.
pub(super) fn note_work() {
    // Partner of the fence before the watcher parks: of the two, one sees what the other has stored.
    fence(Ordering::SeqCst);
    on_post(|post| {
        if post.is_parked.load(Ordering::Relaxed) {
            post.ring();
        }
    });
}

/// Something is not to wait for a tick.
pub(super) fn wake() {
    on_post(Post::ring);
}

/// Runs what is due of requests that another thread has moved and is not to run itself.
pub(super) fn release(due: LeftOver) {
    if due.is_empty() {
        return;
    }
    let mut due = Some(due);
    on_post(|post| {
        due.take().into_iter().for_each(|due| post.due.lock().add(due));
        post.ring();
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
    fn ring(&self) {
        // Relaxed: published by the chime, by which the watcher learns of it.
        self.rings.fetch_add(1, Ordering::Relaxed);
        self.chime.get().into_iter().for_each(|chime| chime.ring());
    }

    /// Lets those who begin requests ring. False where something is outstanding that is not visited.
    fn may_park(&self, rounds: &Rounds) -> bool {
        self.is_parked.store(true, Ordering::Relaxed);
        // Partner of the fence in `note_work`.
        fence(Ordering::SeqCst);
        // All that are known by now: a new one is entered before it has something outstanding.
        let known = self.homes.lock().clone();
        let is_outstanding = |shared: &Weak<EngineHome>| shared.upgrade().is_some_and(|one| one.is_outstanding());
        known.iter().all(|shared| rounds.visits(shared) || !is_outstanding(shared))
    }
}

/// The communicators that the watcher knows, and its visits to them.
#[derive(Debug)]
struct Rounds {
    post: Arc<Post>,
    chime: Arc<Chime>,
    known: BTreeMap<usize, Known>,
    changes: u64,
    /// Rounds in a row in which some visits were not driven.
    partial: u32,
    pace: Pace,
    /// The poller of the last sleep. It is closed when the next sleep is prepared: otherwise whoever woke the thread
    /// would wait for that.
    slept_on: Option<Poller>,
}

/// When the watcher looks.
#[derive(Debug)]
struct Pace {
    /// Rounds in a row in which nothing was outstanding, and ticks in which nothing has moved.
    quiet: u32,
    vain: u32,
    /// When the next round is due.
    due: Instant,
    /// Whether the sleep behind the last round has no end of its own.
    is_long: bool,
    /// How often the chime, and this watcher, had been rung for before the last round.
    heard: u64,
    rings: u64,
    /// When the last look ended, how long visits may wait behind it, and whether the thread has rested since.
    looked: Instant,
    pause: Duration,
    has_rested: bool,
}

impl Pace {
    /// While another duty keeps the thread awake, as kernels do, visits are driven now and then, so that a thousand of
    /// them take a small part of its time.
    fn is_early(&self, now: Instant, has_visits: bool) -> bool {
        now < self.due && (!has_visits || (!self.has_rested && now < self.looked + self.pause))
    }
}

#[derive(Debug)]
struct Known {
    shared: Weak<EngineHome>,
    /// How often the program had driven it by the last look.
    beat: u64,
    visit: Option<Visit>,
    /// Whether nothing has come for the visit since it was driven: a flag has risen for another one.
    rests: bool,
    /// Whether its turns call a hook of the program's: then it is visited alone, and for a moment.
    calls_hook: bool,
}

/// What came of a look at all communicators.
#[derive(Debug, Default)]
struct Round {
    is_outstanding: bool,
    has_moved: bool,
    /// Whether something is outstanding that is not visited.
    is_loose: bool,
    /// Whether more may move at once.
    goes_on: bool,
}

impl Rounds {
    fn new(post: Arc<Post>, chime: &Arc<Chime>) -> Rounds {
        let due = clock::now();
        let (looked, pause) = (due, Duration::ZERO);
        let pace = Pace {
            quiet: 0,
            vain: 0,
            due,
            is_long: false,
            heard: 0,
            rings: u64::MAX,
            looked,
            pause,
            has_rested: false,
        };
        Rounds {
            post,
            chime: Arc::clone(chime),
            known: BTreeMap::new(),
            changes: u64::MAX,
            partial: 0,
            pace,
            slept_on: None,
        }
    }

    /// Whether the thread has come for something else: the next look is not due.
    fn is_early(&self, now: Instant) -> bool {
        let has_visits = self.known.values().any(|known| known.visit.is_some());
        self.post.rings.load(Ordering::Relaxed) == self.pace.rings && self.pace.is_early(now, has_visits)
    }

    /// `homes` are all that there are.
    fn know(&mut self, homes: Vec<Weak<EngineHome>>) {
        let mut before = std::mem::take(&mut self.known);
        for shared in homes {
            let place = place_of(&shared);
            let same = before.remove(&place).filter(|known| known.shared.ptr_eq(&shared));
            let new = || Known { shared, beat: 0, visit: None, rests: false, calls_hook: false };
            self.known.insert(place, same.unwrap_or_else(new));
        }
    }

    fn visits(&self, shared: &Weak<EngineHome>) -> bool {
        self.known.get(&place_of(shared)).is_some_and(|known| known.visit.is_some() && known.shared.ptr_eq(shared))
    }

    /// Drives the visits, and visits what the program has left alone since the last look.
    fn look(&mut self) -> Round {
        let mut round = Round::default();
        for known in self.known.values_mut() {
            if known.visit.as_ref().is_some_and(Visit::is_wanted) {
                known.visit = None;
                // Whoever came back at once would be there before the program, above all on one processor.
                known.beat = u64::MAX;
            }
        }
        let hooked = |known: &Known| known.calls_hook && known.shared.upgrade().is_some_and(|one| one.is_outstanding());
        let are_kept = !self.known.values().any(hooked);
        if !are_kept {
            self.leave_all();
        }
        for known in self.known.values_mut() {
            if known.visit.is_none() && !known.begin(&mut round) {
                continue;
            }
            known.drive(&mut round, are_kept);
            if !are_kept {
                known.visit = None;
                round.is_loose = true;
                run_due(outcome::take());
            }
        }
        round
    }

    fn leave_all(&mut self) {
        self.known.values_mut().for_each(|known| known.visit = None);
    }

    /// Runs what is due of the program's, with no engine in hand.
    fn run(&mut self, due: LeftOver) {
        if !due.is_empty() {
            self.leave_all();
            run_due(due);
        }
    }

    /// Until when to sleep behind a round, which has ended now.
    fn set_pace(&mut self, round: &Round, now: Instant) {
        let Pace { quiet, vain, is_long: has_rested, heard, due, .. } = self.pace;
        // Others of the thread's duties may have had it come before.
        let is_tick = now >= due;
        let quiet = if round.is_outstanding { 0 } else { quiet + 1 };
        let vain = if round.has_moved || self.chime.count() != heard { 0 } else { vain + u32::from(is_tick) };
        (self.pace.quiet, self.pace.vain) = (quiet, vain);
        let visits = self.known.values().filter(|known| known.visit.is_some()).count();
        (self.pace.looked, self.pace.pause, self.pace.has_rested) = (now, LOOK_AT_ONE * count_of(visits), false);
        if round.goes_on {
            // What is run of the program's ends the visits: the next round is due, and begins them anew.
            (self.pace.is_long, self.pace.due) = (false, now);
            return;
        }
        let tick = match round.has_moved {
            true => SHORT_TICK,
            false => TICK * (1 + vain / VAIN_TICKS).min(MOST_TICKS),
        };
        let is_quiet = quiet > QUIET_TICKS || (round.is_outstanding && !round.is_loose);
        // What ends long sleeps again and again, and moves nothing, ends no more than one in a tick.
        let was_vain = has_rested && round.is_outstanding && !round.has_moved;
        self.pace.is_long = is_quiet && !was_vain && self.post.may_park(self);
        self.pace.due = now + tick;
    }

    /// Learns of new communicators, and forgets those that have gone.
    fn take_over(&mut self) {
        let changes = self.post.changes.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.changes, changes) != changes {
            let homes = self.post.homes.lock().clone();
            self.know(homes);
        }
    }
}

impl Drop for Rounds {
    /// Where the duty was dropped because it panicked, the next request begins a new one.
    fn drop(&mut self) {
        let lost = WATCHER.get().and_then(|watcher| watcher.lose(&self.post));
        self.leave_all();
        let homes = std::mem::take(&mut *self.post.homes.lock());
        homes.iter().filter_map(Weak::upgrade).for_each(|shared| shared.leave_watch());
        // Behind that nobody leaves more here.
        let mut due = std::mem::take(&mut *self.post.due.lock());
        due.add(outcome::take());
        run_due(due);
        drop(lost);
    }
}

impl Watcher {
    /// Takes the post out, if it is there still.
    fn lose(&self, post: &Arc<Post>) -> Option<(Arc<Post>, ProgressSeat)> {
        self.0.lock().post.take_if(|(known, _)| Arc::ptr_eq(known, post))
    }
}

impl ProgressDuty for Rounds {
    fn round(&mut self, heard: u64) -> AfterRound {
        if self.post.ends.load(Ordering::Relaxed) {
            let due = std::mem::take(&mut *self.post.due.lock());
            self.leave_all();
            run_due(due);
            return AfterRound::Over;
        }
        if self.is_early(clock::now()) {
            return AfterRound::Rests;
        }
        self.post.is_parked.store(false, Ordering::Relaxed);
        // Before all that is looked at: what rings later is not early.
        (self.pace.heard, self.pace.rings) = (heard, self.post.rings.load(Ordering::Relaxed));
        self.take_over();
        let due = std::mem::take(&mut *self.post.due.lock());
        self.run(due);
        let round = self.look();
        self.run(outcome::take());
        self.set_pace(&round, clock::now());
        if round.goes_on { AfterRound::GoesOn } else { AfterRound::Rests }
    }

    /// Sleeps beside the visits, until the next tick, or without an end. Where one of them has to be driven soon, or
    /// the system cannot, until the tick.
    fn rest(&mut self, ends: RestEnds<'_>, sleep: &mut dyn FnMut(&RestEnds<'_>) -> bool) -> bool {
        let Rounds { known, partial, chime, pace, slept_on, .. } = self;
        let Pace { due, is_long, heard, has_rested, .. } = pace;
        *has_rested = true;
        let tick = due.saturating_duration_since(clock::now());
        // What comes by sockets between two ticks waits for the second one.
        let mut long = LongRest::new(chime, *is_long);
        let (mut wakes, mut resting, mut is_restless) = (Vec::new(), Vec::new(), false);
        for Known { visit, rests, .. } in known.values_mut() {
            let Some(visit) = visit else { continue };
            match visit.wakes(&mut long) {
                Some(one) => {
                    wakes.push(one);
                    resting.push(rests);
                }
                None => is_restless = true,
            }
        }
        let limit = if *is_long { LONG } else { tick.max(LOOK_AT_ONE * count_of(wakes.len())) };
        let limit = wakes.iter().map(|wakes| wakes.at_most).fold(limit, Duration::min);
        *slept_on = long.descriptors();
        let has_slept = !is_restless && {
            let mut all = ends.clone();
            all.limit = all.limit.min(limit);
            all.flags.extend(wakes.iter().flat_map(|wakes| &wakes.flags).copied());
            all.descriptors.extend(slept_on.as_ref().map(|poller| (poller.as_fd(), Interest::Read)));
            sleep(&all)
        };
        // Flags tell of their own visits alone; all else, as deadlines, has to be looked for.
        *partial += 1;
        let may_be_partial = has_slept && chime.count() == *heard && wakes.iter().any(Wakes::is_up);
        if may_be_partial && *partial <= MOST_PARTIAL {
            wakes.iter().zip(resting).for_each(|(one, rests)| *rests = !one.is_up());
        } else {
            *partial = 0;
        }
        has_slept || sleep(&RestEnds { limit: ends.limit.min(tick), ..ends })
    }
}

/// Runs what is due of the program's: on a thread of its own where the progress thread moves what kernels wait for.
/// Such code may wait for a kernel, as where it drops a communicator or calls its GPU.
fn run_due(due: LeftOver) {
    if due.is_empty() || !proxy::is_any() {
        return due.run();
    }
    let kept = Arc::new(Mutex::new(due));
    let (taken, processors) = (Arc::clone(&kept), progress_thread::first_processors());
    let take = |kept: &Mutex<LeftOver>| std::mem::take(&mut *kept.lock());
    let body = move || {
        processors.into_iter().for_each(|processors| processors.bind());
        take(&taken).run();
    };
    // Nobody waits for it. Where none can be started, that wait is the lesser evil.
    if thread::spawn("rsccl wakers", body).is_err() {
        take(&kept).run();
    }
}

impl Known {
    /// Begins a visit where the program has left it alone. Whether there is one.
    fn begin(&mut self, round: &mut Round) -> bool {
        let Some(shared) = self.shared.upgrade().filter(|shared| shared.is_outstanding()) else { return false };
        round.is_outstanding = true;
        if shared.is_unattended(&mut self.beat) {
            self.visit = Visit::begin(&shared);
        }
        round.is_loose |= self.visit.is_none();
        self.visit.is_some()
    }

    /// Drives the visit, which is one of several where they `are_kept`.
    fn drive(&mut self, round: &mut Round, are_kept: bool) {
        let Some(visit) = &mut self.visit else { return };
        round.is_outstanding = true;
        if std::mem::take(&mut self.rests) {
            return;
        }
        self.calls_hook = visit.calls_hook();
        if self.calls_hook && are_kept {
            // The next round lets go of all others first.
            (self.visit, round.is_loose) = (None, true);
            return;
        }
        match visit.drive() {
            Drove::Over => self.visit = None,
            Drove::Dry => {}
            Drove::Moved => round.has_moved = true,
            Drove::GoesOn => (round.has_moved, round.goes_on) = (true, true),
        }
    }
}

fn count_of(many: usize) -> u32 {
    u32::try_from(many).unwrap_or(u32::MAX)
}

/// Where its value lies: a key that no other one has at the same time.
fn place_of(shared: &Weak<EngineHome>) -> usize {
    shared.as_ptr().addr()
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
/// After so many rounds in which only some visits were driven comes one in which all are.
const MOST_PARTIAL: u32 = 64;
/// How much longer ticks are for each visit beside them, where these have to be looked at, and how long a visit waits
/// for its next turn while another duty keeps the thread awake: turns take a small part of the time.
const LOOK_AT_ONE: Duration = Duration::from_micros(20);
/// No duty depends on it.
const LONG: Duration = Duration::from_secs(3600);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Regression: where the small one of two requests ended, with a waker, in a round behind which more moved at once,
    /// no visit was left, and the thread slept as if it still had them all: for an hour, with a request outstanding.
    #[test]
    fn a_round_that_goes_on_leaves_no_long_sleep_of_the_one_before() {
        let chime = Arc::<Chime>::default();
        let mut rounds = Rounds::new(Arc::default(), &chime);
        rounds.pace.rings = 0;
        let dry = Round { is_outstanding: true, ..Round::default() };
        rounds.set_pace(&dry, clock::now() + LONG);
        assert!(rounds.pace.is_long && rounds.is_early(clock::now()), "it sleeps beside all its visits");
        rounds.set_pace(&Round { has_moved: true, goes_on: true, ..dry }, clock::now());
        assert!(!rounds.is_early(clock::now()), "nobody looks at what is left");
        let mut limit = None;
        rounds.rest(RestEnds::at(LONG), &mut |ends| limit.replace(ends.limit).is_none());
        assert!(limit.is_some_and(|limit| limit < LONG), "{limit:?}");
    }

    /// Regression: while kernels kept the thread awake, it drove all visits in each of its rounds.
    #[test]
    fn visits_wait_a_moment_while_another_duty_keeps_the_thread_awake() {
        let mut rounds = Rounds::new(Arc::default(), &Arc::default());
        let now = clock::now();
        rounds.set_pace(&Round { is_outstanding: true, ..Round::default() }, now);
        rounds.pace.pause = LOOK_AT_ONE;
        let soon = now + LOOK_AT_ONE / 2;
        assert!(rounds.pace.is_early(soon, true) && !rounds.pace.is_early(now + LOOK_AT_ONE, true));
        assert!(!rounds.pace.is_early(rounds.pace.due, false), "a look is due");
        rounds.rest(RestEnds::at(LONG), &mut |_| true);
        assert!(!rounds.pace.is_early(soon, true), "something may have come for them in the sleep");
        assert!(rounds.pace.is_early(soon, false));
    }

    /// Regression: rounds for which kernels kept the thread awake counted as ticks, and ticks came late.
    #[test]
    fn rounds_between_ticks_do_not_make_ticks_late() {
        let mut rounds = Rounds::new(Arc::default(), &Arc::default());
        let loose = Round { is_outstanding: true, is_loose: true, ..Round::default() };
        let mut now = rounds.pace.due;
        for _ in 0..10 * VAIN_TICKS {
            rounds.set_pace(&loose, now);
            assert_eq!(rounds.pace.due, now + TICK);
            now += TICK / 10;
        }
        for _ in 0..VAIN_TICKS {
            now = rounds.pace.due;
            rounds.set_pace(&loose, now);
        }
        assert_eq!(rounds.pace.due, now + 2 * TICK);
    }

    #[derive(Debug)]
    struct Idle;

    impl ProgressDuty for Idle {
        fn round(&mut self, _: u64) -> AfterRound {
            AfterRound::Over
        }

        fn rest(&mut self, ends: RestEnds<'_>, sleep: &mut dyn FnMut(&RestEnds<'_>) -> bool) -> bool {
            sleep(&ends)
        }
    }

    #[test]
    fn a_watcher_that_is_lost_makes_room_for_the_next_one_alone() {
        let (lost, next) = (Arc::<Post>::default(), Arc::<Post>::default());
        let watcher = Watcher::default();
        let seat = || progress_thread::enter(|_| Box::new(Idle)).unwrap();
        watcher.0.lock().post = Some((Arc::clone(&lost), seat()));
        assert!(watcher.lose(&next).is_none() && watcher.lose(&lost).is_some());
        watcher.0.lock().post = Some((Arc::clone(&next), seat()));
        assert!(watcher.lose(&lost).is_none() && watcher.0.lock().post.is_some());
    }
}
