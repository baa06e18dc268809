//! Connections between kernels and ranks of other hosts: slots in memory of the host that the device reaches.
//!
//! A kernel works in such a queue as in those between devices ([`SlotQueue`]). The other end is a pump of this process,
//! which sends what the kernel publishes, or puts what comes from the peer into free slots.
//! ```text
//! offset            width        written by     meaning
//! 0                 64           the sender     messages published
//! 64                64           the receiver   messages taken
//! 128 + i*stride    64           the sender     slot i: length, label 3 × u64, rank that sent it
//! 192 + i*stride    slot bytes   the sender     its payload; stride = 64 + slot bytes
//! ```
//! Where a NIC reaches the device's memory (GPUDirect RDMA), payloads lie there, and headers stay where the host has
//! them:
//! ```text
//! in memory of the host             in memory of the device
//! 0            tail, 64   head      64 + i*stride   payload of slot i
//! 128 + i*64   header of slot i
//! ```
//! Who has the slots: a store to a word, with release, hands slots to the other end, which loads the word with acquire.
//! On the device's side these have the scope of the system.

use std::ptr::NonNull;

use crate::device::records::{SLOT_HEADER, SlotQueue};
use crate::device::{DmaBuf, HostRegion, Region};
use crate::error::{Error, Result};
use crate::sync::primitive::{AtomicU64, Ordering};
use crate::sync::ring::{Label, Message, Shape};
use crate::transport::connection::{Need, Way};
use crate::transport::net::request_nic::DeviceReach;
use crate::transport::pump::{DeviceSlots, KernelSink, KernelSource, SlotPlaces, SlotSink, SlotSource, Wire};
use crate::transport::pumps::Pumps;
use crate::types::Rank;

/// The memory of a queue, zeroed at first.
#[derive(Debug, Clone)]
pub struct KernelSlots {
    memory: HostRegion,
    shape: Shape,
    /// Whether payloads lie on the device.
    on_device: bool,
}

/// By which way the NIC of a connection may take the payloads of slots on a device.
#[derive(Debug)]
pub struct PayloadsOnDevice {
    reach: DeviceReach,
    /// Whether what has come must be flushed before a kernel may read it.
    needs_flush: bool,
}

impl PayloadsOnDevice {
    /// By a DMA-BUF, where there is one, or else by the address, if that is a way.
    pub fn new((dma_buf, by_address): (Option<DmaBuf>, bool), needs_flush: bool) -> PayloadsOnDevice {
        PayloadsOnDevice { reach: DeviceReach { dma_buf, by_address }, needs_flush }
    }
}

/// A connection with a rank of another host that is open, and whose slots are still to come.
#[derive(Debug)]
pub struct FarEnd {
    need: Need,
    wire: Box<dyn Wire>,
}

/// The host's end of a queue that kernels fill.
#[derive(Debug)]
pub(super) struct FromKernels {
    slots: KernelSlots,
    /// Messages taken.
    next: u64,
}

/// The host's end of a queue that kernels empty.
#[derive(Debug)]
pub(super) struct ToKernels {
    slots: KernelSlots,
    /// The rank that sends.
    from: Rank,
    /// Messages published.
    next: u64,
}

impl KernelSlots {
    /// Bytes of memory that a queue takes.
    pub fn memory_bytes(shape: Shape) -> usize {
        SLOTS + shape.slots as usize * stride(shape)
    }

    /// The queue in `memory`, which is zeroed.
    ///
    /// # Panics
    /// Where `memory` has less than [`KernelSlots::memory_bytes`].
    pub fn new(memory: HostRegion, shape: Shape) -> KernelSlots {
        assert!(memory.bytes() >= KernelSlots::memory_bytes(shape), "memory made for the shape");
        KernelSlots { memory, shape, on_device: false }
    }

    /// Bytes of the host's memory of a queue whose payloads lie on the device.
    pub fn words_bytes(shape: Shape) -> usize {
        SLOTS + shape.slots as usize * HEADER
    }

    /// Bytes of the device's memory of such a queue.
    pub fn payload_bytes(shape: Shape) -> usize {
        shape.slots as usize * stride(shape)
    }

    /// A queue whose payloads lie on the device, with the rest in `memory`, which is zeroed.
    ///
    /// # Panics
    /// Where `memory` has less than [`KernelSlots::words_bytes`].
    pub fn with_payloads_on_device(memory: HostRegion, shape: Shape) -> KernelSlots {
        assert!(memory.bytes() >= KernelSlots::words_bytes(shape), "memory made for the shape");
        KernelSlots { memory, shape, on_device: true }
    }

    /// The kernel's end of `need`, a connection of rank `me`. Its device finds the memory at `address`, the payloads,
    /// if they lie on it, in that at `payloads`, and at `mine` a word for its own count.
    pub fn kernels_end(
        &self,
        (me, need): (Rank, Need),
        (address, payloads): (u64, Option<u64>),
        mine: u64,
    ) -> SlotQueue {
        let (sends, headers) = (need.way == Way::Send, address + SLOTS as u64);
        SlotQueue {
            rank: if sends { me.get() } else { need.peer.get() },
            sends,
            slots: payloads.unwrap_or(headers),
            headers,
            header_stride: self.header_stride() as u64,
            // None: wires take slots alone.
            lines: 0,
            count: self.shape.slots,
            payload: u64::from(self.shape.slot_bytes),
            tail: address + TAIL as u64,
            head: address + HEAD as u64,
            mine,
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: inside the queue's memory, aligned, zeroed at first, and only used as an atomic word while it lives.
        unsafe { self.memory.at(offset, size_of::<AtomicU64>()).cast().as_ref() }
    }

    fn header_stride(&self) -> usize {
        if self.on_device { HEADER } else { stride(self.shape) }
    }

    fn header(&self, message: u64) -> NonNull<u64> {
        let place = usize::try_from(message % u64::from(self.shape.slots)).expect("below a 32-bit number");
        self.memory.at(SLOTS + place * self.header_stride(), HEADER).cast()
    }

    /// The payload in memory of the host.
    fn payload(&self, message: u64) -> NonNull<u8> {
        assert!(!self.on_device, "payloads on a device are moved by its NIC alone");
        let range = self.places().payload(message, self.shape.slot_bytes as usize);
        self.memory.at(range.start, range.len())
    }

    fn places(&self) -> SlotPlaces<'_> {
        let first = if self.on_device { HEADER } else { SLOTS + HEADER };
        let (count, slot_bytes) = (self.shape.slots, self.shape.slot_bytes as usize);
        SlotPlaces { memory: &self.memory, first, stride: stride(self.shape), count, slot_bytes }
    }

    /// What the kernel has written into the header of a slot that it has handed over.
    fn read_header(&self, message: u64) -> Result<(usize, Label)> {
        let mut words = [0; WORDS];
        for (place, word) in words.iter_mut().enumerate() {
            // SAFETY: inside the header of a slot that the kernel has handed over.
            let at = unsafe { self.header(message).add(place) };
            // SAFETY: as above, aligned; read once.
            *word = unsafe { at.read_volatile() };
        }
        let [bytes, first, second, third, _] = words;
        if bytes > u64::from(self.shape.slot_bytes) {
            return Err(Error::internal(format!("a kernel published {bytes} bytes in a slot of fewer")));
        }
        Ok((usize::try_from(bytes).expect("at most a slot"), [first, second, third]))
    }
}

impl FarEnd {
    pub(super) fn new(need: Need, wire: Box<dyn Wire>) -> FarEnd {
        FarEnd { need, wire }
    }

    /// Has the NIC of the connection take `memory` of a device for the payloads of a queue of this shape.
    ///
    /// # Errors
    /// Why it does not, as a sentence: the payloads then lie in memory of the host.
    pub fn take_device(
        &mut self,
        (memory, shape): (Region, Shape),
        payloads: &PayloadsOnDevice,
    ) -> std::result::Result<(), String> {
        let PayloadsOnDevice { reach, needs_flush } = payloads;
        let (needs_flush, slot_bytes) = (*needs_flush, shape.slot_bytes as usize);
        self.wire.take_device(self.need.way, DeviceSlots { memory, reach, needs_flush, slot_bytes })
    }

    /// Joins the connection with a queue, whose pump is one of `pumps` from now on.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system watches no more descriptors.
    pub fn join(self, slots: KernelSlots, pumps: &mut Pumps) -> Result<()> {
        let FarEnd { need, wire } = self;
        pumps.add(match need.way {
            Way::Send => wire.send_of_kernels(Box::new(FromKernels { slots, next: 0 })),
            Way::Receive => wire.receive_for_kernels(Box::new(ToKernels { slots, from: need.peer, next: 0 })),
        })
    }
}

impl SlotSource for FromKernels {
    /// The kernel claims more bytes than a slot has where something has overwritten the slot.
    fn peek(&mut self) -> Result<Option<Message>> {
        if !self.has_more() {
            return Ok(None);
        }
        let (bytes, label) = self.slots.read_header(self.next)?;
        let payload = self.slots.payload(self.next);
        Ok(Some(Message { payload, bytes, label, is_offer: false }))
    }

    fn release(&mut self) {
        self.next += 1;
        // Pairs with the kernel's acquire: this end has read the slot.
        self.slots.word(HEAD).store(self.next, Ordering::Release);
    }

    fn has_more(&self) -> bool {
        self.published() > self.next
    }
}

impl KernelSource for FromKernels {
    fn published(&self) -> u64 {
        // Pairs with the kernel's release: header and payload are read after it.
        self.slots.word(TAIL).load(Ordering::Acquire)
    }

    fn header(&self, message: u64) -> Result<(usize, Label)> {
        self.slots.read_header(message)
    }

    fn release_until(&mut self, message: u64) {
        self.next = message;
        // As in `release`.
        self.slots.word(HEAD).store(self.next, Ordering::Release);
    }

    fn slots(&self) -> SlotPlaces<'_> {
        self.slots.places()
    }
}

impl SlotSink for ToKernels {
    fn has_credit(&mut self) -> bool {
        self.is_open()
    }

    fn is_open(&self) -> bool {
        self.next < self.open_until()
    }

    fn reserve(&mut self, _: usize) -> Option<NonNull<u8>> {
        self.is_open().then(|| self.slots.payload(self.next))
    }

    fn publish(&mut self, bytes: usize, label: Label) {
        let words = [bytes as u64, label[0], label[1], label[2], u64::from(self.from.get())];
        for (place, word) in words.into_iter().enumerate() {
            // SAFETY: inside the header of a slot that is this end's.
            let at = unsafe { self.slots.header(self.next).add(place) };
            // SAFETY: as above, aligned.
            unsafe { at.write_volatile(word) };
        }
        self.next += 1;
        // Pairs with the kernel's acquire: header and payload are written.
        self.slots.word(TAIL).store(self.next, Ordering::Release);
    }

    fn slot_bytes(&self) -> usize {
        self.slots.shape.slot_bytes as usize
    }

    fn memory(&self) -> HostRegion {
        self.slots.memory.clone()
    }
}

impl KernelSink for ToKernels {
    fn open_until(&self) -> u64 {
        // Pairs with the kernel's release: it has read the slot.
        let taken = self.slots.word(HEAD).load(Ordering::Acquire);
        taken.saturating_add(u64::from(self.slots.shape.slots))
    }

    fn slots(&self) -> SlotPlaces<'_> {
        self.slots.places()
    }
}

fn stride(shape: Shape) -> usize {
    HEADER + shape.slot_bytes as usize
}

const TAIL: usize = 0;
const HEAD: usize = 64;
const SLOTS: usize = 128;
#[expect(clippy::cast_possible_truncation, reason = "64")]
const HEADER: usize = SLOT_HEADER as usize;
/// Words of a header: length, label, rank.
const WORDS: usize = 5;

const _: () = assert!(WORDS * size_of::<u64>() <= HEADER);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::{HostMemory, Sharing};
    use crate::transport::connection::Channel;

    const SHAPE: Shape = Shape { slots: 2, slot_bytes: 64, spread: 1 };

    fn slots() -> KernelSlots {
        let memory = HostMemory.allocate_host(KernelSlots::memory_bytes(SHAPE), Sharing::Threads).unwrap();
        KernelSlots::new(memory, SHAPE)
    }

    /// What one end publishes in the words of [`SlotQueue`], the other end finds, in both directions.
    #[test]
    fn messages_go_round_and_credit_bounds_them() {
        let slots = slots();
        let mut to = ToKernels { slots: slots.clone(), from: Rank::new(7), next: 0 };
        // The same words seen from a kernel that passes all on to the host's other end.
        let mut from = FromKernels { slots, next: 0 };
        for turn in 0..6u64 {
            assert!(from.peek().unwrap().is_none());
            for message in [2 * turn, 2 * turn + 1] {
                let place = to.reserve(1).expect("a free slot");
                // SAFETY: a reserved byte.
                unsafe { place.as_ptr().write(u8::try_from(message).unwrap()) };
                to.publish(1, [message, 8, 9]);
            }
            assert!(to.reserve(1).is_none());
            for message in [2 * turn, 2 * turn + 1] {
                let found = from.peek().unwrap().expect("a message");
                assert_eq!((found.bytes, found.label), (1, [message, 8, 9]));
                // SAFETY: a message of one byte.
                assert_eq!(u64::from(unsafe { found.payload.as_ptr().read() }), message);
                from.release();
            }
        }
    }

    #[test]
    fn a_kernels_end_names_the_words_of_its_queue() {
        let end = |way| {
            let need = Need { way, peer: Rank::new(3), channel: Channel::PointToPoint };
            slots().kernels_end((Rank::new(1), need), (0x1000, None), 0x9000)
        };
        let (sends, receives) = (end(Way::Send), end(Way::Receive));
        assert_eq!((sends.rank, sends.sends, receives.rank, receives.sends), (1, true, 3, false));
        for end in [sends, receives] {
            assert_eq!((end.tail, end.head, end.slots, end.mine), (0x1000, 0x1040, 0x1080, 0x9000));
            assert_eq!((end.count, end.payload), (SHAPE.slots, u64::from(SHAPE.slot_bytes)));
        }
    }

    #[test]
    fn a_length_beyond_a_slot_is_an_error() {
        let slots = slots();
        let mut to = ToKernels { slots: slots.clone(), from: Rank::new(0), next: 0 };
        to.publish(65, [0; 3]);
        assert!(FromKernels { slots, next: 0 }.peek().is_err());
    }
}
