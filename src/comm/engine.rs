//! One rank's side of a communicator: chooses the path of each call and runs it.

use crate::bootstrap::Bootstrap;
use crate::comm::Settings;
use crate::comm::choose::{Chooser, Path, SMALL_SCRATCH};
use crate::comm::news::{self, News, Vigil};
use crate::device::Kernel;
use crate::error::{Error, Kind, Result};
use crate::exec::flat::Flat;
use crate::exec::host::{self, Surroundings, Visit};
use crate::exec::{self, Call, Idle, Message, MessageQueue, MessageRun, Operation, Task};
use crate::plan::{Plan, Windows};
use crate::sync::primitive::Arc;
use crate::sync::{AbortFlag, Wait};
use crate::sys::memory::SharedMemory;
use crate::transport::{Fabric, Need, Setup};
use crate::types::{Algorithm, Collective, Rank, World};

/// One rank's side of a communicator.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) world: World,
    pub(crate) settings: Settings,
    pub(crate) bootstrap: Box<dyn Bootstrap>,
    fabric: Fabric,
    news: News,
    abort: AbortFlag,
    chooser: Chooser,
    flat: Flat,
    counters: Counters,
    /// Scratch of plans that need some without windows: the tokens of a barrier.
    scratch: Box<[u8; SMALL_SCRATCH]>,
}

/// Numbers that all ranks count alike.
#[derive(Debug)]
struct Counters {
    /// Collectives begun.
    collectives: u64,
    /// Rounds of the plans that used my host's flags.
    flag_base: u64,
    /// Messages begun with each peer: to it, from it.
    messages: Vec<(u64, u64)>,
}

/// Borrows what every wait needs from the fields of an engine, leaving the other fields free.
macro_rules! vigil {
    ($engine:ident, $operation:expr, $peer:expr) => {
        Vigil::new(
            (&*$engine.bootstrap, &mut $engine.news, &$engine.abort),
            $engine.settings.timeout,
            ($operation, $peer),
        )
    };
}

impl Engine {
    pub(crate) fn new(
        bootstrap: Box<dyn Bootstrap>,
        fabric: Fabric,
        (settings, cores): (Settings, u32),
        abort: AbortFlag,
    ) -> Engine {
        let world = bootstrap.world();
        let chooser = Chooser::new(world, (fabric.hosts(), fabric.near(), cores), &settings);
        let counters = Counters { collectives: 0, flag_base: 0, messages: vec![(0, 0); world.size as usize] };
        let (news, flat, scratch) = (News::default(), Flat::default(), Box::new([0; SMALL_SCRATCH]));
        Engine { world, settings, bootstrap, fabric, news, abort, chooser, flat, counters, scratch }
    }

    /// Runs a collective to its end.
    pub(crate) fn collective(&mut self, call: &Call<'_>) -> Result<()> {
        call.check(self.world)?;
        let kernel = match call.op {
            Some(op) => Kernel::reduce(call.data_type, op, self.world.size)?,
            None => Kernel::copy(call.data_type),
        };
        let operation = Operation {
            collective: call.collective,
            data_type: call.data_type,
            op: call.op,
            root: call.root,
            count: call.count.label(),
            sequence: self.counters.collectives,
        };
        self.counters.collectives += 1;
        self.news.begin(operation.label());
        self.route(call, &operation, kernel).map_err(|error| error.during(operation.to_string()))
    }

    fn route(&mut self, call: &Call<'_>, operation: &Operation, kernel: Kernel) -> Result<()> {
        if self.world.size == 1 {
            return host::run_alone(call, self.world, &kernel);
        }
        match self.chooser.path(call)? {
            Path::Flat => self.run_flat(call, operation, &kernel),
            Path::Windows(algorithm) => self.run_windows(call, operation, (kernel, algorithm)),
            Path::Slots(algorithm) => {
                let plan = self.chooser.plan(call, algorithm, Windows::None)?;
                self.run_plan((&plan, None), call, operation, kernel)
            }
        }
    }

    #[inline]
    fn run_flat(&mut self, call: &Call<'_>, operation: &Operation, kernel: &Kernel) -> Result<()> {
        self.open_windows(operation)?;
        let Some(windows) = self.fabric.windows() else { return Err(no_windows()) };
        let mut vigil = vigil!(self, Some(operation), None);
        let mut idle = Idle { patience: self.settings.patience, watch: &mut vigil };
        host::run_flat((windows, &mut self.flat), (call, operation), (self.world, kernel), &mut idle)
    }

    fn run_windows(
        &mut self,
        call: &Call<'_>,
        operation: &Operation,
        (kernel, algorithm): (Kernel, Algorithm),
    ) -> Result<()> {
        self.open_windows(operation)?;
        let windows = self.fabric.share_windows().ok_or_else(no_windows)?;
        let mut visit = Visit::open(&windows, call, operation);
        let mut vigil = vigil!(self, Some(operation), None);
        let mut idle = Idle { patience: self.settings.patience, watch: &mut vigil };
        let met = visit.meet(&mut self.flat, (call, operation), self.world, &mut idle);
        let result = met.and_then(|kind| {
            let plan = self.chooser.plan(call, algorithm, self.chooser.windows_across_hosts(kind))?;
            self.run_plan((&plan, Some(&mut visit)), call, operation, kernel)
        });
        let result = result.map_err(|error| self.cause(error));
        if let Err(error) = &result {
            // Peers inside my buffers must learn of it before `visit` waits for them.
            self.publish_failure(error);
        }
        result
    }

    fn run_plan(
        &mut self,
        (plan, visit): (&Plan, Option<&mut Visit<'_>>),
        call: &Call<'_>,
        operation: &Operation,
        kernel: Kernel,
    ) -> Result<()> {
        self.connect(&exec::needs(plan), (Some(operation), None))?;
        let flag_base = self.counters.flag_base;
        let mapped = plan.spec.windows != Windows::None;
        if mapped {
            let rounds = plan.lanes.iter().map(|lane| lane.rounds).max().unwrap_or(0);
            self.counters.flag_base += u64::from(rounds);
        }
        let (windows, links) = self.fabric.parts();
        let surroundings = Surroundings {
            world: self.world,
            kernel,
            windows: windows.filter(|_| mapped),
            scratch: &mut self.scratch[..],
            flag_base,
            streaming_bytes: self.settings.streaming_bytes,
        };
        let mut vigil = vigil!(self, Some(operation), None);
        let mut idle = Idle { patience: self.settings.patience, watch: &mut vigil };
        host::run_plan((plan, visit), (call, operation), surroundings, links, &mut idle)
    }

    /// Sends and receives, all side by side. Messages of one connection keep their order.
    pub(crate) fn messages(&mut self, messages: Vec<Message<'_>>) -> Result<()> {
        for message in &messages {
            message.check(self.world)?;
        }
        let others = exec::copy_to_self(self.world.rank, messages)?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        let mut runs: Vec<MessageRun<'_>> = Vec::with_capacity(others.len());
        for message in others {
            let counter = &mut self.counters.messages[message.peer().index()];
            let counter = if message.sends() { &mut counter.0 } else { &mut counter.1 };
            runs.push(MessageRun::new(message, Collective::Send, *counter));
            *counter += 1;
        }
        let single = if let [run] = &runs[..] { Some((run.peer(), run.name())) } else { None };
        let (peer, name) = match single {
            Some((peer, name)) => (Some(peer), name),
            None => (None, "group of messages".to_owned()),
        };
        self.drive_messages(&needs, &mut runs, (None, peer)).map_err(|error| error.during(name))
    }

    /// `all_to_all_v`: every message of it belongs to one collective.
    pub(crate) fn exchange(&mut self, messages: Vec<Message<'_>>) -> Result<()> {
        for message in &messages {
            message.check(self.world)?;
        }
        let operation = Operation {
            collective: Collective::AllToAllV,
            data_type: messages.first().map_or(crate::types::DataType::U8, Message::data_type),
            op: None,
            root: None,
            count: 0,
            sequence: self.counters.collectives,
        };
        self.counters.collectives += 1;
        self.news.begin(operation.label());
        let others = exec::copy_to_self(self.world.rank, messages)?;
        let needs: Vec<Need> = others.iter().map(Message::need).collect();
        let run = |message| MessageRun::new(message, Collective::AllToAllV, operation.sequence);
        let mut runs: Vec<MessageRun<'_>> = others.into_iter().map(run).collect();
        let result = self.drive_messages(&needs, &mut runs, (Some(&operation), None));
        result.map_err(|error| error.during(operation.to_string()))
    }

    fn drive_messages(
        &mut self,
        needs: &[Need],
        runs: &mut [MessageRun<'_>],
        reason: (Option<&Operation>, Option<Rank>),
    ) -> Result<()> {
        self.connect(needs, reason)?;
        let (_, links) = self.fabric.parts();
        let mut vigil = vigil!(self, reason.0, reason.1);
        let mut idle = Idle { patience: self.settings.patience, watch: &mut vigil };
        let mut queues = MessageQueue::by_connection(runs);
        let mut tasks: Vec<&mut dyn Task> = queues.iter_mut().map(|queue| queue as &mut dyn Task).collect();
        exec::drive(&mut tasks, links, &mut idle)
    }

    fn connect(&mut self, needs: &[Need], reason: (Option<&Operation>, Option<Rank>)) -> Result<()> {
        if self.fabric.has(needs) {
            return Ok(());
        }
        let wait = self.wait();
        let mut vigil = vigil!(self, reason.0, reason.1);
        let mut setup = Setup { bootstrap: &*self.bootstrap, wait: &wait, watch: &mut vigil };
        self.fabric.connect(needs, &mut setup)
    }

    #[inline]
    fn open_windows(&mut self, operation: &Operation) -> Result<()> {
        if self.fabric.windows().is_some() { Ok(()) } else { self.open_windows_now(Some(operation)) }
    }

    #[cold]
    fn open_windows_now(&mut self, operation: Option<&Operation>) -> Result<()> {
        let wait = self.wait();
        let mut vigil = vigil!(self, operation, None);
        let mut setup = Setup { bootstrap: &*self.bootstrap, wait: &wait, watch: &mut vigil };
        self.fabric.open_windows(&mut setup)
    }

    /// Maps the memory of the ranks of my host now and not at the first call.
    pub(crate) fn connect_early(&mut self) -> Result<()> {
        if self.chooser.maps_peers() { self.open_windows_now(None) } else { Ok(()) }
    }

    /// Lets the ranks of my host work in `memory`. Collective over the communicator; ranks of other hosts do the same among themselves.
    pub(crate) fn register(&mut self, memory: &Arc<SharedMemory>) -> Result<()> {
        if !self.chooser.maps_peers() {
            return Ok(());
        }
        self.open_windows_now(None)?;
        let wait = self.wait();
        let mut vigil = vigil!(self, None, None);
        let mut setup = Setup { bootstrap: &*self.bootstrap, wait: &wait, watch: &mut vigil };
        self.fabric.register(memory, &mut setup)
    }

    /// The flag that every wait of this engine looks at.
    pub(crate) fn abort_flag(&self) -> &AbortFlag {
        &self.abort
    }

    /// One line that says who meets whom how.
    pub(crate) fn log_placement(&self, name: &str) {
        let (rank, size) = (self.world.rank, self.world.size);
        let (local, hosts) = (self.fabric.my_host().len(), self.fabric.hosts().len());
        let id = self.bootstrap.id();
        crate::log::info!(Init @ rank, "comm {id:016x} {name} rank {rank} nranks {size} localRanks {local} nNodes {hosts}");
    }

    /// A wait of the communicator's time-out that begins now.
    pub(crate) fn wait(&self) -> Wait {
        Wait::new(self.settings.timeout, &self.abort)
    }

    /// Tells everyone of `error`, so that nobody waits for this rank any more.
    pub(crate) fn publish_failure(&self, error: &Error) {
        self.bootstrap.publish(&news::failure_note(error));
    }

    /// The error behind `error`: a peer that goes because it has failed says why before it goes.
    pub(crate) fn cause(&mut self, error: Error) -> Error {
        if error.kind() != Kind::Remote {
            return error;
        }
        let told = self.news.told(self.bootstrap.poll());
        match (told, error.operation()) {
            (Some(told), Some(operation)) => told.during(operation),
            (Some(told), None) => told,
            (None, _) => error,
        }
    }

    /// Says goodbye.
    pub(crate) fn leave(&mut self) {
        self.bootstrap.publish(&news::leaving_note(self.counters.collectives));
        self.bootstrap.close();
    }
}

#[cold]
fn no_windows() -> Error {
    Error::internal("the host's windows are not open")
}
