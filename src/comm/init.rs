//! Init: from a unique id, or as threads of this process; and what every way into a communicator does once its ranks
//! have met.

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::bootstrap::cause::failure_reader;
use crate::bootstrap::{Bootstrap, LocalBootstrap, NetBootstrap, UniqueId};
use crate::comm::Communicator;
use crate::comm::launched;
use crate::comm::origin::{Made, Origin};
use crate::comm::placement;
use crate::config::Config;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::log;
use crate::log::spans;
use crate::plan::Layout;
use crate::session::Session;
use crate::session::clocks;
use crate::session::flight_record;
use crate::session::host_names::{self, HostNames};
use crate::session::page::{OwnPage, Phase};
use crate::session::ras;
use crate::session::seats::{self, HostSeats};
use crate::session::settings::Settings;
use crate::session::settings::bootstrap_options;
use crate::session::settings::standing;
use crate::session::settings::tuning::Tuning;
use crate::session::trace_text::{self, SpanKind};
use crate::sync::{AbortFlag, Patience, TimeLimit, Wait};
use crate::sys::{clock, cpu, futex, limits, ranges};
use crate::topo::search::between::CrossNic;
use crate::transport::nics::{self, ToldNics};
use crate::transport::{
    Agreement, Crossing, Fabric, Network, NetworkSeeker, NicTable, PeerInfo, host_id, process_space, process_token,
};
use crate::types::{Rank, World};

impl Communicator {
    /// Makes a unique id. One rank calls this and sends the bytes to the others over a channel that the user trusts,
    /// because anyone who has them can join. A thread of this process serves the ranks that join and ends when all have
    /// come: it waits half an hour for the first, then as long as init may take, and ends seconds after the init of a
    /// rank of this process has timed out or was aborted before any rank came. With `NCCL_COMM_ID` the id only names
    /// that address, and rank 0 serves it when it joins.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] where no network interface is usable;
    /// [`crate::error::Kind::InvalidArgument`] for a variable with a bad value; [`crate::error::Kind::Timeout`] where
    /// the host of `NCCL_COMM_ID` has no address within the time that init may take.
    pub fn unique_id(config: &Config) -> Result<UniqueId> {
        let config = config.clone().resolve()?;
        crate::log::install(&config, None);
        UniqueId::generate(&bootstrap_options(&config)?)
    }

    /// Joins the communicator of `id` as `rank` of `world`. Collective: all ranks call it, with the same id and world.
    ///
    /// The environment is laid over `config` ([`Config::resolve`]). Where that says non-blocking, the call returns at
    /// once: [`Communicator::async_error`] tells when the communicator can be used.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where `rank` is not below `world` or a variable has a bad value;
    /// [`crate::error::Kind::Timeout`] naming the ranks that have not come by the deadline of init;
    /// [`crate::error::Kind::Mismatch`] where ranks disagree about the world or its settings, or two have one number.
    ///
    /// # Examples
    /// ```
    /// use rsccl::{Communicator, Config, ReduceOp};
    ///
    /// # fn main() -> rsccl::Result<()> {
    /// let config = Config::default().with_socket_interfaces("lo");
    /// let id = Communicator::unique_id(&config)?;
    /// // In a real program these are processes, and the id travels by file, store or MPI_Bcast.
    /// let join = |rank| Communicator::init(&id, rank, 2, &config);
    /// std::thread::scope(|scope| {
    ///     let other = scope.spawn(|| join(1)?.barrier());
    ///     join(0)?.barrier()?;
    ///     other.join().expect("rank 1 does not panic")
    /// })
    /// # }
    /// ```
    pub fn init(id: &UniqueId, rank: u32, world: u32, config: &Config) -> Result<Communicator> {
        Communicator::init_scalable(std::slice::from_ref(id), rank, world, config)
    }

    /// [`Communicator::init`] with several ids, so that several processes share the work of serving a large world: the
    /// ranks are cut into as many contiguous blocks. All ranks pass the same ids in the same order.
    ///
    /// # Errors
    /// As [`Communicator::init`]; and where there are no ids, or more than ranks.
    pub fn init_scalable(ids: &[UniqueId], rank: u32, world: u32, config: &Config) -> Result<Communicator> {
        let config = config.clone().resolve()?;
        crate::log::install(&config, Some(rank));
        let world = checked_world(rank, world)?;
        let (settings, options) = (Settings::read(&config)?, bootstrap_options(&config)?);
        let ids = ids.to_vec();
        let origin = Origin::UniqueId(ids.first().map_or(0, UniqueId::number));
        Communicator::begin_init(world, settings, origin, move |abort, limit| {
            Ok(Box::new(NetBootstrap::join(&ids, world.rank, world.size, &options, &limit.wait(abort))?))
        })
    }

    /// Communicators of `ranks` ranks in this process, in rank order: each goes to a thread of its own. Returns when
    /// all are ready, also where the configuration says non-blocking.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for 0 ranks or a variable with a bad value.
    ///
    /// # Examples
    /// ```
    /// use rsccl::{Communicator, Config};
    ///
    /// # fn main() -> rsccl::Result<()> {
    /// let ranks = Communicator::init_all(3, &Config::default())?;
    /// std::thread::scope(|scope| {
    ///     let threads: Vec<_> = ranks.into_iter().map(|comm| scope.spawn(move || comm.barrier())).collect();
    ///     threads.into_iter().try_for_each(|thread| thread.join().expect("no rank panics"))
    /// })
    /// # }
    /// ```
    pub fn init_all(ranks: u32, config: &Config) -> Result<Vec<Communicator>> {
        let config = config.clone().resolve()?;
        crate::log::install(&config, None);
        let settings = Settings::read(&config)?;
        let bootstraps = LocalBootstrap::world(ranks)?;
        let mut all = Vec::with_capacity(bootstraps.len());
        for bootstrap in bootstraps {
            let world = bootstrap.world();
            // All start side by side.
            let join = move |_: &AbortFlag, _| Ok(Box::new(bootstrap) as Box<dyn Bootstrap>);
            all.push(Communicator::start_on_thread(world, settings.clone(), Origin::Threads, join)?);
        }
        for comm in &all {
            comm.await_start()?;
        }
        Ok(all)
    }

    /// A communicator over what `join` yields: here, or on a thread where the settings say non-blocking.
    pub(super) fn begin_init(
        world: World,
        settings: Settings,
        origin: Origin,
        join: impl FnOnce(&AbortFlag, TimeLimit) -> Result<Box<dyn Bootstrap>> + Send + 'static,
    ) -> Result<Communicator> {
        let (is_blocking, limit) = (settings.blocking, settings.init_timeout);
        let make_here = move |abort: &AbortFlag| make(world, settings, (&origin, abort, limit), None, join);
        if is_blocking {
            make_here(&AbortFlag::new()).map(Communicator::ready)
        } else {
            Communicator::start_thread("rsccl init", Some(world), make_here)
        }
    }

    /// [`Communicator::start`] on a thread of its own, whatever the settings say.
    pub(super) fn start_on_thread(
        world: World,
        settings: Settings,
        origin: Origin,
        join: impl FnOnce(&AbortFlag, TimeLimit) -> Result<Box<dyn Bootstrap>> + Send + 'static,
    ) -> Result<Communicator> {
        let limit = settings.init_timeout;
        let begin = move |abort: &AbortFlag| make(world, settings, (&origin, abort, limit), None, join);
        Communicator::start_thread("rsccl init", Some(world), begin)
    }
}

/// The engine over what `join` yields, within the limit of an init, or of a call that makes a child, which has its
/// `seats` from its parent.
pub(super) fn make(
    world: World,
    settings: Settings,
    (origin, abort, limit): (&Origin, &AbortFlag, TimeLimit),
    seats: Option<HostSeats>,
    join: impl FnOnce(&AbortFlag, TimeLimit) -> Result<Box<dyn Bootstrap>>,
) -> Result<Engine> {
    origin.log_start(world);
    let mut times = Times::begin();
    let name = settings.name.clone();
    let page = OwnPage::of_beginning(world, origin.shown(), &name);
    flight_record::expect_sigterm(&settings, world.rank);
    listen_for(&settings, origin, world);
    let made = join(abort, limit).and_then(|bootstrap| {
        times.bootstrap = times.lap();
        page.begins(Phase::Telling);
        assemble((page, bootstrap), (settings, seats), (abort, limit), &mut times)
    });
    if let (Err(_), Origin::Launcher { number, .. }) = (&made, origin) {
        launched::give_back(*number);
    }
    let engine = made.map_err(|error| limits::with_remedy(error).during(origin.call()).at(world.rank))?;
    let (local_ranks, hosts) = engine.census();
    let id = engine.session.bootstrap.id();
    engine.session.page.is_ready((local_ranks, hosts));
    times.record(&engine.session);
    ras::answer_at(engine.session.settings.ras_addr.as_deref(), world.rank);
    origin.log_complete(&Made { world, id, name: &name, local_ranks, hosts, times: &times });
    Ok(engine)
}

/// Lets the trace and profilers hear of calls, where the settings say so.
fn listen_for(settings: &Settings, origin: &Origin, world: World) {
    let (file, has_steps) = &settings.trace;
    let rank = (*origin != Origin::Threads).then(|| world.rank.get());
    spans::install(file.as_deref(), *has_steps, rank, trace_text::write);
    if settings.has_ranges && ranges::load() {
        log::hear_calls(log::HEARD_BY_RANGES);
    }
}

/// How long the parts of an init took.
struct Times {
    /// In nanoseconds, for the trace.
    began: u64,
    begun: Instant,
    lap: Instant,
    /// Until the ranks had met.
    bootstrap: Duration,
    /// Until they had told each other who they are.
    allgathers: Duration,
    /// Until it was known which ranks share a host, and what follows from that.
    topology: Duration,
    /// Until memory of peers was mapped.
    connections: Duration,
}

impl Times {
    fn begin() -> Times {
        let (now, none) = (clock::now(), Duration::ZERO);
        let began = clock::monotonic_nanoseconds();
        Times { began, begun: now, lap: now, bootstrap: none, allgathers: none, topology: none, connections: none }
    }

    /// The phases as slices of the trace.
    fn record(&self, session: &Session) {
        if !spans::is_on() {
            return;
        }
        let parts = [self.bootstrap, self.allgathers, self.topology, self.connections];
        let mut begun = self.began;
        for (phase, time) in (0u64..).zip(parts) {
            let ended = begun.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(0));
            spans::record(&SpanKind::Phase.span(session, (begun, ended), [phase, 0, 0]));
            begun = ended;
        }
        let words = [trace_text::WHOLE_INIT, 0, 0];
        spans::record(&SpanKind::Phase.span(session, (self.began, begun), words));
    }

    /// The time since the last lap.
    fn lap(&mut self) -> Duration {
        let now = clock::now();
        now.duration_since(std::mem::replace(&mut self.lap, now))
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("bootstrap", self.bootstrap),
            ("allgathers", self.allgathers),
            ("topo", self.topology),
            ("connections", self.connections),
        ];
        write!(f, "total {:.3} (", self.lap.duration_since(self.begun).as_secs_f64())?;
        for (place, (name, time)) in parts.into_iter().enumerate() {
            write!(f, "{}{name} {:.3}", if place == 0 { "" } else { ", " }, time.as_secs_f64())?;
        }
        f.write_str(")")
    }
}

/// Gathers what ranks must know of each other and builds the engine.
fn assemble(
    (page, bootstrap): (OwnPage, Box<dyn Bootstrap>),
    (settings, seats): (Settings, Option<HostSeats>),
    (abort, limit): (&AbortFlag, TimeLimit),
    times: &mut Times,
) -> Result<Engine> {
    let world = bootstrap.world();
    let met = meet(&*bootstrap, &settings, seats, limit.wait(abort)).map_err(limits::with_remedy);
    let met = met.inspect_err(|error| bootstrap.give_up(error));
    let Met { peers, seats, nics, network, names } = met?;
    let mine = &peers[world.rank.index()];
    times.allgathers = times.lap();
    futex::register_barrier();
    let nics = NicTable::new(world.rank, &peers, nics, crossing(settings.searching.cross));
    let fabric = Fabric::new(world, &peers, settings.policy, settings.sizes);
    let fabric = fabric.with_nics(nics, &settings.dead_routes).with_network(&network);
    let host_mbit = network.least_host_mbit(&peers);
    let layout = Layout::of_topology(fabric.topology(), peers.iter().map(standing::place).collect());
    // Ranks that share processors with this one, whether or not they may share memory.
    let beside = peers.iter().filter(|peer| peer.host == mine.host).count();
    let patience = Patience::new(beside, settings.awake);
    let early = !settings.connect_late;
    // The smallest number of any rank, so that all ranks choose alike.
    let cores = peers.iter().map(|peer| peer.cores).min().unwrap_or(1);
    page.know((bootstrap.id(), settings.timeout.time), mine, (&peers, &names));
    page.begins(Phase::Connecting);
    let mut session = Session::on(page, bootstrap, settings, abort.clone());
    session.watch_processes(mine, (&peers, names));
    session.seats = seats;
    let mut engine = Engine::new(session, fabric, (layout, patience, cores), host_mbit);
    engine.session.make_known();
    times.topology = times.lap();
    if early && let Err(error) = engine.connect_early(limit) {
        // Ranks that wait for this one learn the cause, and not only that it has gone.
        let error = engine.cause(limits::with_remedy(error));
        engine.session.publish_failure(&error);
        engine.session.leave();
        return Err(error);
    }
    times.connections = times.lap();
    Ok(engine)
}

/// Whether what `NCCL_CROSS_NIC` says of channels between GPUs lets a channel of sockets change its rail in a host.
fn crossing(cross: CrossNic) -> Crossing {
    match cross {
        CrossNic::Never => Crossing::Never,
        CrossNic::Allowed | CrossNic::IfBetter => Crossing::Allowed,
    }
}

/// What ranks have told each other.
struct Met {
    peers: Vec<PeerInfo>,
    seats: HostSeats,
    nics: ToldNics,
    network: Network,
    names: HostNames,
}

/// What all ranks tell of themselves, of their NICs and of their hosts' names; their seats too, where those are not
/// known from a parent.
///
/// # Errors
/// Of the exchange; [`crate::error::Kind::Mismatch`] where settings differ that must be equal.
fn meet(bootstrap: &dyn Bootstrap, settings: &Settings, known: Option<HostSeats>, wait: Wait) -> Result<Met> {
    let world = bootstrap.world();
    let wait = wait.with_progress(settings.progress.clone());
    let root = Path::new("/");
    let mine = PeerInfo {
        rank: world.rank,
        host: host_id(settings.host_id.as_deref(), settings.sizes.sockets.folder)?,
        process: process_token()?,
        pid: std::process::id(),
        space: process_space(),
        cores: u32::try_from(cpu::allowed()).unwrap_or(u32::MAX),
        settings: settings.equal.fingerprint(),
        tuning: Tuning::hash(settings.tuning.as_ref()),
        home: settings.standing.home(root),
        switches: settings.standing.switches(settings.host_id.as_deref())?,
        is_traced: spans::is_on(),
    };
    let reading = wait.clone().with_notes(Some(failure_reader()));
    let seat =
        if known.is_none() { seats::encode(&placement::seat_of_thread(&settings.visible_devices)) } else { Vec::new() };
    let own = nics::encode(&settings.data_interfaces.nics(bootstrap.interface().ip(), world.rank)?);
    let (interface, verbs) = (bootstrap.interface().ip(), &settings.verbs);
    let seeker = NetworkSeeker { me: world.rank, node: mine.home.node, interface, verbs };
    let network = settings.find_network(world, seeker, root);
    let mine_told = [&mine.encode()[..], &own, &network.told(), &host_names::told(), &seat].concat();
    let gathered = bootstrap.all_gather(&mine_told, &reading)?;
    let parts = gathered.iter().map(|bytes| bytes.split_at(PeerInfo::BYTES.min(bytes.len())));
    let (peers, told): (Vec<_>, Vec<_>) =
        world.ranks().zip(parts).map(|(rank, (peer, told))| (PeerInfo::decode(rank, peer), (rank, told))).unzip();
    let peers: Vec<PeerInfo> = peers.into_iter().collect::<Result<_>>()?;
    let (nics, told) = nics::decode(told)?;
    let (network, told) = network.agree(world.rank, world.ranks().zip(told))?;
    let (names, told) = HostNames::gathered(peers.iter().zip(told))?;
    let is_first = known.is_none();
    let seats = match known {
        // Where the seats are known nobody tells one.
        Some(known) => match world.ranks().zip(&told).find(|(_, rest)| !rest.is_empty()) {
            Some((rank, _)) => return Err(Error::remote(rank, format!("rank {rank} tells more than it was asked"))),
            None => known,
        },
        None => HostSeats::gathered(&mine, peers.iter().zip(told))?,
    };
    let Some(other) = peers.iter().find(|peer| peer.settings != mine.settings) else {
        Tuning::agree(settings.tuning.as_ref(), &peers, (bootstrap, &wait))?;
        if is_first && clocks::differ(&peers) {
            clocks::align(bootstrap, (world, &peers), &wait)?;
        }
        let network = match network {
            Agreement::Made(network) => network,
            Agreement::Hardware => look_for_hardware((bootstrap, &wait), &peers, seeker)?,
        };
        return Ok(Met { peers, seats, nics, network, names });
    };
    Err(other_settings(settings, other.rank, &bootstrap.all_gather(&settings.equal.told(), &wait)?))
}

/// The network of ranks that all have hardware, and have not been asked for it: sockets on one host, or where a rank
/// does not get it.
///
/// # Errors
/// Of the exchange.
fn look_for_hardware(
    (bootstrap, wait): (&dyn Bootstrap, &Wait),
    peers: &[PeerInfo],
    seeker: NetworkSeeker<'_>,
) -> Result<Network> {
    if peers.iter().all(|peer| peer.host == peers[0].host) {
        return Ok(Network::default());
    }
    let here = peers[seeker.me.index()].host;
    let far_ranks = peers.iter().filter(|peer| peer.host != here).count();
    let own = seeker.hardware(Path::new("/"), far_ranks);
    let told = bootstrap.all_gather(&own.told(), wait)?;
    let told = bootstrap.world().ranks().zip(told.iter().map(Vec::as_slice));
    match own.agree(seeker.me, told)?.0 {
        Agreement::Made(network) => Ok(network),
        Agreement::Hardware => Err(Error::internal("ranks that have looked for hardware have not looked")),
    }
}

/// The error of a rank whose settings are not those of `other`. Every rank finds one that differs from it, and no rank
/// leaves before all have told theirs: otherwise some would report a death.
fn other_settings(settings: &Settings, other: Rank, told: &[Vec<u8>]) -> Error {
    let differing = settings.equal.differing(other, &told[other.index()]);
    let what = if differing.is_empty() { "compare `rsccl env` on both".to_owned() } else { differing };
    let message = format!(
        "rank {other} has other settings than this rank, which must be equal on all ranks (variables, or the Config): \
         {what}"
    );
    Error::mismatch(message).about(other)
}

fn checked_world(rank: u32, world: u32) -> Result<World> {
    if rank >= world {
        let message = format!("rank {rank} is out of range: the world has {world} ranks");
        return Err(Error::invalid_argument(message));
    }
    Ok(World { rank: Rank::new(rank), size: world })
}
