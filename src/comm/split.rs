//! Communicators from communicators: split and shrink.

use crate::bootstrap::{Agreed, Child, in_child, in_parent};
use crate::comm::origin::Origin;
use crate::comm::{Communicator, Home, init, unusable};
use crate::engine::Engine;
use crate::engine::call_log::List;
use crate::error::{Error, Result};
use crate::exec::{Background, NoBackground};
use crate::log;
use crate::sync::{AbortFlag, Wait};
use crate::types::{Rank, World};

impl Communicator {
    /// Splits the ranks: those that pass the same `color` form a new communicator, ranked by (`key`, old rank); those
    /// that pass `None` get `None`. Collective over all ranks. The child lives on without its parent.
    ///
    /// The ranks make what they need for their children, and then all ranks of this communicator agree that every child
    /// is made. If one rank has failed, for want of descriptors, memory or threads, no rank gets a child: all have that
    /// rank's error, which names it and the cause, and this communicator is as before. The next split works once the
    /// cause is gone.
    ///
    /// Where the configuration says non-blocking, the call returns at once: [`Communicator::async_error`] of the child
    /// tells when it can be used, and that of this communicator when it can be used again. If this rank cannot start a
    /// thread, the call waits for the other ranks, to tell them; with requests under way it waits for them too.
    ///
    /// # Errors
    /// The error of a rank that could not make its part of a child, mostly [`crate::error::Kind::System`], after which
    /// this communicator is as before. Other errors end it: those of the exchange, as init's, where a rank has died or
    /// does not come by the communicator's deadline
    /// ([`crate::Config::timeout`]); [`crate::error::Kind::Mismatch`] where other ranks are in another call.
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
        // An engine that goes to a thread could not move what is under way.
        if self.shared.is_busy() || self.with_engine(|engine| Ok(engine.session.settings.blocking))? {
            return self.split_now(color, key);
        }
        let engine = self.lend()?;
        self.make_aside(engine, (None, color.is_some()), move |engine, abort| {
            let wanted = abort.map(|abort| (color, key, abort));
            let made = split_off(engine, wanted, &mut NoBackground);
            let made = made.map_err(|error| if error.kind().ends() { engine.fail(error) } else { error });
            let end = made.as_ref().err().filter(|error| error.kind().ends()).map(Error::duplicate);
            (made.and_then(|agreed| agreed), end)
        })
    }

    /// [`Communicator::split`] that returns when done, whatever the settings say.
    pub(crate) fn split_now(&self, color: Option<u32>, key: i64) -> Result<Option<Communicator>> {
        let abort = AbortFlag::new();
        let made = self.with_engine(|engine| split_off(engine, Ok((color, key, &abort)), &mut NoBackground))?;
        Ok(made?.map(Communicator::ready))
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

    /// The ranks of my host, in rank order: rank i is the one of local rank i. Collective over all ranks. Where the
    /// configuration says non-blocking, the call returns at once, as [`Communicator::split`] does.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    ///
    /// # Examples
    /// ```
    /// rsccl::local::run(3, |comm| {
    ///     let here = comm.on_my_host()?; // threads of one process are on one host
    ///     assert_eq!((here.rank(), here.size()), (comm.rank(), 3));
    ///     Ok(())
    /// })?;
    /// # Ok::<(), rsccl::Error>(())
    /// ```
    pub fn on_my_host(&self) -> Result<Communicator> {
        let here = self.placement()?;
        self.by_color(here.host, i64::from(here.local_rank))
    }

    /// The ranks of my local rank, one of each host that has so many, in the order of the hosts. Collective over all
    /// ranks. That of local rank 0 are the leaders. Where the configuration says non-blocking, the call returns at
    /// once, as [`Communicator::split`] does.
    ///
    /// # Errors
    /// As [`Communicator::split`].
    ///
    /// # Examples
    /// ```
    /// // An all-reduce built from splits: within the hosts, between their leaders, within the hosts.
    /// use rsccl::ReduceOp;
    ///
    /// rsccl::local::run(3, |comm| {
    ///     let (here, across) = (comm.on_my_host()?, comm.cross()?);
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
        let here = self.placement()?;
        self.by_color(here.local_rank, i64::from(here.host))
    }

    /// A new communicator of all ranks but `excluded`, which may be dead; the parent may have failed. Called by the
    /// survivors, with the same list. Ranks keep their order. Where the configuration says non-blocking, the call
    /// returns at once, as [`Communicator::split`] does. The survivors agree as there: if one of them cannot make its
    /// part, they all have its error, and may call again.
    ///
    /// # Errors
    /// As [`Communicator::split`]; [`crate::error::Kind::InvalidArgument`] where this rank or no rank is excluded.
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
        // Of a child that is being made this is an error at once, where `rank` and `size` wait.
        let world = self.world()?;
        if excluded.is_empty() || excluded.contains(&world.rank.get()) {
            let message = "the list of excluded ranks must not be empty, nor hold the calling rank";
            return Err(self.at(Error::invalid_argument(message)));
        }
        if let Some(stranger) = excluded.iter().find(|rank| **rank >= world.size) {
            let message = format!("excluded rank {stranger} is out of range: the world has {} ranks", world.size);
            return Err(self.at(Error::invalid_argument(message)));
        }
        let excluded: Vec<Rank> = excluded.iter().copied().map(Rank::new).collect();
        if self.with_survivor(|engine| Ok(engine.session.settings.blocking))? {
            let abort = AbortFlag::new();
            let made = self.with_survivor(|engine| shrink_off(engine, &excluded, Ok(&abort)))?;
            return made.map(Communicator::ready).map_err(|error| self.at(error));
        }
        let (engine, end) = self.take_survivor()?;
        let left = world.ranks().filter(|rank| !excluded.contains(rank));
        let (below, size) = left.fold((0, 0), |(below, size), rank| (below + u32::from(rank < world.rank), size + 1));
        let child = Some(World { rank: Rank::new(below), size });
        let made = self.make_aside(engine, (child, true), move |engine, abort| {
            let made = shrink_off(engine, &excluded, abort).and_then(|agreed| agreed);
            (made.map(Some).map_err(|error| error.during("shrink")), end)
        });
        made?.ok_or_else(|| self.at(no_child()))
    }

    /// The engine, also of a communicator that has failed, and the error that ended it.
    fn take_survivor(&self) -> Result<(Box<Engine>, Option<Error>)> {
        self.check_process()?;
        let mut home = self.take_turn()?;
        self.shared.settle(&mut home);
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

/// Splits the ranks of `engine`: a color, a key, and the flag that ends the child; or the error of a rank that cannot
/// take part in a child. Yields this rank's engine of the child. The inner error is the same on all ranks, and leaves
/// `engine` as it was.
pub(super) fn split_off(
    engine: &mut Engine,
    wanted: Result<(Option<u32>, i64, &AbortFlag)>,
    background: &mut dyn Background,
) -> Agreed<Option<Engine>> {
    let wait = engine.meet("split", background).map_err(|error| error.during("split"))?;
    let (rank, parent) = (engine.session.world.rank, engine.session.bootstrap.id());
    let birth = Birth { engine, parent_abort: Some(wait.abort.clone()) };
    let (part, passed) = match wanted {
        Ok(wanted) => (Ok((wanted.0, wanted.1)), Some(wanted)),
        Err(error) => (Err(error), None),
    };
    let log = |born: u64| {
        let (color, key, _) = passed.unwrap_or((None, 0, &wait.abort));
        let shown = color.map_or(NO_COLOR, i64::from);
        log::trace!(Call @ rank, "CommSplit({parent:016x},{shown},{key},{born:016x})");
    };
    let mut born = None;
    let mut make = |child: Child| {
        log(child.bootstrap.id());
        let Some((Some(color), key, abort)) = passed else { return Err(no_child()) };
        birth.make(child, (Origin::Split { parent, color, key }, abort), &mut born)
    };
    let agreed = engine.session.bootstrap.split_with(part, &mut make, &wait);
    if born.is_none() && matches!(agreed, Ok(Ok(()))) {
        log(0);
    }
    Birth::end(agreed, born, (rank, "split"))
}

/// Makes a child of `engine` without `excluded`; as [`split_off`] otherwise. The parent may have failed.
fn shrink_off(engine: &mut Engine, excluded: &[Rank], wanted: Result<&AbortFlag>) -> Agreed<Engine> {
    engine.session.begin_call();
    // Not the parent's own flag, which may be raised: only an abort that the program asks for from now on ends this.
    let stop = AbortFlag::new();
    let _following = stop.follow_program(&engine.session.abort);
    let wait = Wait { abort: stop.clone(), ..engine.wait() };
    let (rank, parent) = (engine.session.world.rank, engine.session.bootstrap.id());
    let birth = Birth { engine, parent_abort: Some(stop) };
    let (ready, abort) = match wanted {
        Ok(abort) => (Ok(()), abort.clone()),
        Err(error) => (Err(error), AbortFlag::new()),
    };
    let mut born = None;
    let mut make = |child: Child| {
        let left: Vec<u32> = excluded.iter().copied().map(Rank::get).collect();
        log::trace!(Call @ rank, "CommShrink({parent:016x},{},{:016x})", List(&left), child.bootstrap.id());
        birth.make(child, (Origin::Shrink { parent }, &abort), &mut born)
    };
    let agreed = engine.session.bootstrap.shrink_with(excluded, ready, &mut make, &wait);
    let made = Birth::end(agreed, born, (rank, "shrink"))?;
    Ok(made.and_then(|child| child.ok_or_else(no_child)))
}

/// The making of a child's engine, between the meeting of its ranks and the agreement of the parent's.
struct Birth<'a> {
    engine: &'a Engine,
    /// The parent's flag: until the child is made, an abort of the parent ends it too.
    parent_abort: Option<AbortFlag>,
}

/// A child's engine, and its ranks in the parent.
type Born = Option<(Engine, Vec<Rank>)>;

impl Birth<'_> {
    /// Makes the engine of `child`.
    fn make(&self, child: Child, (origin, abort): (Origin, &AbortFlag), born: &mut Born) -> Result<()> {
        let Child { bootstrap, members, .. } = child;
        let _following = self.parent_abort.as_ref().map(|parent| abort.follow(parent));
        let settings = self.engine.settings_of_child();
        let limit = settings.timeout;
        let seats = Some(self.engine.session.seats.of_child(&members));
        let made = init::make(bootstrap.world(), settings, (&origin, abort, limit), seats, move |_, _| Ok(bootstrap));
        let engine = made.map_err(|error| in_parent(&error, &members))?;
        *born = Some((engine, members));
        Ok(())
    }

    /// What has come of it. A child that is not to be is dropped.
    fn end(agreed: Agreed<()>, born: Born, (rank, call): (Rank, &'static str)) -> Agreed<Option<Engine>> {
        match agreed {
            Ok(Ok(())) => Ok(Ok(born.map(|(engine, _)| engine))),
            Ok(Err(error)) => Ok(Err(error.at(rank).during(call))),
            Err(error) => {
                // The child's other ranks may believe that it is made.
                if let Some((child, members)) = born {
                    child.session.publish_failure(&in_child(&error, &members));
                    child.session.leave();
                }
                Err(error.during(call))
            }
        }
    }
}

/// NCCL's number for no color.
const NO_COLOR: i64 = -1;

#[cold]
pub(super) fn no_child() -> Error {
    Error::internal("a rank with a color got no child")
}
