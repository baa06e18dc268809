//! How a [`NetBootstrap`] makes the bootstrap of a child: its ranks connect while each watches the parent for what
//! befalls them.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

use super::{CLOSE_TIMEOUT, NetBootstrap, Own, read_address};
use crate::bootstrap::collective::{self, ChildKind, open_to_agreement};
use crate::bootstrap::door::{self, Doorway};
use crate::bootstrap::graph;
use crate::bootstrap::{Agreed, BackgroundWork, Bootstrap, Child, MakeChild, cause};
use crate::error::{Error, Kind, Result};
use crate::sync::{Deadline, Wait};
use crate::sys::{clock, limits};
use crate::types::{Rank, World};

/// What a rank needs for a child before it knows the others' addresses.
#[derive(Debug)]
pub(super) struct ChildPlace {
    pub(super) own: Own,
}

/// How long a rank waits on a child's connections before it looks at the parent's.
const CHILD_LOOK: Duration = Duration::from_millis(5);

/// How long a rank waits for what it has sent in a child to leave, if the child is not to be: to a member without
/// descriptors it cannot leave.
const HASTY_CLOSE_TIMEOUT: Duration = Duration::from_millis(100);

/// How long to wait for the note that says why a member left a child: the member sends it just after it leaves.
const CAUSE_PATIENCE: Duration = Duration::from_millis(500);

impl NetBootstrap {
    /// Makes the child with these `members`, given in their new order with their addresses. The inner error is one that
    /// the ranks can agree on.
    fn grow(&self, kind: ChildKind, members: &[(Rank, SocketAddr)], place: ChildPlace, wait: &Wait) -> Agreed<Child> {
        let ranks: Vec<Rank> = members.iter().map(|(rank, _)| *rank).collect();
        let size = u32::try_from(members.len()).map_err(|_| Error::internal("a child larger than its parent"))?;
        let mine = (0..size).zip(&ranks).find(|(_, rank)| **rank == self.world.rank);
        let (mine, _) = mine.ok_or_else(|| Error::internal("a child without its maker"))?;
        let world = World { rank: Rank::new(mine), size };
        let key = collective::child_key(&self.terms.key, kind, &ranks);
        let child = NetBootstrap::open(world, key, place.own, &self.options);
        for (rank, (_, address)) in world.ranks().zip(members) {
            child.control.lock().set_address(rank, *address);
        }
        let neighbours = graph::neighbours(world.rank, size);
        let called: Vec<Rank> = {
            let control = self.control.lock();
            world.ranks().filter(|rank| control.is_called(ranks[rank.index()])).collect()
        };
        let addresses = neighbours.iter().map(|neighbour| members[neighbour.rank.index()].1);
        child.connect_neighbours(addresses, |rank| called.contains(&rank));
        // No rank returns before all connections of the child exist; so a connection that ends later means a dead rank.
        let Err(error) = self.meet_child(&child, kind, &ranks, wait) else {
            return Ok(Ok(collective::child(child, ranks)));
        };
        let error = limits::with_remedy(error);
        if limits::is_shortage(&error) {
            // Members that this rank cannot reach in the child learn of it here.
            self.publish(&cause::child_note(kind, &error));
        }
        let note = cause::failure_note(&in_child(&error, &ranks));
        let error = open_to_agreement(Err(error), wait);
        // The others may have met already and wait in the child's first exchange, or they look for the cause here,
        // where the caller publishes it. The goodbye keeps them from taking this rank for dead in the child.
        let timeout = if error.is_ok() { HASTY_CLOSE_TIMEOUT } else { CLOSE_TIMEOUT };
        child.control.lock().give_up(&note, timeout);
        error.map_err(|error| error.at(self.world.rank).during("connecting the child"))
    }

    /// Waits until all `members` have met in the child. Meanwhile it watches this bootstrap for their deaths: a rank
    /// that dies before it is connected in the child is noticed here at once.
    ///
    /// # Errors
    /// The cause, in the rank numbers of this bootstrap.
    fn meet_child(&self, child: &NetBootstrap, kind: ChildKind, members: &[Rank], wait: &Wait) -> Result<()> {
        // The parent's reader must not see notes of the child's ranks.
        let quiet = wait.clone().with_notes(None);
        let seen = RefCell::new(None);
        let look = || {
            {
                let mut control = child.control.lock();
                control.drive(wait.slice(CHILD_LOOK))?;
                control.check_reach(None)?;
            }
            let watched = self.check_members(members, wait).and_then(|()| self.check_child(kind));
            watched.inspect_err(|cause| *seen.borrow_mut() = Some(cause.duplicate()))
        };
        let words = || "waited for what was sent to the child's ranks to leave".to_owned();
        let mut turn = || look();
        let background = BackgroundWork { turn: &mut turn, pause: Duration::ZERO };
        let connected = loop {
            match child.are_neighbours_linked(&quiet) {
                Ok(true) => break Ok(()),
                Ok(false) => {}
                Err(error) => break Err(error),
            }
            let checked = quiet.check(|| child.waited_for_neighbours());
            if let Err(error) = checked.and_then(|()| look()) {
                break Err(error);
            }
        };
        let meet = |()| collective::barrier_with_background(child, &child.next_group(), &quiet, background);
        let met = connected.and_then(meet).and_then(|()| {
            while child.control.lock().busy().is_some() {
                quiet.check(words)?;
                look()?;
            }
            Ok(())
        });
        met.map_err(|error| match seen.take() {
            Some(cause) => cause,
            None if limits::is_shortage(&error) => error,
            None => self.cause_in_child(&error, (child, members), wait),
        })
    }

    /// Fails if a rank has told that it cannot make its part of the child.
    fn check_child(&self, kind: ChildKind) -> Result<()> {
        let control = self.control.lock();
        let told = control.inbox().child_notes().find_map(|(from, note)| cause::decode_child(from, note, kind));
        told.map_or(Ok(()), Err)
    }

    /// Fails if this bootstrap knows of a death or failure of one of `members`. What befalls other ranks is no concern
    /// of the child.
    fn check_members(&self, members: &[Rank], wait: &Wait) -> Result<()> {
        let mut control = self.control.lock();
        control.drive(Duration::ZERO)?;
        let failed = wait.read(control.inbox().notes().filter(|(from, _)| members.contains(from)));
        failed.and_then(|()| control.inbox().check_dead(|rank| members.contains(&rank)))
    }

    /// The cause of `error`, which came over the connections of `child`. If a member has gone, the reason arrives there
    /// or over this bootstrap.
    fn cause_in_child(&self, error: &Error, (child, members): (&NetBootstrap, &[Rank]), wait: &Wait) -> Error {
        if error.kind() != Kind::Remote {
            return in_parent(error, members);
        }
        let reading = wait.clone().with_notes(Some(cause::failure_reader()));
        let patience = Deadline::after(CAUSE_PATIENCE);
        while !patience.passed(clock::now()) {
            if let Err(cause) = self.check_members(members, wait) {
                return cause;
            }
            if let Err(cause) = reading.read(child.control.lock().inbox().notes()) {
                return in_parent(&cause, members);
            }
            // Waits for more on the parent's connections.
            if let Err(error) = self.control.lock().drive(CHILD_LOOK) {
                return error;
            }
        }
        in_parent(error, members)
    }

    /// What this rank needs first for a child.
    pub(super) fn prepare(&self) -> Result<ChildPlace> {
        let seat = door::enter(&Doorway::plain(self.interface, self.options.ports), |_| Ok(()))?;
        Ok(ChildPlace { own: Own { interface: self.interface, seat } })
    }

    /// Connects the child of `members`, with their addresses, and makes the rest of it.
    pub(super) fn make_child<'a>(
        &self,
        kind: ChildKind,
        members: impl Iterator<Item = Result<(Rank, &'a [u8])>>,
        (place, make): (ChildPlace, MakeChild<'_>),
        wait: &Wait,
    ) -> Agreed<()> {
        let members = members.map(|member| {
            let (rank, bytes) = member?;
            Ok((rank, read_address(bytes).map_err(|error| error.about(rank))?))
        });
        let members: Vec<_> = members.collect::<Result<_>>()?;
        match self.grow(kind, &members, place, wait)? {
            Ok(child) => open_to_agreement(make(child), wait),
            Err(error) => Ok(Err(error)),
        }
    }
}

/// Translates the `error` of a child that is being connected to the parent's rank numbers: `members`.
pub(crate) fn in_parent(error: &Error, members: &[Rank]) -> Error {
    let child = error.peer().map(Rank::new);
    match child.and_then(|child| Some((child, members.get(child.index())?))) {
        Some((child, parent)) => {
            let message = format!("{} (rank {child} of the child is rank {parent} here)", error.message());
            Error::new(error.kind(), message).about(*parent)
        }
        None => Error::new(error.kind(), error.message()),
    }
}

/// The `error` in the rank numbers of a child of `members`. It is about no rank if it was about another than these.
pub(crate) fn in_child(error: &Error, members: &[Rank]) -> Error {
    let place = error.peer().and_then(|peer| (0..).zip(members).find(|(_, member)| member.get() == peer));
    let told = Error::new(error.kind(), error.message());
    place.into_iter().fold(told, |told, (place, _)| told.about(Rank::new(place)))
}
