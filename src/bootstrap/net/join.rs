//! A rank's check-in with its root.

use std::time::Instant;

use super::{ABORT_CHECK, Own};
use crate::bootstrap::auth::{Handshake, NO_RANK};
use crate::bootstrap::checkin::{self, Block, CheckIn, MAX_ROOT_FRAME_BYTES, MAX_WORLD, Shape, Table};
use crate::bootstrap::collective;
use crate::bootstrap::id::UniqueId;
use crate::bootstrap::link::{End, Link, SCRATCH_BYTES};
use crate::bootstrap::root::{Root, WANTED_OPEN_FILES};
use crate::bootstrap::{Options, interface, socket};
use crate::error::{Error, Kind, Result};
use crate::sync::Wait;
use crate::sys::poller::{Poller, Ready};
use crate::sys::{clock, interfaces, limits};
use crate::types::Rank;
use crate::wire::frame::Frame;

/// What a check-in yields.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) own: Own,
    pub(super) poller: Poller,
    pub(super) welcome: Table,
    pub(super) seconds: f64,
}

/// How often a root that drops us in the handshake is tried: it does so where it is flooded, but also where the id is wrong.
const REJECTED_TRIES: u32 = 5;

/// Opens a listener, tells the root of our block about it, and waits for its answer.
pub(super) fn check_in(ids: &[UniqueId], rank: Rank, size: u32, options: &Options, wait: &Wait) -> Result<Joined> {
    let started = clock::now();
    let shape = shape(ids, rank, size)?;
    limits::raise_open_files(WANTED_OPEN_FILES)?;
    let root = shape.root_of(rank);
    let id = &ids[Rank::new(root).index()];
    let own = listen(id, options)?;
    if id.is_fixed() && rank == shape.first(root) {
        serve_fixed(id, options, wait)?.detach();
    }
    if !id.is_authenticated() && rank.get() == 0 {
        tracing::warn!(
            target: "rsccl::bootstrap",
            "the id has no secret: whoever reaches {} can join; set RSCCL_SECRET or name a file with one", id.address()
        );
    }
    let left = wait.deadline.remaining(started).map_or(u128::MAX, |left| left.as_millis());
    let left_ms = u32::try_from(left).unwrap_or(u32::MAX);
    let mine = CheckIn { rank, shape, root, left_ms, address: own.address };
    let poller = Poller::new()?;
    let mut desk = Desk {
        ids,
        rank,
        shape,
        options,
        poller: &poller,
        visits: vec![Visit::new(*id, checkin::CHECK_IN, mine.encode())],
        scratch: vec![0; SCRATCH_BYTES],
    };
    let welcome = desk.run(wait)?;
    let seconds = clock::now().saturating_duration_since(started).as_secs_f64();
    Ok(Joined { own, poller, welcome, seconds })
}

fn shape(ids: &[UniqueId], rank: Rank, size: u32) -> Result<Shape> {
    if size == 0 || size > MAX_WORLD {
        return Err(Error::invalid_argument(format!("a world of {size} ranks; 1 to {MAX_WORLD} are possible")));
    }
    if rank.get() >= size {
        return Err(Error::invalid_argument(format!("rank {rank} is no rank of a world of {size}")));
    }
    let roots = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if roots == 0 || roots > size {
        return Err(Error::invalid_argument(format!(
            "{roots} unique ids for a world of {size} ranks; 1 to {size} are possible"
        )));
    }
    if let Some(twice) = (1..ids.len()).find(|i| ids[..*i].contains(&ids[*i])) {
        return Err(Error::invalid_argument(format!("the unique id {:?} is given twice", ids[twice])));
    }
    Ok(Shape { world: size, roots })
}

/// Listens on the interface that the options choose. Where they name none, a root at a fixed or loopback address shows the way.
fn listen(id: &UniqueId, options: &Options) -> Result<Own> {
    let all = interfaces::list()?;
    let near = id.address();
    let shown = options.interfaces.is_empty() && (id.is_fixed() || near.ip().is_loopback());
    let nearest = shown.then(|| interface::nearest(&all, &options.interfaces, options.family, &near)).flatten();
    let chosen = match nearest {
        Some(interface) => interface,
        None => {
            let near = id.is_fixed().then_some(&near);
            interface::choose(&all, &options.interfaces, options.family, near)?.swap_remove(0)
        }
    };
    let interface = interface::address(&chosen);
    let (listener, address) = socket::listen(interface)?;
    tracing::debug!(target: "rsccl::bootstrap", interface = %chosen.name, %address, "listening");
    Ok(Own { interface, listener, address })
}

/// Starts the root of a fixed address, which the root of an earlier communicator may hold a moment longer.
fn serve_fixed(id: &UniqueId, options: &Options, wait: &Wait) -> Result<Root> {
    let poller = Poller::new()?;
    let mut ready = Ready::default();
    let mut tries = 0;
    loop {
        match Root::serve_fixed(id, options) {
            Ok(root) => return Ok(root),
            Err(error) if error.kind() == Kind::System && tries < options.retry_count => {
                let words = error.message().to_owned();
                wait.check(|| format!("the root cannot serve: {words}"))?;
            }
            Err(error) => return Err(error),
        }
        tries += 1;
        poller.wait(&mut ready, wait.deadline.slice(clock::now(), options.retry_sleep))?;
    }
}

/// The rank's side of the exchange: its visit to its own root and, for the first rank of a block, one to root 0.
struct Desk<'a> {
    ids: &'a [UniqueId],
    rank: Rank,
    shape: Shape,
    options: &'a Options,
    poller: &'a Poller,
    visits: Vec<Visit>,
    scratch: Vec<u8>,
}

/// A connection to a root that is made again where it fails.
struct Visit {
    id: UniqueId,
    opening: (u8, Vec<u8>),
    link: Option<Link>,
    tries: u32,
    again: Option<Instant>,
    last: String,
}

impl Visit {
    fn new(id: UniqueId, kind: u8, payload: Vec<u8>) -> Visit {
        Visit { id, opening: (kind, payload), link: None, tries: 0, again: None, last: "no answer yet".to_owned() }
    }

    /// Connects, where it is not and the pause is over.
    fn dial(&mut self, token: u64, desk: (&Poller, &Options, Rank), now: Instant) -> Result<()> {
        if self.link.is_some() || self.again.is_some_and(|again| now < again) {
            return Ok(());
        }
        let (poller, options, rank) = desk;
        let handshake = Handshake::initiate(self.id.terms(), rank, NO_RANK)?;
        match Link::connect(self.id.address(), handshake, MAX_ROOT_FRAME_BYTES) {
            Ok(mut link) => {
                link.queue(self.opening.0, 0, &self.opening.1);
                link.told = link.interest();
                link.handshake_until = Some(now + options.handshake_timeout);
                poller.add(link.fd(), token, link.told)?;
                self.link = Some(link);
                Ok(())
            }
            Err(end) => self.failed(&end, options, now),
        }
    }

    /// Plans another try, or gives up.
    fn failed(&mut self, end: &End, options: &Options, now: Instant) -> Result<()> {
        self.link = None;
        self.tries += 1;
        self.last = end.to_string();
        let at = self.id.address();
        let tries = self.tries;
        match end {
            End::Unreachable(error) if tries > options.retry_count => Err(Error::timeout(format!(
                "the root at {at} cannot be reached in {tries} tries: {error}; does the process that made the id still run, and \
                 does this address lead to it?"
            ))),
            End::Rejected(why) if tries > options.retry_count.min(REJECTED_TRIES) => Err(Error::new(
                Kind::Remote,
                format!(
                    "the root at {at} turned this rank away in {tries} tries: {why}; is it the root of another id?"
                ),
            )),
            End::Closed(why) => {
                Err(Error::new(Kind::Remote, format!("the root at {at} went away before it answered: {why}")))
            }
            End::Unreachable(_) | End::Rejected(_) => {
                self.again = Some(now + options.retry_sleep * tries);
                Ok(())
            }
        }
    }
}

impl Desk<'_> {
    fn run(&mut self, wait: &Wait) -> Result<Table> {
        let mut ready = Ready::default();
        loop {
            wait.check(|| self.overdue())?;
            let now = clock::now();
            for place in 0..self.visits.len() {
                let desk = (self.poller, self.options, self.rank);
                let dialled = self.visits[place].dial(token(place), desk, now);
                self.settle(place, dialled)?;
            }
            let next = self.visits.iter().filter_map(|visit| visit.again.filter(|_| visit.link.is_none())).min();
            let pause = next.map_or(ABORT_CHECK, |next| next.saturating_duration_since(now).min(ABORT_CHECK));
            self.poller.wait(&mut ready, wait.deadline.slice(now, pause))?;
            let now = clock::now();
            for event in ready.iter() {
                let place = usize::try_from(event.token).unwrap_or(usize::MAX);
                if let Some(table) = self.serve(place, event.readable, now)? {
                    return Ok(table);
                }
            }
            self.expire(now)?;
        }
    }

    fn overdue(&self) -> String {
        let at = self.visits[0].id.address();
        let last = &self.visits[0].last;
        match &self.visits[0].link {
            Some(link) if link.peer().is_some() => {
                format!("checked in with the root at {at}, which did not answer in time")
            }
            Some(_) | None => format!("waited for the root at {at} to take our check-in: {last}"),
        }
    }

    fn serve(&mut self, place: usize, readable: bool, now: Instant) -> Result<Option<Table>> {
        let Some(visit) = self.visits.get_mut(place) else { return Ok(None) };
        let Some(link) = &mut visit.link else { return Ok(None) };
        let mut frames = Vec::new();
        let outcome =
            if readable { link.read(&mut self.scratch, &mut frames) } else { Ok(()) }.and_then(|()| link.flush());
        for frame in frames {
            if let Some(table) = self.frame(place, &frame)? {
                return Ok(Some(table));
            }
        }
        match outcome {
            Ok(()) => self.tell_poller(place)?,
            Err(end) => {
                let outcome = self.visits.get_mut(place).map_or(Ok(()), |visit| visit.failed(&end, self.options, now));
                self.settle(place, outcome)?;
            }
        }
        Ok(None)
    }

    fn tell_poller(&mut self, place: usize) -> Result<()> {
        // The visit to root 0 may have ended meanwhile.
        if let Some(link) = self.visits.get_mut(place).and_then(|visit| visit.link.as_mut()) {
            let wanted = link.interest();
            if wanted != link.told {
                self.poller.modify(link.fd(), token(place), wanted)?;
                link.told = wanted;
            }
        }
        Ok(())
    }

    fn frame(&mut self, place: usize, frame: &Frame) -> Result<Option<Table>> {
        match (place, frame.kind) {
            (0, checkin::WELCOME) => {
                let expected = collective::neighbours(self.rank, self.shape.world).len();
                Table::decode(&frame.payload, expected).map(Some)
            }
            (0, checkin::REFUSAL) => Err(checkin::decode_refusal(&frame.payload)),
            (0, checkin::BLOCK) if self.visits.len() == 1 => {
                Block::decode(&frame.payload)?;
                self.visits.push(Visit::new(self.ids[0], checkin::BLOCK, frame.payload.clone()));
                Ok(None)
            }
            // What root 0 says goes to our root, which tells everyone of its block, us too.
            (1, checkin::TABLE | checkin::REFUSAL) => {
                self.tell_own_root(frame.kind, &frame.payload)?;
                Ok(None)
            }
            _ => Err(checkin::unexpected(frame)),
        }
    }

    fn tell_own_root(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        // Root 0 has nothing more to say, and its end is no failure.
        self.visits.truncate(1);
        if let Some(link) = &mut self.visits[0].link {
            link.queue(kind, 0, payload);
            link.flush().map_err(|end| Error::new(Kind::Remote, format!("our root went away: {end}")))?;
        }
        self.tell_poller(0)
    }

    /// The end of the visit to our root is ours; that of the visit to root 0 is our whole block's.
    fn settle(&mut self, place: usize, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(error) if place > 0 => self.tell_own_root(checkin::REFUSAL, &checkin::encode_refusal(&error)),
            other => other,
        }
    }

    /// A root that accepts and then says nothing is as good as none.
    fn expire(&mut self, now: Instant) -> Result<()> {
        for place in 0..self.visits.len() {
            let silent =
                self.visits.get(place).and_then(|visit| visit.link.as_ref()).is_some_and(|link| {
                    link.peer().is_none() && link.handshake_until.is_some_and(|until| now >= until)
                });
            if silent {
                let end = End::Rejected("it did not answer".to_owned());
                let outcome = self.visits[place].failed(&end, self.options, now);
                self.settle(place, outcome)?;
            }
        }
        Ok(())
    }
}

fn token(place: usize) -> u64 {
    u64::try_from(place).unwrap_or(u64::MAX)
}
