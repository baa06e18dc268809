//! Waiting for calls of MPI that have been started, with a bound, and without wasting processor time.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::over_mpi::agreement::Carrier;
use crate::over_mpi::calls::{PendingCall, Private};
use crate::sync::{AbortFlag, Backoff, Patience, Wait, Waiting, Watch};
use crate::sys::futex;
use crate::types::Rank;

/// One wait for MPI. The waiting loop calls [`Lookout::rest`] each time.
#[derive(Debug)]
pub(super) struct Lookout<'a> {
    backoff: Backoff,
    limit: Limit<'a>,
    words: &'a str,
}

impl<'a> Lookout<'a> {
    /// A wait that begins now. `words` is the error's text if `wait` ends first.
    pub(super) fn new(wait: &'a Wait, words: &'a str) -> Lookout<'a> {
        Lookout { backoff: Backoff::new(Patience::fixed(SPINS, AWAKE)), limit: Limit(wait), words }
    }

    /// One turn: spins, yields, then sleeps a little.
    ///
    /// # Errors
    /// [`crate::error::Kind::Timeout`] with the text when the deadline has passed.
    pub(super) fn rest(&mut self) -> Result<()> {
        if self.backoff.turn(&mut self.limit, &|| self.words.to_owned())?.is_some() {
            futex::nap(self.backoff.nap(LEAST_NAP, MOST_NAP));
        }
        Ok(())
    }
}

/// Ends the wait at its deadline.
#[derive(Debug)]
struct Limit<'a>(&'a Wait);

impl Watch for Limit<'_> {
    fn look(&mut self, waiting_for: &dyn Waiting) -> Result<()> {
        self.0.check(|| waiting_for.words())
    }
}

/// Waits for a call, within the bounds of `wait`.
pub(super) fn finish<B>(mut pending: PendingCall<B>, wait: &Wait, words: &str) -> Result<B> {
    let mut lookout = Lookout::new(wait, words);
    while !pending.test()? {
        lookout.rest()?;
    }
    pending.take()
}

/// A wait of `timeout` that nothing else ends.
pub(super) fn within(timeout: Duration) -> Wait {
    Wait::new(timeout, &AbortFlag::new())
}

/// A private MPI communicator as the carrier of an agreement.
#[derive(Debug)]
pub(super) struct Bounded<'a> {
    /// The communicator.
    pub(super) comm: &'a Private,
    /// The bounds of each wait.
    pub(super) wait: &'a Wait,
    /// The error's text if a wait ends first.
    pub(super) words: &'a str,
}

impl Carrier for Bounded<'_> {
    fn rank(&self) -> Rank {
        self.comm.world().rank
    }

    fn least(&mut self, mine: i64) -> Result<i64> {
        first(finish(self.comm.least(vec![mine])?, self.wait, self.words)?.1)
    }

    fn spread(&mut self, root: Rank, bytes: Vec<u8>) -> Result<Vec<u8>> {
        finish(self.comm.spread(root, bytes)?, self.wait, self.words)
    }
}

/// The only value of a reduction of one value.
pub(super) fn first(values: Vec<i64>) -> Result<i64> {
    values.into_iter().next().ok_or_else(|| Error::internal("a reduction of one value yields none"))
}

/// A poll of MPI takes about a microsecond and progresses its messages: worth a few before yielding the processor.
const SPINS: u32 = 16;
/// How long a wait yields before it sleeps.
const AWAKE: Duration = Duration::from_micros(200);
/// The shortest sleep between two polls.
const LEAST_NAP: Duration = Duration::from_micros(50);
/// The longest sleep: a collective of MPI takes several steps, and MPI progresses only while it is called.
const MOST_NAP: Duration = Duration::from_millis(1);
