//! Every pair of launchers, one inside the other, as recorded with the real tools: `tests/data/launchers`. The test
//! also holds `docs/launchers.md` to what it finds.

use std::collections::BTreeMap;
use std::path::Path;

use super::verdict::weigh;
use crate::config::Environment;
use crate::config::ancestors::Ancestor;

/// One recording.
struct Recording {
    real: String,
    environment: Vec<(String, String)>,
    ancestors: Vec<Ancestor>,
    /// The inner launcher's truth: "SOURCE RANK SIZE", or "none".
    expected: String,
}

fn read(path: &Path) -> Recording {
    let text = std::fs::read_to_string(path).unwrap();
    let mut recording =
        Recording { real: String::new(), environment: Vec::new(), ancestors: Vec::new(), expected: String::new() };
    for line in text.lines() {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let pair = || rest.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned())).unwrap();
        match word {
            "#" if recording.real.is_empty() => recording.real = rest.trim_start_matches("real: ").to_owned(),
            "#" | "" => {}
            "env" => recording.environment.push(pair()),
            "ancestor" => {
                let (name, access) = rest.rsplit_once(' ').unwrap();
                let variables = (access == "readable").then(BTreeMap::new);
                let process = 100 - u32::try_from(recording.ancestors.len()).unwrap();
                recording.ancestors.push(Ancestor { process, started: 1, name: name.to_owned(), variables });
            }
            "has" => {
                let (name, value) = pair();
                let last = recording.ancestors.last_mut().and_then(|last| last.variables.as_mut()).unwrap();
                last.insert(name, value);
            }
            "expect" => recording.expected = rest.to_owned(),
            other => panic!("{}: a line that begins with {other}", path.display()),
        }
    }
    assert!(!recording.expected.is_empty(), "{}", path.display());
    recording
}

/// What is decided: "SOURCE RANK SIZE", "none" or "refused".
fn decided(recording: &Recording) -> String {
    let environment = Environment::of(recording.environment.iter().map(|(name, value)| (name, value)));
    match weigh(&environment, &recording.ancestors) {
        Ok(Some(verdict)) => {
            let chosen = verdict.chosen;
            // What a script sets is row 2.
            let by_hand = chosen.row.source == "torchrun" && verdict.job_of.is_none();
            let source = if by_hand { "by hand" } else { chosen.row.source };
            format!("{source} {} {}", chosen.rank.1, chosen.size.1)
        }
        Ok(None) => "none".to_owned(),
        Err(_) => "refused".to_owned(),
    }
}

/// The same rank and world: where a script copies a launcher's numbers, the launcher counts.
fn same_numbers(one: &str, other: &str) -> bool {
    let numbers = |text: &str| text.rsplitn(3, ' ').take(2).map(str::to_owned).collect::<Vec<_>>();
    one.contains(' ') && other.contains(' ') && numbers(one) == numbers(other)
}

#[test]
fn every_pair_of_real_launchers_is_judged_as_the_inner_one_says() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/launchers");
    let mut paths: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() > 190, "{} recordings", paths.len());
    let (mut wrong, mut refused) = (Vec::new(), Vec::new());
    for path in &paths {
        let recording = read(path);
        let (name, decided) = (path.file_stem().unwrap().to_string_lossy().into_owned(), decided(&recording));
        if decided == "refused" {
            refused.push(name);
        } else if decided != recording.expected && !same_numbers(&decided, &recording.expected) {
            wrong.push(format!("{name}: {decided}, not {} ({})", recording.expected, recording.real));
        }
    }
    assert!(wrong.is_empty(), "{} of {} are wrong:\n{}", wrong.len(), paths.len(), wrong.join("\n"));
    assert_eq!(refused, REFUSED, "only these cannot be decided");
}

/// Numbers that were exported around `srun` look like those that a wrapper below it has set by `exec`.
const REFUSED: &[&str] =
    &["hand__srun-none-as-root", "hand__srun-none", "hand__srun-pmi2-as-root", "hand__srun-pmi2", "hand__srun-pmix"];

/// The launchers of the table, with their names in it.
const LAUNCHERS: [(&str, &str); 13] = [
    ("rsccl", "rsccl run"),
    ("torchrun", "torchrun"),
    ("openmpi4", "Open MPI 4"),
    ("openmpi5", "Open MPI 5"),
    ("mpich4", "MPICH 4"),
    ("mpich5", "MPICH 5"),
    ("impi", "Intel MPI"),
    ("srun-none", "srun"),
    ("srun-pmi2", "srun pmi2"),
    ("srun-pmix", "srun pmix"),
    ("sbatch", "sbatch"),
    ("salloc", "salloc"),
    ("hand", "by hand"),
];

/// Outer launchers as rows, inner ones as columns.
fn table(folder: &Path) -> String {
    let inner = &LAUNCHERS.map(|(_, name)| name).join(" | ");
    let mut text = format!("| outer \\ inner | {inner} |\n|---|{}\n", "---|".repeat(LAUNCHERS.len()));
    for (outer, outer_name) in LAUNCHERS {
        let cell = |(inner, _): (&str, &str)| {
            let path = folder.join(format!("{outer}__{inner}.txt"));
            if !path.exists() {
                return "not seen".to_owned();
            }
            match decided(&read(&path)) {
                // The name of the row in the table of variables.
                verdict if verdict.contains(' ') => verdict.rsplitn(3, ' ').last().unwrap_or_default().to_owned(),
                verdict if verdict == "none" => "no rank".to_owned(),
                verdict => verdict,
            }
        };
        text += &format!("| **{outer_name}** | {} |\n", LAUNCHERS.map(cell).join(" | "));
    }
    text
}

#[test]
fn the_documented_table_is_what_is_decided() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let expected = table(&root.join("tests/data/launchers"));
    let page = std::fs::read_to_string(root.join("docs/launchers.md")).unwrap();
    assert!(page.contains(&expected), "docs/launchers.md lacks this table:\n{expected}");
}
