//! Finds the known name that the user probably meant.

/// The candidate with the fewest edits from `name`, if they are few enough to be a typing mistake.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if name.is_empty() {
        return None;
    }
    let limit = (name.len() / 3).max(2);
    // A name that lacks an ending or has one too many ("TIMEOUT" for "TIMEOUT_MS") counts as one edit.
    let distance = |candidate: &str| match candidate.starts_with(name) || name.starts_with(candidate) {
        true => 1,
        false => edits(name, candidate),
    };
    let measured = candidates.into_iter().map(|candidate| (distance(candidate), candidate));
    measured.filter(|(edits, _)| *edits <= limit).min().map(|(_, candidate)| candidate)
}

/// The candidate that is one letter away from `name`, if that has enough letters for one to be a mistake.
pub(super) fn one_edit<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    candidates.into_iter().find(|candidate| name.len() >= LEAST_LETTERS && edits(name, candidate) == 1)
}

/// How many letters must be inserted, removed or replaced to turn one name into the other (Levenshtein), computed row
/// by row.
fn edits(a: &str, b: &str) -> usize {
    // Longer names are not typing mistakes; the bound limits the time that hostile names can cost.
    if a.len().max(b.len()) > MAX_NAME_BYTES {
        return usize::MAX;
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

const MAX_NAME_BYTES: usize = 64;
/// A shorter name has too many neighbours.
const LEAST_LETTERS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        assert_eq!(edits("kitten", "sitting"), 3);
        assert_eq!(edits("", "abc"), 3);
        assert_eq!(edits("same", "same"), 0);
        assert_eq!(edits(&"x".repeat(100), "x"), usize::MAX);
    }

    #[test]
    fn finds_the_meant_one_or_none() {
        let known = ["TIMEOUT_MS", "SECRET", "STORE"];
        assert_eq!(nearest("TIMEOUT", known), Some("TIMEOUT_MS"));
        assert_eq!(nearest("TIMOUT_MS", known), Some("TIMEOUT_MS"));
        assert_eq!(nearest("SECRETS", known), Some("SECRET"));
        assert_eq!(nearest("ENTIRELY_ELSE", known), None);
    }

    #[test]
    fn one_letter_is_a_mistake_and_two_are_another_name() {
        let known = ["DEBUG", "ALGO"];
        assert_eq!(one_edit("DEBG", known), Some("DEBUG"));
        assert_eq!(one_edit("DEBUGG", known), Some("DEBUG"));
        assert_eq!((one_edit("DEBGGG", known), one_edit("ALG", known)), (None, None));
    }
}
