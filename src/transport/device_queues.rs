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
use crate::device::{self, Home, HostRegion, Region, Sharing};
use crate::error::{Error, Result};
use crate::sync::Wait;
use crate::sys::clock;
use crate::transport::connect::{ROUND_PEERS, TAG_ASK, tag, unbounded};
use crate::transport::fabric::{Fabric, Served, Setup, unreachable};
use crate::transport::fabric_handles;
use crate::transport::kernel_slots::FarEnd;
use crate::transport::links::{Channel, Need, Way};
use crate::transport::pump::Wire;
use crate::transport::table::{Expected, Imported, Opening, PeerOffer};
use crate::types::Rank;

/// The queues of this rank's connections on its device.
#[derive(Debug, Default)]
pub(super) struct DeviceQueues {
    /// Where this rank works, and how queues are allocated; `None` until it shares memory of a device.
    here: Option<(Home, QueueMemory)>,
    open: HashMap<(Need, QueuePart), Region>,
    /// Wires that are open; `None` once they were [taken](Fabric::take_far_end).
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

    fn has(&self, need: &Need) -> bool {
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

    fn is_connected(&self, need: &Need) -> bool {
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
    fn waiting(&self) -> Option<Rank> {
        let opening = self.opening.first().map(|((need, _), _)| need);
        let [awaited, unconfirmed] =
            [&self.awaited, &self.unconfirmed].map(|needs| needs.first().map(|(need, _)| need));
        let under_way = opening.or(self.dialing.first().map(|(need, _)| need)).or(awaited);
        under_way.or(unconfirmed).or(self.expected.values().next()).map(|need| need.peer)
    }
}

impl Fabric {
    /// Whether `peer` can map no memory of this host, and is reached by wires.
    fn is_wired(&self, peer: Rank) -> bool {
        peer != self.world.rank && self.transports[self.place(peer)].sharing().is_none() && !self.queues.crosses(peer)
    }

    /// Hands `mine`, memory of the device that this rank works on, to `peers`, and maps theirs, of the bytes that stand
    /// beside them, for that device. All peers make the same call. Queues of connections are as `queues` says from now
    /// on.
    ///
    /// # Errors
    /// Of memory, or of a peer that does not come by the deadline.
    pub fn share_with_processes(
        &mut self,
        mine: &Region,
        (peers, queues): (&[(Rank, usize)], QueueMemory),
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Region>> {
        let home = mine.home();
        self.queues.here = Some((home, queues));
        let takers: Vec<Rank> = peers.iter().map(|(peer, _)| *peer).collect();
        let taken = self.exchange_memory((&wanted(peers), &takers), Some((mine, None)), (TAG_SIDE, home), setup)?;
        taken.into_iter().map(|imported| Ok(imported.ok_or_else(own_memory)?.memory)).collect()
    }

    /// The same with `peers` of other hosts, which the queues name as such: after [`Fabric::share_with_processes`]. The
    /// memory must stay until all have mapped it.
    ///
    /// # Errors
    /// Of memory, of a peer that does not come by the deadline, and where a handle does not lead here.
    pub fn share_with_hosts(
        &mut self,
        mine: &Region,
        peers: &[(Rank, usize)],
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Region>> {
        if peers.is_empty() {
            return Ok(Vec::new());
        }
        let offer = fabric_handles::offer(mine)?;
        for (peer, _) in peers {
            setup.send(self, *peer, (TAG_FABRIC_SIDE, &offer))?;
        }
        let mut taken = Vec::with_capacity(peers.len());
        for (owner, bytes) in peers.iter().copied() {
            let theirs =
                setup.recv(self, owner, (TAG_FABRIC_SIDE, "to make this call: its memory is not mapped yet"))?;
            taken.push(fabric_handles::import(PeerOffer { owner, home: mine.home(), bytes }, &theirs)?);
        }
        Ok(taken)
    }

    /// The same for memory that is shared later, if this rank has some, and that of `owners`, for the work of the device
    /// `home`; queues stay as they were said to be.
    ///
    /// # Errors
    /// As [`Fabric::share_with_processes`].
    pub fn share_window(
        &mut self,
        (mine, home): (Option<&Region>, Home),
        (owners, takers): (&[(Rank, usize)], &[Rank]),
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Region>> {
        let mine = mine.map(|mine| (mine, None));
        let taken = self.exchange_memory((&wanted(owners), takers), mine, (TAG_WINDOW, home), setup)?;
        taken.into_iter().map(|imported| Ok(imported.ok_or_else(own_memory)?.memory)).collect()
    }

    /// The same for memory of the host: hands `mine`, if this rank has some, to `takers`, and maps that of `owners`.
    ///
    /// # Errors
    /// As [`Fabric::share_with_processes`].
    pub fn share_of_host(
        &mut self,
        mine: Option<&HostRegion>,
        (owners, takers): (&[(Rank, usize)], &[Rank]),
        setup: &mut Setup<'_>,
    ) -> Result<Vec<HostRegion>> {
        let mine = mine.map(|mine| (mine.as_region(), None));
        let taken = self.exchange_memory((&wanted(owners), takers), mine, (TAG_STAGE, Home::Host), setup)?;
        let on_host = |(imported, (owner, _)): (Option<Imported>, &(Rank, usize))| {
            imported.ok_or_else(own_memory)?.on_host(*owner)
        };
        taken.into_iter().zip(owners).map(on_host).collect()
    }

    /// The queue of a connection that is open.
    pub fn queue(&self, need: &Need) -> Option<ConnectionMemory> {
        let part = |part: QueuePart| self.queues.open.get(&(*need, part)).cloned();
        Some(ConnectionMemory { at_receiver: part(QueuePart::AtReceiver)?, at_sender: part(QueuePart::AtSender) })
    }

    /// The connection of `need` with a rank that is reached by wires, open; `None` where it was taken before.
    pub fn take_far_end(&mut self, need: &Need) -> Option<FarEnd> {
        self.queues.wires.get_mut(need).and_then(Option::take).map(|wire| FarEnd::new(*need, wire))
    }

    /// Opens the queues of `needs` that are not open yet. The peers of each come to the matching need in a call of
    /// theirs, or in a wait: those of messages are asked to.
    ///
    /// # Errors
    /// Of memory, or of a peer that does not come by the deadline.
    pub fn open_queues(&mut self, needs: &[Need], setup: &mut Setup<'_>) -> Result<()> {
        let (before, bootstrap) = (self.outstanding(), setup.bootstrap);
        for need in needs.iter().filter(|need| !self.queues.has(need)).copied().collect::<Vec<_>>() {
            self.begin_queue(need, (bootstrap, setup.wait))?;
            if need.channel == Channel::PointToPoint {
                let theirs = if need.way == Way::Send { ASKS_TO_RECEIVE } else { ASKS_TO_SEND };
                bootstrap.post(need.peer, TAG_ASK, &[theirs], setup.wait)?;
            }
        }
        self.serve_until(setup, |fabric| {
            let moved = fabric.progress_queues(bootstrap)?;
            let done = needs.iter().all(|need| fabric.queues.is_connected(need)) && fabric.settled_since(&before);
            Ok(Served { done, moved, waiting: fabric.queues.waiting() })
        })
    }

    /// Begins to open this rank's end of the messages with `peer` that it asks for by a `word`, unless that has begun
    /// before.
    pub(super) fn open_queue_for(&mut self, peer: Rank, word: u8, bootstrap: &dyn Bootstrap) -> Result<()> {
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
        let can_open = self.queues.here.is_some() || self.is_wired(peer);
        if peer == self.world.rank || !can_open || self.queues.has(&need) {
            return Ok(());
        }
        self.begin_queue(need, (bootstrap, &unbounded()))?;
        self.note_debt();
        Ok(())
    }

    fn begin_queue(&mut self, need: Need, (bootstrap, wait): (&dyn Bootstrap, &Wait)) -> Result<()> {
        let place = self.place(need.peer);
        if self.is_wired(need.peer) {
            if need.way == Way::Send {
                self.queues.awaited.push((need, QueuePart::AtReceiver));
                return Ok(());
            }
            let listening = self.transports[place].listen(need.peer, self.sizes.shape, bootstrap)?;
            let Expected::Ticket(ticket) = listening.end else {
                return Err(Error::internal("a wire without a ticket"));
            };
            self.queues.expected.insert((place, ticket), need);
            self.queues.unconfirmed.push((need, QueuePart::AtReceiver));
            let offer = self.write_offer(need.peer, &listening.offer);
            return bootstrap.send(need.peer, tag(TAG_QUEUE, need.channel), &offer, wait);
        }
        let (home, queues) = self.place_of_queues()?;
        let (home, sharing) = (*home, queues.sharing_with(need.peer));
        for (part, bytes) in queues.parts(need.peer).collect::<Vec<_>>() {
            if !part.is_owners(need.way) {
                self.queues.awaited.push((need, part));
                continue;
            }
            let memory = device::of(home)?.allocate(bytes, sharing)?;
            let offer = if self.queues.crosses(need.peer) {
                fabric_handles::offer(&memory)?
            } else {
                let offer = self.transports[place].offer((&memory, None), &[need.peer], bootstrap)?;
                self.write_offer(need.peer, &offer)
            };
            bootstrap.send(need.peer, tag(part.tags().0, need.channel), &offer, wait)?;
            self.queues.open.insert((need, part), memory);
            self.queues.unconfirmed.push((need, part));
        }
        Ok(())
    }

    fn place_of_queues(&self) -> Result<&(Home, QueueMemory)> {
        let here = self.queues.here.as_ref();
        here.ok_or_else(|| Error::internal("a queue before this rank has shared memory of its device"))
    }

    /// Whether a queue is under way.
    pub(super) fn is_opening_queues(&self) -> bool {
        self.queues.waiting().is_some()
    }

    /// Moves the queues under way on. True where one moved.
    ///
    /// # Errors
    /// Of a peer's offer, or of a peer that has gone.
    pub(super) fn progress_queues(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        if !self.is_opening_queues() {
            return Ok(false);
        }
        self.serve(clock::now())?;
        let mut moved = self.take_accepted()?;
        let offer = |(need, part): (Need, QueuePart)| bootstrap.try_recv(need.peer, tag(part.tags().0, need.channel));
        for (of, blob) in self.queues.take_offered(offer)? {
            self.take_offer(of, &blob, bootstrap)?;
            moved = true;
        }
        moved |= self.take_dialed(bootstrap)?;
        for ((need, part), mut opening) in std::mem::take(&mut self.queues.opening) {
            match opening.progress().map_err(|error| unreachable(need.peer, &error))? {
                None => self.queues.opening.push(((need, part), opening)),
                Some(imported) => {
                    self.take_mapped((need, part), imported.memory, bootstrap)?;
                    moved = true;
                }
            }
        }
        for (need, part) in std::mem::take(&mut self.queues.unconfirmed) {
            match bootstrap.try_recv(need.peer, tag(part.tags().1, need.channel))? {
                Some(_) => moved = true,
                None => self.queues.unconfirmed.push((need, part)),
            }
        }
        Ok(moved)
    }

    /// Begins to open the part, or the wire, that a peer has offered; or maps it at once.
    fn take_offer(&mut self, of: (Need, QueuePart), written: &[u8], bootstrap: &dyn Bootstrap) -> Result<()> {
        let (need, part) = of;
        let peer = need.peer;
        if self.is_wired(peer) {
            let offer = self.read_offer(peer, written)?;
            let dialing = self.transport(peer).dial(peer, offer, bootstrap)?;
            self.queues.dialing.push((need, dialing));
            return Ok(());
        }
        let (home, queues) = self.place_of_queues()?;
        let wanted = PeerOffer { owner: peer, home: *home, bytes: queues.bytes(peer, part)? };
        if self.queues.crosses(peer) {
            let memory = fabric_handles::import(wanted, written).map_err(|error| unreachable(peer, &error))?;
            return self.take_mapped(of, memory, bootstrap);
        }
        let offer = self.read_offer(peer, written)?;
        let opening = self.transport(peer).import(wanted, offer, bootstrap)?;
        self.queues.opening.push((of, opening));
        Ok(())
    }

    /// Takes the peer's part, which is mapped, and confirms.
    fn take_mapped(&mut self, of: (Need, QueuePart), memory: Region, bootstrap: &dyn Bootstrap) -> Result<()> {
        let (need, part) = of;
        self.queues.open.insert(of, memory);
        bootstrap.send(need.peer, tag(part.tags().1, need.channel), &[], &unbounded())
    }

    /// Takes the wires that this rank has opened, and confirms.
    fn take_dialed(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let mut moved = false;
        for (need, mut dialing) in std::mem::take(&mut self.queues.dialing) {
            match dialing.progress().map_err(|error| unreachable(need.peer, &error))? {
                None => self.queues.dialing.push((need, dialing)),
                Some(wire) => {
                    self.queues.wires.insert(need, Some(wire));
                    self.log_open(&need);
                    bootstrap.send(need.peer, tag(TAG_MAPPED, need.channel), &[], &unbounded())?;
                    moved = true;
                }
            }
        }
        Ok(moved)
    }

    /// Takes a wire that a sender has opened.
    pub(super) fn take_wire_of_queue(&mut self, ticket: (usize, u64), wire: Box<dyn Wire>) {
        if let Some(need) = self.queues.expected.remove(&ticket) {
            self.queues.wires.insert(need, Some(wire));
            self.log_open(&need);
        }
    }
}

/// Owners as [`Fabric::exchange_memory`] takes them.
fn wanted(owners: &[(Rank, usize)]) -> Vec<(Rank, Option<usize>)> {
    owners.iter().map(|(owner, bytes)| (*owner, Some(*bytes))).collect()
}

#[cold]
fn own_memory() -> Error {
    Error::internal("a rank shares no memory with itself")
}

/// What a rank asks its peer to do for a message on devices.
const ASKS_TO_RECEIVE: u8 = 1;
const ASKS_TO_SEND: u8 = 2;

const TAG_SIDE: u32 = 0x5248_0000;
const TAG_QUEUE: u32 = 0x5249_0000;
const TAG_STAGE: u32 = 0x524b_0000;
const TAG_MAPPED: u32 = 0x524a_0000;
const TAG_WINDOW: u32 = 0x524c_0000;
const TAG_SLOTS: u32 = 0x524d_0000;
const TAG_SLOTS_MAPPED: u32 = 0x524e_0000;
const TAG_FABRIC_SIDE: u32 = 0x524f_0000;

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
