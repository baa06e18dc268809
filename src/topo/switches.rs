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
    groups: Vec<SwitchGroup>,
    parents: SwitchParents,
    /// What kind of file it is.
    pub form: &'static str,
    /// What was left out or assumed.
    pub notes: Vec<String>,
}

/// What stands above each host and each switch: a place in the groups of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct SwitchParents {
    of_hosts: HashMap<String, usize>,
    of_switches: HashMap<String, usize>,
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

/// The most names of hosts and switches in the lists of one file. A name counts each time that it is listed.
const MAX_NAMES: usize = 65_536;
/// The most switches above each other: no network has more layers.
const MAX_DEPTH: usize = 16;
/// How many switches of a ring, or of layers, an error shows.
const SHOWN_SWITCHES: usize = 8;

impl SwitchFile {
    /// Notes what is odd about the block sizes of a file. Slurm plans jobs by blocks of the first size, and by groups
    /// of blocks of the other sizes. Here each block is a group of hosts, whatever the sizes are.
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
        let parents = SwitchParents::of(&found.groups).map_err(wrong)?;
        parents.check_layers(&found.groups).map_err(wrong)?;
        doubts(&mut found, &parents.of_switches);
        Ok(Switches { groups: found.groups, parents, form: found.form, notes: found.notes })
    }

    /// What `SLURM_TOPOLOGY_ADDR` says of one host: `spine.leaf.host`.
    pub fn of_address(address: &str) -> Vec<String> {
        let mut names: Vec<String> = address.split('.').map(str::to_owned).collect();
        names.pop();
        names
    }

    /// The switches above a host, outermost first; none where the file does not name it.
    pub fn above(&self, host: &str) -> Vec<&str> {
        let Some(lowest) = self.parents.of_hosts.get(host) else { return Vec::new() };
        let mut above: Vec<&str> = self.parents.upwards(&self.groups, *lowest).map(|(_, name)| name).collect();
        above.reverse();
        above
    }

    /// The switches above a host that a file names in full or without its domain; `None` where it does neither.
    pub fn above_host(&self, host: &str) -> Option<Vec<&str>> {
        let short = host.split('.').next().unwrap_or_default();
        let known = [host, short].into_iter().find(|name| self.parents.of_hosts.contains_key(*name));
        known.map(|name| self.above(name))
    }

    /// How many hosts there are.
    pub fn hosts(&self) -> usize {
        self.parents.of_hosts.len()
    }

    /// The groups as a tree, each with how deep it stands and the list of its hosts.
    pub fn tree(&self) -> Vec<(usize, &str, String)> {
        let mut shown = Vec::new();
        let mut by_name: HashMap<&str, Vec<&SwitchGroup>> = HashMap::new();
        self.groups.iter().for_each(|group| by_name.entry(&group.name).or_default().push(group));
        let mut seen = HashSet::new();
        let roots = self.groups.iter().filter(|group| !self.parents.of_switches.contains_key(&group.name));
        let mut open: Vec<(usize, &str)> = roots.map(|group| (0, &*group.name)).collect();
        open.reverse();
        while let Some((depth, name)) = open.pop() {
            if !seen.insert(name) {
                continue;
            }
            let own = by_name.get(name).map_or(&[][..], Vec::as_slice);
            let mut once = HashSet::new();
            let hosts = own.iter().flat_map(|group| &group.hosts).filter(|host| once.insert(&***host));
            shown.push((depth, name, names::compress(&hosts.cloned().collect::<Vec<_>>())));
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

impl SwitchParents {
    /// Finds what stands above each host and each switch.
    fn of(groups: &[SwitchGroup]) -> std::result::Result<SwitchParents, (usize, String)> {
        let mut parents = SwitchParents::default();
        for (place, group) in groups.iter().enumerate() {
            let hosts = (&mut parents.of_hosts, &group.hosts);
            for (above, children) in [hosts, (&mut parents.of_switches, &group.children)] {
                for child in children {
                    let other = *above.entry(child.clone()).or_insert(place);
                    if groups[other].name != group.name {
                        return Err((group.line, format!("{child} is below {} already", groups[other].name)));
                    }
                }
            }
        }
        Ok(parents)
    }

    /// A group and the switches above it, from below: the place and the name of each. It does not end in a ring.
    fn upwards<'a>(&'a self, groups: &'a [SwitchGroup], from: usize) -> impl Iterator<Item = (usize, &'a str)> {
        let above = move |(_, name): &(usize, &'a str)| {
            self.of_switches.get(*name).map(|place| (*place, &*groups[*place].name))
        };
        std::iter::successors(Some((from, &*groups[from].name)), above)
    }

    /// Checks that no switch stands above itself, and that no more than [`MAX_DEPTH`] stand above each other.
    ///
    /// # Errors
    /// The first line of the file that is part of a ring, or whose switch has too many above it.
    fn check_layers(&self, groups: &[SwitchGroup]) -> std::result::Result<(), (usize, String)> {
        // How many switches stand above each, once that is known: each is passed once.
        let mut depths: HashMap<&str, usize> = HashMap::new();
        let mut first: Option<(usize, String)> = None;
        let mut found = |(place, what): (usize, String)| {
            if first.as_ref().is_none_or(|(known, _)| place < *known) {
                first = Some((place, what));
            }
        };
        for from in 0..groups.len() {
            let mut way: Vec<(usize, &str)> = Vec::new();
            let mut on_way: HashSet<&str> = HashSet::new();
            let mut depth = 0;
            for (place, name) in self.upwards(groups, from) {
                if let Some(known) = depths.get(name) {
                    depth = *known + 1;
                    break;
                }
                if !on_way.insert(name) {
                    found(self.ring(groups, place));
                    break;
                }
                way.push((place, name));
            }
            for (place, name) in way.into_iter().rev() {
                if depth >= MAX_DEPTH {
                    let layers = format!("more than {MAX_DEPTH} switches stand above each other");
                    found((place, format!("{layers}: {name} and those above it")));
                }
                depths.insert(name, depth);
                depth += 1;
            }
        }
        first.map_or(Ok(()), |(place, what)| Err((groups[place].line, what)))
    }

    /// The first place of a ring, and what is wrong there, given one of its groups.
    fn ring(&self, groups: &[SwitchGroup], one: usize) -> (usize, String) {
        let name = &groups[one].name;
        let mut ring: Vec<(usize, &str)> = Vec::new();
        for member in self.upwards(groups, one).skip(1) {
            ring.push(member);
            if member.1 == name {
                break;
            }
        }
        // From the first line of the file on, each switch is followed by the one below it.
        ring.reverse();
        let start = (0..ring.len()).min_by_key(|at| ring[*at].0).unwrap_or_default();
        ring.rotate_left(start);
        let (place, first) = ring[0];
        let names: Vec<&str> = ring.iter().map(|(_, name)| *name).take(SHOWN_SWITCHES).collect();
        let end = if ring.len() > SHOWN_SWITCHES { format!("… ({} switches)", ring.len()) } else { first.to_owned() };
        (place, format!("the switch {first} stands above itself: {}, {end}", names.join(", ")))
    }
}

/// What reads well and may be a mistake.
fn doubts(found: &mut SwitchFile, below: &HashMap<String, usize>) {
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
    for group in found.groups.iter().filter(|group| has_layers && !below.contains_key(&group.name)) {
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
