//! Many communicators of one pair of processes, each with a request that does not end: the threads, memory and
//! descriptors that they take, that nothing wakes while nothing moves, and that each goes on when its message comes.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use super::floods::ports;
use crate::{NET, SHM, with};
use rsccl::internals::sys::poller;
use rsccl::internals::sys::random::bytes;
use testing::random;
use testing::ranks::{Job, Rank, until};

/// What a process has.
#[derive(Debug, Clone, Copy)]
struct Burden {
    /// Of the library.
    threads: u64,
    files: u64,
    resident_kib: u64,
    /// How often the library's threads have slept.
    sleeps: u64,
}

impl Burden {
    fn of(rank: &mut Rank) -> Burden {
        let text = rank.must("burden");
        let numbers: Vec<u64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [threads, files, resident_kib, sleeps] = numbers[..] else { panic!("{text}") };
        Burden { threads, files, resident_kib, sleeps }
    }

    fn of_all(job: &mut Job) -> Vec<Burden> {
        job.ranks.iter_mut().map(Burden::of).collect()
    }
}

/// Of memory, for each communicator, with the page that `rsccl status` reads: 60 where there are 1,000.
const MOST_RESIDENT_KIB: u64 = 64;
/// For each communicator: the connection to the other rank, and between hosts a socket for each way. They listen at one
/// port of the process, and few descriptors need no poller.
const MOST_FILES: u64 = 3;
/// Of the threads themselves.
const LOOSE_FILES: u64 = 8;
/// A part of what is measured comes at once: an allocator takes memory in pieces.
const LOOSE_KIB: u64 = 1024;
const AT_ONCE: usize = 50;

/// Opens so many communicators and lets nothing happen for so long. What rank 0 has before and after. Each process has
/// so many threads of the library at most.
fn many((transport, threads): (&[(&str, &str)], u64), count: usize, idle: Duration) -> [Burden; 2] {
    let variables = with(transport, &[("NCCL_DEBUG", "WARN"), ("RSCCL_TIMEOUT_MS", "600000")]);
    let mut job = Job::joined(2, &variables);
    // What the first request of a process makes is made.
    job.must("many 1");
    let before = Burden::of_all(&mut job);
    for first in (0..count).step_by(AT_ONCE) {
        job.must(&format!("many {}", AT_ONCE.min(count - first)));
    }
    let after = Burden::of_all(&mut job);
    for (after, before) in after.iter().zip(&before) {
        let count = count as u64;
        assert!(after.threads <= threads, "{after:?}");
        assert!(after.files <= before.files + MOST_FILES * count + LOOSE_FILES, "{before:?}, {after:?}");
        let grown = after.resident_kib.saturating_sub(before.resident_kib);
        assert!(grown <= MOST_RESIDENT_KIB * count + LOOSE_KIB, "{before:?}, {after:?}");
    }
    let burdens = [before[0], after[0]];
    // What was begun last may take a moment to come to rest.
    until("no thread wakes", || {
        let before = Burden::of_all(&mut job);
        poller::pause(idle);
        let after = Burden::of_all(&mut job);
        after.iter().zip(&before).all(|(after, before)| after.sleeps == before.sleeps)
    });
    job.must("end_many");
    burdens
}

#[test]
fn many_communicators_share_threads_that_sleep_while_nothing_moves() {
    let count = random::how_many("RSCCL_TEST_COMMUNICATORS", 40, 1000);
    let idle = Duration::from_millis(if count < 1000 { 100 } else { 10_000 });
    // One system call waits for 127 flags: of more the thread looks at the others now and then.
    // Where it sleeps on flags, the service thread hears the sockets by which ranks learn of each other; it accepts, too.
    for (transport, threads, count) in [(NET, 2, count), (SHM, 2, count.min(100))] {
        let burdens = many((transport, threads), count, idle);
        println!("{count} communicators: {burdens:?}");
    }
}

/// A firewall lets two ports through, and one more while ranks meet.
#[test]
fn a_range_of_a_port_for_each_process_carries_fifty_communicators() {
    // Below the system's own range; another program may have one by chance, and then other ports are tried.
    let are_free = |first: &u16| {
        let free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
        (*first..*first + 3).all(free)
    };
    let from = 20_000 + u16::from_le_bytes(bytes().unwrap()) % 9_000;
    let first = (from..from + 1_000).step_by(3).find(are_free).expect("three ports are free");
    let range = format!("{first}-{}", first + 2);
    println!("ports {range}");
    let mut job = Job::joined(2, &with(NET, &[("RSCCL_PORT_RANGE", &range)]));
    job.must("many 50");
    for rank in &job.ranks {
        let ports = ports(rank);
        assert!(ports.len() == 1 && (first..first + 3).contains(&ports[0]), "{ports:?} of {range}");
    }
    job.must("end_many");
    job.must("call all_reduce 1000");
}

/// A connection has as many sockets as the settings say, for each way; a poller watches several of one.
#[test]
fn a_connection_has_the_sockets_that_threads_and_sockets_a_thread_make() {
    const COUNT: u64 = 12;
    let (threads, each) = ("NCCL_SOCKET_NTHREADS", "NCCL_NSOCKS_PERTHREAD");
    for (settings, files) in
        [(&[][..], 3), (&[(threads, "2")][..], 6), (&[(each, "3")][..], 8), (&[(threads, "2"), (each, "3")][..], 14)]
    {
        let mut job = Job::joined(2, &with(NET, settings));
        job.must("many 1");
        let before = Burden::of_all(&mut job);
        job.must(&format!("many {COUNT}"));
        for (after, before) in Burden::of_all(&mut job).iter().zip(&before) {
            let grown = after.files - before.files;
            assert!(grown.abs_diff(files * COUNT) <= LOOSE_FILES, "{settings:?}: {before:?}, {after:?}");
        }
        job.must("end_many");
    }
}
