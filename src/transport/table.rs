//! The transports as a table, and what each must offer. The first entry that connects two ranks is theirs.
//!
//! # Adding a transport
//! A transport is one file with a type that implements [`Transport`], and one line in [`TABLE`]. Ranks agree on the
//! transport of a pair because they compute it from the same facts: the ladder ([`HostFacts`]) says why a transport
//! does not connect two ranks, and gets a line for it.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use crate::bootstrap::Bootstrap;
use crate::device::{Home, HostMemory, HostRegion, Region, Sharing};
use crate::error::{Error, Result};
use crate::sync::Chime;
use crate::sync::primitive::Arc;
use crate::sys::limits;
use crate::topo::transport_choice::ladder::HostFacts;
use crate::transport::PeerInfo;
use crate::transport::connection::{Channel, Way};
use crate::transport::local::Local;
use crate::transport::net::{DeadRoutes, Net, Network, NicFacts, SocketOptions};
use crate::transport::nics::NicTable;
use crate::transport::pump::Wire;
use crate::transport::shm::Shm;
use crate::transport::windows::{Neighbour, UserPointers};
use crate::types::{Rank, TransportKind};

/// What the user forbids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Policy {
    /// `NCCL_P2P_DISABLE`: no direct pointers between threads, nor between GPUs.
    pub no_local: bool,
    /// `NCCL_SHM_DISABLE`: no shared memory.
    pub no_shm: bool,
    /// `RSCCL_CMA_DISABLE`: no rank reads another's memory in place.
    pub no_peer_reads: bool,
    /// `RSCCL_CMA_FORCE`: ranks read each other's memory in place also where the kernel copies slowly.
    pub slow_peer_reads: bool,
}

/// One way to get bytes from rank to rank, as one rank uses it.
///
/// A transport whose ranks can map each other's memory has a [`Transport::sharing`]: one rank
/// [offers](Transport::offer) memory, the other one [imports](Transport::import) it. Another transport has wires: the
/// receiver of a connection [listens](Transport::listen), the sender [dials](Transport::dial), and the receiver
/// [accepts](Transport::accept).
pub(super) trait Transport: Debug + Send {
    /// How memory is allocated that peers of this transport map; `None` where they cannot map any.
    fn sharing(&self) -> Option<Sharing>;

    /// Expects a wire that `peer` dials.
    ///
    /// # Errors
    /// Of the listener.
    fn listen(&mut self, peer: Rank, _: &dyn Bootstrap) -> Result<ExpectedWire> {
        Err(Error::internal(format!("a wire from rank {peer}, whose memory can be mapped")))
    }

    /// Begins to open the wire of a channel with a peer that offered it: this rank's end is for this way.
    ///
    /// # Errors
    /// Of a broken offer or of sockets.
    fn dial(
        &mut self,
        (peer, _, _): (Rank, Channel, Way),
        (_, _): (&[u8], Dialling),
        _: &dyn Bootstrap,
    ) -> Result<Box<dyn Opening<Box<dyn Wire>>>> {
        Err(Error::internal(format!("a wire to rank {peer}, whose memory can be mapped")))
    }

    /// Nobody dials with this ticket any more.
    fn withdraw(&mut self, _ticket: u64) {}

    /// `peer`, which this rank has not reached in time, has reached this rank.
    fn note_reversed(&mut self, _peer: Rank) {}

    /// Offers `memory` to `takers`; what they need to import it.
    ///
    /// # Errors
    /// Where the memory cannot be handed over.
    fn offer(&mut self, memory: Offered<'_>, takers: &[Rank], bootstrap: &dyn Bootstrap) -> Result<Vec<u8>>;

    /// Begins to map the `wanted` memory that its owner offered.
    ///
    /// # Errors
    /// Of a broken offer, or of an owner that has gone.
    fn import(
        &mut self,
        wanted: PeerOffer,
        offer: &[u8],
        bootstrap: &dyn Bootstrap,
    ) -> Result<Box<dyn Opening<Imported>>>;

    /// Answers the peers that connect or import.
    ///
    /// # Errors
    /// Of this rank's listener; what is wrong with one peer's connection ends that connection alone.
    fn serve(&mut self, now: Instant) -> Result<()>;

    /// The descriptors of which one is readable when [`Transport::serve`] has something to do, unless `chime` rings
    /// then; `None` where it has to be called now and then.
    fn sources(&self, _chime: &Arc<Chime>) -> Option<Vec<BorrowedFd<'_>>> {
        Some(Vec::new())
    }

    /// The wires whose senders have connected since the last call, by the tickets that [`Transport::listen`] gave.
    fn accept(&mut self) -> Vec<(u64, Box<dyn Wire>)> {
        Vec::new()
    }

    /// What this side has refused or given up of connections that came, in words: the last of it.
    fn refused(&self) -> Option<String> {
        None
    }

    /// The tickets of offers that have not been taken.
    fn outstanding(&mut self) -> Vec<u64>;

    /// Learns which NICs all ranks have, and keeps in `dead` what it learns of routes.
    fn use_nics(&mut self, _: &Arc<NicTable>, _dead: &DeadRoutes) {}

    /// Learns which network all ranks use between hosts.
    fn use_network(&mut self, _: &Network) {}

    /// What is known of the NIC that connections take; `None` where they take sockets, or none is needed.
    fn nic(&self) -> Option<NicFacts> {
        None
    }

    /// Writes the line for a connection with `peer`, of which `channel` says number and ranks, at one end or both.
    fn log_connection(&self, me: Rank, connection: (Rank, Way), channel: &str);

    /// Writes a line for memory that was mapped, which ends with the way it was.
    fn log_mapping(&self, me: Rank, what: &str);
}

/// Memory that peers will map.
///
/// # Errors
/// [`crate::error::Kind::System`] where there is none, with what does without.
pub(super) fn memory_for_peers(bytes: usize, sharing: Sharing) -> Result<HostRegion> {
    HostMemory.allocate_host(bytes, sharing).map_err(|error| {
        if limits::is_file_size(&error) { error.advising("or set NCCL_SHM_DISABLE=1 on all ranks") } else { error }
    })
}

/// Memory to offer; between threads, with the places where ranks say where their users' buffers are.
pub(super) type Offered<'a> = (&'a Region, Option<&'a Arc<[UserPointers]>>);

/// Memory that a peer has offered.
#[derive(Debug, Clone, Copy)]
pub(super) struct PeerOffer {
    /// The peer.
    pub(super) owner: Rank,
    /// Whose work reaches the mapping: the host's, or that of a device of this process.
    pub(super) home: Home,
    /// The length that the peer announced, or that is known.
    pub(super) bytes: usize,
}

/// A wire that a peer dials.
#[derive(Debug)]
pub(super) struct ExpectedWire {
    /// By which [`Transport::accept`] will give it.
    pub(super) ticket: u64,
    /// What the peer needs to dial.
    pub(super) offer: Vec<u8>,
    /// Where it dials first, where that is an address.
    pub(super) at: Option<SocketAddr>,
}

/// What becomes of a dial that does not get through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialling {
    /// The other end may dial instead ([`Opening::unreached`]), once it has taken too long.
    OrReversed,
    /// The other end dials as well, as this one has not been reached in time before.
    OrReversedAtOnce,
    /// The other end could not.
    Only,
}

/// The most bytes of an offer, whatever the transport.
pub(super) const MOST_OFFER_BYTES: usize = 512;

/// Something under way that never blocks.
pub(super) trait Opening<T>: Debug + Send {
    /// The result, once it is there.
    ///
    /// # Errors
    /// Of a peer that has gone.
    fn progress(&mut self) -> Result<Option<T>>;

    /// How far it has come, in words, where it waits for more than the other end's processor.
    fn standing(&self) -> Option<String> {
        None
    }

    /// That the other end is not reached from here, where the other end may try instead.
    fn unreached(&self) -> Option<Unreached> {
        None
    }
}

/// An end that cannot be opened from here, or not soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unreached {
    /// In words.
    pub(super) why: String,
    /// Whether it may open from here after all: nothing has answered so far.
    pub(super) may_yet: bool,
}

/// What was there at once.
#[derive(Debug)]
pub(super) struct Here<T>(pub(super) Option<T>);

impl<T: Debug + Send> Opening<T> for Here<T> {
    fn progress(&mut self) -> Result<Option<T>> {
        Ok(self.0.take())
    }
}

/// A peer's memory, mapped.
#[derive(Debug)]
pub(super) struct Imported {
    pub(super) memory: Region,
    pub(super) pointers: Option<Arc<[UserPointers]>>,
    pub(super) neighbour: Neighbour,
}

impl Imported {
    /// The memory, where it must be the host's.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] where `owner` gave another.
    pub(super) fn on_host(&self, owner: Rank) -> Result<HostRegion> {
        on_host(&self.memory, owner)
    }
}

/// The `memory`, where it must be the host's.
///
/// # Errors
/// [`crate::error::Kind::Remote`] where `owner` gave another.
pub(super) fn on_host(memory: &Region, owner: Rank) -> Result<HostRegion> {
    let wrong = || Error::remote(owner, format!("rank {owner} offered memory of a device, not of the host"));
    memory.on_host().ok_or_else(wrong)
}

/// A line of the table.
pub(super) struct Entry {
    /// Its name, for messages and for the tuner.
    pub(super) kind: TransportKind,
    /// Equal for two ranks exactly where the ladder says that it connects them, for transports that map memory. A
    /// transport further down the table maps at least what those above it map.
    pub(super) domain: fn(&PeerInfo, Policy) -> Option<MappingKey>,
    /// One rank's side of it.
    pub(super) open: fn(Rank, SocketOptions) -> Box<dyn Transport>,
}

/// Ranks that can map each other's memory have equal ones: host, then process and rank where the transport is as narrow
/// as that.
pub type MappingKey = (u64, Option<u64>, Option<Rank>);

/// All transports, the best first.
pub(super) const TABLE: &[Entry] = &[Local::ENTRY, Shm::ENTRY, Net::ENTRY];

/// The place in [`TABLE`] of the transport between two ranks.
pub(super) fn choose(mine: &PeerInfo, theirs: &PeerInfo, policy: Policy) -> usize {
    let facts = facts(mine, theirs, policy);
    let first = TABLE.iter().position(|entry| facts.refusal(entry.kind).is_none());
    first.expect("the last transport of the table connects all ranks")
}

/// The name of the transport between two ranks.
pub fn select(mine: &PeerInfo, theirs: &PeerInfo, policy: Policy) -> TransportKind {
    TABLE[choose(mine, theirs, policy)].kind
}

/// Why the transports above the chosen one do not connect two ranks: "P2P: NCCL_P2P_DISABLE is set".
pub(super) fn refusals(mine: &PeerInfo, theirs: &PeerInfo, policy: Policy) -> String {
    let facts = facts(mine, theirs, policy);
    let reasons =
        TABLE.iter().map_while(|entry| facts.refusal(entry.kind).map(|reason| format!("{}: {reason}", entry.kind)));
    reasons.collect::<Vec<_>>().join("; ")
}

/// Process numbers are random: equal ones on two hosts mean nothing.
fn facts(mine: &PeerInfo, theirs: &PeerInfo, policy: Policy) -> HostFacts {
    HostFacts {
        one_process: mine.process == theirs.process,
        one_host: mine.host == theirs.host,
        no_p2p: policy.no_local,
        no_shm: policy.no_shm,
    }
}

/// Equal for two ranks exactly where they can map each other's memory.
pub fn neighbourhood(peer: &PeerInfo, policy: Policy) -> MappingKey {
    let widest = TABLE.iter().rev().find_map(|entry| (entry.domain)(peer, policy));
    widest.unwrap_or((peer.host, Some(peer.process), Some(peer.rank)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::numa::ThreadHome;

    #[test]
    fn the_first_transport_that_can_connects_and_the_others_say_why_not() {
        let (rank, home) = (Rank::new(0), ThreadHome::default());
        let me = PeerInfo {
            rank,
            host: 1,
            process: 1,
            pid: 1,
            space: 0,
            cores: 1,
            settings: 0,
            tuning: 0,
            home,
            switches: [0; 4],
            is_traced: false,
        };
        let sibling = PeerInfo { rank: Rank::new(1), ..me };
        let neighbour = PeerInfo { process: 2, ..sibling };
        let stranger = PeerInfo { host: 2, ..neighbour };
        // The process number is random: equal ones on two hosts mean nothing.
        let lookalike = PeerInfo { host: 2, ..sibling };
        let (local, shm, net) = (TransportKind::Local, TransportKind::Shm, TransportKind::Net);
        let table = [
            (false, false, [local, shm, net, net]),
            (true, false, [shm, shm, net, net]),
            (false, true, [local, net, net, net]),
            (true, true, [net, net, net, net]),
        ];
        for (no_local, no_shm, expected) in table {
            let policy = Policy { no_local, no_shm, ..Policy::default() };
            let found = [sibling, neighbour, stranger, lookalike].map(|peer| select(&me, &peer, policy));
            assert_eq!(found, expected, "{policy:?}");
            for (peer, kind) in [sibling, neighbour, stranger, lookalike].iter().zip(found) {
                let together = neighbourhood(&me, policy) == neighbourhood(peer, policy);
                assert_eq!(together, kind != net, "{policy:?} {peer:?}");
                let reasons = refusals(&me, peer, policy);
                let named = TABLE.iter().take_while(|entry| entry.kind != kind);
                assert!(named.clone().all(|entry| reasons.contains(&format!("{}: ", entry.kind))), "{reasons}");
                assert_eq!(reasons.is_empty(), kind == local, "{reasons}");
            }
        }
        let policy = Policy { no_local: true, ..Policy::default() };
        assert!(refusals(&me, &stranger, policy).contains("another host"));
        assert!(refusals(&me, &sibling, policy).contains("NCCL_P2P_DISABLE"));
    }
}
