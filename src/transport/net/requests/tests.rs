//! Connections over the test NIC: both pumps, the hand-shake, and peers that break the rules.

use std::ptr::NonNull;

use super::RequestNet;
use super::connection::{
    CHUNK_BYTES, CHUNK_PAYLOAD, CHUNKS, Permission, RequestConnection, STRAIGHT, STRAIGHT_HEAD, STRAIGHT_SIZES,
    StraightMemory,
};
use super::receive_pump::RequestReceivePump;
use super::send_pump::RequestSendPump;
use crate::bootstrap::LocalBootstrap;
use crate::device::{HostMemory, Sharing};
use crate::error::{Kind, Result};
use crate::sync::primitive::{Arc, Mutex};
use crate::sync::ring::{Label, Receiver, Sender, Shape};
use crate::transport::net::request_nic::endpoint::{NicEndpoint, SharedEndpoint};
use crate::transport::net::request_nic::{FoundNic, Posted, RequestWay};
use crate::transport::net::test_nic::{Manners, TestNic};
use crate::transport::net::wire::{HEADER_BYTES, encode};
use crate::transport::nic_hold::NicHold;
use crate::transport::pump::{Passed, Pump, PumpSleep, Taken, Waits, Wire};
use crate::transport::table::{ExpectedWire, Opening};
use crate::types::Rank;

/// Slots of more than all chunks hold.
const SHAPE: Shape = Shape { slots: 2, slot_bytes: 1 << 20, spread: 1 };
/// Turns after which something has gone wrong, whatever the NIC's manners.
const MOST_TURNS: usize = 200_000;

/// Turns until `step` yields something.
fn turns<T>(mut step: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    for _ in 0..MOST_TURNS {
        if let Some(done) = step()? {
            return Ok(done);
        }
    }
    panic!("nothing moves");
}

/// The two ends of a connection, of ranks 0 and 1.
fn connected(manners: Manners) -> Result<[RequestConnection; 2]> {
    connected_by([manners; 2])
}

/// The same of ends whose NICs have manners of their own.
fn connected_by(manners: [Manners; 2]) -> Result<[RequestConnection; 2]> {
    connected_over(&manners.map(TestNic::new))
}

fn connected_over([one, other]: &[TestNic; 2]) -> Result<[RequestConnection; 2]> {
    let [one, other] = [NicEndpoint::open(one)?, NicEndpoint::open(other)?].map(|end| Arc::new(Mutex::new(end)));
    let (listener, handle) = other.lock().listen()?;
    let id = turns(|| one.lock().connect(&handle))?;
    let accepted = turns(|| {
        other.lock().progress()?;
        other.lock().accept(listener)
    })?;
    let end = |peer, endpoint: &SharedEndpoint, id| RequestConnection::new(Rank::new(peer), endpoint, id);
    Ok([end(1, &one, id)?, end(0, &other, accepted)?])
}

fn ring() -> (Sender, Receiver) {
    let memory = HostMemory.allocate_host(SHAPE.memory_bytes(), Sharing::Threads).unwrap();
    (Sender::new(memory.clone(), SHAPE), Receiver::new(memory, SHAPE))
}

/// A ring that a sender fills with its pump, and the pump of the receiver with its ring.
type Pumped = ((Sender, RequestSendPump), (RequestReceivePump, Receiver));

fn pumped(manners: Manners) -> Result<Pumped> {
    Ok(pumped_over(connected(manners)?))
}

fn pumped_over([one, other]: [RequestConnection; 2]) -> Pumped {
    let ((outbox, outgoing), (incoming, inbox)) = (ring(), ring());
    let send = RequestSendPump::new(one, Box::new(outgoing));
    ((outbox, send), (RequestReceivePump::new(other, Box::new(incoming)), inbox))
}

fn label(number: usize) -> Label {
    [7, number as u64, 9]
}

#[expect(clippy::cast_possible_truncation, reason = "any byte will do")]
fn content(number: usize, bytes: usize) -> Vec<u8> {
    let period: Vec<u8> = (0..251u8).map(|at| at.wrapping_mul(31).wrapping_add(number as u8)).collect();
    let mut content = period.repeat(bytes.div_ceil(period.len()));
    content.truncate(bytes);
    content
}

fn publish(outbox: &mut Sender, content: &[u8], label: Label) -> bool {
    let Some(slot) = outbox.reserve(content.len()) else { return false };
    // SAFETY: the reserved slot has room for `content`, and nobody reads it before `publish`.
    unsafe { slot.as_ptr().copy_from_nonoverlapping(content.as_ptr(), content.len()) };
    outbox.publish(content.len(), label);
    true
}

fn taken(inbox: &mut Receiver) -> Option<(Vec<u8>, Label)> {
    let message = inbox.peek().unwrap()?;
    // SAFETY: the message lies in its slot until it is released.
    let content = unsafe { std::slice::from_raw_parts(message.payload.as_ptr().cast_const(), message.bytes) }.to_vec();
    inbox.release();
    Some((content, message.label))
}

/// Sizes around those of headers, chunks, and all chunks together.
const SIZES: [usize; 12] = [
    0,
    1,
    40,
    CHUNK_PAYLOAD - HEADER_BYTES,
    CHUNK_PAYLOAD - 1,
    CHUNK_PAYLOAD,
    CHUNK_PAYLOAD + 1,
    2 * CHUNK_PAYLOAD,
    CHUNKS * CHUNK_PAYLOAD,
    CHUNKS * CHUNK_PAYLOAD + 5,
    1 << 20,
    3,
];

/// Messages of these sizes, several times, through rings.
fn exchange(manners: Manners, sizes: &[usize]) -> Result<()> {
    let ((mut outbox, mut send), (mut receive, mut inbox)) = pumped(manners)?;
    let (mut sent, mut came) = (0, 0);
    turns(|| {
        while sent < 3 * sizes.len() && publish(&mut outbox, &content(sent, sizes[sent % sizes.len()]), label(sent)) {
            sent += 1;
        }
        send.progress()?;
        receive.progress()?;
        while let Some(message) = taken(&mut inbox) {
            assert!(message == (content(came, sizes[came % sizes.len()]), label(came)), "message {came}");
            came += 1;
        }
        Ok((came == 3 * sizes.len() && send.drained()).then_some(()))
    })?;
    assert_eq!((send.waits(), receive.waits()), (Waits::Ring, Waits::Nothing));
    Ok(())
}

#[test]
fn messages_of_all_sizes_come_whole_and_in_order_whatever_the_manners_of_the_nic() {
    for (late, shy) in [(1, u64::MAX), (1, 2), (4, 3), (9, 2), (2, 5)] {
        exchange(Manners { late, shy, ..Manners::WORST }, &SIZES).unwrap();
        exchange(Manners { late, shy, ..Manners::STRAIGHT }, &SIZES).unwrap();
    }
}

#[test]
fn sends_may_be_done_at_once() {
    for manners in [Manners::WORST, Manners::STRAIGHT] {
        exchange(Manners { injects: true, ..manners }, &SIZES).unwrap();
    }
}

/// Half of the chunks are enough, and so is a single one.
#[test]
fn a_nic_of_few_requests_carries_them_too() {
    for count in [1, 2, 3, 4, CHUNKS, CHUNKS + 3, 2 * CHUNKS] {
        exchange(Manners::with_requests(count), &SIZES).unwrap();
    }
    for count in [4, 5, 8, CHUNKS, 4 * CHUNKS] {
        exchange(Manners { most_sends: count, most_receives: count, ..Manners::STRAIGHT }, &SIZES).unwrap();
    }
}

#[test]
fn a_call_that_fails_is_an_error_that_names_the_peer_and_no_worse() {
    let mut failed = 0;
    for fails_at in 1..60 {
        if let Err(error) = exchange(Manners { fails_at, ..Manners::WORST }, &[5, 2 * CHUNK_PAYLOAD, 0]) {
            let has_peer = error.peer().is_some_and(|peer| peer < 2);
            assert!(has_peer || error.kind() == Kind::Internal, "{error}");
            failed += 1;
        }
    }
    assert!(failed > 30, "{failed}");
}

/// The receiver cannot ask for more, so nothing more comes: that is told as soon as more is owed, and not where the
/// peer has sent all that it had to, and is gone.
#[test]
fn credit_that_cannot_be_given_is_an_error_once_more_has_to_come() {
    for (sizes, is_told) in [(&[1 << 20; 3][..], true), (&[5; CHUNKS], false)] {
        let ends =
            connected_by([Manners::WORST, Manners { sends_fail_at: 2, shy: u64::MAX, ..Manners::WORST }]).unwrap();
        let ((mut outbox, mut send), (mut receive, mut inbox)) = pumped_over(ends);
        let (mut sent, mut came) = (0, 0);
        let outcome = turns(|| {
            if let Some(size) = sizes.get(sent) {
                sent += usize::from(publish(&mut outbox, &content(sent, *size), label(sent)));
            }
            send.progress()?;
            receive.progress()?;
            came += usize::from(taken(&mut inbox).is_some());
            Ok((came == sizes.len()).then_some(()))
        });
        if !is_told {
            outcome.unwrap();
            assert!((0..100).all(|_| receive.progress().is_ok()));
            // But where one more is waited for, all that was asked for has come.
            // SAFETY: nothing comes.
            let error = unsafe { receive.take(NonNull::dangling(), (1, label(9)), &mut None) }.unwrap_err();
            assert_eq!(error.peer(), Some(0));
            continue;
        }
        let error = outcome.unwrap_err();
        assert_eq!(error.peer(), Some(0));
        assert!(error.message().contains("the test wants this send to fail"), "{error}");
    }
}

/// A NIC may lose what its endpoint has not delivered when it is closed.
#[test]
fn a_sender_parts_when_the_receiver_has_said_that_it_has_taken_all() {
    let ((mut outbox, mut send), (mut receive, mut inbox)) = pumped(Manners::WORST).unwrap();
    for number in 0..2 {
        assert!(publish(&mut outbox, &content(number, 9), label(number)));
    }
    turns(|| {
        send.progress()?;
        receive.progress()?;
        Ok(send.drained().then_some(()))
    })
    .unwrap();
    for _ in 0..1000 {
        receive.progress().unwrap();
        assert!(!send.part(), "the NIC has them, and the receiver has not said that it has");
    }
    turns(|| Ok((receive.part() & send.part()).then_some(()))).unwrap();
    assert!(taken(&mut inbox).is_some());
}

/// What the receiver does not take stays with the sender, beyond the chunks for which it has credit.
#[test]
fn no_message_leaves_before_the_receiver_has_asked_for_it() {
    // It posts at once all receives that it may.
    let ((mut outbox, mut send), (mut receive, mut inbox)) =
        pumped(Manners { late: 1, shy: u64::MAX, ..Manners::WORST }).unwrap();
    assert!(publish(&mut outbox, &content(0, 5), label(0)));
    for _ in 0..1000 {
        send.progress().unwrap();
    }
    assert!(!send.drained() && send.waits() == Waits::Nothing, "no receive is posted yet");
    let mut sent = 1;
    for _ in 0..10_000 {
        while publish(&mut outbox, &content(sent, 5), label(sent)) {
            sent += 1;
        }
        send.progress().unwrap();
        receive.progress().unwrap();
    }
    // The slots and all chunks of the sender, and what the receiver has asked for at first: two of these are in its
    // slots, and of two more receives it tells with others.
    assert_eq!(sent, 2 * CHUNKS + SHAPE.slots as usize);
    assert_eq!(receive.waits(), Waits::Ring, "its ring is full");
    for number in 0..sent {
        let message = turns(|| {
            send.progress()?;
            receive.progress()?;
            Ok(taken(&mut inbox))
        });
        assert_eq!(message.unwrap(), (content(number, 5), label(number)));
    }
}

/// Past both rings: from the caller's memory to the caller's memory.
#[test]
fn messages_pass_and_are_taken_past_the_rings() {
    for bytes in [8 << 10, CHUNK_PAYLOAD + 9, CHUNKS * CHUNK_PAYLOAD, 1 << 20] {
        let ((mut outbox, mut send), (mut receive, mut inbox)) = pumped(Manners::WORST).unwrap();
        let (from, mut into) = (content(1, bytes), vec![0u8; bytes]);
        let expected = (bytes, label(1));
        let slot = outbox.reserve(bytes).unwrap();
        let start = NonNull::new(from.as_ptr().cast_mut()).unwrap();
        // SAFETY: both are good for the message's bytes.
        let passed = unsafe { send.pass(start, slot, expected) }.unwrap();
        let is_whole = bytes <= CHUNKS * CHUNK_PAYLOAD;
        assert_eq!(passed, if is_whole { Passed::Whole } else { Passed::Partly });
        if !is_whole {
            outbox.publish(bytes, label(1));
        }
        // The sender's memory is its own again.
        drop(from);
        let place = NonNull::new(into.as_mut_ptr()).unwrap();
        turns(|| {
            send.progress()?;
            // SAFETY: good for the message's bytes.
            let taken = unsafe { receive.take(place, expected, &mut None) }?;
            assert!(taken != Taken::ByRing);
            Ok((taken == Taken::Whole).then_some(()))
        })
        .unwrap();
        assert!(into == content(1, bytes) && inbox.peek().unwrap().is_none());
        // The next one is another message than the receiver waits for: it comes by the ring.
        assert!(publish(&mut outbox, &content(2, 9000), label(2)));
        let by_ring = turns(|| {
            send.progress()?;
            // SAFETY: as above.
            let taken = unsafe { receive.take(place, (bytes, label(3)), &mut None) }?;
            Ok((taken == Taken::ByRing).then_some(()))
        });
        by_ring.unwrap();
        let message = turns(|| {
            receive.progress()?;
            Ok(taken(&mut inbox))
        });
        assert_eq!(message.unwrap(), (content(2, 9000), label(2)));
    }
}

/// A NIC that can sends from the caller's memory into the caller's memory: in a message that a slot holds, and in one
/// that the ring announces because none does.
#[test]
fn messages_go_straight_from_memory_to_memory() {
    for (late, shy) in [(1, u64::MAX), (4, 3), (2, 5)] {
        for bytes in [STRAIGHT_SIZES.start, 1 << 20, (1 << 20) + 1, 3 << 20] {
            let ((mut outbox, mut send), (mut receive, mut inbox)) =
                pumped(Manners { late, shy, ..Manners::STRAIGHT }).unwrap();
            // Whatever lies in the ring goes before it.
            assert!(publish(&mut outbox, &content(0, 70_000), label(0)));
            let (from, mut into) = (content(1, bytes), vec![0u8; bytes]);
            let (start, place) = (NonNull::from(&from[..]).cast(), NonNull::from(&mut into[..]).cast());
            let (expected, mut sent, mut held) = ((bytes, label(1)), None, None);
            let (mut first, mut is_announced) = (None, bytes <= SHAPE.slot_bytes as usize);
            turns(|| {
                send.progress()?;
                if first.is_none() {
                    receive.progress()?;
                    first = taken(&mut inbox);
                    return Ok(None);
                }
                if sent.is_none() {
                    // SAFETY: `from` outlives what is kept of it.
                    sent = unsafe { send.hand_over(start, expected) }?;
                }
                if !is_announced {
                    receive.progress()?;
                    is_announced = taken(&mut inbox).inspect(|told| assert!(*told == (Vec::new(), label(1)))).is_some();
                    return Ok(None);
                }
                // SAFETY: `into` outlives what is kept of it.
                let taken = unsafe { receive.take(place, expected, &mut held) }?;
                Ok((taken == Taken::Whole).then_some(()))
            })
            .unwrap();
            assert!(first.unwrap() == (content(0, 70_000), label(0)));
            assert!(held.unwrap().is_over() && into == content(1, bytes) && inbox.peek().unwrap().is_none());
            turns(|| {
                send.progress()?;
                Ok(send.drained().then_some(()))
            })
            .unwrap();
            assert!(sent.unwrap().is_over());
        }
    }
}

/// What follows a message that goes into the caller's memory comes meanwhile, and is seen after it.
#[test]
fn messages_behind_one_that_is_taken_wait_in_their_slots() {
    let ((mut outbox, mut send), (mut receive, mut inbox)) = pumped(Manners::STRAIGHT).unwrap();
    let sizes = [200_000, 300_000];
    (0..2).for_each(|number| assert!(publish(&mut outbox, &content(number, sizes[number]), label(number))));
    let (mut into, mut hold) = (vec![0u8; sizes[0]], None);
    let place = NonNull::from(&mut into[..]).cast();
    turns(|| {
        send.progress()?;
        // SAFETY: `into` outlives what is kept of it.
        let is_whole = unsafe { receive.take(place, (sizes[0], label(0)), &mut hold) }? == Taken::Whole;
        assert!(inbox.peek()?.is_none());
        Ok(is_whole.then_some(()))
    })
    .unwrap();
    let next = turns(|| {
        send.progress()?;
        receive.progress()?;
        Ok(taken(&mut inbox))
    });
    assert!(into == content(0, sizes[0]) && next.unwrap() == (content(1, sizes[1]), label(1)));
}

/// A call that ends early closes the NIC before its memory goes back, at whichever end.
#[test]
fn memory_that_a_nic_has_goes_back_when_the_nic_is_closed() {
    for is_sender in [true, false] {
        let nics = [(); 2].map(|()| TestNic::new(Manners::STRAIGHT));
        let ((mut outbox, mut send), (mut receive, _inbox)) = pumped_over(connected_over(&nics).unwrap());
        let bytes = 100_000;
        let (from, mut into, mut held) = (content(1, bytes), vec![0u8; bytes], None);
        if is_sender {
            let start = NonNull::from(&from[..]).cast();
            // SAFETY: `from` outlives what is kept of it.
            held = Some(turns(|| unsafe { send.hand_over(start, (bytes, label(1))) }).unwrap());
        } else {
            assert!(publish(&mut outbox, &from, label(1)));
            let place = NonNull::from(&mut into[..]).cast();
            turns(|| {
                send.progress()?;
                // SAFETY: `into` outlives what is kept of it.
                assert!(unsafe { receive.take(place, (bytes, label(1)), &mut held) }? != Taken::Whole);
                Ok(held.is_some().then_some(()))
            })
            .unwrap();
        }
        let hold = held.unwrap();
        assert!(!hold.is_over());
        assert_eq!(nics.each_ref().map(TestNic::closed), [0, 0]);
        drop(hold);
        assert_eq!(nics.each_ref().map(TestNic::closed), [u64::from(is_sender), u64::from(!is_sender)]);
        let error = if is_sender { send.progress().unwrap_err() } else { receive.progress().unwrap_err() };
        assert!(error.message().contains("a call ended while a NIC had memory of it"), "{error}");
    }
}

/// A receive of a rest for which the NIC had no room is tried again soon, whatever the NIC's descriptor tells.
#[test]
fn nobody_sleeps_who_has_a_receive_of_a_rest_to_post() {
    let ((mut outbox, mut send), (mut receive, mut inbox)) =
        pumped(Manners { is_ready: true, late: 1, shy: 2, ..Manners::STRAIGHT }).unwrap();
    let (mut sent, mut came, mut later) = (0, 0, 0);
    turns(|| {
        sent += usize::from(sent == came && publish(&mut outbox, &content(sent, 100_000), label(sent)));
        send.progress()?;
        receive.progress()?;
        came += usize::from(taken(&mut inbox).is_some());
        if receive.lacks_rest() {
            later += 1;
            assert!(matches!(receive.sleep()?, PumpSleep::Ask));
        }
        Ok((came == 40).then_some(()))
    })
    .unwrap();
    assert!(later > 0, "its NIC always had room");
}

/// A NIC that fails at any call of any step has given its memory back, or it is closed when the call ends.
#[test]
fn a_message_that_goes_straight_and_fails_leaves_no_memory_with_a_nic() {
    let (mut failed, mut closed) = (0, 0);
    let calls = (10..110).flat_map(|call| [(0, (call, u64::MAX)), (1, (call, u64::MAX))]);
    // Sends of the receiver alone: the word that it awaits the rest.
    for (end, (fails_at, sends_fail_at)) in calls.chain((1..5).map(|send| (1, (u64::MAX, send)))) {
        let mut manners = [Manners::STRAIGHT; 2];
        (manners[end].fails_at, manners[end].sends_fail_at) = (fails_at, sends_fail_at);
        let nics = manners.map(TestNic::new);
        let Ok(ends) = connected_over(&nics) else { continue };
        let ((_outbox, mut send), (mut receive, _inbox)) = pumped_over(ends);
        let (from, mut into) = (content(1, 300_000), vec![0u8; 300_000]);
        let (start, place) = (NonNull::from(&from[..]).cast(), NonNull::from(&mut into[..]).cast());
        let (expected, mut sent, mut held, mut has_come) = ((from.len(), label(1)), None, None, false);
        let outcome = turns(|| {
            send.progress()?;
            if sent.is_none() {
                // SAFETY: `from` outlives what is kept of it.
                sent = unsafe { send.hand_over(start, expected) }?;
            }
            // SAFETY: `into` outlives what is kept of it.
            has_come = has_come || unsafe { receive.take(place, expected, &mut held) }? == Taken::Whole;
            Ok((has_come && sent.as_ref().is_some_and(NicHold::is_over)).then_some(()))
        });
        let out = [&sent, &held].map(|hold| u64::from(hold.as_ref().is_some_and(|hold| !hold.is_over())));
        drop((sent, held));
        let are_closed = nics.each_ref().map(TestNic::closed);
        match outcome {
            Ok(()) => assert!(out == [0; 2] && are_closed == [0; 2] && into == from),
            Err(error) => {
                assert_eq!(error.peer(), Some(1 - u32::try_from(end).unwrap()), "{error}");
                // What failed while it was lent has no hold that the caller sees: it has closed its NIC at once.
                assert!(out[0] <= are_closed[0] && out[1] <= are_closed[1], "{manners:?}");
                (failed, closed) = (failed + 1, closed + are_closed[0] + are_closed[1]);
            }
        }
    }
    assert!(failed > 20 && closed > 10, "{failed}, {closed}");
}

/// Sends bytes as a chunk, as a peer might that breaks the rules.
fn send_raw(connection: &mut RequestConnection, bytes: &[u8]) {
    // SAFETY: a chunk has room for them, and is not under way.
    unsafe { connection.chunk(0).as_ptr().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    turns(|| {
        connection.progress()?;
        Ok((connection.send_chunk(0, bytes.len())? != Posted::Later).then_some(()))
    })
    .unwrap();
}

#[test]
fn what_a_peer_sends_is_held_against_its_header_and_the_header_against_the_slot() {
    let header = |bytes: usize| encode(bytes, label(0)).to_vec();
    let with = |bytes: usize, payload: usize| [header(bytes), vec![1; payload]].concat();
    for (raw, words) in [
        (vec![1; HEADER_BYTES - 1], "less than a header"),
        (header(SHAPE.slot_bytes as usize + 1), "where 1048576 fit"),
        (header(usize::MAX), "where 1048576 fit"),
        (with(10, 9), "a part of a message of 10 bytes"),
        (with(10, 11), "a part of a message of 10 bytes"),
        (with(CHUNK_PAYLOAD + 1, CHUNK_PAYLOAD - 1), "a part of a message"),
    ] {
        let [mut peer, me] = connected(Manners::WORST).unwrap();
        let (incoming, _inbox) = ring();
        let mut receive = RequestReceivePump::new(me, Box::new(incoming));
        receive.progress().unwrap();
        assert!(raw.len() <= CHUNK_BYTES);
        send_raw(&mut peer, &raw);
        let error = turns(|| receive.progress().map(|_| None::<()>)).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(0)));
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn the_rest_of_a_message_is_held_against_its_header() {
    let whole = STRAIGHT_SIZES.start;
    let header = |word: u64| [&word.to_le_bytes()[..], &encode(0, label(0))[8..], &[1; STRAIGHT_HEAD]].concat();
    for (word, rest, words) in [
        (STRAIGHT | 9, 0, "of which the NIC should carry a part"),
        (STRAIGHT | (STRAIGHT - 1), 0, "of which the NIC should carry a part"),
        (STRAIGHT | whole as u64, whole - STRAIGHT_HEAD - 1, "as the rest of a message of"),
    ] {
        let [mut peer, me] = connected(Manners::STRAIGHT).unwrap();
        let (incoming, _inbox) = ring();
        let mut receive = RequestReceivePump::new(me, Box::new(incoming));
        receive.progress().unwrap();
        send_raw(&mut peer, &header(word));
        let mut is_sent = rest == 0;
        let content = vec![1u8; whole];
        let error = turns(|| {
            if !is_sent {
                let memory = StraightMemory::Lent(NonNull::from(&content[..]).cast());
                // SAFETY: the content outlives the connection's endpoint.
                is_sent = unsafe { peer.post_straight(RequestWay::Out, (memory, rest)) }? != Posted::Later;
            }
            peer.progress()?;
            receive.progress().map(|_| None::<()>)
        })
        .unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(0)), "{error}");
        assert!(error.message().contains(words), "{error}");
    }
}

#[test]
fn credit_is_held_against_what_was_sent() {
    let all = CHUNKS as u64;
    let memo = |chunks, rests| Permission { chunks, rests }.encode().to_vec();
    for (credits, is_right) in [
        (vec![memo(all, 0)], true),
        (vec![memo(1, 0), memo(all, 0)], true),
        (vec![memo(all + 1, 0)], false),
        (vec![memo(u64::MAX, 0)], false),
        (vec![memo(0, 0)], false),
        (vec![memo(all, 0); 2], false),
        // Nothing was announced that could go straight.
        (vec![memo(all, 1)], false),
        (vec![memo(all, 0)[..15].to_vec()], false),
        (vec![vec![8]], false),
        (vec![vec![]], false),
    ] {
        let [me, mut peer] = connected(Manners::WORST).unwrap();
        let (_outbox, outgoing) = ring();
        let mut send = RequestSendPump::new(me, Box::new(outgoing));
        for credit in &credits {
            turns(|| {
                peer.progress()?;
                Ok(peer.send_memo(credit)?.then_some(()))
            })
            .unwrap();
        }
        let outcome = (0..1000).try_for_each(|_| send.progress().map(drop));
        assert_eq!(outcome.is_ok(), is_right, "{credits:?}");
        if let Err(error) = outcome {
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)));
        }
    }
}

/// Ranks 0 and 1 of a world, whose secret both know, on a NIC.
fn nets(worlds: &[LocalBootstrap], manners: Manners) -> [RequestNet; 2] {
    assert_eq!(worlds.len(), 2);
    let found = || -> Arc<dyn FoundNic> { Arc::new(TestNic::new(manners)) };
    [0, 1].map(|rank| RequestNet::new(Rank::new(rank), found()))
}

/// Opens a connection from rank 0 to rank 1, whose offer `change` may change.
fn open(worlds: &[LocalBootstrap], change: impl Fn(&mut Vec<u8>)) -> Result<(Box<dyn Wire>, Box<dyn Wire>)> {
    opened_by(&mut nets(worlds, Manners::WORST), worlds, [0, 1], change)
}

/// Opens a connection from one of two ranks to the other.
fn opened(
    nets: &mut [RequestNet; 2],
    worlds: &[LocalBootstrap],
    ends: [usize; 2],
) -> Result<(Box<dyn Wire>, Box<dyn Wire>)> {
    opened_by(nets, worlds, ends, |_| ())
}

fn opened_by(
    nets: &mut [RequestNet; 2],
    worlds: &[LocalBootstrap],
    [from, to]: [usize; 2],
    change: impl Fn(&mut Vec<u8>),
) -> Result<(Box<dyn Wire>, Box<dyn Wire>)> {
    let rank = |end: usize| Rank::new(u32::try_from(end).expect("few"));
    let ExpectedWire { ticket, mut offer, .. } = nets[to].listen(rank(from), &worlds[to])?;
    change(&mut offer);
    let mut dialling = nets[from].dial(rank(to), &offer, &worlds[from])?;
    let (mut one, mut other) = (None, None);
    turns(|| {
        nets[to].serve()?;
        if one.is_none() {
            one = dialling.progress()?;
        }
        for (came, wire) in nets[to].accept() {
            assert_eq!(came, ticket);
            other = Some(wire);
        }
        let are_both = one.is_some() && other.is_some();
        Ok(if are_both { one.take().zip(other.take()) } else { None })
    })
}

#[test]
fn a_connection_opens_and_carries_messages() {
    let worlds = LocalBootstrap::world(2).unwrap();
    let (sender, receiver) = open(&worlds, |_| ()).unwrap();
    let ((mut outbox, outgoing), (incoming, mut inbox)) = (ring(), ring());
    let (mut send, mut receive) = (sender.send(Box::new(outgoing)), receiver.receive(Box::new(incoming)));
    assert!(publish(&mut outbox, b"words", label(4)));
    let message = turns(|| {
        send.progress()?;
        receive.progress()?;
        Ok(taken(&mut inbox))
    });
    assert_eq!(message.unwrap(), (b"words".to_vec(), label(4)));
}

#[test]
fn who_does_not_know_the_secret_is_refused() {
    let mut worlds = LocalBootstrap::world(2).unwrap();
    let breaks: [fn(&mut Vec<u8>); 3] = [|offer| offer.truncate(9), |offer| offer.push(0), |offer| offer[8] = 255];
    for broken in breaks {
        let error = open(&worlds, broken).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)), "{error}");
    }
    // Of another communicator, whose secret is another.
    worlds[0] = LocalBootstrap::world(2).unwrap().remove(0);
    let mut nets = nets(&worlds, Manners::WORST);
    let ExpectedWire { offer, .. } = nets[1].listen(Rank::new(0), &worlds[1]).unwrap();
    let mut dialling = nets[0].dial(Rank::new(1), &offer, &worlds[0]).unwrap();
    let refused = turns(|| {
        nets[1].serve()?;
        // Whatever it hears.
        let _told = dialling.progress();
        Ok(nets[1].refused())
    });
    assert!(refused.unwrap().starts_with("this rank has refused 1 connection to its NIC from rank 0: "));
    assert!(nets[1].accept().is_empty() && !nets[1].is_waiting());
}

/// Receives cannot be taken back, and sends may wait for a peer that calls nothing: who has many idle connections must
/// still be able to open the next one and to move it, either way.
#[test]
fn idle_connections_leave_the_next_one_what_it_needs() {
    let worlds = LocalBootstrap::world(2).unwrap();
    // More of one than of the other: neither bound is the other's.
    let counts = [(16, 16), (64, 16), (16, 64)];
    let by_chunks = counts.map(|(most_sends, most_receives)| Manners { most_sends, most_receives, ..Manners::WORST });
    // What goes straight has requests of its own beside those of chunks, of either way.
    let straight = counts.map(|(most_sends, most_receives)| {
        let (most_sends, most_receives) = (2 * most_sends, 2 * most_receives);
        Manners { most_sends, most_receives, ..Manners::STRAIGHT }
    });
    for manners in by_chunks.into_iter().chain(straight) {
        let mut nets = nets(&worlds, manners);
        let mut idle = Vec::new();
        for _ in 0..7 {
            let wires = opened(&mut nets, &worlds, [0, 1]).unwrap();
            let (mut sender, mut receiver) = carriers(wires);
            // One message, so that both ends have begun.
            carry(&mut sender, &mut receiver, idle.len());
            idle.push((sender, receiver));
        }
        let (mut sender, mut receiver) = carriers(opened(&mut nets, &worlds, [1, 0]).unwrap());
        (0..20).for_each(|number| carry(&mut sender, &mut receiver, number));
        for (sender, receiver) in &mut idle {
            (0..20).for_each(|number| carry(sender, receiver, number));
        }
        let error = opened(&mut nets, &worlds, [0, 1]).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::System, None));
        for words in ["takes requests of 8 connections", "rank 0 is one more", "NCCL_NET=Socket has no such limit"] {
            assert!(error.message().contains(words), "{error}");
        }
    }
}

/// The ring and the pump of an end.
type SendingEnd = (Sender, Box<dyn Pump>);
type ReceivingEnd = (Receiver, Box<dyn Pump>);

fn carriers((sender, receiver): (Box<dyn Wire>, Box<dyn Wire>)) -> (SendingEnd, ReceivingEnd) {
    let ((outbox, outgoing), (incoming, inbox)) = (ring(), ring());
    ((outbox, sender.send(Box::new(outgoing))), (inbox, receiver.receive(Box::new(incoming))))
}

/// A message of several chunks; each end sees the other's last word.
fn carry((outbox, send): &mut SendingEnd, (inbox, receive): &mut ReceivingEnd, number: usize) {
    let content = content(number, 3 * CHUNK_PAYLOAD);
    assert!(publish(outbox, &content, label(number)));
    let message = turns(|| {
        send.progress()?;
        receive.progress()?;
        Ok(taken(inbox))
    });
    assert!(message.unwrap() == (content, label(number)));
    turns(|| {
        receive.progress()?;
        send.progress()?;
        Ok(send.drained().then_some(()))
    })
    .unwrap();
}

/// What is wrong with one connection is no matter of the others, on neither side.
#[test]
fn a_connection_that_does_not_open_leaves_the_endpoint_to_others() {
    let worlds = LocalBootstrap::world(2).unwrap();
    let mut nets = nets(&worlds, Manners::WORST);
    // A handle that the NIC does not take: the receiver hears nothing of it.
    let error = opened_by(&mut nets, &worlds, [0, 1], |offer| offer.truncate(9)).unwrap_err();
    assert_eq!((error.peer(), nets[1].refused()), (Some(1), None), "{error}");
    // Two whose tickets are wrong, of which the receiver tells.
    for told in ["1 connection to its NIC from rank 0", "2 connections to its NIC, the last from rank 0"] {
        let mut served = 0;
        let change = |offer: &mut Vec<u8>| offer[0] ^= 1;
        let ExpectedWire { mut offer, .. } = nets[1].listen(Rank::new(0), &worlds[1]).unwrap();
        change(&mut offer);
        let mut dialling = nets[0].dial(Rank::new(1), &offer, &worlds[0]).unwrap();
        let mut is_open = false;
        turns(|| {
            nets[1].serve()?;
            is_open = is_open || dialling.progress()?.is_some();
            served += 1;
            let refused = nets[1].refused().is_some_and(|refused| refused.contains(told));
            Ok(refused.then_some(()))
        })
        .unwrap();
        assert!(nets[1].refused().unwrap().contains("took an offer for"), "after {served} turns");
    }
    let (mut sender, mut receiver) = carriers(opened(&mut nets, &worlds, [0, 1]).unwrap());
    carry(&mut sender, &mut receiver, 0);
}

/// A NIC may have no room for what nobody awaits.
#[test]
fn a_sender_awaits_all_memos_that_may_come_within_its_share_of_requests() {
    for (requests, others, left) in [(64, 0, 30), (8, 0, 2), (8, 1, 3)] {
        let manners = Manners { shy: u64::MAX, ..Manners::with_requests(requests) };
        let found = TestNic::new(manners);
        let [one, other] = [(); 2].map(|()| Arc::new(Mutex::new(NicEndpoint::open(&found).unwrap())));
        let (_, handle) = other.lock().listen().unwrap();
        let id = turns(|| one.lock().connect(&handle)).unwrap();
        let connection = RequestConnection::new(Rank::new(1), &one, id).unwrap();
        (0..others).for_each(|_| one.lock().add_connection());
        let mut send = RequestSendPump::new(connection, Box::new(ring().1));
        send.progress().unwrap();
        // One of its receives is the connection's own, and the others are of those for all.
        assert_eq!(one.lock().receives_for(0), left, "{requests} requests");
    }
}

/// What a NIC says of one that has come is that listener's.
#[test]
fn a_peer_that_a_nic_does_not_admit_leaves_the_endpoint_to_others_and_is_named() {
    let worlds = LocalBootstrap::world(2).unwrap();
    let manners = Manners { admits_after: 1, ..Manners::WORST };
    let [mut listens, mut calls] = nets(&worlds, manners);
    let expected = [0, 1].map(|_| listens.listen(Rank::new(1), &worlds[0]).unwrap());
    let mut open = expected.map(|one| calls.dial(Rank::new(0), &one.offer, &worlds[1]).unwrap());
    turns(|| {
        listens.serve()?;
        let _stuck = open[0].progress()?;
        let _wire = open[1].progress()?;
        Ok((!listens.accept().is_empty()).then_some(()))
    })
    .unwrap();
    let refused = listens.refused().unwrap();
    assert!(refused.contains("from rank 1: the test wants this peer"), "{refused}");
}

/// A sender that has nothing more to send is not called: the others need not wait for its calls.
#[test]
fn an_end_that_pauses_leaves_the_nic_to_the_next_one() {
    let worlds = LocalBootstrap::world(2).unwrap();
    let mut nets = nets(&worlds, Manners { late: 1, shy: u64::MAX, ..Manners::WORST });
    let (mut there, mut back) =
        (carriers(opened(&mut nets, &worlds, [0, 1]).unwrap()), carriers(opened(&mut nets, &worlds, [1, 0]).unwrap()));
    carry(&mut back.0, &mut back.1, 0);
    carry(&mut there.0, &mut there.1, 0);
    // The answer lies in the NIC: as many turns of the one end that is called as it takes to see it.
    assert!(publish(&mut back.0.0, &content(1, 9), label(1)));
    turns(|| Ok(back.0.1.progress()?.then_some(()))).unwrap();
    let mut asked = 0;
    turns(|| {
        asked += 1;
        back.1.1.progress()?;
        Ok(taken(&mut back.1.0))
    })
    .unwrap();
    assert!(asked <= 2, "{asked}");
}

#[test]
fn a_listener_that_nobody_takes_serves_the_next_connection() {
    let worlds = LocalBootstrap::world(2).unwrap();
    let mut nets = nets(&worlds, Manners::with_requests(4));
    let tickets = [(); 2].map(|()| nets[1].listen(Rank::new(0), &worlds[1]).unwrap().ticket);
    let error = nets[1].listen(Rank::new(0), &worlds[1]).unwrap_err();
    assert!(error.message().contains("takes requests of 2 connections of a communicator"), "{error}");
    // One that it does not know changes nothing.
    nets[1].withdraw(tickets[0] ^ tickets[1]);
    assert!(nets[1].listen(Rank::new(0), &worlds[1]).is_err());
    nets[1].withdraw(tickets[0]);
    let (mut sender, mut receiver) = carriers(opened(&mut nets, &worlds, [0, 1]).unwrap());
    carry(&mut sender, &mut receiver, 0);
    assert!(nets[1].listen(Rank::new(0), &worlds[1]).is_err());
}

#[test]
fn an_opening_says_what_it_waits_for() {
    let worlds = LocalBootstrap::world(2).unwrap();
    let [mut sender, mut receiver] = nets(&worlds, Manners { shy: 1, ..Manners::WORST });
    let ExpectedWire { offer, .. } = receiver.listen(Rank::new(0), &worlds[1]).unwrap();
    let mut dialling: Box<dyn Opening<Box<dyn Wire>>> = sender.dial(Rank::new(1), &offer, &worlds[0]).unwrap();
    assert!(dialling.progress().unwrap().is_none() && receiver.is_waiting());
    assert!(dialling.standing().unwrap().contains("has not taken"));
}
