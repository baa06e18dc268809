//! Stores: small values under names, by which processes find each other before there is a communicator.
//!
//! [`TcpStore`] is served by one of the ranks, [`FileStore`] lies in a folder that all can reach, [`HashStore`] is shared by the
//! threads of a process. [`share_id`] carries a unique id over any of them.

mod file;
mod hash;
mod table;
mod tcp;

pub use file::FileStore;
pub use hash::HashStore;
pub use tcp::TcpStore;

use crate::bootstrap::UniqueId;
use crate::error::{Error, Result};
use crate::sync::Wait;
use crate::sync::primitive::{AtomicU64, Ordering};
use crate::types::World;

/// The most bytes of a key.
pub const MAX_KEY_BYTES: usize = 256;

/// The most bytes of a value.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// The most keys of one [`Store::wait`].
pub const MAX_WAIT_KEYS: usize = 1024;

/// Values under keys, shared by all who use the same store.
///
/// Every call ends by its [`Wait`]. Keys have 1 to [`MAX_KEY_BYTES`] bytes, values at most [`MAX_VALUE_BYTES`].
///
/// # Errors
/// All calls: [`crate::error::Kind::InvalidArgument`] for a key or value out of bounds, [`crate::error::Kind::Timeout`] at the
/// deadline with the key's name, [`crate::error::Kind::Remote`] or [`crate::error::Kind::System`] where the store is out of reach.
pub trait Store: Send + Sync + std::fmt::Debug {
    /// Puts `value` under `key`, in place of what was there.
    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<()>;

    /// The value under `key`; waits until there is one.
    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>>;

    /// Adds to the number under `key`, which begins at 0, and yields the sum. [`Store::get`] yields it as decimal digits.
    ///
    /// # Errors
    /// Also [`crate::error::Kind::InvalidUsage`] where the value is no number or the sum overflows.
    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64>;

    /// Waits until all `keys` (at most [`MAX_WAIT_KEYS`]) have values.
    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<()>;

    /// Removes `key`; false where there was none.
    fn delete(&self, key: &str, wait: &Wait) -> Result<bool>;
}

/// Gives all members the same unique id: rank 0 makes it with `make` and puts it under `key`, the others take it. When all
/// have it the last one removes it, for it holds a secret.
///
/// `members` is who I am among those who share it, which need not be a whole world: for a pair, 0 or 1 of 2.
///
/// # Errors
/// As [`Store`]; rank 0's error in making it, on every rank; [`crate::error::Kind::InvalidArgument`] where something else lies
/// under the key.
pub fn share_id(
    store: &dyn Store,
    key: &str,
    members: World,
    make: impl FnOnce() -> Result<UniqueId>,
    wait: &Wait,
) -> Result<UniqueId> {
    let named = |error: Error| error.during(format!("sharing the unique id under '{}'", key.escape_default()));
    let taken = format!("{key}/taken");
    let id = if members.rank.get() == 0 {
        match make() {
            Ok(id) => {
                store.set(key, id.as_bytes(), wait).map_err(named)?;
                id
            }
            Err(error) => {
                // Told to the others, who else would wait for nothing.
                store.set(key, format!("{FAILED}{error}").as_bytes(), wait).map_err(named)?;
                return Err(error);
            }
        }
    } else {
        let bytes = store.get(key, wait).map_err(named)?;
        if let Some(why) = bytes.strip_prefix(FAILED.as_bytes()) {
            let why = String::from_utf8_lossy(why);
            return Err(named(Error::new(crate::error::Kind::Remote, format!("rank 0 could not make it: {why}"))));
        }
        UniqueId::from_bytes(&bytes).map_err(named)?
    };
    if store.add(&taken, 1, wait).map_err(named)? >= i64::from(members.size) {
        store.delete(key, wait).map_err(named)?;
        store.delete(&taken, wait).map_err(named)?;
    }
    Ok(id)
}

/// What stands before an error in place of an id. An id begins with its version, which is no letter.
const FAILED: &str = "failed: ";

/// Counts the communicators that a group of processes makes, so that each finds its id under a key of its own. All members
/// use the same prefix and make their communicators in the same order.
#[derive(Debug)]
pub struct IdCounter {
    prefix: String,
    next: AtomicU64,
}

impl IdCounter {
    /// Starts at 0; the keys are `prefix/0`, `prefix/1`, …
    pub fn new(prefix: impl Into<String>) -> IdCounter {
        IdCounter { prefix: prefix.into(), next: AtomicU64::new(0) }
    }

    /// [`share_id`] under the next key.
    ///
    /// # Errors
    /// As [`share_id`].
    pub fn share(
        &self,
        store: &dyn Store,
        members: World,
        make: impl FnOnce() -> Result<UniqueId>,
        wait: &Wait,
    ) -> Result<UniqueId> {
        // Relaxed: only the number counts.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        share_id(store, &format!("{}/{number}", self.prefix), members, make, wait)
    }
}

fn check_key(key: &str) -> Result<()> {
    if (1..=MAX_KEY_BYTES).contains(&key.len()) {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("a key of {} bytes; 1 to {MAX_KEY_BYTES} are possible", key.len())))
}

fn check_keys(keys: &[&str]) -> Result<()> {
    if keys.len() > MAX_WAIT_KEYS {
        return Err(Error::invalid_argument(format!("{} keys to wait for; at most {MAX_WAIT_KEYS}", keys.len())));
    }
    keys.iter().try_for_each(|key| check_key(key))
}

fn check_value(value: &[u8]) -> Result<()> {
    if value.len() <= MAX_VALUE_BYTES {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("a value of {} bytes; at most {MAX_VALUE_BYTES} are possible", value.len())))
}

fn waited_for(key: &str) -> String {
    format!("waited for the key '{}' of the store", key.escape_default())
}

pub(super) fn decode_anything(bytes: &[u8]) {
    file::decode_anything(bytes);
}
