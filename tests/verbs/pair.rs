//! Two machines, a rank on each. Each machine runs this test and has one rank of the job; nothing but the jobs
//! themselves joins the two.

use testing::ranks::Job;
use testing::verify::Program;

use crate::{ASKS, must_use_verbs, sh};

/// The number of this machine's rank.
fn here() -> usize {
    #![expect(clippy::disallowed_methods, reason = "which machine it is is no configuration of the library")]
    usize::from(std::env::var("RSCCL_TEST_MACHINE").as_deref() == Ok("b"))
}

/// This machine's rank of a job of two, which meets at a port of its own.
fn launched(port: &str, more: &[(&str, &str)]) -> Job {
    let number = here().to_string();
    Job::start_each(1, |_| {
        let mut variables = vec![("MASTER_ADDR", "10.9.0.1"), ("MASTER_PORT", port), ("NCCL_SOCKET_IFNAME", "=eth0")];
        variables.extend([("RANK", &*number), ("WORLD_SIZE", "2")]);
        variables.extend(ASKS);
        variables.extend(more);
        (Vec::new(), variables)
    })
}

#[test]
#[ignore = "inside a machine with soft RoCE"]
fn everything_goes_by_verbs_between_two_machines() {
    let mut job = launched("29500", &[]);
    job.must("from_env");
    for program in Program::ALL {
        job.must(&format!("call {} 1003", program.name()));
    }
    job.must("call all_reduce 50001");
    must_use_verbs(&job);
}

/// A hundredth of the packets is lost on each side. The devices send them again.
#[test]
#[ignore = "inside a machine with soft RoCE"]
fn lost_packets_are_sent_again() {
    let drops = "udp dport 4791 numgen random mod 100 == 0 counter drop";
    sh(&format!(
        "nft add table ip t; nft add chain ip t o '{{ type filter hook input priority 0; }}'; nft add rule ip t o {drops}"
    ));
    let mut job = launched("29501", &[("NCCL_IB_TIMEOUT", "12")]);
    job.must("from_env");
    for _ in 0..3 {
        job.must("call all_reduce 30001");
        job.must("ring 30000");
    }
    must_use_verbs(&job);
    let rules = sh("nft list table ip t");
    sh("nft delete table ip t");
    let lost = rules.split("counter packets ").nth(1).and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
    assert!(lost.is_some_and(|lost| lost > 0), "no packet was lost: {rules}");
}

/// The ends tell each other their queue pairs, but no machine answers for its new address.
#[test]
#[ignore = "inside a machine with soft RoCE"]
fn ports_that_do_not_reach_each_other_are_an_error_of_the_set_up() {
    let number = here() + 1;
    let address = format!("10.60.0.{number}/24");
    sh("echo 8 > /proc/sys/net/ipv4/conf/eth0/arp_ignore");
    sh(&format!("ip addr add {address} dev eth0"));
    let index = || {
        let list = sh("cd /sys/class/infiniband/rxe0/ports/1/gids; grep -l ffff:0a3c * || true");
        list.lines().next().map(str::to_owned)
    };
    let mut found = index();
    testing::ranks::until("the address has its GID", || {
        found = index();
        found.is_some()
    });
    let index = found.unwrap();
    let mut job = launched("29502", &[("NCCL_IB_GID_INDEX", &index)]);
    job.must("from_env");
    job.begin("call all_reduce 3", |_| true);
    let failure = job.ranks[0].failure();
    assert!(
        failure.text.contains("ibv_modify_qp (RTR): ") && failure.text.contains("may be out of reach of GID "),
        "{} {}",
        failure.kind,
        failure.text
    );
    sh(&format!("ip addr del {address} dev eth0"));
    sh("echo 0 > /proc/sys/net/ipv4/conf/eth0/arp_ignore");
}

/// Nobody but the control connection tells of the death, however often packets are sent again.
#[test]
#[ignore = "inside a machine with soft RoCE"]
fn a_peer_that_is_killed_on_the_other_machine_is_named() {
    for (port, retries) in [("29503", "7"), ("29504", "6")] {
        let mut job = launched(port, &[("NCCL_IB_RETRY_CNT", retries), ("NCCL_IB_TIMEOUT", "14")]);
        job.must("from_env");
        job.begin("repeat all_reduce 30000", |_| true);
        job.ranks[0].expect_line("turn");
        if here() == 0 {
            assert_eq!(job.ranks[0].failure().peer, Some(1));
        } else {
            job.kill(0);
        }
    }
}

/// The other machine hears nothing of it: its deadline ends the call, also where packets are sent again for ever.
#[test]
#[ignore = "inside a machine with soft RoCE"]
fn z_a_port_that_goes_down_is_told_on_its_own_side_and_ends_calls_at_the_deadline() {
    for (port, retries) in [("29505", "7"), ("29506", "6")] {
        let limits = [("NCCL_IB_RETRY_CNT", retries), ("NCCL_IB_TIMEOUT", "14"), ("RSCCL_TIMEOUT_MS", "4000")];
        let mut job = launched(port, &limits);
        job.must("from_env");
        job.begin("repeat all_reduce 30000", |_| true);
        job.ranks[0].expect_line("turn");
        if here() == 1 {
            sh("ip link set eth0 down");
        }
        let failure = job.ranks[0].failure();
        assert!(["Timeout", "Remote", "System"].contains(&&*failure.kind), "{} {}", failure.kind, failure.text);
        println!("{retries} retries, rank {}: {} {}", here(), failure.kind, failure.text);
        let is_told = failure.text.contains("this rank's own port is DOWN")
            || job.ranks[0].log().contains("NET/IB : port rxe0:1 has gone down");
        assert_eq!(is_told, here() == 1, "{}", job.ranks[0].log());
        if here() == 1 {
            sh("ip link set eth0 up");
        }
    }
}
