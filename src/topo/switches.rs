//! Which hosts hang on which switches of the network: from a small file, or from Slurm.
//!
//! ```text
//! # a line for each group: its name, then its hosts
//! rack-a: node[01-04] node17
//! # or Slurm's topology.conf, of switches
//! SwitchName=leaf1 Nodes=node[01-04,17]
//! SwitchName=spine Switches=leaf[1-2]
//! # or of blocks, each of which is a group
//! BlockName=b1 Nodes=node[01-18]
//! BlockSizes=18
//! # or Slurm's topology.yaml
//! - topology: default
//!   tree:
//!     switches:
//!       - switch: leaf1
//!         nodes: node[01-04,17]
//! ```

mod lines;
mod names;
mod slurm_yaml;
mod yaml;

use std::collections::{HashMap, HashSet};

use crate::error::{Error, Result};

/// The switches above each host that a file names, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Switches {
    above: HashMap<String, Vec<String>>,
    groups: Vec<SwitchGroup>,
    /// Names of groups that are below another.
    below: HashSet<String>,
    /// What kind of file it is.
    pub form: &'static str,
    /// What was left out or assumed.
    pub notes: Vec<String>,
}

/// A switch or a block, or a group of our own files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct SwitchGroup {
    name: String,
    hosts: Vec<String>,
    /// The switches below it.
    children: Vec<String>,
    line: usize,
}

/// What a file says, before it is checked as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct SwitchFile {
    form: &'static str,
    groups: Vec<SwitchGroup>,
    /// Whether it says that there are no groups.
    flat: bool,
    notes: Vec<String>,
}

/// The most hosts or switches of one file.
const MAX_NAMES: usize = 65_536;
/// How much of a list an error shows.
const SHOWN_BYTES: usize = 64;
/// The most switches above each other: no network has more layers, so that more of them are a ring in the file.
const MAX_DEPTH: usize = 16;

impl SwitchFile {
    /// Slurm plans jobs by blocks of the first size, and by groups of blocks of the others. Where hosts are, a block
    /// says.
    fn check_block_sizes(&mut self, sizes: &[usize]) {
        let Some(least) = sizes.first() else { return };
        for block in self.groups.iter().filter(|block| block.hosts.len() < *least) {
            let (name, hosts) = (&block.name, block.hosts.len());
            self.notes
                .push(format!("the block {name} has {hosts} hosts, fewer than the block size {least} of the file"));
        }
        if sizes.len() > 1 {
            self.notes.push("a group for each block: larger block sizes are for Slurm's planning alone".to_owned());
        }
    }
}

impl Switches {
    /// Reads a file; `name` stands in errors. Of several topologies in a file that of `partition` counts, by its name,
    /// or else the cluster's.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] with the line: no group, a line or a list of names that is wrong, a host
    /// or a switch below two switches, more than 65,536 names.
    pub fn parse(name: &str, text: &str, partition: Option<&str>) -> Result<Switches> {
        let wrong = |(line, what): (usize, String)| Error::invalid_argument(format!("{name}:{line}: {what}"));
        let found = if is_yaml(text) { slurm_yaml::parse(text, partition) } else { lines::parse(text) };
        let mut found = found.map_err(wrong)?;
        if found.groups.is_empty() && !found.flat {
            let form = "\"group: hosts\", or Slurm's topology.conf or topology.yaml";
            return Err(Error::invalid_argument(format!("{name}: no group: a file of switches has {form}")));
        }
        let parents = parents(&found.groups).map_err(wrong)?;
        let mut above = HashMap::new();
        for ((_, host), parent) in parents.iter().filter(|((node, _), _)| *node == Node::Host) {
            let next = |switch: &String| parents.get(&(Node::Switch, switch.clone())).cloned();
            let mut path: Vec<String> = std::iter::successors(Some(parent.clone()), next).take(MAX_DEPTH + 1).collect();
            if path.len() > MAX_DEPTH {
                return Err(Error::invalid_argument(format!("{name}: the switches above {parent} lead back to it")));
            }
            path.reverse();
            above.insert(host.clone(), path);
        }
        let below = parents.into_keys().filter(|(node, _)| *node == Node::Switch).map(|(_, name)| name).collect();
        doubts(&mut found, &below);
        Ok(Switches { above, groups: found.groups, below, form: found.form, notes: found.notes })
    }

    /// What `SLURM_TOPOLOGY_ADDR` says of one host: `spine.leaf.host`.
    pub fn of_address(address: &str) -> Vec<String> {
        let mut names: Vec<String> = address.split('.').map(str::to_owned).collect();
        names.pop();
        names
    }

    /// The switches above a host, outermost first; none where the file does not name it.
    pub fn above(&self, host: &str) -> &[String] {
        self.above.get(host).map_or(&[], Vec::as_slice)
    }

    /// The switches above a host that a file names in full or without its domain; `None` where it does neither.
    pub fn above_host(&self, host: &str) -> Option<&[String]> {
        let short = host.split('.').next().unwrap_or_default();
        [host, short].into_iter().find_map(|name| self.above.get(name)).map(Vec::as_slice)
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.above.len()
    }

    /// The groups as a tree, each with how deep it stands and the list of its hosts.
    pub fn tree(&self) -> Vec<(usize, &str, String)> {
        let mut shown = Vec::new();
        let mut by_name: HashMap<&str, Vec<&SwitchGroup>> = HashMap::new();
        self.groups.iter().for_each(|group| by_name.entry(&group.name).or_default().push(group));
        let mut seen = HashSet::new();
        let roots = self.groups.iter().filter(|group| !self.below.contains(&group.name));
        let mut open: Vec<(usize, &str)> = roots.map(|group| (0, &*group.name)).collect();
        open.reverse();
        while let Some((depth, name)) = open.pop() {
            if !seen.insert(name) {
                continue;
            }
            let own = by_name.get(name).map_or(&[][..], Vec::as_slice);
            let hosts: Vec<String> = own.iter().flat_map(|group| group.hosts.iter().cloned()).collect();
            shown.push((depth, name, names::compress(&hosts)));
            let children = own.iter().flat_map(|group| &group.children);
            let mut children: Vec<(usize, &str)> = children.map(|child| (depth + 1, &**child)).collect();
            children.reverse();
            open.append(&mut children);
        }
        shown
    }
}

/// The first line that says something begins a document or an item.
fn is_yaml(text: &str) -> bool {
    let mut lines = text.trim_start_matches('\u{feff}').lines().map(str::trim);
    let first = lines.find(|line| !line.is_empty() && !line.starts_with('#')).unwrap_or_default();
    matches!(first, "---" | "-") || first.starts_with("- ") || first.starts_with("--- ") || first.starts_with("%YAML")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Node {
    Host,
    Switch,
}

/// Of each host and each switch, the switch above it.
fn parents(groups: &[SwitchGroup]) -> std::result::Result<HashMap<(Node, String), String>, (usize, String)> {
    let mut parents: HashMap<(Node, String), String> = HashMap::new();
    for group in groups {
        let hosts = group.hosts.iter().map(|host| (Node::Host, host));
        for (node, child) in hosts.chain(group.children.iter().map(|child| (Node::Switch, child))) {
            if parents.len() == MAX_NAMES {
                return Err((group.line, format!("more than {MAX_NAMES} hosts and switches")));
            }
            if let Some(other) = parents.insert((node, child.clone()), group.name.clone())
                && other != group.name
            {
                return Err((group.line, format!("{child} is below {other} already")));
            }
        }
    }
    Ok(parents)
}

/// What reads well and may be a mistake.
fn doubts(found: &mut SwitchFile, below: &HashSet<String>) {
    let mut lines: HashMap<&str, usize> = HashMap::new();
    let mut twice = Vec::new();
    for group in &found.groups {
        if let Some(first) = lines.insert(&group.name, group.line) {
            twice.push(format!(
                "{} stands on line {first} and on line {}: they are taken together",
                group.name, group.line
            ));
        }
    }
    let unknown = found.groups.iter().flat_map(|group| group.children.iter().map(move |child| (group, child)));
    let unknown = unknown.filter(|(_, child)| !lines.contains_key(&***child));
    let unknown: Vec<String> = unknown
        .map(|(group, child)| format!("{} names the switch {child}, of which nothing is said", group.name))
        .collect();
    let mut roots: Vec<&str> = Vec::new();
    let mut seen = HashSet::new();
    let has_layers = found.groups.iter().any(|group| !group.children.is_empty());
    for group in found.groups.iter().filter(|group| has_layers && !below.contains(&group.name)) {
        if seen.insert(&*group.name) {
            roots.push(&group.name);
        }
    }
    let apart = (roots.len() > 1).then(|| {
        let shown = roots[..roots.len().min(4)].join(", ");
        let more = if roots.len() > 4 { format!(" and {} more", roots.len() - 4) } else { String::new() };
        format!("no switch is above all others: {shown}{more} stand beside each other")
    });
    found.notes.extend(twice.into_iter().chain(unknown).take(MAX_NOTES));
    found.notes.extend(apart);
}

/// The most notes about single groups.
const MAX_NOTES: usize = 16;

#[cfg(test)]
mod tests;
