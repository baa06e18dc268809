//! What every program here looks at first: whether the job has the ranks that it was started for.

use std::env;

/// Compares the number of ranks with `--ranks N` of the command line, if that is given.
///
/// # Panics
/// If they differ. The `mpirun` of another MPI starts programs that each believe to be alone: without this, such a job would
/// end well and have shown nothing.
pub(crate) fn expect_ranks(ranks: u32) {
    let mut words = env::args();
    if words.any(|word| word == "--ranks") {
        let wanted: u32 = words.next().and_then(|word| word.parse().ok()).expect("--ranks needs a number");
        assert_eq!(ranks, wanted, "started for {wanted} ranks, but there are {ranks}: an mpirun of another MPI?");
    }
}
