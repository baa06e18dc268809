//! A call that stops where it would wait, so that its thread does other things: a call of a request.
//!
//! The call runs as a [`Coroutine`] and has, as its [`Background`], what stops it in each turn of each of its waits.
//! Its driver has the connections meanwhile. A driver that wants nothing but the call's end lets it
//! [stay](Resumable::finish): then it waits as any other call does, and moves the messages that were begun beside it.

use std::cell::Cell;
use std::fmt;
use std::ptr::{NonNull, null_mut};

use crate::bootstrap::Bootstrap;
use crate::error::{Error, Result};
use crate::exec::Background;
use crate::sync::AwaitedMessage;
use crate::sync::primitive::Arc;
use crate::sys::coroutine::{Coroutine, Suspender, Switch};
use crate::transport::Fabric;

/// A call under way that ends with an `R`.
#[derive(Debug)]
pub struct Resumable<R> {
    coroutine: Coroutine<Fabric, R>,
    orders: Arc<Orders>,
}

/// What the driver tells the call. One of them runs at a time, and what one has stored the other finds: each switch
/// between them is on one thread, and a driver on another thread comes after this one.
struct Orders {
    /// What moves beside a call that stays; null where it does not.
    beside: Cell<*mut (dyn Background + 'static)>,
    /// Why the call has to end.
    error: Cell<Option<Error>>,
    /// Whether the call has moved since its driver last asked.
    moved: Cell<bool>,
}

// SAFETY: the pointer is followed during the resume that has set it only, by the call, on the thread of its driver.
unsafe impl Send for Orders {}
// SAFETY: the call and its driver never run at the same time, as the docs of the type say.
unsafe impl Sync for Orders {}

impl fmt::Debug for Orders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orders").field("moved", &self.moved.get()).finish_non_exhaustive()
    }
}

impl<R: Send + 'static> Resumable<R> {
    /// A call that has not begun. `body` runs it, with the background that it gets.
    pub fn new(switch: Switch, body: impl FnOnce(&mut dyn Background) -> R + Send + 'static) -> Resumable<R> {
        let orders = Arc::new(Orders { beside: Cell::new(nobody()), error: Cell::new(None), moved: Cell::new(false) });
        let told = Arc::clone(&orders);
        // SAFETY: what a call has on its stack where it waits was its engine's, or its caller's, before; calls of a
        // device leave the thread's context as it was before they wait. Variables of a thread that waits use are read
        // in functions that are not inlined (`sync::backoff`, `sys::clock`): no frame that is suspended has their
        // address.
        let coroutine = unsafe {
            Coroutine::new(switch, move |suspender: &Suspender<Fabric>| body(&mut Suspends { suspender, orders: told }))
        };
        Resumable { coroutine, orders }
    }

    /// Lets the call go on as far as it does not wait; its result once it has ended. With an `error` it ends as soon as
    /// it would wait, but for peers that are still in this rank's memory.
    pub fn resume(&mut self, error: Option<Error>) -> Option<R> {
        if error.is_some() {
            self.orders.error.set(error);
        }
        self.coroutine.resume()
    }

    /// Lets the call wait for its end, and move `beside` meanwhile.
    pub fn finish(&mut self, beside: &mut dyn Background) -> Option<R> {
        let beside: *mut (dyn Background + '_) = beside;
        // SAFETY: a pointer's own bytes; only the lifetime of what it points to changes. It is taken back before
        // `beside` ends, below.
        let beside = unsafe { (&raw const beside).cast::<*mut (dyn Background + 'static)>().read() };
        self.orders.beside.set(beside);
        let result = self.coroutine.resume();
        self.orders.beside.set(nobody());
        result
    }

    /// Whether the call has ended, also by a panic that its driver has had.
    pub fn has_ended(&self) -> bool {
        self.coroutine.has_ended()
    }

    /// Whether the call has moved since this was last asked.
    pub fn has_moved(&self) -> bool {
        self.orders.moved.take()
    }

    /// The connections, while the call waits.
    pub fn fabric(&mut self) -> Option<&mut Fabric> {
        self.coroutine.lent()
    }

    /// The stack of a call that has ended.
    pub fn into_switch(self) -> Option<Switch> {
        self.coroutine.into_switch()
    }
}

/// The background of a call that stops where it would wait.
struct Suspends<'a> {
    suspender: &'a Suspender<Fabric>,
    orders: Arc<Orders>,
}

impl Suspends<'_> {
    /// What moves beside the call, if it stays.
    fn beside(&self) -> Option<NonNull<dyn Background + 'static>> {
        NonNull::new(self.orders.beside.get())
    }

    fn beside_mut(&mut self) -> Option<&mut dyn Background> {
        // SAFETY: `finish` has set it and waits in the resume by which this runs; nobody else uses it meanwhile.
        self.beside().map(|mut beside| unsafe { beside.as_mut() } as &mut dyn Background)
    }

    fn beside_ref(&self) -> Option<&dyn Background> {
        // SAFETY: as above.
        self.beside().map(|beside| unsafe { beside.as_ref() } as &dyn Background)
    }
}

impl Background for Suspends<'_> {
    fn is_empty(&self) -> bool {
        self.beside_ref().is_some_and(Background::is_empty)
    }

    #[inline(never)]
    fn turn(&mut self, fabric: &mut Fabric, bootstrap: &dyn Bootstrap) -> Result<bool> {
        if let Some(beside) = self.beside_mut() {
            return beside.turn(fabric, bootstrap);
        }
        self.suspender.lend(fabric);
        if let Some(error) = self.orders.error.take() {
            return Err(error);
        }
        match self.beside_mut() {
            Some(beside) => beside.turn(fabric, bootstrap),
            None => Ok(false),
        }
    }

    fn messages(&self) -> Vec<AwaitedMessage> {
        self.beside_ref().map_or_else(Vec::new, Background::messages)
    }

    fn blocking(&self) -> Vec<AwaitedMessage> {
        self.beside_ref().map_or_else(Vec::new, Background::blocking)
    }

    fn may_sleep(&self) -> bool {
        self.beside().is_some()
    }

    fn note_moved(&mut self) {
        self.orders.moved.set(true);
    }

    #[inline(never)]
    fn stop_for_peers(&mut self, fabric: &mut Fabric) -> bool {
        let stays = self.beside().is_some();
        if !stays {
            self.suspender.lend(fabric);
        }
        !stays
    }
}

fn nobody() -> *mut (dyn Background + 'static) {
    null_mut::<crate::exec::NoBackground>()
}
