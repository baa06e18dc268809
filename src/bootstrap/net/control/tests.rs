//! Ranks that one thread moves step by step, so that each loss and each delay is where a test wants it.

use std::time::Duration;

use super::*;
use crate::bootstrap::Root;
use crate::bootstrap::net::NetBootstrap;
use crate::sync::{AbortFlag, Wait};
use crate::sys::clock;

const CLOSE: Duration = Duration::from_millis(10);

fn options() -> Options {
    Options { interfaces: "=lo".parse().unwrap(), retry_sleep: Duration::from_millis(1), ..Options::default() }
}

fn soon() -> Wait {
    Wait::new(Duration::from_secs(30), &AbortFlag::new())
}

/// A world of `size` ranks; of one that has gone there is `None`.
struct Ranks(Vec<Option<NetBootstrap>>);

impl Ranks {
    fn join(size: u32, options: &Options) -> Ranks {
        let (id, _root) = Root::serve(options).unwrap();
        let join = |rank| NetBootstrap::join(&[id], rank, size, options, &soon()).unwrap();
        std::thread::scope(|scope| {
            let join = &join;
            let ranks: Vec<_> = (0..size).map(Rank::new).map(|rank| scope.spawn(move || join(rank))).collect();
            Ranks(ranks.into_iter().map(|rank| Some(rank.join().unwrap())).collect())
        })
    }

    fn rank(&self, rank: u32) -> &NetBootstrap {
        self.0[Rank::new(rank).index()].as_ref().expect("it is there")
    }

    /// Works on the control plane of a rank.
    fn of<T>(&self, rank: u32, work: impl FnOnce(&mut ControlPlane) -> T) -> T {
        work(&mut self.rank(rank).control.lock())
    }

    /// Those that are there.
    fn here(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&self.0).filter(|(_, rank)| rank.is_some()).map(|(rank, _)| rank)
    }

    /// Moves `ranks` in turns until `is_done`.
    fn drive_until(&self, ranks: &[u32], is_done: impl Fn() -> bool) {
        let wait = soon();
        while !is_done() {
            wait.check(|| "waited for ranks to get there".to_owned()).unwrap();
            for rank in ranks {
                self.of(*rank, |control| control.drive(Duration::from_millis(1))).unwrap();
            }
        }
    }

    fn leave(&mut self, rank: u32) {
        self.of(rank, |control| control.close(7, CLOSE));
        self.0[Rank::new(rank).index()] = None;
    }

    fn die(&mut self, rank: u32) {
        self.0[Rank::new(rank).index()] = None;
    }

    fn gone(&self, at: u32, rank: u32) -> Option<Gone> {
        self.of(at, |control| control.inbox().gone(Rank::new(rank)).cloned())
    }

    /// Rank 1, which moves alone at first, takes `left` for dead no more than any other does.
    fn must_hear_that_it_left(&self, left: u32) {
        self.drive_until(&[1], || {
            self.of(1, |control| control.absent.is_doubted(Rank::new(left))) || self.gone(1, left).is_some()
        });
        assert_eq!(self.gone(1, left), None);
        let here: Vec<u32> = self.here().collect();
        self.drive_until(&here, || here.iter().all(|rank| self.gone(*rank, left).is_some()));
        for rank in here {
            assert_eq!(self.gone(rank, left), Some(Gone::Left(7)), "at {rank}");
        }
    }

    /// Half a handshake: rank 1 takes its connection with `other` for proved, and that has not read the last bytes.
    fn connect_by_half(&self, other: u32) {
        self.of(1, |control| control.put(Rank::new(other), Channel::Message(1), b"hello")).unwrap();
        let proved = |at: u32, peer: u32| self.of(at, |control| control.has_link(Rank::new(peer)));
        let wait = soon();
        while !proved(1, other) {
            wait.check(|| "waited for half a handshake".to_owned()).unwrap();
            if !proved(other, 1) {
                self.of(other, |control| control.drive(Duration::from_millis(1))).unwrap();
            }
            self.of(1, |control| control.drive(Duration::ZERO)).unwrap();
        }
        assert!(!proved(other, 1), "it has not read the last bytes of the handshake");
    }

    fn is_neighbour(&self, one: u32, other: u32) -> bool {
        self.of(one, |control| control.is_neighbour(Rank::new(other)))
    }

    /// A rank that is no neighbour of rank 1, nor of one of its neighbours.
    fn far_from_one(&self) -> u32 {
        let near = |rank: u32| self.is_neighbour(1, rank);
        let is_far =
            |rank: &u32| *rank > 1 && !near(*rank) && !self.here().any(|to| near(to) && self.is_neighbour(*rank, to));
        self.here()
            .filter(|rank| *rank > 1 && !near(*rank))
            .find(is_far)
            .or_else(|| self.here().find(|r| *r > 1 && !near(*r)))
            .unwrap()
    }
}

/// Regression: a rank that found nobody at the address of one that had left told all others that it had died.
#[test]
fn a_rank_that_has_left_is_not_taken_for_dead_before_its_goodbye_comes() {
    let mut ranks = Ranks::join(27, &options());
    let left = ranks.far_from_one();
    ranks.leave(left);
    // Nobody but rank 1 moves, so it hears of no goodbye.
    ranks.of(1, |control| control.put(Rank::new(left), Channel::Message(1), b"hello")).unwrap();
    ranks.must_hear_that_it_left(left);
}

/// Regression: the rank that had opened the connection took it for proved, and its end for a death.
#[test]
fn a_rank_that_leaves_in_the_middle_of_a_handshake_is_not_taken_for_dead() {
    let mut ranks = Ranks::join(27, &options());
    let left = ranks.far_from_one();
    ranks.connect_by_half(left);
    // It goes at once, as a rank does whose connections have delivered its goodbye: what it has not read is lost.
    ranks.of(left, |control| {
        control.is_open = false;
        for entry in control.links.values_mut().filter(|entry| entry.link.peer().is_some()) {
            entry.link.queue(GOODBYE, 0, &7u64.to_le_bytes());
            entry.link.flush().unwrap();
        }
    });
    ranks.die(left);
    ranks.must_hear_that_it_left(left);
}

/// Regression: the news that it had left were dropped while such a connection stood, and two seconds after its end the
/// rank was given up for dead.
#[test]
fn news_of_a_rank_that_left_count_once_half_a_connection_with_it_has_ended() {
    let mut ranks = Ranks::join(27, &options());
    let left = ranks.far_from_one();
    ranks.connect_by_half(left);
    let mut news = Writer::new();
    Gossip::Left(Rank::new(left), 7).encode(&mut news);
    let teller = ranks.here().find(|rank| *rank != 1).unwrap();
    ranks.of(1, |control| control.news(OURSELVES, Rank::new(teller), news.as_slice()));
    assert_eq!(ranks.gone(1, left), None, "what it has sent may still come");
    ranks.die(left);
    ranks.drive_until(&[1], || {
        ranks.of(1, |control| control.absent.is_doubted(Rank::new(left))) || ranks.gone(1, left).is_some()
    });
    assert_eq!(ranks.gone(1, left), Some(Gone::Left(7)));
}

#[test]
fn a_rank_that_connects_with_one_that_says_goodbye_gets_it_too() {
    let mut ranks = Ranks::join(27, &options());
    let left = ranks.far_from_one();
    ranks.of(1, |control| control.put(Rank::new(left), Channel::Message(1), b"hello")).unwrap();
    // A rank that closes moves what comes until all that it has sent is delivered.
    ranks.of(left, |control| {
        control.is_open = false;
        control.word = 7;
    });
    ranks.drive_until(&[1, left], || ranks.gone(1, left).is_some());
    assert_eq!(ranks.gone(1, left), Some(Gone::Left(7)));
    ranks.leave(left);
}

/// Nobody tells of it: all that could have left are gone too, or compute.
#[test]
fn a_rank_of_which_no_news_come_is_given_up_and_the_others_are_not_told_of_a_death() {
    let mut ranks = Ranks::join(27, &options());
    let left = ranks.far_from_one();
    ranks.leave(left);
    ranks.of(1, |control| control.put(Rank::new(left), Channel::Message(1), b"hello")).unwrap();
    ranks.drive_until(&[1], || ranks.of(1, |control| control.absent.is_doubted(Rank::new(left))));
    let words = ranks.of(1, |control| control.with_hindrance("waited".to_owned()));
    assert!(
        words.starts_with(&format!("waited; of rank {left} nothing is known but that it cannot be reached")),
        "{words}"
    );
    ranks.of(1, |control| control.absent.hurry(clock::now()));
    ranks.drive_until(&[1], || ranks.gone(1, left).is_some());
    let Some(Gone::Died(why)) = ranks.gone(1, left) else { panic!("{:?}", ranks.gone(1, left)) };
    assert!(why.ends_with("and no rank has told that it left"), "{why}");
    // Nor is one told with which it gets a connection afterwards.
    let is_far = |rank: &u32| *rank > 1 && !ranks.is_neighbour(1, *rank) && !ranks.is_neighbour(*rank, left);
    let newcomer = ranks.here().find(is_far).unwrap();
    ranks.of(1, |control| control.put(Rank::new(newcomer), Channel::Message(2), b"hello")).unwrap();
    let has_come = || ranks.of(newcomer, |control| control.take(Rank::new(1), Channel::Message(2)).is_some());
    ranks.drive_until(&[1, newcomer], has_come);
    assert_eq!(ranks.gone(newcomer, left), None);
    let others: Vec<u32> = ranks.here().filter(|rank| *rank != 1).collect();
    ranks.drive_until(&others, || others.iter().all(|rank| ranks.gone(*rank, left).is_some()));
    for rank in others {
        assert_eq!(ranks.gone(rank, left), Some(Gone::Left(7)), "at {rank}");
    }
}

/// Regression: after a few minutes of computing a rank was taken for dead by who sent it the first message.
#[test]
fn a_rank_that_computes_for_longer_than_all_tries_take_is_not_taken_for_dead() {
    let options = Options { handshake_timeout: Duration::from_millis(500), retry_count: 0, ..options() };
    let ranks = Ranks::join(27, &options);
    let busy = ranks.far_from_one();
    ranks.of(1, |control| control.put(Rank::new(busy), Channel::Message(1), b"hello")).unwrap();
    assert_eq!(ranks.of(1, |control| control.dialling.len()), 1);
    ranks.drive_until(&[1], || ranks.of(1, |control| control.dialling.is_empty()));
    assert_eq!(ranks.gone(1, busy), None);
    let taken = || ranks.of(busy, |control| control.take(Rank::new(1), Channel::Message(1)));
    let taken = std::cell::RefCell::new((taken, None));
    ranks.drive_until(&[1, busy], || {
        let (take, got) = &mut *taken.borrow_mut();
        *got = take();
        got.is_some()
    });
    assert_eq!(taken.borrow().1.as_deref(), Some(&b"hello"[..]));
}

/// Regression: once all neighbours of a rank had left, it heard of no death any more.
#[test]
fn a_death_reaches_everyone_however_many_have_left() {
    let mut ranks = Ranks::join(27, &options());
    let leavers: Vec<u32> = ranks.here().filter(|rank| ranks.is_neighbour(1, *rank)).collect();
    assert!(leavers.len() > 3, "{leavers:?}");
    for rank in &leavers {
        ranks.leave(*rank);
    }
    let here: Vec<u32> = ranks.here().collect();
    let hears = |rank: u32| ranks.of(rank, |control| control.absent.next().is_some());
    ranks.drive_until(&here, || here.iter().all(|rank| hears(*rank)));
    here.iter().for_each(|rank| ranks.of(*rank, |control| control.absent.hurry(clock::now())));
    let next_of = |rank: u32| here.iter().copied().find(|other| *other > rank).unwrap_or(here[0]);
    let is_ring = || here.iter().all(|rank| ranks.of(*rank, |control| control.has_link(Rank::new(next_of(*rank)))));
    ranks.drive_until(&here, || {
        here.iter().for_each(|rank| ranks.of(*rank, |control| control.absent.hurry(clock::now())));
        is_ring()
    });
    // And rank 1 has heard of all who left before.
    ranks.drive_until(&here, || leavers.iter().all(|left| ranks.gone(1, *left) == Some(Gone::Left(7))));
    let dead = here.iter().copied().find(|rank| *rank > 1 && next_of(*rank) != 1 && next_of(1) != *rank).unwrap();
    ranks.die(dead);
    let here: Vec<u32> = ranks.here().collect();
    ranks.drive_until(&here, || here.iter().all(|rank| ranks.gone(*rank, dead).is_some()));
    for rank in &here {
        assert!(matches!(ranks.gone(*rank, dead), Some(Gone::Died(_))), "at {rank}");
    }
}
