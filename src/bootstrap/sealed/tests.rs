//! Tests of records, and of how a handshake agrees on their keys.

use super::*;
use crate::bootstrap::auth::{Handshake, Purpose, Terms};
use crate::config::Encryption;
use crate::types::Rank;

/// What somebody between two ends does with records.
type Attack<'a> = dyn Fn(&mut Vec<Vec<u8>>) + 'a;

const BOTH: [CipherKind; 2] = [CipherKind::Aes128Gcm, CipherKind::ChaCha20Poly1305];

fn sealed(sealer: &mut Sealer, content: &[u8]) -> Vec<u8> {
    let mut record = Vec::new();
    assert_eq!(sealer.seal([content], 1 << 16, &mut record).unwrap(), content.len());
    record
}

/// What an end makes of bytes that come all at once.
fn opened(opener: &mut Opener, bytes: &[u8]) -> Result<Vec<u8>> {
    opener.room(bytes.len())[..bytes.len()].copy_from_slice(bytes);
    opener.filled(bytes.len());
    let mut content = Vec::new();
    while opener.open(1 << 16)? {
        content.extend_from_slice(opener.content());
        opener.take(opener.content().len());
    }
    Ok(content)
}

#[test]
fn records_come_back_and_show_nothing() {
    for cipher in BOTH {
        let [mut one, mut other] = pair(cipher);
        for bytes in [1, 15, 16, 17, 4096, 65_536] {
            let content = vec![b'A'; bytes];
            let there = sealed(&mut one.sealer, &content);
            assert_eq!(there.len(), bytes + RECORD_OVERHEAD);
            assert!(bytes < 15 || !there.windows(4).any(|window| window == b"AAAA"));
            // Each direction has its key: the same content at the same place is another record.
            assert_ne!(there[4..], sealed(&mut other.sealer, &content)[4..]);
            assert_eq!(opened(&mut other.opener, &there).unwrap(), content);
        }
    }
}

/// Bytes come in pieces of any length, and the memory for them stays what it is.
#[test]
fn records_that_come_in_pieces_are_put_together_in_one_memory() {
    const LEAST: usize = 150;
    const MOST: usize = 400;
    let [mut one, mut other] = pair(BOTH[0]);
    let contents: Vec<Vec<u8>> = (0..=255).map(|byte| vec![byte; 1 + usize::from(byte) % 130]).collect();
    let stream: Vec<u8> = contents.iter().flat_map(|content| sealed(&mut one.sealer, content)).collect();
    let (mut left, mut pieces, mut got) = (&stream[..], (1..=LEAST).cycle(), Vec::new());
    while !left.is_empty() {
        let room = other.opener.room_of(LEAST, MOST);
        assert!(room.len() >= LEAST);
        let piece = pieces.next().unwrap().min(left.len());
        room[..piece].copy_from_slice(&left[..piece]);
        left = &left[piece..];
        other.opener.filled(piece);
        while other.opener.open(130).unwrap() {
            got.push(other.opener.content().to_vec());
            other.opener.take(other.opener.content().len());
        }
    }
    assert!(got == contents && !other.opener.is_midway());
    assert_eq!(other.opener.bytes.len(), MOST);
}

#[test]
fn a_record_that_was_changed_repeated_left_out_or_moved_does_not_open() {
    for cipher in BOTH {
        let attack = |change: &Attack<'_>| {
            let [mut one, mut other] = pair(cipher);
            let mut records: Vec<Vec<u8>> = (1..4).map(|byte| sealed(&mut one.sealer, &[byte; 20])).collect();
            change(&mut records);
            opened(&mut other.opener, &records.concat())
        };
        assert_eq!(attack(&|_| {}).unwrap().len(), 60);
        for bit in 0..8 * (20 + RECORD_OVERHEAD) {
            let outcome = attack(&|records| records[1][bit / 8] ^= 1 << (bit % 8));
            // A longer record is waited for: nothing of it was believed.
            assert!(outcome.as_ref().map_or_else(|error| error.kind() == Kind::Remote, |got| got.len() == 20), "{bit}");
        }
        let attacks: [&Attack<'_>; 4] = [
            &|records| records.insert(1, records[0].clone()),
            &|records| drop(records.remove(1)),
            &|records| records.swap(0, 1),
            &|records| records[1].truncate(30),
        ];
        for change in attacks {
            let error = attack(change).unwrap_err();
            assert!(error.message().contains("changed, repeated, left out or moved"), "{error}");
        }
        // What another connection has sent.
        let [mut stranger, _] = pair(cipher);
        let foreign = sealed(&mut stranger.sealer, &[1; 20]);
        assert!(attack(&|records| records[0] = foreign.clone()).is_err());
    }
}

#[test]
fn impossible_lengths_cost_nothing() {
    for length in [0, 65_537, u32::MAX] {
        let [_, mut other] = pair(BOTH[0]);
        let room = other.opener.room(20).len();
        other.opener.room(20)[..4].copy_from_slice(&length.to_le_bytes());
        other.opener.filled(4);
        assert_eq!(other.opener.open(1 << 16).unwrap_err().kind(), Kind::Remote);
        assert_eq!(room, 20);
    }
}

#[test]
fn keys_are_replaced_and_both_ends_stay_in_step() {
    for cipher in BOTH {
        let [mut one, mut other] = pair(cipher);
        let first = *one.sealer.0.secret.0;
        for end in [&mut one.sealer.0, &mut other.opener.direction] {
            end.count = RECORDS_A_KEY - 2;
        }
        for byte in 0..5 {
            let record = sealed(&mut one.sealer, &[byte; 9]);
            assert_eq!(opened(&mut other.opener, &record).unwrap(), [byte; 9]);
        }
        assert_ne!(*one.sealer.0.secret.0, first);
        assert_eq!(one.sealer.0.secret.0, other.opener.direction.secret.0);
    }
}

#[test]
fn what_is_decrypted_does_not_print() {
    let [mut one, mut other] = pair(BOTH[0]);
    let record = sealed(&mut one.sealer, &[213; 4]);
    other.opener.room(record.len())[..record.len()].copy_from_slice(&record);
    other.opener.filled(record.len());
    assert!(other.opener.open(100).unwrap() && other.opener.content() == [213; 4]);
    assert!(!format!("{other:?}").contains("213"), "{other:?}");
}

/// Runs a handshake of two sides with these settings: the keys of both, or the error of the side that connects.
fn met(purpose: Purpose, settings: [Encryption; 2]) -> Result<[Option<SealedEnds>; 2]> {
    let terms = |encryption| Terms { key: [3; 32], purpose, communicator: 9, job: None, encryption };
    let [me, peer] = [0, 1].map(Rank::new);
    let mut there = Handshake::initiate(terms(settings[0]), me, peer)?;
    let mut here = Handshake::respond(terms(settings[1]), peer);
    here.receive(&mut &*there.take_output())?;
    assert!(here.take_sealed().is_none(), "nobody has proved anything");
    there.receive(&mut &*here.take_output())?;
    here.receive(&mut &*there.take_output())?;
    assert!(there.is_done() && here.is_done());
    Ok([there.take_sealed(), here.take_sealed()])
}

#[test]
fn a_handshake_agrees_on_the_keys_of_one_connection() {
    use Encryption::{ChaCha20, Off, On};
    let mut seen = Vec::new();
    for (settings, cipher) in [([On, On], None), ([ChaCha20, On], Some(BOTH[1])), ([On, ChaCha20], Some(BOTH[1]))] {
        let [Some(mut one), Some(mut other)] = met(Purpose::Data, settings).unwrap() else { panic!("plain") };
        let expected = cipher.unwrap_or(BOTH[usize::from(!has_fast_aes())]);
        assert_eq!((one.sealer.0.algorithm, other.sealer.0.algorithm), (expected, expected));
        let record = sealed(&mut one.sealer, b"there");
        assert_eq!(opened(&mut other.opener, &record).unwrap(), b"there");
        let record = sealed(&mut other.sealer, b"back");
        assert_eq!(opened(&mut one.opener, &record).unwrap(), b"back");
        seen.extend([one, other].map(|ends| *ends.sealer.0.secret.0));
    }
    assert_eq!(seen.iter().collect::<std::collections::HashSet<_>>().len(), 6, "each connection has keys of its own");
    for (purpose, settings) in [(Purpose::Peer, [Off, Off]), (Purpose::Root, [Off, On]), (Purpose::Store, [Off, On])] {
        assert!(matches!(met(purpose, settings), Ok([None, None])));
    }
    // A root and a store do as they are asked.
    for purpose in [Purpose::Root, Purpose::Store] {
        assert!(matches!(met(purpose, [On, Off]), Ok([Some(_), Some(_)])));
    }
}

#[test]
fn ranks_with_other_settings_say_nothing_in_the_clear() {
    use Encryption::{Off, On};
    for settings in [[On, Off], [Off, On]] {
        for purpose in [Purpose::Peer, Purpose::Data] {
            let error = met(purpose, settings).map(|_| ()).unwrap_err();
            let words = format!("RSCCL_ENCRYPT is {} on this rank and something else", settings[0].name());
            assert!(error.kind() == Kind::Mismatch && error.message().starts_with(&words), "{error}");
        }
    }
}

/// Who stands between them and has a key pair of its own, but not the secret, gets nowhere.
#[test]
fn a_public_key_that_was_exchanged_is_found() {
    let terms =
        |key| Terms { key: [key; 32], purpose: Purpose::Data, communicator: 9, job: None, encryption: Encryption::On };
    let [me, peer] = [0, 1].map(Rank::new);
    let mut there = Handshake::initiate(terms(3), me, peer).unwrap();
    let hello = there.take_output();
    for place in 0..hello.len() {
        let mut other = hello.clone();
        other[place] ^= 1;
        assert!(Handshake::respond(terms(3), peer).receive(&mut &*other).is_err(), "byte {place}");
    }
    let mut here = Handshake::respond(terms(3), peer);
    here.receive(&mut &*hello).unwrap();
    let mut challenge = here.take_output();
    let end = challenge.len();
    challenge[end - 33] ^= 1;
    assert!(there.receive(&mut &*challenge).is_err());
}
