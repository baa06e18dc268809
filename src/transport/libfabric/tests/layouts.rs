//! Layouts and constants against the headers of libfabric, where they are installed.

use std::mem::offset_of;

use machine::libfabric::numbers_of_headers;

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
    macro_rules! values {
        ($($name:ident),+ $(,)?) => {{
            $(
                expressions.push(stringify!($name));
                expected.push(usize::try_from($name).unwrap());
            )+
        }};
    }
    fields!(FiInfo, "fi_info": next = "next", caps = "caps", mode = "mode", addr_format = "addr_format",
        src_addrlen = "src_addrlen", dest_addrlen = "dest_addrlen", src_addr = "src_addr", dest_addr = "dest_addr",
        handle = "handle", tx_attr = "tx_attr", rx_attr = "rx_attr", ep_attr = "ep_attr", domain_attr = "domain_attr",
        fabric_attr = "fabric_attr", nic = "nic");
    fields!(FiTxAttr, "fi_tx_attr": op_flags = "op_flags", msg_order = "msg_order", inject_size = "inject_size",
        size = "size", tclass = "tclass");
    fields!(FiRxAttr, "fi_rx_attr": msg_order = "msg_order", size = "size", iov_limit = "iov_limit");
    fields!(FiEpAttr, "fi_ep_attr": kind = "type", protocol = "protocol", protocol_version = "protocol_version",
        max_msg_size = "max_msg_size", mem_tag_format = "mem_tag_format", auth_key = "auth_key");
    fields!(FiDomainAttr, "fi_domain_attr": domain = "domain", name = "name", threading = "threading",
        control_progress = "control_progress", data_progress = "data_progress", resource_mgmt = "resource_mgmt",
        av_type = "av_type", mr_mode = "mr_mode", mr_key_size = "mr_key_size", cq_cnt = "cq_cnt", caps = "caps",
        mode = "mode", mr_cnt = "mr_cnt", tclass = "tclass");
    fields!(FiFabricAttr, "fi_fabric_attr": fabric = "fabric", name = "name", prov_name = "prov_name",
        prov_version = "prov_version", api_version = "api_version");
    fields!(FiNic, "fid_nic": device_attr = "device_attr", bus_attr = "bus_attr", link_attr = "link_attr");
    fields!(FiDeviceAttr, "fi_device_attr": name = "name", driver = "driver", firmware = "firmware");
    fields!(FiBusAttr, "fi_bus_attr": kind = "bus_type", domain = "attr.pci.domain_id", bus = "attr.pci.bus_id",
        device = "attr.pci.device_id", function = "attr.pci.function_id");
    fields!(FiLinkAttr, "fi_link_attr": mtu = "mtu", speed = "speed", state = "state");
    fields!(FiFid, "fid": class = "fclass", context = "context", ops = "ops");
    fields!(FiOps, "fi_ops": size = "size", close = "close", bind = "bind", control = "control");
    fields!(FiObject<FiOpsCq>, "fid_cq": ops = "ops");
    fields!(FiObject<FiOpsAv>, "fid_av": ops = "ops");
    fields!(FiObject<FiOpsFabric>, "fid_fabric": ops = "ops");
    fields!(FiDomain, "fid_domain": object = "fid", mr = "mr");
    fields!(FiEp, "fid_ep": ops = "ops", cm = "cm", msg = "msg", rma = "rma", tagged = "tagged");
    fields!(FiMr, "fid_mr": mem_desc = "mem_desc", key = "key");
    fields!(FiOpsFabric, "fi_ops_fabric": domain = "domain", eq_open = "eq_open", trywait = "trywait");
    fields!(FiOpsDomain, "fi_ops_domain": av_open = "av_open", cq_open = "cq_open", endpoint = "endpoint");
    fields!(FiOpsMr, "fi_ops_mr": reg = "reg");
    fields!(FiOpsAv, "fi_ops_av": insert = "insert");
    fields!(FiOpsCq, "fi_ops_cq": read = "read", readerr = "readerr", strerror = "strerror");
    fields!(FiOpsCm, "fi_ops_cm": getname = "getname");
    fields!(FiOpsTagged, "fi_ops_tagged": recv = "recv", send = "send", sendmsg = "sendmsg");
    fields!(FiMsgTagged, "fi_msg_tagged": msg_iov = "msg_iov", desc = "desc", iov_count = "iov_count", addr = "addr",
        tag = "tag", ignore = "ignore", context = "context", data = "data");
    fields!(FiPart, "iovec": iov_base = "iov_base", iov_len = "iov_len");
    fields!(FiAvAttr, "fi_av_attr": kind = "type", count = "count", ep_per_node = "ep_per_node", flags = "flags");
    fields!(FiCqAttr, "fi_cq_attr": size = "size", flags = "flags", format = "format", wait_obj = "wait_obj",
        wait_cond = "wait_cond", wait_set = "wait_set");
    fields!(FiCqTaggedEntry, "fi_cq_tagged_entry": op_context = "op_context", len = "len", tag = "tag");
    fields!(FiCqErrEntry, "fi_cq_err_entry": op_context = "op_context", len = "len", tag = "tag", olen = "olen",
        err = "err", prov_errno = "prov_errno", err_data = "err_data", err_data_size = "err_data_size");
    values!(
        FI_TAGGED,
        FI_RECV,
        FI_SEND,
        FI_CONTEXT,
        FI_CONTEXT2,
        FI_ADDR_UNSPEC,
        FI_ORDER_SAS,
        FI_SOCKADDR_IN,
        FI_SOCKADDR_IN6,
        FI_EP_RDM,
        FI_AV_TABLE,
        FI_THREAD_DOMAIN,
        FI_RM_ENABLED,
        FI_CQ_FORMAT_TAGGED,
        FI_WAIT_NONE,
        FI_WAIT_FD,
        FI_BUS_PCI,
        FI_LINK_DOWN,
        FI_GETWAIT,
        FI_ENABLE,
        FI_MR_LOCAL,
        FI_MR_VIRT_ADDR,
        FI_MR_ALLOCATED,
        FI_MR_PROV_KEY,
        FI_MR_ENDPOINT,
        FI_EAGAIN,
        FI_ENOMEM,
        FI_ENODATA,
        FI_EAVAIL,
        FI_ETRUNC,
        FI_PROTO_XNET
    );
    let fields = expressions.len();
    // What the library is given is as long as in any release; what it gives is read no further than in the oldest one.
    let (given, read) = (
        [
            ("fi_tx_attr", size_of::<FiTxAttr>()),
            ("fi_rx_attr", size_of::<FiRxAttr>()),
            ("fi_ep_attr", size_of::<FiEpHints>()),
            ("fi_domain_attr", size_of::<FiDomainHints>()),
            ("fi_fabric_attr", size_of::<FiFabricAttr>()),
            ("fi_info", size_of::<FiInfo>()),
            ("fi_av_attr", size_of::<FiAvAttr>()),
            ("fi_cq_attr", size_of::<FiCqAttr>()),
            ("fi_cq_tagged_entry", size_of::<FiCqTaggedEntry>()),
            ("fi_cq_err_entry", size_of::<FiCqErrEntry>()),
            ("fi_msg_tagged", size_of::<FiMsgTagged>()),
            ("fi_context2", size_of::<FiContext>()),
        ],
        [
            ("fi_info", size_of::<FiInfo>()),
            ("fi_tx_attr", size_of::<FiTxAttr>()),
            ("fi_rx_attr", size_of::<FiRxAttr>()),
            ("fi_ep_attr", size_of::<FiEpAttr>()),
            ("fi_domain_attr", size_of::<FiDomainAttr>()),
            ("fid_nic", size_of::<FiNic>()),
            ("fid_ep", size_of::<FiEp>()),
            ("fid_domain", size_of::<FiDomain>()),
            ("fid_mr", size_of::<FiMr>()),
            ("fi_ops_fabric", size_of::<FiOpsFabric>()),
            ("fi_ops_domain", size_of::<FiOpsDomain>()),
            ("fi_ops_cq", size_of::<FiOpsCq>()),
            ("fi_ops_tagged", size_of::<FiOpsTagged>()),
        ],
    );
    let sizes: Vec<String> = given.iter().chain(&read).map(|(name, _)| format!("sizeof(struct {name})")).collect();
    expressions.extend(sizes.iter().map(String::as_str));
    let Some(told) = numbers_of_headers(&expressions) else { return };
    assert_eq!(told.len(), expressions.len());
    for ((expression, ours), theirs) in expressions.iter().zip(&expected).zip(&told) {
        assert_eq!(ours, theirs, "{expression}");
    }
    for ((name, ours), theirs) in given.iter().zip(&told[fields..]) {
        assert!(ours >= theirs, "{name}: {ours} bytes are given, and {theirs} are read");
    }
    for ((name, ours), theirs) in read.iter().zip(&told[fields + given.len()..]) {
        assert!(ours <= theirs, "{name}: {ours} bytes are read of {theirs}");
    }
}

#[test]
fn sizes_are_those_of_the_newest_and_of_the_oldest_release() {
    let given = [size_of::<FiEpHints>(), size_of::<FiDomainHints>(), size_of::<FiCqAttr>(), size_of::<FiCqErrEntry>()];
    assert_eq!(given, [104, 232, 48, 88], "as release 2.6 has them");
    assert_eq!([size_of::<FiEpAttr>(), size_of::<FiDomainAttr>()], [96, 192], "as release 1.14 has them");
}
