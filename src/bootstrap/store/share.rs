//! Sharing a unique id over a store: rank 0 writes it, the others read it, the last one removes it.
//!
//! `key` holds a [`Record`] with its writer and the id; `key/claims` counts the rank 0s that have come since the store
//! was clean; `key/taken/n` is the set of members that have read the record with number n, so that one that reads it
//! twice takes nobody's place. A job that dies leaves these values in a store that outlives it (a folder). So a
//! record is not trusted just because it exists:
//!
//! - On the host where it was written, the writer's process is looked up, by boot, namespace, number and start time.
//! - The root at the address in the id is asked to prove itself, and whether ranks still meet there. A rank that
//!   finds the id of an attempt that has failed waits for the next one, so that ranks which try again under the same
//!   key meet, whichever of them comes late.
//! - A failure's reason stays for a few seconds, as long as its writer waits for the others to read it, and is then
//!   removed. Each rank is told it once.
//! - A record of another job, or for a world of another size, is not taken.
//!
//! Rank 0 replaces the record of a dead job. If the writer is alive and its root serves, two jobs use one store at the
//! same time: if both are known, the second one waits a moment for the first to have met; else it is an error.

use std::time::Duration;

use super::Store;
use super::record::{IdOutcome, Record};
use crate::bootstrap::auth::JobTag;
use crate::bootstrap::probe::{RootState, state_of_root};
use crate::bootstrap::{UniqueId, spent};
use crate::error::{Error, Result};
use crate::log;
use crate::sync::primitive::{AtomicU64, Ordering};
use crate::sync::{Deadline, Wait};
use crate::sys::identity::Life;
use crate::sys::{clock, host, limits, poller};
use crate::types::World;

/// Gives all members the same unique id: rank 0 makes it with `make` and puts it under `key`, the others read it. The
/// last member to read it removes it, because it holds a secret. A record of a job that died in the middle is
/// recognised and replaced. After a try that has failed all may try again under the same key: a member that finds the
/// id of that try waits for the next one.
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
    let shared = IdSharing { store, key, members, wait, job: None, patience: Duration::ZERO };
    if members.rank.get() == 0 {
        shared.give(make).map(|given| given.id)
    } else {
        shared.take(None).map(|taken| taken.id)
    }
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
pub(crate) struct IdSharing<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) key: &'a str,
    pub(crate) members: World,
    pub(crate) wait: &'a Wait,
    /// The job to which the members belong, if that is known.
    pub(crate) job: Option<&'a JobTag>,
    /// How long to wait for another job to leave the key.
    pub(crate) patience: Duration,
}

/// An id that was shared.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SharedId {
    pub(crate) id: UniqueId,
    /// The number of this sharing.
    pub(crate) number: u64,
}

/// Whether a record can be used.
#[derive(Debug, PartialEq, Eq)]
enum Worth {
    /// Its job is alive.
    Fresh,
    /// Its job has ended, or its ranks have failed to meet; the text says how that is known.
    Stale(String),
}

impl IdSharing<'_> {
    /// What rank 0 does.
    ///
    /// # Errors
    /// As [`share_id`].
    pub(crate) fn give(&self, make: impl FnOnce() -> Result<UniqueId>) -> Result<SharedId> {
        let named = |error| self.named(error);
        self.store.begin(self.key);
        self.claim().inspect_err(|error| self.store.give_up(self.key, error)).map_err(named)?;
        let made = make().map_err(limits::with_remedy);
        let outcome = match &made {
            Ok(id) => IdOutcome::Id(*id),
            // The others must learn of the failure: otherwise they would wait until their deadline.
            Err(error) => IdOutcome::Failed(error.to_string()),
        };
        let record = self.record(outcome).map_err(named)?;
        let told = self.store.set(self.key, &record.encode(), self.wait);
        let told = told.inspect_err(|error| self.store.give_up(self.key, error));
        match &made {
            Ok(_) => told.and_then(|()| self.count(&record)).map_err(named)?,
            Err(_) => {
                if let Err(error) = told.and_then(|()| self.tell_failure(&record)) {
                    // The others then wait until their deadline; the original failure is the better error to return.
                    log::warn!(Bootstrap, "the other ranks cannot be told why there is no id: {error}");
                }
            }
        }
        made.map(|id| SharedId { id, number: record.number })
    }

    /// Removes the id of rank 0 whose ranks have failed to meet: who comes later must not read it. Best effort: a
    /// reader is told by the root, too, that it comes too late.
    pub(crate) fn withdraw(&self, number: u64) {
        let patience = self.wait.until(Deadline::after(WITHDRAW_PATIENCE));
        let shared = IdSharing { wait: &patience, ..*self };
        let left = || -> Result<()> {
            let Some(bytes) = self.store.peek(self.key, &patience)? else { return Ok(()) };
            match Record::decode(&bytes) {
                Ok(record) if record.number == number => shared.remove(&record),
                _ => Ok(()),
            }
        };
        if let Err(error) = left() {
            log::info!(Bootstrap, "the id of an attempt that failed stays in the store: {error}");
        }
    }

    fn record(&self, outcome: IdOutcome) -> Result<Record> {
        Ok(Record { size: self.members.size, job: self.job.cloned(), ..Record::new(outcome)? })
    }

    fn named(&self, error: Error) -> Error {
        error.during(format!("sharing the unique id under '{}'", self.key.escape_default()))
    }

    /// Makes sure that no other job is sharing an id here, and removes the record of a dead one.
    fn claim(&self) -> Result<()> {
        let leaving = Deadline::after(self.patience);
        loop {
            if self.store.add(&self.claims(), 1, self.wait)? == 1 {
                return Ok(());
            }
            // Another rank 0 has been here since the store was clean. If it is alive, it has written its record or is
            // about to.
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
            let by = left.by();
            match &left.outcome {
                IdOutcome::Id(id) if !is_mine && left.writer.life()? != Life::Ended && self.is_served(id)? => {
                    match left.other_job(self.job) {
                        Some(_) if !leaving.passed(clock::now()) => self.rest("another job to leave it")?,
                        Some(other) => return Err(self.taken_by(other)),
                        None => return Err(self.second_rank_zero(&by)),
                    }
                }
                _ => {
                    log::info!(Bootstrap, "the store holds an entry of an earlier try ({by}): it is replaced");
                    return self.forget_readers(&left);
                }
            }
        }
    }

    fn second_rank_zero(&self, by: &str) -> Error {
        Error::invalid_usage(format!(
            "rank 0 is here already: {by} shares an id under '{}' and waits for its ranks; either two processes of \
             this job were given rank 0 (RSCCL_RANK, RANK), or two jobs use one store at the same time: give each a \
             store of its own",
            self.key.escape_default()
        ))
    }

    fn taken_by(&self, other: &str) -> Error {
        let ours = self.job.map_or("no known job", JobTag::name);
        Error::invalid_usage(format!(
            "another job meets in this store: {} shares an id under '{}', this rank is of {ours}; give each job a \
             store of its own (RSCCL_STORE)",
            other,
            self.key.escape_default()
        ))
    }

    /// What the other ranks do. `spent`: the number of a sharing whose ranks have failed to meet.
    ///
    /// # Errors
    /// As [`share_id`].
    pub(crate) fn take(&self, spent: Option<u64>) -> Result<SharedId> {
        self.take_any(spent).map_err(|error| self.named(error))
    }

    fn take_any(&self, spent: Option<u64>) -> Result<SharedId> {
        let mut left: Option<(u64, String)> = None;
        let mut leaving: Option<(u64, Deadline)> = None;
        loop {
            let bytes = self.store.get(self.key, self.wait)?;
            let record = Record::decode(&bytes)?;
            let worth = if spent == Some(record.number) || self.is_spent(&record) {
                Worth::Stale("whose ranks did not meet".to_owned())
            } else {
                self.worth(&record)?
            };
            match worth {
                Worth::Fresh => match record.other_job(self.job) {
                    None => return self.read(record),
                    Some(other) => {
                        self.await_leaving(&record, other, &mut leaving)?;
                    }
                },
                Worth::Stale(why) => {
                    if left.as_ref().is_none_or(|(number, _)| *number != record.number) {
                        let by = record.by();
                        log::info!(Bootstrap, "the store holds an entry of an earlier try ({by}): {why}");
                        left = Some((record.number, format!("{by}, {why}")));
                    }
                    let whose = left.as_ref().map_or("", |(_, whose)| whose);
                    self.rest(&format!("rank 0 of this job: what lies there was left by {whose}"))?;
                }
            }
        }
    }

    /// Waits a moment for another job that has the key: it may soon have met.
    fn await_leaving(&self, record: &Record, other: &str, leaving: &mut Option<(u64, Deadline)>) -> Result<()> {
        match *leaving {
            Some((number, until)) if number == record.number => {
                if until.passed(clock::now()) {
                    return Err(self.taken_by(other));
                }
            }
            _ => *leaving = Some((record.number, Deadline::after(self.patience))),
        }
        self.rest(&format!("rank 0 of this job: what lies there is of another job ({other})"))
    }

    /// Takes the id of a record that is rank 0's.
    fn read(&self, record: Record) -> Result<SharedId> {
        record.check_size(self.members)?;
        match &record.outcome {
            IdOutcome::Id(_) => self.count(&record)?,
            IdOutcome::Failed(_) => {
                self.store.add(&self.told(&record), 1, self.wait)?;
                spent::note_told(record.number, self.members.rank);
            }
        }
        record.open()
    }

    /// Whether this process knows that the ranks of the record's id have failed to meet: it tries again. An address
    /// that is fixed has one id for all tries.
    fn is_spent(&self, record: &Record) -> bool {
        matches!(&record.outcome, IdOutcome::Id(id) if !id.is_fixed() && spent::holds(id))
    }

    /// Whether the root of `id` serves, and its ranks have not failed to meet.
    fn is_served(&self, id: &UniqueId) -> Result<bool> {
        Ok(state_of_root(id, self.wait)? == RootState::Gathers)
    }

    fn worth(&self, record: &Record) -> Result<Worth> {
        let life = if self.store.outlives_its_users() { record.writer.life()? } else { Life::Runs };
        if life == Life::Ended {
            return Ok(Worth::Stale("which has ended".to_owned()));
        }
        Ok(match &record.outcome {
            // A fixed address cannot be asked yet: rank 0 serves it only when it joins.
            IdOutcome::Id(id) if id.is_fixed() => Worth::Fresh,
            IdOutcome::Id(id) => match state_of_root(id, self.wait)? {
                RootState::Gathers => Worth::Fresh,
                RootState::Failed(why) => {
                    // It need not be asked again.
                    spent::note(id);
                    Worth::Stale(format!("whose ranks did not meet ({why})"))
                }
                RootState::Ended => Worth::Stale("whose root has ended".to_owned()),
                // The writer is there. Whoever joins is told why it cannot reach the root, and waits for a network.
                RootState::Unreachable if life == Life::Runs => Worth::Fresh,
                RootState::Unreachable => {
                    let (place, names) =
                        (id.address(), "its host may be gone, or NCCL_SOCKET_IFNAME names another network");
                    Worth::Stale(format!("whose root at {place} this rank cannot reach: {names}"))
                }
            },
            IdOutcome::Failed(why) if spent::is_told(record.number, self.members.rank) => {
                Worth::Stale(format!("which could not make an id ({why})"))
            }
            IdOutcome::Failed(_) => {
                let age = host::wall_time().as_secs().saturating_sub(record.written);
                match life == Life::Runs || age <= FAILURE_LIFE_S {
                    true => Worth::Fresh,
                    false => Worth::Stale("which failed long ago".to_owned()),
                }
            }
        })
    }

    /// Counts this rank among those that have read `record`; the last one removes everything.
    fn count(&self, record: &Record) -> Result<()> {
        let taken = self.store.insert(&self.taken(record), self.members.rank.get(), self.wait)?;
        if taken >= u64::from(self.members.size) { self.remove(record) } else { Ok(()) }
    }

    /// Waits, a few seconds at most, until all have read why there is no id, and removes the record: a later job must
    /// not read it.
    fn tell_failure(&self, record: &Record) -> Result<()> {
        let patience = Deadline::after(FAILURE_PATIENCE).earlier(self.wait.deadline);
        let others = i64::from(self.members.size) - 1;
        while self.store.add(&self.told(record), 0, self.wait)? < others && !patience.passed(clock::now()) {
            self.wait.abort.check()?;
            poller::pause(self.wait.slice(PAUSE));
        }
        self.remove(record)
    }

    fn forget_readers(&self, record: &Record) -> Result<()> {
        match &record.outcome {
            IdOutcome::Id(_) => self.store.clear(&self.taken(record), record.size, self.wait),
            IdOutcome::Failed(_) => self.store.delete(&self.told(record), self.wait).map(drop),
        }
    }

    /// The order matters. The set goes first: once the record is gone, nobody knows its number, and a set that a
    /// killed process has left would stay for ever. The claims go last: the next rank 0 waits a moment for a record
    /// if there is a claim, so it does not write one in between.
    fn remove(&self, record: &Record) -> Result<()> {
        self.forget_readers(record)?;
        // Rank 0 may have put the id of its next try there.
        let left = self.store.peek(self.key, self.wait)?.map(|bytes| Record::decode(&bytes));
        if left.is_some_and(|left| left.is_ok_and(|left| left.number != record.number)) {
            return Ok(());
        }
        for key in [self.key, &self.claims()] {
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

    /// Counts who has read why there is no id.
    fn told(&self, record: &Record) -> String {
        format!("{}/told/{:016x}", self.key, record.number)
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

/// How long rank 0 tries to remove the id of an attempt that failed.
const WITHDRAW_PATIENCE: Duration = Duration::from_secs(1);

/// The pause between two looks at the store.
const PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::store::FileStore;
    use crate::bootstrap::{Options, Root};
    use crate::error::Kind;
    use crate::sync::AbortFlag;
    use crate::types::Rank;

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
        record.size = 2;
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
        match &left.outcome {
            IdOutcome::Id(_) => drop(store.insert(&format!("id/taken/{:016x}", left.number), 1, &soon()).unwrap()),
            IdOutcome::Failed(_) => drop(store.add(&format!("id/told/{:016x}", left.number), 1, &soon()).unwrap()),
        }
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
        here.size = 2;
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
        fn insert(&self, key: &str, member: u32, wait: &Wait) -> Result<u64> {
            self.0.insert(key, member, wait)
        }
        fn clear(&self, key: &str, _members: u32, wait: &Wait) -> Result<()> {
            self.delete(key, wait).map(drop)
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

    /// Whoever cannot reach the root of a rank 0 that runs takes its id, and is told why by the connection. Of a rank 0
    /// that may have gone with its host the reader waits for another one.
    #[test]
    fn a_root_that_cannot_be_reached_is_taken_only_of_a_writer_that_runs() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::open(folder.path().join("store"), &soon()).unwrap();
        // No connection leads to a broadcast address.
        let id = UniqueId::fresh("255.255.255.255:9".parse().unwrap()).unwrap();
        let mut record = from_elsewhere(IdOutcome::Id(id), 0);
        store.set("id", &record.encode(), &soon()).unwrap();
        let shortly = Wait::new(Duration::from_millis(100), &AbortFlag::new());
        let error = share_id(&store, "id", member(1), || unreachable!(), &shortly).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout, "{error}");
        assert!(error.message().contains("255.255.255.255:9 this rank cannot reach"), "{error}");
        record.writer = Record::new(record.outcome.clone()).unwrap().writer;
        store.set("id", &record.encode(), &soon()).unwrap();
        assert_eq!(share_id(&store, "id", member(1), || unreachable!(), &soon()).unwrap(), id);
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
