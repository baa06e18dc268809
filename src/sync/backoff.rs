//! How a wait goes from spinning over yielding to sleeping.

use std::cell::Cell;
use std::mem;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::sync::Waiting;
use crate::sys::{clock, cpu};

/// How long the waits of a communicator spin and stay awake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// How often a wait looks at the flag before it yields the processor. It is learnt: a wait that ends while spinning
    /// raises it; a wait that ends only after yielding lowers it, because then the two ranks share a processor.
    pub spins: u32,
    /// The upper bound of `spins`.
    most_spins: u32,
    /// How long a wait stays awake before it parks.
    pub awake: Duration,
    /// How many waits in a row have ended just after yielding.
    shared: u32,
    /// Ranks of the host for each processor.
    crowd: u32,
    /// Ranks of the host; 0 for a patience that does not follow the processors.
    ranks: u32,
    /// Whether it is for waits for one rank alone.
    for_one: bool,
    /// Whether waits have learnt last that the other rank runs when this one yields.
    shares: bool,
    /// How many waits have yielded since it last looked how many processors there are.
    unlooked: u32,
    /// See [`Patience::found_other_processors`].
    changed: bool,
}

impl Patience {
    /// For `ranks` ranks on this host; waits stay awake for at most `awake`. With more ranks than processors a wait
    /// yields at once, because a spinning rank would keep the one it waits for from running. It follows the processors
    /// that the thread may use: they may become fewer or more while a job runs.
    pub fn new(ranks: usize, awake: Duration) -> Patience {
        let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
        let mut patience = Patience { ranks, crowd: 0, ..Patience::fixed(SPINS, awake) };
        patience.fit(cpu::allowed());
        patience
    }

    /// For waits for one rank alone, as those of a message. Where ranks share processors, that rank often runs on
    /// another one and answers soon, and a yield costs more than a few looks: of all ranks of a collective, some do not
    /// run. Where each rank has a processor, all waits are alike.
    #[must_use]
    pub fn for_one_rank(self) -> Patience {
        let spins = if self.is_crowded() { ONE_RANK_SPINS } else { self.most_spins };
        Patience { spins, most_spins: spins, for_one: true, ..self }
    }

    /// A patience that does not learn.
    pub const fn fixed(spins: u32, awake: Duration) -> Patience {
        let (shared, crowd, ranks, for_one, shares, unlooked, changed) = (0, 1, 0, false, false, 0, false);
        Patience { spins, most_spins: spins, awake, shared, crowd, ranks, for_one, shares, unlooked, changed }
    }

    /// Decides by the number of processors: as at the start of a job where it has changed, and nothing where it has
    /// not. Where there are enough again the first wait goes elsewhere: see [`Patience::tries_elsewhere`].
    fn fit(&mut self, cores: usize) {
        let ranks = self.ranks as usize;
        let crowd = u32::try_from(ranks.div_ceil(cores.max(1))).unwrap_or(u32::MAX);
        if ranks == 0 || crowd == self.crowd {
            return;
        }
        let was_crowded = self.is_crowded();
        // Before the first decision there is nothing that could change.
        self.changed = self.crowd > 0;
        self.crowd = crowd;
        self.shared = 0;
        self.shares = false;
        self.most_spins = match (self.is_crowded(), self.for_one) {
            (true, false) => LEAST_SPINS,
            (true, true) => ONE_RANK_SPINS,
            (false, _) => SPINS,
        };
        self.spins = self.most_spins;
        // Ranks that shared a processor are still on it, and looking keeps them there: the next wait sleeps at once.
        if was_crowded && !self.is_crowded() {
            self.spins = LEAST_SPINS;
            self.shared = SHARED_WAITS - 1;
        }
    }

    /// Looks now and then whether this thread may use as many processors as before, after waits that have yielded:
    /// where processors were taken away waits yield, and where they have come back, waits that yield take too long.
    ///
    /// Fewer processors make a crowd only where waits have learnt that a peer runs when this rank yields: a thread that
    /// was bound to a processor of its own shares it with nobody.
    pub fn follow_processors(&mut self, wait: &Backoff) {
        if wait.started.is_none() || self.ranks == 0 {
            return;
        }
        self.unlooked += 1;
        if self.unlooked >= LOOK_AT_PROCESSORS {
            self.unlooked = 0;
            if self.is_crowded() || self.shares {
                self.fit(cpu::allowed());
            }
        }
    }

    /// Whether the processors have become more or fewer since it was last asked: what was measured before is not what
    /// these take.
    pub fn found_other_processors(&mut self) -> bool {
        mem::take(&mut self.changed)
    }

    /// One that has just found other processors.
    #[cfg(all(test, not(loom)))]
    pub fn on_other_processors() -> Patience {
        Patience { changed: true, ..Patience::fixed(1, Duration::ZERO) }
    }

    /// The same patience with upper bounds for spinning and staying awake.
    #[must_use]
    pub fn no_more_than(mut self, spins: u32, awake: Duration) -> Patience {
        self.spins = self.spins.min(spins);
        self.awake = self.awake.min(awake);
        self
    }

    /// To be called before a wait. Where a rank has slept or has woken another, the scheduler has often put the woken
    /// one on its waker's processor: then whoever spins keeps the other from running. So the next waits yield at once,
    /// until that proves to be in vain.
    pub fn heed_sleepers(&mut self) {
        if has_met_sleeper() {
            self.spins = LEAST_SPINS;
        }
    }

    /// Whether the next wait sleeps at once. Two spinning ranks that landed on one processor can stay there, because
    /// yielding only swaps them; after a sleep, the scheduler places the woken rank on an idle processor if there is
    /// one.
    fn tries_elsewhere(self) -> bool {
        self.shared % SHARED_WAITS == SHARED_WAITS - 1
    }

    /// Whether waits have learnt last that the other rank runs when this one yields.
    #[inline]
    pub fn shares_processor(self) -> bool {
        self.shares
    }

    /// Whether there are more ranks than processors.
    pub fn is_crowded(self) -> bool {
        self.crowd > 1
    }

    /// How many yields that let nobody run are tried before a sleep: the more ranks there are on a processor, the
    /// less likely it is that all others sleep. Of a few ranks the scheduler soon runs the others anyway, and a sleep
    /// costs more.
    fn vain_yields(self) -> u32 {
        (CROWDED_YIELDS / self.crowd.div_ceil(FEW_RANKS).max(1)).max(LEAST_VAIN_YIELDS)
    }

    /// Learns from a wait that has succeeded. One whose thread did other things teaches nothing. What was there at the
    /// first look was not waited for, and teaches nothing either: it says neither that looking is worth it nor that the
    /// other rank has a processor of its own.
    pub fn learn(&mut self, wait: &Backoff) {
        if wait.turns == 0 || wait.only_looks() {
            return;
        }
        let spins = wait.patience.spins;
        let spun_out = wait.turns > spins;
        let soon = spun_out && wait.turns <= spins.saturating_add(SOON_YIELDS);
        // The processor was yielded to nobody: the other rank has one of its own.
        let took = |yielded| clock::now().duration_since(yielded);
        let vain =
            soon && self.spins < self.most_spins && wait.yielded.is_some_and(|yielded| took(yielded) < VAIN_YIELD);
        self.shared = if soon { self.shared.wrapping_add(1) } else { 0 };
        if !spun_out || vain {
            self.spins = self.spins.saturating_mul(2).min(self.most_spins);
            self.shares = false;
        } else if soon {
            // With the most looks it is not known whether the yield was in vain.
            self.shares |= self.spins < self.most_spins;
            self.spins = (self.spins.min(spins) / 2).max(LEAST_SPINS);
        }
        self.follow_processors(wait);
    }
}

thread_local! {
    /// Whether this thread has slept on a flag, or has woken one that did, since it last asked.
    static HAS_MET_SLEEPER: Cell<bool> = const { Cell::new(false) };
}

/// Not inlined, and neither is any other use of a variable of a thread that a wait makes: a call of a request may go on
/// on another thread in the midst of its wait, and a compiler that inlines keeps the address of the variable over that.
#[inline(never)]
fn has_met_sleeper() -> bool {
    HAS_MET_SLEEPER.take()
}

/// Notes for the thread's next wait that a rank has slept on a flag: this one, or one that it has woken.
#[inline(never)]
pub(super) fn note_sleeper() {
    HAS_MET_SLEEPER.set(true);
}

/// The checks of a wait before each sleep.
pub trait Watch {
    /// Fails if the awaited event cannot come any more: abort, deadline, a dead or disagreeing peer. `waiting_for`
    /// describes the event, as in "rank 3 (data of step 2)".
    ///
    /// # Errors
    /// The reason.
    fn look(&mut self, waiting_for: &dyn Waiting) -> Result<()>;
}

/// The state of one wait.
#[derive(Debug)]
pub struct Backoff {
    patience: Patience,
    turns: u32,
    /// At which turn spinning stops, or looks at the clock.
    stop: u32,
    /// When spinning first looked at the clock.
    spun_since: Option<Instant>,
    started: Option<Instant>,
    looked: Option<Instant>,
    /// The time since it started, as of the last turn.
    waited: Duration,
    /// When it last yielded, and how often a yield came back so soon that nobody else can have run.
    yielded: Option<Instant>,
    vain_yields: u32,
}

impl Backoff {
    /// A wait that begins now.
    pub fn new(patience: Patience) -> Backoff {
        Backoff {
            patience,
            turns: 0,
            stop: patience.spins.min(LOOKS_APART),
            spun_since: None,
            started: None,
            looked: None,
            waited: Duration::ZERO,
            yielded: None,
            vain_yields: 0,
        }
    }

    /// Starts again, because something has progressed.
    pub fn reset(&mut self) {
        self.turns = 0;
        self.stop = self.patience.spins.min(LOOKS_APART);
        self.spun_since = None;
        self.started = None;
        self.waited = Duration::ZERO;
        self.yielded = None;
        self.vain_yields = 0;
    }

    /// When the wait began, unless it has only spun so far.
    pub fn started(&self) -> Option<Instant> {
        self.started
    }

    /// Lets the next turn that yields or sleeps look at what could end the wait, however soon that is.
    pub fn look_soon(&mut self) {
        self.looked = None;
    }

    /// From now on each turn looks at what could end the wait, and none spins or yields: its thread does other things
    /// between them.
    pub fn only_look(&mut self) {
        if self.patience.awake > Duration::ZERO {
            self.patience = Patience::fixed(0, Duration::ZERO);
            self.stop = 0;
            self.look_soon();
        }
    }

    fn only_looks(&self) -> bool {
        self.patience == Patience::fixed(0, Duration::ZERO)
    }

    /// How long to sleep if nothing wakes the sleeper: the longer it has waited the longer, between `least` and `most`.
    /// So an event is noticed with a small relative delay, and a long wait costs almost no processor time.
    pub fn nap(&self, least: Duration, most: Duration) -> Duration {
        (self.waited / NAP_SHARE).clamp(least, most)
    }

    /// Spins once where the wait does not do more yet; otherwise nothing. Most turns of short waits are these.
    #[inline]
    pub fn spin(&mut self) -> bool {
        if self.turns >= self.stop && !self.spins_on() {
            return false;
        }
        self.turns += 1;
        cpu::relax();
        true
    }

    /// Where spinning stops for a moment: whether it goes on. A look takes a few nanoseconds where there is one flag to
    /// look at, and a microsecond where there are many tasks; so the time counts, too.
    #[cold]
    fn spins_on(&mut self) -> bool {
        if self.turns >= self.patience.spins {
            return false;
        }
        let now = clock::now();
        if now.duration_since(*self.spun_since.get_or_insert(now)) >= SPIN_TIME {
            self.patience.spins = self.turns;
            return false;
        }
        self.stop = self.patience.spins.min(self.turns + LOOKS_APART);
        true
    }

    /// One turn of waiting. Spins or yields and returns `None`; once the wait has been awake long enough, returns how
    /// long to park.
    ///
    /// # Errors
    /// The error of `watch`.
    pub fn turn(&mut self, watch: &mut dyn Watch, waiting_for: &dyn Waiting) -> Result<Option<Duration>> {
        if self.spin() {
            return Ok(None);
        }
        self.turns += 1;
        let now = clock::now();
        let started = *self.started.get_or_insert(now);
        self.waited = now.duration_since(started);
        // With more ranks than processors only sleep frees the processor: a fair scheduler lets a yielding rank
        // continue until the others have had as much time. With enough processors a rank stays runnable: otherwise two
        // that landed on one processor would stay there.
        // Where each rank has a session or a group of processes of its own, the scheduler shares the processor among
        // these, and yielding lets nobody run: such a yield takes as long as any system call.
        if self.yielded.take().is_some_and(|yielded| now.duration_since(yielded) < VAIN_YIELD) {
            self.vain_yields += 1;
        }
        let yielded = self.turns > self.patience.spins.saturating_add(CROWDED_YIELDS)
            || self.vain_yields >= self.patience.vain_yields();
        let tired = (self.patience.is_crowded() && yielded)
            || self.patience.tries_elsewhere()
            || self.waited >= self.patience.awake;
        let due = match self.looked {
            Some(looked) => now.duration_since(looked) >= LOOK_EVERY,
            None => tired || self.waited >= LOOK_EVERY,
        };
        if due {
            self.looked = Some(now);
            watch.look(waiting_for)?;
        }
        if tired {
            return Ok(Some(PARK_SLICE));
        }
        self.yielded = Some(now);
        cpu::yield_now();
        Ok(None)
    }
}

/// About 20 µs of looking at a flag on a current machine: longer than any message in flight needs.
const SPINS: u32 = 2000;
/// The longest that a wait spins, where a look takes longer: with few tasks some 30 ns, so that all looks fit in.
/// A rank that copies a piece of 256 KiB, which takes 20 µs, is not worth a yield yet (bench/NOTES.md).
const SPIN_TIME: Duration = Duration::from_micros(60);
/// Looks between two looks at the clock, which takes as long as a few of them.
const LOOKS_APART: u32 = 64;
/// With more ranks than processors: enough for a message that has already arrived.
const LEAST_SPINS: u32 = 16;
/// With more ranks than processors: enough for a rank that runs and answers at once.
const ONE_RANK_SPINS: u32 = 128;
/// A peer that answers within this many turns after the yield was waiting for the processor; a slower one is late for
/// other reasons.
const SOON_YIELDS: u32 = 4;
/// After how many waits that have yielded the number of processors is looked at: a system call, a third of a
/// microsecond, for that many waits of a microsecond at least each.
const LOOK_AT_PROCESSORS: u32 = 8;
/// On a processor that seems shared, one in this many waits sleeps at once.
const SHARED_WAITS: u32 = 64;
/// How often a rank yields before it sleeps if ranks share processors: enough for each of them to run a few times.
const CROWDED_YIELDS: u32 = 24;
/// A yield that takes less than this has switched to no other process and back.
const VAIN_YIELD: Duration = Duration::from_nanos(900);
/// Ranks on a processor that make no crowd of it.
const FEW_RANKS: u32 = 4;
/// How many such yields a wait tries at least.
const LEAST_VAIN_YIELDS: u32 = 2;
/// A sleep that nothing wakes lasts this fraction of the wait so far.
const NAP_SHARE: u32 = 8;
/// The interval at which a wait checks the deadline and the peers.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The longest sleep between two checks.
const PARK_SLICE: Duration = Duration::from_millis(20);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::sys::numa;

    struct Nothing;

    impl Watch for Nothing {
        fn look(&mut self, _: &dyn Waiting) -> Result<()> {
            Ok(())
        }
    }

    /// A wait of so many turns that goes well.
    fn waited(patience: Patience, turns: u32) -> Backoff {
        let mut wait = Backoff::new(patience);
        for _ in 0..turns {
            wait.turn(&mut Nothing, &String::new).unwrap();
        }
        wait
    }

    /// A wait that has yielded once, and goes well.
    fn yielded_once(patience: Patience) -> Backoff {
        let mut wait = Backoff::new(patience);
        while wait.started().is_none() {
            wait.turn(&mut Nothing, &String::new).unwrap();
        }
        wait
    }

    #[test]
    fn a_wait_beside_a_sleeper_yields_at_once_and_once_only() {
        let mut patience = Patience::fixed(SPINS, Duration::from_secs(60));
        patience.heed_sleepers();
        assert_eq!(patience.spins, SPINS, "nobody has slept");
        note_sleeper();
        patience.heed_sleepers();
        assert_eq!(patience.spins, LEAST_SPINS);
        // Waits that end while spinning bring the patience back, and no other sleeper has been met.
        while patience.spins < SPINS {
            let before = patience.spins;
            patience.learn(&waited(patience, 1));
            patience.heed_sleepers();
            assert!(patience.spins > before, "{} spins", patience.spins);
        }
    }

    #[test]
    fn a_wait_for_one_rank_spins_longer_where_ranks_share_processors() {
        let crowded = Patience { crowd: 2, ..Patience::fixed(LEAST_SPINS, Duration::from_secs(60)) };
        let mut one = crowded.for_one_rank();
        assert_eq!((crowded.spins, one.spins), (LEAST_SPINS, ONE_RANK_SPINS));
        // It still sleeps as soon as any wait of a crowd does.
        assert!(one.is_crowded() && one.awake == crowded.awake);
        // A rank that answers just after a yield had this processor: looking was in vain.
        let mut wait = yielded_once(one);
        wait.yielded = wait.yielded.and_then(|yielded| yielded.checked_sub(Duration::from_millis(1)));
        one.learn(&wait);
        assert_eq!(one.spins, ONE_RANK_SPINS / 2);
        let alone = Patience::fixed(SPINS, Duration::from_secs(60));
        assert_eq!(alone.for_one_rank().spins, SPINS, "each rank has a processor");
    }

    /// Regression: the first looks of a wait in passing spun, so that its deadline began late, and what it took to end
    /// such a wait taught the waits of calls to yield.
    #[test]
    fn a_wait_in_passing_looks_from_the_first_turn_on_and_teaches_nothing() {
        let mut patience = Patience::fixed(SPINS, Duration::from_secs(60));
        let mut wait = Backoff::new(patience);
        wait.only_look();
        assert!(!wait.spin() && wait.turn(&mut Nothing, &String::new).unwrap().is_some());
        assert!(wait.started().is_some());
        let before = patience;
        patience.learn(&wait);
        assert_eq!(patience, before);
    }

    /// Regression: whoever drives steps that mostly find their data there learnt after each of them to look for longer,
    /// and unlearnt nothing, so that beside a busy process all waits looked 2000 times before they yielded.
    #[test]
    fn a_wait_of_no_turn_teaches_nothing() {
        let mut patience =
            Patience { spins: LEAST_SPINS, shared: 7, ..Patience::fixed(SPINS, Duration::from_secs(60)) };
        let before = patience;
        patience.learn(&waited(patience, 0));
        assert_eq!(patience, before);
        patience.learn(&waited(patience, 1));
        assert_eq!((patience.spins, patience.shared), (2 * LEAST_SPINS, 0), "a look that was worth it");
    }

    /// Regression: where a look took a microsecond, as with many tasks, 2000 of them took longer than a wait stays
    /// awake.
    #[test]
    fn looks_are_bounded_by_time_too() {
        let mut wait = Backoff::new(Patience::fixed(u32::MAX, Duration::from_secs(60)));
        let began = clock::now();
        // Without the bound this would go on for a minute.
        while wait.spin() {}
        assert!(began.elapsed() >= SPIN_TIME && wait.turns < u32::MAX);
        assert_eq!(wait.patience.spins, wait.turns, "what follows counts from here");
        assert_eq!(wait.turn(&mut Nothing, &String::new).unwrap(), None);
        assert!(wait.started().is_some(), "it yields");
        // So does one that learns: it halves what it has done, not what it might have done.
        let mut patience = Patience { spins: u32::MAX, ..Patience::fixed(u32::MAX, Duration::from_secs(60)) };
        wait.yielded = wait.yielded.and_then(|yielded| yielded.checked_sub(Duration::from_millis(1)));
        patience.learn(&wait);
        assert_eq!(patience.spins, (wait.patience.spins / 2).max(LEAST_SPINS));
    }

    #[test]
    fn other_processors_are_other_decisions_and_the_same_ones_are_none() {
        let of = |ranks: u32, cores: usize, for_one: bool| {
            let unfit = Patience { ranks, for_one, crowd: 0, ..Patience::fixed(7, Duration::from_secs(60)) };
            let mut fit = unfit;
            fit.fit(cores);
            fit
        };
        for (ranks, fewer, more) in [(2, 1, 2), (2, 1, 64), (9, 8, 9), (64, 4, 128), (4, 0, 4)] {
            for (for_one, shared_spins) in [(false, LEAST_SPINS), (true, ONE_RANK_SPINS)] {
                let mut patience = of(ranks, more, for_one);
                assert_eq!((patience.spins, patience.is_crowded()), (SPINS, false));
                // What was learnt stays while nothing changes.
                patience.spins = 100;
                patience.fit(more);
                assert_eq!(patience.spins, 100);
                assert!(!patience.found_other_processors(), "nothing has changed");
                patience.fit(fewer);
                assert!(patience.found_other_processors() && !patience.found_other_processors());
                assert_eq!(patience, of(ranks, fewer, for_one), "{ranks} ranks, {fewer} processors");
                assert_eq!((patience.spins, patience.most_spins), (shared_spins, shared_spins));
                patience.fit(more);
                assert_eq!((patience.spins, patience.tries_elsewhere()), (LEAST_SPINS, true), "{ranks} ranks");
                assert!(patience.found_other_processors());
                let settled = Patience { spins: SPINS, shared: 0, ..patience };
                assert_eq!(settled, of(ranks, more, for_one), "{ranks} ranks, {more} processors");
            }
        }
        let mut fixed = Patience::fixed(7, Duration::ZERO);
        fixed.fit(1);
        assert_eq!(fixed, Patience::fixed(7, Duration::ZERO));
    }

    /// A wait that has yielded to a rank on this processor, which has run for some time.
    fn waited_for_a_neighbour(patience: Patience) -> Backoff {
        let mut wait = yielded_once(patience);
        wait.yielded = wait.yielded.and_then(|yielded| yielded.checked_sub(Duration::from_millis(1)));
        wait
    }

    /// Regression: what a job has decided by the processors that it had at its start stayed for ever.
    #[test]
    fn processors_taken_away_and_given_back_are_noticed_within_twenty_waits() {
        let all = numa::allowed_processors(Path::new("/"));
        if all.len() < 2 {
            return println!("skipped: one processor cannot be taken away");
        }
        let awake = Duration::from_secs(60);
        let mut patience = Patience::new(2, awake);
        for held in [&all[..1], &all[..], &all[..1], &all[..]] {
            cpu::bind_to_all(held).unwrap();
            let fresh = Patience::new(2, awake);
            for _ in 0..20 {
                patience.learn(&waited_for_a_neighbour(patience));
            }
            let decided = |patience: Patience| (patience.most_spins, patience.is_crowded());
            assert_eq!(decided(patience), decided(fresh), "{held:?}");
        }
        // A thread that binds itself to a processor, on which no peer runs: its yields let nobody run.
        let mut alone = Patience { spins: SPINS / 2, ..Patience::new(2, awake) };
        cpu::bind_to_all(&all[..1]).unwrap();
        for _ in 0..20 {
            let mut wait = yielded_once(alone);
            wait.yielded = Some(clock::now() + Duration::from_secs(60));
            alone.learn(&wait);
        }
        assert!(!alone.is_crowded() && alone.spins > LEAST_SPINS, "{alone:?}");
        // Nor is it shared because the other rank came late, and this one slept.
        for _ in 0..20 {
            note_sleeper();
            alone.heed_sleepers();
            alone.learn(&waited(alone, SPINS + SOON_YIELDS + 1));
        }
        assert!(!alone.is_crowded(), "{alone:?}");
        cpu::bind_to_all(&all).unwrap();
    }

    #[test]
    fn yields_to_nobody_bring_the_patience_back_and_others_do_not() {
        let mut patience = Patience { spins: LEAST_SPINS, ..Patience::fixed(SPINS, Duration::from_secs(60)) };
        let mut wait = yielded_once(patience);
        // As if the yield had begun just now: it has taken no time.
        wait.yielded = Some(clock::now() + Duration::from_secs(60));
        patience.learn(&wait);
        assert_eq!(patience.spins, 2 * LEAST_SPINS);
        let mut wait = yielded_once(patience);
        wait.yielded = wait.yielded.and_then(|yielded| yielded.checked_sub(Duration::from_millis(1)));
        patience.learn(&wait);
        assert_eq!(patience.spins, LEAST_SPINS, "somebody has run meanwhile");
    }
}
