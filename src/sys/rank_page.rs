//! The pages in which the ranks of this process say what they do, for whoever looks from outside: `rsccl status` finds
//! them by [`PAGES_NAME`] in `/proc/PID/fd`, also of a process that is stopped or hangs.
//!
//! All pages of a process lie in one memfd. It is sealed when this process has mapped it: no other process, not even of
//! the same user, can write it or change its length. It lives as long as a rank has a page in it.
//!
//! ```text
//! head of the process                     [`HEAD_WORDS`] words
//! page of a rank, [`MOST_PAGES`] times    [`PageWords`]: its head, then the labels of its latest collectives
//! ```
//! Each word is written and read by itself: nobody waits for a writer that is stopped. Ranks beyond the last page, and
//! ranks for which the system has no memory of this kind, have their words in private memory: the head counts them.

use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, AtomicU64, Mutex, Ordering, Weak};
use crate::sys::fork::{Birthplace, PerProcess};
use crate::sys::memory::{self, SharedMemory};
use crate::sys::{clock, host, page_text, writing};

/// The words of a rank.
#[derive(Debug)]
#[repr(C)]
pub struct PageWords {
    /// What it does: `session::page` has the layout.
    pub head: [AtomicU64; HEAD_WORDS],
    /// The labels of its latest collectives: `exec::history` has the layout.
    pub labels: [[AtomicU64; LABEL_WORDS]; LABELS],
}

/// Words of the head of a process, and of a rank.
pub const HEAD_WORDS: usize = 1024;
/// Words of a label, with what it is compared by.
pub const LABEL_WORDS: usize = 4;
/// Collectives whose labels a rank keeps.
pub const LABELS: usize = 256;
/// Words of a rank's page.
pub const PAGE_WORDS: usize = HEAD_WORDS + LABEL_WORDS * LABELS;
/// Ranks of one process that have a page: its communicators, with those that were split from others. A page takes 16
/// KiB, once it is used.
pub const MOST_PAGES: usize = 256;
/// Words of all pages of a process.
pub const ALL_WORDS: usize = HEAD_WORDS + MOST_PAGES * PAGE_WORDS;
/// How the memory is called, behind `/memfd:`.
pub const PAGES_NAME: &std::ffi::CStr = c"rsccl-ranks";

/// The first word of a process's head, once all is there: letters, and the version of the layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"rsccl\0\0\x02");

/// Places in the head of a process.
pub mod process_head {
    /// [`MAGIC`](super::MAGIC).
    pub const MAGIC_AT: usize = 0;
    /// The process's number in its own namespace.
    pub const PROCESS: usize = 1;
    /// One more than the last page that was ever taken.
    pub const USED: usize = 2;
    /// Ranks that have no page.
    pub const HIDDEN: usize = 3;
    /// When the memory was made, in nanoseconds of the monotonic clock.
    pub const MADE_AT: usize = 4;
    /// The host's name: a text.
    pub const HOST: usize = 8;
    /// Words of it.
    pub const HOST_WORDS: usize = 33;
    /// The names of other hosts: texts, which pages name by their number, from 1.
    pub const HOST_NAMES: usize = 48;
    /// Words of one: a name of Linux has 64 bytes at most.
    pub const HOST_NAME_WORDS: usize = 9;
    /// How many there is room for. Ranks of further hosts are not on pages.
    pub const MOST_HOST_NAMES: usize = (super::HEAD_WORDS - HOST_NAMES) / HOST_NAME_WORDS;
}
use process_head::{
    HIDDEN, HOST, HOST_NAME_WORDS, HOST_NAMES, HOST_WORDS, MADE_AT, MAGIC_AT, MOST_HOST_NAMES, PROCESS, USED,
};
const _: () = assert!(HOST + HOST_WORDS <= HOST_NAMES);

const WORD_BYTES: usize = size_of::<u64>();
const _: () = assert!(size_of::<PageWords>() == PAGE_WORDS * WORD_BYTES && align_of::<PageWords>() == WORD_BYTES);
/// A page begins where a page of memory does, so that those that nobody has taken take no memory.
const _: () = assert!((HEAD_WORDS * WORD_BYTES).is_multiple_of(4096) && size_of::<PageWords>().is_multiple_of(4096));

/// The page of one rank. Copies are the same page, which is free again when the last is dropped.
#[derive(Clone)]
pub struct RankPage {
    words: NonNull<PageWords>,
    place: Arc<Place>,
}

// SAFETY: what is behind the pointer is atomic words, and `place` keeps it.
unsafe impl Send for RankPage {}
// SAFETY: as above.
unsafe impl Sync for RankPage {}

impl RankPage {
    /// A page, in which every word is 0.
    pub fn take() -> RankPage {
        // Where it cannot be seen from outside, the rank works all the same.
        let Ok(pages) = pages() else { return RankPage::hidden() };
        let birthplace = Birthplace::here();
        match pages.take_place() {
            Ok(index) => {
                let words = pages.page(index);
                RankPage { words, place: Arc::new(Place::Shown { pages, index, birthplace }) }
            }
            Err(_) => {
                pages.head()[HIDDEN].fetch_add(1, Ordering::Relaxed);
                RankPage::beside(Some((pages, birthplace)))
            }
        }
    }

    /// Words that nobody sees from outside.
    pub fn hidden() -> RankPage {
        RankPage::beside(None)
    }

    fn beside(counted: Option<(Arc<ProcessPages>, Birthplace)>) -> RankPage {
        let memory = HiddenWords::new();
        RankPage { words: memory.words(), place: Arc::new(Place::Hidden { _memory: memory, counted }) }
    }

    /// The number by which the head of the process has this name of a host; `None` where it has no room for it, or
    /// where nobody sees the page.
    pub fn host_number(&self, name: &str) -> Option<u32> {
        match &*self.place {
            Place::Shown { pages, .. } => pages.host_number(name),
            Place::Hidden { .. } => None,
        }
    }

    /// Whether it can be seen from outside.
    #[cfg(test)]
    pub fn is_shown(&self) -> bool {
        matches!(*self.place, Place::Shown { .. })
    }
}

impl Deref for RankPage {
    type Target = PageWords;

    // Small calls go through it several times, also in a build of tests.
    #[inline(always)]
    fn deref(&self) -> &PageWords {
        // SAFETY: `place` keeps the memory, which is as large and as aligned as that, and is touched as atomics only.
        unsafe { self.words.as_ref() }
    }
}

impl fmt::Debug for RankPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankPage").field("place", &self.place).finish_non_exhaustive()
    }
}

/// Where a page lies.
#[derive(Debug)]
enum Place {
    /// In the memory that can be seen from outside.
    Shown { pages: Arc<ProcessPages>, index: usize, birthplace: Birthplace },
    /// In memory of its own; `counted` where the process has pages and none of them was left.
    Hidden { _memory: HiddenWords, counted: Option<(Arc<ProcessPages>, Birthplace)> },
}

/// The words of a rank that nobody sees from outside.
#[derive(Debug)]
enum HiddenWords {
    /// Of the system, which takes no memory for what nobody touches.
    Mapped(SharedMemory),
    /// Where the system has none.
    Written(Arc<[AtomicU64]>),
}

impl HiddenWords {
    fn new() -> HiddenWords {
        match SharedMemory::anonymous(size_of::<PageWords>()) {
            Ok(memory) => HiddenWords::Mapped(memory),
            Err(_) => HiddenWords::Written((0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect()),
        }
    }

    fn words(&self) -> NonNull<PageWords> {
        match self {
            HiddenWords::Mapped(memory) => memory.at(0, size_of::<PageWords>()).cast(),
            HiddenWords::Written(words) => NonNull::from(&**words).cast(),
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A forked child shares the memory with its parent, whose rank goes on.
        match self {
            Place::Shown { pages, index, birthplace } if birthplace.is_here() => pages.give_back(*index),
            Place::Hidden { counted: Some((pages, birthplace)), .. } if birthplace.is_here() => {
                pages.head()[HIDDEN].fetch_sub(1, Ordering::Relaxed);
            }
            Place::Shown { .. } | Place::Hidden { .. } => {}
        }
    }
}

/// The memory of this process's pages.
#[derive(Debug)]
struct ProcessPages {
    memory: SharedMemory,
    /// What others find; nothing here reads it.
    file: OwnedFd,
    taken: Mutex<[bool; MOST_PAGES]>,
    /// The names of other hosts in the head, in their order.
    names: Mutex<Vec<String>>,
}

/// That of this process, while a rank has a page in it.
static PAGES: PerProcess<Mutex<Weak<ProcessPages>>> = PerProcess::new();

/// All pages of this process, as those who look from outside find them.
#[derive(Debug)]
pub struct OwnPages(Arc<ProcessPages>);

impl OwnPages {
    /// Those that there are now.
    pub fn find() -> Option<OwnPages> {
        PAGES.get()?.lock().upgrade().map(OwnPages)
    }

    /// The word of this number; 0 behind the end.
    pub fn word(&self, index: usize) -> u64 {
        if index >= ALL_WORDS {
            return 0;
        }
        let word: NonNull<AtomicU64> = self.0.memory.at(index * WORD_BYTES, WORD_BYTES).cast();
        // SAFETY: `at` looks that it is inside the mapping, which is aligned for words; touched as atomics only.
        unsafe { word.as_ref() }.load(Ordering::Relaxed)
    }
}

/// The memory of this process's pages, made anew where it has none.
fn pages() -> Result<Arc<ProcessPages>> {
    let mut known = PAGES.get_or_init(Mutex::default).lock();
    if let Some(pages) = known.upgrade() {
        return Ok(pages);
    }
    let made = Arc::new(ProcessPages::new()?);
    *known = Arc::downgrade(&made);
    Ok(made)
}

impl ProcessPages {
    fn new() -> Result<ProcessPages> {
        let (memory, file) = memory::written_by_me(PAGES_NAME, ALL_WORDS * WORD_BYTES)?;
        let (taken, names) = (Mutex::new([false; MOST_PAGES]), Mutex::default());
        let pages = ProcessPages { memory, file, taken, names };
        pages.fill(0, HEAD_WORDS)?;
        let head = pages.head();
        // Relaxed: the magic number publishes them.
        head[PROCESS].store(u64::from(host::process_id()), Ordering::Relaxed);
        head[MADE_AT].store(clock::monotonic_nanoseconds(), Ordering::Relaxed);
        page_text::write(&head[HOST..HOST + HOST_WORDS], &host::hostname().unwrap_or_default());
        // Pairs with the acquire of a reader, which believes nothing without this word.
        head[MAGIC_AT].store(MAGIC, Ordering::Release);
        Ok(pages)
    }

    /// Has memory for these words, so that a touch cannot fail.
    fn fill(&self, first: usize, words: usize) -> Result<()> {
        let bytes_of = |words: usize| libc::off_t::try_from(words * WORD_BYTES).expect("all pages are a few megabytes");
        let (from, bytes) = (bytes_of(first), bytes_of(words));
        let filled = writing::without_signal(|| {
            // SAFETY: a plain call on a descriptor that we own.
            let status = unsafe { libc::fallocate(self.file.as_raw_fd(), 0, from, bytes) };
            if status == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
        filled.map_err(|error| Error::system("memory for the pages of ranks", error))
    }

    fn head(&self) -> &[AtomicU64; HEAD_WORDS] {
        let head = self.memory.at(0, HEAD_WORDS * WORD_BYTES).cast();
        // SAFETY: `at` looks that it is inside the mapping, which begins with a page; touched as atomics only.
        unsafe { head.as_ref() }
    }

    fn page(&self, index: usize) -> NonNull<PageWords> {
        let first = HEAD_WORDS + index * PAGE_WORDS;
        self.memory.at(first * WORD_BYTES, size_of::<PageWords>()).cast()
    }

    /// The number of a page that nobody has, with nothing in it.
    ///
    /// # Errors
    /// Where there is none, or no memory for it.
    fn take_place(&self) -> Result<usize> {
        let mut taken = self.taken.lock();
        let found = taken.iter().position(|taken| !taken).ok_or_else(|| Error::internal("more ranks than pages"));
        let index = found?;
        self.fill(HEAD_WORDS + index * PAGE_WORDS, PAGE_WORDS)?;
        taken[index] = true;
        // One that nobody has had is empty, and takes no memory of this process until it is touched.
        let used = &self.head()[USED];
        if (index as u64) < used.load(Ordering::Relaxed) {
            // SAFETY: a page of our mapping, touched as atomics only.
            let words = unsafe { self.page(index).as_ref() };
            words.head.iter().chain(words.labels.as_flattened()).for_each(|word| word.store(0, Ordering::Relaxed));
        }
        used.fetch_max(index as u64 + 1, Ordering::Relaxed);
        Ok(index)
    }

    fn host_number(&self, name: &str) -> Option<u32> {
        let mut names = self.names.lock();
        let known = names.iter().position(|known| known == name);
        let place = known.or_else(|| (names.len() < MOST_HOST_NAMES).then_some(names.len()))?;
        if known.is_none() {
            page_text::write(&self.head()[HOST_NAMES + place * HOST_NAME_WORDS..][..HOST_NAME_WORDS], name);
            names.push(name.to_owned());
        }
        u32::try_from(place + 1).ok()
    }

    fn give_back(&self, index: usize) {
        // SAFETY: a page of our mapping, touched as atomics only.
        let words = unsafe { self.page(index).as_ref() };
        // Relaxed: its state, without which a reader believes nothing else.
        words.head[0].store(0, Ordering::Relaxed);
        self.taken.lock()[index] = false;
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;

    use super::*;
    use crate::sys::foreign_pages::ForeignPages;
    use crate::sys::fork;

    fn path_of(page: &RankPage) -> std::path::PathBuf {
        let Place::Shown { pages, .. } = &*page.place else { panic!("it is hidden") };
        format!("/proc/self/fd/{}", pages.file.as_raw_fd()).into()
    }

    fn index_of(page: &RankPage) -> usize {
        match &*page.place {
            Place::Shown { index, .. } => *index,
            Place::Hidden { .. } => panic!("it is hidden"),
        }
    }

    #[test]
    fn a_page_is_read_from_outside_and_written_by_nobody_else() {
        let page = RankPage::take();
        page.head[5].store(77, Ordering::Relaxed);
        page.labels[255][3].store(78, Ordering::Relaxed);
        let path = path_of(&page);
        let target = std::fs::read_link(&path).unwrap();
        assert_eq!(target.to_string_lossy(), "/memfd:rsccl-ranks (deleted)");
        let seen = ForeignPages::open(&path).unwrap();
        let first = HEAD_WORDS + index_of(&page) * PAGE_WORDS;
        assert_eq!((seen.word(first + 5), seen.word(first + PAGE_WORDS - 1)), (77, 78));
        assert_eq!((seen.word(MAGIC_AT), seen.word(PROCESS)), (MAGIC, u64::from(std::process::id())));
        assert_eq!(seen.word(ALL_WORDS), 0, "nothing lies behind the last page");
        let writable = std::fs::OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(&path);
        // The owner may open it so; the seal refuses the write.
        if let Ok(file) = writable {
            use std::os::unix::fs::FileExt;
            assert!(file.write_all_at(&[1; 8], 0).is_err());
            assert!(file.set_len(0).is_err() && file.set_len(1 << 30).is_err());
        }
    }

    #[test]
    fn a_page_is_free_again_with_its_last_copy_and_comes_back_empty() {
        // Held, so that the memory stays the same one.
        let held = RankPage::take();
        let page = RankPage::take();
        let (index, copy) = (index_of(&page), page.clone());
        page.head[0].store(1, Ordering::Relaxed);
        page.head[HEAD_WORDS - 1].store(9, Ordering::Relaxed);
        page.labels[3][0].store(9, Ordering::Relaxed);
        drop(page);
        assert_eq!(copy.head[0].load(Ordering::Relaxed), 1);
        drop(copy);
        // Other tests take pages at the same time.
        let mut others = Vec::new();
        loop {
            let page = RankPage::take();
            if index_of(&page) == index {
                assert!(
                    page.head.iter().chain(page.labels.as_flattened()).all(|word| word.load(Ordering::Relaxed) == 0)
                );
                break;
            }
            others.push(page);
            assert!(others.len() < MOST_PAGES);
        }
        drop(held);
    }

    #[test]
    fn ranks_beyond_the_last_page_are_hidden_and_counted() {
        assert!(fork::in_child(|| {
            let all: Vec<RankPage> = (0..MOST_PAGES + 3).map(|_| RankPage::take()).collect();
            let hidden = all.iter().filter(|page| !page.is_shown()).count();
            all[MOST_PAGES].labels[1][1].store(5, Ordering::Relaxed);
            let seen = ForeignPages::open(&path_of(&all[0])).unwrap();
            let counted = seen.word(HIDDEN);
            drop(RankPage::take());
            hidden == 3
                && counted == 3
                && seen.word(HIDDEN) == 3
                && seen.word(USED) == MOST_PAGES as u64
                && all[MOST_PAGES].labels[1][1].load(Ordering::Relaxed) == 5
        }));
    }

    #[test]
    fn a_forked_child_leaves_the_pages_of_its_parent_alone() {
        let page = RankPage::take();
        page.head[0].store(2, Ordering::Relaxed);
        let of_child = page.clone();
        assert!(fork::in_child(move || {
            let path = path_of(&of_child);
            drop(of_child);
            let own = RankPage::take();
            path_of(&own) != path
        }));
        assert_eq!(page.head[0].load(Ordering::Relaxed), 2);
    }
}
