//! Set-ups whose peers do not come.

use std::sync::Barrier;

use super::*;
use crate::bootstrap::{LocalBootstrap, NetBootstrap, Options, Root};
use crate::sync::ring::Shape;
use crate::sys::numa::ThreadHome;
use crate::sys::thread;
use crate::transport::{Channel, EndRequest, QueueBytes, QueuePart, SocketOptions, Way};

/// A watch that hears after some turns that another rank has failed.
struct HearsSoon(u32);

impl Turn<Fabric> for HearsSoon {
    fn turn(&mut self, _: &mut Fabric, _: &mut Backoff, _: &dyn Waiting) -> Result<Turned> {
        self.0 -= 1;
        if self.0 == 0 { Err(Error::remote(Rank::new(7), "rank 7 has failed")) } else { Ok(Turned::Awake) }
    }
}

/// A wait that opens what peers ask for, and moves connections on, until a deadline.
struct Serves<'a> {
    bootstrap: &'a LocalBootstrap,
    until: Deadline,
}

impl Turn<Fabric> for Serves<'_> {
    fn turn(&mut self, fabric: &mut Fabric, _: &mut Backoff, waiting_for: &dyn Waiting) -> Result<Turned> {
        if self.until.passed(clock::now()) {
            return Err(Error::timeout(waiting_for.words()));
        }
        if let Some(ask) = EndRequest::next(self.bootstrap) {
            fabric.open_for(ask, self.bootstrap)?;
        }
        Ok(if fabric.pay(self.bootstrap)? { Turned::Moved } else { Turned::Tired(Duration::from_micros(50)) })
    }
}

/// A rank among `size`, of which each is a process of its own: on a host of its own, or all on one.
fn fabric(rank: Rank, size: u32, has_own_host: bool) -> Fabric {
    let peer = |number: u32| PeerInfo {
        rank: Rank::new(number),
        host: if has_own_host { number.into() } else { 0 },
        process: u64::from(number),
        pid: number,
        space: 0,
        cores: 2,
        settings: 0,
        tuning: 0,
        home: ThreadHome::default(),
        switches: [0; 4],
        is_traced: false,
    };
    let peers: Vec<PeerInfo> = (0..size).map(peer).collect();
    let sockets = SocketOptions::default();
    let shape = Shape { slots: 2, slot_bytes: 64, spread: 1 };
    let sizes = Sizes { shape, messages_in_memory: shape, messages_over_sockets: shape, scratch_bytes: 4096, sockets };
    Fabric::new(World { rank, size }, &peers, Policy::default(), sizes)
}

/// The first message to a rank leaves only when that rank is in a call. After a failure it may come to none: whoever
/// offers it a connection must hear of the failure meanwhile, and not wait until the deadline.
#[test]
fn who_offers_a_connection_hears_of_failures_though_the_peer_comes_to_no_call() {
    const SIZE: u32 = 9;
    let options = Options { interfaces: "=lo".parse().unwrap(), ..Options::default() };
    let (id, _root) = Root::serve(&options).unwrap();
    let wait = |limit| Wait::new(limit, &AbortFlag::new());
    let all = Barrier::new(SIZE as usize);
    let run = |rank: Rank| {
        let bootstrap = NetBootstrap::join(&[id], rank, SIZE, &options, &wait(LIMIT)).unwrap();
        bootstrap.barrier(&wait(LIMIT)).unwrap();
        // From here on only rank 0 is in a call.
        all.wait();
        let mut outcomes = Vec::new();
        if rank.index() == 0 {
            let mut fabric = fabric(rank, SIZE, true);
            // Of 9 ranks 4 and 5 are no neighbours of 0: there is no connection yet.
            let need = |peer| Need { way: Way::Receive, peer: Rank::new(peer), channel: Channel::Collective(0) };
            let (wait, mut turn) = (wait(TOO_LONG), HearsSoon(20));
            let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, turn: &mut turn };
            outcomes.push(fabric.connect(&[need(4)], Receivers::Come, &mut setup));
            let mut turn = HearsSoon(20);
            let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, turn: &mut turn };
            outcomes.push(fabric.open_queues(&[need(5)], &mut setup));
            // Whoever asks for the other end waits no longer.
            let sends = |peer| Need { way: Way::Send, channel: Channel::PointToPoint, ..need(peer) };
            let mut turn = HearsSoon(20);
            let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, turn: &mut turn };
            outcomes.push(fabric.connect(&[sends(4)], Receivers::AreAsked, &mut setup));
        }
        all.wait();
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(7)), "{error}");
        }
    };
    thread::side_by_side("rank", (0..SIZE).map(Rank::new).collect(), run, || ()).unwrap();
}

/// Rank 0 sends on the host and rank 1 receives on its device: each asks the other for the other end, and opens it in
/// its own wait. Memory of both kinds, slots at the sender, and wires beside each other: each end finds its own.
#[test]
fn a_ring_and_a_queue_of_one_pair_are_opened_at_once() {
    let queues = |at_sender: Option<usize>| {
        let bytes = QueueBytes { at_receiver: 4096, at_sender };
        let (sharing, readers, crossing) = (Sharing::Processes, Vec::new(), Vec::new());
        QueueMemory { sharing, usual: bytes, with_readers: bytes, readers, crossing }
    };
    for queues in [None, Some(queues(None)), Some(queues(Some(8192)))] {
        let run = |bootstrap: LocalBootstrap| {
            let me = bootstrap.world().rank;
            let mut fabric = fabric(me, 2, queues.is_none());
            fabric.queues.here = queues.clone().map(|queues| (Home::Host, queues));
            let mut turn = Serves { bootstrap: &bootstrap, until: Deadline::after(LIMIT) };
            let wait = Wait::new(LIMIT, &AbortFlag::new());
            let way = if me.index() == 0 { Way::Send } else { Way::Receive };
            let need = Need { way, peer: Rank::new(1 - me.get()), channel: Channel::PointToPoint };
            let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, turn: &mut turn };
            match way {
                Way::Send => fabric.connect(&[need], Receivers::AreAsked, &mut setup).unwrap(),
                Way::Receive => fabric.open_queues(&[need], &mut setup).unwrap(),
            }
            // Both have to be open here: whoever has asked has what it wants, and the other one may wait for it.
            let mut backoff = Backoff::new(SETUP_PATIENCE);
            let has_both = |fabric: &mut Fabric| {
                let has_queue = match &queues {
                    None => fabric.queues.has((need, QueuePart::AtReceiver)),
                    Some(queues) => fabric
                        .queue(&need)
                        .is_some_and(|memory| memory.at_sender.is_some() == queues.usual.at_sender.is_some()),
                };
                has_queue && fabric.is_connected(&need) && !fabric.owes()
            };
            while !has_both(&mut fabric) {
                turn.turn(&mut fabric, &mut backoff, &|| "the other kind of connection".to_owned()).unwrap();
            }
            assert_eq!(fabric.take_far_end(&need).is_some(), queues.is_none());
        };
        thread::side_by_side("rank", LocalBootstrap::world(2).unwrap(), run, || ()).unwrap();
    }
}

/// More than any machine needs.
const LIMIT: Duration = Duration::from_secs(60);
/// What a rank must not wait for that hears of a failure.
const TOO_LONG: Duration = Duration::from_secs(4);
