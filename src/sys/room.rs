//! How much more memory a program's buffers can have: by the limits of its cgroup and of those above it, and by the
//! machine.
//!
//! Memory that was only asked for has no pages yet: the first touch takes them, and decides on which NUMA node. Where
//! there is no room for them the kernel then ends the process, without a word. So room is looked up when a program asks
//! for a buffer. A buffer that was asked for earlier and not touched yet ([`PromisedFile`]) has its pages ahead of it
//! too. What other processes were promised and have not touched cannot be seen. The library's own memory is left out:
//! much of it is never touched.
//!
//! | of | limit | used | could be given back |
//! |---|---|---|---|
//! | cgroup v2 | `memory.max`, `memory.swap.max` | `memory.current`, `memory.swap.current` | files and slabs in `memory.stat` |
//! | cgroup v1 | `memory.limit_in_bytes`, `memory.memsw.limit_in_bytes` | `….usage_in_bytes` | files in `memory.stat` |
//! | machine | `MemTotal` and `SwapTotal` of `/proc/meminfo` | | |
//!
//! What other programs have of the machine now they may soon give back, so only its whole memory is a limit.

use crate::sync::primitive::statics::MutexGuard;
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::sys::handed_down::HandedDown;
use crate::sys::limits;

/// Fails if `bytes` more of memory cannot be had. Small requests are not looked up.
///
/// # Errors
/// [`crate::error::Kind::System`], which names what has too little room.
pub(super) fn check(bytes: usize) -> Result<()> {
    if bytes < LOOKED_UP_BYTES {
        return Ok(());
    }
    let Some(room) = least(Path::new("/")) else { return Ok(()) };
    let (wanted, ahead) = (u64::try_from(bytes).unwrap_or(u64::MAX), untouched());
    if wanted.saturating_add(ahead) <= room.bytes {
        return Ok(());
    }
    let earlier = if ahead == 0 { String::new() } else { format!(", beside {ahead} asked for earlier") };
    let call = format!("memory of {bytes} bytes{earlier}, where {} has room for {}", room.of, room.bytes);
    let error = Error::system(call, std::io::Error::from_raw_os_error(libc::ENOMEM));
    Err(error.advising(limits::LESS_MEMORY))
}

/// Requests of fewer bytes are not looked up: reading the files takes about 100 µs.
const LOOKED_UP_BYTES: usize = 1 << 20;

/// Memory behind a file that this process was promised, as long as this lives.
#[derive(Debug)]
pub(super) struct PromisedFile(RawFd);

impl PromisedFile {
    /// Of `bytes` behind `file`, which the caller keeps open as long as this lives.
    pub(super) fn new(file: &OwnedFd, bytes: usize) -> PromisedFile {
        promised().insert(file.as_raw_fd(), u64::try_from(bytes).unwrap_or(u64::MAX));
        PromisedFile(file.as_raw_fd())
    }
}

impl Drop for PromisedFile {
    fn drop(&mut self) {
        promised().remove(&self.0);
    }
}

/// The files of all promises, by descriptor, with their lengths. The memory is the process's, and so is this; a forked
/// child has its parent's.
static PROMISED: HandedDown<BTreeMap<RawFd, u64>> = HandedDown::new(BTreeMap::new, BTreeMap::clone);

fn promised() -> MutexGuard<'static, BTreeMap<RawFd, u64>> {
    PROMISED.lock()
}

/// The bytes of all promises that have no page yet.
fn untouched() -> u64 {
    let ahead = |(file, bytes): (&RawFd, &u64)| bytes.saturating_sub(taken(*file));
    promised().iter().map(ahead).fold(0, u64::saturating_add)
}

/// The bytes of a file that have a page, in memory or swapped out. All of them, if the system does not tell.
fn taken(file: RawFd) -> u64 {
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut about: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the descriptor is a number here, of a file that its promise keeps open; the call fills `about`.
    if unsafe { libc::fstat(file, &raw mut about) } != 0 {
        return u64::MAX;
    }
    u64::try_from(about.st_blocks).map_or(u64::MAX, |blocks| blocks.saturating_mul(BLOCK_BYTES))
}

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// Room, and what has no more of it.
#[derive(Debug, PartialEq, Eq)]
struct Room {
    bytes: u64,
    of: String,
}

/// The least room of all that bound this process; `None` if nothing says anything. `root` is `/`, or a test's folder.
fn least(root: &Path) -> Option<Room> {
    let machine = machine(root);
    let swap = machine.as_ref().map_or(0, |(_, swap)| *swap);
    let mut rooms: Vec<Room> = machine.into_iter().map(|(room, _)| room).collect();
    for (group, version) in groups(root) {
        rooms.extend(version.rooms(&root.join(group.trim_start_matches('/')), swap).map(|(file, bytes)| {
            let of = format!("{file} of {group}");
            Room { bytes, of }
        }));
    }
    rooms.into_iter().min_by_key(|room| room.bytes)
}

/// All of the machine's memory and swap, and its swap alone.
fn machine(root: &Path) -> Option<(Room, u64)> {
    let text = text(&root.join("proc/meminfo"))?;
    let kilobytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()
    };
    let swap = kilobytes("SwapTotal").unwrap_or(0).saturating_mul(1024);
    let bytes = kilobytes("MemTotal")?.saturating_mul(1024).saturating_add(swap);
    Some((Room { bytes, of: "this machine".to_owned() }, swap))
}

/// The two interfaces of the kernel to memory cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// The folders of this process's memory cgroup and of those above it, as far as they can be seen from here.
fn groups(root: &Path) -> Vec<(String, Version)> {
    let (Some(own), Some(mounts)) = (text(&root.join("proc/self/cgroup")), text(&root.join("proc/self/mountinfo")))
    else {
        return Vec::new();
    };
    let mut groups = Vec::new();
    for line in own.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => Version::Two,
            names if names.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        // A container sees a part of the tree: its mount begins at a group. Of several mounts the one that shows most.
        let seen = mounts.lines().filter_map(|line| mount(line, version));
        let seen = seen.filter_map(|(top, point)| Some((point, below(path, top)?)));
        if let Some((point, below)) = seen.max_by_key(|(_, below)| below.components().count()) {
            let mut folder = PathBuf::from(point);
            folder.extend(below);
            loop {
                groups.push((folder.to_string_lossy().into_owned(), version));
                if folder == Path::new(point) || groups.len() >= MOST_GROUPS || !folder.pop() {
                    break;
                }
            }
        }
    }
    groups
}

/// The way from the group `top` down to the group `path`; `None` where `path` is not below `top`, or not to be seen.
fn below<'a>(path: &'a str, top: &str) -> Option<&'a Path> {
    let below = Path::new(path).strip_prefix(top).ok()?;
    below.components().all(|part| matches!(part, Component::Normal(_))).then_some(below)
}

/// Of a line of `mountinfo`, if it is the mount of this kind of group: the group at its top, and where it is mounted.
fn mount(line: &str, version: Version) -> Option<(&str, &str)> {
    let (before, after) = line.split_once(" - ")?;
    let mut fields = before.split(' ').skip(3);
    let (top, point) = (fields.next()?, fields.next()?);
    let mut kind = after.split(' ');
    let (name, options) = (kind.next()?, kind.nth(1).unwrap_or(""));
    let fits = match version {
        Version::One => name == "cgroup" && options.split(',').any(|option| option == "memory"),
        Version::Two => name == "cgroup2",
    };
    fits.then_some((top, point))
}

impl Version {
    /// The room by each limit of the group with this folder, with the limit's file. A group without limits has none.
    fn rooms(self, folder: &Path, swap_total: u64) -> impl Iterator<Item = (&'static str, u64)> {
        let value = |name: &str| text(&folder.join(name))?.trim().parse::<u64>().ok();
        let stat = text(&folder.join("memory.stat")).unwrap_or_default();
        let counted = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let left = |limit: &str, used: &str, back: u64| {
            let (limit, used) = (value(limit)?, value(used)?);
            Some(limit.saturating_sub(used.saturating_sub(back)))
        };
        let (memory, both) = match self {
            Version::One => {
                let back = counted("total_inactive_file") + counted("total_active_file");
                let memory = left("memory.limit_in_bytes", "memory.usage_in_bytes", back);
                let both = left("memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes", back);
                let memory = memory.map(|bytes| ("memory.limit_in_bytes", bytes.saturating_add(swap_total)));
                (memory, both.map(|bytes| ("memory.memsw.limit_in_bytes", bytes)))
            }
            Version::Two => {
                let back = counted("inactive_file") + counted("active_file") + counted("slab_reclaimable");
                let swap = left("memory.swap.max", "memory.swap.current", 0).unwrap_or(u64::MAX).min(swap_total);
                let memory = left("memory.max", "memory.current", back);
                (memory.map(|bytes| ("memory.max", bytes.saturating_add(swap))), None)
            }
        };
        [memory, both].into_iter().flatten()
    }
}

/// A short file's text. Where it is missing, or hidden, nothing is known.
fn text(path: &Path) -> Option<String> {
    super::gpus::read(path)
}

/// The most groups that are looked at; the tree of a machine is not as deep.
const MOST_GROUPS: usize = 64;

/// Runs `body` in a forked child, which has no promise yet.
#[cfg(test)]
#[cfg(not(loom))]
pub(super) fn alone(body: impl FnOnce() -> bool) -> bool {
    crate::sys::fork::in_child(move || {
        promised().clear();
        body()
    })
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::fs;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A machine of 8 GiB, most of which is in use, with these files.
    fn machine_with(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let meminfo = "MemTotal: 8388608 kB\nMemAvailable: 4096 kB\nSwapTotal:    1024 kB\nSwapFree: 0 kB\n";
        for (path, text) in [&[("proc/meminfo", meminfo)], files].concat() {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MOUNTS_V2: &str =
        "25 1 0:2 / /proc rw - proc proc rw\n30 1 0:3 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n";

    #[test]
    fn a_machine_without_groups_has_all_its_memory() {
        let root = machine_with(&[]);
        let room = least(root.path()).unwrap();
        assert_eq!(room, Room { bytes: 8193 * MIB, of: "this machine".to_owned() });
        assert_eq!(least(Path::new("/no/such/folder")), None);
    }

    #[test]
    fn the_tightest_group_of_version_two_counts() {
        let root = machine_with(&[
            ("proc/self/cgroup", "0::/slice/job\n"),
            ("proc/self/mountinfo", MOUNTS_V2),
            ("sys/fs/cgroup/slice/memory.max", "104857600\n"),
            ("sys/fs/cgroup/slice/memory.current", "94371840\n"),
            ("sys/fs/cgroup/slice/memory.stat", "anon 1\ninactive_file 10485760\nactive_file 0\nslab_reclaimable 5\n"),
            ("sys/fs/cgroup/slice/memory.swap.max", "0\n"),
            ("sys/fs/cgroup/slice/memory.swap.current", "0\n"),
            ("sys/fs/cgroup/slice/job/memory.max", "max\n"),
            ("sys/fs/cgroup/slice/job/memory.current", "4096\n"),
        ]);
        let of = "memory.max of /sys/fs/cgroup/slice".to_owned();
        assert_eq!(least(root.path()), Some(Room { bytes: 20 * MIB + 5, of }));
    }

    #[test]
    fn a_container_s_own_part_of_a_tree_of_version_one_is_found() {
        let root = machine_with(&[
            ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/docker/1a\n0::/\n"),
            ("proc/self/mountinfo", "35 31 0:32 /docker/1a /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "67108864\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "33554432\n"),
            ("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 1048576\ntotal_active_file 0\n"),
        ]);
        // With the machine's swap, which nothing forbids; with a limit of both, without.
        let of = |name: &str| format!("memory.{name}limit_in_bytes of /sys/fs/cgroup/memory");
        assert_eq!(least(root.path()), Some(Room { bytes: 34 * MIB, of: of("") }));
        for (name, text) in [("limit", "67108864"), ("usage", "33554432")] {
            fs::write(root.path().join(format!("sys/fs/cgroup/memory/memory.memsw.{name}_in_bytes")), text).unwrap();
        }
        assert_eq!(least(root.path()), Some(Room { bytes: 33 * MIB, of: of("memsw.") }));
    }

    /// Regression: the first mount was taken, whatever it showed, and names that begin alike were taken for ancestors.
    #[test]
    fn of_the_mounts_the_one_above_the_group_counts() {
        let mount = |top: &str, point: &str| format!("30 1 0:3 {top} {point} rw - cgroup2 cgroup2 rw\n");
        let mounts = [("/job", "/alike"), ("/other", "/beside"), ("/jobs/a", "/part"), ("/", "/all")];
        let mounts: String = mounts.iter().map(|(top, point)| mount(top, point)).collect();
        let root = machine_with(&[
            ("proc/self/cgroup", "0::/jobs/a\n"),
            ("proc/self/mountinfo", &mounts),
            ("alike/memory.max", "1\n"),
            ("alike/memory.current", "0\n"),
            ("beside/memory.max", "2\n"),
            ("beside/memory.current", "0\n"),
            ("all/jobs/memory.max", "1048576\n"),
            ("all/jobs/memory.current", "0\n"),
        ]);
        let of = "memory.max of /all/jobs".to_owned();
        assert_eq!(least(root.path()), Some(Room { bytes: 2 * MIB, of }), "with the swap");
        // What lies above a namespace cannot be seen.
        for own in ["0::/../x", "0::/other/../jobs"] {
            fs::write(root.path().join("proc/self/cgroup"), own).unwrap();
            assert_eq!(least(root.path()).unwrap().of, "this machine");
        }
    }

    #[test]
    fn a_forked_child_does_not_wait_for_a_thread_that_its_parent_has() {
        let _held = promised();
        assert!(crate::sys::fork::in_child(|| {
            let memory = crate::sys::memory::SharedMemory::for_program(1 << 20).expect("memory");
            drop(memory);
            true
        }));
    }

    /// Memory of the library that is never touched takes no room.
    #[test]
    fn memory_of_the_library_is_neither_refused_nor_counted() {
        assert!(alone(|| {
            let memory = crate::sys::memory::SharedMemory::memfd(1 << 20).expect("memory");
            let counted = untouched();
            drop(memory);
            counted == 0
        }));
    }

    #[test]
    fn whatever_the_files_say_is_survived() {
        for own in ["", "::", "0::", "x", "0::/../../..", "4:memory:\u{0}", "0::/a/b/c"] {
            for mounts in ["", " - ", "1 2 3 4 - cgroup2", "1 2 3 / / - cgroup2 a b", "1 2 3 /a /b - cgroup x memory"] {
                let root = machine_with(&[("proc/self/cgroup", own), ("proc/self/mountinfo", mounts)]);
                assert!(least(root.path()).is_some());
            }
        }
    }

    #[test]
    fn what_no_machine_has_is_refused_and_what_is_untouched_counts() {
        let refused = check(1 << 52).unwrap_err();
        assert!(refused.message().contains("has room for") && limits::is_shortage(&refused), "{refused}");
        let told = limits::with_remedy(refused.duplicate());
        assert_eq!(told.message(), refused.message(), "the cause is named");
        assert!(alone(|| {
            let memory = crate::sys::memory::SharedMemory::for_program(1 << 20).expect("memory");
            let before = untouched();
            // SAFETY: inside the mapping, one thread.
            unsafe { memory.at(5000, 1).as_ptr().write(7) };
            let after = untouched();
            drop(memory);
            // One page, which may be a large one.
            before == MIB && after < MIB && untouched() == 0
        }));
    }
}
