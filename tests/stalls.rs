//! What a time-out says: the call in which a rank waits, the calls in which the ranks that it waits for stand, a cycle as
//! a whole, and the rank that holds up all the others.

use std::sync::Barrier;
use std::time::Duration;

use rsccl::error::Kind;
use rsccl::{Communicator, Config, Error, local};

/// Longer than two of the half seconds after which ranks tell where they are stuck.
const TIMEOUT: Duration = Duration::from_millis(1500);

/// Runs `body` on each of `ranks` threads, and returns how it ended. No rank leaves before all have.
fn ends(ranks: u32, body: impl Fn(&Communicator) -> Result<(), Error> + Sync) -> Vec<Result<(), Error>> {
    ends_with(&Config::default(), ranks, body)
}

fn ends_with(
    config: &Config,
    ranks: u32,
    body: impl Fn(&Communicator) -> Result<(), Error> + Sync,
) -> Vec<Result<(), Error>> {
    let ended = Barrier::new(usize::try_from(ranks).expect("a few"));
    let config = config.clone().with_timeout(TIMEOUT);
    let run = |comm: Communicator| {
        let end = body(&comm);
        ended.wait();
        Ok(end)
    };
    local::run_with(ranks, &config, run).expect("no rank returns an error")
}

/// The errors of the ranks that have one, in words.
fn words(ends: &[Result<(), Error>]) -> Vec<String> {
    ends.iter().filter_map(|end| end.as_ref().err()).map(Error::to_string).collect()
}

/// That all of `ends` are errors, of which at least one is a time-out, and all have one of `texts`.
fn all_say(ends: &[Result<(), Error>], texts: &[String]) {
    let said = words(ends);
    assert_eq!(said.len(), ends.len(), "{said:#?}");
    assert!(ends.iter().any(|end| end.as_ref().is_err_and(|error| error.kind() == Kind::Timeout)), "{said:#?}");
    for one in &said {
        assert!(texts.iter().any(|text| one.contains(text)), "{one}\nhas none of {texts:#?}");
    }
}

/// The ways to tell the cycle of `edges`, beginning at each of its ranks: "rank 0 waits for rank 1 in recv #0, ...".
fn cycle(edges: &[(u32, u32, &str)]) -> Vec<String> {
    let told = |start: usize| {
        let turned = (0..edges.len()).map(|at| edges[(start + at) % edges.len()]);
        let edge = |(at, (from, to, call)): (usize, (u32, u32, &str))| match at {
            0 => format!("rank {from} waits for rank {to} in {call}"),
            _ => format!("rank {from} for rank {to} in {call}"),
        };
        turned.enumerate().map(edge).collect::<Vec<_>>().join(", ")
    };
    (0..edges.len()).map(told).collect()
}

fn next(comm: &Communicator) -> u32 {
    (comm.rank() + 1) % comm.size()
}

#[test]
fn a_receive_that_nobody_sends_and_a_barrier_are_told_as_one_cycle() {
    let ends = ends(4, |comm| match comm.rank() {
        0 => comm.recv(&mut [0u8; 4], 1),
        _ => comm.barrier(),
    });
    all_say(&ends, &cycle(&[(0, 1, "recv #0"), (1, 0, "barrier #0")]));
}

#[test]
fn a_ring_of_receives_is_a_cycle_and_the_way_out_is_named() {
    ring_of_receives(&Config::default());
}

#[test]
fn a_ring_of_receives_over_sockets_is_a_cycle_too() {
    ring_of_receives(&Config::default().with_p2p_disable(true).with_shm_disable(true));
}

fn ring_of_receives(config: &Config) {
    let ends = ends_with(config, 4, |comm| comm.recv(&mut [0u64; 8], next(comm)));
    all_say(&ends, &cycle(&[(0, 1, "recv #0"), (1, 2, "recv #0"), (2, 3, "recv #0"), (3, 0, "recv #0")]));
    for said in words(&ends) {
        assert!(said.contains("use send_recv or a group"), "{said}");
    }
}

#[test]
fn a_ring_of_large_sends_is_a_cycle_and_the_way_out_is_named() {
    let ends = ends(3, |comm| comm.send(&vec![1u8; 32 << 20], next(comm)));
    all_say(&ends, &cycle(&[(0, 1, "send #0"), (1, 2, "send #0"), (2, 0, "send #0")]));
    for said in words(&ends) {
        assert!(said.contains("use send_recv or a group"), "{said}");
    }
}

/// One rank does not come: its neighbours wait for it, the others for their neighbours.
#[test]
fn the_rank_that_has_stopped_is_named_and_not_the_next_in_the_ring() {
    let absent = 1;
    let ends = ends(4, |comm| {
        let (me, size) = (comm.rank(), comm.size());
        let mut got = [0u32; 4];
        for round in 0..9 {
            if me == absent && round == 3 {
                return Ok(());
            }
            comm.send_recv(&[me; 4], next(comm), &mut got, (me + size - 1) % size)?;
        }
        Ok(())
    });
    let errors: Vec<&Error> = ends.iter().filter_map(|end| end.as_ref().err()).collect();
    assert_eq!(errors.len(), 3, "{ends:#?}");
    for error in errors {
        let said = error.to_string();
        assert!(said.contains("rank 1 has not said that it waits"), "{said}");
        assert_eq!(error.peer(), Some(absent), "{said}");
    }
}

#[test]
fn a_request_names_its_call_number_and_direction() {
    let ends = ends(2, |comm| {
        let mut got = [0u8; 4];
        match comm.rank() {
            0 => comm.scope(|scope| scope.recv(&mut got, 1)?.wait()),
            _ => Ok(()),
        }
    });
    let said = words(&ends).join("\n");
    assert!(said.contains("recv #0 from rank 1"), "{said}");
    assert!(!said.contains("messages with"), "{said}");
}

/// A request for which the program does not wait says nothing of where the program stands.
#[test]
fn a_rank_that_computes_beside_a_request_does_not_count_as_waiting() {
    let over = Barrier::new(2);
    let ends = ends(3, |comm| match comm.rank() {
        0 => {
            let mut got = [0u8; 4];
            comm.scope(|scope| {
                let received = scope.recv(&mut got, 2)?;
                over.wait();
                received.wait()
            })
        }
        1 => comm.recv(&mut [0u8; 4], 0).inspect_err(|_| _ = over.wait()).inspect(|()| _ = over.wait()),
        _ => Ok(()),
    });
    let said = ends[1].as_ref().expect_err("nobody sends").to_string();
    let own = said.contains("rank 0 has not said that it waits");
    // Where the request's own deadline passes first, its error says for whom it waits.
    assert!(own || said.contains("rank 0 reports: timed out after"), "{said}");
    assert!(!said.contains("rank 0 waits for rank 2"), "{said}");
}

#[test]
fn three_ranks_in_a_cycle_of_three_kinds_of_calls_are_told() {
    let ends = ends(3, |comm| match comm.rank() {
        0 => comm.recv(&mut [0u8; 4], 1),
        1 => {
            let large = vec![0u8; 32 << 20];
            comm.scope(|scope| scope.send(&large, 2)?.wait())
        }
        _ => comm.split(Some(0), 0).map(drop),
    });
    all_say(&ends, &cycle(&[(0, 1, "recv #0"), (1, 2, "send #0"), (2, 0, "split")]));
}

/// A group in which one partner is missing: what has come is not told as waited for.
#[test]
fn a_group_names_only_the_partner_that_is_missing() {
    let ends = ends(3, |comm| match comm.rank() {
        0 => {
            let (mut one, mut other) = ([0u8; 4], [0u8; 4]);
            rsccl::comm::group(|group| {
                group.on(comm).recv(&mut one, 1)?;
                group.on(comm).recv(&mut other, 2)
            })
        }
        1 => comm.send(&[1u8; 4], 0),
        _ => Ok(()),
    });
    let error = ends[0].as_ref().expect_err("rank 2 sends nothing");
    let said = error.to_string();
    assert!(said.contains("rank 2 has not said that it waits") && !said.contains("rank 1"), "{said}");
    assert_eq!(error.peer(), Some(2), "{said}");
}

/// A blocking receive, a request for which the program waits, and a group.
#[test]
fn a_cycle_through_a_request_and_a_group_is_told() {
    let ends = ends(3, |comm| {
        let mut got = [0u8; 4];
        match comm.rank() {
            0 => comm.scope(|scope| scope.recv(&mut got, 1)?.wait()),
            1 => rsccl::comm::group(|group| group.on(comm).recv(&mut got, 2)),
            _ => comm.recv(&mut got, 0),
        }
    });
    all_say(&ends, &cycle(&[(0, 1, "recv #0"), (1, 2, "recv #0"), (2, 0, "recv #0")]));
}

#[test]
fn a_split_and_a_receive_are_told_as_a_cycle() {
    let ends = ends(2, |comm| match comm.rank() {
        0 => comm.split(Some(0), 0).map(drop),
        _ => comm.recv(&mut [0u8; 4], 0),
    });
    all_say(&ends, &cycle(&[(0, 1, "split"), (1, 0, "recv #0")]));
}

/// The second of two receives, where the peer sends once and computes.
#[test]
fn the_receive_that_is_one_too_many_has_its_number() {
    let ends = ends(2, |comm| match comm.rank() {
        0 => comm.recv(&mut [0u8; 4], 1).and_then(|()| comm.recv(&mut [0u8; 4], 1)),
        _ => comm.send(&[1u8; 4], 0),
    });
    let error = ends[0].as_ref().expect_err("one is sent");
    let said = error.to_string();
    assert!(
        said.contains("recv #1 from rank 1: timed out after 1.5 s (RSCCL_TIMEOUT_MS) waiting for rank 1"),
        "{said}"
    );
    assert!(said.contains("rank 1 has not said that it waits"), "{said}");
    assert_eq!((error.kind(), error.peer()), (Kind::Timeout, Some(1)));
}

/// As [`ends`], for the communicator and one of the ranks of `color`, which all ranks keep until all have ended.
fn ends_of_two(
    ranks: u32,
    color: impl Fn(u32) -> u32 + Sync,
    body: impl Fn(&Communicator, &Communicator) -> Result<(), Error> + Sync,
) -> Vec<Result<(), Error>> {
    let ended = Barrier::new(usize::try_from(ranks).expect("a few"));
    ends(ranks, |comm| {
        let other = comm.split(Some(color(comm.rank())), 0)?.expect("a color was passed");
        let end = body(comm, &other);
        ended.wait();
        end
    })
}

#[test]
fn a_cycle_over_two_communicators_is_told_as_one_by_both_ranks() {
    let ends = ends_of_two(
        2,
        |_| 0,
        |comm, other| match comm.rank() {
            0 => comm.recv(&mut [0u8; 4], 1),
            _ => other.barrier(),
        },
    );
    let told = [
        "rank 0 waits for rank 1 in recv #0, rank 1 for rank 0 in barrier #0 of another communicator: none of them",
        "rank 1 waits for rank 0 in barrier #0, rank 0 for rank 1 in recv #0 of another communicator: none of them",
    ];
    let said = words(&ends);
    assert_eq!(said.len(), 2, "{said:#?}");
    for (said, told) in said.iter().zip(told) {
        assert!(said.contains(told), "{said}");
    }
}

/// Ranks 2 and 3 are ranks 0 and 1 of a group. The others wait for them.
#[test]
fn a_cycle_with_a_group_whose_ranks_have_other_numbers_is_told() {
    let ends = ends_of_two(
        4,
        |rank| rank / 2,
        |comm, group| match comm.rank() {
            2 => group.recv(&mut [0u8; 4], 1),
            3 => comm.send(&vec![0u8; 32 << 20], 2),
            _ => comm.barrier(),
        },
    );
    let said = words(&ends);
    let cycle =
        "rank 0 waits for rank 1 in recv #0, rank 1 for rank 0 in send #0 of another communicator: none of them";
    assert!(said[2].contains(cycle), "{said:#?}");
}

/// One thread waits in a communicator, and another one of the same rank in the other: none of them is missing.
#[test]
fn a_rank_with_a_thread_for_each_communicator_is_in_no_cycle() {
    let ends = ends_of_two(
        2,
        |_| 0,
        |comm, other| {
            // From now on this communicator is that thread's.
            std::thread::scope(|scope| scope.spawn(|| comm.barrier()).join().expect("no rank panics"))?;
            match comm.rank() {
                0 => comm.recv(&mut [0u8; 4], 1),
                _ => other.barrier(),
            }
        },
    );
    let said = words(&ends);
    assert_eq!(said.iter().filter(|said| said.contains("timed out")).count(), 2, "{said:#?}");
    assert!(!said.iter().any(|said| said.contains("can go on")), "{said:#?}");
}

/// Communicators that have nothing to do with each other, over TCP.
#[test]
fn a_cycle_over_two_worlds_is_told_where_one_of_them_has_a_name() {
    let config = Config::default().with_timeout(TIMEOUT).with_socket_interfaces("lo");
    let named = config.clone().with_name("inner");
    let ids = [&config, &named].map(|config| Communicator::unique_id(config).expect("an id"));
    let ended = Barrier::new(2);
    let run = |rank: u32| {
        let comm = Communicator::init(&ids[0], rank, 2, &config)?;
        let inner = Communicator::init(&ids[1], 1 - rank, 2, &named)?;
        let end = if rank == 0 { comm.barrier() } else { inner.recv(&mut [0u8; 4], 1) };
        ended.wait();
        end
    };
    let ends: Vec<Result<(), Error>> = std::thread::scope(|scope| {
        let ranks = [0, 1].map(|rank| {
            scope.spawn({
                let run = &run;
                move || run(rank)
            })
        });
        ranks.map(|rank| rank.join().expect("no rank panics")).into()
    });
    let said = words(&ends);
    assert_eq!(said.len(), 2, "{said:#?}");
    let told =
        "rank 0 waits for rank 1 in barrier #0, rank 1 for rank 0 in recv #0 of communicator inner: none of them";
    assert!(said[0].contains(told), "{said:#?}");
    let told =
        "rank 0 waits for rank 1 in recv #0, rank 1 for rank 0 in barrier #0 of another communicator: none of them";
    assert!(said[1].contains(told), "{said:#?}");
}

type Call<'a> = &'a (dyn Fn(&Communicator) -> Result<(), Error> + Sync);

/// The ranks of a ring are no neighbours of the control plane, so the first call opens those connections, too: within
/// its deadline. A split goes along the tree of the control plane, where most ranks wait for others than the late one.
#[test]
fn the_late_rank_is_named_where_it_is_no_neighbour_and_where_others_are_between() {
    const RANKS: u32 = 14;
    let config = Config::default().with_timeout(TIMEOUT).with_socket_interfaces("lo");
    let config = config.with_p2p_disable(true).with_shm_disable(true).with_algo("ring");
    let ring = |comm: &Communicator| comm.all_gather(&[1u8; 4096], &mut [0; RANKS as usize * 4096]);
    let split = |comm: &Communicator| comm.split(Some(0), 0).map(drop);
    let calls: [(&str, Call<'_>); 2] = [("ring", &ring), ("split", &split)];
    for (name, call) in calls {
        // One with others below it in the tree, and one at its end.
        for late in [1, RANKS - 1] {
            let id = Communicator::unique_id(&config).expect("an id");
            let ended = Barrier::new(RANKS as usize);
            let run = |rank: u32| {
                let comm = Communicator::init(&id, rank, RANKS, &config).expect("all ranks come");
                let end = if rank == late { Ok(()) } else { call(&comm) };
                ended.wait();
                end
            };
            let ends: Vec<Result<(), Error>> = std::thread::scope(|scope| {
                let run = &run;
                let ranks: Vec<_> = (0..RANKS).map(|rank| scope.spawn(move || run(rank))).collect();
                ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect()
            });
            let said = words(&ends);
            assert_eq!(said.len(), ends.len() - 1, "{name}, {late} is late: {said:#?}");
            for error in ends.iter().filter_map(|end| end.as_ref().err()) {
                assert_eq!((error.kind(), error.peer()), (Kind::Timeout, Some(late)), "{name}: {error}");
                assert!(
                    error.to_string().contains(&format!("rank {late} has not said that it waits")),
                    "{name}: {error}"
                );
            }
        }
    }
}
