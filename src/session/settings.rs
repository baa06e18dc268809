//! What the engine needs of the configuration, read and checked once.

pub(crate) mod data_interfaces;
pub mod differing;
pub mod searching;
pub mod standing;
pub mod tuning;

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::bootstrap::address::HostPort;
use crate::bootstrap::interface::{AddressFamily, Rules};
use crate::bootstrap::{Options, SharedSecret, sealed};
use crate::config::{Config, Encryption, Environment, MAX_CHANNELS, NETWORKS, Note, SocketFamily, VisibleDevices};
use crate::device::Sharing;
use crate::error::{Error, Result};
use crate::exec::PROMISED_MESSAGES;
use crate::log;
use crate::plan;
use crate::session::filters;
use crate::sync::ring::Shape;
use crate::sync::{Progress, TimeLimit};
use crate::topo::paths::PathKind;
use crate::topo::rails::DataNic;
use crate::topo::transport_choice::{self, ladder::WaySettings};
use crate::transport::{
    Congestion, DeadRoutes, KnownNetwork, KnownNic, NetworkSeeker, NetworkWish, OwnNetwork, Policy, Sizes,
    SocketFolder, SocketOptions, VerbsSettings, known_networks,
};
use crate::tune::{BUFFER_BYTES, COLLECTIVE_SLOTS, RingSizes};
use crate::types::{Algorithm, Filter, Protocol, Rank, World};
use data_interfaces::DataInterfaces;
use differing::{Effect, EqualSettings};
use searching::Searching;
use standing::Standing;
use tuning::Tuning;

/// What the engine needs of the configuration, read and checked once.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    /// The communicator's name in logs.
    pub(crate) name: String,
    /// Whether init, split and shrink return at once.
    pub(crate) blocking: bool,
    /// How long an operation may wait, be it a split or a shrink.
    pub(crate) timeout: TimeLimit,
    /// How long init may wait.
    pub(crate) init_timeout: TimeLimit,
    /// What the user has given in place of the host's name and boot id.
    pub(crate) host_id: Option<String>,
    /// How long a wait stays awake before it parks.
    pub(crate) awake: Duration,
    /// What transports are forbidden.
    pub(crate) policy: Policy,
    /// How memory of devices is allocated that other processes map.
    pub(crate) device_sharing: Sharing,
    /// By which ways ranks may reach each other's memory.
    pub(crate) ways: WaySettings,
    /// `NCCL_P2P_USE_CUDA_MEMCPY`.
    pub(crate) copy_engines: bool,
    /// `NCCL_MNNVL_ENABLE=1`: it is an error where GPUs of several hosts do not reach each other's memory by NVLinks.
    pub(crate) needs_mnnvl: bool,
    /// `NCCL_P2P_LL_THRESHOLD`: bytes of the longest message between GPUs that goes as lines.
    pub(crate) most_line_message_bytes: u64,
    /// Sizes of rings and scratch.
    pub(crate) sizes: Sizes,
    /// The same bits whatever the size, algorithm or transport.
    pub(crate) reproducible: bool,
    /// Whether ranks of one device wait for each other on the device, as ranks of several do.
    pub(crate) split_cohorts: bool,
    /// Output of at least this many bytes is written past the caches.
    pub(crate) streaming_bytes: u64,
    /// The least and the most channels that plans may use.
    pub(crate) channels: (u32, u32),
    /// Which algorithms may be chosen.
    pub(crate) algorithms: Filter<Algorithm>,
    /// Which protocols may be chosen.
    pub(crate) protocols: Filter<Protocol>,
    /// Which protocols the user asks for: devices have some that host memory lacks.
    pub(crate) asked_protocols: Filter<Protocol>,
    /// How many ranks of a host work in each other's memory at once, where the user says so.
    pub(crate) team_ranks: Option<usize>,
    /// By what the rank's place on its host is found.
    pub(crate) standing: Standing,
    /// Which interfaces carry data.
    pub(crate) data_interfaces: DataInterfaces,
    /// By which of them no data reach some ranks. What is made from a communicator knows what that has found out.
    pub(crate) dead_routes: DeadRoutes,
    /// The network between hosts that the user asks for.
    pub(crate) network: NetworkWish,
    /// What it says of verbs.
    pub(crate) verbs: VerbsSettings,
    /// Whether it is an error where this rank does not have it.
    pub(crate) insists_on_network: bool,
    /// Whether NICs reach memory of GPUs.
    pub(crate) gpu_direct: GpuDirectSettings,
    /// By what the channels between GPUs are searched for.
    pub(crate) searching: Searching,
    /// Where records of passed deadlines go.
    pub(crate) record_dir: Option<PathBuf>,
    /// Whether one is written when SIGTERM ends the process.
    pub(crate) record_at_sigterm: bool,
    /// Where ncclras is answered.
    pub(crate) ras_addr: Option<String>,
    /// Where a trace goes, and whether it has the steps of plans.
    pub(crate) trace: (Option<PathBuf>, bool),
    /// Whether a profiler gets ranges of calls.
    pub(crate) has_ranges: bool,
    /// Of a communicator that was split from another: this rank in the first of them all.
    pub(crate) first_rank: Option<Rank>,
    /// What things cost, where it was measured.
    pub(crate) tuning: Option<Tuning>,
    /// Whether windows wait for their first use.
    pub(crate) connect_late: bool,
    /// What the program wants moved while a call waits, when the communicator begins.
    pub(crate) progress: Option<Progress>,
    /// Whether the communicator was made from one of MPI's: the program may have messages of MPI under way.
    pub(crate) beside_mpi: bool,
    /// The GPUs that the program's environment leaves it. Read here, on the program's own thread: while a non-blocking
    /// init goes on, the program may change its environment.
    pub(crate) visible_devices: VisibleDevices,
    /// What of all this must be equal on all ranks.
    pub(crate) equal: EqualSettings,
}

/// What the user says of NICs that reach memory of GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GpuDirectSettings {
    /// `NCCL_NET_GDR_LEVEL`.
    pub level: Option<PathKind>,
    /// `NCCL_NET_GDR_READ`.
    pub reads: Option<bool>,
    /// `NCCL_DMABUF_ENABLE`.
    pub dma_buf: bool,
}

impl GpuDirectSettings {
    /// Of a configuration that has been resolved.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] that names the variable.
    pub fn read(config: &Config) -> Result<GpuDirectSettings> {
        let level = |text: &String| transport_choice::level("NCCL_NET_GDR_LEVEL", text);
        let level = config.net_gdr_level.as_ref().map(level).transpose()?;
        Ok(GpuDirectSettings { level, reads: config.net_gdr_read, dma_buf: config.dmabuf_enable })
    }
}

impl Settings {
    /// Reads `config`, which has been resolved.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] that names the variable.
    pub(crate) fn read(config: &Config) -> Result<Settings> {
        let (algorithms, protocols, asked_protocols) = read_filters(config)?;
        let shape = |RingSizes { slots, slot_bytes }: RingSizes| Shape { slots, slot_bytes, spread: 1 };
        let of_messages = |slots, usual| shape(RingSizes::of(slots, config.buffer_bytes.unwrap_or(usual)));
        let (least, most) = (config.min_channels.unwrap_or(1), config.max_channels.unwrap_or(MOST_CHANNELS));
        let most = most.clamp(1, MOST_CHANNELS);
        let scratch_bytes = usize::try_from(config.scratch_bytes)
            .map_err(|_| Error::invalid_argument("RSCCL_SCRATCH_BYTES does not fit the address space"))?;
        let mut settings = Settings {
            name: config.name.clone(),
            blocking: config.blocking,
            timeout: TimeLimit { time: config.timeout, variable: Some("RSCCL_TIMEOUT_MS") },
            init_timeout: TimeLimit { time: config.init_timeout, variable: Some("RSCCL_INIT_TIMEOUT_MS") },
            host_id: config.host_id.clone(),
            awake: config.spin,
            policy: Policy {
                no_local: config.p2p_disable,
                no_shm: config.shm_disable,
                no_peer_reads: config.cma_disable,
                slow_peer_reads: config.cma_force,
            },
            ways: ways(config)?,
            copy_engines: config.p2p_use_cuda_memcpy,
            needs_mnnvl: config.mnnvl_enable == 1,
            most_line_message_bytes: config.p2p_ll_threshold_bytes,
            device_sharing: if config.cumem_enable { Sharing::Processes } else { Sharing::ProcessesByHandle },
            sizes: Sizes {
                shape: shape(RingSizes::of_collectives(config.buffer_bytes)),
                messages_in_memory: Shape { spread: MESSAGE_SPREAD, ..of_messages(MESSAGE_SLOTS, BUFFER_BYTES) },
                messages_over_sockets: of_messages(COLLECTIVE_SLOTS, SOCKET_MESSAGE_BUFFER_BYTES),
                scratch_bytes,
                sockets: socket_options(config)?,
            },
            reproducible: config.reproducible,
            split_cohorts: split_cohorts(config)?,
            streaming_bytes: STREAMING_BYTES,
            channels: (least.clamp(1, most), most),
            algorithms,
            protocols,
            asked_protocols,
            team_ranks: config.team_ranks.map(|ranks| ranks as usize),
            standing: Standing::read(config)?,
            data_interfaces: DataInterfaces::read(config, bootstrap_options(config)?)?,
            dead_routes: DeadRoutes::default(),
            network: NetworkWish::of(config),
            gpu_direct: GpuDirectSettings::read(config)?,
            verbs: verbs(config),
            insists_on_network: config.net_strict,
            searching: Searching::read(config)?,
            record_dir: config.record_dir.clone(),
            record_at_sigterm: config.record_at_sigterm,
            ras_addr: config.ras_addr.clone().filter(|_| config.ras_enable),
            trace: (config.trace.clone(), config.trace_steps),
            has_ranges: !config.nvtx_disable && is_profiled(),
            first_rank: None,
            tuning: Tuning::read(config)?,
            connect_late: config.runtime_connect,
            progress: None,
            beside_mpi: false,
            visible_devices: VisibleDevices::read(&Environment::capture()),
            equal: EqualSettings::default(),
        };
        settings.equal = EqualSettings::of(settings.effects(), config);
        Ok(settings)
    }

    /// Looks for the network between hosts, for a rank whose communicator has met. A rank alone needs none.
    pub(crate) fn find_network(&self, world: World, seeker: NetworkSeeker<'_>, root: &Path) -> OwnNetwork {
        let wish = if world.size > 1 { &self.network } else { &NetworkWish::Sockets };
        OwnNetwork::find(wish, seeker, (self.sizes.sockets.encryption, self.insists_on_network), root)
    }

    /// What must be equal on all ranks.
    fn effects(&self) -> [Effect; 22] {
        let Settings { policy, sizes, ways, .. } = self;
        // Each field by its name: one that is added breaks the build here, and so is not forgotten.
        let Policy { no_local, no_shm, no_peer_reads, slow_peer_reads } = policy;
        let Sizes { shape, messages_in_memory, messages_over_sockets, scratch_bytes, sockets } = sizes;
        // Each rank listens where it likes, and each end judges a socket's silence, and sends, by its own. Ranks with
        // different folders are on different hosts.
        let SocketOptions {
            sockets,
            send_buffer_bytes,
            receive_buffer_bytes,
            ports: _,
            silence: _,
            congestion: _,
            encryption,
            folder: _,
        } = sockets;
        let buffers = (shape, messages_in_memory, messages_over_sockets);
        [
            (&["NCCL_P2P_DISABLE"], shown(no_local)),
            (&["NCCL_SHM_DISABLE"], shown(no_shm)),
            (&["RSCCL_CMA_DISABLE"], shown(no_peer_reads)),
            (&["RSCCL_CMA_FORCE"], shown(slow_peer_reads)),
            (&["NCCL_P2P_USE_CUDA_MEMCPY"], shown(&self.copy_engines)),
            (&["NCCL_P2P_LL_THRESHOLD"], shown(&self.most_line_message_bytes)),
            (&["NCCL_BUFFSIZE"], shown(&buffers)),
            (&["RSCCL_SCRATCH_BYTES"], shown(scratch_bytes)),
            (&["NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD"], shown(sockets)),
            (&["NCCL_SOCKET_SNDBUF"], shown(send_buffer_bytes)),
            (&["NCCL_SOCKET_RCVBUF"], shown(receive_buffer_bytes)),
            (&["RSCCL_ENCRYPT"], shown(encryption)),
            (&["NCCL_NET", "NCCL_NET_PLUGIN"], shown(&self.network.library())),
            (&["RSCCL_REPRODUCIBLE"], shown(&self.reproducible)),
            (&["RSCCL_COHORT"], shown(&self.split_cohorts)),
            (&["NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"], shown(&self.channels)),
            (&["NCCL_ALGO", STRICT], shown(&self.algorithms)),
            (&["NCCL_PROTO", STRICT], shown(&(&self.protocols, &self.asked_protocols))),
            (&["RSCCL_TEAM_RANKS"], shown(&self.team_ranks)),
            (&["NCCL_CROSS_NIC"], shown(&self.searching.cross)),
            (&["NCCL_P2P_LEVEL"], shown(&ways.level)),
            // A rank that maps its host's memory in init waits there for the others.
            (&["NCCL_RUNTIME_CONNECT"], shown(&self.connect_late)),
        ]
    }
}

/// Checks what programs check of `config` when they begin, and ranks when they meet on GPUs; for `rsccl env`.
///
/// # Errors
/// Those that a program gets.
pub fn check(config: &Config) -> Result<()> {
    let config = &config.clone().resolve_in(&Environment::default())?;
    let settings = Settings::read(config)?;
    let options = bootstrap_options(config)?;
    if let Some(place) = &options.comm_id {
        let place = place.parse::<HostPort>();
        place.map_err(|error| error.during("the fixed address (NCCL_COMM_ID, Config::with_comm_id)"))?;
    }
    settings.standing.switches(settings.host_id.as_deref())?;
    settings.searching.machine()?;
    settings.searching.graphs()?;
    Ok(())
}

/// The interfaces that carry data of ranks of this machine by `config`, which has been resolved; for `rsccl topo`.
///
/// # Errors
/// Of the settings; [`crate::error::Kind::InvalidUsage`] where no interface is usable.
pub fn nics_here(config: &Config) -> Result<Vec<DataNic>> {
    DataInterfaces::read(config, bootstrap_options(config)?)?.here()
}

/// What ranks of this machine have of the network that `config`, which has been resolved, asks for or leaves open, line
/// by line; for `rsccl topo`. Nothing where it asks for sockets. `root` is `/`, or a folder that replaces it in tests.
///
/// # Errors
/// As [`nics_here`].
pub fn network_here(config: &Config, root: &Path) -> Result<Vec<String>> {
    let (nics, node, verbs) = (nics_here(config)?, Standing::read(config)?.home(root).node, verbs(config));
    let seeker = NetworkSeeker { me: Rank::new(0), node, interface: first_address(&nics), verbs: &verbs };
    Ok(NetworkWish::of(config).described(seeker, root))
}

/// All networks that this machine has, sockets first, each with its NICs; for `rsccl topo`.
///
/// # Errors
/// Of the settings.
pub fn networks_here(config: &Config, root: &Path) -> Result<Vec<KnownNetwork>> {
    let verbs = verbs(config);
    let (nics, noes) = match nics_here(config) {
        Ok(nics) if nics.is_empty() => (nics, vec!["no interface leads to other hosts".to_owned()]),
        Ok(nics) => (nics, Vec::new()),
        Err(error) => (Vec::new(), vec![error.message().to_owned()]),
    };
    let seeker = NetworkSeeker { me: Rank::new(0), node: None, interface: first_address(&nics), verbs: &verbs };
    let of_nic = |nic: DataNic| KnownNic {
        by: format!("{}/{}", nic.address, nic.subnet_bits),
        device: nic.name,
        rate_mbit: nic.rate_mbit,
        node: nic.node,
    };
    let sockets = KnownNetwork { name: NETWORKS[0].to_owned(), nics: nics.into_iter().map(of_nic).collect(), noes };
    Ok(std::iter::once(sockets).chain(known_networks(&NetworkWish::of(config), seeker, root)).collect())
}

/// Where no interface leads to other hosts, ranks meet on loopback.
fn first_address(nics: &[DataNic]) -> IpAddr {
    nics.first().map_or(Ipv4Addr::LOCALHOST.into(), |nic| nic.address)
}

/// What `config`, which has been resolved, says of the ways between ranks; for `rsccl topo` too.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] that names the variable.
pub fn ways(config: &Config) -> Result<WaySettings> {
    let level = |text: &String| transport_choice::level("NCCL_P2P_LEVEL", text);
    Ok(WaySettings {
        no_p2p: config.p2p_disable,
        no_shm: config.shm_disable,
        no_pointers: config.p2p_direct_disable,
        by_handle: !config.cumem_enable,
        no_mnnvl: config.mnnvl_enable == 0,
        reads: config.p2p_read_enable,
        level: config.p2p_level.as_ref().map(level).transpose()?,
    })
}

fn socket_options(config: &Config) -> Result<SocketOptions> {
    Ok(SocketOptions {
        sockets: (config.socket_threads.is_some() || config.sockets_per_thread.is_some())
            .then(|| config.socket_threads.unwrap_or(1).max(1) * config.sockets_per_thread.unwrap_or(1).max(1)),
        send_buffer_bytes: config.socket_send_bytes.and_then(|bytes| u32::try_from(bytes).ok()),
        receive_buffer_bytes: config.socket_receive_bytes.and_then(|bytes| u32::try_from(bytes).ok()),
        ports: config.port_range,
        silence: config.nic_timeout,
        congestion: config.tcp_congestion.as_deref().map(Congestion::named).transpose()?,
        encryption: config.encrypt,
        folder: config.socket_dir.as_deref().map(SocketFolder::at).transpose()?,
    })
}

/// What `config` says of verbs. Its ranges are the registry's.
fn verbs(config: &Config) -> VerbsSettings {
    let VerbsSettings { roce_version, timeout, retries, service_level, traffic_class, partition, pairs, .. } =
        VerbsSettings::default();
    let byte = |value: u32, usual: u8| u8::try_from(value).unwrap_or(usual);
    VerbsSettings {
        is_disabled: config.ib_disable,
        devices: config.ib_hca.clone(),
        gid_index: config.ib_gid_index,
        family: config.ib_addr_family,
        roce_version: byte(config.ib_roce_version_num, roce_version),
        timeout: byte(config.ib_timeout, timeout),
        retries: byte(config.ib_retry_cnt, retries),
        service_level: config.ib_sl.map_or(service_level, |level| byte(level, service_level)),
        traffic_class: config.ib_tc.map_or(traffic_class, |class| byte(class, traffic_class)),
        partition: u16::try_from(config.ib_pkey).unwrap_or(partition),
        pairs: byte(config.ib_qps_per_connection, pairs),
        ports: config.port_range,
    }
}

/// Whether `RSCCL_COHORT` asks for `split`.
fn split_cohorts(config: &Config) -> Result<bool> {
    let Some(cohort) = config.cohort.as_deref() else { return Ok(false) };
    if cohort.eq_ignore_ascii_case("split") {
        return Ok(true);
    }
    if cohort.eq_ignore_ascii_case("joint") {
        return Ok(false);
    }
    Err(Error::invalid_argument(format!("RSCCL_COHORT, Config::with_cohort: {cohort:?} is neither joint nor split")))
}

/// Whether a profiler has been injected into this process that hears of ranges of NVTX. NVTX's library loads without
/// one, too; then nobody hears of them.
fn is_profiled() -> bool {
    let environment = Environment::capture();
    ["NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH"].iter().any(|name| environment.has(name))
}

/// The algorithms and protocols that `NCCL_ALGO` and `NCCL_PROTO` allow. Unless filters are strict, a collective for
/// which they leave none runs as if there were no filter, and the log says so once in a process. Behind them: the
/// protocols as they were asked for.
fn read_filters(config: &Config) -> Result<(Filter<Algorithm>, Filter<Protocol>, Filter<Protocol>)> {
    let (algo, proto) = (config.algo.as_deref().unwrap_or(""), config.proto.as_deref().unwrap_or(""));
    let mut algorithms = Filter::parse(algo)
        .map_err(|error| error.during("the algorithms to choose from (NCCL_ALGO, Config::with_algo)"))?;
    let mut protocols = Filter::parse(proto)
        .map_err(|error| error.during("the protocols to choose from (NCCL_PROTO, Config::with_proto)"))?;
    let asked = protocols.clone();
    if !config.strict_filters {
        let lines = filters::open_algorithms(&mut algorithms).into_iter().map(|opened| opened.line("NCCL_ALGO", algo));
        let more = filters::open_protocols(&mut protocols).into_iter().map(|opened| opened.line("NCCL_PROTO", proto));
        lines.chain(more).for_each(|line| log::say_once(&Note::Warning(line)));
    }
    Ok((algorithms, protocols, asked))
}

/// What the bootstrap needs of `config`, which has been resolved.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] that names the variable.
pub(crate) fn bootstrap_options(config: &Config) -> Result<Options> {
    let interfaces = match &config.socket_interfaces {
        Some(text) => text.parse().map_err(|error: Error| {
            error.during("the interfaces to use (NCCL_SOCKET_IFNAME, Config::with_socket_interfaces)")
        })?,
        None => Rules::default(),
    };
    if config.encrypt != Encryption::Off {
        sealed::check_built()?;
    }
    Ok(Options {
        comm_id: config.comm_id.clone(),
        secret: config.secret.as_ref().map(|secret| SharedSecret::new(secret.expose())).transpose()?,
        interfaces,
        family: match config.socket_family {
            None => AddressFamily::Any,
            Some(SocketFamily::Inet) => AddressFamily::V4,
            Some(SocketFamily::Inet6) => AddressFamily::V6,
        },
        ports: config.port_range,
        retry_count: config.socket_retries,
        retry_sleep: config.socket_retry_sleep,
        check_in_timeout: config.init_timeout,
        encryption: config.encrypt,
        ..Options::default()
    })
}

/// An effect in words, to compare it.
fn shown(effect: &impl std::fmt::Debug) -> String {
    format!("{effect:?}")
}

/// What [`read_filters`] obeys besides.
const STRICT: &str = "RSCCL_STRICT_FILTERS";
/// Slots of a ring in memory for messages between two ranks: four for each that it promises room for (measured:
/// `bench/NOTES.md`, "Messages in quarters").
const MESSAGE_SLOTS: u32 = 4 * PROMISED_MESSAGES;
/// Over how many times as much memory their payloads are spread: of 3.4 MiB messages of 16 to 64 KiB touch some 2.5,
/// more than twice the second-level cache of present processors (measured: `bench/NOTES.md`, "Lines that have left the
/// other processor's cache").
const MESSAGE_SPREAD: u32 = 3;
const _: () = assert!(COLLECTIVE_SLOTS >= PROMISED_MESSAGES, "rings over sockets keep the promise too");
/// The same of the rings behind sockets that messages between two ranks go by (measured: `bench/NOTES.md`, "Sockets:
/// larger pieces").
const SOCKET_MESSAGE_BUFFER_BYTES: u64 = 4 << 20;
#[expect(clippy::cast_possible_truncation, reason = "NCCL's maximum is 64")]
const MOST_CHANNELS: u32 = MAX_CHANNELS as u32;
const _: () = assert!(MOST_CHANNELS <= plan::MOST_CHANNELS);
/// Output of this size would drive everything else out of the caches.
const STREAMING_BYTES: u64 = 8 << 20;
