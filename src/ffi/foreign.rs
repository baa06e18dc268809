//! What C++ programs write and the library calls: progress hooks, stores, takers of log lines.

use super::bridge::{ForeignStore, Line, LogCallback, Status};
use super::failure::kind_of;
use crate::bootstrap::store::Store;
use crate::config::DebugLevel;
use crate::error::{Error, Kind, Result};
use crate::log::LogLine;
use crate::sync::Wait;
use crate::sys::clock;
use crate::types::Rank;

/// A C++ object that any thread may use.
pub(super) struct Foreign<T: cxx::memory::UniquePtrTarget>(cxx::UniquePtr<T>);

// SAFETY: made of hooks and log callbacks only, which the headers ask to be callable by any thread, as the
// `std::function`s in them are whose targets the program has written so; the objects themselves have no other state.
unsafe impl<T: cxx::memory::UniquePtrTarget> Send for Foreign<T> {}
// SAFETY: as above.
unsafe impl<T: cxx::memory::UniquePtrTarget> Sync for Foreign<T> {}

impl<T: cxx::memory::UniquePtrTarget> Foreign<T> {
    /// `object`, which is not null.
    pub(super) fn new(object: cxx::UniquePtr<T>) -> Foreign<T> {
        Foreign(object)
    }

    /// The object.
    pub(super) fn get(&self) -> &T {
        &self.0
    }
}

/// What C++ answered.
pub(super) fn result(status: Status) -> Result<()> {
    if status.code == 0 {
        return Ok(());
    }
    let mut error = Error::new(kind_of(status.code).unwrap_or(Kind::Internal), status.message);
    if let Ok(rank) = u32::try_from(status.rank) {
        error = error.at(Rank::new(rank));
    }
    if let Ok(peer) = u32::try_from(status.peer) {
        error = error.about(Rank::new(peer));
    }
    Err(if status.operation.is_empty() { error } else { error.during(status.operation) })
}

/// Sends the log's lines to `callback`; null takes the last one away.
pub(super) fn set_log(callback: cxx::UniquePtr<LogCallback>) {
    if callback.is_null() {
        return crate::log::redirect(None);
    }
    let callback = Foreign::new(callback);
    crate::log::redirect(Some(Box::new(move |line: LogLine<'_>| {
        let rank = line.rank.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1);
        let level = match line.level {
            DebugLevel::Version => 0,
            DebugLevel::Warn => 1,
            DebugLevel::Info => 2,
            DebugLevel::Trace => 3,
        };
        callback.get().take(&Line { level, rank, text: line.text, printed: line.printed });
    })));
}

/// A store of the program, for the length of a call.
pub(super) struct Borrowed<'a>(pub(super) &'a ForeignStore);

// SAFETY: used by the thread that made the call, and by no other: `share_id` starts none.
unsafe impl Send for Borrowed<'_> {}
// SAFETY: as above.
unsafe impl Sync for Borrowed<'_> {}

impl std::fmt::Debug for Borrowed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a store of the program")
    }
}

impl Store for Borrowed<'_> {
    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<()> {
        result(self.0.set(key, value, left_ms(wait)))
    }

    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>> {
        let mut value = Vec::new();
        result(self.0.get(key, left_ms(wait), &mut value))?;
        Ok(value)
    }

    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64> {
        let mut sum = 0;
        result(self.0.add(key, amount, left_ms(wait), &mut sum))?;
        Ok(sum)
    }

    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<()> {
        result(self.0.wait(keys, left_ms(wait)))
    }

    fn delete(&self, key: &str, wait: &Wait) -> Result<bool> {
        let mut was_there = false;
        result(self.0.remove(key, left_ms(wait), &mut was_there))?;
        Ok(was_there)
    }
}

/// What is left until the deadline.
fn left_ms(wait: &Wait) -> u64 {
    let left = wait.deadline.remaining(clock::now());
    left.map_or(u64::MAX, |left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX))
}
