//! What a job takes whose processors change under it, compared with a job that starts on these processors, in one run:
//! two ranks, each a process, whose threads all move from two processors to one, or back.
//!
//! A cell is a size. Jobs alternate. The time of a call is that of its slower rank; of the calls with one number, counted
//! from the change, the median over the jobs counts; and of these medians the largest from call 20 on. Its ratio to the
//! same of jobs that start there is printed, and how many calls it takes to come within 1.5.
//! `cargo bench --features internals --bench moved`; with `-- 1048576` that size alone. It needs two processors and `taskset`.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use rsccl::{Communicator, ReduceOp};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const RANKS: usize = 2;
/// Float counts: 8 B to 1 MiB.
const COUNTS: [usize; 4] = [2, 256, 16_384, 262_144];
const JOBS: usize = 15;
/// Calls before the change, and behind it.
const BEFORE: usize = 400;
const BEHIND: usize = 120;
/// From which call on a job may take [`MOST`] times what one takes that has started there.
const SETTLED: usize = 20;
const MOST: f64 = 1.5;

fn main() -> Result<()> {
    if std::env::args().any(|argument| argument == "rank") {
        return rank();
    }
    let allowed = allowed()?;
    let [first, second, ..] = allowed[..] else { return Err("two processors are needed".into()) };
    let (one, two) = (first.to_string(), format!("{first},{second}"));
    println!("| bytes | processors | started there, us | moved there, us | ratio | within {MOST} from call |");
    println!("|---|---|---|---|---|---|");
    let asked: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    for count in COUNTS.into_iter().filter(|count| asked.is_empty() || asked.contains(&(count * size_of::<f32>()))) {
        for (from, to, name) in [(&two, &one, "2 to 1"), (&one, &two, "1 to 2")] {
            let (mut started, mut moved) = (vec![Vec::new(); BEHIND], vec![Vec::new(); BEHIND]);
            for _ in 0..JOBS {
                for (times, begins) in [(&mut started, to), (&mut moved, from)] {
                    let job = job(count, (begins, to))?;
                    times.iter_mut().zip(job).for_each(|(times, time)| times.push(time));
                }
            }
            let [started, moved] = [started, moved].map(|all| all.into_iter().map(median).collect::<Vec<f64>>());
            let most = |times: &[f64]| times[SETTLED..].iter().copied().fold(0.0, f64::max);
            let (there, here) = (most(&started), most(&moved));
            let settles = moved.iter().rposition(|time| *time > MOST * there).map_or(0, |last| last + 1);
            let bytes = count * size_of::<f32>();
            println!("| {bytes} | {name} | {there:.1} | {here:.1} | {:.2} | {settles} |", here / there);
        }
    }
    Ok(())
}

/// Microseconds of each call behind the change of one job.
fn job(count: usize, (from, to): (&str, &str)) -> Result<Vec<f64>> {
    let folder = tempfile::tempdir()?;
    let mut ranks: Vec<Rank> =
        (0..RANKS).map(|rank| Rank::start((rank, from), folder.path())).collect::<Result<_>>()?;
    all(&mut ranks, count, BEFORE)?;
    for rank in &ranks {
        let moved = Command::new("taskset").args(["-acp", to, &rank.process.id().to_string()]).output()?;
        if !moved.status.success() {
            return Err(String::from_utf8_lossy(&moved.stderr).into());
        }
    }
    let times = all(&mut ranks, count, BEHIND)?;
    for mut rank in ranks {
        drop(rank.asks);
        rank.process.wait()?;
    }
    Ok((0..BEHIND).map(|call| times.iter().map(|times| times[call]).fold(0.0, f64::max)).collect())
}

fn all(ranks: &mut [Rank], count: usize, calls: usize) -> Result<Vec<Vec<f64>>> {
    for rank in &mut *ranks {
        writeln!(rank.asks, "{count} {calls}")?;
    }
    ranks.iter_mut().map(Rank::times).collect()
}

struct Rank {
    process: Child,
    asks: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Rank {
    fn start((rank, processors): (usize, &str), folder: &std::path::Path) -> Result<Rank> {
        let mut process = Command::new("taskset")
            .args(["-c", processors])
            .arg(std::env::current_exe()?)
            .arg("rank")
            .env("RSCCL_RANK", rank.to_string())
            .env("RSCCL_WORLD_SIZE", RANKS.to_string())
            .env("RSCCL_STORE", format!("file://{}", folder.join("store").display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (asks, answers) = (process.stdin.take(), process.stdout.take());
        let (Some(asks), Some(answers)) = (asks, answers) else { return Err("a process without its pipes".into()) };
        Ok(Rank { process, asks, answers: BufReader::new(answers).lines() })
    }

    fn times(&mut self) -> Result<Vec<f64>> {
        let line = self.answers.next().ok_or("a rank has ended")??;
        Ok(line.split(' ').map(str::parse).collect::<std::result::Result<_, _>>()?)
    }
}

/// One rank: for each line with a count and a number of calls, how many microseconds each of them takes.
fn rank() -> Result<()> {
    let comm = Communicator::from_env()?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (count, calls) = line.split_once(' ').ok_or("a count and calls")?;
        let (mut buffer, calls) = (vec![0f32; count.parse()?], calls.parse::<usize>()?);
        comm.barrier()?;
        let mut times = Vec::with_capacity(calls);
        for _ in 0..calls {
            let begun = rsccl::internals::sys::clock::now();
            comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
            times.push(format!("{:.2}", begun.elapsed().as_secs_f64() * 1e6));
        }
        println!("{}", times.join(" "));
    }
    comm.finalize()?;
    Ok(())
}

/// The processors that this process may use.
fn allowed() -> Result<Vec<usize>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let list =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).ok_or("no list of processors")?;
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        all.extend(first.parse::<usize>()?..=last.parse()?);
    }
    Ok(all)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
