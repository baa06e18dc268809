//! Making rings, a state machine that never blocks.
//!
//! The receiver owns the ring. It makes the memory, offers it, and sends the offer to the sender over the bootstrap; the sender takes
//! it and confirms over the bootstrap, which ends the set-up on both sides: a rank whose [`Fabric::connect`] returned knows that its peers
//! can reach it. At most [`ROUND_PEERS`] offers are taken at once.

use std::collections::HashMap;

use crate::bootstrap::Bootstrap;
use crate::device::{HostMemory, Sharing};
use crate::error::Result;
use crate::log;
use crate::sync::Wait;
use crate::sync::ring::{Receiver, Sender};
use crate::sys::clock;
use crate::transport::door::{Taken, Taking};
use crate::transport::fabric::{Fabric, Served, Setup, map_taken, unreachable};
use crate::transport::links::{Channel, Need, Way};
use crate::transport::net::{ReceivePump, SendPump};
use crate::types::{Rank, TransportKind};

/// Connections under way.
#[derive(Debug, Default)]
pub(super) struct Connecting {
    /// I send: the offer has not come.
    awaited: Vec<Need>,
    /// I send: the offer is being taken.
    taking: Vec<(Need, Taking)>,
    /// I receive over the network: the sockets have not come; by ticket.
    expected: HashMap<u64, Need>,
    /// I receive: the sender has not confirmed.
    unconfirmed: Vec<Need>,
}

impl Connecting {
    /// Whether `need` is under way. A confirmation may come before the sockets: they are still expected then.
    fn has(&self, need: &Need) -> bool {
        self.awaited.contains(need)
            || self.unconfirmed.contains(need)
            || self.expected.values().any(|expected| expected == need)
            || self.taking.iter().any(|(taking, _)| taking == need)
    }

    /// A rank that is waited for.
    fn waiting(&self) -> Option<Rank> {
        let taken = self.taking.first().map(|(need, _)| need.peer);
        let awaited = || self.awaited.first().map(|need| need.peer);
        taken.or_else(awaited).or_else(|| self.unconfirmed.first().map(|need| need.peer))
    }
}

impl Fabric {
    /// Opens the connections of `needs` that are not open yet. The peers of each need call it with the matching need.
    ///
    /// # Errors
    /// Of memory or sockets, or of a peer that does not come by the deadline.
    pub fn connect(&mut self, needs: &[Need], setup: &mut Setup<'_>) -> Result<()> {
        let before = self.doors.outstanding();
        self.begin_connect(needs, setup.bootstrap, setup.wait)?;
        let bootstrap = setup.bootstrap;
        self.serve_until(setup, |fabric| {
            let moved = fabric.progress_connect(bootstrap)?;
            let done = needs.iter().all(|need| fabric.is_connected(need)) && fabric.doors.settled_since(&before);
            Ok(Served { done, moved, waiting: fabric.connecting.waiting() })
        })
    }

    /// Begins to open the connections of `needs` that are neither open nor under way.
    ///
    /// # Errors
    /// Of memory, or of the bootstrap that carries the offers.
    pub fn begin_connect(&mut self, needs: &[Need], bootstrap: &dyn Bootstrap, wait: &Wait) -> Result<()> {
        for need in needs {
            if self.links.has(need) || self.connecting.has(need) {
                continue;
            }
            match need.way {
                Way::Send => self.connecting.awaited.push(*need),
                Way::Receive => {
                    self.offer_ring(need, bootstrap, wait)?;
                    self.connecting.unconfirmed.push(*need);
                }
            }
        }
        Ok(())
    }

    /// Whether the connection of `need` is open at both ends.
    pub fn is_connected(&self, need: &Need) -> bool {
        self.links.has(need) && !self.connecting.unconfirmed.contains(need)
    }

    /// Whether any connection is under way.
    pub fn is_connecting(&mut self) -> bool {
        self.connecting.waiting().is_some() || !self.connecting.expected.is_empty() || !self.doors.settled()
    }

    /// Moves the connections under way on. True where one moved.
    ///
    /// # Errors
    /// Of a peer's offer, a socket, or a peer that has gone.
    pub fn progress_connect(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        self.doors.serve(clock::now())?;
        let mut moved = self.collect_offers(bootstrap)?;
        moved |= self.take_offers(bootstrap)?;
        for (ticket, sockets) in self.doors.take_ready() {
            let Some(need) = self.connecting.expected.remove(&ticket) else { continue };
            let shape = self.sizes.shape;
            let memory = HostMemory.allocate_host(shape.memory_bytes(), Sharing::Threads)?;
            let pump = ReceivePump::new(need.peer, Sender::new(memory.clone(), shape), sockets);
            self.links.receive_pumps.push(pump);
            self.links.receivers.insert((need.peer, need.channel), Receiver::new(memory, shape));
            self.log_open(&need);
            moved = true;
        }
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
            let room = self.connecting.taking.len() < ROUND_PEERS;
            let offer = if room { bootstrap.try_recv(need.peer, tag(TAG_RING, need.channel))? } else { None };
            let Some(blob) = offer else {
                self.connecting.awaited.push(need);
                continue;
            };
            let taking = self.doors.take(self.kind(need.peer), need.peer, &blob, bootstrap)?;
            self.connecting.taking.push((need, taking));
            moved = true;
        }
        Ok(moved)
    }

    /// Opens the sending ends whose offers have been taken, and confirms.
    fn take_offers(&mut self, bootstrap: &dyn Bootstrap) -> Result<bool> {
        let mut moved = false;
        for (need, mut taking) in std::mem::take(&mut self.connecting.taking) {
            match taking.progress().map_err(|error| unreachable(need.peer, &error))? {
                None => self.connecting.taking.push((need, taking)),
                Some(taken) => {
                    self.open_sender(need, taken)?;
                    // A message of no bytes never waits for its receiver; the deadline is that of whoever drives this.
                    let wait = Wait::new(std::time::Duration::MAX, &crate::sync::AbortFlag::new());
                    bootstrap.send(need.peer, tag(TAG_DONE, need.channel), &[], &wait)?;
                    moved = true;
                }
            }
        }
        Ok(moved)
    }

    fn open_sender(&mut self, need: Need, taken: Taken) -> Result<()> {
        let shape = self.sizes.shape;
        let sender = match taken {
            Taken::Sockets(sockets) => {
                let memory = HostMemory.allocate_host(shape.memory_bytes(), Sharing::Threads)?;
                let pump = SendPump::new(need.peer, Receiver::new(memory.clone(), shape), sockets);
                self.links.send_pumps.push(pump);
                Sender::new(memory, shape)
            }
            other => Sender::new(map_taken(need.peer, other, shape.memory_bytes())?.memory, shape),
        };
        self.links.senders.insert((need.peer, need.channel), sender);
        self.log_open(&need);
        Ok(())
    }

    /// One line for each connection, by the sender; over the network by both, for it is two sets of sockets.
    fn log_open(&self, need: &Need) {
        let (me, peer) = (self.world.rank, need.peer);
        let (from, to, end) = match need.way {
            Way::Send => (me, peer, "send"),
            Way::Receive => (peer, me, "receive"),
        };
        let channel = match need.channel {
            Channel::Collective(number) => format!("{number:02}/0"),
            Channel::PointToPoint => "00/1".to_owned(),
        };
        match self.kind(peer) {
            TransportKind::Local => log::detail!(P2p @ me, "Channel {channel} : {from} -> {to} via P2P/direct pointer"),
            TransportKind::Shm => log::detail!(Shm @ me, "Channel {channel} : {from} -> {to} via SHM/memfd"),
            TransportKind::Net => {
                let sockets = self.sizes.sockets.sockets;
                log::detail!(Net @ me, "Channel {channel} : {from} -> {to} [{end}] via NET/Socket, sockets {sockets}");
            }
        }
    }

    /// Makes the ring of a connection that I receive by, and sends the offer.
    fn offer_ring(&mut self, need: &Need, bootstrap: &dyn Bootstrap, wait: &Wait) -> Result<()> {
        let (kind, bytes) = (self.kind(need.peer), self.sizes.shape.memory_bytes());
        let tag = tag(TAG_RING, need.channel);
        if kind == TransportKind::Net {
            let (ticket, blob) = self.doors.expect_sockets(need.peer, bootstrap)?;
            self.connecting.expected.insert(ticket, *need);
            return bootstrap.send(need.peer, tag, &blob, wait);
        }
        let sharing = if kind == TransportKind::Shm { Sharing::Processes } else { Sharing::Threads };
        let memory = HostMemory.allocate_host(bytes, sharing)?;
        let blob = self.doors.offer_memory(kind, (&memory, None), &[need.peer], bootstrap)?;
        self.links.receivers.insert((need.peer, need.channel), Receiver::new(memory, self.sizes.shape));
        bootstrap.send(need.peer, tag, &blob, wait)
    }
}

fn tag(purpose: u32, channel: Channel) -> u32 {
    purpose
        | match channel {
            Channel::Collective(number) => u32::from(number),
            Channel::PointToPoint => 1 << 8,
        }
}

/// Peers whose offers are taken at once.
const ROUND_PEERS: usize = 128;
const TAG_RING: u32 = 0x5244_0000;
const TAG_DONE: u32 = 0x5245_0000;

#[cfg(test)]
mod tests {
    use super::*;

    /// It was offered a second time then, and nobody ever came to that offer: found by a random program between hosts.
    #[test]
    fn a_connection_that_is_confirmed_before_its_sockets_come_is_under_way() {
        let need = Need { way: Way::Receive, peer: Rank::new(1), channel: Channel::PointToPoint };
        let mut connecting = Connecting::default();
        connecting.expected.insert(7, need);
        connecting.unconfirmed.push(need);
        assert!(connecting.has(&need));
        connecting.unconfirmed.clear();
        assert!(connecting.has(&need), "its sockets are expected");
        connecting.expected.clear();
        assert!(!connecting.has(&need));
    }
}
