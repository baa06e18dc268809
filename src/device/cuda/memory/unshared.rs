//! What keeps memory of the host that never leaves this process.

use std::fmt::Debug;
use std::os::fd::OwnedFd;

use crate::device::{Generation, Keep};
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;

/// Keeps a `T`, which gives the memory back when it is dropped.
#[derive(Debug)]
pub(in crate::device::cuda) struct Unshared<T>(pub(in crate::device::cuda) T);

impl<T: Debug + Send + Sync> Keep for Unshared<T> {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    fn lend(&self, _: Generation) -> bool {
        true
    }

    fn take_back(&self, _: Generation) -> bool {
        true
    }

    fn detach(&self) -> Result<()> {
        Ok(())
    }

    fn is_detached(&self) -> bool {
        false
    }

    fn share_anew(&self) -> Result<Generation> {
        Err(Error::internal("this memory cannot be shared"))
    }

    fn prefer_huge_pages(&self) {}
}
