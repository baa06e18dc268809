//! `rsccl topo --why`: the way between two devices. That it is the way of communicators is held by the unit test
//! `tools_and_communicators_agree_on_every_machine`.

use std::process::Command;

use crate::{machine, text};

/// Of a pair without a link the GPU in the middle is that of communicators, which takes turns.
#[test]
fn why_names_the_way_links_and_the_gpu_between() {
    let shown = text(&["--file", &machine("dgx1v"), "--why", "gpu:0", "gpu:7"]);
    let expected = "\
GPU 0 to GPU 7: NVB, 20 GB/s
  GPU 0 -> GPU 3: NvLink 40 GB/s
  GPU 3 -> GPU 7: NvLink 20 GB/s
GPU memory of ranks 0 and 7, a process on each GPU: P2P/indirect/3
  what they send lies in memory of a GPU between them
  not without a GPU between: the only NVLinks between these GPUs lead through another one
  the GPU between them is GPU 3, to which NVLinks lead from both
  assumed, because only a driver knows: GPUs of a host have peer access, except where the only NVLinks lead through another GPU
host memory of these ranks: SHM (P2P: the rank is in another process)
NET in place of P2P: no, 40 GB/s between the GPUs, 12 GB/s and 12 GB/s to their NICs
NVLS: not built, reductions in NVLink switches
";
    assert_eq!(shown, expected);
    let reading = text(&["--file", &machine("ndv4"), "--why", "gpu:0", "gpu:1"]);
    // Its devices stand in another order than their numbers: ranks follow these.
    assert!(
        reading.contains("ranks 0 and 1, a process on each GPU: P2P/CUMEM/read\n")
            && reading.contains("the receiver reads"),
        "{reading}"
    );
    let apart = text(&["--file", &machine("h100x8"), "--hosts", "2", "--why", "gpu:0", "1/gpu:0"]);
    assert!(apart.contains("ranks 0 and 8, a process on each GPU: NET/Socket/0, staged in pinned memory"), "{apart}");
    assert!(apart.contains("  not MNNVL: rank 0: no NVLinks lead to other hosts\n"), "{apart}");
    let same = text(&["--file", &machine("h100x8"), "--why", "gpu:0", "gpu:0"]);
    assert_eq!(same.lines().count(), 1, "{same}");
}

/// What is not built is not said to run: PXN.
#[test]
fn why_says_what_is_not_built_between_gpus_and_nics() {
    let shown = text(&["--file", &machine("h100x8"), "--why", "gpu:0", "nic:m1"]);
    for line in [
        "GPUDirect RDMA: no, PHB is beyond NCCL_NET_GDR_LEVEL=PXB",
        "PXN: not built, though GPU 1 is near that NIC, and NVLink leads there\n",
        "rails: ranks send by TCP over all interfaces that one subnet joins",
        "SHARP: not built",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    let near = text(&["--file", &machine("h100x8"), "--why", "nic:m0", "gpu:0"]);
    assert!(
        near.contains("GPUDirect RDMA: by a net plug-in that takes GPU memory, PIX is within NCCL_NET_GDR_LEVEL=PXB\n"),
        "{near}"
    );
}

#[test]
fn why_obeys_the_settings_of_the_environment() {
    let said = |variable: &str, value: &str, ends: [&str; 2]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        let output =
            command.args(["topo", "--file", &machine("h100x8"), "--why"]).args(ends).env(variable, value).output();
        let output = output.expect("the command line runs");
        String::from_utf8([output.stdout, output.stderr].concat()).expect("text")
    };
    let way = |variable: &str, value: &str| {
        let said = said(variable, value, ["gpu:0", "gpu:1"]);
        let lines = said.lines().skip_while(|line| !line.starts_with("GPU memory")).take(3).step_by(2);
        let words: Vec<&str> = lines.map(|line| line.rsplit_once(": ").map_or(line, |(_, last)| last)).collect();
        words.join(", ")
    };
    assert_eq!(way("NCCL_P2P_LEVEL", "LOC"), "SHM/pinned, NVL is beyond NCCL_P2P_LEVEL=LOC");
    assert_eq!(way("NCCL_P2P_DISABLE", "1"), "SHM/pinned, NCCL_P2P_DISABLE is set");
    assert_eq!(way("NCCL_CUMEM_ENABLE", "0"), "P2P/IPC, rank 1 is in another process");
    assert_eq!(way("NCCL_P2P_READ_ENABLE", "1"), "P2P/CUMEM/read, rank 1 is in another process");
    let no_memory = said("NCCL_SHM_DISABLE", "1", ["gpu:0", "gpu:1"]);
    assert!(
        no_memory.contains(": NET/Socket/0") && no_memory.contains("host memory of these ranks: NET"),
        "{no_memory}"
    );
    let near = said("NCCL_P2P_LEVEL", "near", ["gpu:0", "gpu:1"]);
    assert!(near.contains("NCCL_P2P_LEVEL=\"near\" is not a distance; allowed: LOC"), "{near}");
    assert!(said("NCCL_NET_GDR_LEVEL", "SYS", ["gpu:0", "nic:m7"]).contains(", SYS is within NCCL_NET_GDR_LEVEL=SYS"));
}

/// The rails between hosts whose interfaces the user names, and this machine's own by the rules of communicators.
#[test]
fn why_names_the_rails_between_two_hosts() {
    let ends = ["net:a=10.1.0.1/24@25000,b=10.2.0.1/24@25000", "net:x=10.2.0.2/24@25000,y=10.9.0.2/24"];
    let shown = text(&["--file", &machine("h100x8"), "--why", ends[0], ends[1]]);
    let expected = "  [0] b 10.2.0.1 - x 10.2.0.2 (subnet 10.2.0.0/24, 25000 Mbit/s)
  not a: the other side has no interface in subnet 10.1.0.0/24
  not y of the other rank: the other side has no interface in subnet 10.9.0.0/24
";
    assert_eq!(shown, format!("rails between {} and {}\n{expected}", ends[0], ends[1]));
    let said = |ends: [&str; 2], names: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["topo", "--file", &machine("h100x8"), "--why"]).args(ends).env("NCCL_SOCKET_IFNAME", names);
        // Which of its providers will do depends on the machine; this one does not.
        command.env("NCCL_NET", "libfabric").env("FI_PROVIDER", "udp");
        let output = command.output().expect("the command line runs");
        (output.status.success(), String::from_utf8([output.stdout, output.stderr].concat()).expect("text"))
    };
    let (works, here) = said(["net:", "net:10.1.0.2/24"], "lo");
    assert!(works && here.contains("no rail, so by the interfaces on which ranks met"), "{here}");
    assert!(here.contains("\nNCCL_NET: libfabric: no NIC: libfabric "), "{here}");
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
    command.args(["topo", "--file", &machine("h100x8"), "--why", "net:", "net:10.1.0.2/24"]);
    command.envs([("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_NET_PLUGIN", "/none/of.so")]);
    let here = String::from_utf8_lossy(&command.output().expect("the command line runs").stdout).into_owned();
    let no = "\nNCCL_NET: plugin: no NIC: there is no /none/of.so where the loader looks (NCCL_NET_PLUGIN takes the path of a library, or \
              NAME for libnccl-net-NAME.so); Socket (TCP)";
    assert!(here.contains(no), "{here}");
    let (works, wrong) = said(["net:eth0", "net:"], "lo");
    assert!(!works && wrong.contains("write NAME=ADDRESS/BITS"), "{wrong}");
}

/// Of this machine, which libraries can be asked: all networks, whichever of them ranks would use.
#[test]
fn topo_shows_the_nics_of_each_network_of_this_machine() {
    let shown = |arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.arg("topo").args(arguments).env("NCCL_SOCKET_IFNAME", "lo").env("NCCL_IB_DISABLE", "1");
        let output = command.envs(variables.iter().copied()).output().expect("the command line runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    };
    let shows = shown(&[], &[]);
    for line in [
        "network Socket: none, no interface leads to other hosts\n",
        "network IB: none, NCCL_IB_DISABLE=1 leaves no device\n",
        "network plugin: none, not loaded: nobody asks for it; NCCL_NET=plugin does so\n",
    ] {
        assert!(shows.contains(line), "{line}: {shows}");
    }
    assert!(shows.contains("network libfabric: "), "{shows}");
    let folder = tempfile::tempdir().expect("a folder");
    let options = ["DEVICES=2", "LOOPBACK=1", "VERSIONS=1"];
    let Some(plug_in) = machine::net_plugin::stand_in(folder.path(), "plugin.so", &options) else { return };
    let plug_in = plug_in.display().to_string();
    let asks = [("NCCL_NET_PLUGIN", &*plug_in)];
    let device =
        format!("network plugin: stand0, Stand-in of {plug_in} (version 8), rate unknown, NUMA node unknown\n");
    let shows = shown(&[], &asks);
    assert_eq!(shows.matches(&device).count(), 2, "{shows}");
    let json: serde_json::Value = serde_json::from_str(&shown(&["--json"], &asks)).expect("JSON");
    let networks = json["networks"].as_array().expect("a list");
    let named = |name: &str| networks.iter().find(|one| one["name"] == name).expect("each has its object");
    assert_eq!(named("Socket")["noes"][0], "no interface leads to other hosts");
    assert_eq!(named("plugin")["nics"].as_array().map(Vec::len), Some(2));
    // Nobody can ask libraries of a machine that a file describes.
    let of_file = text(&["--file", &machine("h100x8")]);
    assert!(!of_file.contains("network Socket"), "{of_file}");
}
