//! The pump at the sending end of a TCP connection: it moves messages from the slots of a ring, or slots that kernels
//! of this process fill, to sockets.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::time::Instant;

use crate::error::Result;
use crate::sync::ring::Label;
use crate::sys::poller::Interest;
use crate::transport::net::watched_socket::WatchedSocket;
use crate::transport::net::wire::{DataSocket, HEADER_BYTES, SocketPart, broken, cut, encode};
use crate::transport::pump::{InPieces, Passed, Pump, SlotSource, Waits};
use crate::types::Rank;

/// The most pieces that one call hands to the system, each with its header.
const MOST_GATHERED: usize = 8;

/// Moves what lies in slots to sockets.
#[derive(Debug)]
pub(in crate::transport) struct SendPump<S = WatchedSocket> {
    peer: Rank,
    source: Box<dyn SlotSource>,
    sockets: Vec<S>,
    /// For each socket its part of the message under way.
    parts: Vec<SocketPart>,
    current: Option<Outgoing>,
}

#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    payload: NonNull<u8>,
}

// SAFETY: `payload` leads into the slots' memory, which `source` keeps and which has no thread affinity.
unsafe impl<S: Send> Send for SendPump<S> {}

impl<S: DataSocket> SendPump<S> {
    pub(in crate::transport) fn new(peer: Rank, source: Box<dyn SlotSource>, sockets: Vec<S>) -> SendPump<S> {
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

    fn look(&mut self, now: Instant) -> Result<()> {
        self.sockets.iter_mut().try_for_each(|socket| socket.look(now)).map_err(|error| broken(error, self.peer))
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
        for SocketPart { at, end } in &self.parts {
            let (rest, place) = (from.as_ptr().wrapping_add(*at), slot.as_ptr().wrapping_add(*at));
            // SAFETY: the part lies inside the message, for which the caller's memory and the slot are good; a slot
            // never overlaps user memory, nor another connection's slot.
            unsafe { place.copy_from_nonoverlapping(rest, end - at) };
        }
        current.payload = slot;
        self.current = Some(current);
        Ok(Passed::Partly)
    }

    /// The system is handed as much as it takes at once: between two calls it hands on what it has, and takes nothing.
    unsafe fn pass_pieces(
        &mut self,
        from: NonNull<u8>,
        slot: NonNull<u8>,
        message: InPieces,
    ) -> Result<(usize, Passed)> {
        // A message of several parts is cut piece by piece.
        let [socket] = &self.sockets[..] else { return Ok((0, Passed::Nothing)) };
        if !self.drained() || !socket.may_stop_anywhere() {
            return Ok((0, Passed::Nothing));
        }
        let gathered = Gathered::new(message);
        let mut slices = [IoSlice::new(&[]); 2 * MOST_GATHERED];
        let count = message.bytes.div_ceil(message.piece).min(MOST_GATHERED);
        for (index, pair) in slices.chunks_exact_mut(2).enumerate().take(count) {
            let (length, header) = gathered.piece(index);
            let place = from.as_ptr().wrapping_add(index * message.piece).cast_const();
            // SAFETY: the piece lies inside the message, for which the caller's memory is good.
            let payload = unsafe { std::slice::from_raw_parts(place, length) };
            pair.copy_from_slice(&[IoSlice::new(header), IoSlice::new(payload)]);
        }
        let written = socket.write_from(&slices[..2 * count]).map_err(|error| broken(error, self.peer))?;
        let (index, rest) = gathered.end(written.unwrap_or(0));
        if rest == 0 {
            let passed = (index * message.piece).min(message.bytes);
            return Ok((passed, if passed > 0 { Passed::Whole } else { Passed::Nothing }));
        }
        let (length, header) = gathered.piece(index);
        let end = index * message.piece + length;
        if rest == HEADER_BYTES + length {
            return Ok((end, Passed::Whole));
        }
        let (header_sent, at) = (rest.min(HEADER_BYTES), rest.saturating_sub(HEADER_BYTES));
        cut(length, 1, &mut self.parts);
        self.parts[0].at = at;
        let from = from.as_ptr().wrapping_add(end - length + at);
        // SAFETY: the rest of the piece lies inside the message; the slot is as long as a piece, and never overlaps
        // user memory.
        unsafe { slot.as_ptr().wrapping_add(at).copy_from_nonoverlapping(from, length - at) };
        self.current = Some(Outgoing { header: *header, header_sent, payload: slot });
        Ok((end, Passed::Partly))
    }
}

/// A message in pieces as its connection carries them: each with its header before it.
struct Gathered {
    message: InPieces,
    /// The headers of the last piece and of all others.
    last: [u8; HEADER_BYTES],
    each: [u8; HEADER_BYTES],
}

impl Gathered {
    fn new(message: InPieces) -> Gathered {
        let InPieces { bytes, piece, label } = message;
        let last = bytes - (bytes.div_ceil(piece) - 1) * piece;
        Gathered { message, last: encode(last, label), each: encode(piece, label) }
    }

    /// How long a piece is, and its header.
    fn piece(&self, index: usize) -> (usize, &[u8; HEADER_BYTES]) {
        let InPieces { bytes, piece, .. } = self.message;
        let length = piece.min(bytes - index * piece);
        (length, if length == piece { &self.each } else { &self.last })
    }

    /// The piece in which the first `written` bytes end, and how many of them are its own.
    fn end(&self, written: usize) -> (usize, usize) {
        let each = HEADER_BYTES + self.message.piece;
        (written / each, written % each)
    }
}

impl Outgoing {
    /// Writes what the sockets take. True once they have all of it.
    fn write_all(&mut self, sockets: &[impl DataSocket], parts: &mut [SocketPart], moved: &mut bool) -> Result<bool> {
        let mut whole = true;
        for (index, (socket, part)) in sockets.iter().zip(parts).enumerate() {
            *moved |= self.write((index, part), socket)?;
            whole &= self.done(index, *part);
        }
        Ok(whole)
    }

    fn write(&mut self, (index, part): (usize, &mut SocketPart), socket: &impl DataSocket) -> Result<bool> {
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

    fn done(&self, index: usize, part: SocketPart) -> bool {
        part.at == part.end && (index != 0 || self.header_sent == HEADER_BYTES)
    }
}
