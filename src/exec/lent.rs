//! Memory that is lent for calls on one stream: the lender has ordered that stream alone behind the memory's other
//! uses, and waits for the stream's calls alone before the memory may be freed.

use crate::device::{Event, Region};
use crate::error::{Error, Result};
use crate::exec::{DeviceSlice, DeviceSliceMut, DeviceStream, Order};
use crate::sync::primitive::{Arc, Mutex};
use crate::types::Element;

/// Lends memory for calls on one stream.
#[derive(Debug)]
pub struct Lender {
    stream: DeviceStream,
    /// The end of the last call that got the memory, once there was one.
    last: Mutex<Option<Result<Arc<dyn Event>>>>,
}

/// Who sees to it that a slice's memory lives until the stream has done the calls that got the slice.
#[derive(Debug, Clone, Copy)]
pub enum Keeper<'a> {
    /// The caller: the call has ended when it returns, or the caller has promised it.
    Caller,
    /// The region, which launches keep alive.
    Region(&'a Region),
    /// The lender, for calls on one stream.
    Lender(&'a Lender),
}

impl Lender {
    /// Nothing has worked in the memory yet.
    pub fn new(stream: DeviceStream) -> Lender {
        Lender { stream, last: Mutex::new(None) }
    }

    /// `count` elements at an address of the stream's device, to read, for calls on the stream.
    ///
    /// # Safety
    /// As [`DeviceSlice::from_raw`], until the stream is through with the calls that get the slice.
    pub unsafe fn slice<T: Element>(&self, address: u64, count: usize) -> DeviceSlice<'_, T> {
        // SAFETY: the caller's contract.
        unsafe { DeviceSlice::kept(Keeper::Lender(self), self.stream.home(), (address, count)) }
    }

    /// `count` elements at an address of the stream's device, to write, for calls on the stream.
    ///
    /// # Safety
    /// As [`DeviceSliceMut::from_raw`], until the stream is through with the calls that get the slice.
    pub unsafe fn slice_mut<T: Element>(&self, address: u64, count: usize) -> DeviceSliceMut<'_, T> {
        // SAFETY: the caller's contract.
        unsafe { DeviceSliceMut::kept(Keeper::Lender(self), self.stream.home(), (address, count)) }
    }

    /// Waits without bound until the calls are through that got the memory: where nothing else keeps it for them.
    pub fn outlast(&self, last: Option<Result<Arc<dyn Event>>>) {
        let waited = match last {
            Some(Ok(last)) => self.stream.await_event(&*last, |_| Ok(())),
            Some(Err(_)) => self.stream.outlast(),
            None => Ok(()),
        };
        // A device that has failed has lost its work.
        drop(waited);
    }

    /// Takes the end of the last call that got the memory; `None` if there was no call.
    pub fn last(&self) -> Option<Result<Arc<dyn Event>>> {
        self.last.lock().take()
    }

    fn check(&self, order: Order<'_>) -> Result<()> {
        if !order.is(Order::Stream(&self.stream)) {
            return Err(Error::invalid_usage(
                "the memory of a slice was lent for calls on one stream, and this call is on another one, or on none: \
                 give the call the very DeviceStream that lent the slice",
            ));
        }
        self.stream.check_lends()
    }

    fn note(&self) {
        // Under the lock, so that of two threads' calls the later end stays. And at once: what the program does to the
        // stream after the call, such as to begin a capture, changes nothing.
        let mut last = self.last.lock();
        *last = Some(self.stream.record());
    }
}

impl DeviceStream {
    /// Refuses to lend memory to a stream that is being captured.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] while it is captured; those of the device.
    pub(crate) fn check_lends(&self) -> Result<()> {
        if self.capture()?.is_none() {
            return Ok(());
        }
        Err(Error::invalid_usage(
            "the stream is being captured, and its graph may outlive the slices that are lent to its calls: give \
             captured calls slices made by `unsafe DeviceSlice::from_raw`, and keep the memory while the graph lives",
        ))
    }
}

impl<'a> Keeper<'a> {
    /// The region that a launch keeps alive, if one is the keeper.
    pub(crate) fn region(self) -> Option<Region> {
        match self {
            Keeper::Region(region) => Some(region.clone()),
            Keeper::Caller | Keeper::Lender(_) => None,
        }
    }

    pub(crate) fn is_caller(self) -> bool {
        matches!(self, Keeper::Caller)
    }

    /// Refuses a call in an order for which the memory was not lent.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] for another stream, or one that is captured.
    pub(crate) fn check(self, order: Order<'_>) -> Result<()> {
        match self {
            Keeper::Lender(lent) => lent.check(order),
            Keeper::Caller | Keeper::Region(_) => Ok(()),
        }
    }

    /// Tells the lender that a call on its stream has got the memory, even if the call failed: it may have put some of
    /// its work there.
    pub(crate) fn note(self) {
        if let Keeper::Lender(lent) = self {
            lent.note();
        }
    }
}
