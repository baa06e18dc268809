//! GPUs by NVIDIA's driver, which is loaded when it is first asked for: the same program runs with and without one.
//!
//! | folder | what |
//! |---|---|
//! | `driver` | the driver's functions, what its answers mean, a GPU's context and streams |
//! | `memory` | memory of a GPU, and of the host that GPUs reach: made, handed over, mapped |
//! | `launch` | what runs on a GPU: kernels and what they are given, queues, programs, graphs |
//!
//! Above them stands `active`, a GPU in use, and above that [`Cuda`], which is a device of this process.
//!
//! A GPU's primary context is retained while a region, queue or event of it lives, or a graph with captured launches.
//! Nothing here resets it, and every call leaves the program's current context and capture mode as they were.

mod driver;
mod memory;
mod launch;
mod active;
mod nic_memory;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fmt;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use cudarc::driver::sys::{CUdevice, CUuuid};

use crate::device::{
    Device, DeviceId, DeviceIdentity, DeviceMemory, DeviceNeighbours, DeviceRanks, DmaBuf, FabricClique, FabricHandle,
    FabricMemory, Generation, Home, HostMemory, HostRegion, Joint, Keep, LedDevice, Lendable, NicReachable, NicWays,
    ProgramMemory, Queue, Region, Sharing, StatusPage,
};
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use crate::sys::lending::Lending;
use crate::sys::note::TakenNote;
use crate::sys::nvml;
use crate::types::Protocol;

use active::Active;
use driver::context::{MemoryWays, Primary};
use driver::result::{Driver, call};
use launch::{members, queue};
use memory::allocation::{Allocation, JoinedMemory};
use memory::lent;
use memory::physical::Handles;

pub use driver::stream::{StreamHandle, device_of};

/// What names a GPU, or a part of one (MIG), on all hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Uuid(pub [u8; 16]);

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// A GPU that the driver shows to this process. Its [`DeviceId`] is the driver's number of it.
#[derive(Debug)]
pub struct Cuda {
    driver: &'static Driver,
    device: CUdevice,
    id: DeviceId,
    uuid: Uuid,
    name: String,
    /// Compute capability: (9, 0) for 9.0.
    capability: (c_int, c_int),
    multiprocessors: u32,
    /// Whether the driver maps memory of it.
    maps: bool,
    /// Whether its memory can leave the process as a descriptor.
    exports: bool,
    /// Whether it can leave the host by a fabric handle, says an attribute that is no promise.
    fabric: bool,
    /// By which ways NICs may reach its memory, if it is mapped.
    nics: NicWays,
    /// While somebody uses it.
    active: Mutex<Weak<Active>>,
    /// Copies of it are with whoever has the context.
    users: Arc<()>,
}

/// The GPUs of this process, in the driver's order.
///
/// # Errors
/// [`Kind::System`] where there is no driver, it is too old, or it refuses. A later call tries again.
pub fn gpus() -> Result<&'static [Cuda]> {
    static GPUS: OnceLock<Vec<Cuda>> = OnceLock::new();
    if let Some(gpus) = GPUS.get() {
        return Ok(gpus);
    }
    let driver = Driver::get()?;
    let mut count = 0;
    // SAFETY: the place is ours and lives through the call.
    unsafe { call!(driver, cuDeviceGetCount(&raw mut count)) }.map_err(|failure| failure.at(driver))?;
    let found = (0..count).map(|number| Cuda::find(driver, number)).collect::<Result<Vec<Cuda>>>()?;
    Ok(GPUS.get_or_init(|| found))
}

/// The GPU of a number.
///
/// # Errors
/// As [`gpus`]; [`Kind::InvalidArgument`] for a number that no GPU has.
pub fn of(id: DeviceId) -> Result<&'static Cuda> {
    let home = Home::Device(id);
    let gpus = gpus().map_err(|error| Error::new(error.kind(), format!("{home}: {}", error.message())))?;
    let found = gpus.iter().find(|gpu| gpu.id == id);
    found.ok_or_else(|| Error::invalid_argument(format!("{home} is none of this process's {} GPUs", gpus.len())))
}

/// The GPUs of this process that are in use; `None` while one begins to be.
fn in_use() -> Option<Vec<Arc<Active>>> {
    let mut found = Vec::new();
    for gpu in gpus().ok()? {
        // Whoever makes it may wait for kernels, which may wait for this thread.
        found.extend(gpu.active.try_lock()?.upgrade());
    }
    Some(found)
}

/// Where the memory at `address` lives, if the driver knows the address as GPU memory.
///
/// # Errors
/// As [`gpus`], and where the driver refuses the question.
pub fn locate(address: u64) -> Result<Option<Home>> {
    let gpus = gpus()?;
    let driver = Driver::get()?;
    driver.check_process()?;
    let (mut kind, mut ordinal): (c_uint, c_int) = (0, 0);
    let (count, attributes): (c_uint, _) = (2, [MEMORY_TYPE, DEVICE_ORDINAL]);
    let mut places: [*mut c_void; 2] = [(&raw mut kind).cast(), (&raw mut ordinal).cast()];
    // SAFETY: the two attributes have two places, of the widths that cuda.h gives them.
    let asked =
        unsafe { call!(driver, cuPointerGetAttributes(count, attributes.as_ptr(), places.as_mut_ptr(), address)) };
    asked.map_err(|failure| failure.at(driver))?;
    let home = gpus.iter().find(|gpu| kind == MEMORY_TYPE_DEVICE && gpu.device == ordinal).map(DeviceMemory::home);
    Ok(home)
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`
const MEMORY_TYPE: c_int = 2;
const DEVICE_ORDINAL: c_int = 9;
/// `CU_MEMORYTYPE_DEVICE`
const MEMORY_TYPE_DEVICE: c_uint = 2;
/// `CU_DEVICE_ATTRIBUTE_…`
const MULTIPROCESSOR_COUNT: c_int = 16;
const CAPABILITY_MAJOR: c_int = 75;
const CAPABILITY_MINOR: c_int = 76;
const VIRTUAL_MEMORY: c_int = 102;
const POSIX_DESCRIPTORS: c_int = 103;
const FABRIC_HANDLES: c_int = 128;

impl Cuda {
    fn find(driver: &'static Driver, number: c_int) -> Result<Cuda> {
        let mut device = 0;
        // SAFETY: the place is ours and lives through the call.
        unsafe { call!(driver, cuDeviceGet(&raw mut device, number)) }.map_err(|failure| failure.at(driver))?;
        let mut uuid = CUuuid { bytes: [0; 16] };
        // SAFETY: as above; the device is one of the driver's.
        unsafe { call!(driver, cuDeviceGetUuid(&raw mut uuid, device)) }.map_err(|failure| failure.at(driver))?;
        let mut name: [c_char; NAME_BYTES] = [0; NAME_BYTES];
        let room = c_int::try_from(NAME_BYTES).expect("small");
        // SAFETY: the place is ours and has the length that is told.
        let named = unsafe { call!(driver, cuDeviceGetName(name.as_mut_ptr(), room, device)) };
        named.map_err(|failure| failure.at(driver))?;
        let attribute = |which: c_int| {
            let mut value = 0;
            // SAFETY: the place is ours and lives through the call.
            let asked = unsafe { call!(driver, cuDeviceGetAttribute(&raw mut value, which, device)) };
            asked.map(|()| value).map_err(|failure| failure.at(driver))
        };
        Ok(Cuda {
            driver,
            device,
            id: DeviceId(number.unsigned_abs()),
            uuid: Uuid(uuid.bytes.map(|byte| byte.to_ne_bytes()[0])),
            name: text(&name),
            capability: (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?),
            multiprocessors: u32::try_from(attribute(MULTIPROCESSOR_COUNT)?).unwrap_or(1),
            maps: attribute(VIRTUAL_MEMORY)? != 0,
            exports: attribute(VIRTUAL_MEMORY)? != 0 && attribute(POSIX_DESCRIPTORS)? != 0,
            // Drivers before 550 do not know the attribute.
            fabric: attribute(FABRIC_HANDLES).is_ok_and(|has| has != 0),
            nics: nic_memory::ways(driver, |which| attribute(which).is_ok_and(|has| has != 0)),
            active: Mutex::new(Weak::new()),
            users: Arc::new(()),
        })
    }

    /// Its number among the GPUs of this process.
    pub fn id(&self) -> DeviceId {
        self.id
    }

    /// What names it on all hosts: two GPUs are the same if this is.
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The GPU in use: its context with the kernels, made by the first user and gone with the last.
    fn active(&self) -> Result<Arc<Active>> {
        let mut place = self.active.lock();
        if let Some(active) = place.upgrade() {
            return Ok(active);
        }
        let (maps, exports, fabric) = (self.maps, self.exports, self.fabric);
        let nics = self.nics.dma_buf || self.nics.address;
        let ways = MemoryWays { maps, exports, fabric, nics, visitors: self.visitors()? };
        let primary = Primary::retain(self.driver, self.device, ways, Arc::clone(&self.users))?;
        let active = Active::new(primary, self.capability, self.multiprocessors)?;
        *place = Arc::downgrade(&active);
        Ok(active)
    }

    /// This GPU, and the others of this process whose kernels can reach its memory.
    fn visitors(&self) -> Result<Vec<CUdevice>> {
        let mut visitors = vec![self.device];
        for other in gpus()?.iter().filter(|other| other.device != self.device) {
            let mut can = 0;
            // SAFETY: the place is ours and lives through the call.
            let asked = unsafe { call!(self.driver, cuDeviceCanAccessPeer(&raw mut can, other.device, self.device)) };
            asked.map_err(|failure| failure.at(self.driver))?;
            visitors.extend((can != 0).then_some(other.device));
        }
        Ok(visitors)
    }

    /// A queue that puts work into a program's stream. `keep` keeps the stream while the queue lives, where something
    /// does.
    ///
    /// # Errors
    /// [`Kind::InvalidArgument`] for a stream that is not of the GPU's primary context; where the GPU cannot be used.
    pub fn queue_of(&self, stream: StreamHandle, keep: Option<Arc<dyn Any + Send + Sync>>) -> Result<Box<dyn Queue>> {
        Ok(Box::new(queue::StreamQueue::of(self.active()?, self.home(), stream, keep)?))
    }

    /// Whether anything of the library uses it: memory, a queue, a graph with captured calls.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.users) > 1
    }

    /// The memory as a region.
    fn region(
        &self,
        active: Arc<Active>,
        memory: Allocation,
        bytes: usize,
        (descriptor, fabric): (Option<OwnedFd>, Option<FabricHandle>),
    ) -> Result<Region> {
        let address = usize::try_from(memory.address()).ok().map(std::ptr::without_provenance_mut);
        let Some(base) = address.and_then(NonNull::new) else {
            return Err(Error::new(Kind::System, format!("GPU memory at address {:#x}", memory.address())));
        };
        let descriptor = Mutex::new(descriptor.map(Arc::new));
        let keep = Kept { memory: Some(memory), descriptor, fabric, lending: Lending::new(), active };
        // SAFETY: the memory is the GPU's until `keep` is dropped.
        Ok(unsafe { Region::new(base, bytes, self.home(), Arc::new(keep)) })
    }
}

/// More than the longest name.
const NAME_BYTES: usize = 256;

/// A name that the driver wrote.
fn text(name: &[c_char; NAME_BYTES]) -> String {
    let bytes = name.map(|letter| letter.to_ne_bytes()[0]);
    CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned()
}

impl DeviceMemory for Cuda {
    fn home(&self) -> Home {
        Home::Device(self.id)
    }

    /// Waits for no kernel that runs, unless the driver maps no memory of this GPU.
    fn allocate(&self, bytes: usize, sharing: Sharing) -> Result<Region> {
        if bytes == 0 {
            return Err(Error::invalid_argument("0 bytes of GPU memory"));
        }
        let active = self.active()?;
        active.free_retired();
        match sharing {
            Sharing::Threads => {
                let memory = Allocation::for_threads(active.chunks(), active.primary(), active.service(), bytes)?;
                self.region(active, memory, bytes, (None, None))
            }
            Sharing::Processes | Sharing::Hosts if self.exports => {
                let handles = if sharing == Sharing::Hosts { Handles::AlsoFabric } else { Handles::Descriptor };
                let memory = Allocation::shareable(active.primary(), (bytes, handles), active.service())?;
                let (descriptor, fabric) = (memory.export()?, memory.fabric_handle()?);
                self.region(active, memory, bytes, (Some(descriptor), fabric))
            }
            Sharing::Processes | Sharing::ProcessesByHandle | Sharing::Hosts => {
                let memory = Allocation::by_handle(active.primary(), bytes, active.service())?;
                let descriptor = memory.export()?;
                self.region(active, memory, bytes, (Some(descriptor), None))
            }
        }
    }

    fn export(&self, region: &Region) -> Result<OwnedFd> {
        let descriptor = region.keep().descriptor().filter(|_| region.home() == self.home());
        let descriptor = descriptor.ok_or_else(|| Error::internal(format!("{region:?} cannot leave this process")))?;
        descriptor.try_clone().map_err(|error| Error::system("dup of a GPU memory's descriptor", error))
    }

    fn import(&self, descriptor: OwnedFd, bytes: usize) -> Result<Region> {
        let active = self.active()?;
        match TakenNote::take(descriptor)? {
            // The note itself says whether the memory is open: it has no other descriptor here.
            Ok(note) => {
                let memory = Allocation::open(active.primary(), note, bytes)?;
                self.region(active, memory, bytes, (None, None))
            }
            Err(descriptor) => {
                self.check_exports()?;
                let memory = Allocation::import(active.primary(), &descriptor, bytes, active.service())?;
                self.region(active, memory, bytes, (Some(descriptor), None))
            }
        }
    }

    fn has_descriptors(&self) -> bool {
        self.exports
    }

    fn locate(&self, address: u64) -> Option<Home> {
        // An address that cannot be asked about is nobody's.
        locate(address).unwrap_or(None).filter(|home| *home == self.home())
    }

    /// Threads get pieces of memory that is pinned as a whole.
    fn memory_of_host(&self, bytes: usize, sharing: Sharing) -> Result<HostRegion> {
        match sharing {
            Sharing::Threads => self.driver.pins().piece(bytes),
            Sharing::Processes | Sharing::ProcessesByHandle | Sharing::Hosts => {
                HostMemory.allocate_host(bytes, sharing)
            }
        }
    }

    /// Waits for kernels that run, unless a GPU of this process works in the memory already, or in that of which it is
    /// a piece.
    fn take_in(&self, memory: &HostRegion) -> Result<Region> {
        let active = self.active()?;
        let bytes = memory.bytes();
        let memory = Allocation::of_host(self.driver, active.primary(), memory)?;
        self.region(active, memory, bytes, (None, None))
    }
}

impl DeviceNeighbours for Cuda {
    fn identity(&self) -> DeviceIdentity {
        DeviceIdentity(self.uuid.0)
    }

    /// Of a GPU that this process does not see NVML tells; without NVML only the import does.
    fn reaches(&self, other: DeviceIdentity) -> Result<std::result::Result<(), String>> {
        match gpus()?.iter().find(|gpu| gpu.identity() == other) {
            Some(seen) if seen.device == self.device => Ok(Ok(())),
            Some(seen) => Primary::can_reach(self.driver, self.device, seen.device),
            None if nvml::reaches(self.uuid.0, other.0) == Some(false) => {
                Ok(Err(format!("no peer access between {} and {}, says NVML", self.uuid, Uuid(other.0))))
            }
            None => Ok(Ok(())),
        }
    }

    /// NVLinks, as NVML says.
    fn is_linked(&self, other: DeviceIdentity) -> bool {
        nvml::are_linked(self.uuid.0, other.0) == Some(true)
    }

    fn capability(&self) -> Option<u32> {
        let (major, minor) = self.capability;
        u32::try_from(major * 10 + minor).ok()
    }

    /// Any path stores a word of LL as a whole. A line of LL128 arrives whole in the GPU's own memory and by NVLink.
    fn takes(&self, protocol: Protocol, other: DeviceIdentity) -> std::result::Result<(), String> {
        if protocol != Protocol::LowLatency128 || other == self.identity() || self.is_linked(other) {
            return Ok(());
        }
        Err(format!("no NVLink between {} and {}, or NVML does not say", self.uuid, Uuid(other.0)))
    }
}

impl Device for Cuda {
    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(queue::StreamQueue::new(self.active()?, self.home())?))
    }

    /// Processes take turns on a GPU: one that polls for another's work may use up its turn each time.
    fn runs_processes_together(&self) -> bool {
        false
    }

    fn page_for(&self, reached: &[Home], beside: &[Home]) -> Result<StatusPage> {
        let active = self.active()?;
        self.work_with(&active, (reached, beside))?;
        active.polling()?.seat(&active)
    }

    fn fabric_memory(&self) -> Option<&dyn FabricMemory> {
        Some(self)
    }

    fn program_memory(&self) -> Option<&dyn ProgramMemory> {
        Some(self)
    }

    fn nic_memory(&self) -> Option<&dyn NicReachable> {
        Some(self)
    }

    fn led_device(&self) -> Option<&dyn LedDevice> {
        Some(self)
    }
}

impl FabricMemory for Cuda {
    /// The clique is NVML's word.
    fn fabric_clique(&self) -> std::result::Result<FabricClique, String> {
        if !self.fabric || !self.exports {
            return Err(format!("the memory of {} has no fabric handles", self.uuid));
        }
        let clique = nvml::clique_of(self.uuid.0);
        clique.ok_or_else(|| format!("{} is in no NVLink clique of several hosts, says NVML", self.uuid))
    }

    fn fabric_handle(&self, region: &Region) -> Result<FabricHandle> {
        let handle = region.keep().fabric_handle().filter(|_| region.home() == self.home());
        let Some(handle) = handle else { return Err(self.without_fabric(region)) };
        Ok(handle)
    }

    fn import_fabric(&self, handle: &FabricHandle, bytes: usize) -> Result<Region> {
        let active = self.active()?;
        self.check_exports()?;
        let memory = Allocation::import_fabric(active.primary(), handle, bytes, active.service())?;
        self.region(active, memory, bytes, (None, None))
    }
}

impl ProgramMemory for Cuda {
    fn adopt(&self, address: u64, bytes: usize) -> Result<Region> {
        lent::adopt(self.active()?, self.home(), (address, bytes))
    }

    fn is_still_there(&self, adopted: &Region) -> Result<bool> {
        lent::is_still_there(&*self.active()?, adopted)
    }

    fn lendable(
        &self,
        memory: &Region,
        visitors: &[Home],
        elsewhere: bool,
    ) -> Result<std::result::Result<Lendable, String>> {
        let device = |gpu: &&Cuda| visitors.contains(&gpu.home());
        let visitors: Vec<CUdevice> = gpus()?.iter().filter(device).map(|gpu| gpu.device).collect();
        lent::lendable(&self.active()?, memory, (&visitors, elsewhere))
    }

    fn joint(&self, bytes: usize) -> Result<Box<dyn Joint + '_>> {
        let active = self.active()?;
        self.check_exports()?;
        let joined = JoinedMemory::new(active.primary(), bytes)?;
        Ok(Box::new(Joining { gpu: self, active, joined }))
    }
}

impl NicReachable for Cuda {
    fn nic_ways(&self) -> std::result::Result<NicWays, String> {
        match self.nics {
            NicWays { dma_buf: false, address: false } => {
                Err(format!("the driver lets no NIC reach mapped memory of GPU {} ({})", self.device, self.name))
            }
            ways if self.maps => Ok(ways),
            NicWays { .. } => Err(format!("the driver maps no memory of GPU {} ({})", self.device, self.name)),
        }
    }

    fn dma_buf(&self, region: &Region) -> Result<DmaBuf> {
        nic_memory::dma_buf(self.driver, self.active()?.primary(), region)
    }
}

impl LedDevice for Cuda {
    fn page_across(
        &self,
        others: (&[Home], &[Home]),
        pages: (&HostRegion, &Region),
        ranks: &DeviceRanks,
    ) -> Result<StatusPage> {
        let active = self.active()?;
        self.work_with(&active, others)?;
        members::page(&active, pages, ranks)
    }
}

impl Cuda {
    /// Makes the memory of the GPUs `reached` reachable from here, and notes that kernels of this one work with those
    /// of all others.
    fn work_with(&self, active: &Arc<Active>, (reached, beside): (&[Home], &[Home])) -> Result<()> {
        for (peers, reaches) in [(reached, true), (beside, false)] {
            for peer in peers.iter().filter(|peer| **peer != self.home()) {
                let Home::Device(id) = *peer else { continue };
                let peer = of(id)?.active()?;
                if reaches {
                    active.primary().reach(peer.primary())?;
                }
                active.works_with(&peer);
            }
        }
        Ok(())
    }

    fn check_exports(&self) -> Result<()> {
        if self.exports {
            return Ok(());
        }
        let message =
            format!("GPU {} ({}) cannot take memory of other processes by descriptor", self.device, self.name);
        Err(Error::new(Kind::System, message))
    }
}

impl Cuda {
    /// Why memory that was to leave the host cannot.
    #[cold]
    fn without_fabric(&self, region: &Region) -> Error {
        let refusal = self.active().ok().and_then(|active| {
            let refusal = active.primary().fabric_refusal()?;
            Some(active.primary().error(refusal))
        });
        match refusal {
            Some(refusal) => {
                let message = refusal.message();
                Error::new(Kind::System, format!("{message}; it takes an IMEX channel (nvidia-caps-imex-channels)"))
            }
            None => Error::internal(format!("{region:?} cannot leave this host")),
        }
    }
}

/// Memory of a peer, allocation by allocation.
struct Joining<'a> {
    gpu: &'a Cuda,
    active: Arc<Active>,
    joined: JoinedMemory,
}

impl Joint for Joining<'_> {
    fn add(&mut self, part: &Region) -> Result<()> {
        let descriptor = part.keep().descriptor();
        let descriptor = descriptor.ok_or_else(|| Error::internal(format!("{part:?} was not imported")))?;
        self.joined.add(&descriptor, part.bytes())
    }

    fn finish(self: Box<Self>) -> Result<Region> {
        let Joining { gpu, active, joined } = *self;
        let bytes = joined.whole()?;
        gpu.region(active, Allocation::Joined(joined), bytes, (None, None))
    }
}

/// What keeps a region of GPU memory.
#[derive(Debug)]
struct Kept {
    /// `None` only while it is dropped.
    memory: Option<Allocation>,
    /// By which others map the memory; `None` while they cannot.
    descriptor: Mutex<Option<Arc<OwnedFd>>>,
    /// By which other hosts map it.
    fabric: Option<FabricHandle>,
    lending: Lending,
    active: Arc<Active>,
}

impl Kept {
    fn memory(&self) -> &Allocation {
        self.memory.as_ref().expect("there until it is dropped")
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.descriptor.lock()
    }
}

impl Keep for Kept {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.lock().clone()
    }

    fn fabric_handle(&self) -> Option<FabricHandle> {
        self.fabric
    }

    fn lend(&self, generation: Generation) -> bool {
        self.lending.lend(generation)
    }

    fn take_back(&self, generation: Generation) -> bool {
        self.lending.take_back(generation)
    }

    /// Other memory with the same content is mapped at the address. No kernel of this process works in it meanwhile.
    fn detach(&self) -> Result<()> {
        if self.fabric.is_some() {
            return Err(Error::new(Kind::System, "GPU memory that is shared with other hosts cannot be taken back"));
        }
        let mut descriptor = self.lock();
        if descriptor.is_none() {
            return Ok(());
        }
        self.lending.part();
        self.memory().replace(self.active.primary(), self.active.service())?;
        *descriptor = None;
        Ok(())
    }

    fn is_detached(&self) -> bool {
        self.lending.is_parted()
    }

    /// The memory that was put there can be shared as the first could.
    fn share_anew(&self) -> Result<Generation> {
        let mut descriptor = self.lock();
        if self.lending.is_parted() {
            // A change that failed before is made up for.
            if descriptor.is_some() {
                self.memory().replace(self.active.primary(), self.active.service())?;
            }
            *descriptor = Some(Arc::new(self.memory().export()?));
            self.lending.renew();
        }
        Ok(self.lending.generation())
    }

    /// The driver chooses the pages.
    fn prefer_huge_pages(&self) {}
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.active.retire(memory);
        }
    }
}
