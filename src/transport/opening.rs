//! How the ends of connections are opened: one hand-shake for whatever two ranks share by a connection, in a state
//! machine that never blocks.
//!
//! ```text
//! owner                                          taker
//! makes its end                                  awaits the offer
//! offers it        ─────── offer ──────────────► takes it: its end is being opened
//!                  ◄ ─ its sockets, over a wire ─
//!                  ◄────── taken ──────────────── has opened its end, and says so
//! ```
//! A part is open on the owner's side when its own end is, and the taker has said that it has one: a rank whose set-up
//! has returned knows that its peers can reach it. Both ranks come to a hand-shake by themselves, or one asks the
//! other: the machine does not care who comes first. Over a wire "taken" may come before the sockets do.
//!
//! What goes wrong with an offer, or with a peer, is an error, which ends the communicator. So no offer is refused or
//! withdrawn alone: those of a rank that has failed end with it, and whoever waits for them hears why by its watch.
//!
//! What is opened is the business of an [`OpeningSide`]: another kind of end is another part of its keys, and needs no
//! other protocol.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::error::Result;
use crate::transport::table::Opening;

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

    /// Whether this rank makes what is shared, and offers it.
    fn owns(&self, key: Self::Key) -> bool;

    /// Whether this rank's end is open.
    fn is_open(&self, key: Self::Key) -> bool;

    /// Makes the owner's end, and the offer for the taker.
    ///
    /// # Errors
    /// Of memory, or of a listener.
    fn make(&mut self, key: Self::Key) -> Result<MadeEnd<Self::End>>;

    /// Begins to open the taker's end by the owner's `offer`.
    ///
    /// # Errors
    /// Of a broken offer, memory or sockets.
    fn take(&mut self, key: Self::Key, offer: &[u8]) -> Result<Box<dyn Opening<Self::End>>>;

    /// The ends whose takers have connected to this rank since the last call, by the tickets of their offers.
    fn arrived(&mut self) -> Vec<(Ticket, Self::End)>;

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
    /// The taker: its end is open.
    Taken,
}

/// What [`OpeningSide::make`] made.
#[derive(Debug)]
pub(super) struct MadeEnd<E> {
    /// For the taker.
    pub(super) offer: Vec<u8>,
    pub(super) end: Expected<E>,
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
    /// Taker: this rank's end is open, and the word of that has not left.
    Saying,
    /// Taker: the offer has not come, or this rank takes as many others as it may.
    Awaiting,
    /// Owner: the offer has left.
    Offered {
        /// Of an end that has not arrived.
        ticket: Option<Ticket>,
        /// Whether the taker has said that its end is open.
        is_taken: bool,
    },
    /// Both ends are open.
    Open,
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
            let MadeEnd { offer, end } = side.make(key)?;
            let ticket = match end {
                Expected::Open(end) => side.keep(key, end).map(|()| None)?,
                Expected::Ticket(ticket) => Some(ticket),
            };
            side.post(key, HandshakeWord::Offer, &offer)?;
            Stage::Offered { ticket, is_taken: false }
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
            let is_its = |stage: &Stage<E>| matches!(stage, Stage::Offered { ticket, .. } if *ticket == Some(arrived));
            if let Some((key, stage)) = self.under_way.iter_mut().find(|(_, stage)| is_its(stage)) {
                side.keep(*key, end)?;
                stage.note_arrived();
                moved = true;
            }
        }
        let mut room = self.most_taken - self.taken();
        for (key, stage) in &mut self.under_way {
            moved |= stage.take_offer(*key, side, &mut room)?;
            moved |= stage.finish_taking(*key, side)?;
            moved |= stage.hear_taken(*key, side)?;
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

    /// Whether this rank opens an end whose offer has come, or has to say that it did.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.values().any(|stage| matches!(stage, Stage::Taking(_) | Stage::Saying))
    }

    /// Offers of peers that this rank takes now.
    fn taken(&self) -> usize {
        self.under_way.values().filter(|stage| matches!(stage, Stage::Taking(_))).count()
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
        self.under_way.iter().filter_map(|(key, stage)| match stage {
            Stage::Taking(opening) => Some((*key, opening.standing()?)),
            Stage::Awaiting | Stage::Saying | Stage::Offered { .. } | Stage::Open => None,
        })
    }
}

impl<E: Debug> Stage<E> {
    /// Its place in the order of stages.
    fn place(&self) -> u8 {
        match self {
            Stage::Taking(_) => 0,
            Stage::Saying => 1,
            Stage::Awaiting => 2,
            Stage::Offered { .. } => 3,
            Stage::Open => 4,
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

    /// Keeps this rank's end once it is open, and says so.
    fn finish_taking<K: Copy>(&mut self, key: K, side: &mut impl OpeningSide<Key = K, End = E>) -> Result<bool> {
        let mut moved = false;
        if let Stage::Taking(opening) = self
            && let Some(end) = opening.progress()?
        {
            side.keep(key, end)?;
            side.post(key, HandshakeWord::Taken, &[])?;
            *self = Stage::Saying;
            moved = true;
        }
        if matches!(self, Stage::Saying) && side.has_left(key)? {
            *self = Stage::Open;
            moved = true;
        }
        Ok(moved)
    }

    /// Notes that the taker has opened its end.
    fn hear_taken<K: Copy>(&mut self, key: K, side: &mut impl OpeningSide<Key = K, End = E>) -> Result<bool> {
        let Stage::Offered { ticket, is_taken } = self else { return Ok(false) };
        let moved = !*is_taken && side.hear(key, HandshakeWord::Taken)?.is_some();
        *is_taken |= moved;
        if ticket.is_none() && *is_taken {
            *self = Stage::Open;
        }
        Ok(moved)
    }

    /// The sockets of an offer have come.
    fn note_arrived(&mut self) {
        if let Stage::Offered { ticket, .. } = self {
            *ticket = None;
        }
    }
}

/// Offers of peers that a rank takes at once: each costs a descriptor, or several, until its end is open.
pub(super) const ROUND_PEERS: usize = 128;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
