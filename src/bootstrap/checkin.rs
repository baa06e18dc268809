//! The messages between ranks and roots, field by field.
//!
//! | frame | from → to | payload |
//! |-------|-----------|---------|
//! | check-in | rank → root | version 2, rank 4, world 4, roots 4, root 4, time left in ms 4, address 23 |
//! | welcome | root → rank | session 16, count 4, addresses of the rank's neighbours |
//! | refusal | root → rank | kind 1, peer 4, reason |
//! | late | root → rank | as a refusal: why the others did not meet, before this rank came |
//! | ask | rank → root | nothing: do ranks still meet here? The answer is `late` or `gathers` |
//! | gathers | root → rank | nothing |
//! | block | root → first of its block → root 0 | root 4, time left in ms 4, world 4, roots 4, count 4, addresses |
//! | table | root 0 → first rank of a block → its root | session 16, count 4, addresses of all ranks |

use std::net::SocketAddr;

use crate::error::{Error, Kind, Result};
use crate::types::Rank;
use crate::wire::frame::Frame;
use crate::wire::{ADDRESS_BYTES, Reader, Writer};

/// The largest world. It bounds every table that a check-in can make a root allocate.
pub const MAX_WORLD: u32 = 1 << 20;

/// The most bytes of a frame between rank and root: a table of the largest world.
pub(super) const MAX_ROOT_FRAME_BYTES: usize = 64 + ADDRESS_BYTES * (1 << 20);

const _: () = assert!(MAX_WORLD == 1 << 20, "the largest table is sized for the largest world");

/// The version of these messages; ranks and root must have the same one.
pub(super) const VERSION: u16 = 2;

pub(super) const CHECK_IN: u8 = 1;
pub(super) const WELCOME: u8 = 2;
pub(super) const REFUSAL: u8 = 3;
pub(super) const BLOCK: u8 = 4;
pub(super) const TABLE: u8 = 5;
pub(super) const LATE: u8 = 6;
pub(super) const ASK: u8 = 7;
pub(super) const GATHERS: u8 = 8;

/// The most bytes of a refusal's reason.
const MAX_REASON_BYTES: usize = 8 << 10;

/// How many ranks and roots there are. All ranks of a world must report the same shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorldShape {
    pub(super) world: u32,
    pub(super) roots: u32,
}

impl WorldShape {
    /// The first rank of block `root`. Blocks are contiguous, and their sizes differ by one at most.
    pub(super) fn first(self, root: u32) -> Rank {
        let first = u64::from(root) * u64::from(self.world) / u64::from(self.roots);
        Rank::new(u32::try_from(first).unwrap_or(self.world))
    }

    /// The number of ranks in block `root`.
    pub(super) fn count(self, root: u32) -> u32 {
        self.first(root + 1).get() - self.first(root).get()
    }

    /// The block that `rank` belongs to.
    pub(super) fn root_of(self, rank: Rank) -> u32 {
        // The largest block whose first rank is at most `rank`: floor(((rank + 1) × roots − 1) / world).
        let block = ((u64::from(rank.get()) + 1) * u64::from(self.roots) - 1) / u64::from(self.world);
        u32::try_from(block).unwrap_or(self.roots)
    }

    fn is_possible(self) -> bool {
        (1..=MAX_WORLD).contains(&self.world) && (1..=self.world).contains(&self.roots)
    }
}

/// A rank's check-in with its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CheckIn {
    pub(super) rank: Rank,
    pub(super) shape: WorldShape,
    pub(super) root: u32,
    pub(super) left_ms: u32,
    pub(super) address: SocketAddr,
}

impl CheckIn {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u16(VERSION).u32(self.rank.get()).u32(self.shape.world).u32(self.shape.roots).u32(self.root);
        writer.u32(self.left_ms).address(&self.address);
        writer.finish()
    }

    pub(super) fn decode(payload: &[u8]) -> Result<CheckIn> {
        let mut reader = Reader::new(payload, "a check-in");
        let version = reader.u16()?;
        if version != VERSION {
            return Err(Error::mismatch(format!(
                "it speaks version {version} of the bootstrap, the root speaks {VERSION}"
            )));
        }
        let rank = Rank::new(reader.u32()?);
        let shape = WorldShape { world: reader.u32()?, roots: reader.u32()? };
        let check_in = CheckIn { rank, shape, root: reader.u32()?, left_ms: reader.u32()?, address: reader.address()? };
        reader.finish()?;
        if !shape.is_possible() || rank.get() >= shape.world || shape.root_of(rank) != check_in.root {
            let WorldShape { world, roots } = shape;
            let root = check_in.root;
            return Err(Error::mismatch(format!(
                "the check-in of rank {rank} of {world} at root {root} of {roots} is out of range"
            )));
        }
        Ok(check_in)
    }
}

/// The ranks of one root's block, once all have checked in. The first rank of the block sends it on to root 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankBlock {
    pub(super) root: u32,
    pub(super) left_ms: u32,
    pub(super) shape: WorldShape,
    pub(super) addresses: Vec<SocketAddr>,
}

impl RankBlock {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(32 + self.addresses.len() * ADDRESS_BYTES);
        writer.u32(self.root).u32(self.left_ms).u32(self.shape.world).u32(self.shape.roots);
        addresses(&mut writer, &self.addresses);
        writer.finish()
    }

    pub(super) fn decode(payload: &[u8]) -> Result<RankBlock> {
        let mut reader = Reader::new(payload, "a block of ranks");
        let (root, left_ms) = (reader.u32()?, reader.u32()?);
        let shape = WorldShape { world: reader.u32()?, roots: reader.u32()? };
        if !shape.is_possible() || root >= shape.roots {
            return Err(reader.malformed("its world, its roots or its root is out of range"));
        }
        let addresses = read_addresses(&mut reader)?;
        let (count, expected) = (addresses.len(), shape.count(root));
        if count != Rank::new(expected).index() {
            return Err(reader.malformed(&format!("it has {count} ranks, expected {expected}")));
        }
        reader.finish()?;
        Ok(RankBlock { root, left_ms, shape, addresses })
    }
}

/// A session number and addresses: of all ranks in a table, of one rank's neighbours in a welcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AddressTable {
    pub(super) session: [u8; 16],
    pub(super) addresses: Vec<SocketAddr>,
}

impl AddressTable {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(32 + self.addresses.len() * ADDRESS_BYTES);
        writer.raw(&self.session);
        addresses(&mut writer, &self.addresses);
        writer.finish()
    }

    /// Decodes a table that must have `expected` addresses.
    pub(super) fn decode(payload: &[u8], expected: usize) -> Result<AddressTable> {
        let mut reader = Reader::new(payload, "the root's answer");
        let session = reader.array()?;
        let addresses = read_addresses(&mut reader)?;
        let count = addresses.len();
        if count != expected {
            return Err(reader.malformed(&format!("it has {count} addresses, expected {expected}")));
        }
        reader.finish()?;
        Ok(AddressTable { session, addresses })
    }
}

fn addresses(writer: &mut Writer, addresses: &[SocketAddr]) {
    writer.u32(u32::try_from(addresses.len()).unwrap_or(u32::MAX));
    for address in addresses {
        writer.address(address);
    }
}

/// Allocates by the bytes that have arrived, not by the count that the sender claims.
fn read_addresses(reader: &mut Reader<'_>) -> Result<Vec<SocketAddr>> {
    let count = Rank::new(reader.u32()?).index();
    if count.checked_mul(ADDRESS_BYTES) != Some(reader.rest().len()) {
        return Err(reader.malformed("the number of addresses does not fit its length"));
    }
    (0..count).map(|_| reader.address()).collect()
}

/// The reason that a rejected rank is told.
pub(super) fn encode_refusal(error: &Error) -> Vec<u8> {
    let code = match error.kind() {
        Kind::Mismatch => 1,
        Kind::Timeout => 2,
        Kind::Remote => 3,
        _ => 0,
    };
    let reason = error.message();
    let mut end = reason.len().min(MAX_REASON_BYTES);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    let mut writer = Writer::new();
    writer.u8(code).u32(error.peer().unwrap_or(u32::MAX)).text(&reason[..end]);
    writer.finish()
}

pub(super) fn decode_refusal(payload: &[u8]) -> Error {
    let mut reader = Reader::new(payload, "the root's refusal");
    let mut read = || -> Result<Error> {
        let kind = match reader.u8()? {
            1 => Kind::Mismatch,
            2 => Kind::Timeout,
            3 => Kind::Remote,
            _ => Kind::InvalidUsage,
        };
        let peer = reader.u32()?;
        let error = Error::new(kind, reader.text(MAX_REASON_BYTES)?);
        Ok(if peer == u32::MAX { error } else { error.about(Rank::new(peer)) })
    };
    read().unwrap_or_else(|error| error)
}

/// The error for a frame that its receiver does not expect.
pub(super) fn unexpected(frame: &Frame) -> Error {
    Error::new(Kind::Remote, format!("unexpected frame of kind {}", frame.kind))
}

/// Ranks as ranges, such as "3, 17-19".
pub(super) fn ranges(ranks: impl IntoIterator<Item = u32>) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(rank) => *last = rank,
            _ => runs.push((rank, rank)),
        }
    }
    let more = runs.len().saturating_sub(MAX_RANGES);
    runs.truncate(MAX_RANGES);
    let shown: Vec<_> = runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") }).collect();
    let tail = if more > 0 { format!(" and {more} ranges more") } else { String::new() };
    shown.join(", ") + &tail
}

/// The most ranges that a message lists.
const MAX_RANGES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_contiguous_and_even() {
        for world in 1..70 {
            for roots in 1..=world {
                let shape = WorldShape { world, roots };
                let mut rank = 0;
                for root in 0..roots {
                    assert_eq!(shape.first(root).get(), rank);
                    assert!((world / roots..=world.div_ceil(roots)).contains(&shape.count(root)));
                    for _ in 0..shape.count(root) {
                        assert_eq!(shape.root_of(Rank::new(rank)), root, "rank {rank} of {shape:?}");
                        rank += 1;
                    }
                }
                assert_eq!(rank, world);
            }
        }
    }

    #[test]
    fn messages_come_back() {
        let address = "10.0.0.1:5".parse().unwrap();
        let shape = WorldShape { world: 8, roots: 2 };
        let check_in = CheckIn { rank: Rank::new(5), shape, root: 1, left_ms: 7, address };
        assert_eq!(CheckIn::decode(&check_in.encode()).unwrap(), check_in);
        let block = RankBlock { root: 1, left_ms: 9, shape, addresses: vec![address; 4] };
        assert_eq!(RankBlock::decode(&block.encode()).unwrap(), block);
        let table = AddressTable { session: [3; 16], addresses: vec![address; 8] };
        assert_eq!(AddressTable::decode(&table.encode(), 8).unwrap(), table);
        assert!(AddressTable::decode(&table.encode(), 7).is_err());
        let refusal = decode_refusal(&encode_refusal(&Error::remote(Rank::new(3), "é".repeat(5000))));
        assert_eq!((refusal.kind(), refusal.peer(), refusal.message().len()), (Kind::Remote, Some(3), 8192));
    }

    #[test]
    fn impossible_check_ins_are_refused() {
        let address = "10.0.0.1:5".parse().unwrap();
        let good =
            CheckIn { rank: Rank::new(1), shape: WorldShape { world: 4, roots: 1 }, root: 0, left_ms: 7, address };
        for bad in [
            CheckIn { rank: Rank::new(4), ..good.clone() },
            CheckIn { root: 1, ..good.clone() },
            CheckIn { shape: WorldShape { world: MAX_WORLD + 1, roots: 1 }, ..good.clone() },
            CheckIn { shape: WorldShape { world: 4, roots: 0 }, ..good.clone() },
            CheckIn { shape: WorldShape { world: 4, roots: 5 }, ..good.clone() },
        ] {
            assert_eq!(CheckIn::decode(&bad.encode()).unwrap_err().kind(), Kind::Mismatch);
        }
        let mut other_version = good.encode();
        other_version[0] = 9;
        assert!(CheckIn::decode(&other_version).unwrap_err().to_string().contains("version 9"));
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges([]), "");
        assert_eq!(ranges([3, 17, 18, 19]), "3, 17-19");
        assert_eq!(ranges([0, 1]), "0-1");
        assert!(ranges((0..1000).map(|i| i * 2)).ends_with(" and 936 ranges more"));
    }
}
