//! `rsccl sim` on files of machines.

use std::process::Command;

use crate::{machine, sim, topo};

/// The plans of 16 GPUs on two hosts: bandwidth near the bound, links by name, and every connection's messages.
#[test]
fn a_simulation_shows_time_links_and_connections() {
    let more = ["--hosts", "2", "--bytes", "1M,1G", "--connections", "--registered"];
    let output = sim(&[&["all_reduce", "--topo", &machine("p4d")], &more[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8(output.stdout).expect("text");
    assert!(shown.contains("all_reduce on 16 GPUs in 2 domains"), "{shown}");
    assert!(shown.contains("100 % busy: domain 0 PCI ffff:ff:01.0 -> card 0000:10:1b.0"), "{shown}");
    assert!(shown.contains("0 -> 8 channel 0: "), "{shown}");
    let more = ["--hosts", "1250", "--bytes", "8M", "--algo", "Ring", "--json"];
    let output = sim(&[&["all_gather", "--topo", &machine("h100x8")], &more[..]].concat());
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((shown["ranks"].as_u64(), shown["domains"].as_u64()), (Some(10_000), Some(1250)));
    assert!(shown["runs"][0]["time_us"].as_f64().is_some_and(|time| time > 0.0), "{shown}");
}

/// The rings that are played are those of communicators: 8 slots of 128 KiB, or of what `NCCL_BUFFSIZE` says.
#[test]
fn a_simulation_has_the_rings_of_communicators() {
    let run = |buffer: Option<&str>, more: &[&str]| -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["sim", "all_reduce", "--hosts", "2", "-b", "64M", "--algo", "Ring", "--json", "--connections"]);
        // In scratch a ring has shorter pieces.
        command.args(["--registered", "--topo", &machine("p4d")]).args(more);
        buffer.into_iter().for_each(|bytes| _ = command.env("NCCL_BUFFSIZE", bytes));
        serde_json::from_slice(&command.output().expect("it runs").stdout).expect("JSON")
    };
    let longest = |shown: &serde_json::Value| -> u64 {
        let connections = shown["runs"][0]["connections"].as_array().expect("a list");
        assert!(!connections.is_empty(), "{shown}");
        let mean = |of: &serde_json::Value| {
            of["bytes"].as_u64().expect("bytes").div_ceil(of["messages"].as_u64().expect("messages"))
        };
        connections.iter().map(mean).max().expect("one")
    };
    let usual = run(None, &[]);
    assert_eq!(usual["ring"], serde_json::json!({ "slots": 8, "slot_bytes": 128 << 10 }));
    assert!((100 << 10..=128 << 10).contains(&longest(&usual)), "{}", longest(&usual));
    let large = run(Some("4M"), &[]);
    assert_eq!(large["ring"], serde_json::json!({ "slots": 8, "slot_bytes": 512 << 10 }));
    assert!((400 << 10..=512 << 10).contains(&longest(&large)), "{}", longest(&large));
    assert_eq!(run(Some("4M"), &["--slot", "64K"])["ring"]["slot_bytes"], 64 << 10);
    // What is not built is said.
    let notes = usual["notes"].to_string();
    assert!(
        notes.contains("GPUDirect RDMA goes by net plug-ins alone; ranks send by TCP over all interfaces"),
        "{notes}"
    );
}

/// Regression: where links do not join each pair of GPUs, and where they join several hosts, long calls went by what
/// processors and TCP cost: an exchange of all with all over links that other pairs use (39 GB/s of 120), and rails between
/// hosts on two lanes (12 of 722).
#[test]
fn long_calls_follow_the_channels_of_a_mesh_and_of_a_rack() {
    let run = |machine: &str, more: &[&str]| -> serde_json::Value {
        let output = sim(&[&["all_reduce", "--json", "--topo", machine, "-b", "1G"], more].concat());
        assert!(output.status.success(), "{machine}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    for name in ["dgx1v", "nvl72"] {
        let [chosen, ring] = [&[][..], &["--algo", "Ring"]].map(|more| run(&machine(name), more));
        let busbw = |shown: &serde_json::Value| shown["runs"][0]["busbw_gbps"].as_f64().expect("a number");
        let most = chosen["all_reduce_bound_gbps"].as_f64().expect("a bound");
        let told = format!("{name}: {:.1} GB/s, by Ring {:.1}, at most {most:.1}", busbw(&chosen), busbw(&ring));
        println!("{told}");
        assert!(busbw(&chosen) >= busbw(&ring) && busbw(&chosen) > 0.6 * most && busbw(&chosen) <= most, "{told}");
    }
}

/// What is played is what communicators choose, by their own functions: inside a host the direct plan whatever links
/// cost, by lines where the call is small; over connections where GPUs reach each other in part, and where a call that
/// would work in scratch is long; between hosts by usual costs, or those of a file. What is not as it is there is said.
#[test]
fn a_simulation_plays_what_communicators_choose() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("tuned");
    std::fs::write(&file, "rsccl-tune 1\nflag_us = 900000\n").expect("written");
    let cpu = folder.path().join("cpu.xml").display().to_string();
    let text = r#"<system version="1"><cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"/></system>"#;
    std::fs::write(&cpu, text).expect("written");
    let run = |machine: &str, more: &[&str], variables: &[(&str, &str)]| -> serde_json::Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["sim", "all_reduce", "--json", "--topo", machine]).args(more).envs(variables.iter().copied());
        let output = command.output().expect("it runs");
        let told = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{machine} {more:?}: {told}"))
    };
    let way = |machine: &str, more: &[&str], variables: &[(&str, &str)]| -> [String; 3] {
        let shown = run(machine, more, variables);
        ["algorithm", "protocol", "windows"].map(|name| shown["runs"][0][name].as_str().expect("a word").to_owned())
    };
    let (h100, dgx1v) = (machine("h100x8"), machine("dgx1v"));
    let tuned = [("RSCCL_TUNE_FILE", file.to_str().expect("text"))];
    assert_eq!(way(&h100, &["-b", "1K"], &[]), ["Direct", "LL", "none"]);
    assert_eq!(way(&h100, &["-b", "2M"], &[]), ["Direct", "Simple", "scratch"]);
    assert_eq!(way(&h100, &["-b", "2M"], &tuned), ["Direct", "Simple", "scratch"], "a file says nothing of GPUs");
    assert_eq!(way(&h100, &["-b", "64M"], &[]), ["Ring", "Simple", "none"], "scratch leaves links idle");
    assert_eq!(way(&h100, &["-b", "64M", "--registered"], &[]), ["Direct", "Simple", "symmetric"]);
    assert_eq!(way(&h100, &["-b", "1K"], &[("NCCL_PROTO", "Simple")]), ["Direct", "Simple", "scratch"]);
    assert_eq!(way(&h100, &["-b", "64M", "--algo", "Ring"], &[]), ["Ring", "Simple", "none"]);
    assert_eq!(way(&dgx1v, &["-b", "1K"], &[]), ["Direct", "LL", "none"]);
    assert_eq!(way(&dgx1v, &["-b", "64K"], &[("NCCL_PROTO", "Simple")]), ["Direct", "Simple", "scratch"]);
    assert_eq!(way(&dgx1v, &["-b", "64M"], &[]), ["Ring", "Simple", "none"], "some pairs have no link");
    assert_eq!(way(&dgx1v, &["-b", "64M", "--algo", "Direct"], &[]), ["Direct", "Simple", "none"], "filters bind");
    assert_eq!(way(&dgx1v, &["-b", "64M"], &[("RSCCL_REPRODUCIBLE", "1")])[0], "Direct", "the order of ranks binds");
    assert_eq!(way(&h100, &["-b", "64M", "--hosts", "2"], &[]), ["Ring", "Simple", "scratch"]);
    assert_eq!(way(&h100, &["-b", "64M", "--hosts", "2"], &[("NCCL_SHM_DISABLE", "1")])[2], "none");
    assert_eq!(way(&cpu, &["-b", "64M"], &[]), ["Direct", "Simple", "scratch"]);
    assert_ne!(way(&cpu, &["-b", "64M"], &tuned)[0], "Direct", "a file rules inside a host of processors");
    // What is not as it is there.
    let remarks = |machine: &str, more: &[&str]| run(machine, more, &[])["runs"][0]["remarks"].to_string();
    assert!(remarks(&cpu, &["-b", "8"]).contains("flat slots, which are no plan"));
    assert!(remarks(&h100, &["-b", "1K"]).contains("by LL here: its latencies are not modelled"));
    assert_eq!(remarks(&h100, &["-b", "64M", "--registered"]), "[]");
    let staged = run(&h100, &["-b", "64M"], &[("NCCL_P2P_DISABLE", "1")])["runs"][0].clone();
    assert_eq!(staged["windows"], "scratch");
    assert!(staged["remarks"].to_string().contains("work in the host's memory here"), "{staged}");
}

/// `NCCL_SHM_DISABLE` decides what communicators choose, but the links that are played are those without it: a line
/// says so where a host has several ranks, and only there.
#[test]
fn a_simulation_says_what_it_does_not_play_of_disabled_shared_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let cpu = folder.path().join("cpu.xml").display().to_string();
    let text = r#"<system version="1"><cpu numaid="0" affinity="0000000f" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49"/></system>"#;
    std::fs::write(&cpu, text).expect("written");
    let remarks = |machine: &str, more: &[&str], is_disabled: &str| -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["sim", "all_reduce", "-b", "64M", "--json", "--topo", machine]).args(more);
        let output = command.env("NCCL_SHM_DISABLE", is_disabled).output().expect("it runs");
        assert!(output.status.success(), "{machine} {more:?}: {}", String::from_utf8_lossy(&output.stderr));
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        shown["runs"][0]["remarks"].to_string()
    };
    let h100 = machine("h100x8");
    let two_hosts = ["--hosts", "2", "--network", "25"];
    let cases: [(&str, &[&str], &str); 4] = [
        (&h100, &[], "modelled as the links between their GPUs"),
        (&h100, &["--hosts", "2"], "modelled as the links between their GPUs"),
        (&cpu, &[], "modelled as copies through their shared memory"),
        (&cpu, &two_hosts, "modelled as copies through their shared memory"),
    ];
    for (machine, more, model) in cases {
        let told = remarks(machine, more, "1");
        assert!(told.contains("NCCL_SHM_DISABLE is set") && told.contains(model), "{machine} {more:?}: {told}");
        assert!(!remarks(machine, more, "0").contains("NCCL_SHM_DISABLE"), "{machine} {more:?}");
    }
    // Each host has one rank, which shares memory with no other.
    let alone = remarks(&cpu, &[&two_hosts[..], &["--ranks", "1"]].concat(), "1");
    assert!(!alone.contains("NCCL_SHM_DISABLE"), "{alone}");
}

/// On no machine that is known a long call inside a host takes a way over which a ring, a tree, or sending from all to
/// all, would be quicker by a quarter. That is arithmetic of the model, and no time of this machine's.
#[test]
fn long_calls_take_ways_that_are_quick_over_the_links() {
    // At 16 MiB and at 64 MiB.
    let times = |file: &str, collective: &str, more: &[&str]| {
        let words = [&[collective, "--topo", file, "-b", "16M,64M", "--json"], more].concat();
        let shown: serde_json::Value = serde_json::from_slice(&sim(&words).stdout).expect("JSON");
        [0, 1].map(|run| shown["runs"][run]["time_us"].as_f64().expect("a time"))
    };
    for name in INSIDE_A_HOST {
        let file = machine(name);
        for collective in ["all_reduce", "all_gather", "broadcast"] {
            for registered in [&[][..], &["--registered"]] {
                let of = |more: &[&str]| times(&file, collective, &[registered, more].concat());
                let (chosen, ring, direct) = (of(&[]), of(&["--algo", "Ring"]), of(&["--algo", "Direct"]));
                // No tree gathers blocks.
                let tree = if collective == "all_gather" { ring } else { of(&["--algo", "Tree"]) };
                let case = format!("{collective} on {name} {registered:?}");
                for size in [0, 1] {
                    let least = ring[size].min(direct[size]).min(tree[size]);
                    let told = format!("Ring {ring:?}, Direct {direct:?}, Tree {tree:?}");
                    assert!(chosen[size] <= 1.25 * least, "{case}: {chosen:?} us; {told}");
                }
            }
        }
    }
}

/// Machines whose links are crowded where all send to all (`a100bridge`, `r8pcie`), meshes, and switches.
const INSIDE_A_HOST: [&str; 9] =
    ["a100bridge", "a100x4mesh", "b200x8", "dgx1p", "dgx1v", "h100x8", "ncv4-gen4", "p4d", "r8pcie"];

/// An algorithm that is said to be quicker takes that time when it is asked for, which is less.
#[test]
fn a_simulation_names_what_is_quicker() {
    let machine = machine("h100x8");
    let runs = |sizes: &str, more: &[&str]| {
        let words = ["all_reduce", "--topo", &machine, "--hosts", "2", "--json", "-b", sizes];
        let output = sim(&[&words[..], more].concat());
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (shown["runs"].clone(), shown["notes"].to_string())
    };
    let (sizes, time) =
        (["1K", "64K", "1M", "64M"], |run: &serde_json::Value| run["time_us"].as_f64().expect("a time"));
    let (shown, told) = runs(&sizes.join(","), &[]);
    let mut named = 0;
    for (size, run) in sizes.iter().zip(shown.as_array().expect("runs")) {
        let Some(algorithm) = run["quicker"]["algorithm"].as_str() else { continue };
        named += 1;
        let (other, _) = runs(size, &["--algo", algorithm]);
        assert_eq!(time(&other[0]), time(&run["quicker"]), "{algorithm} at {size}");
        assert!(time(&other[0]) < time(run), "{algorithm} at {size}: {run}");
    }
    assert!(named > 0, "the case is chosen so that there is one: {shown}");
    assert!(told.contains("not built"), "{told}");
}

/// A graph file counts as it does for communicators: on one host.
#[test]
fn a_simulation_uses_a_graph_file_on_one_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let [whole, one] = ["whole.xml", "one.xml"].map(|name| folder.path().join(name).display().to_string());
    assert!(topo(&["--file", &machine("dgx1v"), "--dump-graph", &whole]).status.success());
    let text = std::fs::read_to_string(&whole).expect("written");
    // The first channel of each graph.
    let mut cut = String::new();
    let mut channels = 0;
    for line in text.lines() {
        channels = if line.contains("<graph ") { 0 } else { channels + usize::from(line.contains("<channel>")) };
        if channels <= 1 || line.contains("</graph") {
            cut += line;
            cut.push('\n');
        }
    }
    let cut = ["6", "14"]
        .into_iter()
        .fold(cut, |cut, count| cut.replace(&format!("nchannels=\"{count}\""), "nchannels=\"1\""));
    std::fs::write(&one, cut).expect("written");
    let run = |hosts: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        command.args(["sim", "all_reduce", "--algo", "Ring", "-b", "64M", "--json", "--hosts", hosts]);
        command.args(["--topo", &machine("dgx1v")]).env("NCCL_GRAPH_FILE", &one);
        let output = command.output().expect("it runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).expect("JSON")
    };
    let (alone, two) = (run("1"), run("2"));
    let notes = |shown: &serde_json::Value| shown["notes"].to_string();
    assert!(!notes(&alone).contains("is not used") && notes(&two).contains("NCCL_GRAPH_FILE="), "{alone} {two}");
    assert!(notes(&two).contains("is not used: it has the channels of one host, and these GPUs are on 2"), "{two}");
    let channels = |shown: &serde_json::Value| shown["runs"][0]["channels"].as_u64().expect("a number");
    // Two lanes on the ring of the file; between hosts those that were found.
    assert_eq!((channels(&alone), channels(&two)), (2, 4), "{alone} {two}");
}

/// Rings of GPUs that are linked in part go where the links are: 120 GB/s is what the six links of a GPU carry.
#[test]
fn a_simulation_follows_the_channels_that_were_found() {
    let reached = |more: &[&str]| {
        let output = sim(&[&["all_reduce", "--topo", &machine("dgx1v"), "--algo", "Ring", "--json"], more].concat());
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let run = &shown["runs"][0];
        assert_eq!(run["channels"].as_u64(), Some(12), "two on each ring: {run}");
        run["busbw_gbps"].as_f64().expect("a number")
    };
    // Where one lane of a ring waits the other one sends: latencies of slots of 128 KiB count no more than of long ones.
    assert!((114.0..=120.1).contains(&reached(&[])), "{}", reached(&[]));
    assert!((114.0..=120.1).contains(&reached(&["--slot", "1M"])), "{}", reached(&["--slot", "1M"]));
}

#[test]
fn a_simulation_obeys_filters_and_says_what_is_wrong() {
    let run = |algorithm: &str| {
        let path = machine("h100x8");
        let output = sim(&["all_reduce", "--topo", &path, "--hosts", "4", "-b", "64M", "--algo", algorithm, "--json"]);
        let shown = serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default();
        (
            shown["runs"][0]["algorithm"].as_str().map(str::to_owned),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    assert_eq!(run("Tree").0.as_deref(), Some("Tree"));
    assert_eq!(run("Ring").0.as_deref(), Some("Ring"));
    assert!(run("Fast").1.contains("Fast"), "{}", run("Fast").1);
    // This machine, with GPUs or without.
    let output = sim(&["all_reduce"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&sim(&["send"]).stderr).contains("allowed are all_reduce"));
    // The spellings of nccl-tests, as `rsccl perf` takes them.
    for (spelling, name) in
        [("allreduce", "all_reduce"), ("AllToAll", "all_to_all"), ("reduce-scatter", "reduce_scatter")]
    {
        let output = sim(&[spelling, "--topo", &machine("dgx1v"), "-b", "1M", "--json"]);
        let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(shown["collective"].as_str(), Some(name), "{spelling}");
    }
    let path = machine("h100x8");
    let said = sim(&["all_reduce", "--topo", &path, "--slot", "0"]).stderr;
    assert!(String::from_utf8_lossy(&said).contains("a message has at least one element of 4 bytes"));
    let large =
        sim(&["all_reduce", "--topo", &path, "--hosts", "1250", "-b", "64K", "--algo", "Tree", "--json"]).stdout;
    let shown: serde_json::Value = serde_json::from_slice(&large).expect("JSON");
    assert_eq!((&shown["ranks"], &shown["runs"][0]["every_rank"]), (&10_000.into(), &false.into()));
    assert_eq!(shown["runs"][0]["simulated"].as_str(), Some("trees of 64 and 32 hosts for all"));
}

/// Hosts without GPUs: ranks stand on processors, and a NIC joins the hosts.
#[test]
fn a_simulation_of_hosts_without_gpus_has_ranks_on_processors() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let write = |name: &str, nic: &str| {
        let path = folder.path().join(name);
        let cpu = r#"arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49""#;
        let text = format!(
            r#"<system version="1"><cpu numaid="0" affinity="0000000f" {cpu}>{nic}</cpu><cpu numaid="1" affinity="000000f0" {cpu}/></system>"#
        );
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let nic = r#"<nic><net name="eth0" dev="0" speed="25000" port="0" latency="0.000000" guid="0x1" maxconn="65536" gdr="0"/></nic>"#;
    let (path, bare) = (write("cpu.xml", nic), write("bare.xml", ""));
    let run = |arguments: &[&str]| -> serde_json::Value {
        let output = sim(&[&["all_reduce", "--json"], arguments].concat());
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON")
    };
    let shown = run(&["--topo", &path, "--hosts", "16", "-b", "8,1M,1G"]);
    // A rank on each of eight processors.
    assert_eq!((shown["ranks"].as_u64(), shown["domains"].as_u64()), (Some(128), Some(16)));
    let bound = shown["all_reduce_bound_gbps"].as_f64().expect("a bound");
    assert!((bound - 3.125 * 16.0 / 15.0 * 127.0 / 128.0).abs() < 1e-9, "{bound}");
    let busbw = |shown: &serde_json::Value, run: usize| shown["runs"][run]["busbw_gbps"].as_f64().expect("a number");
    assert!(
        busbw(&shown, 0) < busbw(&shown, 1) && busbw(&shown, 2) > 0.5 * bound && busbw(&shown, 2) <= bound,
        "{shown}"
    );
    let link = &shown["runs"][2]["links"][0];
    assert!(
        link["to"].as_str() == Some("network") && link["from"].as_str().is_some_and(|from| from.starts_with("host ")),
        "{link}"
    );
    let faster = run(&["--topo", &path, "--hosts", "16", "--ranks", "2", "--network", "100", "-b", "1G"]);
    assert_eq!(faster["ranks"].as_u64(), Some(32));
    assert!(busbw(&faster, 0) > busbw(&shown, 2), "{faster}");
    let alone = run(&["--topo", &bare, "--ranks", "4", "-b", "1M"]);
    assert_eq!((alone["ranks"].as_u64(), &alone["all_reduce_bound_gbps"]), (Some(4), &serde_json::Value::Null));
    let refused = |arguments: &[&str], told: &str| {
        let said = sim(&[&["all_reduce"], arguments].concat()).stderr;
        let said = String::from_utf8_lossy(&said);
        assert!(said.contains(told), "{said}");
    };
    refused(&["--topo", &bare, "--hosts", "2"], "no NIC of the machine says how fast it is: give --network GBIT");
    refused(&["--topo", &machine("p4d"), "--ranks", "2"], "--ranks is for machines without GPUs");
    refused(&["--topo", &path, "--network", "0"], "allowed: Gbit/s from 0.001");
    refused(&["--topo", &path, "--hosts", "16384", "--ranks", "4096"], "at most 65536 ranks can be simulated");
    let words = String::from_utf8(sim(&["all_reduce", "--topo", &path, "--hosts", "2"]).stdout).expect("text");
    assert!(words.starts_with("all_reduce on 16 ranks of 2 hosts without GPUs\n"), "{words}");
}
