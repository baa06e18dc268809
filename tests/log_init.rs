//! What the log says of the way to a communicator, in NCCL's words. The log is the process's, so this file has one
//! test.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rsccl::config::{Config, DebugLevel, SubsystemSet};
use rsccl::{Communicator, Result};

fn rank(id: &rsccl::UniqueId, rank: u32, config: &Config) -> Result<()> {
    let comm = Communicator::init(id, rank, 2, config)?;
    let child = comm.split(Some(5), 7)?.expect("all ranks have a color");
    child.finalize()?;
    comm.finalize()
}

#[test]
fn init_says_start_complete_common_id_parent_interface_and_the_times_of_the_root() {
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let kept = Arc::clone(&lines);
    rsccl::log::redirect(Some(Box::new(move |line| {
        let rank = line.rank.map_or("-".to_owned(), |rank| rank.to_string());
        kept.lock().expect("no holder panics").push(format!("[{rank}] {}", line.text));
    })));
    let config = Config::default()
        .with_socket_interfaces("lo")
        .with_debug(DebugLevel::Info)
        .with_debug_subsystems(SubsystemSet::parse("INIT,BOOTSTRAP").expect("subsystems"));
    let id = Communicator::unique_id(&config).expect("a loopback interface");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| rank(&id, 1, &config));
        rank(&id, 0, &config).expect("rank 0 joins");
        other.join().expect("rank 1 does not panic").expect("rank 1 joins");
    });
    let lines = || lines.lock().expect("no holder panics").clone();
    let has = |parts: &[&str]| lines().iter().filter(|line| parts.iter().all(|part| line.contains(part))).count();
    // The root's thread may end a moment after the ranks have been answered.
    let ended =
        machine::until(Duration::from_secs(60), || has(&["[-] Root timings (wait ", ", recv ", "nranks 2"]) == 1);
    assert!(ended, "{:#?}", lines());
    rsccl::log::redirect(None);

    assert_eq!(has(&["RSCCL version "]), 1, "{:#?}", lines());
    assert_eq!(has(&["[-] Bootstrap: root listens on lo:127.0.0.1<"]), 1, "{:#?}", lines());
    let common = format!(" commId {:016x}", id.number());
    let comm = lines().iter().find_map(|line| line.split_once("init comm ").map(|(_, rest)| rest[..16].to_owned()));
    let comm = comm.expect("a line of an init that is complete");
    for rank in ["[0] ", "[1] "] {
        let once = |parts: &[&str]| assert_eq!(has(&[&[rank], parts].concat()), 1, "{parts:?}: {:#?}", lines());
        once(&["Bootstrap: Using lo:127.0.0.1<"]);
        once(&["init rank ", " nranks 2", &common, " - Init START"]);
        once(&["init comm ", &comm, " localRanks 2 nNodes 1", &common, " - Init COMPLETE"]);
        once(&["Init timings - init: rank ", "(bootstrap ", ", allgathers ", ", topo ", ", connections "]);
        once(&["split rank ", &format!(" parent {comm} color 5 key 7 - Init START")]);
        once(&["split comm ", &format!(" parent {comm} color 5 key 7 - Init COMPLETE")]);
        once(&[&format!("comm {comm} rank"), " - Destroy COMPLETE"]);
    }
}
