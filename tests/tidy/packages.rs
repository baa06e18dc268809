//! Who includes whose files, and which package has which test: nothing of `src` lies elsewhere, what tests share is a
//! crate, and every test program has its entry in a manifest, since cargo looks for none by itself.

use std::fs;
use std::path::Path;

use crate::walk;

/// Lines `#[path = "../` of the whole tree, without those of `vcuda` and those that lead there: the check of results, which the command and `testing` have;
/// the classifier, which the example and its form for MPI have; what the programs for `mpirun` ask first.
const MOST_FOREIGN: usize = 3;

pub(crate) fn check(root: &Path, findings: &mut Vec<String>) {
    let mut foreign = Vec::new();
    for path in walk(root) {
        let name = path.strip_prefix(root).expect("walk stays below the root").to_string_lossy().replace('\\', "/");
        if !name.ends_with(".rs") || name.starts_with("vcuda/") {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (wrong, more) = inclusions(&name, &text);
        findings.extend(wrong);
        foreign.extend(more);
    }
    if foreign.len() > MOST_FOREIGN {
        findings
            .push(format!("{}: {MOST_FOREIGN} such lines may be: put what is shared into a crate", foreign.join(", ")));
    }
    let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let manifests = [("Cargo.toml", "tests/", read("Cargo.toml")), ("tests/Cargo.toml", "", read("tests/Cargo.toml"))];
    let entries = fs::read_dir(root.join("tests")).unwrap_or_else(|error| panic!("tests: {error}"));
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let names: Vec<String> = names.filter(|name| name.ends_with(".rs")).collect();
    let texts: Vec<String> = names.iter().map(|name| read(&format!("tests/{name}"))).collect();
    findings.extend(names.iter().filter_map(|name| entry(name, &manifests, &texts)));
}

/// What is wrong with the inclusions of a file, and the lines that include a module from above the file's folder.
fn inclusions(name: &str, text: &str) -> (Vec<String>, Vec<String>) {
    let (mut findings, mut foreign) = (Vec::new(), Vec::new());
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim_start();
        let included = [OF_MODULE, "include!(", "include_str!(", "include_bytes!("].iter().find_map(|by| {
            let rest = line.split_once(by).filter(|(before, _)| !before.contains(['"', '/']))?.1;
            Some((*by, rest.split('"').nth(1)?))
        });
        let Some((by, target)) = included else { continue };
        let place = resolved(name, target);
        if name.starts_with("src/") && by == OF_MODULE && !place.starts_with("src/") {
            findings.push(format!("{name}:{number}: the module lies at {place}, outside of src"));
        }
        if name.starts_with("src/") && place.starts_with("tests/") {
            findings.push(format!("{name}:{number}: {place} is a file of tests: read it when the test runs"));
        }
        if by == OF_MODULE && target.starts_with("../") && !place.starts_with("vcuda/") {
            foreign.push(format!("{name}:{number}"));
        }
    }
    (findings, foreign)
}

/// In two parts: else this line were one.
const OF_MODULE: &str = concat!("#[pa", "th = ");

/// `target` as a file with this name sees it, from the root of the tree.
fn resolved(name: &str, target: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." | "" => {}
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// What is wrong if the file `name` has not one place: an entry in one of the manifests, each with what stands before its
/// names, or a line in another file of tests, of which it is a module.
fn entry(name: &str, manifests: &[(&str, &str, String)], texts: &[String]) -> Option<String> {
    let lines = |text: &str, line: &str| text.lines().filter(|it| *it == line).count();
    let entries: usize =
        manifests.iter().map(|(_, before, text)| lines(text, &format!("path = \"{before}{name}\""))).sum();
    let module = format!("mod {};", name.trim_end_matches(".rs"));
    let modules: usize = texts.iter().map(|text| lines(text, &module)).sum();
    let places: Vec<&str> = manifests.iter().map(|(manifest, ..)| *manifest).collect();
    (entries + modules != 1).then(|| {
        let (places, count) = (places.join(" and "), entries + modules);
        format!("tests/{name}:1: {count} entries in {places} or lines `{module}` in tests, one is wanted")
    })
}

#[test]
fn files_of_others_are_found() {
    let check = |name: &str, text: &str| inclusions(name, &text.replace("#[PATH", "#[path"));
    let (findings, foreign) = check("src/device/tests.rs", "\n#[PATH = \"../../tests/far/mod.rs\"]");
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(findings[0].starts_with("src/device/tests.rs:2: the module lies at tests/far/mod.rs,"), "{findings:?}");
    assert_eq!(foreign, ["src/device/tests.rs:2"]);
    let (findings, _) = check("src/topo/hwloc.rs", "    const A: &str = include_str!(\"../../tests/data/a.xml\");");
    assert!(findings[0].starts_with("src/topo/hwloc.rs:1: tests/data/a.xml is a file of tests"), "{findings:?}");
    for (name, text) in [
        ("src/sys.rs", "#[PATH = \"sys/futex_model.rs\"]"),
        ("src/device/headers.rs", "include_str!(\"../../kernels/abi.h\"),"),
        (
            "src/device/cuda/launch/kernels.rs",
            "ptx: include_bytes!(concat!(\"../../../../kernels/compiled/\", $name, \".ptx.z\")),",
        ),
        ("src/device/cuda.rs", "#[PATH = \"cuda/tests/lines.rs\"]"),
        ("tests/fuzz_parsers/files.rs", "include_str!(\"../data/descriptions/hwloc.xml\"),"),
        ("tests/kernels/kernels.rs", "#[PATH = \"../../vcuda/tests/flat/mod.rs\"]"),
        ("src/sys.rs", "// #[PATH = \"../tests/a.rs\"]"),
    ] {
        let (findings, foreign) = check(name, text);
        assert!(findings.is_empty() && foreign.is_empty(), "{name}: {findings:?}, {foreign:?}");
    }
}

#[test]
fn a_test_program_without_an_entry_is_found() {
    let manifests =
        [("Cargo.toml", "tests/", "path = \"tests/cli.rs\"\n"), ("tests/Cargo.toml", "", "path = \"plans.rs\"\n")]
            .map(|(manifest, before, text)| (manifest, before, text.to_owned()));
    let texts = ["mod scans;\nmod cli;\n".to_owned()];
    let entry = |name| entry(name, &manifests, &texts);
    assert!(entry("plans.rs").is_none() && entry("scans.rs").is_none());
    let said = entry("new.rs").expect("it has none");
    assert!(
        said.starts_with("tests/new.rs:1: 0 entries in Cargo.toml and tests/Cargo.toml or lines `mod new;`"),
        "{said}"
    );
    assert!(entry("cli.rs").is_some_and(|said| said.starts_with("tests/cli.rs:1: 2 entries")), "it has two");
}
