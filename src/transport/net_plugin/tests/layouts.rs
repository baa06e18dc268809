//! Layouts against the same structures in C.

use std::mem::{offset_of, size_of};

use crate::transport::net_plugin::abi::{
    NetCommConfig, NetPropertiesHead, NetPropertiesV8, NetPropertiesV11, NetPropertiesV12, NetV8, NetV11,
};

/// A Rust structure and field, with its C structure and field.
macro_rules! offsets {
    ($($of:ident $c:ident { $($field:ident $name:ident),* })*) => {
        [$($((concat!("offsetof(struct ", stringify!($c), ", ", stringify!($name), ")"), offset_of!($of, $field))),*),*]
    };
}

#[test]
fn layouts_are_those_of_c() {
    let folder = tempfile::tempdir().unwrap();
    let mut all: Vec<(&str, usize)> = offsets! {
        NetPropertiesV8 properties_v8 {
            name name, pci_path pci_path, guid guid, pointers pointers, registers_globally registers_globally,
            speed speed, port port, latency latency, most_comms most_comms, most_receives most_receives,
            device_type device_type, device_version device_version
        }
        NetPropertiesHead properties_v11 {
            name name, pci_path pci_path, guid guid, pointers pointers, registers_globally registers_globally,
            forces_flush forces_flush, speed speed, port port, latency latency, most_comms most_comms,
            most_receives most_receives, device_type device_type, device_version device_version
        }
        NetPropertiesHead properties_v12 { forces_flush forces_flush, speed speed, device_version device_version }
        NetPropertiesV11 properties_v11 {
            parts parts, part part, most_message_bytes most_message_bytes,
            most_collective_bytes most_collective_bytes, most_requests_in_one most_requests_in_one
        }
        NetPropertiesV12 properties_v12 {
            parts parts, part part, most_message_bytes most_message_bytes,
            most_collective_bytes most_collective_bytes, most_requests_in_one most_requests_in_one,
            rail rail, plane plane
        }
        NetV8 net_v8 {
            name name, init init, devices devices, properties properties, listen listen, connect connect,
            accept accept, register reg, register_dma_buf reg_dma_buf, deregister dereg, send isend, receive irecv,
            flush iflush, test test, close_send close_send, close_receive close_receive, close_listen close_listen,
            device_registration device_mr, receive_consumed receive_consumed
        }
        NetV11 net_v11 {
            name name, init init, devices devices, properties properties, listen listen, connect connect,
            accept accept, register reg, register_dma_buf reg_dma_buf, deregister dereg, send isend, receive irecv,
            flush iflush, test test, close_send close_send, close_receive close_receive, close_listen close_listen,
            device_registration device_mr, receive_consumed receive_consumed,
            make_virtual_device make_virtual_device, finalize finalize, set_attributes set_attributes
        }
    }
    .to_vec();
    all.extend([
        ("sizeof(struct properties_v8)", size_of::<NetPropertiesV8>()),
        ("sizeof(struct properties_v11)", size_of::<NetPropertiesV11>()),
        ("sizeof(struct properties_v12)", size_of::<NetPropertiesV12>()),
        ("sizeof(struct comm_config)", size_of::<NetCommConfig>()),
        ("sizeof(struct net_v8)", size_of::<NetV8>()),
        ("sizeof(struct net_v11)", size_of::<NetV11>()),
    ]);
    let names: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let Some(found) = machine::net_plugin::numbers_of_header(folder.path(), &names) else { return };
    assert_eq!(found.len(), all.len());
    for ((name, ours), theirs) in all.iter().zip(found) {
        assert_eq!(*ours, theirs, "{name}");
    }
}
