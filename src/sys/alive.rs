//! Whether another process of this host still runs.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::sys::open;
use crate::sys::process::{Want, wait_ready};

/// Another process, by its number in this process's namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process(libc::pid_t);

impl Process {
    /// The process with this number. `None` for numbers that are not a process here: the kernel reports 0 for a process
    /// in a namespace that is not visible from this one.
    pub(crate) fn of(number: libc::pid_t) -> Option<Process> {
        (number > 0).then_some(Process(number))
    }

    /// Its number.
    pub fn number(self) -> libc::pid_t {
        self.0
    }

    /// Whether the process has certainly ended and can access no memory any more: the kernel releases a process's
    /// memory before it reports its end. False if that cannot be determined, or if the number belongs to a new process
    /// now.
    pub fn has_ended(self) -> bool {
        let handle = match handle(self.0) {
            Ok(handle) => handle,
            Err(error) => return error.raw_os_error() == Some(libc::ESRCH),
        };
        // Also ready for a process that has ended but that its parent has not reaped.
        wait_ready(&[(handle.as_fd(), Want::Read)], Some(Duration::ZERO)).is_ok_and(|ready| ready == [true])
    }
}

/// A descriptor of the process with this number, which is readable once the process has ended.
pub(crate) fn handle(number: libc::pid_t) -> io::Result<OwnedFd> {
    // SAFETY: the call takes two numbers.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
    // SAFETY: it is what the call has just returned.
    unsafe { open::own(i32::try_from(raw).unwrap_or(-1)) }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::sys::process::Group;

    #[test]
    fn a_process_has_ended_when_it_is_killed_and_before_it_is_reaped() {
        let mut group = Group::start(Command::new("sleep").arg("1000")).unwrap();
        let process = Process::of(libc::pid_t::try_from(group.id()).unwrap()).unwrap();
        assert!(!process.has_ended());
        group.signal(crate::sys::process::Signal::KILL).unwrap();
        let handle_ready = || group.exit().unwrap().is_some();
        await_true(handle_ready);
        assert!(process.has_ended(), "unreaped");
        drop(group);
        assert!(process.has_ended(), "reaped");
        assert_eq!(Process::of(0), None);
    }

    fn await_true(mut come: impl FnMut() -> bool) {
        let deadline = crate::sync::Deadline::after(Duration::from_secs(20));
        while !come() {
            assert!(!deadline.passed(crate::sys::clock::now()), "the child does not end");
            wait_ready(&[], Some(Duration::from_millis(1))).unwrap();
        }
    }
}
