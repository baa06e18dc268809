//! The pump at the sending end of slots of kernels whose payloads a NIC takes where they lie, on a device or in pinned
//! memory of the host.
//!
//! A message is two of the NIC's: its header, as on every wire, from a chunk of the connection; and its payload, from
//! the slot, at least one byte long. So the receiver knows without a word which comes next, and posts both in time.
//! Credit counts the NIC's messages.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use crate::error::{Error, Result};
use crate::sys::poller::Interest;
use crate::transport::net::request_nic::{Posted, RegionId, RequestId, RequestWay};
use crate::transport::net::requests::connection::{CHUNKS, MEMOS, RequestConnection};
use crate::transport::net::wire::{HEADER_BYTES, encode};
use crate::transport::pump::{KernelSource, Pump, PumpSleep, Waits};

/// Sends what kernels have put into slots.
#[derive(Debug)]
pub(super) struct DirectSendPump {
    connection: RequestConnection,
    source: Box<dyn KernelSource>,
    /// The memory where payloads lie.
    payloads: RegionId,
    /// The messages whose slots are not given back, in order: what of each is under way.
    under_way: VecDeque<[Option<RequestId>; 2]>,
    /// Messages whose slots were given back.
    released: u64,
    /// Of the next message the header has been posted: this is its request, where that is under way.
    header: Option<Option<RequestId>>,
    /// The NIC's messages that were posted, and that the receiver has asked for.
    posted: u64,
    credit: u64,
}

impl DirectSendPump {
    pub(super) fn new(
        connection: RequestConnection,
        source: Box<dyn KernelSource>,
        payloads: RegionId,
    ) -> DirectSendPump {
        let (under_way, released, header, posted, credit) = (VecDeque::new(), 0, None, 0, 0);
        DirectSendPump { connection, source, payloads, under_way, released, header, posted, credit }
    }

    /// Sees what is done, gives slots back in order, and sees how far credit goes. True where there was any.
    fn settle(&mut self) -> Result<bool> {
        let mut moved = false;
        // Before the payload: a connection is sure of one request alone.
        if let Some(Some(request)) = self.header
            && self.connection.test(request, RequestWay::Out)?.is_some()
        {
            self.header = Some(None);
        }
        for parts in &mut self.under_way {
            for part in parts {
                if let Some(request) = *part
                    && self.connection.test(request, RequestWay::Out)?.is_some()
                {
                    *part = None;
                }
            }
        }
        while self.under_way.front().is_some_and(|parts| parts.iter().all(Option::is_none)) {
            self.under_way.pop_front();
            self.released += 1;
            moved = true;
        }
        if moved {
            self.source.release_until(self.released);
        }
        self.connection.expect_memos(MEMOS)?;
        while let Some(memo) = self.connection.take_memo()? {
            let peer = self.connection.peer();
            let credit = <[u8; 8]>::try_from(memo.content()).map_or(0, u64::from_le_bytes);
            let may_be = self.credit + 1..=self.posted + MOST_ASKED;
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

    /// The number of the next message.
    fn next(&self) -> u64 {
        self.released + self.under_way.len() as u64
    }

    /// Posts what was published, as far as credit and the NIC go.
    fn post(&mut self) -> Result<bool> {
        let mut moved = false;
        while self.posted < self.credit
            && self.under_way.len() < CHUNKS
            && (self.header.is_some() || self.source.published() > self.next())
        {
            let message = self.next();
            let (bytes, label) = self.source.header(message)?;
            let posted = match self.header {
                None => {
                    let place = usize::try_from(message % CHUNKS as u64).unwrap_or(0);
                    let (chunk, header) = (self.connection.chunk(place), encode(bytes, label));
                    // SAFETY: a chunk has room for a header; that of `CHUNKS` messages before has left it.
                    unsafe { chunk.as_ptr().copy_from_nonoverlapping(header.as_ptr(), HEADER_BYTES) };
                    self.connection.send_chunk(place, HEADER_BYTES)?
                }
                Some(_) => {
                    let range = self.source.slots().payload(message, bytes.max(1));
                    self.connection.send_from(self.payloads, range)?
                }
            };
            let request = match posted {
                Posted::Later => break,
                Posted::Request(request) => Some(request),
                Posted::Done => None,
            };
            self.posted += 1;
            moved = true;
            match self.header.take() {
                None => self.header = Some(request),
                Some(header) => self.under_way.push_back([header, request]),
            }
        }
        Ok(moved)
    }
}

impl Pump for DirectSendPump {
    fn progress(&mut self) -> Result<bool> {
        self.connection.progress()?;
        let moved = self.settle()? | self.post()?;
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
        if self.settle()? {
            return Ok(PumpSleep::Moved);
        }
        // What the NIC had no room for is tried again.
        let has_more = self.header.is_some() || self.source.published() > self.next();
        if has_more && self.posted < self.credit { Ok(PumpSleep::Ask) } else { self.connection.sleep() }
    }

    fn drained(&self) -> bool {
        self.header.is_none() && self.under_way.is_empty() && self.source.published() == self.released
    }

    fn part(&mut self) -> bool {
        // Credit for all beyond what was sent says that the receiver has taken that.
        let _moved = self.connection.progress();
        self.settle().is_err() || self.posted == 0 || self.credit >= self.posted + MOST_ASKED
    }
}

/// Of the NIC's messages, what a receiver asks for beyond what it has taken at most: header and payload of as many
/// messages as there are chunks.
pub(super) const MOST_ASKED: u64 = 2 * CHUNKS as u64;
