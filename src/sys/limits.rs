//! Limits of the process.

use crate::error::{Error, Result};

/// Raises the limit of open files to at least `wanted` if the system allows it: the soft limit up to the hard one, and
/// the hard one too if the process has the privilege. Yields the resulting limit, which may be lower than `wanted`.
///
/// # Errors
/// [`crate::error::Kind::System`] if the limit cannot be read.
pub fn raise_open_files(wanted: u64) -> Result<u64> {
    let mut limit = open_files()?;
    if limit.rlim_cur >= wanted {
        return Ok(limit.rlim_cur);
    }
    if limit.rlim_max < wanted {
        // Only a privileged process may raise the hard limit; the next step raises the soft one in any case.
        let higher = libc::rlimit { rlim_cur: wanted, rlim_max: wanted };
        if set_open_files(&higher).is_ok() {
            return Ok(wanted);
        }
    }
    limit.rlim_cur = limit.rlim_max.min(wanted);
    match set_open_files(&limit) {
        Ok(()) => Ok(limit.rlim_cur),
        Err(_) => Ok(open_files()?.rlim_cur),
    }
}

/// Whether `error` means that no descriptor, or no memory for one, is left. That passes when descriptors are closed.
pub fn is_exhausted(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

fn open_files() -> Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one `rlimit`, which `limit` is.
    let code = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    if code == 0 { Ok(limit) } else { Err(Error::last_os("getrlimit(RLIMIT_NOFILE)")) }
}

fn set_open_files(limit: &libc::rlimit) -> std::io::Result<()> {
    // SAFETY: the call reads one `rlimit`, which the reference is.
    let code = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, limit) };
    if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_never_falls() {
        let before = open_files().unwrap().rlim_cur;
        assert!(raise_open_files(16).unwrap() >= before.min(16));
        assert_eq!(open_files().unwrap().rlim_cur, before.max(16));
        assert!(raise_open_files(before + 1).unwrap() >= before);
    }
}
