//! Shared memory between processes of a host: memfds handed over on an abstract unix socket.
//!
//! There is no file to leave behind and no limit of `/dev/shm`. The socket's name is random; who connects must run under the same user
//! and prove that it belongs to the communicator before it is given anything; it is given what its ticket names and was offered to it.

use std::collections::HashMap;
use std::fmt::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use crate::bootstrap::auth::Terms;
use crate::device::{self, Region};
use crate::error::{Error, Result};
use crate::sys::alive::Process;
use crate::sys::descriptor::{Listener, Stream};
use crate::sys::random;
use crate::transport::greet::{Answerer, Caller, Request};
use crate::transport::port::{SESSION_TIME, crowd_out};
use crate::types::Rank;

/// One rank's side that gives.
#[derive(Debug)]
pub(super) struct Exporter {
    terms: Terms,
    me: Rank,
    name: String,
    listener: Listener,
    offers: HashMap<u64, Offer>,
    sessions: Vec<Session>,
}

#[derive(Debug)]
struct Offer {
    memory: Region,
    takers: Vec<Rank>,
}

#[derive(Debug)]
struct Session {
    stream: Stream,
    answerer: Answerer,
    /// What to hand over, once the peer has said.
    grant: Option<(u64, Rank)>,
    since: Instant,
}

/// One rank's side that takes: one descriptor.
#[derive(Debug)]
pub(super) struct Fetch {
    name: String,
    stream: Option<Stream>,
    caller: Caller,
    asked: bool,
}

/// What a peer has handed over.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) file: OwnedFd,
    /// The process that did, where it can be seen from here.
    pub(super) owner: Option<Process>,
}

impl Exporter {
    pub(super) fn new(terms: Terms, me: Rank) -> Result<Exporter> {
        let mut name = String::from("rsccl-");
        for byte in random::bytes::<16>()? {
            write!(name, "{byte:02x}").expect("writing to a string does not fail");
        }
        let listener = Listener::bind(&name)?;
        Ok(Exporter { terms, me, name, listener, offers: HashMap::new(), sessions: Vec::new() })
    }

    /// The socket's name, for the blob.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Offers `memory` to `takers`, once each.
    pub(super) fn offer(&mut self, memory: Region, takers: Vec<Rank>) -> Result<u64> {
        let ticket = u64::from_le_bytes(random::bytes()?);
        self.offers.insert(ticket, Offer { memory, takers });
        Ok(ticket)
    }

    /// Whether all that was offered has been taken.
    pub(super) fn settled(&self) -> bool {
        self.offers.is_empty()
    }

    /// The tickets of what has not been taken.
    pub(super) fn outstanding(&self) -> impl Iterator<Item = u64> {
        self.offers.keys().copied()
    }

    /// Serves who asks. Errors of one connection end that connection.
    pub(super) fn progress(&mut self, now: Instant) -> Result<()> {
        while crowd_out(&mut self.sessions, |session| session.since, now) {
            let Some(stream) = self.listener.accept()? else { break };
            let answerer = Answerer::new(self.terms.clone(), self.me);
            self.sessions.push(Session { stream, answerer, grant: None, since: now });
        }
        let offers = &mut self.offers;
        self.sessions.retain_mut(|session| match session.progress(offers) {
            Ok(done) => !done && now.duration_since(session.since) < SESSION_TIME,
            Err(error) => {
                crate::log::trace!(Shm @ self.me, "a connection to the shared-memory socket was refused: {error}");
                false
            }
        });
        Ok(())
    }
}

impl Session {
    /// True once the descriptor is on its way.
    fn progress(&mut self, offers: &mut HashMap<u64, Offer>) -> Result<bool> {
        if self.grant.is_none() {
            let Some((peer, request)) = self.answerer.progress(&self.stream)? else { return Ok(false) };
            self.grant = Some((request.ticket, peer));
        }
        let Some((ticket, peer)) = self.grant else { return Ok(false) };
        let refused = || Error::remote(peer, format!("rank {peer} asked for memory that was not offered to it"));
        let offer = offers.get_mut(&ticket).ok_or_else(refused)?;
        let place = offer.takers.iter().position(|taker| *taker == peer).ok_or_else(refused)?;
        let descriptor = device::of(offer.memory.home())?.export(&offer.memory)?;
        if !self.stream.send_descriptor(descriptor.as_fd())? {
            return Ok(false);
        }
        offer.takers.swap_remove(place);
        if offer.takers.is_empty() {
            offers.remove(&ticket);
        }
        Ok(true)
    }
}

impl Fetch {
    /// Asks `owner` at the socket `name` for what `ticket` names.
    pub(super) fn new(terms: Terms, (me, owner): (Rank, Rank), name: String, ticket: u64) -> Result<Fetch> {
        let caller = Caller::new(terms, (me, owner), Request { ticket, index: 0 })?;
        Ok(Fetch { name, stream: None, caller, asked: false })
    }

    /// The descriptor, once it has come.
    pub(super) fn progress(&mut self) -> Result<Option<Fetched>> {
        if self.stream.is_none() {
            self.stream = Stream::connect(&self.name)?;
        }
        let Some(stream) = &self.stream else { return Ok(None) };
        if !self.asked {
            self.asked = self.caller.progress(stream)?;
        }
        let file = if self.asked { stream.receive_descriptor()? } else { None };
        Ok(file.map(|file| Fetched { file, owner: stream.process() }))
    }
}
