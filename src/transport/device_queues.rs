//! Memory of devices between processes: what ranks hand to each other for good, and the queues of connections.
//!
//! A connection on devices is a queue of slots in the receiver's memory, which launches of both ends use; no host moves
//! it. The receiver allocates it and sends an offer over the bootstrap; the sender maps it for the work of its own
//! device, and confirms. Where the receiver reads from the sender's memory, the slots lie there, and the sender does the
//! same for them ([`QueuePart`]). As between hosts, either end of a message may come first: it asks the other one, which
//! opens its end in whatever wait it is.
//!
//! A rank of another host maps the memory by a fabric handle, if the devices of both hang on the same switches: see
//! `fabric_handles`. Any other one whose memory cannot be mapped is reached by a wire in place of memory: see
//! `kernel_slots`.

use std::collections::HashMap;

use crate::bootstrap::Bootstrap;
use crate::device::{self, Home, Region, Sharing};
use crate::error::{Error, Result};
use crate::sync::Wait;
use crate::transport::connect::ROUND_PEERS;
use crate::transport::fabric_handles;
use crate::transport::kernel_slots::FarEnd;
use crate::transport::links::{Channel, Need, Way};
use crate::transport::pump::Wire;
use crate::transport::routes::{Routes, tag, unbounded, unreachable};
use crate::transport::table::{Expected, Imported, Opening, PeerOffer};
use crate::types::Rank;

/// The queues of this rank's connections on its device.
#[derive(Debug, Default)]
pub(super) struct DeviceQueues {
    /// Where this rank works, and how queues are allocated; `None` until it shares memory of a device.
    pub(super) here: Option<(Home, QueueMemory)>,
    open: HashMap<(Need, QueuePart), Region>,
    /// Wires that are open; `None` once they were [taken](DeviceQueues::take_far_end).
    wires: HashMap<Need, Option<Box<dyn Wire>>>,
    /// The peer's part, or its wire: the offer has not come.
    awaited: Vec<(Need, QueuePart)>,
    /// The peer's part: the offer has come, and the memory is being mapped.
    opening: Vec<OpeningPart>,
    /// I send: the offer has come, and the wire is being opened.
    dialing: Vec<(Need, DialedWire)>,
    /// I receive, and the sender has not connected; by the place of the transport and its ticket.
    expected: HashMap<(usize, u64), Need>,
    /// My part, or my wire: the peer has not confirmed.
    unconfirmed: Vec<(Need, QueuePart)>,
}

/// A part that is being mapped.
type OpeningPart = ((Need, QueuePart), Box<dyn Opening<Imported>>);

/// A wire that is being opened.
type DialedWire = Box<dyn Opening<Box<dyn Wire>>>;

/// A part of the memory of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueuePart {
    /// The receiver's words and lines, and the slots unless they lie at the sender.
    AtReceiver,
    /// The slots.
    AtSender,
}

/// The bytes of a connection's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueBytes {
    /// Of [`QueuePart::AtReceiver`].
    pub at_receiver: usize,
    /// Of [`QueuePart::AtSender`], if there is one.
    pub at_sender: Option<usize>,
}

/// The memory of a connection, as this rank's device has it.
#[derive(Debug, Clone)]
pub struct ConnectionMemory {
    /// [`QueuePart::AtReceiver`].
    pub at_receiver: Region,
    /// [`QueuePart::AtSender`], if there is one.
    pub at_sender: Option<Region>,
}

/// How the memory of connections with other processes is made.
#[derive(Debug, Clone)]
pub struct QueueMemory {
    /// How it leaves its process.
    pub sharing: Sharing,
    /// The bytes of a connection.
    pub usual: QueueBytes,
    /// The bytes of one whose receiver reads from the sender's memory.
    pub with_readers: QueueBytes,
    /// The peers with which connections are such, in both directions.
    pub readers: Vec<Rank>,
    /// The peers of other hosts that map it, and whose memory this rank maps.
    pub crossing: Vec<Rank>,
}

impl QueuePart {
    /// Whether it lies with the rank that has a connection's end of this `way`.
    pub fn is_owners(self, way: Way) -> bool {
        (self == QueuePart::AtReceiver) == (way == Way::Receive)
    }

    /// The tags of its offer and of the confirmation.
    fn tags(self) -> (u32, u32) {
        match self {
            QueuePart::AtReceiver => (TAG_QUEUE, TAG_MAPPED),
            QueuePart::AtSender => (TAG_SLOTS, TAG_SLOTS_MAPPED),
        }
    }
}

impl ConnectionMemory {
    /// All of it.
    pub fn regions(&self) -> impl Iterator<Item = Region> + '_ {
        [Some(&self.at_receiver), self.at_sender.as_ref()].into_iter().flatten().cloned()
    }
}

impl QueueMemory {
    /// How memory for a connection with `peer` leaves its process.
    fn sharing_with(&self, peer: Rank) -> Sharing {
        if self.crossing.contains(&peer) { Sharing::Hosts } else { self.sharing }
    }

    /// The parts of a connection with `peer`, and the bytes of each.
    fn parts(&self, peer: Rank) -> impl Iterator<Item = (QueuePart, usize)> {
        let bytes = if self.readers.contains(&peer) { self.with_readers } else { self.usual };
        let slots = bytes.at_sender.map(|bytes| (QueuePart::AtSender, bytes));
        [Some((QueuePart::AtReceiver, bytes.at_receiver)), slots].into_iter().flatten()
    }

    fn bytes(&self, peer: Rank, part: QueuePart) -> Result<usize> {
        let found = self.parts(peer).find(|(other, _)| *other == part).map(|(_, bytes)| bytes);
        found.ok_or_else(|| Error::internal("slots at a sender where the receiver has them"))
    }
}

impl DeviceQueues {
    /// Whether `peer` is on another host, and maps this rank's memory as this rank maps its.
    fn crosses(&self, peer: Rank) -> bool {
        self.here.as_ref().is_some_and(|(_, queues)| queues.crossing.contains(&peer))
    }

    pub(super) fn has(&self, need: &Need) -> bool {
        let is_of = |(other, _): &(Need, QueuePart)| other == need;
        self.open.keys().any(is_of)
            || self.wires.contains_key(need)
            || self.awaited.iter().any(is_of)
            || self.opening.iter().any(|(opening, _)| is_of(opening))
            || self.dialing.iter().any(|(dialing, _)| dialing == need)
            || self.expected.values().any(|expected| expected == need)
    }

    fn is_open(&self, need: &Need) -> bool {
        let is_whole = |(_, queues): &(Home, QueueMemory)| {
            queues.parts(need.peer).all(|(part, _)| self.open.contains_key(&(*need, part)))
        };
        self.wires.contains_key(need) || self.here.as_ref().is_some_and(is_whole)
    }

    /// Whether the queue of `need` is open at both ends.
    pub(super) fn is_connected(&self, need: &Need) -> bool {
        self.is_open(need) && !self.unconfirmed.iter().any(|(other, _)| other == need)
    }

    /// The awaited parts and wires whose `offer` has come, as many as may be opened now: at most [`ROUND_PEERS`] are under
    /// way, each with a descriptor.
    fn take_offered<O>(
        &mut self,
        mut offer: impl FnMut((Need, QueuePart)) -> Result<Option<O>>,
    ) -> Result<Vec<((Need, QueuePart), O)>> {
        let under_way = self.opening.len() + self.dialing.len();
        let mut offered = Vec::new();
        for of in std::mem::take(&mut self.awaited) {
            let has_room = under_way + offered.len() < ROUND_PEERS;
            match if has_room { offer(of)? } else { None } {
                Some(blob) => offered.push((of, blob)),
                None => self.awaited.push(of),
            }
        }
        Ok(offered)
    }

    /// A rank that is waited for.
    pub(super) fn waiting(&self) -> Option<Rank> {
        let opening = self.opening.first().map(|((need, _), _)| need);
        let [awaited, unconfirmed] =
            [&self.awaited, &self.unconfirmed].map(|needs| needs.first().map(|(need, _)| need));
        let under_way = opening.or(self.dialing.first().map(|(need, _)| need)).or(awaited);
        under_way.or(unconfirmed).or(self.expected.values().next()).map(|need| need.peer)
    }

    /// Whether `peer` can map no memory of this host, and is reached by wires.
    fn is_wired(&self, peer: Rank, routes: &Routes) -> bool {
        peer != routes.world.rank && routes.sharing(peer).is_none() && !self.crosses(peer)
    }

    /// The queue of a connection that is open.
    pub(super) fn queue(&self, need: &Need) -> Option<ConnectionMemory> {
        let part = |part: QueuePart| self.open.get(&(*need, part)).cloned();
        Some(ConnectionMemory { at_receiver: part(QueuePart::AtReceiver)?, at_sender: part(QueuePart::AtSender) })
    }

    /// The connection of `need` with a rank that is reached by wires, open; `None` where it was taken before.
    pub(super) fn take_far_end(&mut self, need: &Need) -> Option<FarEnd> {
        self.wires.get_mut(need).and_then(Option::take).map(|wire| FarEnd::new(*need, wire))
    }

    /// The end of messages with `peer` that it asks for by a `word`; `None` where this rank has it, has begun to open it,
    /// or can open none.
    ///
    /// # Errors
    /// Of an unknown word.
    pub(super) fn asked_end(&self, (peer, word): (Rank, u8), routes: &Routes) -> Result<Option<Need>> {
        let way = match word {
            ASKS_TO_RECEIVE => Way::Receive,
            ASKS_TO_SEND => Way::Send,
            _ => {
                return Err(Error::remote(
                    peer,
                    format!("rank {peer} asked for an unknown kind of connection ({word})"),
                ));
            }
        };
        let need = Need { way, peer, channel: Channel::PointToPoint };
        let can_open = self.here.is_some() || self.is_wired(peer, routes);
        Ok((peer != routes.world.rank && can_open && !self.has(&need)).then_some(need))
    }

    /// Begins to open a queue.
    pub(super) fn begin(
        &mut self,
        need: Need,
        routes: &mut Routes,
        (bootstrap, wait): (&dyn Bootstrap, &Wait),
    ) -> Result<()> {
        let place = routes.place(need.peer);
        if self.is_wired(need.peer, routes) {
            if need.way == Way::Send {
                self.awaited.push((need, QueuePart::AtReceiver));
                return Ok(());
            }
            let listening = routes.transports[place].listen(need.peer, routes.sizes.shape, bootstrap)?;
            let Expected::Ticket(ticket) = listening.end else {
                return Err(Error::internal("a wire without a ticket"));
            };
            self.expected.insert((place, ticket), need);
            self.unconfirmed.push((need, QueuePart::AtReceiver));
            let offer = routes.write_offer(need.peer, &listening.offer);
            return bootstrap.send(need.peer, tag(TAG_QUEUE, need.channel), &offer, wait);
        }
        let (home, queues) = self.place()?;
        let (home, sharing) = (*home, queues.sharing_with(need.peer));
        for (part, bytes) in queues.parts(need.peer).collect::<Vec<_>>() {
            if !part.is_owners(need.way) {
                self.awaited.push((need, part));
                continue;
            }
            let memory = device::of(home)?.allocate(bytes, sharing)?;
            let offer = if self.crosses(need.peer) {
                fabric_handles::offer(&memory)?
            } else {
                let offer = routes.transports[place].offer((&memory, None), &[need.peer], bootstrap)?;
                routes.write_offer(need.peer, &offer)
            };
            bootstrap.send(need.peer, tag(part.tags().0, need.channel), &offer, wait)?;
            self.open.insert((need, part), memory);
            self.unconfirmed.push((need, part));
        }
        Ok(())
    }

    fn place(&self) -> Result<&(Home, QueueMemory)> {
        let here = self.here.as_ref();
        here.ok_or_else(|| Error::internal("a queue before this rank has shared memory of its device"))
    }

    /// Whether a queue is under way.
    pub(super) fn is_opening(&self) -> bool {
        self.waiting().is_some()
    }

    /// Moves the queues under way on. True where one moved.
    ///
    /// # Errors
    /// Of a peer's offer, or of a peer that has gone.
    pub(super) fn progress(&mut self, routes: &mut Routes, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let mut moved = false;
        let offer = |(need, part): (Need, QueuePart)| bootstrap.try_recv(need.peer, tag(part.tags().0, need.channel));
        for (of, blob) in self.take_offered(offer)? {
            self.take_offer(of, &blob, (&mut *routes, bootstrap))?;
            moved = true;
        }
        moved |= self.take_dialed(routes, bootstrap)?;
        for ((need, part), mut opening) in std::mem::take(&mut self.opening) {
            match opening.progress().map_err(|error| unreachable(need.peer, &error))? {
                None => self.opening.push(((need, part), opening)),
                Some(imported) => {
                    self.take_mapped((need, part), imported.memory, bootstrap)?;
                    moved = true;
                }
            }
        }
        for (need, part) in std::mem::take(&mut self.unconfirmed) {
            match bootstrap.try_recv(need.peer, tag(part.tags().1, need.channel))? {
                Some(_) => moved = true,
                None => self.unconfirmed.push((need, part)),
            }
        }
        Ok(moved)
    }

    /// Begins to open the part, or the wire, that a peer has offered; or maps it at once.
    fn take_offer(
        &mut self,
        of: (Need, QueuePart),
        written: &[u8],
        (routes, bootstrap): (&mut Routes, &dyn Bootstrap),
    ) -> Result<()> {
        let (need, part) = of;
        let peer = need.peer;
        if self.is_wired(peer, routes) {
            let offer = routes.read_offer(peer, written)?;
            let dialing = routes.transport(peer).dial(peer, offer, bootstrap)?;
            self.dialing.push((need, dialing));
            return Ok(());
        }
        let (home, queues) = self.place()?;
        let wanted = PeerOffer { owner: peer, home: *home, bytes: queues.bytes(peer, part)? };
        if self.crosses(peer) {
            let memory = fabric_handles::import(wanted, written).map_err(|error| unreachable(peer, &error))?;
            return self.take_mapped(of, memory, bootstrap);
        }
        let offer = routes.read_offer(peer, written)?;
        let opening = routes.transport(peer).import(wanted, offer, bootstrap)?;
        self.opening.push((of, opening));
        Ok(())
    }

    /// Takes the peer's part, which is mapped, and confirms.
    fn take_mapped(&mut self, of: (Need, QueuePart), memory: Region, bootstrap: &dyn Bootstrap) -> Result<()> {
        let (need, part) = of;
        self.open.insert(of, memory);
        bootstrap.send(need.peer, tag(part.tags().1, need.channel), &[], &unbounded())
    }

    /// Takes the wires that this rank has opened, and confirms.
    fn take_dialed(&mut self, routes: &mut Routes, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let mut moved = false;
        for (need, mut dialing) in std::mem::take(&mut self.dialing) {
            match dialing.progress().map_err(|error| unreachable(need.peer, &error))? {
                None => self.dialing.push((need, dialing)),
                Some(wire) => {
                    self.wires.insert(need, Some(wire));
                    routes.log_open(&need);
                    bootstrap.send(need.peer, tag(TAG_MAPPED, need.channel), &[], &unbounded())?;
                    moved = true;
                }
            }
        }
        Ok(moved)
    }

    /// Takes a wire that a sender has opened.
    pub(super) fn take_wire(&mut self, ticket: (usize, u64), wire: Box<dyn Wire>, routes: &mut Routes) {
        if let Some(need) = self.expected.remove(&ticket) {
            self.wires.insert(need, Some(wire));
            routes.log_open(&need);
        }
    }
}

/// What a rank asks its peer to do for a message on devices.
pub(super) const ASKS_TO_RECEIVE: u8 = 1;
pub(super) const ASKS_TO_SEND: u8 = 2;

const TAG_QUEUE: u32 = 0x5249_0000;
const TAG_MAPPED: u32 = 0x524a_0000;
const TAG_SLOTS: u32 = 0x524d_0000;
const TAG_SLOTS_MAPPED: u32 = 0x524e_0000;

#[cfg(test)]
mod tests {
    use super::*;

    /// Memory that never comes.
    #[derive(Debug)]
    struct Never;

    impl Opening<Imported> for Never {
        fn progress(&mut self) -> Result<Option<Imported>> {
            Ok(None)
        }
    }

    impl Opening<Box<dyn Wire>> for Never {
        fn progress(&mut self) -> Result<Option<Box<dyn Wire>>> {
            Ok(None)
        }
    }

    /// Regression: of 500 peers whose offers had come, the memory of all was imported at once.
    #[test]
    fn only_so_many_queues_are_opened_at_once() {
        let need = |peer| Need { way: Way::Send, peer: Rank::new(peer), channel: Channel::PointToPoint };
        let mut queues = DeviceQueues::default();
        queues.awaited.extend((0..500).map(|peer| (need(peer), QueuePart::AtReceiver)));
        let first = queues.take_offered(|_| Ok(Some(()))).unwrap();
        assert_eq!((first.len(), queues.awaited.len()), (ROUND_PEERS, 500 - ROUND_PEERS));
        assert_eq!(first[5].0.0, need(5));
        // Half of them are mapped, half are dialed.
        let (mapped, dialed) = first.split_at(ROUND_PEERS / 2);
        queues.opening.extend(mapped.iter().map(|(of, ())| (*of, Box::new(Never) as Box<dyn Opening<Imported>>)));
        queues.dialing.extend(dialed.iter().map(|((need, _), ())| (*need, Box::new(Never) as DialedWire)));
        let asked = |_| -> Result<Option<()>> { panic!("there is no room for an offer") };
        assert!(queues.take_offered(asked).unwrap().is_empty());
        queues.opening.truncate(queues.opening.len() - 3);
        let next = queues.take_offered(|_| Ok(Some(()))).unwrap();
        assert_eq!(next.iter().map(|((need, _), ())| need.peer.get()).collect::<Vec<_>>(), [128, 129, 130]);
        // Those whose offers have not come stay awaited.
        queues.opening.clear();
        assert!(queues.take_offered(|_| Ok(None::<()>)).unwrap().is_empty());
        assert_eq!(queues.awaited.len(), 500 - ROUND_PEERS - 3);
    }
}
