//! Tests of the handshake: two sides that talk, and strangers.

use super::*;
use crate::sync::AbortFlag;

fn terms(key: u8) -> Terms {
    Terms { key: [key; 32], purpose: Purpose::Peer, communicator: 77, job: None, encryption: Encryption::Off }
}

/// Runs both sides against each other, in pieces of `piece` bytes.
fn talk(a: &mut Handshake, b: &mut Handshake, piece: usize) -> Result<()> {
    for _ in 0..2 {
        for piece in a.take_output().chunks(piece) {
            b.receive(&mut &piece[..])?;
        }
        for piece in b.take_output().chunks(piece) {
            a.receive(&mut &piece[..])?;
        }
    }
    Ok(())
}

#[test]
fn both_sides_learn_who_the_other_is_in_any_cut() {
    for piece in [1, 3, 71, 72, 73, 1000] {
        let mut a = Handshake::initiate(terms(1), Rank::new(3), Rank::new(5)).unwrap();
        let mut b = Handshake::respond(terms(1), Rank::new(5));
        assert_eq!(b.peer(), None);
        talk(&mut a, &mut b, piece).unwrap();
        assert!(a.is_done() && b.is_done());
        assert_eq!((a.peer(), b.peer()), (Some(Rank::new(5)), Some(Rank::new(3))));
    }
}

#[test]
fn data_behind_the_proof_is_left_alone() {
    let mut a = Handshake::initiate(terms(1), Rank::new(3), Rank::new(5)).unwrap();
    let mut b = Handshake::respond(terms(1), Rank::new(5));
    b.receive(&mut &a.take_output()[..]).unwrap();
    a.receive(&mut &b.take_output()[..]).unwrap();
    let mut bytes = a.take_output();
    bytes.extend_from_slice(b"data");
    let mut input = &bytes[..];
    b.receive(&mut input).unwrap();
    assert!(b.is_done());
    assert_eq!(input, b"data");
}

#[test]
fn another_key_purpose_communicator_or_rank_is_refused_without_an_answer() {
    let others = [
        (terms(2), 5),
        (Terms { purpose: Purpose::Data, ..terms(1) }, 5),
        (Terms { communicator: 78, ..terms(1) }, 5),
        (terms(1), 6),
    ];
    for (terms_of_b, me) in others {
        let mut a = Handshake::initiate(terms(1), Rank::new(3), Rank::new(5)).unwrap();
        let mut b = Handshake::respond(terms_of_b, Rank::new(me));
        assert_eq!(b.receive(&mut &a.take_output()[..]).unwrap_err().kind(), Kind::Remote);
        assert!(b.take_output().is_empty() && !b.is_done());
    }
}

#[test]
fn another_job_is_refused_by_name_and_a_side_without_one_is_not() {
    let of = |job: Option<&str>| Terms { job: job.map(|job| JobTag::new(job, job)), ..terms(1) };
    for (ours, theirs) in [(None, None), (None, Some("a")), (Some("a"), None), (Some("a"), Some("a"))] {
        let mut a = Handshake::initiate(of(ours), Rank::new(3), Rank::new(5)).unwrap();
        let mut b = Handshake::respond(of(theirs), Rank::new(5));
        talk(&mut a, &mut b, 7).unwrap();
        assert!(a.is_done() && b.is_done());
    }
    // A place that is strict keeps out whoever is of no known job, but not those that cannot know it.
    let unseen = JobTag::new("unseen", "unseen");
    let strict = JobTag::new("c", "c").or_unseen(Some(&unseen)).strictly();
    for (job, admitted) in [(None, false), (Some(unseen), true), (Some(JobTag::new("c", "c")), true)] {
        let mut a = Handshake::initiate(Terms { job, ..terms(1) }, Rank::new(3), Rank::new(5)).unwrap();
        let mut b = Handshake::respond(Terms { job: Some(strict.clone()), ..terms(1) }, Rank::new(5));
        talk(&mut a, &mut b, 1000).unwrap();
        assert_eq!((b.is_done(), b.stranger().is_none()), (admitted, admitted));
    }
    for piece in [1, 50, 1000] {
        let mut a = Handshake::initiate(of(Some("job A")), Rank::new(3), Rank::new(5)).unwrap();
        let mut b = Handshake::respond(of(Some("job \u{7}B")), Rank::new(5));
        for piece in a.take_output().chunks(piece) {
            b.receive(&mut &piece[..]).unwrap();
        }
        assert_eq!(b.stranger(), Some(JobTag::new("", "job A").digest()));
        assert!(b.take_output().is_empty() && !b.is_done() && b.peer().is_none());
        b.refuse(Duration::from_millis(1234));
        let answer = b.take_output();
        let mut outcome = Ok(());
        for piece in answer.chunks(piece) {
            outcome = outcome.and_then(|()| a.receive(&mut &piece[..]));
        }
        assert!(outcome.unwrap_err().message().contains("belongs to another job (job \\u{7}B)"));
        assert_eq!(a.refusal().unwrap().age, Duration::from_millis(1234));
        // No stranger can make it up: a flipped bit proves nothing.
        for place in 1..answer.len() {
            let mut spoilt = answer.clone();
            spoilt[place] ^= 1;
            let mut c = Handshake::initiate(of(Some("job A")), Rank::new(3), Rank::new(5)).unwrap();
            assert!(c.receive(&mut &spoilt[..]).is_err() && c.refusal().is_none(), "byte {place}");
        }
    }
}

#[test]
fn a_replayed_or_reflected_message_proves_nothing() {
    let mut a = Handshake::initiate(terms(1), Rank::new(3), Rank::new(5)).unwrap();
    let mut b = Handshake::respond(terms(1), Rank::new(5));
    let hello = a.take_output();
    b.receive(&mut &hello[..]).unwrap();
    a.receive(&mut &b.take_output()[..]).unwrap();
    let proof = a.take_output();
    let mut later = Handshake::respond(terms(1), Rank::new(5));
    later.receive(&mut &hello[..]).unwrap();
    assert!(later.receive(&mut &proof[..]).is_err());
    // The initiator receives its own bytes back.
    let mut mirror = Handshake::initiate(terms(1), Rank::new(3), Rank::new(3)).unwrap();
    let words = mirror.take_output();
    assert!(mirror.receive(&mut &words[..]).is_err());
}

#[test]
fn any_flipped_bit_is_noticed() {
    let hello = Handshake::initiate(terms(1), Rank::new(3), Rank::new(5)).unwrap().take_output();
    for bit in 0..hello.len() * 8 {
        let mut bytes = hello.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let mut b = Handshake::respond(terms(1), Rank::new(5));
        assert!(b.receive(&mut &bytes[..]).is_err(), "bit {bit}");
    }
}

/// Their hello may be shorter than this version's, and then they wait for an answer.
#[test]
fn another_version_is_told_at_its_first_bytes() {
    for version in [VERSION - 1, VERSION + 1] {
        let mut b = Handshake::respond(terms(1), Rank::new(5));
        b.receive(&mut &MARK[..]).unwrap();
        let error = b.receive(&mut &[version][..]).unwrap_err();
        let words = format!("it speaks version {version} of the protocol, this rank speaks {VERSION}");
        assert!(error.message().ends_with(&words), "{error}");
    }
}

#[test]
fn garbage_is_told_at_its_first_bytes() {
    let mut b = Handshake::respond(terms(1), Rank::new(5));
    assert!(b.receive(&mut &b"GE"[..]).unwrap_err().to_string().contains("does not speak this protocol"));
}

#[test]
fn a_blocking_stream_is_driven_to_the_end_or_the_deadline() {
    let wait = Wait::new(Duration::from_secs(10), &AbortFlag::new());
    let (mut left, mut right) = UnixStream::pair().unwrap();
    let a = Handshake::initiate(terms(1), Rank::new(3), Rank::new(5)).unwrap();
    let b = Handshake::respond(terms(1), Rank::new(5));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(&mut right, b, &wait).unwrap());
        assert_eq!(run(&mut left, a, &wait).unwrap(), Rank::new(5));
        assert_eq!(other.join().unwrap(), Rank::new(3));
    });
    let short = Wait::new(Duration::from_millis(50), &AbortFlag::new());
    let b = Handshake::respond(terms(1), Rank::new(5));
    assert_eq!(run(&mut left, b, &short).unwrap_err().kind(), Kind::Timeout);
}

/// A stranger's answer of the shortest kind, with more behind it: what is too long for it is no part of it.
#[test]
fn bytes_behind_a_short_answer_are_not_taken_for_it() {
    for first in [DIFFERENCE, REFUSAL, ENDED, 1, 0, u8::MAX] {
        for length in [1, DIFFERENCE_BYTES - 1, DIFFERENCE_BYTES + 1, CHALLENGE_BYTES, 2 * REFUSAL_BYTES] {
            let mut a = Handshake::initiate(terms(1), Rank::new(3), Rank::new(5)).unwrap();
            a.take_output();
            let mut answer = vec![0; length];
            answer[0] = first;
            let outcome = a.receive(&mut &answer[..]);
            assert!(!a.is_done() && a.bytes_wanted() <= REFUSAL_BYTES, "{first}, {length} bytes: {outcome:?}");
            assert!(length < REFUSAL_BYTES || outcome.is_err(), "{first}, {length} bytes");
        }
    }
}
