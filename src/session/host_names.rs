//! The names of hosts, as all ranks tell each other in init: for whoever asks one host of ranks on another.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::sys::host;
use crate::transport::PeerInfo;
use crate::wire::{Reader, Writer};

/// The name of each host, by its number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostNames(HashMap<u64, String>);

impl HostNames {
    /// From what all ranks told behind their NICs, and what stands behind that. Of ranks of one host the first counts.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] where one has told something else than a name.
    pub fn gathered<'a>(
        told: impl IntoIterator<Item = (&'a PeerInfo, &'a [u8])>,
    ) -> Result<(HostNames, Vec<&'a [u8]>)> {
        let (mut names, mut rests) = (HashMap::new(), Vec::new());
        let mut before: Option<(u64, &[u8])> = None;
        for (peer, bytes) in told {
            // Mostly the ranks of a host follow each other: a name that begins with its length is read once.
            if let Some((host, name)) = before
                && host == peer.host
                && let Some(rest) = bytes.strip_prefix(name)
            {
                rests.push(rest);
                continue;
            }
            let mut reader = Reader::new(bytes, "what a rank tells of its host");
            let name = reader.text(MOST_NAME_BYTES).map_err(|error| {
                let rank = peer.rank;
                Error::remote(rank, format!("rank {rank} does not tell its host's name: {}", error.message()))
            })?;
            names.entry(peer.host).or_insert(name);
            let rest = reader.rest();
            before = Some((peer.host, &bytes[..bytes.len() - rest.len()]));
            rests.push(rest);
        }
        Ok((HostNames(names), rests))
    }

    /// The name of the host of this number.
    pub fn of(&self, host: u64) -> Option<&str> {
        self.0.get(&host).map(String::as_str)
    }
}

/// What this rank tells.
pub fn told() -> Vec<u8> {
    // No name at all would hide the names behind it.
    let name = host::hostname().ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "-".to_owned());
    let end = (0..=name.len().min(MOST_NAME_BYTES)).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    let mut writer = Writer::new();
    writer.text(&name[..end]);
    writer.finish()
}

/// The longest name of a host (the kernel's `__NEW_UTS_LEN`).
const MOST_NAME_BYTES: usize = 64;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::sys::numa::ThreadHome;
    use crate::transport::SWITCH_LAYERS;
    use crate::types::Rank;

    fn peer(rank: u32, host: u64) -> PeerInfo {
        PeerInfo {
            rank: Rank::new(rank),
            host,
            process: rank.into(),
            pid: rank,
            space: 0,
            cores: 1,
            settings: 0,
            tuning: 0,
            home: ThreadHome::default(),
            switches: [0; SWITCH_LAYERS],
            is_traced: false,
        }
    }

    fn named(name: &str, rest: &[u8]) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.text(name);
        [writer.finish(), rest.to_vec()].concat()
    }

    #[test]
    fn each_host_has_the_name_that_its_first_rank_tells() {
        let peers = [peer(0, 7), peer(1, 9), peer(2, 7)];
        let told = [named("a", b"x"), named("b", b""), named("c", b"yz")];
        let (names, rests) = HostNames::gathered(peers.iter().zip(told.iter().map(Vec::as_slice))).unwrap();
        assert_eq!((names.of(7), names.of(9), names.of(8)), (Some("a"), Some("b"), None));
        assert_eq!(rests, [&b"x"[..], b"", b"yz"]);
        // Ranks that follow each other: of one host by one name and by two, and of two hosts by one name.
        let peers = [peer(0, 7), peer(1, 7), peer(2, 7), peer(3, 9)];
        let told = [named("a", b"x"), named("a", b"y"), named("ab", b"z"), named("ab", b"")];
        let (names, rests) = HostNames::gathered(peers.iter().zip(told.iter().map(Vec::as_slice))).unwrap();
        assert_eq!((names.of(7), names.of(9)), (Some("a"), Some("ab")));
        assert_eq!(rests, [&b"x"[..], b"y", b"z", b""]);
    }

    #[test]
    fn what_is_no_name_names_the_rank() {
        let own = told();
        assert!(HostNames::gathered([(&peer(0, 1), &own[..])]).is_ok());
        let long = named(&"n".repeat(MOST_NAME_BYTES + 1), b"");
        for bytes in [&own[..own.len() - 1], b"", &[0xff; 8], &long] {
            let error = HostNames::gathered([(&peer(3, 1), bytes)]).unwrap_err();
            assert!(
                error.kind() == Kind::Remote && error.message().contains("rank 3 does not tell its host"),
                "{error}"
            );
        }
    }
}
