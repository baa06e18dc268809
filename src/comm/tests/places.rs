//! Where the ranks are: what each knows without asking the others.

use std::time::Duration;

use crate::comm::Communicator;
use crate::comm::tests::layouts::each;
use crate::config::Config;
use crate::error::Result;

/// Five ranks on three hosts: 0, 2 and 4; 1; 3.
fn three_hosts() -> Vec<Config> {
    let base = Config::default().with_socket_interfaces("lo").with_timeout(Duration::from_secs(20));
    [0, 1, 0, 2, 0].iter().map(|host| base.clone().with_host_id(format!("host {host}"))).collect()
}

/// Host, hosts, local rank, local size, and whether it is a leader, of a rank that asks while the others make no call.
fn alone(comm: &Communicator) -> Result<(u32, u32, u32, u32, bool)> {
    let place = comm.placement()?;
    assert_eq!(place.leader_rank.is_some_and(|leader| leader == place.host), place.leader_rank.is_some());
    Ok((place.host, place.hosts, place.local_rank, place.local_size, place.leader_rank.is_some()))
}

/// Regression: the first `placement` was collective. A rank that asked alone was at odds with the others' next call.
#[test]
fn a_rank_that_alone_asks_for_its_placement_gets_it() {
    each(&three_hosts(), |comm| {
        let rank = comm.rank();
        if rank == 2 {
            assert_eq!(alone(comm)?, (0, 3, 1, 3, false));
        }
        comm.barrier()?;
        // Ranks 4, 2 and 0, in that order, and ranks 3 and 1.
        let child = comm.by_color(rank % 2, -i64::from(rank))?;
        match rank {
            4 => assert_eq!(alone(&child)?, (0, 1, 0, 3, true)),
            1 => assert_eq!(alone(&child)?, (1, 2, 0, 1, true)),
            _ => (),
        }
        child.barrier()?;
        if rank == 0 {
            return Ok(());
        }
        let left = comm.shrink(&[0])?;
        if rank == 4 {
            assert_eq!(alone(&left)?, (1, 3, 1, 2, false), "hosts count from rank 1's");
        }
        let again = left.by_color(0, 0)?;
        if rank == 3 {
            assert_eq!(alone(&again)?, (2, 3, 0, 1, true), "of a child's child");
        }
        again.barrier()
    })
    .unwrap();
}

/// Regression: as above, beside requests that are under way.
#[test]
fn a_placement_beside_a_request_asks_nobody() {
    each(&three_hosts(), |comm| {
        let child = comm.by_color(0, 0)?;
        if comm.rank() == 3 {
            let request = child.start(vec![0u8; 4], |calls, got| calls.recv(got, 0))?;
            assert_eq!(child.placement()?.host, 2);
            comm.barrier()?;
            assert_eq!(request.wait()?, [1; 4]);
        } else {
            comm.barrier()?;
            if comm.rank() == 0 {
                child.start(vec![1u8; 4], |calls, sent| calls.send(sent, 3))?.wait()?;
            }
        }
        child.finalize()
    })
    .unwrap();
}

/// Regression: without shared memory each rank took itself for alone on its host.
#[test]
fn a_placement_does_not_depend_on_the_transport() {
    crate::local::run_with(3, &Config::default().with_p2p_disable(true).with_shm_disable(true), |comm| {
        assert_eq!(alone(&comm)?, (0, 1, comm.rank(), 3, comm.rank() == 0));
        Ok(())
    })
    .unwrap();
}
