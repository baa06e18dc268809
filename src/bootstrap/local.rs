//! [`LocalBootstrap`]: the ranks are threads of one process; messages go through mailboxes, without sockets.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::bootstrap::collective::{self, ChildKind, Mesh, Participants};
use crate::bootstrap::inbox::{Channel, Gone, Inbox};
use crate::bootstrap::{
    Agreed, BackgroundWork, Bootstrap, Child, Event, Listen, MAX_GATHER_BYTES, MAX_NOTE_BYTES, MakeChild,
};
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, AtomicBool, AtomicU32, Condvar, Mutex, MutexGuard, Ordering};
use crate::sync::{Chime, Wait};
use crate::sys::random;
use crate::types::{Rank, World};

/// One rank of a world of threads. Each rank's thread owns one. If it is dropped without [`Bootstrap::close`], the
/// peers see that the rank has died.
#[derive(Debug)]
pub struct LocalBootstrap {
    world: World,
    shared: Arc<Shared>,
    sequence: AtomicU32,
    splits: AtomicU32,
    attempts: Mutex<HashMap<u32, u32>>,
    closed: AtomicBool,
}

/// How long a wait sleeps before it looks at the abort flag again, which does not wake it.
const ABORT_CHECK: Duration = Duration::from_millis(10);

#[derive(Debug)]
struct Shared {
    key: [u8; 32],
    id: u64,
    mailboxes: Vec<Mailbox>,
    nurseries: Mutex<HashMap<ChildKind, Nursery>>,
}

/// The mailbox of one rank. The condition variable wakes those who wait for a message and those who wait for room.
#[derive(Debug, Default)]
struct Mailbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

/// A child whose members have not all taken their rank yet.
#[derive(Debug)]
struct Nursery {
    shared: Arc<Shared>,
    left: usize,
}

impl Shared {
    fn new(key: [u8; 32], size: usize) -> Arc<Shared> {
        let mailboxes = (0..size).map(|_| Mailbox::default()).collect();
        Arc::new(Shared { key, id: collective::id_of(&key), mailboxes, nurseries: Mutex::default() })
    }

    fn child(&self, kind: ChildKind, members: &[Rank]) -> Arc<Shared> {
        let mut nurseries = self.nurseries.lock();
        let nursery = nurseries.entry(kind).or_insert_with(|| {
            let key = collective::child_key(&self.key, kind, members);
            Nursery { shared: Shared::new(key, members.len()), left: members.len() }
        });
        nursery.left -= 1;
        let (shared, left) = (Arc::clone(&nursery.shared), nursery.left);
        if left == 0 {
            nurseries.remove(&kind);
        }
        shared
    }
}

impl Mailbox {
    fn open(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock()
    }

    /// Waits for a change, at most a short moment.
    fn pause<'a>(&self, inbox: MutexGuard<'a, Inbox>, wait: &Wait) -> MutexGuard<'a, Inbox> {
        let slice = wait.slice(ABORT_CHECK);
        self.changed.wait_timeout(inbox, slice)
    }
}

impl LocalBootstrap {
    /// The largest world of threads.
    pub const MAX_RANKS: u32 = 1 << 16;

    /// Makes a world of `size` ranks, in rank order; the caller gives each to a thread.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if `size` is 0 or above [`LocalBootstrap::MAX_RANKS`];
    /// [`crate::error::Kind::System`] if the kernel gives no randomness.
    pub fn world(size: u32) -> Result<Vec<LocalBootstrap>> {
        if size == 0 || size > LocalBootstrap::MAX_RANKS {
            let most = LocalBootstrap::MAX_RANKS;
            return Err(Error::invalid_argument(format!("the world must have 1 to {most} ranks, got {size}")));
        }
        let shared = Shared::new(random::bytes()?, Rank::new(size).index());
        let ranks = (0..size).map(Rank::new);
        Ok(ranks.map(|rank| LocalBootstrap::member(World { rank, size }, Arc::clone(&shared))).collect())
    }

    fn member(world: World, shared: Arc<Shared>) -> LocalBootstrap {
        let (sequence, splits) = (AtomicU32::new(0), AtomicU32::new(0));
        LocalBootstrap { world, shared, sequence, splits, attempts: Mutex::default(), closed: AtomicBool::new(false) }
    }

    fn mine(&self) -> &Mailbox {
        &self.shared.mailboxes[self.world.rank.index()]
    }

    fn next_group(&self) -> Participants {
        // Relaxed: one thread at a time begins collectives; only the value matters.
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

    /// Marks this rank as closed. True for the first caller, which tells the others.
    fn closes(&self) -> bool {
        // Relaxed: only who comes first counts; the mailboxes' locks order everything else.
        !self.closed.swap(true, Ordering::Relaxed)
    }

    fn go(&self, how: &Gone) {
        for peer in self.world.peers() {
            let mailbox = &self.shared.mailboxes[peer.index()];
            mailbox.open().mark_gone(self.world.rank, how.clone());
            mailbox.changed.notify_all();
        }
    }

    fn agree_in(&self, group: (&Participants, u8), mine: Result<Vec<u8>>, wait: &Wait) -> Agreed<Vec<Vec<u8>>> {
        let agreed = collective::agree(self, group, mine, wait).map_err(|error| error.at(self.world.rank));
        agreed.map(|told| told.map_err(|error| error.at(self.world.rank)))
    }

    /// Agrees on whether all have made their parts of a child.
    fn settle_child(&self, group: &Participants, made: Result<()>, wait: &Wait) -> Agreed<()> {
        let made = collective::open_to_agreement(made, wait)?;
        let settled = self.agree_in((group, collective::VERDICT), made.map(|()| Vec::new()), wait)?;
        Ok(settled.map(drop))
    }

    fn grow(&self, kind: ChildKind, members: Vec<Rank>) -> Result<Child> {
        let size = u32::try_from(members.len()).map_err(|_| Error::internal("a child larger than its parent"))?;
        let place = members.iter().position(|member| *member == self.world.rank);
        let place = place.and_then(|place| u32::try_from(place).ok());
        let rank = Rank::new(place.ok_or_else(|| Error::internal("a child without its maker"))?);
        let child = LocalBootstrap::member(World { rank, size }, self.shared.child(kind, &members));
        Ok(collective::child(child, members))
    }
}

impl Mesh for LocalBootstrap {
    fn put(&self, peer: Rank, channel: Channel, bytes: &[u8], wait: &Wait) -> Result<()> {
        self.check_peer(peer)?;
        let mailbox = &self.shared.mailboxes[peer.index()];
        loop {
            // Asked before the push: a peer that leaves after it received this message has done nothing wrong. The two
            // mailboxes are locked one after the other, never at once.
            let mine = self.mine().open();
            if let Some(gone) = mine.gone(peer) {
                return Err(mine.cause(channel, wait).unwrap_or_else(|| gone.error(peer)).at(self.world.rank));
            }
            drop(mine);
            let mut inbox = mailbox.open();
            if inbox.has_room(self.world.rank) {
                inbox.push(self.world.rank, channel, bytes.to_vec());
                drop(inbox);
                mailbox.changed.notify_all();
                return Ok(());
            }
            drop(mailbox.pause(inbox, wait));
            let waited = || format!("waited for rank {peer} to take what was sent to it");
            wait.check(waited).map_err(|error| error.about(peer).at(self.world.rank))?;
        }
    }

    fn take(&self, peer: Rank, channel: Channel, group: &Participants, wait: &Wait) -> Result<Vec<u8>> {
        self.take_unless(peer, channel, wait, |inbox| inbox.check_dead(|rank| group.contains(rank)))
    }

    fn try_take(&self, peer: Rank, channel: Channel, group: &Participants) -> Result<Option<Vec<u8>>> {
        self.try_take_unless(peer, channel, |inbox| inbox.check_dead(|rank| group.contains(rank)))
    }
}

impl LocalBootstrap {
    fn take_unless(
        &self,
        peer: Rank,
        channel: Channel,
        wait: &Wait,
        in_vain: impl Fn(&Inbox) -> Result<()>,
    ) -> Result<Vec<u8>> {
        self.check_peer(peer)?;
        let mailbox = self.mine();
        let mut inbox = mailbox.open();
        loop {
            let had_room = inbox.has_room(peer);
            if let Some(bytes) = inbox.take(peer, channel) {
                if !had_room {
                    mailbox.changed.notify_all();
                }
                return Ok(bytes);
            }
            // Look for a cause first: the peer that this rank waits for may have left because of it.
            let cause = wait.read(inbox.notes()).and_then(|()| in_vain(&inbox));
            let outcome = cause
                .and_then(|()| inbox.check(peer, channel))
                .and_then(|()| wait.check(|| waited_for(peer, channel)).map_err(|error| error.about(peer)));
            outcome.map_err(|error| error.at(self.world.rank))?;
            inbox = mailbox.pause(inbox, wait);
        }
    }

    fn try_take_unless(
        &self,
        peer: Rank,
        channel: Channel,
        in_vain: impl Fn(&Inbox) -> Result<()>,
    ) -> Result<Option<Vec<u8>>> {
        self.check_peer(peer)?;
        let mailbox = self.mine();
        let mut inbox = mailbox.open();
        let had_room = inbox.has_room(peer);
        let taken = inbox.take(peer, channel);
        match &taken {
            Some(_) if !had_room => mailbox.changed.notify_all(),
            Some(_) => {}
            None => {
                let outcome = in_vain(&inbox).and_then(|()| inbox.check(peer, channel));
                outcome.map_err(|error| error.at(self.world.rank))?;
            }
        }
        Ok(taken)
    }
}

/// The text of a time-out when `channel` did not arrive from `peer`.
pub(super) fn waited_for(peer: Rank, channel: Channel) -> String {
    format!("waited for {channel} from rank {peer}")
}

impl Bootstrap for LocalBootstrap {
    fn world(&self) -> World {
        self.world
    }

    fn id(&self) -> u64 {
        self.shared.id
    }

    fn key(&self) -> [u8; 32] {
        self.shared.key
    }

    fn interface(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
    }

    fn all_gather(&self, mine: &[u8], wait: &Wait) -> Result<Vec<Vec<u8>>> {
        collective::all_gather(self, &self.next_group(), mine, wait).map_err(|error| error.at(self.world.rank))
    }

    fn agree(&self, mine: Result<Vec<u8>>, wait: &Wait) -> Agreed<Vec<Vec<u8>>> {
        self.agree_in((&self.next_group(), collective::ALL_GATHER), mine, wait)
    }

    fn broadcast(&self, root: Rank, bytes: &[u8], wait: &Wait) -> Result<Vec<u8>> {
        collective::broadcast(self, &self.next_group(), root, bytes, wait).map_err(|error| error.at(self.world.rank))
    }

    fn barrier(&self, wait: &Wait) -> Result<()> {
        collective::barrier(self, &self.next_group(), wait).map_err(|error| error.at(self.world.rank))
    }

    fn meet(&self, call: &str, wait: &Wait, background: Option<BackgroundWork<'_>>) -> Result<()> {
        let met = collective::meet(self, &self.next_group(), call, (wait, background));
        met.map_err(|error| error.at(self.world.rank))
    }

    fn hindrance(&self) -> Option<String> {
        None
    }

    fn exchanges(&self) -> u64 {
        // Relaxed: only the value matters.
        self.sequence.load(Ordering::Relaxed).into()
    }

    fn send(&self, peer: Rank, tag: u32, bytes: &[u8], wait: &Wait) -> Result<()> {
        check_message(bytes)?;
        self.put(peer, Channel::Message(tag), bytes, wait)
    }

    fn post(&self, peer: Rank, tag: u32, bytes: &[u8], wait: &Wait) -> Result<()> {
        self.send(peer, tag, bytes, wait)
    }

    /// A thread's message is with its peer at once.
    fn settle(&self, _: Rank, _: &Wait) -> Result<()> {
        Ok(())
    }

    fn recv(&self, peer: Rank, tag: u32, wait: &Wait) -> Result<Vec<u8>> {
        self.take_unless(peer, Channel::Message(tag), wait, |_| Ok(()))
    }

    fn try_recv(&self, peer: Rank, tag: u32) -> Result<Option<Vec<u8>>> {
        self.try_take_unless(peer, Channel::Message(tag), |_| Ok(()))
    }

    fn take_from_any(&self, tag: u32) -> Option<(Rank, Vec<u8>)> {
        let mailbox = self.mine();
        let mut inbox = mailbox.open();
        let from = inbox.sender_on(Channel::Message(tag))?;
        let had_room = inbox.has_room(from);
        let bytes = inbox.take(from, Channel::Message(tag))?;
        if !had_room {
            mailbox.changed.notify_all();
        }
        Some((from, bytes))
    }

    fn split_with(&self, part: Result<(Option<u32>, i64)>, make: MakeChild<'_>, wait: &Wait) -> Agreed<()> {
        let count = self.splits.fetch_add(1, Ordering::Relaxed);
        let color = part.as_ref().ok().and_then(|(color, _)| *color);
        let entry = part.map(|(color, key)| collective::split_entry(color, key, &[]));
        let told = match self.agree_in((&self.next_group(), collective::SPLIT), entry, wait)? {
            Ok(told) => told,
            Err(error) => return Ok(Err(error)),
        };
        let made = match color {
            Some(color) => {
                let members = collective::split_members(&told, color)?.into_iter().map(|(rank, _)| rank).collect();
                make(self.grow(ChildKind::Split(count, color), members)?)
            }
            None => Ok(()),
        };
        self.settle_child(&self.next_group(), made, wait)
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
        let entry = ready.map(|()| collective::shrink_entry(excluded, &[]));
        let told = self.agree_in((&group, collective::ALL_GATHER), entry, wait).map_err(|error| {
            let inbox = self.mine().open();
            let other = inbox.other_shrink(number, &error);
            collective::differing_lists(error, excluded, other).at(self.world.rank)
        })?;
        if let Err(error) = told {
            return Ok(Err(error));
        }
        let made = make(self.grow(ChildKind::Shrink(number), members)?);
        self.settle_child(&group, made, wait)
    }

    fn publish(&self, note: &[u8]) {
        let note = &note[..note.len().min(MAX_NOTE_BYTES)];
        for peer in self.world.peers() {
            let mailbox = &self.shared.mailboxes[peer.index()];
            mailbox.open().note(self.world.rank, note.to_vec());
            mailbox.changed.notify_all();
        }
    }

    fn poll(&self) -> Vec<Event> {
        self.mine().open().events()
    }

    fn await_news(&self, chime: &Arc<Chime>, asks: u32, _: Listen<'_>) -> Result<Option<Duration>> {
        Ok(self.mine().open().ring_at_news(chime, asks).then_some(Duration::MAX))
    }

    fn leave(&self, word: u64) {
        if self.closes() {
            self.go(&Gone::Left(word));
        }
    }
}

/// # Errors
/// [`crate::error::Kind::InvalidArgument`] if a message is longer than [`MAX_GATHER_BYTES`].
pub(super) fn check_message(bytes: &[u8]) -> Result<()> {
    if bytes.len() <= MAX_GATHER_BYTES {
        return Ok(());
    }
    let length = bytes.len();
    Err(Error::invalid_argument(format!(
        "a bootstrap message of {length} bytes is too long: at most {MAX_GATHER_BYTES} are allowed"
    )))
}

impl Drop for LocalBootstrap {
    fn drop(&mut self) {
        if self.closes() {
            self.go(&Gone::Died("its thread ended without saying goodbye".to_owned()));
        }
    }
}
