//! Layouts and constants against the headers of libibverbs, where they are installed.

use std::mem::offset_of;

use machine::headers::numbers_of_headers;

use super::abi::*;

#[test]
fn layouts_and_constants_are_those_of_the_headers() {
    let (mut expressions, mut expected) = (Vec::new(), Vec::new());
    macro_rules! fields {
        ($ours:ty, $theirs:literal: $($field:ident = $name:literal),+ $(,)?) => {{
            $(
                expressions.push(concat!("offsetof(struct ", $theirs, ", ", $name, ")"));
                expected.push(offset_of!($ours, $field));
            )+
        }};
    }
    macro_rules! sizes {
        ($($ours:ty = $theirs:literal),+ $(,)?) => {{
            $(
                expressions.push(concat!("sizeof(struct ", $theirs, ")"));
                expected.push(size_of::<$ours>());
            )+
        }};
    }
    macro_rules! values {
        ($($name:ident = $theirs:literal),+ $(,)?) => {{
            $(
                expressions.push($theirs);
                expected.push(usize::try_from($name).unwrap());
            )+
        }};
    }
    sizes!(
        IbvContextOps = "ibv_context_ops",
        IbvCompChannel = "ibv_comp_channel",
        IbvMr = "ibv_mr",
        IbvGidEntry = "ibv_gid_entry",
        IbvQpCap = "ibv_qp_cap",
        IbvQpInitAttr = "ibv_qp_init_attr",
        IbvGlobalRoute = "ibv_global_route",
        IbvAhAttr = "ibv_ah_attr",
        IbvQpAttr = "ibv_qp_attr",
        IbvSge = "ibv_sge",
        IbvSendWr = "ibv_send_wr",
        IbvRecvWr = "ibv_recv_wr",
        IbvWc = "ibv_wc",
        IbvAsyncEvent = "ibv_async_event"
    );
    fields!(IbvContext, "ibv_context": device = "device", ops = "ops", cmd_fd = "cmd_fd", async_fd = "async_fd");
    fields!(IbvContextOps, "ibv_context_ops": poll_cq = "poll_cq", req_notify_cq = "req_notify_cq",
        post_send = "post_send", post_recv = "post_recv");
    fields!(IbvCompChannel, "ibv_comp_channel": fd = "fd");
    fields!(IbvMr, "ibv_mr": lkey = "lkey", rkey = "rkey");
    fields!(IbvQp, "ibv_qp": qp_num = "qp_num", state = "state", qp_type = "qp_type");
    fields!(IbvDeviceAttr, "ibv_device_attr": vendor_id = "vendor_id", max_qp_wr = "max_qp_wr", max_cqe = "max_cqe");
    fields!(IbvPortAttr, "ibv_port_attr": state = "state", active_mtu = "active_mtu", gid_tbl_len = "gid_tbl_len",
        max_msg_sz = "max_msg_sz", lid = "lid", active_width = "active_width", active_speed = "active_speed",
        link_layer = "link_layer", flags = "flags");
    fields!(IbvGidEntry, "ibv_gid_entry": gid = "gid", gid_type = "gid_type");
    fields!(IbvQpInitAttr, "ibv_qp_init_attr": send_cq = "send_cq", recv_cq = "recv_cq", cap = "cap",
        qp_type = "qp_type", sq_sig_all = "sq_sig_all");
    fields!(IbvGlobalRoute, "ibv_global_route": sgid_index = "sgid_index", hop_limit = "hop_limit",
        traffic_class = "traffic_class");
    fields!(IbvAhAttr, "ibv_ah_attr": grh = "grh", dlid = "dlid", sl = "sl", is_global = "is_global",
        port_num = "port_num");
    fields!(IbvQpAttr, "ibv_qp_attr": path_mtu = "path_mtu", rq_psn = "rq_psn", sq_psn = "sq_psn",
        dest_qp_num = "dest_qp_num", qp_access_flags = "qp_access_flags", ah_attr = "ah_attr",
        pkey_index = "pkey_index", max_rd_atomic = "max_rd_atomic", max_dest_rd_atomic = "max_dest_rd_atomic",
        min_rnr_timer = "min_rnr_timer", port_num = "port_num", timeout = "timeout", retry_cnt = "retry_cnt",
        rnr_retry = "rnr_retry");
    fields!(IbvSendWr, "ibv_send_wr": wr_id = "wr_id", sg_list = "sg_list", num_sge = "num_sge", opcode = "opcode",
        send_flags = "send_flags", imm_data = "imm_data");
    fields!(IbvRecvWr, "ibv_recv_wr": sg_list = "sg_list", num_sge = "num_sge");
    fields!(IbvWc, "ibv_wc": status = "status", byte_len = "byte_len", imm_data = "imm_data", wc_flags = "wc_flags");
    fields!(IbvAsyncEvent, "ibv_async_event": element = "element.port_num", event_type = "event_type");
    values!(
        IBV_PORT_ACTIVE = "IBV_PORT_ACTIVE",
        IBV_LINK_LAYER_ETHERNET = "IBV_LINK_LAYER_ETHERNET",
        IBV_GID_TYPE_IB = "IBV_GID_TYPE_IB",
        IBV_GID_TYPE_ROCE_V1 = "IBV_GID_TYPE_ROCE_V1",
        IBV_GID_TYPE_ROCE_V2 = "IBV_GID_TYPE_ROCE_V2",
        IBV_QPT_RC = "IBV_QPT_RC",
        IBV_QPS_INIT = "IBV_QPS_INIT",
        IBV_QPS_RTR = "IBV_QPS_RTR",
        IBV_QPS_RTS = "IBV_QPS_RTS",
        IBV_QP_STATE = "IBV_QP_STATE",
        IBV_QP_ACCESS_FLAGS = "IBV_QP_ACCESS_FLAGS",
        IBV_QP_PKEY_INDEX = "IBV_QP_PKEY_INDEX",
        IBV_QP_PORT = "IBV_QP_PORT",
        IBV_QP_AV = "IBV_QP_AV",
        IBV_QP_PATH_MTU = "IBV_QP_PATH_MTU",
        IBV_QP_TIMEOUT = "IBV_QP_TIMEOUT",
        IBV_QP_RETRY_CNT = "IBV_QP_RETRY_CNT",
        IBV_QP_RNR_RETRY = "IBV_QP_RNR_RETRY",
        IBV_QP_RQ_PSN = "IBV_QP_RQ_PSN",
        IBV_QP_MAX_QP_RD_ATOMIC = "IBV_QP_MAX_QP_RD_ATOMIC",
        IBV_QP_MIN_RNR_TIMER = "IBV_QP_MIN_RNR_TIMER",
        IBV_QP_SQ_PSN = "IBV_QP_SQ_PSN",
        IBV_QP_MAX_DEST_RD_ATOMIC = "IBV_QP_MAX_DEST_RD_ATOMIC",
        IBV_QP_DEST_QPN = "IBV_QP_DEST_QPN",
        IBV_ACCESS_LOCAL_WRITE = "IBV_ACCESS_LOCAL_WRITE",
        IBV_WR_SEND_WITH_IMM = "IBV_WR_SEND_WITH_IMM",
        IBV_SEND_SIGNALED = "IBV_SEND_SIGNALED",
        IBV_WC_WITH_IMM = "IBV_WC_WITH_IMM",
        IBV_WC_SUCCESS = "IBV_WC_SUCCESS",
        IBV_WC_WR_FLUSH_ERR = "IBV_WC_WR_FLUSH_ERR",
        IBV_WC_RETRY_EXC_ERR = "IBV_WC_RETRY_EXC_ERR",
        IBV_EVENT_PORT_ACTIVE = "IBV_EVENT_PORT_ACTIVE",
        IBV_EVENT_PORT_ERR = "IBV_EVENT_PORT_ERR"
    );
    let Some(numbers) = numbers_of_headers("infiniband/verbs.h", "libibverbs-dev", &expressions) else { return };
    for ((expression, ours), theirs) in expressions.iter().zip(expected).zip(numbers) {
        assert_eq!(ours, theirs, "{expression}");
    }
    // What the library fills in has room behind what is known.
    assert!(size_of::<IbvPortAttr>() >= 128 && size_of::<IbvDeviceAttr>() >= 384);
}
