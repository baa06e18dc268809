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
//! receiver reads it straight from the sender's memory, which takes a rendezvous. A receiver that does not come soon
//! would keep the sender waiting, so the sender withdraws the offer and goes on by slots, if they have room for all. If
//! the receiver cannot read the memory, or not to its end, the rest comes by slots.
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
use crate::sync::ring::{Label, PostedOffer, Shape};
use crate::sys::alive::Process;
use crate::sys::cpu;
use crate::transport::{Announced, Channel, Links, Need, Taken};
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
    begun: bool,
    label: Label,
    bytes: usize,
    moved: usize,
    /// Of a sender whose message is offered in place.
    offer: Option<Box<OpenOffer>>,
}

/// The sender's offer of its memory. Dropping it waits until the receiver reads the memory no more.
#[derive(Debug)]
struct OpenOffer {
    posted: PostedOffer,
    /// The receiver's.
    process: Option<Process>,
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
            self.reader = Some(OfferReader::stop(word, self.process));
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
    #[inline]
    pub fn new(message: Message<'a>, collective: Collective, sequence: u64) -> MessageRun<'a> {
        let label = label_of(&message, collective, (sequence, message.count()));
        let (channel, bytes) = (channel_of(collective), message.bytes());
        let (store, moved, begun) = (Store::Cached, 0, false);
        MessageRun { message, channel, collective, store, begun, label, bytes, moved, offer: None }
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
    #[inline]
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

    /// A message that has failed takes its offer back. Whether nobody reads its memory any more; a receiver that reads
    /// is asked to leave, and is given a moment. Dropping the message waits for the same.
    pub fn leave(&mut self) -> bool {
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

    fn complete(&self) -> bool {
        self.begun && self.moved == self.bytes
    }

    fn send(&mut self, from: *const u8, links: &mut Links) -> Result<Look> {
        if self.offer.is_some() {
            return Ok(self.await_answer(links));
        }
        if !self.begun && ONE_COPY.contains(&self.bytes) && links.reads.may_offer(self.peer()) {
            return Ok(self.offer(from, links));
        }
        self.fill_slot(from, links)
    }

    fn fill_slot(&mut self, from: *const u8, links: &mut Links) -> Result<Look> {
        let end = (self.peer(), self.channel);
        let length = self.next_piece(links.sender(end.0, end.1).shape());
        let source = from.wrapping_add(self.moved);
        // SAFETY: the source is inside the message's memory, since moved + length <= bytes; a slot never overlaps user
        // memory.
        if unsafe { links.pass(end, source, (length, self.label)) }? {
            return Ok(self.advance(length));
        }
        let Some(slot) = links.sender(end.0, end.1).reserve(length) else { return Ok(Look::Nothing) };
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
    fn offer(&mut self, from: *const u8, links: &mut Links) -> Look {
        let (peer, witness) = (self.peer(), links.reads.witness().unwrap_or(0));
        let whereabouts = [witness, from.expose_provenance() as u64];
        let Some(posted) = links.sender(peer, self.channel).offer(whereabouts, self.label) else {
            return Look::Nothing;
        };
        self.offer = Some(Box::new(OpenOffer { posted, process: links.reads.process(peer), looks: 0, reader: None }));
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
            (self.moved, self.begun, self.offer) = (taken, true, None);
            if taken == 0 {
                links.reads.refused_by(peer);
            }
            return Look::Moved;
        }
        let shape = sender.shape();
        if bytes > shape.slots as usize * shape.slot_bytes as usize {
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

    /// Reads the offered message in place. What cannot be read comes by slots.
    fn read_in_place(&mut self, into: *mut u8, links: &mut Links) -> Look {
        let peer = self.peer();
        let (receiver, reads) = links.receiver_and_reads(peer, self.channel);
        let Some(([witness, start], word)) = receiver.take_offer() else { return Look::Nothing };
        let mut moved = 0;
        while moved < self.bytes && !word.is_stopped() {
            let length = (self.bytes - moved).min(READ_BYTES);
            let address = start.wrapping_add(moved as u64);
            let Some(place) = NonNull::new(into.wrapping_add(moved)) else { break };
            // SAFETY: moved + length <= bytes, for which the caller's memory is good.
            let read = unsafe { reads.read(peer, Announced { witness, address }, (place, length)) };
            moved += read.min(length);
            if read < length {
                break;
            }
        }
        receiver.leave(moved as u64);
        (self.moved, self.begun) = (moved, true);
        Look::Moved
    }

    fn recv(&mut self, into: *mut u8, links: &mut Links) -> Result<Look> {
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

    /// Receives the next slot's worth past the ring, in which nothing lies.
    fn take(&mut self, into: *mut u8, links: &mut Links) -> Result<Look> {
        let end = (self.peer(), self.channel);
        let due = self.next_piece(links.receiver(end.0, end.1).shape());
        // SAFETY: the target is inside the message's memory, since moved + due <= bytes.
        match unsafe { links.take(end, into.wrapping_add(self.moved), (due, self.label)) }? {
            Taken::ByRing | Taken::Open(false) => Ok(Look::Nothing),
            Taken::Open(true) => Ok(Look::Again),
            Taken::Whole => Ok(self.advance(due)),
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
/// Pieces after which the sender asks for the lines of the next. Shorter ones became slower with it.
const ASKED: Range<usize> = 768..8 << 10;
/// Bytes that a receiver reads before it looks whether the sender still wants that.
const READ_BYTES: usize = 1 << 20;
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
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bootstrap::{Bootstrap, LocalBootstrap};
    use crate::error::{Error, Kind};
    use crate::exec::drive::drive_one;
    use crate::exec::turn::{CallTurn, NoBackground, WaitContext};
    use crate::sync::{AbortFlag, Deadline, Patience, Wait, Waiting, Watch};
    use crate::sys::clock;
    use crate::sys::numa::ThreadHome;
    use crate::sys::thread;
    use crate::transport::{Fabric, PeerInfo, Policy, Receivers, Setup, Sizes, SocketOptions, Way};
    use crate::types::World;

    /// Ends a wait that lasts longer than any machine needs.
    struct Limit(Deadline);

    impl Watch for Limit {
        fn look(&mut self, waiting_for: &dyn Waiting) -> Result<()> {
            if self.0.passed(clock::now()) { Err(Error::timeout(waiting_for.words())) } else { Ok(()) }
        }
    }

    const LIMIT: Duration = Duration::from_secs(60);

    /// What a rank of two has that share memory, with a connection from rank 0 to rank 1.
    struct Side {
        bootstrap: LocalBootstrap,
        fabric: Fabric,
    }

    impl Side {
        fn new(bootstrap: LocalBootstrap, policy: Policy) -> Side {
            let token = crate::transport::process_token().unwrap();
            let peers: Vec<PeerInfo> = (0..2)
                .map(|rank| {
                    let (rank, home, pid) = (Rank::new(rank), ThreadHome::default(), std::process::id());
                    PeerInfo {
                        rank,
                        host: 1,
                        process: token,
                        pid,
                        space: 0,
                        cores: 2,
                        settings: 0,
                        tuning: 0,
                        home,
                        switches: [0; 4],
                        is_traced: false,
                    }
                })
                .collect();
            let sockets = SocketOptions::default();
            let shape = Shape { slots: 4, slot_bytes: 16 << 10, spread: 1 };
            let sizes =
                Sizes { shape, messages_in_memory: shape, messages_over_sockets: shape, scratch_bytes: 4096, sockets };
            let (rank, wait) = (bootstrap.world().rank, Wait::new(LIMIT, &AbortFlag::new()));
            let mut fabric = Fabric::new(World { rank, size: 2 }, &peers, policy, sizes);
            let (way, peer) = if rank.get() == 0 { (Way::Send, 1) } else { (Way::Receive, 0) };
            let need = Need { way, peer: Rank::new(peer), channel: Channel::PointToPoint };
            let mut watch = Limit(Deadline::after(LIMIT));
            let mut turn = CallTurn {
                patience: &mut Patience::fixed(16, Duration::from_micros(20)),
                watch: &mut watch,
                bootstrap: &bootstrap,
                background: &mut NoBackground,
                progress: None,
            };
            let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, turn: &mut turn };
            fabric.connect(&[need], Receivers::Come, &mut setup).unwrap();
            Side { bootstrap, fabric }
        }

        fn run(&mut self, run: &mut MessageRun<'_>) -> Result<()> {
            self.run_within(LIMIT, run)
        }

        fn run_within(&mut self, limit: Duration, run: &mut MessageRun<'_>) -> Result<()> {
            let turn = CallTurn {
                patience: &mut Patience::fixed(16, Duration::from_micros(20)),
                watch: &mut Limit(Deadline::after(limit)),
                bootstrap: &self.bootstrap,
                background: &mut NoBackground,
                progress: None,
            };
            let mut wait_context = WaitContext { turn, fabric: &mut self.fabric };
            drive_one(run, &mut wait_context)
        }

        fn links(&mut self) -> &mut Links {
            self.fabric.links()
        }
    }

    fn sending(data: &[u8]) -> MessageRun<'_> {
        MessageRun::new(Message::send(data, Rank::new(1)), Collective::Send, 0)
    }

    fn receiving(into: &mut [u8]) -> MessageRun<'_> {
        MessageRun::new(Message::recv(into, Rank::new(0)), Collective::Send, 0)
    }

    /// Both sides, connected.
    fn sides(policy: Policy) -> [Side; 2] {
        // However fast this machine's kernel copies.
        let policy = Policy { slow_peer_reads: true, ..policy };
        let connect = |bootstrap| Side::new(bootstrap, policy);
        let sides = thread::side_by_side("rank", LocalBootstrap::world(2).unwrap(), connect, || ()).unwrap();
        sides.try_into().unwrap_or_else(|_| unreachable!("two ranks"))
    }

    fn data(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|at| u8::try_from(at % 251).expect("below 251")).collect()
    }

    /// Messages and bytes that went through slots.
    fn through_slots(sender: &mut Side) -> (u64, u64) {
        sender.links().sender(Rank::new(1), Channel::PointToPoint).published()
    }

    /// Smaller and larger than all slots together, as threads and as processes are connected.
    #[test]
    fn a_message_that_is_waited_for_is_copied_once() {
        for no_local in [false, true] {
            let [mut sender, mut receiver] = sides(Policy { no_local, ..Policy::default() });
            for bytes in [16 << 10, 50_001, 1 << 20] {
                let (sent, mut got) = (data(bytes), vec![0; bytes]);
                let before = through_slots(&mut sender).1;
                let mut send = sending(&sent);
                assert_eq!(send.progress(sender.links()).unwrap(), Progress::Moved, "offered, not sent");
                receiver.run(&mut receiving(&mut got)).unwrap();
                sender.run(&mut send).unwrap();
                assert!(got == sent && through_slots(&mut sender).1 == before, "{bytes}");
            }
        }
    }

    /// The promise of `send`: a message that finds room does not wait for its receiver.
    #[test]
    fn a_message_whose_receiver_is_late_goes_through_all_slots() {
        let [mut sender, mut receiver] = sides(Policy::default());
        for _ in 0..3 {
            let (sent, mut got) = (data(64 << 10), vec![0; 64 << 10]);
            let mut recv = receiving(&mut got);
            assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Idle);
            sender.run(&mut sending(&sent)).unwrap();
            receiver.run(&mut recv).unwrap();
            drop(recv);
            assert!(got == sent);
        }
        assert_eq!(through_slots(&mut sender), (12, 3 << 16));
    }

    #[test]
    fn the_pieces_of_the_promised_messages_fit_their_ring_whatever_the_length() {
        for slots in [8, 32, 64] {
            let shape = Shape { slots, slot_bytes: (1 << 20) / slots, spread: 1 };
            for bytes in [0_usize, 1, 63, 8 << 10, (8 << 10) + 1, 33_000, 100_001, 128 << 10] {
                let pieces = bytes.div_ceil(piece_bytes(bytes, shape)).max(1);
                assert!(
                    pieces * PROMISED_MESSAGES as usize <= slots as usize,
                    "{pieces} pieces of {bytes} in {slots} slots"
                );
            }
            assert_eq!((128_usize << 10).div_ceil(piece_bytes(128 << 10, shape)), (slots / PROMISED_MESSAGES) as usize);
        }
    }

    #[test]
    fn a_receiver_that_may_not_read_gets_the_message_through_slots() {
        let [mut sender, mut receiver] = sides(Policy::default());
        receiver.links().reads.refused_by(Rank::new(0));
        for turn in 0..2 {
            let (sent, mut got) = (data(60_000), vec![0; 60_000]);
            let mut send = sending(&sent);
            let _under_way = send.progress(sender.links()).unwrap();
            assert_eq!(send.offer.is_some(), turn == 0, "a refusal is remembered");
            let mut recv = receiving(&mut got);
            let _under_way = recv.progress(receiver.links()).unwrap();
            sender.run(&mut send).unwrap();
            receiver.run(&mut recv).unwrap();
            drop(recv);
            assert!(got == sent);
        }
        let [mut sender, _] = sides(Policy { no_peer_reads: true, ..Policy::default() });
        let mut send = sending(&[1; 20_000]);
        assert_eq!(send.progress(sender.links()).unwrap(), Progress::Done, "forbidden by the setting");
    }

    /// The sender's memory is gone: the receiver does not crash, and takes the message from slots.
    #[test]
    fn memory_that_cannot_be_read_is_no_message() {
        const BYTES: usize = 16 << 10;
        let [mut sender, mut receiver] = sides(Policy::default());
        let (sent, mut got) = (data(BYTES), vec![0; BYTES]);
        let mut recv = receiving(&mut got);
        let witness = sender.links().reads.witness().unwrap();
        let ring = sender.links().sender(Rank::new(1), Channel::PointToPoint);
        // The system maps nothing at the second page.
        let posted = ring.offer([witness, 4096], recv.label).unwrap();
        assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Moved);
        assert_eq!((ring.settled(&posted), recv.moved), (Some(0), 0));
        let slot = ring.reserve(BYTES).unwrap();
        // SAFETY: a reserved slot of as many bytes.
        unsafe { slot.as_ptr().copy_from_nonoverlapping(sent.as_ptr(), BYTES) };
        ring.publish(BYTES, recv.label);
        assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Done);
        drop(recv);
        assert!(got == sent);
    }

    /// Regression: where a peer had written over the ring, its flag said that an answer was there and the offer that
    /// none was, and the sender went round for ever.
    #[test]
    fn an_answer_that_is_none_is_waited_for_until_the_deadline() {
        let [mut sender, _receiver] = sides(Policy::default());
        let sent = data(1 << 20);
        let mut send = sending(&sent);
        let _offered = send.progress(sender.links()).unwrap();
        let (flag, answered) = sender.links().sender(Rank::new(1), Channel::PointToPoint).answer();
        flag.raise(answered);
        let error = sender.run_within(Duration::from_millis(20), &mut send).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout);
    }

    #[test]
    fn the_offer_of_a_call_that_has_failed_is_void() {
        let [mut sender, mut receiver] = sides(Policy::default());
        let (sent, mut got) = (data(20_000), vec![0; 20_000]);
        let mut send = sending(&sent);
        let _offered = send.progress(sender.links()).unwrap();
        drop(send);
        assert_eq!(receiving(&mut got).progress(receiver.links()).unwrap(), Progress::Idle);
        assert!(got.iter().all(|byte| *byte == 0));
    }
}
