//! Tests of both pumps over encrypted sockets, with somebody in between who sees and may change what goes over them.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::ptr::NonNull;

use super::*;
use crate::bootstrap::sealed::{self, CipherKind};
use crate::sync::ring::{Receiver, Sender};
use crate::transport::net::receive_pump::ReceivePump;
use crate::transport::net::send_pump::SendPump;
use crate::transport::net::tests::{Counting, content, publish, ring, take};
use crate::transport::pump::{InPieces, Passed, Pump, Taken, Waits};
use crate::types::Rank;

/// What somebody between two ends does with records.
type Attack = dyn Fn(&mut Vec<Vec<u8>>);

const BOTH: [CipherKind; 2] = [CipherKind::Aes128Gcm, CipherKind::ChaCha20Poly1305];

/// A connection, cut in the middle: what the sender writes comes out of `tap`, what is written to `feed` goes to the
/// receiver.
struct Cut {
    outbox: Sender,
    send: SendPump<SealedSocket<Counting>>,
    receive: ReceivePump<SealedSocket<Counting>>,
    inbox: Receiver,
    tap: Counting,
    feed: Counting,
    /// The sockets of the sender and of the receiver.
    ends: [Counting; 2],
}

fn cut(cipher: CipherKind) -> Cut {
    let [[to, tap], [feed, from]] = [Counting::pair(), Counting::pair()];
    let [one, other] = sealed::pair(cipher);
    let ((outbox, outgoing), (incoming, inbox)) = (ring(), ring());
    let out = vec![SealedSocket::new(to.clone(), one)];
    let into = vec![SealedSocket::new(from.clone(), other)];
    let send = SendPump::new(Rank::new(1), Box::new(outgoing), out);
    let receive = ReceivePump::new(Rank::new(0), Box::new(incoming), into);
    Cut { outbox, send, receive, inbox, tap, feed, ends: [to, from] }
}

impl Cut {
    /// What has come from the sender.
    fn tapped(&self) -> Vec<u8> {
        let mut bytes = vec![0; 1 << 20];
        match (&*self.tap.stream).read(&mut bytes) {
            Ok(count) => bytes[..count].to_vec(),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                Vec::new()
            }
        }
    }

    fn feed(&self, bytes: &[u8]) {
        (&*self.feed.stream).write_all(bytes).unwrap();
    }

    /// Hands on all that comes until nothing does.
    fn relay(&mut self) {
        loop {
            let moved = self.send.progress().unwrap();
            let bytes = self.tapped();
            self.feed(&bytes);
            if !self.receive.progress().unwrap() && !moved && bytes.is_empty() {
                return;
            }
        }
    }

    fn pass(&mut self, content: &[u8]) -> Passed {
        let label = [7, 8, content.len() as u64];
        let slot = self.outbox.reserve(content.len()).expect("a free slot");
        // SAFETY: `content` is good for its bytes, and the slot was reserved for them.
        let passed = unsafe { self.send.pass(NonNull::from(content).cast(), slot, (content.len(), label)) }.unwrap();
        if passed == Passed::Partly {
            self.outbox.publish(content.len(), label);
        }
        passed
    }

    fn take_past(&mut self, into: &mut [u8]) -> Taken {
        let (bytes, label) = (into.len(), [7, 8, into.len() as u64]);
        // SAFETY: `into` is good for its bytes.
        unsafe { self.receive.take(NonNull::from(into).cast(), (bytes, label), &mut None) }.unwrap()
    }
}

#[test]
fn messages_arrive_and_nobody_in_between_sees_them() {
    for cipher in BOTH {
        let mut cut = cut(cipher);
        for (number, bytes) in [0, 1, 8, 31, 1000, 4064, 4065, 20_000, 65_535, 65_536].into_iter().enumerate() {
            let sent = content(bytes, number);
            publish(&mut cut.outbox, &sent);
            let mut seen = Vec::new();
            while !cut.send.drained() {
                cut.send.progress().unwrap();
                seen.extend(cut.tapped());
            }
            let eights: HashSet<&[u8]> = seen.windows(8).collect();
            assert!(!sent.chunks_exact(8).any(|plain| eights.contains(plain)), "{bytes} bytes");
            assert!(!eights.contains(&7u64.to_le_bytes()[..]), "not even the label");
            cut.feed(&seen);
            cut.receive.progress().unwrap();
            assert!(take(&mut cut.inbox) == sent, "{bytes} bytes");
        }
    }
}

#[test]
fn messages_go_past_the_rings_too() {
    for cipher in BOTH {
        let mut cut = cut(cipher);
        for number in 0..20 {
            let (sent, mut got) = (content(20_000 + number, number), vec![0; 20_000 + number]);
            assert_eq!(cut.pass(&sent), Passed::Whole);
            let bytes = cut.tapped();
            cut.feed(&bytes);
            assert_eq!(cut.take_past(&mut got), Taken::Whole);
            assert!(got == sent && cut.send.drained() && cut.inbox.peek().unwrap().is_none());
            publish(&mut cut.outbox, &sent);
            cut.relay();
            assert_eq!(take(&mut cut.inbox), sent);
        }
    }
}

/// As without encryption: one call at each end, and both know that nothing more is there.
#[test]
fn a_small_message_costs_one_call_at_each_end() {
    let mut cut = cut(BOTH[0]);
    for number in 1..=100 {
        let content = content([8, 0, 1000][number % 3], number);
        publish(&mut cut.outbox, &content);
        assert!(cut.send.progress().unwrap() && cut.send.drained());
        let bytes = cut.tapped();
        cut.feed(&bytes);
        assert!(cut.receive.progress().unwrap());
        assert_eq!(take(&mut cut.inbox), content);
        assert_eq!(cut.ends.each_ref().map(Counting::calls), [number as u64; 2]);
        assert_eq!(cut.receive.waits(), Waits::Descriptor);
    }
}

/// A record that has begun has to end: pieces that are handed over together may be cut anywhere.
#[test]
fn pieces_are_not_handed_over_together() {
    for cipher in BOTH {
        let mut cut = cut(cipher);
        let sent = content(64 << 10, 3);
        let slot = cut.outbox.reserve(16 << 10).expect("a free slot");
        let message = InPieces { bytes: sent.len(), piece: 16 << 10, label: [7, 8, 9] };
        // SAFETY: `sent` is good for its bytes, and the slot for a piece.
        let passed = unsafe { cut.send.pass_pieces(NonNull::from(&sent[..]).cast(), slot, message) }.unwrap();
        assert_eq!(passed, (0, Passed::Nothing));
        assert_eq!((cut.tapped().len(), cut.ends[0].calls()), (0, 0));
    }
}

/// Regression: a message of 64 KiB took two records, and one of 128 KiB three, the last with 32 bytes, each with a call
/// of its own at both ends.
#[test]
fn a_piece_of_a_collective_takes_no_record_for_its_last_bytes() {
    let header = [3; HEADER_BYTES];
    for (bytes, expected) in [(64 << 10, &[65_568][..]), (128 << 10, &[65_568, 65_536])] {
        let ([to, tap], [one, _]) = (Counting::pair(), sealed::pair(BOTH[0]));
        // Room for all, with what the system adds to it.
        socket2::SockRef::from(&*to.stream).set_send_buffer_size(1 << 20).unwrap();
        let socket = SealedSocket::new(to.clone(), one);
        let payload = content(bytes, 1);
        let taken = socket.write_from(&[IoSlice::new(&header), IoSlice::new(&payload)]).unwrap();
        assert_eq!((taken, to.calls()), (Some(HEADER_BYTES + bytes), 1), "all at once");
        let mut seen = vec![0; 1 << 20];
        let count = (&*tap.stream).read(&mut seen).unwrap();
        seen.truncate(count);
        let (mut lengths, mut left) = (Vec::new(), &seen[..]);
        while let Some(length) = left.first_chunk::<4>() {
            lengths.push(u32::from_le_bytes(*length));
            left = &left[usize::try_from(lengths[lengths.len() - 1]).unwrap() + RECORD_OVERHEAD..];
        }
        assert_eq!(lengths, expected);
    }
}

/// What the socket does not take of a record is not sent: the pump knows that, and the caller's memory is its own.
#[test]
fn a_record_that_the_system_takes_in_part_is_under_way() {
    for cipher in BOTH {
        let mut cut = cut(cipher);
        let (mut messages, mut sent) = (Vec::new(), content(60_000, 1));
        loop {
            let passed = cut.pass(&sent);
            messages.push(sent.clone());
            sent.fill(0);
            if passed == Passed::Partly {
                break;
            }
            assert!(messages.len() < 100, "the socket takes all");
            sent = content(60_000, messages.len());
        }
        assert!(!cut.send.drained());
        assert_eq!((cut.send.waits(), cut.send.progress().unwrap()), (Waits::Descriptor, false));
        for message in messages {
            while cut.inbox.peek().unwrap().is_none() {
                let bytes = cut.tapped();
                cut.feed(&bytes);
                cut.receive.progress().unwrap();
                cut.send.progress().unwrap();
            }
            assert!(take(&mut cut.inbox) == message);
        }
        cut.relay();
        assert!(cut.send.drained());
    }
}

#[test]
fn a_stream_that_comes_byte_by_byte_is_put_together() {
    let mut cut = cut(BOTH[0]);
    let whole = content(50, 3);
    publish(&mut cut.outbox, &whole);
    cut.send.progress().unwrap();
    for byte in cut.tapped() {
        assert!(cut.inbox.peek().unwrap().is_none());
        cut.feed(&[byte]);
        cut.receive.progress().unwrap();
    }
    assert_eq!(take(&mut cut.inbox), whole);
}

/// Content that was decrypted ahead of a slot for it lies in no socket: the pump must not wait for one.
#[test]
fn what_is_decrypted_waits_for_a_slot_without_a_descriptor() {
    let mut cut = cut(BOTH[0]);
    // The four slots are full, and what is ahead too, before all of what has come was taken.
    for number in 0..9 {
        publish(&mut cut.outbox, &content(2000, number));
        cut.send.progress().unwrap();
        let bytes = cut.tapped();
        cut.feed(&bytes);
    }
    cut.receive.progress().unwrap();
    for number in 0..9 {
        assert_eq!(take(&mut cut.inbox), content(2000, number));
        // The last four lie in slots.
        if number < 5 {
            assert_ne!(cut.receive.waits(), Waits::Descriptor, "message {number}");
        }
        cut.receive.progress().unwrap();
    }
    assert_eq!(cut.receive.waits(), Waits::Descriptor);
}

#[test]
fn a_record_that_was_changed_repeated_left_out_or_moved_names_the_peer() {
    for cipher in BOTH {
        let attacks: [&Attack; 5] = [
            &|records| records[1][9] ^= 64,
            &|records| *records[1].last_mut().unwrap() ^= 1,
            &|records| records.insert(1, records[0].clone()),
            &|records| drop(records.remove(1)),
            &|records| records.swap(0, 1),
        ];
        for (number, attack) in attacks.iter().enumerate() {
            let mut cut = cut(cipher);
            let mut records = Vec::new();
            for salt in 0..3 {
                publish(&mut cut.outbox, &content(100, salt));
                cut.send.progress().unwrap();
                records.push(cut.tapped());
            }
            attack(&mut records);
            cut.feed(&records.concat());
            let error = cut.receive.progress().unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(0)), "{number}");
            let words =
                "the data connection with rank 0 broke: what came over the encrypted connection is not what was";
            assert!(error.message().starts_with(words), "{error}");
            // What came whole before it is not lost.
            if number < 4 {
                assert_eq!(take(&mut cut.inbox), content(100, 0));
            }
            assert!(cut.inbox.peek().unwrap().is_none());
            assert_eq!(cut.receive.progress().unwrap_err().kind(), Kind::Remote);
        }
    }
}

#[test]
fn a_stream_ends_between_messages_and_not_in_one() {
    for left in [0, 3, 4, 30, 59] {
        let mut cut = cut(BOTH[0]);
        publish(&mut cut.outbox, &content(8, 0));
        cut.send.progress().unwrap();
        let bytes = cut.tapped();
        cut.feed(&bytes);
        publish(&mut cut.outbox, &content(8, 1));
        cut.send.progress().unwrap();
        let bytes = cut.tapped();
        assert_eq!(bytes.len(), 60);
        cut.feed(&bytes[..left]);
        cut.feed.stream.shutdown(std::net::Shutdown::Both).unwrap();
        // What came and its end are one edge to the poller, which calls once.
        let came = cut.receive.progress();
        assert!(left == 0 || came.is_err(), "{left}");
        assert_eq!(take(&mut cut.inbox), content(8, 0));
        let ended = came.and_then(|_| {
            let (expected, mut memory) = ((9000, [7, 8, 9000]), vec![0; 9000]);
            // SAFETY: the memory is good for its bytes.
            unsafe { cut.receive.take(NonNull::from(&mut memory[..]).cast(), expected, &mut None) }
        });
        match ended {
            Ok(taken) => assert_eq!((left, taken), (0, Taken::Open(false))),
            Err(error) => assert!(left > 0 && error.message().contains("middle of a record"), "{left}: {error}"),
        }
    }
}
