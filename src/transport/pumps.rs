//! The pumps that one thread drives.
//!
//! # Which pumps are called
//! Each turn calls the pumps that can move. A pump that waits for a descriptor is called when the kernel has reported
//! one of them, edge-triggered: one `epoll_wait` asks for all such pumps together, and an idle connection costs
//! nothing. The pump that moved last is called without asking, since its own read costs what asking would, and messages
//! often come from where the last one came. The others are asked for in each turn in which it finds nothing. A turn in
//! which a pump had something of its own to send asks nobody: what it sent may be all that the caller waits for.
//! Whatever moves, one of [`LOOK_EVERY`] turns asks for all.

use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::sync::ring::Label;
use crate::sys::clock;
use crate::sys::futex;
use crate::sys::poller::{self, Interest, Poller, Ready};
use crate::sys::unanswered::{self, Unanswered};
use crate::transport::pump::{Passed, Pump, Taken, Waits};

/// Pumps, and their descriptors.
#[derive(Debug, Default)]
pub struct Pumps {
    all: Vec<Driven>,
    /// The place of the pump that a descriptor let move last.
    recent: usize,
    /// Turns since all were asked for.
    unasked: u32,
    watch: Option<Watched>,
    /// When the connections were last looked at.
    looked: Option<Instant>,
}

/// A pump, and whether a descriptor of it was reported since it last had to wait for one.
#[derive(Debug)]
struct Driven {
    pump: Box<dyn Pump>,
    is_ready: bool,
    /// Whether a turn has said that something has come that an executor [takes](Pump::take).
    is_told: bool,
}

/// The descriptors of all pumps. Tokens are places among the pumps.
#[derive(Debug)]
struct Watched {
    poller: Poller,
    ready: Ready,
}

impl Pumps {
    /// Adds a pump.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system watches no more descriptors.
    pub(super) fn add(&mut self, pump: Box<dyn Pump>) -> Result<()> {
        let token = self.all.len() as u64;
        for (descriptor, interest) in pump.descriptors() {
            let watched = match &mut self.watch {
                Some(watched) => watched,
                none => none.insert(Watched { poller: Poller::new()?, ready: Ready::default() }),
            };
            watched.poller.add_edge(descriptor, token, interest)?;
        }
        self.all.push(Driven { pump, is_ready: true, is_told: false });
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
        self.look(Duration::ZERO, None)?;
        for (place, driven) in self.all.iter_mut().enumerate() {
            if driven.is_ready && is_asleep(driven) && driven.progress()? {
                (moved, self.recent) = (true, place);
            }
        }
        Ok(moved)
    }

    /// Marks the pumps whose descriptors become ready within `timeout`.
    fn look(&mut self, timeout: Duration, bell: Option<BorrowedFd<'_>>) -> Result<()> {
        let Some(Watched { poller, ready }) = &mut self.watch else { return Ok(()) };
        if !timeout.is_zero() {
            // The poller's own wait counts in milliseconds, which is too coarse here.
            let all = [Some(poller.as_fd()), bell];
            let all: Vec<_> = all.into_iter().flatten().map(|descriptor| (descriptor, Interest::Read)).collect();
            poller::wait_any(&all, timeout)?;
        }
        loop {
            poller.wait(ready, Duration::ZERO)?;
            for report in ready.iter() {
                let driven = usize::try_from(report.token).ok().and_then(|place| self.all.get_mut(place));
                if let Some(driven) = driven {
                    driven.is_ready = true;
                }
            }
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

    /// [`Pump::take`] of the pump at `place`, where something may have come for it.
    ///
    /// # Errors
    /// Of the connection, naming the peer.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn take(&mut self, place: usize, into: NonNull<u8>, expected: (usize, Label)) -> Result<Taken> {
        let Some(driven) = self.all.get_mut(place) else { return Ok(Taken::ByRing) };
        if driven.pump.is_awaited() && !driven.is_ready && place != self.recent {
            return Ok(Taken::Open(false));
        }
        driven.is_told = false;
        // SAFETY: the caller's word.
        let taken = unsafe { driven.pump.take(into, expected) }?;
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

    /// What the system tells of the connections of the pump at `place` whose data do not arrive.
    pub(super) fn unanswered(&self, place: usize) -> Option<Unanswered> {
        self.all.get(place)?.pump.descriptors().into_iter().find_map(|(descriptor, _)| unanswered::of(descriptor))
    }

    /// `Some(Some(..))`: the descriptor that becomes readable when a pump may move. `Some(None)`: there is no pump that
    /// waits for a descriptor. `None`: a pump can move now, or must be looked at.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system cannot say.
    pub fn sources(&mut self) -> Result<Option<Option<BorrowedFd<'_>>>> {
        self.look_after(clock::now())?;
        // What was reported already is taken: an edge that nobody has taken would end each sleep at once.
        self.look(Duration::ZERO, None)?;
        let can_move = |driven: &Driven| match driven.pump.waits() {
            Waits::Ring => false,
            Waits::Descriptor => driven.is_ready,
            Waits::Nothing => true,
        };
        let is_quiet = !self.all.iter().any(can_move);
        Ok(is_quiet.then(|| self.watch.as_ref().map(|watched| watched.poller.as_fd())))
    }

    /// Looks whether the peers' systems answer, unless that was done a moment ago.
    fn look_after(&mut self, now: Instant) -> Result<()> {
        if self.looked.is_some_and(|looked| now.saturating_duration_since(looked) < LOOK_PAUSE) {
            return Ok(());
        }
        self.looked = Some(now);
        self.all.iter_mut().try_for_each(|driven| driven.pump.look(now))
    }

    /// Sleeps until a pump may move, or `bell` is readable, at most `slice`.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system cannot wait.
    pub fn rest(&mut self, slice: Duration, bell: Option<BorrowedFd<'_>>) -> Result<()> {
        self.look_after(clock::now())?;
        let slice = slice.min(LOOK_PAUSE);
        let must_be_asked = |driven: &Driven| driven.pump.waits() == Waits::Nothing;
        if self.all.iter().any(must_be_asked) {
            futex::nap(slice.min(ASKING_NAP));
            return Ok(());
        }
        match (&self.watch, bell) {
            (None, Some(bell)) => poller::wait_any(&[(bell, Interest::Read)], slice),
            (None, None) => {
                futex::nap(slice.min(ASKING_NAP));
                Ok(())
            }
            (Some(_), bell) => self.look(slice, bell),
        }
    }
}

impl Driven {
    fn progress(&mut self) -> Result<bool> {
        if self.pump.is_awaited() {
            // An executor takes it, which this turn brings back to it; once, since it may never come back.
            return Ok(self.is_ready && !std::mem::replace(&mut self.is_told, true));
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

/// While something moves, one of so many turns asks for all pumps that wait for a descriptor.
const LOOK_EVERY: u32 = 8;
/// The pause between two looks at connections that do not move: a part of the shortest time (`RSCCL_NIC_TIMEOUT`) after
/// which one counts as dead.
const LOOK_PAUSE: Duration = Duration::from_millis(500);
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
        unsafe fn take(&mut self, _: NonNull<u8>, (bytes, _): (usize, Label)) -> Result<Taken> {
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
        pumps.rest(Duration::MAX, None).unwrap();
        assert!(pumps.pump().unwrap());
        assert_eq!(ends[1].2.load(Ordering::Relaxed), 3);
        // The end of a stream is reported too.
        drop(ends.remove(0).0);
        pumps.rest(Duration::MAX, None).unwrap();
    }

    fn take(pumps: &mut Pumps, place: usize) -> Taken {
        // SAFETY: the pump writes nothing there.
        unsafe { pumps.take(place, NonNull::dangling(), (1, [0; 3])) }.unwrap()
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
        pumps.rest(Duration::MAX, None).unwrap();
        // SAFETY: the pump writes nothing there.
        assert_eq!(unsafe { pumps.take(1, NonNull::dangling(), (0, [0; 3])) }.unwrap(), Taken::ByRing);
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

    #[test]
    fn a_pump_without_descriptors_is_asked_on_every_turn() {
        let mut pumps = Pumps::default();
        let (mut theirs, calls, bytes) = add(&mut pumps, true);
        for turn in 1..=10 {
            pumps.rest(Duration::MAX, None).unwrap();
            theirs.write_all(b"x").unwrap();
            assert!(pumps.pump().unwrap());
            assert_eq!((calls.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed)), (turn, turn));
        }
    }
}
