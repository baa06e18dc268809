//! Communicators from MPI communicators.

mod agreement;
mod alarm;
mod calls;
mod ending;
mod hosts;
mod join;
mod progress;
mod relatives;
mod waiting;

pub use crate::comm::Placement;
pub use ending::{abort, abort_on_panic, or_abort};
pub use hosts::placement;
pub use join::communicator;
pub use progress::progress;
