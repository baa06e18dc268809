//! The file of a trace: a JSON array of events, as Chrome and Perfetto read it.
//!
//! What is written is a whole array at any moment but that of a write: each write begins where the array's end stands
//! and ends with its end. Where the disk is full, what had been written before is made whole again, and nothing more is
//! written; how much is lost is told.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::log::event_text::EventText;
use crate::log::spans::{Recorder, SpanFormat, TraceSpan, Track, now};
use crate::log::spool::{self, Spool, SpoolOwner};
use crate::sys::open::LockedFile;
use crate::sys::{host, text_file, writing};

/// A trace's file.
#[derive(Debug)]
pub(super) struct TraceFile {
    path: PathBuf,
    file: LockedFile,
    /// Where the end of the array stands.
    end: u64,
    /// Beyond which no more is written.
    most_bytes: u64,
    /// Events that wait for a write.
    text: EventText,
    /// Records that are no text yet.
    spool: Option<Spool>,
    /// Whether records are made text at once, since they cannot be spooled.
    has_no_spool: bool,
    /// Why no more is written, and how many records have been lost since.
    failed: Option<(String, u64)>,
    /// Whether the file of records stays, with what found no room as text.
    keeps_records: bool,
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
        spool::remove_old(&path).map_err(failed)?;
        let text = EventText::new(SpoolOwner { host: name, process: host::process_id(), clock: (0, 0) });
        let (spool, failed) = (None, None);
        let most_bytes = MOST_BYTES;
        let mut made = TraceFile {
            path,
            file,
            end: 0,
            most_bytes,
            text,
            spool,
            has_no_spool: false,
            failed,
            keeps_records: false,
        };
        made.text.waiting.push('[');
        made.write_through().map_err(|error| Error::system(format!("writing {}", made.path.display()), error))?;
        Ok(made)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where records stand that are no text yet.
    pub(super) fn records_path(&self) -> PathBuf {
        spool::beside(&self.path)
    }

    /// Takes what stands in the rings: as text where it `is_little` and no earlier record waits for its text.
    pub(super) fn take(&mut self, tracks: &[Arc<Track>], is_little: bool, how: (SpanFormat, i64)) {
        if !is_little && self.spool.is_none() && !self.has_no_spool && self.failed.is_none() {
            self.begin_spool();
        }
        if self.spool.as_ref().is_some_and(|spool| !spool.has_room()) {
            // Meanwhile rings run full, and what finds no room is counted.
            while self.make_text(how.0).is_some() {}
        }
        for track in tracks {
            match self.spool.as_mut().map(|spool| spool.take(track)) {
                Some(Ok(())) => {}
                Some(Err((lost, error))) => self.do_without_spool((&track.recorder, lost), &error, how),
                None => self.take_as_text(track, how),
            }
        }
        if self.spool.is_none() {
            self.write();
        }
    }

    fn take_as_text(&mut self, track: &Track, how: (SpanFormat, i64)) {
        track.drain(u64::MAX, |words| self.add(&TraceSpan::of_words(*words), &track.recorder, how));
        let lost = track.take_lost();
        if lost > 0 {
            self.note_lost(&track.recorder, (lost, now()), how.1);
        }
    }

    /// The file of records takes no more, and has not taken so many of this thread.
    fn do_without_spool(&mut self, (of, lost): (&Recorder, u64), error: &std::io::Error, how: (SpanFormat, i64)) {
        self.tell_no_spool(error);
        while self.make_text(how.0).is_some() {}
        self.note_lost(of, (lost, now()), how.1);
    }

    fn tell_no_spool(&mut self, error: &std::io::Error) {
        let path = spool::beside(&self.path);
        super::tell(&format!("RSCCL_TRACE: {}: {error}: text is made at once, which takes longer", path.display()));
        self.has_no_spool = true;
    }

    fn begin_spool(&mut self) {
        // What waits is older than what goes there.
        self.write();
        match Spool::begin(&self.path, &self.text.owner, self.end) {
            Ok(spool) => self.spool = Some(spool),
            Err(error) => self.tell_no_spool(&error),
        }
    }

    /// Up to which byte of the file of records there is something.
    pub(super) fn spooled(&self) -> u64 {
        self.spool.as_ref().map_or(0, Spool::end)
    }

    /// Makes text of a batch of spooled records; up to which byte text is made, if there are more.
    pub(super) fn make_text(&mut self, format: SpanFormat) -> Option<u64> {
        let spool = self.spool.as_mut()?;
        let (batch, ahead) = (spool.next(), self.text.owner.clock.0);
        let is_over = match batch {
            // Where the trace has as much as it may have, what is left here is lost with it.
            Ok(Some(batch)) if self.failed.is_none() => {
                batch.spans.iter().for_each(|span| self.add(span, &batch.recorder, (format, ahead)));
                self.note_lost(&batch.recorder, batch.lost, ahead);
                false
            }
            Ok(_) => true,
            Err(error) => {
                self.tell_no_spool(&error);
                true
            }
        };
        self.write();
        let is_whole = |spool: &mut Spool| is_over || spool.read() >= spool.end();
        if let Some(spool) = self.spool.take_if(|spool| is_whole(spool))
            && !self.keeps_records
        {
            spool.remove();
        }
        self.spool.as_ref().map(Spool::read)
    }

    /// Adds the events of a record.
    pub(super) fn add(&mut self, span: &TraceSpan, of: &Recorder, (format, ahead): (SpanFormat, i64)) {
        if let Some((_, lost)) = &mut self.failed {
            *lost += 1;
            return;
        }
        if self.end + self.text.waiting.len() as u64 >= self.most_bytes {
            self.stop(span, of, ahead);
            return;
        }
        self.text.add(span, of, (format, ahead));
        if self.spool.is_none() && self.text.waiting.len() >= MOST_WAITING {
            self.write();
        }
    }

    /// The file has as much as it may have: it ends with an event that says so, in the place of this record.
    fn stop(&mut self, span: &TraceSpan, of: &Recorder, ahead: i64) {
        let why = format!("the trace ends here, with {} bytes", self.most_bytes);
        self.text.instant((span.of.track + 1, 'p'), &why, of, (span.times.0, ahead));
        self.write();
        super::tell(&format!("RSCCL_TRACE: {}: {why}: nothing more is recorded there", self.path.display()));
        self.failed.get_or_insert((why, 1));
    }

    /// So many records were lost here, for want of room, as was noticed then.
    fn note_lost(&mut self, of: &Recorder, (lost, noticed): (u64, u64), ahead: i64) {
        if lost == 0 {
            return;
        }
        super::tell(&format!(
            "RSCCL_TRACE: records come faster than they are written: {} lacks some of thread {}, and says where",
            self.path.display(),
            of.name
        ));
        if self.failed.is_none() {
            self.text.add_lost(of, (lost, noticed), ahead);
        }
    }

    /// How far the clock of rank 0's host is ahead of this one's. The first one counts.
    pub(super) fn note_clock(&mut self, ahead: i64, uncertain: u64) {
        if self.text.owner.clock == (0, 0) {
            self.text.owner.clock = (ahead, uncertain);
        }
    }

    /// Writes what waits.
    pub(super) fn write(&mut self) {
        if self.text.waiting.is_empty() || self.failed.is_some() {
            return;
        }
        let events = self.text.waiting_events;
        if let Err(error) = self.write_through() {
            // What stood there is whole again: its end needs no more room than it had.
            let end = self.end;
            let restored =
                writing::without_signal(|| self.file.set_len(end).and_then(|()| self.file.write_all_at(END, end)));
            let whole = if restored.is_ok() { "what was written before is whole" } else { "its last event is cut" };
            let path = self.path.display();
            self.keeps_records = self.spool.is_some();
            let records = spool::beside(&self.path);
            let rest = match self.keeps_records {
                true => {
                    format!("; up to here the rest is in {}, and `rsccl trace merge` reads both", records.display())
                }
                false => String::new(),
            };
            super::tell(&format!(
                "RSCCL_TRACE: writing {path}: {error}: nothing more is recorded there; {whole}{rest}"
            ));
            self.failed = Some((error.to_string(), events));
            self.text.waiting.clear();
        }
    }

    fn write_through(&mut self) -> std::io::Result<()> {
        let end = self.end + self.text.waiting.len() as u64;
        if let Some(spool) = &mut self.spool {
            spool.mark(end)?;
        }
        self.text.waiting.push_str("\n]\n");
        writing::without_signal(|| self.file.write_all_at(self.text.waiting.as_bytes(), self.end))?;
        self.end = end;
        self.text.waiting.clear();
        self.text.waiting_events = 0;
        Ok(())
    }
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
const _: () = assert!(END.len() as u64 == spool::ARRAY_END_BYTES);
/// Bytes of events that wait for a write at most.
const MOST_WAITING: usize = 1 << 20;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::log::event_text::microseconds;
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

    /// Records that come without end: the file of records grows to its bound, and text of all of it is made.
    #[test]
    fn a_flood_of_records_is_made_text_where_they_have_no_more_room() {
        const ROOM: u64 = 64 << 10;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        let mut file = TraceFile::open(&path, None).unwrap();
        let track = Arc::new(Track::of(Recorder { thread: 7, name: "main".to_owned() }));
        let (mut written, mut ends) = (0, 0);
        for _ in 0..20 {
            (0..500).for_each(|_| {
                written += 1;
                track.write(&span(1000 * written));
            });
            file.take(&[Arc::clone(&track)], false, (text, 0));
            // Where all of it is text it has ended, until the next look.
            let Some(spool) = file.spool.as_mut() else { continue };
            spool.set_room(ROOM);
            ends += 1;
            let length = std::fs::metadata(spool::beside(&path)).unwrap().len();
            // What a look takes is written beyond it.
            assert!(length < 2 * ROOM + 1000, "{length} bytes");
        }
        while file.make_text(text).is_some() {}
        assert!((10..20).contains(&ends), "{ends} looks of 20 had one");
        assert!(!spool::beside(&path).exists());
        let slices = events(&path).into_iter().filter(|event| event["ph"] == "X").count() as u64;
        assert_eq!(slices, written);
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
