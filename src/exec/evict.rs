//! Getting a rank's buffers back from its peers after an operation that failed.
//!
//! A peer may still be in the middle of a copy, and the caller may use or free its buffers as soon as the call returns.
//! So the rank waits. A peer that runs leaves the buffers within milliseconds, when it next looks for failures. A peer
//! that is a process may also have ended, or be stopped by a debugger or a signal. An ended process cannot touch memory
//! any more; from a stopped process the registered buffers are taken away ([`crate::device::Keep::detach`]).
//!
//! A peer that is a thread of this process reaches the buffers by the same addresses as their owner. Nothing can take
//! the buffers away from that thread, so the wait for it has no bound. The thread cannot be stopped without its owner,
//! and leaves unless a progress hook of the program never returns.

use std::time::Duration;

use crate::exec::epoch::Loans;
use crate::log;
use crate::sync::Deadline;
use crate::sync::offer::Offer;
use crate::sys::alive::Process;
use crate::sys::{cpu, futex};
use crate::transport::{HostWindows, Loan, Neighbour};

/// The wait until no peer can reach the buffers of this rank any more, look by look. The lease is closed already. If
/// memory is too short to take buffers away from a stopped process, the wait goes on until that is possible or the
/// process leaves.
#[derive(Debug)]
pub(super) struct Eviction {
    turns: u32,
    are_taken_away: bool,
    deadline: Deadline,
}

impl Eviction {
    /// The wait begins.
    pub(super) fn begin() -> Eviction {
        Eviction { turns: 0, are_taken_away: false, deadline: Deadline::after(PATIENCE) }
    }

    /// Whether it has ended. `loans` are the buffers that other processes reach.
    pub(super) fn is_over(&mut self, windows: &HostWindows, loans: &Loans<'_>) -> bool {
        // Nothing can be taken away from threads.
        if !self.are_taken_away && windows.boards.is_none() && self.turns >= YIELDS && self.deadline.is_over() {
            self.are_taken_away = take_away(windows, loans);
            self.deadline = Deadline::after(PATIENCE);
        }
        are_out(windows, self.are_taken_away)
    }

    /// Rests between two looks.
    pub(super) fn rest(&mut self) {
        self.turns = self.turns.saturating_add(1);
        if self.turns < YIELDS { cpu::yield_now() } else { futex::nap(NAP) }
    }

    /// The caller has done other things between two looks.
    pub(super) fn note_turn(&mut self) {
        self.turns = YIELDS;
    }
}

/// Waits until no peer can reach the buffers of this rank any more.
pub(super) fn await_peers_out(windows: &HostWindows, loans: &Loans<'_>) {
    let mut eviction = Eviction::begin();
    while !eviction.is_over(windows, loans) {
        eviction.rest();
    }
}

/// The wait until a rank that has taken an offer reads this rank's memory no more, look by look. It leaves within
/// milliseconds, unless its process has ended or stands still. If that one goes on later, it reads what lies there by
/// then, finds that it was asked to leave, and takes nothing for received. A thread of this process is waited for.
#[derive(Debug)]
pub(super) struct OfferReader {
    process: Option<Process>,
    /// `None` for a thread of this process.
    deadline: Option<Deadline>,
}

impl OfferReader {
    /// Asks the rank that has taken the offer of `word` to leave.
    #[cold]
    pub(super) fn stop(word: Offer<'_>, reader: Neighbour) -> OfferReader {
        word.stop();
        // One that has paused meanwhile is out at the next look.
        match reader {
            Neighbour::Thread => OfferReader { process: None, deadline: None },
            Neighbour::Process(process) => OfferReader { process, deadline: Some(Deadline::after(PATIENCE)) },
        }
    }

    /// Whether it has left, or is not waited for any more.
    pub(super) fn is_out(&self, word: Offer<'_>) -> bool {
        let is_late = self.deadline.is_some_and(|deadline| deadline.is_over());
        word.left().is_some()
            || word.stop()
            || !word.is_taken()
            || self.process.is_some_and(Process::has_ended)
            || is_late
    }

    /// Rests between two looks.
    pub(super) fn rest() {
        futex::nap(NAP);
    }
}

/// Whether no process reaches the lent buffers any more.
fn take_away(windows: &HostWindows, loans: &Loans<'_>) -> bool {
    if loans.iter().all(Option::is_none) {
        // What stands still may read what lies here later, in a call that has failed.
        return true;
    }
    let rank = windows.ranks[windows.me];
    let taken = loans.iter().flatten().try_for_each(Loan::detach);
    match &taken {
        Ok(()) => {
            log::warn!(Reg @ rank, "took this rank's registered buffers away from peers that stand still in them")
        }
        Err(error) => {
            log::warn!(Reg @ rank, "waiting for peers that stand still in this rank's registered buffers: {error}")
        }
    }
    taken.is_ok()
}

/// Whether every other rank of the host is out of this rank's buffers, or cannot reach them.
fn are_out(windows: &HostWindows, are_taken_away: bool) -> bool {
    let lease = windows.mine().lease();
    if windows.boards.is_some() {
        return lease.drained();
    }
    let mut others = windows.neighbours.iter().enumerate().filter(|(place, _)| *place != windows.me);
    others.all(|(place, neighbour)| match neighbour {
        _ if lease.is_out(place) => true,
        Neighbour::Thread => false,
        Neighbour::Process(process) => are_taken_away || process.is_some_and(|process| process.has_ended()),
    })
}

/// Looks at the lease before the wait sleeps.
const YIELDS: u32 = 32;
/// How long the wait sleeps between two looks.
const NAP: Duration = Duration::from_micros(200);
/// How long a running peer may take to leave: many times what it needs on a busy machine.
const PATIENCE: Duration = Duration::from_millis(500);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::device::{DeviceMemory, HostMemory, HostRegion, Sharing};
    use crate::sync::primitive::{Arc, AtomicBool, AtomicU64, Ordering};
    use crate::sys::process::{Group, Signal};
    use crate::sys::thread;
    use crate::transport::{Arena, PeerCalls, Registration};
    use crate::types::Rank;

    /// Of rank 0, whose lease is open for operation 0; rank 1 is `neighbour`.
    fn windows(neighbour: Neighbour) -> HostWindows {
        let memory = HostMemory.allocate_host(8192, Sharing::Processes).unwrap();
        let generation = memory.keep().share_anew().unwrap();
        // A buffer that lives as long as the test.
        let buffer = Arc::new(());
        let life = Arc::downgrade(&buffer);
        std::mem::forget(buffer);
        let windows = HostWindows {
            ranks: [0, 1].map(Rank::new).to_vec(),
            me: 0,
            arenas: (0..2).map(|_| Arena::create(4096, Sharing::Threads).unwrap()).collect(),
            neighbours: vec![Neighbour::Thread, neighbour],
            boards: None,
            registered: vec![Some(Registration {
                serial: 0,
                memory: vec![memory.clone(), memory],
                generation,
                life,
                calls: PeerCalls::default(),
                placed: None,
            })],
        };
        windows.mine().lease().open(0);
        windows
    }

    fn memory(windows: &HostWindows) -> &HostRegion {
        &windows.registered[0].as_ref().unwrap().memory[0]
    }

    /// Rank 1 is inside; rank 0 wants its buffer back.
    fn evict(windows: &HostWindows) {
        let base = memory(windows).base().as_ptr().cast_const();
        let loans = [None, windows.lend(base..base.wrapping_add(100)).unwrap()];
        assert!(loans[1].is_some());
        windows.mine().lease().close();
        await_peers_out(windows, &loans);
    }

    fn sleeper() -> (Group, Neighbour) {
        let group = Group::start(Command::new("sleep").arg("1000")).unwrap();
        let process = Process::of(i32::try_from(group.id()).unwrap());
        assert!(process.is_some());
        (group, Neighbour::Process(process))
    }

    /// Regression: survivors waited 5 s for a rank whose death they knew.
    #[test]
    fn a_process_that_was_killed_inside_is_not_waited_for() {
        let (group, neighbour) = sleeper();
        group.signal(Signal::KILL).unwrap();
        let windows = windows(neighbour);
        let _inside = windows.mine().lease().enter_as(1, 0).unwrap();
        evict(&windows);
        assert!(!memory(&windows).keep().is_detached(), "the kernel has taken the memory from it");
    }

    /// Regression: a peer that was stopped inside was waited for a while, and wrote into the buffer when it went on.
    #[test]
    fn a_buffer_is_taken_away_from_a_process_that_stands_still_in_it() {
        let (_group, neighbour) = sleeper();
        for neighbour in [neighbour, Neighbour::Process(None)] {
            let windows = windows(neighbour);
            let theirs = HostMemory.import_host(HostMemory.export(memory(&windows)).unwrap(), 8192).unwrap();
            let _inside = windows.mine().lease().enter_as(1, 0).unwrap();
            evict(&windows);
            assert!(memory(&windows).keep().is_detached());
            // SAFETY: inside the mapping.
            unsafe { theirs.at(50, 1).as_ptr().write(9) };
            // SAFETY: inside the mapping.
            assert_eq!(unsafe { memory(&windows).at(50, 1).as_ptr().read() }, 0);
        }
    }

    /// Regression: after half a second the sender wrote its memory beside a thread that read it.
    #[test]
    fn only_the_reader_of_an_offer_in_another_process_is_given_up() {
        for reader in [Neighbour::Thread, Neighbour::Process(None)] {
            let word = AtomicU64::new(0);
            let offer = Offer(&word);
            offer.post();
            assert!(offer.take());
            let mut waited = OfferReader::stop(offer, reader);
            assert!(offer.is_stopped() && !waited.is_out(offer));
            waited.deadline = waited.deadline.map(|_| Deadline::after(Duration::ZERO));
            assert_eq!(waited.is_out(offer), reader != Neighbour::Thread);
            assert!(!offer.leave(100) && waited.is_out(offer));
        }
    }

    #[test]
    fn a_thread_of_this_process_is_waited_for() {
        let windows = Arc::new(windows(Neighbour::Thread));
        let (theirs, out) = (Arc::clone(&windows), Arc::new(AtomicBool::new(false)));
        let (is_out, entered) = (Arc::clone(&out), Arc::new(std::sync::Barrier::new(2)));
        let enters = Arc::clone(&entered);
        let visitor = thread::spawn("visitor", move || {
            let inside = theirs.mine().lease().enter_as(1, 0).unwrap();
            enters.wait();
            // Longer than a process would be waited for.
            while !memory(&theirs).keep().is_detached() {
                futex::nap(NAP);
            }
            is_out.store(true, Ordering::Release);
            drop(inside);
        });
        entered.wait();
        evict(&windows);
        assert!(out.load(Ordering::Acquire));
        visitor.unwrap().join().unwrap();
    }
}
