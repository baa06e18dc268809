//! The control plane of one rank: its connections, unsent frames and received messages.
//!
//! Only [`ControlPlane::drive`] waits, and only as long as its time-out.

mod call_back;
mod parting;
#[cfg(test)]
mod tests;
mod watching;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Own;
use super::absent::Absent;
use super::call_backs::CallBacks;
use super::gossip::{Gossip, Seen};
use super::shortage::{self, Shortage};
use crate::bootstrap::address::{self, PeerAddresses};
use crate::bootstrap::auth::{Handshake, Terms};
use crate::bootstrap::door::Incoming;
use crate::bootstrap::gathered::{MOST_BESIDE_BLOCK, MOST_BYTES};
use crate::bootstrap::inbox::{Channel, Gone, Inbox};
use crate::bootstrap::link::{End, Link, MAX_RETRY_SLEEP, SCRATCH_BYTES, moment};
use crate::bootstrap::{Event, Listen, MAX_GATHER_BYTES, Options};
use crate::error::{Error, Result};
use crate::log;
use crate::sync::primitive::Arc;
use crate::sync::{Chime, Deadline};
use crate::sys::poller::{Poller, Ready};
use crate::sys::{clock, interfaces, limits};
use crate::types::{Rank, World};
use crate::wire::Writer;
use crate::wire::frame::{self, Frame};

/// See the module.
#[derive(Debug)]
pub(super) struct ControlPlane {
    world: World,
    terms: Terms,
    incoming: Incoming,
    own: Own,
    /// Watches the connections once they are many.
    poller: Option<Poller>,
    /// That of the last thread that slept here.
    chime: Option<Arc<Chime>>,
    ready: Ready,
    scratch: Vec<u8>,
    links: HashMap<u64, Entry>,
    next_token: u64,
    routes: HashMap<Rank, Route>,
    /// For each rank the addresses that it may have; none as long as they are not known.
    addresses: Vec<PeerAddresses>,
    /// Tokens of accepted connections that have not proved themselves yet, oldest first.
    strangers: BTreeSet<u64>,
    /// Tokens of connections we opened that have not proved themselves yet, oldest first.
    dialling: BTreeSet<u64>,
    /// The peers to dial again, by time.
    retries: BTreeSet<(Instant, Rank)>,
    inbox: Inbox,
    seen: Seen,
    notes: u32,
    /// Gossip to forward, with the token of the link that it came from.
    outbox: Vec<(u64, Gossip)>,
    /// When the goodbyes in the outbox must be forwarded.
    farewell: Option<Instant>,
    /// How often [`ControlPlane::drive`] was called.
    moves: u64,
    rules: Rules,
    is_open: bool,
    /// The word of this rank's goodbye, once it closes.
    word: u64,
    absent: Absent,
    call_backs: CallBacks,
    shortage: Shortage,
    /// Whether the doorkeeper could not accept connections at the last look.
    is_shut: bool,
}

#[derive(Debug)]
struct Entry {
    link: Link,
    /// The peer that we dialled; `None` for an accepted link.
    dialled: Option<Rank>,
    /// Whether a frame has come: so the other end, too, has taken the handshake for finished.
    has_heard: bool,
}

/// How to reach a peer.
#[derive(Debug, Default)]
struct Route {
    /// The link that carries our messages: always the same one, so that messages keep their order.
    token: Option<u64>,
    /// Frames that wait until there is a link.
    queued: Vec<u8>,
    tries: u32,
    /// When the first one was.
    since: Option<Instant>,
    /// The peer will connect to us, so we do not dial.
    awaited: bool,
    /// Whether there has been a message for the peer.
    is_needed: bool,
}

/// The options that concern connections.
#[derive(Debug, Clone, Copy)]
struct Rules {
    retry_count: u32,
    retry_sleep: Duration,
    handshake_timeout: Duration,
    most_bytes: usize,
}

/// The source of gossip that did not come over a link.
const OURSELVES: u64 = 0;
const FIRST_LINK: u64 = 1;

/// The most accepted connections that have not proved themselves; beyond it the oldest is dropped.
const MAX_STRANGERS: usize = 256;

/// How old a silent stranger must be before it is dropped to make room.
const IDLE_AGE: Duration = Duration::from_secs(1);

/// The most connections accepted in a row before the existing ones are served again.
const ACCEPTS_AT_ONCE: usize = 64;

/// The upper bound of a frame's bytes; in small worlds the bound is the largest all-gather.
const MAX_FRAME_BYTES: usize = MOST_BYTES;

/// A rank listens before others learn its address: after this many refused connections, and once it has had the time to
/// connect by itself, it must be gone.
const REFUSED_TRIES: u32 = 3;

/// How long to wait for a connection that the peer opens.
const AWAITED_PATIENCE: Duration = Duration::from_secs(1);

/// The additional wait for each rank of the world, also for a handshake that has begun: where thousands of ranks share
/// the processors, a rank has its next turn seconds later.
const PATIENCE_A_RANK: Duration = Duration::from_millis(10);

/// How long goodbyes are collected before they are forwarded: if all ranks leave at once, nobody needs them.
const FAREWELL_PATIENCE: Duration = Duration::from_millis(100);

/// How long after a goodbye a rank that stays looks for a new neighbour: if all ranks leave, nobody needs one.
const MEND_PATIENCE: Duration = Duration::from_secs(1);

/// A peer with more unsent bytes than this gets no more gossip.
const MAX_NEWS_BACKLOG_BYTES: usize = 4 << 20;

/// The most bytes of gossip in one frame.
const MAX_NEWS_FRAME_BYTES: usize = 32 << 10;

const MESSAGE: u8 = 1;
const COLLECTIVE: u8 = 2;
const SHRINK: u8 = 3;
const NEWS: u8 = 4;
const GOODBYE: u8 = 5;
const CALL_BACK: u8 = 6;

impl ControlPlane {
    pub(super) fn new(world: World, terms: Terms, own: Own, options: &Options) -> ControlPlane {
        let incoming = own.seat.incoming(&terms, world.rank);
        let ranks = Rank::new(world.size).index();
        let rules = Rules {
            retry_count: options.retry_count,
            retry_sleep: options.retry_sleep,
            handshake_timeout: options.handshake_timeout + PATIENCE_A_RANK.saturating_mul(world.size),
            most_bytes: (ranks.saturating_mul(MAX_GATHER_BYTES + MOST_BESIDE_BLOCK) + 64).min(MAX_FRAME_BYTES),
        };
        ControlPlane {
            world,
            terms,
            incoming,
            own,
            poller: None,
            chime: None,
            ready: Ready::default(),
            scratch: vec![0; SCRATCH_BYTES],
            links: HashMap::new(),
            next_token: FIRST_LINK,
            routes: HashMap::new(),
            addresses: vec![PeerAddresses::Unknown; Rank::new(world.size).index()],
            strangers: BTreeSet::new(),
            dialling: BTreeSet::new(),
            retries: BTreeSet::new(),
            inbox: Inbox::default(),
            seen: Seen::default(),
            notes: 0,
            outbox: Vec::new(),
            farewell: None,
            moves: 0,
            rules,
            is_open: true,
            word: 0,
            absent: Absent::default(),
            call_backs: CallBacks::default(),
            shortage: Shortage::default(),
            is_shut: false,
        }
    }

    /// The address of this rank's listener.
    pub(super) fn address(&self) -> SocketAddr {
        self.own.seat.address()
    }

    pub(super) fn set_address(&mut self, peer: Rank, address: SocketAddr) {
        self.addresses[peer.index()] = match address {
            SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() => {
                // Without the list the scope of our own interface is tried alone.
                let all = interfaces::list().unwrap_or_default();
                PeerAddresses::OnLinks(address::localise(address, self.own.interface, &all))
            }
            _ => PeerAddresses::One(address),
        };
    }

    /// The address of `peer` for the next try: each retry takes the next one that the peer may have.
    fn next_address(&self, peer: Rank) -> Option<SocketAddr> {
        let tries = self.routes.get(&peer).map_or(0, |route| route.tries);
        let known = self.addresses[peer.index()].as_slice();
        known.iter().cycle().nth(usize::try_from(tries).unwrap_or(0) % known.len().max(1)).copied()
    }

    pub(super) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// How many accepted connections have not proved themselves, with those that the doorkeeper has.
    #[cfg(test)]
    pub(super) fn strangers(&self) -> usize {
        self.strangers.len() + self.own.seat.strangers()
    }

    /// # Errors
    /// After [`ControlPlane::close`].
    pub(super) fn check_open(&self) -> Result<()> {
        if self.is_open { Ok(()) } else { Err(Error::invalid_usage("the bootstrap is closed")) }
    }

    /// Fails if connections cannot be opened any more and one is needed: to `peer`, or to whoever comes.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub(super) fn check_reach(&self, peer: Option<Rank>) -> Result<()> {
        let is_linked = |peer: Rank| peer == self.world.rank || self.has_link(peer);
        if peer.is_some_and(is_linked) { Ok(()) } else { self.shortage.check(clock::now()) }
    }

    /// Expects the peer to connect: messages for it wait for that. If it does not connect in time, this rank dials, to
    /// learn whether the peer is still alive.
    pub(super) fn await_from(&mut self, peer: Rank) {
        self.routes.entry(peer).or_default().awaited = true;
        let patience = AWAITED_PATIENCE + PATIENCE_A_RANK.saturating_mul(self.world.size);
        self.retries.insert((clock::now() + patience, peer));
    }

    /// Waits until each of `peers` is connected or known to be gone.
    pub(super) fn await_links(&mut self, peers: impl Iterator<Item = Rank> + Clone, deadline: Deadline) {
        loop {
            let now = clock::now();
            let is_missing = |peer: Rank| self.inbox.gone(peer).is_none() && !self.has_link(peer);
            if !peers.clone().any(is_missing)
                || deadline.passed(now)
                || self.drive(deadline.slice(now, super::ABORT_CHECK)).is_err()
            {
                return;
            }
        }
    }

    /// A living rank that has not taken everything that was sent to it.
    pub(super) fn busy(&self) -> Option<Rank> {
        let there = |peer: &Rank| self.inbox.gone(*peer).is_none();
        let queued =
            self.routes.iter().find(|(peer, route)| !route.queued.is_empty() && there(peer)).map(|(peer, _)| *peer);
        let whose = |entry: &Entry| entry.link.peer().or(entry.dialled).filter(there);
        queued.or_else(|| self.links.values().filter(|entry| entry.link.unsent() > 0).find_map(whose))
    }

    /// How many bytes for `peer` its connection has not taken.
    pub(super) fn unsent(&self, peer: Rank) -> usize {
        let Some(route) = self.routes.get(&peer) else { return 0 };
        let link = route.token.and_then(|token| self.links.get(&token));
        route.queued.len() + link.map_or(0, |entry| entry.link.unsent())
    }

    /// Queues a message for `peer` and sends as much as its connection takes now; opens a connection if there is none.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if the message is too long.
    pub(super) fn put(&mut self, peer: Rank, channel: Channel, bytes: &[u8]) -> Result<()> {
        if bytes.len() > self.rules.most_bytes {
            let (length, most) = (bytes.len(), self.rules.most_bytes);
            return Err(Error::invalid_argument(format!(
                "a bootstrap message of {length} bytes is too long: at most {most} are allowed"
            )));
        }
        if peer == self.world.rank {
            self.inbox.push(peer, channel, bytes.to_vec());
            return Ok(());
        }
        let (kind, tag) = match channel {
            Channel::Message(tag) => (MESSAGE, tag),
            Channel::Collective(sequence) => (COLLECTIVE, sequence),
            Channel::Shrink(number) => (SHRINK, number),
        };
        let route = self.routes.entry(peer).or_default();
        route.is_needed = true;
        match route.token.and_then(|token| self.links.get_mut(&token).map(|entry| (token, entry))) {
            Some((token, entry)) => {
                entry.link.queue(kind, tag, bytes);
                self.flush(token);
            }
            None => {
                let idle = route.queued.is_empty() && route.tries == 0 && !route.awaited;
                frame::append(&mut route.queued, kind, tag, bytes);
                if idle {
                    self.dial(peer);
                }
            }
        }
        Ok(())
    }

    /// Takes a message. If the sender's connections were paused because the inbox was full, they are read again.
    pub(super) fn take(&mut self, peer: Rank, channel: Channel) -> Option<Vec<u8>> {
        let had_room = self.inbox.has_room(peer);
        let bytes = self.inbox.take(peer, channel)?;
        if !had_room && self.inbox.has_room(peer) {
            let resumed: Vec<u64> = self
                .links
                .iter()
                .filter(|(_, e)| e.link.paused && e.link.peer() == Some(peer))
                .map(|(t, _)| *t)
                .collect();
            for token in resumed {
                if let Some(entry) = self.links.get_mut(&token) {
                    entry.link.paused = false;
                }
                self.tell_poller(token);
            }
        }
        Some(bytes)
    }

    /// Opens a connection to `peer` for queued and later frames.
    pub(super) fn dial(&mut self, peer: Rank) {
        let Some(address) = self.next_address(peer) else {
            return self.lost(peer, "its address is not known".to_owned(), OURSELVES);
        };
        let handshake = match Handshake::initiate(self.terms.clone(), self.world.rank, peer) {
            Ok(handshake) => handshake,
            Err(error) => return self.inbox.failed(error),
        };
        let (route, now) = (self.routes.entry(peer).or_default(), clock::now());
        route.since.get_or_insert(now);
        match Link::connect(address, handshake, self.rules.most_bytes) {
            Ok(mut link) => {
                self.shortage.end();
                link.keep_unheard();
                link.queue_frames(&std::mem::take(&mut route.queued));
                self.call_backs.begin(peer, std::mem::take(&mut route.awaited), now);
                let token = self.next_token;
                if let Some(token) = self.register(Entry { link, dialled: Some(peer), has_heard: false }) {
                    self.dialling.insert(token);
                }
                self.routes.entry(peer).or_default().token = Some(token);
            }
            // Nothing was tried that could count: the peer may well be there.
            Err(End::Unreachable(error)) if limits::is_exhausted(&error) => {
                let now = clock::now();
                self.shortage.note(error, now);
                self.retries.insert((now + shortage::PAUSE, peer));
            }
            Err(end) => {
                self.call_backs.begin(peer, std::mem::take(&mut route.awaited), now);
                self.retry(peer, &end);
            }
        }
    }

    fn register(&mut self, mut entry: Entry) -> Option<u64> {
        let token = self.next_token;
        self.next_token += 1;
        entry.link.told = entry.link.interest();
        entry.link.handshake_until = Some(moment(clock::now(), self.rules.handshake_timeout));
        match self.watch(token, &entry) {
            Ok(()) => {
                self.links.insert(token, entry);
                Some(token)
            }
            Err(error) => {
                self.inbox.failed(error);
                None
            }
        }
    }

    /// Plans another dial after a failure, or declares the peer dead.
    fn retry(&mut self, peer: Rank, end: &End) {
        if self.use_its_link(peer) {
            return;
        }
        self.ask_to_call(peer);
        let refused = matches!(end, End::Unreachable(error) if error.kind() == std::io::ErrorKind::ConnectionRefused);
        let most = if refused { self.rules.retry_count.min(REFUSED_TRIES) } else { self.rules.retry_count };
        let is_neighbour = self.is_neighbour(peer);
        // Anybody else may have left in order, and the news be on their way.
        let is_dead = refused && is_neighbour && self.is_of_this_host(peer);
        let may_call = !is_dead && self.may_call(peer, clock::now());
        let route = self.routes.entry(peer).or_default();
        route.token = None;
        route.tries += 1;
        // Of a rank that nobody needs one refusal says enough: it has gone.
        if (route.tries > most && !may_call) || (refused && !route.is_needed && !is_neighbour) {
            let (tries, at) = (route.tries, self.addresses[peer.index()].as_slice().first());
            let (at, own) = (at.map_or_else(String::new, |at| format!(" at {at}")), self.own.seat.address());
            let why =
                format!("it cannot be reached{at} in {tries} tries: {end}; nor has it reached this rank at {own}");
            return self.unreachable(peer, why);
        }
        let pause = self.rules.retry_sleep.saturating_mul(route.tries).min(MAX_RETRY_SLEEP);
        self.retries.insert((clock::now() + pause, peer));
    }

    /// Records that `peer` is dead, and forwards that.
    fn lost(&mut self, peer: Rank, why: String, source: u64) {
        self.moves += 1;
        self.routes.remove(&peer);
        if self.inbox.mark_gone(peer, Gone::Died(why.clone())) {
            self.outbox.push((source, Gossip::Died(peer, why)));
        }
    }

    fn left(&mut self, peer: Rank, word: u64, source: u64) {
        self.moves += 1;
        if self.inbox.mark_gone(peer, Gone::Left(word)) {
            self.outbox.push((source, Gossip::Left(peer, word)));
            if self.is_open {
                self.farewell.get_or_insert(clock::now() + FAREWELL_PATIENCE);
                self.absent.mend_after(clock::now() + MEND_PATIENCE);
            }
        }
    }

    /// See [`Bootstrap::await_news`](crate::bootstrap::Bootstrap::await_news).
    pub(super) fn await_news(&mut self, chime: &Arc<Chime>, asks: u32, listen: Listen<'_>) -> Result<Option<Duration>> {
        if !self.inbox.ring_at_news(chime, asks) {
            return Ok(None);
        }
        let is_heard = self.listen_with(chime, listen)?;
        Ok(is_heard.then(|| self.next_moment(clock::now(), Duration::MAX)))
    }

    /// Takes what the doorkeeper has handed over.
    fn accept(&mut self) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some((stream, from)) = self.incoming.take() else { return };
            while self.strangers.len() >= MAX_STRANGERS {
                self.drop_oldest_stranger();
            }
            let handshake = Handshake::respond(self.terms.clone(), self.world.rank);
            let link = Link::accepted(stream, from, handshake, self.rules.most_bytes);
            if let Some(token) = self.register(Entry { link, dialled: None, has_heard: false }) {
                self.strangers.insert(token);
                // The first bytes have arrived already; reading now saves a round of polling.
                self.serve(token, true);
            }
        }
    }

    /// Notes whether the doorkeeper cannot accept connections, which may be for this rank.
    fn look_at_door(&mut self) {
        match self.own.seat.trouble() {
            Some(error) => {
                let now = clock::now();
                self.is_shut = true;
                if !limits::is_exhausted(&error) || !self.drop_idle_stranger(now) {
                    self.shortage.note(error, now);
                }
            }
            None if std::mem::take(&mut self.is_shut) => self.shortage.end(),
            None => {}
        }
    }

    /// Drops the oldest stranger if it has been silent for long: a peer that is about to prove itself would take this
    /// rank for dead.
    fn drop_idle_stranger(&mut self, now: Instant) -> bool {
        let oldest = self.strangers.first().and_then(|token| self.links.get(token));
        let until = oldest.and_then(|entry| entry.link.handshake_until);
        until.is_some_and(|until| until.saturating_duration_since(now) + IDLE_AGE <= self.rules.handshake_timeout)
            && self.drop_oldest_stranger()
    }

    fn drop_oldest_stranger(&mut self) -> bool {
        self.strangers.pop_first().is_some_and(|token| self.links.remove(&token).is_some())
    }

    fn serve(&mut self, token: u64, readable: bool) {
        self.moves += 1;
        let Some(entry) = self.links.get_mut(&token) else { return };
        let was_proved = entry.link.peer().is_some();
        let mut frames = Vec::new();
        let outcome = if readable { entry.link.read(&mut self.scratch, &mut frames) } else { Ok(()) }
            .and_then(|()| entry.link.flush());
        if let (false, Some(peer)) = (was_proved, entry.link.peer()) {
            self.proved(token, peer);
        }
        for frame in frames {
            self.frame(token, frame);
        }
        match outcome {
            Ok(()) => self.tell_poller(token),
            Err(end) => self.end(token, &end),
        }
    }

    /// The other end of a link has proved that it is `peer`.
    fn proved(&mut self, token: u64, peer: Rank) {
        self.strangers.remove(&token);
        self.dialling.remove(&token);
        let impossible = peer.get() >= self.world.size || peer == self.world.rank;
        if impossible {
            self.links.remove(&token);
            return;
        }
        self.leave_vain_dial(peer);
        if self.routes.entry(peer).or_default().token.is_none() {
            self.use_its_link(peer);
        }
        self.greet(token, peer);
    }

    fn frame(&mut self, token: u64, frame: Frame) {
        let Some(entry) = self.links.get_mut(&token) else { return };
        entry.has_heard = true;
        entry.link.note_heard();
        let Some(peer) = entry.link.peer() else { return };
        let channel = match frame.kind {
            MESSAGE => Channel::Message(frame.tag),
            COLLECTIVE => Channel::Collective(frame.tag),
            SHRINK => Channel::Shrink(frame.tag),
            NEWS => return self.news(token, peer, &frame.payload),
            CALL_BACK if self.hear_call(frame.tag, &frame.payload) => return,
            CALL_BACK => return self.end(token, &End::Closed("it sent a broken request to connect".to_owned())),
            GOODBYE => {
                let word = <[u8; 8]>::try_from(&frame.payload[..]).map_or(0, u64::from_le_bytes);
                // Its sender closes once this has been acknowledged, and sends nothing behind it.
                self.links.get(&token).iter().for_each(|entry| entry.link.acknowledge());
                return self.left(peer, word, token);
            }
            other => return self.end(token, &End::Closed(format!("it sent a frame of unknown kind {other}"))),
        };
        self.inbox.push(peer, channel, frame.payload);
        if !self.inbox.has_room(peer)
            && let Some(entry) = self.links.get_mut(&token)
        {
            entry.link.paused = true;
        }
    }

    fn news(&mut self, token: u64, peer: Rank, payload: &[u8]) {
        let all = match Gossip::decode_all(payload) {
            Ok(all) => all,
            Err(error) => return self.end(token, &End::Closed(error.message().to_owned())),
        };
        for news in all {
            match news {
                Gossip::Died(rank, why) if self.is_peer(rank) => {
                    self.drain(rank);
                    self.lost(rank, why, token);
                }
                // Messages that a rank sent before its goodbye may still be in its own connection: if there is one, its
                // end counts.
                Gossip::Left(rank, word) if self.is_peer(rank) && self.has_link(rank) => {
                    self.absent.note_left(rank, word);
                }
                Gossip::Left(rank, word) if self.is_peer(rank) => self.left(rank, word, token),
                Gossip::Note { from, number, bytes } if self.is_peer(from) => {
                    if self.seen.insert(from, number) {
                        self.inbox.note(from, bytes.clone());
                        self.outbox.push((token, Gossip::Note { from, number, bytes }));
                    }
                }
                Gossip::Died(rank, _) if rank == self.world.rank => {
                    let me = self.world.rank;
                    log::warn!(Bootstrap @ me, "rank {peer} reports that other ranks believe this rank to be dead");
                }
                Gossip::Died(..) | Gossip::Left(..) | Gossip::Note { .. } => {}
            }
        }
    }

    fn is_peer(&self, rank: Rank) -> bool {
        rank.get() < self.world.size && rank != self.world.rank
    }

    /// Whether a connection with `peer` is open.
    pub(super) fn has_link(&self, peer: Rank) -> bool {
        self.links.values().any(|entry| entry.link.peer() == Some(peer))
    }

    /// Reads what a rank sent before it died, so that a receiver still gets it.
    fn drain(&mut self, peer: Rank) {
        let links: Vec<u64> =
            self.links.iter().filter(|(_, entry)| entry.link.peer() == Some(peer)).map(|(token, _)| *token).collect();
        for token in links {
            let Some(entry) = self.links.get_mut(&token) else { continue };
            let mut frames = Vec::new();
            // The end is known already.
            let _end = entry.link.read(&mut self.scratch, &mut frames);
            for frame in frames.into_iter().filter(|frame| frame.kind != NEWS) {
                self.frame(token, frame);
            }
        }
    }

    /// Removes a link that has ended.
    fn end(&mut self, token: u64, end: &End) {
        self.strangers.remove(&token);
        self.dialling.remove(&token);
        let Some(entry) = self.links.remove(&token) else { return };
        let Some(peer) = entry.link.peer().or(entry.dialled) else {
            let from = entry.link.address;
            log::trace!(
                Bootstrap @ self.world.rank,
                "dropped a connection from {from} that did not complete the handshake: {end}"
            );
            return;
        };
        if self.inbox.gone(peer).is_some() {
            self.routes.remove(&peer);
        } else if entry.link.peer().is_some() && (entry.has_heard || self.is_neighbour(peer)) {
            self.lost(peer, end.to_string(), token);
        } else if entry.link.peer().is_some() {
            // The other end may have closed before it had read the last bytes of the handshake: then it knows nothing
            // of this connection, and has said goodbye on others.
            let was_route = self.routes.get(&peer).is_some_and(|route| route.token == Some(token));
            match (self.absent.take_left(peer), entry.link.into_frames()) {
                (Some(word), _) => self.left(peer, word, token),
                // It may be there, and have closed the connection for want of room or time.
                (None, Some(frames)) if was_route => self.send_again(peer, frames, end),
                (None, _) if !was_route && self.has_link(peer) => {}
                (None, _) => {
                    self.routes.entry(peer).or_default().token = None;
                    self.unreachable(peer, end.to_string());
                }
            }
        } else {
            let frames = entry.link.into_frames().unwrap_or_default();
            self.send_again(peer, frames, end);
        }
    }

    /// The connection with `peer` was none, and its frames go over another one.
    fn send_again(&mut self, peer: Rank, frames: Vec<u8>, end: &End) {
        let route = self.routes.entry(peer).or_default();
        // Frames that were queued meanwhile follow the others.
        let later = std::mem::replace(&mut route.queued, frames);
        route.queued.extend(later);
        self.retry(peer, end);
    }

    fn flush(&mut self, token: u64) {
        self.moves += 1;
        let Some(entry) = self.links.get_mut(&token) else { return };
        match entry.link.flush() {
            Ok(()) => self.tell_poller(token),
            // Reads what the peer sent before it closed; the read then finds the end.
            Err(End::Closed(_)) => self.serve(token, true),
            Err(end) => self.end(token, &end),
        }
    }

    fn expire(&mut self, now: Instant) {
        let due = |links: &HashMap<u64, Entry>, tokens: &BTreeSet<u64>| {
            let token = *tokens.first()?;
            let until = links.get(&token).and_then(|entry| entry.link.handshake_until);
            until.is_none_or(|until| now >= until).then_some(token)
        };
        while due(&self.links, &self.strangers).is_some() {
            self.drop_oldest_stranger();
        }
        while let Some(token) = due(&self.links, &self.dialling) {
            if !self.keep_silent(token) {
                self.end(token, &End::Rejected("it did not answer".to_owned()));
            }
            self.dialling.remove(&token);
        }
        while self.retries.first().is_some_and(|(again, _)| now >= *again) {
            let Some((_, peer)) = self.retries.pop_first() else { break };
            if self.inbox.gone(peer).is_none() && self.routes.get(&peer).is_some_and(|route| route.token.is_none()) {
                self.dial(peer);
            }
        }
        self.look_for_unreached(now);
        self.look_for_absent(now);
    }

    /// Whether there is gossip to forward that does not wait for more, as goodbyes do.
    fn has_urgent_news(&self) -> bool {
        self.is_open && self.outbox.iter().any(|(_, news)| !matches!(news, Gossip::Left(..)))
    }

    /// Forwards gossip over every connection but the one that it came from.
    fn tell_news(&mut self) {
        let patient = !self.has_urgent_news() && self.farewell.is_some_and(|until| clock::now() < until);
        if self.outbox.is_empty() || patient || !self.is_open {
            return;
        }
        self.farewell = None;
        let outbox = std::mem::take(&mut self.outbox);
        let proved = self.links.iter().filter(|(_, entry)| entry.link.peer().is_some());
        let told: Vec<u64> = proved.map(|(token, _)| *token).collect();
        for token in told {
            let frames = news_frames(outbox.iter().filter(|(source, _)| *source != token).map(|(_, news)| news));
            if let Some(entry) = self.links.get_mut(&token)
                && !frames.is_empty()
                && entry.link.unsent() < MAX_NEWS_BACKLOG_BYTES
            {
                entry.link.queue_frames(&frames);
                self.flush(token);
            }
        }
    }

    /// Publishes a note, as far as connections take it now.
    pub(super) fn publish(&mut self, note: &[u8]) {
        let number = self.notes;
        self.notes = self.notes.saturating_add(1);
        self.outbox.push((OURSELVES, Gossip::Note { from: self.world.rank, number, bytes: note.to_vec() }));
        self.tell_news();
    }

    pub(super) fn poll(&mut self) -> Vec<Event> {
        if self.is_open {
            loop {
                if let Err(error) = self.drive(Duration::ZERO) {
                    self.inbox.failed(error);
                    break;
                }
                if !self.ready.is_full() {
                    break;
                }
            }
        }
        self.inbox.events()
    }
}

/// The frames that tell of `all`.
fn news_frames<'a>(all: impl Iterator<Item = &'a Gossip>) -> Vec<u8> {
    let mut writer = Writer::new();
    let mut frames = Vec::new();
    for news in all {
        news.encode(&mut writer);
        if writer.as_slice().len() > MAX_NEWS_FRAME_BYTES {
            frame::append(&mut frames, NEWS, 0, writer.as_slice());
            writer = Writer::new();
        }
    }
    if !writer.as_slice().is_empty() {
        frame::append(&mut frames, NEWS, 0, writer.as_slice());
    }
    frames
}
