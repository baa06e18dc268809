//! The place where the ranks of one host meet in private, if the user has named none: a Unix socket on an abstract name
//! made of the job's identity and the number of the communicator among those that the job makes.
//!
//! Rank 0 listens and gives its [`Record`] to each rank that asks. The name is the same in containers with a `/tmp`,
//! a process namespace or a user namespace of their own; nothing is left behind, since the kernel forgets the name
//! with the process; and the kernel says which user is at the other end, so nobody else's record is believed.
//!
//! | message | from → to | bytes |
//! |---|---|---|
//! | question | rank → rank 0 | mark 8, rank 4, world 4 |
//! | answer | rank 0 → rank | length 4, record |

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::bootstrap::leash::{Leash, LeashOrder, LeashedThread};
use crate::bootstrap::socket;
use crate::bootstrap::store::record::Record;
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::primitive::{Arc, AtomicBool, Ordering};
use crate::sync::{AbortFlag, Deadline, Wait};
use crate::sys::descriptor::{HandoverStream, Listener, NameHolder};
use crate::sys::poller::{self, Interest, Poller, Ready};
use crate::sys::{clock, thread};
use crate::types::{Rank, World};
use crate::wire::{Reader, Writer};

/// The name of a lobby. Anybody can guess it, and may hold it first: then rank 0 takes the next of a few.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LobbyName(String);

impl LobbyName {
    /// The lobby of communicator `number` of the job with this identity.
    pub(crate) fn new(job: &str, number: u64) -> LobbyName {
        let hash = blake3::hash(format!("rsccl lobby {number} of {job}").as_bytes());
        LobbyName(format!("rsccl-job-{}", &hash.to_hex()[..32]))
    }

    /// The names that the lobby may have, in order.
    fn all(&self) -> impl Iterator<Item = String> {
        (0..NAMES).map(|turn| if turn == 0 { self.0.clone() } else { format!("{}-{turn}", self.0) })
    }
}

impl std::fmt::Display for LobbyName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the unix socket @{}", self.0)
    }
}

/// Opens another place too, for the ranks that cannot see the lobby. What it yields lives as long as the lobby; the
/// flag is raised when that closes.
pub(crate) type Elsewhere = Box<dyn FnOnce(&AbortFlag) -> Option<Box<dyn std::any::Any + Send>> + Send>;

/// Rank 0's side. Dropping it closes the lobby.
#[derive(Debug)]
pub(crate) struct Lobby {
    thread: Option<LeashedThread>,
    /// Ends the thread that opens the other place.
    closing: AbortFlag,
    elsewhere: Option<JoinHandle<()>>,
    /// Whether every other rank has the record.
    all_have_come: Arc<AtomicBool>,
}

impl Lobby {
    /// Opens the lobby of a world of `size` ranks, where each gets `record`. If not all have come after a moment,
    /// `elsewhere` runs on a thread of its own.
    ///
    /// # Errors
    /// [`Kind::InvalidUsage`] if another process is rank 0 of this job already, or other users hold the names;
    /// [`Kind::System`].
    pub(crate) fn open(
        name: &LobbyName,
        size: u32,
        record: &Record,
        elsewhere: Option<Elsewhere>,
        wait: &Wait,
    ) -> Result<Lobby> {
        let listener = listen(name, wait)?;
        let leash = Leash::new()?;
        let bytes = record.encode();
        let mut answer = Writer::with_capacity(4 + bytes.len());
        answer.bytes(&bytes);
        let poller = Poller::new()?;
        poller.add(listener.as_fd(), LISTENER, Interest::Read)?;
        leash.watch(&poller, STOP)?;
        let all_have_come = Arc::new(AtomicBool::new(size == 1));
        let host = LobbyThread {
            listener,
            poller,
            leash: leash.clone(),
            answer: answer.finish(),
            size,
            guests: BTreeMap::new(),
            next: FIRST_GUEST,
            come: BTreeSet::new(),
            all_have_come: Arc::clone(&all_have_come),
        };
        let thread = LeashedThread::start("rsccl lobby", leash, move || host.run())?;
        let mut lobby = Lobby { thread: Some(thread), closing: AbortFlag::new(), elsewhere: None, all_have_come };
        if let Some(open) = elsewhere {
            let (closing, all_have_come) = (lobby.closing.clone(), Arc::clone(&lobby.all_have_come));
            let run = move || open_late(open, &closing, &all_have_come);
            lobby.elsewhere = Some(thread::spawn("rsccl elsewhere", run)?);
        }
        Ok(lobby)
    }

    /// Waits until every other rank has the record, at most as long as `patience`: rank 0 is about to fail.
    pub(crate) fn linger(&self, patience: Deadline, wait: &Wait) {
        let until = wait.until(patience.earlier(wait.deadline));
        // Acquire: pairs with the release of the thread, though nothing but the flag is read.
        while !self.all_have_come.load(Ordering::Acquire) && until.check(String::new).is_ok() {
            poller::pause(until.slice(PAUSE));
        }
    }
}

impl Drop for Lobby {
    fn drop(&mut self) {
        self.closing.raise(Error::aborted("the lobby closes"));
        self.thread = None;
        if self.elsewhere.take().is_some_and(|thread| thread.join().is_err()) {
            log::warn!(Bootstrap, "a thread of the lobby panicked");
        }
    }
}

/// Opens the other place once it is time and ranks are missing, and keeps it until the lobby closes.
fn open_late(open: Elsewhere, closing: &AbortFlag, all_have_come: &AtomicBool) {
    let wait = Wait::new(Duration::MAX, closing);
    let due = Deadline::after(ELSEWHERE_AFTER);
    while !due.passed(clock::now()) {
        if wait.check(String::new).is_err() {
            return;
        }
        poller::pause(PAUSE);
    }
    // Acquire: as in `linger`.
    if all_have_come.load(Ordering::Acquire) {
        return;
    }
    let _kept_until_the_end = open(closing);
    while wait.check(String::new).is_ok() {
        poller::pause(PAUSE);
    }
}

/// Takes the first name that no other user holds. An earlier attempt of this job may just be ending.
fn listen(name: &LobbyName, wait: &Wait) -> Result<Listener> {
    let patience = wait.until(Deadline::after(TAKEN_PATIENCE).earlier(wait.deadline));
    loop {
        let mut holder = None;
        for name in name.all() {
            match Listener::bind(&name) {
                Err(error) if socket::is(&error, ErrorKind::AddrInUse) => {}
                other => return other,
            }
            match HandoverStream::look_for(&name)? {
                NameHolder::OtherUsers(user) => holder = Some(format!("user {user} holds")),
                NameHolder::Own(stream) => {
                    let process = stream.process().map_or(String::new(), |process| format!(" {}", process.number()));
                    holder = Some(format!("rank 0 is here already: process{process} of this user holds"));
                    break;
                }
                // It has just gone, or is busy.
                NameHolder::Nobody | NameHolder::Busy => break,
            }
        }
        wait.abort.check()?;
        if patience.check(String::new).is_err() {
            let who = holder.unwrap_or_else(|| "another process holds".to_owned());
            return Err(Error::invalid_usage(format!(
                "{who} {name}, where the ranks of this job meet; if two processes were given rank 0, correct that, \
                 else set RSCCL_STORE"
            )));
        }
        poller::pause(patience.slice(PAUSE));
    }
}

/// The record of rank 0; `None` if rank 0 is not there yet.
///
/// # Errors
/// [`Kind::System`]; of the abort of `wait`; [`Kind::Remote`] for an answer that is no record.
pub(crate) fn visit(name: &LobbyName, me: World, wait: &Wait) -> Result<Option<Record>> {
    for name in name.all() {
        match HandoverStream::look_for(&name)? {
            NameHolder::Own(stream) => return ask(&stream, me, wait),
            // Whoever held an earlier name may have gone since rank 0 took this one.
            NameHolder::OtherUsers(_) | NameHolder::Nobody => {}
            NameHolder::Busy => return Ok(None),
        }
    }
    Ok(None)
}

fn ask(stream: &HandoverStream, me: World, wait: &Wait) -> Result<Option<Record>> {
    let mut question = Writer::new();
    question.raw(&MARK).u32(me.rank.get()).u32(me.size);
    // A new connection has room for 16 bytes.
    if !matches!(stream.write(question.as_slice()), Ok(Some(_))) {
        return Ok(None);
    }
    let patience = wait.until(Deadline::after(ANSWER_PATIENCE).earlier(wait.deadline));
    let mut heard = Vec::new();
    loop {
        let mut bytes = [0; 1024];
        match stream.read(&mut bytes) {
            // Rank 0 has ended, or closes its lobby: it may come again.
            Ok(Some(0)) | Err(_) => return Ok(None),
            Ok(Some(count)) => heard.extend_from_slice(&bytes[..count]),
            Ok(None) => {
                wait.abort.check()?;
                if patience.check(String::new).is_err() {
                    return Ok(None);
                }
                poller::wait_any(&[(stream.as_fd(), Interest::Read)], patience.slice(PAUSE))?;
            }
        }
        let mut reader = Reader::new(&heard, "the lobby's answer");
        if let Ok(record) = reader.bytes(MAX_RECORD_BYTES) {
            return Record::decode(record).map(Some);
        }
        if heard.len() > 4 + MAX_RECORD_BYTES {
            return Err(Error::new(Kind::Remote, "what listens where rank 0 of this job is to sends no record"));
        }
    }
}

/// The thread's side.
struct LobbyThread {
    listener: Listener,
    poller: Poller,
    leash: Leash,
    answer: Vec<u8>,
    size: u32,
    guests: BTreeMap<u64, Caller>,
    next: u64,
    /// The ranks that have been answered.
    come: BTreeSet<Rank>,
    all_have_come: Arc<AtomicBool>,
}

struct Caller {
    stream: HandoverStream,
    heard: Vec<u8>,
}

impl LobbyThread {
    fn run(mut self) {
        let mut ready = Ready::default();
        loop {
            if let Err(error) = self.poller.wait(&mut ready, Duration::MAX) {
                log::warn!(Bootstrap, "the lobby cannot poll: {error}");
                return;
            }
            for event in ready.iter() {
                match event.token {
                    STOP if self.leash.read() == LeashOrder::End => return,
                    STOP => {}
                    LISTENER => self.admit(),
                    token => self.hear(token),
                }
            }
        }
    }

    fn admit(&mut self) {
        for _ in 0..ACCEPTS_AT_ONCE {
            match self.listener.accept() {
                Ok(Some(stream)) => {
                    if self.guests.len() >= MAX_GUESTS {
                        // The oldest: a rank asks at once.
                        self.guests.pop_first();
                    }
                    let token = self.next;
                    self.next += 1;
                    if self.poller.add(stream.as_fd(), token, Interest::Read).is_ok() {
                        self.guests.insert(token, Caller { stream, heard: Vec::new() });
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    log::warn!(Bootstrap, "the lobby cannot accept for now: {error}");
                    poller::pause(PAUSE);
                    return;
                }
            }
        }
    }

    fn hear(&mut self, token: u64) {
        let Some(guest) = self.guests.get_mut(&token) else { return };
        let mut bytes = [0; QUESTION_BYTES];
        match guest.stream.read(&mut bytes) {
            Ok(Some(count)) if count > 0 && guest.heard.len() + count <= QUESTION_BYTES => {
                guest.heard.extend_from_slice(&bytes[..count]);
                if guest.heard.len() < QUESTION_BYTES {
                    return;
                }
            }
            Ok(None) => return,
            Ok(Some(_)) | Err(_) => {
                self.guests.remove(&token);
                return;
            }
        }
        let Some(guest) = self.guests.remove(&token) else { return };
        let Some(rank) = asked(&guest.heard) else { return };
        // A record is shorter than the least buffer of a socket.
        if matches!(guest.stream.write(&self.answer), Ok(Some(count)) if count == self.answer.len())
            && rank.get() < self.size
        {
            self.come.insert(rank);
            let come = u32::try_from(self.come.len()).unwrap_or(u32::MAX);
            // Release: see `linger`.
            self.all_have_come.store(come >= self.size - 1, Ordering::Release);
        }
    }
}

/// The rank that asks.
fn asked(question: &[u8]) -> Option<Rank> {
    let mut reader = Reader::new(question, "a question to the lobby");
    (reader.raw(MARK.len()).ok()? == MARK).then_some(())?;
    Some(Rank::new(reader.u32().ok()?))
}

pub(super) fn decode_anything(bytes: &[u8]) {
    let _refused = asked(bytes);
}

const MARK: [u8; 8] = *b"rscclmt1";
const QUESTION_BYTES: usize = 8 + 4 + 4;
/// Above the longest record: a host's name, a namespace, a job's name, and the words of an error.
const MAX_RECORD_BYTES: usize = 16 << 10;
/// The names that a lobby may have.
const NAMES: u32 = 4;
/// The most connections accepted in a row before others are heard.
const ACCEPTS_AT_ONCE: u32 = 64;
/// The most connections that have not asked yet.
const MAX_GUESTS: usize = 1024;
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST_GUEST: u64 = 2;
/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(10);
/// How long rank 0 may take to answer: its thread does nothing else.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
/// How long an earlier rank 0 of this job may take to end.
const TAKEN_PATIENCE: Duration = Duration::from_secs(2);
/// When rank 0 looks for ranks elsewhere, too. Ranks look elsewhere as long after they have begun.
pub(crate) const ELSEWHERE_AFTER: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::store::record::IdOutcome;

    fn soon() -> Wait {
        Wait::new(Duration::from_secs(30), &AbortFlag::new())
    }

    fn world(rank: u32) -> World {
        World { rank: Rank::new(rank), size: 3 }
    }

    fn record() -> Record {
        Record { size: 3, ..Record::new(IdOutcome::Failed("words".into())).unwrap() }
    }

    /// A name that no other test has.
    fn name() -> LobbyName {
        LobbyName::new(&format!("test {:x?}", crate::sys::random::bytes::<8>().unwrap()), 0)
    }

    #[test]
    fn each_rank_gets_the_record_as_often_as_it_asks_and_nothing_stays() {
        let name = name();
        assert_eq!(visit(&name, world(1), &soon()).unwrap(), None);
        let (record, wait) = (record(), soon());
        let lobby = Lobby::open(&name, 3, &record, None, &wait).unwrap();
        for _ in 0..3 {
            assert_eq!(visit(&name, world(1), &soon()).unwrap().as_ref(), Some(&record));
        }
        lobby.linger(Deadline::after(Duration::from_millis(1)), &wait);
        assert!(!lobby.all_have_come.load(Ordering::Acquire), "rank 2 has not come");
        assert_eq!(visit(&name, world(2), &soon()).unwrap().as_ref(), Some(&record));
        lobby.linger(Deadline::after(Duration::from_secs(30)), &wait);
        drop(lobby);
        assert_eq!(visit(&name, world(2), &soon()).unwrap(), None);
    }

    #[test]
    fn a_second_rank_zero_is_told_and_names_differ_by_job_and_number() {
        let (name, wait) = (name(), soon());
        let _lobby = Lobby::open(&name, 3, &record(), None, &wait).unwrap();
        let error = Lobby::open(&name, 3, &record(), None, &wait).unwrap_err();
        assert!(error.message().contains(&format!("process {}", std::process::id())), "{error}");
        assert_ne!(LobbyName::new("a", 0), LobbyName::new("a", 1));
        assert_ne!(LobbyName::new("a", 0), LobbyName::new("b", 0));
    }

    #[test]
    fn strangers_cost_only_their_own_connection() {
        let (name, wait, record) = (name(), soon(), record());
        let _lobby = Lobby::open(&name, 3, &record, None, &wait).unwrap();
        let connect = || HandoverStream::connect(&name.0).unwrap();
        let _silent: Vec<_> = (0..50).filter_map(|_| connect()).collect();
        let mut rude = connect().unwrap();
        rude.write(&[0xff; 64]).unwrap();
        assert_eq!(visit(&name, world(1), &soon()).unwrap().as_ref(), Some(&record));
        rude = connect().unwrap();
        rude.write(b"rscclmt1\xff\xff\xff\xff\xff\xff\xff\xff").unwrap();
        assert_eq!(visit(&name, world(2), &soon()).unwrap().as_ref(), Some(&record));
    }

    #[test]
    fn what_is_elsewhere_is_opened_only_where_ranks_are_missing() {
        let (name, wait) = (name(), soon());
        let opened = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&opened);
        let open: Elsewhere = Box::new(move |_| {
            seen.store(true, Ordering::Release);
            None
        });
        let _lobby = Lobby::open(&name, 3, &record(), Some(open), &wait).unwrap();
        while !opened.load(Ordering::Acquire) {
            wait.check(|| "nothing was opened elsewhere".to_owned()).unwrap();
            std::thread::yield_now();
        }
    }
}
