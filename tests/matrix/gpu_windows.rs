//! Threads on two GPUs that work in each other's windows: all calls that do, with exact results, by kernels and by copy
//! engines; that they do not go through scratch; and what ranks hear that pass places which differ. Nothing is left on
//! a GPU. Processes in windows are in `tests/faults/windows.rs` and `tests/faults/gpus.rs`.

use crate::matrix::gpu::{must_pass, must_pass_with};

const MACHINE: &str = "2-nvswitch";
/// How many of the four ranks have others' buffers in their programs.
const WORKERS: [(&str, usize); 10] = [
    ("all_reduce", 4),
    ("all_gather", 4),
    ("reduce_scatter", 4),
    ("all_to_all", 4),
    ("broadcast", 4),
    ("reduce", 4),
    // Rank 1 has no block.
    ("all_gather_v", 3),
    ("reduce_scatter_v", 3),
    // The root does all.
    ("gather", 1),
    ("scatter", 1),
];

fn told(setting: (&str, &str)) -> String {
    let debug = [("NCCL_DEBUG", "INFO"), ("NCCL_DEBUG_SUBSYS", "TUNING"), setting];
    must_pass_with(MACHINE, "gpu_windows::threads::on_four_ranks", &debug)
}

#[test]
fn calls_work_in_windows_and_not_in_scratch() {
    let told = told(("NCCL_P2P_USE_CUDA_MEMCPY", "0"));
    for (name, ranks) in WORKERS {
        let line = format!(" {name}: works in the windows of 3 peers");
        let found = told.lines().filter(|told| told.ends_with(&line)).count();
        assert!(found > 0 && found.is_multiple_of(ranks), "{name}, {found}:\n{told}");
    }
}

#[test]
fn calls_that_only_move_data_are_copies() {
    let told = told(("NCCL_P2P_USE_CUDA_MEMCPY", "1"));
    for name in ["all_gather", "all_to_all", "broadcast", "all_gather_v", "gather", "scatter"] {
        assert!(told.contains(&format!(" {name}: 4 copies by copy engines")), "{name}:\n{told}");
        assert!(!told.contains(&format!(" {name}: works in the windows")), "{name}:\n{told}");
    }
    assert!(told.contains(" reduce: works in the windows of 3 peers"), "{told}");
}

#[test]
fn places_that_differ_are_told() {
    must_pass(MACHINE, "gpu_windows::threads::places_that_differ");
}

mod threads {
    use rsccl::comm::{DeviceBuffer, DeviceStream, Window};
    use rsccl::error::Kind;
    use rsccl::internals::sys::clock::now;
    use rsccl::{Communicator, ReduceOp, Result};

    use crate::TIMEOUT;
    use crate::matrix::gpu::several::{in_windows, on_gpus};
    use testing::own_memory::OwnMemory;

    /// Elements of a block: more than what goes through scratch for its shortness.
    const COUNT: usize = 640;
    const RANKS: usize = 4;
    const WHOLE: usize = COUNT * RANKS;

    /// Each rank's numbers differ at every place.
    fn value(rank: usize, place: usize) -> u32 {
        u32::try_from(rank * 1_000_003 + place * 7 + 1).expect("small")
    }

    fn sum(place: usize) -> u32 {
        (0..RANKS).map(|rank| value(rank, place)).sum()
    }

    fn of(rank: usize) -> Vec<u32> {
        (0..WHOLE).map(|place| value(rank, place)).collect()
    }

    fn must_be(stream: &DeviceStream, buffer: &DeviceBuffer<u32>, wanted: &[u32]) {
        let mut found = vec![0; wanted.len()];
        stream.download(buffer.slice(..wanted.len()), &mut found).expect("a copy");
        assert_eq!(found, wanted);
    }

    /// Threads register any memory of the library.
    #[test]
    fn on_four_ranks_calls_work() {
        on_gpus((2, 2), &in_windows(), |comm, stream| {
            let mut from = stream.alloc_shareable::<u32>(WHOLE)?;
            let mut into = stream.alloc::<u32>(WHOLE)?;
            let windows = [comm.register_window(&from)?, comm.register_window(&into)?];
            assert!(windows.iter().all(Window::is_direct));
            let me = comm.rank() as usize;
            stream.upload(&of(me), from.slice_mut(..))?;
            symmetric(&comm, &stream, (&from, &mut into))?;
            rooted(&comm, &stream, (&mut from, &mut into))?;
            vector(&comm, &stream, (&from, &mut into))?;
            windows.into_iter().try_for_each(|window| comm.deregister_window(window))?;
            comm.on(&stream).all_reduce_in_place(from.slice_mut(..), ReduceOp::Sum)?;
            must_be(&stream, &from, &(0..WHOLE).map(sum).collect::<Vec<_>>());
            comm.finalize()
        });
    }

    fn symmetric(
        comm: &Communicator,
        stream: &DeviceStream,
        (from, into): (&DeviceBuffer<u32>, &mut DeviceBuffer<u32>),
    ) -> Result<()> {
        let (me, on) = (comm.rank() as usize, comm.on(stream));
        let (rank_of, sums) = (|place: usize| place / COUNT, (0..WHOLE).map(sum).collect::<Vec<_>>());
        on.all_reduce(from.slice(..), into.slice_mut(..), ReduceOp::Sum)?;
        must_be(stream, into, &sums);
        on.all_gather(from.slice(..COUNT), into.slice_mut(..))?;
        must_be(stream, into, &(0..WHOLE).map(|place| value(rank_of(place), place % COUNT)).collect::<Vec<_>>());
        // Where a rank gets its block is its own matter: peers do not write it.
        on.reduce_scatter(from.slice(..), into.slice_mut(me..me + COUNT), ReduceOp::Sum)?;
        let mut found = vec![0; COUNT];
        stream.download(into.slice(me..me + COUNT), &mut found)?;
        assert_eq!(found, sums[me * COUNT..][..COUNT]);
        on.all_to_all(from.slice(..), into.slice_mut(..))?;
        let mine = |place: usize| value(rank_of(place), me * COUNT + place % COUNT);
        must_be(stream, into, &(0..WHOLE).map(mine).collect::<Vec<_>>());
        Ok(())
    }

    /// What the root alone has lies outside of windows, and others pass nothing in its place.
    fn rooted(
        comm: &Communicator,
        stream: &DeviceStream,
        (from, into): (&mut DeviceBuffer<u32>, &mut DeviceBuffer<u32>),
    ) -> Result<()> {
        let (me, on) = (comm.rank() as usize, comm.on(stream));
        let mut outside = stream.alloc::<u32>(WHOLE)?;
        for root in [1, 2] {
            let (number, is_root) = (u32::try_from(root).expect("small"), me == root);
            let room = if is_root { WHOLE } else { 0 };
            stream.upload(&vec![9; WHOLE], into.slice_mut(..))?;
            on.broadcast_into(from.slice(..room), into.slice_mut(..), number)?;
            must_be(stream, into, &of(root));
            stream.upload(&of(me), into.slice_mut(..))?;
            on.broadcast(into.slice_mut(..), number)?;
            must_be(stream, into, &of(root));
            stream.upload(&vec![9; WHOLE], outside.slice_mut(..))?;
            on.reduce(from.slice(..), outside.slice_mut(..room), ReduceOp::Sum, number)?;
            let sums: Vec<u32> = (0..WHOLE).map(|place| if is_root { sum(place) } else { 9 }).collect();
            must_be(stream, &outside, &sums);
            on.reduce_in_place(from.slice_mut(..), ReduceOp::Sum, number)?;
            let left = |place: usize| if is_root { sum(place) } else { value(me, place) };
            must_be(stream, from, &(0..WHOLE).map(left).collect::<Vec<_>>());
            stream.upload(&of(me), from.slice_mut(..))?;
            on.gather(from.slice(COUNT..2 * COUNT), outside.slice_mut(..room), number)?;
            let block = |place: usize| value(place / COUNT, COUNT + place % COUNT);
            must_be(stream, &outside, &(0..WHOLE).map(|at| if is_root { block(at) } else { 9 }).collect::<Vec<_>>());
            stream.upload(&of(me), outside.slice_mut(..))?;
            on.scatter(outside.slice(..room), into.slice_mut(..COUNT), number)?;
            must_be(stream, into, &of(root)[me * COUNT..][..COUNT]);
        }
        Ok(())
    }

    /// A count for each rank, of which rank 1 has none.
    fn vector(
        comm: &Communicator,
        stream: &DeviceStream,
        (from, into): (&DeviceBuffer<u32>, &mut DeviceBuffer<u32>),
    ) -> Result<()> {
        let (me, on) = (comm.rank() as usize, comm.on(stream));
        let counts = [COUNT, 0, COUNT - 3, 5];
        let (whole, before): (usize, usize) = (counts.iter().sum(), counts[..me].iter().sum());
        // Each gives from a place of its own, which lies where its block does.
        on.all_gather_v(from.slice(before..before + counts[me]), into.slice_mut(..whole), &counts)?;
        let starts = (0..RANKS).map(|rank| counts[..rank].iter().sum::<usize>());
        let blocks = starts.zip(counts).enumerate();
        let all: Vec<u32> =
            blocks.flat_map(|(rank, (start, count))| (start..start + count).map(move |at| value(rank, at))).collect();
        must_be(stream, into, &all);
        on.reduce_scatter_v(from.slice(..whole), into.slice_mut(..counts[me]), &counts, ReduceOp::Sum)?;
        must_be(stream, into, &(before..before + counts[me]).map(sum).collect::<Vec<_>>());
        Ok(())
    }

    /// The root's own block is a part of its longer buffer. The others' blocks lie at the same place.
    #[test]
    fn on_four_ranks_the_root_is_in_place() {
        on_gpus((2, 2), &in_windows(), |comm, stream| {
            let (me, root) = (comm.rank() as usize, 2);
            let memory = OwnMemory::new(me / 2, "alloc", 4 * WHOLE);
            let named = |at: usize, count: usize| {
                let address = memory.address + 4 * u64::try_from(at).expect("small");
                // SAFETY: so much lies there, and it is freed when all ranks have come to the barrier. Where two names
                // overlap, a call gets both of them in the form that it has for one buffer.
                unsafe { DeviceBuffer::<u32>::from_raw(&stream, address, count) }
            };
            let (mut whole, mut block) = (named(0, WHOLE)?, named(root * COUNT, COUNT)?);
            let window = comm.register_window(&whole)?;
            assert!(window.is_direct());
            let room = if me == root { WHOLE } else { 0 };
            stream.upload(&of(me), whole.slice_mut(..))?;
            comm.on(&stream).gather(block.slice(..), whole.slice_mut(..room), 2)?;
            let gathered = |place: usize| value(place / COUNT, root * COUNT + place % COUNT);
            let left = |place: usize| if me == root { gathered(place) } else { value(me, place) };
            must_be(&stream, &whole, &(0..WHOLE).map(left).collect::<Vec<_>>());
            stream.upload(&of(me), whole.slice_mut(..))?;
            comm.on(&stream).scatter(whole.slice(..room), block.slice_mut(..), 2)?;
            must_be(&stream, &block, &(0..COUNT).map(|place| value(root, me * COUNT + place)).collect::<Vec<_>>());
            comm.deregister_window(window)?;
            stream.synchronize()?;
            comm.barrier()?;
            comm.finalize()
        });
    }

    type Called = fn(&Communicator, &DeviceStream, [&mut DeviceBuffer<u32>; 2], usize) -> Result<()>;

    /// Calls whose buffers in which peers work begin there. The others begin at 0 on all ranks.
    const CALLS: [(&str, Called); 11] = [
        ("all_reduce", |comm, stream, [from, into], at| {
            comm.on(stream).all_reduce(from.slice(..COUNT), into.slice_mut(at..at + COUNT), ReduceOp::Sum)
        }),
        ("all_gather", |comm, stream, [from, into], at| {
            comm.on(stream).all_gather(from.slice(..COUNT), into.slice_mut(at..at + 2 * COUNT))
        }),
        ("reduce_scatter", |comm, stream, [from, into], at| {
            comm.on(stream).reduce_scatter(from.slice(at..at + 2 * COUNT), into.slice_mut(..COUNT), ReduceOp::Sum)
        }),
        ("all_to_all", |comm, stream, [from, into], at| {
            comm.on(stream).all_to_all(from.slice(at..at + 2 * COUNT), into.slice_mut(..2 * COUNT))
        }),
        ("broadcast", |comm, stream, [_, into], at| comm.on(stream).broadcast(into.slice_mut(at..at + COUNT), 1)),
        ("broadcast_into", |comm, stream, [from, into], at| {
            comm.on(stream).broadcast_into(from.slice(..COUNT), into.slice_mut(at..at + COUNT), 0)
        }),
        ("reduce", |comm, stream, [from, into], at| {
            comm.on(stream).reduce(from.slice(at..at + COUNT), into.slice_mut(..COUNT), ReduceOp::Sum, 1)
        }),
        ("gather", |comm, stream, [from, into], at| {
            comm.on(stream).gather(from.slice(at..at + COUNT), into.slice_mut(..2 * COUNT), 1)
        }),
        ("scatter", |comm, stream, [from, into], at| {
            comm.on(stream).scatter(from.slice(..2 * COUNT), into.slice_mut(at..at + COUNT), 0)
        }),
        ("all_gather_v", |comm, stream, [from, into], at| {
            let (counts, mine) = ([COUNT, 0], [COUNT, 0][comm.rank() as usize]);
            comm.on(stream).all_gather_v(from.slice(..mine), into.slice_mut(at..at + COUNT), &counts)
        }),
        ("reduce_scatter_v", |comm, stream, [from, into], at| {
            let (counts, mine) = ([0, COUNT], [0, COUNT][comm.rank() as usize]);
            comm.on(stream).reduce_scatter_v(from.slice(at..at + COUNT), into.slice_mut(..mine), &counts, ReduceOp::Sum)
        }),
    ];

    /// Rank 1 is four elements further, which ends the communicator of each call on both ranks.
    #[test]
    fn places_that_differ() {
        on_gpus((2, 1), &in_windows(), |comm, stream| {
            let me = comm.rank();
            for (name, call) in CALLS {
                let child = comm.split(Some(0), i64::from(me))?.expect("all ranks are in it");
                let (mut from, mut into) = (stream.alloc_shareable(WHOLE)?, stream.alloc_shareable(WHOLE)?);
                let _windows = [child.register_window(&from)?, child.register_window(&into)?];
                call(&child, &stream, [&mut from, &mut into], 0)?;
                stream.synchronize()?;
                call(&child, &stream, [&mut from, &mut into], if me == 1 { 4 } else { 0 })?;
                let deadline = now() + TIMEOUT;
                let error = loop {
                    if let Some(error) = child.async_error() {
                        break error;
                    }
                    assert!(now() < deadline, "{name}: rank {me} hears of it");
                    std::thread::yield_now();
                };
                let both = error.message().matches("in windows at places with check sum").count() == 2;
                assert!(error.kind() == Kind::Mismatch && both, "{name}, rank {me}: {error}");
            }
            comm.finalize()
        });
    }
}
