//! A message under way: any length, in the slots of a pair's connection.
//!
//! The first slot carries the label, which has type and count of the whole message, so that the receiver can compare it
//! with its own before it takes a byte. A message of no elements takes one empty slot.
//!
//! A message goes in several pieces where the ring has more slots than [`PROMISED_MESSAGES`]: then its receiver copies
//! one piece while the sender copies the next. It takes so few slots that as many messages as are promised find room.
//! Both ends know the length of the pieces from the ring's shape.
//!
//! # One copy in place of two
//! Between ranks that share memory, a sender offers a message of [`ONE_COPY`] bytes in place ([`Sender::offer`]): the
//! receiver reads it straight from the sender's memory, which takes a rendezvous. Where that is registered, the
//! receiver has it mapped, and longer ones are offered too. To a receiver that is far, or shares this rank's processor,
//! a message of fewer bytes than [`PACKED_BELOW`] is offered only where the kernel may copy it, registered or not. A
//! receiver that does not come soon
//! would keep the sender waiting, so the sender withdraws the offer and goes on by slots, if they have room for all. If
//! the receiver cannot read the memory, or not to its end, the rest comes by slots.
//!
//! # None in place of two
//! Between hosts, a NIC that can sends a long message from where it lies to where it belongs ([`Links::hand_over`],
//! [`Links::take`]). The run keeps what stands for its memory meanwhile: it ends when the NIC is done, and dropped
//! before that, it has closed the NIC.
//!
//! [`Sender::offer`]: crate::sync::ring::Sender::offer

#![warn(clippy::wildcard_enum_match_arm)]

use std::ops::Range;
use std::ptr::NonNull;

use super::message::{Direction, Message};
use crate::device::{Average, Kernel, Pass, Store, TimedCopy, lines};
use crate::error::Result;
use crate::exec::drive::{Blocked, Progress, Task};
use crate::exec::evict::OfferReader;
use crate::exec::{self, Operation, is_same, mismatch, sequence};
use crate::sync::AwaitedMessage;
use crate::sync::ring::{Label, PostedOffer, Sender, Shape, Whereabouts};
use crate::sys::cpu;
use crate::transport::{Announced, Channel, Links, Need, Neighbour, NicHold, OfferedRange, PeerCalls, Taken};
use crate::types::{CarriedBy, Collective, DataType, Rank};

/// A message under way. It is moved several times while it begins, so it is small: what its label says is not kept a
/// second time.
#[derive(Debug)]
pub struct MessageRun<'a> {
    message: Message<'a>,
    channel: Channel,
    collective: Collective,
    /// How a receiver writes the caller's memory.
    store: Store,
    /// A receiver whose message has not begun, but of which something was moved, has paused in the sender's memory.
    begun: bool,
    label: Label,
    bytes: usize,
    moved: usize,
    /// Of a sender whose message is offered in place.
    offer: Option<Box<OpenOffer>>,
    /// What a NIC has of the message's memory.
    holds: Vec<NicHold>,
}

/// The sender's offer of its memory. Dropping it waits until the receiver reads the memory no more.
#[derive(Debug)]
struct OpenOffer {
    posted: PostedOffer,
    receiver: Neighbour,
    /// Where to count it once the receiver, which has the memory mapped, has read it there.
    lent: Option<PeerCalls>,
    /// How often the sender has looked for the receiver.
    looks: u32,
    /// The receiver that was asked to leave.
    reader: Option<OfferReader>,
}

impl OpenOffer {
    /// Takes the offer back, or asks the receiver that has taken it to leave. Whether it reads the memory no more.
    fn is_over(&mut self) -> bool {
        let word = self.posted.word();
        if self.reader.is_none() {
            if word.withdraw() || !word.is_taken() {
                return true;
            }
            self.reader = Some(OfferReader::stop(word, self.receiver));
        }
        self.reader.as_ref().is_none_or(|reader| reader.is_out(word))
    }
}

impl Drop for OpenOffer {
    fn drop(&mut self) {
        while !self.is_over() {
            OfferReader::rest();
        }
    }
}

/// What a look at a message's connection found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// The message can do nothing.
    Nothing,
    /// The message looks again soon, once others have been looked at.
    Again,
    /// Something was moved.
    Moved,
}

/// The connections by which the messages of a call travel, on the host and on devices. Those of which a collective is
/// made have connections of their own: they wait for no message that was begun before them, and no other collective
/// runs beside them.
pub fn channel_of(call: Collective) -> Channel {
    match call.definition().carried {
        CarriedBy::UserMessages => Channel::PointToPoint,
        CarriedBy::Messages | CarriedBy::Plan => Channel::Collective(0),
    }
}

impl<'a> MessageRun<'a> {
    /// A message that has been checked and has not begun; its connection is open when it runs. It has number `sequence`
    /// among the messages from its sender to its receiver; `collective` is what it is a part of.
    #[inline(always)]
    pub fn new(message: Message<'a>, collective: Collective, sequence: u64) -> MessageRun<'a> {
        let label = label_of(&message, collective, (sequence, message.count()));
        let (channel, bytes) = (channel_of(collective), message.bytes());
        let (store, moved, begun) = (Store::Cached, 0, false);
        MessageRun { message, channel, collective, store, begun, label, bytes, moved, offer: None, holds: Vec::new() }
    }

    /// A message that is a part of `operation`. Both ends compare the `whole` number of elements if there is one, else
    /// those of the message.
    pub fn of_collective(message: Message<'a>, operation: &Operation, whole: Option<u64>) -> MessageRun<'a> {
        let mut run = MessageRun::new(message, operation.collective, operation.sequence);
        if let Some(whole) = whole {
            run.label = label_of(&run.message, operation.collective, (operation.sequence, whole));
        }
        run
    }

    /// The same, which writes past the caches where it receives at least `bytes`: more than the caches keep, and a line
    /// that is written whole need not be read from memory first.
    #[inline(always)]
    pub fn streaming_from(mut self, bytes: u64) -> MessageRun<'a> {
        if self.bytes as u64 >= bytes {
            self.store = Store::Streaming;
        }
        self
    }

    /// The connection's end that the message needs.
    pub fn need(&self) -> Need {
        Need { channel: self.channel, ..self.message.need() }
    }

    /// The same as a part of a collective that `past` stands before.
    pub fn after(mut self, past: u64) -> MessageRun<'a> {
        self.label = exec::relabelled(self.label, sequence(self.label), past);
        self
    }

    /// The other end.
    pub fn peer(&self) -> Rank {
        self.message.peer()
    }

    /// How many bytes it has.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A message that has failed takes its offer back, and its memory from a NIC. Whether nobody reads its memory any
    /// more; a receiver that reads is asked to leave, and is given a moment. Dropping the message waits for the same.
    pub fn leave(&mut self) -> bool {
        self.holds.clear();
        if self.offer.as_mut().is_none_or(|open| open.is_over()) {
            self.offer = None;
        }
        self.offer.is_none()
    }

    /// What the message is called in errors: "send #3 to rank 1".
    pub fn name(&self) -> String {
        self.awaited().full_name()
    }

    /// The message as one that is waited for.
    pub fn awaited(&self) -> AwaitedMessage {
        let (peer, call, number) = (self.peer(), self.called(), sequence(self.label));
        AwaitedMessage { peer, call, number, sends: self.sends() }
    }

    /// What this rank called: both ends of a message have the label of a send.
    fn called(&self) -> Collective {
        let is_recv = self.collective == Collective::Send && !self.sends();
        if is_recv { Collective::Recv } else { self.collective }
    }

    fn sends(&self) -> bool {
        self.message.sends()
    }

    /// False where a look at a message that has not begun would find nothing: a receiver's, to which nothing has come.
    #[inline]
    pub fn may_move(&self, links: &Links) -> bool {
        let comes_by_ring = !self.sends() && !links.has_pumps();
        let receiver = if comes_by_ring { links.receiver_ref(self.peer(), self.channel) } else { None };
        receiver.is_none_or(|receiver| {
            let (flag, target) = receiver.arrival();
            flag.reached(target)
        })
    }

    fn complete(&self) -> bool {
        self.begun && self.moved == self.bytes && self.holds.is_empty()
    }

    fn send(&mut self, from: *const u8, links: &mut Links) -> Result<Look> {
        if self.offer.is_some() {
            return Ok(self.await_answer(links));
        }
        if !self.begun
            && self.bytes >= ONE_COPY.start
            && let Some((whereabouts, lent)) = self.whereabouts(from, links)?
        {
            return Ok(self.offer((whereabouts, lent), links));
        }
        if links.hands_over((self.peer(), self.channel), self.bytes) {
            return self.hand_over(from, links);
        }
        self.fill_slot(from, links)
    }

    /// Lends the message to a NIC, in the pieces that slots hold, since the receiver may be in another call; as a whole
    /// where its ring would not hold all of them. It ends when all have gone.
    fn hand_over(&mut self, from: *const u8, links: &mut Links) -> Result<Look> {
        self.holds.retain(|hold| !hold.is_over());
        if self.moved == self.bytes {
            return Ok(if self.holds.is_empty() { Look::Moved } else { Look::Nothing });
        }
        let (end, shape) = ((self.peer(), self.channel), links.sender(self.peer(), self.channel).shape());
        let length = if self.bytes > capacity(shape) { self.bytes } else { self.next_piece(shape) };
        if !links.hands_over(end, length) {
            return self.fill_slot(from, links);
        }
        // SAFETY: inside the message's memory, which is good for reading as long as this run, which keeps the answer.
        let hold = unsafe { links.hand_over(end, from.wrapping_add(self.moved), (length, self.label)) }?;
        let Some(hold) = hold else { return Ok(Look::Nothing) };
        self.holds.push(hold);
        Ok(self.advance(length))
    }

    /// Where the receiver can read the message in place, if it can, and where to count that in lent memory.
    fn whereabouts(&self, from: *const u8, links: &mut Links) -> Result<Option<(Whereabouts, Option<PeerCalls>)>> {
        let (peer, bytes) = (self.peer(), self.bytes);
        let (has_registered, shares) = (links.has_registered(), links.shares_processor);
        let is_packed = is_packed(bytes, (links.sender(peer, self.channel), shares));
        // What the kernel may copy is offered all the same, and then its mapping is quicker.
        if has_registered
            && (!is_packed || links.reads.may_offer(peer))
            && links.sender(peer, self.channel).has_credit()
        {
            // SAFETY: the message's memory is good for reading.
            let lent = unsafe { links.lend((peer, self.channel), from..from.wrapping_add(bytes)) }?;
            if let Some((lent, calls)) = lent {
                return Ok(Some((lent.words(), Some(calls))));
            }
        }
        let may_offer = ONE_COPY.contains(&bytes) && links.reads.may_offer(peer);
        let whereabouts = || [links.reads.witness().unwrap_or(0), from.expose_provenance() as u64];
        Ok(may_offer.then(|| (whereabouts(), None)))
    }

    fn fill_slot(&mut self, from: *const u8, links: &mut Links) -> Result<Look> {
        let end = (self.peer(), self.channel);
        let length = self.next_piece(links.sender(end.0, end.1).shape());
        let source = from.wrapping_add(self.moved);
        let left = self.bytes - self.moved;
        if left > length {
            // SAFETY: what is left of the message's memory; a slot never overlaps user memory.
            let passed = unsafe { links.pass_pieces(end, source, (left, length, self.label)) }?;
            if passed > 0 {
                return Ok(self.advance(passed));
            }
        }
        // SAFETY: the source is inside the message's memory, since moved + length <= bytes; a slot never overlaps user
        // memory.
        if unsafe { links.pass(end, source, (length, self.label)) }? {
            return Ok(self.advance(length));
        }
        let shares = links.shares_processor;
        let sender = links.sender(end.0, end.1);
        if !self.begun && self.bytes > SHORT {
            sender.pack(is_packed(self.bytes, (sender, shares)));
        }
        let Some(slot) = sender.reserve(length) else { return Ok(Look::Nothing) };
        // What a pump sends to a socket is read here.
        let mut turn = if links.has_pumps() { TimedCopy::untimed(Store::Cached) } else { links.staging.turn(length) };
        turn.begin();
        let is_short = length <= SHORT && turn.store == Store::Cached;
        let by = if is_short { CopyBy::Memory } else { CopyBy::Kernel(turn.store) };
        // SAFETY: as above; the slot is reserved and as large as its shape says.
        unsafe { copy((source, slot.as_ptr()), length, by) };
        turn.end();
        links.staging.learn(&turn, length);
        let sender = links.sender(end.0, end.1);
        sender.publish(length, self.label);
        if ASKED.contains(&length) {
            sender.prefetch_next(length);
        }
        Ok(self.advance(length))
    }

    /// The bytes that go next by a ring of `shape`.
    fn next_piece(&self, shape: Shape) -> usize {
        (self.bytes - self.moved).min(piece_bytes(self.bytes, shape))
    }

    fn advance(&mut self, length: usize) -> Look {
        self.moved += length;
        self.begun = true;
        Look::Moved
    }

    /// Offers the receiver to read the message in place.
    fn offer(&mut self, (whereabouts, lent): (Whereabouts, Option<PeerCalls>), links: &mut Links) -> Look {
        let peer = self.peer();
        let Some(posted) = links.sender(peer, self.channel).offer(whereabouts, self.label) else {
            return Look::Nothing;
        };
        let receiver = links.reader(peer);
        self.offer = Some(Box::new(OpenOffer { posted, receiver, lent, looks: 0, reader: None }));
        Look::Again
    }

    /// Looks whether the receiver has read the message. If it does not come soon, the message goes into the slots, as
    /// far as they have room for all of it.
    fn await_answer(&mut self, links: &mut Links) -> Look {
        let (peer, bytes) = (self.peer(), self.bytes);
        let Some(open) = &mut self.offer else { return Look::Nothing };
        let sender = links.sender(peer, self.channel);
        if let Some(taken) = sender.settled(&open.posted) {
            let taken = usize::try_from(taken).unwrap_or(bytes).min(bytes);
            if let Some(calls) = open.lent.as_ref().filter(|_| taken == bytes) {
                calls.note();
            }
            let is_lent = open.lent.is_some();
            (self.moved, self.begun, self.offer) = (taken, true, None);
            if taken == 0 && !is_lent {
                links.reads.refused_by(peer);
            }
            return Look::Moved;
        }
        let shape = sender.shape();
        if bytes > capacity(shape) {
            return Look::Nothing;
        }
        if open.looks < LOOKS {
            open.looks += 1;
            cpu::relax();
            return Look::Again;
        }
        if !open.posted.word().withdraw() {
            return Look::Nothing;
        }
        (self.begun, self.offer) = (true, None);
        Look::Moved
    }

    /// Reads the offered message in place, a part at a look. What cannot be read comes by slots.
    fn read_in_place(&mut self, into: *mut u8, links: &mut Links) -> Look {
        let peer = self.peer();
        let shared = links.registered();
        let (receiver, reads) = links.receiver_and_reads(peer, self.channel);
        let taken = if self.moved > 0 { receiver.resume_offer() } else { receiver.take_offer() };
        let Some((whereabouts, word)) = taken else {
            self.moved = 0;
            return Look::Nothing;
        };
        let [witness, start] = whereabouts;
        let lent = OfferedRange::of_words(whereabouts);
        let lent = lent.map(|range| shared.and_then(|windows| windows.lent_by(peer, range, self.bytes)));
        let mut moved = self.moved;
        let most = self.bytes.min(moved.saturating_add(LOOK_BYTES));
        while moved < most && !word.is_stopped() {
            let length = (most - moved).min(READ_BYTES);
            let address = start.wrapping_add(moved as u64);
            let Some(place) = NonNull::new(into.wrapping_add(moved)) else { break };
            if let Some(lent) = lent {
                // What it has not registered comes by slots.
                let Some(lent) = lent else { break };
                let source = lent.as_ptr().wrapping_add(moved).cast_const();
                // SAFETY: moved + length <= bytes, for which both are good; memory of two ranks never overlaps.
                unsafe { copy((source, place.as_ptr()), length, CopyBy::Kernel(self.store)) };
                moved += length;
                continue;
            }
            // SAFETY: moved + length <= bytes, for which the caller's memory is good.
            let read = unsafe { reads.read(peer, Announced { witness, address }, (place, length)) };
            moved += read.min(length);
            if read < length {
                break;
            }
        }
        if moved == most && most < self.bytes && !word.is_stopped() {
            word.pause();
            self.moved = moved;
            return Look::Again;
        }
        // A sender that has given up may have written its memory again: nothing was received, and nothing will come.
        let is_whole = receiver.leave(moved as u64);
        (self.moved, self.begun) = (if is_whole { moved } else { 0 }, true);
        Look::Moved
    }

    fn recv(&mut self, into: *mut u8, links: &mut Links) -> Result<Look> {
        if links.comes_whole((self.peer(), self.channel), self.bytes) {
            return self.recv_whole(into, links);
        }
        let receiver = links.receiver(self.peer(), self.channel);
        let Some(message) = receiver.peek().map_err(|error| error.about(self.peer()))? else {
            return self.take(into, links);
        };
        if message.is_offer && is_same(message.label, self.label) && !self.begun {
            return Ok(self.read_in_place(into, links));
        }
        let due = self.next_piece(receiver.shape());
        if !is_same(message.label, self.label) || message.bytes != due {
            return Err(mismatch(exec::called(self.label, self.called()), self.peer(), message.label));
        }
        let target = into.wrapping_add(self.moved);
        let source = message.payload.as_ptr().cast_const();
        let by = if self.store == Store::Cached { CopyBy::Memory } else { CopyBy::Kernel(self.store) };
        // SAFETY: the target is inside the message's memory, since moved + due <= bytes; the slot holds `due` bytes,
        // ours until released; a slot never overlaps user memory.
        unsafe { copy((source, target), due, by) };
        receiver.release();
        Ok(self.advance(due))
    }

    /// Receives a message that the ring announces and a NIC brings.
    fn recv_whole(&mut self, into: *mut u8, links: &mut Links) -> Result<Look> {
        let end = (self.peer(), self.channel);
        if !self.begun {
            let receiver = links.receiver(end.0, end.1);
            let Some(message) = receiver.peek().map_err(|error| error.about(end.0))? else {
                return Ok(Look::Nothing);
            };
            if !is_same(message.label, self.label) || message.bytes != 0 {
                return Err(mismatch(exec::called(self.label, self.called()), end.0, message.label));
            }
            receiver.release_announcement();
            self.begun = true;
        }
        self.take_piece((into, self.bytes), links)
    }

    /// Receives the next slot's worth past the ring, in which nothing lies.
    fn take(&mut self, into: *mut u8, links: &mut Links) -> Result<Look> {
        let due = self.next_piece(links.receiver(self.peer(), self.channel).shape());
        self.take_piece((into.wrapping_add(self.moved), due), links)
    }

    fn take_piece(&mut self, (into, due): (*mut u8, usize), links: &mut Links) -> Result<Look> {
        let (end, mut hold) = ((self.peer(), self.channel), None);
        // SAFETY: the target is inside the message's memory, since moved + due <= bytes; as long as this run, which
        // keeps what is left in `hold`.
        let taken = unsafe { links.take(end, (into, &mut hold), (due, self.label)) };
        self.holds.extend(hold);
        match taken? {
            Taken::ByRing | Taken::Open(false) => Ok(Look::Nothing),
            Taken::Open(true) => Ok(Look::Again),
            Taken::Whole => {
                self.holds.clear();
                Ok(self.advance(due))
            }
        }
    }
}

/// [`MessageRun::leave`] of all of them.
pub fn leave_all<'a, 'b: 'a>(runs: impl IntoIterator<Item = &'a mut MessageRun<'b>>) -> bool {
    let mut are_out = true;
    for run in runs {
        // All are asked, whatever the first says.
        are_out &= run.leave();
    }
    are_out
}

impl Task for MessageRun<'_> {
    fn progress(&mut self, links: &mut Links) -> Result<Progress> {
        let mut moved = Progress::Idle;
        while !self.complete() {
            let look = match self.message.direction {
                Direction::Send(from) => self.send(from, links)?,
                Direction::Recv(into) => self.recv(into, links)?,
            };
            match look {
                Look::Nothing => return Ok(moved),
                Look::Again => return Ok(Progress::Moved),
                Look::Moved => moved = Progress::Moved,
            }
        }
        Ok(Progress::Done)
    }

    fn blocked<'a>(&'a self, links: &'a Links) -> Option<Blocked<'a>> {
        let flag = match self.message.direction {
            Direction::Send(_) if self.offer.is_some() => links.sender_ref(self.peer(), self.channel)?.answer(),
            Direction::Send(_) => links.sender_ref(self.peer(), self.channel)?.credit(),
            Direction::Recv(_) => links.receiver_ref(self.peer(), self.channel)?.arrival(),
        };
        Some(Blocked { flag })
    }

    fn is_with_nic(&self, links: &Links) -> bool {
        let hands_over = || self.sends() && links.hands_over((self.peer(), self.channel), self.bytes);
        !self.holds.is_empty() || (self.offer.is_none() && hands_over())
    }

    fn waiting_for(&self) -> String {
        let message = self.awaited();
        let other = match (message.call, self.message.direction) {
            (Collective::Send | Collective::Recv, Direction::Send(_)) => "recv for",
            (Collective::Send | Collective::Recv, Direction::Recv(_)) => "send for",
            // A part of a collective.
            (_, Direction::Send(_) | Direction::Recv(_)) => "part of",
        };
        format!("rank {} (its {other} {message})", self.peer())
    }

    fn messages(&self) -> Option<Vec<AwaitedMessage>> {
        Some(vec![self.awaited()])
    }
}

/// The label of a message, or of a part of a collective.
#[inline]
fn label_of(message: &Message<'_>, collective: Collective, (sequence, count): (u64, u64)) -> Label {
    let data_type = message.data_type();
    let (op, root, past, on_device, windows) = (None, None, 0, false, 0);
    Operation { collective, data_type, op, root, count, sequence, past, on_device, windows }.label()
}

/// How bytes are copied.
#[derive(Debug, Clone, Copy)]
enum CopyBy {
    /// As the compiler copies memory.
    Memory,
    /// By the kernel that copies, with these stores.
    Kernel(Store),
}

/// Copies `length` bytes from one place to the other.
///
/// # Safety
/// The first place is good for reading so many bytes and the second for writing; they do not overlap.
#[inline]
unsafe fn copy((source, target): (*const u8, *mut u8), length: usize, by: CopyBy) {
    let CopyBy::Kernel(store) = by else {
        // SAFETY: the caller's promise.
        return unsafe { std::ptr::copy_nonoverlapping(source, target, length) };
    };
    let (sources, targets) = (&[source], &[target]);
    let (raw, finish, average) = (None, false, Average::Sum);
    let pass = Pass { sources, raw, targets, count: length, finish, average, store };
    // SAFETY: as above.
    unsafe { Kernel::copy(DataType::U8).run(&pass) };
}

/// Whether a message of `bytes`, which the kernel may not copy, goes by slots that are used again at once, and neither
/// by the receiver's copy out of registered memory nor by slots that are spread: a rendezvous takes four trips of a
/// line, and what spreading saves near processors it costs far ones, and ranks that share a processor, whose caches
/// then keep less.
fn is_packed(bytes: usize, (sender, shares_processor): (&Sender, bool)) -> bool {
    bytes < PACKED_BELOW && (sender.is_far() || shares_processor)
}

/// Bytes that the slots of a ring hold together.
fn capacity(shape: Shape) -> usize {
    shape.slots as usize * shape.slot_bytes as usize
}

/// The bytes of each piece but the last of a message of `bytes`, by a ring of `shape`.
fn piece_bytes(bytes: usize, shape: Shape) -> usize {
    let slot = shape.slot_bytes as usize;
    if bytes <= LEAST_PIECE {
        return slot;
    }
    let pieces = (shape.slots / PROMISED_MESSAGES).max(1) as usize;
    bytes.div_ceil(pieces).next_multiple_of(64).max(LEAST_PIECE).min(slot)
}

/// How many messages a connection has room for, as `send` documents it, where each is at most an eighth of its bytes.
pub const PROMISED_MESSAGES: u32 = 8;
const _: () = assert!(lines::SLOTS >= PROMISED_MESSAGES, "messages by LL and LL128 keep the promise too");
/// A shorter piece costs more time than it saves (measured: `bench/NOTES.md`, "Messages in quarters").
const LEAST_PIECE: usize = 8 << 10;

/// Bytes of messages that are offered in place.
const ONE_COPY: Range<usize> = 8 << 10..2 << 20;
/// A receiver that is far, or shares this rank's processor, gets messages of fewer bytes by slots that are used again
/// at once, whatever memory they lie in, unless the kernel may copy them (measured: `bench/NOTES.md`, "Messages to a
/// far processor").
const PACKED_BELOW: usize = 2 << 20;
/// Pieces after which the sender asks for the lines of the next. Shorter ones became slower with it.
const ASKED: Range<usize> = 768..8 << 10;
/// Bytes that a receiver reads before it looks whether the sender still wants that.
const READ_BYTES: usize = 1 << 20;
/// Bytes that a receiver reads before others have their turn.
const LOOK_BYTES: usize = 2 * READ_BYTES;
/// Pieces that a sender copies without asking for the kernel.
const SHORT: usize = 2 << 10;
/// Looks for a receiver before a sender withdraws its offer: some 2 µs, which a copy of the least such message takes.
const LOOKS: u32 = 64;

/// The messages of one connection's end, one after the other.
#[derive(Debug)]
pub struct MessageQueue<'a, 'b> {
    runs: Vec<&'a mut MessageRun<'b>>,
    at: usize,
}

impl<'a, 'b> MessageQueue<'a, 'b> {
    /// One queue for each connection's end, each in the order of `runs`.
    pub fn by_connection(runs: &'a mut [MessageRun<'b>]) -> Vec<MessageQueue<'a, 'b>> {
        let mut queues: Vec<MessageQueue<'a, 'b>> = Vec::new();
        for run in runs {
            let same = |queue: &&mut MessageQueue<'a, 'b>| {
                let first = &queue.runs[0];
                first.peer() == run.peer() && first.sends() == run.sends()
            };
            match queues.iter_mut().find(same) {
                Some(queue) => queue.runs.push(run),
                None => queues.push(MessageQueue { runs: vec![run], at: 0 }),
            }
        }
        queues
    }
}

impl Task for MessageQueue<'_, '_> {
    fn progress(&mut self, links: &mut Links) -> Result<Progress> {
        let mut moved = Progress::Idle;
        while let Some(run) = self.runs.get_mut(self.at) {
            match run.progress(links)? {
                Progress::Done => self.at += 1,
                Progress::Moved => return Ok(Progress::Moved),
                Progress::Idle => return Ok(moved),
            }
            moved = Progress::Moved;
        }
        Ok(Progress::Done)
    }

    fn blocked<'c>(&'c self, links: &'c Links) -> Option<Blocked<'c>> {
        self.runs.get(self.at)?.blocked(links)
    }

    fn is_with_nic(&self, links: &Links) -> bool {
        self.runs.get(self.at).is_some_and(|run| run.is_with_nic(links))
    }

    fn waiting_for(&self) -> String {
        self.runs.get(self.at).map_or_else(String::new, |run| run.waiting_for())
    }

    fn messages(&self) -> Option<Vec<AwaitedMessage>> {
        let open = if self.at < self.runs.len() { &self.runs[self.at..] } else { &self.runs[self.runs.len() - 1..] };
        Some(open.iter().map(|run| run.awaited()).collect())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
