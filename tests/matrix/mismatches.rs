//! One rank makes a different call than the others: every rank gets an error that names both calls, in that call or in
//! the next one.
//!
//! All ordered pairs of calls, at sizes that take each path, over each transport, by 2 and 3 ranks. A run takes a
//! sample by the seed; `RSCCL_EXHAUSTIVE=1` takes all.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use rsccl::error::Kind;
use rsccl::types::Collective;
use rsccl::{Communicator, Config, Error, ReduceOp, Result, local};

use crate::{TIMEOUT, is_exhaustive, seed};

/// One way to call a collective.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Called {
    collective: Collective,
    root: Option<u32>,
    op: Option<ReduceOp>,
    /// Elements beyond those of the case.
    more: usize,
}

impl Called {
    const fn new(collective: Collective, root: Option<u32>, op: Option<ReduceOp>) -> Called {
        Called { collective, root, op, more: 0 }
    }

    const fn more(self) -> Called {
        Called { more: 1, ..self }
    }

    /// Calls it with `elements` floats, of the whole buffer or of each rank's block.
    fn call(self, comm: &Communicator, elements: usize) -> Result<()> {
        let (ranks, count) = (comm.size() as usize, elements + self.more);
        let (one, mut result) = (vec![1f32; count], vec![0f32; count]);
        let (all, mut gathered) = (vec![1f32; count * ranks], vec![0f32; count * ranks]);
        let (root, op) = (self.root.unwrap_or(0), self.op.unwrap_or(ReduceOp::Sum));
        let counts = vec![count; ranks];
        match self.collective {
            Collective::AllReduce => comm.all_reduce(&one, &mut result, op),
            Collective::Broadcast => comm.broadcast(&mut result, root),
            Collective::Reduce => comm.reduce(&one, &mut result, op, root),
            Collective::AllGather => comm.all_gather(&one, &mut gathered),
            Collective::AllGatherV => comm.all_gather_v(&one, &mut gathered, &counts),
            Collective::ReduceScatter => comm.reduce_scatter(&all, &mut result, op),
            Collective::ReduceScatterV => comm.reduce_scatter_v(&all, &mut result, &counts, op),
            Collective::AllToAll => comm.all_to_all(&all, &mut gathered),
            Collective::AllToAllV => comm.all_to_all_v(&all, &mut gathered, (&counts, &counts)),
            Collective::Gather => comm.gather(&one, &mut gathered, root),
            Collective::Scatter => comm.scatter(&all, &mut result, root),
            Collective::Barrier => comm.barrier(),
            other => panic!("{other} is no call of this test"),
        }
    }

    /// What an error says of the call.
    fn words(self, elements: usize) -> Vec<String> {
        let mut words = vec![format!("{} #0", self.collective)];
        words.extend(self.root.map(|root| format!("root {root}")));
        words.extend(self.op.map(|op| op.to_string()));
        if !matches!(
            self.collective,
            // Their labels have a hash of all counts, or none.
            Collective::AllGatherV | Collective::ReduceScatterV | Collective::AllToAllV | Collective::Barrier
        ) {
            words.push(format!("count {},", elements + self.more));
        }
        words
    }
}

const CALLS: [Called; 21] = {
    use Collective::*;
    let (sum, max) = (Some(ReduceOp::Sum), Some(ReduceOp::Max));
    [
        Called::new(AllReduce, None, sum),
        Called::new(AllReduce, None, max),
        Called::new(AllReduce, None, sum).more(),
        Called::new(Broadcast, Some(0), None),
        Called::new(Broadcast, Some(1), None),
        Called::new(Broadcast, Some(0), None).more(),
        Called::new(Reduce, Some(0), sum),
        Called::new(Reduce, Some(1), sum),
        Called::new(Reduce, Some(0), max),
        Called::new(AllGather, None, None),
        Called::new(AllGather, None, None).more(),
        Called::new(AllGatherV, None, None),
        Called::new(ReduceScatter, None, sum),
        Called::new(ReduceScatterV, None, sum),
        Called::new(AllToAll, None, None),
        Called::new(AllToAllV, None, None),
        Called::new(Gather, Some(0), None),
        Called::new(Gather, Some(1), None),
        Called::new(Scatter, Some(0), None),
        Called::new(Scatter, Some(1), None),
        Called::new(Barrier, None, None),
    ]
};

/// Floats: 4 bytes, 12 KB, and what goes through windows or in many slots.
const SIZES: [usize; 3] = [1, 3072, 100_000];
const TRANSPORTS: [&str; 3] = ["local", "shm", "net"];
const WORLDS: [u32; 2] = [2, 3];

/// A run of two calls that differ.
#[derive(Debug, Clone, Copy)]
struct Case {
    usual: Called,
    other: Called,
    elements: usize,
    transport: &'static str,
    ranks: u32,
    /// The rank that calls `other`.
    odd: u32,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case { usual, other, elements, transport, ranks, odd } = self;
        write!(f, "{ranks} ranks over {transport}, {elements} elements: {usual:?}, but rank {odd} {other:?}")
    }
}

impl Case {
    /// What is wrong, if anything is.
    fn run(&self) -> Option<String> {
        let net = self.transport == "net";
        let config = Config::default().with_p2p_disable(self.transport != "local").with_shm_disable(net);
        let ends = local::run_with(self.ranks, &config.with_timeout(TIMEOUT), |comm| {
            let called = if comm.rank() == self.odd { self.other } else { self.usual };
            Ok(called.call(&comm, self.elements).and_then(|()| comm.barrier()).err())
        });
        let ends = ends.expect("ranks start");
        ends.into_iter().zip(0u32..).find_map(|(end, rank)| self.judge(end).map(|wrong| format!("rank {rank} {wrong}")))
    }

    fn judge(&self, end: Option<Error>) -> Option<String> {
        let Some(error) = end else { return Some("has not noticed".to_owned()) };
        let text = error.to_string();
        let words = [self.usual, self.other].into_iter().flat_map(|called| called.words(self.elements));
        let missing: Vec<String> = words.filter(|word| !text.contains(word)).collect();
        if error.kind() == Kind::Mismatch && missing.is_empty() && error.peer().is_some() {
            return None;
        }
        Some(format!("({:?}) does not say {missing:?}: {text}", error.kind()))
    }
}

fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    for (usual, other) in CALLS.iter().flat_map(|usual| CALLS.iter().map(move |other| (*usual, *other))) {
        let worlds = WORLDS.iter().flat_map(|ranks| TRANSPORTS.map(|transport| (*ranks, transport)));
        for ((ranks, transport), elements) in worlds.flat_map(|world| SIZES.map(|elements| (world, elements))) {
            let odd = u32::try_from(cases.len() % 3).expect("a few") % ranks;
            cases.push(Case { usual, other, elements, transport, ranks, odd });
        }
    }
    cases.retain(|case| case.usual != case.other);
    cases
}

/// The first `count` of `cases`, in an order that the seed determines.
fn sample(mut cases: Vec<Case>, count: usize) -> Vec<Case> {
    let mut state = seed();
    for place in 0..count.min(cases.len()) {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let left = cases.len() - place;
        cases.swap(place, place + usize::try_from(state >> 33).expect("31 bits") % left);
    }
    cases.truncate(count);
    cases
}

/// Runs `cases`, several at a time: most of them wait for half a second until somebody asks who is stuck.
fn run(cases: &[Case]) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut wrong = Vec::new();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            wrong.extend(case.run().map(|text| format!("{case}\n    {text}")));
        }
        wrong
    };
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no case panics")).collect()
    });
    let shown = wrong.iter().take(crate::SHOWN_FAILURES).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "seed {}: {} of {} are wrong:\n{shown}", seed(), wrong.len(), cases.len());
}

#[test]
fn every_pair_of_calls() {
    let cases = all();
    assert_eq!(cases.len(), 21 * 20 * 18);
    run(&if is_exhaustive() { cases } else { sample(cases, SAMPLE) });
}

/// Regression: when no rank waits for the rank that is wrong, all ranks got Ok and different data, and no later call
/// noticed. Examples are two roots of a broadcast or scatter, and a rank in a gather or reduce while the others
/// broadcast or scatter.
#[test]
fn roots_that_wait_for_nobody() {
    let is_rooted = |called: &Called| called.root.is_some() && called.more == 0;
    let mut cases = all();
    cases.retain(|case| is_rooted(&case.usual) && is_rooted(&case.other) && case.elements <= 3072);
    cases.retain(|case| case.transport != "net");
    run(&cases);
}

/// A difference is found also where many calls follow in which nobody waits for the rank that is wrong.
#[test]
fn a_difference_long_ago() {
    for calls in [1, 40, 200] {
        let ends = local::run(2, |comm| {
            for _ in 0..calls {
                comm.broadcast(&mut [comm.rank()], comm.rank())?;
            }
            Ok(comm.barrier().err())
        });
        for end in ends.expect("ranks start") {
            let error = end.expect("the barrier finds it");
            assert_eq!(error.kind(), Kind::Mismatch, "{error}");
            for word in ["broadcast", "root 0", "root 1"] {
                assert!(error.to_string().contains(word), "{calls} calls: {error}");
            }
            assert!(error.peer().is_some());
        }
    }
}

/// Regression: a program that ended with such a call got Ok on all ranks.
#[test]
fn finalize_finds_roots_that_waited_for_nobody() {
    type Call = fn(&Communicator) -> Result<()>;
    let calls: [(Call, &str); 2] = [
        (|comm| comm.broadcast(&mut [comm.rank()], comm.rank()), "broadcast"),
        (|comm| comm.scatter(&[1, 2], &mut [0], comm.rank()), "scatter"),
    ];
    for transport in ["local", "shm", "net"] {
        let config = Config::default().with_p2p_disable(transport != "local").with_shm_disable(transport == "net");
        for (call, name) in calls {
            let ends = local::run_with(2, &config, |comm| {
                // Over sockets this opens the connections, in which ranks wait for each other.
                for root in 0..2 {
                    comm.broadcast(&mut [0], root)?;
                    comm.scatter(&[1, 2], &mut [0], root)?;
                }
                call(&comm)?;
                Ok(comm.finalize().err())
            });
            let ends: Vec<Error> = ends.expect("the calls go through").into_iter().flatten().collect();
            assert!(!ends.is_empty(), "{name} by {transport}");
            for error in ends {
                assert_eq!(error.kind(), Kind::Mismatch, "{error}");
                for word in ["finalize", name, "root 0", "root 1"] {
                    assert!(error.to_string().contains(word), "{error}");
                }
            }
        }
    }
}

/// Cases of a usual run.
const SAMPLE: usize = 1000;
/// Cases at a time.
const WORKERS: usize = 12;
