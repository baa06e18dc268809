//! A process that is killed while graphs replay between hosts: nobody waits in a call of the library, and the thread
//! that serves the graphs looks after peers each 100 ms.

use std::io::Write;
use std::time::Duration;

use rsccl::internals::sys::clock;

use super::deaths::must_go_on;
use super::gpus::VICTIM_IS;
use testing::ranks::Job;

/// Ranks that have joined, and what each held before.
type Started = Option<(Job, Vec<(usize, usize)>)>;

/// A rank of either host is killed, among four that `start` starts, each on the GPU of that number.
pub(super) fn each_is_named(start: &dyn Fn() -> Started, gpu: &dyn Fn(usize) -> usize) {
    // A few bytes, and what goes round the slots of a connection.
    for (victim, count) in [(0, 3), (2, 5_000)] {
        let Some((mut job, before)) = start() else { return };
        for rank in &mut job.ranks {
            rank.say(&format!("replay {} {count}", gpu(rank.number)));
        }
        job.ranks.iter().for_each(|rank| rank.begun());
        (0..3).for_each(|_| job.ranks[victim].expect_line("turn"));
        let process = job.ranks[victim].process();
        writeln!(std::io::stderr(), "{VICTIM_IS}{process}").expect("standard error is open");
        job.kill(victim);
        let killed = clock::now();
        for rank in &job.ranks {
            let failure = rank.failure();
            let told = (failure.kind.as_str(), failure.peer) == ("Remote", Some(victim));
            assert!(told, "{victim} is killed, rank {}, {count}: {}", rank.number, failure.text);
        }
        let took = clock::now().duration_since(killed);
        assert!(took < BEFORE_THE_DEADLINE, "the last error came {took:?} after the death");
        must_go_on(&mut job, victim, "call all_reduce 3000", &before);
    }
}

/// Half of the deadline of calls, which replays do not have.
const BEFORE_THE_DEADLINE: Duration = Duration::from_secs(10);
