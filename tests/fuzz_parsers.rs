//! Whatever bytes come, no parser panics, none takes more memory or more steps than a multiple of those bytes, and what one
//! accepts is what the writer would have written. `RSCCL_FUZZ_CASES` (default 256) sets how many cases each test tries, and
//! `RSCCL_TEST_SEED` their seed, which is another one in each run and is printed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::OnceLock;

use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use rsccl::config::Encryption;
use rsccl::internals::bootstrap::address::HostPort;
use rsccl::internals::bootstrap::auth::{Handshake, Purpose, Terms};
use rsccl::internals::bootstrap::interface::{AddressFamily, Rules};
use rsccl::internals::bootstrap::{UniqueId, decode_anything};
use rsccl::internals::sys::random;
use rsccl::internals::wire::frame::{self, Frame, FrameReader};
use rsccl::internals::wire::{Reader, Writer};
use rsccl::types::Rank;

mod fuzz_parsers {
    mod files;
}

fn config() -> ProptestConfig {
    let cases = variable("RSCCL_FUZZ_CASES").unwrap_or(256);
    let cases = u32::try_from(cases).expect("RSCCL_FUZZ_CASES is below 2^32");
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(seed()), failure_persistence: None, ..ProptestConfig::default() }
}

fn variable(name: &str) -> Option<u64> {
    #![expect(clippy::disallowed_methods, reason = "a test's own knob")]
    let text = std::env::var(name).ok().filter(|text| text != "any")?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// One for all tests of this run, printed past the capture of their output.
fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| {
        let seed = variable("RSCCL_TEST_SEED").unwrap_or_else(|| u64::from_le_bytes(random::bytes().unwrap()));
        let again = format!("seed: RSCCL_TEST_SEED={seed} cargo test --features cli --test fuzz_parsers\n");
        std::io::stderr().write_all(again.as_bytes()).unwrap();
        seed
    })
}

/// Counts what the calling thread allocates.
struct Counted;

thread_local! {
    static ALLOCATIONS: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: usize) {
    ALLOCATIONS.with(|counted| {
        let (times, all) = counted.get();
        counted.set((times + 1, all + bytes));
    });
}

// SAFETY: the system's allocator does all the work.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are those of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count(bytes);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static COUNTED: Counted = Counted;

/// What `parse` yields. It may allocate a few times for each of the `bytes` that it is given, and in all as much as a parser
/// reserves before the bytes of a payload have come, plus a multiple of what has come: a length alone costs nothing.
fn bounded<T>(bytes: usize, parse: impl FnOnce() -> T) -> T {
    ALLOCATIONS.set((0, 0));
    let parsed = parse();
    let (times, all) = ALLOCATIONS.get();
    assert!(times <= TIMES + bytes, "{times} allocations for {bytes} bytes");
    assert!(all <= RESERVED + FOR_EACH_BYTE * bytes, "{all} bytes allocated for {bytes} bytes");
    parsed
}

/// An error allocates its words, and some test asks every decoder of the bootstrap.
const TIMES: usize = 96;
/// Reserved by a reader of frames before the first byte of a payload, and the words of errors.
const RESERVED: usize = (64 << 10) + (16 << 10);
const FOR_EACH_BYTE: usize = 256;

/// A field as the wire has it.
#[derive(Debug, Clone)]
enum Field {
    U8(u8),
    U16(u16),
    U32(u32),
    U64(u64),
    I64(i64),
    Bytes(Vec<u8>),
    Text(String),
    Address(SocketAddr),
}

fn any_field() -> impl Strategy<Value = Field> {
    prop_oneof![
        any::<u8>().prop_map(Field::U8),
        any::<u16>().prop_map(Field::U16),
        any::<u32>().prop_map(Field::U32),
        any::<u64>().prop_map(Field::U64),
        any::<i64>().prop_map(Field::I64),
        prop::collection::vec(any::<u8>(), 0..MOST).prop_map(Field::Bytes),
        "\\PC{0,20}".prop_map(Field::Text),
        any::<([u8; 4], u16)>().prop_map(|(host, port)| Field::Address((host, port).into())),
        any::<([u16; 8], u16)>().prop_map(|(host, port)| Field::Address((host, port).into())),
    ]
}

/// The longest field of bytes.
const MOST: usize = 100;

impl Field {
    fn write(&self, writer: &mut Writer) {
        match self {
            Field::U8(value) => writer.u8(*value),
            Field::U16(value) => writer.u16(*value),
            Field::U32(value) => writer.u32(*value),
            Field::U64(value) => writer.u64(*value),
            Field::I64(value) => writer.i64(*value),
            Field::Bytes(bytes) => writer.bytes(bytes),
            Field::Text(text) => writer.text(text),
            Field::Address(address) => writer.address(address),
        };
    }

    /// Whether the reader has this field next.
    fn is_next(&self, reader: &mut Reader<'_>) -> rsccl::Result<bool> {
        Ok(match self {
            Field::U8(value) => reader.u8()? == *value,
            Field::U16(value) => reader.u16()? == *value,
            Field::U32(value) => reader.u32()? == *value,
            Field::U64(value) => reader.u64()? == *value,
            Field::I64(value) => reader.i64()? == *value,
            Field::Bytes(bytes) => reader.bytes(MOST)? == *bytes,
            Field::Text(text) => reader.text(4 * MOST)? == *text,
            Field::Address(address) => reader.address()? == *address,
        })
    }
}

fn terms() -> Terms {
    Terms { key: [1; 32], purpose: Purpose::Peer, communicator: 7, job: None, encryption: Encryption::Off }
}

/// Mostly zeros, as lengths and counts are where they make sense.
fn sparse() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 0..200)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn ids(bytes in prop::collection::vec(any::<u8>(), 0..200), flips in prop::collection::vec(any::<prop::sample::Index>(), 0..4)) {
        prop_assert!(UniqueId::from_bytes(&bytes).is_err());
        let options = rsccl::internals::bootstrap::Options { comm_id: Some("127.0.0.1:4711".into()), ..Default::default() };
        let good = UniqueId::generate(&options).unwrap();
        let mut spoilt = *good.as_bytes();
        for flip in &flips {
            let bit = flip.index(spoilt.len() * 8);
            spoilt[bit / 8] ^= 1 << (bit % 8);
        }
        prop_assert_eq!(UniqueId::from_bytes(&spoilt).is_ok(), spoilt == *good.as_bytes());
    }

    #[test]
    fn addresses(text in "\\PC{0,60}|[0-9a-f:.%\\[\\]]{0,40}|[a-z0-9.]{1,20}:[0-9]{1,6}|\\[[0-9a-f:]{0,20}(%[a-z0-9]{0,4})?\\]:[0-9]{0,6}") {
        if let Ok(place) = text.parse::<HostPort>() {
            let again: HostPort = place.to_string().parse().unwrap();
            prop_assert_eq!(again, place);
        }
    }

    #[test]
    fn interface_rules(text in "\\PC{0,60}|[\\^]?=?[a-z0-9,]{0,40}", name in "[a-z0-9]{1,15}") {
        if let Ok(rules) = text.parse::<Rules>() {
            let again: Rules = rules.to_string().parse().unwrap();
            prop_assert_eq!(again.allow(&name), rules.allow(&name));
        }
        let _refused = text.parse::<AddressFamily>();
    }

    #[test]
    fn frames_from_garbage(bytes in sparse(), most in prop_oneof![0usize..300, Just(1 << 30)]) {
        let mut reader = FrameReader::new(most);
        let mut input = &bytes[..];
        let mut again = Vec::new();
        let mut steps = 0;
        while !input.is_empty() {
            steps += 1;
            match bounded(bytes.len(), || reader.next(&mut input)) {
                Ok(Some(frame)) => {
                    prop_assert!(frame.payload.len() <= most);
                    frame::append(&mut again, frame.kind, frame.tag, &frame.payload);
                    // What was accepted is what a writer of these frames would have sent.
                    prop_assert_eq!(&again[..], &bytes[..bytes.len() - input.len()]);
                }
                Ok(None) => prop_assert!(input.is_empty()),
                Err(_) => break,
            }
        }
        prop_assert!(steps <= bytes.len() / frame::HEADER_BYTES + 1, "{} steps", steps);
    }

    #[test]
    fn frames_in_any_cut(
        frames in prop::collection::vec((any::<u8>(), any::<u32>(), prop::collection::vec(any::<u8>(), 0..100)), 0..8),
        piece in 1usize..64,
    ) {
        let mut stream = Vec::new();
        frames.iter().for_each(|(kind, tag, payload)| frame::append(&mut stream, *kind, *tag, payload));
        let mut reader = FrameReader::new(100);
        let mut come = Vec::new();
        for mut bytes in stream.chunks(piece) {
            while !bytes.is_empty() {
                come.extend(reader.next(&mut bytes).unwrap());
            }
        }
        let sent: Vec<_> = frames.into_iter().map(|(kind, tag, payload)| Frame { kind, tag, payload }).collect();
        prop_assert_eq!(come, sent);
    }

    #[test]
    fn fields(bytes in sparse(), most in 0usize..300) {
        let mut reader = Reader::new(&bytes, "a test");
        let _ = reader.clone().address();
        let mut steps = 0;
        while let Ok(field) = bounded(bytes.len(), || reader.bytes(most)) {
            prop_assert!(field.len() <= most);
            steps += 1;
        }
        // Each has a length of four bytes.
        prop_assert!(4 * steps <= bytes.len());
    }

    #[test]
    fn fields_come_as_they_were_written(
        fields in prop::collection::vec(any_field(), 0..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut writer = Writer::new();
        fields.iter().for_each(|field| field.write(&mut writer));
        let bytes = writer.finish();
        let read = |bytes: &[u8]| -> rsccl::Result<bool> {
            let mut reader = Reader::new(bytes, "a test");
            let mut same = true;
            for field in &fields {
                same &= field.is_next(&mut reader)?;
            }
            reader.finish()?;
            Ok(same)
        };
        prop_assert!(bounded(bytes.len(), || read(&bytes)).unwrap());
        if !bytes.is_empty() {
            let shorter = &bytes[..cut.index(bytes.len())];
            prop_assert!(bounded(bytes.len(), || read(shorter)).is_err(), "{} of {} bytes", shorter.len(), bytes.len());
        }
        prop_assert!(read(&[&bytes[..], &[0]].concat()).is_err(), "a byte too many");
    }

    #[test]
    fn messages(bytes in prop_oneof![sparse(), prop::collection::vec(any::<u8>(), 0..200)]) {
        bounded(bytes.len(), || decode_anything(&bytes));
    }

    #[test]
    fn handshakes(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..64, honest in any::<bool>()) {
        let mut responder = Handshake::respond(terms(), Rank::new(5));
        if honest {
            let mut initiator = Handshake::initiate(terms(), Rank::new(3), Rank::new(5)).unwrap();
            responder.receive(&mut &initiator.take_output()[..]).unwrap();
        }
        for mut piece in bytes.chunks(piece) {
            if bounded(bytes.len(), || responder.receive(&mut piece)).is_err() {
                break;
            }
        }
        prop_assert!(!responder.is_done(), "garbage proves nothing");
    }

    /// Two that know the key agree, however their bytes are cut; and do not where one bit of either's bytes is another.
    #[test]
    fn handshakes_in_any_cut(
        piece in 1usize..64,
        flip in prop::option::of((any::<bool>(), any::<prop::sample::Index>())),
    ) {
        let initiator = Handshake::initiate(terms(), Rank::new(3), Rank::new(5)).unwrap();
        let mut ends = [initiator, Handshake::respond(terms(), Rank::new(5))];
        let mut sent: [Vec<u8>; 2] = [Vec::new(), Vec::new()];
        let mut refused = false;
        // Each flight is one way.
        for flight in 0..6 {
            let from = flight % 2;
            let mut bytes = ends[from].take_output();
            let before = sent[from].len();
            sent[from].extend_from_slice(&bytes);
            let is_first = before == 0 && !bytes.is_empty();
            if let Some((_, place)) = flip.filter(|(by, _)| usize::from(*by) == from && is_first) {
                let bit = place.index(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            for mut piece in bytes.chunks(piece) {
                refused |= ends[1 - from].receive(&mut piece).is_err();
            }
        }
        let done = ends.iter().all(Handshake::is_done);
        prop_assert_eq!(done && !refused, flip.is_none(), "refused: {}", refused);
    }
}
