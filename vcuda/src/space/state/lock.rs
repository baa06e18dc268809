//! The lock over the shared state. A process may die holding it: the next one to take it goes on.

use std::cell::UnsafeCell;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;

use super::Shared;
use super::records::{Kind, Record, RecordId};

/// A pthread mutex that processes share and that survives its owner.
#[repr(C)]
pub(crate) struct RobustLock(UnsafeCell<libc::pthread_mutex_t>);

impl fmt::Debug for RobustLock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("RobustLock")
    }
}

impl RobustLock {
    /// Makes the lock, once, in zeroed memory.
    pub(super) fn initialise(&self) -> io::Result<()> {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        // SAFETY: a place for the attributes, which the call fills.
        let made = unsafe { libc::pthread_mutexattr_init(attributes.as_mut_ptr()) };
        // SAFETY: initialised above.
        let shared =
            unsafe { libc::pthread_mutexattr_setpshared(attributes.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED) };
        // SAFETY: initialised above.
        let robust = unsafe { libc::pthread_mutexattr_setrobust(attributes.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST) };
        // SAFETY: the lock lies in a mapping that stays, and nobody uses it before the layout is announced.
        let done = unsafe { libc::pthread_mutex_init(self.0.get(), attributes.as_ptr()) };
        match [made, shared, robust, done].into_iter().find(|code| *code != 0) {
            None => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(code)),
        }
    }

    fn acquire(&self) {
        // SAFETY: initialised before the state was announced.
        let code = unsafe { libc::pthread_mutex_lock(self.0.get()) };
        if code == libc::EOWNERDEAD {
            // Records are changed field by field and a half-made one has kind 0 still: what is there is usable.
            // SAFETY: this thread holds the lock and its last owner is dead.
            unsafe { libc::pthread_mutex_consistent(self.0.get()) };
        }
    }

    fn release(&self) {
        // SAFETY: called by the guard of the thread that holds the lock.
        unsafe { libc::pthread_mutex_unlock(self.0.get()) };
    }
}

/// Holds the lock; gives access to the records.
#[derive(Debug)]
pub struct Guard<'a> {
    shared: &'a Shared,
    /// Not `Send`: a pthread mutex is unlocked by the thread that locked it.
    here: std::marker::PhantomData<*const ()>,
}

impl<'a> Guard<'a> {
    pub(super) fn new(shared: &'a Shared) -> Guard<'a> {
        shared.lock.acquire();
        Guard { shared, here: std::marker::PhantomData }
    }

    /// Adds a record; `None` when the table is full.
    pub fn add(&mut self, record: Record) -> Option<RecordId> {
        self.shared.records.with(|table| table.add(record))
    }

    /// Takes a record away; one that is gone already stays gone.
    pub fn remove(&mut self, id: RecordId) {
        self.shared.records.with(|table| table.remove(id));
    }

    /// The record, if it is there.
    pub fn get(&self, id: RecordId) -> Option<Record> {
        self.shared.records.with(|table| table.get(id))
    }

    /// Changes a record; nothing happens where there is none.
    pub fn change(&mut self, id: RecordId, how: impl FnOnce(&mut Record)) {
        self.shared.records.with(|table| table.change(id, how));
    }

    /// The first record of a kind that `wanted` picks.
    pub fn find(&self, kind: Kind, wanted: impl Fn(&Record) -> bool) -> Option<(RecordId, Record)> {
        self.shared.records.with(|table| table.find(kind, wanted))
    }

    /// All records, with their ids.
    pub fn all(&self) -> Vec<(RecordId, Record)> {
        self.shared.records.with(|table| table.all())
    }

    pub(super) fn owns_records(&self, pid: u32) -> bool {
        self.shared.records.with(|table| table.all().iter().any(|(_, record)| record.pid == pid))
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.shared.lock.release();
    }
}
