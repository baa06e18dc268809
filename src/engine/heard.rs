//! Calls that somebody hears of: their spans in the trace, and their ranges in a profiler. All of it lies beside the
//! way of a call of which nobody hears.

use crate::exec::{Background, MessageRun};
use crate::log;
use crate::log::spans;
use crate::session::Session;
use crate::session::trace_text::{self, SpanKind};
use crate::sync::AwaitedMessage;
use crate::sync::ring::Label;
use crate::sys::ranges;
use crate::types::Collective;

/// A call that runs, and of which somebody hears.
#[derive(Debug)]
pub(super) struct HeardCall {
    /// When it began; 0 where nothing is recorded.
    begun: u64,
    has_range: bool,
}

impl HeardCall {
    /// A call of this name begins.
    pub(super) fn begin(name: &str) -> HeardCall {
        let has_range = log::shows_ranges() && ranges::push(name);
        HeardCall { begun: if spans::is_on() { spans::now() } else { 0 }, has_range }
    }

    /// A collective begins. One of a request is none of these: others run beside it on its thread, and the trace has
    /// the request itself.
    pub(super) fn begin_collective(collective: Collective, background: &dyn Background) -> HeardCall {
        match background.is_on_own_stack() {
            true => HeardCall { begun: 0, has_range: false },
            false => HeardCall::begin(collective.name()),
        }
    }

    /// The times of its span, where it has one.
    fn times(&self) -> Option<(u64, u64)> {
        (self.begun != 0).then(|| (self.begun, spans::now()))
    }

    /// The collective of this label has ended.
    pub(super) fn end_collective(&self, session: &Session, label: Label) {
        if let Some(times) = self.times() {
            spans::record(&SpanKind::Call.span(session, times, label));
        }
    }

    /// These messages have ended, which were one call.
    pub(super) fn end_messages(&self, session: &Session, ends: &[NumberedEnd]) {
        let Some(times) = self.times() else { return };
        match ends {
            [one] => spans::record(&SpanKind::Message.span(session, times, one.0)),
            several => {
                spans::record(&SpanKind::Messages.span(session, times, [several.len() as u64, 0, 0]));
                several.iter().for_each(|end| spans::record(&SpanKind::End.span(session, times, end.0)));
            }
        }
    }
}

impl Drop for HeardCall {
    fn drop(&mut self) {
        if self.has_range {
            ranges::pop();
        }
    }
}

/// An end of a message, as the trace has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct NumberedEnd([u64; 3]);

impl NumberedEnd {
    /// That of a message that has begun.
    pub(super) fn of(run: &MessageRun<'_>) -> NumberedEnd {
        let AwaitedMessage { peer, number, sends, .. } = run.awaited();
        NumberedEnd([trace_text::end(peer.get(), sends), number, run.bytes() as u64])
    }
}
