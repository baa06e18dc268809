//! Where a rank hands its memory out and takes others': one door for each transport, one blob for all.
//!
//! # The blob
//! What the owner of a ring or an arena sends to the rank that shall use it, at most [`MOST_BLOB_BYTES`]:
//! ```text
//! local  kind u8 = 0, ticket u64
//! shm    kind u8 = 1, ticket u64, socket name (length u32, text)
//! net    kind u8 = 2, ticket u64, address
//! ```

use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use crate::bootstrap::Bootstrap;
use crate::bootstrap::auth::{Purpose, Terms};
use crate::device::HostRegion;
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::transport::offer::{LocalOffer, LocalOffers, take_local};
use crate::transport::port::{Dial, Port, SocketOptions};
use crate::transport::shm::{Exporter, Fetch, Fetched};
use crate::transport::windows::Board;
use crate::types::{Rank, TransportKind};
use crate::wire::{Reader, Writer};

/// The doors of one rank; those of shm and net are made when first used.
#[derive(Debug)]
pub(super) struct Doors {
    me: Rank,
    options: SocketOptions,
    local: LocalOffers,
    shm: Option<Exporter>,
    net: Option<Port>,
}

/// What was taken, or is on its way.
#[derive(Debug)]
pub(super) enum Taking {
    Here(Taken),
    Shm(Fetch),
    Net(Dial),
}

/// What a peer handed over.
#[derive(Debug)]
pub(super) enum Taken {
    Local(LocalOffer),
    File(Fetched),
    Sockets(Vec<TcpStream>),
}

impl Doors {
    pub(super) fn new(me: Rank, options: SocketOptions) -> Doors {
        Doors { me, options, local: LocalOffers::default(), shm: None, net: None }
    }

    /// Offers `memory` to `takers`, all of which use the same transport; the blob for them.
    pub(super) fn offer_memory(
        &mut self,
        kind: TransportKind,
        (memory, board): (&HostRegion, Option<&Arc<Board>>),
        takers: &[Rank],
        bootstrap: &dyn Bootstrap,
    ) -> Result<Vec<u8>> {
        let mut blob = Writer::new();
        match kind {
            TransportKind::Local => {
                let offer = LocalOffer { memory: memory.clone(), board: board.cloned() };
                blob.u8(kind.code()).u64(self.local.offer(offer, takers.len())?);
            }
            TransportKind::Shm => {
                let exporter = match &mut self.shm {
                    Some(exporter) => exporter,
                    none => none.insert(Exporter::new(terms(bootstrap, Purpose::Descriptor), self.me)?),
                };
                let ticket = exporter.offer(memory.as_region().clone(), takers.to_vec())?;
                blob.u8(kind.code()).u64(ticket).text(exporter.name());
            }
            TransportKind::Net => return Err(Error::internal("memory cannot be offered over the network")),
        }
        Ok(blob.finish())
    }

    /// Expects sockets of `peer`; the ticket, and the blob for it.
    pub(super) fn expect_sockets(&mut self, peer: Rank, bootstrap: &dyn Bootstrap) -> Result<(u64, Vec<u8>)> {
        let port = match &mut self.net {
            Some(port) => port,
            none => {
                let terms = terms(bootstrap, Purpose::Data);
                none.insert(Port::new(terms, self.me, bootstrap.interface(), self.options)?)
            }
        };
        let ticket = port.expect(peer)?;
        let mut blob = Writer::new();
        blob.u8(TransportKind::Net.code()).u64(ticket).address(&port.address());
        Ok((ticket, blob.finish()))
    }

    /// Begins to take what `owner` offered by `blob`, over the transport that this side has selected too.
    pub(super) fn take(
        &mut self,
        kind: TransportKind,
        owner: Rank,
        blob: &[u8],
        bootstrap: &dyn Bootstrap,
    ) -> Result<Taking> {
        let read = || -> Result<(u8, u64, String, Option<SocketAddr>)> {
            let mut reader = Reader::new(blob, "an offer of memory");
            let (code, ticket) = (reader.u8()?, reader.u64()?);
            let name = if code == TransportKind::Shm.code() { reader.text(MOST_NAME_BYTES)? } else { String::new() };
            let address = if code == TransportKind::Net.code() { Some(reader.address()?) } else { None };
            reader.finish()?;
            Ok((code, ticket, name, address))
        };
        let (code, ticket, name, address) = read().map_err(|error| error.about(owner))?;
        if code != kind.code() {
            let theirs = TransportKind::from_code(code).map_or("an unknown transport", TransportKind::name);
            let message = format!("rank {owner} selected {theirs} for a connection where this rank selected {kind}");
            return Err(Error::mismatch(message).about(owner));
        }
        match (kind, address) {
            (TransportKind::Local, _) => Ok(Taking::Here(Taken::Local(take_local(ticket)?))),
            (TransportKind::Net, Some(address)) => {
                let terms = terms(bootstrap, Purpose::Data);
                Ok(Taking::Net(Dial::new(&terms, (self.me, owner), address, (ticket, self.options))?))
            }
            (TransportKind::Shm, _) | (TransportKind::Net, None) => {
                let terms = terms(bootstrap, Purpose::Descriptor);
                Ok(Taking::Shm(Fetch::new(terms, (self.me, owner), name, ticket)?))
            }
        }
    }

    /// Serves who takes from this rank.
    pub(super) fn serve(&mut self, now: Instant) -> Result<()> {
        if let Some(exporter) = &mut self.shm {
            exporter.progress(now)?;
        }
        if let Some(port) = &mut self.net {
            port.progress(now)?;
        }
        Ok(())
    }

    /// Whether all memory that was offered has been taken: an offer ends with its rank, so a rank waits for that.
    pub(super) fn settled(&mut self) -> bool {
        self.local.settled() && self.shm.as_ref().is_none_or(Exporter::settled)
    }

    /// The tickets of what has not been taken.
    pub(super) fn outstanding(&mut self) -> Vec<u64> {
        let shm = self.shm.as_ref().into_iter().flat_map(Exporter::outstanding);
        self.local.outstanding().iter().copied().chain(shm).collect()
    }

    /// Whether all was taken but what was `outstanding` before: that is for peers which may come later, and whoever offered it serves
    /// them.
    pub(super) fn settled_since(&mut self, before: &[u64]) -> bool {
        self.settled() || self.outstanding().iter().all(|ticket| before.contains(ticket))
    }

    /// The connections of peers that are complete, by ticket.
    pub(super) fn take_ready(&mut self) -> Vec<(u64, Vec<TcpStream>)> {
        self.net.as_mut().map_or_else(Vec::new, Port::take_ready)
    }
}

impl Taking {
    /// What was taken, once it is here.
    pub(super) fn progress(&mut self) -> Result<Option<Taken>> {
        match self {
            Taking::Here(Taken::Local(offer)) => Ok(Some(Taken::Local(offer.clone()))),
            Taking::Here(_) => Err(Error::internal("only offers between threads are taken at once")),
            Taking::Shm(fetch) => Ok(fetch.progress()?.map(Taken::File)),
            Taking::Net(dial) => Ok(dial.progress()?.map(Taken::Sockets)),
        }
    }
}

fn terms(bootstrap: &dyn Bootstrap, purpose: Purpose) -> Terms {
    Terms { key: bootstrap.key(), purpose, communicator: bootstrap.id() }
}

/// The most bytes of a blob.
pub(super) const MOST_BLOB_BYTES: usize = 256;
const MOST_NAME_BYTES: usize = 100;

const _: () = assert!(1 + 8 + 4 + MOST_NAME_BYTES <= MOST_BLOB_BYTES);
