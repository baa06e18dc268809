//! All-gather, broadcast and barrier in ⌈log₂ N⌉ rounds over anything that carries messages between pairs.
//!
//! All three send to the rank 2ᵏ above and take from the rank 2ᵏ below, so a mesh needs only the connections of
//! [`distances`]; who sends first is also who opens. `LocalBootstrap` and `NetBootstrap` both run this code.

use crate::bootstrap::inbox::Channel;
use crate::bootstrap::{Child, MAX_GATHER_BYTES};
use crate::error::{Error, Result};
use crate::sync::Wait;
use crate::types::Rank;
use crate::wire::{Reader, Writer};

/// What carries the messages of a collective.
pub(super) trait Mesh {
    /// Sends to `peer`; does not wait for it to take.
    fn put(&self, peer: Rank, channel: Channel, bytes: &[u8], wait: &Wait) -> Result<()>;

    /// Takes from `peer`; fails when it, or any other member of `group`, has died.
    fn take(&self, peer: Rank, channel: Channel, group: &Group, wait: &Wait) -> Result<Vec<u8>>;
}

/// Who takes part in a collective.
#[derive(Debug, Clone)]
pub(super) struct Group {
    members: Members,
    me: u32,
    channel: Channel,
}

#[derive(Debug, Clone)]
enum Members {
    All(u32),
    Some(Vec<Rank>),
}

impl Group {
    /// All ranks below `size`; the collective has the number `sequence`.
    pub(super) fn all(me: Rank, size: u32, sequence: u32) -> Group {
        Group { members: Members::All(size), me: me.get(), channel: Channel::Collective(sequence) }
    }

    /// The survivors of a shrink, which `number` tells from other shrinks.
    pub(super) fn survivors(members: Vec<Rank>, me: Rank, number: u32) -> Result<Group> {
        let place = members.iter().position(|member| *member == me);
        let place = place.and_then(|place| u32::try_from(place).ok());
        let me = place.ok_or_else(|| Error::invalid_argument(format!("rank {me} excludes itself")))?;
        Ok(Group { members: Members::Some(members), me, channel: Channel::Shrink(number) })
    }

    fn size(&self) -> u32 {
        match &self.members {
            Members::All(size) => *size,
            Members::Some(members) => u32::try_from(members.len()).expect("a group is no larger than its world"),
        }
    }

    fn rank(&self, place: Rank) -> Rank {
        match &self.members {
            Members::All(_) => place,
            Members::Some(members) => members[place.index()],
        }
    }

    fn above(&self, distance: u32) -> Rank {
        self.rank(Rank::new(self.me).after(distance, self.size()))
    }

    fn below(&self, distance: u32) -> Rank {
        self.rank(Rank::new(self.me).before(distance, self.size()))
    }

    /// Whether `rank` takes part.
    pub(super) fn contains(&self, rank: Rank) -> bool {
        match &self.members {
            Members::All(size) => rank.get() < *size,
            Members::Some(members) => members.binary_search(&rank).is_ok(),
        }
    }
}

/// 1, 2, 4, … below `size`: how far the neighbours of a rank are.
pub(super) fn distances(size: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|k| 1 << k).take_while(move |distance| *distance < size)
}

/// Which collective a message is of: its first byte, so that ranks that call different ones find out.
const ALL_GATHER: u8 = 1;
const BROADCAST: u8 = 2;
const BARRIER: u8 = 3;

/// Bruck's all-gather: after round k a rank holds the blocks of the 2ᵏ⁺¹ ranks that end with itself.
pub(super) fn all_gather(mesh: &impl Mesh, group: &Group, mine: &[u8], wait: &Wait) -> Result<Vec<Vec<u8>>> {
    if mine.len() > MAX_GATHER_BYTES {
        let length = mine.len();
        return Err(Error::invalid_argument(format!("{length} bytes to gather; at most {MAX_GATHER_BYTES} per rank")));
    }
    let size = group.size();
    let total = Rank::new(size).index();
    // blocks[j] is of the rank j below me.
    let mut blocks = vec![mine.to_vec()];
    for distance in distances(size) {
        let count = blocks.len().min(total - blocks.len());
        let bytes = blocks[..count].iter().map(|block| block.len() + 4).sum::<usize>() + 1;
        let mut message = Writer::with_capacity(bytes);
        message.u8(ALL_GATHER);
        for block in &blocks[..count] {
            message.bytes(block);
        }
        mesh.put(group.above(distance), group.channel, message.as_slice(), wait)?;
        let peer = group.below(distance);
        let bytes = mesh.take(peer, group.channel, group, wait)?;
        let mut reader = open(&bytes, ALL_GATHER, peer)?;
        for _ in 0..count {
            blocks.push(reader.bytes(MAX_GATHER_BYTES).map_err(|error| error.about(peer))?.to_vec());
        }
        reader.finish().map_err(|error| error.about(peer))?;
    }
    blocks.reverse();
    // blocks[i] is now of the rank total - 1 - i below me.
    blocks.rotate_right(Rank::new(group.me).index() + 1);
    Ok(blocks)
}

/// A binomial tree whose edges go up by powers of two from the root.
pub(super) fn broadcast(mesh: &impl Mesh, group: &Group, root: Rank, bytes: &[u8], wait: &Wait) -> Result<Vec<u8>> {
    let size = group.size();
    if root.get() >= size {
        return Err(Error::invalid_argument(format!("root {root} is no rank of {size}")));
    }
    if bytes.len() > MAX_GATHER_BYTES {
        let length = bytes.len();
        return Err(Error::invalid_argument(format!("{length} bytes to broadcast; at most {MAX_GATHER_BYTES}")));
    }
    let height = Rank::new(group.me).before(root.get(), size).get();
    let own = |bytes: &[u8]| {
        let mut message = Writer::with_capacity(bytes.len() + 5);
        message.u8(BROADCAST).u32(root.get()).raw(bytes);
        message.finish()
    };
    let message = if height == 0 {
        own(bytes)
    } else {
        let peer = group.below(1 << height.ilog2());
        let message = mesh.take(peer, group.channel, group, wait)?;
        let mut reader = open(&message, BROADCAST, peer)?;
        let theirs = reader.u32()?;
        if theirs != root.get() {
            return Err(Error::mismatch(format!(
                "rank {peer} broadcasts from root {theirs}, this rank from root {root}"
            ))
            .about(peer));
        }
        message
    };
    for distance in distances(size).filter(|distance| *distance > height && height + *distance < size) {
        mesh.put(group.above(distance), group.channel, &message, wait)?;
    }
    Ok(message[5..].to_vec())
}

/// Dissemination: after round k a rank knows that the 2ᵏ⁺¹ ranks that end with itself have come.
pub(super) fn barrier(mesh: &impl Mesh, group: &Group, wait: &Wait) -> Result<()> {
    for distance in distances(group.size()) {
        mesh.put(group.above(distance), group.channel, &[BARRIER], wait)?;
        let peer = group.below(distance);
        let bytes = mesh.take(peer, group.channel, group, wait)?;
        open(&bytes, BARRIER, peer)?.finish().map_err(|error| error.about(peer))?;
    }
    Ok(())
}

fn open<'a>(bytes: &'a [u8], expected: u8, peer: Rank) -> Result<Reader<'a>> {
    let mut reader = Reader::new(bytes, "a bootstrap message");
    let kind = reader.u8().map_err(|error| error.about(peer))?;
    if kind == expected {
        return Ok(reader);
    }
    let (theirs, ours) = (name(kind), name(expected));
    Err(Error::mismatch(format!("rank {peer} called {theirs} of the bootstrap where this rank called {ours}"))
        .about(peer))
}

fn name(kind: u8) -> &'static str {
    match kind {
        ALL_GATHER => "all_gather",
        BROADCAST => "broadcast",
        BARRIER => "barrier",
        _ => "something unknown",
    }
}

/// What a rank says in a split: its color and key, and bytes of the implementation (an address).
pub(super) fn split_entry(color: Option<u32>, key: i64, extra: &[u8]) -> Vec<u8> {
    let mut entry = Writer::new();
    entry.u8(u8::from(color.is_some())).u32(color.unwrap_or(0)).i64(key).raw(extra);
    entry.finish()
}

/// The members of my color in their new order, each with its extra bytes.
pub(super) fn split_members(entries: &[Vec<u8>], color: u32) -> Result<Vec<(Rank, &[u8])>> {
    let mut members = Vec::new();
    for (rank, entry) in (0..).map(Rank::new).zip(entries) {
        let mut reader = Reader::new(entry, "a split's entry");
        let theirs = (reader.u8()?, reader.u32()?);
        let key = reader.i64()?;
        if theirs == (1, color) {
            members.push((key, rank, reader.rest()));
        }
    }
    members.sort_by_key(|(key, rank, _)| (*key, *rank));
    Ok(members.into_iter().map(|(_, rank, extra)| (rank, extra)).collect())
}

/// The ranks that a shrink keeps.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] where `excluded` names no rank, all, or me.
pub(super) fn survivors(me: Rank, size: u32, excluded: &[Rank]) -> Result<Vec<Rank>> {
    if let Some(stranger) = excluded.iter().find(|rank| rank.get() >= size) {
        return Err(Error::invalid_argument(format!("shrink excludes rank {stranger}, which is no rank of {size}")));
    }
    if excluded.contains(&me) {
        return Err(Error::invalid_argument(format!("rank {me} takes part in a shrink that excludes it")));
    }
    let excluded: std::collections::HashSet<Rank> = excluded.iter().copied().collect();
    Ok((0..size).map(Rank::new).filter(|rank| !excluded.contains(rank)).collect())
}

/// How a child was made: part of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ChildKind {
    /// By the split with this number, of this color.
    Split(u32, u32),
    /// By the shrink with this number.
    Shrink(u32),
}

/// The key of a child, which only the parent's members can derive.
pub(super) fn child_key(parent: &[u8; 32], kind: ChildKind, members: &[Rank]) -> [u8; 32] {
    let mut seed = Writer::new();
    match kind {
        ChildKind::Split(count, color) => seed.text("split").u32(count).u32(color),
        ChildKind::Shrink(number) => seed.text("shrink").u32(number).u32(0),
    };
    for member in members {
        seed.u32(member.get());
    }
    blake3::keyed_hash(parent, seed.as_slice()).into()
}

/// The public number that goes with a key.
pub(super) fn id_of(key: &[u8; 32]) -> u64 {
    let hash: [u8; 32] = blake3::keyed_hash(key, b"rsccl id").into();
    u64::from_le_bytes(std::array::from_fn(|i| hash[i]))
}

/// A number for the shrink that keeps `members`, tried for the `attempt`-th time, so that shrinks with different lists do not
/// take each other's messages.
pub(super) fn shrink_number(members: &[Rank], attempt: u32) -> u32 {
    let mut seed = Writer::new();
    seed.text("rsccl shrink").u32(attempt);
    for member in members {
        seed.u32(member.get());
    }
    let hash: [u8; 32] = blake3::hash(seed.as_slice()).into();
    u32::from_le_bytes(std::array::from_fn(|i| hash[i]))
}

/// A [`Child`] of `bootstrap`.
pub(super) fn child(bootstrap: impl crate::bootstrap::Bootstrap + 'static, members: Vec<Rank>) -> Child {
    let id = bootstrap.id();
    Child { bootstrap: Box::new(bootstrap), members, id }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_the_powers_of_two_below_the_size() {
        assert_eq!(distances(1).count(), 0);
        assert_eq!(distances(2).collect::<Vec<_>>(), [1]);
        assert_eq!(distances(9).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(distances(1024).count(), 10);
        assert_eq!(distances(u32::MAX).count(), 32);
    }

    #[test]
    fn a_split_orders_by_key_then_rank_and_leaves_out_those_without_color() {
        let entries =
            [(Some(1), 5), (Some(1), -1), (None, 0), (Some(0), 0), (Some(1), 5)].map(|(c, k)| split_entry(c, k, b"x"));
        let members = split_members(&entries, 1).unwrap();
        assert_eq!(members.iter().map(|(rank, _)| rank.get()).collect::<Vec<_>>(), [1, 0, 4]);
        assert!(members.iter().all(|(_, extra)| *extra == b"x"));
        assert!(split_members(&[vec![1]], 1).is_err());
    }

    #[test]
    fn keys_differ_by_parent_kind_number_and_members() {
        let members = [Rank::new(0), Rank::new(1)];
        let keys = [
            child_key(&[1; 32], ChildKind::Split(1, 0), &members),
            child_key(&[2; 32], ChildKind::Split(1, 0), &members),
            child_key(&[1; 32], ChildKind::Split(2, 0), &members),
            child_key(&[1; 32], ChildKind::Split(1, 1), &members),
            child_key(&[1; 32], ChildKind::Shrink(1), &members),
            child_key(&[1; 32], ChildKind::Split(1, 0), &members[1..]),
        ];
        let distinct: std::collections::HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
    }

    #[test]
    fn a_shrink_that_names_strangers_or_oneself_is_refused() {
        let rank = Rank::new;
        assert_eq!(survivors(rank(0), 3, &[rank(1)]).unwrap(), [rank(0), rank(2)]);
        assert!(survivors(rank(0), 3, &[rank(3)]).unwrap_err().to_string().contains("no rank of 3"));
        assert!(survivors(rank(0), 3, &[rank(0)]).is_err());
    }
}
