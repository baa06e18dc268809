use std::time::Duration;

use super::*;
use crate::bootstrap::{Bootstrap, LocalBootstrap};
use crate::error::{Error, Kind};
use crate::exec::drive::drive_one;
use crate::exec::turn::{CallTurn, NoBackground, WaitContext};
use crate::sync::{AbortFlag, Deadline, Patience, Wait, Waiting, Watch};
use crate::sys::clock;
use crate::sys::numa::ThreadHome;
use crate::sys::thread;
use crate::transport::{Fabric, PeerInfo, Policy, Receivers, Setup, Sizes, SocketOptions, UserRange, Way};
use crate::types::World;

/// Ends a wait that lasts longer than any machine needs.
struct Limit(Deadline);

impl Watch for Limit {
    fn look(&mut self, waiting_for: &dyn Waiting) -> Result<()> {
        if self.0.passed(clock::now()) { Err(Error::timeout(waiting_for.words())) } else { Ok(()) }
    }
}

const LIMIT: Duration = Duration::from_secs(60);
/// The deadline of a wait that is meant to reach it.
const SOON: Duration = Duration::from_millis(20);

/// What a rank of two has that share memory, with a connection from rank 0 to rank 1.
struct Side {
    bootstrap: LocalBootstrap,
    fabric: Fabric,
}

impl Side {
    fn new(bootstrap: LocalBootstrap, policy: Policy) -> Side {
        let token = crate::transport::process_token().unwrap();
        let peers: Vec<PeerInfo> = (0..2)
            .map(|rank| {
                let (rank, home, pid) = (Rank::new(rank), ThreadHome::default(), std::process::id());
                PeerInfo {
                    rank,
                    host: 1,
                    process: token,
                    pid,
                    space: 0,
                    cores: 2,
                    settings: 0,
                    tuning: 0,
                    home,
                    switches: [0; 4],
                    is_traced: false,
                }
            })
            .collect();
        let sockets = SocketOptions::default();
        let shape = Shape { slots: 4, slot_bytes: 16 << 10, spread: 1 };
        let sizes =
            Sizes { shape, messages_in_memory: shape, messages_over_sockets: shape, scratch_bytes: 4096, sockets };
        let (rank, wait) = (bootstrap.world().rank, Wait::new(LIMIT, &AbortFlag::new()));
        let mut fabric = Fabric::new(World { rank, size: 2 }, &peers, policy, sizes);
        let (way, peer) = if rank.get() == 0 { (Way::Send, 1) } else { (Way::Receive, 0) };
        let need = Need { way, peer: Rank::new(peer), channel: Channel::PointToPoint };
        let mut watch = Limit(Deadline::after(LIMIT));
        let mut turn = CallTurn {
            patience: &mut Patience::fixed(16, Duration::from_micros(20)),
            watch: &mut watch,
            bootstrap: &bootstrap,
            background: &mut NoBackground,
            progress: None,
        };
        let mut setup = Setup { bootstrap: &bootstrap, wait: &wait, turn: &mut turn };
        fabric.connect(&[need], Receivers::Come, &mut setup).unwrap();
        Side { bootstrap, fabric }
    }

    /// Registers a buffer, together with the other rank; and how long its memory is.
    fn register(&mut self) -> (crate::exec::Buffer<u8>, u64) {
        let whole = crate::exec::Buffer::<u8>::new(20_000).unwrap();
        let buffer = whole.known();
        let wait = Wait::new(LIMIT, &AbortFlag::new());
        let mut turn = CallTurn {
            patience: &mut Patience::fixed(16, Duration::from_micros(20)),
            watch: &mut Limit(Deadline::after(LIMIT)),
            bootstrap: &self.bootstrap,
            background: &mut NoBackground,
            progress: None,
        };
        let mut setup = Setup { bootstrap: &self.bootstrap, wait: &wait, turn: &mut turn };
        self.fabric.open_windows(&mut setup).unwrap();
        self.fabric.register(&buffer, &mut setup).unwrap();
        let bytes = buffer.memory.bytes() as u64;
        (whole, bytes)
    }

    fn run(&mut self, run: &mut MessageRun<'_>) -> Result<()> {
        self.run_within(LIMIT, run)
    }

    fn run_within(&mut self, limit: Duration, run: &mut MessageRun<'_>) -> Result<()> {
        let turn = CallTurn {
            patience: &mut Patience::fixed(16, Duration::from_micros(20)),
            watch: &mut Limit(Deadline::after(limit)),
            bootstrap: &self.bootstrap,
            background: &mut NoBackground,
            progress: None,
        };
        let mut wait_context = WaitContext { turn, fabric: &mut self.fabric };
        drive_one(run, &mut wait_context)
    }

    fn links(&mut self) -> &mut Links {
        self.fabric.links()
    }
}

fn sending(data: &[u8]) -> MessageRun<'_> {
    MessageRun::new(Message::send(data, Rank::new(1)), Collective::Send, 0)
}

fn receiving(into: &mut [u8]) -> MessageRun<'_> {
    MessageRun::new(Message::recv(into, Rank::new(0)), Collective::Send, 0)
}

/// Both sides, connected.
fn sides(policy: Policy) -> [Side; 2] {
    // However fast this machine's kernel copies.
    let policy = Policy { slow_peer_reads: true, ..policy };
    let connect = |bootstrap| Side::new(bootstrap, policy);
    let sides = thread::side_by_side("rank", LocalBootstrap::world(2).unwrap(), connect, || ()).unwrap();
    sides.try_into().unwrap_or_else(|_| unreachable!("two ranks"))
}

fn data(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from(at % 251).expect("below 251")).collect()
}

/// Messages and bytes that went through slots.
fn through_slots(sender: &mut Side) -> (u64, u64) {
    sender.links().sender(Rank::new(1), Channel::PointToPoint).published()
}

/// Smaller and larger than all slots together, as threads and as processes are connected.
#[test]
fn a_message_that_is_waited_for_is_copied_once() {
    for no_local in [false, true] {
        let [mut sender, mut receiver] = sides(Policy { no_local, ..Policy::default() });
        for bytes in [16 << 10, 50_001, 1 << 20] {
            let (sent, mut got) = (data(bytes), vec![0; bytes]);
            let before = through_slots(&mut sender).1;
            let mut send = sending(&sent);
            assert_eq!(send.progress(sender.links()).unwrap(), Progress::Moved, "offered, not sent");
            receiver.run(&mut receiving(&mut got)).unwrap();
            sender.run(&mut send).unwrap();
            assert!(got == sent && through_slots(&mut sender).1 == before, "{bytes}");
        }
    }
}

/// The promise of `send`: a message that finds room does not wait for its receiver.
#[test]
fn a_message_whose_receiver_is_late_goes_through_all_slots() {
    let [mut sender, mut receiver] = sides(Policy::default());
    for _ in 0..3 {
        let (sent, mut got) = (data(64 << 10), vec![0; 64 << 10]);
        let mut recv = receiving(&mut got);
        assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Idle);
        sender.run(&mut sending(&sent)).unwrap();
        receiver.run(&mut recv).unwrap();
        drop(recv);
        assert!(got == sent);
    }
    assert_eq!(through_slots(&mut sender), (12, 3 << 16));
}

#[test]
fn the_pieces_of_the_promised_messages_fit_their_ring_whatever_the_length() {
    for slots in [8, 32, 64] {
        let shape = Shape { slots, slot_bytes: (1 << 20) / slots, spread: 1 };
        for bytes in [0_usize, 1, 63, 8 << 10, (8 << 10) + 1, 33_000, 100_001, 128 << 10] {
            let pieces = bytes.div_ceil(piece_bytes(bytes, shape)).max(1);
            assert!(
                pieces * PROMISED_MESSAGES as usize <= slots as usize,
                "{pieces} pieces of {bytes} in {slots} slots"
            );
        }
        assert_eq!((128_usize << 10).div_ceil(piece_bytes(128 << 10, shape)), (slots / PROMISED_MESSAGES) as usize);
    }
}

#[test]
fn a_receiver_that_may_not_read_gets_the_message_through_slots() {
    let [mut sender, mut receiver] = sides(Policy::default());
    receiver.links().reads.refused_by(Rank::new(0));
    for turn in 0..2 {
        let (sent, mut got) = (data(60_000), vec![0; 60_000]);
        let mut send = sending(&sent);
        let _under_way = send.progress(sender.links()).unwrap();
        assert_eq!(send.offer.is_some(), turn == 0, "a refusal is remembered");
        let mut recv = receiving(&mut got);
        let _under_way = recv.progress(receiver.links()).unwrap();
        sender.run(&mut send).unwrap();
        receiver.run(&mut recv).unwrap();
        drop(recv);
        assert!(got == sent);
    }
    let [mut sender, _] = sides(Policy { no_peer_reads: true, ..Policy::default() });
    let mut send = sending(&[1; 20_000]);
    assert_eq!(send.progress(sender.links()).unwrap(), Progress::Done, "forbidden by the setting");
}

/// The sender's memory is gone: the receiver does not crash, and takes the message from slots.
#[test]
fn memory_that_cannot_be_read_is_no_message() {
    const BYTES: usize = 16 << 10;
    let [mut sender, mut receiver] = sides(Policy::default());
    let (sent, mut got) = (data(BYTES), vec![0; BYTES]);
    let mut recv = receiving(&mut got);
    let witness = sender.links().reads.witness().unwrap();
    let ring = sender.links().sender(Rank::new(1), Channel::PointToPoint);
    // The system maps nothing at the second page.
    let posted = ring.offer([witness, 4096], recv.label).unwrap();
    assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Moved);
    assert_eq!((ring.settled(&posted), recv.moved), (Some(0), 0));
    let slot = ring.reserve(BYTES).unwrap();
    // SAFETY: a reserved slot of as many bytes.
    unsafe { slot.as_ptr().copy_from_nonoverlapping(sent.as_ptr(), BYTES) };
    ring.publish(BYTES, recv.label);
    assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Done);
    drop(recv);
    assert!(got == sent);
}

/// Regression: everything else stood still while one long message was read.
#[test]
fn a_long_message_is_read_in_parts_and_a_sender_waits_for_none_between_them() {
    const BYTES: usize = 2 * LOOK_BYTES + 5;
    let [mut sender, mut receiver] = sides(Policy::default());
    let (sent, mut got) = (data(BYTES), vec![0; BYTES]);
    let mut recv = receiving(&mut got);
    let at = [sender.links().reads.witness().unwrap(), sent.as_ptr().expose_provenance() as u64];
    let ring = sender.links().sender(Rank::new(1), Channel::PointToPoint);
    // It fails in between: the memory is the sender's at once, and what was read is void.
    let posted = ring.offer(at, recv.label).unwrap();
    assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Moved);
    assert!(posted.word().is_taken() && posted.word().stop() && recv.moved == LOOK_BYTES);
    assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Idle);
    assert_eq!((recv.moved, recv.begun), (0, false));
    let [mut sender, mut receiver] = sides(Policy::default());
    let ring = sender.links().sender(Rank::new(1), Channel::PointToPoint);
    let posted = ring.offer(at, recv.label).unwrap();
    for part in [1, 2] {
        assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Moved);
        assert!(recv.moved == part * LOOK_BYTES && ring.settled(&posted).is_none());
    }
    assert_eq!(recv.progress(receiver.links()).unwrap(), Progress::Done);
    assert_eq!(ring.settled(&posted), Some(BYTES as u64));
    drop(recv);
    assert!(got == sent);
}

/// The same of an offer that names memory which was never registered.
#[test]
fn memory_that_was_not_registered_is_no_message() {
    const BYTES: usize = 16 << 10;
    let policy = Policy { no_local: true, slow_peer_reads: true, ..Policy::default() };
    let connect = |bootstrap| {
        let mut side = Side::new(bootstrap, policy);
        let (_buffer, bytes) = side.register();
        (side, bytes)
    };
    let sides = thread::side_by_side("rank", LocalBootstrap::world(2).unwrap(), connect, || ()).unwrap();
    let [(mut sender, _), (mut receiver, length)] = sides.try_into().unwrap_or_else(|_| unreachable!("two ranks"));
    let mut got = vec![0; BYTES];
    let mut recv = receiving(&mut got);
    let last = length - BYTES as u64;
    let never = [(0, last + 1, 0), (0, u64::MAX, 0), (0, 0, 1), (1, 0, 0), (u16::MAX, u64::MAX, u32::MAX)];
    for (window, offset, serial) in never.into_iter().chain([(0, last, 0)]) {
        let range = OfferedRange { range: UserRange { window, offset }, serial };
        let ring = sender.links().sender(Rank::new(1), Channel::PointToPoint);
        let posted = ring.offer(range.words(), recv.label).unwrap();
        assert_eq!(OfferedRange::of_words(range.words()), Some(range));
        recv.begun = false;
        let is_registered = (window, offset, serial) == (0, last, 0);
        let expected = if is_registered { (Progress::Done, BYTES) } else { (Progress::Moved, 0) };
        assert_eq!((recv.progress(receiver.links()).unwrap(), recv.moved), expected, "{range:?}");
        let ring = sender.links().sender(Rank::new(1), Channel::PointToPoint);
        assert_eq!(ring.settled(&posted), Some(expected.1 as u64));
    }
    assert_eq!(OfferedRange::of_words([0x7fff_ffff_f000, 5]), None, "an address");
}

/// A sender with a buffer that both have registered, and a receiver.
fn registered_sides(policy: Policy) -> ([Side; 2], crate::exec::Buffer<u8>) {
    let connect = |bootstrap| {
        let mut side = Side::new(bootstrap, policy);
        let (buffer, _) = side.register();
        (side, buffer)
    };
    let sides = thread::side_by_side("rank", LocalBootstrap::world(2).unwrap(), connect, || ()).unwrap();
    let [(sender, sent), (receiver, _)] = sides.try_into().unwrap_or_else(|_| unreachable!("two ranks"));
    ([sender, receiver], sent)
}

/// Regression: a message to a far processor took a rendezvous and the receiver's copy, up to 1.9 times as long as two
/// copies by slots.
#[test]
fn registered_memory_is_copied_twice_where_the_receiver_is_far() {
    let policy = Policy { no_local: true, no_peer_reads: true, ..Policy::default() };
    let ([mut sender, mut receiver], sent) = registered_sides(policy);
    let mut got = vec![0; sent.len()];
    for is_far in [false, true] {
        if is_far {
            sender.links().sender(Rank::new(1), Channel::PointToPoint).become_far();
        }
        let before = through_slots(&mut sender).1;
        let mut send = sending(&sent);
        let _under_way = send.progress(sender.links()).unwrap();
        receiver.run(&mut receiving(&mut got)).unwrap();
        sender.run(&mut send).unwrap();
        let expected = if is_far { sent.len() as u64 } else { 0 };
        assert_eq!(through_slots(&mut sender).1 - before, expected, "far: {is_far}");
        assert!(got == sent[..]);
    }
}

/// Regression: where the kernel may read it, a message out of registered memory for a far receiver was read by the
/// kernel, which takes a rendezvous as well, and longer than its mapping.
#[test]
fn registered_memory_is_read_in_its_mapping_where_the_kernel_could_read_it_for_a_far_receiver() {
    let policy = Policy { no_local: true, slow_peer_reads: true, ..Policy::default() };
    let ([mut sender, mut receiver], sent) = registered_sides(policy);
    sender.links().sender(Rank::new(1), Channel::PointToPoint).become_far();
    let (mut send, mut got) = (sending(&sent), vec![0; sent.len()]);
    let _under_way = send.progress(sender.links()).unwrap();
    assert!(send.offer.as_ref().expect("it is offered").lent.is_some());
    receiver.run(&mut receiving(&mut got)).unwrap();
    sender.run(&mut send).unwrap();
    assert!(got == sent[..]);
}

/// Regression: where a peer had written over the ring, its flag said that an answer was there and the offer that
/// none was, and the sender went round for ever.
#[test]
fn an_answer_that_is_none_is_waited_for_until_the_deadline() {
    let [mut sender, _receiver] = sides(Policy::default());
    let sent = data(1 << 20);
    let mut send = sending(&sent);
    let _offered = send.progress(sender.links()).unwrap();
    let (flag, answered) = sender.links().sender(Rank::new(1), Channel::PointToPoint).answer();
    flag.raise(answered);
    let error = sender.run_within(SOON, &mut send).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
}

#[test]
fn the_offer_of_a_call_that_has_failed_is_void() {
    let [mut sender, mut receiver] = sides(Policy::default());
    let (sent, mut got) = (data(20_000), vec![0; 20_000]);
    let mut send = sending(&sent);
    let _offered = send.progress(sender.links()).unwrap();
    drop(send);
    assert_eq!(receiving(&mut got).progress(receiver.links()).unwrap(), Progress::Idle);
    assert!(got.iter().all(|byte| *byte == 0));
}
