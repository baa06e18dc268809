//! Communicators from communicators: split and shrink.

use crate::bootstrap::{Child, in_parent};
use crate::comm::call_log::List;
use crate::comm::engine::Engine;
use crate::comm::origin::Origin;
use crate::comm::{Communicator, Home, Settings, init, unusable};
use crate::error::{Error, Result};
use crate::exec::{Background, NoBackground};
use crate::log;
use crate::sync::{AbortFlag, Wait};
use crate::types::{Rank, World};

impl Communicator {
    /// Splits the ranks: those that pass the same `color` form a new communicator, ranked by (`key`, old rank); those
    /// that pass `None` get `None`. Collective over all ranks. The child lives on without its parent.
    ///
    /// Where the configuration says non-blocking, the call returns at once: [`Communicator::async_error`] of the child
    /// tells when it can be used, and that of this communicator when it can be used again, which is before that.
    ///
    /// # Errors
    /// Of the exchange, as init's; [`crate::error::Kind::Mismatch`] where other ranks are in another call.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(5, |comm| {
    ///     let color = (comm.rank() != 4).then_some(comm.rank() % 2);
    ///     // The greater key comes last: ranks are turned round.
    ///     match comm.split(color, -i64::from(comm.rank()))? {
    ///         Some(half) => assert_eq!((half.size(), half.rank()), (2, 1 - comm.rank() / 2)),
    ///         None => assert_eq!(comm.rank(), 4),
    ///     }
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn split(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        if self.with_engine(|engine| Ok(engine.session.settings.blocking))? {
            return self.split_now(color, key);
        }
        let engine = self.lend()?;
        self.make_aside(engine, (None, color.is_some()), move |engine| {
            let unfinished = begin_split(engine, (color, key), &mut NoBackground);
            let unfinished = unfinished.map_err(|error| if error.kind().ends() { engine.fail(error) } else { error });
            let end = unfinished.as_ref().err().filter(|error| error.kind().ends()).map(Error::duplicate);
            (unfinished, end)
        })
    }

    /// [`Communicator::split`] that returns when done, whatever the settings say.
    pub(crate) fn split_now(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        let unfinished = self.with_engine(|engine| begin_split(engine, (color, key), &mut NoBackground))?;
        unfinished.map(UnfinishedChild::finish).transpose()
    }

    /// The ranks that pass the same `color`, ranked by (`key`, old rank): [`Communicator::split`] where every rank goes
    /// somewhere. Collective over all ranks.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    ///
    /// # Examples
    /// ```
    /// // The rows and columns of a grid of 2 by 3.
    /// rsccl::local::run(6, |comm| {
    ///     let (row, column) = (comm.rank() / 3, comm.rank() % 3);
    ///     let along_row = comm.by_color(row, 0)?;
    ///     let along_column = comm.by_color(column, 0)?;
    ///     assert_eq!((along_row.rank(), along_row.size()), (column, 3));
    ///     assert_eq!((along_column.rank(), along_column.size()), (row, 2));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn by_color(&self, color: u32, key: i64) -> Result<Communicator> {
        self.split(Some(color), key)?.ok_or_else(|| self.at(no_child()))
    }

    /// The ranks of my host, in rank order: rank i is the one of local rank i. Collective over all ranks.
    ///
    /// # Errors
    /// As [`Communicator::placement`] and [`Communicator::split`].
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let here = comm.local()?; // threads of one process are on one host
    ///     assert_eq!((here.rank(), here.size()), (comm.rank(), 3));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn local(&self) -> Result<Communicator> {
        let placement = self.placement()?;
        self.by_color(placement.host, i64::from(placement.local_rank))
    }

    /// The ranks of my local rank, one of each host that has so many, in the order of the hosts. Collective over all
    /// ranks. That of local rank 0 are the leaders.
    ///
    /// # Errors
    /// As [`Communicator::placement`] and [`Communicator::split`].
    ///
    /// # Examples
    /// ```
    /// // An all-reduce built from splits: within the hosts, between their leaders, within the hosts.
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let (here, across) = (comm.local()?, comm.cross()?);
    ///     let mut sum = [comm.rank()];
    ///     here.reduce_in_place(&mut sum, ReduceOp::Sum, 0)?;
    ///     if comm.placement()?.leader_rank.is_some() {
    ///         across.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    ///     }
    ///     here.broadcast(&mut sum, 0)?;
    ///     assert_eq!(sum, [3]);
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn cross(&self) -> Result<Communicator> {
        let placement = self.placement()?;
        self.by_color(placement.local_rank, i64::from(placement.host))
    }

    /// A new communicator of all ranks but `excluded`, which may be dead; the parent may have failed. Called by the
    /// survivors, with the same list. Ranks keep their order. Where the configuration says non-blocking, the call
    /// returns at once, as [`Communicator::split`] does.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where this rank or no rank is excluded.
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     if comm.rank() == 1 {
    ///         return Ok(()); // leaves
    ///     }
    ///     let rest = comm.shrink(&[1])?;
    ///     assert_eq!((rest.size(), rest.rank()), (2, comm.rank() / 2));
    ///     rest.barrier()
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn shrink(&self, excluded: &[u32]) -> Result<Communicator> {
        if excluded.is_empty() || excluded.contains(&self.rank()) {
            let message = "the list of excluded ranks must not be empty, nor hold the calling rank";
            return Err(self.at(Error::invalid_argument(message)));
        }
        if let Some(stranger) = excluded.iter().find(|rank| **rank >= self.size()) {
            let message = format!("excluded rank {stranger} is out of range: the world has {} ranks", self.size());
            return Err(self.at(Error::invalid_argument(message)));
        }
        let excluded: Vec<Rank> = excluded.iter().copied().map(Rank::new).collect();
        let world = self.world()?;
        if self.with_survivor(|engine| Ok(engine.session.settings.blocking))? {
            return self.with_survivor(|engine| begin_shrink(engine, &excluded))?.finish();
        }
        let (engine, end) = self.take_survivor()?;
        let left = world.ranks().filter(|rank| !excluded.contains(rank));
        let (below, size) = left.fold((0, 0), |(below, size), rank| (below + u32::from(rank < world.rank), size + 1));
        let child = Some(World { rank: Rank::new(below), size });
        let made = self.make_aside(engine, (child, true), move |engine| {
            let unfinished = begin_shrink(engine, &excluded).map_err(|error| error.during("shrink"));
            (unfinished.map(Some), end)
        });
        made?.ok_or_else(|| self.at(no_child()))
    }

    /// The engine, also of a communicator that has failed, and the error that ended it.
    fn take_survivor(&self) -> Result<(Box<Engine>, Option<Error>)> {
        self.check_process()?;
        let mut home = self.take_turn()?;
        match std::mem::replace(&mut *home, Home::Lent) {
            Home::Ready(engine) => Ok((engine, None)),
            Home::Failed(Some(engine), error) => Ok((engine, Some(error))),
            other => {
                let error = unusable(&other);
                *home = other;
                Err(self.at(error))
            }
        }
    }
}

/// A child whose ranks know each other, but which has no engine yet.
#[derive(Debug)]
pub(super) struct UnfinishedChild {
    child: Child,
    settings: Settings,
    origin: Origin,
    /// The parent's flag: an abort of the parent also ends what is left to do.
    parent: Option<AbortFlag>,
    /// The rank in the parent that called.
    rank: Rank,
}

/// The half of a split that needs the parent's engine: its ranks agree on the children.
pub(super) fn begin_split(
    engine: &mut Engine,
    (color, key): (Option<u32>, i64),
    background: &mut dyn Background,
) -> Result<Option<UnfinishedChild>> {
    let split = engine.meet("split", background).and_then(|wait| engine.session.bootstrap.split(color, key, &wait));
    let child = split.map_err(|error| error.during("split"))?;
    let (rank, parent) = (engine.session.world.rank, engine.session.bootstrap.id());
    let born = child.as_ref().map_or(0, |child| child.bootstrap.id());
    let shown = color.map_or(NO_COLOR, i64::from);
    log::trace!(Call @ rank, "CommSplit({parent:016x},{shown},{key},{born:016x})");
    let abort = engine.init_wait().abort;
    let unfinished = |child| {
        let origin = Origin::Split { parent, color: color.unwrap_or_default(), key };
        UnfinishedChild { child, settings: engine.settings_of_child(), origin, parent: Some(abort), rank }
    };
    Ok(child.map(unfinished))
}

/// The half of a shrink that needs the parent's engine: the ranks that are left agree on the child.
fn begin_shrink(engine: &mut Engine, excluded: &[Rank]) -> Result<UnfinishedChild> {
    // Not the parent's own flag: that may be raised, as the parent may have failed.
    let wait = Wait { abort: AbortFlag::new(), ..engine.init_wait() };
    let (child, parent) = (engine.session.bootstrap.shrink(excluded, &wait)?, engine.session.bootstrap.id());
    let (rank, born) = (engine.session.world.rank, child.bootstrap.id());
    let left: Vec<u32> = excluded.iter().copied().map(Rank::get).collect();
    log::trace!(Call @ rank, "CommShrink({parent:016x},{},{born:016x})", List(&left));
    Ok(UnfinishedChild {
        child,
        settings: engine.settings_of_child(),
        origin: Origin::Shrink { parent },
        parent: None,
        rank,
    })
}

impl UnfinishedChild {
    /// The other half, of the child's ranks alone, on the calling thread: the child's engine.
    pub(super) fn into_engine(self, abort: &AbortFlag) -> Result<Engine> {
        let UnfinishedChild { child, settings, origin, parent, .. } = self;
        // Until the child is made; from then on an abort of the parent is none of the child.
        let _following = parent.map(|parent| abort.follow(&parent));
        let world = child.bootstrap.world();
        init::make(world, settings, (&origin, abort), move |_, _| Ok(child.bootstrap))
    }

    /// The other half, of the child's ranks alone: the child, which is still being made where its settings say
    /// non-blocking.
    pub(super) fn finish(self) -> Result<Communicator> {
        let UnfinishedChild { child, settings, origin, parent, rank } = self;
        let call = origin.call();
        let world = child.bootstrap.world();
        let members = child.members;
        let grown = Communicator::start_under(parent, (world, settings, origin), move |_, _| Ok(child.bootstrap));
        grown.map_err(|error| in_parent(&error, &members).at(rank).during(call))
    }
}

/// NCCL's number for no color.
const NO_COLOR: i64 = -1;

#[cold]
pub(super) fn no_child() -> Error {
    Error::internal("a rank with a color got no child")
}
