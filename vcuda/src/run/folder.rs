//! The folder of a run: made in memory, removed when dropped, and removed by a later run where this one was killed.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::space::FABRIC_FOLDER;

/// Begins the name of every run's folder.
const PREFIX: &str = "vcuda.";
/// Locked by the run that owns the folder.
const ALIVE: &str = "alive";
pub(super) const MACHINE_FILE: &str = "machine.toml";
/// A file system in memory with less room is passed over: containers often have a `/dev/shm` of 64 MiB.
const MIN_ROOM_BYTES: u64 = 256 << 20;
/// The libraries as cargo names them, and the names that loaders ask for.
const LIBRARIES: [(&str, &[&str]); 2] =
    [("libcuda.so", &["libcuda.so", "libcuda.so.1"]), ("libnvidia_ml.so", &["libnvidia-ml.so", "libnvidia-ml.so.1"])];

/// The folder of one run.
#[derive(Debug)]
pub(super) struct Folder {
    root: PathBuf,
    /// Its lock tells other runs that this folder is in use; the kernel gives it back however this process ends.
    _alive: File,
}

impl Folder {
    /// Makes the folder with its links to the libraries.
    pub(super) fn make(libraries: &Path) -> Result<Folder, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let parent = room()?;
        remove_abandoned(&parent);
        let root = parent.join(format!("{PREFIX}{}.{}", process::id(), MADE.fetch_add(1, Ordering::Relaxed)));
        let make = |path: &Path| fs::DirBuilder::new().mode(0o700).create(path).map_err(named("make the folder", path));
        make(&root)?;
        let alive = lock_new(&root.join(ALIVE)).inspect_err(|_| remove(&root))?;
        // From here on the folder is removed when this value is dropped.
        let folder = Folder { root, _alive: alive };
        make(&folder.fabric())?;
        make(&folder.root.join("lib"))?;
        for (built, names) in LIBRARIES {
            folder.link(&libraries.join(built), names)?;
        }
        Ok(folder)
    }

    fn link(&self, built: &Path, names: &[&str]) -> Result<(), String> {
        let target = built.canonicalize().map_err(|error| {
            format!("{}: {error}; `cargo build -p vcuda -p vcuda-driver -p vcuda-nvml` makes it", built.display())
        })?;
        for name in names {
            let place = self.root.join("lib").join(name);
            symlink(&target, &place).map_err(named("make the link", &place))?;
        }
        Ok(())
    }

    /// Makes the state folder of a host, with its machine file.
    pub(super) fn add_host(&self, host: u32, machine: &str) -> Result<(), String> {
        let state = self.state(host);
        fs::DirBuilder::new().mode(0o700).create(&state).map_err(named("make the folder", &state))?;
        let file = state.join(MACHINE_FILE);
        fs::write(&file, machine).map_err(named("write", &file))
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// What the processes of a host find in `VCUDA_STATE`.
    pub(super) fn state(&self, host: u32) -> PathBuf {
        self.root.join(format!("host{host}"))
    }

    /// Where hosts have one state, because memory crosses between them.
    pub(super) fn fabric(&self) -> PathBuf {
        self.root.join(FABRIC_FOLDER)
    }

    /// `LD_LIBRARY_PATH` with the machine's libraries first.
    pub(super) fn library_path(&self, inherited: Option<OsString>) -> OsString {
        let mut path = self.root.join("lib").into_os_string();
        if let Some(inherited) = inherited.filter(|inherited| !inherited.is_empty()) {
            path.push(":");
            path.push(inherited);
        }
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.root);
    }
}

/// The first place in memory with room for blocks of device memory, else the folder for temporary files.
fn room() -> Result<PathBuf, String> {
    let shared = PathBuf::from("/dev/shm");
    if free_bytes(&shared).is_ok_and(|free| free >= MIN_ROOM_BYTES) {
        return Ok(shared);
    }
    let temporary = env::temp_dir();
    match free_bytes(&temporary) {
        Ok(free) if free >= MIN_ROOM_BYTES => Ok(temporary),
        Ok(free) => Err(format!(
            "{} has {free} bytes left; a machine needs {MIN_ROOM_BYTES} there or in /dev/shm",
            temporary.display()
        )),
        Err(error) => Err(format!("{}: {error}", temporary.display())),
    }
}

fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: all-zero bytes are a value of this plain C struct.
    let mut room: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends in a zero byte and the struct is ours; the call writes only there.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut room) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(room.f_bavail.saturating_mul(room.f_frsize))
}

/// Removes folders whose run is dead: their lock can be had.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().as_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        // Without the file the folder is being made at this moment, or belongs to somebody else.
        let Ok(alive) = File::open(entry.path().join(ALIVE)) else { continue };
        if lock(&alive).is_ok() {
            remove(&entry.path());
        }
    }
}

/// Makes a file that is locked from the first moment at which its name can be seen: between making and locking
/// another run, which begins just now, would take the folder for one whose run is dead.
fn lock_new(path: &Path) -> Result<File, String> {
    let unseen = path.with_extension("new");
    let file = File::create_new(&unseen).map_err(named("make", &unseen))?;
    lock(&file).map_err(named("lock", &unseen))?;
    fs::rename(&unseen, path).map_err(named("make", path))?;
    Ok(file)
}

fn lock(file: &File) -> io::Result<()> {
    // SAFETY: the descriptor is open as long as the file lives.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(());
    }
    Err(io::Error::last_os_error())
}

fn remove(root: &Path) {
    if let Err(error) = fs::remove_dir_all(root) {
        eprintln!("vcuda: the folder {} remains: {error}", root.display());
    }
}

fn named<'a>(what: &'a str, path: &'a Path) -> impl Fn(io::Error) -> String + 'a {
    move |error| format!("cannot {what} {}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::{ALIVE, Folder, remove_abandoned, room};

    fn libraries(name: &str) -> PathBuf {
        let place = std::env::temp_dir().join(format!("vcuda-folder-{}-{name}", std::process::id()));
        fs::create_dir_all(&place).unwrap();
        for library in ["libcuda.so", "libnvidia_ml.so"] {
            fs::write(place.join(library), b"").unwrap();
        }
        place
    }

    #[test]
    fn a_folder_holds_what_a_loader_asks_for_and_goes_away() {
        let built = libraries("holds");
        let folder = Folder::make(&built).unwrap();
        folder.add_host(0, "mps = true\n").unwrap();
        let root = folder.root().to_owned();
        for name in ["libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"] {
            assert!(root.join("lib").join(name).exists(), "{name}");
        }
        assert_eq!(fs::read_to_string(folder.state(0).join("machine.toml")).unwrap(), "mps = true\n");
        assert!(folder.library_path(Some("/usr/lib".into())).to_string_lossy().ends_with("/lib:/usr/lib"));
        drop(folder);
        assert!(!root.exists());
        fs::remove_dir_all(built).unwrap();
    }

    #[test]
    fn libraries_that_are_not_built_are_named_and_nothing_remains() {
        let built = libraries("missing");
        fs::remove_file(built.join("libnvidia_ml.so")).unwrap();
        let error = Folder::make(&built).unwrap_err();
        assert!(error.contains("libnvidia_ml.so") && error.contains("cargo build"), "{error}");
        fs::remove_dir_all(built).unwrap();
    }

    #[test]
    fn a_folder_that_is_being_made_is_not_taken_for_abandoned() {
        let built = libraries("being-made");
        let parent = room().unwrap();
        let made = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !made.load(Ordering::Acquire) {
                    remove_abandoned(&parent);
                }
            });
            // Nothing in here panics before the other thread is told to end.
            let failure = (0..500).find_map(|_| Folder::make(&built).err());
            made.store(true, Ordering::Release);
            assert_eq!(failure, None);
        });
        fs::remove_dir_all(built).unwrap();
    }

    #[test]
    fn a_folder_whose_run_is_dead_is_removed() {
        let parent = std::env::temp_dir().join(format!("vcuda-abandoned-{}", std::process::id()));
        let dead = parent.join("vcuda.1.0");
        fs::create_dir_all(&dead).unwrap();
        fs::write(dead.join(ALIVE), b"").unwrap();
        let strange = parent.join("vcuda.others");
        fs::create_dir_all(&strange).unwrap();
        remove_abandoned(&parent);
        assert!(!dead.exists() && strange.exists());
        fs::remove_dir_all(parent).unwrap();
    }
}
