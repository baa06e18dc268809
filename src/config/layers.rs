//! The sources of values: environment, the user's file, the machine's file. Each one overrides those after it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result, shown};

use super::environment::Environment;
use super::file::{ConfFile, Opened};
use super::launch;
use super::nearest::{nearest, one_edit};
use super::registry::{CONF_FILE, NCCL_PREFIX, OWN_PREFIX, Prefixes, VARIABLES, Variable};

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// The environment.
    Environment,
    /// A line of a configuration file.
    File {
        /// The file.
        path: Arc<Path>,
        /// The line, counted from 1.
        line: usize,
    },
    /// The program set the field.
    Code,
    /// The field has its default.
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Environment => f.write_str("environment"),
            Source::File { path, line } => write!(f, "{}:{line}", path.display()),
            Source::Code => f.write_str("program"),
            Source::Default => f.write_str("default"),
        }
    }
}

/// A remark about the configuration that is not an error. The log prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Note {
    /// A mistake of whoever runs the program: standard error tells it, whatever `NCCL_DEBUG` asks for.
    Mistake(String),
    /// Probably a mistake.
    Warning(String),
    /// For information.
    Information(String),
}

/// The text found for a variable.
#[derive(Debug)]
pub(super) struct Found<'a> {
    pub(super) name: String,
    pub(super) text: &'a str,
    pub(super) source: Source,
}

/// The sources that override the program's settings.
#[derive(Debug)]
pub(super) struct Layers<'a> {
    environment: &'a Environment,
    /// Strongest first.
    files: Vec<ConfFile>,
    notes: Vec<Note>,
    /// Names that only this library reads, and does not know.
    mistyped: Vec<String>,
}

impl<'a> Layers<'a> {
    /// The environment alone, without files.
    #[cfg(any(feature = "mpi", feature = "cpp"))]
    pub(super) fn without_files(environment: &'a Environment) -> Layers<'a> {
        Layers { environment, files: Vec::new(), notes: Vec::new(), mistyped: Vec::new() }
    }

    /// Reads the files that `environment` names. A file that nobody has named, but the library looks for, ends no
    /// program: remarks say what is wrong with it.
    ///
    /// # Errors
    /// Those of [`ConfFile::open`], for the file that a variable names; also if that file cannot be read.
    pub(super) fn read(environment: &'a Environment) -> Result<Layers<'a>> {
        let mut layers = Layers { environment, files: Vec::new(), notes: Vec::new(), mistyped: Vec::new() };
        match named_file(environment)? {
            Some((name, path)) => match ConfFile::open(&path)? {
                Opened::Read(file) => layers.add(file),
                Opened::Missing => return Err(unusable(&name, &path, "there is no such file")),
                Opened::Forbidden => return Err(unusable(&name, &path, "this user may not read it")),
            },
            None => layers.open_if_there(environment.home().map(|home| home.join(USER_FILE))),
        }
        layers.open_if_there(environment.system_file().map(Path::to_owned));
        layers.note_unknown();
        Ok(layers)
    }

    fn open_if_there(&mut self, path: Option<PathBuf>) {
        let Some(path) = path else { return };
        let why = match ConfFile::open(&path) {
            Ok(Opened::Read(file)) => return self.add(file),
            Ok(Opened::Missing) => return,
            Ok(Opened::Forbidden) => {
                format!("the configuration file {} may not be read by this user", path.display())
            }
            Err(error) => error.to_string(),
        };
        self.notes.push(Note::Warning(format!("{why}: ignored")));
    }

    fn add(&mut self, file: ConfFile) {
        self.notes.extend(file.remark().map(Note::Warning));
        self.files.push(file);
    }

    /// The text of the strongest source for `variable`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if a value in the environment is not UTF-8.
    pub(super) fn find(&self, variable: &Variable) -> Result<Option<Found<'_>>> {
        let counts = |text: &str| !text.is_empty() || variable.kind.takes_empty();
        for name in variable.names() {
            if let Some(text) = self.environment.text(&name)?.filter(|text| counts(text)) {
                return Ok(Some(Found { name, text, source: Source::Environment }));
            }
        }
        for file in &self.files {
            for name in variable.names() {
                if let Some(found) = file.find(&name).filter(|found| counts(&found.value)) {
                    let source = Source::File { path: file.path.clone(), line: found.line };
                    return Ok(Some(Found { name, text: &found.value, source }));
                }
            }
        }
        Ok(None)
    }

    /// The remarks about names and files.
    pub(super) fn into_notes(self) -> Vec<Note> {
        self.notes
    }

    /// A remark on a mistake in what `source` has.
    pub(super) fn mistake(&self, source: &Source, text: String) -> Note {
        mistake_of(source, self.environment.system_file(), text)
    }

    /// The names that only this library reads, and does not know: each as a sentence.
    pub(super) fn mistyped(&self) -> &[String] {
        &self.mistyped
    }

    /// Adds a remark for each unknown name with our prefix, and one for the names of NCCL's that have no effect here.
    fn note_unknown(&mut self) {
        let (mut idle, mut notes, mut mistyped) = (Vec::new(), Vec::new(), Vec::new());
        let of_machine = self.environment.system_file();
        let mut judge = |whole: &str, source: Source| {
            let name = shown(whole);
            match Judgement::of(whole) {
                Judgement::Known => {}
                Judgement::OfNccl => idle.push(name.into_owned()),
                Judgement::Elsewhere => notes.push(Note::Information(format!("{name} ({source}) is no setting"))),
                Judgement::Misspelt(meant) => {
                    let mistake = format!("{name} ({source}) is not a variable of NCCL; did you mean {meant}?");
                    notes.push(mistake_of(&source, of_machine, mistake));
                }
                Judgement::Unread => notes.push(Note::Warning(format!(
                    "{name} ({source}) has no effect: only names with NCCL_ or RSCCL_ are read here"
                ))),
                Judgement::Mistyped(meant) => {
                    let mistake = format!("{name} ({source}) is unknown; did you mean {meant}?");
                    match mistake_of(&source, of_machine, mistake) {
                        Note::Mistake(mistake) => mistyped.push(mistake),
                        note => notes.push(note),
                    }
                }
                Judgement::Unknown => {
                    let unknown = format!("{name} ({source}) is unknown; `rsccl env` lists what is known");
                    notes.push(mistake_of(&source, of_machine, unknown));
                }
            }
        };
        for prefix in [OWN_PREFIX, NCCL_PREFIX] {
            // An empty value counts as unset.
            let set = self.environment.names(prefix).filter(|name| self.environment.has(name));
            set.for_each(|name| judge(name, Source::Environment));
        }
        for file in &self.files {
            for line in &file.lines {
                judge(&line.name, Source::File { path: file.path.clone(), line: line.line });
            }
        }
        self.notes.extend(notes);
        self.mistyped = mistyped;
        if !idle.is_empty() {
            idle.sort();
            idle.dedup();
            self.notes
                .push(Note::Information(format!("variables of NCCL that have no effect here: {}", idle.join(", "))));
        }
    }
}

/// A mistake of whoever runs the program, unless it stands in the machine's file, which few users may edit: of that
/// the log alone tells.
pub(super) fn mistake_of(source: &Source, of_machine: Option<&Path>, text: String) -> Note {
    match source {
        Source::File { path, .. } if of_machine.is_some_and(|own| own == &**path) => Note::Warning(text),
        _ => Note::Mistake(text),
    }
}

/// What a name is, with its prefix.
enum Judgement {
    /// A part of the library reads it.
    Known,
    /// One of NCCL's that has no effect here.
    OfNccl,
    /// One that begins like NCCL's and is none; behind it the one that was probably meant.
    Misspelt(String),
    /// One that begins like this library's, and of which the user probably meant another.
    Mistyped(String),
    /// One that begins like this library's, and is like none of its names.
    Unknown,
    /// One that begins like this library's, but is for builds and tests.
    Elsewhere,
    /// One that a file alone can have.
    Unread,
}

impl Judgement {
    fn of(name: &str) -> Judgement {
        if is_known(name) {
            return Judgement::Known;
        }
        if let Some(stem) = name.strip_prefix(NCCL_PREFIX) {
            return misspelt(stem).map_or(Judgement::OfNccl, Judgement::Misspelt);
        }
        let Some(stem) = name.strip_prefix(OWN_PREFIX) else { return Judgement::Unread };
        if NO_SETTINGS.contains(&stem) || stem.starts_with(TESTS_PREFIX) {
            return Judgement::Elsewhere;
        }
        let launch = launch::OWN_NAMES.iter().filter_map(|known| known.strip_prefix(OWN_PREFIX));
        match nearest(stem, stems(|_| true).chain(launch).chain([CONF_FILE])) {
            Some(near) => Judgement::Mistyped(format!("{OWN_PREFIX}{near}")),
            None => Judgement::Unknown,
        }
    }
}

/// The file that the environment names, and the name of the variable.
fn named_file(environment: &Environment) -> Result<Option<(String, PathBuf)>> {
    for prefix in [OWN_PREFIX, NCCL_PREFIX] {
        let name = format!("{prefix}{CONF_FILE}");
        if let Some(path) = environment.get(&name)? {
            return Ok(Some((name, PathBuf::from(path))));
        }
    }
    Ok(None)
}

fn unusable(name: &str, path: &Path, why: &str) -> Error {
    Error::invalid_argument(format!(
        "{name}={:?} (environment): {why}; allowed: a readable file",
        path.display().to_string()
    ))
}

/// Whether a part of the library reads `name`, which includes its prefix.
fn is_known(name: &str) -> bool {
    let conf_file = name.strip_suffix(CONF_FILE).is_some_and(|prefix| prefix == OWN_PREFIX || prefix == NCCL_PREFIX);
    conf_file
        || launch::OWN_NAMES.contains(&name)
        || VARIABLES.iter().any(|known| known.names().any(|known| known == name))
}

/// The variable that a name with NCCL's prefix is one letter away from, or that is this library's own and has no such
/// prefix. Of the many names that NCCL has and this library does not know, none is so near to one that it knows.
fn misspelt(stem: &str) -> Option<String> {
    if stems(|prefixes| prefixes == Prefixes::Own).any(|own| own == stem) {
        return Some(format!("{OWN_PREFIX}{stem}"));
    }
    let near = one_edit(stem, stems(|prefixes| prefixes == Prefixes::Nccl).chain([CONF_FILE]));
    near.map(|near| format!("{NCCL_PREFIX}{near}"))
}

/// The names without prefix of the variables in these scopes, aliases too.
fn stems(wanted: impl Fn(Prefixes) -> bool) -> impl Iterator<Item = &'static str> {
    let known = VARIABLES.iter().filter(move |known| wanted(known.prefixes));
    known.flat_map(|known| std::iter::once(known.name).chain(known.alias))
}

/// The user's configuration file, in the home.
const USER_FILE: &str = ".nccl.conf";
/// What builds and modules call an installation, and tests what they are told (`tests/README.md`).
const NO_SETTINGS: [&str; 10] =
    ["ROOT", "DIR", "HOME", "PREFIX", "PATH", "VERSION", "COMMIT", "EXHAUSTIVE", "RANDOM_STEPS", "FUZZ_CASES"];
/// How the names begin by which the library's own tests are told something.
const TESTS_PREFIX: &str = "TEST_";
