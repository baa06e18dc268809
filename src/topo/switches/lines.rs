//! Files of lines: our own groups, and Slurm's topology.conf of switches or of blocks.

use super::names::{NameRoom, name};
use super::{SwitchFile, SwitchGroup};
use crate::error::shown;

/// Reads all lines.
///
/// # Errors
/// The line, and what is wrong with it.
pub(super) fn parse(text: &str) -> Result<SwitchFile, (usize, String)> {
    let mut found = SwitchFile::default();
    let mut kind = None;
    let mut block_sizes: Vec<usize> = Vec::new();
    let mut sizes_line = None;
    let mut room = NameRoom::default();
    for (line, text) in whole_lines(text) {
        let wrong = |what: String| (line, what);
        let of = SwitchLine::of(&text, &mut room).map_err(wrong)?;
        let now = of.kind();
        // Groups of our own may stand beside Slurm's; of Slurm's kinds a cluster has one.
        if now != SwitchLineKind::Groups {
            match kind.get_or_insert(now) {
                first if *first == now => {}
                first => return Err(wrong(format!("{} in a file of {}", now.name(), first.name()))),
            }
        }
        match of {
            SwitchLine::Group(group) | SwitchLine::Switch(group) | SwitchLine::Block(group) => {
                found.groups.push(SwitchGroup { line, ..group });
            }
            SwitchLine::BlockSizes(sizes) => {
                block_sizes = sizes;
                sizes_line = Some(line);
            }
        }
    }
    found.form = kind.unwrap_or(SwitchLineKind::Groups).name();
    if let (Some(line), true) = (sizes_line, found.groups.is_empty()) {
        let what = "BlockSizes without a BlockName: no block is left (a line behind # does not count)";
        return Err((line, what.to_owned()));
    }
    found.check_block_sizes(&block_sizes);
    Ok(found)
}

/// Lines without comments; one that ends in a backslash goes on in the next.
fn whole_lines(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.split('#').next().unwrap_or_default().trim();
        let (text, more) = text.strip_suffix('\\').map_or((text, false), |text| (text, true));
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, before)) => before.extend([" ", text]),
            None => lines.push((line, text.to_owned())),
        }
        goes_on = more;
    }
    lines.retain(|(_, text)| !text.trim().is_empty());
    lines
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SwitchLineKind {
    Groups,
    Switches,
    Blocks,
}

impl SwitchLineKind {
    const fn name(self) -> &'static str {
        match self {
            SwitchLineKind::Groups => "groups",
            SwitchLineKind::Switches => "Slurm's switches",
            SwitchLineKind::Blocks => "Slurm's blocks",
        }
    }
}

enum SwitchLine {
    Group(SwitchGroup),
    Switch(SwitchGroup),
    Block(SwitchGroup),
    BlockSizes(Vec<usize>),
}

impl SwitchLine {
    const fn kind(&self) -> SwitchLineKind {
        match self {
            SwitchLine::Group(_) => SwitchLineKind::Groups,
            SwitchLine::Switch(_) => SwitchLineKind::Switches,
            SwitchLine::Block(_) | SwitchLine::BlockSizes(_) => SwitchLineKind::Blocks,
        }
    }

    fn of(text: &str, room: &mut NameRoom) -> Result<SwitchLine, String> {
        let mut fields = Vec::new();
        for field in text.split_ascii_whitespace() {
            let Some((key, value)) = field.split_once('=') else { break };
            fields.push((key.to_ascii_lowercase(), value));
        }
        let value = |name: &str| fields.iter().find(|(key, _)| key == name).map(|(_, value)| *value);
        let allow = |allowed: &[&str]| match fields.iter().find(|(key, _)| !allowed.contains(&&**key)) {
            Some((key, _)) => Err(format!("{:?} is not known here (allowed: {})", shown(key), allowed.join(", "))),
            None if fields.len() < text.split_ascii_whitespace().count() => {
                Err(format!("{:?} has a word without a =", shown(text)))
            }
            None => Ok(()),
        };
        let mut list = |name: &str| {
            let mut names = Vec::new();
            room.expand(value(name).unwrap_or_default(), &mut names).map(|()| names)
        };
        if let Some(switch) = value("switchname") {
            allow(&["switchname", "nodes", "switches", "linkspeed"])?;
            let (hosts, children) = (list("nodes")?, list("switches")?);
            if hosts.is_empty() && children.is_empty() {
                return Err(format!("the switch {} has neither Nodes nor Switches", name(switch)?));
            }
            return Ok(SwitchLine::Switch(SwitchGroup { name: name(switch)?.to_owned(), hosts, children, line: 0 }));
        }
        if let Some(block) = value("blockname") {
            allow(&["blockname", "nodes"])?;
            let hosts = list("nodes")?;
            if hosts.is_empty() {
                return Err(format!("the block {} has no Nodes", name(block)?));
            }
            return Ok(SwitchLine::Block(SwitchGroup {
                name: name(block)?.to_owned(),
                hosts,
                children: Vec::new(),
                line: 0,
            }));
        }
        if let Some(sizes) = value("blocksizes") {
            allow(&["blocksizes"])?;
            let numbers: Result<Vec<usize>, _> = sizes.split(',').map(str::parse).collect();
            let wrong = || format!("BlockSizes={:?} is not a list of numbers", shown(sizes));
            return Ok(SwitchLine::BlockSizes(numbers.ok().filter(|all| !all.contains(&0)).ok_or_else(wrong)?));
        }
        if text.split_ascii_whitespace().next().is_some_and(|word| word.eq_ignore_ascii_case("include")) {
            return Err("Include is not followed: name a file that has all lines".to_owned());
        }
        let Some((switch, hosts)) = text.split_once(':') else {
            let form = "neither \"group: hosts\" nor a line of Slurm's (SwitchName=…, BlockName=…)";
            return Err(format!("{:?} is {form}", shown(text)));
        };
        let mut names = Vec::new();
        for list in hosts.split_ascii_whitespace() {
            room.expand(list, &mut names)?;
        }
        let switch = name(switch.trim())?.to_owned();
        if names.is_empty() {
            return Err(format!("the group {switch} has no hosts"));
        }
        Ok(SwitchLine::Group(SwitchGroup { name: switch, hosts: names, children: Vec::new(), line: 0 }))
    }
}
