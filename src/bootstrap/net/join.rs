//! A rank's check-in with its root.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::{ABORT_CHECK, Own, nap};
use crate::bootstrap::checkin::{
    self, AddressTable, CheckIn, FurtherRoot, MAX_ROOT_FRAME_BYTES, MAX_WORLD, RankBlock, WorldShape,
};
use crate::bootstrap::client::{Service, ServiceClient};
use crate::bootstrap::door::{self, Doorway};
use crate::bootstrap::graph;
use crate::bootstrap::id::{UniqueId, fixed_place};
use crate::bootstrap::link::SCRATCH_BYTES;
use crate::bootstrap::reach::{self, Wanted};
use crate::bootstrap::root::Root;
use crate::bootstrap::rotation::ServicePlace;
use crate::bootstrap::{Options, address, interface};
use crate::error::{Error, Kind, Result};
use crate::log;
use crate::sync::{Chime, Deadline, Wait};
use crate::sys::clock;
use crate::sys::interfaces::{self, Interface};
use crate::sys::poller::{self, Interest, Poller, Ready};
use crate::types::Rank;
use crate::wire::frame::Frame;

/// The result of a check-in.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) own: Own,
    pub(super) welcome: AddressTable,
    pub(super) seconds: f64,
}

/// Why this rank could not join.
#[derive(Debug)]
pub(crate) struct JoinError {
    pub(crate) error: Error,
    /// Whether the ranks of this id had failed to meet before this rank came: if they try again, by another id, it can
    /// join them.
    pub(crate) is_late: bool,
}

impl From<Error> for JoinError {
    fn from(error: Error) -> JoinError {
        JoinError { error, is_late: false }
    }
}

/// Opens a listener, sends its address to the root of this rank's block, and waits for the answer.
pub(super) fn check_in(
    ids: &[UniqueId],
    rank: Rank,
    size: u32,
    options: &Options,
    wait: &Wait,
) -> Result<Joined, JoinError> {
    let started = clock::now();
    let shape = shape(ids, rank, size, options)?;
    let root = shape.root_of(rank);
    // A further root of the world of one id is known to root 0 alone.
    let (id, is_further) = ids.get(Rank::new(root).index()).map_or((&ids[0], true), |id| (id, false));
    // Before this rank listens at a free port, which may be the fixed one.
    let served = if id.is_fixed() && rank == shape.first(root) && !is_further {
        let fixed = fixed_place(options)?.map_or_else(|| id.address().to_string().parse(), Ok)?;
        Some(Root::serve_fixed(id, &fixed, options, wait)?)
    } else {
        None
    };
    let own = listen(id, rank, options, wait)?;
    let place = match served {
        Some((served, near)) => {
            served.detach();
            ServicePlace::Known(vec![near])
        }
        None => place_of(id, &own, options)?,
    };
    if !id.is_authenticated() && rank.get() == 0 {
        log::warn!(
            Bootstrap @ rank,
            "the id has no secret: any process that reaches {} can join; set RSCCL_SECRET or RSCCL_SECRET_FILE",
            id.address()
        );
    }
    let poller = Poller::new()?;
    let mut client = CheckInClient {
        ids,
        rank,
        shape,
        options,
        poller: &poller,
        own: &own,
        clients: Vec::new(),
        looks: false,
        refused: None,
        scratch: vec![0; SCRATCH_BYTES],
        is_late: false,
    };
    client.begin((id, place), is_further, wait)?;
    let welcome = client.run(wait).map_err(|error| JoinError { error, is_late: client.is_late })?;
    let seconds = clock::now().saturating_duration_since(started).as_secs_f64();
    Ok(Joined { own, welcome, seconds })
}

fn shape(ids: &[UniqueId], rank: Rank, size: u32, options: &Options) -> Result<WorldShape> {
    if size == 0 || size > MAX_WORLD {
        return Err(Error::invalid_argument(format!("the world must have 1 to {MAX_WORLD} ranks, got {size}")));
    }
    if rank.get() >= size {
        return Err(Error::invalid_argument(format!("rank {rank} is out of range: the world has {size} ranks")));
    }
    let roots = u32::try_from(ids.len()).unwrap_or(u32::MAX);
    if roots == 0 || roots > size {
        return Err(Error::invalid_argument(format!(
            "a world of {size} ranks needs 1 to {size} unique ids, got {roots}"
        )));
    }
    if let Some(twice) = (1..ids.len()).find(|i| ids[..*i].contains(&ids[*i])) {
        return Err(Error::invalid_argument(format!("the unique id {:?} is given twice", ids[twice])));
    }
    // The caller who passes several ids has chosen.
    Ok(WorldShape { world: size, roots: if roots == 1 { options.roots(size) } else { roots }, ids: roots })
}

/// Listens on the interface that the options choose. If they name none and the root has a fixed or loopback address,
/// the interface nearest to it is used. The interface must be one that other hosts can reach, unless the root is on
/// this host's loopback.
fn listen(id: &UniqueId, rank: Rank, options: &Options, wait: &Wait) -> Result<Own> {
    id.check_reach()?;
    let root = id.address();
    // A name that leads to loopback here leads elsewhere on other hosts: then loopback says nothing of where ranks are.
    let by_name = fixed_place(options)?.is_some_and(|place| id.is_fixed() && !place.is_explicit_loopback());
    let is_known = !(by_name && root.ip().is_loopback());
    let shown = options.interfaces.is_empty() && (id.is_fixed() || root.ip().is_loopback());
    let pick = |all: &[Interface]| {
        let near = (shown && is_known).then_some(&root);
        let nearest = near.and_then(|near| interface::nearest(all, &options.interfaces, options.family, near));
        nearest.map_or_else(
            || {
                let near = (id.is_fixed() && is_known).then_some(&root);
                Ok(interface::choose(all, &options.interfaces, options.family, near)?.swap_remove(0))
            },
            Ok,
        )
    };
    // If the user names loopback and the root has an address of this host, all ranks are on this host.
    let is_here = |all: &[Interface]| all.iter().any(|interface| interface.address == root.ip());
    let by_others = |all: &[Interface]| match is_known {
        true => !root.ip().is_loopback() && (options.interfaces.is_empty() || !is_here(all)),
        false => options.other_hosts,
    };
    let chosen = reach::interface(&Wanted { pick: &pick, by_others: &by_others }, options, wait)?;
    let interface = interface::address(&chosen);
    let enter = |address| door::enter(&Doorway::plain(address, options.ports), |_| Ok(()));
    let seat = reach::listen(&chosen, wait, enter)?;
    log::info!(Bootstrap @ rank, "Bootstrap: Using {}", interface::Using(&chosen.name, seat.address()));
    Ok(Own { interface, seat })
}

/// Where the root of `id` may be: a fixed address may be a name, which is looked up for every round of tries; an
/// address that another rank has put into the id may have to be made one of this host.
fn place_of(id: &UniqueId, own: &Own, options: &Options) -> Result<ServicePlace> {
    if id.is_fixed()
        && let Some(place) = fixed_place(options)?
    {
        return Ok(ServicePlace::Host(place, options.family));
    }
    Ok(ServicePlace::Known(address::localise(id.address(), own.interface, &interfaces::list()?)))
}

/// The rank's side of a check-in: a connection to its own root and, for the first rank of a block, one to root 0.
///
/// The first rank of each further block says to root 0 where the root of that block serves. In a large world of one id
/// it serves that root itself; the other ranks of the block ask root 0 first where that is, and then check in there.
struct CheckInClient<'a> {
    ids: &'a [UniqueId],
    rank: Rank,
    shape: WorldShape,
    options: &'a Options,
    poller: &'a Poller,
    own: &'a Own,
    clients: Vec<ServiceClient>,
    /// Whether the connection is one to root 0, which is asked where this rank's own root serves.
    looks: bool,
    /// Why root 0 refuses this rank's block.
    refused: Option<Vec<u8>>,
    scratch: Vec<u8>,
    is_late: bool,
}

fn service_client(
    (id, place): (&UniqueId, ServicePlace),
    (rank, server): (Rank, Option<Rank>),
    opening: (u8, &[u8]),
    options: &Options,
) -> ServiceClient {
    let service = Service {
        name: "the root",
        hint: "does the process that made the id still run, and does this address lead to it?",
        server,
        place,
        terms: id.terms(options),
        most_bytes: MAX_ROOT_FRAME_BYTES,
    };
    ServiceClient::new(service, rank, Some(opening), options)
}

impl CheckInClient<'_> {
    /// Begins to connect to the root of `id`, which is at `place`: this rank's own, unless that is a further one.
    fn begin(&mut self, (id, place): (&UniqueId, ServicePlace), is_further: bool, wait: &Wait) -> Result<()> {
        let (shape, root) = (self.shape, self.shape.root_of(self.rank));
        let knows_server = id.is_fixed() || self.options.first_serves;
        let serves = shape.first(root) == self.rank;
        if !is_further {
            self.check_in_at((id, place), knows_server, wait)?;
            if root > 0 && serves {
                let (first, at) = (&self.ids[0], Some(id.address()));
                let place = place_of(first, self.own, self.options)?;
                self.say_of_root((first, place), None, at, wait);
            }
            return Ok(());
        }
        let at = serves.then(|| Root::serve_further(id, self.own.interface, self.options)).transpose()?;
        if let Some(at) = at {
            log::detail!(Bootstrap @ self.rank, "Bootstrap: root {root} of {} listens on {at}", shape.roots);
            self.check_in_at((id, ServicePlace::Known(vec![at])), true, wait)?;
        }
        self.looks = at.is_none();
        self.say_of_root((id, place), knows_server.then_some(Rank::new(0)), at, wait);
        Ok(())
    }

    /// Begins to tell root 0 where this rank's own root serves, or to ask it. `server`: the rank in whose process
    /// root 0 is, where that is known.
    fn say_of_root(
        &mut self,
        (id, place): (&UniqueId, ServicePlace),
        server: Option<Rank>,
        at: Option<SocketAddr>,
        wait: &Wait,
    ) {
        let (rank, shape, root) = (self.rank, self.shape, self.shape.root_of(self.rank));
        let (kind, said) = FurtherRoot { rank, shape, root, left_ms: left_ms(wait), at }.encode();
        self.clients.push(service_client((id, place), (rank, server), (kind, &said), self.options));
    }

    /// Begins to check in with this rank's own root. `knows_server`: it is in the process of the block's first rank.
    fn check_in_at(&mut self, (id, place): (&UniqueId, ServicePlace), knows_server: bool, wait: &Wait) -> Result<()> {
        let (rank, shape, root) = (self.rank, self.shape, self.shape.root_of(self.rank));
        let left_ms = left_ms(wait);
        let (address, encryption) = (self.own.seat.address(), self.options.encryption);
        let mine = CheckIn { rank, shape, root, left_ms, address, encryption };
        let server = Some(shape.first(root)).filter(|first| *first != rank && knows_server);
        let opening = (checkin::CHECK_IN, &*mine.encode());
        self.clients = vec![service_client((id, place), (rank, server), opening, self.options)];
        Ok(())
    }

    /// What is waited for, in words.
    fn state(&self) -> String {
        if self.looks && self.clients[0].is_connected() {
            let root = self.shape.root_of(self.rank);
            let (first, count) = (self.shape.first(root).get(), self.shape.count(root));
            return format!(
                "rank {first} has not come, in whose process the {count} ranks from it on check in (root {root} of {})",
                self.shape.roots
            );
        }
        self.clients[0].state()
    }

    fn run(&mut self, wait: &Wait) -> Result<AddressTable> {
        let (mut ready, chime) = (Ready::default(), Chime::of_thread());
        wait.abort.mirror(&chime);
        loop {
            // First, so that an abort behind the look at its flag ends the sleep.
            let heard = chime.count();
            wait.check(|| self.state())
                .map_err(|error| if error.kind() == Kind::Timeout { self.why_refused(error) } else { error })?;
            let now = clock::now();
            for place in 0..self.clients.len() {
                let outcome = self.clients[place]
                    .expire(now)
                    .and_then(|()| self.clients[place].dial(self.poller, token(place), now));
                self.settle(place, outcome)?;
            }
            self.sleep((&chime, heard), now, wait)?;
            self.poller.wait(&mut ready, Duration::ZERO)?;
            let now = clock::now();
            for event in ready.iter() {
                let place = usize::try_from(event.token).unwrap_or(usize::MAX);
                if let Some(table) = self.serve(place, (event.readable, now), wait)? {
                    return Ok(table);
                }
            }
        }
    }

    /// Sleeps until a connection can move, one is to be tried again, or the chime has rung more than `heard` times.
    fn sleep(&self, (chime, heard): (&Chime, u64), now: Instant, wait: &Wait) -> Result<()> {
        let again = self.clients.iter().filter_map(ServiceClient::again).min();
        // What is not connected has times of its own, and looks up names.
        let is_answer_left = self.clients.iter().all(ServiceClient::is_connected);
        let longest = if is_answer_left { nap(self.options, self.shape.world, wait) } else { ABORT_CHECK };
        let pause = again.map_or(longest, |again| again.saturating_duration_since(now).min(longest));
        let descriptors = [(self.poller.as_fd(), Interest::Read)];
        if !chime.sleep_beside(heard, &descriptors, wait.slice(pause)) {
            // No descriptor is left by which an abort could end the sleep.
            poller::wait_any(&descriptors, wait.slice(pause.min(ABORT_CHECK)))?;
        }
        Ok(())
    }

    fn serve(&mut self, place: usize, (readable, now): (bool, Instant), wait: &Wait) -> Result<Option<AddressTable>> {
        let Some(client) = self.clients.get_mut(place) else { return Ok(None) };
        let (frames, outcome) = client.serve(self.poller, token(place), readable, &mut self.scratch, now);
        for frame in frames {
            if self.looks && frame.kind == checkin::PLACE {
                self.found(checkin::decode_place(&frame.payload)?, wait)?;
                // Root 0 has closed the connection, which has been replaced.
                return Ok(None);
            }
            if let Some(table) = self.frame(place, &frame, wait)? {
                return Ok(Some(table));
            }
        }
        // The connection to root 0 may have been closed by its frame.
        if place < self.clients.len() {
            self.settle(place, outcome)?;
        }
        Ok(None)
    }

    /// This rank's own root serves at `at`.
    fn found(&mut self, at: SocketAddr, wait: &Wait) -> Result<()> {
        self.looks = false;
        let place = ServicePlace::Known(address::localise(at, self.own.interface, &interfaces::list()?));
        self.check_in_at((&self.ids[0], place), true, wait)
    }

    fn frame(&mut self, place: usize, frame: &Frame, wait: &Wait) -> Result<Option<AddressTable>> {
        match (place, frame.kind) {
            (0, checkin::WELCOME) => {
                let expected = graph::neighbours(self.rank, self.shape.world).len();
                AddressTable::decode(&frame.payload, expected).map(Some)
            }
            (0, checkin::REFUSAL) => {
                if let Err(error) = self.tell_root_0(&frame.payload, wait) {
                    log::trace!(Bootstrap @ self.rank, "root 0 does not hear why this rank's root has failed: {error}");
                }
                Err(checkin::decode_refusal(&frame.payload))
            }
            (0, checkin::LATE) => {
                self.is_late = true;
                Err(checkin::decode_refusal(&frame.payload))
            }
            // It was on its way when root 0 refused the block.
            (0, checkin::BLOCK) if self.refused.is_some() => Ok(None),
            // Root 0 knows this rank already.
            (0, checkin::BLOCK) if self.clients.len() > 1 => {
                RankBlock::decode(&frame.payload)?;
                self.clients[1].send_always(self.poller, token(1), (checkin::BLOCK, &frame.payload))?;
                Ok(None)
            }
            // Root 0's answer goes to our own root, which sends it to every rank of its block, this one included.
            (1, checkin::TABLE | checkin::REFUSAL) => {
                self.tell_own_root(frame.kind, &frame.payload)?;
                Ok(None)
            }
            (1, checkin::LATE) => {
                self.is_late = true;
                self.tell_own_root(checkin::REFUSAL, &frame.payload)?;
                Ok(None)
            }
            _ => Err(checkin::unexpected(frame)),
        }
    }

    /// Passes on what root 0 has said: the table, or why it refuses the block. The latter is said also over a
    /// connection that is made later, and is this rank's own error if none is.
    fn tell_own_root(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        // Root 0 has nothing more to send, and the end of its connection is not a failure.
        self.clients.truncate(1);
        if kind == checkin::TABLE {
            return self.clients[0].send(self.poller, token(0), (kind, 0, payload));
        }
        self.refused = Some(payload.to_vec());
        let told = self.clients[0].send_always(self.poller, token(0), (kind, payload));
        told.map_err(|error| self.why_refused(error))
    }

    /// Why root 0 refuses the block, if it does: this rank's own root has failed, or has not answered, besides.
    fn why_refused(&self, error: Error) -> Error {
        self.refused.as_deref().map_or(error, checkin::decode_refusal)
    }

    /// Tells root 0, if this rank has a connection there, why its own root has failed: all ranks learn of that, and
    /// root 0 does not take the end of the connection for the death of this rank.
    fn tell_root_0(&mut self, refusal: &[u8], wait: &Wait) -> Result<()> {
        let [own, root_0] = &mut self.clients[..] else { return Ok(()) };
        // Its end, which is near, would wake this rank again and again.
        own.link = None;
        root_0.send_always(self.poller, token(1), (checkin::REFUSAL, refusal))?;
        let (wait, mut ready) = (wait.until(Deadline::within_wait(REFUSAL_PATIENCE)), Ready::default());
        while !root_0
            .link
            .as_ref()
            .is_some_and(|link| link.peer().is_some() && link.unsent() == 0 && link.is_delivered())
        {
            wait.check(|| root_0.state())?;
            root_0.dial(self.poller, token(1), clock::now())?;
            self.poller.wait(&mut ready, wait.slice(ABORT_CHECK))?;
            root_0.serve(self.poller, token(1), true, &mut self.scratch, clock::now()).1?;
        }
        Ok(())
    }

    /// A failed connection to our own root fails this rank. A failed connection to root 0 fails the whole block, so our
    /// root is told.
    fn settle(&mut self, place: usize, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(error) if place > 0 => self.tell_own_root(checkin::REFUSAL, &checkin::encode_refusal(&error)),
            other => other.map_err(|error| self.why_refused(error)),
        }
    }
}

/// How long the first rank of a block, whose root has failed, takes at most to say so to root 0.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(1);

fn left_ms(wait: &Wait) -> u32 {
    let left = wait.deadline.remaining(clock::now()).map_or(u128::MAX, |left| left.as_millis());
    u32::try_from(left).unwrap_or(u32::MAX)
}

fn token(place: usize) -> u64 {
    u64::try_from(place).unwrap_or(u64::MAX)
}
