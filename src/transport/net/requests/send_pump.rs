//! The pump at the sending end of a connection over a request-based NIC: it copies messages from slots, or from the
//! caller's memory, to chunks, and posts these as far as the receiver's credit goes.
//!
//! A chunk is posted only when the receiver has said that a receive of its size is posted for it: no message comes
//! unasked, and no receive is too small. Copies are the price for that NICs keep memory for ever: no slot and no user
//! memory is ever handed to one.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::sync::ring::Label;
use crate::sys::poller::Interest;
use crate::transport::net::request_nic::{Posted, RequestId, RequestWay};
use crate::transport::net::requests::connection::{CHUNK_PAYLOAD, CHUNKS, MEMOS, RequestConnection};
use crate::transport::net::wire::{HEADER_BYTES, encode};
use crate::transport::pump::{Passed, Pump, PumpSleep, SlotSource, Waits};

/// Moves what lies in slots to a NIC.
#[derive(Debug)]
pub(super) struct RequestSendPump {
    connection: RequestConnection,
    source: Box<dyn SlotSource>,
    chunks: [Chunk; CHUNKS],
    /// Chunks that were filled, and that were posted, since the beginning.
    filled: u64,
    posted: u64,
    /// Chunks that the receiver has asked for.
    credit: u64,
    current: Option<Outgoing>,
}

/// What a chunk holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    Free,
    /// So many bytes that are not posted yet.
    Filled(usize),
    UnderWay(RequestId),
}

/// A message under way.
#[derive(Debug)]
struct Outgoing {
    payload: NonNull<u8>,
    bytes: usize,
    label: Label,
    /// Bytes of the payload that lie in chunks; `None` before the first one, which has the header too.
    copied: Option<usize>,
}

// SAFETY: `payload` leads into the slots' memory, which `source` keeps and which has no thread affinity.
unsafe impl Send for RequestSendPump {}

impl RequestSendPump {
    pub(super) fn new(connection: RequestConnection, source: Box<dyn SlotSource>) -> RequestSendPump {
        let chunks = [Chunk::Free; CHUNKS];
        RequestSendPump { connection, source, chunks, filled: 0, posted: 0, credit: 0, current: None }
    }

    /// Lets the NIC move, and sees what has come of that.
    fn settle(&mut self) -> Result<bool> {
        self.connection.progress()?;
        self.settle_known()
    }

    /// Sees which chunks are delivered, and how far credit goes. True where there was any.
    fn settle_known(&mut self) -> Result<bool> {
        let mut moved = false;
        for place in 0..CHUNKS {
            if let Chunk::UnderWay(request) = self.chunks[place]
                && self.connection.test(request, RequestWay::Out)?.is_some()
            {
                self.chunks[place] = Chunk::Free;
                moved = true;
            }
        }
        // For all that the receiver may send: a NIC may have no room for a memo that nobody awaits, and stop the
        // receiver's queue, or send the memo again and again while this rank computes. Only credits come from here on.
        self.connection.expect_memos(MEMOS)?;
        while let Some(memo) = self.connection.take_memo()? {
            let peer = self.connection.peer();
            let credit = <[u8; 8]>::try_from(memo.content()).map_or(0, u64::from_le_bytes);
            // The receiver has asked for what it has taken, which was sent, and for as many chunks as there are.
            let may_be = self.credit + 1..=self.posted + CHUNKS as u64;
            if !may_be.contains(&credit) {
                let message = format!("rank {peer} asked for messages that cannot be ({} were sent)", self.posted);
                return Err(Error::remote(peer, message));
            }
            self.credit = credit;
            self.connection.expect_memos(MEMOS)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Copies of a message what free chunks hold. True once they have all of it.
    ///
    /// # Safety
    /// The payload of `message` is good for reads.
    unsafe fn fill(&mut self, message: &mut Outgoing) -> bool {
        while message.copied != Some(message.bytes) {
            let place = place(self.filled);
            if self.chunks[place] != Chunk::Free {
                return false;
            }
            let chunk = self.connection.chunk(place).as_ptr();
            let header = encode(message.bytes, message.label);
            let (head, copied) = message.copied.map_or((&header[..], 0), |copied| (&[][..], copied));
            let part = (message.bytes - copied).min(CHUNK_PAYLOAD);
            // SAFETY: a chunk has room for a header, and is free: the NIC has none of it.
            unsafe { chunk.copy_from_nonoverlapping(head.as_ptr(), head.len()) };
            let (from, into) = (message.payload.as_ptr().wrapping_add(copied), chunk.wrapping_add(head.len()));
            // SAFETY: the part lies inside the payload, by the caller's word; a chunk has room for it behind a header,
            // and overlaps no memory but its connection's.
            unsafe { into.copy_from_nonoverlapping(from, part) };
            self.chunks[place] = Chunk::Filled(head.len() + part);
            self.filled += 1;
            message.copied = Some(copied + part);
        }
        true
    }

    /// Posts the chunks for which there is credit.
    fn post(&mut self) -> Result<bool> {
        let mut moved = false;
        while self.posted < self.filled.min(self.credit) {
            let place = place(self.posted);
            let Chunk::Filled(bytes) = self.chunks[place] else { break };
            self.chunks[place] = match self.connection.send_chunk(place, bytes)? {
                Posted::Later => break,
                Posted::Request(request) => Chunk::UnderWay(request),
                Posted::Done => Chunk::Free,
            };
            self.posted += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// As [`Pump::progress`].
    fn move_on(&mut self) -> Result<bool> {
        let mut moved = self.settle()? | self.post()?;
        loop {
            let mut message = match self.current.take() {
                Some(message) => message,
                None => match self.source.peek()? {
                    None => return Ok(moved),
                    Some(message) => {
                        let (payload, bytes, label) = (message.payload, message.bytes, message.label);
                        Outgoing { payload, bytes, label, copied: None }
                    }
                },
            };
            // SAFETY: a message is good for reads until it is released.
            let is_whole = unsafe { self.fill(&mut message) };
            moved |= self.post()?;
            if !is_whole {
                self.current = Some(message);
                return Ok(moved);
            }
            // The ring gives back only what was looked at, which a message that was passed in part has not been.
            let _known = self.source.peek()?;
            self.source.release();
            moved = true;
        }
    }
}

impl Pump for RequestSendPump {
    fn progress(&mut self) -> Result<bool> {
        let moved = self.move_on()?;
        if self.drained() {
            self.connection.pause();
        }
        Ok(moved)
    }

    fn waits(&self) -> Waits {
        // There is no descriptor: whoever waits asks again.
        if self.drained() { Waits::Ring } else { Waits::Nothing }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        Vec::new()
    }

    fn sleep(&mut self) -> Result<PumpSleep> {
        if self.settle_known()? {
            return Ok(PumpSleep::Moved);
        }
        // What the NIC had no room for is tried again.
        let is_later = self.posted < self.filled.min(self.credit);
        if is_later { Ok(PumpSleep::Ask) } else { self.connection.sleep() }
    }

    fn drained(&self) -> bool {
        let has_left = |chunk: &Chunk| *chunk == Chunk::Free;
        self.current.is_none() && self.chunks.iter().all(has_left) && !self.source.has_more()
    }

    fn part(&mut self) -> bool {
        // Credit for all chunks beyond what was sent says that the receiver has taken that.
        self.settle().is_err() || self.posted == 0 || self.credit >= self.posted + CHUNKS as u64
    }

    unsafe fn pass(&mut self, from: NonNull<u8>, slot: NonNull<u8>, (bytes, label): (usize, Label)) -> Result<Passed> {
        if self.current.is_some() || self.source.has_more() {
            return Ok(Passed::Nothing);
        }
        self.settle()?;
        let mut message = Outgoing { payload: from, bytes, label, copied: None };
        // SAFETY: the caller's word.
        let is_whole = unsafe { self.fill(&mut message) };
        self.post()?;
        let Some(copied) = message.copied else { return Ok(Passed::Nothing) };
        if is_whole {
            return Ok(Passed::Whole);
        }
        let (rest, place) = (from.as_ptr().wrapping_add(copied), slot.as_ptr().wrapping_add(copied));
        // SAFETY: the rest lies inside the message, for which the caller's memory and the slot are good; a slot never
        // overlaps user memory, nor another connection's slot.
        unsafe { place.copy_from_nonoverlapping(rest, bytes - copied) };
        message.payload = slot;
        self.current = Some(message);
        Ok(Passed::Partly)
    }
}

fn place(count: u64) -> usize {
    usize::try_from(count % CHUNKS as u64).unwrap_or(0)
}

const _: () = assert!(HEADER_BYTES == 32);
