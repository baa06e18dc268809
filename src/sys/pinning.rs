//! What NICs that read and write memory by themselves need of it, pages and room to lock them, and what they have
//! pinned.

use std::convert::Infallible;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU8;

use crate::sync::primitive::{AtomicU64, Ordering};
use crate::sys::fork::PerProcess;
use crate::sys::limits;
use crate::sys::own_status::{kilobytes, text};

/// Bytes that NICs have pinned for this library, as the kernel counts them for the process: a forked child has none.
static PINNED: PerProcess<AtomicU64> = PerProcess::new();

fn pinned() -> &'static AtomicU64 {
    let Ok(pinned) = PINNED.get_or_try_init(|| Ok::<_, Infallible>(AtomicU64::new(0)));
    pinned
}

/// What of the process's pinned pages is this library's own.
pub fn own_pins_bytes() -> u64 {
    // Acquire, here and below: the kernel is asked behind one look and before another.
    PINNED.get().map_or(0, |pinned| pinned.load(Ordering::Acquire))
}

/// How much of the process's memory is pinned, as far as the kernel counts; 0 where it does not tell.
fn pinned_by_all() -> u64 {
    text("status").map_or(0, |status| kilobytes(&status, "VmPin") << 10)
}

/// What a NIC has pinned of its owner's memory. To be dropped before the NIC unpins it: else pages that others have
/// pinned would meanwhile be taken for these.
#[derive(Debug, Default)]
pub struct OwnPins {
    bytes: u64,
}

impl OwnPins {
    /// Runs `pin`, which has a NIC pin the pages of `addresses`. Counted is what the kernel counts more for the
    /// process, and no more than these pages: of some NICs it counts nothing.
    pub fn count<T>(&mut self, addresses: &Range<usize>, pin: impl FnOnce() -> T) -> T {
        self.count_by(pinned_by_all, addresses, pin)
    }

    fn count_by<T>(&mut self, kernel: impl Fn() -> u64, addresses: &Range<usize>, pin: impl FnOnce() -> T) -> T {
        let page = page_bytes();
        let most = (addresses.end.next_multiple_of(page) - addresses.start / page * page) as u64;
        let before = kernel();
        let done = pin();
        let more = kernel().saturating_sub(before).min(most);
        self.bytes += more;
        pinned().fetch_add(more, Ordering::AcqRel);
        done
    }
}

impl Drop for OwnPins {
    fn drop(&mut self) {
        // A forked child has not pinned what its parent has.
        if let Some(pinned) = PINNED.get().filter(|_| self.bytes > 0) {
            let less = |pinned: u64| Some(pinned.saturating_sub(self.bytes));
            let _before = pinned.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
    }
}

/// Has the system give `bytes` from `start` on their pages: some NICs take memory with pages only. The bytes, which can
/// be written, stay what they are.
pub fn populate(start: NonNull<u8>, bytes: usize) {
    let page = page_bytes();
    let address = start.as_ptr().map_addr(|address| address / page * page);
    let length = start.addr().get() % page + bytes;
    // SAFETY: the pages hold memory of the caller's, whose bytes do not change.
    if unsafe { libc::madvise(address.cast(), length, libc::MADV_POPULATE_WRITE) } != 0 {
        // Kernels before 5.14 do not know the advice.
        touch(start, bytes, page);
    }
}

pub fn page_bytes() -> usize {
    // SAFETY: the call takes a number, and no memory.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1)
}

/// Gives memory its pages by a store to each.
fn touch(start: NonNull<u8>, bytes: usize, page: usize) {
    let first = page - start.addr().get() % page;
    for offset in std::iter::once(0).chain((first..).step_by(page)).take_while(|offset| *offset < bytes) {
        // SAFETY: inside the caller's memory.
        let byte = unsafe { start.add(offset) };
        // SAFETY: as above; an atomic store of what is there loses no store of another thread.
        let byte = unsafe { AtomicU8::from_ptr(byte.as_ptr()) };
        // No `fetch_or(0)`: the compiler makes a load of it. Where it fails another thread has stored, which does, too.
        let now = byte.load(Ordering::Relaxed);
        let _stored = byte.compare_exchange(now, now, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// What to do about memory that a NIC cannot lock, if the process has a limit of it: `None` without one.
pub fn lock_remedy() -> Option<String> {
    remedy(limits::locked_bytes())
}

fn remedy(most: Option<u64>) -> Option<String> {
    let kib = most? / 1024;
    Some(format!(
        "this process may lock {kib} KiB of memory (RLIMIT_MEMLOCK), and a NIC locks all that it reads and writes: \
         raise the limit (ulimit -l unlimited; in a container --ulimit memlock=-1; for slurmd LimitMEMLOCK=infinity)"
    ))
}

/// Lowers the limit of this process, which is a test's child.
#[cfg(test)]
#[cfg(not(loom))]
pub(crate) fn limit_locked_bytes(most: u64) {
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the call reads one `rlimit`, which the reference is.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) }, 0);
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::memory::SharedMemory;

    #[test]
    fn memory_has_its_pages_and_keeps_its_bytes() {
        let bytes = 1 << 20;
        let mut memory = vec![0u8; bytes];
        memory[bytes / 2 + 5] = 7;
        populate(NonNull::from(&mut memory[3]), bytes - 3);
        assert_eq!(memory.iter().map(|byte| u32::from(*byte)).sum::<u32>(), 7);
    }

    #[test]
    fn memory_gets_its_pages_from_a_kernel_that_does_not_know_the_advice() {
        let page = page_bytes();
        for (from, bytes) in [(0, 8 * page), (5, 8 * page - 5), (page - 1, 2), (page, 1)] {
            let memory = SharedMemory::anonymous(8 * page).unwrap();
            let base = memory.base();
            let pages = || {
                let mut has = [0u8; 8];
                // SAFETY: our own mapping of eight pages, and a byte for each.
                assert_eq!(unsafe { libc::mincore(base.as_ptr().cast(), memory.len(), has.as_mut_ptr()) }, 0);
                has.map(|byte| byte & 1)
            };
            // A huge page of a neighbour's, which the system may have given these pages a part of, leaves them.
            // SAFETY: our own mapping, in which nothing lies yet.
            let advise = |advice| unsafe { libc::madvise(base.as_ptr().cast(), memory.len(), advice) };
            assert_eq!((advise(libc::MADV_NOHUGEPAGE), advise(libc::MADV_DONTNEED)), (0, 0));
            assert_eq!(pages(), [0; 8]);
            touch(memory.at(from, bytes), bytes, page);
            let (first, last) = (from / page, (from + bytes - 1) / page);
            let expected = [0, 1, 2, 3, 4, 5, 6, 7].map(|page| u8::from((first..=last).contains(&page)));
            assert_eq!(pages(), expected, "{bytes} bytes from {from} on");
        }
    }

    #[test]
    fn a_limit_of_locked_memory_is_named_and_none_is_not() {
        let told = remedy(Some(8 << 20)).unwrap();
        assert!(told.contains("may lock 8192 KiB of memory (RLIMIT_MEMLOCK)"), "{told}");
        assert_eq!(remedy(None), None);
    }

    #[test]
    fn what_is_counted_is_what_the_kernel_counts_and_no_more_than_was_asked_for() {
        let (page, before) = (page_bytes() as u64, own_pins_bytes());
        let at = |from: usize, to: usize| page_bytes() + from..page_bytes() + to;
        let mut pins = OwnPins::default();
        // The kernel says: two pages more, of three; five, of which others have pinned some; none.
        for (addresses, grown, counted) in [(at(1, 8193), 2, 2), (at(0, 1), 5, 1), (at(0, 8192), 0, 0)] {
            let kernel = AtomicU64::new(7 * page);
            let look = || kernel.load(Ordering::Relaxed);
            let (own, grow) = (own_pins_bytes(), || kernel.fetch_add(grown * page, Ordering::Relaxed));
            assert_eq!(pins.count_by(look, &addresses, grow), 7 * page);
            assert_eq!(own_pins_bytes() - own, counted * page, "{addresses:?}");
        }
        drop(pins);
        assert_eq!(own_pins_bytes(), before);
    }
}
