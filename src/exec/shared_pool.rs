//! Memory that is born shared: a pool that processes of this host can map, and vectors in it.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::device::{HostMemory, HostRegion};
use crate::error::{Error, Kind, Result};
use crate::exec::in_place::{Registrable, private};
use crate::exec::pool_blocks::PoolBlocks;
use crate::sync::primitive::{Arc, Mutex};
use crate::sys::fork::Birthplace;
use crate::sys::in_place::PlacedRange;
use crate::transport::{KnownBuffer, PeerCalls, PlacedBuffer};
use crate::types::Element;

/// Memory for many vectors that processes of this host can share from the start.
///
/// Registered once with a communicator ([`crate::Communicator::register`]), large collectives of one host work in place
/// in all vectors that lie in it, as in a [`Buffer`](crate::Buffer): also in those that are made later. Memory is taken
/// when it is first written, so a pool may be made as large as the program will ever need. Blocks that are freed are
/// used again; [`SharedPool::trim`] gives the memory of those that are free back to the system.
///
/// Each page lies on the NUMA node of the thread that first writes it, whatever rank that is; a block that is used
/// again lies where it lay, unless [`SharedPool::trim`] gave its memory back meanwhile. So the thread that works in a
/// vector is best the one that fills it. All vectors of a pool are one registration, and need one file descriptor.
///
/// Clones are the same pool, which lives as long as one of them, or a vector in it. Any thread may use it. A child that
/// the process forks has the same memory, not a copy of it, and gets no block: a vector that it wants to make longer is
/// an error there.
///
/// A call in the pool that fails while a peer's process stands still there takes all of it out of the peers' reach:
/// what is in use is copied, calls of other communicators that work in the pool at that moment fail, and
/// [`SharedPool::trim`] does nothing from then on. Later calls in it work through scratch, until the pool is registered
/// anew while no vector has memory in it.
///
/// # Examples
/// ```
/// use rsccl::ReduceOp;
/// use rsccl::comm::{SharedPool, SharedVec};
///
/// rsccl::local::run(2, |comm| {
///     let pool = SharedPool::new(64 << 20)?;
///     comm.register(&pool)?;
///     let mut gradients = SharedVec::<f32>::filled(1.5, 100_000, &pool)?;
///     comm.all_reduce_in_place(&mut gradients, ReduceOp::Sum)?;
///     assert!(gradients.iter().all(|value| *value == 3.0));
///     Ok(())
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct SharedPool(Arc<PoolMemory>);

#[derive(Debug)]
struct PoolMemory {
    region: HostRegion,
    blocks: Mutex<PoolBlocks>,
    life: Arc<()>,
    birthplace: Birthplace,
    calls: PeerCalls,
}

impl SharedPool {
    /// A pool for `bytes` in all.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] for 0 bytes or more than the address space has; [`Kind::System`] where the system has
    /// no such memory, or as many addresses.
    pub fn new(bytes: usize) -> Result<SharedPool> {
        if bytes == 0 || isize::try_from(bytes).is_err() {
            return Err(Error::invalid_argument(format!(
                "a pool of {bytes} bytes: give at least 1, and no more than memory has addresses"
            )));
        }
        let region = HostMemory.pool(bytes.next_multiple_of(PAGE_BYTES))?;
        region.keep().prefer_huge_pages();
        let blocks = Mutex::new(PoolBlocks::new(region.bytes()));
        let (birthplace, life, calls) = (Birthplace::here(), Arc::default(), PeerCalls::default());
        Ok(SharedPool(Arc::new(PoolMemory { region, blocks, life, birthplace, calls })))
    }

    /// The bytes for all blocks.
    pub fn capacity(&self) -> usize {
        self.0.region.bytes()
    }

    /// The bytes in blocks, rounded up as each of them is.
    pub fn in_use(&self) -> usize {
        if self.0.birthplace.is_here() { self.0.blocks.lock().taken_bytes() } else { 0 }
    }

    /// In how many calls peers worked in it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn calls(&self) -> u64 {
        self.0.calls.count()
    }

    /// Gives the memory of what is free back to the system: whole pages of it.
    pub fn trim(&self) {
        if !self.0.birthplace.is_here() {
            return;
        }
        let mut blocks = self.0.blocks.lock();
        for (start, length) in blocks.free() {
            let first = start.next_multiple_of(PAGE_BYTES);
            let last = (start + length).min(blocks.high().next_multiple_of(PAGE_BYTES));
            let last = last - last % PAGE_BYTES;
            if first < last {
                self.0.region.keep().discard(first, last - first);
            }
        }
        // What has no memory any more needs room again.
        let end = blocks.end();
        blocks.set_high(end);
    }

    /// A block of at least `bytes` at a multiple of `align`, a power of two. What it holds is anything.
    ///
    /// # Errors
    /// [`Kind::System`] where the pool or the system has no room for it; [`Kind::InvalidUsage`] in a forked child.
    pub(crate) fn take(&self, bytes: usize, align: usize) -> Result<NonNull<u8>> {
        let PoolMemory { region, blocks, birthplace, .. } = &*self.0;
        // A thread of the parent may have had the lock.
        if !birthplace.is_here() {
            return Err(Error::invalid_usage(
                "a pool of shared memory gives no block to a forked child: its parent has the same memory",
            ));
        }
        let mut blocks = blocks.lock();
        let high = blocks.high();
        // The pool begins with a page, and so no block is aligned to more.
        let found = if align <= PAGE_BYTES { blocks.take(bytes, align) } else { None };
        let at = found.ok_or_else(|| {
            let (all, taken) = (region.bytes(), blocks.taken_bytes());
            Error::new(
                Kind::System,
                format!("the pool of {all} bytes has no room for {bytes} more, with {taken} in use: make it larger"),
            )
        })?;
        if let Err(error) = region.keep().grow_use(high, blocks.high()) {
            blocks.give(at);
            // The next one asks again.
            blocks.set_high(high);
            return Err(error);
        }
        Ok(region.at(at, bytes))
    }

    /// Frees the block that begins at `address`. False where none does.
    pub(crate) fn give(&self, address: usize) -> bool {
        if !self.0.birthplace.is_here() {
            return true;
        }
        let offset = address.checked_sub(self.0.region.base().as_ptr().addr());
        offset.is_some_and(|at| self.0.blocks.lock().give(at).is_some())
    }

    /// How long the block at `place` is.
    fn length(&self, place: NonNull<u8>) -> Option<usize> {
        let at = place.as_ptr().addr().checked_sub(self.0.region.base().as_ptr().addr())?;
        self.0.blocks.lock().length(at)
    }
}

impl Registrable for SharedPool {}

impl private::KnownToPeers for SharedPool {
    fn known(&self) -> Result<KnownBuffer> {
        let PoolMemory { region, blocks, life, birthplace, calls } = &*self.0;
        let (life, calls) = (Arc::downgrade(life), calls.clone());
        // A thread of the parent may have had the lock.
        if birthplace.is_here() {
            // Nobody takes a block meanwhile, and writes there.
            let blocks = blocks.lock();
            let is_unused = blocks.taken_bytes() == 0;
            let generation = if is_unused { Some(region.keep().share_anew()?) } else { region.keep().shared() };
            if generation.is_some() {
                return Ok(KnownBuffer { memory: region.clone(), generation, life, calls, placed: None });
            }
        }
        // Whoever has a block may be writing there, and what is written during the copy would be lost.
        let placed = Some(PlacedBuffer::new(PlacedRange::NOWHERE));
        Ok(KnownBuffer { memory: HostMemory.buffer(1)?, generation: None, life, calls, placed })
    }
}

/// A vector in a [`SharedPool`]: a slice of its elements for calls, which grows like a `Vec`.
pub struct SharedVec<T> {
    pool: SharedPool,
    start: NonNull<T>,
    count: usize,
    capacity: usize,
}

// SAFETY: it owns its block, whose elements are plain data; a pool can be sent and shared.
unsafe impl<T: Element> Send for SharedVec<T> {}
// SAFETY: as above.
unsafe impl<T: Element> Sync for SharedVec<T> {}

impl<T: Element> SharedVec<T> {
    /// An empty vector, without a block.
    pub fn new(pool: &SharedPool) -> SharedVec<T> {
        SharedVec { pool: pool.clone(), start: NonNull::dangling(), count: 0, capacity: 0 }
    }

    /// `count` times `value`.
    ///
    /// # Errors
    /// As [`SharedVec::reserve`].
    pub fn filled(value: T, count: usize, pool: &SharedPool) -> Result<SharedVec<T>> {
        let mut vector = SharedVec::new(pool);
        vector.resize(count, value)?;
        Ok(vector)
    }

    /// A copy of `elements`.
    ///
    /// # Errors
    /// As [`SharedVec::reserve`].
    pub fn copied(elements: &[T], pool: &SharedPool) -> Result<SharedVec<T>> {
        let mut vector = SharedVec::new(pool);
        vector.extend_from_slice(elements)?;
        Ok(vector)
    }

    /// Makes room for `more` elements behind those that there are.
    ///
    /// # Errors
    /// [`Kind::System`] where the pool or the system has no room for them; [`Kind::InvalidArgument`] for elements
    /// without bytes; [`Kind::InvalidUsage`] in a forked child. The vector is as it was.
    pub fn reserve(&mut self, more: usize) -> Result<()> {
        let least = self.count.saturating_add(more);
        if least <= self.capacity {
            return Ok(());
        }
        if size_of::<T>() == 0 {
            return Err(Error::invalid_argument("a vector in a pool needs elements that have bytes"));
        }
        // Twice as many, so that growing one by one moves each element a few times only; where that is too much, just
        // those that are asked for.
        let take = |count: usize| self.pool.take(count.saturating_mul(size_of::<T>()), align_of::<T>());
        let doubled = least.max(self.capacity.saturating_mul(2)).max(LEAST_ELEMENTS);
        let block = take(doubled).or_else(|error| if least < doubled { take(least) } else { Err(error) })?;
        let capacity = self.pool.length(block).expect("the block was just taken") / size_of::<T>();
        // SAFETY: the old block has `count` elements, the new one has room for more, and they do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.start.as_ptr().cast_const(), block.cast().as_ptr(), self.count) };
        self.free();
        (self.start, self.capacity) = (block.cast(), capacity);
        Ok(())
    }

    /// Appends an element.
    ///
    /// # Errors
    /// As [`SharedVec::reserve`].
    pub fn push(&mut self, value: T) -> Result<()> {
        self.extend_from_slice(&[value])
    }

    /// Appends elements.
    ///
    /// # Errors
    /// As [`SharedVec::reserve`].
    pub fn extend_from_slice(&mut self, elements: &[T]) -> Result<()> {
        self.reserve(elements.len())?;
        let end = self.start.as_ptr().wrapping_add(self.count);
        // SAFETY: there is room for as many behind the others, in a block that no slice but this value's own reaches.
        unsafe { std::ptr::copy_nonoverlapping(elements.as_ptr(), end, elements.len()) };
        self.count += elements.len();
        Ok(())
    }

    /// Makes it `count` elements long: drops the last ones, or appends `value`.
    ///
    /// # Errors
    /// As [`SharedVec::reserve`].
    pub fn resize(&mut self, count: usize, value: T) -> Result<()> {
        self.reserve(count.saturating_sub(self.count))?;
        for place in self.count..count {
            // SAFETY: there is room for as many.
            unsafe { self.start.as_ptr().wrapping_add(place).write(value) };
        }
        self.count = count;
        Ok(())
    }

    /// Keeps the first `count` elements, if it has more. It keeps its block.
    pub fn truncate(&mut self, count: usize) {
        self.count = self.count.min(count);
    }

    /// For how many elements it has room.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn free(&mut self) {
        if self.capacity > 0 {
            let known = self.pool.give(self.start.as_ptr().addr());
            debug_assert!(known, "a vector's block is its pool's");
        }
    }
}

impl<T> Drop for SharedVec<T> {
    fn drop(&mut self) {
        if self.capacity > 0 {
            let known = self.pool.give(self.start.as_ptr().addr());
            debug_assert!(known, "a vector's block is its pool's");
        }
    }
}

impl<T: Element> Deref for SharedVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the block, which this value owns, has `count` elements. Peers write into it only during collectives
        // that have borrowed them exclusively, under its rank's lease.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast_const(), self.count) }
    }
}

impl<T: Element> DerefMut for SharedVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

impl<T> fmt::Debug for SharedVec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedVec")
            .field("count", &self.count)
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// The first block of a vector that grows.
const LEAST_ELEMENTS: usize = 8;
const PAGE_BYTES: usize = 4096;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn vectors_grow_and_free_their_blocks() {
        let pool = SharedPool::new(1 << 20).unwrap();
        let mut vectors: Vec<SharedVec<u32>> = (0..50).map(|_| SharedVec::new(&pool)).collect();
        for value in 0..1000 {
            vectors.iter_mut().for_each(|vector| vector.push(value).unwrap());
        }
        assert!(vectors.iter().all(|vector| vector.iter().copied().eq(0..1000)));
        assert!(pool.in_use() >= 50 * 4000 && pool.in_use() <= 50 * 4000 * 3, "{}", pool.in_use());
        let mut one = vectors.pop().unwrap();
        drop(vectors);
        one.truncate(3);
        one.resize(5, 9).unwrap();
        assert_eq!(one[..], [0, 1, 2, 9, 9]);
        let copy = SharedVec::copied(&one, &pool).unwrap();
        assert_eq!(copy[..], one[..]);
        drop((one, copy));
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn a_pool_that_is_full_says_so_and_has_room_again() {
        let pool = SharedPool::new(100_000).unwrap();
        let full = SharedVec::filled(1u8, pool.capacity() - 4096, &pool).unwrap();
        let mut more = SharedVec::filled(2u8, 64, &pool).unwrap();
        let error = more.resize(10_000, 0).unwrap_err();
        assert!(error.kind() == Kind::System && error.message().contains("no room for"), "{error}");
        assert!(more[..] == [2; 64], "as it was");
        drop(full);
        more.resize(10_000, 0).unwrap();
        assert_eq!(SharedPool::new(0).unwrap_err().kind(), Kind::InvalidArgument);
        assert_eq!(SharedPool::new(usize::MAX).unwrap_err().kind(), Kind::InvalidArgument);
        assert!(more.reserve(usize::MAX).is_err());
    }

    /// Regression: stores of other threads were lost in the copy.
    #[test]
    fn a_pool_that_peers_lost_is_shared_again_once_nobody_can_write_in_it() {
        use crate::exec::in_place::private::KnownToPeers;
        let pool = SharedPool::new(1 << 20).unwrap();
        let vector = SharedVec::filled(1u8, 5000, &pool).unwrap();
        let base = pool.0.region.base();
        let before = pool.known().unwrap();
        assert!(before.memory.base() == base && before.generation == pool.0.region.keep().shared());
        pool.0.region.keep().detach().unwrap();
        let known = pool.known().unwrap();
        assert!(known.memory.base() != base && known.generation.is_none() && pool.0.region.keep().is_detached());
        assert!(known.life.ptr_eq(&before.life) && vector.iter().all(|value| *value == 1));
        drop(vector);
        let known = pool.known().unwrap();
        assert!(known.memory.base() == base && known.generation.is_some() && known.generation != before.generation);
    }

    #[test]
    fn elements_without_bytes_are_refused() {
        let pool = SharedPool::new(1 << 20).unwrap();
        let error = SharedVec::filled([0u32; 0], 3, &pool).unwrap_err();
        assert_eq!((error.kind(), pool.in_use()), (Kind::InvalidArgument, 0));
    }

    #[test]
    fn a_vector_that_cannot_double_grows_by_what_is_asked_for() {
        let pool = SharedPool::new(1 << 20).unwrap();
        let mut vector = SharedVec::filled(1u8, 400 << 10, &pool).unwrap();
        vector.extend_from_slice(&[2; 100 << 10]).unwrap();
        assert!(vector.len() == 500 << 10 && vector.capacity() < 600 << 10);
    }

    #[test]
    fn what_is_free_has_no_memory_after_a_trim_and_vectors_keep_theirs() {
        let pool = SharedPool::new(8 << 20).unwrap();
        let (kept, freed) =
            (SharedVec::filled(7u64, 1000, &pool).unwrap(), SharedVec::filled(1u64, 1 << 19, &pool).unwrap());
        drop(freed);
        let file = std::fs::File::from(pool.0.region.keep().descriptor().unwrap().try_clone().unwrap());
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap()) * 512;
        assert!(blocks() >= 4 << 20);
        pool.trim();
        assert!(blocks() <= 2 << 20, "{}", blocks());
        assert!(kept.iter().all(|value| *value == 7));
        let blocks = pool.0.blocks.lock();
        assert!(blocks.high() == blocks.end(), "there must be room for the rest again");
    }

    #[test]
    fn vectors_of_many_threads_share_a_pool() {
        let pool = SharedPool::new(16 << 20).unwrap();
        crate::sys::thread::side_by_side(
            "writer",
            (0..4u32).collect(),
            |mine| {
                for turn in 0..200 {
                    let mut vector = SharedVec::new(&pool);
                    for value in 0..500 {
                        vector.push(mine * 1000 + value + turn)?;
                    }
                    assert!(vector.iter().copied().eq((0..500).map(|value| mine * 1000 + value + turn)));
                }
                Ok::<(), Error>(())
            },
            || (),
        )
        .unwrap();
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn a_forked_child_gets_no_block() {
        let pool = SharedPool::new(1 << 20).unwrap();
        let mut vector = SharedVec::filled(3u32, 100, &pool).unwrap();
        assert!(crate::sys::fork::in_child(move || {
            let refused = vector.reserve(100_000).is_err_and(|error| error.message().contains("forked child"));
            drop(vector);
            refused
        }));
    }
}
