//! The pump at the receiving end of a connection over a request-based NIC: it keeps receives posted for all chunks,
//! says so to the sender, and puts the messages that come into slots, or into the caller's memory.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::sync::ring::Label;
use crate::sys::poller::Interest;
use crate::transport::net::request_nic::{RequestId, RequestWay};
use crate::transport::net::requests::connection::{CHUNK_PAYLOAD, CHUNKS, RequestConnection};
use crate::transport::net::wire::{HEADER_BYTES, decode};
use crate::transport::pump::{Pump, PumpSleep, SlotSink, Taken, Waits};

/// Moves what comes from a NIC to slots.
#[derive(Debug)]
pub(super) struct RequestReceivePump {
    connection: RequestConnection,
    sink: Box<dyn SlotSink>,
    /// By place: the receive that is posted, where there is one.
    requests: [Option<RequestId>; CHUNKS],
    /// Chunks for which receives were posted, that were taken, and for which the sender has credit.
    posted: u64,
    taken: u64,
    told: u64,
    /// The bytes of the next chunk, which has come.
    next: Option<usize>,
    current: Option<Incoming>,
    /// The message that the executor takes past the ring, and part of which may lie in its memory.
    awaited: Option<(usize, Label)>,
    /// Whether what has come of the message under way lies in its slot.
    is_in_slot: bool,
    /// Why the sender takes no more memos, where that is so.
    left: Option<Error>,
}

/// The message under way.
#[derive(Debug, Clone, Copy)]
struct Incoming {
    bytes: usize,
    label: Label,
    /// Bytes of the payload that were copied to where they belong; `None` before the first chunk, which has the header
    /// too.
    copied: Option<usize>,
}

impl RequestReceivePump {
    pub(super) fn new(connection: RequestConnection, sink: Box<dyn SlotSink>) -> RequestReceivePump {
        let (requests, posted, taken, told) = ([None; CHUNKS], 0, 0, 0);
        let (next, current, awaited, is_in_slot, left) = (None, None, None, false, None);
        RequestReceivePump { connection, sink, requests, posted, taken, told, next, current, awaited, is_in_slot, left }
    }

    /// Keeps receives posted, and gives credit for them. True where it gave some.
    fn ask_for_more(&mut self) -> Result<bool> {
        let awaited = self.connection.awaited_chunks();
        while self.posted < self.taken + awaited {
            let place = place(self.posted);
            let Some(request) = self.connection.receive_chunk(place)? else { break };
            self.requests[place] = Some(request);
            self.posted += 1;
        }
        if !self.owes_credit() {
            return Ok(false);
        }
        match self.connection.send_memo(&self.posted.to_le_bytes()) {
            Ok(true) => self.told = self.posted,
            Ok(false) => return Ok(false),
            // A peer that has sent all that it had to may close its end before this rank is through. If it has died,
            // the watch knows; if it lives and has more to send, `chunk` tells.
            Err(error) => self.left = Some(error),
        }
        Ok(true)
    }

    /// Whether credit is to be given. Half of the chunks at once: so few memos are enough, and a sender never waits
    /// for the last one. Less only where the NIC takes no more receives and the sender can send nothing.
    fn owes_credit(&self) -> bool {
        let fresh = self.posted.saturating_sub(self.told);
        self.left.is_none() && (fresh >= CHUNKS as u64 / 2 || (fresh > 0 && self.told == self.taken))
    }

    /// The bytes of the next chunk, once it has come.
    ///
    /// # Errors
    /// Of the connection, also where more has to come for which the sender could not be given credit.
    fn chunk(&mut self) -> Result<Option<usize>> {
        if let Some(error) = self.left.as_ref().filter(|_| self.next.is_none() && self.told == self.taken) {
            let is_owed = self.current.is_some_and(|message| message.copied.is_some()) || self.awaited.is_some();
            return if is_owed { Err(error.duplicate()) } else { Ok(None) };
        }
        if self.next.is_none()
            && let Some(request) = self.requests[place(self.taken)]
        {
            self.next = self.connection.test(request, RequestWay::In)?;
            if self.next.is_some() {
                self.requests[place(self.taken)] = None;
            }
        }
        Ok(self.next)
    }

    /// Takes the next header, once a chunk has come and there is a slot for its message. False where it must wait.
    fn begin(&mut self) -> Result<bool> {
        if !self.sink.has_credit() {
            return Ok(false);
        }
        let Some(came) = self.chunk()? else { return Ok(false) };
        if came < HEADER_BYTES {
            return Err(self.broken(format_args!("a message of {came} bytes, less than a header")));
        }
        let mut header = [0; HEADER_BYTES];
        let chunk = self.connection.chunk(place(self.taken)).as_ptr();
        // SAFETY: a chunk has room for a header; the NIC is done with it.
        unsafe { header.as_mut_ptr().copy_from_nonoverlapping(chunk, HEADER_BYTES) };
        let (bytes, label) = decode(&header);
        let slot = self.sink.slot_bytes();
        if bytes > slot as u64 {
            return Err(self.broken(format_args!("a message of {bytes} bytes where {slot} fit")));
        }
        let bytes = usize::try_from(bytes).expect("at most a slot");
        self.current = Some(Incoming { bytes, label, copied: None });
        Ok(true)
    }

    /// Copies what has come of the message under way to `place`. True once it is whole.
    ///
    /// # Safety
    /// `into` is good for writes of the message's bytes.
    unsafe fn fill(&mut self, into: NonNull<u8>, moved: &mut bool) -> Result<bool> {
        let Some(mut message) = self.current else { return Ok(false) };
        while message.copied != Some(message.bytes) {
            let Some(came) = self.chunk()? else { break };
            let (head, copied) = message.copied.map_or((HEADER_BYTES, 0), |copied| (0, copied));
            let part = (message.bytes - copied).min(CHUNK_PAYLOAD);
            if came != head + part {
                let whole = message.bytes;
                return Err(self.broken(format_args!("{came} bytes as a part of a message of {whole} bytes")));
            }
            let from = self.connection.chunk(place(self.taken)).as_ptr().wrapping_add(head);
            // SAFETY: the chunk holds what came, and the NIC is done with it; the part lies inside the message, for
            // which `into` is good, and no memory but a connection's own overlaps its chunks.
            unsafe { into.as_ptr().wrapping_add(copied).copy_from_nonoverlapping(from, part) };
            message.copied = Some(copied + part);
            self.current = Some(message);
            self.next = None;
            self.taken += 1;
            *moved = true;
            self.ask_for_more()?;
        }
        Ok(message.copied == Some(message.bytes))
    }

    /// As [`Pump::progress`].
    fn move_on(&mut self) -> Result<bool> {
        self.connection.progress()?;
        let mut moved = self.ask_for_more()?;
        if self.awaited.is_some() {
            return Ok(moved);
        }
        loop {
            if self.current.is_none() && !self.begin()? {
                return Ok(moved);
            }
            let Some(Incoming { bytes, label, .. }) = self.current else { return Ok(moved) };
            let Some(slot) = self.sink.reserve(bytes) else { return Ok(moved) };
            self.is_in_slot = true;
            // SAFETY: the reserved slot has room for the message; nobody reads it before `publish`.
            if !unsafe { self.fill(slot, &mut moved) }? {
                return Ok(moved);
            }
            (self.current, self.is_in_slot) = (None, false);
            self.sink.publish(bytes, label);
            moved = true;
        }
    }

    #[cold]
    fn broken(&self, what: std::fmt::Arguments<'_>) -> Error {
        let peer = self.connection.peer();
        Error::remote(peer, format!("rank {peer} sent {what}"))
    }
}

impl Pump for RequestReceivePump {
    fn progress(&mut self) -> Result<bool> {
        let moved = self.move_on()?;
        if self.waits() == Waits::Ring {
            self.connection.pause();
        }
        Ok(moved)
    }

    fn waits(&self) -> Waits {
        // Receives are always under way, and no descriptor tells of them: whoever waits asks again, unless nothing can
        // move before a slot is free.
        let is_full = self.current.is_none() && !self.sink.is_open();
        if is_full { Waits::Ring } else { Waits::Nothing }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        Vec::new()
    }

    fn sleep(&mut self) -> Result<PumpSleep> {
        if self.next.is_none() && self.chunk()?.is_some() {
            return Ok(PumpSleep::Moved);
        }
        // What the NIC had no room for is tried again.
        let is_later = self.posted < self.taken + self.connection.awaited_chunks() || self.owes_credit();
        if is_later { Ok(PumpSleep::Ask) } else { self.connection.sleep() }
    }

    /// Nothing that a receiver sends is waited for at the end of a call: what comes last needs no further credit.
    fn drained(&self) -> bool {
        true
    }

    fn part(&mut self) -> bool {
        if self.connection.progress().is_err() || self.left.is_some() {
            return true;
        }
        // As if receives were posted for more: nothing comes any more.
        let all = self.taken + CHUNKS as u64;
        let said = self.told == all || self.connection.send_memo(&all.to_le_bytes()).unwrap_or(true);
        if said {
            self.told = all;
        }
        said && self.connection.have_memos_left().unwrap_or(true)
    }

    fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    unsafe fn take(&mut self, into: NonNull<u8>, expected: (usize, Label)) -> Result<Taken> {
        if self.is_in_slot {
            return Ok(Taken::ByRing);
        }
        self.connection.progress()?;
        let mut moved = self.ask_for_more()?;
        self.awaited = Some(expected);
        if self.current.is_none() && !self.begin()? {
            return Ok(Taken::Open(moved));
        }
        let is_it = self.current.is_some_and(|message| (message.bytes, message.label) == expected);
        if !is_it {
            self.awaited = None;
            return Ok(Taken::ByRing);
        }
        // SAFETY: the caller's word.
        if !unsafe { self.fill(into, &mut moved) }? {
            return Ok(Taken::Open(moved));
        }
        (self.current, self.awaited) = (None, None);
        Ok(Taken::Whole)
    }
}

fn place(count: u64) -> usize {
    usize::try_from(count % CHUNKS as u64).unwrap_or(0)
}
