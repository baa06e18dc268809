//! What lies behind addresses of this process, as far as the kernel tells: whether pages may take the place of others.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use crate::error::{Error, Result};
use crate::sys::own_status::{kilobytes, text};
use crate::sys::{open, pinning};

/// Refuses addresses whose pages must stay where they are: only ordinary private memory may move to a file.
///
/// Pages that another part of the program has pinned for a device would go on receiving data in the old place, unseen.
/// The kernel tells whether a process has pinned pages, and not which: `pins` says what to do about that. Those that
/// NICs have pinned for this library are its own memory, and do not count ([`pinning::OwnPins`]). Those of some drivers
/// the kernel does not count; those of GPUs and of VFIO show by what the process has mapped.
///
/// Where promised memory is counted strictly, a mapping over others may be refused when these have gone already
/// (kernels before 6.12): no page moves there.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] for what must stay; [`crate::error::Kind::System`] where the kernel does not
/// tell.
pub(super) fn check_movable(addresses: &Range<usize>, pins: PinnedPages) -> Result<()> {
    let maps = text("maps")?;
    if let Some(why) = unmovable(&maps, addresses) {
        return Err(stays(why));
    }
    if is_strict(std::fs::read_to_string("/proc/sys/vm/overcommit_memory").as_deref().unwrap_or_default()) {
        return Err(stays(Unmovable::StrictPromises));
    }
    let own_before = pinning::own_pins_bytes();
    let status = text("status")?;
    if kilobytes(&status, "VmLck") > 0 && is_locked(&text("smaps")?, addresses) {
        return Err(stays(Unmovable::Locked));
    }
    // Those that were own all the time in which the kernel was asked.
    let own = own_before.min(pinning::own_pins_bytes());
    if pins == PinnedPages::Unknown && (kilobytes(&status, "VmPin") << 10 > own || has_pinning_device(&maps)) {
        return Err(stays(Unmovable::PerhapsPinned));
    }
    Ok(())
}

/// Whether `vm.overcommit_memory`, whose file has this text, counts promised memory strictly.
fn is_strict(overcommit: &str) -> bool {
    overcommit.trim() == "2"
}

/// Whether the process has mapped a device whose driver pins pages that no count shows.
fn has_pinning_device(maps: &str) -> bool {
    let devices = ["/dev/nvidia", "/dev/vfio", "anon_inode:[vfio", "/dev/kfd"];
    maps.lines().filter_map(Mapping::parse).any(|mapping| devices.iter().any(|device| mapping.name.starts_with(device)))
}

/// What the caller knows of pages that are pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinnedPages {
    /// Nothing: where the process has pinned pages, these may be among them.
    Unknown,
    /// None of these pages is pinned.
    NoneHere,
}

/// Why pages stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unmovable {
    Hole,
    Shared,
    File,
    HugePages,
    Protected,
    MainStack,
    Locked,
    StrictPromises,
    PerhapsPinned,
}

fn stays(why: Unmovable) -> Error {
    Error::invalid_usage(match why {
        Unmovable::Hole => "some of it is not mapped",
        Unmovable::Shared => "some of it is a shared mapping: only private memory can be registered in place",
        Unmovable::File => {
            "some of it is mapped from a file (initialised data of a program is): copy it to memory of its own"
        }
        Unmovable::HugePages => "some of it lies in huge pages of hugetlbfs: allocate it by rsccl::Buffer",
        Unmovable::Protected => "some of it cannot be read and written, or can be executed",
        Unmovable::MainStack => "some of it is the stack of the main thread: allocate it on the heap",
        Unmovable::Locked => {
            "some of it is locked (mlock), and the lock would be lost: unlock it, or allocate it by rsccl::Buffer"
        }
        Unmovable::StrictPromises => {
            "the kernel counts promised memory strictly (vm.overcommit_memory=2), and may refuse a mapping when the \
             one in its place is gone: allocate it by rsccl::Buffer"
        }
        Unmovable::PerhapsPinned => {
            "the process has pinned pages (VmPin in /proc/self/status: io_uring, RDMA) or may have (a GPU's or VFIO's \
             device is mapped), and what a device writes into a pinned page that has moved is lost: register memory \
             without pinned pages by Registered::vouched, or allocate it by rsccl::Buffer"
        }
    })
}

/// The mapping in which `address` lies.
pub(super) fn mapping_of(address: usize) -> Option<Range<usize>> {
    let maps = text("maps").ok()?;
    let found =
        maps.lines().filter_map(Mapping::parse).find(|mapping| mapping.start <= address && address < mapping.end);
    found.map(|mapping| mapping.start..mapping.end)
}

/// Whether `addresses` show `file` from `offset` on, and nothing else. Where the kernel does not tell, they do.
pub(super) fn show_file(addresses: &Range<usize>, file: &OwnedFd, offset: usize) -> bool {
    let Some(file) = FileName::of(file) else { return true };
    let by_query = MappingQuery::open().and_then(|query| {
        are_all(addresses, |at| {
            let found = query.at(at)?;
            Ok(found.filter(|found| {
                found.file == file && found.offset + (at - found.start) == offset + (at - addresses.start)
            }))
        })
    });
    by_query.unwrap_or_else(|_| {
        let Ok(maps) = text("maps") else { return true };
        let shown = |at: usize| {
            let mapping =
                maps.lines().filter_map(Mapping::parse).find(|mapping| (mapping.start..mapping.end).contains(&at));
            let found = mapping.and_then(|mapping| mapping.of_file());
            found.filter(|found| {
                found.file == file && found.offset + (at - found.start) == offset + (at - addresses.start)
            })
        };
        are_all(addresses, |at| Ok(shown(at))).unwrap_or(true)
    })
}

/// Whether `look` finds a mapping at each of the addresses.
fn are_all(addresses: &Range<usize>, look: impl Fn(usize) -> io::Result<Option<FileMapping>>) -> io::Result<bool> {
    let mut at = addresses.start;
    while at < addresses.end {
        let Some(found) = look(at)? else { return Ok(false) };
        at = found.end;
    }
    Ok(true)
}

/// What tells a file from all others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileName {
    device: (u32, u32),
    inode: u64,
}

impl FileName {
    fn of(file: &OwnedFd) -> Option<FileName> {
        let mut status = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: a plain call on a descriptor that we own; it writes one `stat`.
        let failed = unsafe { libc::fstat(file.as_raw_fd(), status.as_mut_ptr()) } != 0;
        if failed {
            return None;
        }
        // SAFETY: the call has written it.
        let status = unsafe { status.assume_init() };
        Some(FileName { device: (libc::major(status.st_dev), libc::minor(status.st_dev)), inode: status.st_ino })
    }
}

/// A part of a file, where it is mapped.
#[derive(Debug, PartialEq, Eq)]
struct FileMapping {
    start: usize,
    end: usize,
    offset: usize,
    file: FileName,
}

/// `/proc/self/maps`, asked for one address (Linux 6.11): a third of a microsecond, where to read it takes some tens.
struct MappingQuery(std::fs::File);

/// The kernel's `struct procmap_query`.
#[repr(C)]
#[derive(Debug, Default)]
struct ProcmapQuery {
    size: u64,
    query_flags: u64,
    query_addr: u64,
    vma_start: u64,
    vma_end: u64,
    vma_flags: u64,
    vma_page_size: u64,
    vma_offset: u64,
    inode: u64,
    dev_major: u32,
    dev_minor: u32,
    vma_name_size: u32,
    build_id_size: u32,
    vma_name_addr: u64,
    build_id_addr: u64,
}

const _: () = assert!(size_of::<ProcmapQuery>() == 104);
/// `_IOWR('f', 17, struct procmap_query)`.
const PROCMAP_QUERY: libc::c_ulong = 3 << 30 | 104 << 16 | 0x66 << 8 | 17;

impl MappingQuery {
    fn open() -> io::Result<MappingQuery> {
        open::file(Path::new("/proc/self/maps")).map(MappingQuery)
    }

    /// The mapping that covers `address`, if there is one.
    fn at(&self, address: usize) -> io::Result<Option<FileMapping>> {
        let mut asked = ProcmapQuery { size: 104, query_addr: address as u64, ..ProcmapQuery::default() };
        // SAFETY: the call reads and writes one such structure, which asks for no text.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), PROCMAP_QUERY, &raw mut asked) } != 0 {
            let error = io::Error::last_os_error();
            return if error.raw_os_error() == Some(libc::ENOENT) { Ok(None) } else { Err(error) };
        }
        let number = |word: u64| usize::try_from(word).map_err(io::Error::other);
        Ok(Some(FileMapping {
            start: number(asked.vma_start)?,
            end: number(asked.vma_end)?,
            offset: number(asked.vma_offset)?,
            file: FileName { device: (asked.dev_major, asked.dev_minor), inode: asked.inode },
        }))
    }
}

/// The parts of `addresses` that lie in one mapping each.
pub(super) fn mappings(addresses: &Range<usize>) -> Vec<Range<usize>> {
    let (mut parts, mut at) = (Vec::new(), addresses.start);
    if let Ok(query) = MappingQuery::open() {
        while let Ok(Some(found)) = if at < addresses.end { query.at(at) } else { Ok(None) } {
            parts.push(at..found.end.min(addresses.end));
            at = found.end;
        }
        if at >= addresses.end {
            return parts;
        }
    }
    let Ok(maps) = text("maps") else { return Vec::new() };
    let part = |mapping: Mapping<'_>| mapping.start.max(addresses.start)..mapping.end.min(addresses.end);
    maps.lines().filter_map(Mapping::parse).map(part).filter(|part| !part.is_empty()).collect()
}

/// The first reason that the lines of `/proc/PID/maps` give against some of the addresses.
fn unmovable(maps: &str, addresses: &Range<usize>) -> Option<Unmovable> {
    let mut next = addresses.start;
    for mapping in maps.lines().filter_map(Mapping::parse) {
        if mapping.end <= next {
            continue;
        }
        if mapping.start > next {
            return Some(Unmovable::Hole);
        }
        if let Some(why) = mapping.stays() {
            return Some(why);
        }
        next = mapping.end;
        if next >= addresses.end {
            return None;
        }
    }
    Some(Unmovable::Hole)
}

/// A line of `/proc/PID/maps`.
#[derive(Debug, PartialEq, Eq)]
struct Mapping<'a> {
    start: usize,
    end: usize,
    permissions: &'a str,
    offset: &'a str,
    device: &'a str,
    inode: &'a str,
    name: &'a str,
}

impl<'a> Mapping<'a> {
    fn parse(line: &'a str) -> Option<Mapping<'a>> {
        let mut fields = line.splitn(6, ' ');
        let (start, end) = addresses_of(fields.next()?)?;
        let (permissions, offset, device, inode) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let name = fields.next().unwrap_or("").trim_start();
        Some(Mapping { start, end, permissions, offset, device, inode, name })
    }

    fn of_file(&self) -> Option<FileMapping> {
        let (major, minor) = self.device.split_once(':')?;
        // What is no number is no line of the kernel's.
        let hexadecimal = |text| u32::from_str_radix(text, 16).ok();
        let file = FileName { device: (hexadecimal(major)?, hexadecimal(minor)?), inode: self.inode.parse().ok()? };
        let offset = usize::from_str_radix(self.offset, 16).ok()?;
        Some(FileMapping { start: self.start, end: self.end, offset, file })
    }

    fn stays(&self) -> Option<Unmovable> {
        let is_file = self.inode != "0";
        match self.permissions {
            _ if self.name.starts_with("/anon_hugepage") => Some(Unmovable::HugePages),
            permissions if permissions.ends_with('s') => Some(Unmovable::Shared),
            _ if is_file => Some(Unmovable::File),
            permissions if permissions != "rw-p" => Some(Unmovable::Protected),
            _ if self.name == "[stack]" => Some(Unmovable::MainStack),
            // The kernel's own, such as [vvar].
            _ if !(self.name.is_empty() || self.name == "[heap]" || self.name.starts_with("[anon:")) => {
                Some(Unmovable::Protected)
            }
            _ => None,
        }
    }
}

fn addresses_of(field: &str) -> Option<(usize, usize)> {
    let (start, end) = field.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

/// Whether `/proc/PID/smaps` has the flag of locked pages at some of the addresses.
fn is_locked(smaps: &str, addresses: &Range<usize>) -> bool {
    let mut inside = false;
    for line in smaps.lines() {
        if let Some((start, end)) = line.split(' ').next().and_then(addresses_of) {
            inside = start < addresses.end && end > addresses.start;
        } else if inside && line.strip_prefix("VmFlags:").is_some_and(|flags| flags.split(' ').any(|flag| flag == "lo"))
        {
            return true;
        }
    }
    false
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    const MAPS: &str = "\
        10000-20000 rw-p 00000000 00:00 0 \n\
        20000-30000 rw-p 00000000 00:00 0                          [heap]\n\
        40000-50000 r--p 00000000 00:00 0 \n\
        50000-60000 rw-p 00001000 08:01 4711                       /usr/lib/a file\n\
        60000-70000 rw-s 00000000 00:01 12                         /memfd:rsccl-buffer (deleted)\n\
        70000-80000 rw-p 00000000 00:0f 77                         /anon_hugepage (deleted)\n\
        80000-90000 rw-p 00000000 00:00 0                          [anon:arena]\n\
        90000-a0000 rw-p 00000000 00:00 0                          [stack]\n\
        a0000-b0000 rwxp 00000000 00:00 0 \n\
        no line\n\
        b0000-c0000 rw-p 00000000 00:00 0                          [vvar]\n";

    #[test]
    fn devices_and_strict_promises_are_seen() {
        assert!(!has_pinning_device(MAPS) && is_strict("2\n") && !is_strict("0\n") && !is_strict(""));
        for device in ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/vfio/12", "anon_inode:[vfio-device]", "/dev/kfd"] {
            let maps = format!("{MAPS}c0000-d0000 rw-s 00000000 00:06 99 {device}\n");
            assert!(has_pinning_device(&maps), "{device}");
        }
    }

    #[test]
    fn only_private_memory_moves() {
        let why = |start: usize, end: usize| unmovable(MAPS, &(start..end));
        assert_eq!(why(0x11000, 0x2f000), None, "two mappings without a hole");
        assert_eq!(why(0x80000, 0x90000), None);
        assert_eq!(why(0x2f000, 0x31000), Some(Unmovable::Hole));
        assert_eq!(why(0xbf000, 0xc1000), Some(Unmovable::Protected));
        assert_eq!(why(0xd0000, 0xd1000), Some(Unmovable::Hole));
        assert_eq!(why(0x40000, 0x41000), Some(Unmovable::Protected));
        assert_eq!(why(0x50000, 0x51000), Some(Unmovable::File));
        assert_eq!(why(0x61000, 0x62000), Some(Unmovable::Shared));
        assert_eq!(why(0x71000, 0x72000), Some(Unmovable::HugePages));
        assert_eq!(why(0x8f000, 0x91000), Some(Unmovable::MainStack));
        assert_eq!(why(0xa0000, 0xa1000), Some(Unmovable::Protected));
    }

    #[test]
    fn both_ways_of_asking_say_the_same_of_a_mapping() {
        use crate::sys::memory::{map, sealed_file};

        const PAGES: usize = 4;
        let [file, other] = [(); 2].map(|()| sealed_file(c"mapped", PAGES * 4096).unwrap());
        let base = map(PAGES * 4096, libc::MAP_SHARED, file.as_raw_fd()).unwrap();
        let start = base.as_ptr().addr();
        let all = start..start + PAGES * 4096;
        assert!(show_file(&all, &file, 0) && !show_file(&all, &other, 0) && !show_file(&all, &file, 4096));
        assert!(show_file(&(start + 4096..start + 2 * 4096), &file, 4096));
        let maps = text("maps").unwrap();
        let line = maps.lines().filter_map(Mapping::parse).find(|mapping| mapping.start == start).unwrap();
        let by_text = line.of_file().unwrap();
        match MappingQuery::open().unwrap().at(start) {
            Ok(found) => assert_eq!(found.unwrap(), by_text),
            Err(error) => println!("skipped: this kernel answers no such query: {error}"),
        }
        // SAFETY: the mapping is this test's, and nobody has a pointer into it.
        assert_eq!(unsafe { libc::munmap(base.as_ptr().cast(), 4096) }, 0);
        assert!(!show_file(&all, &file, 0), "a hole");
        // SAFETY: as above; of what has gone nothing is unmapped.
        assert_eq!(unsafe { libc::munmap(base.as_ptr().cast(), PAGES * 4096) }, 0);
    }

    #[test]
    fn locks_and_pins_are_found() {
        let smaps = "10000-20000 rw-p 00000000 00:00 0 \nRss: 4 kB\nVmFlags: rd wr mr mw me ac \n\
                     20000-30000 rw-p 00000000 00:00 0 \nVmFlags: rd wr lo ac \n";
        let locked = |start: usize, end: usize| is_locked(smaps, &(start..end));
        assert!(!locked(0x10000, 0x20000) && locked(0x20000, 0x21000) && locked(0x1f000, 0x21000));
        let status = "Name:\tx\nVmLck:\t    8 kB\nVmPin:\t    1024 kB\n";
        assert_eq!(["VmLck", "VmPin", "VmSwap"].map(|name| kilobytes(status, name)), [8, 1024, 0]);
    }
}
