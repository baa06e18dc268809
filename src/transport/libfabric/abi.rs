//! The binary interface of libfabric, as far as it is used: `fi_getinfo@FABRIC_1.3` and what its objects lead to.
//!
//! Structures have only grown at their ends between releases 1.14 and 2.6. So what the library gives is read as the
//! oldest form, and what it is given has the newest form's size, with zeros behind what is known (`...Hints`). Tables
//! of functions are read up to the last one that is used; all of these are in release 1.14. Names are those of the C
//! headers, against which a test holds sizes and offsets where the headers are installed.

use std::ffi::{c_char, c_int, c_void};

/// `struct fi_info`: one way to communicate.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiInfo {
    pub(super) next: *mut FiInfo,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) src_addrlen: usize,
    pub(super) dest_addrlen: usize,
    pub(super) src_addr: *mut c_void,
    pub(super) dest_addr: *mut c_void,
    pub(super) handle: *mut FiFid,
    pub(super) tx_attr: *mut FiTxAttr,
    pub(super) rx_attr: *mut FiRxAttr,
    pub(super) ep_attr: *mut FiEpAttr,
    pub(super) domain_attr: *mut FiDomainAttr,
    pub(super) fabric_attr: *mut FiFabricAttr,
    pub(super) nic: *mut FiNic,
}

/// `struct fi_tx_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiTxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
    pub(super) comp_order: u64,
    pub(super) inject_size: usize,
    pub(super) size: usize,
    pub(super) iov_limit: usize,
    pub(super) rma_iov_limit: usize,
    pub(super) tclass: u32,
}

/// `struct fi_rx_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiRxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
    pub(super) msg_order: u64,
    pub(super) comp_order: u64,
    pub(super) total_buffered_recv: usize,
    pub(super) size: usize,
    pub(super) iov_limit: usize,
}

/// `struct fi_ep_attr`, without what releases after 1.14 have at its end.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiEpAttr {
    pub(super) kind: c_int,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) max_msg_size: usize,
    pub(super) msg_prefix_size: usize,
    pub(super) max_order_raw_size: usize,
    pub(super) max_order_war_size: usize,
    pub(super) max_order_waw_size: usize,
    pub(super) mem_tag_format: u64,
    pub(super) tx_ctx_cnt: usize,
    pub(super) rx_ctx_cnt: usize,
    pub(super) auth_key_size: usize,
    pub(super) auth_key: *mut u8,
}

/// `struct fi_domain_attr`, without what releases after 1.14 have at its end.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiDomainAttr {
    pub(super) domain: *mut FiFid,
    pub(super) name: *mut c_char,
    pub(super) threading: c_int,
    pub(super) control_progress: c_int,
    pub(super) data_progress: c_int,
    pub(super) resource_mgmt: c_int,
    pub(super) av_type: c_int,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
    pub(super) cq_data_size: usize,
    pub(super) cq_cnt: usize,
    pub(super) ep_cnt: usize,
    pub(super) tx_ctx_cnt: usize,
    pub(super) rx_ctx_cnt: usize,
    pub(super) max_ep_tx_ctx: usize,
    pub(super) max_ep_rx_ctx: usize,
    pub(super) max_ep_stx_ctx: usize,
    pub(super) max_ep_srx_ctx: usize,
    pub(super) cntr_cnt: usize,
    pub(super) mr_iov_limit: usize,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) auth_key: *mut u8,
    pub(super) auth_key_size: usize,
    pub(super) max_err_data: usize,
    pub(super) mr_cnt: usize,
    pub(super) tclass: u32,
}

/// `struct fi_fabric_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiFabricAttr {
    pub(super) fabric: *mut FiFid,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
    pub(super) prov_version: u32,
    pub(super) api_version: u32,
}

/// `struct fi_ep_attr` of release 2.6.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiEpHints {
    pub(super) known: FiEpAttr,
    pub(super) later: [u64; 1],
}

/// `struct fi_domain_attr` of release 2.6.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiDomainHints {
    pub(super) known: FiDomainAttr,
    pub(super) later: [u64; 5],
}

/// `struct fid_nic`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiNic {
    pub(super) fid: FiFid,
    pub(super) device_attr: *mut FiDeviceAttr,
    pub(super) bus_attr: *mut FiBusAttr,
    pub(super) link_attr: *mut FiLinkAttr,
    pub(super) prov_attr: *mut c_void,
}

/// `struct fi_device_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiDeviceAttr {
    pub(super) name: *mut c_char,
    pub(super) device_id: *mut c_char,
    pub(super) device_version: *mut c_char,
    pub(super) vendor_id: *mut c_char,
    pub(super) driver: *mut c_char,
    pub(super) firmware: *mut c_char,
}

/// `struct fi_bus_attr` with the only kind of bus that there is.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiBusAttr {
    pub(super) kind: c_int,
    pub(super) domain: u16,
    pub(super) bus: u8,
    pub(super) device: u8,
    pub(super) function: u8,
}

/// `struct fi_link_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiLinkAttr {
    pub(super) address: *mut c_char,
    pub(super) mtu: usize,
    /// Bits in a second.
    pub(super) speed: usize,
    pub(super) state: c_int,
    pub(super) network_type: *mut c_char,
}

/// `struct fid`, with which every object begins.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiFid {
    pub(super) class: usize,
    pub(super) context: *mut c_void,
    pub(super) ops: *const FiOps,
}

/// `struct fi_ops`: of every object.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiOps {
    pub(super) size: usize,
    pub(super) close: unsafe extern "C" fn(*mut FiFid) -> c_int,
    pub(super) bind: unsafe extern "C" fn(*mut FiFid, *mut FiFid, u64) -> c_int,
    pub(super) control: unsafe extern "C" fn(*mut FiFid, c_int, *mut c_void) -> c_int,
}

/// `struct fid_fabric`, `fid_domain`, `fid_av`, `fid_cq`: an object with a table of functions of its own. A domain has
/// the table for memory behind it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiObject<T> {
    pub(super) fid: FiFid,
    pub(super) ops: *const T,
}

/// `struct fid_domain`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiDomain {
    pub(super) object: FiObject<FiOpsDomain>,
    pub(super) mr: *const FiOpsMr,
}

/// `struct fid_ep`, up to the table that is used.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiEp {
    pub(super) fid: FiFid,
    pub(super) ops: *const c_void,
    pub(super) cm: *const FiOpsCm,
    pub(super) msg: *const c_void,
    pub(super) rma: *const c_void,
    pub(super) tagged: *const FiOpsTagged,
}

/// `struct fid_mr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiMr {
    pub(super) fid: FiFid,
    pub(super) mem_desc: *mut c_void,
    pub(super) key: u64,
}

/// `struct fi_ops_fabric`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiOpsFabric {
    pub(super) size: usize,
    pub(super) domain: unsafe extern "C" fn(*mut FiFid, *mut FiInfo, *mut *mut FiFid, *mut c_void) -> c_int,
    pub(super) passive_ep: *const c_void,
    pub(super) eq_open: *const c_void,
    pub(super) wait_open: *const c_void,
    pub(super) trywait: Option<unsafe extern "C" fn(*mut FiFid, *mut *mut FiFid, c_int) -> c_int>,
}

/// `struct fi_ops_domain`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiOpsDomain {
    pub(super) size: usize,
    pub(super) av_open: unsafe extern "C" fn(*mut FiFid, *mut FiAvAttr, *mut *mut FiFid, *mut c_void) -> c_int,
    pub(super) cq_open: unsafe extern "C" fn(*mut FiFid, *mut FiCqAttr, *mut *mut FiFid, *mut c_void) -> c_int,
    pub(super) endpoint: unsafe extern "C" fn(*mut FiFid, *mut FiInfo, *mut *mut FiFid, *mut c_void) -> c_int,
}

/// `struct fi_ops_mr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiOpsMr {
    pub(super) size: usize,
    /// The object, memory and its length, access, offset, requested key, flags, the region, context.
    pub(super) reg: unsafe extern "C" fn(
        *mut FiFid,
        *const c_void,
        usize,
        u64,
        u64,
        u64,
        u64,
        *mut *mut FiFid,
        *mut c_void,
    ) -> c_int,
}

/// `struct fi_ops_av`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiOpsAv {
    pub(super) size: usize,
    pub(super) insert: unsafe extern "C" fn(*mut FiFid, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
}

/// `struct fi_ops_cq`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiOpsCq {
    pub(super) size: usize,
    pub(super) read: unsafe extern "C" fn(*mut FiFid, *mut c_void, usize) -> isize,
    pub(super) readfrom: *const c_void,
    pub(super) readerr: unsafe extern "C" fn(*mut FiFid, *mut FiCqErrEntry, u64) -> isize,
    pub(super) sread: *const c_void,
    pub(super) sreadfrom: *const c_void,
    pub(super) signal: *const c_void,
    /// The queue, the provider's own code, what it gave beside the error, a place for the text and its length.
    pub(super) strerror:
        Option<unsafe extern "C" fn(*mut FiFid, c_int, *const c_void, *mut c_char, usize) -> *const c_char>,
}

/// `struct fi_ops_cm`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiOpsCm {
    pub(super) size: usize,
    pub(super) setname: *const c_void,
    pub(super) getname: unsafe extern "C" fn(*mut FiFid, *mut c_void, *mut usize) -> c_int,
}

/// `struct fi_ops_tagged`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiOpsTagged {
    pub(super) size: usize,
    /// The endpoint, a buffer and its length, its descriptor, whom from, the tag, bits of it that are ignored, context.
    pub(super) recv:
        unsafe extern "C" fn(*mut FiFid, *mut c_void, usize, *mut c_void, u64, u64, u64, *mut c_void) -> isize,
    pub(super) recvv: *const c_void,
    pub(super) recvmsg: *const c_void,
    /// The endpoint, a buffer and its length, its descriptor, whom to, the tag, context.
    pub(super) send:
        unsafe extern "C" fn(*mut FiFid, *const c_void, usize, *mut c_void, u64, u64, *mut c_void) -> isize,
    pub(super) sendv: *const c_void,
    pub(super) sendmsg: unsafe extern "C" fn(*mut FiFid, *const FiMsgTagged, u64) -> isize,
}

/// `struct fi_msg_tagged`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiMsgTagged {
    pub(super) msg_iov: *const FiPart,
    pub(super) desc: *mut *mut c_void,
    pub(super) iov_count: usize,
    pub(super) addr: u64,
    pub(super) tag: u64,
    pub(super) ignore: u64,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

/// `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiPart {
    pub(super) iov_base: *mut c_void,
    pub(super) iov_len: usize,
}

/// `struct fi_av_attr`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiAvAttr {
    pub(super) kind: c_int,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: *mut c_void,
    pub(super) flags: u64,
}

/// `struct fi_cq_attr` of release 2.6, whose last word earlier ones do not have.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiCqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: c_int,
    pub(super) wait_obj: c_int,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: c_int,
    pub(super) wait_set: *mut c_void,
    pub(super) later: u64,
}

/// `struct fi_cq_tagged_entry`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiCqTaggedEntry {
    pub(super) op_context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
}

/// `struct fi_cq_err_entry`, of which a library writes the last word if it was asked with 1.20 or later.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(super) struct FiCqErrEntry {
    pub(super) op_context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
    pub(super) src_addr: u64,
}

/// `struct fi_context2`: what a provider may write while an operation is under way, unless it asks for less.
pub(super) type FiContext = [u64; 8];

/// `FI_VERSION`.
pub(super) const fn version(major: u32, minor: u32) -> u32 {
    (major << 16) | minor
}

pub(super) const FI_TAGGED: u64 = 1 << 3;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_SEND: u64 = 1 << 11;
pub(super) const FI_COMPLETION: u64 = 1 << 24;
/// A send is done when the message lies in the receiver's memory.
pub(super) const FI_DELIVERY_COMPLETE: u64 = 1 << 28;
pub(super) const FI_CONTEXT: u64 = 1 << 59;
pub(super) const FI_CONTEXT2: u64 = 1 << 52;
pub(super) const FI_ADDR_UNSPEC: u64 = u64::MAX;
/// Sends of one sender arrive in their order.
pub(super) const FI_ORDER_SAS: u64 = 1 << 8;

/// Formats of addresses.
pub(super) const FI_SOCKADDR_IN: u32 = 2;
pub(super) const FI_SOCKADDR_IN6: u32 = 3;

pub(super) const FI_EP_RDM: c_int = 3;
pub(super) const FI_AV_TABLE: c_int = 2;
pub(super) const FI_THREAD_DOMAIN: c_int = 3;
pub(super) const FI_RM_ENABLED: c_int = 2;
pub(super) const FI_CQ_FORMAT_TAGGED: c_int = 4;
pub(super) const FI_WAIT_NONE: c_int = 0;
pub(super) const FI_WAIT_FD: c_int = 3;
pub(super) const FI_BUS_PCI: c_int = 1;
pub(super) const FI_LINK_DOWN: c_int = 1;

/// Commands of `control`.
pub(super) const FI_GETWAIT: c_int = 5;
pub(super) const FI_ENABLE: c_int = 6;

pub(super) const FI_MR_LOCAL: c_int = 1 << 2;
pub(super) const FI_MR_VIRT_ADDR: c_int = 1 << 4;
pub(super) const FI_MR_ALLOCATED: c_int = 1 << 5;
pub(super) const FI_MR_PROV_KEY: c_int = 1 << 6;
pub(super) const FI_MR_ENDPOINT: c_int = 1 << 9;

/// Codes of errors, which calls return with a minus.
pub(super) const FI_EAGAIN: i32 = 11;
pub(super) const FI_ENOMEM: i32 = 12;
pub(super) const FI_ENODATA: i32 = 61;
pub(super) const FI_EAVAIL: i32 = 259;
pub(super) const FI_ETRUNC: i32 = 265;

/// `FI_PROTO_XNET`: native TCP, which the provider `net` of 1.17 and the provider `tcp` of 2.x both speak.
pub(super) const FI_PROTO_XNET: u32 = 25;
