//! Data between hosts by network plug-ins of NCCL's (`NCCL_NET_PLUGIN`): a stand-in in C, over TCP, that surprises its
//! callers as real ones do, and checks them.

use rsccl::internals::sys::process::Signal;
use testing::network::Network;
use testing::ranks::Job;

use crate::{job, launched, must_do_everything};

/// Hosts, and a folder with a plug-in `libnccl-net-stand-in.so` of these options.
struct Lab {
    network: Network,
    folder: tempfile::TempDir,
}

impl Lab {
    fn new(options: &[&str]) -> Option<Lab> {
        let network = Network::make(2)?;
        let folder = tempfile::Builder::new().prefix("plugin").tempdir_in("/tmp").unwrap();
        machine::net_plugin::stand_in(folder.path(), "libnccl-net-stand-in.so", options)?;
        Some(Lab { network, folder })
    }

    /// What ranks ask for that use it, and `more`.
    fn asks<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let asks = [("NCCL_NET_PLUGIN", "stand-in"), ("LD_LIBRARY_PATH", path), ("NCCL_DEBUG_SUBSYS", "INIT,NET")];
        asks.iter().chain(more).copied().collect()
    }

    fn path(&self) -> String {
        self.folder.path().to_string_lossy().into_owned()
    }

    fn job(&self, places: &[usize], more: &[(&str, &str)]) -> Job {
        job(&self.network, places, &Lab::asks(&self.path(), more))
    }
}

/// Each rank has said what it uses, and of each connection that it goes by that; the plug-in has no complaint.
fn must_use_the_plug_in(job: &Job, version: u32) {
    for rank in &job.ranks {
        let log = rank.log();
        let uses = format!("Using Stand-in of libnccl-net-stand-in.so (version {version}) on stand0");
        assert!(log.contains(&uses), "rank {}:\n{log}", rank.number);
        assert!(log.contains("via NET/plugin, ") && !log.contains("via NET/Socket"), "rank {}:\n{log}", rank.number);
        assert!(!log.contains("stand-in of a plug-in: "), "it found fault with its caller:\n{log}");
    }
}

#[test]
fn everything_goes_by_a_plug_in_of_each_version() {
    for (options, version) in
        [(&["VERSIONS=1", "AGAIN_EVERY=7"][..], 8), (&["VERSIONS=2", "LATE=2"], 11), (&["AGAIN_EVERY=3"], 12)]
    {
        let Some(lab) = Lab::new(options) else { return };
        let mut job = lab.job(&[0, 1, 1], &[]);
        must_do_everything(&mut job);
        must_use_the_plug_in(&job, version);
        // Its lines stand in ours, with their arguments; what it has set in the environment does not count.
        let log = job.ranks[0].log();
        assert!(log.contains("NET/Plugin: Stand-in starts: -7 1099511627776 x 1.50 text 9 2.5 0x10 3.5"), "{log}");
        assert!(log.contains("has set NCCL_PROTO, which is put back"), "{log}");
    }
}

#[test]
fn random_programs_go_by_a_plug_in() {
    let Some(lab) = Lab::new(&["AGAIN_EVERY=5", "LATE=1"]) else { return };
    let seed = testing::random::seed();
    eprintln!("RSCCL_TEST_SEED={seed}");
    let mut job = lab.job(&[0, 0, 1, 1], &testing::random::variables(seed));
    job.must(&format!("random {seed} 20"));
    must_use_the_plug_in(&job, 12);
}

#[test]
fn the_plug_ins_own_name_of_its_network_may_be_asked_for() {
    let Some(lab) = Lab::new(&[]) else { return };
    let mut job = lab.job(&[0, 1], &[("NCCL_NET", "STAND-IN")]);
    job.must("ring 3");
    must_use_the_plug_in(&job, 12);
    drop(job);
    let mut job = lab.job(&[0, 1], &[("NCCL_NET", "Socket")]);
    job.must("ring 3");
    for rank in &job.ranks {
        assert!(!rank.maps().contains("libnccl-net"), "rank {}: sockets need no plug-in", rank.number);
    }
}

/// Sends to it say "later" for ever, and receives never end: the control connections tell.
#[test]
fn a_killed_peer_is_named() {
    let Some(lab) = Lab::new(&[]) else { return };
    for count in [3, 200_001] {
        let mut job = lab.job(&[0, 1], &[]);
        job.begin(&format!("repeat all_reduce {count}"), |_| true);
        job.ranks[0].expect_line("turn");
        must_use_the_plug_in(&job, 12);
        job.kill(1);
        assert_eq!(job.ranks[0].failure().peer, Some(1));
    }
}

/// Its process lives, and so does its control connection: only the deadline ends the call.
#[test]
fn a_stopped_peer_is_named_at_the_deadline() {
    let Some(lab) = Lab::new(&[]) else { return };
    let mut job = lab.job(&[0, 1], &[("RSCCL_TIMEOUT_MS", "2000")]);
    job.must("ring 200000");
    job.ranks[1].signal(Signal::STOP);
    job.begin("call all_reduce 200001", |rank| rank == 0);
    let failure = job.ranks[0].failure();
    assert!(failure.kind == "Timeout" && failure.text.contains("rank 1"), "{} {}", failure.kind, failure.text);
    job.ranks[1].signal(Signal::CONTINUE);
}

#[test]
fn an_abort_ends_a_call_whose_messages_cannot_be_cancelled() {
    let Some(lab) = Lab::new(&[]) else { return };
    let mut job = lab.job(&[0, 1], &[]);
    job.must("ring 200000");
    job.begin("recv 300000 1", |rank| rank == 0);
    job.ranks[0].say("abort enough of this");
    let failure = job.ranks[0].failure();
    assert!(failure.kind == "Aborted" && failure.text.contains("enough of this"), "{} {}", failure.kind, failure.text);
}

/// Ranks that call different collectives, in which both send and receive, find that by messages over the plug-in.
#[test]
fn calls_that_do_not_match_are_told_of() {
    let Some(lab) = Lab::new(&[]) else { return };
    let mut job = lab.job(&[0, 1], &[("RSCCL_TIMEOUT_MS", "20000")]);
    job.must("ring 3");
    job.begin("call all_reduce 1003", |rank| rank == 0);
    job.begin("call all_gather 1003", |rank| rank == 1);
    for rank in &job.ranks {
        let failure = rank.failure();
        assert_eq!(failure.kind, "Mismatch", "rank {}: {}", rank.number, failure.text);
    }
}

#[test]
fn where_there_is_no_plug_in_sockets_are_used_and_users_told() {
    let Some(lab) = Lab::new(&["DEVICES=0"]) else { return };
    let mut job = lab.job(&[0, 1], &[]);
    job.must("ring 3");
    for rank in &job.ranks {
        let log = rank.log();
        let why = "NCCL_NET_PLUGIN=stand-in: libnccl-net-stand-in.so (version 12) has no devices";
        assert!(log.contains(why), "{log}");
        assert!(log.contains("; ranks of different hosts use Socket (TCP)") && log.contains("via NET/Socket"), "{log}");
    }
}

#[test]
fn a_rank_that_insists_and_has_no_plug_in_is_an_error_of_all() {
    let Some(network) = Network::make(2) else { return };
    let insists = [("NCCL_NET_PLUGIN", "nowhere"), ("NCCL_NET", "Their Net"), ("RSCCL_NET_STRICT", "1")];
    let mut job = launched(&network, &[0, 1], &insists);
    job.begin("from_env", |_| true);
    for rank in &job.ranks {
        let text = rank.failure().text;
        let why = "has not the network that it must use: NCCL_NET=Their Net, NCCL_NET_PLUGIN=nowhere: there is no";
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn ranks_of_which_one_asks_for_a_plug_in_do_not_meet() {
    let Some(lab) = Lab::new(&[]) else { return };
    let (path, numbers) = (lab.path(), ["0", "1"]);
    let mut job = Job::start_each(2, |rank| {
        let mut variables = vec![("MASTER_ADDR", "10.77.0.1"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "2")];
        variables.extend([("RANK", numbers[rank]), ("LD_LIBRARY_PATH", &*path)]);
        variables.push(("NCCL_NET_PLUGIN", ["stand-in", "none"][rank]));
        (lab.network.on(rank), variables)
    });
    job.begin("from_env", |_| true);
    for rank in &job.ranks {
        let failure = rank.failure();
        let is_told = failure.kind == "Mismatch" && failure.text.contains("NCCL_NET_PLUGIN is ");
        assert!(is_told, "{} {}", failure.kind, failure.text);
    }
}

/// A real plug-in, which `bench/plug-ins` builds, by each version of its interface: all collectives and messages, random
/// programs, an abort, a killed peer, and those that are left.
#[test]
#[ignore = "needs a real plug-in, which bench/plug-ins builds and names"]
#[expect(clippy::disallowed_methods, reason = "where the plug-in lies is no configuration of the library")]
fn everything_goes_by_the_plug_in_of_the_caller() {
    let [plug_ins, libraries] = ["RSCCL_TEST_NET_PLUGIN", "RSCCL_TEST_NET_LIBRARIES"]
        .map(|name| std::env::var(name).expect("bench/plug-ins says where the plug-ins lie"));
    let Some(network) = Network::make(2) else { return };
    for plug_in in plug_ins.split(',') {
        let asks = [
            ("NCCL_NET_PLUGIN", plug_in),
            ("LD_LIBRARY_PATH", &*libraries),
            ("FI_PROVIDER", "tcp"),
            ("NCCL_DEBUG_SUBSYS", "INIT,NET"),
        ];
        for places in [&[0, 1][..], &[0, 0, 1, 1]] {
            let mut job = job(&network, places, &asks);
            must_do_everything(&mut job);
            println!("{}: {} ranks: all programs at 1, 1003 and 200001 elements", used(&job), places.len());
        }
        let seed = testing::random::seed();
        println!("RSCCL_TEST_SEED={seed}");
        for seed in seed..seed + 4 {
            let variables = testing::random::variables(seed);
            let mut job = job(&network, &[0, 0, 1, 1], &[&asks[..], &variables].concat());
            job.must(&format!("random {seed} 20"));
            println!("{}: 4 ranks: random program {seed}", used(&job));
        }
        must_hear_of_peers(&network, &asks);
        println!("aborted, and a killed peer: told; those that are left go on");
    }
}

fn must_hear_of_peers(network: &Network, asks: &[(&str, &str)]) {
    let mut aborted = job(network, &[0, 1], asks);
    aborted.must("ring 200000");
    aborted.begin("recv 300000 1", |rank| rank == 0);
    aborted.ranks[0].say("abort enough of this");
    assert_eq!(aborted.ranks[0].failure().kind, "Aborted");
    drop(aborted);
    let mut killed = job(network, &[0, 1, 1], asks);
    killed.begin("repeat all_reduce 200001", |_| true);
    killed.ranks[0].expect_line("turn");
    used(&killed);
    killed.kill(2);
    for rank in &killed.ranks {
        assert_eq!(rank.failure().peer, Some(2));
    }
    // What is left of their connections with it does not disturb the new ones.
    for command in ["shrink 2", "call all_reduce 200001", "ring 1003", "finalize"] {
        killed.must(command);
    }
}

/// What rank 0 says it uses; no rank has used sockets.
fn used(job: &Job) -> String {
    for rank in &job.ranks {
        let log = rank.log();
        let is_used = log.contains("via NET/plugin, ") && !log.contains("via NET/Socket");
        assert!(is_used, "rank {}:\n{log}", rank.number);
    }
    let log = job.ranks[0].log();
    let uses = log.split_once("NET/plugin : Using ").and_then(|(_, rest)| rest.lines().next());
    uses.expect("it was said").to_owned()
}
