//! Gossip between ranks: who died, who left, what was published. Each rank forwards each piece once.

use std::collections::HashMap;

use crate::bootstrap::MAX_NOTE_BYTES;
use crate::error::Result;
use crate::types::Rank;
use crate::wire::{Reader, Writer};

/// One piece of gossip.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gossip {
    /// A rank died; the text says how that was noticed.
    Died(Rank, String),
    /// A rank said goodbye, with this word.
    Left(Rank, u64),
    /// `from` published `bytes` as its `number`-th note.
    Note { from: Rank, number: u32, bytes: Vec<u8> },
}

const DIED: u8 = 1;
const LEFT: u8 = 2;
const NOTE: u8 = 3;

/// The most bytes of a reason; the sender cuts it.
const MAX_REASON_BYTES: usize = 256;

impl Gossip {
    pub(super) fn encode(&self, writer: &mut Writer) {
        match self {
            Gossip::Died(rank, why) => {
                let reason = &why.as_bytes()[..why.len().min(MAX_REASON_BYTES)];
                writer.u8(DIED).u32(rank.get()).bytes(reason);
            }
            Gossip::Left(rank, word) => {
                writer.u8(LEFT).u32(rank.get()).u64(*word);
            }
            Gossip::Note { from, number, bytes } => {
                writer.u8(NOTE).u32(from.get()).u32(*number).bytes(bytes);
            }
        }
    }

    /// Decodes all pieces of a frame.
    pub(super) fn decode_all(payload: &[u8]) -> Result<Vec<Gossip>> {
        let mut reader = Reader::new(payload, "a frame of news");
        let mut news = Vec::new();
        while !reader.rest().is_empty() {
            let kind = reader.u8()?;
            let rank = Rank::new(reader.u32()?);
            news.push(match kind {
                DIED => Gossip::Died(rank, reader.text(MAX_REASON_BYTES)?),
                LEFT => Gossip::Left(rank, reader.u64()?),
                NOTE => {
                    Gossip::Note { from: rank, number: reader.u32()?, bytes: reader.bytes(MAX_NOTE_BYTES)?.to_vec() }
                }
                other => return Err(reader.malformed(&format!("news of kind {other}"))),
            });
        }
        Ok(news)
    }
}

/// Which notes have been seen: for each origin the highest number, and which of the 64 below it.
#[derive(Debug, Default)]
pub(super) struct Seen(HashMap<Rank, Window>);

#[derive(Debug, Default, Clone, Copy)]
struct Window {
    /// One above the highest number seen.
    next: u32,
    /// Bit k: `next - 1 - k` has been seen.
    bits: u64,
}

impl Seen {
    /// Marks a note as seen; false if it was seen before, or is so old that it must have been.
    pub(super) fn insert(&mut self, from: Rank, number: u32) -> bool {
        let window = self.0.entry(from).or_default();
        if number >= window.next {
            let ahead = number - window.next + 1;
            window.bits = window.bits.checked_shl(ahead).unwrap_or(0) | 1;
            window.next = number.saturating_add(1);
            return true;
        }
        let bit = 1u64.checked_shl(window.next - 1 - number).unwrap_or(0);
        let fresh = bit != 0 && window.bits & bit == 0;
        window.bits |= bit;
        fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_come_back() {
        let all = [
            Gossip::Died(Rank::new(1), "gone".into()),
            Gossip::Left(Rank::new(2), 11),
            Gossip::Note { from: Rank::new(3), number: 4, bytes: vec![5; 600] },
        ];
        let mut writer = Writer::new();
        all.iter().for_each(|news| news.encode(&mut writer));
        assert_eq!(Gossip::decode_all(writer.as_slice()).unwrap(), all);
        assert!(Gossip::decode_all(&[9, 0, 0, 0, 0]).is_err());
        assert!(Gossip::decode_all(&writer.as_slice()[..3]).is_err());
    }

    #[test]
    fn each_note_is_new_once_in_any_order() {
        let mut seen = Seen::default();
        let rank = Rank::new(7);
        for number in [0, 1, 5, 3, 4, 2, 200, 137, 199] {
            assert!(seen.insert(rank, number), "{number}");
            assert!(!seen.insert(rank, number), "{number}");
        }
        assert!(!seen.insert(rank, 136), "too old");
        assert!(seen.insert(Rank::new(8), 0));
        assert!(seen.insert(rank, u32::MAX - 1));
    }
}
