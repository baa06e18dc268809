//! Waits of tests for what other processes do.

use std::time::Duration;

use rsccl::internals::sys::{clock, poller};

/// Waits until `come` says so, for no longer than `patience`; whether it came.
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

/// Short beside what processes take to start or end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
