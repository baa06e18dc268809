//! Ranks that call something else: a mismatch that names both calls.

use std::time::Duration;

use crate::comm::{Communicator, local};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::types::ReduceOp;

/// What collectives that are made of messages say where ranks disagree.
#[test]
fn vector_forms_and_scans_at_odds_are_mismatches() {
    let soon = Duration::from_secs(20);
    let config = Config::default().with_timeout(soon);
    type Call = fn(&Communicator) -> Result<()>;
    let calls: [(Call, &str); 3] = [
        // Rank 2 passes other lengths than the root says.
        (|comm| comm.gather_v(&[1u32; 2][comm.rank() as usize / 2..], &mut [0; 6], &[2, 2, 2], 0), "gather_v"),
        (|comm| comm.scatter_v(&[1u32; 6], &mut [0; 2][comm.rank() as usize / 2..], &[2, 2, 2], 0), "scatter_v"),
        (
            |comm| {
                comm.scan(
                    &vec![1u32; 1 + comm.rank() as usize / 2],
                    &mut vec![0; 1 + comm.rank() as usize / 2],
                    ReduceOp::Sum,
                )
            },
            "scan",
        ),
    ];
    for (call, name) in calls {
        let ends =
            local::run_with(3, &config, |comm| Ok(call(&comm).and_then(|()| comm.barrier()).expect_err("at odds")))
                .unwrap();
        assert!(
            ends.iter().any(|end| end.kind() == Kind::Mismatch && end.message().contains(name)),
            "{name}: {ends:?}"
        );
    }
    local::run_with(3, &config, |comm| {
        let (mine, mut all) = ([1u32; 2], [0u32; 6]);
        let refused = [
            comm.exscan(&mine, &mut all[..2], ReduceOp::Avg),
            comm.scan(&mine, &mut all[..2], ReduceOp::premul_sum(2)),
            comm.scan(&mine, &mut all, ReduceOp::Sum),
            if comm.rank() == 1 {
                comm.gather_v(&mine, &mut all, &[2, 2], 1)
            } else {
                comm.scan(&mine, &mut [], ReduceOp::Sum)
            },
            comm.gather_v(&mine, &mut all, &[2, 2, 2], 3),
        ];
        assert!(
            refused.iter().all(|end| end.as_ref().is_err_and(|error| error.kind() == Kind::InvalidArgument)),
            "{refused:?}"
        );
        comm.barrier()
    })
    .unwrap();
}

type Attempt = fn(&Communicator) -> Result<()>;

/// What each of three ranks gets where rank 0 makes one call and the others another.
fn at_odds(one: Attempt, others: Attempt) -> Vec<Error> {
    let config = Config::default().with_timeout(Duration::from_secs(20)).with_init_timeout(Duration::from_secs(20));
    let call = |comm: Communicator| {
        let call = if comm.rank() == 0 { one } else { others };
        Ok(call(&comm).expect_err("the ranks make different calls"))
    };
    local::run_with(3, &config, call).unwrap()
}

/// Regression: a rank in a split and ranks in a collective waited for each other until the deadline.
#[test]
fn a_split_beside_a_collective_is_a_mismatch_that_names_both() {
    let split: Attempt = |comm| comm.split(Some(0), 0).map(drop);
    for errors in [at_odds(split, Communicator::barrier), at_odds(Communicator::barrier, split)] {
        for error in errors {
            assert_eq!(error.kind(), Kind::Mismatch, "{error}");
            let text = error.to_string();
            assert!(text.contains("called split") && text.contains("called barrier"), "{text}");
        }
    }
}

/// Regression: crossed calls of register ended at the deadline, with the number of an internal message.
#[test]
fn a_register_beside_another_call_is_a_mismatch_that_names_both() {
    let register: Attempt = |comm| comm.register(&crate::comm::Buffer::<u32>::new(100)?);
    let others: [(Attempt, &str); 2] =
        [(Communicator::barrier, "barrier"), (|comm| comm.split(Some(0), 0).map(drop), "split")];
    for (other, name) in others {
        for errors in [at_odds(register, other), at_odds(other, register)] {
            for error in errors {
                assert_eq!(error.kind(), Kind::Mismatch, "{error}");
                let text = error.to_string();
                assert!(text.contains("called register") && text.contains(&format!("called {name}")), "{text}");
            }
        }
    }
}

/// Regression: the error of ranks that shrink with different lists was about whom they waited for.
#[test]
fn differing_lists_of_a_shrink_are_a_mismatch_that_names_both() {
    let config = Config::default().with_timeout(Duration::from_millis(500));
    let errors = local::run_with(4, &config, |comm| match comm.rank() {
        3 => Ok(None),
        0 => Ok(comm.shrink(&[3, 2]).err()),
        _ => Ok(comm.shrink(&[3]).err()),
    });
    let errors: Vec<Error> = errors.unwrap().into_iter().flatten().collect();
    assert_eq!(errors.len(), 3);
    let (first, second) = (&errors[0], &errors[1]);
    assert_eq!((first.kind(), second.kind()), (Kind::Mismatch, Kind::Mismatch), "{first}; {second}");
    let lists = " excludes 3, this rank excludes 2-3";
    assert!(matches!(first.peer(), Some(1 | 2)) && first.message().contains(lists), "{first}");
    assert_eq!(second.peer(), Some(0), "{second}");
    assert!(second.message().contains("rank 0 excludes 2-3, this rank excludes 3"), "{second}");
}

#[test]
fn exchanges_between_collectives_are_no_mismatch() {
    local::run(3, |comm| {
        for round in 0..20u32 {
            comm.barrier()?;
            let child = comm.split(Some(comm.rank() % 2), 0)?.expect("a color was passed");
            let mut sum = [round];
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            child.on_my_host()?.barrier()?;
        }
        Ok(())
    })
    .unwrap();
}

/// Both ends of a message have the label of a send; the receiver said of itself that it had called one.
#[test]
fn a_receiver_says_that_it_called_recv() {
    let result = local::run(2, |comm| match comm.rank() {
        0 => comm.send(&[1f32; 3], 1),
        _ => comm.recv(&mut [0f32; 4], 0),
    });
    let error = result.unwrap_err().to_string();
    let mine = "this rank called recv #0 (count 4, float), rank 0 called send #0 (count 3, float)";
    assert!(error.contains(mine), "{error}");
}
