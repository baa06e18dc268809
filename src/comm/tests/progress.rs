//! What moves requests when their calls wait or fail: nobody holds up the thread that moves those of all communicators.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use crate::bootstrap::Bootstrap;
use crate::comm::engine_home::EngineHome;
use crate::comm::request::Pending;
use crate::comm::{Buffers, Call, CallCount, Communicator, Home, Message, local};
use crate::config::Config;
use crate::error::{Error, Kind, Result};
use crate::exec::Background;
use crate::sync::primitive::{Arc, AtomicBool, Ordering};
use crate::sync::progress_thread::{self, AfterRound, ProgressDuty};
use crate::sync::{AwaitedMessage, Deadline, RestEnds};
use crate::transport::{Channel, Fabric};
use crate::types::{Collective, DataType, Rank, ReduceOp};

fn leaked(count: usize, value: u32) -> &'static mut [u32] {
    Box::leak(vec![value; count].into())
}

fn sum_of(count: usize, value: u32) -> Call<'static> {
    let (collective, data_type, op) = (Collective::AllReduce, DataType::U32, Some(ReduceOp::Sum));
    let (count, buffers) = (CallCount::Each(count as u64), Buffers::shared(leaked(count, value)));
    Call { collective, data_type, op, root: None, count, buffers }
}

fn patient() -> Config {
    Config::default().with_timeout(Duration::from_secs(60))
}

const LIMIT: Duration = Duration::from_secs(30);

/// Looks until `is_so`, with a bound.
fn becomes(mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Deadline::after(LIMIT);
    while !is_so() {
        if deadline.is_over() {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Work beside a call that panics once a peer is in the call's buffers, and says whether the call stops for that peer.
#[derive(Debug, Default)]
struct Panics {
    is_inside: AtomicBool,
    has_stopped: AtomicBool,
}

#[derive(Debug)]
struct Beside(Arc<Panics>);

impl Background for Beside {
    fn is_empty(&self) -> bool {
        false
    }

    fn turn(&mut self, _: &mut Fabric, _: &dyn Bootstrap) -> Result<bool> {
        assert!(!self.0.is_inside.load(Ordering::Acquire), "a defect");
        Ok(false)
    }

    fn messages(&self) -> Vec<AwaitedMessage> {
        Vec::new()
    }

    fn blocking(&self) -> Vec<AwaitedMessage> {
        Vec::new()
    }

    fn may_sleep(&self) -> bool {
        false
    }

    fn stop_for_peers(&mut self, _: &mut Fabric) -> bool {
        self.0.has_stopped.store(true, Ordering::Release);
        true
    }
}

/// Regression: a panic in a call waited, in the midst of unwinding, until all peers were out of the call's buffers, and
/// told nobody. On the thread that moves all requests that peer could be waiting for the same thread, for ever.
#[test]
fn a_call_that_panics_tells_its_peers_and_stops_while_they_leave() {
    let panics = Arc::<Panics>::default();
    local::run_with(2, &patient(), |comm| {
        // Maps the memory.
        comm.run(&sum_of(300_000, 1))?;
        if comm.rank() == 0 {
            let mut beside = Beside(Arc::clone(&panics));
            let call = sum_of(300_000, 1);
            let run = || comm.with_engine(|engine| engine.collective(&call, &mut beside));
            drop(catch_unwind(AssertUnwindSafe(run)).expect_err("it panics"));
            assert_eq!(comm.async_error().map(|error| error.kind()), Some(Kind::Aborted));
            return Ok(());
        }
        let (windows, next) = comm.with_engine(|engine| {
            let next = engine.session.collectives();
            Ok((engine.fabric().windows(), next))
        })?;
        let windows = windows.ok_or_else(|| Error::internal("no windows"))?;
        let mut inside = None;
        assert!(becomes(|| {
            inside = windows.arenas[0].lease().enter(next);
            inside.is_some()
        }));
        panics.is_inside.store(true, Ordering::Release);
        let has_stopped = becomes(|| panics.has_stopped.load(Ordering::Acquire));
        drop(inside);
        assert!(has_stopped, "it waits, and nothing else moves meanwhile");
        let error = comm.run(&sum_of(300_000, 1)).expect_err("rank 0 has told of its panic");
        assert!(error.message().contains("panicked: a defect"), "{error}");
        Ok(())
    })
    .unwrap();
}

/// Regression: the end of a communicator whose message was being read by a peer that stood still held the thread that
/// moves all requests for half a second.
#[test]
fn a_message_that_is_being_read_holds_up_nobody_when_its_communicator_ends() {
    let config = patient().with_p2p_disable(true).with_cma_force(true).with_buffer_bytes(64 << 10);
    let comms = Communicator::init_all(2, &config).unwrap();
    let (sender, receiver) = (&comms[0], &comms[1]);
    // Opens the connection.
    let first = sender.begin_message(Message::send(leaked(1, 7), Rank::new(1))).unwrap();
    receiver.message(Message::recv(leaked(1, 9), Rank::new(0))).unwrap();
    first.wait().unwrap();
    // Too long for the slots: the sender waits for the answer to its offer.
    let sent = sender.begin_message(Message::send(leaked(100_000, 7), Rank::new(1))).unwrap();
    let read = |body: &mut dyn FnMut(&mut crate::sync::ring::Receiver) -> bool| {
        let read = receiver.with_engine(|engine| {
            let (receiver, _) = engine.fabric().links().receiver_and_reads(Rank::new(0), Channel::PointToPoint);
            Ok(body(receiver))
        });
        read.unwrap()
    };
    assert!(becomes(|| read(&mut |receiver| {
        receiver.peek().unwrap().is_some_and(|message| message.is_offer) && receiver.take_offer().is_some()
    })));
    // Its receiver stands still.
    let mut home = sender.home();
    let error = sender.shared.fail(&mut home, Some(Error::aborted("enough")));
    assert!(matches!(*home, Home::Busy(_)), "it has waited until the reader was late");
    assert!(error.message().contains("enough"), "{error}");
    read(&mut |receiver| {
        let _is_whole = receiver.leave(0);
        true
    });
    drop(sender.shared.fail(&mut home, None));
    assert!(matches!(*home, Home::Failed(..)), "the reader has left");
    drop(home);
    assert!(sent.wait().unwrap_err().message().contains("enough"));
    assert!(becomes(|| receiver.run(&sum_of(1, 1)).is_err()));
}

/// Regression: where a thread had requests of another communicator, its wait for a collective of a request slept
/// through what it waited for.
#[test]
fn a_wait_beside_requests_of_another_communicator_sleeps_on_what_it_waits_for() {
    let (comms, others) = (Communicator::init_all(2, &patient()), Communicator::init_all(2, &patient()));
    let (comms, others) = (comms.unwrap(), others.unwrap());
    for count in [1, 300_000] {
        let begin = |rank: usize| comms[rank].begin(sum_of(count, 1)).unwrap();
        // The first call maps their memory.
        [begin(0), begin(1)].iter().for_each(|pending| pending.wait().unwrap());
        let received = others[0].begin_message(Message::recv(leaked(1, 9), Rank::new(1))).unwrap();
        let early = begin(0);
        {
            let mut home = comms[0].home();
            let Home::Busy(requests) = &mut *home else { panic!("it has ended without its peer") };
            (0..4).for_each(|_| requests.wait().unwrap());
            let flags = requests.awaited_flags().expect("it waits for flags");
            assert!(!flags.is_empty() && flags.iter().all(|(flag, target)| !flag.reached(*target)));
        }
        begin(1).wait().unwrap();
        early.wait().unwrap();
        others[1].message(Message::send(leaked(1, 7), Rank::new(0))).unwrap();
        received.wait().unwrap();
    }
}

/// The receives of rank 0 of each of `worlds`, which the program leaves alone from now on.
fn receives(worlds: &[Vec<Communicator>]) -> Vec<Pending> {
    let receive =
        |comms: &Vec<Communicator>| comms[0].begin_message(Message::recv(leaked(1, 9), Rank::new(1))).unwrap();
    worlds.iter().map(receive).collect()
}

/// Regression: beside requests of several communicators the thread that moves them came at each tick.
#[test]
fn the_thread_stays_with_all_communicators_until_the_program_wants_one() {
    let worlds: Vec<_> = (0..3).map(|_| Communicator::init_all(2, &patient()).unwrap()).collect();
    let begun = receives(&worlds);
    let is_visited = |comms: &Vec<Communicator>| comms[0].shared.home.is_visited();
    for comms in &worlds {
        assert!(becomes(|| worlds.iter().all(is_visited)), "it does not stay");
        comms[0].with_engine(|_| Ok(())).unwrap();
    }
    for (comms, pending) in worlds.iter().zip(begun) {
        comms[1].message(Message::send(leaked(1, 7), Rank::new(0))).unwrap();
        assert!(becomes(|| pending.has_ended()), "nobody moves it");
        pending.wait().unwrap();
    }
}

#[test]
fn a_communicator_that_fails_leaves_the_others_to_the_same_thread() {
    let worlds: Vec<_> = (0..3).map(|_| Communicator::init_all(2, &patient()).unwrap()).collect();
    let begun = receives(&worlds);
    worlds[1][0].abort_handle().abort("enough");
    assert!(becomes(|| begun[1].has_ended()), "nobody ends it");
    assert!(!begun[0].has_ended() && !begun[2].has_ended());
    for world in [2, 0] {
        worlds[world][1].message(Message::send(leaked(1, 7), Rank::new(0))).unwrap();
        assert!(becomes(|| begun[world].has_ended()), "nobody moves it");
        begun[world].wait().unwrap();
    }
    assert_eq!(begun[1].wait().unwrap_err().kind(), Kind::Aborted);
}

/// Fails a communicator on the progress thread, again and again until it has ended.
#[derive(Debug)]
struct Fails {
    shared: Arc<EngineHome>,
    /// Whether it had ended, in each round.
    told: Sender<bool>,
}

impl ProgressDuty for Fails {
    fn round(&mut self, _: u64) -> AfterRound {
        // The same thread may have it for the requests: until the test wants it.
        let Ok(mut home) = self.shared.home.take_or_why() else { return AfterRound::GoesOn };
        drop(self.shared.fail(&mut home, Some(broken())));
        let has_ended = !matches!(*home, Home::Busy(_));
        drop(home);
        // The test may have ended by an assertion.
        let _unheard = self.told.send(has_ended);
        if has_ended { AfterRound::Over } else { AfterRound::GoesOn }
    }

    fn rest(&mut self, ends: RestEnds<'_>, sleep: &mut dyn FnMut(&RestEnds<'_>) -> bool) -> bool {
        sleep(&ends)
    }
}

fn broken() -> Error {
    Error::remote(Rank::new(1), "a connection has broken")
}

/// Fails the first of two ranks on the progress thread while it has requests that `begin` begins.
fn fail_beside(begin: impl FnOnce(&[Communicator]) -> Pending) {
    let comms = Communicator::init_all(2, &patient()).unwrap();
    let begun = begin(&comms);
    let (told, hears) = channel();
    let duty = Fails { shared: Arc::clone(&comms[0].shared), told };
    let seat = progress_thread::enter(|_| Box::new(duty)).unwrap();
    let mut first = None;
    assert!(becomes(|| {
        // Ends a visit.
        drop(comms[0].home());
        first = hears.try_recv().ok();
        first.is_some()
    }));
    assert_eq!(first, Some(false), "it has waited for the cause");
    while !hears.recv_timeout(LIMIT).expect("it ends") {}
    drop(seat);
    let error = begun.wait().unwrap_err();
    assert!(error.message().contains("a connection has broken"), "{error}");
}

/// Regression: a connection that broke held the thread that moves all requests for 200 ms, in which its peer might say
/// why.
#[test]
fn the_thread_does_not_wait_for_the_cause_of_a_failure() {
    fail_beside(|comms| comms[0].begin_message(Message::recv(leaked(1, 9), Rank::new(1))).unwrap());
}

/// Regression: a collective of a request, on its own stack, still did.
#[test]
fn nor_does_a_collective_of_a_request() {
    fail_beside(|comms| {
        let begin = |rank: usize| comms[rank].begin(sum_of(300_000, 1)).unwrap();
        // The first call maps their memory.
        [begin(0), begin(1)].iter().for_each(|pending| pending.wait().unwrap());
        begin(0)
    });
}

#[test]
fn who_comes_again_for_the_cause_hears_it() {
    let comms = Communicator::init_all(2, &patient()).unwrap();
    let session = comms[0].with_engine(|engine| Ok(Arc::clone(&engine.session))).unwrap();
    assert!(session.awaits_cause(&broken()) && !session.awaits_cause(&Error::aborted("enough")));
    drop(comms[1].shared.fail(&mut comms[1].home(), Some(Error::aborted("a better reason"))));
    assert!(becomes(|| !session.awaits_cause(&broken())));
    assert!(session.cause(broken(), &|_| None).message().contains("a better reason"));
    assert!(!session.awaits_cause(&broken()), "no better one will come");
}

/// Tells whether it is woken on the progress thread.
struct Woken(Sender<bool>);

impl std::task::Wake for Woken {
    fn wake(self: std::sync::Arc<Self>) {
        // The test may have ended by an assertion.
        let _unheard = self.0.send(progress_thread::is_here());
    }
}

/// Regression: a task that was woken there, and waited for its GPU or dropped a communicator, waited for kernels that
/// waited for the thread itself.
#[test]
fn tasks_are_woken_elsewhere_while_kernels_may_wait_for_the_thread() {
    let comms = Communicator::init_all(2, &patient()).unwrap();
    let session = comms[0].with_engine(|engine| Ok(Arc::clone(&engine.session))).unwrap();
    crate::reach::proxy::beside_one(session, || {
        let pending = receives(std::slice::from_ref(&comms)).remove(0);
        let (told, hears) = channel();
        assert!(!pending.poll_end(&std::sync::Arc::new(Woken(told)).into()));
        // A wait of this thread would move the receive.
        std::thread::scope(|scope| {
            scope.spawn(|| comms[1].message(Message::send(leaked(1, 7), Rank::new(0))).unwrap());
        });
        assert_eq!(hears.recv_timeout(LIMIT), Ok(false), "it is woken where kernels wait for it");
        pending.wait().unwrap();
    });
}
