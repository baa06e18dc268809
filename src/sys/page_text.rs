//! Short texts in words that others read while they are written: a text that is not whole does not have its check sum.
//!
//! ```text
//! word 0    length in bytes (16 bits), check sum of the bytes (48 bits); 0: no text
//! then      8 bytes in each word, little endian, 0 behind the end
//! ```

use crate::sync::primitive::Ordering;
use crate::sync::primitive::mapped::AtomicU64;

/// Writes `text` into `words`, as much of it as there is room for.
pub fn write(words: &[AtomicU64], text: &str) {
    let Some((first, rest)) = words.split_first() else { return };
    let bytes = fitting(text, rest.len() * WORD_BYTES).as_bytes();
    // Relaxed in all: a reader holds what it has read against the check sum.
    for (place, word) in rest.iter().enumerate() {
        let from = (place * WORD_BYTES).min(bytes.len());
        let part = &bytes[from..(from + WORD_BYTES).min(bytes.len())];
        let mut whole = [0; WORD_BYTES];
        whole[..part.len()].copy_from_slice(part);
        word.store(u64::from_le_bytes(whole), Ordering::Relaxed);
    }
    first.store(bytes.len() as u64 | check_sum(bytes) << LENGTH_BITS, Ordering::Relaxed);
}

/// The text in `words`, which another process may have written; `None` where there is none, or no whole one.
pub fn read(words: &[u64]) -> Option<String> {
    let (first, rest) = words.split_first()?;
    let length = usize::try_from(first & ((1 << LENGTH_BITS) - 1)).ok()?;
    let bytes: Vec<u8> = rest.iter().flat_map(|word| word.to_le_bytes()).take(length).collect();
    let is_whole = bytes.len() == length && check_sum(&bytes) == first >> LENGTH_BITS;
    (is_whole && length > 0).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The beginning of `text` that has at most so many bytes.
fn fitting(text: &str, most: usize) -> &str {
    let most = most.min((1 << LENGTH_BITS) - 1).min(text.len());
    let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// 48 bits of FNV-1a.
fn check_sum(bytes: &[u8]) -> u64 {
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash >> LENGTH_BITS
}

const WORD_BYTES: usize = size_of::<u64>();
const LENGTH_BITS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str, words: usize) -> Vec<u64> {
        let place: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(u64::MAX)).collect();
        write(&place, text);
        place.iter().map(|word| word.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn a_text_comes_back_as_far_as_there_is_room() {
        for text in ["a", "12345678", "123456789", "the data of all_reduce #3"] {
            assert_eq!(read(&written(text, 9)).as_deref(), Some(text));
        }
        assert_eq!(read(&written("123456789", 2)).as_deref(), Some("12345678"));
        assert_eq!(read(&written("1234567\u{e9}", 2)).as_deref(), Some("1234567"), "no half of a character");
        assert_eq!(read(&written("", 3)), None);
        assert_eq!(read(&written("a", 0)), None);
    }

    #[test]
    fn a_text_that_is_half_another_is_none() {
        let (one, other) = (written("rank 3 (its data)", 4), written("rank 5 (its flag)", 4));
        let mixed = [one[0], other[1], one[2], one[3]];
        assert_eq!(read(&mixed), None);
        assert_eq!(read(&[u64::MAX; 4]), None);
        assert_eq!(read(&[]), None);
    }
}
