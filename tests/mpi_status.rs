//! `rsccl status` on jobs of `mpirun` whose communicators are made from MPI's: each kind of trouble, and the rank that it
//! names. The other kinds of jobs are those of `tests/status.rs`. The launcher is that of the MPI with which this program
//! is built (`MPICC`); says `skipped` where there is none.
#![allow(clippy::unwrap_used, reason = "a test that fails panics")]

use std::hint::spin_loop;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use ::mpi::traits::*;
use rsccl::internals::sys::process::{Group, wait_ready};
use rsccl::mpi::communicator;
use rsccl::{Config, Progress, ReduceOp, Result};
use tempfile::TempDir;

/// Tells this program that it is a rank, and which role it plays; and where it writes its number.
const ROLE: &str = "RSCCL_TEST_STATUS_MPI_ROLE";
const FOLDER: &str = "RSCCL_TEST_STATUS_MPI_FOLDER";

#[test]
#[ignore = "a rank of the jobs of the other tests"]
fn rank() {
    #![expect(clippy::disallowed_methods, reason = "the role of a test's process is no configuration of the library")]
    if let (Ok(role), Ok(folder)) = (std::env::var(ROLE), std::env::var(FOLDER)) {
        let universe = ::mpi::initialize().unwrap();
        let me = universe.world().rank();
        std::fs::write(Path::new(&folder).join(format!("{me}.part")), std::process::id().to_string()).unwrap();
        std::fs::rename(Path::new(&folder).join(format!("{me}.part")), Path::new(&folder).join(me.to_string()))
            .unwrap();
        if role == "never" && me == 2 {
            hold();
        }
        // Its errors are what the test has made.
        let _told = play(&role, &universe);
        hold();
    }
}

fn play(role: &str, universe: &::mpi::environment::Universe) -> Result<()> {
    let comm = communicator(&universe.world(), &Config::default())?;
    let mut sum = [1.5f32; 4];
    match (role, comm.rank()) {
        ("late", 2) => {
            comm.barrier()?;
            loop {
                spin_loop();
            }
        }
        ("looping", rank) => {
            let other = comm.by_color(0, 0)?;
            match rank {
                1 => comm.set_progress(Some(Progress::new(move || {
                    other.send(&[1u8], 0)?;
                    loop {
                        spin_loop();
                    }
                })))?,
                0 => other.recv(&mut [0u8], 1)?,
                _ => {}
            }
            comm.barrier()
        }
        ("calls" | "outlives", _) => {
            while comm.barrier().is_ok() {}
            std::mem::forget(comm);
            Ok(())
        }
        ("crossed", rank) => {
            let other = comm.by_color(0, 0)?;
            if rank == 0 { comm.barrier() } else { other.barrier() }
        }
        ("differ", 3) => {
            let _told = comm.broadcast(&mut sum, 1);
            hold();
        }
        ("differ", _) => {
            let _told = comm.all_reduce_in_place(&mut sum, ReduceOp::Sum);
            hold();
        }
        _ => {
            comm.barrier()?;
            comm.all_reduce_in_place(&mut sum, ReduceOp::Sum)
        }
    }
}

/// Until it is killed.
fn hold() -> ! {
    loop {
        wait_ready(&[], Some(PAUSE)).unwrap();
    }
}

/// A job of `mpirun`.
struct Job {
    /// The launcher.
    _mpirun: Group,
    ranks: Vec<u32>,
    _folder: TempDir,
}

impl Job {
    /// `None` where there is no `mpirun`.
    fn start(role: &str, size: usize) -> Option<Job> {
        let mpirun = option_env!("MPICC").unwrap_or("mpicc").replace("mpicc", "mpirun");
        let version = Command::new(&mpirun).arg("--version").stdin(Stdio::null()).output().ok()?;
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new(&mpirun);
        let is_open_mpi = String::from_utf8_lossy(&version.stdout).contains("Open MPI");
        if is_open_mpi {
            command.args(["--allow-run-as-root", "--oversubscribe"]);
        }
        command.args(["-n", &size.to_string()]);
        // By itself a launcher ends the job with its first rank.
        match (role == "outlives", is_open_mpi) {
            (true, true) => drop(command.arg("--enable-recovery")),
            // MPICH's (4.0.2) kills the others though it is told `-disable-auto-cleanup`: so it sees nobody die.
            (true, false) => drop(command.args(["sh", "-c", "\"$@\"; exec sleep 100", "outlives"])),
            (false, _) => {}
        }
        command.arg(std::env::current_exe().unwrap());
        command.args(["rank", "--exact", "--ignored", "--test-threads=1"]);
        command.env(ROLE, role).env(FOLDER, folder.path()).env("NCCL_SOCKET_IFNAME", "lo");
        command.env("RSCCL_TIMEOUT_MS", "100000").env("RSCCL_INIT_TIMEOUT_MS", "100000");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mpirun = Group::start(&mut command).unwrap();
        let number = |rank: usize| std::fs::read_to_string(folder.path().join(rank.to_string())).ok()?.parse().ok();
        for _ in 0..TURNS {
            let ranks: Vec<u32> = (0..size).map_while(number).collect();
            if ranks.len() == size {
                return Some(Job { _mpirun: mpirun, ranks, _folder: folder });
            }
            wait_ready(&[], Some(PAUSE)).unwrap();
        }
        panic!("the ranks of {role} do not start")
    }

    fn signal(&self, rank: usize, signal: i32) {
        let number = libc::pid_t::try_from(self.ranks[rank]).unwrap();
        // SAFETY: the call takes numbers; the process is a rank of this job.
        assert_eq!(unsafe { libc::kill(number, signal) }, 0);
    }

    /// What `rsccl status` says of the job.
    fn status(&self) -> String {
        let pids = self.ranks.iter().map(u32::to_string);
        let mut command = Command::new(env!("CARGO_BIN_EXE_rsccl"));
        let output = command.arg("status").args(pids).env_clear().stdin(Stdio::null()).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn until(&self, what: &str, is_it: impl Fn(&str) -> bool) {
        let mut told = String::new();
        for _ in 0..TURNS {
            told = self.status();
            if is_it(&told) {
                return;
            }
            wait_ready(&[], Some(PAUSE)).unwrap();
        }
        panic!("{what}:\n{told}")
    }

    /// Asks until one sentence has all `words`.
    fn is_told(&self, words: &[&str]) {
        let has_all = |line: &str| line.starts_with("! ") && words.iter().all(|word| line.contains(word));
        self.until(&format!("{words:?}"), |told| told.lines().any(has_all));
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Some launchers leave the ranks when they are killed.
        for rank in &self.ranks {
            if let Ok(number) = libc::pid_t::try_from(*rank) {
                // SAFETY: the call takes numbers; the process is a rank of this job, or has ended with it just now.
                unsafe { libc::kill(number, libc::SIGKILL) };
            }
        }
    }
}

/// How often is asked, and how long between two times: two minutes.
const TURNS: u32 = 600;
const PAUSE: Duration = Duration::from_millis(200);

/// Runs `test` on a job.
#[expect(clippy::print_stdout, reason = "a test that is skipped says so")]
fn on_job(role: &str, size: usize, test: impl FnOnce(&Job)) {
    match Job::start(role, size) {
        Some(job) => test(&job),
        None => println!("skipped: there is no mpirun"),
    }
}

#[test]
fn a_late_rank_is_named() {
    on_job("late", 4, |job| {
        let pid = format!("pid {}) has not entered all_reduce #1 for ", job.ranks[2]);
        job.is_told(&["rank 2 (host ", &pid, "3 ranks wait in it; rank 2 computes (not in rsccl)"]);
    });
}

#[test]
fn a_stopped_rank_is_named() {
    on_job("calls", 3, |job| {
        job.until("all go on", |told| told.contains("3 processes with 3 ranks") && !told.contains("for "));
        job.signal(1, libc::SIGSTOP);
        let pid = format!("rank 1 (host {}, pid {})", host(), job.ranks[1]);
        job.is_told(&[&pid, "2 ranks wait in it; rank 1 is stopped (SIGSTOP)"]);
        job.signal(1, libc::SIGCONT);
        job.until("all go on again", |told| told.contains("Nobody holds another up."));
    });
}

/// Where the launcher lets the others live.
#[test]
fn a_dead_rank_is_named() {
    on_job("outlives", 3, |job| {
        job.until("all go on", |told| told.contains("3 processes with 3 ranks") && !told.contains("for "));
        job.signal(1, libc::SIGKILL);
        job.is_told(&[&format!("rank 1 (host {}, pid {}) has died", host(), job.ranks[1])]);
    });
}

#[test]
fn a_rank_that_loops_in_a_call_is_named() {
    on_job("looping", 3, |job| {
        let pid = format!("rank 1 (host {}, pid {}) has not ended barrier #0 for ", host(), job.ranks[1]);
        job.is_told(&[&pid, "rank 1 is in a call of rsccl, runs"]);
    });
}

#[test]
fn crossed_communicators_are_a_circle() {
    on_job("crossed", 2, |job| {
        job.is_told(&[
            "ranks wait for each other for ",
            &format!("pid {})", job.ranks[0]),
            &format!("pid {})", job.ranks[1]),
        ]);
    });
}

#[test]
fn different_collectives_are_told_apart() {
    on_job("differ", 4, |job| {
        job.is_told(&[
            "ranks differ in collective #0",
            "ranks 0, 1 and 2 called all_reduce #0",
            "rank 3 called broadcast #0",
        ]);
    });
}

#[test]
fn a_rank_that_never_came_is_named() {
    on_job("never", 4, |job| {
        job.until("rank 2 has not come", |told| {
            told.lines().any(|line| line.starts_with("! ") && line.contains("rank 2"))
        });
    });
}

fn host() -> String {
    rsccl::internals::sys::host::hostname().unwrap()
}
