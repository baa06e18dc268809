//! Host copies and reductions against memcpy, in one run.
//!
//! ```text
//! cargo bench --features internals --bench reductions                   all parts
//! cargo bench --features internals --bench reductions -- large|cache|small
//! ```
//! `large`: 64 MiB per buffer, from memory to memory, on one thread and on two at once; µs and GB/s of the bytes that one
//! thread reads and writes. `cache`: every type and operator on buffers that stay in the first two caches; GB/s of input.
//! `small`: ns of one pass of two sources. Each figure is the median (and for `large` the best) of repetitions that alternate
//! between all lines of a part.

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use std::hint::black_box;
use std::sync::Barrier;
use std::time::Duration;

use rsccl::internals::device::{Average, Kernel, Pass, Store};
use rsccl::internals::sys::clock;
use rsccl::types::{DataType, ReduceOp, Scalar};

/// Bytes of a buffer of the part `large`.
const LARGE: usize = 64 << 20;
/// Repetitions of the part `large`.
const LARGE_REPEATS: usize = 15;
/// Bytes of a buffer of the part `cache`.
const CACHED: usize = 64 << 10;
/// Passes in one timing of the part `cache`.
const CACHED_PASSES: usize = 20;
/// Repetitions of the parts `cache` and `small`.
const REPEATS: usize = 31;
/// Passes in one timing of the part `small`.
const SMALL_PASSES: usize = 2000;

/// Memory of one thread, touched and aligned to a page.
struct Buffers {
    memory: Vec<u8>,
    bytes: usize,
}

impl Buffers {
    fn new(count: usize, bytes: usize) -> Buffers {
        // 1.0 in f32 and plain numbers elsewhere: no subnormal slows the sums down.
        let memory = [0x00, 0x00, 0x80, 0x3f].repeat((count * bytes + 4096) / 4);
        Buffers { memory, bytes }
    }

    fn pointers(&mut self) -> Vec<*mut u8> {
        let start = self.memory.as_ptr().addr().wrapping_neg() % 4096;
        self.memory[start..].chunks_exact_mut(self.bytes).map(<[u8]>::as_mut_ptr).collect()
    }
}

/// A pass over the buffers: the first ones are sources, the next ones targets.
#[derive(Clone, Copy)]
struct Shape {
    sources: usize,
    targets: usize,
    store: Store,
}

impl Shape {
    fn bytes(self, bytes: usize) -> usize {
        (self.sources + self.targets) * bytes
    }
}

/// Runs `kernel` once over `buffers` in this shape.
fn run(kernel: &Kernel, shape: Shape, buffers: &[*mut u8], count: usize) {
    let mut sources = [std::ptr::null(); 8];
    for (source, buffer) in sources.iter_mut().zip(&buffers[..shape.sources]) {
        *source = buffer.cast_const();
    }
    let pass = Pass {
        sources: &sources[..shape.sources],
        raw: Some(0),
        targets: &buffers[shape.sources..shape.sources + shape.targets],
        count,
        finish: true,
        average: Average::Whole,
        store: shape.store,
    };
    // SAFETY: each buffer has at least `count` elements and they are apart.
    unsafe { kernel.run(black_box(&pass)) };
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

fn least(times: &[Duration]) -> Duration {
    times.iter().copied().min().unwrap_or_default()
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = clock::now();
    work();
    clock::now() - start
}

fn gbps(bytes: usize, time: Duration) -> f64 {
    bytes as f64 / time.as_secs_f64() / 1e9
}

fn reduce(data_type: DataType, op: ReduceOp) -> Kernel {
    Kernel::reduce(data_type, op, 2).expect("only integers meet bitwise operators here")
}

/// The lines of the part `large`.
fn large_lines() -> Vec<(String, Option<Kernel>, Shape)> {
    let copy = Kernel::copy(DataType::F32);
    let mut lines = vec![("memcpy".to_owned(), None, Shape { sources: 1, targets: 1, store: Store::Cached })];
    for store in [Store::Cached, Store::Streaming] {
        for targets in [1, 2] {
            lines.push((format!("copy 1 to {targets} {store:?}"), Some(copy), Shape { sources: 1, targets, store }));
        }
        for data_type in [DataType::F32, DataType::BF16, DataType::F16, DataType::F8E4M3] {
            for targets in [1, 2] {
                let shape = Shape { sources: 2, targets, store };
                lines.push((
                    format!("{data_type} sum 2 to {targets} {store:?}"),
                    Some(reduce(data_type, ReduceOp::Sum)),
                    shape,
                ));
            }
        }
    }
    lines
}

fn large(threads: usize) {
    let lines = large_lines();
    let barrier = Barrier::new(threads);
    let per_thread: Vec<Vec<Vec<Duration>>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut buffers = Buffers::new(4, LARGE);
                    let buffers = buffers.pointers();
                    let mut times = vec![Vec::new(); lines.len()];
                    for _ in 0..LARGE_REPEATS {
                        for (times, (name, kernel, shape)) in times.iter_mut().zip(&lines) {
                            barrier.wait();
                            times.push(timed(|| match kernel {
                                Some(kernel) => run(kernel, *shape, &buffers, LARGE / element_bytes(name)),
                                // SAFETY: both buffers have as many bytes and are apart.
                                None => unsafe { std::ptr::copy_nonoverlapping(buffers[0], buffers[2], LARGE) },
                            }));
                        }
                    }
                    times
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a bench thread does not panic")).collect()
    });
    println!(
        "\nlarge, {} MiB per buffer, {threads} thread(s): µs at best, median, GB/s a thread at the median",
        LARGE >> 20
    );
    for (index, (name, _, shape)) in lines.iter().enumerate() {
        let times: Vec<Duration> = per_thread.iter().flat_map(|times| times[index].clone()).collect();
        let (least, median) = (least(&times), median(times));
        let rate = gbps(shape.bytes(LARGE), median);
        println!("{name:30} {:9.0} {:9.0} {rate:10.1}", least.as_secs_f64() * 1e6, median.as_secs_f64() * 1e6);
    }
}

/// Bytes of an element of the line with this name.
fn element_bytes(name: &str) -> usize {
    let first = name.split(' ').next().unwrap_or_default();
    DataType::from_name(first).map_or(4, |data_type| data_type.size() as usize)
}

fn cache() {
    let mut ops = ReduceOp::PLAIN.to_vec();
    ops.push(ReduceOp::PreMulSum(Scalar::Signed(2)));
    let mut buffers = Buffers::new(3, CACHED);
    let buffers = buffers.pointers();
    let shape = Shape { sources: 2, targets: 1, store: Store::Cached };
    let kernels: Vec<Vec<Option<Kernel>>> = DataType::ALL
        .iter()
        .map(|data_type| ops.iter().map(|op| Kernel::reduce(*data_type, *op, 3).ok()).collect())
        .collect();
    let mut times = vec![vec![Vec::new(); ops.len()]; DataType::ALL.len()];
    let mut memcpy = Vec::new();
    for _ in 0..REPEATS {
        memcpy.push(timed(|| {
            for _ in 0..CACHED_PASSES {
                // SAFETY: both buffers have as many bytes and are apart.
                unsafe { std::ptr::copy_nonoverlapping(black_box(buffers[0]), buffers[2], CACHED) };
            }
        }));
        for (row, data_type) in DataType::ALL.iter().enumerate() {
            for (column, kernel) in kernels[row].iter().enumerate() {
                if let Some(kernel) = kernel {
                    times[row][column].push(timed(|| {
                        for _ in 0..CACHED_PASSES {
                            run(kernel, shape, &buffers, CACHED / data_type.size() as usize);
                        }
                    }));
                }
            }
        }
    }
    println!("\ncache, {} KiB per buffer, 2 sources to 1 target: GB/s of input", CACHED >> 10);
    println!("memcpy   {:8.1} (1 source)", gbps(CACHED * CACHED_PASSES, median(memcpy)));
    print!("         ");
    ops.iter().for_each(|op| print!("{op:>8}"));
    for (row, data_type) in DataType::ALL.iter().enumerate() {
        print!("\n{data_type:9}");
        for times in &times[row] {
            if times.is_empty() {
                print!("       -");
            } else {
                print!("{:8.1}", gbps(2 * CACHED * CACHED_PASSES, median(times.clone())));
            }
        }
    }
    println!();
}

fn small() {
    let sizes = [8, 64, 256, 1024, 4096, 16384];
    let kernels = [
        ("copy 1 to 1", Kernel::copy(DataType::F32), 1, 1, 4),
        ("float sum 2 to 1", reduce(DataType::F32, ReduceOp::Sum), 2, 1, 4),
        ("float sum 2 to 2", reduce(DataType::F32, ReduceOp::Sum), 2, 2, 4),
        ("float sum 4 to 1", reduce(DataType::F32, ReduceOp::Sum), 4, 1, 4),
        ("float sum 8 to 1", reduce(DataType::F32, ReduceOp::Sum), 8, 1, 4),
        ("double max 2 to 1", reduce(DataType::F64, ReduceOp::Max), 2, 1, 8),
        ("half sum 2 to 1", reduce(DataType::F16, ReduceOp::Sum), 2, 1, 2),
        ("bfloat16 sum 2 to 1", reduce(DataType::BF16, ReduceOp::Sum), 2, 1, 2),
        ("f8e4m3 sum 2 to 1", reduce(DataType::F8E4M3, ReduceOp::Sum), 2, 1, 1),
    ];
    let mut buffers = Buffers::new(10, 16384 + 4096);
    let buffers = buffers.pointers();
    let mut times = vec![vec![Vec::new(); sizes.len()]; kernels.len()];
    for _ in 0..REPEATS {
        for ((_, kernel, sources, targets, size), times) in kernels.iter().zip(&mut times) {
            let shape = Shape { sources: *sources, targets: *targets, store: Store::Cached };
            for (bytes, times) in sizes.iter().zip(times) {
                times.push(timed(|| (0..SMALL_PASSES).for_each(|_| run(kernel, shape, &buffers, bytes / size))));
            }
        }
    }
    print!("\nsmall, ns per pass       ");
    sizes.iter().for_each(|bytes| print!("{bytes:>7} B"));
    for ((name, ..), times) in kernels.iter().zip(&times) {
        print!("\n{name:25}");
        for times in times {
            print!("{:9.1}", median(times.clone()).as_secs_f64() * 1e9 / SMALL_PASSES as f64);
        }
    }
    let made = median(
        (0..REPEATS)
            .map(|_| {
                timed(|| {
                    for _ in 0..SMALL_PASSES {
                        black_box(reduce(black_box(DataType::F32), black_box(ReduceOp::Sum)));
                    }
                })
            })
            .collect(),
    );
    println!("\nmaking a kernel          {:9.1}", made.as_secs_f64() * 1e9 / SMALL_PASSES as f64);
}

fn main() {
    let parts: Vec<String> = std::env::args().skip(1).filter(|part| !part.starts_with("--")).collect();
    let wanted = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    if wanted("small") {
        small();
    }
    if wanted("cache") {
        cache();
    }
    if wanted("large") {
        large(1);
        large(2);
    }
}
