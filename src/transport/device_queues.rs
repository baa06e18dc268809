//! Memory of devices between processes: what ranks hand to each other for good, and the queues of connections.
//!
//! A connection on devices is a queue of slots in the receiver's memory, which launches of both ends use; no host moves
//! it. The receiver allocates it and sends an offer over the bootstrap; the sender maps it for the work of its own
//! device, and confirms. As between hosts, either end of a message may come first: it asks the other one, which opens
//! its end in whatever wait it is.
//!
//! A rank whose memory cannot be mapped, on another host, is reached by a wire in place of memory: see `kernel_slots`.

use std::collections::HashMap;

use crate::bootstrap::Bootstrap;
use crate::device::{self, Home, HostRegion, Region, Sharing};
use crate::error::{Error, Result};
use crate::sync::Wait;
use crate::sys::clock;
use crate::transport::connect::{TAG_ASK, tag, unbounded};
use crate::transport::fabric::{Fabric, Served, Setup, unreachable};
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
    open: HashMap<Need, Region>,
    /// Wires that are open; `None` once they were [taken](Fabric::take_far_end).
    wires: HashMap<Need, Option<Box<dyn Wire>>>,
    /// I send: the offer has not come.
    awaited: Vec<Need>,
    /// I send: the offer has come, and the memory is being mapped.
    opening: Vec<(Need, Box<dyn Opening<Imported>>)>,
    /// I send: the offer has come, and the wire is being opened.
    dialing: Vec<(Need, DialedWire)>,
    /// I receive, and the sender has not connected; by the place of the transport and its ticket.
    expected: HashMap<(usize, u64), Need>,
    /// I receive: the sender has not confirmed.
    unconfirmed: Vec<Need>,
}

/// A wire that is being opened.
type DialedWire = Box<dyn Opening<Box<dyn Wire>>>;

/// The bytes of a queue, and how peers map it.
pub type QueueMemory = (usize, Sharing);

impl DeviceQueues {
    fn has(&self, need: &Need) -> bool {
        self.is_open(need)
            || self.awaited.contains(need)
            || self.opening.iter().any(|(opening, _)| opening == need)
            || self.dialing.iter().any(|(dialing, _)| dialing == need)
            || self.expected.values().any(|expected| expected == need)
    }

    fn is_open(&self, need: &Need) -> bool {
        self.open.contains_key(need) || self.wires.contains_key(need)
    }

    fn is_connected(&self, need: &Need) -> bool {
        self.is_open(need) && !self.unconfirmed.contains(need)
    }

    /// A rank that is waited for.
    fn waiting(&self) -> Option<Rank> {
        let opening = self.opening.first().map(|(need, _)| need);
        let under_way = opening.or(self.dialing.first().map(|(need, _)| need)).or(self.awaited.first());
        under_way.or(self.unconfirmed.first()).or(self.expected.values().next()).map(|need| need.peer)
    }
}

impl Fabric {
    /// Whether `peer` can map no memory of this rank, and is reached by wires.
    pub fn is_far(&self, peer: Rank) -> bool {
        peer != self.world.rank && self.transports[self.place(peer)].sharing().is_none()
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

    /// The same for memory of the device `home` that is shared later; queues stay as they were said to be.
    ///
    /// # Errors
    /// As [`Fabric::share_with_processes`].
    pub fn share_window(
        &mut self,
        (mine, home): (&Region, Home),
        peers: &[(Rank, usize)],
        setup: &mut Setup<'_>,
    ) -> Result<Vec<Region>> {
        let takers: Vec<Rank> = peers.iter().map(|(peer, _)| *peer).collect();
        let taken = self.exchange_memory((&wanted(peers), &takers), Some((mine, None)), (TAG_WINDOW, home), setup)?;
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
    pub fn queue(&self, need: &Need) -> Option<&Region> {
        self.queues.open.get(need)
    }

    /// The connection of `need` with a rank that is [far](Fabric::is_far), open; `None` where it was taken before.
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
        let can_open = self.queues.here.is_some() || self.is_far(peer);
        if peer == self.world.rank || !can_open || self.queues.has(&need) {
            return Ok(());
        }
        self.begin_queue(need, (bootstrap, &unbounded()))?;
        self.note_debt();
        Ok(())
    }

    fn begin_queue(&mut self, need: Need, (bootstrap, wait): (&dyn Bootstrap, &Wait)) -> Result<()> {
        if need.way == Way::Send {
            self.queues.awaited.push(need);
            return Ok(());
        }
        let place = self.place(need.peer);
        if self.is_far(need.peer) {
            let listening = self.transports[place].listen(need.peer, self.sizes.shape, bootstrap)?;
            let Expected::Ticket(ticket) = listening.end else {
                return Err(Error::internal("a wire without a ticket"));
            };
            self.queues.expected.insert((place, ticket), need);
            self.queues.unconfirmed.push(need);
            let offer = self.write_offer(need.peer, &listening.offer);
            return bootstrap.send(need.peer, tag(TAG_QUEUE, need.channel), &offer, wait);
        }
        let (home, (bytes, sharing)) = self.place_of_queues()?;
        let memory = device::of(home)?.allocate(bytes, sharing)?;
        let offer = self.transports[place].offer((&memory, None), &[need.peer], bootstrap)?;
        let offer = self.write_offer(need.peer, &offer);
        bootstrap.send(need.peer, tag(TAG_QUEUE, need.channel), &offer, wait)?;
        self.queues.open.insert(need, memory);
        self.queues.unconfirmed.push(need);
        Ok(())
    }

    fn place_of_queues(&self) -> Result<(Home, QueueMemory)> {
        self.queues.here.ok_or_else(|| Error::internal("a queue before this rank has shared memory of its device"))
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
        for need in std::mem::take(&mut self.queues.awaited) {
            let Some(blob) = bootstrap.try_recv(need.peer, tag(TAG_QUEUE, need.channel))? else {
                self.queues.awaited.push(need);
                continue;
            };
            let offer = self.read_offer(need.peer, &blob)?;
            if self.is_far(need.peer) {
                let dialing = self.transport(need.peer).dial(need.peer, offer, bootstrap)?;
                self.queues.dialing.push((need, dialing));
            } else {
                let (home, (bytes, _)) = self.place_of_queues()?;
                let wanted = PeerOffer { owner: need.peer, home, bytes };
                let opening = self.transport(need.peer).import(wanted, offer, bootstrap)?;
                self.queues.opening.push((need, opening));
            }
            moved = true;
        }
        moved |= self.take_dialed(bootstrap)?;
        for (need, mut opening) in std::mem::take(&mut self.queues.opening) {
            match opening.progress().map_err(|error| unreachable(need.peer, &error))? {
                None => self.queues.opening.push((need, opening)),
                Some(imported) => {
                    self.queues.open.insert(need, imported.memory);
                    bootstrap.send(need.peer, tag(TAG_MAPPED, need.channel), &[], &unbounded())?;
                    moved = true;
                }
            }
        }
        for need in std::mem::take(&mut self.queues.unconfirmed) {
            match bootstrap.try_recv(need.peer, tag(TAG_MAPPED, need.channel))? {
                Some(_) => moved = true,
                None => self.queues.unconfirmed.push(need),
            }
        }
        Ok(moved)
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
