//! From an MPI communicator to an rsccl communicator.
//!
//! 1. Each rank looks at what it was given: MPI's state, the communicator, its configuration.
//! 2. A private duplicate is made. From here on ranks end in agreement: each goes on, or all have the same error.
//! 3. They agree on their configurations; rank 0 makes the unique id and MPI carries it to all.
//! 4. Each joins on a thread of its own, while the caller's thread moves MPI and listens for the [`Alarm`].
//! 5. They agree on the outcome; the duplicate is freed.

use std::time::Duration;

use ::mpi::ffi::MPI_Comm;
use ::mpi::raw::AsRaw;
use ::mpi::topology::{Communicator as _, SimpleCommunicator};

use crate::bootstrap::UniqueId;
use crate::comm::{Communicator, Preparation, warn_of_lone_world};
use crate::config::{Config, Environment};
use crate::error::{Error, Kind, Result};
use crate::mpi::agreement::{NO_FAILURE, agree, conclude, vote};
use crate::mpi::alarm::Alarm;
use crate::mpi::calls::{Private, Theirs};
use crate::mpi::waiting::{Bounded, Lookout, finish, first, within};
use crate::sync::Wait;
use crate::types::Rank;

/// The communicator of the ranks of `mpi`, with the same ranks. Collective: every rank of `mpi` calls it.
///
/// It works on any intracommunicator: the world, a split, a duplicate, one with its ranks in another order. Nothing of MPI
/// is kept: the rsccl communicator lives on when `mpi` is freed, and may be dropped after `MPI_Finalize`. The ranks talk on a
/// private duplicate meanwhile, so no message of the program can meet theirs.
///
/// The environment is laid over `config` ([`Config::resolve`]). Where that says non-blocking, this call blocks all the same:
/// that all ranks have joined, or none, takes all ranks.
///
/// # Errors
/// Every rank gets an error where one rank does, and it names that rank. The deadline of init bounds the wait for all ranks to come, and
/// again, with a few seconds more, the wait for all to have joined.
///
/// - [`Kind::InvalidUsage`] where MPI is not initialised, is finalised, or may not be called by this thread;
///   [`Kind::InvalidArgument`] for `MPI_COMM_NULL` and an intercommunicator. A rank that gets one of these alone has not
///   taken part: the others time out.
/// - [`Kind::Timeout`] where not all ranks of `mpi` make the call. MPI cannot take back a collective that has begun, so the job
///   should end then, for instance by [`super::abort`].
/// - What [`Communicator::init`] gives: [`Kind::InvalidArgument`] for a bad setting of one rank, [`Kind::Mismatch`] for settings
///   that differ, and so on.
/// - [`Kind::System`] with MPI's own words where a call of MPI fails.
///
/// # Examples
/// ```no_run
/// use rsccl::{Config, ReduceOp};
///
/// // mpirun -n 4 target/debug/this-program
/// let universe = mpi::initialize().expect("MPI is initialised once");
/// let comm = rsccl::mpi::communicator(&universe.world(), &Config::default())?;
/// let mut sum = [comm.rank()];
/// comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn communicator(mpi: &impl AsRaw<Raw = MPI_Comm>, config: &Config) -> Result<Communicator> {
    let theirs = Theirs::new(mpi).map_err(|error| error.during("init"))?;
    let rank = theirs.world().rank;
    if theirs.world().size == 1 && SimpleCommunicator::world().size() == 1 {
        warn_of_lone_world();
    }
    join(&theirs, config).map_err(|error| error.during("init").at(rank))
}

fn join(theirs: &Theirs<'_>, config: &Config) -> Result<Communicator> {
    let prepared = Preparation::new(config);
    // A rank whose settings are wrong waits as long as it was told to: it has bad news to spread.
    let timeout = match &prepared {
        Ok(prepared) => prepared.init_timeout(),
        Err(_) => config.clone().init_timeout_alone(&Environment::capture()),
    };
    let wait = within(timeout);
    let words = format!(
        "not all {} ranks of the MPI communicator called rsccl::mpi::communicator within {} s; MPI cannot say which, nor \
         take back what it has begun: end the job",
        theirs.world().size,
        timeout.as_secs_f64()
    );
    let made = theirs.duplicate().and_then(|pending| finish(pending, &wait, &words));
    let comm = match made.and_then(|made| Private::adopt(&made)) {
        Ok(comm) => comm,
        // What this rank knows of itself says more than that others did not come.
        Err(error) => return Err(prepared.err().unwrap_or(error)),
    };
    // All have called, be it at the last moment.
    let wait = within(timeout.saturating_add(GRACE));
    let mut carrier = Bounded { comm: &comm, wait: &wait, words: GONE };
    let outcome = match agree(&mut carrier, prepared) {
        Ok(prepared) => meet(&comm, prepared),
        Err(error) => Err(error),
    };
    // Where MPI has failed some rank, others may still use the duplicate: it stays with MPI.
    let is_agreed = |error: &Error| !matches!(error.kind(), Kind::Timeout | Kind::System);
    if outcome.as_ref().err().is_none_or(is_agreed) {
        comm.free()?;
    }
    outcome
}

/// All ranks are here and well configured: the longest of their deadlines bounds what follows.
fn meet(comm: &Private, prepared: Preparation) -> Result<Communicator> {
    let mine = i64::try_from(prepared.init_timeout().as_millis()).unwrap_or(i64::MAX);
    let wait = within(prepared.init_timeout().saturating_add(GRACE));
    let longest = first(finish(comm.least(vec![-mine])?, &wait, GONE)?.1)?;
    let longest = Duration::from_millis(longest.unsigned_abs());
    let mut carrier = Bounded { comm, wait: &wait, words: GONE };
    let own = if comm.world().rank == Rank::new(0) { prepared.unique_id().map(Some) } else { Ok(None) };
    // Kept until all know what came of the join, and no longer: the root of a join that nobody came to would wait on.
    let (id, _root) = agree(&mut carrier, own)?.unzip();
    let bytes = id.map_or(vec![0; UniqueId::BYTES], |id| id.as_bytes().to_vec());
    let id = UniqueId::from_bytes(&finish(comm.spread(Rank::new(0), bytes)?, &wait, GONE)?)?;
    // From here on, so that no rank's agreement ends before another's join does.
    let last = within(longest.saturating_add(GRACE + GRACE));
    let mut alarm = Alarm::new(comm);
    let joined = match prepared.join(id, comm.world()) {
        Ok(starting) => watch(starting, &alarm, &within(longest.saturating_add(GRACE)))?,
        Err(error) => Joined::Failed(error),
    };
    if !matches!(joined, Joined::Ready(_)) {
        alarm.ring()?;
    }
    settle(comm, joined, alarm, &last)
}

/// What came of a rank's join.
enum Joined {
    Ready(Communicator),
    Failed(Error),
    /// Given up, since another rank's has failed.
    Stopped,
}

/// Moves MPI until the join is over, or another rank rings.
fn watch(starting: Communicator, alarm: &Alarm<'_>, wait: &Wait) -> Result<Joined> {
    let mut lookout = Lookout::new(wait, "the ranks have not joined within the deadline of init");
    loop {
        match starting.async_error() {
            None => return Ok(Joined::Ready(starting)),
            Some(error) if error.kind() != Kind::InProgress => return Ok(Joined::Failed(error)),
            Some(_) => {}
        }
        if alarm.is_heard()? {
            // Dropping it ends its thread, which looks at the flag whenever it waits.
            starting.abort_handle().abort("another rank could not join");
            return Ok(Joined::Stopped);
        }
        if let Err(error) = lookout.rest() {
            starting.abort_handle().abort("the deadline of init has passed");
            return Ok(Joined::Failed(error));
        }
    }
}

/// Agrees on what came of all joins.
fn settle(comm: &Private, joined: Joined, mut alarm: Alarm<'_>, wait: &Wait) -> Result<Communicator> {
    let rank = comm.world().rank;
    let (vote, mine) = match joined {
        Joined::Ready(ready) => (NO_FAILURE, Ok(ready)),
        Joined::Failed(error) => {
            let mine = Err(error);
            (vote(rank, &mine), mine)
        }
        Joined::Stopped => (NO_FAILURE, Err(Error::aborted("another rank could not join"))),
    };
    let least = match hear_votes(comm, vote, &mut alarm, wait) {
        Ok(least) => least,
        Err(error) => return Err(mine.err().unwrap_or(error)),
    };
    if least != NO_FAILURE {
        let rung = finish(comm.gather(u8::from(alarm.has_rung()))?, wait, GONE)?.1;
        alarm.clear(|peer| rung.get(peer.index()) == Some(&1), wait)?;
    }
    conclude(&mut Bounded { comm, wait, words: GONE }, least, mine)
}

/// Waits for all votes, and hands the alarm on meanwhile: ranks that are still joining hear it through this one.
fn hear_votes(comm: &Private, vote: i64, alarm: &mut Alarm<'_>, wait: &Wait) -> Result<i64> {
    let mut pending = comm.least(vec![vote])?;
    let mut lookout = Lookout::new(wait, GONE);
    while !pending.test()? {
        if !alarm.has_rung() && alarm.is_heard()? {
            alarm.ring()?;
        }
        lookout.rest()?;
    }
    first(pending.take()?.1)
}

/// What a wait for MPI says that ends after all ranks were there.
const GONE: &str = "ranks of the MPI communicator that had begun rsccl::mpi::communicator went silent; MPI cannot say which: end \
                    the job";
/// How much later than a rank itself the others give up on it, so that it can tell them why.
const GRACE: Duration = Duration::from_secs(5);
