//! Making rings, a state machine that never blocks.
//!
//! The receiver listens by the pair's transport, and sends the offer that this gives to the sender over the bootstrap.
//! The sender connects by it and confirms over the bootstrap, which ends the set-up on both sides: a rank whose
//! `Fabric::connect` returned knows that its peers can reach it. At most [`ROUND_PEERS`] connections are opened from
//! this side at once.
//!
//! In a collective both ends come by themselves. The receiver of a plain send may be in any other call, and may itself
//! wait in a send: the sender asks it over the bootstrap to open its end ([`Receivers::AreAsked`]), and the receiver
//! does that in whatever wait it is (`Fabric::open_for`, in each slow turn).

use std::collections::HashMap;

use crate::bootstrap::Bootstrap;
use crate::error::Result;
use crate::sync::Wait;
use crate::transport::links::{Links, Need, Way};
use crate::transport::pump::{ReceiveEnd, SendEnd, Wire};
use crate::transport::routes::{Routes, tag, unbounded, unreachable};
use crate::transport::table::{Expected, Opening};
use crate::types::Rank;

/// What the receivers of new connections do meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receivers {
    /// They make the same call, and open their ends in it.
    Come,
    /// They may make any call: each is asked to open its end.
    AreAsked,
}

/// What a peer asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndRequest {
    pub(super) peer: Rank,
    /// The kind of a connection on devices; `None` for one on the host, which the peer sends on.
    pub(super) device: Option<u8>,
}

/// Connections under way.
#[derive(Debug, Default)]
pub(super) struct Connecting {
    /// I send: the offer has not come.
    awaited: Vec<Need>,
    /// I send: the offer has come, and the connection is being opened.
    opening: Vec<(Need, Box<dyn Opening<SendEnd>>)>,
    /// I receive, and the sender has not connected; by the place of the transport and its ticket.
    expected: HashMap<(usize, u64), Need>,
    /// I receive: the sender has not confirmed.
    unconfirmed: Vec<Need>,
    /// I receive, and no call of mine waits for the connection: the sender asked for it. At most one for each rank.
    asked_for: Vec<Need>,
}

impl Connecting {
    /// Whether `need` is under way. A confirmation may come before the sockets: they are still expected then.
    pub(super) fn has(&self, need: &Need) -> bool {
        self.awaited.contains(need)
            || self.unconfirmed.contains(need)
            || self.expected.values().any(|expected| expected == need)
            || self.opening.iter().any(|(opening, _)| opening == need)
    }

    /// A rank that is waited for.
    pub(super) fn waiting(&self) -> Option<Rank> {
        self.peers().next()
    }

    /// How far the connections have come that this side opens.
    pub(super) fn standing(&self) -> impl Iterator<Item = String> {
        self.opening
            .iter()
            .filter_map(|(need, opening)| Some(format!("to rank {}: {}", need.peer, opening.standing()?)))
    }

    /// The ranks that are waited for; some come more than once.
    pub(super) fn peers(&self) -> impl Iterator<Item = Rank> {
        let opening = self.opening.iter().map(|(need, _)| need.peer);
        let others = self.awaited.iter().chain(&self.unconfirmed).chain(self.expected.values());
        opening.chain(others.map(|need| need.peer))
    }

    /// Begins to open the connections of `needs` that are neither open nor under way.
    ///
    /// # Errors
    /// Of memory, or of the bootstrap that carries the offers.
    pub(super) fn begin(
        &mut self,
        needs: &[Need],
        receivers: Receivers,
        (routes, links): (&mut Routes, &mut Links),
        (bootstrap, wait): (&dyn Bootstrap, &Wait),
    ) -> Result<()> {
        for need in needs {
            if links.has(need) || self.has(need) {
                continue;
            }
            match need.way {
                Way::Send => {
                    self.awaited.push(*need);
                    if receivers == Receivers::AreAsked {
                        bootstrap.post(need.peer, TAG_ASK, &[], wait)?;
                    }
                }
                Way::Receive => {
                    self.offer_ring(need, (&mut *routes, &mut *links), (bootstrap, wait))?;
                    self.unconfirmed.push(*need);
                }
            }
        }
        Ok(())
    }

    /// Whether the connection of `need` is open at both ends.
    pub(super) fn is_connected(&self, need: &Need, links: &Links) -> bool {
        links.has(need) && !self.unconfirmed.contains(need)
    }

    /// Notes that a sender asked for the connection of `need`.
    pub(super) fn note_asked(&mut self, need: Need) {
        self.asked_for.push(need);
    }

    /// Whether a connection for which a sender has asked is under way.
    pub(super) fn is_asked_for_any(&self) -> bool {
        !self.asked_for.is_empty()
    }

    /// Forgets those for which senders have asked that are open by now.
    pub(super) fn forget_open(&mut self, links: &Links) {
        let asked_for = std::mem::take(&mut self.asked_for);
        self.asked_for = asked_for.into_iter().filter(|need| !self.is_connected(need, links)).collect();
    }

    /// Whether this side opens connections.
    pub(super) fn is_opening(&self) -> bool {
        !self.opening.is_empty()
    }

    /// Begins to take the offers that have come.
    pub(super) fn collect_offers(&mut self, routes: &mut Routes, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let mut moved = false;
        for need in std::mem::take(&mut self.awaited) {
            let room = self.opening.len() < ROUND_PEERS;
            let offer = if room { bootstrap.try_recv(need.peer, tag(TAG_RING, need.channel))? } else { None };
            let Some(blob) = offer else {
                self.awaited.push(need);
                continue;
            };
            let offer = routes.read_offer(need.peer, &blob)?;
            let shape = routes.shape(&need);
            let opening = routes.transport(need.peer).connect(need.peer, offer, shape, bootstrap)?;
            self.opening.push((need, opening));
            moved = true;
        }
        Ok(moved)
    }

    /// Takes the sending ends that have become open, and confirms.
    pub(super) fn take_open(
        &mut self,
        (routes, links): (&mut Routes, &mut Links),
        bootstrap: &dyn Bootstrap,
    ) -> Result<bool> {
        let mut moved = false;
        for (need, mut opening) in std::mem::take(&mut self.opening) {
            match opening.progress().map_err(|error| unreachable(need.peer, &error))? {
                None => self.opening.push((need, opening)),
                Some(end) => {
                    links.add_sender((need.peer, need.channel), end)?;
                    routes.log_open(&need);
                    bootstrap.send(need.peer, tag(TAG_DONE, need.channel), &[], &unbounded())?;
                    moved = true;
                }
            }
        }
        Ok(moved)
    }

    /// Takes the receiving end whose sender has connected with this ticket of the transport at a place; gives back what
    /// is for a queue on devices.
    pub(super) fn take_accepted(
        &mut self,
        (ticket, wire): ((usize, u64), Box<dyn Wire>),
        (routes, links): (&mut Routes, &mut Links),
    ) -> Result<Option<Box<dyn Wire>>> {
        let Some(need) = self.expected.remove(&ticket) else { return Ok(Some(wire)) };
        let end = ReceiveEnd::over(wire, routes.shape(&need))?;
        links.add_receiver((need.peer, need.channel), end)?;
        routes.log_open(&need);
        Ok(None)
    }

    /// Hears which senders have confirmed. True where one has.
    pub(super) fn hear_confirmations(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let (mut moved, mut open) = (false, Vec::with_capacity(self.unconfirmed.len()));
        for need in std::mem::take(&mut self.unconfirmed) {
            match bootstrap.try_recv(need.peer, tag(TAG_DONE, need.channel))? {
                Some(_) => moved = true,
                None => open.push(need),
            }
        }
        self.unconfirmed = open;
        Ok(moved)
    }

    /// Makes the receiving end of a connection, and sends the offer.
    fn offer_ring(
        &mut self,
        need: &Need,
        (routes, links): (&mut Routes, &mut Links),
        (bootstrap, wait): (&dyn Bootstrap, &Wait),
    ) -> Result<()> {
        let (place, shape) = (routes.place(need.peer), routes.shape(need));
        let listening = routes.transports[place].listen(need.peer, shape, bootstrap)?;
        match listening.end {
            Expected::Open(end) => links.add_receiver((need.peer, need.channel), end)?,
            Expected::Ticket(ticket) => _ = self.expected.insert((place, ticket), *need),
        }
        let offer = routes.write_offer(need.peer, &listening.offer);
        bootstrap.send(need.peer, tag(TAG_RING, need.channel), &offer, wait)
    }
}

/// Peers whose offers are taken at once: of rings, and of queues on devices.
pub(super) const ROUND_PEERS: usize = 128;
const TAG_RING: u32 = 0x5244_0000;
const TAG_DONE: u32 = 0x5245_0000;
/// Asks for the receiving end of a connection for messages.
pub(super) const TAG_ASK: u32 = 0x5247_0000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::links::Channel;

    /// It was offered a second time then, and nobody ever came to that offer: found by a random program between hosts.
    #[test]
    fn a_connection_that_is_confirmed_before_its_sockets_come_is_under_way() {
        let need = Need { way: Way::Receive, peer: Rank::new(1), channel: Channel::PointToPoint };
        let mut connecting = Connecting::default();
        connecting.expected.insert((2, 7), need);
        connecting.unconfirmed.push(need);
        assert!(connecting.has(&need));
        connecting.unconfirmed.clear();
        assert!(connecting.has(&need), "its sockets are expected");
        connecting.expected.clear();
        assert!(!connecting.has(&need));
    }
}
