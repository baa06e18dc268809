//! The pumps of TCP connections, and how messages lie on the wire.
//!
//! A connection is one or several sockets from sender to receiver. Each message is
//! ```text
//! socket 0      header { bytes u64, label 3 × u64 }, then its part
//! socket 1..    its part, where the message is large enough to be cut
//! ```
//! Parts are cut by length alone, so both ends cut alike. A receiver that has no free slot leaves the bytes in the socket.

use std::io::IoSlice;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use crate::error::{Error, Kind, Result};
use crate::sync::ring::{Label, Receiver, Sender};
use crate::sys::descriptor;
use crate::sys::poller::Interest;
use crate::transport::data_handshake::{Pipe, settle};
use crate::transport::pump::{Pump, Waits};
use crate::types::Rank;

/// Moves what lies in a ring to sockets.
#[derive(Debug)]
pub(in crate::transport) struct SendPump {
    peer: Rank,
    ring: Receiver,
    sockets: Vec<TcpStream>,
    current: Option<Outgoing>,
}

/// Moves what comes from sockets to a ring.
#[derive(Debug)]
pub(in crate::transport) struct ReceivePump {
    peer: Rank,
    ring: Sender,
    sockets: Vec<TcpStream>,
    header: Vec<u8>,
    current: Option<Incoming>,
    ended: bool,
}

#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    header_sent: usize,
    /// For each socket: where its part begins, and what is left of it.
    parts: Vec<Part>,
    payload: std::ptr::NonNull<u8>,
}

#[derive(Debug)]
struct Incoming {
    bytes: usize,
    label: Label,
    parts: Vec<Part>,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    at: usize,
    end: usize,
}

// SAFETY: `payload` leads into the ring's memory, which `ring` keeps and which has no thread affinity.
unsafe impl Send for SendPump {}

impl SendPump {
    pub(in crate::transport) fn new(peer: Rank, ring: Receiver, sockets: Vec<TcpStream>) -> SendPump {
        SendPump { peer, ring, sockets, current: None }
    }

    fn has_more(&self) -> bool {
        let (flag, target) = self.ring.arrival();
        flag.reached(target)
    }
}

impl Pump for SendPump {
    fn progress(&mut self) -> Result<bool> {
        let mut moved = false;
        loop {
            if self.current.is_none() {
                let Some(message) = self.ring.peek()? else { return Ok(moved) };
                let parts = cut(message.bytes, self.sockets.len());
                let header = encode(message.bytes, message.label);
                self.current = Some(Outgoing { header, header_sent: 0, parts, payload: message.payload });
            }
            let Some(current) = &mut self.current else { return Ok(moved) };
            let mut open = false;
            for (index, socket) in self.sockets.iter().enumerate() {
                moved |= current.write(index, socket).map_err(|error| broken(error, self.peer))?;
                open |= !current.done(index);
            }
            if open {
                return Ok(moved);
            }
            self.current = None;
            self.ring.release();
        }
    }

    fn waits(&self) -> Waits {
        if self.current.is_some() {
            // What is under way has filled its sockets, or `progress` would not have returned.
            return Waits::Descriptor;
        }
        if self.has_more() { Waits::Nothing } else { Waits::Ring }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        self.sockets.iter().map(|socket| (socket.as_fd(), Interest::Write)).collect()
    }

    fn drained(&self) -> bool {
        self.current.is_none() && !self.has_more()
    }
}

impl Outgoing {
    fn write(&mut self, index: usize, socket: &TcpStream) -> Result<bool> {
        let mut moved = false;
        while !self.done(index) {
            let part = self.parts[index];
            // SAFETY: the part lies inside the message's payload, which is ours until the ring's `release`.
            let payload = unsafe {
                std::slice::from_raw_parts(self.payload.as_ptr().wrapping_add(part.at).cast_const(), part.end - part.at)
            };
            let head: &[u8] = if index == 0 { &self.header[self.header_sent..] } else { &[] };
            let write = || descriptor::write_parts(socket, &[IoSlice::new(head), IoSlice::new(payload)]);
            let Some(written) = settle("write to a data socket", write)? else { return Ok(moved) };
            let of_head = written.min(head.len());
            self.header_sent += of_head;
            self.parts[index].at += written - of_head;
            moved = true;
        }
        Ok(moved)
    }

    fn done(&self, index: usize) -> bool {
        self.parts[index].at == self.parts[index].end && (index != 0 || self.header_sent == HEADER_BYTES)
    }
}

impl ReceivePump {
    pub(in crate::transport) fn new(peer: Rank, ring: Sender, sockets: Vec<TcpStream>) -> ReceivePump {
        let header = Vec::with_capacity(HEADER_BYTES);
        ReceivePump { peer, ring, sockets, header, current: None, ended: false }
    }

    /// Reads the next header, once there is a slot for its message. False where it must wait.
    fn begin(&mut self, moved: &mut bool) -> Result<bool> {
        if !self.ring.has_credit() {
            return Ok(false);
        }
        while self.header.len() < HEADER_BYTES {
            let mut bytes = [0; HEADER_BYTES];
            let wanted = HEADER_BYTES - self.header.len();
            match self.sockets[0].read_some(&mut bytes[..wanted]).map_err(|error| broken(error, self.peer))? {
                None => return Ok(false),
                Some(0) if self.header.is_empty() => {
                    // Between messages: the peer has left. Whether anybody still needs it is for the watch to say.
                    self.ended = true;
                    return Ok(false);
                }
                Some(0) => return Err(cut_off(self.peer)),
                Some(got) => self.header.extend_from_slice(&bytes[..got]),
            }
            *moved = true;
        }
        let (bytes, label) = decode(&self.header);
        self.header.clear();
        let slot = self.ring.shape().slot_bytes as usize;
        if bytes > slot as u64 {
            let message = format!("rank {} sent a message of {bytes} bytes where {slot} fit", self.peer);
            return Err(Error::remote(self.peer, message));
        }
        let bytes = usize::try_from(bytes).expect("at most a slot");
        self.current = Some(Incoming { bytes, label, parts: cut(bytes, self.sockets.len()) });
        Ok(true)
    }
}

impl Pump for ReceivePump {
    fn progress(&mut self) -> Result<bool> {
        let mut moved = false;
        while !self.ended {
            if self.current.is_none() && !self.begin(&mut moved)? {
                return Ok(moved);
            }
            let Some(current) = &mut self.current else { return Ok(moved) };
            let Some(slot) = self.ring.reserve(current.bytes) else { return Ok(moved) };
            let mut open = false;
            for (part, socket) in current.parts.iter_mut().zip(&self.sockets) {
                while part.at < part.end {
                    // SAFETY: the part lies inside the reserved slot, whose size bounds the message; nobody reads it before `publish`.
                    let into = unsafe {
                        std::slice::from_raw_parts_mut(slot.as_ptr().wrapping_add(part.at), part.end - part.at)
                    };
                    match socket.read_some(into).map_err(|error| broken(error, self.peer))? {
                        None => break,
                        Some(0) => return Err(cut_off(self.peer)),
                        Some(got) => part.at += got,
                    }
                    moved = true;
                }
                open |= part.at < part.end;
            }
            if open {
                return Ok(moved);
            }
            let (bytes, label) = (current.bytes, current.label);
            self.current = None;
            self.ring.publish(bytes, label);
            moved = true;
        }
        Ok(moved)
    }

    fn waits(&self) -> Waits {
        let (flag, target) = self.ring.credit();
        if !self.ended && flag.reached(target) { Waits::Descriptor } else { Waits::Ring }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        self.sockets.iter().map(|socket| (socket.as_fd(), Interest::Read)).collect()
    }

    fn drained(&self) -> bool {
        true
    }
}

/// Cuts a message for so many sockets: whole on the first where it is small.
fn cut(bytes: usize, sockets: usize) -> Vec<Part> {
    let used = (bytes / LEAST_PART).clamp(1, sockets);
    let share = bytes.div_ceil(used).next_multiple_of(64);
    let part = |index: usize| {
        if index >= used {
            Part { at: bytes, end: bytes }
        } else {
            Part { at: (index * share).min(bytes), end: ((index + 1) * share).min(bytes) }
        }
    };
    (0..sockets).map(part).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cover_a_message_once() {
        for bytes in [0, 1, 63, 64 << 10, (128 << 10) + 1, 1 << 20] {
            for sockets in 1..6 {
                let parts = cut(bytes, sockets);
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
