//! What a kind of memory must offer, and the arithmetic done in it.
//!
//! Host memory, of this process and of shared windows, is the first kind: [`HostMemory`] allocates it and [`Kernel`]
//! copies and reduces there. Executors describe a step as a [`Pass`] and know nothing of types, operators or vector
//! widths.
//!
//! # Adding a device
//! A device is one file that implements [`DeviceMemory`], [`DeviceNeighbours`], [`Device`], [`Queue`] and [`Event`],
//! and what else it can do of [`FabricMemory`], [`ProgramMemory`] and [`LedDevice`]: whoever needs one of these asks
//! for it ([`fabric_of`], [`programs_of`], [`led_of`]). [`add`] makes a device known to the process; the GPUs of
//! feature `cuda` are known without it. `tests/devices/contract.rs` holds the tests that every device must
//! pass. The contract:
//!
//! | what | who calls it | the host's way |
//! |---|---|---|
//! | [`DeviceMemory::allocate`] | arenas, rings, registered buffers | a mapping of zeroed pages |
//! | [`DeviceMemory::export`], [`DeviceMemory::import`] | the transports that hand memory to other processes | a sealed memfd |
//! | [`FabricMemory`] | ranks of several hosts whose devices may be joined | none |
//! | [`ProgramMemory`] | windows of memory that a program has allocated | none: it has registered buffers |
//! | [`DeviceMemory::locate`] | whoever gets a bare address from a program | every address that no other device claims |
//! | [`DeviceNeighbours::reaches`], [`DeviceMemory::memory_of_host`], [`DeviceMemory::take_in`] | set-up of ranks on several devices | all devices of a host reach its memory |
//! | [`DeviceNeighbours::takes`] | the choice of protocols between devices | slots alone |
//! | [`Device::page_for`] | set-up of ranks on several devices | a page of host memory |
//! | [`LedDevice::page_across`] | set-up of processes that share a device, one of which leads there | none |
//! | [`Queue::copy`], [`Queue::fold`] | executors | done before the call returns |
//! | [`Queue::launch`] | `exec::cohort`: programs of ranks that share the device | none: `exec::interpret` runs the plan itself |
//! | [`Queue::record`], [`Queue::after`] | executors that order queues among each other | events are done when they are made |
//!
//! Threads of one process share a [`Region`] by cloning it: no device call is needed for that.

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(test)]
mod headers;
mod host;
mod host_memory;
pub mod lines;
pub mod records;
mod status;

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::sys::fork::PerProcess;
use crate::types::Protocol;

pub use crate::sys::memory::Generation;
pub use crate::sys::nvml::FabricClique;
pub use crate::sys::region::{Adopted, DeviceId, FabricHandle, Home, HostRegion, Keep, Place, Region};
pub use host::{Average, Kernel, Pass, SourceRange, Store, StorePolicy, TimedCopy, add as add_floats};
pub use host_memory::HostMemory;
pub use status::{LaunchFault, StatusPage};

/// Whether a program of this build can have a device beside the host's memory: a GPU of feature `cuda`, or one that
/// [`add`] makes known, which only `internals` name. Where it cannot, calls on devices end where they begin, and the
/// compiler leaves out all that only they reach: a fifth of the library's code.
pub const POSSIBLE: bool = cfg!(any(feature = "cuda", feature = "internals", test));

/// Who shall be able to map memory that is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Threads of this process.
    Threads,
    /// Other processes of this host too.
    Processes,
    /// The same, in the older way of devices that have two: a GPU's memory by `cuIpcGetMemHandle`.
    ProcessesByHandle,
    /// As `Processes`, and processes of other hosts by a [`FabricMemory::fabric_handle`], if the driver gives one.
    Hosts,
}

/// What [`DeviceNeighbours::identity`] says; a GPU's is its UUID.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DeviceIdentity(pub [u8; 16]);

/// The ranks of a communicator that work on one device, by the processes that they are threads of. Their places are
/// counted in the order of the ranks. The process of the lowest rank leads: it launches the collectives of all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRanks {
    /// The place of the rank that asks.
    pub me: usize,
    /// In order.
    pub ranks: Vec<u32>,
    /// Of each place: that of the lowest rank of its process.
    pub first: Vec<usize>,
    /// Whether the programs of these ranks wait on the device for ranks on others.
    pub waits: bool,
}

impl DeviceRanks {
    /// The place of the rank whose process leads.
    pub const LEADER: usize = 0;

    /// The place of the lowest rank of each process but the leader's, in order.
    pub fn members(&self) -> impl Iterator<Item = usize> + '_ {
        let is_first = |(place, first): &(usize, &usize)| place == *first && *place != DeviceRanks::LEADER;
        self.first.iter().enumerate().filter(is_first).map(|(place, _)| place)
    }

    /// The ranks of other processes than the leader's.
    pub fn absent(&self) -> impl Iterator<Item = u32> + '_ {
        let is_absent = |(_, first): &(&u32, &usize)| **first != DeviceRanks::LEADER;
        self.ranks.iter().zip(&self.first).filter(is_absent).map(|(rank, _)| *rank)
    }

    /// How many ranks' programs the rank that asks brings to a launch: of the leader, those of other processes too.
    pub fn launched_by_me(&self) -> u32 {
        if self.me == DeviceRanks::LEADER { u32::try_from(1 + self.absent().count()).unwrap_or(u32::MAX) } else { 1 }
    }
}

/// A kind of memory: makes it, hands it to other processes of its host, and finds it.
pub trait DeviceMemory: fmt::Debug + Send + Sync {
    /// Where the memory of this device lives.
    fn home(&self) -> Home;

    /// `bytes` of zeroed memory.
    ///
    /// # Errors
    /// Where the device has no such memory.
    fn allocate(&self, bytes: usize, sharing: Sharing) -> Result<Region>;

    /// A descriptor by which another process [imports](DeviceMemory::import) `region`, which was allocated with
    /// [`Sharing::Processes`].
    ///
    /// # Errors
    /// Where the region cannot be shared: it is of another device, or was allocated for threads.
    fn export(&self, region: &Region) -> Result<OwnedFd>;

    /// Maps the memory behind a descriptor that a peer exported, which must have exactly `bytes`, for the work of this
    /// device: the memory may lie on another.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] where the descriptor is anything else.
    fn import(&self, descriptor: OwnedFd, bytes: usize) -> Result<Region>;

    /// Whether memory of this device that is [shared](Sharing::Processes) leaves its process by a descriptor of the
    /// memory; false where it does by a handle, as with [`Sharing::ProcessesByHandle`].
    fn has_descriptors(&self) -> bool {
        true
    }

    /// Where the memory at `address` lives, if this device knows it.
    fn locate(&self, address: u64) -> Option<Home>;

    /// `bytes` of zeroed memory of the host, for [`DeviceMemory::take_in`]. For set-up.
    ///
    /// # Errors
    /// Where there is no memory.
    fn memory_of_host(&self, bytes: usize, sharing: Sharing) -> Result<HostRegion> {
        HostMemory.allocate_host(bytes, sharing)
    }

    /// `memory` of the host as programs on this device address it, for ranks whose devices do not reach each other's
    /// memory. It keeps the memory. For set-up.
    ///
    /// # Errors
    /// Where the device cannot work in it.
    fn take_in(&self, memory: &HostRegion) -> Result<Region> {
        Ok(memory.as_region().clone())
    }
}

/// What a device is to the others of its host.
pub trait DeviceNeighbours: DeviceMemory {
    /// What names the device on its host: two processes that see equal identities work on one device.
    fn identity(&self) -> DeviceIdentity;

    /// Whether programs on this device reach the memory of `other`, a device of this host; the reason where not.
    ///
    /// # Errors
    /// Where the device cannot be asked.
    fn reaches(&self, other: DeviceIdentity) -> Result<std::result::Result<(), String>> {
        let _all_reachable = other;
        Ok(Ok(()))
    }

    /// Whether links of their own join this device and `other`, a device of this host.
    fn is_linked(&self, other: DeviceIdentity) -> bool {
        let _no_links = other;
        false
    }

    /// NVIDIA's compute capability, 80 for 8.0; `None` of other devices.
    fn capability(&self) -> Option<u32> {
        None
    }

    /// Whether programs on this device take messages by `protocol` from those on `other`, a device of this host; the
    /// reason where not.
    fn takes(&self, protocol: Protocol, other: DeviceIdentity) -> std::result::Result<(), String> {
        match protocol {
            Protocol::Simple => Ok(()),
            Protocol::LowLatency | Protocol::LowLatency128 => {
                Err(format!("{} and device {other:?} exchange slots with one flag each", self.home()))
            }
        }
    }
}

/// A kind of memory with queues that work in it. What not every device can do is a trait of its own, which
/// [`Device::fabric_memory`] and its like give.
pub trait Device: DeviceNeighbours {
    /// A queue of its own: what is put into one queue is done in that order.
    ///
    /// # Errors
    /// Where the device has no queue left.
    fn queue(&self) -> Result<Box<dyn Queue>>;

    /// Whether launches of several processes on this device run side by side, so that they may wait for each other;
    /// false where processes take turns.
    fn runs_processes_together(&self) -> bool;

    /// For one rank whose programs wait on this device for those of ranks on others: makes the memory of the devices
    /// `reached` reachable from here, which [`DeviceNeighbours::reaches`] allows, takes what such launches need, and
    /// gives the page by which they and the host hear from each other. For set-up. With ranks on the devices `beside`
    /// it shares memory of the host.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] where the device has no room for another rank.
    fn page_for(&self, reached: &[Home], beside: &[Home]) -> Result<StatusPage> {
        let _all_reachable = (reached, beside);
        StatusPage::new()
    }

    /// Memory that reaches other hosts; `None` where none does.
    fn fabric_memory(&self) -> Option<&dyn FabricMemory> {
        None
    }

    /// Memory that programs allocate themselves; `None` where windows and buffers lie in the library's alone.
    fn program_memory(&self) -> Option<&dyn ProgramMemory> {
        None
    }

    /// Memory that NICs reach; `None` where they reach none.
    fn nic_memory(&self) -> Option<&dyn NicReachable> {
        None
    }

    /// One process that launches for several; `None` where each launches for itself.
    fn led_device(&self) -> Option<&dyn LedDevice> {
        None
    }
}

/// Memory of a device that NICs read and write by themselves (GPUDirect RDMA).
pub trait NicReachable {
    /// By which ways they may. Else why there is none, as a sentence.
    fn nic_ways(&self) -> std::result::Result<NicWays, String>;

    /// The pages around `region`, which was allocated with [`Sharing::Threads`], for NICs that take a DMA-BUF.
    ///
    /// # Errors
    /// Where the driver gives none.
    fn dma_buf(&self, region: &Region) -> Result<DmaBuf>;
}

/// By which ways NICs may reach memory of a device: only their registration shows whether they do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NicWays {
    /// By a DMA-BUF.
    pub dma_buf: bool,
    /// By its address, which a module of the kernel knows (`nvidia_peermem`).
    pub address: bool,
}

/// Memory of a device as other drivers of the kernel take it.
#[derive(Debug)]
pub struct DmaBuf {
    /// Stands for whole pages.
    pub descriptor: OwnedFd,
    /// Where the memory begins in them.
    pub offset: u64,
}

/// Memory of a device that devices of other hosts map.
pub trait FabricMemory {
    /// The clique of devices, of this host and others, that may reach this device's memory by its fabric handles: only
    /// trying shows whether they do. Else why there is none.
    fn fabric_clique(&self) -> std::result::Result<FabricClique, String>;

    /// The handle by which a device of another host [imports](FabricMemory::import_fabric) `region`, which was
    /// allocated with [`Sharing::Hosts`].
    ///
    /// # Errors
    /// Where the driver gave it none, for the reason that the message says.
    fn fabric_handle(&self, region: &Region) -> Result<FabricHandle>;

    /// Maps the memory behind a handle of a device of another host, which must have exactly `bytes`, for the work of
    /// this device.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] where the handle stands for anything else, or does not lead here.
    fn import_fabric(&self, handle: &FabricHandle, bytes: usize) -> Result<Region>;
}

/// Memory of a device that a program has allocated itself, for windows.
pub trait ProgramMemory {
    /// Memory of this device that the program has allocated itself, as a region that does not keep it.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where so much does not lie there.
    fn adopt(&self, address: u64, bytes: usize) -> Result<Region>;

    /// Whether memory that was [adopted](ProgramMemory::adopt) is still there, and not other memory at its address.
    ///
    /// # Errors
    /// Where the device has failed.
    fn is_still_there(&self, adopted: &Region) -> Result<bool>;

    /// How memory of this device becomes the memory of a window, in which the devices `visitors` of this process work,
    /// and other processes if there are any `elsewhere`. Else why it cannot, as the end of a sentence.
    ///
    /// # Errors
    /// Where the device cannot be asked.
    fn lendable(
        &self,
        memory: &Region,
        visitors: &[Home],
        elsewhere: bool,
    ) -> Result<std::result::Result<Lendable, String>>;

    /// Begins to put memory of a peer that lies in several allocations, of `bytes` in all, behind each other.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] for bytes that are no whole allocations of this device; where there is no room.
    fn joint(&self, bytes: usize) -> Result<Box<dyn Joint + '_>>;
}

/// A device that several processes share, one of which leads the work of all there.
pub trait LedDevice {
    /// The status page of a rank of a communicator in which several processes share a device, one of which leads the
    /// work of all there. The `pages` of the ranks on this device lie behind each other in memory of the host, and this
    /// device has taken it in. The `others` are those that are reached and those beside, as in [`Device::page_for`].
    /// For set-up.
    ///
    /// # Errors
    /// Where streams of processes cannot wait for each other, or the device has no room for another rank.
    fn page_across(
        &self,
        others: (&[Home], &[Home]),
        pages: (&HostRegion, &Region),
        ranks: &DeviceRanks,
    ) -> Result<StatusPage>;
}

/// Work for a device, done in order. It may be done at once, or only while an [`Event`] is asked.
pub trait Queue: fmt::Debug + Send {
    /// Copies `from` to `to`, which have the same length. At least one of them lives on the queue's device, the other
    /// there or on the host.
    ///
    /// # Errors
    /// Where the device refuses; [`crate::error::Kind::InvalidArgument`] for homes or lengths that do not fit.
    ///
    /// # Safety
    /// Until an event that is recorded later is done, `from` is good for reading and `to` for writing, nobody else
    /// writes `from` or touches `to`, and they do not overlap.
    unsafe fn copy(&mut self, from: Place, to: Place) -> Result<()>;

    /// Does one pass of `kernel`. The pass names addresses of the queue's device.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// As [`Kernel::run`], until an event that is recorded later is done.
    unsafe fn fold(&mut self, kernel: &Kernel, pass: &Pass<'_>) -> Result<()>;

    /// Runs the programs of ranks that share this device, side by side: they may wait for each other, and for programs
    /// on other devices. A part that finds a fault, or an abort, ends early and says so on its [`StatusPage`]; the
    /// queue goes on. Everything that a launch needs is in the parts, so that a queue that is captured can keep them
    /// and run them again. Returns an event that is done when all that was put into this queue until then is done.
    ///
    /// # Errors
    /// Where the device refuses.
    ///
    /// # Safety
    /// Until an event that is recorded later is done: all addresses of the parts are good for what their records do,
    /// nobody touches the memory but these parts and those of the same call on other devices, and the words of
    /// [`records::ControlLayout`] and of connections are touched by launches alone.
    unsafe fn launch(&mut self, parts: Vec<records::LaunchPart>) -> Result<Arc<dyn Event>>;

    /// Called on the thread of a program before it puts work here, and [`Queue::leave`] after it: for queues whose
    /// program's stream only that thread can name.
    ///
    /// # Errors
    /// Where the device refuses.
    fn enter(&mut self) -> Result<()> {
        Ok(())
    }

    /// See [`Queue::enter`].
    ///
    /// # Errors
    /// Where the device refuses.
    fn leave(&mut self) -> Result<()> {
        Ok(())
    }

    /// What is put into this queue from now on begins when `event` is done.
    ///
    /// # Errors
    /// Where the queue cannot wait for this event: a queue that works inline takes only events that are done.
    fn after(&mut self, event: &Arc<dyn Event>) -> Result<()>;

    /// The capture that this queue is in: what is put into the queue is kept, to be run later as often as the program
    /// likes, in place of being run. Events that are recorded meanwhile order what is kept, and are never done.
    ///
    /// # Errors
    /// Where the device refuses to say; [`crate::error::Kind::InvalidUsage`] where the capture has failed.
    fn capture(&mut self) -> Result<Option<CaptureId>>;

    /// What keeps the program's stream alive that this queue puts its work into, if the program gave something that
    /// does.
    fn kept_stream(&self) -> Option<Arc<dyn Any + Send + Sync>> {
        None
    }

    /// An event that is done when all that was put into this queue before is done.
    ///
    /// # Errors
    /// Where the device has no event left.
    fn record(&mut self) -> Result<Arc<dyn Event>>;

    /// What this queue's device wants around calls of its queues; `None` where it wants nothing.
    fn surroundings(&self) -> Option<Arc<dyn Surroundings>> {
        None
    }
}

/// What a device sets up in a thread for each call, and takes down after it. With it around several calls, that is done
/// once for all of them.
pub trait Surroundings: fmt::Debug + Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Calls `body` inside. Where nothing can be set up, the calls of `body` find out themselves.
    fn around(&self, body: &mut dyn FnMut());
}

/// Names a capture among those of a device: what is captured under one name becomes one graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CaptureId(pub u64);

/// A point in a queue.
pub trait Event: Any + fmt::Debug + Send + Sync {
    /// Whether the queue has come to this point. It never blocks.
    ///
    /// # Errors
    /// Where the device has failed, which the queue's work shares.
    fn is_done(&self) -> Result<bool>;
}

/// The device whose memory `home` is.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] where this process has no such device; with feature `cuda`
/// [`crate::error::Kind::System`] where there is no driver for it.
pub fn of(home: Home) -> Result<&'static dyn Device> {
    let Home::Device(id) = home else { return Ok(&HostMemory) };
    let found = added().get(&id).copied();
    match found {
        Some(device) => Ok(device),
        #[cfg(feature = "cuda")]
        None => cuda::of(id).map(|gpu| gpu as &dyn Device),
        #[cfg(not(feature = "cuda"))]
        None => Err(unsupported(home)),
    }
}

/// How the device at `home` hands memory to other hosts.
///
/// # Errors
/// As [`of`]; [`crate::error::Kind::InvalidUsage`] where it hands none.
pub fn fabric_of(home: Home) -> Result<&'static dyn FabricMemory> {
    of(home)?.fabric_memory().ok_or_else(|| Error::invalid_usage(no_fabric(home)))
}

/// Why the device at `home` hands no memory to other hosts.
pub fn no_fabric(home: Home) -> String {
    format!("{home} has no fabric handles")
}

/// How the device at `home` works with memory that programs have allocated.
///
/// # Errors
/// As [`of`]; [`crate::error::Kind::InvalidUsage`] where it does not.
pub fn programs_of(home: Home) -> Result<&'static dyn ProgramMemory> {
    let lacks = || Error::invalid_usage(format!("{home} takes no memory of programs"));
    of(home)?.program_memory().ok_or_else(lacks)
}

/// How a process leads others at the device of `home`.
///
/// # Errors
/// As [`of`]; [`crate::error::Kind::InvalidUsage`] where none does.
pub fn led_of(home: Home) -> Result<&'static dyn LedDevice> {
    of(home)?.led_device().ok_or_else(|| Error::invalid_usage(format!("no process leads others on {home}")))
}

/// How memory is handed to the ranks of a window.
#[derive(Debug)]
pub struct Lendable {
    /// What other processes import, and map behind each other: at least one.
    pub parts: Vec<Region>,
    /// Where in the parts the memory begins.
    pub offset: usize,
}

/// Allocations of a [`Lendable`]: each is a descriptor in its process while a window is registered.
pub const MOST_PARTS: usize = 256;

/// Memory of a peer in several allocations, while they are put behind each other.
pub trait Joint {
    /// Puts `part`, which was [imported](DeviceMemory::import), behind those before. It may be dropped then.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] where there is no room for it; where it cannot be mapped.
    fn add(&mut self, part: &Region) -> Result<()>;

    /// All of it.
    ///
    /// # Errors
    /// [`crate::error::Kind::Internal`] where there is room for more.
    fn finish(self: Box<Self>) -> Result<Region>;
}

/// [`ProgramMemory::lendable`] of memory that the library has allocated.
pub fn lendable_alone(memory: &Region, elsewhere: bool) -> std::result::Result<Lendable, String> {
    if elsewhere && memory.keep().descriptor().is_none() {
        return Err("cannot leave its process: allocate it by alloc_shareable".to_owned());
    }
    Ok(Lendable { parts: vec![memory.clone()], offset: 0 })
}

/// Makes `device` known to this process, until it ends, and not to its forked children; it comes before a GPU of the
/// same number. A number names one device: the first that is added under it stays.
pub fn add(device: &'static dyn Device) {
    if let Home::Device(id) = device.home() {
        added().entry(id).or_insert(device);
    }
}

/// The devices that were added. One table, because communicators share devices, and an address alone has to tell its
/// device.
fn added() -> MutexGuard<'static, BTreeMap<DeviceId, &'static dyn Device>> {
    static ADDED: PerProcess<Mutex<BTreeMap<DeviceId, &'static dyn Device>>> = PerProcess::new();
    ADDED.get_or_init(Mutex::default).lock()
}

/// The error for arguments that live where no executor of this build can reach them.
#[cold]
pub fn unsupported(home: Home) -> Error {
    Error::invalid_argument(format!("the buffer lies in {home}, and this process has no such device"))
}
