//! Against the stand-in.

use std::ffi::CStr;
use std::os::unix::net::UnixDatagram;

use super::*;

/// A stand-in with some options, in a folder of its own; `None` where there is no C compiler.
struct StandIn {
    folder: tempfile::TempDir,
    name: CString,
}

impl StandIn {
    fn new(options: &[&str]) -> Option<StandIn> {
        let folder = tempfile::Builder::new().prefix("ofi").tempdir_in("/tmp").unwrap();
        let path = machine::libfabric::stand_in(folder.path(), options)?;
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        Some(StandIn { folder, name })
    }

    fn found(&self) -> Result<OfiFound> {
        found(Path::new(std::ffi::OsStr::from_bytes(self.name.to_bytes())))
    }

    /// What the library's caller has done wrong, and how many objects are open.
    fn state(&self) -> (Option<String>, c_int) {
        let library = Library::open(&self.name).unwrap();
        // SAFETY: the types in `stand_in.c`, here and below.
        let fault = unsafe { library.function::<extern "C" fn() -> *const c_char>(c"stand_in_fault") }.unwrap();
        // SAFETY: as above.
        let open = unsafe { library.function::<extern "C" fn() -> c_int>(c"stand_in_open") }.unwrap();
        (text_at(fault()), open())
    }

    /// Nothing was done wrong, and nothing is open.
    fn assert_clean(&self, what: &str) {
        assert_eq!(self.state(), (None, 0), "{what}");
        let left = std::fs::read_dir(self.folder.path()).unwrap().flatten();
        let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| !is_of_the_build(name)).collect();
        assert!(left.is_empty(), "{what}: {left:?} are left");
    }
}

fn is_of_the_build(name: &std::ffi::OsStr) -> bool {
    name == "libfabric.so.1" || name == "versions"
}

/// Of all sizes that mean something: none, one, odd, as long as a piece of the stand-in's, longer than a piece.
const LENGTHS: [usize; 9] = [0, 1, 8, 777, 16384, 16385, 70_000, 3, 1 << 20];

#[test]
fn messages_come_whole_whatever_the_provider_asks_for() {
    let all: &[&[&str]] = &[
        &[],
        &["AGAIN_EVERY=3", "REORDER=1"],
        &["REQUESTS=6", "REORDER=1", "AGAIN_EVERY=2"],
        &["DESCRIPTOR=1"],
        // Without ENDPOINT, without PROV_KEY, LOCAL alone, nothing.
        &["MODES=0x74", "REORDER=1"],
        &["MODES=0x234"],
        &["MODES=4", "AGAIN_EVERY=5"],
        &["MODES=0"],
        // Releases 1.14 and 1.22: errors of other lengths, other interfaces.
        &["RELEASE=0x1000e", "ADDRESS_BYTES=128"],
        &["RELEASE=0x10016"],
    ];
    for options in all {
        let Some(library) = StandIn::new(options) else { return };
        let found = library.found().unwrap();
        let mut pair = Pair::open([&found, &found]).unwrap_or_else(|error| panic!("{options:?}: {error}"));
        for _ in 0..3 {
            pair.exchange(&LENGTHS).unwrap_or_else(|error| panic!("{options:?}: {error}; {:?}", library.state()));
        }
        drop(pair);
        library.assert_clean(&format!("{options:?}"));
    }
}

#[test]
fn what_a_provider_promises_is_told() {
    let Some(library) = StandIn::new(&["REQUESTS=64"]) else { return };
    let found = library.found().unwrap();
    let promises = found.promises();
    assert_eq!((promises.order, promises.registration), (MessageOrder::Any, RegistrationNeed::All));
    let requests = (promises.most_sends, promises.most_receives, promises.most_connections());
    assert_eq!((promises.most_message_bytes, requests), (1 << 30, (64, 64, 32)));
    let description = found.description();
    assert_eq!(description.to_string(), "libfabric, cxi of libfabric 2.6 on cxi0");
    assert_eq!(description.protocol, "cxi 24.1, addresses 15, release 2.6");
    assert_eq!(description.rate_mbit, Some(200_000));
    let Some(older) = StandIn::new(&["RELEASE=0x20005"]) else { return };
    let older = older.found().unwrap();
    assert_eq!(description.facts(), " (200000 Mbit/s)");
    let refusal = description.refusal(Rank::new(0), (Rank::new(3), older.description())).unwrap();
    for words in
        ["rank 0 would send by libfabric, cxi of libfabric 2.6 on cxi0", "rank 3 by libfabric, cxi of libfabric 2.5"]
    {
        assert!(refusal.contains(words), "{refusal}");
    }
}

/// The devices that the system shows of two NICs, on nodes 0 and 1.
fn two_devices() -> [FabricDevice; 2] {
    [0, 1].map(|number| FabricDevice {
        name: format!("cxi{number}"),
        driver: "cxi_core".to_owned(),
        node: Some(number),
        ..FabricDevice::default()
    })
}

#[test]
fn each_rank_takes_the_nic_of_its_node_without_being_asked() {
    let Some(library) = StandIn::new(&["NICS=2"]) else { return };
    let devices = two_devices();
    let wish = OfiWish { devices: &devices, ..OfiWish::default() };
    for (me, node, device) in [(0, Some(1), 1), (1, Some(0), 0), (4, None, 0), (5, None, 1), (7, Some(5), 1)] {
        let (found, noes) = find_in(&library.name, wish, (Rank::new(me), node)).unwrap();
        let description = found.description();
        assert_eq!((&*description.device, description.node), (&*format!("cxi{device}"), Some(device)));
        let other = 1 - device;
        let no = format!("cxi{other} (200000 Mbit/s, NUMA node {other}): a rank has one NIC, which is cxi{device}");
        assert_eq!(noes, [no]);
    }
    let Some(library) = StandIn::new(&["LINK=1"]) else { return };
    let error = find_in(&library.name, wish, (Rank::new(0), None)).unwrap_err();
    assert_eq!(error.message(), "libfabric 2.6 has no NIC that will do: cxi: cxi0 has no link");
}

/// Two NICs of a host, and ranks that use one each.
#[test]
fn messages_go_between_two_nics_of_a_host() {
    let Some(library) = StandIn::new(&["NICS=2"]) else { return };
    let devices = two_devices();
    let wish = OfiWish { devices: &devices, ..OfiWish::default() };
    let [one, other] = [0, 1].map(|node| find_in(&library.name, wish, (Rank::new(0), Some(node))).unwrap().0);
    let mut pair = Pair::open([&one, &other]).unwrap();
    pair.exchange(&LENGTHS).unwrap();
    drop(pair);
    library.assert_clean("after two NICs");
}

#[test]
fn each_call_that_fails_is_an_error_with_its_name_and_nothing_stays_open() {
    // Calls while two endpoints open, the second one too; then those of a connection.
    let calls = [
        ("fabric", 1, "fi_fabric"),
        ("domain", 2, "fi_domain"),
        ("cq_open", 4, "fi_cq_open"),
        ("av_open", 2, "fi_av_open"),
        ("endpoint", 1, "fi_endpoint"),
        ("ep_bind", 2, "fi_ep_bind"),
        ("enable", 2, "fi_enable"),
        ("getname", 1, "fi_getname"),
        ("mr_reg", 1, "fi_mr_reg"),
        ("mr_reg", 3, "fi_mr_reg"),
        ("mr_enable", 2, "fi_mr_enable"),
        ("av_insert", 1, "fi_av_insert"),
        ("av_insert", 2, "fi_av_insert"),
        ("recv", 1, "fi_trecv"),
        ("send", 1, "fi_tsend"),
        ("send", 5, "fi_tsend"),
        ("cq_read", 7, "fi_cq_read"),
    ];
    for (call, count, told) in calls {
        let options = [format!("FAIL_CALL=\"{call}\""), format!("FAIL_AT={count}"), "FAIL_CODE=EIO".to_owned()];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let Some(library) = StandIn::new(&options) else { return };
        let found = library.found().unwrap();
        let error = Pair::open([&found, &found]).and_then(|mut pair| pair.exchange(&LENGTHS)).unwrap_err();
        let expected = format!("libfabric (cxi, cxi0): {told}: Input/output error (5)");
        assert_eq!((error.kind(), error.message()), (Kind::System, &*expected), "{call}, {count}");
        library.assert_clean(&format!("{call}, {count}"));
    }
    let Some(library) = StandIn::new(&["FAIL_CALL=\"getinfo\"", "FAIL_CODE=EIO"]) else { return };
    assert_eq!(library.found().unwrap_err().message(), "libfabric 2.6: fi_getinfo: Input/output error (5)");
}

#[test]
fn a_queue_that_has_an_error_and_does_not_tell_it_ends_no_call_late() {
    let Some(library) = StandIn::new(&["STUCK=1"]) else { return };
    let found = library.found().unwrap();
    let mut end = NicEndpoint::open(&found).unwrap();
    for _ in 0..10 {
        end.progress().unwrap();
    }
    assert_eq!(library.state().0, None);
}

#[test]
fn only_calls_that_lock_memory_name_its_limit() {
    let calls = [
        ("cq_open", "ENOMEM", true),
        ("endpoint", "ENOMEM", true),
        ("enable", "EPERM", true),
        ("mr_reg", "EAGAIN", true),
        ("send", "ENOMEM", false),
        ("av_insert", "ENOMEM", false),
        ("fabric", "EPERM", false),
        ("domain", "EPERM", false),
        ("domain", "EACCES", false),
    ];
    for (call, code, is_named) in calls {
        // A queue with a descriptor is asked for first, which this provider does not have.
        let at = if call == "cq_open" { 2 } else { 1 };
        let options = [format!("FAIL_CALL=\"{call}\""), format!("FAIL_CODE={code}"), format!("FAIL_AT={at}")];
        let Some(library) = StandIn::new(&options.each_ref().map(String::as_str)) else { return };
        let found = library.found().unwrap();
        let is_fine = fork::in_child(|| {
            pinning::limit_locked_bytes(8 << 20);
            let error = Pair::open([&found, &found]).and_then(|mut pair| pair.exchange(&LENGTHS)).unwrap_err();
            let has = |words| error.message().contains(words);
            let is_device =
                call == "domain" && has("it may be that this user may not open the device file of cxi0, in /dev");
            has("RLIMIT_MEMLOCK") == is_named && is_device == (call == "domain")
        });
        assert!(is_fine, "{call}, {code}");
    }
}

#[test]
fn memory_that_cannot_be_locked_is_told_with_the_limit() {
    let Some(library) = StandIn::new(&["FAIL_CALL=\"mr_reg\"", "FAIL_AT=2"]) else { return };
    let found = library.found().unwrap();
    let is_told = fork::in_child(|| {
        pinning::limit_locked_bytes(8 << 20);
        let error = Pair::open([&found, &found]).err();
        let told = error.is_some_and(|error| {
            let message = error.message();
            message.contains(
                "fi_mr_reg: Cannot allocate memory (12): this process may lock 8192 KiB of memory (RLIMIT_MEMLOCK)",
            )
        });
        told && library.state() == (None, 0)
    });
    assert!(is_told);
}

#[test]
fn a_forked_child_is_refused_and_its_parent_goes_on() {
    let Some(library) = StandIn::new(&[]) else { return };
    let found = library.found().unwrap();
    let mut pair = Pair::open([&found, &found]).unwrap();
    pair.exchange(&[5]).unwrap();
    let place = pair.place(0, 7, 0..8);
    let is_refused = fork::in_child(|| {
        let errors =
            [pair.ends[0].send(place.clone()).err(), pair.ends[0].progress().err(), pair.ends[0].listen().err()];
        let is_told = |error: Option<Error>| {
            error.is_some_and(|error| {
                error.kind() == Kind::InvalidUsage
                    && error.message().contains("cxi, cxi0: this process was forked by the one")
            })
        };
        errors.into_iter().all(is_told)
    });
    assert!(is_refused);
    // The child's end of life closes nothing of the parent's either.
    let child = pair;
    let ended = fork::in_child(move || {
        drop(child);
        true
    });
    assert!(ended);
    assert_eq!(library.state().0, None);
}

#[test]
fn a_child_s_drop_leaves_what_is_the_parent_s() {
    let Some(library) = StandIn::new(&[]) else { return };
    let found = library.found().unwrap();
    let pair = Pair::open([&found, &found]).unwrap();
    let mut cell = Some(pair);
    assert!(fork::in_child(|| {
        let before = library.state();
        drop(cell.take());
        before == library.state()
    }));
    cell.as_mut().unwrap().exchange(&LENGTHS).unwrap();
    drop(cell);
    library.assert_clean("after a child has dropped its copies");
}

#[test]
fn a_closed_endpoint_writes_to_no_memory_any_more() {
    let Some(library) = StandIn::new(&["DESCRIPTOR=1"]) else { return };
    let found = library.found().unwrap();
    let mut pair = Pair::open([&found, &found]).unwrap();
    let into = pair.place(1, 0, 0..64);
    pair.post(1, &into, false).unwrap();
    pair.fill(1, 0..64, 5);
    let Pair { ends: [mut first, second], connections, memory, regions, .. } = pair;
    drop(second);
    let from =
        MessagePlace { connection: connections[0], number: MessageNumber::of(0), region: regions[0], range: 0..64 };
    // The peer is gone: the message is refused, now or when it is tested.
    let Posted::Request(request) = first.send(from).unwrap() else { panic!("there is room") };
    first.progress().unwrap();
    let error = first.test(request).unwrap_err();
    assert!(error.message().contains("the stand-in's own words"), "{error}");
    // SAFETY: nothing has these bytes any more.
    let bytes = unsafe { std::slice::from_raw_parts(memory[1].base().as_ptr(), 64) };
    assert!(bytes.iter().copied().eq(pattern(5).take(64)));
    drop(first);
    library.assert_clean("after both ends");
}

#[test]
fn memory_of_an_endpoint_that_does_not_close_is_never_given_back() {
    let Some(library) = StandIn::new(&["FAIL_CALL=\"ep_close\"", "FAIL_CODE=EBUSY"]) else { return };
    let found = library.found().unwrap();
    let pair = Pair::open([&found, &found]).unwrap();
    let keeps = pair.memory.each_ref().map(|memory| std::sync::Arc::downgrade(memory.keep()));
    drop(pair);
    let kept = keeps.map(|keep| keep.upgrade().is_some());
    assert_eq!(kept, [true, false], "the first endpoint did not close, the second one did");
}

#[test]
fn a_message_longer_than_its_receive_is_an_error_and_writes_nothing_behind_it() {
    for release in ["RELEASE=0x1000e", "RELEASE=0x20006"] {
        let Some(library) = StandIn::new(&[release]) else { return };
        let found = library.found().unwrap();
        let mut pair = Pair::open([&found, &found]).unwrap();
        pair.fill(1, 0..4096, 1);
        pair.fill(0, 0..100, 2);
        let (from, into) = (pair.place(0, 0, 0..100), pair.place(1, 0, 0..60));
        let receive = pair.post(1, &into, false).unwrap();
        pair.post(0, &from, true).unwrap();
        let error = pair.finish(1, receive).unwrap_err();
        assert_eq!(error.message(), "libfabric (cxi, cxi0): a message is longer than its receive of 60 bytes, by 40");
        assert!(pair.holds(1, 0..60, 2));
        let (start, rest) = (pair.memory[1].at(60, 4036), pattern(1).skip(60).take(4036));
        // SAFETY: no request has these bytes any more.
        assert!(unsafe { std::slice::from_raw_parts(start.as_ptr(), 4036) }.iter().copied().eq(rest));
        // The other connections of the endpoint go on.
        pair.sent = 1;
        pair.exchange(&[40]).unwrap();
    }
}

#[test]
fn strangers_and_broken_handles_connect_to_nobody() {
    let Some(library) = StandIn::new(&[]) else { return };
    let found = library.found().unwrap();
    let mut ends = [NicEndpoint::open(&found).unwrap(), NicEndpoint::open(&found).unwrap()];
    let (listener, handle) = ends[1].listen().unwrap();
    let mut greeting = OfiGreeting::decode(handle.content()).unwrap();
    greeting.nonce ^= 1;
    let wrong = NicHandle::new(&greeting.encode().unwrap()).unwrap();
    // It has the number and not the nonce: the listener goes on waiting.
    until(&mut ends, |[end, _]| end.connect(&wrong)).unwrap();
    for _ in 0..10 {
        ends.iter_mut().for_each(|end| end.progress().unwrap());
        assert_eq!(ends[1].accept(listener).unwrap(), None);
    }
    until(&mut ends, |[end, _]| end.connect(&handle)).unwrap();
    until(&mut ends, |ends| {
        ends.iter_mut().try_for_each(NicEndpoint::progress)?;
        ends[1].accept(listener)
    })
    .unwrap();
    let broken = NicHandle::new(&handle.content()[..20]).unwrap();
    assert_eq!(ends[0].connect(&broken).unwrap_err().kind(), Kind::Remote);
    assert_eq!(library.state().0, None);
}

#[test]
fn a_greeting_that_cannot_be_posted_leaves_its_room_to_the_next_one() {
    let Some(library) = StandIn::new(&["FAIL_CALL=\"send\"", "FAIL_FOR=100"]) else { return };
    let found = library.found().unwrap();
    let mut ends = [NicEndpoint::open(&found).unwrap(), NicEndpoint::open(&found).unwrap()];
    let (_, handle) = ends[1].listen().unwrap();
    // Each room is a part of memory that is registered, which is an open object.
    let mut open = [0; 100].map(|_| {
        assert!(ends[0].connect(&handle).is_err());
        library.state().1
    });
    open.sort_unstable();
    assert_eq!(open[0], open[99], "objects that were open after each try");
    until(&mut ends, |[end, _]| end.connect(&handle)).unwrap();
    drop(ends);
    library.assert_clean("after endpoints of which one could not connect");
}

/// Sends to a listener of the stand-in what nobody has asked for, as any process that reaches its socket can.
fn greet(listener: &OfiGreeting, id: u64, content: &[u8]) {
    let path = CStr::from_bytes_until_nul(&listener.address).unwrap();
    let tag = 1 << 39 | u64::from(listener.number) << 16;
    let mut packet = Vec::new();
    packet.extend([tag, u64::try_from(content.len()).unwrap(), 0, id].map(u64::to_ne_bytes).as_flattened());
    // A sender without a name, and what is left of the last word.
    packet.extend([0; 108 + 4]);
    packet.extend(content);
    let socket = UnixDatagram::unbound().unwrap();
    socket.send_to(&packet, Path::new(std::ffi::OsStr::from_bytes(path.to_bytes()))).unwrap();
}

#[test]
fn a_listener_outlives_greetings_of_strangers() {
    let Some(library) = StandIn::new(&[]) else { return };
    let found = library.found().unwrap();
    let mut ends = [NicEndpoint::open(&found).unwrap(), NicEndpoint::open(&found).unwrap()];
    let (listener, handle) = ends[1].listen().unwrap();
    let own = OfiGreeting::decode(handle.content()).unwrap();
    // No greeting, a short one, one longer than its room, and one that has the nonce and no address.
    let nowhere = OfiGreeting { number: 5, address: vec![0; 256], ..own.clone() }.encode().unwrap();
    for (id, content) in (1..).zip([&[][..], &[7; 13], &[7; 400], &nowhere]) {
        greet(&own, id, content);
        for _ in 0..4 {
            ends[1].progress().unwrap();
            assert_eq!(ends[1].accept(listener).unwrap(), None, "{} bytes", content.len());
        }
    }
    until(&mut ends, |[end, _]| end.connect(&handle)).unwrap();
    until(&mut ends, |ends| {
        ends.iter_mut().try_for_each(NicEndpoint::progress)?;
        ends[1].accept(listener)
    })
    .unwrap();
    assert_eq!(library.state().0, None);
}

#[test]
fn an_address_that_a_provider_does_not_take_is_told_as_the_peer_s() {
    let Some(library) = StandIn::new(&[]) else { return };
    let found = library.found().unwrap();
    let mut end = NicEndpoint::open(&found).unwrap();
    let nowhere = OfiGreeting { nonce: 1, number: 5, address: vec![0; 256] }.encode().unwrap();
    let error = end.connect(&NicHandle::new(&nowhere).unwrap()).unwrap_err();
    assert_eq!(error.kind(), Kind::Remote);
    assert_eq!(error.message(), "libfabric (cxi, cxi0): fi_av_insert takes no address of these 256 bytes");
}

#[test]
fn a_peer_that_cannot_be_greeted_is_told_with_the_cause() {
    let Some(library) = StandIn::new(&[]) else { return };
    let found = library.found().unwrap();
    let mut ends = [NicEndpoint::open(&found).unwrap(), NicEndpoint::open(&found).unwrap()];
    let (_, handle) = ends[1].listen().unwrap();
    drop(std::mem::replace(&mut ends[1], NicEndpoint::open(&found).unwrap()));
    let connection = until(&mut ends, |[end, _]| end.connect(&handle)).unwrap();
    ends[0].progress().unwrap();
    let memory = HostMemory.allocate_for_nic(4096).unwrap();
    let region = ends[0].register(memory).unwrap();
    let place = MessagePlace { connection, number: MessageNumber::of(0), region, range: 0..8 };
    let error = ends[0].send(place).unwrap_err();
    assert_eq!(error.kind(), Kind::Remote);
    let told = "the first message of a connection could not be sent: libfabric (cxi, cxi0): ";
    assert!(error.message().starts_with(told), "{error}");
    assert!(error.message().ends_with(": the stand-in's own words"), "{error}");
}

#[test]
fn whoever_waits_sleeps_on_the_descriptor_or_polls() {
    let Some(library) = StandIn::new(&["DESCRIPTOR=1"]) else { return };
    let found = library.found().unwrap();
    let mut pair = Pair::open([&found, &found]).unwrap();
    pair.exchange(&LENGTHS).unwrap();
    let into = pair.place(1, pair.sent, 0..8);
    let request = pair.post(1, &into, false).unwrap();
    let sleeps = |end: &mut NicEndpoint, timeout: Duration| match end.sleep().unwrap() {
        NicSleep::On(descriptor) => poller::ready(&[(descriptor, Interest::Read)], timeout).unwrap()[0],
        other => panic!("{other:?}"),
    };
    assert!(!sleeps(&mut pair.ends[1], Duration::ZERO), "nothing has come");
    let from = pair.place(0, pair.sent, 8..16);
    let sent = pair.post(0, &from, true).unwrap();
    assert!(matches!(pair.ends[0].sleep().unwrap(), NicSleep::Ready), "a send has to be pushed");
    while pair.ends[0].test(sent).unwrap().is_none() {
        pair.ends[0].progress().unwrap();
    }
    assert!(sleeps(&mut pair.ends[1], PATIENCE), "a message wakes");
    assert_eq!(pair.finish(1, request).unwrap(), 8);
    drop(pair);
    let Some(library) = StandIn::new(&[]) else { return };
    let found = library.found().unwrap();
    let mut end = NicEndpoint::open(&found).unwrap();
    assert!(matches!(end.sleep().unwrap(), NicSleep::PollMe));
}

#[test]
fn the_signals_that_a_library_takes_are_given_back() {
    let Some(library) = StandIn::new(&["SIGNALS=1"]) else { return };
    // SIGHUP, INT, QUIT, ILL, ABRT, BUS, SEGV, TERM.
    let all = [1, 2, 3, 4, 6, 7, 11, 15];
    let before = all.map(signals::handler);
    let found = library.found().unwrap();
    assert_eq!(all.map(signals::handler), before);
    NicEndpoint::open(&found).unwrap();
    assert_eq!(all.map(signals::handler), before, "a provider takes another when it is opened");
}

#[test]
fn a_process_lists_once_and_again_where_nothing_would_do() {
    let Some(library) = StandIn::new(&["FAIL_CALL=\"getinfo\"", "FAIL_AT=2", "FAIL_CODE=EIO"]) else { return };
    library.found().unwrap();
    library.found().unwrap();
    let Some(useless) = StandIn::new(&["PROVIDER=\"shm\"", "FAIL_CALL=\"getinfo\"", "FAIL_AT=2", "FAIL_CODE=EIO"])
    else {
        return;
    };
    assert!(useless.found().unwrap_err().message().contains("has no NIC that will do"));
    assert_eq!(useless.found().unwrap_err().message(), "libfabric 2.6: fi_getinfo: Input/output error (5)");
}

#[test]
fn a_forked_child_does_not_use_the_library_of_its_parent() {
    let Some(library) = StandIn::new(&[]) else { return };
    library.found().unwrap();
    let is_refused = fork::in_child(|| {
        let error = library.found().err();
        let told = "libfabric is left to the process that has forked this one, which has loaded it or tried to";
        error.is_some_and(|error| error.message() == told)
    });
    assert!(is_refused);
    library.found().unwrap();
}

#[test]
fn a_library_that_is_missing_too_old_or_has_nothing_is_told() {
    let missing = found(Path::new("/no/such/libfabric.so.1")).unwrap_err();
    assert!(missing.message().starts_with("libfabric cannot be loaded: /no/such/libfabric.so.1: "), "{missing}");
    assert!(missing.message().ends_with("install it (Debian: libfabric1), or leave NCCL_NET out"), "{missing}");
    let Some(old) = StandIn::new(&["RELEASE=0x1000d"]) else { return };
    let old = old.found().unwrap_err();
    assert!(old.message().contains("it is libfabric 1.13, and 1.14 or later is needed"), "{old}");
    let Some(useless) = StandIn::new(&["PROVIDER=\"shm\""]) else { return };
    let useless = useless.found().unwrap_err();
    let told = "libfabric 2.6 has no NIC that will do: shm: shared memory leads to no other host";
    assert_eq!(useless.message(), told);
    let Some(greedy) = StandIn::new(&["MODES=0x284"]) else { return };
    let greedy = greedy.found().unwrap_err();
    let told = "libfabric 2.6 has no NIC that will do: it lists no provider that does what is needed";
    assert!(greedy.message().starts_with(told), "it asks of memory what nobody does here: {greedy}");
}
