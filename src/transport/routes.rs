//! By which transport this rank reaches each other one, and what goes over it before there is a connection: offers.

use std::time::Instant;

use crate::device::Sharing;
use crate::error::{Error, Result};
use crate::sync::ring::Shape;
use crate::sys::limits;
use crate::transport::connection::{Channel, Need, Way};
use crate::transport::net::SocketOptions;
use crate::transport::table::{self, MOST_OFFER_BYTES, TABLE, Transport, refusals};
use crate::transport::{PeerInfo, Policy, select};
use crate::types::{Rank, TransportKind, World};

/// Sizes of a fabric's memory; equal on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Of every ring but the next two.
    pub shape: Shape,
    /// Of the rings in memory that messages between two ranks go by: each message takes several slots, so that its
    /// receiver copies one while the sender fills the next. On a host of more than eight ranks payloads are not spread.
    pub messages_in_memory: Shape,
    /// Of the rings behind sockets that messages between two ranks go by: fewer and larger pieces take fewer system
    /// calls and wake-ups. Shared memory loses by them, since they leave the caches; so would plans, whose pieces have
    /// one size on all connections.
    pub messages_over_sockets: Shape,
    /// Of every arena's scratch, in bytes.
    pub scratch_bytes: usize,
    /// Of the sockets of the NET transport.
    pub sockets: SocketOptions,
}

/// Ranks of a host up to which rings of messages may spread their payloads: with more, a rank that sends to all others
/// would take hundreds of megabytes.
const FEW_RANKS: usize = 8;

/// This rank's side of each transport, and which of them leads to which rank.
#[derive(Debug)]
pub(super) struct Routes {
    pub(super) world: World,
    /// In the order of the table.
    pub(super) transports: Vec<Box<dyn Transport>>,
    /// By rank: the place of the transport between us.
    places: Vec<u8>,
    pub(super) sizes: Sizes,
}

impl Routes {
    pub(super) fn new(world: World, peers: &[PeerInfo], policy: Policy, sizes: Sizes) -> Routes {
        let mine = &peers[world.rank.index()];
        let place = |peer: &PeerInfo| u8::try_from(table::choose(mine, peer, policy)).expect("a short table");
        // All ranks of a host count the same.
        let is_crowd = peers.iter().filter(|peer| peer.host == mine.host).count() > FEW_RANKS;
        let spread = if is_crowd { 1 } else { sizes.messages_in_memory.spread };
        let sizes = Sizes { messages_in_memory: Shape { spread, ..sizes.messages_in_memory }, ..sizes };
        log_refusals(mine, peers, policy);
        Routes {
            world,
            transports: TABLE.iter().map(|entry| (entry.open)(world.rank, sizes.sockets)).collect(),
            places: peers.iter().map(place).collect(),
            sizes,
        }
    }

    /// How the memory of `peer` and mine is shared; `None` where it cannot be.
    pub(super) fn sharing(&self, peer: Rank) -> Option<Sharing> {
        self.transports[self.place(peer)].sharing()
    }

    /// The place of the transport between `peer` and me.
    pub(super) fn place(&self, peer: Rank) -> usize {
        usize::from(self.places[peer.index()])
    }

    /// Which kind it is.
    pub(super) fn kind(&self, peer: Rank) -> TransportKind {
        TABLE[self.place(peer)].kind
    }

    /// The shape of the ring of `need`, the same at both ends.
    pub(super) fn shape(&self, need: &Need) -> Shape {
        let over_sockets = self.transports[self.place(need.peer)].sharing().is_none();
        match need.channel {
            Channel::PointToPoint if over_sockets => self.sizes.messages_over_sockets,
            Channel::PointToPoint => self.sizes.messages_in_memory,
            Channel::Collective(_) => self.sizes.shape,
        }
    }

    /// The transport between `peer` and me.
    pub(super) fn transport(&mut self, peer: Rank) -> &mut dyn Transport {
        let place = self.place(peer);
        &mut *self.transports[place]
    }

    /// An offer for `peer`, behind the code of the transport that this rank has chosen.
    pub(super) fn write_offer(&self, peer: Rank, offer: &[u8]) -> Vec<u8> {
        let mut written = Vec::with_capacity(1 + offer.len());
        written.push(TABLE[self.place(peer)].kind.code());
        written.extend_from_slice(offer);
        written
    }

    /// The offer of `peer`, which must be for the transport that this rank has chosen too.
    pub(super) fn read_offer<'a>(&self, peer: Rank, written: &'a [u8]) -> Result<&'a [u8]> {
        let kind = TABLE[self.place(peer)].kind;
        match written.split_first() {
            Some((code, offer)) if *code == kind.code() && offer.len() <= MOST_OFFER_BYTES => Ok(offer),
            Some((code, _)) if *code != kind.code() => {
                let theirs = TransportKind::from_code(*code).map_or("an unknown transport", TransportKind::name);
                Err(Error::mismatch(format!(
                    "rank {peer} selected {theirs} for a connection where this rank selected {kind}"
                ))
                .about(peer))
            }
            _ => Err(Error::remote(peer, format!("rank {peer} sent a broken offer"))),
        }
    }

    /// Answers peers that connect to this rank, or import its memory. It never blocks.
    ///
    /// # Errors
    /// Of a listener of this rank.
    pub(super) fn serve(&mut self, now: Instant) -> Result<()> {
        self.transports.iter_mut().try_for_each(|transport| transport.serve(now))
    }

    /// The offers that have not been taken. An offer ends with its rank, so a rank waits for its peers to take it.
    pub(super) fn outstanding(&mut self) -> Vec<(usize, u64)> {
        let of = |(place, transport): (usize, &mut Box<dyn Transport>)| {
            transport.outstanding().into_iter().map(move |ticket| (place, ticket))
        };
        self.transports.iter_mut().enumerate().flat_map(of).collect()
    }

    /// Whether all was taken but what was `outstanding` before: that is for peers which may come later, and whoever
    /// offered it serves them.
    pub(super) fn settled_since(&mut self, before: &[(usize, u64)]) -> bool {
        self.outstanding().iter().all(|offer| before.contains(offer))
    }

    /// Lets the transport write its line for a connection that is open.
    pub(super) fn log_open(&mut self, need: &Need) {
        let (me, peer) = (self.world.rank, need.peer);
        let (from, to) = match need.way {
            Way::Send => (me, peer),
            Way::Receive => (peer, me),
        };
        let channel = match need.channel {
            Channel::Collective(number) => format!("{number:02}/0"),
            Channel::PointToPoint => "00/1".to_owned(),
        };
        self.transport(peer).log_connection(me, (peer, need.way), &format!("Channel {channel} : {from} -> {to}"));
    }
}

/// A connection that cannot be set up, most often because `peer` has just died: this side may see that first. What this
/// side has run out of is no fault of the peer.
pub(super) fn unreachable(peer: Rank, error: &Error) -> Error {
    if limits::is_shortage(error) {
        return error.duplicate();
    }
    Error::remote(peer, format!("cannot set up a connection with rank {peer}: {}", error.message()))
}

/// Says for each rank of my host why no better transport connects us.
fn log_refusals(mine: &PeerInfo, peers: &[PeerInfo], policy: Policy) {
    for peer in peers.iter().filter(|peer| peer.host == mine.host && peer.rank != mine.rank) {
        let (me, kind) = (mine.rank, select(mine, peer, policy));
        if kind != TABLE[0].kind {
            crate::log::trace!(Graph @ me, "{me} -> {} by {kind}, not by {}", peer.rank, refusals(mine, peer, policy));
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::numa::ThreadHome;

    #[test]
    fn both_ends_spread_payloads_on_hosts_of_few_ranks_alone() {
        let peer = |rank: u32| {
            let host = u64::from(rank / 9);
            let (rank, process, pid, space, cores, settings, tuning) = (Rank::new(rank), 1, 1, 0, 2, 0, 0);
            let (home, switches) = (ThreadHome::default(), [0; 4]);
            PeerInfo { rank, host, process, pid, space, cores, settings, tuning, home, switches, is_traced: false }
        };
        // Nine ranks on the first host, eight on the second.
        let peers: Vec<PeerInfo> = (0..17).map(peer).collect();
        let spread = Shape { slots: 4, slot_bytes: 8192, spread: 3 };
        let whole = Shape { spread: 1, ..spread };
        let sockets = SocketOptions::default();
        let (shape, scratch_bytes) = (whole, 4096);
        let sizes = Sizes { shape, messages_in_memory: spread, messages_over_sockets: whole, scratch_bytes, sockets };
        for (me, other, expected) in [(0, 8, whole), (8, 0, whole), (9, 16, spread), (16, 9, spread), (0, 16, whole)] {
            let world = World { rank: Rank::new(me), size: 17 };
            let routes = Routes::new(world, &peers, Policy::default(), sizes);
            let need = Need { way: Way::Send, peer: Rank::new(other), channel: Channel::PointToPoint };
            assert_eq!(routes.shape(&need), expected, "{me} to {other}");
        }
    }
}
