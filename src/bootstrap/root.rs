//! The root: one thread and one poll loop where all ranks check in, and from where each gets what it needs to find the others.
//!
//! Any connection but a rank's own check-in costs only itself: whoever stays silent, talks garbage or does not hold the key
//! is dropped, at the latest after the handshake time-out or when too many such wait. A number that is taken or another
//! world's size is answered with the reason. A rank that dies after its check-in, and the deadline, end the root: everyone
//! present is told why. [`Roster`] decides; this file moves bytes.

use std::collections::{BTreeSet, HashMap};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::bootstrap::auth::{Handshake, NO_RANK, Terms};
use crate::bootstrap::checkin::{self, Block, CheckIn, MAX_ROOT_FRAME_BYTES, Table};
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::link::{End, Link, SCRATCH_BYTES};
use crate::bootstrap::roster::{self, Roster, Step};
use crate::bootstrap::{Options, interface, socket};
use crate::error::{Error, Result};
use crate::sys::poller::{Interest, Poller, Ready};
use crate::sys::{clock, interfaces, limits, random, thread};
use crate::types::Rank;
use crate::wire::frame::Frame;

/// A root that serves. Dropping it ends it; [`Root::detach`] lets it serve until all ranks are served or its deadline passes.
#[derive(Debug)]
pub struct Root {
    /// The thread ends when this end of the pair is closed, unless a byte came before: then it goes on alone.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// The most connections that have not proved themselves; beyond it the oldest is dropped.
const MAX_PENDING: usize = 1024;

/// The most connections accepted before those that are there are looked at again.
const ACCEPTS_AT_ONCE: usize = 64;

/// How long a root stays to send its answers, and a failed one to tell ranks that come late.
const LINGER: Duration = Duration::from_secs(3);

/// How long accepting rests where no descriptor is left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// The open files that a process with a root or many ranks should be allowed.
pub(super) const WANTED_OPEN_FILES: u64 = 1 << 16;

const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_LINK: u64 = 2;

impl Root {
    /// Makes an id and serves it, on the interface that `options` choose.
    ///
    /// # Errors
    /// As [`UniqueId::generate`].
    pub fn serve(options: &Options) -> Result<(UniqueId, Root)> {
        let chosen = interface::choose(&interfaces::list()?, &options.interfaces, options.family, None)?;
        let (listener, address) = socket::listen(interface::address(&chosen[0]))?;
        let id = UniqueId::fresh(address)?;
        tracing::info!(target: "rsccl::bootstrap", interface = %chosen[0].name, %address, "the root serves");
        let root = Root::start(id, listener, options)?;
        Ok((id, root))
    }

    /// Serves the fixed address of `id`.
    pub(super) fn serve_fixed(id: &UniqueId, options: &Options) -> Result<Root> {
        let (listener, _) = socket::listen(id.address())?;
        Root::start(*id, listener, options)
    }

    fn start(id: UniqueId, listener: TcpListener, options: &Options) -> Result<Root> {
        limits::raise_open_files(WANTED_OPEN_FILES)?;
        let pair = |error| Error::system("socketpair", error);
        let (stop, stopped) = UnixStream::pair().map_err(pair)?;
        let poller = Poller::new()?;
        poller.add(listener.as_fd(), LISTENER, Interest::Read)?;
        poller.add(stopped.as_fd(), STOP, Interest::Read)?;
        let now = clock::now();
        let roster = Roster::new(random::bytes()?, options.root_lifetime, options.check_in_timeout, now);
        let service = Service {
            poller,
            listener: Some(listener),
            stopped,
            terms: id.terms(),
            handshake_timeout: options.handshake_timeout,
            roster,
            phase: Phase::Gather,
            clients: HashMap::new(),
            pending: BTreeSet::new(),
            next_token: FIRST_LINK,
            scratch: vec![0; SCRATCH_BYTES],
            rest_until: None,
            dropped: 0,
        };
        let thread = thread::spawn("rsccl root", move || service.run())?;
        Ok(Root { stop: Some(stop), thread: Some(thread) })
    }

    /// Lets it serve on its own.
    pub fn detach(mut self) {
        if let Some(mut stop) = self.stop.take()
            && let Err(error) = stop.write_all(&[0])
        {
            // It has ended already, or ends now with the socket.
            tracing::debug!(target: "rsccl::bootstrap", %error, "the root cannot be detached");
        }
        self.thread = None;
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!(target: "rsccl::bootstrap", "the root's thread panicked");
        }
    }
}

struct Service {
    poller: Poller,
    listener: Option<TcpListener>,
    stopped: UnixStream,
    terms: Terms,
    handshake_timeout: Duration,
    roster: Roster,
    phase: Phase,
    clients: HashMap<u64, Client>,
    /// Those that have not said what they want, oldest first, since tokens count up.
    pending: BTreeSet<u64>,
    next_token: u64,
    scratch: Vec<u8>,
    /// No descriptor was left: do not accept before.
    rest_until: Option<Instant>,
    dropped: u64,
}

struct Client {
    link: Link,
    role: Role,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    /// Has not said what it wants.
    Unknown,
    /// A rank that has checked in.
    Seated(Rank),
    /// The first rank of another root's block.
    Leader(u32),
    /// Has been told all there is to tell; closed once that is sent.
    Told,
}

#[derive(Debug)]
enum Phase {
    /// Ranks come.
    Gather,
    /// The block is whole; the table of all ranks is awaited.
    AwaitTable,
    /// Everyone has been told this; those who come late are told too, until then.
    Failed(Error, Instant),
    /// Everyone has been answered; the answers are being sent, until then.
    Answered(Instant),
}

impl Service {
    fn run(mut self) {
        let started = clock::now();
        let mut ready = Ready::default();
        loop {
            let now = clock::now();
            if self.is_over(now) {
                break;
            }
            let outcome = self.poller.wait(&mut ready, self.next_moment().saturating_duration_since(now));
            if let Err(error) = outcome {
                tracing::warn!(target: "rsccl::bootstrap", %error, "the root cannot poll");
                break;
            }
            if ready.iter().any(|event| event.token == STOP) && !self.is_detached() {
                break;
            }
            let now = clock::now();
            for event in ready.iter() {
                match event.token {
                    STOP => {}
                    LISTENER => self.accept(now),
                    token => self.serve(token, event.readable, now),
                }
            }
            self.expire(clock::now());
        }
        let seconds = clock::now().saturating_duration_since(started).as_secs_f64();
        let world = self.roster.shape().map(|shape| shape.world);
        tracing::info!(target: "rsccl::bootstrap", ?world, seconds, strangers = self.dropped, "the root has ended");
    }

    /// The owner's socket has something to say: a byte means to go on alone, its end means to end.
    fn is_detached(&mut self) -> bool {
        let detached = matches!(self.stopped.read(&mut [0]), Ok(1));
        detached && self.poller.remove(self.stopped.as_fd()).is_ok()
    }

    fn is_over(&self, now: Instant) -> bool {
        match &self.phase {
            Phase::Gather => self.roster.is_empty() && now >= self.roster.deadline(),
            Phase::AwaitTable => false,
            Phase::Failed(_, until) => now >= *until,
            Phase::Answered(until) => now >= *until || self.clients.values().all(|client| client.role != Role::Told),
        }
    }

    /// When to look again though nothing happens.
    fn next_moment(&self) -> Instant {
        let phase = match &self.phase {
            Phase::Gather | Phase::AwaitTable => self.roster.deadline(),
            Phase::Failed(_, until) | Phase::Answered(until) => *until,
        };
        let oldest = self.pending.first().and_then(|token| self.clients.get(token));
        let handshake = oldest.and_then(|client| client.link.handshake_until);
        [handshake, self.rest_until].into_iter().flatten().fold(phase, Instant::min)
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let Some(listener) = &self.listener else { return };
            match socket::accept(listener) {
                Ok(Some((stream, from))) => self.admit(stream, from, now),
                Ok(None) => return,
                // Whoever waits longest for nothing makes room.
                Err(error) if limits::is_exhausted(&error) && self.drop_oldest_pending() => return,
                Err(error) => {
                    tracing::warn!(target: "rsccl::bootstrap", %error, "the root cannot accept for now");
                    return self.rest(now);
                }
            }
        }
    }

    fn admit(&mut self, stream: TcpStream, from: SocketAddr, now: Instant) {
        while self.pending.len() >= MAX_PENDING {
            self.drop_oldest_pending();
        }
        let handshake = Handshake::respond(self.terms.clone(), NO_RANK);
        let mut link = Link::accepted(stream, from, handshake, MAX_ROOT_FRAME_BYTES);
        link.handshake_until = Some(now + self.handshake_timeout);
        link.told = Interest::Read;
        let token = self.next_token;
        self.next_token += 1;
        if self.poller.add(link.fd(), token, Interest::Read).is_ok() {
            self.clients.insert(token, Client { link, role: Role::Unknown });
            self.pending.insert(token);
        }
    }

    /// Stops accepting for a moment, so that a connection that cannot be accepted does not make the loop spin.
    fn rest(&mut self, now: Instant) {
        let Some(listener) = &self.listener else { return };
        let outcome = self.poller.modify(listener.as_fd(), LISTENER, Interest::None);
        self.rest_until = outcome.is_ok().then_some(now + EXHAUSTED_PAUSE);
    }

    /// Drops the connection that has gone longest without proof; false where there is none.
    fn drop_oldest_pending(&mut self) -> bool {
        let Some(token) = self.pending.pop_first() else { return false };
        self.clients.remove(&token);
        self.dropped += 1;
        true
    }

    fn serve(&mut self, token: u64, readable: bool, now: Instant) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        let mut frames = Vec::new();
        let outcome = if readable { client.link.read(&mut self.scratch, &mut frames) } else { Ok(()) }
            .and_then(|()| client.link.flush());
        for frame in frames {
            self.frame(token, &frame, now);
        }
        match outcome {
            Ok(()) => self.settle(token),
            Err(end) => self.end(token, &end, now),
        }
    }

    /// Tells the poller what the link waits for now; closes it where nothing is left to say.
    fn settle(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        if client.role == Role::Told && client.link.unsent() == 0 {
            client.link.finish();
            self.clients.remove(&token);
            return;
        }
        let wanted = client.link.interest();
        if wanted != client.link.told && self.poller.modify(client.link.fd(), token, wanted).is_ok() {
            client.link.told = wanted;
        }
    }

    fn end(&mut self, token: u64, end: &End, now: Instant) {
        let Some(client) = self.clients.remove(&token) else { return };
        self.pending.remove(&token);
        let gathering = matches!(self.phase, Phase::Gather | Phase::AwaitTable);
        let first = |root| self.roster.shape().map(|shape| shape.first(root));
        match client.role {
            Role::Seated(rank) if gathering => self.fail(self.roster.lost(rank, &end.to_string()), now),
            Role::Leader(root) if gathering => {
                if let Some(rank) = first(root) {
                    self.fail(self.roster.lost(rank, &end.to_string()), now);
                }
            }
            Role::Unknown => {
                self.dropped += 1;
                tracing::debug!(target: "rsccl::bootstrap", from = %client.link.address, why = %end, "a stranger is dropped");
            }
            Role::Seated(_) | Role::Leader(_) | Role::Told => {}
        }
    }

    fn frame(&mut self, token: u64, frame: &Frame, now: Instant) {
        let Some(client) = self.clients.get(&token) else { return };
        let (role, from) = (client.role, client.link.address);
        let outcome = match (role, frame.kind) {
            (Role::Unknown, checkin::CHECK_IN) => self.check_in(token, frame, from, now),
            (Role::Unknown, checkin::BLOCK) => self.block(token, frame, now),
            (Role::Seated(rank), checkin::TABLE) if self.roster.first() == Some(rank) => self.table(frame, now),
            (Role::Seated(rank), checkin::REFUSAL) if self.roster.first() == Some(rank) => {
                self.fail(checkin::decode_refusal(&frame.payload), now);
                Ok(())
            }
            _ => Err(checkin::unexpected(frame)),
        };
        if let Err(error) = outcome {
            tracing::warn!(target: "rsccl::bootstrap", %from, %error, "the root turns a rank away");
            self.tell(token, checkin::REFUSAL, &checkin::encode_refusal(&error));
        }
    }

    fn check_in(&mut self, token: u64, frame: &Frame, from: SocketAddr, now: Instant) -> Result<()> {
        let check_in = CheckIn::decode(&frame.payload)?;
        self.check_phase()?;
        let step = self.roster.check_in(&check_in, from, now)?;
        self.seat(token, Role::Seated(check_in.rank));
        self.take_step(step, now);
        Ok(())
    }

    fn block(&mut self, token: u64, frame: &Frame, now: Instant) -> Result<()> {
        let block = Block::decode(&frame.payload)?;
        self.check_phase()?;
        let root = block.root;
        let step = self.roster.block(block, now)?;
        self.seat(token, Role::Leader(root));
        self.take_step(step, now);
        Ok(())
    }

    /// Whoever comes after the end is told how it ended.
    fn check_phase(&self) -> Result<()> {
        match &self.phase {
            Phase::Gather => Ok(()),
            Phase::Failed(error, _) => Err(error.duplicate()),
            Phase::AwaitTable | Phase::Answered(_) => {
                Err(Error::mismatch("all ranks of this id have come already: an id makes one communicator"))
            }
        }
    }

    fn seat(&mut self, token: u64, role: Role) {
        self.pending.remove(&token);
        if let Some(client) = self.clients.get_mut(&token) {
            client.role = role;
        }
    }

    fn take_step(&mut self, step: Step, now: Instant) {
        match step {
            Step::Wait => {}
            Step::Report(block) => {
                self.phase = Phase::AwaitTable;
                let first = self.roster.first();
                let leader = self.clients.iter().find(|(_, client)| Some(client.role) == first.map(Role::Seated));
                if let Some(token) = leader.map(|(token, _)| *token) {
                    self.queue(token, checkin::BLOCK, &block.encode());
                }
            }
            Step::Answer(table) => self.answer(&table, now),
        }
    }

    /// Root 0 has answered the first rank of this block.
    fn table(&mut self, frame: &Frame, now: Instant) -> Result<()> {
        let world = self.roster.shape().map_or(0, |shape| shape.world);
        let table = Table::decode(&frame.payload, Rank::new(world).index())?;
        if matches!(self.phase, Phase::AwaitTable) {
            self.answer(&table, now);
        }
        Ok(())
    }

    fn answer(&mut self, table: &Table, now: Instant) {
        self.phase = Phase::Answered(now + LINGER);
        // Nobody else is to come; what waits in the backlog is turned away by its end.
        self.listener = None;
        let roles: Vec<_> = self.clients.iter().map(|(token, client)| (*token, client.role)).collect();
        let whole = roles.iter().any(|(_, role)| matches!(role, Role::Leader(_))).then(|| table.encode());
        for (token, role) in roles {
            match (role, &whole) {
                (Role::Seated(rank), _) => self.tell(token, checkin::WELCOME, &roster::welcome(table, rank).encode()),
                (Role::Leader(_), Some(whole)) => self.tell(token, checkin::TABLE, whole),
                (Role::Leader(_) | Role::Unknown | Role::Told, _) => {}
            }
        }
    }

    fn fail(&mut self, error: Error, now: Instant) {
        tracing::warn!(target: "rsccl::bootstrap", %error, "the root gives up");
        let refusal = checkin::encode_refusal(&error);
        self.phase = Phase::Failed(error, now + LINGER);
        let seated = self.clients.iter().filter(|(_, client)| matches!(client.role, Role::Seated(_) | Role::Leader(_)));
        let seated: Vec<_> = seated.map(|(token, _)| *token).collect();
        for token in seated {
            self.tell(token, checkin::REFUSAL, &refusal);
        }
    }

    /// Sends the last word to a client.
    fn tell(&mut self, token: u64, kind: u8, payload: &[u8]) {
        self.seat(token, Role::Told);
        self.queue(token, kind, payload);
    }

    fn queue(&mut self, token: u64, kind: u8, payload: &[u8]) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.link.queue(kind, 0, payload);
        if client.link.flush().is_ok() {
            self.settle(token);
        } else {
            self.clients.remove(&token);
        }
    }

    fn expire(&mut self, now: Instant) {
        let is_due = |client: &Client| client.link.handshake_until.is_some_and(|until| now >= until);
        while self.pending.first().is_some_and(|token| self.clients.get(token).is_none_or(is_due)) {
            self.drop_oldest_pending();
        }
        if self.rest_until.is_some_and(|until| now >= until) {
            let listening = self.listener.as_ref().map(|l| self.poller.modify(l.as_fd(), LISTENER, Interest::Read));
            self.rest_until = listening.is_some_and(|outcome| outcome.is_err()).then_some(now + EXHAUSTED_PAUSE);
        }
        if matches!(self.phase, Phase::Gather | Phase::AwaitTable)
            && !self.roster.is_empty()
            && now >= self.roster.deadline()
        {
            self.fail(self.roster.overdue(now), now);
        }
    }
}
