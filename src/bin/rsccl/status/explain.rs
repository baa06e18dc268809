//! Where ranks differ: the first collective that they have called differently, or of which some are short.

use std::collections::{BTreeMap, BTreeSet};

use super::ranks::{Call, Rank, World};
use super::verdict::listed;

/// The first collective that ranks of one communicator have called differently, of those that they still know.
pub(crate) fn first_difference(ranks: &[&Rank]) -> Option<String> {
    let mut by_number: BTreeMap<u64, BTreeMap<&str, (&Call, Vec<u64>)>> = BTreeMap::new();
    for rank in ranks {
        for call in &rank.latest {
            let alike = by_number.entry(call.number).or_default();
            alike.entry(&call.key).or_insert_with(|| (call, Vec::new())).1.push(rank.rank);
        }
    }
    let (number, groups) = by_number.into_iter().find(|(_, groups)| groups.len() > 1)?;
    let mut groups: Vec<(&Call, Vec<u64>)> = groups.into_values().collect();
    // The many first.
    groups.sort_by_key(|(_, ranks)| std::cmp::Reverse(ranks.len()));
    let parts: Vec<String> =
        groups.iter().map(|(call, ranks)| format!("{} called {}", listed(ranks), call.text)).collect();
    let communicator = ranks.first().map_or("", |rank| rank.shown());
    Some(format!("ranks differ in collective #{number} of communicator {communicator}: {}", parts.join(", ")))
}

/// For each communicator of a world: where its ranks first differ, or which are behind. Empty where nothing does.
pub(crate) fn sentences(world: &World) -> Vec<String> {
    let communicators: BTreeSet<&str> = world.ranks.iter().map(|rank| &*rank.communicator).collect();
    let of = |communicator: &str| -> Vec<&Rank> {
        world.ranks.iter().filter(|rank| rank.communicator == communicator && rank.state != "beginning").collect()
    };
    communicators.into_iter().filter_map(|communicator| sentence(&of(communicator))).collect()
}

fn sentence(ranks: &[&Rank]) -> Option<String> {
    if let Some(difference) = first_difference(ranks) {
        return Some(difference);
    }
    let first = ranks.first()?;
    let (least, most) = (ranks.iter().map(|rank| rank.begun).min()?, ranks.iter().map(|rank| rank.begun).max()?);
    let missing: BTreeSet<u64> = ranks.iter().map(|rank| rank.rank).collect();
    let missing: Vec<u64> = (0..first.size).filter(|rank| !missing.contains(rank)).take(16).collect();
    let absent = if missing.is_empty() { String::new() } else { format!("; no record of {}", listed(&missing)) };
    if least == most {
        let shown = first.shown();
        return (!missing.is_empty()).then(|| {
            format!("communicator {shown}: {most} collective{} on each rank{absent}", if most == 1 { "" } else { "s" })
        });
    }
    let behind: Vec<u64> = ranks.iter().filter(|rank| rank.begun == least).map(|rank| rank.rank).collect();
    let last = ranks.iter().filter(|rank| rank.begun == least).find_map(|rank| rank.latest.last());
    let last = last.map_or("none".to_owned(), |call| call.text.clone());
    let next = ranks.iter().flat_map(|rank| &rank.latest).find(|call| call.number == least);
    let next = next.map_or_else(|| format!("#{least}"), |call| call.text.clone());
    let (behind, verb) = (listed(&behind), if behind.len() == 1 { "has" } else { "have" });
    Some(format!(
        "communicator {}: {behind} {verb} not called {next}, which others have; the last call there is {last}{absent}",
        first.shown()
    ))
}
