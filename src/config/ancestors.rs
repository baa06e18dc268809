//! The processes above this one, nearest first: they tell which of several nested launchers started this rank.

use std::collections::BTreeMap;

/// A process from which this one descends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ancestor {
    pub(crate) process: u32,
    /// When it started, in ticks since boot: process numbers are used again.
    pub(crate) started: u64,
    /// The program's name, cut to 15 bytes by the kernel.
    pub(crate) name: String,
    /// The variables with which it was started; `None` where the system does not show them, as those of another user.
    pub(crate) variables: Option<BTreeMap<String, String>>,
}

/// The ancestors of this process, as far as `/proc` shows them; none where it is hidden.
pub(super) fn of_this_process() -> Vec<Ancestor> {
    let mut found = Vec::new();
    if !is_own_proc() {
        return found;
    }
    let mut next = std::os::unix::process::parent_id();
    while next > 1 && found.len() < MOST_ANCESTORS {
        let Some((parent, ancestor)) = look_up(next) else { break };
        found.push(ancestor);
        next = parent;
    }
    found
}

/// This process itself; `None` where `/proc` is hidden or another's.
pub(super) fn this_process() -> Option<Ancestor> {
    is_own_proc().then(|| look_up(std::process::id())).flatten().map(|(_, own)| own)
}

/// Whether `/proc` shows the numbers by which this process knows itself and others: in a process namespace of its own a
/// container may show the `/proc` of another.
fn is_own_proc() -> bool {
    let own = std::fs::read_link("/proc/self").ok();
    own.is_some_and(|own| own.as_os_str() == &*std::process::id().to_string())
}

/// The parent of `process`, and what is known of `process` itself.
fn look_up(process: u32) -> Option<(u32, Ancestor)> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name stands in parentheses and may hold any character, so fields are counted from the last parenthesis.
    let (before, rest) = text.rsplit_once(") ")?;
    let name = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split(' ').collect();
    let (parent, started) = (fields.get(PARENT)?.parse().ok()?, fields.get(STARTED)?.parse().ok()?);
    let variables = std::fs::read(format!("/proc/{process}/environ")).ok().map(|bytes| variables(&bytes));
    Some((parent, Ancestor { process, started, name, variables }))
}

/// Of an environment block, those variables that are text: launchers' are.
fn variables(block: &[u8]) -> BTreeMap<String, String> {
    let entries = block.split(|byte| *byte == 0).filter_map(|entry| std::str::from_utf8(entry).ok()?.split_once('='));
    entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Places of fields in `/proc/PID/stat`, counted from the state (proc(5): fields 4 and 22).
const PARENT: usize = 1;
const STARTED: usize = 19;
/// A rank and its launcher have at most a few shells between them.
const MOST_ANCESTORS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_comes_first_with_its_variables() {
        let found = of_this_process();
        let parent = found.first().expect("a test has a parent");
        assert_eq!(parent.process, std::os::unix::process::parent_id());
        assert!(parent.started > 0 && !parent.name.is_empty() && found.len() <= MOST_ANCESTORS);
        let readable = parent.variables.as_ref().expect("it is of the same user");
        assert!(readable.contains_key("PATH"), "{readable:?}");
    }

    #[test]
    fn a_block_that_is_no_text_is_left_out() {
        let found = variables(b"RANK=1\0BAD=\xff\xfe\0no sign\0EMPTY=\0");
        let expected = [("EMPTY".to_owned(), String::new()), ("RANK".to_owned(), "1".to_owned())];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), expected);
    }
}
