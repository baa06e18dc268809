//! `rsccl tune`: what things cost on this machine.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rsccl::internals::bootstrap::interface::Rules;
use rsccl::internals::device;
use rsccl::internals::sys::{clock, cpu, interfaces, numa, open, thread};
use rsccl::internals::tune::{Calibration, Costs};
use rsccl::{Communicator, Config, Error, Result, local};

use crate::print;

/// Measures what copies, reductions, flags and messages cost on this machine, and writes a file for RSCCL_TUNE_FILE.
///
/// Messages are those of communicators: between two threads, through shared memory, and over TCP. TCP goes to this
/// machine itself; where the network is slower, set net_latency_us and net_bytes_per_us in the file to what it does,
/// and take the hash out. All ranks need equal constants: copy one file to all hosts. The machine should do nothing
/// else meanwhile.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Where the constants are written
    #[arg(short, long, value_name = "FILE", default_value = "rsccl-tune.conf")]
    output: PathBuf,
    /// The interface whose address TCP uses, as NCCL_SOCKET_IFNAME; what goes to this machine's own address goes over
    /// loopback, whichever it is
    #[arg(long, value_name = "NAME", default_value = "lo")]
    interface: String,
    /// A hundredth of the time: figures to try the file with, not to keep
    #[arg(long)]
    quick: bool,
}

/// Prints each constant as it is measured, and writes them.
pub(crate) fn execute(arguments: &Arguments) -> Result<ExitCode> {
    let (path, is_new) = (&arguments.output, !arguments.output.exists());
    let unwritable = |error| Error::system(format!("writing {}", path.display()), error);
    // Before anything is measured. What is there stays as it is until then.
    drop(std::fs::OpenOptions::new().create(true).append(true).open(path).map_err(unwritable)?);
    if is_new {
        std::fs::remove_file(path).map_err(unwritable)?;
    }
    check_interface(&arguments.interface)?;
    let effort =
        if arguments.quick { Effort { rounds: 20, bytes: 1 << 20 } } else { Effort { rounds: 2_000, bytes: 64 << 20 } };
    let mut costs = Costs { copy_bytes_per_us: copying(effort.bytes, SAMPLES)?, ..Costs::default() };
    say("copies from memory to memory", costs.copy_bytes_per_us, "MB/s")?;
    costs.cached_bytes_per_us = copying(CACHED_BYTES, effort.rounds)?;
    say("copies inside a core's cache", costs.cached_bytes_per_us, "MB/s")?;
    costs.reduce_bytes_per_us = reducing(effort.bytes, SAMPLES)?;
    say("sums of float32", costs.reduce_bytes_per_us, "MB/s")?;
    match pairs(Path::new("/")) {
        Some([near, far]) => {
            say("a flag between near cores", flag(near, effort.rounds)?, "us")?;
            // A collective waits for the farthest of its ranks.
            costs.flag_us = flag(far, effort.rounds)?;
            say("a flag between far cores", costs.flag_us, "us")?;
        }
        None => print::complain("rsccl: this process may use one core: the usual cost of a flag between cores is kept"),
    }
    let config = Config::default().with_socket_interfaces(&*arguments.interface).with_timeout(TIMEOUT);
    let shared = config.clone().with_p2p_disable(true);
    let sockets = shared.clone().with_shm_disable(true);
    costs.local.latency_us = messages(&config, effort)?.latency_us;
    say("a message between threads", costs.local.latency_us, "us")?;
    costs.shm.latency_us = messages(&shared, effort)?.latency_us;
    say("a message through shared memory", costs.shm.latency_us, "us")?;
    let net = messages(&sockets, effort)?;
    (costs.net.latency_us, costs.net_message_us) = (net.latency_us, net.each_us);
    costs.net.bytes_per_us = net.bytes_per_us;
    say("a message over TCP", net.latency_us, "us")?;
    say("each of many messages over TCP", net.each_us, "us")?;
    say("long messages over TCP", net.bytes_per_us, "MB/s")?;
    let text = Calibration::new(costs).write();
    // What was measured is read as ranks will read it: figures out of range are found here.
    Calibration::parse(&path.display().to_string(), &text)?;
    open::write(path, &text).map_err(unwritable)?;
    show(&format!("written to {}; use it with RSCCL_TUNE_FILE on all ranks\n", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// That this host has an interface that is so called.
fn check_interface(name: &str) -> Result<()> {
    let (rules, mut there): (Rules, Vec<String>) = (name.parse()?, Vec::new());
    for interface in interfaces::list()? {
        if rules.allow(&interface.name) {
            return Ok(());
        }
        if !there.contains(&interface.name) {
            there.push(interface.name);
        }
    }
    let there = there.join(", ");
    Err(Error::invalid_argument(format!("--interface {name}: this host has no such interface; it has {there}")))
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
struct Effort {
    /// Round trips in one timing.
    rounds: usize,
    /// Bytes of a long copy and of all long messages together.
    bytes: usize,
}

fn say(what: &str, value: f64, unit: &str) -> Result<()> {
    show(&format!("{what:<34} {value:>12.3} {unit}\n"))
}

fn show(text: &str) -> Result<()> {
    print::out("the figures", text)
}

/// Microseconds that `body` takes, and no less than a nanosecond.
fn microseconds(body: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begun = clock::now();
    body()?;
    Ok((begun.elapsed().as_secs_f64() * 1e6).max(1e-3))
}

/// The median of timings.
fn median(mut body: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut all = (0..SAMPLES).map(|_| body()).collect::<Result<Vec<f64>>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[SAMPLES / 2])
}

/// Bytes that a core copies in a microsecond, from one buffer of so many bytes to another.
#[expect(clippy::cast_precision_loss, reason = "bytes of a buffer need no more than 53 bits")]
fn copying(bytes: usize, rounds: usize) -> Result<f64> {
    let (source, mut target) = (vec![1u8; bytes], vec![0u8; bytes]);
    let took = median(|| {
        microseconds(|| {
            for _ in 0..rounds {
                black_box(&mut target[..]).copy_from_slice(black_box(&source[..]));
            }
            Ok(())
        })
    })?;
    Ok((bytes * rounds) as f64 / took)
}

/// Bytes that a core reduces in a microsecond, from two buffers of so many bytes into a third: reads and writes count
/// half each.
#[expect(clippy::cast_precision_loss, reason = "bytes of a buffer need no more than 53 bits")]
fn reducing(bytes: usize, rounds: usize) -> Result<f64> {
    let count = bytes / size_of::<f32>();
    let (one, other, mut sums) = (vec![1.0f32; count], vec![2.0f32; count], vec![0.0f32; count]);
    let took = median(|| {
        microseconds(|| {
            (0..rounds).try_for_each(|_| device::add_floats(black_box(&one), black_box(&other), black_box(&mut sums)))
        })
    })?;
    Ok(1.5 * (bytes * rounds) as f64 / took)
}

/// Two pairs of processors, each on cores of its own: near each other, and as far from each other as those that this
/// process may use are; `None` where it may use one core.
fn pairs(root: &Path) -> Option<[(u32, u32); 2]> {
    let firsts: Vec<u32> = numa::cores(root).iter().filter_map(|core| core.first().copied()).collect();
    let (first, others) = firsts.split_first()?;
    let home = |processor: u32| numa::home_of(root, &[processor]);
    let own = home(*first);
    let distance = |processor: &u32| {
        let home = home(*processor);
        u32::from(home.cache != own.cache) + u32::from(home.node != own.node) + u32::from(home.socket != own.socket)
    };
    let near = others.iter().min_by_key(|processor| distance(processor))?;
    let far = others.iter().max_by_key(|processor| distance(processor))?;
    Some([(*first, *near), (*first, *far)])
}

/// A word on a cache line of its own; two, since processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU64);

impl Line {
    /// Waits until the line has this value.
    fn await_value(&self, value: u64) -> Result<()> {
        let begun = clock::now();
        for turn in 1u64.. {
            // Pairs with the release in `flag`: nothing but the value itself is read after it.
            if self.0.load(Ordering::Acquire) == value {
                return Ok(());
            }
            if turn.is_multiple_of(1 << 16) && begun.elapsed() > TIMEOUT {
                break;
            }
            cpu::relax();
        }
        Err(Error::timeout("a thread on another core did not answer: is that core taken?"))
    }
}

/// Microseconds from one core's raising a flag to another's seeing it.
#[expect(clippy::cast_precision_loss, reason = "rounds are few")]
fn flag((one, other): (u32, u32), rounds: usize) -> Result<f64> {
    let lines = [Line::default(), Line::default()];
    let play = |(own, peer, processor): (usize, usize, u32)| -> Result<f64> {
        cpu::bind_to(processor)?;
        let mut value = 0;
        median(|| {
            microseconds(|| {
                for _ in 0..rounds {
                    value += 1;
                    if own == 0 {
                        lines[own].0.store(value, Ordering::Release);
                        lines[peer].await_value(value)?;
                    } else {
                        lines[peer].await_value(value)?;
                        lines[own].0.store(value, Ordering::Release);
                    }
                }
                Ok(())
            })
        })
    };
    let took = thread::side_by_side("tune", vec![(0, 1, one), (1, 0, other)], play, || ())?;
    let took = took.into_iter().collect::<Result<Vec<f64>>>()?;
    Ok(took[0] / (2 * rounds) as f64)
}

/// What messages take.
#[derive(Debug, Clone, Copy)]
struct Messages {
    /// Half a round trip of 8 bytes.
    latency_us: f64,
    /// Of many short messages behind each other, each.
    each_us: f64,
    /// In long messages behind each other.
    bytes_per_us: f64,
}

/// What messages take between two ranks of this process, over the transport that `config` leaves.
#[expect(clippy::cast_precision_loss, reason = "bytes and rounds need no more than 53 bits")]
fn messages(config: &Config, effort: Effort) -> Result<Messages> {
    let play = |comm: Communicator| -> Result<Messages> {
        let rounds = effort.rounds;
        let latency = median(|| microseconds(|| (0..rounds).try_for_each(|_| there_and_back(&comm, 8, 1))))?;
        let each = median(|| microseconds(|| there_and_back(&comm, 8, rounds)))?;
        let long = median(|| microseconds(|| there_and_back(&comm, LONG_BYTES, effort.bytes / LONG_BYTES)))?;
        comm.finalize()?;
        Ok(Messages {
            latency_us: latency / (2 * rounds) as f64,
            each_us: each / rounds as f64,
            bytes_per_us: effort.bytes as f64 / long,
        })
    };
    Ok(local::run_with(2, config, play)?[0])
}

/// So many messages to rank 1, which answers with a short one.
fn there_and_back(comm: &Communicator, bytes: usize, messages: usize) -> Result<()> {
    let (mut message, mut answer) = (vec![0u8; bytes], [0u8; 8]);
    for _ in 0..messages {
        if comm.rank() == 0 {
            comm.send(&message, 1)?;
        } else {
            comm.recv(&mut message, 0)?;
        }
    }
    if comm.rank() == 0 { comm.recv(&mut answer, 1).map(drop) } else { comm.send(&answer, 0).map(drop) }
}

/// Timings of which the median counts.
const SAMPLES: usize = 5;
/// Bytes of a copy that stays in a core's second-level cache.
const CACHED_BYTES: usize = 64 << 10;
/// Bytes of a long message.
const LONG_BYTES: usize = 1 << 20;
/// How long any wait may take.
const TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_on_the_nearest_and_the_farthest_cores() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let write = |name: &str, text: &str| {
            let path = root.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("proc/thread-self/status", "Cpus_allowed_list:\t0\n");
        assert_eq!(pairs(root), None);
        write("proc/thread-self/status", "Cpus_allowed_list:\t0-5\n");
        for processor in 0..6 {
            let of = format!("sys/devices/system/cpu/cpu{processor}");
            write(&format!("{of}/topology/physical_package_id"), &format!("{}\n", processor / 4));
            write(&format!("{of}/topology/thread_siblings_list"), &format!("{0}-{1}\n", processor & !1, processor | 1));
        }
        assert_eq!(pairs(root), Some([(0, 2), (0, 4)]));
    }
}
