//! Runs calls: one rank's side of a communicator, which chooses the path of each call and moves its data.
//!
//! [`Engine`] is what a communicator takes a turn on. It stands on what the rank knows (`session`) and on whose memory
//! of devices is reached (`reach`). No user holds it: `comm` does. It begins a call, and gives it to one of two sides:
//! `host_side`, or `device_side`, which the first call on a device makes (`device_entry`). Each side has its chooser.

mod across;
pub mod call_log;
pub mod choose;
mod copy_engines;
mod device_call;
mod device_chooser;
mod device_collectives;
mod device_entry;
mod device_messages;
mod device_side;
pub mod device_windows;
mod engine;
pub mod foreseen;
mod given;
mod heard;
mod memory;
mod host_chooser;
pub(crate) mod host_messages;
mod host_side;
mod launches;
mod monitor;
mod prepared;
mod programs;
mod registrations;
mod requests_turn;
mod window_registration;

pub(crate) use engine::Engine;
pub(crate) use given::{Beside, LONG_REQUEST_NAP, REQUEST_NAP};
pub(crate) use prepared::{Announce, AnnouncedCall, Prepared};
pub(crate) use requests_turn::Waiter;
