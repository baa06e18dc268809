//! Goal: four ranks, each a thread of this program, meet and learn of each other.
//!
//!     cargo run --example 01_hello
//!
//! Prints:
//!
//!     rank 0 of 4 has heard from [0, 1, 2, 3]
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use rsccl::{Result, local};

fn main() -> Result<()> {
    // The closure runs once on each rank; what it returns comes back in rank order.
    let heard = local::run(4, |comm| {
        let mut ranks = vec![0; comm.size() as usize];
        comm.all_gather(&[comm.rank()], &mut ranks)?;
        if comm.rank() == 0 {
            println!("rank {} of {} has heard from {ranks:?}", comm.rank(), comm.size());
        }
        Ok(ranks)
    })?;
    assert_eq!(heard, vec![vec![0, 1, 2, 3]; 4]);
    Ok(())
}
