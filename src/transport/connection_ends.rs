//! What a hand-shake opens: rings of the host, and queues on devices, in memory that the peer maps or over a wire.
//!
//! The receiver of a connection owns its memory, or listens; where a device reads from the sender's memory, the sender
//! owns the slots ([`QueuePart::AtSender`](crate::transport::connection::QueuePart)). Offers and words go over the
//! bootstrap.
//!
//! In a collective both ranks come by themselves. The receiver of a plain send may be in any other call, and may itself
//! wait in a send: the sender asks it over the bootstrap to open its end, and the receiver does that in whatever wait
//! it is (`Fabric::open_for`, in each slow turn). On devices either end of a message may come first, and asks the
//! other.

use std::fmt::Debug;
use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::device::{Home, Region};
use crate::error::{Error, Kind, Result};
use crate::sync::ring::{Receiver, Sender, Shape};
use crate::sync::{Deadline, Wait};
use crate::transport::connection::{Channel, EndKey, EndPart, EndRequest, Need, QueuePart, Way};
use crate::transport::device_queues::DeviceQueues;
use crate::transport::fabric_handles;
use crate::transport::links::Links;
use crate::transport::opening::{Expected, HandshakeWord, MadeEnd, OpeningSide, Ticket};
use crate::transport::pump::{ReceiveEnd, SendEnd, Wire};
use crate::transport::routes::{Routes, unreachable};
use crate::transport::table::{
    Dialling, ExpectedWire, Here, Imported, Opening, PeerOffer, Unreached, memory_for_peers, on_host,
};
use crate::types::Rank;

/// This rank's side of all hand-shakes.
#[derive(Debug)]
pub(super) struct ConnectionEnds<'a> {
    pub(super) routes: &'a mut Routes,
    pub(super) links: &'a mut Links,
    pub(super) queues: &'a mut DeviceQueues,
    pub(super) bootstrap: &'a dyn Bootstrap,
    /// Bounds the wait for room where a megabyte that was posted to a peer has not left.
    pub(super) wait: &'a Wait,
}

/// This rank's end of a part of a connection, open.
#[derive(Debug)]
pub(super) enum OpenEnd {
    /// Memory that both ranks reach.
    Memory(Region),
    /// What leads to a rank that shares no memory.
    Wire(Box<dyn Wire>),
}

/// Which connections are opened: those of the host, or those on devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionKind {
    Rings,
    Queues,
}

impl ConnectionEnds<'_> {
    /// The ends of which the connection of `need` consists.
    ///
    /// # Errors
    /// Where this rank has not said how queues are made.
    pub(super) fn keys(&self, need: Need, kind: ConnectionKind) -> Result<Vec<EndKey>> {
        let parts = match kind {
            ConnectionKind::Rings => vec![EndPart::Ring],
            ConnectionKind::Queues => {
                self.queues.parts(need.peer, self.routes)?.into_iter().map(EndPart::Queue).collect()
            }
        };
        Ok(parts.into_iter().map(|part| EndKey { need, part }).collect())
    }

    /// Asks the peer of `need` to open its end, if it may be in another call: the receiver of a message on the host, or
    /// either end of one on devices.
    ///
    /// # Errors
    /// Of the bootstrap.
    pub(super) fn ask(&self, need: Need, kind: ConnectionKind) -> Result<()> {
        let device = match (kind, need.way, need.channel) {
            (ConnectionKind::Rings, Way::Send, _) => None,
            (ConnectionKind::Queues, Way::Send, Channel::PointToPoint) => Some(ASKS_TO_RECEIVE),
            (ConnectionKind::Queues, Way::Receive, Channel::PointToPoint) => Some(ASKS_TO_SEND),
            (ConnectionKind::Rings, Way::Receive, _) | (ConnectionKind::Queues, _, Channel::Collective(_)) => {
                return Ok(());
            }
        };
        EndRequest { peer: need.peer, device }.post(self.bootstrap, self.wait)
    }

    /// Which connection a peer asks for; `None` where this rank can open none.
    ///
    /// # Errors
    /// Of an unknown word.
    pub(super) fn asked(&self, EndRequest { peer, device }: EndRequest) -> Result<Option<(Need, ConnectionKind)>> {
        let (way, kind) = match device {
            None => (Way::Receive, ConnectionKind::Rings),
            Some(ASKS_TO_RECEIVE) => (Way::Receive, ConnectionKind::Queues),
            Some(ASKS_TO_SEND) => (Way::Send, ConnectionKind::Queues),
            Some(word) => {
                let message = format!("rank {peer} asked for an unknown kind of connection ({word})");
                return Err(Error::remote(peer, message));
            }
        };
        let can_open = kind == ConnectionKind::Rings || self.queues.can_open(peer, self.routes);
        let need = Need { way, peer, channel: Channel::PointToPoint };
        Ok((peer != self.routes.world.rank && can_open).then_some((need, kind)))
    }

    /// Whether the peer shares no memory, and is reached by a wire.
    fn is_over_wire(&self, EndKey { need, part }: EndKey) -> bool {
        match part {
            EndPart::Ring => self.routes.sharing(need.peer).is_none(),
            EndPart::Queue(_) => self.queues.is_wired(need.peer, self.routes),
        }
    }

    /// Whether the memory is handed to another host by a fabric handle.
    fn crosses(&self, EndKey { need, part }: EndKey) -> bool {
        part != EndPart::Ring && self.queues.crosses(need.peer)
    }
}

impl OpeningSide for ConnectionEnds<'_> {
    type Key = EndKey;
    type End = OpenEnd;

    fn peer(&self, key: EndKey) -> Rank {
        key.need.peer
    }

    fn owns(&self, key: EndKey) -> bool {
        key.is_mine()
    }

    fn is_open(&self, EndKey { need, part }: EndKey) -> bool {
        match part {
            EndPart::Ring => self.links.has(&need),
            EndPart::Queue(part) => self.queues.has((need, part)),
        }
    }

    fn make(&mut self, key: EndKey) -> Result<MadeEnd<OpenEnd>> {
        let EndKey { need: Need { peer, .. }, part } = key;
        let place = self.routes.place(peer);
        if self.is_over_wire(key) {
            let ExpectedWire { ticket, offer, at } = self.routes.transports[place].listen(peer, self.bootstrap)?;
            let (offer, end) = (self.routes.write_offer(peer, &offer), Expected::Ticket((place, ticket)));
            return Ok(MadeEnd { offer, end, at });
        }
        let memory = match part {
            EndPart::Ring => {
                let sharing = self.routes.sharing(peer).ok_or_else(no_memory)?;
                memory_for_peers(self.routes.shape(&key.need).memory_bytes(), sharing)?.as_region().clone()
            }
            EndPart::Queue(part) => self.queues.allocate(peer, part)?,
        };
        let offer = if self.crosses(key) {
            fabric_handles::offer(&memory)?
        } else {
            let offer = self.routes.transports[place].offer((&memory, None), &[peer], self.bootstrap)?;
            self.routes.write_offer(peer, &offer)
        };
        Ok(MadeEnd { offer, end: Expected::Open(OpenEnd::Memory(memory)), at: None })
    }

    fn take(&mut self, key: EndKey, written: &[u8]) -> Result<Box<dyn Opening<OpenEnd>>> {
        let EndKey { need: Need { peer, channel, way }, part } = key;
        if self.is_over_wire(key) {
            let offer = self.routes.read_offer(peer, written)?;
            let dialling = if self.owns(key) { Dialling::Only } else { Dialling::OrReversed };
            let transport = self.routes.transport(peer);
            let opening = transport.dial((peer, channel, way), (offer, dialling), self.bootstrap)?;
            return Ok(Box::new(WithPeer { peer, opening }));
        }
        let wanted = match part {
            EndPart::Ring => {
                PeerOffer { owner: peer, home: Home::Host, bytes: self.routes.shape(&key.need).memory_bytes() }
            }
            EndPart::Queue(part) => self.queues.wanted(peer, part)?,
        };
        if self.crosses(key) {
            let memory = fabric_handles::import(wanted, written)?;
            return Ok(Box::new(Here(Some(OpenEnd::Memory(memory)))));
        }
        let offer = self.routes.read_offer(peer, written)?;
        let opening = self.routes.transport(peer).import(wanted, offer, self.bootstrap)?;
        Ok(Box::new(WithPeer { peer, opening }))
    }

    fn arrived(&mut self) -> Vec<(Ticket, OpenEnd)> {
        let transports = (0..).zip(&mut self.routes.transports);
        let wires = transports.flat_map(|(place, transport)| {
            transport.accept().into_iter().map(move |(ticket, wire)| ((place, ticket), OpenEnd::Wire(wire)))
        });
        wires.collect()
    }

    fn withdraw(&mut self, (place, ticket): Ticket) {
        if let Some(transport) = self.routes.transports.get_mut(place) {
            transport.withdraw(ticket);
        }
    }

    fn note_reversed(&mut self, key: EndKey) {
        self.routes.transport(key.need.peer).note_reversed(key.need.peer);
    }

    fn keep(&mut self, EndKey { need, part }: EndKey, end: OpenEnd) -> Result<()> {
        let connection = (need.peer, need.channel);
        match (part, end) {
            (EndPart::Ring, end) => {
                let (shape, kind) = (self.routes.shape(&need), self.routes.kind(need.peer));
                match need.way {
                    Way::Send => self.links.add_sender(connection, kind, end.into_sender(need.peer, shape)?)?,
                    Way::Receive => self.links.add_receiver(connection, kind, end.into_receiver(need.peer, shape)?)?,
                }
            }
            // The way of such memory is logged once, for all of a pair's.
            (EndPart::Queue(part), OpenEnd::Memory(memory)) => {
                self.queues.add((need, part), memory);
                return Ok(());
            }
            (EndPart::Queue(_), OpenEnd::Wire(wire)) => self.queues.add_wire(need, wire),
        }
        self.routes.log_open(&need);
        Ok(())
    }

    fn post(&mut self, key: EndKey, word: HandshakeWord, bytes: &[u8]) -> Result<()> {
        self.bootstrap.post(key.need.peer, tag(key, word), bytes, self.wait)
    }

    fn has_left(&mut self, key: EndKey) -> Result<bool> {
        match self.bootstrap.settle(key.need.peer, &self.wait.until(Deadline::within_wait(Duration::ZERO))) {
            Err(error) if error.kind() == Kind::Timeout => Ok(false),
            settled => settled.map(|()| true),
        }
    }

    fn hear(&mut self, key: EndKey, word: HandshakeWord) -> Result<Option<Vec<u8>>> {
        self.bootstrap.try_recv(key.need.peer, tag(key, word))
    }
}

impl OpenEnd {
    fn into_sender(self, peer: Rank, shape: Shape) -> Result<SendEnd> {
        match self {
            OpenEnd::Memory(memory) => Ok(SendEnd { ring: Sender::new(on_host(&memory, peer)?, shape), pump: None }),
            OpenEnd::Wire(wire) => SendEnd::over(wire, shape),
        }
    }

    fn into_receiver(self, peer: Rank, shape: Shape) -> Result<ReceiveEnd> {
        match self {
            OpenEnd::Memory(memory) => {
                Ok(ReceiveEnd { ring: Receiver::new(on_host(&memory, peer)?, shape), pump: None })
            }
            OpenEnd::Wire(wire) => ReceiveEnd::over(wire, shape),
        }
    }
}

impl From<Imported> for OpenEnd {
    fn from(imported: Imported) -> OpenEnd {
        OpenEnd::Memory(imported.memory)
    }
}

impl From<Box<dyn Wire>> for OpenEnd {
    fn from(wire: Box<dyn Wire>) -> OpenEnd {
        OpenEnd::Wire(wire)
    }
}

/// An end that is being opened; its errors name the peer.
#[derive(Debug)]
struct WithPeer<T: Debug> {
    peer: Rank,
    opening: Box<dyn Opening<T>>,
}

impl<T: Debug> Opening<OpenEnd> for WithPeer<T>
where
    OpenEnd: From<T>,
{
    fn progress(&mut self) -> Result<Option<OpenEnd>> {
        let end = self.opening.progress().map_err(|error| unreachable(self.peer, &error))?;
        Ok(end.map(OpenEnd::from))
    }

    fn standing(&self) -> Option<String> {
        self.opening.standing()
    }

    fn unreached(&self) -> Option<Unreached> {
        self.opening.unreached()
    }
}

/// The tag of a word of the hand-shake of `key`.
fn tag(key: EndKey, word: HandshakeWord) -> u32 {
    let (offer, answer) = match key.part {
        EndPart::Ring => (TAG_RING, TAG_RING_ANSWER),
        EndPart::Queue(QueuePart::AtReceiver) => (TAG_QUEUE, TAG_QUEUE_ANSWER),
        EndPart::Queue(QueuePart::AtSender) => (TAG_SLOTS, TAG_SLOTS_ANSWER),
    };
    key.need.channel.tag(match word {
        HandshakeWord::Offer => offer,
        HandshakeWord::Answer => answer,
    })
}

#[cold]
fn no_memory() -> Error {
    Error::internal("memory for a rank that shares none")
}

/// What a rank asks its peer to do for a message on devices.
const ASKS_TO_RECEIVE: u8 = 1;
const ASKS_TO_SEND: u8 = 2;

const TAG_RING: u32 = 0x5244_0000;
const TAG_RING_ANSWER: u32 = 0x5245_0000;
const TAG_QUEUE: u32 = 0x5249_0000;
const TAG_QUEUE_ANSWER: u32 = 0x524a_0000;
const TAG_SLOTS: u32 = 0x524d_0000;
const TAG_SLOTS_ANSWER: u32 = 0x524e_0000;
