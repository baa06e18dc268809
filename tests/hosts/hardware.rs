//! NICs of hardware between hosts that nobody has asked for (`NCCL_NET` is not set): folders show the devices of hosts, and
//! libfabric is the stand-in.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use testing::network::Network;
use testing::ranks::Job;

use crate::hosts::fabrics::{must_use_libfabric, stand_in};
use crate::must_do_everything;

const LOG: (&str, &str) = ("NCCL_DEBUG_SUBSYS", "INIT,NET");

/// A device in the folder of a host's classes, on NUMA node 1.
fn show(classes: &Path, class: &str, name: &str, driver: &str) {
    let device = classes.join(class).join(name).join("device");
    fs::create_dir_all(&device).unwrap();
    fs::write(device.join("numa_node"), "1\n").unwrap();
    symlink(format!("../../bus/pci/drivers/{driver}"), device.join("driver")).unwrap();
}

/// A job that has joined, whose rank i runs on host `places[i]` with the devices of `classes[places[i]]`.
fn job(network: &Network, (places, classes): (&[usize], &[&Path]), more: &[(&str, &str)]) -> Job {
    let numbers: Vec<String> = (0..=places.len()).map(|number| number.to_string()).collect();
    let mut job = Job::start_each(places.len(), |rank| {
        let mut variables = vec![LOG, ("MASTER_ADDR", "10.77.0.1"), ("MASTER_PORT", "29500")];
        variables.extend([("RANK", &*numbers[rank]), ("WORLD_SIZE", &*numbers[places.len()])]);
        variables.extend(more);
        (network.on_with_devices(places[rank], classes[places[rank]]), variables)
    });
    job.must("from_env");
    job
}

/// Hosts, a folder for their classes, and the stand-in as a library for EFA.
fn efa(options: &[&str]) -> Option<(Network, tempfile::TempDir, String)> {
    let options = [&["PROVIDER=\"efa\"", "DOMAIN=\"rdmap0s6\""], options].concat();
    let (network, folder) = stand_in(&options)?;
    let path = folder.path().to_string_lossy().into_owned();
    for name in ["efa", "none", "closed"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    show(&folder.path().join("efa"), "infiniband", "rdmap0s6", "efa");
    show(&folder.path().join("closed"), "cxi", "cxi0", "cxi_core");
    Some((network, folder, path))
}

#[test]
fn hardware_is_used_between_hosts_without_being_asked_for() {
    let Some((network, folder, path)) = efa(&["REORDER=1"]) else { return };
    let classes = folder.path().join("efa");
    let mut job = job(&network, (&[0, 1, 1], &[&classes, &classes]), &[("LD_LIBRARY_PATH", &path)]);
    must_do_everything(&mut job);
    must_use_libfabric(&job);
    for rank in &job.ranks {
        let log = rank.log();
        let uses = "NET/libfabric : Using efa of libfabric 2.6 on rdmap0s6 (200000 Mbit/s, NUMA node 1)";
        assert_eq!(log.matches(uses).count(), 1, "{log}");
        assert!(!log.contains("stand-in of libfabric: "), "it found fault with its caller:\n{log}");
    }
}

/// On one host, where a host has none, where sockets are asked for, where only other hosts of the fabric's network may use
/// the device, and where the NIC has no room for all ranks.
#[test]
fn hardware_that_does_not_serve_all_ranks_is_left_alone() {
    let Some((network, folder, path)) = efa(&[]) else { return };
    let [efa, none, closed] = ["efa", "none", "closed"].map(|name| folder.path().join(name));
    let path = ("LD_LIBRARY_PATH", &*path);
    let with_sockets = [path, ("NCCL_NET", "Socket")];
    let all = [
        ([0, 0], [&efa, &efa], &with_sockets[..1]),
        ([0, 1], [&efa, &none], &with_sockets[..1]),
        ([0, 1], [&efa, &efa], &with_sockets[..]),
        ([0, 1], [&closed, &closed], &with_sockets[..1]),
    ];
    for (places, classes, variables) in all {
        let classes = classes.map(PathBuf::as_path);
        let mut job = job(&network, (&places, &classes), variables);
        job.must("ring 3");
        for rank in &job.ranks {
            let what = format!("{places:?} {classes:?} {variables:?}, rank {}", rank.number);
            assert!(!rank.maps().contains("/libfabric.so"), "{what}");
            assert_eq!(rank.log().contains("via NET/Socket"), places[0] != places[1], "{what}:\n{}", rank.log());
        }
    }
}

#[test]
fn hardware_without_room_for_all_ranks_or_without_a_library_is_told_and_sockets_are_used() {
    let Some((network, folder, path)) = efa(&["REQUESTS=32"]) else { return };
    let efa = folder.path().join("efa");
    let crowded = "takes requests of 16 connections of a communicator, and messages between all its ranks may need 18";
    let all: [(&[(&str, &str)], &str); 2] =
        [(&[("LD_LIBRARY_PATH", &path)], crowded), (&[("FI_PROVIDER", "udp")], "not libfabric: libfabric ")];
    for (variables, why) in all {
        let mut job = job(&network, (&[0, 1], &[&efa, &efa]), variables);
        job.must("ring 3");
        for rank in &job.ranks {
            let log = rank.log();
            assert!(log.contains(why) && log.contains("; ranks of different hosts use Socket (TCP)"), "{log}");
            assert!(log.contains("via NET/Socket") && !log.contains("NCCL_NET=libfabric: "), "{log}");
        }
    }
}

/// Each rank says for itself what it has, and two that do not understand each other go by sockets.
#[test]
fn releases_that_do_not_understand_each_other_go_by_sockets_where_nobody_has_asked() {
    let Some((network, folder, path)) = efa(&[]) else { return };
    let older = tempfile::Builder::new().prefix("ofi").tempdir_in("/tmp").unwrap();
    let options = ["PROVIDER=\"efa\"", "DOMAIN=\"rdmap0s6\"", "RELEASE=0x20005"];
    machine::libfabric::stand_in(older.path(), &options).unwrap();
    let (older, efa) = (older.path().to_string_lossy().into_owned(), folder.path().join("efa"));
    let mut job = Job::start_each(2, |rank| {
        let mut variables = vec![LOG, ("MASTER_ADDR", "10.77.0.1"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2")];
        variables.extend([("RANK", ["0", "1"][rank]), ("LD_LIBRARY_PATH", [&*path, &*older][rank])]);
        (network.on_with_devices(rank, &efa), variables)
    });
    job.must("from_env");
    job.must("ring 3");
    for rank in &job.ranks {
        let log = rank.log();
        assert!(log.contains("which do not understand each other; ranks of different hosts use Socket"), "{log}");
        assert!(log.contains("via NET/Socket"), "{log}");
    }
}
