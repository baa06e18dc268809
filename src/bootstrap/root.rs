//! The root: one thread with one poll loop, where all ranks check in and get the addresses of their neighbours.
//!
//! A bad connection costs only itself: [`Acceptor`] drops strangers, and a rank whose number is taken, or whose world
//! has another size, gets the reason as its answer. The death of a rank after its check-in, or the deadline, ends the
//! root: it tells the reason to every rank that is present. [`Roster`] decides; this file moves the frames.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::bootstrap::acceptor::{Acceptor, Requirements, ServiceThread};
use crate::bootstrap::address::HostPort;
use crate::bootstrap::checkin::{self, AddressTable, CheckIn, MAX_ROOT_FRAME_BYTES, RankBlock};
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
        let (near, words) = (listeners.near(), listeners.words("NCCL_COMM_ID"));
        Ok((Root::start(*id, listeners, Some(words), options)?, near))
    }

    /// `place` says in words where it listens, for the message of a time-out.
    fn start(id: UniqueId, listeners: ServiceListeners, place: Option<String>, options: &Options) -> Result<Root> {
        let now = clock::now();
        let roster = Roster::new(random::bytes()?, options.root_lifetime, options.check_in_timeout, now);
        let handshake_timeout = options.handshake_timeout;
        let rules = Requirements { terms: id.terms(options), handshake_timeout, most_bytes: MAX_ROOT_FRAME_BYTES };
        let is_fixed = id.is_fixed();
        let run = move |acceptor| {
            let (phase, guests) = (Phase::Gather, HashMap::new());
            Service { acceptor, is_fixed, roster, place, phase, guests, first_at: None, settled_at: None }.run();
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
    /// Whether the address is fixed: then a root that has failed makes room at once, for rank 0 may try again.
    is_fixed: bool,
    roster: Roster,
    /// Where the root listens, in words, if its address is fixed.
    place: Option<String>,
    phase: Phase,
    guests: HashMap<u64, Guest>,
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
    Leader(u32),
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
                && !self.roster.is_empty()
                && now >= self.roster.deadline()
            {
                let mut message = self.roster.overdue(now).message().to_owned();
                if let Some(why) = self.acceptor.trouble() {
                    message += &format!("; the root could not accept every connection: {why}");
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

    fn is_over(&self, now: Instant) -> bool {
        match &self.phase {
            Phase::Gather => self.roster.is_empty() && now >= self.roster.deadline(),
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
            let rank = match guest {
                Guest::Rank(rank) => Some(rank),
                Guest::Leader(root) => self.roster.shape().map(|shape| shape.first(root)),
            };
            if let Some(rank) = rank {
                self.fail(self.roster.lost(rank, &end.to_string()), now);
            }
        }
    }

    fn frame(&mut self, token: u64, frame: &Frame, now: Instant) {
        let first = self.roster.first().map(Guest::Rank);
        let outcome = match (self.guests.get(&token).copied(), frame.kind) {
            (None, checkin::CHECK_IN) => self.check_in(token, frame, now),
            (None, checkin::BLOCK) => self.block(token, frame, now),
            (None, checkin::ASK) => {
                self.tell_state(token);
                Ok(())
            }
            (Some(guest), checkin::TABLE) if first == Some(guest) => self.table(frame, now),
            (Some(guest), checkin::REFUSAL) if first == Some(guest) => {
                self.fail(checkin::decode_refusal(&frame.payload), now);
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

    fn block(&mut self, token: u64, frame: &Frame, now: Instant) -> Result<()> {
        let block = RankBlock::decode(&frame.payload)?;
        self.check_phase()?;
        let root = block.root;
        let step = self.roster.block(block, now)?;
        self.seat(token, Guest::Leader(root));
        self.take_step(step, now);
        Ok(())
    }

    /// Fails if the root has finished: a rank that comes too late is told how it ended.
    fn check_phase(&self) -> Result<()> {
        match &self.phase {
            Phase::Gather => Ok(()),
            Phase::Failed(error, _) => Err(error.duplicate()),
            Phase::AwaitTable | Phase::Answered(_) => {
                Err(Error::mismatch("all ranks of this id have checked in already: one id makes one communicator"))
            }
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
            NextStep::Answer(table) => self.answer(&table, now),
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
                (Guest::Leader(_), None) => {}
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

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use super::*;
    use crate::bootstrap::auth::{self, Handshake, NO_RANK};
    use crate::bootstrap::checkin::WorldShape;
    use crate::wire::frame::{self, FrameReader};

    fn soon() -> Wait {
        Wait::new(Duration::from_secs(30), &AbortFlag::new())
    }

    fn root() -> (UniqueId, Root) {
        Root::serve(&Options { interfaces: "=lo".parse().unwrap(), ..Options::default() }).unwrap()
    }

    /// A check-in made by hand, so that the test can kill the rank in the middle.
    fn come(id: &UniqueId, rank: u32, world: u32) -> TcpStream {
        let mut stream = TcpStream::connect(id.address()).unwrap();
        stream.set_nodelay(true).unwrap();
        let handshake = Handshake::initiate(id.terms(&Options::default()), Rank::new(rank), NO_RANK).unwrap();
        auth::run(&mut stream, handshake, &soon()).unwrap();
        let address = "127.0.0.1:9".parse().unwrap();
        let shape = WorldShape { world, roots: 1 };
        let check_in = CheckIn { rank: Rank::new(rank), shape, root: 0, left_ms: 30_000, address };
        let mut bytes = Vec::new();
        frame::append(&mut bytes, checkin::CHECK_IN, 0, &check_in.encode());
        stream.write_all(&bytes).unwrap();
        stream
    }

    fn hear(stream: &mut TcpStream) -> Frame {
        let mut reader = FrameReader::new(MAX_ROOT_FRAME_BYTES);
        let wait = soon();
        loop {
            let mut byte = [0; 1];
            match stream.read(&mut byte) {
                Ok(0) => panic!("the root closed without a word"),
                Ok(_) => {
                    if let Some(frame) = reader.next(&mut &byte[..]).unwrap() {
                        return frame;
                    }
                }
                Err(_) => wait.check(|| "the root said nothing".to_owned()).unwrap(),
            }
        }
    }

    /// Checks a rank in, and proves that by a second one with the same number, which is rejected.
    fn seat(id: &UniqueId, rank: u32, world: u32) -> TcpStream {
        let stream = come(id, rank, world);
        let error = checkin::decode_refusal(&hear(&mut come(id, rank, world)).payload);
        assert_eq!((error.kind(), error.peer()), (Kind::Mismatch, Some(rank)));
        assert!(error.message().contains(&format!("two ranks have the number {rank}")), "{error}");
        stream
    }

    #[test]
    fn a_rank_that_dies_after_its_check_in_is_named_to_all_who_come() {
        let (id, root) = root();
        let mut first = seat(&id, 0, 3);
        drop(seat(&id, 1, 3));
        let told = |stream: &mut TcpStream| {
            let error = checkin::decode_refusal(&hear(stream).payload);
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)));
            assert!(error.message().contains("rank 1 has died while the others came"), "{error}");
        };
        told(&mut first);
        // A late rank is told too.
        told(&mut come(&id, 2, 3));
        drop(root);
    }

    #[test]
    fn another_world_is_answered_with_both_sizes_and_harms_nobody() {
        let (id, root) = root();
        let mut first = seat(&id, 0, 2);
        let error = checkin::decode_refusal(&hear(&mut come(&id, 1, 3)).payload);
        assert_eq!(error.kind(), Kind::Mismatch);
        assert!(error.message().contains("3 ranks, rank 0 reported 2"), "{error}");
        let mut second = come(&id, 1, 2);
        for stream in [&mut first, &mut second] {
            let frame = hear(stream);
            assert_eq!(frame.kind, checkin::WELCOME);
            assert_eq!(AddressTable::decode(&frame.payload, 1).unwrap().addresses[0].port(), 9);
        }
        // The root ends by itself once it has sent all answers.
        while !root.is_finished() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_frame_out_of_turn_is_answered_and_closed() {
        let (id, _root) = root();
        let mut stream = seat(&id, 0, 2);
        let mut bytes = Vec::new();
        frame::append(&mut bytes, checkin::TABLE, 0, &[1, 2, 3]);
        stream.write_all(&bytes).unwrap();
        assert!(checkin::decode_refusal(&hear(&mut stream).payload).message().contains("malformed"));
    }

    #[test]
    fn a_root_that_nobody_visits_ends_by_its_lifetime() {
        let options = Options {
            interfaces: "=lo".parse().unwrap(),
            root_lifetime: Duration::from_millis(50),
            ..Options::default()
        };
        let (_, root) = Root::serve(&options).unwrap();
        let wait = soon();
        while !root.is_finished() {
            wait.check(|| "the root does not end".to_owned()).unwrap();
            std::thread::yield_now();
        }
    }
}
