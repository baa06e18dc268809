//! The sources of values: environment, the user's file, the machine's file. Each one overrides those after it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};

use super::environment::Environment;
use super::file::{ConfFile, Opened};
use super::launch;
use super::nearest::{nearest, one_edit};
use super::registry::{CONF_FILE, NCCL_PREFIX, OWN_PREFIX, Scope, VARIABLES, Variable};

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
    /// Probably a mistake of the user.
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
}

impl<'a> Layers<'a> {
    /// Reads the files that `environment` names.
    ///
    /// # Errors
    /// Those of [`ConfFile::open`]; also if a variable names a file that cannot be read.
    pub(super) fn read(environment: &'a Environment) -> Result<Layers<'a>> {
        let mut layers = Layers::without_files(environment);
        match named_file(environment)? {
            Some((name, path)) => match ConfFile::open(&path)? {
                Opened::Read(file) => layers.files.push(file),
                Opened::Missing => return Err(unusable(&name, &path, "there is no such file")),
                Opened::Forbidden => return Err(unusable(&name, &path, "this user may not read it")),
            },
            None => layers.open_if_there(environment.home().map(|home| home.join(USER_FILE)))?,
        }
        layers.open_if_there(environment.system_file().map(Path::to_owned))?;
        layers.note_unknown();
        Ok(layers)
    }

    /// The environment alone, without files.
    pub(super) fn without_files(environment: &'a Environment) -> Layers<'a> {
        Layers { environment, files: Vec::new(), notes: Vec::new() }
    }

    fn open_if_there(&mut self, path: Option<PathBuf>) -> Result<()> {
        let Some(path) = path else { return Ok(()) };
        match ConfFile::open(&path)? {
            Opened::Read(file) => self.files.push(file),
            Opened::Missing => {}
            Opened::Forbidden => {
                let message =
                    format!("the configuration file {} may not be read by this user: ignored", path.display());
                self.notes.push(Note::Warning(message));
            }
        }
        Ok(())
    }

    /// The text of the strongest source for `variable`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if a value in the environment is not UTF-8.
    pub(super) fn find(&self, variable: &Variable) -> Result<Option<Found<'_>>> {
        for name in variable.names() {
            if let Some(text) = self.environment.get(&name)? {
                return Ok(Some(Found { name, text, source: Source::Environment }));
            }
        }
        for file in &self.files {
            for name in variable.names() {
                if let Some(found) = file.find(&name).filter(|found| !found.value.is_empty()) {
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

    /// Adds a remark for each unknown name with our prefix, and one for the names of NCCL's that have no effect here.
    fn note_unknown(&mut self) {
        let mut idle = Vec::new();
        let mut notes = Vec::new();
        let mut judge = |name: &str, source: Source| match name.strip_prefix(NCCL_PREFIX) {
            Some(_) if is_known(name) => {}
            Some(stem) => match misspelt(stem) {
                Some(near) => notes.push(Note::Warning(format!(
                    "{name} ({source}) is not a variable of NCCL; did you mean {NCCL_PREFIX}{near}?"
                ))),
                None => idle.push(name.to_owned()),
            },
            None if is_known(name) => {}
            None => notes.push(unknown(name, &source)),
        };
        for prefix in [OWN_PREFIX, NCCL_PREFIX] {
            self.environment.names(prefix).for_each(|name| judge(name, Source::Environment));
        }
        for file in &self.files {
            for line in &file.lines {
                judge(&line.name, Source::File { path: file.path.clone(), line: line.line });
            }
        }
        self.notes.extend(notes);
        if !idle.is_empty() {
            idle.sort();
            idle.dedup();
            self.notes
                .push(Note::Information(format!("variables of NCCL that have no effect here: {}", idle.join(", "))));
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

/// The variable that a name of NCCL's is one letter away from. Of the many that NCCL has and this library does not
/// know, none is so near to one that it knows.
fn misspelt(stem: &str) -> Option<&'static str> {
    one_edit(stem, VARIABLES.iter().filter(|known| known.scope == Scope::Nccl).map(|known| known.name))
}

fn unknown(name: &str, source: &Source) -> Note {
    let Some(stem) = name.strip_prefix(OWN_PREFIX) else {
        return Note::Warning(format!(
            "{name} ({source}) has no effect: only names with NCCL_ or RSCCL_ are read here"
        ));
    };
    let stems = VARIABLES.iter().flat_map(|known| std::iter::once(known.name).chain(known.alias));
    let launch = launch::OWN_NAMES.iter().filter_map(|known| known.strip_prefix(OWN_PREFIX));
    match nearest(stem, stems.chain(launch).chain([CONF_FILE])) {
        Some(near) => Note::Warning(format!("{name} ({source}) is unknown; did you mean {OWN_PREFIX}{near}?")),
        None => Note::Warning(format!("{name} ({source}) is unknown; `rsccl env` lists what is known")),
    }
}

/// The user's configuration file, in the home.
const USER_FILE: &str = ".nccl.conf";
