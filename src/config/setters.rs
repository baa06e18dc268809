//! The setters of [`Config`]: one for each field, named after it.

use std::path::PathBuf;
use std::time::Duration;

use super::{Config, DebugLevel, DebugLevels, Encryption, PortRange, Secret, SocketFamily, StoreAddress, SubsystemSet};

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident => $field:ident: $type:ty $(, $convert:ident)?;)+) => {
        impl Config {
            $(
                $(#[$doc])*
                #[must_use]
                pub fn $name(mut self, value: $type) -> Config {
                    self.$field = setters!(@ value $($convert)?);
                    self
                }
            )+
        }
    };
    (@ $value:ident) => { $value };
    (@ $value:ident into) => { $value.into() };
    (@ $value:ident some) => { Some($value.into()) };
}

setters! {
    /// Sets [`Config::blocking`].
    with_blocking => blocking: bool;
    /// Sets [`Config::name`].
    with_name => name: impl Into<String>, into;
    /// Sets [`Config::timeout`].
    with_timeout => timeout: Duration;
    /// Sets [`Config::init_timeout`].
    with_init_timeout => init_timeout: Duration;
    /// Sets [`Config::reproducible`].
    with_reproducible => reproducible: bool;
    /// Sets [`Config::spin`].
    with_spin => spin: Duration;
    /// Sets [`Config::algo`].
    with_algo => algo: impl Into<String>, some;
    /// Sets [`Config::proto`].
    with_proto => proto: impl Into<String>, some;
    /// Sets [`Config::strict_filters`].
    with_strict_filters => strict_filters: bool;
    /// Sets [`Config::cohort`].
    with_cohort => cohort: impl Into<String>, some;
    /// Sets [`Config::min_channels`].
    with_min_channels => min_channels: u32, some;
    /// Sets [`Config::max_channels`].
    with_max_channels => max_channels: u32, some;
    /// Sets [`Config::buffer_bytes`].
    with_buffer_bytes => buffer_bytes: u64, some;
    /// Sets [`Config::scratch_bytes`].
    with_scratch_bytes => scratch_bytes: u64;
    /// Sets [`Config::p2p_disable`].
    with_p2p_disable => p2p_disable: bool;
    /// Sets [`Config::p2p_direct_disable`].
    with_p2p_direct_disable => p2p_direct_disable: bool;
    /// Sets [`Config::p2p_use_cuda_memcpy`].
    with_p2p_use_cuda_memcpy => p2p_use_cuda_memcpy: bool;
    /// Sets [`Config::p2p_read_enable`].
    with_p2p_read_enable => p2p_read_enable: bool, some;
    /// Sets [`Config::mnnvl_enable`].
    with_mnnvl_enable => mnnvl_enable: u32;
    /// Sets [`Config::p2p_ll_threshold_bytes`].
    with_p2p_ll_threshold_bytes => p2p_ll_threshold_bytes: u64;
    /// Sets [`Config::shm_disable`].
    with_shm_disable => shm_disable: bool;
    /// Sets [`Config::cma_disable`].
    with_cma_disable => cma_disable: bool;
    /// Sets [`Config::cma_force`].
    with_cma_force => cma_force: bool;
    /// Sets [`Config::cumem_enable`].
    with_cumem_enable => cumem_enable: bool;
    /// Sets [`Config::p2p_level`].
    with_p2p_level => p2p_level: impl Into<String>, some;
    /// Sets [`Config::net_gdr_level`].
    with_net_gdr_level => net_gdr_level: impl Into<String>, some;
    /// Sets [`Config::net_gdr_read`].
    with_net_gdr_read => net_gdr_read: bool, some;
    /// Sets [`Config::dmabuf_enable`].
    with_dmabuf_enable => dmabuf_enable: bool;
    /// Sets [`Config::cross_nic`].
    with_cross_nic => cross_nic: u32;
    /// Sets [`Config::topo_file`].
    with_topo_file => topo_file: impl Into<PathBuf>, some;
    /// Sets [`Config::ignore_cpu_affinity`].
    with_ignore_cpu_affinity => ignore_cpu_affinity: bool;
    /// Sets [`Config::switch_file`].
    with_switch_file => switch_file: impl Into<PathBuf>, some;
    /// Sets [`Config::processors`].
    with_processors => processors: impl Into<String>, some;
    /// Sets [`Config::tune_file`].
    with_tune_file => tune_file: impl Into<PathBuf>, some;
    /// Sets [`Config::record_dir`].
    with_record_dir => record_dir: impl Into<PathBuf>, some;
    /// Sets [`Config::record_at_sigterm`].
    with_record_at_sigterm => record_at_sigterm: bool;
    /// Sets [`Config::ras_addr`].
    with_ras_addr => ras_addr: impl Into<String>, some;
    /// Sets [`Config::ras_enable`].
    with_ras_enable => ras_enable: bool;
    /// Sets [`Config::trace`].
    with_trace => trace: impl Into<PathBuf>, some;
    /// Sets [`Config::trace_steps`].
    with_trace_steps => trace_steps: bool;
    /// Sets [`Config::nvtx_disable`].
    with_nvtx_disable => nvtx_disable: bool;
    /// Sets [`Config::team_ranks`].
    with_team_ranks => team_ranks: u32, some;
    /// Sets [`Config::topo_dump_file`].
    with_topo_dump_file => topo_dump_file: impl Into<PathBuf>, some;
    /// Sets [`Config::graph_file`].
    with_graph_file => graph_file: impl Into<PathBuf>, some;
    /// Sets [`Config::graph_dump_file`].
    with_graph_dump_file => graph_dump_file: impl Into<PathBuf>, some;
    /// Sets [`Config::net_strict`].
    with_net_strict => net_strict: bool;
    /// Sets [`Config::net_plugin`].
    with_net_plugin => net_plugin: impl Into<String>, some;
    /// Sets [`Config::net`].
    with_net => net: impl Into<String>, some;
    /// Sets [`Config::ib_disable`].
    with_ib_disable => ib_disable: bool;
    /// Sets [`Config::ib_hca`].
    with_ib_hca => ib_hca: impl Into<String>, some;
    /// Sets [`Config::ib_gid_index`].
    with_ib_gid_index => ib_gid_index: u32, some;
    /// Sets [`Config::ib_addr_family`].
    with_ib_addr_family => ib_addr_family: SocketFamily;
    /// Sets [`Config::ib_roce_version_num`].
    with_ib_roce_version_num => ib_roce_version_num: u32;
    /// Sets [`Config::ib_timeout`].
    with_ib_timeout => ib_timeout: u32;
    /// Sets [`Config::ib_retry_cnt`].
    with_ib_retry_cnt => ib_retry_cnt: u32;
    /// Sets [`Config::ib_sl`].
    with_ib_sl => ib_sl: u32, some;
    /// Sets [`Config::ib_tc`].
    with_ib_tc => ib_tc: u32, some;
    /// Sets [`Config::ib_pkey`].
    with_ib_pkey => ib_pkey: u32;
    /// Sets [`Config::ib_qps_per_connection`].
    with_ib_qps_per_connection => ib_qps_per_connection: u32;
    /// Sets [`Config::runtime_connect`].
    with_runtime_connect => runtime_connect: bool;
    /// Sets [`Config::host_id`].
    with_host_id => host_id: impl Into<String>, some;
    /// Sets [`Config::comm_id`].
    with_comm_id => comm_id: impl Into<String>, some;
    /// Sets [`Config::secret`].
    with_secret => secret: Secret, some;
    /// Sets [`Config::secret_file`].
    with_secret_file => secret_file: impl Into<PathBuf>, some;
    /// Sets [`Config::encrypt`].
    with_encrypt => encrypt: Encryption;
    /// Sets [`Config::store`].
    with_store => store: StoreAddress, some;
    /// Sets [`Config::socket_interfaces`].
    with_socket_interfaces => socket_interfaces: impl Into<String>, some;
    /// Sets [`Config::rails`].
    with_rails => rails: impl Into<String>, some;
    /// Sets [`Config::nic_timeout`].
    with_nic_timeout => nic_timeout: Duration;
    /// Sets [`Config::tcp_congestion`].
    with_tcp_congestion => tcp_congestion: impl Into<String>, some;
    /// Sets [`Config::socket_family`].
    with_socket_family => socket_family: SocketFamily, some;
    /// Sets [`Config::socket_dir`].
    with_socket_dir => socket_dir: impl Into<PathBuf>, some;
    /// Sets [`Config::port_range`].
    with_port_range => port_range: PortRange, some;
    /// Sets [`Config::socket_threads`].
    with_socket_threads => socket_threads: u32, some;
    /// Sets [`Config::sockets_per_thread`].
    with_sockets_per_thread => sockets_per_thread: u32, some;
    /// Sets [`Config::socket_retries`].
    with_socket_retries => socket_retries: u32;
    /// Sets [`Config::socket_retry_sleep`].
    with_socket_retry_sleep => socket_retry_sleep: Duration;
    /// Sets [`Config::socket_receive_bytes`].
    with_socket_receive_bytes => socket_receive_bytes: u64, some;
    /// Sets [`Config::socket_send_bytes`].
    with_socket_send_bytes => socket_send_bytes: u64, some;
    /// Sets [`Config::debug`].
    with_debug => debug: DebugLevel, some;
    /// Sets [`Config::debug_subsystems`].
    with_debug_subsystems => debug_subsystems: SubsystemSet;
    /// Sets [`Config::debug_file`].
    with_debug_file => debug_file: impl Into<String>, some;
    /// Sets [`Config::debug_time_format`].
    with_debug_time_format => debug_time_format: impl Into<String>, into;
    /// Sets [`Config::debug_time_levels`].
    with_debug_time_levels => debug_time_levels: DebugLevels;
}
