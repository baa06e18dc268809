//! How the ranks come to be: what the user asked for, and copies of this program as processes.

use std::env;
use std::fs;
use std::io;
use std::process::{Child, Command};

use rsccl::config::{Environment, Launch};

/// How the ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Ranks are threads of this process.
    Local,
    /// Ranks are processes that share memory.
    Shm,
    /// Ranks are processes with nothing between them but sockets.
    Net,
}

/// What the command line says.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    pub(crate) ranks: u32,
    pub(crate) transport: Transport,
    pub(crate) reproducible: bool,
    /// The GPUs whose memory gradients are added up in; none: the host's.
    pub(crate) devices: Vec<u32>,
}

impl Options {
    pub(crate) fn parse() -> Result<Options, String> {
        let mut options = Options { ranks: 4, transport: Transport::Shm, reproducible: false, devices: Vec::new() };
        let mut words = env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--ranks" => options.ranks = value()?.parse().map_err(|error| format!("--ranks: {error}"))?,
                "--transport" => {
                    options.transport = match value()?.as_str() {
                        "local" => Transport::Local,
                        "shm" => Transport::Shm,
                        "net" => Transport::Net,
                        other => return Err(format!("--transport {other}: local, shm or net")),
                    };
                }
                "--reproducible" => options.reproducible = true,
                "--device" => options.devices = devices(&value()?)?,
                other => {
                    let known = "--ranks N, --transport local|shm|net, --device cuda[:LIST], --reproducible";
                    return Err(format!("{other}: known are {known}"));
                }
            }
        }
        if options.ranks == 0 { Err("--ranks 0: at least one".to_owned()) } else { Ok(options) }
    }

    /// The GPU of a rank, if it has one: neighbours share one where there are fewer GPUs than ranks.
    pub(crate) fn device_of(&self, rank: u32) -> Option<u32> {
        let place = u64::from(rank) * self.devices.len() as u64 / u64::from(self.ranks);
        usize::try_from(place).ok().and_then(|place| self.devices.get(place)).copied()
    }
}

/// `cuda`, which is the first GPU, or `cuda:0,1`.
fn devices(text: &str) -> Result<Vec<u32>, String> {
    let numbers = match text.strip_prefix("cuda") {
        Some("") => Ok(vec![0]),
        Some(list) if list.starts_with(':') => {
            list[1..].split(',').map(|number| number.parse().map_err(|_| ())).collect()
        }
        _ => Err(()),
    };
    numbers.map_err(|()| format!("--device {text}: write cuda, or cuda:0,1"))
}

/// Whether a launcher (`rsccl run`, torchrun, mpirun, srun, or [`start_processes`]) has made this process a rank already.
pub(crate) fn is_rank() -> bool {
    Launch::is_rank(&Environment::capture())
}

/// Starts this program once for each rank, and waits for all of them. They meet in a folder of their own.
pub(crate) fn start_processes(options: &Options) -> Result<(), String> {
    let folder = env::temp_dir().join(format!("rsccl-digits-{}", std::process::id()));
    fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let store = format!("file://{}", folder.join("store").display());
    let mut children = Vec::new();
    let outcome = match (0..options.ranks).try_for_each(|rank| start(options, rank, &store).map(|it| children.push(it)))
    {
        Ok(()) => wait_for_all(children),
        Err(error) => stop_all(children, &error),
    };
    fs::remove_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    outcome
}

fn start(options: &Options, rank: u32, store: &str) -> io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args().skip(1)).env("RSCCL_STORE", store);
    command.env("RSCCL_RANK", rank.to_string()).env("RSCCL_WORLD_SIZE", options.ranks.to_string());
    command.spawn()
}

fn stop_all(children: Vec<Child>, error: &io::Error) -> Result<(), String> {
    for mut child in children {
        child.kill().and_then(|()| child.wait()).map_err(|other| format!("{error}; {other}"))?;
    }
    Err(format!("could not start a rank: {error}"))
}

/// A rank that fails takes the others along: they notice that their peer is gone.
fn wait_for_all(children: Vec<Child>) -> Result<(), String> {
    let mut failures = Vec::new();
    for (rank, mut child) in children.into_iter().enumerate() {
        match child.wait() {
            Ok(status) if status.success() => {}
            Ok(status) => failures.push(format!("rank {rank}: {status}")),
            Err(error) => failures.push(format!("rank {rank}: {error}")),
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join(", ")) }
}
