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

/// Sets the soft limit of open files, up or down, within the hard one. Descriptors above it stay open.
///
/// # Errors
/// [`crate::error::Kind::System`] if `most` is above the hard limit.
pub fn limit_open_files(most: u64) -> Result<()> {
    let limit = libc::rlimit { rlim_cur: most, ..open_files()? };
    set_open_files(&limit).map_err(|error| Error::system("setrlimit(RLIMIT_NOFILE)", error))
}

/// Whether `error` means that no descriptor, or no memory for one, is left. That passes when descriptors are closed.
pub fn is_exhausted(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
}

/// Whether `error` is of this process or machine, which has no descriptor or no memory left.
pub fn is_shortage(error: &Error) -> bool {
    code_of(error).is_some_and(|code| is_exhausted(&std::io::Error::from_raw_os_error(code)))
}

/// `error` with what to do about it, if it says that something has run out.
#[must_use]
pub fn with_remedy(error: Error) -> Error {
    let remedy = match code_of(&error) {
        Some(libc::EMFILE) => "raise the limit of open files (ulimit -n)",
        Some(libc::ENFILE) => "the whole system has no file left: raise fs.file-max",
        Some(libc::EAGAIN) => "raise the limit of processes and threads (ulimit -u)",
        Some(libc::ENOMEM | libc::ENOBUFS) => "the system has no memory left for it",
        _ => return error,
    };
    if error.message().contains(remedy) { error } else { error.advising(remedy) }
}

/// The system's code behind `error`.
fn code_of(error: &Error) -> Option<i32> {
    std::error::Error::source(error)?.downcast_ref::<std::io::Error>()?.raw_os_error()
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
    fn what_has_run_out_has_a_remedy_and_it_is_named_once() {
        let full = |code| Error::system("socket", std::io::Error::from_raw_os_error(code));
        let told = with_remedy(with_remedy(full(libc::EMFILE)));
        assert!(told.message().ends_with("(os error 24): raise the limit of open files (ulimit -n)"), "{told}");
        assert!(is_shortage(&told) && is_shortage(&full(libc::ENOMEM)) && !is_shortage(&full(libc::ENOENT)));
        assert_eq!(with_remedy(full(libc::ENOENT)).message(), full(libc::ENOENT).message());
    }

    #[test]
    fn the_limit_never_falls() {
        let before = open_files().unwrap().rlim_cur;
        assert!(raise_open_files(16).unwrap() >= before.min(16));
        assert_eq!(open_files().unwrap().rlim_cur, before.max(16));
        assert!(raise_open_files(before + 1).unwrap() >= before);
    }
}
