//! Errors on their way to C++.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::bridge::{Code, Status};
use crate::error::{Error, Kind, Result};
use crate::types::Rank;

/// An error that C++ owns: null where there is none, else to be freed by [`drop_failure`] or as a box.
pub(super) struct Failure(Error);

/// What C++ reads of it.
pub(super) fn explain(failure: &Failure) -> Status {
    let Failure(error) = failure;
    Status {
        code: code_of(error.kind()).repr,
        message: error.message().to_owned(),
        rank: place_of(error.rank()),
        peer: place_of(error.peer()),
        operation: error.operation().unwrap_or_default().to_owned(),
    }
}

fn place_of(rank: Option<u32>) -> i32 {
    rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1)
}

/// NCCL's number for a code; 3, its internal error, for what is no code.
pub(super) fn nccl_code(code: i32) -> i32 {
    kind_of(code).unwrap_or(Kind::Internal).nccl_code()
}

fn code_of(kind: Kind) -> Code {
    match kind {
        Kind::InvalidArgument => Code::InvalidArgument,
        Kind::InvalidUsage => Code::InvalidUsage,
        Kind::Mismatch => Code::Mismatch,
        Kind::Remote => Code::Remote,
        Kind::Timeout => Code::Timeout,
        Kind::System => Code::System,
        Kind::Internal => Code::Internal,
        Kind::Aborted => Code::Aborted,
        Kind::InProgress => Code::InProgress,
    }
}

/// The kind with this code; `None` for 0 and for what is no code.
pub(super) fn kind_of(code: i32) -> Option<Kind> {
    match (Code { repr: code }) {
        Code::InvalidArgument => Some(Kind::InvalidArgument),
        Code::InvalidUsage => Some(Kind::InvalidUsage),
        Code::Mismatch => Some(Kind::Mismatch),
        Code::Remote => Some(Kind::Remote),
        Code::Timeout => Some(Kind::Timeout),
        Code::System => Some(Kind::System),
        Code::Internal => Some(Kind::Internal),
        Code::Aborted => Some(Kind::Aborted),
        Code::InProgress => Some(Kind::InProgress),
        _ => None,
    }
}

/// Runs `body`; its error or panic becomes a failure.
#[inline]
pub(super) fn guard(body: impl FnOnce() -> Result<()>) -> *mut Failure {
    guard_or(None, body, || {})
}

/// Runs `body` of `rank`; its error or panic becomes a failure. After a panic `clean_up` runs first.
#[inline]
pub(super) fn guard_or(rank: Option<Rank>, body: impl FnOnce() -> Result<()>, clean_up: impl FnOnce()) -> *mut Failure {
    // Nothing that the panic left in its middle is used again: `clean_up` ends what could be.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => std::ptr::null_mut(),
        Ok(Err(error)) => pass(error),
        Err(panic) => panicked(rank, &*panic, clean_up),
    }
}

#[cold]
fn panicked(rank: Option<Rank>, panic: &(dyn Any + Send), clean_up: impl FnOnce()) -> *mut Failure {
    let words = panic.downcast_ref::<&str>().copied();
    let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no words");
    let error = Error::internal(format!("a panic inside rsccl: {words}"));
    let failure = pass(if let Some(rank) = rank { error.at(rank) } else { error });
    // A second panic has nothing to add.
    drop(catch_unwind(AssertUnwindSafe(clean_up)));
    failure
}

/// Hands an error over.
#[cold]
pub(super) fn pass(error: Error) -> *mut Failure {
    Box::into_raw(Box::new(Failure(error)))
}

/// Frees a failure that nobody reads.
pub(super) fn drop_failure(failure: *mut Failure) {
    if !failure.is_null() {
        // SAFETY: it came from `pass`, and its one owner gives it here.
        drop(unsafe { Box::from_raw(failure) });
    }
}
