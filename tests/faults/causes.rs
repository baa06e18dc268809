//! A rank is killed at any moment of a split, `on_my_host` or a shrink. Every survivor that gets an error is
//! told which rank died, by its number in the survivor's communicator, and long before any deadline.

use crate::{NET, SHM, with};
use testing::random;
use testing::ranks::{Answer, Job};

const RANKS: usize = 4;

/// What the ranks do; `N/2` in a command is half the rank's number.
const COMMANDS: &[&str] = &["split 1", "split N/2", "local"];

/// How often each command is killed over each transport.
fn turns() -> u64 {
    random::how_many("RSCCL_TEST_KILLS", 3, 20) as u64
}

fn killed_during(command: &str, transport: &[(&str, &str)], key: &[u64]) {
    let mut luck = random::Luck::new(key);
    let victim = luck.small(RANKS);
    // Survivors once waited 5 s for a dead rank to connect: that would be a time-out here.
    let mut job =
        Job::joined(RANKS, &with(transport, &[("RSCCL_TIMEOUT_MS", "4000"), ("RSCCL_INIT_TIMEOUT_MS", "4000")]));
    for rank in &mut job.ranks {
        let half = (rank.number / 2).to_string();
        rank.say(&command.replace("N/2", &half));
    }
    job.ranks[victim].begun();
    for _ in 0..luck.below(3000) {
        std::thread::yield_now();
    }
    job.kill(victim);
    for rank in &job.ranks {
        rank.begun();
        let Answer::Error(failure) = rank.answer() else { continue };
        let what = format!("{command}, rank {} after the death of rank {victim}, {key:?}", rank.number);
        assert_eq!((failure.kind.as_str(), failure.peer), ("Remote", Some(victim)), "{what}: {}", failure.text);
        assert!(failure.text.contains(&format!("rank {victim}")), "{what}: {}", failure.text);
        assert!(!failure.text.contains("finalized"), "{what}: {}", failure.text);
    }
}

#[test]
fn killed_at_odd_moments_of_a_split() {
    let seed = random::changing_seed("faults_processes killed_at_odd_moments_of_a_split");
    for (number, command) in (0u64..).zip(COMMANDS) {
        for (transport, variables) in (0u64..).zip([SHM, NET]) {
            for turn in 0..turns() {
                killed_during(command, variables, &[seed, number, transport, turn]);
            }
        }
    }
}
