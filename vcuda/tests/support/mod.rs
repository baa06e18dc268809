//! What the tests of programs on machines share: the built libraries, and a run that is bounded in time.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// No program of these tests takes longer, also on a busy machine; a deadlock is reported long before.
const DEADLINE: Duration = Duration::from_secs(120);

/// What a program on a machine left: exit status and output.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) status: i32,
    pub(crate) output: String,
    pub(crate) errors: String,
}

impl Finished {
    /// Panics with all that was printed unless the program succeeded.
    #[track_caller]
    pub(crate) fn must_succeed(&self) -> &str {
        assert_eq!(self.status, 0, "output:\n{}\nerrors:\n{}", self.output, self.errors);
        &self.output
    }

    /// Panics unless the errors hold all of these.
    #[track_caller]
    pub(crate) fn must_tell(&self, parts: &[&str]) {
        for part in parts {
            assert!(self.errors.contains(part), "lacks {part:?}\noutput:\n{}\nerrors:\n{}", self.output, self.errors);
        }
    }
}

/// A run of `vcuda run MACHINE -- words`, to be told more before it starts.
pub(crate) fn on_machine(machine: &str, words: &[&str]) -> Command {
    let mut command = vcuda();
    command.args(["run", machine, "--"]).args(words);
    command
}

/// The command `vcuda`, with the libraries built.
pub(crate) fn vcuda() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_vcuda"));
    // A variable of somebody who debugs must not change what is tested.
    command.env("VCUDA_LIBRARIES", libraries()).env_remove("VCUDA_FAIL").env_remove("VCUDA_SEED");
    command.env_remove("CUDA_VISIBLE_DEVICES").env_remove("CUDA_LAUNCH_BLOCKING").env_remove("CUDA_MODULE_LOADING");
    command
}

/// The program of `programs/`: an example, which cargo builds with all tests but not with one.
pub(crate) fn programs() -> String {
    static BUILT: OnceLock<String> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        cargo(&["build", "--locked", "--quiet", "-p", "vcuda", "--example", "programs"]);
        let program = libraries().join("examples/programs");
        program.into_os_string().into_string().unwrap()
    });
    built.clone()
}

/// Runs to the end, or kills and panics at the deadline.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> Finished {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    finish_child(child)
}

/// The same, for one that was started with its output piped.
#[track_caller]
pub(crate) fn finish_child(mut child: Child) -> Finished {
    let output = child.stdout.take().map(|pipe| collect(Some(pipe)));
    let errors = collect(child.stderr.take());
    let deadline = Instant::now() + DEADLINE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        thread::sleep(Duration::from_millis(5));
    };
    let output = output.map(|output| output.join().unwrap()).unwrap_or_default();
    let errors = errors.join().unwrap();
    let Some(status) = status else { panic!("it did not end in {DEADLINE:?}\noutput:\n{output}\nerrors:\n{errors}") };
    Finished { status: status.code().unwrap_or(-1), output, errors }
}

/// The lines that a process prints, each waited for with a deadline.
pub(crate) struct Lines {
    lines: mpsc::Receiver<String>,
}

impl Lines {
    /// Takes the process's output.
    pub(crate) fn of(child: &mut Child) -> Self {
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { lines }
    }

    /// The next line; at the deadline the process is killed.
    #[track_caller]
    pub(crate) fn next(&mut self, child: &mut Child) -> String {
        self.lines.recv_timeout(DEADLINE).unwrap_or_else(|error| {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("no line came: {error}")
        })
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    let mut pipe = pipe.unwrap();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// The folder of `libcuda.so` and `libnvidia_ml.so`; cargo builds them for no test by itself, since nothing links to them.
pub(crate) fn libraries() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        cargo(&["build", "--locked", "--quiet", "-p", "vcuda-driver", "-p", "vcuda-nvml"]);
        Path::new(env!("CARGO_BIN_EXE_vcuda")).parent().unwrap().to_owned()
    })
}

fn cargo(words: &[&str]) {
    let output = Command::new(env!("CARGO")).args(words).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
