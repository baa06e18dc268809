//! A data socket whose bytes are encrypted: it stands between a pump and the socket, and changes no byte of what the
//! pump sees.
//!
//! A pump that is told that nothing fits offers the same bytes again. So the socket says that it has taken the bytes of
//! some records when all of these have left: until then the pump keeps them, and knows that it is not drained.

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::bootstrap::sealed::{Opener, RECORD_OVERHEAD, SealedEnds, Sealer};
use crate::config::Encryption;
use crate::error::{Error, Kind, Result};
use crate::transport::net::watched_socket::WatchedSocket;
use crate::transport::net::wire::{DataSocket, HEADER_BYTES};

/// A connected socket of a data connection, and what encrypts it, if anything does.
#[derive(Debug)]
pub(in crate::transport) struct DataStream {
    pub(in crate::transport) stream: TcpStream,
    pub(in crate::transport) ends: Option<SealedEnds>,
}

impl DataStream {
    /// A socket whose handshake has agreed on these `ends`, where this was `wanted`.
    ///
    /// # Errors
    /// [`Kind::Internal`] where they are not what was wanted: nothing may go over it then.
    pub(super) fn new(stream: TcpStream, ends: Option<SealedEnds>, wanted: Encryption) -> Result<DataStream> {
        if ends.is_some() == (wanted != Encryption::Off) {
            Ok(DataStream { stream, ends })
        } else {
            Err(Error::internal("the handshake of a data connection did not agree on what RSCCL_ENCRYPT says"))
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct SealedSocket<S = WatchedSocket> {
    socket: S,
    out: RefCell<Out>,
    into: RefCell<Into>,
}

/// The records that are being sent.
#[derive(Debug)]
struct Out {
    sealer: Sealer,
    records: Vec<u8>,
    sent: usize,
    /// How many of the pump's bytes they hold; 0 where there are none.
    content: usize,
}

/// What has come.
#[derive(Debug)]
struct Into {
    opener: Opener,
    /// Whether the other end has ended the stream.
    ended: bool,
    /// Why no more can be read; what came before it goes to the pump first.
    failed: Option<Error>,
}

impl<S: DataSocket> SealedSocket<S> {
    pub(super) fn new(socket: S, ends: SealedEnds) -> SealedSocket<S> {
        let SealedEnds { sealer, opener } = ends;
        let out = RefCell::new(Out { sealer, records: Vec::new(), sent: 0, content: 0 });
        SealedSocket { socket, out, into: RefCell::new(Into { opener, ended: false, failed: None }) }
    }
}

impl<S: DataSocket> AsFd for SealedSocket<S> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl<S: DataSocket> DataSocket for SealedSocket<S> {
    fn may_stop_anywhere(&self) -> bool {
        false
    }

    fn read_into(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>> {
        let mut into = self.into.borrow_mut();
        let (mut got, mut is_dry) = (0, false);
        for part in parts {
            let mut left = &mut part[..];
            while !left.is_empty() {
                if into.opener.content().is_empty() && !into.has_next(&self.socket, &mut is_dry) {
                    return match &into.failed {
                        Some(error) if got == 0 => Err(error.duplicate()),
                        _ => Ok(if got > 0 || into.ended { Some(got) } else { None }),
                    };
                }
                got += into.move_to(&mut left);
            }
        }
        Ok(Some(got))
    }

    fn write_from(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>> {
        let mut out = self.out.borrow_mut();
        if out.content == 0 {
            out.seal(parts)?;
        }
        let Out { records, sent, content, .. } = &mut *out;
        while *sent < records.len() {
            match self.socket.write_from(&[IoSlice::new(&records[*sent..])])? {
                None | Some(0) => return Ok(None),
                Some(written) => *sent += written,
            }
        }
        Ok(Some(std::mem::take(content)))
    }

    fn look(&mut self, now: Instant) -> Result<()> {
        self.socket.look(now)
    }

    fn has_failed(&self) -> bool {
        self.into.borrow().failed.is_some()
    }
}

impl Out {
    /// Encrypts what `parts` begin with, in several records where one does not hold it.
    fn seal(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        self.records.clear();
        self.sent = 0;
        while self.content < BATCH_BYTES {
            let mut taken = self.content;
            let left = parts.iter().map(|part| {
                let of_part = taken.min(part.len());
                taken -= of_part;
                &part[of_part..]
            });
            match self.sealer.seal(left, RECORD_BYTES, &mut self.records)? {
                0 => break,
                sealed => self.content += sealed,
            }
        }
        Ok(())
    }
}

impl Into {
    /// [`Into::next`], false after an error, too, which is kept: nothing can be read behind it.
    fn has_next(&mut self, socket: &impl DataSocket, is_dry: &mut bool) -> bool {
        if self.failed.is_some() {
            return false;
        }
        match self.next(socket, is_dry) {
            Ok(is_there) => is_there,
            Err(error) => {
                self.failed = Some(error);
                false
            }
        }
    }

    /// Decrypts the next record; false where not all of it has come, with `is_dry`, and at the end of the stream.
    fn next(&mut self, socket: &impl DataSocket, is_dry: &mut bool) -> Result<bool> {
        let mut was_empty = false;
        while !self.opener.open(RECORD_BYTES)? {
            // Bytes and the end behind them may be one edge, so a record that has begun is looked for until nothing is
            // there.
            if self.ended || (*is_dry && (was_empty || !self.opener.is_midway())) {
                return Ok(false);
            }
            let room = self.opener.room_of(READ_BYTES, ROOM_BYTES);
            let could = room.len();
            match socket.read_into(&mut [IoSliceMut::new(room)])? {
                None => (*is_dry, was_empty) = (true, true),
                Some(0) if self.opener.is_midway() => return Err(cut_off()),
                Some(0) => self.ended = true,
                Some(read) => {
                    self.opener.filled(read);
                    // The call that has read less than it could has seen the end of what was there.
                    *is_dry = read < could;
                }
            }
        }
        Ok(true)
    }

    /// Moves what fits of the content.
    fn move_to(&mut self, left: &mut &mut [u8]) -> usize {
        let content = self.opener.content();
        let moved = content.len().min(left.len());
        left[..moved].copy_from_slice(&content[..moved]);
        *left = &mut std::mem::take(left)[moved..];
        self.opener.take(moved);
        moved
    }
}

fn cut_off() -> Error {
    Error::new(Kind::Remote, "the encrypted stream ended in the middle of a record")
}

/// The most bytes of the pump's in one record: with a header, so that no message of one or two such parts needs one
/// more record for its last 32 bytes.
const RECORD_BYTES: usize = (64 << 10) + HEADER_BYTES;
/// Bytes of the pump's after which no further record is added to those that one call of the system is handed: a piece
/// of a collective has 128 KiB.
const BATCH_BYTES: usize = (128 << 10) + HEADER_BYTES;
/// The least that one call may read: a record.
const READ_BYTES: usize = RECORD_BYTES + RECORD_OVERHEAD;
/// The memory for what is read. A record that lies across its end has to be moved, which is one of about four.
const ROOM_BYTES: usize = 4 * READ_BYTES;

#[cfg(test)]
#[cfg(feature = "encrypt")]
#[cfg(not(loom))]
mod tests;
