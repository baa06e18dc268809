//! Layouts against the headers, and what is said where nothing will do.

use std::path::Path;

use crate::transport::net::request_nic::NicSearch;
use crate::transport::verbs::abi;
use crate::transport::verbs::found::find_in;
use crate::transport::verbs::settings::VerbsSettings;
use crate::types::Rank;

mod layouts;

#[test]
fn a_host_without_devices_and_a_user_without_wishes_are_told_so() {
    let root = tempfile::tempdir().unwrap();
    let no = |settings: &VerbsSettings, root: &Path, library| {
        let search = NicSearch {
            me: Rank::new(0),
            node: None,
            is_asked: true,
            interface: [127, 0, 0, 1].into(),
            verbs: settings,
            plug_ins: None,
            network_of_plug_in: None,
        };
        find_in((root, library), &search).unwrap_err().message().to_owned()
    };
    let disabled = VerbsSettings { is_disabled: true, ..VerbsSettings::default() };
    assert_eq!(no(&disabled, root.path(), c"none.so"), "NCCL_IB_DISABLE=1 leaves no device");
    let usual = VerbsSettings::default();
    let told = no(&usual, root.path(), c"none.so");
    assert_eq!(told, "no port of InfiniBand or RoCE will do: this host has no RDMA device");
    let device = root.path().join("sys/class/infiniband/mlx5_0");
    for (file, text) in
        [("node_type", "1: CA"), ("ports/1/state", "4: ACTIVE"), ("ports/1/rate", "100 Gb/sec (4X EDR)")]
    {
        std::fs::create_dir_all(device.join(file).parent().unwrap()).unwrap();
        std::fs::write(device.join(file), text).unwrap();
    }
    let told = no(&usual, root.path(), c"librsccl-no-verbs.so.1");
    assert!(told.starts_with("libibverbs cannot be loaded: ") && told.contains("Debian: libibverbs1"), "{told}");
    let told = no(&usual, root.path(), c"libc.so.6");
    assert!(told.contains("it has no ibv_fork_init@IBVERBS_1.1: rdma-core 32 or later is needed"), "{told}");
    let others = VerbsSettings { devices: Some("mlx4".to_owned()), ..usual };
    let told = no(&others, root.path(), c"none.so");
    assert!(told.ends_with("will do: mlx5_0:1: NCCL_IB_HCA=mlx4 leaves it out"), "{told}");
}
