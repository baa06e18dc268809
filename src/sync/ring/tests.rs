//! Tests of the rings.

use std::time::Duration;

use super::*;
use crate::sync::Deadline;
use crate::sys::memory::SharedMemory;
use crate::sys::region::DeviceId;
use crate::sys::{clock, cpu};

impl Sender {
    /// Takes the receiver for far.
    pub fn become_far(&mut self) {
        self.distance = Distance::far();
    }
}

fn pair(slots: u32) -> (Sender, Receiver) {
    pair_of(Shape { slots, slot_bytes: 64, spread: 1 })
}

fn pair_of(shape: Shape) -> (Sender, Receiver) {
    let memory = SharedMemory::anonymous(shape.memory_bytes()).unwrap().into_region();
    (Sender::new(memory.clone(), shape), Receiver::new(memory, shape))
}

#[test]
fn messages_come_in_order_and_credit_bounds_them() {
    let (mut sender, mut receiver) = pair(2);
    assert!(receiver.peek().unwrap().is_none());
    for turn in 0..10u64 {
        for part in 0..2 {
            let slot = sender.reserve(1).unwrap();
            // SAFETY: a reserved byte.
            unsafe { slot.as_ptr().write(u8::try_from(turn * 2 + part).unwrap()) };
            sender.publish(1, [turn, part, 0]);
        }
        assert!(sender.reserve(1).is_none());
        for part in 0..2 {
            let message = receiver.peek().unwrap().unwrap();
            assert_eq!((message.bytes, message.label), (1, [turn, part, 0]));
            // SAFETY: a message of one byte.
            assert_eq!(u64::from(unsafe { message.payload.as_ptr().read() }), turn * 2 + part);
            receiver.release();
        }
        assert!(sender.drain().0.reached(sender.drain().1));
    }
}

/// A pump looks at slots before those that come first are released, and fills them before those are published.
#[test]
fn slots_ahead_are_those_that_come_later() {
    for bytes in [1, 40] {
        let (mut sender, mut receiver) = pair(3);
        for turn in 0..5u64 {
            let places: Vec<_> = (0..3).map(|ahead| sender.reserve_ahead(ahead, bytes).unwrap()).collect();
            assert!(sender.reserve_ahead(3, bytes).is_none());
            for (part, place) in (0..).zip(places) {
                assert_eq!(sender.reserve(bytes), Some(place));
                assert!(receiver.peek_ahead(part).unwrap().is_none());
                sender.publish(bytes, [turn, part, 0]);
                let message = receiver.peek_ahead(part).unwrap().unwrap();
                assert_eq!((message.bytes, message.label, message.payload), (bytes, [turn, part, 0], place));
            }
            assert!(receiver.peek_ahead(3).unwrap().is_none());
            for part in 0..3 {
                assert_eq!(receiver.peek().unwrap().unwrap().label, [turn, part, 0]);
                receiver.release();
            }
        }
    }
}

/// The payload's addresses are those of a device that this program does not have: an end that followed one would be
/// killed.
#[test]
fn control_words_travel_without_a_touch_of_the_payload() {
    let shape = Shape { slots: 2, slot_bytes: 64, spread: 1 };
    let host = || SharedMemory::anonymous(4096).unwrap().into_region();
    let (head, lines) = (host(), host());
    let address = NonNull::without_provenance(std::num::NonZero::new(0x5ea1_0000_0000_0000_usize).unwrap());
    let keep = crate::sync::primitive::Arc::clone(head.keep());
    // SAFETY: it is said to be no memory of the host, so nobody follows it.
    let payload = unsafe { Region::new(address, 128, Home::Device(DeviceId(1)), keep) };
    let parts = Parts::apart(head, lines, payload, shape);
    let (mut sender, mut receiver) = (Sender::of(parts.clone(), shape), Receiver::of(parts, shape));
    for message in 0..6u64 {
        // A few bytes do not travel in the line either: the device could not write them there.
        let bytes = if message % 2 == 0 { 64 } else { 8 };
        let place = sender.reserve(bytes).unwrap();
        assert_eq!(place.addr().get(), 0x5ea1_0000_0000_0000 + usize::try_from(message % 2).unwrap() * 64);
        sender.publish(bytes, [message; 3]);
        let found = receiver.peek().unwrap().unwrap();
        assert_eq!((found.payload, found.bytes, found.label), (place, bytes, [message; 3]));
        receiver.release();
    }
}

#[test]
fn an_offer_takes_one_slot_whether_it_is_taken_or_withdrawn() {
    let (mut sender, mut receiver) = pair(2);
    for turn in 0..5u64 {
        let posted = sender.offer([turn, 9], [turn; 3]).unwrap();
        let message = receiver.peek().unwrap().unwrap();
        assert!(message.is_offer && message.label == [turn; 3] && sender.settled(&posted).is_none());
        let (whereabouts, word) = receiver.take_offer().unwrap();
        assert!(whereabouts == [turn, 9] && !word.is_stopped() && !posted.word().withdraw());
        assert!(receiver.leave(77));
        assert!(sender.answer().0.reached(sender.answer().1));
        assert_eq!(sender.settled(&posted), Some(77));
        // Withdrawn before and after the receiver has seen it, and filled.
        for seen in [true, false] {
            let posted = sender.offer([turn, 9], [turn; 3]).unwrap();
            assert!(receiver.peek().unwrap().is_some_and(|message| message.is_offer));
            assert!(posted.word().withdraw());
            if seen {
                assert!(receiver.take_offer().is_none() && receiver.peek().unwrap().is_none());
                assert!(!receiver.arrival().0.reached(receiver.arrival().1));
            }
            sender.reserve(64).unwrap();
            sender.publish(64, [turn; 3]);
            let message = receiver.peek().unwrap().unwrap();
            assert!(!message.is_offer && message.bytes == 64);
            receiver.release();
        }
    }
}

/// What `look` finds within a time that no machine needs.
fn found<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Deadline::after(Duration::from_secs(60));
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(!deadline.passed(clock::now()), "the other end does nothing");
        cpu::relax();
    }
}

/// Regression, which ThreadSanitizer shows (`tests/sanitize.sh thread`): a receiver that has seen an offer read its
/// line while the sender, which had withdrawn the offer, wrote the line again.
#[test]
fn an_offer_may_be_withdrawn_while_the_receiver_looks_at_it() {
    const MESSAGES: u64 = 20_000;
    let (mut sender, mut receiver) = pair(2);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for message in 0..MESSAGES {
                found(|| {
                    let seen = receiver.peek().unwrap()?;
                    assert_eq!(seen.label, [message; 3]);
                    if !seen.is_offer {
                        receiver.release();
                    } else if receiver.take_offer().is_some_and(|(at, _)| at == [message, 9]) {
                        assert!(receiver.leave(message));
                    } else {
                        return None;
                    }
                    Some(())
                });
            }
        });
        for message in 0..MESSAGES {
            let posted = found(|| sender.offer([message, 9], [message; 3]));
            // Some are withdrawn at once, others while the receiver looks.
            (0..message % 50).for_each(|_| cpu::relax());
            if posted.word().withdraw() {
                sender.reserve(64).unwrap();
                sender.publish(64, [message; 3]);
            } else {
                assert_eq!(found(|| sender.settled(&posted)), message);
            }
        }
    });
}

/// Messages of any lengths, as many of them under way as there are slots: each is whole when it is read, and all of
/// the memory is used.
#[test]
fn payloads_that_are_spread_stay_whole_and_go_through_all_of_their_memory() {
    let shape = Shape { slots: 4, slot_bytes: 20_032, spread: 2 };
    let (mut sender, mut receiver) = pair_of(shape);
    let length = |message: u64| usize::try_from(message * message * 137 % 20_033).unwrap();
    let byte = |message: u64| u8::try_from(message % 251).unwrap();
    let mut ends = std::collections::BTreeSet::new();
    let (mut sent, mut received) = (0u64, 0u64);
    while received < 500 {
        while let Some(place) = sender.reserve(length(sent)) {
            // SAFETY: the bytes that were reserved.
            unsafe { place.as_ptr().write_bytes(byte(sent), length(sent)) };
            sender.publish(length(sent), [sent; 3]);
            ends.insert(sender.end.0);
            sent += 1;
        }
        assert_eq!(sent - received, 4, "credit is the slots'");
        for _ in 0..=received % 4 {
            let message = receiver.peek().unwrap().unwrap();
            assert_eq!((message.bytes, message.label), (length(received), [received; 3]));
            // SAFETY: the bytes of a message that has come.
            let bytes = unsafe { std::slice::from_raw_parts(message.payload.as_ptr(), message.bytes) };
            assert!(bytes.iter().all(|found| *found == byte(received)), "message {received}");
            receiver.release();
            received += 1;
        }
    }
    let last = ends.last().copied().unwrap_or(0);
    assert!(last <= shape.spread_bytes() && last > shape.spread_bytes() * 3 / 4, "{last}");
}

/// As above, with a sender that changes its mind all the time about how payloads lie.
#[test]
fn payloads_stay_whole_whenever_their_sender_wants_to_pack_or_to_spread_them() {
    let shape = Shape { slots: 4, slot_bytes: 20_032, spread: 2 };
    let (mut sender, mut receiver) = pair_of(shape);
    let length = |message: u64| usize::try_from(message * message * 137 % 20_033).unwrap();
    let byte = |message: u64| u8::try_from(message % 251).unwrap();
    let (mut sent, mut received, mut changes, mut places) = (0u64, 0u64, 0, std::collections::BTreeSet::new());
    while received < 2_000 {
        for _ in 0..=sent * 7 % 4 {
            let before = sender.packs;
            sender.pack(sent / 5 % 2 == 1);
            assert!(before == sender.packs || sent == received, "nothing is under way when it changes over");
            changes += u32::from(before != sender.packs);
            let Some(place) = sender.reserve(length(sent)) else { break };
            // SAFETY: the bytes that were reserved.
            unsafe { place.as_ptr().write_bytes(byte(sent), length(sent)) };
            if sender.packs && length(sent) > BESIDE_LINE {
                places.insert(place);
            }
            sender.publish(length(sent), [sent; 3]);
            sent += 1;
        }
        for _ in 0..=received * 5 % 4 {
            let Some(message) = receiver.peek().unwrap() else { break };
            assert_eq!((message.bytes, message.label), (length(received), [received; 3]));
            // SAFETY: the bytes of a message that has come.
            let bytes = unsafe { std::slice::from_raw_parts(message.payload.as_ptr(), message.bytes) };
            assert!(bytes.iter().all(|found| *found == byte(received)), "message {received}");
            receiver.release();
            received += 1;
        }
    }
    assert!(changes > 50, "{changes}");
    assert_eq!(places.len(), 4, "each slot has its place");
}

/// Sends a message, if there is room.
fn send_byte(sender: &mut Sender) -> bool {
    let has_room = sender.reserve(1).is_some();
    if has_room {
        sender.publish(1, [0; 3]);
    }
    has_room
}

fn receive_byte(receiver: &mut Receiver) {
    assert!(receiver.peek().unwrap().is_some());
    receiver.release();
}

/// Regression: where the ring does not spread payloads, a receiver that was once far stayed so for ever.
#[test]
fn a_sender_measures_one_look_for_credit_in_some_rounds_where_it_may_learn_from_that() {
    for (spread, is_far, expected) in [(2, false, 3), (1, false, 0), (1, true, 3)] {
        let (mut sender, mut receiver) = pair_of(Shape { slots: 4, slot_bytes: 8192, spread });
        if is_far {
            sender.become_far();
        }
        for _ in 0..4 * u64::from(sender.shape().slots) * TIMED_ROUNDS {
            assert!(send_byte(&mut sender));
            receive_byte(&mut receiver);
        }
        assert_eq!(sender.distance.reads(), expected, "spread {spread}, far {is_far}");
    }
}

/// Regression: a line that this end had just read itself made a far receiver a near one.
#[test]
fn a_sender_measures_no_read_that_finds_what_it_has_read_before() {
    let (mut sender, mut receiver) = pair_of(Shape { slots: 4, slot_bytes: 8192, spread: 2 });
    // The receiver is two messages behind.
    for message in 0..4 * TIMED_ROUNDS {
        assert!(send_byte(&mut sender));
        if message >= 2 {
            receive_byte(&mut receiver);
        }
    }
    assert!(send_byte(&mut sender) && send_byte(&mut sender));
    assert_eq!(sender.distance.reads(), 1);
    // The ring is full, and the receiver stands still.
    assert!(!send_byte(&mut sender) && !send_byte(&mut sender));
    assert_eq!(sender.distance.reads(), 1);
    (0..4).for_each(|_| receive_byte(&mut receiver));
    assert!(send_byte(&mut sender));
    receive_byte(&mut receiver);
    assert!(!sender.has_looked);
    sender.pack(true);
    assert!(sender.packs && sender.has_looked, "it has read the head");
}

/// Regression: slots were counted in place of offers, and where each offer followed a message none was measured.
#[test]
fn a_sender_measures_one_answer_in_some_offers() {
    let (mut sender, mut receiver) = pair(2);
    for _ in 0..2 * TIMED_OFFERS {
        assert!(send_byte(&mut sender));
        receive_byte(&mut receiver);
        let posted = sender.offer([1, 2], [0; 3]).unwrap();
        assert!(receiver.peek().unwrap().unwrap().is_offer && receiver.take_offer().is_some());
        assert!(receiver.leave(5));
        assert_eq!(sender.settled(&posted), Some(5));
    }
    assert_eq!(sender.distance.reads(), 2);
}

#[test]
fn a_forged_length_is_the_peers_fault() {
    for spread in [1, 2] {
        let (mut sender, mut receiver) = pair_of(Shape { slots: 2, slot_bytes: 8192, spread });
        sender.reserve(1).unwrap();
        sender.publish(1, [0; 3]);
        for forged in [8193, PACKED | 8193, u64::MAX] {
            sender.view.words(0)[0].store(forged, Ordering::Relaxed);
            assert_eq!(receiver.peek().unwrap_err().kind(), Kind::Remote);
        }
        // The mark alone is none where nothing is spread.
        sender.view.words(0)[0].store(PACKED | 8192, Ordering::Relaxed);
        assert_eq!(receiver.peek().is_ok(), spread == 2);
    }
}

#[test]
fn a_forged_length_of_a_small_ring_is_the_peers_fault() {
    let (mut sender, mut receiver) = pair(1);
    sender.reserve(1).unwrap();
    sender.publish(1, [0; 3]);
    sender.view.words(0)[0].store(65, Ordering::Relaxed);
    assert_eq!(receiver.peek().unwrap_err().kind(), Kind::Remote);
}
