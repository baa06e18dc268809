//! What `rsccl status` prints for people.

use std::collections::{BTreeMap, BTreeSet};

use rsccl::internals::sys::rank_page;

use super::ranks::{Awaited, Rank, World};
use super::verdict::{Finding, time};

/// Everything that is known of the jobs here: verdicts first, then a line for each rank.
pub(crate) fn text(world: &World, findings: &[Finding], most_rows: usize) -> String {
    let mut text = String::new();
    let jobs = jobs(world);
    let processes = world.processes.len();
    let counted = |count: usize, one: &str, more: &str| format!("{count} {}", if count == 1 { one } else { more });
    let (jobs_here, processes) = (counted(jobs.len(), "job", "jobs"), counted(processes, "process", "processes"));
    let ranks = counted(world.ranks.len(), "rank", "ranks");
    text.push_str(&format!("{jobs_here}, {processes} with {ranks} of communicators.\n"));
    for finding in findings {
        text.push_str(&format!("! {}\n", finding.text));
    }
    if findings.is_empty() {
        text.push_str("Nobody holds another up.\n");
    }
    for (number, members) in jobs.iter().enumerate() {
        text.push_str(&of_job(world, number + 1, members, most_rows));
    }
    let hidden: u64 = world.processes.iter().map(|process| process.hidden).sum();
    if hidden > 0 {
        text.push_str(&format!(
            "{hidden} more ranks are not shown: a process has pages for {}.\n",
            rank_page::MOST_PAGES
        ));
    }
    text
}

/// Processes that have a communicator in common, directly or by others.
pub(crate) fn jobs(world: &World) -> Vec<BTreeSet<usize>> {
    let mut job_of: Vec<usize> = (0..world.processes.len()).collect();
    let root = |job_of: &[usize], mut at: usize| {
        while job_of[at] != at {
            at = job_of[at];
        }
        at
    };
    let mut first_with: BTreeMap<String, usize> = BTreeMap::new();
    for rank in &world.ranks {
        let process = &world.processes[rank.process];
        let mut names = vec![&rank.communicator, &rank.parent, &rank.unique_id];
        names.retain(|name| !name.trim_matches('0').is_empty());
        // In an init without an id: those that one process has started.
        let started = format!("{} {} {} {}", rank.origin, rank.size, process.host, process.parent);
        if names.is_empty() {
            names.push(&started);
        }
        for name in names {
            let other = *first_with.entry(name.clone()).or_insert(rank.process);
            let (one, other) = (root(&job_of, rank.process), root(&job_of, other));
            job_of[one.max(other)] = one.min(other);
        }
    }
    let mut jobs: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
    for process in 0..world.processes.len() {
        jobs.entry(root(&job_of, process)).or_default().insert(process);
    }
    jobs.into_values().collect()
}

fn of_job(world: &World, number: usize, members: &BTreeSet<usize>, most_rows: usize) -> String {
    let names: BTreeSet<&str> = members.iter().map(|process| &*world.processes[*process].command).collect();
    let names: Vec<&str> = names.into_iter().take(4).collect();
    let mut text = format!("\nJob {number}, of {}\n", names.join(", "));
    let mut rows = vec![HEADER.map(str::to_owned)];
    let mut ranks: Vec<&Rank> = world.ranks.iter().filter(|rank| members.contains(&rank.process)).collect();
    ranks.sort_by_key(|rank| (rank.size, &rank.communicator, rank.rank));
    ranks.sort_by_key(|rank| std::cmp::Reverse(rank.size));
    let left_off = ranks.len().saturating_sub(most_rows);
    for rank in ranks.into_iter().take(most_rows) {
        let process = &world.processes[rank.process];
        let place = format!("{} of {}", rank.rank, rank.size);
        let (pid, begun) = (process.pid.to_string(), rank.begun.to_string());
        rows.push([
            rank.shown().to_owned(),
            place,
            process.host.clone(),
            pid,
            process.state.clone(),
            begun,
            does(rank),
        ]);
    }
    let widths: Vec<usize> =
        (0..HEADER.len()).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        text.push_str(&format!("  {}\n", cells.join("  ").trim_end()));
    }
    if left_off > 0 {
        text.push_str(&format!("  and {left_off} more (--rows {})\n", most_rows + left_off));
    }
    text
}

/// What a rank does.
fn does(rank: &Rank) -> String {
    if rank.state == "beginning" {
        return format!("{} for {}: {}", rank.origin, time(rank.age), rank.phase);
    }
    if rank.state != "ready" {
        return rank.error.as_ref().map_or(rank.state.clone(), |error| format!("{}: {error}", rank.state));
    }
    let way = if rank.way.is_empty() { String::new() } else { format!(" ({})", rank.way) };
    match &rank.wait {
        Some(wait) => {
            let what = match &wait.what {
                Awaited::Collective(call) => format!("{}{way}", call.text),
                Awaited::Messages(messages) => {
                    let named: Vec<&str> = messages.iter().take(3).map(|(_, text)| &**text).collect();
                    named.join(", ")
                }
                Awaited::Meeting(call) => call.clone(),
                Awaited::Other => String::new(),
            };
            format!("waits {} in {what}: for {}", time(wait.seconds), wait.words)
        }
        None if rank.is_in_call => "in a call".to_owned(),
        None => match rank.latest.last() {
            Some(call) => format!("not in rsccl; last {}{way}", call.name),
            None => "not in rsccl".to_owned(),
        },
    }
}

const HEADER: [&str; 7] = ["COMMUNICATOR", "RANK", "HOST", "PID", "PROCESS", "BEGUN", "DOES"];
