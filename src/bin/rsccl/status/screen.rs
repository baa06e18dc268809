//! What `rsccl status` prints for people.

use std::collections::{BTreeMap, BTreeSet};

use rsccl::internals::sys::rank_page;

use super::ranks::{Awaited, Rank, World};
use super::verdict::{Finding, time};

/// Everything that is known of the jobs here: verdicts first, then a line for each rank.
pub(crate) fn text(world: &World, findings: &[Finding], (most_rows, has_details): (usize, bool)) -> String {
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
        text.push_str(&of_job(world, number + 1, members, (most_rows, has_details)));
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

fn of_job(world: &World, number: usize, members: &BTreeSet<usize>, (most_rows, has_details): (usize, bool)) -> String {
    let names: BTreeSet<&str> = members.iter().map(|process| &*world.processes[*process].command).collect();
    let names: Vec<&str> = names.into_iter().take(4).collect();
    let mut text = format!("\nJob {number}, of {}\n", names.join(", "));
    let mut rows = vec![HEADER.map(str::to_owned)];
    let mut ranks: Vec<&Rank> = world.ranks.iter().filter(|rank| members.contains(&rank.process)).collect();
    ranks.sort_by_key(|rank| (rank.size, &rank.communicator, rank.rank));
    ranks.sort_by_key(|rank| std::cmp::Reverse(rank.size));
    let left_off = ranks.len().saturating_sub(most_rows);
    for rank in ranks.iter().take(most_rows) {
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
    if has_details {
        ranks.iter().take(most_rows).for_each(|rank| text.push_str(&details(rank)));
    }
    text
}

/// What a rank holds, and what went through its connections.
fn details(rank: &Rank) -> String {
    let none = |text: String| if text.is_empty() { "nothing".to_owned() } else { text };
    let list = |parts: Vec<String>| none(parts.join(", "));
    let memory =
        rank.memory.iter().filter(|(_, bytes)| *bytes > 0).map(|(kind, held)| format!("{kind} {}", bytes(*held)));
    let memory = list(memory.collect());
    let calls = rank.calls.iter().map(|(way, calls, moved)| format!("{calls} by {way} ({})", bytes(*moved)));
    let calls = list(calls.collect());
    let mut text = format!("\n  {} rank {}\n    memory  {memory}\n    calls   {calls}\n", rank.shown(), rank.rank);
    for connection in &rank.connections {
        let peer = connection.peer.map_or("others".to_owned(), |peer| format!("rank {peer}"));
        let ((sent, sent_bytes), (received, received_bytes)) = (connection.sent, connection.received);
        text.push_str(&format!(
            "    {peer} by {}: sent {sent} ({}), received {received} ({})\n",
            if connection.transport.is_empty() { "several" } else { &connection.transport },
            bytes(sent_bytes),
            bytes(received_bytes)
        ));
    }
    text
}

/// A number of bytes, short.
fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut left, mut unit) = (count, 0);
    while left >= 10 << 10 && unit + 1 < UNITS.len() {
        (left, unit) = (left >> 10, unit + 1);
    }
    format!("{left} {}", UNITS[unit])
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

/// A text as a screen of so many columns and rows shows it: nothing scrolls away from its top. Who holds whom up stands
/// there whole, on several lines where it must; rows of ranks are cut at the edge, and those beyond the last line are
/// counted.
pub(crate) fn fitted(text: &str, (columns, rows): (usize, usize)) -> String {
    let columns = columns.max(LEAST_COLUMNS);
    let lines: Vec<String> = text.lines().flat_map(|line| fitted_line(line, columns)).collect();
    // The cursor stands on the line behind the last.
    let most = rows.max(LEAST_ROWS) - 1;
    let left_off = lines.len().saturating_sub(most);
    let shown = if left_off > 0 { most - 1 } else { lines.len() };
    let mut fitted = lines[..shown].join("\n") + "\n";
    if left_off > 0 {
        fitted.push_str(&format!("... and {} more lines\n", left_off + 1));
    }
    fitted
}

fn fitted_line(line: &str, columns: usize) -> Vec<String> {
    if line.chars().count() <= columns {
        return vec![line.to_owned()];
    }
    if !line.starts_with("! ") {
        let cut: String = line.chars().take(columns - CUT.len()).collect();
        return vec![cut + CUT];
    }
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let last = lines.last().map_or(0, |last| last.chars().count());
        if last > 2 && last + 1 + word.chars().count() > columns {
            lines.push(" ".to_owned());
        }
        if let Some(last) = lines.last_mut() {
            last.push_str(if last.is_empty() { "" } else { " " });
            last.extend(word.chars().take(columns - 2));
        }
    }
    lines
}

/// Where a row is cut.
const CUT: &str = "..";
/// Screens with less show as much as these.
const LEAST_COLUMNS: usize = 20;
const LEAST_ROWS: usize = 4;

const HEADER: [&str; 7] = ["COMMUNICATOR", "RANK", "HOST", "PID", "PROCESS", "BEGUN", "DOES"];

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: &str = "1 job, 4 processes with 4 ranks of communicators.\n\
        ! rank 2 (host node1, pid 7431) has not entered all_reduce #1 for 6.4 s; 3 ranks wait in it; \
        rank 2 computes (not in rsccl)\n\
        \n\
        Job 1, of program\n  COMMUNICATOR      RANK    HOST   PID   PROCESS   BEGUN  DOES\n  \
        de58295da321771b  0 of 4  node1  7429  sleeping  2      waits 6.4 s in \
        all_reduce #1 (count 4, float, sum) (flat slots): for rank 2 (to call all_reduce #1)\n";

    #[test]
    fn a_narrow_screen_has_whole_sentences_and_cut_rows() {
        let shown = fitted(FRAME, (80, 24));
        assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines[1], "! rank 2 (host node1, pid 7431) has not entered all_reduce #1 for 6.4 s; 3 ranks");
        assert_eq!(lines[2], "  wait in it; rank 2 computes (not in rsccl)");
        assert_eq!(lines[6], "  de58295da321771b  0 of 4  node1  7429  sleeping  2      waits 6.4 s in all_r..");
        assert_eq!(fitted(FRAME, (200, 24)), FRAME, "a wide one has all of it");
    }

    #[test]
    fn a_low_screen_counts_what_it_leaves_off() {
        let shown = fitted(FRAME, (80, 5));
        assert_eq!(shown.lines().count(), 4, "{shown}");
        assert!(shown.ends_with("\n... and 4 more lines\n"), "{shown}");
        assert!(fitted("! \u{fc}\n", (0, 0)).starts_with("! "));
    }
}
