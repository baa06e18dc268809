//! Memory that is registered where it lies, beside a `Buffer` and ordinary memory, and what it takes to register it: two
//! ranks, threads that reach each other as processes do.
//!
//! A cell is a size. Blocks of calls of the three kinds alternate; the least block counts. Registering, the first touches
//! of rank 0 and giving back are of one vector a rank, in which each page was written before; the least of some rounds
//! counts. Beside them is a copy to memory that was touched before. The last column says after how many calls both moves
//! have paid. Beside the `Buffer` is one of which ranks take elements that begin 16 and 32 bytes behind a cache line's
//! begin, as an allocator's do.
//! `cargo bench --features internals --bench in_place`; with `-- 1048576` that size alone. It needs two processors.
//!
//! `-- moves` moves 1 GiB and nothing else, in turns with the same by the system's calls alone: written to a memory file and
//! mapped from there in pieces of 8 MiB, and back. Its last lines are the ratio of the sums, and how much more memory than
//! the vector a registration has at its peak (`VmHWM`, of processes of their own).

#![expect(clippy::print_stdout, reason = "a program that prints a table")]

use rsccl::comm::Registered;
use rsccl::internals::sys::clock;
use rsccl::{Buffer, Communicator, Config, ReduceOp, Result};

/// Bytes: 64 KiB to 64 MiB.
const SIZES: [usize; 6] = [64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20];
const ROUNDS: usize = 9;
/// A block of calls takes about as long as this many bytes take to move.
const BLOCK_BYTES: usize = 64 << 20;

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    match std::env::args().nth(1).as_deref() {
        Some("moves") => return Ok(large::compare()?),
        Some("peak") => return Ok(large::print_peak()?),
        _ => {}
    }
    let asked: Vec<usize> = std::env::args().filter_map(|argument| argument.parse().ok()).collect();
    let config = Config::default().with_p2p_disable(true).with_socket_interfaces("lo");
    println!("all_reduce in place of f32, sum, us a call; moves in ms per GiB, least of {ROUNDS}");
    println!(
        "| bytes | ordinary | Buffer | Buffer off a line | where it lies | over Buffer | register | first touches | give back | copy | pays after calls |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for bytes in SIZES.into_iter().filter(|bytes| asked.is_empty() || asked.contains(bytes)) {
        let rows = rsccl::local::run_with(2, &config, |comm| row(&comm, bytes))?;
        println!("{}", rows[0]);
    }
    Ok(())
}

/// The row of one size.
fn row(comm: &Communicator, bytes: usize) -> Result<String> {
    let count = bytes / size_of::<f32>();
    let moves = moves(comm, count)?;
    let (mut ordinary, mut buffer) = (vec![0f32; count], Buffer::<f32>::new(count)?);
    let mut placed = Registered::new(vec![0f32; count]);
    if let Some(why) = placed.refusal() {
        println!("not registered: {why}");
    }
    let (mut off, begin) = (Buffer::<f32>::new(count + 16)?, 4 * (1 + comm.rank() as usize));
    comm.register(&buffer)?;
    comm.register(&off)?;
    comm.register(&placed)?;
    let mut least = [f64::INFINITY; 4];
    for _ in 0..ROUNDS {
        let blocks = [
            block(comm, &mut ordinary)?,
            block(comm, &mut buffer)?,
            block(comm, &mut placed)?,
            block(comm, &mut off[begin..begin + count])?,
        ];
        least.iter_mut().zip(blocks).for_each(|(least, time)| *least = least.min(time));
    }
    comm.deregister(&placed)?;
    drop(placed.into_inner());
    let [ordinary, buffer, placed, off] = least.map(|seconds| seconds * 1e6);
    let per_gib = moves.map(|seconds| seconds * 1e3 * f64::from(1 << 30) / bytes as f64);
    let [register, touches, back, copy] = per_gib;
    let pays = 1e6 * moves[..3].iter().sum::<f64>() / (ordinary - placed);
    let pays = if pays > 0.0 { format!("{pays:.0}") } else { "never".to_owned() };
    Ok(format!(
        "| {bytes} | {ordinary:.1} | {buffer:.1} | {off:.1} | {placed:.1} | {:.2} | {register:.0} | {touches:.0} | {back:.0} | {copy:.0} | {pays} |",
        placed / buffer
    ))
}

/// Seconds of a call, of a block of them.
fn block(comm: &Communicator, memory: &mut [f32]) -> Result<f64> {
    let calls = (BLOCK_BYTES / size_of_val(memory)).clamp(4, 200);
    comm.all_reduce_in_place(memory, ReduceOp::Sum)?;
    comm.barrier()?;
    let begun = clock::now();
    for _ in 0..calls {
        comm.all_reduce_in_place(memory, ReduceOp::Sum)?;
    }
    Ok(clock::now().duration_since(begun).as_secs_f64() / calls as f64)
}

/// Seconds to register, for the first touches, to give back, and to copy; by rank 0 while the other waits.
fn moves(comm: &Communicator, count: usize) -> Result<[f64; 4]> {
    let mut least = [f64::INFINITY; 4];
    if comm.rank() == 0 {
        let mut target = vec![1f32; count];
        for _ in 0..ROUNDS.min(5) {
            let source = vec![1f32; count];
            let (mut times, begun) = ([0.0; 4], clock::now());
            let mut placed = Registered::new(source);
            times[0] = clock::now().duration_since(begun).as_secs_f64();
            let begun = clock::now();
            placed.iter_mut().step_by(1024).for_each(|word| *word += 1.0);
            times[1] = clock::now().duration_since(begun).as_secs_f64();
            let begun = clock::now();
            let source = placed.into_inner();
            times[2] = clock::now().duration_since(begun).as_secs_f64();
            let begun = clock::now();
            target.copy_from_slice(&source);
            times[3] = clock::now().duration_since(begun).as_secs_f64();
            std::hint::black_box(&mut target);
            least.iter_mut().zip(times).for_each(|(least, time)| *least = least.min(time));
        }
    }
    comm.barrier()?;
    Ok(least)
}

mod large {
    //! 1 GiB, beside the bare calls of the system.

    use std::fs::File;
    use std::io;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;
    use std::process::Command;

    use rsccl::comm::Registered;
    use rsccl::internals::sys::clock;

    const BYTES: usize = 1 << 30;
    const PIECE: usize = 8 << 20;
    const PAGE: usize = 4096;
    const TURNS: usize = 5;

    /// Milliseconds to move in, for first touches, to move back.
    type Moves = [f64; 3];

    pub(super) fn compare() -> io::Result<()> {
        println!("1 GiB, ms, least of {TURNS} in turns");
        println!("| | register | first touches | give back | sum |");
        println!("|---|---|---|---|---|");
        let mut least = [[f64::INFINITY; 3]; 2];
        for _ in 0..TURNS {
            for (least, moves) in least.iter_mut().zip([registered()?, bare()?]) {
                least.iter_mut().zip(moves).for_each(|(least, time)| *least = least.min(time));
            }
        }
        let sums = least.map(|moves| moves.iter().sum::<f64>());
        for ((name, [to, touches, back]), sum) in ["rsccl", "the system's calls"].iter().zip(least).zip(sums) {
            println!("| {name} | {to:.0} | {touches:.0} | {back:.0} | {sum:.0} |");
        }
        println!("ratio {:.3}", sums[0] / sums[1]);
        let peak = |what: &str| -> io::Result<i64> {
            let told = Command::new(std::env::current_exe()?).args(["peak", what]).output()?;
            String::from_utf8_lossy(&told.stdout).trim().parse().map_err(io::Error::other)
        };
        println!("peak beyond the vector: {} KiB (a piece has {})", peak("registered")? - peak("alone")?, PIECE >> 10);
        Ok(())
    }

    /// The most memory that this process has had, in KiB, after it has moved as asked.
    pub(super) fn print_peak() -> io::Result<()> {
        if std::env::args().nth(2).as_deref() == Some("registered") {
            registered()?;
        } else {
            std::hint::black_box(vec![1f32; BYTES / size_of::<f32>()]);
        }
        let status = std::fs::read_to_string("/proc/self/status")?;
        let most = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
        println!("{}", most.unwrap_or("0").trim());
        Ok(())
    }

    fn registered() -> io::Result<Moves> {
        let memory = vec![1f32; BYTES / size_of::<f32>()];
        let mut placed = None;
        let to = milliseconds(|| placed = Some(Registered::new(memory)));
        let Some(mut placed) = placed else { return Ok([f64::NAN; 3]) };
        // Its figures would be those of an ordinary vector.
        if let Some(why) = placed.refusal() {
            return Err(io::Error::other(format!("not registered: {why}")));
        }
        let touches = milliseconds(|| placed.iter_mut().step_by(PAGE / size_of::<f32>()).for_each(|word| *word += 1.0));
        let mut memory = Vec::new();
        let back = milliseconds(|| memory = placed.into_inner());
        std::hint::black_box(memory);
        Ok([to, touches, back])
    }

    fn bare() -> io::Result<Moves> {
        let base = map(std::ptr::null_mut(), BYTES, (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1), 0)?;
        // SAFETY: mapped above, and nobody else has it until it is unmapped.
        let memory = unsafe { std::slice::from_raw_parts_mut(base, BYTES) };
        memory.fill(1);
        let (mut to, mut back) = (Ok(()), Ok(()));
        // SAFETY: the name is a C string.
        let number = unsafe { libc::memfd_create(c"bench".as_ptr(), libc::MFD_CLOEXEC) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just opened, and nobody else has it.
        let file = unsafe { File::from_raw_fd(number) };
        let in_ms = milliseconds(|| {
            to = file.set_len(BYTES as u64).and_then(|()| {
                memory.chunks(PIECE).enumerate().try_for_each(|(piece, bytes)| {
                    file.write_all_at(bytes, (piece * PIECE) as u64)?;
                    let place = base.wrapping_add(piece * PIECE);
                    map(place, PIECE, (libc::MAP_SHARED | libc::MAP_FIXED, number), piece * PIECE).map(drop)
                })
            });
        });
        to?;
        // Read first, as a float is: a page that is read brings those beside it.
        let touch = |byte: &mut u8| *byte = std::hint::black_box(*byte) + 1;
        let touches = milliseconds(|| memory.iter_mut().step_by(PAGE).for_each(touch));
        let back_ms = milliseconds(|| {
            back = memory.chunks_mut(PIECE).enumerate().try_for_each(|(piece, bytes)| {
                let (offset, anonymous) = (piece * PIECE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
                map(base.wrapping_add(offset), PIECE, (anonymous, -1), 0)?;
                file.read_exact_at(bytes, offset as u64)?;
                let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                // SAFETY: of an open file.
                let punched = unsafe { libc::fallocate(number, mode, offset as libc::off_t, PIECE as libc::off_t) };
                if punched == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
            });
        });
        back?;
        assert!(memory.iter().step_by(PAGE).all(|byte| *byte == 2), "nothing is lost");
        // SAFETY: mapped above; `memory` is not used any more.
        unsafe { libc::munmap(base.cast(), BYTES) };
        Ok([in_ms, touches, back_ms])
    }

    fn map(at: *mut u8, bytes: usize, (flags, file): (i32, i32), offset: usize) -> io::Result<*mut u8> {
        // SAFETY: a mapping of its own, or, with MAP_FIXED, over one of this module.
        let mapped = unsafe {
            libc::mmap(at.cast(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, file, offset as libc::off_t)
        };
        if mapped == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(mapped.cast()) }
    }

    fn milliseconds(act: impl FnOnce()) -> f64 {
        let begun = clock::now();
        act();
        clock::now().duration_since(begun).as_secs_f64() * 1e3
    }
}
