//! Many ranks as threads with real sockets on the loopback: `RSCCL_TEST_RANKS` (default 48) join, gather, meet and
//! part. Prints how long joining took; `cargo test --release --features cli --test bootstrap_scale -- --nocapture` shows it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use rsccl::internals::bootstrap::{Bootstrap, NetBootstrap, Options, Root, UniqueId};
use rsccl::store::{AbortFlag, Wait};
use rsccl::types::Rank;

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

#[test]
fn many_ranks_join_through_one_root_and_through_several() {
    let size = ranks();
    let before = held();
    for roots in [1, 3, 8] {
        let took = joining(size, roots.min(size));
        println!("{size} ranks joined through {roots} roots in {:.3} s", took.as_secs_f64());
    }
    // The kernel takes a moment to remove a thread that has ended.
    let wait = Wait::new(Duration::from_secs(10), &AbortFlag::new());
    while held() != before {
        wait.check(|| format!("open files and threads are left: {:?}, before {before:?}", held())).unwrap();
        std::thread::yield_now();
    }
}
