//! The rings of a communicator, and the pumps behind those whose ends share no memory.
//!
//! # Which pumps are called
//! Each turn calls the pumps that can move. A pump that waits for a descriptor is called when the kernel has reported
//! one of them, edge-triggered: one `epoll_wait` asks for all such pumps together, and an idle connection costs
//! nothing. The pump that moved last is called without asking, since its own read costs what asking would, and messages
//! often come from where the last one came. The others are asked for in each turn in which it finds nothing. A turn in
//! which a pump had something of its own to send asks nobody: what it sent may be all that the caller waits for.
//! Whatever moves, one of [`LOOK_EVERY`] turns asks for all.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::device::StorePolicy;
use crate::error::Result;
use crate::sync::ring::{Label, Receiver, Sender};
use crate::sys::futex;
use crate::sys::poller::{self, Interest, Poller, Ready};
use crate::transport::peer_reads::PeerReads;
use crate::transport::pump::{Pump, ReceiveEnd, SendEnd, Waits};
use crate::types::Rank;

/// Which of the connections of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Channel {
    /// For collectives: the plan's channel.
    Collective(u8),
    /// For send and recv.
    PointToPoint,
}

/// Which end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Way {
    /// I receive. Before `Send`, so that sorted needs make offers before they wait for any.
    Receive,
    /// I send.
    Send,
}

/// A connection that a plan needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Need {
    /// Which end.
    pub way: Way,
    /// The other rank.
    pub peer: Rank,
    /// Which of the pair's connections.
    pub channel: Channel,
}

/// The rings that are open.
#[derive(Debug, Default)]
pub struct Links {
    senders: Ends<Sender>,
    receivers: Ends<Receiver>,
    pumps: Vec<Driven>,
    /// The place of the pump that a descriptor let move last.
    recent: usize,
    /// Turns since all were asked for.
    unasked: u32,
    watch: Option<Watched>,
    /// What was learnt of copies into memory that peers read.
    pub staging: StorePolicy,
    /// Whose memory this rank may read in place.
    pub reads: PeerReads,
}

/// The ends of one way, in the order in which they were opened, found by rank and channel.
#[derive(Debug)]
struct Ends<E> {
    open: Vec<E>,
    /// By rank, then by channel: the place in `open`, or [`NONE`].
    places: Vec<Vec<u32>>,
}

/// A pump, and whether a descriptor of it was reported since it last had to wait for one.
#[derive(Debug)]
struct Driven {
    pump: Box<dyn Pump>,
    is_ready: bool,
}

/// The descriptors of all pumps. Tokens are places among the pumps.
#[derive(Debug)]
struct Watched {
    poller: Poller,
    ready: Ready,
}

impl<E> Default for Ends<E> {
    fn default() -> Ends<E> {
        Ends { open: Vec::new(), places: Vec::new() }
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

    fn insert(&mut self, (peer, channel): (Rank, Channel), end: E) {
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
    }
}

impl Channel {
    /// Its place among the connections of a pair.
    fn place(self) -> usize {
        match self {
            Channel::PointToPoint => 0,
            Channel::Collective(number) => usize::from(number) + 1,
        }
    }
}

impl Links {
    /// No ring yet, of a rank that may read its peers' memory by `reads`.
    pub(super) fn new(reads: PeerReads) -> Links {
        Links { reads, ..Links::default() }
    }

    pub(super) fn add_sender(&mut self, (peer, channel): (Rank, Channel), end: SendEnd) -> Result<()> {
        self.senders.insert((peer, channel), end.ring);
        end.pump.map_or(Ok(()), |pump| self.add_pump(pump))
    }

    pub(super) fn add_receiver(&mut self, (peer, channel): (Rank, Channel), end: ReceiveEnd) -> Result<()> {
        self.receivers.insert((peer, channel), end.ring);
        end.pump.map_or(Ok(()), |pump| self.add_pump(pump))
    }

    fn add_pump(&mut self, pump: Box<dyn Pump>) -> Result<()> {
        let token = self.pumps.len() as u64;
        for (descriptor, interest) in pump.descriptors() {
            let watched = match &mut self.watch {
                Some(watched) => watched,
                none => none.insert(Watched { poller: Poller::new()?, ready: Ready::default() }),
            };
            watched.poller.add_edge(descriptor, token, interest)?;
        }
        self.pumps.push(Driven { pump, is_ready: true });
        Ok(())
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

    /// The receiving end from `peer`, and how to read its memory.
    ///
    /// # Panics
    /// As [`Links::receiver`].
    pub fn receiver_and_reads(&mut self, peer: Rank, channel: Channel) -> (&mut Receiver, &mut PeerReads) {
        let receiver = self.receivers.get_mut(peer, channel).expect("connected before the plan runs");
        (receiver, &mut self.reads)
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
        let Ends { open, places } = &mut self.receivers;
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
        if self.pumps.is_empty() { Ok(false) } else { self.pump_all() }
    }

    fn pump_all(&mut self) -> Result<bool> {
        let (mut moved, mut asleep) = (false, 0);
        for driven in &mut self.pumps {
            match driven.pump.waits() {
                Waits::Ring => {}
                Waits::Descriptor if !driven.is_ready => asleep += 1,
                Waits::Nothing | Waits::Descriptor => moved |= driven.progress()?,
            }
        }
        self.unasked += 1;
        if asleep == 0 || (moved && self.unasked < LOOK_EVERY) {
            return Ok(moved);
        }
        let is_asleep = |driven: &Driven| driven.pump.waits() == Waits::Descriptor;
        if asleep == 1 {
            self.recent = self.pumps.iter().position(is_asleep).unwrap_or(self.recent);
        }
        if let Some(driven) = self.pumps.get_mut(self.recent).filter(|driven| is_asleep(driven)) {
            moved |= driven.progress()?;
        }
        if asleep == 1 || (moved && self.unasked < LOOK_EVERY) {
            return Ok(moved);
        }
        self.unasked = 0;
        self.look(Duration::ZERO)?;
        for (place, driven) in self.pumps.iter_mut().enumerate() {
            if driven.is_ready && is_asleep(driven) && driven.progress()? {
                (moved, self.recent) = (true, place);
            }
        }
        Ok(moved)
    }

    /// Marks the pumps whose descriptors become ready within `timeout`.
    fn look(&mut self, timeout: Duration) -> Result<()> {
        let Some(Watched { poller, ready }) = &mut self.watch else { return Ok(()) };
        if !timeout.is_zero() {
            // The poller's own wait counts in milliseconds, which is too coarse here.
            poller::wait_any(&[(poller.as_fd(), Interest::Read)], timeout)?;
        }
        loop {
            poller.wait(ready, Duration::ZERO)?;
            for report in ready.iter() {
                let driven = usize::try_from(report.token).ok().and_then(|place| self.pumps.get_mut(place));
                if let Some(driven) = driven {
                    driven.is_ready = true;
                }
            }
            if !ready.is_full() {
                return Ok(());
            }
        }
    }

    /// Whether any connection moves its bytes by a pump.
    #[inline]
    pub fn has_pumps(&self) -> bool {
        !self.pumps.is_empty()
    }

    /// Whether every open connection moves its bytes by a pump, so that only pumps can bring news.
    pub fn is_all_pumps(&self) -> bool {
        self.senders.open.len() + self.receivers.open.len() == self.pumps.len()
    }

    /// Whether every pump has handed all that was published to the system.
    pub fn drained(&self) -> bool {
        self.pumps.iter().all(|driven| driven.pump.drained())
    }

    /// Sleeps until a pump may move, at most `slice`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system cannot wait.
    pub fn rest_on_pumps(&mut self, slice: Duration) -> Result<()> {
        let must_be_asked = |driven: &Driven| driven.pump.waits() == Waits::Nothing;
        if self.watch.is_none() || self.pumps.iter().any(must_be_asked) {
            futex::nap(slice.min(ASKING_NAP));
            return Ok(());
        }
        self.look(slice)
    }

    /// Whether the end that `need` names is open.
    pub fn has(&self, need: &Need) -> bool {
        match need.way {
            Way::Receive => self.receivers.place(need.peer, need.channel).is_some(),
            Way::Send => self.senders.place(need.peer, need.channel).is_some(),
        }
    }
}

impl Driven {
    fn progress(&mut self) -> Result<bool> {
        let moved = self.pump.progress()?;
        // It has tried all its descriptors that it waits for now, and found none ready: the next edge will be reported.
        if self.pump.waits() == Waits::Descriptor {
            self.is_ready = false;
        }
        Ok(moved)
    }
}

/// No place.
const NONE: u32 = u32::MAX;
/// While something moves, one of so many turns asks for all pumps that wait for a descriptor.
const LOOK_EVERY: u32 = 8;
/// How long a rest lasts where a pump has no descriptor and must be asked again.
const ASKING_NAP: Duration = Duration::from_micros(50);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::sync::primitive::{Arc, AtomicU64, Ordering};

    /// A pump that reads one byte at a time from a socket, and counts how often it is called; without descriptors where
    /// `asks`.
    #[derive(Debug)]
    struct Counting {
        socket: UnixStream,
        asks: bool,
        calls: Arc<AtomicU64>,
        bytes: Arc<AtomicU64>,
    }

    impl Pump for Counting {
        fn progress(&mut self) -> Result<bool> {
            self.calls.fetch_add(1, Ordering::Relaxed);
            let mut moved = false;
            while matches!(self.socket.read(&mut [0]), Ok(1)) {
                self.bytes.fetch_add(1, Ordering::Relaxed);
                moved = true;
            }
            Ok(moved)
        }
        fn waits(&self) -> Waits {
            if self.asks { Waits::Nothing } else { Waits::Descriptor }
        }
        fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
            if self.asks { Vec::new() } else { vec![(self.socket.as_fd(), Interest::Read)] }
        }
        fn drained(&self) -> bool {
            true
        }
    }

    /// A pump in `links`: the other end of its socket, its calls, its bytes.
    fn add(links: &mut Links, asks: bool) -> (UnixStream, Arc<AtomicU64>, Arc<AtomicU64>) {
        let (theirs, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (calls, bytes) = (Arc::default(), Arc::default());
        let pump = Counting { socket, asks, calls: Arc::clone(&calls), bytes: Arc::clone(&bytes) };
        links.add_pump(Box::new(pump)).unwrap();
        (theirs, calls, bytes)
    }

    #[test]
    fn an_idle_connection_is_not_read_however_often_others_turn() {
        let mut links = Links::default();
        let mut ends: Vec<_> = (0..20).map(|_| add(&mut links, false)).collect();
        links.pump().unwrap();
        // A first byte makes pump 7 the one that moved last.
        ends[7].0.write_all(b"x").unwrap();
        assert!(links.pump().unwrap());
        let before: Vec<u64> = ends.iter().map(|(_, calls, _)| calls.load(Ordering::Relaxed)).collect();
        for turn in 1..=100 {
            assert!(!links.pump().unwrap(), "nothing has come");
            ends[7].0.write_all(b"x").unwrap();
            assert!(links.pump().unwrap());
            assert_eq!(ends[7].2.load(Ordering::Relaxed), turn + 1);
        }
        for (place, ((_, calls, _), before)) in ends.iter().zip(before).enumerate() {
            let more = calls.load(Ordering::Relaxed) - before;
            assert_eq!(more, if place == 7 { 200 } else { 0 }, "pump {place}");
        }
    }

    #[test]
    fn a_connection_that_always_has_bytes_does_not_starve_the_others() {
        let mut links = Links::default();
        let mut ends: Vec<_> = (0..3).map(|_| add(&mut links, false)).collect();
        links.pump().unwrap();
        ends[2].0.write_all(b"x").unwrap();
        assert!(links.pump().unwrap());
        ends[0].0.write_all(b"y").unwrap();
        for _ in 0..LOOK_EVERY {
            ends[2].0.write_all(b"x").unwrap();
            assert!(links.pump().unwrap());
        }
        assert_eq!(ends[0].2.load(Ordering::Relaxed), 1, "asked for within {LOOK_EVERY} turns");
    }

    #[test]
    fn a_rest_ends_when_bytes_come_and_the_pump_that_has_them_moves() {
        let mut links = Links::default();
        let mut ends: Vec<_> = (0..3).map(|_| add(&mut links, false)).collect();
        links.pump().unwrap();
        ends[1].0.write_all(b"xyz").unwrap();
        links.rest_on_pumps(Duration::MAX).unwrap();
        assert!(links.pump().unwrap());
        assert_eq!(ends[1].2.load(Ordering::Relaxed), 3);
        // The end of a stream is reported too.
        drop(ends.remove(0).0);
        links.rest_on_pumps(Duration::MAX).unwrap();
    }

    #[test]
    fn a_pump_without_descriptors_is_asked_on_every_turn() {
        let mut links = Links::default();
        let (mut theirs, calls, bytes) = add(&mut links, true);
        for turn in 1..=10 {
            links.rest_on_pumps(Duration::MAX).unwrap();
            theirs.write_all(b"x").unwrap();
            assert!(links.pump().unwrap());
            assert_eq!((calls.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed)), (turn, turn));
        }
    }

    #[test]
    fn ends_are_found_by_rank_and_channel() {
        let mut ends: Ends<u32> = Ends::default();
        let all = [(9, Channel::PointToPoint), (9, Channel::Collective(0)), (0, Channel::Collective(255))];
        for (value, (peer, channel)) in (0..).zip(all) {
            ends.insert((Rank::new(peer), channel), value);
        }
        for (value, (peer, channel)) in (0..).zip(all) {
            assert_eq!(ends.get(Rank::new(peer), channel), Some(&value));
        }
        for (peer, channel) in [(0, Channel::PointToPoint), (9, Channel::Collective(1)), (10, Channel::PointToPoint)] {
            assert_eq!(ends.get(Rank::new(peer), channel), None);
        }
    }
}
