//! Ranks that try again under the same key of a store: each try succeeds, or fails by reasons of its own. Each rank is a
//! process of its own, so that one knows nothing of what the others were told.

use rsccl::store::{StoreConfig, TcpStore};

use crate::{NET, SHM, with};
use testing::random::{Luck, changing_seed};
use testing::ranks::{Failure, Job, until};

/// Less than a rank needs that waits for another one, more than the ranks of a test need to meet.
const SHORT_MS: u32 = 600;
const LONG_MS: u32 = 20_000;

/// Three ranks and the stores in which they can meet.
struct Meeting {
    job: Job,
    places: Vec<String>,
    keys: u32,
    _server: TcpStore,
}

impl Meeting {
    fn new(transport: &[(&'static str, &'static str)]) -> Meeting {
        let job = Job::start(3, &with(transport, &[("NCCL_DEBUG", "TRACE")]));
        let server = TcpStore::serve("127.0.0.1:0".parse().unwrap(), &StoreConfig::default()).unwrap();
        let folder = job.folder("store-of-retries");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        std::fs::set_permissions(&folder, mode).unwrap();
        let places = vec![format!("file:{folder}"), format!("tcp:{}", server.address().unwrap())];
        Meeting { job, places, keys: 0, _server: server }
    }

    /// For each store a key that nobody has used.
    fn keys(&mut self) -> Vec<String> {
        self.keys += 1;
        self.places.iter().map(|place| format!("{place} key-{}", self.keys)).collect()
    }

    fn say(&mut self, rank: usize, key: &str, milliseconds: u32, what: &str) {
        self.job.ranks[rank].say(&format!("meet {key} {rank} 3 {milliseconds} {what}"));
        self.job.ranks[rank].begun();
    }

    fn fails(&mut self, rank: usize, key: &str, kind: &str, words: &str) -> Failure {
        let failure = self.job.ranks[rank].failure();
        assert_eq!(failure.kind, kind, "rank {rank}, {key}: {}", failure.text);
        assert!(failure.text.contains(words), "rank {rank}, {key}, no `{words}`: {}", failure.text);
        failure
    }

    /// Waits until the log of `rank` says so once more than the `before` times.
    fn logs(&self, rank: usize, words: &str, before: usize) {
        until(words, || self.logged(rank, words) > before);
    }

    fn logged(&self, rank: usize, words: &str) -> usize {
        self.job.ranks[rank].log().matches(words).count()
    }

    /// `rank` comes, and finds what another try has left: it waits for the next one.
    fn waits(&mut self, rank: usize, key: &str, milliseconds: u32) {
        let before = self.logged(rank, WAITS);
        self.say(rank, key, milliseconds, "well");
        self.logs(rank, WAITS, before);
    }

    fn all_meet(&mut self, key: &str) {
        for (number, rank) in self.job.ranks.iter().enumerate() {
            assert_eq!(rank.success(key), format!("{number} 3"));
        }
        self.job.must("call all_reduce 1000");
        self.job.must("drop");
    }
}

/// What a rank logs that has found the id of another try, and waits for the next one.
const WAITS: &str = "the store holds an entry of an earlier try";

/// Regression: a rank that came for the first time was told how the others had failed before.
#[test]
fn a_rank_that_comes_late_waits_for_the_next_try() {
    let mut meeting = Meeting::new(SHM);
    let mut luck = Luck::new(&[changing_seed("faults_processes")]);
    for key in meeting.keys() {
        // Several tries fail, each without another rank than 0.
        for _ in 0..3 {
            let late = *luck.pick(&[1, 2]);
            let early = 3 - late;
            for rank in [0, early] {
                meeting.say(rank, &key, SHORT_MS, "well");
            }
            for rank in [0, early] {
                meeting.fails(rank, &key, "Timeout", &format!("rank {late} of 3 never came"));
            }
            meeting.waits(late, &key, SHORT_MS);
            // Its own time is over: rank 0 has not come again.
            meeting.fails(late, &key, "Timeout", "waited");
        }
        // The next one succeeds, in whatever order they come.
        let mut order = [0, 1, 2];
        for place in (1..3).rev() {
            order.swap(place, usize::try_from(luck.below(place as u64 + 1)).unwrap());
        }
        for rank in order {
            meeting.say(rank, &key, LONG_MS, "well");
        }
        meeting.all_meet(&key);
    }
}

/// The death of a rank ends the try of the others, and of nobody else.
#[test]
fn ranks_meet_again_after_one_was_killed_in_the_middle() {
    let mut meeting = Meeting::new(NET);
    for key in meeting.keys() {
        for killed in [1, 2] {
            let left = 3 - killed;
            let came = format!("rank {killed} has checked in");
            let before = meeting.logged(0, &came);
            for rank in [0, killed] {
                meeting.say(rank, &key, LONG_MS, "well");
            }
            meeting.logs(0, &came, before);
            meeting.job.replace(killed);
            meeting.fails(0, &key, "Remote", &format!("rank {killed} has died"));
            // Neither the new process nor the one that was not there has anything to do with that.
            for rank in [killed, left] {
                meeting.waits(rank, &key, LONG_MS);
            }
            meeting.say(0, &key, LONG_MS, "well");
            meeting.all_meet(&key);
        }
    }
}

/// Rank 0 takes its root along.
#[test]
fn ranks_meet_again_after_rank_zero_was_killed() {
    let mut meeting = Meeting::new(&with(SHM, &[("NCCL_SOCKET_RETRY_CNT", "3")]));
    for key in meeting.keys() {
        let came = "rank 1 has checked in";
        let before = meeting.logged(0, came);
        for rank in [0, 1] {
            meeting.say(rank, &key, LONG_MS, "well");
        }
        meeting.logs(0, came, before);
        meeting.job.replace(0);
        let failure = meeting.job.ranks[1].failure();
        assert!(matches!(&*failure.kind, "Remote" | "Timeout"), "{}: {}", failure.kind, failure.text);
        for rank in [1, 2] {
            meeting.waits(rank, &key, LONG_MS);
        }
        meeting.say(0, &key, LONG_MS, "well");
        meeting.all_meet(&key);
    }
}

/// Ranks disagree, about the world or about settings.
#[test]
fn ranks_meet_again_after_a_mismatch() {
    let mut meeting = Meeting::new(SHM);
    for key in meeting.keys() {
        // One alone is wrong, and corrects itself while the others wait.
        for rank in [0, 1] {
            meeting.say(rank, &key, LONG_MS, "well");
        }
        meeting.job.ranks[2].say(&format!("meet {key} 2 4 {LONG_MS} well"));
        meeting.job.ranks[2].begun();
        meeting.fails(2, &key, "Mismatch", "disagree about the world");
        meeting.say(2, &key, LONG_MS, "well");
        meeting.all_meet(&key);
        // All have met before they find it.
        for (rank, what) in ["well", "well", "NCCL_BUFFSIZE=65536"].into_iter().enumerate() {
            meeting.say(rank, &key, LONG_MS, what);
        }
        for rank in 0..3 {
            meeting.fails(rank, &key, "Mismatch", "other settings");
        }
        for rank in [1, 2, 0] {
            meeting.say(rank, &key, LONG_MS, "well");
        }
        meeting.all_meet(&key);
    }
}

/// Regression: a rank that tried again while rank 0 still told the others why there is no id was told it once more.
#[test]
fn a_rank_is_told_once_that_there_is_no_id() {
    let mut meeting = Meeting::new(SHM);
    for key in meeting.keys() {
        for rank in [0, 1] {
            meeting.say(rank, &key, LONG_MS, if rank == 0 { "without" } else { "well" });
        }
        meeting.fails(1, &key, "Remote", "no id on purpose");
        // Rank 0 waits for rank 2 to read it.
        meeting.waits(1, &key, LONG_MS);
        meeting.say(2, &key, LONG_MS, "well");
        meeting.fails(2, &key, "Remote", "no id on purpose");
        meeting.fails(0, &key, "Internal", "no id on purpose");
        for rank in [2, 0] {
            meeting.say(rank, &key, LONG_MS, "well");
        }
        meeting.all_meet(&key);
    }
}
