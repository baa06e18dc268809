//! Forwards the launcher's standard input to rank 0.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rsccl::internals::sys::process::{PIPE_ROOM_BYTES, may_read};

/// Forwards the launcher's standard input to a pipe, in bounded memory.
#[derive(Debug)]
pub(crate) struct Input {
    source: File,
    sink: File,
    pending: Vec<u8>,
    /// Whether the source has reached its end.
    ended: bool,
}

impl Input {
    pub(crate) fn new(source: impl AsFd, sink: impl Into<OwnedFd>) -> std::io::Result<Input> {
        let source = File::from(source.as_fd().try_clone_to_owned()?);
        Ok(Input { source, sink: File::from(sink.into()), pending: Vec::new(), ended: false })
    }

    /// The descriptor to read from, if there is room. A terminal is not read while this process is in the background.
    pub(crate) fn wants(&self) -> Option<BorrowedFd<'_>> {
        let wants = !self.ended && self.pending.len() < MAX_PENDING_BYTES && may_read(&self.source);
        wants.then(|| self.source.as_fd())
    }

    /// The descriptor to write to, if there are bytes to write.
    pub(crate) fn has(&self) -> Option<BorrowedFd<'_>> {
        (!self.pending.is_empty()).then(|| self.sink.as_fd())
    }

    /// Reads from a source that is ready. False when everything has been passed on, and the pipe may be closed.
    pub(crate) fn read_some(&mut self) -> bool {
        let mut bytes = [0; READ_BYTES];
        match self.source.read(&mut bytes) {
            Ok(0) => self.ended = true,
            Ok(count) => self.pending.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            // A source that cannot be read counts as ended.
            Err(_) => self.ended = true,
        }
        !(self.ended && self.pending.is_empty())
    }

    /// Writes as much as a ready pipe takes without blocking. False when everything has been passed on, or the pipe has
    /// no reader any more.
    pub(crate) fn write_some(&mut self) -> bool {
        let part = self.pending.len().min(PIPE_ROOM_BYTES);
        match self.sink.write(&self.pending[..part]) {
            Ok(count) => drop(self.pending.drain(..count)),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(_) => return false,
        }
        !(self.ended && self.pending.is_empty())
    }
}

/// The most unread input of a rank that the launcher holds in memory.
const MAX_PENDING_BYTES: usize = 64 << 10;
const READ_BYTES: usize = 16 << 10;
