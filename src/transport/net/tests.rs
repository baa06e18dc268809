//! Tests of both pumps of a connection, over a socket that counts its system calls.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;
use std::time::Duration;

use super::SocketOptions;
use super::connector::{DataConnector, SocketRoutes};
use super::listener::DataListener;
use super::receive_pump::ReceivePump;
use super::routes::{DeadRoutes, SocketRoute};
use super::send_pump::SendPump;
use super::wire::{AHEAD_BYTES, DataSocket, HEADER_BYTES, cut, encode};
use crate::bootstrap::auth::{Purpose, Terms};
use crate::config::Encryption;
use crate::error::{Kind, Result};
use crate::sync::primitive::{Arc, AtomicU64, Ordering};
use crate::sync::ring::{Receiver, Sender, Shape};
use crate::sys::descriptor;
use crate::sys::memory::SharedMemory;
use crate::sys::poller::Interest;
use crate::transport::pump::{InPieces, Passed, Pump, Taken, Waits};
use crate::transport::pumps::Pumps;
use crate::transport::table::Dialling;
use crate::types::Rank;

/// A socket that counts its system calls.
#[derive(Debug, Clone)]
pub(super) struct Counting {
    pub(super) stream: Arc<UnixStream>,
    calls: Arc<AtomicU64>,
    /// The most bytes that a write takes.
    most: Arc<AtomicU64>,
}

impl AsFd for Counting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl DataSocket for Counting {
    fn may_stop_anywhere(&self) -> bool {
        true
    }
    fn read_into(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        descriptor::settled("read", || (&*self.stream).read_vectored(parts))
    }
    fn write_from(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let most = usize::try_from(self.most.load(Ordering::Relaxed)).unwrap();
        if parts.iter().map(|part| part.len()).sum::<usize>() <= most {
            return descriptor::settled("write", || (&*self.stream).write_vectored(parts));
        }
        let taken: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).take(most).collect();
        if taken.is_empty() { Ok(None) } else { descriptor::settled("write", || (&*self.stream).write(&taken)) }
    }
}

impl Counting {
    pub(super) fn pair() -> [Counting; 2] {
        let (one, other) = UnixStream::pair().unwrap();
        [one, other].map(|stream| {
            stream.set_nonblocking(true).unwrap();
            Counting { stream: Arc::new(stream), calls: Arc::default(), most: Arc::new(AtomicU64::new(u64::MAX)) }
        })
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }
}

const SHAPE: Shape = Shape { slots: 4, slot_bytes: 64 << 10, spread: 1 };

pub(super) fn ring() -> (Sender, Receiver) {
    let memory = SharedMemory::anonymous(SHAPE.memory_bytes()).unwrap().into_region();
    (Sender::new(memory.clone(), SHAPE), Receiver::new(memory, SHAPE))
}

/// A connection over one socket: the ring that a sender fills with its pump, the pump of the receiver with its
/// ring, both sockets.
type Connection = ((Sender, SendPump<Counting>), (ReceivePump<Counting>, Receiver), [Counting; 2]);

fn connection() -> Connection {
    let [to, from] = Counting::pair();
    let ((outbox, outgoing), (incoming, inbox)) = (ring(), ring());
    let send = SendPump::new(Rank::new(1), Box::new(outgoing), vec![to.clone()]);
    let receive = ReceivePump::new(Rank::new(0), Box::new(incoming), vec![from.clone()]);
    ((outbox, send), (receive, inbox), [to, from])
}

pub(super) fn publish(outbox: &mut Sender, content: &[u8]) {
    let slot = outbox.reserve(content.len()).expect("a free slot");
    // SAFETY: the reserved slot has room for `content`, and nobody reads it before `publish`.
    unsafe { slot.as_ptr().copy_from_nonoverlapping(content.as_ptr(), content.len()) };
    outbox.publish(content.len(), [7, 8, content.len() as u64]);
}

/// The next message, which must have come.
pub(super) fn take(inbox: &mut Receiver) -> Vec<u8> {
    let message = inbox.peek().unwrap().expect("a message");
    assert_eq!(message.label, [7, 8, message.bytes as u64]);
    // SAFETY: the message lies in its slot until it is released.
    let content = unsafe { std::slice::from_raw_parts(message.payload.as_ptr().cast_const(), message.bytes) };
    let content = content.to_vec();
    inbox.release();
    content
}

/// Content whose bytes differ from place to place and from message to message.
pub(super) fn content(bytes: usize, salt: usize) -> Vec<u8> {
    (0..bytes).map(|byte| u8::try_from((byte * 7 + byte / 251 + salt) % 251).unwrap()).collect()
}

/// It once took five calls: the header, the payload, and three looks for more.
#[test]
fn a_small_message_costs_one_call_at_each_end() {
    let ((mut outbox, mut send), (mut receive, mut inbox), [to, from]) = connection();
    for number in 1..=100 {
        let content = content([8, 0, 1000][number % 3], number);
        publish(&mut outbox, &content);
        assert!(send.progress().unwrap() && send.drained());
        assert!(receive.progress().unwrap());
        assert_eq!(take(&mut inbox), content);
        assert_eq!((to.calls(), from.calls()), (number as u64, number as u64));
        assert_eq!(receive.waits(), Waits::Descriptor);
    }
}

#[test]
fn messages_that_came_together_are_read_by_one_call() {
    let ((mut outbox, mut send), (mut receive, mut inbox), [_, from]) = connection();
    for number in 0..4 {
        publish(&mut outbox, &content(16, number));
    }
    send.progress().unwrap();
    receive.progress().unwrap();
    assert_eq!(from.calls(), 1);
    (0..4).for_each(|number| assert_eq!(take(&mut inbox), content(16, number)));
}

#[test]
fn the_call_that_ends_a_large_message_brings_the_next_header() {
    let ((mut outbox, mut send), (mut receive, mut inbox), [_, from]) = connection();
    for turn in 0..10 {
        for number in 0..2 {
            publish(&mut outbox, &content((40 << 10) + turn, number));
        }
        let before = from.calls();
        send.progress().unwrap();
        receive.progress().unwrap();
        (0..2).for_each(|number| assert_eq!(take(&mut inbox), content((40 << 10) + turn, number)));
        // One that fills the room for what is ahead, one for each payload.
        assert_eq!(from.calls() - before, 3, "turn {turn}");
    }
}

#[test]
fn what_was_read_before_there_was_a_slot_arrives_without_a_descriptor() {
    let ((mut outbox, mut send), (mut receive, mut inbox), [_, from]) = connection();
    for number in 0..6 {
        publish(&mut outbox, &content(8, number));
        send.progress().unwrap();
    }
    receive.progress().unwrap();
    assert_eq!((receive.waits(), from.calls()), (Waits::Ring, 1));
    assert_eq!(take(&mut inbox), content(8, 0));
    assert_eq!(receive.waits(), Waits::Nothing);
    receive.progress().unwrap();
    for number in 1..5 {
        assert_eq!(take(&mut inbox), content(8, number));
    }
    receive.progress().unwrap();
    assert_eq!(take(&mut inbox), content(8, 5));
    // The third look had room, and asked for more.
    assert_eq!((receive.waits(), from.calls()), (Waits::Descriptor, 2));
}

/// Sends `content` past the ring where that is possible.
fn pass(outbox: &mut Sender, send: &mut SendPump<Counting>, content: &[u8]) -> Passed {
    let label = [7, 8, content.len() as u64];
    let (from, slot) = (NonNull::from(content).cast(), outbox.reserve(content.len()).expect("a free slot"));
    // SAFETY: `content` is good for its bytes, and the slot was reserved for them.
    let passed = unsafe { send.pass(from, slot, (content.len(), label)) }.unwrap();
    if passed == Passed::Partly {
        outbox.publish(content.len(), label);
    }
    passed
}

/// Takes a message of the sizes of `into` past the ring.
fn take_past(receive: &mut ReceivePump<Counting>, into: &mut [u8]) -> Taken {
    let (bytes, label) = (into.len(), [7, 8, into.len() as u64]);
    // SAFETY: `into` is good for its bytes.
    unsafe { receive.take(NonNull::from(into).cast(), (bytes, label), &mut None) }.unwrap()
}

#[test]
fn a_message_goes_from_memory_to_memory_past_both_rings() {
    let ((mut outbox, mut send), (mut receive, mut inbox), _sockets) = connection();
    for number in 0..20 {
        let (sent, mut got) = (content(20_000 + number, number), vec![0; 20_000 + number]);
        assert_eq!(pass(&mut outbox, &mut send, &sent), Passed::Whole);
        assert_eq!(take_past(&mut receive, &mut got), Taken::Whole);
        assert!(got == sent && send.drained() && inbox.peek().unwrap().is_none() && !receive.is_awaited());
        // By the ring between them: the order is kept.
        publish(&mut outbox, &sent);
        assert!(send.progress().unwrap() && receive.progress().unwrap());
        assert_eq!(take(&mut inbox), sent);
    }
    assert_eq!(outbox.published().0, 20);
}

/// In whichever place the system stops, in a header too, the rest of that piece is in the ring, and what is behind it
/// is left to the caller.
#[test]
fn a_message_in_pieces_costs_one_call_and_may_be_taken_in_part() {
    const PIECE: usize = 20_000;
    const BYTES: usize = 2 * PIECE + 7_000;
    let label = [7, 8, 9];
    let whole = [PIECE, PIECE, 7_000].map(|bytes| (bytes, encode(bytes, label)));
    let sent = content(BYTES, 5);
    let mut wire: Vec<u8> = Vec::new();
    for (number, (bytes, header)) in whole.iter().enumerate() {
        wire.extend(header);
        wire.extend(&sent[number * PIECE..][..*bytes]);
    }
    let stops = [0, 1, 31, 32, 33, 20_031, 20_032, 20_033, 20_064, 20_065, 40_064, 40_070, 40_096, 47_095, 47_096];
    for stop in stops {
        let ((mut outbox, mut send), _, [to, from]) = connection();
        to.most.store(stop as u64, Ordering::Relaxed);
        let mut copy = sent.clone();
        let slot = outbox.reserve(PIECE).unwrap();
        let message = InPieces { bytes: BYTES, piece: PIECE, label };
        // SAFETY: `copy` is good for its bytes, and the slot was reserved for those of a piece.
        let (passed, last) = unsafe { send.pass_pieces(NonNull::from(&copy[..]).cast(), slot, message) }.unwrap();
        assert_eq!(to.calls(), 1, "{stop}");
        let ends = [(0, 0), (20_032, PIECE), (40_064, 2 * PIECE), (47_096, BYTES)];
        let (on_wire, end) = ends.into_iter().find(|(on_wire, _)| *on_wire >= stop).unwrap();
        assert_eq!(passed, end, "{stop}");
        let is_whole = on_wire == stop && stop > 0;
        let expected = if stop == 0 {
            Passed::Nothing
        } else if is_whole {
            Passed::Whole
        } else {
            Passed::Partly
        };
        assert_eq!(last, expected, "{stop}");
        copy.fill(0);
        if last == Passed::Partly {
            outbox.publish(passed - (passed - 1) / PIECE * PIECE, label);
            to.most.store(u64::MAX, Ordering::Relaxed);
            assert!(!send.drained() && send.progress().unwrap());
        }
        assert!(send.drained());
        let mut got = vec![0; on_wire];
        from.stream.as_ref().read_exact(&mut got).unwrap();
        assert!(got == wire[..on_wire], "{stop}");
    }
    let ((mut outbox, mut send), _, _sockets) = connection();
    publish(&mut outbox, &content(9, 2));
    let slot = outbox.reserve(PIECE).unwrap();
    let message = InPieces { bytes: BYTES, piece: PIECE, label };
    // SAFETY: as above.
    let passed = unsafe { send.pass_pieces(NonNull::from(&sent[..]).cast(), slot, message) }.unwrap();
    assert_eq!(passed, (0, Passed::Nothing), "what came before is not sent");
}

/// The promise to the caller: its memory is read no more, even if the peer has taken nothing.
#[test]
fn what_the_system_does_not_take_is_in_the_ring_when_pass_returns() {
    let ((mut outbox, mut send), (mut receive, mut inbox), [to, _]) = connection();
    let mut filling = 0;
    while let Ok(Some(written)) = to.write_from(&[IoSlice::new(&[1; 4096])]) {
        filling += written;
    }
    let (mut sent, copy) = (content(60_000, 1), content(60_000, 1));
    assert_eq!(pass(&mut outbox, &mut send, &sent), Passed::Partly);
    sent.fill(0);
    assert_eq!(pass(&mut outbox, &mut send, &sent), Passed::Nothing, "what came before is not sent");
    publish(&mut outbox, &content(9, 2));
    let mut rest = vec![0; filling];
    receive.sockets[0].stream.as_ref().read_exact(&mut rest).unwrap();
    let mut got = vec![0; 60_000];
    let mut taken = Taken::Open(true);
    while taken != Taken::Whole {
        assert_eq!((taken, send.waits()), (Taken::Open(true), Waits::Descriptor));
        assert!(send.progress().unwrap());
        taken = take_past(&mut receive, &mut got);
    }
    assert!(got == copy);
    receive.progress().unwrap();
    assert!(send.drained());
    assert_eq!(take(&mut inbox), content(9, 2));
}

#[test]
fn a_message_in_parts_is_left_to_the_call_that_takes_it() {
    let (_, (mut receive, mut inbox), [to, _]) = connection();
    let sent = content(50_000, 3);
    let mut bytes = encode(50_000, [7, 8, 50_000]).to_vec();
    bytes.extend_from_slice(&sent);
    let mut got = vec![0; 50_000];
    assert_eq!(take_past(&mut receive, &mut got), Taken::Open(false));
    for part in bytes.chunks(20_000) {
        (&*to.stream).write_all(part).unwrap();
        assert!(receive.is_awaited() && !receive.progress().unwrap(), "left alone");
        let taken = take_past(&mut receive, &mut got);
        assert_eq!(taken, if part.len() == 20_000 { Taken::Open(true) } else { Taken::Whole });
    }
    assert!(got == sent && inbox.peek().unwrap().is_none());
}

/// Regression: the rest came into the caller's memory, and its beginning stayed in the slot.
#[test]
fn a_message_that_has_begun_in_a_slot_ends_there() {
    let (_, (mut receive, mut inbox), [to, _]) = connection();
    let sent = content(50_000, 4);
    let mut bytes = encode(50_000, [7, 8, 50_000]).to_vec();
    bytes.extend_from_slice(&sent);
    (&*to.stream).write_all(&bytes[..30_000]).unwrap();
    assert!(receive.progress().unwrap());
    (&*to.stream).write_all(&bytes[30_000..]).unwrap();
    let mut got = vec![0; 50_000];
    assert_eq!(take_past(&mut receive, &mut got), Taken::ByRing);
    assert!(receive.progress().unwrap());
    assert_eq!(take(&mut inbox), sent);
}

#[test]
fn another_message_than_the_awaited_one_comes_by_the_ring() {
    let ((mut outbox, mut send), (mut receive, mut inbox), _sockets) = connection();
    let mut got = vec![0; 30_000];
    assert_eq!(take_past(&mut receive, &mut got), Taken::Open(false));
    let sent = content(20_000, 5);
    assert_eq!(pass(&mut outbox, &mut send, &sent), Passed::Whole);
    assert_eq!(take_past(&mut receive, &mut got), Taken::ByRing);
    assert!(!receive.is_awaited() && got.iter().all(|byte| *byte == 0));
    assert!(receive.progress().unwrap());
    assert_eq!(take(&mut inbox), sent);
}

/// A pump whose slots kernels free: one of them becomes free as soon as `progress` has found none.
#[derive(Debug)]
struct FreedBehind {
    pump: ReceivePump<Counting>,
    inbox: Receiver,
    taken: Arc<AtomicU64>,
}

impl Pump for FreedBehind {
    fn progress(&mut self) -> Result<bool> {
        let moved = self.pump.progress()?;
        if !self.pump.sink.has_credit() {
            take(&mut self.inbox);
            self.taken.fetch_add(1, Ordering::Relaxed);
        }
        Ok(moved)
    }
    fn waits(&self) -> Waits {
        self.pump.waits()
    }
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        self.pump.descriptors()
    }
    fn drained(&self) -> bool {
        self.pump.drained()
    }
}

/// Regression: such a pump was taken for one that had read its socket dry, and waited for an edge that never came.
#[test]
fn a_slot_that_is_freed_behind_the_pump_leaves_no_bytes_in_the_socket() {
    const MESSAGES: usize = 6;
    // The messages for all slots end where one read ahead ends: what follows stays in the socket, unseen.
    let bytes = AHEAD_BYTES / SHAPE.slots as usize - HEADER_BYTES;
    let (idle, (mut outbox, mut send), (receive, inbox)) = {
        let (sender, receiver, _) = connection();
        (connection(), sender, receiver)
    };
    let taken = Arc::new(AtomicU64::new(0));
    let mut pumps = Pumps::default();
    pumps.add(Box::new(idle.1.0)).unwrap();
    pumps.add(Box::new(FreedBehind { pump: receive, inbox, taken: Arc::clone(&taken) })).unwrap();
    pumps.pump().unwrap();
    for number in 0..MESSAGES {
        publish(&mut outbox, &content(bytes, number));
        send.progress().unwrap();
    }
    // The edge is reported, and no other follows it.
    pumps.rest(Duration::ZERO).unwrap();
    for _ in 0..10 {
        pumps.pump().unwrap();
    }
    // Each time that all slots were full one message was taken: the third time all have come.
    assert_eq!(taken.load(Ordering::Relaxed), (MESSAGES - SHAPE.slots as usize + 1) as u64);
}

#[test]
fn a_stream_that_comes_byte_by_byte_is_put_together() {
    let (_, (mut receive, mut inbox), [to, _]) = connection();
    let whole = content(50, 3);
    let mut bytes = encode(50, [7, 8, 50]).to_vec();
    bytes.extend_from_slice(&whole);
    for (place, byte) in bytes.iter().enumerate() {
        assert!(inbox.peek().unwrap().is_none(), "byte {place}");
        (&*to.stream).write_all(&[*byte]).unwrap();
        assert!(receive.progress().unwrap());
    }
    assert_eq!(take(&mut inbox), whole);
}

#[test]
fn a_stream_ends_between_messages_and_not_in_one() {
    let (sender, (mut receive, mut inbox), [to, _]) = connection();
    (&*to.stream).write_all(&encode(0, [7, 8, 0])).unwrap();
    drop((sender, to));
    assert!(receive.progress().unwrap() && take(&mut inbox).is_empty());
    assert!(!receive.progress().unwrap());
    assert_eq!(receive.waits(), Waits::Ring);
    for bytes in [1, HEADER_BYTES, HEADER_BYTES + 9] {
        let (sender, (mut receive, _inbox), [to, _]) = connection();
        (&*to.stream).write_all(&[&encode(10, [7, 8, 10])[..], &[1; 9]].concat()[..bytes]).unwrap();
        drop((sender, to));
        let error = receive.progress().unwrap_err();
        assert!(error.message().contains("in the middle of a message"), "{bytes}: {error}");
    }
}

#[test]
fn a_length_beyond_a_slot_is_the_peers_fault() {
    let (_, (mut receive, _inbox), [to, _]) = connection();
    (&*to.stream).write_all(&encode(SHAPE.slot_bytes as usize + 1, [7, 8, 9])).unwrap();
    let error = receive.progress().unwrap_err();
    assert!(error.kind() == Kind::Remote && error.message().contains("65537 bytes where 65536 fit"), "{error}");
}

#[test]
fn parts_cover_a_message_once() {
    for bytes in [0, 1, 63, 64 << 10, (128 << 10) + 1, 1 << 20] {
        for sockets in 1..6 {
            let mut parts = Vec::new();
            cut(bytes, sockets, &mut parts);
            assert_eq!(parts.len(), sockets);
            let mut at = 0;
            for part in parts {
                assert!(part.at == at || part.at == part.end, "{bytes} over {sockets}");
                at = at.max(part.end);
            }
            assert_eq!(at, bytes);
        }
    }
}

/// What a listener refuses, and how far a connection has come that nobody takes: a time-out tells both.
#[test]
fn refused_and_unanswered_connections_are_known() {
    let terms = |key: u8| Terms {
        key: [key; 32],
        purpose: Purpose::Data,
        communicator: 7,
        job: None,
        encryption: Encryption::Off,
    };
    let options = SocketOptions::default();
    let [me, peer] = [0, 1].map(Rank::new);
    let mut listener = DataListener::new(terms(1), me, "127.0.0.1:0".parse().unwrap(), options).unwrap();
    let ticket = listener.expect(peer, 1).unwrap();
    assert_eq!(listener.refused(), None);
    let address = listener.address();
    let ways = || SocketRoutes {
        own: address.ip(),
        routes: vec![SocketRoute::plain(address)],
        last: None,
        dead: DeadRoutes::default(),
    };
    let connect = |key, ticket| {
        DataConnector::new(&terms(key), (peer, me), (ways(), Dialling::Only), (ticket, 1, options)).unwrap()
    };
    // One that comes late for what was withdrawn is no reason for a word.
    let late = listener.expect(peer, 2).unwrap();
    listener.withdraw(late);
    let mut late = connect(1, late);
    let deadline = crate::sync::Deadline::after(std::time::Duration::from_secs(30));
    while late.progress().unwrap().is_none() {
        assert!(!deadline.is_over());
        listener.progress(crate::sys::clock::now()).unwrap();
        std::thread::yield_now();
    }
    // A stranger, and a rank that asks for what was not offered to it.
    let (mut stranger, mut lost) = (connect(2, ticket), connect(1, ticket ^ 1));
    let mut serve = |connector: &mut DataConnector, until: &dyn Fn(&str) -> bool| {
        for _ in 0..10_000 {
            // The one that is refused sees its connection close.
            let _closed = connector.progress();
            listener.progress(crate::sys::clock::now()).unwrap();
            if let Some(words) = listener.refused().filter(|words| until(words)) {
                return words;
            }
            std::thread::yield_now();
        }
        panic!("{:?}", listener.refused());
    };
    let words = serve(&mut stranger, &|_| true);
    assert!(words.starts_with("this rank has refused 1 connection to the data port from 127.0.0.1:"), "{words}");
    let words = serve(&mut lost, &|words| words.contains(" 2 "));
    assert_eq!(
        words,
        "this rank has refused 2 connections to the data port, the last from rank 1: nothing was offered to it"
    );
    let unanswered = connect(1, ticket);
    let standing = unanswered.standing().expect("nobody answers");
    assert!(standing.starts_with(&format!("{address} has taken the data connection and not answered")), "{standing}");
}
