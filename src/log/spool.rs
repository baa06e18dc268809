//! The records of a trace that are no text yet: a file beside the trace, `FILE.records`, that ends when all of it is
//! text. What a killed process leaves there, `rsccl trace merge` reads.
//!
//! | bytes | what |
//! |---|---|
//! | 0..8 | `rsccltr1` |
//! | 8..16 | number of the process |
//! | 16..32 | how far the clock of rank 0's host is ahead, signed, and how uncertain that is, in nanoseconds |
//! | 32..48, 48..64 | two marks: with so many bytes of events in the trace, text is made up to this byte here |
//! | 64..320 | the host's name, with zeros behind it |
//!
//! then batches: the thread's number (4 bytes), how many records (4), how many were lost behind them (8), the time (8),
//! the length of the thread's name (8), the name, and the records of 8 words. Numbers are little endian.
//!
//! A mark is written before the text that it speaks of. So the one that holds is the later one whose text is whole.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::log::spans::{Recorder, TraceSpan, Track, WORDS, now};
use crate::sys::open::LockedFile;
use crate::sys::{text_file, writing};

/// The file of records.
#[derive(Debug)]
pub(super) struct Spool {
    path: PathBuf,
    file: LockedFile,
    /// Bytes written.
    end: u64,
    /// Up to which text is made.
    read: u64,
    /// Batches that are not written yet.
    waiting: Vec<u8>,
    /// How many marks have been written.
    marks: u64,
    /// Where there is no room for more.
    most_bytes: u64,
}

/// Whose records they are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpoolOwner {
    pub(super) host: String,
    pub(super) process: u32,
    pub(super) clock: (i64, u64),
}

/// What is read at once.
#[derive(Debug)]
pub(super) struct RecordBatch {
    pub(super) recorder: Recorder,
    pub(super) spans: Vec<TraceSpan>,
    /// How many were lost behind them, and when that was noticed.
    pub(super) lost: (u64, u64),
}

/// The file beside a trace.
pub(crate) fn beside(trace: &Path) -> PathBuf {
    let mut name = trace.as_os_str().to_owned();
    name.push(".records");
    PathBuf::from(name)
}

impl Spool {
    /// A new one beside `trace`, whose events end at byte `events`.
    ///
    /// # Errors
    /// Of the system.
    pub(super) fn begin(trace: &Path, owner: &SpoolOwner, events: u64) -> std::io::Result<Spool> {
        let path = beside(trace);
        let file = text_file::open_new_to_read_back(&path)?;
        let mut head = Vec::with_capacity(HEAD_BYTES);
        head.extend_from_slice(MAGIC);
        head.extend_from_slice(&u64::from(owner.process).to_le_bytes());
        head.extend_from_slice(&owner.clock.0.to_le_bytes());
        head.extend_from_slice(&owner.clock.1.to_le_bytes());
        for _ in 0..2 {
            head.extend_from_slice(&events.to_le_bytes());
            head.extend_from_slice(&(HEAD_BYTES as u64).to_le_bytes());
        }
        head.extend(owner.host.bytes().take(HOST_BYTES));
        head.resize(HEAD_BYTES, 0);
        let begun = HEAD_BYTES as u64;
        let made = Spool { path, file, end: begun, read: begun, waiting: Vec::new(), marks: 0, most_bytes: MOST_BYTES };
        match writing::without_signal(|| made.file.write_all_at(&head, 0)) {
            Ok(()) => Ok(made),
            Err(error) => {
                made.remove();
                Err(error)
            }
        }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Up to which byte text is made.
    pub(super) fn read(&self) -> u64 {
        self.read
    }

    pub(super) fn has_room(&self) -> bool {
        self.end < self.most_bytes
    }

    #[cfg(test)]
    pub(super) fn set_room(&mut self, bytes: u64) {
        self.most_bytes = bytes;
    }

    /// Takes the records of a thread, as many as its ring has at most: it may write on.
    ///
    /// # Errors
    /// Of the system, and how many records are lost by that: what had been written before is whole.
    pub(super) fn take(&mut self, track: &Track) -> Result<(), (u64, std::io::Error)> {
        for _ in 0..MOST_BATCHES {
            let (records, lost) = self.take_batch(track);
            // Each by itself: what lies in the caches of a rank that shares this processor stays there.
            self.write().map_err(|error| (records + lost, error))?;
            if records < BATCH_RECORDS {
                break;
            }
        }
        Ok(())
    }

    /// Takes one batch; how many records it has, and how many were lost behind them.
    fn take_batch(&mut self, track: &Track) -> (u64, u64) {
        let begin = self.waiting.len();
        let name = cut(&track.recorder.name);
        self.waiting.extend_from_slice(&track.recorder.thread.to_le_bytes());
        // The rest of the head, once it is known.
        self.waiting.extend_from_slice(&[0; BATCH_BYTES - 4]);
        self.waiting.extend_from_slice(name.as_bytes());
        let waiting = &mut self.waiting;
        let records = track.drain(BATCH_RECORDS, |words| {
            // Whole records: word by word this took longer than all else that the writer does with them.
            let mut record = [0; WORDS * 8];
            record.chunks_exact_mut(8).zip(words).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
            waiting.extend_from_slice(&record);
        });
        let lost = track.take_lost();
        if records == 0 && lost == 0 {
            self.waiting.truncate(begin);
            return (0, 0);
        }
        let head = &mut self.waiting[begin..][..BATCH_BYTES];
        head[4..8].copy_from_slice(&u32::try_from(records).unwrap_or(u32::MAX).to_le_bytes());
        head[8..16].copy_from_slice(&lost.to_le_bytes());
        head[16..24].copy_from_slice(&now().to_le_bytes());
        head[24..32].copy_from_slice(&(name.len() as u64).to_le_bytes());
        (records, lost)
    }

    /// Writes what waits. Where that fails, what stood there is whole.
    fn write(&mut self) -> std::io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let written = writing::without_signal(|| self.file.write_all_at(&self.waiting, self.end));
        match written {
            Ok(()) => self.end += self.waiting.len() as u64,
            // The rest would be read as cut.
            Err(_) => writing::without_signal(|| self.file.set_len(self.end)).unwrap_or(()),
        }
        self.waiting.clear();
        written
    }

    /// The next batch of which text is to be made; `None` after the last one.
    ///
    /// # Errors
    /// Of the system, or where somebody else has changed the file.
    pub(super) fn next(&mut self) -> std::io::Result<Option<RecordBatch>> {
        if self.read >= self.end {
            return Ok(None);
        }
        let mut file = SpoolBytes { file: &self.file, at: self.read, end: self.end };
        let batch = file.batch()?;
        self.read = file.at;
        Ok(Some(batch))
    }

    /// Text of all that was read is about to be written: the trace's events will end at `events`.
    ///
    /// # Errors
    /// Of the system.
    pub(super) fn mark(&mut self, events: u64) -> std::io::Result<()> {
        let mut mark = [0; 16];
        mark[..8].copy_from_slice(&events.to_le_bytes());
        mark[8..].copy_from_slice(&self.read.to_le_bytes());
        let at = MARKS_AT + 16 * (self.marks % 2);
        self.marks += 1;
        writing::without_signal(|| self.file.write_all_at(&mark, at))
    }

    /// All of it is text, or none will be made: the file ends.
    pub(super) fn remove(self) {
        // One that stays has no head, and counts as none.
        self.file.set_len(0).unwrap_or(());
        std::fs::remove_file(&self.path).unwrap_or(());
    }
}

/// What an earlier program has left beside a trace that begins anew belongs to no event of it.
///
/// # Errors
/// Of the system.
pub(super) fn remove_old(trace: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(beside(trace)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// What a process has left beside its trace of `length` bytes.
#[derive(Debug)]
pub(super) struct LeftSpool {
    file: std::fs::File,
    pub(super) owner: SpoolOwner,
    /// Bytes of the trace's events that count: what stands behind them is made of the records again.
    pub(super) events: u64,
    at: u64,
    end: u64,
}

impl LeftSpool {
    /// `None` where there is nothing.
    ///
    /// # Errors
    /// Of the system, or where it is no file of records.
    pub(super) fn open(trace: &Path, length: u64) -> std::io::Result<Option<LeftSpool>> {
        let file = match crate::sys::open::file_at_once(&beside(trace)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let about = file.metadata()?;
        if !about.is_file() {
            return Err(strange("it is no regular file"));
        }
        let end = about.len();
        // Its process died, or had no room, before the first record.
        if end < HEAD_BYTES as u64 {
            return Ok(None);
        }
        let mut head = [0; HEAD_BYTES];
        file.read_exact_at(&mut head, 0)?;
        if &head[..8] != MAGIC {
            return Err(strange("it is no file of records"));
        }
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let whole = (0..2u64).map(|mark| if mark == 0 { 32 } else { 48 }).map(|at| (word(at), word(at + 8)));
        // The array's end stands behind the events.
        let whole = whole.filter(|(events, _)| events.saturating_add(ARRAY_END_BYTES) <= length);
        let (events, at) = whole.max_by_key(|(_, read)| *read).ok_or_else(|| strange("it belongs to another trace"))?;
        let name = head[64..].split(|byte| *byte == 0).next().unwrap_or_default();
        let owner = SpoolOwner {
            host: String::from_utf8_lossy(name).into_owned(),
            process: u32::try_from(word(8)).map_err(|_| strange("its process has no valid number"))?,
            clock: (word(16).cast_signed(), word(24)),
        };
        Ok(Some(LeftSpool { file, owner, events, at: at.max(HEAD_BYTES as u64), end }))
    }

    /// The next batch; `None` after the last whole one.
    pub(super) fn next(&mut self) -> Option<RecordBatch> {
        let mut bytes = SpoolBytes { file: &self.file, at: self.at, end: self.end };
        // The process may have died while it wrote the last one.
        let batch = bytes.batch().ok()?;
        self.at = bytes.at;
        Some(batch)
    }

    /// Bytes that are no whole batch.
    pub(super) fn cut(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }
}

/// Bytes of a file of records, of which nothing is believed.
struct SpoolBytes<'a> {
    file: &'a std::fs::File,
    at: u64,
    end: u64,
}

impl SpoolBytes<'_> {
    fn take(&mut self, bytes: usize) -> std::io::Result<Vec<u8>> {
        let after = self.at.checked_add(bytes as u64).filter(|after| *after <= self.end);
        let after = after.ok_or_else(|| strange("it is cut"))?;
        let mut taken = vec![0; bytes];
        self.file.read_exact_at(&mut taken, self.at)?;
        self.at = after;
        Ok(taken)
    }

    fn batch(&mut self) -> std::io::Result<RecordBatch> {
        let head = self.take(BATCH_BYTES)?;
        let short = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("8 bytes"));
        let (records, name) = (usize::try_from(short(4)), usize::try_from(word(24)));
        let (Ok(records @ 0..=MOST_RECORDS), Ok(name @ 0..=NAME_BYTES)) = (records, name) else {
            return Err(strange("a length is wrong"));
        };
        let name = String::from_utf8_lossy(&self.take(name)?).into_owned();
        let bytes = self.take(records * WORDS * 8)?;
        let spans = bytes.chunks_exact(WORDS * 8).map(|record| {
            let mut words = [0; WORDS];
            words.iter_mut().zip(record.chunks_exact(8)).for_each(|(word, bytes)| {
                *word = u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            });
            TraceSpan::of_words(words)
        });
        let (recorder, spans) = (Recorder { thread: short(0), name }, spans.collect::<Vec<_>>());
        // Tracks count from 0, and what shows them from 1.
        if spans.iter().any(|span: &TraceSpan| span.of.track == u32::MAX) {
            return Err(strange("a track is wrong"));
        }
        Ok(RecordBatch { recorder, spans, lost: (word(8), word(16)) })
    }
}

fn strange(why: &str) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidData, why)
}

/// The part of a name that has room.
fn cut(name: &str) -> &str {
    let end = (0..=name.len().min(NAME_BYTES)).rev().find(|end| name.is_char_boundary(*end));
    &name[..end.unwrap_or(0)]
}

/// Bytes of the end of the trace's array.
pub(super) const ARRAY_END_BYTES: u64 = 3;
const MAGIC: &[u8] = b"rsccltr1";
const MARKS_AT: u64 = 32;
const HOST_BYTES: usize = 256;
const HEAD_BYTES: usize = 64 + HOST_BYTES;
const BATCH_BYTES: usize = 32;
/// Of a batch: their text takes some milliseconds.
const BATCH_RECORDS: u64 = 1 << 11;
const MOST_RECORDS: usize = 1 << 11;
const _: () = assert!(MOST_RECORDS as u64 == BATCH_RECORDS);
/// Of a thread at a time: a ring of 2 MiB has no more.
const MOST_BATCHES: usize = (2 << 20) / (MOST_RECORDS * WORDS * 8);
/// Of a thread's name.
const NAME_BYTES: usize = 256;
/// Bytes of records that are no text yet: four million, whose text is a gigabyte.
const MOST_BYTES: u64 = 1 << 28;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::log::spans::SpanOwner;

    fn owner() -> SpoolOwner {
        SpoolOwner { host: "node0".to_owned(), process: 7, clock: (-5, 3) }
    }

    fn spans(number: u64) -> Vec<TraceSpan> {
        let of = SpanOwner { track: 3, rank: 2, communicator: u64::MAX };
        (0..number).map(|at| TraceSpan { kind: 1, lane: 9, of, times: (at, at + 1), words: [at; 3] }).collect()
    }

    /// A file of records beside a trace, with as many of them, and the trace.
    fn spooled(folder: &Path, records: u64) -> (Spool, PathBuf) {
        let trace = folder.join("trace.json");
        let mut spool = Spool::begin(&trace, &owner(), 100).unwrap();
        let track = Track::of(Recorder { thread: 11, name: "main".to_owned() });
        for span in spans(records) {
            track.write(&span);
        }
        spool.take(&track).unwrap();
        (spool, trace)
    }

    fn left(trace: &Path, length: u64) -> (Vec<TraceSpan>, u64, u64) {
        let mut left = LeftSpool::open(trace, length).unwrap().unwrap();
        assert_eq!(left.owner, owner());
        let mut all = Vec::new();
        while let Some(batch) = left.next() {
            assert_eq!((batch.recorder.thread, batch.recorder.name.as_str(), batch.lost.0), (11, "main", 0));
            all.extend(batch.spans);
        }
        (all, left.events, left.cut())
    }

    #[test]
    fn what_is_written_is_read_and_what_is_text_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (mut spool, trace) = spooled(folder.path(), 5000);
        assert_eq!(left(&trace, 103), (spans(5000), 100, 0));
        let batch = spool.next().unwrap().unwrap();
        assert_eq!(batch.spans, spans(BATCH_RECORDS));
        spool.mark(900).unwrap();
        // The text of the first batch is not whole yet, then it is.
        assert_eq!(left(&trace, 902), (spans(5000), 100, 0));
        assert_eq!(left(&trace, 903), (spans(5000).split_off(batch.spans.len()), 900, 0));
        spool.remove();
        assert!(LeftSpool::open(&trace, 903).unwrap().is_none());
    }

    /// What somebody else has put there is neither followed nor written.
    #[test]
    fn records_go_to_a_new_file_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (trace, other) = (folder.path().join("trace.json"), folder.path().join("other"));
        std::fs::write(&other, "kept").unwrap();
        std::os::unix::fs::symlink(&other, beside(&trace)).unwrap();
        let error = Spool::begin(&trace, &owner(), 100).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "kept");
        remove_old(&trace).unwrap();
        assert!(Spool::begin(&trace, &owner(), 100).is_ok() && other.exists());
    }

    #[test]
    fn strange_bytes_are_no_records() {
        let folder = tempfile::tempdir().unwrap();
        let (_spool, trace) = spooled(folder.path(), 3);
        let whole = std::fs::read(beside(&trace)).unwrap();
        let open = |bytes: &[u8]| {
            std::fs::write(beside(&trace), bytes).unwrap();
            LeftSpool::open(&trace, 103)
        };
        // As a process leaves it that dies while it writes.
        for length in 0..whole.len() {
            match open(&whole[..length]) {
                Ok(None) => assert!(length < HEAD_BYTES, "{length} bytes"),
                Ok(Some(mut left)) => assert!(left.next().is_none() && left.cut() == (length - HEAD_BYTES) as u64),
                Err(error) => panic!("{length} bytes: {error}"),
            }
        }
        // Lengths that nobody has memory for, and places outside.
        for at in 0..HEAD_BYTES + BATCH_BYTES {
            let mut bytes = whole.clone();
            bytes[at] = 0xff;
            if let Ok(Some(mut left)) = open(&bytes) {
                while left.next().is_some() {}
            }
        }
        assert!(LeftSpool::open(&trace, 50).is_err(), "its text stands in a longer trace");
    }
}
