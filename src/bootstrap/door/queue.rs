//! The connections that wait for one rank, and how it is woken for them.
//!
//! They name the rank and have proved nothing yet, and a rank that computes may take none for minutes. So their number
//! has a bound, and that from one address a smaller one. Where a bound is reached a newcomer takes the place of the
//! oldest one that has waited for [`AGED`], if there is one, and else is closed: a rank that was refused comes again.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::sync::Chime;
use crate::sync::primitive::{Arc, Mutex, Weak};

/// What doorkeeper and rank share.
#[derive(Debug, Default)]
pub(super) struct IncomingQueue {
    waiting: Mutex<WaitingConnections>,
}

#[derive(Debug, Default)]
struct WaitingConnections {
    /// Oldest first.
    streams: VecDeque<WaitingConnection>,
    /// Those of threads that sleep until a connection comes.
    chimes: Vec<Weak<Chime>>,
}

#[derive(Debug)]
struct WaitingConnection {
    stream: TcpStream,
    from: SocketAddr,
    since: Instant,
}

/// The most connections that wait for one rank: as many as a listener holds before they are accepted.
pub(super) const MOST_WAITING: usize = 16384;
/// The most of them from one address: more than a host has ranks.
pub(super) const MOST_OF_ADDRESS: usize = 1024;
const _: () = assert!(MOST_OF_ADDRESS <= MOST_WAITING / 4);

/// How long a connection waits before it makes room for another one. A rank that is alive and does not compute takes it
/// in milliseconds.
pub(super) const AGED: Duration = Duration::from_secs(10);

impl IncomingQueue {
    /// Rings `chime` when a connection comes. False where one waits.
    pub(super) fn ring_at_arrival(&self, chime: &Arc<Chime>) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.chimes.retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(chime)));
        waiting.chimes.push(Arc::downgrade(chime));
        waiting.streams.is_empty()
    }

    /// Hands a connection over, and wakes who waits for it. False where there is no room for it.
    pub(super) fn put(&self, stream: TcpStream, from: SocketAddr, now: Instant) -> bool {
        let mut waiting = self.waiting.lock();
        let has_room = waiting.make_room(|_| true, MOST_WAITING, now)
            && waiting.make_room(|address| address == from.ip(), MOST_OF_ADDRESS, now);
        if has_room {
            waiting.streams.push_back(WaitingConnection { stream, from, since: now });
            waiting.ring();
        }
        has_room
    }

    pub(super) fn take(&self) -> Option<(TcpStream, SocketAddr)> {
        let WaitingConnection { stream, from, .. } = self.waiting.lock().streams.pop_front()?;
        Some((stream, from))
    }

    /// Wakes who waits for a connection: there is something else to look at.
    pub(super) fn wake(&self) {
        self.waiting.lock().ring();
    }
}

impl WaitingConnections {
    fn ring(&self) {
        self.chimes.iter().filter_map(Weak::upgrade).for_each(|chime| chime.ring());
    }

    /// Makes room for one more of those from addresses that `counts`, of which there are `most`. Whether there is room.
    fn make_room(&mut self, counts: impl Fn(IpAddr) -> bool, most: usize, now: Instant) -> bool {
        if self.streams.len() < most {
            return true;
        }
        let mut counted = (0..).zip(&self.streams).filter(|(_, one)| counts(one.from.ip()));
        let Some((place, oldest)) = counted.next() else { return true };
        if counted.count() + 1 < most {
            return true;
        }
        let is_aged = now.saturating_duration_since(oldest.since) >= AGED;
        is_aged && self.streams.remove(place).is_some()
    }
}
