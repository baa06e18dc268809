//! Ranks as threads of this process.

use crate::bootstrap::{Bootstrap, LocalBootstrap};
use crate::comm::origin::Origin;
use crate::comm::{AbortHandle, Communicator};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::session::settings::Settings;
use crate::sys::thread;

/// Runs `body` on `ranks` threads, each with its rank's communicator, and returns what they return in rank order.
///
/// # Errors
/// [`Kind::InvalidArgument`] for 0 ranks. Where ranks fail, the error that most likely caused the others': one that is
/// not about a peer's end.
///
/// # Panics
/// Where `body` panics on a rank; the other ranks' calls end with errors, not hangs.
///
/// # Examples
/// ```
/// use rsccl::ReduceOp;
///
/// let sums = rsccl::local::run(4, |comm| {
///     let mut sum = [0i32];
///     comm.all_reduce(&[10 + comm.rank() as i32], &mut sum, ReduceOp::Sum)?;
///     Ok(sum[0])
/// })?;
/// assert_eq!(sums, [46; 4]);
/// # Ok::<(), rsccl::Error>(())
/// ```
pub fn run<T: Send>(ranks: u32, body: impl Fn(Communicator) -> Result<T> + Sync) -> Result<Vec<T>> {
    run_with(ranks, &Config::default(), body)
}

/// [`run`] with a configuration, over which the environment is laid.
///
/// # Errors
/// As [`run`]; and for a variable with a bad value.
pub fn run_with<T: Send>(
    ranks: u32,
    config: &Config,
    body: impl Fn(Communicator) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    each_rank(ranks, config, body, |error, _| is_consequence(error))
}

/// [`run_with`] for a body with an error type of its own, which errors of rsccl become by `From`. The type has to be
/// named, as in the example or in the closure's return type: nothing else tells the compiler what `?` makes of an
/// error.
///
/// # Errors
/// Where ranks fail, the error that most likely caused the others': one of a rank whose communicator had not been ended
/// by another rank.
///
/// # Panics
/// As [`run`].
///
/// # Examples
/// ```
/// use rsccl::{Config, ReduceOp, local};
///
/// type AnyError = Box<dyn std::error::Error + Send + Sync>;
///
/// fn main() -> Result<(), AnyError> {
///     let sums = local::try_run::<_, AnyError>(2, &Config::default(), |comm| {
///         let mut sum = ["40".parse::<i32>()?]; // an error of the program's own
///         comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?; // an error of rsccl
///         Ok(sum[0])
///     })?;
///     assert_eq!(sums, [80, 80]);
///     Ok(())
/// }
/// ```
pub fn try_run<T: Send, E: From<Error> + Send>(
    ranks: u32,
    config: &Config,
    body: impl Fn(Communicator) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    each_rank(ranks, config, body, |_, ended| ended.as_ref().is_some_and(is_consequence))
}

/// Runs `body` on each rank. `follows` says whether a rank's error is the consequence of another's; it is also given
/// what had ended the rank's communicator by then.
fn each_rank<T: Send, E: From<Error> + Send>(
    ranks: u32,
    config: &Config,
    body: impl Fn(Communicator) -> Result<T, E> + Sync,
    follows: impl Fn(&E, &Option<Error>) -> bool + Sync,
) -> Result<Vec<T>, E> {
    let config = config.clone().resolve()?;
    crate::log::install(&config, None);
    let settings = Settings { blocking: true, ..Settings::read(&config)? };
    let rank = |bootstrap: LocalBootstrap| {
        let world = bootstrap.world();
        let comm =
            Communicator::begin_init(world, settings.clone(), Origin::Threads, move |_, _| Ok(Box::new(bootstrap)))
                .map_err(|error| (is_consequence(&error), E::from(error)))?;
        let AbortHandle(abort, _) = comm.abort_handle();
        body(comm).map_err(|error| (follows(&error, &abort.check().err()), error))
    };
    let results = thread::side_by_side("rank", LocalBootstrap::world(ranks)?, rank, || ())?;
    collect(results)
}

fn is_consequence(error: &Error) -> bool {
    matches!(error.kind(), Kind::Remote | Kind::Aborted)
}

/// All values, or the error that is most likely the cause: the first that is no consequence of another.
fn collect<T, E>(results: Vec<Result<T, (bool, E)>>) -> Result<Vec<T>, E> {
    let (mut values, mut errors) = (Vec::with_capacity(results.len()), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.push(error),
        }
    }
    errors.sort_by_key(|(follows, _)| *follows);
    match errors.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(values),
    }
}
