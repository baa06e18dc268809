//! What is given back: after many rounds of making, using and ending something a rank holds what it held after a few.

use crate::{NET, SHM, with};
use testing::random;
use testing::ranks::{Job, Rank, until};

/// What a round makes, uses and ends.
const KINDS: &[(&str, Share)] = &[
    ("world", Share::Tenth),
    ("dropped", Share::Tenth),
    ("aborted", Share::Tenth),
    ("failed", Share::Tenth),
    ("split", Share::All),
    ("nonblocking", Share::All),
    ("local", Share::All),
    ("shrink", Share::All),
    ("group", Share::All),
    ("requests", Share::All),
    ("owned", Share::All),
    ("registered", Share::All),
    ("deregistered", Share::All),
    ("window", Share::All),
    ("store", Share::All),
    ("forked", Share::Tenth),
];

/// How many of the rounds: fewer of what takes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    All,
    Tenth,
}

/// Rounds before the first count: what is made once has been made then.
const FEW: usize = 10;
/// Rounds of one command, which has an answer within the patience of a test.
const AT_ONCE: usize = 50;
/// Rounds of a run, unless `RSCCL_TEST_ROUNDS` says how many.
const MANY: usize = 80;

/// What a rank holds.
#[derive(Debug, Clone, Copy)]
struct Holdings {
    files: usize,
    threads: usize,
    maps: usize,
    heap: usize,
}

impl Holdings {
    fn of(rank: &mut Rank) -> Holdings {
        let text = rank.must("held");
        let numbers: Vec<usize> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [files, threads, maps, heap] = numbers[..] else { panic!("{text}") };
        Holdings { files, threads, maps, heap }
    }

    /// Whether this is no more than `before`, but for what comes and goes.
    fn fits(&self, before: &Holdings) -> bool {
        self.files <= before.files + LOOSE_FILES
            && self.threads <= before.threads
            && self.maps <= before.maps + LOOSE_MAPS
            && self.heap <= before.heap + LOOSE_BYTES
    }
}

/// A thread that waits in the bootstrap has a descriptor for that as long as the communicator that it last waited in
/// there: of the two threads that may, one or both may have it.
const LOOSE_FILES: usize = 1;
/// Mappings of the C library's own: it keeps up to 20 stacks of ended threads, two mappings each, and arenas of the
/// heap for threads that run at the same time.
const LOOSE_MAPS: usize = 48;
/// Bytes of the heap that come and go: queues that have grown, and what each thread's cache keeps of what others have
/// freed: 50 KiB were measured after 1,000 rounds, of which half had come after 80.
const LOOSE_BYTES: usize = 96 << 10;
/// A look at all ranks takes about a millisecond; what has ended is counted for a moment.
const LOOKS: usize = 2000;

#[test]
fn what_ranks_make_is_given_back() {
    let many = random::how_many("RSCCL_TEST_ROUNDS", MANY, 1000);
    for transport in [SHM, NET] {
        let mut job = Job::joined(3, &with(transport, &[("NCCL_DEBUG", "WARN")]));
        let folder = job.folder("store");
        let threads: Vec<usize> = job.ranks.iter_mut().map(|rank| Holdings::of(rank).threads).collect();
        for (kind, share) in KINDS {
            let rounds = if *share == Share::All { many } else { many.div_ceil(10).max(FEW) };
            if *kind == "window" {
                job.must("device 0");
            }
            let mut held_after = |rounds: usize, enough: &dyn Fn(usize, &Holdings) -> bool| {
                for first in (0..rounds).step_by(AT_ONCE) {
                    job.must(&format!("rounds {kind} {} {folder}", AT_ONCE.min(rounds - first)));
                }
                let mut held = Vec::new();
                let mut looks = 0;
                until("what has ended is put away", || {
                    held = job.ranks.iter_mut().map(Holdings::of).collect();
                    looks += 1;
                    held.iter().enumerate().all(|(rank, held)| enough(rank, held)) || looks > LOOKS
                });
                held
            };
            // Roots of failed inits live for a moment; devices have threads of their own.
            let before = held_after(FEW, &|rank, held| *kind == "window" || held.threads <= threads[rank]);
            let now = held_after(rounds, &|rank, held| held.fits(&before[rank]));
            for (rank, (now, before)) in now.iter().zip(&before).enumerate() {
                println!("{kind} {rank}: {before:?}, {now:?}");
                assert!(now.fits(before), "rank {rank}, {rounds} rounds of {kind}: {now:?}, after {FEW}: {before:?}");
            }
        }
    }
}
