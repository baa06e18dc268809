//! Waiting and being told: deadlines, the abort flag, slot rings, sequence flags, back-off with futex parking.

mod abort;
pub mod primitive;
mod wait;

pub use abort::AbortFlag;
pub use wait::{Deadline, Wait};
