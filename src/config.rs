//! Configuration: the program's settings, which the environment and the configuration files override.
//!
//! A program makes a [`Config`] and passes it on; [`Config::resolve`] applies the user's settings to it. Strongest
//! first:
//!
//! 1. `RSCCL_X` of the environment, 2. `NCCL_X` of the environment, 3. the user's file (`NCCL_CONF_FILE`, else
//!    `~/.nccl.conf`), 4. `/etc/nccl.conf`, 5. what the program set, 6. the default.
//!
//! `rsccl env` prints all names, with what each says and where it is set. This module is the only reader of the
//! environment and of those files. It prints nothing: the log prints remarks.
//!
//! ```
//! use rsccl::config::{Config, Environment};
//! let environment = Environment::of([("NCCL_ALGO", "Ring"), ("RSCCL_TIMEOUT_MS", "5000")]);
//! let config = Config::default().with_name("train").resolve_in(&environment)?;
//! assert_eq!((config.algo.as_deref(), config.timeout.as_secs(), &*config.name), (Some("Ring"), 5, "train"));
//! # Ok::<(), rsccl::Error>(())
//! ```

#![forbid(unsafe_code)]

#[cfg(any(feature = "mpi", feature = "cpp"))]
mod init_deadline;
pub(crate) mod ancestors;
mod debug;
mod devices;
mod environment;
mod file;
pub mod launch;
pub(crate) mod layers;
pub(crate) mod nearest;
pub(crate) mod registry;
mod secret;
mod setters;
pub(crate) mod setting;
mod socket;
mod store_address;
pub(crate) mod value;

use std::path::{Path, PathBuf};
use std::time::Duration;

pub use debug::{DebugLevel, DebugLevels, Subsystem, SubsystemSet};
pub(crate) use devices::{DeviceName, VisibleDevices};
pub use environment::Environment;
pub(crate) use environment::VariablesTurn;
pub use launch::{Launch, StoreAddress};
pub(crate) use layers::{Note, Source};
pub use registry::{MAX_CHANNELS, MAX_SOCKETS};
pub(crate) use registry::{VARIABLES, Variable};
pub use secret::{MAX_SECRET_BYTES, Secret};
pub use socket::{Encryption, PortRange, SocketFamily};

use crate::error::{Error, Result, shown};
use layers::{Found, Layers};
use setting::Setting;
use value::{Kind, Value};

/// The behaviour of communicators. `None` leaves a choice to the library; each field's documentation ends with its
/// variable and its default.
///
/// All ranks of a communicator must have equal algorithms, protocols, channels, sizes, forbidden transports and
/// reproducibility, and what says "equal on all ranks" below: otherwise joining fails on every rank with
/// [`crate::error::Kind::Mismatch`], which names a rank that differs, the variable and both values. The other fields
/// may differ as long as the ranks find each other.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// Whether init, split and shrink return when they are done. If not, they return at once, and calls fail with
    /// `InProgress` until the communicator can be used. Collectives and messages block in any case.
    /// `NCCL_COMM_BLOCKING`; true.
    pub blocking: bool,
    /// The communicator's name in logs. `NCCL_COMM_NAME`; empty.
    pub name: String,
    /// The deadline of each operation of a communicator that stands, from its first wait on: also of splits, shrinks
    /// and registrations. The set-up of a first call counts. [`Duration::MAX`], 0 in the variable: wait for
    /// ever. `RSCCL_TIMEOUT_MS`; 10 minutes.
    pub timeout: Duration,
    /// The deadline of a communicator's init. [`Duration::MAX`], 0 in the variable: wait for ever.
    /// `RSCCL_INIT_TIMEOUT_MS`; 2 minutes.
    pub init_timeout: Duration,
    /// The same bits whatever the size, algorithm, channels and transport, and whatever the floating-point modes of the
    /// ranks' threads (flush to zero, rounding), which this mode sets and puts back around its arithmetic in memory of
    /// the host. Otherwise ranks compute in the modes that their threads have. `RSCCL_REPRODUCIBLE`; false.
    pub reproducible: bool,
    /// How long a wait stays awake (spins, then yields) before it sleeps. `RSCCL_SPIN_US`; 1 ms.
    pub spin: Duration,
    /// Which algorithms may be chosen, in NCCL's syntax. `NCCL_ALGO`.
    pub algo: Option<String>,
    /// Which protocols may be chosen, in NCCL's syntax. `NCCL_PROTO`.
    pub proto: Option<String>,
    /// Whether a call is an error if `algo` or `proto` allow nothing that can run it; if not, the call ignores them,
    /// and the log says so once. `RSCCL_STRICT_FILTERS`; false.
    pub strict_filters: bool,
    /// How ranks that share a GPU run: `joint`, in one launch in which nobody waits, where that is possible, or
    /// `split`, each rank by itself, waiting for the others on the GPU. `split` is slower; with it one GPU tests what
    /// several do. Processes that share a GPU take turns there then, each of some milliseconds, unless NVIDIA's MPS
    /// runs them together. Equal on all ranks. `RSCCL_COHORT`; joint.
    pub cohort: Option<String>,
    /// A call uses at least this many channels, if it fills at least one slot on each. Calls that work in memory which
    /// the ranks of a host share use at most 4; the log says so where more are asked for. `NCCL_MIN_NCHANNELS`,
    /// `NCCL_MIN_CTAS`; 1.
    pub min_channels: Option<u32>,
    /// The most channels: parts of a large call that run at the same time. Within these bounds the library chooses, and
    /// never more than 4 in memory that the ranks of a host share. `NCCL_MAX_NCHANNELS`, `NCCL_MAX_CTAS`; 64.
    pub max_channels: Option<u32>,
    /// The bytes of all slots of one connection. Large collectives inside a host work in the memory of its ranks and
    /// use no slots. `NCCL_BUFFSIZE`; 1 MiB, and 4 MiB for the messages of two ranks that meet over sockets.
    pub buffer_bytes: Option<u64>,
    /// The bytes of a rank's scratch window, which the ranks of its host can access. `RSCCL_SCRATCH_BYTES`; 4 MiB.
    pub scratch_bytes: u64,
    /// Forbids direct pointers between ranks of one process. `NCCL_P2P_DISABLE`; false.
    pub p2p_disable: bool,
    /// Forbids that GPUs of one process use each other's addresses: their ranks hand memory of the library over by
    /// descriptors, as those of two processes do, and their windows are registered in name. It counts for a pair if one
    /// of the two sets it. `NCCL_P2P_DIRECT_DISABLE`; false.
    pub p2p_direct_disable: bool,
    /// Lets the copy engines of GPUs run the calls in windows that only move data (`all_gather`, `all_gather_v`,
    /// `all_to_all`, `broadcast`, `gather`, `scatter`), so that its processors are free for the program's kernels.
    /// Equal on all ranks.
    /// `NCCL_P2P_USE_CUDA_MEMCPY`; false.
    pub p2p_use_cuda_memcpy: bool,
    /// Whether the slots of a connection between two GPUs lie at the sender, from which the receiver reads them (read
    /// mode), where both ranks want it. `None`: between GPUs of compute capability 8.0 with NVLinks, as in NCCL.
    /// `NCCL_P2P_READ_ENABLE`; `None`.
    pub p2p_read_enable: Option<bool>,
    /// Whether GPUs of several hosts of one NVLink clique reach each other's memory (multi-node NVLink), by fabric
    /// handles: 0 never; 1: it is an error where a pair of ranks of two hosts does not; 2: where a trial works.
    /// `NCCL_MNNVL_ENABLE`; 2.
    pub mnnvl_enable: u32,
    /// The bytes of the longest message between two GPUs whose words carry their own flags (LL, or LL128 where
    /// [`Config::proto`] leaves that alone); longer ones go by Simple, and with 0 all do. A connection has room for
    /// eight such messages of up to 16 KiB, and for fewer where they are longer. Equal on all ranks.
    /// `NCCL_P2P_LL_THRESHOLD`; 16 KiB, as in NCCL.
    pub p2p_ll_threshold_bytes: u64,
    /// Forbids shared memory between ranks of one host. `NCCL_SHM_DISABLE`; false.
    pub shm_disable: bool,
    /// Forbids that ranks of one host read each other's memory in place, by `process_vm_readv`: all that is in no
    /// registered buffer is copied through shared memory then. Where the kernel forbids it, that happens by itself.
    /// Equal on all ranks. `RSCCL_CMA_DISABLE`; false.
    pub cma_disable: bool,
    /// Lets ranks read each other's memory in place also where the kernel copies so slowly that two plain copies
    /// through shared memory take less time; else each process measures that once. Equal on all ranks.
    /// `RSCCL_CMA_FORCE`; false.
    pub cma_force: bool,
    /// Whether GPU memory goes to other processes in the newer way, by descriptors of `cuMemCreate`'s memory; if not,
    /// by `cuIpcGetMemHandle`. GPUs that lack the newer way take the older. `NCCL_CUMEM_ENABLE`; true.
    pub cumem_enable: bool,
    /// How far apart GPUs may be that reach each other's memory: LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS, NET
    /// or DIS, or 0 (LOC) to 5 (SYS). Others talk through host memory. Equal on all ranks. `NCCL_P2P_LEVEL`; as far as
    /// the driver lets them.
    pub p2p_level: Option<String>,
    /// How far a NIC may be from the GPU whose memory it reads and writes by itself (GPUDirect RDMA): LOC (never), PIX,
    /// PXB, PHB, SYS. A NIC whose place is not known counts as PHB. `rsccl topo` obeys it too. `NCCL_NET_GDR_LEVEL`;
    /// several PCI bridges, PXB.
    pub net_gdr_level: Option<String>,
    /// Whether a NIC that may write memory of a GPU reads it too, for what is sent. `NCCL_NET_GDR_READ`; where the GPU
    /// has compute capability 8.0, or NVLinks.
    pub net_gdr_read: Option<bool>,
    /// Whether GPU memory is handed to NICs as a DMA-BUF, where driver and NIC have them; else by its address, which
    /// takes the module `nvidia_peermem`. `NCCL_DMABUF_ENABLE`; true.
    pub dmabuf_enable: bool,
    /// Whether a channel may leave a host by another NIC than it enters by: 0 never, 1 where that is no worse, 2 where
    /// it is better. Channels between GPUs are searched for by it. Of sockets, 0 gives each channel one rail for what
    /// is not cut into parts; else a connection begins with the rails of its receiver. Equal on all ranks.
    /// `NCCL_CROSS_NIC`; 2.
    pub cross_nic: u32,
    /// A topology file (NCCL's, RCCL's, or hwloc's XML) in place of what this machine's system tells, for `rsccl topo`
    /// and for communicators on GPUs: they take the links between GPUs and NICs from it; what it leaves out of GPUs
    /// NVML tells. A file of processors alone, without GPUs and NICs, tells the NUMA nodes of all ranks. A file that
    /// cannot be opened is left out with a warning, as in NCCL. `NCCL_TOPO_FILE`.
    pub topo_file: Option<PathBuf>,
    /// Whether the processors on which a rank may run say nothing about where it stands: then the ranks of a host are
    /// equals. `NCCL_IGNORE_CPU_AFFINITY`; false.
    pub ignore_cpu_affinity: bool,
    /// A file that says which hosts hang on which switches of the network: a line for each group, as
    /// `rack-a: node[01-04]`, or Slurm's `topology.conf` (switches, or blocks: a group a block) or `topology.yaml` (of
    /// several topologies the one that is called as this job's partition, `SLURM_JOB_PARTITION`, else the cluster's).
    /// Hosts of one group follow each other in rings and trees; ring, torus3d and flat have no groups. They are told by
    /// their names, or by [`Config::host_id`]. `RSCCL_SWITCH_FILE`; what Slurm says (`SLURM_TOPOLOGY_ADDR`).
    /// `rsccl topo` shows what it understood.
    pub switch_file: Option<PathBuf>,
    /// The processors by which the rank's place on its host (socket, NUMA node, cache) is found, as `0-3,8`; each rank
    /// has its own. `RSCCL_PROCESSORS`; those on which it may run.
    pub processors: Option<String>,
    /// A file of measured costs, by which algorithms are chosen; `rsccl tune` writes it. Its constants are equal on all
    /// ranks. It rules inside a host too, for calls on host memory that are longer than one slot of a small call;
    /// without a file these are direct on a host of up to 64 ranks. `RSCCL_TUNE_FILE`; usual costs of present servers.
    pub tune_file: Option<PathBuf>,
    /// A folder in which each process writes what its ranks were doing, with their latest collectives, when a call of
    /// theirs passes its deadline; `rsccl status --explain` says where the ranks differ. `RSCCL_RECORD_DIR`; nothing is
    /// written.
    pub record_dir: Option<PathBuf>,
    /// Whether a process writes that too when SIGTERM ends it, as launchers and `kill` send it. A program that handles
    /// the signal itself is left alone. `RSCCL_RECORD_SIGTERM`; false.
    pub record_at_sigterm: bool,
    /// Where a thread of the library answers NVIDIA's client `ncclras`: an address of loopback with its port, such as
    /// `localhost:28028`. The first process of a host to listen there tells of all ranks of its communicators on this
    /// host, and of others what they have told. `NCCL_RAS_ADDR`; nobody listens.
    pub ras_addr: Option<String>,
    /// Whether [`Config::ras_addr`] counts. `NCCL_RAS_ENABLE`; true.
    pub ras_enable: bool,
    /// A file for a trace of what each rank did when, as Chrome and Perfetto read it: calls, messages with arrows
    /// between ranks, the parts of an init. In the name `%r` is the rank (`threads` where ranks are threads), `%h` the
    /// host, `%p` the process; without any of them the rank stands before the ending. The first communicator of a
    /// process decides. `rsccl trace merge` makes one file of several. `RSCCL_TRACE`; none is written.
    pub trace: Option<PathBuf>,
    /// Whether the trace has the steps of plans too, on a track for each lane. `RSCCL_TRACE_STEPS`; false.
    pub trace_steps: bool,
    /// Whether profilers get no ranges of calls. They get them where one is injected (`NVTX_INJECTION64_PATH`, as
    /// Nsight Systems sets it) and `libnvToolsExt.so.1` loads. `NCCL_NVTX_DISABLE`; false.
    pub nvtx_disable: bool,
    /// How many ranks of a host work in each other's memory at once. A host of more is cut into teams, between its
    /// sockets and caches. Equal on all ranks. `RSCCL_TEAM_RANKS`; 64, and teams of 32 on hosts of more.
    pub team_ranks: Option<u32>,
    /// Where `rsccl topo` writes the topology as a file, and rank 0 that of a communicator's GPUs when they first meet.
    /// `NCCL_TOPO_DUMP_FILE`.
    pub topo_dump_file: Option<PathBuf>,
    /// A graph file in place of a search for channels between the GPUs of a host, for `rsccl topo` and for
    /// communicators of one host; those of several hosts search, and warn that they do not use it. A file that cannot
    /// be opened is left out with a warning, as in NCCL. `NCCL_GRAPH_FILE`.
    pub graph_file: Option<PathBuf>,
    /// Where `rsccl topo` writes the channels as a graph file, and rank 0 those between a communicator's GPUs when they
    /// first meet. `NCCL_GRAPH_DUMP_FILE`.
    pub graph_dump_file: Option<PathBuf>,
    /// The network between hosts: `Socket` (TCP), `libfabric` or `IB` (verbs), which are loaded while the program
    /// runs, or `plugin`, a network plug-in of NCCL's (`libnccl-net.so`, or that of [`Config::net_plugin`]). Another
    /// one is often a site's setting for NCCL: `Socket` is used in its place, with a warning, unless
    /// [`Config::net_strict`], and also where a rank finds no NIC of it that will do. Equal on all ranks. `NCCL_NET`;
    /// libfabric where the hosts of all ranks have hardware for it, else `Socket`.
    pub net: Option<String>,
    /// Whether a network that rsccl, or this rank, does not have is an error. `RSCCL_NET_STRICT`; false.
    pub net_strict: bool,
    /// Network plug-ins made for NCCL, between commas: files, or NAME for `libnccl-net-NAME.so`; the first that has a
    /// device counts. [`Config::net`] may say what it calls its network. On all ranks or none. `NCCL_NET_PLUGIN`.
    pub net_plugin: Option<String>,
    /// Whether `NCCL_NET=IB` uses no device, and sockets are used where [`Config::net`] is not set. `NCCL_IB_DISABLE`;
    /// false.
    pub ib_disable: bool,
    /// Devices of verbs by the beginnings of their names, `=` before the list for whole names, `^` for all others;
    /// each with `:port` where only that one is meant. The fastest of them is used. `NCCL_IB_HCA`; all.
    pub ib_hca: Option<String>,
    /// The place of the GID in its port's table. `NCCL_IB_GID_INDEX`; the best, by the next two and never link-local
    /// where another is there.
    pub ib_gid_index: Option<u32>,
    /// Of which family a GID is taken first. `NCCL_IB_ADDR_FAMILY`; IPv4.
    pub ib_addr_family: SocketFamily,
    /// Of which version of RoCE a GID is taken first. `NCCL_IB_ROCE_VERSION_NUM`; 2.
    pub ib_roce_version_num: u32,
    /// A packet without an answer is sent again after 4.096 µs times 2 to this power, at 0 never.
    /// `NCCL_IB_TIMEOUT`; 20.
    pub ib_timeout: u32,
    /// How often it is sent again before the connection fails. `NCCL_IB_RETRY_CNT`; 7, which soft RoCE takes for no
    /// end.
    pub ib_retry_cnt: u32,
    /// The service level of what is sent. `NCCL_IB_SL`; 0.
    pub ib_sl: Option<u32>,
    /// The traffic class of what is sent over RoCE, which is four times the DSCP. `NCCL_IB_TC`; 0.
    pub ib_tc: Option<u32>,
    /// The place of the partition key in its port's table. `NCCL_IB_PKEY`; 0.
    pub ib_pkey: u32,
    /// Queue pairs of a connection, which its messages take in turn; two ends use the smaller number.
    /// `NCCL_IB_QPS_PER_CONNECTION`; 1.
    pub ib_qps_per_connection: u32,
    /// Whether everything is connected at the first need. If not, a communicator of one host maps the memory of its
    /// ranks at set-up; connections, between hosts and on GPUs, wait for the first need all the same. Equal on all
    /// ranks. `NCCL_RUNTIME_CONNECT`; true.
    pub runtime_connect: bool,
    /// The identity of this host, in place of its name and boot id. `NCCL_HOSTID`.
    pub host_id: Option<String>,
    /// A fixed address of the root: `host:port` or `[ipv6]:port`. `NCCL_COMM_ID`.
    pub comm_id: Option<String>,
    /// The shared secret by which ranks prove themselves if the id comes from a fixed address or a store.
    /// `RSCCL_SECRET`, or the content of [`Config::secret_file`] after [`Config::resolve`].
    pub secret: Option<Secret>,
    /// A file that holds the secret, mode 600. `RSCCL_SECRET_FILE`.
    pub secret_file: Option<PathBuf>,
    /// Whether what goes over TCP is encrypted, between ranks and with roots and the stores that rsccl opens, by keys
    /// that each connection agrees on and both ends forget: who records it cannot read it, even if the id's secret
    /// becomes known later. Who knows that secret may still take part. Needs the cargo feature `encrypt`. Equal on all
    /// ranks. A `TcpStore` of the program's own has `StoreConfig::with_encrypt`. `RSCCL_ENCRYPT`; off.
    pub encrypt: Encryption,
    /// The store where the ranks of `from_env()` meet. `RSCCL_STORE`.
    pub store: Option<StoreAddress>,
    /// Interfaces in NCCL's syntax: prefixes, `=` exact, `^` excluded. Ranks meet over the first; data between hosts
    /// take all that a network joins (rails). `NCCL_SOCKET_IFNAME`; all but loopback and those of containers, bridges
    /// and tunnels.
    pub socket_interfaces: Option<String>,
    /// Which interface is on which network, as `eth0=0,eth1=1`: interfaces of two hosts with one number send data to
    /// each other. Each host names its own; the numbers count where both hosts of a pair have some. `RSCCL_RAILS`;
    /// interfaces with addresses in one subnet do.
    pub rails: Option<String>,
    /// For how long the other end of a data connection may answer nothing, not even the system's probes, until the
    /// call fails, in whole seconds from 2 on. A peer that computes or is stopped answers: its system does. Each rank
    /// has its own. `RSCCL_NIC_TIMEOUT`; 10 s.
    pub nic_timeout: Duration,
    /// The congestion control of data sockets, by the kernel's name for it: reno, cubic, bbr, dctcp. BBR paces what is
    /// sent, which costs time on a short network (`bench/rails --part congestion` measures it). Each rank has its own.
    /// `RSCCL_TCP_CONGESTION`; the system's (`net.ipv4.tcp_congestion_control`), and inside a host reno in place of
    /// BBR.
    pub tcp_congestion: Option<String>,
    /// The address family of all sockets. `NCCL_SOCKET_FAMILY`; any.
    pub socket_family: Option<SocketFamily>,
    /// A folder on this host that ranks in several network namespaces see, as two pods that mount one volume: they
    /// count as ranks of one host and share memory, which they hand over by sockets in the folder. Without it they use
    /// TCP. They run under one user. A process that is killed leaves its sockets there. An absolute path of at most 68
    /// bytes, for all ranks of the host. `RSCCL_SOCKET_DIR`; the network namespace is the bound of a host.
    pub socket_dir: Option<PathBuf>,
    /// The ports where this process listens, for a firewall that opens only these. It needs one for all its
    /// communicators, one more for each further interface that its data take and each set of options of data sockets,
    /// and rank 0 one more while ranks meet; an address that names its port (`NCCL_COMM_ID`, `MASTER_PORT`,
    /// `RSCCL_STORE`) has that one. Connections that go out have any port. `RSCCL_PORT_RANGE`; any free port.
    pub port_range: Option<PortRange>,
    /// One network connection has this times `sockets_per_thread` sockets; 0 counts as 1. No threads serve them:
    /// waiting ranks do. The sockets of a connection take its rails in turn. The product is equal on all ranks.
    /// `NCCL_SOCKET_NTHREADS`; where neither is set, each rail has one socket up to 10 Gbit/s, 4 up to 50, else 8.
    pub socket_threads: Option<u32>,
    /// One network connection has this times `socket_threads` sockets, at most [`MAX_SOCKETS`]; 0 counts as 1. The
    /// product is equal on all ranks. `NCCL_NSOCKS_PERTHREAD`; where neither is set, as `socket_threads` says.
    pub sockets_per_thread: Option<u32>,
    /// How often a refused connection is retried. `NCCL_SOCKET_RETRY_CNT`; 34.
    pub socket_retries: u32,
    /// The pause before the k-th retry is k times this. `NCCL_SOCKET_RETRY_SLEEP_MSEC`; 100 ms.
    pub socket_retry_sleep: Duration,
    /// A socket's receive buffer in bytes, at least 64 KiB. Equal on all ranks. `NCCL_SOCKET_RCVBUF`; the system's
    /// choice.
    pub socket_receive_bytes: Option<u64>,
    /// A socket's send buffer in bytes, at least 64 KiB. Equal on all ranks. `NCCL_SOCKET_SNDBUF`; the system's choice.
    pub socket_send_bytes: Option<u64>,
    /// How much is logged; `None`: nothing. `NCCL_DEBUG`.
    pub debug: Option<DebugLevel>,
    /// Which parts of the library log. `NCCL_DEBUG_SUBSYS`; INIT, ENV, BOOTSTRAP.
    pub debug_subsystems: SubsystemSet,
    /// The log's file, with `%h` for the host and `%p` for the process; `None`, or a file that cannot be opened:
    /// standard output. `NCCL_DEBUG_FILE`.
    pub debug_file: Option<String>,
    /// The format of the time in a line, as for `strftime`, with `%3f` for milliseconds. `NCCL_DEBUG_TIMESTAMP_FORMAT`.
    pub debug_time_format: String,
    /// The levels whose lines begin with the time. `NCCL_DEBUG_TIMESTAMP_LEVELS`; warnings.
    pub debug_time_levels: DebugLevels,
    notes: Vec<Note>,
    /// The switches above this host and its name, as Slurm tells them.
    pub(crate) switch_address: Option<String>,
    /// The partition of this job (`SLURM_JOB_PARTITION`).
    pub(crate) switch_partition: Option<String>,
}

/// A configuration: fields with a value, those that are unset, and switches that are off.
macro_rules! configuration {
    ({ $($field:ident: $value:expr,)* } unset { $($none:ident)* } off { $($off:ident)* }) => {
        Config { $($field: $value,)* $($none: None,)* $($off: false,)* }
    };
}

impl Default for Config {
    fn default() -> Config {
        configuration! {
            {
                blocking: true,
                name: String::new(),
                timeout: Duration::from_secs(600),
                init_timeout: Duration::from_secs(120),
                spin: Duration::from_millis(1),
                scratch_bytes: 4 << 20,
                mnnvl_enable: 2,
                p2p_ll_threshold_bytes: 16 << 10,
                cumem_enable: true,
                dmabuf_enable: true,
                cross_nic: 2,
                ras_enable: true,
                runtime_connect: true,
                encrypt: Encryption::Off,
                nic_timeout: Duration::from_secs(10),
                ib_addr_family: SocketFamily::Inet,
                ib_roce_version_num: 2,
                ib_timeout: 20,
                ib_retry_cnt: 7,
                ib_pkey: 0,
                ib_qps_per_connection: 1,
                socket_retries: 34,
                socket_retry_sleep: Duration::from_millis(100),
                debug_subsystems: SubsystemSet::USUAL,
                debug_time_format: "[%F %T] ".to_owned(),
                debug_time_levels: DebugLevels::WARN,
                notes: Vec::new(),
            }
            unset {
                algo proto cohort min_channels max_channels buffer_bytes p2p_read_enable p2p_level
                net_gdr_level net_gdr_read topo_file switch_file processors tune_file record_dir ras_addr trace
                team_ranks topo_dump_file graph_file graph_dump_file net net_plugin ib_hca ib_gid_index ib_sl ib_tc
                host_id comm_id secret secret_file store socket_interfaces rails tcp_congestion socket_family socket_dir
                port_range socket_threads sockets_per_thread socket_receive_bytes socket_send_bytes
                debug debug_file switch_address switch_partition
            }
            off {
                reproducible strict_filters p2p_disable p2p_direct_disable p2p_use_cuda_memcpy
                shm_disable cma_disable cma_force ignore_cpu_affinity record_at_sigterm trace_steps
                nvtx_disable net_strict ib_disable
            }
        }
    }
}

impl Config {
    /// Applies the environment and the configuration files to this configuration. Every function of the library that
    /// takes a `Config` calls this, so a program need not; to resolve twice changes nothing.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] with variable, value, source and what is allowed;
    /// [`crate::error::Kind::System`] if a file cannot be read.
    pub fn resolve(self) -> Result<Config> {
        self.resolve_in(&Environment::capture())
    }

    /// [`Config::resolve`] with `environment` in place of the real one.
    ///
    /// # Errors
    /// As [`Config::resolve`].
    pub fn resolve_in(mut self, environment: &Environment) -> Result<Config> {
        let layers = Layers::read(environment)?;
        if !layers.mistyped().is_empty() {
            return Err(Error::invalid_argument(layers.mistyped().join("; ")));
        }
        let (mut remarks, mut set) = (Vec::new(), Vec::new());
        for variable in VARIABLES {
            let (laid, outcome) = self.lay(variable, &layers, &mut remarks);
            outcome?;
            match laid {
                Some(Laid { name, source }) => {
                    let shown = variable.shown(&self);
                    set.push(Note::Information(format!("{name} set by {source} to {shown}")));
                    self.leave_out_absent((variable, &source), environment, &mut remarks);
                    self.leave_out_foreign((variable, &name, &source), environment, &mut remarks)?;
                }
                None => {
                    self.leave_out_absent((variable, &Source::Code), environment, &mut remarks);
                    let name = variable.full_name();
                    self.leave_out_foreign((variable, &name, &Source::Code), environment, &mut remarks)?;
                    variable.kind.check(&(variable.get)(&self)).map_err(|why| {
                        wrong(variable, &variable.full_name(), &variable.shown(&self), &Source::Code, &why)
                    })?;
                }
            }
        }
        self.notes = layers.into_notes();
        self.notes.extend(remarks);
        self.notes.extend(set);
        if self.switch_address.is_none() {
            self.switch_address = environment.get(launch::SWITCH_ADDRESS)?.map(str::to_owned);
        }
        if self.switch_partition.is_none() {
            self.switch_partition = environment.get(launch::PARTITION)?.map(str::to_owned);
        }
        self.check_relations()?;
        self.read_secret()?;
        Ok(self)
    }

    /// Sets the field of the variable `name` (with its prefix, as `rsccl env` prints it) to the value that `text` has
    /// for that variable. The environment still overrides it, as it does any field that the program sets.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for an unknown name, and for a text that the variable does not allow.
    ///
    /// # Examples
    /// ```
    /// let config = rsccl::Config::default().with_variable("RSCCL_TIMEOUT_MS", "5000")?;
    /// assert_eq!(config.timeout.as_secs(), 5);
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn with_variable(mut self, name: &str, text: &str) -> Result<Config> {
        let known = VARIABLES.iter().find(|variable| variable.names().any(|known| known == name));
        let variable = known.ok_or_else(|| Error::invalid_argument(format!("unknown variable {name}")))?;
        self.set(variable, &Found { name: name.to_owned(), text, source: Source::Code })?;
        Ok(self)
    }

    /// The remarks of [`Config::resolve`]: unknown names, names without effect, values and lines that are ignored,
    /// files that are absent or open to other users.
    #[doc(hidden)]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// All variables with their values and sources, for tables. A bad value is not an error: its line has a
    /// `problem`.
    ///
    /// # Errors
    /// Those of the configuration files themselves.
    #[doc(hidden)]
    pub fn explain(self, environment: &Environment) -> Result<(Vec<Setting>, Vec<Note>)> {
        let layers = Layers::read(environment)?;
        let defaults = Config::default();
        let (mut config, mut remarks) = (self, Vec::new());
        let mut settings = Vec::with_capacity(VARIABLES.len());
        for variable in VARIABLES {
            let default = variable.shown(&defaults);
            let in_code = (variable.get)(&config) != (variable.get)(&defaults);
            let (laid, outcome) = config.lay(variable, &layers, &mut remarks);
            let unset = if in_code { Source::Code } else { Source::Default };
            let source = laid.map_or(unset, |laid| laid.source);
            let value = variable.shown(&config);
            config.leave_out_absent((variable, &source), environment, &mut remarks);
            let name = variable.full_name();
            let left_out = config.leave_out_foreign((variable, &name, &source), environment, &mut remarks);
            let problem = outcome.and(left_out).err().map(|error| error.to_string());
            settings.push(Setting { variable, default, value, source, problem });
        }
        let mut notes: Vec<Note> = layers.mistyped().iter().cloned().map(Note::Mistake).collect();
        notes.extend(layers.into_notes());
        notes.extend(remarks);
        Ok((settings, notes))
    }

    /// Sets `variable` to what the strongest of `layers` has for it, if one has; says which. A bad value of the log's
    /// variables is no error, but a remark, as in NCCL; nor is one of verbs where nobody asks for these.
    fn lay(&mut self, variable: &Variable, layers: &Layers<'_>, remarks: &mut Vec<Note>) -> (Option<Laid>, Result<()>) {
        let (found, outcome) = match layers.find(variable) {
            Ok(Some(found)) => {
                let outcome = self.set(variable, &found);
                (Some(found), outcome)
            }
            Ok(None) => (None, Ok(())),
            Err(error) => (None, Err(error)),
        };
        let laid = found.as_ref().map(|found| Laid { name: found.name.clone(), source: found.source.clone() });
        match outcome {
            Err(error) if variable.is_of_log() || (variable.is_of_verbs() && !self.asks_for_verbs()) => {
                let source = laid.map_or(Source::Environment, |laid| laid.source);
                remarks.push(layers.mistake(&source, format!("{}: ignored", error.message())));
                (None, Ok(()))
            }
            Err(error) => (laid, Err(error)),
            Ok(()) => {
                remarks.extend(found.as_ref().and_then(|found| stray_marks(variable, found)));
                (laid, Ok(()))
            }
        }
    }

    /// Whether data go by verbs. The variable of the network comes before those of verbs.
    fn asks_for_verbs(&self) -> bool {
        self.net.as_deref().is_some_and(|net| net.eq_ignore_ascii_case("IB"))
    }

    /// Forgets the file that `variable` names and that cannot be opened, with a remark, as NCCL does: the file is often
    /// one for other machines of the site. Does nothing to variables whose files have to be there.
    fn leave_out_absent(
        &mut self,
        (variable, source): (&Variable, &Source),
        environment: &Environment,
        remarks: &mut Vec<Note>,
    ) {
        let path = variable.shown(self);
        if !variable.names_spare_file() || path.is_empty() {
            return;
        }
        let Some(error) = file::unopened(Path::new(&path)) else { return };
        let text = format!("{}={path:?} ({source}): {error}: the file is left out", variable.full_name());
        remarks.push(layers::mistake_of(source, environment.system_file(), text));
        let is_optional = (variable.set)(self, &Value::Automatic);
        debug_assert!(is_optional, "without the file the library looks for itself");
    }

    /// Whether plug-ins are asked for, whatever the network: their own names count then.
    pub(crate) fn asks_for_plug_ins(&self) -> bool {
        let names = self.net_plugin.as_deref().map(str::trim);
        names.is_some_and(|names| !names.is_empty() && !names.eq_ignore_ascii_case("none"))
    }

    /// Forgets the network of `variable` that rsccl does not have, with a remark that says what is used instead.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] in place of the remark, where the configuration asks for it.
    fn leave_out_foreign(
        &mut self,
        (variable, name, source): (&Variable, &str, &Source),
        environment: &Environment,
        remarks: &mut Vec<Note>,
    ) -> Result<()> {
        let Some(network) = self.net.as_ref().filter(|_| variable.names_network()) else { return Ok(()) };
        let known = NETWORKS.iter().find(|known| network.trim().eq_ignore_ascii_case(known)).copied();
        if let Some(network) = known.or(self.asks_for_plug_ins().then_some(network.trim())).map(str::to_owned) {
            self.net = Some(network);
            return Ok(());
        }
        let why = format!("{name}={network:?} ({source}): rsccl does not have this network");
        if self.net_strict {
            return Err(Error::invalid_argument(format!(
                "{why}; allowed: {}, or without RSCCL_NET_STRICT any name, for which {SOCKET} is used",
                NETWORKS.join(", ")
            )));
        }
        let text = format!("{why}; ranks of different hosts use {SOCKET} (TCP)");
        remarks.push(layers::mistake_of(source, environment.system_file(), text));
        self.net = Some(SOCKET.to_owned());
        Ok(())
    }

    fn set(&mut self, variable: &Variable, found: &Found<'_>) -> Result<()> {
        let Found { name, text, source } = found;
        if matches!(variable.kind, Kind::Choice(_))
            && variable.is_of_log()
            && text.trim().eq_ignore_ascii_case(SILENCE)
            && (variable.set)(self, &Value::Automatic)
        {
            return Ok(());
        }
        let shown = if matches!(variable.kind, Kind::Secret) { secret::REDACTED } else { text };
        let value = variable.kind.parse(text, variable.automatic);
        let value = value.map_err(|why| wrong(variable, name, shown, source, &why))?;
        match (variable.set)(self, &value) {
            true => Ok(()),
            false => Err(Error::internal(format!("the type of {name} is not that of its field"))),
        }
    }

    /// Checks the relations between variables.
    fn check_relations(&self) -> Result<()> {
        if let (Some(least), Some(most)) = (self.min_channels, self.max_channels)
            && least > most
        {
            let message =
                format!("NCCL_MIN_NCHANNELS={least} is above NCCL_MAX_NCHANNELS={most}: raise one or lower the other");
            return Err(Error::invalid_argument(message));
        }
        let (threads, each) = (self.socket_threads.unwrap_or(1), self.sockets_per_thread.unwrap_or(1));
        if threads * each > MAX_SOCKETS {
            return Err(Error::invalid_argument(format!(
                "NCCL_SOCKET_NTHREADS={threads} times NCCL_NSOCKS_PERTHREAD={each} is {}; at most {MAX_SOCKETS}",
                threads * each
            )));
        }
        Ok(())
    }

    fn read_secret(&mut self) -> Result<()> {
        if self.secret.is_none()
            && let Some(path) = &self.secret_file
        {
            let (secret, warning) = Secret::read(path).map_err(|error| error.during("RSCCL_SECRET_FILE"))?;
            self.secret = Some(secret);
            self.notes.extend(warning.map(Note::Warning));
        }
        Ok(())
    }
}

/// By which name, and where, a variable is set.
struct Laid {
    name: String,
    source: Source,
}

fn wrong(variable: &Variable, name: &str, value: &str, source: &Source, why: &str) -> Error {
    let value = shown(value);
    Error::invalid_argument(format!("{name}={value:?} ({source}): {why}; allowed: {}", variable.allowed()))
}

/// The remark that `^` or `=` stands inside the list of interfaces, where it is part of a name, as in NCCL.
fn stray_marks(variable: &Variable, Found { name, text, source }: &Found<'_>) -> Option<Note> {
    if variable.name != "SOCKET_IFNAME" {
        return None;
    }
    let list = text.strip_prefix('^').unwrap_or(text);
    let stray = list.strip_prefix('=').unwrap_or(list).split(',').find(|name| name.contains(['^', '=']))?;
    Some(Note::Warning(format!(
        "{name}={text:?} ({source}): ^ and = count at the start of the list only, so {stray:?} is no interface"
    )))
}

/// The value of `NCCL_DEBUG` that asks for nothing. NCCL does not know it, and logs nothing therefore.
const SILENCE: &str = "NONE";

/// The network that every rank has, by NCCL's name.
const SOCKET: &str = "Socket";
/// The networks that `NCCL_NET` may name. All but the first are libraries of NICs: lines of a table in `transport`.
pub(crate) const NETWORKS: &[&str] = &[
    SOCKET,
    "libfabric",
    "IB",
    "plugin",
    #[cfg(test)]
    "test-nic",
    #[cfg(test)]
    "test-nic-straight",
];
