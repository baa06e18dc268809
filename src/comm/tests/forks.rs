//! What a forked child can do with the communicators and requests of its parent: nothing.

use std::time::Duration;

use crate::comm::{Buffers, Call, CallCount, Communicator, local};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::sys::{fork, thread};
use crate::types::{Collective, DataType, ReduceOp};

/// What a forked child can do with `comm`, and drop it; whether all of it was refused.
fn is_refused_in_a_child(comm: Communicator) -> bool {
    let is_forked = |error: Error| error.kind() == Kind::InvalidUsage && error.message().contains("forked");
    let (mut word, mut other) = ([1u32], [0u32]);
    comm.abort_handle().abort("by a child");
    let refused = [
        comm.all_reduce_in_place(&mut word, ReduceOp::Sum).is_err_and(is_forked),
        comm.send(&word, 1 - comm.rank()).is_err_and(is_forked),
        comm.recv(&mut other, 1 - comm.rank()).is_err_and(is_forked),
        comm.barrier().is_err_and(is_forked),
        comm.split(Some(0), 0).is_err_and(is_forked),
        comm.shrink(&[1 - comm.rank()]).is_err_and(is_forked),
        comm.placement().is_err_and(is_forked),
        comm.scope(|scope| scope.barrier()?.wait()).is_err_and(is_forked),
        crate::group(|group| group.on(&comm).barrier()).is_err_and(is_forked),
        comm.async_error().is_some_and(is_forked),
    ];
    let call = Call {
        collective: Collective::Barrier,
        data_type: DataType::U8,
        op: None,
        root: None,
        count: CallCount::Each(0),
        buffers: Buffers::none(),
    };
    let refused_too = [
        comm.run(&call).is_err_and(is_forked),
        comm.begin(call).is_err_and(is_forked),
        comm.start(word, |calls, word| calls.all_reduce_in_place(word, ReduceOp::Sum)).is_err_and(is_forked),
        comm.finalize().is_err_and(is_forked),
    ];
    refused == [true; 10] && refused_too == [true; 4]
}

/// Regression: a child's call took its parent's place, so that sums were wrong with no error, and its drop ended the
/// parent's communicator.
#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    for (no_local, no_shm) in [(false, false), (true, false), (true, true)] {
        let config = Config::default().with_p2p_disable(no_local).with_shm_disable(no_shm).with_socket_interfaces("lo");
        let config = config.with_timeout(Duration::from_secs(30));
        let id = Communicator::unique_id(&config).unwrap();
        let rank = |rank: u32| {
            let mut comm = Some(Communicator::init(&id, rank, 2, &config).unwrap());
            let beside = comm.as_ref().unwrap().by_color(0, 0).unwrap();
            for turn in 0..4u32 {
                let own = comm.as_ref().unwrap();
                // Both communicators keep a thread, which the child does not have.
                crate::group(|group| group.on(own).barrier().and_then(|()| group.on(&beside).barrier())).unwrap();
                let (mut word, mut many) = ([turn + rank], vec![turn + rank; 50_000]);
                own.all_reduce_in_place(&mut word, ReduceOp::Sum).unwrap();
                own.all_reduce_in_place(&mut many, ReduceOp::Sum).unwrap();
                assert!(many.iter().chain(&word).all(|sum| *sum == 2 * turn + 1), "{word:?}");
                if rank == 0 {
                    assert!(fork::in_child(|| comm.take().is_some_and(is_refused_in_a_child)));
                }
            }
            comm.unwrap().finalize().unwrap();
        };
        thread::side_by_side("rank", vec![0, 1], rank, || ()).unwrap();
    }
}

/// A child can begin and wait for no request.
#[test]
fn requests_are_refused_in_a_forked_child() {
    local::run(2, |comm| {
        let (mine, mut word, theirs) = ([comm.rank()], [0u32], 1 - comm.rank());
        comm.scope(|scope| {
            let received = scope.recv(&mut word, theirs)?;
            let mut parts = Some((received, scope.barrier()?));
            assert!(fork::in_child(|| {
                let is_refused = |ended: Result<()>| ended.is_err_and(|error| error.message().contains("forked"));
                let refused = parts
                    .take()
                    .is_some_and(|(received, barrier)| is_refused(received.wait()) && is_refused(barrier.wait()));
                refused && is_refused(scope.barrier().map(drop))
            }));
            scope.send(&mine, theirs)?.wait()?;
            let (received, barrier) = parts.expect("only the child has taken them");
            received.wait().and(barrier.wait())
        })?;
        assert_eq!(word, [theirs]);
        Ok(())
    })
    .unwrap();
}
