//! Names of hosts and switches, and Slurm's lists of them: `a,n[01-03,7]` is `a n01 n02 n03 n7`.

use crate::error::shown;

use super::MAX_NAMES;

/// The longest name; those of DNS have 253 bytes.
const MAX_NAME_BYTES: usize = 256;
/// The most digits of a number in a name, with zeros before it.
const MAX_DIGITS: usize = 20;

/// The name, if it is one: letters, digits and `. _ -`, and not too long.
pub(super) fn name(text: &str) -> Result<&str, String> {
    let shown = shown(text);
    if text.is_empty() || !text.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '.' | '_' | '-')) {
        return Err(format!("{shown:?} is not a name of letters, digits and . _ -"));
    }
    fits(text)
}

fn fits(text: &str) -> Result<&str, String> {
    if text.len() <= MAX_NAME_BYTES {
        Ok(text)
    } else {
        Err(format!("{:?} has more than {MAX_NAME_BYTES} bytes", shown(text)))
    }
}

/// How many names a file may still have. A name counts each time that the file has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NameRoom {
    left: usize,
}

impl Default for NameRoom {
    fn default() -> NameRoom {
        NameRoom { left: MAX_NAMES }
    }
}

impl NameRoom {
    /// Appends the names of a list to `names`.
    ///
    /// # Errors
    /// What is wrong with the list, or that the file has too many names.
    pub(super) fn expand(&mut self, list: &str, names: &mut Vec<String>) -> Result<(), String> {
        let mut rest = list;
        while !rest.is_empty() {
            let mut in_brackets = false;
            let end = rest.find(|letter| {
                in_brackets = letter == '[' || in_brackets && letter != ']';
                letter == ',' && !in_brackets
            });
            let (item, after) = rest.split_at(end.unwrap_or(rest.len()));
            rest = after.strip_prefix(',').unwrap_or(after);
            if !item.is_empty() {
                let found = product(item, self.left)?;
                self.left -= found.len();
                names.extend(found);
            }
        }
        Ok(())
    }
}

/// The names of one item, which has any number of brackets: `r[1-2]n[1-3]` has six.
fn product(item: &str, room: usize) -> Result<Vec<String>, String> {
    let shown = shown(item);
    let mut names = vec![String::new()];
    let mut rest = item;
    while !rest.is_empty() {
        let (prefix, after) = rest.split_at(rest.find('[').unwrap_or(rest.len()));
        let numbers = match after.strip_prefix('[') {
            None => vec![String::new()],
            Some(inner) => {
                let (ranges, after) = inner.split_once(']').ok_or_else(|| format!("{shown:?} has a [ without a ]"))?;
                rest = after;
                numbers(ranges, room)?
            }
        };
        if !after.starts_with('[') {
            rest = "";
        }
        if !prefix.is_empty() {
            name(prefix)?;
        }
        if names.len().saturating_mul(numbers.len()) > room {
            return Err(format!("more than {MAX_NAMES} hosts and switches"));
        }
        let grown = names.iter().flat_map(|start| numbers.iter().map(move |number| format!("{start}{prefix}{number}")));
        names = grown.collect();
        fits(&names[0])?;
    }
    Ok(names)
}

/// The numbers of `01-03,7`, with their zeros.
fn numbers(ranges: &str, room: usize) -> Result<Vec<String>, String> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let shown = shown(range);
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.parse::<usize>().map_err(|_| format!("{shown:?} is not a range of numbers"));
        let (from, to) = (number(first)?, number(last)?);
        if from > to || to - from >= MAX_NAMES || first.len() > MAX_DIGITS {
            return Err(format!("{shown:?} is not a range of at most {MAX_NAMES} numbers"));
        }
        if numbers.len() + (to - from) >= room {
            return Err(format!("more than {MAX_NAMES} hosts and switches"));
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}", width = first.len())));
    }
    Ok(numbers)
}

/// Names that begin alike, with the numbers in which they end: none of one that ends in no number.
struct NameRun<'n> {
    start: &'n str,
    ranges: Vec<NumberRange>,
}

/// Numbers that follow each other, and the digits in which they are written.
struct NumberRange {
    first: u64,
    last: u64,
    digits: usize,
}

impl NumberRange {
    /// Takes the number in, if it is the next one and written in the same way.
    fn takes(&mut self, number: u64, digits: usize) -> bool {
        let is_plain = |number: u64, digits: usize| number.to_string().len() == digits;
        let alike = self.digits == digits || is_plain(self.first, self.digits) && is_plain(number, digits);
        let takes = alike && self.last.checked_add(1) == Some(number);
        if takes {
            self.last = number;
        }
        takes
    }

    fn text(&self) -> String {
        let NumberRange { first, last, digits } = self;
        if first == last { format!("{first:0digits$}") } else { format!("{first:0digits$}-{last:0digits$}") }
    }
}

/// The list of these names: numbers that follow each other become ranges.
pub(super) fn compress(names: &[String]) -> String {
    let mut runs: Vec<NameRun<'_>> = Vec::new();
    for name in names {
        let start = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let digits = name.len() - start.len();
        let Ok(number) = name[start.len()..].parse() else {
            runs.push(NameRun { start: name, ranges: Vec::new() });
            continue;
        };
        let fresh = NumberRange { first: number, last: number, digits };
        match runs.last_mut().filter(|run| run.start == start && !run.ranges.is_empty()) {
            Some(run) => {
                if !run.ranges.last_mut().is_some_and(|last| last.takes(number, digits)) {
                    run.ranges.push(fresh);
                }
            }
            None => runs.push(NameRun { start, ranges: vec![fresh] }),
        }
    }
    let text = |run: &NameRun<'_>| match &run.ranges[..] {
        [] => run.start.to_owned(),
        [one] if one.first == one.last => format!("{}{}", run.start, one.text()),
        all => format!("{}[{}]", run.start, all.iter().map(NumberRange::text).collect::<Vec<_>>().join(",")),
    };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(list: &str) -> Vec<String> {
        let mut names = Vec::new();
        NameRoom::default().expand(list, &mut names).unwrap();
        names
    }

    #[test]
    fn lists_expand_and_come_back() {
        for (list, count) in [("a,n[01-03,7]", 5), ("r[1-2]n[1-3]-ib", 6), ("node9,node10", 2), ("x", 1), ("", 0)] {
            let names = expanded(list);
            assert_eq!(names.len(), count, "{list}");
            assert_eq!(expanded(&compress(&names)), names, "{list}");
        }
        assert_eq!(compress(&expanded("a,n[01-03,7]")), "a,n[01-03,7]");
        assert_eq!(compress(&expanded("n[8-11],m[08-11],m9")), "n[8-11],m[08-11,9]");
        assert_eq!(expanded("r[1-2]n[8-9]-ib"), ["r1n8-ib", "r1n9-ib", "r2n8-ib", "r2n9-ib"]);
    }
}
