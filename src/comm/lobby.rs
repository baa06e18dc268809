//! The folder in which the ranks of a launcher meet on one host, if the user has named no other place.
//!
//! `/tmp/rsccl-UID/SPACE-PROCESS-STARTED-NUMBER`, with the launcher's process and its start time, so that no other job
//! ever has the same one, and the number of the communicator among those that the job makes. The outer folder must
//! belong to this user alone. Rank 0 removes the inner one when all have joined; what a job that died has left is
//! removed by the next job.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::sys::identity::{self, Life, ProcessIdentity};

/// The meeting place of one communicator.
#[derive(Debug)]
pub(super) struct Lobby {
    folder: PathBuf,
    /// Whether this rank removes it.
    is_host: bool,
}

impl Lobby {
    /// The folder for communicator `number` of the job whose launcher has a process named like one of `daemons`. `None`
    /// where the system does not list processes.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidUsage`] where the outer folder is not this user's alone.
    pub(super) fn of_job(daemons: &[&str], number: u64, is_host: bool) -> Result<Option<Lobby>> {
        let Some(launcher) = identity::ancestor(daemons) else { return Ok(None) };
        let user = fs::metadata("/proc/self").map_err(|error| Error::system("looking at /proc/self", error))?.uid();
        Lobby::within(Path::new("/tmp"), user, &launcher, (number, is_host)).map(Some)
    }

    fn within(parent: &Path, user: u32, launcher: &ProcessIdentity, (number, is_host): (u64, bool)) -> Result<Lobby> {
        let outer = parent.join(format!("rsccl-{user}"));
        make_private(&outer, user)?;
        let space = space_of(launcher);
        if is_host {
            sweep(&outer, &space, launcher);
        }
        let folder = outer.join(format!("{space}-{}-{}-{number}", launcher.process, launcher.started));
        Ok(Lobby { folder, is_host })
    }

    /// The folder, which the store makes.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Lobby {
    fn drop(&mut self) {
        if self.is_host {
            // Not there, or not to be removed: the next job sweeps.
            let _left = fs::remove_dir_all(&self.folder);
        }
    }
}

/// Makes a folder that only `user` can use, or checks that it is one.
fn make_private(folder: &Path, user: u32) -> Result<()> {
    // An error is found below: the folder is then not there, or not ours.
    let _made = DirBuilder::new().mode(0o700).create(folder);
    let found = fs::symlink_metadata(folder)
        .map_err(|error| Error::system(format!("making the folder {} to meet in", folder.display()), error))?;
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(Error::invalid_usage(format!(
        "the ranks cannot meet in {}: it must be a folder of user {user} with mode 0700; remove it, or set RSCCL_STORE",
        folder.display()
    )))
}

/// A short name of this boot and process namespace: process numbers of others mean nothing here.
fn space_of(launcher: &ProcessIdentity) -> String {
    blake3::hash(launcher.space.as_bytes()).to_hex()[..16].to_owned()
}

/// Removes what jobs left whose launcher has ended.
fn sweep(outer: &Path, space: &str, mine: &ProcessIdentity) {
    let Ok(entries) = fs::read_dir(outer) else { return };
    for entry in entries.take(MOST_SWEPT).flatten() {
        let name = entry.file_name();
        let parts: Vec<&str> = name.to_str().unwrap_or_default().split('-').collect();
        let [its_space, process, started, _] = parts[..] else { continue };
        let (Ok(process), Ok(started)) = (process.parse(), started.parse()) else { continue };
        let launcher = ProcessIdentity { process, started, ..mine.clone() };
        if its_space == space && launcher.life().is_ok_and(|life| life == Life::Ended) {
            // Another job may sweep at the same time.
            let _gone = fs::remove_dir_all(entry.path());
        }
    }
}

/// Entries that one job looks at.
const MOST_SWEPT: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_lobby_is_the_users_own_and_what_dead_jobs_left_is_swept() {
        let folder = tempfile::tempdir().unwrap();
        let user = fs::metadata(folder.path()).unwrap().uid();
        let mine = ProcessIdentity::mine().unwrap();
        let lobby = |number| Lobby::within(folder.path(), user, &mine, (number, true));
        let first = lobby(0).unwrap();
        let outer = first.folder().parent().unwrap().to_owned();
        assert_eq!(fs::metadata(&outer).unwrap().mode() & 0o777, 0o700);
        assert_ne!(first.folder(), lobby(1).unwrap().folder());
        fs::create_dir(first.folder()).unwrap();
        let (dead, other) = (outer.join(format!("{}-{}-1-0", space_of(&mine), mine.process)), outer.join("x-1-1-0"));
        fs::create_dir(&dead).unwrap();
        fs::create_dir(&other).unwrap();
        drop(lobby(1).unwrap());
        assert!(first.folder().exists() && other.exists() && !dead.exists(), "only what is known to be dead goes");
        let path = first.folder().to_owned();
        drop(first);
        assert!(!path.exists());

        fs::set_permissions(&outer, fs::Permissions::from_mode(0o755)).unwrap();
        let error = lobby(0).unwrap_err().to_string();
        assert!(error.contains("mode 0700") && error.contains("RSCCL_STORE"), "{error}");
        fs::set_permissions(&outer, fs::Permissions::from_mode(0o700)).unwrap();
        fs::remove_dir_all(&outer).unwrap();
        std::os::unix::fs::symlink(folder.path(), &outer).unwrap();
        assert!(lobby(0).is_err(), "a link leads anywhere");
    }
}
