//! The pump at the receiving end of a TCP connection: it moves messages from sockets to the slots of a ring, or slots
//! that kernels of this process empty.

use std::io::IoSliceMut;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::sync::ring::Label;
use crate::sys::poller::Interest;
use crate::transport::net::watched_socket::WatchedSocket;
use crate::transport::net::wire::{AHEAD_BYTES, DataSocket, HEADER_BYTES, SocketPart, broken, cut, cut_off, decode};
use crate::transport::nic_hold::NicHold;
use crate::transport::pump::{Pump, SlotSink, Taken, Waits};
use crate::types::Rank;

/// Moves what comes from sockets to slots.
#[derive(Debug)]
pub(in crate::transport) struct ReceivePump<S = WatchedSocket> {
    peer: Rank,
    pub(super) sink: Box<dyn SlotSink>,
    pub(super) sockets: Vec<S>,
    /// For each socket its part of the message under way.
    parts: Vec<SocketPart>,
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

/// What was read from the first socket beyond the message under way: the next header, and as much behind it. So one
/// system call reads a small message whole, and the call that ends a large message brings the next header.
#[derive(Debug)]
struct Ahead {
    bytes: Box<[u8; AHEAD_BYTES]>,
    unread: std::ops::Range<usize>,
}

impl<S: DataSocket> ReceivePump<S> {
    pub(in crate::transport) fn new(peer: Rank, sink: Box<dyn SlotSink>, sockets: Vec<S>) -> ReceivePump<S> {
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
                    self.is_dry = got < wanted && !self.sockets[0].has_failed();
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
                    self.is_dry = got < could && !socket.has_failed();
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

    unsafe fn take(&mut self, into: NonNull<u8>, expected: (usize, Label), _: &mut Option<NicHold>) -> Result<Taken> {
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
