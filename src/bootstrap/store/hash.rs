//! [`HashStore`]: a store for the threads of one process.

use std::time::Duration;

use super::table::ValueTable;
use super::{Store, check_key, check_keys, check_value, waited_for};
use crate::error::Result;
use crate::sync::Wait;
use crate::sync::primitive::{Arc, Condvar, Mutex, MutexGuard};

/// Values in memory. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct HashStore(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<ValueTable>,
    changed: Condvar,
}

/// How long a wait sleeps before it looks at the abort flag again, which does not wake it.
const ABORT_CHECK: Duration = Duration::from_millis(20);

impl HashStore {
    /// An empty store.
    pub fn new() -> HashStore {
        HashStore::default()
    }

    fn table(&self) -> MutexGuard<'_, ValueTable> {
        self.0.table.lock()
    }

    fn until<T>(&self, key: &str, wait: &Wait, take: impl Fn(&ValueTable) -> Option<T>) -> Result<T> {
        let mut table = self.table();
        loop {
            if let Some(value) = take(&table) {
                return Ok(value);
            }
            wait.check(|| waited_for(key))?;
            let slice = wait.slice(ABORT_CHECK);
            table = self.0.changed.wait_timeout(table, slice);
        }
    }
}

impl Store for HashStore {
    fn set(&self, key: &str, value: &[u8], _wait: &Wait) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        self.table().set(key, value.to_vec())?;
        self.0.changed.notify_all();
        Ok(())
    }

    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>> {
        check_key(key)?;
        self.until(key, wait, |table| table.get(key).cloned())
    }

    fn add(&self, key: &str, amount: i64, _wait: &Wait) -> Result<i64> {
        check_key(key)?;
        let sum = self.table().add(key, amount)?;
        self.0.changed.notify_all();
        Ok(sum)
    }

    fn insert(&self, key: &str, member: u32, _wait: &Wait) -> Result<u64> {
        check_key(key)?;
        let count = self.table().insert(key, member)?;
        self.0.changed.notify_all();
        Ok(count)
    }

    fn clear(&self, key: &str, _members: u32, wait: &Wait) -> Result<()> {
        self.delete(key, wait).map(drop)
    }

    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<()> {
        check_keys(keys)?;
        keys.iter().try_for_each(|key| self.until(key, wait, |table| table.get(key).map(|_| ())))
    }

    fn delete(&self, key: &str, _wait: &Wait) -> Result<bool> {
        check_key(key)?;
        Ok(self.table().delete(key))
    }

    fn outlives_its_users(&self) -> bool {
        false
    }
}
