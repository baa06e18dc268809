//! The contract of `Store`, which all stores keep, and the further promises of each.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod stores {
    mod agent;
    pub(crate) mod agent_server;
    mod torch;
}

use std::any::Any;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::sync::Barrier;
use std::time::Duration;

use rsccl::config::Encryption;
use rsccl::error::{Error, Kind};
use rsccl::internals::bootstrap::store::AgentStore;
use rsccl::internals::bootstrap::{Options, UniqueId};
use rsccl::store::{AbortFlag, Wait};
use rsccl::store::{FileStore, HashStore, IdCounter, MAX_VALUE_BYTES, Store, StoreConfig, TcpStore, share_id};
use rsccl::types::{Rank, World};
use rsccl::{Communicator, Config, Result};
use stores::agent_server::{AgentServer, Manner};

fn soon() -> Wait {
    Wait::new(Duration::from_secs(30), &AbortFlag::new())
}

fn shortly() -> Wait {
    Wait::new(Duration::from_millis(100), &AbortFlag::new())
}

fn options() -> Options {
    Options { interfaces: "=lo".parse().unwrap(), retry_sleep: Duration::from_millis(10), ..Options::default() }
}

fn config() -> StoreConfig {
    let config = StoreConfig::default().with_retries(34, Duration::from_millis(10));
    config.with_secret(b"a secret of the test").unwrap()
}

fn loopback() -> std::net::SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A store's name, several handles of it, and the folder that it lies in or the server that has it.
type Doors = (&'static str, Vec<Box<dyn Store>>, Box<dyn Any>);

fn open(address: std::net::SocketAddr) -> AgentStore {
    AgentStore::open(&address.to_string().parse().unwrap(), "rsccl/run".to_owned(), &options()).unwrap()
}

/// `count` handles of one store of each kind.
fn stores(count: usize) -> Vec<Doors> {
    let hash = HashStore::new();
    let hash = (0..count).map(|_| Box::new(hash.clone()) as Box<dyn Store>).collect();
    let folder = tempfile::tempdir().unwrap();
    let file =
        (0..count).map(|_| Box::new(FileStore::open(folder.path().join("store"), &soon()).unwrap()) as Box<dyn Store>);
    let file = file.collect();
    let server = TcpStore::serve(loopback(), &config()).unwrap();
    let place = server.address().unwrap().to_string();
    let mut tcp: Vec<Box<dyn Store>> = vec![Box::new(server)];
    tcp.extend((1..count).map(|_| Box::new(TcpStore::connect(&place, &config()).unwrap()) as Box<dyn Store>));
    let mut all: Vec<Doors> =
        vec![("hash", hash, Box::new(())), ("file", file, Box::new(folder)), ("tcp", tcp, Box::new(()))];
    for (name, manner) in [("agent, libuv", Manner::Libuv), ("agent, older", Manner::Older)] {
        let server = AgentServer::start(manner);
        let doors = (0..count).map(|_| Box::new(open(server.address())) as Box<dyn Store>).collect();
        all.push((name, doors, Box::new(server)));
    }
    all
}

#[test]
fn values_are_set_replaced_added_to_and_deleted() {
    for (name, doors, _place) in stores(2) {
        let (a, b) = (&doors[0], &doors[1]);
        a.set("key", b"one", &soon()).unwrap();
        assert_eq!(b.get("key", &soon()).unwrap(), b"one", "{name}");
        b.set("key", b"", &soon()).unwrap();
        assert_eq!(a.get("key", &soon()).unwrap(), b"");
        assert_eq!((a.add("n", 5, &soon()).unwrap(), b.add("n", -7, &soon()).unwrap()), (5, -2));
        assert_eq!(a.get("n", &soon()).unwrap(), b"-2");
        assert!(a.delete("key", &soon()).unwrap() && !b.delete("key", &soon()).unwrap());
        let strange = "a/b\\../\0é\n".to_string() + &"x".repeat(200);
        a.set(&strange, &vec![7; MAX_VALUE_BYTES], &soon()).unwrap();
        assert_eq!(b.get(&strange, &soon()).unwrap(), vec![7; MAX_VALUE_BYTES]);
        // The agent does not say why it closes the connection.
        let refused = if name.starts_with("agent") { Kind::Remote } else { Kind::InvalidUsage };
        assert_eq!(a.add(&strange, 1, &soon()).unwrap_err().kind(), refused, "{name}");
        assert_eq!(a.add("least", i64::MIN, &soon()).unwrap(), i64::MIN);
        assert_eq!(a.add("least", -1, &soon()).unwrap_err().kind(), Kind::InvalidUsage);
        // The store is as good as before after an error.
        assert_eq!(a.add("n", 2, &soon()).unwrap(), 0);
    }
}

#[test]
fn bounds_are_errors_of_the_caller() {
    for (name, doors, _place) in stores(1) {
        let store = &doors[0];
        let kind = |outcome: Result<()>| outcome.unwrap_err().kind();
        assert_eq!(kind(store.set("", b"", &soon())), Kind::InvalidArgument, "{name}");
        assert_eq!(kind(store.set(&"k".repeat(257), b"", &soon())), Kind::InvalidArgument);
        assert_eq!(kind(store.set("k", &vec![0; MAX_VALUE_BYTES + 1], &soon())), Kind::InvalidArgument);
        assert_eq!(kind(store.wait(&["k"; 1025], &soon())), Kind::InvalidArgument);
        store.wait(&[], &soon()).unwrap();
    }
}

#[test]
fn a_get_waits_for_the_value_and_ends_by_deadline_and_abort() {
    for (name, doors, _place) in stores(2) {
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                doors[1].wait(&["a", "b"], &soon()).unwrap();
                doors[1].get("c", &soon()).unwrap()
            });
            for key in ["b", "a", "c"] {
                doors[0].set(key, key.as_bytes(), &soon()).unwrap();
            }
            assert_eq!(waiting.join().unwrap(), b"c", "{name}");
        });
        let error = doors[0].get("never", &shortly()).unwrap_err();
        assert_eq!(error.kind(), Kind::Timeout);
        assert!(error.to_string().contains("'never'"), "{error}");
        assert_eq!(doors[0].wait(&["a", "never"], &shortly()).unwrap_err().kind(), Kind::Timeout);
        let abort = AbortFlag::new();
        abort.raise(Error::aborted("enough"));
        let aborted = Wait::new(Duration::from_secs(60), &abort);
        assert_eq!(doors[0].get("never", &aborted).unwrap_err().kind(), Kind::Aborted);
        // What was given up does not disturb what follows.
        doors[1].set("never", b"late", &soon()).unwrap();
        assert_eq!(doors[0].get("a", &soon()).unwrap(), b"a");
        assert_eq!(doors[0].get("never", &soon()).unwrap(), b"late");
    }
}

#[test]
fn a_peek_finds_a_value_that_is_there_and_does_not_wait_for_another() {
    for (name, doors, _place) in stores(2) {
        assert_eq!(doors[0].peek("key", &soon()).unwrap(), None, "{name}");
        for value in [&b"value"[..], b""] {
            doors[1].set("key", value, &soon()).unwrap();
            // A store behind a connection may need another look on a busy machine.
            let found = (0..100).find_map(|_| doors[0].peek("key", &soon()).unwrap());
            assert_eq!(found, Some(value.to_vec()), "{name}");
        }
    }
}

#[test]
fn adding_is_atomic() {
    for (name, doors, _place) in stores(4) {
        std::thread::scope(|scope| {
            for door in &doors {
                scope.spawn(move || (0..25).for_each(|_| assert!(door.add("n", 1, &soon()).unwrap() <= 100)));
            }
        });
        assert_eq!(doors[0].add("n", 0, &soon()).unwrap(), 100, "{name}");
    }
}

#[test]
fn an_id_is_shared_under_a_counter_and_removed_when_all_have_it() {
    for (name, doors, _place) in stores(3) {
        let ids: Vec<Vec<UniqueId>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3u32)
                .zip(&doors)
                .map(|(rank, door)| {
                    scope.spawn(move || {
                        let members = World { rank: Rank::new(rank), size: 3 };
                        let counter = IdCounter::new("ids");
                        let make = || UniqueId::generate(&options());
                        (0..3).map(|_| counter.share(&**door, members, make, &soon()).unwrap()).collect()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|of_rank| *of_rank == ids[0]), "{name}");
        assert!(ids[0][0] != ids[0][1] && ids[0][1] != ids[0][2]);
        for key in ["ids/0", "ids/1", "ids/2", "ids/2/claims"] {
            assert_eq!(doors[0].get(key, &shortly()).unwrap_err().kind(), Kind::Timeout, "{key}");
        }
    }
}

#[test]
fn rank_zero_failing_to_make_an_id_fails_everyone_with_its_reason() {
    let store = HashStore::new();
    let members = |rank| World { rank: Rank::new(rank), size: 2 };
    let make = || Err(Error::invalid_usage("no usable network interface"));
    let (first, second) = std::thread::scope(|scope| {
        let second = scope.spawn(|| share_id(&store, "id", members(1), || unreachable!(), &soon()).unwrap_err());
        (share_id(&store, "id", members(0), make, &soon()).unwrap_err(), second.join().unwrap())
    });
    assert_eq!(first.kind(), Kind::InvalidUsage);
    assert_eq!(second.kind(), Kind::Remote);
    assert!(second.to_string().contains("no usable network interface"), "{second}");
    store.set("bad", b"no id", &soon()).unwrap();
    let third = share_id(&store, "bad", members(1), || unreachable!(), &soon()).unwrap_err();
    assert_eq!(third.kind(), Kind::InvalidArgument);
}

#[test]
fn a_file_store_is_private_and_survives_a_kill_in_the_middle() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let store = FileStore::open(&path, &soon()).unwrap();
    store.set("key", b"value", &soon()).unwrap();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    for entry in path.read_dir().unwrap() {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    // A process that was killed while it wrote leaves this.
    std::fs::write(path.join("new-0123456789abcdef"), b"half of").unwrap();
    let again = FileStore::open(&path, &soon()).unwrap();
    assert_eq!(again.get("key", &soon()).unwrap(), b"value");
    assert_eq!(path.read_dir().unwrap().count(), 2, "the value and the lock");
    // A value that something else has spoilt is an error that names the file.
    let value =
        path.read_dir().unwrap().map(|entry| entry.unwrap().path()).find(|path| !path.ends_with("lock")).unwrap();
    std::fs::write(&value, b"garbage").unwrap();
    let error = again.get("key", &soon()).unwrap_err().to_string();
    assert!(error.contains(value.to_str().unwrap()), "{error}");
    // A lock that somebody holds is waited for, by the deadline.
    let lock = std::fs::File::open(path.join("lock")).unwrap();
    lock.lock().unwrap();
    assert_eq!(again.set("key", b"x", &shortly()).unwrap_err().kind(), Kind::Timeout);
    drop(lock);
    again.set("key", b"x", &soon()).unwrap();
    std::fs::remove_file(path.join("lock")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(path.join("lock")).status().unwrap();
    let error = FileStore::open(&path, &soon()).unwrap_err().to_string();
    assert!(made.success() && error.contains("lock is no regular file"), "{error}");
    // What to do is never a change of the mode: the folder may be `/tmp`, the file one of the system's.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o1777)).unwrap();
    let error = FileStore::open(&path, &soon()).unwrap_err().to_string();
    assert!(error.contains("its mode is 1777") && error.contains("name a folder that is not there yet"), "{error}");
    let error = FileStore::open(value, &soon()).unwrap_err().to_string();
    assert!(error.contains("is no folder") && !error.contains("chmod"), "{error}");
}

#[test]
fn a_tcp_store_keeps_strangers_out_and_outlives_its_clients() {
    let server = TcpStore::serve(loopback(), &config()).unwrap();
    let place = server.address().unwrap().to_string();
    server.set("key", b"value", &soon()).unwrap();
    let stranger = TcpStore::connect(&place, &config().with_secret(b"another secret").unwrap()).unwrap();
    let error = stranger.get("key", &soon()).unwrap_err();
    assert_eq!(error.kind(), Kind::Remote);
    assert!(error.to_string().contains("rejected this rank"), "{error}");
    assert!(
        error.to_string().contains("is RSCCL_SECRET or the version of rsccl not the same on all ranks?"),
        "{error}"
    );
    let place_of_all = server.listens_at().unwrap();
    assert!(place_of_all.contains("from 127.0.0.1, did not prove the secret"), "{place_of_all}");
    drop(TcpStore::connect(&place, &config()).unwrap());
    let client = TcpStore::connect(&place, &config()).unwrap();
    assert_eq!(client.get("key", &soon()).unwrap(), b"value");
    drop(server);
    let error = client.get("key", &soon()).unwrap_err();
    assert!(error.to_string().contains("the store at 127.0.0.1"), "{error}");
    let patient = config().with_retries(2, Duration::from_millis(10));
    let late = TcpStore::connect(&place, &patient).unwrap();
    let error = late.get("key", &soon()).unwrap_err();
    assert_eq!(error.kind(), Kind::Timeout);
    assert!(error.to_string().contains("cannot be reached in 3 tries"), "{error}");
}

/// A file with these bytes and this mode.
fn secret_file(folder: &std::path::Path, (name, bytes): (&str, &[u8]), mode: u32) -> std::path::PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

#[test]
fn a_tcp_store_takes_its_secret_from_a_file_that_only_its_owner_can_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8], mode: u32| secret_file(folder.path(), (name, bytes), mode);
    let refused = |path: &std::path::Path| StoreConfig::default().with_secret_file(path).unwrap_err();
    let absent = refused(&folder.path().join("absent"));
    assert!(absent.kind() == Kind::System && absent.to_string().contains("absent"), "{absent}");
    for mode in [0o640, 0o604] {
        let open = refused(&file("open", b"a secret of the test", mode));
        assert!(open.kind() == Kind::InvalidArgument && open.to_string().contains("chmod 600"), "{open}");
    }
    for (name, length) in [("empty", 0), ("long", 4097)] {
        assert_eq!(refused(&file(name, &vec![b'x'; length], 0o600)).kind(), Kind::InvalidArgument, "{name}");
    }
    // The newline that an editor leaves is no part of it: this is the secret of `config`.
    let server = TcpStore::serve(loopback(), &config()).unwrap();
    let place = server.address().unwrap().to_string();
    server.set("key", b"value", &soon()).unwrap();
    let by = |path: std::path::PathBuf| TcpStore::connect(&place, &config().with_secret_file(path).unwrap()).unwrap();
    assert_eq!(by(file("same", b"a secret of the test\n", 0o600)).get("key", &soon()).unwrap(), b"value");
    let error = by(file("other", b"a secret of another test", 0o600)).get("key", &soon()).unwrap_err();
    assert!(error.kind() == Kind::Remote && error.to_string().contains("rejected this rank"), "{error}");
}

#[test]
fn a_tcp_store_refuses_processes_of_another_job_by_its_name() {
    let of_job = |name: &str, key: &str| config().with_job(name, key);
    let server = TcpStore::serve(loopback(), &of_job("night run", "7 of group 2")).unwrap();
    let place = server.address().unwrap().to_string();
    server.set("key", b"value", &soon()).unwrap();
    let get = |config: &StoreConfig| TcpStore::connect(&place, config).unwrap().get("key", &soon());
    // The key tells jobs apart, and the name does not; who says nothing of its job is let in.
    for friend in [of_job("night run", "7 of group 2"), of_job("by another name", "7 of group 2"), config()] {
        assert_eq!(get(&friend).unwrap(), b"value");
    }
    let error = get(&of_job("night run", "8 of group 2").with_retries(0, Duration::ZERO)).unwrap_err();
    assert!(error.to_string().contains("night run"), "{error}");
    // And a store of no job lets every job in.
    let server = TcpStore::serve(loopback(), &config()).unwrap();
    let place = server.address().unwrap().to_string();
    let client = TcpStore::connect(&place, &of_job("day run", "1")).unwrap();
    client.set("key", b"value", &soon()).unwrap();
    assert_eq!(server.get("key", &soon()).unwrap(), b"value");
}

/// Hands on all that one end says to the other, and yields it.
fn overhear(mut from: TcpStream, mut to: TcpStream) -> Vec<u8> {
    let (mut all, mut bytes) = (Vec::new(), [0; 4096]);
    from.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        all.extend_from_slice(&bytes[..count]);
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // Either may have left.
    let _ = to.shutdown(Shutdown::Both);
    all
}

/// What goes over the network between a client and the store at `place`, while `talk` has that client.
fn overheard(place: SocketAddr, config: &StoreConfig, talk: impl FnOnce(TcpStore)) -> Vec<u8> {
    let listener = TcpListener::bind(loopback()).unwrap();
    let client = TcpStore::connect(&listener.local_addr().unwrap().to_string(), config).unwrap();
    std::thread::scope(|scope| {
        let between = scope.spawn(|| {
            let (near, far) = (listener.accept().unwrap().0, TcpStream::connect(place).unwrap());
            let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let back = scope.spawn(move || overhear(far_too, near_too));
            let there = overhear(near, far);
            [there, back.join().unwrap()].concat()
        });
        talk(client);
        between.join().unwrap()
    })
}

#[test]
fn a_tcp_store_is_encrypted_where_its_client_asks() {
    let server = TcpStore::serve(loopback(), &config()).unwrap();
    for encrypt in [Encryption::Off, Encryption::On, Encryption::ChaCha20] {
        let config = match config().with_encrypt(encrypt) {
            Ok(config) => config,
            Err(error) => {
                assert!(!cfg!(feature = "encrypt") && encrypt != Encryption::Off, "{error}");
                assert!(error.kind() == Kind::InvalidUsage && error.to_string().contains("`encrypt`"), "{error}");
                continue;
            }
        };
        let words: [&[u8]; 2] = [b"said by the client", b"said by the store"];
        server.set("back", words[1], &soon()).unwrap();
        let heard = overheard(server.address().unwrap(), &config, |client| {
            client.set("there", words[0], &soon()).unwrap();
            assert_eq!(client.get("back", &soon()).unwrap(), words[1]);
        });
        assert_eq!(server.get("there", &soon()).unwrap(), words[0]);
        assert!(server.delete("there", &soon()).unwrap() && !heard.is_empty());
        for words in words {
            let is_heard = heard.windows(words.len()).any(|part| part == words);
            assert_eq!(is_heard, encrypt == Encryption::Off, "{encrypt:?}");
        }
    }
}

#[test]
fn a_client_may_come_before_the_server() {
    // A port that is free: it was just ours.
    let place = TcpStore::serve(loopback(), &config()).unwrap().address().unwrap();
    let client = TcpStore::connect(&place.to_string(), &config()).unwrap();
    std::thread::scope(|scope| {
        let got = scope.spawn(|| client.get("key", &soon()));
        let server = TcpStore::serve(place, &config()).unwrap();
        server.set("key", b"value", &soon()).unwrap();
        assert_eq!(got.join().unwrap().unwrap(), b"value");
    });
}

/// Regression: a retry under the same key was told at once how the first try had failed, and so missed the others.
#[test]
fn ranks_that_try_again_under_the_same_key_meet() {
    let within = |milliseconds| {
        Config::default().with_socket_interfaces("lo").with_init_timeout(Duration::from_millis(milliseconds))
    };
    let (soon, long) = (within(600), within(60_000));
    for (name, doors, _place) in stores(3) {
        let come = |rank: u32, config: &Config| {
            let members = World { rank: Rank::new(rank), size: 3 };
            let make = || Communicator::unique_id(config);
            let wait = Wait::new(config.init_timeout, &AbortFlag::new());
            let id = share_id(&*doors[usize::try_from(rank).unwrap()], "again", members, make, &wait)?;
            Communicator::init(&id, rank, 3, config)
        };
        let (come, soon, long) = (&come, &soon, &long);
        let first: Vec<Error> = std::thread::scope(|scope| {
            let first = [0, 1].map(|rank| scope.spawn(move || come(rank, soon).map(drop).unwrap_err()));
            first.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(first.iter().all(|error| error.kind() == Kind::Timeout), "{name}: {first:?}");
        std::thread::scope(|scope| {
            // These two begin before rank 0 does.
            let others = [1, 2].map(|rank| {
                let began = std::sync::Arc::new(Barrier::new(2));
                let begin = std::sync::Arc::clone(&began);
                let thread = scope.spawn(move || {
                    begin.wait();
                    come(rank, long)?.barrier()
                });
                began.wait();
                thread
            });
            let root = come(0, long).and_then(|comm| comm.barrier());
            for end in others.map(|thread| thread.join().unwrap()).into_iter().chain([root]) {
                end.unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        });
    }
}
