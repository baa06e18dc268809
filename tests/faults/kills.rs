//! A rank is killed in the middle of each collective, over each transport, in registered buffers too.

use super::deaths::{must_go_on, must_name};
use crate::{NET, SHM, with};
use testing::random::{self, Luck};
use testing::ranks::Job;
use testing::verify::Program;

/// One kill.
#[derive(Debug, Clone, Copy)]
struct Kill {
    program: Program,
    elements: usize,
    meeting: Meeting,
    /// The rank that dies. The last rank is the root, if the collective has one.
    victim: usize,
}

/// How the ranks reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meeting {
    /// Over shared memory.
    Shm,
    /// In each other's registered buffers.
    Registered,
    /// In each other's vectors, which are registered where they lie.
    Lying,
    /// Over sockets.
    Net,
    /// Over both: two ranks on each of two hosts.
    Hosts,
}

impl Meeting {
    fn is_registered(self) -> bool {
        matches!(self, Meeting::Registered | Meeting::Lying)
    }
}

/// A sample, another one in each run, or all of them where `RSCCL_TEST_KILLS=all`.
#[test]
fn a_kill_in_each_collective_is_told_to_all_who_are_left() {
    let mut kills = all();
    let many = random::how_many("RSCCL_TEST_KILLS", SAMPLE, kills.len());
    if many < kills.len() {
        let seed = random::changing_seed("faults_processes a_kill_in_each_collective");
        let mut luck = Luck::new(&[seed, 7]);
        // Draws kills without repetition; every transport and every collective is equally likely.
        kills = (0..many).map(|_| kills.swap_remove(luck.small(kills.len()))).collect();
        kills.extend(READING);
    }
    for kill in kills {
        run(kill);
    }
}

fn all() -> Vec<Kill> {
    let sizes = |meeting: Meeting| if meeting.is_registered() { &[60_000][..] } else { &[8, 60_000] };
    let mut kills = Vec::new();
    for program in Program::ALL.iter().copied() {
        for meeting in [Meeting::Shm, Meeting::Registered, Meeting::Lying, Meeting::Net, Meeting::Hosts] {
            // A barrier has no buffers; messages are copied through slots.
            if meeting.is_registered() && program.collective().is_none_or(|_| program == Program::Barrier) {
                continue;
            }
            for elements in sizes(meeting).iter().copied() {
                kills.extend([1, 3].map(|victim| Kill { program, elements, meeting, victim }));
            }
        }
    }
    kills
}

fn run(kill: Kill) {
    eprintln!("{kill:?}");
    let Kill { program, elements, meeting, victim } = kill;
    let variables = if meeting == Meeting::Net { NET } else { SHM };
    let host = |rank: usize| match (meeting, rank / 2) {
        (Meeting::Hosts, 0) => with(variables, &[("NCCL_HOSTID", "one")]),
        (Meeting::Hosts, _) => with(variables, &[("NCCL_HOSTID", "two")]),
        _ => variables.to_vec(),
    };
    let mut job = Job::start_each(4, |rank| (Vec::new(), host(rank)));
    let before = job.holdings();
    job.join();
    let word = match meeting {
        Meeting::Registered => "inside",
        Meeting::Lying => "lying",
        Meeting::Shm | Meeting::Net | Meeting::Hosts => "repeat",
    };
    let command = format!("{word} {} {elements}", program.name());
    job.begin(&command, |_| true);
    for _ in 0..3 {
        job.ranks[victim].expect_line("turn");
    }
    job.kill(victim);
    for rank in &job.ranks {
        must_name(victim, rank.number, &command, &rank.failure());
    }
    must_go_on(&mut job, victim, &format!("call {} {elements}", program.name()), &before);
}

/// Kills in a run of all tests, beside those of [`READING`].
const SAMPLE: usize = 8;
/// Ranks that read each other's memory by the kernel, large calls where they do not because there are two hosts, and
/// ranks in each other's vectors.
const READING: [Kill; 5] = [
    Kill { program: Program::SendRecv, elements: 60_000, meeting: Meeting::Shm, victim: 1 },
    Kill { program: Program::AllGather, elements: 60_000, meeting: Meeting::Shm, victim: 3 },
    Kill { program: Program::Broadcast, elements: 60_000, meeting: Meeting::Shm, victim: 3 },
    Kill { program: Program::Broadcast, elements: 60_000, meeting: Meeting::Hosts, victim: 1 },
    Kill { program: Program::AllReduce, elements: 60_000, meeting: Meeting::Lying, victim: 1 },
];
