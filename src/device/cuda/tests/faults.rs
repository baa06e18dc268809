//! Calls of the driver that fail: each ends in an error, nothing is left on the GPU, and the next attempt succeeds.
//! They do nothing where there is no GPU; the tests of the module above run them with faults.

use std::collections::BTreeSet;
use std::io::Write as _;

use crate::device::cuda::gpus;
use crate::device::{Average, Device, DeviceMemory, FabricMemory, Kernel, Pass, Place, Sharing, Store};
use crate::error::{Error, Result};
use crate::sync::Deadline;
use crate::sys::clock;
use crate::types::{DataType, ReduceOp};
use machine::gpus::enough;

const BYTES: usize = 256;
/// A fold of some bytes, on a busy computer.
const LONGEST: std::time::Duration = std::time::Duration::from_secs(20);

/// Memory of both kinds, a hand-over, copies, a fold and a call for two ranks.
fn attempt() -> Result<()> {
    let gpu = &gpus()?[0];
    let mine = gpu.allocate(2 * BYTES, Sharing::Threads)?;
    let shared = gpu.allocate(BYTES, Sharing::Processes)?;
    let theirs = gpu.import(gpu.export(&shared)?, BYTES)?;
    shared.keep().detach()?;
    let for_hosts = gpu.allocate(BYTES, Sharing::Hosts)?;
    if gpu.fabric_clique().is_ok() {
        gpu.import_fabric(&gpu.fabric_handle(&for_hosts)?, BYTES)?;
    }
    let host = gpu.memory_of_host(4096, Sharing::Threads)?;
    let _taken = gpu.take_in(&host)?;
    let mut values = [5_u8; BYTES];
    let (mut queue, mut second) = (gpu.queue()?, gpu.queue()?);
    let place =
        |region: &crate::device::Region| Place { address: region.base().as_ptr(), bytes: BYTES, home: gpu.home() };
    // SAFETY: all places have as many bytes, and live until the queues are drained below, or the driver has failed.
    unsafe { queue.copy(Place::on_host(values.as_mut_ptr(), BYTES), place(&mine)) }?;
    second.after(&queue.record()?)?;
    let kernel = Kernel::reduce(DataType::I32, ReduceOp::Sum, 2)?;
    let sources = [mine.base().as_ptr().cast_const(); 2];
    let targets = [theirs.base().as_ptr()];
    let (sources, targets) = (&sources[..], &targets[..]);
    let pass = Pass {
        sources,
        raw: None,
        targets,
        count: BYTES / 4,
        finish: true,
        average: Average::Sum,
        store: Store::Cached,
    };
    // SAFETY: as above.
    unsafe { second.fold(&kernel, &pass) }?;
    // SAFETY: as above.
    unsafe { second.copy(place(&theirs), Place::on_host(values.as_mut_ptr(), BYTES)) }?;
    let done = second.record()?;
    let deadline = Deadline::after(LONGEST);
    while !done.is_done()? {
        assert!(!deadline.passed(clock::now()), "the queue moves");
        std::thread::yield_now();
    }
    if values == [10; BYTES] { Ok(()) } else { Err(Error::internal(format!("wrong: {values:?}"))) }
}

/// Attempts until two in a row succeed: each function that was told to fail once has done so then.
#[test]
fn attempts_go_on_after_failures() {
    let (mut successes, mut named) = (0, BTreeSet::new());
    for _ in 0..MOST_ATTEMPTS {
        match attempt() {
            Ok(()) => successes += 1,
            Err(error) if error.message().contains("no GPU driver") => {
                assert!(enough::<u8, _>(1, Err(error)).is_none());
                return;
            }
            Err(error) => {
                let call = error.message().split(['.', ' ', ':']).find(|word| word.starts_with("cu"));
                named.insert(call.unwrap_or_else(|| panic!("the error names no call: {error}")).to_owned());
                successes = 0;
            }
        }
        if successes == 2 {
            // The test that has told them to fail reads this.
            writeln!(std::io::stderr(), "calls that failed: {}", named.len()).unwrap();
            return;
        }
    }
    panic!("{MOST_ATTEMPTS} attempts, and these failed: {named:?}");
}

/// More than there are functions.
const MOST_ATTEMPTS: usize = 200;
