//! The Rust half of `bench/cpp_overhead.sh`: what a call costs here, for the C++ half to compare with.

use std::hint::black_box;
use std::time::Instant;

use rsccl::{ReduceOp, local};

/// Nanoseconds of one all-reduce of 8 bytes among `ranks` threads, out of `calls`, as rank 0 sees it; negative after an error.
#[unsafe(no_mangle)]
pub extern "C" fn rust_round(ranks: u32, calls: u32) -> f64 {
    let round = local::run(ranks, |comm| {
        let (send, mut recv) = ([1.0f32, 2.0], [0.0f32; 2]);
        let mut nanoseconds = 0.0;
        // The first lap opens connections and warms caches.
        for _lap in 0..2 {
            comm.barrier()?;
            let begun = Instant::now();
            for _call in 0..calls {
                comm.all_reduce(black_box(&send), black_box(&mut recv), ReduceOp::Sum)?;
            }
            nanoseconds = begun.elapsed().as_secs_f64() * 1e9 / f64::from(calls);
        }
        Ok(nanoseconds)
    });
    match round {
        Ok(all) => all[0],
        Err(error) => {
            eprintln!("{error}");
            -1.0
        }
    }
}
