//! What the documents below tell the reader between backticks to run or to look at is there: the programs, features,
//! packages and modules that a command of cargo names, and the files of the tree. Blocks of code are not read. So a recipe that is out of date is found before its reader does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::{Source, names};

/// Those with commands or with paths from the root.
const DOCUMENTS: &[&str] = &[
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "README.md",
    "bench/README.md",
    "mpi-examples/README.md",
    "tests/README.md",
];
const MANIFESTS: &[&str] = &[
    "Cargo.toml",
    "examples/Cargo.toml",
    "tests/Cargo.toml",
    "tests/kernels/Cargo.toml",
    "vcuda/Cargo.toml",
    "vcuda/libcuda/Cargo.toml",
    "vcuda/libnvidia-ml/Cargo.toml",
];

pub(crate) fn check(root: &Path, sources: &[Source], findings: &mut Vec<String>) {
    let read = |name: &&str| fs::read_to_string(root.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let known = Known::read(&MANIFESTS.iter().map(read).collect::<Vec<_>>(), sources);
    let mut commands = 0;
    for document in DOCUMENTS {
        for (number, line) in (1..).zip(read(document).lines()) {
            for quoted in line.split('`').skip(1).step_by(2) {
                commands += usize::from(quoted.contains("cargo "));
                let wrong = known.wrong(quoted).or_else(|| absent(root, document, quoted));
                findings.extend(wrong.map(|why| format!("{document}:{number}: {why}, in `{quoted}`")));
            }
        }
    }
    assert!(commands > 10, "only {commands} commands were seen in {DOCUMENTS:?}");
}

/// What commands may name.
struct Known {
    /// Programs, packages and features.
    names: BTreeSet<String>,
    modules: BTreeSet<String>,
}

impl Known {
    fn read(manifests: &[String], sources: &[Source]) -> Known {
        let named = manifests.iter().flat_map(|text| text.lines()).filter_map(|line| {
            let (key, value) = line.split_once(" = ")?;
            match value.strip_prefix('"') {
                Some(value) if key == "name" => value.strip_suffix('"'),
                // A feature.
                None if value.starts_with('[') => Some(key),
                _ => None,
            }
        });
        let modules = sources.iter().flat_map(|source| names(&source.with_tests));
        Known { names: named.map(str::to_owned).collect(), modules: modules.map(str::to_owned).collect() }
    }

    /// What a command of cargo names that is not there. A name in capitals stands for any.
    fn wrong(&self, quoted: &str) -> Option<String> {
        let words: Vec<&str> =
            quoted.split(' ').skip_while(|word| *word != "cargo").take_while(|word| *word != "--").collect();
        words.windows(2).find_map(|pair| {
            let (option, value) = (pair[0], pair[1]);
            let absent = match option {
                "--test" | "--bench" | "--example" | "--bin" | "-p" => (!self.names.contains(value)).then_some(value),
                "--features" => value.split(',').find(|feature| !self.names.contains(*feature)),
                "--lib" => value.split("::").find(|part| !part.is_empty() && !self.modules.contains(*part)),
                _ => None,
            };
            let absent = absent.filter(|name| name.contains(|c: char| c.is_lowercase()))?;
            (!absent.starts_with('-')).then(|| format!("{option} names {absent}, which is not there"))
        })
    }
}

/// What is wrong if `quoted` begins with the path of a file of the tree that is not there.
fn absent(root: &Path, document: &str, quoted: &str) -> Option<String> {
    let path =
        quoted.split(' ').next().filter(|word| word.chars().all(|c| c.is_alphanumeric() || "_-./".contains(c)))?;
    let (top, _) = path.split_once('/')?;
    // What cargo has built is not of the tree.
    if !root.join(top).is_dir() || top.starts_with('.') || top == "target" {
        return None;
    }
    let beside = root.join(document).parent().map(|folder| folder.join(path));
    let is_there = root.join(path).exists() || beside.is_some_and(|path| path.exists());
    (!is_there).then(|| format!("there is no {path}"))
}

#[test]
fn a_recipe_that_is_out_of_date_is_found() {
    let manifest = "[features]\ncli = [\"dep:clap\"]\n[[test]]\nname = \"tidy\"\n".to_owned();
    let known = Known::read(&[manifest], &[Source::new("src/plan.rs", "#[cfg(test)]\nmod tests {}")]);
    for (command, wrong) in [
        ("A=1 cargo test --test tidy", None),
        ("cargo test --test NAME", None),
        ("cargo test --features cli --lib tests::", None),
        ("cargo test --lib -- plans::", None),
        ("no cargo --test old", Some("old")),
        ("cargo test --features cli,gpu", Some("gpu")),
        ("cargo test --lib tests::gone::", Some("gone")),
        ("cargo build -p elsewhere", Some("elsewhere")),
        ("valgrind --test old", None),
    ] {
        let said = known.wrong(command);
        assert_eq!(said.is_some(), wrong.is_some(), "{command}: {said:?}");
        assert!(wrong.is_none_or(|name| said.is_some_and(|said| said.contains(name))), "{command}");
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests are a folder of the tree");
    let absent = |quoted| absent(root, "tests/README.md", quoted);
    for quoted in ["tests/tidy.rs", "src/comm", "labs/jobs.sh CASE", "target/debug/x", "P2P/read", "tests/<topic>.rs"] {
        assert_eq!(absent(quoted), None);
    }
    assert_eq!(absent("tests/gone.rs --all").as_deref(), Some("there is no tests/gone.rs"));
}
