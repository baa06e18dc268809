//! The receiver's side of TCP connections: listens, accepts, and gives each accepted socket to the ring that its ticket
//! names.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::bootstrap::auth::Terms;
use crate::bootstrap::socket;
use crate::error::{Error, Result};
use crate::sys::random;
use crate::transport::data_handshake::{Answerer, Refused, Request, SESSION_TIME, crowd_out};
use crate::transport::net::{SocketOptions, apply};
use crate::types::Rank;

/// One rank's side that accepts.
#[derive(Debug)]
pub(in crate::transport) struct DataListener {
    terms: Terms,
    me: Rank,
    listener: TcpListener,
    address: SocketAddr,
    options: SocketOptions,
    expected: HashMap<u64, Expected>,
    sessions: Vec<Session>,
    ready: Vec<(u64, Rank, Vec<TcpStream>)>,
    refused: Refused,
}

#[derive(Debug)]
struct Expected {
    peer: Rank,
    sockets: Vec<Option<TcpStream>>,
}

#[derive(Debug)]
struct Session {
    stream: TcpStream,
    from: SocketAddr,
    answerer: Answerer,
    since: Instant,
}

impl DataListener {
    /// Listens at `interface`, at a free port.
    pub(in crate::transport) fn new(
        terms: Terms,
        me: Rank,
        interface: SocketAddr,
        options: SocketOptions,
    ) -> Result<DataListener> {
        let mut wanted = interface;
        wanted.set_port(0);
        let (listener, address) = socket::listen_in(wanted, options.ports)?;
        tune(&listener, options)?;
        let (expected, sessions, ready) = (HashMap::new(), Vec::new(), Vec::new());
        let refused = Refused::default();
        Ok(DataListener { terms, me, listener, address, options, expected, sessions, ready, refused })
    }

    /// Where to connect, for the blob.
    pub(in crate::transport) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Expects a connection of `peer`.
    pub(in crate::transport) fn expect(&mut self, peer: Rank) -> Result<u64> {
        let ticket = u64::from_le_bytes(random::bytes()?);
        let sockets = (0..self.options.sockets).map(|_| None).collect();
        self.expected.insert(ticket, Expected { peer, sockets });
        Ok(ticket)
    }

    /// Takes what has come. Errors of one connection end that connection.
    pub(in crate::transport) fn progress(&mut self, now: Instant) -> Result<()> {
        while crowd_out(&mut self.sessions, |session| (session.answerer.standing(), session.since), now) {
            let accepted = socket::accept(&self.listener);
            let Some((stream, from)) = accepted.map_err(|error| Error::system("accept on the data port", error))?
            else {
                break;
            };
            let answerer = Answerer::new(self.terms.clone(), self.me);
            self.sessions.push(Session { stream, from, answerer, since: now });
        }
        for mut session in std::mem::take(&mut self.sessions) {
            match session.answerer.progress(&session.stream) {
                Ok(None) if now.duration_since(session.since) < SESSION_TIME => self.sessions.push(session),
                Ok(None) => self.refused.add(session.from, "it did not say in time what it wants"),
                Ok(Some((peer, request))) => self.admit(peer, request, session.stream),
                Err(error) => {
                    crate::log::trace!(Net @ self.me, "a connection to the data port was refused: {error}");
                    self.refused.add(session.from, error.message());
                }
            }
        }
        Ok(())
    }

    fn admit(&mut self, peer: Rank, request: Request, stream: TcpStream) {
        let Some(expected) = self.expected.get_mut(&request.ticket).filter(|expected| expected.peer == peer) else {
            crate::log::warn!(Net @ self.me, "rank {peer} connected to the data port for nothing that was offered to it");
            self.refused.add(format_args!("rank {peer}"), "nothing was offered to it");
            return;
        };
        let place = usize::try_from(request.index).ok().and_then(|index| expected.sockets.get_mut(index));
        if let Some(place) = place {
            place.get_or_insert(stream);
        }
        if expected.sockets.iter().all(Option::is_some)
            && let Some(complete) = self.expected.remove(&request.ticket)
        {
            self.ready.push((request.ticket, peer, complete.sockets.into_iter().flatten().collect()));
        }
    }

    /// What was refused here, in words.
    pub(in crate::transport) fn refused(&self) -> Option<String> {
        self.refused.words("the data port")
    }

    /// What is readable when a connection has come; `None` while one has come and not said what it is for.
    pub(in crate::transport) fn sources(&self) -> Option<Vec<BorrowedFd<'_>>> {
        self.sessions.is_empty().then(|| vec![self.listener.as_fd()])
    }

    /// The connections that are complete.
    pub(in crate::transport) fn take_ready(&mut self) -> Vec<(u64, Rank, Vec<TcpStream>)> {
        std::mem::take(&mut self.ready)
    }
}

/// Buffer sizes are inherited by accepted sockets; the window is agreed on at connect, so they are set before.
fn tune(listener: &TcpListener, options: SocketOptions) -> Result<()> {
    apply(&socket2::SockRef::from(listener), options)
}
