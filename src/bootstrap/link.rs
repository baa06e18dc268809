//! A non-blocking connection: the handshake first, then frames. Roots, ranks and stores all use it.
//!
//! The owner's poller tells when to read and write; [`Link::interest`] tells the owner what to poll for.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::bootstrap::auth::{Handshake, JOB_BYTES, OtherJob};
use crate::bootstrap::sealed::SealedEnds;
use crate::bootstrap::socket;
use crate::error::{Error, Kind};
use crate::log;
use crate::sys::poller::{self, Interest};
use crate::types::Rank;
use crate::wire::frame::{self, Frame, FrameReader};

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    handshake: Handshake,
    /// Handshake bytes, to be sent before any frame.
    opening: Outgoing,
    /// Frames to be sent.
    frames: Outgoing,
    /// What encrypts them, once the handshake has agreed on that; and records that are to be sent.
    sealed: Option<SealedEnds>,
    records: Outgoing,
    reader: FrameReader,
    /// The rank at the other end, once it has proved itself.
    peer: Option<Rank>,
    /// The address of the other end, for messages.
    pub(super) address: SocketAddr,
    /// When the handshake must be done; the owner enforces it.
    pub(super) handshake_until: Option<Instant>,
    /// Do not read: the owner has no room.
    pub(super) paused: bool,
    /// The interest that the poller was last given.
    pub(super) told: Interest,
}

/// Why a link has ended.
#[derive(Debug)]
pub(super) enum End {
    /// The connection could not be made; nothing was sent.
    Unreachable(io::Error),
    /// The handshake failed, or the other side closed the connection during it.
    Rejected(String),
    /// The other side belongs to another job.
    OtherJob(OtherJob),
    /// The other side has proved itself, and does not encrypt as it was asked.
    Differs(Error),
    /// The connection ended after the handshake.
    Closed(String),
}

/// The size of the read buffer.
pub(super) const SCRATCH_BYTES: usize = 16 << 10;

/// How many reads one readiness event may cause: a busy peer must not starve the others.
const READS_AT_ONCE: usize = 16;

/// The longest pause before a connection is retried.
pub(super) const MAX_RETRY_SLEEP: Duration = Duration::from_secs(4);

/// The most bytes of frames in an encrypted record.
const RECORD_BYTES: usize = 16 << 10;

/// The most bytes of frames that are kept for another connection, as long as the other side may not have read that this
/// one is proved: more than ranks say to each other at first.
const MOST_UNHEARD_BYTES: usize = 64 << 10;

/// The capacity above which an empty output buffer is freed.
const KEEP_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    /// Whether what was sent stays, to be sent again on another connection.
    keeps: bool,
}

impl Outgoing {
    fn left(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Sends as much as the stream takes now; true once nothing is left.
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
        self.note_flushed();
        Ok(true)
    }

    /// All has been sent, or made a record.
    fn note_flushed(&mut self) {
        if !self.keeps || self.sent > MOST_UNHEARD_BYTES {
            self.forget_sent();
        }
    }

    fn forget_sent(&mut self) {
        self.keeps = false;
        self.bytes.drain(..self.sent);
        self.sent = 0;
        if self.bytes.is_empty() {
            self.bytes.shrink_to(KEEP_BYTES);
        }
    }
}

/// Whether the error is temporary: the stream is full, or not connected yet (a write then fails with `NotConnected` or
/// `WouldBlock`).
fn is_moment(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}

impl Link {
    /// Begins to connect to `address`; `handshake` must be an initiator's.
    pub(super) fn connect(address: SocketAddr, handshake: Handshake, most_bytes: usize) -> Result<Link, End> {
        let stream = socket::connect(address).map_err(End::Unreachable)?;
        let mut link = Link::new(stream, address, handshake, most_bytes);
        // On a fast path the connection exists already, and sending now saves a round of polling.
        link.flush()?;
        Ok(link)
    }

    /// Wraps an accepted stream; `handshake` must be a responder's.
    pub(super) fn accepted(stream: TcpStream, from: SocketAddr, handshake: Handshake, most_bytes: usize) -> Link {
        Link::new(stream, from, handshake, most_bytes)
    }

    fn new(stream: TcpStream, address: SocketAddr, mut handshake: Handshake, most_bytes: usize) -> Link {
        let opening = Outgoing { bytes: handshake.take_output(), ..Outgoing::default() };
        let reader = FrameReader::new(most_bytes);
        Link {
            stream,
            handshake,
            opening,
            frames: Outgoing::default(),
            sealed: None,
            records: Outgoing::default(),
            reader,
            peer: None,
            address,
            handshake_until: None,
            paused: false,
            told: Interest::None,
        }
    }

    /// Whether the connection stands, whatever has come of the handshake.
    pub(super) fn is_connected(&self) -> bool {
        self.stream.peer_addr().is_ok()
    }

    /// The rank at the other end, once it has proved itself.
    pub(super) fn peer(&self) -> Option<Rank> {
        self.peer
    }

    /// Whether the connection exists: the other side's kernel has answered.
    pub(super) fn is_made(&self) -> bool {
        self.stream.peer_addr().is_ok()
    }

    /// The descriptor, for the poller.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    /// What to poll for.
    pub(super) fn interest(&self) -> Interest {
        let write = self.opening.left() > 0 || (self.peer.is_some() && self.frames.left() + self.records.left() > 0);
        match (self.paused, write) {
            (false, false) => Interest::Read,
            (false, true) => Interest::ReadWrite,
            (true, false) => Interest::None,
            (true, true) => Interest::Write,
        }
    }

    /// How many bytes the stream has not taken yet, of frames and of a refusal.
    pub(super) fn unsent(&self) -> usize {
        let refusal = if self.stranger().is_some() { self.opening.left() } else { 0 };
        self.frames.left() + self.records.left() + refusal
    }

    /// Queues a frame. [`Link::flush`] sends it once the handshake is done.
    pub(super) fn queue(&mut self, kind: u8, tag: u32, payload: &[u8]) {
        frame::append(&mut self.frames.bytes, kind, tag, payload);
    }

    /// Queues the bytes of whole frames.
    pub(super) fn queue_frames(&mut self, frames: &[u8]) {
        self.frames.bytes.extend_from_slice(frames);
    }

    /// Keeps what is sent until [`Link::note_heard`]: the other side may close before it has read the last bytes of the
    /// handshake, and then knows nothing of this connection.
    pub(super) fn keep_unheard(&mut self) {
        self.frames.keeps = true;
    }

    /// The other side has taken the handshake for finished: what was sent to it needs no other connection.
    pub(super) fn note_heard(&mut self) {
        if self.frames.keeps {
            self.frames.forget_sent();
        }
    }

    /// The frames of a link that the other side may not have taken for proved; `None` if some are not kept any more.
    pub(super) fn into_frames(self) -> Option<Vec<u8>> {
        self.frames.keeps.then_some(self.frames.bytes)
    }

    /// Sends as much as possible now.
    pub(super) fn flush(&mut self) -> Result<(), End> {
        if self.peer.is_none() && socket::reset_if_own(&self.stream) {
            return Err(End::Unreachable(io::Error::other(
                "nobody listens there yet: the socket had connected to itself",
            )));
        }
        let outcome = match self.opening.flush(&mut self.stream) {
            Ok(true) if self.peer.is_some() && self.sealed.is_some() => self.flush_sealed(),
            Ok(true) if self.peer.is_some() => self.frames.flush(&mut self.stream).map(|_| ()),
            other => other.map(|_| ()),
        };
        outcome.map_err(|error| self.broken(error))
    }

    /// Sends frames as records: the next one is made when the last has left.
    fn flush_sealed(&mut self) -> io::Result<()> {
        let Some(sealed) = &mut self.sealed else { return Ok(()) };
        while self.records.flush(&mut self.stream)? && self.frames.left() > 0 {
            let rest = &self.frames.bytes[self.frames.sent..];
            let taken = sealed.sealer.seal([rest], RECORD_BYTES, &mut self.records.bytes);
            self.frames.sent += taken.map_err(io::Error::other)?;
        }
        if self.frames.left() == 0 {
            self.frames.note_flushed();
        }
        Ok(())
    }

    /// Reads what has arrived, through `scratch`, and appends whole frames to `sink`. Frames that arrived before the
    /// connection's end are delivered even if this fails.
    pub(super) fn read(&mut self, scratch: &mut [u8], sink: &mut Vec<Frame>) -> Result<(), End> {
        for _ in 0..READS_AT_ONCE {
            match self.stream.read(scratch) {
                Ok(0) => return Err(self.ended()),
                Ok(_) if self.peer.is_none() && socket::is_own(&self.stream) => return self.flush(),
                Ok(count) => {
                    self.take_in(&scratch[..count], sink)?;
                    if count < scratch.len() {
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
            let heard = self.handshake.receive(&mut input);
            heard.map_err(|error| match self.handshake.refusal() {
                Some(other) => End::OtherJob(other.clone()),
                // As if nobody listened at its port any more.
                None if self.handshake.has_ended() => {
                    End::Unreachable(io::Error::new(io::ErrorKind::ConnectionRefused, error.message()))
                }
                None if error.kind() == Kind::Mismatch => End::Differs(error),
                None => rejected(error),
            })?;
            if self.handshake.has_told_difference() {
                log::warn!(
                    Bootstrap,
                    "refused {}: its RSCCL_ENCRYPT is not this process's, or this process's build of rsccl lacks the \
                     cargo feature `encrypt`",
                    self.address
                );
            }
            self.opening.bytes.extend(self.handshake.take_output());
            self.peer = self.handshake.peer();
            if self.peer.is_some() {
                self.sealed = self.handshake.take_sealed();
            }
            self.flush()?;
        }
        if self.peer.is_some() && self.sealed.is_some() {
            return self.take_in_sealed(input, sink);
        }
        while !input.is_empty() && self.peer.is_some() {
            sink.extend(self.reader.next(&mut input).map_err(|error| End::Closed(error.message().to_owned()))?);
        }
        Ok(())
    }

    fn take_in_sealed(&mut self, input: &[u8], sink: &mut Vec<Frame>) -> Result<(), End> {
        let closed = |error: Error| End::Closed(error.message().to_owned());
        let Some(SealedEnds { opener, .. }) = &mut self.sealed else { return Ok(()) };
        // The room is for what is behind records that are opened first.
        opener.room(input.len())[..input.len()].copy_from_slice(input);
        opener.filled(input.len());
        while opener.open(RECORD_BYTES).map_err(closed)? {
            let mut content = opener.content();
            let bytes = content.len();
            while !content.is_empty() {
                sink.extend(self.reader.next(&mut content).map_err(closed)?);
            }
            opener.take(bytes);
        }
        opener.rest();
        Ok(())
    }

    /// The hash of the other side's job, if it is to be refused because that is another one.
    pub(super) fn stranger(&self) -> Option<[u8; JOB_BYTES]> {
        self.handshake.stranger()
    }

    /// Answers the other side that it belongs to another job, of which the first rank was refused `age` ago.
    pub(super) fn refuse(&mut self, age: Duration) -> Result<(), End> {
        self.handshake.refuse(age);
        self.opening.bytes.extend(self.handshake.take_output());
        self.flush()
    }

    /// Tells the other side's kernel now that all that was read has come: for a peer that waits for
    /// [`Link::is_delivered`].
    pub(super) fn acknowledge(&self) {
        socket::acknowledge_now(&self.stream);
    }

    /// Whether the other side's kernel has acknowledged everything that was sent, or never will.
    pub(super) fn is_delivered(&self) -> bool {
        poller::unacknowledged(self.fd()).map_or(true, |count| count == 0)
    }

    /// Shuts down the sending side: the peer reads what was sent and then end of file.
    pub(super) fn finish(&mut self) {
        // The peer may have closed first: then there is nothing to shut down.
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

/// `after` from `now`; if the clock cannot represent that, a time a century away.
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
            End::Differs(error) => f.write_str(error.message()),
            End::OtherJob(other) => write!(f, "it belongs to another job ({})", other.name),
        }
    }
}
