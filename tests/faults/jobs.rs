//! Two jobs at one meeting place, attempts that are repeated, and ranks that come twice. The launchers' variables are
//! those that `srun` sets, for jobs over two hosts unless a test says otherwise: those of one host meet in private.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use testing::ranks::{Job, Rank, until};

const NUMBERS: [&str; 4] = ["0", "1", "2", "3"];

/// The kinds of places where ranks meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Master,
    Store,
    Folder,
    Fixed,
    /// The private place of one host.
    Private,
}

/// The number of a job that no other test on this machine has: ranks of one host meet at a place named after it.
fn job_number() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: only the number counts.
    format!("{}{:03}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

const SHARED: [Kind; 4] = [Kind::Master, Kind::Store, Kind::Folder, Kind::Fixed];

/// The variables that name a place, which is free.
fn place(kind: Kind, folder: &Path) -> Vec<(&'static str, String)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let address = format!("127.0.0.1:{port}");
    match kind {
        Kind::Master => vec![("MASTER_ADDR", "127.0.0.1".to_owned()), ("MASTER_PORT", port.to_string())],
        Kind::Store => vec![("RSCCL_STORE", format!("tcp://{address}"))],
        Kind::Folder => vec![("RSCCL_STORE", format!("file://{}", folder.join("store").display()))],
        Kind::Fixed => vec![("NCCL_COMM_ID", address)],
        Kind::Private => Vec::new(),
    }
}

/// Ranks of Slurm's job `job`, whose step 0 runs on `nodes`; not joined yet.
fn slurm<'a>(
    job: &'a str,
    (ranks, nodes): (usize, &'a str),
    place: &'a [(&'static str, String)],
    more: &[(&'a str, &'a str)],
) -> Job {
    Job::start_each(ranks, |rank| {
        let mut variables = vec![("SLURM_JOB_ID", job), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", NUMBERS[rank])];
        variables.extend([("SLURM_STEP_NUM_TASKS", NUMBERS[ranks]), ("SLURM_STEP_NUM_NODES", nodes)]);
        variables.extend([("NCCL_SOCKET_IFNAME", "lo"), ("NCCL_DEBUG", "TRACE"), ("RSCCL_INIT_TIMEOUT_MS", "8000")]);
        variables.extend(place.iter().map(|(name, value)| (*name, &**value)));
        variables.extend(more);
        (Vec::new(), variables)
    })
}

fn must_join(job: &mut Job, which: impl Fn(usize) -> bool) {
    for rank in job.ranks.iter().filter(|rank| which(rank.number)) {
        rank.success("from_env");
    }
}

fn must_wait(rank: &Rank) {
    until("rank 0 waits at its root", || rank.log().contains("rank 0 has checked in"));
}

/// Regression: rank 0 of one job and ranks of another formed a world, and both jobs ended well with each other's sums.
#[test]
fn jobs_with_one_place_never_mix_and_both_end_right() {
    for kind in SHARED {
        let folder = tempfile::tempdir().unwrap();
        let place = place(kind, folder.path());
        let numbers = [job_number(), job_number()];
        let mut first = slurm(&numbers[0], (3, "2"), &place, &[]);
        let mut second = slurm(&numbers[1], (3, "2"), &place, &[]);
        first.begin("from_env", |rank| rank == 0);
        must_wait(&first.ranks[0]);
        second.begin("from_env", |rank| rank != 0);
        if kind != Kind::Folder {
            until("a stranger is refused", || first.ranks[0].log().contains("a rank of another job has come"));
        }
        first.begin("from_env", |rank| rank != 0);
        second.begin("from_env", |rank| rank == 0);
        must_join(&mut first, |_| true);
        must_join(&mut second, |_| true);
        first.must("call all_reduce 10");
        // Were a rank of it in the other world, that would end with it.
        drop(first);
        second.must("call all_reduce 10");
    }
}

/// Regression: strangers of another size ended the right job, and those of the wrong one waited for the deadline.
#[test]
fn the_job_that_comes_second_is_told_so_soon_and_costs_the_first_nothing() {
    for kind in SHARED {
        let folder = tempfile::tempdir().unwrap();
        let place = place(kind, folder.path());
        let numbers = [job_number(), job_number()];
        let mut first = slurm(&numbers[0], (3, "2"), &place, &[("RSCCL_INIT_TIMEOUT_MS", "60000")]);
        first.begin("from_env", |rank| rank == 0);
        must_wait(&first.ranks[0]);
        let mut second = slurm(&numbers[1], (2, "2"), &place, &[]);
        second.begin("from_env", |_| true);
        for rank in &second.ranks {
            let failure = rank.failure();
            assert_eq!(failure.kind, "InvalidUsage", "{kind:?}: {}", failure.text);
            let where_it_is = &place.last().unwrap().1;
            let at = if kind == Kind::Folder { "rsccl/id/0" } else { where_it_is.rsplit('/').next().unwrap() };
            let names = numbers.each_ref().map(|number| format!("Slurm's job {number} step 0"));
            for words in [&*names[0], &*names[1], at] {
                assert!(failure.text.contains(words), "{kind:?}: `{words}` is not in: {}", failure.text);
            }
        }
        first.begin("from_env", |rank| rank != 0);
        must_join(&mut first, |_| true);
        first.must("call all_reduce 10");
    }
}

/// All ranks on one host: `MASTER_PORT`, which two jobs share, is not needed.
#[test]
fn on_one_host_two_jobs_with_one_port_do_not_meet_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let place = place(Kind::Master, folder.path());
    let numbers = [job_number(), job_number()];
    let mut jobs = numbers.each_ref().map(|number| slurm(number, (3, "1"), &place, &[]));
    jobs[0].begin("from_env", |rank| rank == 0);
    jobs[1].begin("from_env", |_| true);
    must_join(&mut jobs[1], |_| true);
    jobs[0].begin("from_env", |rank| rank != 0);
    must_join(&mut jobs[0], |_| true);
    let [first, mut second] = jobs;
    drop(first);
    second.must("call all_reduce 10");
    // And once more: each communicator has a place of its own.
    second.must("from_env");
    second.must("call all_reduce 10");
}

/// A rank of which nothing is known may be anybody's: beside a private place it is kept out, as are the others from its.
#[test]
fn a_rank_of_no_known_job_does_not_get_into_one_that_meets_in_private() {
    let folder = tempfile::tempdir().unwrap();
    let place = place(Kind::Master, folder.path());
    let number = job_number();
    let mut job = Job::start_each(3, |rank| {
        let mut variables = vec![("SLURM_STEP_ID", "0"), ("SLURM_PROCID", NUMBERS[rank]), ("NCCL_DEBUG", "TRACE")];
        variables.extend([("SLURM_STEP_NUM_TASKS", "3"), ("SLURM_STEP_NUM_NODES", "1"), ("NCCL_SOCKET_IFNAME", "lo")]);
        variables.extend(place.iter().map(|(name, value)| (*name, &**value)));
        variables.push(("SLURM_JOB_ID", &*number));
        (Vec::new(), variables)
    });
    // Numbers set by hand, a world of the same size, and the same port: its rank 0 comes first.
    let mut strangers = Job::start_each(3, |rank| {
        let mut variables = vec![("RSCCL_RANK", NUMBERS[rank]), ("RSCCL_WORLD_SIZE", "3"), ("NCCL_DEBUG", "TRACE")];
        variables.push(("NCCL_SOCKET_IFNAME", "lo"));
        variables.extend(place.iter().map(|(name, value)| (*name, &**value)));
        (Vec::new(), variables)
    });
    strangers.begin("from_env", |rank| rank == 0);
    must_wait(&strangers.ranks[0]);
    job.begin("from_env", |rank| rank != 0);
    until("they look elsewhere", || job.ranks[1].log().contains("nothing for this rank at the store"));
    job.begin("from_env", |rank| rank == 0);
    must_join(&mut job, |_| true);
    strangers.begin("from_env", |rank| rank != 0);
    must_join(&mut strangers, |_| true);
    drop(job);
    strangers.must("call all_reduce 10");
}

/// Regression: a failed call was counted, so that a rank that tried again never met one that started later.
#[test]
fn a_rank_that_tries_again_meets_one_that_starts_later() {
    for kind in [Kind::Master, Kind::Folder, Kind::Fixed, Kind::Private] {
        let folder = tempfile::tempdir().unwrap();
        let place = place(kind, folder.path());
        let (number, nodes) = (job_number(), if kind == Kind::Private { "1" } else { "2" });
        let mut job = Job::start_each(3, |rank| {
            let limit = if rank == 2 { "20000" } else { "1500" };
            let mut variables =
                vec![("SLURM_JOB_ID", &*number), ("SLURM_STEP_ID", "0"), ("SLURM_PROCID", NUMBERS[rank])];
            variables.extend([("SLURM_STEP_NUM_TASKS", "3"), ("SLURM_STEP_NUM_NODES", nodes), ("NCCL_DEBUG", "TRACE")]);
            variables.extend([("NCCL_SOCKET_IFNAME", "lo"), ("RSCCL_INIT_TIMEOUT_MS", limit)]);
            variables.extend(place.iter().map(|(name, value)| (*name, &**value)));
            (Vec::new(), variables)
        });
        job.begin("from_env", |rank| rank != 2);
        for rank in &job.ranks[..2] {
            let failure = rank.failure();
            assert!(failure.text.contains("rank 2 of 3 never came"), "{kind:?}: {}", failure.text);
        }
        job.begin("from_env", |_| true);
        must_join(&mut job, |_| true);
        job.must("call all_reduce 10");
        job.must("from_env");
        job.must("call all_reduce 10");
    }
}

/// Regression: those who had read the id were counted, so that a second rank 1 took the turn of rank 2.
#[test]
fn a_stranger_takes_nobodys_turn() {
    for kind in [Kind::Store, Kind::Folder, Kind::Private] {
        let folder = tempfile::tempdir().unwrap();
        let place = place(kind, folder.path());
        let (number, nodes) = (job_number(), if kind == Kind::Private { "1" } else { "2" });
        let mut job = slurm(&number, (3, nodes), &place, &[]);
        job.begin("from_env", |rank| rank < 2);
        until("rank 1 is at the root", || job.ranks[0].log().contains("rank 1 has checked in"));
        let mut twin = slurm(&number, (3, nodes), &place, &[]);
        let failure = twin.ranks[1].fails("from_env");
        assert!(failure.text.contains("two ranks have the number 1"), "{kind:?}: {}", failure.text);
        let mut other = slurm(&number, (2, nodes), &place, &[]);
        let failure = other.ranks[1].fails("from_env");
        assert_eq!(failure.kind, "Mismatch", "{kind:?}: {}", failure.text);
        assert!(failure.text.contains("3 ranks, this rank 2"), "{kind:?}: {}", failure.text);
        job.begin("from_env", |rank| rank == 2);
        must_join(&mut job, |_| true);
        job.must("call all_reduce 10");
    }
}
