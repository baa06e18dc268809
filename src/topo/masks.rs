//! Sets of processors as text: masks as sysfs and NCCL's files write them (`00ff,000000ff`: words of 32, the last
//! first), lists (`0-7,32-39`), and hwloc's masks (`0x000000ff,,0x000000ff`).

/// What a text that should be a mask is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaskText {
    /// A mask, or nothing.
    Mask,
    /// A list of processors, which as a mask is this.
    List(String),
    /// Neither.
    Neither,
}

/// The highest processor of a list. Linux has at most 8,192 processors; a mask of more would be long.
const MAX_PROCESSOR: usize = 16_383;
/// Processors of a word.
const WORD: usize = 32;

/// What `text` is. In a mask of several words all but the first are written in full: `0,16` is a list.
pub fn read(text: &str) -> MaskText {
    let text = text.trim();
    let mut words = text.split(',');
    let is_hexadecimal = |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_hexdigit());
    if text.is_empty()
        || words.next().is_some_and(is_hexadecimal)
            && words.all(|word| is_hexadecimal(word) && (7..=8).contains(&word.len()))
    {
        return MaskText::Mask;
    }
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        (first <= last && last <= MAX_PROCESSOR).then_some((first, last))
    };
    let Some(mut ranges) = text.split(',').map(range).collect::<Option<Vec<(usize, usize)>>>() else {
        return MaskText::Neither;
    };
    // Each processor is passed once, however many ranges have it.
    ranges.sort_unstable();
    let mut next = 0;
    let fresh = ranges.into_iter().flat_map(move |(first, last)| {
        let from = first.max(next);
        next = next.max(last + 1);
        from..last + 1
    });
    MaskText::List(write(fresh))
}

/// The mask of these processors.
pub fn write(processors: impl Iterator<Item = usize>) -> String {
    let mut words: Vec<u32> = vec![0];
    for processor in processors.filter(|processor| *processor <= MAX_PROCESSOR) {
        let place = processor / WORD;
        if words.len() <= place {
            words.resize(place + 1, 0);
        }
        words[place] |= 1 << (processor % WORD);
    }
    words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

/// The numbers of one of hwloc's sets, whose words of zeros are left empty: `0x00000001,,0x000000ff`. `None` if it is
/// none, or has no end (`0xf...f`).
pub fn of_hwloc(text: &str) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    for (place, word) in text.trim().rsplit(',').enumerate() {
        let word = word.trim().strip_prefix("0x").unwrap_or(word.trim());
        let bits = if word.is_empty() { 0 } else { u32::from_str_radix(word, 16).ok()? };
        if place > MAX_PROCESSOR / WORD {
            return None;
        }
        found.extend((0..WORD).filter(|bit| bits >> bit & 1 == 1).map(|bit| place * WORD + bit));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_told_from_masks() {
        for mask in ["", "ff", "12", "0000ffff,0000ffff", "0000000,0000ffff", "ff,00000000", "ffffffffffffffff"] {
            assert_eq!(read(mask), MaskText::Mask, "{mask}");
        }
        let list = |text: &str| MaskText::List(text.to_owned());
        assert_eq!(read("0-15"), list("0000ffff"));
        assert_eq!(read("0,16"), list("00010001"));
        assert_eq!(read("0-3, 32-35"), list("0000000f,0000000f"));
        assert_eq!(read("0-3,2-7,7"), list("000000ff"));
        assert_eq!(read("16383,0"), list(&format!("80000000{},00000001", ",00000000".repeat(510))));
        for neither in ["0-", "3-1", "zz", "0-16384", "0-99999999", "ff-3", "1,,2"] {
            assert_eq!(read(neither), MaskText::Neither, "{neither}");
        }
    }

    #[test]
    fn hwlocs_sets_leave_words_of_zeros_empty() {
        assert_eq!(of_hwloc("0x00000001,,0x80000001"), Some(vec![0, 31, 64]));
        assert_eq!(of_hwloc("0x0"), Some(vec![]));
        assert_eq!(of_hwloc("0xf...f"), None);
    }
}
