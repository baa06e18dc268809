//! What the process does at signals, kept as it is while a foreign library is loaded: some install handlers in their
//! initialisers and end the process by them, also where the program has handlers of its own.

use crate::sync::primitive::statics;
use crate::sys::fork::PerProcess;

/// Runs `work`, and gives every signal the action back that it had before. One such work runs at a time, since the
/// second would take the first one's intruders for the program's own.
pub fn kept<T>(work: impl FnOnce() -> T) -> T {
    let _turn = TURN.get_or_init(|| statics::Mutex::new(())).lock();
    let before = Actions::now();
    let done = work();
    before.restore();
    done
}

/// The actions of all signals that can have one.
struct Actions(Vec<(libc::c_int, libc::sigaction)>);

impl Actions {
    fn now() -> Actions {
        let action = |signal| {
            // SAFETY: the structure is made of integers and pointers, for which zero is a value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: asks for the action, into a structure of ours. A signal that the C library keeps for itself is an
            // error.
            let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
            (asked == 0).then_some((signal, action))
        };
        Actions((1..=libc::SIGRTMAX()).filter_map(action).collect())
    }

    fn restore(&self) {
        for (signal, action) in &self.0 {
            // Of SIGKILL and SIGSTOP an action can be asked for and not set: nobody has changed it.
            // SAFETY: the action is the one that the process had, so its handler is still there.
            let _fixed = unsafe { libc::sigaction(*signal, &raw const *action, std::ptr::null_mut()) };
        }
    }
}

/// A forked child has its own: its parent's may be held by a thread that the child does not have.
static TURN: PerProcess<statics::Mutex<()>> = PerProcess::new();

/// The handler of a signal, as a number.
#[cfg(test)]
#[cfg(not(loom))]
pub(crate) fn handler(signal: libc::c_int) -> usize {
    Actions::now().0.iter().find(|(known, _)| *known == signal).map_or(0, |(_, action)| action.sa_sigaction)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    extern "C" fn intruder(_: libc::c_int) {}

    #[test]
    fn a_handler_that_was_installed_meanwhile_is_gone_afterwards() {
        let before = handler(libc::SIGUSR2);
        let (ours, within) = kept(|| {
            let ours = (intruder as *const ()).addr();
            // SAFETY: the handler does nothing.
            unsafe { libc::signal(libc::SIGUSR2, ours) };
            (ours, handler(libc::SIGUSR2))
        });
        assert_eq!(within, ours, "or the test has tried nothing");
        assert_eq!(handler(libc::SIGUSR2), before);
    }
}
