//! Several hosts, made of network namespaces: `mpirun` starts ranks on each by an agent in place of ssh. Needs root and
//! `ip`; prints `skipped` where they are missing.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::topology::Color;
use ::mpi::topology::Communicator as _;
use ::mpi::traits::*;
use rsccl::mpi::{abort, communicator, placement};
use rsccl::{Communicator, Config, ReduceOp};

use crate::topics::goods::must_be;
use crate::{Act, begin};
use testing::mpi_rank::Rank;
use testing::mpirun::{Family, LIMIT, Launcher, Plan, until};
use testing::network::Network;
use testing::verify::Program;
use testing::worker::checked_call;

pub(crate) const ACTS: &[Act] = &[("hosts", hosts), ("cut", cut), ("meet_beside", meet_beside)];

/// Two ranks on each of three hosts: who is where, over what they talk, and that everything works.
fn hosts(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let world = universe.world();
    let comm = communicator(&world, &Config::default()).unwrap();
    let place = placement(&comm, &world).unwrap();
    rank.say(&format!("placed {place}"));
    // As MPI tells it, rank by rank.
    let name = ::mpi::environment::processor_name().unwrap();
    assert_eq!(place.host_name, name);
    let mut mine = [0u8; 64];
    mine[..name.len()].copy_from_slice(name.as_bytes());
    let mut names = vec![0u8; mine.len() * rank.size as usize];
    world.all_gather_into(&mine[..], &mut names[..]);
    let names: Vec<&[u8]> = names.chunks(mine.len()).collect();
    let here = |other: &usize| *names[*other] == mine[..];
    let beside: Vec<usize> = (0..names.len()).filter(here).collect();
    let local_rank = beside.iter().position(|other| *other == comm.rank() as usize).unwrap();
    assert_eq!((place.hosts, place.local_size), (3, 2));
    assert_eq!((place.local_rank as usize, beside.len()), (local_rank, 2));
    assert_eq!(place.leader_rank, (local_rank == 0).then_some(place.host));

    let local = comm.on_my_host().unwrap();
    must_be(&local, &world.split_shared(world.rank()));
    let color = Color::with_value(i32::try_from(place.local_rank).unwrap());
    let cross = comm.cross().unwrap();
    must_be(&cross, &world.split_by_color(color).expect("each has a color"));
    assert_eq!((cross.rank(), cross.size()), (place.host, 3));
    what_carries(&comm);

    for (seed, program) in (0..).zip(Program::ALL) {
        for count in [1, 1_003, 200_001] {
            checked_call(&comm, *program, count, seed).unwrap();
        }
    }
    rank.say("done");
}

/// Shared memory inside a host, sockets between hosts. New communicators, since they open what they need at their first
/// call.
fn what_carries(comm: &Communicator) {
    let (local, cross) = (comm.on_my_host().unwrap(), comm.cross().unwrap());
    let (memory, open) = (shared_memory(), connections());
    reduce_much(&local).unwrap();
    assert!(shared_memory() > memory, "no memory is shared inside a host");
    assert_eq!(connections(), open, "sockets inside a host");
    let memory = shared_memory();
    reduce_much(&cross).unwrap();
    assert!(connections() > open, "no sockets between hosts");
    assert_eq!(shared_memory(), memory, "memory is shared between hosts");
}

/// How many pieces of shared memory this process has mapped, those of MPI left out.
fn shared_memory() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

/// How many TCP connections this process has. Memory is handed over by another kind of socket.
fn connections() -> usize {
    let table = |name: &str| std::fs::read_to_string(format!("/proc/self/net/{name}")).unwrap_or_default();
    let tables = table("tcp") + &table("tcp6");
    let inodes: Vec<&str> = tables.lines().filter_map(|line| line.split_whitespace().nth(9)).collect();
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    let is_connection = |link: &PathBuf| {
        let inode = link.to_str().and_then(|link| link.strip_prefix("socket:[")?.strip_suffix(']'));
        inode.is_some_and(|inode| inodes.contains(&inode))
    };
    links.filter(is_connection).count()
}

fn reduce_much(comm: &Communicator) -> rsccl::Result<()> {
    let mut sums = vec![0u32; 300_000];
    comm.all_reduce(&vec![comm.rank() + 1; sums.len()], &mut sums, ReduceOp::Sum)?;
    let sum = comm.size() * (comm.size() + 1) / 2;
    assert!(sums.iter().all(|its| *its == sum));
    Ok(())
}

/// Calls until it fails, then ends the job as a program does.
fn cut(rank: &Rank) {
    let universe = begin(rank, Threading::Funneled);
    let mut config = Config::default();
    config.timeout = Duration::from_secs(2);
    let comm = communicator(&universe.world(), &config).unwrap();
    rank.say(&format!("host {}", comm.placement().unwrap().host));
    reduce_much(&comm).unwrap();
    rank.say("works");
    let error = std::iter::repeat_with(|| reduce_much(&comm)).find_map(Result::err).expect("it never ends well");
    rank.say_error("error", &error);
    // The test has read everyone's error before anybody ends the others.
    assert!(until(LIMIT, || rank.folder.join("seen").exists()));
    abort(&error);
}

/// A communicator by the launcher alone, while MPI runs in the process.
fn meet_beside(rank: &Rank) {
    let _universe = begin(rank, Threading::Funneled);
    match Communicator::from_env() {
        Ok(comm) => {
            reduce_much(&comm).unwrap();
            rank.say(&format!("met {} ranks", comm.size()));
            comm.finalize().unwrap();
        }
        Err(error) => rank.say_error("met nobody", &error),
    }
}

/// A job of two ranks on each of three hosts of `network`.
fn plan(launcher: &Launcher, network: &Network, act: &str) -> Plan {
    let plan = Plan::new(launcher, act, 6).with(&[("NCCL_SOCKET_IFNAME", "eth0")]).prefix(network.on(0));
    let agent = agent(plan.folder(), network);
    let (agent, subnet) = (agent.to_str().expect("a path of text"), "10.77.0.0/24");
    let hosts = "10.77.0.1:2,10.77.0.2:2,10.77.0.3:2";
    let words: &[&str] = match launcher.family {
        Family::Orte => &[
            "--mca plm_rsh_no_tree_spawn 1 --mca oob_tcp_if_include",
            subnet,
            "--mca btl_tcp_if_include",
            subnet,
            "--mca plm_rsh_agent",
            agent,
            "-H",
            hosts,
        ],
        Family::Prrte => &[
            // By itself it would put all ranks, oversubscribed, on the first host.
            "--map-by ppr:2:node --prtemca plm_ssh_no_tree_spawn 1 --prtemca prte_if_include",
            subnet,
            "--mca btl_tcp_if_include",
            subnet,
            "--prtemca plm_ssh_agent",
            agent,
            "-H",
            hosts,
        ],
        // Intel's would look up the host's name, which nobody knows, to tell its own address.
        Family::Hydra => &["-iface eth0 -launcher rsh -launcher-exec", agent, "-hosts", hosts],
    };
    let words: Vec<&str> = words.iter().flat_map(|words| words.split(' ')).collect();
    plan.options(&words)
}

/// A program that is called as ssh is, with a host and a line for its shell, and runs that line on the host.
fn agent(folder: &Path, network: &Network) -> PathBuf {
    let path = folder.join("agent");
    let quoted = |word: &String| format!("'{word}'");
    let mut text =
        "#!/bin/sh\nwhile case $1 in -*) true ;; *) false ;; esac; do shift; done\nhost=$1; shift\n".to_owned();
    text.push_str("case $host in\n");
    for host in 0..3 {
        let words: Vec<String> = network.on(host).iter().map(quoted).collect();
        text.push_str(&format!("10.77.0.{}) exec {} sh -c \"$*\" ;;\n", host + 1, words.join(" ")));
    }
    text.push_str("*) echo \"no such host: $host\" >&2; exit 1 ;;\nesac\n");
    let mut file: File = File::options().create_new(true).write(true).mode(0o755).open(&path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
    path
}

/// Takes the hosts away; nothing of them is left.
fn must_go(network: Network) {
    let names: Vec<PathBuf> = (0..3).map(|host| Path::new("/run/netns").join(&network.on(host)[3])).collect();
    assert!(names.iter().all(|name| name.exists()), "{names:?}");
    drop(network);
    assert!(!names.iter().any(|name| name.exists()), "{names:?}");
}

#[test]
fn three_hosts_of_two_ranks() {
    let Some(launcher) = Launcher::matching() else { return };
    let Some(network) = Network::make(3) else { return };
    let job = plan(&launcher, &network, "hosts").with(&[("NCCL_DEBUG", "WARN")]).start();
    for rank in 0..6 {
        job.await_line(rank, "done");
    }
    let (said, report) = ((0..6).map(|rank| job.said(rank)).collect::<Vec<_>>(), job.report());
    if launcher.family == Family::Hydra {
        // MPICH 4.0 over UCX often hangs in MPI_Finalize on such hosts, in programs without rsccl too.
        job.stop();
    } else {
        job.finish().must_say("done");
    }
    assert!(!report.contains("rsccl's view counts"), "MPI sees other hosts: {report}");
    let placed = |lines: &Vec<String>| lines.iter().find_map(|line| line.strip_prefix("placed ")).map(str::to_owned);
    let mut places: Vec<String> = said.iter().filter_map(placed).collect();
    places.sort_unstable();
    assert_eq!(places.len(), 6, "{report}");
    for (number, place) in places.iter().enumerate() {
        let (host, local) = (number / 2, number % 2);
        let expected = format!("host host{host} ({host} of 3), local rank {local} of 2");
        assert!(place.starts_with(&expected), "{place}: {report}");
    }
    must_go(network);
}

/// No address and no folder: the process manager of Open MPI (PMIx) gives the id on beside MPI. Hydra's speaks to MPI alone.
#[test]
fn ranks_meet_by_the_process_manager_that_serves_mpi_too() {
    let Some(launcher) = Launcher::matching() else { return };
    let Some(network) = Network::make(3) else { return };
    let job = plan(&launcher, &network, "meet_beside").start();
    for rank in 0..6 {
        job.await_line(rank, "met ");
        let said = job.said(rank);
        let line = said.iter().find(|line| line.starts_with("met ")).expect("it was awaited");
        match launcher.family {
            Family::Orte | Family::Prrte => assert_eq!(line, "met 6 ranks", "{}", job.report()),
            Family::Hydra => {
                assert!(line.contains("no place to meet: the process manager (PMI) speaks to MPI"), "{line}");
            }
        }
    }
    job.stop();
}

#[test]
fn a_host_that_is_cut_off() {
    let Some(launcher) = Launcher::matching() else { return };
    let Some(network) = Network::make(3) else { return };
    let job = plan(&launcher, &network, "cut").start();
    for rank in 0..6 {
        job.await_line(rank, "works");
    }
    network.cut(2);
    for rank in 0..6 {
        job.await_line(rank, "error ");
    }
    let said: Vec<Vec<String>> = (0..6).map(|rank| job.said(rank)).collect();
    let is_lost = |rank: &usize| said[*rank].contains(&"host 2".to_owned());
    let (lost, left): (Vec<usize>, Vec<usize>) = (0..6).partition(is_lost);
    assert_eq!((lost.len(), left.len()), (2, 4), "{said:?}");
    for (mine, others) in [(&left, &lost), (&lost, &left)] {
        for rank in mine {
            let line = said[*rank].iter().find(|line| line.starts_with("error ")).expect("it was awaited");
            assert!(line.contains("timed out"), "rank {rank}: {line}");
            assert!(others.iter().any(|other| line.contains(&format!("rank {other}"))), "rank {rank}: {line}");
        }
    }
    File::create(job.folder().join("seen")).unwrap();
    job.stop();
    must_go(network);
}
