//! The driver: what the C entry points of `libcuda.so.1` do once their pointers are checked.
//!
//! Every function here returns an [`Outcome`]: a value, or the code that the driver's documentation names for the
//! mistake. `libcuda/` turns these into C functions. [`Driver`] is the one instance of a process, made by `cuInit`; its
//! objects are kept by handle, in the engine's world (contexts, streams, events) and in its own tables (the rest).

mod capture;
mod context;
mod copy;
mod device;
mod event;
mod graph;
mod launch;
mod memory;
mod module;
mod pointer;
mod pool;
mod result;
mod settings;
mod stream;
mod vmm;

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

pub use capture::{CaptureInfo, CaptureMode, exchange_mode};
pub use context::PrimaryState;
pub use copy::{CopyRequest, Direction};
pub use device::{DeviceAttribute, PeerAttribute};
pub use graph::UpdateResult;
pub use launch::{LaunchRequest, Parameters};
pub use pointer::{PointerAttribute, PointerValue};
pub use result::{CUresult, Outcome};
pub use vmm::{CreateRequest, Location};

use crate::fault;
use crate::machine::Machine;
use crate::schedule::{Engine, Reason, Surroundings, World};
use crate::space::state::{Share, State};
use crate::space::{self, Agent, Space};
use settings::Settings;

/// The driver of this process.
#[derive(Debug)]
pub struct Driver {
    settings: Settings,
    machine: Arc<Machine>,
    space: Arc<Space>,
    engine: Engine,
    /// The GPUs that the program sees, by ordinal.
    visible: Vec<u32>,
    tables: Mutex<Tables>,
    pid: u32,
}

/// Objects that are not scheduled.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    primary: HashMap<u32, context::Primary>,
    modules: HashMap<u64, module::Module>,
    functions: HashMap<u64, module::Function>,
    pools: pool::Pools,
    captures: capture::Captures,
    graphs: HashMap<u64, graph::Graph>,
    execs: HashMap<u64, graph::Exec>,
    user_objects: HashMap<u64, graph::UserObject>,
}

/// The context of a call: the current one, or that of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Current {
    /// The context's handle.
    pub context: u64,
    /// Its GPU, as the machine counts.
    pub gpu: u32,
}

impl Current {
    fn agent(self) -> Agent {
        Agent { context: self.context, gpu: self.gpu }
    }
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
static EXITING: AtomicBool = AtomicBool::new(false);

/// `cuInit`: finds the machine and starts its driver, once.
pub fn init(flags: u32) -> Outcome {
    if flags != 0 {
        return Err(CUresult::INVALID_VALUE);
    }
    if DRIVER.get().is_some() {
        return get().map(|_| ());
    }
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if DRIVER.get().is_none() {
        let driver = Driver::start().map_err(|what| {
            eprintln!("vcuda: {what}");
            CUresult::NO_DEVICE
        })?;
        // Another thread cannot have come first: the lock is held.
        let _ = DRIVER.set(driver);
        // SAFETY: registers a function that only sets a flag.
        unsafe { libc::atexit(note_exit) };
    }
    get().map(|_| ())
}

extern "C" fn note_exit() {
    EXITING.store(true, Ordering::Release);
}

/// The driver of this process.
pub fn get() -> Outcome<&'static Driver> {
    if EXITING.load(Ordering::Acquire) {
        return Err(CUresult::DEINITIALIZED);
    }
    let driver = DRIVER.get().ok_or(CUresult::NOT_INITIALIZED)?;
    // A forked child has none of the driver's threads.
    if driver.pid == std::process::id() { Ok(driver) } else { Err(CUresult::NOT_INITIALIZED) }
}

/// The version that `cuDriverGetVersion` answers; it needs no `cuInit`.
pub fn version() -> u32 {
    static VERSION: OnceLock<u32> = OnceLock::new();
    match DRIVER.get() {
        Some(driver) => driver.machine.driver_version,
        None => *VERSION.get_or_init(|| {
            Settings::read().and_then(|settings| Machine::load(&settings.machine)).map_or(12_080, |m| m.driver_version)
        }),
    }
}

/// Whether calls are printed (`VCUDA_DEBUG`).
pub fn prints_calls() -> bool {
    static PRINTS: OnceLock<bool> = OnceLock::new();
    *PRINTS.get_or_init(settings::debug)
}

/// The state that the processes of a machine share: of one host, or of all hosts whose memory crosses a fabric.
fn open_state(machine: &Machine, folder: Option<&Path>) -> std::io::Result<State> {
    match (folder.and_then(space::fabric_folder), machine.host) {
        (Some(fabric), Some(host)) if machine.shares_a_fabric() => {
            State::open(Some(&fabric), Share::of_host(host, machine.hosts, machine.gpus.len())?)
        }
        _ => State::open(folder, Share::ALL),
    }
}

impl Driver {
    fn start() -> Result<Driver, String> {
        let settings = Settings::read()?;
        let machine = Arc::new(Machine::load(&settings.machine)?);
        let state = open_state(&machine, settings.folder.as_deref());
        let state = state.map_err(|error| format!("the machine's state: {error}"))?;
        let space = Space::new(Arc::clone(&machine), Arc::new(state)).map_err(|error| format!("addresses: {error}"))?;
        let space = Arc::new(space);
        let count = u32::try_from(machine.gpus.len()).unwrap_or(0);
        let visible = match &settings.visible {
            Some(list) => machine.visible(list),
            None => (0..count).collect(),
        };
        if visible.is_empty() {
            return Err("no GPU is visible (CUDA_VISIBLE_DEVICES)".to_owned());
        }
        let around = Surroundings {
            machine: Arc::clone(&machine),
            space: Arc::clone(&space),
            conduct: settings.conduct(machine.connections),
        };
        let engine = Engine::start(around).map_err(|error| format!("threads: {error}"))?;
        let tables = Mutex::new(Tables::default());
        Ok(Driver { settings, machine, space, engine, visible, tables, pid: std::process::id() })
    }

    /// The machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn surroundings(&self) -> Surroundings {
        Surroundings {
            machine: Arc::clone(&self.machine),
            space: Arc::clone(&self.space),
            conduct: self.settings.conduct(self.machine.connections),
        }
    }

    /// The GPU of an ordinal.
    fn gpu(&self, ordinal: i32) -> Outcome<u32> {
        let index = usize::try_from(ordinal).map_err(|_| CUresult::INVALID_DEVICE)?;
        self.visible.get(index).copied().ok_or(CUresult::INVALID_DEVICE)
    }

    /// The ordinal of a GPU; -1 for one that the program does not see.
    fn ordinal(&self, gpu: u32) -> i32 {
        let at = self.visible.iter().position(|visible| *visible == gpu);
        at.and_then(|at| i32::try_from(at).ok()).unwrap_or(-1)
    }

    /// The current context, usable: it is there and has met no error.
    pub fn current(&self) -> Outcome<Current> {
        let context = context::current_handle();
        if context == 0 {
            return Err(CUresult::INVALID_CONTEXT);
        }
        self.usable(&self.engine.lock(), context)
    }

    fn usable(&self, world: &World, context: u64) -> Outcome<Current> {
        world.check_context(context)?;
        let gpu = world.contexts.get(&context).map(|context| context.gpu).ok_or(CUresult::CONTEXT_IS_DESTROYED)?;
        match fault::lost(gpu) {
            Some(code) => Err(CUresult(code)),
            None => Ok(Current { context, gpu }),
        }
    }

    /// Waits for the running kernels of a context, as many calls do by themselves.
    fn wait_for_kernels(&self, current: Current) -> Outcome {
        let kernels = self.engine.lock().running_kernels(current.context);
        self.engine.wait_for(current.context, kernels, Reason::Implicit)
    }

    /// Waits for all work of a context.
    fn wait_for_all(&self, current: Current, reason: Reason) -> Outcome {
        let work = self.engine.lock().unfinished(current.context);
        self.engine.wait_for(current.context, work, reason)
    }

    /// Unmaps freed memory if nothing runs that might touch it.
    fn tidy_memory(&self) {
        let world = self.engine.lock();
        if world.is_idle() {
            self.space.unmap_buried();
        }
    }
}
