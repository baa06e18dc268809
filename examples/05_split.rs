//! Goal: communicators of a part of the ranks. Six ranks form a grid of two rows and three columns; each rank adds up its
//! row in one communicator and its column in another. Then those with odd numbers leave: no color, no communicator.
//!
//!     cargo run --example 05_split
//!
//! Prints:
//!
//!     sums of the rows:    [3, 12]
//!     sums of the columns: [3, 5, 7]
//!     the even ranks, turned round: [4, 2, 0]
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use rsccl::{Communicator, ReduceOp, Result, local};

const ROWS: u32 = 2;
const COLUMNS: u32 = 3;

fn main() -> Result<()> {
    let results = local::run(ROWS * COLUMNS, |comm| {
        let rank = comm.rank();
        let row = comm.split(Some(rank / COLUMNS), 0)?.expect("every rank has a row");
        let column = comm.split(Some(rank % COLUMNS), 0)?.expect("every rank has a column");
        let sums = (sum(&row, rank)?, sum(&column, rank)?);

        let color = (rank % 2 == 0).then_some(0);
        // Ranks of a child follow their keys: the greatest old rank has the least key.
        let evens = match comm.split(color, -i64::from(rank))? {
            Some(child) => {
                let mut members = vec![0; child.size() as usize];
                child.all_gather(&[rank], &mut members)?;
                Some(members)
            }
            None => None,
        };
        Ok((sums, evens))
    })?;

    let rows: Vec<u32> = results.iter().step_by(COLUMNS as usize).map(|((row, _), _)| *row).collect();
    let columns: Vec<u32> = results.iter().take(COLUMNS as usize).map(|((_, column), _)| *column).collect();
    let evens = results[0].1.clone().unwrap_or_default();
    println!("sums of the rows:    {rows:?}\nsums of the columns: {columns:?}");
    println!("the even ranks, turned round: {evens:?}");
    assert_eq!((rows, columns, evens), (vec![3, 12], vec![3, 5, 7], vec![4, 2, 0]));
    assert!(results.iter().skip(1).step_by(2).all(|(_, evens)| evens.is_none()));
    Ok(())
}

fn sum(comm: &Communicator, value: u32) -> Result<u32> {
    let mut sum = [value];
    comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
    Ok(sum[0])
}
