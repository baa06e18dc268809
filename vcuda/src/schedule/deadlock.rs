//! The report of a machine that cannot move: who waits for whom, and the cycle among them.
//!
//! The waits are a graph of sentences' subjects: calls of the program, pieces of work, words of memory. A polled word
//! waits for those who may still write it: memory operations and copies to it that have not run; where there are none,
//! kernels that are not resident yet, and threads of the program that are held in a call. Processes publish their edges
//! in the shared state, with names of memory that are the same for all, so that a cycle through two processes is found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::order::{Memop, Operation, Work, is_satisfied};
use super::waits::Reason;
use super::{Surroundings, World};

/// Somebody waits for somebody.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    from: String,
    to: String,
    why: String,
}

/// Why a word waits for work that is sure to write it.
const KNOWN_WRITER: &str = "it is to write the word, and has not run";

/// Edges in a report, at most.
const SHOWN: usize = 40;

impl World {
    /// The report: the cycle if there is one, then all waits.
    pub(super) fn deadlock_report(&self, around: &Surroundings) -> String {
        let mut edges = self.edges(around);
        for (_, text) in around.space.state().waits_of_others() {
            edges.extend(text.lines().filter_map(parse));
        }
        keep_known_writers(&mut edges);
        let mut text = String::from("vcuda: deadlock: nothing on this machine can move");
        let quiet = around.conduct.stuck_after;
        match cycle(&edges) {
            Some(cycle) => {
                line(&mut text, format_args!(" (for {quiet:?}). Who waits for whom, as a cycle:"));
                for edge in &cycle {
                    line(&mut text, format_args!("  {} waits for {}: {}", edge.from, edge.to, edge.why));
                }
            }
            None => line(&mut text, format_args!(" (for {quiet:?}). No cycle is among the waits that are known:")),
        }
        line(&mut text, format_args!("all waits:"));
        for edge in edges.iter().take(SHOWN) {
            line(&mut text, format_args!("  {} waits for {}: {}", edge.from, edge.to, edge.why));
        }
        if edges.len() > SHOWN {
            line(&mut text, format_args!("  and {} more", edges.len() - SHOWN));
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// The edges of this process, a line each, for other processes to read.
    pub(super) fn waits_as_text(&self, around: &Surroundings) -> String {
        let mut text = String::new();
        for edge in self.edges(around) {
            line(&mut text, format_args!("{}\t{}\t{}", edge.from, edge.to, edge.why));
        }
        text
    }

    fn edges(&self, around: &Surroundings) -> Vec<Edge> {
        let mut edges = BTreeSet::new();
        for wait in self.waits.values() {
            let from = format!("thread {} in {} (process {})", wait.thread, wait.call, std::process::id());
            let why = match wait.reason {
                Reason::Asked => "the call ends when that is done",
                Reason::Implicit => "the call synchronises with the context's work by itself",
            };
            for work in wait.work.iter().filter_map(|id| self.operations.get(id)) {
                edges.insert(Edge { from: from.clone(), to: self.describe(work), why: why.to_owned() });
            }
        }
        for operation in self.operations.values() {
            self.edges_of(around, operation, &mut edges);
        }
        // A word may be polled by another process alone: what is to write it is told in any case.
        for operation in self.operations.values() {
            let Work::Memops { list, done } = &operation.work else { continue };
            for memop in &list[(*done).min(list.len())..] {
                if let Memop::Write { address, .. } = memop {
                    let from = around.space.common_name(*address);
                    edges.insert(Edge { from, to: self.describe(operation), why: KNOWN_WRITER.to_owned() });
                }
            }
        }
        let words: BTreeSet<String> =
            edges.iter().filter(|edge| edge.to.starts_with("word ")).map(|edge| edge.to.clone()).collect();
        for word in words {
            self.edges_of_word(around, &word, &mut edges);
        }
        edges.into_iter().collect()
    }

    fn edges_of(&self, around: &Surroundings, operation: &Operation, edges: &mut BTreeSet<Edge>) {
        let from = self.describe(operation);
        let mut add = |to: String, why: String| {
            if to != from {
                edges.insert(Edge { from: from.clone(), to, why });
            }
        };
        for before in operation.after.iter().filter_map(|id| self.operations.get(id)) {
            let why = if before.stream == operation.stream {
                "it comes before it in the stream"
            } else {
                "an event, a graph or the legacy stream puts it before"
            };
            add(self.describe(before), why.to_owned());
        }
        let queue = self.contexts.get(&operation.context).map(|context| &context.queues[operation.queue]);
        let place = queue.and_then(|queue| queue.iter().position(|id| *id == operation.id));
        if let (Some(queue), Some(place)) = (queue, place.filter(|place| *place > 0))
            && let Some(head) = self.operations.get(&queue[place - 1])
        {
            add(
                self.describe(head),
                format!("it stands before it in hardware queue {}, which their streams share", operation.queue),
            );
        }
        match &operation.work {
            Work::Memops { list, done } if place == Some(0) => {
                if let Some(Memop::Wait { address, wide, value, how }) = list.get(*done) {
                    let word = around.space.load_word(operation.agent(), *address, *wide).unwrap_or(0);
                    if !is_satisfied(word, *value, *wide, *how) {
                        add(
                            around.space.common_name(*address),
                            format!("it waits there for {value:#x} and finds {word:#x}"),
                        );
                    }
                }
            }
            Work::Kernel(_) if operation.started => self.edges_of_kernel(around, operation, &mut add),
            _ => {}
        }
    }

    fn edges_of_kernel(&self, around: &Surroundings, operation: &Operation, add: &mut dyn FnMut(String, String)) {
        let gpu = &self.gpus[operation.gpu as usize];
        // A line for each polled word, however many blocks poll it.
        let mut polled: BTreeMap<String, (String, usize)> = BTreeMap::new();
        for resident in gpu.blocks.iter().filter(|resident| resident.operation == operation.id) {
            if resident.hangs {
                add("nothing".to_owned(), "it hangs, because VCUDA_FAIL says so".to_owned());
            }
            if let Some(sleep) = &resident.sleep {
                for address in &sleep.polled {
                    let word = polled.entry(around.space.common_name(*address)).or_insert((sleep.what.clone(), 0));
                    word.1 += 1;
                }
            }
        }
        for (word, (what, blocks)) in polled {
            let others = if blocks > 1 { format!(", and {} other blocks too", blocks - 1) } else { String::new() };
            add(word, what + &others);
        }
        let Some(at) = gpu.grids.iter().position(|grid| grid.operation == operation.id) else { return };
        let waiting = gpu.grids[at].waiting();
        if waiting > 0 {
            for other in gpu.grids.iter().filter(|grid| grid.resident > 0) {
                if let Some(other) = self.operations.get(&other.operation).filter(|other| other.id != operation.id) {
                    add(self.describe(other), format!("{waiting} of its blocks find no room on the GPU beside it"));
                }
            }
        }
    }

    /// Who may still write a word of memory.
    fn edges_of_word(&self, around: &Surroundings, word: &str, edges: &mut BTreeSet<Edge>) {
        let is_it = |address: u64| around.space.common_name(address) == word;
        let mut writers: Vec<(String, &str)> = Vec::new();
        for operation in self.operations.values() {
            let writes = match &operation.work {
                Work::Memops { list, done } => list[(*done).min(list.len())..]
                    .iter()
                    .any(|memop| matches!(memop, Memop::Write { address, .. } if is_it(*address))),
                Work::Copy(copy) => {
                    copy.bytes <= 4096 && (0..copy.bytes).step_by(4).any(|offset| is_it(copy.target + offset))
                }
                _ => false,
            };
            if writes {
                writers.push((self.describe(operation), KNOWN_WRITER));
            }
        }
        if writers.is_empty() {
            for operation in self.operations.values() {
                let in_part = self.gpus[operation.gpu as usize]
                    .grids
                    .iter()
                    .any(|grid| grid.operation == operation.id && grid.waiting() > 0);
                let is_to_come = !operation.started || in_part;
                if is_to_come && matches!(operation.work, Work::Kernel(_)) {
                    writers.push((self.describe(operation), "its blocks may write the word, and are not all resident"));
                }
            }
            for wait in self.waits.values() {
                let who = format!("thread {} in {} (process {})", wait.thread, wait.call, std::process::id());
                writers.push((who, "the program may write the word or launch what does, and is held in this call"));
            }
        }
        for (to, why) in writers {
            edges.insert(Edge { from: word.to_owned(), to, why: why.to_owned() });
        }
    }

    /// A piece of work as a sentence's subject.
    fn describe(&self, operation: &Operation) -> String {
        let what = match &operation.work {
            Work::Mark => "a mark".to_owned(),
            Work::Record { .. } => "an event record".to_owned(),
            Work::Kernel(launch) => format!("kernel {}", launch.function.name),
            Work::Copy(copy) => format!("a copy of {} bytes", copy.bytes),
            Work::Fill { count, .. } => format!("a fill of {count} elements"),
            Work::Host { .. } => "a host function".to_owned(),
            Work::Memops { .. } => "a memory operation".to_owned(),
            Work::PoolFree { .. } => "a free of pool memory".to_owned(),
        };
        let legacy = self.streams.get(&operation.stream).is_some_and(|stream| stream.legacy);
        let stream = if legacy { "the legacy stream".to_owned() } else { format!("stream {:#x}", operation.stream) };
        let pid = std::process::id();
        format!("{what} (#{}, {stream}, queue {}, GPU {}, process {pid})", operation.id, operation.queue, operation.gpu)
    }
}

fn line(text: &mut String, what: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{what}");
}

/// Where some process knows who is to write a word, guesses of who might are dropped.
fn keep_known_writers(edges: &mut Vec<Edge>) {
    let known: BTreeSet<String> =
        edges.iter().filter(|edge| edge.why == KNOWN_WRITER).map(|edge| edge.from.clone()).collect();
    edges.retain(|edge| edge.why == KNOWN_WRITER || !known.contains(&edge.from));
}

fn parse(line: &str) -> Option<Edge> {
    let mut parts = line.splitn(3, '\t');
    let mut next = || parts.next().map(str::to_owned);
    Some(Edge { from: next()?, to: next()?, why: next()? })
}

/// A cycle among the edges, if there is one: the shortest one found from any start.
fn cycle(edges: &[Edge]) -> Option<Vec<Edge>> {
    let mut next: BTreeMap<&str, Vec<&Edge>> = BTreeMap::new();
    for edge in edges {
        next.entry(&edge.from).or_default().push(edge);
    }
    let mut best: Option<Vec<Edge>> = None;
    for start in next.keys() {
        let mut came_by: BTreeMap<&str, &Edge> = BTreeMap::new();
        let mut line = std::collections::VecDeque::from([*start]);
        while let Some(at) = line.pop_front() {
            for edge in next.get(at).into_iter().flatten() {
                if came_by.contains_key(edge.to.as_str()) {
                    continue;
                }
                came_by.insert(&edge.to, edge);
                line.push_back(&edge.to);
            }
        }
        let Some(last) = came_by.get(start) else { continue };
        let mut path = vec![(*last).clone()];
        let mut at = last.from.as_str();
        while at != *start {
            let edge = came_by[at];
            path.push(edge.clone());
            at = &edge.from;
        }
        path.reverse();
        if best.as_ref().is_none_or(|best| path.len() < best.len()) {
            best = Some(path);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_cycle_is_found() {
        let edge = |from: &str, to: &str| Edge { from: from.into(), to: to.into(), why: "x".into() };
        let edges = [edge("a", "b"), edge("b", "c"), edge("c", "a"), edge("c", "b"), edge("d", "a")];
        let found: Vec<String> = cycle(&edges).expect("a cycle").into_iter().map(|edge| edge.from).collect();
        assert_eq!(found, ["b", "c"]);
        assert_eq!(cycle(&[edge("a", "b"), edge("b", "c")]), None);
        assert_eq!(parse("a\tb\tbecause"), Some(Edge { from: "a".into(), to: "b".into(), why: "because".into() }));
    }
}
