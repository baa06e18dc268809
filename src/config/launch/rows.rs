//! The table of launchers: which variables each sets, and the names of the processes by which it starts ranks.

use crate::config::ancestors::Ancestor;
use crate::config::environment::Environment;

/// The variables of one launcher.
#[derive(Debug)]
pub(super) struct Launcher {
    pub(super) source: &'static str,
    pub(super) kind: Row,
    pub(super) rank: &'static str,
    /// The names of `sizes`, `local_ranks` and `local_sizes` are listed strongest first.
    pub(super) sizes: &'static [&'static str],
    pub(super) local_ranks: &'static [&'static str],
    pub(super) local_sizes: &'static [&'static str],
    /// Variables for the number of hosts, used if the local size is not known.
    pub(super) hosts: &'static [&'static str],
    /// Whose processes start ranks that have these variables.
    pub(super) families: &'static [DaemonKind],
}

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    Own,
    Torchrun,
    OpenMpi,
    Pmi,
    Pmix,
    Slurm,
}

/// Launchers, told apart by the names of the processes that start ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DaemonKind {
    RscclRun,
    Torchrun,
    OpenMpi,
    Hydra,
    Slurm,
    /// A batch script of Slurm: what it starts itself is no rank.
    BatchScript,
    /// Launchers whose processes are known by name only; they speak PMI or PMIx.
    Other,
}

impl Row {
    /// Whether people set these variables by hand: then no process of a launcher stands behind them.
    pub(super) fn may_be_set_by_hand(self) -> bool {
        matches!(self, Row::Own | Row::Torchrun)
    }
}

impl DaemonKind {
    /// The launcher whose process `ancestor` is, if it is one.
    pub(super) fn of(ancestor: &Ancestor) -> Option<DaemonKind> {
        let name = ancestor.name.as_str();
        let starts = |names: &[&str]| names.iter().any(|known| name.starts_with(known));
        if name == "rsccl" {
            Some(DaemonKind::RscclRun)
        } else if starts(&["pt_elastic", "torchrun"]) {
            Some(DaemonKind::Torchrun)
        } else if starts(&["hydra_", "pmi_proxy"]) {
            Some(DaemonKind::Hydra)
        } else if starts(&["slurmstepd"]) {
            Some(DaemonKind::Slurm)
        } else if name == "slurm_script" {
            Some(DaemonKind::BatchScript)
        } else if starts(&["orted", "prted", "prte", "orterun", "mpirun", "mpiexec"]) {
            // Hydra's mpirun starts no rank itself: its proxies, which are nearer, do.
            Some(DaemonKind::OpenMpi)
        } else if starts(&["flux-shell", "mpispawn", "palsd", "jsmd", "pmix_server"]) {
            Some(DaemonKind::Other)
        } else {
            None
        }
    }

    /// Its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            DaemonKind::RscclRun => "rsccl run",
            DaemonKind::Torchrun => "torchrun",
            DaemonKind::OpenMpi => "Open MPI's mpirun",
            DaemonKind::Hydra => "Hydra's mpirun (MPICH, Intel MPI)",
            DaemonKind::Slurm => "Slurm's srun",
            DaemonKind::BatchScript => "a batch script of Slurm",
            DaemonKind::Other => "another launcher",
        }
    }
}

impl Launcher {
    /// Whether the launcher's variables are meant for a rank: those of Slurm count only in a step that `srun` started.
    pub(super) fn is_here(&self, environment: &Environment) -> bool {
        environment.has(self.rank) && (self.kind != Row::Slurm || slurm_step(environment).is_some())
    }
}

/// The number of the step of `srun` in which this process is. A batch script and a shell of `salloc` are in none.
pub(super) fn slurm_step(environment: &Environment) -> Option<u32> {
    // A value that is not a number does not come from Slurm.
    let step = environment.get(SLURM_STEP).ok().flatten()?.trim().parse::<u32>().ok()?;
    (step <= LAST_STEP).then_some(step)
}

pub(super) const SLURM_RANK: &str = "SLURM_PROCID";
pub(super) const SLURM_STEP: &str = "SLURM_STEP_ID";
/// The highest number of a step that runs tasks; higher numbers are batch scripts and shells (slurm.h:
/// `SLURM_MAX_NORMAL_STEP_ID`).
const LAST_STEP: u32 = 0xffff_fff0;

pub(super) static LAUNCHERS: &[Launcher] = &[
    Launcher {
        source: "rsccl run",
        kind: Row::Own,
        rank: "RSCCL_RANK",
        sizes: &["RSCCL_WORLD_SIZE"],
        local_ranks: &["RSCCL_LOCAL_RANK"],
        local_sizes: &["RSCCL_LOCAL_WORLD_SIZE"],
        hosts: &[],
        families: &[DaemonKind::RscclRun],
    },
    Launcher {
        source: "torchrun",
        kind: Row::Torchrun,
        rank: "RANK",
        sizes: &["WORLD_SIZE"],
        local_ranks: &["LOCAL_RANK"],
        local_sizes: &["LOCAL_WORLD_SIZE"],
        hosts: &[],
        families: &[DaemonKind::Torchrun, DaemonKind::RscclRun],
    },
    Launcher {
        source: "Open MPI",
        kind: Row::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        sizes: &["OMPI_COMM_WORLD_SIZE"],
        local_ranks: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_sizes: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        hosts: &[],
        families: &[DaemonKind::OpenMpi, DaemonKind::Other],
    },
    Launcher {
        source: "PMI",
        kind: Row::Pmi,
        rank: "PMI_RANK",
        sizes: &["PMI_SIZE"],
        local_ranks: &["MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"],
        local_sizes: &["MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"],
        hosts: SLURM_HOSTS,
        families: &[DaemonKind::Hydra, DaemonKind::Slurm, DaemonKind::Other],
    },
    Launcher {
        source: "PMIx",
        kind: Row::Pmix,
        rank: "PMIX_RANK",
        sizes: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_ranks: &["SLURM_LOCALID"],
        local_sizes: &[],
        hosts: SLURM_HOSTS,
        families: &[DaemonKind::Slurm, DaemonKind::OpenMpi, DaemonKind::Other],
    },
    Launcher {
        source: "Slurm",
        kind: Row::Slurm,
        rank: SLURM_RANK,
        sizes: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_ranks: &["SLURM_LOCALID"],
        local_sizes: &[],
        hosts: SLURM_HOSTS,
        families: &[DaemonKind::Slurm],
    },
];

/// The number of hosts of a step, and of a job.
const SLURM_HOSTS: &[&str] = &["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];
