//! Rank, world and meeting place of this process, from the variables that a launcher has set.
//!
//! ```text
//!    launcher   rank                   world                 local rank                   local size
//! 1  rsccl run  RSCCL_RANK             RSCCL_WORLD_SIZE      RSCCL_LOCAL_RANK             RSCCL_LOCAL_WORLD_SIZE
//! 2  torchrun   RANK                   WORLD_SIZE            LOCAL_RANK                   LOCAL_WORLD_SIZE
//! 3  Open MPI   OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE  OMPI_COMM_WORLD_LOCAL_RANK   OMPI_COMM_WORLD_LOCAL_SIZE
//! 4  PMI        PMI_RANK               PMI_SIZE              MPI_LOCALRANKID,             MPI_LOCALNRANKS,
//!                                                            PMI_LOCAL_RANK,              PMI_LOCAL_SIZE
//!                                                            SLURM_LOCALID
//! 5  PMIx       PMIX_RANK              SLURM_STEP_NUM_TASKS, SLURM_LOCALID
//!                                      SLURM_NTASKS
//! 6  Slurm      SLURM_PROCID,          SLURM_STEP_NUM_TASKS, SLURM_LOCALID
//!               beside SLURM_STEP_ID   SLURM_NTASKS
//! ```
//!
//! Row 6 counts only in a step, which is what `srun` starts. A batch script and a shell of `salloc` also have
//! `SLURM_PROCID=0` and the job's `SLURM_NTASKS`, but are not ranks: there `SLURM_STEP_ID` is not set, or is one of the
//! numbers that Slurm reserves for such shells (above 4294967280). Open MPI distinguishes them in the same way.
//!
//! If a place has several names, the first one that is set counts; names of other rows do not. The launchers of each
//! row: row 1 `rsccl run`, which sets row 2 too, and whoever sets the variables by hand; row 2 torchrun, and scripts;
//! row 3 `mpirun` of Open MPI (it also sets the rank of row 5); row 4 Hydra (`mpirun` of MPICH and of Intel MPI) and
//! `srun --mpi=pmi2`; row 5 `srun --mpi=pmix`. The local rank and size are what the launcher says; the library
//! determines by itself which ranks share a host.
//!
//! # Launchers inside launchers
//!
//! A batch script starts `mpirun`, a rank of `mpirun` calls `srun`: each launcher passes on the variables of the one
//! around it, so that several rows may be set. Then this counts, the strongest first:
//!
//! 1. `RSCCL_RANK` and `RSCCL_WORLD_SIZE`, unless the nearest launcher had them already, as where `mpirun` is called
//!    in a rank of `rsccl run`.
//! 2. `RANK` and `WORLD_SIZE` that a script has set below the nearest launcher.
//! 3. The nearest launcher's process among the ancestors of this one, such as `orted`, `prted`, `prterun` or `mpirun`
//!    (row 3 and 5), `hydra_pmi_proxy` (row 4), `pt_elastic` (row 2), `slurmstepd` (rows 4 to 6).
//! 4. If no launcher's process can be seen, as in a container with a process namespace of its own: `PMI_JOBID` and
//!    `PMIX_NAMESPACE` that name another step of Slurm than this one are left over.
//! 5. Rows that agree on rank and world need no decision. If rows still disagree, joining is an error that names both.
//!
//! `docs/launchers.md` has the table of all pairs of launchers, with what counts in each.
//!
//! # Where ranks meet
//!
//! 1. `NCCL_COMM_ID`, else `RSCCL_STORE`, where they are set.
//! 2. If the launcher says that all ranks are on this host: in private, at a socket named after the job. Ranks that
//!    do not find it, as those in a container, use the next place.
//! 3. `MASTER_ADDR` and `MASTER_PORT`. If torchrun's agent serves its store there
//!    (`TORCHELASTIC_USE_AGENT_STORE=True`), ranks are clients of that store; else rank 0 serves one.
//! 4. In the key-value space of a process manager that speaks PMI (`PMI_FD`), unless MPI is in the process.
//! 5. In that of one that speaks PMIx (`PMIX_NAMESPACE`), where MPI runs in the process, or is not in it.
//! 6. In a step of Slurm: at a port of its first node (`first_node.rs`).
//!
//! Ranks of two jobs never form one world: what the launcher says of the job (`job.rs` lists it) is compared
//! wherever ranks meet.

mod first_node;
mod job;
#[cfg(test)]
mod pairs;
mod rows;
mod verdict;

use crate::error::{Error, Result, shown};
use crate::types::{Rank, World};

pub use super::store_address::StoreAddress;

/// What Slurm tells a step of the switches above its host: `spine.leaf.host`.
pub(super) const SWITCH_ADDRESS: &str = "SLURM_TOPOLOGY_ADDR";
/// The partition of a job of Slurm's.
pub(super) const PARTITION: &str = "SLURM_JOB_PARTITION";

use super::Config;
use super::environment::Environment;
pub(crate) use first_node::FirstNode;
pub(crate) use job::JobIdentity;
use rows::{LAUNCHERS, Launcher, Row, SLURM_RANK, SLURM_STEP};
use verdict::{Candidate, LauncherVerdict};

/// The facts that a launcher has told this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// This rank and the number of ranks.
    pub world: World,
    /// This rank's number among the ranks of its host, if the launcher tells it.
    pub local_rank: Option<u32>,
    /// How many ranks this host has, if the launcher tells it.
    pub local_size: Option<u32>,
    /// The store where the ranks meet. A world of one rank needs none.
    pub store: Option<StoreAddress>,
    /// The launcher's name in the module's table.
    pub source: &'static str,
    /// Whether the user has named the store (`RSCCL_STORE`, or the program's configuration).
    pub(crate) is_store_named: bool,
    /// The run of torchrun whose agent serves `store`.
    pub(crate) agent_run: Option<String>,
    /// The number of the socket to the process manager that has numbered the ranks, if there is one (PMI).
    pub(crate) process_manager: Option<u32>,
    /// Whether this process is a client of a process manager that speaks PMIx.
    pub(crate) is_pmix_client: bool,
    /// The first node of the step, where a step of Slurm tells it.
    pub(crate) first_node: Option<FirstNode>,
    /// The job, if its launcher tells it.
    pub(crate) job: Option<JobIdentity>,
    /// Whether the launcher says that all ranks are on this host.
    pub(crate) one_host: bool,
    /// The name of the place where the ranks of this host meet in private, if all are here and it can be known.
    pub(crate) lobby: Option<String>,
    /// What the user should know of these facts: results may be wrong although no call fails.
    pub(crate) warnings: Vec<String>,
}

impl Launch {
    /// Whether all ranks are on this host: the launcher says so, or it is `rsccl run`, which has no others.
    pub(crate) fn is_here(&self, environment: &Environment) -> bool {
        self.one_host || self.source == LAUNCHERS[0].source && environment.has(OWN_RUN)
    }

    /// Reads these facts from `environment`; a store in `config` (which must be resolved) takes precedence. Where the
    /// variables of several launchers are set, the processes above this one decide, if `environment` was captured.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] with the variable's name: no launcher's rank is set; the world's size is
    /// not set; a value is not a number; the rank is not below the world's size or the local rank not below the local
    /// size; two launchers have numbered this rank and which one counts cannot be told; or half of the store's address
    /// is missing.
    pub fn learn(environment: &Environment, config: &Config) -> Result<Launch> {
        let ancestors = environment.ancestors();
        if let Some(verdict) = verdict::weigh(environment, &ancestors)? {
            let daemon = verdict.daemon.and_then(|place| ancestors.get(place));
            return verdict.launch(environment, config, daemon);
        }
        let ranks: Vec<&str> = LAUNCHERS.iter().map(|launcher| launcher.rank).collect();
        let sizes = LAUNCHERS.iter().flat_map(|launcher| launcher.sizes);
        let half = sizes.into_iter().find(|name| environment.has(name));
        let hint = match half {
            // Batch scripts have the size too.
            _ if environment.has(SLURM_RANK) => format!(
                " ({SLURM_RANK} is set, but this is not a step of srun: {SLURM_STEP} is not set, or that of a shell)"
            ),
            Some(name) => format!(" ({name} is set, but no rank)"),
            None => String::new(),
        };
        Err(Error::invalid_argument(format!(
            "no launcher has set a rank{hint}: looked for {}; start the program with `rsccl run -n N -- program`, \
             torchrun, mpirun or srun, or set RSCCL_RANK and RSCCL_WORLD_SIZE",
            ranks.join(", ")
        )))
    }

    /// The names of all variables that [`Launch::learn`] reads, the strongest first.
    ///
    /// # Examples
    /// ```
    /// assert!(rsccl::config::Launch::names().contains(&"OMPI_COMM_WORLD_RANK"));
    /// ```
    pub fn names() -> Vec<&'static str> {
        let mut names = Vec::new();
        for launcher in LAUNCHERS {
            let Launcher { rank, sizes, local_ranks, local_sizes, hosts, .. } = launcher;
            let all = [&[*rank][..], sizes, local_ranks, local_sizes, hosts];
            names.extend(all.into_iter().flatten().copied());
        }
        names.extend([SLURM_STEP, PROCESS_MANAGER, "MASTER_ADDR", "MASTER_PORT", AGENT_STORE, OWN_RUN]);
        names.extend(job::NAMES);
        names.extend(first_node::NAMES);
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        names
    }

    /// Whether a launcher has made this process a rank: then [`Launch::learn`] finds one, or fails because a value is
    /// wrong.
    pub fn is_rank(environment: &Environment) -> bool {
        !matches!(verdict::weigh(environment, &environment.ancestors()), Ok(None))
    }
}

/// Names with our prefix that this file reads; the registry does not list them.
pub(super) const OWN_NAMES: &[&str] =
    &["RSCCL_RANK", "RSCCL_WORLD_SIZE", "RSCCL_LOCAL_RANK", "RSCCL_LOCAL_WORLD_SIZE", OWN_RUN];
/// What `rsccl run` sets beside its numbers, to its process number: whoever sets them by hand does not.
const OWN_RUN: &str = "RSCCL_RUN";

impl LauncherVerdict {
    fn launch(
        self,
        environment: &Environment,
        config: &Config,
        daemon: Option<&super::ancestors::Ancestor>,
    ) -> Result<Launch> {
        let Candidate { row, rank: (_, rank), size: (_, size) } = self.chosen;
        let by_slurm = self.job_of.is_some_and(|row| JobIdentity::is_slurms(row, environment, daemon));
        // Hydra's local numbers may be left over below `srun --mpi=pmi2`, which sets none of them.
        let (local_ranks, local_sizes) =
            if by_slurm { (&[SLURM_LOCAL_RANK][..], &[][..]) } else { (row.local_ranks, row.local_sizes) };
        let local_rank = number(environment, local_ranks)?;
        let local_size = number(environment, local_sizes)?;
        if let (Some(local_rank), Some(local_size)) = (local_rank, local_size) {
            check_within(local_rank, local_size)?;
        }
        let hosts = number(environment, row.hosts)?;
        // Scripts set the local size too, with any meaning: only a launcher's is believed.
        let one_host = self.job_of.is_some_and(|row| row.kind != Row::Own)
            && match (local_size, hosts) {
                (Some((_, local_size)), _) => local_size == size,
                (None, hosts) => hosts.is_some_and(|(_, hosts)| hosts == 1),
            };
        let job = self.job_of.and_then(|row| JobIdentity::of(row, environment, (daemon, one_host, size)));
        let of_step = |job: &JobIdentity| FirstNode::of(environment, config.port_range, &job.key);
        let first_node = job.as_ref().filter(|_| by_slurm).and_then(of_step);
        let lobby = self.job_of.and_then(|row| JobIdentity::lobby(job.as_ref(), row, environment)).filter(|_| one_host);
        // A program's own configuration may name one too.
        let is_left_over = self.is_store_left_over && environment.has("RSCCL_STORE");
        let named = config.store.clone().filter(|_| !is_left_over);
        let address = if named.is_none() { master(environment)? } else { None };
        let is_torchruns = self.job_of.is_some_and(|row| row.kind == Row::Torchrun);
        let is_agents = is_torchruns && address.is_some() && is_true(environment, AGENT_STORE);
        let run =
            is_agents.then(|| environment.get(job::RUN_ID).map(|run| run.unwrap_or(job::NO_RUN_ID))).transpose()?;
        let is_pmis = row.kind == Row::Pmi;
        let process_manager = if is_pmis { number(environment, &[PROCESS_MANAGER])? } else { None };
        Ok(Launch {
            world: World { rank: Rank::new(rank), size },
            local_rank: local_rank.map(|(_, local_rank)| local_rank),
            local_size: local_size.map(|(_, local_size)| local_size),
            is_store_named: named.is_some(),
            store: named.or(address),
            source: row.source,
            agent_run: run.map(str::to_owned),
            process_manager: process_manager.map(|(_, descriptor)| descriptor),
            is_pmix_client: self.job_of.is_some_and(|row| job::has_pmix(row, environment)),
            first_node,
            warnings: self.larger.map(|larger| lone_world(&self.chosen, &larger)).into_iter().collect(),
            job,
            one_host,
            lobby,
        })
    }
}

/// The warning that this rank's world is of one rank although a launcher has started several.
fn lone_world(chosen: &Candidate, larger: &Candidate) -> String {
    let ((rank_name, rank), (size_name, size)) = (chosen.rank, chosen.size);
    format!(
        "{} has started {} ranks, but {rank_name}={rank} and {size_name}={size} make this process a world of its own: \
         unset them where that is not meant",
        larger.row.source, larger.size.1
    )
}

/// Checks that a rank is below the size; both come with their variables' names.
fn check_within((rank_name, rank): (&str, u32), (size_name, size): (&str, u32)) -> Result<()> {
    match size.checked_sub(1) {
        None => Err(Error::invalid_argument(format!("{size_name}=0 (environment): a world has at least 1 rank"))),
        Some(last) if rank > last => Err(Error::invalid_argument(format!(
            "{rank_name}={rank} (environment) is not below {size_name}={size}: ranks are 0 to {last}"
        ))),
        Some(_) => Ok(()),
    }
}

/// The first of `names` that is set, parsed as a number.
fn number<'a>(environment: &Environment, names: &[&'a str]) -> Result<Option<(&'a str, u32)>> {
    for name in names {
        if let Some(text) = environment.get(name)? {
            let digits = text.trim().bytes().all(|byte| byte.is_ascii_digit());
            let number = text.trim().parse::<u32>().ok().filter(|_| digits);
            let wrong = || {
                let (text, is_size) = (shown(text), LAUNCHERS.iter().any(|row| row.sizes.contains(name)));
                let range = if is_size { "a whole number, 1 to 1048576" } else { "a whole number from 0" };
                Error::invalid_argument(format!("{name}={text:?} (environment): allowed: {range}"))
            };
            return Ok(Some((name, number.ok_or_else(wrong)?)));
        }
    }
    Ok(None)
}

fn is_true(environment: &Environment, name: &str) -> bool {
    environment.get(name).ok().flatten().is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// The address that `MASTER_ADDR` and `MASTER_PORT` name.
fn master(environment: &Environment) -> Result<Option<StoreAddress>> {
    let (host, port) = match (environment.get("MASTER_ADDR")?, environment.get("MASTER_PORT")?) {
        (Some(host), Some(port)) => (host, port),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(Error::invalid_argument("MASTER_ADDR is set, but MASTER_PORT is not")),
        (None, Some(_)) => return Err(Error::invalid_argument("MASTER_PORT is set, but MASTER_ADDR is not")),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let address = StoreAddress::tcp(bare, port.trim()).map_err(|why| {
        let (host, port) = (shown(host), shown(port));
        Error::invalid_argument(format!("MASTER_ADDR={host:?} MASTER_PORT={port:?} (environment): {why}"))
    })?;
    Ok(Some(address))
}

const SLURM_LOCAL_RANK: &str = "SLURM_LOCALID";
/// The descriptor of the socket to a process manager that speaks PMI.
const PROCESS_MANAGER: &str = "PMI_FD";
/// Whether torchrun's agent serves a store at `MASTER_PORT`.
const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(variables: &[(&str, &str)]) -> Result<Launch> {
        let environment = Environment::of(variables.iter().copied());
        let config = Config::default().resolve_in(&environment)?;
        Launch::learn(&environment, &config)
    }

    fn refused(variables: &[(&str, &str)]) -> String {
        learn(variables).unwrap_err().to_string()
    }

    #[test]
    fn torchrun() {
        let launch = learn(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29500"),
        ])
        .unwrap();
        assert_eq!((launch.world.rank.get(), launch.world.size, launch.local_rank), (3, 8, Some(1)));
        assert_eq!(launch.store.unwrap().to_string(), "tcp://node0:29500");
        assert_eq!(launch.source, "torchrun");
    }

    #[test]
    fn torchruns_agent_serves_its_store_and_its_run_is_the_job() {
        let base = [("RANK", "0"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "::1"), ("MASTER_PORT", "29500")];
        let with = |more: &[(&'static str, &'static str)]| learn(&[&base[..], more].concat()).unwrap();
        let agents = ("TORCHELASTIC_USE_AGENT_STORE", "True");
        let launch = with(&[agents, (job::RUN_ID, "run7"), ("LOCAL_WORLD_SIZE", "2")]);
        assert_eq!(
            (launch.agent_run.as_deref(), launch.one_host, launch.lobby.as_deref()),
            (Some("run7"), false, None)
        );
        assert_eq!(launch.store.unwrap().to_string(), "tcp://[::1]:29500");
        assert_eq!(launch.job.unwrap().name, "torchrun's run run7");
        // The default id is the same for every job; the agent's port is not.
        let here = with(&[agents, (job::RUN_ID, "none"), ("LOCAL_WORLD_SIZE", "4")]);
        assert_eq!((here.job, here.agent_run.as_deref()), (None, Some("none")));
        assert_eq!(here.lobby.as_deref(), Some("torchrun's run none at ::1:29500"));
        let without = with(&[("TORCHELASTIC_USE_AGENT_STORE", "False"), (job::RUN_ID, "run7")]);
        assert_eq!((without.agent_run, without.store.unwrap().to_string()), (None, "tcp://[::1]:29500".to_owned()));
        // Two agents of one round differ in the count of restarts.
        let restarted = with(&[agents, (job::RUN_ID, "run7"), ("TORCHELASTIC_RESTART_COUNT", "1")]);
        assert_eq!(restarted.job, with(&[agents, (job::RUN_ID, "run7"), ("TORCHELASTIC_RESTART_COUNT", "0")]).job);
    }

    #[test]
    fn each_launcher_by_itself() {
        for launcher in LAUNCHERS {
            for size in launcher.sizes {
                let launch = learn(&[(launcher.rank, "2"), (size, "4"), (SLURM_STEP, "0")]).unwrap();
                assert_eq!((launch.source, launch.world.rank.get(), launch.world.size), (launcher.source, 2, 4));
                assert_eq!((launch.local_rank, launch.local_size, launch.store), (None, None, None));
            }
            let base = [(launcher.rank, "2"), (launcher.sizes[0], "4"), (SLURM_STEP, "0")];
            // The strongest name comes first, so each one counts when those before it are unset.
            for first in 0..launcher.local_ranks.len() {
                let numbers = launcher.local_ranks[first..].iter().copied().zip(["0", "1", "2"]);
                let variables: Vec<_> = base.into_iter().chain(numbers).collect();
                assert_eq!(learn(&variables).unwrap().local_rank, Some(0));
            }
            for first in 0..launcher.local_sizes.len() {
                let numbers = launcher.local_sizes[first..].iter().copied().zip(["1", "2", "3"]);
                let variables: Vec<_> = base.into_iter().chain(numbers).collect();
                assert_eq!(learn(&variables).unwrap().local_size, Some(1));
            }
        }
    }

    /// What these launchers set, as seen in their ranks; each sets much more that is not read here.
    #[test]
    fn real_launchers() {
        type Seen<'a> = (&'a str, &'a [(&'a str, &'a str)], Option<u32>);
        let seen: [Seen<'_>; 6] = [
            (
                "Open MPI",
                &[
                    ("OMPI_COMM_WORLD_RANK", "3"),
                    ("OMPI_COMM_WORLD_SIZE", "4"),
                    ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
                    ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
                    ("OMPI_COMM_WORLD_NODE_RANK", "1"),
                    ("OMPI_UNIVERSE_SIZE", "8"),
                    ("PMIX_RANK", "3"),
                ],
                Some(2),
            ),
            (
                "PMI",
                &[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "2")],
                Some(2),
            ),
            ("PMI", &[("PMI_RANK", "3"), ("PMI_SIZE", "4"), ("SLURM_PROCID", "3"), ("SLURM_LOCALID", "1")], None),
            // Hydra inside a batch script of Slurm: the script's variables are inherited.
            (
                "PMI",
                &[
                    ("SLURM_PROCID", "0"),
                    ("SLURM_LOCALID", "0"),
                    ("SLURM_NTASKS", "1"),
                    ("PMI_RANK", "3"),
                    ("PMI_SIZE", "4"),
                    ("MPI_LOCALRANKID", "1"),
                    ("MPI_LOCALNRANKS", "2"),
                ],
                Some(2),
            ),
            (
                "PMIx",
                &[("PMIX_RANK", "3"), ("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_LOCALID", "1")],
                None,
            ),
            (
                "Slurm",
                &[
                    ("SLURM_PROCID", "3"),
                    ("SLURM_STEP_ID", "0"),
                    ("SLURM_STEP_NUM_TASKS", "4"),
                    ("SLURM_NTASKS", "8"),
                    ("SLURM_LOCALID", "1"),
                ],
                None,
            ),
        ];
        for (source, variables, local_size) in seen {
            let launch = learn(variables).unwrap();
            assert_eq!((launch.source, launch.world.rank.get(), launch.world.size), (source, 3, 4));
            assert_eq!((launch.local_rank, launch.local_size), (Some(1), local_size), "{source}");
        }
    }

    /// The variables of a batch script and of a shell of `salloc`, and of a program that they start without a launcher.
    #[test]
    fn what_slurm_sets_in_a_batch_script_makes_no_rank() {
        let of_job = [("SLURM_JOB_ID", "7"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_LOCALID", "0")];
        let with = |step: Option<&'static str>, more: &[(&'static str, &'static str)]| -> Vec<(&str, &str)> {
            of_job.into_iter().chain(step.map(|step| (SLURM_STEP, step))).chain(more.iter().copied()).collect()
        };
        let is_rank = |variables: &[(&str, &str)]| Launch::is_rank(&Environment::of(variables.iter().copied()));
        // No step; the step of a batch script; of an interactive shell; a meaningless value.
        for step in [None, Some("4294967291"), Some("4294967290"), Some(""), Some("batch")] {
            let text = refused(&with(step, &[]));
            assert!(text.contains("SLURM_PROCID is set, but this is not a step of srun"), "{step:?}: {text}");
            assert!(!is_rank(&with(step, &[])), "{step:?}");
            // A program that mpirun or a script starts there is a rank.
            let inside = with(step, &[("PMI_RANK", "3"), ("PMI_SIZE", "4")]);
            let launch = learn(&inside).unwrap();
            assert_eq!((launch.source, launch.world.rank.get(), is_rank(&inside)), ("PMI", 3, true));
        }
        for step in ["0", "17", "4294967280"] {
            assert_eq!(learn(&with(Some(step), &[])).unwrap().source, "Slurm");
            assert!(is_rank(&with(Some(step), &[])));
        }
    }

    #[test]
    fn a_launcher_says_that_all_ranks_are_here() {
        let here = |variables: &[(&str, &str)]| learn(variables).unwrap().one_host;
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert!(here(&[open_mpi[0], open_mpi[1], ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")]));
        assert!(!here(&[open_mpi[0], open_mpi[1], ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]));
        assert!(!here(&open_mpi), "not told");
        let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        assert!(here(&[pmi[0], pmi[1], ("MPI_LOCALNRANKS", "4")]));
        assert!(!here(&[pmi[0], pmi[1], ("MPI_LOCALNRANKS", "3"), ("SLURM_NNODES", "1")]), "its own word counts more");
        assert!(here(&[pmi[0], pmi[1], ("SLURM_STEP_NUM_NODES", "1"), ("SLURM_NNODES", "2")]));
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4")];
        assert!(here(&[slurm[0], slurm[1], slurm[2], ("SLURM_NNODES", "1")]));
        assert!(!here(&[slurm[0], slurm[1], slurm[2], ("SLURM_NNODES", "2")]));
        assert!(!here(&[("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4")]), "scripts set these, too");
    }

    #[test]
    fn jobs_are_named_by_the_launcher_that_numbered_the_rank() {
        let named = |variables: &[(&str, &str)]| learn(variables).unwrap().job.map(|job| job.name);
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "3"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "7")];
        let with = |more: &[(&'static str, &'static str)]| named(&[&slurm[..], more].concat());
        assert_eq!(with(&[]).unwrap(), "Slurm's job 7 step 3");
        assert_eq!(with(&[("SLURM_RESTART_COUNT", "2")]).unwrap(), "Slurm's job 7 step 3, restart 2");
        let pmi2 = with(&[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("PMI_JOBID", "7.3")]).unwrap();
        let pmix = with(&[("PMIX_RANK", "1"), ("PMIX_NAMESPACE", "slurm.pmix.7.3")]).unwrap();
        assert_eq!((&*pmi2, &*pmix), ("Slurm's job 7 step 3", "Slurm's job 7 step 3"));
        // A script's copy of the launcher's numbers is the launcher's job; other numbers are nobody's.
        let copied = [("RANK", "1"), ("WORLD_SIZE", "4")];
        assert_eq!(with(&copied).unwrap(), "Slurm's job 7 step 3");
        assert_eq!(named(&[("RSCCL_RANK", "0"), ("RSCCL_WORLD_SIZE", "4"), slurm[0], slurm[1], slurm[2]]), None);
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        let space = ("PMIX_NAMESPACE", "prterun-node0-99@1");
        assert_eq!(named(&[open_mpi[0], open_mpi[1], space]).unwrap(), "Open MPI's job prterun-node0-99@1");
        // Hydra names no job, and here its process is not seen.
        let hydra = [("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        let here = learn(&[hydra[0], hydra[1], ("MPI_LOCALNRANKS", "4")]).unwrap();
        assert!(here.job.is_some_and(|job| !job.is_certain && job.name.contains("not seen, of 4 ranks")));
        assert_eq!(here.lobby, None);
        assert_eq!(named(&[hydra[0], hydra[1], ("MPI_LOCALNRANKS", "2")]), None);
        let slurms =
            learn(&[hydra[0], hydra[1], ("MPI_LOCALNRANKS", "2"), ("SLURM_JOB_ID", "7")]).unwrap().job.unwrap();
        assert_eq!((&*slurms.name, slurms.is_certain), ("mpirun in Slurm's job 7", false));
        // A component of a heterogeneous job, where Slurm tells the size of one only.
        let component = [("SLURM_PROCID", "2"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
        let why = refused(&[component[0], component[1], component[2], ("SLURM_HET_SIZE", "2")]);
        assert!(why.contains("SLURM_HET_SIZE=2") && why.contains("RSCCL_WORLD_SIZE"), "{why}");
    }

    #[test]
    fn whoever_has_a_rank_is_one() {
        let is_rank = |variables: &[(&str, &str)]| Launch::is_rank(&Environment::of(variables.iter().copied()));
        for launcher in LAUNCHERS {
            assert!(is_rank(&[(launcher.rank, "0"), (SLURM_STEP, "0")]), "{}", launcher.source);
            assert!(!is_rank(&[(launcher.sizes[0], "4"), (SLURM_STEP, "0")]), "{}", launcher.source);
        }
        assert!(is_rank(&[("RANK", "nonsense")]), "an error, and not no rank");
        assert!(!is_rank(&[("RANK", "")]) && !is_rank(&[]));
    }

    #[test]
    fn errors_name_the_variable() {
        assert!(refused(&[]).contains("looked for RSCCL_RANK, RANK, OMPI_COMM_WORLD_RANK"));
        assert!(refused(&[("WORLD_SIZE", "4")]).contains("WORLD_SIZE is set, but no rank"));
        assert!(refused(&[("RANK", "1")]).contains("RANK=1 is set (torchrun), but WORLD_SIZE is not"));
        assert!(
            refused(&[("RANK", "4"), ("WORLD_SIZE", "4")]).contains("RANK=4 (environment) is not below WORLD_SIZE=4")
        );
        assert!(refused(&[("RANK", "-1"), ("WORLD_SIZE", "4")]).contains("RANK=\"-1\""));
        assert!(refused(&[("RANK", "0"), ("WORLD_SIZE", "0")]).contains("WORLD_SIZE=0"));
        assert!(refused(&[("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "x")]).contains("LOCAL_RANK=\"x\""));
        let local = [("RANK", "3"), ("WORLD_SIZE", "4"), ("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "2")];
        assert!(
            refused(&local).contains("LOCAL_RANK=2 (environment) is not below LOCAL_WORLD_SIZE=2: ranks are 0 to 1")
        );
        // It is no source of a size for other launchers, and none of a rank.
        assert!(
            refused(&[("PMIX_RANK", "1"), ("WORLD_SIZE", "4")]).contains("SLURM_STEP_NUM_TASKS or SLURM_NTASKS is not")
        );
        let base = [("RANK", "0"), ("WORLD_SIZE", "1")];
        let with = |more: (&'static str, &'static str)| refused(&[base[0], base[1], more]);
        assert!(with(("MASTER_ADDR", "x")).contains("MASTER_PORT is not"));
        assert!(with(("MASTER_PORT", "1")).contains("MASTER_ADDR is not"));
        let port = refused(&[base[0], base[1], ("MASTER_ADDR", "x"), ("MASTER_PORT", "99999")]);
        assert!(port.contains("MASTER_PORT=\"99999\""), "{port}");
    }
}
