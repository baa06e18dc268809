//! The trace that `RSCCL_TRACE` asks for: what the program's threads did for which rank, and when.
//!
//! A thread that records something writes eight words to a ring of its own ([`Track`]) and goes on: no lock, no
//! allocation but for its first record, no system call but one to wake the writer where half of the ring is full. A
//! thread of the process, the writer, makes text of the records and puts it into the file
//! ([`TraceFile`](super::trace_file)). What comes faster than it writes is counted, and the file says how much was lost
//! where. How a record reads as text is for the floor that knows what it is of: [`SpanFormat`].
//!
//! Whether anything is recorded is one bit of the word that each call reads for the lines of the log
//! ([`super::hears_calls`]): where it is not, a call takes no instruction for it.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::time::Duration;

use crate::error::Result;
use crate::log::trace_file::TraceFile;
use crate::sync::primitive;
use crate::sync::primitive::statics::Mutex;
use crate::sys::fork::{Birthplace, PerProcess};
use crate::sys::{clock, futex, host, thread};

/// Something that a thread has done for a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceSpan {
    /// What it is, as the one who records and the [`SpanFormat`] understand it.
    pub(crate) kind: u8,
    /// Of a plan's lane: one more than its number; else 0.
    pub(crate) lane: u16,
    pub(crate) of: SpanOwner,
    /// When it began and ended, in nanoseconds of the monotonic clock.
    pub(crate) times: (u64, u64),
    /// What it was: for the [`SpanFormat`].
    pub(crate) words: [u64; 3],
}

/// For whom it was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SpanOwner {
    /// The rank in the communicator from which all others of the rank were split.
    pub(crate) track: u32,
    /// The rank in the communicator that was used.
    pub(crate) rank: u32,
    /// The communicator.
    pub(crate) communicator: u64,
}

/// The thread of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Recorder {
    /// Its number for the system.
    pub(crate) thread: u32,
    pub(crate) name: String,
}

/// Makes text of a record: events of the format that Chrome and Perfetto read, divided by `,\n`. The number is how far
/// the clock of rank 0's host is ahead, in nanoseconds.
pub(crate) type SpanFormat = fn(&TraceSpan, &Recorder, i64, &mut String);

impl TraceSpan {
    fn words(&self) -> [u64; WORDS] {
        let TraceSpan { kind, lane, of, times, words } = *self;
        let first = u64::from(kind) | u64::from(lane) << 8;
        let ranks = u64::from(of.track) | u64::from(of.rank) << 32;
        [first, ranks, of.communicator, times.0, times.1, words[0], words[1], words[2]]
    }

    fn of_words(words: [u64; WORDS]) -> TraceSpan {
        let [first, ranks, communicator, begun, ended, ..] = words;
        let low = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
        TraceSpan {
            kind: u8::try_from(first & 0xff).unwrap_or(0),
            lane: u16::try_from(first >> 8 & 0xffff).unwrap_or(0),
            of: SpanOwner { track: low(ranks), rank: low(ranks >> 32), communicator },
            times: (begun, ended),
            words: [words[5], words[6], words[7]],
        }
    }
}

/// Words of a record: a line of the cache.
const WORDS: usize = 8;
/// Records of a thread's ring: 1 MiB, a hundredth of a second of the shortest calls.
const RECORDS: u64 = 1 << 14;
const RING_WORDS: usize = (1 << 14) * WORDS;

/// The records of one thread, which it writes and the writer reads.
#[derive(Debug)]
struct Track {
    recorder: Recorder,
    words: Box<[AtomicU64]>,
    /// Records written.
    written: AtomicU64,
    /// Records read.
    read: AtomicU64,
    /// Records that found no room.
    lost: AtomicU64,
}

impl Track {
    fn of_this_thread() -> Track {
        let (thread, named) = (host::thread_id(), std::thread::current());
        let name = named.name().unwrap_or("a thread").to_owned();
        let words = (0..RING_WORDS).map(|_| AtomicU64::new(0)).collect();
        let none = || AtomicU64::new(0);
        Track { recorder: Recorder { thread, name }, words, written: none(), read: none(), lost: none() }
    }

    fn place(&self, record: u64) -> &[AtomicU64] {
        // Below the number of records, which are in memory.
        let first = usize::try_from(record % RECORDS).unwrap_or(0) * WORDS;
        &self.words[first..first + WORDS]
    }

    /// Writes a record; whether the writer is to be woken.
    fn write(&self, span: &TraceSpan) -> bool {
        // Relaxed: this thread alone writes it.
        let written = self.written.load(Ordering::Relaxed);
        // Pairs with the release of `drain`: what the writer has read may be overwritten.
        let waiting = written - self.read.load(Ordering::Acquire);
        if waiting >= RECORDS {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.place(written).iter().zip(span.words()).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        // Pairs with the acquire of `drain`, which otherwise would read words that are not there yet.
        self.written.store(written + 1, Ordering::Release);
        waiting == RECORDS / 2
    }

    /// Hands what has been written to `take`, oldest first.
    fn drain(&self, mut take: impl FnMut(&TraceSpan)) {
        let read = self.read.load(Ordering::Relaxed);
        let written = self.written.load(Ordering::Acquire);
        for record in read..written {
            let mut words = [0; WORDS];
            words.iter_mut().zip(self.place(record)).for_each(|(word, place)| *word = place.load(Ordering::Relaxed));
            take(&TraceSpan::of_words(words));
            // Pairs with the acquire of `write`.
            self.read.store(record + 1, Ordering::Release);
        }
    }
}

/// What the process records.
#[derive(Debug)]
struct Tracer {
    tracks: Mutex<Vec<Arc<Track>>>,
    file: Mutex<TraceFile>,
    format: SpanFormat,
    /// How far the clock of rank 0's host is ahead of this one's, and how uncertain that is, in nanoseconds.
    clock: Mutex<Option<(i64, u64)>>,
    /// Rung where a ring is half full, and where a rank leaves.
    bell: primitive::AtomicU64,
    /// How often the bell had rung before all that was recorded then was written.
    answered: primitive::AtomicU64,
}

/// That of this process. A forked child begins without: it has a file of its own, and no writer yet.
static TRACER: PerProcess<Tracer> = PerProcess::new();
/// Whether the process has tried to begin.
static BEGUN: PerProcess<Mutex<bool>> = PerProcess::new();
/// [`CALLS`], and [`STEPS`] where the steps of plans are recorded too.
static RECORDED: AtomicU8 = AtomicU8::new(0);
const CALLS: u8 = 1;
const STEPS: u8 = 2;

thread_local! {
    /// The ring of this thread, and the process that made it.
    static TRACK: RefCell<Option<(Birthplace, Arc<Track>)>> = const { RefCell::new(None) };
}

/// Begins to record to the file that `pattern` names, if there is one, and the steps of plans too where `has_steps`:
/// the first communicator of the process decides. `rank` is the one that is in the file's name; `None` where the ranks
/// are threads. What fails is told: the communicator works without.
pub(crate) fn install(pattern: Option<&Path>, has_steps: bool, rank: Option<u32>, format: SpanFormat) {
    let Some(pattern) = pattern else { return };
    // Ranks that are threads come at the same time.
    let mut known = BEGUN.get_or_init(Mutex::default).lock();
    if !std::mem::replace(&mut *known, true)
        && let Err(error) = begin(pattern, has_steps, rank, format)
    {
        super::tell(&format!("RSCCL_TRACE: {error}: nothing is recorded"));
    }
}

fn begin(pattern: &Path, has_steps: bool, rank: Option<u32>, format: SpanFormat) -> Result<()> {
    let file = Mutex::new(TraceFile::open(pattern, rank)?);
    let tracer = TRACER.get_or_init(|| Tracer::new(file, format));
    // It lives as long as the process.
    drop(thread::spawn("rsccl trace", || tracer.serve())?);
    // Relaxed: a thread that sees it late records nothing yet.
    RECORDED.store(if has_steps { CALLS | STEPS } else { CALLS }, Ordering::Relaxed);
    super::hear_calls(super::HEARD_BY_TRACE);
    Ok(())
}

/// Whether anything is recorded.
#[inline]
pub(crate) fn is_on() -> bool {
    RECORDED.load(Ordering::Relaxed) != 0
}

/// Whether the steps of plans are.
#[inline]
pub(crate) fn has_steps() -> bool {
    RECORDED.load(Ordering::Relaxed) & STEPS != 0
}

/// The time for a record.
#[inline]
pub(crate) fn now() -> u64 {
    clock::monotonic_nanoseconds()
}

/// The clock of rank 0's host is ahead of this one's by so many nanoseconds, as far as is known. The first communicator
/// decides.
pub(crate) fn align(ahead: i64, uncertain: u64) {
    if let Some(tracer) = TRACER.get() {
        tracer.align(ahead, uncertain);
    }
}

/// Records what this thread has done.
pub(crate) fn record(span: &TraceSpan) {
    let Some(tracer) = TRACER.get() else { return };
    let is_full = TRACK.try_with(|track| {
        let mut track = track.try_borrow_mut().ok()?;
        match &*track {
            Some((birthplace, track)) if birthplace.is_here() => Some(track.write(span)),
            _ => {
                let (_, made) = track.insert((Birthplace::here(), Arc::new(Track::of_this_thread())));
                tracer.tracks.lock().push(Arc::clone(made));
                Some(made.write(span))
            }
        }
    });
    if let Ok(Some(true)) = is_full {
        tracer.ring();
    }
}

/// Has all written that was recorded: a rank leaves, and the process may end. Waits for the writer, but not for long: its
/// file system may hang.
pub(crate) fn flush() {
    if let Some(tracer) = TRACER.get().filter(|_| is_on()) {
        let _late = tracer.flush(FLUSH_LIMIT);
    }
}

impl Tracer {
    fn new(file: Mutex<TraceFile>, format: SpanFormat) -> Tracer {
        let none = || primitive::AtomicU64::new(0);
        Tracer { tracks: Mutex::default(), file, format, clock: Mutex::default(), bell: none(), answered: none() }
    }

    fn align(&self, ahead: i64, uncertain: u64) {
        // Not the file's lock: a file system that hangs would hold up the init.
        self.clock.lock().get_or_insert((ahead, uncertain));
    }

    /// Wakes the writer; the number of this time.
    fn ring(&self) -> u64 {
        // Release: pairs with the acquire of `serve`, which then sees what this thread has recorded.
        let number = self.bell.fetch_add(1, Ordering::Release) + 1;
        futex::wake_all(&self.bell);
        number
    }

    /// Whether all that this thread has recorded is written within `limit`.
    fn flush(&self, limit: Duration) -> bool {
        let (number, until) = (self.ring(), clock::now() + limit);
        loop {
            // Relaxed: the writer has no more to tell.
            let answered = self.answered.load(Ordering::Relaxed);
            let left = until.saturating_duration_since(clock::now());
            if answered >= number || left.is_zero() {
                return answered >= number;
            }
            futex::wait(&self.answered, answered, left);
        }
    }

    fn serve(&self) {
        loop {
            // Acquire: see `ring`.
            let rung = self.bell.load(Ordering::Acquire);
            self.write();
            self.answered.store(rung, Ordering::Relaxed);
            futex::wake_all(&self.answered);
            futex::wait(&self.bell, rung, PAUSE);
        }
    }

    /// Makes text of what is in the rings, and writes that.
    fn write(&self) {
        // One at a time reads the rings.
        let mut file = self.file.lock();
        let tracks = self.tracks.lock().clone();
        let clock = *self.clock.lock();
        let ahead = clock.map_or(0, |(ahead, _)| ahead);
        if let Some((ahead, uncertain)) = clock {
            file.note_clock(ahead, uncertain);
        }
        for track in &tracks {
            track.drain(|span| file.add(span, &track.recorder, (self.format, ahead)));
            let lost = track.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                file.note_lost(&track.recorder, lost, now(), ahead);
            }
        }
        file.write();
        drop(tracks);
        // Those of threads that have ended and whose records are in the file.
        self.tracks.lock().retain(|track| {
            let has_thread = Arc::strong_count(track) > 1;
            // Pairs with the release by which the thread gave its track back: its last record is seen.
            fence(Ordering::Acquire);
            has_thread || track.read.load(Ordering::Relaxed) != track.written.load(Ordering::Relaxed)
        });
    }
}

/// Between two looks of the writer: what a killed process may lose.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a rank that leaves waits for the writer.
const FLUSH_LIMIT: Duration = Duration::from_secs(2);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_hangs_holds_no_rank_up() {
        let folder = tempfile::tempdir().unwrap();
        let file = TraceFile::open(&folder.path().join("trace"), None).unwrap();
        let tracer = Tracer::new(Mutex::new(file), |_, _, _, _| {});
        // As the writer has it while its file system hangs.
        let _held = tracer.file.lock();
        tracer.align(5, 1);
        tracer.align(6, 1);
        assert_eq!(*tracer.clock.lock(), Some((5, 1)), "the first one decides");
        assert!(!tracer.flush(Duration::from_millis(20)));
    }
}
