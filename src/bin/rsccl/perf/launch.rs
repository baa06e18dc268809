//! Ranks: as threads of this process or as processes.

use rsccl::{Error, Result};

use super::job::Job;
use super::{Arguments, Transport, session};

/// Runs `job` on its ranks. Whether all was right.
///
/// # Errors
/// Of the ranks: the error that most likely caused the others'.
pub(crate) fn run(arguments: &Arguments, job: &Job) -> Result<bool> {
    match job.transport {
        Transport::Local => threads(job),
        Transport::Shm | Transport::Net | Transport::Auto => processes(arguments, job),
    }
}

fn threads(job: &Job) -> Result<bool> {
    if job.algo.is_some() || job.proto.is_some() {
        return Err(Error::invalid_usage("--algo, --proto: not built yet"));
    }
    let right = rsccl::local::run(job.ranks, |comm| {
        let right = session::run(&comm, job)?;
        comm.finalize()?;
        Ok(right)
    })?;
    Ok(right.into_iter().all(|right| right))
}

fn processes(_arguments: &Arguments, _job: &Job) -> Result<bool> {
    Err(Error::invalid_usage("--transport shm, net, auto: not built yet; use local"))
}
