//! The protocol by which the ranks of an MPI communicator join an rsccl communicator.
//!
//! 1. Each rank checks its arguments: MPI's state, the communicator, its configuration.
//! 2. A private duplicate is made. From here on ranks agree: either all continue, or all have the same error.
//! 3. They agree on their configurations; rank 0 makes the unique id and MPI carries it to all.
//! 4. Each rank joins on a separate thread, while the caller's thread lets MPI progress and listens for the [`Alarm`].
//! 5. They agree on the outcome; the duplicate is freed.

use std::time::Duration;

use crate::bootstrap::UniqueId;
use crate::comm::{Communicator, PreparedInit, warn_of_lone_world};
use crate::config::{Config, Environment};
use crate::error::{Error, Kind, Result};
use crate::over_mpi::agreement::{NO_FAILURE, agree, conclude, vote};
use crate::over_mpi::alarm::Alarm;
use crate::over_mpi::calls::{self, Private, Theirs};
use crate::over_mpi::waiting::{Bounded, Lookout, finish, first, within};
use crate::over_mpi::{Handle, Mpi};
use crate::session::page::OwnPage;
use crate::sync::Wait;
use crate::types::Rank;

/// The rsccl communicator with the same ranks as `theirs`. Collective: every rank of it calls this.
///
/// # Errors
/// As `rsccl::mpi::communicator` says.
///
/// # Safety
/// `theirs` is a handle of this MPI's, null or of a communicator that lives during the call.
pub(crate) unsafe fn communicator(mpi: Mpi, theirs: Handle, config: &Config) -> Result<Communicator> {
    // SAFETY: the caller's promise.
    let theirs = unsafe { Theirs::new(mpi, theirs) }.map_err(|error| error.during("init"))?;
    let rank = theirs.world().rank;
    if theirs.world().size == 1 && calls::size_of_world(mpi)? == 1 {
        warn_of_lone_world();
    }
    join(mpi, &theirs, config).map_err(|error| error.during("init").at(rank))
}

fn join(mpi: Mpi, theirs: &Theirs, config: &Config) -> Result<Communicator> {
    let prepared = PreparedInit::new(config, theirs.world().rank);
    // A rank whose settings are wrong waits as long as the user allows: it must tell the others.
    let timeout = match &prepared {
        Ok(prepared) => prepared.init_timeout(),
        Err(_) => config.clone().init_timeout_alone(&Environment::capture()),
    };
    // Until it is known whom this rank belongs to: that it waits in MPI is all that there is to see of it.
    let page = OwnPage::of_beginning(theirs.world(), (CALL, 0, 0), &config.name);
    let wait = within(timeout);
    let words = format!(
        "not all {} ranks of the MPI communicator called rsccl::mpi::communicator within {} s; MPI cannot say which, \
         nor take back what it has begun: end the job",
        theirs.world().size,
        timeout.as_secs_f64()
    );
    let made = theirs.duplicate().and_then(|pending| finish(pending, &wait, &words));
    let comm = match made.and_then(|made| Private::adopt(mpi, &made)) {
        Ok(comm) => comm,
        // This rank's own error says more than that the others did not come.
        Err(error) => return Err(prepared.err().unwrap_or(error)),
    };
    // All ranks have called, perhaps at the last moment.
    let wait = within(timeout.saturating_add(GRACE));
    let mut carrier = Bounded { comm: &comm, wait: &wait, words: GONE };
    let outcome = match agree(&mut carrier, prepared) {
        Ok(prepared) => meet(&comm, prepared, page),
        Err(error) => Err(error),
    };
    // If MPI failed on some rank, others may still use the duplicate, so it is not freed.
    let is_agreed = |error: &Error| !matches!(error.kind(), Kind::Timeout | Kind::System);
    if outcome.as_ref().err().is_none_or(is_agreed) {
        comm.free()?;
    }
    outcome
}

/// Joins after all ranks have arrived with a valid configuration. The longest of their deadlines bounds what follows.
fn meet(comm: &Private, prepared: PreparedInit, page: OwnPage) -> Result<Communicator> {
    let mine = i64::try_from(prepared.init_timeout().as_millis()).unwrap_or(i64::MAX);
    let wait = within(prepared.init_timeout().saturating_add(GRACE));
    let longest = first(finish(comm.least(vec![-mine])?, &wait, GONE)?.1)?;
    let longest = Duration::from_millis(longest.unsigned_abs());
    let mut carrier = Bounded { comm, wait: &wait, words: GONE };
    let own = if comm.world().rank == Rank::new(0) { prepared.unique_id().map(Some) } else { Ok(None) };
    // The root is kept until all ranks know the outcome, and no longer: if no rank joined, it would wait on.
    let (id, _root) = agree(&mut carrier, own)?.unzip();
    let bytes = id.map_or(vec![0; UniqueId::BYTES], |id| id.as_bytes().to_vec());
    let id = UniqueId::from_bytes(&finish(comm.spread(Rank::new(0), bytes)?, &wait, GONE)?)?;
    // Starts here, so that no rank's agreement ends before another rank's join does.
    let last = within(longest.saturating_add(GRACE + GRACE));
    let mut alarm = Alarm::new(comm);
    // The communicator has one of its own.
    drop(page);
    let joined = match prepared.join(id, comm.world()) {
        Ok(starting) => watch(starting, &alarm, &within(longest.saturating_add(GRACE)))?,
        Err(error) => Joined::Failed(error),
    };
    if !matches!(joined, Joined::Ready(_)) {
        alarm.ring()?;
    }
    settle(comm, joined, alarm, &last)
}

/// As the page of a rank names the call.
const CALL: &str = "mpi::communicator";

/// The outcome of a rank's join.
enum Joined {
    Ready(Communicator),
    Failed(Error),
    /// Stopped because another rank's join has failed.
    Stopped,
}

/// Lets MPI progress until the join is over, or another rank raises the alarm.
fn watch(starting: Communicator, alarm: &Alarm<'_>, wait: &Wait) -> Result<Joined> {
    let mut lookout = Lookout::new(wait, "the ranks have not joined within the deadline of init");
    loop {
        match starting.async_error() {
            None => return Ok(Joined::Ready(starting)),
            Some(error) if error.kind() != Kind::InProgress => return Ok(Joined::Failed(error)),
            Some(_) => {}
        }
        if alarm.is_heard()? {
            // Dropping it ends its thread, which checks the flag whenever it waits.
            starting.abort_handle().abort("another rank could not join");
            return Ok(Joined::Stopped);
        }
        if let Err(error) = lookout.rest() {
            starting.abort_handle().abort("the deadline of init has passed");
            return Ok(Joined::Failed(error));
        }
    }
}

/// Agrees on the outcome of all joins.
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

/// Waits for all votes, and forwards the alarm meanwhile: ranks that are still joining receive it through this one.
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

/// The error of a wait for MPI that ends after all ranks had arrived.
const GONE: &str = "ranks of the MPI communicator that had begun rsccl::mpi::communicator went silent; MPI cannot say \
                    which: end the job";
/// How much longer than a rank itself the others wait for it, so that it can tell them why it failed.
const GRACE: Duration = Duration::from_secs(5);
