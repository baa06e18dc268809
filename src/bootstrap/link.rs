//! A connection that never blocks: handshake first, frames after. Root, ranks and stores all use it.
//!
//! The owner's poller says when to read and write; a [`Link`] says what it waits for.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::bootstrap::auth::Handshake;
use crate::bootstrap::socket;
use crate::error::Error;
use crate::sys::poller::{self, Interest};
use crate::types::Rank;
use crate::wire::frame::{self, Frame, FrameReader};

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    handshake: Handshake,
    /// Of the handshake, to be sent before any frame.
    opening: Outgoing,
    /// Frames to be sent.
    frames: Outgoing,
    reader: FrameReader,
    /// Who is at the other end, once that is proved.
    peer: Option<Rank>,
    /// Where the other end is, for messages.
    pub(super) address: SocketAddr,
    /// When the handshake must be done; its owner sees to it.
    pub(super) handshake_until: Option<Instant>,
    /// Not to be read until its owner has room.
    pub(super) paused: bool,
    /// What the poller was last told.
    pub(super) told: Interest,
}

/// Why a link is of no more use.
#[derive(Debug)]
pub(super) enum End {
    /// It could not be connected; nothing was sent.
    Unreachable(io::Error),
    /// The other side closed it or was not who it should be, before anything was said.
    Rejected(String),
    /// It was in use and ended.
    Closed(String),
}

/// What is read at once.
pub(super) const SCRATCH_BYTES: usize = 16 << 10;

/// How much one readiness may read, so that a busy peer does not starve the others.
const READS_AT_ONCE: usize = 16;

/// The pause before a connection is tried again grows to this at most.
pub(super) const MAX_RETRY_SLEEP: Duration = Duration::from_secs(4);

/// The most capacity that an empty output buffer keeps.
const KEEP_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outgoing {
    fn left(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends what the stream takes now; true once nothing is left.
    fn flush(&mut self, stream: &mut TcpStream) -> io::Result<bool> {
        while self.sent < self.bytes.len() {
            match stream.write(&self.bytes[self.sent..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => self.sent += count,
                Err(error) if is_moment(&error) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(KEEP_BYTES);
        Ok(true)
    }
}

/// Not connected yet (which a write tells as `NotConnected` or `WouldBlock`), or full.
fn is_moment(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}

impl Link {
    /// Begins to connect to `address`; `handshake` is an initiator's.
    pub(super) fn connect(address: SocketAddr, handshake: Handshake, most_bytes: usize) -> Result<Link, End> {
        let stream = socket::connect(address).map_err(End::Unreachable)?;
        let mut link = Link::new(stream, address, handshake, most_bytes);
        // On a fast path the connection stands already, and the first words can go without another round of polling.
        link.flush()?;
        Ok(link)
    }

    /// Takes an accepted stream; `handshake` is a responder's.
    pub(super) fn accepted(stream: TcpStream, from: SocketAddr, handshake: Handshake, most_bytes: usize) -> Link {
        Link::new(stream, from, handshake, most_bytes)
    }

    fn new(stream: TcpStream, address: SocketAddr, mut handshake: Handshake, most_bytes: usize) -> Link {
        let opening = Outgoing { bytes: handshake.take_output(), sent: 0 };
        let reader = FrameReader::new(most_bytes);
        Link {
            stream,
            handshake,
            opening,
            frames: Outgoing::default(),
            reader,
            peer: None,
            address,
            handshake_until: None,
            paused: false,
            told: Interest::None,
        }
    }

    /// Who is at the other end, once that is proved.
    pub(super) fn peer(&self) -> Option<Rank> {
        self.peer
    }

    /// For the poller.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> Interest {
        let write = self.opening.left() > 0 || (self.peer.is_some() && self.frames.left() > 0);
        match (self.paused, write) {
            (false, false) => Interest::Read,
            (false, true) => Interest::ReadWrite,
            (true, false) => Interest::None,
            (true, true) => Interest::Write,
        }
    }

    /// Bytes of frames that the stream has not taken yet.
    pub(super) fn unsent(&self) -> usize {
        self.frames.left()
    }

    /// Queues a frame. [`Link::flush`] sends it, once the handshake is done.
    pub(super) fn queue(&mut self, kind: u8, tag: u32, payload: &[u8]) {
        frame::append(&mut self.frames.bytes, kind, tag, payload);
    }

    /// Queues bytes of whole frames.
    pub(super) fn queue_frames(&mut self, frames: &[u8]) {
        self.frames.bytes.extend_from_slice(frames);
    }

    /// The frames of a link that never came to send any.
    pub(super) fn into_frames(self) -> Vec<u8> {
        debug_assert_eq!(self.frames.sent, 0, "only a link without handshake gives its frames back");
        self.frames.bytes
    }

    /// Sends what can be sent now.
    pub(super) fn flush(&mut self) -> Result<(), End> {
        let outcome = match self.opening.flush(&mut self.stream) {
            Ok(true) if self.peer.is_some() => self.frames.flush(&mut self.stream).map(|_| ()),
            other => other.map(|_| ()),
        };
        outcome.map_err(|error| self.broken(error))
    }

    /// Reads what is there, through `scratch`; gives whole frames to `sink`. What came before the end is given first.
    pub(super) fn read(&mut self, scratch: &mut [u8], sink: &mut Vec<Frame>) -> Result<(), End> {
        for _ in 0..READS_AT_ONCE {
            match self.stream.read(scratch) {
                Ok(0) => return Err(self.ended()),
                Ok(count) => {
                    self.take_in(&scratch[..count], sink)?;
                    if count < scratch.len() {
                        socket::acknowledge_now(&self.stream);
                        return Ok(());
                    }
                }
                Err(error) if is_moment(&error) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(error)),
            }
        }
        Ok(())
    }

    fn take_in(&mut self, mut input: &[u8], sink: &mut Vec<Frame>) -> Result<(), End> {
        if self.peer.is_none() {
            self.handshake.receive(&mut input).map_err(rejected)?;
            self.opening.bytes.extend(self.handshake.take_output());
            self.peer = self.handshake.peer();
            self.flush()?;
        }
        while !input.is_empty() && self.peer.is_some() {
            sink.extend(self.reader.next(&mut input).map_err(|error| End::Closed(error.message().to_owned()))?);
        }
        Ok(())
    }

    /// Whether the other end's kernel has everything that was sent, or never will.
    pub(super) fn is_delivered(&self) -> bool {
        poller::unacknowledged(self.fd()).map_or(true, |count| count == 0)
    }

    /// Ends the sending side: the peer reads what was sent and then the end.
    pub(super) fn finish(&mut self) {
        // Where the peer has gone first there is nothing to end.
        let _gone = self.stream.shutdown(std::net::Shutdown::Write);
    }

    fn ended(&self) -> End {
        if self.peer.is_none() {
            return End::Rejected("it closed the connection in the handshake".to_owned());
        }
        End::Closed("its control connection closed".to_owned())
    }

    fn broken(&self, error: io::Error) -> End {
        if self.peer.is_some() {
            return End::Closed(format!("its control connection broke: {error}"));
        }
        if self.handshake.has_heard() { End::Rejected(error.to_string()) } else { End::Unreachable(error) }
    }
}

/// `after` from `now`; where the clock does not reach so far, a time that nobody will live to see.
pub(super) fn moment(now: Instant, after: Duration) -> Instant {
    now.checked_add(after).unwrap_or_else(|| now + LIFETIME)
}

/// A century.
const LIFETIME: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

fn rejected(error: Error) -> End {
    End::Rejected(error.message().to_owned())
}

impl std::fmt::Display for End {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            End::Unreachable(error) => f.write_str(&socket::explain(error)),
            End::Rejected(why) | End::Closed(why) => f.write_str(why),
        }
    }
}
