//! Ranks whose addresses lead nowhere from here, as behind NAT or a firewall: they are asked to connect to this rank.
//!
//! The request goes along the tree of the graph, whose connections stand since init; each rank passes it on to the
//! next one on the way. Where that one has left, the request goes around the ring of the ranks that are there, as far
//! at once as there are connections. In init there may be no way yet: there the neighbour that awaits a connection
//! opens it itself once its patience is over. Whichever connection proves itself first carries what waits for it.

use std::time::{Duration, Instant};

use super::{AWAITED_PATIENCE, CALL_BACK, ControlPlane, MAX_NEWS_BACKLOG_BYTES, PATIENCE_A_RANK};
use crate::bootstrap::graph::TreePlace;
use crate::log;
use crate::sys::clock;
use crate::types::Rank;
use crate::wire::{Reader, Writer};

/// The tag of a request on its way along the tree.
const BY_TREE: u32 = 0;

/// The tag of a request on its way around the ring. It does not return to the tree, so that each hop brings it nearer.
const BY_RING: u32 = 1;

/// How long after a request to connect it is repeated.
const ASK_AGAIN: Duration = Duration::from_secs(5);

impl ControlPlane {
    /// Asks the ranks to connect that have not proved themselves in time, also where something has taken the
    /// connection: that may be a proxy, or another machine with this address. A request may be lost on its way, as long
    /// as the tree does not stand, so it is repeated.
    pub(super) fn look_for_unreached(&mut self, now: Instant) {
        while self.call_backs.due.first().is_some_and(|(at, _)| now >= *at) {
            let Some((_, peer)) = self.call_backs.due.pop_first() else { break };
            let is_missing = self.routes.contains_key(&peer) && !self.has_link(peer) && self.inbox.gone(peer).is_none();
            if is_missing && self.is_open {
                self.ask_to_call(peer);
                self.call_backs.due.insert((now + ASK_AGAIN, peer));
            }
        }
    }

    /// Whether the address of `peer` takes connections, whatever is behind it.
    fn is_taken(&self, peer: Rank) -> bool {
        let token = self.routes.get(&peer).and_then(|route| route.token);
        token.and_then(|token| self.links.get(&token)).is_some_and(|entry| entry.link.is_made())
    }

    /// Asks `peer`, which this rank has not reached, to connect.
    pub(super) fn ask_to_call(&mut self, peer: Rank) {
        if self.has_link(peer) || !self.is_open {
            return;
        }
        self.call_backs.due.retain(|(_, planned)| *planned != peer);
        if self.call_backs.unreached.insert(peer) {
            let at = self.addresses[peer.index()].as_slice().first();
            let at = at.map_or_else(String::new, |at| format!(" at {at}"));
            log::trace!(Bootstrap @ self.world.rank, "rank {peer} is not reached{at}: it is asked to connect");
        }
        self.pass_on(BY_TREE, (self.world.rank, peer));
    }

    /// Passes on the request of `from` that `to` connect to it, which goes by `way` so far.
    fn pass_on(&mut self, way: u32, (from, to): (Rank, Rank)) {
        let place = TreePlace::new(self.world.rank.get(), self.world.size);
        let next = if self.has_link(to) { Some(to) } else { place.towards(to.get()).map(Rank::new) };
        let by_tree = next.filter(|_| way == BY_TREE).and_then(|next| self.proved_link(next));
        let by_ring = || self.nearest_link(to).map(|token| (BY_RING, token));
        let Some((way, token)) = by_tree.map(|token| (BY_TREE, token)).or_else(by_ring) else { return };
        let mut words = Writer::new();
        words.u32(from.get()).u32(to.get());
        if let Some(entry) = self.links.get_mut(&token).filter(|entry| entry.link.unsent() < MAX_NEWS_BACKLOG_BYTES) {
            entry.link.queue(CALL_BACK, way, words.as_slice());
            self.flush(token);
        }
    }

    /// The connection that leads farthest around the ring towards `to`, and not past it.
    pub(super) fn nearest_link(&self, to: Rank) -> Option<u64> {
        let size = u64::from(self.world.size);
        let left = |rank: Rank| (size + u64::from(to.get()) - u64::from(rank.get())) % size;
        let proved = self.links.iter().filter_map(|(token, entry)| Some((left(entry.link.peer()?), *token)));
        proved.min().filter(|(nearest, _)| *nearest < left(self.world.rank)).map(|(_, token)| token)
    }

    /// A rank has not reached another one, perhaps this one, which connects to it then. False where the words are
    /// broken.
    pub(super) fn hear_call(&mut self, way: u32, payload: &[u8]) -> bool {
        let mut reader = Reader::new(payload, "a request to connect");
        let (Ok(from), Ok(to), Ok(())) = (reader.u32(), reader.u32(), reader.finish()) else { return false };
        let (from, to) = (Rank::new(from), Rank::new(to));
        if way > BY_RING || from == to || from.get() >= self.world.size || to.get() >= self.world.size {
            return false;
        }
        if to != self.world.rank {
            // The ring may lead back by the rank that asked. Its next hop is nearer still; the tree's is where it was.
            if from != self.world.rank || way == BY_RING {
                self.pass_on(way, (from, to));
            }
            return true;
        }
        let is_dialled = self.routes.get(&from).is_some_and(|route| route.token.is_some());
        if self.is_open && self.inbox.gone(from).is_none() && !self.has_link(from) && !is_dialled {
            log::trace!(Bootstrap @ self.world.rank, "rank {from} does not reach this rank: connecting to it");
            self.call(from);
        }
        true
    }

    /// Connects to `peer`, which was to connect to this rank, and cannot.
    pub(in crate::bootstrap::net) fn call(&mut self, peer: Rank) {
        self.routes.entry(peer).or_default().awaited = true;
        self.dial(peer);
    }

    /// Whether this rank connects to `peer` because that one has not reached it.
    pub(in crate::bootstrap::net) fn is_called(&self, peer: Rank) -> bool {
        self.call_backs.called.contains(&peer)
    }

    /// A connection with `peer` that has proved itself.
    pub(super) fn proved_link(&self, peer: Rank) -> Option<u64> {
        self.links.iter().find(|(_, entry)| entry.link.peer() == Some(peer)).map(|(token, _)| *token)
    }

    /// `peer` is connected: a connection with it that this rank has begun, and that has not been proved, is given up.
    /// What waits for it, of which nothing has left, goes by the other one. `peer` does not count the given up one as
    /// this rank's either: it would have to have this rank's proof, which is sent once `peer` has proved itself.
    pub(super) fn leave_vain_dial(&mut self, peer: Rank) {
        self.call_backs.end(peer);
        let has_come = |entry: &super::Entry| entry.dialled.is_none() && entry.link.peer() == Some(peer);
        if self.links.values().any(has_come) {
            self.call_backs.called.remove(&peer);
        }
        let Some(token) = self.routes.get(&peer).and_then(|route| route.token) else { return };
        if self.links.get(&token).is_none_or(|entry| entry.link.peer().is_some()) {
            return;
        }
        self.dialling.remove(&token);
        let Some(entry) = self.links.remove(&token) else { return };
        let route = self.routes.entry(peer).or_default();
        let later = std::mem::replace(&mut route.queued, entry.link.into_frames().unwrap_or_default());
        route.queued.extend(later);
        route.token = None;
    }

    /// Sends what waits for `peer` by a connection that it has opened, if there is one.
    pub(super) fn use_its_link(&mut self, peer: Rank) -> bool {
        let Some(token) = self.proved_link(peer) else { return false };
        let route = self.routes.entry(peer).or_default();
        route.token = Some(token);
        let frames = std::mem::take(&mut route.queued);
        self.links.get_mut(&token).into_iter().for_each(|entry| entry.link.queue_frames(&frames));
        self.flush(token);
        true
    }

    /// Whether `peer`, which refuses connections, may still connect by itself: a neighbour until a moment after its
    /// patience is over, unless this rank is the one that was patient; any other rank that is needed until it may have
    /// heard the request, from ranks that compute or stand still for a while. If it has died, its neighbours tell that
    /// earlier.
    pub(super) fn may_call(&self, peer: Rank, now: Instant) -> bool {
        let Some(route) = self.routes.get(&peer) else { return false };
        let patience = match (self.is_neighbour(peer), route.is_needed) {
            (true, _) => 2 * AWAITED_PATIENCE + PATIENCE_A_RANK.saturating_mul(self.world.size),
            (false, true) => self.rules.handshake_timeout,
            (false, false) => return false,
        };
        let is_within = |since: Instant| now.saturating_duration_since(since) < patience;
        !self.is_called(peer) && route.since.is_some_and(is_within)
    }

    /// Whether `peer` has no address but this rank's own: what refuses connections there is this host's kernel, whose
    /// processes are at the other end, and no machine between the two.
    pub(super) fn is_of_this_host(&self, peer: Rank) -> bool {
        let (own, theirs) = (self.own.seat.address().ip(), self.addresses[peer.index()].as_slice());
        !theirs.is_empty() && theirs.iter().all(|at| at.ip() == own)
    }

    /// What has kept this rank from opening connections.
    pub(in crate::bootstrap::net) fn hindrance(&self) -> Option<String> {
        let words = self.shortage.words(clock::now()).or_else(|| self.absent.words());
        words.or_else(|| self.neither_way())
    }

    /// What was waited for, with [`ControlPlane::hindrance`].
    pub(in crate::bootstrap::net) fn with_hindrance(&self, waited: String) -> String {
        self.hindrance().map_or_else(|| waited.clone(), |words| format!("{waited}; {words}"))
    }

    /// In words, that a rank is reached in neither direction.
    pub(in crate::bootstrap::net) fn neither_way(&self) -> Option<String> {
        let is_missing = |peer: &&Rank| !self.has_link(**peer) && self.inbox.gone(**peer).is_none();
        let peer = self.call_backs.unreached.iter().find(is_missing)?;
        let theirs = self.addresses[peer.index()].as_slice().first()?;
        if self.is_taken(*peer) {
            return Some(format!(
                "{theirs} has taken a connection to rank {peer} and not answered it (is that rank stopped, or has \
                 another machine this address?)"
            ));
        }
        let own = self.own.seat.address();
        Some(format!(
            "this rank does not reach rank {peer} at {theirs}, nor does that one reach this rank at {own} (is there a \
             firewall, or NAT at both?)"
        ))
    }
}
