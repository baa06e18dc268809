//! C++ has what Rust has: every public method, field and variant is named in the headers, or listed here with the
//! reason why not. And docs/from-nccl.md names only what exists. The test compares text; it builds no library.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A public thing of Rust: its type, its name, and what stands for it in C++.
type Other = (&'static str, &'static str, Instead);

/// What C++ has in place of the same name.
#[derive(Clone, Copy)]
enum Instead {
    /// Another name.
    Named(&'static str),
    /// Nothing, for this reason.
    Nothing(&'static str),
}
use Instead::{Named, Nothing};

/// Types of Rust, where they are, and the headers that have their methods.
const METHODS: &[(&str, &str, &[&str])] = &[
    ("collectives", "src/comm", &["collectives.hpp"]),
    ("Communicator", "src", &["communicator.hpp", "unique_id.hpp", "mpi.hpp"]),
    ("Member", "src/comm", &["group.hpp"]),
    ("Group", "src/comm", &["group.hpp"]),
    ("Scope", "src/comm", &["communicator.hpp"]),
    ("Request", "src/comm", &["request.hpp"]),
    ("AbortHandle", "src/comm.rs", &["communicator.hpp"]),
    ("UniqueId", "src/bootstrap", &["unique_id.hpp"]),
    ("Error", "src/error.rs", &["error.hpp"]),
    ("Kind", "src/error.rs", &["error.hpp"]),
    ("Store", "src/bootstrap", &["store.hpp"]),
    ("FileStore", "src/bootstrap", &["store.hpp"]),
    ("TcpStore", "src/bootstrap", &["store.hpp"]),
    ("HashStore", "src/bootstrap", &["store.hpp"]),
    ("Buffer", "src/exec", &["buffer.hpp"]),
    ("Window", "src/comm", &["buffer.hpp"]),
];

/// Structs and enums of Rust, where they are, and the header that has their fields and variants.
const FIELDS: &[(&str, &str, &str)] = &[
    ("Config", "src/config.rs", "config.hpp"),
    ("Placement", "src/comm", "placement.hpp"),
    ("DeviceChoice", "src/comm", "placement.hpp"),
    ("LogLine", "src/log", "log.hpp"),
    ("Kind", "src/error.rs", "error.hpp"),
    ("DataType", "src/types", "types.hpp"),
    ("ReduceOp", "src/types", "types.hpp"),
    ("DebugLevel", "src/config", "log.hpp"),
];

const CONSTRUCTOR: Instead = Nothing("a constructor");
const OURS: Instead = Nothing("makes the library's own errors; C++ programs have Error's constructor");

const OTHERS: &[Other] = &[
    ("Communicator", "unique_id", Named("generate")),
    ("Communicator", "init", CONSTRUCTOR),
    ("Communicator", "from_env_with", Named("from_env")),
    ("Communicator", "register", Named("register_buffer")),
    ("Communicator", "on", Nothing("in C++ each call takes its stream")),
    ("Group", "on_stream", Nothing("as Communicator::on")),
    ("Communicator", "chosen", Nothing("for tools; the log says it of every call, with NCCL_DEBUG_SUBSYS=TUNING")),
    ("Communicator", "run", Nothing("each call has a form with pointers, a count and a DataType")),
    ("Communicator", "scope", Named("start")),
    ("Communicator", "try_scope", Nothing("exceptions of any type pass through")),
    ("Member", "add", Nothing("each call has a form with pointers, a count and a DataType")),
    ("Member", "add_message", Nothing("as add")),
    ("Scope", "begin", Nothing("as Member::add")),
    ("Request", "is_finished", Named("test")),
    ("UniqueId", "as_bytes", Named("bytes")),
    ("UniqueId", "generate_held", Nothing("for from_mpi, which has PreparedInit")),
    ("UniqueId", "fixed", Nothing("NCCL_COMM_ID and Config::comm_id say it")),
    ("UniqueId", "is_fixed", Nothing("for the library's own set-up")),
    ("UniqueId", "is_authenticated", Nothing("for the library's own set-up")),
    ("UniqueId", "number", Nothing("for logs; C++ programs have the bytes")),
    ("UniqueId", "address", Nothing("for logs; C++ programs have the bytes")),
    ("Error", "new", CONSTRUCTOR),
    ("Error", "invalid_argument", OURS),
    ("Error", "invalid_usage", OURS),
    ("Error", "mismatch", OURS),
    ("Error", "remote", OURS),
    ("Error", "timeout", OURS),
    ("Error", "internal", OURS),
    ("Error", "aborted", OURS),
    ("Error", "system", OURS),
    ("Error", "other", Nothing("exceptions of any type pass through")),
    ("Error", "with_source", Nothing("std::throw_with_nested does it")),
    ("Error", "last_os", OURS),
    ("Error", "at", Nothing("Error's constructor takes the rank")),
    ("Error", "about", Nothing("Error's constructor takes the peer")),
    ("Error", "during", Nothing("Error's constructor takes the operation")),
    ("Error", "inside", Nothing("Error's constructor takes the operation")),
    ("Error", "kind", Named("code")),
    ("Error", "duplicate", Nothing("errors are copied")),
    ("Kind", "fault", Nothing("each kind has a class, whose words say whose fault it is")),
    ("Store", "delete", Named("remove")),
    ("Store", "peek", Nothing("a store of a C++ program is asked by get, with no time left")),
    ("Store", "insert", Nothing("a store of a C++ program keeps a set by add, with a key for each member")),
    ("Store", "clear", Nothing("a store of a C++ program keeps a set by add, with a key for each member")),
    ("Store", "listens_at", Nothing("a store of a C++ program is served by the program")),
    ("Store", "outlives_its_users", Nothing("a store of a C++ program is taken for one that does")),
    ("FileStore", "open", CONSTRUCTOR),
    ("FileStore", "folder", Nothing("who opened it knows its folder")),
    ("HashStore", "new", CONSTRUCTOR),
    ("Buffer", "new", CONSTRUCTOR),
    ("DataType", "I8", Named("int8")),
    ("DataType", "U8", Named("uint8")),
    ("DataType", "I32", Named("int32")),
    ("DataType", "U32", Named("uint32")),
    ("DataType", "I64", Named("int64")),
    ("DataType", "U64", Named("uint64")),
    ("DataType", "F16", Named("float16")),
    ("DataType", "F32", Named("float32")),
    ("DataType", "F64", Named("float64")),
    ("DataType", "BF16", Named("bfloat16")),
    ("DataType", "F8E4M3", Named("float8_e4m3")),
    ("DataType", "F8E5M2", Named("float8_e5m2")),
    ("ReduceOp", "PreMulSum", Named("premul_sum")),
    ("ReduceOp", "BitAnd", Named("band")),
    ("ReduceOp", "BitOr", Named("bor")),
    ("ReduceOp", "BitXor", Named("bxor")),
];

#[test]
fn the_headers_name_every_method_field_and_variant_of_rust() {
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for (name, place, headers) in METHODS {
        let code: String = headers.iter().map(|header| code_of(&header_path(header))).collect();
        let methods = methods(&sources(place), name);
        assert!(!methods.is_empty(), "no public method of {name} is found: has it moved, or is it written otherwise?");
        for method in methods {
            let is_there = |wanted: &str| has_word(&code, wanted, &['(']);
            findings.extend(missing((name, &method, &method), is_there, &mut used));
        }
    }
    for (name, place, header) in FIELDS {
        let code = code_of(&header_path(header));
        let fields = fields(&sources(place), name);
        assert!(
            !fields.is_empty(),
            "no field or variant of {name} is found: has it moved, or is it written otherwise?"
        );
        for field in fields {
            let is_there = |wanted: &str| has_word(&code, wanted, &[' ', ';', ',', '(', '=']);
            findings.extend(missing((name, &field, &snake(&field)), is_there, &mut used));
        }
    }
    for (name, method, _) in OTHERS {
        if !used.contains(&(*name, *method)) {
            findings.push(format!("{name}::{method} is listed here, and Rust has it no longer: remove it from OTHERS"));
        }
    }
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn the_page_from_nccl_names_what_is_there() {
    let page = read(&root().join("docs/from-nccl.md"));
    let rust: String = sources("src").concat();
    let cpp: String = headers().iter().map(|header| code_of(header)).collect();
    let (rust, cpp) = (words(&rust), words(&cpp));
    let either: BTreeSet<&str> = rust.union(&cpp).copied().collect();
    let mut findings = Vec::new();
    let mut seen = 0;
    let mut columns: Vec<String> = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let Some(cells) = line.strip_prefix('|') else {
            columns.clear();
            continue;
        };
        let cells: Vec<String> =
            cells.replace("\\|", "\u{1}").split('|').map(|cell| cell.replace('\u{1}', "|")).collect();
        if columns.is_empty() {
            columns = cells;
            continue;
        }
        for (column, cell) in columns.iter().zip(&cells) {
            let known = match (column.contains("C++") || column.trim() == "`Config`", column.contains("Rust")) {
                (true, true) => &either,
                (true, false) => &cpp,
                (false, true) => &rust,
                (false, false) => continue,
            };
            for code in cell.split('`').skip(1).step_by(2) {
                for name in names(code) {
                    seen += 1;
                    if !is_known(known, name) {
                        findings.push(format!("docs/from-nccl.md:{number}: nothing is called {name}, in `{code}`"));
                    }
                }
            }
        }
    }
    assert!(seen > 100, "only {seen} names are found: are its tables written otherwise?");
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// The finding where what stands for a name of Rust is not in C++, or is listed though C++ has it.
fn missing<'a>(
    (name, rust, wanted): (&'a str, &str, &str),
    is_there: impl Fn(&str) -> bool,
    used: &mut BTreeSet<(&'a str, &'static str)>,
) -> Option<String> {
    match OTHERS.iter().find(|(other, method, _)| (*other, *method) == (name, rust)) {
        None if is_there(wanted) => None,
        None => Some(format!(
            "C++ has no {wanted} for {name}::{rust}: add it to the headers, or a reason to tests/parity.rs"
        )),
        Some((_, method, instead)) => {
            used.insert((name, *method));
            match instead {
                Named(other) if is_there(other) => None,
                Named(other) => Some(format!("C++ has no {other} for {name}::{rust}")),
                Nothing(why) => {
                    assert!(!why.is_empty());
                    None
                }
            }
        }
    }
}

/// The public methods of a type, the methods of a public trait, or those that a macro gives to several types.
fn methods(sources: &[String], name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in sources {
        let (mut inside, mut start_of_method) = (false, "");
        for line in source.lines() {
            if line.starts_with('}') {
                inside = false;
            } else if let Some((head, start)) = head_of(line) {
                start_of_method = start;
                let end = head.find(|c: char| !c.is_alphanumeric()).unwrap_or(head.len());
                // `impl<'a> Type<'a>`, not `impl Trait for Type`.
                inside = &head[..end] == name && !head.contains(" for ");
            } else if inside {
                let line = line.replace("pub const fn ", "pub fn ").replace("pub unsafe fn ", "pub fn ");
                if let Some(rest) = line.strip_prefix(start_of_method) {
                    found.extend(names(rest).next().map(str::to_owned));
                }
            }
        }
    }
    found
}

/// Where a block begins that may have methods: what it is about, and how the line of a method in it begins.
fn head_of(line: &str) -> Option<(&str, &'static str)> {
    let line = line.strip_suffix('{')?;
    if let Some(name) = line.strip_prefix("macro_rules! ") {
        return Some((name, "            pub fn "));
    }
    if let Some(name) = line.strip_prefix("pub trait ") {
        return Some((name, "    fn "));
    }
    line.strip_prefix("impl").map(|head| (after_generics(head), "    pub fn "))
}

fn after_generics(head: &str) -> &str {
    let Some(rest) = head.strip_prefix('<') else { return head.trim_start() };
    rest.split_once("> ").map_or("", |(_, subject)| subject)
}

/// The public fields of a struct, or the variants of an enum.
fn fields(sources: &[String], name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for source in sources {
        let mut inside = None;
        for line in source.lines() {
            let opens = |kind: &str| {
                let rest = line.strip_prefix("pub ").and_then(|line| line.strip_prefix(kind));
                rest.is_some_and(|rest| names(rest).next() == Some(name) && line.ends_with('{'))
            };
            if opens("struct ") || opens("enum ") {
                inside = Some(opens("enum "));
            } else if line == "}" {
                inside = None;
            } else if let Some(is_enum) = inside {
                let field = if is_enum { line.strip_prefix("    ") } else { line.strip_prefix("    pub ") };
                let field = field.filter(|field| field.starts_with(|c: char| c.is_alphabetic()));
                found.extend(field.and_then(|field| names(field).next()).map(str::to_owned));
            }
        }
    }
    found
}

/// The identifiers of a piece of code, `socket_*` among them.
fn names(code: &str) -> impl Iterator<Item = &str> {
    let words = code.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == '*'));
    words.filter(|word| word.starts_with(|c: char| c.is_alphabetic() || c == '_') && *word != "_")
}

fn words(code: &str) -> BTreeSet<&str> {
    names(code).map(|word| word.trim_matches('*')).collect()
}

/// Whether `known` has a name; names of variables and of arguments in the examples are nobody's.
fn is_known(known: &BTreeSet<&str>, name: &str) -> bool {
    const EXAMPLES: &[&str] = &["comm", "in", "n", "g", "calls", "body", "ids", "crate", "half", "Socket"];
    match name.strip_suffix('*') {
        Some(start) => known.iter().any(|word| word.starts_with(start)),
        None => known.contains(name) || EXAMPLES.contains(&name),
    }
}

/// Whether `code` has a word, with one of `behind` after it.
fn has_word(code: &str, word: &str, behind: &[char]) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let (before, after) = (code[..at].chars().next_back(), code[at + word.len()..].chars().next());
        !before.is_some_and(part) && after.is_some_and(|after| behind.contains(&after))
    })
}

/// `InvalidArgument` as C++ writes it: `invalid_argument`.
fn snake(name: &str) -> String {
    let mut written = String::new();
    for (place, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && place > 0 {
            written.push('_');
        }
        written.extend(letter.to_lowercase());
    }
    written
}

/// A header without its comments.
fn code_of(header: &Path) -> String {
    read(header).lines().map(|line| line.split("//").next().unwrap_or("").to_owned() + "\n").collect()
}

fn header_path(name: &str) -> PathBuf {
    root().join("cpp/include/rsccl").join(name)
}

fn headers() -> Vec<PathBuf> {
    let folder = root().join("cpp/include/rsccl");
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.expect("a folder of files").path()).collect()
}

/// The texts of the library at or below `place`, without their unit tests.
fn sources(place: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut left = vec![root().join(place)];
    while let Some(path) = left.pop() {
        if path.is_dir() && !path.ends_with("bin") {
            let entries = fs::read_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            left.extend(entries.map(|entry| entry.expect("a folder of files").path()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(read(&path).split("\nmod tests {").next().unwrap_or("").to_owned());
        }
    }
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}
