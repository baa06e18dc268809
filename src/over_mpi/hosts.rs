//! Compares the hosts that MPI sees with the hosts that rsccl sees.

use crate::comm::{Communicator, Placement};
use crate::error::Result;
use crate::over_mpi::agreement::agree;
use crate::over_mpi::relatives::{CheckPurpose, Ranks, private_duplicate};
use crate::over_mpi::{Handle, Mpi};
use crate::types::Rank;

/// [`Communicator::placement`], compared with what MPI reports about shared memory.
///
/// # Errors
/// As [`check`](super::check) and [`Communicator::placement`].
///
/// # Safety
/// As [`communicator`](super::communicator).
pub(crate) unsafe fn placement(mpi: Mpi, comm: &Communicator, theirs: Handle) -> Result<Placement> {
    let placement = comm.placement()?;
    // SAFETY: the caller's promise.
    unsafe { compare(mpi, comm, theirs, &placement) }.map_err(|error| error.inside("placement"))?;
    Ok(placement)
}

/// Logs a warning on one rank if MPI sees other hosts.
///
/// # Safety
/// As [`placement`].
unsafe fn compare(mpi: Mpi, comm: &Communicator, theirs: Handle, placement: &Placement) -> Result<()> {
    // SAFETY: the caller's promise.
    let private = unsafe { private_duplicate(mpi, comm, theirs, CheckPurpose::Placement) }?;
    let shared = agree(&mut Ranks(comm), private.shared_memory_ranks())?;
    private.free()?;
    let mut hosts = vec![0; comm.size() as usize];
    comm.all_gather(&[placement.host], &mut hosts)?;
    let beside: Vec<Rank> =
        (0..).zip(&hosts).filter(|(_, host)| **host == placement.host).map(|(rank, _)| Rank::new(rank)).collect();
    let mut differs = vec![0u8; hosts.len()];
    comm.all_gather(&[u8::from(shared != beside)], &mut differs)?;
    // One line for the job: the first rank that sees a difference logs it.
    if differs.iter().position(|differs| *differs != 0) == Some(comm.rank() as usize) {
        let rank = Rank::new(comm.rank());
        crate::log::warn!(Init @ rank, "{}", disagreement(&shared, &beside, &placement.host_name));
    }
    Ok(())
}

/// The warning of a rank that shares memory with `shared` according to MPI, and with `beside` according to rsccl.
fn disagreement(shared: &[Rank], beside: &[Rank], host: &str) -> String {
    format!(
        "MPI says that the ranks {} share memory; on host {host} rsccl has the ranks {} (a host is its name and boot, \
         or NCCL_HOSTID, and its network namespace): rsccl's view counts",
        listed(shared),
        listed(beside)
    )
}

fn listed(ranks: &[Rank]) -> String {
    let named: Vec<String> = ranks.iter().take(NAMED_RANKS).map(Rank::to_string).collect();
    let more = ranks.len().saturating_sub(NAMED_RANKS);
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}

/// The most ranks that a warning lists.
const NAMED_RANKS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_names_both_views() {
        let ranks = |count| (0..count).map(Rank::new).collect::<Vec<_>>();
        let text = disagreement(&ranks(20), &ranks(2), "node7");
        assert!(
            text.contains("the ranks 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 and 4 more share memory")
        );
        assert!(text.contains("on host node7 rsccl has the ranks 0, 1 ("));
    }
}
