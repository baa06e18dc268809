//! Places that ranks know by a name, and hosts whose addresses are not what one expects: names that come late, lead to
//! loopback, or have a dead address; addresses on `lo`; link-local addresses; ports that the kernel gives away.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rsccl::internals::sys::clock;
use tempfile::TempDir;

use crate::launched;
use testing::network::Network;
use testing::ranks::{self, Job};

/// Ranks of one job, each on its host, with its own `/etc/hosts`.
struct NamedJob {
    job: Job,
    names: Vec<PathBuf>,
    _folder: TempDir,
}

/// Rank i runs on the host `places[i].0`, whose names are `places[i].1`.
fn named(network: &Network, places: &[(usize, &str)], variables: &[(&str, &str)]) -> NamedJob {
    named_with(network, places, variables, "")
}

/// The same, where `resolver` is the hosts' `/etc/resolv.conf`.
fn named_with(network: &Network, places: &[(usize, &str)], variables: &[(&str, &str)], resolver: &str) -> NamedJob {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<PathBuf> = (0..places.len()).map(|rank| folder.path().join(format!("hosts-{rank}"))).collect();
    for (file, (_, text)) in names.iter().zip(places) {
        fs::write(file, format!("127.0.0.1 localhost\n{text}\n")).unwrap();
        fs::write(file.with_extension("resolver"), resolver).unwrap();
    }
    let numbers: Vec<String> = (0..=places.len()).map(|number| number.to_string()).collect();
    let job = Job::start_each(places.len(), |rank| {
        let mut all = vec![("RANK", &*numbers[rank]), ("WORLD_SIZE", &*numbers[places.len()])];
        all.extend(variables);
        (network.on_with_names(places[rank].0, &names[rank]), all)
    });
    NamedJob { job, names, _folder: folder }
}

/// The ways in which ranks are told of `host`, each with its own port.
fn ways(host: &str) -> [Vec<(&'static str, String)>; 3] {
    [
        vec![("MASTER_ADDR", host.to_owned()), ("MASTER_PORT", "29500".to_owned())],
        vec![("NCCL_COMM_ID", format!("{host}:29501"))],
        vec![("RSCCL_STORE", format!("tcp://{host}:29502"))],
    ]
}

fn with<'a>(way: &'a [(&'static str, String)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    way.iter().map(|(name, value)| (*name, value.as_str())).chain(more.iter().copied()).collect()
}

fn must_join(job: &mut Job) {
    for rank in &job.ranks {
        rank.success("from_env");
    }
    job.must("call all_reduce 1000");
}

/// Report 4: a cluster's DNS learns a pod's name once the pod runs.
#[test]
fn a_name_that_has_an_address_later() {
    let Some(network) = Network::make(1) else { return };
    let ways = ways("late-node");
    let mut jobs: Vec<NamedJob> =
        ways.iter().map(|way| named(&network, &[(0, ""), (0, "")], &with(way, &[]))).collect();
    for named in &mut jobs {
        named.job.begin("from_env", |_| true);
    }
    for named in &mut jobs {
        for rank in &named.job.ranks {
            ranks::until("the rank says what it waits for", || {
                rank.log().contains("late-node:2950") && rank.log().contains("has no address yet")
            });
        }
        for file in &named.names {
            fs::File::options().append(true).open(file).unwrap().write_all(b"127.0.0.1 late-node\n").unwrap();
        }
    }
    for named in &mut jobs {
        must_join(&mut named.job);
    }
}

#[test]
fn a_name_that_never_has_an_address_is_told_at_the_deadline() {
    let Some(network) = Network::make(1) else { return };
    for way in &ways("no-node") {
        let variables = with(way, &[("RSCCL_INIT_TIMEOUT_MS", "1000")]);
        let mut named = named(&network, &[(0, ""), (0, "")], &variables);
        named.job.begin("from_env", |_| true);
        for rank in &named.job.ranks {
            let failure = rank.failure();
            assert_eq!(failure.kind, "Timeout", "{}", failure.text);
            for words in ["no-node", "has no address", " times)"] {
                assert!(failure.text.contains(words), "`{words}` is not in: {}", failure.text);
            }
        }
    }
}

/// A resolver that does not answer blocks its caller for half a minute.
#[test]
fn a_resolver_that_is_dead_does_not_hold_up_the_deadline() {
    let Some(network) = Network::make(2) else { return };
    // It drops what comes.
    network.change(1, "route add blackhole 10.77.0.1/32");
    let ways = ways("no-node");
    let variables = with(&ways[0], &[("RSCCL_INIT_TIMEOUT_MS", "1000")]);
    let mut named = named_with(&network, &[(0, ""), (0, "")], &variables, "nameserver 10.77.0.2\n");
    let began = clock::now();
    named.job.begin("from_env", |_| true);
    for rank in &named.job.ranks {
        let failure = rank.failure();
        assert!(failure.text.contains("the resolver has not answered"), "{}", failure.text);
    }
    assert!(clock::now().duration_since(began) < Duration::from_secs(4));
}

/// Report 5: Debian gives a host's own name the address 127.0.1.1. Ranks that prove themselves may come from anywhere.
#[test]
fn a_name_that_is_loopback_on_its_own_host() {
    let Some(network) = Network::make(2) else { return };
    let places = [(0, "127.0.1.1 node0"), (1, "10.77.0.1 node0")];
    for way in &ways("node0")[..2] {
        let mut guarded = named(&network, &places, &with(way, &[("RSCCL_SECRET", "a word among friends")]));
        guarded.job.begin("from_env", |_| true);
        must_join(&mut guarded.job);
        drop(guarded);
        let mut open = named(&network, &places, &with(way, &[("RSCCL_INIT_TIMEOUT_MS", "1500")]));
        open.job.begin("from_env", |_| true);
        let failure = open.job.ranks[0].failure();
        assert!(
            failure.text.contains("rank 1 of 2 never came") || failure.text.contains("timed out"),
            "{}",
            failure.text
        );
        for words in ["rank 0 listens at 127.0.1.1:2950", "which is loopback: no other host reaches it", "RSCCL_SECRET"]
        {
            assert!(failure.text.contains(words), "`{words}` is not in: {}", failure.text);
        }
    }
}

/// Report 5: the ranks do not agree which of the host's two addresses is the first.
#[test]
fn a_host_with_two_addresses_serves_at_both() {
    let Some(network) = Network::make(2) else { return };
    network.change(0, "addr add 10.77.0.9/24 dev eth0");
    for way in &ways("node0")[..2] {
        for seen in ["10.77.0.1 node0", "10.77.0.9 node0"] {
            let places = [(0, "10.77.0.1 node0\n10.77.0.9 node0"), (1, seen)];
            let mut named = named(&network, &places, &with(way, &[]));
            named.job.begin("from_env", |_| true);
            must_join(&mut named.job);
        }
    }
}

/// Report 6: nobody has the first address of the name, and its packets vanish.
#[test]
fn a_name_whose_first_address_is_dead() {
    let Some(network) = Network::make(2) else { return };
    let ways = ways("node0");
    let places = [(0, "10.77.0.1 node0"), (1, "10.77.0.3 node0\n10.77.0.1 node0")];
    let mut jobs: Vec<NamedJob> = ways[..2].iter().map(|way| named(&network, &places, &with(way, &[]))).collect();
    for named in &mut jobs {
        named.job.begin("from_env", |_| true);
    }
    for named in &mut jobs {
        must_join(&mut named.job);
    }
}

/// Report 7: routed to the host, as in a fabric of layer 3. The link has a link-local address.
#[test]
fn hosts_whose_address_is_on_lo() {
    let Some(network) = Network::make(2) else { return };
    for (host, other) in [(0, 1), (1, 0)] {
        let (mine, theirs) = (format!("10.9.0.{}", host + 1), format!("10.9.0.{}", other + 1));
        network.change(host, &format!("addr del 10.77.0.{}/24 dev eth0", host + 1));
        network.change(host, &format!("addr del fd77::{}/64 dev eth0", host + 1));
        network.change(host, &format!("addr add {mine}/32 dev lo"));
        network.change(host, &format!("route add {theirs}/32 dev eth0 src {mine}"));
    }
    for way in &ways("10.9.0.1")[..2] {
        for more in [&[][..], &[("NCCL_SOCKET_IFNAME", "lo")]] {
            let mut named = named(&network, &[(0, ""), (1, "")], &with(way, more));
            named.job.begin("from_env", |_| true);
            must_join(&mut named.job);
            for rank in &named.job.ranks {
                let line = format!("Using lo:10.9.0.{}<", rank.number + 1);
                assert!(rank.log().contains(&line), "`{line}` is not in:\n{}", rank.log());
            }
        }
    }
}

/// Report 7b: LAN on motherboard, not loopback.
#[test]
fn an_interface_whose_name_begins_as_that_of_loopback() {
    let Some(network) = Network::make(2) else { return };
    for host in [0, 1] {
        network.change(host, "link set eth0 down");
        network.change(host, "link set eth0 name lom1");
        network.change(host, "link set lom1 up");
    }
    let mut job = launched(&network, &[0, 1], &[]);
    job.begin("from_env", |_| true);
    must_join(&mut job);
}

/// Report 8: the first link leads to the host's management controller, and both hosts have one address there.
#[test]
fn hosts_whose_first_interface_is_link_local() {
    let Some(network) = Network::make(2) else { return };
    for host in [0, 1] {
        network.part(host);
        network.change(host, "link set eth0 down");
        network.change(host, "addr flush dev eth0");
        network.change(host, "link set eth0 name bmc0");
        network.change(host, "addr add 169.254.3.1/24 dev bmc0");
        network.change(host, "link set bmc0 up");
        network.add_link(host, "eth1");
        network.change(host, &format!("addr add 10.77.0.{}/24 dev eth1", host + 1));
    }
    let mut job = launched(&network, &[0, 1], &[]);
    job.begin("from_env", |_| true);
    must_join(&mut job);
}

/// The number of a link-local address's link is one of its own host: here eth0's is not eth1's.
#[test]
fn hosts_that_have_link_local_addresses_only() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("file://{}", folder.path().join("store").display());
    let Some(network) = Network::make(2) else { return };
    network.add_link(1, "eth1");
    network.change(1, "link del eth0");
    for (host, link) in [(0, "eth0"), (1, "eth1")] {
        network.change(host, &format!("link set {link} down"));
        network.change(host, &format!("addr flush dev {link}"));
        network.change(host, &format!("link set {link} addrgenmode none"));
        network.change(host, &format!("link set {link} up"));
        network.change(host, &format!("addr add fe80::{}/64 dev {link} nodad", host + 1));
    }
    let mut job = launched(&network, &[0, 0, 1], &[("RSCCL_STORE", &store)]);
    job.begin("from_env", |_| true);
    must_join(&mut job);
    job.must("call sendrecv 1000");
}

/// Report 9: while nobody listens, the kernel may give a connecting socket the very port that it connects to.
#[test]
fn ranks_that_wait_do_not_take_the_port_of_rank_0() {
    for way in [[("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "40002")], [("NCCL_COMM_ID", "127.0.0.1:40004"); 2]] {
        // New for each job, because what has ended keeps ports in TIME-WAIT.
        let Some(network) = Network::make(1) else { return };
        network.set_ephemeral_ports(0, 40_000, 40_015);
        let mut job = launched(&network, &[0, 0, 0], &way);
        job.begin("from_env", |rank| rank != 0);
        let began = clock::now();
        // Rarely none does in this time: then the test shows less.
        ranks::until("a rank has connected to itself", || {
            let own = job.others(0).any(|rank| rank.log().contains("connected to itself"));
            own || clock::now().duration_since(began) > Duration::from_secs(3)
        });
        job.begin("from_env", |rank| rank == 0);
        must_join(&mut job);
    }
}

/// Report 20: as in a new network namespace.
#[test]
fn loopback_that_is_down_is_told_at_once() {
    let Some(network) = Network::make(1) else { return };
    network.change(0, "link set lo down");
    for way in [[("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")], [("NCCL_COMM_ID", "127.0.0.1:29501"); 2]] {
        let mut job = launched(&network, &[0, 0], &way);
        let began: Instant = clock::now();
        job.begin("from_env", |_| true);
        for rank in &job.ranks {
            let text = rank.failure().text;
            assert!(text.contains("loopback is down in this network namespace"), "rank {}: {text}", rank.number);
        }
        assert!(clock::now().duration_since(began) < Duration::from_secs(5));
    }
}

/// As in the first seconds of a container: the kernel still looks whether another host has the address.
#[test]
fn an_ipv6_address_that_is_new_is_waited_for() {
    let Some(network) = Network::make(1) else { return };
    network.change(0, "addr flush dev eth0");
    let mut job = launched(&network, &[0, 0], &[("MASTER_ADDR", "fd77::77"), ("NCCL_SOCKET_FAMILY", "AF_INET6")]);
    network.change(0, "addr add fd77::77/64 dev eth0");
    job.begin("from_env", |_| true);
    must_join(&mut job);
}

/// `rsccl run` tells its ranks to meet at 127.0.0.1, whatever family the network has.
#[test]
fn ranks_of_ipv6_may_meet_at_the_loopback_of_ipv4() {
    let Some(network) = Network::make(1) else { return };
    let more = [("MASTER_ADDR", "127.0.0.1"), ("NCCL_SOCKET_FAMILY", "AF_INET6")];
    let mut job = launched(&network, &[0, 0], &more);
    job.begin("from_env", |_| true);
    must_join(&mut job);
}

/// A step of Slurm over nodes that have no IPv4 at all, loopback included: it meets at its first node.
#[test]
fn a_step_of_slurm_on_hosts_with_ipv6_only() {
    let Some(network) = Network::make(2) else { return };
    for host in [0, 1] {
        network.change(host, "-4 addr flush dev eth0");
        network.change(host, "-4 addr flush dev lo");
    }
    let folder = tempfile::tempdir().unwrap();
    let names = folder.path().join("hosts");
    fs::write(&names, "::1 localhost\nfd77::1 n0\nfd77::2 n1\n").unwrap();
    fs::write(names.with_extension("resolver"), "").unwrap();
    let step = [
        ("SLURM_JOB_ID", "7"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NUM_TASKS", "3"),
        ("SLURM_STEP_NUM_NODES", "2"),
        ("SLURM_STEP_NODELIST", "n[0-1]"),
        ("SLURM_DISTRIBUTION", "block"),
    ];
    let mut job = Job::start_each(3, |rank| {
        let [number, node, local] = [["0", "0", "0"], ["1", "0", "1"], ["2", "1", "0"]][rank];
        let mine = [("SLURM_PROCID", number), ("SLURM_NODEID", node), ("SLURM_LOCALID", local)];
        (network.on_with_names(node.parse().unwrap(), &names), [&step[..], &mine].concat())
    });
    job.begin("from_env", |_| true);
    must_join(&mut job);
    assert!(job.ranks[2].log().contains("ranks meet at n0, the first node of this step of Slurm"));
    let is_told = |rank: &ranks::Rank| rank.log().contains("set RSCCL_SECRET on all ranks");
    assert_eq!(job.ranks.iter().map(is_told).collect::<Vec<_>>(), [true, false, false], "by who serves");
}
