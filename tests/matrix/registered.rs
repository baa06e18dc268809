//! The matrix in registered memory of each origin, and where each rank has memory of another, between ranks that reach
//! each other as processes do: peers work in it where it lies.

use std::process::Command;

use rsccl::comm::SharedPool;
use rsccl::{Communicator, Config, DataType, local};

use crate::{TIMEOUT, every_program, judge, run_rank, seed, tried};
use testing::case::{Origin, Placed};
use testing::verify::Op;

/// Memory as each rank has it, by its name.
type Kind = fn(u32, &SharedPool) -> Origin;

const KINDS: &[(&str, Kind)] = &[
    ("buffers", |_, _| Origin::Buffer),
    ("vectors of a pool", |_, pool| Origin::Pool(pool.clone())),
    ("vectors where they lie", |_, _| Origin::Vector),
    ("boxed slices where they lie", |_, _| Origin::Boxed),
    ("different memory on each rank", |rank, _| {
        [Origin::Vector, Origin::Buffer, Origin::Boxed][rank as usize % 3].clone()
    }),
];

/// Of each width one, and one with a scalar of each rank's own.
const TYPES: &[(DataType, Op)] = &[(DataType::F32, Op::Sum), (DataType::U8, Op::BitXor), (DataType::I64, Op::MulSum)];
/// Beside what has no whole page: a few pages, and the pieces of a large one.
const SIZES: &[usize] = &[5, 20_011, 100_003];

fn run_in(kinds: &[(&str, Kind)], ranks: u32) {
    let config = Config::default().with_p2p_disable(true).with_socket_interfaces("lo").with_timeout(TIMEOUT);
    for (name, kind) in kinds {
        let (seed, name) = (seed(), format!("{ranks} ranks, {name}"));
        let all = every_program(ranks, SIZES, TYPES);
        let cases = &*tried(&all, &name);
        let body = |comm: Communicator| {
            let pool = SharedPool::new(64 << 20)?;
            comm.register(&pool)?;
            let kind = Placed::Registered(kind(comm.rank(), &pool));
            run_rank(comm, &kind, cases, seed)
        };
        judge(&name, local::run_with(ranks, &config, body).expect("ranks start and end").concat());
    }
}

#[test]
fn two_ranks_in_registered_memory() {
    run_in(KINDS, 2);
}

#[test]
fn three_ranks_in_registered_memory() {
    run_in(KINDS, 3);
}

#[test]
#[ignore = "a part of `memory_of_other_allocators_is_registered_where_it_lies`, which starts it"]
fn with_another_allocator() {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a process sees its mappings");
    assert!(ALLOCATORS.iter().any(|library| maps.contains(library)), "it is the program's allocator");
    run_in(&KINDS[2..4], 3);
}

/// Vectors whose blocks an allocator has made that programs put in the place of the C library's.
#[test]
fn memory_of_other_allocators_is_registered_where_it_lies() {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib"];
    for library in ALLOCATORS {
        let mut places = folders.iter().map(|folder| std::path::Path::new(folder).join(library));
        let Some(place) = places.find(|place| place.exists()) else {
            // Past the capture of tests, so that it is seen.
            drop(std::io::Write::write_all(&mut std::io::stderr(), format!("skipped: no {library} here\n").as_bytes()));
            continue;
        };
        let mut fresh = Command::new(std::env::current_exe().expect("a program knows its path"));
        fresh.args(["--exact", "matrix::registered::with_another_allocator", "--ignored", "--nocapture"]);
        let output = fresh.env("LD_PRELOAD", place).output().expect("a program can be started");
        let told = String::from_utf8_lossy(&output.stdout);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && told.contains("1 passed"), "{library}: {told}{error}");
    }
}

const ALLOCATORS: [&str; 2] = ["libjemalloc.so.2", "libmimalloc.so.2"];
