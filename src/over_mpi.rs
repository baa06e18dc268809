//! The one protocol by which ranks of MPI become ranks of rsccl, for Rust and for C++.
//!
//! It knows no MPI. It calls the one that the program was built with through a [`Table`] of functions: `mpi` fills
//! one in Rust by the crate of that name, and `rsccl/mpi.hpp` one in C++ by the user's own `<mpi.h>`. So the library
//! for C++ is built without MPI.
//!
//! `calls` is every call of MPI, behind safe functions; `join` makes a communicator from MPI's; by `agreement` all
//! ranks get a communicator or the same error; `alarm` wakes ranks whose peers have failed to join; `relatives` follows
//! MPI's sub-communicators, and `hosts` compares what MPI and rsccl take for a host.

mod agreement;
mod alarm;
pub(crate) mod calls;
mod hosts;
mod join;
mod relatives;
mod table;
mod waiting;

pub(crate) use hosts::placement;
pub(crate) use join::communicator;
pub(crate) use relatives::{check, like};
pub(crate) use table::{Handle, Mpi, Table, ThreadLevel};
