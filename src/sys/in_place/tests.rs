use super::*;
use crate::error::Kind;
use crate::sync::primitive::{AtomicU64, Ordering};
use crate::sys::memory::SharedMemory;
use crate::sys::pinning::OwnPins;
use crate::sys::room::alone;

mod steps;

const PAGE: usize = 4096;

/// Bytes of the program, wherever they are.
#[derive(Debug, Clone, Copy)]
struct Bytes {
    start: NonNull<u8>,
    count: usize,
}

impl Bytes {
    fn of(bytes: &mut [u8]) -> Bytes {
        Bytes { start: NonNull::new(bytes.as_mut_ptr()).unwrap(), count: bytes.len() }
    }

    /// Private pages of this many bytes.
    fn mapped(count: usize) -> Bytes {
        Bytes { start: map(count, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).unwrap(), count }
    }

    fn part(self, range: Range<usize>) -> Bytes {
        // SAFETY: tests ask for parts that are inside.
        Bytes { start: unsafe { self.start.add(range.start) }, count: range.len() }
    }

    fn slice(&mut self) -> &mut [u8] {
        // SAFETY: memory of the test, which is one thread.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }

    fn fill(&mut self, seed: usize) {
        self.slice().iter_mut().enumerate().for_each(|(at, byte)| *byte = pattern(at, seed));
    }

    fn holds(&mut self, seed: usize) -> bool {
        self.slice().iter().enumerate().all(|(at, byte)| *byte == pattern(at, seed))
    }

    fn place(self) -> Result<Arc<PlacedMemory>> {
        // SAFETY: memory of the test, which gives it back before it frees it.
        unsafe { PlacedMemory::new(self.start, self.count, PinnedPages::Unknown) }
    }

    fn addresses(self) -> Range<usize> {
        let start = self.start.as_ptr().addr();
        start..start + self.count
    }
}

fn pattern(at: usize, seed: usize) -> u8 {
    u8::try_from((at * 7 + at / PAGE + seed) % 251).unwrap()
}

fn give_back(placed: &PlacedMemory) -> Result<()> {
    // SAFETY: one thread.
    unsafe { placed.give_back() }
}

/// The file as a peer maps it, and where the program's memory begins there.
fn as_peer(placed: &Arc<PlacedMemory>, bytes: Bytes) -> (SharedMemory, Bytes) {
    let file = placed.descriptor().unwrap().try_clone().unwrap();
    let theirs = SharedMemory::from_peer(file, PlacedMemory::region(placed).bytes()).unwrap();
    let offset = placed.range().offset_of(&bytes.addresses()).unwrap();
    let start = theirs.at(offset, bytes.count);
    (theirs, Bytes { start, count: bytes.count })
}

/// How many mappings there are at these addresses and a page before and behind. What the test itself allocates lies
/// elsewhere.
fn map_lines(bytes: Bytes) -> usize {
    let Range { start, end } = bytes.addresses();
    let about = start - PAGE..end + PAGE;
    let address = |hexadecimal: &str| usize::from_str_radix(hexadecimal, 16).unwrap();
    let overlaps = |line: &&str| {
        let (first, last) = line.split(' ').next().unwrap().split_once('-').unwrap();
        address(first) < about.end && address(last) > about.start
    };
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(overlaps).count()
}

/// Moves, shows to a peer, lets it write, and gives back.
fn there_and_back(mut bytes: Bytes, seed: usize) {
    bytes.fill(seed);
    let placed = bytes.place().unwrap();
    assert!(bytes.holds(seed), "what has moved is still there");
    let (theirs, mut seen) = as_peer(&placed, bytes);
    // What is at the edges when the pages move is in the file too.
    assert!(seen.holds(seed));
    seen.fill(seed + 1);
    let edges = placed.range().edges(&bytes.addresses());
    let start = bytes.start.as_ptr().addr();
    for (at, byte) in bytes.slice().iter().enumerate() {
        let is_edge = edges.iter().any(|edge| edge.contains(&(start + at)));
        assert_eq!(*byte, pattern(at, if is_edge { seed } else { seed + 1 }), "byte {at}");
    }
    bytes.fill(seed + 2);
    give_back(&placed).unwrap();
    give_back(&placed).unwrap();
    assert!(bytes.holds(seed + 2) && placed.descriptor().is_none());
    seen.slice().fill(99);
    assert!(bytes.holds(seed + 2), "no peer writes what was given back");
    drop(theirs);
}

#[test]
fn memory_of_any_origin_moves_and_comes_back() {
    static BSS: statics::Room = statics::Room::new();
    assert!(alone(|| {
        let mut whole = Bytes::mapped(70 * PAGE);
        whole.fill(5);
        for first in [0, 1, 16, PAGE - 1] {
            for count in [1, PAGE - 1, PAGE, PAGE + 1, 2 * PAGE - 1, 3 * PAGE, 60 * PAGE + 1] {
                let before = map_lines(whole);
                there_and_back(whole.part(PAGE + first..PAGE + first + count), count);
                assert_eq!(map_lines(whole), before, "{first} {count}");
            }
        }
        assert!(whole.part(0..PAGE).holds(5));
        let tail = whole.part(68 * PAGE..70 * PAGE);
        assert_eq!({ tail }.slice()[0], pattern(68 * PAGE, 5), "neighbours stay");
        // SAFETY: the heap grows by the part that is the test's.
        let brk = unsafe { libc::sbrk(20 * libc::intptr_t::try_from(PAGE).unwrap()) };
        there_and_back(Bytes { start: NonNull::new(brk.cast()).unwrap(), count: 20 * PAGE - 3 }, 3);
        there_and_back(BSS.bytes(), 4);
        true
    }));
}

/// Blocks of an allocator: of its heap, and with a mapping of their own. In a process of its own, because the kernel
/// joins no mapping that a forked child has inherited with a new one.
#[test]
fn blocks_of_an_allocator_move_and_come_back() {
    let mut fresh = std::process::Command::new(std::env::current_exe().unwrap());
    let role = "sys::in_place::tests::blocks_in_a_process_of_its_own";
    let output = fresh.args(["--exact", role, "--ignored", "--test-threads=1"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

/// In a process of its own: while it has pinned pages, no memory of its tests can be registered.
#[test]
fn pages_that_others_have_pinned_count_and_our_own_do_not() {
    let mut fresh = std::process::Command::new(std::env::current_exe().unwrap());
    let role = "sys::in_place::tests::pinned_pages_in_a_process_of_its_own";
    let output = fresh.args(["--exact", role, "--ignored", "--test-threads=1", "--nocapture"]).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
    if let Some(why) = told.lines().find(|line| line.starts_with("skipped")) {
        // Past the capture of tests, so that it is seen.
        drop(io::Write::write_all(&mut io::stderr(), format!("{why}\n").as_bytes()));
    }
}

#[test]
#[ignore = "a part of `pages_that_others_have_pinned_count_and_our_own_do_not`, which starts it"]
fn pinned_pages_in_a_process_of_its_own() {
    let (own, others, mine) = (Bytes::mapped(4 * PAGE), Bytes::mapped(PAGE), Bytes::mapped(2 * PAGE));
    let mut pins = OwnPins::default();
    // As a NIC does that pins what it is given.
    let Ok(_nic) = pins.count(&own.addresses(), || pinned_by_the_kernel(own)) else {
        println!("skipped: this kernel has no io_uring to pin pages by");
        return;
    };
    assert_eq!(crate::sys::pinning::own_pins_bytes(), 4 * PAGE as u64);
    give_back(&mine.place().unwrap()).unwrap();
    let of_another = pinned_by_the_kernel(others).unwrap();
    let error = mine.place().unwrap_err();
    assert!(error.kind() == Kind::InvalidUsage && error.message().contains("has pinned pages"), "{error}");
    drop(of_another);
    // What the kernel still counts is nobody's any more.
    drop(pins);
    assert!(mine.place().is_err());
}

/// Has the kernel pin pages, as it does for io_uring's buffers, for as long as the file is open.
fn pinned_by_the_kernel(bytes: Bytes) -> io::Result<OwnedFd> {
    const REGISTER_BUFFERS: libc::c_long = 0;
    // `struct io_uring_params`, which the kernel fills.
    let mut parameters = [0u32; 30];
    // SAFETY: the call writes no more than the parameters.
    let ring = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1, parameters.as_mut_ptr()) };
    let Ok(ring) = i32::try_from(ring).map(|ring| ring.max(-1)) else { return Err(io::ErrorKind::Other.into()) };
    if ring < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was just opened, and nobody else has it.
    let ring = unsafe { <OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(ring) };
    let buffer = libc::iovec { iov_base: bytes.start.as_ptr().cast(), iov_len: bytes.count };
    // SAFETY: the call reads one `iovec`; the pages are the test's, and stay as they are.
    let registered =
        unsafe { libc::syscall(libc::SYS_io_uring_register, ring.as_raw_fd(), REGISTER_BUFFERS, &raw const buffer, 1) };
    if registered == 0 { Ok(ring) } else { Err(io::Error::last_os_error()) }
}

/// The allocators that programs put in the place of the C library's.
#[test]
fn blocks_of_other_allocators_move_and_come_back() {
    for library in ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"] {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"];
        let mut places = folders.iter().map(|folder| std::path::Path::new(folder).join(library));
        let Some(place) = places.find(|place| place.exists()) else {
            // Past the capture of tests, so that it is seen.
            drop(io::Write::write_all(&mut io::stderr(), format!("skipped: no {library} here\n").as_bytes()));
            continue;
        };
        let mut fresh = std::process::Command::new(std::env::current_exe().unwrap());
        let role = "sys::in_place::tests::a_life_with_another_allocator";
        fresh.args(["--exact", role, "--ignored", "--test-threads=1"]).env("LD_PRELOAD", place);
        // Freed memory goes back to the system at once, so that registered pages lie beside holes.
        let output = fresh.env("MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0").output().unwrap();
        let told = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && told.contains("1 passed"), "{library}: {told}");
    }
}

#[test]
#[ignore = "another test starts it, in a process of its own"]
fn a_life_with_another_allocator() {
    for count in [1, 5000, 120_000, (9 << 20) + 5] {
        let (mut vector, mut boxed) = (vec![0u8; count], vec![1u8; count].into_boxed_slice());
        there_and_back(Bytes::of(&mut vector), count);
        there_and_back(Bytes::of(&mut boxed), count);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(["jemalloc", "mimalloc", "tcmalloc"].iter().any(|name| maps.contains(name)), "it is preloaded");
    assert!(random_life(7, 75), "seed 7");
}

#[test]
#[ignore = "a part of `blocks_of_an_allocator_move_and_come_back`, which starts it"]
fn blocks_in_a_process_of_its_own() {
    for count in [1, 100, 5000, 40_000, 120_000, 300_000, (9 << 20) + 5, (16 << 20) - 3] {
        let (mut vector, mut boxed) = (vec![0u8; count], vec![1u8; count].into_boxed_slice());
        for bytes in [Bytes::of(&mut vector), Bytes::of(&mut boxed)] {
            let before = map_lines(bytes);
            there_and_back(bytes, count);
            assert_eq!(map_lines(bytes), before, "{count}");
        }
    }
}

mod statics {
    use std::cell::UnsafeCell;

    use super::{Bytes, NonNull, PAGE};

    /// Data of the program that it begins with as zeros.
    pub(super) struct Room(UnsafeCell<[u8; 9 * PAGE]>);

    // SAFETY: one test uses it.
    unsafe impl Sync for Room {}

    impl Room {
        pub(super) const fn new() -> Room {
            Room(UnsafeCell::new([0; 9 * PAGE]))
        }

        pub(super) fn bytes(&self) -> Bytes {
            Bytes { start: NonNull::new(self.0.get().cast()).unwrap(), count: 9 * PAGE }
        }
    }
}

/// A block that was registered once is as good as before: an allocator makes it longer without a copy.
#[test]
fn what_was_given_back_is_one_mapping_with_its_neighbours() {
    assert!(alone(|| {
        let whole = Bytes::mapped(5 * PIECE_BYTES);
        let before = map_lines(whole);
        let parts = [PAGE..PIECE_BYTES * 2 + 5 * PAGE, 3 * PIECE_BYTES..3 * PIECE_BYTES + PAGE];
        let placed = parts.map(|part| whole.part(part).place().unwrap());
        assert!(map_lines(whole) > before);
        placed.iter().for_each(|placed| give_back(placed).unwrap());
        drop(placed);
        map_lines(whole) == before
    }));
}

/// Neighbours that were advised otherwise than by default, and a part with a policy of its own.
#[test]
fn advice_and_nodes_come_back_with_the_pages() {
    assert!(alone(|| {
        for advice in [libc::MADV_HUGEPAGE, libc::MADV_NOHUGEPAGE] {
            let whole = Bytes::mapped(2 * PIECE_BYTES);
            // SAFETY: memory of the test; advice changes no content.
            assert_eq!(unsafe { libc::madvise(whole.start.as_ptr().cast(), whole.count, advice) }, 0);
            let before = map_lines(whole);
            there_and_back(whole.part(5 * PAGE..2 * PIECE_BYTES - 100), 7);
            assert!(map_lines(whole) <= before + SEAM, "advice {advice}");
        }
        let whole = Bytes::mapped(40 * PAGE);
        let bind = |first: usize, pages: usize| {
            let (place, nodes) = (whole.part(first * PAGE..(first + pages) * PAGE).start, [1 as libc::c_ulong; 1]);
            let (mode, most) = (libc::MPOL_BIND as libc::c_ulong, 64 as libc::c_ulong);
            let (bytes, none) = ((pages * PAGE) as libc::c_ulong, 0 as libc::c_ulong);
            // SAFETY: the call reads one word, and changes no content.
            unsafe { libc::syscall(libc::SYS_mbind, place.as_ptr(), bytes, mode, nodes.as_ptr(), most, none) }
        };
        if bind(10, 20) != 0 {
            println!("skipped: this system lets no process bind its memory to nodes");
            return true;
        }
        let before = map_lines(whole);
        there_and_back(whole.part(5 * PAGE + 7..15 * PAGE + 9), 8);
        assert_eq!(map_lines(whole), before, "the policy is what the neighbours have");
        true
    }));
}

/// How many bytes of these addresses lie in huge pages, private ones and those of files.
fn huge_bytes(bytes: Bytes) -> (usize, usize) {
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut found) = (false, (0, 0));
    for line in smaps.lines() {
        if let Some((start, end)) = line.split(' ').next().and_then(|range| range.split_once('-')) {
            let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
            inside = number(start) < bytes.addresses().end && number(end) > bytes.addresses().start;
        }
        let kilobytes = |name: &str| {
            let text = line.strip_prefix(name).filter(|_| inside)?;
            text.trim().trim_end_matches(" kB").parse::<usize>().ok()
        };
        found.0 += kilobytes("AnonHugePages:").unwrap_or(0) << 10;
        found.1 += kilobytes("ShmemPmdMapped:").unwrap_or(0) << 10;
    }
    found
}

/// A process's memory is in huge pages as far as the system has some, so each attempt has others.
#[test]
fn memory_in_huge_pages_is_in_huge_pages_there_and_back() {
    assert!(alone(|| {
        for _ in 0..HUGE_ATTEMPTS {
            match huge_there_and_back() {
                Some(true) => return true,
                Some(false) => {}
                None => {
                    println!("skipped: this kernel has no huge pages to give now, or does not tell of them");
                    return true;
                }
            }
        }
        false
    }));
}

/// Beside memory in huge pages the system joins neighbours or leaves one seam, by when its own thread has looked there.
const SEAM: usize = 1;
/// How often memory is moved, of a system that may be short of huge pages.
const HUGE_ATTEMPTS: usize = 8;

/// Whether memory in huge pages was in such while registered and afterwards; `None` where the system has none.
fn huge_there_and_back() -> Option<bool> {
    const BYTES: usize = 4 * PIECE_BYTES;
    let whole = Bytes::mapped(BYTES);
    // SAFETY: memory of the test; advice changes no content.
    unsafe { libc::madvise(whole.start.as_ptr().cast(), whole.count, libc::MADV_HUGEPAGE) };
    // As an allocator's block lies.
    let mut bytes = whole.part(16..BYTES - 5 * PAGE);
    bytes.fill(1);
    if huge_bytes(whole).0 < BYTES / 2 || !PagePolicy::of(&whole.addresses()).is_huge() {
        return None;
    }
    let before = map_lines(whole);
    let placed = bytes.place().unwrap();
    assert!(bytes.holds(1));
    let (_, of_file) = huge_bytes(whole);
    println!("{of_file} of {BYTES} bytes in huge pages while registered");
    let (_theirs, mut seen) = as_peer(&placed, bytes);
    assert!(seen.part(PAGE..bytes.count - 2 * PAGE).count > 0 && seen.holds(1));
    bytes.fill(2);
    give_back(&placed).unwrap();
    assert!(bytes.holds(2));
    assert!(map_lines(whole) <= before + SEAM);
    Some(huge_bytes(whole).0 >= BYTES / 2 && of_file >= BYTES / 2)
}

#[test]
fn what_must_stay_is_refused_with_its_reason() {
    assert!(alone(|| {
        let refused = |bytes: Bytes, word: &str| {
            let before = map_lines(bytes);
            let error = bytes.place().expect_err(word);
            assert!(error.kind() == Kind::InvalidUsage && error.message().contains(word), "{error}");
            assert_eq!(map_lines(bytes), before);
        };
        let whole = Bytes::mapped(8 * PAGE);
        let pages = |first: usize| whole.part(first * PAGE..(first + 1) * PAGE);
        // SAFETY: pages of the test.
        assert_eq!(unsafe { libc::mprotect(pages(0).start.as_ptr().cast(), PAGE, libc::PROT_READ) }, 0);
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munmap(pages(3).start.as_ptr().cast(), PAGE) }, 0);
        // SAFETY: as above.
        let locked = unsafe { libc::mlock(pages(5).start.as_ptr().cast(), PAGE) } == 0;
        refused(whole.part(0..2 * PAGE), "read and written");
        refused(whole.part(2 * PAGE..5 * PAGE), "not mapped");
        if locked {
            refused(whole.part(4 * PAGE..6 * PAGE), "mlock");
            assert!(whole.part(6 * PAGE..8 * PAGE).place().is_ok_and(|placed| give_back(&placed).is_ok()));
        }
        let file = crate::sys::open::file(std::path::Path::new("/proc/self/exe")).unwrap();
        let from_file = map(2 * PAGE, libc::MAP_PRIVATE, file.as_raw_fd()).unwrap();
        refused(Bytes { start: from_file, count: 2 * PAGE }, "mapped from a file");
        let shared = SharedMemory::memfd(2 * PAGE).unwrap();
        refused(Bytes { start: shared.base(), count: 2 * PAGE }, "shared mapping");
        let twice = whole.part(6 * PAGE..8 * PAGE).place().unwrap();
        refused(whole.part(6 * PAGE..8 * PAGE), "shared mapping");
        give_back(&twice).unwrap();
        refused(whole.part(0..0), "no elements");
        true
    }));
}

/// Regression of shared memory at large: a limit ended the process by a signal.
#[test]
fn limits_are_errors_and_the_memory_is_as_it_was() {
    assert!(alone(|| {
        let mut bytes = Bytes::mapped(3 * PIECE_BYTES);
        bytes.fill(1);
        let before = map_lines(bytes);
        let limit = |which, value: u64| {
            let limit = libc::rlimit { rlim_cur: value, rlim_max: libc::RLIM_INFINITY };
            // SAFETY: the call reads one `rlimit`.
            assert_eq!(unsafe { libc::setrlimit(which, &raw const limit) }, 0);
        };
        limit(libc::RLIMIT_FSIZE, 1 << 20);
        let told = bytes.place().err().unwrap();
        assert!(told.message().contains("ulimit -f"), "{told}");
        limit(libc::RLIMIT_FSIZE, libc::RLIM_INFINITY);
        let mut open = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the call fills one `rlimit`.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut open) }, 0);
        let few = libc::rlimit { rlim_cur: 0, ..open };
        // SAFETY: the call reads one `rlimit`.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const few) }, 0);
        let told = bytes.place().err().unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const open) }, 0);
        assert!(told.to_string().contains("open files"), "{told}");
        // No limit of address space is in the way: in place needs none but for the second mapping.
        bytes.holds(1) && map_lines(bytes) == before && bytes.place().is_ok_and(|placed| give_back(&placed).is_ok())
    }));
}

/// What the child stores its parent does not see, nor the other way round; a child may give its memory back.
#[test]
fn a_forked_child_has_a_copy_of_its_own() {
    assert!(alone(|| {
        let mut bytes = Bytes::mapped(5 * PAGE).part(100..5 * PAGE);
        bytes.fill(1);
        let placed = bytes.place().unwrap();
        let (theirs, mut seen) = as_peer(&placed, bytes);
        // Shared with the child.
        let words = SharedMemory::memfd(PAGE).unwrap();
        let word = |offset: usize| {
            // SAFETY: inside the mapping, aligned; touched as an atomic only.
            unsafe { AtomicU64::from_ptr(words.at(offset, 8).as_ptr().cast()) }
        };
        let (stored, told) = (word(0), word(64));
        // The test has a limit of time.
        let come = |word: &AtomicU64| {
            while word.load(Ordering::Acquire) == 0 {
                crate::sys::cpu::yield_now();
            }
        };
        // SAFETY: this process has one thread.
        let child = unsafe { libc::fork() };
        if child == 0 {
            come(stored);
            let own = bytes.holds(1);
            bytes.slice().fill(7);
            let again = give_back(&placed).is_ok() && bytes.slice().iter().all(|byte| *byte == 7);
            told.store(if own && again { 1 } else { 2 }, Ordering::Release);
            // SAFETY: ends the child, which has nothing to clean up.
            unsafe { libc::_exit(0) };
        }
        bytes.fill(2);
        seen.slice()[2 * PAGE] = 77;
        stored.store(1, Ordering::Release);
        come(told);
        let mut status = 0;
        // SAFETY: the child is ours, and is about to end.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(bytes.slice()[2 * PAGE], 77, "the parent's memory is still the peers'");
        bytes.fill(2);
        give_back(&placed).unwrap();
        drop(theirs);
        told.load(Ordering::Acquire) == 1 && bytes.holds(2)
    }));
}

/// A peer that stands still keeps its mapping. It costs no memory once the owner has its pages again.
#[test]
fn a_peer_that_stands_still_neither_writes_nor_keeps_memory() {
    assert!(alone(|| {
        let mut bytes = Bytes::mapped(40 * PAGE).part(1..40 * PAGE);
        bytes.fill(1);
        let before = map_lines(bytes);
        let placed = bytes.place().unwrap();
        let (theirs, mut seen) = as_peer(&placed, bytes);
        let generation = placed.share_anew().unwrap();
        assert!(placed.lend(generation));
        placed.detach().unwrap();
        placed.detach().unwrap();
        seen.slice().fill(9);
        assert!(bytes.holds(1) && !placed.take_back(generation) && !placed.lend(generation) && placed.is_detached());
        let anew = placed.share_anew().unwrap();
        assert!(bytes.holds(1) && placed.lend(anew) && placed.take_back(anew));
        let (fresh, mut seen_anew) = as_peer(&placed, bytes);
        seen_anew.slice()[5 * PAGE] = 3;
        assert_eq!(bytes.slice()[5 * PAGE], 3);
        bytes.fill(4);
        let file = placed.descriptor().unwrap();
        give_back(&placed).unwrap();
        let about = std::fs::File::from(file.try_clone().unwrap()).metadata().unwrap();
        assert_eq!(std::os::unix::fs::MetadataExt::blocks(&about), 0, "though it is mapped");
        drop((theirs, fresh, file, placed));
        // Detached and given back.
        let placed = bytes.place().unwrap();
        placed.detach().unwrap();
        give_back(&placed).unwrap();
        drop(placed);
        assert!(bytes.holds(4));
        assert_eq!(map_lines(bytes), before);
        true
    }));
}

/// Other threads may be in other parts of the memory while it is detached.
#[test]
fn no_store_of_another_thread_is_lost_while_memory_is_detached() {
    const PAGES: usize = 64;
    for _ in 0..20 {
        let bytes = Bytes::mapped(PAGES * PAGE);
        let placed = bytes.place().unwrap();
        let (written, start) = (Arc::clone(&placed), bytes.start.as_ptr().expose_provenance());
        let began = Arc::new(std::sync::Barrier::new(2));
        let begin = Arc::clone(&began);
        let writer = crate::sys::thread::spawn("writer", move || {
            begin.wait();
            let mut turn = 0u64;
            while !written.is_detached() || turn < 2000 {
                turn += 1;
                for page in 0..PAGES {
                    let place = std::ptr::with_exposed_provenance_mut::<u64>(start + page * PAGE + 8);
                    // SAFETY: inside the memory, aligned; touched as an atomic only.
                    let word = unsafe { AtomicU64::from_ptr(place) };
                    assert_eq!(word.load(Ordering::Relaxed), turn - 1, "page {page}");
                    word.store(turn, Ordering::Relaxed);
                }
            }
        });
        began.wait();
        placed.detach().unwrap();
        writer.unwrap().join().unwrap();
        give_back(&placed).unwrap();
        // SAFETY: nobody has it any more.
        unsafe { libc::munmap(bytes.start.as_ptr().cast(), bytes.count) };
    }
}

/// A peer stores a byte to a whole page, if there is one, and the owner sees it.
fn peer_stores(
    random: &mut impl FnMut(usize) -> usize,
    (mut view, seed): (Bytes, usize),
    (placed, theirs): (&PlacedMemory, &SharedMemory),
) {
    let addresses = view.addresses();
    let offset = placed.range().offset_of(&addresses).unwrap();
    let [first, last] = placed.range().edges(&addresses);
    if first.len() + last.len() == view.count {
        return;
    }
    let whole = first.end..last.start;
    let inside = whole.start - addresses.start + random(whole.len());
    // SAFETY: inside the mapping, one thread.
    unsafe { theirs.at(offset + inside, 1).as_ptr().write(0xfe) };
    assert_eq!(view.slice()[inside], 0xfe, "a peer's store");
    view.slice()[inside] = pattern(inside, seed);
}

/// Blocks are allocated, filled, registered, written by peers, taken from them, given back, made longer and freed, until
/// there have been so many registrations.
fn random_life(seed: u64, registrations: usize) -> bool {
    struct Block {
        bytes: Vec<u8>,
        seed: usize,
        placed: Option<(Arc<PlacedMemory>, SharedMemory)>,
    }
    let mut state = seed;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state % u64::try_from(below).unwrap()).unwrap()
    };
    let mut blocks: Vec<Block> = Vec::new();
    let (mut registered, mut step) = (0, 0);
    while registered < registrations {
        step += 1;
        if blocks.len() < 12 {
            let most = if random(40) == 0 { 1 << 20 } else { 60_000 };
            let mut bytes = vec![0; 1 + random(most)];
            Bytes::of(&mut bytes).fill(step);
            blocks.push(Block { bytes, seed: step, placed: None });
        }
        let at = random(blocks.len());
        let block = &mut blocks[at];
        let mut view = Bytes::of(&mut block.bytes);
        match (block.placed.take(), random(4)) {
            (None, 0) => drop(blocks.swap_remove(at)),
            (None, 1) => {
                block.bytes.reserve(random(300_000));
                block.bytes.resize(block.bytes.len() + random(1000), 0);
                Bytes::of(&mut block.bytes).fill(block.seed);
            }
            (None, _) => {
                let placed = view.place().unwrap();
                let theirs = as_peer(&placed, view).0;
                block.placed = Some((placed, theirs));
                registered += 1;
            }
            (Some((placed, theirs)), 0) => {
                peer_stores(&mut random, (view, block.seed), (&placed, &theirs));
                block.placed = Some((placed, theirs));
            }
            (Some((placed, theirs)), 1) => {
                block.seed += 1;
                view.fill(block.seed);
                block.placed = Some((placed, theirs));
            }
            (Some((placed, _)), 2) => {
                placed.detach().unwrap();
                give_back(&placed).unwrap();
            }
            (Some((placed, _)), _) => give_back(&placed).unwrap(),
        }
        if step % 64 == 0 {
            // SAFETY: a plain call.
            unsafe { libc::malloc_trim(0) };
        }
        let looked_at = random(blocks.len().max(1));
        if let Some(block) = blocks.get_mut(looked_at) {
            assert!(Bytes::of(&mut block.bytes).holds(block.seed), "seed {seed}, step {step}");
        }
    }
    for block in &mut blocks {
        if let Some((placed, _)) = &block.placed {
            give_back(placed).unwrap();
        }
        assert!(Bytes::of(&mut block.bytes).holds(block.seed), "seed {seed}, at the end");
    }
    true
}

#[test]
fn a_random_life_of_registrations_loses_no_byte() {
    #[expect(clippy::disallowed_methods, reason = "how much is tested is no setting of the library")]
    let is_long = std::env::var_os("RSCCL_EXHAUSTIVE").is_some();
    // 100,000 in all.
    let (lives, registrations) = if is_long { (1000, 100) } else { (1, 125) };
    for seed in 0x5eed..0x5eed + lives {
        assert!(alone(|| random_life(seed, registrations)), "seed {seed:#x}");
    }
}
