//! All-gather, broadcast and barrier over any carrier of messages between pairs.
//!
//! They go along the tree in the graph of control connections (`graph`): up to the first rank of the group, and down
//! again. So a collective of N ranks has 2 (N - 1) messages, in 2 ⌈log₃ N⌉ steps one after the other, and needs no
//! connection but those that a rank keeps. `LocalBootstrap` and `NetBootstrap` both run this code.

use std::time::Duration;

use crate::bootstrap::checkin::ranges;
use crate::bootstrap::gathered::{self, Gathered, MOST_BLOCK_BYTES, MOST_BYTES};
use crate::bootstrap::graph::TreePlace;
use crate::bootstrap::inbox::Channel;
use crate::bootstrap::local::waited_for;
use crate::bootstrap::{Agreed, BackgroundWork, Child, MAX_GATHER_BYTES, verdict};
use crate::error::{Error, Kind, Result};
use crate::sync::{Deadline, Wait};
use crate::sys::{clock, limits};
use crate::types::Rank;
use crate::wire::{Reader, Writer};

/// The carrier of a collective's messages.
pub(super) trait Mesh {
    /// Sends to `peer`, without waiting for the peer to take the message.
    fn put(&self, peer: Rank, channel: Channel, bytes: &[u8], wait: &Wait) -> Result<()>;

    /// Takes the next message of `peer`; fails if `peer` or any other member of `group` has died.
    fn take(&self, peer: Rank, channel: Channel, group: &Participants, wait: &Wait) -> Result<Vec<u8>>;

    /// Takes the next message of `peer` if it has arrived.
    fn try_take(&self, peer: Rank, channel: Channel, group: &Participants) -> Result<Option<Vec<u8>>>;
}

/// The ranks that take part in a collective.
#[derive(Debug, Clone)]
pub(super) struct Participants {
    members: Members,
    me: u32,
    channel: Channel,
}

#[derive(Debug, Clone)]
enum Members {
    All(u32),
    Some(Vec<Rank>),
}

impl Participants {
    /// All ranks below `size`, for the collective with number `sequence`.
    pub(super) fn all(me: Rank, size: u32, sequence: u32) -> Participants {
        Participants { members: Members::All(size), me: me.get(), channel: Channel::Collective(sequence) }
    }

    /// The survivors of a shrink; `number` distinguishes this shrink from others.
    pub(super) fn survivors(members: Vec<Rank>, me: Rank, number: u32) -> Result<Participants> {
        let place = members.iter().position(|member| *member == me);
        let place = place.and_then(|place| u32::try_from(place).ok());
        let me = place.ok_or_else(|| Error::invalid_argument(format!("rank {me} excludes itself")))?;
        Ok(Participants { members: Members::Some(members), me, channel: Channel::Shrink(number) })
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

    fn tree(&self) -> TreePlace {
        TreePlace::new(self.me, self.size())
    }

    fn parent(&self) -> Option<Rank> {
        self.tree().parent().map(|place| self.rank(Rank::new(place)))
    }

    /// The children in the tree, with their places.
    fn children(&self) -> impl Iterator<Item = (u32, Rank)> {
        self.tree().children().map(|place| (place, self.rank(Rank::new(place))))
    }

    /// Whether `rank` takes part.
    pub(super) fn contains(&self, rank: Rank) -> bool {
        match &self.members {
            Members::All(size) => rank.get() < *size,
            Members::Some(members) => members.binary_search(&rank).is_ok(),
        }
    }
}

/// The first byte of a message tells its collective, so that ranks which call different ones detect that.
pub(super) const ALL_GATHER: u8 = 1;
const BROADCAST: u8 = 2;
const BARRIER: u8 = 3;
pub(super) const SPLIT: u8 = 4;
const MEETING: u8 = 5;
pub(super) const VERDICT: u8 = 6;

const _: () = assert!(MAX_GATHER_BYTES == MOST_BLOCK_BYTES);

/// The most bytes of a call's name.
const MAX_CALL_BYTES: usize = 64;

/// Gathers every rank's bytes in rank order.
pub(super) fn all_gather(mesh: &impl Mesh, group: &Participants, mine: &[u8], wait: &Wait) -> Result<Vec<Vec<u8>>> {
    gather(mesh, (group, ALL_GATHER), (mine, wait), owned)
}

/// [`all_gather`], whose outcome `take` makes of the ranks' bytes: in a large world a copy of each takes its time.
pub(super) fn all_gather_with<T>(
    mesh: &impl Mesh,
    group: &Participants,
    (mine, wait): (&[u8], &Wait),
    take: impl FnOnce(Vec<&[u8]>) -> T,
) -> Result<T> {
    gather(mesh, (group, ALL_GATHER), (mine, wait), take)
}

fn owned(blocks: Vec<&[u8]>) -> Vec<Vec<u8>> {
    blocks.into_iter().map(<[u8]>::to_vec).collect()
}

/// Gathers what every rank passes, in rank order, if none has failed; otherwise all ranks have the same error, which is
/// that of the rank that is most likely the cause. `kind` tells the calls apart that agree on something.
pub(super) fn agree(
    mesh: &impl Mesh,
    (group, kind): (&Participants, u8),
    mine: Result<Vec<u8>>,
    wait: &Wait,
) -> Agreed<Vec<Vec<u8>>> {
    let mine = mine.map_err(limits::with_remedy);
    let entry = match &mine {
        Ok(bytes) => [&[FINE], &bytes[..]].concat(),
        Err(error) => [&[FAILED], &verdict::encode(error)[..]].concat(),
    };
    let gathered = match gather(mesh, (group, kind), (&entry, wait), owned) {
        Ok(gathered) => gathered,
        // There is nobody to agree with: this rank's own error is the more useful one.
        Err(error) => return Err(mine.err().unwrap_or(error)),
    };
    let ranks = (0..group.size()).map(|place| group.rank(Rank::new(place)));
    let notes = ranks.zip(&gathered).map(|(rank, entry)| (rank, failure_of(entry)));
    match (verdict::cause(notes), mine) {
        (None, _) => Ok(Ok(gathered.into_iter().map(|entry| entry[1..].to_vec()).collect())),
        // In its own words.
        (Some((source, _)), Err(error)) if source == group.rank(Rank::new(group.me)) => Ok(Err(error)),
        (Some((_, error)), _) => Ok(Err(error)),
    }
}

/// What came of a rank's part of a child, for the ranks to agree on. The outer error is one that they cannot agree on,
/// because the time for that has passed or the parent is at its end.
pub(super) fn open_to_agreement<T>(made: Result<T>, wait: &Wait) -> Agreed<T> {
    match made {
        Err(error) if error.kind() == Kind::Timeout || wait.abort.is_raised() => Err(error),
        made => Ok(made),
    }
}

/// The note of a rank that has failed; empty for one that has not.
fn failure_of(entry: &[u8]) -> &[u8] {
    match entry.split_first() {
        Some((&FINE, _)) => &[],
        Some((_, note)) if !note.is_empty() => note,
        // Malformed, which is a failure too.
        _ => &[u8::MAX],
    }
}

/// The first byte of an entry of [`agree`].
const FINE: u8 = 0;
const FAILED: u8 = 1;

fn gather<T>(
    mesh: &impl Mesh,
    (group, kind): (&Participants, u8),
    (mine, wait): (&[u8], &Wait),
    take: impl FnOnce(Vec<&[u8]>) -> T,
) -> Result<T> {
    if mine.len() > MAX_GATHER_BYTES {
        let length = mine.len();
        return Err(Error::invalid_argument(format!(
            "an all-gather of {length} bytes per rank is too long: at most {MAX_GATHER_BYTES} are allowed"
        )));
    }
    let size = group.size();
    let mut up = Writer::with_capacity(mine.len() + 5);
    up.u8(kind).bytes(mine);
    // Ranks that shrink with different lists wait for each other on different channels. A parent's entry tells its
    // children so, as theirs tell it.
    let is_shrink = matches!(group.channel, Channel::Shrink(_));
    for (_, child) in group.children().filter(|_| is_shrink) {
        mesh.put(child, group.channel, up.as_slice(), wait)?;
    }
    for (place, child) in group.children() {
        let message = mesh.take(child, group.channel, group, wait)?;
        let count = TreePlace::new(place, size).descent().count();
        let checked = blocks_of(&message, kind, child, count).map(drop);
        // Otherwise the child would wait for an answer, and not learn what it did.
        checked.inspect_err(|_| _ = mesh.put(child, group.channel, &[kind], wait))?;
        up.raw(&message[1..]);
    }
    let (message, source) = match group.parent() {
        Some(parent) => {
            mesh.put(parent, group.channel, up.as_slice(), wait)?;
            if is_shrink {
                blocks_of(&mesh.take(parent, group.channel, group, wait)?, kind, parent, 1)?;
            }
            (mesh.take(parent, group.channel, group, wait)?, parent)
        }
        None => {
            let me = group.rank(Rank::new(group.me));
            let gathered = blocks_of(up.as_slice(), kind, me, Rank::new(size).index())?;
            (in_order(kind, group.tree(), &gathered), me)
        }
    };
    let count = Rank::new(size).index();
    let blocks = open(&message, kind, source).and_then(|blocks| Gathered::read(blocks, count, MOST_BYTES));
    // Also where it is an error: the ranks below wait for it, and make the same error of it.
    let told = group.children().try_for_each(|(_, child)| mesh.put(child, group.channel, &message, wait));
    // A refusal is the fault of no rank.
    let is_refusal = |error: &Error| error.kind() == Kind::InvalidArgument;
    let blocks = blocks.map_err(|error| if is_refusal(&error) { error } else { error.about(source) })?;
    told?;
    Ok(take(blocks.blocks()))
}

/// The message with the blocks of all places in their order, of `gathered` ones, which are in the order of the tree.
fn in_order(kind: u8, tree: TreePlace, gathered: &[&[u8]]) -> Vec<u8> {
    let mut ordered: Vec<(u32, &[u8])> = tree.descent().zip(gathered.iter().copied()).collect();
    ordered.sort_unstable_by_key(|(place, _)| *place);
    let mut message = Writer::new();
    message.u8(kind);
    gathered::write(ordered.iter().map(|(_, block)| *block), MOST_BYTES, &mut message);
    message.finish()
}

/// The `count` blocks of a message.
fn blocks_of(message: &[u8], kind: u8, peer: Rank, count: usize) -> Result<Vec<&[u8]>> {
    let mut reader = open(message, kind, peer)?;
    let blocks = (0..count).map(|_| reader.bytes(MAX_GATHER_BYTES)).collect::<Result<_>>();
    let blocks = blocks.map_err(|error| error.about(peer))?;
    reader.finish().map_err(|error| error.about(peer))?;
    Ok(blocks)
}

/// The root's bytes: each rank hands them on to all its neighbours in the tree but the one that they came from.
pub(super) fn broadcast(
    mesh: &impl Mesh,
    group: &Participants,
    root: Rank,
    bytes: &[u8],
    wait: &Wait,
) -> Result<Vec<u8>> {
    let size = group.size();
    if root.get() >= size {
        return Err(Error::invalid_argument(format!("root {root} is out of range: the world has {size} ranks")));
    }
    if bytes.len() > MAX_GATHER_BYTES {
        let length = bytes.len();
        return Err(Error::invalid_argument(format!(
            "a broadcast of {length} bytes is too long: at most {MAX_GATHER_BYTES} are allowed"
        )));
    }
    let source = group.tree().towards(root.get()).map(|place| group.rank(Rank::new(place)));
    let message = match source {
        Some(source) => take_broadcast(mesh, group, root, source, wait)?,
        None => {
            let mut message = Writer::with_capacity(bytes.len() + 5);
            message.u8(BROADCAST).u32(root.get()).raw(bytes);
            message.finish()
        }
    };
    let others = group.parent().into_iter().chain(group.children().map(|(_, child)| child));
    for peer in others.filter(|peer| Some(*peer) != source) {
        mesh.put(peer, group.channel, &message, wait)?;
    }
    Ok(message[5..].to_vec())
}

fn take_broadcast(mesh: &impl Mesh, group: &Participants, root: Rank, peer: Rank, wait: &Wait) -> Result<Vec<u8>> {
    let message = mesh.take(peer, group.channel, group, wait)?;
    let theirs = open(&message, BROADCAST, peer)?.u32()?;
    if theirs != root.get() {
        let why = format!("rank {peer} broadcasts from root {theirs}, this rank from root {root}");
        return Err(Error::mismatch(why).about(peer));
    }
    Ok(message)
}

/// An all-gather of nothing: a message up the tree proves that all ranks below have arrived, one down that all have.
pub(super) fn barrier(mesh: &impl Mesh, group: &Participants, wait: &Wait) -> Result<()> {
    let take = |peer| mesh.take(peer, group.channel, group, wait);
    barrier_of(mesh, group, (&[BARRIER], wait), take, |peer, bytes| {
        open(bytes, BARRIER, peer)?.finish().map_err(|error| error.about(peer))
    })
}

/// A barrier during which `background` keeps running.
pub(super) fn barrier_with_background(
    mesh: &impl Mesh,
    group: &Participants,
    wait: &Wait,
    background: BackgroundWork<'_>,
) -> Result<()> {
    let mut background = background;
    let take = |peer| take_with_background(mesh, group, (peer, wait), &mut background);
    barrier_of(mesh, group, (&[BARRIER], wait), take, |peer, bytes| {
        open(bytes, BARRIER, peer)?.finish().map_err(|error| error.about(peer))
    })
}

/// A barrier of ranks that are about to make `call`.
pub(super) fn meet(
    mesh: &impl Mesh,
    group: &Participants,
    call: &str,
    (wait, background): (&Wait, Option<BackgroundWork<'_>>),
) -> Result<()> {
    let mut message = Writer::new();
    message.u8(MEETING).text(call);
    let mut background = background;
    let take = |peer| match &mut background {
        Some(background) => take_with_background(mesh, group, (peer, wait), background),
        None => mesh.take(peer, group.channel, group, wait),
    };
    barrier_of(mesh, group, (message.as_slice(), wait), take, |peer, bytes| {
        let theirs = open(bytes, MEETING, peer)?.text(MAX_CALL_BYTES).map_err(|error| error.about(peer))?;
        if theirs == call {
            return Ok(());
        }
        let theirs = theirs.escape_default();
        Err(Error::mismatch(format!("this rank called {call}, rank {peer} called {theirs}")).about(peer))
    })
}

fn take_with_background(
    mesh: &impl Mesh,
    group: &Participants,
    (peer, wait): (Rank, &Wait),
    background: &mut BackgroundWork<'_>,
) -> Result<Vec<u8>> {
    loop {
        let taken = if background.pause.is_zero() {
            mesh.try_take(peer, group.channel, group)?
        } else {
            take_soon(mesh, group, (peer, wait), background.pause)?
        };
        if let Some(bytes) = taken {
            return Ok(bytes);
        }
        wait.check(|| waited_for(peer, group.channel)).map_err(|error| error.about(peer))?;
        (background.turn)()?;
    }
}

/// Takes the message of `peer` if it comes within `pause`.
fn take_soon(
    mesh: &impl Mesh,
    group: &Participants,
    (peer, wait): (Rank, &Wait),
    pause: Duration,
) -> Result<Option<Vec<u8>>> {
    let soon = wait.until(Deadline::after(pause).earlier(wait.deadline));
    match mesh.take(peer, group.channel, group, &soon) {
        Ok(bytes) => Ok(Some(bytes)),
        // A peer's note may tell of a deadline, too: that is no end of this pause.
        Err(error) => {
            let now = clock::now();
            let is_pause = error.kind() == Kind::Timeout && soon.deadline.passed(now) && !wait.deadline.passed(now);
            if is_pause { Ok(None) } else { Err(error) }
        }
    }
}

fn barrier_of(
    mesh: &impl Mesh,
    group: &Participants,
    (message, wait): (&[u8], &Wait),
    mut take: impl FnMut(Rank) -> Result<Vec<u8>>,
    check: impl Fn(Rank, &[u8]) -> Result<()>,
) -> Result<()> {
    for (_, child) in group.children() {
        let checked = check(child, &take(child)?);
        // Otherwise the child would wait for an answer, and not learn what it did.
        checked.inspect_err(|_| _ = mesh.put(child, group.channel, message, wait))?;
    }
    if let Some(parent) = group.parent() {
        mesh.put(parent, group.channel, message, wait)?;
        check(parent, &take(parent)?)?;
    }
    for (_, child) in group.children() {
        mesh.put(child, group.channel, message, wait)?;
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
        SPLIT => "split",
        MEETING => "meet",
        VERDICT => "agree",
        _ => "something unknown",
    }
}

/// A rank's entry for a split: its color and key, and bytes of the implementation (an address).
pub(super) fn split_entry(color: Option<u32>, key: i64, extra: &[u8]) -> Vec<u8> {
    let mut entry = Writer::new();
    entry.u8(u8::from(color.is_some())).u32(color.unwrap_or(0)).i64(key).raw(extra);
    entry.finish()
}

/// The members with my color in their new order, each with its extra bytes.
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

/// A rank's entry for a shrink: the ranks it excludes (at most [`MOST_NAMED`] of them), and bytes of the implementation
/// (an address).
pub(super) fn shrink_entry(excluded: &[Rank], extra: &[u8]) -> Vec<u8> {
    let mut excluded: Vec<u32> = excluded.iter().take(MOST_NAMED).map(|rank| rank.get()).collect();
    excluded.sort_unstable();
    excluded.dedup();
    let mut entry = Writer::new();
    entry.u32(u32::try_from(excluded.len()).unwrap_or(u32::MAX));
    for rank in excluded {
        entry.u32(rank);
    }
    entry.raw(extra);
    entry.finish()
}

/// The ranks that the sender of `entry` excludes, and its extra bytes.
pub(super) fn shrink_parts(entry: &[u8]) -> Result<(Vec<u32>, &[u8])> {
    let mut reader = Reader::new(entry, "a shrink's entry");
    let count = reader.u32()?;
    if Rank::new(count).index() > MOST_NAMED {
        return Err(reader.malformed("it lists more excluded ranks than are allowed"));
    }
    let excluded = (0..count).map(|_| reader.u32()).collect::<Result<_>>()?;
    Ok((excluded, reader.rest()))
}

/// The error of a failed shrink without `excluded`. If the cause is that ranks passed different lists and so waited for
/// each other, says that in place of `error`. `other` is a message of a shrink with another list.
pub(super) fn differing_lists(error: Error, excluded: &[Rank], other: Option<(Rank, &[u8])>) -> Error {
    let read = |(rank, message): (Rank, &[u8])| {
        let mut reader = open(message, ALL_GATHER, rank).ok()?;
        let entry = reader.bytes(MAX_GATHER_BYTES).ok()?.to_vec();
        Some((rank, shrink_parts(entry.strip_prefix(&[FINE])?).ok()?.0))
    };
    let Some((rank, theirs)) = other.and_then(read) else { return error };
    // A rank that gave up with its own list has left.
    if error.kind() != Kind::Timeout && error.peer() != Some(rank.get()) {
        return error;
    }
    let mut mine: Vec<u32> = excluded.iter().map(|rank| rank.get()).collect();
    mine.sort_unstable();
    mine.dedup();
    if mine == theirs {
        return error;
    }
    let (mine, theirs) = (ranges(mine), ranges(theirs));
    Error::mismatch(format!(
        "shrink: rank {rank} excludes {theirs}, this rank excludes {mine}; all survivors must pass the same list"
    ))
    .about(rank)
}

/// The most ranks that an entry of a shrink lists.
const MOST_NAMED: usize = 1024;

/// The ranks that remain after a shrink.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] if `excluded` has a rank out of range, or all ranks, or this one.
pub(super) fn survivors(me: Rank, size: u32, excluded: &[Rank]) -> Result<Vec<Rank>> {
    if let Some(stranger) = excluded.iter().find(|rank| rank.get() >= size) {
        return Err(Error::invalid_argument(format!(
            "excluded rank {stranger} is out of range: the world has {size} ranks"
        )));
    }
    if excluded.contains(&me) {
        return Err(Error::invalid_argument(format!(
            "shrink: rank {me} excludes itself; the excluded ranks must not call shrink"
        )));
    }
    let excluded: std::collections::HashSet<Rank> = excluded.iter().copied().collect();
    Ok((0..size).map(Rank::new).filter(|rank| !excluded.contains(rank)).collect())
}

/// How a child was made; it is part of the child's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum ChildKind {
    /// By the split with this number, with this color.
    Split(u32, u32),
    /// By the shrink with this number.
    Shrink(u32),
}

/// The key of a child. Only members of the parent can derive it.
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

/// The public number that belongs to a key.
pub(super) fn id_of(key: &[u8; 32]) -> u64 {
    let hash: [u8; 32] = blake3::keyed_hash(key, b"rsccl id").into();
    u64::from_le_bytes(std::array::from_fn(|i| hash[i]))
}

/// A number for the `attempt`-th try to shrink to `members`. It separates the messages of shrinks with different lists.
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
        assert!(
            survivors(rank(0), 3, &[rank(3)])
                .unwrap_err()
                .to_string()
                .contains("excluded rank 3 is out of range: the world has 3 ranks")
        );
        assert!(survivors(rank(0), 3, &[rank(0)]).is_err());
    }
}
