/// @file
/// How communicators behave.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <rsccl/version.hpp>

namespace rsccl {

/// How communicators behave. What is not set is left to the library, whose default stands with each field.
///
/// The environment is laid over it, strongest first: `RSCCL_X`, `NCCL_X`, the user's file (`NCCL_CONF_FILE`, else
/// `~/.nccl.conf`), `/etc/nccl.conf`, this. The variable of each field is named with it. A value that is not
/// allowed is an InvalidArgument of the call that the configuration is passed to; it names the variable and what is allowed.
///
/// Algorithms, protocols, channels, sizes, forbidden transports, reproducibility and what says "equal on all ranks" below must
/// not differ between the ranks of one communicator: that is a Mismatch on every rank when they join, which names a rank that
/// differs, the variable and both values. The other fields may differ, as long as the ranks find each other.
struct Config {
    /// Init, split and shrink return when done; otherwise at once, and calls give InProgress until the communicator can be used.
    /// Collectives and messages block in any case. `NCCL_COMM_BLOCKING`; true.
    std::optional<bool> blocking = {};
    /// The communicator's name in logs. `NCCL_COMM_NAME`; empty.
    std::optional<std::string> name = {};
    /// The deadline of each operation of a communicator that stands: also of splits, shrinks and registrations.
    /// 0: wait for ever. `RSCCL_TIMEOUT_MS`; 10 minutes.
    std::optional<std::chrono::milliseconds> timeout = {};
    /// The deadline of a communicator's init. 0: wait for ever. `RSCCL_INIT_TIMEOUT_MS`; 2 minutes.
    std::optional<std::chrono::milliseconds> init_timeout = {};
    /// The same bits whatever the size, algorithm, channels and transport, and whatever the floating-point modes of the ranks' threads
    /// (flush to zero, rounding), which this mode sets and puts back around its arithmetic in memory of the host. `RSCCL_REPRODUCIBLE`;
    /// false.
    std::optional<bool> reproducible = {};
    /// How long a wait stays awake (spins, then yields) before it sleeps. `RSCCL_SPIN_US`; 1 ms.
    std::optional<std::chrono::microseconds> spin = {};
    /// Which algorithms may be chosen, in NCCL's syntax. `NCCL_ALGO`.
    std::optional<std::string> algo = {};
    /// Which protocols may be chosen, in NCCL's syntax. `NCCL_PROTO`.
    std::optional<std::string> proto = {};
    /// A call to which `algo` or `proto` leaves nothing is an error; otherwise it runs with what there is, and the log says so once.
    /// `RSCCL_STRICT_FILTERS`; false.
    std::optional<bool> strict_filters = {};
    /// How ranks that share a GPU run: `joint`, in one launch in which nobody waits, where that is possible, or `split`, each rank by
    /// itself, waiting for the others on the GPU. `split` is slower; with it one GPU tests what several do. Processes that share a GPU take
    /// turns there then, each of some milliseconds, unless NVIDIA's MPS runs them together. Equal on all ranks. `RSCCL_COHORT`; joint.
    std::optional<std::string> cohort = {};
    /// A call uses at least this many channels, if it fills at least one slot on each; at most 4 in memory that the ranks of a host share.
    /// `NCCL_MIN_NCHANNELS`, `NCCL_MIN_CTAS`; 1.
    std::optional<std::uint32_t> min_channels = {};
    /// The most channels: parts of a large call that run at the same time. Within these bounds the library chooses.
    /// `NCCL_MAX_NCHANNELS`, `NCCL_MAX_CTAS`; 64.
    std::optional<std::uint32_t> max_channels = {};
    /// The bytes of one connection's slots together; large collectives inside a host use no slots. `NCCL_BUFFSIZE`; 1 MiB, and 4 MiB
    /// for the messages of two ranks that meet over sockets.
    std::optional<std::uint64_t> buffer_bytes = {};
    /// The bytes of a rank's scratch window that the ranks of its host see. `RSCCL_SCRATCH_BYTES`; 4 MiB.
    std::optional<std::uint64_t> scratch_bytes = {};
    /// No direct pointers between ranks of one process. `NCCL_P2P_DISABLE`; false.
    std::optional<bool> p2p_disable = {};
    /// GPUs of one process hand memory of the library over by descriptors, as those of two processes do, and their
    /// windows are registered in name. It counts for a pair if one of the two sets it. `NCCL_P2P_DIRECT_DISABLE`; false.
    std::optional<bool> p2p_direct_disable = {};
    /// The copy engines of GPUs run the calls in windows that only move data (all_gather, all_gather_v, all_to_all, broadcast, gather,
    /// scatter), so that its processors are free for the program's kernels. Equal on all ranks. `NCCL_P2P_USE_CUDA_MEMCPY`; false.
    std::optional<bool> p2p_use_cuda_memcpy = {};
    /// The slots of a connection between two GPUs lie at the sender, from which the receiver reads them (read mode), where both ranks want
    /// it. Not given: between GPUs of compute capability 8.0 with NVLinks. `NCCL_P2P_READ_ENABLE`.
    std::optional<bool> p2p_read_enable = {};
    /// Whether GPUs of several hosts of one NVLink clique reach each other's memory (multi-node NVLink): 0 never; 1: it is an error where
    /// a pair of ranks of two hosts does not; 2: where a trial works. `NCCL_MNNVL_ENABLE`; 2.
    std::optional<std::uint32_t> mnnvl_enable = {};
    /// The bytes of the longest message between two GPUs whose words carry their own flags (LL, or LL128 where `proto` leaves that alone);
    /// longer ones go by Simple, and with 0 all do. A connection has room for eight such messages of up to 16 KiB, and for fewer where they
    /// are longer. Equal on all ranks. `NCCL_P2P_LL_THRESHOLD`; 16 KiB.
    std::optional<std::uint64_t> p2p_ll_threshold_bytes = {};
    /// No shared memory between ranks of one host. `NCCL_SHM_DISABLE`; false.
    std::optional<bool> shm_disable = {};
    /// Ranks of one host do not read each other's memory by the kernel. Equal on all ranks. `RSCCL_CMA_DISABLE`; false.
    std::optional<bool> cma_disable = {};
    /// They do so even where the kernel copies slowly. Equal on all ranks. `RSCCL_CMA_FORCE`; false.
    std::optional<bool> cma_force = {};
    /// Whether GPU memory goes to other processes in the newer way, by descriptors of `cuMemCreate`'s memory; if not,
    /// by `cuIpcGetMemHandle`. GPUs that lack the newer way take the older. `NCCL_CUMEM_ENABLE`; true.
    std::optional<bool> cumem_enable = {};
    /// How far apart GPUs may be that reach each other's memory; others talk through host memory. Equal on all ranks. `NCCL_P2P_LEVEL`.
    std::optional<std::string> p2p_level = {};
    /// How far a NIC may be from the GPU whose memory it reads and writes by itself (GPUDirect RDMA): LOC (never) to SYS. A NIC whose
    /// place is not known counts as PHB. The command `rsccl topo` obeys it too. `NCCL_NET_GDR_LEVEL`; PXB.
    std::optional<std::string> net_gdr_level = {};
    /// Whether a NIC that may write memory of a GPU reads it too, for what is sent. Not given: where the GPU has compute capability
    /// 8.0, or NVLinks. `NCCL_NET_GDR_READ`.
    std::optional<bool> net_gdr_read = {};
    /// Whether GPU memory is handed to NICs as a DMA-BUF, where driver and NIC have them; else by its address, which takes the module
    /// `nvidia_peermem`. `NCCL_DMABUF_ENABLE`; true.
    std::optional<bool> dmabuf_enable = {};
    /// Whether a channel between GPUs may leave a host by another NIC than it enters by: 0 never, 1 where that is no worse, 2 where it
    /// is better. Equal on all ranks. `NCCL_CROSS_NIC`; 2.
    std::optional<std::uint32_t> cross_nic = {};
    /// A topology file (NCCL's, RCCL's, or hwloc's XML) in place of what this machine's system tells: communicators on GPUs take links
    /// between GPUs and NICs from it, the command `rsccl topo` all. A file of processors alone tells the NUMA nodes of all ranks. One that
    /// cannot be opened is left out with a warning. `NCCL_TOPO_FILE`.
    std::optional<std::string> topo_file = {};
    /// Whether the processors on which a rank may run say nothing about where it stands. `NCCL_IGNORE_CPU_AFFINITY`; false.
    std::optional<bool> ignore_cpu_affinity = {};
    /// A file that says which hosts hang on which switches of the network: lines of "group: hosts", or Slurm's topology.conf (switches,
    /// or blocks: a group a block) or topology.yaml. Hosts of one group follow each other in rings and trees. `RSCCL_SWITCH_FILE`; what
    /// Slurm says.
    std::optional<std::string> switch_file = {};
    /// The processors by which the rank's place on its host is found, as "0-3,8". `RSCCL_PROCESSORS`; those on which it may run.
    std::optional<std::string> processors = {};
    /// A file of measured costs, by which algorithms are chosen; the command `rsccl tune` writes it. Its constants are equal on all
    /// ranks. It rules inside a host too, for calls on host memory that are longer than one slot of a small call; without a file these
    /// are direct on a host of up to 64 ranks. `RSCCL_TUNE_FILE`; usual costs.
    std::optional<std::string> tune_file = {};
    /// A folder in which each process writes what its ranks were doing when a call of theirs passes its deadline; the command
    /// `rsccl status --explain` says where the ranks differ. `RSCCL_RECORD_DIR`; nothing is written.
    std::optional<std::string> record_dir = {};
    /// Whether a process writes that too when SIGTERM ends it. A program that handles the signal itself is left alone.
    /// `RSCCL_RECORD_SIGTERM`; false.
    std::optional<bool> record_at_sigterm = {};
    /// Where a thread of the library answers NVIDIA's client ncclras: an address of loopback with its port, such as "localhost:28028".
    /// `NCCL_RAS_ADDR`; nobody listens.
    std::optional<std::string> ras_addr = {};
    /// Whether `ras_addr` counts. `NCCL_RAS_ENABLE`; true.
    std::optional<bool> ras_enable = {};
    /// A file for a trace of what each rank did when, as Chrome and Perfetto read it. In the name %r is the rank ("threads" where ranks
    /// are threads), %h the host, %p the process; without any of them the rank stands before the ending. `RSCCL_TRACE`; none is written.
    std::optional<std::string> trace = {};
    /// Whether the trace has the steps of plans too. `RSCCL_TRACE_STEPS`; false.
    std::optional<bool> trace_steps = {};
    /// Whether profilers get no ranges of calls. They get them where one is injected (`NVTX_INJECTION64_PATH`, as Nsight
    /// Systems sets it) and `libnvToolsExt.so.1` loads. `NCCL_NVTX_DISABLE`; false.
    std::optional<bool> nvtx_disable = {};
    /// How many ranks of a host work in each other's memory at once. Equal on all ranks. `RSCCL_TEAM_RANKS`; 64, and teams of 32 on
    /// hosts of more.
    std::optional<std::uint32_t> team_ranks = {};
    /// Where the command `rsccl topo` writes the topology as a file, and rank 0 that of a communicator's GPUs. `NCCL_TOPO_DUMP_FILE`.
    std::optional<std::string> topo_dump_file = {};
    /// A graph file in place of a search for channels between the GPUs of a communicator's one host; where it has several, a warning says
    /// that the file is not used. One that cannot be opened is left out with a warning. `NCCL_GRAPH_FILE`.
    std::optional<std::string> graph_file = {};
    /// Where the command `rsccl topo` writes the channels as a graph file, and rank 0 those of a communicator. `NCCL_GRAPH_DUMP_FILE`.
    std::optional<std::string> graph_dump_file = {};
    /// The network between hosts: "Socket" (TCP), "libfabric" or "IB" (verbs), which are loaded while the program runs, or "plugin", a network
    /// plug-in of NCCL's. "Socket" is used, with a warning, in place of another, and where a rank finds no NIC of theirs that will do. Equal on
    /// all ranks. `NCCL_NET`; libfabric where the hosts of all ranks have hardware for it, else "Socket".
    std::optional<std::string> net = {};
    /// Network plug-ins made for NCCL, between commas: files, or NAME for `libnccl-net-NAME.so`; "none". `net` may then say what the plug-in calls its
    /// network. Given on all ranks or on none. `NCCL_NET_PLUGIN`; none.
    std::optional<std::string> net_plugin = {};
    /// A network that rsccl, or this rank, does not have is an error. `RSCCL_NET_STRICT`; false.
    std::optional<bool> net_strict = {};
    /// Whether `NCCL_NET=IB` uses no device. `NCCL_IB_DISABLE`; false.
    std::optional<bool> ib_disable = {};
    /// Devices of verbs by the beginnings of their names, `=` before the list for whole names, `^` for all others; each with `:port`
    /// where only that one is meant. The fastest of them is used. `NCCL_IB_HCA`; all.
    std::optional<std::string> ib_hca = {};
    /// The place of the GID in its port's table. `NCCL_IB_GID_INDEX`; the best, by the next two and never link-local where another is
    /// there.
    std::optional<std::uint32_t> ib_gid_index = {};
    /// Of which family a GID is taken first. `NCCL_IB_ADDR_FAMILY`; IPv4.
    std::optional<std::string> ib_addr_family = {};
    /// Of which version of RoCE a GID is taken first. `NCCL_IB_ROCE_VERSION_NUM`; 2.
    std::optional<std::uint32_t> ib_roce_version_num = {};
    /// A packet without an answer is sent again after 4.096 us times 2 to this power, at 0 never. `NCCL_IB_TIMEOUT`; 20.
    std::optional<std::uint32_t> ib_timeout = {};
    /// How often it is sent again before the connection fails. `NCCL_IB_RETRY_CNT`; 7, which soft RoCE takes for no end.
    std::optional<std::uint32_t> ib_retry_cnt = {};
    /// The service level of what is sent. `NCCL_IB_SL`; 0.
    std::optional<std::uint32_t> ib_sl = {};
    /// The traffic class of what is sent over RoCE, which is four times the DSCP. `NCCL_IB_TC`; 0.
    std::optional<std::uint32_t> ib_tc = {};
    /// The place of the partition key in its port's table. `NCCL_IB_PKEY`; 0.
    std::optional<std::uint32_t> ib_pkey = {};
    /// Queue pairs of a connection, which its messages take in turn; two ends use the smaller number. `NCCL_IB_QPS_PER_CONNECTION`; 1.
    std::optional<std::uint32_t> ib_qps_per_connection = {};
    /// Connect everything when first needed; if not, a communicator of one host maps its memory at set-up, and the rest waits for the
    /// first need all the same. Equal on all ranks. `NCCL_RUNTIME_CONNECT`; true.
    std::optional<bool> runtime_connect = {};
    /// What tells this host from others, in place of its name and boot id. `NCCL_HOSTID`.
    std::optional<std::string> host_id = {};
    /// A fixed address of the root: "host:port" or "[ipv6]:port". `NCCL_COMM_ID`.
    std::optional<std::string> comm_id = {};
    /// What ranks prove to each other where the id comes from a fixed address or a store. `RSCCL_SECRET`.
    std::optional<std::string> secret = {};
    /// A file that holds the secret, mode 600. `RSCCL_SECRET_FILE`.
    std::optional<std::string> secret_file = {};
    /// Whether what goes over TCP is encrypted: "0", "1" (AES-128-GCM, or ChaCha20-Poly1305 where a processor has no AES), "ChaCha20".
    /// Equal on all ranks; needs a library that was built with the feature `encrypt`. `RSCCL_ENCRYPT`; off.
    std::optional<std::string> encrypt = {};
    /// Where Communicator::from_env meets: "tcp://host:port" or "file:///path". `RSCCL_STORE`.
    std::optional<std::string> store = {};
    /// Interfaces in NCCL's syntax: prefixes, `=` exact, `^` excluded. Ranks meet over the first; data between hosts take all that a
    /// network joins (rails). `NCCL_SOCKET_IFNAME`; all but loopback and those of containers, bridges and tunnels.
    std::optional<std::string> socket_interfaces = {};
    /// Which interface is on which network, as "eth0=0,eth1=1": interfaces of two hosts with one number send data to each other.
    /// `RSCCL_RAILS`; those with addresses in one subnet do.
    std::optional<std::string> rails = {};
    /// For how long the other end of a data connection may answer nothing until the call fails. `RSCCL_NIC_TIMEOUT`; 10 s.
    std::optional<std::chrono::seconds> nic_timeout = {};
    /// The congestion control of data sockets: "reno", "cubic", "bbr". `RSCCL_TCP_CONGESTION`; the system's.
    std::optional<std::string> tcp_congestion = {};
    /// The address family of all sockets: "AF_INET" or "AF_INET6". `NCCL_SOCKET_FAMILY`; any.
    std::optional<std::string> socket_family = {};
    /// A folder on this host that ranks in several network namespaces (pods) see: they count as ranks of one host and share memory.
    /// `RSCCL_SOCKET_DIR`; the network namespace is the bound of a host.
    std::optional<std::string> socket_dir = {};
    /// The ports where ranks listen, "first-last", for a firewall: a rank needs one for each of its communicators, a second one for each
    /// with ranks of other hosts, and rank 0 one more while ranks meet. `RSCCL_PORT_RANGE`; any free port.
    std::optional<std::string> port_range = {};
    /// Times `sockets_per_thread`: the sockets of one network connection, which take its rails in turn. No thread serves them: ranks do
    /// while they wait. The product is equal on all ranks. `NCCL_SOCKET_NTHREADS`; where neither is set, each rail has one socket up to
    /// 10 Gbit/s, 4 up to 50, else 8.
    std::optional<std::uint32_t> socket_threads = {};
    /// Times `socket_threads`: the sockets of one network connection, at most 64. The product is equal on all ranks.
    /// `NCCL_NSOCKS_PERTHREAD`; where neither is set, as `socket_threads` says.
    std::optional<std::uint32_t> sockets_per_thread = {};
    /// How often a refused connect is tried again. `NCCL_SOCKET_RETRY_CNT`; 34.
    std::optional<std::uint32_t> socket_retries = {};
    /// The pause before the k-th retry is k times this. `NCCL_SOCKET_RETRY_SLEEP_MSEC`; 100 ms.
    std::optional<std::chrono::milliseconds> socket_retry_sleep = {};
    /// A socket's receive buffer in bytes, at least 64 KiB. Equal on all ranks. `NCCL_SOCKET_RCVBUF`; the system's choice.
    std::optional<std::uint64_t> socket_receive_bytes = {};
    /// A socket's send buffer in bytes, at least 64 KiB. Equal on all ranks. `NCCL_SOCKET_SNDBUF`; the system's choice.
    std::optional<std::uint64_t> socket_send_bytes = {};
    /// How much is logged: "VERSION", "WARN", "INFO" or "TRACE". `NCCL_DEBUG`; nothing.
    std::optional<std::string> debug = {};
    /// Which parts log, e.g. "INIT,NET". `NCCL_DEBUG_SUBSYS`; INIT, ENV, BOOTSTRAP.
    std::optional<std::string> debug_subsystems = {};
    /// Where the log goes, with `%h` for the host and `%p` for the process. `NCCL_DEBUG_FILE`; standard output, also where the file
    /// cannot be opened.
    std::optional<std::string> debug_file = {};
    /// The time before a line, as `strftime` has it, with `%3f` for its fraction. `NCCL_DEBUG_TIMESTAMP_FORMAT`.
    std::optional<std::string> debug_time_format = {};
    /// Which levels' lines begin with the time, e.g. "WARN,INFO". `NCCL_DEBUG_TIMESTAMP_LEVELS`; warnings.
    std::optional<std::string> debug_time_levels = {};
};

} // namespace rsccl
