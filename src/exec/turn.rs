//! What a rank does while it waits: the one implementation of [`Turn`].
//!
//! A call makes its [`CallTurn`] once and passes it down to each of its waits, for a peer's flag, for sockets, in a
//! set-up, for a device. The turn begins where the patience says that the wait is slow; only work that was begun before
//! the wait goes on from its first look. No turn is taken while calls of a device are made in its surroundings
//! (`DeviceStream::at_once`): the program's hook would not find its own context.

use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::error::Result;
use crate::sync::{AwaitedMessage, Backoff, Flag, Patience, Turn, Turned, Waiting, Watch, aside, progress};
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
        if let Some(ask) = Fabric::asking(self.bootstrap) {
            return Ok(Looked::Asked(ask));
        }
        let others = if aside::may_be() && !self.background.is_on_own_stack() { aside::turn() } else { None };
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

impl std::fmt::Debug for CallTurn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallTurn").field("patience", &self.patience).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for WaitContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// How long a wait with work that goes on sleeps between two looks at it.
pub(super) const SHORT_REST: Duration = Duration::from_micros(500);
/// The same, of a wait that has lasted long.
pub(super) const LONG_REST: Duration = Duration::from_millis(10);
/// Messages that the error of a request names.
const NAMED_MESSAGES: usize = 8;
