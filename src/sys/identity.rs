//! The identity of a process, so that another process can check later whether it still runs.

use std::io::ErrorKind;

use crate::error::Result;
use crate::sys::host;

/// One process among all that ever ran. Its number alone would not identify it, because the kernel reuses numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The host's name, for messages.
    pub host: String,
    /// Boot id and process namespace: two processes with equal ones mean the same by `process`. Empty if the system
    /// does not tell.
    pub space: String,
    /// Its process number.
    pub process: u32,
    /// When it started, in ticks since boot.
    pub started: u64,
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Runs,
    /// It has ended, or was killed and its parent has not reaped it yet.
    Ended,
    /// It is on another host or in another container, or `/proc` does not tell.
    Unknown,
}

impl ProcessIdentity {
    /// This process.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if the host has no name.
    pub fn mine() -> Result<ProcessIdentity> {
        let process = host::process_id();
        let namespace = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
        let started = match look_up(process) {
            Found::Running(started) => started,
            Found::Nothing | Found::Untold => 0,
        };
        let boot = host::boot_id().filter(|_| started != 0 && !namespace.as_os_str().is_empty());
        let space = boot.map_or_else(String::new, |boot| format!("{boot} {}", namespace.display()));
        Ok(ProcessIdentity { host: host::hostname()?, space, process, started })
    }

    /// Whether the process still runs, as far as this process can tell.
    ///
    /// # Errors
    /// As [`ProcessIdentity::mine`].
    pub fn life(&self) -> Result<Life> {
        let mine = ProcessIdentity::mine()?;
        if mine.space.is_empty() || mine.space != self.space {
            return Ok(Life::Unknown);
        }
        Ok(match look_up(self.process) {
            Found::Running(started) if started == self.started => Life::Runs,
            Found::Running(_) | Found::Nothing => Life::Ended,
            Found::Untold => Life::Unknown,
        })
    }
}

/// The result of looking up a process number in `/proc`.
enum Found {
    /// A process that runs, and when it started.
    Running(u64),
    /// There is no such process, or it has ended.
    Nothing,
    /// `/proc` does not tell.
    Untold,
}

fn look_up(process: u32) -> Found {
    let text = match std::fs::read_to_string(format!("/proc/{process}/stat")) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Found::Nothing,
        Err(_) => return Found::Untold,
    };
    // The name is in parentheses and may contain any character, so the other fields are counted from the last
    // parenthesis.
    let Some((_, rest)) = text.rsplit_once(") ") else { return Found::Untold };
    let mut fields = rest.split(' ');
    let state = fields.next().unwrap_or("");
    match (state, fields.nth(START_AFTER_STATE).and_then(|field| field.parse().ok())) {
        ("Z" | "X" | "x", _) => Found::Nothing,
        (_, Some(started)) => Found::Running(started),
        (_, None) => Found::Untold,
    }
}

/// Fields between the state and the start time (proc(5): fields 3 and 22).
const START_AFTER_STATE: usize = 18;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_runs_and_one_that_has_ended_does_not() {
        let mine = ProcessIdentity::mine().unwrap();
        assert_eq!(mine.life().unwrap(), Life::Runs);
        assert_eq!(ProcessIdentity { started: mine.started + 1, ..mine.clone() }.life().unwrap(), Life::Ended);
        assert_eq!(ProcessIdentity { space: "another".into(), ..mine.clone() }.life().unwrap(), Life::Unknown);

        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let Found::Running(started) = look_up(child.id()) else { panic!("the child runs") };
        let its = ProcessIdentity { process: child.id(), started, ..mine };
        assert_eq!(its.life().unwrap(), Life::Runs);
        child.kill().unwrap();
        // Its parent, this process, has not reaped it yet: it counts as ended all the same.
        while its.life().unwrap() == Life::Runs {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert_eq!(its.life().unwrap(), Life::Ended);
    }
}
