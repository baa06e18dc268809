//! Memory of the program, registered where it lies.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use crate::device::{HostMemory, HostRegion};
use crate::error::Result;
use crate::exec::Buffer;
use crate::log;
use crate::sync::primitive::{Arc, OnceLock};
use crate::sys::in_place::{PinnedPages, PlacedMemory, PlacedRange};
use crate::transport::{KnownBuffer, PeerCalls, PlacedBuffer};
use crate::types::Element;

/// A `Vec<T>` or `Box<[T]>` that processes of this host can share where it lies.
///
/// The whole pages of its elements move to memory that other processes can map, in pieces of 8 MiB, and are mapped over
/// themselves: address and content stay. What lies on pages that other allocations use too stays there, and is copied
/// in and out by each call. Registered with a communicator ([`crate::Communicator::register`]), large collectives of
/// one host work in it in place, as in a [`Buffer`]. Calls take it as a slice.
///
/// Moving costs as much as some dozens of calls save: it pays for memory that is used in some hundred calls, and is a
/// loss around a single one. A GiB took 460 ms to register and 850 to 880 to give back. From 1 MiB on it pays after 21
/// to 31 all-reduces of two ranks, below that after up to 57 (figures: `bench/NOTES.md`, "Registered where it lies").
/// What a program allocates for rsccl is best a [`Buffer`] from the start, or vectors of a
/// [`SharedPool`](crate::comm::SharedPool), which cost nothing. A registration that is given back after fewer than 20
/// calls in which peers worked in it is told of in the log (`NCCL_DEBUG=INFO`, `NCCL_DEBUG_SUBSYS=REG`).
///
/// Some memory must stay where it is: that of a file, of a shared mapping, of the main thread's stack, of hugetlbfs,
/// what is locked by `mlock`, and all memory of a process that has pinned pages for a device, among which this may be
/// ([`Registered::vouched`]); that is seen where the kernel counts them, and where a GPU's or VFIO's device is mapped.
/// Where `vm.overcommit_memory` is 2 nothing moves. Then [`Registered::refusal`] says so, and calls treat it as
/// ordinary memory. The policy of NUMA nodes that the memory was given (`mbind`) goes along with it, and memory in huge
/// pages is in such again, where the kernel can tell (Linux 6.7) and make them (6.1). Without a policy moved pages lie
/// on the node of the thread that registers, and then on that of the thread that takes them out again.
///
/// It owns the memory: [`Registered::into_inner`] gives the pages back to the allocator's memory, and so does dropping
/// it. One that is forgotten (`std::mem::forget`) is never freed. Where the kernel refuses to give pages back, they
/// stay shared and are never freed, and `into_inner` returns a copy. A forked child has a copy of its own, as of other
/// memory; the fork takes as long as a copy of all registered memory, and as much memory while it lasts. Each
/// registration needs a file descriptor.
///
/// # Examples
/// ```
/// use rsccl::ReduceOp;
/// use rsccl::comm::Registered;
///
/// rsccl::local::run(2, |comm| {
///     let gradients: Vec<f32> = vec![1.5; 100_000];
///     let mut gradients = Registered::new(gradients);
///     comm.register(&gradients)?;
///     for _ in 0..3 {
///         gradients.fill(1.5);
///         comm.all_reduce_in_place(&mut gradients, ReduceOp::Sum)?;
///     }
///     let gradients: Vec<f32> = gradients.into_inner();
///     assert!(gradients.iter().all(|value| *value == 3.0));
///     Ok(())
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub struct Registered<C: OwnedElements> {
    place: InPlacePages,
    /// Taken when the collection is.
    parts: RawElements<C::Item>,
    owns: PhantomData<C>,
}

// SAFETY: it owns a collection of elements, which are plain data; what else it has can be sent and shared.
unsafe impl<C: OwnedElements> Send for Registered<C> {}
// SAFETY: as above.
unsafe impl<C: OwnedElements> Sync for Registered<C> {}

impl<C: OwnedElements> Registered<C> {
    /// Moves the pages of `collection`. Never fails: [`Registered::refusal`] says why pages have stayed.
    pub fn new(collection: C) -> Registered<C> {
        Registered::place(collection, PinnedPages::Unknown)
    }

    /// [`Registered::new`] in a process that has pinned pages, as io_uring and RDMA do.
    ///
    /// # Safety
    /// Nothing has pinned a page of the collection's elements, nor does until they are taken out again. Else a device
    /// would write into a page that is no longer the collection's, and what it writes would be lost.
    pub unsafe fn vouched(collection: C) -> Registered<C> {
        Registered::place(collection, PinnedPages::NoneHere)
    }

    fn place(collection: C, pins: PinnedPages) -> Registered<C> {
        let parts = collection.into_elements();
        // SAFETY: the elements are this value's alone, and stay where they are until it has given them back.
        let place = unsafe { InPlacePages::new(parts.start.cast(), parts.count * size_of::<C::Item>(), pins) };
        Registered { place, parts, owns: PhantomData }
    }

    /// Why the pages have stayed where they were, in a sentence; `None` if they have moved. Calls work either way.
    pub fn refusal(&self) -> Option<&str> {
        self.place.refusal.as_deref()
    }

    /// In how many calls peers worked in it.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn calls(&self) -> u64 {
        self.place.calls.count()
    }

    /// One whose pages have stayed.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn refused(collection: C, why: &str) -> Registered<C> {
        let place = InPlacePages {
            placed: None,
            refusal: Some(why.to_owned()),
            life: Some(Arc::default()),
            ..InPlacePages::default()
        };
        Registered { place, parts: collection.into_elements(), owns: PhantomData }
    }

    /// The collection, with the pages given back.
    pub fn into_inner(self) -> C {
        let mut this = std::mem::ManuallyDrop::new(self);
        // SAFETY: nobody uses `this` again.
        unsafe { this.take() }
    }

    /// # Safety
    /// Nobody uses the value afterwards.
    unsafe fn take(&mut self) -> C {
        // SAFETY: the elements are this value's alone.
        let is_private = unsafe { self.place.give_back() };
        // SAFETY: the caller's promise.
        unsafe { std::ptr::drop_in_place(&raw mut self.place) };
        let RawElements { start, count, capacity } = self.parts;
        if !is_private {
            // Pages that are shared are no allocator's: these stay, and a copy is the program's.
            // SAFETY: the elements are initialised, and nobody else has them.
            return C::copied(unsafe { std::slice::from_raw_parts(start.as_ptr(), count) });
        }
        // SAFETY: they come from such a collection, and are used here for the last time.
        unsafe { C::from_elements(RawElements { start, count, capacity }) }
    }
}

impl<C: OwnedElements> Drop for Registered<C> {
    fn drop(&mut self) {
        // SAFETY: the elements are this value's alone. `place` is dropped after this, as a field.
        if !unsafe { self.place.give_back() } {
            // Pages that are shared are no allocator's.
            return;
        }
        let RawElements { start, count, capacity } = self.parts;
        // SAFETY: they come from such a collection, and are used here for the last time.
        drop(unsafe { C::from_elements(RawElements { start, count, capacity }) });
    }
}

impl<C: OwnedElements> Deref for Registered<C> {
    type Target = [C::Item];

    fn deref(&self) -> &[C::Item] {
        // SAFETY: the collection's elements, which this value owns. Peers write into them only during collectives that
        // have borrowed them exclusively, under its rank's lease.
        unsafe { std::slice::from_raw_parts(self.parts.start.as_ptr().cast_const(), self.parts.count) }
    }
}

impl<C: OwnedElements> DerefMut for Registered<C> {
    fn deref_mut(&mut self) -> &mut [C::Item] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.parts.start.as_ptr(), self.parts.count) }
    }
}

impl<C: OwnedElements> fmt::Debug for Registered<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Registered");
        shown.field("count", &self.parts.count).field("refusal", &self.place.refusal).finish_non_exhaustive()
    }
}

/// A slice that processes of this host can share where it lies, inside of [`with_registered`].
pub struct RegisteredSlice<'a, T> {
    elements: &'a mut [T],
    place: &'a InPlacePages,
}

/// Runs `body` with a slice that is registered where it lies ([`Registered`] says how and when it pays), for memory
/// that somebody else owns: a part of an arena, a matrix of another library. When this returns, or unwinds, the pages
/// have been given back.
///
/// # Examples
/// ```
/// use rsccl::ReduceOp;
/// use rsccl::comm::with_registered;
///
/// rsccl::local::run(2, |comm| {
///     let mut arena = vec![1u32; 300_000];
///     with_registered(&mut arena[1000..201_000], |part| {
///         comm.register(part)?;
///         comm.all_reduce_in_place(part, ReduceOp::Sum)
///     })?;
///     assert_eq!((arena[999], arena[1000]), (1, 2));
///     Ok(())
/// })?;
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn with_registered<T: Element, R>(elements: &mut [T], body: impl FnOnce(&mut RegisteredSlice<'_, T>) -> R) -> R {
    /// Gives back on the way out, whatever has become of the slice that `body` had.
    struct GivesBack(InPlacePages);

    impl Drop for GivesBack {
        fn drop(&mut self) {
            // SAFETY: the caller of `with_registered` has lent the elements for as long as this lives, and `body`,
            // which had them, has ended.
            let _told = unsafe { self.0.give_back() };
        }
    }

    let start = NonNull::from(&mut *elements).cast();
    // SAFETY: the elements are borrowed exclusively until the pages have been given back.
    let place = unsafe { InPlacePages::new(start, size_of_val(elements), PinnedPages::Unknown) };
    let place = GivesBack(place);
    body(&mut RegisteredSlice { elements, place: &place.0 })
}

impl<T: Element> RegisteredSlice<'_, T> {
    /// As [`Registered::refusal`].
    pub fn refusal(&self) -> Option<&str> {
        self.place.refusal.as_deref()
    }
}

impl<T: Element> Deref for RegisteredSlice<'_, T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.elements
    }
}

impl<T: Element> DerefMut for RegisteredSlice<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.elements
    }
}

impl<T> fmt::Debug for RegisteredSlice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("RegisteredSlice");
        shown.field("count", &self.elements.len()).field("refusal", &self.place.refusal).finish_non_exhaustive()
    }
}

/// Collections that [`Registered`] takes: `Vec<T>` and `Box<[T]>`.
pub trait OwnedElements: private::Dismantle {}

impl<T: Element> OwnedElements for Vec<T> {}
impl<T: Element> OwnedElements for Box<[T]> {}

/// Memory that [`crate::Communicator::register`] takes: [`Buffer`], [`SharedPool`](crate::comm::SharedPool),
/// [`Registered`], [`RegisteredSlice`].
pub trait Registrable: private::KnownToPeers {}

impl<T: Element> Registrable for Buffer<T> {}
impl<C: OwnedElements> Registrable for Registered<C> {}
impl<T: Element> Registrable for RegisteredSlice<'_, T> {}

/// Elements of a collection, and what else it needs to be made of them again.
#[derive(Debug)]
pub struct RawElements<T> {
    start: NonNull<T>,
    count: usize,
    capacity: usize,
}

pub(crate) mod private {
    use super::{Element, KnownBuffer, RawElements, Result};

    /// A collection that can be taken to pieces.
    pub trait Dismantle: Sized {
        /// Of its elements.
        type Item: Element;

        /// The elements, which are nobody's from now on.
        fn into_elements(self) -> RawElements<Self::Item>;

        /// The collection again.
        ///
        /// # Safety
        /// They come from [`Dismantle::into_elements`] of this type, and are used here for the last time.
        unsafe fn from_elements(elements: RawElements<Self::Item>) -> Self;

        /// One with the same elements, in memory of its own.
        fn copied(elements: &[Self::Item]) -> Self;
    }

    /// What communicators know of memory.
    pub trait KnownToPeers {
        /// The memory.
        ///
        /// # Errors
        /// Where there is none for a registration in name.
        fn known(&self) -> Result<KnownBuffer>;
    }
}

impl<T: Element> private::Dismantle for Vec<T> {
    type Item = T;

    fn into_elements(self) -> RawElements<T> {
        let mut this = std::mem::ManuallyDrop::new(self);
        let start = NonNull::new(this.as_mut_ptr()).expect("the pointer of a Vec is never null");
        RawElements { start, count: this.len(), capacity: this.capacity() }
    }

    unsafe fn from_elements(elements: RawElements<T>) -> Vec<T> {
        // SAFETY: pointer, length and capacity are those of a Vec, by the caller's promise.
        unsafe { Vec::from_raw_parts(elements.start.as_ptr(), elements.count, elements.capacity) }
    }

    fn copied(elements: &[T]) -> Vec<T> {
        elements.to_vec()
    }
}

impl<T: Element> private::Dismantle for Box<[T]> {
    type Item = T;

    fn into_elements(self) -> RawElements<T> {
        let count = self.len();
        let start = NonNull::new(Box::into_raw(self).cast()).expect("the pointer of a Box is never null");
        RawElements { start, count, capacity: count }
    }

    unsafe fn from_elements(elements: RawElements<T>) -> Box<[T]> {
        let slice = std::ptr::slice_from_raw_parts_mut(elements.start.as_ptr(), elements.count);
        // SAFETY: pointer and length are those of a Box, by the caller's promise.
        unsafe { Box::from_raw(slice) }
    }

    fn copied(elements: &[T]) -> Box<[T]> {
        elements.into()
    }
}

impl<T: Element> private::KnownToPeers for Buffer<T> {
    fn known(&self) -> Result<KnownBuffer> {
        Ok(Buffer::known(self))
    }
}

impl<C: OwnedElements> private::KnownToPeers for Registered<C> {
    fn known(&self) -> Result<KnownBuffer> {
        self.place.known()
    }
}

impl<T: Element> private::KnownToPeers for RegisteredSlice<'_, T> {
    fn known(&self) -> Result<KnownBuffer> {
        self.place.known()
    }
}

/// Pages that have moved, or why not. Who has it sees to it that they are given back before their memory is freed.
#[derive(Debug, Default)]
pub(super) struct InPlacePages {
    placed: Option<(Arc<PlacedMemory>, PlacedBuffer)>,
    pub(super) refusal: Option<String>,
    /// What peers get to see: the file, or a page without use where nothing has moved.
    region: OnceLock<HostRegion>,
    /// Gone once communicators must not work in the memory any more.
    life: Option<Arc<()>>,
    calls: PeerCalls,
}

impl InPlacePages {
    /// # Safety
    /// As [`PlacedMemory::new`].
    pub(super) unsafe fn new(start: NonNull<u8>, bytes: usize, pins: PinnedPages) -> InPlacePages {
        // SAFETY: the caller's promise.
        let placed = unsafe { PlacedMemory::new(start, bytes, pins) };
        let (placed, refusal) = match placed {
            Ok(placed) => {
                let known = PlacedBuffer::new(placed.range());
                (Some((placed, known)), None)
            }
            Err(error) => {
                log::info!(Reg, "{bytes} bytes are not registered where they lie: {error}");
                (None, Some(error.to_string()))
            }
        };
        InPlacePages { placed, refusal, life: Some(Arc::default()), ..InPlacePages::default() }
    }

    /// The same of memory that only its owner's promise keeps where it is.
    #[cfg(feature = "cpp")]
    pub(super) fn promised(mut self) -> InPlacePages {
        self.placed = self.placed.map(|(placed, known)| (Arc::clone(&placed), known.promised(&placed)));
        self
    }

    /// Whether the promise was kept until now, as far as the kernel tells.
    #[cfg(feature = "cpp")]
    pub(super) fn is_there(&self) -> bool {
        self.placed.as_ref().is_none_or(|(placed, _)| placed.is_there())
    }

    /// Forgets memory that is no longer there: nothing is given back to it.
    #[cfg(feature = "cpp")]
    pub(super) fn forget(&mut self) {
        (self.life, self.placed) = (None, None);
    }

    pub(super) fn known(&self) -> Result<KnownBuffer> {
        let (memory, placed) = match &self.placed {
            Some((placed, known)) => (self.region.get_or_init(|| PlacedMemory::region(placed)), known.clone()),
            None => (self.in_name()?, PlacedBuffer::new(PlacedRange::NOWHERE)),
        };
        let life = self.life.as_ref().map(Arc::downgrade).unwrap_or_default();
        let calls = self.calls.clone();
        Ok(KnownBuffer { memory: memory.clone(), generation: None, life, calls, placed: Some(placed) })
    }

    /// Memory in which no call works, so that all ranks have as many registrations.
    fn in_name(&self) -> Result<&HostRegion> {
        if let Some(region) = self.region.get() {
            return Ok(region);
        }
        let page = HostMemory.buffer(1)?;
        Ok(self.region.get_or_init(|| page))
    }

    /// Gives the pages back; false where some stay shared, which has been logged.
    ///
    /// # Safety
    /// Nobody else reads or writes the memory meanwhile, and no call is at work in it.
    pub(super) unsafe fn give_back(&mut self) -> bool {
        // Communicators forget it first: they find it by its addresses.
        self.life = None;
        let Some((placed, _)) = self.placed.take() else { return true };
        // SAFETY: the caller's promise.
        let given = unsafe { placed.give_back() };
        if let Err(error) = &given {
            log::warn!(Reg, "memory that was registered where it lies stays shared, with its content: {error}");
        }
        let calls = self.calls.count();
        if calls < WORTHWHILE_CALLS {
            log::info!(
                Reg,
                "memory registered where it lies was given back after {calls} calls in which peers worked in it: \
                 moving its pages there and back pays from some dozens on; rsccl::Buffer costs nothing"
            );
        }
        given.is_ok()
    }
}

/// Fewer do not pay for the two moves: see "Registered where it lies" in `bench/NOTES.md`.
const WORTHWHILE_CALLS: u64 = 20;
