//! How the ends of connections are opened: one hand-shake for whatever two ranks share by a connection, in a state
//! machine that never blocks.
//!
//! ```text
//! owner                                          taker
//! makes its end                                  awaits the offer
//! offers it        ─────── offer ──────────────► takes it: its end is being opened
//!                  ◄ ─ its sockets, over a wire ─
//!                  ◄────── answer ─────────────── has opened its end, and says so
//! ```
//! A taker that cannot reach the owner's address, as behind NAT or a firewall, answers with an offer of its own:
//! ```text
//!                  ◄────── answer ─────────────── gets no answer, and offers to be reached
//! opens its end    ─ its sockets, over a wire ──►
//!                  ◄────── answer ─────────────── its end is open
//! ```
//! A part is open on the owner's side when its own end is, and the taker has said that it has one: a rank whose set-up
//! has returned knows that its peers can reach it. Both ranks come to a hand-shake by themselves, or one asks the
//! other: the machine does not care who comes first. Over a wire the answer may come before the sockets do.
//!
//! What goes wrong with an offer, or with a peer, is an error, which ends the communicator. So no offer is refused or
//! withdrawn alone: those of a rank that has failed end with it, and whoever waits for them hears why by its watch.
//!
//! What is opened is the business of an [`OpeningSide`]: another kind of end is another part of its keys, and needs no
//! other protocol.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::SocketAddr;

use crate::error::{Error, Kind, Result};
use crate::transport::table::{Opening, Unreached};
use crate::types::Rank;

/// The hand-shakes of one rank that are under way.
#[derive(Debug)]
pub(super) struct Openings<K, E> {
    under_way: BTreeMap<K, Stage<E>>,
    /// How many offers of peers are taken at once.
    most_taken: usize,
}

/// What the hand-shakes of one rank need: what makes ends, keeps them, and carries words to peers.
pub(super) trait OpeningSide {
    /// Names a part of a connection, and this rank's end of it.
    type Key: Copy + Ord + Debug;
    /// An end that is open.
    type End: Debug;

    /// The rank at the other end.
    fn peer(&self, key: Self::Key) -> Rank;

    /// Whether this rank makes what is shared, and offers it.
    fn owns(&self, key: Self::Key) -> bool;

    /// Whether this rank's end is open.
    fn is_open(&self, key: Self::Key) -> bool;

    /// Makes the owner's end, and the offer for the taker; or, for a taker that cannot reach the owner, what the owner
    /// needs to reach this rank.
    ///
    /// # Errors
    /// Of memory, or of a listener.
    fn make(&mut self, key: Self::Key) -> Result<MadeEnd<Self::End>>;

    /// Begins to open the taker's end by the owner's `offer`, or the owner's by that of a taker that cannot reach it.
    ///
    /// # Errors
    /// Of a broken offer, memory or sockets.
    fn take(&mut self, key: Self::Key, offer: &[u8]) -> Result<Box<dyn Opening<Self::End>>>;

    /// The ends that peers have connected to this rank since the last call, by the tickets of its offers.
    fn arrived(&mut self) -> Vec<(Ticket, Self::End)>;

    /// Nobody comes for this ticket any more.
    fn withdraw(&mut self, ticket: Ticket);

    /// The owner of `key`, which this rank has not reached in time, has reached this rank.
    fn note_reversed(&mut self, key: Self::Key);

    /// Keeps this rank's end, which is open.
    ///
    /// # Errors
    /// Of memory, or of what watches descriptors.
    fn keep(&mut self, key: Self::Key, end: Self::End) -> Result<()>;

    /// Says a word to the peer, without waiting until it has left.
    ///
    /// # Errors
    /// Of what carries it.
    fn post(&mut self, key: Self::Key, word: HandshakeWord, bytes: &[u8]) -> Result<()>;

    /// Whether what was posted to the peer of `key` has left.
    ///
    /// # Errors
    /// As [`OpeningSide::post`].
    fn has_left(&mut self, key: Self::Key) -> Result<bool>;

    /// The peer's word, once it has come.
    ///
    /// # Errors
    /// Of a peer that has gone.
    fn hear(&mut self, key: Self::Key, word: HandshakeWord) -> Result<Option<Vec<u8>>>;
}

/// What ranks say to each other in a hand-shake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum HandshakeWord {
    /// The owner: what the taker needs to open its end.
    Offer,
    /// The taker, perhaps twice: see [`AnswerKind`].
    Answer,
}

/// What a taker answers. Its own offer, by which the owner can reach it, stands behind the kind; after that it answers
/// once more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AnswerKind {
    /// No bytes: its end is open, by the owner's offer.
    Open,
    /// It cannot reach the owner, and makes an offer.
    CannotReach,
    /// It has not reached the owner so far and goes on trying; it makes an offer as well.
    HasNotReached,
    /// Its end is open, by its own offer.
    OpenByMine,
}

impl AnswerKind {
    const WITH_BYTE: [AnswerKind; 3] = [AnswerKind::CannotReach, AnswerKind::HasNotReached, AnswerKind::OpenByMine];

    fn encode(self, offer: &[u8]) -> Vec<u8> {
        let kind = (0..).zip(AnswerKind::WITH_BYTE).find(|(_, kind)| *kind == self).map(|(byte, _)| byte);
        kind.into_iter().chain(offer.iter().copied()).collect()
    }

    /// The kind, and the offer behind it; `None` where there is no such kind.
    fn decode(answer: &[u8]) -> Option<(AnswerKind, &[u8])> {
        let Some((byte, offer)) = answer.split_first() else { return Some((AnswerKind::Open, &[])) };
        Some((*AnswerKind::WITH_BYTE.get(usize::from(*byte))?, offer))
    }
}

/// What [`OpeningSide::make`] made.
#[derive(Debug)]
pub(super) struct MadeEnd<E> {
    /// For the peer: not empty.
    pub(super) offer: Vec<u8>,
    pub(super) end: Expected<E>,
    /// Where the peer reaches it, if by an address.
    pub(super) at: Option<SocketAddr>,
}

/// The owner's end, or the ticket with which it [arrives](OpeningSide::arrived).
#[derive(Debug)]
pub(super) enum Expected<E> {
    Open(E),
    Ticket(Ticket),
}

/// The place of a transport, and the number of an offer there.
pub(super) type Ticket = (usize, u64);

/// How far a hand-shake has come on this side. In the order in which waits name their peers: the nearest to the end
/// first, but those that wait for nothing but the peer last.
#[derive(Debug)]
enum Stage<E> {
    /// Taker: the offer has come, and this rank's end is being opened.
    Taking(Box<dyn Opening<E>>),
    /// Taker: it has not reached the owner, which was told where it can reach this rank. Where `dial` may still get
    /// through, whichever is first counts.
    Reversed { ticket: Ticket, at: Option<SocketAddr>, why: String, dial: Option<Box<dyn Opening<E>>> },
    /// Taker: this rank's end is open, and the word of that has not left.
    Saying,
    /// Taker: the offer has not come, or this rank takes as many others as it may.
    Awaiting,
    /// Owner: the offer has left.
    Offered {
        end: OwnEnd<E>,
        /// Whether the taker has said that its end is open.
        is_taken: bool,
        /// Where the taker was to reach it, if by an address.
        at: Option<SocketAddr>,
    },
    /// Both ends are open.
    Open,
}

/// The owner's end.
#[derive(Debug)]
enum OwnEnd<E> {
    /// The taker connects with this ticket.
    Arrives(Ticket),
    /// The taker cannot reach this rank, which therefore opens it.
    Opens(Box<dyn Opening<E>>),
    /// The taker still tries to connect with this ticket, and this rank opens it as well. The taker says which of them
    /// it has. It has what has arrived here: whoever connects is through before who listens.
    Either(Ticket, OwnerDial<E>),
    Kept,
}

/// What an owner opens that its taker may not need.
#[derive(Debug)]
enum OwnerDial<E> {
    UnderWay(Box<dyn Opening<E>>),
    Open(E),
    /// Why it has failed.
    Failed(String),
}

impl<K: Copy + Ord + Debug, E: Debug> Openings<K, E> {
    /// None yet, of which at most `most_taken` are taken at once.
    pub(super) fn new(most_taken: usize) -> Openings<K, E> {
        Openings { under_way: BTreeMap::new(), most_taken }
    }

    /// Begins the hand-shake of `key`; false where this rank's end is open or under way.
    ///
    /// # Errors
    /// As [`OpeningSide::make`] and [`OpeningSide::post`].
    pub(super) fn begin(&mut self, key: K, side: &mut impl OpeningSide<Key = K, End = E>) -> Result<bool> {
        if side.is_open(key) || self.has(key) {
            return Ok(false);
        }
        let stage = if side.owns(key) {
            let MadeEnd { offer, end, at } = side.make(key)?;
            let end = match end {
                Expected::Open(end) => side.keep(key, end).map(|()| OwnEnd::Kept)?,
                Expected::Ticket(ticket) => OwnEnd::Arrives(ticket),
            };
            side.post(key, HandshakeWord::Offer, &offer)?;
            Stage::Offered { end, is_taken: false, at }
        } else {
            Stage::Awaiting
        };
        self.under_way.insert(key, stage);
        Ok(true)
    }

    /// Moves the hand-shakes under way on. True where one moved.
    ///
    /// # Errors
    /// Of a peer's offer, of this rank's end, or of a peer that has gone.
    pub(super) fn progress(&mut self, side: &mut impl OpeningSide<Key = K, End = E>) -> Result<bool> {
        let mut moved = false;
        for (arrived, end) in side.arrived() {
            if let Some((key, stage)) = self.under_way.iter_mut().find(|(_, stage)| stage.ticket() == Some(arrived)) {
                stage.take_arrived(*key, end, side)?;
                moved = true;
            }
        }
        let mut room = self.most_taken - self.taken();
        for (key, stage) in &mut self.under_way {
            moved |= stage.take_offer(*key, side, &mut room)?;
            moved |= stage.finish_taking(*key, side)?;
            moved |= stage.hear_answer(*key, side)?;
            moved |= stage.finish_own(*key, side)?;
        }
        self.under_way.retain(|_, stage| !matches!(stage, Stage::Open));
        Ok(moved)
    }

    /// Whether the hand-shake of `key` is under way.
    pub(super) fn has(&self, key: K) -> bool {
        self.under_way.contains_key(&key)
    }

    /// Whether any is under way.
    pub(super) fn is_any(&self) -> bool {
        !self.under_way.is_empty()
    }

    /// Whether this rank opens an end by a peer's offer, or has to say that it did.
    pub(super) fn is_busy(&self) -> bool {
        let is_busy = |stage: &Stage<E>| {
            matches!(
                stage,
                Stage::Taking(_)
                    | Stage::Reversed { dial: Some(_), .. }
                    | Stage::Saying
                    | Stage::Offered { end: OwnEnd::Opens(_) | OwnEnd::Either(_, OwnerDial::UnderWay(_)), .. }
            )
        };
        self.under_way.values().any(is_busy)
    }

    /// Offers of peers that this rank takes now.
    fn taken(&self) -> usize {
        self.under_way.values().filter(|stage| matches!(stage, Stage::Taking(_) | Stage::Reversed { .. })).count()
    }

    /// What is under way.
    pub(super) fn keys(&self) -> impl Iterator<Item = K> {
        self.under_way.keys().copied()
    }

    /// One that is waited for.
    pub(super) fn first(&self) -> Option<K> {
        self.under_way.iter().min_by_key(|(_, stage)| stage.place()).map(|(key, _)| *key)
    }

    /// How far the ends have come that are being opened, where they wait for more than the peer's processor.
    pub(super) fn standing(&self) -> impl Iterator<Item = (K, String)> {
        self.under_way.iter().filter_map(|(key, stage)| Some((*key, stage.standing()?)))
    }
}

impl<E: Debug> Stage<E> {
    /// Its place in the order of stages.
    fn place(&self) -> u8 {
        match self {
            Stage::Taking(_) => 0,
            Stage::Saying => 1,
            Stage::Reversed { .. } => 2,
            Stage::Awaiting => 3,
            Stage::Offered { .. } => 4,
            Stage::Open => 5,
        }
    }

    /// That of an end that arrives.
    fn ticket(&self) -> Option<Ticket> {
        match self {
            Stage::Reversed { ticket, .. }
            | Stage::Offered { end: OwnEnd::Arrives(ticket) | OwnEnd::Either(ticket, _), .. } => Some(*ticket),
            Stage::Taking(_) | Stage::Saying | Stage::Awaiting | Stage::Offered { .. } | Stage::Open => None,
        }
    }

    /// How far it has come, in words, where it waits for more than the peer's processor.
    fn standing(&self) -> Option<String> {
        let at = |at: &Option<SocketAddr>| at.map_or_else(|| "its address".to_owned(), |at| at.to_string());
        match self {
            Stage::Taking(opening) => opening.standing(),
            Stage::Reversed { at: own, why, .. } => {
                Some(format!("{why}; so it was asked to connect to this rank at {}, and has not", at(own)))
            }
            Stage::Offered {
                end: OwnEnd::Opens(opening) | OwnEnd::Either(_, OwnerDial::UnderWay(opening)),
                at: own,
                ..
            } => Some(format!("{}; nor does it reach this rank at {}", opening.standing()?, at(own))),
            Stage::Offered { end: OwnEnd::Either(_, OwnerDial::Failed(why)), at: own, .. } => {
                Some(format!("{why}; nor has it reached this rank at {} so far", at(own)))
            }
            Stage::Awaiting | Stage::Saying | Stage::Offered { .. } | Stage::Open => None,
        }
    }

    /// Takes the offer that has come, if there is room for it.
    fn take_offer<K: Copy>(
        &mut self,
        key: K,
        side: &mut impl OpeningSide<Key = K, End = E>,
        room: &mut usize,
    ) -> Result<bool> {
        if !matches!(self, Stage::Awaiting) || *room == 0 {
            return Ok(false);
        }
        let Some(offer) = side.hear(key, HandshakeWord::Offer)? else { return Ok(false) };
        *self = Stage::Taking(side.take(key, &offer)?);
        *room -= 1;
        Ok(true)
    }

    /// Keeps this rank's end once it is open, and says so; asks to be reached where it cannot be opened from here.
    fn finish_taking<K: Copy>(&mut self, key: K, side: &mut impl OpeningSide<Key = K, End = E>) -> Result<bool> {
        let mut moved = self.finish_dial(key, side)?;
        if let Stage::Taking(opening) = self {
            if let Some(end) = opening.progress()? {
                self.say_open(key, (end, AnswerKind::Open), side)?;
                moved = true;
            } else if let Some(unreached) = opening.unreached() {
                let Stage::Taking(dial) = std::mem::replace(self, Stage::Awaiting) else { return Ok(moved) };
                *self = Stage::reverse(key, (unreached, dial), side)?;
                moved = true;
            }
        }
        if matches!(self, Stage::Saying) && side.has_left(key)? {
            *self = Stage::Open;
            moved = true;
        }
        Ok(moved)
    }

    /// Taker: keeps this rank's end where what it has begun itself has got through before the owner's.
    fn finish_dial<K: Copy>(&mut self, key: K, side: &mut impl OpeningSide<Key = K, End = E>) -> Result<bool> {
        let Stage::Reversed { ticket, dial: slot, why, .. } = self else { return Ok(false) };
        let Some(dial) = slot else { return Ok(false) };
        match dial.progress() {
            Ok(Some(end)) => {
                side.withdraw(*ticket);
                self.say_open(key, (end, AnswerKind::Open), side)?;
                return Ok(true);
            }
            Ok(None) if dial.unreached().is_some_and(|unreached| !unreached.may_yet) => *slot = None,
            Ok(None) => return Ok(false),
            // The owner's may still get through.
            Err(error) if error.kind() == Kind::Remote => {
                error.message().clone_into(why);
                *slot = None;
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Taker: offers the owner, which it has not reached, to be reached.
    fn reverse<K: Copy>(
        key: K,
        (Unreached { why, may_yet }, dial): (Unreached, Box<dyn Opening<E>>),
        side: &mut impl OpeningSide<Key = K, End = E>,
    ) -> Result<Stage<E>> {
        let MadeEnd { offer, end, at } = side.make(key)?;
        let Expected::Ticket(ticket) = end else {
            return Err(Error::internal("memory that could not be reached"));
        };
        let kind = if may_yet { AnswerKind::HasNotReached } else { AnswerKind::CannotReach };
        side.post(key, HandshakeWord::Answer, &kind.encode(&offer))?;
        Ok(Stage::Reversed { ticket, at, why, dial: may_yet.then_some(dial) })
    }

    /// Taker: this rank's end is open, by whose offer `kind` says.
    fn say_open<K: Copy>(
        &mut self,
        key: K,
        (end, kind): (E, AnswerKind),
        side: &mut impl OpeningSide<Key = K, End = E>,
    ) -> Result<()> {
        side.keep(key, end)?;
        side.post(key, HandshakeWord::Answer, &kind.encode(&[]))?;
        *self = Stage::Saying;
        Ok(())
    }

    /// Keeps the end that has arrived.
    fn take_arrived<K: Copy>(&mut self, key: K, end: E, side: &mut impl OpeningSide<Key = K, End = E>) -> Result<()> {
        match self {
            Stage::Reversed { .. } => {
                side.note_reversed(key);
                self.say_open(key, (end, AnswerKind::OpenByMine), side)
            }
            Stage::Offered { end: own, .. } => {
                side.keep(key, end)?;
                *own = OwnEnd::Kept;
                Ok(())
            }
            Stage::Taking(_) | Stage::Saying | Stage::Awaiting | Stage::Open => {
                Err(Error::internal("an end has arrived that nobody awaits"))
            }
        }
    }

    /// Notes that the taker has opened its end, or takes its offer to be reached.
    fn hear_answer<K: Copy>(&mut self, key: K, side: &mut impl OpeningSide<Key = K, End = E>) -> Result<bool> {
        let Stage::Offered { end, is_taken, at } = self else { return Ok(false) };
        if *is_taken {
            return Ok(false);
        }
        let Some(answer) = side.hear(key, HandshakeWord::Answer)? else { return Ok(false) };
        let peer = side.peer(key);
        let unexpected = || Error::remote(peer, format!("rank {peer} has answered an offer out of turn"));
        let (kind, offer) = AnswerKind::decode(&answer).ok_or_else(unexpected)?;
        *is_taken = matches!(kind, AnswerKind::Open | AnswerKind::OpenByMine);
        *end = match (std::mem::replace(end, OwnEnd::Kept), kind) {
            (OwnEnd::Arrives(ticket), AnswerKind::CannotReach) => {
                side.withdraw(ticket);
                let opening = side.take(key, offer);
                OwnEnd::Opens(opening.map_err(|error| unreached_both_ways(error, peer, *at))?)
            }
            (OwnEnd::Arrives(ticket), AnswerKind::HasNotReached) => OwnEnd::Either(
                ticket,
                match side.take(key, offer) {
                    Err(error) if error.kind() == Kind::Remote => OwnerDial::Failed(error.message().to_owned()),
                    opening => OwnerDial::UnderWay(opening?),
                },
            ),
            // What this rank opens is not needed.
            (OwnEnd::Arrives(ticket) | OwnEnd::Either(ticket, _), AnswerKind::Open) => OwnEnd::Arrives(ticket),
            (OwnEnd::Either(ticket, attempt), AnswerKind::OpenByMine) => {
                side.withdraw(ticket);
                match attempt {
                    OwnerDial::UnderWay(opening) => OwnEnd::Opens(opening),
                    OwnerDial::Open(open) => side.keep(key, open).map(|()| OwnEnd::Kept)?,
                    OwnerDial::Failed(_) => return Err(unexpected()),
                }
            }
            (OwnEnd::Opens(opening), AnswerKind::OpenByMine) => OwnEnd::Opens(opening),
            // Where the taker has not reached this rank, it has meanwhile, and says so next.
            (OwnEnd::Kept, AnswerKind::Open | AnswerKind::OpenByMine | AnswerKind::HasNotReached) => OwnEnd::Kept,
            (OwnEnd::Arrives(_), AnswerKind::OpenByMine)
            | (OwnEnd::Opens(_), AnswerKind::Open)
            | (_, AnswerKind::CannotReach | AnswerKind::HasNotReached) => return Err(unexpected()),
        };
        Ok(true)
    }

    /// Owner: keeps its end once that is open, which the taker could not reach.
    fn finish_own<K: Copy>(&mut self, key: K, side: &mut impl OpeningSide<Key = K, End = E>) -> Result<bool> {
        let Stage::Offered { end, is_taken, at } = self else { return Ok(false) };
        let mut moved = false;
        match end {
            OwnEnd::Opens(opening) => {
                let progress = opening.progress();
                if let Some(open) = progress.map_err(|error| unreached_both_ways(error, side.peer(key), *at))? {
                    side.keep(key, open)?;
                    *end = OwnEnd::Kept;
                    moved = true;
                }
            }
            OwnEnd::Either(_, attempt) => moved = attempt.progress()?,
            OwnEnd::Arrives(_) | OwnEnd::Kept => {}
        }
        if matches!(end, OwnEnd::Kept) && *is_taken {
            *self = Stage::Open;
            moved = true;
        }
        Ok(moved)
    }
}

impl<E: Debug> OwnerDial<E> {
    /// Moves it on; that it fails is no error as long as the taker tries too.
    fn progress(&mut self) -> Result<bool> {
        let OwnerDial::UnderWay(opening) = self else { return Ok(false) };
        *self = match opening.progress() {
            Ok(None) => return Ok(false),
            Ok(Some(open)) => OwnerDial::Open(open),
            Err(error) if error.kind() == Kind::Remote => OwnerDial::Failed(error.message().to_owned()),
            Err(error) => return Err(error),
        };
        Ok(true)
    }
}

/// The `error` of an owner that cannot reach the taker `peer`, which could not reach it at this address.
fn unreached_both_ways(error: Error, peer: Rank, at: Option<SocketAddr>) -> Error {
    match at {
        Some(at) if error.kind() == Kind::Remote => {
            let text = format!("{}; nor does rank {peer} reach this rank at {at}", error.message());
            Error::remote(peer, text).with_source(error)
        }
        Some(_) | None => error,
    }
}

/// Offers of peers that a rank takes at once: each costs a descriptor, or several, until its end is open. What an owner
/// opens for takers that cannot reach it is not counted. These keep their place meanwhile, so two ranks that put it off
/// could wait for each other without end.
pub(super) const ROUND_PEERS: usize = 128;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
