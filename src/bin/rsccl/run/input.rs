//! The launcher's standard input on its way to rank 0.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rsccl::internals::sys::process::{PIPE_ROOM_BYTES, may_read};

/// From the launcher's standard input to a pipe, in bounded memory.
#[derive(Debug)]
pub(crate) struct Input {
    source: File,
    sink: File,
    pending: Vec<u8>,
    /// Whether the source has given all it has.
    ended: bool,
}

impl Input {
    pub(crate) fn new(source: impl AsFd, sink: impl Into<OwnedFd>) -> std::io::Result<Input> {
        let source = File::from(source.as_fd().try_clone_to_owned()?);
        Ok(Input { source, sink: File::from(sink.into()), pending: Vec::new(), ended: false })
    }

    /// What to read from, where there is room. A terminal is left alone while this process is in its background.
    pub(crate) fn wants(&self) -> Option<BorrowedFd<'_>> {
        let wants = !self.ended && self.pending.len() < MAX_PENDING_BYTES && may_read(&self.source);
        wants.then(|| self.source.as_fd())
    }

    /// What to write to, where there is something.
    pub(crate) fn has(&self) -> Option<BorrowedFd<'_>> {
        (!self.pending.is_empty()).then(|| self.sink.as_fd())
    }

    /// Reads from a source that is ready. False once all has been passed on, and the pipe may be closed.
    pub(crate) fn read_some(&mut self) -> bool {
        let mut bytes = [0; READ_BYTES];
        match self.source.read(&mut bytes) {
            Ok(0) => self.ended = true,
            Ok(count) => self.pending.extend_from_slice(&bytes[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            // What cannot be read has no more to give.
            Err(_) => self.ended = true,
        }
        !(self.ended && self.pending.is_empty())
    }

    /// Writes as much as a ready pipe takes without blocking. False once all has been passed on, or nobody reads any more.
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

/// What a rank that does not read leaves in the launcher's memory.
const MAX_PENDING_BYTES: usize = 64 << 10;
const READ_BYTES: usize = 16 << 10;
