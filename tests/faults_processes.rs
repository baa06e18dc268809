//! Faults among ranks that are processes: they are killed, stopped, flooded or aborted, they leave, or they call
//! different things. Every rank gets an error that names the rank and the call, in seconds and not at the deadline; the
//! survivors go on; nothing is left behind.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

mod faults {
    mod abort;
    mod causes;
    mod deaths;
    mod descriptors;
    mod devices;
    mod floods;
    mod forks;
    mod given_back;
    #[cfg(feature = "cuda")]
    mod gpu_direct;
    #[cfg(feature = "cuda")]
    mod gpus;
    #[cfg(feature = "cuda")]
    mod graph_deaths;
    mod jobs;
    mod kills;
    mod leavers;
    mod many;
    #[cfg(feature = "cuda")]
    mod own_faults;
    mod programs;
    #[cfg(feature = "cuda")]
    mod rack;
    mod rest;
    mod retries;
    mod setup;
    #[cfg(feature = "cuda")]
    mod shared_gpus;
    mod stopped;
    mod stores;
    mod windows;
}

use testing::worker;

/// Where a test starts this program as a rank, this is the rank.
#[test]
#[ignore = "one rank of the jobs that the tests of this file start: alone it is no test"]
fn worker() {
    if worker::is_wanted() {
        worker::run();
    }
}

/// Variables that make ranks share memory.
const SHM: &[(&str, &str)] = &[("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_CMA_FORCE", "1")];
/// Variables that make ranks use sockets.
const NET: &[(&str, &str)] = &[("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_SHM_DISABLE", "1")];

fn with<'a>(variables: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [variables, more].concat()
}
