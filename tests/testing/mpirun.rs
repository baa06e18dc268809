//! Starts this test program as the ranks of an MPI job, under a time limit, and reads what each rank has said. Whatever
//! happens, nothing of a job outlives its [`Job`]: no process, no file.
//!
//! A rank is this same program, told by [`TOLD`] what to do. What it says (`rank.rs`) stands in a file of its own,
//! since launchers cut the streams of ranks into pieces and mix them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rsccl::internals::sys::clock;
use rsccl::internals::sys::process::{Exit, Group, Signal};
use tempfile::TempDir;

pub use machine::until;

/// The variable that says what a rank does.
pub const TOLD: &str = "MPI_TEST_TOLD";
/// The variable that names the job's folder; it is also how a job's processes are known.
pub const FOLDER: &str = "MPI_TEST_FOLDER";

/// What the options of a launcher look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Open MPI 4: ORTE.
    Orte,
    /// Open MPI 5: PRRTE.
    Prrte,
    /// MPICH and Intel MPI.
    Hydra,
}

/// An `mpirun`.
#[derive(Debug, Clone)]
pub struct Launcher {
    pub program: PathBuf,
    pub family: Family,
    /// What it calls itself.
    pub version: String,
}

impl Launcher {
    /// The one that belongs to the MPI that this program was built with; `None`, and a word why, where there is none.
    pub fn matching() -> Option<Launcher> {
        let compiler = option_env!("MPICC").unwrap_or("mpicc");
        let name = compiler.rsplit('/').next().unwrap_or(compiler).replace("mpicc", "mpirun");
        let found = match compiler.rsplit_once('/') {
            Some((folder, _)) => Some(Path::new(folder).join(&name)).filter(|program| program.exists()),
            None => in_path(&name),
        };
        let launcher = found.and_then(Launcher::ask);
        if launcher.is_none() {
            skip(&format!("no {name} beside {compiler}, which this was built with"));
        }
        launcher
    }

    /// All of this machine, each once; says so where there is none.
    pub fn all() -> Vec<Launcher> {
        let mut all: Vec<Launcher> = Vec::new();
        for name in ["mpirun", "mpirun.openmpi", "mpirun.mpich", "mpiexec.hydra"] {
            all.extend(in_path(name).and_then(Launcher::ask));
        }
        all.sort_by(|left, right| left.version.cmp(&right.version));
        all.dedup_by(|left, right| left.version == right.version);
        if all.is_empty() {
            skip("no mpirun on this machine");
        }
        all
    }

    fn ask(program: PathBuf) -> Option<Launcher> {
        let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let first = text.lines().next()?.trim().to_owned();
        let (family, version) = match first.split_once("(Open MPI) ") {
            Some((_, number)) if number.starts_with("5.") => (Family::Prrte, first.clone()),
            Some(_) => (Family::Orte, first.clone()),
            None if first.contains("HYDRA") || first.contains("Intel") => {
                let number = text.lines().find_map(|line| line.trim().strip_prefix("Version:"));
                (Family::Hydra, format!("{first} {}", number.unwrap_or_default().trim()))
            }
            None => return None,
        };
        Some(Launcher { program, family, version })
    }
}

/// Says on the real standard error, past the capture of a test's output, what a test cannot do here.
pub fn skip(why: &str) {
    let mut errors = std::io::stderr();
    writeln!(errors, "skipped: {why}").unwrap();
}

fn in_path(name: &str) -> Option<PathBuf> {
    let path = variable("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|program| program.is_file())
}

fn variable(name: &str) -> Option<String> {
    #![expect(
        clippy::disallowed_methods,
        reason = "where programs and libraries lie is no configuration of the library"
    )]
    std::env::var(name).ok()
}

/// Some ranks that have the same variables.
struct Part {
    ranks: usize,
    variables: Vec<(String, String)>,
}

/// A job before it runs.
pub struct Plan {
    launcher: Launcher,
    told: String,
    options: Vec<String>,
    prefix: Vec<String>,
    parts: Vec<Part>,
    variables: Vec<(String, String)>,
    folder: TempDir,
}

impl Plan {
    /// A job of `ranks` ranks that do what `told` says.
    pub fn new(launcher: &Launcher, told: &str, ranks: usize) -> Plan {
        Plan::of_parts(launcher, told, &[(ranks, &[])])
    }

    /// The same, where some ranks have variables of their own.
    pub fn of_parts(launcher: &Launcher, told: &str, parts: &[(usize, &[(&str, &str)])]) -> Plan {
        let part = |(ranks, variables): &(usize, &[(&str, &str)])| Part { ranks: *ranks, variables: owned(variables) };
        Plan {
            launcher: launcher.clone(),
            told: told.to_owned(),
            options: Vec::new(),
            prefix: Vec::new(),
            parts: parts.iter().map(part).collect(),
            variables: owned(&[("NCCL_SOCKET_IFNAME", "lo")]),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Variables of all ranks; a later one wins over an earlier one of the same name.
    pub fn with(mut self, variables: &[(&str, &str)]) -> Plan {
        self.variables.extend(owned(variables));
        self
    }

    /// Options of the launcher.
    pub fn options<T: AsRef<str>>(mut self, options: &[T]) -> Plan {
        self.options.extend(options.iter().map(|option| option.as_ref().to_owned()));
        self
    }

    /// Words before the launcher's own.
    pub fn prefix(mut self, words: Vec<String>) -> Plan {
        self.prefix = words;
        self
    }

    /// The folder in which the job may keep files.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Runs it to its end.
    pub fn run(self) -> Outcome {
        self.start().finish()
    }

    /// Starts it.
    pub fn start(self) -> Job {
        let mut words = if self.prefix.is_empty() { own_shared_memory() } else { self.prefix.clone() };
        words.push(self.launcher.program.to_str().expect("a path of text").to_owned());
        words.extend(self.options.clone());
        for (number, part) in self.parts.iter().enumerate() {
            if number > 0 {
                words.push(":".to_owned());
            }
            words.extend(self.rank_words(part));
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env_clear().envs(self.launcher_variables());
        let file = |name: &str| File::create(self.folder().join(name)).unwrap();
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let began = clock::now();
        let group = Group::start(&mut command).unwrap_or_else(|error| panic!("starting {words:?}: {error}"));
        let ranks = self.parts.iter().map(|part| part.ranks).sum();
        Job { group: Some(group), folder: self.folder, ranks, began, words: words.join(" ") }
    }

    /// How many ranks there are, and what each is: this program behind `env`, so that any launcher sets any variable.
    fn rank_words(&self, part: &Part) -> Vec<String> {
        let mut words = vec!["-n".to_owned(), part.ranks.to_string(), "env".to_owned()];
        let own = [(TOLD, &*self.told), (FOLDER, self.folder().to_str().expect("a path of text"))];
        let all = owned(&own).into_iter().chain(self.variables.clone()).chain(part.variables.clone());
        words.extend(all.map(|(name, value)| format!("{name}={value}")));
        let program = std::env::current_exe().expect("this program has a path");
        words.push(program.to_str().expect("a path of text").to_owned());
        words.extend(["worker", "--exact", "--ignored", "--nocapture", "--test-threads=1"].map(str::to_owned));
        words
    }

    /// The launcher's environment: nothing of this process's but where programs and libraries lie.
    fn launcher_variables(&self) -> Vec<(String, String)> {
        let folder = self.folder().to_str().expect("a path of text");
        let mut all = owned(&[
            ("HOME", folder),
            // The session folders of Open MPI.
            ("TMPDIR", folder),
            (FOLDER, folder),
            ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
            ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
            // More ranks than processors, and none of them bound to one.
            ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
            ("OMPI_MCA_hwloc_base_binding_policy", "none"),
            ("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"),
            ("PRTE_MCA_hwloc_default_binding_policy", "none"),
            // Shared memory goes with the folder where a job is killed.
            ("OMPI_MCA_btl_vader_backing_directory", folder),
            ("OMPI_MCA_btl_sm_backing_directory", folder),
        ]);
        for name in ["PATH", "LD_LIBRARY_PATH"] {
            all.extend(variable(name).map(|value| (name.to_owned(), value)));
        }
        all
    }
}

/// Words before a program that give it a `/dev/shm` of its own, where this machine lets us: MPICH leaves its files
/// there when a job is killed.
fn own_shared_memory() -> Vec<String> {
    let script = "mount -t tmpfs tmpfs /dev/shm && exec \"$@\"";
    let words = ["unshare", "--mount", "sh", "-c", script, "sh"];
    let tried = Command::new(words[0]).args(&words[1..]).arg("true").stderr(Stdio::null()).status();
    if tried.is_ok_and(|status| status.success()) { words.map(str::to_owned).to_vec() } else { Vec::new() }
}

fn owned(variables: &[(&str, &str)]) -> Vec<(String, String)> {
    variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A job that runs.
pub struct Job {
    group: Option<Group>,
    folder: TempDir,
    ranks: usize,
    began: Instant,
    words: String,
}

impl Job {
    /// Waits for its end. Nothing of it is left then.
    pub fn finish(mut self) -> Outcome {
        let mut exit = None;
        let group = self.group.as_mut().expect("it runs");
        let ended = until(LIMIT, || {
            exit = group.exit().unwrap();
            exit.is_some()
        });
        assert!(ended, "the job does not end: {}", self.report());
        let elapsed = clock::now().duration_since(self.began);
        let gone = until(LEFTOVER_PATIENCE, || self.processes().is_empty());
        assert!(gone, "processes {:?} outlive the job: {}", self.processes(), self.report());
        let said = (0..self.ranks).map(|rank| self.said(rank)).collect();
        Outcome { exit: exit.expect("it has ended"), elapsed, said, report: self.report() }
    }

    /// Ends it here and now. Nothing of it is left then.
    pub fn stop(mut self) {
        self.end();
        assert!(self.processes().is_empty(), "processes {:?} outlive the job: {}", self.processes(), self.report());
    }

    fn end(&mut self) {
        let Some(group) = self.group.take() else { return };
        // Launchers tell their ranks on other hosts when they are asked to end; what fails here has ended already.
        drop(group.signal(Signal::TERMINATE));
        let gone = until(FAREWELL, || self.processes().is_empty());
        drop(group);
        if !gone {
            // Ranks are no members of the launcher's group.
            let numbers: Vec<String> = self.processes().iter().map(u32::to_string).collect();
            drop(Command::new("sh").args(["-c", &format!("kill -KILL {}", numbers.join(" "))]).output());
            until(LEFTOVER_PATIENCE, || self.processes().is_empty());
        }
    }

    /// Waits until the rank has said a line that begins with `start`.
    pub fn await_line(&self, rank: usize, start: &str) {
        let told = until(LIMIT, || self.said(rank).iter().any(|line| line.starts_with(start)));
        assert!(told, "rank {rank} does not say {start:?}: {}", self.report());
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// What a rank has said so far, by line.
    pub fn said(&self, rank: usize) -> Vec<String> {
        let text = self.read(&format!("rank-{rank}"));
        // A line without its end is still being written.
        text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).map(str::to_owned).collect()
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join(name)).unwrap_or_default()).into_owned()
    }

    /// All that there is to see, for messages.
    pub fn report(&self) -> String {
        let mut text = format!("{}\n", self.words);
        for rank in 0..self.ranks {
            writeln!(text, "-- rank {rank}\n{}", self.read(&format!("rank-{rank}"))).unwrap();
        }
        for name in ["stdout", "stderr"] {
            writeln!(text, "-- {name}\n{}", self.read(name)).unwrap();
        }
        text
    }

    /// The processes of the job, the launcher's daemons with them: those that have its folder in their environment.
    fn processes(&self) -> Vec<u32> {
        let mine = format!("{FOLDER}={}\0", self.folder.path().display());
        let entries = std::fs::read_dir("/proc").unwrap();
        let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        let is_mine = |number: &u32| {
            // One that has ended meanwhile, or that nobody has reaped yet, has no environment.
            let environment = std::fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
            environment.windows(mine.len()).any(|window| window == mine.as_bytes())
        };
        numbers.filter(is_mine).collect()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.end();
    }
}

/// What came of a job.
#[derive(Debug)]
pub struct Outcome {
    pub exit: Exit,
    pub elapsed: Duration,
    /// What each rank has said, by line.
    pub said: Vec<Vec<String>>,
    /// All that there is to see, for messages.
    pub report: String,
}

impl Outcome {
    /// It ended well, and every rank has said `line`.
    pub fn must_say(&self, line: &str) {
        assert_eq!(self.exit, Exit::Code(0), "{}", self.report);
        for (rank, said) in self.said.iter().enumerate() {
            assert!(said.iter().any(|its| its == line), "rank {rank} has not said {line:?}: {}", self.report);
        }
    }

    /// The one line of `rank` that begins with `start`, without it.
    pub fn line(&self, rank: usize, start: &str) -> &str {
        let mut lines = self.said[rank].iter().filter_map(|line| line.strip_prefix(start));
        match (lines.next(), lines.next()) {
            (Some(line), None) => line,
            (one, _) => {
                panic!("rank {rank} says {start:?} {}: {}", if one.is_some() { "twice" } else { "never" }, self.report)
            }
        }
    }
}

/// The bound of a job: far above what any here takes, below the library's own deadlines.
pub const LIMIT: Duration = Duration::from_secs(60);
/// How long a job's processes may take to end after its launcher has, or a thread after it has been joined.
pub const LEFTOVER_PATIENCE: Duration = Duration::from_secs(10);
/// How long a launcher that was asked to end has for it.
const FAREWELL: Duration = Duration::from_secs(3);
