//! P2P between threads of one process: they share memory by sharing its handle.
//!
//! The owner puts an offer into a table of the process and sends the ticket over the bootstrap. A ticket is a random
//! number and nothing else: it is looked up, never used as an address. Offers end when they are taken as often as said,
//! or with their [`Local`].

use std::collections::HashMap;
use std::time::Instant;

use crate::bootstrap::Bootstrap;
use crate::device::{Region, Sharing};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sys::fork::PerProcess;
use crate::sys::random;
use crate::transport::connection::Way;
use crate::transport::table::{Entry, Here, Imported, MappingKey, Offered, Opening, PeerOffer, Policy, Transport};
use crate::transport::windows::{Neighbour, UserPointers};
use crate::transport::{PeerInfo, SocketOptions};
use crate::types::{Rank, TransportKind};
use crate::wire::{Reader, Writer};

/// What one rank hands to others of its process.
#[derive(Debug, Clone)]
struct LocalOffer {
    memory: Region,
    pointers: Option<Arc<[UserPointers]>>,
}

/// Offers to threads of this process that have not been taken yet.
///
/// The one table of the process: threads that join one communicator have nothing else in common. Its keys are random,
/// so that communicators do not meet, and its entries end with the fabric that made them.
fn table() -> MutexGuard<'static, HashMap<u64, (LocalOffer, usize)>> {
    static TABLE: PerProcess<Mutex<HashMap<u64, (LocalOffer, usize)>>> = PerProcess::new();
    TABLE.get_or_init(Mutex::default).lock()
}

/// One rank's side: its offers to threads of its process, by ticket.
#[derive(Debug, Default)]
pub(super) struct Local {
    tickets: Vec<u64>,
}

impl Local {
    /// For threads of one process.
    pub(super) const ENTRY: Entry = Entry { kind: TransportKind::Local, domain: Local::domain, open: Local::open };

    fn domain(peer: &PeerInfo, policy: Policy) -> Option<MappingKey> {
        (!policy.no_local).then_some((peer.host, Some(peer.process), None))
    }

    fn open(_: Rank, _: SocketOptions) -> Box<dyn Transport> {
        Box::new(Local::default())
    }
}

impl Transport for Local {
    fn sharing(&self) -> Option<Sharing> {
        Some(Sharing::Threads)
    }

    fn offer(&mut self, (memory, pointers): Offered<'_>, takers: &[Rank], _: &dyn Bootstrap) -> Result<Vec<u8>> {
        let ticket = u64::from_le_bytes(random::bytes()?);
        if !takers.is_empty() {
            let offer = LocalOffer { memory: memory.clone(), pointers: pointers.cloned() };
            table().insert(ticket, (offer, takers.len()));
            self.tickets.push(ticket);
        }
        let mut written = Writer::new();
        written.u64(ticket);
        Ok(written.finish())
    }

    fn import(
        &mut self,
        PeerOffer { owner, bytes, .. }: PeerOffer,
        offer: &[u8],
        _: &dyn Bootstrap,
    ) -> Result<Box<dyn Opening<Imported>>> {
        let read = || -> Result<u64> {
            let mut reader = Reader::new(offer, "an offer of memory");
            let ticket = reader.u64()?;
            reader.finish().map(|()| ticket)
        };
        let LocalOffer { memory, pointers } = take(read().map_err(|error| error.about(owner))?)?;
        if memory.bytes() != bytes {
            return Err(Error::remote(owner, format!("rank {owner} offered memory of another size")));
        }
        Ok(Box::new(Here(Some(Imported { memory, pointers, neighbour: Neighbour::Thread }))))
    }

    fn serve(&mut self, _: Instant) -> Result<()> {
        Ok(())
    }

    fn outstanding(&mut self) -> Vec<u64> {
        if !self.tickets.is_empty() {
            let table = table();
            self.tickets.retain(|ticket| table.contains_key(ticket));
        }
        self.tickets.clone()
    }

    fn log_connection(&self, me: Rank, (_, way): (Rank, Way), channel: &str) {
        if way == Way::Send {
            log::detail!(P2p @ me, "{channel} via P2P/direct pointer");
        }
    }

    fn log_mapping(&self, me: Rank, what: &str) {
        log::detail!(P2p @ me, "{what} via P2P/direct pointer");
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let mut table = table();
        for ticket in &self.tickets {
            table.remove(ticket);
        }
    }
}

/// Takes the offer that a thread of this process made.
///
/// # Errors
/// [`Kind::Remote`] where there is none: its owner has gone.
fn take(ticket: u64) -> Result<LocalOffer> {
    let mut table = table();
    let gone = || Error::new(Kind::Remote, "a thread of this process offered memory and went before it was taken");
    let (offer, left) = table.get_mut(&ticket).ok_or_else(gone)?;
    let taken = offer.clone();
    *left -= 1;
    if *left == 0 {
        table.remove(&ticket);
    }
    Ok(taken)
}
