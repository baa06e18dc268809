//! Communicators of processes that a launcher started: its variables say which rank this is and where the ranks meet.

use crate::bootstrap::Options;
use crate::comm::Communicator;
use crate::comm::meeting::LaunchMeeting;
use crate::comm::origin::Origin;
use crate::comm::stand_in::{RankMark, StandIn};
use crate::config::launch::Launch;
use crate::config::{Config, Environment};
use crate::error::Result;
use crate::log;
use crate::session::settings::Settings;
use crate::session::settings::bootstrap_options;
use crate::sync::primitive::{Ordering, statics::AtomicU64};

impl Communicator {
    /// The communicator of all processes that a launcher started: `rsccl run`, torchrun, `mpirun`, `srun` (the table
    /// stands in [`crate::config::launch`]). They meet at `NCCL_COMM_ID`, at `RSCCL_STORE`, in private where the launcher
    /// says that all ranks are on one host, at `MASTER_ADDR` and `MASTER_PORT`, or by what the launcher itself offers
    /// (`docs/launchers.md`). May be called again: each call makes
    /// one more communicator of the same processes. After a failed call a further one meets ranks that start later, but not by
    /// PMIx, where all must call equally often.
    ///
    /// Ranks of two jobs never form one world, whatever they were told: their launchers' names of the jobs are compared.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] that names the variable which is missing or wrong, or two launchers of
    /// which none can be preferred; [`crate::error::Kind::InvalidUsage`] if another job has the place; else as
    /// [`Communicator::init`].
    ///
    /// # Examples
    /// ```no_run
    /// // rsccl run -n 4 -- target/debug/this-program
    /// use rsccl::{Communicator, ReduceOp};
    ///
    /// # fn main() -> rsccl::Result<()> {
    /// let comm = Communicator::from_env()?;
    /// let mut ranks = [1u32];
    /// comm.all_reduce_in_place(&mut ranks, ReduceOp::Sum)?;
    /// assert_eq!(ranks[0], comm.size());
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_env() -> Result<Communicator> {
        Communicator::from_env_with(&Config::default())
    }

    /// [`Communicator::from_env`] with a configuration, over which the environment is laid.
    ///
    /// # Errors
    /// As [`Communicator::from_env`].
    pub fn from_env_with(config: &Config) -> Result<Communicator> {
        let environment = Environment::capture();
        let config = config.clone().resolve_in(&environment)?;
        let learnt = Launch::learn(&environment, &config);
        log::install(&config, learnt.as_ref().ok().map(|launch| launch.world.rank.get()));
        let launch = learnt?;
        let (settings, options) = (Settings::read(&config)?, bootstrap_options(&config)?);
        for warning in &launch.warnings {
            log::tell(warning);
        }
        let world = launch.world;
        let other_hosts = launch.local_size.is_some_and(|local| local < world.size);
        let options = Options { other_hosts, one_host: launch.is_here(&environment), first_serves: true, ..options };
        // Relaxed: only the number counts.
        let number = CALLS.fetch_add(1, Ordering::Relaxed);
        let stand_in = StandIn::find(&launch, &options, &environment);
        let mark = RankMark::set(&launch, &options, &environment);
        let job = shown_job(&launch, number);
        let meeting = LaunchMeeting::new(&launch, options, number).inspect_err(|_| give_back(number))?;
        Communicator::begin_init(world, settings, Origin::Launcher { number, job }, move |abort, limit| {
            let watch = stand_in.as_ref().and_then(StandIn::watch);
            let joined = meeting.join(&limit.wait(abort));
            drop(watch);
            let mut bootstrap = joined.map_err(|error| match &stand_in {
                Some(stand_in) => stand_in.explain(error),
                None => error,
            })?;
            bootstrap.hold(mark);
            Ok(Box::new(bootstrap))
        })
    }
}

/// By what those who look from outside know the ranks of one call: a hash of where they meet and of what the launcher says
/// of the job; 0 where nothing is known of either.
fn shown_job(launch: &Launch, number: u64) -> u64 {
    let (store, job) = (launch.store.as_ref().map(ToString::to_string), launch.job.as_ref().map(|job| &job.key));
    if store.is_none() && job.is_none() {
        return 0;
    }
    let hash = blake3::hash(format!("{store:?} {job:?} {number}").as_bytes());
    let (first, _) = hash.as_bytes().split_first_chunk().expect("a hash has 32 bytes");
    u64::from_le_bytes(*first)
}

/// Gives the number of a call that has failed back, unless a later call has begun: its ranks may try again, and a rank that
/// starts later begins with the same number.
pub(super) fn give_back(number: u64) {
    // Relaxed: only the number counts. It stays taken where the next one is, too.
    let _taken = CALLS.compare_exchange(number + 1, number, Ordering::Relaxed, Ordering::Relaxed);
}

/// How many communicators this process has made from its launcher's environment, or is making. All ranks count alike.
static CALLS: AtomicU64 = AtomicU64::new(0);
