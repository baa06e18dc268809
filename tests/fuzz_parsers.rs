//! Whatever bytes come, no parser panics. `RSCCL_FUZZ_CASES` (default 256) sets how many each test tries.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use rsccl::internals::bootstrap::address::HostPort;
use rsccl::internals::bootstrap::auth::{Handshake, Purpose, Terms};
use rsccl::internals::bootstrap::interface::{Family, Rules};
use rsccl::internals::bootstrap::{UniqueId, decode_anything};
use rsccl::internals::wire::Reader;
use rsccl::internals::wire::frame::{self, Frame, FrameReader};
use rsccl::types::Rank;

fn config() -> ProptestConfig {
    #![expect(clippy::disallowed_methods, reason = "a test's own knob")]
    let cases =
        std::env::var("RSCCL_FUZZ_CASES").map_or(256, |text| text.parse().expect("RSCCL_FUZZ_CASES is a number"));
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn terms() -> Terms {
    Terms { key: [1; 32], purpose: Purpose::Peer, communicator: 7, job: None }
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
        let _refused = text.parse::<Family>();
    }

    #[test]
    fn frames_from_garbage(bytes in sparse(), most in 0usize..300) {
        let mut reader = FrameReader::new(most);
        let mut input = &bytes[..];
        while !input.is_empty() {
            match reader.next(&mut input) {
                Ok(Some(frame)) => prop_assert!(frame.payload.len() <= most),
                Ok(None) => prop_assert!(input.is_empty()),
                Err(_) => break,
            }
        }
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
        while let Ok(field) = reader.bytes(most) {
            prop_assert!(field.len() <= most);
        }
    }

    #[test]
    fn messages(bytes in prop_oneof![sparse(), prop::collection::vec(any::<u8>(), 0..200)]) {
        decode_anything(&bytes);
    }

    #[test]
    fn handshakes(bytes in prop::collection::vec(any::<u8>(), 0..300), piece in 1usize..64, honest in any::<bool>()) {
        let mut responder = Handshake::respond(terms(), Rank::new(5));
        if honest {
            let mut initiator = Handshake::initiate(terms(), Rank::new(3), Rank::new(5)).unwrap();
            responder.receive(&mut &initiator.take_output()[..]).unwrap();
        }
        for mut piece in bytes.chunks(piece) {
            if responder.receive(&mut piece).is_err() {
                break;
            }
        }
        prop_assert!(!responder.is_done(), "garbage proves nothing");
    }
}

/// A good file with some pieces cut out, doubled or put in another place.
fn mangled(text: &str, edits: &[(prop::sample::Index, prop::sample::Index, u8)]) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for (from, length, how) in edits {
        let from = from.index(letters.len() + 1);
        let to = (from + length.index(40)).min(letters.len());
        let piece: Vec<char> = letters[from..to].to_vec();
        match how % 4 {
            0 => drop(letters.drain(from..to)),
            1 => drop(letters.splice(from..from, piece)),
            2 => drop(letters.splice(from..to, "0x7f-[,:\n  ".chars())),
            _ => letters[from..to].reverse(),
        }
    }
    letters.into_iter().collect()
}

proptest! {
    #![proptest_config(config())]

    /// Files of machines in both formats: what reads is a graph or an error, and is looked at for doubts.
    #[test]
    fn machine_files(which in 0usize..3, edits in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index, u8)>(), 0..6)) {
        use rsccl::internals::topo::{doubts, machine_file, system::System};
        let good = [
            include_str!("data/descriptions/hwloc.xml"),
            include_str!("data/descriptions/two-trays.xml"),
            include_str!("data/machines/dgx1v.xml"),
        ][which];
        if edits.is_empty() {
            prop_assert!(machine_file::parse("f", good).is_ok());
        }
        match machine_file::parse("f", &mangled(good, &edits)) {
            Ok((machine, _notes)) => {
                let _doubts = doubts::of(&machine);
                let _graph = System::new(&machine);
            }
            Err(error) => prop_assert!(error.message().starts_with("f:"), "{}", error),
        }
    }

    /// Files of switches in all formats.
    #[test]
    fn switch_files(which in 0usize..3, edits in prop::collection::vec(any::<(prop::sample::Index, prop::sample::Index, u8)>(), 0..6), text in "\\PC{0,60}|[-a-z:#\\[\\], \\n]{0,80}") {
        use rsccl::internals::topo::switches::Switches;
        let good = [
            include_str!("data/descriptions/topology.yaml"),
            include_str!("data/descriptions/trunks.conf"),
            include_str!("data/descriptions/blocks.conf"),
        ][which];
        for text in [mangled(good, &edits), text] {
            match Switches::parse("f", &text, Some("gpu")) {
                Ok(found) => drop(found.tree()),
                Err(error) => prop_assert!(error.message().starts_with("f:") && error.message().len() < 1000, "{}", error),
            }
        }
    }
}
