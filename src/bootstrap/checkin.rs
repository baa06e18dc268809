//! The messages between ranks and roots, field by field.
//!
//! | frame | from → to | payload |
//! |-------|-----------|---------|
//! | check-in | rank → root | version 2, rank 4, shape 12, root 4, ms left 4, address 23, encryption 1 |
//! | welcome | root → rank | session 16, count 4, addresses of the rank's neighbours |
//! | refusal | root → rank | kind 1, peer 4, reason |
//! | late | root → rank | as a refusal: why the others did not meet, before this rank came |
//! | ask | rank → root | nothing: do ranks still meet here? The answer is `late` or `gathers` |
//! | gathers | root → rank | nothing |
//! | serve | first rank of a further block → root 0 | version 2, rank 4, shape 12, root 4, ms left 4, its root's address 23 |
//! | block | root → first of its block → root 0 | root 4, ms left 4, shape 12, encryption 10, count 4, addresses |
//! | find | another rank of a further block of one id → root 0 | version 2, rank 4, shape 12, root 4, ms left 4 |
//! | place | root 0 → that rank | address 23 of its root |
//! | table | root 0 → first rank of a block → its root | session 16, count 4, addresses of all ranks |
//!
//! A shape is the numbers of ranks, of roots and of ids that the rank was given, 4 bytes each.

use std::net::SocketAddr;

use crate::config::Encryption;
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
pub(super) const VERSION: u16 = 6;

pub(super) const CHECK_IN: u8 = 1;
pub(super) const WELCOME: u8 = 2;
pub(super) const REFUSAL: u8 = 3;
pub(super) const BLOCK: u8 = 4;
pub(super) const TABLE: u8 = 5;
pub(super) const LATE: u8 = 6;
pub(super) const ASK: u8 = 7;
pub(super) const GATHERS: u8 = 8;
pub(super) const SERVE: u8 = 9;
pub(super) const FIND: u8 = 10;
pub(super) const PLACE: u8 = 11;

/// The most bytes of a refusal's reason.
const MAX_REASON_BYTES: usize = 8 << 10;

/// How many ranks and roots there are. All ranks of a world must report the same shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorldShape {
    pub(super) world: u32,
    pub(super) roots: u32,
    /// Of how many ids: one for each root, or one for all.
    pub(super) ids: u32,
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
        let has_ids = self.ids == 1 || self.ids == self.roots;
        (1..=MAX_WORLD).contains(&self.world) && (1..=self.world).contains(&self.roots) && has_ids
    }

    fn encode(self, writer: &mut Writer) {
        writer.u32(self.world).u32(self.roots).u32(self.ids);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<WorldShape> {
        Ok(WorldShape { world: reader.u32()?, roots: reader.u32()?, ids: reader.u32()? })
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
    pub(super) encryption: Encryption,
}

impl CheckIn {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u16(VERSION).u32(self.rank.get());
        self.shape.encode(&mut writer);
        writer.u32(self.root).u32(self.left_ms).address(&self.address).u8(self.encryption.code());
        writer.finish()
    }

    pub(super) fn decode(payload: &[u8]) -> Result<CheckIn> {
        let mut reader = Reader::new(payload, "a check-in");
        check_version(reader.u16()?)?;
        let (rank, shape) = (Rank::new(reader.u32()?), WorldShape::decode(&mut reader)?);
        let (root, left_ms, address) = (reader.u32()?, reader.u32()?, reader.address()?);
        let check_in = CheckIn { rank, shape, root, left_ms, address, encryption: read_encryption(&mut reader)? };
        reader.finish()?;
        if !shape.is_possible() || rank.get() >= shape.world || shape.root_of(rank) != check_in.root {
            let WorldShape { world, roots, .. } = shape;
            let root = check_in.root;
            return Err(Error::mismatch(format!(
                "the check-in of rank {rank} of {world} at root {root} of {roots} is out of range"
            )));
        }
        Ok(check_in)
    }
}

/// What a rank says to root 0 of the further root of its block: where that serves, or that the rank looks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FurtherRoot {
    pub(super) rank: Rank,
    pub(super) shape: WorldShape,
    pub(super) root: u32,
    pub(super) left_ms: u32,
    /// Where it serves, said by the first rank of the block. Where ranks have one id, that rank's process serves it.
    pub(super) at: Option<SocketAddr>,
}

impl FurtherRoot {
    /// The frame, with its kind.
    pub(super) fn encode(&self) -> (u8, Vec<u8>) {
        let mut writer = Writer::new();
        writer.u16(VERSION).u32(self.rank.get());
        self.shape.encode(&mut writer);
        writer.u32(self.root).u32(self.left_ms);
        self.at.iter().for_each(|at| _ = writer.address(at));
        (if self.at.is_some() { SERVE } else { FIND }, writer.finish())
    }

    pub(super) fn decode(frame: &Frame) -> Result<FurtherRoot> {
        let mut reader = Reader::new(&frame.payload, "what a rank says of a further root");
        check_version(reader.u16()?)?;
        let (rank, shape) = (Rank::new(reader.u32()?), WorldShape::decode(&mut reader)?);
        let (root, left_ms) = (reader.u32()?, reader.u32()?);
        let at = (frame.kind == SERVE).then(|| reader.address()).transpose()?;
        let is_possible = shape.is_possible() && root > 0 && rank.get() < shape.world && shape.root_of(rank) == root;
        // Where each root has its id, no rank has to look for one.
        if !is_possible || (at.is_some() != (shape.first(root) == rank)) || (at.is_none() && shape.ids > 1) {
            return Err(reader.malformed("its rank, its world, its roots or its root is out of range"));
        }
        reader.finish()?;
        Ok(FurtherRoot { rank, shape, root, left_ms, at })
    }
}

pub(super) fn encode_place(at: &SocketAddr) -> Vec<u8> {
    let mut writer = Writer::with_capacity(ADDRESS_BYTES);
    writer.address(at);
    writer.finish()
}

pub(super) fn decode_place(payload: &[u8]) -> Result<SocketAddr> {
    let mut reader = Reader::new(payload, "the place of a root");
    let at = reader.address()?;
    reader.finish()?;
    Ok(at)
}

fn check_version(version: u16) -> Result<()> {
    if version == VERSION {
        return Ok(());
    }
    Err(Error::mismatch(format!("it speaks version {version} of the bootstrap, the root speaks {VERSION}")))
}

/// The ranks of one root's block, once all have checked in. The first rank of the block sends it on to root 0.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankBlock {
    pub(super) root: u32,
    pub(super) left_ms: u32,
    pub(super) shape: WorldShape,
    pub(super) encryption: EncryptionTally,
    pub(super) addresses: Vec<SocketAddr>,
}

impl RankBlock {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::with_capacity(32 + self.addresses.len() * ADDRESS_BYTES);
        writer.u32(self.root).u32(self.left_ms);
        self.shape.encode(&mut writer);
        self.encryption.encode(&mut writer);
        addresses(&mut writer, &self.addresses);
        writer.finish()
    }

    pub(super) fn decode(payload: &[u8]) -> Result<RankBlock> {
        let mut reader = Reader::new(payload, "a block of ranks");
        let (root, left_ms, shape) = (reader.u32()?, reader.u32()?, WorldShape::decode(&mut reader)?);
        if !shape.is_possible() || root >= shape.roots {
            return Err(reader.malformed("its world, its roots or its root is out of range"));
        }
        let encryption = EncryptionTally::decode(&mut reader)?;
        let addresses = read_addresses(&mut reader)?;
        let (count, expected) = (addresses.len(), shape.count(root));
        if count != Rank::new(expected).index() {
            return Err(reader.malformed(&format!("it has {count} ranks, expected {expected}")));
        }
        reader.finish()?;
        Ok(RankBlock { root, left_ms, shape, encryption, addresses })
    }
}

/// What ranks have of `RSCCL_ENCRYPT`: that of one rank, and the first that differs from it. In a block each is the
/// rank and its setting, 5 bytes; the second one is the first again where all are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EncryptionTally {
    first: (Rank, Encryption),
    odd: Option<(Rank, Encryption)>,
}

impl EncryptionTally {
    pub(super) fn new(rank: Rank, encryption: Encryption) -> EncryptionTally {
        EncryptionTally { first: (rank, encryption), odd: None }
    }

    pub(super) fn add(&mut self, rank: Rank, encryption: Encryption) {
        if encryption != self.first.1 {
            self.odd.get_or_insert((rank, encryption));
        }
    }

    /// Adds the ranks of another block.
    pub(super) fn merge(&mut self, other: EncryptionTally) {
        [Some(other.first), other.odd].into_iter().flatten().for_each(|(rank, encryption)| self.add(rank, encryption));
    }

    /// The error for all ranks where two differ.
    pub(super) fn difference(self) -> Option<Error> {
        let ((first, usual), (rank, odd)) = (self.first, self.odd?);
        let (usual, odd) = (usual.name(), odd.name());
        let text = format!("RSCCL_ENCRYPT is {usual} on rank {first} and {odd} on rank {rank}");
        Some(Error::mismatch(text).about(rank))
    }

    fn encode(self, writer: &mut Writer) {
        for (rank, encryption) in [self.first, self.odd.unwrap_or(self.first)] {
            writer.u32(rank.get()).u8(encryption.code());
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<EncryptionTally> {
        let mut tally = EncryptionTally::new(Rank::new(reader.u32()?), read_encryption(reader)?);
        tally.add(Rank::new(reader.u32()?), read_encryption(reader)?);
        Ok(tally)
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

fn read_encryption(reader: &mut Reader<'_>) -> Result<Encryption> {
    let code = reader.u8()?;
    Encryption::from_code(code).ok_or_else(|| reader.malformed(&format!("unknown encryption {code}")))
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
                let shape = WorldShape { world, roots, ids: 1 };
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
        let shape = WorldShape { world: 8, roots: 2, ids: 2 };
        let check_in = CheckIn { rank: Rank::new(5), shape, root: 1, left_ms: 7, address, encryption: Encryption::On };
        assert_eq!(CheckIn::decode(&check_in.encode()).unwrap(), check_in);
        let mut encryption = EncryptionTally::new(Rank::new(4), Encryption::Off);
        assert_eq!(encryption.difference().map(|error| error.to_string()), None);
        encryption.add(Rank::new(5), Encryption::On);
        let block = RankBlock { root: 1, left_ms: 9, shape, encryption, addresses: vec![address; 4] };
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
        let (shape, encryption) = (WorldShape { world: 4, roots: 1, ids: 1 }, Encryption::Off);
        let good = CheckIn { rank: Rank::new(1), shape, root: 0, left_ms: 7, address, encryption };
        for bad in [
            CheckIn { rank: Rank::new(4), ..good.clone() },
            CheckIn { root: 1, ..good.clone() },
            CheckIn { shape: WorldShape { world: MAX_WORLD + 1, ..shape }, ..good.clone() },
            CheckIn { shape: WorldShape { roots: 0, ..shape }, ..good.clone() },
            CheckIn { shape: WorldShape { roots: 5, ..shape }, ..good.clone() },
            CheckIn { shape: WorldShape { ids: 0, ..shape }, ..good.clone() },
            CheckIn { shape: WorldShape { ids: 2, ..shape }, ..good.clone() },
        ] {
            assert_eq!(CheckIn::decode(&bad.encode()).unwrap_err().kind(), Kind::Mismatch);
        }
        let mut other_version = good.encode();
        other_version[0] = 9;
        assert!(CheckIn::decode(&other_version).unwrap_err().to_string().contains("version 9"));
    }

    #[test]
    fn further_roots_come_back_and_impossible_ones_are_refused() {
        let shape = WorldShape { world: 4, roots: 2, ids: 1 };
        let frame = |(kind, payload)| Frame { kind, tag: 0, payload };
        for (rank, at) in [(3, None), (2, Some("[fe80::1%7]:5".parse().unwrap()))] {
            let good = FurtherRoot { rank: Rank::new(rank), shape, root: 1, left_ms: 7, at };
            assert_eq!(FurtherRoot::decode(&frame(good.encode())).unwrap(), good);
            for bad in [
                FurtherRoot { root: 0, ..good },
                FurtherRoot { root: 2, ..good },
                FurtherRoot { rank: Rank::new(5 - rank), ..good },
                FurtherRoot { rank: Rank::new(1), ..good },
                FurtherRoot { rank: Rank::new(4), ..good },
                FurtherRoot { shape: WorldShape { roots: 5, ..shape }, ..good },
                FurtherRoot { shape: WorldShape { world: MAX_WORLD + 1, ..shape }, ..good },
                FurtherRoot { shape: WorldShape { ids: 3, ..shape }, ..good },
            ] {
                assert!(FurtherRoot::decode(&frame(bad.encode())).is_err(), "{bad:?}");
            }
            // Each root has an id: none has to be looked for.
            let of_ids = FurtherRoot { shape: WorldShape { ids: 2, ..shape }, ..good };
            assert_eq!(FurtherRoot::decode(&frame(of_ids.encode())).is_ok(), at.is_some());
            let (kind, payload) = good.encode();
            assert!(
                (0..payload.len()).all(|end| FurtherRoot::decode(&frame((kind, payload[..end].to_vec()))).is_err())
            );
        }
        let at = "10.0.0.1:5".parse().unwrap();
        assert_eq!(decode_place(&encode_place(&at)).unwrap(), at);
        assert!(decode_place(&encode_place(&at)[1..]).is_err());
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges([]), "");
        assert_eq!(ranges([3, 17, 18, 19]), "3, 17-19");
        assert_eq!(ranges([0, 1]), "0-1");
        assert!(ranges((0..1000).map(|i| i * 2)).ends_with(" and 936 ranges more"));
    }
}
