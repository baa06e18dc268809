//! Which connection is meant, which end of it, and which part: the keys by which ranks open and find connections.

use crate::bootstrap::Bootstrap;
use crate::error::Result;
use crate::sync::Wait;
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

/// What the receivers of new connections do meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Receivers {
    /// They make the same call, and open their ends in it.
    Come,
    /// They may make any call: each is asked to open its end.
    AreAsked,
}

/// What a rank asks its peer for: the peer's end of a connection for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndRequest {
    /// Who asks, or is asked.
    pub(super) peer: Rank,
    /// The kind of a connection on devices; `None` for one on the host, which the peer sends on.
    pub(super) device: Option<u8>,
}

/// A part of the memory of a connection on devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum QueuePart {
    /// The receiver's words and lines, and the slots unless they lie at the sender.
    AtReceiver,
    /// The slots.
    AtSender,
}

/// What the two ends of a connection open by one hand-shake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EndPart {
    /// The ring of a connection on the host.
    Ring,
    /// A part of the queue of a connection on devices; the wire in its place is [`QueuePart::AtReceiver`].
    Queue(QueuePart),
}

/// This rank's end of a hand-shake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EndKey {
    pub(super) need: Need,
    pub(super) part: EndPart,
}

impl Channel {
    /// Its place among the connections of a pair.
    pub(super) fn place(self) -> usize {
        match self {
            Channel::PointToPoint => 0,
            Channel::Collective(number) => usize::from(number) + 1,
        }
    }

    /// The tag of the bootstrap's messages of this channel for a `purpose`.
    pub(super) fn tag(self, purpose: u32) -> u32 {
        purpose
            | match self {
                Channel::Collective(number) => u32::from(number),
                Channel::PointToPoint => 1 << 8,
            }
    }
}

impl EndRequest {
    /// Asks the peer.
    ///
    /// # Errors
    /// Of the bootstrap.
    pub(super) fn post(self, bootstrap: &dyn Bootstrap, wait: &Wait) -> Result<()> {
        bootstrap.post(self.peer, TAG_ASK, self.device.as_slice(), wait)
    }

    /// That of a rank that waits for this rank's end.
    pub fn next(bootstrap: &dyn Bootstrap) -> Option<EndRequest> {
        bootstrap.take_from_any(TAG_ASK).map(|(peer, words)| EndRequest { peer, device: words.first().copied() })
    }
}

impl QueuePart {
    /// Whether it lies with the rank that has a connection's end of this `way`.
    pub fn is_owners(self, way: Way) -> bool {
        (self == QueuePart::AtReceiver) == (way == Way::Receive)
    }
}

impl EndKey {
    /// Whether this rank makes what is shared, and offers it.
    pub(super) fn is_mine(self) -> bool {
        match self.part {
            EndPart::Ring => self.need.way == Way::Receive,
            EndPart::Queue(part) => part.is_owners(self.need.way),
        }
    }
}

/// The tag of the bootstrap's messages that ask for an end.
pub(super) const TAG_ASK: u32 = 0x5247_0000;
