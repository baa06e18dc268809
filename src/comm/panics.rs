//! A panic inside of a call ends the communicator with an error on all ranks, after which it can be shrunk as after any
//! failure.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::{Error, Result};

/// Runs `body`. A panic becomes an error that says that `what` panicked.
pub(super) fn as_error<T>(what: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    // After the error, what `body` had is used only to tell the others of the failure and to leave.
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| Err(Error::of_panic(what, &*panic)))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::comm::{Communicator, local};
    use crate::config::Config;
    use crate::error::Kind;
    use crate::types::ReduceOp;

    fn patient() -> Config {
        Config::default().with_timeout(Duration::from_secs(60))
    }

    /// Rank 0 runs `call`, which panics and is caught, while the others wait in a collective; what is left of the
    /// communicator.
    fn a_panic_leaves_what_can_be_shrunk(call: impl Fn(&Communicator) + Sync, words: &str) {
        local::run_with(3, &patient(), |comm| {
            comm.barrier()?;
            let mut sum = [1u32];
            let error = if comm.rank() == 0 {
                catch_unwind(AssertUnwindSafe(|| call(&comm))).unwrap_err();
                comm.async_error().expect("the panic has ended it")
            } else {
                comm.all_reduce_in_place(&mut sum, ReduceOp::Sum).expect_err("rank 0 does not come")
            };
            assert_eq!(error.kind(), Kind::Aborted, "{error}");
            assert!(error.message().contains(words), "{error}");
            assert_eq!(comm.barrier().unwrap_err().message(), error.message());
            // As after any other failure: without a rank, or in two parts.
            let rest = match comm.rank() {
                0 => comm.shrink(&[1, 2])?,
                _ => comm.shrink(&[0])?,
            };
            rest.all_reduce_in_place(&mut sum, ReduceOp::Sum)?;
            assert_eq!(sum, [rest.size()]);
            Ok(())
        })
        .unwrap();
    }

    /// Regression: the communicator was "in use by an outer call" for ever, `async_error` knew of nothing, `shrink` was
    /// refused.
    #[test]
    fn a_panic_in_a_scope_ends_the_communicator_and_says_so() {
        let body = |comm: &Communicator| {
            let scoped = comm.scope(|_| -> Result<()> { panic!("the model has no {}", "weights") });
            drop(scoped);
        };
        a_panic_leaves_what_can_be_shrunk(body, "the body of a scope panicked: the model has no weights");
    }

    #[test]
    fn a_panic_in_a_scope_ends_the_requests_that_are_under_way() {
        let body = |comm: &Communicator| {
            let mut never = [0u32; 1000];
            let scoped = comm.scope(|scope| -> Result<()> {
                drop(scope.recv(&mut never, 2)?);
                panic!("enough")
            });
            drop(scoped);
        };
        a_panic_leaves_what_can_be_shrunk(body, "the body of a scope panicked: enough");
    }

    #[test]
    fn a_panic_inside_a_call_ends_the_communicator() {
        let call = |comm: &Communicator| {
            drop(comm.with_engine(|_| -> Result<()> { panic!("a defect") }));
        };
        a_panic_leaves_what_can_be_shrunk(call, "panicked");
    }
}
