//! The messages of requests that have begun and not ended.

use std::any::Any;

use crate::bootstrap::Bootstrap;
use crate::comm::outcome::Promise;
use crate::engine::Beside;
use crate::error::{Error, Result};
use crate::exec::{Background, Blocked, MessageRun, Progress, Task, leave_all};
use crate::log::spans::{self, SpanOwner, TraceSpan};
use crate::session::trace_text::{self, SpanKind};
use crate::sync::primitive::Arc;
use crate::sync::{AwaitedMessage, Backoff, Flag};
use crate::transport::{Fabric, Links, Need};
use crate::types::Collective;

/// Messages that have begun and not ended, in their order.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    messages: Vec<Begun>,
    /// The connections of messages that a turn has found waiting: kept for its memory alone.
    blocked: Vec<Need>,
    /// For whom the trace has them.
    owner: SpanOwner,
}

/// A message with the connection that it needs, and the promise of its operation until it has ended.
#[derive(Debug)]
struct Begun {
    run: MessageRun<'static>,
    need: Need,
    told: Option<Told>,
    /// When it began, for the trace; 0 without one.
    begun: u64,
    /// Whether its connection was open when it was last looked at: from then on it is.
    is_connected: bool,
}

/// Who is told of a message's end.
#[derive(Debug)]
pub(super) enum Told {
    /// A request of this message alone.
    Alone(Promise),
    /// A request of several messages.
    Together(Arc<Promise>),
}

impl Told {
    /// The message has ended well.
    pub(super) fn end(self) {
        match self {
            Told::Alone(promise) => promise.set(Ok(())),
            Told::Together(part) => Promise::keep(part),
        }
    }

    /// `error` has ended the communicator.
    pub(super) fn fail(&self, error: &Error) {
        match self {
            Told::Alone(promise) => promise.set(Err(error.duplicate())),
            Told::Together(part) => part.set(Err(error.duplicate())),
        }
    }

    fn is_awaited(&self) -> bool {
        match self {
            Told::Alone(promise) => promise.is_awaited(),
            Told::Together(part) => part.is_awaited(),
        }
    }
}

/// The trace has a message that has ended, and that began at `begun` if there is one.
#[inline]
fn note(run: &MessageRun<'_>, (begun, of): (u64, SpanOwner)) {
    let awaited = if begun == 0 { return } else { run.awaited() };
    if matches!(awaited.call, Collective::Send | Collective::Recv) {
        let words = [trace_text::end(awaited.peer.get(), awaited.sends), awaited.number, run.bytes() as u64];
        let (kind, times) = (SpanKind::RequestMessage as u8, (begun, spans::now()));
        spans::record(&TraceSpan { kind, lane: 0, of, times, words });
    }
}

impl UnderWay {
    /// None yet, of a rank that the trace has so.
    pub(super) fn of(owner: SpanOwner) -> UnderWay {
        UnderWay { owner, ..UnderWay::default() }
    }

    /// A message begins, which `run` makes. It goes as far as it goes at once; true where that is to its end, of which
    /// nobody is told.
    ///
    /// # Errors
    /// As [`UnderWay::progress`].
    #[inline]
    pub(super) fn add(
        &mut self,
        fabric: &mut Fabric,
        (run, need): (impl FnOnce() -> MessageRun<'static>, Need),
        told: impl FnOnce() -> Told,
    ) -> Result<bool> {
        let begun = if spans::is_on() { spans::now() } else { 0 };
        let mut run = run();
        let is_first = !self.messages.iter().any(|begun| begun.need == need);
        let is_connected = fabric.is_connected(&need);
        let progress = match is_first && is_connected && run.may_move(fabric.links()) {
            true => run.progress(fabric.links()),
            false => Ok(Progress::Idle),
        };
        if matches!(progress, Ok(Progress::Done)) {
            note(&run, (begun, self.owner));
            return Ok(true);
        }
        self.messages.push(Begun { run, need, told: Some(told()), begun, is_connected });
        progress.map(|_| false)
    }

    /// The messages end by an error. Whether no receiver reads their memory any more; until then they are asked again.
    pub(super) fn leave(&mut self) -> bool {
        leave_all(self.messages.iter_mut().map(|begun| &mut begun.run))
    }

    /// The promises of messages that will not end.
    pub(super) fn give_up(&mut self) -> Vec<Told> {
        // The runs first: who has seen a request's error finds its buffers unused.
        let promises = self.messages.iter_mut().filter_map(|begun| begun.told.take()).collect();
        self.messages.clear();
        promises
    }

    /// Moves the messages; true where one has moved.
    ///
    /// # Errors
    /// Of a message: then all that have not ended are still here.
    pub(super) fn progress(&mut self, fabric: &mut Fabric) -> Result<bool> {
        let UnderWay { messages, blocked, owner } = self;
        let (mut moved, mut failed) = (false, Ok(()));
        blocked.clear();
        messages.retain_mut(|Begun { run, need, told, begun, is_connected }| {
            // Messages of one connection keep their order: the first that has not ended blocks those behind it.
            if failed.is_err() || blocked.contains(need) {
                return true;
            }
            *is_connected = *is_connected || fabric.is_connected(need);
            let progress = if *is_connected { run.progress(fabric.links()) } else { Ok(Progress::Idle) };
            match progress {
                Ok(Progress::Done) => {
                    moved = true;
                    note(run, (*begun, *owner));
                    if let Some(told) = told.take() {
                        told.end();
                    }
                    return false;
                }
                Ok(progress) => moved |= progress == Progress::Moved,
                // The request learns it once the communicator has ended.
                Err(error) => failed = Err(error),
            }
            blocked.push(*need);
            true
        });
        failed.map(|()| moved)
    }

    /// Spins on what the first message waits for, as long as `wait` says. Whether that has come.
    pub(super) fn spin(&self, links: &Links, wait: &mut Backoff) -> bool {
        let first = self.messages.first().filter(|begun| links.has(&begun.need));
        let Some(Blocked { flag: (flag, target) }) = first.and_then(|begun| begun.run.blocked(links)) else {
            return false;
        };
        loop {
            if flag.reached(target) {
                return true;
            }
            if !wait.spin() {
                return false;
            }
        }
    }

    /// Whether no message is under way.
    pub(super) fn is_nothing(&self) -> bool {
        self.messages.is_empty()
    }

    /// The flags that the messages wait for, each with the value beside it; `None` where something else has to be
    /// looked at.
    pub(super) fn flags<'a>(&'a self, links: &'a Links) -> Option<Vec<(&'a Flag, u64)>> {
        let mut seen: Vec<Need> = Vec::new();
        let mut flags = Vec::new();
        for Begun { run, need, .. } in &self.messages {
            if seen.contains(need) {
                continue;
            }
            seen.push(*need);
            // The others wait for their connections, or for a NIC, whose descriptor tells.
            if links.has(need) && !run.is_with_nic(links) {
                let Blocked { flag } = run.blocked(links)?;
                flags.push(flag);
            }
        }
        Some(flags)
    }

    fn runs(&self, awaited_only: bool) -> Vec<AwaitedMessage> {
        let is_asked = |begun: &&Begun| !awaited_only || begun.told.as_ref().is_some_and(Told::is_awaited);
        self.messages.iter().filter(is_asked).map(|begun| begun.run.awaited()).collect()
    }
}

impl Background for UnderWay {
    fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn turn(&mut self, fabric: &mut Fabric, _: &dyn Bootstrap) -> Result<bool> {
        self.progress(fabric)
    }

    fn messages(&self) -> Vec<AwaitedMessage> {
        self.runs(false)
    }

    fn blocking(&self) -> Vec<AwaitedMessage> {
        self.runs(true)
    }
}

impl Beside for UnderWay {
    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
