//! Memory of the program, shared where it lies: its whole pages move to a file that other processes can map, and are
//! mapped over themselves; address and content stay.
//!
//! Pages move in pieces, so that there is one piece more memory than the program has, and not twice as much. Each piece
//! is written to the file, so that a lack of memory is an error and no signal, and the file is mapped over it. Each
//! piece that is given back is replaced by private pages, read from the file, and cut out of it, so that its memory is
//! free even if a peer that stands still has it mapped. What was given back is one mapping with its neighbours again:
//! an allocator that makes the block longer finds nothing in its way.
//!
//! Memory that begins or ends inside a page shares that page with other allocations. Such a page stays. The file has a
//! page for it, so that peers see the memory as one range: what lies at the [edges](PlacedRange::edges) is copied there
//! before peers read it, and back after they have written. The owner has the whole file mapped a second time, and calls
//! that peers take part in work there.
//!
//! Policies of NUMA nodes go along with the pages, and memory in huge pages gets such again ([`page_policy`]). Which
//! node a page without a policy lies on is not kept, nor is the name of the range or advice that no neighbour shows
//! (`MADV_DONTDUMP` and the like): pages that come back have what new ones have.

use std::ffi::CStr;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Mutex, OnceLock};
use crate::sys::fork::Birthplace;
use crate::sys::lending::{Generation, Lending};
use crate::sys::memory::{cut, map, own_pages, sealed_file};
use crate::sys::own_copies::{CopiedRange, Extent};
use crate::sys::page_policy::{self, PagePolicy};
use crate::sys::region::{HostRegion, Keep};
use crate::sys::{limits, mapped_ranges, writing};

pub use crate::sys::mapped_ranges::PinnedPages;

/// Memory of the program whose whole pages lie in a file.
#[derive(Debug)]
pub struct PlacedMemory {
    range: PlacedRange,
    /// The whole file, mapped a second time.
    alias: NonNull<u8>,
    file_bytes: usize,
    backing: Mutex<PagesIn>,
    lending: Lending,
    birthplace: Birthplace,
    policy: PagePolicy,
    /// What the pages of the program were, if their neighbours show it.
    private: OnceLock<PrivatePages>,
}

/// What private pages are asked for: others would not become one mapping with their neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PrivatePages {
    /// Nothing is reserved for those of an allocator's arenas (`MAP_NORESERVE`).
    flags: libc::c_int,
    advice: Option<libc::c_int>,
}

impl PrivatePages {
    const PLAIN: PrivatePages = PrivatePages { flags: 0, advice: None };

    /// All kinds, the usual ones first.
    fn kinds() -> impl Iterator<Item = PrivatePages> {
        let advices = [None, Some(libc::MADV_HUGEPAGE), Some(libc::MADV_NOHUGEPAGE)];
        let with = |advice| [0, libc::MAP_NORESERVE].map(|flags| PrivatePages { flags, advice });
        advices.into_iter().flat_map(with)
    }
}

/// Where the whole pages are.
#[derive(Debug)]
enum PagesIn {
    /// In a file that peers map. The list of forks knows of them, and ends before the file.
    File { listed: CopiedRange, file: Arc<OwnedFd> },
    /// In such a file, but for copies of this process's own of some of them.
    Parting,
    /// In private mappings of such a file.
    Copies,
    /// Where the program had them.
    Program,
}

// SAFETY: the mappings are plain memory with no thread affinity; what is in them is reached through raw pointers by
// callers that keep their own order.
unsafe impl Send for PlacedMemory {}
// SAFETY: as above; what changes is behind locks.
unsafe impl Sync for PlacedMemory {}

/// Addresses of the program's memory, and where they lie in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedRange {
    start: usize,
    end: usize,
    /// The whole pages; both the end where there are none.
    whole: (usize, usize),
    /// Which address is at the beginning of the file.
    origin: usize,
}

impl PlacedRange {
    /// No address.
    pub const NOWHERE: PlacedRange = PlacedRange { start: 0, end: 0, whole: (0, 0), origin: 0 };

    /// `bytes` from `start` on, in pages of `page_bytes`.
    fn new(start: usize, bytes: usize, page_bytes: usize) -> PlacedRange {
        let (end, origin) = (start + bytes, start - start % page_bytes);
        let (first, last) = (start.next_multiple_of(page_bytes), end - end % page_bytes);
        let whole = if first < last { (first, last) } else { (end, end) };
        PlacedRange { start, end, whole, origin }
    }

    /// The same in a file in which huge pages begin where they do in memory.
    fn for_huge_pages(self) -> PlacedRange {
        PlacedRange { origin: self.origin - self.origin % page_policy::huge_page_bytes(), ..self }
    }

    /// Where `addresses` begin in the file; `None` where they are not inside.
    pub fn offset_of(&self, addresses: &Range<usize>) -> Option<usize> {
        let inside = self.start <= addresses.start && addresses.end <= self.end && self.start < self.end;
        inside.then(|| addresses.start - self.origin)
    }

    /// What of `addresses`, which are inside, lies before and behind the whole pages.
    pub fn edges(&self, addresses: &Range<usize>) -> [Range<usize>; 2] {
        let (first, last) = self.whole;
        [addresses.start..addresses.end.min(first), addresses.start.max(last)..addresses.end]
    }

    fn whole(&self) -> Range<usize> {
        self.whole.0..self.whole.1
    }

    fn file_bytes(&self, page_bytes: usize) -> usize {
        (self.end - self.origin).next_multiple_of(page_bytes)
    }
}

impl PlacedMemory {
    /// Moves the whole pages of `bytes` from `start` on to a file.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] for memory that must stay where it is; [`crate::error::Kind::System`] where
    /// there is no memory or descriptor, or a limit is reached. Then everything is as it was.
    ///
    /// # Safety
    /// The memory is allocated, and nobody else reads or writes it meanwhile. It stays allocated, and `start` the
    /// address, until [`PlacedMemory::give_back`] has been called, or for ever.
    pub unsafe fn new(start: NonNull<u8>, bytes: usize, pins: PinnedPages) -> Result<Arc<PlacedMemory>> {
        let birthplace = Birthplace::here();
        let page_bytes = page_bytes();
        let mut range = PlacedRange::new(start.as_ptr().expose_provenance(), bytes, page_bytes);
        if bytes == 0 {
            return Err(Error::invalid_usage("it has no elements"));
        }
        if !range.whole().is_empty() {
            mapped_ranges::check_movable(&range.whole(), pins)?;
        }
        let policy = PagePolicy::of(&range.whole());
        if policy.is_huge() {
            range = range.for_huge_pages();
        }
        let file_bytes = range.file_bytes(page_bytes);
        let file = Arc::new(sealed_file(NAME, file_bytes)?);
        let alias = map(file_bytes, libc::MAP_SHARED, file.as_raw_fd())?;
        // From here on the mapping has an owner.
        let backing = Mutex::new(PagesIn::Program);
        let lending = Lending::new();
        // The nodes of the file's pages, wherever it is mapped.
        policy.set_nodes(&range.whole(), alias.as_ptr().expose_provenance() + (range.whole.0 - range.origin));
        let private = OnceLock::new();
        let placed = PlacedMemory { range, alias, file_bytes, backing, lending, birthplace, policy, private };
        let listed = CopiedRange::new(&file);
        let moved = placed.move_in(&listed, &file, Self::learn_flags);
        if let Err(error) = moved {
            let Err(worse) = placed.move_back(&listed, &file, ContentOf::File) else { return Err(error) };
            // Forks go on copying what stays in the file.
            std::mem::forget((listed, file));
            return Err(worse.during("giving back memory that had moved, which stays shared"));
        }
        *placed.backing.lock() = PagesIn::File { listed, file };
        Ok(Arc::new(placed))
    }

    /// Addresses and their places in the file.
    pub fn range(&self) -> PlacedRange {
        self.range
    }

    /// The whole file, as peers see it.
    pub fn region(placed: &Arc<PlacedMemory>) -> HostRegion {
        let keep: Arc<dyn Keep> = Arc::<PlacedMemory>::clone(placed);
        // SAFETY: the mapping is good for reading and writing, and ends when `placed` is dropped, which is the region's
        // keep.
        unsafe { HostRegion::new(placed.alias, placed.file_bytes, keep) }
    }

    /// Gives the pages back to the program. A second call does nothing; nor does one in a forked child, which has pages
    /// of its own.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the kernel has no memory for private pages: address and content are as they
    /// should be, but some pages stay in the file, which peers may have mapped, and no allocator may have them.
    ///
    /// # Safety
    /// Nobody else reads or writes the memory meanwhile.
    pub unsafe fn give_back(&self) -> Result<()> {
        let mut backing = self.backing.lock();
        let pages = std::mem::replace(&mut *backing, PagesIn::Program);
        if !self.birthplace.is_here() {
            // The list of a child is empty, and so nothing happens here but that its copy of the descriptor is closed.
            return Ok(());
        }
        self.lending.part();
        match pages {
            PagesIn::File { listed, file } => {
                let moved = self.move_back(&listed, &file, ContentOf::SecondMapping);
                if moved.is_err() {
                    // Forks go on copying what stays there.
                    std::mem::forget((listed, file));
                }
                moved
            }
            PagesIn::Parting | PagesIn::Copies => self.replace_copies(),
            PagesIn::Program => Ok(()),
        }
    }

    /// Whether the whole pages are still those that were moved, as far as the kernel tells: not freed, nor resized.
    pub fn is_there(&self) -> bool {
        let whole = self.range.whole();
        match &*self.backing.lock() {
            PagesIn::File { file, .. } if self.birthplace.is_here() && !whole.is_empty() => {
                mapped_ranges::show_file(&whole, file, whole.start - self.range.origin)
            }
            PagesIn::File { .. } | PagesIn::Parting | PagesIn::Copies | PagesIn::Program => true,
        }
    }

    /// Writes the memory to `file`, and maps that over the whole pages. `before` comes before the first of them is
    /// mapped, when its content is in the file.
    fn move_in(
        &self,
        listed: &CopiedRange,
        file: &OwnedFd,
        before: impl Fn(&Self, &Range<usize>) -> Result<()>,
    ) -> Result<()> {
        // Their pages exist from now on: a lack of memory is found here.
        for edge in self.range.edges(&(self.range.start..self.range.end)) {
            write(file, &edge, edge.start.saturating_sub(self.range.origin)).map_err(no_room)?;
        }
        for piece in pieces(self.range.whole()) {
            let offset = piece.start - self.range.origin;
            write(file, &piece, offset).map_err(no_room)?;
            listed.change(|extent| {
                let is_first = extent.bytes == 0;
                let learnt = if is_first { before(self, &piece) } else { Ok(()) };
                let mapped = learnt.and_then(|()| map_over(&piece, Over::File(file, offset, libc::MAP_SHARED)));
                if let Err(error) = mapped {
                    // What `before` has mapped there has no content.
                    if is_first {
                        read(file, &piece, offset).map_err(no_room)?;
                    }
                    return Err(error);
                }
                if is_first {
                    *extent = Extent { start: piece.start, bytes: 0, offset };
                }
                extent.bytes += piece.len();
                Ok(())
            })?;
        }
        if self.policy.is_huge() {
            page_policy::collapse(&self.range.whole());
        }
        Ok(())
    }

    /// Finds which private pages become one mapping with the neighbours of the first `piece`, whose content is in the
    /// file. The kernel tells it nowhere for less than a walk through all pages of the process.
    fn learn_flags(&self, piece: &Range<usize>) -> Result<()> {
        let stands_alone = || mapped_ranges::mapping_of(piece.start).is_none_or(|mapping| mapping == *piece);
        if stands_alone() {
            return Ok(());
        }
        for kind in PrivatePages::kinds() {
            self.map_private(piece, kind)?;
            if !stands_alone() {
                // Nobody else sets it.
                let _first = self.private.set(kind);
                break;
            }
        }
        Ok(())
    }

    /// Maps private pages without content, such as the program had.
    fn map_private(&self, piece: &Range<usize>, kind: PrivatePages) -> Result<()> {
        // With a policy of their own they join no neighbours before they have it: that would tie them to these.
        let is_ready = if self.policy.has_nodes() {
            map_as(piece, Over::Private(kind.flags), libc::PROT_NONE)?;
            self.policy.set_nodes(piece, piece.start);
            let (place, both) =
                (std::ptr::with_exposed_provenance_mut(piece.start), libc::PROT_READ | libc::PROT_WRITE);
            // SAFETY: the piece has just been mapped, and has no content yet.
            unsafe { libc::mprotect(place, piece.len(), both) == 0 }
        } else {
            false
        };
        if !is_ready {
            map_over(piece, Over::Private(kind.flags))?;
        }
        if let Some(advice) = kind.advice {
            let place = std::ptr::with_exposed_provenance_mut(piece.start);
            // SAFETY: the piece has just been mapped; advice changes no content. A refusal costs only speed.
            let _refused = unsafe { libc::madvise(place, piece.len(), advice) };
        }
        Ok(())
    }

    fn private(&self) -> PrivatePages {
        let advice = self.policy.is_huge().then_some(libc::MADV_HUGEPAGE);
        self.private.get().copied().unwrap_or(PrivatePages { advice, ..PrivatePages::PLAIN })
    }

    /// Gives back what the list says to be in the file.
    fn move_back(&self, listed: &CopiedRange, file: &OwnedFd, from: ContentOf) -> Result<()> {
        let moved = listed.change(|extent| extent.start..extent.start + extent.bytes);
        for piece in pieces(moved) {
            let offset = piece.start - self.range.origin;
            listed.change(|extent| {
                self.map_private(&piece, self.private())?;
                if from == ContentOf::SecondMapping && self.policy.is_huge() {
                    // Some ten times as fast as to read one huge page into another.
                    self.copy_back(&piece, offset);
                } else if let Err(error) = read(file, &piece, offset) {
                    map_over(&piece, Over::File(file, offset, libc::MAP_SHARED))?;
                    return Err(Error::system("reading memory back", error));
                }
                *extent = Extent { start: piece.end, bytes: extent.bytes - piece.len(), offset: offset + piece.len() };
                Ok(())
            })?;
            cut(file, offset, piece.len());
        }
        cut(file, 0, self.file_bytes);
        Ok(())
    }

    /// Copies a piece from the second mapping.
    fn copy_back(&self, piece: &Range<usize>, offset: usize) {
        let place: *mut u8 = std::ptr::with_exposed_provenance_mut(piece.start);
        let twin = self.alias.as_ptr().wrapping_add(offset).cast_const();
        // SAFETY: the piece is mapped, and so is its twin, which lies elsewhere.
        unsafe { std::ptr::copy_nonoverlapping(twin, place, piece.len()) };
    }

    /// Puts private pages of no file in the place of the copies, piece by piece.
    fn replace_copies(&self) -> Result<()> {
        let mut kept = Vec::new();
        for piece in pieces(self.range.whole()) {
            let place: *mut u8 = std::ptr::with_exposed_provenance_mut(piece.start);
            kept.resize(piece.len(), 0u8);
            // SAFETY: the piece is mapped, and `kept` is as long.
            unsafe { std::ptr::copy_nonoverlapping(place.cast_const(), kept.as_mut_ptr(), piece.len()) };
            self.map_private(&piece, self.private())?;
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(kept.as_ptr(), place, piece.len()) };
        }
        Ok(())
    }

    fn whole_base(&self) -> NonNull<u8> {
        let place = std::ptr::with_exposed_provenance_mut(self.range.whole.0);
        NonNull::new(place).expect("no memory of a program is at address 0")
    }
}

impl Keep for PlacedMemory {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        match &*self.backing.lock() {
            PagesIn::File { file, .. } => Some(Arc::clone(file)),
            PagesIn::Parting | PagesIn::Copies | PagesIn::Program => None,
        }
    }

    fn lend(&self, generation: Generation) -> bool {
        self.lending.lend(generation)
    }

    fn take_back(&self, generation: Generation) -> bool {
        self.lending.take_back(generation)
    }

    /// As of [`SharedMemory`](crate::sys::memory::SharedMemory): threads that read and write the memory meanwhile
    /// notice nothing. The private mappings of the file that this leaves become the program's pages by
    /// [`PlacedMemory::give_back`].
    fn detach(&self) -> Result<()> {
        let mut backing = self.backing.lock();
        let whole = self.range.whole();
        if let PagesIn::File { listed, file } = &*backing {
            self.lending.part();
            if !whole.is_empty() {
                let offset = whole.start - self.range.origin;
                listed.change(|extent| {
                    map_over(&whole, Over::File(file, offset, libc::MAP_PRIVATE))?;
                    extent.bytes = 0;
                    Ok(())
                })?;
            }
            *backing = PagesIn::Parting;
        }
        if let PagesIn::Parting = &*backing {
            if !whole.is_empty() {
                // SAFETY: the whole pages are mapped.
                unsafe { own_pages(self.whole_base(), whole.len()) }?;
            }
            *backing = PagesIn::Copies;
        }
        Ok(())
    }

    fn is_detached(&self) -> bool {
        self.lending.is_parted()
    }

    /// Readers notice nothing, nor do those of the second mapping; nobody writes the memory meanwhile.
    fn share_anew(&self) -> Result<Generation> {
        let mut backing = self.backing.lock();
        if self.is_detached() && !matches!(*backing, PagesIn::Program) {
            let file = Arc::new(sealed_file(NAME, self.file_bytes)?);
            let alias = self.alias.as_ptr().expose_provenance();
            let listed = CopiedRange::new(&file);
            // Last, when the file has the content: a call of another communicator may read there.
            let shared = self
                .move_in(&listed, &file, |_, _| Ok(()))
                .and_then(|()| map_over(&(alias..alias + self.file_bytes), Over::File(&file, 0, libc::MAP_SHARED)));
            if let Err(error) = shared {
                if self.move_back(&listed, &file, ContentOf::File).is_err() {
                    // What has not come back is given back with the rest, and is nobody's to share.
                    *backing = PagesIn::File { listed, file };
                }
                return Err(error);
            }
            *backing = PagesIn::File { listed, file };
            self.lending.renew();
        }
        Ok(self.lending.generation())
    }

    /// Nothing: the program has chosen its pages.
    fn prefer_huge_pages(&self) {}
}

impl Drop for PlacedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping of the constructor; holders of raw pointers into it hold an `Arc` of this owner.
        let result = unsafe { libc::munmap(self.alias.as_ptr().cast(), self.file_bytes) };
        debug_assert_eq!(result, 0, "munmap of our own mapping");
    }
}

/// The pieces in which pages move: they end where a huge page does.
fn pieces(whole: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let Range { mut start, end } = whole;
    std::iter::from_fn(move || {
        let piece = start..end.min(start + (PIECE_BYTES - start % PIECE_BYTES));
        start = piece.end;
        (!piece.is_empty()).then_some(piece)
    })
}

/// From where content comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentOf {
    File,
    /// It shows the file.
    SecondMapping,
}

/// What is mapped over pages of the program.
#[derive(Debug, Clone, Copy)]
enum Over<'a> {
    /// The file from an offset on, with these flags.
    File(&'a OwnedFd, usize, libc::c_int),
    /// Private pages without content, with these flags beside.
    Private(libc::c_int),
}

/// By the C library's `mmap`: libraries that keep registrations of memory for network cards watch it.
fn map_over(pages: &Range<usize>, over: Over<'_>) -> Result<()> {
    map_as(pages, over, libc::PROT_READ | libc::PROT_WRITE)
}

fn map_as(pages: &Range<usize>, over: Over<'_>, protection: libc::c_int) -> Result<()> {
    let place: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(pages.start);
    let (raw, offset, flags) = match over {
        Over::File(file, offset, flags) => (file.as_raw_fd(), offset, flags),
        Over::Private(flags) => (-1, 0, flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS),
    };
    let offset = libc::off_t::try_from(offset).expect("a file's length is an off_t");
    let flags = flags | libc::MAP_FIXED;
    // SAFETY: the pages are the program's, who has handed them to this module; their content is in the file, or the
    // caller has it.
    let mapped = unsafe { libc::mmap(place, pages.len(), protection, flags, raw, offset) };
    if mapped == libc::MAP_FAILED {
        return Err(limits::with_remedy(Error::last_os(format!("mmap of {} bytes where they lie", pages.len()))));
    }
    Ok(())
}

/// Writes `addresses` to the file, from `offset` on.
fn write(file: &OwnedFd, addresses: &Range<usize>, offset: usize) -> io::Result<()> {
    writing::without_signal(|| {
        transfer(addresses, offset, |place, bytes, at| {
            // SAFETY: the addresses are mapped, or the call fails.
            unsafe { libc::pwrite(file.as_raw_fd(), place.cast_const().cast(), bytes, at) }
        })
    })
}

/// Reads the file from `offset` on into `addresses`.
fn read(file: &OwnedFd, addresses: &Range<usize>, offset: usize) -> io::Result<()> {
    transfer(addresses, offset, |place, bytes, at| {
        // SAFETY: the addresses are mapped for writing, and nobody else touches them.
        unsafe { libc::pread(file.as_raw_fd(), place.cast(), bytes, at) }
    })
}

/// Calls `call` until all bytes are through.
fn transfer(
    addresses: &Range<usize>,
    offset: usize,
    call: impl Fn(*mut u8, usize, libc::off_t) -> libc::ssize_t,
) -> io::Result<()> {
    let mut done = 0;
    while done < addresses.len() {
        let place = std::ptr::with_exposed_provenance_mut(addresses.start + done);
        let at = libc::off_t::try_from(offset + done).map_err(io::Error::other)?;
        match usize::try_from(call(place, addresses.len() - done, at)) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(moved) => done += moved,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(())
}

fn no_room(error: io::Error) -> Error {
    limits::with_remedy(Error::system("moving memory to a file of its own", error))
}

fn page_bytes() -> usize {
    // SAFETY: a plain call.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("a system has pages")
}

/// How such files are called in `/proc/PID/maps`.
const NAME: &CStr = c"rsccl-in-place";
/// Beyond the program's own memory there is as much more while pages move.
const PIECE_BYTES: usize = 8 << 20;

#[cfg(not(loom))]
#[cfg(test)]
mod tests;
