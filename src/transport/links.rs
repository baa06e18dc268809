//! The rings of a communicator, and the pumps behind those of the network.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::device::StorePolicy;
use crate::error::Result;
use crate::sync::ring::{Receiver, Sender};
use crate::sys::poller;
use crate::transport::net::{ReceivePump, SendPump};
use crate::types::Rank;

/// Which of the connections of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    /// For collectives: the plan's channel.
    Collective(u8),
    /// For send and recv.
    PointToPoint,
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// I receive. Before `Send`, so that sorted needs make offers before they wait for any.
    Receive,
    /// I send.
    Send,
}

/// A connection that a plan needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Need {
    /// Which end.
    pub way: Way,
    /// The other rank.
    pub peer: Rank,
    /// Which of the pair's connections.
    pub channel: Channel,
}

/// The rings that are open.
#[derive(Debug, Default)]
pub struct Links {
    pub(super) senders: BTreeMap<(Rank, Channel), Sender>,
    pub(super) receivers: BTreeMap<(Rank, Channel), Receiver>,
    pub(super) send_pumps: Vec<SendPump>,
    pub(super) receive_pumps: Vec<ReceivePump>,
    /// What was learnt of copies into memory that peers read.
    pub staging: StorePolicy,
}

impl Links {
    /// The sending end to `peer`.
    ///
    /// # Panics
    /// Where it was not connected; executors connect a plan's needs before they run it.
    #[inline]
    pub fn sender(&mut self, peer: Rank, channel: Channel) -> &mut Sender {
        self.senders.get_mut(&(peer, channel)).expect("connected before the plan runs")
    }

    /// The receiving end from `peer`.
    ///
    /// # Panics
    /// Where it was not connected; executors connect a plan's needs before they run it.
    #[inline]
    pub fn receiver(&mut self, peer: Rank, channel: Channel) -> &mut Receiver {
        self.receivers.get_mut(&(peer, channel)).expect("connected before the plan runs")
    }

    /// Both ends, for looking at flags.
    pub fn sender_ref(&self, peer: Rank, channel: Channel) -> Option<&Sender> {
        self.senders.get(&(peer, channel))
    }

    /// Both ends, for looking at flags.
    pub fn receiver_ref(&self, peer: Rank, channel: Channel) -> Option<&Receiver> {
        self.receivers.get(&(peer, channel))
    }

    /// Lets every pump move what it can. True where one did.
    ///
    /// # Errors
    /// Of a socket, naming the peer.
    #[inline]
    pub fn pump(&mut self) -> Result<bool> {
        let mut moved = false;
        for pump in &mut self.send_pumps {
            moved |= pump.progress()?;
        }
        for pump in &mut self.receive_pumps {
            moved |= pump.progress()?;
        }
        Ok(moved)
    }

    /// Whether any connection moves its bytes by a pump.
    pub fn has_pumps(&self) -> bool {
        !self.send_pumps.is_empty() || !self.receive_pumps.is_empty()
    }

    /// Whether every open connection moves its bytes by a pump, so that only sockets can bring news.
    pub fn is_all_pumps(&self) -> bool {
        let rings = self.senders.len() + self.receivers.len();
        rings == self.send_pumps.len() + self.receive_pumps.len()
    }

    /// Whether every pump has handed all that was published to the system.
    pub fn drained(&self) -> bool {
        self.send_pumps.iter().all(SendPump::drained)
    }

    /// Sleeps until a socket is ready, at most `slice`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system cannot wait.
    pub fn rest_on_sockets(&self, slice: Duration) -> Result<()> {
        let sending = self.send_pumps.iter().flat_map(SendPump::interests);
        let receiving = self.receive_pumps.iter().flat_map(ReceivePump::interests);
        let interests: Vec<_> = sending.chain(receiving).collect();
        poller::wait_any(&interests, slice)
    }

    /// Whether the end that `need` names is open.
    pub fn has(&self, need: &Need) -> bool {
        match need.way {
            Way::Receive => self.receivers.contains_key(&(need.peer, need.channel)),
            Way::Send => self.senders.contains_key(&(need.peer, need.channel)),
        }
    }
}
