//! What runs when: hardware queues, resident blocks, time slices between processes, and the report of a deadlock.
//!
//! Work goes from streams into the few hardware queues of its context, in the order of the calls. The head of a queue
//! starts once all that it depends on is done; what cannot start holds up everything behind it, of other streams too.
//! A kernel that has started waits for room on the multiprocessors, in order; its blocks, once resident, stay until they
//! are done. On a GPU that several processes use, kernels of one of them run at a time.
//!
//! [`Engine`] is the process's part of this: a lock over the [`World`], threads that run blocks and copies, and waits of
//! the program's threads, which end with an error when nothing on the machine can move ([`deadlock`]).

mod deadlock;
mod order;
mod residency;
mod waits;
mod work;
mod world;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use order::{Memop, Work};
pub use residency::{Need, Occupancy};
pub use waits::{Reason, current_call, enter_call};
pub(crate) use work::call_host_function;
pub use work::{Copy, Launch, is_in_host_function};
pub use world::{Context, Event, Recorded, Stream, World};

use crate::machine::Machine;
use crate::space::Space;

/// How this process behaves, from its environment.
#[derive(Debug, Clone)]
pub struct Conduct {
    /// Hardware queues of a context.
    pub connections: usize,
    /// From which random choices come.
    pub seed: u64,
    /// Nothing on the machine has moved for this long: it is stuck.
    pub stuck_after: Duration,
    /// Threads that run blocks and copies.
    pub workers: usize,
}

/// What everything here needs to know.
#[derive(Debug)]
pub struct Surroundings {
    /// The machine.
    pub machine: Arc<Machine>,
    /// Its memory.
    pub space: Arc<Space>,
    /// How the process behaves.
    pub conduct: Conduct,
}

/// The part of the machine's schedule that this process runs.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    around: Surroundings,
    world: Mutex<World>,
    /// Something was done: waits of the program look again.
    changed: Bell,
    /// There is work for a worker.
    work: Bell,
    /// There is a host function to call.
    calls: Bell,
}

/// A condition variable of the world's lock that knows whether somebody waits: most often nobody does, and a call of the
/// system for nobody takes longer than all the rest of a small piece of work.
#[derive(Debug, Default)]
struct Bell {
    condition: Condvar,
    /// Changes under the world's lock only.
    listeners: AtomicUsize,
}

impl Bell {
    fn wait<'a>(&self, world: MutexGuard<'a, World>, timeout: Duration) -> MutexGuard<'a, World> {
        self.listeners.fetch_add(1, Ordering::Relaxed);
        let (world, _) = self.condition.wait_timeout(world, timeout).unwrap_or_else(PoisonError::into_inner);
        self.listeners.fetch_sub(1, Ordering::Relaxed);
        world
    }

    /// Wakes all who wait. The caller holds the world's lock.
    fn ring(&self, _: &World) {
        if self.listeners.load(Ordering::Relaxed) > 0 {
            self.condition.notify_all();
        }
    }
}

impl Engine {
    /// Starts the engine: its threads live as long as the process.
    ///
    /// # Errors
    ///
    /// If a thread cannot be made.
    pub fn start(around: Surroundings) -> std::io::Result<Engine> {
        let world = Mutex::new(World::new(&around));
        let workers = around.conduct.workers;
        let bell = Bell::default;
        let shared = Arc::new(Shared { around, world, changed: bell(), work: bell(), calls: bell() });
        for _ in 0..workers {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new().name("vcuda-worker".to_owned()).spawn(move || work::run_worker(&shared))?;
        }
        let caller = Arc::clone(&shared);
        std::thread::Builder::new().name("vcuda-host".to_owned()).spawn(move || work::run_host_functions(&caller))?;
        Ok(Engine { shared })
    }

    /// Locks the world.
    pub fn lock(&self) -> MutexGuard<'_, World> {
        self.shared.lock()
    }

    /// Adds work to a stream; gives back its number.
    ///
    /// # Errors
    ///
    /// The error that the stream's context has met.
    pub fn submit(&self, stream: u64, work: Work, after: &[u64]) -> crate::driver::Outcome<u64> {
        let mut world = self.lock();
        let id = world.submit(stream, work, after, None)?;
        self.kick(&mut world);
        Ok(id)
    }

    /// Starts what can start, and wakes those who run it.
    pub fn kick(&self, world: &mut World) {
        self.shared.kick(world);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work was added, started or done: those who run it or wait for it look.
    fn announce(&self, world: &mut World) {
        self.around.space.state().moved();
        self.work.ring(world);
        if std::mem::take(&mut world.has_news) {
            self.changed.ring(world);
        }
        if world.has_host_calls() {
            self.calls.ring(world);
        }
    }

    fn kick(&self, world: &mut World) {
        world.start_what_can(&self.around);
        self.around.space.state().bump();
        self.announce(world);
    }
}
