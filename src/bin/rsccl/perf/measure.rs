//! One case on one rank: times and checks.

use rsccl::internals::sys::clock;
use rsccl::{Buffer, Communicator, DataType, Error, Result};

use super::job::{Job, OverRanks, Timing};
use super::verify::{Memory, Op, Placement, RankBuffers, Sample, Shape, Tables, perform, with_type};

/// One collective of one size, type, operator and root, in one placement.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) data_type: DataType,
    pub(crate) op: Option<Op>,
    pub(crate) placement: Placement,
    /// Of the inputs; others in each check.
    pub(crate) seed: u64,
}

/// What all ranks found together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Measured {
    /// Of one call, in microseconds; 0 where nothing was timed.
    pub(crate) time_us: f64,
    /// Elements that were wrong, on all ranks; `None` where nothing was checked.
    pub(crate) wrong: Option<u64>,
}

/// Times and checks `case`. Collective. `complain` gets a sentence for this rank's first wrong element.
///
/// # Errors
/// Of the collective.
pub(crate) fn measure(comm: &Communicator, job: &Job, case: &Case, complain: &mut dyn FnMut(&str)) -> Result<Measured> {
    with_type!(case.data_type, T => measure_typed::<T>(comm, job, case, complain), else {
        Err(Error::invalid_argument(format!("{} is not known to this command", case.data_type)))
    })
}

fn measure_typed<T: Sample>(
    comm: &Communicator,
    job: &Job,
    case: &Case,
    complain: &mut dyn FnMut(&str),
) -> Result<Measured> {
    let mut buffers = if job.registered {
        let register = |room: usize| -> Result<Memory<T>> {
            let memory = Buffer::<T>::new(room)?;
            comm.register(&memory)?;
            Ok(Box::new(memory))
        };
        RankBuffers::within(&case.shape, case.placement, job.skew, &register)?
    } else {
        RankBuffers::<T>::new(&case.shape, case.placement, job.skew)?
    };
    let tables = |seed: u64| Tables::<T>::new(seed, case.shape.world(), case.op, case.shape.indices());
    let mut times = Vec::new();
    if job.timing.calls > 0 {
        buffers.fill(&case.shape, &tables(case.seed))?;
        times = time(comm, &job.timing, case, &mut buffers)?;
    }
    let mut wrong = 0u64;
    for check in 0..job.checks {
        let tables = tables(case.seed.wrapping_add(1 + u64::from(check)));
        buffers.fill(&case.shape, &tables)?;
        call(comm, case, &mut buffers)?;
        let found = buffers.check(&case.shape, &tables)?;
        if let Some(first) = &found.first {
            complain(first);
        }
        wrong += found.elements as u64;
    }
    gather(comm, job, &times, wrong)
}

/// The seconds of one call, for each loop.
fn time<T: Sample>(
    comm: &Communicator,
    timing: &Timing,
    case: &Case,
    buffers: &mut RankBuffers<T>,
) -> Result<Vec<f64>> {
    for _ in 0..timing.warm_up {
        call(comm, case, buffers)?;
    }
    let mut times = Vec::with_capacity(timing.loops as usize);
    for _ in 0..timing.loops {
        comm.barrier()?;
        let start = clock::now();
        for _ in 0..timing.calls {
            call(comm, case, buffers)?;
        }
        let elapsed = clock::now().duration_since(start);
        times.push(elapsed.as_secs_f64() / f64::from(timing.calls));
    }
    comm.barrier()?;
    Ok(times)
}

#[inline]
fn call<T: Sample>(comm: &Communicator, case: &Case, buffers: &mut RankBuffers<T>) -> Result<()> {
    let op = case.op.map(|op| op.reduce_op(case.data_type, case.shape.rank));
    perform(comm, &case.shape, op, buffers)
}

/// Puts the ranks' times and wrong elements together, on every rank.
fn gather(comm: &Communicator, job: &Job, times: &[f64], wrong: u64) -> Result<Measured> {
    let mut mine: Vec<u64> = vec![wrong];
    mine.extend(times.iter().map(|time| time.to_bits()));
    let mut all = vec![0; mine.len() * comm.size() as usize];
    comm.all_gather(&mine, &mut all)?;
    let ranks: Vec<&[u64]> = all.chunks_exact(mine.len()).collect();
    let of_loop = |place: usize| -> f64 {
        let times = || ranks.iter().map(|rank| f64::from_bits(rank[1 + place]));
        match job.timing.over_ranks {
            OverRanks::First => times().next().unwrap_or_default(),
            OverRanks::Average => times().sum::<f64>() / f64::from(comm.size()),
            OverRanks::Least => times().fold(f64::INFINITY, f64::min),
            OverRanks::Greatest => times().fold(0.0, f64::max),
        }
    };
    let loops = (0..times.len()).map(of_loop).collect();
    let total = ranks.iter().map(|rank| rank[0]).sum();
    Ok(Measured { time_us: median(loops) * 1e6, wrong: (job.checks > 0).then_some(total) })
}

/// The middle of `numbers`, the lower one of two; 0 of none.
fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    let middle = numbers.len().saturating_sub(1) / 2;
    numbers.get(middle).copied().unwrap_or_default()
}
