//! The identity of a job: what the launcher that numbered a rank says of the job, so that ranks of two jobs never form
//! one world.
//!
//! - `rsccl run`, and numbers set by hand: none. `rsccl run` gives its ranks a secret.
//! - torchrun: `TORCHELASTIC_RUN_ID`, but not its default `none`. Not `TORCHELASTIC_RESTART_COUNT`: two agents may
//!   differ in it within one round.
//! - Open MPI: `PMIX_NAMESPACE`, else `OMPI_MCA_ess_base_jobid`; on one host also where PMIx's server listens.
//! - Hydra names none. On one host: its process, by number and start time; a rank that does not see it belongs to any
//!   such job of its size. Over several hosts: `SLURM_JOB_ID`, else none.
//! - `srun`, also with `--mpi=pmi2` and `--mpi=pmix`: `SLURM_JOB_ID` (in a heterogeneous step it is equal on all
//!   components), `SLURM_STEP_ID`, `SLURM_RESTART_COUNT`.
//! - Other launchers that speak PMI: `PMI_JOBID`; PMIx: `PMIX_NAMESPACE`.

use super::rows::{DaemonKind, Launcher, Row, slurm_step};
use crate::config::ancestors::Ancestor;
use crate::config::environment::Environment;

/// The job to which a rank belongs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobIdentity {
    /// In words, for messages. Two jobs may have equal words.
    pub(crate) name: String,
    /// The identity: equal on all ranks of a job, and different for any two jobs.
    pub(crate) key: String,
    /// Whether no other job has this identity. If not, it keeps out only some of the others.
    pub(crate) is_certain: bool,
}

impl JobIdentity {
    fn named(name: String) -> JobIdentity {
        JobIdentity { key: name.clone(), name, is_certain: true }
    }

    /// The identity of those ranks of this job that do not see the launcher's process, if there can be such ranks.
    pub(crate) fn of_unseen(&self, size: u32) -> Option<JobIdentity> {
        self.key.starts_with(PROCESS).then(|| unseen(size))
    }

    /// What `launcher` says of the job. `daemon` is its process, if this rank sees it; `one_host`: whether all ranks
    /// are on this host.
    pub(super) fn of(
        launcher: &Launcher,
        environment: &Environment,
        (daemon, one_host, size): (Option<&Ancestor>, bool, u32),
    ) -> Option<JobIdentity> {
        if JobIdentity::is_slurms(launcher, environment, daemon) {
            return slurm_job(environment);
        }
        match launcher.kind {
            Row::Own | Row::Slurm => None,
            Row::Torchrun => {
                let id = text(environment, RUN_ID).filter(|id| *id != NO_RUN_ID)?;
                Some(JobIdentity::named(format!("torchrun's run {id}")))
            }
            Row::OpenMpi => {
                let id = text(environment, NAMESPACE).or_else(|| text(environment, ORTE_JOB))?;
                let name = format!("Open MPI's job {id}");
                // The name space is made of the host's name and a process number, which containers may have in common.
                let servers = SERVERS.iter().find_map(|server| text(environment, server)).filter(|_| one_host);
                let key = servers.map_or_else(|| name.clone(), |servers| format!("{name} of {servers}"));
                Some(JobIdentity { name, key, is_certain: true })
            }
            Row::Pmi => match (daemon.map(|daemon| (daemon, DaemonKind::of(daemon))), text(environment, SLURM_JOB)) {
                (Some((daemon, Some(DaemonKind::Hydra))), _) if one_host => of_process(daemon).or(Some(unseen(size))),
                (Some((_, Some(DaemonKind::Other))), _) => {
                    text(environment, PMI_JOB).map(|id| JobIdentity::named(format!("PMI's job {id}")))
                }
                _ if one_host => Some(unseen(size)),
                // Two of them in one job of Slurm are not told apart.
                (_, Some(job)) => Some(JobIdentity {
                    is_certain: false,
                    ..JobIdentity::named(format!("mpirun in Slurm's job {job}"))
                }),
                (_, None) => None,
            },
            Row::Pmix => text(environment, NAMESPACE).map(|id| JobIdentity::named(format!("PMIx's job {id}"))),
        }
    }

    /// Whether `srun` has started the rank, whatever protocol it speaks. Below Hydra, whose ranks inherit the ids of
    /// the step around them, it has not.
    pub(super) fn is_slurms(launcher: &Launcher, environment: &Environment, daemon: Option<&Ancestor>) -> bool {
        let names_step = |id: Option<&str>| id.is_some_and(|id| slurm_id(environment).is_some_and(|step| step == id));
        let by_id = match launcher.kind {
            Row::Slurm => return true,
            Row::Pmi => names_step(text(environment, PMI_JOB)),
            Row::Pmix => names_step(text(environment, NAMESPACE).and_then(|id| id.strip_prefix(SLURM_SPACE))),
            Row::Own | Row::Torchrun | Row::OpenMpi => return false,
        };
        daemon.map_or(by_id, |daemon| DaemonKind::of(daemon) == Some(DaemonKind::Slurm))
    }

    /// The name by which ranks of one host meet in private: the job, or, of torchrun's jobs, whose ids users choose,
    /// the run at the port of its agent.
    pub(super) fn lobby(job: Option<&JobIdentity>, launcher: &Launcher, environment: &Environment) -> Option<String> {
        match launcher.kind {
            Row::Torchrun => {
                let parts = [RUN_ID, "MASTER_ADDR", "MASTER_PORT"].map(|name| text(environment, name));
                let [Some(id), Some(host), Some(port)] = parts else { return None };
                Some(format!("torchrun's run {id} at {host}:{port}"))
            }
            _ => job.filter(|job| job.is_certain).map(|job| job.key.clone()),
        }
    }
}

/// Whether ranks that `launcher` has started are clients of a process manager that speaks PMIx. Its variables may be
/// left over from a launcher around `srun`.
pub(super) fn has_pmix(launcher: &Launcher, environment: &Environment) -> bool {
    let space = text(environment, NAMESPACE);
    match launcher.kind {
        Row::OpenMpi | Row::Pmix => space.is_some(),
        Row::Pmi | Row::Slurm => {
            let step = space.and_then(|space| space.strip_prefix(SLURM_SPACE));
            step.is_some() && step == slurm_id(environment).as_deref()
        }
        Row::Own | Row::Torchrun => false,
    }
}

pub(super) fn text<'a>(environment: &'a Environment, name: &str) -> Option<&'a str> {
    environment.get(name).ok().flatten()
}

/// "JOB.STEP" of the step in which this process is.
fn slurm_id(environment: &Environment) -> Option<String> {
    Some(format!("{}.{}", text(environment, SLURM_JOB)?, slurm_step(environment)?))
}

fn slurm_job(environment: &Environment) -> Option<JobIdentity> {
    let step = slurm_step(environment)?;
    let job = text(environment, SLURM_JOB)?;
    // A job that was queued again has the same numbers, and its earlier ranks may still be ending.
    let restarts = text(environment, RESTARTS).filter(|count| *count != "0");
    let again = restarts.map_or_else(String::new, |count| format!(", restart {count}"));
    let cluster = text(environment, CLUSTER).map_or_else(String::new, |name| format!(" of cluster {name}"));
    let name = format!("Slurm's job {job} step {step}{again}");
    Some(JobIdentity { key: format!("{name}{cluster}"), name, is_certain: true })
}

/// The job of a launcher that names none: the launcher's process, which no other job of this host has. `None` if the
/// system does not tell enough of it.
fn of_process(daemon: &Ancestor) -> Option<JobIdentity> {
    let told = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let (host, boot) = (told("/proc/sys/kernel/hostname")?, told("/proc/sys/kernel/random/boot_id")?);
    let space = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let Ancestor { process, started, .. } = daemon;
    Some(JobIdentity {
        name: format!("the job of mpirun's process {process} on {host}"),
        key: format!("{PROCESS}{process} of {boot} {}, started {started}", space.display()),
        is_certain: true,
    })
}

/// The job of a rank of Hydra that does not see its process, as in a container: any of this host's. Ranks of one job
/// that do see it take this one for theirs.
fn unseen(size: u32) -> JobIdentity {
    let key = format!("{UNSEEN} of {size} ranks");
    JobIdentity {
        name: format!("a job of Hydra on this host whose process is not seen, of {size} ranks"),
        key,
        is_certain: false,
    }
}

/// How the identity of a job begins that is its launcher's process.
const PROCESS: &str = "process ";
/// The identity of a job whose launcher's process is not seen.
const UNSEEN: &str = "hydra, unseen";
pub(super) const RUN_ID: &str = "TORCHELASTIC_RUN_ID";
/// What torchrun sets where the user gives no id.
pub(super) const NO_RUN_ID: &str = "none";
pub(super) const NAMESPACE: &str = "PMIX_NAMESPACE";
/// How Slurm's name spaces of PMIx begin; job and step follow.
pub(super) const SLURM_SPACE: &str = "slurm.pmix.";
/// Where PMIx's server on this host listens, the newest protocol first.
const SERVERS: [&str; 5] =
    ["PMIX_SERVER_URI41", "PMIX_SERVER_URI4", "PMIX_SERVER_URI3", "PMIX_SERVER_URI21", "PMIX_SERVER_URI2"];
const ORTE_JOB: &str = "OMPI_MCA_ess_base_jobid";
pub(super) const PMI_JOB: &str = "PMI_JOBID";
pub(super) const SLURM_JOB: &str = "SLURM_JOB_ID";
const RESTARTS: &str = "SLURM_RESTART_COUNT";
const CLUSTER: &str = "SLURM_CLUSTER_NAME";
/// All of them.
pub(super) const NAMES: [&str; 7] = [RUN_ID, NAMESPACE, ORTE_JOB, PMI_JOB, SLURM_JOB, RESTARTS, CLUSTER];
