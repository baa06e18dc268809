//! Setting up connections of the NET transport: the receiver's listener, the sender's dials.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::bootstrap::auth::Terms;
use crate::bootstrap::socket;
use crate::error::{Error, Result};
use crate::sys::random;
use crate::transport::greet::{Answerer, Caller, Request};
use crate::types::Rank;

/// Socket options of data connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOptions {
    /// Sockets of each connection: `NCCL_SOCKET_NTHREADS` × `NCCL_NSOCKS_PERTHREAD`.
    pub sockets: u32,
    /// `NCCL_SOCKET_SNDBUF`; the system's choice where `None`.
    pub send_buffer_bytes: Option<u32>,
    /// `NCCL_SOCKET_RCVBUF`; the system's choice where `None`.
    pub receive_buffer_bytes: Option<u32>,
}

/// One rank's side that accepts.
#[derive(Debug)]
pub(super) struct Port {
    terms: Terms,
    me: Rank,
    listener: TcpListener,
    address: SocketAddr,
    options: SocketOptions,
    expected: HashMap<u64, Expected>,
    sessions: Vec<Session>,
    ready: Vec<(u64, Vec<TcpStream>)>,
}

#[derive(Debug)]
struct Expected {
    peer: Rank,
    sockets: Vec<Option<TcpStream>>,
}

#[derive(Debug)]
struct Session {
    stream: TcpStream,
    answerer: Answerer,
    since: Instant,
}

/// One rank's side that connects: all sockets of one connection.
#[derive(Debug)]
pub(super) struct Dial {
    calls: Vec<(TcpStream, Caller, bool)>,
}

impl Port {
    /// Listens at `interface`, at a free port.
    pub(super) fn new(terms: Terms, me: Rank, interface: SocketAddr, options: SocketOptions) -> Result<Port> {
        let mut wanted = interface;
        wanted.set_port(0);
        let (listener, address) = socket::listen(wanted)?;
        tune_listener(&listener, options)?;
        let (expected, sessions, ready) = (HashMap::new(), Vec::new(), Vec::new());
        Ok(Port { terms, me, listener, address, options, expected, sessions, ready })
    }

    /// Where to connect, for the blob.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Expects a connection of `peer`.
    pub(super) fn expect(&mut self, peer: Rank) -> Result<u64> {
        let ticket = u64::from_le_bytes(random::bytes()?);
        let sockets = (0..self.options.sockets).map(|_| None).collect();
        self.expected.insert(ticket, Expected { peer, sockets });
        Ok(ticket)
    }

    /// Takes what has come. Errors of one connection end that connection.
    pub(super) fn progress(&mut self, now: Instant) -> Result<()> {
        while crowd_out(&mut self.sessions, |session| session.since, now) {
            let accepted = socket::accept(&self.listener);
            let Some((stream, _)) = accepted.map_err(|error| Error::system("accept on the data port", error))? else {
                break;
            };
            self.sessions.push(Session { stream, answerer: Answerer::new(self.terms.clone(), self.me), since: now });
        }
        for mut session in std::mem::take(&mut self.sessions) {
            match session.answerer.progress(&session.stream) {
                Ok(None) if now.duration_since(session.since) < SESSION_TIME => self.sessions.push(session),
                Ok(None) => {}
                Ok(Some((peer, request))) => self.admit(peer, request, session.stream),
                Err(error) => {
                    crate::log::trace!(Net @ self.me, "a connection to the data port was refused: {error}")
                }
            }
        }
        Ok(())
    }

    fn admit(&mut self, peer: Rank, request: Request, stream: TcpStream) {
        let Some(expected) = self.expected.get_mut(&request.ticket).filter(|expected| expected.peer == peer) else {
            crate::log::warn!(Net @ self.me, "rank {peer} connected to the data port for nothing that was offered to it");
            return;
        };
        let place = usize::try_from(request.index).ok().and_then(|index| expected.sockets.get_mut(index));
        if let Some(place) = place {
            place.get_or_insert(stream);
        }
        if expected.sockets.iter().all(Option::is_some)
            && let Some(complete) = self.expected.remove(&request.ticket)
        {
            self.ready.push((request.ticket, complete.sockets.into_iter().flatten().collect()));
        }
    }

    /// The connections that are complete.
    pub(super) fn take_ready(&mut self) -> Vec<(u64, Vec<TcpStream>)> {
        std::mem::take(&mut self.ready)
    }
}

impl Dial {
    /// Begins to connect to `owner` at `address` with `sockets` sockets for `ticket`.
    pub(super) fn new(
        terms: &Terms,
        (me, owner): (Rank, Rank),
        address: SocketAddr,
        (ticket, options): (u64, SocketOptions),
    ) -> Result<Dial> {
        let call = |index: u32| {
            let stream = socket::connect(address).map_err(|error| failed(owner, address, &error))?;
            tune(&stream, options)?;
            Ok((stream, Caller::new(terms.clone(), (me, owner), Request { ticket, index })?, false))
        };
        Ok(Dial { calls: (0..options.sockets).map(call).collect::<Result<_>>()? })
    }

    /// The sockets, once all are through.
    pub(super) fn progress(&mut self) -> Result<Option<Vec<TcpStream>>> {
        for (stream, caller, done) in self.calls.iter_mut().filter(|(_, _, done)| !done) {
            *done = caller.progress(stream)?;
        }
        if self.calls.iter().all(|(_, _, done)| *done) {
            return Ok(Some(std::mem::take(&mut self.calls).into_iter().map(|(stream, ..)| stream).collect()));
        }
        Ok(None)
    }
}

/// Makes room for a newcomer among `sessions`, oldest first. False where all are so young that none may be driven out: the newcomer
/// waits in the listener's queue.
pub(super) fn crowd_out<S>(sessions: &mut Vec<S>, since: impl Fn(&S) -> Instant, now: Instant) -> bool {
    if sessions.len() < MOST_SESSIONS {
        return true;
    }
    let may_go = sessions.first().is_some_and(|oldest| now.duration_since(since(oldest)) >= LEAST_SESSION_TIME);
    if may_go {
        sessions.remove(0);
    }
    may_go
}

fn failed(owner: Rank, address: SocketAddr, error: &std::io::Error) -> Error {
    Error::remote(
        owner,
        format!("connecting to the data port of rank {owner} at {address}: {}", socket::explain(error)),
    )
}

/// Buffer sizes are inherited by accepted sockets; the window is agreed on at connect, so they are set before.
fn tune_listener(listener: &TcpListener, options: SocketOptions) -> Result<()> {
    apply(&socket2::SockRef::from(listener), options)
}

fn tune(stream: &TcpStream, options: SocketOptions) -> Result<()> {
    apply(&socket2::SockRef::from(stream), options)
}

fn apply(socket: &socket2::SockRef<'_>, options: SocketOptions) -> Result<()> {
    let wide = |bytes: u32| usize::try_from(bytes).unwrap_or(usize::MAX);
    if let Some(bytes) = options.send_buffer_bytes {
        socket.set_send_buffer_size(wide(bytes)).map_err(|error| Error::system("NCCL_SOCKET_SNDBUF", error))?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        socket.set_recv_buffer_size(wide(bytes)).map_err(|error| Error::system("NCCL_SOCKET_RCVBUF", error))?;
    }
    Ok(())
}

/// Connections that have not said yet what they want; a newcomer beyond them drives the oldest out.
const MOST_SESSIONS: usize = 1024;
/// How long a connection may take to say what it wants.
pub(super) const SESSION_TIME: Duration = Duration::from_secs(10);
/// How long it has for that at least, whoever else comes: several round trips, each with a nap at both ends.
const LEAST_SESSION_TIME: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;

    #[test]
    fn a_crowd_of_newcomers_does_not_drive_out_who_has_just_come() {
        let start = clock::now();
        let mut sessions = vec![start; MOST_SESSIONS - 1];
        assert!(crowd_out(&mut sessions, |since| *since, start));
        sessions.push(start);
        assert!(!crowd_out(&mut sessions, |since| *since, start));
        assert_eq!(sessions.len(), MOST_SESSIONS);
        assert!(crowd_out(&mut sessions, |since| *since, start + LEAST_SESSION_TIME));
        assert_eq!(sessions.len(), MOST_SESSIONS - 1);
    }
}
