//! The clock. No other module reads it, so that state machines take the time as a value.

use std::time::Instant;

/// The time of the monotonic clock.
pub fn now() -> Instant {
    #![expect(clippy::disallowed_methods, reason = "the one home of the clock")]
    Instant::now()
}
