//! The contract of `Bootstrap`, held by both implementations: threads through mailboxes, threads through sockets.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use rsccl::Result;
use rsccl::error::{Error, Kind};
use rsccl::internals::bootstrap::{
    BackgroundWork, Bootstrap, Event, LocalBootstrap, MAX_GATHER_BYTES, NetBootstrap, Options, Root,
};
use rsccl::store::{AbortFlag, Wait};
use rsccl::types::Rank;

fn soon() -> Wait {
    Wait::new(Duration::from_secs(30), &AbortFlag::new())
}

fn shortly() -> Wait {
    Wait::new(Duration::from_millis(200), &AbortFlag::new())
}

/// Background work of a meeting whose turns do the resting: the bootstrap does not pause between them.
fn background_of(turn: &mut dyn FnMut() -> Result<()>) -> BackgroundWork<'_> {
    BackgroundWork { turn, pause: Duration::ZERO }
}

/// Runs `body` on each rank's thread and yields what each returned, by rank.
fn run<T: Send>(world: Vec<Box<dyn Bootstrap>>, body: impl Fn(Box<dyn Bootstrap>) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = world.into_iter().map(|rank| scope.spawn(move || body(rank))).collect();
        threads.into_iter().map(|thread| thread.join().expect("the rank's thread does not panic")).collect()
    })
}

fn local(size: u32) -> Vec<Box<dyn Bootstrap>> {
    LocalBootstrap::world(size).unwrap().into_iter().map(|rank| Box::new(rank) as Box<dyn Bootstrap>).collect()
}

fn net(size: u32) -> Vec<Box<dyn Bootstrap>> {
    let options = Options { interfaces: "=lo".parse().unwrap(), ..Options::default() };
    let (id, _root) = Root::serve(&options).unwrap();
    let join = |rank| Box::new(NetBootstrap::join(&[id], Rank::new(rank), size, &options, &soon()).unwrap());
    std::thread::scope(|scope| {
        let join = &join;
        let threads: Vec<_> = (0..size).map(|rank| scope.spawn(move || join(rank) as Box<dyn Bootstrap>)).collect();
        threads.into_iter().map(|thread| thread.join().expect("joining does not panic")).collect()
    })
}

fn closing(bootstrap: Box<dyn Bootstrap>, body: impl FnOnce(&dyn Bootstrap) -> Result<()>) {
    body(&*bootstrap).unwrap();
    bootstrap.barrier(&soon()).unwrap();
    bootstrap.close();
}

/// The lowest byte.
fn low(number: u32) -> u8 {
    number.to_le_bytes()[0]
}

fn block(rank: Rank) -> Vec<u8> {
    vec![low(rank.get()); rank.index() * 7 % 50]
}

fn collectives(bootstrap: &dyn Bootstrap) -> Result<()> {
    let world = bootstrap.world();
    for turn in 0..3 {
        let all = bootstrap.all_gather(&block(world.rank), &soon())?;
        assert_eq!(all, world.ranks().map(block).collect::<Vec<_>>());
        for root in world.ranks() {
            let mine = if root == world.rank { block(root) } else { b"ignored".to_vec() };
            assert_eq!(bootstrap.broadcast(root, &mine, &soon())?, block(root));
        }
        // Some ranks have background work, others have none.
        match (world.rank.get() + turn) % 2 {
            0 => bootstrap.meet("test", &soon(), None)?,
            _ => bootstrap.meet("test", &soon(), Some(background_of(&mut || Ok(()))))?,
        }
    }
    // A posted request of any rank reaches a rank that waits for all others, and the answer ends the wait of the rank
    // that asked.
    let (me, last) = (world.rank.get(), world.size - 1);
    if me == last {
        world.ranks().take(last as usize).try_for_each(|peer| bootstrap.post(peer, 77, b"asks", &soon()))?;
        world.ranks().take(last as usize).try_for_each(|peer| {
            assert_eq!(bootstrap.recv(peer, 78, &soon())?, b"answers");
            Ok(())
        })?;
    }
    let mut turn = || match bootstrap.take_from_any(77) {
        Some((asker, bytes)) => {
            assert_eq!((asker.get(), &bytes[..]), (last, &b"asks"[..]));
            bootstrap.send(asker, 78, b"answers", &soon())
        }
        None => Ok(()),
    };
    bootstrap.meet("asked", &soon(), Some(BackgroundWork { turn: &mut turn, pause: Duration::from_millis(1) }))?;
    assert!(bootstrap.take_from_any(77).is_none());
    Ok(())
}

fn messages(bootstrap: &dyn Bootstrap) -> Result<()> {
    let world = bootstrap.world();
    for peer in world.ranks() {
        for tag in [7, 8] {
            for i in 0..5u8 {
                bootstrap.send(peer, tag, &[low(world.rank.get()), low(tag), i], &soon())?;
            }
        }
    }
    for tag in [8, 7] {
        for peer in world.ranks() {
            for i in 0..5u8 {
                assert_eq!(bootstrap.recv(peer, tag, &soon())?, [low(peer.get()), low(tag), i]);
            }
        }
    }
    Ok(())
}

fn splits(bootstrap: &dyn Bootstrap) -> Result<()> {
    let world = bootstrap.world();
    let me = world.rank.get();
    // Odd ranks backwards, even ranks forwards, rank 3 nowhere.
    let color = (me != 3).then_some(me % 2);
    let key = if me % 2 == 1 { -i64::from(me) } else { 0 };
    let child = bootstrap.split(color, key, &soon())?;
    let Some(child) = child else {
        assert_eq!(me, 3);
        return Ok(());
    };
    let mut expected: Vec<_> = world.ranks().filter(|r| r.get() != 3 && r.get() % 2 == me % 2).collect();
    if me % 2 == 1 {
        expected.reverse();
    }
    assert_eq!(child.members, expected);
    let inner = child.bootstrap.world();
    assert_eq!((inner.size as usize, expected[inner.rank.index()].get()), (expected.len(), me));
    assert_ne!((child.id, child.bootstrap.key()), (bootstrap.id(), bootstrap.key()));
    let ids = child.bootstrap.all_gather(&child.id.to_le_bytes(), &soon())?;
    assert!(ids.iter().all(|id| *id == child.id.to_le_bytes()));
    collectives(&*child.bootstrap)?;
    messages(&*child.bootstrap)?;
    child.bootstrap.barrier(&soon())?;
    child.bootstrap.close();
    Ok(())
}

#[test]
fn collectives_messages_and_splits_at_many_sizes() {
    for size in [1, 2, 3, 4, 5, 7, 8, 13, 16] {
        for make in [local, net] {
            run(make(size), |bootstrap| {
                closing(bootstrap, |b| {
                    collectives(b)?;
                    messages(b)?;
                    splits(b)?;
                    splits(b)
                });
            });
        }
    }
}

#[test]
fn background_work_of_a_barrier_goes_on_until_all_have_come() {
    for world in [local(3), net(3)] {
        run(world, |bootstrap| {
            closing(bootstrap, |bootstrap| {
                let (zero, one) = (Rank::new(0), Rank::new(1));
                if bootstrap.world().rank == one {
                    // Rank 1 enters the barrier only after rank 0 has answered.
                    bootstrap.send(zero, 1, b"question", &soon())?;
                    assert_eq!(bootstrap.recv(zero, 2, &soon())?, b"answer");
                }
                let mut turn = || {
                    let asked = bootstrap.world().rank == zero && bootstrap.try_recv(one, 1)?.is_some();
                    if asked { bootstrap.send(one, 2, b"answer", &soon()) } else { Ok(()) }
                };
                bootstrap.meet("test", &soon(), Some(background_of(&mut turn)))
            });
        });
    }
}

#[test]
fn a_barrier_with_background_work_ends_with_a_death_or_with_the_error_of_that_work() {
    for world in [local(3), net(3)] {
        let errors = run(world, |bootstrap| match bootstrap.world().rank.get() {
            2 => None,
            1 => bootstrap.meet("test", &soon(), Some(background_of(&mut || Ok(())))).err(),
            _ => bootstrap.meet("test", &soon(), Some(background_of(&mut || Err(Error::internal("background"))))).err(),
        });
        let [Some(background), Some(death), None] = &errors[..] else { panic!("{errors:?}") };
        assert!(background.message() == "background" || background.peer().is_some(), "{background}");
        assert_eq!((death.kind(), death.rank()), (Kind::Remote, Some(1)), "{death}");
    }
}

#[test]
fn the_largest_block_passes_and_a_larger_one_does_not() {
    for make in [local, net] {
        run(make(3), |bootstrap| {
            closing(bootstrap, |b| {
                let all = b.all_gather(&vec![1; MAX_GATHER_BYTES], &soon())?;
                assert!(all.iter().all(|block| block.len() == MAX_GATHER_BYTES));
                let error = b.send(Rank::new(0), 0, &vec![1; MAX_GATHER_BYTES + 1], &soon()).unwrap_err();
                assert_eq!(error.kind(), Kind::InvalidArgument);
                assert!(
                    b.send(Rank::new(3), 0, &[], &soon())
                        .unwrap_err()
                        .to_string()
                        .contains("rank 3 is out of range: the world has 3 ranks")
                );
                Ok(())
            });
        });
    }
}

#[test]
fn a_message_that_does_not_come_is_a_timeout_that_names_the_peer() {
    for make in [local, net] {
        run(make(2), |bootstrap| {
            closing(bootstrap, |b| {
                let peer = Rank::new(1 - b.world().rank.get());
                let error = b.recv(peer, 5, &shortly()).unwrap_err();
                assert_eq!((error.kind(), error.peer()), (Kind::Timeout, Some(peer.get())));
                assert!(error.to_string().contains("its message of the set-up"), "{error}");
                Ok(())
            });
        });
    }
}

#[test]
fn abort_ends_a_wait() {
    for make in [local, net] {
        run(make(2), |bootstrap| {
            closing(bootstrap, |b| {
                let abort = AbortFlag::new();
                let wait = Wait::new(Duration::from_secs(60), &abort);
                abort.raise(Error::aborted("enough"));
                let peer = Rank::new(1 - b.world().rank.get());
                assert_eq!(b.recv(peer, 5, &wait).unwrap_err().kind(), Kind::Aborted);
                Ok(())
            });
        });
    }
}

#[test]
fn different_collectives_are_a_mismatch_that_names_both() {
    for make in [local, net] {
        let errors = run(make(2), |bootstrap| {
            let outcome = match bootstrap.world().rank.get() {
                0 => bootstrap.barrier(&soon()),
                _ => bootstrap.all_gather(b"x", &soon()).map(|_| ()),
            };
            // Neither rank leaves before both have seen the mismatch.
            let peer = Rank::new(1 - bootstrap.world().rank.get());
            bootstrap.send(peer, 1, &[], &soon()).unwrap();
            bootstrap.recv(peer, 1, &soon()).unwrap();
            outcome.unwrap_err()
        });
        assert!(errors.iter().all(|error| error.kind() == Kind::Mismatch), "{errors:?}");
        assert!(
            errors[0].to_string().contains("rank 1 called all_gather of the bootstrap where this rank called barrier")
        );
    }
}

fn until(bootstrap: &dyn Bootstrap, mut done: impl FnMut(Event) -> bool) {
    let wait = soon();
    loop {
        for event in bootstrap.poll() {
            if done(event) {
                return;
            }
        }
        wait.check(|| "the event did not come".to_owned()).unwrap();
        std::thread::yield_now();
    }
}

#[test]
fn a_death_reaches_everyone_and_the_survivors_shrink() {
    for make in [local, net] {
        run(make(8), |bootstrap| {
            if bootstrap.world().rank.get() == 5 {
                return;
            }
            let error = bootstrap.barrier(&soon()).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(5)), "{error}");
            until(&*bootstrap, |event| matches!(event, Event::Died(rank, _) if rank.get() == 5));
            let child = bootstrap.shrink(&[Rank::new(5)], &soon()).unwrap();
            assert_eq!(child.members.iter().map(|r| r.get()).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 6, 7]);
            closing(child.bootstrap, |b| {
                collectives(b)?;
                messages(b)
            });
        });
    }
}

#[test]
fn a_goodbye_is_no_death_and_a_note_reaches_everyone_once() {
    for make in [local, net] {
        run(make(9), |bootstrap| {
            let me = bootstrap.world().rank.get();
            if me == 4 {
                bootstrap.publish(b"hear, hear");
            } else {
                until(&*bootstrap, |event| match event {
                    Event::Note { from, bytes } => {
                        assert_eq!((from.get(), &bytes[..]), (4, &b"hear, hear"[..]));
                        true
                    }
                    other => panic!("{other:?}"),
                });
            }
            bootstrap.barrier(&soon()).unwrap();
            if me == 0 {
                assert!(bootstrap.poll().is_empty());
                bootstrap.close();
            } else {
                until(&*bootstrap, |event| match event {
                    Event::Left(rank, _) => rank.get() == 0,
                    other => panic!("{other:?}"),
                });
                let error = bootstrap.recv(Rank::new(0), 1, &soon()).unwrap_err();
                assert!(error.to_string().contains("rank 0 has left"), "{error}");
                // Every rank stays until all have seen the goodbye, so that no other goodbye comes between.
                closing(bootstrap.shrink(&[Rank::new(0)], &soon()).unwrap().bootstrap, |_| Ok(()));
                bootstrap.close();
            }
        });
    }
}

/// While rank 0 waits for a message, another thread of it publishes the word that makes rank 1 send it. Rank 1 sends
/// only after 3 such words, so that the second thread gets its turn again and again.
#[test]
fn another_thread_publishes_and_looks_while_one_waits() {
    const WORDS: u8 = 3;
    for make in [local, net] {
        run(make(2), |bootstrap| {
            if bootstrap.world().rank.get() == 0 {
                std::thread::scope(|scope| {
                    let waiter = scope.spawn(|| bootstrap.recv(Rank::new(1), 1, &soon()));
                    for word in 0..WORDS {
                        assert!(bootstrap.poll().is_empty());
                        bootstrap.publish(&[word]);
                    }
                    assert_eq!(waiter.join().expect("it does not panic").unwrap(), b"heard");
                });
            } else {
                let mut heard = Vec::new();
                until(&*bootstrap, |event| match event {
                    Event::Note { bytes, .. } => {
                        heard.extend(bytes);
                        heard.len() == usize::from(WORDS)
                    }
                    other => panic!("{other:?}"),
                });
                assert_eq!(heard, [0, 1, 2]);
                bootstrap.send(Rank::new(0), 1, b"heard", &soon()).unwrap();
            }
            closing(bootstrap, |_| Ok(()));
        });
    }
}
