//! Memory of the host in which kernels work: where GPUs do not reach each other's memory, what they have for each other
//! lies there.
//!
//! The driver pins memory once for a process, for all of its GPUs. Each GPU asks for the address that it uses itself.

use std::collections::HashMap;
use std::ffi::c_void;

use cudarc::driver::sys::CUdeviceptr;

use super::context::Primary;
use super::result::{Driver, call};
use crate::device::HostRegion;
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, Mutex, Weak};

/// Host memory as one GPU addresses it.
#[derive(Debug)]
pub(super) struct OfHost {
    address: CUdeviceptr,
    _pin: Arc<Pin>,
}

/// Keeps host memory pinned.
#[derive(Debug)]
struct Pin {
    /// Whose context was current when the memory was pinned.
    primary: Arc<Primary>,
    // After the driver has been told.
    memory: HostRegion,
}

/// What the driver has pinned for this library in this process, by address. It refuses to pin memory twice.
#[derive(Debug, Default)]
pub(super) struct Pins(Mutex<HashMap<usize, Weak<Pin>>>);

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`
const PORTABLE_MAPPED: u32 = 1 | 2;

impl OfHost {
    /// Pins `memory`, unless another GPU of this process has. Call it during set-up: pinning waits for kernels that
    /// run.
    pub(super) fn new(driver: &Driver, primary: &Arc<Primary>, memory: &HostRegion) -> Result<OfHost> {
        let _entered = primary.enter()?;
        let pin = driver.pins().take(primary, memory)?;
        let mut address = 0;
        // SAFETY: the memory is pinned and mapped for all GPUs, and the place is ours.
        let asked = unsafe { call!(primary, cuMemHostGetDevicePointer(&raw mut address, pin.start(), 0)) };
        asked.map_err(|failure| primary.error(failure))?;
        Ok(OfHost { address, _pin: pin })
    }

    /// Where it begins.
    pub(super) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Pins {
    /// The context must be current.
    fn take(&self, primary: &Arc<Primary>, memory: &HostRegion) -> Result<Arc<Pin>> {
        // What the lock guards is whole after every statement, so a panic elsewhere does not spoil it.
        let mut pins = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        pins.retain(|_, pin| pin.strong_count() > 0);
        let key = memory.base().addr().get();
        if let Some(pin) = pins.get(&key).and_then(Weak::upgrade) {
            return Ok(pin);
        }
        let bytes = memory.bytes();
        // SAFETY: the region is mapped for reading and writing, and the pin keeps it until the driver has let go of it.
        let made = unsafe { call!(primary, cuMemHostRegister(memory.base().as_ptr().cast(), bytes, PORTABLE_MAPPED)) };
        made.map_err(|failure| {
            let error = primary.error(failure);
            Error::new(
                Kind::System,
                format!(
                    "{bytes} bytes of host memory cannot be pinned for GPUs that do not reach each other's memory: {}",
                    error.message()
                ),
            )
        })?;
        let pin = Arc::new(Pin { primary: Arc::clone(primary), memory: memory.clone() });
        pins.insert(key, Arc::downgrade(&pin));
        Ok(pin)
    }
}

impl Pin {
    fn start(&self) -> *mut c_void {
        self.memory.base().as_ptr().cast()
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // SAFETY: the memory was pinned for us alone, and no work of ours uses it any more: `Active::free_retired`
        // waits for that.
        self.primary.give_back(|| unsafe { call!(self.primary, cuMemHostUnregister(self.start())) });
    }
}
