//! A rank's own side: who it is by its launcher's variables, and where it says what it has seen.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;

use rsccl::config::{Environment, Launch};
use rsccl::{Config, Error};

use crate::mpirun::{FOLDER, LIMIT, TOLD, until};

/// This process as a rank.
pub struct Rank {
    /// By the launcher's variables.
    pub number: u32,
    /// How many there are, by the same.
    pub size: u32,
    pub folder: PathBuf,
    says: File,
}

impl Rank {
    /// Where a test started this process as a rank: the rank, and what it is told to do.
    pub fn wanted() -> Option<(Rank, String)> {
        #![expect(
            clippy::disallowed_methods,
            reason = "the role of a test's process is no configuration of the library"
        )]
        let told = std::env::var(TOLD).ok()?;
        let folder = PathBuf::from(std::env::var(FOLDER).expect("a rank has its job's folder"));
        Some((Rank::of(folder), told))
    }

    fn of(folder: PathBuf) -> Rank {
        // Numbers of the launcher itself: a test may set others above them.
        let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE"];
        let all = Environment::capture();
        let get = |name: &str| all.get(name).ok().flatten().map(|value| (name.to_owned(), value.to_owned()));
        let its: Vec<(String, String)> = names.iter().filter_map(|name| get(name)).collect();
        let environment = Environment::of(its.iter().map(|(name, value)| (&**name, &**value)));
        let launch = Launch::learn(&environment, &Config::default()).expect("an mpirun has started this rank");
        let says = File::options().create(true).append(true).open(folder.join(format!("rank-{}", launch.world.rank)));
        Rank { number: launch.world.rank.get(), size: launch.world.size, folder, says: says.expect("a file to write") }
    }

    /// Says a line.
    pub fn say(&self, line: &str) {
        let line = format!("{}\n", line.replace('\n', " "));
        // In one piece, since a test reads along.
        (&self.says).write_all(line.as_bytes()).expect("the folder is there as long as the job");
    }

    /// Waits until the rank `other` has said a line that begins with `start`; whether it has.
    pub fn has_said(&self, other: u32, start: &str) -> bool {
        let file = self.folder.join(format!("rank-{other}"));
        until(LIMIT, || {
            let text = std::fs::read_to_string(&file).unwrap_or_default();
            text.lines().any(|line| line.starts_with(start))
        })
    }

    /// Says what an error was: `what KIND PEER TEXT`.
    pub fn say_error(&self, what: &str, error: &Error) {
        let peer = error.peer().map_or("-".to_owned(), |peer| peer.to_string());
        self.say(&format!("{what} {:?} {peer} {error}", error.kind()));
    }
}
