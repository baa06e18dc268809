//! Ranks as threads of this process.

use crate::bootstrap::LocalBootstrap;
use crate::comm::{Communicator, Settings};
use crate::error::{Error, Kind, Result};
use crate::sync::AbortFlag;

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
    run_with(ranks, &Settings::default(), body)
}

pub(crate) fn run_with<T: Send>(
    ranks: u32,
    settings: &Settings,
    body: impl Fn(Communicator) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if ranks == 0 {
        return Err(Error::invalid_argument("a world of 0 ranks: give at least 1"));
    }
    let body = &body;
    let bootstraps = LocalBootstrap::world(ranks)?;
    let results: Vec<Result<T>> = std::thread::scope(|scope| {
        let threads: Vec<_> = bootstraps
            .into_iter()
            .enumerate()
            .map(|(rank, bootstrap)| {
                let settings = settings.clone();
                let start = move || body(Communicator::over(Box::new(bootstrap), settings, AbortFlag::new())?);
                let thread = std::thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, start);
                thread.map_err(|error| Error::system(format!("starting the thread of rank {rank}"), error))
            })
            .collect();
        threads
            .into_iter()
            .map(|thread| match thread?.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
            .collect()
    });
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
