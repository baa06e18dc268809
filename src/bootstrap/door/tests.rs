//! Communicators that share a port, and strangers at it.

use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::time::Duration;

use super::keeper::{MOST_EARLY, MOST_UNNAMED, PATIENCE};
use super::queue::{AGED, MOST_OF_ADDRESS};
use super::*;
use crate::bootstrap::auth::{ENDED, GREETING_BYTES, Handshake, Purpose};
use crate::config::Encryption;
use crate::sync::Deadline;
use crate::sys::poller::Interest;
use crate::sys::{clock, fork, poller};

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(1);

/// Each test has a doorway of its own, so that others of this process do not share it.
fn doorway(name: &str) -> Doorway {
    Doorway { options: name.to_owned(), ..Doorway::plain((Ipv4Addr::LOCALHOST, 0).into(), None) }
}

fn enter(doorway: &Doorway) -> DoorSeat {
    super::enter(doorway, |_| Ok(())).unwrap()
}

/// A seat at a doorkeeper of the test's own.
fn alone(name: &str) -> (DoorSeat, Running) {
    let (running, doorway) = (Running::start().unwrap(), doorway(name));
    let (listener, address) = socket::listen(doorway.interface).unwrap();
    let token = running.keeper.open(NetworkSpace::here(), &doorway, (listener, address)).unwrap();
    (DoorSeat { keeper: Arc::clone(&running.keeper), token, address }, running)
}

/// Communicators of tests differ, since the doorkeeper is one for all.
fn terms(communicator: u64) -> Terms {
    Terms { key: [7; 32], purpose: Purpose::Peer, communicator, job: None, encryption: Encryption::Off }
}

const ME: Rank = Rank::new(3);

/// The first message of rank 1 to rank 3.
fn hello(communicator: u64) -> Vec<u8> {
    Handshake::initiate(terms(communicator), Rank::new(1), ME).unwrap().take_output()
}

fn connect(seat: &DoorSeat, said: &[u8]) -> TcpStream {
    let mut stream = socket::connect(seat.address()).unwrap();
    poller::wait_any(&[(stream.as_fd(), Interest::Write)], LONG).unwrap();
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(said).unwrap();
    stream
}

fn await_one(incoming: &Incoming) -> TcpStream {
    let deadline = Deadline::after(LONG);
    loop {
        if let Some((stream, _)) = incoming.take() {
            return stream;
        }
        assert!(!deadline.is_over(), "nobody has come");
        poller::pause(LOOK);
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Deadline::after(LONG);
    while !is_so() {
        assert!(!deadline.is_over(), "{what}");
        poller::pause(LOOK);
    }
}

/// What the other side answers, to its end.
fn answer(mut stream: TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
    all
}

#[test]
fn communicators_share_a_port_and_each_gets_its_own_connections_whole() {
    let doorway = doorway("shared");
    let (one, other) = (enter(&doorway), enter(&doorway));
    assert_eq!(one.address(), other.address());
    let (first, second) = (one.incoming(&terms(11), ME), other.incoming(&terms(12), ME));
    let _dialled = [12, 11].map(|communicator| connect(&one, &hello(communicator)));
    for (incoming, communicator) in [(&first, 11), (&second, 12)] {
        let mut stream = await_one(incoming);
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let mut said = [0; GREETING_BYTES];
        stream.read_exact(&mut said).unwrap();
        assert_eq!(said, hello(communicator)[..GREETING_BYTES], "its first byte is there");
        assert!(incoming.take().is_none());
    }
    // What one leaves, the other has still; then it is closed.
    let address = one.address();
    drop((first, one));
    let _dialled = connect(&other, &hello(12));
    await_one(&second);
    drop((second, other));
    // The system may refuse at once, or a moment later.
    let refused = socket::connect(address).and_then(|stream| {
        poller::wait_any(&[(stream.as_fd(), Interest::Write)], LONG).unwrap();
        stream.take_error()?.map_or(Ok(()), Err)
    });
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn what_tells_listeners_apart_has_ports_of_its_own() {
    let (one, other) = (enter(&doorway("apart")), enter(&doorway("apart too")));
    assert_ne!(one.address(), other.address());
    let failed = super::enter(&doorway("broken"), |_| Err(crate::error::Error::internal("enough"))).map(drop);
    assert_eq!(failed.unwrap_err().message(), "enough");
}

/// A communicator that takes nothing holds up no other.
#[test]
fn who_takes_no_connection_holds_up_no_other() {
    let seat = enter(&doorway("stopped"));
    let (stopped, moving) = (seat.incoming(&terms(21), ME), seat.incoming(&terms(22), ME));
    let waiting: Vec<TcpStream> = (0..200).map(|_| connect(&seat, &hello(21))).collect();
    let _dialled = connect(&seat, &hello(22));
    await_one(&moving);
    for _ in &waiting {
        await_one(&stopped);
    }
}

#[test]
fn a_connection_rings_the_chime_of_who_waits_for_it() {
    let seat = enter(&doorway("woken"));
    let chiming = seat.incoming(&terms(32), ME);
    let chime = Arc::<Chime>::default();
    assert!(chiming.ring_at_arrival(&chime) && chiming.ring_at_arrival(&chime));
    let heard = chime.count();
    let _dialled = connect(&seat, &hello(32));
    assert!(chime.sleep(heard, &[], LONG));
    assert_eq!(chime.count(), heard + 1);
    assert!(!chiming.ring_at_arrival(&chime), "one waits");
    await_one(&chiming);
}

/// Regression: a thread that slept for long learnt of it at the next of its looks, and its calls did not fail before.
#[test]
fn who_sleeps_hears_that_no_connection_can_come() {
    let (seat, _running) = alone("shut");
    let incoming = seat.incoming(&terms(33), ME);
    let chime = Arc::<Chime>::default();
    assert!(incoming.ring_at_arrival(&chime));
    let (heard, error) = (chime.count(), std::io::Error::from_raw_os_error(24));
    seat.keeper.have_trouble(Some(&error));
    seat.keeper.have_trouble(Some(&error));
    assert_eq!((chime.count(), seat.trouble().unwrap().raw_os_error()), (heard + 1, Some(24)));
    seat.keeper.have_trouble(None);
    seat.keeper.have_trouble(Some(&error));
    assert_eq!(chime.count(), heard + 2);
}

/// Regression: connections that name a rank and prove nothing waited for it without end, from one address as many as
/// there were descriptors.
#[test]
fn connections_of_one_address_wait_for_a_rank_in_bounds_and_old_ones_make_room() {
    let (listener, at) = socket::listen((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let stream = TcpStream::connect(at).unwrap();
    let (queue, now) = (IncomingQueue::default(), clock::now());
    let address = |host: usize, port: usize| {
        let host = Ipv4Addr::from_bits(u32::try_from(host).unwrap());
        SocketAddr::from((host, u16::try_from(port).unwrap()))
    };
    let put = |from, since| queue.put(stream.try_clone().unwrap(), from, since);
    assert!(put(address(2, 1), now));
    for port in 1..=MOST_OF_ADDRESS {
        assert!(put(address(1, port), now));
    }
    assert!(!put(address(1, 7), now + AGED - LOOK), "too many of one address");
    assert!(put(address(2, 2), now + AGED - LOOK), "another one has room");
    assert!(put(address(1, 2000), now + AGED), "the oldest of the address makes room");
    assert_eq!(queue.take().unwrap().1, address(2, 1));
    assert_eq!(queue.take().unwrap().1, address(1, 2));
    drop(listener);
}

#[test]
fn whom_a_connection_is_for_may_come_byte_by_byte_and_its_rank_later() {
    let (seat, _running) = alone("early");
    let said = hello(41);
    let mut dialled = connect(&seat, &said[..1]);
    dialled.set_nodelay(true).unwrap();
    until("it is accepted", || seat.strangers() > 0);
    for byte in &said[1..] {
        dialled.write_all(&[*byte]).unwrap();
    }
    let incoming = seat.incoming(&terms(41), ME);
    await_one(&incoming);
}

#[test]
fn a_communicator_that_has_ended_says_so_to_those_that_come_late() {
    let seat = enter(&doorway("ended"));
    let incoming = seat.incoming(&terms(51), ME);
    let waiting = connect(&seat, &hello(51));
    until("it has come", || !incoming.ring_at_arrival(&Arc::default()));
    drop(incoming);
    assert_eq!(answer(waiting), [ENDED]);
    assert_eq!(answer(connect(&seat, &hello(51))), [ENDED]);
    // One of the same name that begins later has them again.
    let again = seat.incoming(&terms(51), ME);
    let _dialled = connect(&seat, &hello(51));
    await_one(&again);
}

#[test]
fn what_is_for_nobody_is_closed_in_time_and_garbage_at_once() {
    let (seat, _running) = alone("nobody");
    let wrong_purpose = Terms { purpose: Purpose::Store, ..terms(61) };
    let foreign = Handshake::initiate(wrong_purpose, Rank::new(1), ME).unwrap().take_output();
    for said in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"R", b"RSC\x01\xff", &foreign] {
        let is_whole = said != b"R";
        let stream = connect(&seat, said);
        if !is_whole {
            stream.shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert_eq!(answer(stream), b"", "{said:?}");
    }
    let (silent, unknown) = (connect(&seat, b""), connect(&seat, &hello(61)));
    until("both are there", || seat.strangers() >= 2);
    seat.keeper.expire_at(clock::now() + PATIENCE);
    assert_eq!((answer(silent), answer(unknown)), (Vec::new(), Vec::new()));
}

/// The number of strangers is bounded whatever they say, and a rank comes through.
#[test]
fn floods_of_strangers_are_bounded_and_keep_nobody_out() {
    let (seat, _running) = alone("flood");
    let incoming = seat.incoming(&terms(71), ME);
    let mut held = Vec::new();
    for number in 0..u64::try_from(2 * (MOST_UNNAMED + MOST_EARLY)).unwrap() {
        let said = if number % 2 == 0 { Vec::new() } else { hello(1_000_000 + number) };
        held.push(connect(&seat, &said));
        assert!(seat.strangers() <= MOST_UNNAMED + MOST_EARLY);
    }
    let _dialled = connect(&seat, &hello(71));
    await_one(&incoming);
    assert!(seat.strangers() <= MOST_UNNAMED + MOST_EARLY);
    drop(held);
}

#[test]
fn a_forked_child_has_no_part_in_its_parent_s_door() {
    let doorway = doorway("forked");
    let seat = enter(&doorway);
    let incoming = seat.incoming(&terms(81), ME);
    let mut parts = Some((incoming, seat));
    assert!(fork::in_child(|| {
        let own = enter(&doorway);
        let is_apart = parts.as_ref().is_some_and(|(_, seat)| own.address() != seat.address());
        drop(parts.take());
        let incoming = own.incoming(&terms(82), ME);
        let _dialled = connect(&own, &hello(82));
        await_one(&incoming);
        is_apart
    }));
    let (incoming, seat) = parts.take().expect("the child has dropped its own");
    let _dialled = connect(&seat, &hello(81));
    await_one(&incoming);
}
