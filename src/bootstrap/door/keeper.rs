//! The doorkeeper: the duty of the service thread that accepts for all communicators of a process, and what it knows.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use super::doorway::{Doorway, NetworkSpace};
use super::queue::IncomingQueue;
use crate::bootstrap::auth::{self, Addressee, GREETING_BYTES, Greeting};
use crate::bootstrap::socket;
use crate::error::Result;
use crate::log;
use crate::sync::primitive::{Arc, AtomicBool, AtomicU32, Mutex, Ordering};
use crate::sync::service_thread::{Served, ServiceDuty};
use crate::sys::poller::{Interest, Poller, Ready};
use crate::sys::{clock, limits};

/// See the module.
#[derive(Debug)]
pub(super) struct Doorkeeper {
    /// Watches the listeners, and the connections that have not said whom they are for.
    poller: Poller,
    hall: Mutex<Hall>,
    /// The system's code for why no connection can be accepted; 0 while it can.
    trouble: AtomicU32,
    /// Nobody needs it any more.
    ends: AtomicBool,
}

/// What the service thread has of it.
#[derive(Debug)]
pub(super) struct Doorkeeping {
    keeper: Arc<Doorkeeper>,
    ready: Ready,
}

/// The listeners, who is to be found behind them, and who waits in between.
#[derive(Debug)]
struct Hall {
    doors: BTreeMap<u64, SharedListener>,
    next_token: u64,
    queues: HashMap<Addressee, Arc<IncomingQueue>>,
    /// Those whose queue has ended, oldest first.
    ended: VecDeque<Addressee>,
    /// Connections that have not said whom they are for; tokens count up, so the oldest are first.
    unnamed: BTreeMap<u64, Caller>,
    /// Connections for those that have no queue yet, oldest first.
    early: VecDeque<(Addressee, Caller)>,
    /// Nothing is accepted before this time.
    rest_until: Option<Instant>,
    /// What is logged once the lock is free: the program's own code may hear it.
    told: Vec<ToTell>,
}

#[derive(Debug)]
enum ToTell {
    Warning(String),
    Trace(String),
}

#[derive(Debug)]
struct SharedListener {
    space: NetworkSpace,
    doorway: Doorway,
    listener: TcpListener,
    address: SocketAddr,
    users: usize,
}

/// A connection that was accepted.
#[derive(Debug)]
struct Caller {
    stream: TcpStream,
    from: SocketAddr,
    since: Instant,
}

const FIRST_TOKEN: u64 = 1;

/// The most connections that have not said whom they are for; a newcomer beyond them drives the oldest out.
pub(super) const MOST_UNNAMED: usize = 512;

/// The most connections for ranks that this process does not know yet; beyond it the oldest is closed.
pub(super) const MOST_EARLY: usize = 512;

/// How long a connection may take to say whom it is for, and then its communicator to appear here.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long it has for that at least, whoever else comes: several round trips.
const LEAST_TIME: Duration = Duration::from_millis(100);

/// How old a connection must be before it is closed because no descriptor is left.
const IDLE_AGE: Duration = Duration::from_secs(1);

/// How long accepting pauses when no descriptor is left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(50);

/// The most connections accepted in a row before other things are looked at.
const ACCEPTS_AT_ONCE: usize = 64;

/// The most ended communicators that are known to have ended.
const MOST_ENDED: usize = 1024;

impl Doorkeeper {
    pub(super) fn new() -> Result<Doorkeeper> {
        let poller = Poller::new()?;
        let hall = Hall {
            doors: BTreeMap::new(),
            next_token: FIRST_TOKEN,
            queues: HashMap::new(),
            ended: VecDeque::new(),
            unnamed: BTreeMap::new(),
            early: VecDeque::new(),
            rest_until: None,
            told: Vec::new(),
        };
        Ok(Doorkeeper { poller, hall: Mutex::new(hall), trouble: AtomicU32::new(0), ends: AtomicBool::new(false) })
    }

    /// Accepts what has come, and closes what is over.
    fn serve(&self, ready: &mut Ready) {
        // It never fails with a valid poller: without one the thread hears nothing, and tells so.
        let _reported = self.poller.wait(ready, Duration::ZERO);
        let mut hall = self.hall.lock();
        let mut place = 0;
        while let Some(event) = ready.get(place) {
            place += 1;
            match hall.doors.contains_key(&event.token) {
                true => self.accept(&mut hall, event.token),
                false => self.look(&mut hall, event.token),
            }
        }
        self.expire(&mut hall, clock::now());
        let told = std::mem::take(&mut hall.told);
        drop(hall);
        for line in told {
            match line {
                ToTell::Warning(text) => log::warn!(Bootstrap, "{text}"),
                ToTell::Trace(text) => log::trace!(Bootstrap, "{text}"),
            }
        }
    }

    /// The thread forgets it at its next turn.
    pub(super) fn end(&self) {
        // Release: pairs with the load in `Doorkeeping::serve`, though nothing but the word is read.
        self.ends.store(true, Ordering::Release);
    }

    /// Whether it serves nobody any more.
    pub(super) fn has_ended(&self) -> bool {
        // Acquire: as in `Doorkeeping::serve`.
        self.ends.load(Ordering::Acquire)
    }

    /// A further user of the listener of `doorway`, if there is one.
    pub(super) fn sit_down(&self, space: &NetworkSpace, doorway: &Doorway) -> Option<(u64, SocketAddr)> {
        let mut hall = self.hall.lock();
        let is_it = |door: &&mut SharedListener| door.space == *space && door.doorway == *doorway;
        let (token, door) =
            hall.doors.iter_mut().find_map(|(token, door)| Some((*token, Some(door).filter(is_it)?)))?;
        door.users += 1;
        Some((token, door.address))
    }

    /// Accepts at `listener`, which has one user.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`] if it cannot be watched.
    pub(super) fn open(
        &self,
        space: NetworkSpace,
        doorway: &Doorway,
        (listener, address): (TcpListener, SocketAddr),
    ) -> Result<u64> {
        let mut hall = self.hall.lock();
        let token = hall.new_token();
        let interest = if hall.rest_until.is_some() { Interest::None } else { Interest::Read };
        self.poller.add(listener.as_fd(), token, interest)?;
        hall.doors.insert(token, SharedListener { space, doorway: doorway.clone(), listener, address, users: 1 });
        Ok(token)
    }

    /// A user leaves. Whether it was the last one of all.
    pub(super) fn stand_up(&self, token: u64) -> bool {
        let mut hall = self.hall.lock();
        let Some(door) = hall.doors.get_mut(&token) else { return false };
        door.users -= 1;
        if door.users == 0
            && let Some(door) = hall.doors.remove(&token)
        {
            // A process of a bare clone may have a copy: closing ours would not end the watch.
            let _unwatched = self.poller.remove(door.listener.as_fd());
        }
        hall.doors.is_empty()
    }

    /// Connections for `addressee` go to `queue` from now on.
    pub(super) fn expect(&self, addressee: Addressee, queue: &Arc<IncomingQueue>) {
        let mut hall = self.hall.lock();
        hall.ended.retain(|other| *other != addressee);
        hall.queues.insert(addressee, Arc::clone(queue));
        let early = std::mem::take(&mut hall.early).into_iter();
        let (here, others): (VecDeque<_>, VecDeque<_>) = early.partition(|(whom, _)| *whom == addressee);
        hall.early = others;
        here.into_iter().for_each(|(_, caller)| _ = queue.put(caller.stream, caller.from, caller.since));
    }

    /// No connections go to `queue` any more; those that wait there, and later ones, are told.
    pub(super) fn forget(&self, addressee: Addressee, queue: &Arc<IncomingQueue>) {
        let mut hall = self.hall.lock();
        // Another one may have taken its place.
        if hall.queues.get(&addressee).is_some_and(|known| Arc::ptr_eq(known, queue)) {
            hall.queues.remove(&addressee);
            hall.ended.push_back(addressee);
            if hall.ended.len() > MOST_ENDED {
                hall.ended.pop_front();
            }
        }
        while let Some((stream, _)) = queue.take() {
            say_ended(&stream);
        }
    }

    pub(super) fn trouble(&self) -> Option<io::Error> {
        // Relaxed: only the code counts.
        let code = i32::try_from(self.trouble.load(Ordering::Relaxed)).unwrap_or(0);
        (code != 0).then(|| io::Error::from_raw_os_error(code))
    }

    /// Closes what is over at `now`.
    #[cfg(test)]
    pub(super) fn expire_at(&self, now: Instant) {
        self.expire(&mut self.hall.lock(), now);
    }

    #[cfg(test)]
    pub(super) fn strangers(&self) -> usize {
        let hall = self.hall.lock();
        hall.unnamed.len() + hall.early.len()
    }

    /// No connection can be accepted: whoever waits for one learns it, however long it meant to sleep.
    fn tell_trouble(&self, hall: &mut Hall, error: &io::Error) {
        let is_new = self.trouble().is_none();
        self.set_trouble(Some(error));
        if is_new {
            let text = format!("cannot accept connections for now: {}", socket::explain(error));
            hall.told.push(ToTell::Warning(text));
            hall.queues.values().for_each(|queue| queue.wake());
        }
    }

    /// As where the system refuses to accept.
    #[cfg(test)]
    pub(super) fn have_trouble(&self, error: Option<&io::Error>) {
        match error {
            Some(error) => self.tell_trouble(&mut self.hall.lock(), error),
            None => self.set_trouble(None),
        }
    }

    fn set_trouble(&self, error: Option<&io::Error>) {
        let code = error.and_then(io::Error::raw_os_error).and_then(|code| u32::try_from(code).ok());
        self.trouble.store(code.unwrap_or(0), Ordering::Relaxed);
    }

    fn accept(&self, hall: &mut Hall, door: u64) {
        for _ in 0..ACCEPTS_AT_ONCE {
            let now = clock::now();
            if let Some(until) = hall.make_room(now) {
                return self.rest(hall, until);
            }
            let Some(SharedListener { listener, .. }) = hall.doors.get(&door) else { return };
            match socket::accept(listener) {
                Ok(Some((stream, from))) => {
                    self.set_trouble(None);
                    let token = hall.new_token();
                    self.receive(hall, token, Caller { stream, from, since: now });
                }
                // The system looks for a free descriptor first.
                Ok(None) => return self.set_trouble(None),
                Err(error) if limits::is_exhausted(&error) && hall.drop_idle(now) => {}
                Err(error) => {
                    self.tell_trouble(hall, &error);
                    return self.rest(hall, now + EXHAUSTED_PAUSE);
                }
            }
        }
    }

    /// A connection that was just accepted.
    fn receive(&self, hall: &mut Hall, token: u64, caller: Caller) {
        match greeting_of(&caller) {
            Ok(Greeting::Unfinished) => {
                // By edges: bytes stay in the socket until its owner reads them.
                if self.poller.add_edge(caller.stream.as_fd(), token, Interest::Read).is_ok() {
                    hall.unnamed.insert(token, caller);
                }
            }
            Ok(Greeting::For(addressee)) => hall.deliver(addressee, caller),
            Err(why) => hall.dropped(&caller, &why),
        }
    }

    /// More may have come of a connection that has not said whom it is for.
    fn look(&self, hall: &mut Hall, token: u64) {
        let Some(caller) = hall.unnamed.remove(&token) else { return };
        match greeting_of(&caller) {
            Ok(Greeting::Unfinished) => _ = hall.unnamed.insert(token, caller),
            Ok(Greeting::For(addressee)) => {
                if self.poller.remove(caller.stream.as_fd()).is_ok() {
                    hall.deliver(addressee, caller);
                }
            }
            Err(why) => hall.dropped(&caller, &why),
        }
    }

    /// Accepts nothing before `until`: otherwise each wait would end at once for connections that cannot be accepted.
    fn rest(&self, hall: &mut Hall, until: Instant) {
        if self.set_interest(hall, Interest::None) {
            hall.rest_until = Some(until);
        }
    }

    fn set_interest(&self, hall: &Hall, interest: Interest) -> bool {
        let mut doors = hall.doors.iter();
        doors.all(|(token, door)| self.poller.modify(door.listener.as_fd(), *token, interest).is_ok())
    }

    fn expire(&self, hall: &mut Hall, now: Instant) {
        while hall.unnamed.first_key_value().is_some_and(|(_, caller)| caller.is_over(now)) {
            let oldest = hall.unnamed.pop_first();
            oldest.iter().for_each(|(_, caller)| hall.dropped(caller, "it did not say in time whom it is for"));
        }
        while hall.early.front().is_some_and(|(_, caller)| caller.is_over(now)) {
            let oldest = hall.early.pop_front();
            let why = "it is for a communicator that nobody here knows";
            oldest.iter().for_each(|(_, caller)| hall.dropped(caller, why));
        }
        if hall.rest_until.is_some_and(|until| now >= until) {
            if !self.set_interest(hall, Interest::Read) {
                hall.rest_until = Some(now + EXHAUSTED_PAUSE);
                return;
            }
            hall.rest_until = None;
            let doors: Vec<u64> = hall.doors.keys().copied().collect();
            // Also where nobody has come: it tells whether the shortage is over.
            doors.into_iter().for_each(|door| self.accept(hall, door));
        }
    }
}

impl Doorkeeping {
    pub(super) fn of(keeper: &Arc<Doorkeeper>) -> Doorkeeping {
        Doorkeeping { keeper: Arc::clone(keeper), ready: Ready::default() }
    }
}

impl Drop for Doorkeeping {
    /// Where it ends by itself, which a defect of ours may do too, who comes next gets another doorkeeper.
    fn drop(&mut self) {
        self.keeper.end();
    }
}

impl ServiceDuty for Doorkeeping {
    fn serve(&mut self, is_ready: bool) -> Served {
        // Acquire: see `Doorkeeper::end`.
        if self.keeper.ends.load(Ordering::Acquire) {
            return Served::Over;
        }
        let until = self.keeper.hall.lock().next_moment();
        if !is_ready && until.is_none_or(|until| clock::now() < until) {
            return Served::Until(until);
        }
        self.keeper.serve(&mut self.ready);
        let until = self.keeper.hall.lock().next_moment();
        Served::Until(until)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.keeper.poller.as_fd())
    }

    fn deafen(&mut self) {
        log::warn!(Bootstrap, "this process accepts no connections any more: its descriptors were closed");
    }
}

impl Hall {
    fn new_token(&mut self) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        token
    }

    fn next_moment(&self) -> Option<Instant> {
        let unnamed = self.unnamed.first_key_value().map(|(_, caller)| caller.until());
        let early = self.early.front().map(|(_, caller)| caller.until());
        [unnamed, early, self.rest_until].into_iter().flatten().min()
    }

    /// Makes room for a connection that has not said whom it is for; else, when there will be some. Connections wait in
    /// the listener's queue meanwhile.
    fn make_room(&mut self, now: Instant) -> Option<Instant> {
        if self.unnamed.len() < MOST_UNNAMED {
            return None;
        }
        let (_, oldest) = self.unnamed.first_key_value()?;
        let until = oldest.since + LEAST_TIME;
        if now < until {
            return Some(until);
        }
        self.unnamed.pop_first();
        None
    }

    /// Closes the oldest connection that is for nobody, if it has been here for long.
    fn drop_idle(&mut self, now: Instant) -> bool {
        let is_idle = |caller: &Caller| now.saturating_duration_since(caller.since) >= IDLE_AGE;
        if self.unnamed.first_key_value().is_some_and(|(_, caller)| is_idle(caller)) {
            return self.unnamed.pop_first().is_some();
        }
        self.early.front().is_some_and(|(_, caller)| is_idle(caller)) && self.early.pop_front().is_some()
    }

    fn dropped(&mut self, caller: &Caller, why: &str) {
        self.told.push(ToTell::Trace(format!("dropped a connection from {}: {why}", caller.from)));
    }

    fn deliver(&mut self, addressee: Addressee, caller: Caller) {
        if let Some(queue) = self.queues.get(&addressee) {
            let from = caller.from;
            if !queue.put(caller.stream, from, clock::now()) {
                let text = format!("dropped a connection from {from}: too many wait for {addressee:?}");
                self.told.push(ToTell::Trace(text));
            }
        } else if self.ended.contains(&addressee) {
            say_ended(&caller.stream);
        } else {
            if self.early.len() >= MOST_EARLY {
                self.early.pop_front();
            }
            // Its time begins anew, and with it the order.
            self.early.push_back((addressee, Caller { since: clock::now(), ..caller }));
        }
    }
}

impl Caller {
    fn until(&self) -> Instant {
        self.since + PATIENCE
    }

    fn is_over(&self, now: Instant) -> bool {
        now >= self.until()
    }
}

/// What the connection has said so far; why it is to be closed, where it is for nobody.
fn greeting_of(caller: &Caller) -> std::result::Result<Greeting, String> {
    let mut said = [0; GREETING_BYTES];
    let count = loop {
        match caller.stream.peek(&mut said) {
            Ok(0) => return Err("it ended before it said whom it is for".to_owned()),
            Ok(count) => break count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    };
    Greeting::read(&said[..count]).map_err(|error| error.message().to_owned())
}

/// Tells the other side that the communicator has ended. What it has said is read first: a socket that is closed with
/// unread bytes may take the answer back.
fn say_ended(stream: &TcpStream) {
    let (mut hello, mut stream) = ([0; auth::HELLO_BYTES], stream);
    // Whoever does not hear it sees that the connection ends.
    let _said = stream.read(&mut hello).and_then(|_| stream.write(&[auth::ENDED]));
}
