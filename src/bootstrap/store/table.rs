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

#[cfg(test)]
mod tests {
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
