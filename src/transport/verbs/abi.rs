//! The binary interface of libibverbs, as far as it is used: that of version `IBVERBS_1.1`, which rdma-core has kept
//! since its first release, and which cards' own releases (OFED) have, too.
//!
//! What is an inline function in the headers (posting and polling) is called through the table of functions at the
//! beginning of a context. Objects are read up to the last field that is used, and never written; what the library
//! fills in has room behind it. Names are those of the C headers, against which a test holds sizes and offsets where
//! the headers are installed.

use std::ffi::{c_int, c_uint, c_void};

/// `struct ibv_context`, up to its descriptors.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvContext {
    pub(super) device: *mut c_void,
    pub(super) ops: IbvContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
}

/// `struct ibv_context_ops`: what is posted and polled goes through it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvContextOps {
    pub(super) before_poll_cq: [*const c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int>,
    pub(super) before_post_send: [*const c_void; 12],
    pub(super) post_send: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int>,
    pub(super) post_recv: Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int>,
    pub(super) after_post_recv: [*const c_void; 5],
}

/// `struct ibv_cq`, of which nothing is read.
#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvCq {
    _opaque: [u8; 0],
}

/// `struct ibv_pd`, of which nothing is read.
#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvPd {
    _opaque: [u8; 0],
}

/// `struct ibv_device`, of which nothing is read.
#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvDevice {
    _opaque: [u8; 0],
}

/// `struct ibv_comp_channel`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvCompChannel {
    pub(super) context: *mut IbvContext,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

/// `struct ibv_mr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvMr {
    pub(super) context: *mut IbvContext,
    pub(super) pd: *mut IbvPd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// `struct ibv_qp`, up to its state.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvQp {
    pub(super) context: *mut IbvContext,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut IbvPd,
    pub(super) send_cq: *mut IbvCq,
    pub(super) recv_cq: *mut IbvCq,
    pub(super) srq: *mut c_void,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
    pub(super) state: c_uint,
    pub(super) qp_type: c_uint,
}

/// `struct ibv_device_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvDeviceAttr {
    pub(super) fw_ver: [u8; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    /// Its end, and room for what later releases may write.
    pub(super) rest: [u32; 64],
}

/// `struct ibv_port_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvPortAttr {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    /// Room for what later releases may write.
    pub(super) rest: [u16; 41],
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvGidEntry {
    /// A union with two words: it is aligned as they are.
    pub(super) gid: [u64; 2],
    pub(super) gid_index: u32,
    pub(super) port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

/// `struct ibv_qp_cap`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvQpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// `struct ibv_qp_init_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvQpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut IbvCq,
    pub(super) recv_cq: *mut IbvCq,
    pub(super) srq: *mut c_void,
    pub(super) cap: IbvQpCap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

/// `struct ibv_global_route`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvGlobalRoute {
    pub(super) dgid: [u64; 2],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// `struct ibv_ah_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvAhAttr {
    pub(super) grh: IbvGlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// `struct ibv_qp_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvQpAttr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: IbvQpCap,
    pub(super) ah_attr: IbvAhAttr,
    pub(super) alt_ah_attr: IbvAhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvSge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvSendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut IbvSendWr,
    pub(super) sg_list: *mut IbvSge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// In network order.
    pub(super) imm_data: u32,
    /// Unions for other kinds of requests.
    pub(super) others: [u64; 11],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct IbvRecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut IbvRecvWr,
    pub(super) sg_list: *mut IbvSge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvWc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In network order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// `struct ibv_async_event`: its number is that of a port where the event is of one.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct IbvAsyncEvent {
    pub(super) element: u64,
    pub(super) event_type: c_uint,
}

pub(super) const IBV_PORT_ACTIVE: c_uint = 4;
pub(super) const IBV_LINK_LAYER_ETHERNET: u8 = 2;
pub(super) const IBV_QPF_GRH_REQUIRED: u8 = 1;
pub(super) const IBV_GID_TYPE_IB: u32 = 0;
pub(super) const IBV_GID_TYPE_ROCE_V1: u32 = 1;
pub(super) const IBV_GID_TYPE_ROCE_V2: u32 = 2;

pub(super) const IBV_QPT_RC: c_uint = 2;
pub(super) const IBV_QPS_INIT: c_uint = 1;
pub(super) const IBV_QPS_RTR: c_uint = 2;
pub(super) const IBV_QPS_RTS: c_uint = 3;
pub(super) const IBV_QPS_ERR: c_uint = 6;

pub(super) const IBV_QP_STATE: c_int = 1;
pub(super) const IBV_QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const IBV_QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const IBV_QP_PORT: c_int = 1 << 5;
pub(super) const IBV_QP_AV: c_int = 1 << 7;
pub(super) const IBV_QP_PATH_MTU: c_int = 1 << 8;
pub(super) const IBV_QP_TIMEOUT: c_int = 1 << 9;
pub(super) const IBV_QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const IBV_QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const IBV_QP_RQ_PSN: c_int = 1 << 12;
pub(super) const IBV_QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const IBV_QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const IBV_QP_SQ_PSN: c_int = 1 << 16;
pub(super) const IBV_QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const IBV_QP_DEST_QPN: c_int = 1 << 20;

pub(super) const IBV_ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const IBV_WR_SEND_WITH_IMM: c_uint = 3;
pub(super) const IBV_SEND_SIGNALED: c_uint = 1 << 1;
pub(super) const IBV_WC_WITH_IMM: c_uint = 1 << 1;
pub(super) const IBV_WC_SUCCESS: c_uint = 0;
pub(super) const IBV_WC_LOC_LEN_ERR: c_uint = 1;
pub(super) const IBV_WC_WR_FLUSH_ERR: c_uint = 5;
pub(super) const IBV_WC_RETRY_EXC_ERR: c_uint = 12;
pub(super) const IBV_EVENT_CQ_ERR: c_uint = 0;
pub(super) const IBV_EVENT_QP_FATAL: c_uint = 1;
pub(super) const IBV_EVENT_QP_REQ_ERR: c_uint = 2;
pub(super) const IBV_EVENT_QP_ACCESS_ERR: c_uint = 3;
pub(super) const IBV_EVENT_DEVICE_FATAL: c_uint = 8;
pub(super) const IBV_EVENT_PORT_ACTIVE: c_uint = 9;
pub(super) const IBV_EVENT_PORT_ERR: c_uint = 10;
