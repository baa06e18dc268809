//! Sharing a unique id over a store: rank 0 writes it, the others read it, the last one removes it.
//!
//! `key` holds a [`Record`] with its writer and the id; `key/claims` counts the rank 0s that have come since the store
//! was clean; `key/taken/n` counts the members that have read the record with number n. A job that dies leaves these
//! values in a store that outlives it (a folder). So a record is not trusted just because it exists:
//!
//! - On the host where it was written, the writer's process is looked up, by boot, namespace, number and start time.
//! - Elsewhere the root at the address in the id is asked to prove itself.
//! - A failure's reason stays for a few seconds, as long as its writer waits for the others to read it, and is then
//!   removed.
//!
//! Rank 0 replaces the record of a dead job. If the writer is alive and its root serves, two jobs use one store at the
//! same time, which is an error.

use std::time::Duration;

use super::Store;
use super::record::{IdOutcome, Record};
use crate::bootstrap::UniqueId;
use crate::bootstrap::probe::root_answers;
use crate::error::{Error, Result};
use crate::log;
use crate::sync::primitive::{AtomicU64, Ordering};
use crate::sync::{Deadline, Wait};
use crate::sys::identity::Life;
use crate::sys::{clock, host, poller};
use crate::types::{Rank, World};

/// Gives all members the same unique id: rank 0 makes it with `make` and puts it under `key`, the others read it. The
/// last member to read it removes it, because it holds a secret. A record of a job that died in the middle is
/// recognised and replaced.
///
/// `members` is this member's place among those that share the id, which need not be a whole world: for a pair, 0 or 1
/// of 2.
///
/// # Errors
/// As [`Store`]; on every rank, rank 0's error in making the id; [`crate::error::Kind::InvalidArgument`] if the key
/// holds another kind of value; [`crate::error::Kind::InvalidUsage`] on rank 0 if another job is sharing an id under
/// the key.
pub fn share_id(
    store: &dyn Store,
    key: &str,
    members: World,
    make: impl FnOnce() -> Result<UniqueId>,
    wait: &Wait,
) -> Result<UniqueId> {
    let shared = Shared { store, key, members, wait };
    let named = |error: Error| error.during(format!("sharing the unique id under '{}'", key.escape_default()));
    if members.rank.get() == 0 { shared.give(make, named) } else { shared.take().map_err(named) }
}

/// Numbers the communicators that a group of processes makes, so that each has a key of its own for its id. All members
/// must use the same prefix and make their communicators in the same order.
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
        // Relaxed: only the value matters.
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        share_id(store, &format!("{}/{number}", self.prefix), members, make, wait)
    }
}

/// One sharing of an id.
struct Shared<'a> {
    store: &'a dyn Store,
    key: &'a str,
    members: World,
    wait: &'a Wait,
}

/// Whether a record can be used.
#[derive(Debug, PartialEq, Eq)]
enum Worth {
    /// Its job is alive.
    Fresh,
    /// Its job has ended; the text says how that is known.
    Stale(&'static str),
}

impl Shared<'_> {
    /// What rank 0 does.
    fn give(&self, make: impl FnOnce() -> Result<UniqueId>, named: impl Fn(Error) -> Error + Copy) -> Result<UniqueId> {
        self.claim().map_err(named)?;
        let made = make();
        let outcome = match &made {
            Ok(id) => IdOutcome::Id(*id),
            // The others must learn of the failure: otherwise they would wait until their deadline.
            Err(error) => IdOutcome::Failed(error.to_string()),
        };
        let record = Record::new(outcome).map_err(named)?;
        let told = self.store.set(self.key, &record.encode(), self.wait);
        match &made {
            Ok(_) => told.and_then(|()| self.count(&record)).map_err(named)?,
            Err(_) => {
                if let Err(error) = told.and_then(|()| self.tell_failure(&record)) {
                    // The others then wait until their deadline; the original failure is the better error to return.
                    log::warn!(Bootstrap, "the other ranks cannot be told why there is no id: {error}");
                }
            }
        }
        made
    }

    /// Makes sure that no other job is sharing an id here, and removes the record of a dead one.
    fn claim(&self) -> Result<()> {
        if self.store.add(&self.claims(), 1, self.wait)? == 1 {
            return Ok(());
        }
        // Another rank 0 has been here since the store was clean. If it is alive, it has written its record or is about
        // to.
        let patience = Deadline::after(CLAIM_PATIENCE);
        let left = loop {
            match self.store.peek(self.key, self.wait)? {
                Some(bytes) => break bytes,
                None if patience.passed(clock::now()) => return Ok(()),
                None => self.rest("another rank 0 to share its id")?,
            }
        };
        // A value that is not a record is simply replaced.
        let Ok(left) = Record::decode(&left) else { return Ok(()) };
        let is_mine = left.writer == Record::new(IdOutcome::Failed(String::new()))?.writer;
        match (is_mine, &left.outcome) {
            (false, IdOutcome::Id(id)) if left.writer.life()? != Life::Ended && root_answers(id, self.wait)? => {
                Err(Error::invalid_usage(format!(
                    "rank 0 is here already: {} shares an id under '{}' and waits for its ranks; either two processes \
                     of this job were given rank 0 (RSCCL_RANK, RANK), or two jobs use one store at the same time: \
                     give each a store of its own",
                    left.by(),
                    self.key.escape_default()
                )))
            }
            _ => {
                let by = left.by();
                log::info!(Bootstrap, "the store holds an id of an earlier job ({by}): it is replaced");
                self.store.delete(&self.taken(&left), self.wait).map(drop)
            }
        }
    }

    /// What the other ranks do.
    fn take(&self) -> Result<UniqueId> {
        let mut left: Option<(u64, String)> = None;
        loop {
            let bytes = self.store.get(self.key, self.wait)?;
            let record = Record::decode(&bytes)?;
            match self.worth(&record)? {
                Worth::Fresh => {
                    self.count(&record)?;
                    return match record.outcome {
                        IdOutcome::Id(id) => Ok(id),
                        IdOutcome::Failed(why) => {
                            let why = format!("rank 0 could not make it: {why}");
                            Err(Error::remote(Rank::new(0), why))
                        }
                    };
                }
                Worth::Stale(why) => {
                    if left.as_ref().is_none_or(|(number, _)| *number != record.number) {
                        let by = record.by();
                        log::info!(Bootstrap, "the store holds an id of an earlier job ({by}): {why}");
                        left = Some((record.number, format!("{by}, {why}")));
                    }
                    let whose = left.as_ref().map_or("", |(_, whose)| whose);
                    self.rest(&format!("rank 0 of this job: what lies there was left by {whose}"))?;
                }
            }
        }
    }

    fn worth(&self, record: &Record) -> Result<Worth> {
        if !self.store.outlives_its_users() {
            return Ok(Worth::Fresh);
        }
        Ok(match (record.writer.life()?, &record.outcome) {
            (Life::Ended, _) => Worth::Stale("which has ended"),
            (Life::Runs, _) => Worth::Fresh,
            // A fixed address cannot be probed yet: rank 0 serves it only when it joins.
            (Life::Unknown, IdOutcome::Id(id)) if id.is_fixed() || root_answers(id, self.wait)? => Worth::Fresh,
            (Life::Unknown, IdOutcome::Id(_)) => Worth::Stale("whose root does not answer"),
            (Life::Unknown, IdOutcome::Failed(_)) => {
                let age = host::wall_time().as_secs().saturating_sub(record.written);
                if age <= FAILURE_LIFE_S { Worth::Fresh } else { Worth::Stale("which failed long ago") }
            }
        })
    }

    /// Counts this rank among those that have read `record`; the last one removes everything.
    fn count(&self, record: &Record) -> Result<()> {
        let taken = self.store.add(&self.taken(record), 1, self.wait)?;
        if taken >= i64::from(self.members.size) { self.remove(record) } else { Ok(()) }
    }

    /// Waits, a few seconds at most, until all have read why there is no id, and removes the record: a later job must
    /// not read it.
    fn tell_failure(&self, record: &Record) -> Result<()> {
        let patience = Deadline::after(FAILURE_PATIENCE).earlier(self.wait.deadline);
        let others = i64::from(self.members.size) - 1;
        // This rank is not counted, so the others never reach the count at which they would remove the record.
        while self.store.add(&self.taken(record), 0, self.wait)? < others && !patience.passed(clock::now()) {
            self.wait.abort.check()?;
            poller::pause(self.wait.slice(PAUSE));
        }
        self.remove(record)
    }

    /// The order matters. The count goes first: once the record is gone, nobody knows its number, and a count that a
    /// killed process has left would stay for ever. The claims go last: the next rank 0 waits a moment for a record if
    /// there is a claim, so it does not write one in between.
    fn remove(&self, record: &Record) -> Result<()> {
        for key in [&self.taken(record), self.key, &self.claims()] {
            self.store.delete(key, self.wait)?;
        }
        Ok(())
    }

    fn rest(&self, waiting_for: &str) -> Result<()> {
        self.wait
            .check(|| format!("waited at the key '{}' of the store for {waiting_for}", self.key.escape_default()))?;
        poller::pause(self.wait.slice(PAUSE));
        Ok(())
    }

    fn claims(&self) -> String {
        format!("{}/claims", self.key)
    }

    fn taken(&self, record: &Record) -> String {
        format!("{}/taken/{:016x}", self.key, record.number)
    }
}

/// How long rank 0 waits for the record of another claim: making an id takes milliseconds.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);

/// How long rank 0 stays to report why it could not make an id; a failed root stays as long.
const FAILURE_PATIENCE: Duration = Duration::from_secs(3);

/// The largest age of a failure that was written on another host: [`FAILURE_PATIENCE`] plus the difference of the
/// clocks.
const FAILURE_LIFE_S: u64 = 30;

/// The pause between two looks at the store.
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::store::FileStore;
    use crate::bootstrap::{Options, Root};
    use crate::error::Kind;
    use crate::sync::AbortFlag;

    fn soon() -> Wait {
        Wait::new(Duration::from_secs(30), &AbortFlag::new())
    }

    fn member(rank: u32) -> World {
        World { rank: Rank::new(rank), size: 2 }
    }

    fn options() -> Options {
        Options { interfaces: "=lo".parse().unwrap(), ..Options::default() }
    }

    /// A record as a process of another host would have left it.
    fn from_elsewhere(outcome: IdOutcome, age_s: u64) -> Record {
        let mut record = Record::new(outcome).unwrap();
        record.writer.space = "another boot".to_owned();
        record.written -= age_s;
        record
    }

    /// Two ranks share an id in a store that holds `left`, after `claims` rank 0s have been there.
    fn share_after(left: &Record, claims: i64) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let store = FileStore::open(&path, &soon()).unwrap();
        store.set("id", &left.encode(), &soon()).unwrap();
        store.add("id/claims", claims, &soon()).unwrap();
        store.add(&format!("id/taken/{:016x}", left.number), 1, &soon()).unwrap();
        let (id, _root) = Root::serve(&options()).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| share_id(&store, "id", member(1), || unreachable!(), &soon()));
            let first = share_id(&store, "id", member(0), || Ok(id), &soon()).unwrap();
            assert_eq!((first, second.join().unwrap().unwrap()), (id, id));
        });
        let left: Vec<_> = path.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
    }

    #[test]
    fn what_a_dead_job_left_is_replaced_wherever_it_ran() {
        let (dead, root) = Root::serve(&options()).unwrap();
        drop(root);
        let mut here = Record::new(IdOutcome::Id(dead)).unwrap();
        here.writer.started += 1;
        share_after(&here, 3);
        share_after(&from_elsewhere(IdOutcome::Id(dead), 0), 1);
        here.outcome = IdOutcome::Failed("no usable network interface".into());
        share_after(&here, 1);
        share_after(&from_elsewhere(here.outcome, FAILURE_LIFE_S + 1), 1);
    }

    /// A store whose user dies when it has deleted this many values.
    #[derive(Debug)]
    struct Dying(FileStore, AtomicU64);

    impl Store for Dying {
        fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<()> {
            self.0.set(key, value, wait)
        }
        fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>> {
            self.0.get(key, wait)
        }
        fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64> {
            self.0.add(key, amount, wait)
        }
        fn wait(&self, keys: &[&str], wait: &Wait) -> Result<()> {
            self.0.wait(keys, wait)
        }
        fn delete(&self, key: &str, wait: &Wait) -> Result<bool> {
            // Relaxed: one thread deletes.
            if self.1.load(Ordering::Relaxed) == 0 {
                return Err(Error::internal("dead"));
            }
            self.1.fetch_sub(1, Ordering::Relaxed);
            self.0.delete(key, wait)
        }
    }

    /// Regression: the record went before the count that bears its number, which nobody could find then.
    #[test]
    fn nothing_stays_of_a_process_that_dies_while_it_removes_a_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let store = FileStore::open(&path, &soon()).unwrap();
        for deletes in 0..3 {
            let dying = Dying(store.clone(), AtomicU64::new(deletes));
            let (id, root) = Root::serve(&options()).unwrap();
            share_id(&dying, "id", member(0), || Ok(id), &soon()).unwrap();
            assert_eq!(share_id(&dying, "id", member(1), || unreachable!(), &soon()).unwrap_err().message(), "dead");
            drop(root);
            let (next, _root) = Root::serve(&options()).unwrap();
            assert_eq!(share_id(&store, "id", member(0), || Ok(next), &soon()).unwrap(), next);
            assert_eq!(share_id(&store, "id", member(1), || unreachable!(), &soon()).unwrap(), next);
            let left: Vec<_> = path.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left, ["lock"], "after {deletes} values were deleted");
        }
    }

    #[test]
    fn two_live_jobs_with_one_store_are_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path().join("store"), &soon()).unwrap();
        let (id, _root) = Root::serve(&options()).unwrap();
        store.add("id/claims", 1, &soon()).unwrap();
        store.set("id", &from_elsewhere(IdOutcome::Id(id), 0).encode(), &soon()).unwrap();
        let error = share_id(&store, "id", member(0), || unreachable!(), &soon()).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidUsage);
        for words in
            ["two processes of this job were given rank 0", "two jobs use one store", "process ", "a store of its own"]
        {
            assert!(error.message().contains(words), "{error}");
        }
        // The ranks of the first job are not disturbed.
        assert_eq!(share_id(&store, "id", member(1), || unreachable!(), &soon()).unwrap(), id);
    }

    #[test]
    fn who_waits_for_a_dead_job_is_told_whose_record_it_sees() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path().join("store"), &soon()).unwrap();
        let mut left = Record::new(IdOutcome::Failed("an old reason".into())).unwrap();
        left.writer.started += 1;
        store.set("id", &left.encode(), &soon()).unwrap();
        let shortly = Wait::new(Duration::from_millis(100), &AbortFlag::new());
        let error = share_id(&store, "id", member(1), || unreachable!(), &shortly).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout);
        assert!(error.message().contains("which has ended") && !error.message().contains("old reason"), "{error}");
    }

    #[test]
    fn a_failure_does_not_outlive_its_rank() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store");
        let store = FileStore::open(&path, &soon()).unwrap();
        std::thread::scope(|scope| {
            let second = scope.spawn(|| share_id(&store, "id", member(1), || unreachable!(), &soon()));
            let make = || Err(Error::invalid_usage("no usable network interface"));
            assert_eq!(share_id(&store, "id", member(0), make, &soon()).unwrap_err().kind(), Kind::InvalidUsage);
            let second = second.join().unwrap().unwrap_err();
            assert_eq!((second.kind(), second.peer()), (Kind::Remote, Some(0)));
            assert!(second.message().contains("no usable network interface"), "{second}");
        });
        let left: Vec<_> = path.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["lock"]);
    }
}
