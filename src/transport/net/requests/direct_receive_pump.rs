//! The pump at the receiving end of slots of kernels into which a NIC puts payloads where they lie, on a device or in
//! pinned memory of the host: see `direct_send_pump`.
//!
//! Where the slots lie on a device that may see a NIC's writes later than the word which announces them, each payload
//! is flushed before its slot is published.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use crate::error::{Error, Result};
use crate::sync::ring::Label;
use crate::sys::poller::Interest;
use crate::transport::net::request_nic::{Posted, RegionId, RequestId, RequestWay};
use crate::transport::net::requests::connection::{CHUNKS, RequestConnection};
use crate::transport::net::requests::direct_send_pump::MOST_ASKED;
use crate::transport::net::wire::{HEADER_BYTES, decode};
use crate::transport::pump::{KernelSink, Pump, PumpSleep, Waits};

/// Puts what comes into slots of kernels.
#[derive(Debug)]
pub(super) struct DirectReceivePump {
    connection: RequestConnection,
    sink: Box<dyn KernelSink>,
    /// The memory where payloads lie, and whether they must be flushed.
    payloads: RegionId,
    needs_flush: bool,
    /// The messages of which something is posted, in order.
    open: VecDeque<Incoming>,
    /// Messages that were published.
    published: u64,
    /// The NIC's messages for which receives were posted, that have come, and for which the sender has credit.
    posted: u64,
    came: u64,
    told: u64,
    /// Why the sender takes no more memos, where that is so.
    left: Option<Error>,
}

/// A message for which receives are posted.
#[derive(Debug)]
struct Incoming {
    header: Part<(usize, Label)>,
    payload: Part<usize>,
    flush: Part<()>,
}

#[derive(Debug, Clone, Copy)]
enum Part<T> {
    Open,
    Awaited(RequestId),
    Came(T),
}

impl DirectReceivePump {
    pub(super) fn new(
        connection: RequestConnection,
        sink: Box<dyn KernelSink>,
        (payloads, needs_flush): (RegionId, bool),
    ) -> DirectReceivePump {
        let (open, published, posted, came, told, left) = (VecDeque::new(), 0, 0, 0, 0, None);
        DirectReceivePump { connection, sink, payloads, needs_flush, open, published, posted, came, told, left }
    }

    /// Keeps receives posted, a header and a payload in turn, and gives credit for them.
    fn ask_for_more(&mut self) -> Result<bool> {
        let share = self.connection.receives() as u64;
        while self.posted < self.came + share {
            let awaits_payload = self.open.back().is_some_and(|last| matches!(last.payload, Part::Open));
            if awaits_payload {
                let message = self.published + self.open.len() as u64 - 1;
                let range = self.sink.slots().payload(message, usize::MAX);
                let Some(request) = self.connection.receive_into(self.payloads, range)? else { break };
                if let Some(last) = self.open.back_mut() {
                    last.payload = Part::Awaited(request);
                }
            } else {
                let message = self.published + self.open.len() as u64;
                // The slot must be free before its message is asked for.
                if self.open.len() >= CHUNKS || message >= self.sink.open_until() {
                    break;
                }
                let place = usize::try_from(message % CHUNKS as u64).unwrap_or(0);
                let Some(request) = self.connection.receive_chunk(place)? else { break };
                self.open.push_back(Incoming {
                    header: Part::Awaited(request),
                    payload: Part::Open,
                    flush: Part::Open,
                });
            }
            self.posted += 1;
        }
        let fresh = self.posted.saturating_sub(self.told);
        // Half of what there is at once; less only where the sender can send nothing.
        let owes = self.left.is_none() && (fresh >= MOST_ASKED / 2 || (fresh > 0 && self.told == self.came));
        if !owes {
            return self.held_up().map_or(Ok(false), Err);
        }
        match self.connection.send_memo(&self.posted.to_le_bytes()) {
            Ok(true) => self.told = self.posted,
            Ok(false) => return Ok(false),
            // A peer that has sent all that it had to may close its end before this rank is through: see the pump of
            // chunks.
            Err(error) => self.left = Some(error),
        }
        Ok(true)
    }

    /// Why a message that has begun cannot go on: the sender has sent all that it was asked for, and cannot be asked
    /// for more.
    fn held_up(&self) -> Option<Error> {
        let is_part =
            |message: &Incoming| matches!(message.header, Part::Came(_)) && !matches!(message.payload, Part::Came(_));
        let left = self.left.as_ref().filter(|_| self.told == self.came && self.open.iter().any(is_part));
        left.map(Error::duplicate)
    }

    /// Looks what has come, and publishes what is whole, in order.
    fn settle(&mut self) -> Result<bool> {
        let mut moved = false;
        let (slot_bytes, peer) = (self.sink.slot_bytes(), self.connection.peer());
        for place in 0..self.open.len() {
            let message = self.published + place as u64;
            if let Part::Awaited(request) = self.open[place].header
                && let Some(came) = self.test(request)?
            {
                self.open[place].header = Part::Came(self.header(message, came)?);
                self.came += 1;
                moved = true;
            }
            if let Part::Awaited(request) = self.open[place].payload
                && let Some(came) = self.test(request)?
            {
                self.open[place].payload = Part::Came(came);
                self.came += 1;
                moved = true;
            }
        }
        while let Some(Incoming { header: Part::Came((bytes, label)), payload: Part::Came(came), flush }) =
            self.open.front()
        {
            let (bytes, label, came, flush) = (*bytes, *label, *came, *flush);
            if bytes > slot_bytes || came != bytes.max(1) {
                let message = format!("rank {peer} sent {came} bytes as a message of {bytes} where {slot_bytes} fit");
                return Err(Error::remote(peer, message));
            }
            if !self.is_visible(bytes, flush)? {
                break;
            }
            self.sink.publish(bytes, label);
            self.open.pop_front();
            self.published += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Whether kernels may read the payload of the first message.
    fn is_visible(&mut self, bytes: usize, flush: Part<()>) -> Result<bool> {
        if !self.needs_flush {
            return Ok(true);
        }
        let next = match flush {
            Part::Came(()) => return Ok(true),
            Part::Awaited(request) if self.connection.is_flushed(request)? => Part::Came(()),
            Part::Awaited(request) => Part::Awaited(request),
            Part::Open => {
                let range = self.sink.slots().payload(self.published, bytes.max(1));
                match self.connection.flush(self.payloads, range)? {
                    Posted::Later => Part::Open,
                    Posted::Request(request) => Part::Awaited(request),
                    Posted::Done => Part::Came(()),
                }
            }
        };
        if let Some(first) = self.open.front_mut() {
            first.flush = next;
        }
        Ok(matches!(next, Part::Came(())))
    }

    fn test(&mut self, request: RequestId) -> Result<Option<usize>> {
        self.connection.test(request, RequestWay::In)
    }

    /// The header of a message, which has come.
    fn header(&self, message: u64, came: usize) -> Result<(usize, Label)> {
        let peer = self.connection.peer();
        if came != HEADER_BYTES {
            return Err(Error::remote(peer, format!("rank {peer} sent {came} bytes as a header")));
        }
        let mut header = [0; HEADER_BYTES];
        let chunk = self.connection.chunk(usize::try_from(message % CHUNKS as u64).unwrap_or(0));
        // SAFETY: a chunk has room for a header; the NIC is done with it.
        unsafe { header.as_mut_ptr().copy_from_nonoverlapping(chunk.as_ptr(), HEADER_BYTES) };
        let (bytes, label) = decode(&header);
        Ok((usize::try_from(bytes).unwrap_or(usize::MAX), label))
    }
}

impl Pump for DirectReceivePump {
    fn progress(&mut self) -> Result<bool> {
        self.connection.progress()?;
        let moved = self.settle()? | self.ask_for_more()?;
        if self.waits() == Waits::Ring {
            self.connection.pause();
        }
        Ok(moved)
    }

    fn waits(&self) -> Waits {
        // Receives are always under way, unless no slot is free: whoever waits asks again.
        if self.open.is_empty() && !self.sink.is_open() { Waits::Ring } else { Waits::Nothing }
    }

    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
        Vec::new()
    }

    fn sleep(&mut self) -> Result<PumpSleep> {
        if self.settle()? {
            return Ok(PumpSleep::Moved);
        }
        let (told, posted) = (self.told, self.posted);
        // What the NIC had no room for is tried again, and a flush has no descriptor.
        let flushes = matches!(self.open.front(), Some(Incoming { payload: Part::Came(_), .. }));
        let is_later = flushes || self.ask_for_more()? || told < posted;
        if is_later { Ok(PumpSleep::Ask) } else { self.connection.sleep() }
    }

    /// Nothing that a receiver sends is waited for at the end of a call.
    fn drained(&self) -> bool {
        true
    }

    fn part(&mut self) -> bool {
        if self.connection.progress().is_err() || self.left.is_some() {
            return true;
        }
        // As if receives were posted for more: nothing comes any more.
        let all = self.came + MOST_ASKED;
        let said = self.told == all || self.connection.send_memo(&all.to_le_bytes()).unwrap_or(true);
        if said {
            self.told = all;
        }
        said && self.connection.have_memos_left().unwrap_or(true)
    }
}
