//! What the records of the trace mean, and how Chrome and Perfetto read them.
//!
//! | kind | words | events |
//! |---|---|---|
//! | [`SpanKind::Call`] | the label | a slice of the thread |
//! | [`SpanKind::Message`] | end, number, bytes | a slice, and the end of an arrow between ranks |
//! | [`SpanKind::End`] | the same | the end of an arrow, in the slice of the call that has it |
//! | [`SpanKind::Messages`] | how many | a slice |
//! | [`SpanKind::Request`] | collective or [`MANY`], bytes, a number of its own | a bar of the rank: requests overlap |
//! | [`SpanKind::RequestMessage`] | end, number, bytes | a bar, a slice of a nanosecond, the end of an arrow |
//! | [`SpanKind::Phase`] | the number of the phase | a slice |
//! | [`SpanKind::Step`] | what and the peer, bytes, the lane's channel | a slice of the lane |
//! | [`SpanKind::Slot`] | end, number, channel | the end of an arrow, in the slice of the step that has it |
//!
//! An end is a peer, from bit 32 whether this rank sends to it.

use std::fmt::Write;
use std::path::Path;

use crate::exec;
use crate::log::spans::{Recorder, TraceSpan};
use crate::log::{self, LeftEvents, lane_thread, microseconds};
use crate::session::Session;
use crate::types::Collective;

/// What a record is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpanKind {
    Call = 1,
    Message = 2,
    End = 3,
    Messages = 4,
    Request = 5,
    RequestMessage = 6,
    Phase = 7,
}

/// In the place of a collective: a group of calls, or several messages.
pub(crate) const MANY: u64 = 0xff;

impl SpanKind {
    const ALL: [SpanKind; 7] = [
        SpanKind::Call,
        SpanKind::Message,
        SpanKind::End,
        SpanKind::Messages,
        SpanKind::Request,
        SpanKind::RequestMessage,
        SpanKind::Phase,
    ];

    /// A record of this kind that this rank has made.
    pub(crate) fn span(self, session: &Session, times: (u64, u64), words: [u64; 3]) -> TraceSpan {
        TraceSpan { kind: self as u8, lane: 0, of: session.span_owner(), times, words }
    }

    fn from_code(code: u8) -> Option<SpanKind> {
        SpanKind::ALL.into_iter().find(|kind| *kind as u8 == code)
    }
}

/// A peer and whether this rank sends to it, as a word.
pub(crate) fn end(peer: u32, sends: bool) -> u64 {
    u64::from(peer) | u64::from(sends) << 32
}

/// Phases of an init, in their order.
const PHASES: [&str; 6] =
    ["init: bootstrap", "init: allgathers", "init: topology", "init: connections", "init", "GPU set-up"];
/// The place of the whole init among them.
pub(crate) const WHOLE_INIT: u64 = 4;
/// The place of what the first call on a device makes.
pub(crate) const GPU_SET_UP: u64 = 5;

/// Writes the events of a record.
pub(crate) fn write(span: &TraceSpan, of: &Recorder, ahead: i64, into: &mut String) {
    let mut events = Events { span, thread: of.thread, ahead, into, is_first: true };
    let (begun, ended) = span.times;
    let [first, second, third] = span.words;
    if span.kind >= exec::STEP_KIND {
        return events.step();
    }
    match SpanKind::from_code(span.kind) {
        Some(SpanKind::Call) => {
            let label = span.words;
            let (name, text) = (exec::short_name(label), exec::describe(label));
            let name = name.split(" #").next().unwrap_or_default().to_owned();
            events.slice(&name, "call", (begun, ended), &format!("\"call\":\"{text}\""));
        }
        Some(SpanKind::Message) => {
            let name = end_name(first);
            events.slice(&name, "message", (begun, ended), &format!("\"number\":{second},\"bytes\":{third}"));
            events.arrow(first, (second, USER_MESSAGES));
        }
        Some(SpanKind::End) => events.arrow(first, (second, USER_MESSAGES)),
        Some(SpanKind::Messages) => {
            events.slice("messages", "message", (begun, ended), &format!("\"messages\":{first}"));
        }
        Some(SpanKind::Request) => {
            let collective = u8::try_from(first).ok().filter(|_| first != MANY).and_then(Collective::from_code);
            let name = collective.map_or("group", Collective::name);
            events.bar(name, third, &format!("\"bytes\":{second}"));
        }
        Some(SpanKind::RequestMessage) => {
            let (name, sends) = (end_name(first), first >> 32 & 1 == 1);
            let id = arrow_number(span, first, (second, USER_MESSAGES)) ^ u64::from(sends);
            events.bar(&name, id, &format!("\"number\":{second},\"bytes\":{third}"));
            let times = if sends { (begun, begun.saturating_add(1)) } else { (ended.saturating_sub(1), ended) };
            events.slice(&format!("i{name}"), "message", times, &format!("\"number\":{second},\"bytes\":{third}"));
            events.arrow(first, (second, USER_MESSAGES));
        }
        Some(SpanKind::Phase) => {
            let name = usize::try_from(first).ok().and_then(|place| PHASES.get(place)).copied().unwrap_or("init");
            events.slice(name, "init", (begun, ended), "");
        }
        None => events.slice("unknown", "unknown", (begun, ended), ""),
    }
}

/// The rest of the trace at `path`, of so many bytes, that its process has left beside it; `None` where it is whole.
///
/// # Errors
/// Of the system, or where what stands beside it does not belong to it.
pub fn left(path: &Path, length: u64) -> std::io::Result<Option<LeftEvents>> {
    log::left(path, length, write)
}

/// In the place of a channel, of the program's messages.
const USER_MESSAGES: u64 = u64::MAX;

fn end_name(end: u64) -> String {
    let peer = end & u64::from(u32::MAX);
    if end >> 32 & 1 == 1 { format!("send to {peer}") } else { format!("recv from {peer}") }
}

/// What both ends of a message find alike, and no other message has.
fn arrow_number(span: &TraceSpan, end: u64, (number, channel): (u64, u64)) -> u64 {
    let (me, peer) = (u64::from(span.of.rank), end & u64::from(u32::MAX));
    let (from, to) = if end >> 32 & 1 == 1 { (me, peer) } else { (peer, me) };
    [span.of.communicator, from << 32 | to, number, channel]
        .into_iter()
        .fold(1u64, |sum, word| (sum.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// The events of one record.
struct Events<'a> {
    span: &'a TraceSpan,
    thread: u32,
    ahead: i64,
    into: &'a mut String,
    is_first: bool,
}

impl Events<'_> {
    fn event(&mut self, ph: char, (name, category): (&str, &str), at: u64, more: &str) {
        let divide = if std::mem::take(&mut self.is_first) { "" } else { ",\n" };
        let (process, time) = (self.span.of.track + 1, microseconds(at, self.ahead));
        let thread = lane_thread(self.thread, self.span.lane);
        // Writing to a string cannot fail.
        let _written = write!(
            self.into,
            "{divide}{{\"ph\":\"{ph}\",\"name\":\"{name}\",\"cat\":\"{category}\",\"pid\":{process},\"tid\":{thread},\
             \"ts\":{time}{more}}}"
        );
    }

    fn arguments(&self, more: &str) -> String {
        let (communicator, rank) = (self.span.of.communicator, self.span.of.rank);
        let comma = if more.is_empty() { "" } else { "," };
        format!("\"args\":{{{more}{comma}\"comm\":\"{communicator:016x}\",\"rank\":{rank}}}")
    }

    fn slice(&mut self, name: &str, category: &str, (begun, ended): (u64, u64), more: &str) {
        let lasted = microseconds(ended.saturating_sub(begun), 0);
        let arguments = self.arguments(more);
        self.event('X', (name, category), begun, &format!(",\"dur\":{lasted},{arguments}"));
    }

    /// A bar from its begin to its end, beside the slices of threads.
    fn bar(&mut self, name: &str, id: u64, more: &str) {
        let (begun, ended) = self.span.times;
        let (arguments, id) = (self.arguments(more), format!("\"id\":\"0x{id:x}\""));
        self.event('b', (name, "request"), begun, &format!(",{id},{arguments}"));
        self.event('e', (name, "request"), ended, &format!(",{id}"));
    }

    /// An end of an arrow, which viewers give to the slice that holds its time. Where a slice ends it holds nothing any
    /// more, to some of them by rounding: so an arrow ends a nanosecond before.
    fn arrow(&mut self, end: u64, message: (u64, u64)) {
        let (begun, ended) = (self.span.times.0, self.span.times.1.saturating_sub(1).max(self.span.times.0));
        let id = arrow_number(self.span, end, message);
        match end >> 32 & 1 == 1 {
            true => self.event('s', ("message", "message"), begun, &format!(",\"id\":\"0x{id:x}\"")),
            false => self.event('f', ("message", "message"), ended, &format!(",\"bp\":\"e\",\"id\":\"0x{id:x}\"")),
        }
    }

    fn step(&mut self) {
        let (begun, ended) = self.span.times;
        let [first, second, third] = self.span.words;
        if self.span.kind == exec::SLOT_KIND {
            return self.arrow(first, (second, third));
        }
        let name = exec::step_name(first);
        self.slice(&name, "step", (begun, ended), &format!("\"bytes\":{second}"));
    }
}
