//! Which hosts hang on which switches of the network: from a small file, or from Slurm.
//!
//! ```text
//! # a line for each group: its name, then its hosts
//! rack-a: node[01-04] node17
//! # or Slurm's topology.conf
//! SwitchName=leaf1 Nodes=node[01-04,17]
//! SwitchName=spine Switches=leaf[1-2]
//! ```

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::wire;

/// The switches above each host that a file names, outermost first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Switches {
    above: HashMap<String, Vec<String>>,
}

/// The most hosts or switches of one file.
const MAX_NAMES: usize = 65_536;
/// The longest name; those of DNS have 253 bytes.
const MAX_NAME_BYTES: usize = 256;
/// The most digits of a number in a name, with zeros before it.
const MAX_DIGITS: usize = 20;
/// How much of a list an error shows.
const SHOWN_BYTES: usize = 64;
/// The most switches above each other: no network has more layers, so that more of them are a ring in the file.
const MAX_DEPTH: usize = 16;

impl Switches {
    /// Reads a file; `name` stands in errors.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] with the line: no group, a list of names that is wrong, a host or a
    /// switch below two switches, more than 65,536 names.
    pub fn parse(name: &str, text: &str) -> Result<Switches> {
        let wrong = |line: usize, what: &str| Error::invalid_argument(format!("{name}:{line}: {what}"));
        // Of each host and each switch, the switch above it.
        let mut parents: HashMap<(Node, String), String> = HashMap::new();
        for (line, text) in (1..).zip(text.lines()) {
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let (switch, below) = group(text).map_err(|what| wrong(line, &what))?;
            for (node, child) in below {
                if parents.len() == MAX_NAMES {
                    return Err(wrong(line, &format!("more than {MAX_NAMES} hosts and switches")));
                }
                if let Some(other) = parents.insert((node, child.clone()), switch.clone())
                    && other != switch
                {
                    return Err(wrong(line, &format!("{child} is below {other} already")));
                }
            }
        }
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
        Ok(Switches { above })
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Node {
    Host,
    Switch,
}

/// A line: the switch and what is below it.
fn group(text: &str) -> std::result::Result<(String, Vec<(Node, String)>), String> {
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    let value = |name: &str| {
        let field = fields.iter().find(|field| {
            field.get(..name.len() + 1).is_some_and(|start| start.eq_ignore_ascii_case(&format!("{name}=")))
        });
        field.map(|field| &field[name.len() + 1..])
    };
    if let Some(switch) = value("SwitchName") {
        let mut below = Vec::new();
        for (name, node) in [("Nodes", Node::Host), ("Switches", Node::Switch)] {
            let mut names = Vec::new();
            expand(value(name).unwrap_or_default(), &mut names)?;
            below.extend(names.into_iter().map(|child| (node, child)));
        }
        return Ok((fits(switch)?.to_owned(), below));
    }
    let (switch, hosts) = text.split_once(':').ok_or("neither \"group: hosts\" nor \"SwitchName=…\"")?;
    let mut names = Vec::new();
    for list in hosts.split_ascii_whitespace() {
        expand(list, &mut names)?;
    }
    let below = names.into_iter().map(|host| (Node::Host, host)).collect();
    Ok((fits(switch.trim())?.to_owned(), below))
}

/// The name, if it is not too long.
fn fits(name: &str) -> std::result::Result<&str, String> {
    if name.len() <= MAX_NAME_BYTES {
        Ok(name)
    } else {
        Err(format!("{:?}… has more than {MAX_NAME_BYTES} bytes", wire::cut(name, SHOWN_BYTES)))
    }
}

/// `a,n[01-03,7]` as `a n01 n02 n03 n7`, behind `names`. No line has more names than a file may have.
fn expand(list: &str, names: &mut Vec<String>) -> std::result::Result<(), String> {
    let shown = wire::cut(list, SHOWN_BYTES);
    let mut rest = list;
    while !rest.is_empty() {
        let end = rest.find([',', '[']).unwrap_or(rest.len());
        let (prefix, after) = rest.split_at(end);
        fits(prefix)?;
        if let Some(inner) = after.strip_prefix('[') {
            let (ranges, after) = inner.split_once(']').ok_or_else(|| format!("{shown:?} has a [ without a ]"))?;
            for range in ranges.split(',') {
                let shown = wire::cut(range, SHOWN_BYTES);
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let number =
                    |text: &str| text.parse::<usize>().map_err(|_| format!("{shown:?} is not a range of numbers"));
                let (from, to) = (number(first)?, number(last)?);
                if from > to || to - from >= MAX_NAMES || first.len() > MAX_DIGITS {
                    return Err(format!("{shown:?} is not a range of at most {MAX_NAMES} numbers"));
                }
                if names.len() + (to - from) >= MAX_NAMES {
                    return Err(format!("more than {MAX_NAMES} hosts and switches"));
                }
                names.extend((from..=to).map(|number| format!("{prefix}{number:0width$}", width = first.len())));
            }
            rest = after.strip_prefix(',').unwrap_or(after);
            if !after.is_empty() && !after.starts_with(',') {
                return Err(format!("{shown:?} has text behind a ]"));
            }
        } else {
            if !prefix.is_empty() {
                names.push(prefix.to_owned());
            }
            rest = after.strip_prefix(',').unwrap_or_default();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_files_are_read() {
        let small = Switches::parse("f", "# racks\nrack-a: node[01-03] node17\n\nrack-b: x,y # two\n").unwrap();
        assert_eq!(small.above("node02"), ["rack-a"]);
        assert_eq!((small.above("node17"), small.above("y")), (&["rack-a".to_owned()][..], &["rack-b".to_owned()][..]));
        assert_eq!(small.above("node2"), [""; 0]);
        let slurm =
            "SwitchName=leaf1 Nodes=n[08-11,20]\nswitchname=leaf2 nodes=m1,m2\nSwitchName=spine Switches=leaf[1-2]";
        let slurm = Switches::parse("topology.conf", slurm).unwrap();
        assert_eq!(slurm.above("n10"), ["spine", "leaf1"]);
        assert_eq!(slurm.above("m2"), ["spine", "leaf2"]);
        assert_eq!(Switches::of_address("spine.leaf1.n10"), ["spine", "leaf1"]);
        assert_eq!(Switches::of_address("n10"), [""; 0]);
    }

    #[test]
    fn errors_name_the_line() {
        let cases = [
            ("\nrack a b", "f:2: neither \"group: hosts\" nor"),
            ("a: n[1-", "f:1: \"n[1-\" has a [ without a ]"),
            ("a: n[1-x]", "f:1: \"1-x\" is not a range of numbers"),
            ("a: n[9-1]", "f:1: \"9-1\" is not a range of at most"),
            ("a: n[1-99999999]", "is not a range of at most 65536 numbers"),
            ("a: n[1]b", "f:1: \"n[1]b\" has text behind a ]"),
            ("a: n[1-40000,1-40000]", "f:1: more than 65536 hosts and switches"),
            ("a: n[1-40000] m[1-40000]", "f:1: more than 65536 hosts and switches"),
            ("a: n[000000000000000000001-2]", "is not a range of at most 65536 numbers"),
            ("a: x\nb: x", "f:2: x is below a already"),
            ("SwitchName=a Switches=b Nodes=x\nSwitchName=b Switches=a", "f: the switches above a lead back to it"),
        ];
        for (text, expected) in cases {
            let error = Switches::parse("f", text).unwrap_err();
            assert!(error.message().contains(expected), "{error} for {text}");
        }
    }

    /// A small file can ask for much memory, or for a long error.
    #[test]
    fn long_names_are_refused_before_they_are_repeated() {
        let long = "x".repeat(1 << 20);
        let texts = [format!("a: {long}[1-65536]"), format!("{long}: y[1-65536]"), format!("a: y[{long}]")];
        for text in texts {
            let error = Switches::parse("f", &text).unwrap_err();
            assert!(error.message().len() < 200, "{error}");
        }
    }
}
