//! Slices of cudarc, lent to calls on a stream of cudarc.
//!
//! cudarc orders the uses of a slice on several streams by two events of the slice: a use waits for the last write, a
//! write for the last read too, and the guard that `device_ptr` returns records the use when it is dropped. Lending
//! holds these guards, so that later uses through cudarc are ordered behind the call. That alone does not keep the
//! memory: cudarc remembers one read, so that a read on a third stream makes it forget the call's, and it looks at no
//! event while its context has made no stream, or where a program has turned the tracking off. A slice is freed in the
//! order of its own stream. Therefore that stream waits for the calls, and the calls for it, where it is not theirs.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, SyncOnDrop};

use crate::device::Event;
use crate::error::{Error, Kind, Result};
use crate::exec::{DeviceSlice, DeviceSliceMut, DeviceStream, Lender};
use crate::sync::primitive::Arc;
use crate::types::Element;

/// What a call can read of cudarc: a `CudaSlice`, a `CudaView`, a `CudaViewMut`.
pub trait CudarcSlice<T>: DevicePtr<T> + sealed::OfCudarc {}

/// What a call can write of cudarc: a `CudaSlice`, a `CudaViewMut`.
pub trait CudarcSliceMut<T>: DevicePtrMut<T> + sealed::OfCudarc {}

impl<T> CudarcSlice<T> for CudaSlice<T> {}
impl<T> CudarcSlice<T> for CudaView<'_, T> {}
impl<T> CudarcSlice<T> for CudaViewMut<'_, T> {}
impl<T> CudarcSliceMut<T> for CudaSlice<T> {}
impl<T> CudarcSliceMut<T> for CudaViewMut<'_, T> {}

/// cudarc's traits can be implemented by anybody, with any address. Its own types tell the truth.
mod sealed {
    use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};

    pub trait OfCudarc {}

    impl<T> OfCudarc for CudaSlice<T> {}
    impl<T> OfCudarc for CudaView<'_, T> {}
    impl<T> OfCudarc for CudaViewMut<'_, T> {}
}

/// A stream whose calls get slices, and the slices' own streams, where these are others.
struct Borrower<'s> {
    stream: &'s DeviceStream,
    own: Arc<CudaStream>,
    others: Vec<DeviceStream>,
}

impl DeviceStream {
    /// Lends the elements of `slice`, to read, to the calls that `calls` puts into this stream, which is one of
    /// cudarc's ([`DeviceStream::from_cudarc`]). Returns what `calls` returns.
    ///
    /// The calls run behind whatever has written the slice, and the slice may be written or dropped as soon as this
    /// returns: cudarc knows that the stream reads it. The slice's own stream, on which it was allocated and is freed,
    /// and this stream wait for each other, where they are two: `calls` run behind what the other one holds now, and
    /// what it gets later runs behind them. A program whose calls should run beside its kernels therefore allocates
    /// what the calls work in on the stream of the calls, and launches the kernels on another one.
    ///
    /// The elements can be given to calls on this very value or a clone of it, in a group too. Lend several slices by a
    /// closure inside another's.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the slice is of another context than the stream, as that of
    /// another GPU; [`crate::error::Kind::InvalidUsage`] where this is no stream of cudarc, or a stream is being
    /// captured: a graph may outlive the slice, so that captured calls take
    /// [`DeviceSlice::from_raw`](crate::comm::DeviceSlice::from_raw); those of `calls`; those of the driver. Calls on
    /// other streams, or on none, refuse what was lent, with [`crate::error::Kind::InvalidUsage`].
    ///
    /// # Examples
    /// [`DeviceStream::lend_both`] has one.
    pub fn lend<T: Element, R>(
        &self,
        slice: &impl CudarcSlice<T>,
        calls: impl for<'lent> FnOnce(DeviceSlice<'lent, T>) -> Result<R>,
    ) -> Result<R> {
        let borrower = Borrower::new(self, &[slice.stream()])?;
        let own = Arc::clone(&borrower.own);
        let (count, (address, guard)) = (slice.len(), slice.device_ptr(&own));
        borrower.run([Some(guard), None], |lender| {
            // SAFETY: cudarc's own slice has as many elements there, and `run` keeps them until the calls are through.
            calls(unsafe { lender.slice(address, count) })
        })
    }

    /// [`DeviceStream::lend`] to write, and to read.
    ///
    /// # Errors
    /// As [`DeviceStream::lend`].
    ///
    /// # Examples
    /// ```
    /// use cudarc::driver::CudaContext;
    /// use rsccl::comm::DeviceStream;
    ///
    /// // Where this machine has no driver, cudarc has no stream either.
    /// if DeviceStream::new(0).is_ok() {
    ///     let stream = CudaContext::new(0).and_then(|context| context.new_stream()).expect("a stream");
    ///     let on = DeviceStream::from_cudarc(&stream)?;
    ///     rsccl::local::run(2, |comm| {
    ///         let mut values = stream.clone_htod(&[1.0_f32, 2.0]).expect("memory");
    ///         on.lend_mut(&mut values, |values| comm.on(&on).all_reduce_in_place(values, rsccl::ReduceOp::Sum))?;
    ///         assert_eq!(stream.clone_dtoh(&values).expect("a copy"), [2.0, 4.0]);
    ///         Ok(())
    ///     })?;
    /// }
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn lend_mut<T: Element, R>(
        &self,
        slice: &mut impl CudarcSliceMut<T>,
        calls: impl for<'lent> FnOnce(DeviceSliceMut<'lent, T>) -> Result<R>,
    ) -> Result<R> {
        let borrower = Borrower::new(self, &[slice.stream()])?;
        let own = Arc::clone(&borrower.own);
        let (count, (address, guard)) = (slice.len(), slice.device_ptr_mut(&own));
        borrower.run([Some(guard), None], |lender| {
            // SAFETY: as in `lend`; it is borrowed for writing.
            calls(unsafe { lender.slice_mut(address, count) })
        })
    }

    /// [`DeviceStream::lend`] of one slice to read and one to write.
    ///
    /// # Errors
    /// As [`DeviceStream::lend`].
    ///
    /// # Examples
    /// ```
    /// use cudarc::driver::CudaContext;
    /// use rsccl::comm::DeviceStream;
    ///
    /// // Where this machine has no driver, cudarc has no stream either.
    /// if DeviceStream::new(0).is_ok() {
    ///     let stream = CudaContext::new(0).and_then(|context| context.new_stream()).expect("a stream");
    ///     let on = DeviceStream::from_cudarc(&stream)?;
    ///     rsccl::local::run(2, |comm| {
    ///         let mine = stream.clone_htod(&[comm.rank(); 3]).expect("memory");
    ///         let mut all = stream.alloc_zeros::<u32>(6).expect("memory");
    ///         on.lend_both(&mine, &mut all, |mine, all| comm.on(&on).all_gather(mine, all))?;
    ///         assert_eq!(stream.clone_dtoh(&all).expect("a copy"), [0, 0, 0, 1, 1, 1]);
    ///         Ok(())
    ///     })?;
    /// }
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn lend_both<T: Element, U: Element, R>(
        &self,
        read: &impl CudarcSlice<T>,
        written: &mut impl CudarcSliceMut<U>,
        calls: impl for<'lent> FnOnce(DeviceSlice<'lent, T>, DeviceSliceMut<'lent, U>) -> Result<R>,
    ) -> Result<R> {
        let borrower = Borrower::new(self, &[read.stream(), written.stream()])?;
        let own = Arc::clone(&borrower.own);
        let (counts, (from, read)) = ((read.len(), written.len()), read.device_ptr(&own));
        let (into, written) = written.device_ptr_mut(&own);
        borrower.run([Some(read), Some(written)], |lender| {
            // SAFETY: as in `lend`.
            let from = unsafe { lender.slice(from, counts.0) };
            // SAFETY: as in `lend_mut`.
            let into = unsafe { lender.slice_mut(into, counts.1) };
            calls(from, into)
        })
    }
}

impl<'s> Borrower<'s> {
    /// The stream, and the streams of its slices, which are of the same context.
    fn new(stream: &'s DeviceStream, of_slices: &[&Arc<CudaStream>]) -> Result<Borrower<'s>> {
        let kept = stream.queue().kept_stream();
        let own = kept.and_then(|kept| kept.downcast::<CudaStream>().ok()).ok_or_else(|| {
            Error::invalid_usage(
                "this stream is none of cudarc's, so that cudarc cannot order slices on it: make it by \
                 DeviceStream::from_cudarc",
            )
        })?;
        stream.check_lends()?;
        let mut others: Vec<(&Arc<CudaStream>, DeviceStream)> = Vec::new();
        for other in of_slices {
            if other.context() != own.context() {
                return Err(Error::invalid_argument(format!(
                    "a slice of cudarc is of a context of GPU {}, and the stream of one of GPU {}: they must be of one",
                    other.context().ordinal(),
                    own.context().ordinal()
                )));
            }
            if **other != own && !others.iter().any(|(known, _)| known == other) {
                let named = DeviceStream::from_cudarc(other)?;
                named.check_lends()?;
                others.push((other, named));
            }
        }
        let others = others.into_iter().map(|(_, other)| other).collect();
        Ok(Borrower { stream, own, others })
    }

    /// Runs `calls`, which get what the guards are of, between the other uses of it.
    fn run<R>(self, guards: [Option<SyncOnDrop<'_>>; 2], calls: impl FnOnce(&Lender) -> Result<R>) -> Result<R> {
        self.told()?;
        for other in &self.others {
            let before = other.on_thread(|| other.record())?;
            self.stream.queue().after(&before)?;
        }
        let lender = Lender::new(self.stream.clone());
        // A thread's own stream is entered and left here too: `calls` may use it from another thread.
        self.stream.queue().enter()?;
        let called = catch_unwind(AssertUnwindSafe(|| calls(&lender)));
        let ended = self.end(&lender, guards);
        called.unwrap_or_else(|panic| resume_unwind(panic)).and_then(|value| ended.map(|()| value))
    }

    /// Orders later uses of the slices, and the end of their memory, behind the calls.
    fn end(&self, lender: &Lender, guards: [Option<SyncOnDrop<'_>>; 2]) -> Result<()> {
        let last = lender.last();
        let ordered = self.order(last.as_ref());
        if ordered.is_err() {
            // The slices may be freed once this returns, and nothing orders that behind the calls: so they end here.
            lender.outlast(last);
        }
        drop(guards);
        ordered.and_then(|()| self.told())
    }

    fn order(&self, last: Option<&Result<Arc<dyn Event>>>) -> Result<()> {
        let left = self.stream.queue().leave();
        let Some(last) = last else { return left };
        let last = last.as_ref().map_err(Error::duplicate)?;
        for other in &self.others {
            other.on_thread(|| other.queue().after(last))?;
        }
        left
    }

    /// The error that cudarc has kept of what it could not return.
    fn told(&self) -> Result<()> {
        let kept = self.own.context().check_err();
        kept.map_err(|error| Error::new(Kind::System, format!("cudarc could not order the uses of a slice: {error}")))
    }
}
