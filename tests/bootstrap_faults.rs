//! What goes wrong while ranks find each other: each case ends within its deadline, with an error that names what and
//! who.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use rsccl::error::{Error, Kind};
use rsccl::internals::bootstrap::{Bootstrap, NetBootstrap, Options, Root, SharedSecret, UniqueId};
use rsccl::store::{AbortFlag, Wait};
use rsccl::types::Rank;

fn within(seconds: f64) -> Wait {
    Wait::new(Duration::from_secs_f64(seconds), &AbortFlag::new())
}

fn options() -> Options {
    Options { interfaces: "=lo".parse().unwrap(), retry_sleep: Duration::from_millis(20), ..Options::default() }
}

fn now() -> Instant {
    #![expect(clippy::disallowed_methods, reason = "the test measures itself")]
    Instant::now()
}

/// Joins as each of `ranks` (number, world) on its own thread; the outcomes in order.
fn join(ids: &[UniqueId], ranks: &[(u32, u32)], seconds: f64) -> Vec<Result<NetBootstrap, Error>> {
    join_by(&options(), ids, ranks, seconds)
}

fn join_by(
    options: &Options,
    ids: &[UniqueId],
    ranks: &[(u32, u32)],
    seconds: f64,
) -> Vec<Result<NetBootstrap, Error>> {
    let join = |(rank, world)| NetBootstrap::join(ids, Rank::new(rank), world, options, &within(seconds));
    std::thread::scope(|scope| {
        let join = &join;
        let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(move || join(*rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn meet(world: Vec<Result<NetBootstrap, Error>>) {
    std::thread::scope(|scope| {
        for rank in world {
            scope.spawn(move || {
                let rank = rank.unwrap();
                rank.barrier(&within(30.0)).unwrap();
                rank.close();
            });
        }
    });
}

/// A world whose ranks check in by four roots, of which rank 0's process serves the first.
#[test]
fn a_rank_that_serves_a_further_root_and_does_not_come_is_named() {
    let few = Options { root_ranks: 2, ..options() };
    let (id, _root) = Root::serve(&few).unwrap();
    let told = join_by(&few, &[id], &[(0, 7), (1, 7), (4, 7), (2, 7), (3, 7), (6, 7)], 2.0);
    let told: Vec<String> = told.into_iter().map(|outcome| outcome.unwrap_err().to_string()).collect();
    // Blocks begin at ranks 0, 1, 3 and 5.
    for text in &told {
        assert!(text.contains("ranks 5-6 of 7 never came"), "{told:#?}");
        assert!(text.contains("1 rank waits for rank 5, in whose process it checks in"), "{told:#?}");
    }
    // All come, by another id.
    let (id, _root) = Root::serve(&few).unwrap();
    let all: Vec<(u32, u32)> = (0..7).map(|rank| (rank, 7)).collect();
    meet(join_by(&few, &[id], &all, 30.0));
}

/// Regression: all other blocks were told that the first rank of the block had died, which had only heard what its own
/// root gave up for.
#[test]
fn a_rank_that_a_further_root_misses_is_named_to_the_ranks_of_all_blocks() {
    let few = Options { root_ranks: 2, ..options() };
    let (id, _root) = Root::serve(&few).unwrap();
    let (few, ids) = (&few, &[id]);
    std::thread::scope(|scope| {
        // Blocks begin at ranks 0, 1, 3 and 5. Rank 4 does not come, and rank 3 has less time than the others.
        let threads = [0, 1, 2, 3, 5, 6].map(|rank| {
            let seconds = if rank == 3 { 1.5 } else { 25.0 };
            scope.spawn(move || NetBootstrap::join(ids, Rank::new(rank), 7, few, &within(seconds)).unwrap_err())
        });
        for error in threads.map(|thread| thread.join().unwrap()) {
            assert_eq!(error.kind(), Kind::Timeout, "{error}");
            assert!(error.to_string().contains("rank 4 of 7 never came"), "{error}");
        }
    });
}

/// Regression: no root heard of both, and each rank waited in vain for ranks that had come; and then those were told
/// that did not come first, and no other.
#[test]
fn ranks_of_different_blocks_that_were_given_different_ids_are_told_so() {
    let few = Options { root_ranks: 2, ..options() };
    let (a, _root_a) = Root::serve(&few).unwrap();
    let (b, _root_b) = Root::serve(&few).unwrap();
    let (one, both, few) = ([a], [a, b], &few);
    std::thread::scope(|scope| {
        // Blocks begin at ranks 0 and 2.
        let threads = [(0, &one[..]), (1, &one[..]), (2, &both[..]), (3, &one[..])].map(|(rank, ids)| {
            scope.spawn(move || NetBootstrap::join(ids, Rank::new(rank), 4, few, &within(4.0)).unwrap_err())
        });
        let errors = threads.map(|thread| thread.join().unwrap());
        let told = |error: &Error| error.to_string().contains("ranks disagree about the unique ids");
        // If rank 2 comes first it waits at a root of its own.
        assert!([0, 1, 3].into_iter().all(|rank: usize| told(&errors[rank])), "{errors:?}");
        assert!(errors.iter().any(|error| error.kind() == Kind::Mismatch), "{errors:?}");
    });
}

#[test]
fn impossible_ranks_worlds_and_ids_are_errors_of_the_caller() {
    let (id, _root) = Root::serve(&options()).unwrap();
    let fails = |ids: &[UniqueId], rank, world, words: &str| {
        let error = NetBootstrap::join(ids, Rank::new(rank), world, &options(), &within(5.0)).unwrap_err();
        assert_eq!((error.kind(), error.rank()), (Kind::InvalidArgument, Some(rank)));
        assert!(error.to_string().contains(words), "{error}");
    };
    fails(&[id], 4, 4, "rank 4 is out of range: the world has 4 ranks");
    fails(&[id], 0, 0, "the world must have 1 to 1048576 ranks, got 0");
    fails(&[id], 0, u32::MAX, "ranks, got 4294967295");
    fails(&[], 0, 2, "needs 1 to 2 unique ids, got 0");
    fails(&[id, id, id], 0, 2, "needs 1 to 2 unique ids, got 3");
    fails(&[id, id], 0, 2, "is given twice");
}

#[test]
fn two_ranks_with_one_number_are_told_so_and_the_missing_one_is_named() {
    let (id, _root) = Root::serve(&options()).unwrap();
    let outcomes = join(&[id], &[(0, 3), (1, 3), (1, 3)], 2.0);
    let errors: Vec<_> = outcomes.into_iter().map(|outcome| outcome.unwrap_err()).collect();
    let told = errors.iter().filter(|error| error.kind() == Kind::Mismatch).count();
    assert_eq!(told, 1, "{errors:?}");
    for error in errors {
        assert!(error.to_string().contains("two ranks have the number 1"), "{error}");
        if error.kind() == Kind::Timeout {
            assert!(error.to_string().contains("rank 2 of 3 never came within"), "{error}");
        }
    }
}

#[test]
fn different_world_sizes_name_both() {
    let (id, _root) = Root::serve(&options()).unwrap();
    let outcomes = join(&[id], &[(0, 2), (1, 4)], 1.5);
    for error in outcomes.into_iter().map(|outcome| outcome.unwrap_err()) {
        let words = error.to_string();
        assert!(words.contains("ranks disagree about the world"), "{words}");
        assert!(
            words.contains("reports 4 ranks, rank 0 reported 2")
                || words.contains("reports 2 ranks, rank 1 reported 4"),
            "{words}"
        );
    }
}

#[test]
fn different_numbers_of_ids_are_a_mismatch() {
    let (a, _root_a) = Root::serve(&options()).unwrap();
    let (b, _root_b) = Root::serve(&options()).unwrap();
    std::thread::scope(|scope| {
        let one = scope.spawn(|| join(&[a], &[(0, 2)], 1.5).remove(0).unwrap_err());
        let two = scope.spawn(|| join(&[a, b], &[(0, 2)], 1.5).remove(0).unwrap_err());
        let errors = [one.join().unwrap(), two.join().unwrap()];
        assert!(errors.iter().any(|error| error.to_string().contains("disagree about the unique ids")), "{errors:?}");
    });
}

#[test]
fn the_ranks_that_never_came_are_named_as_ranges() {
    let (id, _root) = Root::serve(&options()).unwrap();
    let present: Vec<_> = (0..64).filter(|rank| ![3, 17, 18, 19].contains(rank)).map(|rank| (rank, 64)).collect();
    let start = now();
    for outcome in join(&[id], &present, 2.0) {
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout);
        assert!(error.to_string().contains("ranks 3, 17-19 of 64 never came within"), "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn with_several_roots_the_missing_are_named_to_their_own_block_and_to_the_first() {
    let served: Vec<_> = (0..3).map(|_| Root::serve(&options()).unwrap()).collect();
    let ids: Vec<_> = served.iter().map(|(id, _)| *id).collect();
    let present: Vec<_> = (0..9).filter(|rank| *rank != 4).map(|rank| (rank, 9)).collect();
    let outcomes = join(&ids, &present, 2.0);
    for ((rank, _), outcome) in present.iter().zip(outcomes) {
        let error = outcome.unwrap_err();
        let words = error.to_string();
        match rank {
            0..3 => assert!(words.contains("3-5") && words.contains("of 9"), "rank {rank}: {words}"),
            3..6 => assert!(words.contains("rank 4 of 9 never came within"), "rank {rank}: {words}"),
            _ => assert_eq!(error.kind(), Kind::Timeout, "rank {rank}: {words}"),
        }
    }
}

#[test]
fn an_unreachable_root_is_named_with_the_number_of_tries() {
    let (id, root) = Root::serve(&options()).unwrap();
    drop(root);
    let options = Options { retry_count: 3, ..options() };
    let error = NetBootstrap::join(&[id], Rank::new(0), 2, &options, &within(30.0)).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    assert!(
        error.to_string().contains(&format!("the root at {} cannot be reached in 4 tries", id.address())),
        "{error}"
    );
    // With more retries than the deadline has room for, the deadline ends the attempts.
    let start = now();
    let options = Options { retry_count: 1000, ..options };
    let error = NetBootstrap::join(&[id], Rank::new(0), 2, &options, &within(0.3)).unwrap_err();
    assert!(error.to_string().contains("could not be reached in time"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_root_that_accepts_and_stays_silent_is_left() {
    // A listener that nobody serves: the kernel accepts.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let comm_id = Some(silent.local_addr().unwrap().to_string());
    let options = Options { comm_id, handshake_timeout: Duration::from_millis(50), retry_count: 2, ..options() };
    let id = UniqueId::generate(&options).unwrap();
    let error = NetBootstrap::join(&[id], Rank::new(1), 2, &options, &within(30.0)).unwrap_err();
    assert!(error.to_string().contains("rejected this rank 3 times: it did not answer"), "{error}");
}

#[test]
fn no_usable_interface_names_the_variable_and_what_there_is() {
    let options = Options { interfaces: "=nosuch0".parse().unwrap(), ..Options::default() };
    for error in [UniqueId::generate(&options).unwrap_err(), Root::serve(&options).unwrap_err()] {
        assert_eq!(error.kind(), Kind::InvalidUsage);
        assert!(
            error.to_string().contains("NCCL_SOCKET_IFNAME is =nosuch0") && error.to_string().contains("lo ("),
            "{error}"
        );
    }
}

#[test]
fn a_fixed_address_is_served_by_rank_zero_and_another_secret_does_not_pass() {
    // A port that is free: it was just ours.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let fixed = |secret: &[u8]| Options {
        comm_id: Some(free.clone()),
        secret: Some(SharedSecret::new(secret).unwrap()),
        retry_count: 12,
        ..options()
    };
    // Twice, since a job may make one communicator after another at one address.
    for _ in 0..2 {
        let join = |rank, secret: &'static [u8]| {
            let options = fixed(secret);
            let id = UniqueId::generate(&options).unwrap();
            NetBootstrap::join(&[id], Rank::new(rank), 2, &options, &within(30.0))
        };
        std::thread::scope(|scope| {
            let join = &join;
            let intruder = scope.spawn(move || join(1, b"guess"));
            let one = scope.spawn(move || join(1, b"hush"));
            let zero = scope.spawn(move || join(0, b"hush"));
            meet(vec![zero.join().unwrap(), one.join().unwrap()]);
            let error = intruder.join().unwrap().unwrap_err();
            assert!(error.to_string().contains("the root at"), "{error}");
        });
    }
}

/// Regression: the root of a rank whose init had failed before its check-in held the address for half an hour.
#[test]
fn a_rank_that_gives_up_at_a_fixed_address_before_it_has_come_can_try_again() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let options = Options { comm_id: Some(free), secret: Some(SharedSecret::new(b"hush").unwrap()), ..options() };
    let id = UniqueId::generate(&options).unwrap();
    let join = |rank, wait: &Wait| NetBootstrap::join(&[id], Rank::new(rank), 2, &options, wait);
    let aborted = AbortFlag::new();
    aborted.raise(Error::aborted("enough"));
    let no_time = [within(0.0), Wait::new(Duration::from_secs(30), &aborted)];
    for (wait, kind) in no_time.iter().zip([Kind::Timeout, Kind::Aborted]) {
        assert_eq!(join(0, wait).unwrap_err().kind(), kind);
        std::thread::scope(|scope| {
            let one = scope.spawn(|| join(1, &within(30.0)));
            meet(vec![join(0, &within(30.0)), one.join().unwrap()]);
        });
    }
}

/// Connects `count` times and misbehaves each time: sends random bytes, closes early, or stays silent. Returns the
/// silent connections, still open.
fn misbehave(address: SocketAddr, count: u64, seed: u64) -> Vec<TcpStream> {
    let mut state = seed;
    let mut silent = Vec::new();
    for _ in 0..count {
        // xorshift64: the same misbehaviour in every run.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let Ok(mut stream) = TcpStream::connect(address) else { continue };
        let bytes: Vec<u8> =
            state.to_le_bytes().iter().cycle().take(usize::try_from(state % 300).unwrap()).copied().collect();
        // The other side may have closed the connection already.
        let _closed = stream.write_all(&bytes);
        if state.is_multiple_of(16) {
            silent.push(stream);
        }
    }
    silent
}

#[test]
fn ten_thousand_random_connections_do_not_keep_ranks_from_joining() {
    let (id, _root) = Root::serve(&options()).unwrap();
    std::thread::scope(|scope| {
        let floods: Vec<_> =
            (1..=4u64).map(|seed| scope.spawn(move || misbehave(id.address(), 2_500, seed * 0x9e37_79b9))).collect();
        let ranks: Vec<_> = (0..16).map(|rank| (rank, 16)).collect();
        meet(join(&[id], &ranks, 60.0));
        for flood in floods {
            drop(flood.join().unwrap());
        }
    });
}

#[test]
fn thousands_of_silent_connections_are_bounded_and_ranks_still_join() {
    let (id, _root) = Root::serve(&options()).unwrap();
    // More than a root keeps: it drops the oldest.
    let silent: Vec<_> = (0..2_000).map(|_| TcpStream::connect(id.address()).unwrap()).collect();
    let ranks: Vec<_> = (0..8).map(|rank| (rank, 8)).collect();
    meet(join(&[id], &ranks, 60.0));
    drop(silent);
}

#[test]
fn a_rank_that_is_aborted_while_it_joins_comes_back_at_once() {
    let (id, _root) = Root::serve(&options()).unwrap();
    let abort = AbortFlag::new();
    let wait = Wait::new(Duration::from_secs(60), &abort);
    let start = now();
    std::thread::scope(|scope| {
        let joining = scope.spawn(|| NetBootstrap::join(&[id], Rank::new(0), 2, &options(), &wait).unwrap_err());
        abort.raise(Error::aborted("enough"));
        assert_eq!(joining.join().unwrap().kind(), Kind::Aborted);
    });
    assert!(start.elapsed() < Duration::from_secs(10));
}
