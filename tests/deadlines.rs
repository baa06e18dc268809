//! One meaning of a deadline: every operation of a communicator that stands keeps `RSCCL_TIMEOUT_MS`, and all ranks of
//! one missed deadline get [`Kind::Timeout`] with the rank that was late. The list below has every operation: one that
//! is added and not listed fails a test.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use rsccl::error::Kind;
use rsccl::internals::sys::{clock, poller};
use rsccl::{Buffer, Communicator, Config, Error, ReduceOp, local};

/// Longer than two of the half seconds after which ranks tell where they are stuck.
const TIMEOUT: Duration = Duration::from_millis(1500);
/// The deadline of init, which nothing here may keep.
const LONG: Duration = Duration::from_secs(120);
const RANKS: u32 = 3;
const LATE: u32 = 1;

type Body = fn(&Communicator) -> Result<(), Error>;

/// What ranks 0 and 2 call while rank 1 is late.
const OPERATIONS: &[(&str, Body)] = &[
    ("all_gather", |comm| comm.all_gather(&[1u8], &mut [0; 3])),
    ("all_gather_in_place", |comm| comm.all_gather_in_place(&mut [0u8; 3])),
    ("all_gather_v", |comm| comm.all_gather_v(&[1u8], &mut [0; 3], &[1; 3])),
    ("all_reduce", |comm| comm.all_reduce(&[1u8], &mut [0], ReduceOp::Sum)),
    ("all_reduce_in_place", |comm| comm.all_reduce_in_place(&mut [1u8], ReduceOp::Sum)),
    ("all_reduce_value", |comm| comm.all_reduce_value(1u8, ReduceOp::Sum).map(drop)),
    ("all_to_all", |comm| comm.all_to_all(&[1u8; 3], &mut [0; 3])),
    ("all_to_all_v", |comm| comm.all_to_all_v(&[1u8; 3], &mut [0; 3], (&[1; 3], &[1; 3]))),
    ("barrier", Communicator::barrier),
    ("broadcast", |comm| comm.broadcast(&mut [1u8], LATE).and_then(|()| comm.barrier())),
    ("broadcast_into", |comm| comm.broadcast_into(&[1u8], &mut [0], LATE).and_then(|()| comm.barrier())),
    ("by_color", |comm| comm.by_color(0, 0).map(drop)),
    ("cross", |comm| comm.cross().map(drop)),
    ("deregister", |comm| comm.deregister(&Buffer::<u8>::new(100)?).and_then(|()| comm.barrier())),
    ("exchange_counts", |comm| comm.exchange_counts(&[1; 3]).map(drop)),
    ("exscan", |comm| comm.exscan(&[1u8], &mut [0], ReduceOp::Sum).and_then(|()| comm.barrier())),
    ("exscan_in_place", |comm| comm.exscan_in_place(&mut [1u8], ReduceOp::Sum).and_then(|()| comm.barrier())),
    ("gather", |comm| comm.gather(&[1u8], &mut [0; 3], 0).and_then(|()| comm.barrier())),
    ("gather_v", |comm| comm.gather_v(&[1u8], &mut [0; 3], &[1; 3], 0).and_then(|()| comm.barrier())),
    ("on_my_host", |comm| comm.on_my_host().map(drop)),
    ("prepare", |comm| {
        let mut call = comm.prepare(vec![0u8], |calls, got| calls.recv(got, LATE))?;
        call.start()?;
        call.wait()
    }),
    ("recv", |comm| comm.recv(&mut [0u8], LATE)),
    ("reduce", |comm| comm.reduce(&[1u8], &mut [0], ReduceOp::Sum, 0).and_then(|()| comm.barrier())),
    ("reduce_in_place", |comm| comm.reduce_in_place(&mut [1u8], ReduceOp::Sum, 0).and_then(|()| comm.barrier())),
    ("reduce_scatter", |comm| comm.reduce_scatter(&[1u8; 3], &mut [0], ReduceOp::Sum)),
    ("reduce_scatter_in_place", |comm| comm.reduce_scatter_in_place(&mut [1u8; 3], ReduceOp::Sum)),
    ("reduce_scatter_v", |comm| comm.reduce_scatter_v(&[1u8; 3], &mut [0], &[1; 3], ReduceOp::Sum)),
    ("register", |comm| comm.register(&Buffer::<u8>::new(100)?).and_then(|()| comm.barrier())),
    ("run", |comm| comm.scope(|scope| scope.barrier()?.wait())),
    ("scan", |comm| comm.scan(&[1u8], &mut [0], ReduceOp::Sum).and_then(|()| comm.barrier())),
    ("scan_in_place", |comm| comm.scan_in_place(&mut [1u8], ReduceOp::Sum).and_then(|()| comm.barrier())),
    ("scatter", |comm| comm.scatter(&[1u8; 3], &mut [0], LATE).and_then(|()| comm.barrier())),
    ("scatter_v", |comm| comm.scatter_v(&[1u8; 3], &mut [0], &[1; 3], LATE).and_then(|()| comm.barrier())),
    ("scope", |comm| {
        let mut got = [0u8];
        comm.scope(|scope| scope.recv(&mut got, LATE)?.wait())
    }),
    ("send", |comm| comm.send(&vec![1u8; 8 << 20], LATE)),
    ("send_recv", |comm| comm.send_recv(&[1u8], LATE, &mut [0], LATE)),
    ("split", |comm| comm.split(Some(0), 0).map(drop)),
    ("start", |comm| comm.start([0u8], |calls, got| calls.recv(got, LATE))?.wait().map(drop)),
    ("try_scope", |comm| comm.try_scope(|scope| scope.barrier()?.wait())),
];

/// Those between two ranks.
const MESSAGES: &[&str] = &["prepare", "recv", "scope", "send", "send_recv", "start"];

/// Methods that wait for no rank of a communicator that stands, or are tested elsewhere.
const OTHERS: &[(&str, &str)] = &[
    ("abort", "never waits"),
    ("abort_handle", "never waits"),
    ("async_error", "never waits"),
    ("check", "over MPI: tests/mpi"),
    ("chosen", "of this rank alone"),
    ("deregister_window", "on devices: tests/devices"),
    ("finalize", "waits for no rank"),
    ("from_env", "init"),
    ("from_env_with", "init"),
    ("init", "init"),
    ("init_all", "init"),
    ("init_scalable", "init"),
    ("like", "over MPI: tests/mpi"),
    ("on", "its calls are those of streams"),
    ("placement", "known from init"),
    ("memory", "asks nobody"),
    ("rank", "known from init"),
    ("register_window", "on devices: tests/devices"),
    ("set_progress", "of this rank alone"),
    ("shrink", "of survivors: below"),
    ("size", "known from init"),
    ("unique_id", "of this rank alone"),
];

#[test]
fn every_operation_is_listed() {
    let file = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/public-api.txt"))
        .expect("the list of public items");
    let methods = file.lines().filter_map(|line| line.trim().strip_prefix("method rsccl::comm::Communicator::"));
    let listed = OPERATIONS.iter().map(|(name, _)| *name).chain(OTHERS.iter().map(|(name, _)| *name));
    let (methods, listed): (BTreeSet<&str>, BTreeSet<&str>) = (methods.collect(), listed.collect());
    assert!(methods.len() > 50, "the list of public items is read: {methods:?}");
    let unlisted: Vec<_> = methods.difference(&listed).collect();
    assert!(unlisted.is_empty(), "add a line to OPERATIONS for {unlisted:?}");
}

/// Which communicator is called.
#[derive(Debug, Clone, Copy)]
enum On {
    World,
    /// A child of the world, with the ranks in another order; it has not been called before.
    Child,
}

/// Runs `body` on the ranks that are in time, and `late` on the late one once they have ended; yields each rank's end
/// and how long it took.
fn with_a_late_rank((on, config): (On, &Config), body: Body, late: Body) -> Vec<(Result<(), Error>, Duration)> {
    static MAKING: Mutex<()> = Mutex::new(());
    let config = config.clone().with_timeout(TIMEOUT).with_init_timeout(LONG);
    let [ready, ended] = [(); 2].map(|()| Barrier::new(RANKS as usize));
    let ends = local::run_with(RANKS, &config, |world| {
        // Whatever comes of it, all ranks meet at the barrier.
        let comm = match on {
            On::World => Ok(world),
            On::Child => {
                // One world at a time, whose ranks are all there: what the machine needs to make a hundred children at
                // once is no lateness.
                let turn = (world.rank() == 0).then(|| MAKING.lock());
                ready.wait();
                let child = world.by_color(0, i64::from((world.rank() + 1) % RANKS));
                ready.wait();
                drop(turn);
                child
            }
        };
        let is_late = comm.as_ref().is_ok_and(|comm| comm.rank() == LATE);
        let began = clock::now();
        let end = match comm {
            Ok(comm) if is_late => {
                ended.wait();
                late(&comm)
            }
            comm => {
                let end = comm.as_ref().map_err(Error::duplicate).and_then(body);
                ended.wait();
                end
            }
        };
        Ok((end, clock::now().duration_since(began)))
    });
    ends.expect("no rank returns an error")
}

#[test]
fn every_operation_keeps_its_deadline_and_all_ranks_blame_the_rank_that_is_late() {
    all_blame_the_late_rank(&Config::default());
}

#[test]
fn every_operation_over_sockets_keeps_its_deadline_and_all_ranks_blame_the_rank_that_is_late() {
    let sockets = Config::default().with_p2p_disable(true).with_shm_disable(true).with_socket_interfaces("lo");
    all_blame_the_late_rank(&sockets);
}

fn all_blame_the_late_rank(config: &Config) {
    // One at a time: each is a hundred threads, of which a child's must all meet within the deadline.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let wrong = Mutex::new(Vec::new());
    [On::World, On::Child].into_iter().for_each(|on| {
        std::thread::scope(|scope| {
            for (name, body) in OPERATIONS {
                let wrong = &wrong;
                scope.spawn(move || {
                    // The late rank makes the same call, where that is one of all ranks.
                    let late = if MESSAGES.contains(name) { Communicator::barrier } else { *body };
                    for (end, took) in with_a_late_rank((on, config), *body, late) {
                        let said = match end {
                            Ok(()) => "it ended well".to_owned(),
                            // The late rank itself hears that it was late.
                            Err(error) if error.kind() != Kind::Timeout => format!("{:?}: {error}", error.kind()),
                            Err(error) if error.peer() != Some(LATE) => format!("about {:?}: {error}", error.peer()),
                            Err(error) if !error.to_string().contains("1.5 s (RSCCL_TIMEOUT_MS)") => error.to_string(),
                            Err(error) if took > LONG / 4 => format!("after {took:?}: {error}"),
                            Err(_) => continue,
                        };
                        wrong.lock().expect("no panic").push(format!("{name} on a {on:?}: {said}"));
                    }
                });
            }
        })
    });
    let wrong = wrong.into_inner().expect("no panic");
    assert!(wrong.is_empty(), "{} of {} operations:\n{}", wrong.len(), OPERATIONS.len(), wrong.join("\n"));
}

/// Rank 2 has gone; of the survivors, rank 1 is late.
#[test]
fn a_shrink_keeps_the_deadline_of_operations() {
    let late: Body = |comm| if comm.rank() == LATE { Ok(()) } else { comm.barrier() };
    let shrink: Body = |comm| if comm.rank() == 2 { Ok(()) } else { comm.shrink(&[2]).map(drop) };
    let mut ends = with_a_late_rank((On::World, &Config::default()), shrink, late);
    let (end, took) = ends.swap_remove(0);
    let error = end.expect_err("rank 1 is late");
    assert_eq!((error.kind(), error.peer()), (Kind::Timeout, Some(LATE)), "{error}");
    assert!(error.to_string().contains("1.5 s (RSCCL_TIMEOUT_MS)") && took < LONG / 4, "{took:?}: {error}");
}

/// A watchdog aborts the communicator, which has failed already, while it is shrunk.
#[test]
fn an_abort_reaches_a_shrink_that_is_under_way() {
    let config = Config::default().with_timeout(LONG).with_init_timeout(LONG);
    let (failed, ended) = (Barrier::new(2), Barrier::new(2));
    local::run_with(3, &config, |comm| {
        match comm.rank() {
            0 => {
                let error = comm.barrier().expect_err("rank 2 has left");
                assert_eq!(error.kind(), Kind::Remote, "{error}");
                failed.wait();
                // Whether it comes before the shrink has begun or after: it ends.
                let over = AtomicBool::new(false);
                std::thread::scope(|threads| {
                    let watchdog = threads.spawn(|| {
                        while !over.load(Ordering::Relaxed) {
                            comm.abort("the survivors do not come");
                            std::thread::yield_now();
                        }
                    });
                    let error = comm.shrink(&[2]).expect_err("rank 1 does not come");
                    over.store(true, Ordering::Relaxed);
                    watchdog.join().expect("it does not panic");
                    assert_eq!(error.kind(), Kind::Aborted, "{error}");
                    assert!(error.message().contains("the survivors do not come"), "{error}");
                });
                ended.wait();
            }
            1 => {
                failed.wait();
                ended.wait();
            }
            _ => {}
        }
        Ok(())
    })
    .expect("the ranks end");
}

#[test]
fn a_deadline_of_zero_in_the_variable_is_none() {
    for name in ["RSCCL_TIMEOUT_MS", "RSCCL_INIT_TIMEOUT_MS"] {
        let config = Config::default().with_variable(name, "0").expect("0 is allowed");
        let (set, other) = match name {
            "RSCCL_TIMEOUT_MS" => (config.timeout, config.init_timeout),
            _ => (config.init_timeout, config.timeout),
        };
        assert!(set == Duration::MAX && other < LONG * 10, "{name}");
        local::run_with(2, &config, |comm| {
            comm.barrier()?;
            comm.split(Some(0), 0)?.expect("a color was passed").barrier()
        })
        .expect("the ranks meet");
    }
    assert!(Config::default().with_variable("RSCCL_TIMEOUT_MS", "5").is_err());
}

/// Rank 1 comes later than either deadline would allow that is set to a number.
#[test]
fn a_late_rank_is_waited_for_where_there_is_no_deadline() {
    let config = Config::default().with_timeout(Duration::MAX).with_init_timeout(TIMEOUT);
    local::run_with(RANKS, &config, |comm| {
        if comm.rank() == LATE {
            poller::pause(TIMEOUT + TIMEOUT / 2);
        }
        comm.by_color(0, 0)?.barrier()?;
        comm.on_my_host()?.barrier()
    })
    .expect("all come");
}

#[test]
fn a_split_that_does_not_block_keeps_the_same_deadline() {
    let config = Config::default().with_blocking(false).with_timeout(TIMEOUT).with_init_timeout(LONG);
    let settled = |comm: &Communicator| loop {
        match comm.async_error() {
            Some(error) if error.kind() == Kind::InProgress => poller::pause(Duration::from_millis(2)),
            state => return state,
        }
    };
    let comms = Communicator::init_all(RANKS, &config).expect("init");
    let in_time: Vec<&Communicator> = comms.iter().filter(|comm| comm.rank() != LATE).collect();
    let children: Vec<_> = in_time.iter().map(|comm| comm.split(Some(0), 0)).collect();
    for (comm, child) in in_time.into_iter().zip(children) {
        let child = child.expect("it returns at once").expect("a color was passed");
        for of in [settled(&child), settled(comm)] {
            let error = of.expect("rank 1 does not come");
            assert_eq!((error.kind(), error.peer()), (Kind::Timeout, Some(LATE)), "{error}");
            assert!(error.to_string().contains("1.5 s (RSCCL_TIMEOUT_MS)"), "{error}");
        }
    }
}
