//! Starts a program on a machine: `vcuda run MACHINE -- program args`.
//!
//! It makes a folder in memory for the state that the machine's processes share, puts `libcuda.so`, `libcuda.so.1` and
//! `libnvidia-ml.so.1` first on the loader's path, starts the program (once a host) and waits. Processes that the program
//! leaves behind are ended; what leaked is listed; the folder goes away whatever happens, and the exit status is the
//! program's. A folder whose `vcuda run` was killed is removed by the next one.
//!
//! ```text
//! vcuda.PID.N/          a folder of the first file system in memory that has room
//!     alive             locked while `vcuda run` lives
//!     lib/              links to the two libraries, by all names that a loader asks for
//!     fabric/           what the driver writes where memory crosses between hosts
//!     host0/            VCUDA_STATE of the processes of host 0
//!         machine.toml  VCUDA_MACHINE
//!         ...           what the driver writes
//! ```

mod children;
mod folder;
mod hosts;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::Command;

use crate::fault::Faults;
use crate::machine::Machine;
use crate::space;

use self::children::Children;
use self::folder::Folder;

/// What to run, and on which machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// A ready machine's name, or the path of a file.
    pub machine: String,
    /// From which all random choices of the machine come.
    pub seed: u64,
    /// Whether leaks make the run fail, with [`LEAKED`].
    pub strict: bool,
    /// Folder of `libcuda.so` and `libnvidia_ml.so`.
    pub libraries: PathBuf,
    /// The program and its arguments.
    pub program: Vec<OsString>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The exit status for the shell: the program's (of the first host whose program failed), 128 and the signal's number
    /// where a signal ended it, [`LEAKED`] where it succeeded and leaked in a strict run.
    pub status: u8,
    /// What leaked, a sentence each: processes first, then what the driver's state still held.
    pub leaks: Vec<String>,
    /// What the run has to say beside: hosts that could not be told apart, for instance.
    pub remarks: Vec<String>,
}

/// Exit status of a strict run whose program succeeded and leaked.
pub const LEAKED: u8 = 97;

impl Job {
    /// Runs the program to its end.
    ///
    /// # Errors
    /// The machine, the list of faults or the libraries are not as they must be; the folder cannot be made; the program
    /// cannot be started. Nothing remains behind.
    pub fn run(&self) -> Result<Outcome, String> {
        let machine = Machine::load(&self.machine)?;
        let text = Machine::text(&self.machine)?;
        Faults::parse(&std::env::var("VCUDA_FAIL").unwrap_or_default())?;
        let folder = Folder::make(&self.libraries)?;
        for host in 0..machine.hosts {
            folder.add_host(host, &format!("host = {host}\n{text}"))?;
        }
        let mut remarks = Vec::new();
        let children = Children::adopt()?;
        let statuses = if machine.hosts == 1 {
            children.wait(&[children.start(self.command(&folder, 0))?])?
        } else {
            hosts::run_on_all(machine.hosts, &folder, &children, &mut remarks, |host| self.command(&folder, host))?
        };
        let mut leaks = children.end_those_left_behind();
        let states = (0..machine.hosts).map(|host| (folder.state(host), format!("host {host}: ")));
        let of_all = (folder.fabric(), "one of the hosts: ".to_owned());
        leaks.extend(states.chain([of_all]).flat_map(|state| leaks_of_state(&state, machine.hosts)));
        let status = statuses.into_iter().find(|status| *status != 0).unwrap_or(0);
        let leaked = self.strict && status == 0 && !leaks.is_empty();
        Ok(Outcome { status: if leaked { LEAKED } else { status }, leaks, remarks })
    }

    fn command(&self, folder: &Folder, host: u32) -> Command {
        let mut command = Command::new(&self.program[0]);
        let state = folder.state(host);
        command.args(&self.program[1..]);
        command.env("LD_LIBRARY_PATH", folder.library_path(std::env::var_os("LD_LIBRARY_PATH")));
        command.env("VCUDA_MACHINE", state.join(folder::MACHINE_FILE)).env("VCUDA_STATE", state);
        command.env("VCUDA_SEED", self.seed.to_string()).env("VCUDA_HOST", host.to_string());
        command
    }
}

impl Outcome {
    /// What `vcuda run` prints after the program: nothing where all went well.
    #[must_use]
    pub fn report(&self, job: &Job) -> String {
        let mut text = String::new();
        for remark in &self.remarks {
            let _ = writeln!(text, "vcuda: {remark}"); // A String takes all text.
        }
        if !self.leaks.is_empty() {
            let _ = writeln!(text, "vcuda: leaked, {} in all:", self.leaks.len()); // as above
        }
        for leak in &self.leaks {
            let _ = writeln!(text, "vcuda:   {leak}"); // as above
        }
        if self.status != 0 {
            let (status, machine, seed) = (self.status, &job.machine, job.seed);
            let _ = writeln!(text, "vcuda: exit status {status} on machine {machine}, seed {seed}"); // as above
        }
        text
    }
}

/// What a state of the driver still holds of processes that have ended; where there are several hosts, with whose it is.
fn leaks_of_state((folder, whose): &(PathBuf, String), hosts: u32) -> Vec<String> {
    let leaks = space::leaks(folder).unwrap_or_else(|what| vec![format!("the state cannot be read: {what}")]);
    let told = |leak: String| if hosts == 1 { leak } else { format!("{whose}{leak}") };
    leaks.into_iter().map(told).collect()
}
