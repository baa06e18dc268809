//! Many ranks as threads with real sockets on the loopback: `RSCCL_TEST_RANKS` (default 48) join, gather, meet and
//! part. Prints how long joining took; `cargo test --release --features cli --test bootstrap_scale -- --nocapture` shows it.
//! As many, 128 at least, are communicators of which the descriptors are counted. And each of `RSCCL_TEST_PROCESSES`
//! (default 2) processes has as many ranks of one world.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rsccl::internals::bootstrap::{Bootstrap, NetBootstrap, Options, Root, UniqueId};
use rsccl::store::{AbortFlag, Wait};
use rsccl::types::Rank;
use rsccl::{Communicator, Config};

fn variable(name: &str) -> Option<String> {
    #![expect(clippy::disallowed_methods, reason = "a test's own knobs, and what it tells its processes")]
    std::env::var(name).ok()
}

fn number(name: &str, default: u32) -> u32 {
    variable(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

fn ranks() -> u32 {
    number("RSCCL_TEST_RANKS", 48)
}

fn now() -> Instant {
    #![expect(clippy::disallowed_methods, reason = "the test measures itself")]
    Instant::now()
}

fn joining(size: u32, roots: u32, root_ranks: u32) -> Duration {
    let options = Options { interfaces: "=lo".parse().unwrap(), root_ranks, ..Options::default() };
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
        let took = joining(size, roots.min(size), size);
        println!("{size} ranks joined through {roots} roots in {:.3} s", took.as_secs_f64());
    }
    // One id: the first ranks of blocks serve further roots.
    for root_ranks in [1, 5, size.div_ceil(3)] {
        let took = joining(size, 1, root_ranks);
        println!("{size} ranks joined by one id with {root_ranks} a root in {:.3} s", took.as_secs_f64());
    }
    // Threads of a test before may have been ending when this one began to count.
    let is_back = |(files, threads)| files == before.0 && threads <= before.1;
    await_held(is_back, &format!("open files and threads are left, before {before:?}"));
}

/// Six connections with neighbours at most, and a poller. All listen at the port of the process.
const MOST_DESCRIPTORS: usize = 7;

/// With a second connection to a neighbour that has not connected in time: where thousands of ranks share the processors
/// a few have one.
const MOST_OF_A_BUSY_RANK: usize = MOST_DESCRIPTORS + 1;

/// What the process holds beside its ranks: the memory of their pages.
const SHARED_DESCRIPTORS: usize = 8;

#[test]
fn a_communicator_has_at_most_seven_descriptors_before_its_first_call() {
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

/// How long 4,096 ranks may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// One process of the test below: `RSCCL_TEST_RANKS` ranks from `RSCCL_TEST_FIRST` on join when it is told to, and leave
/// when it is told to.
#[test]
#[ignore = "one process of the job that the test of this file starts: alone it is no test"]
fn process_of_ranks() {
    let Some(ids) = variable("RSCCL_TEST_IDS") else { return };
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
    let id = |hex: &str| UniqueId::from_bytes(&hex.as_bytes().chunks(2).map(byte).collect::<Vec<_>>()).unwrap();
    let ids: Vec<UniqueId> = ids.split(',').map(id).collect();
    let (first, world, size) = (number("RSCCL_TEST_FIRST", 0), number("RSCCL_TEST_WORLD", 0), ranks());
    let config = Config::default().with_socket_interfaces("lo").with_init_timeout(PATIENCE);
    let [begun, joined, left] = [(); 3].map(|()| Barrier::new(size as usize + 1));
    let (ids, config, barriers) = (&ids, &config, (&begun, &joined, &left));
    let mut orders = std::io::stdin().lines();
    let before = held();
    std::thread::scope(|scope| {
        for rank in first..first + size {
            let body = move || {
                let (begun, joined, left) = barriers;
                begun.wait();
                let outcome = Communicator::init_scalable(ids, rank, world, config);
                joined.wait();
                left.wait();
                outcome.unwrap().finalize().unwrap();
            };
            std::thread::Builder::new().stack_size(512 << 10).spawn_scoped(scope, body).unwrap();
        }
        println!("\nready");
        orders.next().unwrap().unwrap();
        begun.wait();
        joined.wait();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().split_whitespace().next();
        println!("\njoined {} {}", held().0 - before.0, most.unwrap());
        orders.next().unwrap().unwrap();
        left.wait();
    });
    println!("\nleft");
}

/// A process of the job, which ends with the test whatever happens.
struct Process(Child, Lines<BufReader<ChildStdout>>);

impl Process {
    fn start(ids: &str, (first, world, ranks): (u32, u32, u32)) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["process_of_ranks", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env("RSCCL_TEST_IDS", ids)
            .env("RSCCL_TEST_FIRST", first.to_string())
            .env("RSCCL_TEST_WORLD", world.to_string())
            .env("RSCCL_TEST_RANKS", ranks.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Process(child, lines)
    }

    fn tell(&mut self) {
        self.0.stdin.as_mut().unwrap().write_all(b"go on\n").unwrap();
    }

    /// The numbers behind the line that begins with `word`. The process ends by the deadline of init, so this ends.
    fn says(&mut self, word: &str) -> Vec<usize> {
        let line = self.1.by_ref().map(Result::unwrap).find(|line| line.starts_with(word));
        let line = line.unwrap_or_else(|| panic!("the process has ended before it was {word}"));
        line.split_whitespace().skip(1).map(|number| number.parse().unwrap()).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.0.kill();
        let _status = self.0.wait();
    }
}

#[test]
fn ranks_of_several_processes_join_through_roots_of_at_most_1024_ranks() {
    const MOST_OF_A_ROOT: u32 = 1024;
    let _alone = alone();
    let (processes, ranks) = (number("RSCCL_TEST_PROCESSES", 2), ranks());
    let world = processes * ranks;
    let config = Config::default().with_socket_interfaces("lo").with_init_timeout(PATIENCE);
    let hex = |id: UniqueId| id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let roots = world.div_ceil(MOST_OF_A_ROOT);
    let ids: Vec<String> = (0..roots).map(|_| hex(Communicator::unique_id(&config).unwrap())).collect();
    let start = |process| Process::start(&ids.join(","), (process * ranks, world, ranks));
    let mut all: Vec<Process> = (0..processes).map(start).collect();
    all.iter_mut().for_each(|process| drop(process.says("ready")));
    let begun = now();
    all.iter_mut().for_each(Process::tell);
    let held: Vec<Vec<usize>> = all.iter_mut().map(|process| process.says("joined")).collect();
    let took = begun.elapsed();
    let most = |place: usize| held.iter().map(|told| told[place]).max().unwrap();
    println!(
        "{world} ranks of {processes} processes joined through {roots} roots in {:.3} s; at most {} descriptors and \
         {} KiB a process",
        took.as_secs_f64(),
        most(0),
        most(1)
    );
    assert!(most(0) <= MOST_OF_A_BUSY_RANK * ranks as usize + SHARED_DESCRIPTORS, "{held:?}");
    all.iter_mut().for_each(Process::tell);
    all.iter_mut().for_each(|process| drop(process.says("left")));
}
