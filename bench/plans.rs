//! What planning costs: calls whose count was never called before, next to calls that come again, in one run.
//!
//! ```text
//! cargo bench --features internals --bench plans
//! ```
//! First the plan of one rank by itself: `built`, and `resized` from the plan of another count, whose steps it shares.
//! Then calls through a communicator of threads: `again` repeats one count, `new` gives each call a count that the
//! communicator has not seen. Both run in turn, in blocks; each figure is the median of the blocks. All times in µs.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::hint::black_box;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use rsccl::internals::plan::{Count, Layout, Limits, Plan, Spec, Windows};
use rsccl::internals::sys::clock;
use rsccl::internals::types::Elements;
use rsccl::types::{Algorithm, Collective, Protocol, Rank, ReduceOp, World};
use rsccl::{Communicator, Result, local};

/// Plans or calls of one block.
const CALLS: usize = 64;
/// Blocks of each kind.
const BLOCKS: usize = 21;

fn main() {
    println!("{:<44} {:>10} {:>10} {:>8}", "plan of one rank", "built", "resized", "ratio");
    for (hosts, ranks) in [(1, 2), (1, 8), (1, 64), (4, 8)] {
        let layout = layout(hosts, ranks);
        let size = hosts * ranks;
        for (collective, algorithm, windows) in [
            (Collective::AllReduce, Algorithm::Direct, Windows::Scratch),
            (Collective::AllReduce, Algorithm::Ring, Windows::Scratch),
            (Collective::AllGather, Algorithm::Ring, Windows::None),
            (Collective::AllToAll, Algorithm::Direct, Windows::Scratch),
        ] {
            if hosts > 1 && algorithm == Algorithm::Direct {
                continue;
            }
            let spec = |count| spec(&layout, size, (collective, algorithm, windows), count);
            let built = median(|| each_count(|count| Plan::build(&spec(count)).ok()));
            let known = Plan::build(&spec(99_999)).expect("the limits are wide");
            let resized = median(|| each_count(|count| known.resized(&spec(count)).expect("the limits are wide")));
            let what = format!("{algorithm} {collective}, {hosts} x {ranks} ranks");
            println!("{what:<44} {built:>10.2} {resized:>10.2} {:>8.3}", resized / built);
        }
    }
    println!("\n{:<44} {:>10} {:>10} {:>8}", "all_reduce of f32 between threads", "again", "new", "ratio");
    for ranks in [2, 4] {
        for count in [4 << 10, 16 << 10, 64 << 10, 256 << 10] {
            let (again, new) = calls(ranks, count);
            let what = format!("{ranks} ranks, {} KiB", (count * 4) >> 10);
            println!("{what:<44} {again:>10.2} {new:>10.2} {:>8.3}", new / again);
        }
    }
}

fn layout(hosts: u32, ranks: u32) -> Arc<Layout> {
    let host = |host: u32| (host * ranks..(host + 1) * ranks).map(Rank::new).collect::<Vec<_>>();
    Arc::new(Layout::of_hosts(&(0..hosts).map(host).collect::<Vec<_>>()).expect("every rank stands on one host"))
}

fn spec(
    layout: &Arc<Layout>,
    size: u32,
    (collective, algorithm, windows): (Collective, Algorithm, Windows),
    count: u64,
) -> Spec {
    Spec {
        collective,
        world: World { rank: Rank::new(0), size },
        root: Rank::new(0),
        count: Count::Each(Elements(count)),
        in_place: false,
        algorithm,
        protocol: Protocol::Simple,
        windows,
        layout: Arc::clone(layout),
        limits: Limits { slot: Elements(16 << 10), slots: 8, scratch: Elements(1 << 20), channels: 2 },
    }
}

/// The time of one block, per plan.
fn each_count(plan: impl Fn(u64) -> Option<Plan>) -> f64 {
    let begin = clock::now();
    for count in 0..CALLS as u64 {
        black_box(plan(100_000 + count).expect("these counts have the same steps"));
    }
    micros(clock::now() - begin)
}

/// The medians of calls that come again and of new ones.
fn calls(ranks: u32, count: usize) -> (f64, f64) {
    let barrier = Barrier::new(ranks as usize);
    let times =
        local::run(ranks, |communicator| measure(&communicator, &barrier, count)).expect("all ranks call alike");
    let slowest = |of: fn(&(f64, f64)) -> f64| times.iter().map(of).fold(0.0, f64::max);
    (slowest(|times| times.0), slowest(|times| times.1))
}

fn measure(communicator: &Communicator, barrier: &Barrier, count: usize) -> Result<(f64, f64)> {
    let most = count + BLOCKS * CALLS + 1;
    let (input, mut output) = (vec![1.0_f32; most], vec![0.0_f32; most]);
    let mut call = |length: usize| communicator.all_reduce(&input[..length], &mut output[..length], ReduceOp::Sum);
    call(count)?;
    let (mut again, mut new) = (Vec::new(), Vec::new());
    for block in 0..BLOCKS {
        for (times, fresh) in [(&mut again, false), (&mut new, true)] {
            barrier.wait();
            let begin = clock::now();
            for turn in 0..CALLS {
                call(if fresh { count + 1 + block * CALLS + turn } else { count })?;
            }
            times.push(micros(clock::now() - begin));
        }
    }
    Ok((middle(again), middle(new)))
}

fn median(mut block: impl FnMut() -> f64) -> f64 {
    middle((0..BLOCKS).map(|_| block()).collect())
}

fn middle(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn micros(block: Duration) -> f64 {
    block.as_secs_f64() * 1e6 / CALLS as f64
}
