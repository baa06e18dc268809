//! What errors say, and whose type they have.

use std::time::Duration;

use crate::comm::{local, split};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::exec::NoBackground;
use crate::sys::thread;
use crate::types::ReduceOp;

/// What a program has for its own errors and rsccl's.
#[derive(Debug)]
enum Own {
    Input(u32),
    Rsccl(Error),
}

impl From<Error> for Own {
    fn from(error: Error) -> Own {
        Own::Rsccl(error)
    }
}

#[test]
fn closures_give_errors_of_the_programs_own_type() {
    let ended = local::try_run::<(), Own>(3, &Config::default().with_timeout(Duration::from_secs(20)), |comm| {
        let (peer, mut word) = ((comm.rank() + 1) % 3, [0u32]);
        let refused = crate::comm::try_group::<Own>(|group| {
            group.on(&comm).send(&[1u32], peer)?;
            Err(Own::Input(1))
        });
        assert!(matches!(refused, Err(Own::Input(1))), "nothing of a group runs where its body fails: {refused:?}");
        let scoped = comm.try_scope::<u32, Own>(|scope| {
            scope.all_reduce_in_place(&mut word, ReduceOp::Sum)?.wait()?;
            Err(Own::Input(2))
        });
        assert!(matches!(scoped, Err(Own::Input(2))), "{scoped:?}");
        // The others' error is the consequence of this one.
        if comm.rank() == 2 {
            return Err(Own::Input(3));
        }
        Ok(comm.barrier()?)
    });
    assert!(matches!(ended, Err(Own::Input(3))), "{ended:?}");
    let none = local::try_run::<(), Own>(0, &Config::default(), |_| Ok(()));
    assert!(matches!(none, Err(Own::Rsccl(error)) if error.kind() == Kind::InvalidArgument));
}

#[test]
fn a_communicator_prints_as_a_line_and_not_as_its_buffers() {
    local::run(2, |comm| {
        let expected = format!("Communicator {{ rank: {}, size: 2, state: \"ready\", .. }}", comm.rank());
        assert_eq!(format!("{comm:?}"), expected);
        comm.barrier()?;
        comm.abort_handle().abort("enough");
        let error = comm.barrier().unwrap_err().to_string();
        assert!(format!("{comm:?}").contains(&format!("state: failed: {error}")));
        Ok(())
    })
    .unwrap();
}

#[test]
fn errors_of_arguments_name_rank_operation_and_what_is_allowed() {
    local::run(2, |comm| {
        let rank = comm.rank();
        let mut one = [0u32];
        let said = |result: Result<()>| result.unwrap_err().to_string();
        assert_eq!(
            said(comm.all_reduce(&[1, 2], &mut one, ReduceOp::Sum)),
            format!("rank {rank}: all_reduce: `recv` has 1 elements where 2 are needed")
        );
        assert_eq!(
            said(comm.broadcast(&mut one, 7)),
            format!("rank {rank}: broadcast: root 7 is out of range: the world has 2 ranks")
        );
        assert_eq!(
            said(comm.send(&one, 9)),
            format!("rank {rank}: send: peer 9 is out of range: the world has 2 ranks")
        );
        let error = said(comm.scope(|scope| scope.all_gather(&[1u32], &mut one).map(drop)));
        assert_eq!(error, format!("rank {rank}: all_gather: `recv` has 1 elements where 2 are needed"));
        let error = said(comm.exchange_counts(&[1]).map(drop));
        assert_eq!(error, format!("rank {rank}: exchange_counts: 1 counts for 2 ranks: give one for each"));
        let error = said(comm.send_recv(&[1u32], rank, &mut [0u32; 2], rank));
        let words = "group of messages: this rank's send to itself has 1 uint32, and its recv from itself has 2 uint32";
        assert_eq!(error, format!("rank {rank}: {words}"));
        let error = said(comm.split(Some(0), 0)?.map_or(Ok(()), |half| half.shrink(&[5]).map(drop)));
        assert!(error.contains("excluded rank 5 is out of range: the world has 2 ranks"), "{error}");
        comm.barrier()
    })
    .unwrap();
}

/// Regression: the second half of a split, of the child's ranks alone, went on for its whole time-out.
#[test]
fn an_abort_of_the_parent_ends_the_birth_of_a_child() {
    let config = Config::default().with_init_timeout(Duration::from_secs(60));
    let late = std::sync::Barrier::new(2);
    local::run_with(2, &config, |comm| {
        if comm.rank() == 1 {
            // It comes to the child, and goes on when rank 0 has given up. The abort may be here before that.
            let mut has_come = false;
            let outcome = comm.with_engine(|engine| {
                let wait = engine.meet("split", &mut NoBackground)?;
                let mut make = |_| {
                    has_come = true;
                    late.wait();
                    Ok(())
                };
                engine.session.bootstrap.split_with(Ok((Some(0), 0)), &mut make, &wait)
            });
            assert!(outcome.is_err());
            if !has_come {
                late.wait();
            }
            return Ok(());
        }
        let handle = comm.abort_handle();
        let aborter = thread::spawn("aborter", move || handle.abort("enough of this"))?;
        let error = comm.split(Some(0), 0).expect_err("rank 1 has not come");
        late.wait();
        aborter.join().expect("it does not panic");
        assert_eq!(error.kind(), Kind::Aborted, "{error}");
        assert!(error.message().contains("enough of this"), "{error}");
        Ok(())
    })
    .unwrap();
}

/// Where a rank cannot take part in a child, no thread for one, all ranks have its error, and their communicator goes
/// on.
#[test]
fn a_rank_that_cannot_take_part_in_a_child_tells_all_and_the_parent_goes_on() {
    local::run(3, |comm| {
        let wanted = (comm.rank() == 0).then_some(0);
        let full = || {
            let full = std::io::Error::from_raw_os_error(11);
            Error::system("starting the thread rsccl child", full).advising("raise the limit (ulimit -u)")
        };
        let outcome = match comm.rank() {
            1 => comm.with_engine(|engine| split::split_off(engine, Err(full()), &mut NoBackground))?.map(drop),
            _ => comm.split(wanted, 0).map(drop),
        };
        let error = outcome.expect_err("rank 1 cannot take part");
        assert_eq!(error.kind(), Kind::System, "{error}");
        let text = error.to_string();
        assert!(
            text.contains("rank 1") && text.contains("starting the thread") && text.contains("ulimit -u"),
            "{text}"
        );
        assert!(comm.async_error().is_none());
        let child = comm.split(Some(0), 0)?.expect("a color was passed");
        child.barrier()?;
        comm.barrier()
    })
    .unwrap();
}
