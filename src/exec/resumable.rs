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
use crate::sync::primitive::Arc;
use crate::sync::{AwaitedMessage, Flag};
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
    /// Whether the driver does other things between two resumes.
    passes: Cell<bool>,
    /// Whether the call has moved since its driver last asked.
    moved: Cell<bool>,
    /// The flags that the suspended call waits for, each with the value beside it; `None` where it waits for something
    /// else.
    flags: Cell<Option<Flags>>,
}

/// Flags that a call waits for, each with the value beside it.
pub type AwaitedFlags<'a> = Vec<(&'a Flag, u64)>;

/// The same as the call notes them.
type Flags = [Option<(NonNull<Flag>, u64)>; MOST_FLAGS];

// SAFETY: the first pointer is followed by the call, during the resume that has set it only, on the thread of its
// driver; those to flags are followed by the driver, while the call is suspended that has them in hand.
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
        let (beside, error, flags) = (Cell::new(nobody()), Cell::new(None), Cell::new(None));
        let orders = Arc::new(Orders { beside, error, passes: Cell::new(false), moved: Cell::new(false), flags });
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
        self.orders.passes.set(false);
        self.coroutine.resume()
    }

    /// The same for a driver that does other things between two resumes: the call looks whether it can end well each
    /// time.
    pub fn resume_in_passing(&mut self) -> Option<R> {
        self.orders.passes.set(true);
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

    /// The connections, while the call waits, and the flags that it waits for, each with the value beside it; no flags
    /// where it waits for something else.
    pub fn waits_for(&mut self) -> Option<(&mut Fabric, Option<AwaitedFlags<'_>>)> {
        let fabric = self.coroutine.lent()?;
        // SAFETY: the call has it in hand where it is suspended, and is not resumed as long as this is borrowed.
        let flag = |(flag, target): (NonNull<Flag>, u64)| (unsafe { flag.as_ref() }, target);
        let flags = self.orders.flags.get().map(|flags| flags.into_iter().flatten().map(flag).collect());
        Some((fabric, flags))
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

    /// Lends the connections to the driver, until it resumes the call. The next wait is for other flags.
    #[inline(never)]
    fn suspend(&mut self, fabric: &mut Fabric) {
        self.suspender.lend(fabric);
        self.orders.flags.set(None);
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
        self.suspend(fabric);
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

    fn is_on_own_stack(&self) -> bool {
        true
    }

    fn note_moved(&mut self) {
        self.orders.moved.set(true);
    }

    #[inline(never)]
    fn stop_for_peers(&mut self, fabric: &mut Fabric) -> bool {
        let stays = self.beside().is_some();
        if !stays {
            self.suspend(fabric);
        }
        !stays
    }

    fn note_flags(&mut self, flags: &mut dyn Iterator<Item = Option<(&Flag, u64)>>) -> bool {
        let stops = self.beside().is_none();
        if stops {
            self.orders.flags.set(few(flags));
        }
        stops && self.orders.passes.get()
    }
}

/// All of them, where they are few and flags all.
fn few(flags: &mut dyn Iterator<Item = Option<(&Flag, u64)>>) -> Option<Flags> {
    let mut noted: Flags = [None; MOST_FLAGS];
    for (at, flag) in flags.enumerate() {
        let (flag, target) = flag?;
        *noted.get_mut(at)? = Some((NonNull::from(flag), target));
    }
    Some(noted)
}

fn nobody() -> *mut (dyn Background + 'static) {
    null_mut::<crate::exec::NoBackground>()
}

/// Of a call that waits for more, the driver looks again soon.
const MOST_FLAGS: usize = 4;
