//! What Rust and C++ code declares, by their brackets and key words: enough for our own sources.

use std::collections::BTreeSet;

use crate::text::{blank_comments_and_literals, identifier};

/// A name that a header declares for its users.
#[derive(Debug)]
pub(crate) struct Declared {
    /// The innermost class around it, or nothing.
    pub(crate) class: String,
    pub(crate) name: String,
    /// What stands in the brackets of a function.
    pub(crate) parameters: Option<String>,
}

impl Declared {
    /// The name, and those of the parameters.
    pub(crate) fn names(&self) -> Vec<String> {
        let parameters = self.parameters.as_deref().unwrap_or_default().split(',');
        let last = |parameter: &str| words(parameter.split('=').next()?).pop().map(str::to_owned);
        parameters.filter_map(last).chain([self.name.clone(), self.class.clone()]).collect()
    }
}

/// What a header declares outside of `namespace detail` and of the bodies of functions.
pub(crate) fn of_cpp(header: &str) -> Vec<Declared> {
    let code = blank_comments_and_literals(header);
    let (macros, code): (Vec<&str>, Vec<&str>) = code.lines().partition(|line| line.starts_with('#'));
    let code: String = code.into_iter().flat_map(|line| [line, "\n"]).collect();
    let macros = macros.into_iter().filter_map(|line| line.strip_prefix("#define "));
    let mut found: Vec<Declared> = macros.filter_map(|rest| declared(&[], Some(identifier(rest)), None)).collect();
    // What is open: a class or a namespace with its name, or a body.
    let mut open: Vec<Option<String>> = Vec::new();
    let (mut brackets, mut start, mut is_enumeration) = (0_usize, 0, false);
    for (place, letter) in code.char_indices() {
        let head = &code[start..place];
        let declares = open.iter().all(Option::is_some) && !open.iter().flatten().any(|name| name == "detail");
        match letter {
            '(' => {
                if brackets == 0 && declares {
                    let end = closing(&code, place);
                    found.extend(declared(&open, words(head).pop(), Some(&code[place + 1..end])));
                }
                brackets += 1;
            }
            ')' => brackets = brackets.saturating_sub(1),
            _ if brackets > 0 => {}
            '{' => {
                let opened = scope(head);
                if declares {
                    found.extend(declared(&open, opened.as_deref().or(words(head).pop()), None));
                }
                is_enumeration = opened.is_some() && words(head).contains(&"enum");
                open.push(opened);
                start = place + 1;
            }
            // Elsewhere a comma parts the arguments of a template.
            ',' if !is_enumeration => {}
            '}' | ';' | ',' | '=' => {
                if declares && !head.contains('(') {
                    found.extend(declared(&open, words(head).pop(), None));
                }
                if letter == '}' {
                    open.pop();
                    is_enumeration = false;
                }
                start = place + 1;
            }
            _ => {}
        }
    }
    found
}

fn declared(open: &[Option<String>], name: Option<&str>, parameters: Option<&str>) -> Option<Declared> {
    let class = open.iter().flatten().next_back().filter(|class| *class != "rsccl").cloned().unwrap_or_default();
    Some(Declared { class, name: name?.to_owned(), parameters: parameters.map(str::to_owned) })
}

/// The name of the class, enumeration or namespace that `head` begins; `None` for a body.
fn scope(head: &str) -> Option<String> {
    let mut head = head.trim();
    while let Some(rest) = head.strip_prefix("template") {
        head = rest.trim_start().strip_prefix('<').map_or("", |rest| behind_angles(rest)).trim_start();
    }
    let names = words(head.split(" : ").next()?);
    let is_scope = ["namespace", "class", "struct", "enum", "union"].iter().any(|word| names.contains(word));
    (is_scope && !head.contains('(')).then(|| names.last().map_or_else(String::new, |name| (*name).to_owned()))
}

fn behind_angles(text: &str) -> &str {
    let mut depth = 1;
    for (place, letter) in text.char_indices() {
        match letter {
            '<' => depth += 1,
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[place + 1..];
        }
    }
    ""
}

fn closing(code: &str, open: usize) -> usize {
    let mut depth = 0_usize;
    for (place, letter) in code[open..].char_indices() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return open + place;
        }
    }
    code.len()
}

/// What Rust code declares: items, fields, variants, parameters, and what it gives on under another name.
pub(crate) fn of_rust(source: &str) -> BTreeSet<String> {
    let code = blank_comments_and_literals(source);
    let mut found = BTreeSet::new();
    let mut last = "";
    for word in words(&code) {
        let rest = &code[word.as_ptr().addr() - code.as_ptr().addr() + word.len()..];
        let behind = rest.trim_start();
        let key_word =
            ["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "union", "as"].contains(&last);
        // A macro's name, a field or a parameter.
        let is_field = behind.starts_with(':') && !behind.starts_with("::");
        // A setter of the configuration, which a macro writes: `with_name => field: Type`.
        let is_setter = word.starts_with("with_") && behind.starts_with("=>");
        if key_word || is_field || is_setter || last == "macro_rules" {
            found.insert(word.to_owned());
        }
        last = word;
    }
    found.extend(variants(&code));
    found
}

/// The variants of all enumerations in `code`.
fn variants(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut inside = false;
    for line in code.lines() {
        let indent = line.len() - line.trim_start().len();
        if line.starts_with("pub enum ") || line.starts_with("enum ") || line.starts_with("pub(crate) enum ") {
            inside = line.ends_with('{');
        } else if line.starts_with('}') {
            inside = false;
        } else if inside && indent == 4 && line.trim_start().starts_with(|c: char| c.is_ascii_uppercase()) {
            found.push(identifier(line.trim_start()).to_owned());
        }
    }
    found
}

fn words(code: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let words =
        code.split(|c: char| !is_part(c)).filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_'));
    words.collect()
}

#[test]
fn what_is_only_said_is_not_declared() {
    let header = "namespace rsccl {\n// class Said { void told(); };\nnamespace detail { void hidden(); }\n\
        template <class T> class Real : public Base<T, int> {\n  public:\n    void named(int count, Stream stream = {}) { called(count); }\n\
            static constexpr int value = 3;\n    enum class Color { red, green };\n};\n}";
    let items = of_cpp(header);
    let has = |class: &str, name: &str| items.iter().any(|item| item.class == class && item.name == name);
    assert!(has("Real", "named") && has("Real", "value") && has("Color", "red") && has("Color", "green"), "{items:?}");
    assert!(!items.iter().any(|item| ["Said", "told", "hidden", "called"].contains(&item.name.as_str())), "{items:?}");
    assert!(items.iter().any(|item| item.names().contains(&"stream".to_owned())));
    let rust = of_rust(
        "/// A told.\npub fn real(count: u32) -> Told { called(\"text\") }\npub enum Kind {\n    One,\n    Two(u8),\n}\n",
    );
    let expected = ["Kind", "One", "Two", "count", "real"];
    assert_eq!(rust.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
