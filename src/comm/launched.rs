//! Communicators of processes that a launcher started: its variables say which rank this is and where the ranks meet.

use crate::bootstrap::address::HostPort;
use crate::bootstrap::store::{FileStore, Store, TcpStore, share_id};
use crate::bootstrap::{NetBootstrap, Options, UniqueId};
use crate::comm::lobby::Lobby;
use crate::comm::origin::Origin;
use crate::comm::settings::bootstrap_options;
use crate::comm::{Communicator, Settings};
use crate::config::launch::{Launch, StoreAddress};
use crate::config::{Config, Environment};
use crate::error::{Error, Kind, Result};
use crate::sync::Wait;
use crate::sync::primitive::{Ordering, statics::AtomicU64};
use crate::types::{Rank, World};

impl Communicator {
    /// The communicator of all processes that a launcher started: `rsccl run`, torchrun, `mpirun`, `srun` (the table
    /// stands in [`crate::config::launch`]). They meet at `NCCL_COMM_ID`, at `RSCCL_STORE`, or at `MASTER_ADDR` and
    /// `MASTER_PORT`; ranks that `mpirun` or `srun` has started on one host need none of these. May be called again:
    /// each call makes one more communicator of the same processes.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] that names the variable which is missing or wrong; else as
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
        crate::log::install(&config)?;
        let launch = Launch::learn(&environment, &config)?;
        let (settings, options) = (Settings::read(&config)?, bootstrap_options(&config)?);
        let world = launch.world;
        let other_hosts = launch.local_size.is_some_and(|local| local < world.size);
        let options = Options { other_hosts, first_serves: true, ..options };
        // Relaxed: only the number counts.
        let number = LAUNCHED.fetch_add(1, Ordering::Relaxed);
        Communicator::start(world, settings, Origin::Launcher, move |abort, timeout| {
            let wait = Wait::new(timeout, abort);
            let lobby = lobby(&launch, &options, number)?;
            let place = lobby.as_ref().map(|lobby| StoreAddress::File(lobby.folder().to_owned()));
            let (id, store) = meet(world, launch.store.as_ref().or(place.as_ref()), (number, &options), &wait)?;
            let joined = NetBootstrap::join(&[id], world.rank, world.size, &options, &wait);
            let joined = joined.map_err(|error| with_place(error, store.as_deref()))?;
            // Everyone has joined, so everyone has the id: the store may go.
            drop((store, lobby));
            Ok(Box::new(joined))
        })
    }
}

/// The folder in which the ranks meet, if all are on this host and the user has named no other place.
fn lobby(launch: &Launch, options: &Options, number: u64) -> Result<Option<Lobby>> {
    match launch.daemons {
        Some(daemons) if launch.world.size > 1 && launch.store.is_none() && options.comm_id.is_none() => {
            Lobby::of_job(daemons, number, launch.world.rank.get() == 0)
        }
        _ => Ok(None),
    }
}

/// The id of the launched processes' communicator `number`, and the store that carried it.
fn meet(
    world: World,
    place: Option<&StoreAddress>,
    (number, options): (u64, &Options),
    wait: &Wait,
) -> Result<(UniqueId, Option<Box<dyn Store>>)> {
    if let Some(id) = UniqueId::fixed_within(options, wait)? {
        return Ok((id, None));
    }
    if world.size == 1 {
        return Ok((UniqueId::generate(options)?, None));
    }
    let place = place.ok_or_else(|| {
        Error::invalid_argument("no place to meet: the launcher does not say that all ranks are on this host; set RSCCL_STORE, MASTER_ADDR and MASTER_PORT, or NCCL_COMM_ID")
    })?;
    let key = format!("rsccl/id/{number}");
    loop {
        let store = open(place, world, options, wait)?;
        match share_id(&*store, &key, world, || UniqueId::generate_within(options, wait), wait) {
            Ok(id) => return Ok((id, Some(store))),
            // The store of the communicator before this one may have just ended: the next one opens at the same
            // address.
            Err(error) if world.rank.get() != 0 && is_of_store(&error) && number > 0 => {
                wait.check(|| format!("waited for the store at {place}"))?;
                crate::sys::poller::pause(RETRY_PAUSE);
            }
            Err(error) if world.rank.get() != 0 && is_of_store(&error) => {
                let message =
                    format!("rank 0 has ended, or cannot be reached where it serves the store: {}", error.message());
                return Err(Error::new(error.kind(), message).about(Rank::new(0)));
            }
            Err(error) => return Err(error),
        }
    }
}

/// Whether a store could not be reached. A failure that rank 0 tells of is another error.
fn is_of_store(error: &Error) -> bool {
    error.kind() == Kind::Remote && error.peer().is_none()
}

fn open(place: &StoreAddress, world: World, options: &Options, wait: &Wait) -> Result<Box<dyn Store>> {
    match place {
        StoreAddress::File(folder) => Ok(Box::new(FileStore::open(folder, wait)?)),
        StoreAddress::Tcp { host, port } => {
            let bracketed = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
            let place: HostPort = bracketed.parse()?;
            if world.rank.get() == 0 {
                return Ok(Box::new(TcpStore::serve_at(&place, options.secret.is_some(), options, wait)?));
            }
            Ok(Box::new(TcpStore::connect(&place, options)?))
        }
    }
}

/// Adds to a time-out of rank 0 where it serves the store: the others may look for it elsewhere.
fn with_place(error: Error, store: Option<&dyn Store>) -> Error {
    match store.and_then(Store::listens_at) {
        Some(place) if error.kind() == Kind::Timeout => Error::timeout(format!("{}; {place}", error.message())),
        _ => error,
    }
}

/// How many communicators this process has made from its launcher's environment. All ranks count alike.
static LAUNCHED: AtomicU64 = AtomicU64::new(0);
/// How long a rank sleeps between two looks for a store that is about to open.
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);
