//! `rsccl sim` on files of machines.

use crate::{machine, sim};

/// The plans of 16 GPUs on two hosts: bandwidth near the bound, links by name, and every connection's messages.
#[test]
fn a_simulation_shows_time_links_and_connections() {
    let output = sim(&["all_reduce", "--topo", &machine("p4d"), "--hosts", "2", "--bytes", "1M,1G", "--connections"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shown = String::from_utf8(output.stdout).expect("text");
    assert!(shown.contains("all_reduce on 16 GPUs in 2 domains"), "{shown}");
    assert!(shown.contains("99 % busy: domain 0 PCI ffff:ff:01.0 -> card 0000:10:1b.0"), "{shown}");
    assert!(shown.contains("0 -> 8 channel 0: "), "{shown}");
    let output = sim(&["all_gather", "--topo", &machine("h100x8"), "--hosts", "1250", "--bytes", "64M", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((shown["ranks"].as_u64(), shown["domains"].as_u64()), (Some(10_000), Some(1250)));
    assert!(shown["runs"][0]["time_us"].as_f64().is_some_and(|time| time > 0.0), "{shown}");
}

/// Rings of GPUs that are linked in part go where the links are: 120 GB/s is what the six links of a GPU carry.
#[test]
fn a_simulation_follows_the_channels_that_were_found() {
    let output = sim(&["all_reduce", "--topo", &machine("dgx1v"), "--algo", "Ring", "--json"]);
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let run = &shown["runs"][0];
    assert_eq!(run["channels"].as_u64(), Some(6), "{run}");
    assert!(run["busbw_gbps"].as_f64().is_some_and(|reached| (114.0..=120.1).contains(&reached)), "{run}");
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
