//! Strangers connect to every listener of a job: they send random bytes, stay silent, or close at once. The job runs
//! on.

use std::collections::HashSet;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::sync::atomic::{AtomicBool, Ordering};

use rsccl::internals::sys::random;

use crate::{NET, SHM, with};
use testing::ranks::{Job, Rank, until};

#[test]
fn strangers_at_the_data_ports_do_no_harm() {
    // What is for data comes to the port at which ranks meet.
    flooded(NET, "all_reduce:Ring", (3, 1));
}

#[test]
fn strangers_at_the_shared_memory_sockets_do_no_harm() {
    // The first rank makes the memory of all of them, and hands it out.
    flooded(SHM, "", (1, 2));
}

/// Floods all listeners of the ranks while they set connections up: before the last rank comes, when `opened` of the
/// others have `listeners` each, and while it comes.
fn flooded(transport: &[(&str, &str)], algorithm: &str, (opened, listeners): (usize, usize)) {
    let path: &[(&str, &str)] = if algorithm.is_empty() { &[] } else { &[("NCCL_ALGO", algorithm)] };
    let mut job = Job::start(4, &with(transport, path));
    let before = job.holdings();
    job.join();
    job.begin("call all_reduce 100000", |rank| rank != 3);
    // Ranks open their listeners when they first need them.
    until("the listeners are open", || job.others(3).filter(|rank| doors(rank).len() >= listeners).count() >= opened);
    let doors: Vec<Door> = job.ranks.iter().flat_map(doors).collect();
    let mut silent = Vec::new();
    for door in &doors {
        for turn in 0..STRANGERS {
            silent.extend(disturb(door, turn));
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = std::collections::VecDeque::new();
            for turn in 0.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                for door in &doors {
                    held.extend(disturb(door, turn));
                    if held.len() > HELD {
                        held.pop_front();
                    }
                }
            }
        });
        let answered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            job.begin("call all_reduce 100000", |rank| rank == 3);
            for rank in &job.ranks {
                rank.success("all_reduce");
            }
            job.must("call sendrecv 1000");
            job.must("call barrier 0");
        }));
        stop.store(true, Ordering::Relaxed);
        if let Err(panic) = answered {
            std::panic::resume_unwind(panic);
        }
    });
    drop(silent);
    job.must_leave_nothing(&before);
}

/// Where a rank listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Door {
    Port(u16),
    Name(Vec<u8>),
}

/// A connection that a stranger holds open.
enum Held {
    Tcp(#[expect(dead_code, reason = "it is held, not used")] TcpStream),
    Unix(#[expect(dead_code, reason = "it is held, not used")] UnixStream),
}

/// One stranger: it stays silent, or sends random bytes and then stays or closes.
fn disturb(door: &Door, turn: usize) -> Option<Held> {
    let noise = random::bytes::<100>().unwrap();
    let said = match turn % 3 {
        0 => &noise[..0],
        1 => &noise[..1],
        _ => &noise[..],
    };
    let held = match door {
        Door::Port(port) => {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            // The listener may refuse, since it may have closed by now.
            let mut stream = TcpStream::connect(address).ok()?;
            stream.write_all(said).ok()?;
            Held::Tcp(stream)
        }
        Door::Name(name) => {
            let mut stream = UnixStream::connect_addr(&UnixAddress::from_abstract_name(name).unwrap()).ok()?;
            stream.set_nonblocking(true).unwrap();
            stream.write_all(said).ok()?;
            Held::Unix(stream)
        }
    };
    turn.is_multiple_of(2).then_some(held)
}

/// The ports at which a process listens.
pub(super) fn ports(rank: &Rank) -> Vec<u16> {
    let port = |door| match door {
        Door::Port(port) => Some(port),
        Door::Name(_) => None,
    };
    doors(rank).into_iter().filter_map(port).collect()
}

/// The listeners among a process's open files.
fn doors(rank: &Rank) -> Vec<Door> {
    let open: HashSet<String> = rank.open_files().into_iter().collect();
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/net/{name}", rank.process())).unwrap();
    let is_ours = |inode: &str| open.contains(&format!("socket:[{inode}]"));
    let mut doors = Vec::new();
    for line in read("tcp").lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words[3] == LISTENING && is_ours(words[9]) {
            let port = words[1].split_once(':').expect("address:port").1;
            doors.push(Door::Port(u16::from_str_radix(port, 16).unwrap()));
        }
    }
    for line in read("unix").lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (accepts, inode) = (words[3] == ACCEPTS, words[6]);
        if let Some(name) = words.get(7).and_then(|name| name.strip_prefix('@')).filter(|_| accepts && is_ours(inode)) {
            doors.push(Door::Name(name.as_bytes().to_vec()));
        }
    }
    doors
}

/// The state in `/proc/net/tcp`.
const LISTENING: &str = "0A";
/// The flag in `/proc/net/unix`.
const ACCEPTS: &str = "00010000";
/// Strangers that connect to each listener before the last rank joins.
const STRANGERS: usize = 600;
/// Connections that the later strangers keep open.
const HELD: usize = 2000;
