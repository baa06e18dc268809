//! Memory that is born shared: calls in vectors of a pool have the same results as in any other, and peers work in them.

use crate::comm::{Communicator, SharedPool, SharedVec, local};
use crate::config::Config;
use crate::error::Result;
use crate::types::ReduceOp;

/// Three ranks that reach each other as processes do.
fn ranks(body: impl Fn(Communicator) -> Result<()> + Sync) {
    let config = Config::default().with_p2p_disable(true).with_socket_interfaces("lo");
    local::run_with(3, &config, &body).unwrap();
}

fn value(rank: u32, at: usize) -> u32 {
    u32::try_from(at % 65_537).unwrap() * 3 + rank * 1000 + 1
}

/// Fills, reduces, and looks; also in what was allocated after the pool was registered.
#[test]
fn calls_work_in_place_in_all_vectors_of_a_pool_whatever_their_ranks_have_allocated() {
    ranks(|comm| {
        let (me, pool) = (comm.rank(), SharedPool::new(64 << 20)?);
        comm.register(&pool)?;
        // No two ranks have their vectors at the same places.
        let _elsewhere = SharedVec::filled(0u8, 1000 * (1 + me as usize), &pool)?;
        for count in [500, 20_000, 300_001] {
            let mut sums = SharedVec::<u32>::new(&pool);
            for at in 0..count {
                sums.push(value(me, at))?;
            }
            comm.all_reduce_in_place(&mut sums, ReduceOp::Sum)?;
            assert!(
                sums.iter().enumerate().all(|(at, sum)| *sum == (0..3).map(|rank| value(rank, at)).sum::<u32>()),
                "{count}"
            );
            let mut all = SharedVec::filled(0u32, 3 * count, &pool)?;
            comm.all_gather(&sums, &mut all)?;
            assert!(all.chunks(count).all(|chunk| *chunk == sums[..]), "{count}");
            // Beside memory that is not in the pool.
            let mut loose = vec![0u32; 3 * count];
            comm.all_gather(&sums, &mut loose)?;
            assert!(loose == all[..], "{count}");
            let worked = pool.calls();
            assert!(worked > 0 || count < 20_000, "peers work in it: {count}");
            // Messages out of it: long ones are read where they lie.
            let (next, last) = ((me + 1) % comm.size(), (me + comm.size() - 1) % comm.size());
            let mut got = SharedVec::filled(0u32, 3 * count, &pool)?;
            for turn in 0..3u32 {
                all.fill(turn + 10 * me);
                comm.send_recv(&all[..], next, &mut got[..], last)?;
                assert!(got.iter().all(|word| *word == turn + 10 * last), "{count} from {last}");
            }
            let read = pool.calls() - worked;
            // Longer than a connection has room for: none can go another way.
            assert!(read <= 3 && (read == 3 || count < 300_000), "read in place: {count}, {read} times");
        }
        comm.deregister(&pool)?;
        let mut still = SharedVec::filled(me, 50_000, &pool)?;
        comm.all_reduce_in_place(&mut still, ReduceOp::Sum)?;
        assert!(still.iter().all(|sum| *sum == 3));
        Ok(())
    });
}

/// The pool outlives its communicator, and a vector its pool.
#[test]
fn vectors_outlive_pool_and_communicator() {
    ranks(|comm| {
        let pool = SharedPool::new(1 << 20)?;
        comm.register(&pool)?;
        let mut vector = SharedVec::filled(comm.rank(), 20_000, &pool)?;
        drop(pool);
        comm.all_reduce_in_place(&mut vector, ReduceOp::Sum)?;
        comm.barrier()?;
        drop(comm);
        vector.push(7)?;
        assert!(vector[..20_000].iter().all(|sum| *sum == 3) && vector[20_000] == 7);
        Ok(())
    });
}

#[test]
fn requests_and_persistent_calls_take_vectors_of_a_pool() {
    ranks(|comm| {
        let pool = SharedPool::new(4 << 20)?;
        comm.register(&pool)?;
        let vector = SharedVec::filled(1u32, 100_000, &pool)?;
        let mut call = comm.prepare(vector, |member, vector| member.all_reduce_in_place(vector, ReduceOp::Sum))?;
        call.run()?;
        call.run()?;
        assert!(call.buffers()?.iter().all(|sum| *sum == 9));
        Ok(())
    });
}

/// Regression: a receiver that came late to an offer read the pool that had the offer's number by then.
#[test]
fn a_message_that_was_offered_before_its_pool_was_exchanged_for_another_arrives() {
    ranks(|comm| {
        let (first, second) = (SharedPool::new(8 << 20)?, SharedPool::new(8 << 20)?);
        // Longer than a connection has room for: the offer stays until its receiver comes.
        let count = 1_000_000;
        let (sent, _other) = (SharedVec::filled(7u32, count, &first)?, SharedVec::filled(9u32, count, &second)?);
        comm.register(&first)?;
        let mut got = vec![0u32; count];
        // The connection is open, and what is offered next is offered at once.
        match comm.rank() {
            0 => comm.send(&sent[..], 1)?,
            1 => comm.recv(&mut got, 0)?,
            _ => (),
        }
        let sending = if comm.rank() == 0 { Some(comm.start(sent, |calls, sent| calls.send(sent, 1))?) } else { None };
        comm.deregister(&first)?;
        comm.register(&second)?;
        if comm.rank() == 1 {
            got.fill(0);
            comm.recv(&mut got, 0)?;
            assert!(got.iter().all(|word| *word == 7));
        }
        sending.map_or(Ok(()), |sending| sending.wait().map(drop))
    });
}
