//! Slurm's topology.yaml (24.05 and newer): several topologies, of which a partition has one.

use super::names::{NameRoom, name};
use super::yaml::{self, Yaml, YamlValue};
use super::{SwitchFile, SwitchGroup};
use crate::error::shown;

/// Reads the topology of `partition`, or the cluster's.
///
/// # Errors
/// The line, and what is wrong with it.
pub(super) fn parse(text: &str, partition: Option<&str>) -> Result<SwitchFile, (usize, String)> {
    let document = yaml::parse(text)?;
    let mut named = Vec::new();
    for topology in list(&document)? {
        let of = YamlMap::of(topology)?;
        of.allow(&["topology", "cluster_default", "tree", "block", "flat", "ring", "torus3d"])?;
        let name = of.word("topology")?.ok_or((topology.line, "a topology without a name (topology: …)".to_owned()))?;
        named.push((name, of));
    }
    let (name, of) = chosen(&named, partition).ok_or((document.line, "no topology".to_owned()))?;
    let mut found = SwitchFile { form: "Slurm's topology.yaml", ..SwitchFile::default() };
    if named.len() > 1 {
        let why = match () {
            () if Some(*name) == partition => "it has the name of this job's partition",
            () if is_default(of) => "it is the cluster's default",
            () => "it is the first",
        };
        let other = "to use another one, put it into a file of its own";
        let name = shown(name);
        found.notes.push(format!("the file has {} topologies, and {name:?} is used: {why}; {other}", named.len()));
    }
    let kinds: Vec<&str> =
        ["tree", "block", "flat", "ring", "torus3d"].into_iter().filter(|kind| of.has(kind)).collect();
    let name = shown(name);
    match kinds[..] {
        ["tree"] => tree(of.map("tree")?, &mut found)?,
        ["block"] => blocks(of.map("block")?, &mut found)?,
        [kind @ ("flat" | "ring" | "torus3d")] => {
            found.flat = true;
            let text =
                format!("the topology {name:?} is {kind}, which has no groups: hosts are ordered by their ranks");
            found.notes.push(text);
        }
        [] => return Err((of.line, format!("the topology {name:?} has no tree, block, flat, ring or torus3d"))),
        [..] => return Err((of.line, format!("the topology {name:?} is of several kinds: {}", kinds.join(", ")))),
    }
    Ok(found)
}

/// The topology that has the partition's name; else the cluster's; else the first.
fn chosen<'t, 'y>(named: &'t [(&'y str, YamlMap<'y>)], partition: Option<&str>) -> Option<&'t (&'y str, YamlMap<'y>)> {
    named
        .iter()
        .find(|(name, _)| Some(*name) == partition)
        .or_else(|| named.iter().find(|(_, of)| is_default(of)))
        .or_else(|| named.first())
}

fn is_default(of: &YamlMap<'_>) -> bool {
    matches!(of.word("cluster_default"), Ok(Some("true" | "yes" | "True" | "on")))
}

fn tree(of: YamlMap<'_>, found: &mut SwitchFile) -> Result<(), (usize, String)> {
    of.allow(&["switches"])?;
    let mut room = NameRoom::default();
    for switch in of.list("switches")? {
        let of = YamlMap::of(switch)?;
        of.allow(&["switch", "children", "nodes", "linkspeed"])?;
        let group = of.group("switch", &mut room)?;
        if group.hosts.is_empty() && group.children.is_empty() {
            return Err((group.line, format!("the switch {} has neither nodes nor children", group.name)));
        }
        found.groups.push(group);
    }
    Ok(())
}

fn blocks(of: YamlMap<'_>, found: &mut SwitchFile) -> Result<(), (usize, String)> {
    of.allow(&["blocks", "block_sizes"])?;
    let mut room = NameRoom::default();
    for block in of.list("blocks")? {
        let of = YamlMap::of(block)?;
        of.allow(&["block", "nodes"])?;
        let group = of.group("block", &mut room)?;
        if group.hosts.is_empty() {
            return Err((group.line, format!("the block {} has no nodes", group.name)));
        }
        found.groups.push(group);
    }
    let mut sizes = Vec::new();
    for size in of.list("block_sizes")? {
        let number = word(size)?.parse().ok().filter(|size| *size > 0);
        sizes.push(number.ok_or((size.line, format!("block_sizes has {:?}, not a number", shown(word(size)?))))?);
    }
    found.check_block_sizes(&sizes);
    Ok(())
}

/// A map with the words that stand for its keys.
#[derive(Debug, Clone, Copy)]
struct YamlMap<'y> {
    line: usize,
    entries: &'y [(String, Yaml)],
}

impl<'y> YamlMap<'y> {
    fn of(value: &'y Yaml) -> Result<YamlMap<'y>, (usize, String)> {
        match &value.value {
            YamlValue::Map(entries) => Ok(YamlMap { line: value.line, entries }),
            YamlValue::Word(_) | YamlValue::List(_) => Err((value.line, "not a map where one is due".to_owned())),
        }
    }

    fn allow(&self, allowed: &[&str]) -> Result<(), (usize, String)> {
        match self.entries.iter().find(|(key, _)| !allowed.contains(&&**key)) {
            Some((key, value)) => {
                let shown = shown(key);
                Err((value.line, format!("{shown:?} is not known here (allowed: {})", allowed.join(", "))))
            }
            None => Ok(()),
        }
    }

    fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    fn get(&self, key: &str) -> Option<&'y Yaml> {
        self.entries.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    fn word(&self, key: &str) -> Result<Option<&'y str>, (usize, String)> {
        self.get(key).map(word).transpose()
    }

    fn map(&self, key: &str) -> Result<YamlMap<'y>, (usize, String)> {
        self.get(key).map_or(Err((self.line, format!("no {key}"))), YamlMap::of)
    }

    /// The items of a list; none where there is no such key.
    fn list(&self, key: &str) -> Result<&'y [Yaml], (usize, String)> {
        self.get(key).map_or(Ok(&[][..]), list)
    }

    fn group(&self, key: &str, room: &mut NameRoom) -> Result<SwitchGroup, (usize, String)> {
        let wrong = |what: String| (self.line, what);
        let Some(own) = self.word(key)? else { return Err(wrong(format!("no {key}: …"))) };
        Ok(SwitchGroup {
            name: name(own).map_err(wrong)?.to_owned(),
            hosts: self.names("nodes", room)?,
            children: self.names("children", room)?,
            line: self.line,
        })
    }

    /// A list of names: one word in Slurm's form, or several.
    fn names(&self, key: &str, room: &mut NameRoom) -> Result<Vec<String>, (usize, String)> {
        let mut names = Vec::new();
        let Some(value) = self.get(key) else { return Ok(names) };
        let words = match &value.value {
            YamlValue::List(items) => &items[..],
            YamlValue::Word(_) | YamlValue::Map(_) => std::slice::from_ref(value),
        };
        for item in words {
            room.expand(word(item)?, &mut names).map_err(|what| (item.line, what))?;
        }
        Ok(names)
    }
}

fn word(value: &Yaml) -> Result<&str, (usize, String)> {
    match &value.value {
        YamlValue::Word(word) => Ok(word),
        YamlValue::List(_) | YamlValue::Map(_) => Err((value.line, "not a word where one is due".to_owned())),
    }
}

fn list(value: &Yaml) -> Result<&[Yaml], (usize, String)> {
    match &value.value {
        YamlValue::List(items) => Ok(items),
        YamlValue::Word(_) | YamlValue::Map(_) => Err((value.line, "not a list where one is due".to_owned())),
    }
}
