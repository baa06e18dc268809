//! The rings of a communicator, and the pumps behind those whose ends share no memory.

use std::ops::Range;
use std::ptr::NonNull;
use std::time::Duration;

use crate::device::StorePolicy;
use crate::error::Result;
use crate::sync::primitive::Arc;
use crate::sync::ring::{Label, Receiver, Sender};
use crate::sys::rank_page::RankPage;
use crate::sys::unanswered::Unanswered;
use crate::transport::connection::{Channel, Need, Way};
use crate::transport::nic_hold::NicHold;
use crate::transport::peer_reads::PeerReads;
use crate::transport::pump::{InPieces, Passed, ReceiveEnd, SendEnd, Taken};
use crate::transport::pumps::{PumpSources, Pumps};
use crate::transport::traffic::ConnectionTraffic;
use crate::transport::windows::{HostWindows, Neighbour, OfferedRange, PeerCalls};
use crate::types::{Rank, TransportKind};

/// The rings that are open.
#[derive(Debug, Default)]
pub struct Links {
    /// Where their messages are counted, for others to see.
    traffic: Option<ConnectionTraffic>,
    senders: Ends<Sender>,
    receivers: Ends<Receiver>,
    pumps: Pumps,
    /// What was learnt of copies into memory that peers read.
    pub staging: StorePolicy,
    /// Whether this rank shares its processor with those that it waits for, as far as waits have learnt.
    pub shares_processor: bool,
    /// Where a fold puts what peers read before it is copied to them, if no output has it; empty until it is needed.
    pub fold_room: Vec<u8>,
    /// Whose memory this rank may read in place.
    pub reads: PeerReads,
    /// What ranks of the host have registered, if anything.
    pub(super) shared: Option<Arc<HostWindows>>,
}

/// The ends of one way, in the order in which they were opened, found by rank and channel.
#[derive(Debug)]
struct Ends<E> {
    open: Vec<E>,
    /// The place of each open end's pump among [`Links::pumps`].
    pumps: Vec<Option<usize>>,
    /// By rank, then by channel: the place in `open`, or [`NONE`].
    places: Vec<Vec<u32>>,
}

impl<E> Default for Ends<E> {
    fn default() -> Ends<E> {
        Ends { open: Vec::new(), pumps: Vec::new(), places: Vec::new() }
    }
}

impl<E> Ends<E> {
    #[inline]
    fn place(&self, peer: Rank, channel: Channel) -> Option<usize> {
        let place = *self.places.get(peer.index())?.get(channel.place())?;
        // The widest number is no place: there are fewer ends.
        (place != NONE).then_some(place as usize)
    }

    #[inline]
    fn get(&self, peer: Rank, channel: Channel) -> Option<&E> {
        self.open.get(self.place(peer, channel)?)
    }

    #[inline]
    fn get_mut(&mut self, peer: Rank, channel: Channel) -> Option<&mut E> {
        let place = self.place(peer, channel)?;
        self.open.get_mut(place)
    }

    fn insert(&mut self, (peer, channel): (Rank, Channel), end: E, pump: Option<usize>) {
        let place = u32::try_from(self.open.len()).expect("fewer ends than ranks times channels");
        if self.places.len() <= peer.index() {
            self.places.resize_with(peer.index() + 1, Vec::new);
        }
        let of_peer = &mut self.places[peer.index()];
        if of_peer.len() <= channel.place() {
            of_peer.resize(channel.place() + 1, NONE);
        }
        of_peer[channel.place()] = place;
        self.open.push(end);
        self.pumps.push(pump);
    }
}

impl Links {
    /// No ring yet, of a rank that may read its peers' memory by `reads`.
    pub(super) fn new(reads: PeerReads) -> Links {
        Links { reads, ..Links::default() }
    }

    /// Counts the messages of connections that are opened from now on, on this page.
    pub fn count_on(&mut self, page: RankPage) {
        self.traffic = Some(ConnectionTraffic::on(page));
    }

    /// Bytes of memory of the rings that this rank owns: those of others end here, or both ends lie in private memory.
    pub fn ring_bytes(&self) -> usize {
        let received = self.receivers.open.iter().map(|end| end.shape().memory_bytes()).sum::<usize>();
        let pumped = self.senders.open.iter().zip(&self.senders.pumps).filter(|(_, pump)| pump.is_some());
        received + pumped.map(|(end, _)| end.shape().memory_bytes()).sum::<usize>()
    }

    pub(super) fn add_sender(&mut self, connection: (Rank, Channel), kind: TransportKind, end: SendEnd) -> Result<()> {
        let ((peer, channel), pump) = (connection, end.pump.as_ref().map(|_| self.pumps.count()));
        let count = self.traffic.as_ref().map(|traffic| traffic.end((peer, Way::Send), kind));
        self.senders.insert((peer, channel), end.ring.counted(count), pump);
        end.pump.map_or(Ok(()), |pump| self.pumps.add(pump))
    }

    pub(super) fn add_receiver(
        &mut self,
        connection: (Rank, Channel),
        kind: TransportKind,
        end: ReceiveEnd,
    ) -> Result<()> {
        let ((peer, channel), pump) = (connection, end.pump.as_ref().map(|_| self.pumps.count()));
        let count = self.traffic.as_ref().map(|traffic| traffic.end((peer, Way::Receive), kind));
        self.receivers.insert((peer, channel), end.ring.counted(count), pump);
        end.pump.map_or(Ok(()), |pump| self.pumps.add(pump))
    }

    /// The sending end to `peer`.
    ///
    /// # Panics
    /// Where it was not connected; executors connect a plan's needs before they run it.
    #[inline]
    pub fn sender(&mut self, peer: Rank, channel: Channel) -> &mut Sender {
        self.senders.get_mut(peer, channel).expect("connected before the plan runs")
    }

    /// The receiving end from `peer`.
    ///
    /// # Panics
    /// Where it was not connected; executors connect a plan's needs before they run it.
    #[inline]
    pub fn receiver(&mut self, peer: Rank, channel: Channel) -> &mut Receiver {
        self.receivers.get_mut(peer, channel).expect("connected before the plan runs")
    }

    /// Lends `memory` to `peer`, for a message that goes through no socket: where it is, as the peer has mapped it,
    /// and where to count it once the peer has read it there.
    /// `None` where it lies in no memory that this rank has registered.
    ///
    /// # Errors
    /// As [`HostWindows::lend`].
    ///
    /// # Safety
    /// The memory is good for reading.
    pub unsafe fn lend(
        &self,
        (peer, channel): (Rank, Channel),
        memory: Range<*const u8>,
    ) -> Result<Option<(OfferedRange, PeerCalls)>> {
        let Some(windows) = &self.shared else { return Ok(None) };
        let is_near = self.senders.place(peer, channel).is_some_and(|place| self.senders.pumps[place].is_none());
        if !is_near || windows.ranks.binary_search(&peer).is_err() {
            return Ok(None);
        }
        let Some(loan) = windows.lend(memory)? else { return Ok(None) };
        // SAFETY: the caller's promise.
        unsafe { loan.copy_in() };
        let lent = (loan.offered(), loan.calls().clone());
        // A peer that reads what is taken away from it reads what was there.
        let _as_it_was = loan.end();
        Ok(Some(lent))
    }

    /// By what `peer` reads memory that this rank offers it.
    pub fn reader(&self, peer: Rank) -> Neighbour {
        let windows = self.shared.as_ref();
        let mapped = windows.and_then(|windows| Some(windows.neighbours[windows.ranks.binary_search(&peer).ok()?]));
        let is_thread = self.reads.is_here(peer) || mapped == Some(Neighbour::Thread);
        if is_thread { Neighbour::Thread } else { Neighbour::Process(self.reads.process(peer)) }
    }

    /// Whether ranks of the host have registered memory.
    #[inline]
    pub fn has_registered(&self) -> bool {
        self.shared.is_some()
    }

    /// What ranks of the host have registered.
    pub fn registered(&self) -> Option<Arc<HostWindows>> {
        self.shared.clone()
    }

    /// The receiving end from `peer`, and how to read its memory.
    ///
    /// # Panics
    /// As [`Links::receiver`].
    pub fn receiver_and_reads(&mut self, peer: Rank, channel: Channel) -> (&mut Receiver, &mut PeerReads) {
        let receiver = self.receivers.get_mut(peer, channel).expect("connected before the plan runs");
        (receiver, &mut self.reads)
    }

    /// Whether [`Links::pass`] can send a message of `bytes` to `peer`.
    #[inline]
    pub fn may_pass(&self, (peer, channel): (Rank, Channel), bytes: usize) -> bool {
        bytes >= PAST_RINGS
            && self.has_pumps()
            && self.senders.place(peer, channel).is_some_and(|place| self.senders.pumps[place].is_some())
            && !self.hands_over((peer, channel), bytes)
    }

    /// Whether a message of `bytes` goes straight to `peer` from the program's memory, by [`Links::hand_over`].
    #[inline]
    pub fn hands_over(&self, (peer, channel): (Rank, Channel), bytes: usize) -> bool {
        let pump = || self.senders.pumps[self.senders.place(peer, channel)?];
        bytes >= PAST_RINGS
            && self.has_pumps()
            && pump().is_some_and(|pump| self.pumps.straight(pump).0.contains(&bytes))
    }

    /// Whether a message of `bytes` from `peer`, which its ring does not hold, comes as a whole: announced in the ring
    /// by a message of no bytes, after which it is [taken](Links::take).
    #[inline]
    pub fn comes_whole(&self, (peer, channel): (Rank, Channel), bytes: usize) -> bool {
        if bytes < PAST_RINGS || !self.has_pumps() {
            return false;
        }
        let Some(place) = self.receivers.place(peer, channel) else { return false };
        let shape = self.receivers.open[place].shape();
        let is_long = bytes > shape.slots as usize * shape.slot_bytes as usize;
        is_long && self.receivers.pumps[place].is_some_and(|pump| self.pumps.straight(pump).0.contains(&bytes))
    }

    /// Lends a message of the program's to a NIC, which sends it from where it lies. `None`: not now; the same is to be
    /// asked again. The answer is kept until it [is over](NicHold::is_over).
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// `from` is good for reads of the message's bytes as long as the answer is kept.
    pub unsafe fn hand_over(
        &mut self,
        (peer, channel): (Rank, Channel),
        from: *const u8,
        (bytes, label): (usize, Label),
    ) -> Result<Option<NicHold>> {
        let (Some(place), Some(from)) = (self.senders.place(peer, channel), NonNull::new(from.cast_mut())) else {
            return Ok(None);
        };
        let (ring, Some(pump)) = (&self.senders.open[place], self.senders.pumps[place]) else { return Ok(None) };
        // SAFETY: the caller's word.
        let hold = unsafe { self.pumps.hand_over(pump, from, (bytes, label)) }?;
        if hold.is_some() {
            ring.note(bytes as u64);
        }
        Ok(hold)
    }

    /// Sends a message straight from the caller's memory, past the ring, where a pump sends to `peer` and has nothing
    /// to send before it. False where it did nothing. What the system does not take now is copied to the next slot, so
    /// the caller's memory is read no more once this returns.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// `from` is good for reads of the message's bytes, and overlaps no slot of this connection.
    pub unsafe fn pass(
        &mut self,
        (peer, channel): (Rank, Channel),
        from: *const u8,
        (bytes, label): (usize, Label),
    ) -> Result<bool> {
        if bytes < PAST_RINGS || !self.has_pumps() {
            return Ok(false);
        }
        let (Some(place), Some(from)) = (self.senders.place(peer, channel), NonNull::new(from.cast_mut())) else {
            return Ok(false);
        };
        let (ring, Some(pump)) = (&mut self.senders.open[place], self.senders.pumps[place]) else { return Ok(false) };
        let Some(slot) = ring.reserve(bytes) else { return Ok(false) };
        // SAFETY: the caller's word for `from`; the slot has just been reserved in the ring that the pump empties.
        match unsafe { self.pumps.pass(pump, (from, slot), (bytes, label)) }? {
            Passed::Nothing => return Ok(false),
            Passed::Whole => ring.note(bytes as u64),
            Passed::Partly => ring.publish(bytes, label),
        }
        Ok(true)
    }

    /// The same for a message of `bytes`, or what is left of one, that travels in pieces of `piece` bytes: how many
    /// bytes have been passed, whole pieces.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// As [`Links::pass`].
    pub unsafe fn pass_pieces(
        &mut self,
        (peer, channel): (Rank, Channel),
        from: *const u8,
        (bytes, piece, label): (usize, usize, Label),
    ) -> Result<usize> {
        if !self.may_pass((peer, channel), piece) {
            return Ok(0);
        }
        let (Some(place), Some(from)) = (self.senders.place(peer, channel), NonNull::new(from.cast_mut())) else {
            return Ok(0);
        };
        let (ring, Some(pump)) = (&mut self.senders.open[place], self.senders.pumps[place]) else { return Ok(0) };
        debug_assert_eq!(ring.shape().spread, 1, "else a shorter last piece would lie elsewhere than what is reserved");
        let Some(slot) = ring.reserve(piece) else { return Ok(0) };
        let message = InPieces { bytes, piece, label };
        // SAFETY: as in `pass`.
        let (passed, last) = unsafe { self.pumps.pass_pieces(pump, (from, slot), message) }?;
        let mut noted = 0;
        while noted < passed {
            let length = piece.min(passed - noted);
            noted += length;
            match last {
                Passed::Partly if noted == passed => ring.publish(length, label),
                Passed::Nothing | Passed::Whole | Passed::Partly => ring.note(length as u64),
            }
        }
        Ok(passed)
    }

    /// Receives the next message straight into the caller's memory, past the ring, in which nothing lies: for callers
    /// who have just looked there. Callers ask until it has come [whole](Taken::Whole) or lies in the ring, or end the
    /// communicator. Where a NIC writes there, what is left in `hold` is kept until the message has come whole.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// `into` is good for writes of the expected bytes, for as long as what was left in `hold` is kept.
    pub unsafe fn take(
        &mut self,
        (peer, channel): (Rank, Channel),
        (into, hold): (*mut u8, &mut Option<NicHold>),
        (bytes, label): (usize, Label),
    ) -> Result<Taken> {
        if bytes < PAST_RINGS || !self.has_pumps() {
            return Ok(Taken::ByRing);
        }
        let (Some(place), Some(into)) = (self.receivers.place(peer, channel), NonNull::new(into)) else {
            return Ok(Taken::ByRing);
        };
        let Some(pump) = self.receivers.pumps[place] else { return Ok(Taken::ByRing) };
        // SAFETY: the caller's word.
        let taken = unsafe { self.pumps.take(pump, (into, hold), (bytes, label)) }?;
        if taken == Taken::Whole {
            self.receivers.open[place].note(bytes as u64);
        }
        Ok(taken)
    }

    /// The sending end, for looking at flags.
    pub fn sender_ref(&self, peer: Rank, channel: Channel) -> Option<&Sender> {
        self.senders.get(peer, channel)
    }

    /// The receiving end, for looking at flags.
    pub fn receiver_ref(&self, peer: Rank, channel: Channel) -> Option<&Receiver> {
        self.receivers.get(peer, channel)
    }

    /// The labels of the messages of collectives that have arrived and that nobody has taken, with their senders: one
    /// of each connection.
    #[cold]
    pub fn left_over(&mut self) -> Vec<(Rank, Label)> {
        let Ends { open, places, .. } = &mut self.receivers;
        let mut found = Vec::new();
        for (peer, of_peer) in (0..).zip(places) {
            for place in of_peer.iter().skip(Channel::PointToPoint.place() + 1).filter(|place| **place != NONE) {
                let message = open.get_mut(*place as usize).map(Receiver::peek);
                // A message that cannot be read is no call to compare.
                if let Some(Ok(Some(message))) = message {
                    found.push((Rank::new(peer), message.label));
                }
            }
        }
        found
    }

    /// Lets every pump that can move do so. True where one did.
    ///
    /// # Errors
    /// Of a connection, naming the peer.
    #[inline]
    pub fn pump(&mut self) -> Result<bool> {
        self.pumps.pump()
    }

    /// Whether any connection moves its bytes by a pump.
    #[inline]
    pub fn has_pumps(&self) -> bool {
        self.pumps.count() > 0
    }

    /// Whether every open connection moves its bytes by a pump, so that only pumps can bring news.
    pub fn is_all_pumps(&self) -> bool {
        self.senders.open.len() + self.receivers.open.len() == self.pumps.count()
    }

    /// Whether every pump has handed all that was published to the system.
    pub fn drained(&self) -> bool {
        self.pumps.drained()
    }

    /// The peers for whom something was published that their pumps have not yet handed to the system.
    #[cold]
    pub fn undrained(&self) -> impl Iterator<Item = Rank> {
        let Ends { pumps, places, .. } = &self.senders;
        let has_more = |place: &u32| {
            let pump = pumps.get(*place as usize).copied().flatten();
            pump.is_some_and(|pump| !self.pumps.is_drained(pump))
        };
        let peers = (0..).zip(places).filter(move |(_, of_peer)| of_peer.iter().any(has_more));
        peers.map(|(peer, _)| Rank::new(peer))
    }

    /// The peers to whom the system has sent something again without an answer.
    #[cold]
    pub fn unanswered(&self) -> impl Iterator<Item = (Rank, Unanswered)> {
        let Ends { pumps, places, .. } = &self.senders;
        let of_channel = |place: &u32| {
            let pump = pumps.get(*place as usize).copied().flatten()?;
            self.pumps.unanswered(pump)
        };
        (0..)
            .zip(places)
            .filter_map(move |(peer, of_peer)| Some((Rank::new(peer), of_peer.iter().find_map(of_channel)?)))
    }

    /// Sleeps until a pump may move, at most `slice`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system cannot wait.
    pub fn rest_on_pumps(&mut self, slice: Duration) -> Result<()> {
        self.pumps.rest(slice)
    }

    /// The communicator has failed: its connections end without a last word.
    pub fn forsake(&mut self) {
        self.pumps.forsake();
    }

    /// See [`Pumps::sources`].
    ///
    /// # Errors
    /// As there.
    pub(super) fn sources(&mut self) -> Result<Option<PumpSources<'_>>> {
        self.pumps.sources()
    }

    /// Whether the end that `need` names is open.
    pub fn has(&self, need: &Need) -> bool {
        match need.way {
            Way::Receive => self.receivers.place(need.peer, need.channel).is_some(),
            Way::Send => self.senders.place(need.peer, need.channel).is_some(),
        }
    }
}

/// Bytes from which messages go past the rings of pumps, which saves a copy at each end. Smaller ones have less to save
/// than a call costs that finds nothing.
const PAST_RINGS: usize = 8 << 10;
/// No place.
const NONE: u32 = u32::MAX;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn ends_are_found_by_rank_and_channel() {
        let mut ends: Ends<u32> = Ends::default();
        let all = [(9, Channel::PointToPoint), (9, Channel::Collective(0)), (0, Channel::Collective(255))];
        for (value, (peer, channel)) in (0..).zip(all) {
            ends.insert((Rank::new(peer), channel), value, None);
        }
        for (value, (peer, channel)) in (0..).zip(all) {
            assert_eq!(ends.get(Rank::new(peer), channel), Some(&value));
        }
        for (peer, channel) in [(0, Channel::PointToPoint), (9, Channel::Collective(1)), (10, Channel::PointToPoint)] {
            assert_eq!(ends.get(Rank::new(peer), channel), None);
        }
    }
}
