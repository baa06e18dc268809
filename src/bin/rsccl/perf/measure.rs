//! One case on one rank: times and checks.

use rsccl::comm::DeviceStream;
use rsccl::internals::sys::clock;
use rsccl::{Buffer, Communicator, DataType, Error, Result};

use super::device::OnDevice;
use super::job::{Iterations, Job, Meetings, OverRanks, Timing, WarmUp};
use super::verify::{Memory, Op, Placement, RankBuffers, Sample, Shape, Tables, perform, with_type};

/// One collective of one size, type, operator and root, in one placement.
#[derive(Debug)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) data_type: DataType,
    pub(crate) op: Option<Op>,
    pub(crate) placement: Placement,
    /// The seed of the inputs; each check has another one.
    pub(crate) seed: u64,
}

/// The combined result of all ranks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Measured {
    /// The time of one call in microseconds; `None` if nothing was timed.
    pub(crate) time_us: Option<f64>,
    /// Timed calls of one loop.
    pub(crate) calls: u64,
    /// Calls of the warm-up.
    pub(crate) warm_up: u64,
    /// The number of wrong elements on all ranks; `None` if nothing was checked.
    pub(crate) wrong: Option<u64>,
}

/// Times and checks `case`. Collective. `complain` gets a sentence for this rank's first wrong element.
///
/// # Errors
/// The collective's error.
pub(crate) fn measure(rank: &Rank<'_>, case: &Case, complain: &mut dyn FnMut(&str)) -> Result<Measured> {
    with_type!(case.data_type, T => measure_typed::<T>(rank, case, complain), else {
        Err(Error::invalid_argument(format!("{} is not known to this command", case.data_type)))
    })
}

/// A rank that runs a job.
#[derive(Debug)]
pub(crate) struct Rank<'a> {
    pub(crate) comm: &'a Communicator,
    pub(crate) job: &'a Job,
    /// Its device, where ranks have devices.
    pub(crate) device: Option<u32>,
    /// A stream of that.
    pub(crate) stream: Option<DeviceStream>,
}

fn measure_typed<T: Sample>(rank: &Rank<'_>, case: &Case, complain: &mut dyn FnMut(&str)) -> Result<Measured> {
    let Rank { comm, job, .. } = *rank;
    let mut buffers = if job.registered && rank.stream.is_none() {
        let register = |room: usize| -> Result<Memory<T>> {
            let memory = Buffer::<T>::new(room)?;
            comm.register(&memory)?;
            Ok(Box::new(memory))
        };
        RankBuffers::within(&case.shape, case.placement, job.skew, &register)?
    } else {
        RankBuffers::<T>::new(&case.shape, case.placement, job.skew)?
    };
    let on_device = |stream| match job.registered {
        true => OnDevice::in_windows(comm, stream, &buffers, job.skew),
        false => OnDevice::new(stream, &buffers, job.skew),
    };
    let mut device = rank.stream.as_ref().map(on_device).transpose()?;
    let tables = |seed: u64| Tables::<T>::new(seed, case.shape.world(), case.op, case.shape.indices());
    let mut times = Times::default();
    if job.timing.iterations != Iterations::None {
        buffers.fill(&case.shape, &tables(case.seed))?;
        if let Some(device) = &mut device {
            device.upload(&buffers)?;
        }
        times = Timed { comm, timing: &job.timing, case, buffers: &mut buffers, device: device.as_mut() }.run()?;
    }
    let mut wrong = 0u64;
    for check in 0..job.checks {
        let tables = tables(case.seed.wrapping_add(1 + u64::from(check)));
        buffers.fill(&case.shape, &tables)?;
        match &mut device {
            None => call(comm, case, &mut buffers)?,
            Some(device) => {
                device.upload(&buffers)?;
                device.call(comm, case)?;
                device.download(&mut buffers)?;
            }
        }
        let found = buffers.check(&case.shape, &tables)?;
        if let Some(first) = &found.first {
            complain(first);
        }
        wrong += found.elements as u64;
    }
    device.map_or(Ok(()), |device| device.end(comm))?;
    gather(comm, job, &times, wrong)
}

/// The times of one rank.
#[derive(Debug, Default)]
struct Times {
    /// Seconds of one call, for each loop.
    loops: Vec<f64>,
    /// Calls of a loop.
    calls: u64,
    /// Calls before the loops.
    warm_up: u64,
}

/// A case that is being timed.
struct Timed<'a, 'd, T> {
    comm: &'a Communicator,
    timing: &'a Timing,
    case: &'a Case,
    buffers: &'a mut RankBuffers<T>,
    device: Option<&'a mut OnDevice<'d, T>>,
}

impl<T: Sample> Timed<'_, '_, T> {
    #[inline]
    fn call(&mut self) -> Result<()> {
        match &mut self.device {
            None => call(self.comm, self.case, self.buffers),
            Some(device) => device.call(self.comm, self.case),
        }
    }

    /// Waits for calls that may run still.
    fn finish(&self) -> Result<()> {
        self.device.as_ref().map_or(Ok(()), |device| device.finish())
    }

    fn run(mut self) -> Result<Times> {
        let (warm_up, each) = self.warm_up()?;
        let calls_each = u64::from(self.timing.calls_each);
        let iterations = match self.timing.iterations {
            Iterations::None => 0,
            Iterations::Exactly(count) => u64::from(count),
            Iterations::Enough => fitting(LOOP_SECONDS, each * calls_each as f64).max(LEAST_ITERATIONS),
        };
        let calls = iterations * calls_each;
        let mut loops = Vec::with_capacity(self.timing.loops as usize);
        for _ in 0..self.timing.loops {
            loops.push(self.one_loop(iterations)? / calls as f64);
        }
        self.comm.barrier()?;
        Ok(Times { loops, calls, warm_up })
    }

    /// Makes the warm-up calls: first calls touch new pages, open connections and wake processors. Yields how many, and
    /// the seconds of one call at the end; both are the same on all ranks.
    fn warm_up(&mut self) -> Result<(u64, f64)> {
        let budget = match self.timing.warm_up {
            WarmUp::Exactly(0) => return Ok((0, f64::INFINITY)),
            WarmUp::Exactly(count) => {
                let seconds = self.slowest(u64::from(count))?;
                return Ok((u64::from(count), seconds / f64::from(count)));
            }
            WarmUp::UntilItStands(budget) => budget,
        };
        let (mut made, mut calls, mut spent) = (0, 1, 0.0);
        let (mut least, mut stood) = (f64::INFINITY, 0);
        loop {
            let seconds = self.slowest(calls)?;
            let each = seconds / calls as f64;
            made += calls;
            spent += seconds;
            stood = if each < least * FALLS { 0 } else { stood + 1 };
            least = least.min(each);
            // Every rank has the same numbers, so all end here together.
            if stood >= STANDS || spent >= budget {
                return Ok((made, each));
            }
            calls = fitting(BATCH_SECONDS, each);
        }
    }

    /// The seconds that a loop of this many calls takes on the slowest rank.
    fn slowest(&mut self, calls: u64) -> Result<f64> {
        self.comm.barrier()?;
        let start = clock::now();
        for _ in 0..calls {
            self.call()?;
        }
        self.finish()?;
        let mine = clock::now().duration_since(start).as_secs_f64();
        let mut all = vec![0f64; self.comm.size() as usize];
        self.comm.all_gather(&[mine], &mut all)?;
        Ok(all.into_iter().fold(0.0, f64::max))
    }

    /// The seconds of one timed loop.
    fn one_loop(&mut self, iterations: u64) -> Result<f64> {
        let Timing { calls_each, meetings, .. } = *self.timing;
        self.comm.barrier()?;
        let start = clock::now();
        for _ in 0..iterations {
            for _ in 0..calls_each {
                self.call()?;
                if meetings == Meetings::AfterCalls {
                    self.comm.barrier()?;
                }
            }
            if meetings == Meetings::AfterIterations {
                self.comm.barrier()?;
            }
        }
        self.finish()?;
        Ok(clock::now().duration_since(start).as_secs_f64())
    }
}

/// How many calls of `each` seconds fit into `seconds`, at least one.
fn fitting(seconds: f64, each: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bounded on both sides")]
    let count = (seconds / each.max(SHORTEST_CALL_SECONDS)).clamp(1.0, MOST_CALLS) as u64;
    count
}

#[inline]
fn call<T: Sample>(comm: &Communicator, case: &Case, buffers: &mut RankBuffers<T>) -> Result<()> {
    let op = case.op.map(|op| op.reduce_op(case.data_type, case.shape.rank));
    perform(comm, &case.shape, op, buffers)
}

/// Combines the ranks' times and wrong elements, on every rank.
fn gather(comm: &Communicator, job: &Job, times: &Times, wrong: u64) -> Result<Measured> {
    let mut mine: Vec<u64> = vec![wrong];
    mine.extend(times.loops.iter().map(|time| time.to_bits()));
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
    let loops: Vec<f64> = (0..times.loops.len()).map(of_loop).collect();
    let total = ranks.iter().map(|rank| rank[0]).sum();
    let Times { calls, warm_up, .. } = *times;
    Ok(Measured {
        time_us: median(loops).map(|seconds| seconds * 1e6),
        calls,
        warm_up,
        wrong: (job.checks > 0).then_some(total),
    })
}

/// The middle of `numbers`, the lower one of two.
fn median(mut numbers: Vec<f64>) -> Option<f64> {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len().saturating_sub(1) / 2).copied()
}

/// The minimum time of a timed loop if the user does not give the iterations: far more than reading the clock takes.
const LOOP_SECONDS: f64 = 0.01;
/// The iterations of a loop of long calls; nccl-tests' default.
const LEAST_ITERATIONS: u64 = 20;
/// The time of one batch of calls during the warm-up.
const BATCH_SECONDS: f64 = 0.001;
/// If a batch's calls take less than this fraction of the smallest time so far, the time is still falling.
const FALLS: f64 = 0.95;
/// After this many batches without a fall the time is stable.
const STANDS: u32 = 3;
/// A lower bound of a call's time: it keeps counts finite if the clock sees no time pass.
const SHORTEST_CALL_SECONDS: f64 = 1e-8;
const MOST_CALLS: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_follow_from_times_and_have_bounds() {
        assert_eq!((fitting(0.01, 0.001), fitting(0.01, 1.0), fitting(0.01, 0.0)), (10, 1, 1_000_000));
        assert_eq!(fitting(0.01, f64::INFINITY), 1);
        assert_eq!(
            (median(vec![3.0, 1.0, 2.0]), median(vec![2.0, 1.0]), median(Vec::new())),
            (Some(2.0), Some(1.0), None)
        );
    }
}
