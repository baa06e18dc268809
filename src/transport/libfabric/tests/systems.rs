//! Against the libfabrics of this machine: Debian's 1.17, whose native TCP is called `net`, and PyPI's of release 2.

use super::*;

const LENGTHS: [usize; 8] = [1, 8, 0, 4096, 65_536, 100_001, 3, 1 << 20];

/// Messages both ways between two ends.
fn exchange(ends: [&OfiFound; 2]) {
    let mut pair = Pair::open([ends[0], ends[1]]).unwrap();
    for _ in 0..5 {
        pair.exchange(&LENGTHS).unwrap();
    }
}

#[test]
fn messages_go_by_the_native_tcp_of_the_system_s_libfabric() {
    let Some(path) = machine::libfabric::installed() else { return };
    let all = [2, 4, 6, 7, 11, 15];
    let before = all.map(signals::handler);
    let found = found(&path).unwrap();
    assert_eq!(all.map(signals::handler), before, "it takes these six as it is loaded");
    assert_eq!(found.description().protocol, "native TCP over IPv4");
    assert_eq!((found.promises().order, found.promises().registration), (MessageOrder::AsSent, RegistrationNeed::None));
    exchange([&found, &found]);
}

#[test]
fn messages_go_by_the_tcp_of_release_2() {
    let Some(path) = machine::libfabric::of_mpich() else { return };
    let found = found(&path).unwrap();
    assert!(found.description().provider.starts_with("tcp of libfabric 2."), "{}", found.description());
    exchange([&found, &found]);
}

#[test]
fn the_native_tcp_of_two_releases_understands_itself() {
    let (Some(old), Some(new)) = (machine::libfabric::installed(), machine::libfabric::of_mpich()) else { return };
    let [old, new] = [found(&old).unwrap(), found(&new).unwrap()];
    assert_eq!(old.description().refusal(Rank::new(0), (Rank::new(1), new.description())), None);
    exchange([&old, &new]);
    exchange([&new, &old]);
}

#[test]
fn whoever_waits_for_tcp_sleeps_on_its_descriptor() {
    let Some(path) = machine::libfabric::installed() else { return };
    let found = found(&path).unwrap();
    let mut pair = Pair::open([&found, &found]).unwrap();
    pair.exchange(&[8]).unwrap();
    let into = pair.place(1, pair.sent, 0..8);
    let request = pair.post(1, &into, false).unwrap();
    let from = pair.place(0, pair.sent, 8..16);
    let sent = pair.post(0, &from, true).unwrap();
    let deadline = Deadline::after(PATIENCE);
    while pair.ends[0].test(sent).unwrap().is_none() {
        assert!(!deadline.passed(clock::now()), "the message was not sent");
        pair.ends[0].progress().unwrap();
    }
    loop {
        match pair.ends[1].sleep().unwrap() {
            NicSleep::On(descriptor) => {
                assert!(poller::ready(&[(descriptor, Interest::Read)], PATIENCE).unwrap()[0], "a message wakes");
            }
            NicSleep::Ready => {}
            NicSleep::PollMe => panic!("TCP has a descriptor"),
        }
        pair.ends[1].progress().unwrap();
        if let Some(bytes) = pair.ends[1].test(request).unwrap() {
            assert_eq!(bytes, 8);
            return;
        }
        assert!(!deadline.passed(clock::now()), "the message did not come");
    }
}

/// A provider may call a message sent that lies in a buffer of its own, and lose it when it is closed.
#[test]
fn what_is_sent_arrives_though_its_sender_closes_before_the_receiver_looks() {
    let all = [machine::libfabric::installed(), machine::libfabric::of_mpich()];
    for path in all.into_iter().flatten() {
        let found = found(&path).unwrap();
        let mut pair = Pair::open([&found, &found]).unwrap();
        pair.exchange(&[8]).unwrap();
        let (bytes, first) = (1000, pair.sent);
        let range = |number: u64| {
            let place = usize::try_from(number).unwrap() % (MEMORY_BYTES / bytes) * bytes;
            place..place + bytes
        };
        // The receiver does not move meanwhile: at some time the system has no room.
        let mut sent = 0;
        'all: for number in first..first + 20_000 {
            pair.fill(0, range(number), usize::try_from(number).unwrap());
            let place = pair.place(0, number, range(number));
            let Posted::Request(request) = pair.ends[0].send(place).unwrap() else { break };
            for turn in 0.. {
                pair.ends[0].progress().unwrap();
                match pair.ends[0].test(request).unwrap() {
                    Some(_) => break,
                    None if turn == 1000 => break 'all,
                    None => {}
                }
            }
            sent += 1;
        }
        assert!(sent > 0, "{path:?}: nothing was sent");
        drop(std::mem::replace(&mut pair.ends[0], NicEndpoint::open(&found).unwrap()));
        let deadline = Deadline::after(PATIENCE);
        for number in first..first + sent {
            let request = pair.post(1, &pair.place(1, number, range(number)), false).unwrap();
            while pair.ends[1].test(request).unwrap().is_none() {
                assert!(!deadline.passed(clock::now()), "{path:?}: of {sent} messages, {} have come", number - first);
                pair.ends[1].progress().unwrap();
            }
            assert!(pair.holds(1, range(number), usize::try_from(number).unwrap()), "{path:?}: message {number}");
        }
    }
}
