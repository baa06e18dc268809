//! The progress hook: when it is called, on which thread, and what its failure ends.

use std::time::Duration;

use crate::comm::{Buffers, Call, CallCount, Communicator, local};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::sync::primitive::{Arc, AtomicBool, Ordering};
use crate::sync::{AbortFlag, Progress, Wait};
use crate::sys::host;
use crate::types::{Collective, DataType, ReduceOp};

/// A hook that hands a token on: rank 0's call waits for rank 1, whose program waits for the token that only rank 0's
/// hook gives, and only on the thread of rank 0's program: so is a library that may be called on one thread alone.
fn needs_the_hook(call: impl Fn(&Communicator) -> Result<()> + Sync) {
    for transport in ["local", "net"] {
        let config = Config::default().with_p2p_disable(transport == "net").with_shm_disable(transport == "net");
        let given = Arc::new(AtomicBool::new(false));
        local::run_with(2, &config, |comm| {
            let rank = comm.rank();
            // Connections are open before.
            call(&comm)?;
            if rank == 0 {
                let (give, program) = (Arc::clone(&given), host::thread_id());
                comm.set_progress(Some(Progress::new(move || {
                    give.fetch_or(host::thread_id() == program, Ordering::Release);
                    Ok(())
                })))?;
            } else {
                let wait = Wait::new(Duration::from_secs(30), &AbortFlag::new());
                while !given.load(Ordering::Acquire) {
                    wait.check(|| "rank 0's hook was not called".to_owned())?;
                    std::thread::yield_now();
                }
            }
            call(&comm)
        })
        .unwrap();
    }
}

#[test]
fn the_progress_hook_is_called_while_a_call_waits() {
    needs_the_hook(Communicator::barrier);
    needs_the_hook(|comm| comm.all_reduce_in_place(&mut vec![1.0f32; 300_000], ReduceOp::Sum));
    needs_the_hook(|comm| comm.split(Some(0), 0).map(drop));
    needs_the_hook(|comm| {
        let mut word = [0u8];
        if comm.rank() == 0 { comm.recv(&mut word, 1) } else { comm.send(&[7u8], 0) }
    });
    needs_the_hook(|comm| {
        let mut word = [0u8];
        comm.scope(
            |scope| {
                if comm.rank() == 0 { scope.recv(&mut word, 1)?.wait() } else { scope.send(&[7u8], 0)?.wait() }
            },
        )
    });
}

#[test]
fn the_progress_hook_is_called_while_the_program_waits_for_threads_of_ours() {
    // Nobody waits for the request but the end of the scope.
    needs_the_hook(|comm| comm.scope(|scope| scope.barrier().map(drop)));
    needs_the_hook(|comm| {
        let alone = Communicator::init_all(1, &Config::default())?.remove(0);
        let (mut mine, mut all) = ([1u32; 2], [1u32; 3]);
        crate::group(|group| {
            group.on(&alone).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
            group.on(comm).all_reduce_in_place(&mut all, ReduceOp::Sum)
        })
    });
    let begin_barrier = |comm: &Communicator| {
        let (collective, count, buffers) = (Collective::Barrier, CallCount::Each(0), Buffers::none());
        comm.begin(Call { collective, data_type: DataType::U8, op: None, root: None, count, buffers })
    };
    needs_the_hook(|comm| begin_barrier(comm)?.wait());
}

/// The hook works on the program's thread only, which waits for a thread of ours: its failure ends that thread's wait
/// too.
#[test]
fn a_hook_that_fails_while_the_program_waits_for_a_request_ends_it() {
    let texts = local::run(2, |comm| {
        comm.barrier()?;
        if comm.rank() == 0 {
            let program = host::thread_id();
            let fails = move || match host::thread_id() == program {
                true => Err(Error::invalid_usage("no more turns")),
                false => Ok(()),
            };
            comm.set_progress(Some(Progress::new(fails)))?;
            let error = comm.scope(|scope| scope.barrier()?.wait()).unwrap_err();
            assert_eq!(error.kind(), Kind::Aborted);
            return Ok(error.to_string());
        }
        let mut word = [0u8];
        Ok(comm.recv(&mut word, 0).unwrap_err().to_string())
    })
    .unwrap();
    for text in texts {
        assert!(text.contains("the progress hook failed: no more turns"), "{text}");
    }
}

#[test]
fn a_hook_that_fails_or_panics_ends_the_communicator_and_says_so() {
    for panics in [false, true] {
        let texts = local::run(2, |comm| {
            comm.barrier()?;
            if comm.rank() == 1 {
                let error = comm.barrier().unwrap_err();
                return Ok(error.to_string());
            }
            comm.set_progress(Some(Progress::new(move || {
                assert!(!panics, "on purpose");
                Err(Error::invalid_usage("no more turns"))
            })))?;
            let mut word = [0u8];
            let error = comm.recv(&mut word, 1).unwrap_err();
            assert_eq!(error.kind(), Kind::Aborted);
            assert!(comm.async_error().is_some());
            Ok(error.to_string())
        })
        .unwrap();
        for text in texts {
            let words = if panics { "the progress hook panicked" } else { "the progress hook failed: no more turns" };
            assert!(text.contains(words), "{text}");
        }
    }
}
