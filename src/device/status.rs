//! The page by which a launch and its host hear from each other while it runs: host memory that the device reads and
//! writes.

use std::any::Any;

use crate::device::{HostMemory, HostRegion, Sharing};
use crate::error::Result;
use crate::sync::Mirror;
use crate::sync::primitive::{AtomicU32, AtomicU64, Ordering};
use crate::sync::ring::Label;

/// One page of host memory, zero at first:
///
/// | offset | words | what | written by |
/// |---|---|---|---|
/// | 0 | u32 | abort: a launch that waits and sees another value than 0 ends | the host |
/// | 64 | u32 | fault: [`StatusPage::CLAIMED`] while it is written, then a code | the device |
/// | 72 | u64 × 7 | the peer, the label of this rank, the peer's | the device |
/// | 256 | u32 | arrived: not 0 where this rank's stream waits for the leader of its device | streams |
/// | 384 | u32 | done: not 0 where the leader has done its work | the leader's launches |
/// | 512 | u64 × 3 | the label of this rank's call | streams |
///
/// The last three are of ranks whose device several processes share: their pages lie behind each other in memory that
/// all of them map. Streams wait for these words; the host lets them go on when the communicator has failed.
#[derive(Debug)]
pub struct StatusPage {
    /// What the device has for the rank whose page it is.
    place: Option<Box<dyn Any + Send + Sync>>,
    page: HostRegion,
    /// The words that streams of this process wait for, with the pages in which they lie.
    awaited: Vec<(HostRegion, usize)>,
    /// The pages of the other ranks whose work waits for these words.
    fellows: Vec<HostRegion>,
}

/// Why a launch ended before its programs had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchFault {
    /// The host asked for it.
    Aborted,
    /// A peer called something else.
    Mismatch {
        /// Which.
        peer: u32,
        /// What this rank called.
        mine: Label,
        /// What the peer called.
        theirs: Label,
    },
}

impl StatusPage {
    /// Bytes of the page.
    pub const BYTES: usize = 4096;
    /// The fault is being written.
    pub const CLAIMED: u32 = 1;
    /// The code of [`LaunchFault::Aborted`].
    pub const ABORTED: u32 = 2;
    /// The code of [`LaunchFault::Mismatch`].
    pub const MISMATCH: u32 = 3;

    /// Where the word lies by which a rank says that it has come.
    pub const ARRIVED: usize = 256;
    /// Where the word lies by which the leader says that its work is done.
    pub const DONE: usize = 384;
    /// Where the label lies.
    pub const LABEL: usize = 512;

    /// A page without fault.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where there is no memory.
    pub fn new() -> Result<StatusPage> {
        let page = HostMemory.allocate_host(StatusPage::BYTES, Sharing::Threads)?;
        Ok(StatusPage { place: None, page, awaited: Vec::new(), fellows: Vec::new() })
    }

    /// A page of [`StatusPage::BYTES`] zeroed bytes that a device reaches, with what else the device has for the rank.
    pub fn on(page: HostRegion, place: Box<dyn Any + Send + Sync>) -> StatusPage {
        assert!(page.bytes() == StatusPage::BYTES, "a whole page");
        StatusPage { place: Some(place), page, awaited: Vec::new(), fellows: Vec::new() }
    }

    /// The same page, whose abort lets streams go on that wait for these words of pages. That work then ends like work
    /// that ran well, so the abort is reported on this page and on those of `fellows`, the other ranks of that work.
    #[must_use]
    pub fn with_awaited(self, awaited: Vec<(HostRegion, usize)>, fellows: Vec<HostRegion>) -> StatusPage {
        StatusPage { awaited, fellows, ..self }
    }

    /// What the device has for the rank, if it is a `T`.
    pub fn place<T: Any>(&self) -> Option<&T> {
        self.place.as_ref()?.downcast_ref()
    }

    /// The page itself, for devices that have to be told of memory before they reach it.
    pub fn region(&self) -> &HostRegion {
        &self.page
    }

    /// Whether launches shall end.
    pub fn is_aborted(&self) -> bool {
        // Relaxed: the word stands alone.
        self.word(ABORT).load(Ordering::Relaxed) != 0
    }

    /// Says why a launch ended; the first fault stays. For devices that are part of the host.
    pub fn report(&self, fault: LaunchFault) {
        report_on(&self.page, fault);
    }

    /// Why a launch ended, where one did before its programs had. While a fault is being written, perhaps by a process
    /// that has died meanwhile, it is an abort.
    pub fn fault(&self) -> Option<LaunchFault> {
        // Relaxed: the code was read with acquire before.
        let label = |first: usize| std::array::from_fn(|place| self.detail(first + place).load(Ordering::Relaxed));
        // Pairs with the release in `report`, and with a device's fence before its store.
        match self.word(FAULT).load(Ordering::Acquire) {
            StatusPage::CLAIMED | StatusPage::ABORTED => Some(LaunchFault::Aborted),
            StatusPage::MISMATCH => Some(LaunchFault::Mismatch {
                peer: u32::try_from(self.detail(0).load(Ordering::Relaxed)).unwrap_or(u32::MAX),
                mine: label(1),
                theirs: label(4),
            }),
            _ => None,
        }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        word_of(&self.page, offset)
    }

    fn detail(&self, place: usize) -> &AtomicU64 {
        detail_of(&self.page, place)
    }
}

fn word_of(page: &HostRegion, offset: usize) -> &AtomicU32 {
    // SAFETY: inside the page, aligned, zeroed at first, and only used as an atomic word while the page lives.
    unsafe { page.at(offset, size_of::<AtomicU32>()).cast().as_ref() }
}

fn detail_of(page: &HostRegion, place: usize) -> &AtomicU64 {
    let offset = DETAILS + place * size_of::<AtomicU64>();
    // SAFETY: as in `word_of`.
    unsafe { page.at(offset, size_of::<AtomicU64>()).cast().as_ref() }
}

fn report_on(page: &HostRegion, fault: LaunchFault) {
    let code = word_of(page, FAULT);
    // Relaxed: it only tells who writes.
    if code.compare_exchange(0, StatusPage::CLAIMED, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return;
    }
    let (number, peer, mine, theirs) = match fault {
        LaunchFault::Aborted => (StatusPage::ABORTED, 0, [0; 3], [0; 3]),
        LaunchFault::Mismatch { peer, mine, theirs } => (StatusPage::MISMATCH, peer, mine, theirs),
    };
    let words = [u64::from(peer)].into_iter().chain(mine).chain(theirs);
    // Relaxed: the code publishes them.
    words.enumerate().for_each(|(place, word)| detail_of(page, place).store(word, Ordering::Relaxed));
    // Pairs with the acquire in `StatusPage::fault`.
    code.store(number, Ordering::Release);
}

impl Mirror for StatusPage {
    fn raise(&self) {
        // Relaxed: the word stands alone; the reason is kept with the flag.
        self.word(ABORT).store(1, Ordering::Relaxed);
        if self.awaited.is_empty() {
            return;
        }
        // First the fault, on this page too: the words end launches, and an end without a fault is taken for success.
        let pages = self.fellows.iter().chain([&self.page]);
        pages.for_each(|page| report_on(page, LaunchFault::Aborted));
        for (page, offset) in &self.awaited {
            // Release: a launch that was let go on by it sees the abort before.
            word_of(page, *offset).store(RELEASED, Ordering::Release);
        }
    }
}

/// What the host writes to a word that a stream waits for, when nobody else will.
const RELEASED: u32 = 1 << 31;

const ABORT: usize = 0;
const FAULT: usize = 64;
const DETAILS: usize = 72;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::headers::constant;
    use crate::sync::AbortFlag;
    use crate::sync::primitive::Arc;

    /// The page of rank 0 looks after the word that its stream waits for, and after the work of rank 1.
    #[test]
    fn an_abort_lets_streams_go_on_and_is_told_to_fellows() {
        let pages = HostMemory.allocate_host(2 * StatusPage::BYTES, Sharing::Threads).unwrap();
        let page = |rank: usize| pages.part(rank * StatusPage::BYTES, StatusPage::BYTES);
        let fellow = StatusPage::on(page(1), Box::new(()));
        let mine = StatusPage::on(page(0), Box::new(()));
        let mine = mine.with_awaited(vec![(page(0), StatusPage::DONE)], vec![page(1)]);
        let done = || word_of(&page(0), StatusPage::DONE).load(Ordering::Relaxed);
        assert_eq!((done(), fellow.fault()), (0, None));
        mine.raise();
        let aborted = Some(LaunchFault::Aborted);
        assert_eq!((done(), fellow.fault(), mine.fault()), (RELEASED, aborted, aborted));
        // The stream takes the word back, and the next call waits again.
        word_of(&page(0), StatusPage::DONE).store(0, Ordering::Relaxed);
        mine.raise();
        assert_eq!((done(), fellow.is_aborted()), (RELEASED, false));
    }

    /// Regression: two threads tell a page to stop, and the second lets a stream go on before the first has written
    /// why. The end of that stream was taken for success.
    #[test]
    fn a_fault_that_is_being_written_is_one() {
        let page = StatusPage::new().unwrap();
        page.word(FAULT).store(StatusPage::CLAIMED, Ordering::Relaxed);
        assert_eq!(page.fault(), Some(LaunchFault::Aborted));
    }

    #[test]
    fn the_words_of_a_page_lie_where_the_kernels_look_for_them() {
        let words = [ABORT, FAULT, DETAILS, StatusPage::BYTES, StatusPage::DONE, StatusPage::LABEL].map(|at| at as u64);
        let names = ["ABORT", "FAULT", "DETAILS", "BYTES", "DONE", "LABEL"];
        assert_eq!(words, names.map(|name| constant(&format!("STATUS_{name}"))));
        let codes = [StatusPage::CLAIMED, StatusPage::ABORTED, StatusPage::MISMATCH].map(u64::from);
        assert_eq!(codes, ["CLAIMED", "ABORTED", "MISMATCH"].map(|name| constant(&format!("STATUS_{name}"))));
    }

    #[test]
    fn the_first_fault_stays_and_the_abort_flag_is_seen() {
        let page = Arc::new(StatusPage::new().unwrap());
        assert_eq!((page.fault(), page.is_aborted()), (None, false));
        let fault = LaunchFault::Mismatch { peer: 7, mine: [1, 2, 3], theirs: [4, 5, 6] };
        page.report(fault);
        page.report(LaunchFault::Aborted);
        assert_eq!(page.fault(), Some(fault));
        let flag = AbortFlag::new();
        flag.mirror(&page);
        flag.raise(crate::error::Error::aborted("enough"));
        assert!(page.is_aborted());
    }
}
