//! The events of a trace as text: JSON objects on lines of their own, as Chrome and Perfetto read them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use crate::log::spans::{REQUEST_LANES, Recorder, SpanFormat, TraceSpan};
use crate::log::spool::{LeftSpool, SpoolOwner};

/// Events that wait for a write.
#[derive(Debug)]
pub(super) struct EventText {
    pub(super) owner: SpoolOwner,
    /// Each with what divides it from the one before.
    pub(super) waiting: String,
    pub(super) waiting_events: u64,
    /// Whether events stand before them.
    has_events: bool,
    /// Tracks that have their names: ranks, and threads of ranks.
    named: BTreeSet<(u32, u32)>,
}

impl EventText {
    pub(super) fn new(owner: SpoolOwner) -> EventText {
        EventText { owner, waiting: String::new(), waiting_events: 0, has_events: false, named: BTreeSet::new() }
    }

    /// Adds the events of a record.
    pub(super) fn add(&mut self, span: &TraceSpan, of: &Recorder, (format, ahead): (SpanFormat, i64)) {
        self.name_tracks(span, of);
        self.divide();
        format(span, of, ahead, &mut self.waiting);
        self.waiting_events += 1;
    }

    /// Adds that records of a thread were lost before this time.
    pub(super) fn add_lost(&mut self, of: &Recorder, (lost, noticed): (u64, u64), ahead: i64) {
        let track = self.named.iter().find(|(_, thread)| *thread == of.thread).map_or(0, |(rank, _)| *rank);
        self.instant((track + 1, 't'), &format!("{lost} records lost before this"), of, (noticed, ahead));
    }

    /// Adds an event without length, for a process or for a thread.
    pub(super) fn instant(&mut self, (process, scope): (u32, char), name: &str, of: &Recorder, at: (u64, i64)) {
        let (thread, time) = (of.thread, microseconds(at.0, at.1));
        self.event(&format!(
            "{{\"ph\":\"i\",\"s\":\"{scope}\",\"name\":\"{name}\",\"cat\":\"trace\",\"pid\":{process},\"tid\":{thread},\
             \"ts\":{time}}}"
        ));
    }

    /// The names of the rank and of the thread, before their first record.
    fn name_tracks(&mut self, span: &TraceSpan, of: &Recorder) {
        let track = span.of.track;
        if self.named.insert((track, 0)) {
            let (host, process) = (quoted(&self.owner.host), self.owner.process);
            let (ahead, uncertain) = self.owner.clock;
            let name = quoted(&format!("rank {track} ({}, pid {process})", self.owner.host));
            self.event(&format!(
                "{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{0},\"tid\":0,\"ts\":0,\"args\":{{\"name\":{name},\
                 \"rank\":{track},\"host\":{host},\"process\":{process},\"clock_ahead_ns\":{ahead},\
                 \"clock_uncertain_ns\":{uncertain}}}}}",
                track + 1
            ));
            self.event(&format!(
                "{{\"ph\":\"M\",\"name\":\"process_sort_index\",\"pid\":{0},\"tid\":0,\"ts\":0,\
                 \"args\":{{\"sort_index\":{track}}}}}",
                track + 1
            ));
        }
        let (thread, name) = thread_of(span, of);
        if self.named.insert((track, thread)) {
            self.event(&format!(
                "{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{thread},\"ts\":0,\
                 \"args\":{{\"name\":{}}}}}",
                track + 1,
                quoted(&name)
            ));
        }
    }

    fn event(&mut self, text: &str) {
        self.divide();
        self.waiting.push_str(text);
    }

    fn divide(&mut self) {
        self.waiting.push_str(if self.has_events { ",\n" } else { "\n" });
        self.has_events = true;
    }
}

/// What a process has left beside its trace, of `length` bytes, that is no text yet.
#[derive(Debug)]
pub struct LeftEvents {
    /// Bytes of the trace that count: what stands behind them is in `text` too.
    pub whole_bytes: u64,
    /// The events that the trace lacks, as an array.
    pub text: String,
    /// Bytes that are no whole records.
    pub cut_bytes: u64,
}

/// The rest of the trace at `path`; `None` where it is whole.
///
/// # Errors
/// Of the system, or where what stands beside it does not belong to it.
pub(crate) fn left(path: &Path, length: u64, format: SpanFormat) -> std::io::Result<Option<LeftEvents>> {
    let Some(mut spool) = LeftSpool::open(path, length)? else { return Ok(None) };
    let ahead = spool.owner.clock.0;
    let mut text = EventText::new(spool.owner.clone());
    text.waiting.push('[');
    while let Some(batch) = spool.next() {
        batch.spans.iter().for_each(|span| text.add(span, &batch.recorder, (format, ahead)));
        if batch.lost.0 > 0 {
            text.add_lost(&batch.recorder, batch.lost, ahead);
        }
    }
    text.waiting.push_str("\n]\n");
    Ok(Some(LeftEvents { whole_bytes: spool.events, text: text.waiting, cut_bytes: spool.cut() }))
}

/// The number and the name of a record's thread: lanes of plans have tracks of their own.
pub(super) fn thread_of(span: &TraceSpan, of: &Recorder) -> (u32, String) {
    match span.lane {
        0 => (of.thread, of.name.clone()),
        lane @ REQUEST_LANES.. => {
            (lane_thread(of.thread, lane), format!("{}, request lane {}", of.name, lane - REQUEST_LANES))
        }
        lane => (lane_thread(of.thread, lane), format!("{}, lane {}", of.name, lane - 1)),
    }
}

/// The number of a lane's track: behind those that the system gives to threads.
pub(crate) fn lane_thread(thread: u32, lane: u16) -> u32 {
    u32::from(lane).wrapping_mul(THREADS).wrapping_add(thread)
}

/// A time as the format has it: microseconds.
pub(crate) fn microseconds(nanoseconds: u64, ahead: i64) -> String {
    let time = nanoseconds.saturating_add_signed(ahead);
    format!("{}.{:03}", time / 1000, time % 1000)
}

/// A text as JSON has it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            letter if letter.is_control() => {
                // Writing to a string cannot fail.
                let _written = write!(quoted, "\\u{:04x}", u32::from(letter));
            }
            letter => quoted.push(letter),
        }
    }
    quoted.push('"');
    quoted
}

/// More than the numbers that Linux gives to threads (`PID_MAX_LIMIT`).
const THREADS: u32 = 1 << 22;
