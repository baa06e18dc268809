//! How a wait gets from spinning to sleeping.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::sys::{clock, cpu};

/// How patient a communicator's waits are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// Looks at the flag before the processor is offered to others. Learnt: what comes while spinning makes waits spin longer, what
    /// comes only after the processor was given away makes them spin less, for then the two ranks share a processor.
    pub spins: u32,
    /// The most that `spins` may become.
    most_spins: u32,
    /// How long a wait stays awake before it parks.
    pub awake: Duration,
    /// Waits in a row that ended as soon as the processor was given away.
    shared: u32,
}

impl Patience {
    /// For `ranks` ranks on this host that may stay awake for at most `awake`. With more ranks than processors a spinning rank keeps the
    /// one it waits for from running, so it yields at once.
    pub fn new(ranks: usize, awake: Duration) -> Patience {
        let crowded = ranks > cpu::allowed();
        let spins = if crowded { LEAST_SPINS } else { SPINS };
        Patience { spins, most_spins: spins, awake, shared: 0 }
    }

    /// A patience that does not learn.
    pub const fn fixed(spins: u32, awake: Duration) -> Patience {
        Patience { spins, most_spins: spins, awake, shared: 0 }
    }

    /// The same, spinning and staying awake no longer than this.
    #[must_use]
    pub fn no_more_than(mut self, spins: u32, awake: Duration) -> Patience {
        self.spins = self.spins.min(spins);
        self.awake = self.awake.min(awake);
        self
    }

    /// Whether the next wait sleeps at once: two ranks that share a processor by chance hand it to each other for long, while one that is
    /// woken is placed anew, on an idle one if there is any.
    fn tries_elsewhere(self) -> bool {
        self.shared % SHARED_WAITS == SHARED_WAITS - 1
    }

    /// Whether there are more ranks than processors.
    fn is_crowded(self) -> bool {
        self.most_spins <= LEAST_SPINS
    }

    /// Learns from a wait that has ended well.
    pub fn learn(&mut self, wait: &Backoff) {
        let spun_out = wait.turns > self.spins;
        let soon = wait.turns <= self.spins.saturating_add(SOON_YIELDS);
        self.shared = if spun_out && soon { self.shared.wrapping_add(1) } else { 0 };
        if !spun_out {
            self.spins = self.spins.saturating_mul(2).min(self.most_spins);
        } else if soon {
            self.spins = (self.spins / 2).max(LEAST_SPINS);
        }
    }
}

/// What a wait looks at whenever it is about to sleep.
pub trait Watch {
    /// Ends the wait where nothing can come any more: abort, deadline, a dead or disagreeing peer. `waiting_for` says what is waited for:
    /// "rank 3 (data of step 2)".
    ///
    /// # Errors
    /// Why the wait has no sense any more.
    fn look(&mut self, waiting_for: &dyn Fn() -> String) -> Result<()>;
}

/// The state of one wait.
#[derive(Debug)]
pub struct Backoff {
    patience: Patience,
    turns: u32,
    started: Option<Instant>,
    looked: Option<Instant>,
    /// Since it started, as of the last turn.
    waited: Duration,
}

impl Backoff {
    /// A wait that has just begun.
    pub fn new(patience: Patience) -> Backoff {
        Backoff { patience, turns: 0, started: None, looked: None, waited: Duration::ZERO }
    }

    /// Starts again: something moved.
    pub fn reset(&mut self) {
        self.turns = 0;
        self.started = None;
        self.waited = Duration::ZERO;
    }

    /// When it began, unless it has only spun yet.
    pub fn started(&self) -> Option<Instant> {
        self.started
    }

    /// How long to sleep where nothing wakes the sleeper: from `least`, the longer it has waited the longer, up to `most`. What comes is
    /// late by a small share of the wait, and a long wait costs next to no processor.
    pub fn nap(&self, least: Duration, most: Duration) -> Duration {
        (self.waited / NAP_SHARE).clamp(least, most)
    }

    /// One turn of waiting. Spins or yields and returns `None`; once the wait has been awake long enough returns how long to park.
    ///
    /// # Errors
    /// What `watch` found.
    pub fn turn(&mut self, watch: &mut dyn Watch, waiting_for: &dyn Fn() -> String) -> Result<Option<Duration>> {
        self.turns += 1;
        if self.turns <= self.patience.spins {
            cpu::relax();
            return Ok(None);
        }
        let now = clock::now();
        let started = *self.started.get_or_insert(now);
        self.waited = now.duration_since(started);
        // With more ranks than processors only sleep gives the time away: a fair scheduler lets a rank that yields go on until the others
        // have had as much. With enough processors a rank stays runnable, or two that happened on one would be left there.
        let yielded = self.turns > self.patience.spins.saturating_add(CROWDED_YIELDS);
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
        cpu::yield_now();
        Ok(None)
    }
}

/// About 20 µs of looking on a machine of today: longer than any message that is under way.
const SPINS: u32 = 2000;
/// With more ranks than processors: enough for a message that has already come.
const LEAST_SPINS: u32 = 16;
/// A peer that answers after so few turns on the processor was waiting for it; one that takes longer is late for its own reasons.
const SOON_YIELDS: u32 = 4;
/// Every so many waits on what seems a shared processor, one sleeps.
const SHARED_WAITS: u32 = 64;
/// How often a rank yields before it sleeps where ranks share processors: once round them, a few times.
const CROWDED_YIELDS: u32 = 24;
/// A sleep that nothing ends is this part of the wait so far.
const NAP_SHARE: u32 = 8;
/// How often a wait looks at deadline and peers.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The longest sleep between two looks.
const PARK_SLICE: Duration = Duration::from_millis(20);
