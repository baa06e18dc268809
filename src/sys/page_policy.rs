//! What a program has asked of its pages: NUMA nodes, huge pages. It is read before pages move, and asked of those that
//! take their place.
//!
//! The kernel tells of huge pages of a range by a scan (Linux 6.7); where it knows no such scan nobody looks for them.
//! Which advice a mapping was given (`MADV_HUGEPAGE`) it tells only for the whole process at once, which takes too
//! long.

use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::sys::{mapped_ranges, open};

/// What was asked of some addresses.
#[derive(Debug, Default)]
pub(super) struct PagePolicy {
    nodes: Vec<(Range<usize>, NodePolicy)>,
    is_huge: bool,
}

/// A policy of `set_mempolicy` and its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct NodePolicy {
    mode: libc::c_int,
    nodes: [libc::c_ulong; NODE_WORDS],
}

impl PagePolicy {
    /// What was asked of `addresses`, which are mapped.
    pub(super) fn of(addresses: &Range<usize>) -> PagePolicy {
        let runs = mapped_ranges::mappings(addresses);
        let nodes = runs.into_iter().filter_map(|run| NodePolicy::of(run.start).map(|policy| (run, policy))).collect();
        PagePolicy { nodes, is_huge: addresses.len() >= huge_page_bytes() && are_huge(addresses).unwrap_or(false) }
    }

    /// Whether some of the pages had a policy.
    pub(super) fn has_nodes(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// Whether most of the pages were huge.
    pub(super) fn is_huge(&self) -> bool {
        self.is_huge
    }

    /// Asks for the same nodes of what has taken the place of `part` and lies at `place`. A refusal costs only speed.
    pub(super) fn set_nodes(&self, part: &Range<usize>, place: usize) {
        for (run, policy) in &self.nodes {
            let both = run.start.max(part.start)..run.end.min(part.end);
            if !both.is_empty() {
                policy.set(place + (both.start - part.start), both.len());
            }
        }
    }
}

impl NodePolicy {
    /// Of the mapping at `address`, if it has one.
    fn of(address: usize) -> Option<NodePolicy> {
        let mut policy = NodePolicy { mode: 0, nodes: [0; NODE_WORDS] };
        let place: *const libc::c_void = std::ptr::with_exposed_provenance(address);
        let most = NODE_WORDS * libc::c_ulong::BITS as usize;
        // SAFETY: the call writes a number and as many words as it is told; the address is only looked up.
        let failed = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy.mode,
                policy.nodes.as_mut_ptr(),
                most as libc::c_ulong,
                place,
                MPOL_F_ADDR,
            )
        } != 0;
        (!failed && policy.mode != MPOL_DEFAULT).then_some(policy)
    }

    fn set(&self, start: usize, bytes: usize) {
        let place: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(start);
        // The kernel counts one bit less than it is told.
        let most = (NODE_WORDS * libc::c_ulong::BITS as usize + 1) as libc::c_ulong;
        // SAFETY: the call reads as many words as it is told, and changes no content.
        let _refused = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                place,
                bytes as libc::c_ulong,
                libc::c_ulong::try_from(self.mode).unwrap_or(0),
                self.nodes.as_ptr(),
                most,
                0 as libc::c_ulong,
            )
        };
    }
}

/// Makes huge pages of a mapped file's pages (Linux 6.1). A refusal costs only speed.
pub(super) fn collapse(pages: &Range<usize>) {
    let place: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(pages.start);
    // SAFETY: the range is mapped; advice changes no content.
    let _refused = unsafe { libc::madvise(place, pages.len(), MADV_COLLAPSE) };
}

/// The length of a huge page, at a multiple of which it begins.
pub(super) fn huge_page_bytes() -> usize {
    let text = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size");
    let bytes = text.ok().and_then(|text| text.trim().parse::<usize>().ok());
    bytes.filter(|bytes| bytes.is_power_of_two()).unwrap_or(USUAL_HUGE_BYTES)
}

/// Whether at least half of `pages` are huge; `None` where the kernel does not tell.
fn are_huge(pages: &Range<usize>) -> Option<bool> {
    let map = open::file(Path::new("/proc/self/pagemap")).ok()?;
    let mut found = [PageRegion::default(); MOST_REGIONS];
    let (mut at, mut huge) = (pages.start as u64, 0);
    while at < pages.end as u64 {
        let mut scan = PagemapScan {
            size: size_of::<PagemapScan>() as u64,
            start: at,
            end: pages.end as u64,
            vec: found.as_mut_ptr().expose_provenance() as u64,
            vec_len: MOST_REGIONS as u64,
            category_mask: PAGE_IS_HUGE,
            return_mask: PAGE_IS_HUGE,
            ..PagemapScan::default()
        };
        // SAFETY: the call reads and writes one such structure, and as many regions as it is told.
        let regions = unsafe { libc::ioctl(map.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
        let regions = usize::try_from(regions).ok()?;
        huge += found.iter().take(regions).map(|region| region.end.saturating_sub(region.start)).sum::<u64>();
        if scan.walk_end <= at {
            break;
        }
        at = scan.walk_end;
    }
    Some(huge >= pages.len() as u64 / 2)
}

/// The kernel's `struct page_region`.
#[repr(C)]
#[derive(Debug, Default, Clone, Copy)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

/// The kernel's `struct pm_scan_arg`.
#[repr(C)]
#[derive(Debug, Default)]
struct PagemapScan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<PagemapScan>() == 96);
/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong = 3 << 30 | 96 << 16 | 0x66 << 8 | 16;
const PAGE_IS_HUGE: u64 = 1 << 6;
/// Regions of one scan.
const MOST_REGIONS: usize = 32;
/// Of the kernel's 1,024 nodes.
const NODE_WORDS: usize = 1024 / libc::c_ulong::BITS as usize;
const MPOL_F_ADDR: libc::c_ulong = 2;
const MPOL_DEFAULT: libc::c_int = 0;
const MADV_COLLAPSE: libc::c_int = 25;
/// Of most processors.
const USUAL_HUGE_BYTES: usize = 2 << 20;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::sys::memory::map;

    #[test]
    fn the_policy_of_a_part_is_read_and_set_elsewhere() {
        const PAGE: usize = 4096;
        let base = map(8 * PAGE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1).unwrap();
        let start = base.as_ptr().expose_provenance();
        let interleaved = NodePolicy { mode: libc::MPOL_INTERLEAVE, nodes: first_node() };
        interleaved.set(start + 2 * PAGE, PAGE);
        let Some(found) = NodePolicy::of(start + 2 * PAGE) else {
            println!("skipped: this system lets no process bind its memory to nodes");
            return;
        };
        assert_eq!((found, NodePolicy::of(start)), (interleaved, None));
        let policy = PagePolicy::of(&(start..start + 4 * PAGE));
        assert_eq!(policy.nodes, [(start + 2 * PAGE..start + 3 * PAGE, interleaved)]);
        policy.set_nodes(&(start + PAGE..start + 4 * PAGE), start + 4 * PAGE);
        let at = |page: usize| NodePolicy::of(start + page * PAGE);
        assert_eq!((at(4), at(5), at(6)), (None, Some(interleaved), None));
        // SAFETY: the mapping is this test's, and nobody has a pointer into it.
        assert_eq!(unsafe { libc::munmap(base.as_ptr().cast(), 8 * PAGE) }, 0);
    }

    fn first_node() -> [libc::c_ulong; NODE_WORDS] {
        let mut nodes = [0; NODE_WORDS];
        nodes[0] = 1;
        nodes
    }
}
