//! Each call of the driver that fails while processes register windows of memory that they have allocated themselves.

use std::collections::BTreeMap;

use super::gpus::jobs::{SIMPLE, on_gpus_each};
use super::windows::{BOUNDED, must_run_as};
use crate::with;
use testing::ranks::{Answer, Job, Rank};
use testing::worker::window_calls::{BEGIN, END};

/// Of memory that is allocated in the way of that name. Each function fails at its first call and, where the memory
/// lies in `parts`, at its last one, on the rank that hands over its memory and takes the other's.
pub(super) fn each_call_fails(kind: &str, least: usize) {
    let Some(calls) = calls_of(kind) else { return };
    assert!(calls.len() >= least, "{kind}: {calls:?}");
    for (function, (before, times)) in calls {
        one_fails(kind, &function, before + 1);
        if kind == "parts" && times > 1 {
            one_fails(kind, &function, before + times);
        }
    }
}

/// The functions for memory that rank 0 calls while it registers, with how often before and how often then.
fn calls_of(kind: &str) -> Option<BTreeMap<String, (usize, usize)>> {
    let (mut job, _) = start(&[("VCUDA_DEBUG", "1")])?;
    must_register(&mut job, kind);
    let log = job.ranks[0].log();
    let (before, then) = log.split_once(BEGIN).expect("it has registered");
    let (then, _) = then.split_once(END).expect("it has registered");
    let count = |text: &str| {
        let mut counts = BTreeMap::<String, usize>::new();
        for (name, _) in text.lines().filter_map(|line| line.strip_prefix("vcuda: ")?.split_once(": ")) {
            if FUNCTIONS.contains(&name) {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
        counts
    };
    let earlier = count(before);
    job.must("drop");
    Some(
        count(then)
            .into_iter()
            .map(|(name, times)| {
                let before = earlier.get(&name).copied().unwrap_or(0);
                (name, (before, times))
            })
            .collect(),
    )
}

/// Those that find, hand over and take memory. What gives it back has nobody to tell.
const FUNCTIONS: [&str; 12] = [
    "cuPointerGetAttribute",
    "cuPointerGetAttributes",
    "cuMemGetAddressRange_v2",
    "cuMemRetainAllocationHandle",
    "cuMemGetAccess",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemAddressReserve",
    "cuMemMap",
    "cuMemSetAccess",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
];

fn start(first: &[(&str, &str)]) -> Option<(Job, Vec<(usize, usize)>)> {
    let of = |rank: usize| if rank == 0 { with(BOUNDED, first) } else { BOUNDED.to_vec() };
    on_gpus_each(2, |rank| with(&of(rank), &[SIMPLE]))
}

fn must_register(job: &mut Job, kind: &str) {
    must_run_as(job, &format!("register_own {kind} 3001"), true);
}

/// An error that names the function on rank 0, or a window in name on both ranks. Nothing is left, and a communicator
/// that has not ended, else the next one, works in windows of such memory.
fn one_fails(kind: &str, function: &str, place: usize) {
    let what = format!("{kind}: {function}, call {place}");
    let fault = format!("{function}:{place}");
    let Some((mut job, before)) = start(&[("VCUDA_FAIL", &fault)]) else { return };
    job.begin(&format!("register_own {kind} 3001"), |_| true);
    let answers: Vec<_> = job.ranks.iter().map(Rank::answer).collect();
    let texts: Vec<String> = answers.iter().map(|answer| format!("{answer:?}")).collect();
    let named = texts[0].contains(function.trim_end_matches("_v2"));
    let in_name = texts.iter().all(|text| text.contains("false"));
    assert!(named || in_name, "{what}: {texts:?}");
    if !answers.iter().all(|answer| matches!(answer, Answer::Ok(_))) {
        job.must("drop");
        job.join();
        (0..2).for_each(|rank| drop(job.ranks[rank].must(&format!("gpu {rank}"))));
    }
    job.must("call all_reduce 1000");
    must_register(&mut job, kind);
    job.must_leave_nothing(&before);
}
