//! The processes of a run: started, waited for, and ended where the program left them behind.
//!
//! The run is a subreaper: processes that the program orphans become its children, so that none outlives it.

use std::fs;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicI32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long processes that the program leaves behind may take to end by themselves.
const GRACE: Duration = Duration::from_secs(2);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long a process may take to die of SIGKILL; more than that is a kernel that cannot.
const DEATH: Duration = Duration::from_secs(30);
/// One program a host.
const MOST: usize = 16;

/// Process ids that a signal to this process is passed on to; 0: none.
static PROGRAMS: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];

/// The last signal that came; 0: none. It is passed on also to a program whose id was not stored yet when it came.
static CAME: AtomicI32 = AtomicI32::new(0);

/// The children of this process. Only a process that has no others should have this.
#[derive(Debug)]
pub(super) struct Children(());

/// A program that was started.
#[derive(Debug)]
pub(super) struct Program {
    pid: i32,
}

impl Children {
    /// Makes this process the parent of what its children orphan, and passes signals that would end it on to them.
    pub(super) fn adopt() -> Result<Children, String> {
        // SAFETY: this option takes one number and touches no memory.
        if unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) } != 0 {
            return Err(format!("cannot become the parent of orphans: {}", io::Error::last_os_error()));
        }
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            let pass_on: extern "C" fn(i32) = pass_on;
            // SAFETY: the handler makes only calls that are allowed in one: loads of atomics and kill.
            unsafe { libc::signal(signal, pass_on as libc::sighandler_t) };
        }
        Ok(Children(()))
    }

    /// Starts a program; it is killed if this process (strictly: the calling thread) ends before it.
    pub(super) fn start(&self, mut command: Command) -> Result<Program, String> {
        // SAFETY: the closure runs between fork and exec and makes only one call, which is allowed there.
        unsafe { command.pre_exec(die_with_parent) };
        let name = command.get_program().to_string_lossy().into_owned();
        let child: Child = command.spawn().map_err(|error| format!("cannot start {name}: {error}"))?;
        let pid = i32::try_from(child.id()).map_err(|_| format!("process id {} is out of range", child.id()))?;
        if let Some(place) = PROGRAMS.iter().find(|place| place.load(Ordering::Relaxed) == 0) {
            // Either the handler sees this number or we see its signal: both store first and then load, in one order of all.
            place.store(pid, Ordering::SeqCst);
            let came = CAME.load(Ordering::SeqCst);
            if came != 0 {
                // SAFETY: it is our child and not reaped yet, so that the number is still its own.
                unsafe { libc::kill(pid, came) };
            }
        }
        Ok(Program { pid })
    }

    /// Waits until all these programs have ended, reaping orphans meanwhile; their exit statuses as a shell counts them.
    pub(super) fn wait(&self, programs: &[Program]) -> Result<Vec<u8>, String> {
        let mut statuses = vec![None; programs.len()];
        while statuses.contains(&None) {
            let (pid, status) = match reap(0) {
                Ok(Some(reaped)) => reaped,
                Ok(None) => continue,
                Err(error) => return Err(format!("cannot wait for the program: {error}")),
            };
            if let Some(which) = programs.iter().position(|program| program.pid == pid) {
                statuses[which] = Some(shell_status(status));
            }
            forget(pid);
        }
        Ok(statuses.into_iter().flatten().collect())
    }

    /// Ends what still runs once the programs have ended; a sentence for each.
    pub(super) fn end_those_left_behind(&self) -> Vec<String> {
        let patience = Instant::now() + GRACE;
        while self.any_left() && Instant::now() < patience {
            thread::sleep(LOOK_EVERY);
        }
        let mut sentences = Vec::new();
        let patience = Instant::now() + DEATH;
        // Those of the dead become ours in turn.
        while self.any_left() && Instant::now() < patience {
            for (pid, name) in living_children() {
                let sentence = format!("process {pid} ({name}) still ran and was ended");
                if !sentences.contains(&sentence) {
                    sentences.push(sentence);
                }
                // SAFETY: it is our child and not reaped yet, so that the number is still its own.
                unsafe { libc::kill(pid, libc::SIGKILL) };
            }
            thread::sleep(LOOK_EVERY);
        }
        sentences
    }

    /// Reaps the dead; whether anybody remains.
    fn any_left(&self) -> bool {
        loop {
            match reap(libc::WNOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false, // ECHILD: there are none.
            }
        }
    }
}

/// Reaps one child; `None`: none has ended yet.
fn reap(options: i32) -> io::Result<Option<(i32, ExitStatus)>> {
    let mut status = 0;
    // SAFETY: the call writes the status into our variable.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, options) };
    match pid {
        0 => Ok(None),
        pid if pid > 0 => Ok(Some((pid, ExitStatus::from_raw(status)))),
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            error => Err(error),
        },
    }
}

/// Children of this process that have not ended, with their names.
fn living_children() -> Vec<(i32, String)> {
    let me = i32::try_from(std::process::id()).unwrap_or(0);
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter_map(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // "12 (name, which may hold anything) S parent ..."
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let mut words = rest.split_whitespace();
        let (state, parent) = (words.next()?, words.next()?.parse::<i32>().ok()?);
        (parent == me && state != "Z").then(|| (pid, name.to_owned()))
    })
    .collect()
}

fn shell_status(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(255);
    u8::try_from(code).unwrap_or(255)
}

fn forget(pid: i32) {
    for place in &PROGRAMS {
        // Only this thread stores; the handler reads.
        if place.load(Ordering::Relaxed) == pid {
            place.store(0, Ordering::Relaxed);
        }
    }
}

extern "C" fn pass_on(signal: i32) {
    // The partner is in `start`.
    CAME.store(signal, Ordering::SeqCst);
    for place in &PROGRAMS {
        let pid = place.load(Ordering::SeqCst);
        if pid != 0 {
            // SAFETY: the number is forgotten when its process is reaped; a handler between the two finds no such process.
            unsafe { libc::kill(pid, signal) };
        }
    }
}

fn die_with_parent() -> io::Result<()> {
    // SAFETY: this option takes one number and touches no memory.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
