//! How those who wait for requests drive.
//!
//! The thread that makes the communicator's calls drives while it waits for a request or asks whether one has ended,
//! and in its blocking calls. Other threads that wait, and the [`watcher`], come as visitors, for a moment each: so the
//! program's thread never waits for long until it has its engine back.

use std::time::Duration;

use crate::comm::engine_home::{EngineHome, HomeTurn};
use crate::comm::job::Job;
use crate::comm::outcome::{self, Beginner, Outcome};
use crate::comm::requests::{Left, Requests};
use crate::comm::{Home, Message, unusable, watcher};
use crate::error::Result;
use crate::exec::{Aside, Asides, Went};
use crate::sync::Stay;
use crate::sync::primitive::{Arc, Ordering};
use crate::sys::{cpu, futex};

impl EngineHome {
    /// Begins a request.
    ///
    /// # Errors
    /// Where the communicator is not ready for calls; that of an abort. What ends the communicator now is the
    /// request's.
    pub(in crate::comm) fn begin(self: &Arc<EngineHome>, job: Job<'static>, beginner: &mut dyn Beginner) -> Result<()> {
        let mut home = self.take_busy_turn()?;
        let is_large = job.bytes() >= URGENT_BYTES;
        if let Home::Busy(requests) = &mut *home {
            requests.prepare(&job).map_err(|error| self.at(error.inside("a request")))?;
        }
        let begun = match &mut *home {
            Home::Busy(requests) => requests.begin(job, beginner),
            _ => Ok(()),
        };
        self.end_begin((home, begun), beginner, is_large);
        Ok(())
    }

    /// [`EngineHome::begin`] of one message.
    ///
    /// # Errors
    /// As [`EngineHome::begin`].
    pub(in crate::comm) fn begin_message(
        self: &Arc<EngineHome>,
        message: &mut Message<'static>,
        beginner: &mut dyn Beginner,
    ) -> Result<()> {
        let mut home = self.take_busy_turn()?;
        let is_large = message.bytes() >= URGENT_BYTES;
        let begun = match &mut *home {
            Home::Busy(requests) => requests.begin_message(message, beginner),
            _ => Ok(()),
        };
        self.end_begin((home, begun), beginner, is_large);
        Ok(())
    }

    /// The engine's home with requests, for one that begins.
    #[inline]
    fn take_busy_turn(self: &Arc<EngineHome>) -> Result<HomeTurn<'_>> {
        self.check_process()?;
        self.watch()?;
        let mut home = self.take_turn()?;
        self.be_busy(&mut home)?;
        self.beat();
        Ok(home)
    }

    /// Ends the communicator where a request has failed as it began; a large one is the watcher's from here on.
    #[inline]
    fn end_begin(&self, begun: (HomeTurn<'_>, Result<()>), beginner: &mut dyn Beginner, is_large: bool) {
        let (mut home, begun) = begun;
        if let Err(error) = begun {
            self.fail(&mut home, Some(error));
            if !beginner.is_asked() {
                // What has no promise is taken for well.
                drop(beginner.promise());
            }
        }
        drop(home);
        if is_large && !beginner.is_told() {
            self.hand_over();
        }
    }

    /// Makes a ready communicator one with requests.
    fn be_busy(self: &Arc<EngineHome>, home: &mut Home) -> Result<()> {
        if !matches!(home, Home::Ready(_) | Home::Busy(_)) {
            if matches!(home, Home::Failed(..)) {
                self.status.abort.set_heard(true);
            }
            return Err(self.at(unusable(home)));
        }
        let ends = match &*home {
            Home::Busy(requests) => requests.check(),
            _ => self.status.abort.check(),
        };
        if let Err(error) = ends {
            self.status.abort.set_heard(true);
            return Err(self.fail(home, Some(error)));
        }
        if let Home::Ready(_) = home
            && let Home::Ready(engine) = std::mem::replace(home, Home::Closed)
        {
            *home = Home::Busy(Box::new(Requests::new(engine)));
        }
        // Relaxed: whoever writes it has a turn.
        if !self.is_outstanding.load(Ordering::Relaxed) {
            self.is_outstanding.store(true, Ordering::Relaxed);
            watcher::note_work();
            let mine: Arc<dyn Aside> = Arc::clone(self) as _;
            Asides::add(Arc::downgrade(&mine));
        }
        Ok(())
    }

    fn watch(self: &Arc<EngineHome>) -> Result<()> {
        // Relaxed: the watcher takes a lock to know it.
        if !self.is_watched.load(Ordering::Relaxed) {
            watcher::watch(self).map_err(|error| self.at(error.inside("a request")))?;
            self.is_watched.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The watcher has nothing more to do here.
    pub(in crate::comm) fn leave_watch(self: &Arc<EngineHome>) {
        if self.is_watched.swap(false, Ordering::Relaxed) {
            watcher::forget(self);
        }
    }

    pub(super) fn beat(&self) {
        // Relaxed: a hint for the watcher, which the program's thread alone writes most of the time.
        self.beat.store(self.beat.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Waits until the request of `outcome` has ended; the communicator's time-out bounds it.
    ///
    /// # Errors
    /// The operation's.
    pub(in crate::comm) fn wait_for(&self, outcome: &Outcome) -> Result<()> {
        self.check_process()?;
        self.await_end(outcome);
        outcome.result().inspect_err(|_| {
            // A mismatch that the program has got need not be told when the communicator is dropped.
            if outcome.has_failed() && !outcome.is_left() {
                self.status.abort.set_heard(true);
            }
        })
    }

    /// Whether the request of `outcome` has ended, well or not. Moves it, and never waits.
    pub(in crate::comm) fn is_finished(&self, outcome: &Outcome) -> bool {
        if !outcome.is_set() && self.birthplace.is_here() {
            self.poll();
        }
        outcome.is_set()
    }

    /// Drives until `outcome` is known. The communicator's deadline bounds that.
    pub(in crate::comm) fn await_end(&self, outcome: &Outcome) {
        outcome.note_wait();
        while !outcome.is_set() {
            match self.home.try_drive() {
                Some(mut home) => {
                    let goes_on = match home.stay() {
                        Stay::Briefly => self.drive_once(&mut home),
                        stay => self.drive(&mut home, outcome, stay),
                    };
                    drop(home);
                    outcome::release();
                    // A call that wants the turn gets it meanwhile.
                    if !goes_on && !outcome.is_set() {
                        futex::nap(ELSEWHERE_NAP);
                    }
                }
                // The watcher leaves. Another thread of the program's moves all requests, this one too.
                None if self.home.is_visited() && !self.is_driven.load(Ordering::Relaxed) => {
                    self.want();
                    cpu::yield_now();
                }
                None => futex::nap(ELSEWHERE_NAP),
            }
        }
    }

    /// Drives, with the engine in hand, until `outcome` is known, or for as long as the thread may stay. False where a
    /// call wants the turn.
    fn drive(&self, home: &mut Home, outcome: &Outcome, stay: Stay) -> bool {
        let is_visit = stay != Stay::AtWill;
        self.is_wanted.store(false, Ordering::Relaxed);
        self.is_driven.store(is_visit, Ordering::Relaxed);
        let mut is_wanted = false;
        while !outcome.is_set() && !is_wanted {
            self.beat();
            let Home::Busy(requests) = home else {
                cpu::yield_now();
                break;
            };
            let driven = match (is_visit, requests.is_queued(outcome)) {
                (true, _) => requests.wait_at_most(LONGEST_VISIT_NAP),
                (false, true) => requests.finish_first(),
                (false, false) => requests.wait(),
            };
            self.settle_turn(home, driven);
            is_wanted = is_visit && self.is_wanted();
        }
        self.is_driven.store(false, Ordering::Relaxed);
        !is_wanted
    }

    /// Ends the communicator where a turn of a thread that only waits has failed.
    fn settle_turn(&self, home: &mut Home, driven: Result<()>) {
        if let Err(error) = driven {
            self.fail(home, Some(error));
            if let Home::Busy(_) = home {
                // Peers are on their way out of this rank's buffers.
                futex::nap(ELSEWHERE_NAP);
            }
        }
    }

    /// Moves what can move now; whether anything has.
    pub(in crate::comm) fn drive_once(&self, home: &mut Home) -> bool {
        let Home::Busy(requests) = home else { return false };
        match requests.poll() {
            Ok(moved) => moved,
            Err(error) => {
                self.fail(home, Some(error));
                !matches!(home, Home::Busy(_))
            }
        }
    }

    /// Moves what can move now, if nobody else does. Never waits.
    pub(in crate::comm) fn poll(&self) {
        if let Some(mut home) = self.home.try_drive() {
            if home.stay() != Stay::Briefly {
                self.beat();
            }
            self.drive_once(&mut home);
            drop(home);
            outcome::release();
        }
    }

    /// Lets the watcher drive from now on: the program's task sleeps.
    pub(in crate::comm) fn hand_over(&self) {
        self.is_urgent.store(true, Ordering::Relaxed);
        watcher::wake();
    }

    /// Drives until all requests have ended, and what they have sent is on its way without this rank's help.
    pub(in crate::comm) fn finish(&self, home: &mut Home) {
        while let Home::Busy(requests) = home {
            self.beat();
            let driven = match requests.left() {
                Left::Nothing => return self.settle(home),
                Left::Unsent => requests.drain(),
                Left::Messages => requests.wait(),
                Left::Collectives => requests.finish_first(),
            };
            self.settle_turn(home, driven);
        }
    }

    /// Drives until no collective of a request is left, for a call that comes behind them. Messages go on.
    ///
    /// # Errors
    /// That of a collective, which has ended the communicator.
    pub(in crate::comm) fn finish_collectives(&self, home: &mut Home) -> Result<()> {
        while let Home::Busy(requests) = home
            && requests.has_queued()
        {
            self.beat();
            if let Err(error) = requests.finish_first() {
                self.status.abort.set_heard(true);
                return Err(self.fail(home, Some(error)));
            }
        }
        self.settle(home);
        Ok(())
    }

    // For the watcher.

    /// Whether something is outstanding that the program has not driven since `last`, which it updates.
    pub(in crate::comm) fn is_unattended(&self, last: &mut u64) -> bool {
        let beat = self.beat.load(Ordering::Relaxed);
        let is_urgent = self.is_urgent.load(Ordering::Relaxed);
        std::mem::replace(last, beat) == beat || is_urgent
    }

    /// Whether the program waits, or has waited, for the end of the visit.
    pub(in crate::comm) fn is_wanted(&self) -> bool {
        self.is_wanted.load(Ordering::Relaxed)
    }

    /// Whether the watcher has to come back.
    pub(in crate::comm) fn is_outstanding(&self) -> bool {
        self.is_outstanding.load(Ordering::Relaxed)
    }

    /// A visit begins, of a thread that has the turn.
    pub(in crate::comm) fn note_visit(&self) {
        self.is_urgent.store(false, Ordering::Relaxed);
        // Left by a thread that has found its request ended; one that still waits says so again.
        self.is_wanted.store(false, Ordering::Relaxed);
    }

    /// Whether something is left of `home`, which the calling thread has: else nobody has to come back.
    pub(in crate::comm) fn is_left(&self, home: &mut Home) -> bool {
        let is_left = under_way(home).is_some();
        if !is_left {
            self.is_outstanding.store(false, Ordering::Relaxed);
        }
        is_left
    }
}

/// Its requests go on in waits of the thread that has begun them for other communicators.
impl Aside for EngineHome {
    fn go_on(&self) -> Went {
        if !self.is_outstanding() || !self.birthplace.is_here() {
            return Went::Over;
        }
        let Some(mut home) = self.home.try_drive() else { return Went::Taken };
        let moved = self.drive_once(&mut home);
        let is_over = !self.is_left(&mut home);
        if !is_over {
            self.beat();
        }
        drop(home);
        // This thread has another engine in hand.
        watcher::release(outcome::take());
        match (is_over, moved) {
            (true, _) => Went::Over,
            (false, true) => Went::Moved,
            (false, false) => Went::Idle,
        }
    }

    fn is_free(&self) -> bool {
        self.is_outstanding() && !self.home.is_taken()
    }
}

/// The requests that have not ended, or have not sent all.
fn under_way(home: &mut Home) -> Option<&mut Requests> {
    let Home::Busy(requests) = home else { return None };
    if requests.is_idle() { None } else { Some(requests) }
}

/// From here on a request that does not end at once is the watcher's from the start: its wake is a small part of it.
const URGENT_BYTES: usize = 256 << 10;
/// How long a thread sleeps that waits for a request while another thread has the communicator.
const ELSEWHERE_NAP: Duration = Duration::from_micros(50);
/// How long such a thread sleeps with the engine in hand, where calls of others have to wait for its end.
const LONGEST_VISIT_NAP: Duration = Duration::from_millis(1);
