//! Frames on a byte stream.
//!
//! | offset | width | field |
//! |--------|-------|-------|
//! | 0 | 4 | length of the payload |
//! | 4 | 4 | tag |
//! | 8 | 1 | kind |
//! | 9 | 3 | zero |
//! | 12 | length | payload |

use crate::error::{Error, Kind, Result};

/// The bytes before a frame's payload.
pub const HEADER_BYTES: usize = 12;

/// The most that is reserved for a payload before its bytes have arrived: a length alone must not cost memory.
const RESERVE_BYTES: usize = 64 << 10;

/// One message on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The kind; each protocol has its own numbers.
    pub kind: u8,
    /// A number that distinguishes frames of one kind.
    pub tag: u32,
    /// The payload.
    pub payload: Vec<u8>,
}

/// The header of a frame with a payload of this length.
///
/// # Panics
/// For 4 GiB and more: every caller bounds its payloads far below that.
pub fn header(kind: u8, tag: u32, length: usize) -> [u8; HEADER_BYTES] {
    let length = u32::try_from(length).expect("payloads are bounded far below 4 GiB").to_le_bytes();
    let tag = tag.to_le_bytes();
    [length[0], length[1], length[2], length[3], tag[0], tag[1], tag[2], tag[3], kind, 0, 0, 0]
}

/// Appends a frame to `out`.
pub fn append(out: &mut Vec<u8>, kind: u8, tag: u32, payload: &[u8]) {
    out.reserve(HEADER_BYTES + payload.len());
    out.extend_from_slice(&header(kind, tag, payload.len()));
    out.extend_from_slice(payload);
}

/// Splits a stream into frames, however its bytes are divided into reads.
#[derive(Debug)]
pub struct FrameReader {
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    payload: Vec<u8>,
    payload_bytes: usize,
    most_bytes: usize,
}

impl FrameReader {
    /// A reader of frames with payloads of at most `most_bytes`.
    pub fn new(most_bytes: usize) -> FrameReader {
        FrameReader { header: [0; HEADER_BYTES], header_filled: 0, payload: Vec::new(), payload_bytes: 0, most_bytes }
    }

    /// Consumes bytes from the front of `input` until a frame is complete or `input` is empty.
    ///
    /// # Errors
    /// [`Kind::Remote`] if a header announces too long a payload or is malformed; the stream is useless then.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Frame>> {
        if self.header_filled < HEADER_BYTES {
            let taken = take(input, HEADER_BYTES - self.header_filled);
            self.header[self.header_filled..self.header_filled + taken.len()].copy_from_slice(taken);
            self.header_filled += taken.len();
            if self.header_filled < HEADER_BYTES {
                return Ok(None);
            }
            self.begin_payload()?;
        }
        let taken = take(input, self.payload_bytes - self.payload.len());
        self.payload.extend_from_slice(taken);
        if self.payload.len() < self.payload_bytes {
            return Ok(None);
        }
        self.header_filled = 0;
        let h = &self.header;
        Ok(Some(Frame {
            kind: h[8],
            tag: u32::from_le_bytes([h[4], h[5], h[6], h[7]]),
            payload: std::mem::take(&mut self.payload),
        }))
    }

    /// Whether part of a frame has arrived.
    pub fn is_midway(&self) -> bool {
        self.header_filled > 0
    }

    fn begin_payload(&mut self) -> Result<()> {
        let h = &self.header;
        let length = usize::try_from(u32::from_le_bytes([h[0], h[1], h[2], h[3]])).unwrap_or(usize::MAX);
        if length > self.most_bytes || h[9..] != [0; 3] {
            let most = self.most_bytes;
            let why =
                format!("a frame of {length} bytes announced where at most {most} are allowed, or no frame at all");
            return Err(Error::new(Kind::Remote, why));
        }
        self.payload_bytes = length;
        self.payload = Vec::with_capacity(length.min(RESERVE_BYTES));
        Ok(())
    }
}

fn take<'a>(input: &mut &'a [u8], most: usize) -> &'a [u8] {
    let (taken, rest) = input.split_at(most.min(input.len()));
    *input = rest;
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_cut() {
        let mut stream = Vec::new();
        append(&mut stream, 1, 7, b"hello");
        append(&mut stream, 2, 8, b"");
        append(&mut stream, 3, u32::MAX, &[9; 300]);
        for piece in 1..40 {
            let mut reader = FrameReader::new(300);
            let mut frames = Vec::new();
            for mut bytes in stream.chunks(piece) {
                while !bytes.is_empty() {
                    frames.extend(reader.next(&mut bytes).unwrap());
                }
            }
            assert_eq!(frames.len(), 3, "in pieces of {piece}");
            assert_eq!(frames[0], Frame { kind: 1, tag: 7, payload: b"hello".to_vec() });
            assert_eq!((frames[1].kind, frames[1].payload.len()), (2, 0));
            assert_eq!((frames[2].tag, &frames[2].payload), (u32::MAX, &vec![9; 300]));
            assert!(!reader.is_midway());
        }
    }

    #[test]
    fn a_length_above_the_bound_is_refused_before_it_costs_memory() {
        let mut reader = FrameReader::new(100);
        assert!(reader.next(&mut &header(1, 0, 101)[..]).is_err());
        let mut reader = FrameReader::new(usize::MAX);
        assert_eq!(reader.next(&mut &header(1, 0, 0xffff_ffff)[..]).unwrap(), None);
        assert!(reader.payload.capacity() <= RESERVE_BYTES);
    }
}
