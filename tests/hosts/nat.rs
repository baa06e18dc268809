//! Hosts behind NAT: they reach others, and nobody reaches them. Who can connect does.

use std::io::Write;
use std::process::Command;

use testing::network::Network;
use testing::ranks::Job;

use crate::{job, launched, must_do_everything};

/// The outside, the router, and the host behind it.
pub(super) const OUTSIDE: usize = 0;
const ROUTER: usize = 1;
pub(super) const INSIDE: usize = 2;

fn has_nft() -> bool {
    let is_there = Command::new("nft").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        // Past the capture of a test's output.
        let mut errors = std::io::stderr();
        writeln!(errors, "skipped: NAT needs nft").unwrap();
    }
    is_there
}

/// A network with a host behind NAT. Connections inwards meet `inwards`, or no route where there is none.
pub(super) fn with_nat(inwards: Option<&str>) -> Option<Network> {
    let network = if has_nft() { Network::make(3)? } else { return None };
    network.put_behind(INSIDE, ROUTER, inwards.unwrap_or("drop"));
    if inwards.is_some() {
        network.show_way(OUTSIDE, INSIDE, ROUTER);
    }
    Some(network)
}

const LOG: (&str, &str) = ("NCCL_DEBUG_SUBSYS", "INIT,NET,BOOTSTRAP");

fn must_talk(job: &mut Job) {
    job.must("ring 3");
    job.must("ring 200000");
    must_do_everything(job);
}

/// Collectives and messages both ways, of the world and of parts of it: whatever the router does with connections inwards.
#[test]
fn a_host_that_nobody_reaches_connects_to_the_others() {
    for inwards in [Some("drop"), Some("reject with tcp reset"), None] {
        // Rank 0 is outside: the others must reach it.
        for places in [&[OUTSIDE, INSIDE][..], &[OUTSIDE, INSIDE, INSIDE, OUTSIDE]] {
            let Some(network) = with_nat(inwards) else { return };
            eprintln!("inwards {inwards:?}, ranks on {places:?}");
            let mut job = job(&network, places, &[LOG]);
            must_talk(&mut job);
            job.must("split 0");
            must_talk(&mut job);
            let told = job.ranks.iter().filter(|rank| rank.log().contains("connects to this one for data")).count();
            let outside = places.iter().filter(|place| **place == OUTSIDE).count();
            assert_eq!(told, outside, "who says that the others connect");
        }
    }
}

/// Two hosts behind NAT of their own reach the root, and not each other.
#[test]
fn where_neither_side_can_connect_the_error_names_both_addresses() {
    if !has_nft() {
        return;
    }
    let Some(network) = Network::make(5) else { return };
    for (inside, router) in [(3, 1), (4, 2)] {
        network.put_behind(inside, router, "drop");
    }
    let mut job = launched(&network, &[OUTSIDE, 3, 4], &[LOG, ("RSCCL_INIT_TIMEOUT_MS", "7000")]);
    job.begin("from_env", |_| true);
    for (rank, peer) in [(1, 2), (2, 1)] {
        let text = job.ranks[rank].failure().text;
        for address in ["10.78.3.4:", "10.78.4.5:"] {
            assert!(text.contains(address), "rank {rank}: {address} is not in: {text}");
        }
        assert!(text.contains(&format!("rank {peer}")), "rank {rank}: {text}");
    }
}

/// Several sockets a connection, of which some begin on a rail that loses everything: what is left is the way through the
/// router, which only the ranks inside can open.
#[test]
fn sockets_of_a_dead_rail_take_the_way_that_only_one_side_can_open() {
    let Some(network) = with_nat(Some("drop")) else { return };
    network.add_rail(5, &[OUTSIDE, INSIDE]);
    network.part_rail(5, INSIDE);
    let mut job = job(&network, &[OUTSIDE, INSIDE], &[LOG, ("NCCL_NSOCKS_PERTHREAD", "3")]);
    must_talk(&mut job);
    let log = job.ranks[0].log();
    for line in ["no data go to rank 1 over eth5 to 10.78.5.3:", "connects to this one for data"] {
        assert!(log.contains(line), "`{line}` is not in:\n{log}");
    }
}

#[test]
fn ranks_that_are_left_behind_nat_go_on_after_a_death() {
    // The first one of those that are left, inside or outside, is the root of what they make.
    for victim in [0, 1, 3] {
        let Some(network) = with_nat(Some("drop")) else { return };
        eprintln!("rank {victim} dies");
        let mut job = job(&network, &[OUTSIDE, INSIDE, INSIDE, OUTSIDE], &[LOG]);
        job.must("ring 3");
        job.begin("call all_reduce 300000", |rank| rank != victim);
        job.kill(victim);
        for rank in &job.ranks {
            assert_eq!(rank.failure().peer, Some(victim), "rank {}", rank.number);
        }
        job.must(&format!("shrink {victim}"));
        must_talk(&mut job);
    }
}
