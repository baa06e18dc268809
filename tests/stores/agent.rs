//! The further promises of `AgentStore`, against a server that can misbehave.

use std::net::TcpListener;
use std::time::Duration;

use rsccl::error::{Error, Kind};
use rsccl::internals::bootstrap::Root;
use rsccl::internals::bootstrap::store::AgentStore;
use rsccl::internals::sys::poller::pause;
use rsccl::store::{AbortFlag, HashStore, MAX_VALUE_BYTES, Store, Wait, share_id};
use rsccl::types::{Rank, World};

use super::agent_server::{ADD, Act, AgentServer, DELETE, GET, Manner, SET, VALIDATE, WAIT};
use crate::{loopback, open, options, shortly, soon};

const MANNERS: [Manner; 2] = [Manner::Libuv, Manner::Older];

/// The requests that torch 2.15's own client sends for these calls of a `PrefixStore("rsccl/run", TCPStore(..))`, as a
/// server of ours got them: set of `key` to `value`, get of `key` (which waits first), add of -2 to `n`, delete of
/// `key`. `torch.rs` compares
/// them with torch.
pub(crate) const REQUESTS: [&[u8]; 6] = [
    b"\x00\xce\xf7\x85\x3c",
    b"\x01\x0e\0\0\0\0\0\0\0/rsccl/run/key\x05\0\0\0\0\0\0\0value",
    b"\x06\x01\0\0\0\0\0\0\0\x0e\0\0\0\0\0\0\0/rsccl/run/key",
    b"\x03\x0e\0\0\0\0\0\0\0/rsccl/run/key",
    b"\x04\x0c\0\0\0\0\0\0\0/rsccl/run/n\xfe\xff\xff\xff\xff\xff\xff\xff",
    b"\x08\x0e\0\0\0\0\0\0\0/rsccl/run/key",
];

/// What follows VALIDATE and SET, so that an answer proves that they have come.
const DELETE_NOTHING: &[u8] = b"\x08\x0b\0\0\0\0\0\0\0/rsccl/run/";

#[test]
fn the_requests_are_those_of_torch() {
    let server = AgentServer::start(Manner::Libuv);
    let store = open(server.address());
    store.set("key", b"value", &soon()).unwrap();
    store.get("key", &soon()).unwrap();
    store.add("n", -2, &soon()).unwrap();
    store.delete("key", &soon()).unwrap();
    store.wait(&["n", "n"], &soon()).unwrap();
    let [validate, set, wait, get, add, delete] = REQUESTS;
    let two: &[u8] = b"\x06\x02\0\0\0\0\0\0\0\x0c\0\0\0\0\0\0\0/rsccl/run/n\x0c\0\0\0\0\0\0\0/rsccl/run/n";
    assert_eq!(server.seen(), [validate, DELETE_NOTHING, set, DELETE_NOTHING, wait, get, add, delete, two]);
}

#[test]
fn a_prefix_has_bounds() {
    let place = "127.0.0.1:1".parse().unwrap();
    for length in [0, 1025] {
        let error = AgentStore::open(&place, "p".repeat(length), &options()).unwrap_err();
        assert_eq!(error.kind(), Kind::InvalidArgument);
        assert!(error.message().contains(&format!("1 to 1024 bytes, got {length}")), "{error}");
    }
}

#[test]
fn a_wait_that_is_given_up_costs_its_connection_only() {
    let server = AgentServer::start(Manner::Libuv);
    let (ours, theirs) = (open(server.address()), open(server.address()));
    let error = ours.get("key", &Wait::new(Duration::from_millis(500), &AbortFlag::new())).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    let address = server.address();
    let words = format!(
        "timed out after 0.5 s: waited for the key 'key' of the store: the store of torchrun's agent at {address} is connected and \
         has no value there yet"
    );
    assert_eq!(error.message(), words);
    // Were the connection kept, the late answer to the first wait would be taken for that to the next request.
    theirs.set("key", b"late", &soon()).unwrap();
    assert_eq!(ours.add("n", 3, &soon()).unwrap(), 3);
    assert_eq!(ours.get("key", &soon()).unwrap(), b"late");
    assert_eq!(ours.peek("none", &soon()).unwrap(), None);
    assert_eq!(ours.get("key", &soon()).unwrap(), b"late");
    assert_eq!(server.connections(), 4, "one of theirs; one of ours, and one more after each wait given up");
}

#[test]
fn a_wait_ends_when_the_flag_is_raised() {
    let server = AgentServer::start(Manner::Libuv);
    let store = open(server.address());
    let abort = AbortFlag::new();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| store.get("never", &Wait::new(Duration::from_secs(600), &abort)));
        until(&server, WAIT, 1);
        abort.raise(Error::aborted("enough"));
        assert_eq!(waiting.join().unwrap().unwrap_err().kind(), Kind::Aborted);
    });
}

#[test]
fn a_server_that_comes_late_is_waited_for() {
    // A port that is free: it was just ours.
    let place = TcpListener::bind(loopback()).unwrap().local_addr().unwrap();
    let store = open(place);
    let error = store.add("n", 1, &shortly()).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    for words in [": add to 'n': the store of torchrun's agent at 127.0.0.1:", "tries): Connection refused"] {
        assert!(error.message().contains(words), "{error}");
    }
    std::thread::scope(|scope| {
        let added = scope.spawn(|| store.add("n", 1, &soon()));
        let _server = AgentServer::scripted(place, Manner::Libuv, |_| Act::Answer);
        assert_eq!(added.join().unwrap().unwrap(), 1);
    });
}

#[test]
fn an_idle_connection_that_the_server_closed_is_replaced() {
    let server = AgentServer::start(Manner::Libuv);
    let place = server.address();
    let store = open(place);
    assert_eq!(store.add("n", 1, &soon()).unwrap(), 1);
    drop(server);
    let _next = AgentServer::scripted(place, Manner::Libuv, |_| Act::Answer);
    assert_eq!(store.add("n", 1, &soon()).unwrap(), 1);
}

#[test]
fn a_key_that_is_deleted_between_wait_and_get_is_waited_for_again() {
    for manner in MANNERS {
        let mut gets = 0;
        let server = AgentServer::scripted(loopback(), manner, move |request| {
            gets += u32::from(request[0] == GET);
            match (request[0], gets, manner) {
                (GET, 1, Manner::Libuv) => Act::Say(vec![0; 8]),
                (GET, 1, Manner::Older) => Act::Close,
                _ => Act::Answer,
            }
        });
        let store = open(server.address());
        store.set("key", b"value", &soon()).unwrap();
        assert_eq!(store.get("key", &soon()).unwrap(), b"value");
        assert_eq!((0..100).find_map(|_| store.peek("key", &soon()).unwrap()).unwrap(), b"value");
    }
}

/// Waits until the server has got `count` requests with `command`.
fn until(server: &AgentServer, command: u8, count: usize) {
    let soon = soon();
    while server.seen().iter().filter(|request| request[0] == command).count() < count {
        soon.check(|| format!("{count} requests with command {command}")).unwrap();
        pause(Duration::from_millis(1));
    }
}

/// What `call` says of a server that does `act` to each request with `command`, once the connection stands.
fn misbehave(command: u8, act: &Act, call: impl Fn(&AgentStore) -> rsccl::Result<()>) -> Error {
    let mut greeted = 0;
    let act = act.clone();
    let server = AgentServer::scripted(loopback(), Manner::Libuv, move |request| {
        greeted = if request[0] == VALIDATE { 0 } else { greeted + 1 };
        if request[0] == command && greeted > 1 { act.clone() } else { Act::Answer }
    });
    let store = open(server.address());
    let other = open(server.address());
    other.set("key", b"value", &soon()).unwrap_or_else(|_| assert!(command == SET || command == DELETE));
    let error = call(&store).unwrap_err();
    assert!(error.kind() != Kind::Remote || error.message().contains(&server.address().to_string()), "{error}");
    error
}

#[test]
fn wrong_answers_are_errors_with_names() {
    let number = |number: u64| Act::Say(number.to_le_bytes().to_vec());
    let get = |store: &AgentStore| store.get("key", &soon()).map(drop);
    let peek = |store: &AgentStore| (0..100).try_for_each(|_| store.peek("key", &soon()).map(drop));
    let most = MAX_VALUE_BYTES as u64;
    for (command, act, words) in [
        (WAIT, Act::Say(vec![7]), "answered WAIT with 7, where 0 and 1 are allowed"),
        (WAIT, Act::Say(vec![1]), "cancelled a wait"),
        (WAIT, Act::Close, "closed the connection"),
        (GET, number(most + 1), "announced a value of 1048577 bytes, where at most 1048576 are allowed"),
        (GET, number(u64::MAX), "announced a value of 18446744073709551615 bytes"),
        (GET, Act::Close, "closed the connection"),
    ] {
        for error in [misbehave(command, &act, get), misbehave(command, &act, peek)] {
            assert_eq!(error.kind(), Kind::Remote, "{command} {act:?}");
            assert!(error.message().contains(words), "{error}");
        }
    }
    let add = |store: &AgentStore| store.add("n", 1, &soon()).map(drop);
    let set = |store: &AgentStore| store.set("n", b"", &soon());
    let delete = |store: &AgentStore| store.delete("n", &soon()).map(drop);
    assert!(misbehave(ADD, &Act::Close, add).message().contains("closed the connection"));
    assert!(misbehave(SET, &Act::Close, set).message().contains("closed the connection"));
    assert!(misbehave(DELETE, &number(1), set).message().contains("that is never there with 1"));
    assert!(misbehave(DELETE, &number(2), delete).message().contains("DELETE with 2, where 0 and 1 are allowed"));
    assert_eq!(misbehave(ADD, &number(1 << 63), add).kind(), Kind::InvalidUsage);
}

#[test]
fn an_answer_that_breaks_off_ends_by_the_deadline() {
    let short = |store: &AgentStore| store.get("key", &shortly()).map(drop);
    for (command, act) in [
        (GET, Act::Silence),
        (GET, Act::Say(vec![5, 0])),
        (GET, Act::Say(b"\x05\0\0\0\0\0\0\0val".to_vec())),
        (WAIT, Act::Silence),
    ] {
        let error = misbehave(command, &act, short);
        assert_eq!(error.kind(), Kind::Timeout, "{act:?}");
        assert!(error.message().contains("waited for the key 'key'"), "{error}");
    }
    let add = |store: &AgentStore| store.add("n", 1, &shortly()).map(drop);
    let error = misbehave(ADD, &Act::Say(vec![0; 7]), add);
    assert!(error.message().contains("is connected and did not answer"), "{error}");
}

#[test]
fn a_server_of_another_kind_is_told_from_the_store() {
    let strange = |act: Act| {
        let server = AgentServer::scripted(loopback(), Manner::Libuv, move |_| act.clone());
        let error = open(server.address()).add("n", 1, &soon()).unwrap_err();
        assert!(error.message().contains("is not torchrun's store (PyTorch's TCPStore)"), "{error}");
        assert_eq!(error.kind(), Kind::Remote);
        assert!(!server.seen().iter().any(|request| request[0] == ADD));
        (error, server.connections())
    };
    let (error, connections) = strange(Act::Close);
    assert!(error.message().contains("it closed 5 connections before it answered"), "{error}");
    assert_eq!(connections, 5);
    let (error, connections) = strange(Act::Say(b"HTTP/1.1 400 Bad Request\r\n".to_vec()));
    assert!(error.message().contains("its first answer is 'HTTP/1.1'"), "{error}");
    assert_eq!(connections, 1);
}

#[test]
fn a_server_that_is_mute_ends_by_the_deadline() {
    let server = AgentServer::scripted(loopback(), Manner::Libuv, |_| Act::Silence);
    // One that does not even accept: the kernel makes the connection.
    let stopped = TcpListener::bind(loopback()).unwrap();
    for place in [server.address(), stopped.local_addr().unwrap()] {
        let store = open(place);
        for error in [store.set("n", b"", &shortly()).unwrap_err(), store.peek("n", &shortly()).unwrap_err()] {
            assert_eq!(error.kind(), Kind::Timeout);
            assert!(error.message().contains(&format!("{place} is connected and did not answer")), "{error}");
        }
    }
}

fn member(rank: u32, size: u32) -> World {
    World { rank: Rank::new(rank), size }
}

/// The record of an id whose writer has ended, as an earlier round of the job has left it.
fn of_a_dead_writer() -> Vec<u8> {
    let (store, shortly) = (HashStore::new(), shortly());
    let make = || Ok(Root::serve(&options())?.0);
    share_id(&store, "id", member(0, 2), make, &shortly).unwrap();
    let mut record = store.get("id", &soon()).unwrap();
    // A mark, a number, two texts with their lengths, the number of the process; then when it started.
    let skip = |at: usize| at + 4 + u32::from_le_bytes(record[at..at + 4].try_into().unwrap()) as usize;
    let started = skip(skip(16)) + 4;
    record[started] ^= 1;
    record
}

#[test]
fn what_an_earlier_round_of_the_job_left_is_not_believed() {
    for manner in MANNERS {
        let server = AgentServer::start(manner);
        let place = server.address();
        open(place).set("id", &of_a_dead_writer(), &soon()).unwrap();
        open(place).add("id/claims", 1, &soon()).unwrap();
        let (id, _root) = Root::serve(&options()).unwrap();
        let ids: Vec<_> = std::thread::scope(|scope| {
            let share = |rank: u32| {
                let made = move || if rank == 0 { Ok(id) } else { unreachable!() };
                share_id(&open(place), "id", member(rank, 3), made, &soon()).unwrap()
            };
            let others: Vec<_> = (1..3).map(|rank| scope.spawn(move || share(rank))).collect();
            // Rank 0 comes when the others have seen the old record.
            until(&server, GET, 2);
            let first = share(0);
            others.into_iter().map(|other| other.join().unwrap()).chain([first]).collect()
        });
        assert_eq!(ids, [id; 3], "{manner:?}");
        for key in ["id", "id/claims"] {
            assert_eq!(open(place).peek(key, &soon()).unwrap(), None);
        }
    }
}

/// A round that was killed before rank 0 wrote its record leaves only the claim: the next rank 0 looks for a record,
/// finds none and writes its own.
#[test]
fn a_claim_without_a_record_holds_nobody_up() {
    let server = AgentServer::start(Manner::Libuv);
    let store = open(server.address());
    store.add("id/claims", 1, &soon()).unwrap();
    let (id, _root) = Root::serve(&options()).unwrap();
    assert_eq!(share_id(&store, "id", member(0, 2), || Ok(id), &soon()).unwrap(), id);
    assert_eq!(share_id(&store, "id", member(1, 2), || unreachable!(), &soon()).unwrap(), id);
}
