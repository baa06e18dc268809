//! Memory of the host that ranks can share: buffers, pools, and memory of the program that is registered where it lies.

use std::ptr::NonNull;

use super::Comm;
use super::failure::{Failure, guard};
use crate::error::Error;
use crate::exec::{Buffer, SharedPool, UntypedMemory};

/// Memory to register; `None` before there is any.
pub(super) struct Memory(Option<KnownMemory>);

enum KnownMemory {
    Buffer(Buffer<u8>),
    InPlace(UntypedMemory),
    Pool(SharedPool),
}

pub(super) fn memory() -> Box<Memory> {
    Box::new(Memory(None))
}

pub(super) fn allocate(memory: &mut Memory, count: usize, element_bytes: usize) -> *mut Failure {
    guard(|| {
        let bytes = count.checked_mul(element_bytes).filter(|bytes| *bytes > 0 && isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| {
            Error::invalid_argument(format!(
                "a buffer of {count} elements: give at least 1, and no more than memory holds"
            ))
        })?;
        memory.0 = Some(KnownMemory::Buffer(Buffer::new(bytes)?));
        Ok(())
    })
}

/// Where a buffer begins.
pub(super) fn place(memory: &mut Memory) -> *mut u8 {
    match &mut memory.0 {
        Some(KnownMemory::Buffer(buffer)) => buffer.as_mut_ptr(),
        Some(KnownMemory::InPlace(_) | KnownMemory::Pool(_)) | None => std::ptr::null_mut(),
    }
}

/// # Safety
/// As [`UntypedMemory::new`], until `memory` is dropped.
pub(super) unsafe fn move_in_place(
    memory: &mut Memory,
    start: *mut u8,
    bytes: usize,
    is_unpinned: bool,
) -> *mut Failure {
    guard(|| {
        let is_range = isize::try_from(bytes).is_ok() && start.addr().checked_add(bytes).is_some();
        let place = NonNull::new(start).filter(|_| is_range).ok_or_else(|| {
            Error::invalid_argument(format!(
                "memory of {bytes} bytes at {start:p}: give where memory of the program begins, and how long it is"
            ))
        })?;
        // SAFETY: the caller's promise.
        memory.0 = Some(KnownMemory::InPlace(unsafe { UntypedMemory::new(place, bytes, is_unpinned) }));
        Ok(())
    })
}

/// Why memory has stayed where it was; nothing if it has moved.
pub(super) fn refusal(memory: &Memory) -> String {
    match &memory.0 {
        Some(KnownMemory::InPlace(memory)) => memory.refusal().unwrap_or_default().to_owned(),
        Some(KnownMemory::Buffer(_) | KnownMemory::Pool(_)) | None => String::new(),
    }
}

pub(super) fn make_pool(memory: &mut Memory, bytes: usize) -> *mut Failure {
    guard(|| {
        memory.0 = Some(KnownMemory::Pool(SharedPool::new(bytes)?));
        Ok(())
    })
}

/// A block of a pool; null where there is none, which the program hears of as `std::bad_alloc`.
pub(super) fn take_block(memory: &Memory, bytes: usize, align: usize) -> *mut u8 {
    let block = pool(memory).map(|pool| pool.take(bytes, align));
    block.and_then(Result::ok).map_or(std::ptr::null_mut(), NonNull::as_ptr)
}

/// Frees the block of a pool that begins at `address`. False where none does.
pub(super) fn give_block(memory: &Memory, address: usize) -> bool {
    pool(memory).is_some_and(|pool| pool.give(address))
}

/// Capacity of a pool, and the bytes in blocks.
pub(super) fn pool_use(memory: &Memory) -> [usize; 2] {
    pool(memory).map_or([0; 2], |pool| [pool.capacity(), pool.in_use()])
}

pub(super) fn trim_pool(memory: &Memory) {
    pool(memory).into_iter().for_each(SharedPool::trim);
}

fn pool(memory: &Memory) -> Option<&SharedPool> {
    match &memory.0 {
        Some(KnownMemory::Pool(pool)) => Some(pool),
        Some(KnownMemory::Buffer(_) | KnownMemory::InPlace(_)) | None => None,
    }
}

pub(super) fn register_memory(comm: &Comm, memory: &Memory, takes_back: bool) -> *mut Failure {
    comm.on(|comm| {
        let shared = memory.0.as_ref().ok_or_else(|| Error::invalid_argument("the buffer was moved from"))?;
        match (shared, takes_back) {
            (KnownMemory::Buffer(buffer), false) => comm.register(buffer),
            (KnownMemory::Buffer(buffer), true) => comm.deregister(buffer),
            (KnownMemory::InPlace(memory), false) => comm.register(memory),
            (KnownMemory::InPlace(memory), true) => comm.deregister(memory),
            (KnownMemory::Pool(pool), false) => comm.register(pool),
            (KnownMemory::Pool(pool), true) => comm.deregister(pool),
        }
    })
}
