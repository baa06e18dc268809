//! The one table of places where the ranks of a launcher meet: what the launcher tells, how many hosts, and whether MPI
//! is in the process decide, the strongest place first ([`WAYS`]). `docs/launchers.md` shows what that makes of each
//! launcher.

use std::path::PathBuf;

use crate::bootstrap::Options;
use crate::bootstrap::address::HostPort;
use crate::bootstrap::lobby::LobbyName;
use crate::bootstrap::pmix;
use crate::bootstrap::store::port_search;
use crate::config::Config;
use crate::config::launch::{FirstNode, Launch, StoreAddress};
use crate::error::{Error, Result};
use crate::session::settings::bootstrap_options;
use crate::sys::given::{self, MpiState};

/// Where ranks meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MeetingPlace {
    /// A fixed address, at which rank 0 serves the root: nothing has to be shared.
    Fixed,
    /// One rank needs no place.
    Alone,
    /// In private on this host; ranks that do not find rank 0 there look at the other place, if there is one.
    Lobby(LobbyName, Option<StorePlace>),
    Store(StorePlace),
    /// In the space of the process manager, to which this descriptor leads.
    ProcessManager(u32),
    /// In the space of the process manager that speaks PMIx.
    Pmix,
    /// At a port of the first node of a step of Slurm.
    FirstNode(FirstNode),
    /// The reason why there is none.
    None(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StorePlace {
    /// A store that rank 0 serves.
    Served(HostPort),
    /// The store of torchrun's agents, for the run with this id.
    Agent(HostPort, String),
    Folder(PathBuf),
}

/// What decides.
struct Facts<'a> {
    launch: &'a Launch,
    has_comm_id: bool,
    mpi: MpiState,
    /// Why PMIx cannot be used, if so; it loads a library, and so is asked last.
    why_no_pmix: fn() -> Option<String>,
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Fixed,
    Alone,
    NamedStore,
    Lobby,
    Master,
    ProcessManager,
    Pmix,
    FirstNode,
}

/// Whether the facts have what a way needs.
type Fits = fn(&Facts<'_>) -> bool;

/// All ways, the strongest first, each with what it needs.
const WAYS: [(Way, Fits); 8] = [
    (Way::Fixed, |facts| facts.has_comm_id),
    (Way::Alone, |facts| facts.launch.world.size == 1),
    (Way::NamedStore, |facts| facts.launch.is_store_named),
    (Way::Lobby, |facts| facts.launch.lobby.is_some()),
    (Way::Master, |facts| facts.launch.store.is_some()),
    // The process manager has one conversation with a process, and that is MPI's.
    (Way::ProcessManager, |facts| facts.launch.process_manager.is_some() && facts.mpi == MpiState::None),
    // A client that comes before MPI, or after it, makes MPI_Init fail.
    (Way::Pmix, |facts| {
        let is_time = matches!(facts.mpi, MpiState::None | MpiState::Runs);
        facts.launch.is_pmix_client && is_time && (facts.why_no_pmix)().is_none()
    }),
    (Way::FirstNode, |facts| facts.launch.first_node.is_some()),
];

impl MeetingPlace {
    /// The place of communicator `number` of the processes that `launch` describes.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for an address that is none.
    pub(super) fn of(launch: &Launch, options: &Options, number: u64) -> Result<MeetingPlace> {
        let (has_comm_id, mpi) = (options.comm_id.is_some(), given::mpi_state());
        MeetingPlace::choose(&Facts { launch, has_comm_id, mpi, why_no_pmix: pmix::why_not }, number)
    }

    fn choose(facts: &Facts<'_>, number: u64) -> Result<MeetingPlace> {
        let launch = facts.launch;
        let way = WAYS.iter().find(|(_, fits)| fits(facts)).map(|(way, _)| *way);
        let store = || -> Result<Option<StorePlace>> {
            launch.store.as_ref().map(|store| StorePlace::of(store, launch.agent_run.as_ref())).transpose()
        };
        let place = match way {
            Some(Way::Fixed) => Some(MeetingPlace::Fixed),
            Some(Way::Alone) => Some(MeetingPlace::Alone),
            Some(Way::NamedStore | Way::Master) => store()?.map(MeetingPlace::Store),
            Some(Way::Lobby) => {
                let elsewhere = store()?;
                launch.lobby.as_ref().map(|job| MeetingPlace::Lobby(LobbyName::new(job, number), elsewhere))
            }
            Some(Way::ProcessManager) => launch.process_manager.map(MeetingPlace::ProcessManager),
            Some(Way::Pmix) => Some(MeetingPlace::Pmix),
            Some(Way::FirstNode) => launch.first_node.clone().map(MeetingPlace::FirstNode),
            None => None,
        };
        Ok(place.unwrap_or_else(|| MeetingPlace::None(why_none(facts))))
    }

    /// Whether it is known that rank 0 makes the id.
    pub(super) fn is_rank_zeros(&self) -> bool {
        match self {
            MeetingPlace::FirstNode(node) => node.is_rank_zeros,
            MeetingPlace::Fixed
            | MeetingPlace::Alone
            | MeetingPlace::Lobby(..)
            | MeetingPlace::Store(_)
            | MeetingPlace::ProcessManager(_)
            | MeetingPlace::Pmix
            | MeetingPlace::None(_) => true,
        }
    }
}

fn why_none(facts: &Facts<'_>) -> String {
    let is_mpis = facts.launch.process_manager.is_some() && facts.mpi != MpiState::None;
    let why = match facts.launch.one_host {
        _ if is_mpis => {
            "the process manager (PMI) speaks to MPI, which is in this process: MPI's communicators make rsccl's, \
             without a place"
        }
        _ if facts.launch.is_pmix_client => return why_no_pmix(facts),
        true => {
            "the launcher names no job, and its process cannot be seen from here (is this a container with a process \
             namespace of its own?)"
        }
        false => "the launcher does not say that all ranks are on this host",
    };
    format!("no place to meet: {why}; {REMEDY}")
}

fn why_no_pmix(facts: &Facts<'_>) -> String {
    let why = match (facts.mpi, (facts.why_no_pmix)()) {
        (MpiState::Waits, _) => "MPI is in this process and not initialised, and fails if rsccl comes before it: call \
                                 MPI_Init first, or make rsccl's communicators from MPI's"
            .to_owned(),
        (MpiState::Ended, _) => "MPI was finalised in this process".to_owned(),
        (MpiState::None | MpiState::Runs, why) => why.unwrap_or_default(),
    };
    format!("no place to meet: the process manager (PMIx) cannot be used: {why}; {REMEDY}")
}

const REMEDY: &str = "set RSCCL_STORE, MASTER_ADDR and MASTER_PORT, or NCCL_COMM_ID";

impl std::fmt::Display for MeetingPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MeetingPlace::Fixed => write!(f, "at NCCL_COMM_ID, where rank 0 serves"),
            MeetingPlace::Alone => write!(f, "nowhere: there is only one rank"),
            MeetingPlace::Lobby(name, None) => write!(f, "in private on this host, at {name}"),
            MeetingPlace::Lobby(name, Some(other)) => write!(f, "in private on this host, at {name}, else by {other}"),
            MeetingPlace::Store(place) => write!(f, "by {place}"),
            MeetingPlace::ProcessManager(descriptor) => {
                write!(f, "by the process manager that has started them (PMI, descriptor {descriptor})")
            }
            MeetingPlace::Pmix => write!(f, "by the process manager that has started them (PMIx)"),
            MeetingPlace::FirstNode(FirstNode { name, ports, .. }) => {
                write!(f, "at {name}, the first node of this step of Slurm, port {}", port_search::list(ports))
            }
            MeetingPlace::None(_) => write!(f, "nowhere: there is no place"),
        }
    }
}

/// Where the ranks of `launch` meet under `config`, in words; for `rsccl env`.
///
/// # Errors
/// The reason why there is no place.
pub fn place_in_words(launch: &Launch, config: &Config) -> Result<String> {
    let options = bootstrap_options(config)?;
    match MeetingPlace::of(launch, &options, 0)? {
        MeetingPlace::None(why) => Err(Error::invalid_argument(why)),
        place => Ok(format!("ranks meet {place}{}", roots_in_words(launch.world.size, &options))),
    }
}

/// By how many roots so many ranks check in, where that is not one.
pub(super) fn roots_in_words(world: u32, options: &Options) -> String {
    match options.roots(world) {
        0 | 1 => String::new(),
        roots => format!(", by {roots} roots of at most {} ranks", options.root_ranks),
    }
}

impl StorePlace {
    fn of(address: &StoreAddress, agent_run: Option<&String>) -> Result<StorePlace> {
        Ok(match (address, agent_run) {
            (StoreAddress::File(folder), _) => StorePlace::Folder(folder.clone()),
            (StoreAddress::Tcp { host, port }, None) => StorePlace::Served(HostPort::new(host, *port)?),
            (StoreAddress::Tcp { host, port }, Some(run)) => {
                StorePlace::Agent(HostPort::new(host, *port)?, run.clone())
            }
        })
    }
}

impl std::fmt::Display for StorePlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StorePlace::Served(place) => write!(f, "the store that rank 0 serves at {place}"),
            StorePlace::Agent(place, _) => write!(f, "the store of torchrun's agent at {place}"),
            StorePlace::Folder(folder) => write!(f, "the folder {}", folder.display()),
        }
    }
}

/// The warning that nothing tells this job from another one that meets at the same place. Only rank 0 says it.
pub(super) fn unguarded(launch: &Launch, place: &MeetingPlace, options: &Options) -> Option<String> {
    let is_shared = matches!(place, MeetingPlace::Fixed | MeetingPlace::Store(_));
    let is_unknown = launch.source == "PMI" && launch.job.as_ref().is_none_or(|job| !job.is_certain);
    (is_shared && is_unknown && options.secret.is_none() && launch.world.rank.get() == 0).then(|| {
        "nothing tells this job for certain from another one that is given the same place: the launcher (Hydra: MPICH, \
         Intel MPI) names no job; set RSCCL_SECRET, or make sure that no two jobs have one MASTER_PORT, RSCCL_STORE or \
         NCCL_COMM_ID"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Environment;

    type Variables = &'static [(&'static str, &'static str)];

    const OPEN_MPI: Variables = &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
    const HYDRA: Variables = &[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("PMI_FD", "7")];
    const SRUN: Variables = &[
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_JOB_ID", "7"),
        ("SLURM_LOCALID", "0"),
    ];
    const PMI2: Variables = &[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("PMI_JOBID", "7.0"), ("PMI_FD", "7")];
    const PMIX: Variables = &[("PMIX_RANK", "1"), ("PMIX_NAMESPACE", "slurm.pmix.7.0")];
    const HAND: Variables = &[("RANK", "1"), ("WORLD_SIZE", "4")];
    const TORCHRUN: Variables =
        &[("RANK", "1"), ("WORLD_SIZE", "4"), ("TORCHELASTIC_RUN_ID", "run"), ("TORCHELASTIC_USE_AGENT_STORE", "True")];
    const MASTER: Variables = &[("MASTER_ADDR", "n0"), ("MASTER_PORT", "29500")];
    const SLURM_ONE: Variables = &[("SLURM_STEP_NUM_NODES", "1")];
    const SLURM_TWO: Variables =
        &[("SLURM_STEP_NUM_NODES", "2"), ("SLURM_NODEID", "0"), ("SLURM_STEP_NODELIST", "n[0-1]")];

    /// What each launcher sets: always, where all ranks are on one host, and where they are on several.
    const LAUNCHERS: [(&str, &[Variables], Variables, Variables); 7] = [
        ("Open MPI", &[OPEN_MPI, &[("PMIX_NAMESPACE", "job")]], &[("OMPI_COMM_WORLD_LOCAL_SIZE", "4")], &[]),
        ("MPICH, Intel MPI", &[HYDRA], &[("MPI_LOCALNRANKS", "4")], &[("MPI_LOCALNRANKS", "2")]),
        ("srun", &[SRUN], SLURM_ONE, SLURM_TWO),
        ("srun pmi2", &[SRUN, PMI2], SLURM_ONE, SLURM_TWO),
        ("srun pmix", &[SRUN, PMIX], SLURM_ONE, SLURM_TWO),
        ("torchrun", &[TORCHRUN, MASTER], &[("LOCAL_WORLD_SIZE", "4")], &[("LOCAL_WORLD_SIZE", "2")]),
        ("by hand", &[HAND], &[], &[]),
    ];
    const STATES: [MpiState; 4] = [MpiState::None, MpiState::Waits, MpiState::Runs, MpiState::Ended];

    fn place(variables: &[Variables], has_comm_id: bool, mpi: MpiState) -> MeetingPlace {
        let environment = Environment::of(variables.iter().copied().flatten().copied());
        let config = Config::default().resolve_in(&environment).unwrap();
        let mut launch = Launch::learn(&environment, &config).unwrap();
        if variables.iter().flat_map(|some| some.iter()).any(|pair| *pair == ("MPI_LOCALNRANKS", "4")) {
            // The job is Hydra's process, which no test has above it.
            launch.lobby = Some("process 7".to_owned());
        }
        MeetingPlace::choose(&Facts { launch: &launch, has_comm_id, mpi, why_no_pmix: || None }, 0).unwrap()
    }

    fn word(place: &MeetingPlace) -> &'static str {
        match place {
            MeetingPlace::Fixed => "NCCL_COMM_ID",
            MeetingPlace::Alone => "alone",
            MeetingPlace::Lobby(_, None) => "in private",
            MeetingPlace::Lobby(_, Some(_)) => "in private, else store",
            MeetingPlace::Store(StorePlace::Served(_)) => "rank 0's store",
            MeetingPlace::Store(StorePlace::Agent(..)) => "agent's store",
            MeetingPlace::Store(StorePlace::Folder(_)) => "folder",
            MeetingPlace::ProcessManager(_) => "PMI",
            MeetingPlace::Pmix => "PMIx",
            MeetingPlace::FirstNode(_) => "first node",
            MeetingPlace::None(_) => "no place",
        }
    }

    fn table() -> String {
        let mut text =
            "| launcher | hosts | no MPI in the process | MPI not initialised yet | MPI runs | MPI finalised |\n\
            |---|---|---|---|---|---|\n"
                .to_owned();
        for (name, always, one, several) in LAUNCHERS {
            for (hosts, more) in [("one", one), ("several", several)] {
                let all = [always, &[more]].concat();
                let cells = STATES.map(|state| word(&place(&all, false, state)));
                text += &format!("| {name} | {hosts} | {} |\n", cells.join(" | "));
            }
        }
        text
    }

    #[test]
    fn the_documented_table_of_places_is_what_is_chosen() {
        let page = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/launchers.md");
        let (page, expected) = (std::fs::read_to_string(page).unwrap(), table());
        assert!(page.contains(&expected), "docs/launchers.md lacks this table:\n{expected}");
    }

    #[test]
    fn what_users_name_comes_before_what_launchers_tell() {
        for (name, always, one, several) in LAUNCHERS {
            for (hosts, mpi) in [one, several].into_iter().flat_map(|hosts| STATES.map(|state| (hosts, state))) {
                let with =
                    |more: Variables, has_comm_id| word(&place(&[always, &[hosts, more]].concat(), has_comm_id, mpi));
                assert_eq!(with(&[], true), "NCCL_COMM_ID", "{name}");
                assert_eq!(with(&[("RSCCL_STORE", "file:///tmp/x")], false), "folder", "{name}");
                let expected: &[&str] = match name {
                    "torchrun" => &["in private, else store", "agent's store"],
                    _ => &["in private, else store", "rank 0's store"],
                };
                assert!(expected.contains(&with(MASTER, false)), "{name}: {}", with(MASTER, false));
            }
        }
        let alone = place(&[&[("RANK", "0"), ("WORLD_SIZE", "1")]], false, MpiState::None);
        assert_eq!(word(&alone), "alone");
    }
}
