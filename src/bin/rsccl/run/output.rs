//! Merges the ranks' output: whole lines, each with its rank in front, in bounded memory. The beginning of a line whose
//! end does not come is shown after a moment: it may be a question.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
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
    pub(crate) fn new(pipe: impl Into<OwnedFd>, rank: usize, log: Option<File>) -> Inlet {
        Inlet { pipe: File::from(pipe.into()), lines: Lines::new(rank), log, came_at: clock::now() }
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
                    outlet.say(&format!("rsccl run: rank {}'s log file cannot be written: {error}", self.lines.rank));
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
    pub(crate) fn new(stream: impl AsFd) -> std::io::Result<Outlet> {
        let file = File::from(stream.as_fd().try_clone_to_owned()?);
        let is_watched = !file.metadata()?.is_file();
        Ok(Outlet { file, merged: Merged::default(), taken: 0, end: None, is_watched })
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

/// The output of all ranks in one stream, with a rank's number before each line.
#[derive(Debug, Default)]
struct Merged {
    bytes: Vec<u8>,
    /// The rank whose line has begun and has no end yet.
    open: Option<usize>,
}

impl Merged {
    /// Appends a part of a line of `rank`, and the end of the line where `ended`. A line of another rank that has no
    /// end yet is broken off; what follows of it gets a number of its own.
    fn put(&mut self, rank: usize, text: &[u8], ended: bool) {
        if self.open != Some(rank) {
            self.break_off();
            self.bytes.extend_from_slice(prefix(rank).as_bytes());
        }
        self.bytes.extend_from_slice(text);
        if ended {
            self.bytes.push(b'\n');
        }
        self.open = (!ended).then_some(rank);
    }

    fn break_off(&mut self) {
        if self.open.take().is_some() {
            self.bytes.push(b'\n');
        }
    }
}

/// What stands before each line of a rank.
fn prefix(rank: usize) -> String {
    format!("[{rank}] ")
}

/// The line of a rank that has begun.
#[derive(Debug)]
struct Lines {
    rank: usize,
    /// What was not passed on yet.
    begun: Vec<u8>,
    /// Bytes of the line that were passed on: a question that waits for its answer.
    shown_bytes: usize,
}

impl Lines {
    fn new(rank: usize) -> Lines {
        Lines { rank, begun: Vec::new(), shown_bytes: 0 }
    }

    /// Appends to `out` every line that `bytes` complete. A line longer than [`MAX_LINE_BYTES`] is split.
    fn feed(&mut self, bytes: &[u8], out: &mut Merged) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (content, ended) = match piece.strip_suffix(b"\n") {
                Some(content) => (content, true),
                None => (piece, false),
            };
            let mut rest = content;
            while self.shown_bytes + self.begun.len() + rest.len() > MAX_LINE_BYTES {
                let (now, later) = rest.split_at(MAX_LINE_BYTES - self.shown_bytes - self.begun.len());
                self.begun.extend_from_slice(now);
                self.put(out);
                rest = later;
            }
            self.begun.extend_from_slice(rest);
            if ended {
                self.put(out);
            }
        }
    }

    /// Passes on what has come of a line that has no end yet.
    fn show(&mut self, out: &mut Merged) {
        if !self.begun.is_empty() {
            out.put(self.rank, &self.begun, false);
            self.shown_bytes += self.begun.len();
            self.begun.clear();
        }
    }

    fn finish(&mut self, out: &mut Merged) {
        if !self.begun.is_empty() {
            self.put(out);
        } else if out.open == Some(self.rank) {
            out.break_off();
        }
    }

    fn put(&mut self, out: &mut Merged) {
        // Of a line whose beginning was shown and broken off, an end without anything before it says nothing.
        if !(self.shown_bytes > 0 && self.begun.is_empty() && out.open != Some(self.rank)) {
            out.put(self.rank, &self.begun, true);
        }
        self.begun.clear();
        self.shown_bytes = 0;
    }
}

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

    fn fed(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new(3), Merged::default());
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
        let mut outlet = Outlet::new(&writer).unwrap();
        drop(writer);
        outlet.merged.bytes = vec![b'x'; 10_000];
        outlet.write_some();
        assert_eq!(outlet.merged.bytes.len() - outlet.taken, 10_000 - PIPE_ROOM_BYTES);
        drop(reader);
        outlet.write_some();
        assert!(matches!(outlet.end(), Some(OutputEnd::ReaderGone)) && outlet.is_empty());
        let mut full = Outlet::new(File::options().write(true).open("/dev/full").unwrap()).unwrap();
        full.say("a line");
        full.write_some();
        assert!(matches!(full.end(), Some(OutputEnd::Failed(error)) if error.kind() == ErrorKind::StorageFull));
    }

    #[test]
    fn a_line_that_has_begun_is_shown_and_goes_on_where_no_other_has_come() {
        let (mut one, mut other, mut out) = (Lines::new(1), Lines::new(2), Merged::default());
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
}
