//! Communicators between hosts over a request-based NIC: the one of tests, which delivers late, in any order, and often
//! says "later". In the two ways of long messages: by chunks, and straight from memory to memory.

use std::time::Duration;

use crate::comm::{Communicator, Home, Message, local};
use crate::config::Config;
use crate::error::{Kind, Result};
use crate::types::{Rank, ReduceOp};

/// Ranks that share no memory, over a NIC of each way.
fn configs() -> [Config; 2] {
    let apart = Config::default().with_p2p_disable(true).with_shm_disable(true);
    ["test-nic", "test-nic-straight"].map(|net| apart.clone().with_net(net).with_timeout(Duration::from_secs(60)))
}

/// The second way.
fn straight() -> Config {
    let [_, straight] = configs();
    straight
}

fn given(rank: u32, i: usize) -> u32 {
    u32::try_from(i).expect("few") * 7 + rank
}

fn check(what: &str, found: &[u32], wanted: impl Fn(usize) -> u32) {
    let wrong = (0..found.len()).find(|i| found[*i] != wanted(*i));
    assert_eq!(wrong, None, "{what} of {}", found.len());
}

/// All collectives, and messages around the ring of ranks.
fn calls(comm: &Communicator, count: usize) -> Result<()> {
    let (ranks, me) = (comm.size(), comm.rank());
    let n = ranks as usize;
    let total = |i: usize| (0..ranks).map(|rank| given(rank, i)).sum::<u32>();
    let mine: Vec<u32> = (0..count).map(|i| given(me, i)).collect();
    let wide: Vec<u32> = (0..count * n).map(|i| given(me, i)).collect();
    let (mut block, mut blocks) = (vec![0; count], vec![0; count * n]);
    comm.all_reduce(&mine, &mut block, ReduceOp::Sum)?;
    check("all_reduce", &block, total);
    comm.reduce(&mine, &mut block, ReduceOp::Sum, 0)?;
    if me == 0 {
        check("reduce", &block, total);
    }
    block.copy_from_slice(&mine);
    comm.broadcast(&mut block, ranks - 1)?;
    check("broadcast", &block, |i| given(ranks - 1, i));
    comm.all_gather(&mine, &mut blocks)?;
    check("all_gather", &blocks, |i| given(u32::try_from(i / count).expect("few"), i % count));
    comm.reduce_scatter(&wide, &mut block, ReduceOp::Sum)?;
    check("reduce_scatter", &block, |i| total(me as usize * count + i));
    comm.all_to_all(&wide, &mut blocks)?;
    let place = |i: usize| me as usize * count + i % count;
    check("all_to_all", &blocks, |i| given(u32::try_from(i / count).expect("few"), place(i)));
    let (next, last) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
    crate::group(|group| {
        group.on(comm).send(&mine, next)?;
        group.on(comm).recv(&mut block, last)
    })?;
    check("send and recv", &block, |i| given(last, i));
    comm.barrier()
}

#[test]
fn all_calls_go_over_a_nic() {
    for (config, ranks) in configs().iter().flat_map(|config| [2, 3, 5].map(|ranks| (config, ranks))) {
        local::run_with(ranks, config, |comm| {
            for count in [1, 5000, 50_001, 400_000] {
                calls(&comm, count)?;
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Each rank sends first, in a call that no other one ends.
#[test]
fn a_ring_of_sends_goes_through() {
    for (config, ranks) in configs().iter().flat_map(|config| [2, 3].map(|ranks| (config, ranks))) {
        local::run_with(ranks, config, |comm| {
            let (me, right, left) = (comm.rank(), (comm.rank() + 1) % ranks, (comm.rank() + ranks - 1) % ranks);
            for count in [1, 3000, 1 << 18] {
                comm.send(&vec![me; count], right)?;
                let mut got = vec![9; count];
                comm.recv(&mut got, left)?;
                assert!(got.iter().all(|word| *word == left));
            }
            Ok(())
        })
        .unwrap();
    }
}

/// Each communicator has an endpoint of its own: what ends one leaves the other.
#[test]
fn children_go_over_it_too_and_outlive_their_parent() {
    for config in configs() {
        local::run_with(4, &config, |comm| {
            calls(&comm, 100)?;
            let half = comm.split(Some(comm.rank() % 2), 0)?.expect("both colours have ranks");
            drop(comm);
            calls(&half, 30_000)
        })
        .unwrap();
    }
}

/// A NIC says nothing of its peers' lives: the waits hear of them.
#[test]
fn a_rank_that_leaves_is_told_of_within_the_deadline() {
    for config in configs() {
        let results: Vec<Result<()>> = local::run_with(3, &config, |comm| {
            let mut all = vec![0u32; 300_000];
            let first = calls(&comm, 10);
            // Who is slow hears in the last of the first calls already what another one has met in the next.
            Ok(if comm.rank() == 1 {
                first
            } else {
                first.and_then(|()| comm.all_reduce_in_place(&mut all, ReduceOp::Sum))
            })
        })
        .unwrap();
        for rank in [0, 2] {
            let error = results[rank].as_ref().unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)), "{error}");
        }
    }
}

/// Sends and receives cannot be cancelled, but a communicator ends all the same, and its memory with it.
#[test]
fn an_abort_ends_calls_that_wait_for_a_nic() {
    for config in configs() {
        let results: Vec<Result<()>> = local::run_with(2, &config, |comm| {
            // Of the first calls, too, rank 0 may see no more than the abort.
            Ok(calls(&comm, 10).and_then(|()| {
                if comm.rank() == 0 {
                    return comm.recv(&mut vec![0u8; 1 << 20], 1);
                }
                comm.abort_handle().abort("the test says so");
                comm.barrier()
            }))
        })
        .unwrap();
        assert!(results.iter().all(|result| result.is_err()), "{results:?}");
    }
}

/// A send whose memory a NIC has waits for nothing that a flag tells. Regression: its ring's credit, which was there,
/// ended each sleep of the thread that moves it.
#[test]
fn a_send_that_a_nic_has_waits_for_no_flag() {
    let comms = Communicator::init_all(2, &straight()).unwrap();
    let leaked = |count: usize, value: u32| -> &'static mut [u32] { Box::leak(vec![value; count].into()) };
    let begin = |rank: usize, message| comms[rank].begin_message(message).unwrap();
    // Opens the connection.
    let first = begin(0, Message::send(leaked(1, 7), Rank::new(1)));
    comms[1].message(Message::recv(leaked(1, 9), Rank::new(0))).unwrap();
    first.wait().unwrap();
    let count = 1 << 20;
    let sent = begin(0, Message::send(leaked(count, 7), Rank::new(1)));
    {
        let mut home = comms[0].home();
        let Home::Busy(requests) = &mut *home else { panic!("it has ended without its peer") };
        (0..100).for_each(|_| requests.wait().unwrap());
        let flags = requests.awaited_flags().expect("nothing has to be looked at");
        assert!(flags.is_empty(), "{flags:?}");
    }
    let got = leaked(count, 9);
    let place: *const [u32] = got;
    comms[1].message(Message::recv(got, Rank::new(0))).unwrap();
    sent.wait().unwrap();
    // SAFETY: the message has ended, and nobody frees the memory.
    assert!(unsafe { &*place }.iter().all(|word| *word == 7));
}

#[cfg(feature = "encrypt")]
#[test]
fn encrypted_communicators_stay_with_sockets() {
    use crate::config::Encryption;
    let [config, _] = configs();
    local::run_with(2, &config.clone().with_encrypt(Encryption::On), |comm| calls(&comm, 1000)).unwrap();
    let strict = config.with_encrypt(Encryption::On).with_net_strict(true);
    let error = local::run_with(2, &strict, |comm| calls(&comm, 1000)).unwrap_err();
    assert!(error.message().contains("NCCL_NET=test-nic: RSCCL_ENCRYPT seals"), "{error}");
}
