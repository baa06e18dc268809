//! Merges the ranks' output: whole lines, each with its rank in front unless the user wants none, in bounded memory.
//! The beginning of a line whose end does not come is shown after a moment: it may be a question.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::ops::{Index, IndexMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use rsccl::internals::sys::clock;
use rsccl::internals::sys::process::PIPE_ROOM_BYTES;
use rsccl::internals::sys::writing;

/// A pipe from a rank, split into lines.
#[derive(Debug)]
pub(crate) struct Inlet {
    pipe: File,
    lines: Lines,
    /// A file that gets the same bytes unchanged.
    log: Option<File>,
    /// When the last bytes came.
    came_at: Instant,
}

impl Inlet {
    pub(crate) fn new(pipe: impl Into<OwnedFd>, speaker: Speaker, log: Option<File>) -> Inlet {
        Inlet { pipe: File::from(pipe.into()), lines: Lines::new(speaker), log, came_at: clock::now() }
    }

    /// Reads what has arrived into `outlet` and yields the number of bytes; `None` at the end. Call it when the pipe is
    /// ready: then it does not block.
    pub(crate) fn pass_on(&mut self, outlet: &mut Outlet) -> Option<usize> {
        let mut bytes = [0; READ_BYTES];
        match self.pipe.read(&mut bytes) {
            Ok(0) => None,
            Ok(count) => {
                if let Some(log) = &mut self.log
                    && let Err(error) = writing::without_signal(|| log.write_all(&bytes[..count]))
                {
                    let rank = self.lines.speaker.rank;
                    outlet.say(&format!("rsccl run: rank {rank}'s log file cannot be written: {error}"));
                    self.log = None;
                }
                self.lines.feed(&bytes[..count], &mut outlet.merged);
                self.came_at = clock::now();
                Some(count)
            }
            // A pipe that fails counts as ended.
            Err(error) => matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock).then_some(0),
        }
    }

    /// When the line that has begun is to be shown without its end, if one has.
    pub(crate) fn show_at(&self) -> Option<Instant> {
        (!self.lines.begun.is_empty()).then(|| self.came_at + LINE_PATIENCE)
    }

    /// Shows the line that has begun, if its end does not come.
    pub(crate) fn show_begun(&mut self, now: Instant, outlet: &mut Outlet) {
        if self.show_at().is_some_and(|moment| now >= moment) {
            self.lines.show(&mut outlet.merged);
        }
    }

    /// Writes the last line, if it has no end of line.
    pub(crate) fn finish(mut self, outlet: &mut Outlet) {
        self.lines.finish(&mut outlet.merged);
    }
}

impl AsFd for Inlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }
}

/// The launcher's own output, with the bytes that are not written yet.
#[derive(Debug)]
pub(crate) struct Outlet {
    file: File,
    merged: Merged,
    taken: usize,
    end: Option<OutputEnd>,
    /// Whether somebody may wait for the beginning of a line: not if the output is a file.
    is_watched: bool,
}

/// Why an outlet takes nothing more.
#[derive(Debug)]
pub(crate) enum OutputEnd {
    /// Its reader has gone.
    ReaderGone,
    /// It cannot be written, for instance because a disk is full.
    Failed(std::io::Error),
}

impl Outlet {
    pub(crate) fn new(stream: impl AsFd, prefix: Prefix) -> std::io::Result<Outlet> {
        let file = File::from(stream.as_fd().try_clone_to_owned()?);
        let is_watched = !file.metadata()?.is_file();
        Ok(Outlet { file, merged: Merged { bytes: Vec::new(), open: None, prefix }, taken: 0, end: None, is_watched })
    }

    /// Whether it should get no more bytes for now. Ranks then block in their writes, as with any slow reader.
    pub(crate) fn is_full(&self) -> bool {
        self.merged.bytes.len() - self.taken >= MAX_PENDING_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.merged.bytes.len() == self.taken
    }

    /// Whether somebody may wait for the beginning of a line.
    pub(crate) fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Why it takes nothing more, if it does not.
    pub(crate) fn end(&self) -> Option<&OutputEnd> {
        self.end.as_ref()
    }

    /// Adds a line of the launcher.
    pub(crate) fn say(&mut self, line: &str) {
        self.merged.break_off();
        self.merged.bytes.extend_from_slice(line.as_bytes());
        self.merged.bytes.push(b'\n');
    }

    /// Drops the bytes that are not written yet.
    pub(crate) fn give_up(&mut self) {
        self.merged.bytes.clear();
        self.taken = 0;
    }

    /// Writes as much as a ready stream takes without blocking.
    pub(crate) fn write_some(&mut self) {
        let rest = &self.merged.bytes[self.taken..];
        match self.file.write(&rest[..rest.len().min(PIPE_ROOM_BYTES)]) {
            Ok(count) => self.taken += count,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) if error.kind() == ErrorKind::BrokenPipe => self.end = Some(OutputEnd::ReaderGone),
            Err(error) => self.end = Some(OutputEnd::Failed(error)),
        }
        if self.end.is_some() || self.is_empty() {
            self.give_up();
        } else if self.taken >= MAX_PENDING_BYTES {
            self.merged.bytes.drain(..self.taken);
            self.taken = 0;
        }
    }
}

impl AsFd for Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The outlets of standard output and standard error, by the numbers [`STDOUT`] and [`STDERR`]. One outlet serves both
/// where they are one terminal, pipe or file: two would not know of each other's lines that have no end yet.
#[derive(Debug)]
pub(crate) struct Outlets(Vec<Outlet>);

impl Outlets {
    pub(crate) fn of_this_process(prefix: Prefix) -> std::io::Result<Outlets> {
        let stdout = Outlet::new(std::io::stdout(), prefix)?;
        let stderr = Outlet::new(std::io::stderr(), prefix)?;
        let identity = |outlet: &Outlet| outlet.file.metadata().map(|data| (data.dev(), data.ino()));
        let is_one = identity(&stdout)? == identity(&stderr)?;
        Ok(Outlets(if is_one { vec![stdout] } else { vec![stdout, stderr] }))
    }

    /// Each outlet once, with the number of a stream that it serves.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &Outlet)> {
        self.0.iter().enumerate()
    }

    pub(crate) fn are_empty(&self) -> bool {
        self.0.iter().all(Outlet::is_empty)
    }

    /// Drops the bytes that are not written yet.
    pub(crate) fn give_up(&mut self) {
        self.0.iter_mut().for_each(Outlet::give_up);
    }
}

impl Index<usize> for Outlets {
    type Output = Outlet;

    fn index(&self, stream: usize) -> &Outlet {
        &self.0[stream.min(self.0.len() - 1)]
    }
}

impl IndexMut<usize> for Outlets {
    fn index_mut(&mut self, stream: usize) -> &mut Outlet {
        let last = self.0.len() - 1;
        &mut self.0[stream.min(last)]
    }
}

/// What stands before each line of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// The rank's number.
    Rank,
    /// Nothing: what a rank writes is passed on unchanged while no other rank's line comes between.
    Nothing,
}

/// Which of a rank's two streams a line comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Speaker {
    pub(crate) rank: usize,
    pub(crate) stream: usize,
}

/// The output of all ranks in one stream.
#[derive(Debug)]
struct Merged {
    bytes: Vec<u8>,
    /// Whose line has begun and has no end yet.
    open: Option<Speaker>,
    prefix: Prefix,
}

impl Merged {
    /// Appends a part of a line, and the end of the line where `ended`. A line of another speaker that has no end yet
    /// is broken off; what follows of it begins a line of its own.
    fn put(&mut self, speaker: Speaker, text: &[u8], ended: bool) {
        if self.open != Some(speaker) {
            self.break_off();
            if self.prefix == Prefix::Rank {
                self.bytes.extend_from_slice(format!("[{}] ", speaker.rank).as_bytes());
            }
        }
        self.bytes.extend_from_slice(text);
        if ended {
            self.bytes.push(b'\n');
        }
        self.open = (!ended).then_some(speaker);
    }

    fn break_off(&mut self) {
        if self.open.take().is_some() {
            self.bytes.push(b'\n');
        }
    }
}

/// The line of a speaker that has begun.
#[derive(Debug)]
struct Lines {
    speaker: Speaker,
    /// What was not passed on yet.
    begun: Vec<u8>,
    /// Bytes of the line that were passed on: a question that waits for its answer.
    shown_bytes: usize,
}

impl Lines {
    fn new(speaker: Speaker) -> Lines {
        Lines { speaker, begun: Vec::new(), shown_bytes: 0 }
    }

    /// Appends to `out` every line that `bytes` complete. A line longer than [`MAX_LINE_BYTES`] is split; without
    /// prefixes its pieces follow each other in one line, unless another speaker's line comes between.
    fn feed(&mut self, bytes: &[u8], out: &mut Merged) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (content, ended) = match piece.strip_suffix(b"\n") {
                Some(content) => (content, true),
                None => (piece, false),
            };
            let mut rest = content;
            while self.length(out.prefix) + rest.len() > MAX_LINE_BYTES {
                let (now, later) = rest.split_at(MAX_LINE_BYTES - self.length(out.prefix));
                self.begun.extend_from_slice(now);
                match out.prefix {
                    Prefix::Rank => self.put(out),
                    Prefix::Nothing => self.show(out),
                }
                rest = later;
            }
            self.begun.extend_from_slice(rest);
            if ended {
                self.put(out);
            }
        }
    }

    /// How long the line is so far, as [`MAX_LINE_BYTES`] counts it.
    fn length(&self, prefix: Prefix) -> usize {
        self.begun.len() + if prefix == Prefix::Rank { self.shown_bytes } else { 0 }
    }

    /// Passes on what has come of a line that has no end yet.
    fn show(&mut self, out: &mut Merged) {
        if !self.begun.is_empty() {
            out.put(self.speaker, &self.begun, false);
            self.shown_bytes += self.begun.len();
            self.begun.clear();
        }
    }

    /// Passes on the last line. Without prefixes it stays without an end until another speaker's line comes.
    fn finish(&mut self, out: &mut Merged) {
        match out.prefix {
            Prefix::Nothing => self.show(out),
            Prefix::Rank if !self.begun.is_empty() => self.put(out),
            Prefix::Rank if out.open == Some(self.speaker) => out.break_off(),
            Prefix::Rank => {}
        }
    }

    fn put(&mut self, out: &mut Merged) {
        // The beginning of this line was shown and broken off, and nothing but its end has come since: the line is
        // complete already.
        let is_complete = self.shown_bytes > 0 && self.begun.is_empty() && out.open != Some(self.speaker);
        if !is_complete {
            out.put(self.speaker, &self.begun, true);
        }
        self.begun.clear();
        self.shown_bytes = 0;
    }
}

pub(crate) const STDOUT: usize = 0;
pub(crate) const STDERR: usize = 1;
/// The longest line that is not split.
const MAX_LINE_BYTES: usize = 16 << 10;
/// The most unwritten output; beyond it the ranks have to wait.
const MAX_PENDING_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 16 << 10;
/// How long the end of a line is waited for. A program that writes a line in pieces does it faster, a person does not
/// notice.
const LINE_PATIENCE: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(rank: usize) -> Lines {
        Lines::new(Speaker { rank, stream: 0 })
    }

    fn merged(prefix: Prefix) -> Merged {
        Merged { bytes: Vec::new(), open: None, prefix }
    }

    fn fed(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (lines(3), merged(Prefix::Rank));
        pieces.iter().for_each(|piece| lines.feed(piece, &mut out));
        lines.finish(&mut out);
        out.bytes
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        assert_eq!(fed(&[b"a", b"b\nc", b"\n\nd"]), b"[3] ab\n[3] c\n[3] \n[3] d\n");
        assert_eq!(fed(&[b"\xff\x00\n"]), b"[3] \xff\x00\n");
        assert_eq!(fed(&[]), b"");
    }

    #[test]
    fn long_lines_go_out_in_pieces() {
        let long = vec![b'x'; 2 * MAX_LINE_BYTES + 5];
        let out = fed(&[&long, b"\n"]);
        let lines: Vec<usize> = out.split(|byte| *byte == b'\n').map(<[u8]>::len).collect();
        assert_eq!(lines, [MAX_LINE_BYTES + 4, MAX_LINE_BYTES + 4, 9, 0]);
        let exact = vec![b'x'; MAX_LINE_BYTES];
        assert_eq!(fed(&[&exact, b"\n"]).len(), MAX_LINE_BYTES + 5);
    }

    #[test]
    fn an_outlet_takes_what_fits_and_notices_the_end() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut outlet = Outlet::new(&writer, Prefix::Rank).unwrap();
        drop(writer);
        outlet.merged.bytes = vec![b'x'; 10_000];
        outlet.write_some();
        assert_eq!(outlet.merged.bytes.len() - outlet.taken, 10_000 - PIPE_ROOM_BYTES);
        drop(reader);
        outlet.write_some();
        assert!(matches!(outlet.end(), Some(OutputEnd::ReaderGone)) && outlet.is_empty());
        let mut full = Outlet::new(File::options().write(true).open("/dev/full").unwrap(), Prefix::Rank).unwrap();
        full.say("a line");
        full.write_some();
        assert!(matches!(full.end(), Some(OutputEnd::Failed(error)) if error.kind() == ErrorKind::StorageFull));
    }

    #[test]
    fn a_line_that_has_begun_is_shown_and_goes_on_where_no_other_has_come() {
        let (mut one, mut other, mut out) = (lines(1), lines(2), merged(Prefix::Rank));
        one.feed(b"name? ", &mut out);
        assert_eq!(out.bytes, b"");
        one.show(&mut out);
        one.show(&mut out);
        one.feed(b"thanks\n", &mut out);
        assert_eq!(std::mem::take(&mut out.bytes), b"[1] name? thanks\n");
        one.feed(b"a", &mut out);
        one.show(&mut out);
        other.feed(b"b\n", &mut out);
        one.feed(b"c\nd", &mut out);
        one.show(&mut out);
        one.finish(&mut out);
        assert_eq!(std::mem::take(&mut out.bytes), b"[1] a\n[2] b\n[1] c\n[1] d\n");
        // Only the end was missing, and came by the other's line.
        one.feed(b"e", &mut out);
        one.show(&mut out);
        other.feed(b"f\n", &mut out);
        one.feed(b"\n", &mut out);
        one.finish(&mut out);
        assert_eq!(out.bytes, b"[1] e\n[2] f\n");
    }

    #[test]
    fn without_prefixes_the_bytes_of_one_rank_are_unchanged_and_lines_of_several_stay_apart() {
        let long = vec![b'x'; 2 * MAX_LINE_BYTES + 5];
        let (mut one, mut other, mut out) = (lines(1), lines(2), merged(Prefix::Nothing));
        let pieces: [&[u8]; 5] = [b"a", b"b\n\nc", &long, b"\n\xff", b"end"];
        pieces.iter().for_each(|piece| one.feed(piece, &mut out));
        one.finish(&mut out);
        assert_eq!(std::mem::take(&mut out.bytes), pieces.concat());
        other.feed(b"other\n", &mut out);
        assert_eq!(out.bytes, b"\nother\n");
    }
}
