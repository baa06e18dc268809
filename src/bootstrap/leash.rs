//! How the owner of a thread that sleeps in a poller ends it, or lets it continue alone; and how such a thread learns
//! that nobody needs it any more.
//!
//! An order is a value in memory, and a bell wakes the thread, which then looks at it. So whatever happens to a
//! descriptor, such as a forked child that keeps a copy, is no order.

use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::Result;
use crate::log;
use crate::sync::primitive::{Arc, AtomicU32, Mutex, Ordering, Weak};
use crate::sys::bell::Bell;
use crate::sys::fork::Birthplace;
use crate::sys::poller::{Interest, Poller};
use crate::sys::thread;

/// What connects owner and thread.
#[derive(Debug, Clone)]
pub(super) struct Leash(Arc<Orders>);

/// What is left of a leash whose owner has let the thread go: it keeps nothing of the thread's.
#[derive(Debug, Clone)]
pub(super) struct LooseLeash(Weak<Orders>);

/// What a thread is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeashOrder {
    /// To continue.
    Run,
    /// To end, unless somebody has come who needs it.
    GiveUp,
    /// To end.
    End,
}

#[derive(Debug)]
struct Orders {
    bell: Bell,
    order: AtomicU32,
}

const RUN: u32 = 0;
const GIVE_UP: u32 = 1;
const END: u32 = 2;

/// A thread that sleeps in a poller which also watches its leash. Dropping this ends the thread.
#[derive(Debug)]
pub(super) struct LeashedThread {
    name: &'static str,
    birthplace: Birthplace,
    leash: Leash,
    thread: Option<JoinHandle<()>>,
    /// Its other end is dropped when the thread ends.
    ended: Mutex<Receiver<()>>,
}

/// How long an owner waits for the end of its thread, which comes as soon as it looks. A thread that is not woken, for
/// the program has closed its descriptors, is left behind.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

impl Leash {
    /// # Errors
    /// [`crate::error::Kind::System`] where no descriptor is left.
    pub(super) fn new() -> Result<Leash> {
        Ok(Leash(Arc::new(Orders { bell: Bell::new()?, order: AtomicU32::new(RUN) })))
    }

    /// The poller reports by `token` that there may be an order.
    pub(super) fn watch(&self, poller: &Poller, token: u64) -> Result<()> {
        poller.add(self.0.bell.as_fd(), token, Interest::Read)
    }

    /// The latest order; asked when the poller has reported the token.
    pub(super) fn read(&self) -> LeashOrder {
        // First: a bell that rings after this is heard by the next wait.
        self.0.bell.hush();
        // Acquire: pairs with the release in `order`, though nothing but the order is read.
        match self.0.order.load(Ordering::Acquire) {
            END => LeashOrder::End,
            GIVE_UP => LeashOrder::GiveUp,
            _ => LeashOrder::Run,
        }
    }
}

impl Orders {
    fn order(&self, order: u32) {
        // Release: see `Leash::read`.
        self.order.store(order, Ordering::Release);
        self.bell.ring();
    }
}

impl LooseLeash {
    /// Tells the thread, if it has not ended, to end unless somebody has come who needs it.
    pub(super) fn give_up(&self) {
        if let Some(orders) = self.0.upgrade() {
            orders.order(GIVE_UP);
        }
    }

    /// Whether the thread has ended.
    pub(super) fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl LeashedThread {
    /// Runs `body`, which watches `leash`, on a thread called `name`.
    pub(super) fn start(
        name: &'static str,
        leash: Leash,
        body: impl FnOnce() + Send + 'static,
    ) -> Result<LeashedThread> {
        let (running, ended) = channel::<()>();
        let thread = thread::spawn(name, move || {
            body();
            drop(running);
        })?;
        Ok(LeashedThread {
            name,
            birthplace: Birthplace::here(),
            leash,
            thread: Some(thread),
            ended: Mutex::new(ended),
        })
    }

    /// Lets the thread continue without its owner.
    pub(super) fn detach(mut self) -> LooseLeash {
        self.thread = None;
        LooseLeash(Arc::downgrade(&self.leash.0))
    }

    /// Whether the thread has ended.
    pub(super) fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for LeashedThread {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        if !self.birthplace.is_here() {
            // A forked child does not have the thread, which nobody can detach then, and the bell is its parent's.
            std::mem::forget(thread);
            return;
        }
        self.leash.0.order(END);
        let ended = self.ended.lock();
        if ended.recv_timeout(ENDS_WITHIN) == Err(RecvTimeoutError::Timeout) {
            log::warn!(Bootstrap, "the thread {} does not end: it is left behind", self.name);
        } else if thread.join().is_err() {
            log::warn!(Bootstrap, "the thread {} panicked", self.name);
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::primitive::AtomicBool;
    use crate::sys::poller::Ready;

    /// A thread that waits for orders only; the flag is raised when it ends, and then the channel closes.
    fn waiting() -> (LeashedThread, Leash, (Arc<AtomicBool>, Receiver<()>)) {
        let (leash, ended) = (Leash::new().unwrap(), Arc::new(AtomicBool::new(false)));
        let (open, closed) = channel();
        let poller = Poller::new().unwrap();
        leash.watch(&poller, 0).unwrap();
        let (own, flag) = (leash.clone(), Arc::clone(&ended));
        let body = move || {
            let mut ready = Ready::default();
            while !(ready.iter().count() > 0 && own.read() == LeashOrder::End) {
                poller.wait(&mut ready, Duration::from_secs(60)).unwrap();
            }
            flag.store(true, Ordering::Release);
            drop(open);
        };
        (LeashedThread::start("leashed", leash.clone(), body).unwrap(), leash, (ended, closed))
    }

    #[test]
    fn a_thread_ends_with_its_owner_and_a_bell_alone_is_no_order() {
        let (thread, leash, (ended, _)) = waiting();
        leash.0.bell.ring();
        assert!(!thread.is_finished());
        drop(thread);
        assert!(ended.load(Ordering::Acquire));
    }

    #[test]
    fn a_detached_thread_goes_on() {
        let (thread, leash, (ended, closed)) = waiting();
        let loose = thread.detach();
        loose.give_up();
        assert_eq!(leash.read(), LeashOrder::GiveUp);
        assert!(!ended.load(Ordering::Acquire), "it decides by itself");
        leash.0.order(END);
        assert_eq!(closed.recv_timeout(Duration::from_secs(60)), Err(RecvTimeoutError::Disconnected), "it ends");
    }

    /// Regression: a copy of the owner's socket in a forked child kept the thread from ending.
    #[test]
    fn a_forked_child_neither_ends_the_thread_nor_keeps_it() {
        let (thread, _leash, (ended, _)) = waiting();
        let mut owner = Some(thread);
        assert!(crate::sys::fork::in_child(|| {
            drop(owner.take());
            true
        }));
        assert!(!ended.load(Ordering::Acquire));
        drop(owner);
        assert!(ended.load(Ordering::Acquire));
    }
}
