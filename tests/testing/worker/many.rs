//! Many communicators at once, each with a request that does not end: what they take of the process, and whether it
//! wakes for them.

use rsccl::comm::OwnedRequest;
use rsccl::{Communicator, Result};

/// Children of one communicator, each with a receive that is under way.
#[derive(Default)]
pub(super) struct Many(Vec<(Communicator, OwnedRequest<[u32; 1]>)>);

impl Many {
    /// `count` more.
    pub(super) fn open(&mut self, comm: &Communicator, count: usize) -> Result<()> {
        for _ in 0..count {
            let child = comm.by_color(0, 0)?;
            // Opens the connections.
            match child.rank() {
                0 => child.send(&[1u32], 1).and_then(|()| child.recv(&mut [0u32], 1))?,
                _ => child.recv(&mut [0u32], 0).and_then(|()| child.send(&[1u32], 0))?,
            }
            let received = child.start([0u32], |calls, word| calls.recv(word, 1 - child.rank()))?;
            self.0.push((child, received));
        }
        Ok(())
    }

    /// Lets all of them end, those of every second communicator last.
    pub(super) fn end(&mut self) -> Result<usize> {
        let all = std::mem::take(&mut self.0);
        let count = all.len();
        for first in [0, 1] {
            for (child, _) in all.iter().skip(first).step_by(2) {
                child.send(&[7u32], 1 - child.rank())?;
            }
        }
        for (child, received) in all {
            assert_eq!(received.wait()?, [7]);
            child.finalize()?;
        }
        Ok(count)
    }
}

/// What this process has: threads of the library, open files, resident KiB, and how often these threads have slept.
pub(super) fn burden() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let entries = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).expect("/proc is there");
    let number = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
    };
    let (mut threads, mut sleeps) = (0, 0);
    for task in entries("task").flatten() {
        let status = read(&format!("{}/status", task.path().display()));
        if status.lines().any(|line| line.starts_with("Name:\trsccl ")) {
            threads += 1;
            sleeps += number(&status, "voluntary_ctxt_switches:");
        }
    }
    let resident = read("/proc/self/status");
    format!("{threads} {} {} {sleeps}", entries("fd").count(), number(&resident, "VmRSS:"))
}
