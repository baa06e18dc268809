//! Host memory as a device: its queue works inline, so its events are done when they are made.

use std::os::fd::OwnedFd;

use crate::device::records::LaunchPart;
use crate::device::{
    CaptureId, Device, DeviceIdentity, DeviceMemory, DeviceNeighbours, Event, Home, Kernel, Pass, Place, Queue, Region,
    Sharing,
};
use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::sys::memory::SharedMemory;

/// The host's memory.
#[derive(Debug, Clone, Copy)]
pub struct HostMemory;

impl HostMemory {
    /// [`DeviceMemory::allocate`], as memory that the processor can touch.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where there is no memory.
    pub fn allocate_host(self, bytes: usize, sharing: Sharing) -> Result<crate::device::HostRegion> {
        let memory = match sharing {
            Sharing::Threads => SharedMemory::anonymous(bytes)?,
            Sharing::Processes | Sharing::ProcessesByHandle | Sharing::Hosts => SharedMemory::memfd(bytes)?,
        };
        Ok(memory.into_region())
    }

    /// Memory of this process that a NIC reads and writes by itself. It lies on pages of its own, and a forked child
    /// has none of it.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where there is no memory.
    pub fn allocate_for_nic(self, bytes: usize) -> Result<crate::device::HostRegion> {
        SharedMemory::for_device(bytes).map(SharedMemory::into_region)
    }

    /// A program's buffer, which other processes of this host can map.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where there is no memory, or limits leave no room for it.
    pub fn buffer(self, bytes: usize) -> Result<crate::device::HostRegion> {
        SharedMemory::for_program(bytes).map(SharedMemory::into_region)
    }

    /// A program's pool of such memory, nothing of which is in use yet.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] where the system refuses.
    pub fn pool(self, bytes: usize) -> Result<crate::device::HostRegion> {
        SharedMemory::for_pool(bytes).map(SharedMemory::into_region)
    }

    /// [`DeviceMemory::import`], as memory that the processor can touch.
    ///
    /// # Errors
    /// As [`DeviceMemory::import`].
    pub fn import_host(self, descriptor: OwnedFd, bytes: usize) -> Result<crate::device::HostRegion> {
        SharedMemory::from_peer(descriptor, bytes).map(SharedMemory::into_region)
    }
}

impl DeviceMemory for HostMemory {
    fn home(&self) -> Home {
        Home::Host
    }

    fn allocate(&self, bytes: usize, sharing: Sharing) -> Result<Region> {
        self.allocate_host(bytes, sharing).map(|region| region.as_region().clone())
    }

    fn export(&self, region: &Region) -> Result<OwnedFd> {
        if region.home() != Home::Host {
            return Err(Error::internal(format!("exporting {region:?} as host memory")));
        }
        let descriptor = region.keep().descriptor();
        let descriptor = descriptor.ok_or_else(|| Error::internal("memory of one process has no descriptor"))?;
        descriptor.try_clone().map_err(|error| Error::system("dup of a memfd", error))
    }

    fn import(&self, descriptor: OwnedFd, bytes: usize) -> Result<Region> {
        self.import_host(descriptor, bytes).map(|region| region.as_region().clone())
    }

    /// The host's is every address that no other device claims.
    fn locate(&self, _: u64) -> Option<Home> {
        Some(Home::Host)
    }
}

impl DeviceNeighbours for HostMemory {
    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity([0; 16])
    }
}

impl Device for HostMemory {
    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(Inline))
    }

    fn runs_processes_together(&self) -> bool {
        true
    }
}

/// The host's queue: all it is given is done when the call returns.
#[derive(Debug)]
struct Inline;

impl Queue for Inline {
    unsafe fn copy(&mut self, from: Place, to: Place) -> Result<()> {
        if (from.home, to.home) != (Home::Host, Home::Host) || from.bytes != to.bytes {
            return Err(Error::invalid_argument(format!(
                "the host cannot copy {} bytes of {} to {} bytes of {}",
                from.bytes, from.home, to.bytes, to.home
            )));
        }
        // SAFETY: the caller vouches for both places, which do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.address.cast_const(), to.address, to.bytes) };
        Ok(())
    }

    unsafe fn fold(&mut self, kernel: &Kernel, pass: &Pass<'_>) -> Result<()> {
        // SAFETY: the caller's contract is that of `run`.
        unsafe { kernel.run(pass) };
        Ok(())
    }

    unsafe fn launch(&mut self, _: Vec<LaunchPart>) -> Result<Arc<dyn Event>> {
        Err(Error::internal("plans on host memory are interpreted by their ranks themselves, not launched"))
    }

    fn after(&mut self, event: &Arc<dyn Event>) -> Result<()> {
        if event.is_done()? {
            return Ok(());
        }
        Err(Error::internal("the host's queue works inline: wait for the event before putting work behind it"))
    }

    fn capture(&mut self) -> Result<Option<CaptureId>> {
        Ok(None)
    }

    fn record(&mut self) -> Result<Arc<dyn Event>> {
        Ok(Arc::new(Done))
    }
}

/// The host's event.
#[derive(Debug)]
struct Done;

impl Event for Done {
    fn is_done(&self) -> Result<bool> {
        Ok(true)
    }
}
