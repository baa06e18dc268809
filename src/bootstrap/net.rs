//! [`NetBootstrap`]: ranks anywhere, over TCP.
//!
//! Joining: each rank listens, checks in with its root and gets the addresses of its neighbours in the `graph`, of
//! which no rank has more than six. Each pair of them connects, and one all-gather over these connections distributes
//! all addresses. A rank takes part in it once all its own connections have proved themselves, so its end proves those
//! of all ranks: a connection that ends later means that a rank is gone, not that it was slow to connect. These
//! connections stay open; the first message to any other rank opens one more. The `door` of the process accepts, and no
//! thread moves bytes: a waiting call moves those of all connections, and [`Bootstrap::poll`] moves them without
//! waiting.
//!
//! An address may lead nowhere, as behind NAT or a firewall: `control::call_back` says who connects then.
//!
//! A connection that ends without goodbye means a death. Deaths, goodbyes and published notes are gossip: each rank
//! forwards each of them once over all its connections, so they reach everyone in ⌈log₃ N⌉ hops, or in a few more if
//! some ranks are gone. `control::parting` says what becomes of the graph when ranks leave.

mod absent;
mod call_backs;
mod children;
mod control;
mod gossip;
mod join;
mod shared;
mod shortage;

use std::any::Any;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::bootstrap::auth::{Purpose, Terms};
use crate::bootstrap::checkin::ranges;
use crate::bootstrap::collective::{self, ChildKind, Mesh, Participants};
use crate::bootstrap::door::DoorSeat;
use crate::bootstrap::graph;
use crate::bootstrap::id::{self, UniqueId};
use crate::bootstrap::inbox::{Channel, Inbox};
use crate::bootstrap::local::{check_message, waited_for};
use crate::bootstrap::{
    Agreed, BackgroundWork, Bootstrap, Event, Listen, MAX_NOTE_BYTES, MakeChild, Options, Root, cause, spent,
};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Arc, AtomicU32, Mutex, Ordering};
use crate::sync::{Chime, Deadline, Wait};
use crate::sys::clock;
use crate::sys::limits::OpenFiles;
use crate::types::{Rank, World};
use crate::wire::{ADDRESS_BYTES, Reader, Writer};
pub(crate) use children::{in_child, in_parent};
use control::ControlPlane;
pub(crate) use join::JoinError;
use shared::Shared;

/// One rank of a world that is connected by TCP. If it is dropped without [`Bootstrap::close`], the peers see that the
/// rank has died.
#[derive(Debug)]
pub struct NetBootstrap {
    world: World,
    terms: Terms,
    interface: SocketAddr,
    control: Shared<ControlPlane>,
    sequence: AtomicU32,
    splits: AtomicU32,
    /// For each set of survivors (by its number), how often a shrink to it was tried.
    attempts: Mutex<HashMap<u32, u32>>,
    options: Options,
    _files: OpenFiles,
    /// What lives as long as this.
    held: Option<Box<dyn Any + Send + Sync>>,
}

/// How long a sleep lasts that neither the abort flag nor a thread that needs the connections can end.
const ABORT_CHECK: Duration = Duration::from_millis(20);

/// How long a sleep lasts that these end, for each rank of the world and at most. Nothing depends on its end but the
/// clock, which takes a stop of the process inside a sleep for time that it ran. Ranks that wait are often on few processors, where thousands of
/// them that wake up every 20 ms do nothing else.
const NAP_A_RANK: Duration = Duration::from_micros(250);
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// A sleep is at most this part of what is left of its wait.
const NAPS_LEFT: u32 = 8;

/// The descriptors of a communicator that a world of one has too.
const FILES: u64 = 16;

/// Those for each rank: two connections of the control plane while one takes another's place, memory, data.
const FILES_PER_RANK: u64 = 8;

/// The most unsent bytes for one peer; with more, a send waits.
const MAX_UNSENT_BYTES: usize = 1 << 20;

/// How long a close waits until the kernel has taken what was sent.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a rank that fails in init waits for its neighbours to connect, so that it can tell them why.
const GIVE_UP_PATIENCE: Duration = Duration::from_secs(2);

impl NetBootstrap {
    /// Joins the world that `ids` name, as rank `rank` of `size`. Every rank passes the same ids in the same order, and
    /// the same size. One id is the normal case; with several, each serves a contiguous block of ranks, which speeds up
    /// large worlds.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for an impossible rank, size or number of ids;
    /// [`crate::error::Kind::InvalidUsage`] if no interface is usable; [`crate::error::Kind::Mismatch`] if the rank's
    /// number is taken or ranks disagree about the world; [`crate::error::Kind::Timeout`] with the missing ranks, or if
    /// the root cannot be reached; [`crate::error::Kind::Remote`] if a rank died meanwhile.
    pub fn join(ids: &[UniqueId], rank: Rank, size: u32, options: &Options, wait: &Wait) -> Result<NetBootstrap> {
        NetBootstrap::try_join(ids, World { rank, size }, options, wait).map_err(|failed| failed.error)
    }

    /// [`NetBootstrap::join`] for a caller that may find another id.
    pub(crate) fn try_join(
        ids: &[UniqueId],
        World { rank, size }: World,
        options: &Options,
        wait: &Wait,
    ) -> Result<NetBootstrap, JoinError> {
        let named = |error: Error| error.at(rank).during("init");
        let joined = join::check_in(ids, rank, size, options, wait).map_err(|failed| {
            if failed.is_late || failed.error.kind() == Kind::Timeout {
                ids.iter().for_each(spent::note);
            }
            // No time is left, or others are at fault: this rank does not use these ids again. After a fault of its own
            // it may.
            if matches!(failed.error.kind(), Kind::Timeout | Kind::Aborted | Kind::Remote) {
                ids.iter().for_each(Root::give_up);
            }
            JoinError { error: named(failed.error), ..failed }
        })?;
        let started = clock::now();
        let key = id::communicator_key(ids, &joined.welcome.session);
        let world = World { rank, size };
        let bootstrap = NetBootstrap::open(world, key, joined.own, options);
        bootstrap.connect_neighbours(joined.welcome.addresses.iter().copied(), |_| false);
        if let Err(error) = bootstrap.gather_addresses(&wait.clone().with_notes(Some(cause::failure_reader()))) {
            let error = bootstrap.with_neither_way(error).at(rank).during("init");
            bootstrap.give_up(&error);
            return Err(error.into());
        }
        let (check_in, connect) = (joined.seconds, clock::now().saturating_duration_since(started).as_secs_f64());
        log::detail!(
            Bootstrap @ rank,
            "Bootstrap timings total {:.6} (check-in {check_in:.6}, connect {connect:.6})", check_in + connect
        );
        Ok(bootstrap)
    }

    fn open(world: World, key: [u8; 32], own: Own, options: &Options) -> NetBootstrap {
        let communicator = collective::id_of(&key);
        let terms = Terms { key, purpose: Purpose::Peer, communicator, job: None, encryption: options.encryption };
        let interface = own.interface;
        let files = OpenFiles::need(FILES + FILES_PER_RANK * u64::from(world.size));
        if let Some((found, set)) = files.raised() {
            log::info!(
                Bootstrap @ world.rank,
                "the limit of open files is raised from {found} to {set} until the last communicator has ended"
            );
        }
        let control = ControlPlane::new(world, terms.clone(), own, options);
        NetBootstrap {
            world,
            terms,
            interface,
            control: Shared::new(control),
            sequence: AtomicU32::new(0),
            splits: AtomicU32::new(0),
            attempts: Mutex::default(),
            options: options.clone(),
            _files: files,
            held: None,
        }
    }

    /// Keeps `what` for as long as this lives.
    pub(crate) fn hold(&mut self, what: impl Any + Send + Sync) {
        self.held = Some(Box::new(what));
    }

    /// The `error` of an init. It may come from a rank that only waits for others: this one says what it knows of ranks
    /// that are reached in neither direction.
    fn with_neither_way(&self, error: Error) -> Error {
        let words = self.control.lock().neither_way();
        match words.filter(|words| !error.message().contains(words)) {
            Some(words) => error.advising(&words),
            None => error,
        }
    }

    /// Begins to connect to the neighbours, which listen at `addresses`. Those that `cannot_dial` names do not reach
    /// this rank.
    fn connect_neighbours(&self, addresses: impl Iterator<Item = SocketAddr>, cannot_dial: impl Fn(Rank) -> bool) {
        let mut control = self.control.lock();
        for (neighbour, address) in graph::neighbours(self.world.rank, self.world.size).iter().zip(addresses) {
            control.set_address(neighbour.rank, address);
            match neighbour.dial {
                true => control.dial(neighbour.rank),
                false if cannot_dial(neighbour.rank) => control.call(neighbour.rank),
                false => control.await_from(neighbour.rank),
            }
        }
    }

    /// Whether the connections with all neighbours have proved themselves.
    ///
    /// # Errors
    /// As a wait for a message of a neighbour, if one is gone or any rank has failed.
    fn are_neighbours_linked(&self, wait: &Wait) -> Result<bool> {
        let control = self.control.lock();
        self.linked(&control, wait).map(|missing| missing.is_none())
    }

    /// A neighbour without a connection that has proved itself.
    fn linked(&self, control: &ControlPlane, wait: &Wait) -> Result<Option<Rank>> {
        let neighbours = graph::neighbours(self.world.rank, self.world.size).into_iter();
        let Some(missing) = neighbours.map(|neighbour| neighbour.rank).find(|peer| !control.has_link(*peer)) else {
            return Ok(None);
        };
        // Look for a cause first: the neighbour may have left because of it.
        wait.read(control.inbox().notes())?;
        control.inbox().check_dead(|_| true)?;
        control.inbox().gone(missing).map_or(Ok(()), |gone| Err(gone.error(missing)))?;
        control.check_reach(Some(missing))?;
        Ok(Some(missing))
    }

    /// In words, for a wait for the connections with the neighbours.
    fn waited_for_neighbours(&self) -> String {
        let control = self.control.lock();
        let neighbours = graph::neighbours(self.world.rank, self.world.size).into_iter();
        let missing =
            neighbours.map(|neighbour| neighbour.rank.get()).filter(|peer| !control.has_link(Rank::new(*peer)));
        control.with_hindrance(format!("waited for the connections with ranks {}", ranges(missing)))
    }

    fn gather_addresses(&self, wait: &Wait) -> Result<()> {
        let words = |control: &ControlPlane| match self.linked(control, &wait.clone().with_notes(None)) {
            Ok(Some(peer)) => format!("waited for the connection with rank {peer}"),
            Ok(None) | Err(_) => "waited for the connections with its neighbours".to_owned(),
        };
        self.until(wait, words, |control| Ok(self.linked(control, wait)?.is_none().then_some(())))?;
        let mut mine = Writer::with_capacity(ADDRESS_BYTES);
        mine.address(&self.control.lock().address());
        let read = |all: Vec<&[u8]>| -> Result<Vec<SocketAddr>> {
            let each = self.world.ranks().zip(all);
            each.map(|(peer, bytes)| read_address(bytes).map_err(|error| error.about(peer))).collect()
        };
        let gather = |group: &_| collective::all_gather_with(self, group, (mine.as_slice(), wait), read);
        // Behind the collective: what this rank passes on to others leaves also where an address cannot be read.
        let addresses = self.collective(wait, gather)?.map_err(|error| error.at(self.world.rank))?;
        let mut control = self.control.lock();
        self.world.ranks().zip(addresses).for_each(|(peer, address)| control.set_address(peer, address));
        Ok(())
    }

    fn next_group(&self) -> Participants {
        // Relaxed: one thread at a time begins collectives; only the number counts.
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        Participants::all(self.world.rank, self.world.size, sequence)
    }

    fn check_peer(&self, peer: Rank) -> Result<()> {
        if peer.get() < self.world.size {
            return Ok(());
        }
        Err(Error::invalid_argument(format!("rank {peer} is out of range: the world has {} ranks", self.world.size))
            .at(self.world.rank))
    }

    /// Drives the connections until `done` yields a value.
    ///
    /// One thread at a time should wait so: of two, each would end the sleep of the other to get the lock, and none
    /// would sleep.
    fn until<T>(
        &self,
        wait: &Wait,
        waiting_for: impl Fn(&ControlPlane) -> String,
        mut done: impl FnMut(&mut ControlPlane) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut control = self.control.lock();
        let chime = Chime::of_thread();
        let mut is_heard = false;
        loop {
            // First, so that what rings behind the looks at what it rings for ends the sleep.
            let heard = chime.count();
            control.check_open()?;
            if let Some(value) = done(&mut control)? {
                return Ok(value);
            }
            let moves = control.moves();
            // Unlocked: the check calls the program's hook, and other threads may want to look at their peers.
            drop(control);
            if !std::mem::replace(&mut is_heard, true) {
                wait.abort.mirror(&chime);
            }
            wait.check(|| {
                let control = self.control.lock();
                control.with_hindrance(waiting_for(&control))
            })?;
            self.control.give_way();
            control = self.control.lock();
            // Where another thread has moved bytes meanwhile, what this one waits for may be here: it looks before it
            // sleeps.
            if control.moves() == moves {
                let may_sleep = self.control.may_sleep(&chime);
                let nap = nap(&self.options, self.world.size, wait);
                let limit = if may_sleep { wait.slice(nap) } else { Duration::ZERO };
                control.drive_behind((&chime, heard), limit)?;
            }
        }
    }

    /// Waits until the connections have taken all bytes for `only`, or for all living ranks. A caller that then waits
    /// for something else does not drive these connections, so the bytes must have left before it returns.
    fn settle_with(&self, only: Option<Rank>, wait: &Wait) -> Result<()> {
        let busy = |control: &ControlPlane| match only {
            Some(peer) => Some(peer).filter(|_| control.unsent(peer) > 0 && control.inbox().gone(peer).is_none()),
            None => control.busy(),
        };
        let words = |control: &ControlPlane| match busy(control) {
            Some(peer) => format!("waited for rank {peer} to take what was sent to it"),
            None => "waited for what was sent to leave".to_owned(),
        };
        let settled = self.until(wait, words, |control| match busy(control) {
            Some(peer) => control.check_reach(Some(peer)).map(|()| None),
            None => Ok(Some(())),
        });
        settled.map_err(|error| {
            let busy = busy(&self.control.lock());
            busy.into_iter().fold(error, Error::about).at(self.world.rank)
        })
    }

    /// Runs one collective until all its bytes have been sent.
    fn collective<T>(&self, wait: &Wait, run: impl FnOnce(&Participants) -> Result<T>) -> Result<T> {
        let outcome = run(&self.next_group()).map_err(|error| error.at(self.world.rank))?;
        self.settle_with(None, wait)?;
        Ok(outcome)
    }

    fn take_unless(
        &self,
        peer: Rank,
        channel: Channel,
        wait: &Wait,
        in_vain: impl Fn(&Inbox) -> Result<()>,
    ) -> Result<Vec<u8>> {
        self.check_peer(peer)?;
        let words = |_: &ControlPlane| waited_for(peer, channel);
        let taken = self.until(wait, words, |control| {
            if let Some(bytes) = control.take(peer, channel) {
                return Ok(Some(bytes));
            }
            // Look for a cause first: the peer that this rank waits for may have left because of it.
            wait.read(control.inbox().notes())?;
            in_vain(control.inbox())?;
            control.inbox().check(peer, channel)?;
            control.check_reach(Some(peer))?;
            Ok(None)
        });
        taken.map_err(|error| error.about(peer).at(self.world.rank))
    }

    fn try_take_unless(
        &self,
        peer: Rank,
        channel: Channel,
        in_vain: impl Fn(&Inbox) -> Result<()>,
    ) -> Result<Option<Vec<u8>>> {
        self.check_peer(peer)?;
        let mut control = self.control.lock();
        if let Some(bytes) = control.take(peer, channel) {
            return Ok(Some(bytes));
        }
        control.drive(Duration::ZERO)?;
        let taken = control.take(peer, channel);
        if taken.is_none() {
            let outcome = in_vain(control.inbox()).and_then(|()| control.inbox().check(peer, channel));
            let outcome = outcome.and_then(|()| control.check_reach(Some(peer)));
            outcome.map_err(|error| error.about(peer).at(self.world.rank))?;
        }
        Ok(taken)
    }

    /// One exchange in which any rank may say that it has failed.
    fn agree_in(&self, group: (&Participants, u8), mine: Result<Vec<u8>>, wait: &Wait) -> Agreed<Vec<Vec<u8>>> {
        let agreed = collective::agree(self, group, mine, wait).map_err(|error| error.at(self.world.rank))?;
        self.settle_with(None, wait)?;
        Ok(agreed.map_err(|error| error.at(self.world.rank)))
    }
}

/// Where this rank listens.
#[derive(Debug)]
struct Own {
    /// The interface's address, port 0.
    interface: SocketAddr,
    seat: DoorSeat,
}

/// How long a rank of a world of `size` sleeps at most where the abort flag ends the sleep. A stop of the process inside
/// a sleep counts as time that it ran: it must not be most of what is left of the wait.
fn nap(options: &Options, size: u32, wait: &Wait) -> Duration {
    let longest = options.longest_nap.unwrap_or_else(|| longest_nap(size));
    let left = wait.deadline.remaining(clock::now()).unwrap_or(Duration::MAX);
    longest.min((left / NAPS_LEFT).max(ABORT_CHECK))
}

/// How long such a sleep lasts in a world of `size` ranks, if nothing else says so.
fn longest_nap(size: u32) -> Duration {
    NAP_A_RANK.saturating_mul(size).clamp(ABORT_CHECK, LONGEST_NAP)
}

/// Decodes an address.
fn read_address(bytes: &[u8]) -> Result<SocketAddr> {
    let mut reader = Reader::new(bytes, "an address");
    let address = reader.address()?;
    reader.finish()?;
    Ok(address)
}

pub(super) fn decode_anything(bytes: &[u8]) {
    let _refused = gossip::Gossip::decode_all(bytes);
    let _refused = read_address(bytes);
}

impl Mesh for NetBootstrap {
    fn put(&self, peer: Rank, channel: Channel, bytes: &[u8], wait: &Wait) -> Result<()> {
        self.check_peer(peer)?;
        let words = |_: &ControlPlane| format!("waited for rank {peer} to take what was sent to it");
        let sent = self.until(wait, words, |control| {
            if let Some(gone) = control.inbox().gone(peer) {
                return Err(control.inbox().cause(channel, wait).unwrap_or_else(|| gone.error(peer)));
            }
            if control.unsent(peer) > MAX_UNSENT_BYTES {
                control.check_reach(Some(peer))?;
                return Ok(None);
            }
            control.put(peer, channel, bytes).map(Some)
        });
        sent.map_err(|error| error.about(peer).at(self.world.rank))
    }

    fn take(&self, peer: Rank, channel: Channel, group: &Participants, wait: &Wait) -> Result<Vec<u8>> {
        self.take_unless(peer, channel, wait, |inbox| inbox.check_dead(|rank| group.contains(rank)))
    }

    fn try_take(&self, peer: Rank, channel: Channel, group: &Participants) -> Result<Option<Vec<u8>>> {
        self.try_take_unless(peer, channel, |inbox| inbox.check_dead(|rank| group.contains(rank)))
    }
}

impl Bootstrap for NetBootstrap {
    fn world(&self) -> World {
        self.world
    }

    fn id(&self) -> u64 {
        self.terms.communicator
    }

    fn key(&self) -> [u8; 32] {
        self.terms.key
    }

    fn interface(&self) -> SocketAddr {
        self.interface
    }

    fn all_gather(&self, mine: &[u8], wait: &Wait) -> Result<Vec<Vec<u8>>> {
        self.collective(wait, |group| collective::all_gather(self, group, mine, wait))
    }

    fn agree(&self, mine: Result<Vec<u8>>, wait: &Wait) -> Agreed<Vec<Vec<u8>>> {
        self.agree_in((&self.next_group(), collective::ALL_GATHER), mine, wait)
    }

    fn broadcast(&self, root: Rank, bytes: &[u8], wait: &Wait) -> Result<Vec<u8>> {
        self.collective(wait, |group| collective::broadcast(self, group, root, bytes, wait))
    }

    fn barrier(&self, wait: &Wait) -> Result<()> {
        self.collective(wait, |group| collective::barrier(self, group, wait))
    }

    fn meet(&self, call: &str, wait: &Wait, background: Option<BackgroundWork<'_>>) -> Result<()> {
        self.collective(wait, |group| collective::meet(self, group, call, (wait, background)))
    }

    fn hindrance(&self) -> Option<String> {
        self.control.lock().hindrance()
    }

    fn exchanges(&self) -> u64 {
        // Relaxed: only the number counts.
        self.sequence.load(Ordering::Relaxed).into()
    }

    fn send(&self, peer: Rank, tag: u32, bytes: &[u8], wait: &Wait) -> Result<()> {
        self.post(peer, tag, bytes, wait)?;
        self.settle(peer, wait)
    }

    fn post(&self, peer: Rank, tag: u32, bytes: &[u8], wait: &Wait) -> Result<()> {
        check_message(bytes)?;
        self.put(peer, Channel::Message(tag), bytes, wait)
    }

    fn settle(&self, peer: Rank, wait: &Wait) -> Result<()> {
        self.settle_with(Some(peer), wait)
    }

    fn recv(&self, peer: Rank, tag: u32, wait: &Wait) -> Result<Vec<u8>> {
        self.take_unless(peer, Channel::Message(tag), wait, |_| Ok(()))
    }

    fn try_recv(&self, peer: Rank, tag: u32) -> Result<Option<Vec<u8>>> {
        self.try_take_unless(peer, Channel::Message(tag), |_| Ok(()))
    }

    fn take_from_any(&self, tag: u32) -> Option<(Rank, Vec<u8>)> {
        // While another thread waits in the bootstrap, this one asks again later.
        let mut control = self.control.try_lock()?;
        let from = control.inbox().sender_on(Channel::Message(tag))?;
        control.take(from, Channel::Message(tag)).map(|bytes| (from, bytes))
    }

    fn split_with(&self, part: Result<(Option<u32>, i64)>, make: MakeChild<'_>, wait: &Wait) -> Agreed<()> {
        // Relaxed: one thread at a time splits; only the number counts.
        let count = self.splits.fetch_add(1, Ordering::Relaxed);
        let part = part.and_then(|(color, key)| {
            let place = color.map(|color| self.prepare().map(|place| (color, place))).transpose()?;
            Ok((place, key))
        });
        let mut mine = None;
        let entry = part.map(|(place, key)| {
            let mut address = Writer::with_capacity(ADDRESS_BYTES);
            place.iter().for_each(|(_, place)| _ = address.address(&place.own.seat.address()));
            let color = place.as_ref().map(|(color, _)| *color);
            mine = place;
            collective::split_entry(color, key, address.as_slice())
        });
        let told = match self.agree_in((&self.next_group(), collective::SPLIT), entry, wait)? {
            Ok(told) => told,
            Err(error) => return Ok(Err(error)),
        };
        let made = match mine {
            Some((color, place)) => {
                let members = collective::split_members(&told, color)?.into_iter().map(Ok);
                self.make_child(ChildKind::Split(count, color), members, (place, make), wait)?
            }
            None => Ok(()),
        };
        let settled = self.agree_in((&self.next_group(), collective::VERDICT), made.map(|()| Vec::new()), wait)?;
        Ok(settled.map(drop))
    }

    fn shrink_with(&self, excluded: &[Rank], ready: Result<()>, make: MakeChild<'_>, wait: &Wait) -> Agreed<()> {
        let members = collective::survivors(self.world.rank, self.world.size, excluded)?;
        let attempt = {
            let mut attempts = self.attempts.lock();
            let attempt = attempts.entry(collective::shrink_number(&members, 0)).or_default();
            *attempt += 1;
            *attempt
        };
        let number = collective::shrink_number(&members, attempt);
        let group = Participants::survivors(members.clone(), self.world.rank, number)?;
        let mut mine = None;
        let entry = ready.and_then(|()| self.prepare()).map(|place| {
            let mut address = Writer::with_capacity(ADDRESS_BYTES);
            address.address(&place.own.seat.address());
            mine = Some(place);
            collective::shrink_entry(excluded, address.as_slice())
        });
        let told = self.agree_in((&group, collective::ALL_GATHER), entry, wait).map_err(|error| {
            let control = self.control.lock();
            let other = control.inbox().other_shrink(number, &error);
            let error = collective::differing_lists(error, excluded, other);
            error.at(self.world.rank).during("shrink")
        })?;
        let (told, place) = match (told, mine) {
            (Err(error), _) => return Ok(Err(error)),
            (Ok(told), Some(place)) => (told, place),
            (Ok(_), None) => return Err(Error::internal("a shrink that nobody has prepared")),
        };
        let addresses = told.iter().map(|entry| Ok(collective::shrink_parts(entry)?.1));
        let members = members.into_iter().zip(addresses);
        let members = members.map(|(rank, address): (Rank, Result<_>)| match address {
            Ok(address) => Ok((rank, address)),
            Err(error) => Err(error.about(rank)),
        });
        let made = self.make_child(ChildKind::Shrink(number), members, (place, make), wait)?;
        let settled = self.agree_in((&group, collective::VERDICT), made.map(|()| Vec::new()), wait)?;
        Ok(settled.map(drop))
    }

    /// Also waits a little for neighbours that are not connected yet: otherwise they would only see that this rank has
    /// gone.
    fn give_up(&self, error: &Error) {
        let neighbours = graph::neighbours(self.world.rank, self.world.size);
        let mut control = self.control.lock();
        if !matches!(error.kind(), Kind::Timeout | Kind::Aborted) {
            control.await_links(neighbours.iter().map(|neighbour| neighbour.rank), Deadline::after(GIVE_UP_PATIENCE));
        }
        control.give_up(&cause::failure_note(error), CLOSE_TIMEOUT);
    }

    fn publish(&self, note: &[u8]) {
        // The service thread does this too, and never waits.
        self.control.leave(note[..note.len().min(MAX_NOTE_BYTES)].to_vec());
    }

    fn poll(&self) -> Vec<Event> {
        // A thread that waits has the control for as long as it sleeps, and sees the news itself.
        self.control.try_lock().map_or_else(Vec::new, |mut control| control.poll())
    }

    fn await_news(&self, chime: &Arc<Chime>, asks: u32, listen: Listen<'_>) -> Result<Option<Duration>> {
        self.control.lock().await_news(chime, asks, listen)
    }

    fn is_linked(&self, peer: Rank) -> bool {
        self.control.try_lock().is_some_and(|control| control.has_link(peer))
    }

    fn leave(&self, word: u64) {
        self.control.lock().close(word, CLOSE_TIMEOUT);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpStream;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::sync::{AbortFlag, Progress};

    fn soon() -> Wait {
        Wait::new(Duration::from_secs(30), &AbortFlag::new())
    }

    /// `size` ranks, each on a thread that runs `body`.
    fn run(size: u32, body: impl Fn(NetBootstrap) + Sync) {
        let options = Options { interfaces: "=lo".parse().unwrap(), ..Options::default() };
        let (id, _root) = Root::serve(&options).unwrap();
        std::thread::scope(|scope| {
            let (options, body) = (&options, &body);
            for rank in (0..size).map(Rank::new) {
                scope.spawn(move || body(NetBootstrap::join(&[id], rank, size, options, &soon()).unwrap()));
            }
        });
    }

    #[test]
    fn ranks_of_large_worlds_sleep_longer() {
        let naps = [2, 1024, crate::bootstrap::MAX_WORLD].map(longest_nap);
        assert_eq!(naps, [ABORT_CHECK, Duration::from_millis(256), LONGEST_NAP]);
    }

    #[test]
    fn a_sleep_is_an_eighth_of_what_is_left_at_most() {
        let (options, size) = (Options::default(), crate::bootstrap::MAX_WORLD);
        let of = |seconds| nap(&options, size, &Wait::new(Duration::from_secs(seconds), &AbortFlag::new()));
        assert!((1..=500).contains(&of(4).as_millis()), "{:?}", of(4));
        assert_eq!([of(600), of(0)], [LONGEST_NAP, ABORT_CHECK]);
    }

    type Ending<'a> = &'a (dyn Fn(&AbortFlag, &NetBootstrap, &Sender<()>) + Sync);
    type Peer<'a> = &'a (dyn Fn(NetBootstrap, Receiver<()>) + Sync);

    const MINUTE: Duration = Duration::from_secs(60);

    /// Calls `end` once rank 0 of two sleeps in `recv` for a minute, beside its `peer`; returns what comes of that. The
    /// peer's receiver hears of `end`, or that the call has ended.
    fn recv_that(end: Ending<'_>, peer: Peer<'_>) -> Result<Vec<u8>> {
        let interfaces = "=lo".parse().unwrap();
        let options = &Options { interfaces, longest_nap: Some(MINUTE), ..Options::default() };
        let (id, _root) = Root::serve(options).unwrap();
        let (flag, began) = (AbortFlag::new(), clock::now());
        let (go, gone) = channel();
        let joined = OnceLock::new();
        let outcome = std::thread::scope(|scope| {
            scope.spawn(move || peer(NetBootstrap::join(&[id], Rank::new(1), 2, options, &soon()).unwrap(), gone));
            let join = || NetBootstrap::join(&[id], Rank::new(0), 2, options, &soon()).unwrap();
            let bootstrap = joined.get_or_init(join);
            let patience = soon();
            let look = || patience.check(|| "waited for a rank to sleep".to_owned()).unwrap();
            // What init has left to be looked at in a second would end the sleep.
            while bootstrap.control.lock().next_moment(clock::now(), MINUTE) < MINUTE {
                look();
                bootstrap.control.lock().drive(ABORT_CHECK).unwrap();
            }
            let (say, said) = channel();
            let wait = Wait::new(60 * MINUTE, &flag);
            let receiver = scope.spawn(move || {
                say.send(Chime::of_thread()).unwrap();
                bootstrap.recv(Rank::new(1), 1, &wait)
            });
            let chime = said.recv().unwrap();
            while !chime.has_sleeper() {
                look();
                std::thread::yield_now();
            }
            end(&flag, bootstrap, &go);
            let outcome = receiver.join().unwrap();
            drop(go);
            bootstrap.close();
            outcome
        });
        assert!(clock::now().duration_since(began) < MINUTE / 2, "a sleep has lasted to its end");
        outcome
    }

    /// Nothing else ends such a sleep: each of these does at once.
    #[test]
    fn an_abort_a_death_and_another_thread_end_a_sleep_of_a_minute() {
        let abort: Ending<'_> = &|flag, _, _| flag.raise(Error::new(Kind::Aborted, "enough"));
        let stay: Peer<'_> = &|bootstrap, end| {
            let _its_end = end.recv();
            bootstrap.close();
        };
        assert_eq!(recv_that(abort, stay).unwrap_err().kind(), Kind::Aborted);
        let go: Ending<'_> = &|_, _, go| go.send(()).unwrap();
        let die: Peer<'_> = &|bootstrap, end| {
            end.recv().unwrap();
            drop(bootstrap);
        };
        let death = recv_that(go, die).unwrap_err();
        assert!(death.message().contains("rank 1 has died"), "{death}");
        // The other thread gets the connections while the peer is silent.
        let lock: Ending<'_> = &|_, bootstrap, go| {
            assert_eq!(bootstrap.hindrance(), None);
            go.send(()).unwrap();
        };
        let send: Peer<'_> = &|bootstrap, end| {
            end.recv().unwrap();
            bootstrap.send(Rank::new(0), 1, b"here", &soon()).unwrap();
            bootstrap.close();
        };
        assert_eq!(recv_that(lock, send).unwrap(), b"here");
    }

    #[test]
    fn a_rank_s_listener_survives_garbage_and_silence() {
        run(3, |bootstrap| {
            let address = bootstrap.control.lock().address();
            let mut silent = Vec::new();
            for round in 0..400u32 {
                let mut stream = TcpStream::connect(address).unwrap();
                match round % 3 {
                    0 => silent.push(stream),
                    1 => stream.write_all(&round.to_le_bytes()).unwrap(),
                    _ => stream.write_all(b"RSC\x01 and then nothing that makes sense").unwrap(),
                }
                assert!(bootstrap.poll().is_empty());
            }
            bootstrap.barrier(&soon()).unwrap();
            let strangers = bootstrap.control.lock().strangers();
            assert!(strangers <= 1024, "{strangers}");
            bootstrap.close();
        });
    }

    #[test]
    fn both_may_open_the_pair_at_once_and_order_is_kept() {
        // 0 and 4 of 9 are not neighbours (the distances are 1 and 3), so both open a connection.
        run(9, |bootstrap| {
            let me = bootstrap.world.rank.get();
            if me == 0 || me == 4 {
                let peer = Rank::new(4 - me);
                for i in 0..100u32 {
                    bootstrap.send(peer, 1, &i.to_le_bytes(), &soon()).unwrap();
                }
                for i in 0..100u32 {
                    assert_eq!(bootstrap.recv(peer, 1, &soon()).unwrap(), i.to_le_bytes());
                }
            }
            bootstrap.barrier(&soon()).unwrap();
            bootstrap.close();
        });
    }

    /// A rank that gives up anywhere in a split tells the others why: those that have met in the child, too.
    #[test]
    fn who_gives_up_while_a_child_connects_says_why_in_the_child() {
        const MOST_TURNS: usize = 1000;
        for allowed in 0..MOST_TURNS {
            let is_whole = AtomicU32::new(0);
            run(2, |bootstrap| {
                let reading = soon().with_notes(Some(cause::failure_reader()));
                let outcome = if bootstrap.world.rank.get() == 0 {
                    let turns = AtomicUsize::new(0);
                    let fail = move || {
                        let is_over = turns.fetch_add(1, Ordering::Relaxed) >= allowed;
                        if is_over { Err(Error::internal("enough")) } else { Ok(()) }
                    };
                    let failing = reading.clone().with_progress(Some(Progress::new(fail)));
                    bootstrap.split(Some(1), 0, &failing).inspect_err(|error| bootstrap.give_up(error))
                } else {
                    bootstrap.split(Some(1), 0, &reading)
                };
                let child = outcome.map(|child| child.expect("a color was passed").bootstrap);
                match child.and_then(|child| child.all_gather(b"here", &reading).inspect(|_| child.close())) {
                    Ok(_) => is_whole.fetch_add(1, Ordering::Relaxed),
                    Err(error) => {
                        assert!(error.message().contains("enough"), "{allowed} turns: {error}");
                        0
                    }
                };
                bootstrap.close();
            });
            if is_whole.into_inner() == 2 {
                return;
            }
        }
        panic!("a split takes more than {MOST_TURNS} turns");
    }

    #[test]
    fn what_nobody_takes_holds_up_its_sender_and_nobody_else() {
        run(3, |bootstrap| {
            let block = vec![7; crate::bootstrap::MAX_GATHER_BYTES];
            let rank = Rank::new;
            match bootstrap.world.rank.get() {
                0 => {
                    // More than a queue and the sockets between hold.
                    let short = Wait::new(Duration::from_millis(500), &AbortFlag::new());
                    let outcome = (0..4096).try_for_each(|_| bootstrap.send(rank(1), 5, &block, &short));
                    let error = outcome.unwrap_err();
                    assert_eq!((error.kind(), error.peer()), (crate::error::Kind::Timeout, Some(1)), "{error}");
                    bootstrap.send(rank(2), 6, b"full", &soon()).unwrap();
                }
                1 => {
                    // Reads while it waits, as far as there is room.
                    assert_eq!(bootstrap.recv(rank(2), 6, &soon()).unwrap(), b"go on");
                    let error = bootstrap.recv(rank(0), 9, &soon()).unwrap_err();
                    assert_eq!(error.kind(), crate::error::Kind::Mismatch, "{error}");
                    assert_eq!(bootstrap.recv(rank(0), 5, &soon()).unwrap(), block);
                }
                _ => {
                    assert_eq!(bootstrap.recv(rank(0), 6, &soon()).unwrap(), b"full");
                    bootstrap.send(rank(1), 6, b"go on", &soon()).unwrap();
                }
            }
            bootstrap.close();
        });
    }
}
