//! Data between hosts by libfabric (`NCCL_NET=libfabric`), over its provider for TCP, which every machine has.

use std::io::{Write, stderr};
use std::process::Command;

use rsccl::internals::sys::process::Signal;
use testing::network::Network;
use testing::ranks::Job;

use crate::{job, launched, must_do_everything};

/// Ranks that ask for libfabric, and log by what connections go.
const ASKS: [(&str, &str); 2] = [("NCCL_NET", "libfabric"), ("NCCL_DEBUG_SUBSYS", "INIT,NET")];

/// Hosts, where this machine has libfabric too.
fn network() -> Option<Network> {
    let known = Command::new("ldconfig")
        .arg("-p")
        .output()
        .is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("libfabric.so.1"));
    if !known {
        // Past the capture of tests, so that it is seen.
        stderr().write_all(b"skipped: this machine has no libfabric (Debian: libfabric1)\n").unwrap();
        return None;
    }
    Network::make(2)
}

/// Each rank has said what it uses, and of each connection that it goes by that.
pub(super) fn must_use_libfabric(job: &Job) {
    for rank in &job.ranks {
        let log = rank.log();
        assert!(log.contains("NET/libfabric : Using "), "rank {}:\n{log}", rank.number);
        assert!(log.contains("via NET/libfabric, ") && !log.contains("via NET/Socket"), "rank {}:\n{log}", rank.number);
    }
}

#[test]
fn everything_goes_by_libfabric() {
    let Some(network) = network() else { return };
    for places in [&[0, 1][..], &[0, 0, 1, 1]] {
        let mut job = job(&network, places, &ASKS);
        must_do_everything(&mut job);
        job.must("ring 3");
        job.must("call sendrecv 4000001");
        must_use_libfabric(&job);
    }
}

#[test]
fn everything_goes_by_the_tcp_of_release_2() {
    let Some(network) = Network::make(2) else { return };
    let Some(newer) = machine::libfabric::of_mpich() else { return };
    let folder = newer.parent().unwrap().to_string_lossy().into_owned();
    let mut job = job(&network, &[0, 1, 1], &[ASKS[0], ASKS[1], ("LD_LIBRARY_PATH", &folder)]);
    must_do_everything(&mut job);
    job.must("call sendrecv 4000001");
    must_use_libfabric(&job);
    for rank in &job.ranks {
        assert!(rank.log().contains("Using tcp of libfabric 2."), "{}", rank.log());
    }
}

/// The first region of a rank is for greetings, the next one is a connection's.
#[test]
fn a_registration_that_is_refused_ends_the_call_of_all_ranks_with_its_name() {
    let Some((network, folder)) = stand_in(&["FAIL_CALL=\"mr_reg\"", "FAIL_AT=2", "FAIL_FOR=1000"]) else { return };
    let path = folder.path().to_string_lossy().into_owned();
    let mut job = job(&network, &[0, 1], &[ASKS[0], ASKS[1], ("LD_LIBRARY_PATH", &path)]);
    job.begin("call all_reduce 200001", |_| true);
    for rank in &job.ranks {
        let text = rank.failure().text;
        assert!(text.contains("fi_mr_reg: Cannot allocate memory"), "rank {}: {text}", rank.number);
    }
}

#[test]
fn only_ranks_that_ask_for_libfabric_load_it() {
    let Some(network) = network() else { return };
    let all: [(&[(&str, &str)], bool); 4] =
        [(&[], false), (&[("NCCL_NET", "Socket")], false), (&[("NCCL_NET", "IB")], false), (&ASKS, true)];
    for (variables, is_loaded) in all {
        let mut job = job(&network, &[0, 1], variables);
        job.must("ring 3");
        for rank in &job.ranks {
            assert_eq!(rank.maps().contains("/libfabric.so"), is_loaded, "{variables:?}, rank {}", rank.number);
        }
    }
}

/// Hosts, and the folder of a stand-in with these options.
pub(super) fn stand_in(options: &[&str]) -> Option<(Network, tempfile::TempDir)> {
    let network = Network::make(2)?;
    let folder = tempfile::Builder::new().prefix("ofi").tempdir_in("/tmp").unwrap();
    machine::libfabric::stand_in(folder.path(), options)?;
    Some((network, folder))
}

/// The stand-in asks for memory that is registered with the endpoint and has its pages, says "later", completes out of
/// order and has no descriptor; and it checks that its caller does as it asks.
#[test]
fn everything_goes_by_a_nic_that_asks_for_what_hardware_asks() {
    let Some((network, folder)) = stand_in(&["REORDER=1", "AGAIN_EVERY=7"]) else { return };
    let path = folder.path().to_string_lossy().into_owned();
    let mut job = job(&network, &[0, 1, 1], &[ASKS[0], ASKS[1], ("LD_LIBRARY_PATH", &path)]);
    must_do_everything(&mut job);
    must_use_libfabric(&job);
    for rank in &job.ranks {
        let log = rank.log();
        assert!(log.contains("Using cxi of libfabric 2.6 on cxi0"), "{log}");
        assert!(!log.contains("stand-in of libfabric: "), "it found fault with its caller:\n{log}");
        assert!(
            !log.contains("stand-in: a long send"),
            "more than a chunk went from memory that is not registered:\n{log}"
        );
    }
}

/// One that takes any memory is lent that of programs, and gives it back when its messages are done, in whatever order,
/// or its endpoint is closed.
#[test]
fn long_messages_go_straight_by_a_nic_that_takes_any_memory() {
    let Some((network, folder)) = stand_in(&["MODES=0", "REORDER=1", "AGAIN_EVERY=7"]) else { return };
    let path = folder.path().to_string_lossy().into_owned();
    let asks = [ASKS[0], ASKS[1], ("LD_LIBRARY_PATH", &path)];
    let mut job = job(&network, &[0, 1, 1], &asks);
    must_do_everything(&mut job);
    job.must("ring 200000");
    job.must("call sendrecv 4000001");
    must_use_libfabric(&job);
    for rank in &job.ranks {
        let log = rank.log();
        assert!(!log.contains("stand-in of libfabric: "), "it found fault with its caller:\n{log}");
        assert!(log.contains("stand-in: a long send"), "nothing went straight:\n{log}");
    }
    must_name_a_killed_peer(&network, &asks);
    must_end_by_an_abort(&network, &asks);
}

/// Native TCP of release 1.17 is called `net`, that of release 2 is `tcp`.
#[test]
fn hosts_with_two_releases_of_libfabric_talk_by_native_tcp() {
    let Some(network) = network() else { return };
    let Some(newer) = machine::libfabric::of_mpich() else { return };
    let folder = newer.parent().unwrap().to_string_lossy().into_owned();
    let numbers = ["0", "1"];
    let mut job = Job::start_each(2, |rank| {
        let mut variables = vec![("MASTER_ADDR", "10.77.0.1"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2")];
        variables.push(("RANK", numbers[rank]));
        variables.extend(ASKS);
        if rank == 1 {
            variables.push(("LD_LIBRARY_PATH", &folder));
        }
        (network.on(rank), variables)
    });
    job.must("from_env");
    must_do_everything(&mut job);
    must_use_libfabric(&job);
    assert!(job.ranks[1].log().contains("Using tcp of libfabric 2."), "{}", job.ranks[1].log());
}

#[test]
fn random_programs_go_by_libfabric() {
    let Some(network) = network() else { return };
    let seed = testing::random::seed();
    eprintln!("RSCCL_TEST_SEED={seed}");
    let mut variables = testing::random::variables(seed).to_vec();
    variables.extend(ASKS);
    let mut job = job(&network, &[0, 0, 1, 1], &variables);
    job.must(&format!("random {seed} 20"));
    must_use_libfabric(&job);
}

/// libfabric tells nobody of a killed peer: the control connections do.
#[test]
fn a_killed_peer_is_named() {
    let Some(network) = network() else { return };
    must_name_a_killed_peer(&network, &ASKS);
}

/// The stand-in has no descriptor: whoever waits for it polls.
#[test]
fn a_killed_peer_is_named_and_an_abort_ends_calls_where_a_nic_has_no_descriptor() {
    let Some((network, folder)) = stand_in(&["REORDER=1"]) else { return };
    let path = folder.path().to_string_lossy().into_owned();
    let asks = [ASKS[0], ASKS[1], ("LD_LIBRARY_PATH", &path)];
    must_name_a_killed_peer(&network, &asks);
    must_end_by_an_abort(&network, &asks);
}

fn must_name_a_killed_peer(network: &Network, asks: &[(&str, &str)]) {
    for count in [3, 200_001] {
        let mut job = job(network, &[0, 1], asks);
        job.begin(&format!("repeat all_reduce {count}"), |_| true);
        job.ranks[0].expect_line("turn");
        must_use_libfabric(&job);
        job.kill(1);
        assert_eq!(job.ranks[0].failure().peer, Some(1));
    }
}

/// Its process lives, and so does its control connection: only the deadline ends the call.
#[test]
fn a_stopped_peer_is_named_at_the_deadline() {
    let Some(network) = network() else { return };
    let mut job = job(&network, &[0, 1], &[ASKS[0], ASKS[1], ("RSCCL_TIMEOUT_MS", "2000")]);
    job.must("ring 200000");
    job.ranks[1].signal(Signal::STOP);
    job.begin("call all_reduce 200001", |rank| rank == 0);
    let failure = job.ranks[0].failure();
    assert!(failure.kind == "Timeout" && failure.text.contains("rank 1"), "{} {}", failure.kind, failure.text);
    must_use_libfabric(&job);
    job.ranks[1].signal(Signal::CONTINUE);
}

#[test]
fn an_abort_ends_a_call_whose_messages_cannot_be_cancelled() {
    let Some(network) = network() else { return };
    must_end_by_an_abort(&network, &ASKS);
}

fn must_end_by_an_abort(network: &Network, asks: &[(&str, &str)]) {
    let mut job = job(network, &[0, 1], asks);
    job.must("ring 200000");
    job.begin("recv 300000 1", |rank| rank == 0);
    job.ranks[0].say("abort enough of this");
    let failure = job.ranks[0].failure();
    assert!(failure.kind == "Aborted" && failure.text.contains("enough of this"), "{} {}", failure.kind, failure.text);
}

/// `FI_PROVIDER` leaves none that will do.
const NO_PROVIDER: (&str, &str) = ("FI_PROVIDER", "udp");

#[test]
fn where_libfabric_has_nothing_sockets_are_used_and_users_told() {
    let Some(network) = network() else { return };
    let mut job = job(&network, &[0, 1], &[ASKS[0], ASKS[1], NO_PROVIDER]);
    job.must("ring 3");
    for rank in &job.ranks {
        let log = rank.log();
        assert!(log.contains("NCCL_NET=libfabric: "), "{log}");
        assert!(log.contains("; ranks of different hosts use Socket (TCP)") && log.contains("via NET/Socket"), "{log}");
        assert!(!log.contains("NET/libfabric"), "{log}");
    }
}

#[test]
fn a_rank_that_insists_and_has_nothing_is_an_error_of_all() {
    let Some(network) = network() else { return };
    let mut job = launched(&network, &[0, 1], &[ASKS[0], NO_PROVIDER, ("RSCCL_NET_STRICT", "1")]);
    job.begin("from_env", |_| true);
    for rank in &job.ranks {
        let text = rank.failure().text;
        assert!(text.contains("has not the network that it must use: NCCL_NET=libfabric: "), "{text}");
    }
}

#[test]
fn ranks_that_ask_for_different_networks_do_not_meet() {
    let Some(network) = network() else { return };
    let numbers = ["0", "1"];
    let mut job = Job::start_each(2, |rank| {
        let mut variables = vec![("MASTER_ADDR", "10.77.0.1"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2")];
        variables.extend([("RANK", numbers[rank]), ("NCCL_NET", ["libfabric", "Socket"][rank])]);
        (network.on(rank), variables)
    });
    job.begin("from_env", |_| true);
    for rank in &job.ranks {
        let failure = rank.failure();
        assert!(
            failure.kind == "Mismatch" && failure.text.contains("NCCL_NET is "),
            "{} {}",
            failure.kind,
            failure.text
        );
    }
}
