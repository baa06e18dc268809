//! Goal: a rank dies in the middle of the work. The survivors, waiting for it in a collective, get an error that names it; they
//! go on without it in a smaller communicator. Ranks are processes here, and the one that dies says no goodbye.
//!
//!     cargo run --example 08_faults
//!
//! Prints (the others' words for its death may differ):
//!
//!     rank 0: all_reduce #1: rank 2 has died: ...
//!     3 of 4 go on: 0 + 1 + 3 = 4
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]
#![expect(clippy::disallowed_methods, reason = "the rule on the environment is the library's")]

use std::error::Error;
use std::process::Command;

use rsccl::{Communicator, ReduceOp};

const WORLD: u32 = 4;
const VICTIM: u32 = 2;
/// What the victim ends with.
const DEAD: i32 = 9;

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os("RSCCL_RANK").is_some() { rank() } else { launch() }
}

/// What each rank does.
fn rank() -> Result<(), Box<dyn Error>> {
    let comm = Communicator::from_env()?;
    let mut sum = [comm.rank()];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    assert_eq!(sum[0], 6);

    if comm.rank() == VICTIM {
        std::process::exit(DEAD);
    }
    let mut sum = [comm.rank()];
    let error = comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect_err("a rank is missing");
    if comm.rank() == 0 {
        println!("{error}");
    }
    // The error names who is to blame, so a program can act on it.
    let dead = error.peer().ok_or("the error names no peer")?;
    assert_eq!(dead, VICTIM);

    // The old communicator has ended. All survivors call this with the same list.
    let rest = comm.shrink(&[dead])?;
    let mut sum = [comm.rank()];
    rest.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    if rest.rank() == 0 {
        println!("{} of {WORLD} go on: 0 + 1 + 3 = {}", rest.size(), sum[0]);
    }
    assert_eq!((rest.size(), sum[0]), (WORLD - 1, 4));
    Ok(())
}

/// Starts the ranks, as `rsccl run` does, but lets the others live when one dies.
fn launch() -> Result<(), Box<dyn Error>> {
    let store = std::env::temp_dir().join(format!("rsccl-08-faults-{}", std::process::id()));
    let mut command = Command::new(std::env::current_exe()?);
    command.env("RSCCL_STORE", format!("file://{}", store.display())).env("RSCCL_WORLD_SIZE", WORLD.to_string());
    let children = (0..WORLD).map(|rank| command.env("RSCCL_RANK", rank.to_string()).spawn());
    let children = children.collect::<Result<Vec<_>, _>>()?;
    let mut codes = Vec::new();
    for mut child in children {
        codes.push(child.wait()?.code());
    }
    std::fs::remove_dir_all(&store)?;
    let expected = (0..WORLD).map(|rank| Some(if rank == VICTIM { DEAD } else { 0 }));
    assert!(expected.eq(codes.iter().copied()), "ranks ended with {codes:?}");
    Ok(())
}
