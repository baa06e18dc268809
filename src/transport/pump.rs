//! Pumps: what moves the bytes of a connection whose ends do not share memory.
//!
//! A pump stands between a ring and the outside. Whoever waits calls it by way of [`super::Links`], which asks first
//! what the pump [waits for](Pump::waits), so that an idle connection costs no system call.

use std::fmt::Debug;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Instant;

use crate::device::{HostMemory, HostRegion, Region, Sharing};
use crate::error::Result;
use crate::sync::primitive::Arc;
use crate::sync::ring::{Label, Message, Receiver, Sender, Shape};
use crate::sys::poller::Interest;
use crate::transport::connection::Way;
use crate::transport::net::request_nic::DeviceReach;
use crate::transport::nic_hold::NicHold;

/// What a pump needs before it can move anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// Nothing: it can move now, or nothing but trying tells. A pump without descriptors says so while it has work.
    Nothing,
    /// One of its descriptors to become ready: the last `progress` has found nothing more there. Never said of a
    /// descriptor that it has not tried, even if the ring was what it waited for when it returned.
    Descriptor,
    /// The executor at its ring: to publish a message, or to release a slot.
    Ring,
}

/// Moves the bytes of one end of a connection.
pub(super) trait Pump: Debug + Send {
    /// Sends what can go without a look at what has come, which is what others of this turn begin with. True where
    /// anything went.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    fn begin(&mut self) -> Result<bool> {
        Ok(false)
    }

    /// Moves what it can, without blocking. True where anything moved. It returns only when it waits for something.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    fn progress(&mut self) -> Result<bool>;

    /// What it waits for.
    fn waits(&self) -> Waits;

    /// The descriptors that it waits for, the same during its life. A pump without any is asked on every turn.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)>;

    /// What a thread may sleep on that waits for a pump without descriptors.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    fn sleep(&mut self) -> Result<PumpSleep> {
        Ok(PumpSleep::Ask)
    }

    /// Looks now and then, in a wait, whether what was sent is answered at all.
    ///
    /// # Errors
    /// Where it is not, of the connection, naming the peer.
    fn look(&mut self, _now: Instant) -> Result<()> {
        Ok(())
    }

    /// Whether all that was published has been handed to the system.
    fn drained(&self) -> bool;

    /// Ends the connection in peace: says what the peer has to know, without blocking. True once the peer has all that
    /// was sent, or nobody will tell. Where the system delivers what it was handed, nothing is to be done.
    fn part(&mut self) -> bool {
        true
    }

    /// Hands a message to the system straight from the caller's memory, past the ring, where nothing is left to send
    /// before it. What the system does not take now is copied to `slot`, which the caller then publishes.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// `from` is good for reads of the message's bytes, and `slot` was reserved for them in the ring that the pump
    /// empties; they do not overlap.
    unsafe fn pass(&mut self, from: NonNull<u8>, slot: NonNull<u8>, message: (usize, Label)) -> Result<Passed> {
        let _ = (from, slot, message);
        Ok(Passed::Nothing)
    }

    /// Whether long messages go straight between their places at both ends, and how.
    fn straight(&self) -> StraightWay {
        StraightWay::default()
    }

    /// Lends a message to the NIC that is [long enough](StraightWay), and is not copied: it stays as it is until
    /// the answer [is over](NicHold::is_over), which [`Pump::progress`] sees to. `None`: not now; the same is to be
    /// asked again.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// `from` is good for reads of the message's bytes as long as the answer is kept.
    unsafe fn hand_over(&mut self, from: NonNull<u8>, message: (usize, Label)) -> Result<Option<NicHold>> {
        let _ = (from, message);
        Ok(None)
    }

    /// The same for a message that travels in pieces of `piece` bytes, the last of which is shorter: as many of them as
    /// the system takes by one call. How many bytes have been passed, whole pieces, and what has become of the last of
    /// them: `slot` is for the one that was taken in part.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// As [`Pump::pass`]; the slot was reserved for `piece` bytes.
    unsafe fn pass_pieces(
        &mut self,
        from: NonNull<u8>,
        slot: NonNull<u8>,
        message: InPieces,
    ) -> Result<(usize, Passed)> {
        let _ = (from, slot, message);
        Ok((0, Passed::Nothing))
    }

    /// Reads the next message straight into the caller's memory, past the ring, from which the caller has taken all
    /// messages. From the first call on, [`Pump::progress`] leaves the connection to these calls, until the message has
    /// come whole or another comes in its place. A call that gives up in between has ended its communicator. Where the
    /// NIC writes there, what it leaves in `hold` is kept until the message has come whole.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// `into` is good for writes of the message's bytes, for as long as what was left in `hold` is kept.
    unsafe fn take(
        &mut self,
        into: NonNull<u8>,
        expected: (usize, Label),
        hold: &mut Option<NicHold>,
    ) -> Result<Taken> {
        let _ = (into, expected, hold);
        Ok(Taken::ByRing)
    }

    /// Whether [`Pump::take`] has begun to wait for a message.
    fn is_awaited(&self) -> bool {
        false
    }
}

/// What a thread may sleep on that waits for a pump without descriptors.
#[derive(Debug)]
pub(super) enum PumpSleep {
    /// Nothing: it is asked again and again.
    Ask,
    /// Something has moved: it is asked at once.
    Moved,
    /// A descriptor of its NIC, readable when the NIC has something for this or another pump, unless another thread has
    /// taken that from it since.
    On(Arc<OwnedFd>),
}

/// Which messages of a program's go straight, from memory that it lends, into memory that it lends; both ends know
/// that.
///
/// Messages of these sizes are [handed over](Pump::hand_over), and those that their ring does not hold go as a whole:
/// the receiver's ring has a message of no bytes with their label before they can be taken.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct StraightWay(pub(super) Range<usize>);

/// A message, or what is left of one, that travels in pieces.
#[derive(Debug, Clone, Copy)]
pub(super) struct InPieces {
    pub(super) bytes: usize,
    pub(super) piece: usize,
    /// The label of each piece.
    pub(super) label: Label,
}

/// What has become of a message that was handed to [`Pump::pass`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Passed {
    /// Nothing: it goes by the ring.
    Nothing,
    /// The system has it.
    Whole,
    /// The rest lies in the slot, which the caller publishes.
    Partly,
}

/// What has become of a message that [`Pump::take`] waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// What comes next comes by the ring.
    ByRing,
    /// It has not come, or not to its end. True where this call has read something.
    Open(bool),
    /// It lies in the caller's memory.
    Whole,
}

/// The sending end of a connection, open.
#[derive(Debug)]
pub(super) struct SendEnd {
    pub(super) ring: Sender,
    pub(super) pump: Option<Box<dyn Pump>>,
}

/// The receiving end of a connection, open.
#[derive(Debug)]
pub(super) struct ReceiveEnd {
    pub(super) ring: Receiver,
    pub(super) pump: Option<Box<dyn Pump>>,
}

/// What carries the messages of a connection between ranks that share no memory: sockets that are connected.
pub(super) trait Wire: Debug + Send {
    /// The pump that sends what lies in `source`.
    fn send(self: Box<Self>, source: Box<dyn SlotSource>) -> Box<dyn Pump>;

    /// The pump that puts what comes into `sink`.
    fn receive(self: Box<Self>, sink: Box<dyn SlotSink>) -> Box<dyn Pump>;

    /// Takes memory of a device, where the payloads of slots of kernels lie that go the `way` of this connection.
    ///
    /// # Errors
    /// Why it does not, as a sentence: the slots then lie in memory of the host.
    fn take_device(&mut self, way: Way, slots: DeviceSlots<'_>) -> std::result::Result<(), String> {
        let _ = (way, slots);
        Err("sockets copy from and to memory of the host".to_owned())
    }

    /// As [`Wire::send`], of what kernels put into slots: the other end is one of kernels' slots, too.
    fn send_of_kernels(self: Box<Self>, source: Box<dyn KernelSource>) -> Box<dyn Pump> {
        self.send(source)
    }

    /// As [`Wire::receive`], into slots of kernels: the other end is one of kernels' slots, too.
    fn receive_for_kernels(self: Box<Self>, sink: Box<dyn KernelSink>) -> Box<dyn Pump> {
        self.receive(sink)
    }
}

/// Memory of a device with the payloads of slots.
#[derive(Debug)]
pub(super) struct DeviceSlots<'a> {
    pub(super) memory: Region,
    pub(super) reach: &'a DeviceReach,
    /// Whether what a NIC has written there must be flushed before a kernel may read it.
    pub(super) needs_flush: bool,
    /// The largest payload.
    pub(super) slot_bytes: usize,
}

/// Slots that kernels fill, several of which a pump may have at once.
pub(super) trait KernelSource: SlotSource {
    /// How many messages were published since the beginning.
    fn published(&self) -> u64;

    /// Length and label of a message that was published and not released.
    ///
    /// # Errors
    /// As [`SlotSource::peek`].
    fn header(&self, message: u64) -> Result<(usize, Label)>;

    /// Gives back the slots of all messages before this one.
    fn release_until(&mut self, message: u64);

    /// Where slots lie.
    fn slots(&self) -> SlotPlaces<'_>;
}

/// Slots that kernels empty, several of which a pump may fill at once.
pub(super) trait KernelSink: SlotSink {
    /// How many messages may be published since the beginning: so many slots have been free.
    fn open_until(&self) -> u64;

    /// Where slots lie.
    fn slots(&self) -> SlotPlaces<'_>;
}

/// Where slots lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlotPlaces<'a> {
    /// The memory of the host with words, headers and, unless these lie on a device, payloads.
    pub(super) memory: &'a HostRegion,
    /// The payload of the first slot, in the memory where payloads lie.
    pub(super) first: usize,
    pub(super) stride: usize,
    pub(super) count: u32,
    pub(super) slot_bytes: usize,
}

impl SlotPlaces<'_> {
    /// The first `bytes` of the payload of a message.
    pub(super) fn payload(&self, message: u64, bytes: usize) -> Range<usize> {
        let place = usize::try_from(message % u64::from(self.count)).expect("below a 32-bit number");
        let start = self.first + place * self.stride;
        start..start + bytes.min(self.slot_bytes)
    }
}

/// Where a pump takes messages from: a ring in private memory, which an executor of this process fills, or slots that
/// kernels fill.
pub(super) trait SlotSource: Debug + Send {
    /// The next message, where one has come. The same one until `release`.
    ///
    /// # Errors
    /// Where something has overwritten the slot.
    fn peek(&mut self) -> Result<Option<Message>>;

    /// Gives the slot of the last peeked message back.
    fn release(&mut self);

    /// Whether a message has come.
    fn has_more(&self) -> bool;

    /// The message so many after the next one, where that has come too and can be read before the next one is released.
    ///
    /// # Errors
    /// As [`SlotSource::peek`].
    fn peek_ahead(&mut self, ahead: u64) -> Result<Option<Message>> {
        if ahead == 0 { self.peek() } else { Ok(None) }
    }

    /// The memory in which payloads lie, where a NIC may have it.
    fn memory(&self) -> Option<HostRegion> {
        None
    }
}

/// Where a pump puts messages: a ring in private memory, which an executor of this process empties, or slots that
/// kernels empty.
pub(super) trait SlotSink: Debug + Send {
    /// Whether a slot is free.
    fn has_credit(&mut self) -> bool;

    /// The same, as far as it is known without taking note of it.
    fn is_open(&self) -> bool;

    /// The place for `bytes` of payload in the next free slot; `None` where none is free. The same place until
    /// `publish`.
    fn reserve(&mut self, bytes: usize) -> Option<NonNull<u8>>;

    /// Hands the reserved slot over.
    fn publish(&mut self, bytes: usize, label: Label);

    /// Bytes of a payload at most.
    fn slot_bytes(&self) -> usize;

    /// The place for `bytes` of payload in the free slot so many after the next one; `None` where that is not free.
    fn reserve_ahead(&mut self, ahead: u64, bytes: usize) -> Option<NonNull<u8>> {
        if ahead == 0 { self.reserve(bytes) } else { None }
    }

    /// The memory in which payloads lie.
    fn memory(&self) -> HostRegion;
}

impl SlotSource for Receiver {
    fn peek(&mut self) -> Result<Option<Message>> {
        Receiver::peek(self)
    }

    fn release(&mut self) {
        Receiver::release(self);
    }

    fn has_more(&self) -> bool {
        let (flag, target) = self.arrival();
        flag.reached(target)
    }

    fn peek_ahead(&mut self, ahead: u64) -> Result<Option<Message>> {
        Receiver::peek_ahead(self, ahead)
    }

    fn memory(&self) -> Option<HostRegion> {
        Some(Receiver::memory(self))
    }
}

impl SlotSink for Sender {
    fn has_credit(&mut self) -> bool {
        Sender::has_credit(self)
    }

    fn is_open(&self) -> bool {
        let (flag, target) = self.credit();
        flag.reached(target)
    }

    fn reserve(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        Sender::reserve(self, bytes)
    }

    fn publish(&mut self, bytes: usize, label: Label) {
        Sender::publish(self, bytes, label);
    }

    fn slot_bytes(&self) -> usize {
        self.shape().slot_bytes as usize
    }

    fn reserve_ahead(&mut self, ahead: u64, bytes: usize) -> Option<NonNull<u8>> {
        Sender::reserve_ahead(self, ahead, bytes)
    }

    fn memory(&self) -> HostRegion {
        Sender::memory(self)
    }
}

impl SendEnd {
    /// The sending end over a wire, with a ring of its own.
    ///
    /// # Errors
    /// Of memory.
    pub(super) fn over(wire: Box<dyn Wire>, shape: Shape) -> Result<SendEnd> {
        let memory = HostMemory.allocate_host(shape.memory_bytes(), Sharing::Threads)?;
        let pump = wire.send(Box::new(Receiver::new(memory.clone(), shape)));
        Ok(SendEnd { ring: Sender::new(memory, shape), pump: Some(pump) })
    }
}

impl ReceiveEnd {
    /// The receiving end over a wire, with a ring of its own.
    ///
    /// # Errors
    /// Of memory.
    pub(super) fn over(wire: Box<dyn Wire>, shape: Shape) -> Result<ReceiveEnd> {
        let memory = HostMemory.allocate_host(shape.memory_bytes(), Sharing::Threads)?;
        let pump = wire.receive(Box::new(Sender::new(memory.clone(), shape)));
        Ok(ReceiveEnd { ring: Receiver::new(memory, shape), pump: Some(pump) })
    }
}
