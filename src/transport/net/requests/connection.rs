//! One connection over a request-based NIC, as both pumps and the handshake use it: its memory, the numbers of its
//! messages, and the memos that its ends send each other.
//!
//! The memory, which is registered with the NIC as a whole:
//! ```text
//! offset          bytes            meaning
//! 0               16 × (32 + 32 K) chunks: what is sent, or what comes
//! then            4 × 256          memos that are sent
//! then            4 × 256          memos that come
//! ```
//! *Chunks* go one way, from the sender of the ring to its receiver; *memos* both ways: those of the handshake first,
//! and then credits, from receiver to sender. Messages of each direction have numbers from 0 on, whatever they are. A
//! receive of the right size is posted for each of them, and none for a message that may never come: so a NIC that
//! matches in order matches right.
//!
//! Where a NIC matches by number and takes any memory, all but the beginning of a long message goes *straight* from
//! where it lies to where it belongs, past the chunks, as a message of a second sequence of numbers: in slots of the
//! rings, which this connection [keeps](RequestConnection::keep), or in memory that the program
//! [lends](RequestConnection::lend).

use std::ops::Range;
use std::ptr::NonNull;

use crate::device::{HostMemory, HostRegion, Region};
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::Arc;
use crate::transport::net::request_nic::endpoint::{MessagePlace, NicEndpoint, NicLoan, SharedEndpoint};
use crate::transport::net::request_nic::{
    ConnectionId, DeviceReach, MOST_STRAIGHT_BYTES, MessageNumber, Posted, RegionId, RequestId, RequestWay,
};
use crate::transport::net::wire::{HEADER_BYTES, broken};
use crate::transport::nic_hold::NicHold;
use crate::transport::pump::PumpSleep;
use crate::types::Rank;

/// A connection of this rank with `peer`.
#[derive(Debug)]
pub(super) struct RequestConnection {
    peer: Rank,
    endpoint: SharedEndpoint,
    id: ConnectionId,
    region: RegionId,
    memory: HostRegion,
    /// Messages that were sent, and for which receives were posted.
    sent: u64,
    received: u64,
    /// The memos of each way that are under way.
    out: Memos,
    incoming: Memos,
    /// Requests under way, of both ways.
    under_way: [usize; 2],
    /// Messages that go straight: how many were sent, or for how many receives were posted, and how many of these
    /// requests are under way, of both ways.
    straight: [u64; 2],
    straight_under_way: [usize; 2],
}

/// Where a message lies that goes straight.
#[derive(Debug, Clone, Copy)]
pub(super) enum StraightMemory {
    /// In memory that was [kept](RequestConnection::keep), so far from its beginning.
    Kept(RegionId, usize),
    /// In memory that is lent.
    Lent(NonNull<u8>),
}

// SAFETY: the pointer leads to memory without thread affinity, which the other half of the loan keeps.
unsafe impl Send for StraightMemory {}

/// The memos of one way.
#[derive(Debug, Default)]
struct Memos {
    requests: [Option<RequestId>; MEMOS],
    /// How many were posted, and how many are done.
    posted: u64,
    done: u64,
}

impl RequestConnection {
    /// The connection `id` of an endpoint.
    ///
    /// # Errors
    /// Of memory, or of its registration.
    pub(super) fn new(peer: Rank, endpoint: &SharedEndpoint, id: ConnectionId) -> Result<RequestConnection> {
        let memory = HostMemory.allocate_for_nic(MEMORY_BYTES)?;
        let mut opened = endpoint.lock();
        let region = opened.register(memory.clone())?;
        opened.add_connection();
        drop(opened);
        let (out, incoming) = (Memos::default(), Memos::default());
        let endpoint = SharedEndpoint::clone(endpoint);
        let (sent, received, under_way) = (0, 0, [0; 2]);
        let (straight, straight_under_way) = ([0; 2], [0; 2]);
        Ok(RequestConnection {
            peer,
            endpoint,
            id,
            region,
            memory,
            sent,
            received,
            out,
            incoming,
            under_way,
            straight,
            straight_under_way,
        })
    }

    /// The rank at the other end.
    pub(super) fn peer(&self) -> Rank {
        self.peer
    }

    /// Lets the NIC move what it can.
    ///
    /// # Errors
    /// Of the NIC, naming the peer.
    pub(super) fn progress(&mut self) -> Result<()> {
        self.ask(|connection, endpoint| endpoint.move_for(connection.id))
    }

    /// How many chunks may be awaited at once.
    pub(super) fn awaited_chunks(&self) -> u64 {
        self.receives().min(CHUNKS) as u64
    }

    /// How many receives may be under way at once: this connection's share.
    pub(super) fn receives(&self) -> usize {
        self.endpoint.lock().receives_for(self.under_way[RequestWay::In as usize])
    }

    /// Where a chunk lies: room for [`CHUNK_BYTES`].
    pub(super) fn chunk(&self, place: usize) -> NonNull<u8> {
        self.memory.at(chunk_range(place, CHUNK_BYTES).start, CHUNK_BYTES)
    }

    /// Sends the first `bytes` of the chunk at `place`.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn send_chunk(&mut self, place: usize, bytes: usize) -> Result<Posted> {
        self.send_from(self.region, chunk_range(place, bytes))
    }

    /// Posts a receive into the chunk at `place`; `None` is "later".
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn receive_chunk(&mut self, place: usize) -> Result<Option<RequestId>> {
        self.receive_into(self.region, chunk_range(place, CHUNK_BYTES))
    }

    /// Registers more memory of the host, of which parts are sent or received.
    ///
    /// # Errors
    /// As [`NicEndpoint::register`], naming the peer.
    pub(super) fn register(&self, memory: HostRegion) -> Result<RegionId> {
        self.ask(|_, endpoint| endpoint.register(memory))
    }

    /// Registers memory of a device for one way of this connection.
    ///
    /// # Errors
    /// Why the NIC does not take it, as a sentence.
    pub(super) fn register_device(
        &self,
        way: RequestWay,
        memory: Region,
        reach: &DeviceReach,
    ) -> std::result::Result<RegionId, String> {
        self.endpoint.lock().register_device((self.id, way), memory, reach)
    }

    /// The largest message of the NIC.
    pub(super) fn most_message_bytes(&self) -> usize {
        self.endpoint.lock().most_message_bytes()
    }

    /// Makes what a receive has put into memory of a device visible there: [`Posted::Done`], or a request to
    /// [ask for](RequestConnection::is_flushed).
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn flush(&self, region: RegionId, range: Range<usize>) -> Result<Posted> {
        let number = MessageNumber::of(self.received);
        let place = MessagePlace { connection: self.id, number, region, range };
        self.ask(|_, endpoint| endpoint.flush(&place))
    }

    /// Whether a flush is done.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn is_flushed(&self, request: RequestId) -> Result<bool> {
        self.ask(|_, endpoint| endpoint.test(request)).map(|done| done.is_some())
    }

    /// Whether messages go straight over this connection.
    pub(super) fn goes_straight(&self) -> bool {
        self.endpoint.lock().goes_straight()
    }

    /// Hands memory to the NIC, from or into which messages will go straight, until its endpoint is closed.
    ///
    /// # Errors
    /// Of its registration, naming the peer.
    pub(super) fn keep(&self, memory: HostRegion) -> Result<RegionId> {
        self.ask(|_, endpoint| endpoint.register(memory))
    }

    /// Begins to lend memory of the program to the NIC.
    pub(super) fn lend(&self) -> (Arc<NicLoan>, NicHold) {
        NicLoan::begin(&self.endpoint)
    }

    /// Posts the next message that goes straight, or the receive for it, which has exactly its size.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// Memory that is lent is good for it, and a loan that has begun holds it.
    pub(super) unsafe fn post_straight(
        &mut self,
        way: RequestWay,
        (memory, bytes): (StraightMemory, usize),
    ) -> Result<Posted> {
        let (under_way, count) = (self.straight_under_way[way as usize], self.straight[way as usize]);
        let number = MessageNumber::straight(count);
        let posted = self.ask(|connection, endpoint| {
            if !endpoint.begin(way, under_way) {
                return Ok(Posted::Later);
            }
            let id = connection.id;
            let place = |(region, from): (RegionId, usize)| MessagePlace {
                connection: id,
                number,
                region,
                range: from..from.saturating_add(bytes),
            };
            let posted = match (memory, way) {
                (StraightMemory::Kept(region, from), RequestWay::Out) => endpoint.send(place((region, from))),
                (StraightMemory::Kept(region, from), RequestWay::In) => endpoint.receive(place((region, from))),
                // SAFETY: the caller's word.
                (StraightMemory::Lent(start), RequestWay::Out) => unsafe {
                    endpoint.send_lent((id, number), (start, bytes))
                },
                // SAFETY: as above.
                (StraightMemory::Lent(start), RequestWay::In) => unsafe {
                    endpoint.receive_lent((id, number), (start, bytes))
                },
            };
            if !matches!(posted, Ok(Posted::Request(_))) {
                endpoint.end(way, under_way + 1);
            }
            posted
        })?;
        self.straight[way as usize] += u64::from(posted != Posted::Later);
        self.straight_under_way[way as usize] += usize::from(matches!(posted, Posted::Request(_)));
        Ok(posted)
    }

    /// As [`RequestConnection::test`], of a message that goes straight.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn test_straight(&mut self, request: RequestId, way: RequestWay) -> Result<Option<usize>> {
        let under_way = self.straight_under_way[way as usize];
        let bytes = self.tested((request, way), under_way)?;
        self.straight_under_way[way as usize] -= usize::from(bytes.is_some());
        Ok(bytes)
    }

    /// Nobody calls this connection until its ring has something for it: another one lets the NIC move.
    pub(super) fn pause(&self) {
        self.endpoint.lock().leave_moving(self.id);
    }

    /// What a thread may sleep on until the NIC has moved something.
    ///
    /// # Errors
    /// Of the NIC, naming the peer.
    pub(super) fn sleep(&self) -> Result<PumpSleep> {
        self.ask(|_, endpoint| endpoint.pump_sleep())
    }

    /// The bytes of a message whose request is done.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn test(&mut self, request: RequestId, way: RequestWay) -> Result<Option<usize>> {
        let under_way = self.under_way[way as usize];
        let bytes = self.tested((request, way), under_way)?;
        self.under_way[way as usize] -= usize::from(bytes.is_some());
        Ok(bytes)
    }

    fn tested(&self, (request, way): (RequestId, RequestWay), under_way: usize) -> Result<Option<usize>> {
        self.ask(|_, endpoint| {
            let bytes = endpoint.test(request)?;
            if bytes.is_some() {
                endpoint.end(way, under_way);
            }
            Ok(bytes)
        })
    }

    /// Sends a memo of at most [`MEMO_BYTES`]; false where that must wait.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn send_memo(&mut self, memo: &[u8]) -> Result<bool> {
        let place = Memos::place(self.out.posted);
        self.have_memos_left()?;
        if self.out.posted - self.out.done >= MEMOS as u64 {
            return Ok(false);
        }
        let range = memo_range(place, RequestWay::Out, memo.len());
        let room = self.memory.at(range.start, range.len());
        // SAFETY: inside this connection's memory, where the memo before has left; the NIC has none of it now.
        unsafe { room.as_ptr().copy_from_nonoverlapping(memo.as_ptr(), memo.len()) };
        let request = match self.send_from(self.region, range)? {
            Posted::Later => return Ok(false),
            Posted::Request(request) => Some(request),
            Posted::Done => None,
        };
        self.out.requests[place] = request;
        self.out.posted += 1;
        self.have_memos_left()?;
        Ok(true)
    }

    /// Whether the NIC has delivered all memos.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn have_memos_left(&mut self) -> Result<bool> {
        while self.out.done < self.out.posted {
            let place = Memos::place(self.out.done);
            if let Some(request) = self.out.requests[place]
                && self.test(request, RequestWay::Out)?.is_none()
            {
                return Ok(false);
            }
            self.out.requests[place] = None;
            self.out.done += 1;
        }
        Ok(true)
    }

    /// Posts receives until `count` memos are expected that have not been [taken](Self::take_memo), or as many as the
    /// NIC takes now and this connection's share of its requests allows. False where it takes no more.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn expect_memos(&mut self, count: usize) -> Result<bool> {
        while self.incoming.posted - self.incoming.done < count.min(MEMOS) as u64 {
            let under_way = self.under_way[RequestWay::In as usize];
            if under_way > 0 && under_way >= self.endpoint.lock().receives_for(under_way) {
                return Ok(false);
            }
            let place = Memos::place(self.incoming.posted);
            let range = memo_range(place, RequestWay::In, MEMO_BYTES);
            let Some(request) = self.receive_into(self.region, range)? else { return Ok(false) };
            self.incoming.requests[place] = Some(request);
            self.incoming.posted += 1;
        }
        Ok(true)
    }

    /// The next memo that is expected, if it has come.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn take_memo(&mut self) -> Result<Option<Memo>> {
        let place = Memos::place(self.incoming.done);
        let Some(request) = self.incoming.requests[place] else { return Ok(None) };
        let Some(bytes) = self.test(request, RequestWay::In)? else { return Ok(None) };
        self.incoming.requests[place] = None;
        self.incoming.done += 1;
        let length = bytes.min(MEMO_BYTES);
        let from = self.memory.at(memo_range(place, RequestWay::In, length).start, length);
        let mut memo = Memo { bytes: [0; MEMO_BYTES], length };
        // SAFETY: inside this connection's memory; the receive is done, and the next one is not posted yet.
        unsafe { memo.bytes.as_mut_ptr().copy_from_nonoverlapping(from.as_ptr(), length) };
        Ok(Some(memo))
    }

    /// Sends what lies in `range` of a region that was registered.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn send_from(&mut self, region: RegionId, range: Range<usize>) -> Result<Posted> {
        let posted = self.post(RequestWay::Out, MessageNumber::of(self.sent), (region, range))?;
        self.sent += u64::from(posted != Posted::Later);
        Ok(posted)
    }

    /// Posts a receive into `range` of a region that was registered; `None` is "later".
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    pub(super) fn receive_into(&mut self, region: RegionId, range: Range<usize>) -> Result<Option<RequestId>> {
        match self.post(RequestWay::In, MessageNumber::of(self.received), (region, range))? {
            Posted::Later => Ok(None),
            Posted::Done => Err(Error::internal("a receive was done at once")),
            Posted::Request(request) => {
                self.received += 1;
                Ok(Some(request))
            }
        }
    }

    fn post(
        &mut self,
        way: RequestWay,
        number: MessageNumber,
        (region, range): (RegionId, Range<usize>),
    ) -> Result<Posted> {
        let under_way = self.under_way[way as usize];
        let posted = self.ask(|connection, endpoint| {
            if !endpoint.begin(way, under_way) {
                return Ok(Posted::Later);
            }
            let place = MessagePlace { connection: connection.id, number, region, range };
            let posted = match way {
                RequestWay::Out => endpoint.send(place),
                RequestWay::In => endpoint.receive(place),
            };
            if !matches!(posted, Ok(Posted::Request(_))) {
                endpoint.end(way, under_way + 1);
            }
            posted
        })?;
        self.under_way[way as usize] += usize::from(matches!(posted, Posted::Request(_)));
        Ok(posted)
    }

    fn ask<T>(&self, call: impl FnOnce(&RequestConnection, &mut NicEndpoint) -> Result<T>) -> Result<T> {
        let mut endpoint = self.endpoint.lock();
        call(self, &mut endpoint).map_err(|error| lost(error, self.peer, endpoint.tells_faults()))
    }
}

/// What a receiver asks for, since the beginning: a memo of its own.
/// ```text
/// offset  width  meaning
/// 0       8      chunks, little endian
/// 8       8      rests of messages that go straight
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Permission {
    pub(super) chunks: u64,
    pub(super) rests: u64,
}

impl Permission {
    pub(super) fn encode(self) -> [u8; 16] {
        let mut memo = [0; 16];
        memo[..8].copy_from_slice(&self.chunks.to_le_bytes());
        memo[8..].copy_from_slice(&self.rests.to_le_bytes());
        memo
    }

    /// `None` where the memo is something else.
    pub(super) fn decode(memo: &[u8]) -> Option<Permission> {
        let (chunks, rests) = memo.split_first_chunk()?;
        let (chunks, rests) = (u64::from_le_bytes(*chunks), u64::from_le_bytes(rests.try_into().ok()?));
        Some(Permission { chunks, rests })
    }

    /// Whether it asks for more than `before`, and for no more than there may be.
    pub(super) fn is_within(self, (before, most): (Permission, Permission)) -> bool {
        let both =
            (before.chunks..=most.chunks).contains(&self.chunks) && (before.rests..=most.rests).contains(&self.rests);
        both && self != before
    }
}

/// A memo that has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Memo {
    bytes: [u8; MEMO_BYTES],
    length: usize,
}

impl Memo {
    /// What it says.
    pub(super) fn content(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Memos {
    fn place(count: u64) -> usize {
        usize::try_from(count % MEMOS as u64).unwrap_or(0)
    }
}

/// The error of a connection with `peer`: the peer's, unless the NIC says otherwise and `tells_faults`, or this rank has
/// closed the NIC.
fn lost(error: Error, peer: Rank, tells_faults: bool) -> Error {
    if error.kind() == Kind::Aborted {
        return error;
    }
    if !tells_faults || error.kind() == Kind::Remote {
        return broken(error, peer);
    }
    Error::new(error.kind(), format!("the data connection with rank {peer} broke on this rank: {}", error.message()))
}

fn chunk_range(place: usize, bytes: usize) -> Range<usize> {
    let start = place % CHUNKS * CHUNK_STRIDE;
    start..start + bytes.min(CHUNK_BYTES)
}

fn memo_range(place: usize, way: RequestWay, bytes: usize) -> Range<usize> {
    let first = match way {
        RequestWay::Out => 0,
        RequestWay::In => MEMOS,
    };
    let start = CHUNKS * CHUNK_STRIDE + (first + place) * MEMO_BYTES;
    start..start + bytes.min(MEMO_BYTES)
}

/// Chunks of a connection: as many may be under way before the receiver has taken one.
pub(super) const CHUNKS: usize = 16;
/// Bytes of messages that a chunk carries.
pub(super) const CHUNK_PAYLOAD: usize = 32 << 10;
/// Bytes of a chunk: the first one of a message begins with its header.
pub(in crate::transport::net) const CHUNK_BYTES: usize = HEADER_BYTES + CHUNK_PAYLOAD;
/// From chunk to chunk, so that payloads lie on lines of their own.
const CHUNK_STRIDE: usize = 64 + CHUNK_PAYLOAD;
/// Bytes of messages that go straight, where the NIC can. Of shorter ones two copies cost less than the question where
/// they belong.
pub(super) const STRAIGHT_SIZES: Range<usize> = CHUNK_PAYLOAD + 1..MOST_STRAIGHT_BYTES;
/// Bytes of it that its header brings along: they are on their way while the receiver answers.
pub(super) const STRAIGHT_HEAD: usize = 8 << 10;
/// Set in the length of a header of such a message.
pub(super) const STRAIGHT: u64 = 1 << 63;
/// Memos of one way that are under way at once: the receiver counts those that the sender may not have taken.
pub(super) const MEMOS: usize = 4;
/// Bytes of a memo.
pub(super) const MEMO_BYTES: usize = 256;
const MEMORY_BYTES: usize = CHUNKS * CHUNK_STRIDE + 2 * MEMOS * MEMO_BYTES;

const _: () = assert!(CHUNK_BYTES <= CHUNK_STRIDE);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn peers_are_blamed_unless_the_nic_knows_better() {
        for (kind, tells_faults, expected) in [
            (Kind::System, true, (Kind::System, None)),
            (Kind::InvalidUsage, true, (Kind::InvalidUsage, None)),
            (Kind::Remote, true, (Kind::Remote, Some(3))),
            (Kind::System, false, (Kind::Remote, Some(3))),
            (Kind::Remote, false, (Kind::Remote, Some(3))),
        ] {
            let error = lost(Error::new(kind, "a port is down"), Rank::new(3), tells_faults);
            assert_eq!((error.kind(), error.peer()), expected, "{error}");
            assert!(error.message().contains("rank 3") && error.message().contains("a port is down"), "{error}");
        }
        for tells_faults in [true, false] {
            let error = lost(Error::new(Kind::Aborted, "this rank closed it"), Rank::new(3), tells_faults);
            assert_eq!((error.kind(), error.peer(), error.message()), (Kind::Aborted, None, "this rank closed it"));
        }
    }
}
