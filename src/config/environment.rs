//! A snapshot of the environment, taken once and passed on as a value.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use super::ancestors::{self, Ancestor};
use crate::error::{Error, Result};

/// The right to read the variables of this process: one thread has it at a time. A library that may set some while it
/// starts is started with it in hand, so that nobody reads what is put back behind it.
#[derive(Debug)]
pub(crate) struct VariablesTurn {
    /// Whether it was free, and not taken after a long wait.
    is_own: bool,
}

/// A yield takes half a microsecond, and more on a busy machine; plug-ins start within a tenth of a second.
const MOST_YIELDS: u32 = 10_000_000;
/// The process whose thread has the turn; 0 for none.
static TAKEN_BY: AtomicU32 = AtomicU32::new(0);

impl VariablesTurn {
    /// Waits for the turn, for some seconds at most: a library that hangs while it starts holds up no other rank of the
    /// process for ever. A forked child takes it from a thread of its parent, which it does not have.
    pub(crate) fn take() -> VariablesTurn {
        let me = std::process::id();
        let mut seen = 0;
        for _ in 0..MOST_YIELDS {
            // Acquire: pairs with the release in `drop`.
            match TAKEN_BY.compare_exchange(seen, me, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return VariablesTurn { is_own: true },
                Err(now) => seen = if now == me { 0 } else { now },
            }
            std::thread::yield_now();
        }
        VariablesTurn { is_own: false }
    }

    /// All of them.
    pub(crate) fn variables(&self) -> BTreeMap<OsString, OsString> {
        std::env::vars_os().collect()
    }
}

impl Drop for VariablesTurn {
    fn drop(&mut self) {
        if self.is_own {
            TAKEN_BY.store(0, Ordering::Release);
        }
    }
}

/// The variables of a process, the places of its configuration files, and the processes above it.
///
/// [`Environment::capture`] reads the real ones; tests build theirs from a list and never read the real ones.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<OsString, OsString>,
    home: Option<PathBuf>,
    system_file: Option<PathBuf>,
    /// Whether these are the variables of this process, so that its ancestors tell more.
    is_of_this_process: bool,
}

impl Environment {
    /// The environment of this process, its user's home, and `/etc/nccl.conf`. No other function reads them.
    pub fn capture() -> Environment {
        Environment {
            variables: VariablesTurn::take().variables(),
            home: std::env::home_dir().filter(|home| !home.as_os_str().is_empty()),
            system_file: Some(PathBuf::from(SYSTEM_FILE)),
            is_of_this_process: true,
        }
    }

    /// An environment with these variables only: no home, no system file.
    pub fn of<N: AsRef<OsStr>, V: AsRef<OsStr>>(variables: impl IntoIterator<Item = (N, V)>) -> Environment {
        let owned = |(name, value): (N, V)| (name.as_ref().to_owned(), value.as_ref().to_owned());
        Environment { variables: variables.into_iter().map(owned).collect(), ..Environment::default() }
    }

    /// The same environment with `home` as the folder of `.nccl.conf`.
    #[must_use]
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Environment {
        self.home = Some(home.into());
        self
    }

    /// The same environment with `file` in place of `/etc/nccl.conf`.
    #[must_use]
    pub fn with_system_file(mut self, file: impl Into<PathBuf>) -> Environment {
        self.system_file = Some(file.into());
        self
    }

    /// The processes above the one whose environment this is, nearest first; none if it was made from a list.
    pub(crate) fn ancestors(&self) -> Vec<Ancestor> {
        if self.is_of_this_process { ancestors::of_this_process() } else { Vec::new() }
    }

    /// This process, if these are its variables and the system shows it.
    pub(crate) fn this_process(&self) -> Option<Ancestor> {
        if self.is_of_this_process { ancestors::this_process() } else { None }
    }

    /// The value of `name`; an empty value counts as unset, as in NCCL.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] if the value is not UTF-8.
    pub fn get(&self, name: &str) -> Result<Option<&str>> {
        Ok(self.text(name)?.filter(|value| !value.is_empty()))
    }

    /// The value of `name`, which may be empty.
    ///
    /// # Errors
    /// As [`Environment::get`].
    pub(super) fn text(&self, name: &str) -> Result<Option<&str>> {
        let Some(value) = self.variables.get(OsStr::new(name)) else { return Ok(None) };
        let not_text = || Error::invalid_argument(format!("{name} (environment) is not valid UTF-8 text"));
        value.to_str().map(Some).ok_or_else(not_text)
    }

    /// Whether `name` is set and not empty.
    pub fn has(&self, name: &str) -> bool {
        self.variables.get(OsStr::new(name)).is_some_and(|value| !value.is_empty())
    }

    /// The names that begin with `prefix`, in order. Names that are not UTF-8 are left out.
    pub fn names<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = &'a str> {
        self.variables.keys().filter_map(|name| name.to_str()).filter(move |name| name.starts_with(prefix))
    }

    /// The user's home.
    pub fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }

    /// The configuration file of the machine: `/etc/nccl.conf`.
    pub fn system_file(&self) -> Option<&Path> {
        self.system_file.as_deref()
    }
}

/// Prints only how many variables there are, because values may be secrets of any program.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Environment")
            .field("variables", &self.variables.len())
            .field("home", &self.home)
            .field("system_file", &self.system_file)
            .finish()
    }
}

const SYSTEM_FILE: &str = "/etc/nccl.conf";

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn empty_is_unset_and_bytes_are_an_error() {
        let bytes = OsStr::from_bytes(b"\xff\xfe");
        let environment = Environment::of([
            (OsStr::new("A"), OsStr::new("")),
            (OsStr::new("B"), bytes),
            (OsStr::new("C"), OsStr::new("c")),
        ]);
        assert_eq!(environment.get("A").unwrap(), None);
        assert!(environment.get("B").unwrap_err().to_string().starts_with("B (environment)"));
        assert_eq!(environment.get("C").unwrap(), Some("c"));
        assert_eq!(environment.get("D").unwrap(), None);
        assert!(!environment.has("A") && environment.has("B"));
        assert!(!format!("{environment:?}").contains("\"c\""));
    }

    #[test]
    fn the_real_one_has_a_path() {
        assert!(Environment::capture().has("PATH"));
    }
}
