//! Calls of the driver that fail under a communicator: each ends in an error that names the call, nothing is left on
//! the GPU, and the next attempt succeeds. The test does nothing where there is no GPU; `gpu` starts it again on a
//! virtual machine with faults.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::time::Duration;

use rsccl::comm::DeviceStream;
use rsccl::internals::device::cuda;
use rsccl::{Config, Error, ReduceOp, Result, group, local};

use machine::gpus::enough;

const COUNT: usize = 64;
/// Ranks of which one has failed hear of it at once; on a busy computer, later.
const LONGEST: Duration = Duration::from_secs(60);
/// More than there are functions.
const MOST_ATTEMPTS: usize = 200;

/// On one GPU, or one for each rank: set-up, collectives, messages alone and in a group, a window, copies, the end.
fn attempt() -> Result<()> {
    let config = Config::default().with_timeout(LONGEST);
    let ended = local::run_with(2, &config, |comm| {
        let number = if cuda::gpus()?.len() == 1 { 0 } else { comm.rank() };
        let (stream, other) = (DeviceStream::new(number)?, 1 - comm.rank());
        let (mut mine, mut sum) = (stream.alloc::<u32>(COUNT)?, stream.alloc::<u32>(COUNT)?);
        let (mut all, mut more) = (stream.alloc::<u32>(2 * COUNT)?, stream.alloc::<u32>(2 * COUNT)?);
        stream.upload(&[comm.rank() + 1; COUNT], mine.slice_mut(..))?;
        let on = comm.on(&stream);
        on.all_reduce(mine.slice(..), sum.slice_mut(..), ReduceOp::Sum)?;
        on.all_gather(sum.slice(..), all.slice_mut(..))?;
        on.reduce_scatter(all.slice(..), sum.slice_mut(..), ReduceOp::Max)?;
        on.send_recv(sum.slice(..), other, mine.slice_mut(..), other)?;
        on.all_to_all(all.slice(..), more.slice_mut(..))?;
        on.reduce(sum.slice(..), mine.slice_mut(..), ReduceOp::Sum, 0)?;
        on.gather(sum.slice(..), more.slice_mut(..), 1)?;
        on.scatter(all.slice(..), mine.slice_mut(..), 0)?;
        on.scan(sum.slice(..), mine.slice_mut(..), ReduceOp::Max)?;
        on.barrier()?;
        let mut shared = stream.alloc_shareable::<u32>(COUNT)?;
        let window = comm.register_window(&shared)?;
        on.all_reduce_in_place(shared.slice_mut(..), ReduceOp::Sum)?;
        stream.synchronize()?;
        comm.deregister_window(window)?;
        group(|group| {
            let mut on = group.on_stream(&comm, &stream);
            on.send(mine.slice(..), other)?;
            on.recv(sum.slice_mut(..), other)
        })?;
        comm.on(&stream).broadcast(sum.slice_mut(..), 1)?;
        let mut found = [0; COUNT];
        stream.download(sum.slice(..), &mut found)?;
        if found != [3; COUNT] {
            return Err(Error::invalid_usage(format!("wrong, and nothing has said so: {found:?}")));
        }
        comm.finalize()
    });
    ended.map(drop)
}

/// Attempts until two in a row succeed: each function that was told to fail once has done so then.
#[test]
fn communicators_work_again_after_failures() {
    let (mut successes, mut named) = (0, BTreeSet::new());
    for _ in 0..MOST_ATTEMPTS {
        match attempt() {
            Ok(()) => successes += 1,
            Err(error) if error.message().contains("no GPU driver") => {
                assert!(enough::<u8, _>(1, Err(error)).is_none());
                return;
            }
            Err(error) => {
                let is_call = |word: &&str| word.starts_with("cu") && word[2..].starts_with(char::is_uppercase);
                let call = error.message().split(['.', ' ', ':']).find(is_call);
                named.insert(call.unwrap_or_else(|| panic!("the error names no call: {error}")).to_owned());
                successes = 0;
            }
        }
        if successes == 2 {
            assert!(enough(1, cuda::gpus()).is_some());
            // The test that has told them to fail reads this.
            writeln!(std::io::stderr(), "calls that failed: {}", named.len()).expect("standard error is open");
            return;
        }
    }
    panic!("{MOST_ATTEMPTS} attempts, and these failed: {named:?}");
}
