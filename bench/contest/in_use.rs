//! What programs do besides blocking calls back to back on a quiet machine: the loops of `driver/in_use.hpp` on rsccl.

use std::hint::black_box;
use std::time::{Duration, Instant};

use rsccl::{ReduceOp, Result};

use crate::collective::Collective;
use crate::requests::{Act, Around, BESIDE, Calls, EXCHANGES, REDUCTIONS, REPEATED};
use crate::ticks::{Histogram, overhead_ticks, tick_ns, ticks};
use crate::{BLOCK_S, Bench, Case, LEAST_BLOCKS, MOST_BLOCKS, MOST_CALLS, WARM_UP_SHARE, fail, median, usage};

/// Units of work between two looks at a request.
const TESTS_APART: u64 = 8;
/// Between two looks at the clock, in `busy`.
const BATCH_S: f64 = 0.02;

impl Bench<'_> {
    pub(crate) fn requests(&self) -> Result<()> {
        let calls = Calls::new(self.comm);
        let wanted = self.text("way", "blocking");
        let mut known = false;
        // First: it measures the blocking call, too, before the watcher has moved many requests. Beside that thread both
        // ranks may come to share a processor.
        for (way, around) in BESIDE.iter().filter(|(way, _)| *way == wanted) {
            for bytes in self.sizes_of("large", "16777216") {
                self.beside(&calls, bytes, way, *around)?;
            }
        }
        for (way, act) in EXCHANGES.iter().filter(|(way, _)| *way == wanted) {
            for bytes in self.sizes() {
                self.measure(("exchange", *way), &calls, self.case(Collective::SendRecv, bytes)?, *act)?;
            }
            known = true;
        }
        for (way, act) in REDUCTIONS.iter().filter(|(way, _)| *way == wanted) {
            for bytes in self.sizes_of("reduced", "8,1024") {
                self.measure(("all_reduce", *way), &calls, self.case(Collective::AllReduce, bytes)?, *act)?;
            }
        }
        if known { Ok(()) } else { fail(&format!("way={wanted}: contest/requests.rs lists the ways")) }
    }

    pub(crate) fn persistent(&self) -> Result<()> {
        let calls = Calls::new(self.comm);
        for bytes in self.sizes() {
            for (way, act) in REPEATED {
                self.measure(("all_reduce", *way), &calls, self.case(Collective::AllReduce, bytes)?, *act)?;
            }
        }
        Ok(())
    }

    /// What a call takes in this way: the median of blocks.
    fn measure(&self, (what, way): (&str, &str), calls: &Calls<'_>, mut case: Case, act: Act) -> Result<()> {
        let budget = self.budget_s();
        let wrong = self.wrong_of(&mut case, |case| act(calls, case))?;
        let begun = Instant::now();
        let mut once = self.block_of(calls, &mut case, act, 1)?;
        let mut count;
        loop {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and MOST_CALLS")]
            {
                count = (BLOCK_S / once).clamp(1.0, MOST_CALLS) as u32;
            }
            once = self.block_of(calls, &mut case, act, count)?;
            if self.max(begun.elapsed().as_secs_f64())? >= WARM_UP_SHARE * budget {
                break;
            }
        }
        let mut times = Vec::new();
        while times.len() < LEAST_BLOCKS
            || (times.len() < MOST_BLOCKS && self.max(begun.elapsed().as_secs_f64())? < budget)
        {
            times.push(self.block_of(calls, &mut case, act, count)?);
        }
        times.sort_by(f64::total_cmp);
        let (us, least, blocks) = (times[times.len() / 2] * 1e6, times[0] * 1e6, times.len());
        let bytes = case.output.len() * size_of::<f32>();
        self.print(&format!(
            r#"{{"what":"{what}","bytes":{bytes},"way":"{way}","us":{us:.4},"least_us":{least:.4},"blocks":{blocks},"calls":{count},"wrong":{wrong}}}"#
        ));
        Ok(())
    }

    /// Seconds of a call of the slowest rank.
    fn block_of(&self, calls: &Calls<'_>, case: &mut Case, act: Act, count: u32) -> Result<f64> {
        self.comm.barrier()?;
        let begun = Instant::now();
        for _ in 0..count {
            act(calls, case)?;
            black_box(&mut case.output[..]);
        }
        self.max(begun.elapsed().as_secs_f64() / f64::from(count))
    }

    /// A program that begins an all-reduce, does something else for as long, and waits: the time of all of it. Tested: the program looks
    /// about every 40 µs meanwhile whether the request has ended.
    fn beside(&self, calls: &Calls<'_>, bytes: usize, way: &str, around: Around) -> Result<()> {
        let samples: usize =
            self.text("samples", "31").parse().unwrap_or_else(|error| fail(&format!("samples: {error}")));
        let mut case = self.case(Collective::AllReduce, bytes)?;
        let wrong = self.wrong_of(&mut case, |case| around(calls, case, &mut |_| ()))?;
        for _ in 0..3 {
            self.call(&mut case)?;
        }
        let call = self.median_of(samples, || self.call(&mut case))?;
        let computed = |units| {
            compute(units);
            Ok(())
        };
        let mut units = 100;
        for _ in 0..3 {
            let took = self.median_of(samples, || computed(units))?;
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and a million")]
            {
                units = (units as f64 * call / took).clamp(1.0, 1e6) as u64;
            }
        }
        let alone = self.median_of(samples, || computed(units))?;
        let both = self.median_of(samples, || around(calls, &mut case, &mut |_| compute(units)))?;
        let tested = self.median_of(samples, || {
            around(calls, &mut case, &mut |is_finished| {
                for done in (0..units).step_by(usize::try_from(TESTS_APART).unwrap_or(1)) {
                    compute(TESTS_APART.min(units - done));
                    black_box(is_finished());
                }
            })
        })?;
        let slept = self.median_of(samples, || {
            around(calls, &mut case, &mut |_| std::thread::sleep(Duration::from_secs_f64(call)))
        })?;
        for (what, alone, both, tested) in [("computing", alone, both, tested), ("sleeping", call, slept, slept)] {
            let hidden = (call + alone - both) / call;
            let [call, alone, both, tested] = [call, alone, both, tested].map(|seconds| seconds * 1e6);
            self.print(&format!(
                r#"{{"what":"{what}","bytes":{bytes},"way":"{way}","call_us":{call:.1},"alone_us":{alone:.1},"us":{both:.1},"tested_us":{tested:.1},"hidden":{hidden:.3},"wrong":{wrong}}}"#
            ));
        }
        Ok(())
    }

    /// Each call timed alone.
    pub(crate) fn busy(&self) -> Result<()> {
        let (tick, seconds) = (tick_ns(), self.text("seconds", "1").parse().unwrap_or(1.0));
        for cell in self.text("cells", "all_reduce:8").split(',') {
            let parsed = cell.split_once(':').and_then(|(name, bytes)| Some((name, bytes.parse().ok()?)));
            let (name, bytes): (&str, usize) =
                parsed.unwrap_or_else(|| fail(&format!("cells={cell}: COLLECTIVE:BYTES expected")));
            let collective =
                Collective::from_name(name).unwrap_or_else(|| fail(&format!("cells={cell}: unknown collective")));
            let mut case = self.case(collective, bytes)?;
            let wrong = self.wrong(&mut case)?;
            // As many calls between two looks at the clock on all ranks.
            let (mut batch, mut once) = (1_u64, 0.0);
            while once < BATCH_S && (batch as f64) < MOST_CALLS {
                let begun = Instant::now();
                for _ in 0..batch {
                    self.call(&mut case)?;
                }
                once = self.max(begun.elapsed().as_secs_f64())?;
                batch *= 2;
            }
            let mut times = Histogram::new();
            let (begun, burnt) = (Instant::now(), usage::processor_s());
            loop {
                for _ in 0..batch {
                    let first = ticks();
                    self.call(&mut case)?;
                    times.add(ticks() - first);
                    black_box(&mut case.output[..]);
                }
                if self.max(begun.elapsed().as_secs_f64())? >= seconds {
                    break;
                }
            }
            self.print_busy((collective, bytes), wrong, &times, tick, usage::processor_s() - burnt)?;
        }
        Ok(())
    }

    fn print_busy(
        &self,
        (collective, bytes): (Collective, usize),
        wrong: f64,
        times: &Histogram,
        tick: f64,
        burnt: f64,
    ) -> Result<()> {
        let us = tick / 1e3 / if collective == Collective::SendRecv { 2.0 } else { 1.0 };
        let calls = times.calls();
        let [mean, median] = [times.mean(), times.quantile(0.5)].map(|ticks| self.max(ticks * us));
        let [p99, p999] = [0.99, 0.999].map(|share| self.max(times.quantile(share) * us));
        let (mean, median, p99, p999) = (mean?, median?, p99?, p999?);
        let mut total = [burnt];
        self.comm.all_reduce_in_place(&mut total, ReduceOp::Sum)?;
        let (cpu, overhead) = (total[0] / calls as f64 * 1e6, overhead_ticks() as f64 * tick);
        let session = f64::from(usage::session());
        let sessions = if self.max(session)? + self.max(-session)? == 0.0 { 1 } else { 2 };
        self.print(&format!(
            r#"{{"of":"{collective}","bytes":{bytes},"calls":{calls},"mean_us":{mean:.4},"us":{median:.4},"p99_us":{p99:.3},"p999_us":{p999:.3},"cpu_us":{cpu:.4},"tick_ns":{tick:.4},"overhead_ns":{overhead:.1},"sessions":{sessions},"wrong":{wrong}}}"#
        ));
        Ok(())
    }

    fn budget_s(&self) -> f64 {
        self.text("budget_ms", "300").parse().map_or(0.3, |ms: f64| ms / 1e3)
    }

    /// Seconds, of the slowest rank, of the median of some.
    pub(crate) fn median_of(&self, samples: usize, mut act: impl FnMut() -> Result<()>) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..samples {
            self.comm.barrier()?;
            let begun = Instant::now();
            act()?;
            times.push(self.max(begun.elapsed().as_secs_f64())?);
        }
        Ok(median(times))
    }
}

/// Work that needs a processor and no memory: a chain of multiplications, some 4 µs a unit.
fn compute(units: u64) {
    for _ in 0..units {
        let mut x = black_box(1.0_f64);
        for _ in 0..4000 {
            x = x * 1.000_000_1 + 1e-9;
        }
        black_box(x);
    }
}
