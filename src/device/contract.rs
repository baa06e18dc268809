//! The contract of devices as tests, for host memory, for a device whose memory the processor cannot touch, and for the GPUs
//! that this process has: `device/cuda/tests.rs` runs them on virtual ones.
//!
//! [`Far`] is that device. Its addresses are no addresses of this machine: whoever follows one without its queue is killed by
//! the processor. Its queues do one piece of work each time an event is asked, so nothing is done before somebody looks.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::time::Duration;

use crate::device::{Device, DeviceId, Event, Generation, Home, HostMemory, Keep, Kernel, Pass, Place, Queue};
use crate::device::{Region, Sharing, Store};
use crate::error::{Error, Kind, Result};
use crate::sync::Deadline;
use crate::sync::primitive::{Arc, AtomicU64, Mutex, Ordering};
use crate::sys::clock;
use crate::sys::memory::SharedMemory;
use crate::types::{DataType, ReduceOp};

/// A device whose memory the host cannot touch.
#[derive(Debug)]
struct Far {
    number: u32,
    memory: Arc<Mutex<Vec<Arc<Block>>>>,
}

/// One allocation of [`Far`]: what its addresses stand for.
#[derive(Debug)]
struct Block {
    address: u64,
    behind: SharedMemory,
}

impl Far {
    fn new(number: u32) -> Far {
        Far { number, memory: Arc::default() }
    }

    fn region(&self, behind: SharedMemory) -> Result<Region> {
        let (address, bytes) = (NEXT_ADDRESS.fetch_add(1 << 32, Ordering::Relaxed), behind.len());
        let block = Arc::new(Block { address, behind });
        self.memory.lock().unwrap().push(Arc::clone(&block));
        let pointer = std::ptr::without_provenance_mut(usize::try_from(address).unwrap());
        // SAFETY: it is memory of the device alone, which the block keeps.
        Ok(unsafe { Region::new(NonNull::new(pointer).unwrap(), bytes, self.home(), block) })
    }

    /// What `address` stands for.
    fn behind(memory: &Mutex<Vec<Arc<Block>>>, address: u64, bytes: usize) -> *mut u8 {
        let memory = memory.lock().unwrap();
        let block =
            memory.iter().find(|block| (block.address..block.address + block.behind.len() as u64).contains(&address));
        let block = block.expect("the address is the device's");
        block.behind.at(usize::try_from(address - block.address).unwrap(), bytes).as_ptr()
    }
}

/// The first address that no processor with 48 to 57 bits of address follows.
static NEXT_ADDRESS: AtomicU64 = AtomicU64::new(0x5ea1_0000_0000_0000);

impl Keep for Block {
    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.behind.descriptor()
    }
    fn lend(&self, generation: Generation) -> bool {
        self.behind.lend(generation)
    }
    fn take_back(&self, generation: Generation) -> bool {
        self.behind.take_back(generation)
    }
    fn detach(&self) -> Result<()> {
        self.behind.detach()
    }
    fn is_detached(&self) -> bool {
        self.behind.is_detached()
    }
    fn share_anew(&self) -> Result<Generation> {
        self.behind.share_anew()
    }
    fn prefer_huge_pages(&self) {}
}

impl Device for Far {
    fn home(&self) -> Home {
        Home::Device(DeviceId(self.number))
    }
    fn allocate(&self, bytes: usize, sharing: Sharing) -> Result<Region> {
        self.region(match sharing {
            Sharing::Threads => SharedMemory::anonymous(bytes)?,
            Sharing::Processes => SharedMemory::memfd(bytes)?,
        })
    }
    fn export(&self, region: &Region) -> Result<OwnedFd> {
        let descriptor = region.keep().descriptor().filter(|_| region.home() == self.home());
        descriptor.ok_or_else(|| Error::internal("not to be shared")).map(|found| found.try_clone().unwrap())
    }
    fn import(&self, descriptor: OwnedFd, bytes: usize) -> Result<Region> {
        self.region(SharedMemory::from_peer(descriptor, bytes)?)
    }
    fn locate(&self, address: u64) -> Option<Home> {
        let memory = self.memory.lock().unwrap();
        let mut ranges = memory.iter().map(|block| block.address..block.address + block.behind.len() as u64);
        ranges.any(|range| range.contains(&address)).then(|| self.home())
    }
    fn queue(&self) -> Result<Box<dyn Queue>> {
        Ok(Box::new(Later { home: self.home(), memory: Arc::clone(&self.memory), work: Arc::default(), put: 0 }))
    }
}

/// A queue that works only while an event is asked.
#[derive(Debug)]
struct Later {
    home: Home,
    memory: Arc<Mutex<Vec<Arc<Block>>>>,
    work: Arc<Mutex<Work>>,
    put: u64,
}

#[derive(Debug, Default)]
struct Work {
    waiting: VecDeque<Piece>,
    done: u64,
}

#[derive(Debug)]
enum Piece {
    Copy { from: *const u8, into: *mut u8, bytes: usize },
    Fold { kernel: Kernel, sources: Vec<*const u8>, targets: Vec<*mut u8>, count: usize },
    After(Arc<dyn Event>),
}

// SAFETY: the pointers lead into memory that the tests keep until the work is done.
unsafe impl Send for Piece {}

impl Later {
    fn follow(&self, place: Place) -> *mut u8 {
        match place.home {
            Home::Host => place.address,
            Home::Device(_) => Far::behind(&self.memory, place.address.addr() as u64, place.bytes),
        }
    }

    fn put(&mut self, piece: Piece) {
        self.work.lock().unwrap().waiting.push_back(piece);
        self.put += 1;
    }
}

impl Queue for Later {
    unsafe fn copy(&mut self, from: Place, to: Place) -> Result<()> {
        let fits = [from.home, to.home].iter().all(|home| [Home::Host, self.home].contains(home));
        if !fits || from.bytes != to.bytes {
            return Err(Error::invalid_argument("places of other devices, or of different lengths"));
        }
        self.put(Piece::Copy { from: self.follow(from).cast_const(), into: self.follow(to), bytes: to.bytes });
        Ok(())
    }

    unsafe fn fold(&mut self, kernel: &Kernel, pass: &Pass<'_>) -> Result<()> {
        let follow = |address: u64| Far::behind(&self.memory, address, 1);
        let sources = pass.sources.iter().map(|source| follow(source.addr() as u64).cast_const()).collect();
        let targets = pass.targets.iter().map(|target| follow(target.addr() as u64)).collect();
        self.put(Piece::Fold { kernel: *kernel, sources, targets, count: pass.count });
        Ok(())
    }

    fn after(&mut self, event: &Arc<dyn Event>) -> Result<()> {
        self.put(Piece::After(Arc::clone(event)));
        Ok(())
    }

    fn record(&mut self) -> Result<Arc<dyn Event>> {
        Ok(Arc::new(Reached { work: Arc::clone(&self.work), point: self.put }))
    }
}

#[derive(Debug)]
struct Reached {
    work: Arc<Mutex<Work>>,
    point: u64,
}

impl Event for Reached {
    fn is_done(&self) -> Result<bool> {
        let mut work = self.work.lock().unwrap();
        if work.done >= self.point {
            return Ok(true);
        }
        match work.waiting.pop_front() {
            // SAFETY: whoever put the work vouched for the memory until it is done.
            Some(Piece::Copy { from, into, bytes }) => unsafe { std::ptr::copy_nonoverlapping(from, into, bytes) },
            Some(Piece::Fold { kernel, sources, targets, count }) => {
                let (sources, targets) = (&sources[..], &targets[..]);
                let pass = Pass { sources, raw: None, targets, count, finish: true, store: Store::Cached };
                // SAFETY: as above.
                unsafe { kernel.run(&pass) };
            }
            Some(Piece::After(event)) if event.is_done()? => {}
            Some(after @ Piece::After(_)) => {
                work.waiting.push_front(after);
                return Ok(false);
            }
            None => return Ok(true),
        }
        work.done += 1;
        Ok(work.done >= self.point)
    }
}

/// Asks `event` until it is done.
fn finish(event: &dyn Event) {
    let deadline = Deadline::after(LONGEST);
    while !event.is_done().unwrap() {
        assert!(!deadline.passed(clock::now()), "a queue moves whenever its event is asked");
        std::thread::yield_now();
    }
}

/// A few copies and folds of some KiB take microseconds; a busy machine's scheduler takes more.
const LONGEST: Duration = Duration::from_secs(20);

fn whole(region: &Region) -> Place {
    Place { address: region.base().as_ptr(), bytes: region.bytes(), home: region.home() }
}

fn host(values: &mut [u32]) -> Place {
    Place::on_host(values.as_mut_ptr().cast(), size_of_val(values))
}

fn write(device: &dyn Device, region: &Region, value: u32) {
    let mut values = vec![value; region.bytes() / 4];
    let mut queue = device.queue().unwrap();
    // SAFETY: both have as many bytes, and live until the event is done.
    unsafe { queue.copy(host(&mut values), whole(region)).unwrap() };
    finish(&*queue.record().unwrap());
}

fn read(device: &dyn Device, region: &Region) -> Vec<u32> {
    let mut values = vec![u32::MAX; region.bytes() / 4];
    let mut queue = device.queue().unwrap();
    // SAFETY: both have as many bytes, and live until the event is done.
    unsafe { queue.copy(whole(region), host(&mut values)).unwrap() };
    finish(&*queue.record().unwrap());
    values
}

fn devices() -> Vec<Box<dyn Device>> {
    #[cfg_attr(not(feature = "cuda"), expect(unused_mut, reason = "the others are optional"))]
    let mut devices: Vec<Box<dyn Device>> = vec![Box::new(HostMemory), Box::new(Far::new(ABSENT))];
    #[cfg(feature = "cuda")]
    devices.extend(crate::device::cuda::tests::boxed());
    devices
}

/// More than a host has GPUs.
const ABSENT: u32 = 1007;

#[test]
fn memory_is_zeroed_and_lives_where_it_was_made() {
    for device in devices() {
        for sharing in [Sharing::Threads, Sharing::Processes] {
            let region = device.allocate(4096, sharing).unwrap();
            assert_eq!((region.bytes(), region.home()), (4096, device.home()));
            assert_eq!(read(&*device, &region), [0; 1024]);
            assert_eq!(device.locate(region.base().addr().get() as u64), Some(device.home()));
            assert_eq!(region.on_host().is_some(), device.home() == Home::Host);
        }
    }
    assert_eq!(Far::new(ABSENT).locate(NEXT_ADDRESS.load(Ordering::Relaxed)), None);
}

#[test]
fn what_is_exported_is_the_same_memory_where_it_is_imported() {
    for device in devices() {
        let mine = device.allocate(8192, Sharing::Processes).unwrap();
        let theirs = device.import(device.export(&mine).unwrap(), 8192).unwrap();
        assert_ne!(mine.base(), theirs.base());
        write(&*device, &mine, 17);
        assert_eq!(read(&*device, &theirs), [17; 2048]);
        drop(mine);
        assert_eq!(read(&*device, &theirs), [17; 2048], "an import keeps the memory");
        let other = device.allocate(8192, Sharing::Processes).unwrap();
        let wrong = device.import(device.export(&other).unwrap(), 4096).unwrap_err();
        assert_eq!(wrong.kind(), Kind::Remote);
        assert!(device.export(&device.allocate(4096, Sharing::Threads).unwrap()).is_err());
    }
}

#[test]
fn an_owner_takes_its_memory_back_with_its_content() {
    for device in devices() {
        let mine = device.allocate(4096, Sharing::Processes).unwrap();
        let generation = mine.keep().share_anew().unwrap();
        let theirs = device.import(device.export(&mine).unwrap(), 4096).unwrap();
        write(&*device, &mine, 5);
        assert!(mine.keep().lend(generation));
        mine.keep().detach().unwrap();
        write(&*device, &theirs, 6);
        assert_eq!(read(&*device, &mine), [5; 1024]);
        assert!(!mine.keep().take_back(generation) && mine.keep().is_detached());
        assert!(mine.keep().share_anew().unwrap() != generation && !mine.keep().is_detached());
    }
}

#[test]
fn a_queue_folds_and_keeps_its_order_and_that_of_events() {
    let kernel = Kernel::reduce(DataType::U32, ReduceOp::Sum, 2).unwrap();
    for device in devices() {
        let regions: Vec<Region> = (0..3).map(|_| device.allocate(4096, Sharing::Threads).unwrap()).collect();
        let (mut first, mut second) = (vec![30; 1024], vec![12; 1024]);
        let (mut one, mut two) = (device.queue().unwrap(), device.queue().unwrap());
        // SAFETY: both have as many bytes, and live until the event is done.
        unsafe { one.copy(host(&mut first), whole(&regions[0])).unwrap() };
        // SAFETY: as above.
        unsafe { one.copy(host(&mut second), whole(&regions[1])).unwrap() };
        two.after(&one.record().unwrap()).unwrap();
        let sources = [0, 1].map(|at: usize| regions[at].base().as_ptr().cast_const());
        let targets = [regions[2].base().as_ptr()];
        let pass =
            Pass { sources: &sources, raw: None, targets: &targets, count: 1024, finish: true, store: Store::Cached };
        // SAFETY: each region has 1024 elements, and lives until the event is done.
        unsafe { two.fold(&kernel, &pass).unwrap() };
        finish(&*two.record().unwrap());
        assert_eq!(read(&*device, &regions[2]), [42; 1024]);
    }
}

#[test]
fn places_that_a_queue_cannot_reach_are_refused() {
    let far = Far::new(ABSENT + 1).allocate(4096, Sharing::Threads).unwrap();
    let mut values = [0; 1024];
    for device in devices() {
        let mut queue = device.queue().unwrap();
        // SAFETY: it is refused.
        let error = unsafe { queue.copy(whole(&far), host(&mut values)) }.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        // SAFETY: it is refused.
        let error = unsafe { queue.copy(host(&mut [0; 5]), host(&mut values)) }.unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
    }
    let error = crate::device::of(far.home()).unwrap_err();
    assert!(error.to_string().contains("the memory of device 1008"), "{error}");
}
