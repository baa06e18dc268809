//! SHM between processes of a host: descriptors of memory, handed over on an abstract unix socket.
//!
//! There is no file to leave behind and no limit of `/dev/shm`. Ranks whose network namespaces differ hand over on a
//! socket in a folder that all of them see (`RSCCL_SOCKET_DIR`). The socket's name is random; who connects must run
//! under the same user and prove that it belongs to the communicator before it is given anything; it is given what its
//! ticket names and was offered to it.

use std::collections::HashMap;
use std::fmt::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use crate::bootstrap::Bootstrap;
use crate::bootstrap::auth::{Purpose, Terms};
use crate::device::{self, Region, Sharing};
use crate::error::{Error, Result};
use crate::log;
use crate::sync::Chime;
use crate::sync::primitive::Arc;
use crate::sys::descriptor::{HandoverStream, Listener};
use crate::sys::{limits, random};
use crate::transport::connection::Way;
use crate::transport::data_handshake::{Answerer, Caller, Refused, Request, SESSION_TIME, crowd_out, terms};
use crate::transport::socket_folder::SocketFolder;
use crate::transport::table::{
    Entry, Imported, MOST_OFFER_BYTES, MappingKey, Offered, Opening, PeerOffer, Policy, Transport,
};
use crate::transport::windows::Neighbour;
use crate::transport::{PeerInfo, SocketOptions};
use crate::types::{Rank, TransportKind};
use crate::wire::{Reader, Writer};

/// One rank's side. Its socket is made when it first gives anything.
#[derive(Debug)]
pub(super) struct Shm {
    me: Rank,
    folder: Option<SocketFolder>,
    exporter: Option<Exporter>,
}

impl Shm {
    /// For processes of one host.
    pub(super) const ENTRY: Entry = Entry { kind: TransportKind::Shm, domain: Shm::domain, open: Shm::open };

    fn domain(peer: &PeerInfo, policy: Policy) -> Option<MappingKey> {
        (!policy.no_shm).then_some((peer.host, None, None))
    }

    fn open(me: Rank, SocketOptions { folder, .. }: SocketOptions) -> Box<dyn Transport> {
        Box::new(Shm { me, folder, exporter: None })
    }
}

impl Transport for Shm {
    fn sharing(&self) -> Option<Sharing> {
        Some(Sharing::Processes)
    }

    fn offer(&mut self, (memory, _): Offered<'_>, takers: &[Rank], bootstrap: &dyn Bootstrap) -> Result<Vec<u8>> {
        let exporter = match &mut self.exporter {
            Some(exporter) => exporter,
            none => none.insert(Exporter::new(terms(bootstrap, Purpose::Descriptor), self.me, self.folder)?),
        };
        let ticket = exporter.offer(memory.clone(), takers.to_vec())?;
        let mut written = Writer::new();
        written.u64(ticket).text(&exporter.name);
        Ok(written.finish())
    }

    fn import(
        &mut self,
        wanted: PeerOffer,
        offer: &[u8],
        bootstrap: &dyn Bootstrap,
    ) -> Result<Box<dyn Opening<Imported>>> {
        let read = || -> Result<(u64, String)> {
            let mut reader = Reader::new(offer, "an offer of memory");
            let (ticket, name) = (reader.u64()?, reader.text(MOST_NAME_BYTES)?);
            reader.finish()?;
            Ok((ticket, name))
        };
        let (ticket, name) = read().map_err(|error| error.about(wanted.owner))?;
        let terms = terms(bootstrap, Purpose::Descriptor);
        let caller = Caller::new(terms, (self.me, wanted.owner), Request { ticket, index: 0 })?;
        Ok(Box::new(Fetch { wanted, name, folder: self.folder, stream: None, caller, asked: false }))
    }

    fn serve(&mut self, now: Instant) -> Result<()> {
        self.exporter.as_mut().map_or(Ok(()), |exporter| exporter.progress(now))
    }

    fn refused(&self) -> Option<String> {
        self.exporter.as_ref()?.refused.words("its shared memory's socket")
    }

    fn sources(&self, _: &Arc<Chime>) -> Option<Vec<BorrowedFd<'_>>> {
        let Some(exporter) = &self.exporter else { return Some(Vec::new()) };
        exporter.sessions.is_empty().then(|| vec![exporter.listener.as_fd()])
    }

    fn outstanding(&mut self) -> Vec<u64> {
        self.exporter.iter().flat_map(|exporter| exporter.offers.keys().copied()).collect()
    }

    fn log_connection(&self, me: Rank, (_, way): (Rank, Way), channel: &str) {
        if way == Way::Send {
            log::detail!(Shm @ me, "{channel} via SHM/memfd");
        }
    }

    fn log_mapping(&self, me: Rank, what: &str) {
        log::detail!(Shm @ me, "{what} via SHM/memfd");
    }
}

/// One rank's side that gives.
#[derive(Debug)]
struct Exporter {
    terms: Terms,
    me: Rank,
    name: String,
    listener: Listener,
    offers: HashMap<u64, Offer>,
    sessions: Vec<Session>,
    refused: Refused,
}

#[derive(Debug)]
struct Offer {
    memory: Region,
    takers: Vec<Rank>,
}

#[derive(Debug)]
struct Session {
    stream: HandoverStream,
    answerer: Answerer,
    /// What to hand over, once the peer has said.
    grant: Option<(u64, Rank)>,
    since: Instant,
}

/// One rank's side that takes: one descriptor.
#[derive(Debug)]
struct Fetch {
    wanted: PeerOffer,
    name: String,
    folder: Option<SocketFolder>,
    stream: Option<HandoverStream>,
    caller: Caller,
    asked: bool,
}

impl Exporter {
    fn new(terms: Terms, me: Rank, folder: Option<SocketFolder>) -> Result<Exporter> {
        let mut name = String::from("rsccl-");
        for byte in random::bytes::<16>()? {
            write!(name, "{byte:02x}").expect("writing to a string does not fail");
        }
        let listener = match folder {
            Some(folder) => {
                let path = folder.socket(&name).ok_or_else(|| Error::internal("our own name"))?;
                let advice = "RSCCL_SOCKET_DIR must be a folder in which every rank of the machine can make sockets";
                Listener::bind_file(&path).map_err(|error| error.advising(advice))?
            }
            None => Listener::bind(&name)?,
        };
        let (offers, sessions, refused) = (HashMap::new(), Vec::new(), Refused::default());
        Ok(Exporter { terms, me, name, listener, offers, sessions, refused })
    }

    /// Offers `memory` to `takers`, once each.
    fn offer(&mut self, memory: Region, takers: Vec<Rank>) -> Result<u64> {
        let ticket = u64::from_le_bytes(random::bytes()?);
        self.offers.insert(ticket, Offer { memory, takers });
        Ok(ticket)
    }

    /// Serves who asks. Errors of one connection end that connection; what this rank has run out of, it does for all.
    fn progress(&mut self, now: Instant) -> Result<()> {
        while crowd_out(&mut self.sessions, |session| (session.answerer.standing(), session.since), now) {
            let Some(stream) = self.listener.accept()? else { break };
            let answerer = Answerer::new(self.terms.clone(), self.me);
            self.sessions.push(Session { stream, answerer, grant: None, since: now });
        }
        let (offers, refused, mut shortage) = (&mut self.offers, &mut self.refused, Ok(()));
        self.sessions.retain_mut(|session| match session.progress(offers) {
            Ok(done) => !done && now.duration_since(session.since) < SESSION_TIME,
            Err(error) => {
                log::trace!(Shm @ self.me, "a connection to the shared-memory socket was refused: {error}");
                refused.add("a process of this user", error.message());
                if limits::is_shortage(&error) {
                    shortage = Err(error);
                }
                false
            }
        });
        shortage
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

impl Opening<Imported> for Fetch {
    fn progress(&mut self) -> Result<Option<Imported>> {
        if self.stream.is_none() {
            self.stream = match self.folder {
                Some(folder) => {
                    let wrong = || Error::remote(self.wanted.owner, "an offer of memory names no socket of the folder");
                    HandoverStream::connect_file(&folder.socket(&self.name).ok_or_else(wrong)?)?
                }
                None => HandoverStream::connect(&self.name).map_err(not_here)?,
            };
        }
        let Some(stream) = &self.stream else { return Ok(None) };
        if !self.asked {
            self.asked = self.caller.progress(stream)?;
        }
        let received = if self.asked { stream.receive_descriptor()? } else { None };
        let Some(descriptor) = received else { return Ok(None) };
        let PeerOffer { owner, home, bytes } = self.wanted;
        let memory = device::of(home)?.import(descriptor, bytes).map_err(|error| error.about(owner))?;
        memory.keep().prefer_huge_pages();
        Ok(Some(Imported { memory, pointers: None, neighbour: Neighbour::Process(stream.process()) }))
    }
}

/// The error of a connection to the socket where a peer hands its memory over. If nobody listens there although the
/// peer has named it, the peer is on another machine: clones of one machine tell the same name, and containers hide the
/// rest.
fn not_here(error: Error) -> Error {
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
    if source.is_none_or(|source| source.kind() != std::io::ErrorKind::ConnectionRefused) {
        return error;
    }
    let message = format!(
        "{}: it was taken for a rank of this host because both tell the same host name and boot; if it is on another \
         host, give each host its own NCCL_HOSTID, or set NCCL_SHM_DISABLE=1",
        error.message()
    );
    Error::new(error.kind(), message).with_source(std::io::Error::from(std::io::ErrorKind::ConnectionRefused))
}

/// Of a socket's name.
const MOST_NAME_BYTES: usize = 100;

const _: () = assert!(8 + 4 + MOST_NAME_BYTES <= MOST_OFFER_BYTES);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    /// Report 21: two clones of one machine with `/proc` hidden.
    #[test]
    fn a_peer_that_does_not_listen_here_is_told_to_be_on_another_host_perhaps() {
        let told = |code: i32| {
            let error = std::io::Error::from_raw_os_error(code);
            not_here(Error::system("connect to the unix socket @rsccl-1", error)).to_string()
        };
        let refused = told(111);
        for words in ["@rsccl-1", "the same host name and boot", "NCCL_HOSTID", "NCCL_SHM_DISABLE=1"] {
            assert!(refused.contains(words), "`{words}` is not in: {refused}");
        }
        assert!(!told(24).contains("NCCL_HOSTID"));
    }
}
