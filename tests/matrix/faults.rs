//! Faults on purpose: every rank gets an error that names the rank and the call, and no rank hangs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::mpsc;
use std::time::Duration;

use rsccl::comm::{Buffers, Call, CallCount};
use rsccl::error::Kind;
use rsccl::internals::sys::clock;
use rsccl::types::Collective;
use rsccl::{Communicator, DataType, Error, ReduceOp, Result, local};

/// What each rank's `body` ended with.
fn ends(ranks: u32, body: impl Fn(&Communicator) -> Result<()> + Sync) -> Vec<Option<Error>> {
    let start = clock::now();
    let ends = local::run(ranks, |comm| Ok(body(&comm).err())).expect("ranks start");
    let elapsed = clock::now().duration_since(start);
    assert!(elapsed < PATIENCE, "it took {elapsed:?}");
    ends
}

/// Each rank calls what `call` says; all must get a mismatch that says all of `words`: in that call, or in the next one
/// where a root has sent its part and gone on.
fn disagree(ranks: u32, words: &[&str], call: impl Fn(&Communicator) -> Result<()> + Sync) {
    let both = |comm: &Communicator| call(comm).and_then(|()| comm.barrier());
    for (rank, end) in ends(ranks, both).into_iter().enumerate() {
        let error = end.unwrap_or_else(|| panic!("rank {rank} has not noticed"));
        assert_eq!(error.kind(), Kind::Mismatch, "rank {rank}: {error}");
        for word in words {
            assert!(error.to_string().contains(word), "rank {rank}: `{word}` is not in: {error}");
        }
        assert!(error.peer().is_some(), "rank {rank}: no peer in: {error}");
    }
}

#[test]
fn other_counts() {
    for (usual, other) in [(4, 5), (30_000, 30_001)] {
        disagree(3, &["all_reduce", &usual.to_string(), &other.to_string()], |comm| {
            let count = if comm.rank() == 1 { other } else { usual };
            comm.all_reduce(&vec![1f32; count], &mut vec![0f32; count], ReduceOp::Sum)
        });
    }
}

#[test]
fn a_small_and_a_large_call() {
    disagree(2, &["all_reduce", "4", "100000"], |comm| {
        let count = if comm.rank() == 1 { 100_000 } else { 4 };
        comm.all_reduce_in_place(&mut vec![1f32; count], ReduceOp::Sum)
    });
}

#[test]
fn other_types() {
    disagree(3, &["all_gather", "int32", "float"], |comm| match comm.rank() {
        2 => comm.all_gather(&[1f32; 7], &mut [0f32; 21]),
        _ => comm.all_gather(&[1i32; 7], &mut [0i32; 21]),
    });
}

#[test]
fn other_operators() {
    disagree(3, &["sum", "max"], |comm| {
        let op = if comm.rank() == 0 { ReduceOp::Max } else { ReduceOp::Sum };
        comm.all_reduce_in_place(&mut [1u64; 9], op)
    });
}

#[test]
fn other_roots() {
    for count in [10, 50_000] {
        disagree(3, &["broadcast", "root 0", "root 2"], |comm| {
            let root = if comm.rank() == 1 { 2 } else { 0 };
            comm.broadcast(&mut vec![1u8; count], root)
        });
    }
}

#[test]
fn other_collectives() {
    disagree(2, &["barrier", "all_reduce"], |comm| match comm.rank() {
        0 => comm.barrier(),
        _ => comm.all_reduce_in_place(&mut [0i32; 3], ReduceOp::Sum),
    });
}

#[test]
fn other_counts_in_vector_forms() {
    disagree(2, &["all_gather_v"], |comm| {
        let counts = if comm.rank() == 0 { [3, 4] } else { [3, 5] };
        let mine = vec![0u8; counts[comm.rank() as usize]];
        comm.all_gather_v(&mine, &mut vec![0; counts.iter().sum()], &counts)
    });
}

#[test]
fn a_message_of_another_length() {
    disagree(2, &["send", "40000", "39999"], |comm| match comm.rank() {
        0 => comm.send(&[1u32; 40_000], 1),
        _ => comm.recv(&mut [0u32; 39_999], 0),
    });
}

#[test]
fn a_rank_that_panics_is_named() {
    for count in [3, 200_000] {
        let ends: Mutex<Vec<Error>> = Mutex::default();
        let run = || {
            local::run(4, |comm| {
                for turn in 0.. {
                    assert!(!(turn == 5 && comm.rank() == 2), "rank 2 panics on purpose");
                    if let Err(error) = comm.all_reduce_in_place(&mut vec![1f32; count], ReduceOp::Sum) {
                        ends.lock().unwrap().push(error.duplicate());
                        return Err(error);
                    }
                }
                Ok(())
            })
        };
        assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "the panic goes on to the caller");
        let ends = ends.into_inner().unwrap();
        assert_eq!(ends.len(), 3);
        for error in ends {
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(2)), "{error}");
            assert!(error.operation().is_some_and(|operation| operation.contains("all_reduce #5")), "{error}");
        }
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    for count in [3, 200_000] {
        let run = |comm: Communicator| {
            comm.all_reduce_in_place(&mut vec![1f32; count], ReduceOp::Sum)?;
            if comm.rank() == 1 {
                return Ok(None);
            }
            Ok(comm.all_reduce_in_place(&mut vec![1f32; count], ReduceOp::Sum).err())
        };
        let ends = local::run(3, run).unwrap();
        assert!(ends[1].is_none());
        for error in [&ends[0], &ends[2]] {
            let error = error.as_ref().expect("nobody can go on without rank 1");
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)), "{error}");
        }
    }
}

#[test]
fn what_was_begun_ends_though_a_rank_leaves() {
    // The root of a broadcast may be gone before the others have read.
    for count in [3, 3_000, 200_000] {
        let run = |comm: Communicator| {
            let mut word = vec![if comm.rank() == 0 { 7u8 } else { 0 }; count];
            comm.broadcast(&mut word, 0)?;
            assert!(word.iter().all(|byte| *byte == 7));
            comm.finalize()
        };
        local::run(4, run).unwrap();
    }
}

/// Regression: a rank that was told of another rank's failure blamed a third rank, which had left, for not taking part
/// in a call that did not need it.
#[test]
fn who_is_told_that_a_rank_was_missed_says_by_whom() {
    let ends = ends(3, |comm| {
        let mut word = [0u8; 3];
        match comm.rank() {
            0 => comm.send(&word, 2),
            1 => comm.recv(&mut word, 2).and_then(|()| comm.recv(&mut word, 2)),
            _ => {
                comm.recv(&mut word, 0)?;
                comm.send(&word, 1)?;
                // Rank 0 leaves. Its last words are waited for so long that rank 1 has heard of that too.
                comm.recv(&mut word, 0)
            }
        }
    });
    assert!(ends[0].is_none());
    for (end, words) in
        ends[1..].iter().zip(["rank 2 reports in recv #1 from rank 0: rank 0 has finalized", "rank 0 has finalized"])
    {
        let error = end.as_ref().expect("nobody sends");
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(0)), "{error}");
        assert!(error.message().starts_with(words), "{error}");
    }
}

#[test]
fn abort_from_another_thread() {
    let (give, take) = mpsc::channel();
    let take = Mutex::new(take);
    let ends = ends(3, |comm| {
        match comm.rank() {
            0 => give.send(comm.abort_handle()).expect("rank 2 takes it"),
            2 => {
                let handle: rsccl::comm::AbortHandle = take.lock().unwrap().recv().expect("rank 0 gives it");
                // Rank 0 waits in the barrier now or soon, because rank 2 enters it only when it is told to.
                handle.abort("enough");
            }
            _ => {}
        }
        if comm.rank() != 2 {
            return comm.barrier();
        }
        let deadline = clock::now() + PATIENCE;
        loop {
            // Nobody else sends: only the news of the abort can end this.
            comm.recv(&mut [0u8], 0)?;
            assert!(clock::now() < deadline);
        }
    });
    for (rank, end) in ends.into_iter().enumerate() {
        let error = end.expect("nobody can go on");
        assert_eq!(error.kind(), Kind::Aborted, "rank {rank}: {error}");
        assert!(error.message().contains("enough"), "rank {rank}: {error}");
    }
}

#[test]
fn errors_of_the_caller_alone_leave_the_communicator_usable() {
    let body = |comm: Communicator| {
        let wrong: Vec<(&str, Result<()>)> = vec![
            ("root", comm.broadcast(&mut [0u8; 4], 3)),
            ("root", comm.reduce(&[0u8; 4], &mut [0u8; 4], ReduceOp::Sum, u32::MAX)),
            ("recv", comm.all_reduce(&[0u8; 4], &mut [0u8; 5], ReduceOp::Sum)),
            ("recv", comm.all_gather(&[0u8; 4], &mut [0u8; 11])),
            ("send", comm.reduce_scatter(&[0u8; 13], &mut [0u8; 4], ReduceOp::Sum)),
            ("blocks", comm.all_to_all(&[0u8; 13], &mut [0u8; 13]).map_err(reworded)),
            ("counts", comm.all_gather_v(&[0u8; 2], &mut [0u8; 4], &[2, 2])),
            ("integers", comm.all_reduce_in_place(&mut [0f32; 2], ReduceOp::BitXor)),
            ("peer", comm.send(&[0u8; 4], 7)),
        ];
        for (word, result) in wrong {
            let error = result.expect_err(word);
            assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
            assert!(error.message().contains(word), "`{word}` is not in: {error}");
        }
        assert!(comm.async_error().is_none());
        let mut sum = [comm.rank()];
        comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
        assert_eq!(sum, [3]);
        comm.finalize()
    };
    local::run(3, body).unwrap();
}

#[test]
fn null_and_overlapping_buffers() {
    let body = |comm: Communicator| {
        let mut memory = [0u32; 12];
        let start = memory.as_mut_ptr().cast::<u8>();
        let null = (std::ptr::null(), 0);
        let whole = (start.cast_const(), 32);
        let pairs = [
            ("null", (null, (start, 32))),
            ("null", (whole, (std::ptr::null_mut(), 0))),
            ("overlap", (whole, (start.wrapping_add(4), 32))),
            ("elements where", ((start.cast_const(), 28), (start, 28))),
        ];
        for (word, (input, output)) in pairs {
            // SAFETY: both lie in `memory`, which nothing else touches; that they overlap is refused before anyone
            // follows them.
            let buffers = unsafe { Buffers::from_raw(input, output) };
            let call = Call {
                collective: Collective::AllReduce,
                data_type: DataType::U32,
                op: Some(ReduceOp::Sum),
                root: None,
                count: CallCount::Each(8),
                buffers,
            };
            let error = comm.run(&call).expect_err(word);
            assert_eq!(error.kind(), Kind::InvalidArgument, "{error}");
            assert!(error.message().contains(word), "`{word}` is not in: {error}");
        }
        comm.barrier()
    };
    local::run(2, body).unwrap();
}

#[test]
fn a_failed_communicator_says_why_again() {
    for end in ends(2, |comm| {
        let first = comm.all_reduce_in_place(&mut vec![0u8; 3 + comm.rank() as usize], ReduceOp::Sum).unwrap_err();
        let second = comm.barrier().unwrap_err();
        assert_eq!((second.kind(), second.message()), (first.kind(), first.message()));
        assert_eq!(comm.async_error().map(|error| error.kind()), Some(Kind::Mismatch));
        Err(first)
    }) {
        assert!(end.is_some());
    }
}

/// The error with a word that its sentence has in another form.
fn reworded(error: Error) -> Error {
    Error::new(error.kind(), error.message().replace("block for each", "blocks"))
}

/// Far above the time that ranks take to notice, far below a hang.
const PATIENCE: Duration = Duration::from_secs(30);
