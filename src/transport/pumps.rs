//! The pumps that one thread drives.
//!
//! # Which pumps are called
//! Each turn calls the pumps that can move. A pump that waits for a descriptor is called when the kernel has reported
//! one of them: one system call asks for all such pumps together. Where they have few descriptors that is a `poll`,
//! which takes none of its own, and where they have many, or one has several, an `epoll_wait`, edge-triggered, to which
//! an idle connection costs nothing: of several sockets of a pump one may be ready all the time that it waits for
//! another. The pump that moved last is called without asking, since its own read costs what asking would, and messages
//! often come from where the last one came. The others are asked for in each turn in which it finds nothing. A turn in
//! which a pump had something of its own to send asks nobody: what it sent may be all that the caller waits for.
//! Whatever moves, one of [`LOOK_EVERY`] turns asks for all.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::sync::primitive::Arc;
use crate::sync::ring::Label;
use crate::sys::clock;
use crate::sys::futex;
use crate::sys::poller::{self, Interest, Poller, Ready};
use crate::sys::unanswered::{self, Unanswered};
use crate::transport::nic_hold::NicHold;
use crate::transport::pump::{InPieces, Passed, Pump, PumpSleep, StraightWay, Taken, Waits};

/// Pumps, and their descriptors.
#[derive(Debug, Default)]
pub struct Pumps {
    all: Vec<Driven>,
    /// The place of the pump that a descriptor let move last.
    recent: usize,
    /// Turns since all were asked for.
    unasked: u32,
    /// How many descriptors they have.
    descriptors: usize,
    /// Watches them once they are more than [`FEW_DESCRIPTORS`], or a pump has several. Tokens are places among the
    /// pumps.
    poller: Option<Poller>,
    ready: Ready,
    /// When the connections were last looked at.
    looked: Option<Instant>,
    /// Whether the communicator has failed, so that nobody waits for what was sent.
    is_forsaken: bool,
    /// The descriptor of a NIC on which a thread sleeps.
    of_nic: Option<Arc<OwnedFd>>,
}

/// What a thread sleeps on that waits for pumps.
#[derive(Debug)]
pub struct PumpSources<'a> {
    /// One of these becomes ready when a pump may move.
    pub descriptors: Vec<(BorrowedFd<'a>, Interest)>,
    /// After so long the pumps are to be looked at in any case.
    pub at_most: Duration,
}

/// A pump, and whether a descriptor of it was reported since it last had to wait for one.
#[derive(Debug)]
struct Driven {
    pump: Box<dyn Pump>,
    is_ready: bool,
    /// Whether it has any descriptor.
    has_descriptors: bool,
    /// Whether a turn has said that something has come that an executor [takes](Pump::take).
    is_told: bool,
}

impl Pumps {
    /// Adds a pump.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system watches no more descriptors.
    pub(super) fn add(&mut self, pump: Box<dyn Pump>) -> Result<()> {
        let (token, descriptors) = (self.all.len() as u64, pump.descriptors());
        self.descriptors += descriptors.len();
        let has_descriptors = !descriptors.is_empty();
        let are_many = descriptors.len() > 1 || self.descriptors > FEW_DESCRIPTORS;
        if let Some(poller) = &self.poller {
            watch(poller, token, descriptors)?;
        } else {
            drop(descriptors);
        }
        self.all.push(Driven { pump, is_ready: true, has_descriptors, is_told: false });
        if self.poller.is_none() && are_many {
            let poller = Poller::new()?;
            (0..).zip(&self.all).try_for_each(|(token, driven)| watch(&poller, token, driven.pump.descriptors()))?;
            self.poller = Some(poller);
        }
        Ok(())
    }

    /// Lets every pump that can move do so. True where one did.
    ///
    /// # Errors
    /// Of a connection, naming the peer.
    #[inline]
    pub fn pump(&mut self) -> Result<bool> {
        if self.all.is_empty() { Ok(false) } else { self.pump_all() }
    }

    fn pump_all(&mut self) -> Result<bool> {
        let (mut moved, mut asleep) = (false, 0);
        // First: a look at a NIC, which the others begin with, takes longer than what is to be sent should wait.
        for driven in self.all.iter_mut().filter(|driven| driven.must_be_asked() && !driven.pump.is_awaited()) {
            moved |= driven.pump.begin()?;
        }
        for driven in &mut self.all {
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
            self.recent = self.all.iter().position(is_asleep).unwrap_or(self.recent);
        }
        if let Some(driven) = self.all.get_mut(self.recent).filter(|driven| is_asleep(driven)) {
            moved |= driven.progress()?;
        }
        if asleep == 1 || (moved && self.unasked < LOOK_EVERY) {
            return Ok(moved);
        }
        self.unasked = 0;
        self.look(Duration::ZERO)?;
        for (place, driven) in self.all.iter_mut().enumerate() {
            if driven.is_ready && is_asleep(driven) && driven.progress()? {
                (moved, self.recent) = (true, place);
            }
        }
        Ok(moved)
    }

    /// Marks the pumps whose descriptors become ready within `timeout`.
    fn look(&mut self, timeout: Duration) -> Result<()> {
        let Pumps { all, poller, ready, .. } = self;
        let Some(poller) = poller else {
            let asleep = (0..).zip(&*all).filter(|(_, driven)| driven.is_asleep());
            let few = asleep.flat_map(|(place, driven)| {
                driven.pump.descriptors().into_iter().map(move |(descriptor, interest)| (place, descriptor, interest))
            });
            poller::wait_few(few, ready, timeout)?;
            mark(all, ready);
            return Ok(());
        };
        if !timeout.is_zero() {
            // The poller's own wait counts in milliseconds, which is too coarse here.
            poller::wait_any(&[(poller.as_fd(), Interest::Read)], timeout)?;
        }
        loop {
            poller.wait(ready, Duration::ZERO)?;
            mark(all, ready);
            if !ready.is_full() {
                return Ok(());
            }
        }
    }

    /// [`Pump::pass`] of the pump at `place`.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn pass(
        &mut self,
        place: usize,
        (from, slot): (NonNull<u8>, NonNull<u8>),
        message: (usize, Label),
    ) -> Result<Passed> {
        // SAFETY: the caller's word.
        self.all.get_mut(place).map_or(Ok(Passed::Nothing), |driven| unsafe { driven.pump.pass(from, slot, message) })
    }

    /// [`Pump::pass_pieces`] of the pump at `place`.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn pass_pieces(
        &mut self,
        place: usize,
        (from, slot): (NonNull<u8>, NonNull<u8>),
        message: InPieces,
    ) -> Result<(usize, Passed)> {
        let Some(driven) = self.all.get_mut(place) else { return Ok((0, Passed::Nothing)) };
        // SAFETY: the caller's word.
        let passed = unsafe { driven.pump.pass_pieces(from, slot, message) }?;
        // The kernel tells of room again after a call that has found none, which the one that came short was not.
        driven.is_ready |= passed.1 == Passed::Partly;
        Ok(passed)
    }

    /// [`Pump::straight`] of the pump at `place`.
    pub(super) fn straight(&self, place: usize) -> StraightWay {
        self.all.get(place).map_or_else(StraightWay::default, |driven| driven.pump.straight())
    }

    /// [`Pump::hand_over`] of the pump at `place`.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn hand_over(
        &mut self,
        place: usize,
        from: NonNull<u8>,
        message: (usize, Label),
    ) -> Result<Option<NicHold>> {
        // SAFETY: the caller's word.
        self.all.get_mut(place).map_or(Ok(None), |driven| unsafe { driven.pump.hand_over(from, message) })
    }

    /// [`Pump::take`] of the pump at `place`, where something may have come for it.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn take(
        &mut self,
        place: usize,
        (into, hold): (NonNull<u8>, &mut Option<NicHold>),
        expected: (usize, Label),
    ) -> Result<Taken> {
        let Some(driven) = self.all.get_mut(place) else { return Ok(Taken::ByRing) };
        if driven.pump.is_awaited() && !driven.is_ready && place != self.recent {
            return Ok(Taken::Open(false));
        }
        driven.is_told = false;
        // SAFETY: the caller's word.
        let taken = unsafe { driven.pump.take(into, expected, hold) }?;
        match taken {
            // The next turn puts it there: what came of it may have been read, so that no edge tells of it again.
            Taken::ByRing => driven.is_ready = true,
            Taken::Open(false) => driven.has_tried(),
            Taken::Open(true) | Taken::Whole => {
                driven.has_tried();
                self.recent = place;
            }
        }
        Ok(taken)
    }

    /// How many there are.
    #[inline]
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Whether every pump has handed all that was published to the system.
    pub fn drained(&self) -> bool {
        self.all.iter().all(|driven| driven.pump.drained())
    }

    /// Whether the pump at `place` has handed all that was published to the system.
    pub(super) fn is_drained(&self, place: usize) -> bool {
        self.all.get(place).is_none_or(|driven| driven.pump.drained())
    }

    /// The communicator has failed: its connections end without a last word.
    pub(super) fn forsake(&mut self) {
        self.is_forsaken = true;
    }

    /// What the system tells of the connections of the pump at `place` whose data do not arrive.
    pub(super) fn unanswered(&self, place: usize) -> Option<Unanswered> {
        self.all.get(place)?.pump.descriptors().into_iter().find_map(|(descriptor, _)| unanswered::of(descriptor))
    }

    /// What a thread may sleep on until a pump can move. `None`: one can move now, or must be asked again and again.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system cannot say, and of a connection, naming the peer.
    pub fn sources(&mut self) -> Result<Option<PumpSources<'_>>> {
        self.look_after(clock::now())?;
        // What was reported already is taken: an edge that nobody has taken would end each sleep at once.
        self.look(Duration::ZERO)?;
        let can_move = |driven: &Driven| driven.pump.waits() == Waits::Descriptor && driven.is_ready;
        if self.all.iter().any(can_move) {
            return Ok(None);
        }
        self.of_nic = None;
        if self.all.iter().any(Driven::must_be_asked) {
            let PumpSleep::On(descriptor) = self.ask_all()? else { return Ok(None) };
            self.of_nic = Some(descriptor);
        }
        let mut descriptors = match &self.poller {
            Some(poller) => vec![(poller.as_fd(), Interest::Read)],
            None => self.all.iter().filter(|one| one.is_asleep()).flat_map(|one| one.pump.descriptors()).collect(),
        };
        let of_nic = self.of_nic.as_ref().map(|descriptor| (descriptor.as_fd(), Interest::Read));
        let at_most = if of_nic.is_some() { LONG_NIC_REST } else { Duration::MAX };
        descriptors.extend(of_nic);
        Ok(Some(PumpSources { descriptors, at_most }))
    }

    /// Looks whether the peers' systems answer, unless that was done a moment ago.
    fn look_after(&mut self, now: Instant) -> Result<()> {
        if self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK_PAUSE) {
            return Ok(());
        }
        self.looked = Some(now);
        self.all.iter_mut().try_for_each(|driven| driven.pump.look(now))
    }

    /// Sleeps until a pump may move, at most `slice`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system cannot wait.
    pub fn rest(&mut self, slice: Duration) -> Result<()> {
        self.look_after(clock::now())?;
        let slice = slice.min(LOOK_PAUSE);
        let may_be_told = self.poller.is_some() || self.all.iter().any(Driven::is_asleep);
        if self.all.iter().any(Driven::must_be_asked) {
            return self.rest_asking(slice);
        }
        if !may_be_told {
            nap(slice);
            return Ok(());
        }
        self.look(slice)
    }

    /// The rest where some pumps have to be asked.
    fn rest_asking(&mut self, slice: Duration) -> Result<()> {
        match self.ask_all()? {
            PumpSleep::Moved => Ok(()),
            PumpSleep::Ask => {
                nap(slice);
                Ok(())
            }
            PumpSleep::On(descriptor) => {
                poller::wait_any(&[(descriptor.as_fd(), Interest::Read)], slice.min(NIC_REST)).map(drop)
            }
        }
    }

    /// What a thread may sleep on for the pumps that have to be asked. If each of them has a descriptor, that of the
    /// last one does for all: they are of one NIC. What one of them has let the NIC move may be another's, which has
    /// been asked before: so all say first whether something has come for them.
    fn ask_all(&mut self) -> Result<PumpSleep> {
        let (mut on, mut must_ask) = (None, false);
        for driven in self.all.iter_mut().filter(|driven| driven.must_be_asked()) {
            match driven.pump.sleep()? {
                PumpSleep::Moved => return Ok(PumpSleep::Moved),
                PumpSleep::Ask => must_ask = true,
                PumpSleep::On(descriptor) => on = Some(descriptor),
            }
        }
        Ok(on.filter(|_| !must_ask).map_or(PumpSleep::Ask, PumpSleep::On))
    }
}

/// A NIC may lose what it has not delivered when its endpoint is closed, so peers say first that they have taken all.
impl Drop for Pumps {
    fn drop(&mut self) {
        if self.is_forsaken {
            return;
        }
        let until = clock::now() + PARTING_TIME;
        // All are asked in each turn: two ranks that part from each other wait for each other's words.
        let have_parted = |all: &mut Vec<Driven>| {
            let mut have_all = true;
            all.iter_mut().for_each(|driven| have_all &= driven.pump.part());
            have_all
        };
        while !have_parted(&mut self.all) && clock::now() < until {
            nap(ASKING_NAP);
        }
    }
}

/// Sleeps until pumps are asked again.
fn nap(slice: Duration) {
    futex::nap(slice.min(ASKING_NAP));
}

/// Lets `poller` report the descriptors by `token`.
fn watch(poller: &Poller, token: u64, descriptors: Vec<(BorrowedFd<'_>, Interest)>) -> Result<()> {
    descriptors.into_iter().try_for_each(|(descriptor, interest)| poller.add_edge(descriptor, token, interest))
}

/// Notes the pumps that were reported.
fn mark(all: &mut [Driven], ready: &Ready) {
    for report in ready.iter() {
        let driven = usize::try_from(report.token).ok().and_then(|place| all.get_mut(place));
        if let Some(driven) = driven {
            driven.is_ready = true;
        }
    }
}

impl Driven {
    /// Whether it waits for a descriptor that was not reported.
    fn is_asleep(&self) -> bool {
        !self.is_ready && self.pump.waits() == Waits::Descriptor
    }

    /// Whether no descriptor of its own tells when it can move.
    fn must_be_asked(&self) -> bool {
        self.pump.waits() == Waits::Nothing
    }

    fn progress(&mut self) -> Result<bool> {
        if self.pump.is_awaited() {
            // An executor takes it, which this turn brings back to it; once, since it may never come back. Where no
            // descriptor tells that something has come, the executor asks in its own turns, which may grow slower.
            return Ok(self.has_descriptors && self.is_ready && !std::mem::replace(&mut self.is_told, true));
        }
        let moved = self.pump.progress()?;
        self.has_tried();
        Ok(moved)
    }

    /// The pump has tried all its descriptors that it waits for now (`Waits::Descriptor`): the next edge will be
    /// reported.
    fn has_tried(&mut self) {
        if self.pump.waits() == Waits::Descriptor {
            self.is_ready = false;
        }
    }
}

/// The most descriptors that are named at each look. A look at so many costs little more than at a poller, and a
/// communicator of two ranks, of which a process may have a thousand, keeps its sockets alone.
const FEW_DESCRIPTORS: usize = 8;
/// While something moves, one of so many turns asks for all pumps that wait for a descriptor.
const LOOK_EVERY: u32 = 8;
/// The pause between two looks at connections that do not move: a part of the shortest time (`RSCCL_NIC_TIMEOUT`) after
/// which one counts as dead.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
/// How long a rest lasts where a pump has no descriptor and must be asked again.
const ASKING_NAP: Duration = Duration::from_micros(50);
/// How long a communicator that ends waits for the word of peers that they have taken the last messages: they say so
/// when they end theirs.
const PARTING_TIME: Duration = Duration::from_millis(200);
/// How long a rest on a NIC's descriptor lasts, which says nothing of other pumps and rings.
const NIC_REST: Duration = Duration::from_millis(1);
/// The same of a thread that sleeps on the descriptors of all pumps: what it is told may have been read by another one
/// that shares the NIC.
const LONG_NIC_REST: Duration = Duration::from_millis(20);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::{BorrowedFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::sync::primitive::{Arc, AtomicU64, Ordering};

    /// A pump that reads one byte at a time from a socket, and counts how often it is called; without descriptors where
    /// `asks`.
    #[derive(Debug)]
    struct Counting {
        socket: UnixStream,
        asks: bool,
        awaited: bool,
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
        unsafe fn take(
            &mut self,
            _: NonNull<u8>,
            (bytes, _): (usize, Label),
            _: &mut Option<NicHold>,
        ) -> Result<Taken> {
            if bytes == 0 {
                return Ok(Taken::ByRing);
            }
            self.awaited = true;
            self.progress().map(Taken::Open)
        }
        fn is_awaited(&self) -> bool {
            self.awaited
        }
    }

    /// A pump in `pumps`: the other end of its socket, its calls, its bytes.
    fn add(pumps: &mut Pumps, asks: bool) -> (UnixStream, Arc<AtomicU64>, Arc<AtomicU64>) {
        let (theirs, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let (calls, bytes) = (Arc::default(), Arc::default());
        let pump = Counting { socket, asks, awaited: false, calls: Arc::clone(&calls), bytes: Arc::clone(&bytes) };
        pumps.add(Box::new(pump)).unwrap();
        (theirs, calls, bytes)
    }

    #[test]
    fn an_idle_connection_is_not_read_however_often_others_turn() {
        let mut pumps = Pumps::default();
        let mut ends: Vec<_> = (0..20).map(|_| add(&mut pumps, false)).collect();
        pumps.pump().unwrap();
        // A first byte makes pump 7 the one that moved last.
        ends[7].0.write_all(b"x").unwrap();
        assert!(pumps.pump().unwrap());
        let before: Vec<u64> = ends.iter().map(|(_, calls, _)| calls.load(Ordering::Relaxed)).collect();
        for turn in 1..=100 {
            assert!(!pumps.pump().unwrap(), "nothing has come");
            ends[7].0.write_all(b"x").unwrap();
            assert!(pumps.pump().unwrap());
            assert_eq!(ends[7].2.load(Ordering::Relaxed), turn + 1);
        }
        for (place, ((_, calls, _), before)) in ends.iter().zip(before).enumerate() {
            let more = calls.load(Ordering::Relaxed) - before;
            assert_eq!(more, if place == 7 { 200 } else { 0 }, "pump {place}");
        }
    }

    /// Waits for one of its two sockets, while the other one is ready all the time.
    #[derive(Debug)]
    struct Lopsided([UnixStream; 2]);

    impl Pump for Lopsided {
        fn progress(&mut self) -> Result<bool> {
            Ok(matches!(self.0[0].read(&mut [0]), Ok(1)))
        }
        fn waits(&self) -> Waits {
            Waits::Descriptor
        }
        fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
            self.0.iter().map(|socket| (socket.as_fd(), Interest::Read)).collect()
        }
        fn drained(&self) -> bool {
            true
        }
    }

    #[test]
    fn a_socket_that_is_ready_while_its_pump_waits_for_another_wakes_nobody() {
        let mut pumps = Pumps::default();
        let [(mut awaited, mine), (mut other, second)] = [(); 2].map(|()| UnixStream::pair().unwrap());
        mine.set_nonblocking(true).unwrap();
        other.write_all(b"x").unwrap();
        pumps.add(Box::new(Lopsided([mine, second]))).unwrap();
        while pumps.sources().unwrap().is_none() {
            pumps.pump().unwrap();
        }
        for _ in 0..3 {
            assert!(!pumps.pump().unwrap() && pumps.sources().unwrap().is_some(), "it sleeps");
        }
        awaited.write_all(b"y").unwrap();
        pumps.rest(Duration::MAX).unwrap();
        assert!(pumps.pump().unwrap());
    }

    /// Few descriptors are polled, and many watched by a poller: nothing is missed when they become many.
    #[test]
    fn pumps_move_alike_before_and_after_their_descriptors_become_many() {
        let (mut pumps, mut ends) = (Pumps::default(), Vec::new());
        for count in 1..=FEW_DESCRIPTORS + 3 {
            ends.push(add(&mut pumps, false));
            while pumps.pump().unwrap() {}
            assert_eq!(pumps.poller.is_some(), count > FEW_DESCRIPTORS);
            for (place, (theirs, _, bytes)) in ends.iter_mut().enumerate() {
                let before = bytes.load(Ordering::Relaxed);
                while pumps.sources().unwrap().is_none() {
                    pumps.pump().unwrap();
                }
                assert_eq!(
                    pumps.sources().unwrap().unwrap().descriptors.len(),
                    if count > FEW_DESCRIPTORS { 1 } else { count }
                );
                theirs.write_all(b"x").unwrap();
                pumps.rest(Duration::MAX).unwrap();
                assert!(pumps.sources().unwrap().is_none(), "pump {place} of {count} can move");
                while pumps.pump().unwrap() {}
                assert_eq!(bytes.load(Ordering::Relaxed), before + 1, "pump {place} of {count}");
            }
        }
    }

    #[test]
    fn a_connection_that_always_has_bytes_does_not_starve_the_others() {
        let mut pumps = Pumps::default();
        let mut ends: Vec<_> = (0..3).map(|_| add(&mut pumps, false)).collect();
        pumps.pump().unwrap();
        ends[2].0.write_all(b"x").unwrap();
        assert!(pumps.pump().unwrap());
        ends[0].0.write_all(b"y").unwrap();
        for _ in 0..LOOK_EVERY {
            ends[2].0.write_all(b"x").unwrap();
            assert!(pumps.pump().unwrap());
        }
        assert_eq!(ends[0].2.load(Ordering::Relaxed), 1, "asked for within {LOOK_EVERY} turns");
    }

    #[test]
    fn a_rest_ends_when_bytes_come_and_the_pump_that_has_them_moves() {
        let mut pumps = Pumps::default();
        let mut ends: Vec<_> = (0..3).map(|_| add(&mut pumps, false)).collect();
        pumps.pump().unwrap();
        ends[1].0.write_all(b"xyz").unwrap();
        pumps.rest(Duration::MAX).unwrap();
        assert!(pumps.pump().unwrap());
        assert_eq!(ends[1].2.load(Ordering::Relaxed), 3);
        // The end of a stream is reported too.
        drop(ends.remove(0).0);
        pumps.rest(Duration::MAX).unwrap();
    }

    fn take(pumps: &mut Pumps, place: usize) -> Taken {
        // SAFETY: the pump writes nothing there.
        unsafe { pumps.take(place, (NonNull::dangling(), &mut None), (1, [0; 3])) }.unwrap()
    }

    /// Regression: the pump was taken for one that had read its socket dry, and was not called again.
    #[test]
    fn a_message_that_comes_by_the_ring_after_all_is_put_there_by_the_next_turn() {
        let mut pumps = Pumps::default();
        let mut ends: Vec<_> = (0..3).map(|_| add(&mut pumps, false)).collect();
        pumps.pump().unwrap();
        ends[0].0.write_all(b"x").unwrap();
        assert!(pumps.pump().unwrap(), "pump 0 is the one that moved last");
        ends[1].0.write_all(b"xyz").unwrap();
        pumps.rest(Duration::MAX).unwrap();
        // SAFETY: the pump writes nothing there.
        assert_eq!(unsafe { pumps.take(1, (NonNull::dangling(), &mut None), (0, [0; 3])) }.unwrap(), Taken::ByRing);
        assert!(pumps.pump().unwrap());
        assert_eq!(ends[1].2.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_pump_that_an_executor_takes_from_is_read_by_it_alone_and_only_where_something_came() {
        let mut pumps = Pumps::default();
        let mut ends: Vec<_> = (0..3).map(|_| add(&mut pumps, false)).collect();
        pumps.pump().unwrap();
        ends[0].0.write_all(b"x").unwrap();
        assert!(pumps.pump().unwrap(), "pump 0 is the one that moved last");
        assert_eq!(take(&mut pumps, 2), Taken::Open(false));
        let calls = ends[2].1.load(Ordering::Relaxed);
        for _ in 0..10 {
            assert!(!pumps.pump().unwrap());
            assert_eq!(take(&mut pumps, 2), Taken::Open(false));
        }
        assert_eq!(ends[2].1.load(Ordering::Relaxed), calls, "nothing came, and no call was made");
        ends[2].0.write_all(b"yz").unwrap();
        assert!(pumps.pump().unwrap(), "the executor is called back");
        assert!(!pumps.pump().unwrap(), "once, should it never come");
        assert_eq!((ends[2].1.load(Ordering::Relaxed), take(&mut pumps, 2)), (calls, Taken::Open(true)));
        // Now it is the one that moved last: it is tried without asking.
        ends[2].0.write_all(b"a").unwrap();
        assert_eq!(take(&mut pumps, 2), Taken::Open(true));
        assert_eq!(ends[2].2.load(Ordering::Relaxed), 3);
    }

    /// Regression: each turn said that something had moved, so that the wait never looked at an abort or at what peers
    /// ask.
    #[test]
    fn a_turn_that_only_asks_an_awaited_pump_without_descriptors_has_moved_nothing() {
        let mut pumps = Pumps::default();
        let (mut theirs, _, bytes) = add(&mut pumps, true);
        for _ in 0..3 {
            assert_eq!(take(&mut pumps, 0), Taken::Open(false));
            assert!(!pumps.pump().unwrap());
        }
        theirs.write_all(b"x").unwrap();
        assert_eq!(take(&mut pumps, 0), Taken::Open(true));
        assert_eq!(bytes.load(Ordering::Relaxed), 1);
    }

    /// Says so often that it has not parted, and says how often it may still.
    #[derive(Debug)]
    struct Parting(Arc<AtomicU64>);

    impl Pump for Parting {
        fn progress(&mut self) -> Result<bool> {
            Ok(false)
        }
        fn waits(&self) -> Waits {
            Waits::Ring
        }
        fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
            Vec::new()
        }
        fn drained(&self) -> bool {
            true
        }
        fn part(&mut self) -> bool {
            self.0.fetch_sub(1, Ordering::Relaxed) == 1
        }
    }

    #[test]
    fn pumps_part_in_peace_and_not_after_a_failure() {
        for (has_failed, left) in [(false, 0), (true, 3)] {
            let mut pumps = Pumps::default();
            let asked = Arc::new(AtomicU64::new(3));
            pumps.add(Box::new(Parting(Arc::clone(&asked)))).unwrap();
            if has_failed {
                pumps.forsake();
            }
            drop(pumps);
            assert_eq!(asked.load(Ordering::Relaxed), left);
        }
    }

    /// A pump of a NIC whose completions another pump's turn takes note of: first these say that something has moved.
    #[derive(Debug)]
    struct OfNic {
        completions: Arc<AtomicU64>,
        quiet: Arc<OwnedFd>,
        moved: u64,
        sleeps: Arc<AtomicU64>,
    }

    impl Pump for OfNic {
        fn progress(&mut self) -> Result<bool> {
            Ok(std::mem::take(&mut self.moved) > 0)
        }
        fn waits(&self) -> Waits {
            Waits::Nothing
        }
        fn descriptors(&self) -> Vec<(BorrowedFd<'_>, Interest)> {
            Vec::new()
        }
        fn sleep(&mut self) -> Result<PumpSleep> {
            self.moved += self.completions.swap(0, Ordering::Relaxed);
            self.sleeps.fetch_add(u64::from(self.moved == 0), Ordering::Relaxed);
            Ok(if self.moved > 0 { PumpSleep::Moved } else { PumpSleep::On(Arc::clone(&self.quiet)) })
        }
        fn drained(&self) -> bool {
            true
        }
    }

    /// Regression: a rest slept on the descriptor of the NIC for a millisecond, from which what had come was read.
    #[test]
    fn what_a_later_pump_has_noted_for_an_earlier_one_ends_a_rest_at_once() {
        let mut pumps = Pumps::default();
        let (_theirs, quiet) = UnixStream::pair().unwrap();
        let quiet = Arc::new(OwnedFd::from(quiet));
        let sleeps = Arc::new(AtomicU64::new(0));
        let completions: Vec<Arc<AtomicU64>> = (0..3).map(|_| Arc::default()).collect();
        for completions in completions.iter().cloned() {
            let (quiet, sleeps) = (Arc::clone(&quiet), Arc::clone(&sleeps));
            pumps.add(Box::new(OfNic { completions, quiet, moved: 0, sleeps })).unwrap();
        }
        for (place, completions) in completions.iter().enumerate() {
            assert!(!pumps.pump().unwrap());
            completions.store(1, Ordering::Relaxed);
            sleeps.store(0, Ordering::Relaxed);
            pumps.rest(Duration::MAX).unwrap();
            // Those before it have nothing; those behind it are not asked.
            assert_eq!(sleeps.load(Ordering::Relaxed), place as u64);
            assert!(pumps.pump().unwrap(), "pump {place}");
        }
        pumps.rest(Duration::MAX).unwrap();
        assert_eq!(sleeps.load(Ordering::Relaxed), 2 + 3, "nothing has come, and all sleep");
    }

    /// Regression: a thread that waited for a NIC alone asked it again each 50 µs.
    #[test]
    fn a_thread_that_waits_for_a_nic_sleeps_on_its_descriptor_and_not_where_something_has_come() {
        let mut pumps = Pumps::default();
        let (mut theirs, quiet) = UnixStream::pair().unwrap();
        let quiet = Arc::new(OwnedFd::from(quiet));
        let completions: Vec<Arc<AtomicU64>> = (0..2).map(|_| Arc::default()).collect();
        for completions in completions.iter().cloned() {
            let (quiet, sleeps) = (Arc::clone(&quiet), Arc::default());
            pumps.add(Box::new(OfNic { completions, quiet, moved: 0, sleeps })).unwrap();
        }
        let (_socket, ..) = add(&mut pumps, false);
        assert!(!pumps.pump().unwrap());
        let is_told = |pumps: &mut Pumps| {
            let sources = pumps.sources().unwrap().expect("nothing can move");
            assert_eq!((sources.descriptors.len(), sources.at_most), (2, LONG_NIC_REST));
            poller::ready(&sources.descriptors, Duration::ZERO).unwrap().contains(&true)
        };
        assert!(!is_told(&mut pumps));
        theirs.write_all(b"x").unwrap();
        assert!(is_told(&mut pumps));
        completions[0].store(1, Ordering::Relaxed);
        assert!(pumps.sources().unwrap().is_none());
        assert!(pumps.pump().unwrap());
        let (_other, ..) = add(&mut pumps, true);
        assert!(pumps.sources().unwrap().is_none(), "a pump without any has to be asked");
    }

    #[test]
    fn a_pump_without_descriptors_is_asked_on_every_turn() {
        let mut pumps = Pumps::default();
        let (mut theirs, calls, bytes) = add(&mut pumps, true);
        for turn in 1..=10 {
            pumps.rest(Duration::MAX).unwrap();
            theirs.write_all(b"x").unwrap();
            assert!(pumps.pump().unwrap());
            assert_eq!((calls.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed)), (turn, turn));
        }
    }
}
