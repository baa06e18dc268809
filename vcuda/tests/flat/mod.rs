//! A memory without a driver, for tests of the interpreter: allocations of a few GPUs and of the host, all accessible.

#![allow(dead_code, reason = "each test program uses its part")]

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use vcuda::ptx::Module;
use vcuda::simt::{
    Block, Extent, GlobalMemory, GpuStores, Grid, Home, KernelFault, LaunchConfig, MemoryFault, ModuleGlobals,
    SHADOW_BYTES_PER_16, Step,
};

struct Allocation {
    start: u64,
    bytes: usize,
    /// None: in host memory.
    gpu: Option<u32>,
    /// Offsets in the region.
    data: usize,
    shadow: usize,
    defined: usize,
    ll128: bool,
    freed: bool,
}

/// Memory of a machine of several GPUs. All of it lies in one region that several processes can map: a process that makes
/// the same allocations in the same order finds the same memory at the same addresses.
pub(crate) struct Flat {
    allocations: Mutex<Vec<Allocation>>,
    region: Region,
    /// Whether extents have shadow and definedness.
    pub(crate) watched: bool,
}

/// Where the first allocation lies.
const FIRST: u64 = 0x7000_0000_0000;
/// Bytes of a region; pages that nobody touches cost nothing.
const REGION: usize = 64 << 20;
/// Bytes in front of the first allocation: the counters of changes and of generations.
const HEAD: usize = 4096;

/// Mapped memory of a memfd.
struct Region {
    file: File,
    base: *mut u8,
}

// SAFETY: the region is plain memory; the interpreter uses it through atomics, and the tests while no kernel runs.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    fn new() -> Self {
        // SAFETY: the name ends with a zero byte; no other pointer.
        let descriptor = unsafe { libc::memfd_create(c"vcuda-flat".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(descriptor >= 0, "no memfd: {}", std::io::Error::last_os_error());
        // SAFETY: a fresh descriptor that nobody else owns.
        let file = unsafe { File::from_raw_fd(descriptor) };
        file.set_len(REGION as u64).expect("a sparse file has any size");
        Self::map(file)
    }

    fn map(file: File) -> Self {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping of the file's whole length, at a place that the system chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), REGION, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert!(base != libc::MAP_FAILED, "no mapping: {}", std::io::Error::last_os_error());
        Self { file, base: base.cast() }
    }

    fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < REGION, "the region is too small for what the test allocates");
        self.base.wrapping_add(offset)
    }

    fn counter(&self, index: usize) -> &AtomicU64 {
        // SAFETY: aligned, inside the region's head, and used through atomics alone; it lives as long as the mapping.
        unsafe { AtomicU64::from_ptr(self.at(8 * index).cast()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping made above; nothing points into it any more, as all blocks hold the `Flat`.
        let code = unsafe { libc::munmap(self.base.cast(), REGION) };
        assert_eq!(code, 0, "the region was mapped");
    }
}

impl Flat {
    pub(crate) fn new(watched: bool) -> Arc<Self> {
        Arc::new(Self { allocations: Mutex::default(), region: Region::new(), watched })
    }

    /// The path by which another process opens the region.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.region.file.as_raw_fd())
    }

    /// The memory of another process, by [`path`](Self::path), without its allocations.
    pub(crate) fn opened(path: &str) -> Arc<Self> {
        let file = File::options().read(true).write(true).open(path).expect("the region of the test's process");
        Arc::new(Self { allocations: Mutex::default(), region: Region::map(file), watched: true })
    }

    pub(crate) fn allocate(&self, gpu: Option<u32>, bytes: usize) -> u64 {
        self.allocate_on(gpu, bytes, false)
    }

    pub(crate) fn allocate_on(&self, gpu: Option<u32>, bytes: usize, ll128: bool) -> u64 {
        let mut allocations = self.allocations.lock().expect("no holder panics");
        let (start, data) = allocations.last().map_or((FIRST, HEAD), |last| {
            let end = last.defined + last.bytes.div_ceil(128) * 16;
            ((last.start + last.bytes as u64 + 4096).next_multiple_of(512), end.next_multiple_of(128))
        });
        let lines = bytes.div_ceil(128);
        let shadow = data + lines * 128;
        let defined = shadow + lines * 8 * SHADOW_BYTES_PER_16;
        // The last byte must be inside.
        self.region.at(defined + lines * 16);
        allocations.push(Allocation { start, bytes, gpu, data, shadow, defined, ll128, freed: false });
        self.region.counter(1).fetch_add(1, Ordering::AcqRel);
        start
    }

    pub(crate) fn free(&self, address: u64) {
        let mut allocations = self.allocations.lock().expect("no holder panics");
        let found = allocations.iter_mut().find(|allocation| allocation.start == address).expect("an allocation");
        found.freed = true;
        self.region.counter(1).fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        for (at, byte) in (address..).zip(bytes) {
            let extent = self.extent(0, at).expect("mapped");
            let offset = usize::try_from(at - extent.start).expect("small");
            let data = extent.data.wrapping_add(offset);
            // SAFETY: the extent holds the offset, and no kernel runs meanwhile.
            unsafe { data.write(*byte) };
            if !extent.defined.is_null() {
                let flags = extent.defined.wrapping_add(offset / 8);
                // SAFETY: there is one bit for each byte of the extent.
                let old = unsafe { flags.read() };
                // SAFETY: as above.
                unsafe { flags.write(old | 1 << (offset % 8)) };
            }
        }
        self.bump();
    }

    pub(crate) fn read(&self, address: u64, bytes: usize) -> Vec<u8> {
        let one = |at| {
            let extent = self.extent(0, at).expect("mapped");
            let data = extent.data.wrapping_add(usize::try_from(at - extent.start).expect("small"));
            // SAFETY: the extent holds the address, and no kernel runs meanwhile.
            unsafe { data.read() }
        };
        (address..).take(bytes).map(one).collect()
    }

    pub(crate) fn write_words(&self, address: u64, words: &[u32]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(address, &bytes);
    }

    pub(crate) fn words(&self, address: u64, count: usize) -> Vec<u32> {
        self.read(address, 4 * count).chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four"))).collect()
    }
}

impl GlobalMemory for Flat {
    fn extent(&self, gpu: u32, address: u64) -> Result<Extent, MemoryFault> {
        let allocations = self.allocations.lock().expect("no holder panics");
        let near = |allocation: &&Allocation| {
            address >= allocation.start && address < allocation.start + allocation.bytes as u64 + 512
        };
        let found = allocations.iter().find(near).ok_or(MemoryFault::Unmapped)?;
        let (start, bytes) = (found.start, found.bytes as u64);
        if address >= start + bytes {
            return Err(MemoryFault::RedZone { start, bytes });
        }
        if found.freed {
            return Err(MemoryFault::Freed { start, bytes });
        }
        let home = match found.gpu {
            None => Home::Host,
            Some(owner) if owner == gpu => Home::ThisGpu,
            Some(owner) => Home::Peer(owner),
        };
        let null = std::ptr::null_mut();
        Ok(Extent {
            start,
            end: start + bytes,
            data: self.region.at(found.data),
            shadow: if self.watched { self.region.at(found.shadow) } else { null },
            defined: if self.watched { self.region.at(found.defined) } else { null },
            home,
            writable: true,
            ll128: found.ll128,
        })
    }

    fn generation(&self) -> u64 {
        self.region.counter(1).load(Ordering::Acquire) + 1
    }

    fn changes(&self) -> u64 {
        self.region.counter(0).load(Ordering::Acquire) + 1
    }

    fn bump(&self) -> u64 {
        self.region.counter(0).fetch_add(1, Ordering::AcqRel) + 2
    }
}

/// Parameters one after the other, each aligned to its size.
#[derive(Default)]
pub(crate) struct Parameters(Vec<u8>);

impl Parameters {
    pub(crate) fn word(mut self, value: u32) -> Self {
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn long(mut self, value: u64) -> Self {
        self.0.resize(self.0.len().next_multiple_of(8), 0);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// A launch on GPU 0 of one block of `threads`, strong and with bounds checks only.
pub(crate) fn config(grid: u32, threads: u32, parameters: Parameters) -> LaunchConfig {
    LaunchConfig {
        grid: [grid, 1, 1],
        block: [threads, 1, 1],
        dynamic_shared_bytes: 0,
        stack_bytes: 1024,
        parameters: parameters.bytes(),
        cooperative: false,
        gpu: 0,
        sm_count: 4,
        seed: 1,
        weak: false,
        checks: false,
        mutation: None,
    }
}

/// Allocates and fills a module's variables.
pub(crate) fn globals(module: &Module, memory: &Flat) -> Arc<ModuleGlobals> {
    let mut globals = ModuleGlobals::default();
    for global in &module.globals {
        let address = memory.allocate(Some(0), usize::try_from(global.bytes.max(1)).expect("small"));
        let mut first = vec![0; usize::try_from(global.bytes).expect("small")];
        first[..global.init.len()].copy_from_slice(&global.init);
        memory.write(address, &first);
        globals.addresses.insert(global.name.clone(), address);
    }
    Arc::new(globals)
}

/// The blocks of a launch.
pub(crate) fn blocks(
    module: &Module,
    kernel: &str,
    config: LaunchConfig,
    memory: &Arc<Flat>,
    stores: &Arc<GpuStores>,
) -> Vec<Block> {
    let function = Arc::clone(module.function(kernel).unwrap_or_else(|| panic!("no kernel {kernel}")));
    let [x, y, z] = config.grid;
    let globals = globals(module, memory);
    let grid = Grid::new(function, &globals, config, Arc::clone(memory) as Arc<dyn GlobalMemory>, Arc::clone(stores));
    let grid = Arc::new(grid.unwrap_or_else(|error| panic!("{error}")));
    let mut blocks = Vec::new();
    for index in 0..x * y * z {
        blocks.push(grid.block([index % x, index / x % y, index / x / y], index % 4));
    }
    blocks
}

/// Steps blocks in turns until all are done, or one does wrong, or `rounds` are over.
pub(crate) fn run(mut blocks: Vec<Block>, rounds: usize) -> Result<(), KernelFault> {
    for _ in 0..rounds {
        let mut index = 0;
        while index < blocks.len() {
            match blocks[index].step(64) {
                Step::Done => drop(blocks.swap_remove(index)),
                Step::Fault(fault) => return Err(fault),
                Step::Ran | Step::Sleeping { .. } => index += 1,
            }
        }
        if blocks.is_empty() {
            return Ok(());
        }
    }
    panic!("{} blocks are not done after {rounds} rounds", blocks.len());
}

/// Launches a kernel and runs it to its end.
pub(crate) fn launch(
    module: &Module,
    kernel: &str,
    config: LaunchConfig,
    memory: &Arc<Flat>,
) -> Result<(), KernelFault> {
    run(blocks(module, kernel, config, memory, &Arc::new(GpuStores::new())), 1_000_000)
}
