//! The part of YAML that people and Slurm write for topologies: maps and lists by indentation, words, quoted words,
//! lists in brackets. Everything else (anchors, tags, maps in braces, texts of several lines, several documents) is an
//! error with its line: to guess at it would be to lose a part of it.

use std::collections::HashSet;

use crate::error::shown;

/// A value, with the line on which it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Yaml {
    pub(super) line: usize,
    pub(super) value: YamlValue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum YamlValue {
    Word(String),
    List(Vec<Yaml>),
    /// In the order of the file, each key once.
    Map(Vec<(String, Yaml)>),
}

/// How deep maps and lists may stand in each other: topology.yaml needs six.
const MAX_DEPTH: usize = 16;

/// A line without its comment: its number, its indentation, what it says.
#[derive(Debug, Clone, Copy)]
struct YamlLine<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

/// Reads a document.
///
/// # Errors
/// The line, and what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Yaml, (usize, String)> {
    let mut lines = Vec::new();
    for (number, whole) in (1..).zip(text.lines()) {
        let text = without_comment(whole.trim_start_matches('\u{feff}')).trim_end();
        let inner = text.trim_start_matches(' ');
        if inner.starts_with('\t') {
            return Err((number, "a tab in the indentation: YAML wants blanks".to_owned()));
        }
        match inner {
            "" => {}
            "---" if lines.is_empty() => {}
            "---" => return Err((number, "a second document: one is read".to_owned())),
            "..." => break,
            _ => lines.push(YamlLine { number, indent: text.len() - inner.len(), text: inner }),
        }
    }
    let Some(first) = lines.first() else { return Err((1, "the file is empty".to_owned())) };
    let (indent, mut reader) = (first.indent, YamlReader { lines: &mut lines, at: 0 });
    let found = reader.block(indent, 0)?;
    match reader.lines.get(reader.at) {
        Some(line) => Err((line.number, "it is indented less than what it belongs to".to_owned())),
        None => Ok(found),
    }
}

/// A `#` begins a comment at the start and behind a blank, outside quotes.
fn without_comment(line: &str) -> &str {
    let mut quote = None;
    let mut before = ' ';
    for (at, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '#') if before.is_whitespace() => return &line[..at],
            (None, '"' | '\'') if before.is_whitespace() || matches!(before, '[' | ',') => quote = Some(letter),
            (Some(open), _) if open == letter => quote = None,
            _ => {}
        }
        before = letter;
    }
    line
}

struct YamlReader<'l, 'a> {
    lines: &'l mut [YamlLine<'a>],
    at: usize,
}

impl YamlReader<'_, '_> {
    /// The map, the list or the word whose lines are indented by `indent`.
    fn block(&mut self, indent: usize, depth: usize) -> Result<Yaml, (usize, String)> {
        let YamlLine { number, text, .. } = self.lines[self.at];
        if is_item(text) {
            return self.list(indent, depth);
        }
        if entry(text).map_err(|what| (number, what))?.is_some() {
            return self.map(indent, depth);
        }
        self.at += 1;
        value(number, text)
    }

    fn list(&mut self, indent: usize, depth: usize) -> Result<Yaml, (usize, String)> {
        let line = self.start(depth)?;
        let mut items = Vec::new();
        while let Some(item) =
            self.lines.get(self.at).copied().filter(|item| item.indent == indent && is_item(item.text))
        {
            let inner = item.text[1..].trim_start_matches(' ');
            if inner.is_empty() {
                self.at += 1;
                items.push(self.nested(item, depth, indent + 1)?);
            } else {
                // What follows the dash is the first line of a block of its own.
                let indent = indent + item.text.len() - inner.len();
                self.lines[self.at] = YamlLine { indent, text: inner, ..item };
                items.push(self.block(indent, depth + 1)?);
            }
            self.refuse_deeper(indent)?;
        }
        Ok(Yaml { line, value: YamlValue::List(items) })
    }

    fn map(&mut self, indent: usize, depth: usize) -> Result<Yaml, (usize, String)> {
        let line = self.start(depth)?;
        let mut entries: Vec<(String, Yaml)> = Vec::new();
        let mut keys = HashSet::new();
        while let Some(here) =
            self.lines.get(self.at).copied().filter(|here| here.indent == indent && !is_item(here.text))
        {
            let wrong = |what: String| (here.number, what);
            let Some((key, inner)) = entry(here.text).map_err(wrong)? else {
                return Err(wrong(format!("{:?} is not \"key: value\"", shown(here.text))));
            };
            if !keys.insert(key.clone()) {
                return Err(wrong(format!("a second {:?} in one map", shown(&key))));
            }
            self.at += 1;
            let found = if inner.is_empty() {
                // A list may stand as far left as its key.
                let next = self.lines.get(self.at).is_some_and(|next| next.indent == indent && is_item(next.text));
                if next { self.list(indent, depth + 1)? } else { self.nested(here, depth, indent + 1)? }
            } else {
                value(here.number, inner)?
            };
            entries.push((key, found));
            self.refuse_deeper(indent)?;
        }
        Ok(Yaml { line, value: YamlValue::Map(entries) })
    }

    /// The number of the line where a map or a list begins, which stands in `depth` others.
    fn start(&self, depth: usize) -> Result<usize, (usize, String)> {
        let line = self.lines[self.at].number;
        if depth >= MAX_DEPTH {
            return Err((line, format!("more than {MAX_DEPTH} maps and lists stand in each other")));
        }
        Ok(line)
    }

    /// The block below a key or a dash that has nothing beside it; nothing where the next line is indented less.
    fn nested(&mut self, above: YamlLine<'_>, depth: usize, least: usize) -> Result<Yaml, (usize, String)> {
        match self.lines.get(self.at).map(|next| next.indent).filter(|indent| *indent >= least) {
            Some(indent) => self.block(indent, depth + 1),
            None => Ok(Yaml { line: above.number, value: YamlValue::Word(String::new()) }),
        }
    }

    fn refuse_deeper(&self, indent: usize) -> Result<(), (usize, String)> {
        match self.lines.get(self.at).filter(|next| next.indent > indent) {
            Some(next) => Err((next.number, "it is indented more than what it belongs to".to_owned())),
            None => Ok(()),
        }
    }
}

fn is_item(text: &str) -> bool {
    text == "-" || text.starts_with("- ")
}

/// Key and value of `key: value`, where the value may be missing.
fn entry(text: &str) -> Result<Option<(String, &str)>, String> {
    if let Some(quote) = text.chars().next().filter(|letter| matches!(letter, '"' | '\'')) {
        let Some((_, after)) = text[1..].split_once(quote) else {
            return Err(format!("{:?} is not closed", shown(text)));
        };
        let Some(inner) = after.trim_start().strip_prefix(':') else { return Ok(None) };
        return Ok(Some((unquoted(&text[..text.len() - after.len()])?, inner.trim())));
    }
    let at = text.find(": ").or_else(|| text.ends_with(':').then(|| text.len() - 1));
    at.map(|at| Ok((plain(text[..at].trim_end())?, text[at + 1..].trim()))).transpose()
}

fn value(line: usize, text: &str) -> Result<Yaml, (usize, String)> {
    let word = |text: &str| unquoted(text).map_err(|what| (line, what));
    let Some(inner) = text.strip_prefix('[') else {
        return Ok(Yaml { line, value: YamlValue::Word(word(text)?) });
    };
    let Some(inner) = inner.strip_suffix(']').filter(|inner| !inner.contains(['[', ']', '{', '}'])) else {
        return Err((line, format!("{:?} is not a list of words on one line", shown(text))));
    };
    let items = inner.split(',').map(str::trim).filter(|item| !item.is_empty());
    let items = items.map(|item| Ok(Yaml { line, value: YamlValue::Word(word(item)?) })).collect::<Result<_, _>>()?;
    Ok(Yaml { line, value: YamlValue::List(items) })
}

/// A word in quotes or without.
fn unquoted(text: &str) -> Result<String, String> {
    let Some(quote) = text.chars().next().filter(|letter| matches!(letter, '"' | '\'')) else { return plain(text) };
    match text[1..].strip_suffix(quote).filter(|inner| !inner.contains([quote, '\\'])) {
        Some(inner) => Ok(inner.to_owned()),
        None => Err(format!("{:?} is not a word in quotes, without quotes or backslashes in it", shown(text))),
    }
}

fn plain(text: &str) -> Result<String, String> {
    let what = match text.chars().next() {
        Some('&' | '*') => "anchors are",
        Some('!') => "tags are",
        Some('|' | '>') => "texts of several lines are",
        Some('{') => "maps in braces are",
        Some('%' | '@' | '`' | '?') => "such words are",
        _ => return Ok(text.to_owned()),
    };
    Err(format!("{:?}: {what} not read here", shown(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(value: &Yaml) -> String {
        match &value.value {
            YamlValue::Word(word) => format!("{word:?}"),
            YamlValue::List(items) => format!("[{}]", items.iter().map(told).collect::<Vec<_>>().join(" ")),
            YamlValue::Map(entries) => {
                let entry = |(key, value): &(String, Yaml)| format!("{key}={}", told(value));
                format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(" "))
            }
        }
    }

    #[test]
    fn maps_lists_and_words_are_read() {
        let cases = [
            ("---\na: 1 # one\nb:\n  - x\n  -   y: 2\n      z: 'q # r'\n", r#"{a="1" b=["x" {y="2" z="q # r"}]}"#),
            ("a:\n- x\n- y\nb: [p, \"q\"]\n", r#"{a=["x" "y"] b=["p" "q"]}"#),
            ("- a:\n    b:\n- c\n...\nrest", r#"[{a={b=""}} "c"]"#),
            ("-\n  a: n[1-2]\n", r#"[{a="n[1-2]"}]"#),
            ("\"a b\": c:d\n", r#"{a b="c:d"}"#),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text).map(|found| told(&found)), Ok(expected.to_owned()), "{text}");
        }
    }

    #[test]
    fn the_rest_of_yaml_is_refused_with_its_line() {
        let cases = [
            ("a: 1\n\tb: 2", (2, "a tab in the indentation")),
            ("a: &x 1", (1, "anchors are not read here")),
            ("a: {b: 1}", (1, "maps in braces are not read here")),
            ("a: |\n  text", (1, "texts of several lines")),
            ("a: !!int 1", (1, "tags are not read here")),
            ("a: 1\na: 2", (2, "a second \"a\" in one map")),
            ("a: 1\n---\nb: 2", (2, "a second document")),
            ("a: 1\n   b: 2", (2, "it is indented more")),
            ("  a: 1\nb: 2", (2, "it is indented less")),
            ("a: 1\nb", (2, "\"b\" is not \"key: value\"")),
            ("a: [b", (1, "is not a list of words on one line")),
            ("a: 'b", (1, "is not a word in quotes")),
            ("", (1, "the file is empty")),
        ];
        for (text, (line, expected)) in cases {
            let (at, what) = parse(text).unwrap_err();
            assert!(at == line && what.contains(expected), "{at}: {what} for {text}");
        }
        let deep: String = (0..40).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(parse(&deep).unwrap_err().1.contains("more than 16"));
        // Lists that stand as far left as their keys, behind one level, so that depths are odd.
        let deep: String = (0..1000).map(|depth| format!("{}- a:\n", " ".repeat(2 * depth))).collect();
        assert!(parse(&deep).unwrap_err().1.contains("more than 16"));
        let dashes = "- ".repeat(100_000) + "a";
        assert!(parse(&dashes).unwrap_err().1.contains("more than 16"));
        let deep = format!("a:\n{deep}");
        assert!(parse(&deep).unwrap_err().1.contains("more than 16"));
    }
}
