//! Goal: Poisson's equation on a square of N x N points, by conjugate gradients. Each rank has a strip of rows; a step swaps edge
//! rows with the neighbours and adds up two dot products. The solver is one, generic over what moves data: MPI, by requests that are
//! begun and waited for together; rsccl, by a group; and rsccl by requests in a scope. They solve in turns, to the same residual.
//!
//!     cargo build --release --features mpi --example mpi_conjugate_gradients
//!     mpirun -n 2 target/release/examples/mpi_conjugate_gradients [--sides 32,64 --rounds 5] [--json]
//!
//! Prints (times are of the slowest rank, medians of rounds; figures: `bench/results/contest-cg.md`):
//!
//!     32 x 32 points, 2 ranks, µs a step and share of communication: MPI ..., ... %; rsccl ..., ... %; rsccl, scope ..., ... %; rsccl / MPI ...
#![expect(clippy::print_stdout, reason = "an example reports to whoever started it")]
#![expect(clippy::disallowed_methods, reason = "the rule on the clock is the library's")]

mod job;
mod strip;

use std::time::{Duration, Instant};

use mpi::collective::SystemOperation;
use mpi::request;
use mpi::topology::{Communicator as _, SimpleCommunicator};
use mpi::traits::{CommunicatorCollectives, Destination, Source};
use rsccl::mpi::{abort_on_panic, communicator, or_abort};
use rsccl::types::NO_RANK;
use rsccl::{Communicator, Config, ReduceOp, Result};

use strip::{Ranks, Rows, Solver};

/// One sample is as many solutions as take about this long.
const SAMPLE: Duration = Duration::from_millis(20);
const MOST_STEPS: usize = 200;
/// The sums of four ranks are rounded otherwise by each library.
const ROUNDING: f64 = 1e-9;

/// Irecv, Isend, and a wait for each.
struct ByMpi<'a>(&'a SimpleCommunicator);

impl Ranks for ByMpi<'_> {
    fn swap(&self, rows: Rows<'_>) -> Result<()> {
        let (me, last) = (self.0.rank(), self.0.size() - 1);
        let above = (me > 0).then(|| self.0.process_at_rank(me - 1));
        let below = (me < last).then(|| self.0.process_at_rank(me + 1));
        request::scope(|scope| {
            let from_above = above.as_ref().map(|peer| peer.immediate_receive_into(scope, rows.rim_above));
            let from_below = below.as_ref().map(|peer| peer.immediate_receive_into(scope, rows.rim_below));
            let to_above = above.as_ref().map(|peer| peer.immediate_send(scope, rows.first));
            let to_below = below.as_ref().map(|peer| peer.immediate_send(scope, rows.last));
            for request in [from_above, from_below, to_above, to_below].into_iter().flatten() {
                request.wait_without_status();
            }
        });
        Ok(())
    }

    fn sum(&self, mine: f64) -> Result<f64> {
        let mut sum = 0.0;
        self.0.all_reduce_into(&mine, &mut sum, SystemOperation::sum());
        Ok(sum)
    }
}

/// The ranks above and below: nobody at the edges of the square.
fn neighbours(comm: &Communicator) -> (u32, u32) {
    let (me, ranks) = (comm.rank(), comm.size());
    (me.checked_sub(1).unwrap_or(NO_RANK), Some(me + 1).filter(|below| *below < ranks).unwrap_or(NO_RANK))
}

/// Messages that are waited for together.
struct ByGroup<'a>(&'a Communicator);

impl Ranks for ByGroup<'_> {
    fn swap(&self, rows: Rows<'_>) -> Result<()> {
        let (above, below) = neighbours(self.0);
        rsccl::group(|group| {
            let mut on = group.on(self.0);
            on.recv(rows.rim_above, above)?;
            on.recv(rows.rim_below, below)?;
            on.send(rows.first, above)?;
            on.send(rows.last, below)
        })
    }

    fn sum(&self, mine: f64) -> Result<f64> {
        self.0.all_reduce_value(mine, ReduceOp::Sum)
    }
}

/// Requests, between whose start and end a program could do other work.
struct ByScope<'a>(&'a Communicator);

impl Ranks for ByScope<'_> {
    fn swap(&self, rows: Rows<'_>) -> Result<()> {
        let (above, below) = neighbours(self.0);
        self.0.scope(|scope| {
            let requests = [
                scope.recv(rows.rim_above, above)?,
                scope.recv(rows.rim_below, below)?,
                scope.send(rows.first, above)?,
                scope.send(rows.last, below)?,
            ];
            requests.into_iter().try_for_each(rsccl::comm::Request::wait)
        })
    }

    fn sum(&self, mine: f64) -> Result<f64> {
        self.0.all_reduce_value(mine, ReduceOp::Sum)
    }
}

fn main() {
    abort_on_panic();
    let universe = mpi::initialize().expect("MPI starts once");
    or_abort(compare(&universe.world()));
}

fn compare(world: &SimpleCommunicator) -> Result<()> {
    let comm = communicator(world, &Config::default())?;
    job::expect_ranks(comm.size());
    let rounds: usize = word("--rounds", "1").parse().expect("--rounds is a number");
    for side in word("--sides", "32").split(',').map(|side| side.parse().expect("--sides are numbers")) {
        let (by_mpi, by_group, by_scope) = (ByMpi(world), ByGroup(&comm), ByScope(&comm));
        let all: [(&'static str, &dyn Ranks); 3] =
            [("MPI", &by_mpi), ("rsccl", &by_group), ("rsccl, scope", &by_scope)];
        let mut runs = Vec::new();
        for (name, ranks) in all {
            runs.push(Runs::new(name, ranks, &comm, side)?);
        }
        for _ in 0..rounds {
            for run in &mut runs {
                run.sample()?;
            }
        }
        for run in &runs {
            let apart = (run.residual - runs[0].residual).abs();
            assert!(apart <= ROUNDING, "{}, {side} points: residuals are {apart:e} apart", run.name);
        }
        let ranks = comm.size();
        let runs: Vec<Medians> = runs.into_iter().map(Runs::medians).collect();
        if comm.rank() == 0 {
            report(side, ranks, &runs);
        }
    }
    Ok(())
}

/// The solutions by one library.
struct Runs<'a> {
    name: &'static str,
    ranks: &'a dyn Ranks,
    comm: &'a Communicator,
    solver: Solver,
    steps: usize,
    /// Solutions in a sample.
    solutions: u32,
    /// Of the slowest rank, µs a step: all of it, and in calls of the library.
    times: Vec<[f64; 2]>,
    residual: f64,
}

impl<'a> Runs<'a> {
    /// Solves once, to warm up and to see how long it takes.
    fn new(name: &'static str, ranks: &'a dyn Ranks, comm: &'a Communicator, side: usize) -> Result<Runs<'a>> {
        let (me, size) = (comm.rank() as usize, comm.size() as usize);
        assert!(size <= side, "{side} rows are too few for {size} ranks");
        let solver = Solver::new(side, me * side / size..(me + 1) * side / size);
        let steps = MOST_STEPS.min(2 * side);
        let mut runs = Runs { name, ranks, comm, solver, steps, solutions: 1, times: Vec::new(), residual: 0.0 };
        runs.sample()?;
        let [once, _] = runs.times[0].map(|us| us * steps as f64 / 1e6);
        runs.times.clear();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and a thousand")]
        {
            runs.solutions = (SAMPLE.as_secs_f64() / once).clamp(1.0, 1000.0) as u32;
        }
        Ok(runs)
    }

    fn sample(&mut self) -> Result<()> {
        self.comm.barrier()?;
        self.solver.communication = Duration::ZERO;
        let begun = Instant::now();
        for _ in 0..self.solutions {
            self.residual = self.solver.solve(self.ranks, self.steps)?;
        }
        let steps = f64::from(self.solutions) * self.steps as f64;
        let mut us = [begun.elapsed(), self.solver.communication].map(|time| time.as_secs_f64() * 1e6 / steps);
        self.comm.all_reduce_in_place(&mut us, ReduceOp::Max)?;
        self.times.push(us);
        Ok(())
    }

    fn medians(self) -> Medians {
        let Runs { name, mut times, residual, .. } = self;
        times.sort_by(|a, b| a[0].total_cmp(&b[0]));
        let [us, communication] = times[times.len() / 2];
        Medians { name, us, percent: 100.0 * communication / us, residual }
    }
}

struct Medians {
    name: &'static str,
    us: f64,
    /// Of the time, in calls of the library.
    percent: f64,
    residual: f64,
}

fn report(side: usize, ranks: u32, runs: &[Medians]) {
    if std::env::args().any(|word| word == "--json") {
        for Medians { name, us, percent, residual } in runs {
            println!(r#"{{"side":{side},"way":"{name}","us":{us:.3},"percent":{percent:.1},"residual":{residual:e}}}"#);
        }
        return;
    }
    print!("{side} x {side} points, {ranks} ranks, µs a step and share of communication: ");
    for Medians { name, us, percent, .. } in runs {
        print!("{name} {us:.1}, {percent:.0} %; ");
    }
    println!("rsccl / MPI {:.2}", runs[1].us / runs[0].us);
}

/// The word behind `name` on the command line.
fn word(name: &str, usual: &str) -> String {
    let mut words = std::env::args().skip_while(|word| word != name).skip(1);
    words.next().unwrap_or_else(|| usual.to_owned())
}
