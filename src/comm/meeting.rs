//! Where the ranks of a launcher meet, and how: rank 0 makes the unique id and gives it to the others, all join by
//! it. An attempt that fails leaves nothing that a later one could take for its own.

use std::io::ErrorKind;
use std::time::Duration;

use crate::bootstrap::auth::JobTag;
use crate::bootstrap::lobby::{self, ELSEWHERE_AFTER, Elsewhere, Lobby, LobbyName};
use crate::bootstrap::store::port_search::{self, PortSearch};
use crate::bootstrap::store::record::{IdOutcome, Record};
use crate::bootstrap::store::share::{IdSharing, SharedId};
use crate::bootstrap::store::{AgentStore, FileStore, Store, TcpStore};
use crate::bootstrap::{JoinError, NetBootstrap, Options, Root, UniqueId};
use crate::bootstrap::{pmi, pmix, socket};
use crate::comm::meeting_place::{MeetingPlace, StorePlace, roots_in_words, unguarded};
use crate::config::launch::{FirstNode, JobIdentity, Launch};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::{AbortFlag, Deadline, Wait};
use crate::sys::{clock, poller};
use crate::types::{Rank, World};

/// The meeting of the ranks of one communicator.
#[derive(Debug, Clone)]
pub(super) struct LaunchMeeting {
    world: World,
    options: Options,
    /// The key of the id in a store.
    key: String,
    place: MeetingPlace,
}

/// A rank's look at the place beside the lobby.
struct Look<'a> {
    meeting: LaunchMeeting,
    place: &'a StorePlace,
    store: Option<Box<dyn Store>>,
    /// What came of the last look.
    last: Option<String>,
}

impl Look<'_> {
    /// Looks for a moment. What is found there of other jobs, or nothing at all, says nothing of this job: rank 0 opens
    /// it only where ranks are missing.
    ///
    /// # Errors
    /// Of the abort of `wait`.
    fn once(&mut self, spent: Option<u64>, wait: &Wait) -> Result<Option<FoundId>> {
        let slice = wait.until(Deadline::after(ELSEWHERE_SLICE).earlier(wait.deadline));
        let store = match self.store.take() {
            Some(store) => Ok(store),
            None => self.meeting.open(self.place, &slice),
        };
        let taken = store.and_then(|store| {
            let store = self.store.insert(store);
            self.meeting.shared(self.place, &**store, &slice).take(spent)
        });
        match taken {
            Ok(SharedId { id, number }) => Ok(Some(FoundId { id, number: Some(number), _store: self.store.take() })),
            Err(error) => {
                wait.abort.check()?;
                log::trace!(Bootstrap, "nothing for this rank at {}: {error}", self.place);
                self.last = Some(error.message().to_owned());
                Ok(None)
            }
        }
    }
}

/// An id that was put into a store beside the lobby, which is removed again: the store may live on.
struct GivenElsewhere {
    meeting: LaunchMeeting,
    place: StorePlace,
    store: Box<dyn Store>,
    number: u64,
}

impl Drop for GivenElsewhere {
    fn drop(&mut self) {
        if self.store.outlives_its_users() {
            let wait = Wait::new(FORGET_PATIENCE, &AbortFlag::new());
            self.meeting.shared(&self.place, &*self.store, &wait).withdraw(self.number);
        }
    }
}

/// An id that this rank has got.
struct FoundId {
    id: UniqueId,
    /// The number of the sharing; `None` for a fixed address, which has one id for ever.
    number: Option<u64>,
    /// A store that must live until this rank has joined.
    _store: Option<Box<dyn Store>>,
}

impl LaunchMeeting {
    /// The meeting of communicator `number` of the processes that `launch` describes.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] for an address that is none.
    pub(super) fn new(launch: &Launch, options: Options, number: u64) -> Result<LaunchMeeting> {
        let size = launch.world.size;
        let tag = |job: &JobIdentity| JobTag::new(&job.name, &job.key);
        let unseen = launch.job.as_ref().and_then(|job| job.of_unseen(size)).as_ref().map(tag);
        // The name of the private place tells more than the job of some launchers, which users name.
        let private = launch.lobby.as_ref().filter(|_| launch.job.is_none()).map(|lobby| JobTag::new(lobby, lobby));
        let job = launch.job.as_ref().map(tag).or(private).map(|job| job.or_unseen(unseen.as_ref()));
        let place = MeetingPlace::of(launch, &options, number)?;
        if let Some(warning) = unguarded(launch, &place, &options) {
            log::tell(&warning);
        }
        let first_serves = options.first_serves && place.is_rank_zeros();
        Ok(LaunchMeeting {
            world: launch.world,
            options: Options { job, first_serves, ..options },
            key: format!("rsccl/id/{number}"),
            place,
        })
    }

    /// Joins the others.
    ///
    /// # Errors
    /// As [`NetBootstrap::join`]; [`Kind::InvalidArgument`] if there is no place to meet, [`Kind::InvalidUsage`] if
    /// another job has it.
    pub(super) fn join(&self, wait: &Wait) -> Result<NetBootstrap> {
        let roots = roots_in_words(self.world.size, &self.options);
        log::info!(Bootstrap @ self.world.rank, "ranks meet {}{roots}", self.place);
        let outcome = match &self.place {
            MeetingPlace::None(why) => Err(Error::invalid_argument(why.clone())),
            MeetingPlace::Alone => {
                self.join_by(&UniqueId::generate(&self.options)?, wait).map_err(|failed| failed.error)
            }
            MeetingPlace::ProcessManager(descriptor) => {
                self.join_by_process_manager(wait, |key, made| pmi::share_id(*descriptor, key, made, wait))
            }
            MeetingPlace::Pmix => self.join_by_process_manager(wait, |key, made| pmix::share_id(key, made, wait)),
            MeetingPlace::FirstNode(node) if node.is_mine => self.host_first_node(node, wait),
            MeetingPlace::FirstNode(_) => self.come(wait),
            MeetingPlace::Fixed | MeetingPlace::Lobby(..) | MeetingPlace::Store(_) if self.world.rank.get() != 0 => {
                self.come(wait)
            }
            MeetingPlace::Fixed => self.join_by(&self.fixed(wait)?, wait).map_err(|failed| failed.error),
            MeetingPlace::Lobby(name, elsewhere) => self.host_lobby(name, elsewhere.as_ref(), wait),
            MeetingPlace::Store(place) => self.host_store(place, wait),
        };
        outcome.map_err(|error| self.explain(error))
    }

    /// The same meeting at the place beside the lobby: ranks of which nothing is known are not of this job.
    fn strictly(&self) -> LaunchMeeting {
        let job = self.options.job.clone().map(JobTag::strictly);
        LaunchMeeting { options: Options { job, ..self.options.clone() }, ..self.clone() }
    }

    fn join_by(&self, id: &UniqueId, wait: &Wait) -> Result<NetBootstrap, JoinError> {
        NetBootstrap::try_join(&[*id], self.world, &self.options, wait)
    }

    fn fixed(&self, wait: &Wait) -> Result<UniqueId> {
        UniqueId::fixed_within(&self.options, wait)?.ok_or_else(|| Error::internal("a fixed place has an address"))
    }

    /// The key of the id in the store at `place`: an agent's store puts the run before it.
    fn key_in(&self, place: &StorePlace) -> &str {
        match place {
            StorePlace::Agent(..) => self.key.strip_prefix("rsccl/").unwrap_or(&self.key),
            StorePlace::Served(_) | StorePlace::Folder(_) => &self.key,
        }
    }

    fn shared<'a>(&'a self, place: &StorePlace, store: &'a dyn Store, wait: &'a Wait) -> IdSharing<'a> {
        self.shared_by(self.key_in(place), store, wait)
    }

    fn shared_by<'a>(&'a self, key: &'a str, store: &'a dyn Store, wait: &'a Wait) -> IdSharing<'a> {
        IdSharing {
            store,
            key,
            members: self.world,
            wait,
            job: self.options.job.as_ref(),
            patience: self.options.other_job_patience(),
        }
    }

    /// Rank 0: gives the id in the lobby, and later elsewhere too, if not all ranks have come.
    fn host_lobby(&self, name: &LobbyName, elsewhere: Option<&StorePlace>, wait: &Wait) -> Result<NetBootstrap> {
        let made = UniqueId::generate_held_within(&self.options, wait);
        let outcome = match &made {
            Ok((id, _)) => IdOutcome::Id(*id),
            Err(error) => IdOutcome::Failed(error.to_string()),
        };
        let record = Record { size: self.world.size, job: self.options.job.clone(), ..Record::new(outcome)? };
        let open = elsewhere.map(|place| self.elsewhere(place.clone(), record.clone(), wait));
        let lobby = Lobby::open(name, self.world.size, &record, open, wait)?;
        match made {
            Ok((id, root)) => {
                // It serves until all have come, or tells why they have not.
                root.into_iter().for_each(Root::detach);
                self.join_by(&id, wait).map_err(|failed| failed.error)
            }
            Err(error) => {
                // The others learn why: otherwise they would wait until their deadline.
                lobby.linger(Deadline::after(FAILURE_PATIENCE), wait);
                Err(error)
            }
        }
    }

    /// Gives `record` in a store, for the ranks that cannot see the lobby.
    fn elsewhere(&self, place: StorePlace, record: Record, wait: &Wait) -> Elsewhere {
        let (this, limit) = (self.strictly(), wait.deadline);
        Box::new(move |closing| {
            let wait = Wait::new(Duration::MAX, closing).until(limit);
            let given = this.open(&place, &wait).and_then(|store| {
                store.set(this.key_in(&place), &record.encode(), &wait)?;
                Ok(store)
            });
            match given {
                Ok(store) => Some(Box::new(GivenElsewhere { meeting: this, place, store, number: record.number })),
                Err(error) => {
                    log::info!(
                        Bootstrap,
                        "not all ranks have come in private, and they cannot come by {place}: {error}"
                    );
                    None
                }
            }
        })
    }

    /// Rank 0: gives the id in a store.
    fn host_store(&self, place: &StorePlace, wait: &Wait) -> Result<NetBootstrap> {
        let store = self.open(place, wait)?;
        self.give(&self.shared(place, &*store, wait), wait)
    }

    /// The process that serves at the first node: gives the id in a store there.
    fn host_first_node(&self, node: &FirstNode, wait: &Wait) -> Result<NetBootstrap> {
        if self.options.secret.is_none() {
            log::tell(
                "nothing secret is known to the ranks of this step alone: whoever reaches a port of the step's first \
                 node can read the id, or give another one in its place; set RSCCL_SECRET on all ranks, or start them \
                 by srun --mpi=pmi2 or --mpi=pmix",
            );
        }
        let store = port_search::serve_at_one_of(&node.ports, &self.of_group()?)?;
        self.give(&self.shared_by(&self.key, &store, wait), wait)
    }

    /// The options of the store at the first node of this step: those of another step, restart, size or communicator
    /// do not open it.
    fn of_group(&self) -> Result<Options> {
        let job = self.options.job.as_ref().ok_or_else(|| Error::internal("a step is a job"))?;
        let (digest, name, size) = (job.digest(), job.name(), self.world.size);
        port_search::for_group(&self.options, &format!("{digest:?}, {name}, {size} ranks, {}", self.key))
    }

    /// Gives the id in a store, and joins.
    fn give(&self, shared: &IdSharing<'_>, wait: &Wait) -> Result<NetBootstrap> {
        let mut held = None;
        let given = shared.give(|| {
            let (id, root) = UniqueId::generate_held_within(&self.options, wait)?;
            held = root;
            Ok(id)
        })?;
        // It serves until all have come, or tells why they have not.
        held.into_iter().for_each(Root::detach);
        self.join_by(&given.id, wait).map_err(|failed| {
            shared.withdraw(given.number);
            // The others may look for it elsewhere.
            match shared.store.listens_at() {
                Some(place) if failed.error.kind() == Kind::Timeout => failed.error.advising(&place),
                _ => failed.error,
            }
        })
    }

    /// Any rank: exchanges the id in the space of the process manager.
    fn join_by_process_manager(
        &self,
        wait: &Wait,
        share: impl FnOnce(&str, (World, Option<Result<UniqueId>>)) -> Result<UniqueId>,
    ) -> Result<NetBootstrap> {
        let mut held = None;
        let mut make = || {
            let (id, root) = UniqueId::generate_held_within(&self.options, wait)?;
            held = root;
            Ok(id)
        };
        let made = (self.world.rank.get() == 0).then(&mut make);
        let id = share(&self.key, (self.world, made))?;
        // It serves until all have come, or tells why they have not.
        held.into_iter().for_each(Root::detach);
        self.join_by(&id, wait).map_err(|failed| failed.error)
    }

    /// A rank that is not rank 0. If it comes as an attempt of the others has failed, it waits a moment for them to try
    /// again.
    fn come(&self, wait: &Wait) -> Result<NetBootstrap> {
        let mut late: Option<(Error, Wait)> = None;
        let mut spent = None;
        loop {
            let within = late.as_ref().map_or(wait, |(_, within)| within);
            let found = match self.find(spent, within) {
                Ok(found) => found,
                Err(error) => match late {
                    Some((cause, _)) if error.kind() == Kind::Timeout => return Err(cause),
                    _ => return Err(error),
                },
            };
            match self.join_by(&found.id, wait) {
                Err(JoinError { error, is_late: true }) => {
                    let until = late.map_or_else(|| Deadline::after(LATE_PATIENCE), |(_, within)| within.deadline);
                    let within = wait.until(until.earlier(wait.deadline));
                    if within.check(String::new).is_err() {
                        wait.abort.check()?;
                        return Err(error);
                    }
                    log::info!(Bootstrap @ self.world.rank, "came too late for an attempt that has failed: {error}");
                    poller::pause(within.slice(RETRY_PAUSE));
                    (spent, late) = (found.number, Some((error, within)));
                }
                outcome => return outcome.map_err(|failed| failed.error),
            }
        }
    }

    /// The id that rank 0 gives, but not that of the sharing `spent`.
    fn find(&self, spent: Option<u64>, wait: &Wait) -> Result<FoundId> {
        match &self.place {
            MeetingPlace::Lobby(name, elsewhere) => self.find_in_lobby(name, elsewhere.as_ref(), (spent, wait)),
            MeetingPlace::Store(place) => self.find_in_store(place, (spent, wait)),
            MeetingPlace::FirstNode(node) => self.find_at_first_node(node, (spent, wait)),
            _ => Ok(FoundId { id: self.fixed(wait)?, number: None, _store: None }),
        }
    }

    fn find_in_lobby(
        &self,
        name: &LobbyName,
        elsewhere: Option<&StorePlace>,
        (spent, wait): (Option<u64>, &Wait),
    ) -> Result<FoundId> {
        let begun = clock::now();
        let mut look = elsewhere.map(|place| Look { meeting: self.strictly(), place, store: None, last: None });
        loop {
            if let Some(record) = lobby::visit(name, self.world, wait)?.filter(|record| Some(record.number) != spent) {
                record.check_size(self.world)?;
                let SharedId { id, number } = record.open()?;
                return Ok(FoundId { id, number: Some(number), _store: None });
            }
            wait.check(|| {
                let there = "rank 0 did not come, or is in another network namespace (a container's)";
                let last = look.as_ref().and_then(|look| look.last.as_deref());
                last.map_or_else(|| there.to_owned(), |last| format!("{there}; the other place: {last}"))
            })?;
            if clock::now().saturating_duration_since(begun) >= ELSEWHERE_AFTER
                && let Some(look) = &mut look
                && let Some(found) = look.once(spent, wait)?
            {
                return Ok(found);
            }
            poller::pause(wait.slice(RETRY_PAUSE));
        }
    }

    fn find_in_store(&self, place: &StorePlace, (spent, wait): (Option<u64>, &Wait)) -> Result<FoundId> {
        loop {
            let store = self.open(place, wait)?;
            let taken = self.shared(place, &*store, wait).take(spent);
            match taken {
                Ok(SharedId { id, number }) => return Ok(FoundId { id, number: Some(number), _store: Some(store) }),
                // The store of an attempt or a communicator before this one may have just ended: the next one opens at
                // the same address.
                Err(error) if is_of_store(&error) && (spent.is_some() || !self.is_first()) => {
                    wait.check(|| format!("waited for the store at {place}"))?;
                    poller::pause(wait.slice(RETRY_PAUSE));
                }
                Err(error) if is_of_store(&error) => {
                    let why = format!(
                        "rank 0 has ended, or cannot be reached where it serves the store: {}",
                        error.message()
                    );
                    return Err(Error::new(error.kind(), why).about(Rank::new(0)));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn find_at_first_node(&self, node: &FirstNode, (spent, wait): (Option<u64>, &Wait)) -> Result<FoundId> {
        let mut search = PortSearch::new(&node.name, &node.ports, &self.of_group()?)?;
        loop {
            if let Some(store) = search.look(wait)? {
                let slice = wait.until(Deadline::after(ELSEWHERE_SLICE).earlier(wait.deadline));
                match self.shared_by(&self.key, &store, &slice).take(spent) {
                    Ok(SharedId { id, number }) => {
                        return Ok(FoundId { id, number: Some(number), _store: Some(Box::new(store)) });
                    }
                    // The store of an attempt that has just ended.
                    Err(error) if error.kind() == Kind::Timeout || is_of_store(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            search.rest(wait)?;
        }
    }

    /// Whether this is the process's first communicator of this kind.
    fn is_first(&self) -> bool {
        self.key.ends_with("/0")
    }

    fn open(&self, place: &StorePlace, wait: &Wait) -> Result<Box<dyn Store>> {
        match place {
            StorePlace::Folder(folder) => Ok(Box::new(FileStore::open(folder, wait)?)),
            StorePlace::Agent(place, run) => {
                Ok(Box::new(AgentStore::open(place, format!("rsccl/{run}"), &self.options)?))
            }
            StorePlace::Served(place) if self.world.rank.get() == 0 => {
                let not_here = |error: Error| match socket::is(&error, ErrorKind::AddrNotAvailable) {
                    true => error.advising("RSCCL_STORE (or MASTER_ADDR) must name an address of rank 0's host"),
                    false => error,
                };
                Ok(Box::new(TcpStore::serve_at(place, &self.options, wait).map_err(not_here)?))
            }
            StorePlace::Served(place) => Ok(Box::new(TcpStore::connect_to(place, &self.options)?)),
        }
    }

    /// Adds to a time-out where the ranks were to meet: those that never came may have gone elsewhere.
    fn explain(&self, error: Error) -> Error {
        if error.kind() != Kind::Timeout {
            return error;
        }
        let help =
            "if ranks are in containers, or see other addresses, set RSCCL_STORE to a place that all of them reach";
        match &self.place {
            MeetingPlace::Lobby(name, None) => {
                error.advising(&format!("the ranks of this host meet at {name}; {help}"))
            }
            MeetingPlace::Lobby(name, Some(other)) => {
                error.advising(&format!("the ranks of this host meet at {name}, else at {other}; {help}"))
            }
            MeetingPlace::Store(place @ StorePlace::Folder(_)) => error.advising(&format!("the ranks meet at {place}")),
            MeetingPlace::FirstNode(node) => {
                let (name, ports) = (&node.name, port_search::list(&node.ports));
                error.advising(&format!(
                    "the ranks of this step meet at the node {name}, at the first free one of the ports {ports}: if a \
                     firewall closes them, or the name leads elsewhere, set RSCCL_PORT_RANGE, MASTER_ADDR and \
                     MASTER_PORT, or RSCCL_STORE"
                ))
            }
            // The client and rank 0 name the address.
            MeetingPlace::Store(StorePlace::Served(_) | StorePlace::Agent(..))
            | MeetingPlace::Fixed
            | MeetingPlace::ProcessManager(_)
            | MeetingPlace::Pmix
            | MeetingPlace::Alone
            | MeetingPlace::None(_) => error,
        }
    }
}

/// Whether a store could not be reached. A failure that rank 0 tells of is another error.
fn is_of_store(error: &Error) -> bool {
    error.kind() == Kind::Remote && error.peer().is_none()
}

/// How long a rank sleeps between two looks for a place that is about to open.
const RETRY_PAUSE: Duration = Duration::from_millis(20);
/// How long a look at the other place may take before the lobby is looked at again.
const ELSEWHERE_SLICE: Duration = Duration::from_millis(300);
/// How long a rank that came as an attempt failed waits for the next one.
const LATE_PATIENCE: Duration = Duration::from_secs(3);
/// How long rank 0 tries to remove an id from a store that lives on.
const FORGET_PATIENCE: Duration = Duration::from_secs(1);
/// How long rank 0 stays to report why it could not make an id; a failed root stays as long.
const FAILURE_PATIENCE: Duration = Duration::from_secs(3);
