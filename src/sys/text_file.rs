//! Files that settings and options name.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Error, Result};
use crate::sys::open::{self, LockedFile};

/// The text of a file: `what` it is, and the variable or option that names it.
///
/// # Errors
/// [`crate::error::Kind::System`] where it cannot be read; [`crate::error::Kind::InvalidArgument`] where it is too
/// long, not text, or no regular file.
pub fn read(path: &Path, what: &str, named_by: &str) -> Result<String> {
    let shown = path.display();
    let failed = |error| Error::system(format!("reading {what} {shown} ({named_by})"), error);
    // Checked before opening, because opening a FIFO would wait for its writer.
    let of = std::fs::metadata(path).map_err(failed)?;
    if of.is_dir() {
        let error = std::io::Error::from_raw_os_error(libc::EISDIR);
        return Err(Error::invalid_argument(format!("{what} {shown} ({named_by}): {error}")));
    }
    if !of.is_file() {
        return Err(Error::invalid_argument(format!("{what} {shown} ({named_by}) is not a regular file")));
    }
    let mut bytes = Vec::new();
    let length = open::file(path).map_err(failed)?.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if length as u64 > MAX_FILE_BYTES {
        let message = format!("{what} {shown} ({named_by}) must be at most {MAX_FILE_BYTES} bytes long");
        return Err(Error::invalid_argument(message));
    }
    String::from_utf8(bytes).map_err(|error| {
        let text = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..text].iter().filter(|byte| **byte == b'\n').count();
        Error::invalid_argument(format!(
            "{what} {shown} ({named_by}) is not text: line {line}, byte {text} of the file"
        ))
    })
}

/// Opens a file for lines that are put at its end; makes the file if there is none. A FIFO without a reader is an
/// error: it is not waited for.
///
/// # Errors
/// Of the system.
pub fn open_to_append(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    let file = open::file_with(options.create(true).append(true).custom_flags(libc::O_NONBLOCK), path)?;
    // SAFETY: the descriptor is open as long as `file` lives, and the call takes no pointer.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    // Later writes wait for a slow reader, or lines would be lost.
    // SAFETY: as above; the flags are those of the file itself, which nobody else has yet.
    let set = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK) };
    if flags < 0 || set < 0 { Err(std::io::Error::last_os_error()) } else { Ok(file) }
}

/// Opens a file that this process alone writes, as long as it has it open; what stood there goes. On a file system
/// without locks a second writer is not seen.
///
/// # Errors
/// Of the system; [`std::io::ErrorKind::WouldBlock`] where another process writes it.
pub fn open_alone(path: &Path) -> std::io::Result<LockedFile> {
    open_alone_with(&mut OpenOptions::new(), path)
}

/// The same of a new file, for a process that reads what it has written.
///
/// # Errors
/// As [`open_alone`], and where something of that name is there.
pub fn open_new_to_read_back(path: &Path) -> std::io::Result<LockedFile> {
    open_alone_with(OpenOptions::new().read(true).create_new(true), path)
}

fn open_alone_with(options: &mut OpenOptions, path: &Path) -> std::io::Result<LockedFile> {
    let file = open::lock_file_at_once(options.write(true).create(true), path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    match file.try_lock() {
        Ok(()) => {}
        // NFS without its lock service, FUSE and some parallel file systems have no locks: only what guards against a
        // second writer is lost.
        Err(TryLockError::Error(error)) if has_no_locks(&error) => {}
        Err(TryLockError::Error(error)) => return Err(error),
        Err(TryLockError::WouldBlock) => {
            let why =
                "another process writes it: give each its own, by %r (the rank), %h (the host) or %p (the process)";
            return Err(std::io::Error::new(std::io::ErrorKind::WouldBlock, why));
        }
    }
    file.set_len(0)?;
    Ok(file)
}

fn has_no_locks(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::ENOLCK | libc::EOPNOTSUPP))
}

/// The longest are topology files: a host of 72 GPUs takes some 64 KiB.
const MAX_FILE_BYTES: u64 = 16 << 20;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::error::Kind;

    /// Makes the call `flock` fail with `code` on this thread, as on a file system without locks.
    fn deny_locks(code: i32) {
        let filter = |code: u32, yes: u8, no: u8, value: u32| libc::sock_filter {
            code: u16::try_from(code).unwrap(),
            jt: yes,
            jf: no,
            k: value,
        };
        let call = u32::try_from(libc::SYS_flock).unwrap();
        let mut filters = [
            // The number of the call is the first word.
            filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call),
            filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | code.cast_unsigned()),
            filter(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: filters.as_mut_ptr() };
        // SAFETY: no pointer is passed.
        assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
        // SAFETY: the program and its filters live to the end of the call, which copies them.
        let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn a_file_system_without_locks_has_files_too() {
        let folder = tempfile::tempdir().unwrap();
        for (code, is_open) in
            [(libc::ENOSYS, true), (libc::ENOLCK, true), (libc::EOPNOTSUPP, true), (libc::EIO, false)]
        {
            let path = folder.path().join("trace");
            // The filter stays on the thread.
            let open = std::thread::scope(|scope| {
                let open = scope.spawn(|| {
                    deny_locks(code);
                    open_alone(&path).map(drop)
                });
                open.join().unwrap()
            });
            assert_eq!(open.is_ok(), is_open, "code {code}: {open:?}");
        }
    }

    #[test]
    fn what_is_no_text_is_named_with_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("input");
        let message = |path: &Path| read(path, "the graph file", "--graph").unwrap_err();
        std::fs::write(&path, b"<system>\n\xff").unwrap();
        let shown = path.display();
        let error = message(&path);
        assert_eq!(
            error.message(),
            format!("the graph file {shown} (--graph) is not text: line 2, byte 9 of the file")
        );
        std::fs::File::create(&path).unwrap().set_len(MAX_FILE_BYTES + 1).unwrap();
        assert!(message(&path).message().contains("must be at most"));
        assert!(message(folder.path()).message().contains("(--graph): Is a directory (os error 21)"));
        assert!(message(Path::new("/dev/null")).message().contains("is not a regular file"));
        assert_eq!(message(&folder.path().join("none")).kind(), Kind::System);
        std::fs::write(&path, "text").unwrap();
        assert_eq!(read(&path, "the graph file", "--graph").unwrap(), "text");
    }
}
