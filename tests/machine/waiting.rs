//! Bounded waits for what other processes do.

use std::time::{Duration, Instant};

/// Waits until `come` is true, at most for `patience`; returns whether it was.
pub fn until(patience: Duration, mut come: impl FnMut() -> bool) -> bool {
    #![expect(
        clippy::disallowed_methods,
        reason = "tests look at other processes, and have no communicator to wait with"
    )]
    let began = Instant::now();
    while !come() {
        if began.elapsed() > patience {
            return false;
        }
        std::thread::sleep(BETWEEN_LOOKS);
    }
    true
}

/// Short compared with the time that a process takes to start or end.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
