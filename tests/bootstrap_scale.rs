//! Many ranks as threads with real sockets on the loopback: `RSCCL_TEST_RANKS` (default 48) join, gather, meet and
//! part. Prints how long joining took; `cargo test --release --features cli --test bootstrap_scale -- --nocapture` shows it.
//! As many, 128 at least, are communicators of which the descriptors are counted.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rsccl::internals::bootstrap::{Bootstrap, NetBootstrap, Options, Root, UniqueId};
use rsccl::store::{AbortFlag, Wait};
use rsccl::types::Rank;
use rsccl::{Communicator, Config};

fn ranks() -> u32 {
    #![expect(clippy::disallowed_methods, reason = "a test's own knob")]
    std::env::var("RSCCL_TEST_RANKS").map_or(48, |text| text.parse().expect("RSCCL_TEST_RANKS is a number"))
}

fn now() -> Instant {
    #![expect(clippy::disallowed_methods, reason = "the test measures itself")]
    Instant::now()
}

fn joining(size: u32, roots: u32) -> Duration {
    let options = Options { interfaces: "=lo".parse().unwrap(), ..Options::default() };
    let served: Vec<(UniqueId, Root)> = (0..roots).map(|_| Root::serve(&options).unwrap()).collect();
    let ids: Vec<UniqueId> = served.iter().map(|(id, _)| *id).collect();
    let begun = Barrier::new(size as usize + 1);
    let joined = Barrier::new(size as usize + 1);
    let (ids, options, begun, joined) = (&ids, &options, &begun, &joined);
    std::thread::scope(|scope| {
        for rank in (0..size).map(Rank::new) {
            let body = move || {
                let wait = Wait::new(Duration::from_secs(60), &AbortFlag::new());
                begun.wait();
                let outcome = NetBootstrap::join(ids, rank, size, options, &wait);
                joined.wait();
                let bootstrap = outcome.unwrap();
                let all = bootstrap.all_gather(&rank.get().to_le_bytes(), &wait).unwrap();
                assert!(all.iter().zip(0u32..).all(|(bytes, rank)| *bytes == rank.to_le_bytes()));
                bootstrap.barrier(&wait).unwrap();
                bootstrap.close();
            };
            std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, body).unwrap();
        }
        begun.wait();
        let start = now();
        joined.wait();
        start.elapsed()
    })
}

/// What this process holds: open files and threads.
fn held() -> (usize, usize) {
    let count = |folder: &str| std::fs::read_dir(folder).unwrap().count();
    (count("/proc/self/fd"), count("/proc/self/task"))
}

/// Waits until what this process holds is as `is_expected` says: the kernel takes a moment to remove a thread that has
/// ended, and a root one to close its connections.
fn await_held(is_expected: impl Fn((usize, usize)) -> bool, words: &str) {
    let wait = Wait::new(Duration::from_secs(10), &AbortFlag::new());
    while !is_expected(held()) {
        wait.check(|| format!("{words}: {:?}", held())).unwrap();
        std::thread::yield_now();
    }
}

/// The tests count what their process holds, so they take turns.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn many_ranks_join_through_one_root_and_through_several() {
    let _alone = alone();
    let size = ranks();
    let before = held();
    for roots in [1, 3, 8] {
        let took = joining(size, roots.min(size));
        println!("{size} ranks joined through {roots} roots in {:.3} s", took.as_secs_f64());
    }
    // Threads of a test before may have been ending when this one began to count.
    let is_back = |(files, threads)| files == before.0 && threads <= before.1;
    await_held(is_back, &format!("open files and threads are left, before {before:?}"));
}

/// Six connections with neighbours at most, a listener and a poller.
const MOST_DESCRIPTORS: usize = 8;

/// What the process holds beside its ranks: the memory of their pages.
const SHARED_DESCRIPTORS: usize = 8;

#[test]
fn a_communicator_has_at_most_eight_descriptors_before_its_first_call() {
    let _alone = alone();
    let size = ranks().max(128);
    let config = Config::default().with_socket_interfaces("lo");
    let id = Communicator::unique_id(&config).unwrap();
    // The root's listener and poller count too: they end once all have come.
    let before = held();
    let (begun, counted) = (Barrier::new(size as usize + 1), Barrier::new(size as usize + 1));
    let (id, config, begun, counted) = (&id, &config, &begun, &counted);
    std::thread::scope(|scope| {
        for rank in 0..size {
            let body = move || {
                let joined = Communicator::init(id, rank, size, config);
                begun.wait();
                counted.wait();
                joined.unwrap().finalize().unwrap();
            };
            std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, body).unwrap();
        }
        begun.wait();
        let most = before.0 + MOST_DESCRIPTORS * size as usize + SHARED_DESCRIPTORS;
        let told = std::panic::catch_unwind(|| {
            await_held(|(files, _)| files <= most, &format!("{size} ranks hold more than {most} open files"));
            println!("{size} ranks hold {} descriptors before their first call", held().0 - before.0);
        });
        // Otherwise the ranks would wait for ever.
        counted.wait();
        told.unwrap();
    });
}
