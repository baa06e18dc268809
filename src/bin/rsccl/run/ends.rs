//! Which rank's end came first, and which one is the cause of the others.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rsccl::Result;
use rsccl::internals::sys::poller::{Interest, Poller, Ready};
use rsccl::internals::sys::process::{Exit, Group, Signal};

/// The order in which ranks end. SIGCHLD does not tell it: several ends may arrive as one signal. The kernel lists
/// ready descriptors in the order in which they became ready, though.
#[derive(Debug)]
pub(crate) struct Ends {
    poller: Poller,
    /// By rank. `None` once the end was seen, and where the system gives no descriptor: then only the order is unknown.
    handles: Vec<Option<OwnedFd>>,
}

impl Ends {
    /// # Errors
    /// [`rsccl::error::Kind::System`] if no descriptor is left.
    pub(crate) fn new() -> Result<Ends> {
        Ok(Ends { poller: Poller::new()?, handles: Vec::new() })
    }

    /// Watches the next rank.
    pub(crate) fn watch(&mut self, group: &Group) {
        let token = self.handles.len() as u64;
        let handle = group.handle().ok();
        let watched = handle.filter(|handle| self.poller.add(handle.as_fd(), token, Interest::Read).is_ok());
        self.handles.push(watched);
    }

    /// The ranks that have ended since the last call, in the order of their ends.
    ///
    /// # Errors
    /// [`rsccl::error::Kind::System`], which never happens with a valid poller.
    pub(crate) fn seen(&mut self) -> Result<Vec<usize>> {
        let (mut ready, mut ranks) = (Ready::default(), Vec::new());
        loop {
            self.poller.wait(&mut ready, Duration::ZERO)?;
            let numbers = ready.iter().filter_map(|event| usize::try_from(event.token).ok());
            let ended: Vec<usize> = numbers.filter(|rank| *rank < self.handles.len()).collect();
            // A descriptor that is closed is reported no more.
            ended.iter().for_each(|rank| self.handles[*rank] = None);
            ranks.extend(&ended);
            if ended.is_empty() {
                return Ok(ranks);
            }
        }
    }
}

/// The likeliest cause among `failures`, which stand in the order of the ends: a rank that was struck down, even if
/// ranks that lost it had ended sooner; otherwise the rank that ended first.
pub(crate) fn cause(failures: &[(usize, Exit)]) -> Option<(usize, Exit)> {
    failures.iter().find(|(_, exit)| was_struck(*exit)).or(failures.first()).copied()
}

/// Whether a rank ended by a signal that strikes from outside, or in the middle of its work. SIGABRT does not count: a
/// rank that does not catch the error about another rank's end is ended by it. Nor does SIGPIPE: the reader of that
/// pipe has ended. A shell between this command and the program reports a signal as the code 128 + its number.
fn was_struck(exit: Exit) -> bool {
    let number = match exit {
        Exit::Signal(signal) => signal.number(),
        Exit::Code(code) => match code - 128 {
            number if CODES_OF_SHELLS.iter().any(|signal| signal.number() == number) => number,
            _ => return false,
        },
    };
    ![Signal::ABORT, Signal::PIPE].iter().any(|signal| signal.number() == number)
}

/// The signals by which programs are struck down. Other codes above 128 are a program's own.
const CODES_OF_SHELLS: [Signal; 6] =
    [Signal::ILLEGAL, Signal::TRAP, Signal::BUS, Signal::ARITHMETIC, Signal::KILL, Signal::SEGMENTATION];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_is_the_rank_that_was_struck_or_else_the_first() {
        let [abort, pipe, killed, broken] =
            [Signal::ABORT, Signal::PIPE, Signal::KILL, Signal::SEGMENTATION].map(Exit::Signal);
        for (exits, rank) in [
            (&[][..], None),
            (&[(1, Exit::Code(3)), (0, abort)], Some(1)),
            (&[(1, abort), (0, Exit::Code(3))], Some(1)),
            (&[(2, Exit::Code(3)), (0, pipe), (1, abort)], Some(2)),
            (&[(0, Exit::Code(1)), (1, killed)], Some(1)),
            (&[(0, abort), (1, broken), (2, killed)], Some(1)),
            (&[(0, Exit::Code(1)), (1, Exit::Code(128 + 11))], Some(1)),
            (&[(0, Exit::Code(1)), (1, Exit::Code(128 + 6))], Some(0)),
            (&[(0, Exit::Code(1)), (1, Exit::Code(255))], Some(0)),
        ] {
            assert_eq!(cause(exits).map(|(rank, _)| rank), rank, "{exits:?}");
        }
    }
}
