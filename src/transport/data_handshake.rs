//! How a data connection begins: the handshake, then a request of fixed size that says what the connection is for.
//!
//! ```text
//! offset  width  meaning
//! 0       8      ticket: which offer
//! 8       4      index: which socket of a connection with several
//! ```
//!
//! On an encrypted connection it is the first record.

use std::fmt::Display;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use crate::bootstrap::Bootstrap;
use crate::bootstrap::auth::{CallerStanding, Handshake, Purpose, Terms};
use crate::bootstrap::sealed::{RECORD_OVERHEAD, SealedEnds};
use crate::config::Encryption;
use crate::error::{Error, Kind, Result, shown};
use crate::sys::descriptor;
use crate::types::Rank;

/// A non-blocking stream of bytes.
pub(super) trait Pipe {
    /// Reads what is there; `None` where nothing is, `Some(0)` at the end.
    fn read_some(&self, into: &mut [u8]) -> Result<Option<usize>>;
    /// Writes what fits; `None` where nothing does.
    fn write_some(&self, bytes: &[u8]) -> Result<Option<usize>>;
}

impl Pipe for descriptor::HandoverStream {
    fn read_some(&self, into: &mut [u8]) -> Result<Option<usize>> {
        self.read(into)
    }
    fn write_some(&self, bytes: &[u8]) -> Result<Option<usize>> {
        self.write(bytes)
    }
}

impl Pipe for TcpStream {
    fn read_some(&self, into: &mut [u8]) -> Result<Option<usize>> {
        let mut stream = self;
        descriptor::settled("read from a data socket", || stream.read(into))
    }
    fn write_some(&self, bytes: &[u8]) -> Result<Option<usize>> {
        let mut stream = self;
        descriptor::settled("write to a data socket", || stream.write(bytes))
    }
}

/// What the caller asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) ticket: u64,
    pub(super) index: u32,
}

/// The side that connects.
#[derive(Debug)]
pub(super) struct Caller {
    handshake: Handshake,
    request: Option<Request>,
    output: Vec<u8>,
    /// What encrypts, once the handshake is done, if anything does.
    sealed: Option<SealedEnds>,
}

/// The side that accepts.
#[derive(Debug)]
pub(super) struct Answerer {
    handshake: Handshake,
    request: Vec<u8>,
    output: Vec<u8>,
    /// What encrypts, once the handshake is done, if anything does.
    sealed: Option<SealedEnds>,
}

impl Caller {
    pub(super) fn new(terms: Terms, (from, to): (Rank, Rank), request: Request) -> Result<Caller> {
        let (handshake, request) = (Handshake::initiate(terms, from, to)?, Some(request));
        Ok(Caller { handshake, request, output: Vec::new(), sealed: None })
    }

    /// What encrypts the connection from now on.
    pub(super) fn take_sealed(&mut self) -> Option<SealedEnds> {
        self.sealed.take()
    }

    /// True once the request is on its way.
    pub(super) fn progress(&mut self, pipe: &impl Pipe) -> Result<bool> {
        loop {
            self.output.extend(self.handshake.take_output());
            if self.handshake.is_done()
                && let Some(request) = self.request.take()
            {
                let said = [&request.ticket.to_le_bytes()[..], &request.index.to_le_bytes()].concat();
                self.sealed = self.handshake.take_sealed();
                match &mut self.sealed {
                    None => self.output.extend(said),
                    Some(ends) => _ = ends.sealer.seal([&*said], REQUEST_BYTES, &mut self.output)?,
                }
            }
            if !flush(pipe, &mut self.output)? {
                return Ok(false);
            }
            if self.handshake.is_done() {
                return Ok(true);
            }
            if !listen(pipe, &mut self.handshake)? {
                return Ok(false);
            }
        }
    }
}

impl Answerer {
    /// How far the other side has come.
    pub(super) fn standing(&self) -> CallerStanding {
        self.handshake.standing()
    }

    pub(super) fn new(terms: Terms, me: Rank) -> Answerer {
        Answerer { handshake: Handshake::respond(terms, me), request: Vec::new(), output: Vec::new(), sealed: None }
    }

    /// What encrypts the connection from now on.
    pub(super) fn take_sealed(&mut self) -> Option<SealedEnds> {
        self.sealed.take()
    }

    /// Who asks for what, once that is known.
    pub(super) fn progress(&mut self, pipe: &impl Pipe) -> Result<Option<(Rank, Request)>> {
        loop {
            self.output.extend(self.handshake.take_output());
            if !flush(pipe, &mut self.output)? {
                return Ok(None);
            }
            if self.handshake.is_done() {
                return self.read_request(pipe);
            }
            if !listen(pipe, &mut self.handshake)? {
                return Ok(None);
            }
        }
    }

    fn read_request(&mut self, pipe: &impl Pipe) -> Result<Option<(Rank, Request)>> {
        if self.sealed.is_none() {
            self.sealed = self.handshake.take_sealed();
        }
        let whole = REQUEST_BYTES + if self.sealed.is_some() { RECORD_OVERHEAD } else { 0 };
        while self.request.len() < whole {
            let mut bytes = [0; REQUEST_BYTES + RECORD_OVERHEAD];
            let wanted = whole - self.request.len();
            match pipe.read_some(&mut bytes[..wanted])? {
                None => return Ok(None),
                Some(0) => return Err(closed()),
                Some(got) => self.request.extend_from_slice(&bytes[..got]),
            }
        }
        if let Some(SealedEnds { opener, .. }) = &mut self.sealed {
            opener.room(whole)[..whole].copy_from_slice(&self.request);
            opener.filled(whole);
            if !opener.open(REQUEST_BYTES)? || opener.content().len() != REQUEST_BYTES {
                return Err(closed());
            }
            self.request = opener.content().to_vec();
            opener.take(REQUEST_BYTES);
        }
        let ticket = u64::from_le_bytes(std::array::from_fn(|place| self.request[place]));
        let index = u32::from_le_bytes(std::array::from_fn(|place| self.request[8 + place]));
        let peer = self.handshake.peer().ok_or_else(closed)?;
        Ok(Some((peer, Request { ticket, index })))
    }
}

/// Reads no more than the handshake wants, so that what follows stays in the socket. False where nothing was there.
fn listen(pipe: &impl Pipe, handshake: &mut Handshake) -> Result<bool> {
    let mut bytes = [0; HANDSHAKE_READ];
    let wanted = handshake.bytes_wanted().min(HANDSHAKE_READ);
    match pipe.read_some(&mut bytes[..wanted])? {
        None => Ok(false),
        Some(0) => Err(closed()),
        Some(got) => {
            handshake.receive(&mut &bytes[..got])?;
            Ok(true)
        }
    }
}

/// True once all is written.
fn flush(pipe: &impl Pipe, output: &mut Vec<u8>) -> Result<bool> {
    while !output.is_empty() {
        match pipe.write_some(output)? {
            None | Some(0) => return Ok(false),
            Some(written) => {
                output.drain(..written);
            }
        }
    }
    Ok(true)
}

fn closed() -> Error {
    Error::new(Kind::Remote, "the other end closed a connection before it began")
}

/// What both ends of a data connection prove to each other.
pub(super) fn terms(bootstrap: &dyn Bootstrap, purpose: Purpose) -> Terms {
    Terms { key: bootstrap.key(), purpose, communicator: bootstrap.id(), job: None, encryption: Encryption::Off }
}

/// The connections that a listener has refused.
#[derive(Debug, Default)]
pub(super) struct Refused {
    count: u64,
    /// Whose the last was, and why it was refused.
    last: Option<(String, String)>,
}

impl Refused {
    pub(super) fn add(&mut self, from: impl Display, why: &str) {
        self.count += 1;
        self.last = Some((from.to_string(), shown(why).into_owned()));
    }

    /// In words, where there was one.
    pub(super) fn words(&self, port: &str) -> Option<String> {
        let (from, why) = self.last.as_ref()?;
        let last = if self.count == 1 { "" } else { ", the last" };
        let connections = if self.count == 1 { "connection" } else { "connections" };
        Some(format!("this rank has refused {} {connections} to {port}{last} from {from}: {why}", self.count))
    }
}

/// Makes room for a newcomer among `sessions`, each with what `standing` says of it. Who has come less far in the
/// handshake goes first, and among these the oldest: a rank whose processor is busy may take long for its next message,
/// and strangers get no further than the first. False where none may be driven out: the newcomer waits in the
/// listener's queue.
pub(super) fn crowd_out<S>(
    sessions: &mut Vec<S>,
    standing: impl Fn(&S) -> (CallerStanding, Instant),
    now: Instant,
) -> bool {
    if sessions.len() < MOST_SESSIONS {
        return true;
    }
    let may_go = |(stage, since): (CallerStanding, Instant)| {
        stage != CallerStanding::Proven && now.saturating_duration_since(since) >= LEAST_SESSION_TIME
    };
    let candidates = sessions.iter().map(standing).enumerate().filter(|(_, standing)| may_go(*standing));
    let Some((place, _)) = candidates.min_by_key(|(_, standing)| *standing) else { return false };
    drop(sessions.remove(place));
    true
}

/// Connections that have not said yet what they want; a newcomer beyond them drives another out.
const MOST_SESSIONS: usize = 1024;
/// How long a connection may take to say what it wants.
pub(super) const SESSION_TIME: Duration = Duration::from_secs(10);
/// How long it has for that at least, whoever else comes: several round trips, each with a nap at both ends.
const LEAST_SESSION_TIME: Duration = Duration::from_millis(100);

const REQUEST_BYTES: usize = 12;
const HANDSHAKE_READ: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;

    #[test]
    fn a_crowd_of_newcomers_does_not_drive_out_who_has_just_come() {
        let start = clock::now();
        let standing = |since: &Instant| (CallerStanding::Silent, *since);
        let mut sessions = vec![start; MOST_SESSIONS - 1];
        assert!(crowd_out(&mut sessions, standing, start));
        sessions.push(start);
        assert!(!crowd_out(&mut sessions, standing, start));
        assert_eq!(sessions.len(), MOST_SESSIONS);
        assert!(crowd_out(&mut sessions, standing, start + LEAST_SESSION_TIME));
        assert_eq!(sessions.len(), MOST_SESSIONS - 1);
    }

    #[test]
    fn who_has_come_further_stays_longer() {
        let start = clock::now();
        let later = start + LEAST_SESSION_TIME;
        let mut sessions = vec![(CallerStanding::Proven, start), (CallerStanding::Greeted, start)];
        sessions.resize(MOST_SESSIONS, (CallerStanding::Silent, later));
        let mut driven_out = |now: Instant| {
            let room = crowd_out(&mut sessions, |session| *session, now);
            let left = [CallerStanding::Silent, CallerStanding::Greeted, CallerStanding::Proven]
                .map(|stage| sessions.iter().filter(|session| session.0 == stage).count());
            sessions.resize(MOST_SESSIONS, (CallerStanding::Proven, start));
            (room, left)
        };
        let strangers = MOST_SESSIONS - 2;
        // The silent ones have come too lately.
        assert_eq!(driven_out(later), (true, [strangers, 0, 1]));
        for left in (0..strangers).rev() {
            assert!(matches!(driven_out(later + LEAST_SESSION_TIME), (true, [silent, 0, _]) if silent == left));
        }
        assert!(matches!(driven_out(later + SESSION_TIME), (false, [0, 0, MOST_SESSIONS])));
    }
}
