//! Who holds a job up, in sentences.
//!
//! A rank waits for others: for those that have not entered its collective or its split, or for the other ends of its
//! messages. A rank that is waited for may wait itself, in this communicator or, on the same thread, in another one.
//! At the end of such a chain is a rank that does not wait: it is named, with what it does. Where there is none, ranks
//! wait for each other in a circle, which is named.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use serde_json::{Value, json};

use super::ranks::{Awaited, Rank, World};

/// What is wrong with a job.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) kind: &'static str,
    pub(crate) text: String,
    /// Whom it names: host, process, rank.
    pub(crate) rank: Option<u64>,
    pub(crate) pid: Option<u64>,
    pub(crate) host: String,
    /// How many ranks wait because of it.
    pub(crate) waiting: usize,
}

impl Finding {
    pub(crate) fn as_json(&self) -> Value {
        let Finding { kind, text, rank, pid, host, waiting } = self;
        json!({ "kind": kind, "text": text, "rank": rank, "pid": pid, "host": host, "waiting": waiting })
    }
}

/// For whom a rank waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Target {
    /// A rank that is known, by number in [`World::ranks`].
    Known(usize),
    /// A rank of that rank's communicator of which nothing is known.
    Missing(usize, u64),
}

/// The ranks that wait because of another one.
struct Behind {
    /// That one.
    end: Target,
    all: BTreeSet<usize>,
    /// Those of them that wait for it directly.
    before: BTreeSet<usize>,
}

/// All waits of a world, and who is behind them.
struct Waits<'a> {
    world: &'a World,
    places: BTreeMap<(&'a str, u64), usize>,
    /// The ranks that each thread of a process has: those that wait.
    waiting_of_thread: HashMap<(usize, u64), Vec<usize>>,
    /// Who has not entered a collective, by communicator and number.
    late: HashMap<(&'a str, u64), Vec<Target>>,
}

/// What is wrong with the jobs of `world`, the worst first. Waits shorter than `least` seconds are no trouble.
pub(crate) fn findings(world: &World, least: f64) -> Vec<Finding> {
    let mut waits = Waits::new(world);
    let mut found = waits.different_calls(least);
    found.extend(waits.held_up(least));
    found.extend(failed(&waits));
    found.extend(never_started(world, least));
    let named: BTreeSet<(String, u64)> =
        found.iter().filter_map(|finding| Some((finding.host.clone(), finding.pid?))).collect();
    found.extend(stopped(world, &named));
    for process in world.processes.iter().filter(|process| process.problem.is_some()) {
        let text = format!("process {} {}", process.pid, process.problem.as_deref().unwrap_or_default());
        let host = process.host.clone();
        found.push(Finding { kind: "unreadable", text, rank: None, pid: Some(process.pid), host, waiting: 0 });
    }
    found
}

impl<'a> Waits<'a> {
    fn new(world: &'a World) -> Waits<'a> {
        let mut waiting_of_thread: HashMap<(usize, u64), Vec<usize>> = HashMap::new();
        for (place, rank) in world.ranks.iter().enumerate().filter(|(_, rank)| rank.wait.is_some()) {
            waiting_of_thread.entry((rank.process, rank.thread)).or_default().push(place);
        }
        Waits { world, places: world.by_place(), waiting_of_thread, late: HashMap::new() }
    }

    /// The ranks of `rank`'s communicator for which `is_wanted` is true, and those of which nothing is known.
    fn others(&self, place: usize, is_wanted: impl Fn(&Rank) -> bool) -> Vec<Target> {
        let me = &self.world.ranks[place];
        let known = self.places.range((&*me.communicator, 0)..=(&*me.communicator, u64::MAX));
        let known: BTreeMap<u64, usize> = known.map(|((_, rank), place)| (*rank, *place)).collect();
        let missing = (0..me.size).filter(|rank| !known.contains_key(rank)).take(MOST_MISSING);
        let missing: Vec<Target> = missing.map(|rank| Target::Missing(place, rank)).collect();
        let wanted = known.values().filter(|other| **other != place && is_wanted(&self.world.ranks[**other]));
        wanted.map(|place| Target::Known(*place)).chain(missing).collect()
    }

    /// For whom a rank waits.
    fn targets(&mut self, place: usize) -> Vec<Target> {
        let world = self.world;
        let Some(wait) = &world.ranks[place].wait else { return Vec::new() };
        let communicator = &*world.ranks[place].communicator;
        let of = |waits: &Waits<'a>, rank: u64| match waits.places.get(&(communicator, rank)) {
            Some(place) => Target::Known(*place),
            None => Target::Missing(place, rank),
        };
        match &wait.what {
            Awaited::Collective(call) => {
                let key = (communicator, call.number);
                if !self.late.contains_key(&key) {
                    let late = self.others(place, |rank| rank.begun <= call.number);
                    let inside = |rank: &Rank| rank.begun == call.number + 1 && rank.is_in_call && rank.wait.is_none();
                    let late = if late.is_empty() { self.others(place, inside) } else { late };
                    self.late.insert(key, late);
                }
                let late = self.late.get(&key).cloned().unwrap_or_default();
                match (late.is_empty(), rank_in(&wait.words)) {
                    (true, Some(rank)) => vec![of(self, rank)],
                    _ => late,
                }
            }
            Awaited::Messages(messages) => messages.iter().map(|(peer, _)| of(self, *peer)).collect(),
            Awaited::Meeting(call) => self.others(place, |rank| match &rank.wait {
                Some(wait) => !matches!(&wait.what, Awaited::Meeting(other) if other == call),
                None => true,
            }),
            Awaited::Other => rank_in(&wait.words).map(|rank| of(self, rank)).into_iter().collect(),
        }
    }

    /// The waits in which the thread of a rank is that is waited for.
    fn goes_on_at(&self, place: usize) -> Vec<usize> {
        let rank = &self.world.ranks[place];
        if self.world.processes[rank.process].state == "stopped" {
            return Vec::new();
        }
        if rank.wait.is_some() {
            return vec![place];
        }
        self.waiting_of_thread.get(&(rank.process, rank.thread)).cloned().unwrap_or_default()
    }

    /// The ranks at the ends of the chains that begin at a rank that waits; for each the rank before it.
    fn ends(&mut self, start: usize) -> BTreeMap<Target, usize> {
        let (mut ends, mut seen, mut queue) = (BTreeMap::new(), BTreeSet::from([start]), VecDeque::from([start]));
        while let Some(place) = queue.pop_front() {
            for target in self.targets(place) {
                let further = match target {
                    Target::Known(next) => self.goes_on_at(next),
                    Target::Missing(..) => Vec::new(),
                };
                if further.is_empty() {
                    let _first = ends.entry(target).or_insert(place);
                }
                queue.extend(further.into_iter().filter(|next| seen.insert(*next)));
            }
        }
        ends
    }

    /// Ranks that hold others up, and circles.
    fn held_up(&mut self, least: f64) -> Vec<Finding> {
        let world = self.world;
        let lasting = world.ranks.iter().enumerate();
        let lasting = lasting.filter(|(_, rank)| rank.wait.as_ref().is_some_and(|wait| wait.seconds >= least));
        let lasting: Vec<usize> = lasting.map(|(place, _)| place).collect();
        let mut behind: BTreeMap<Target, Behind> = BTreeMap::new();
        let mut circling = Vec::new();
        for place in lasting {
            let ends = self.ends(place);
            if ends.is_empty() {
                circling.push(place);
            }
            let is_anything_known = ends.keys().any(|end| matches!(end, Target::Known(_)));
            for (end, before) in ends {
                // Ranks of other hosts are not seen here.
                if is_anything_known && self.is_elsewhere(end) {
                    continue;
                }
                let none = || Behind { end, all: BTreeSet::new(), before: BTreeSet::new() };
                let entry = behind.entry(self.same_for_all(end)).or_insert_with(none);
                entry.all.insert(place);
                entry.before.insert(before);
            }
        }
        let mut found: Vec<Finding> = behind.into_values().map(|behind| self.held_by(&behind)).collect();
        found.sort_by_key(|finding| std::cmp::Reverse(finding.waiting));
        found.extend(self.circles(&circling));
        found
    }

    /// A rank of which nothing is known as the first known rank of its communicator would name it.
    fn same_for_all(&self, end: Target) -> Target {
        let Target::Missing(of, rank) = end else { return end };
        let communicator = &*self.world.ranks[of].communicator;
        let first = self.places.range((communicator, 0)..).next().map_or(of, |(_, place)| *place);
        Target::Missing(first, rank)
    }

    fn held_by(&self, Behind { end, all, before }: &Behind) -> Finding {
        let (world, end) = (self.world, *end);
        let waited = |place: &usize| world.ranks[*place].wait.as_ref().map_or(0.0, |wait| wait.seconds);
        let longest = before.iter().copied().max_by(|one, other| waited(one).total_cmp(&waited(other)));
        let Some(longest) = longest else { return Finding::of("late", String::new()) };
        let (waiter, seconds) = (&world.ranks[longest], waited(&longest));
        let (kind, named, rank, does, process) = match end {
            Target::Known(place) => {
                let rank = &world.ranks[place];
                let process = &world.processes[rank.process];
                let named = format!("rank {} (host {}, pid {})", rank.rank, process.host, process.pid);
                let (kind, does) = self.does(place);
                (kind, named, rank.rank, does, Some((process.host.clone(), process.pid)))
            }
            Target::Missing(of, rank) => self.absent(of, rank),
        };
        let what = match waiter.wait.as_ref().map(|wait| &wait.what) {
            Some(Awaited::Collective(call)) => {
                let has_entered = matches!(end, Target::Known(place) if world.ranks[place].begun > call.number);
                let done = if has_entered { "has not ended" } else { "has not entered" };
                format!("{named} {done} {}", named_call(&call.name, waiter))
            }
            Some(Awaited::Meeting(call)) => format!("{named} has not entered {}", named_call(call, waiter)),
            Some(Awaited::Messages(messages)) => {
                let message = messages.iter().find(|(peer, _)| *peer == rank).map_or("a message", |(_, text)| text);
                format!("rank {} waits for {named} in {}", waiter.rank, named_call(message, waiter))
            }
            Some(Awaited::Other) | None => format!("{named} is waited for"),
        };
        let (count, further) = (before.len(), all.len().saturating_sub(all.intersection(before).count()));
        let mut waits =
            format!("{} in it", if count == 1 { "1 rank waits".to_owned() } else { format!("{count} ranks wait") });
        if further > 0 {
            waits.push_str(&format!(", {further} more behind {}", if count == 1 { "it" } else { "these" }));
        }
        let subject =
            if does.starts_with("its ") || does.starts_with("no ") { String::new() } else { format!("rank {rank} ") };
        let text = format!("{what} for {}; {waits}; {subject}{does}", time(seconds));
        let (host, pid) = process.map_or((String::new(), None), |(host, pid)| (host, Some(pid)));
        Finding { kind, text, rank: Some(rank), pid, host, waiting: all.union(before).count() }
    }

    /// What a rank does that is waited for and does not wait.
    fn does(&self, place: usize) -> (&'static str, String) {
        let rank = &self.world.ranks[place];
        let process = &self.world.processes[rank.process];
        match (&*process.state, &*rank.state) {
            ("stopped", _) => ("stopped", "is stopped (SIGSTOP)".to_owned()),
            ("traced", _) => ("stopped", "is held by a debugger".to_owned()),
            ("ended", _) => ("dead", "has died".to_owned()),
            (_, "failed") => {
                let error = rank.error.as_deref().unwrap_or("an error that its page does not show");
                ("failed", format!("has failed: {error}"))
            }
            (_, "left") => ("left", "has said goodbye to the communicator".to_owned()),
            _ if rank.is_torn => ("late", "waits, but its page was caught half written: ask again".to_owned()),
            (state, _) if rank.is_in_call => {
                let last = rank.latest.last().map_or("a call".to_owned(), |call| call.name.clone());
                ("loops", format!("is in a call of rsccl, {} (its last collective is {last})", in_words(state)))
            }
            ("running", _) => ("late", "computes (not in rsccl)".to_owned()),
            (state, _) => ("late", format!("is not in rsccl, {}", in_words(state))),
        }
    }

    /// A rank that shows nothing: kind, name, number, what it does, process.
    fn absent(&self, of: usize, rank: u64) -> (&'static str, String, u64, String, Option<(String, u64)>) {
        let waiter = &self.world.ranks[of];
        let host = &self.world.processes[waiter.process].host;
        let Some(pid) = self.process_of(of, rank) else {
            return self.far(waiter, rank);
        };
        let named = format!("rank {rank} (host {host}, pid {pid})");
        let fate = self.world.fates.get(&(host.clone(), pid)).map(String::as_str);
        let (kind, does) = match fate {
            Some("ended") => ("dead", "has died: its process has ended"),
            Some("not dumpable") => ("hidden", "cannot be looked at: its process is not dumpable"),
            Some("of another user") => ("hidden", "cannot be looked at: its process is another user's"),
            _ if self.world.processes.iter().any(|process| process.host == *host && process.pid == pid) => {
                ("left", "has left the communicator: its process has no such rank any more")
            }
            Some(_) => ("left", "has left: its process has no ranks any more"),
            None => ("elsewhere", "shows nothing"),
        };
        (kind, named, rank, does.to_owned(), Some((host.clone(), pid)))
    }

    /// A rank that no process of `waiter`'s host has.
    fn far(&self, waiter: &Rank, rank: u64) -> (&'static str, String, u64, String, Option<(String, u64)>) {
        let kind = "elsewhere";
        let Some((_, pid, host)) = waiter.elsewhere.iter().find(|(peer, ..)| *peer == rank) else {
            let does = "no process here has it: it is on another host, or hides its pages (see --merge)";
            return (kind, format!("rank {rank}"), rank, does.to_owned(), None);
        };
        let does = match self.world.processes.iter().any(|process| process.host == *host) {
            true => "its process does not show it: it has left, or hides its pages",
            false => "its host was not looked at (see --merge)",
        };
        (kind, format!("rank {rank} (host {host}, pid {pid})"), rank, does.to_owned(), Some((host.clone(), *pid)))
    }

    /// The process of a rank of the communicator of a rank that is known.
    fn process_of(&self, of: usize, rank: u64) -> Option<u64> {
        let peers = &self.world.ranks[of].peers;
        peers.iter().find(|(peer, _)| *peer == rank).map(|(_, process)| *process)
    }

    /// Whether a rank of which nothing is known is on a host that was not looked at.
    fn is_elsewhere(&self, end: Target) -> bool {
        let Target::Missing(of, rank) = end else { return false };
        self.world.ranks[of].hosts > 1 && self.process_of(of, rank).is_none()
    }

    /// Ranks that wait for each other.
    fn circles(&mut self, circling: &[usize]) -> Vec<Finding> {
        let mut told = BTreeSet::new();
        let mut found = Vec::new();
        for start in circling {
            // Step by step to the first rank that comes again.
            let (mut way, mut place) = (vec![*start], *start);
            let circle = loop {
                let next = self.targets(place).into_iter().find_map(|target| match target {
                    Target::Known(next) => self.goes_on_at(next).first().copied(),
                    Target::Missing(..) => None,
                });
                let Some(next) = next else { break Vec::new() };
                if let Some(begin) = way.iter().position(|known| *known == next) {
                    break way.split_off(begin);
                }
                way.push(next);
                place = next;
            };
            if circle.is_empty() || circle.iter().any(|place| !told.insert(*place)) {
                continue;
            }
            found.push(self.circle(&circle, circling.len()));
        }
        found
    }

    fn circle(&self, circle: &[usize], waiting: usize) -> Finding {
        let ranks = circle.iter().map(|place| &self.world.ranks[*place]);
        let parts: Vec<String> = ranks
            .clone()
            .map(|rank| {
                let process = &self.world.processes[rank.process];
                let call = rank.wait.as_ref().map_or_else(String::new, |wait| match &wait.what {
                    Awaited::Collective(call) => call.name.clone(),
                    Awaited::Meeting(call) => call.clone(),
                    Awaited::Messages(messages) => {
                        messages.first().map_or("messages".to_owned(), |(_, text)| text.clone())
                    }
                    Awaited::Other => rank.wait.as_ref().map_or_else(String::new, |wait| wait.words.clone()),
                });
                let (host, pid) = (&process.host, process.pid);
                format!("rank {} (host {host}, pid {pid}) waits in {call} of communicator {}", rank.rank, rank.shown())
            })
            .collect();
        let seconds = ranks.filter_map(|rank| Some(rank.wait.as_ref()?.seconds)).fold(0.0, f64::max);
        let text = format!("ranks wait for each other for {}: {}", time(seconds), parts.join(", "));
        Finding { waiting, ..Finding::of("circle", text) }
    }

    /// The ranks of a communicator that are known.
    fn all_of(&self, communicator: &str) -> Vec<&'a Rank> {
        let all = self.places.range((communicator, 0)..=(communicator, u64::MAX));
        all.map(|(_, place)| &self.world.ranks[*place]).collect()
    }

    /// Ranks that have called different collectives under one number.
    fn different_calls(&self, least: f64) -> Vec<Finding> {
        let mut found = Vec::new();
        let mut told: BTreeSet<&str> = BTreeSet::new();
        for rank in &self.world.ranks {
            let Some(wait) = rank.wait.as_ref().filter(|wait| wait.seconds >= least) else { continue };
            if told.contains(&*rank.communicator) || !matches!(wait.what, Awaited::Collective(_)) {
                continue;
            }
            let all = self.all_of(&rank.communicator);
            if let Some(text) = super::explain::first_difference(&all) {
                told.insert(&rank.communicator);
                let waiting = all.iter().filter(|rank| rank.wait.is_some()).count();
                found.push(Finding { waiting, ..Finding::of("different", text) });
            }
        }
        found
    }
}

impl Finding {
    fn of(kind: &'static str, text: String) -> Finding {
        Finding { kind, text, rank: None, pid: None, host: String::new(), waiting: 0 }
    }
}

impl Rank {
    /// The name of its communicator, or its number, which a rank that has not met the others does not know.
    pub(crate) fn shown(&self) -> &str {
        match (self.name.is_empty(), self.communicator.trim_matches('0').is_empty()) {
            (false, _) => &self.name,
            (true, true) => "-",
            (true, false) => &self.communicator,
        }
    }
}

/// Communicators that have failed: what the ranks have called differently, peers that have gone, or the error.
fn failed(waits: &Waits<'_>) -> Vec<Finding> {
    let world = waits.world;
    let mut found = Vec::new();
    let mut told = BTreeSet::new();
    for (place, rank) in world.ranks.iter().enumerate().filter(|(_, rank)| rank.state == "failed") {
        if !told.insert(&rank.communicator) {
            continue;
        }
        if let Some(text) = super::explain::first_difference(&waits.all_of(&rank.communicator)) {
            found.push(Finding::of("different", text));
            continue;
        }
        let absent = rank.peers.iter().filter(|(peer, _)| !waits.places.contains_key(&(&*rank.communicator, *peer)));
        let before = found.len();
        for (peer, _) in absent {
            let (kind, named, rank_number, does, process) = waits.absent(place, *peer);
            let text = format!("{named} {does}; communicator {} has failed", rank.shown());
            let (host, pid) = process.map_or((String::new(), None), |(host, pid)| (host, Some(pid)));
            found.push(Finding { kind, text, rank: Some(rank_number), pid, host, waiting: 0 });
        }
        if found.len() == before {
            let error = rank.error.as_deref().unwrap_or("an error that its page does not show");
            let process = &world.processes[rank.process];
            let (host, pid) = (process.host.clone(), process.pid);
            let named = format!("rank {} (host {host}, pid {pid})", rank.rank);
            let text = format!("communicator {} of {named} has failed: {error}", rank.shown());
            found.push(Finding { kind: "failed", text, rank: Some(rank.rank), pid: Some(pid), host, waiting: 0 });
        }
    }
    found
}

/// Ranks that others wait for in an init.
fn never_started(world: &World, least: f64) -> Vec<Finding> {
    let mut inits: BTreeMap<(String, u64), Vec<&Rank>> = BTreeMap::new();
    for rank in world.ranks.iter().filter(|rank| rank.state == "beginning") {
        let process = &world.processes[rank.process];
        // Without an id those that one process has started belong together.
        let key = match &*rank.unique_id {
            "0000000000000000" if rank.parent == "0000000000000000" => {
                format!("{} of {} {}", rank.origin, process.host, process.parent)
            }
            "0000000000000000" => format!("{} of {}", rank.origin, rank.parent),
            id => id.to_owned(),
        };
        inits.entry((key, rank.size)).or_default().push(rank);
    }
    let mut found = Vec::new();
    for ((_, size), begun) in inits {
        let seconds = begun.iter().map(|rank| rank.age).fold(0.0, f64::max);
        let call = &begun[0].origin;
        let present: BTreeSet<u64> = begun.iter().map(|rank| rank.rank).collect();
        let missing: Vec<u64> = (0..size).filter(|rank| !present.contains(rank)).take(MOST_MISSING).collect();
        if seconds < least {
            continue;
        }
        let is_stopped = |rank: &&&Rank| world.processes[rank.process].state == "stopped";
        let wait = format!("{} in {call} for {}", counted(begun.len(), "wait"), time(seconds));
        if let Some(rank) = begun.iter().find(is_stopped) {
            let process = &world.processes[rank.process];
            let text = format!(
                "rank {} (host {}, pid {}) is stopped (SIGSTOP) in {call}; {wait}",
                rank.rank, process.host, process.pid
            );
            let (host, pid, waiting) = (process.host.clone(), Some(process.pid), begun.len());
            found.push(Finding { kind: "stopped", text, rank: Some(rank.rank), pid, host, waiting });
            continue;
        }
        let Some(first) = missing.first() else {
            let text = format!("{wait}: all {size} have begun; they {}", begun[0].phase);
            found.push(Finding { waiting: begun.len(), ..Finding::of("beginning", text) });
            continue;
        };
        let parents: BTreeSet<(&str, u64)> = begun
            .iter()
            .map(|rank| &world.processes[rank.process])
            .map(|process| (&*process.host, process.parent))
            .collect();
        let idle = world.beside.iter().filter(|(host, _, parent, _)| parents.contains(&(host, *parent)));
        let idle: Vec<String> = idle.take(8).map(|(_, pid, ..)| pid.to_string()).collect();
        let where_else = match &idle[..] {
            [] => "no process here is it: it was not started, or is on another host".to_owned(),
            [one] => format!("process {one}, started beside the others, has not called rsccl yet"),
            several => {
                format!("processes {}, started beside the others, have not called rsccl yet", several.join(", "))
            }
        };
        let text = format!("{} never started (of {size}); {wait}; {where_else}", listed(&missing));
        found.push(Finding { rank: Some(*first), waiting: begun.len(), ..Finding::of("never started", text) });
    }
    found
}

/// Processes that are stopped, of which nothing else was said.
fn stopped(world: &World, named: &BTreeSet<(String, u64)>) -> Vec<Finding> {
    let mut found = Vec::new();
    for (place, process) in world.processes.iter().enumerate().filter(|(_, process)| process.state == "stopped") {
        let rank = world.ranks.iter().find(|rank| rank.process == place);
        if named.contains(&(process.host.clone(), process.pid)) {
            continue;
        }
        let Some(rank) = rank else { continue };
        let text = format!("rank {} (host {}, pid {}) is stopped (SIGSTOP)", rank.rank, process.host, process.pid);
        let (host, pid) = (process.host.clone(), Some(process.pid));
        found.push(Finding { kind: "stopped", text, rank: Some(rank.rank), pid, host, waiting: 0 });
    }
    found
}

/// A call, with the communicator where the program has given it a name.
fn named_call(call: &str, rank: &Rank) -> String {
    if rank.name.is_empty() { call.to_owned() } else { format!("{call} of communicator {}", rank.name) }
}

/// The rank in the words of a wait: "rank 3 (its data)".
fn rank_in(words: &str) -> Option<u64> {
    let (_, rest) = words.split_once("rank ")?;
    let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn in_words(state: &str) -> String {
    match state {
        "running" => "runs".to_owned(),
        "sleeping" => "sleeps".to_owned(),
        other => format!("is {other}"),
    }
}

fn counted(count: usize, verb: &str) -> String {
    if count == 1 { format!("1 rank {verb}s") } else { format!("{count} ranks {verb}") }
}

/// "ranks 1, 2 and 5".
pub(crate) fn listed(ranks: &[u64]) -> String {
    match ranks {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(u64::to_string).collect();
            format!("ranks {} and {last}", first.join(", "))
        }
    }
}

/// A time, as exactly as it says something.
pub(crate) fn time(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

/// Ranks of which nothing is known that are named.
const MOST_MISSING: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// A rank of communicator c, in a process of its own, which runs.
    fn rank(rank: u64, size: u64, more: Value) -> Value {
        let mut shown = json!({
            "communicator": "c", "rank": rank, "size": size, "state": "ready", "hosts": 1, "begun": 1, "thread": 16,
            "parent": "0000000000000000", "unique_id": "0000000000000000",
            "processes": (0..size).map(|rank| [rank, 100 + rank]).collect::<Vec<_>>(),
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            shown[name] = value.clone();
        }
        json!({ "pid": 100 + rank, "process": 100 + rank, "host": "a", "state": "running", "ranks": [shown] })
    }

    fn waits_for(peer: u64) -> Value {
        let message = json!({ "peer": peer, "text": format!("recv #0 from rank {peer}") });
        json!({ "wait": { "kind": "messages", "waited_s": 5.0, "messages": [message] } })
    }

    fn found(processes: Vec<Value>, missing: Value) -> Vec<Finding> {
        let mut world = World::default();
        let document = json!({ "rsccl_status": 1, "host": "a", "processes": processes, "missing": missing });
        world.add(&document).unwrap();
        findings(&world, 1.0)
    }

    #[test]
    fn the_end_of_a_chain_is_named_and_who_is_behind_whom_is_counted() {
        let chain = vec![rank(0, 3, waits_for(1)), rank(1, 3, waits_for(2)), rank(2, 3, json!({}))];
        let found = found(chain, json!([]));
        assert_eq!(found.len(), 1, "{found:?}");
        let text = "rank 1 waits for rank 2 (host a, pid 102) in recv #0 from rank 2 for 5.0 s; 1 rank waits in it, 1 \
                    more behind it; rank 2 computes (not in rsccl)";
        assert_eq!((&*found[0].text, found[0].rank, found[0].waiting), (text, Some(2), 2));
    }

    #[test]
    fn messages_in_a_circle_are_told_as_one() {
        let ring = (0..4).map(|me| rank(me, 4, waits_for((me + 1) % 4))).collect();
        let found = found(ring, json!([]));
        assert_eq!((found.len(), found[0].kind, found[0].waiting), (1, "circle", 4), "{found:?}");
        assert_eq!(found[0].text.matches("waits in recv #0 from rank").count(), 4, "{found:?}");
    }

    #[test]
    fn what_became_of_a_rank_that_shows_nothing_is_told() {
        let of = |fate: Value| found(vec![rank(0, 2, waits_for(1))], json!([{ "pid": 101, "fate": fate }]));
        for (fate, kind) in [("ended", "dead"), ("not dumpable", "hidden"), ("without pages", "left")] {
            assert_eq!(of(fate.into())[0].kind, kind);
        }
        let mut elsewhere = waits_for(1);
        elsewhere["processes"] = json!([[0, 100]]);
        elsewhere["hosts"] = json!(2);
        let found = found(vec![rank(0, 2, elsewhere)], json!([]));
        assert_eq!((found[0].kind, found[0].pid), ("elsewhere", None), "{found:?}");
        let mut elsewhere = waits_for(1);
        elsewhere["processes"] = json!([[0, 100]]);
        elsewhere["hosts"] = json!(2);
        elsewhere["elsewhere"] = json!([[1, 412, "b"]]);
        let far = self::found(vec![rank(0, 2, elsewhere)], json!([]));
        assert_eq!((far[0].kind, far[0].pid, &*far[0].host), ("elsewhere", Some(412), "b"), "{far:?}");
        let text = "rank 0 waits for rank 1 (host b, pid 412) in recv #0 from rank 1 for 5.0 s; 1 rank waits in it; \
                    its host was not looked at (see --merge)";
        assert_eq!(far[0].text, text);
    }

    #[test]
    fn documents_of_strangers_are_read_as_far_as_they_make_sense() {
        for more in
            [json!({ "size": 1u64 << 60 }), json!({ "rank": 7 }), json!({ "size": null }), json!({ "rank": -1 })]
        {
            assert!(found(vec![rank(0, 2, more)], json!([])).is_empty());
        }
        let wait = json!({ "kind": "messages", "waited_s": 1e308, "messages": [7, {}, { "peer": 99 }] });
        let odd = json!({ "wait": wait, "name": "\u{1b}[2J" });
        let found = found(vec![rank(0, 2, odd), json!(7), json!({ "ranks": 7 })], json!(null));
        assert!(found.iter().all(|finding| !finding.text.contains('\u{1b}')), "{found:?}");
        let mut world = World::default();
        assert!(world.add(&json!({ "rsccl_status": 2 })).is_err() && world.add(&json!([])).is_err());
    }
}
