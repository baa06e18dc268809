// The configuration: each field under the name of its variable, by which the library checks it.
#include <rsccl/config.hpp>

#include <rsccl/version.hpp>

#include "bridge.hpp"

namespace rsccl {

std::string version() { return std::string(ffi::version()); }

namespace detail {

extern const char RSCCL_DETAIL_ABI = 0;

namespace {

std::string text(bool value) { return value ? "1" : "0"; }
std::string text(std::uint32_t value) { return std::to_string(value); }
std::string text(std::uint64_t value) { return std::to_string(value); }
std::string text(const std::string& value) { return value; }
template <class Period>
std::string text(std::chrono::duration<std::int64_t, Period> value) {
    return std::to_string(value.count());
}

template <class T>
void lay(ffi::Settings& settings, const char* name, const std::optional<T>& value) {
    if (value) {
        check(ffi::set(settings, bytes(name), bytes(text(*value))));
    }
}

} // namespace

rust::Box<ffi::Settings> settings(const Config& config) {
    rust::Box<ffi::Settings> made = ffi::settings();
    lay(*made, "NCCL_COMM_BLOCKING", config.blocking);
    lay(*made, "NCCL_COMM_NAME", config.name);
    lay(*made, "RSCCL_TIMEOUT_MS", config.timeout);
    lay(*made, "RSCCL_INIT_TIMEOUT_MS", config.init_timeout);
    lay(*made, "RSCCL_REPRODUCIBLE", config.reproducible);
    lay(*made, "RSCCL_SPIN_US", config.spin);
    lay(*made, "NCCL_ALGO", config.algo);
    lay(*made, "NCCL_PROTO", config.proto);
    lay(*made, "RSCCL_STRICT_FILTERS", config.strict_filters);
    lay(*made, "RSCCL_COHORT", config.cohort);
    lay(*made, "NCCL_MIN_NCHANNELS", config.min_channels);
    lay(*made, "NCCL_MAX_NCHANNELS", config.max_channels);
    lay(*made, "NCCL_BUFFSIZE", config.buffer_bytes);
    lay(*made, "RSCCL_SCRATCH_BYTES", config.scratch_bytes);
    lay(*made, "NCCL_P2P_DISABLE", config.p2p_disable);
    lay(*made, "NCCL_P2P_DIRECT_DISABLE", config.p2p_direct_disable);
    lay(*made, "NCCL_P2P_USE_CUDA_MEMCPY", config.p2p_use_cuda_memcpy);
    lay(*made, "NCCL_P2P_READ_ENABLE", config.p2p_read_enable);
    lay(*made, "NCCL_MNNVL_ENABLE", config.mnnvl_enable);
    lay(*made, "NCCL_P2P_LL_THRESHOLD", config.p2p_ll_threshold_bytes);
    lay(*made, "NCCL_SHM_DISABLE", config.shm_disable);
    lay(*made, "RSCCL_CMA_DISABLE", config.cma_disable);
    lay(*made, "RSCCL_CMA_FORCE", config.cma_force);
    lay(*made, "NCCL_CUMEM_ENABLE", config.cumem_enable);
    lay(*made, "NCCL_P2P_LEVEL", config.p2p_level);
    lay(*made, "NCCL_NET_GDR_LEVEL", config.net_gdr_level);
    lay(*made, "NCCL_NET_GDR_READ", config.net_gdr_read);
    lay(*made, "NCCL_DMABUF_ENABLE", config.dmabuf_enable);
    lay(*made, "NCCL_CROSS_NIC", config.cross_nic);
    lay(*made, "NCCL_TOPO_FILE", config.topo_file);
    lay(*made, "NCCL_IGNORE_CPU_AFFINITY", config.ignore_cpu_affinity);
    lay(*made, "RSCCL_SWITCH_FILE", config.switch_file);
    lay(*made, "RSCCL_PROCESSORS", config.processors);
    lay(*made, "RSCCL_TUNE_FILE", config.tune_file);
    lay(*made, "RSCCL_RECORD_DIR", config.record_dir);
    lay(*made, "RSCCL_RECORD_SIGTERM", config.record_at_sigterm);
    lay(*made, "NCCL_RAS_ADDR", config.ras_addr);
    lay(*made, "NCCL_RAS_ENABLE", config.ras_enable);
    lay(*made, "RSCCL_TRACE", config.trace);
    lay(*made, "RSCCL_TRACE_STEPS", config.trace_steps);
    lay(*made, "NCCL_NVTX_DISABLE", config.nvtx_disable);
    lay(*made, "RSCCL_TEAM_RANKS", config.team_ranks);
    lay(*made, "NCCL_TOPO_DUMP_FILE", config.topo_dump_file);
    lay(*made, "NCCL_GRAPH_FILE", config.graph_file);
    lay(*made, "NCCL_GRAPH_DUMP_FILE", config.graph_dump_file);
    lay(*made, "NCCL_NET", config.net);
    lay(*made, "NCCL_NET_PLUGIN", config.net_plugin);
    lay(*made, "RSCCL_NET_STRICT", config.net_strict);
    lay(*made, "NCCL_IB_DISABLE", config.ib_disable);
    lay(*made, "NCCL_IB_HCA", config.ib_hca);
    lay(*made, "NCCL_IB_GID_INDEX", config.ib_gid_index);
    lay(*made, "NCCL_IB_ADDR_FAMILY", config.ib_addr_family);
    lay(*made, "NCCL_IB_ROCE_VERSION_NUM", config.ib_roce_version_num);
    lay(*made, "NCCL_IB_TIMEOUT", config.ib_timeout);
    lay(*made, "NCCL_IB_RETRY_CNT", config.ib_retry_cnt);
    lay(*made, "NCCL_IB_SL", config.ib_sl);
    lay(*made, "NCCL_IB_TC", config.ib_tc);
    lay(*made, "NCCL_IB_PKEY", config.ib_pkey);
    lay(*made, "NCCL_IB_QPS_PER_CONNECTION", config.ib_qps_per_connection);
    lay(*made, "NCCL_RUNTIME_CONNECT", config.runtime_connect);
    lay(*made, "NCCL_HOSTID", config.host_id);
    lay(*made, "NCCL_COMM_ID", config.comm_id);
    lay(*made, "RSCCL_SECRET", config.secret);
    lay(*made, "RSCCL_SECRET_FILE", config.secret_file);
    lay(*made, "RSCCL_ENCRYPT", config.encrypt);
    lay(*made, "RSCCL_STORE", config.store);
    lay(*made, "NCCL_SOCKET_IFNAME", config.socket_interfaces);
    lay(*made, "RSCCL_RAILS", config.rails);
    lay(*made, "RSCCL_NIC_TIMEOUT", config.nic_timeout);
    lay(*made, "RSCCL_TCP_CONGESTION", config.tcp_congestion);
    lay(*made, "NCCL_SOCKET_FAMILY", config.socket_family);
    lay(*made, "RSCCL_SOCKET_DIR", config.socket_dir);
    lay(*made, "RSCCL_PORT_RANGE", config.port_range);
    lay(*made, "NCCL_SOCKET_NTHREADS", config.socket_threads);
    lay(*made, "NCCL_NSOCKS_PERTHREAD", config.sockets_per_thread);
    lay(*made, "NCCL_SOCKET_RETRY_CNT", config.socket_retries);
    lay(*made, "NCCL_SOCKET_RETRY_SLEEP_MSEC", config.socket_retry_sleep);
    lay(*made, "NCCL_SOCKET_RCVBUF", config.socket_receive_bytes);
    lay(*made, "NCCL_SOCKET_SNDBUF", config.socket_send_bytes);
    lay(*made, "NCCL_DEBUG", config.debug);
    lay(*made, "NCCL_DEBUG_SUBSYS", config.debug_subsystems);
    lay(*made, "NCCL_DEBUG_FILE", config.debug_file);
    lay(*made, "NCCL_DEBUG_TIMESTAMP_FORMAT", config.debug_time_format);
    lay(*made, "NCCL_DEBUG_TIMESTAMP_LEVELS", config.debug_time_levels);
    return made;
}

} // namespace detail
} // namespace rsccl
