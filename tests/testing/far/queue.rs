//! Queues with a thread each, events, and graphs.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;

use rsccl::internals::device::records::LaunchPart;
use rsccl::internals::device::{Average, CaptureId, DeviceId, Event, Home, Kernel, Pass, Place, Queue, Store};
use rsccl::{Error, Result};

use super::memory::Memory;
use super::programs;

/// The captures under way: for each device that captures and each of its queues, by number, the captured work in order.
static CAPTURES: Mutex<BTreeMap<u32, HashMap<u64, Captured>>> = Mutex::new(BTreeMap::new());

/// The captured work of one queue.
#[derive(Debug)]
pub(super) struct Captured {
    work: Vec<Work>,
    queue: Sender<Command>,
}

/// A queue of a device.
#[derive(Debug)]
pub(super) struct FarQueue {
    home: Home,
    number: u64,
    sender: Sender<Command>,
    thread: Option<JoinHandle<()>>,
    failure: Failure,
}

/// The reason why a queue has failed, if it has.
type Failure = Arc<Mutex<Option<String>>>;

/// A command for a queue's thread: the work, and how often it has run before.
type Command = (Work, u64);

#[derive(Debug, Clone)]
enum Work {
    Copy {
        from: Place,
        to: Place,
    },
    Fold {
        kernel: Kernel,
        sources: Vec<u64>,
        targets: Vec<u64>,
        raw: Option<usize>,
        count: usize,
        finish: bool,
        average: Average,
    },
    Launch(Vec<LaunchPart>),
    After(Arc<FarEvent>),
    Record(Arc<FarEvent>),
    Stop,
}

// SAFETY: places are plain addresses; the caller who put the work vouches for them until it is done.
unsafe impl Send for Work {}

/// A point in a queue.
#[derive(Debug)]
pub(super) struct FarEvent {
    /// How often its queue has reached this point.
    reached: Mutex<u64>,
    changed: Condvar,
    failure: Failure,
}

/// The events of the process by their addresses, for queues that are to wait for one.
static EVENTS: Mutex<Option<HashMap<usize, Weak<FarEvent>>>> = Mutex::new(None);
static NEXT: Mutex<u64> = Mutex::new(0);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(home: Home) -> u32 {
    match home {
        Home::Device(DeviceId(number)) => number,
        Home::Host => u32::MAX,
    }
}

impl FarQueue {
    pub(super) fn new(home: Home) -> FarQueue {
        let (sender, receiver) = channel();
        let failure = Failure::default();
        let seen = Arc::clone(&failure);
        let thread = std::thread::Builder::new().name("far queue".to_owned()).spawn(move || run(&receiver, &seen));
        let mut next = lock(&NEXT);
        *next += 1;
        let thread = Some(thread.expect("a thread"));
        FarQueue { home, number: *next, sender, thread, failure }
    }

    fn put(&self, work: Work) -> Result<()> {
        let sender = &self.sender;
        if let Some(captured) = lock(&CAPTURES).get_mut(&key(self.home)) {
            let captured = captured.entry(self.number);
            captured.or_insert_with(|| Captured { work: Vec::new(), queue: sender.clone() }).work.push(work);
            return Ok(());
        }
        sender.send((work, 0)).map_err(|_| Error::internal("the queue's thread is gone"))
    }

    fn reaches(&self, place: Place) -> Result<bool> {
        match place.home {
            Home::Host => Ok(true),
            home => Memory::follow(place.address.addr() as u64, place.bytes)
                .map(|(_, found)| found == home && home == self.home)
                .map_err(Error::invalid_argument),
        }
    }
}

impl Drop for FarQueue {
    fn drop(&mut self) {
        // A graph may keep the channel open, so closing it does not stop the thread. An error means that the thread has
        // gone.
        let _stopped = self.sender.send((Work::Stop, 0));
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

impl Queue for FarQueue {
    unsafe fn copy(&mut self, from: Place, to: Place) -> Result<()> {
        let homes = [from, to].iter().any(|place| place.home == self.home);
        if from.bytes != to.bytes || !homes || !self.reaches(from)? || !self.reaches(to)? {
            return Err(Error::invalid_argument(format!(
                "{} cannot copy {} bytes of {} to {} bytes of {}",
                self.home, from.bytes, from.home, to.bytes, to.home
            )));
        }
        self.put(Work::Copy { from, to })
    }

    unsafe fn fold(&mut self, kernel: &Kernel, pass: &Pass<'_>) -> Result<()> {
        let sources = pass.sources.iter().map(|source| source.addr() as u64).collect();
        let targets = pass.targets.iter().map(|target| target.addr() as u64).collect();
        let Pass { raw, count, finish, average, .. } = *pass;
        self.put(Work::Fold { kernel: *kernel, sources, targets, raw, count, finish, average })
    }

    unsafe fn launch(&mut self, parts: Vec<LaunchPart>) -> Result<Arc<dyn Event>> {
        self.put(Work::Launch(parts))?;
        self.record()
    }

    fn after(&mut self, event: &Arc<dyn Event>) -> Result<()> {
        let address = Arc::as_ptr(event).cast::<()>().addr();
        let known = lock(&EVENTS).as_ref().and_then(|events| events.get(&address)?.upgrade());
        let known = known.ok_or_else(|| Error::internal("an event of another kind of device"))?;
        self.put(Work::After(known))
    }

    /// All devices that capture at one time do so for one graph.
    fn capture(&mut self) -> Result<Option<CaptureId>> {
        Ok(lock(&CAPTURES).contains_key(&key(self.home)).then_some(CaptureId(0)))
    }

    fn record(&mut self) -> Result<Arc<dyn Event>> {
        let failure = Arc::clone(&self.failure);
        let event = Arc::new(FarEvent { reached: Mutex::new(0), changed: Condvar::new(), failure });
        let mut events = lock(&EVENTS);
        let events = events.get_or_insert_default();
        events.retain(|_, event| event.strong_count() > 0);
        events.insert(Arc::as_ptr(&event).addr(), Arc::downgrade(&event));
        self.put(Work::Record(Arc::clone(&event)))?;
        Ok(event)
    }
}

impl Event for FarEvent {
    fn is_done(&self) -> Result<bool> {
        // Not held while `reached` is locked: `Work::After` locks the two the other way round.
        let failure = lock(&self.failure).clone();
        match failure {
            Some(why) => Err(Error::new(rsccl::error::Kind::System, format!("the device has failed: {why}"))),
            None => Ok(*lock(&self.reached) > 0),
        }
    }
}

/// What the queues of a device have captured.
#[derive(Debug)]
pub struct FarGraph {
    queues: Vec<Captured>,
    runs: u64,
}

impl FarGraph {
    /// Begins to capture what is put into the queues of these devices.
    pub fn begin(devices: Range<u32>) {
        devices.for_each(|number| _ = lock(&CAPTURES).insert(number, HashMap::new()));
    }

    /// Whether something has been put into a queue of the device since.
    pub fn has_captured(device: u32) -> bool {
        lock(&CAPTURES).get(&device).is_some_and(|queues| !queues.is_empty())
    }

    /// Ends it.
    pub fn end(devices: Range<u32>) -> FarGraph {
        let captured = devices.flat_map(|number| lock(&CAPTURES).remove(&number).expect("begun"));
        FarGraph { queues: captured.map(|(_, queue)| queue).collect(), runs: 0 }
    }

    /// Puts all of it into its queues once more.
    pub fn launch(&mut self) {
        for Captured { work, queue } in &self.queues {
            work.iter().for_each(|work| queue.send((work.clone(), self.runs)).expect("the queue lives"));
        }
        self.runs += 1;
    }
}

/// The thread of a queue.
fn run(commands: &Receiver<Command>, failure: &Failure) {
    while let Ok((work, runs)) = commands.recv() {
        if matches!(work, Work::Stop) {
            return;
        }
        // A failed queue still reaches its events, so that no other queue waits for ever.
        let failed = lock(failure).is_some();
        if failed && !matches!(work, Work::Record(_)) {
            continue;
        }
        if let Err(why) = perform(work, runs) {
            *lock(failure) = Some(why);
        }
    }
}

fn perform(work: Work, runs: u64) -> std::result::Result<(), String> {
    match work {
        Work::Copy { from, to } => {
            let pointer = |place: Place| match place.home {
                Home::Host => Ok(place.address),
                Home::Device(_) => Memory::follow(place.address.addr() as u64, place.bytes).map(|(pointer, _)| pointer),
            };
            // SAFETY: whoever put the work vouched for the places.
            unsafe { std::ptr::copy(pointer(from)?.cast_const(), pointer(to)?, to.bytes) };
        }
        Work::Fold { kernel, sources, targets, raw, count, finish, average } => {
            let follow = |address: &u64| Memory::follow(*address, 1).map(|(pointer, _)| pointer);
            let sources: Vec<*mut u8> = sources.iter().map(follow).collect::<std::result::Result<_, _>>()?;
            let sources: Vec<*const u8> = sources.into_iter().map(<*mut u8>::cast_const).collect();
            let targets: Vec<*mut u8> = targets.iter().map(follow).collect::<std::result::Result<_, _>>()?;
            let pass = Pass { sources: &sources, raw, targets: &targets, count, finish, average, store: Store::Cached };
            // SAFETY: whoever put the work vouched for the memory until it is done.
            unsafe { kernel.run(&pass) };
        }
        Work::Launch(parts) => programs::run(&parts)?,
        Work::After(event) => {
            let mut reached = lock(&event.reached);
            while *reached <= runs && lock(&event.failure).is_none() {
                let waited = event.changed.wait_timeout(reached, LOOK_EVERY);
                reached = waited.map_or_else(|error| error.into_inner().0, |(reached, _)| reached);
            }
        }
        Work::Stop => {}
        Work::Record(event) => {
            *lock(&event.reached) += 1;
            event.changed.notify_all();
        }
    }
    Ok(())
}

/// How often a queue that waits for an event of another queue checks whether that queue has failed.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(20);
