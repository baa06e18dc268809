//! A queue of a GPU: a stream of our own.

use std::any::Any;

use cudarc::driver::sys::CUdeviceptr;

use super::active::{Active, Mark};
use super::launch::{self, PassKind};
use super::levels::LevelLaunch;
use super::result::call;
use super::stream::OwnStream;
use super::{polling, programs};
use crate::device::records::LaunchPart;
use crate::device::{CaptureId, Event, Home, Kernel, Pass, Place, Queue};
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;

/// A stream as a queue.
#[derive(Debug)]
pub(super) struct StreamQueue {
    stream: Arc<OwnStream>,
    home: Home,
    active: Arc<Active>,
}

impl StreamQueue {
    pub(super) fn new(active: Arc<Active>, home: Home) -> Result<StreamQueue> {
        Ok(StreamQueue { stream: active.stream()?, home, active })
    }
}

impl Queue for StreamQueue {
    unsafe fn copy(&mut self, from: Place, to: Place) -> Result<()> {
        let homes = [from.home, to.home];
        let fits = homes.contains(&self.home) && homes.iter().all(|home| [Home::Host, self.home].contains(home));
        if !fits || from.bytes != to.bytes {
            return Err(Error::invalid_argument(format!(
                "a queue of {} cannot copy {} bytes of {} to {} bytes of {}",
                self.home, from.bytes, from.home, to.bytes, to.home
            )));
        }
        if to.bytes == 0 {
            return Ok(());
        }
        let primary = self.active.primary();
        let _entered = primary.enter()?;
        let (from, into) = (address(from), address(to));
        // SAFETY: the caller vouches for both places until an event is done that is recorded later.
        let put = unsafe { call!(primary, cuMemcpyAsync(into, from, to.bytes, self.stream.handle().0)) };
        put.map_err(|failure| primary.error(failure))
    }

    unsafe fn fold(&mut self, kernel: &Kernel, pass: &Pass<'_>) -> Result<()> {
        if pass.sources.is_empty() || pass.count == 0 {
            return Ok(());
        }
        let count = |operands: usize| u32::try_from(operands).map_err(|_| Error::invalid_argument("too many operands"));
        let (sources, targets) = (count(pass.sources.len())?, count(pass.targets.len())?);
        let work = PassKind::new(kernel, pass.sources.len(), pass.raw, pass.finish);
        let step = work.step(pass.count as u64, (0, sources), targets);
        let _entered = self.active.primary().enter()?;
        let tables = (&[step][..], &launch::operands_of(pass)[..]);
        // SAFETY: the caller vouches for sources and targets until an event is done that is recorded later.
        unsafe { self.active.launch(self.stream.handle(), work.entry, tables, work.bytes(pass.count as u64)) }
    }

    unsafe fn launch(&mut self, parts: Vec<LaunchPart>) -> Result<()> {
        if polling::polls(&parts) {
            let _entered = self.active.primary().enter()?;
            // SAFETY: the caller's contract.
            return unsafe { polling::launch(&self.active, self.stream.handle(), &parts) };
        }
        let Some(launches) = programs::launches(&parts)? else { return Ok(()) };
        let _entered = self.active.primary().enter()?;
        for LevelLaunch { entry, steps, operands, bytes } in &launches {
            // SAFETY: the caller vouches for all memory of the parts until an event is done that is recorded later.
            // What the parts keep goes when this call returns: `Active::retire` keeps it while this stream has work.
            unsafe { self.active.launch(self.stream.handle(), *entry, (steps, operands), *bytes) }?;
        }
        Ok(())
    }

    fn capture(&mut self) -> Result<Option<CaptureId>> {
        // It is a stream of our own, which no program captures.
        Ok(None)
    }

    fn after(&mut self, event: &Arc<dyn Event>) -> Result<()> {
        let any: &dyn Any = &**event;
        match any.downcast_ref::<Mark>() {
            Some(mark) if mark.is_of(&self.active) => {
                let _entered = self.active.primary().enter()?;
                mark.holds_up(self.stream.handle())
            }
            _ if event.is_done()? => Ok(()),
            _ => Err(Error::internal("a stream cannot wait for another device's event: wait for it before")),
        }
    }

    fn record(&mut self) -> Result<Arc<dyn Event>> {
        let _entered = self.active.primary().enter()?;
        let mark: Arc<dyn Event> = self.active.mark(self.stream.handle())?;
        Ok(mark)
    }
}

impl Drop for StreamQueue {
    /// What is in the stream goes on without it, and keeps retired memory until it is done.
    fn drop(&mut self) {
        if matches!(self.stream.is_idle(), Ok(true)) {
            return;
        }
        let Ok(_entered) = self.active.primary().enter() else { return };
        // Without an event the driver itself waits when it frees memory.
        if let Ok(mark) = self.active.mark(self.stream.handle()) {
            self.active.under_way(mark);
        }
    }
}

/// An address as the driver takes it, of the host too.
fn address(place: Place) -> CUdeviceptr {
    place.address.expose_provenance() as CUdeviceptr
}
