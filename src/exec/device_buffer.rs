//! Buffers in the memory of devices, and what typed calls take: slices of host memory and of device memory alike.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use crate::config::Config;
use crate::device::{self, Event, Home, Place, Region, Sharing};
use crate::error::{Error, Result};
use crate::exec::{DeviceStream, Keeper, Order};
use crate::sync::time_in_words;
use crate::sys::{clock, futex};
use crate::types::Element;

/// A buffer of `T` in the memory of a device, made by [`DeviceStream::alloc`].
///
/// It may be dropped while streams still work in it: the memory is given back when they are through. One of memory that
/// something else has allocated ([`DeviceBuffer::from_raw`]) keeps nothing.
pub struct DeviceBuffer<T> {
    region: Region,
    count: usize,
    elements: PhantomData<T>,
}

impl<T> fmt::Debug for DeviceBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuffer of {} elements, {:?}", self.count, self.region)
    }
}

/// Elements in the memory of a device, which a call reads.
#[derive(Debug)]
pub struct DeviceSlice<'a, T> {
    place: Place,
    count: usize,
    keeper: Keeper<'a>,
    elements: PhantomData<&'a [T]>,
}

/// Elements in the memory of a device, which a call writes.
#[derive(Debug)]
pub struct DeviceSliceMut<'a, T> {
    place: Place,
    count: usize,
    keeper: Keeper<'a>,
    elements: PhantomData<&'a mut [T]>,
}

impl<T> Clone for DeviceSlice<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DeviceSlice<'_, T> {}

impl<T: Element> DeviceBuffer<T> {
    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A buffer of `count` elements at an address of `stream`'s device, which something else has allocated there: for
    /// slices of it, and for [`Communicator::register_window`](crate::Communicator::register_window). The buffer does
    /// not keep the memory, and dropping it frees nothing.
    ///
    /// Ranks of other processes can work in a window of it if the driver can hand it over: memory of `cuMemAlloc`, and
    /// of `cuMemCreate` where that was asked for a POSIX descriptor, in 256 allocations at most. Ranks
    /// of this process on other GPUs can where these reach it: memory of `cuMemAlloc`, and of `cuMemCreate` once
    /// `cuMemSetAccess` has allowed it. Otherwise, as with memory of pools (`cuMemAllocAsync`), the window is one in
    /// name, and the log says why.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the device has not as much memory there; where the device cannot
    /// be used.
    ///
    /// # Safety
    /// Until the buffer is dropped, the streams of all calls that get slices of it are through, and its windows are
    /// taken back by all ranks or gone with their communicators, the memory is the device's, has room for `count`
    /// elements, and nobody touches it but these calls.
    ///
    /// # Examples
    /// ```
    /// use rsccl::comm::{DeviceBuffer, DeviceStream};
    ///
    /// // Where this process has no device 0, there is no stream of it.
    /// if let Ok(stream) = DeviceStream::new(0) {
    ///     // SAFETY: nothing of the GPU lies at so low an address, which is refused.
    ///     let refused = unsafe { DeviceBuffer::<f32>::from_raw(&stream, 4096, 100) }.unwrap_err();
    ///     assert!(refused.message().contains("no GPU memory"));
    /// }
    /// ```
    pub unsafe fn from_raw(stream: &DeviceStream, address: u64, count: usize) -> Result<DeviceBuffer<T>> {
        let bytes = count.max(1).checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| too_large(count))?;
        if !address.is_multiple_of(align_of::<T>() as u64) {
            let text = format!("a buffer at {address:#x} cannot hold elements of {} bytes", size_of::<T>());
            return Err(Error::invalid_argument(text));
        }
        let region = device::programs_of(stream.home())?.adopt(address, bytes)?;
        Ok(DeviceBuffer { region, count, elements: PhantomData })
    }

    /// The memory, to hand it to peers.
    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// Where it begins, as its device addresses it: for kernels of the program's own.
    #[cfg(feature = "cpp")]
    pub(crate) fn address(&self) -> usize {
        self.region.base().addr().get()
    }

    /// The elements of `range`, to read.
    ///
    /// # Panics
    /// Where the range is not inside, as slices do.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> DeviceSlice<'_, T> {
        let (place, count) = self.part(range);
        DeviceSlice { place, count, keeper: Keeper::Region(&self.region), elements: PhantomData }
    }

    /// The elements of `range`, to write.
    ///
    /// # Panics
    /// Where the range is not inside, as slices do.
    pub fn slice_mut(&mut self, range: impl RangeBounds<usize>) -> DeviceSliceMut<'_, T> {
        let (place, count) = self.part(range);
        DeviceSliceMut { place, count, keeper: Keeper::Region(&self.region), elements: PhantomData }
    }

    fn part(&self, range: impl RangeBounds<usize>) -> (Place, usize) {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => self.count,
        };
        assert!(start <= end && end <= self.count, "range {start}..{end} outside a buffer of {} elements", self.count);
        let (size, count) = (size_of::<T>(), end - start);
        let address = self.region.at(start * size, count * size).as_ptr();
        (Place { address, bytes: count * size, home: self.region.home() }, count)
    }
}

impl<'a, T: Element> DeviceSlice<'a, T> {
    /// `count` elements at an address of `stream`'s device, which something else has allocated there.
    ///
    /// # Safety
    /// Until the streams of all calls that get the slice are through, the memory is the device's, holds `count`
    /// elements, and nobody writes it.
    pub unsafe fn from_raw(stream: &DeviceStream, address: u64, count: usize) -> DeviceSlice<'a, T> {
        // SAFETY: the caller's contract.
        unsafe { DeviceSlice::kept(Keeper::Caller, stream.home(), (address, count)) }
    }

    /// [`DeviceSlice::from_raw`] with a keeper.
    ///
    /// # Safety
    /// As there, for the calls that the keeper lets have the slice.
    pub(super) unsafe fn kept(keeper: Keeper<'a>, home: Home, (address, count): (u64, usize)) -> DeviceSlice<'a, T> {
        DeviceSlice { place: raw_place::<T>(home, address, count), count, keeper, elements: PhantomData }
    }
}

impl<'a, T: Element> DeviceSliceMut<'a, T> {
    /// The same elements, to read.
    pub fn into_slice(self) -> DeviceSlice<'a, T> {
        DeviceSlice { place: self.place, count: self.count, keeper: self.keeper, elements: PhantomData }
    }

    /// `count` elements at an address of `stream`'s device, which something else has allocated there.
    ///
    /// # Safety
    /// Until the streams of all calls that get the slice are through, the memory is the device's, has room for `count`
    /// elements, and nobody else touches it.
    pub unsafe fn from_raw(stream: &DeviceStream, address: u64, count: usize) -> DeviceSliceMut<'a, T> {
        // SAFETY: the caller's contract.
        unsafe { DeviceSliceMut::kept(Keeper::Caller, stream.home(), (address, count)) }
    }

    /// [`DeviceSliceMut::from_raw`] with a keeper.
    ///
    /// # Safety
    /// As there, for the calls that the keeper lets have the slice.
    pub(super) unsafe fn kept(keeper: Keeper<'a>, home: Home, (address, count): (u64, usize)) -> DeviceSliceMut<'a, T> {
        DeviceSliceMut { place: raw_place::<T>(home, address, count), count, keeper, elements: PhantomData }
    }
}

fn raw_place<T>(home: Home, address: u64, count: usize) -> Place {
    let address = usize::try_from(address).map_or(std::ptr::null_mut(), std::ptr::without_provenance_mut);
    Place { address, bytes: count.saturating_mul(size_of::<T>()), home }
}

impl DeviceStream {
    /// A buffer of `count` elements in the memory of this stream's device, all zero.
    ///
    /// It may be called at any time, also while calls of this rank or of others run on the device. When the buffer is
    /// dropped, its memory is used again once the work is done that the library had put on the device by then.
    ///
    /// # Errors
    /// Where the device has no such memory, or `count` elements do not fit the address space.
    pub fn alloc<T: Element>(&self, count: usize) -> Result<DeviceBuffer<T>> {
        self.alloc_for(Sharing::Threads, count)
    }

    /// A buffer as [`DeviceStream::alloc`]'s whose memory other processes of this host can map, for
    /// [`Communicator::register_window`](crate::Communicator::register_window) (NCCL: `ncclMemAlloc`).
    ///
    /// It is memory of its own: on GPUs whole granules of 2 MiB, or, where `NCCL_CUMEM_ENABLE` is 0 or the GPU has no
    /// descriptors of memory, one allocation of `cuMemAlloc`, which waits for kernels that run. Allocate few of them.
    ///
    /// # Errors
    /// As [`DeviceStream::alloc`], and where a setting has a bad value.
    pub fn alloc_shareable<T: Element>(&self, count: usize) -> Result<DeviceBuffer<T>> {
        let by_descriptor = Config::default().resolve()?.cumem_enable;
        self.alloc_for(if by_descriptor { Sharing::Processes } else { Sharing::ProcessesByHandle }, count)
    }

    fn alloc_for<T: Element>(&self, sharing: Sharing, count: usize) -> Result<DeviceBuffer<T>> {
        let bytes = count.max(1).checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let bytes = bytes.ok_or_else(|| too_large(count))?;
        let region = device::of(self.home())?.allocate(bytes, sharing)?;
        Ok(DeviceBuffer { region, count, elements: PhantomData })
    }

    /// Copies `from` into the device's memory, behind what the stream holds; returns when it is there.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for different lengths, or a slice of another device; those of the
    /// device.
    pub fn upload<T: Element>(&self, from: &[T], into: DeviceSliceMut<'_, T>) -> Result<()> {
        into.keeper.check(Order::Stream(self))?;
        self.on_thread(|| self.check_runs())?;
        self.come_to_copy()?;
        let place = Place::on_host(from.as_ptr().cast_mut().cast(), size_of_val(from));
        // SAFETY: both are borrowed until the stream is through, which `finish_copy` waits for.
        self.on_thread(|| unsafe { self.copy(place, into.place) })?;
        self.finish_copy()
    }

    /// Copies `from` out of the device's memory, behind what the stream holds; returns when it is here.
    ///
    /// # Errors
    /// As [`DeviceStream::upload`]; and as [`DeviceStream::synchronize`] where a call in the stream may have ended
    /// early, so that what was copied may be wrong.
    pub fn download<T: Element>(&self, from: DeviceSlice<'_, T>, into: &mut [T]) -> Result<()> {
        from.keeper.check(Order::Stream(self))?;
        self.on_thread(|| self.check_runs())?;
        self.come_to_copy()?;
        let place = Place::on_host(into.as_mut_ptr().cast(), size_of_val(into));
        // SAFETY: both are borrowed until the stream is through, which `finish_copy` waits for; every bit pattern is an
        // element.
        self.on_thread(|| unsafe { self.copy(from.place, place) })?;
        self.finish_copy()?;
        self.check_calls()
    }

    /// Waits until all that was put into the stream is done, at most as long as `RSCCL_TIMEOUT_MS` allows for an
    /// operation ([`Config::timeout`]). Meanwhile it calls the hooks of the communicators whose calls were put there
    /// ([`Communicator::set_progress`](crate::Communicator::set_progress)).
    ///
    /// # Errors
    /// The error that has ended a communicator whose calls were put into the stream
    /// ([`Communicator::on`](crate::Communicator::on)) since the last wait for it: the calls may have ended early. It
    /// is returned again until the program gets it from the communicator too, by a call or
    /// [`Communicator::async_error`](crate::Communicator::async_error), or puts a call of another one into the stream.
    /// [`crate::error::Kind::Timeout`] where it takes longer: what is in the stream goes on; where the device has
    /// failed; [`crate::error::Kind::InvalidUsage`] while the stream is captured.
    pub fn synchronize(&self) -> Result<()> {
        let since = clock::now();
        let mut most = None;
        let look = |is_done: bool| {
            let waited = clock::now().duration_since(since);
            // The settings are read once they can matter: most waits are short.
            if is_done || waited < LONG {
                return Ok(());
            }
            let most = match most {
                Some(most) => most,
                None => *most.insert(Config::default().resolve()?.timeout),
            };
            if waited < most {
                return Ok(());
            }
            let home = self.home();
            let after = format!("timed out after {} (RSCCL_TIMEOUT_MS)", time_in_words(most));
            Err(Error::timeout(format!("{after} waiting for the work in a stream of {home}")))
        };
        self.wait_until_done(look)?;
        self.check_calls()
    }

    /// Waits until all that was put into the stream is done; `look` may end the wait.
    fn wait_until_done(&self, look: impl FnMut(bool) -> Result<()>) -> Result<()> {
        let event = self.on_thread(|| {
            self.check_runs()?;
            self.record()
        })?;
        self.await_event(&*event, look)
    }

    /// Waits until an event of this stream, or of one that waits for it, is done; `look` may end the wait. The hooks of
    /// the communicators whose calls the stream has got are called meanwhile.
    pub(super) fn await_event(&self, event: &dyn Event, mut look: impl FnMut(bool) -> Result<()>) -> Result<()> {
        loop {
            let is_done = event.is_done()?;
            look(is_done)?;
            if is_done {
                return Ok(());
            }
            futex::nap(LOOK_EVERY);
            self.turn();
        }
    }

    /// Waits until the stream has come to a copy to or from the host, where hooks are to be called meanwhile: the
    /// driver may hold the call that begins the copy until then.
    fn come_to_copy(&self) -> Result<()> {
        if self.has_hooks() { self.outlast() } else { Ok(()) }
    }

    /// Waits until a copy is done, without bound: the device works in memory of the host that a caller has lent, and
    /// whose borrow ends when the call returns.
    fn finish_copy(&self) -> Result<()> {
        let waited = self.outlast();
        if waited.is_err() {
            // The copy may be under way still. A device that fails twice has lost its work with it.
            let _again = self.outlast();
        }
        waited
    }

    /// Waits without bound until all that was put into the stream is done: it works in memory that a caller has lent.
    pub(super) fn outlast(&self) -> Result<()> {
        self.wait_until_done(|_| Ok(()))
    }
}

#[cold]
fn too_large(count: usize) -> Error {
    Error::invalid_argument(format!("a buffer of {count} elements is too large"))
}

/// Waits that are longer look at the time-out.
const LONG: std::time::Duration = std::time::Duration::from_secs(1);
/// How often [`DeviceStream::synchronize`] looks.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_micros(50);

/// What a typed call reads: a slice of some memory.
pub trait ReadBuffer<'a, T: Element>: Sized {
    /// How many elements.
    fn count(&self) -> usize;
    /// Where they are, and who sees to it that they live until the call has run.
    fn place(self) -> (Place, Keeper<'a>);
    /// The first `at` elements, and the others.
    fn halves(self, at: usize) -> (Self, Self);
}

/// What a typed call writes: a slice of some memory.
pub trait WriteBuffer<'a, T: Element>: Sized {
    /// How many elements.
    fn count(&self) -> usize;
    /// As [`ReadBuffer::place`].
    fn place(self) -> (Place, Keeper<'a>);
    /// The first `at` elements, and the others.
    fn halves(self, at: usize) -> (Self, Self);
}

impl<'a, T: Element> ReadBuffer<'a, T> for &'a [T] {
    #[inline]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn place(self) -> (Place, Keeper<'a>) {
        (Place::on_host(self.as_ptr().cast_mut().cast(), size_of_val(self)), Keeper::Caller)
    }

    fn halves(self, at: usize) -> (Self, Self) {
        self.split_at(at)
    }
}

impl<'a, T: Element> WriteBuffer<'a, T> for &'a mut [T] {
    #[inline]
    fn count(&self) -> usize {
        self.len()
    }

    #[inline]
    fn place(self) -> (Place, Keeper<'a>) {
        (Place::on_host(self.as_mut_ptr().cast(), size_of_val(self)), Keeper::Caller)
    }

    fn halves(self, at: usize) -> (Self, Self) {
        self.split_at_mut(at)
    }
}

/// Both kinds of device slices.
macro_rules! device_operand {
    ($kind:ident, $role:ident) => {
        impl<'a, T: Element> $role<'a, T> for $kind<'a, T> {
            fn count(&self) -> usize {
                self.count
            }

            fn place(self) -> (Place, Keeper<'a>) {
                (self.place, self.keeper)
            }

            fn halves(self, at: usize) -> (Self, Self) {
                let part = |from: usize, count: usize| $kind {
                    place: Place {
                        address: self.place.address.wrapping_add(from * size_of::<T>()),
                        bytes: count * size_of::<T>(),
                        home: self.place.home,
                    },
                    count,
                    keeper: self.keeper,
                    elements: PhantomData,
                };
                (part(0, at), part(at, self.count - at))
            }
        }
    };
}

device_operand!(DeviceSlice, ReadBuffer);
device_operand!(DeviceSliceMut, WriteBuffer);
