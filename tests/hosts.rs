//! Several hosts, made of network namespaces: hierarchy, uneven hosts, interfaces, IPv6, a host that is cut off.
//!
//! Needs root and `ip`; prints `skipped` where they are missing.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod hosts {
    #[cfg(feature = "encrypt")]
    mod encrypted;
    mod fabrics;
    mod hardware;
    mod nat;
    mod places;
    mod plug_ins;
    mod rails;
}

use std::path::Path;
use std::process::Command;

use testing::network::Network;
use testing::ranks::Job;
use testing::verify::Program;
use testing::{random, ranks, worker};

/// Where a test starts this program as a rank, this is the rank.
#[test]
#[ignore = "one rank of the jobs that the tests of this file start: alone it is no test"]
fn worker() {
    if worker::is_wanted() {
        worker::run();
    }
}

/// A job of ranks that have joined by the variables of a launcher; rank i runs on host `places[i]`.
fn job(network: &Network, places: &[usize], more: &[(&str, &str)]) -> Job {
    let mut job = launched(network, places, more);
    job.must("from_env");
    job
}

/// The same, not joined yet.
fn launched(network: &Network, places: &[usize], more: &[(&str, &str)]) -> Job {
    let numbers: Vec<String> = (0..=places.len()).map(|number| number.to_string()).collect();
    Job::start_each(places.len(), |rank| {
        // The port is free: the hosts are new.
        let mut variables = vec![("MASTER_ADDR", "10.77.0.1"), ("MASTER_PORT", "29500")];
        variables.extend([("RANK", &*numbers[rank]), ("WORLD_SIZE", &*numbers[places.len()])]);
        variables.extend(more);
        (network.on(places[rank]), variables)
    })
}

fn must_do_everything(job: &mut Job) {
    for program in Program::ALL {
        for count in [1, 1_003, 200_001] {
            job.must(&format!("call {} {count}", program.name()));
        }
    }
}

fn must_be_placed(job: &Job, places: &[usize]) {
    let hosts = places.iter().max().expect("there are ranks") + 1;
    for rank in &job.ranks {
        let local = places.iter().filter(|place| **place == places[rank.number]).count();
        let line = format!("rank {} nranks {} localRanks {local} nNodes {hosts}", rank.number, places.len());
        assert!(rank.log().contains(&line), "`{line}` is not in:\n{}", rank.log());
    }
}

#[test]
fn three_hosts_of_two() {
    let Some(network) = Network::make(3) else { return };
    let places = [0, 0, 1, 1, 2, 2];
    let mut job = job(&network, &places, &[]);
    must_be_placed(&job, &places);
    // Alone: the others make no call.
    let told = job.ranks[3].must("placement");
    assert!(told.contains("(1 of 3), local rank 1 of 2, "), "{told}");
    must_do_everything(&mut job);
    for rank in &job.ranks {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", rank.process())).unwrap();
        assert!(maps.contains("memfd:"), "rank {} shares no memory with its neighbour", rank.number);
        let its_root = Path::new("/proc").join(rank.process().to_string()).join("root");
        let shm = std::fs::read_dir(its_root.join("dev/shm")).unwrap();
        assert_eq!(shm.count(), 0, "rank {}", rank.number);
    }
}

/// Regression: a ring of plain sends waited until the deadline.
#[test]
fn a_ring_of_small_sends_between_hosts() {
    let Some(network) = Network::make(3) else { return };
    for places in [&[0, 1, 2][..], &[0, 0, 1, 1, 2, 2]] {
        let mut job = job(&network, places, &[]);
        job.must("ring 3");
        job.must("ring 200000");
    }
}

#[test]
fn random_programs_between_hosts() {
    for places in [&[0, 0, 1, 1, 2, 2][..], &[0, 1, 1, 2]] {
        let Some(network) = Network::make(3) else { return };
        let (seed, steps) = (random::seed(), random::steps());
        eprintln!(
            "RSCCL_TEST_SEED={seed} RSCCL_RANDOM_STEPS={steps} cargo test --features cli --test hosts random_programs_between_hosts"
        );
        let mut job = job(&network, places, &random::variables(seed));
        job.must(&format!("random {seed} {steps}"));
    }
}

#[test]
fn ranks_dealt_to_hosts_in_turn() {
    let Some(network) = Network::make(3) else { return };
    let places = [0, 1, 2, 0, 1, 2];
    let mut job = job(&network, &places, &[]);
    must_be_placed(&job, &places);
    must_do_everything(&mut job);
}

#[test]
fn uneven_hosts() {
    let Some(network) = Network::make(3) else { return };
    let places = [0, 0, 0, 1, 1, 2];
    let mut job = job(&network, &places, &[]);
    must_be_placed(&job, &places);
    must_do_everything(&mut job);
}

#[test]
fn several_sockets_between_hosts_and_forced_algorithms() {
    let Some(network) = Network::make(2) else { return };
    for algorithm in ["all_reduce:Ring", "all_reduce:Tree"] {
        let more = [("NCCL_NSOCKS_PERTHREAD", "3"), ("NCCL_SOCKET_NTHREADS", "2"), ("NCCL_ALGO", algorithm)];
        let mut job = job(&network, &[0, 0, 1, 1], &more);
        for count in [1, 70_001, 1_000_001] {
            job.must(&format!("call all_reduce {count}"));
        }
        job.must("call sendrecv 1000001");
    }
}

/// The ports at which the process listens, by the tables of its network namespace.
fn listening(process: u32) -> Vec<u16> {
    let tables = ["tcp", "tcp6"].map(|table| format!("/proc/{process}/net/{table}"));
    let tables = tables.iter().flat_map(|table| {
        let text = std::fs::read_to_string(table).unwrap();
        text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    });
    let port = |line: String| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        // The kernel's state LISTEN.
        let port = (fields[3] == "0A").then(|| fields[1].rsplit_once(':').unwrap().1);
        port.map(|port| u16::from_str_radix(port, 16).unwrap())
    };
    tables.filter_map(port).collect()
}

#[test]
fn a_firewall_s_ports() {
    let Some(network) = Network::make(2) else { return };
    let places = [0, 0, 1, 1];
    // Each process needs one, however many communicators it has, and the root one while ranks meet.
    let range = ("RSCCL_PORT_RANGE", "21000-21002");
    let mut job = job(&network, &places, &[range]);
    job.must("call all_reduce 70001");
    job.must("split 0");
    job.must("call all_reduce 70001");
    job.must("call sendrecv 70001");
    for rank in &job.ranks {
        let ports = listening(rank.process());
        let outside: Vec<_> = ports.iter().filter(|port| !(21_000..=21_002).contains(*port)).collect();
        assert!(outside.iter().all(|port| **port == 29_500), "{outside:?}");
        assert_eq!(ports.len() - outside.len(), 2, "{ports:?}");
    }
}

/// The system may give such a port to a connection that goes out, unless the administrator keeps it.
#[test]
fn a_range_of_ports_that_the_system_lends_is_told_once() {
    let Some(network) = Network::make(1) else { return };
    network.set_ephemeral_ports(0, 20_000, 21_001);
    let told = |range| {
        let mut job = job(&network, &[0, 0], &[("RSCCL_PORT_RANGE", range)]);
        job.must("split 0");
        let count = |line: &str| job.ranks.iter().map(|rank| rank.log().matches(line).count()).collect::<Vec<_>>();
        count(&format!("as root: sysctl net.ipv4.ip_local_reserved_ports={range}"))
    };
    assert_eq!(told("21000-21003"), [1, 1]);
    assert_eq!(told("21002-21005"), [0, 0]);
    network.set(0, "net.ipv4.ip_local_reserved_ports=21000-21001");
    assert_eq!(told("21000-21003"), [0, 0]);
}

#[test]
fn ports_that_do_not_suffice() {
    let Some(network) = Network::make(1) else { return };
    let mut job =
        launched(&network, &[0, 0], &[("RSCCL_PORT_RANGE", "21000-21000"), ("RSCCL_INIT_TIMEOUT_MS", "4000")]);
    job.begin("from_env", |_| true);
    // The root has the port.
    let why = "RSCCL_PORT_RANGE=21000-21000: all 1 ports are taken at 10.77.0.1: each process of a host needs";
    for rank in &job.ranks {
        let text = rank.failure().text;
        assert!(text.contains(why) || rank.number == 1, "{text}");
    }
}

#[test]
fn ipv6() {
    let Some(network) = Network::make(2) else { return };
    let more = [("MASTER_ADDR", "fd77::1"), ("NCCL_SOCKET_FAMILY", "AF_INET6")];
    let places = [0, 0, 1];
    let mut job = job(&network, &places, &more);
    must_be_placed(&job, &places);
    for rank in &job.ranks {
        let line = format!("Using eth0:fd77::{}<", places[rank.number] + 1);
        assert!(rank.log().contains(&line), "`{line}` is not in:\n{}", rank.log());
    }
    must_do_everything(&mut job);
}

/// What goes over the network beside data. One call of the largest count alone moves more.
const MOST_CONTROL_BYTES: u64 = 400_000;

/// Two pods of one machine, which have a folder of it in common.
#[test]
fn pods_that_share_a_folder_share_memory() {
    let Some(network) = Network::make(2) else { return };
    let folder = tempfile::tempdir().unwrap();
    let shared = ("RSCCL_SOCKET_DIR", folder.path().to_str().unwrap());
    let mut together = job(&network, &[0, 1, 1], &[shared]);
    must_be_placed(&together, &[0, 0, 0]);
    let before = network.sent_bytes(0, "eth0");
    must_do_everything(&mut together);
    let sent = network.sent_bytes(0, "eth0") - before;
    assert!(sent < MOST_CONTROL_BYTES, "{sent} bytes over the network");
    // A killed rank's socket would be left.
    together.must("drop");
    assert_eq!(folder.path().read_dir().unwrap().count(), 0);
}

#[test]
fn the_interface_that_was_asked_for_and_one_that_there_is_not() {
    let Some(network) = Network::make(2) else { return };
    let mut asked = job(&network, &[0, 1], &[("NCCL_SOCKET_IFNAME", "=eth0")]);
    for rank in &asked.ranks {
        let line = format!("Using eth0:10.77.0.{}<", rank.number + 1);
        assert!(rank.log().contains(&line), "`{line}` is not in:\n{}", rank.log());
    }
    asked.must("call all_reduce 10");
    drop(asked);
    let more = [("NCCL_SOCKET_IFNAME", "ib"), ("RSCCL_INIT_TIMEOUT_MS", "3000")];
    let mut wrong = launched(&network, &[0, 1], &more);
    wrong.begin("from_env", |_| true);
    for rank in &wrong.ranks {
        let failure = rank.failure();
        // Rank 0 alone makes the id; the other waits for it, or finds that it has no interface either.
        assert!(rank.number != 0 || failure.kind == "InvalidUsage", "{}: {}", failure.kind, failure.text);
        for word in ["NCCL_SOCKET_IFNAME", "ib", "eth0"] {
            assert!(rank.number != 0 || failure.text.contains(word), "`{word}` is not in: {}", failure.text);
        }
    }
}

/// Nobody tells another host an address of loopback: the rank waits, says so, and joins once the interface is up.
#[test]
fn a_host_whose_interface_is_still_coming_up() {
    let folder = tempfile::tempdir().unwrap();
    for (turn, late) in [0, 1, 1].into_iter().enumerate() {
        let Some(network) = Network::make(2) else { return };
        let store = format!("file://{}", folder.path().join(format!("store{turn}")).display());
        let mut more = vec![("LOCAL_WORLD_SIZE", "1"), ("LOCAL_RANK", "0")];
        if turn < 2 {
            more.push(("RSCCL_STORE", &store));
        }
        network.take_down(late);
        let mut job = launched(&network, &[0, 1], &more);
        job.begin("from_env", |_| true);
        if turn < 2 {
            ranks::until("the rank says what it waits for", || {
                let log = job.ranks[late].log();
                log.contains("no network interface is up that other hosts reach") && log.contains("eth0")
            });
        }
        network.bring_up(late);
        for rank in &job.ranks {
            rank.success("from_env");
            assert!(!rank.log().contains("127.0.0.1<"), "rank {} has told of loopback:\n{}", rank.number, rank.log());
        }
        job.must("call all_reduce 1000");
    }
}

#[test]
fn an_interface_that_never_comes_up_is_named_at_the_deadline() {
    let folder = tempfile::tempdir().unwrap();
    let Some(network) = Network::make(2) else { return };
    let store = format!("file://{}", folder.path().join("store").display());
    let more = [("LOCAL_WORLD_SIZE", "1"), ("RSCCL_STORE", &*store), ("RSCCL_INIT_TIMEOUT_MS", "1500")];
    network.take_down(0);
    let mut job = launched(&network, &[0, 1], &more);
    let failure = job.ranks[0].fails("from_env");
    assert_eq!(failure.kind, "InvalidUsage", "{}", failure.text);
    for words in ["no network interface is up that other hosts reach", "eth0 (10.77.0.1, not running)", "waited 1."] {
        assert!(failure.text.contains(words), "`{words}` is not in: {}", failure.text);
    }
}

/// An id that was made while a host had loopback alone leads every other host to its own loopback.
#[test]
fn an_id_with_the_loopback_of_another_host_is_refused_there() {
    let Some(network) = Network::make(2) else { return };
    network.take_down(0);
    let mut job = launched(&network, &[0, 1], &[]);
    job.make_id();
    job.say_init(1);
    job.ranks[1].begun();
    let failure = job.ranks[1].failure();
    assert_eq!(failure.kind, "InvalidUsage", "{}", failure.text);
    assert!(failure.text.contains("of another host, which had no interface up but loopback"), "{}", failure.text);
}

#[test]
fn a_host_whose_ranks_are_killed() {
    let Some(network) = Network::make(3) else { return };
    let mut job = job(&network, &[0, 0, 1, 1, 2, 2], &[]);
    for command in ["call all_reduce 10", "call all_reduce 300000", "call barrier 0"] {
        job.must(command);
    }
    job.lose_the_last_two_of_six();
    must_do_everything(&mut job);
}

/// What the process that answers `ncclras` on a host says.
fn ras_status(network: &Network, host: usize, form: &str) -> String {
    let words = network.on(host);
    let lines = format!("CLIENT PROTOCOL 2\\nSET FORMAT {form}\\nSTATUS\\n");
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/28028 && printf '{lines}' >&3 && cat <&3");
    let output = Command::new(&words[0]).args(&words[1..]).args(["bash", "-c", &script]).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn ncclras_is_told_of_ranks_on_other_hosts() {
    let Some(network) = Network::make(2) else { return };
    let mut job = job(&network, &[0, 0, 1, 1], &[("NCCL_RAS_ADDR", "localhost:28028")]);
    job.must("call all_reduce 10");
    let text = ras_status(&network, 0, "text");
    assert!(text.contains("2 processes of host host0 with 2 ranks"), "{text}");
    for rank in &job.ranks[2..] {
        let line = text.lines().find(|line| line.starts_with(&format!("rank {} of 4, ", rank.number))).expect(&text);
        assert!(line.contains(&format!(", host host1, pid {}: has told nothing", rank.process())), "{line}");
    }
    // The ranks of the other host wait: those of this one make no call, and know.
    job.begin("call barrier 0", |rank| rank >= 2);
    ranks::until("it is told that both wait", || {
        ras_status(&network, 0, "text").matches(": waits in barrier").count() == 2
    });
    let json = ras_status(&network, 0, "json");
    assert!(json.matches("\"state\":\"waits\",\"words\":\"barrier").count() == 2, "{json}");
    assert!(json.matches("\"host\":\"host1\",\"host_id\":").count() == 2, "{json}");
    job.kill(3);
    ranks::until("it is told that one has died", || {
        ras_status(&network, 0, "text")
            .lines()
            .any(|line| line.starts_with("rank 3 of 4, ") && line.contains(": has died: "))
    });
}

/// Small packets pass, so that all ranks are connected and know of each other.
#[test]
fn a_network_that_loses_large_packets_is_told() {
    let Some(network) = Network::make(2) else { return };
    let timeout = [("RSCCL_TIMEOUT_MS", "2500")];
    let [mut collective, mut message] = [(); 2].map(|()| job(&network, &[0, 1], &timeout));
    for job in [&mut collective, &mut message] {
        job.must("ring 3");
        job.must("call all_reduce 300000");
    }
    network.lose_larger(1, 600);
    collective.begin("call all_reduce 300000", |_| true);
    for rank in &collective.ranks {
        let text = rank.failure().text;
        assert!(text.contains("all other ranks wait in it too") && text.contains("MTU"), "{text}");
        // Rank 0, whose large packets are lost, knows it by its system, whichever deadline passes first.
        let lost = text.contains("of what was sent to rank 1,") && text.contains("the network loses them");
        assert!(lost || rank.number == 1, "{text}");
    }
    // One packet, since the bridge lets pass what the system cuts later. The sender's system takes it: the sender goes
    // on, and waits for its receiver elsewhere.
    message.begin("recv 300 0", |rank| rank == 1);
    message.ranks[0].must("send 300 1");
    message.begin("call barrier 0", |rank| rank == 0);
    for rank in &message.ranks {
        let text = rank.failure().text;
        let told = "rank 1 waits for rank 0 in recv #1, and rank 0 has begun its end of it";
        assert!(text.contains(told) && text.contains("MTU"), "{text}");
    }
}

#[test]
fn a_host_that_is_cut_off() {
    for command in ["call all_reduce 10", "call all_reduce 300000", "call sendrecv 2000000"] {
        let places = [0, 0, 1, 1, 2, 2];
        let Some(network) = Network::make(3) else { return };
        let mut job = job(&network, &places, &[("RSCCL_TIMEOUT_MS", "2000")]);
        job.must(command);
        network.cut(2);
        job.begin(command, |_| true);
        for rank in &job.ranks {
            if command.contains("sendrecv") && matches!(rank.number, 1 | 2) {
                // Both neighbours of these ranks are reachable.
                rank.success(command);
                continue;
            }
            let failure = rank.failure();
            let text = failure.text;
            assert!(text.contains("timed out"), "{command}: {text}");
            let lost: &[usize] = if places[rank.number] == 2 { &[0, 1, 2, 3] } else { &[4, 5] };
            assert!(lost.iter().any(|rank| text.contains(&format!("rank {rank}"))), "{command}: {text}");
        }
        // The hosts that still reach each other go on.
        job.begin("shrink 4,5", |rank| rank < 4);
        for rank in &job.ranks[..4] {
            rank.success("shrink");
        }
        job.begin("call all_reduce 300000", |rank| rank < 4);
        for rank in &job.ranks[..4] {
            rank.success("all_reduce");
        }
    }
}
