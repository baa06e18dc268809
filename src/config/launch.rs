//! Rank, world and meeting place of this process, from the variables that a launcher has set.
//!
//! The first launcher in this table whose rank variable is set counts. Inner launchers come first, because launchers
//! are nested: `srun` starts `mpirun`, which starts a script that sets `RANK`. And a batch script of Slurm passes
//! `SLURM_PROCID=0` to every program that it starts.
//!
//! ```text
//!    launcher   rank                   world                 local rank                   local size
//! 1  rsccl run  RSCCL_RANK             RSCCL_WORLD_SIZE      RSCCL_LOCAL_RANK             RSCCL_LOCAL_WORLD_SIZE
//! 2  torchrun   RANK                   WORLD_SIZE            LOCAL_RANK                   LOCAL_WORLD_SIZE
//! 3  Open MPI   OMPI_COMM_WORLD_RANK   OMPI_COMM_WORLD_SIZE  OMPI_COMM_WORLD_LOCAL_RANK   OMPI_COMM_WORLD_LOCAL_SIZE
//! 4  PMI        PMI_RANK               PMI_SIZE              MPI_LOCALRANKID,             MPI_LOCALNRANKS,
//!                                                            PMI_LOCAL_RANK,              PMI_LOCAL_SIZE
//!                                                            SLURM_LOCALID
//! 5  PMIx       PMIX_RANK              WORLD_SIZE,           SLURM_LOCALID
//!                                      SLURM_STEP_NUM_TASKS,
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
//! row: row 1 `rsccl run`, which sets row 2 too, and whoever sets the variables by hand; row 2 torchrun; row 3 `mpirun`
//! of Open MPI (it also sets the rank of row 5, and row 3 wins); row 4 Hydra (`mpirun` of MPICH and of Intel MPI) and
//! `srun --mpi=pmi2`; row 5 `srun --mpi=pmix` and `prun`. The local rank and size are what the launcher says; the
//! library determines by itself which ranks share a host.
//!
//! The meeting place is `RSCCL_STORE`, else `MASTER_ADDR` and `MASTER_PORT`. Else, if the launcher of row 3 to 6 says
//! that all ranks are on this host, it is a private folder of this user under `/tmp`, named after the launcher's
//! process. If torchrun's agent serves its own store on `MASTER_PORT` (`TORCHELASTIC_USE_AGENT_STORE=True`), ours is
//! one port above it.

use crate::error::{Error, Result};
use crate::types::{Rank, World};

pub use super::store_address::StoreAddress;

/// What Slurm tells a step of the switches above its host: `spine.leaf.host`.
pub(super) const SWITCH_ADDRESS: &str = "SLURM_TOPOLOGY_ADDR";

use super::Config;
use super::environment::Environment;

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
    /// The names of the launcher's own processes, if it says that all ranks are on this host: the ranks of one job have
    /// one of those processes as an ancestor.
    pub(crate) daemons: Option<&'static [&'static str]>,
}

impl Launch {
    /// Reads these facts from `environment`; a store in `config` (which must be resolved) takes precedence.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] with the variable's name: no launcher's rank is set; the world's size is
    /// not set; a value is not a number; the rank is not below the world's size or the local rank not below the local
    /// size; or half of the store's address is missing.
    pub fn learn(environment: &Environment, config: &Config) -> Result<Launch> {
        for launcher in LAUNCHERS {
            if launcher.is_here(environment)
                && let Some((name, rank)) = number(environment, &[launcher.rank])?
            {
                return launcher.launch(environment, config, (name, rank));
            }
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
        names.extend([SLURM_STEP, "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"]);
        let mut seen = std::collections::HashSet::new();
        names.retain(|name| seen.insert(*name));
        names
    }

    /// Whether a launcher has made this process a rank: then [`Launch::learn`] finds one, or fails because a value is
    /// wrong.
    pub fn is_rank(environment: &Environment) -> bool {
        LAUNCHERS.iter().any(|launcher| launcher.is_here(environment) && environment.has(launcher.rank))
    }
}

/// The variables of one launcher.
struct Launcher {
    source: &'static str,
    /// The condition under which its variables count.
    step: Step,
    rank: &'static str,
    /// The names of `sizes`, `local_ranks` and `local_sizes` are listed strongest first.
    sizes: &'static [&'static str],
    local_ranks: &'static [&'static str],
    local_sizes: &'static [&'static str],
    /// Variables for the number of hosts, used if the local size is not known.
    hosts: &'static [&'static str],
    /// Names of the launcher's processes that start ranks.
    daemons: &'static [&'static str],
}

/// The Slurm steps in which a launcher's variables count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Everywhere.
    Any,
    /// In steps that `srun` has started.
    OfSrun,
}

const SLURM_RANK: &str = "SLURM_PROCID";
const SLURM_STEP: &str = "SLURM_STEP_ID";
/// The highest number of a step that runs tasks; higher numbers are batch scripts and shells (slurm.h:
/// `SLURM_MAX_NORMAL_STEP_ID`).
const LAST_STEP: u32 = 0xffff_fff0;

static LAUNCHERS: &[Launcher] = &[
    Launcher {
        source: "rsccl run",
        step: Step::Any,
        rank: "RSCCL_RANK",
        sizes: &["RSCCL_WORLD_SIZE"],
        local_ranks: &["RSCCL_LOCAL_RANK"],
        local_sizes: &["RSCCL_LOCAL_WORLD_SIZE"],
        hosts: &[],
        daemons: &[],
    },
    Launcher {
        source: "torchrun",
        step: Step::Any,
        rank: "RANK",
        sizes: &["WORLD_SIZE"],
        local_ranks: &["LOCAL_RANK"],
        local_sizes: &["LOCAL_WORLD_SIZE"],
        hosts: &[],
        daemons: &[],
    },
    Launcher {
        source: "Open MPI",
        step: Step::Any,
        rank: "OMPI_COMM_WORLD_RANK",
        sizes: &["OMPI_COMM_WORLD_SIZE"],
        local_ranks: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_sizes: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        hosts: &[],
        daemons: MPIRUN,
    },
    Launcher {
        source: "PMI",
        step: Step::Any,
        rank: "PMI_RANK",
        sizes: &["PMI_SIZE"],
        local_ranks: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"],
        local_sizes: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        hosts: SLURM_HOSTS,
        daemons: HYDRA,
    },
    Launcher {
        source: "PMIx",
        step: Step::Any,
        rank: "PMIX_RANK",
        sizes: &["WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_ranks: &["SLURM_LOCALID"],
        local_sizes: &[],
        hosts: SLURM_HOSTS,
        daemons: SRUN,
    },
    Launcher {
        source: "Slurm",
        step: Step::OfSrun,
        rank: SLURM_RANK,
        sizes: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_ranks: &["SLURM_LOCALID"],
        local_sizes: &[],
        hosts: SLURM_HOSTS,
        daemons: SRUN,
    },
];

/// The number of hosts of a step, and of a job.
const SLURM_HOSTS: &[&str] = &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];
/// The launcher processes of Open MPI 4 and 5.
const MPIRUN: &[&str] = &["mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "prte"];
/// The launcher processes of MPICH, Intel MPI and `srun --mpi=pmi2`.
const HYDRA: &[&str] = &["hydra_pmi_proxy", "hydra_bstrap_pr", "slurmstepd", "pmi_proxy"];
const SRUN: &[&str] = &["slurmstepd", "prted", "prterun"];

/// Names with our prefix that this file reads; the registry does not list them.
pub(super) const OWN_NAMES: &[&str] = &["RSCCL_RANK", "RSCCL_WORLD_SIZE", "RSCCL_LOCAL_RANK", "RSCCL_LOCAL_WORLD_SIZE"];

impl Launcher {
    /// Whether the launcher's variables are meant for this process, and not inherited from a shell around it.
    fn is_here(&self, environment: &Environment) -> bool {
        match self.step {
            Step::Any => true,
            Step::OfSrun => {
                // A value that is not a number does not come from Slurm.
                let step = environment.get(SLURM_STEP).ok().flatten().and_then(|text| text.trim().parse::<u32>().ok());
                step.is_some_and(|step| step <= LAST_STEP)
            }
        }
    }

    fn launch(&self, environment: &Environment, config: &Config, rank: (&str, u32)) -> Result<Launch> {
        let (rank_name, rank) = rank;
        let Some((size_name, size)) = number(environment, self.sizes)? else {
            let (names, source) = (self.sizes.join(" or "), self.source);
            return Err(Error::invalid_argument(format!("{rank_name}={rank} is set ({source}), but {names} is not")));
        };
        check_within((rank_name, rank), (size_name, size))?;
        let local_rank = number(environment, self.local_ranks)?;
        let local_size = number(environment, self.local_sizes)?;
        if let (Some(local_rank), Some(local_size)) = (local_rank, local_size) {
            check_within(local_rank, local_size)?;
        }
        let hosts = number(environment, self.hosts)?;
        let is_one_host = match (local_size, hosts) {
            (Some((_, local_size)), _) => local_size == size,
            (None, hosts) => hosts.is_some_and(|(_, hosts)| hosts == 1),
        };
        Ok(Launch {
            daemons: (is_one_host && !self.daemons.is_empty()).then_some(self.daemons),
            world: World { rank: Rank::new(rank), size },
            local_rank: local_rank.map(|(_, local_rank)| local_rank),
            local_size: local_size.map(|(_, local_size)| local_size),
            store: store(environment, config)?,
            source: self.source,
        })
    }
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
            let wrong =
                || Error::invalid_argument(format!("{name}={text:?} (environment): allowed: a whole number from 0"));
            return Ok(Some((name, number.ok_or_else(wrong)?)));
        }
    }
    Ok(None)
}

fn store(environment: &Environment, config: &Config) -> Result<Option<StoreAddress>> {
    if let Some(store) = &config.store {
        return Ok(Some(store.clone()));
    }
    let (host, port) = match (environment.get("MASTER_ADDR")?, environment.get("MASTER_PORT")?) {
        (Some(host), Some(port)) => (host, port),
        (None, None) => return Ok(None),
        (Some(_), None) => return Err(Error::invalid_argument("MASTER_ADDR is set, but MASTER_PORT is not")),
        (None, Some(_)) => return Err(Error::invalid_argument("MASTER_PORT is set, but MASTER_ADDR is not")),
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let wrong = |why: String| {
        Error::invalid_argument(format!("MASTER_ADDR={host:?} MASTER_PORT={port:?} (environment): {why}"))
    };
    let address = StoreAddress::tcp(bare, port.trim()).map_err(wrong)?;
    let taken =
        environment.get("TORCHELASTIC_USE_AGENT_STORE")?.is_some_and(|value| value.eq_ignore_ascii_case("true"));
    match address {
        StoreAddress::Tcp { host, port } if taken => match port.checked_add(1) {
            Some(port) => Ok(Some(StoreAddress::Tcp { host, port })),
            None => Err(wrong("torchrun's own store has this port, and there is none above it for ours".to_owned())),
        },
        address => Ok(Some(address)),
    }
}

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
    fn torchruns_agent_has_its_port_so_ours_is_the_next() {
        let with = |port| {
            learn(&[
                ("RANK", "0"),
                ("WORLD_SIZE", "1"),
                ("MASTER_ADDR", "::1"),
                ("MASTER_PORT", port),
                ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ])
        };
        assert_eq!(with("29500").unwrap().store.unwrap().to_string(), "tcp://[::1]:29501");
        assert!(with("65535").unwrap_err().to_string().contains("none above"));
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

    #[test]
    fn the_innermost_launcher_wins() {
        let mut variables = vec![("RSCCL_STORE", "file:///tmp/store"), (SLURM_STEP, "7")];
        for (rank, launcher) in (0..u32::try_from(LAUNCHERS.len()).unwrap()).zip(LAUNCHERS) {
            variables.push((launcher.rank, ["0", "1", "2", "3", "4", "5"][rank as usize]));
            variables.extend(launcher.sizes.iter().map(|size| (*size, "16")));
        }
        for (rank, launcher) in LAUNCHERS.iter().enumerate() {
            let launch = learn(&variables).unwrap();
            assert_eq!((launch.source, launch.world.rank.index()), (launcher.source, rank));
            assert_eq!(launch.store.unwrap().to_string(), "file:///tmp/store");
            variables.retain(|(name, _)| *name != launcher.rank);
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
    fn only_a_launcher_that_has_all_ranks_here_gives_them_a_place_to_meet() {
        let daemons = |variables: &[(&str, &str)]| learn(variables).unwrap().daemons.is_some();
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert!(daemons(&[open_mpi[0], open_mpi[1], ("OMPI_COMM_WORLD_LOCAL_SIZE", "4")]));
        assert!(!daemons(&[open_mpi[0], open_mpi[1], ("OMPI_COMM_WORLD_LOCAL_SIZE", "2")]));
        assert!(!daemons(&open_mpi), "not told");
        let pmi = [("PMI_RANK", "1"), ("PMI_SIZE", "4")];
        assert!(daemons(&[pmi[0], pmi[1], ("MPI_LOCALNRANKS", "4")]));
        assert!(
            !daemons(&[pmi[0], pmi[1], ("MPI_LOCALNRANKS", "3"), ("SLURM_NNODES", "1")]),
            "its own word counts more"
        );
        assert!(daemons(&[pmi[0], pmi[1], ("SLURM_STEP_NUM_NODES", "1"), ("SLURM_NNODES", "2")]));
        let slurm = [("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "0"), ("SLURM_NTASKS", "4")];
        assert!(daemons(&[slurm[0], slurm[1], slurm[2], ("SLURM_NNODES", "1")]));
        assert!(!daemons(&[slurm[0], slurm[1], slurm[2], ("SLURM_NNODES", "2")]));
        assert!(!daemons(&[("RANK", "1"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4")]), "scripts set these, too");
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
        let base = [("RANK", "0"), ("WORLD_SIZE", "1")];
        let with = |more: (&'static str, &'static str)| refused(&[base[0], base[1], more]);
        assert!(with(("MASTER_ADDR", "x")).contains("MASTER_PORT is not"));
        assert!(with(("MASTER_PORT", "1")).contains("MASTER_ADDR is not"));
        let port = refused(&[base[0], base[1], ("MASTER_ADDR", "x"), ("MASTER_PORT", "99999")]);
        assert!(port.contains("MASTER_PORT=\"99999\""), "{port}");
    }
}
