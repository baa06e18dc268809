//! Encryption between hosts (`RSCCL_ENCRYPT`), with a recorder on the network in between.

use testing::network::Network;
use testing::ranks::Job;

use super::nat::{INSIDE, OUTSIDE, with_nat};
use crate::{job, launched, must_do_everything};

/// What a rank says on the control plane, for the recorder to find.
const WORDS: &str = "these words are for the ranks alone";

/// Ranks that do `work`, send each other messages, and end by an abort with [`WORDS`]; what was recorded meanwhile.
fn recorded(network: &Network, places: &[usize], value: &str, work: fn(&mut Job)) -> Vec<u8> {
    let recorder = network.record();
    let mut job = job(network, places, &[("RSCCL_ENCRYPT", value)]);
    work(&mut job);
    job.must("ring 3");
    job.must("ring 200000");
    job.begin("call all_reduce 3", |rank| rank > 0);
    job.begin("recv 3 1", |rank| rank == 0);
    job.ranks[0].say(&format!("abort {WORDS}"));
    for rank in job.others(0) {
        assert!(rank.failure().text.contains(WORDS), "rank {}", rank.number);
    }
    recorder.end()
}

/// Whether it holds the numbers of the ring's messages.
fn shows_numbers(seen: &[u8]) -> bool {
    assert!(seen.len() > 1_000_000, "{} bytes", seen.len());
    let numbers = 1.5f32.to_le_bytes().repeat(8);
    seen.windows(numbers.len()).any(|window| window == numbers)
}

fn shows_words(seen: &[u8]) -> bool {
    seen.windows(WORDS.len()).any(|window| window == WORDS.as_bytes())
}

#[test]
fn a_recorder_sees_nothing_of_any_collective_nor_of_what_ranks_say() {
    let Some(network) = Network::make(2) else { return };
    for (value, is_plain) in [("0", true), ("1", false), ("ChaCha20", false)] {
        let seen = recorded(&network, &[0, 1, 1], value, must_do_everything);
        assert_eq!((shows_numbers(&seen), shows_words(&seen)), (is_plain, is_plain), "RSCCL_ENCRYPT={value}");
    }
}

#[test]
fn several_sockets_and_random_programs() {
    let Some(network) = Network::make(2) else { return };
    let seed = testing::random::seed();
    eprintln!("RSCCL_TEST_SEED={seed}");
    let mut variables = testing::random::variables(seed).to_vec();
    variables.extend([("RSCCL_ENCRYPT", "1"), ("NCCL_NSOCKS_PERTHREAD", "3")]);
    let mut job = job(&network, &[0, 0, 1, 1], &variables);
    job.must("call sendrecv 4000000");
    job.must(&format!("random {seed} 20"));
}

/// Connections that the receiver opens, since the sender does not reach it, are encrypted as well.
#[test]
fn a_recorder_sees_nothing_where_one_side_alone_can_connect() {
    let Some(network) = with_nat(Some("drop")) else { return };
    for (value, is_plain) in [("0", true), ("1", false)] {
        // The recorder sees each packet on two networks.
        let seen = recorded(&network, &[OUTSIDE, INSIDE, INSIDE], value, |job| job.must("call all_reduce 1003"));
        assert_eq!((shows_numbers(&seen), shows_words(&seen)), (is_plain, is_plain), "RSCCL_ENCRYPT={value}");
    }
}

#[test]
fn a_killed_peer_is_named() {
    let Some(network) = Network::make(2) else { return };
    for value in ["1", "ChaCha20"] {
        let mut job = job(&network, &[0, 1], &[("RSCCL_ENCRYPT", value)]);
        job.begin("repeat all_reduce 200001", |_| true);
        job.ranks[0].expect_line("turn");
        job.kill(1);
        assert_eq!(job.ranks[0].failure().peer, Some(1));
    }
}

/// Neither says a word in the clear to the other, and each knows why.
#[test]
fn ranks_whose_settings_differ_do_not_meet() {
    let Some(network) = Network::make(2) else { return };
    let numbers = ["0", "1", "2"];
    let mut job = Job::start_each(3, |rank| {
        let mut variables = vec![("MASTER_ADDR", "10.77.0.1"), ("MASTER_PORT", "29500"), ("WORLD_SIZE", "3")];
        variables.extend([("RANK", numbers[rank]), ("RSCCL_ENCRYPT", ["1", "1", "0"][rank])]);
        (network.on(rank % 2), variables)
    });
    job.begin("from_env", |_| true);
    for rank in &job.ranks {
        let failure = rank.failure();
        let is_told =
            ["is 1 on rank 0 and 0 on rank 2", "is 1 on rank 1 and 0 on rank 2", "is 0 on rank 2 and 1 on rank"]
                .iter()
                .any(|words| failure.text.contains(&format!("RSCCL_ENCRYPT {words}")));
        assert!(is_told && failure.kind == "Mismatch", "rank {}: {} {}", rank.number, failure.kind, failure.text);
    }
}

/// The id comes over an encrypted connection, too, from a store that rank 0 serves; a split and a shrink are encrypted.
#[test]
fn children_are_encrypted() {
    let Some(network) = Network::make(2) else { return };
    let mut job = launched(&network, &[0, 1, 0, 1], &[("RSCCL_ENCRYPT", "1")]);
    let recorder = network.record();
    job.must("from_env");
    job.begin("split 0", |rank| rank < 2);
    job.begin("split 1", |rank| rank >= 2);
    for rank in &job.ranks {
        rank.success("split");
    }
    job.must("ring 200000");
    let seen = recorder.end();
    assert!(!shows_numbers(&seen));
}
