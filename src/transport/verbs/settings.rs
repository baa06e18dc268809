//! What users say of verbs: NCCL's `NCCL_IB_*`.

use crate::config::{PortRange, SocketFamily};

/// The settings of a rank. Ranks may differ in all of them: two ends use the smaller number of queue pairs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsSettings {
    /// `NCCL_IB_DISABLE`: no device is used.
    pub is_disabled: bool,
    /// `NCCL_IB_HCA`: devices and ports, as NCCL writes them; all where `None`.
    pub devices: Option<String>,
    /// `NCCL_IB_GID_INDEX`: the place in the table of GIDs; chosen where `None`.
    pub gid_index: Option<u32>,
    /// `NCCL_IB_ADDR_FAMILY`: of which family a GID is taken first.
    pub family: SocketFamily,
    /// `NCCL_IB_ROCE_VERSION_NUM`: of which version, 1 or 2.
    pub roce_version: u8,
    /// `NCCL_IB_TIMEOUT`: a packet is sent again after 4.096 µs times two to this power, or
    /// at 0 never.
    pub timeout: u8,
    /// `NCCL_IB_RETRY_CNT`: how often, 0 to 7.
    pub retries: u8,
    /// `NCCL_IB_SL`: the service level, 0 to 15.
    pub service_level: u8,
    /// `NCCL_IB_TC`: the traffic class, which holds the DSCP.
    pub traffic_class: u8,
    /// `NCCL_IB_PKEY`: the place in the table of partition keys.
    pub partition: u16,
    /// `NCCL_IB_QPS_PER_CONNECTION`: queue pairs that a connection's messages take in turn.
    pub pairs: u8,
    /// `RSCCL_PORT_RANGE`: where the sockets of set-up listen.
    pub ports: Option<PortRange>,
}

impl Default for VerbsSettings {
    fn default() -> VerbsSettings {
        VerbsSettings {
            is_disabled: false,
            devices: None,
            gid_index: None,
            family: SocketFamily::Inet,
            roce_version: 2,
            timeout: 20,
            retries: 7,
            service_level: 0,
            traffic_class: 0,
            partition: 0,
            pairs: 1,
            ports: None,
        }
    }
}
