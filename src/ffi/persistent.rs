//! Persistent calls of the C++ classes.

use super::Comm;
use super::bridge::What;
use super::call::{self, Work};
use super::failure::{self, Failure, guard};
use crate::comm::{ForeignCall, Steps};
use crate::error::{Error, Result};

/// A persistent call; `None` before it was prepared.
pub(super) struct Persistent(Option<ForeignCall>);

pub(super) fn persistent() -> Box<Persistent> {
    Box::new(Persistent(None))
}

/// # Safety
/// The memory that `what` calls for is good for reading and writing for as long as `call` lives, and nobody else
/// touches it while a round of it is under way.
pub(super) unsafe fn prepare(
    comm: &Comm,
    what: &What,
    send: *const u8,
    recv: *mut u8,
    send_counts: &[usize],
    recv_counts: &[usize],
    call: &mut Persistent,
) -> *mut Failure {
    comm.on(|comm| {
        if what.on_stream {
            let message = "a persistent call works on host memory and takes no stream: leave the last argument out, or \
                           call it on the stream, again and again";
            return Err(Error::invalid_usage(message).at(comm.world()?.rank));
        }
        let (mut messages, mut steps) = (Vec::new(), Steps::default());
        // SAFETY: the caller's promise.
        match unsafe { call::work(comm, what, (send, recv), (send_counts, recv_counts)) }? {
            Work::Collective(call) => steps.add(call),
            Work::Message(message) => messages.push(message),
            Work::Messages(several) => messages = several,
            Work::Exchange(messages) => steps.add_exchange(messages),
        }
        call.0 = Some(comm.prepare_foreign(messages, steps)?);
        Ok(())
    })
}

pub(super) fn start_round(call: &mut Persistent) -> *mut Failure {
    guard(|| call.on(ForeignCall::start))
}

pub(super) fn wait_round(call: &mut Persistent) -> *mut Failure {
    guard(|| call.on(ForeignCall::wait))
}

/// For a destructor, which cannot give the program an error.
pub(super) fn await_round(call: &mut Persistent) {
    failure::drop_failure(guard(|| {
        call.0.iter_mut().for_each(ForeignCall::await_end);
        Ok(())
    }));
}

pub(super) fn is_round_over(call: &Persistent) -> bool {
    call.0.as_ref().is_none_or(ForeignCall::is_finished)
}

pub(super) fn run_round(call: &mut Persistent) -> *mut Failure {
    guard(|| call.on(ForeignCall::run))
}

impl Persistent {
    #[inline]
    fn on(&mut self, body: impl FnOnce(&mut ForeignCall) -> Result<()>) -> Result<()> {
        self.0.as_mut().map_or_else(|| Err(Error::internal("a persistent call that was never prepared")), body)
    }
}
