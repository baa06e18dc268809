//! Topics of calls among threads that need no process of their own: one program, which is linked once and whose tests
//! wait side by side.

mod deadlines;
mod nonblocking;
mod scans;
mod stalls;
