//! A device in software, for tests: memory that the processor cannot touch, queues with a thread each, programs run
//! from their records alone, and capture.
//!
//! Addresses of [`Far`] are not mapped in this process: host code that follows one faults. Each queue does its work on
//! a thread of its own, while the caller goes on. What a [`FarGraph`] has captured runs without host code in between. A
//! program that accesses memory that is not allocated, or was freed, makes its queue fail for good.

mod memory;
mod programs;
mod queue;

use std::os::fd::OwnedFd;

use memory::Memory;
pub use queue::FarGraph;
use queue::FarQueue;
use rsccl::Result;
use rsccl::internals::device::{
    Device, DeviceId, DeviceIdentity, DeviceMemory, DeviceNeighbours, Home, HostMemory, HostRegion, Queue, Region,
    Sharing,
};

/// A device whose memory the host cannot touch. All devices of a process reach each other's memory.
#[derive(Debug)]
pub struct Far {
    number: u32,
}

impl Far {
    /// A device that is not added to the process's list: only its caller has it.
    pub fn new(number: u32) -> Far {
        Far { number }
    }

    /// Adds devices of these numbers to the process's list. If another test has added them before, those stay.
    pub fn add(numbers: std::ops::Range<u32>) {
        numbers.for_each(|number| rsccl::internals::device::add(Box::leak(Box::new(Far::new(number)))));
    }

    /// Allocations that live on device `number`.
    pub fn allocations(number: u32) -> usize {
        Memory::count(Home::Device(DeviceId(number)))
    }

    fn region(&self, behind: &Region) -> Region {
        Memory::map(behind.on_host().expect("host memory stands behind it"), self.home())
    }
}

impl DeviceMemory for Far {
    fn home(&self) -> Home {
        Home::Device(DeviceId(self.number))
    }

    fn allocate(&self, bytes: usize, sharing: Sharing) -> Result<Region> {
        Ok(self.region(&HostMemory.allocate(bytes, sharing)?))
    }

    fn export(&self, region: &Region) -> Result<OwnedFd> {
        HostMemory.export(&Memory::behind(region, self.home())?)
    }

    fn import(&self, descriptor: OwnedFd, bytes: usize) -> Result<Region> {
        Ok(self.region(&HostMemory.import(descriptor, bytes)?))
    }

    fn locate(&self, address: u64) -> Option<Home> {
        Memory::home(address).filter(|home| *home == self.home())
    }

    fn take_in(&self, memory: &HostRegion) -> Result<Region> {
        Ok(Memory::map(memory.clone(), self.home()))
    }
}

impl DeviceNeighbours for Far {
    /// A number is one device in all processes.
    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity(u128::from(self.number).to_ne_bytes())
    }
}

impl Device for Far {
    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(FarQueue::new(self.home())))
    }

    /// Queues are threads.
    fn runs_processes_together(&self) -> bool {
        true
    }
}
