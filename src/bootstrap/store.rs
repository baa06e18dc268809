//! Stores: small values under keys, by which processes find each other before there is a communicator.
//!
//! One rank serves a [`TcpStore`]; a [`FileStore`] is a folder that all can reach; the threads of a process share a
//! [`HashStore`]; torchrun's agent serves what an [`AgentStore`] opens. [`share_id`] carries a unique id over any of
//! them.

mod agent;
mod config;
mod file;
mod hash;
pub(crate) mod port_search;
pub(crate) mod record;
pub(crate) mod share;
mod table;
mod tcp;

pub use agent::AgentStore;
pub use config::StoreConfig;
pub use file::FileStore;
pub use hash::HashStore;
pub use share::{IdCounter, share_id};
pub use tcp::TcpStore;

use std::time::Duration;

use crate::error::{Error, Kind, Result};
use crate::sync::{Deadline, Wait};

/// The most bytes of a key.
pub const MAX_KEY_BYTES: usize = 256;

/// The most bytes of a value.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// The most keys of one [`Store::wait`].
pub const MAX_WAIT_KEYS: usize = 1024;

/// Values under keys, shared by all users of one store.
///
/// Every call ends by its [`Wait`]. Keys have 1 to [`MAX_KEY_BYTES`] bytes, values at most [`MAX_VALUE_BYTES`].
///
/// # Errors
/// All calls: [`crate::error::Kind::InvalidArgument`] if a key or value is out of bounds,
/// [`crate::error::Kind::Timeout`] at the deadline, with the key's name, [`crate::error::Kind::Remote`] or
/// [`crate::error::Kind::System`] if the store cannot be reached.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Puts `value` under `key`; replaces an earlier value.
    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<()>;

    /// The value under `key`; waits until there is one.
    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>>;

    /// Adds to the number under `key`, which starts at 0, and yields the sum. [`Store::get`] yields it as decimal
    /// digits.
    ///
    /// # Errors
    /// Also [`crate::error::Kind::InvalidUsage`] if the value is not a number or the sum overflows.
    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64>;

    /// Adds `member` to the set under `key`, which starts empty, and yields how many members it has.
    ///
    /// By default it counts by [`Store::add`], with a key of its own for each member, `key/member`.
    ///
    /// # Errors
    /// Also [`crate::error::Kind::InvalidUsage`] if the value is not a set or the member is above 2^20.
    fn insert(&self, key: &str, member: u32, wait: &Wait) -> Result<u64> {
        let is_new = self.add(&format!("{key}/{member}"), 1, wait)? == 1;
        let count = self.add(key, i64::from(is_new), wait)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    /// Removes the set under `key`, whose members are below `members`.
    fn clear(&self, key: &str, members: u32, wait: &Wait) -> Result<()> {
        for member in 0..members {
            self.delete(&format!("{key}/{member}"), wait)?;
        }
        self.delete(key, wait).map(drop)
    }

    /// The value under `key` if there is one now.
    ///
    /// By default it is a [`Store::get`] whose deadline has passed, which a store of this process answers nevertheless.
    /// A store that needs time for an answer must look itself: [`share_id`] asks by this whether another rank 0 is
    /// there.
    fn peek(&self, key: &str, wait: &Wait) -> Result<Option<Vec<u8>>> {
        match self.get(key, &wait.until(Deadline::after(Duration::ZERO))) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.kind() == Kind::Timeout => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits until all `keys` (at most [`MAX_WAIT_KEYS`]) have values.
    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<()>;

    /// Removes `key`; false if it had no value.
    fn delete(&self, key: &str, wait: &Wait) -> Result<bool>;

    /// Whether the store can hold values of a job that has ended. If so, [`share_id`] checks that the writer of an id
    /// is still alive.
    fn outlives_its_users(&self) -> bool {
        true
    }

    /// Leaves word that no value will come under `key` because of `error`, where the store could not take a value: its
    /// other users must not wait for it until their deadlines. It is worth a try only.
    fn give_up(&self, _key: &str, _error: &Error) {}

    /// This process is about to put a value under `key`: what an earlier try left by [`Store::give_up`] counts no more.
    fn begin(&self, _key: &str) {}

    /// Where this process listens for the store's other users, in words, if it does: for the message when they do not
    /// come.
    fn listens_at(&self) -> Option<String> {
        None
    }
}

fn check_key(key: &str) -> Result<()> {
    if (1..=MAX_KEY_BYTES).contains(&key.len()) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("a key must have 1 to {MAX_KEY_BYTES} bytes, got {}", key.len())))
}

fn check_keys(keys: &[&str]) -> Result<()> {
    if keys.len() > MAX_WAIT_KEYS {
        return Err(Error::invalid_argument(format!(
            "a wait for {} keys is too long: at most {MAX_WAIT_KEYS} are allowed",
            keys.len()
        )));
    }
    keys.iter().try_for_each(|key| check_key(key))
}

fn check_value(value: &[u8]) -> Result<()> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("a value may have at most {MAX_VALUE_BYTES} bytes, got {}", value.len())))
}

fn waited_for(key: &str) -> String {
    format!("waited for the key '{}' of the store", key.escape_default())
}

fn waited_for_all(keys: &[&str]) -> String {
    let shown = keys.iter().take(8).map(|key| key.escape_default().to_string()).collect::<Vec<_>>().join("', '");
    format!("waited for the keys '{shown}' of the store")
}

pub(super) fn decode_anything(bytes: &[u8]) {
    file::decode_anything(bytes);
    let _refused = record::Record::decode(bytes);
}
