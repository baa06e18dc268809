//! Pumps: what moves the bytes of a connection whose ends do not share memory.
//!
//! A pump stands between a ring and the outside. Whoever waits calls it by way of [`super::Links`], which asks first
//! what the pump [waits for](Pump::waits), so that an idle connection costs no system call.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;

use crate::error::Result;
use crate::sync::ring::{Receiver, Sender};
use crate::sys::poller::Interest;

/// What a pump needs before it can move anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// Nothing: it can move now, or nothing but trying tells. A pump without descriptors says so while it has work.
    Nothing,
    /// One of its descriptors to become ready.
    Descriptor,
    /// The executor at its ring: to publish a message, or to release a slot.
    Ring,
}

/// Moves the bytes of one end of a connection.
pub(super) trait Pump: Debug + Send {
    /// Moves what it can, without blocking. True where anything moved. It returns only when it waits for something.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    fn progress(&mut self) -> Result<bool>;

    /// What it waits for.
    fn waits(&self) -> Waits;

    /// The descriptors that it waits for, the same during its life. A pump without any is asked on every turn.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)>;

    /// Whether all that was published has been handed to the system.
    fn drained(&self) -> bool;
}

/// The sending end of a connection, open.
#[derive(Debug)]
pub(super) struct SendEnd {
    pub(super) ring: Sender,
    pub(super) pump: Option<Box<dyn Pump>>,
}

/// The receiving end of a connection, open.
#[derive(Debug)]
pub(super) struct ReceiveEnd {
    pub(super) ring: Receiver,
    pub(super) pump: Option<Box<dyn Pump>>,
}
