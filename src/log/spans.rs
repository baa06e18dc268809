//! The trace that `RSCCL_TRACE` asks for: what the program's threads did for which rank, and when.
//!
//! A thread that records something writes eight words to a ring of its own ([`Track`]) and goes on: no lock, no
//! allocation but in the first round through the ring, no system call but one to wake the writer where half of the ring
//! is full. A thread of the process, the writer, takes the records out of the rings. Text costs a microsecond a record,
//! more than a short call takes: so the writer makes text at once of a few records only, copies many as they are to a
//! file beside the trace (`spool`), and makes text of these when the ranks record little, or leave.
//! What comes faster than it copies is counted, and the file says how much was lost where. How a record reads as text
//! is for the floor that knows what it is of: [`SpanFormat`].
//!
//! Whether anything is recorded is one bit of the word that each call reads for the lines of the log
//! ([`super::hears_calls`]): where it is not, a call takes no instruction for it.

use std::cell::RefCell;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::Result;
use crate::log::trace_file::TraceFile;
use crate::sync::primitive;
use crate::sync::primitive::statics::Mutex;
use crate::sys::fork::{Birthplace, PerProcess};
use crate::sys::{clock, futex, given, host, thread};

/// Something that a thread has done for a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TraceSpan {
    /// What it is, as the one who records and the [`SpanFormat`] understand it.
    pub(crate) kind: u8,
    /// Of a plan's lane: one more than its number, from [`REQUEST_LANES`] on those of requests; else 0.
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
    pub(super) fn words(&self) -> [u64; WORDS] {
        let TraceSpan { kind, lane, of, times, words } = *self;
        let first = u64::from(kind) | u64::from(lane) << 8;
        let ranks = u64::from(of.track) | u64::from(of.rank) << 32;
        [first, ranks, of.communicator, times.0, times.1, words[0], words[1], words[2]]
    }

    pub(super) fn of_words(words: [u64; WORDS]) -> TraceSpan {
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
pub(super) const WORDS: usize = 8;
/// Records of a thread's ring: at most 2 MiB, a hundredth of a second of the shortest calls.
const RECORDS: u64 = 1 << 15;
/// From so many records in a ring on the writer is woken.
const HALF: u64 = RECORDS / 2;
/// Records of a part of a ring, which is made when it is first written.
const PART: u64 = 1 << 10;
const PARTS: usize = 1 << 5;
const PART_WORDS: usize = (1 << 10) * WORDS;
const _: () = assert!(PART * PARTS as u64 == RECORDS && PART_WORDS as u64 == PART * WORDS as u64);

/// A number with cache lines of its own: who counts it does not slow down who reads its neighbour.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Apart(AtomicU64);

/// The records of one thread, which it writes and the writer reads.
#[derive(Debug)]
pub(super) struct Track {
    pub(super) recorder: Recorder,
    parts: [OnceLock<Box<[AtomicU64]>>; PARTS],
    /// Records written.
    written: Apart,
    /// The number of the record before which this thread looks how far the writer has come. It alone uses it.
    look_at: AtomicU64,
    /// Records that found no room.
    lost: AtomicU64,
    /// Records read.
    read: Apart,
}

impl Track {
    fn of_this_thread() -> Track {
        let (thread, named) = (host::thread_id(), std::thread::current());
        let name = named.name().unwrap_or("a thread").to_owned();
        Track::of(Recorder { thread, name })
    }

    pub(super) fn of(recorder: Recorder) -> Track {
        let parts = std::array::from_fn(|_| OnceLock::new());
        let (look_at, lost) = (AtomicU64::new(HALF), AtomicU64::new(0));
        Track { recorder, parts, written: Apart::default(), look_at, lost, read: Apart::default() }
    }

    fn place(&self, record: u64) -> &[AtomicU64] {
        let place = record % RECORDS;
        // Below the numbers of parts and of their records, which are in memory.
        let (part, first) = (usize::try_from(place / PART).unwrap_or(0), usize::try_from(place % PART).unwrap_or(0));
        let made = || (0..PART_WORDS).map(|_| AtomicU64::new(0)).collect();
        &self.parts[part].get_or_init(made)[first * WORDS..][..WORDS]
    }

    /// Writes a record; whether the writer is to be woken.
    pub(super) fn write(&self, span: &TraceSpan) -> bool {
        // Relaxed: this thread alone writes it, as it does `look_at`.
        let written = self.written.0.load(Ordering::Relaxed);
        let mut is_half_full = false;
        if written >= self.look_at.load(Ordering::Relaxed) {
            // Pairs with the release of `drain`: what the writer has read may be overwritten.
            let read = self.read.0.load(Ordering::Acquire);
            is_half_full = written - read >= HALF;
            // It is woken once, and then comes soon: the next look is where the ring would be full.
            self.look_at.store(read + if is_half_full { RECORDS } else { HALF }, Ordering::Relaxed);
            if written - read >= RECORDS {
                self.lost.fetch_add(1, Ordering::Relaxed);
                return false;
            }
        }
        self.place(written).iter().zip(span.words()).for_each(|(place, word)| place.store(word, Ordering::Relaxed));
        // Pairs with the acquire of `drain`, which otherwise would read words that are not there yet.
        self.written.0.store(written + 1, Ordering::Release);
        is_half_full
    }

    /// How many records wait to be read.
    fn waiting(&self) -> u64 {
        self.written.0.load(Ordering::Relaxed) - self.read.0.load(Ordering::Relaxed)
    }

    /// Hands what has been written to `take`, oldest first, but at most so many records; how many those were.
    pub(super) fn drain(&self, most: u64, mut take: impl FnMut(&[u64; WORDS])) -> u64 {
        let read = self.read.0.load(Ordering::Relaxed);
        let written = self.written.0.load(Ordering::Acquire).min(read.saturating_add(most));
        for record in read..written {
            let mut words = [0; WORDS];
            words.iter_mut().zip(self.place(record)).for_each(|(word, place)| *word = place.load(Ordering::Relaxed));
            take(&words);
        }
        // Pairs with the acquire of `write`. Once for all: each store takes the line away from the thread that records.
        self.read.0.store(written, Ordering::Release);
        written - read
    }

    /// How many records found no room since the last time.
    pub(super) fn take_lost(&self) -> u64 {
        self.lost.swap(0, Ordering::Relaxed)
    }
}

/// What the process records.
#[derive(Debug)]
struct Tracer {
    tracks: Mutex<Vec<Arc<Track>>>,
    file: Mutex<TraceFile>,
    /// Its name, and that of its records, for those who cannot wait for it.
    paths: [PathBuf; 2],
    format: SpanFormat,
    /// How far the clock of rank 0's host is ahead of this one's, and how uncertain that is, in nanoseconds.
    clock: Mutex<Option<(i64, u64)>>,
    /// Rung where a ring is half full, and where a rank leaves.
    bell: primitive::AtomicU64,
    /// How often a rank has asked for all text, as it left.
    asked: primitive::AtomicU64,
    /// How often one had asked before all that was recorded then was text in the file.
    answered: primitive::AtomicU64,
    /// Whether it was told that a rank has left before that.
    is_told: AtomicBool,
    /// Whether a request has the lane of this number.
    request_lanes: Mutex<Box<[bool]>>,
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
    let file = TraceFile::open(pattern, rank)?;
    let tracer = TRACER.get_or_init(|| Tracer::new(file, format));
    // It lives as long as the process.
    drop(thread::spawn("rsccl trace", || tracer.serve())?);
    // Where the system has no room for it, a process that ends with its communicators open leaves the file of records.
    let _is_called = given::at_exit(write_at_exit);
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

/// Lanes of plans that run as requests: several do at a time on one thread, and each has tracks of its own.
#[derive(Debug)]
pub(crate) struct RequestLanes(Range<usize>);

impl RequestLanes {
    /// So many lanes that nobody has; `None` where there are not as many.
    pub(crate) fn take(lanes: usize) -> Option<RequestLanes> {
        let mut taken = TRACER.get()?.request_lanes.lock();
        let first =
            (0..=taken.len().checked_sub(lanes)?).find(|first| taken[*first..][..lanes].iter().all(|is| !is))?;
        taken[first..][..lanes].fill(true);
        Some(RequestLanes(first..first + lanes))
    }

    /// The number that a record has of this lane.
    pub(crate) fn number(&self, lane: usize) -> u16 {
        u16::try_from(self.0.start + lane).map_or(u16::MAX, |lane| lane.saturating_add(REQUEST_LANES))
    }
}

impl Drop for RequestLanes {
    fn drop(&mut self) {
        if let Some(tracer) = TRACER.get() {
            tracer.request_lanes.lock()[self.0.clone()].fill(false);
        }
    }
}

/// The first number that a record has of a request's lane: plans of calls have fewer lanes, or the last ones share a
/// track.
pub(crate) const REQUEST_LANES: u16 = 512;
/// Lanes of all requests of a process that have tracks at a time. The numbers of tracks fit in 32 bits.
const MOST_REQUEST_LANES: usize = 511;

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

/// A rank of a communicator of this process, which may record. When the last one leaves, all of the trace is written:
/// the process may end. The others wait for nothing: those that are left go on to record, and the process's end waits.
#[derive(Debug)]
pub(crate) struct TraceUser {
    birthplace: Birthplace,
    has_left: AtomicBool,
}

/// Those that have not left. A forked child has none: what it has of its parent's may not be used.
static USERS: PerProcess<AtomicU64> = PerProcess::new();

impl TraceUser {
    pub(crate) fn enter() -> TraceUser {
        // Relaxed, here and below: what the last one waits for has an order of its own.
        USERS.get_or_init(AtomicU64::default).fetch_add(1, Ordering::Relaxed);
        TraceUser { birthplace: Birthplace::here(), has_left: AtomicBool::new(false) }
    }

    /// The rank has said goodbye.
    pub(crate) fn leave(&self) {
        if self.is_last() {
            flush("the end of the last communicator");
        }
    }

    /// Counts it out, once; whether there are no others.
    fn is_last(&self) -> bool {
        let counts = self.birthplace.is_here() && !self.has_left.swap(true, Ordering::Relaxed);
        counts && USERS.get().is_some_and(|users| users.fetch_sub(1, Ordering::Relaxed) == 1)
    }
}

impl Drop for TraceUser {
    fn drop(&mut self) {
        // One that has failed in its init: what it has recorded is written when the process ends.
        let _was_last = self.is_last();
    }
}

/// The process calls `exit`, perhaps with communicators that are open.
extern "C" fn write_at_exit() {
    flush("the process's call of exit");
}

/// Has all written that was recorded. Waits for the writer, but not for long: its file system may hang.
fn flush(since: &str) {
    if let Some(tracer) = TRACER.get().filter(|_| is_on())
        && !tracer.flush(FLUSH_LIMIT)
        && !tracer.is_told.swap(true, Ordering::Relaxed)
    {
        let (path, records) = (tracer.paths[0].display(), tracer.paths[1].display());
        super::tell(&format!(
            "RSCCL_TRACE: {path} was not whole {FLUSH_LIMIT:?} after {since}. If the process ends first, what was \
             copied by then is in {records}, and `rsccl trace merge` reads both"
        ));
    }
}

impl Tracer {
    fn new(file: TraceFile, format: SpanFormat) -> Tracer {
        let none = || primitive::AtomicU64::new(0);
        let paths = [file.path().to_owned(), file.records_path()];
        let (file, is_told) = (Mutex::new(file), AtomicBool::new(false));
        let (tracks, clock) = (Mutex::default(), Mutex::default());
        let request_lanes = Mutex::new(vec![false; MOST_REQUEST_LANES].into_boxed_slice());
        let (bell, asked, answered) = (none(), none(), none());
        Tracer { tracks, file, paths, format, clock, bell, asked, answered, is_told, request_lanes }
    }

    fn align(&self, ahead: i64, uncertain: u64) {
        // Not the file's lock: a file system that hangs would hold up the init.
        self.clock.lock().get_or_insert((ahead, uncertain));
    }

    /// Wakes the writer.
    fn ring(&self) {
        // Release: pairs with the acquire of `serve`, which then sees what this thread has recorded, and asked for.
        self.bell.fetch_add(1, Ordering::Release);
        futex::wake_all(&self.bell);
    }

    /// Whether all that this thread has recorded is text in the file within `limit`.
    fn flush(&self, limit: Duration) -> bool {
        let (number, until) = (self.asked.fetch_add(1, Ordering::Relaxed) + 1, clock::now() + limit);
        self.ring();
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
            let asked = self.asked.load(Ordering::Relaxed);
            let is_quiet = self.look();
            if asked > self.answered.load(Ordering::Relaxed) {
                // Up to what was recorded by now, or the ranks that go on could keep it here. Between two parts it
                // empties the rings.
                let goal = self.file.lock().spooled();
                while self.file.lock().make_text(self.format).is_some_and(|read| read < goal) {
                    self.look();
                }
                self.answered.store(asked, Ordering::Relaxed);
                futex::wake_all(&self.answered);
            } else if is_quiet {
                self.file.lock().make_text(self.format);
            }
            futex::wait(&self.bell, rung, PAUSE);
        }
    }

    /// Takes what is in the rings; whether that was little.
    fn look(&self) -> bool {
        // One at a time reads the rings.
        let mut file = self.file.lock();
        let tracks = self.tracks.lock().clone();
        let clock = *self.clock.lock();
        let ahead = clock.map_or(0, |(ahead, _)| ahead);
        if let Some((ahead, uncertain)) = clock {
            file.note_clock(ahead, uncertain);
        }
        let is_quiet = tracks.iter().map(|track| track.waiting()).sum::<u64>() <= FEW;
        file.take(&tracks, is_quiet, (self.format, ahead));
        drop(tracks);
        // Those of threads that have ended and whose records are in the file.
        self.tracks.lock().retain(|track| {
            let has_thread = Arc::strong_count(track) > 1;
            // Pairs with the release by which the thread gave its track back: its last record is seen.
            fence(Ordering::Acquire);
            has_thread || track.waiting() != 0
        });
        is_quiet
    }
}

/// Records of all threads between two looks of which text is made at once: it takes the writer a fiftieth of a
/// processor.
const FEW: u64 = 1 << 10;
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
        let tracer = Tracer::new(file, |_, _, _, _| {});
        // As the writer has it while its file system hangs.
        let _held = tracer.file.lock();
        tracer.align(5, 1);
        tracer.align(6, 1);
        assert_eq!(*tracer.clock.lock(), Some((5, 1)), "the first one decides");
        assert!(!tracer.flush(Duration::from_millis(20)));
    }

    #[test]
    fn the_last_user_of_a_process_is_the_last_to_leave_and_each_leaves_once() {
        // Tests of communicators in this process come and go meanwhile, so that nobody may be found to be the last;
        // these three hold the count above nothing as long as one of them has not left.
        let users = [(); 3].map(|()| TraceUser::enter());
        assert!(!users[0].is_last() && !users[1].is_last() && !users[1].is_last());
        let count = || USERS.get().map_or(0, |users| users.load(Ordering::Relaxed));
        assert!(count() >= 1);
        drop(users);
        assert!(count() < u64::MAX / 2, "nobody is counted out twice");
    }

    #[test]
    fn a_ring_loses_what_finds_no_room_and_goes_on() {
        let track = Track::of(Recorder { thread: 1, name: String::new() });
        let span = |at| {
            let of = SpanOwner::default();
            TraceSpan { kind: 1, lane: 0, of, times: (at, at), words: [0; 3] }
        };
        let mut bells = 0;
        let mut read = Vec::new();
        let mut drain = |most| track.drain(most, |words| read.push(TraceSpan::of_words(*words).times.0));
        for at in 0..RECORDS + 5 {
            bells += u64::from(track.write(&span(at)));
        }
        assert_eq!((bells, track.take_lost(), track.waiting()), (1, 5, RECORDS), "the writer is woken once");
        assert_eq!(drain(3), 3);
        for at in 0..4 {
            track.write(&span(RECORDS + at));
        }
        assert_eq!((track.take_lost(), drain(u64::MAX), track.waiting()), (1, RECORDS, 0));
        for at in RECORDS + 3..3 * RECORDS {
            track.write(&span(at));
            if at % 1000 == 0 {
                drain(u64::MAX);
            }
        }
        drain(u64::MAX);
        assert_eq!(read, (0..3 * RECORDS).collect::<Vec<_>>());
        assert_eq!(track.take_lost(), 0);
    }
}
