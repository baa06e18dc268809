//! Keys and values in memory, with bounds.

use std::collections::HashMap;

use crate::error::{Error, Result};

/// The most keys.
const MAX_KEYS: usize = 1 << 18;

/// The most bytes of all keys and values together.
const MAX_BYTES: usize = 256 << 20;

#[derive(Debug, Default)]
pub(super) struct ValueTable {
    values: HashMap<String, Vec<u8>>,
    bytes: usize,
}

impl ValueTable {
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] if the store is full.
    pub(super) fn set(&mut self, key: &str, value: Vec<u8>) -> Result<()> {
        let old = self.values.get(key).map_or(0, |old| key.len() + old.len());
        let bytes = self.bytes - old + key.len() + value.len();
        if bytes > MAX_BYTES || (old == 0 && self.values.len() >= MAX_KEYS) {
            return Err(Error::invalid_usage(format!(
                "the store is full: at most {MAX_KEYS} keys and {MAX_BYTES} bytes; delete what is no longer needed"
            )));
        }
        self.bytes = bytes;
        self.values.insert(key.to_owned(), value);
        Ok(())
    }

    pub(super) fn get(&self, key: &str) -> Option<&Vec<u8>> {
        self.values.get(key)
    }

    /// # Errors
    /// As [`ValueTable::set`] and [`sum`].
    pub(super) fn add(&mut self, key: &str, amount: i64) -> Result<i64> {
        let sum = sum(key, self.get(key).map(Vec::as_slice), amount)?;
        self.set(key, sum.to_string().into_bytes())?;
        Ok(sum)
    }

    /// # Errors
    /// As [`ValueTable::set`] and [`with_member`].
    pub(super) fn insert(&mut self, key: &str, member: u32) -> Result<u64> {
        let (set, count) = with_member(key, self.get(key).map(Vec::as_slice), member)?;
        self.set(key, set)?;
        Ok(count)
    }

    pub(super) fn delete(&mut self, key: &str) -> bool {
        let old = self.values.remove(key);
        self.bytes -= old.as_ref().map_or(0, |old| key.len() + old.len());
        old.is_some()
    }
}

/// The number that `value` holds (0 if there is none) plus `amount`.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] if the value is not a number or the sum overflows.
pub(super) fn sum(key: &str, value: Option<&[u8]>, amount: i64) -> Result<i64> {
    let number = value.map_or(Some(0), |value| std::str::from_utf8(value).ok()?.parse::<i64>().ok());
    number.and_then(|number| number.checked_add(amount)).ok_or_else(|| {
        let key = key.escape_default();
        Error::invalid_usage(format!("the value under '{key}' is not a number, or adding {amount} overflows"))
    })
}

/// The set that `value` holds (empty if there is none) with `member`, and how many members it has. A set is a bit for
/// each number.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] if the value is not a set or the member is out of range.
pub(super) fn with_member(key: &str, value: Option<&[u8]>, member: u32) -> Result<(Vec<u8>, u64)> {
    let bits = value.map_or(Some(&[][..]), |value| value.strip_prefix(SET_MARK));
    let place = usize::try_from(member / 8).unwrap_or(usize::MAX);
    let Some(bits) = bits.filter(|bits| bits.len() <= MOST_SET_BYTES && place < MOST_SET_BYTES) else {
        let key = key.escape_default();
        return Err(Error::invalid_usage(format!(
            "the value under '{key}' is not a set, or cannot have the member {member}"
        )));
    };
    let mut set = [SET_MARK, bits].concat();
    let place = SET_MARK.len() + place;
    set.resize(set.len().max(place + 1), 0);
    set[place] |= 1 << (member % 8);
    let count = set[SET_MARK.len()..].iter().map(|byte| u64::from(byte.count_ones())).sum();
    Ok((set, count))
}

/// How the value of a set begins.
const SET_MARK: &[u8] = b"set:";
/// One bit for each rank of the largest world.
const MOST_SET_BYTES: usize = (1 << 20) / 8;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_set_counts_each_member_once(members in proptest::collection::vec(0u32..70_000, 0..40)) {
            let (mut value, mut last) = (None, 0);
            let mut expected = std::collections::BTreeSet::new();
            for member in members {
                let (set, count) = with_member("k", value.as_deref(), member).unwrap();
                (value, last) = (Some(set), count);
                expected.insert(member);
            }
            prop_assert_eq!(last, expected.len() as u64);
        }

        #[test]
        fn other_values_are_no_sets(value in proptest::collection::vec(0u8.., 0..20), member in 0u32..) {
            if let Ok((set, _)) = with_member("k", Some(&value), member) {
                prop_assert!(value.starts_with(SET_MARK) && set.len() <= SET_MARK.len() + MOST_SET_BYTES);
            }
        }
    }

    use super::*;

    #[test]
    fn bytes_are_counted_through_every_change() {
        let mut table = ValueTable::default();
        table.set("key", vec![0; 100]).unwrap();
        table.set("key", vec![0; 10]).unwrap();
        assert_eq!((table.add("n", 7).unwrap(), table.add("n", -9).unwrap()), (7, -2));
        assert_eq!(table.bytes, 13 + 3);
        assert!(table.add("key", 1).unwrap_err().to_string().contains("not a number"));
        assert!(table.add("n", i64::MIN).is_err());
        assert!(table.delete("key") && !table.delete("key") && table.delete("n"));
        assert_eq!((table.bytes, table.values.len()), (0, 0));
    }
}
