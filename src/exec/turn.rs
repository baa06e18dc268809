//! What a rank does while it waits: the one implementation of [`Turn`].
//!
//! A call makes its [`CallTurn`] once and passes it down to each of its waits, for a peer's flag, for sockets, in a
//! set-up, for a device. The turn begins where the patience says that the wait is slow; only work that was begun before
//! the wait goes on from its first look. No turn is taken while calls of a device are made in its surroundings
//! (`DeviceStream::at_once`): the program's hook would not find its own context.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::error::Result;
use crate::sync::primitive::Weak;
use crate::sync::{AwaitedMessage, Backoff, Flag, Patience, Turn, Turned, Waiting, Watch, progress};
use crate::sys::futex;
use crate::transport::{EndRequest, Fabric};

/// Work that progresses whenever an operation waits: messages that were begun before it, a hook of the user.
pub trait Background {
    /// Whether there is nothing to run.
    fn is_empty(&self) -> bool;

    /// Does what can be done now; returns whether something moved.
    ///
    /// # Errors
    /// What ends the communicator.
    fn turn(&mut self, fabric: &mut Fabric, bootstrap: &dyn Bootstrap) -> Result<bool>;

    /// The messages of this work that have not ended.
    fn messages(&self) -> Vec<AwaitedMessage>;

    /// Those for which the program waits.
    fn blocking(&self) -> Vec<AwaitedMessage>;

    /// Whether a wait with this work may sleep. Otherwise the work stops the wait in each of its turns.
    fn may_sleep(&self) -> bool {
        true
    }

    /// Whether the wait runs on a stack of its own, where code of the program's is not to run.
    fn is_on_own_stack(&self) -> bool {
        false
    }

    /// The call that waits has moved.
    fn note_moved(&mut self) {}

    /// Hears, before it stops a wait by its turn, for which flags the wait waits: `None` for what is not a flag. True
    /// where its thread does other things between two turns of the wait.
    fn note_flags(&mut self, _: &mut dyn Iterator<Item = Option<(&Flag, u64)>>) -> bool {
        false
    }

    /// Stops a wait that no error ends, for peers to leave this rank's memory, as long as other work of the thread
    /// takes. False where the thread has none: then the wait rests by itself.
    fn stop_for_peers(&mut self, _: &mut Fabric) -> bool {
        false
    }
}

/// No background work.
#[derive(Debug)]
pub struct NoBackground;

impl Background for NoBackground {
    fn is_empty(&self) -> bool {
        true
    }

    fn turn(&mut self, _: &mut Fabric, _: &dyn Bootstrap) -> Result<bool> {
        Ok(false)
    }

    fn messages(&self) -> Vec<AwaitedMessage> {
        Vec::new()
    }

    fn blocking(&self) -> Vec<AwaitedMessage> {
        Vec::new()
    }
}

/// All that goes on while a call of this rank waits. The connections are given to each turn.
pub struct CallTurn<'a> {
    /// How long to stay awake.
    pub patience: &'a mut Patience,
    /// Looked at on every slow turn.
    pub watch: &'a mut dyn Watch,
    /// Carries what connections under way need.
    pub bootstrap: &'a dyn Bootstrap,
    /// Work that progresses while the wait lasts.
    pub background: &'a mut dyn Background,
    /// The program's own progress hook, which slow turns of the wait call.
    pub progress: Option<&'a crate::sync::Progress>,
}

/// Where a call waits: its turn, and the connections.
pub struct WaitContext<'a> {
    /// What goes on meanwhile.
    pub turn: CallTurn<'a>,
    /// The connections.
    pub fabric: &'a mut Fabric,
}

/// What came of the slow part of a turn.
pub(super) enum Looked {
    /// The wait stays awake.
    Awake,
    /// It may sleep for so long.
    Tired(Duration),
    /// A rank asks for this rank's end of a connection, which the wait is to open.
    Asked(EndRequest),
}

impl CallTurn<'_> {
    /// Whether nothing that was begun before has to go on, so that the wait may spin.
    #[inline]
    pub(super) fn is_alone(&self, fabric: &Fabric) -> bool {
        self.background.is_empty() && !fabric.owes()
    }

    /// Moves what travels over sockets, and hands over memory that this rank has offered to peers that ask for it by
    /// now; returns whether something moved.
    #[inline]
    pub(super) fn keep_up(&mut self, fabric: &mut Fabric) -> Result<bool> {
        let moved = fabric.links().pump()?;
        Ok(if fabric.owes() { fabric.pay(self.bootstrap)? | moved } else { moved })
    }

    /// The same, and the work that was begun before.
    pub(super) fn move_on(&mut self, fabric: &mut Fabric) -> Result<bool> {
        Ok(self.keep_up(fabric)? | self.background.turn(fabric, self.bootstrap)?)
    }

    /// The rest of a turn in which nothing has moved: it spins, or looks at the watch, calls the hook, and hears
    /// whether a peer asks for a connection.
    #[inline]
    pub(super) fn look(&mut self, backoff: &mut Backoff, waiting_for: &dyn Waiting) -> Result<Looked> {
        if backoff.spin() {
            return Ok(Looked::Awake);
        }
        let tired = backoff.turn(self.watch, waiting_for)?;
        self.after_look(tired, backoff)
    }

    #[inline]
    fn after_look(&mut self, tired: Option<Duration>, backoff: &Backoff) -> Result<Looked> {
        if backoff.started().is_none() {
            return Ok(Looked::Awake);
        }
        progress::turn(self.progress)?;
        if let Some(ask) = EndRequest::next(self.bootstrap) {
            return Ok(Looked::Asked(ask));
        }
        let others = if Asides::may_be() && !self.background.is_on_own_stack() { Asides::turn() } else { None };
        if others == Some(true) {
            return Ok(Looked::Awake);
        }
        let Some(slice) = tired.filter(|_| self.background.may_sleep()) else { return Ok(Looked::Awake) };
        let is_alone = self.background.is_empty() && others.is_none();
        let slice = if is_alone { slice } else { backoff.nap(SHORT_REST, LONG_REST) };
        Ok(Looked::Tired(progress::rest(self.progress, slice)))
    }

    /// One turn of a wait for nothing but the work that was begun before.
    pub fn turn_of_requests(&mut self, fabric: &mut Fabric, backoff: &mut Backoff) -> Result<Turned> {
        if self.move_on(fabric)? {
            return Ok(Turned::Moved);
        }
        let tired = backoff.turn(self.watch, &Requests(&*self.background))?;
        let looked = self.after_look(tired, backoff)?;
        self.answer(fabric, looked)
    }

    fn answer(&mut self, fabric: &mut Fabric, looked: Looked) -> Result<Turned> {
        match looked {
            Looked::Awake => Ok(Turned::Awake),
            Looked::Tired(slice) => Ok(Turned::Tired(slice)),
            Looked::Asked(ask) => fabric.open_for(ask, self.bootstrap).map(|()| Turned::Moved),
        }
    }
}

impl Turn<Fabric> for CallTurn<'_> {
    fn turn(&mut self, fabric: &mut Fabric, backoff: &mut Backoff, waiting_for: &dyn Waiting) -> Result<Turned> {
        if (backoff.started().is_some() || !self.is_alone(fabric)) && self.move_on(fabric)? {
            return Ok(Turned::Moved);
        }
        let looked = self.look(backoff, waiting_for)?;
        self.answer(fabric, looked)
    }
}

impl WaitContext<'_> {
    /// The same wait, in which the program's hook is not called.
    pub fn without_hook(&mut self) -> WaitContext<'_> {
        let CallTurn { patience, watch, bootstrap, background, .. } = &mut self.turn;
        let turn = CallTurn {
            patience,
            watch: &mut **watch,
            bootstrap: *bootstrap,
            background: &mut **background,
            progress: None,
        };
        WaitContext { turn, fabric: self.fabric }
    }

    /// One turn of a wait for something that wakes nobody: it sleeps for `nap` at most.
    ///
    /// # Errors
    /// As [`Turn::turn`].
    pub fn turn_or_nap(&mut self, backoff: &mut Backoff, waiting_for: &dyn Waiting, nap: Duration) -> Result<()> {
        match self.turn.turn(self.fabric, backoff, waiting_for)? {
            Turned::Moved => backoff.reset(),
            Turned::Awake => {}
            Turned::Tired(slice) => futex::nap(slice.min(nap)),
        }
        Ok(())
    }

    /// What a rank still does for others in a call that has failed, while the call ends: the work that was begun before
    /// fails with it, and no watch can say more.
    ///
    /// # Errors
    /// Of the connections, or of the hook.
    pub fn turn_of_failed(&mut self) -> Result<()> {
        self.turn.keep_up(self.fabric)?;
        progress::turn(self.turn.progress)
    }
}

impl fmt::Debug for CallTurn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallTurn").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl fmt::Debug for WaitContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitContext").field("turn", &self.turn).finish_non_exhaustive()
    }
}

/// What requests wait for.
struct Requests<'a>(&'a dyn Background);

impl Waiting for Requests<'_> {
    fn words(&self) -> String {
        let messages = self.0.messages();
        let named: Vec<String> = messages.iter().take(NAMED_MESSAGES).map(AwaitedMessage::full_name).collect();
        format!("{}{}", named.join(", "), if messages.len() > NAMED_MESSAGES { ", ..." } else { "" })
    }

    fn messages(&self) -> Option<Vec<AwaitedMessage>> {
        Some(self.0.messages())
    }

    fn blocking(&self) -> Option<Vec<AwaitedMessage>> {
        Some(self.0.blocking())
    }
}

/// Work of a thread that goes on in its waits for other things.
pub(crate) trait Aside: fmt::Debug + Send + Sync {
    /// Moves what can move. Waits for nothing but, where it fails, a moment for the reason; runs no code of the
    /// program's but its hooks.
    fn go_on(&self) -> Went;

    /// Whether nobody moves it now: neither another thread, nor this one, as what it waits for.
    fn is_free(&self) -> bool;
}

/// What came of a turn of such work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Went {
    /// Something has moved.
    Moved,
    /// Nothing has.
    Idle,
    /// It is not free.
    Taken,
    /// Nothing is left. Whoever begins more adds it again.
    Over,
}

thread_local! {
    /// What a thread moves beside its own waits: work that it has begun, and that is no part of what it waits for.
    static WORK: RefCell<Vec<Weak<dyn Aside>>> = const { RefCell::new(Vec::new()) };
    /// Whether there may be some: a look at it takes an instruction or two.
    static MAY_BE: Cell<bool> = const { Cell::new(false) };
}

/// This thread's work of that kind. As in MPI, a wait in one communicator moves the requests of the others that its
/// thread has begun. The slow turns of all waits come here; the list is of the thread, so that a thread without such
/// work pays one look.
#[derive(Debug)]
pub(crate) struct Asides;

impl Asides {
    /// Lets `work` go on in this thread's waits, until it is over.
    pub(crate) fn add(work: Weak<dyn Aside>) {
        MAY_BE.set(true);
        // A thread whose variables are gone waits no more.
        let _gone = WORK.try_with(|all| {
            let mut all = all.borrow_mut();
            if !all.iter().any(|other| other.ptr_eq(&work)) {
                all.push(work);
            }
        });
    }

    /// Whether this thread may have such work: what waits without any pay.
    #[inline(never)]
    pub(crate) fn may_be() -> bool {
        MAY_BE.get()
    }

    /// Stops such work in this thread until the result is dropped: while a stream is captured it must call neither
    /// hooks nor the driver.
    pub(crate) fn none() -> Paused {
        Paused { may_be: MAY_BE.replace(false) }
    }

    /// Whether this thread has such work to move.
    // Not inlined, as all that reads variables of a thread: a wait may go on on another one.
    #[inline(never)]
    pub(crate) fn is_any() -> bool {
        let is_free = |work: &Weak<dyn Aside>| work.upgrade().is_some_and(|work| work.is_free());
        WORK.try_with(|all| all.borrow().iter().any(is_free)).unwrap_or(false)
    }

    /// One turn of all such work: whether something has moved; `None` where there is none to move, or in such a turn.
    #[cold]
    #[inline(never)]
    pub(crate) fn turn() -> Option<bool> {
        // Taken out meanwhile: its waits find nothing here.
        let mut all = WORK.try_with(|all| std::mem::take(&mut *all.borrow_mut())).ok()?;
        if all.is_empty() {
            return None;
        }
        let (mut moved, mut is_any) = (false, false);
        all.retain(|work| {
            let gone = work.upgrade().map_or(Went::Over, |work| work.go_on());
            moved |= gone == Went::Moved;
            is_any |= matches!(gone, Went::Moved | Went::Idle);
            gone != Went::Over
        });
        let _gone = WORK.try_with(|work| {
            let mut work = work.borrow_mut();
            all.append(&mut work);
            MAY_BE.set(!all.is_empty());
            *work = all;
        });
        is_any.then_some(moved)
    }
}

/// See [`Asides::none`].
#[derive(Debug)]
pub(crate) struct Paused {
    may_be: bool,
}

impl Drop for Paused {
    fn drop(&mut self) {
        MAY_BE.set(self.may_be || MAY_BE.get());
    }
}

/// How long a wait with work that goes on sleeps between two looks at it.
pub(super) const SHORT_REST: Duration = Duration::from_micros(500);
/// The same, of a wait that has lasted long.
pub(super) const LONG_REST: Duration = Duration::from_millis(10);
/// Messages that the error of a request names.
const NAMED_MESSAGES: usize = 8;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sync::primitive::{Arc, AtomicU32, Ordering};

    /// Goes on for as many turns; each of its turns waits, too.
    #[derive(Debug)]
    struct Turns(AtomicU32);

    impl Aside for Turns {
        fn go_on(&self) -> Went {
            assert!(Asides::turn().is_none() && !Asides::is_any(), "a turn inside of a turn");
            match self.0.fetch_sub(1, Ordering::Relaxed) {
                1 => Went::Over,
                2 => Went::Taken,
                3 => Went::Idle,
                _ => Went::Moved,
            }
        }

        fn is_free(&self) -> bool {
            self.0.load(Ordering::Relaxed) != 2
        }
    }

    #[test]
    fn work_goes_on_until_it_is_over_or_dropped_and_on_its_own_thread() {
        let work = Arc::new(Turns(AtomicU32::new(4)));
        let known: Arc<dyn Aside> = Arc::clone(&work) as _;
        for _again in 0..2 {
            Asides::add(Arc::downgrade(&known));
        }
        std::thread::scope(|threads| threads.spawn(|| assert!(!Asides::is_any() && Asides::turn().is_none())).join())
            .expect("it does not panic");
        assert!(Asides::is_any());
        assert_eq!([Asides::turn(), Asides::turn()], [Some(true), Some(false)]);
        assert!(!Asides::is_any());
        assert_eq!([Asides::turn(), Asides::turn(), Asides::turn()], [None, None, None]);
        assert_eq!(work.0.load(Ordering::Relaxed), 0);
        Asides::add(Arc::downgrade(&known));
        drop((work, known));
        assert!(!Asides::is_any() && Asides::turn().is_none() && !Asides::may_be());
    }
}
