//! The pump at the receiving end of a connection over a request-based NIC: it keeps receives posted for all chunks,
//! says so to the sender, and puts the messages that come into slots, or into the caller's memory.
//!
//! Of a message that goes straight the header and the beginning come in a chunk. Once its place is known, which is a
//! slot or the caller's memory, a receive of its size is posted there for the rest, and the sender is told. Several of
//! them may be under way for slots, which are published in the order of their messages. One that no slot holds is
//! announced in the ring by a message without bytes, and stays where it is until the caller takes it.

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
use crate::transport::net::wire::{HEADER_BYTES, decode};
use crate::transport::nic_hold::NicHold;
use crate::transport::pump::{Pump, PumpSleep, SlotSink, StraightWay, Taken, Waits};

/// Moves what comes from a NIC to slots.
#[derive(Debug)]
pub(super) struct RequestReceivePump {
    connection: RequestConnection,
    sink: Box<dyn SlotSink>,
    /// By place: the receive that is posted, where there is one.
    requests: [Option<RequestId>; CHUNKS],
    /// Chunks for which receives were posted, and that were taken; rests of messages for which receives were posted.
    posted: u64,
    taken: u64,
    rests: u64,
    /// What the sender was asked for last, and in the memos before that it may not have taken.
    told: Permission,
    unread: VecDeque<Permission>,
    /// The newest memo of which it is known that the sender has taken it.
    read: Permission,
    /// The bytes of the next chunk, which has come.
    next: Option<usize>,
    current: Option<Incoming>,
    /// The message that the executor takes past the ring, and part of which may lie in its memory.
    awaited: Option<(usize, Label)>,
    /// Whether what has come of the message under way lies in its slot.
    is_in_slot: bool,
    goes_straight: bool,
    /// The slots' memory, once the NIC has it.
    kept: Option<(RegionId, NonNull<u8>)>,
    /// Messages in slots that are not published, from the next slot on.
    coming: VecDeque<Coming>,
    /// The rest of the message that the executor takes.
    into_caller: Option<IntoCaller>,
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
    /// Whether all but its head goes straight.
    is_straight: bool,
    /// Whether the ring has only its announcement.
    is_announced: bool,
}

/// A message for a slot.
#[derive(Debug)]
struct Coming {
    bytes: usize,
    label: Label,
    /// The receive of its rest, which has not come.
    rest: Option<(u64, RequestId)>,
}

/// The rest of a message for the caller's memory.
#[derive(Debug)]
struct IntoCaller {
    bytes: usize,
    number: u64,
    /// `None` once it has come.
    request: Option<RequestId>,
    loan: Arc<NicLoan>,
}

/// What has become of a message that is put into its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    Partly,
    Whole,
    /// Its rest comes by this receive.
    ToRest(u64, RequestId),
}

// SAFETY: `kept` leads into the slots' memory, which `sink` keeps and which has no thread affinity.
unsafe impl Send for RequestReceivePump {}

impl RequestReceivePump {
    pub(super) fn new(connection: RequestConnection, sink: Box<dyn SlotSink>) -> RequestReceivePump {
        let goes_straight = connection.goes_straight();
        RequestReceivePump {
            connection,
            sink,
            requests: [None; CHUNKS],
            posted: 0,
            taken: 0,
            rests: 0,
            told: Permission::default(),
            unread: VecDeque::new(),
            read: Permission::default(),
            next: None,
            current: None,
            awaited: None,
            is_in_slot: false,
            goes_straight,
            kept: None,
            coming: VecDeque::new(),
            into_caller: None,
            left: None,
        }
    }

    /// Keeps receives posted.
    fn await_more(&mut self) -> Result<()> {
        if self.posted == self.taken + CHUNKS as u64 {
            return Ok(());
        }
        let awaited = self.connection.awaited_chunks();
        while self.posted < self.taken + awaited {
            let place = place(self.posted);
            let Some(request) = self.connection.receive_chunk(place)? else { break };
            self.requests[place] = Some(request);
            self.posted += 1;
        }
        Ok(())
    }

    /// Tells the sender what it is asked for, where that `is_urgent` or there is much of it. True where it was told.
    fn ask_for_more(&mut self, is_idle: bool) -> Result<bool> {
        if !self.owes_credit(is_idle) {
            return Ok(false);
        }
        let asked = Permission { chunks: self.posted, rests: self.rests };
        match self.connection.send_memo(&asked.encode()) {
            Ok(true) => {
                self.told = asked;
                self.unread.push_back(asked);
            }
            Ok(false) => return Ok(false),
            // A peer that has sent all that it had to may close its end before this rank is through. If it has died,
            // the watch knows; if it lives and has more to send, `chunk` tells.
            Err(error) => self.left = Some(error),
        }
        Ok(true)
    }

    /// Whether the sender is to be told more: of a receive for a rest at once; of chunks, half of them at once, so that
    /// few memos are enough and a sender never waits for the last one, and if this end has nothing else to do. Less
    /// only where the NIC takes no more receives and the sender can send nothing. It has room for so many memos and no
    /// more.
    fn owes_credit(&self, is_idle: bool) -> bool {
        if self.left.is_some() || self.unread.len() >= MEMOS {
            return false;
        }
        let fresh = self.posted.saturating_sub(self.told.chunks);
        let enough = if is_idle { CHUNKS as u64 / 2 } else { CHUNKS as u64 * 3 / 4 };
        self.rests > self.told.rests || fresh >= enough || (fresh > 0 && self.told.chunks == self.taken)
    }

    /// The sender has sent what it was asked for up to there, so it has taken the memo that said so.
    fn note_read(&mut self, sent: Permission) {
        while self.read.chunks < sent.chunks || self.read.rests < sent.rests {
            let Some(memo) = self.unread.pop_front() else { return };
            self.read = memo;
        }
    }

    /// The bytes of the next chunk, once it has come.
    ///
    /// # Errors
    /// Of the connection, also where more has to come for which the sender could not be given credit.
    fn chunk(&mut self) -> Result<Option<usize>> {
        let is_stuck = self.told.chunks == self.taken || self.rests > self.told.rests;
        if let Some(error) = self.left.as_ref().filter(|_| self.next.is_none() && is_stuck) {
            let has_begun = self.current.is_some_and(|message| message.copied.is_some());
            let is_owed = has_begun || self.awaited.is_some() || self.rests > self.told.rests;
            return if is_owed { Err(error.duplicate()) } else { Ok(None) };
        }
        if self.next.is_none()
            && let Some(request) = self.requests[place(self.taken)]
        {
            self.next = self.connection.test(request, RequestWay::In)?;
            if self.next.is_some() {
                self.requests[place(self.taken)] = None;
                self.note_read(Permission { chunks: self.taken + 1, rests: 0 });
            }
        }
        Ok(self.next)
    }

    /// Takes the next header, once a chunk has come and there is a slot for its message. False where it must wait.
    fn begin(&mut self) -> Result<bool> {
        if self.sink.reserve_ahead(self.coming.len() as u64, 0).is_none() {
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
        let (word, label) = decode(&header);
        let is_straight = word & STRAIGHT != 0 && self.goes_straight;
        let (bytes, slot) = (if is_straight { word & !STRAIGHT } else { word }, self.sink.slot_bytes());
        let Some(bytes) = usize::try_from(bytes).ok().filter(|bytes| is_straight || *bytes <= slot) else {
            return Err(self.broken(format_args!("a message of {bytes} bytes where {slot} fit")));
        };
        if is_straight && !STRAIGHT_SIZES.contains(&bytes) {
            return Err(self.broken(format_args!("a message of {bytes} bytes, of which the NIC should carry a part")));
        }
        let is_announced = bytes > slot;
        self.current = Some(Incoming { bytes, label, copied: None, is_straight, is_announced });
        if is_announced {
            self.coming.push_back(Coming { bytes: 0, label, rest: None });
        }
        Ok(true)
    }

    /// Copies what has come of the message under way to its place, and posts the receive for its rest.
    ///
    /// # Safety
    /// `into` is good for writes of the message's bytes, and `rest` is where what comes straight belongs.
    unsafe fn fill(&mut self, (into, rest): (NonNull<u8>, StraightMemory), moved: &mut bool) -> Result<Filled> {
        let Some(mut message) = self.current else { return Ok(Filled::Partly) };
        let by_chunks = if message.is_straight { STRAIGHT_HEAD } else { message.bytes };
        while message.copied != Some(by_chunks) {
            let Some(came) = self.chunk()? else { return Ok(Filled::Partly) };
            let (head, copied) = message.copied.map_or((HEADER_BYTES, 0), |copied| (0, copied));
            let part = (by_chunks - copied).min(CHUNK_PAYLOAD);
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
        }
        if !message.is_straight {
            return Ok(Filled::Whole);
        }
        // SAFETY: the caller's word; whoever has the memory keeps it: the endpoint slots, and a loan what is lent.
        match unsafe { self.connection.post_straight(RequestWay::In, (rest, message.bytes - STRAIGHT_HEAD)) }? {
            Posted::Later => Ok(Filled::Partly),
            Posted::Done => Err(Error::internal("a receive was done at once")),
            Posted::Request(request) => {
                let number = self.rests;
                self.rests += 1;
                // The sender waits for this word, and what comes meanwhile can wait.
                self.ask_for_more(false)?;
                *moved = true;
                Ok(Filled::ToRest(number, request))
            }
        }
    }

    /// Takes note of rests that have come. True where one has.
    fn settle(&mut self) -> Result<bool> {
        let mut moved = false;
        for place in 0..self.coming.len() {
            let Some((number, request)) = self.coming[place].rest else { continue };
            let Some(came) = self.connection.test_straight(request, RequestWay::In)? else { continue };
            self.held_against(came, self.coming[place].bytes)?;
            self.note_read(Permission { chunks: 0, rests: number + 1 });
            self.coming[place].rest = None;
            moved = true;
        }
        if let Some(IntoCaller { bytes, number, request: Some(request), .. }) = self.into_caller
            && let Some(came) = self.connection.test_straight(request, RequestWay::In)?
        {
            self.held_against(came, bytes)?;
            self.note_read(Permission { chunks: 0, rests: number + 1 });
            if let Some(into_caller) = &mut self.into_caller {
                into_caller.request = None;
                into_caller.loan.end();
            }
            moved = true;
        }
        Ok(moved)
    }

    /// Whether the NIC had no room for the receive of a rest, whose place is known.
    pub(super) fn lacks_rest(&self) -> bool {
        self.current.is_some_and(|message| {
            let has_head = message.is_straight && message.copied == Some(STRAIGHT_HEAD);
            has_head && (!message.is_announced || self.awaited.is_some())
        })
    }

    fn held_against(&self, came: usize, bytes: usize) -> Result<()> {
        if came == bytes - STRAIGHT_HEAD {
            return Ok(());
        }
        Err(self.broken(format_args!("{came} bytes as the rest of a message of {bytes} bytes")))
    }

    /// Publishes messages that lie in their slots whole, in their order. True where there was any.
    fn publish(&mut self) -> bool {
        let mut moved = false;
        // What the executor takes comes before them.
        while self.into_caller.is_none()
            && let Some(Coming { bytes, label, rest: None }) = self.coming.front()
        {
            let (bytes, label) = (*bytes, *label);
            // A slot is reserved again, as it was when the message came: it is the next one now.
            if self.sink.reserve(bytes).is_none() {
                break;
            }
            self.sink.publish(bytes, label);
            self.coming.pop_front();
            moved = true;
        }
        moved
    }

    /// Where the rest of a message in a slot belongs, as the NIC knows it.
    fn rest_of_slot(&mut self, slot: NonNull<u8>) -> Result<StraightMemory> {
        let (region, start) = match self.kept {
            Some(kept) => kept,
            None => {
                let memory = self.sink.memory();
                let start = memory.base();
                *self.kept.insert((self.connection.keep(memory)?, start))
            }
        };
        Ok(StraightMemory::Kept(region, slot.addr().get() - start.addr().get() + STRAIGHT_HEAD))
    }

    /// Puts what comes into slots.
    fn fill_slots(&mut self, moved: &mut bool) -> Result<()> {
        loop {
            if self.current.is_none() && !self.begin()? {
                return Ok(());
            }
            let Some(Incoming { bytes, label, is_straight, is_announced, .. }) = self.current else { return Ok(()) };
            if is_announced {
                return Ok(());
            }
            let ahead = self.coming.len() as u64;
            let Some(slot) = self.sink.reserve_ahead(ahead, bytes) else { return Ok(()) };
            self.is_in_slot = true;
            let rest = if is_straight { self.rest_of_slot(slot)? } else { StraightMemory::Lent(slot) };
            // SAFETY: the reserved slot has room for the message; nobody reads it before it is published.
            let rest = match unsafe { self.fill((slot, rest), moved) }? {
                Filled::Partly => return Ok(()),
                Filled::Whole => None,
                Filled::ToRest(number, request) => Some((number, request)),
            };
            (self.current, self.is_in_slot) = (None, false);
            self.coming.push_back(Coming { bytes, label, rest });
            *moved |= self.publish();
        }
    }

    /// Lets the NIC move, and sees what has come. True where there was any.
    fn look(&mut self) -> Result<bool> {
        self.connection.progress()?;
        self.settle()
    }

    /// As [`Pump::progress`].
    fn move_on(&mut self) -> Result<bool> {
        let mut moved = self.look()?;
        if self.awaited.is_none() {
            moved |= self.publish();
            self.fill_slots(&mut moved)?;
            // What was announced.
            moved |= self.publish();
        }
        self.await_more()?;
        Ok(self.ask_for_more(!moved)? || moved)
    }

    /// [`Pump::take`] once what has come is known.
    ///
    /// # Safety
    /// As there.
    unsafe fn take_known(
        &mut self,
        into: NonNull<u8>,
        expected: (usize, Label),
        (hold, moved): (&mut Option<NicHold>, &mut bool),
    ) -> Result<Taken> {
        if let Some(IntoCaller { request, .. }) = &self.into_caller {
            if request.is_none() {
                (self.into_caller, self.awaited) = (None, None);
                return Ok(Taken::Whole);
            }
            // The sender has not heard that it may send a rest, and will not.
            if let Some(error) = self.left.as_ref().filter(|_| self.rests > self.told.rests) {
                return Err(error.duplicate());
            }
            // What follows it may come meanwhile, unless a long wait for it saves a longer copy.
            if expected.0 < HELD_BACK {
                self.fill_slots(moved)?;
            }
            return Ok(Taken::Open(*moved));
        }
        if self.is_in_slot || !self.coming.is_empty() {
            return Ok(Taken::ByRing);
        }
        self.awaited = Some(expected);
        if self.current.is_none() && !self.begin()? {
            return Ok(Taken::Open(*moved));
        }
        let is_it =
            self.current.is_some_and(|message| (message.bytes, message.label) == expected && self.coming.is_empty());
        if !is_it {
            self.awaited = None;
            return Ok(Taken::ByRing);
        }
        let rest = NonNull::new(into.as_ptr().wrapping_add(STRAIGHT_HEAD)).unwrap_or(into);
        let loan = self.current.filter(|message| message.is_straight).map(|_| self.connection.lend());
        // SAFETY: the caller's word: what is lent is good as long as `hold` is kept.
        let filled = unsafe { self.fill((into, StraightMemory::Lent(rest)), moved) };
        match (filled, loan) {
            (Ok(Filled::ToRest(number, request)), Some((loan, half))) => {
                *hold = Some(half);
                self.into_caller = Some(IntoCaller { bytes: expected.0, number, request: Some(request), loan });
                self.current = None;
                Ok(Taken::Open(true))
            }
            (filled, loan) => {
                // A receive that was not posted holds nothing; after an error nobody knows.
                if let Some((loan, _)) = loan.as_ref().filter(|_| filled.is_ok()) {
                    loan.end();
                }
                if filled? != Filled::Whole {
                    return Ok(Taken::Open(*moved));
                }
                (self.current, self.awaited) = (None, None);
                Ok(Taken::Whole)
            }
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
        let is_full = self.current.is_none() && self.coming.is_empty() && !self.sink.is_open();
        if is_full { Waits::Ring } else { Waits::Nothing }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        Vec::new()
    }

    fn sleep(&mut self) -> Result<PumpSleep> {
        if self.settle()? || (self.next.is_none() && self.chunk()?.is_some()) {
            return Ok(PumpSleep::Moved);
        }
        // What the NIC had no room for is tried again.
        let is_full = self.posted == self.taken + CHUNKS as u64;
        let lacks_receives = !is_full && self.posted < self.taken + self.connection.awaited_chunks();
        let is_later = lacks_receives || self.owes_credit(true) || self.lacks_rest();
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
        let all = Permission { chunks: self.taken + CHUNKS as u64, rests: self.told.rests };
        let said = self.told == all || self.connection.send_memo(&all.encode()).unwrap_or(true);
        if said {
            self.told = all;
        }
        said && self.connection.have_memos_left().unwrap_or(true)
    }

    fn is_awaited(&self) -> bool {
        self.awaited.is_some()
    }

    fn straight(&self) -> StraightWay {
        if self.goes_straight { StraightWay(STRAIGHT_SIZES) } else { StraightWay::default() }
    }

    unsafe fn take(
        &mut self,
        into: NonNull<u8>,
        expected: (usize, Label),
        hold: &mut Option<NicHold>,
    ) -> Result<Taken> {
        let mut moved = self.look()?;
        // SAFETY: the caller's word.
        let taken = unsafe { self.take_known(into, expected, (hold, &mut moved)) }?;
        self.await_more()?;
        let told = self.ask_for_more(taken == Taken::Open(false))?;
        Ok(if told && taken == Taken::Open(false) { Taken::Open(true) } else { taken })
    }
}

/// While a message of so many bytes is taken, those behind it are not put into slots, out of which they would have to
/// be copied: the next one likely is a piece of the same message, and the question for it takes a tenth of its time.
const HELD_BACK: usize = 256 << 10;

fn place(count: u64) -> usize {
    usize::try_from(count % CHUNKS as u64).unwrap_or(0)
}
