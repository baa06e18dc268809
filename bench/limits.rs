//! All-reduce compared with the limit of the memory, in one run: two ranks on one host, buffers that both can reach.
//!
//! The limit is two threads that share all four buffers: each adds its half of both inputs and stores it into both
//! outputs, with non-temporal stores where rsccl uses them. Samples alternate; medians and their ratio are printed.
//! `cargo bench --features internals --bench limits`.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::sync::Barrier;
use std::time::{Duration, Instant};

use rsccl::internals::device::{Average, Kernel, Pass, Store};
use rsccl::{Buffer, Config, DataType, ReduceOp, Result};

/// Float counts: 1 KiB to 256 MiB.
const COUNTS: [usize; 6] = [256, 65_536, 262_144, 1 << 20, 16 << 20, 64 << 20];
const STREAMING_BYTES: usize = 8 << 20;
const SAMPLES: usize = 15;

fn main() -> Result<()> {
    println!(
        "| bytes | memory limit, us | local, us | of limit | shm registered, us | of limit | shm ordinary, us | of limit |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for count in COUNTS {
        let mut rows: [Vec<f64>; 4] = Default::default();
        for _ in 0..SAMPLES {
            rows[0].push(limit(count));
            rows[1].push(ours(count, false, &Config::default())?);
            rows[2].push(ours(count, true, &Config::default().with_p2p_disable(true))?);
            rows[3].push(ours(count, false, &Config::default().with_p2p_disable(true))?);
        }
        let [limit, local, registered, ordinary] = rows.map(median);
        let cell = |time: f64| format!("{time:.1} | {:.0} %", 100.0 * limit / time);
        println!("| {} | {limit:.1} | {} | {} | {} |", count * 4, cell(local), cell(registered), cell(ordinary));
    }
    Ok(())
}

/// Calls in one sample: enough for the clock, few enough for large buffers.
fn calls(count: usize) -> u32 {
    u32::try_from((8 << 20) / count).expect("small").clamp(2, 500)
}

/// Microseconds of one pass of two threads over shared buffers.
fn limit(count: usize) -> f64 {
    let inputs = [vec![1.0f32; count], vec![2.0f32; count]];
    let outputs = [vec![0.0f32; count], vec![0.0f32; count]];
    let store = if count * 4 >= STREAMING_BYTES { Store::Streaming } else { Store::Cached };
    let kernel = Kernel::reduce(DataType::F32, ReduceOp::Sum, 2).expect("floats add up");
    let (barrier, half) = (Barrier::new(2), count / 2);
    let places = |start: usize| {
        let at = |buffer: &Vec<f32>| buffer.as_ptr().wrapping_add(start).expose_provenance();
        (inputs.each_ref().map(at), outputs.each_ref().map(at))
    };
    let pass = |start: usize| {
        let (sources, targets) = places(start);
        let sources = sources.map(std::ptr::with_exposed_provenance::<u8>);
        let targets = targets.map(std::ptr::with_exposed_provenance_mut::<u8>);
        let pass = Pass {
            sources: &sources,
            raw: None,
            targets: &targets,
            count: half,
            finish: true,
            average: Average::Whole,
            store,
        };
        // SAFETY: each thread reads and writes its own half of buffers that outlive the scope.
        unsafe { kernel.run(&pass) };
    };
    let run = |start: usize| {
        pass(start);
        barrier.wait();
        let begun = now();
        for _ in 0..calls(count) {
            pass(start);
        }
        begun.elapsed()
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| run(half));
        let mine = run(0);
        per_call(mine.max(other.join().expect("the other half does not panic")), count)
    })
}

/// Microseconds of one all-reduce of two ranks.
fn ours(count: usize, registered: bool, config: &Config) -> Result<f64> {
    let times = rsccl::local::run_with(2, config, |comm| {
        let (mut send, mut recv) = (Buffer::<f32>::new(count)?, Buffer::<f32>::new(count)?);
        if registered {
            comm.register(&send)?;
            comm.register(&recv)?;
        }
        send.fill(comm.rank() as f32 + 1.0);
        comm.all_reduce(&send, &mut recv, ReduceOp::Sum)?;
        assert!(recv.iter().all(|sum| *sum == 3.0), "the sum of 1 and 2");
        comm.barrier()?;
        let begun = now();
        for _ in 0..calls(count) {
            comm.all_reduce(&send, &mut recv, ReduceOp::Sum)?;
        }
        Ok(begun.elapsed())
    })?;
    Ok(per_call(times.into_iter().max().unwrap_or_default(), count))
}

fn per_call(time: Duration, count: usize) -> f64 {
    time.as_secs_f64() * 1e6 / f64::from(calls(count))
}

fn now() -> Instant {
    rsccl::internals::sys::clock::now()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
