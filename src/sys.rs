//! All system calls: the only home of `libc`. Upper floors see safe functions.

pub mod clock;
