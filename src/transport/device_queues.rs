//! Queues of connections on devices: where this rank works, and what of them is open.
//!
//! A connection on devices is a queue of slots in the receiver's memory, which launches of both ends use; no host moves
//! it. The receiver allocates it, and the sender maps it for the work of its own device. Where the receiver reads from
//! the sender's memory, the slots lie there ([`QueuePart`]): each rank maps the other's part.
//!
//! A rank of another host maps the memory by a fabric handle, if the devices of both hang on the same switches: see
//! `fabric_handles`. Any other one whose memory cannot be mapped is reached by a wire in place of memory: see
//! `kernel_slots`.

use std::collections::HashMap;

use crate::device::{self, Home, Region, Sharing};
use crate::error::{Error, Result};
use crate::transport::connection::{EndKey, EndPart, Need, QueuePart};
use crate::transport::kernel_slots::FarEnd;
use crate::transport::pump::Wire;
use crate::transport::routes::Routes;
use crate::transport::table::PeerOffer;
use crate::types::Rank;

/// The queues of this rank's connections on its device.
#[derive(Debug, Default)]
pub(super) struct DeviceQueues {
    /// Where this rank works, and how queues are allocated; `None` until it shares memory of a device.
    pub(super) here: Option<(Home, QueueMemory)>,
    open: HashMap<(Need, QueuePart), Region>,
    /// Wires that are open; `None` once they were [taken](DeviceQueues::take_far_end).
    wires: HashMap<Need, Option<Box<dyn Wire>>>,
}

impl DeviceQueues {
    /// Bytes of those that this rank has allocated.
    pub(super) fn own_bytes(&self) -> usize {
        let is_mine = |(need, part): (Need, QueuePart)| EndKey { need, part: EndPart::Queue(part) }.is_mine();
        self.open.iter().filter(|(key, _)| is_mine(**key)).map(|(_, memory)| memory.bytes()).sum()
    }
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
    pub(super) fn crosses(&self, peer: Rank) -> bool {
        self.here.as_ref().is_some_and(|(_, queues)| queues.crossing.contains(&peer))
    }

    /// Whether `peer` can map no memory of this host, and is reached by wires.
    pub(super) fn is_wired(&self, peer: Rank, routes: &Routes) -> bool {
        peer != routes.world.rank && routes.sharing(peer).is_none() && !self.crosses(peer)
    }

    /// Whether this rank can open a connection with `peer`.
    pub(super) fn can_open(&self, peer: Rank, routes: &Routes) -> bool {
        self.here.is_some() || self.is_wired(peer, routes)
    }

    /// The parts of which a connection with `peer` consists; a wire is one at the receiver.
    ///
    /// # Errors
    /// Where this rank has shared no memory of its device.
    pub(super) fn parts(&self, peer: Rank, routes: &Routes) -> Result<Vec<QueuePart>> {
        if self.is_wired(peer, routes) {
            return Ok(vec![QueuePart::AtReceiver]);
        }
        Ok(self.place()?.1.parts(peer).map(|(part, _)| part).collect())
    }

    /// Memory for this rank's part of a connection with `peer`.
    ///
    /// # Errors
    /// Of the device.
    pub(super) fn allocate(&self, peer: Rank, part: QueuePart) -> Result<Region> {
        let (home, queues) = self.place()?;
        device::of(*home)?.allocate(queues.bytes(peer, part)?, queues.sharing_with(peer))
    }

    /// The part of `peer`, as this rank's device maps it.
    ///
    /// # Errors
    /// As [`DeviceQueues::parts`], and of a part that the connection does not have.
    pub(super) fn wanted(&self, peer: Rank, part: QueuePart) -> Result<PeerOffer> {
        let (home, queues) = self.place()?;
        Ok(PeerOffer { owner: peer, home: *home, bytes: queues.bytes(peer, part)? })
    }

    fn place(&self) -> Result<&(Home, QueueMemory)> {
        let here = self.here.as_ref();
        here.ok_or_else(|| Error::internal("a queue before this rank has shared memory of its device"))
    }

    /// Whether this rank has a part, or the wire in its place.
    pub(super) fn has(&self, of: (Need, QueuePart)) -> bool {
        self.open.contains_key(&of) || self.wires.contains_key(&of.0)
    }

    pub(super) fn add(&mut self, of: (Need, QueuePart), memory: Region) {
        self.open.insert(of, memory);
    }

    pub(super) fn add_wire(&mut self, need: Need, wire: Box<dyn Wire>) {
        self.wires.insert(need, Some(wire));
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
}
