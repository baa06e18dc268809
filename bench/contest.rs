//! rsccl in the contest: the loop of `driver/loop.hpp`, which is what peers run, on the public interface. It takes the same words and
//! prints the same lines; `registered=1` takes registered buffers, `registered=in-place` vectors that
//! are registered where they lie.
//!
//!     cargo build --release --example contest
//!     target/release/rsccl run -n 2 -- target/release/examples/contest collective collective=all_reduce bytes=8,1048576
//!
//! It is an example to cargo and not a benchmark, because launchers need a program with a path that stays.
#![expect(clippy::print_stdout, reason = "a program that prints figures")]
#![expect(clippy::disallowed_methods, reason = "the rules on the clock and on sleeping are the library's")]

mod collective;
#[path = "contest/in_use.rs"]
mod in_use;
#[path = "contest/memory.rs"]
mod memory;
#[path = "contest/requests.rs"]
mod requests;
#[path = "contest/ticks.rs"]
mod ticks;
#[path = "contest/usage.rs"]
mod usage;

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use rsccl::{Communicator, ReduceOp, Result};

use collective::Collective;
use memory::Memory;

const BLOCK_S: f64 = 0.005;
const WARM_UP_SHARE: f64 = 0.2;
const MOST_CALLS: f64 = 100_000.0;
const LEAST_BLOCKS: usize = 3;
const MOST_BLOCKS: usize = 1000;
const LATE: Duration = Duration::from_millis(200);
/// Calls whose median counts, in `overlap`.
const OVERLAPS: usize = 5;
const ROOT: u32 = 0;

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let mode = words.next().unwrap_or_else(|| fail("which mode?"));
    let arguments = words
        .map(|word| match word.split_once('=') {
            Some((key, value)) => (key.to_owned(), value.to_owned()),
            None => fail(&format!("{word}: KEY=VALUE expected")),
        })
        .collect();
    let comm = Communicator::from_env()?;
    let bench = Bench { comm: &comm, arguments };
    match &*mode {
        "requests" => bench.requests()?,
        "persistent" => bench.persistent()?,
        "busy" => bench.busy()?,
        _ => bench.each_size(&mode)?,
    }
    comm.finalize()
}

fn fail(why: &str) -> ! {
    eprintln!("contest: {why}");
    std::process::exit(2)
}

/// What a call gets: a broadcast is in place, in `input`.
struct Case {
    collective: Collective,
    input: Memory,
    output: Memory,
    /// Elements of each rank's share, or of the whole.
    count: usize,
    /// Whether its call was prepared.
    is_prepared: bool,
}

struct Bench<'a> {
    comm: &'a Communicator,
    arguments: BTreeMap<String, String>,
}

impl Bench<'_> {
    fn text(&self, key: &str, usual: &'static str) -> &str {
        self.arguments.get(key).map_or(usual, String::as_str)
    }

    fn each_size(&self, mode: &str) -> Result<()> {
        for bytes in self.sizes() {
            match mode {
                "collective" => self.collective(bytes)?,
                "first" => self.first(bytes)?,
                "late" => self.late(bytes)?,
                "overlap" => self.overlap(bytes)?,
                "footprint" => self.footprint(bytes)?,
                "startup" => self.startup()?,
                other => fail(&format!(
                    "mode {other}: one of collective, first, late, overlap, footprint, startup, requests, persistent, busy"
                )),
            }
        }
        Ok(())
    }

    fn sizes(&self) -> Vec<usize> {
        self.sizes_of("bytes", "8")
    }

    fn sizes_of(&self, key: &str, usual: &'static str) -> Vec<usize> {
        let parse = |size: &str| size.parse().unwrap_or_else(|error| fail(&format!("{key}={size}: {error}")));
        self.text(key, usual).split(',').map(parse).collect()
    }

    fn wanted(&self) -> Collective {
        let name = self.text("collective", "all_reduce");
        Collective::from_name(name).unwrap_or_else(|| fail(&format!("unknown collective {name}")))
    }

    fn case(&self, collective: Collective, bytes: usize) -> Result<Case> {
        let ranks = self.comm.size() as usize;
        let whole = (bytes / size_of::<f32>()).max(1);
        let share = whole.div_ceil(ranks);
        let (sent, received, count) = match collective {
            Collective::AllGather => (share, share * ranks, share),
            Collective::ReduceScatter => (share * ranks, share, share),
            Collective::AllToAll => (share * ranks, share * ranks, share),
            Collective::AllReduce | Collective::Broadcast | Collective::Reduce | Collective::SendRecv => {
                (whole, whole, whole)
            }
        };
        let memory = |elements| match self.text("registered", "0") {
            "1" => Memory::registered(self.comm, elements),
            "in-place" => Memory::in_place(self.comm, elements),
            _ => Ok(Memory::ordinary(elements)),
        };
        Ok(Case { collective, input: memory(sent)?, output: memory(received)?, count, is_prepared: false })
    }

    fn partner(&self) -> Option<u32> {
        Some(self.comm.rank() ^ 1).filter(|peer| *peer < self.comm.size())
    }

    fn call(&self, case: &mut Case) -> Result<()> {
        let (comm, sum) = (self.comm, ReduceOp::Sum);
        let (input, output) = (&mut case.input[..], &mut case.output[..]);
        match case.collective {
            Collective::AllReduce => comm.all_reduce(input, output, sum),
            Collective::Broadcast => comm.broadcast(input, ROOT),
            Collective::Reduce if comm.rank() == ROOT => comm.reduce(input, output, sum, ROOT),
            Collective::Reduce => comm.reduce(input, &mut [], sum, ROOT),
            Collective::AllGather => comm.all_gather(input, output),
            Collective::ReduceScatter => comm.reduce_scatter(input, output, sum),
            Collective::AllToAll => comm.all_to_all(input, output),
            Collective::SendRecv => match self.partner() {
                Some(peer) if peer > comm.rank() => comm.send(input, peer).and_then(|()| comm.recv(output, peer)),
                Some(peer) => comm.recv(output, peer).and_then(|()| comm.send(input, peer)),
                None => Ok(()),
            },
        }
    }

    /// The slowest rank's, on every rank.
    fn max(&self, mine: f64) -> Result<f64> {
        let mut most = [mine];
        self.comm.all_reduce_in_place(&mut most, ReduceOp::Max)?;
        Ok(most[0])
    }

    fn wrong(&self, case: &mut Case) -> Result<f64> {
        self.wrong_of(case, |case| self.call(case))
    }

    /// One call on fresh values, and a look at every element: how many are wrong on the rank that has most.
    fn wrong_of(&self, case: &mut Case, call: impl FnOnce(&mut Case) -> Result<()>) -> Result<f64> {
        let (rank, in_place) = (self.comm.rank(), case.collective == Collective::Broadcast);
        for (index, element) in case.input.iter_mut().enumerate() {
            *element = if in_place && rank != ROOT { -1.0 } else { value(rank, index) };
        }
        case.output.fill(-1.0);
        call(case)?;
        let result = if in_place { &case.input } else { &case.output };
        let wrong = result.iter().enumerate().filter(|(index, got)| **got != self.expected(case, *index)).count();
        self.max(wrong as f64)
    }

    fn expected(&self, case: &Case, index: usize) -> f32 {
        let (me, count) = (self.comm.rank() as usize, case.count);
        let sum = |index| (0..self.comm.size()).map(|rank| value(rank, index)).sum();
        let owner = || u32::try_from(index / count).expect("no more shares than ranks");
        match case.collective {
            Collective::AllReduce => sum(index),
            Collective::Reduce if self.comm.rank() == ROOT => sum(index),
            Collective::Reduce => -1.0,
            Collective::Broadcast => value(ROOT, index),
            Collective::AllGather => value(owner(), index % count),
            Collective::ReduceScatter => sum(me * count + index),
            Collective::AllToAll => value(owner(), me * count + index % count),
            Collective::SendRecv => self.partner().map_or(-1.0, |peer| value(peer, index)),
        }
    }

    /// Seconds of a call: the mean of a loop, of the slowest rank.
    fn block(&self, case: &mut Case, calls: u32, rewrite: bool) -> Result<f64> {
        self.comm.barrier()?;
        let begun = Instant::now();
        for call in 0..calls {
            if rewrite {
                case.input.fill((call % 8) as f32);
            }
            self.call(case)?;
            black_box(&mut case.output[..]);
        }
        let call = begun.elapsed().as_secs_f64() / f64::from(calls);
        self.max(if case.collective == Collective::SendRecv { call / 2.0 } else { call })
    }

    fn collective(&self, bytes: usize) -> Result<()> {
        let mut case = self.case(self.wanted(), bytes)?;
        let wrong = self.wrong(&mut case)?;
        let budget = self.text("budget_ms", "300").parse().map_or(0.3, |ms: f64| ms / 1e3);
        let rewrite = self.text("rewrite", "0") == "1";
        let begun = Instant::now();
        // All ranks decide alike.
        let since = || self.max(begun.elapsed().as_secs_f64());
        let mut once = self.block(&mut case, 1, rewrite)?;
        let mut calls;
        loop {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and MOST_CALLS")]
            {
                calls = (BLOCK_S / once).clamp(1.0, MOST_CALLS) as u32;
            }
            once = self.block(&mut case, calls, rewrite)?;
            if since()? >= WARM_UP_SHARE * budget {
                break;
            }
        }
        let mut times = Vec::new();
        while times.len() < LEAST_BLOCKS || (times.len() < MOST_BLOCKS && since()? < budget) {
            times.push(self.block(&mut case, calls, rewrite)?);
        }
        times.sort_by(f64::total_cmp);
        let (us, least, blocks) = (times[times.len() / 2] * 1e6, times[0] * 1e6, times.len());
        self.print(&format!(
            r#"{{"bytes":{bytes},"us":{us:.4},"least_us":{least:.4},"blocks":{blocks},"calls":{calls},"wrong":{wrong}}}"#
        ));
        Ok(())
    }

    fn first(&self, bytes: usize) -> Result<()> {
        let mut case = self.case(self.wanted(), bytes)?;
        case.input.fill(1.0);
        case.output.fill(0.0);
        let times = (0..100).map(|_| self.block(&mut case, 1, false)).collect::<Result<Vec<f64>>>()?;
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64 * 1e6;
        self.print(&format!(
            r#"{{"bytes":{bytes},"first_us":{:.3},"to_20_us":{:.3},"to_100_us":{:.3}}}"#,
            mean(&times[..1]),
            mean(&times[1..20]),
            mean(&times[20..])
        ));
        Ok(())
    }

    fn late(&self, bytes: usize) -> Result<()> {
        let mut case = self.case(Collective::AllReduce, bytes)?;
        self.block(&mut case, 100, false)?;
        let (mut burnt, mut took) = (Vec::new(), Vec::new());
        let samples: u32 =
            self.text("samples", "10").parse().unwrap_or_else(|error| fail(&format!("samples: {error}")));
        for _ in 0..samples {
            self.comm.barrier()?;
            if self.comm.rank() == 1 {
                std::thread::sleep(LATE);
            }
            let (before, begun) = (usage::processor_s(), Instant::now());
            self.call(&mut case)?;
            let (call, used) = (begun.elapsed().as_secs_f64(), usage::processor_s() - before);
            took.push(self.max(if self.comm.rank() == 1 { call } else { 0.0 })?);
            burnt.push(self.max(if self.comm.rank() == 0 { used } else { 0.0 })?);
        }
        let (took, burnt) = (median(took) * 1e6, median(burnt) * 1e3);
        self.print(&format!(r#"{{"bytes":{bytes},"late_call_us":{took:.1},"waiting_cpu_ms":{burnt:.2}}}"#));
        Ok(())
    }

    fn overlap(&self, bytes: usize) -> Result<()> {
        let mut case = self.case(Collective::AllReduce, bytes)?;
        for _ in 0..3 {
            self.call(&mut case)?;
        }
        let blocking = self.median_of(OVERLAPS, || self.call(&mut case))?;
        let mut beside = |nap: f64| {
            let Case { input, output, .. } = &mut case;
            self.median_of(OVERLAPS, || {
                self.comm.scope(|scope| {
                    let request = scope.all_reduce(&input[..], &mut output[..], ReduceOp::Sum)?;
                    std::thread::sleep(Duration::from_secs_f64(nap));
                    request.wait()
                })
            })
        };
        let alone = beside(0.0)?;
        let both = beside(alone)?;
        let hidden = (2.0 * alone - both) / alone;
        let [blocking, alone, both] = [blocking, alone, both].map(|seconds| seconds * 1e3);
        self.print(&format!(
            r#"{{"bytes":{bytes},"blocking_ms":{blocking:.3},"alone_ms":{alone:.3},"behind_sleep_ms":{both:.3},"hidden":{hidden:.3}}}"#
        ));
        Ok(())
    }

    fn footprint(&self, bytes: usize) -> Result<()> {
        let after_init = usage::now();
        let mut small = self.case(Collective::AllReduce, 8)?;
        for _ in 0..100 {
            self.call(&mut small)?;
        }
        let after_small = usage::now();
        let mut large = self.case(Collective::AllReduce, bytes)?;
        for _ in 0..20 {
            self.call(&mut large)?;
        }
        self.comm.barrier()?;
        self.print(&format!(
            r#"{{"bytes":{bytes},"init":{after_init},"small":{after_small},"large":{}}}"#,
            usage::now()
        ));
        self.comm.barrier()
    }

    fn startup(&self) -> Result<()> {
        let mut small = self.case(Collective::AllReduce, 8)?;
        let wrong = self.wrong(&mut small)?;
        self.print(&format!(r#"{{"ranks":{},"wrong":{wrong}}}"#, self.comm.size()));
        Ok(())
    }

    fn print(&self, line: &str) {
        if self.comm.rank() == 0 {
            println!("{line}");
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Whole numbers so small that sums are exact in any order.
fn value(rank: u32, index: usize) -> f32 {
    (index % 64) as f32 + 64.0 * rank as f32
}
