//! The rules of the house that no lint can hold: floors, purity, homes of `unsafe` and of banned calls, sizes, names,
//! the front page. Every finding is printed as `path:line: message`; the test fails once, at the end.

mod tidy {
    pub(crate) mod arrows;
    pub(crate) mod circles;
    pub(crate) mod house;
    pub(crate) mod lists;
    pub(crate) mod packages;
    pub(crate) mod recipes;
    pub(crate) mod sleepers;
    pub(crate) mod text;
}

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use tidy::text::{
    blank_comments_and_literals, blank_tests, identifier, is_import, item_end, line_of, path_at, test_modules, words,
};
use tidy::{house, lists, packages, recipes};

/// The floors, lowest first. A module names lower floors only. `lib.rs` and `src/bin` stand outside the house.
const FLOORS: [&[&str]; 15] = [
    &["error"],
    &["types"],
    &["config"],
    &["sys", "sync", "wire"],
    &["log"],
    &["device", "bootstrap", "topo"],
    &["plan", "transport"],
    &["tune"],
    &["exec"],
    &["session"],
    &["reach"],
    &["engine"],
    &["comm"],
    &["over_mpi"],
    &["mpi", "ffi"],
];

/// Steps up or sideways that are allowed: who, whom, why.
const EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("error", "types", "an error names ranks by their own type"),
    ("sync", "sys", "deadlines read the one clock, parking is a futex"),
    ("sys", "sync::primitive", "a futex is a word that a model checker may stand in for"),
];

/// Modules that only compute. The next two lists hold what they may not use of the standard library and of our modules.
const PURE: &[&str] = &["types", "topo", "plan", "tune"];
const IMPURE_STD: &[&str] = &["net", "thread", "fs", "env", "process", "os", "time::Instant", "time::SystemTime"];
const IMPURE_MODULES: &[&str] = &["log", "sys", "sync", "device", "bootstrap"];
/// The one item of an impure module that pure modules may use: it only shares a value.
const PURE_ANYWAY: &str = "sync::primitive::Arc";

/// Modules whose unit tests Miri interprets (`tests/miri.sh`). A test that names a higher floor there makes threads, sockets
/// and shared memory, which Miri does not know: it belongs to the tests of that floor.
const INTERPRETED: &[&str] = &["error", "types", "topo", "plan", "tune", "wire", "sync"];

/// Other files that may have `unsafe`, each for its reason.
const UNSAFE_FILES: &[&str] = &[
    // A request owns the buffers to which its own calls point: no lifetime can say that.
    "src/comm/owned.rs",
    // The same of a persistent call, whose calls run again and again.
    "src/comm/persistent.rs",
    // A scope's requests end before its buffers do: their jobs say so of no lifetime.
    "src/comm/scope.rs",
];
/// The only homes of `unsafe`.
const UNSAFE_HOMES: &[&str] = &["sys", "sync", "device", "exec", "transport", "over_mpi", "mpi", "ffi"];

/// Banned text, the path prefixes where it may stand, the remedy.
const BANNED: &[(&str, &[&str], &str)] = &[
    ("env::var", &["src/config"], "add the variable to config, the only reader of the environment"),
    ("env::set_var", &[], "pass the value in a Config"),
    (
        "Instant::now",
        &["src/sys/clock.rs", "src/sync/seen.rs"],
        "call sys::clock::now, or take the time as an argument",
    ),
    ("SystemTime::now", &["src/sys/clock.rs"], "call sys::clock, or take the time as an argument"),
    // `sys::thread` has a `spawn` too: threads of the standard library are named in full.
    ("use std::thread;", &[], "name std::thread in full, so that its calls are told from those of sys::thread"),
    ("std::thread::sleep", &[], "wait through sync: deadline, abort flag, back-off"),
    ("std::thread::spawn", &["src/sys/thread.rs"], "make threads by sys::thread: named, bounded, joined"),
    ("std::thread::scope", &["src/sys/thread.rs"], "use sys::thread: named, bounded, joined"),
    ("std::thread::Builder", &["src/sys/thread.rs"], "make threads by sys::thread: named, bounded, joined"),
    ("libc::", &["src/sys.rs", "src/sys/"], "put the call behind a safe function in sys"),
    // Descriptors pass `sys::open`, which keeps them off the numbers of the standard streams.
    ("from_raw_fd", OPENERS, OPENED),
    ("Socket::new", OPENERS, OPENED),
    ("Socket::pair", OPENERS, OPENED),
    ("UnixStream::pair", OPENERS, OPENED),
    ("UnixStream::connect", OPENERS, OPENED),
    ("TcpStream::connect", OPENERS, OPENED),
    ("TcpListener::bind", OPENERS, OPENED),
    ("UnixListener", OPENERS, OPENED),
    ("UdpSocket", OPENERS, OPENED),
    ("UnixDatagram", OPENERS, OPENED),
    // The listeners of these two are those of `sys::descriptor`.
    ("listener.accept()", &["src/sys/open.rs", "src/bootstrap/lobby.rs", "src/transport/shm.rs"], OPENED),
    (".incoming()", OPENERS, OPENED),
    ("io::pipe()", OPENERS, OPENED),
    // What `config` reads is closed before anything else happens; it lies below `sys`.
    ("File::open", &["src/sys/open.rs", "src/config", "src/bin/"], OPENED),
    ("File::create", OPENERS, OPENED),
    ("File::options", OPENERS, OPENED),
    // These two give their options to `sys::open`.
    (
        "OpenOptions::new",
        &["src/sys/open.rs", "src/bin/", "src/sys/text_file.rs", "src/bootstrap/store/file.rs"],
        OPENED,
    ),
    ("fs::write", OPENERS, OPENED),
    ("fs::copy", OPENERS, OPENED),
    ("std::process::exit", &["src/bin/"], "return an error; only the command line ends the process"),
    ("println!", &["src/bin/"], "a library does not print: log it, or return it"),
    ("eprintln!", &["src/bin/"], "a library does not print: log it, or return it"),
    (
        "tracing::",
        &["src/log.rs", "src/log/"],
        "use the macros of log: NCCL's lines are not written from tracing events",
    ),
    ("SharedMemory", &["src/sys/", "src/device/"], "hold a Region, which says on which device its memory lives"),
    ("TransportKind::Local", KINDS, "ask the transport, behind its trait: a kind is a name"),
    ("TransportKind::Shm", KINDS, "ask the transport, behind its trait: a kind is a name"),
    ("TransportKind::Net", KINDS, "ask the transport, behind its trait: a kind is a name"),
    ("dbg!", &[], "remove it"),
    ("todo!", &[], "finish it"),
    ("unimplemented!", &[], "finish it, or leave the item out"),
    ("static mut ", &[], "hang the state on its owner: nothing is global"),
    ("transmute", &["src/ffi"], "use a cast, from_ne_bytes or a pointer read with its own proof"),
];

/// The command's runtime opens what is closed of descriptors 0 to 2 before `main`, as that of every Rust program.
const OPENERS: &[&str] = &["src/sys/open.rs", "src/bin/"];
const OPENED: &str = "open it by sys::open: a program may have its standard streams closed";

/// The files that may name a kind of transport: its own file, the list of names, the ladder of ways and what describes
/// it, and the tuner and its caller, which look up costs by name.
const KINDS: &[&str] = &[
    "src/types/",
    "src/tune",
    "src/topo/transport_choice/",
    "src/engine/choose.rs",
    "src/transport/local.rs",
    "src/transport/shm.rs",
    "src/transport/net.rs",
];

/// Concurrency types come from `sync::primitive`, so that a model checker can stand in; floors below `sync` cannot.
const CONCURRENCY: &[&str] =
    &["std::sync::{", "std::sync::atomic", "std::sync::Arc", "std::sync::Mutex", "std::sync::Condvar"];
const BELOW_SYNC: &[&str] = &["src/error.rs", "src/sys", "src/sync", "src/config", "src/log", "src/bin/", "src/lib.rs"];

/// Text that needs a comment on its line or a little above it.
const EXPLAINED: &[(&str, &str)] = &[
    ("SeqCst", "name the partner and what breaks with a weaker ordering"),
    ("let _ = ", "say why the result may be dropped"),
    (".ok();", "say why the error may be dropped"),
];
const EXPLAINED_WITHIN_LINES: usize = 12;

/// The most columns of a line, for code, comments and texts alike; `rustfmt` does not wrap the last two.
const LINE_COLUMNS: usize = 120;
/// Files with texts that are wider, or comments to wrap yet. The list only shrinks.
const WIDE: &[&str] = &[
    "src/bin/rsccl/perf.rs",
    "src/bin/rsccl/perf/plot/scene.rs",
    "src/bin/rsccl/perf/table.rs",
    "src/bin/rsccl/perf/verify/sample.rs",
    "src/bin/rsccl/run.rs",
    "src/bin/rsccl/run/bind.rs",
    "src/bin/rsccl/topo/picture.rs",
    "src/bin/rsccl/topo/show.rs",
    "src/comm/collectives.rs",
    "src/comm/group.rs",
    "src/comm/launched.rs",
    "src/comm/lone_world.rs",
    "src/comm/on_stream.rs",
    "src/comm/origin.rs",
    "src/engine/call_log.rs",
    "src/engine/choose.rs",
    "src/engine/monitor.rs",
    "src/exec/call.rs",
    "src/exec/epoch.rs",
    "src/exec/history.rs",
    "src/exec/operation.rs",
    "src/exec/rendezvous.rs",
    "src/ffi/call.rs",
    "src/lib.rs",
    "src/plan/site.rs",
    "src/reach/device_sharing.rs",
    "src/topo/affinity.rs",
    "src/topo/graphs.rs",
    "src/topo/layout.rs",
    "src/topo/overlay.rs",
    "src/topo/transport_choice.rs",
    "src/topo/xml.rs",
    "src/transport/net/listener.rs",
    "src/types/element.rs",
];

/// Types of the library that share their name with a type of another file, each with the reason. The list only shrinks:
/// a reader should be able to tell from a name which type is meant.
const HOMONYMS: &[(&str, &str)] = &[
    // One concept twice: on two floors, or for two architectures.
    ("Level", "the vector levels of x86; those of other architectures"),
    ("Store", "the key-value store; how a kernel stores; the symbolic memory of a proof"),
    ("Lane", "a sequence of a plan's steps; an element type of kernels"),
    ("Message", "a user's message; a message between symbolic ranks; what a ring carries"),
    ("Memory", "an executor's memory; a symbolic rank's"),
    ("Machine", "a described machine; the symbolic machine of a proof"),
    ("Value", "a variable's; a symbolic one"),
    ("Need", "what a plan needs of connections; what a symbolic step needs"),
    ("Gpu", "a GPU as the system shows it; as topology describes it"),
    ("Device", "a kind of memory; a GPU in topology, twice"),
    ("Mutex", "a lock that recovers; the lock under it that a sanitizer sees"),
    ("Condvar", "of such locks; under it, as above"),
    ("RankPage", "a rank's page in memory; the same under the model checker"),
    ("PageWords", "its words; the same, as above"),
    ("OwnPages", "all pages of this process; the same, as above"),
    // To be renamed by whoever works on these files next.
    ("Choice", "of the tuner; of a GPU for a rank"),
    ("Event", "of the bootstrap: a peer died, left, or published; of a device's queue"),
    ("Channel", "of a plan's connections; of the bootstrap's messages"),
    ("Group", "calls that run together; a child process with its descendants"),
    ("Keep", "of a region; of the C++ stores"),
    ("Kind", "of an error; of a variable"),
    ("Link", "of topology; of the cost model; a control connection"),
    ("Neighbour", "a rank of this host; a rank of a bootstrap collective"),
    ("Node", "of topology; of a tree"),
    ("Opened", "a configuration file; what filters open"),
    ("Path", "through a machine; of a call through the executors"),
    ("Progress", "of a task; the user's hook"),
    ("Request", "a user's; of a data connection"),
    ("Setting", "of a configuration; of an interpreter"),
    ("Site", "of a log line; of a plan's blocks"),
    ("Step", "of a plan; of a group"),
];

const VAGUE_NAMES: &[&str] = &["utils", "util", "common", "helpers", "helper", "misc", "core", "manager", "stuff"];
const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 70;
/// Documents that a reader should get through in one sitting; the README has first programs in two languages.
const DOCUMENT_LINES: &[(&str, usize)] = &[("README.md", 182), ("ARCHITECTURE.md", 300)];

/// Paths that exist only on the machine where the code was written. They are split so that this file does not contain
/// them.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/tmp", "/wt"), concat!("/ro", "ot/")];
const TEXT_ENDINGS: &[&str] =
    &["rs", "md", "toml", "sh", "py", "c", "cc", "cpp", "h", "cu", "cuh", "txt", "run", "yml"];

#[test]
fn the_house_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the tree");
    let sources = load_sources(root);
    let facade = Facade::read(&sources);
    let mut findings = Vec::new();
    for source in &sources {
        check_source(source, &facade, &mut findings);
    }
    house::check(&sources, &mut findings);
    check_type_names(&sources, &mut findings);
    lists::check(&sources, &mut findings);
    packages::check(root, &mut findings);
    recipes::check(root, &sources, &mut findings);
    check_texts(root, &mut findings);
    check_documents(root, &sources, &mut findings);
    check_front_page(root, &mut findings);
    for finding in &findings {
        println!("{finding}");
    }
    assert!(sources.len() > 20, "tidy saw only {} source files: it looks in the wrong place", sources.len());
    assert!(findings.is_empty(), "{} findings, listed above", findings.len());
}

/// A Rust file of `src`, as the checks see it.
struct Source {
    /// From the root of the tree, with `/`.
    path: String,
    /// As written.
    raw: Vec<String>,
    /// Comments, literals and test items blanked; same lines, same columns.
    code: String,
    /// The same with test items.
    with_tests: String,
    /// How many lines the test items take.
    test_lines: usize,
}

impl Source {
    fn new(path: &str, text: &str) -> Source {
        let with_tests = blank_comments_and_literals(text);
        let (code, test_lines) = blank_tests(&with_tests);
        Source { path: path.to_owned(), raw: text.lines().map(str::to_owned).collect(), code, with_tests, test_lines }
    }

    /// The module of the house that the file belongs to; `None` for `lib.rs` and `src/bin`.
    fn module(&self) -> Option<&str> {
        let inside = self.path.strip_prefix("src/")?;
        let first = inside.split('/').next()?.trim_end_matches(".rs");
        (!matches!(first, "lib" | "main" | "bin")).then_some(first)
    }

    fn finding(&self, offset: usize, message: &str) -> String {
        format!("{}:{}: {message}", self.path, line_of(&self.code, offset))
    }
}

/// Names that live at the crate's root, with the module each comes from: re-exports of `lib.rs`, and macros.
struct Facade(BTreeMap<String, String>);

impl Facade {
    fn read(sources: &[Source]) -> Facade {
        let mut names = BTreeMap::new();
        for source in sources {
            for offset in words(&source.code, "macro_rules!") {
                let name = identifier(source.code[offset + "macro_rules!".len()..].trim_start());
                names.insert(name.to_owned(), source.module().unwrap_or("lib").to_owned());
            }
            if source.path != "src/lib.rs" {
                continue;
            }
            for offset in words(&source.code, "pub use") {
                let item = source.code[offset + "pub use".len()..].split(';').next().unwrap_or_default().trim();
                let home = identifier(item.trim_start_matches("crate::"));
                for name in item.split(|c: char| !(c.is_alphanumeric() || c == '_')) {
                    names.entry(name.to_owned()).or_insert_with(|| home.to_owned());
                }
            }
        }
        Facade(names)
    }

    fn home<'a>(&'a self, name: &'a str) -> &'a str {
        if floor_of(name).is_some() { name } else { self.0.get(name).map_or(name, String::as_str) }
    }
}

fn check_source(source: &Source, facade: &Facade, findings: &mut Vec<String>) {
    check_floors(source, facade, findings);
    check_floors_of_tests(source, facade, findings);
    check_purity(source, findings);
    check_unsafe(source, findings);
    check_calls(source, findings);
    check_sizes(source, findings);
    check_width(source, findings);
    let vague = Path::new(&source.path)
        .components()
        .any(|part| VAGUE_NAMES.contains(&part.as_os_str().to_string_lossy().trim_end_matches(".rs")));
    if vague {
        findings.push(format!("{}:1: a module is named for what it holds, not utils, common or core", source.path));
    }
}

fn floor_of(module: &str) -> Option<usize> {
    FLOORS.iter().position(|floor| floor.contains(&module))
}

fn check_floors(source: &Source, facade: &Facade, findings: &mut Vec<String>) {
    let Some(module) = source.module() else { return };
    let Some(floor) = floor_of(module) else {
        findings.push(format!("{}:1: module `{module}` has no floor; give it one in tests/tidy.rs", source.path));
        return;
    };
    for (offset, name) in named_modules(&source.path, &source.code) {
        let target = facade.home(identifier(name));
        let excepted =
            EXCEPTIONS.iter().any(|(from, to, _)| *from == module && (*to == target || name.starts_with(to)));
        match floor_of(target) {
            None => findings.push(source.finding(offset, &format!("`{name}` is on no floor; name its home module"))),
            Some(_) if target == module || excepted => {}
            Some(other) if other < floor => {}
            Some(other) => {
                let message = format!("`{module}` (floor {floor}) names `{target}` (floor {other}); imports go down");
                findings.push(source.finding(offset, &message));
            }
        }
    }
}

fn check_floors_of_tests(source: &Source, facade: &Facade, findings: &mut Vec<String>) {
    let Some(module) = source.module().filter(|module| INTERPRETED.contains(module)) else { return };
    let named = named_modules(&source.path, &source.with_tests);
    let of_tests = named.into_iter().filter(|(offset, _)| source.code.as_bytes()[*offset] == b' ');
    for (offset, name) in of_tests {
        let target = facade.home(identifier(name));
        if floor_of(target) > floor_of(module) {
            let message =
                format!("a test of `{module}` names `{target}`, which Miri cannot run: move it to `{target}`");
            findings.push(source.finding(offset, &message));
        }
    }
}

/// The paths in `code` behind `crate::`, and behind `super::` where that is the crate's root.
fn named_modules<'a>(path: &str, code: &'a str) -> Vec<(usize, &'a str)> {
    let mut named = Vec::new();
    for offset in words(code, "crate::") {
        let rest = &code[offset + "crate::".len()..];
        let Some(list) = rest.strip_prefix('{') else {
            named.push((offset, path_at(rest)));
            continue;
        };
        let mut depth = 1;
        let mut at_start = true;
        for (index, letter) in list.char_indices() {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => at_start = true,
                _ if at_start && (letter.is_alphabetic() || letter == '_') => {
                    at_start = false;
                    named.push((offset + "crate::{".len() + index, path_at(&list[index..])));
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    let is_module_root = path.matches('/').count() == 1;
    let root_climbs = code.match_indices("\nuse super::").filter(|_| is_module_root);
    named.extend(root_climbs.map(|(offset, text)| (offset + 1, path_at(&code[offset + text.len()..]))));
    named
}

fn check_purity(source: &Source, findings: &mut Vec<String>) {
    let Some(module) = source.module().filter(|module| PURE.contains(module)) else { return };
    let is_stub = source.code.trim().is_empty();
    if source.path == format!("src/{module}.rs") && !is_stub && !source.code.contains("#![forbid(unsafe_code)]") {
        findings.push(format!("{}:1: a pure module begins with #![forbid(unsafe_code)]", source.path));
    }
    for part in IMPURE_STD {
        for offset in words(&source.code, &format!("std::{part}")) {
            findings.push(source.finding(offset, &format!("`{module}` is pure: std::{part} belongs to the edge")));
        }
    }
    let is_impure = |name: &str| IMPURE_MODULES.contains(&identifier(name)) && name != PURE_ANYWAY;
    let named = named_modules(&source.path, &source.code).into_iter();
    for (offset, name) in named.filter(|(_, name)| is_impure(name)) {
        findings.push(source.finding(offset, &format!("`{module}` is pure: take a value in place of `{name}`")));
    }
}

fn check_unsafe(source: &Source, findings: &mut Vec<String>) {
    if source.module().is_some_and(|module| UNSAFE_HOMES.contains(&module)) || UNSAFE_FILES.contains(&&*source.path) {
        return;
    }
    for offset in words(&source.code, "unsafe") {
        findings.push(source.finding(offset, &format!("`unsafe` lives in {} only", UNSAFE_HOMES.join(", "))));
    }
}

fn check_calls(source: &Source, findings: &mut Vec<String>) {
    let concurrency = CONCURRENCY.iter().map(|text| (text, &BELOW_SYNC, &"import from sync::primitive"));
    for (text, homes, remedy) in BANNED.iter().map(|(text, homes, remedy)| (text, homes, remedy)).chain(concurrency) {
        if homes.iter().any(|home| source.path.starts_with(home)) {
            continue;
        }
        for offset in words(&source.code, text) {
            findings.push(source.finding(offset, &format!("`{}` is banned here: {remedy}", text.trim())));
        }
    }
    for (text, remedy) in EXPLAINED {
        for offset in words(&source.code, text).filter(|offset| !is_import(&source.code, *offset)) {
            let line = line_of(&source.code, offset);
            let near = &source.raw[line.saturating_sub(EXPLAINED_WITHIN_LINES)..line];
            if !near.iter().any(|line| line.contains("//")) {
                findings.push(source.finding(offset, &format!("`{}` without a comment: {remedy}", text.trim())));
            }
        }
    }
    for unit in ["Duration::from_secs(", "Duration::from_millis("] {
        for (offset, _) in source.code.match_indices(unit) {
            let statement = source.code[..offset].rsplit([';', '}']).next().unwrap_or_default();
            // A constant names it, and so does the field of a struct.
            let is_named = ["const ", "static "].iter().any(|word| statement.contains(word))
                || statement.trim_end().ends_with(':') && !statement.trim_end().ends_with("::");
            if source.code[offset + unit.len()..].starts_with(|c: char| ('1'..='9').contains(&c)) && !is_named {
                findings.push(source.finding(offset, "a bare duration: name it, and say where it came from"));
            }
        }
    }
}

fn check_sizes(source: &Source, findings: &mut Vec<String>) {
    let lines = source.raw.len() - source.test_lines;
    if lines > FILE_LINES {
        findings.push(format!("{}:1: {lines} lines, the limit is {FILE_LINES}; split by concept", source.path));
    }
    for offset in words(&source.code, "fn ") {
        let Some(end) = item_end(&source.code, offset) else { continue };
        let lines = source.code[offset..end].matches('\n').count() + 1;
        if lines > FUNCTION_LINES {
            let name = identifier(&source.code[offset + "fn ".len()..]);
            let message = format!("function `{name}` has {lines} lines, the limit is {FUNCTION_LINES}");
            findings.push(source.finding(offset, &message));
        }
    }
}

fn check_width(source: &Source, findings: &mut Vec<String>) {
    if WIDE.contains(&source.path.as_str()) {
        return;
    }
    for (line, columns) in wide_lines(source) {
        findings.push(format!("{}:{line}: {columns} columns, the limit is {LINE_COLUMNS}", source.path));
    }
}

/// The lines that are too wide: number and columns.
fn wide_lines(source: &Source) -> impl Iterator<Item = (usize, usize)> {
    source.raw.iter().enumerate().filter_map(|(index, line)| {
        let columns = line.chars().count();
        // A row of a table in a document cannot be wrapped.
        let is_row = line.trim_start().starts_with("/// |") || line.trim_start().starts_with("//! |");
        (columns > LINE_COLUMNS && !is_row).then_some((index + 1, columns))
    })
}

/// No two types of the library that are visible outside their file have one name, except those in [`HOMONYMS`].
fn check_type_names(sources: &[Source], findings: &mut Vec<String>) {
    let homes = homes_of_types(sources);
    for (name, homes) in homes.iter().filter(|(name, homes)| homes.len() > 1 && !is_homonym(name)) {
        findings.push(format!("{}: the type `{name}` also exists in {}: rename one", homes[0], homes[1..].join(", ")));
    }
}

/// Each visible type's name, and where types of this name are declared.
fn homes_of_types(sources: &[Source]) -> BTreeMap<&str, Vec<String>> {
    let mut homes: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.module().is_some()) {
        for (offset, name) in visible_types(&source.code) {
            homes.entry(name).or_default().push(format!("{}:{}", source.path, line_of(&source.code, offset)));
        }
    }
    homes
}

fn is_homonym(name: &str) -> bool {
    HOMONYMS.iter().any(|(known, _)| *known == name)
}

/// The types that `code` declares with some `pub`, with their positions.
fn visible_types(code: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for kind in ["struct ", "enum ", "union ", "trait ", "type "] {
        for offset in words(code, kind) {
            let before = &code[code[..offset].rfind('\n').map_or(0, |end| end + 1)..offset];
            let before = before.trim().trim_end_matches("unsafe").trim_end();
            let name = identifier(&code[offset + kind.len()..]);
            // A macro's `$name` is empty here; the types that it makes are not seen.
            if !name.is_empty() && (before == "pub" || before.starts_with("pub(") && before.ends_with(')')) {
                found.push((offset, name));
            }
        }
    }
    found
}

fn check_texts(root: &Path, findings: &mut Vec<String>) {
    for path in walk(root) {
        let name = path.strip_prefix(root).expect("walk stays below the root").to_string_lossy().into_owned();
        let ending = name.rsplit(['.', '/']).next().unwrap_or_default();
        if !TEXT_ENDINGS.contains(&ending) {
            continue;
        }
        let Ok(text) = fs::read_to_string(&path) else { continue };
        if let Some(finding) = length_of_test(&name, &text) {
            findings.push(finding);
        }
        for (index, line) in text.lines().enumerate() {
            if let Some(found) = MACHINE_PATHS.iter().find(|path| begins_in(line, path)) {
                findings.push(format!("{name}:{}: `{found}` is a path of one machine", index + 1));
            }
            if ending == "md" {
                check_links(root, &name, (index + 1, line), findings);
            }
        }
    }
}

/// What is wrong with the length of a file of tests, or of the virtual machine. Those of `src` count without their tests.
fn length_of_test(name: &str, text: &str) -> Option<String> {
    let is_there = ["tests/", "vcuda/"].iter().any(|folder| name.starts_with(folder)) || name.contains("/tests/");
    let is_test = name.ends_with(".rs") && is_there;
    let lines = text.lines().count();
    (is_test && lines > FILE_LINES)
        .then(|| format!("{name}:1: {lines} lines, the limit is {FILE_LINES}; split by concept"))
}

/// Whether the absolute `path` stands in `line`, and not as the end of a longer one such as the root link of a process
/// under proc.
fn begins_in(line: &str, path: &str) -> bool {
    line.match_indices(path).any(|(offset, _)| !line[..offset].ends_with(|c: char| c.is_alphanumeric() || c == '}'))
}

/// A relative link in a document must lead to a file.
fn check_links(root: &Path, name: &str, (number, line): (usize, &str), findings: &mut Vec<String>) {
    let folder = root.join(name).parent().map(Path::to_path_buf).unwrap_or_default();
    for (offset, _) in line.match_indices("](") {
        let target = line[offset + 2..].split([')', '#']).next().unwrap_or_default();
        if !target.is_empty() && !target.contains("://") && !folder.join(target).exists() {
            findings.push(format!("{name}:{number}: the link to `{target}` leads nowhere"));
        }
    }
}

/// Documents keep within their length, and ARCHITECTURE.md names nothing in code marks that the sources do not have.
fn check_documents(root: &Path, sources: &[Source], findings: &mut Vec<String>) {
    for (name, limit) in DOCUMENT_LINES {
        let lines = fs::read_to_string(root.join(name)).unwrap_or_default().lines().count();
        if !(1..=*limit).contains(&lines) {
            findings.push(format!("{name}:1: {lines} lines, 1 to {limit} are wanted"));
        }
    }
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap_or_default();
    let known: BTreeSet<&str> = sources.iter().flat_map(|source| names(&source.code)).collect();
    for (index, line) in text.lines().enumerate() {
        for quoted in line.split('`').skip(1).step_by(2) {
            let is_path = quoted.chars().all(|c| c.is_alphanumeric() || "_:()".contains(c));
            for name in names(quoted).filter(|name| is_path && !name.starts_with("NCCL_") && !known.contains(name)) {
                findings.push(format!("ARCHITECTURE.md:{}: no source has a `{name}`", index + 1));
            }
        }
    }
}

fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|name| !name.is_empty())
}

/// README.md carries the front page of `lib.rs` between two marks, word for word.
fn check_front_page(root: &Path, findings: &mut Vec<String>) {
    const BEGIN: &str = "<!-- front page of src/lib.rs begins -->";
    const END: &str = "<!-- front page of src/lib.rs ends -->";
    let readme = fs::read_to_string(root.join("README.md")).unwrap_or_default();
    let library = fs::read_to_string(root.join("src/lib.rs")).unwrap_or_default();
    let docs = library.lines().filter_map(|line| line.strip_prefix("//!"));
    let front: Vec<&str> = docs.map(|line| line.strip_prefix(' ').unwrap_or(line)).collect();
    let Some((before, rest)) = readme.split_once(BEGIN) else {
        findings.push(format!("README.md:1: the mark `{BEGIN}` is missing"));
        return;
    };
    let region: Vec<&str> = rest.split(END).next().unwrap_or_default().trim_matches('\n').lines().collect();
    if region != front {
        let same = region.iter().zip(&front).take_while(|(left, right)| left == right).count();
        let line = before.lines().count() + 2 + same;
        findings.push(format!("README.md:{line}: differs from src/lib.rs:{}: one front page, word for word", same + 1));
    }
}

fn load_sources(root: &Path) -> Vec<Source> {
    let mut sources = Vec::new();
    let mut test_files = Vec::new();
    for path in walk(&root.join("src")) {
        if path.extension().is_none_or(|ending| ending != "rs") {
            continue;
        }
        let name = path.strip_prefix(root).expect("walk stays below the root").to_string_lossy().replace('\\', "/");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        test_files.extend(test_modules(&name, &blank_comments_and_literals(&text)));
        sources.push(Source::new(&name, &text));
    }
    sources.retain(|source| !test_files.iter().any(|test| is_file_of(&source.path, test)));
    sources
}

/// Whether `path` is the file of the module at `module` (no ending) or of one below it.
fn is_file_of(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Files below `folder` that belong to the tree: nothing built, nothing hidden but `.ci`.
fn walk(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|error| panic!("{}: {error}", next.display())) {
            let path = entry.expect("the folder was opened").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.starts_with("target") || name == "local" || (name.starts_with('.') && name != ".ci") {
                continue;
            }
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found.sort();
    found
}

#[test]
fn every_rule_fires() {
    let facade = Facade(BTreeMap::from([("Error".to_owned(), "error".to_owned())]));
    let long = format!("fn long() {{\n{}}}\n", "    step();\n".repeat(FUNCTION_LINES));
    let wide = format!("// {}", "é".repeat(LINE_COLUMNS - 2));
    let cases: &[(&str, &str, &str)] = &[
        ("src/plan/ring.rs", "use crate::transport::Slot;", "imports go down"),
        ("src/transport/arena.rs", "use crate::plan::FLAGS;", "imports go down"),
        ("src/device/host.rs", "use crate::{error::Error, topo::{Link, Node}};", "imports go down"),
        ("src/wire.rs", "use super::sys;\n", "imports go down"),
        ("src/bootstrap/net.rs", "let x = crate::nowhere::y();", "on no floor"),
        ("src/newcomer.rs", "", "has no floor"),
        ("src/plan.rs", "mod ring;", "begins with"),
        ("src/tune/cost.rs", "use std::time::Instant;", "is pure"),
        ("src/topo/xml.rs", "use crate::sys::host;", "is pure"),
        ("src/comm/init.rs", "unsafe { go() }", "lives in"),
        ("src/exec/drive.rs", "let n = std::env::var_os(\"N\");", "only reader"),
        ("src/transport/shm.rs", "let n = libc::getpid();", "safe function"),
        ("src/sync/park.rs", "flag.store(1, Ordering::SeqCst);", "partner"),
        ("src/comm/init.rs", "let _ = close();", "dropped"),
        ("src/comm/init.rs", "wait(Duration::from_secs(5));", "bare duration"),
        ("src/comm/init.rs", "use std::thread;\n fn f() { thread::spawn(run); }", "in full"),
        ("src/comm/init.rs", "let t = std::thread::spawn(run);", "sys::thread"),
        ("src/exec/drive.rs", "use std::sync::Mutex;", "sync::primitive"),
        ("src/comm/init.rs", &long, "the limit is 70"),
        ("src/comm/utils.rs", "", "named for what it holds"),
        ("src/config/launch.rs", &wide, "121 columns"),
        ("src/types/plain.rs", "#[cfg(test)]\nmod tests { fn t() { crate::comm::run() } }", "Miri cannot run"),
    ];
    for (path, text, expected) in cases {
        let mut findings = Vec::new();
        check_source(&Source::new(path, &format!("\n{text}")), &facade, &mut findings);
        assert_eq!(findings.len(), 1, "{path} {text}: {findings:?}");
        assert!(findings[0].contains(expected), "{path} {text}: {findings:?}");
    }
}

#[test]
fn a_long_test_is_found() {
    let lines = |count| "// a line\n".repeat(count);
    assert!(length_of_test("tests/plans.rs", &lines(FILE_LINES + 1)).is_some());
    assert!(length_of_test("tests/plans.rs", &lines(FILE_LINES)).is_none());
    assert!(length_of_test("bench/topo.rs", &lines(FILE_LINES + 1)).is_none());
}

#[test]
fn two_types_of_one_name_are_found() {
    let check = |first: &str, second: &str| {
        let sources = [Source::new("src/wire.rs", first), Source::new("src/comm/init.rs", second)];
        let mut findings = Vec::new();
        check_type_names(&sources, &mut findings);
        findings
    };
    let findings = check("pub struct Twice;", "\npub(super) enum Twice { A }");
    assert_eq!(findings, ["src/wire.rs:1: the type `Twice` also exists in src/comm/init.rs:2: rename one"]);
    assert!(check("pub struct Twice;", "struct Twice;").is_empty(), "one of them is private to its file");
    assert!(check("pub struct Twice;", "#[cfg(test)]\nmod tests { pub struct Twice; }").is_empty(), "a test's");
    assert!(check("pub struct Twice;", "pub trait Other { type Twice; }").is_empty(), "an associated type");
    assert_eq!(check("pub trait Kind {}", "pub enum Kind {}").is_empty(), is_homonym("Kind"));
}

#[test]
fn what_only_looks_like_a_breach_passes() {
    let text = r##"
        // unsafe, crate::comm
        use crate::{Error, types::Rank};
        const PAUSE: Duration = Duration::from_millis(5);
        fn f<'a>(_: &'a str) -> char { let _quote = '"'; let _ = r#"" unsafe "#; 'x' } // nothing to lose
        #[cfg(test)]
        mod tests { use crate::comm::Communicator; fn g() { unsafe { std::env::var("A") } } }
    "##;
    let facade = Facade(BTreeMap::from([("Error".to_owned(), "error".to_owned())]));
    let mut findings = Vec::new();
    check_source(&Source::new("src/bootstrap/root.rs", text), &facade, &mut findings);
    assert!(findings.is_empty(), "{findings:?}");
    let declared = test_modules("src/comm.rs", "#[cfg(test)]\nmod tests;\nmod group;");
    assert_eq!(declared, ["src/comm/tests"]);
    assert!(
        is_file_of("src/comm/tests/faults.rs", "src/comm/tests") && !is_file_of("src/comm/tests2.rs", "src/comm/tests")
    );
}
