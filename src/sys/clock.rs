//! The clock: read here and nowhere else, so that state machines take time as a value.

use std::time::Instant;

/// The monotonic clock.
pub fn now() -> Instant {
    #![expect(clippy::disallowed_methods, reason = "the one home of the clock")]
    Instant::now()
}
