//! What all ranks have told, in one message: each rank's bytes, in rank order, by what differs from those before.
//!
//! Every rank gets the bytes of all ranks, so they grow with the square of the world. But ranks of one host tell much
//! the same: their addresses differ by a port or not at all, their descriptions by a few words.
//!
//! ```text
//!   block    length u32, then parts until all bytes of the block are there
//!   part     equal u16, other u16, and as many other bytes: first so many bytes of the block before, at this place
//!   refusal  u32::MAX as the length of the first block, then the bytes of all blocks, u64: they are too many
//! ```
//! A part of eight bytes stands for up to 64 KiB, so the length of a message does not bound what comes of it:
//! [`MOST_BYTES`] does, for whoever writes and whoever reads.
//!
//! A block before the first one has no bytes.

#![forbid(unsafe_code)]

use crate::error::{Error, Result};
use crate::wire::{Reader, Writer};

/// The bytes of all ranks, in rank order.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    bytes: Vec<u8>,
    /// Where each rank's end.
    ends: Vec<usize>,
}

/// The most bytes of a rank.
pub(super) const MOST_BLOCK_BYTES: usize = 64 << 10;

/// The most bytes of all ranks together, and of a message with them.
pub(super) const MOST_BYTES: usize = 1 << 30;

/// The length of a first block that says that there are too many bytes.
const REFUSAL: u32 = u32::MAX;

/// Equal bytes that are told as others, since a further part takes as many.
const PART_BYTES: usize = 4;

/// The most bytes that a message has for a block beside those of the block: its length, and the first part and the one
/// behind [`MOST_OF_PART`] bytes. Each other part takes the place of more than [`PART_BYTES`] bytes.
pub(super) const MOST_BESIDE_BLOCK: usize = 4 + 2 * PART_BYTES;
const _: () = assert!(MOST_BLOCK_BYTES <= 2 * MOST_OF_PART);

/// The most bytes of each kind in a part.
const MOST_OF_PART: usize = u16::MAX as usize;

/// Writes the bytes of all ranks behind what the message has already. Where they and what a message has beside them are
/// more than `most` bytes, it writes a refusal, which [`Gathered::read`] makes the same error for all ranks.
///
/// # Panics
/// Where a block is longer than a length can say.
pub(super) fn write<'a>(blocks: impl Iterator<Item = &'a [u8]> + Clone, most: usize, message: &mut Writer) {
    let beside = message.as_slice().len();
    let needed = blocks.clone().fold(beside, |sum, block| sum.saturating_add(block.len() + MOST_BESIDE_BLOCK));
    if needed > most {
        let all: usize = blocks.map(<[u8]>::len).sum();
        message.u32(REFUSAL).u64(u64::try_from(all).unwrap_or(u64::MAX));
        return;
    }
    let mut before: &[u8] = &[];
    for block in blocks {
        message.u32(u32::try_from(block.len()).expect("an all-gather takes 64 KiB of a rank at most"));
        let mut place = 0;
        while place < block.len() {
            let equal = equal_bytes(&block[place..], before.get(place..).unwrap_or(&[])).min(MOST_OF_PART);
            let begin = place + equal;
            let other = other_bytes(&block[begin..], before.get(begin..).unwrap_or(&[])).min(MOST_OF_PART);
            let short = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX);
            message.u16(short(equal)).u16(short(other)).raw(&block[begin..begin + other]);
            place = begin + other;
        }
        before = block;
    }
}

/// How many bytes at the beginning of both are equal.
fn equal_bytes(block: &[u8], before: &[u8]) -> usize {
    block.iter().zip(before).take_while(|(byte, other)| byte == other).count()
}

/// How many bytes there are until so many are equal that a further part is shorter.
fn other_bytes(block: &[u8], before: &[u8]) -> usize {
    let mut equal = 0;
    for (place, byte) in block.iter().enumerate() {
        equal = if before.get(place) == Some(byte) { equal + 1 } else { 0 };
        if equal > PART_BYTES {
            return place + 1 - equal;
        }
    }
    block.len()
}

fn too_long(all: u64, most: usize) -> Error {
    Error::invalid_argument(format!(
        "an all-gather of {all} bytes of all ranks is too long: at most {most} are allowed, with {MOST_BESIDE_BLOCK} \
         more for each rank"
    ))
}

impl Gathered {
    /// Reads the bytes of `count` ranks, which are the rest of a message.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where it is a refusal; [`crate::error::Kind::Remote`] where it is not as
    /// [`write`] makes it, or has more than `most` bytes of all ranks.
    pub(super) fn read(mut reader: Reader<'_>, count: usize, most: usize) -> Result<Gathered> {
        let mut all = Gathered { bytes: Vec::new(), ends: Vec::with_capacity(count) };
        let mut before = 0..0;
        for place in 0..count {
            let length = reader.u32()?;
            if place == 0 && length == REFUSAL {
                let all = reader.u64()?;
                reader.finish()?;
                return Err(too_long(all, most));
            }
            let length = usize::try_from(length).unwrap_or(usize::MAX);
            if length > MOST_BLOCK_BYTES {
                let words = format!("{length} bytes of a rank where at most {MOST_BLOCK_BYTES} are allowed");
                return Err(reader.malformed(&words));
            }
            let begin = all.bytes.len();
            if begin + length > most {
                return Err(reader.malformed(&format!("more than {most} bytes of all ranks")));
            }
            all.bytes.reserve(length);
            while all.bytes.len() < begin + length {
                let (equal, other) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
                let place = all.bytes.len() - begin;
                if equal + other == 0 || place + equal + other > length || place + equal > before.len().max(place) {
                    return Err(reader.malformed(&format!("{equal} and {other} bytes at {place} of {length}")));
                }
                let known = before.start + place;
                all.bytes.extend_from_within(known.min(begin)..(known + equal).min(begin));
                all.bytes.extend_from_slice(reader.raw(other)?);
            }
            before = begin..all.bytes.len();
            all.ends.push(before.end);
        }
        reader.finish()?;
        Ok(all)
    }

    /// The bytes of each rank.
    pub(super) fn blocks(&self) -> Vec<&[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.bytes[begin..*end]).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::error::Kind;

    fn written(blocks: &[Vec<u8>]) -> Vec<u8> {
        let mut message = Writer::new();
        write(blocks.iter().map(Vec::as_slice), MOST_BYTES, &mut message);
        message.finish()
    }

    fn read(bytes: &[u8], count: usize) -> Result<Vec<Vec<u8>>> {
        let all = Gathered::read(Reader::new(bytes, "a test"), count, MOST_BYTES)?;
        Ok(all.blocks().into_iter().map(<[u8]>::to_vec).collect())
    }

    #[test]
    fn what_ranks_tell_alike_takes_eight_bytes() {
        let blocks = vec![vec![7; 100]; 50];
        let message = written(&blocks);
        assert_eq!(message.len(), 4 + 4 + 100 + 49 * 8);
        assert_eq!(read(&message, 50).unwrap(), blocks);
        // One word in the middle differs.
        let mut blocks = blocks;
        blocks[20][40..44].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(written(&blocks).len(), message.len() + 2 * (4 + 4));
        assert_eq!(read(&written(&blocks), 50).unwrap(), blocks);
    }

    #[test]
    fn the_longest_blocks_come_back() {
        let mut blocks = vec![vec![1; MOST_BLOCK_BYTES]; 3];
        blocks[1].fill(2);
        assert!(written(&blocks).len() <= 3 * (MOST_BLOCK_BYTES + MOST_BESIDE_BLOCK));
        blocks.push(Vec::new());
        blocks.push(vec![9]);
        assert_eq!(read(&written(&blocks), 5).unwrap(), blocks);
    }

    #[test]
    fn broken_messages_are_errors() {
        let good = written(&[vec![1, 2, 3], vec![1, 2, 3, 4]]);
        read(&good, 2).unwrap();
        for length in 0..good.len() {
            assert!(read(&good[..length], 2).is_err(), "{length} bytes of {}", good.len());
        }
        assert!(read(&good, 1).is_err() && read(&good, 3).is_err());
        let of = |length: u32, parts: &[(u16, u16)]| {
            let mut message = Writer::new();
            message.u32(length);
            for (equal, other) in parts {
                message.u16(*equal).u16(*other).raw(&vec![0; usize::from(*other)]);
            }
            read(message.as_slice(), 1)
        };
        assert!(of(3, &[(0, 3)]).is_ok() && of(0, &[]).is_ok());
        for (length, parts) in [(3, (0, 0)), (3, (1, 2)), (3, (0, 4)), (u32::MAX, (0, 3)), (70_000, (0, 3))] {
            assert!(of(length, &[parts]).is_err(), "{length} {parts:?}");
        }
    }

    /// Regression: 12 bytes for each rank became 64 KiB for each.
    #[test]
    fn a_short_message_does_not_become_more_than_the_most_bytes() {
        const MOST: usize = 10_000;
        let message = written(&vec![vec![7; 1000]; 11]);
        assert!(message.len() < 1200, "{}", message.len());
        let within = |most| Gathered::read(Reader::new(&message, "a test"), 11, most);
        let error = within(MOST).unwrap_err();
        assert!(error.message().contains("more than 10000 bytes of all ranks"), "{error}");
        assert!(within(11_000).is_ok());
    }

    #[test]
    fn too_many_bytes_are_one_error_for_all_ranks() {
        const MOST: usize = 10_000;
        let blocks = vec![vec![7; 1000]; 10];
        let mut message = Writer::new();
        write(blocks.iter().map(Vec::as_slice), MOST, &mut message);
        assert!(message.as_slice().len() < 20);
        let error = Gathered::read(Reader::new(message.as_slice(), "a test"), 10, MOST).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
        assert!(error.message().contains("an all-gather of 10000 bytes of all ranks is too long"), "{error}");
        let mut fits = Writer::new();
        write(blocks.iter().take(9).map(Vec::as_slice), MOST, &mut fits);
        assert!(Gathered::read(Reader::new(fits.as_slice(), "a test"), 9, MOST).is_ok());
    }

    proptest! {
        #[test]
        fn all_blocks_come_back(blocks in vec(vec(0..3u8, 0..40), 0..12)) {
            prop_assert_eq!(read(&written(&blocks), blocks.len()).unwrap(), blocks);
        }

        #[test]
        fn any_bytes_are_blocks_or_an_error(bytes in vec(any::<u8>(), 0..60), count in 0..4usize) {
            let _refused = read(&bytes, count);
        }
    }
}
