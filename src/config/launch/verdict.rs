//! Which launcher numbered this rank, where the variables of several are set: launchers are nested, and each passes on
//! the variables of the one around it.
//!
//! 1. The nearest ancestor that is a launcher's process decides. Variables that this launcher does not set are left
//!    over from one around it, except the two rows that people set by hand.
//! 2. Variables set by hand count if they were set below the launcher: the environment of a process in between, or of
//!    the launcher, lacks them. If the launcher itself had them, they are left over.
//! 3. Ids of jobs tell too: `PMI_JOBID` and `PMIX_NAMESPACE` of Slurm name the step; torchrun's and `rsccl run`'s own
//!    marks say that no hand set the numbers.
//! 4. Below a batch script and no nearer launcher there is no rank, whatever the script has inherited.
//! 5. Rows that agree on rank and size need no decision. What cannot be decided is an error that names both.
//!
//! One function over values, so that tests can describe every nesting.

use std::collections::BTreeMap;

use super::job::{NAMESPACE, PMI_JOB, RUN_ID, SLURM_JOB, SLURM_SPACE};
use super::rows::{DaemonKind, LAUNCHERS, Launcher, Row, slurm_step};
use super::{OWN_RUN, check_within, number};
use crate::config::ancestors::Ancestor;
use crate::config::environment::Environment;
use crate::error::{Error, Result};

/// One launcher's row, with the numbers that its variables hold.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) row: &'static Launcher,
    pub(super) rank: (&'static str, u32),
    pub(super) size: (&'static str, u32),
}

/// The result of the weighing.
#[derive(Debug)]
pub(super) struct LauncherVerdict {
    pub(super) chosen: Candidate,
    /// The launcher whose job this is, which may only agree with the chosen row; `None` for numbers set by hand.
    pub(super) job_of: Option<&'static Launcher>,
    /// The place among the ancestors of the process of that launcher, if it is one of them.
    pub(super) daemon: Option<usize>,
    /// Whether the variables of `rsccl run` were left over: then so is its store.
    pub(super) is_store_left_over: bool,
    /// The launcher of several ranks, where the variables that count say that this rank is alone.
    pub(super) larger: Option<Candidate>,
}

/// The evidence for a row of variables that people set by hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hand {
    /// They were set between the launcher and this process.
    Inside,
    /// The launcher had them already.
    LeftOver,
    Unknown,
}

/// Decides; `None` if no launcher has set a rank.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] for a value that is not a number or out of range, a rank without a size, and
/// for launchers of which none can be preferred.
pub(super) fn weigh(environment: &Environment, ancestors: &[Ancestor]) -> Result<Option<LauncherVerdict>> {
    let here: Vec<&'static Launcher> = LAUNCHERS.iter().filter(|row| row.is_here(environment)).collect();
    let daemon = ancestors.iter().enumerate().find_map(|(place, ancestor)| Some((place, DaemonKind::of(ancestor)?)));
    let scene = Scene { environment, ancestors, daemon };
    let kept: Vec<&'static Launcher> = here.iter().copied().filter(|row| !scene.is_left_over(row, &here)).collect();
    let Some(row) = scene.choose(&kept)? else { return Ok(None) };
    let chosen = Candidate::read(row, environment)?;
    let others = kept.iter().filter_map(|row| Candidate::read(row, environment).ok());
    let larger = others.into_iter().find(|other| chosen.size.1 == 1 && other.size.1 > 1);
    let is_set_inside = scene.hand(row) == Hand::Inside;
    let is_scripts = row.kind == Row::Torchrun && environment.has(RUN_ID);
    let is_launchers = !row.kind.may_be_set_by_hand()
        || scene.is_torchruns(row)
        || scene.is_parents(row) && !is_set_inside && !is_scripts;
    let daemon = daemon.filter(|_| scene.is_parents(row)).map(|(place, _)| place);
    let is_store_left_over = here.iter().any(|row| row.kind == Row::Own) && kept.iter().all(|row| row.kind != Row::Own);
    Ok(Some(LauncherVerdict { chosen, job_of: is_launchers.then_some(row), daemon, is_store_left_over, larger }))
}

impl Candidate {
    fn read(row: &'static Launcher, environment: &Environment) -> Result<Candidate> {
        let Some(rank) = number(environment, &[row.rank])? else {
            return Err(Error::internal("a row counts where its rank is set"));
        };
        let Some(size) = number(environment, row.sizes)? else {
            let (name, rank) = rank;
            let (names, source) = (row.sizes.join(" or "), row.source);
            return Err(Error::invalid_argument(format!("{name}={rank} is set ({source}), but {names} is not")));
        };
        check_within(rank, size).map_err(|error| match row.kind {
            Row::Slurm | Row::Pmix if environment.has(HET_SIZE) => explain_components(error, environment),
            _ => error,
        })?;
        Ok(Candidate { row, rank, size })
    }

    fn numbers(&self) -> (u32, u32) {
        (self.rank.1, self.size.1)
    }

    fn words(&self) -> String {
        let ((rank_name, rank), (size_name, size)) = (self.rank, self.size);
        format!("{rank_name}={rank} and {size_name}={size} ({})", self.row.source)
    }
}

/// Where a version of Slurm counts ranks over all components of a heterogeneous job, but tasks of one.
fn explain_components(error: Error, environment: &Environment) -> Error {
    let count = environment.get(HET_SIZE).ok().flatten().unwrap_or_default();
    Error::invalid_argument(format!(
        "{}; the job is heterogeneous ({HET_SIZE}={count}), and Slurm has told the size of one component only: set \
         RSCCL_RANK and RSCCL_WORLD_SIZE to the numbers among all of them",
        error.message()
    ))
}

struct Scene<'a> {
    environment: &'a Environment,
    ancestors: &'a [Ancestor],
    daemon: Option<(usize, DaemonKind)>,
}

impl Scene<'_> {
    /// The row that counts, of those that are not left over.
    fn choose(&self, kept: &[&'static Launcher]) -> Result<Option<&'static Launcher>> {
        let Some(first) = kept.first().copied() else { return Ok(None) };
        let parents = self.parents_row(kept);
        // A script in a rank of `rsccl run` has set numbers of its own.
        let torchs = kept.iter().copied().find(|row| row.kind == Row::Torchrun && self.hand(row) == Hand::Inside);
        if let (Some(row), Some(Row::Own)) = (torchs, parents.map(|row| row.kind)) {
            return Ok(Some(row));
        }
        if kept.len() == 1 || first.kind == Row::Own && parents.is_none_or(|row| row.kind == Row::Own) {
            return Ok(Some(first));
        }
        let of = |row: &'static Launcher| Candidate::read(row, self.environment);
        if let Some(parents) = parents {
            let by_hand = kept.iter().copied().filter(|row| row.kind.may_be_set_by_hand() && !self.is_parents(row));
            for row in by_hand {
                let (hand, parent) = (of(row)?, of(parents)?);
                // Numbers that agree are a script's copy of the launcher's.
                if hand.numbers() == parent.numbers() {
                    continue;
                }
                if row.kind == Row::Own || self.hand(row) == Hand::Inside {
                    return Ok(Some(row));
                }
                return Err(self.undecided(&hand, &parent));
            }
            return Ok(Some(parents));
        }
        let mut known: Vec<Candidate> = kept.iter().filter_map(|row| of(row).ok()).collect();
        // A rank of PMIx has no size of its own.
        known.retain(|one| one.row.kind != Row::Pmix || kept.len() == 1);
        let Some(one) = known.first() else { return Ok(Some(first)) };
        match known.iter().find(|other| other.numbers() != one.numbers()) {
            Some(other) => Err(self.undecided(one, other)),
            // Of rows that agree a launcher's is the one that names the job.
            None => Ok(known.iter().map(|one| one.row).find(|row| !row.kind.may_be_set_by_hand()).or(Some(one.row))),
        }
    }

    /// The row that the nearest launcher's process stands for.
    fn parents_row(&self, kept: &[&'static Launcher]) -> Option<&'static Launcher> {
        let (_, family) = self.daemon?;
        let mut rows = kept.iter().copied().filter(|row| self.is_parents(row));
        match family {
            // Slurm always sets its own row; those of PMI and PMIx may be older, unless they name the step.
            DaemonKind::Slurm => {
                let of_step = rows.clone().find(|row| self.names_this_step(row));
                of_step.or_else(|| rows.clone().find(|row| row.kind == Row::Slurm)).or_else(|| rows.next())
            }
            _ => rows.next(),
        }
    }

    fn is_parents(&self, row: &Launcher) -> bool {
        self.daemon.is_some_and(|(_, family)| row.families.contains(&family))
    }

    /// Whether the row holds what torchrun's agent has set, and not a script.
    fn is_torchruns(&self, row: &Launcher) -> bool {
        if row.kind != Row::Torchrun || !self.environment.has(RUN_ID) {
            return false;
        }
        // Whoever set the rank was started without it: the agent, which has no run id either, or a script below it.
        let setter = self.ancestors.iter().find(|ancestor| self.has_ours(ancestor, row) == Some(false));
        let run = self.environment.get(RUN_ID).ok().flatten();
        setter.is_none_or(|setter| {
            // An agent inside a worker of another one has that one's id.
            let has_run = |all: &BTreeMap<String, String>| all.get(RUN_ID).map(String::as_str) == run;
            DaemonKind::of(setter) == Some(DaemonKind::Torchrun) || !setter.variables.as_ref().is_some_and(has_run)
        })
    }

    /// Whether the variables of `row` were left by a launcher around the one that started this rank. A row that stands
    /// alone is believed.
    fn is_left_over(&self, row: &Launcher, here: &[&Launcher]) -> bool {
        if let Some((place, DaemonKind::BatchScript)) = self.daemon {
            // What the script itself was started with is not what a launcher below it has set.
            let script = &self.ancestors[place];
            return self.has_ours(script, row) == Some(true) && !self.is_changed_below(place, row);
        }
        if here.len() == 1 || self.is_parents(row) && !self.names_another_step(row) {
            return false;
        }
        if row.kind.may_be_set_by_hand() {
            return self.hand(row) == Hand::LeftOver;
        }
        let parent_is_here = here.iter().any(|other| !other.kind.may_be_set_by_hand() && self.is_parents(other))
            || here
                .iter()
                .any(|other| self.is_parents(other) && self.daemon.is_some_and(|(_, f)| f == DaemonKind::Torchrun));
        (self.daemon.is_some() && parent_is_here) || self.names_another_step(row)
    }

    /// Whether the row's job id is another one than that of the step of Slurm in which this process is.
    fn names_another_step(&self, row: &Launcher) -> bool {
        let started_by_slurm = self.daemon.is_none_or(|(_, family)| family == DaemonKind::Slurm);
        started_by_slurm && self.step_of(row).is_some_and(|is_this| !is_this)
    }

    fn names_this_step(&self, row: &Launcher) -> bool {
        self.step_of(row) == Some(true)
    }

    /// Whether the row's job id names the step in which this process is; `None` if there is no id or no step.
    fn step_of(&self, row: &Launcher) -> Option<bool> {
        let (step, job) = (slurm_step(self.environment)?, self.environment.get(SLURM_JOB).ok().flatten()?);
        let id = |name| self.environment.get(name).ok().flatten();
        match row.kind {
            Row::Pmi => id(PMI_JOB).map(|id| id == format!("{job}.{step}")),
            Row::Pmix => id(NAMESPACE).map(|id| id == format!("{SLURM_SPACE}{job}.{step}")),
            Row::Own | Row::Torchrun | Row::OpenMpi | Row::Slurm => None,
        }
    }

    /// Whether a launcher, and not a person, has set a row that people set by hand. Its process is then nearer than
    /// that of any launcher around it.
    fn has_mark(&self, row: &Launcher) -> bool {
        self.environment.has(OWN_RUN) || self.is_torchruns(row)
    }

    /// Who set a row that people set by hand.
    fn hand(&self, row: &Launcher) -> Hand {
        let Some((place, family)) = self.daemon else { return Hand::Unknown };
        if self.is_changed_below(place, row) {
            return Hand::Inside;
        }
        if self.is_parents(row) {
            return Hand::Unknown;
        }
        if self.has_mark(row) {
            return Hand::LeftOver;
        }
        // Slurm's process has the variables of its service, a Hydra proxy far from its mpirun those of a remote shell;
        // both start ranks with the variables of the place where the user stood.
        let mut above = self.ancestors[place + 1..].iter().map(|ancestor| ancestor.name.as_str());
        let tells = match family {
            DaemonKind::Slurm | DaemonKind::Other => false,
            DaemonKind::Hydra => above.any(|name| name.starts_with("mpiexec") || name.starts_with("mpirun")),
            DaemonKind::RscclRun | DaemonKind::Torchrun | DaemonKind::OpenMpi | DaemonKind::BatchScript => true,
        };
        match self.has_ours(&self.ancestors[place], row).filter(|_| tells) {
            Some(true) => Hand::LeftOver,
            Some(false) => Hand::Inside,
            None => Hand::Unknown,
        }
    }

    /// Whether `ancestor` was started with the rank and the size that this process has by `row`; `None` if that cannot
    /// be seen. A script may give its first rank the rank that it has itself.
    fn has_ours(&self, ancestor: &Ancestor, row: &Launcher) -> Option<bool> {
        let is_ours =
            |name: &str, value: Option<&String>| value.map(String::as_str) == self.environment.get(name).ok().flatten();
        let all = ancestor.variables.as_ref()?;
        let sizes = row.sizes.iter().map(|size| (*size, all.get(*size))).filter(|(_, value)| value.is_some());
        let mut named = std::iter::once((row.rank, all.get(row.rank))).chain(sizes);
        Some(named.all(|(name, value)| is_ours(name, value)))
    }

    /// Whether a process between this one and the ancestor at `place` was started with another value.
    fn is_changed_below(&self, place: usize, row: &Launcher) -> bool {
        self.ancestors[..place].iter().any(|between| self.has_ours(between, row) == Some(false))
    }

    fn undecided(&self, one: &Candidate, other: &Candidate) -> Error {
        let parent = match self.daemon {
            Some((_, family)) => format!("the nearest launcher above this process is {}", family.name()),
            None => "no launcher's process can be seen above this one".to_owned(),
        };
        Error::invalid_argument(format!(
            "two launchers have numbered this rank, and which one counts cannot be told: {}, {}; {parent}; unset the \
             variables of the outer one, or set RSCCL_RANK and RSCCL_WORLD_SIZE",
            one.words(),
            other.words()
        ))
    }
}

/// How many components a heterogeneous job of Slurm has.
const HET_SIZE: &str = "SLURM_HET_SIZE";

#[cfg(test)]
mod tests {
    use super::*;

    /// An ancestor with some variables; `None` for one that the system does not show.
    fn ancestor(name: &str, variables: Option<&[(&str, &str)]>) -> Ancestor {
        let owned =
            |all: &[(&str, &str)]| all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Ancestor { process: 7, started: 70, name: name.to_owned(), variables: variables.map(owned) }
    }

    type Variables<'a> = &'a [(&'a str, &'a str)];

    const SLURM: Variables<'_> =
        &[("SLURM_PROCID", "1"), ("SLURM_STEP_ID", "2"), ("SLURM_JOB_ID", "9"), ("SLURM_STEP_NUM_TASKS", "3")];
    const OPEN_MPI: Variables<'_> = &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1"), ("PMIX_RANK", "0")];
    const PMI: Variables<'_> = &[("PMI_RANK", "0"), ("PMI_SIZE", "1")];
    const HAND: Variables<'_> = &[("RANK", "0"), ("WORLD_SIZE", "1")];

    fn judge(
        variables: &[Variables<'_>],
        ancestors: &[Ancestor],
    ) -> std::result::Result<(&'static str, u32, u32), String> {
        let environment = Environment::of(variables.concat());
        let verdict = weigh(&environment, ancestors).map_err(|error| error.to_string())?.expect("ranks are set");
        Ok((verdict.chosen.row.source, verdict.chosen.rank.1, verdict.chosen.size.1))
    }

    /// Regression: variables that `srun` and `sbatch` had exported made each rank a world of its own.
    #[test]
    fn the_nearest_launcher_counts_and_not_one_around_it() {
        let slurm = [ancestor("slurmstepd", None)];
        for outer in [OPEN_MPI, PMI] {
            assert_eq!(judge(&[outer, SLURM], &slurm), Ok(("Slurm", 1, 3)));
        }
        let shell = ancestor("bash", Some(&[("OMPI_COMM_WORLD_RANK", "0")]));
        assert_eq!(judge(&[OPEN_MPI, SLURM], &[shell.clone(), slurm[0].clone()]), Ok(("Slurm", 1, 3)));
        // The other way round.
        for (daemon, row) in [("orted", "Open MPI"), ("prterun", "Open MPI"), ("mpirun", "Open MPI")] {
            assert_eq!(judge(&[OPEN_MPI, SLURM], &[ancestor(daemon, None), slurm[0].clone()]), Ok((row, 0, 1)));
        }
        assert_eq!(judge(&[PMI, SLURM], &[ancestor("hydra_pmi_proxy", None), slurm[0].clone()]), Ok(("PMI", 0, 1)));
        let torchrun: Variables<'_> = &[("RANK", "1"), ("WORLD_SIZE", "2"), (RUN_ID, "x")];
        assert_eq!(
            judge(&[torchrun, SLURM], &[ancestor("pt_elastic", None), slurm[0].clone()]),
            Ok(("torchrun", 1, 2))
        );
        assert_eq!(judge(&[torchrun, OPEN_MPI, PMI], &[ancestor("pt_elastic", None)]), Ok(("torchrun", 1, 2)));
    }

    #[test]
    fn numbers_set_by_hand_count_where_they_were_set_inside() {
        let bare = ancestor("mpirun", Some(&[]));
        let full = ancestor("mpirun", Some(HAND));
        let mpi: Variables<'_> = &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        assert_eq!(judge(&[HAND, mpi], &[bare]), Ok(("torchrun", 0, 1)));
        assert_eq!(judge(&[HAND, mpi], std::slice::from_ref(&full)), Ok(("Open MPI", 1, 2)), "exported around mpirun");
        let own: Variables<'_> = &[("RSCCL_RANK", "0"), ("RSCCL_WORLD_SIZE", "4")];
        assert_eq!(judge(&[own, mpi], &[full]), Ok(("rsccl run", 0, 4)));
        let inside_run = ancestor("mpirun", Some(own));
        assert_eq!(judge(&[own, mpi], &[inside_run, ancestor("rsccl", Some(&[]))]), Ok(("Open MPI", 1, 2)));
        // A script between, whose own environment lacks them.
        let slurm = [ancestor("bash", Some(&[])), ancestor("slurmstepd", None)];
        assert_eq!(judge(&[HAND, SLURM], &slurm), Ok(("torchrun", 0, 1)));
        // Slurm hands on what the user exported, and its process does not show it.
        let why = judge(&[HAND, SLURM], &slurm[1..]).unwrap_err();
        for words in ["RANK=0 and WORLD_SIZE=1 (torchrun)", "SLURM_PROCID=1 and SLURM_STEP_NUM_TASKS=3 (Slurm)", "srun"]
        {
            assert!(why.contains(words), "{words}: {why}");
        }
        let copy: Variables<'_> = &[("RANK", "1"), ("WORLD_SIZE", "3")];
        assert_eq!(judge(&[copy, SLURM], &slurm[1..]), Ok(("Slurm", 1, 3)));
    }

    /// Regression: the first of a script's ranks has the rank that torchrun has given to the script.
    #[test]
    fn a_worker_of_torchrun_may_start_ranks_of_its_own() {
        let worker = ancestor("bash", Some(&[("RANK", "0"), ("WORLD_SIZE", "1"), (RUN_ID, "x")]));
        let agent = ancestor("pt_elastic", Some(&[]));
        for (rank, size, is_its) in [("0", "1", true), ("0", "2", false), ("1", "2", false)] {
            let environment = Environment::of([("RANK", rank), ("WORLD_SIZE", size), (RUN_ID, "x")]);
            let verdict = weigh(&environment, &[worker.clone(), agent.clone()]).unwrap().unwrap();
            assert_eq!((verdict.job_of.is_some(), verdict.chosen.row.source), (is_its, "torchrun"), "{rank} of {size}");
        }
    }

    #[test]
    fn a_hydra_proxy_far_from_its_mpirun_proves_nothing() {
        let proxy = ancestor("hydra_pmi_proxy", Some(&[]));
        let mpi: Variables<'_> = &[("PMI_RANK", "1"), ("PMI_SIZE", "2")];
        assert!(judge(&[HAND, mpi], std::slice::from_ref(&proxy)).is_err());
        assert_eq!(judge(&[HAND, mpi], &[proxy, ancestor("mpiexec.hydra", Some(&[]))]), Ok(("torchrun", 0, 1)));
    }

    #[test]
    fn ids_tell_where_no_process_is_seen() {
        let stale: Variables<'_> = &[("PMI_RANK", "0"), ("PMI_SIZE", "1"), (PMI_JOB, "8.0")];
        assert_eq!(judge(&[stale, SLURM], &[]), Ok(("Slurm", 1, 3)));
        let stale: Variables<'_> = &[("PMIX_RANK", "0"), (NAMESPACE, "slurm.pmix.8.0")];
        assert_eq!(judge(&[stale, SLURM], &[]), Ok(("Slurm", 1, 3)));
        for outer in [OPEN_MPI, PMI, HAND] {
            let why = judge(&[outer, SLURM], &[]).unwrap_err();
            assert!(why.contains("two launchers have numbered this rank") && why.contains("RSCCL_WORLD_SIZE"), "{why}");
        }
        assert_eq!(judge(&[OPEN_MPI], &[]), Ok(("Open MPI", 0, 1)), "what stands alone is believed");
    }

    #[test]
    fn a_world_of_one_inside_a_larger_launch_is_pointed_out() {
        let mpi: Variables<'_> = &[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")];
        let environment = Environment::of([HAND, mpi].concat());
        let verdict = weigh(&environment, &[ancestor("mpirun", Some(&[]))]).unwrap().unwrap();
        assert_eq!(verdict.larger.unwrap().size, ("OMPI_COMM_WORLD_SIZE", 2));
        assert!(verdict.job_of.is_none());
    }
}
