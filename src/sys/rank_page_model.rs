//! [`rank_page`](crate::sys::rank_page) under a model checker, whose words are no words of memory.

use std::ops::Deref;

use crate::sync::primitive::{Arc, AtomicU64, mapped};

/// The words of a rank.
#[derive(Debug)]
pub struct PageWords {
    /// As in the real one; no model looks at it.
    pub head: [mapped::AtomicU64; HEAD_WORDS],
    /// As in the real one.
    pub labels: [[AtomicU64; LABEL_WORDS]; LABELS],
}

/// As in the real one.
pub const HEAD_WORDS: usize = 1024;
/// As in the real one.
pub const LABEL_WORDS: usize = 4;
/// As in the real one.
pub const LABELS: usize = 256;
/// As in the real one.
pub const PAGE_WORDS: usize = HEAD_WORDS + LABEL_WORDS * LABELS;
/// As in the real one.
pub const MOST_PAGES: usize = 256;
/// As in the real one.
pub const ALL_WORDS: usize = HEAD_WORDS + MOST_PAGES * PAGE_WORDS;
/// As in the real one.
pub const MAGIC: u64 = 1;
/// As where it is modelled.
pub const PAGES_NAME: &std::ffi::CStr = c"rsccl-ranks";

/// As in the real one.
pub mod process_head {
    /// As in the real one.
    pub const MAGIC_AT: usize = 0;
    /// As in the real one.
    pub const PROCESS: usize = 1;
    /// As in the real one.
    pub const USED: usize = 2;
    /// As in the real one.
    pub const HIDDEN: usize = 3;
    /// As in the real one.
    pub const HOST: usize = 8;
    /// As in the real one.
    pub const HOST_WORDS: usize = 33;
    /// As in the real one.
    pub const HOST_NAMES: usize = 48;
    /// As in the real one.
    pub const HOST_NAME_WORDS: usize = 9;
    /// As in the real one.
    pub const MOST_HOST_NAMES: usize = (super::HEAD_WORDS - HOST_NAMES) / HOST_NAME_WORDS;
}

/// The page of one rank.
#[derive(Debug, Clone)]
pub struct RankPage(Arc<PageWords>);

impl RankPage {
    /// A page, in which every word is 0.
    pub fn take() -> RankPage {
        let labels = std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0)));
        RankPage(Arc::new(PageWords { head: std::array::from_fn(|_| mapped::AtomicU64::new(0)), labels }))
    }

    /// The same.
    pub fn hidden() -> RankPage {
        RankPage::take()
    }

    /// Nobody sees the page.
    pub fn host_number(&self, _: &str) -> Option<u32> {
        None
    }
}

impl Deref for RankPage {
    type Target = PageWords;

    fn deref(&self) -> &PageWords {
        &self.0
    }
}

/// No page is seen from outside.
#[derive(Debug)]
pub struct OwnPages;

impl OwnPages {
    /// There are none.
    pub fn find() -> Option<OwnPages> {
        None
    }

    /// Nothing.
    pub fn word(&self, _: usize) -> u64 {
        0
    }
}
