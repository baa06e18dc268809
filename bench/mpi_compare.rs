//! Compares rsccl with the MPI that it runs under, in one `mpirun`: the same ranks on the same processors use the same
//! buffers with both libraries in turn. Prints a table; `bench/README.md` says how the figures are taken.
//!
//!     cargo build --release --features mpi --example mpi_compare
//!     mpirun -n 2 target/release/examples/mpi_compare [--collective NAME]... [--sizes 8,1K,16M] [--rounds N] [--quick]
//!
//! It is an example to cargo and not a benchmark, because `mpirun` needs a program with a path that stays.
#![expect(clippy::print_stdout, reason = "a program that prints a table")]
#![expect(clippy::disallowed_methods, reason = "the rule on the clock is the library's")]

mod collective;
#[path = "../mpi-examples/job.rs"]
mod job;
mod mpi_compare {
    pub(crate) mod case;
    pub(crate) mod options;
}

use std::hint::black_box;
use std::time::Instant;

use mpi::topology::SimpleCommunicator;
use mpi::traits::CommunicatorCollectives;
use rsccl::mpi::{abort_on_panic, communicator, or_abort};
use rsccl::{Communicator, Config, ReduceOp, Result};

use mpi_compare::case::{Case, Library};
use mpi_compare::options::{self, Options};

/// A sample is a loop of calls that takes the slower library about this long: so short that on a busy machine some
/// samples are not disturbed by other processes.
const SAMPLE_S: f64 = 0.003;
const MOST_CALLS: f64 = 5000.0;
/// The first calls connect, map and fill caches.
const WARM_UPS: usize = 10;
/// Samples that say how many calls the measured ones have.
const CALIBRATIONS: usize = 8;

fn main() {
    let options = Options::parse().unwrap_or_else(|complaint| {
        eprintln!("mpi_compare: {complaint}");
        std::process::exit(2)
    });
    let library = mpi::environment::library_version().unwrap_or_default();
    let words = library.lines().next().unwrap_or_default().trim_end_matches('\0').split_whitespace();
    let library = words.collect::<Vec<_>>().join(" ");
    if options.version {
        println!("{library}");
        return;
    }
    let about = options::machine();
    abort_on_panic();
    let universe = mpi::initialize().expect("MPI starts once");
    or_abort(compare(&universe.world(), &options, &format!("{about}.\n\n- MPI: {library}")));
}

fn compare(world: &SimpleCommunicator, options: &Options, about: &str) -> Result<()> {
    let comm = communicator(world, &Config::default())?;
    job::expect_ranks(comm.size());
    let print = |line: String| {
        if comm.rank() == 0 {
            println!("{line}");
        }
    };
    print(format!("{about}\n- {} ranks, medians of {} alternating rounds\n", comm.size(), options.rounds));
    print("| collective | bytes | calls | rsccl, µs | MPI, µs | rsccl / MPI | least: rsccl | MPI | ratio |".to_owned());
    print(format!("|{}", "---|".repeat(9)));
    for collective in &options.collectives {
        for size in &options.sizes {
            let mut case = Case::new(*collective, *size, &comm, world);
            let Times { calls, median: [ours, theirs], least } = measure(&mut case, &comm, world, options.rounds)?;
            let (ratio, least_ratio) = (ours / theirs, least[0] / least[1]);
            let bytes = case.bytes();
            print(format!(
                "| {collective} | {bytes} | {calls} | {ours:.2} | {theirs:.2} | {ratio:.2} | {:.2} | {:.2} | {least_ratio:.2} |",
                least[0], least[1]
            ));
        }
    }
    Ok(())
}

/// What a case took on the slowest rank, in µs a call: of rsccl, of MPI.
struct Times {
    /// Calls in a sample.
    calls: usize,
    median: [f64; 2],
    /// Far below the median where the machine had other work.
    least: [f64; 2],
}

fn measure(case: &mut Case, comm: &Communicator, world: &SimpleCommunicator, rounds: usize) -> Result<Times> {
    for library in Library::BOTH {
        case.check(library)?;
        sample(case, library, WARM_UPS, world)?;
    }
    // One sample may be slow by chance, above all the first, before the scheduler has parted the ranks. All ranks make
    // as many calls, for both libraries.
    let (mut calls, mut least) = (1, f64::INFINITY);
    for _ in 0..CALIBRATIONS {
        let mut slower = [0.0];
        for library in Library::BOTH {
            slower[0] = f64::max(slower[0], sample(case, library, calls, world)?);
        }
        comm.all_reduce_in_place(&mut slower, ReduceOp::Max)?;
        least = f64::min(least, slower[0]);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and a few thousand")]
        {
            calls = (SAMPLE_S / least).clamp(1.0, MOST_CALLS) as usize;
        }
    }

    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        // Whoever runs second finds the caches as the first left them; so they swap.
        for turn in 0..2 {
            let library = Library::BOTH[(round + turn) % 2];
            times[library as usize].push(1e6 * sample(case, library, calls, world)?);
        }
    }
    for times in &mut times {
        comm.all_reduce_in_place(times, ReduceOp::Max)?;
        times.sort_by(f64::total_cmp);
    }
    Ok(Times { calls, median: times.each_ref().map(|times| times[rounds / 2]), least: times.map(|times| times[0]) })
}

/// Seconds of one call on this rank, the mean of a loop.
fn sample(case: &mut Case, library: Library, calls: usize, world: &SimpleCommunicator) -> Result<f64> {
    world.barrier();
    let begun = Instant::now();
    for _ in 0..calls {
        case.call(library)?;
        black_box(case.result());
    }
    let call = begun.elapsed().as_secs_f64() / calls as f64;
    Ok(if case.is_round_trip() { call / 2.0 } else { call })
}
