//! When registrations end: what all ranks have let go of is no longer mapped.

use crate::comm::{Communicator, local};
use crate::config::Config;
use crate::error::Result;
use crate::exec::Buffer;
use crate::types::ReduceOp;

const LENGTH: usize = 100_000;

/// Three ranks that reach each other as processes do, and as threads.
fn ranks(body: impl Fn(Communicator) -> Result<()> + Sync) {
    for no_local in [true, false] {
        let config = Config::default().with_p2p_disable(no_local).with_socket_interfaces("lo");
        local::run_with(3, &config, &body).unwrap();
    }
}

/// Which registrations this rank knows, by number.
fn known(comm: &Communicator) -> Vec<bool> {
    comm.with_engine(|engine| Ok(engine.known_registrations())).unwrap()
}

fn registered(comm: &Communicator) -> Result<Buffer<u32>> {
    let buffer = Buffer::new(LENGTH)?;
    comm.register(&buffer).map(|()| buffer)
}

fn sum_in(comm: &Communicator, buffer: &mut Buffer<u32>) -> Result<()> {
    buffer.fill(comm.rank() + 1);
    comm.all_reduce_in_place(buffer, ReduceOp::Sum)?;
    assert!(buffer.iter().all(|sum| *sum == 6));
    Ok(())
}

#[test]
fn what_all_have_dropped_is_forgotten_and_its_number_is_taken_again() {
    ranks(|comm| {
        let (first, mut second) = (registered(&comm)?, registered(&comm)?);
        drop(first);
        assert_eq!(known(&comm), [true, true], "nobody has met since");
        let mut third = registered(&comm)?;
        assert_eq!(known(&comm), [true, true], "the third has the number of the first");
        sum_in(&comm, &mut second)?;
        sum_in(&comm, &mut third)?;
        drop((second, third));
        let mut last = registered(&comm)?;
        assert_eq!(known(&comm), [true, false]);
        sum_in(&comm, &mut last)
    });
}

#[test]
fn what_one_rank_keeps_stays_until_it_drops_it_too() {
    ranks(|comm| {
        let mut kept = Some(registered(&comm)?);
        if comm.rank() != 1 {
            kept = None;
        }
        let mut other = registered(&comm)?;
        assert_eq!(known(&comm), [true, true]);
        sum_in(&comm, &mut other)?;
        drop(kept);
        comm.deregister(&other)?;
        assert_eq!(known(&comm), [false, false]);
        sum_in(&comm, &mut other)
    });
}

/// A buffer of one communicator is another one's business, and of two registrations of it both end.
#[test]
fn a_buffer_is_taken_back_by_one_communicator_and_all_its_registrations_end() {
    ranks(|comm| {
        let child = comm.by_color(0, 0)?;
        let mut buffer = registered(&comm)?;
        comm.register(&buffer)?;
        child.register(&buffer)?;
        comm.deregister(&buffer)?;
        assert_eq!((known(&comm), known(&child)), (vec![false, false], vec![true]));
        sum_in(&child, &mut buffer)?;
        sum_in(&comm, &mut buffer)?;
        comm.deregister(&buffer)?;
        drop(buffer);
        // More registrations than there are numbers.
        for _ in 0..1100 {
            comm.register(&Buffer::<u8>::new(1)?)?;
        }
        assert_eq!(known(&comm), [true, false]);
        registered(&child).map(drop)?;
        assert_eq!(known(&child), [true]);
        Ok(())
    });
}
