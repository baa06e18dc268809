//! A ring of slots between two ranks: what every transport yields and every executor uses.
//!
//! ```text
//! offset           width        meaning
//! 0                64           head: messages released; raised by the receiver
//! 64 + i*stride    64           header of slot i: flag 16, bytes u64, label 3 × u64, 16 of payload where it has no more
//! 128 + i*stride   slot bytes   payload of slot i; stride = 64 + slot bytes
//! ```
//! Message m lies in slot m mod slots. The sender may fill it once head > m - slots (credit); the receiver may read it once the slot's
//! flag is above m, which the sender raises it to. So a message of a few bytes travels in one cache line.

use std::fmt;
use std::ptr::NonNull;

use crate::error::{Error, Kind, Result};
use crate::sync::Flag;
use crate::sys::region::HostRegion;

/// What a message says of itself besides its bytes; the executor compares it with what it expects.
pub type Label = [u64; 3];

/// How many slots a ring has, and how large they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Slots, at least 1.
    pub slots: u32,
    /// Bytes of a slot's payload, a multiple of 64.
    pub slot_bytes: u32,
}

impl Shape {
    /// Bytes of memory that a ring of this shape takes.
    pub fn memory_bytes(self) -> usize {
        CONTROL_BYTES + self.slots as usize * self.stride()
    }

    fn stride(self) -> usize {
        HEADER_BYTES + self.slot_bytes as usize
    }
}

/// The shared part of both ends.
#[derive(Clone)]
struct View {
    memory: HostRegion,
    shape: Shape,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of {} bytes", self.shape.slots, self.shape.slot_bytes)
    }
}

impl View {
    fn new(memory: HostRegion, shape: Shape) -> View {
        assert!(shape.slots > 0 && shape.slot_bytes.is_multiple_of(64), "a ring's shape comes from our own layout");
        assert!(memory.bytes() >= shape.memory_bytes(), "a ring's memory is made for its shape");
        View { memory, shape }
    }

    fn head(&self) -> &Flag {
        // SAFETY: offset 0 of a page-aligned mapping that `self.memory` keeps; ring memory starts zeroed and both ends touch these
        // bytes through `Flag` only.
        unsafe { Flag::at(self.memory.at(0, Flag::BYTES)) }
    }

    /// Raised to the number of the slot's message plus one.
    fn arrival(&self, message: u64) -> &Flag {
        // SAFETY: as for the head; slots begin at multiples of 64.
        unsafe { Flag::at(self.memory.at(self.offset(message), Flag::BYTES)) }
    }

    /// Length and label.
    fn words(&self, message: u64) -> NonNull<u64> {
        self.memory.at(self.offset(message) + Flag::BYTES, WORDS * size_of::<u64>()).cast()
    }

    /// Where `bytes` of payload lie.
    fn payload(&self, message: u64, bytes: usize) -> NonNull<u8> {
        let offset = self.offset(message);
        if bytes <= INLINE_BYTES {
            self.memory.at(offset + INLINE_OFFSET, INLINE_BYTES)
        } else {
            self.memory.at(offset + HEADER_BYTES, self.shape.slot_bytes as usize)
        }
    }

    fn offset(&self, message: u64) -> usize {
        let slot = usize::try_from(message % u64::from(self.shape.slots)).expect("below a 32-bit number");
        CONTROL_BYTES + slot * self.shape.stride()
    }
}

/// The end that fills slots. One thread at a time.
#[derive(Debug)]
pub struct Sender {
    view: View,
    next: u64,
    credit_until: u64,
}

/// The end that empties slots. One thread at a time.
#[derive(Debug)]
pub struct Receiver {
    view: View,
    next: u64,
    /// Messages that are known to have come.
    known: u64,
}

/// A message that lies in a slot.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// Its payload, good until the receiver releases it.
    pub payload: NonNull<u8>,
    /// Its length, at most the slot's.
    pub bytes: usize,
    /// What it says of itself.
    pub label: Label,
}

impl Sender {
    /// The sending end of the ring in `memory`, which is zeroed and made for `shape`.
    pub fn new(memory: HostRegion, shape: Shape) -> Sender {
        Sender { view: View::new(memory, shape), next: 0, credit_until: u64::from(shape.slots) }
    }

    /// The place for `bytes` of payload in the next free slot; `None` while the receiver holds them all. The same place until
    /// `publish`.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        self.has_credit().then(|| self.view.payload(self.next, bytes))
    }

    /// Whether a slot is free.
    #[inline]
    pub fn has_credit(&mut self) -> bool {
        if self.next >= self.credit_until {
            // Acquires the receiver's release: its reads of the slot are over before we write.
            self.credit_until = self.view.head().value().saturating_add(u64::from(self.view.shape.slots));
        }
        self.next < self.credit_until
    }

    /// Hands the slot over with the `bytes` of payload that were reserved.
    ///
    /// # Panics
    /// Where no slot is free, or `bytes` does not fit one.
    pub fn publish(&mut self, bytes: usize, label: Label) {
        assert!(self.next < self.credit_until, "publish follows a successful reserve");
        assert!(bytes <= self.view.shape.slot_bytes as usize, "a message fits its slot");
        let words = self.view.words(self.next);
        for (place, word) in [bytes as u64, label[0], label[1], label[2]].into_iter().enumerate() {
            // SAFETY: inside the header of a slot that is ours until its flag is raised.
            let at = unsafe { words.add(place) };
            // SAFETY: as above; aligned, because slots are multiples of 64 bytes in page-aligned memory.
            unsafe { at.write(word) };
        }
        self.next += 1;
        self.view.arrival(self.next - 1).raise(self.next);
    }

    /// The flag and value that the next free slot waits for.
    pub fn credit(&self) -> (&Flag, u64) {
        (self.view.head(), (self.next + 1).saturating_sub(u64::from(self.view.shape.slots)))
    }

    /// The ring's shape.
    pub fn shape(&self) -> Shape {
        self.view.shape
    }

    /// The flag and value that say that the receiver has released all that was published.
    #[cfg(test)]
    fn drain(&self) -> (&Flag, u64) {
        (self.view.head(), self.next)
    }
}

impl Receiver {
    /// The receiving end of the ring in `memory`, which is zeroed and made for `shape`.
    pub fn new(memory: HostRegion, shape: Shape) -> Receiver {
        Receiver { view: View::new(memory, shape), next: 0, known: 0 }
    }

    /// The next message, where one has come. The same one until `release`.
    ///
    /// # Errors
    /// [`Kind::Remote`] where the sender claims more bytes than a slot has.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Message>> {
        if self.next >= self.known {
            // Acquires the sender's publish: header and payload are read after it.
            if !self.view.arrival(self.next).reached(self.next + 1) {
                return Ok(None);
            }
            self.known = self.next + 1;
        }
        let header = self.view.words(self.next);
        let mut words = [0u64; WORDS];
        for (place, word) in words.iter_mut().enumerate() {
            // SAFETY: inside the header of a slot that the sender has handed over.
            let at = unsafe { header.add(place) };
            // SAFETY: as above; read once, so that a sender that changes it later changes nothing here.
            *word = unsafe { at.read_volatile() };
        }
        let bytes = usize::try_from(words[0]).unwrap_or(usize::MAX);
        if bytes > self.view.shape.slot_bytes as usize {
            let message = format!("a message of {} bytes in a slot of {}", words[0], self.view.shape.slot_bytes);
            return Err(Error::new(Kind::Remote, message));
        }
        Ok(Some(Message { payload: self.view.payload(self.next, bytes), bytes, label: [words[1], words[2], words[3]] }))
    }

    /// Gives the slot of the last peeked message back.
    ///
    /// # Panics
    /// Where no message has come.
    pub fn release(&mut self) {
        assert!(self.next < self.known, "release follows a successful peek");
        self.next += 1;
        self.view.head().raise(self.next);
    }

    /// The flag and value that the next message waits for.
    pub fn arrival(&self) -> (&Flag, u64) {
        (self.view.arrival(self.next), self.next + 1)
    }

    /// The ring's shape.
    pub fn shape(&self) -> Shape {
        self.view.shape
    }
}

const CONTROL_BYTES: usize = Flag::LINE;
const HEADER_BYTES: usize = 64;
/// Words of a header: length and label.
const WORDS: usize = 4;
const INLINE_OFFSET: usize = Flag::BYTES + WORDS * size_of::<u64>();
const INLINE_BYTES: usize = HEADER_BYTES - INLINE_OFFSET;

const _: () = assert!(INLINE_BYTES == 16 && HEADER_BYTES == Flag::LINE);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::memory::SharedMemory;

    fn pair(slots: u32) -> (Sender, Receiver) {
        let shape = Shape { slots, slot_bytes: 64 };
        let memory = SharedMemory::anonymous(shape.memory_bytes()).unwrap().into_region();
        (Sender::new(memory.clone(), shape), Receiver::new(memory, shape))
    }

    #[test]
    fn messages_come_in_order_and_credit_bounds_them() {
        let (mut sender, mut receiver) = pair(2);
        assert!(receiver.peek().unwrap().is_none());
        for turn in 0..10u64 {
            for part in 0..2 {
                let slot = sender.reserve(1).unwrap();
                // SAFETY: a reserved byte.
                unsafe { slot.as_ptr().write(u8::try_from(turn * 2 + part).unwrap()) };
                sender.publish(1, [turn, part, 0]);
            }
            assert!(sender.reserve(1).is_none());
            for part in 0..2 {
                let message = receiver.peek().unwrap().unwrap();
                assert_eq!((message.bytes, message.label), (1, [turn, part, 0]));
                // SAFETY: a message of one byte.
                assert_eq!(u64::from(unsafe { message.payload.as_ptr().read() }), turn * 2 + part);
                receiver.release();
            }
            assert!(sender.drain().0.reached(sender.drain().1));
        }
    }

    #[test]
    fn a_forged_length_is_the_peers_fault() {
        let (mut sender, mut receiver) = pair(1);
        sender.reserve(1).unwrap();
        let header = sender.view.words(0);
        sender.publish(1, [0; 3]);
        // SAFETY: the header of slot 0, aligned.
        unsafe { header.write(65) };
        assert_eq!(receiver.peek().unwrap_err().kind(), Kind::Remote);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sync::flag::models::EVER;
    use crate::sync::primitive::Arc;
    use crate::sys::futex::{Membarrier, model};
    use crate::sys::memory::SharedMemory;

    /// A ring whose flags loom knows.
    fn pair(shape: Shape) -> (Sender, Receiver) {
        let memory = SharedMemory::anonymous(shape.memory_bytes()).expect("a page or two").into_region();
        let (sender, receiver) = (Sender::new(memory.clone(), shape), Receiver::new(memory, shape));
        for slot in 0..u64::from(shape.slots) {
            // SAFETY: the layout's own offsets, and nobody else has the memory yet.
            unsafe { Flag::lay(sender.view.memory.at(sender.view.offset(slot), Flag::BYTES)) };
        }
        // SAFETY: as above.
        unsafe { Flag::lay(sender.view.memory.at(0, Flag::BYTES)) };
        (sender, receiver)
    }

    /// The bytes of slots as loom sees them: it cannot watch the mapping, so whoever touches a slot there touches its cell here.
    struct Slots(Vec<UnsafeCell<()>>);

    // SAFETY: that only one end touches a cell at a time is what the model proves; loom fails where it is not so.
    unsafe impl Sync for Slots {}
    // SAFETY: as above.
    unsafe impl Send for Slots {}

    impl Slots {
        fn of(&self, message: u64) -> &UnsafeCell<()> {
            &self.0[usize::try_from(message).expect("a few messages") % self.0.len()]
        }
    }

    fn send(sender: &mut Sender, slots: &Slots, message: u64, bytes: usize) {
        let place = loop {
            if let Some(place) = sender.reserve(bytes) {
                break place;
            }
            let (flag, target) = sender.credit();
            flag.park(target, EVER);
        };
        // SAFETY: a reserved byte.
        slots.of(message).with_mut(|_| unsafe { place.as_ptr().write(message_byte(message)) });
        sender.publish(bytes, [message, 7, 8]);
    }

    fn receive(receiver: &mut Receiver, slots: &Slots, message: u64, bytes: usize) {
        let found = loop {
            if let Some(found) = receiver.peek().expect("no forged length") {
                break found;
            }
            let (flag, target) = receiver.arrival();
            flag.park(target, EVER);
        };
        assert_eq!((found.bytes, found.label), (bytes, [message, 7, 8]));
        // SAFETY: a message of at least one byte.
        let byte = slots.of(message).with(|_| unsafe { found.payload.as_ptr().read() });
        assert_eq!(byte, message_byte(message));
        receiver.release();
    }

    fn message_byte(message: u64) -> u8 {
        u8::try_from(message + 1).expect("a few messages")
    }

    /// Each message is read whole before its slot is written again, whoever sleeps when.
    fn messages_go_round(slots: u32, messages: u64, bytes: usize) {
        model(Membarrier::Works, move || {
            let (mut sender, mut receiver) = pair(Shape { slots, slot_bytes: 64 });
            let cells = Arc::new(Slots((0..slots).map(|_| UnsafeCell::new(())).collect()));
            let theirs = Arc::clone(&cells);
            let peer = loom::thread::spawn(move || {
                for message in 0..messages {
                    receive(&mut receiver, &theirs, message, bytes);
                }
            });
            for message in 0..messages {
                send(&mut sender, &cells, message, bytes);
            }
            let (flag, target) = sender.drain();
            flag.await_value(target);
            assert!(sender.drain().0.reached(sender.drain().1));
            // All that was sent has been read: the slots may go away.
            for message in 0..messages {
                cells.of(message).with_mut(|_| ());
            }
            peer.join().expect("loom ends the model before a panic comes here");
        });
    }

    #[test]
    fn one_slot_is_never_written_while_it_is_read() {
        messages_go_round(1, 2, 64);
    }

    #[test]
    fn slots_go_round_in_order() {
        messages_go_round(2, 3, 1);
    }
}
