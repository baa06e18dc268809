//! Time of init over real sockets on loopback, ranks as threads: `cargo bench --features internals --bench init [-- ranks...]`.
//!
//! Each sample makes a unique id and joins all ranks, the exchange of peer info included, and ends them; the time is from the
//! first join to the last return.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use rsccl::{Communicator, Config, Error, Result};

const SAMPLES: usize = 5;

fn main() -> Result<()> {
    // Cargo passes `--bench` of its own.
    let given: Vec<u32> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let worlds = if given.is_empty() { vec![2, 8, 64, 256, 1024] } else { given };
    println!("| ranks | init, ms (median of {SAMPLES}) | least |");
    println!("|---|---|---|");
    for world in worlds {
        let mut times = Vec::with_capacity(SAMPLES);
        for _ in 0..SAMPLES {
            times.push(sample(world)?);
        }
        times.sort_by(f64::total_cmp);
        println!("| {world} | {:.1} | {:.1} |", times[SAMPLES / 2], times[0]);
    }
    Ok(())
}

/// Milliseconds of one init of `world` ranks.
fn sample(world: u32) -> Result<f64> {
    let config = Config::default().with_socket_interfaces("lo");
    let id = Communicator::unique_id(&config)?;
    let begun = rsccl::internals::sys::clock::now();
    let ends = std::thread::scope(|scope| {
        let join = |rank| {
            let (id, config) = (&id, config.clone());
            let body = move || {
                let comm = Communicator::init(id, rank, world, &config)?;
                let joined = begun.elapsed();
                comm.finalize()?;
                Ok::<_, Error>(joined)
            };
            std::thread::Builder::new().stack_size(256 << 10).spawn_scoped(scope, body).expect("a thread is left")
        };
        let ranks: Vec<_> = (0..world).map(join).collect();
        ranks.into_iter().map(|rank| rank.join().expect("no rank panics")).collect::<Result<Vec<_>>>()
    })?;
    let last = ends.into_iter().max().unwrap_or_default();
    Ok(last.as_secs_f64() * 1e3)
}
