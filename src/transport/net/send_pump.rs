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
use crate::transport::pump::{Passed, Pump, SlotSource, Waits};
use crate::types::Rank;

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
