//! How ranks go: this one, which says goodbye, and others, of which it hears late or not at all.
//!
//! A rank that leaves says goodbye on all its connections, and its neighbours tell the others. A rank without such a
//! connection may find nobody at the address before it hears why: it waits a while for the news, and does not tell
//! others of a death that it has not seen.
//!
//! A rank that leaves also takes its connections out of the graph. So that news reach everyone however many leave, each
//! rank that knows of one that has left keeps a connection with the next rank that is still there: these make a ring.

use std::time::{Duration, Instant};

use super::{ControlPlane, Entry, GOODBYE, OURSELVES, news_frames};
use crate::bootstrap::graph;
use crate::bootstrap::inbox::Gone;
use crate::bootstrap::net::ABORT_CHECK;
use crate::bootstrap::net::gossip::Gossip;
use crate::bootstrap::net::shared::TakesNotes;
use crate::sync::Deadline;
use crate::sys::clock;
use crate::types::Rank;

/// How long to wait for news of a rank that cannot be reached: goodbyes are collected for a moment at each hop.
const NEWS_PATIENCE: Duration = Duration::from_secs(2);

/// The pause between two checks in a close whether the goodbyes have been delivered.
const DELIVERY_CHECK: Duration = Duration::from_millis(1);

impl TakesNotes for ControlPlane {
    fn take_notes(&mut self, notes: Vec<Vec<u8>>) {
        notes.iter().for_each(|note| self.publish(note));
    }
}

impl ControlPlane {
    /// [`ControlPlane::close`] behind a `note` that says why. It goes to all who are connected once everything has been
    /// sent: a connection whose handshake is not over takes no gossip.
    pub(in crate::bootstrap::net) fn give_up(&mut self, note: &[u8], timeout: Duration) {
        let deadline = Deadline::after(timeout);
        self.send_out(deadline);
        self.publish(note);
        self.close_until(0, deadline);
    }

    /// Waits until everything has been sent, at most `timeout`, then says goodbye and closes all connections.
    pub(in crate::bootstrap::net) fn close(&mut self, word: u64, timeout: Duration) {
        self.close_until(word, Deadline::after(timeout));
    }

    fn close_until(&mut self, word: u64, deadline: Deadline) {
        // Nobody else may have heard of it.
        self.farewell = None;
        self.tell_news();
        if !std::mem::replace(&mut self.is_open, false) {
            return;
        }
        self.word = word;
        // From here on the ranks that stay forward the gossip.
        self.outbox.clear();
        self.send_out(deadline);
        for entry in self.links.values_mut().filter(|entry| entry.link.peer().is_some()) {
            entry.link.queue(GOODBYE, 0, &word.to_le_bytes());
        }
        let tokens: Vec<u64> = self.links.keys().copied().collect();
        for token in &tokens {
            self.flush(*token);
        }
        self.send_out(deadline);
        // A socket that is closed while the peer still sends resets the connection, and undelivered bytes are lost.
        let is_delivered = |entry: &Entry| entry.link.peer().is_none() || entry.link.is_delivered();
        while !self.links.values().all(is_delivered) && !deadline.is_over() {
            if self.drive(DELIVERY_CHECK).is_err() {
                break;
            }
        }
        for entry in self.links.values_mut() {
            entry.link.finish();
        }
        self.links.clear();
        self.routes.clear();
    }

    /// Drives until nothing is left to send to living ranks.
    fn send_out(&mut self, deadline: Deadline) {
        loop {
            let now = clock::now();
            if self.busy().is_none() || deadline.passed(now) || self.drive(deadline.slice(now, ABORT_CHECK)).is_err() {
                return;
            }
        }
    }

    /// Whether this rank has a connection with `peer` from its beginning on.
    pub(super) fn is_neighbour(&self, peer: Rank) -> bool {
        graph::neighbours(self.world.rank, self.world.size).iter().any(|neighbour| neighbour.rank == peer)
    }

    /// Nobody answers for `peer`. A neighbour must be dead; any other rank may have left, and the news be on their way.
    pub(super) fn unreachable(&mut self, peer: Rank, why: String) {
        if self.is_neighbour(peer) {
            return self.lost(peer, why, OURSELVES);
        }
        let now = clock::now();
        if self.routes.get(&peer).is_some_and(|route| route.is_needed) {
            return self.absent.doubt(peer, now + NEWS_PATIENCE, why);
        }
        self.routes.remove(&peer);
        self.absent.skip(peer);
        self.absent.mend_after(now);
    }

    /// Gives up ranks of which no news have come, and looks for a new neighbour if some have left.
    pub(super) fn look_for_absent(&mut self, now: Instant) {
        while let Some((peer, why)) = self.absent.take_due(now) {
            if self.inbox.gone(peer).is_none() && !self.has_link(peer) {
                self.routes.remove(&peer);
                self.inbox.mark_gone(peer, Gone::Died(format!("{why}, and no rank has told that it left")));
            }
        }
        if !self.is_open || !self.absent.take_mending(now) {
            return;
        }
        let (me, size) = (u64::from(self.world.rank.get()), u64::from(self.world.size));
        let others = (1..size).filter_map(|step| u32::try_from((me + step) % size).ok()).map(Rank::new);
        let next =
            others.into_iter().find(|other| self.inbox.gone(*other).is_none() && !self.absent.is_skipped(*other));
        // In init the addresses of most ranks are not known yet.
        let can_dial = |next: &Rank| {
            !self.addresses[next.index()].as_slice().is_empty()
                && !self.has_link(*next)
                && !self.routes.contains_key(next)
        };
        if let Some(next) = next.filter(can_dial) {
            self.dial(next);
        }
    }

    /// Tells a rank that has just proved itself who has gone; and that this rank has, if it has said goodbye already.
    pub(super) fn greet(&mut self, token: u64, peer: Rank) {
        self.absent.found(peer);
        let gone: Vec<Gossip> = self
            .inbox
            .all_gone()
            .filter(|(rank, _)| *rank != peer && !self.absent.is_guessed(*rank))
            .map(|(rank, how)| match how {
                Gone::Died(why) => Gossip::Died(rank, why.clone()),
                Gone::Left(word) => Gossip::Left(rank, *word),
            })
            .collect();
        let frames = news_frames(gone.iter());
        let Some(entry) = self.links.get_mut(&token) else { return };
        entry.link.queue_frames(&frames);
        if !self.is_open {
            entry.link.queue(GOODBYE, 0, &self.word.to_le_bytes());
        }
        self.flush(token);
    }

    /// Keeps a connection that stands and whose handshake is not answered in time, and returns whether it did: the rank
    /// computes, and answers in its next call. Where it may have other addresses, this may be a stranger's.
    pub(super) fn keep_silent(&mut self, token: u64) -> bool {
        let Some(entry) = self.links.get_mut(&token).filter(|entry| entry.link.is_made()) else { return false };
        let addresses = entry.dialled.map_or(0, |peer| self.addresses[peer.index()].as_slice().len());
        if addresses != 1 {
            return false;
        }
        entry.link.handshake_until = None;
        true
    }
}
