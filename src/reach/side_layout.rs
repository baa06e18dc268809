//! The layout of what a rank brings on its device, and where it lies for this process.

use crate::device::Region;
use crate::device::lines;
use crate::device::records::{ControlLayout, SlotQueue};
use crate::error::{Error, Result};
use crate::plan::{MOST_CHANNELS, WINDOW_LANES};
use crate::sync::ring::Shape;
use crate::transport::{Channel, ConnectionMemory, Need, QueueBytes, Way};
use crate::types::Rank;

/// The layout of the memory that a rank shares: control words, the words of its sending ends, scratch.
#[derive(Debug, Clone, Copy)]
pub struct SideLayout {
    pub ranks: u32,
}

/// The memory of all ranks, as this rank's device addresses it; 0 where it has no address.
#[derive(Debug)]
pub struct Addresses {
    /// On their devices.
    pub(super) sides: Vec<u64>,
    /// The host's.
    pub(super) stages: Vec<u64>,
}

impl Addresses {
    /// Where the memory of `rank` is that it brings on its device.
    pub fn side(&self, rank: Rank) -> u64 {
        self.sides[rank.index()]
    }
}

impl SideLayout {
    /// The layout of the control words, with which the memory begins.
    pub fn control(self) -> ControlLayout {
        ControlLayout { ranks: self.ranks, lanes: u32::try_from(WINDOW_LANES).unwrap_or(u32::MAX) }
    }

    /// Where a rank keeps the words of the connection on which it sends to `to`.
    pub(super) fn sender(self, to: Rank, channel: Channel) -> u64 {
        self.control().bytes() + (u64::from(to.get()) * CHANNELS + channel_number(channel)) * QUEUE_WORDS
    }

    /// Where the scratch begins.
    pub fn scratch(self) -> u64 {
        self.sender(Rank::new(self.ranks), Channel::PointToPoint).next_multiple_of(PAGE)
    }

    /// This rank's end of a connection in the memory of devices.
    pub fn end(
        self,
        (me, need): (Rank, Need),
        memory: &ConnectionMemory,
        places: &Addresses,
        shape: Shape,
    ) -> SlotQueue {
        let ((from, to), sends) = (ends(me, need), need.way == Way::Send);
        let sender = places.sides[from.index()] + self.sender(to, need.channel);
        let receiver = address(&memory.at_receiver, 0);
        let behind_words = receiver + QUEUE_WORDS;
        let (slots, behind) = match &memory.at_sender {
            Some(at_sender) => (address(at_sender, 0), behind_words),
            None => (behind_words, behind_words + lines::slots_bytes(slots_of(shape))),
        };
        SlotQueue {
            rank: from.get(),
            sends,
            slots,
            headers: slots,
            header_stride: SlotQueue::stride(u64::from(shape.slot_bytes)),
            lines: lines::first(behind),
            count: shape.slots,
            payload: u64::from(shape.slot_bytes),
            tail: receiver,
            head: sender,
            mine: QUEUE_LINE + if sends { sender } else { receiver },
        }
    }

    /// Where this rank counts what it has sent or received by a connection whose slots are in the host's memory: on its
    /// own device, where nothing else is kept for such a connection.
    pub fn own_count(self, need: Need, side: u64) -> u64 {
        let own = side + self.sender(need.peer, need.channel);
        if need.way == Way::Send { own + QUEUE_LINE } else { own }
    }
}

/// Bytes of a rank's stage, which lies behind its scratch of `scratch_bytes`, and where it begins there.
pub fn stage_bytes(scratch_bytes: usize) -> usize {
    scratch_bytes.next_multiple_of(STAGE_GRAIN)
}

/// The number of a channel among the connections of a pair.
pub(super) fn channel_number(channel: Channel) -> u64 {
    match channel {
        Channel::PointToPoint => 0,
        Channel::Collective(number) => 1 + u64::from(number),
    }
}

/// Bytes of a connection's memory: at the receiver its words, then the slots, then the lines. If it `reads`, the slots
/// lie at the sender instead.
pub fn queue_bytes(shape: Shape, reads: bool) -> Result<QueueBytes> {
    let (slots, protocols) = (slots_of(shape), lines::PROTOCOLS);
    Ok(QueueBytes {
        at_receiver: fits(QUEUE_WORDS + lines::connection_bytes(if reads { (0, 0) } else { slots }, protocols))?,
        at_sender: if reads { Some(fits(lines::slots_bytes(slots))?) } else { None },
    })
}

/// How many slots there are, and the bytes of each.
fn slots_of(shape: Shape) -> (u32, u64) {
    (shape.slots, u64::from(shape.slot_bytes))
}

/// The sender and the receiver of the connection of which `me` needs an end.
pub(super) fn ends(me: Rank, need: Need) -> (Rank, Rank) {
    if need.way == Way::Send { (me, need.peer) } else { (need.peer, me) }
}

/// Where `offset` of a region lies in this process.
pub fn address(region: &Region, offset: u64) -> u64 {
    region.base().addr().get() as u64 + offset
}

/// Bytes as this process counts them.
///
/// # Errors
/// `InvalidArgument` where they do not fit its address space.
pub fn fits(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| Error::invalid_argument(format!("{bytes} bytes do not fit the address space")))
}

/// Bytes of a connection's words at each end: the count that the other end raises, and this end's own count, each in a
/// cache line of its own.
pub(super) const QUEUE_WORDS: u64 = 2 * QUEUE_LINE;
const QUEUE_LINE: u64 = 64;
/// The connections from one rank to another: one for each channel of collectives, and one for messages.
const CHANNELS: u64 = MOST_CHANNELS as u64 + 1;
const PAGE: u64 = 4096;
const STAGE_GRAIN: usize = 4096;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::{self, Sharing};

    /// Where the receiver reads, words and lines stay with it; else slots lie between them.
    #[test]
    fn slots_lie_at_the_receiver_or_at_the_sender() {
        let (layout, shape) = (SideLayout { ranks: 2 }, Shape { slots: 8, slot_bytes: 192, spread: 1 });
        let places = Addresses { sides: vec![1 << 30, 2 << 30], stages: vec![0, 0] };
        for reads in [false, true] {
            let bytes = queue_bytes(shape, reads).unwrap();
            let region = |bytes| device::HostMemory.allocate_host(bytes, Sharing::Threads).unwrap().as_region().clone();
            let memory =
                ConnectionMemory { at_receiver: region(bytes.at_receiver), at_sender: bytes.at_sender.map(region) };
            let end = |me: u32, way: Way| {
                let need = Need { peer: Rank::new(1 - me), way, channel: Channel::PointToPoint };
                layout.end((Rank::new(me), need), &memory, &places, shape)
            };
            let (sends, receives) = (end(0, Way::Send), end(1, Way::Receive));
            assert_eq!((sends.slots, sends.lines, sends.tail), (receives.slots, receives.lines, receives.tail));
            let place = |region: &Region, at: u64| {
                Some(at.checked_sub(address(region, 0))?).filter(|at| *at < region.bytes() as u64)
            };
            assert_eq!(place(&memory.at_receiver, sends.tail), Some(0));
            let lines = place(&memory.at_receiver, sends.lines).unwrap();
            let behind_lines = lines + lines::lines_bytes(lines::PROTOCOLS) - 128;
            assert!(sends.lines % 128 == 0 && behind_lines <= memory.at_receiver.bytes() as u64);
            match &memory.at_sender {
                Some(at_sender) => {
                    assert_eq!(place(at_sender, sends.slots), Some(0));
                    assert_eq!(at_sender.bytes() as u64, lines::slots_bytes((8, 192)));
                    assert!(lines < QUEUE_WORDS + 128);
                }
                None => {
                    assert_eq!(place(&memory.at_receiver, sends.slots), Some(QUEUE_WORDS));
                    assert!(lines >= QUEUE_WORDS + lines::slots_bytes((8, 192)));
                }
            }
        }
    }

    #[test]
    fn the_words_of_a_rank_do_not_overlap() {
        let layout = SideLayout { ranks: 3 };
        let last = Channel::Collective(u8::MAX);
        let first = layout.sender(Rank::new(0), Channel::PointToPoint);
        assert_eq!(first, layout.control().bytes());
        assert_eq!(layout.sender(Rank::new(0), last) + QUEUE_WORDS, layout.sender(Rank::new(1), Channel::PointToPoint));
        assert!(layout.sender(Rank::new(2), last) + QUEUE_WORDS <= layout.scratch());
    }
}
