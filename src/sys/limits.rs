//! Limits of the process.

use crate::sync::primitive::statics::MutexGuard;
use std::path::Path;

use crate::error::{Error, Result};
use crate::sys::handed_down::HandedDown;
use crate::sys::open;

/// Room for descriptors of one holder: while it lives, the soft limit of open files is high enough for those of all
/// holders of this process.
///
/// The limit belongs to the program, and its children inherit it. So it is raised only where the holders need more than
/// half of it, or more than the descriptors that are open leave of it: by what they need, and never above the hard
/// limit. It is put back when those that are left need no more than that. A limit that the program sets meanwhile is
/// the program's, and counts from then on. Where the hard limit is too low, opening one descriptor too many says so.
#[derive(Debug)]
pub struct OpenFiles(u64);

impl OpenFiles {
    /// Room for `count` descriptors.
    #[must_use]
    pub fn need(count: u64) -> OpenFiles {
        let mut files = OpenFiles(0);
        files.cover(count.max(1));
        files
    }

    /// For how many it has room.
    pub fn count(&self) -> u64 {
        self.0
    }

    /// Makes room for `count`, if that is more.
    pub fn cover(&mut self, count: u64) {
        let more = count.saturating_sub(self.0);
        self.0 += more;
        let mut need = lock();
        need.total = need.total.saturating_add(more);
        need.raise();
    }

    /// The soft limit that the first holder found, and that of now, if it is raised.
    pub fn raised(&self) -> Option<(u64, u64)> {
        lock().standing().map(|raised| (raised.found, raised.set))
    }
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        let mut need = lock();
        need.total = need.total.saturating_sub(self.0);
        need.put_back();
    }
}

/// What the holders of this process need. The limit is the process's, and so is this; a forked child inherits what is
/// raised.
#[derive(Debug)]
struct Need {
    total: u64,
    raised: Option<Raised>,
}

#[derive(Debug, Clone, Copy)]
struct Raised {
    found: u64,
    set: u64,
}

static NEED: HandedDown<Need> =
    HandedDown::new(|| Need { total: 0, raised: None }, |parent| Need { total: parent.total, raised: parent.raised });

fn lock() -> MutexGuard<'static, Need> {
    NEED.lock()
}

impl Need {
    /// How the limit is raised, unless the program has set another one meanwhile, which is its own.
    fn standing(&mut self) -> Option<Raised> {
        let now = open_files().ok()?.rlim_cur;
        self.raised = self.raised.filter(|raised| raised.set == now);
        self.raised
    }

    /// Whether a soft limit of `found` is too low: the program, too, needs descriptors, and may have many.
    fn exceeds(&self, found: u64) -> bool {
        let total = self.total;
        total > found / 2 || (total > 0 && descriptors().is_none_or(|open| open.saturating_add(total) > found))
    }

    /// A limit that cannot be read or set stays as it is: opening one descriptor too many says so.
    fn raise(&mut self) {
        let Ok(limit) = open_files() else { return };
        let found = self.standing().map_or(limit.rlim_cur, |raised| raised.found);
        let wanted = found.saturating_add(self.total).min(limit.rlim_max);
        if wanted > limit.rlim_cur
            && self.exceeds(found)
            && set_open_files(&libc::rlimit { rlim_cur: wanted, ..limit }).is_ok()
        {
            self.raised = Some(Raised { found, set: wanted });
        }
    }

    fn put_back(&mut self) {
        let Some(raised) = self.standing().filter(|raised| !self.exceeds(raised.found)) else { return };
        self.raised = None;
        if let Ok(limit) = open_files() {
            // Lowering a limit is always allowed.
            let _allowed = set_open_files(&libc::rlimit { rlim_cur: raised.found, ..limit });
        }
    }
}

/// How many descriptors this process has open; `None` where none is left to look.
fn descriptors() -> Option<u64> {
    match Path::new("/proc/self/fd").read_dir() {
        Ok(entries) => u64::try_from(entries.count()).ok(),
        Err(error) if is_exhausted(&error) => None,
        // Where the system does not tell, half of the limit is taken for enough.
        Err(_) => Some(0),
    }
}

/// The limit of open files as this process found it, for its children; `None` if it was not raised.
pub(super) fn found_open_files() -> Option<libc::rlimit> {
    let found = lock().standing()?.found;
    open_files().ok().map(|limit| libc::rlimit { rlim_cur: found, ..limit })
}

/// Lowers both limits of open files to `most`, for good. Descriptors above it stay open.
///
/// # Errors
/// [`crate::error::Kind::System`] if the system refuses it.
pub fn lower_open_files(most: u64) -> Result<()> {
    let most = most.min(open_files()?.rlim_max);
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
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

/// `error` with what to do about it, if it says that something has run out, or that a limit is reached.
#[must_use]
pub fn with_remedy(error: Error) -> Error {
    if error.message().ends_with(LESS_MEMORY) {
        return error;
    }
    let remedy = match code_of(&error) {
        Some(libc::EMFILE) => "raise the limit of open files (ulimit -n)",
        Some(libc::ENFILE) => "the whole system has no file left: raise fs.file-max",
        Some(libc::EFBIG) => "raise the limit of file sizes, which is one of shared memory too (ulimit -f)",
        Some(libc::ENOMEM) if has_address_limit() => "raise the limit of address space (ulimit -v)",
        Some(libc::ENOMEM | libc::ENOBUFS) => "the system has no memory left for it",
        _ => return error,
    };
    if error.message().contains(remedy) { error } else { error.advising(remedy) }
}

/// What to do about memory that a named limit has no room for.
pub(super) const LESS_MEMORY: &str = "ask for less memory, or raise that limit";

/// What to do about a thread that the system does not start.
pub(super) const MORE_THREADS: &str = "raise the limit of processes and threads (ulimit -u, or pids.max of the cgroup)";

/// The error that this process gets, with what to do about it, if it can open nothing more now.
pub fn shortage() -> Option<Error> {
    let error = open::file(Path::new("/")).err().filter(is_exhausted)?;
    Some(with_remedy(Error::system("opening anything", error)))
}

/// Whether the error is of the limit of file sizes.
pub fn is_file_size(error: &Error) -> bool {
    code_of(error) == Some(libc::EFBIG)
}

fn has_address_limit() -> bool {
    limit_of(libc::RLIMIT_AS).is_ok_and(|limit| limit.rlim_cur != libc::RLIM_INFINITY)
}

/// How much memory this process may lock; `None` without a limit.
pub(super) fn locked_bytes() -> Option<u64> {
    let limit = limit_of(libc::RLIMIT_MEMLOCK).ok()?.rlim_cur;
    (limit != libc::RLIM_INFINITY).then_some(limit)
}

/// The system's code behind `error`.
fn code_of(error: &Error) -> Option<i32> {
    std::error::Error::source(error)?.downcast_ref::<std::io::Error>()?.raw_os_error()
}

fn open_files() -> Result<libc::rlimit> {
    limit_of(libc::RLIMIT_NOFILE).map_err(|error| Error::system("getrlimit(RLIMIT_NOFILE)", error))
}

fn limit_of(resource: libc::__rlimit_resource_t) -> std::io::Result<libc::rlimit> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes one `rlimit`, which `limit` is.
    let code = unsafe { libc::getrlimit(resource, &raw mut limit) };
    if code == 0 { Ok(limit) } else { Err(std::io::Error::last_os_error()) }
}

/// Between fork and exec too: one system call, no allocation.
pub(super) fn set_open_files(limit: &libc::rlimit) -> std::io::Result<()> {
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
        // Also sockets and locks say EAGAIN, where no limit of threads is near.
        for other in [libc::ENOENT, libc::EAGAIN] {
            assert_eq!(with_remedy(full(other)).message(), full(other).message());
        }
    }

    #[cfg(not(loom))]
    fn soft() -> u64 {
        open_files().expect("a limit").rlim_cur
    }

    /// Runs `body` in a forked child, which has no holder and no descriptor yet: other tests of this process have
    /// communicators.
    #[cfg(not(loom))]
    fn alone(body: impl FnOnce() -> bool) -> bool {
        crate::sys::fork::in_child(move || {
            *lock() = Need { total: 0, raised: None };
            for descriptor in 3..4096 {
                // SAFETY: a number; what it stood for is not used in this child, which ends without destructors.
                let _closed = unsafe { libc::close(descriptor) };
            }
            body()
        })
    }

    #[test]
    #[cfg(not(loom))]
    fn a_forked_child_does_not_wait_for_a_thread_that_its_parent_has() {
        let _held = lock();
        assert!(crate::sys::fork::in_child(|| OpenFiles::need(1).count() == 1));
    }

    /// Descriptors until `most` are open.
    #[cfg(not(loom))]
    fn with_open(most: u64) -> Vec<std::fs::File> {
        let mut files = Vec::new();
        while descriptors().is_some_and(|open| open < most) {
            files.push(open::file(Path::new("/")).expect("a descriptor is left"));
        }
        files
    }

    /// Regression: a program with 60 of 64 descriptors open got no room for 8 more.
    #[test]
    #[cfg(not(loom))]
    fn what_the_program_has_open_counts() {
        assert!(alone(|| {
            limit_open_files(64);
            let files = with_open(60);
            let few = OpenFiles::need(8);
            let raised = few.raised() == Some((64, 72));
            drop(files);
            drop(few);
            raised && soft() == 64
        }));
    }

    /// Sets the soft limit, as a program may.
    #[cfg(not(loom))]
    fn limit_open_files(most: u64) {
        let limit = libc::rlimit { rlim_cur: most, ..open_files().expect("a limit") };
        set_open_files(&limit).expect("the soft limit may be set");
    }

    #[test]
    #[cfg(not(loom))]
    fn the_limit_is_raised_where_it_is_needed_and_put_back() {
        assert!(alone(|| {
            let hard = open_files().expect("a limit").rlim_max;
            limit_open_files(64);
            let few = OpenFiles::need(32);
            let left_alone = soft() == 64 && few.raised().is_none();
            let mut more = OpenFiles::need(8);
            let raised = soft() == 104 && more.raised() == Some((64, 104));
            let for_children = found_open_files().expect("it is raised").rlim_cur == 64;
            more.cover(1 << 40);
            let not_above = soft() == hard && open_files().expect("a limit").rlim_max == hard;
            let other = OpenFiles::need(8);
            drop(more);
            let kept = soft() == hard;
            drop(other);
            left_alone && raised && for_children && not_above && kept && soft() == 64 && found_open_files().is_none()
        }));
    }

    #[test]
    #[cfg(not(loom))]
    fn a_limit_that_the_program_has_set_meanwhile_stays() {
        assert!(alone(|| {
            limit_open_files(64);
            let files = OpenFiles::need(60);
            limit_open_files(90);
            let is_theirs = files.raised().is_none() && found_open_files().is_none();
            let more = OpenFiles::need(20);
            let from_theirs = more.raised() == Some((90, 170));
            drop(more);
            drop(files);
            is_theirs && from_theirs && soft() == 90
        }));
        assert!(alone(|| {
            limit_open_files(64);
            let files = OpenFiles::need(60);
            limit_open_files(90);
            drop(files);
            soft() == 90
        }));
    }
}
