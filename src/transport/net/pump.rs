//! The pumps of TCP connections, and how messages lie on the wire. A pump moves messages between sockets and the slots
//! of a ring, or slots that kernels of this process fill or empty.
//!
//! A connection is one or several sockets from sender to receiver. Each message is
//! ```text
//! socket 0      header { bytes u64, label 3 × u64 }, then its part
//! socket 1..    its part, where the message is large enough to be cut
//! ```
//! Parts are cut by length alone, so both ends cut alike. A receiver that has no free slot leaves the bytes in the
//! socket.

use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut, Read};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;

use crate::error::{Error, Kind, Result};
use crate::sync::ring::Label;
use crate::sys::descriptor;
use crate::sys::poller::Interest;
use crate::transport::data_handshake::settle;
use crate::transport::pump::{Passed, Pump, SlotSink, SlotSource, Taken, Waits};
use crate::types::Rank;

/// A non-blocking socket as pumps use it: each call is one system call.
pub(super) trait DataSocket: AsFd + Debug + Send {
    /// Reads what is there; `None` where nothing is, `Some(0)` at the end.
    fn read_into(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>>;
    /// Writes what fits; `None` where nothing does.
    fn write_from(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>>;
}

impl DataSocket for TcpStream {
    fn read_into(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>> {
        let mut stream = self;
        settle("read from a data socket", || stream.read_vectored(parts))
    }
    fn write_from(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>> {
        settle("write to a data socket", || descriptor::write_parts(self, parts))
    }
}

/// Moves what lies in slots to sockets.
#[derive(Debug)]
pub(in crate::transport) struct SendPump<S = TcpStream> {
    peer: Rank,
    source: SlotSource,
    sockets: Vec<S>,
    /// For each socket its part of the message under way.
    parts: Vec<Part>,
    current: Option<Outgoing>,
}

/// Moves what comes from sockets to slots.
#[derive(Debug)]
pub(in crate::transport) struct ReceivePump<S = TcpStream> {
    peer: Rank,
    sink: SlotSink,
    sockets: Vec<S>,
    /// For each socket its part of the message under way.
    parts: Vec<Part>,
    ahead: Ahead,
    /// Length and label of the message under way.
    current: Option<(usize, Label)>,
    /// Whether the last progress has seen the end of what the sockets that it needs had. What comes then is a new edge.
    is_dry: bool,
    ended: bool,
    /// The message that the executor takes past the ring, and part of which may lie in its memory.
    awaited: Option<(usize, Label)>,
    /// Whether what has come of the message under way lies in its slot.
    is_in_slot: bool,
}

#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    payload: NonNull<u8>,
}

/// Where a socket's part begins, and where it ends: what is left of it.
#[derive(Debug, Clone, Copy)]
struct Part {
    at: usize,
    end: usize,
}

/// What was read from the first socket beyond the message under way: the next header, and as much behind it. So one
/// system call reads a small message whole, and the call that ends a large message brings the next header.
#[derive(Debug)]
struct Ahead {
    bytes: Box<[u8; AHEAD_BYTES]>,
    unread: std::ops::Range<usize>,
}

// SAFETY: `payload` leads into the slots' memory, which `source` keeps and which has no thread affinity.
unsafe impl<S: Send> Send for SendPump<S> {}

impl<S: DataSocket> SendPump<S> {
    pub(in crate::transport) fn new(peer: Rank, source: SlotSource, sockets: Vec<S>) -> SendPump<S> {
        SendPump { peer, source, sockets, parts: Vec::new(), current: None }
    }
}

impl<S: DataSocket> Pump for SendPump<S> {
    fn progress(&mut self) -> Result<bool> {
        let mut moved = false;
        loop {
            if self.current.is_none() {
                let Some(message) = self.source.peek()? else { return Ok(moved) };
                cut(message.bytes, self.sockets.len(), &mut self.parts);
                let header = encode(message.bytes, message.label);
                self.current = Some(Outgoing { header, header_sent: 0, payload: message.payload });
            }
            let Some(current) = &mut self.current else { return Ok(moved) };
            if !current
                .write_all(&self.sockets, &mut self.parts, &mut moved)
                .map_err(|error| broken(error, self.peer))?
            {
                return Ok(moved);
            }
            self.current = None;
            // The ring gives back only what was looked at, which a message that was passed in part has not been.
            let _known = self.source.peek()?;
            self.source.release();
        }
    }

    fn waits(&self) -> Waits {
        if self.current.is_some() {
            // What is under way has filled its sockets, or `progress` would not have returned.
            return Waits::Descriptor;
        }
        if self.source.has_more() { Waits::Nothing } else { Waits::Ring }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        self.sockets.iter().map(|socket| (socket.as_fd(), Interest::Write)).collect()
    }

    fn drained(&self) -> bool {
        self.current.is_none() && !self.source.has_more()
    }

    unsafe fn pass(&mut self, from: NonNull<u8>, slot: NonNull<u8>, (bytes, label): (usize, Label)) -> Result<Passed> {
        if !self.drained() {
            return Ok(Passed::Nothing);
        }
        cut(bytes, self.sockets.len(), &mut self.parts);
        let mut current = Outgoing { header: encode(bytes, label), header_sent: 0, payload: from };
        let whole = current.write_all(&self.sockets, &mut self.parts, &mut false);
        if whole.map_err(|error| broken(error, self.peer))? {
            return Ok(Passed::Whole);
        }
        for Part { at, end } in &self.parts {
            let (rest, place) = (from.as_ptr().wrapping_add(*at), slot.as_ptr().wrapping_add(*at));
            // SAFETY: the part lies inside the message, for which the caller's memory and the slot are good; a slot
            // never overlaps user memory, nor another connection's slot.
            unsafe { place.copy_from_nonoverlapping(rest, end - at) };
        }
        current.payload = slot;
        self.current = Some(current);
        Ok(Passed::Partly)
    }
}

impl Outgoing {
    /// Writes what the sockets take. True once they have all of it.
    fn write_all(&mut self, sockets: &[impl DataSocket], parts: &mut [Part], moved: &mut bool) -> Result<bool> {
        let mut whole = true;
        for (index, (socket, part)) in sockets.iter().zip(parts).enumerate() {
            *moved |= self.write((index, part), socket)?;
            whole &= self.done(index, *part);
        }
        Ok(whole)
    }

    fn write(&mut self, (index, part): (usize, &mut Part), socket: &impl DataSocket) -> Result<bool> {
        let mut moved = false;
        while !self.done(index, *part) {
            // SAFETY: the part lies inside the message's payload, which is ours until the source's `release`.
            let payload = unsafe {
                std::slice::from_raw_parts(self.payload.as_ptr().wrapping_add(part.at).cast_const(), part.end - part.at)
            };
            let head: &[u8] = if index == 0 { &self.header[self.header_sent..] } else { &[] };
            let Some(written) = socket.write_from(&[IoSlice::new(head), IoSlice::new(payload)])? else {
                return Ok(moved);
            };
            let of_head = written.min(head.len());
            self.header_sent += of_head;
            part.at += written - of_head;
            moved = true;
        }
        Ok(moved)
    }

    fn done(&self, index: usize, part: Part) -> bool {
        part.at == part.end && (index != 0 || self.header_sent == HEADER_BYTES)
    }
}

impl<S: DataSocket> ReceivePump<S> {
    pub(in crate::transport) fn new(peer: Rank, sink: SlotSink, sockets: Vec<S>) -> ReceivePump<S> {
        let (parts, ahead) = (Vec::new(), Ahead::new());
        let (is_dry, ended, is_in_slot) = (false, false, false);
        ReceivePump { peer, sink, sockets, parts, ahead, current: None, is_dry, ended, awaited: None, is_in_slot }
    }

    /// Takes the next header, once there is a slot for its message. False where it must wait.
    fn begin(&mut self, moved: &mut bool) -> Result<bool> {
        if !self.sink.has_credit() {
            return Ok(false);
        }
        while self.ahead.unread().len() < HEADER_BYTES {
            // The call that has read less than it could has seen the end of what was there.
            if self.is_dry && self.ahead.unread().is_empty() {
                return Ok(false);
            }
            let room = self.ahead.room();
            let wanted = room.len();
            let read = self.sockets[0].read_into(&mut [IoSliceMut::new(room)]);
            match read.map_err(|error| broken(error, self.peer))? {
                None => {
                    self.is_dry = true;
                    return Ok(false);
                }
                Some(0) if self.ahead.unread().is_empty() => {
                    // Between messages: the peer has left. Whether anybody still needs it is for the watch to say.
                    self.ended = true;
                    return Ok(false);
                }
                Some(0) => return Err(cut_off(self.peer)),
                Some(got) => {
                    self.ahead.filled(got);
                    self.is_dry = got < wanted;
                }
            }
            *moved = true;
        }
        let (bytes, label) = decode(self.ahead.take());
        let slot = self.sink.slot_bytes();
        if bytes > slot as u64 {
            let message = format!("rank {} sent a message of {bytes} bytes where {slot} fit", self.peer);
            return Err(Error::remote(self.peer, message));
        }
        let bytes = usize::try_from(bytes).expect("at most a slot");
        cut(bytes, self.sockets.len(), &mut self.parts);
        self.current = Some((bytes, label));
        Ok(true)
    }

    /// Reads the message under way into `slot`. True once it is whole.
    fn fill(&mut self, slot: NonNull<u8>, moved: &mut bool) -> Result<bool> {
        let mut whole = true;
        for (index, (part, socket)) in self.parts.iter_mut().zip(&self.sockets).enumerate() {
            // SAFETY: the part lies inside the reserved slot, whose size bounds the message; nobody reads it before
            // `publish`.
            let mut into =
                unsafe { std::slice::from_raw_parts_mut(slot.as_ptr().wrapping_add(part.at), part.end - part.at) };
            if index == 0 {
                let got = self.ahead.move_to(into);
                part.at += got;
                into = &mut into[got..];
            }
            while !into.is_empty() {
                let wanted = into.len();
                let (read, could) = if index == 0 {
                    let room = self.ahead.room();
                    let could = wanted + room.len();
                    (socket.read_into(&mut [IoSliceMut::new(into), IoSliceMut::new(room)]), could)
                } else {
                    (socket.read_into(&mut [IoSliceMut::new(into)]), wanted)
                };
                let got = match read.map_err(|error| broken(error, self.peer))? {
                    None => break,
                    Some(0) => return Err(cut_off(self.peer)),
                    Some(got) => got,
                };
                let of_part = got.min(wanted);
                part.at += of_part;
                into = &mut into[of_part..];
                if index == 0 {
                    self.ahead.filled(got - of_part);
                    self.is_dry = got < could;
                }
                *moved = true;
            }
            whole &= part.at == part.end;
        }
        // Each socket whose part is not whole had no more.
        self.is_dry |= !whole;
        Ok(whole)
    }
}

impl<S: DataSocket> Pump for ReceivePump<S> {
    fn progress(&mut self) -> Result<bool> {
        if self.awaited.is_some() {
            return Ok(false);
        }
        let mut moved = false;
        self.is_dry = false;
        while !self.ended {
            if self.current.is_none() && !self.begin(&mut moved)? {
                return Ok(moved);
            }
            let Some((bytes, label)) = self.current else { return Ok(moved) };
            let Some(slot) = self.sink.reserve(bytes) else { return Ok(moved) };
            self.is_in_slot = true;
            if !self.fill(slot, &mut moved)? {
                return Ok(moved);
            }
            (self.current, self.is_in_slot) = (None, false);
            self.sink.publish(bytes, label);
            moved = true;
        }
        Ok(moved)
    }

    fn waits(&self) -> Waits {
        if self.ended || !self.sink.is_open() {
            Waits::Ring
        } else if !self.is_dry || (self.current.is_none() && self.ahead.unread().len() >= HEADER_BYTES) {
            // It came before there was a slot for it, which kernels may have given back since `progress` looked: no
            // descriptor will tell of it again, whether it was read or not.
            Waits::Nothing
        } else {
            Waits::Descriptor
        }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        self.sockets.iter().map(|socket| (socket.as_fd(), Interest::Read)).collect()
    }

    fn drained(&self) -> bool {
        true
    }

    fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    unsafe fn take(&mut self, into: NonNull<u8>, expected: (usize, Label)) -> Result<Taken> {
        if self.is_in_slot {
            return Ok(Taken::ByRing);
        }
        let mut moved = false;
        self.is_dry = false;
        self.awaited = Some(expected);
        if self.ended || (self.current.is_none() && !self.begin(&mut moved)?) {
            return Ok(Taken::Open(moved));
        }
        if self.current != Some(expected) {
            self.awaited = None;
            return Ok(Taken::ByRing);
        }
        if !self.fill(into, &mut moved)? {
            return Ok(Taken::Open(moved));
        }
        (self.current, self.awaited) = (None, None);
        Ok(Taken::Whole)
    }
}

impl Ahead {
    fn new() -> Ahead {
        Ahead { bytes: Box::new([0; AHEAD_BYTES]), unread: 0..0 }
    }

    fn unread(&self) -> &[u8] {
        &self.bytes[self.unread.clone()]
    }

    /// Where the next bytes go, behind the unread ones: never empty while these are less than a header.
    fn room(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        &mut self.bytes[self.unread.end..]
    }

    /// So many bytes have come into the room.
    fn filled(&mut self, bytes: usize) {
        self.unread.end += bytes;
    }

    /// A header, which has come whole.
    fn take(&mut self) -> &[u8] {
        let header = self.unread.start..self.unread.start + HEADER_BYTES;
        self.unread.start = header.end;
        &self.bytes[header]
    }

    /// Moves to `into` what it holds of the unread bytes, and returns how many.
    fn move_to(&mut self, into: &mut [u8]) -> usize {
        let moved = self.unread().len().min(into.len());
        into[..moved].copy_from_slice(&self.unread()[..moved]);
        self.unread.start += moved;
        moved
    }
}

/// Cuts a message for so many sockets: whole on the first where it is small.
fn cut(bytes: usize, sockets: usize, parts: &mut Vec<Part>) {
    let used = (bytes / LEAST_PART).clamp(1, sockets);
    let share = bytes.div_ceil(used).next_multiple_of(64);
    let part = |index: usize| {
        if index >= used {
            Part { at: bytes, end: bytes }
        } else {
            Part { at: (index * share).min(bytes), end: ((index + 1) * share).min(bytes) }
        }
    };
    parts.clear();
    parts.extend((0..sockets).map(part));
}

fn encode(bytes: usize, label: Label) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    for (place, word) in [bytes as u64, label[0], label[1], label[2]].into_iter().enumerate() {
        header[place * 8..(place + 1) * 8].copy_from_slice(&word.to_le_bytes());
    }
    header
}

fn decode(header: &[u8]) -> (u64, Label) {
    let word = |place: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[place * 8 + byte]));
    (word(0), [word(1), word(2), word(3)])
}

fn broken(error: Error, peer: Rank) -> Error {
    Error::new(Kind::Remote, format!("the data connection with rank {peer} broke: {}", error.message())).about(peer)
}

fn cut_off(peer: Rank) -> Error {
    Error::remote(peer, format!("rank {peer} closed its data connection in the middle of a message"))
}

const HEADER_BYTES: usize = 32;
/// Parts of less are not worth a socket of their own.
const LEAST_PART: usize = 64 << 10;
/// Bytes that are read ahead of need: a small message and its header, in one call. They are copied once more.
const AHEAD_BYTES: usize = 4096;

const _: () = assert!(AHEAD_BYTES > HEADER_BYTES);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::sync::primitive::{Arc, AtomicU64, Ordering};
    use crate::sync::ring::{Receiver, Sender, Shape};
    use crate::sys::memory::SharedMemory;
    use crate::transport::pumps::Pumps;

    /// A socket that counts its system calls.
    #[derive(Debug, Clone)]
    struct Counting {
        stream: Arc<UnixStream>,
        calls: Arc<AtomicU64>,
    }

    impl AsFd for Counting {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.stream.as_fd()
        }
    }

    impl DataSocket for Counting {
        fn read_into(&self, parts: &mut [IoSliceMut<'_>]) -> Result<Option<usize>> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            settle("read", || (&*self.stream).read_vectored(parts))
        }
        fn write_from(&self, parts: &[IoSlice<'_>]) -> Result<Option<usize>> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            settle("write", || (&*self.stream).write_vectored(parts))
        }
    }

    impl Counting {
        fn pair() -> [Counting; 2] {
            let (one, other) = UnixStream::pair().unwrap();
            [one, other].map(|stream| {
                stream.set_nonblocking(true).unwrap();
                Counting { stream: Arc::new(stream), calls: Arc::default() }
            })
        }

        fn calls(&self) -> u64 {
            self.calls.load(Ordering::Relaxed)
        }
    }

    const SHAPE: Shape = Shape { slots: 4, slot_bytes: 64 << 10 };

    fn ring() -> (Sender, Receiver) {
        let memory = SharedMemory::anonymous(SHAPE.memory_bytes()).unwrap().into_region();
        (Sender::new(memory.clone(), SHAPE), Receiver::new(memory, SHAPE))
    }

    /// A connection over one socket: the ring that a sender fills with its pump, the pump of the receiver with its
    /// ring, both sockets.
    type Connection = ((Sender, SendPump<Counting>), (ReceivePump<Counting>, Receiver), [Counting; 2]);

    fn connection() -> Connection {
        let [to, from] = Counting::pair();
        let ((outbox, outgoing), (incoming, inbox)) = (ring(), ring());
        let send = SendPump::new(Rank::new(1), SlotSource::Ring(outgoing), vec![to.clone()]);
        let receive = ReceivePump::new(Rank::new(0), SlotSink::Ring(incoming), vec![from.clone()]);
        ((outbox, send), (receive, inbox), [to, from])
    }

    fn publish(outbox: &mut Sender, content: &[u8]) {
        let slot = outbox.reserve(content.len()).expect("a free slot");
        // SAFETY: the reserved slot has room for `content`, and nobody reads it before `publish`.
        unsafe { slot.as_ptr().copy_from_nonoverlapping(content.as_ptr(), content.len()) };
        outbox.publish(content.len(), [7, 8, content.len() as u64]);
    }

    /// The next message, which must have come.
    fn take(inbox: &mut Receiver) -> Vec<u8> {
        let message = inbox.peek().unwrap().expect("a message");
        assert_eq!(message.label, [7, 8, message.bytes as u64]);
        // SAFETY: the message lies in its slot until it is released.
        let content = unsafe { std::slice::from_raw_parts(message.payload.as_ptr().cast_const(), message.bytes) };
        let content = content.to_vec();
        inbox.release();
        content
    }

    /// Content whose bytes differ from place to place and from message to message.
    fn content(bytes: usize, salt: usize) -> Vec<u8> {
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
        unsafe { receive.take(NonNull::from(into).cast(), (bytes, label)) }.unwrap()
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
        pumps.rest(Duration::ZERO, None).unwrap();
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
}
