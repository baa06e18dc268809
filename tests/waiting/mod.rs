//! Bounded waits for what other processes do.

use std::time::Duration;

use rsccl::internals::sys::{clock, poller};

/// Waits until `come` is true, at most for `patience`; returns whether it was.
pub(crate) fn until(patience: Duration, mut come: impl FnMut() -> bool) -> bool {
    let began = clock::now();
    while !come() {
        if clock::now().duration_since(began) > patience {
            return false;
        }
        poller::pause(BETWEEN_LOOKS);
    }
    true
}

/// Short compared with the time that a process takes to start or end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
