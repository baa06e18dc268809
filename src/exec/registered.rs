//! Buffers that other ranks of the host can map.

use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

use crate::device::{HostMemory, HostRegion};
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::transport::{KnownBuffer, PeerCalls};
use crate::types::Element;

/// A zeroed buffer of `T` in memory that processes of this host can share.
///
/// Registered with a communicator ([`crate::Communicator::register`]), large collectives of one host work in it in
/// place: nothing is copied on the way. Otherwise it is a slice like any other.
///
/// When a call that fails has returned, no rank touches its buffers any more. Where another process stands still in the
/// middle of the call, stopped by a signal or a debugger, this takes half a second and a copy of the buffer, which is
/// then registered nowhere: later calls treat it as ordinary memory until it is registered anew. Threads of this
/// process are waited for, however long they take.
///
/// A child that the process forks has the same memory, not a copy of it: what the child writes, its parent reads.
///
/// For many vectors that grow there is a [`SharedPool`](crate::comm::SharedPool), which is registered once. Memory that
/// something else allocates can be registered where it lies ([`Registered`](crate::comm::Registered)), at the cost of
/// moving its pages; a buffer costs nothing beside other memory.
///
/// # Examples
/// ```
/// use rsccl::{Buffer, ReduceOp};
///
/// rsccl::local::run(2, |comm| {
///     let (mut send, mut recv) = (Buffer::<f32>::new(100_000)?, Buffer::<f32>::new(100_000)?);
///     comm.register(&send)?;
///     comm.register(&recv)?;
///     send.fill(1.5);
///     comm.all_reduce(&send, &mut recv, ReduceOp::Sum)?;
///     assert!(recv.iter().all(|value| *value == 3.0));
///     // Not needed at the end of a program: it gives the peers' mappings back.
///     comm.deregister(&send)?;
///     comm.deregister(&recv)
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
#[derive(Debug)]
pub struct Buffer<T> {
    memory: HostRegion,
    count: usize,
    /// Dropped with the buffer: communicators that know of it see that it is gone.
    life: Arc<()>,
    elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    /// A buffer of `count` elements, all zero.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for a count of 0 or one that does not fit the address space;
    /// [`crate::error::Kind::System`] where there is no memory.
    pub fn new(count: usize) -> Result<Buffer<T>> {
        let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok() && *bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            Error::invalid_argument(format!(
                "a buffer of {count} elements: give at least 1, and no more than memory holds"
            ))
        })?;
        let memory = HostMemory.buffer(bytes)?;
        memory.keep().prefer_huge_pages();
        Ok(Buffer { memory, count, life: Arc::default(), elements: PhantomData })
    }

    /// Where it begins, for its owner.
    pub(crate) fn base(&self) -> *mut T {
        self.memory.base().as_ptr().cast()
    }

    /// What communicators know of it.
    pub(crate) fn known(&self) -> KnownBuffer {
        KnownBuffer {
            memory: self.memory.clone(),
            generation: None,
            life: Arc::downgrade(&self.life),
            calls: PeerCalls::default(),
            placed: None,
        }
    }
}

impl<T: Element> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `count` elements, page-aligned, zeroed at first, and any bit pattern is a value of
        // an `Element`. Peers write into it only during collectives that have borrowed the buffer exclusively, under
        // its rank's lease.
        unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr().cast::<T>().cast_const(), self.count) }
    }
}

impl<T: Element> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; `Buffer` is not cloned, and its communicators follow the memory during collectives only.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().as_ptr().cast::<T>(), self.count) }
    }
}
