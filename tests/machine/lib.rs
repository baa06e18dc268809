//! The machine that a test runs on: whether it has the GPUs that the test needs ([`gpus`]), virtual machines of GPUs (`vcuda`) on which a
//! program of tests starts itself again ([`run`]), and bounded waits for what other processes do ([`until`]).
//!
//! Nothing here knows rsccl, so that its unit tests and those of its command can use it: of a crate that names the library they would
//! have a second instance.

pub mod gpus;
pub mod headers;
pub mod libfabric;
pub mod net_plugin;
mod waiting;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use waiting::until;

/// A run that came to an end.
#[derive(Debug)]
pub struct Run {
    /// Empty where the test hides some of its GPUs.
    machine: String,
    /// Whether its exit status says so.
    pub succeeded: bool,
    /// Standard output and error.
    pub output: String,
}

/// Runs the tests of this program whose names have `filter` in them. With `--strict` among the `options`, what is left
/// on a GPU is a failure.
pub fn run(machine: &str, options: &[&str], arguments: &[&str], environment: &[(&str, &str)]) -> Run {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vcuda/run");
    let mut command = Command::new("timeout");
    command.args(["--kill-after=10", LONGEST_S, script]).args(options).args([machine, "--"]);
    command.arg(std::env::current_exe().expect("a program")).args(arguments).arg("--nocapture");
    for name in ["CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING", "VCUDA_FAIL", "VCUDA_SEED"] {
        command.env_remove(name);
    }
    let finished = command.envs(environment.iter().copied()).stdin(Stdio::null()).output().expect("the machine starts");
    let output = String::from_utf8_lossy(&[finished.stdout, finished.stderr].concat()).into_owned();
    let hides = environment.iter().any(|(name, _)| *name == "CUDA_VISIBLE_DEVICES");
    let machine = if hides { String::new() } else { machine.to_owned() };
    Run { machine, succeeded: finished.status.success(), output }
}

/// The host of the machine that this process is on; `None` outside of machines.
pub fn host() -> Option<u32> {
    variable("VCUDA_HOST")?.parse().ok()
}

/// Whether the caller says that there is a real GPU, and that tests which need one GPU are to run on it.
pub fn is_real() -> bool {
    variable("RSCCL_TEST_REAL_GPU").is_some_and(|value| value == "1")
}

/// The variables of a process on another host of the machine, whose ranks say so; `None` where it has one host.
pub fn of_host(number: u32) -> Option<Vec<(String, String)>> {
    let own = PathBuf::from(variable("VCUDA_STATE")?);
    let state = own.with_file_name(format!("host{number}"));
    let told = |path: &Path| path.to_string_lossy().into_owned();
    let variables = [
        ("VCUDA_HOST", number.to_string()),
        ("VCUDA_STATE", told(&state)),
        ("VCUDA_MACHINE", told(&state.join("machine.toml"))),
        ("NCCL_HOSTID", format!("host{number}")),
    ];
    state.exists().then(|| variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn variable(name: &str) -> Option<String> {
    #![expect(clippy::disallowed_methods, reason = "the place of a test's process is no configuration of the library")]
    std::env::var(name).ok()
}

impl Run {
    /// Expects that some tests ran, that all passed, and that each has seen the GPUs of the machine.
    pub fn must_pass(&self, what: &str) {
        let seen = gpus::all_have_seen(&self.machine, &self.output);
        assert!(self.succeeded && seen.is_ok(), "{what}: {seen:?}\n{}", self.output);
    }
}

/// No run takes longer, also on a busy computer; the machine reports a deadlock long before.
const LONGEST_S: &str = "300";
