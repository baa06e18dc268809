//! The side of TCP connections that listens: takes those that the process has accepted for this rank, and gives each
//! socket to the ring that its ticket names.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use socket2::SockRef;

use crate::bootstrap::auth::Terms;
use crate::bootstrap::door::{self, DoorSeat, Doorway, Incoming};
use crate::error::{Error, Result};
use crate::sync::Chime;
use crate::sync::primitive::Arc;
use crate::sys::random;
use crate::transport::data_handshake::{Answerer, Refused, Request, SESSION_TIME, crowd_out};
use crate::transport::net::sealed_socket::DataStream;
use crate::transport::net::{SocketOptions, apply, watched_socket};
use crate::types::Rank;

/// One rank's side that accepts.
#[derive(Debug)]
pub(in crate::transport) struct DataListener {
    terms: Terms,
    me: Rank,
    incoming: Incoming,
    /// The first one is at the interface on which ranks met.
    doors: Vec<DataDoor>,
    options: SocketOptions,
    expected: HashMap<u64, Expected>,
    /// The last tickets that were withdrawn: sockets may still come for them.
    withdrawn: VecDeque<u64>,
    sessions: Vec<Session>,
    ready: Vec<(u64, Rank, Vec<DataStream>)>,
    refused: Refused,
    /// Since when this process can accept no connection, and when that was last seen.
    shut_since: Option<(Instant, Instant)>,
}

/// Where peers connect.
#[derive(Debug)]
struct DataDoor {
    seat: DoorSeat,
    /// The interface to which it is bound.
    device: Option<String>,
}

#[derive(Debug)]
struct Expected {
    peer: Rank,
    sockets: Vec<Option<DataStream>>,
}

#[derive(Debug)]
struct Session {
    stream: TcpStream,
    from: SocketAddr,
    answerer: Answerer,
    since: Instant,
}

impl DataListener {
    /// Listens at `interface`, at a port that communicators of this process share.
    pub(in crate::transport) fn new(
        terms: Terms,
        me: Rank,
        interface: SocketAddr,
        options: SocketOptions,
    ) -> Result<DataListener> {
        let doors = vec![DataDoor::open(interface, None, options)?];
        let incoming = doors[0].seat.incoming(&terms, me);
        let (expected, sessions, ready) = (HashMap::new(), Vec::new(), Vec::new());
        let refused = Refused::default();
        let (withdrawn, shut_since) = (VecDeque::new(), None);
        Ok(DataListener {
            terms,
            me,
            incoming,
            doors,
            options,
            expected,
            withdrawn,
            sessions,
            ready,
            refused,
            shut_since,
        })
    }

    /// Listens at a further address as well, unless it does, and returns the port there.
    pub(in crate::transport) fn listen_at(&mut self, address: IpAddr, device: Option<String>) -> Result<u16> {
        let is_it = |door: &&DataDoor| door.seat.address().ip() == address && door.device == device;
        if let Some(door) = self.doors.iter().find(is_it) {
            return Ok(door.seat.address().port());
        }
        let door = DataDoor::open(SocketAddr::new(address, 0), device, self.options)?;
        let port = door.seat.address().port();
        self.doors.push(door);
        Ok(port)
    }

    /// At how many ports it listens.
    pub(in crate::transport) fn doors(&self) -> usize {
        self.doors.len()
    }

    /// Where to connect, for the blob.
    pub(in crate::transport) fn address(&self) -> SocketAddr {
        self.doors[0].seat.address()
    }

    /// Expects a connection of `peer`, of so many sockets.
    pub(in crate::transport) fn expect(&mut self, peer: Rank, sockets: u32) -> Result<u64> {
        let ticket = u64::from_le_bytes(random::bytes()?);
        let sockets = (0..sockets).map(|_| None).collect();
        self.expected.insert(ticket, Expected { peer, sockets });
        Ok(ticket)
    }

    /// What comes with this ticket is not needed: it is closed, also what has come.
    pub(in crate::transport) fn withdraw(&mut self, ticket: u64) {
        if self.expected.remove(&ticket).is_some() {
            self.withdrawn.truncate(MOST_WITHDRAWN - 1);
            self.withdrawn.push_front(ticket);
        }
    }

    /// Takes what has come. Errors of one connection end that connection.
    pub(in crate::transport) fn progress(&mut self, now: Instant) -> Result<()> {
        self.check_doors(now)?;
        while crowd_out(&mut self.sessions, |session| (session.answerer.standing(), session.since), now) {
            let Some((stream, from)) = self.incoming.take() else { break };
            if let Err(error) = watched_socket::probe(&SockRef::from(&stream), self.options.silence) {
                self.refused.add(from, &error.to_string());
                continue;
            }
            let answerer = Answerer::new(self.terms.clone(), self.me);
            self.sessions.push(Session { stream, from, answerer, since: now });
        }
        for mut session in std::mem::take(&mut self.sessions) {
            match session.answerer.progress(&session.stream) {
                Ok(None) if now.duration_since(session.since) < SESSION_TIME => self.sessions.push(session),
                Ok(None) => self.refused.add(session.from, "it did not say in time what it wants"),
                Ok(Some((peer, request))) => {
                    let ends = session.answerer.take_sealed();
                    match DataStream::new(session.stream, ends, self.terms.encryption) {
                        Ok(stream) => self.admit(peer, request, stream),
                        Err(error) => self.refused.add(session.from, error.message()),
                    }
                }
                Err(error) => {
                    crate::log::trace!(Net @ self.me, "a connection to the data port was refused: {error}");
                    self.refused.add(session.from, error.message());
                }
            }
        }
        Ok(())
    }

    /// Fails where a connection is expected, and this process has not been able to accept any for a while.
    fn check_doors(&mut self, now: Instant) -> Result<()> {
        let Some(error) = self.doors.iter().find_map(|door| door.seat.trouble()) else {
            self.shut_since = None;
            return Ok(());
        };
        // Who has not looked for a while knows nothing of what was meanwhile.
        let is_known = |seen: &(Instant, Instant)| now.saturating_duration_since(seen.1) < SHUT_PATIENCE;
        let (since, _) = *self.shut_since.insert((self.shut_since.filter(is_known).map_or(now, |seen| seen.0), now));
        if self.expected.is_empty() || now.saturating_duration_since(since) < SHUT_PATIENCE {
            return Ok(());
        }
        Err(Error::system("accept on the data port", error))
    }

    fn admit(&mut self, peer: Rank, request: Request, stream: DataStream) {
        if self.withdrawn.contains(&request.ticket) {
            crate::log::trace!(Net @ self.me, "rank {peer} connected to the data port for what was withdrawn");
            return;
        }
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

    /// Rings `chime` when a connection comes, or none can come any more. False while one has come and not said what it
    /// is for, or none can come.
    pub(in crate::transport) fn ring_at_arrival(&self, chime: &Arc<Chime>) -> bool {
        let is_heard = self.incoming.ring_at_arrival(chime);
        is_heard && self.sessions.is_empty() && self.doors.iter().all(|door| door.seat.trouble().is_none())
    }

    /// The connections that are complete.
    pub(in crate::transport) fn take_ready(&mut self) -> Vec<(u64, Rank, Vec<DataStream>)> {
        std::mem::take(&mut self.ready)
    }
}

impl DataDoor {
    /// At `interface`, at one of the ports that the options allow.
    fn open(interface: SocketAddr, device: Option<String>, options: SocketOptions) -> Result<DataDoor> {
        let plain = Doorway::plain(interface, options.ports);
        let doorway = Doorway { device: device.clone(), options: inherited(options), ..plain };
        // Buffer sizes are agreed on at connect, so accepted sockets inherit them.
        let seat = door::enter(&doorway, |listener| match doorway.options.is_empty() {
            true => Ok(()),
            false => apply(&SockRef::from(listener), options),
        })?;
        Ok(DataDoor { seat, device })
    }
}

/// The options that accepted sockets must inherit, in words; none if all are as the system chooses.
fn inherited(options: SocketOptions) -> String {
    let SocketOptions { send_buffer_bytes, receive_buffer_bytes, congestion, .. } = options;
    if send_buffer_bytes.is_none() && receive_buffer_bytes.is_none() && congestion.is_none() {
        return String::new();
    }
    format!("{send_buffer_bytes:?} {receive_buffer_bytes:?} {congestion:?}")
}

/// The withdrawn tickets that are known: more than peers whose sockets are on their way at once.
const MOST_WITHDRAWN: usize = 1024;

/// How long a process may be unable to accept: other threads may hold descriptors for a moment only.
const SHUT_PATIENCE: Duration = Duration::from_millis(500);
