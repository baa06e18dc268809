//! Starts ranks as processes (`worker.rs`), tells them what to do and reads what they answer. Every wait is bounded;
//! whatever happens, no process outlives its [`Rank`].

use std::fs::File;
use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use rsccl::internals::sys::process::{Exit, Group, Signal};
use rsccl::internals::sys::thread;
use tempfile::TempDir;

use crate::worker;

/// One rank's process.
pub struct Rank {
    pub number: usize,
    group: Group,
    input: Option<PipeWriter>,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    log: PathBuf,
}

/// The result of a command.
#[derive(Debug)]
pub enum Answer {
    Ok(String),
    Error(Failure),
}

/// An error of the library, as the worker printed it.
#[derive(Debug)]
pub struct Failure {
    pub kind: String,
    pub peer: Option<usize>,
    pub text: String,
}

impl Rank {
    /// Starts rank `number` with nothing in its environment but `variables`; `prefix` are the words before the program.
    pub fn start(number: usize, folder: &Path, prefix: &[String], variables: &[(&str, &str)]) -> Rank {
        let program = std::env::current_exe().expect("this program has a path");
        let arguments = ["worker", "--exact", "--ignored", "--nocapture", "--test-threads=1"];
        let mut command = match prefix {
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            [] => Command::new(program),
        };
        let log = folder.join(format!("rank-{number}"));
        let (reader, input) = io::pipe().unwrap();
        command.args(arguments).env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", folder);
        // The virtual machine that this program runs on.
        command.envs(machine_variables());
        command.env(worker::VARIABLE, "1").env("NCCL_DEBUG", "INFO").env("NCCL_DEBUG_FILE", &log);
        command.envs(variables.iter().copied());
        command.stdin(reader).stdout(Stdio::piped()).stderr(File::create(log.with_extension("stderr")).unwrap());
        let mut group = Group::start(&mut command).unwrap_or_else(|error| panic!("starting rank {number}: {error}"));
        let output = group.take_output().0.expect("its output is a pipe");
        let (sender, lines) = mpsc::channel();
        let forward = move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                let marked = line.split_once(worker::MARK).map(|(_, text)| text.to_owned());
                if marked.is_some_and(|text| sender.send(text).is_err()) {
                    return;
                }
            }
        };
        let reader = Some(thread::spawn("answers", forward).unwrap());
        Rank { number, group, input: Some(input), lines, reader, log }
    }

    /// Gives a command.
    pub fn say(&mut self, command: &str) {
        let input = self.input.as_mut().expect("its input is open");
        writeln!(input, "{command}").unwrap_or_else(|error| panic!("rank {} reads no more: {error}", self.number));
    }

    /// Waits until the command given last has begun.
    pub fn begun(&self) {
        self.expect_line("begin");
    }

    /// Waits for a line that says `what`.
    pub fn expect_line(&self, what: &str) {
        let line = self.line(what);
        assert_eq!(line, what, "rank {}: {}", self.number, self.log());
    }

    /// Waits for a line that says `what`, after others that the running command says.
    pub fn await_line(&self, what: &str) {
        let mut line = self.line(what);
        while line == "turn" {
            line = self.line(what);
        }
        assert_eq!(line, what, "rank {}: {}", self.number, self.log());
    }

    /// The answer to a command that has begun.
    pub fn answer(&self) -> Answer {
        loop {
            let line = self.line("answer");
            let (word, rest) = line.split_once(' ').unwrap_or((&line, ""));
            match word {
                "ok" => return Answer::Ok(rest.to_owned()),
                "error" => {
                    let mut parts = rest.splitn(3, ' ');
                    let mut part = || parts.next().unwrap_or_default().to_owned();
                    let (kind, peer, text) = (part(), part(), part());
                    return Answer::Error(Failure { kind, peer: peer.parse().ok(), text });
                }
                _ => assert_eq!(word, "turn", "rank {}", self.number),
            }
        }
    }

    /// Gives a command, and the text of its success.
    pub fn must(&mut self, command: &str) -> String {
        self.say(command);
        self.begun();
        self.success(command)
    }

    /// The text of the running command's success.
    pub fn success(&self, command: &str) -> String {
        match self.answer() {
            Answer::Ok(text) => text,
            Answer::Error(failure) => panic!("rank {}: {command}: {}\n{}", self.number, failure.text, self.log()),
        }
    }

    /// The running command's error.
    pub fn failure(&self) -> Failure {
        match self.answer() {
            Answer::Error(failure) => failure,
            Answer::Ok(_) => panic!("rank {} has noticed nothing\n{}", self.number, self.log()),
        }
    }

    /// Gives a command, and its error.
    pub fn fails(&mut self, command: &str) -> Failure {
        self.say(command);
        self.begun();
        self.failure()
    }

    fn line(&self, what: &str) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => {
                let stacks = std::fs::read_to_string(format!("/proc/{}/wchan", self.group.id())).unwrap_or_default();
                panic!("rank {}: no {what} in {PATIENCE:?}, it is in {stacks:?}\n{}", self.number, self.log())
            }
            Err(RecvTimeoutError::Disconnected) => {
                panic!("rank {} ended where it should say {what}\n{}", self.number, self.log())
            }
        }
    }

    pub fn signal(&self, signal: Signal) {
        self.group.signal(signal).unwrap();
    }

    /// Lets it end: there are no more commands.
    pub fn end(mut self) {
        self.input = None;
        let group = &mut self.group;
        let mut exit = None;
        until("a rank ends", || {
            exit = group.exit().unwrap();
            exit.is_some()
        });
        assert_eq!(exit, Some(Exit::Code(0)), "rank {}: {}", self.number, self.log());
    }

    /// Its open files and its threads.
    pub fn holdings(&self) -> (usize, usize) {
        let count = |what: &str| {
            let folder = format!("/proc/{}/{what}", self.group.id());
            std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder}: {error}")).count()
        };
        (count("fd"), count("task"))
    }

    /// What lies in its memory, by the names of files.
    pub fn maps(&self) -> String {
        std::fs::read_to_string(format!("/proc/{}/maps", self.group.id())).unwrap()
    }

    /// Where its open files lead, for messages.
    pub fn open_files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.group.id())).unwrap();
        let target =
            |entry: io::Result<std::fs::DirEntry>| std::fs::read_link(entry.unwrap().path()).unwrap_or_default();
        entries.map(|entry| target(entry).to_string_lossy().into_owned()).collect()
    }

    /// The processor time that its threads have used.
    pub fn processor_time(&self) -> Duration {
        Duration::from_nanos(self.of_threads("schedstat", |text| text.split(' ').next()))
    }

    /// How often its threads have gone to sleep, and so have woken.
    pub fn sleeps(&self) -> u64 {
        self.of_threads("status", |text| text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")))
    }

    /// The sum of a number that `find` takes from the `file` of each of its threads.
    fn of_threads(&self, file: &str, find: impl Fn(&str) -> Option<&str>) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.group.id())).unwrap();
        let of = |task: io::Result<std::fs::DirEntry>| -> u64 {
            let (task, number) = (task.unwrap().path(), self.number);
            let text = match std::fs::read_to_string(task.join(file)) {
                Ok(text) => text,
                // A thread that has just ended; what it used is not asked for.
                Err(_) if !task.exists() => return 0,
                Err(error) => panic!("rank {number}: {}/{file}: {error}", task.display()),
            };
            let found = find(&text).and_then(|word| word.trim().parse().ok());
            found.unwrap_or_else(|| panic!("rank {number}: no number in {text:?}"))
        };
        tasks.map(of).sum()
    }

    /// What it has logged, and written to its standard error.
    pub fn log(&self) -> String {
        let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
        format!("{}{}", read(&self.log), read(&self.log.with_extension("stderr")))
    }

    pub fn process(&self) -> u32 {
        self.group.id()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        // What fails here has ended already.
        drop(self.group.signal(Signal::KILL));
        if let Some(reader) = self.reader.take() {
            // It sees the end of the killed process's output.
            drop(reader.join());
        }
    }
}

/// The ranks of one world, by number.
pub struct Job {
    pub ranks: Vec<Rank>,
    /// The id that rank 0 made, in hex.
    pub id: String,
    /// What [`Job::start`] was given.
    variables: Vec<(String, String)>,
    folder: TempDir,
}

impl Job {
    /// Starts `ranks` processes that have not joined yet.
    pub fn start(ranks: usize, variables: &[(&str, &str)]) -> Job {
        let mut job = Job::start_each(ranks, |_| (Vec::new(), variables.to_vec()));
        job.variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        job
    }

    /// The same; `of` yields the words before the program, and the variables, of each.
    pub fn start_each<'a>(ranks: usize, of: impl Fn(usize) -> (Vec<String>, Vec<(&'a str, &'a str)>)) -> Job {
        let folder = tempfile::tempdir().unwrap();
        let rank = |number: usize| {
            let (prefix, variables) = of(number);
            Rank::start(number, folder.path(), &prefix, &variables)
        };
        let ranks: Vec<Rank> = (0..ranks).map(rank).collect();
        ranks.iter().for_each(|rank| rank.expect_line("ready"));
        Job { ranks, id: String::new(), variables: Vec::new(), folder }
    }

    /// [`Job::start`], and all join by an id of rank 0.
    pub fn joined(ranks: usize, variables: &[(&str, &str)]) -> Job {
        let mut job = Job::start(ranks, variables);
        job.join();
        job
    }

    pub fn join(&mut self) {
        self.make_id();
        let world = self.ranks.len();
        for number in 0..world {
            self.say_init(number);
        }
        for (number, rank) in self.ranks.iter().enumerate() {
            rank.begun();
            assert_eq!(rank.success("init"), format!("{number} {world}"));
        }
    }

    pub fn make_id(&mut self) {
        self.id = self.ranks[0].must("id");
    }

    /// Tells one rank to join.
    pub fn say_init(&mut self, number: usize) {
        let command = format!("init {} {number} {}", self.id, self.ranks.len());
        self.ranks[number].say(&command);
    }

    /// All do `command`, which succeeds.
    pub fn must(&mut self, command: &str) {
        self.begin(command, |_| true);
        for rank in &self.ranks {
            rank.success(command);
        }
    }

    /// Those of `which` begin `command`.
    pub fn begin(&mut self, command: &str, which: impl Fn(usize) -> bool) {
        for rank in self.ranks.iter_mut().filter(|rank| which(rank.number)) {
            rank.say(command);
        }
        for rank in self.ranks.iter().filter(|rank| which(rank.number)) {
            rank.begun();
        }
    }

    /// All ranks but `number`.
    pub fn others(&self, number: usize) -> impl Iterator<Item = &Rank> {
        self.ranks.iter().filter(move |rank| rank.number != number)
    }

    /// Kills ranks 4 and 5 of six while the others call; each of these must name one of the two. Then they shrink.
    pub fn lose_the_last_two_of_six(&mut self) {
        self.begin("call all_reduce 300000", |rank| rank < 4);
        self.kill(4);
        self.kill(5);
        for rank in &self.ranks {
            let failure = rank.failure();
            assert_eq!(failure.kind, "Remote", "{}", failure.text);
            assert!(matches!(failure.peer, Some(4 | 5)), "{}", failure.text);
        }
        self.must("shrink 4,5");
    }

    /// Removes one rank from the job and kills its process.
    pub fn kill(&mut self, number: usize) {
        let place = self.ranks.iter().position(|rank| rank.number == number).expect("it is there");
        drop(self.ranks.remove(place));
    }

    /// Kills the process of one rank, and starts another one in its place.
    pub fn replace(&mut self, number: usize) {
        let place = self.ranks.iter().position(|rank| rank.number == number).expect("it is there");
        let (folder, variables) = (self.folder.path().to_owned(), self.variables.clone());
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (&**name, &**value)).collect();
        drop(self.ranks.remove(place));
        let rank = Rank::start(number, &folder, &[], &variables);
        rank.expect_line("ready");
        self.ranks.insert(place, rank);
    }

    /// Removes one rank from the job and kills its process, and not the children of that: they live as long as what is
    /// returned.
    pub fn kill_alone(&mut self, number: usize) -> Rank {
        let place = self.ranks.iter().position(|rank| rank.number == number).expect("it is there");
        let rank = self.ranks.remove(place);
        let process = libc::pid_t::try_from(rank.process()).expect("a process number");
        // SAFETY: the process is not reaped before the rank is dropped.
        assert_eq!(unsafe { libc::kill(process, libc::SIGKILL) }, 0);
        rank
    }

    /// A new folder of this name, which goes with the job.
    pub fn folder(&self, name: &str) -> String {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        folder.to_string_lossy().into_owned()
    }

    /// All drop their communicators; nothing of them is left. `before` is what each held when it started.
    pub fn must_leave_nothing(&mut self, before: &[(usize, usize)]) {
        self.must("drop");
        for rank in &self.ranks {
            let (files, threads) = before[rank.number];
            // A thread that has been joined is counted until the kernel has put it away, and may have been counted before.
            let clean = || {
                let now = rank.holdings();
                now.0 == files && now.1 <= threads
            };
            if !machine::until(LEFTOVER_PATIENCE, clean) {
                let (now, files) = (rank.holdings(), rank.open_files());
                panic!("rank {} held {:?} (files, threads), now {now:?}: {files:?}", rank.number, before[rank.number]);
            }
        }
    }

    /// What each rank holds now.
    pub fn holdings(&self) -> Vec<(usize, usize)> {
        self.ranks.iter().map(Rank::holdings).collect()
    }
}

/// Waits until `come` says so; fails the test when it does not come in good time.
pub fn until(what: &str, come: impl FnMut() -> bool) {
    assert!(machine::until(PATIENCE, come), "waited {PATIENCE:?} until {what}");
}

/// The variables of a virtual machine of GPUs, where this program runs on one.
pub fn machine_variables() -> Vec<(String, String)> {
    #![expect(clippy::disallowed_methods, reason = "the place of a test's process is no configuration of the library")]
    let is_machines = |name: &str| name.starts_with("VCUDA_") || name == "LD_LIBRARY_PATH";
    std::env::vars().filter(|(name, _)| is_machines(name)).collect()
}

/// The bound of every wait: far above what anything here takes, far below the library's own deadlines.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long a thread or a socket may take to end after its owner has let it go.
const LEFTOVER_PATIENCE: Duration = Duration::from_secs(5);
