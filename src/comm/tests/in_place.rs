//! Memory that is registered where it lies: calls in it have the same results as in any other, and peers work in it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::comm::{Communicator, Registered, local, with_registered};
use crate::config::Config;
use crate::error::Result;
use crate::exec::Buffer;
use crate::types::ReduceOp;

/// Three ranks that reach each other as processes do.
fn ranks(body: impl Fn(Communicator) -> Result<()> + Sync) {
    let config = Config::default().with_p2p_disable(true).with_socket_interfaces("lo");
    local::run_with(3, &config, &body).unwrap();
}

/// Element `at` of what a rank begins with.
fn value(rank: u32, at: usize) -> u32 {
    u32::try_from(at % 65_537).unwrap() * 3 + rank * 1000 + 1
}

fn values(rank: u32, count: usize) -> Vec<u32> {
    (0..count).map(|at| value(rank, at)).collect()
}

fn placed(rank: u32, count: usize) -> Registered<Vec<u32>> {
    let registered = Registered::new(values(rank, count));
    assert_eq!(registered.refusal(), None);
    registered
}

/// Blocks of an allocator begin 16 bytes into a page, so that there are edges; small ones have no whole page.
const COUNTS: [usize; 5] = [500, 3000, 20_000, 100_000, 700_001];

#[test]
fn collectives_have_the_results_that_they_have_elsewhere() {
    ranks(|comm| {
        let (me, size) = (comm.rank(), comm.size() as usize);
        for count in COUNTS {
            let mut long = placed(me, count * size);
            let mut short = placed(me, count);
            comm.register(&long)?;
            comm.register(&short)?;
            let sums: Vec<u32> = (0..count).map(|at| (0..3).map(|rank| value(rank, at)).sum()).collect();
            comm.all_gather(&short, &mut long)?;
            assert_eq!(long[..], (0..3).flat_map(|rank| values(rank, count)).collect::<Vec<_>>(), "all_gather {count}");
            long.iter_mut().for_each(|word| *word += me);
            comm.reduce_scatter(&long, &mut short, ReduceOp::Sum)?;
            let scattered: Vec<u32> = (0..count).map(|at| 3 * value(me, at) + 3).collect();
            assert_eq!(short[..], scattered, "reduce_scatter {count}");
            short.copy_from_slice(&values(me, count));
            comm.all_reduce_in_place(&mut short, ReduceOp::Sum)?;
            assert_eq!(short[..], sums, "all_reduce in place {count}");
            short.copy_from_slice(&values(me, count));
            comm.broadcast(&mut short, 1)?;
            assert_eq!(short[..], values(1, count), "broadcast {count}");
            let mut swapped = placed(9, count * size);
            comm.register(&swapped)?;
            long.copy_from_slice(&values(me, count * size));
            comm.all_to_all(&long, &mut swapped)?;
            let mine = me as usize * count;
            let expected = (0..3).flat_map(|rank| values(rank, count * size)[mine..mine + count].to_vec());
            assert_eq!(swapped[..], expected.collect::<Vec<_>>(), "all_to_all {count}");
            // A part that begins and ends anywhere; what lies beside it stays.
            let part = 7..count - 9;
            short.copy_from_slice(&values(me, count));
            comm.all_reduce_in_place(&mut short[part.clone()], ReduceOp::Sum)?;
            assert_eq!(short[part.clone()], sums[part.clone()], "a part of {count}");
            assert_eq!((short[6], short[part.end]), (value(me, 6), value(me, part.end)));
            // The root alone has an output.
            short.copy_from_slice(&values(me, count));
            let mut output = placed(8, count);
            comm.register(&output)?;
            comm.reduce(&short, &mut output, ReduceOp::Sum, 2)?;
            assert_eq!(output[..], if me == 2 { sums.clone() } else { values(8, count) }, "reduce {count}");
            for used in [&short, &long] {
                assert!(used.calls() > 0 || count < 20_000, "peers work in it: {count}");
            }
            let (short, long) = (short.into_inner(), long.into_inner());
            assert_eq!((short, long), (values(me, count), values(me, count * size)));
        }
        Ok(())
    });
}

/// One rank's memory has to stay, another's is a buffer, the third's is where it was: calls work, through scratch.
#[test]
fn ranks_with_memory_of_different_kinds_meet() {
    ranks(|comm| {
        let (me, count) = (comm.rank(), 100_000);
        let sum: u32 = (0..3).map(|rank| value(rank, count - 1)).sum();
        let mut moved = placed(me, count);
        let mut stays = Registered::refused(values(me, count), "it is a test");
        let mut buffer = Buffer::<u32>::new(count)?;
        buffer.copy_from_slice(&values(me, count));
        let last = match me {
            0 => {
                comm.register(&moved)?;
                comm.all_reduce_in_place(&mut moved, ReduceOp::Sum)?;
                moved[count - 1]
            }
            1 => {
                assert_eq!(stays.refusal(), Some("it is a test"));
                comm.register(&stays)?;
                comm.all_reduce_in_place(&mut stays, ReduceOp::Sum)?;
                stays[count - 1]
            }
            _ => {
                comm.register(&buffer)?;
                comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
                buffer[count - 1]
            }
        };
        assert_eq!(last, sum);
        assert_eq!(moved.calls(), 0, "not all could be reached");
        if me == 1 { comm.deregister(&stays) } else { comm.deregister(&moved) }?;
        comm.all_reduce_in_place(&mut moved, ReduceOp::Sum)
    });
}

#[test]
fn a_borrowed_part_of_an_arena_is_registered_for_a_while() {
    ranks(|comm| {
        let (me, count) = (comm.rank(), 300_000);
        let mut arena = values(me, count);
        let part = 1001..250_003;
        with_registered(&mut arena[part.clone()], |slice| {
            comm.register(slice)?;
            comm.all_reduce_in_place(slice, ReduceOp::Max)?;
            comm.all_reduce_in_place(&mut slice[10..], ReduceOp::Max)
        })?;
        assert_eq!(arena[part.clone()], values(2, count)[part.clone()]);
        assert_eq!((arena[1000], arena[part.end]), (value(me, 1000), value(me, part.end)));
        // It is ordinary memory again, and other blocks may lie there.
        comm.all_reduce_in_place(&mut arena, ReduceOp::Min)?;
        assert_eq!(arena[0], value(0, 0));
        let unwound = catch_unwind(AssertUnwindSafe(|| with_registered(&mut arena, |_| panic!("of the body"))));
        assert!(unwound.is_err());
        assert_eq!(arena[0], value(0, 0));
        drop(arena);
        let mut next = values(me, count);
        comm.all_reduce_in_place(&mut next, ReduceOp::Max)?;
        assert_eq!(next, values(2, count));
        Ok(())
    });
}

/// Regression of a prototype: a registration by address outlived the memory, and peers worked in what was not there.
#[test]
fn a_registration_that_is_forgotten_or_dropped_leaves_the_next_block_alone() {
    ranks(|comm| {
        let (me, count) = (comm.rank(), 100_000);
        for round in 0..6 {
            let mut first = placed(me, count);
            comm.register(&first)?;
            comm.all_reduce_in_place(&mut first, ReduceOp::Max)?;
            match round % 3 {
                0 => std::mem::forget(first),
                1 => drop(first),
                _ => drop(first.into_inner()),
            }
            let mut second = values(me, count);
            comm.all_reduce_in_place(&mut second, ReduceOp::Max)?;
            assert_eq!(second, values(2, count));
        }
        Ok(())
    });
}

#[test]
fn requests_groups_and_persistent_calls_take_it() {
    ranks(|comm| {
        let (me, count) = (comm.rank(), 100_000);
        let mut first = placed(me, count);
        comm.register(&first)?;
        for _ in 0..3 {
            first.copy_from_slice(&values(me, count));
            let request = comm.start(first, |calls, first| calls.all_reduce_in_place(first, ReduceOp::Max))?;
            first = request.wait()?;
            assert_eq!(first[..], values(2, count));
        }
        let second = Registered::new(values(me, count).into_boxed_slice());
        comm.register(&second)?;
        let both = comm.start((first, second), |calls, (first, second)| {
            calls.all_reduce_in_place(second, ReduceOp::Min)?;
            calls.broadcast(first, 0)
        })?;
        let (first, mut second) = both.wait()?;
        assert_eq!((second[..] == values(0, count), first[..] == values(2, count)), (true, true));
        second.copy_from_slice(&values(me, count));
        let mut call = comm.prepare(second, |calls, second| calls.all_reduce_in_place(second, ReduceOp::Max))?;
        for _ in 0..3 {
            call.run()?;
        }
        let second = call.into_buffers()?;
        assert_eq!(second[..], values(2, count));
        assert!(first.calls() > 0 && second.calls() > 0);
        drop((first, second));
        comm.finalize()
    });
}

/// A message as each rank sends it to the next.
fn words(rank: u32, count: usize, turn: usize) -> Vec<u32> {
    (0..count).map(|at| value(rank, at + turn)).collect()
}

/// Longer ones than a connection has room for cannot go any other way, but by a copy of the kernel: so peers worked there.
#[test]
fn messages_in_registered_memory_arrive_whole_and_by_one_copy() {
    ranks(|comm| {
        let (me, size) = (comm.rank(), comm.size());
        let (next, last) = ((me + 1) % size, (me + size - 1) % size);
        for count in [10, 3000, 20_000, 300_001, 2_500_000] {
            let mut out = placed(me, count);
            let (mut into, mut loose) = (placed(9, count), vec![0u32; count]);
            let mut buffer = Buffer::<u32>::new(count)?;
            comm.register(&out)?;
            comm.register(&into)?;
            comm.register(&buffer)?;
            for turn in 0..4 {
                out.copy_from_slice(&words(me, count, turn));
                comm.send_recv(&out, next, &mut into, last)?;
                assert_eq!(into[..], words(last, count, turn), "both registered, {count}");
                comm.send_recv(&out, last, &mut loose, next)?;
                assert_eq!(loose, words(next, count, turn), "from registered memory, {count}");
                buffer.copy_from_slice(&loose);
                comm.send_recv(&buffer, next, &mut into, last)?;
                assert_eq!(into[..], words(me, count, turn), "from a buffer, {count}");
                // A part that begins and ends anywhere; what lies beside it stays.
                let part = 3..count - 5;
                into.fill(7);
                comm.send_recv(&out[part.clone()], next, &mut into[part.clone()], last)?;
                assert_eq!(into[part.clone()], words(last, count, turn)[part.clone()], "a part of {count}");
                assert_eq!((into[2], into[part.end]), (7, 7));
                comm.send_recv(&loose, next, &mut into, last)?;
                assert_eq!(into[..], words(me, count, turn), "into registered memory, {count}");
            }
            assert!(out.calls() > 0 || count < 2_500_000, "peers read there");
            comm.barrier()?;
            comm.deregister(&out)?;
            comm.send_recv(&out, next, &mut into, last)?;
            assert_eq!(into[..], words(last, count, 3), "deregistered, {count}");
        }
        Ok(())
    });
}

#[test]
fn messages_of_groups_requests_and_persistent_calls_take_registered_memory() {
    ranks(|comm| {
        let (me, size, count) = (comm.rank(), comm.size(), 700_000);
        let (next, last) = ((me + 1) % size, (me + size - 1) % size);
        let (mut out, mut into) = (placed(me, count), placed(9, count));
        comm.register(&out)?;
        comm.register(&into)?;
        crate::comm::group(|calls| {
            let mut calls = calls.on(&comm);
            calls.send(&out, next)?;
            calls.recv(&mut into, last)
        })?;
        assert_eq!(into[..], values(last, count), "a group");
        out.copy_from_slice(&words(me, count, 1));
        let request = comm.start((out, into), |calls, (out, into)| calls.send_recv(out, next, into, last))?;
        (out, into) = request.wait()?;
        assert_eq!(into[..], words(last, count, 1), "a request");
        let mut call = comm.prepare((out, into), |calls, (out, into)| calls.send_recv(out, next, into, last))?;
        for turn in 2..5 {
            call.buffers()?.0.copy_from_slice(&words(me, count, turn));
            call.run()?;
            assert_eq!(call.buffers()?.1[..], words(last, count, turn), "a persistent call");
        }
        let (out, into) = call.into_buffers()?;
        assert!(out.calls() >= 5, "peers read there");
        drop((out, into));
        comm.finalize()
    });
}
