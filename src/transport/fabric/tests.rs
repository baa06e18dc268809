//! Set-ups whose peers do not come.

use std::sync::Barrier;

use super::*;
use crate::bootstrap::{NetBootstrap, Options, Root};
use crate::sync::AbortFlag;
use crate::sync::ring::Shape;
use crate::sys::numa::ThreadHome;
use crate::transport::{Channel, SocketOptions, Way};

/// A watch that hears after some turns that another rank has failed.
struct HearsSoon(u32);

impl Turn<Fabric> for HearsSoon {
    fn turn(&mut self, _: &mut Fabric, _: &mut Backoff, _: &dyn Waiting) -> Result<Turned> {
        self.0 -= 1;
        if self.0 == 0 { Err(Error::remote(Rank::new(7), "rank 7 has failed")) } else { Ok(Turned::Awake) }
    }
}

/// A rank of `size` hosts.
fn fabric(rank: Rank, size: u32) -> Fabric {
    let peer = |number: u32| PeerInfo {
        rank: Rank::new(number),
        host: u64::from(number),
        process: u64::from(number),
        pid: number,
        space: 0,
        cores: 2,
        settings: 0,
        tuning: 0,
        home: ThreadHome::default(),
        switches: [0; 4],
    };
    let peers: Vec<PeerInfo> = (0..size).map(peer).collect();
    let sockets = SocketOptions { sockets: 1, send_buffer_bytes: None, receive_buffer_bytes: None };
    let shape = Shape { slots: 2, slot_bytes: 64 };
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
    let wait = |seconds| Wait::new(Duration::from_secs(seconds), &AbortFlag::new());
    let all = Barrier::new(SIZE as usize);
    let run = |rank: Rank| {
        let bootstrap = NetBootstrap::join(&[id], rank, SIZE, &options, &wait(30)).unwrap();
        bootstrap.barrier(&wait(30)).unwrap();
        // From here on only rank 0 is in a call.
        all.wait();
        let mut outcomes = Vec::new();
        if rank.index() == 0 {
            let mut fabric = fabric(rank, SIZE);
            // Of 9 ranks 4 and 5 are no neighbours of 0: there is no connection yet.
            let need = |peer| Need { way: Way::Receive, peer: Rank::new(peer), channel: Channel::Collective(0) };
            let (wait, mut turn) = (wait(4), HearsSoon(20));
            let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, turn: &mut turn };
            outcomes.push(fabric.connect(&[need(4)], Receivers::Come, &mut setup));
            let mut turn = HearsSoon(20);
            let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, turn: &mut turn };
            outcomes.push(fabric.open_queues(&[need(5)], &mut setup));
        }
        all.wait();
        for outcome in outcomes {
            let error = outcome.unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(7)), "{error}");
        }
    };
    std::thread::scope(|scope| {
        let run = &run;
        for rank in (0..SIZE).map(Rank::new) {
            scope.spawn(move || run(rank));
        }
    });
}
