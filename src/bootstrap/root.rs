//! The root: one thread with one poll loop, where all ranks check in and get the addresses of their neighbours.
//!
//! A bad connection costs only itself: [`Acceptor`] drops strangers, and a rank whose number is taken, or whose world
//! has another size, gets the reason as its answer. The death of a rank after its check-in, or the deadline, ends the
//! root: it tells the reason to every rank that is present. [`Roster`] decides; this file moves the frames.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::bootstrap::acceptor::{Acceptor, Requirements, ServiceThread, Unproven};
use crate::bootstrap::address::HostPort;
use crate::bootstrap::checkin::{self, AddressTable, CheckIn, FurtherRoot, MAX_ROOT_FRAME_BYTES, RankBlock};
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::leash::LooseLeash;
use crate::bootstrap::link::End;
use crate::bootstrap::reach::{self, Wanted};
use crate::bootstrap::roster::{self, NextStep, Roster};
use crate::bootstrap::serving::{self, ListenRules, ServiceListeners};
use crate::bootstrap::socket;
use crate::bootstrap::{Options, interface};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::{AbortFlag, Wait};
use crate::sys::handed_down::HandedDown;
use crate::sys::interfaces::Interface;
use crate::sys::{clock, random};
use crate::types::Rank;
use crate::wire::frame::Frame;

/// A root that serves. Dropping it ends it. After [`Root::detach`] it serves until all ranks are served, its deadline
/// passes, or a rank of its process has failed to meet the others before any rank has come.
#[derive(Debug)]
pub struct Root {
    thread: ServiceThread,
    /// That of the id.
    number: u64,
}

/// The detached roots of this process that had not ended at the last look, by the number of their id. A forked child
/// has none of them.
static DETACHED: HandedDown<Vec<(u64, LooseLeash)>> = HandedDown::new(Vec::new, |_| Vec::new());

/// How long a root stays to send its answers; a failed root stays as long to answer late ranks.
const LINGER: Duration = Duration::from_secs(3);

/// What a rank is told that comes to a root which was given up.
const GIVEN_UP: &str = "a rank of the process that serves this id had given up before any rank came: its init has \
                        timed out or was aborted, or the root did not answer it; make a new id";

impl Root {
    /// Makes an id and serves it, on the interface that `options` choose.
    ///
    /// # Errors
    /// As [`UniqueId::generate`].
    pub fn serve(options: &Options) -> Result<(UniqueId, Root)> {
        Root::serve_within(options, &Wait::new(options.check_in_timeout, &AbortFlag::new()))
    }

    /// [`Root::serve`], which waits at most as long as `wait` for an interface that is coming up.
    pub(super) fn serve_within(options: &Options, wait: &Wait) -> Result<(UniqueId, Root)> {
        let pick =
            |all: &[Interface]| Ok(interface::choose(all, &options.interfaces, options.family, None)?.swap_remove(0));
        let by_others = |_: &[Interface]| options.other_hosts;
        let chosen = reach::interface(&Wanted { pick: &pick, by_others: &by_others }, options, wait)?;
        let (listener, address) = reach::listen(&chosen, wait, |address| socket::listen_in(address, options.ports))?;
        let id = UniqueId::fresh(address)?;
        log::detail!(Bootstrap, "Bootstrap: root listens on {}", interface::Using(&chosen.name, address));
        if address.ip().is_loopback() && options.interfaces.is_empty() {
            log::detail!(Bootstrap, "no interface but loopback is up: ranks of other hosts cannot join by this id");
        }
        let root = Root::start(id, ServiceListeners::one(listener, address), None, options)?;
        Ok((id, root))
    }

    /// Serves the fixed address of `id`, which is `place`; yields also the address at which this process reaches the
    /// root. The root of an earlier communicator may still hold the port, so a listener there is waited for.
    pub(super) fn serve_fixed(
        id: &UniqueId,
        place: &HostPort,
        options: &Options,
        wait: &Wait,
    ) -> Result<(Root, SocketAddr)> {
        let listener_patience = options.retry_sleep.saturating_mul(options.retry_count);
        let rules = ListenRules { terms: id.terms(options), guarded: options.is_guarded(), listener_patience };
        let listeners = serving::listen(place, rules, options, wait)?;
        let (near, words) = (listeners.near(), listeners.words("NCCL_COMM_ID", options));
        Ok((Root::start(*id, listeners, Some(words), options)?, near))
    }

    /// Serves a further root of the world of `id`, on this interface, until all its ranks are served; yields where.
    pub(super) fn serve_further(id: &UniqueId, interface: SocketAddr, options: &Options) -> Result<SocketAddr> {
        let (listener, address) = socket::listen_in(interface, options.ports)?;
        Root::start(*id, ServiceListeners::one(listener, address), None, options)?.detach();
        Ok(address)
    }

    /// `place` says in words where it listens, for the message of a time-out.
    fn start(id: UniqueId, listeners: ServiceListeners, place: Option<String>, options: &Options) -> Result<Root> {
        let now = clock::now();
        let roster = Roster::new(random::bytes()?, options.root_lifetime, options.check_in_timeout, now);
        let handshake_timeout = options.handshake_timeout;
        let unproven = Unproven::default();
        let rules = Requirements {
            terms: id.terms(options),
            handshake_timeout,
            most_bytes: MAX_ROOT_FRAME_BYTES,
            unproven: unproven.clone(),
        };
        let is_fixed = id.is_fixed();
        let run = move |acceptor| {
            let (phase, guests, places) = (Phase::Gather, HashMap::new(), HashMap::new());
            let (first_at, settled_at) = (None, None);
            Service { acceptor, unproven, is_fixed, roster, place, phase, guests, places, first_at, settled_at }.run();
        };
        let thread = ServiceThread::start("rsccl root", listeners, rules, run)?;
        Ok(Root { thread, number: id.number() })
    }

    /// Lets the root serve without its owner.
    pub fn detach(self) {
        let mut detached = DETACHED.lock();
        detached.retain(|(_, leash)| !leash.is_over());
        detached.push((self.number, self.thread.detach()));
    }

    /// Tells the detached root of `id`, if this process has it, that a rank of this process has failed to meet the
    /// others. Where no rank has come by now, the root fails: otherwise it would wait half an hour for the first one.
    pub(super) fn give_up(id: &UniqueId) {
        let number = id.number();
        DETACHED.lock().iter().filter(|(served, _)| *served == number).for_each(|(_, leash)| leash.give_up());
    }

    /// Whether the root has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.is_finished()
    }
}

struct Service {
    acceptor: Acceptor,
    unproven: Unproven,
    /// Whether the address is fixed: then a root that has failed makes room at once, for rank 0 may try again.
    is_fixed: bool,
    roster: Roster,
    /// Where the root listens, in words, if its address is fixed.
    place: Option<String>,
    phase: Phase,
    guests: HashMap<u64, Guest>,
    /// At root 0: where the further roots serve, as far as they do.
    places: HashMap<u32, SocketAddr>,
    /// When the first rank checked in.
    first_at: Option<Instant>,
    /// When all ranks had checked in, or one had failed.
    settled_at: Option<Instant>,
}

/// What has checked in over a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guest {
    /// A rank.
    Rank(Rank),
    /// The first rank of another root's block, which brings that block.
    Leader(Rank),
    /// A rank of another root's block, which looks for that root.
    Looking { rank: Rank, root: u32 },
}

#[derive(Debug)]
enum Phase {
    /// Ranks are checking in.
    Gather,
    /// The block is complete; the root waits for the table of all ranks.
    AwaitTable,
    /// The root has failed and has told everyone; until this time it tells late ranks too.
    Failed(Error, Instant),
    /// Every rank has its answer; until this time the answers are being sent.
    Answered(Instant),
}

impl Service {
    fn run(mut self) {
        let started = clock::now();
        while !self.is_over(clock::now()) {
            match self.acceptor.wait(Some(self.next_moment())) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => {
                    log::warn!(Bootstrap, "the root cannot poll: {error}");
                    break;
                }
            }
            let now = clock::now();
            while let Some(heard) = self.acceptor.next() {
                for frame in heard.frames {
                    self.frame(heard.token, &frame, now);
                }
                if let Some(end) = heard.end {
                    self.end(heard.token, &end, now);
                }
            }
            let now = clock::now();
            if matches!(self.phase, Phase::Gather) && self.roster.is_empty() && self.acceptor.is_given_up() {
                self.fail(Error::new(Kind::Remote, GIVEN_UP), now);
            }
            if matches!(self.phase, Phase::Gather | Phase::AwaitTable)
                && self.has_ranks()
                && now >= self.roster.deadline()
            {
                let mut message = self.roster.overdue(now).message().to_owned();
                if let Some(why) = self.acceptor.trouble() {
                    message += &format!("; the root could not accept every connection: {why}");
                }
                // The secret of an id that was sent to the ranks is no setting.
                if let Some(words) = self.unproven.words().filter(|_| self.is_fixed) {
                    message += &format!("; {words}");
                }
                if let Some(words) = self.who_looks() {
                    message += &format!("; {words}");
                }
                if let Some(place) = &self.place {
                    message += &format!("; {place}");
                }
                self.fail(Error::timeout(message), now);
            }
        }
        self.log_times(started, clock::now());
    }

    /// Logs how long this root waited for the first rank, then for the others, and how long it sent answers.
    fn log_times(&self, started: Instant, ended: Instant) {
        let first = self.first_at.unwrap_or(ended);
        let settled = self.settled_at.unwrap_or(ended);
        let seconds = |from: Instant, to: Instant| to.saturating_duration_since(from).as_secs_f64();
        let (wait, recv, send) = (seconds(started, first), seconds(first, settled), seconds(settled, ended));
        let (world, dropped) = (self.roster.shape().map_or(0, |shape| shape.world), self.acceptor.dropped());
        log::detail!(
            Bootstrap,
            "Root timings (wait {wait:.6}, recv {recv:.6}, send {send:.6}) nranks {world} dropped connections {dropped}"
        );
    }

    /// Whether ranks wait for an answer.
    fn has_ranks(&self) -> bool {
        !self.roster.is_empty() || !self.guests.is_empty()
    }

    /// Who waits for a further root to serve, in words.
    fn who_looks(&self) -> Option<String> {
        let shape = self.roster.shape()?;
        let looked = |guest: &Guest| match guest {
            Guest::Looking { root, .. } => Some(*root),
            Guest::Rank(_) | Guest::Leader(_) => None,
        };
        let root = self.guests.values().filter_map(looked).min()?;
        let (first, count) =
            (shape.first(root), self.guests.values().filter(|guest| looked(guest) == Some(root)).count());
        Some(match count {
            1 => format!("1 rank waits for rank {first}, in whose process it checks in"),
            _ => format!("{count} ranks wait for rank {first}, in whose process they check in"),
        })
    }

    fn is_over(&self, now: Instant) -> bool {
        match &self.phase {
            Phase::Gather => !self.has_ranks() && now >= self.roster.deadline(),
            Phase::AwaitTable => false,
            Phase::Failed(_, until) => now >= *until || self.is_fixed && !self.acceptor.has_leaving(),
            Phase::Answered(until) => now >= *until || !self.acceptor.has_leaving(),
        }
    }

    fn next_moment(&self) -> Instant {
        match &self.phase {
            Phase::Gather | Phase::AwaitTable => self.roster.deadline(),
            Phase::Failed(_, until) | Phase::Answered(until) => *until,
        }
    }

    fn end(&mut self, token: u64, end: &End, now: Instant) {
        let Some(guest) = self.guests.remove(&token) else { return };
        if matches!(self.phase, Phase::Gather | Phase::AwaitTable) {
            // Also of another block before any rank has checked in here: others may have heard where its root serves.
            let (Guest::Rank(rank) | Guest::Leader(rank) | Guest::Looking { rank, .. }) = guest;
            self.fail(self.roster.lost(rank, &end.to_string()), now);
        }
    }

    fn frame(&mut self, token: u64, frame: &Frame, now: Instant) {
        let first = self.roster.first().map(Guest::Rank);
        let outcome = match (self.guests.get(&token).copied(), frame.kind) {
            (None, checkin::CHECK_IN) => self.check_in(token, frame, now),
            (Some(Guest::Leader(leader)), checkin::BLOCK) => self.block(leader, frame, now),
            (None, checkin::SERVE | checkin::FIND) => self.further_root(token, frame, now),
            (None, checkin::ASK) => {
                self.tell_state(token);
                Ok(())
            }
            (Some(guest), checkin::TABLE) if first == Some(guest) => self.table(frame, now),
            // Of the first rank of this block, what root 0 has said; of another's, why the root of that has failed.
            (Some(guest), checkin::REFUSAL) if first == Some(guest) || matches!(guest, Guest::Leader(_)) => {
                let said = checkin::decode_refusal(&frame.payload);
                // Where root 0 has waited in vain, it may be for this block: who is missing here is known better here.
                let is_missing_here =
                    first == Some(guest) && said.kind() == Kind::Timeout && self.roster.misses_ranks();
                self.fail(if is_missing_here { self.roster.overdue(now) } else { said }, now);
                Ok(())
            }
            _ => Err(checkin::unexpected(frame)),
        };
        if let Err(error) = outcome {
            let from =
                self.acceptor.from(token).map_or_else(|| "a closed connection".to_owned(), |from| from.to_string());
            log::warn!(Bootstrap, "the root rejects {from}: {error}");
            let is_late = self.guests.remove(&token).is_none() && matches!(self.phase, Phase::Failed(..));
            let kind = if is_late { checkin::LATE } else { checkin::REFUSAL };
            self.acceptor.send_last(token, kind, &checkin::encode_refusal(&error));
        }
    }

    fn check_in(&mut self, token: u64, frame: &Frame, now: Instant) -> Result<()> {
        let check_in = CheckIn::decode(&frame.payload)?;
        self.check_phase()?;
        let Some(from) = self.acceptor.from(token) else { return Ok(()) };
        let step = self.roster.check_in(&check_in, from, now)?;
        log::trace!(Bootstrap @ check_in.rank, "rank {} has checked in from {from}", check_in.rank);
        self.first_at.get_or_insert(now);
        self.seat(token, Guest::Rank(check_in.rank));
        self.take_step(step, now);
        Ok(())
    }

    /// Answers a rank that asks before it takes the id from a store: after an attempt that has failed it waits for the
    /// next.
    fn tell_state(&mut self, token: u64) {
        match &self.phase {
            Phase::Failed(error, _) => {
                let refusal = checkin::encode_refusal(error);
                self.acceptor.send_last(token, checkin::LATE, &refusal);
            }
            Phase::Gather | Phase::AwaitTable | Phase::Answered(_) => {
                self.acceptor.send_last(token, checkin::GATHERS, &[]);
            }
        }
    }

    fn block(&mut self, leader: Rank, frame: &Frame, now: Instant) -> Result<()> {
        let block = RankBlock::decode(&frame.payload)?;
        self.check_phase()?;
        if block.shape.first(block.root) != leader {
            return Err(
                Error::mismatch(format!("rank {leader} has sent the block of root {}", block.root)).about(leader)
            );
        }
        let step = self.roster.block(block, now)?;
        self.take_step(step, now);
        Ok(())
    }

    /// A rank serves a further root, or looks for one.
    fn further_root(&mut self, token: u64, frame: &Frame, now: Instant) -> Result<()> {
        let further = FurtherRoot::decode(frame)?;
        let FurtherRoot { rank, root, at, .. } = further;
        self.check_phase()?;
        let Some(from) = self.acceptor.from(token) else { return Ok(()) };
        let is_sound = self.roster.check_further(&further).and_then(|()| self.check_number(&further, from));
        is_sound.map_err(|error| self.roster.turn_away(error, from))?;
        self.roster.hear_of(&further, now);
        let Some(at) = at else {
            match self.places.get(&root).map(checkin::encode_place) {
                Some(place) => self.acceptor.send_last(token, checkin::PLACE, &place),
                None => self.seat(token, Guest::Looking { rank, root }),
            }
            return Ok(());
        };
        self.places.insert(root, at);
        self.seat(token, Guest::Leader(rank));
        let looks = |guest: &Guest| matches!(guest, Guest::Looking { root: looked, .. } if *looked == root);
        for (token, _) in self.guests.extract_if(|_, guest| looks(guest)).collect::<Vec<_>>() {
            self.acceptor.send_last(token, checkin::PLACE, &checkin::encode_place(&at));
        }
        Ok(())
    }

    /// Fails where another rank of this number serves the same block, or looks for the same root.
    fn check_number(&self, further: &FurtherRoot, from: SocketAddr) -> Result<()> {
        let FurtherRoot { rank, root, at, .. } = *further;
        let does = if at.is_some() { Guest::Leader(rank) } else { Guest::Looking { rank, root } };
        let Some((other, _)) = self.guests.iter().find(|(_, guest)| **guest == does) else { return Ok(()) };
        let other = self.acceptor.from(*other).map_or_else(String::new, |other| other.to_string());
        let words = match (self.places.get(&root), at) {
            (Some(there), Some(at)) => {
                format!("one, from {other}, serves its block at {there}, the other, from {from}, at {at}")
            }
            _ => format!("one comes from {other}, the other from {from}"),
        };
        Err(Error::mismatch(format!("two ranks have the number {rank}: {words}")).about(rank))
    }

    /// Fails if the root has finished: a rank that comes too late is told how it ended.
    fn check_phase(&self) -> Result<()> {
        match &self.phase {
            Phase::Gather => Ok(()),
            Phase::Failed(error, _) => Err(error.duplicate()),
            Phase::AwaitTable | Phase::Answered(_) => Err(all_have_come()),
        }
    }

    fn seat(&mut self, token: u64, guest: Guest) {
        self.acceptor.keep(token);
        self.guests.insert(token, guest);
    }

    fn take_step(&mut self, step: NextStep, now: Instant) {
        match step {
            NextStep::Wait => {}
            NextStep::Report(block) => {
                self.phase = Phase::AwaitTable;
                let first = self.roster.first().map(Guest::Rank);
                let leader = self.guests.iter().find(|(_, guest)| Some(**guest) == first);
                if let Some(token) = leader.map(|(token, _)| *token) {
                    self.acceptor.send(token, checkin::BLOCK, 0, &block.encode());
                }
            }
            NextStep::Answer(table) => match self.roster.difference() {
                None => self.answer(&table, now),
                Some(error) => self.fail(error, now),
            },
        }
    }

    /// Takes the table, with which root 0 has answered the first rank of this block.
    fn table(&mut self, frame: &Frame, now: Instant) -> Result<()> {
        let world = self.roster.shape().map_or(0, |shape| shape.world);
        let table = AddressTable::decode(&frame.payload, Rank::new(world).index())?;
        if matches!(self.phase, Phase::AwaitTable) {
            self.answer(&table, now);
        }
        Ok(())
    }

    fn answer(&mut self, table: &AddressTable, now: Instant) {
        self.phase = Phase::Answered(now + LINGER);
        self.settled_at.get_or_insert(now);
        // No further rank is expected. Closing the listener resets the connections that were not accepted.
        self.acceptor.shut();
        let guests = std::mem::take(&mut self.guests);
        let whole = guests.values().any(|guest| matches!(guest, Guest::Leader(_))).then(|| table.encode());
        for (token, guest) in guests {
            match (guest, &whole) {
                (Guest::Rank(rank), _) => {
                    self.acceptor.send_last(token, checkin::WELCOME, &roster::welcome(table, rank).encode());
                }
                (Guest::Leader(_), Some(whole)) => self.acceptor.send_last(token, checkin::TABLE, whole),
                // Nobody looks any more: a block comes from a rank that has said where its root serves.
                (Guest::Leader(_), None) | (Guest::Looking { .. }, _) => {
                    self.acceptor.send_last(token, checkin::REFUSAL, &checkin::encode_refusal(&all_have_come()));
                }
            }
        }
    }

    fn fail(&mut self, error: Error, now: Instant) {
        log::warn!(Bootstrap, "the root gives up: {error}");
        let refusal = checkin::encode_refusal(&error);
        self.phase = Phase::Failed(error, now + LINGER);
        self.settled_at.get_or_insert(now);
        for token in std::mem::take(&mut self.guests).into_keys() {
            self.acceptor.send_last(token, checkin::REFUSAL, &refusal);
        }
    }
}

/// The error for a rank that comes once all have checked in.
fn all_have_come() -> Error {
    Error::mismatch("all ranks of this id have checked in already: one id makes one communicator")
}

#[cfg(test)]
mod tests;
