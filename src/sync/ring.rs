//! A ring of slots between two ranks: what every transport yields and every executor uses.
//!
//! A ring is control words apart from payload ([`Parts`]). The control words are host memory, which whoever waits can
//! poll; the payload may live on any device:
//! ```text
//! part      width             who waits for it   meaning
//! head      64                the sender         messages released; raised by the receiver
//! lines     64 for each slot  the receiver       flag 16, bytes u64, label 3 × u64, 16 of payload where there is
//!                                                no more
//! payload   slot bytes each   nobody             payload of the slot; only its home follows its addresses
//! ```
//! Each part may lie where its waiter polls it best. Host transports put all of them into the receiver's one mapping
//! ([`Parts::in_one`]):
//! ```text
//! offset           width        meaning
//! 0                64           head
//! 64 + i*stride    64           line of slot i
//! 128 + i*stride   slot bytes   payload of slot i; stride = 64 + slot bytes
//! ```
//! A ring that [spreads](Shape::spread) its payloads has those of more than [`BESIDE_LINE`] bytes behind all slots,
//! which are 4,160 bytes apart and have room for shorter ones. There a payload begins a page behind the one before it:
//! a processor that reads one likely fetches what follows it, too, while the sender writes that. At most `slots`
//! payloads, each at most a slot's bytes, are in use at once, so that they and what is left at the end of the memory
//! never take more than twice what the slots would: the credit of slots is enough.
//!
//! Spreading gains between near processors and loses between [far](Distance) ones. So a sender may [pack](Sender::pack)
//! such payloads: each has its slot's own place, at the beginning of the same memory, and a mark in the length says so.
//! A sender changes over only once the receiver has released all that was sent, so that no two payloads meet.
//!
//! Message m lies in slot m mod slots. The sender may fill it once head > m - slots (credit); the receiver may read it
//! once the slot's flag is at 2 m + 2, which the sender raises it to. So a message of a few bytes travels in one cache
//! line, where the payload is host memory.
//!
//! # Offers
//! In place of filling a slot, the sender may offer its own memory there ([`Sender::offer`]): the flag is at 2 m + 1
//! then, and the line has two numbers by which the memory is found, in the places of the length and of the payload's
//! last 8 bytes, the label, and the word of an [`Offer`] in the place of the payload's first 8 bytes. A receiver that
//! takes the offer reads the sender's memory by means of its own, says in the word how many bytes it has, and releases
//! the slot. If the sender withdraws the offer first, it fills the slot as usual, with more bytes than a line holds.
//!
//! A slot changes hands by its flag and by the head, and for that long one end has it alone, but for offers: a receiver
//! that has seen one may read the line while the sender, which has withdrawn the offer, fills the slot. So the length
//! and the label are atomic words. The receiver finds out by [`Receiver::take_offer`] that what it has read counts no
//! more.

mod end_count;

use std::fmt;
use std::ptr::NonNull;

use crate::error::{Error, Kind, Result};
use crate::sync::Flag;
use crate::sync::distance::Distance;
use crate::sync::offer::Offer;
use crate::sync::primitive::{AtomicU64, Ordering, mapped};
use crate::sys::prefetch;
use crate::sys::region::{Home, HostRegion, Region};

pub use end_count::EndCount;

/// What a message says of itself besides its bytes; the executor compares it with what it expects.
pub type Label = [u64; 3];

/// How many slots a ring has, and how large they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Slots, at least 1.
    pub slots: u32,
    /// Bytes of a slot's payload, a multiple of 64.
    pub slot_bytes: u32,
    /// The memory for payloads, as a multiple of what all slots hold. With 1, each slot's payload has a place of its
    /// own, which stays in the caches. With more, payloads go through all of that memory in turn: a line that is
    /// written again only when it has left its reader's second-level cache costs less than one that has to be taken
    /// back from there.
    pub spread: u32,
}

impl Shape {
    /// Bytes of memory that a ring of this shape takes in one mapping.
    pub fn memory_bytes(self) -> usize {
        if self.is_spread() {
            self.spread_from() + self.spread_bytes()
        } else {
            HEAD_BYTES + self.slots as usize * self.stride()
        }
    }

    fn is_spread(self) -> bool {
        self.spread > 1
    }

    /// Where payloads that are spread begin in one mapping.
    fn spread_from(self) -> usize {
        (HEAD_BYTES + self.slots as usize * SPREAD_LINES).next_multiple_of(PAGE_BYTES)
    }

    /// Bytes that payloads are spread over.
    fn spread_bytes(self) -> usize {
        self.slots as usize * apart(self.slot_bytes as usize) * self.spread as usize
    }

    fn stride(self) -> usize {
        LINE_BYTES + self.slot_bytes as usize
    }
}

/// Where the parts of a ring lie, for one of its ends. Both ends' parts are the same memory.
#[derive(Debug, Clone)]
pub struct Parts {
    head: HostRegion,
    lines: HostRegion,
    payload: Region,
    first_line: usize,
    line_stride: usize,
    first_payload: usize,
    payload_stride: usize,
}

impl Parts {
    /// All parts in one mapping of [`Shape::memory_bytes`], zeroed at first.
    pub fn in_one(memory: HostRegion, shape: Shape) -> Parts {
        assert!(memory.bytes() >= shape.memory_bytes(), "a ring's memory is made for its shape");
        let (stride, payload) = (shape.stride(), memory.as_region().clone());
        let (line_stride, first_payload) = match shape.is_spread() {
            true => (SPREAD_LINES, shape.spread_from()),
            false => (stride, HEAD_BYTES + LINE_BYTES),
        };
        Parts {
            head: memory.clone(),
            lines: memory,
            payload,
            first_line: HEAD_BYTES,
            line_stride,
            first_payload,
            payload_stride: stride,
        }
    }

    /// Each part in memory of its own: 64 zeroed bytes for the head, as many for each slot's line, and the payload of
    /// all slots.
    #[cfg(test)]
    pub fn apart(head: HostRegion, lines: HostRegion, payload: Region, shape: Shape) -> Parts {
        let (slots, slot_bytes) = (shape.slots as usize, shape.slot_bytes as usize);
        let fits = head.bytes() >= HEAD_BYTES && lines.bytes() >= slots * LINE_BYTES;
        let fits = fits && payload.bytes() >= slots * slot_bytes && !shape.is_spread();
        assert!(fits, "a ring's memory is made for its shape");
        let (line_stride, payload_stride) = (LINE_BYTES, slot_bytes);
        Parts { head, lines, payload, first_line: 0, line_stride, first_payload: 0, payload_stride }
    }
}

/// The shared part of both ends.
#[derive(Clone)]
struct View {
    parts: Parts,
    shape: Shape,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} slots of {} bytes", self.shape.slots, self.shape.slot_bytes)
    }
}

impl View {
    fn new(parts: Parts, shape: Shape) -> View {
        let is_ours = shape.slots > 0 && shape.slot_bytes.is_multiple_of(64) && shape.spread > 0;
        assert!(is_ours, "a ring's shape comes from our own layout");
        View { parts, shape }
    }

    fn head(&self) -> &Flag {
        // SAFETY: the first line of memory of ours that `parts` keeps, aligned to 64; it starts zeroed, and both ends
        // touch these bytes through `Flag` only.
        unsafe { Flag::at(self.parts.head.at(0, Flag::BYTES)) }
    }

    /// Raised by [`offered`] and [`filled`].
    fn arrival(&self, message: u64) -> &Flag {
        // SAFETY: as for the head; lines begin at multiples of 64.
        unsafe { Flag::at(self.line(message, 0, Flag::BYTES)) }
    }

    /// The word of an offer, and where the offered memory begins.
    fn offer(&self, message: u64) -> (Offer<'_>, &AtomicU64) {
        let word = |offset: usize| {
            let place = self.line(message, offset, size_of::<u64>()).cast::<AtomicU64>();
            // SAFETY: aligned to 8 inside the line of a slot; any bits are valid. An end that reads or writes payload
            // there has the slot alone: what follows a withdrawn offer is longer than the payload of a line.
            unsafe { place.as_ref() }
        };
        (Offer(word(INLINE_OFFSET)), word(INLINE_OFFSET + size_of::<u64>()))
    }

    /// Length and label.
    fn words(&self, message: u64) -> &[mapped::AtomicU64; WORDS] {
        let place = self.line(message, Flag::BYTES, WORDS * size_of::<u64>()).cast();
        // SAFETY: aligned to 8 inside the line of a slot of memory of ours that `parts` keeps; any bits are valid, and
        // both ends touch these bytes as atomic words only.
        unsafe { place.as_ref() }
    }

    /// Where `bytes` of payload of a message lie: an address of the payload's home. In a ring that spreads them they
    /// come after payloads that end `before`; without, they are packed.
    #[inline]
    fn payload(&self, message: u64, before: Option<PayloadEnd>, bytes: usize) -> NonNull<u8> {
        let parts = &self.parts;
        if bytes <= INLINE_BYTES && parts.payload.home() == Home::Host {
            self.line(message, INLINE_OFFSET, INLINE_BYTES)
        } else if !self.shape.is_spread() {
            let offset = parts.first_payload + self.slot(message) * parts.payload_stride;
            parts.payload.at(offset, self.shape.slot_bytes as usize)
        } else if bytes > BESIDE_LINE {
            let offset = match before {
                Some(before) => before.next(bytes, self.shape),
                None => self.slot(message) * parts.payload_stride,
            };
            parts.payload.at(parts.first_payload + offset, bytes)
        } else {
            self.line(message, LINE_BYTES, BESIDE_LINE)
        }
    }

    /// `bytes` of the line of the message's slot, from `offset` on.
    fn line(&self, message: u64, offset: usize, bytes: usize) -> NonNull<u8> {
        let parts = &self.parts;
        parts.lines.at(parts.first_line + self.slot(message) * parts.line_stride + offset, bytes)
    }

    fn slot(&self, message: u64) -> usize {
        usize::try_from(message % u64::from(self.shape.slots)).expect("below a 32-bit number")
    }
}

/// Where the last payload ends in a ring that spreads them: an offset in the memory for payloads. Both ends know it,
/// since both know the length of each message.
#[derive(Debug, Clone, Copy, Default)]
struct PayloadEnd(usize);

impl PayloadEnd {
    /// Where a payload of `bytes` begins: behind the last one, or at the beginning where there is no room for it.
    #[inline]
    fn next(self, bytes: usize, shape: Shape) -> usize {
        if self.0 + apart(bytes) > shape.spread_bytes() { 0 } else { self.0 }
    }

    /// Goes past a payload of `bytes`, if it takes a place here.
    #[inline]
    fn pass(&mut self, bytes: usize, shape: Shape) {
        if bytes > BESIDE_LINE && shape.is_spread() {
            self.0 = self.next(bytes, shape) + apart(bytes);
        }
    }
}

/// The end that fills slots. One thread at a time.
#[derive(Debug)]
pub struct Sender {
    view: View,
    next: u64,
    end: PayloadEnd,
    /// Payloads are packed, where the ring spreads them else.
    packs: bool,
    distance: Distance,
    credit_until: u64,
    /// This end has read the head since the last message.
    has_looked: bool,
    /// The last message that was offered.
    offered: Option<u64>,
    /// Offers that were answered.
    answers: u64,
    /// Bytes that were published: tests compare them with what a simulation sends.
    bytes: u64,
    /// Where others see what was sent.
    count: Option<EndCount>,
}

/// The end that empties slots. One thread at a time.
#[derive(Debug)]
pub struct Receiver {
    view: View,
    next: u64,
    end: PayloadEnd,
    /// The length of the message that was peeked last, if it is not packed.
    peeked: usize,
    /// Messages that are known to have come.
    known: u64,
    /// The next message was offered, and the offer is void.
    withdrawn: bool,
    /// Where others see what has come.
    count: Option<EndCount>,
    /// Bytes that the message that was peeked brings, by its slot or past it.
    brought: u64,
}

/// A message that lies in a slot, or is offered there.
#[derive(Debug, Clone, Copy)]
pub struct Message {
    /// Its payload, good until the receiver releases it: an address that only the payload's home follows.
    pub payload: NonNull<u8>,
    /// Its length, at most the slot's; 0 of an offer.
    pub bytes: usize,
    /// What it says of itself.
    pub label: Label,
    /// Whether the sender offers its own memory, and has nothing in the slot.
    pub is_offer: bool,
}

/// Two numbers by which memory is found that a sender has offered. They mean something in the sender's process alone.
pub type Whereabouts = [u64; 2];

/// An offer that the sender has made and that is not settled. It keeps the ring's memory.
#[derive(Debug)]
pub struct PostedOffer {
    view: View,
    message: u64,
}

impl PostedOffer {
    /// The offer's word.
    pub fn word(&self) -> Offer<'_> {
        self.view.offer(self.message).0
    }
}

impl Sender {
    /// The sending end of the ring in `memory`, which is zeroed and made for `shape`.
    pub fn new(memory: HostRegion, shape: Shape) -> Sender {
        Sender::of(Parts::in_one(memory, shape), shape)
    }

    /// The sending end of the ring in `parts`, whose control words are zeroed.
    pub fn of(parts: Parts, shape: Shape) -> Sender {
        let (view, credit_until, end) = (View::new(parts, shape), u64::from(shape.slots), PayloadEnd::default());
        let (packs, distance, has_looked, offered, count) = (false, Distance::default(), false, None, None);
        let (next, answers, bytes) = (0, 0, 0);
        Sender { view, next, end, packs, distance, credit_until, has_looked, offered, answers, bytes, count }
    }

    /// The same, which counts what is sent here.
    pub fn counted(mut self, count: Option<EndCount>) -> Sender {
        self.count = count;
        self
    }

    /// A message of so many bytes has been sent, by the ring or past it.
    #[inline]
    pub fn note(&self, bytes: u64) {
        if let Some(count) = &self.count {
            count.add(bytes);
        }
    }

    /// The place for `bytes` of payload in the next free slot; `None` while the receiver holds them all. The same place
    /// until `publish`.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        self.has_credit().then(|| self.view.payload(self.next, self.before(), bytes))
    }

    /// The place for `bytes` of payload in the free slot so many after the next one; `None` while the receiver holds
    /// it, and in a ring that spreads its payloads.
    pub fn reserve_ahead(&mut self, ahead: u64, bytes: usize) -> Option<NonNull<u8>> {
        if ahead == 0 {
            return self.reserve(bytes);
        }
        let message = self.next + ahead;
        if self.view.shape.is_spread() {
            return None;
        }
        if message >= self.credit_until {
            self.look_for_credit();
        }
        (message < self.credit_until).then(|| self.view.payload(message, None, bytes))
    }

    /// The memory of payloads, of the host.
    pub fn memory(&self) -> HostRegion {
        self.view.parts.lines.clone()
    }

    /// Packs payloads from now on, or spreads them again, where the ring spreads payloads and the receiver has released
    /// all of them. Else everything stays as it was.
    #[inline]
    pub fn pack(&mut self, packs: bool) {
        // Acquires the receiver's release: its reads of all payloads are over before we write.
        if self.packs != packs && self.view.shape.is_spread() {
            self.has_looked = true;
            if self.view.head().reached(self.next) {
                self.packs = packs;
            }
        }
    }

    /// What the next payload lies behind, unless it is packed.
    #[inline]
    fn before(&self) -> Option<PayloadEnd> {
        (!self.packs).then_some(self.end)
    }

    /// Whether the receiver is known to be far.
    #[inline]
    pub fn is_far(&self) -> bool {
        self.distance.is_far()
    }

    /// Whether a slot is free.
    #[inline]
    pub fn has_credit(&mut self) -> bool {
        if self.next >= self.credit_until {
            self.look_for_credit();
        }
        self.next < self.credit_until
    }

    fn look_for_credit(&mut self) {
        let slots = u64::from(self.view.shape.slots);
        // The first look since a message finds what the receiver has written in the last round.
        // Without spreading nothing follows from it, but that a receiver that was far has come near.
        let is_due =
            (self.next / slots).is_multiple_of(TIMED_ROUNDS) && (self.view.shape.is_spread() || self.distance.is_far());
        // Acquires the receiver's release: its reads of the slot are over before we write.
        let head = || self.view.head().value();
        let before = self.credit_until;
        let is_new = |released: &u64| released.saturating_add(slots) != before;
        let released = if is_due && !self.has_looked { self.distance.timed(head, is_new) } else { head() };
        self.credit_until = released.saturating_add(slots);
        self.has_looked = true;
    }

    /// Hands the slot over with the `bytes` of payload that were reserved.
    ///
    /// # Panics
    /// Where no slot is free, or `bytes` does not fit one.
    pub fn publish(&mut self, bytes: usize, label: Label) {
        assert!(self.next < self.credit_until, "publish follows a successful reserve");
        assert!(bytes <= self.view.shape.slot_bytes as usize, "a message fits its slot");
        debug_assert!(bytes > INLINE_BYTES || self.offered != Some(self.next), "the offer's words may still be read");
        let is_packed = self.packs && bytes > BESIDE_LINE;
        self.describe(bytes as u64 | if is_packed { PACKED } else { 0 }, label);
        (self.next, self.has_looked) = (self.next + 1, false);
        self.end.pass(if is_packed { 0 } else { bytes }, self.view.shape);
        self.bytes += bytes as u64;
        self.note(bytes as u64);
        self.view.arrival(self.next - 1).raise(filled(self.next - 1));
    }

    /// Asks for the lines of a next message of `bytes`, which the receiver has read last. A call of its own: in line,
    /// it made short messages slower, which do not ask.
    #[inline(never)]
    pub fn prefetch_next(&self, bytes: usize) {
        if self.view.parts.payload.home() == Home::Host {
            prefetch::all_to_write(self.view.payload(self.next, self.before(), bytes), bytes);
        }
    }

    /// Offers memory of this process in the next slot; `None` while the receiver holds them all. The memory stays as it
    /// is, and the ring is used for nothing else, until the offer is [withdrawn](Offer::withdraw) or
    /// [settled](Sender::settled).
    pub fn offer(&mut self, [first, second]: Whereabouts, label: Label) -> Option<PostedOffer> {
        if !self.has_credit() {
            return None;
        }
        self.offered = Some(self.next);
        self.describe(first, label);
        let (offer, place) = self.view.offer(self.next);
        // Relaxed: the flag publishes it.
        place.store(second, Ordering::Relaxed);
        offer.post();
        self.view.arrival(self.next).raise(offered(self.next));
        Some(PostedOffer { view: self.view.clone(), message: self.next })
    }

    /// The bytes that the receiver has copied, once it has answered the offer: the slot has come back then.
    pub fn settled(&mut self, offer: &PostedOffer) -> Option<u64> {
        // The answer was written before the head was raised.
        let answered = self.view.head().reached(self.next + 1);
        if !answered {
            return None;
        }
        self.has_looked = true;
        // The receiver has just written the word.
        let is_timed = self.answers.is_multiple_of(TIMED_OFFERS);
        let left = || offer.word().left();
        let bytes = if is_timed { self.distance.timed(left, |_| true) } else { left() }?;
        (self.next, self.answers) = (self.next + 1, self.answers + 1);
        self.note(bytes);
        Some(bytes)
    }

    fn describe(&mut self, first: u64, label: Label) {
        for (place, word) in self.view.words(self.next).iter().zip([first, label[0], label[1], label[2]]) {
            // Relaxed: the flag publishes them. A receiver of an offer that is withdrawn may read them meanwhile.
            place.store(word, Ordering::Relaxed);
        }
    }

    /// How many messages were published, and their bytes.
    #[cfg(all(test, not(loom)))]
    pub fn published(&self) -> (u64, u64) {
        (self.next, self.bytes)
    }

    /// The flag and value that the next free slot waits for.
    pub fn credit(&self) -> (&Flag, u64) {
        (self.view.head(), (self.next + 1).saturating_sub(u64::from(self.view.shape.slots)))
    }

    /// The ring's shape.
    pub fn shape(&self) -> Shape {
        self.view.shape
    }

    /// The flag and value that an offer's answer comes with.
    pub fn answer(&self) -> (&Flag, u64) {
        (self.view.head(), self.next + 1)
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
        Receiver::of(Parts::in_one(memory, shape), shape)
    }

    /// The receiving end of the ring in `parts`, whose control words are zeroed.
    pub fn of(parts: Parts, shape: Shape) -> Receiver {
        let (view, end) = (View::new(parts, shape), PayloadEnd::default());
        Receiver { view, next: 0, end, peeked: 0, brought: 0, known: 0, withdrawn: false, count: None }
    }

    /// The same, which counts what comes here.
    pub fn counted(mut self, count: Option<EndCount>) -> Receiver {
        self.count = count;
        self
    }

    /// A message of so many bytes has come, by the ring or past it.
    #[inline]
    pub fn note(&self, bytes: u64) {
        if let Some(count) = &self.count {
            count.add(bytes);
        }
    }

    /// The next message, where one has come. The same one until `release`.
    ///
    /// # Errors
    /// [`Kind::Remote`] where the sender claims more bytes than a slot has.
    #[inline]
    pub fn peek(&mut self) -> Result<Option<Message>> {
        let mut is_offer = false;
        if self.next >= self.known {
            // Acquires the sender's publish: line and payload are read after it.
            let raised = self.view.arrival(self.next).value();
            is_offer = raised == offered(self.next);
            if raised < offered(self.next) || (is_offer && self.withdrawn) {
                return Ok(None);
            }
            if !is_offer {
                self.known = self.next + 1;
            }
        }
        let mut words = [0u64; WORDS];
        for (place, word) in self.view.words(self.next).iter().zip(&mut words) {
            // Relaxed: the flag has published them. Read once, so that a sender that changes them later, by fault or
            // because it has withdrawn an offer, changes nothing here.
            *word = place.load(Ordering::Relaxed);
        }
        let is_packed = !is_offer && words[0] & PACKED != 0 && self.view.shape.is_spread();
        let length = words[0] & if is_packed { !PACKED } else { u64::MAX };
        let bytes = if is_offer { 0 } else { usize::try_from(length).unwrap_or(usize::MAX) };
        if bytes > self.view.shape.slot_bytes as usize {
            let message = format!("a message of {length} bytes in a slot of {}", self.view.shape.slot_bytes);
            return Err(Error::new(Kind::Remote, message));
        }
        (self.peeked, self.brought) = (if is_packed { 0 } else { bytes }, bytes as u64);
        let before = (!is_packed).then_some(self.end);
        let (payload, label) = (self.view.payload(self.next, before, bytes), [words[1], words[2], words[3]]);
        Ok(Some(Message { payload, bytes, label, is_offer }))
    }

    /// The message so many after the next one, where it has come as well: in a ring that does not spread its payloads
    /// and in which nothing is offered.
    ///
    /// # Errors
    /// As [`Receiver::peek`].
    pub fn peek_ahead(&mut self, ahead: u64) -> Result<Option<Message>> {
        if ahead == 0 {
            return self.peek();
        }
        let message = self.next + ahead;
        if self.view.shape.is_spread() || self.view.arrival(message).value() < filled(message) {
            return Ok(None);
        }
        // Relaxed: as in `peek`.
        let words = std::array::from_fn(|place| self.view.words(message)[place].load(Ordering::Relaxed));
        let [length, first, second, third]: [u64; WORDS] = words;
        let slot = self.view.shape.slot_bytes;
        let Some(bytes) = usize::try_from(length).ok().filter(|_| length <= u64::from(slot)) else {
            return Err(Error::new(Kind::Remote, format!("a message of {length} bytes in a slot of {slot}")));
        };
        let payload = self.view.payload(message, None, bytes);
        Ok(Some(Message { payload, bytes, label: [first, second, third], is_offer: false }))
    }

    /// The memory of payloads, of the host.
    pub fn memory(&self) -> HostRegion {
        self.view.parts.lines.clone()
    }

    /// Gives the slot of the last peeked message back, which has only announced one that goes past the ring.
    pub fn release_announcement(&mut self) {
        let count = self.count.take();
        self.release();
        self.count = count;
    }

    /// Takes the offer that was peeked: where the sender's memory is, and the word that says whether to go on reading
    /// it, until this end [leaves](Receiver::leave). `None` where the sender has withdrawn it: a message comes in its
    /// place.
    pub fn take_offer(&mut self) -> Option<(Whereabouts, Offer<'_>)> {
        let has_begun = self.view.offer(self.next).0.take();
        self.read_offer(has_begun)
    }

    /// The same of an offer that was taken, after a [pause](Offer::pause).
    pub fn resume_offer(&mut self) -> Option<(Whereabouts, Offer<'_>)> {
        let has_begun = self.view.offer(self.next).0.resume();
        self.read_offer(has_begun)
    }

    fn read_offer(&mut self, has_begun: bool) -> Option<(Whereabouts, Offer<'_>)> {
        let (offer, second) = self.view.offer(self.next);
        if !has_begun {
            self.withdrawn = true;
            return None;
        }
        // Relaxed: the flag has published both, and the sender writes them again only after this end has left.
        let first = self.view.words(self.next)[0].load(Ordering::Relaxed);
        Some(([first, second.load(Ordering::Relaxed)], offer))
    }

    /// Answers the offer that was taken: this end has copied `bytes`, and reads no more. False where the sender had
    /// asked it to leave: then what it has copied is void.
    #[must_use]
    pub fn leave(&mut self, bytes: u64) -> bool {
        let is_whole = self.view.offer(self.next).0.leave(bytes);
        self.known = self.next + 1;
        (self.peeked, self.brought) = (0, if is_whole { bytes } else { 0 });
        self.release();
        is_whole
    }

    /// Gives the slot of the last peeked message back.
    ///
    /// # Panics
    /// Where no message has come.
    pub fn release(&mut self) {
        assert!(self.next < self.known, "release follows a successful peek");
        (self.next, self.withdrawn) = (self.next + 1, false);
        self.end.pass(self.peeked, self.view.shape);
        self.view.head().raise(self.next);
        self.note(self.brought);
    }

    /// The flag and value that the next message waits for.
    pub fn arrival(&self) -> (&Flag, u64) {
        let value = if self.withdrawn { filled(self.next) } else { offered(self.next) };
        (self.view.arrival(self.next), value)
    }

    /// The ring's shape.
    pub fn shape(&self) -> Shape {
        self.view.shape
    }
}

/// From the beginning of a payload of `bytes` to that of the next one, where payloads are spread.
fn apart(bytes: usize) -> usize {
    bytes.next_multiple_of(PAGE_BYTES) + PAGE_BYTES
}

/// The value of a slot's flag once its message is offered there.
fn offered(message: u64) -> u64 {
    2 * message + 1
}

/// The value of a slot's flag once its message lies there.
fn filled(message: u64) -> u64 {
    2 * message + 2
}

/// Set in the length of a message whose payload is packed.
const PACKED: u64 = 1 << 63;
/// In one round of [`TIMED_ROUNDS`] through all slots the first look for credit after each message is timed; of offers,
/// the answer of one in [`TIMED_OFFERS`].
const TIMED_ROUNDS: u64 = 4;
const TIMED_OFFERS: u64 = 16;
const HEAD_BYTES: usize = Flag::LINE;
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
/// The longest payload that has a place behind its line in a ring that spreads longer ones.
const BESIDE_LINE: usize = SPREAD_LINES - 2 * LINE_BYTES;
/// From one line to the next in a ring that spreads its payloads: in pages of their own, and not all at the same place
/// of the page, which the caches' sets follow.
const SPREAD_LINES: usize = PAGE_BYTES + LINE_BYTES;
/// Words of a line: length and label.
const WORDS: usize = 4;
const INLINE_OFFSET: usize = Flag::BYTES + WORDS * size_of::<u64>();
const INLINE_BYTES: usize = LINE_BYTES - INLINE_OFFSET;

const _: () = assert!(INLINE_BYTES == 16 && LINE_BYTES == Flag::LINE);

#[cfg(not(loom))]
#[cfg(test)]
mod tests;

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::sync::flag::models::EVER;
    use crate::sync::primitive::Arc;
    use crate::sys::futex::{Membarrier, model};
    use crate::sys::memory::SharedMemory;

    /// A ring whose flags loom knows; each part in memory of its own where they lie `apart`.
    fn pair(shape: Shape, apart: bool) -> (Sender, Receiver) {
        let memory = || SharedMemory::anonymous(shape.memory_bytes()).expect("a page or two").into_region();
        let parts = if apart {
            Parts::apart(memory(), memory(), memory().as_region().clone(), shape)
        } else {
            Parts::in_one(memory(), shape)
        };
        let (sender, receiver) = (Sender::of(parts.clone(), shape), Receiver::of(parts, shape));
        for slot in 0..u64::from(shape.slots) {
            // SAFETY: the layout's own offsets, and nobody else has the memory yet.
            unsafe { Flag::lay(sender.view.line(slot, 0, Flag::BYTES)) };
        }
        // SAFETY: as above.
        unsafe { Flag::lay(sender.view.parts.head.at(0, Flag::BYTES)) };
        (sender, receiver)
    }

    /// The bytes of slots as loom sees them: it cannot watch the mapping, so whoever touches a slot there touches its
    /// cell here.
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
    fn messages_go_round(slots: u32, messages: u64, bytes: usize, apart: bool) {
        model(Membarrier::Works, move || {
            let (mut sender, mut receiver) = pair(Shape { slots, slot_bytes: 64, spread: 1 }, apart);
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
        messages_go_round(1, 2, 64, false);
    }

    #[test]
    fn slots_go_round_in_order() {
        messages_go_round(2, 3, 1, false);
    }

    #[test]
    fn control_and_payload_may_lie_apart() {
        messages_go_round(2, 3, 64, true);
    }
}
