//! The file of a trace: a JSON array of events, as Chrome and Perfetto read it.
//!
//! What is written is a whole array at any moment but that of a write: each write begins where the array's end stands
//! and ends with its end. Where the disk is full, what had been written before is made whole again, and nothing more is
//! written; how much is lost is told.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::log::spans::{Recorder, SpanFormat, TraceSpan};
use crate::sys::open::LockedFile;
use crate::sys::{host, text_file, writing};

/// A trace's file.
#[derive(Debug)]
pub(super) struct TraceFile {
    path: PathBuf,
    file: LockedFile,
    host: String,
    process: u32,
    /// Where the end of the array stands.
    end: u64,
    /// Beyond which no more is written.
    most_bytes: u64,
    /// Whether events stand before it.
    has_events: bool,
    /// Events that wait for a write, each with what divides it from the one before.
    waiting: String,
    waiting_events: u64,
    /// Tracks that have their names: ranks, and threads of ranks.
    named: BTreeSet<(u32, u32)>,
    clock: Option<(i64, u64)>,
    /// Why no more is written, and how many records have been lost since.
    failed: Option<(String, u64)>,
}

impl TraceFile {
    /// The file that `pattern` names for a process with `rank`; `None` where its ranks are threads.
    ///
    /// # Errors
    /// Where it cannot be opened, or another process has it.
    pub(super) fn open(pattern: &Path, rank: Option<u32>) -> Result<TraceFile> {
        let name = host::hostname().unwrap_or_else(|_| "-".to_owned());
        let path = place(pattern, (&name, host::process_id()), rank);
        let failed = |error| Error::system(format!("opening {}", path.display()), error);
        let file = text_file::open_alone(&path).map_err(failed)?;
        let mut made = TraceFile {
            path,
            file,
            host: name,
            process: host::process_id(),
            end: 0,
            most_bytes: MOST_BYTES,
            has_events: false,
            waiting: "[".to_owned(),
            waiting_events: 0,
            named: BTreeSet::new(),
            clock: None,
            failed: None,
        };
        made.write_through().map_err(|error| Error::system(format!("writing {}", made.path.display()), error))?;
        Ok(made)
    }

    /// Adds the events of a record.
    pub(super) fn add(&mut self, span: &TraceSpan, of: &Recorder, (format, ahead): (SpanFormat, i64)) {
        if let Some((_, lost)) = &mut self.failed {
            *lost += 1;
            return;
        }
        if self.end + self.waiting.len() as u64 >= self.most_bytes {
            self.stop(span, of, ahead);
            return;
        }
        self.name_tracks(span, of);
        self.divide();
        format(span, of, ahead, &mut self.waiting);
        self.waiting_events += 1;
        if self.waiting.len() >= MOST_WAITING {
            self.write();
        }
    }

    /// The file has as much as it may have: it ends with an event that says so, in the place of this record.
    fn stop(&mut self, span: &TraceSpan, of: &Recorder, ahead: i64) {
        let (track, thread, time) = (span.of.track + 1, of.thread, microseconds(span.times.0, ahead));
        let why = format!("the trace ends here, with {} bytes", self.most_bytes);
        self.event(&format!(
            "{{\"ph\":\"i\",\"s\":\"p\",\"name\":\"{why}\",\"cat\":\"trace\",\"pid\":{track},\"tid\":{thread},\
             \"ts\":{time}}}"
        ));
        self.write();
        super::tell(&format!("RSCCL_TRACE: {}: {why}: nothing more is recorded there", self.path.display()));
        self.failed.get_or_insert((why, 1));
    }

    /// Records were lost here, for want of room.
    pub(super) fn note_lost(&mut self, of: &Recorder, lost: u64, now: u64, ahead: i64) {
        super::tell(&format!(
            "RSCCL_TRACE: records come faster than they are written: {} lacks some of thread {}, and says where",
            self.path.display(),
            of.name
        ));
        let time = microseconds(now, ahead);
        let track = self.named.iter().find(|(_, thread)| *thread == of.thread).map_or(0, |(rank, _)| *rank);
        let (thread, name) = (of.thread, format!("{lost} records lost before this"));
        self.event(&format!(
            "{{\"ph\":\"i\",\"s\":\"t\",\"name\":\"{name}\",\"cat\":\"trace\",\"pid\":{},\"tid\":{thread},\
             \"ts\":{time}}}",
            track + 1
        ));
    }

    /// How far the clock of rank 0's host is ahead of this one's. The first one counts.
    pub(super) fn note_clock(&mut self, ahead: i64, uncertain: u64) {
        self.clock.get_or_insert((ahead, uncertain));
    }

    /// The names of the rank and of the thread, before their first record.
    fn name_tracks(&mut self, span: &TraceSpan, of: &Recorder) {
        let track = span.of.track;
        if self.named.insert((track, 0)) {
            let (host, process) = (quoted(&self.host), self.process);
            let (ahead, uncertain) = self.clock.unwrap_or((0, 0));
            let name = quoted(&format!("rank {track} ({}, pid {process})", self.host));
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
        if self.failed.is_none() {
            self.divide();
            self.waiting.push_str(text);
        }
    }

    fn divide(&mut self) {
        self.waiting.push_str(if self.has_events { ",\n" } else { "\n" });
        self.has_events = true;
    }

    /// Writes what waits.
    pub(super) fn write(&mut self) {
        if self.waiting.is_empty() || self.failed.is_some() {
            return;
        }
        let events = self.waiting_events;
        if let Err(error) = self.write_through() {
            // What stood there is whole again: its end needs no more room than it had.
            let end = self.end;
            let restored =
                writing::without_signal(|| self.file.set_len(end).and_then(|()| self.file.write_all_at(END, end)));
            let whole = if restored.is_ok() { "what was written before is whole" } else { "its last event is cut" };
            let path = self.path.display();
            super::tell(&format!("RSCCL_TRACE: writing {path}: {error}: nothing more is recorded there; {whole}"));
            self.failed = Some((error.to_string(), events));
            self.waiting.clear();
        }
    }

    fn write_through(&mut self) -> std::io::Result<()> {
        let events = self.waiting.len();
        self.waiting.push_str("\n]\n");
        writing::without_signal(|| self.file.write_all_at(self.waiting.as_bytes(), self.end))?;
        self.end += events as u64;
        self.waiting.clear();
        self.waiting_events = 0;
        Ok(())
    }
}

/// The number and the name of a record's thread: lanes of plans have tracks of their own.
pub(super) fn thread_of(span: &TraceSpan, of: &Recorder) -> (u32, String) {
    match span.lane {
        0 => (of.thread, of.name.clone()),
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

/// The file of a process: `%r` is its rank, `%h` its host, `%p` its number. Where the pattern has none of them, the
/// rank stands before the ending, since each process needs a file of its own.
fn place(pattern: &Path, (host, process): (&str, u32), rank: Option<u32>) -> PathBuf {
    let Some(text) = pattern.to_str() else { return pattern.to_owned() };
    let rank_text = rank.map_or("threads".to_owned(), |rank| rank.to_string());
    let mut made = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            made.push(letter);
            continue;
        }
        match letters.next() {
            Some('r') => made.push_str(&rank_text),
            Some('h') => made.push_str(host),
            Some('p') => made.push_str(&process.to_string()),
            Some('%') => made.push('%'),
            Some(other) => made.extend(['%', other]),
            None => made.push('%'),
        }
    }
    let path = PathBuf::from(made);
    if text.contains('%') || rank.is_none() {
        return path;
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let ending = path.extension().map(|ending| format!(".{}", ending.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}-{rank_text}{ending}"))
}

/// Bytes of a file: some ten million records.
const MOST_BYTES: u64 = 1 << 30;
const END: &[u8] = b"\n]\n";
/// Bytes of events that wait for a write at most.
const MOST_WAITING: usize = 1 << 20;
/// More than the numbers that Linux gives to threads (`PID_MAX_LIMIT`).
const THREADS: u32 = 1 << 22;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::log::spans::SpanOwner;

    fn text(span: &TraceSpan, of: &Recorder, ahead: i64, into: &mut String) {
        let time = microseconds(span.times.0, ahead);
        into.push_str(&format!("{{\"ph\":\"X\",\"ts\":{time},\"tid\":{},\"pid\":{}}}", of.thread, span.of.track + 1));
    }

    fn span(begun: u64) -> TraceSpan {
        let of = SpanOwner { track: 3, rank: 3, communicator: 1 };
        TraceSpan { kind: 1, lane: 0, of, times: (begun, begun + 1), words: [0; 3] }
    }

    fn events(path: &Path) -> Vec<serde_json::Value> {
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn the_file_is_a_whole_array_after_each_write() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = TraceFile::open(&folder.path().join("a%%b-%r.json"), Some(3)).unwrap();
        let path = folder.path().join("a%b-3.json");
        assert_eq!(events(&path).len(), 0);
        let of = Recorder { thread: 7, name: "ma\"in\n".to_owned() };
        for turn in 1..4 {
            file.add(&span(1000 * turn), &of, (text, 500));
            file.write();
            // The rank's name, its place and the thread's name come before the first.
            assert_eq!(events(&path).len() as u64, 3 + turn);
        }
        let all = events(&path);
        assert_eq!((&all[2]["args"]["name"], &all[3]["ts"]), (&"ma\"in\n".into(), &1.5.into()));
        // Another process that would write the same is refused, and so is this one.
        let error = TraceFile::open(&path, Some(3)).unwrap_err().to_string();
        assert!(error.contains("another process writes it"), "{error}");
        assert_eq!(events(&path).len(), 6, "and nothing is lost by that");
    }

    #[test]
    fn a_file_ends_where_it_has_as_much_as_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut file = TraceFile::open(&path, None).unwrap();
        file.most_bytes = 2000;
        let of = Recorder { thread: 7, name: "main".to_owned() };
        for turn in 1..1000 {
            file.add(&span(1000 * turn), &of, (text, 0));
        }
        file.write();
        let all = events(&path);
        assert_eq!(all.last().unwrap()["name"], "the trace ends here, with 2000 bytes");
        let length = std::fs::metadata(&path).unwrap().len();
        assert!((2000..3000).contains(&length) && all.len() > 10, "{length} bytes, {} events", all.len());
    }

    #[test]
    fn each_process_has_a_file_of_its_own() {
        let of = |pattern: &str, rank| place(Path::new(pattern), ("node0", 11), rank).display().to_string();
        assert_eq!(of("/a/trace.json", Some(4)), "/a/trace-4.json");
        assert_eq!(of("/a/trace", Some(4)), "/a/trace-4");
        assert_eq!(of("/a/trace.json", None), "/a/trace.json");
        assert_eq!(of("/a/%h-%p-%r%%.json", Some(4)), "/a/node0-11-4%.json");
        assert_eq!(of("/a/%r%x%", None), "/a/threads%x%");
    }
}
