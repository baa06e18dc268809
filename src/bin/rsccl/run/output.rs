//! Merges the ranks' output: whole lines, each with its rank in front, in bounded memory.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rsccl::internals::sys::process::PIPE_ROOM_BYTES;
use rsccl::internals::sys::writing;

/// A pipe from a rank, split into lines.
#[derive(Debug)]
pub(crate) struct Inlet {
    pipe: File,
    lines: Lines,
    /// A file that gets the same bytes unchanged.
    log: Option<File>,
}

impl Inlet {
    pub(crate) fn new(pipe: impl Into<OwnedFd>, rank: usize, log: Option<File>) -> Inlet {
        Inlet { pipe: File::from(pipe.into()), lines: Lines::new(rank), log }
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
                    outlet.say(&format!("rsccl run: {}a log file cannot be written: {error}", self.lines.prefix));
                    self.log = None;
                }
                self.lines.feed(&bytes[..count], &mut outlet.pending);
                Some(count)
            }
            // A pipe that fails counts as ended.
            Err(error) => matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock).then_some(0),
        }
    }

    /// Writes the last line, if it has no end of line.
    pub(crate) fn finish(mut self, outlet: &mut Outlet) {
        self.lines.finish(&mut outlet.pending);
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
    pending: Vec<u8>,
    taken: usize,
    closed: bool,
}

impl Outlet {
    pub(crate) fn new(stream: impl AsFd) -> std::io::Result<Outlet> {
        let file = File::from(stream.as_fd().try_clone_to_owned()?);
        Ok(Outlet { file, pending: Vec::new(), taken: 0, closed: false })
    }

    /// Whether it should get no more bytes for now. Ranks then block in their writes, as with any slow reader.
    pub(crate) fn is_full(&self) -> bool {
        self.pending.len() - self.taken >= MAX_PENDING_BYTES
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pending.len() == self.taken
    }

    /// Whether its reader has gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Adds a line of the launcher.
    pub(crate) fn say(&mut self, line: &str) {
        self.pending.extend_from_slice(line.as_bytes());
        self.pending.push(b'\n');
    }

    /// Drops the bytes that are not written yet.
    pub(crate) fn give_up(&mut self) {
        self.pending.clear();
        self.taken = 0;
    }

    /// Writes as much as a ready stream takes without blocking.
    pub(crate) fn write_some(&mut self) {
        let rest = &self.pending[self.taken..];
        match self.file.write(&rest[..rest.len().min(PIPE_ROOM_BYTES)]) {
            Ok(count) => self.taken += count,
            Err(error) if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(_) => self.closed = true,
        }
        if self.closed || self.is_empty() {
            self.give_up();
        } else if self.taken >= MAX_PENDING_BYTES {
            self.pending.drain(..self.taken);
            self.taken = 0;
        }
    }
}

impl AsFd for Outlet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Bytes that do not form a whole line yet.
#[derive(Debug)]
struct Lines {
    prefix: String,
    begun: Vec<u8>,
}

impl Lines {
    fn new(rank: usize) -> Lines {
        Lines { prefix: format!("[{rank}] "), begun: Vec::new() }
    }

    /// Appends to `out` every line that `bytes` complete. A line longer than [`MAX_LINE_BYTES`] is split.
    fn feed(&mut self, bytes: &[u8], out: &mut Vec<u8>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (content, ended) = match piece.strip_suffix(b"\n") {
                Some(content) => (content, true),
                None => (piece, false),
            };
            let mut rest = content;
            while self.begun.len() + rest.len() > MAX_LINE_BYTES {
                let (now, later) = rest.split_at(MAX_LINE_BYTES - self.begun.len());
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

    fn finish(&mut self, out: &mut Vec<u8>) {
        if !self.begun.is_empty() {
            self.put(out);
        }
    }

    fn put(&mut self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.prefix.as_bytes());
        out.append(&mut self.begun);
        out.push(b'\n');
    }
}

/// The longest line that is not split.
const MAX_LINE_BYTES: usize = 16 << 10;
/// The most unwritten output; beyond it the ranks have to wait.
const MAX_PENDING_BYTES: usize = 1 << 20;
const READ_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn fed(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::new(3), Vec::new());
        pieces.iter().for_each(|piece| lines.feed(piece, &mut out));
        lines.finish(&mut out);
        out
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
        outlet.pending = vec![b'x'; 10_000];
        outlet.write_some();
        assert_eq!(outlet.pending.len() - outlet.taken, 10_000 - PIPE_ROOM_BYTES);
        drop(reader);
        outlet.write_some();
        assert!(outlet.is_closed() && outlet.is_empty());
    }
}
