//! Goal: the collective that most programs come for. Every rank passes an array, every rank gets the element-wise sum; then
//! the maximum, in place; then a sum in which each rank scales its part first.
//!
//!     cargo run --example 02_all_reduce
//!
//! Prints:
//!
//!     sum      [6, 10, 14]
//!     maximum  [30, 10, 20]
//!     scaled   [3.0, 5.0, 7.0]
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use rsccl::{ReduceOp, Result, local};

fn main() -> Result<()> {
    let results = local::run(4, |comm| {
        let rank = comm.rank();
        // Out of place: `mine` stays as it is.
        let mine = [rank, rank + 1, rank + 2];
        let mut sum = [0; 3];
        comm.all_reduce(&mine, &mut sum, ReduceOp::Sum)?;

        // In place: one buffer is input and output.
        let mut maximum = [10 * rank, 10 - rank, 20 - rank];
        comm.all_reduce_in_place(&mut maximum, ReduceOp::Max)?;

        // Each rank's scalar may differ; here all halve.
        let mut scaled = mine.map(|value| value as f32);
        comm.all_reduce_in_place(&mut scaled, ReduceOp::premul_sum(0.5))?;
        Ok((sum, maximum, scaled))
    })?;
    let (sum, maximum, scaled) = results[0];
    println!("sum      {sum:?}\nmaximum  {maximum:?}\nscaled   {scaled:?}");
    assert_eq!(results[0], ([6, 10, 14], [30, 10, 20], [3.0, 5.0, 7.0]));
    // Every rank has the same.
    assert!(results.iter().all(|result| *result == results[0]));
    Ok(())
}
