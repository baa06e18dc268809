//! [`FileStore`]: a folder that all processes can reach.
//!
//! Each key is a file, named by the hash of the key. A value is written to a temporary file and renamed into place, so
//! a reader sees either the old value or the new one. A killed process leaves at most a temporary file, which the next
//! process to open the store removes. Every change of a value holds the lock of the file `lock`; the kernel releases it
//! when its holder dies.

use std::fs::{DirBuilder, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::table::{sum, with_member};
use super::{MAX_KEY_BYTES, MAX_VALUE_BYTES, Store, check_key, check_keys, check_value, waited_for};
use crate::error::{Error, Result};
use crate::log;
use crate::sync::{Deadline, Wait};
use crate::sys::identity::{Life, ProcessIdentity};
use crate::sys::open::LockedFile;
use crate::sys::{clock, host, open, poller, random, writing};
use crate::wire::{Reader, Writer};

/// A folder of values. Whoever can read the folder can read the values, so only its owner may.
#[derive(Debug, Clone)]
pub struct FileStore {
    folder: PathBuf,
}

/// That this is a folder to which nobody but its owner may write. What is to be done is not a change of the mode: it
/// may be a folder that others need, such as `/tmp`, or a file of the system.
fn check_folder(folder: &Path, is_folder: bool, mode: u32) -> Result<()> {
    let (shown, advice) = (
        folder.display(),
        "name a folder that is not there yet, for instance /tmp/job-7; rsccl makes it for its owner alone",
    );
    if !is_folder {
        return Err(Error::invalid_argument(format!("the store {shown} is no folder: {advice}")));
    }
    if mode & OTHERS_WRITE != 0 {
        let mode = mode & MODE_BITS;
        let why = format!("others than its owner may write to the store {shown} (its mode is {mode:o}): {advice}");
        return Err(Error::invalid_argument(why));
    }
    Ok(())
}

/// The permission bits of the folder that let others than the owner write to it.
const OTHERS_WRITE: u32 = 0o022;
/// What `chmod` sets, the sticky bit with it.
const MODE_BITS: u32 = 0o7777;
const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// File systems do not report changes reliably, so a wait looks again, with growing pauses.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The prefix of temporary files.
const UNFINISHED: &str = "new-";

/// How long a mark is believed that no value will come. A rank that comes later waits: the next job may have room.
const MARK_LIFE: Duration = Duration::from_secs(10);

/// How long a mark must stand before a rank that found it there believes it. Where rank 0, too, tries again, it takes
/// the mark away.
const MARK_GRACE: Duration = Duration::from_secs(2);

/// The first bytes of every file with a value.
const MARK: [u8; 8] = *b"rsccl\0\0\x01";

/// The most bytes of a file: mark, key, value, checksum and their lengths.
const MAX_FILE_BYTES: usize = 64 + MAX_KEY_BYTES + MAX_VALUE_BYTES;

impl FileStore {
    /// Opens the store in `folder`, which is created if it does not exist (mode 0700; its parent must exist).
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if the folder cannot be made or used; [`crate::error::Kind::InvalidArgument`] if
    /// others than its owner may write to it.
    pub fn open(folder: impl Into<PathBuf>, wait: &Wait) -> Result<FileStore> {
        let store = FileStore { folder: folder.into() };
        match DirBuilder::new().mode(FOLDER_MODE).create(&store.folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(store.named("making", &store.folder, error));
            }
            Ok(()) | Err(_) => {}
        }
        let metadata = store.folder.metadata().map_err(|error| store.named("opening", &store.folder, error))?;
        check_folder(&store.folder, metadata.is_dir(), metadata.permissions().mode())?;
        let lock = store.lock(wait)?;
        store.sweep()?;
        drop(lock);
        Ok(store)
    }

    /// The store's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Removes temporary files of killed processes. The caller holds the lock, so no file is being written.
    fn sweep(&self) -> Result<()> {
        let entries = self.folder.read_dir().map_err(|error| self.named("listing", &self.folder, error))?;
        for entry in entries {
            let entry = entry.map_err(|error| self.named("listing", &self.folder, error))?;
            if entry.file_name().to_string_lossy().starts_with(UNFINISHED) {
                std::fs::remove_file(entry.path()).map_err(|error| self.named("removing", &entry.path(), error))?;
            }
        }
        Ok(())
    }

    /// Takes the lock that every change holds.
    fn lock(&self, wait: &Wait) -> Result<Locked> {
        let path = self.folder.join("lock");
        let mut options = OpenOptions::new();
        // A pipe of that name, without a reader, must not keep this rank waiting.
        options.create(true).truncate(false).write(true).mode(FILE_MODE);
        let file = open::lock_file_at_once(&mut options, &path);
        if path.metadata().is_ok_and(|about| !about.is_file()) {
            let shown = path.display();
            let why = format!("{shown} is no regular file, so that it is no lock of a store: remove it");
            return Err(Error::invalid_argument(why));
        }
        let file = file.map_err(|error| self.named("opening", &path, error))?;
        let mut pause = FIRST_PAUSE;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Locked(file)),
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Interrupted => {}
                Err(TryLockError::Error(error)) => return Err(self.named("locking", &path, error)),
            }
            wait.check(|| format!("waited for the lock {}", path.display()))?;
            pause = rest(pause, wait);
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(blake3::hash(key.as_bytes()).to_hex().as_str())
    }

    fn read(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(key);
        let mut bytes = Vec::new();
        match open::file_at_once(&path) {
            Ok(file) => {
                let most = u64::try_from(MAX_FILE_BYTES).unwrap_or(u64::MAX);
                file.take(most + 1).read_to_end(&mut bytes).map_err(|error| self.named("reading", &path, error))?;
            }
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(self.named("reading", &path, error)),
        }
        decode(&bytes, key).map(Some).map_err(|error| error.during(format!("reading {}", path.display())))
    }

    /// Writes a value; the caller holds the lock.
    fn write(&self, key: &str, value: &[u8]) -> Result<()> {
        let unfinished = self.folder.join(format!("{UNFINISHED}{:016x}", u64::from_le_bytes(random::bytes()?)));
        let path = self.path(key);
        let bytes = encode(key, value);
        let write = || {
            let mut options = OpenOptions::new();
            let mut file = open::file_with(options.create_new(true).write(true).mode(FILE_MODE), &unfinished)?;
            // Only the owner has access, whatever the umask says.
            file.set_permissions(Permissions::from_mode(FILE_MODE))?;
            writing::without_signal(|| file.write_all(&bytes))?;
            file.sync_all()?;
            std::fs::rename(&unfinished, &path)?;
            match std::fs::remove_file(self.mark(key)) {
                Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        };
        write().map_err(|error| {
            // A file that cannot be removed now is removed by the next process that opens the store.
            let _swept = std::fs::remove_file(&unfinished);
            self.named("writing", &path, error)
        })
    }

    fn until(&self, key: &str, wait: &Wait) -> Result<Vec<u8>> {
        let mut pause = FIRST_PAUSE;
        let (found, grace) = (self.mark_under(key), Deadline::after(MARK_GRACE));
        loop {
            if let Some(value) = self.read(key)? {
                return Ok(value);
            }
            match self.mark_under(key) {
                Some(mark) if !found.as_ref().is_some_and(|found| found.is(&mark)) => return Err(self.no_value(&mark)),
                Some(mark) if grace.passed(clock::now()) && mark.may_be_of_this_job() => {
                    return Err(self.no_value(&mark));
                }
                _ => {}
            }
            wait.check(|| waited_for(key))?;
            pause = rest(pause, wait);
        }
    }

    /// The mark that no value will come under `key`: a link whose target is the system's code of the reason, and the
    /// process. A link of a few bytes takes no room but its name, so that it can be made where the disk is full.
    fn mark(&self, key: &str) -> PathBuf {
        self.path(key).with_extension("failed")
    }

    /// The mark under `key`, if there is one that can be read.
    fn mark_under(&self, key: &str) -> Option<Mark> {
        let path = self.mark(key);
        let left = std::fs::symlink_metadata(&path).ok()?.modified().ok()?;
        Mark::decode(std::fs::read_link(&path).ok()?.to_str()?, left)
    }

    fn no_value(&self, mark: &Mark) -> Error {
        let what = format!("another rank could not write to the file store {}", self.folder.display());
        Error::system(what, std::io::Error::from_raw_os_error(mark.code))
    }

    fn named(&self, what: &str, path: &Path, error: std::io::Error) -> Error {
        let is_refused = error.kind() == ErrorKind::PermissionDenied;
        let named = Error::system(format!("{what} {} of the file store", path.display()), error);
        if is_refused { named.advising(&self.whose(path)) } else { named }
    }

    /// Who may use what this process may not: the owner of `path`, or of the folder where that cannot be looked at.
    fn whose(&self, path: &Path) -> String {
        let me = host::user_id();
        let told = [path, self.folder.as_path()].into_iter().find_map(|path| Some((path, path.metadata().ok()?.uid())));
        match told {
            Some((path, owner)) if owner != me => format!(
                "{} belongs to user {owner}, and this process is of user {me}: ranks of different users cannot share a \
                 file store; give the job a folder of its own",
                path.display()
            ),
            Some((path, _)) => {
                format!("{} belongs to user {me}, as this process does: look at its mode", path.display())
            }
            None => format!("this process is of user {me}"),
        }
    }
}

/// That no value will come: in a link's target, `code:process:started:space`.
#[derive(Debug)]
struct Mark {
    /// The system's code of the reason.
    code: i32,
    /// Who has left it; `None` where that could not be told.
    writer: Option<ProcessIdentity>,
    left: SystemTime,
}

impl Mark {
    fn encode(code: i32) -> String {
        match ProcessIdentity::mine() {
            Ok(ProcessIdentity { process, started, space, .. }) => format!("{code}:{process}:{started}:{space}"),
            Err(_) => code.to_string(),
        }
    }

    fn decode(target: &str, left: SystemTime) -> Option<Mark> {
        let mut fields = target.splitn(4, ':');
        let code = fields.next()?.parse().ok()?;
        let writer = match (fields.next(), fields.next(), fields.next()) {
            (Some(process), Some(started), Some(space)) => Some(ProcessIdentity {
                host: String::new(),
                space: space.to_owned(),
                process: process.parse().ok()?,
                started: started.parse().ok()?,
            }),
            _ => None,
        };
        Some(Mark { code, writer, left })
    }

    /// Whether `other` is this mark.
    fn is(&self, other: &Mark) -> bool {
        (self.left, self.code, &self.writer) == (other.left, other.code, &other.writer)
    }

    /// False where the process that has left it has ended, with its job, or where it is old.
    fn may_be_of_this_job(&self) -> bool {
        let has_ended = self.writer.as_ref().is_some_and(|writer| matches!(writer.life(), Ok(Life::Ended)));
        !has_ended && self.left.elapsed().ok().is_none_or(|age| age < MARK_LIFE)
    }
}

/// The lock of a store, as long as this lives.
#[derive(Debug)]
struct Locked(LockedFile);

impl Drop for Locked {
    /// Not by closing the file alone: a child of a bare `clone` may have a copy of it.
    fn drop(&mut self) {
        if let Err(error) = self.0.unlock() {
            log::trace!(Bootstrap, "the lock of the file store goes with its file: {error}");
        }
    }
}

/// Sleeps for `pause`; yields the next pause.
fn rest(pause: Duration, wait: &Wait) -> Duration {
    poller::pause(wait.slice(pause));
    (pause * 2).min(LONGEST_PAUSE)
}

fn encode(key: &str, value: &[u8]) -> Vec<u8> {
    let mut writer = Writer::with_capacity(64 + key.len() + value.len());
    writer.raw(&MARK).text(key).bytes(value);
    let hash: [u8; 32] = blake3::hash(writer.as_slice()).into();
    writer.raw(&hash);
    writer.finish()
}

fn decode(bytes: &[u8], key: &str) -> Result<Vec<u8>> {
    let mut reader = Reader::new(bytes, "a file of the store");
    if reader.array()? != MARK {
        return Err(reader.malformed("it was not written by a store of this version"));
    }
    let name = reader.bytes(MAX_KEY_BYTES)?;
    let value = reader.bytes(MAX_VALUE_BYTES)?;
    let claimed: [u8; 32] = reader.array()?;
    let summed = &bytes[..bytes.len() - reader.rest().len() - claimed.len()];
    if name != key.as_bytes() || blake3::hash(summed) != claimed {
        return Err(reader.malformed("its checksum or its key is wrong"));
    }
    let value = value.to_vec();
    reader.finish()?;
    Ok(value)
}

pub(super) fn decode_anything(bytes: &[u8]) {
    let _refused = decode(bytes, "key");
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8], wait: &Wait) -> Result<()> {
        check_key(key)?;
        check_value(value)?;
        let _lock = self.lock(wait)?;
        self.write(key, value)
    }

    fn get(&self, key: &str, wait: &Wait) -> Result<Vec<u8>> {
        check_key(key)?;
        self.until(key, wait)
    }

    fn add(&self, key: &str, amount: i64, wait: &Wait) -> Result<i64> {
        check_key(key)?;
        let _lock = self.lock(wait)?;
        let sum = sum(key, self.read(key)?.as_deref(), amount)?;
        self.write(key, sum.to_string().as_bytes())?;
        Ok(sum)
    }

    fn insert(&self, key: &str, member: u32, wait: &Wait) -> Result<u64> {
        check_key(key)?;
        let _lock = self.lock(wait)?;
        let (set, count) = with_member(key, self.read(key)?.as_deref(), member)?;
        self.write(key, &set)?;
        Ok(count)
    }

    fn clear(&self, key: &str, _members: u32, wait: &Wait) -> Result<()> {
        self.delete(key, wait).map(drop)
    }

    fn wait(&self, keys: &[&str], wait: &Wait) -> Result<()> {
        check_keys(keys)?;
        keys.iter().try_for_each(|key| self.until(key, wait).map(|_| ()))
    }

    fn peek(&self, key: &str, _wait: &Wait) -> Result<Option<Vec<u8>>> {
        check_key(key)?;
        self.read(key)
    }

    fn give_up(&self, key: &str, error: &Error) {
        let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
        let Some(code) = source.and_then(std::io::Error::raw_os_error) else { return };
        let mark = self.mark(key);
        let _old = std::fs::remove_file(&mark);
        if let Err(error) = std::os::unix::fs::symlink(Mark::encode(code), &mark) {
            log::info!(Bootstrap, "the other ranks cannot be told that the store takes no values: {error}");
        }
    }

    fn begin(&self, key: &str) {
        let _none = std::fs::remove_file(self.mark(key));
    }

    fn delete(&self, key: &str, wait: &Wait) -> Result<bool> {
        check_key(key)?;
        let _lock = self.lock(wait)?;
        let path = self.path(key);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(self.named("removing", &path, error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::UniqueId;
    use crate::bootstrap::store::share_id;
    use crate::types::{Rank, World};

    /// Report 18: rank 0 found the disk full, and the others waited until their deadlines.
    #[test]
    fn a_rank_is_told_that_rank_0_cannot_write() {
        let number = u64::from_le_bytes(random::bytes().unwrap());
        let folder = std::env::temp_dir().join(format!("rsccl-mark-{number:016x}"));
        let wait = || Wait::new(Duration::from_secs(60), &crate::sync::AbortFlag::new());
        let (giver, taker) = (FileStore::open(&folder, &wait()).unwrap(), FileStore::open(&folder, &wait()).unwrap());
        // Nothing can be written where a folder stands.
        std::fs::create_dir(giver.path("id/claims")).unwrap();
        let member = |rank| World { rank: Rank::new(rank), size: 2 };
        let no_id = || -> Result<UniqueId> { panic!("no id is needed") };
        let error = share_id(&giver, "id", member(0), no_id, &wait()).unwrap_err();
        let told = share_id(&taker, "id", member(1), no_id, &wait()).unwrap_err();
        let code = |error: &Error| {
            let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
            source.and_then(std::io::Error::raw_os_error)
        };
        assert_eq!((told.kind(), code(&told)), (crate::error::Kind::System, code(&error)), "{error}; {told}");
        assert!(told.message().starts_with("another rank could not write to the file store"), "{told}");
        // A mark says nothing once a value has come.
        giver.set("id", b"value", &wait()).unwrap();
        giver.delete("id", &wait()).unwrap();
        assert!(giver.mark_under("id").is_none());
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Regression: for ten seconds each new try was told the failure of the one before.
    #[test]
    fn the_mark_of_a_failed_try_does_not_end_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        let wait = || Wait::new(Duration::from_secs(60), &crate::sync::AbortFlag::new());
        let open = || FileStore::open(folder.path().join("store"), &wait()).unwrap();
        let failure = Error::system("writing", std::io::Error::from_raw_os_error(28));
        let shortly = Wait::new(MARK_GRACE + Duration::from_millis(300), &crate::sync::AbortFlag::new());
        // Of a job that has ended.
        let mine = ProcessIdentity::mine().unwrap();
        let store = open();
        let ended = format!("28:{}:{}:{}", mine.process, mine.started + 1, mine.space);
        std::os::unix::fs::symlink(ended, store.mark("id")).unwrap();
        let error = store.get("id", &shortly).unwrap_err();
        assert_eq!(error.kind(), crate::error::Kind::Timeout, "{error}");
        // Of this process, which tries again.
        store.give_up("id", &failure);
        std::thread::scope(|scope| {
            let retry = scope.spawn(|| open().get("id", &wait()));
            open().begin("id");
            open().set("id", b"value", &wait()).unwrap();
            assert_eq!(retry.join().unwrap().unwrap(), b"value");
        });
        store.delete("id", &wait()).unwrap();
        // One that comes while a rank waits is told at once; one that stands and stands, too.
        store.give_up("id", &failure);
        assert_eq!(store.get("id", &wait()).unwrap_err().kind(), crate::error::Kind::System);
    }

    #[test]
    fn who_may_not_use_a_store_is_told_whose_it_is() {
        // Nobody but root owns this one.
        let store = FileStore { folder: PathBuf::from("/proc") };
        let told = |name: &str| store.named("opening", Path::new(name), ErrorKind::PermissionDenied.into()).to_string();
        let me = host::user_id();
        let expected = match me {
            0 => "/proc belongs to user 0, as this process does: look at its mode".to_owned(),
            _ => format!("/proc belongs to user 0, and this process is of user {me}: ranks of different users cannot"),
        };
        assert!(told("/proc/no_such_lock").contains(&expected), "{}", told("/proc/no_such_lock"));
        let other = store.named("opening", Path::new("/proc"), ErrorKind::NotFound.into()).to_string();
        assert!(!other.contains("belongs"), "{other}");
    }

    #[test]
    fn a_file_holds_what_was_put_in_and_nothing_else_passes() {
        let bytes = encode("key", b"value");
        assert_eq!(decode(&bytes, "key").unwrap(), b"value");
        assert!(decode(&bytes, "other").is_err());
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length], "key").is_err(), "cut to {length}");
        }
        for place in 0..bytes.len() {
            let mut spoilt = bytes.clone();
            spoilt[place] ^= 1;
            assert!(decode(&spoilt, "key").is_err(), "byte {place}");
        }
    }
}
