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

/// The nearest ancestor of this process whose name begins with one of `names`; the parent if no ancestor has such a
/// name. `None` if `/proc` does not tell.
pub fn ancestor(names: &[&str]) -> Option<ProcessIdentity> {
    let mine = ProcessIdentity::mine().ok().filter(|mine| !mine.space.is_empty())?;
    let parent = stat(mine.process)?.parent;
    let mut next = parent;
    for _ in 0..MOST_ANCESTORS {
        let Some(stat) = stat(next) else { break };
        if names.iter().any(|name| stat.name.starts_with(name)) {
            return Some(ProcessIdentity { process: next, started: stat.started, ..mine });
        }
        next = stat.parent;
    }
    Some(ProcessIdentity { process: parent, started: stat(parent)?.started, ..mine })
}

/// A process's entry in `/proc`.
struct Stat {
    /// The program's name, cut to 15 bytes.
    name: String,
    parent: u32,
    started: u64,
}

fn stat(process: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (before, rest) = text.rsplit_once(") ")?;
    let name = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split(' ').collect();
    let started = fields.get(START_AFTER_STATE + 1)?.parse().ok()?;
    Some(Stat { name, parent: fields.get(1)?.parse().ok()?, started })
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
/// A rank and its launcher have at most a few shells between them.
const MOST_ANCESTORS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ancestors_are_found_by_name_and_else_the_parent() {
        let mine = ProcessIdentity::mine().unwrap();
        let parent = std::os::unix::process::parent_id();
        let none = ancestor(&["no program has this name"]).unwrap();
        assert_eq!((none.process, &none.space), (parent, &mine.space));
        let name = stat(parent).unwrap().name;
        assert_eq!(ancestor(&[&name]).unwrap().started, none.started);
        assert_eq!(none.life().unwrap(), Life::Runs);
    }

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
