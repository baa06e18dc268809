//! One rank's side of a communicator: chooses the path of each call and runs it.

use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::comm::call::Call;
use crate::comm::choose::{Chooser, Path, SMALL_SCRATCH};
use crate::comm::news::{self, News, Vigil};
use crate::comm::settings::Settings;
use crate::device::{Kernel, Pass, Store};
use crate::error::{Error, Result};
use crate::exec::flat::Flat;
use crate::exec::{Direction, Idle, Memory, MessageQueue, MessageRun, Operation, PlanRun, Setting, Task, drive, needs};
use crate::plan::{Plan, Windows};
use crate::sync::{AbortFlag, Patience, Wait};
use crate::transport::{Channel, Fabric, HostWindows, Need, Setup, Way};
use crate::types::{Collective, DataType, Rank, World};

/// One rank's side of a communicator.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) world: World,
    pub(crate) settings: Settings,
    pub(crate) bootstrap: Box<dyn Bootstrap>,
    pub(crate) fabric: Fabric,
    pub(crate) news: News,
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

/// One end of a message, type-erased.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub(crate) peer: Rank,
    pub(crate) direction: Direction,
    pub(crate) count: u64,
    pub(crate) data_type: DataType,
}

// SAFETY: the pointer is to memory that whoever made the message keeps for it, as for `Call`.
unsafe impl Send for Message {}

impl Engine {
    pub(crate) fn new(bootstrap: Box<dyn Bootstrap>, fabric: Fabric, settings: Settings, abort: AbortFlag) -> Engine {
        let world = bootstrap.world();
        let chooser = Chooser::new(world, fabric.hosts(), fabric.shape(), &settings);
        let counters = Counters { collectives: 0, flag_base: 0, messages: vec![(0, 0); world.size as usize] };
        Engine {
            world,
            settings,
            bootstrap,
            fabric,
            news: News::default(),
            abort,
            chooser,
            flat: Flat::default(),
            counters,
            scratch: Box::new([0; SMALL_SCRATCH]),
        }
    }

    /// Runs a collective to its end.
    ///
    /// # Safety
    /// The call's buffers are good for their lengths, and nobody else touches them meanwhile.
    pub(crate) unsafe fn collective(&mut self, call: &Call) -> Result<()> {
        call.check(self.world)?;
        let operation = Operation {
            collective: call.collective,
            data_type: call.data_type,
            op: call.op,
            root: call.root,
            count: call.count.label(),
            sequence: self.counters.collectives,
        };
        let kernel = match call.op {
            Some(op) => Kernel::reduce(call.data_type, op, self.world.size)?,
            None => Kernel::copy(call.data_type),
        };
        self.counters.collectives += 1;
        self.news.begin(operation.label());
        // SAFETY: as the caller promises.
        let result = unsafe { self.route(call, &operation, kernel) };
        result.map_err(|error| error.during(operation.to_string()))
    }

    /// # Safety
    /// As [`Engine::collective`].
    unsafe fn route(&mut self, call: &Call, operation: &Operation, kernel: Kernel) -> Result<()> {
        if self.world.size == 1 {
            // SAFETY: as the caller promises.
            return unsafe { self.alone(call, kernel) };
        }
        match self.chooser.path(call) {
            Path::Flat => {
                self.open_windows(operation)?;
                // SAFETY: as the caller promises; the chooser has seen that the bytes fit.
                unsafe { self.run_flat(call, operation, &kernel) }
            }
            Path::Windows => {
                self.open_windows(operation)?;
                // SAFETY: as the caller promises.
                unsafe { self.run_windows(call, operation, kernel) }
            }
            Path::Slots => {
                let plan = self.chooser.plan(call, Windows::None)?;
                // SAFETY: as the caller promises.
                unsafe { self.run_plan(&plan, call, operation, kernel, Vec::new()) }
            }
        }
    }

    /// A world of one: output is input, scaled where the operator says so.
    ///
    /// # Safety
    /// As [`Engine::collective`].
    unsafe fn alone(&mut self, call: &Call, kernel: Kernel) -> Result<()> {
        let (input, output) = call.lengths(self.world)?;
        let count = input.0.min(output.0);
        if count == 0 || (call.input == call.output.cast_const() && kernel.is_copy(1, true)) {
            return Ok(());
        }
        let pass = Pass {
            sources: &[call.input],
            raw: 1,
            targets: &[call.output],
            count: usize::try_from(count).expect("checked against the address space"),
            finish: true,
            store: Store::Cached,
        };
        // SAFETY: both buffers are good for `count` elements, as `lengths` says and the caller promises.
        unsafe { kernel.run(&pass) };
        Ok(())
    }

    /// # Safety
    /// As [`Engine::collective`].
    pub(crate) unsafe fn run_plan(
        &mut self,
        plan: &Plan,
        call: &Call,
        operation: &Operation,
        kernel: Kernel,
        user: Vec<Memory>,
    ) -> Result<()> {
        let needs = needs(plan);
        self.connect(&needs, Some(operation), None)?;
        let store = self.store_for(call)?;
        let (windows, links) = self.fabric.parts();
        let rounds = plan.lanes.iter().map(|lane| lane.rounds).max().unwrap_or(0);
        let flag_base = self.counters.flag_base;
        if plan.spec.windows != Windows::None {
            self.counters.flag_base += u64::from(rounds);
        }
        let memory = Memory { input: call.input, output: call.output };
        let mapped = windows.filter(|_| plan.spec.windows != Windows::None);
        let scratch = mapped.map_or(self.scratch.as_mut_ptr(), |windows| windows.mine().scratch().as_ptr());
        let setting = Setting { kernel, memory, operation, windows: mapped, user, scratch, flag_base, store };
        // SAFETY: the caller promises the buffers; peers' buffers are under lease by `run_windows`.
        let mut run = unsafe { PlanRun::new(plan, setting) };
        let patience = self.settings.patience;
        let mut vigil = Vigil {
            bootstrap: &*self.bootstrap,
            news: &mut self.news,
            abort: &self.abort,
            timeout: self.settings.timeout,
            operation: Some(operation),
            peer: None,
            since: None,
            told: false,
        };
        let mut idle = Idle { patience, watch: &mut vigil };
        drive(&mut [&mut run], links, &mut idle)
    }

    /// Output that is much larger than a cache passes it by.
    fn store_for(&self, call: &Call) -> Result<Store> {
        let (_, output) = call.lengths(self.world)?;
        let bytes = output.0 * u64::from(call.data_type.size());
        Ok(if bytes >= self.settings.streaming_bytes { Store::Streaming } else { Store::Cached })
    }

    /// Sends and receives, all side by side.
    ///
    /// # Safety
    /// Each message's memory is good for its count, and nobody else touches it meanwhile.
    pub(crate) unsafe fn messages(&mut self, messages: &[Message]) -> Result<()> {
        for message in messages {
            self.check_message(message)?;
        }
        // SAFETY: as the caller promises.
        let others = unsafe { copy_to_self(self.world, messages)? };
        let mut needs = Vec::with_capacity(others.len());
        let mut runs = Vec::with_capacity(others.len());
        for message in others {
            let counter = &mut self.counters.messages[message.peer.index()];
            let (way, sequence) = match message.direction {
                Direction::Send(_) => (Way::Send, &mut counter.0),
                Direction::Recv(_) => (Way::Receive, &mut counter.1),
            };
            let operation = Operation {
                collective: Collective::Send,
                data_type: message.data_type,
                op: None,
                root: None,
                count: message.count,
                sequence: *sequence,
            };
            *sequence += 1;
            needs.push(Need { way, peer: message.peer, channel: Channel::PointToPoint });
            let bytes = message_bytes(&message);
            // SAFETY: as the caller promises.
            runs.push(unsafe { MessageRun::new(operation, message.peer, message.direction, bytes) });
        }
        self.drive_messages(&needs, &mut runs)
    }

    /// Opens the connections of `needs` and runs the messages. Messages of one connection run one after the other.
    pub(crate) fn drive_messages(&mut self, needs: &[Need], runs: &mut [MessageRun]) -> Result<()> {
        let single = if let [run] = &*runs { Some((run.peer(), run.name())) } else { None };
        let name = single.as_ref().map_or_else(|| "group of messages".to_owned(), |(_, name)| name.clone());
        let peer = single.map(|(peer, _)| peer);
        let result = self.connect(needs, None, peer).and_then(|()| {
            let (_, links) = self.fabric.parts();
            let mut vigil = Vigil {
                bootstrap: &*self.bootstrap,
                news: &mut self.news,
                abort: &self.abort,
                timeout: self.settings.timeout,
                operation: None,
                peer,
                since: None,
                told: false,
            };
            let mut idle = Idle { patience: self.settings.patience, watch: &mut vigil };
            let mut queues = MessageQueue::by_connection(runs);
            let mut tasks: Vec<&mut dyn Task> = queues.iter_mut().map(|queue| queue as &mut dyn Task).collect();
            drive(&mut tasks, links, &mut idle)
        });
        result.map_err(|error| error.during(name))
    }

    fn check_message(&self, message: &Message) -> Result<()> {
        if message.peer.get() >= self.world.size {
            let error = format!("peer {} is not a rank: there are {}", message.peer, self.world.size);
            return Err(Error::invalid_argument(error));
        }
        let null = match message.direction {
            Direction::Send(from) => from.is_null(),
            Direction::Recv(into) => into.is_null(),
        };
        if null && message.count > 0 {
            return Err(Error::invalid_argument("the buffer of a message is null, and its count is not 0"));
        }
        let fits = message.count.checked_mul(u64::from(message.data_type.size())).map(usize::try_from);
        if !matches!(fits, Some(Ok(_))) {
            return Err(Error::invalid_argument(format!("a message of {} elements is too large", message.count)));
        }
        Ok(())
    }

    pub(crate) fn connect(&mut self, needs: &[Need], operation: Option<&Operation>, peer: Option<Rank>) -> Result<()> {
        if self.fabric.has(needs) {
            return Ok(());
        }
        let wait = self.wait();
        let mut vigil = Vigil {
            bootstrap: &*self.bootstrap,
            news: &mut self.news,
            abort: &self.abort,
            timeout: self.settings.timeout,
            operation,
            peer,
            since: None,
            told: false,
        };
        let mut setup = Setup { bootstrap: &*self.bootstrap, wait: &wait, watch: &mut vigil };
        self.fabric.connect(needs, &mut setup)
    }

    pub(crate) fn open_windows(&mut self, operation: &Operation) -> Result<()> {
        if self.fabric.windows().is_some() {
            return Ok(());
        }
        let wait = self.wait();
        let mut vigil = Vigil {
            bootstrap: &*self.bootstrap,
            news: &mut self.news,
            abort: &self.abort,
            timeout: self.settings.timeout,
            operation: Some(operation),
            peer: None,
            since: None,
            told: false,
        };
        let mut setup = Setup { bootstrap: &*self.bootstrap, wait: &wait, watch: &mut vigil };
        self.fabric.open_windows(&mut setup)
    }

    pub(crate) fn wait(&self) -> Wait {
        Wait::new(self.settings.timeout, &self.abort)
    }

    /// What the paths inside a host need at once: the windows, the flat state, and how to wait.
    pub(crate) fn host_parts<'a>(
        &'a mut self,
        operation: &'a Operation,
    ) -> (&'a HostWindows, &'a mut Flat, Patience, Vigil<'a>) {
        let vigil = Vigil {
            bootstrap: &*self.bootstrap,
            news: &mut self.news,
            abort: &self.abort,
            timeout: self.settings.timeout,
            operation: Some(operation),
            peer: None,
            since: None,
            told: false,
        };
        let windows = self.fabric.windows().expect("opened before the path that needs them");
        (windows, &mut self.flat, self.settings.patience, vigil)
    }

    /// Plans for this engine's calls.
    pub(crate) fn chooser(&mut self) -> &mut Chooser {
        &mut self.chooser
    }

    /// Tells everyone of `error`, so that nobody waits for this rank any more.
    pub(crate) fn publish_failure(&self, error: &Error) {
        self.bootstrap.publish(&news::failure_note(error));
    }

    /// Says goodbye.
    pub(crate) fn leave(&mut self) {
        self.bootstrap.publish(&news::leaving_note(self.counters.collectives));
        self.bootstrap.close();
    }

    /// How long an operation may wait.
    pub(crate) fn timeout(&self) -> Duration {
        self.settings.timeout
    }
}

/// Matches sends to self with recvs from self, in order, and copies; returns the messages to others.
///
/// # Safety
/// As [`Engine::messages`].
unsafe fn copy_to_self(world: World, messages: &[Message]) -> Result<Vec<Message>> {
    let (own, others): (Vec<Message>, Vec<Message>) = messages.iter().partition(|message| message.peer == world.rank);
    let mut sends = own.iter().filter_map(|message| match message.direction {
        Direction::Send(from) => Some((from, message)),
        Direction::Recv(_) => None,
    });
    let mut recvs = own.iter().filter_map(|message| match message.direction {
        Direction::Recv(into) => Some((into, message)),
        Direction::Send(_) => None,
    });
    loop {
        match (sends.next(), recvs.next()) {
            (None, None) => return Ok(others),
            (Some((from, send)), Some((into, recv))) => {
                if (send.count, send.data_type) != (recv.count, recv.data_type) {
                    return Err(Error::invalid_argument(format!(
                        "this rank sends itself {} {} and receives {} {}",
                        send.count, send.data_type, recv.count, recv.data_type
                    )));
                }
                // SAFETY: both are good for the message, as the caller promises; `copy` allows them to overlap.
                unsafe { std::ptr::copy(from, into, message_bytes(send)) };
            }
            (Some(_), None) | (None, Some(_)) => {
                let message = "a message to oneself needs its send and its recv in one group";
                return Err(Error::invalid_usage(message));
            }
        }
    }
}

fn message_bytes(message: &Message) -> usize {
    usize::try_from(message.count * u64::from(message.data_type.size())).expect("checked before")
}
