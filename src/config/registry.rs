//! The table of all variables: name, type, range, meaning, and the field of [`Config`] that each one sets.
//!
//! Only variables that have an effect are listed. Each default is in [`Config::default`]; where that is `None`, the
//! part of the library that chooses has it.

use super::Config;
use super::debug::DebugLevel;
use super::socket::{Encryption, SocketFamily};
use super::value::{Field, Kind, TimeUnit, Value};

/// A variable: one line of the table.
#[derive(Debug)]
pub struct Variable {
    /// Its name without prefix, e.g. `SOCKET_IFNAME`.
    pub name: &'static str,
    /// An older or newer name for the same, weaker than `name`.
    pub alias: Option<&'static str>,
    /// Which prefixes the name has.
    pub prefixes: Prefixes,
    /// Its type and range.
    pub kind: Kind,
    /// What it does, in one line.
    pub doc: &'static str,
    pub(super) automatic: bool,
    pub(super) get: fn(&Config) -> Value,
    pub(super) set: fn(&mut Config, &Value) -> bool,
}

/// The prefixes under which a variable is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Prefixes {
    /// A name of NCCL's: `RSCCL_X`, then `NCCL_X`.
    Nccl,
    /// A name of rsccl's own: `RSCCL_X` only.
    Own,
}

impl Variable {
    /// The names under which the variable is read, strongest first.
    pub fn names(&self) -> impl Iterator<Item = String> + '_ {
        let before: &[&str] = match self.prefixes {
            Prefixes::Nccl => &[OWN_PREFIX, NCCL_PREFIX],
            Prefixes::Own => &[OWN_PREFIX],
        };
        let stems = std::iter::once(self.name).chain(self.alias);
        before.iter().flat_map(move |prefix| stems.clone().map(move |stem| format!("{prefix}{stem}")))
    }

    /// The name in tables and errors: NCCL's name if NCCL has the variable.
    pub fn full_name(&self) -> String {
        match self.prefixes {
            Prefixes::Nccl => format!("{NCCL_PREFIX}{}", self.name),
            Prefixes::Own => format!("{OWN_PREFIX}{}", self.name),
        }
    }

    /// What is allowed, in words.
    pub fn allowed(&self) -> String {
        let more = if self.automatic && self.kind.takes_automatic() { ", or -1 for automatic" } else { "" };
        format!("{}{more}", self.kind.allowed())
    }

    /// Whether the variable chooses what is logged, and how: a bad value of those ends no program, as in NCCL.
    pub(super) fn is_of_log(&self) -> bool {
        self.name.starts_with("DEBUG")
    }

    /// Whether the variable counts only where data go by verbs: a site may set it for NCCL.
    pub(super) fn is_of_verbs(&self) -> bool {
        self.name.starts_with("IB_")
    }

    /// Whether a file that is named and cannot be opened ends no program, as in NCCL.
    pub(super) fn names_spare_file(&self) -> bool {
        matches!(self.name, "TOPO_FILE" | "GRAPH_FILE")
    }

    /// Whether the variable names a network, which may be one that only other libraries have.
    pub(super) fn names_network(&self) -> bool {
        self.name == "NET"
    }

    /// The value in `config`, as the variable would be written; empty if the library chooses.
    pub fn shown(&self, config: &Config) -> String {
        self.kind.show(&(self.get)(config))
    }
}

/// rsccl's own prefix, which is stronger than NCCL's.
pub(super) const OWN_PREFIX: &str = "RSCCL_";
/// NCCL's prefix.
pub(super) const NCCL_PREFIX: &str = "NCCL_";

macro_rules! variable {
    ($prefixes:ident $name:literal $(or $alias:literal)? => $field:ident: $kind:expr, $doc:literal) => {
        Variable {
            name: $name,
            alias: [$(Some($alias),)? None][0],
            prefixes: Prefixes::$prefixes,
            kind: $kind,
            doc: $doc,
            automatic: automatic(|config: &Config| &config.$field),
            get: |config| config.$field.value(),
            set: |config, value| match Field::from_value(value) {
                Some(value) => {
                    config.$field = value;
                    true
                }
                None => false,
            },
        }
    };
}

/// Whether the library can choose the value of the field that `_get` yields.
const fn automatic<T: Field>(_get: fn(&Config) -> &T) -> bool {
    T::AUTOMATIC
}

const fn count(least: u64, most: u64) -> Kind {
    Kind::Count { least, most }
}

const fn bytes(least: u64, most: u64) -> Kind {
    Kind::Bytes { least, most }
}

const fn milliseconds(least: u64, most: u64) -> Kind {
    Kind::Time { unit: TimeUnit::Milliseconds, least, most }
}

const fn microseconds(least: u64, most: u64) -> Kind {
    Kind::Time { unit: TimeUnit::Microseconds, least, most }
}

/// All variables, in the order in which tables print them.
pub static VARIABLES: &[Variable] = &[
    variable!(Nccl "COMM_BLOCKING" => blocking: Kind::Flag,
        "init, split and shrink return when done; 0: at once, with InProgress"),
    variable!(Nccl "COMM_NAME" => name: Kind::Text, "the communicator's name in logs"),
    variable!(Own "TIMEOUT_MS" => timeout: DEADLINE,
        "the deadline of each operation, of splits and shrinks too; 0: wait for ever"),
    variable!(Own "INIT_TIMEOUT_MS" => init_timeout: DEADLINE,
        "the deadline of a communicator's init; 0: wait for ever"),
    variable!(Own "REPRODUCIBLE" => reproducible: Kind::Flag,
        "the same bits whatever the size, algorithm and transport"),
    variable!(Own "SPIN_US" => spin: microseconds(0, 1_000_000), "how long a wait stays awake before it sleeps"),
    variable!(Nccl "ALGO" => algo: Kind::Text, "which algorithms may be chosen, e.g. Ring,Tree or ^Direct"),
    variable!(Nccl "PROTO" => proto: Kind::Text, "which protocols may be chosen, e.g. LL,Simple or ^LL128"),
    variable!(Own "STRICT_FILTERS" => strict_filters: Kind::Flag,
        "1: a call that NCCL_ALGO or NCCL_PROTO leaves nothing for is an error"),
    variable!(Own "COHORT" => cohort: Kind::Choice(&["joint", "split"]),
        "ranks of one GPU work as one (joint), or each for itself (split)"),
    variable!(Nccl "MIN_NCHANNELS" or "MIN_CTAS" => min_channels: count(1, MAX_CHANNELS),
        "least channels of a large call (in shared memory 4 at most); unset: 1"),
    variable!(Nccl "MAX_NCHANNELS" or "MAX_CTAS" => max_channels: count(1, MAX_CHANNELS),
        "most channels of a call (in shared memory 4); unset: 64, 2 are chosen"),
    variable!(Nccl "BUFFSIZE" => buffer_bytes: bytes(16 << 10, 1 << 30),
        "slots of one connection, together; large calls inside a host use none"),
    variable!(Own "SCRATCH_BYTES" => scratch_bytes: bytes(64 << 10, 1 << 30),
        "a rank's scratch window that its host's ranks see"),
    variable!(Nccl "P2P_DISABLE" => p2p_disable: Kind::Flag,
        "no direct pointers between ranks of one process, and none between GPUs"),
    variable!(Nccl "P2P_DIRECT_DISABLE" => p2p_direct_disable: Kind::Flag,
        "GPUs of one process share memory as those of processes do, no buffers"),
    variable!(Nccl "P2P_USE_CUDA_MEMCPY" => p2p_use_cuda_memcpy: Kind::Flag,
        "copy engines run the calls in windows that only move data"),
    variable!(Nccl "P2P_READ_ENABLE" => p2p_read_enable: Kind::Flag,
        "slots between GPUs lie at the sender; default: on A100s with NVLinks"),
    variable!(Nccl "MNNVL_ENABLE" => mnnvl_enable: count(0, 2),
        "NVLinks between hosts: 0 unused, 1 must work for all pairs, 2 if they work"),
    variable!(Nccl "P2P_LL_THRESHOLD" => p2p_ll_threshold_bytes: bytes(0, 1 << 30),
        "the longest message between GPUs that goes by LL; 0: none"),
    variable!(Nccl "SHM_DISABLE" => shm_disable: Kind::Flag, "no shared memory between ranks of one host"),
    variable!(Own "CMA_DISABLE" => cma_disable: Kind::Flag, "no reading of another rank's memory by the kernel"),
    variable!(Own "CMA_FORCE" => cma_force: Kind::Flag, "such reading also where the kernel copies slowly"),
    variable!(Nccl "CUMEM_ENABLE" => cumem_enable: Kind::Flag,
        "GPU memory goes to other processes by descriptors; 0: by cuIpcGetMemHandle"),
    variable!(Nccl "P2P_LEVEL" => p2p_level: Kind::Text,
        "how far apart GPUs may be that reach each other's memory: LOC to SYS"),
    variable!(Nccl "NET_GDR_LEVEL" => net_gdr_level: Kind::Text,
        "how far a NIC may be from a GPU whose memory it reaches: LOC (never) to SYS"),
    variable!(Nccl "NET_GDR_READ" => net_gdr_read: Kind::Flag,
        "NICs send from GPU memory; default: capability 8.0, or with NVLinks"),
    variable!(Nccl "DMABUF_ENABLE" => dmabuf_enable: Kind::Flag,
        "GPU memory goes to NICs as a DMA-BUF; 0: by its address (nvidia_peermem)"),
    variable!(Nccl "CROSS_NIC" => cross_nic: count(0, 2),
        "channels between GPUs change NICs: 0 never, 1 if no worse, 2 if better"),
    variable!(Nccl "TOPO_FILE" => topo_file: Kind::Path,
        "a topology file in place of what the system tells of GPUs and NICs"),
    variable!(Nccl "IGNORE_CPU_AFFINITY" => ignore_cpu_affinity: Kind::Flag,
        "1: a rank's processors say nothing about where it stands on its host"),
    variable!(Own "SWITCH_FILE" => switch_file: Kind::Path,
        "which hosts hang on which switches: Slurm's topology.conf, or group: hosts"),
    variable!(Own "PROCESSORS" => processors: Kind::Text,
        "where the rank stands, as 0-3,8; unset: the processors it may run on"),
    variable!(Own "TUNE_FILE" => tune_file: Kind::Path,
        "measured costs of these machines, written by rsccl tune"),
    variable!(Own "RECORD_DIR" => record_dir: Kind::Path,
        "a folder for records of ranks whose deadline passes (rsccl status --explain)"),
    variable!(Own "RECORD_SIGTERM" => record_at_sigterm: Kind::Flag,
        "1: a process writes one to RSCCL_RECORD_DIR when SIGTERM ends it, too"),
    variable!(Nccl "RAS_ADDR" => ras_addr: Kind::Text,
        "where NVIDIA's ncclras is answered: localhost:28028; unset, nobody listens"),
    variable!(Nccl "RAS_ENABLE" => ras_enable: Kind::Flag, "0: nobody answers ncclras, whatever NCCL_RAS_ADDR says"),
    variable!(Own "TRACE" => trace: Kind::Path,
        "a file for a trace of the calls, for Perfetto; %r rank, %h host, %p process"),
    variable!(Own "TRACE_STEPS" => trace_steps: Kind::Flag, "1: it has the steps of plans too"),
    variable!(Nccl "NVTX_DISABLE" => nvtx_disable: Kind::Flag,
        "1: no ranges of NVTX of calls, also for an injected profiler"),
    variable!(Own "TEAM_RANKS" => team_ranks: count(1, 1024),
        "ranks of a host that work as one team; unset: 64, and 32 on larger hosts"),
    variable!(Nccl "TOPO_DUMP_FILE" => topo_dump_file: Kind::Path,
        "where rank 0, or rsccl topo, writes the topology of GPUs as a file"),
    variable!(Nccl "GRAPH_FILE" => graph_file: Kind::Path,
        "a graph file in place of a search for channels between one host's GPUs"),
    variable!(Nccl "GRAPH_DUMP_FILE" => graph_dump_file: Kind::Path,
        "where rank 0, or rsccl topo, writes the channels as a graph file"),
    // These two before the network that they judge, and those of verbs after it.
    variable!(Nccl "NET_PLUGIN" => net_plugin: Kind::Text,
        "network plug-ins made for NCCL: files, or NAME for libnccl-net-NAME.so; none"),
    variable!(Own "NET_STRICT" => net_strict: Kind::Flag,
        "1: NCCL_NET with a network that is not to be had is an error"),
    variable!(Nccl "NET" => net: Kind::Text,
        "Socket, libfabric, IB, plugin or a plug-in's; unset: what the hosts have"),
    variable!(Nccl "IB_DISABLE" => ib_disable: Kind::Flag,
        "1: NCCL_NET=IB uses no device, and without NCCL_NET sockets are used"),
    variable!(Nccl "IB_HCA" => ib_hca: Kind::Text,
        "devices and ports of verbs: prefixes, =names, ^excluded, each with :port"),
    variable!(Nccl "IB_GID_INDEX" => ib_gid_index: count(0, 255),
        "the place in the port's table of GIDs; unset: the best"),
    variable!(Nccl "IB_ADDR_FAMILY" => ib_addr_family: Kind::Choice(SocketFamily::NAMES),
        "of which family a GID is taken first"),
    variable!(Nccl "IB_ROCE_VERSION_NUM" => ib_roce_version_num: count(1, 2),
        "of which version of RoCE a GID is taken first"),
    variable!(Nccl "IB_TIMEOUT" => ib_timeout: count(0, 31),
        "a lost packet is sent again after 4.096 us times 2 to this"),
    variable!(Nccl "IB_RETRY_CNT" => ib_retry_cnt: count(0, 7),
        "how often it is sent again before the connection fails"),
    variable!(Nccl "IB_SL" => ib_sl: count(0, 15),
        "the service level of messages by verbs"),
    variable!(Nccl "IB_TC" => ib_tc: count(0, 255),
        "the traffic class of messages by verbs, four times the DSCP"),
    variable!(Nccl "IB_PKEY" => ib_pkey: count(0, 65_535),
        "the place in the port's table of partition keys"),
    variable!(Nccl "IB_QPS_PER_CONNECTION" => ib_qps_per_connection: count(1, 128),
        "queue pairs that a connection's messages take in turn"),
    variable!(Nccl "RUNTIME_CONNECT" => runtime_connect: Kind::Flag,
        "0: one host maps its memory at set-up; the rest connects when needed"),
    variable!(Nccl "HOSTID" => host_id: Kind::Text, "what tells this host from others, in place of name and boot id"),
    variable!(Nccl "COMM_ID" => comm_id: Kind::Text, "a fixed address of the root: host:port or [ipv6]:port"),
    variable!(Own "SECRET" => secret: Kind::Secret, "what ranks prove to each other with a fixed or stored id"),
    variable!(Own "SECRET_FILE" => secret_file: Kind::Path, "a file that holds the secret, mode 600"),
    variable!(Own "ENCRYPT" => encrypt: Kind::Choice(Encryption::NAMES),
        "1: connections are encrypted, by AES-128-GCM or ChaCha20-Poly1305; on all ranks"),
    variable!(Own "STORE" => store: Kind::Store, "where from_env() meets: tcp://host:port or file:///path"),
    variable!(Nccl "SOCKET_IFNAME" => socket_interfaces: Kind::Text,
        "interfaces: prefixes, =names, ^excluded; data take all, set-up the first"),
    variable!(Own "RAILS" => rails: Kind::Text,
        "which interface is on which network, as eth0=0,eth1=1; unset: by subnets"),
    variable!(Own "NIC_TIMEOUT" => nic_timeout: Kind::Time { unit: TimeUnit::Seconds, least: 2, most: 3600 },
        "after how many seconds without an answer a NIC counts as dead in a call"),
    variable!(Own "TCP_CONGESTION" => tcp_congestion: Kind::Text,
        "the congestion control of data sockets, as cubic; unset: the system's"),
    variable!(Nccl "SOCKET_FAMILY" => socket_family: Kind::Choice(SocketFamily::NAMES),
        "the address family of all sockets"),
    variable!(Own "SOCKET_DIR" => socket_dir: Kind::Path,
        "a folder that pods of one host share, by which they share memory, too"),
    variable!(Own "PORT_RANGE" => port_range: Kind::Ports, "the ports to listen at, as first-last; any free port"),
    variable!(Nccl "SOCKET_NTHREADS" => socket_threads: count(0, 16),
        "times NCCL_NSOCKS_PERTHREAD: sockets of a connection; unset: by its rails' rate"),
    variable!(Nccl "NSOCKS_PERTHREAD" => sockets_per_thread: count(0, 16),
        "times NCCL_SOCKET_NTHREADS: sockets of a connection, at most 64"),
    variable!(Nccl "SOCKET_RETRY_CNT" => socket_retries: count(0, 1000), "how often a refused connect is tried again"),
    variable!(Nccl "SOCKET_RETRY_SLEEP_MSEC" => socket_retry_sleep: milliseconds(0, 60_000),
        "the pause before the k-th retry is k times this"),
    variable!(Nccl "SOCKET_RCVBUF" => socket_receive_bytes: bytes(LEAST_SOCKET_BYTES, MAX_I32),
        "a socket's receive buffer; unset: the system's choice"),
    variable!(Nccl "SOCKET_SNDBUF" => socket_send_bytes: bytes(LEAST_SOCKET_BYTES, MAX_I32),
        "a socket's send buffer; unset: the system's choice"),
    variable!(Nccl "DEBUG" => debug: Kind::Choice(DebugLevel::NAMES), "how much is logged; unset: nothing"),
    variable!(Nccl "DEBUG_SUBSYS" => debug_subsystems: Kind::Subsystems, "which parts log"),
    variable!(Nccl "DEBUG_FILE" => debug_file: Kind::Text,
        "where the log goes, with %h host, %p process; unset: standard output"),
    variable!(Nccl "DEBUG_TIMESTAMP_FORMAT" => debug_time_format: Kind::Text,
        "the time before a line, as strftime, with %3f for its fraction"),
    variable!(Nccl "DEBUG_TIMESTAMP_LEVELS" => debug_time_levels: Kind::Levels,
        "which levels' lines begin with the time"),
];

/// The variable with the path of the user's configuration file.
pub(super) const CONF_FILE: &str = "CONF_FILE";
/// The meaning of `NCCL_CONF_FILE`, for tables.
pub const CONF_FILE_DOC: &str = "the user's configuration file, in place of ~/.nccl.conf";

/// The most channels of a communicator, as in NCCL.
pub const MAX_CHANNELS: u64 = 64;
/// The most sockets of one network connection, as in NCCL.
pub const MAX_SOCKETS: u32 = 64;
const DEADLINE: Kind = Kind::Deadline { least: LEAST_DEADLINE_MS, most: MONTH_MS };
/// The longest deadline: longer than any job, short enough for every clock.
const MONTH_MS: u64 = 30 * 24 * 3600 * 1000;
/// The shortest deadline: a rank that waits for its turn on a busy machine takes some milliseconds.
const LEAST_DEADLINE_MS: u64 = 10;
/// The smallest buffer of a socket. With less than the largest packet of loopback needs (64 KiB), sender and receiver
/// wait for each other's timers: 230 ms for 1 MiB with send buffers of 32 KiB, 4 ms with 64 KiB; with receive buffers
/// of 2 KiB some jobs end at their deadlines.
const LEAST_SOCKET_BYTES: u64 = 64 << 10;
/// The largest value that `setsockopt` takes.
const MAX_I32: u64 = i32::MAX as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_field_has_the_type_of_its_kind() {
        let defaults = Config::default();
        for variable in VARIABLES {
            let value = (variable.get)(&defaults);
            assert_eq!(variable.kind.check(&value), Ok(()), "{}", variable.name);
            let mut config = Config::default();
            assert!((variable.set)(&mut config, &value), "{}", variable.name);
            let sample = match variable.kind {
                Kind::Flag => "1".to_owned(),
                Kind::Count { most, .. }
                | Kind::Bytes { most, .. }
                | Kind::Time { most, .. }
                | Kind::Deadline { most, .. } => most.to_string(),
                Kind::Choice(words) => words[0].to_owned(),
                Kind::Text | Kind::Path | Kind::Secret => "text".to_owned(),
                Kind::Subsystems => "^NET".to_owned(),
                Kind::Levels => "ALL".to_owned(),
                Kind::Store => "tcp://localhost:1".to_owned(),
                Kind::Ports => "50000-50100".to_owned(),
            };
            let parsed = variable.kind.parse(&sample, variable.automatic).unwrap();
            assert!((variable.set)(&mut config, &parsed), "{}", variable.name);
            let shown = variable.shown(&config);
            match variable.kind {
                Kind::Secret => assert_eq!(shown, "<redacted>"),
                _ => {
                    let again = variable.kind.parse(&shown, variable.automatic).unwrap();
                    assert_eq!(variable.kind.show(&again), shown, "{}", variable.name);
                }
            }
        }
    }

    #[test]
    fn names_are_unique_and_docs_are_lines() {
        let names: Vec<String> = VARIABLES.iter().flat_map(Variable::names).collect();
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(VARIABLES.iter().all(|variable| !variable.doc.is_empty() && variable.doc.len() <= 80));
    }

    #[test]
    fn own_names_come_first() {
        let channels = VARIABLES.iter().find(|variable| variable.name == "MIN_NCHANNELS").unwrap();
        let names: Vec<String> = channels.names().collect();
        assert_eq!(names, ["RSCCL_MIN_NCHANNELS", "RSCCL_MIN_CTAS", "NCCL_MIN_NCHANNELS", "NCCL_MIN_CTAS"]);
        let secret = VARIABLES.iter().find(|variable| variable.name == "SECRET").unwrap();
        assert_eq!(secret.names().collect::<Vec<_>>(), ["RSCCL_SECRET"]);
    }
}
