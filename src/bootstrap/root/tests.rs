//! A root whose ranks are connections that a test makes by hand.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;
use crate::bootstrap::auth::{self, Handshake, NO_RANK};
use crate::bootstrap::checkin::{EncryptionTally, WorldShape};
use crate::bootstrap::net::NetBootstrap;
use crate::config::Encryption;
use crate::wire::frame::{self, FrameReader};

fn soon() -> Wait {
    Wait::new(Duration::from_secs(30), &AbortFlag::new())
}

fn root() -> (UniqueId, Root) {
    Root::serve(&Options { interfaces: "=lo".parse().unwrap(), ..Options::default() }).unwrap()
}

fn check_in_of(rank: u32, shape: WorldShape) -> Vec<u8> {
    let (address, encryption, left_ms) = ("127.0.0.1:9".parse().unwrap(), Encryption::Off, 30_000);
    CheckIn { rank: Rank::new(rank), shape, root: 0, left_ms, address, encryption }.encode()
}

/// A check-in made by hand, so that the test can kill the rank in the middle.
fn come(id: &UniqueId, rank: u32, world: u32) -> TcpStream {
    let mut stream = TcpStream::connect(id.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    let handshake = Handshake::initiate(id.terms(&Options::default()), Rank::new(rank), NO_RANK).unwrap();
    auth::run(&mut stream, handshake, &soon()).unwrap();
    let mut bytes = Vec::new();
    frame::append(&mut bytes, checkin::CHECK_IN, 0, &check_in_of(rank, WorldShape { world, roots: 1, ids: 1 }));
    stream.write_all(&bytes).unwrap();
    stream
}

fn hear(stream: &mut TcpStream) -> Frame {
    let mut reader = FrameReader::new(MAX_ROOT_FRAME_BYTES);
    let wait = soon();
    loop {
        let mut byte = [0; 1];
        match stream.read(&mut byte) {
            Ok(0) => panic!("the root closed without a word"),
            Ok(_) => {
                if let Some(frame) = reader.next(&mut &byte[..]).unwrap() {
                    return frame;
                }
            }
            Err(_) => wait.check(|| "the root said nothing".to_owned()).unwrap(),
        }
    }
}

/// Checks a rank in, and proves that by a second one with the same number, which is rejected.
fn seat(id: &UniqueId, rank: u32, world: u32) -> TcpStream {
    let stream = come(id, rank, world);
    let error = checkin::decode_refusal(&hear(&mut come(id, rank, world)).payload);
    assert_eq!((error.kind(), error.peer()), (Kind::Mismatch, Some(rank)));
    assert!(error.message().contains(&format!("two ranks have the number {rank}")), "{error}");
    stream
}

#[test]
fn a_rank_that_dies_after_its_check_in_is_named_to_all_who_come() {
    let (id, root) = root();
    let mut first = seat(&id, 0, 3);
    drop(seat(&id, 1, 3));
    let told = |stream: &mut TcpStream| {
        let error = checkin::decode_refusal(&hear(stream).payload);
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)));
        assert!(error.message().contains("rank 1 has died while the others came"), "{error}");
    };
    told(&mut first);
    // A late rank is told too.
    told(&mut come(&id, 2, 3));
    drop(root);
}

#[test]
fn another_world_is_answered_with_both_sizes_and_harms_nobody() {
    let (id, root) = root();
    let mut first = seat(&id, 0, 2);
    let error = checkin::decode_refusal(&hear(&mut come(&id, 1, 3)).payload);
    assert_eq!(error.kind(), Kind::Mismatch);
    assert!(error.message().contains("3 ranks, rank 0 reported 2"), "{error}");
    let mut second = come(&id, 1, 2);
    for stream in [&mut first, &mut second] {
        let frame = hear(stream);
        assert_eq!(frame.kind, checkin::WELCOME);
        assert_eq!(AddressTable::decode(&frame.payload, 1).unwrap().addresses[0].port(), 9);
    }
    // The root ends by itself once it has sent all answers.
    while !root.is_finished() {
        std::thread::yield_now();
    }
}

/// A connection that says something else than a check-in at first.
fn say(id: &UniqueId, rank: u32, (kind, said): (u8, Vec<u8>)) -> TcpStream {
    let mut stream = TcpStream::connect(id.address()).unwrap();
    stream.set_nodelay(true).unwrap();
    let handshake = Handshake::initiate(id.terms(&Options::default()), Rank::new(rank), NO_RANK).unwrap();
    auth::run(&mut stream, handshake, &soon()).unwrap();
    let mut bytes = Vec::new();
    frame::append(&mut bytes, kind, 0, &said);
    stream.write_all(&bytes).unwrap();
    stream
}

/// Three roots of one id: their blocks begin at ranks 0, 2 and 4.
const THREE_ROOTS: WorldShape = WorldShape { world: 6, roots: 3, ids: 1 };

/// Where a rank serves its block's root, or that it looks for it.
fn further(rank: u32, shape: WorldShape, at: Option<&str>) -> (u8, Vec<u8>) {
    let (rank, at) = (Rank::new(rank), at.map(|at| at.parse().unwrap()));
    FurtherRoot { rank, shape, root: shape.root_of(rank), left_ms: 30_000, at }.encode()
}

fn place(stream: &mut TcpStream) -> String {
    let frame = hear(stream);
    assert_eq!(frame.kind, checkin::PLACE);
    checkin::decode_place(&frame.payload).unwrap().to_string()
}

fn refusal(stream: &mut TcpStream) -> Error {
    let frame = hear(stream);
    assert_eq!(frame.kind, checkin::REFUSAL);
    checkin::decode_refusal(&frame.payload)
}

#[test]
fn ranks_learn_where_their_root_serves_before_and_after_it_does() {
    let (id, _root) = root();
    let shape = THREE_ROOTS;
    let mut early = say(&id, 3, further(3, shape, None));
    let of_another = say(&id, 5, further(5, shape, None));
    let server = say(&id, 2, further(2, shape, Some("10.0.0.1:7")));
    assert_eq!(place(&mut early), "10.0.0.1:7");
    assert_eq!(place(&mut say(&id, 3, further(3, shape, None))), "10.0.0.1:7");
    let error = refusal(&mut say(&id, 2, further(2, shape, Some("10.0.0.2:8"))));
    assert_eq!((error.kind(), error.peer()), (Kind::Mismatch, Some(2)));
    assert!(error.message().contains("10.0.0.1:7") && error.message().contains("10.0.0.2:8"), "{error}");
    // Where each has its id from the caller, both serve at one address.
    let mut second = say(&id, 2, further(2, shape, Some("10.0.0.1:7")));
    let own = second.local_addr().unwrap().to_string();
    assert!(refusal(&mut second).message().contains(&format!("the other, from {own}, at 10.0.0.1:7")));
    let error = refusal(&mut say(&id, 5, further(5, shape, None)));
    assert!(error.message().contains("two ranks have the number 5: one comes from 127.0.0.1:"), "{error}");
    // Whoever serves dies, and all who look learn of it.
    let mut zero = say(&id, 0, (checkin::CHECK_IN, check_in_of(0, shape)));
    assert_eq!(refusal(&mut say(&id, 0, (checkin::CHECK_IN, check_in_of(0, shape)))).kind(), Kind::Mismatch);
    drop(server);
    let mut looks = of_another;
    for stream in [&mut zero, &mut looks] {
        let error = refusal(stream);
        assert!(error.message().contains("rank 2 has died while the others came"), "{error}");
    }
}

/// Regression: that ranks had been given different ids was told to none of them.
#[test]
fn ranks_of_other_blocks_that_take_the_world_for_another_are_told_so() {
    let (id, _root) = root();
    let (larger, of_ids) = (WorldShape { world: 8, ..THREE_ROOTS }, WorldShape { ids: 3, ..THREE_ROOTS });
    let _looks = say(&id, 5, further(5, THREE_ROOTS, None));
    let of_world = "8 ranks, rank 5 reported 6";
    let error = refusal(&mut say(&id, 6, further(6, larger, None)));
    assert!(error.message().contains(of_world), "{error}");
    let at = Some("10.0.0.1:7");
    for said in [further(2, of_ids, at), (checkin::CHECK_IN, check_in_of(1, of_ids))] {
        let error = refusal(&mut say(&id, 2, said));
        assert!(error.message().contains("was given 3, rank 5 was given 1"), "{error}");
    }
    // Once a rank has checked in, its word counts.
    let _zero = say(&id, 0, (checkin::CHECK_IN, check_in_of(0, THREE_ROOTS)));
    assert_eq!(refusal(&mut say(&id, 0, (checkin::CHECK_IN, check_in_of(0, THREE_ROOTS)))).peer(), Some(0));
    let error = refusal(&mut say(&id, 2, further(2, of_ids, at)));
    assert!(error.message().contains("rank 2 was given 3, rank 0 was given 1"), "{error}");
}

/// Regression: a connection could look any number of times, and check in besides, which ended the world.
#[test]
fn a_connection_looks_once_and_brings_the_block_that_it_serves() {
    let (id, _root) = root();
    let again = |stream: &mut TcpStream, (kind, said): (u8, Vec<u8>)| {
        let mut bytes = Vec::new();
        frame::append(&mut bytes, kind, 0, &said);
        stream.write_all(&bytes).unwrap();
        refusal(stream)
    };
    let look = || further(3, THREE_ROOTS, None);
    for more in [look(), (checkin::CHECK_IN, check_in_of(1, THREE_ROOTS))] {
        let error = again(&mut say(&id, 3, look()), more);
        assert!(error.message().contains("unexpected frame"), "{error}");
    }
    let addresses = vec!["127.0.0.1:9".parse().unwrap(); 2];
    let encryption = EncryptionTally::new(Rank::new(4), Encryption::Off);
    let block = RankBlock { root: 2, left_ms: 30_000, shape: THREE_ROOTS, encryption, addresses }.encode();
    let error = refusal(&mut say(&id, 4, (checkin::BLOCK, block.clone())));
    assert!(error.message().contains("unexpected frame"), "{error}");
    let error = again(&mut say(&id, 2, further(2, THREE_ROOTS, Some("10.0.0.1:7"))), (checkin::BLOCK, block));
    assert!(error.message().contains("rank 2 has sent the block of root 2"), "{error}");
    // Nobody else is harmed.
    assert_eq!(place(&mut say(&id, 3, look())), "10.0.0.1:7");
}

/// Regression: the root knew nothing of the patience of ranks that look, nor of their deaths.
#[test]
fn the_root_gives_up_with_a_rank_that_looks_and_names_it_when_it_dies() {
    let (id, _root) = root();
    let (rank, root) = (Rank::new(3), 1);
    let said = FurtherRoot { rank, shape: THREE_ROOTS, root, left_ms: 400, at: None }.encode();
    let error = refusal(&mut say(&id, 3, said.clone()));
    assert_eq!(error.kind(), Kind::Timeout);
    let told = "none of the first 2 ranks of 6 has come; 1 rank waits for rank 2, in whose process it checks in";
    assert!(error.message().contains(told), "{error}");
    for is_dying in [false, true] {
        let (id, _root) = self::root();
        let mut zero = say(&id, 0, (checkin::CHECK_IN, check_in_of(0, THREE_ROOTS)));
        let left_ms = if is_dying { 30_000 } else { 400 };
        let looks = say(&id, 3, FurtherRoot { rank, shape: THREE_ROOTS, root, left_ms, at: None }.encode());
        // It has been heard of by then.
        assert!(refusal(&mut say(&id, 1, further(5, WorldShape { world: 8, ..THREE_ROOTS }, None))).rank().is_none());
        let _kept = (!is_dying).then_some(looks);
        let error = refusal(&mut zero);
        let (kind, words) = match is_dying {
            true => (Kind::Remote, "rank 3 has died while the others came"),
            false => (Kind::Timeout, "1 rank waits for rank 2"),
        };
        assert!(error.kind() == kind && error.message().contains(words), "{error}");
    }
}

/// Regression: a second process with the number of a rank that served was told no, and its impatience ended the job
/// of all others.
#[test]
fn a_rank_that_is_turned_away_hurries_nobody() {
    let (id, _root) = root();
    let mut zero = say(&id, 0, (checkin::CHECK_IN, check_in_of(0, THREE_ROOTS)));
    let server = say(&id, 2, further(2, THREE_ROOTS, Some("10.0.0.1:7")));
    assert_eq!(place(&mut say(&id, 3, further(3, THREE_ROOTS, None))), "10.0.0.1:7");
    let (rank, at) = (Rank::new(2), Some("10.0.0.2:8".parse().unwrap()));
    let impatient = FurtherRoot { rank, shape: THREE_ROOTS, root: 1, left_ms: 0, at }.encode();
    assert_eq!(refusal(&mut say(&id, 2, impatient)).kind(), Kind::Mismatch);
    // The root looks at its deadline before it hears of this: with the impatience of the one that it has turned
    // away, it had given up.
    drop(server);
    let error = refusal(&mut zero);
    assert!(error.message().contains("rank 2 has died while the others came"), "{error}");
}

/// An id whose root a test plays.
fn played() -> (UniqueId, std::net::TcpListener) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    (UniqueId::fresh(listener.local_addr().unwrap()).unwrap(), listener)
}

/// Rank 2 joins within so many seconds, which was given two ids where rank 0 was given one.
fn disagree(of_rank_0: &UniqueId, own: &UniqueId, seconds: u64) -> Error {
    let _zero = seat(of_rank_0, 0, 4);
    let options = Options { interfaces: "=lo".parse().unwrap(), retry_count: 1_000, ..Options::default() };
    let wait = Wait::new(Duration::from_secs(seconds), &AbortFlag::new());
    NetBootstrap::join(&[*of_rank_0, *own], Rank::new(2), 4, &options, &wait).unwrap_err()
}

const DISAGREE: &str = "ranks disagree about the unique ids: rank 2 was given 2, rank 0 was given 1";

/// Regression: it heard that its own root was not connected.
#[test]
fn why_root_0_refuses_a_block_is_told_where_its_own_root_never_answers() {
    let (id, _root) = root();
    let (silent, listener) = played();
    let error = disagree(&id, &silent, 3);
    assert!(error.message().contains(DISAGREE), "silent: {error}");
    drop(listener);
    let (id, _root) = root();
    let error = disagree(&id, &silent, 3);
    assert!(error.message().contains(DISAGREE), "nobody there: {error}");
}

/// Regression: its own root's block, which was on the way already, was called an unexpected frame.
#[test]
fn why_root_0_refuses_a_block_is_told_where_its_own_root_sends_that_block_or_dies() {
    for dies in [false, true] {
        let (id, _root) = root();
        let (own, listener) = played();
        let play = || {
            let mut stream = listener.accept().unwrap().0;
            auth::run(&mut stream, Handshake::respond(own.terms(&Options::default()), NO_RANK), &soon()).unwrap();
            assert_eq!(hear(&mut stream).kind, checkin::CHECK_IN);
            let refusal = hear(&mut stream);
            assert_eq!(refusal.kind, checkin::REFUSAL);
            if dies {
                return;
            }
            let (addresses, encryption) = (vec!["127.0.0.1:9".parse().unwrap(); 2], Encryption::Off);
            let (shape, encryption) =
                (WorldShape { world: 4, roots: 2, ids: 2 }, EncryptionTally::new(Rank::new(2), encryption));
            let block = RankBlock { root: 1, left_ms: 30_000, shape, encryption, addresses }.encode();
            let mut bytes = Vec::new();
            frame::append(&mut bytes, checkin::BLOCK, 0, &block);
            frame::append(&mut bytes, checkin::REFUSAL, 0, &refusal.payload);
            stream.write_all(&bytes).unwrap();
            // It stays until the rank has heard all.
            assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
        };
        let error = std::thread::scope(|scope| {
            scope.spawn(play);
            disagree(&id, &own, 30)
        });
        assert!(error.message().contains(DISAGREE), "{error}");
    }
}

/// Regression: what the first rank of a block had heard was taken for its death.
#[test]
fn why_a_further_root_has_failed_is_told_to_all_ranks() {
    let (id, _root) = root();
    let mut looks = say(&id, 5, further(5, THREE_ROOTS, None));
    let mut server = say(&id, 2, further(2, THREE_ROOTS, Some("10.0.0.1:7")));
    let mut bytes = Vec::new();
    let why = Error::timeout("rank 3 of 6 never came within 1.0 s");
    frame::append(&mut bytes, checkin::REFUSAL, 0, &checkin::encode_refusal(&why));
    server.write_all(&bytes).unwrap();
    drop(server);
    let error = checkin::decode_refusal(&hear(&mut looks).payload);
    assert_eq!((error.kind(), error.message()), (Kind::Timeout, why.message()));
}

/// Regression: nobody heard of it, and ranks were sent to where the dead one had served.
#[test]
fn a_rank_that_served_and_dies_before_any_checks_in_at_root_0_is_named() {
    let (id, _root) = root();
    let mut looks = say(&id, 5, further(5, THREE_ROOTS, None));
    let server = say(&id, 2, further(2, THREE_ROOTS, Some("10.0.0.1:7")));
    assert_eq!(place(&mut say(&id, 3, further(3, THREE_ROOTS, None))), "10.0.0.1:7");
    drop(server);
    for stream in [&mut looks, &mut say(&id, 3, further(3, THREE_ROOTS, None))] {
        let frame = hear(stream);
        assert!([checkin::REFUSAL, checkin::LATE].contains(&frame.kind));
        let error = checkin::decode_refusal(&frame.payload);
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(2)));
        assert!(error.message().contains("rank 2 has died while the others came"), "{error}");
    }
}

#[test]
fn a_frame_out_of_turn_is_answered_and_closed() {
    let (id, _root) = root();
    let mut stream = seat(&id, 0, 2);
    let mut bytes = Vec::new();
    frame::append(&mut bytes, checkin::TABLE, 0, &[1, 2, 3]);
    stream.write_all(&bytes).unwrap();
    assert!(checkin::decode_refusal(&hear(&mut stream).payload).message().contains("malformed"));
}

#[test]
fn a_root_that_nobody_visits_ends_by_its_lifetime() {
    let options =
        Options { interfaces: "=lo".parse().unwrap(), root_lifetime: Duration::from_millis(50), ..Options::default() };
    let (_, root) = Root::serve(&options).unwrap();
    let wait = soon();
    while !root.is_finished() {
        wait.check(|| "the root does not end".to_owned()).unwrap();
        std::thread::yield_now();
    }
}
