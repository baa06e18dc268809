//! Goal: messages between pairs, in a group. Each rank passes a token to its right neighbour and takes one from its left,
//! until every token has come home. Alone, a send of more than 1 MiB waits for its receiver, and a ring of such sends would wait for
//! ever; smaller ones go through. In a group, send and recv of any size run side by side, whatever their order.
//!
//!     cargo run --example 04_send_recv_ring
//!
//! Prints:
//!
//!     after 5 hops every token of 100000 words is home again; the one of rank 0 has seen [0, 1, 2, 3, 4]
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]

use rsccl::{Result, local};

const RANKS: u32 = 5;
const WORDS: usize = 100_000;

fn main() -> Result<()> {
    let seen = local::run(RANKS, |comm| {
        let (left, right) = ((comm.rank() + RANKS - 1) % RANKS, (comm.rank() + 1) % RANKS);
        // The first words are the ranks that the token has been at, the rest is ballast.
        let mut token = vec![comm.rank(); WORDS];
        for hop in 1..=RANKS {
            let mut next = vec![0; WORDS];
            rsccl::group(|group| {
                group.on(&comm).send(&token, right)?;
                group.on(&comm).recv(&mut next, left)
            })?;
            token = next;
            if hop < RANKS {
                token[hop as usize] = comm.rank();
            }
        }
        assert_eq!(token[WORDS - 1], comm.rank(), "another rank's token came home");
        Ok(token[..RANKS as usize].to_vec())
    })?;
    let (hops, trail) = (RANKS, &seen[0]);
    println!("after {hops} hops every token of {WORDS} words is home again; the one of rank 0 has seen {trail:?}");
    for (rank, trail) in (0..RANKS).zip(&seen) {
        let expected: Vec<u32> = (0..RANKS).map(|hop| (rank + hop) % RANKS).collect();
        assert_eq!(*trail, expected);
    }
    Ok(())
}
