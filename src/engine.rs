//! Runs calls: one rank's side of a communicator, which chooses the path of each call and moves its data.
//!
//! [`Engine`] is what a communicator takes a turn on. It stands on what the rank knows (`session`) and on whose memory
//! of devices is reached (`reach`). No user holds it: `comm` does.

mod across;
mod beginning;
pub mod call_log;
mod call_mover;
pub mod choose;
mod copy_engines;
mod device_chooser;
mod device_messages;
pub mod device_windows;
mod engine;
mod given;
mod host_chooser;
mod host_side;
mod monitor;
mod on_device;
mod programs;
mod registrations;

pub(crate) use engine::Engine;
