//! C++ has what Rust has: every public method, field and variant is declared in the headers, in the class that stands for
//! the type, or listed here with the reason why not. And docs/from-nccl.md names only what is declared. The test compares
//! declarations, not words: what a comment, a text or the body of a function says declares nothing. It builds no library.

mod parity {
    pub(crate) mod declared;
}
#[allow(dead_code, reason = "`tidy` uses the rest")]
#[path = "tidy/text.rs"]
mod text;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use parity::declared::{Declared, of_cpp, of_rust};
use rsccl::types::Collective;

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

/// Types of Rust, where they are, and the classes and namespaces that have their methods; "" is rsccl itself.
const METHODS: &[(&str, &str, &[&str])] = &[
    ("collectives", "src/comm", &["Collectives"]),
    ("Communicator", "src", &["Communicator", "UniqueId", "mpi", ""]),
    ("Member", "src/comm", &["Group", "Member"]),
    ("Group", "src/comm", &["Group"]),
    ("Scope", "src/comm", &["Communicator"]),
    ("Request", "src/comm", &["Request"]),
    ("AbortHandle", "src/comm.rs", &["AbortHandle"]),
    ("UniqueId", "src/bootstrap", &["UniqueId"]),
    ("Error", "src/error.rs", &["Error"]),
    ("Kind", "src/error.rs", &["Error"]),
    ("Store", "src/bootstrap", &["Store"]),
    ("FileStore", "src/bootstrap", &["FileStore"]),
    ("TcpStore", "src/bootstrap", &["TcpStore"]),
    ("HashStore", "src/bootstrap", &["HashStore"]),
    ("Buffer", "src/exec", &["buffer"]),
    ("Registered", "src/exec", &["registered"]),
    ("SharedPool", "src/exec", &["pool"]),
    ("Window", "src/comm", &["Window"]),
    ("DeviceStream", "src/exec", &["Stream", "gpu_buffer"]),
    ("DeviceBuffer", "src/exec", &["gpu_buffer"]),
    ("DeviceSliceMut", "src/exec", &["gpu_buffer"]),
    ("OnStream", "src/comm", &["Collectives"]),
    ("OwnedRequest", "src/comm", &["Request"]),
    ("PersistentCall", "src/comm", &["PersistentCall"]),
];

/// Types whose methods `collectives!` makes, for calls on streams of GPUs: in C++ each call takes its stream.
const ON_STREAMS: &[&str] = &["OnStream", "StreamMember"];
/// Calls of C++ without a stream.
const WITHOUT_STREAM: &[(&str, &str)] = &[];

/// Structs and enums of Rust, where they are, and the header that has their fields and variants.
const FIELDS: &[(&str, &str, &str)] = &[
    ("Config", "src/config.rs", "config.hpp"),
    ("Placement", "src/comm", "placement.hpp"),
    ("DeviceChoice", "src/comm", "placement.hpp"),
    ("MemoryUse", "src/comm", "memory_use.hpp"),
    ("LogLine", "src/log", "log.hpp"),
    ("Kind", "src/error.rs", "error.hpp"),
    ("DataType", "src/types", "types.hpp"),
    ("ReduceOp", "src/types", "types.hpp"),
    ("DebugLevel", "src/config", "log.hpp"),
];

const CONSTRUCTOR: Instead = Nothing("a constructor");
const OURS: Instead = Nothing("makes the library's own errors; C++ programs have Error's constructor");

const BRINGS: Instead = Nothing("C++ programs have CUDA's own calls for streams, memory and copies");
const LIFETIMES: Instead = Nothing("C++ passes pointers and counts: it has no lifetimes that slices could carry");

const OTHERS: &[Other] = &[
    ("Communicator", "unique_id", Named("generate")),
    ("Communicator", "init", CONSTRUCTOR),
    ("Communicator", "from_env_with", Named("from_env")),
    ("Communicator", "register", Named("register_buffer")),
    ("Communicator", "deregister", Named("deregister_buffer")),
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
    ("PersistentCall", "is_finished", Named("test")),
    ("PersistentCall", "buffers", Nothing("the program has the buffers itself")),
    ("PersistentCall", "into_buffers", Nothing("the program has the buffers itself")),
    ("UniqueId", "as_bytes", Named("bytes")),
    ("Store", "give_up", Nothing("a rank waits for a key of a C++ store until its deadline")),
    ("Store", "begin", Nothing("with give_up")),
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
    ("SharedPool", "new", CONSTRUCTOR),
    ("Registered", "new", Nothing("rsccl::register_memory makes it")),
    ("Registered", "vouched", Nothing("rsccl::register_memory, with Pins::none_here")),
    ("Registered", "into_inner", Nothing("the program has the memory itself; the destructor gives it back")),
    ("DeviceStream", "new", BRINGS),
    ("DeviceStream", "from_raw", CONSTRUCTOR),
    (
        "DeviceStream",
        "from_cudarc",
        Nothing("cudarc is a crate of Rust; CUDA's runtime and driver both have cudaStream_t"),
    ),
    ("DeviceStream", "lend", LIFETIMES),
    ("DeviceStream", "lend_mut", LIFETIMES),
    ("DeviceStream", "lend_both", LIFETIMES),
    ("DeviceStream", "alloc", BRINGS),
    ("DeviceStream", "alloc_shareable", Named("gpu_buffer")),
    ("DeviceStream", "upload", BRINGS),
    ("DeviceStream", "download", BRINGS),
    ("DeviceStream", "synchronize", BRINGS),
    ("DeviceBuffer", "from_raw", Nothing("calls and register_window take pointers")),
    ("DeviceBuffer", "len", Named("size")),
    ("DeviceBuffer", "is_empty", Named("empty")),
    ("DeviceBuffer", "slice", LIFETIMES),
    ("DeviceBuffer", "slice_mut", LIFETIMES),
    ("DeviceSliceMut", "from_raw", LIFETIMES),
    ("DeviceSliceMut", "into_slice", LIFETIMES),
    ("OnStream", "run", Nothing("as Communicator::run")),
    ("OwnedRequest", "is_finished", Named("test")),
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
    let cpp = headers_declare();
    for (name, place, classes) in METHODS {
        let of_classes = |item: &&Declared| classes.contains(&item.class.as_str()) && item.parameters.is_some();
        let methods = methods(&sources(place), name);
        assert!(!methods.is_empty(), "no public method of {name} is found: has it moved, or is it written otherwise?");
        for method in methods {
            let is_there = |wanted: &str| cpp.iter().filter(of_classes).any(|item| item.name == wanted);
            findings.extend(missing((name, &method, &method), is_there, &mut used));
        }
    }
    for (name, place, header) in FIELDS {
        let items = of_cpp(&read(&header_path(header)));
        let fields = fields(&sources(place), name);
        assert!(
            !fields.is_empty(),
            "no field or variant of {name} is found: has it moved, or is it written otherwise?"
        );
        for field in fields {
            let is_there = |wanted: &str| items.iter().any(|item| item.name == wanted);
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

/// The numbers by which C++ names a call to the library are the library's own.
#[test]
fn the_kinds_of_calls_have_the_numbers_of_rust() {
    let header = read(&header_path("collectives.hpp"));
    let (_, rest) = header.split_once("enum class Kind : std::uint8_t {").expect("the header has the kinds of calls");
    let (kinds, _) = rest.split_once('}').expect("the list ends");
    let of_cpp: Vec<(&str, &str)> =
        kinds.lines().filter_map(|line| line.trim().trim_end_matches(',').split_once(" = ")).collect();
    let numbers: Vec<String> = Collective::ALL.iter().map(|collective| collective.code().to_string()).collect();
    let mut of_rust: Vec<(&str, &str)> =
        Collective::ALL.iter().zip(&numbers).map(|(collective, number)| (collective.name(), number.as_str())).collect();
    // Of two messages, and no collective.
    of_rust.push(("send_recv", "255"));
    assert_eq!(of_cpp, of_rust);
}

/// The calls that Rust has on streams of GPUs take a stream in C++, in all their forms.
#[test]
fn every_call_of_the_headers_takes_a_stream() {
    let collectives = sources("src/comm").concat();
    for name in ON_STREAMS {
        assert!(collectives.contains(&format!("] {name}<")), "{name} has no collectives");
    }
    let cpp = headers_declare();
    for call in methods(&sources("src/comm"), "collectives") {
        let forms = cpp.iter().filter(|item| item.class == "Collectives" && item.name == call);
        // A form that takes any rest is there to be refused in words.
        let forms = forms.filter_map(|item| item.parameters.as_deref()).filter(|form| !form.contains("Rest&&..."));
        let forms: Vec<&str> = forms.collect();
        assert!(!forms.is_empty(), "C++ has no {call}");
        // Of buffers, `StreamFor` is a stream that those of a GPU cannot leave out.
        let takes = |parameters: &str| parameters.contains("Stream stream") || parameters.contains("StreamFor<");
        let lacks = forms.iter().find(|parameters| !takes(parameters));
        let excepted = WITHOUT_STREAM.iter().any(|(name, _)| *name == call);
        assert_eq!(lacks.is_some(), excepted, "{call}({}) of C++", lacks.unwrap_or(&""));
    }
}

/// `cpp/tests/nonblocking.cpp` says of each method what it does while a peer is late, and tries those that must not wait.
#[test]
fn the_test_of_what_does_not_block_has_every_method() {
    let list = read(&root().join("cpp/tests/nonblocking.cpp"));
    let has = |name: &str| list.contains(&format!("\"{name}\"")) || list.contains(&format!("FORMS({name},"));
    let own = [
        "submit",
        "submit_v",
        "submit_rooted_v",
        "register_memory",
        "rank_now",
        "size_now",
        "operator",
        "RSCCL_REFUSE_POINTERS",
    ];
    let inner = ["expect", "times", "block", "mine", "total", "check", "self", "type", "C", "Collectives"];
    let is_asked = |item: &Declared| {
        let name = item.name.as_str();
        item.parameters.is_some() && !own.contains(&name) && !inner.contains(&name)
    };
    let all = headers_declare();
    let asked =
        all.iter().filter(|item| matches!(item.class.as_str(), "Communicator" | "Collectives") && is_asked(item));
    let names: BTreeSet<&str> = asked.map(|item| item.name.as_str()).collect();
    assert!(names.len() > 45, "few methods are found: {names:?}");
    let forgotten: Vec<&&str> = names.iter().filter(|name| !has(name)).collect();
    assert!(forgotten.is_empty(), "cpp/tests/nonblocking.cpp does not say whether these block: {forgotten:?}");
}

#[test]
fn the_page_from_nccl_names_what_is_there() {
    let page = read(&root().join("docs/from-nccl.md"));
    let rust: Vec<BTreeSet<String>> = sources("src").iter().map(|source| of_rust(source)).collect();
    let cpp: BTreeSet<String> = headers_declare().iter().flat_map(Declared::names).collect();
    let rust: BTreeSet<&str> = rust.iter().flatten().map(String::as_str).collect();
    let cpp: BTreeSet<&str> = cpp.iter().map(String::as_str).collect();
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

/// Whether `known` has a name; names of variables and of arguments in the examples are nobody's.
fn is_known(known: &BTreeSet<&str>, name: &str) -> bool {
    const EXAMPLES: &[&str] = &["comm", "in", "n", "g", "calls", "body", "ids", "crate", "Socket", "pointer"];
    // Of the standard libraries and of the crate half.
    const OF_OTHERS: &[&str] = &["std", "byte", "what", "Display", "half", "f16", "bf16"];
    match name.strip_suffix('*') {
        Some(start) => known.iter().any(|word| word.starts_with(start)),
        None => known.contains(name) || EXAMPLES.contains(&name) || OF_OTHERS.contains(&name),
    }
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

/// What all headers declare.
fn headers_declare() -> Vec<Declared> {
    headers().iter().flat_map(|header| of_cpp(&read(header))).collect()
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
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}
