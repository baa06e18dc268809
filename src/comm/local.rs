//! Ranks as threads of this process.

use crate::bootstrap::{Bootstrap, LocalBootstrap};
use crate::comm::{Communicator, Settings};
use crate::config::Config;
use crate::error::{Kind, Result};
use crate::sys::thread;

/// Runs `body` on `ranks` threads, each with its rank's communicator, and returns what they return in rank order.
///
/// # Errors
/// [`Kind::InvalidArgument`] for 0 ranks. Where ranks fail, the error that most likely caused the others': one that is not about
/// a peer's end.
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
    let config = config.clone().resolve()?;
    crate::log::install(&config)?;
    let settings = Settings { blocking: true, ..Settings::read(&config)? };
    let rank = |bootstrap: LocalBootstrap| {
        let world = bootstrap.world();
        body(Communicator::start(world, settings.clone(), move |_, _| Ok(Box::new(bootstrap)))?)
    };
    let results = thread::side_by_side("rank", LocalBootstrap::world(ranks)?, rank, || ())?;
    collect(results)
}

/// All values, or the error that is most likely the cause.
fn collect<T>(results: Vec<Result<T>>) -> Result<Vec<T>> {
    let (mut values, mut errors) = (Vec::with_capacity(results.len()), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(error) => errors.push(error),
        }
    }
    errors.sort_by_key(|error| matches!(error.kind(), Kind::Remote | Kind::Aborted));
    match errors.into_iter().next() {
        Some(error) => Err(error),
        None => Ok(values),
    }
}
