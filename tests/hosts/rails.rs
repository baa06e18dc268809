//! Hosts with several NICs: data between two hosts take all that a network joins.

use testing::network::Network;
use testing::ranks::{self, Job};

use crate::{job, must_do_everything};

/// Two hosts that meet on `eth0` and have more rails.
fn with_rails(rails: &[(usize, &[usize])]) -> Option<Network> {
    let network = Network::make(2)?;
    for (number, hosts) in rails {
        network.add_rail(*number, hosts);
    }
    Some(network)
}

/// Which part of the bytes that each of two hosts sends in `command` leaves by each of `interfaces`, in percent.
fn shares(network: &Network, job: &mut Job, interfaces: &[&str], command: &str) -> [Vec<u64>; 2] {
    let sent = |host| interfaces.iter().map(|name| network.sent_bytes(host, name)).collect::<Vec<_>>();
    let before = [0, 1].map(sent);
    job.must(command);
    let after = [0, 1].map(sent);
    [0, 1].map(|host| {
        let bytes: Vec<u64> = after[host].iter().zip(&before[host]).map(|(after, before)| after - before).collect();
        let all: u64 = bytes.iter().sum();
        assert!(all > 1_000_000, "{command}: {bytes:?}");
        bytes.iter().map(|bytes| bytes * 100 / all).collect()
    })
}

fn must_be_even(shares: &[u64], part: u64, what: &str) {
    assert!(shares.iter().all(|share| share.abs_diff(part) <= 5), "{what}: {shares:?} percent");
}

#[test]
fn data_take_all_rails_evenly_and_the_log_says_which() {
    let Some(network) = with_rails(&[(1, &[0, 1]), (2, &[0, 1])]) else { return };
    let mut job = job(&network, &[0, 1], &[("NCCL_DEBUG_SUBSYS", "INIT,NET")]);
    job.must("ring 3");
    for command in ["call all_reduce 4000000", "call sendrecv 4000000", "call all_to_all 2000000"] {
        for shares in shares(&network, &mut job, &["eth0", "eth1", "eth2"], command) {
            must_be_even(&shares, 33, command);
        }
    }
    must_do_everything(&mut job);
    for (here, there) in [(0, 1), (1, 0)] {
        let log = job.ranks[here].log();
        let mine = here + 1;
        let line = format!("Using [0]eth0:10.77.0.{mine} [1]eth1:10.78.1.{mine} [2]eth2:10.78.2.{mine}");
        assert!(log.contains(&line), "`{line}` is not in:\n{log}");
        let line = format!(
            "to the host of rank {there}: [0] eth0 10.77.0.{mine} - eth0 10.77.0.{} (subnet 10.77.0.0/24, 10000 Mbit/s)",
            there + 1
        );
        assert!(log.contains(&line), "`{line}` is not in:\n{log}");
        assert!(log.contains("via NET/Socket, sockets 3 along eth0, eth1, eth2"), "{log}");
    }
}

/// Four NICs on one host and two on the other, called otherwise: they pair by subnet.
#[test]
fn uneven_hosts_use_what_they_have_in_common() {
    let Some(network) = with_rails(&[(1, &[0]), (2, &[0, 1]), (3, &[0])]) else { return };
    for words in ["link set eth2 down", "link set eth2 name ens9", "link set ens9 up"] {
        network.change(1, words);
    }
    let mut job = job(&network, &[0, 0, 1], &[]);
    must_do_everything(&mut job);
    let sent = |name: &str| network.sent_bytes(0, name);
    assert!(sent("eth2") > 1_000_000 && sent("eth0") > 1_000_000);
    assert!(sent("eth1") < 10_000 && sent("eth3") < 10_000, "nobody is there");
    let log = job.ranks[0].log();
    assert!(log.contains("eth2 10.78.2.1 - ens9 10.78.2.2 (subnet 10.78.2.0/24"), "{log}");
    assert!(log.contains("not eth1: the other side has no interface in subnet 10.78.1.0/24"), "{log}");
}

#[test]
fn names_and_numbers_of_the_user_choose_the_rails() {
    let Some(network) = with_rails(&[(1, &[0, 1]), (2, &[0, 1])]) else { return };
    let named = [("NCCL_SOCKET_IFNAME", "=eth0,eth2")];
    let mut two = job(&network, &[0, 1], &named);
    for shares in shares(&network, &mut two, &["eth0", "eth1", "eth2"], "call all_reduce 4000000") {
        must_be_even(&[shares[0], shares[2]], 50, "by name");
    }
    drop(two);
    let numbered = [("RSCCL_RAILS", "eth1=4"), ("NCCL_CROSS_NIC", "0")];
    let mut one = job(&network, &[0, 1], &numbered);
    for shares in shares(&network, &mut one, &["eth1", "eth2"], "call all_reduce 4000000") {
        must_be_even(&[shares[0]], 100, "by number");
    }
    assert!(one.ranks[0].log().contains("eth1 10.78.1.1 - eth1 10.78.1.2 (rail 4"), "{}", one.ranks[0].log());
}

/// One socket a connection: channels and receivers take the rails in turn.
#[test]
fn single_sockets_are_spread_over_the_rails() {
    let Some(network) = with_rails(&[(1, &[0, 1])]) else { return };
    let mut job = job(&network, &[0, 0, 1, 1], &[("NCCL_NSOCKS_PERTHREAD", "1"), ("RSCCL_TEAM_RANKS", "1")]);
    for shares in shares(&network, &mut job, &["eth0", "eth1"], "call all_to_all 2000000") {
        must_be_even(&shares, 50, "all_to_all");
    }
    must_do_everything(&mut job);
}

/// A NIC without carrier, and one whose network leads nowhere.
#[test]
fn a_nic_that_is_dead_at_the_start_is_left_out_with_a_line() {
    let Some(network) = with_rails(&[(1, &[0, 1]), (2, &[0, 1])]) else { return };
    network.change(0, "link set eth1 down");
    network.part_rail(2, 1);
    let mut job = job(&network, &[0, 1], &[("NCCL_DEBUG_SUBSYS", "INIT,NET")]);
    must_do_everything(&mut job);
    let log = job.ranks[0].log();
    assert!(log.contains("eth1 (10.78.1.1) is left out: it is down, or has no carrier"), "{log}");
    let line = "no data go to rank 1 over eth2 to 10.78.2.2:";
    assert!(log.matches(line).count() == 1 && log.contains("no answer within 2 s"), "`{line}` once in:\n{log}");
    let before = network.sent_bytes(0, "eth0");
    job.must("call all_reduce 4000000");
    assert!(network.sent_bytes(0, "eth0") - before > 16_000_000, "all of it");
    // Regression: each split tried the dead rail anew, and told of it again.
    job.must("split 0");
    must_do_everything(&mut job);
    let log = job.ranks[0].log();
    assert!(log.matches("no data go to rank").count() == 1, "the split tries it again:\n{log}");
}

/// `eth1` of both hosts is in the subnet of `eth0`.
fn with_two_in_one_subnet() -> Option<Network> {
    let network = Network::make(2)?;
    for host in [0, 1] {
        // Each interface answers for its own address.
        network.set(host, "net.ipv4.conf.all.arp_ignore=1");
        network.set(host, "net.ipv4.conf.all.arp_announce=2");
        network.add_link(host, "eth1");
        network.change(host, &format!("addr add 10.77.0.{}/24 dev eth1", 101 + host));
    }
    Some(network)
}

#[test]
fn two_nics_in_one_subnet_are_two_rails() {
    let Some(network) = with_two_in_one_subnet() else { return };
    for host in [0, 1] {
        network.set(host, "net.ipv4.conf.all.rp_filter=0");
        network.set(host, "net.ipv4.conf.eth0.rp_filter=0");
        network.set(host, "net.ipv4.conf.eth1.rp_filter=0");
    }
    let mut job = job(&network, &[0, 1], &[]);
    job.must("ring 3");
    for command in ["call all_reduce 4000000", "call sendrecv 4000000"] {
        for shares in shares(&network, &mut job, &["eth0", "eth1"], command) {
            must_be_even(&shares, 50, command);
        }
    }
    must_do_everything(&mut job);
}

/// The kernel drops what comes by an interface that it would not answer by.
#[test]
fn two_nics_in_one_subnet_are_one_rail_where_the_kernel_filters_by_the_way_back() {
    let Some(network) = with_two_in_one_subnet() else { return };
    for host in [0, 1] {
        network.set(host, "net.ipv4.conf.all.rp_filter=1");
    }
    let mut job = job(&network, &[0, 1], &[("NCCL_DEBUG_SUBSYS", "INIT,NET")]);
    must_do_everything(&mut job);
    let log = job.ranks[0].log();
    assert!(log.contains("no answer within 2 s") && log.contains("rp_filter"), "{log}");
    let before = network.sent_bytes(0, "eth1");
    job.must("call all_reduce 4000000");
    assert!(network.sent_bytes(0, "eth1") - before < 10_000, "nothing of it");
}

/// How a NIC dies in a call, on host 1.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// The system knows that its link is down.
    LinkDown,
    /// A switch loses what goes to it and comes from it; both links stay up.
    Silence,
}

/// The error of a rank whose data go over `eth1`: it names an interface, its address and the other's, and the peer.
fn must_name_the_nic(job: &Job, number: usize, what: &str) {
    let failure = job.ranks[number].failure();
    let text = &failure.text;
    eprintln!("{what}: rank {number}: {text}");
    assert_eq!(failure.kind, "Remote", "{what}: rank {number}: {text}");
    let [one, other] = ["10.78.1.1", "10.78.1.2"];
    let ends = [(one, other), (other, one)];
    let named = |(own, peer): &(&str, &str)| {
        text.contains(&format!("interface eth1 ({own})")) && text.contains(&format!("gets no answer from {peer} "))
    };
    assert!(ends.iter().any(named) && text.contains("RSCCL_NIC_TIMEOUT=3"), "{what}: rank {number}: {text}");
    assert!(text.contains(&format!("rank {}", 1 - number)), "{what}: rank {number}: {text}");
}

/// A call may take an hour: each end has its error within the patience of a test, because `RSCCL_NIC_TIMEOUT` is over.
const TIMES: &[(&str, &str)] = &[("RSCCL_NIC_TIMEOUT", "3"), ("RSCCL_TIMEOUT_MS", "3600000")];

/// Both ends have an error, long before the deadline of the call.
#[test]
fn a_nic_that_dies_is_named_at_both_ends() {
    for death in [Death::Silence, Death::LinkDown] {
        for command in ["all_reduce", "sendrecv"] {
            let Some(network) = with_rails(&[(1, &[0, 1])]) else { return };
            let mut job = job(&network, &[0, 1], TIMES);
            job.must(&format!("call {command} 1000000"));
            job.begin(&format!("repeat {command} 1000000"), |_| true);
            job.ranks.iter().for_each(|rank| rank.expect_line("turn"));
            match death {
                Death::LinkDown => network.change(1, "link set eth1 down"),
                Death::Silence => network.part_rail(1, 1),
            }
            for number in [0, 1] {
                must_name_the_nic(&job, number, &format!("{death:?} in {command}"));
            }
        }
    }
}

/// One rank waits, and the other is in no call: a receiver hears no answer to the system's probes, and a sender none to
/// what it has sent.
#[test]
fn a_rank_that_waits_alone_learns_of_a_dead_nic() {
    for (command, waits, other) in [("recv 1000000 0", 1, "send 1000000 1"), ("send 8000000 1", 0, "recv 8000000 0")] {
        let Some(network) = with_rails(&[(1, &[0, 1])]) else { return };
        let mut job = job(&network, &[0, 1], TIMES);
        job.must("ring 1000000");
        let sent = network.sent_bytes(0, "eth1");
        job.begin(command, |rank| rank == waits);
        if waits == 0 {
            // Its receiver takes nothing: what the system holds has left, and more is to be sent.
            ranks::until("something has left", || network.sent_bytes(0, "eth1") > sent + 100_000);
        }
        network.part_rail(1, 1);
        must_name_the_nic(&job, waits, command);
        // The other rank was in no call, and learns of it in its next one.
        let text = job.ranks[1 - waits].fails(other).text;
        assert!(text.contains("eth1") && text.contains("10.78.1."), "{other}: {text}");
    }
}

#[test]
fn congestion_control_is_the_user_s() {
    let Some(network) = Network::make(2) else { return };
    let mut job = job(&network, &[0, 1], &[("RSCCL_TCP_CONGESTION", "reno"), ("NCCL_DEBUG_SUBSYS", "INIT,NET")]);
    must_do_everything(&mut job);
    assert!(job.ranks[0].log().contains("congestion control reno"), "{}", job.ranks[0].log());
}

/// How many ends of data connections, of so many sockets each, rank `rank` says that it has.
fn data_ends(job: &Job, rank: usize, sockets: usize) -> usize {
    let line = format!("via NET/Socket, sockets {sockets}");
    job.ranks[rank].log().lines().filter(|told| told.contains(&line)).count()
}

/// The most connections of a rank's control plane with other hosts: those of the graph, and one for each rank there to
/// which it has sent a ticket.
fn most_of_control(far_ranks: usize) -> usize {
    6 + far_ranks
}

/// Of `hosts` hosts with `each` ranks: the most data connections that a rank has after collectives, and after messages
/// between all pairs. The kernel of each host has seen as many.
fn most_ends(hosts: usize, each: usize) -> Option<[usize; 2]> {
    let network = Network::make(hosts)?;
    let places: Vec<usize> = (0..hosts * each).map(|rank| rank / each).collect();
    let one_socket = [("NCCL_NSOCKS_PERTHREAD", "1"), ("NCCL_DEBUG_SUBSYS", "INIT,NET")];
    let mut job = job(&network, &places, &one_socket);
    let mut after = |commands: &[&str]| {
        commands.iter().for_each(|command| job.must(command));
        let ends: Vec<usize> = (0..places.len()).map(|rank| data_ends(&job, rank, 1)).collect();
        for (host, own) in ends.chunks(each).enumerate() {
            let (own, counted) = (own.iter().sum::<usize>(), network.far_connections(host));
            let most = own + each * most_of_control(places.len() - each);
            assert!((own..=most).contains(&counted), "{hosts} hosts of {each}: {counted} connections, {own} of data");
        }
        ends.into_iter().max().unwrap()
    };
    let collectives = ["all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter"];
    let collectives = collectives.map(|name| format!("call {name} 200001"));
    Some([after(&collectives.each_ref().map(String::as_str)), after(&["call all_to_all 20001", "call sendrecv 1003"])])
}

/// By one socket a connection, as each rank tells and each host's kernel counts. More ranks on a host give a rank no
/// more connections for collectives; messages take one each way for each rank of other hosts.
#[test]
fn a_rank_s_connections_grow_with_hosts_and_not_with_the_square_of_ranks() {
    // Each way, for each other host: a ring, a tree and a hierarchy at most.
    const OF_A_HOST: usize = 6;
    let mut of_two_hosts = Vec::new();
    for (hosts, each) in [(2, 2), (2, 4), (3, 2), (4, 2)] {
        let Some([collectives, messages]) = most_ends(hosts, each) else { return };
        let words = format!("{hosts} hosts of {each}: {collectives} connections for collectives, then {messages}");
        assert!(collectives <= OF_A_HOST * (hosts - 1), "{words}");
        assert!(messages <= collectives + 2 * (hosts - 1) * each, "{words}");
        if hosts == 2 {
            of_two_hosts.push(collectives);
        }
    }
    assert_eq!(of_two_hosts[0], of_two_hosts[1], "2 and 4 ranks on each of two hosts");
}

#[test]
fn a_connection_has_as_many_sockets_as_the_user_s_threads_times_sockets_of_each() {
    let Some(network) = Network::make(2) else { return };
    let six = [("NCCL_SOCKET_NTHREADS", "2"), ("NCCL_NSOCKS_PERTHREAD", "3"), ("NCCL_DEBUG_SUBSYS", "INIT,NET")];
    let mut job = job(&network, &[0, 1], &six);
    job.must("call sendrecv 1003");
    let ends = data_ends(&job, 0, 6);
    let (least, counted) = (6 * ends, network.far_connections(0));
    assert!(ends > 0 && (least..=least + most_of_control(1)).contains(&counted), "{counted} for {ends} connections");
}
