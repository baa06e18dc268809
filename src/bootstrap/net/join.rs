//! A rank's check-in with its root.

use std::time::Instant;

use super::{ABORT_CHECK, Own};
use crate::bootstrap::checkin::{self, AddressTable, CheckIn, MAX_ROOT_FRAME_BYTES, MAX_WORLD, RankBlock, WorldShape};
use crate::bootstrap::client::{Service, ServiceClient};
use crate::bootstrap::door::{self, Doorway};
use crate::bootstrap::graph;
use crate::bootstrap::id::{UniqueId, fixed_place};
use crate::bootstrap::link::SCRATCH_BYTES;
use crate::bootstrap::reach::{self, Wanted};
use crate::bootstrap::root::Root;
use crate::bootstrap::rotation::ServicePlace;
use crate::bootstrap::{Options, address, interface};
use crate::error::{Error, Result};
use crate::log;
use crate::sync::Wait;
use crate::sys::clock;
use crate::sys::interfaces::{self, Interface};
use crate::sys::poller::{Poller, Ready};
use crate::types::Rank;
use crate::wire::frame::Frame;

/// The result of a check-in.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) own: Own,
    pub(super) poller: Poller,
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
    let shape = shape(ids, rank, size)?;
    let root = shape.root_of(rank);
    let id = &ids[Rank::new(root).index()];
    // Before this rank listens at a free port, which may be the fixed one.
    let served = if id.is_fixed() && rank == shape.first(root) {
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
    let left = wait.deadline.remaining(started).map_or(u128::MAX, |left| left.as_millis());
    let left_ms = u32::try_from(left).unwrap_or(u32::MAX);
    let mine = CheckIn { rank, shape, root, left_ms, address: own.seat.address() };
    let poller = Poller::new()?;
    let first = shape.first(root);
    let server = Some(first).filter(|first| *first != rank && (id.is_fixed() || options.first_serves));
    let mut client = CheckInClient {
        ids,
        rank,
        shape,
        options,
        poller: &poller,
        own: &own,
        clients: vec![service_client((id, place), (rank, server), (checkin::CHECK_IN, &mine.encode()), options)],
        scratch: vec![0; SCRATCH_BYTES],
        is_late: false,
    };
    let welcome = client.run(wait).map_err(|error| JoinError { error, is_late: client.is_late })?;
    let seconds = clock::now().saturating_duration_since(started).as_secs_f64();
    Ok(Joined { own, poller, welcome, seconds })
}

fn shape(ids: &[UniqueId], rank: Rank, size: u32) -> Result<WorldShape> {
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
    Ok(WorldShape { world: size, roots })
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
struct CheckInClient<'a> {
    ids: &'a [UniqueId],
    rank: Rank,
    shape: WorldShape,
    options: &'a Options,
    poller: &'a Poller,
    own: &'a Own,
    clients: Vec<ServiceClient>,
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
    fn run(&mut self, wait: &Wait) -> Result<AddressTable> {
        let mut ready = Ready::default();
        loop {
            wait.check(|| self.clients[0].state())?;
            let now = clock::now();
            for place in 0..self.clients.len() {
                let outcome = self.clients[place]
                    .expire(now)
                    .and_then(|()| self.clients[place].dial(self.poller, token(place), now));
                self.settle(place, outcome)?;
            }
            let again = self.clients.iter().filter_map(ServiceClient::again).min();
            let pause = again.map_or(ABORT_CHECK, |again| again.saturating_duration_since(now).min(ABORT_CHECK));
            self.poller.wait(&mut ready, wait.slice(pause))?;
            let now = clock::now();
            for event in ready.iter() {
                let place = usize::try_from(event.token).unwrap_or(usize::MAX);
                if let Some(table) = self.serve(place, event.readable, now)? {
                    return Ok(table);
                }
            }
        }
    }

    fn serve(&mut self, place: usize, readable: bool, now: Instant) -> Result<Option<AddressTable>> {
        let Some(client) = self.clients.get_mut(place) else { return Ok(None) };
        let (frames, outcome) = client.serve(self.poller, token(place), readable, &mut self.scratch, now);
        for frame in frames {
            if let Some(table) = self.frame(place, &frame)? {
                return Ok(Some(table));
            }
        }
        // The connection to root 0 may have been closed by its frame.
        if place < self.clients.len() {
            self.settle(place, outcome)?;
        }
        Ok(None)
    }

    fn frame(&mut self, place: usize, frame: &Frame) -> Result<Option<AddressTable>> {
        match (place, frame.kind) {
            (0, checkin::WELCOME) => {
                let expected = graph::neighbours(self.rank, self.shape.world).len();
                AddressTable::decode(&frame.payload, expected).map(Some)
            }
            (0, checkin::REFUSAL) => Err(checkin::decode_refusal(&frame.payload)),
            (0, checkin::LATE) => {
                self.is_late = true;
                Err(checkin::decode_refusal(&frame.payload))
            }
            (0, checkin::BLOCK) if self.clients.len() == 1 => {
                RankBlock::decode(&frame.payload)?;
                let place = place_of(&self.ids[0], self.own, self.options)?;
                self.clients.push(service_client(
                    (&self.ids[0], place),
                    (self.rank, None),
                    (checkin::BLOCK, &frame.payload),
                    self.options,
                ));
                Ok(None)
            }
            // Root 0's answer goes to our own root, which sends it to every rank of its block, this one included.
            (1, checkin::TABLE | checkin::REFUSAL) => {
                self.tell_own_root(frame.kind, &frame.payload)?;
                Ok(None)
            }
            _ => Err(checkin::unexpected(frame)),
        }
    }

    fn tell_own_root(&mut self, kind: u8, payload: &[u8]) -> Result<()> {
        // Root 0 has nothing more to send, and the end of its connection is not a failure.
        self.clients.truncate(1);
        self.clients[0].send(self.poller, token(0), (kind, 0, payload))
    }

    /// A failed connection to our own root fails this rank. A failed connection to root 0 fails the whole block, so our
    /// root is told.
    fn settle(&mut self, place: usize, outcome: Result<()>) -> Result<()> {
        match outcome {
            Err(error) if place > 0 => self.tell_own_root(checkin::REFUSAL, &checkin::encode_refusal(&error)),
            other => other,
        }
    }
}

fn token(place: usize) -> u64 {
    u64::try_from(place).unwrap_or(u64::MAX)
}
