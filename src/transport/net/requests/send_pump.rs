//! The pump at the sending end of a connection over a request-based NIC: it copies messages from slots, or from the
//! caller's memory, to chunks, and posts these as far as the receiver's credit goes.
//!
//! A chunk is posted only when the receiver has said that a receive of its size is posted for it: no message comes
//! unasked, and no receive is too small. Memory that a NIC has cannot be had back from it, so neither slots nor memory
//! of the caller's are handed to one that is given chunks.
//!
//! Where messages go straight, of a long one the header and the beginning alone take a chunk. The receiver then posts a
//! receive for the rest, of its size and in its place, and says so: the rest goes there from where it lies, which is a
//! slot, given back when the NIC is done with it, or memory that the caller has lent.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::sync::ring::Label;
use crate::sys::poller::Interest;
use crate::transport::net::request_nic::endpoint::NicLoan;
use crate::transport::net::request_nic::{Posted, RegionId, RequestId, RequestWay};
use crate::transport::net::requests::connection::{
    CHUNK_PAYLOAD, CHUNKS, MEMOS, Permission, RequestConnection, STRAIGHT, STRAIGHT_HEAD, STRAIGHT_SIZES,
    StraightMemory,
};
use crate::transport::net::wire::{HEADER_BYTES, encode};
use crate::transport::nic_hold::NicHold;
use crate::transport::pump::{Passed, Pump, PumpSleep, SlotSource, StraightWay, Waits};

/// Moves what lies in slots to a NIC.
#[derive(Debug)]
pub(super) struct RequestSendPump {
    connection: RequestConnection,
    source: Box<dyn SlotSource>,
    chunks: [Chunk; CHUNKS],
    /// Chunks that were filled, and that were posted, since the beginning.
    filled: u64,
    posted: u64,
    /// What the receiver has asked for.
    asked: Permission,
    current: Option<Outgoing>,
    /// The slots that were not released, in their order: whether each of them may be.
    slots: VecDeque<bool>,
    /// How many were released.
    released: u64,
    goes_straight: bool,
    /// The slots' memory, once the NIC has it.
    kept: Option<(RegionId, NonNull<u8>)>,
    /// Messages that go straight and are not done, in their order, and how many were announced.
    rests: VecDeque<Rest>,
    announced: u64,
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
    /// Its slot, by the count of slots.
    slot: Option<u64>,
}

/// What is left of a message that goes straight.
#[derive(Debug)]
struct Rest {
    number: u64,
    from: StraightMemory,
    bytes: usize,
    request: Option<RequestId>,
    owner: RestOwner,
}

/// Who has the memory back when the rest has gone.
#[derive(Debug)]
enum RestOwner {
    Slot(u64),
    Caller(Arc<NicLoan>),
}

// SAFETY: `payload` and `kept` lead into the slots' memory, which `source` keeps and which has no thread affinity.
unsafe impl Send for RequestSendPump {}

impl RequestSendPump {
    pub(super) fn new(connection: RequestConnection, source: Box<dyn SlotSource>) -> RequestSendPump {
        let (chunks, goes_straight) = ([Chunk::Free; CHUNKS], connection.goes_straight());
        RequestSendPump {
            connection,
            source,
            chunks,
            filled: 0,
            posted: 0,
            asked: Permission::default(),
            current: None,
            slots: VecDeque::new(),
            released: 0,
            goes_straight,
            kept: None,
            rests: VecDeque::new(),
            announced: 0,
        }
    }

    /// Sees which messages are delivered, and what the receiver has asked for, as far as the NIC has said. True where
    /// there was any.
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
        moved |= self.settle_rests()?;
        // For all that the receiver may send: a NIC may have no room for a memo that nobody awaits, and stop the
        // receiver's queue, or send the memo again and again while this rank computes. Only credits come from here on.
        self.connection.expect_memos(MEMOS)?;
        while let Some(memo) = self.connection.take_memo()? {
            let peer = self.connection.peer();
            // The receiver has asked for what it has taken, which was sent, and for as many chunks as there are; and
            // for the rests of messages that were announced.
            let most = Permission { chunks: self.posted + CHUNKS as u64, rests: self.announced };
            let asked = Permission::decode(memo.content());
            let Some(asked) = asked.filter(|asked| asked.is_within((self.asked, most))) else {
                let message = format!("rank {peer} asked for messages that cannot be ({} were sent)", self.posted);
                return Err(Error::remote(peer, message));
            };
            self.asked = asked;
            self.connection.expect_memos(MEMOS)?;
            moved = true;
        }
        Ok(moved)
    }

    /// Gives the memory back of messages that went straight. True where there were any.
    fn settle_rests(&mut self) -> Result<bool> {
        let (mut place, mut moved) = (0, false);
        // Those behind the first one that is not posted are not either.
        while let Some(request) = self.rests.get(place).and_then(|rest| rest.request) {
            if self.connection.test_straight(request, RequestWay::Out)?.is_none() {
                place += 1;
                continue;
            }
            moved = true;
            self.end_rest(place)?;
        }
        Ok(moved)
    }

    /// The rest at `place` has gone.
    fn end_rest(&mut self, place: usize) -> Result<()> {
        match self.rests.remove(place).map(|rest| rest.owner) {
            Some(RestOwner::Slot(slot)) => self.end_slot(slot)?,
            Some(RestOwner::Caller(loan)) => loan.end(),
            None => {}
        }
        Ok(())
    }

    /// Nothing of this slot is needed any more: it is released once those before it are.
    fn end_slot(&mut self, slot: u64) -> Result<()> {
        let place = usize::try_from(slot - self.released).ok().and_then(|place| self.slots.get_mut(place));
        if let Some(is_over) = place {
            *is_over = true;
        }
        while self.slots.front() == Some(&true) {
            self.slots.pop_front();
            // The ring gives back only what was looked at, which a message that was passed in part has not been.
            let _known = self.source.peek()?;
            self.source.release();
            self.released += 1;
        }
        Ok(())
    }

    /// The next slot that was not looked at.
    fn next_slot(&mut self) -> u64 {
        self.slots.push_back(false);
        self.released + self.slots.len() as u64 - 1
    }

    /// Copies of a message what free chunks hold. True once they have all of it.
    ///
    /// # Safety
    /// The payload of `message` is good for reads.
    unsafe fn fill(&mut self, message: &mut Outgoing) -> bool {
        while message.copied != Some(message.bytes) {
            let (head, copied) = match message.copied {
                None => (Some(encode(message.bytes, message.label)), 0),
                Some(copied) => (None, copied),
            };
            let part = (message.bytes - copied).min(CHUNK_PAYLOAD);
            let from = NonNull::new(message.payload.as_ptr().wrapping_add(copied)).unwrap_or(message.payload);
            // SAFETY: the part lies inside the payload, by the caller's word.
            if !unsafe { self.fill_chunk(head, (from, part)) } {
                return false;
            }
            message.copied = Some(copied + part);
        }
        true
    }

    /// Fills the next chunk, if it is free.
    ///
    /// # Safety
    /// `from` is good for reads of so many bytes, for which a chunk has room.
    unsafe fn fill_chunk(&mut self, head: Option<[u8; HEADER_BYTES]>, (from, bytes): (NonNull<u8>, usize)) -> bool {
        let place = place(self.filled);
        if self.chunks[place] != Chunk::Free {
            return false;
        }
        let (chunk, head) = (self.connection.chunk(place).as_ptr(), head.as_ref().map_or(&[][..], |head| &head[..]));
        // SAFETY: a chunk has room for a header, and is free: the NIC has none of it.
        unsafe { chunk.copy_from_nonoverlapping(head.as_ptr(), head.len()) };
        // SAFETY: the caller's word; a chunk has room for it behind a header, and overlaps no memory but its
        // connection's.
        unsafe { chunk.wrapping_add(head.len()).copy_from_nonoverlapping(from.as_ptr(), bytes) };
        self.chunks[place] = Chunk::Filled(head.len() + bytes);
        self.filled += 1;
        true
    }

    /// Announces a message that goes straight, in a free chunk with its beginning. False where there is none.
    ///
    /// # Safety
    /// `payload` is good for reads of the message until `owner` has it back, and `from` is the same memory.
    unsafe fn announce(
        &mut self,
        (payload, from): (NonNull<u8>, impl FnOnce(usize) -> StraightMemory),
        (bytes, label): (usize, Label),
        owner: impl FnOnce(&mut RequestSendPump) -> RestOwner,
    ) -> bool {
        let mut head = encode(bytes, label);
        head[..8].copy_from_slice(&(bytes as u64 | STRAIGHT).to_le_bytes());
        // SAFETY: the caller's word; such messages are longer than their heads.
        if !unsafe { self.fill_chunk(Some(head), (payload, STRAIGHT_HEAD)) } {
            return false;
        }
        let (number, owner) = (self.announced, owner(self));
        let (from, bytes) = (from(STRAIGHT_HEAD), bytes - STRAIGHT_HEAD);
        self.rests.push_back(Rest { number, from, bytes, request: None, owner });
        self.announced += 1;
        true
    }

    /// Posts the chunks for which there is credit, and the rests of messages for which receives are posted.
    fn post(&mut self) -> Result<bool> {
        let mut moved = false;
        while self.posted < self.filled.min(self.asked.chunks) {
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
        let asked = self.asked.rests;
        while let Some(place) = self.rests.iter().position(|rest| rest.request.is_none() && rest.number < asked) {
            let (from, bytes) = (self.rests[place].from, self.rests[place].bytes);
            // SAFETY: whoever has announced it keeps the memory: the endpoint the slots, and the other half of a loan
            // what is lent.
            let posted = unsafe { self.connection.post_straight(RequestWay::Out, (from, bytes)) }?;
            match posted {
                Posted::Later => break,
                Posted::Request(request) => self.rests[place].request = Some(request),
                Posted::Done => self.end_rest(place)?,
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Takes messages out of slots, as far as there are chunks for them. True where any was.
    fn empty_slots(&mut self) -> Result<bool> {
        let mut moved = false;
        loop {
            let mut message = match self.current.take() {
                Some(message) => message,
                None => match self.source.peek_ahead(self.slots.len() as u64)? {
                    None => return Ok(moved),
                    Some(message) if self.is_straight(message.bytes) => {
                        let (payload, message) = (message.payload, (message.bytes, message.label));
                        let (region, start) = self.keep_slots()?;
                        let offset = payload.addr().get() - start.addr().get();
                        let from = |at| StraightMemory::Kept(region, offset + at);
                        // SAFETY: a message is good for reads until it is released, which happens once it has gone.
                        let announced = unsafe {
                            self.announce((payload, from), message, |pump| RestOwner::Slot(pump.next_slot()))
                        };
                        if !announced {
                            return Ok(moved);
                        }
                        moved = true;
                        continue;
                    }
                    Some(message) => {
                        let (payload, bytes, label) = (message.payload, message.bytes, message.label);
                        let slot = Some(self.next_slot());
                        Outgoing { payload, bytes, label, copied: None, slot }
                    }
                },
            };
            // SAFETY: a message is good for reads until it is released.
            if !unsafe { self.fill(&mut message) } {
                self.current = Some(message);
                return Ok(moved);
            }
            if let Some(slot) = message.slot {
                self.end_slot(slot)?;
            }
            moved = true;
        }
    }

    /// Whether a message in a slot goes straight.
    fn is_straight(&self, bytes: usize) -> bool {
        STRAIGHT_SIZES.contains(&bytes) && self.goes_straight && (self.kept.is_some() || self.source.memory().is_some())
    }

    /// Hands the slots' memory to the NIC: where it begins, and as what the NIC knows it.
    fn keep_slots(&mut self) -> Result<(RegionId, NonNull<u8>)> {
        if let Some(kept) = self.kept {
            return Ok(kept);
        }
        let memory = self.source.memory().ok_or_else(|| Error::internal("slots without memory go by chunks"))?;
        let start = memory.base();
        Ok(*self.kept.insert((self.connection.keep(memory)?, start)))
    }

    /// Fills and posts what can be. True where there was any.
    fn advance(&mut self) -> Result<bool> {
        let mut moved = self.post()?;
        // Chunks that are posted at once may be free at once.
        while self.empty_slots()? {
            moved = true;
            if !self.post()? {
                break;
            }
        }
        Ok(moved)
    }

    /// As [`Pump::progress`]. What can go goes first, and where all has gone nobody looks for more: to let the NIC move
    /// is a system call, if not several.
    fn move_on(&mut self) -> Result<bool> {
        let mut moved = self.settle_known()? | self.advance()?;
        if moved && self.drained() {
            return Ok(true);
        }
        self.connection.progress()?;
        if self.settle_known()? {
            moved = true;
            self.advance()?;
        }
        Ok(moved)
    }

    /// Whether a message may go past the ring: nothing is left to begin before it.
    fn is_free(&mut self) -> Result<bool> {
        Ok(self.current.is_none() && self.source.peek_ahead(self.slots.len() as u64)?.is_none())
    }
}

impl Pump for RequestSendPump {
    fn begin(&mut self) -> Result<bool> {
        self.advance()
    }

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
        let asked = self.asked;
        let is_later = self.posted < self.filled.min(asked.chunks)
            || self.rests.iter().any(|rest| rest.request.is_none() && rest.number < asked.rests);
        if is_later { Ok(PumpSleep::Ask) } else { self.connection.sleep() }
    }

    fn drained(&self) -> bool {
        let has_left = |chunk: &Chunk| *chunk == Chunk::Free;
        let is_empty = self.current.is_none() && self.rests.is_empty() && self.slots.is_empty();
        is_empty && self.chunks.iter().all(has_left) && !self.source.has_more()
    }

    fn part(&mut self) -> bool {
        // Credit for all chunks beyond what was sent says that the receiver has taken that.
        let has_failed = self.connection.progress().is_err() || self.settle_known().is_err();
        has_failed || self.posted == 0 || self.asked.chunks >= self.posted + CHUNKS as u64
    }

    unsafe fn pass(&mut self, from: NonNull<u8>, slot: NonNull<u8>, (bytes, label): (usize, Label)) -> Result<Passed> {
        if self.is_straight(bytes) || !self.is_free()? {
            return Ok(Passed::Nothing);
        }
        self.settle_known()?;
        let mut message = Outgoing { payload: from, bytes, label, copied: None, slot: None };
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
        let slot = (slot, self.next_slot());
        (message.payload, message.slot) = (slot.0, Some(slot.1));
        self.current = Some(message);
        Ok(Passed::Partly)
    }

    fn straight(&self) -> StraightWay {
        if self.goes_straight { StraightWay(STRAIGHT_SIZES) } else { StraightWay::default() }
    }

    unsafe fn hand_over(&mut self, from: NonNull<u8>, message: (usize, Label)) -> Result<Option<NicHold>> {
        if !self.is_free()? {
            return Ok(None);
        }
        self.settle_known()?;
        if self.chunks[place(self.filled)] != Chunk::Free {
            return Ok(None);
        }
        let (loan, hold) = self.connection.lend();
        let at = |offset: usize| StraightMemory::Lent(NonNull::new(from.as_ptr().wrapping_add(offset)).unwrap_or(from));
        // SAFETY: the caller's word: the memory is good as long as `hold` is kept.
        if !unsafe { self.announce((from, at), message, |_| RestOwner::Caller(Arc::clone(&loan))) } {
            loan.end();
            return Ok(None);
        }
        self.post()?;
        Ok(Some(hold))
    }
}

fn place(count: u64) -> usize {
    usize::try_from(count % CHUNKS as u64).unwrap_or(0)
}

const _: () = assert!(HEADER_BYTES == 32 && STRAIGHT_HEAD <= CHUNK_PAYLOAD && STRAIGHT_HEAD < STRAIGHT_SIZES.start);
