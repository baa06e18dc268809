//! The connections that wait for one rank, and how it is woken for them.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;

use crate::sync::Chime;
use crate::sync::primitive::{Arc, Mutex, Weak};
use crate::sys::poller::{Interest, Poller};

/// What doorkeeper and rank share.
#[derive(Debug)]
pub(super) struct IncomingQueue {
    /// Watches the connections that wait here, with this token.
    poller: Option<(Arc<Poller>, u64)>,
    waiting: Mutex<WaitingConnections>,
}

#[derive(Debug, Default)]
struct WaitingConnections {
    streams: VecDeque<(TcpStream, SocketAddr)>,
    /// Those of threads that sleep until a connection comes.
    chimes: Vec<Weak<Chime>>,
}

/// The most connections that wait for one rank: as many as a listener holds before they are accepted.
const MOST_WAITING: usize = 16384;

impl IncomingQueue {
    pub(super) fn new(poller: Option<(Arc<Poller>, u64)>) -> IncomingQueue {
        IncomingQueue { poller, waiting: Mutex::default() }
    }

    /// Rings `chime` when a connection comes. False where one waits.
    pub(super) fn ring_at_arrival(&self, chime: &Arc<Chime>) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.chimes.retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), Arc::as_ptr(chime)));
        waiting.chimes.push(Arc::downgrade(chime));
        waiting.streams.is_empty()
    }

    /// Hands a connection over, and wakes who waits for it. False where there is no room for it, or no memory to watch
    /// it.
    pub(super) fn put(&self, stream: TcpStream, from: SocketAddr) -> bool {
        let mut waiting = self.waiting.lock();
        if waiting.streams.len() >= MOST_WAITING {
            return false;
        }
        if let Some((poller, token)) = &self.poller
            && poller.add(stream.as_fd(), *token, Interest::Read).is_err()
        {
            return false;
        }
        waiting.streams.push_back((stream, from));
        waiting.chimes.iter().filter_map(Weak::upgrade).for_each(|chime| chime.ring());
        true
    }

    pub(super) fn take(&self) -> Option<(TcpStream, SocketAddr)> {
        let mut waiting = self.waiting.lock();
        loop {
            let (stream, from) = waiting.streams.pop_front()?;
            // Its new owner watches it in its own way.
            if self.poller.as_ref().is_none_or(|(poller, _)| poller.remove(stream.as_fd()).is_ok()) {
                return Some((stream, from));
            }
        }
    }
}
