//! Making rings, a state machine that never blocks.
//!
//! The receiver listens by the pair's transport, and sends the offer that this gives to the sender over the bootstrap.
//! The sender connects by it and confirms over the bootstrap, which ends the set-up on both sides: a rank whose
//! [`Fabric::connect`] returned knows that its peers can reach it. At most [`ROUND_PEERS`] connections are opened from
//! this side at once.
//!
//! In a collective both ends come by themselves. The receiver of a plain send may be in any other call, and may itself
//! wait in a send: the sender asks it over the bootstrap to open its end ([`Receivers::AreAsked`]), and the receiver
//! does that in whatever wait it is ([`Fabric::open_for`], in each slow turn).

use std::collections::HashMap;
use std::time::Duration;

use crate::bootstrap::{Bootstrap, Sources};
use crate::error::Result;
use crate::sync::primitive::Arc;
use crate::sync::{Chime, Wait};
use crate::sys::clock;
use crate::transport::fabric::{Fabric, Served, Setup, unreachable};
use crate::transport::links::{Channel, Need, Way};
use crate::transport::pump::{ReceiveEnd, SendEnd};
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
    peer: Rank,
    /// The kind of a connection on devices; `None` for one on the host, which the peer sends on.
    device: Option<u8>,
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
    fn has(&self, need: &Need) -> bool {
        self.awaited.contains(need)
            || self.unconfirmed.contains(need)
            || self.expected.values().any(|expected| expected == need)
            || self.opening.iter().any(|(opening, _)| opening == need)
    }

    /// A rank that is waited for.
    fn waiting(&self) -> Option<Rank> {
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
}

impl Fabric {
    /// Opens the connections of `needs` that are not open yet. The peers of each need call it with the matching need.
    ///
    /// # Errors
    /// Of memory or sockets, or of a peer that does not come by the deadline.
    pub fn connect(&mut self, needs: &[Need], receivers: Receivers, setup: &mut Setup<'_>) -> Result<()> {
        let before = self.outstanding();
        self.begin_connect(needs, receivers, (setup.bootstrap, setup.wait))?;
        let bootstrap = setup.bootstrap;
        self.serve_until(setup, |fabric| {
            let moved = fabric.progress_connect(bootstrap)?;
            let done = needs.iter().all(|need| fabric.is_connected(need)) && fabric.settled_since(&before);
            Ok(Served { done, moved, waiting: fabric.connecting.waiting() })
        })
    }

    /// Begins to open the connections of `needs` that are neither open nor under way.
    ///
    /// # Errors
    /// Of memory, or of the bootstrap that carries the offers.
    pub fn begin_connect(
        &mut self,
        needs: &[Need],
        receivers: Receivers,
        (bootstrap, wait): (&dyn Bootstrap, &Wait),
    ) -> Result<()> {
        for need in needs {
            if self.links.has(need) || self.connecting.has(need) {
                continue;
            }
            match need.way {
                Way::Send => {
                    self.connecting.awaited.push(*need);
                    if receivers == Receivers::AreAsked {
                        bootstrap.post(need.peer, TAG_ASK, &[], wait)?;
                    }
                }
                Way::Receive => {
                    self.offer_ring(need, bootstrap, wait)?;
                    self.connecting.unconfirmed.push(*need);
                }
            }
        }
        self.note_debt();
        Ok(())
    }

    /// Whether the connection of `need` is open at both ends.
    pub fn is_connected(&self, need: &Need) -> bool {
        self.links.has(need) && !self.connecting.unconfirmed.contains(need)
    }

    /// Whether any connection is under way.
    pub fn is_connecting(&mut self) -> bool {
        self.connecting.waiting().is_some() || !self.outstanding().is_empty()
    }

    /// A rank that waits for this rank's end of a connection.
    pub fn asking(bootstrap: &dyn Bootstrap) -> Option<EndRequest> {
        bootstrap.take_from_any(TAG_ASK).map(|(peer, words)| EndRequest { peer, device: words.first().copied() })
    }

    /// Begins to open this rank's end of the connection for which a peer asks, unless it has begun before. From then on
    /// the rank [owes](Fabric::owes).
    ///
    /// # Errors
    /// As [`Fabric::begin_connect`].
    pub fn open_for(&mut self, ask: EndRequest, bootstrap: &dyn Bootstrap) -> Result<()> {
        let sender = ask.peer;
        if let Some(word) = ask.device {
            return self.open_queue_for(sender, word, bootstrap);
        }
        let need = Need { way: Way::Receive, peer: sender, channel: Channel::PointToPoint };
        if sender == self.world.rank || self.links.has(&need) || self.connecting.has(&need) {
            return Ok(());
        }
        self.connecting.asked_for.push(need);
        self.begin_connect(&[need], Receivers::Come, (bootstrap, &unbounded()))
    }

    /// What may bring work to a thread that takes turns with these connections and finds nothing to do; for the rest
    /// `chime` rings, and the flags of rings rise. `None` where there is work, or something has to be looked at.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where no descriptor is left.
    pub fn sources(&mut self, bootstrap: &dyn Bootstrap, chime: &Arc<Chime>) -> Result<Option<Sources>> {
        if !self.connecting.opening.is_empty() || self.is_opening_queues() {
            return Ok(None);
        }
        let Some(mut sources) = bootstrap.await_news(chime, TAG_ASK)? else { return Ok(None) };
        // Nobody else comes to the listeners, and what nobody looks at would end each sleep at once.
        let serves = self.owes() || self.is_connecting();
        let mut found = Vec::new();
        for transport in self.transports.iter().filter(|_| serves) {
            let Some(descriptors) = transport.sources() else { return Ok(None) };
            found.extend(descriptors);
        }
        let Some(pumps) = self.links.sources()? else { return Ok(None) };
        let more = Sources::of(found.into_iter().chain(pumps), sources.at_most)?;
        sources.descriptors.extend(more.descriptors);
        Ok(Some(sources))
    }

    /// What may let the pumps move; `None` as in [`Fabric::sources`].
    ///
    /// # Errors
    /// As there.
    pub fn sources_of_pumps(&mut self) -> Result<Option<Sources>> {
        let Some(pumps) = self.links.sources()? else { return Ok(None) };
        Sources::of(pumps, Duration::MAX).map(Some)
    }

    /// Moves the connections on for which senders have asked. True where one moved.
    pub(super) fn progress_asked_for(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let moved = self.progress_queues(bootstrap)?;
        if self.connecting.asked_for.is_empty() {
            return Ok(moved);
        }
        let moved = self.progress_connect(bootstrap)? | moved;
        let asked_for = std::mem::take(&mut self.connecting.asked_for);
        self.connecting.asked_for = asked_for.into_iter().filter(|need| !self.is_connected(need)).collect();
        Ok(moved)
    }

    /// Whether a connection for which a sender has asked is under way.
    pub(super) fn is_asked_for_any(&self) -> bool {
        !self.connecting.asked_for.is_empty() || self.is_opening_queues()
    }

    /// Moves the connections under way on. True where one moved.
    ///
    /// # Errors
    /// Of a peer's offer, a socket, or a peer that has gone.
    pub fn progress_connect(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        self.serve(clock::now())?;
        let mut moved = self.collect_offers(bootstrap)?;
        moved |= self.take_open(bootstrap)?;
        moved |= self.take_accepted()?;
        let mut open = Vec::with_capacity(self.connecting.unconfirmed.len());
        for need in std::mem::take(&mut self.connecting.unconfirmed) {
            match bootstrap.try_recv(need.peer, tag(TAG_DONE, need.channel))? {
                Some(_) => moved = true,
                None => open.push(need),
            }
        }
        self.connecting.unconfirmed = open;
        Ok(moved)
    }

    /// Begins to take the offers that have come.
    fn collect_offers(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let mut moved = false;
        for need in std::mem::take(&mut self.connecting.awaited) {
            let room = self.connecting.opening.len() < ROUND_PEERS;
            let offer = if room { bootstrap.try_recv(need.peer, tag(TAG_RING, need.channel))? } else { None };
            let Some(blob) = offer else {
                self.connecting.awaited.push(need);
                continue;
            };
            let offer = self.read_offer(need.peer, &blob)?;
            let shape = self.shape(&need);
            let opening = self.transport(need.peer).connect(need.peer, offer, shape, bootstrap)?;
            self.connecting.opening.push((need, opening));
            moved = true;
        }
        Ok(moved)
    }

    /// Takes the sending ends that have become open, and confirms.
    fn take_open(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let mut moved = false;
        for (need, mut opening) in std::mem::take(&mut self.connecting.opening) {
            match opening.progress().map_err(|error| unreachable(need.peer, &error))? {
                None => self.connecting.opening.push((need, opening)),
                Some(end) => {
                    self.links.add_sender((need.peer, need.channel), end)?;
                    self.log_open(&need);
                    bootstrap.send(need.peer, tag(TAG_DONE, need.channel), &[], &unbounded())?;
                    moved = true;
                }
            }
        }
        Ok(moved)
    }

    /// Takes the receiving ends whose senders have connected: of rings, and of queues on devices.
    pub(super) fn take_accepted(&mut self) -> Result<bool> {
        let mut moved = false;
        for place in 0..self.transports.len() {
            for (ticket, wire) in self.transports[place].accept() {
                moved = true;
                if let Some(need) = self.connecting.expected.remove(&(place, ticket)) {
                    let end = ReceiveEnd::over(wire, self.shape(&need))?;
                    self.links.add_receiver((need.peer, need.channel), end)?;
                    self.log_open(&need);
                } else {
                    self.take_wire_of_queue((place, ticket), wire);
                }
            }
        }
        Ok(moved)
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
        self.transport(peer).log_connection(me, need.way, &format!("Channel {channel} : {from} -> {to}"));
    }

    /// Makes the receiving end of a connection, and sends the offer.
    fn offer_ring(&mut self, need: &Need, bootstrap: &dyn Bootstrap, wait: &Wait) -> Result<()> {
        let (place, shape) = (self.place(need.peer), self.shape(need));
        let listening = self.transports[place].listen(need.peer, shape, bootstrap)?;
        match listening.end {
            Expected::Open(end) => self.links.add_receiver((need.peer, need.channel), end)?,
            Expected::Ticket(ticket) => _ = self.connecting.expected.insert((place, ticket), *need),
        }
        let offer = self.write_offer(need.peer, &listening.offer);
        bootstrap.send(need.peer, tag(TAG_RING, need.channel), &offer, wait)
    }
}

/// For a message of few bytes to a rank from which one has come: it never waits. The deadline is that of whoever drives
/// the set-up.
pub(super) fn unbounded() -> Wait {
    Wait::new(std::time::Duration::MAX, &crate::sync::AbortFlag::new())
}

pub(super) fn tag(purpose: u32, channel: Channel) -> u32 {
    purpose
        | match channel {
            Channel::Collective(number) => u32::from(number),
            Channel::PointToPoint => 1 << 8,
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
