//! Goal: processes that know nothing of each other but the bytes of a unique id. Here a parent hands them to its children in
//! their standard input; a file of mode 600, a store or `MPI_Bcast` would do as well. Whoever has the bytes can join: they
//! hold a secret, so they travel over a channel that you trust, and not on a command line.
//!
//!     cargo run --example 03_unique_id
//!
//! Prints:
//!
//!     3 processes have added up their ranks: 3
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use std::error::Error;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use rsccl::{Communicator, Config, ReduceOp, UniqueId};

const WORLD: u32 = 3;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        Some(rank) => child(rank.parse()?),
        None => parent(),
    }
}

/// Rank 0, and the one who makes the id.
fn parent() -> Result<(), Box<dyn Error>> {
    // All on one machine here, so the loopback will do. `Config::default()` takes the interface that leads out.
    let config = Config::default().with_socket_interfaces("lo");
    let id = Communicator::unique_id(&config)?;
    let children = (1..WORLD).map(|rank| start(rank, &id)).collect::<Result<Vec<_>, _>>()?;
    let sum = add_up(&id, 0, config)?;
    println!("{WORLD} processes have added up their ranks: {sum}");
    for mut child in children {
        assert!(child.wait()?.success(), "a child failed");
    }
    assert_eq!(sum, (0..WORLD).sum());
    Ok(())
}

fn start(rank: u32, id: &UniqueId) -> Result<Child, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let mut child = Command::new(program).arg(rank.to_string()).stdin(Stdio::piped()).spawn()?;
    child.stdin.take().ok_or("the pipe was asked for")?.write_all(id.as_bytes())?;
    Ok(child)
}

fn child(rank: u32) -> Result<(), Box<dyn Error>> {
    let mut bytes = Vec::new();
    std::io::stdin().read_to_end(&mut bytes)?;
    let id = UniqueId::from_bytes(&bytes)?;
    let sum = add_up(&id, rank, Config::default().with_socket_interfaces("lo"))?;
    assert_eq!(sum, (0..WORLD).sum());
    Ok(())
}

fn add_up(id: &UniqueId, rank: u32, config: Config) -> rsccl::Result<u32> {
    let comm = Communicator::init(id, rank, WORLD, &config)?;
    let sum = comm.all_reduce_value(rank, ReduceOp::Sum)?;
    comm.finalize()?;
    Ok(sum)
}
