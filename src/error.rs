//! The one error type: who is at fault, which rank and peer, in which operation.
//!
//! Every fallible call of the crate returns [`Result`]. An [`Error`] has a [`Kind`] (which tells what to do about it),
//! a sentence, and, if they are known, the rank that reports, the peer concerned and the operation. It prints as one
//! line:
//!
//! ```text
//! rank 2: all_reduce #17: rank 5 has died: its control connection closed
//! ```
//!
//! rsccl carries an error of the program's own as the source of an [`Error`] ([`Error::other`],
//! [`Error::with_source`]). Calls that are generic over the error keep its type ([`crate::local::try_run`],
//! [`crate::Communicator::try_scope`], [`crate::comm::try_group`]).

use std::any::Any;
use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::types::Rank;

/// The result of every fallible call of the crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error: what went wrong, who is at fault, and where.
///
/// One word wide, so that the hot path's `Result<()>` stays in a register. `Debug` prints the sentence as `Display`
/// does, because a `main` that returns an error prints its `Debug`.
pub struct Error(Box<Inner>);

struct Inner {
    kind: Kind,
    message: String,
    rank: Option<Rank>,
    peer: Option<Rank>,
    operation: Option<String>,
    /// Shared, because all holders of one failure carry it.
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// How much of a text that came from outside a sentence shows.
pub(crate) const SHOWN_BYTES: usize = 64;

/// A text of a file, the environment or a peer as errors and notes show it: its first [`SHOWN_BYTES`] bytes and `…`
/// where it is longer, so that no outsider decides how long a line of ours is.
pub(crate) fn shown(text: &str) -> Cow<'_, str> {
    if text.len() <= SHOWN_BYTES {
        return Cow::Borrowed(text);
    }
    let end = (0..=SHOWN_BYTES).rev().find(|end| text.is_char_boundary(*end)).unwrap_or_default();
    Cow::Owned(format!("{}…", &text[..end]))
}

/// A stranger's text, which must not reach a terminal's controls.
pub(crate) fn without_controls(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        if letter.is_control() { shown.extend(letter.escape_default()) } else { shown.push(letter) }
    }
    shown
}

/// The kind of an [`Error`]; each kind's documentation says what to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Kind {
    /// An argument is wrong (count, rank, buffer, variable, id). Correct the call; nothing was sent.
    InvalidArgument,
    /// The call does not fit the state (after finalize, inside a group, no usable interface). Correct the program.
    InvalidUsage,
    /// Ranks disagree: different counts, types, operations, world sizes. The message names both sides.
    Mismatch,
    /// A peer died, left, or broke the protocol. Shrink without it, or end the job.
    Remote,
    /// A deadline passed. The message names the ranks that were waited for; raise the time-out or look at those ranks.
    Timeout,
    /// The operating system refused a call, on this rank or on the one that the message names. The message names the
    /// call; where it is this rank's, the source has the error code.
    System,
    /// A defect of rsccl. Please report it with its message.
    Internal,
    /// The program called abort, on this or another rank. Drop the communicator.
    Aborted,
    /// A non-blocking call has not finished. Ask again later.
    InProgress,
}

/// Who is at fault for a [`Kind`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The calling program.
    Caller,
    /// Another rank.
    Peer,
    /// The operating system or the machine.
    System,
    /// rsccl itself.
    Us,
    /// Nobody: the call is still under way, or was stopped on purpose.
    Nobody,
}

impl Kind {
    /// Who is at fault.
    pub fn fault(self) -> Fault {
        match self {
            Kind::InvalidArgument | Kind::InvalidUsage => Fault::Caller,
            Kind::Mismatch | Kind::Remote | Kind::Timeout => Fault::Peer,
            Kind::System => Fault::System,
            Kind::Internal => Fault::Us,
            Kind::Aborted | Kind::InProgress => Fault::Nobody,
        }
    }

    /// Whether such an error ends the communicator, because other ranks take part in it.
    pub(crate) fn ends(self) -> bool {
        match self {
            Kind::InvalidArgument | Kind::InvalidUsage | Kind::InProgress => false,
            Kind::Mismatch | Kind::Remote | Kind::Timeout | Kind::System | Kind::Internal | Kind::Aborted => true,
        }
    }

    /// The number of this kind in NCCL's `ncclResult_t`.
    pub fn nccl_code(self) -> i32 {
        match self {
            Kind::System => 2,
            Kind::Internal => 3,
            Kind::InvalidArgument => 4,
            Kind::InvalidUsage | Kind::Mismatch => 5,
            Kind::Remote | Kind::Aborted => 6,
            Kind::InProgress => 7,
            Kind::Timeout => 8,
        }
    }
}

impl Error {
    /// An error of `kind` with the sentence `message`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Error {
        Error(Box::new(Inner { kind, message: message.into(), rank: None, peer: None, operation: None, source: None }))
    }

    /// [`Kind::InvalidArgument`].
    pub fn invalid_argument(message: impl Into<String>) -> Error {
        Error::new(Kind::InvalidArgument, message)
    }

    /// [`Kind::InvalidUsage`].
    pub fn invalid_usage(message: impl Into<String>) -> Error {
        Error::new(Kind::InvalidUsage, message)
    }

    /// [`Kind::Mismatch`].
    pub fn mismatch(message: impl Into<String>) -> Error {
        Error::new(Kind::Mismatch, message)
    }

    /// [`Kind::Remote`] about `peer`.
    pub fn remote(peer: Rank, message: impl Into<String>) -> Error {
        Error::new(Kind::Remote, message).about(peer)
    }

    /// [`Kind::Timeout`].
    pub fn timeout(message: impl Into<String>) -> Error {
        Error::new(Kind::Timeout, message)
    }

    /// [`Kind::Internal`].
    pub fn internal(message: impl Into<String>) -> Error {
        Error::new(Kind::Internal, message)
    }

    /// [`Kind::Aborted`].
    pub fn aborted(message: impl Into<String>) -> Error {
        Error::new(Kind::Aborted, message)
    }

    /// [`Kind::Aborted`]: `what` panicked with `panic`.
    pub(crate) fn of_panic(what: &str, panic: &(dyn Any + Send)) -> Error {
        let literal = panic.downcast_ref::<&str>().copied();
        let words = literal.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        Error::aborted(format!("{what} panicked: {words}"))
    }

    /// [`Kind::System`]: `call` failed with `source`.
    pub fn system(call: impl fmt::Display, source: std::io::Error) -> Error {
        Error::new(Kind::System, format!("{call}: {source}")).with_source(source)
    }

    /// [`Kind::InvalidUsage`] that wraps an error of the program's own and has its text.
    ///
    /// # Examples
    /// ```
    /// use rsccl::Error;
    ///
    /// let error = rsccl::local::run(2, |_| "seven".parse::<u32>().map_err(Error::other)).expect_err("no number");
    /// assert_eq!(error.to_string(), "invalid digit found in string");
    /// let source = std::error::Error::source(&error).expect("it has one");
    /// assert!(source.is::<std::num::ParseIntError>());
    /// ```
    pub fn other(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        let source = source.into();
        Error::new(Kind::InvalidUsage, source.to_string()).with_source(source)
    }

    /// Sets the error that caused this one; replaces an earlier one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Error {
        self.0.source = Some(source.into().into());
        self
    }

    /// [`Kind::System`]: `call` failed with the thread's last OS error.
    pub fn last_os(call: impl fmt::Display) -> Error {
        Error::system(call, std::io::Error::last_os_error())
    }

    /// Adds the rank that reports, unless one is set already.
    #[must_use]
    pub fn at(mut self, rank: Rank) -> Error {
        self.0.rank.get_or_insert(rank);
        self
    }

    /// Adds the peer concerned, unless one is set already.
    #[must_use]
    pub fn about(mut self, peer: Rank) -> Error {
        self.0.peer.get_or_insert(peer);
        self
    }

    /// Prefixes the name of the call that the operation was a part of: "check: all_reduce #17".
    #[must_use]
    pub fn inside(mut self, call: &str) -> Error {
        self.0.operation = Some(match self.0.operation {
            Some(operation) => format!("{call}: {operation}"),
            None => call.to_owned(),
        });
        self
    }

    /// Adds the operation ("all_reduce #17"), unless one is set already.
    #[must_use]
    pub fn during(mut self, operation: impl Into<String>) -> Error {
        if self.0.operation.is_none() {
            self.0.operation = Some(operation.into());
        }
        self
    }

    /// Appends what to do about it to the sentence.
    #[must_use]
    pub(crate) fn advising(mut self, remedy: &str) -> Error {
        self.0.message = format!("{}: {remedy}", self.0.message);
        self
    }

    /// What kind of failure this is.
    pub fn kind(&self) -> Kind {
        self.0.kind
    }

    /// The rank that reports, if known.
    pub fn rank(&self) -> Option<u32> {
        self.0.rank.map(Rank::get)
    }

    /// The peer concerned, if known.
    pub fn peer(&self) -> Option<u32> {
        self.0.peer.map(Rank::get)
    }

    /// The operation and its sequence number, if known.
    pub fn operation(&self) -> Option<&str> {
        self.0.operation.as_deref()
    }

    /// The sentence without rank and operation.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// A second error with the same text, for the other holders of a shared failure.
    #[must_use]
    pub fn duplicate(&self) -> Error {
        Error(Box::new(Inner {
            kind: self.0.kind,
            message: self.0.message.clone(),
            rank: self.0.rank,
            peer: self.0.peer,
            operation: self.0.operation.clone(),
            source: self.0.source.clone(),
        }))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rank) = self.0.rank {
            write!(f, "rank {rank}: ")?;
        }
        if let Some(operation) = &self.0.operation {
            write!(f, "{operation}: ")?;
        }
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_ref().map(|source| &**source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_names_rank_operation_and_cause() {
        let error = Error::remote(Rank::new(5), "rank 5 has died").during("all_reduce #17").at(Rank::new(2));
        assert_eq!(error.to_string(), "rank 2: all_reduce #17: rank 5 has died");
        assert_eq!((error.kind(), error.peer(), error.rank()), (Kind::Remote, Some(5), Some(2)));
        assert_eq!(error.kind().fault(), Fault::Peer);
    }

    #[test]
    fn a_main_that_returns_an_error_shows_its_sentence() {
        let error = Error::remote(Rank::new(5), "rank 5 has died").during("all_reduce #17").at(Rank::new(2));
        assert_eq!(format!("{error:?}"), "rank 2: all_reduce #17: rank 5 has died");
        assert_eq!(format!("{:?}", Err::<(), _>(error)), "Err(rank 2: all_reduce #17: rank 5 has died)");
    }

    #[test]
    fn the_source_of_an_error_is_there_also_in_its_duplicates() {
        let error = Error::mismatch("other inputs").with_source(std::fmt::Error);
        assert!(error.duplicate().source().is_some_and(|source| source.is::<std::fmt::Error>()));
        let os = Error::system("open(/a)", std::io::Error::from_raw_os_error(2));
        let source = os.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(2));
    }

    #[test]
    fn an_error_is_one_word() {
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }
}
