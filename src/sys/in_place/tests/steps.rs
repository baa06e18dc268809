//! A process that moves memory there and back is stopped before and behind each of its system calls. It is killed
//! there, or goes on: a peer that has the memory mapped meets no signal, and who goes on has lost no byte.

use super::*;

/// Pages on both sides of where one piece ends and the next begins, with an edge at either end.
fn across_pieces() -> Bytes {
    let room = Bytes::mapped(3 * PIECE_BYTES);
    let start = room.addresses().start;
    // Three pages in front of it lie in the room, wherever that begins.
    let border = (start + 3 * PAGE).next_multiple_of(PIECE_BYTES) - start;
    room.part(border - 3 * PAGE + 16..border + 2 * PAGE + 100)
}

/// There and back, twice: the second time by way of a detached mapping.
fn moves(mut bytes: Bytes) -> bool {
    let mut fine = true;
    for is_detached in [false, true] {
        let Ok(placed) = bytes.place() else { return false };
        fine &= bytes.holds(1);
        fine &= !is_detached || (placed.detach().is_ok() && bytes.holds(1));
        fine &= give_back(&placed).is_ok() && bytes.holds(1);
    }
    fine
}

/// What a process does that is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    GoesOn,
    Dies,
}

/// Runs [`moves`] in a child, and asks `at_stop` of each stop, which has the child's number, what the child does then.
/// How it has ended; `None` where this system lets no process trace its child.
fn stopped_at_each_call(bytes: Bytes, mut at_stop: impl FnMut(libc::pid_t) -> Then) -> Option<libc::c_int> {
    const NOT_TRACED: libc::c_int = 9;
    let nothing = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: this process has one thread, and the child ends without returning.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", io::Error::last_os_error());
    if child == 0 {
        // SAFETY: a plain call.
        if unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, nothing, nothing) } != 0 {
            // SAFETY: ends the child, which has nothing to clean up.
            unsafe { libc::_exit(NOT_TRACED) };
        }
        // SAFETY: a plain call; the parent lets the child go on.
        unsafe { libc::raise(libc::SIGSTOP) };
        let is_fine = std::panic::catch_unwind(|| moves(bytes)).unwrap_or(false);
        // SAFETY: ends the child, which has nothing to clean up.
        unsafe { libc::_exit(i32::from(!is_fine)) };
    }
    let (mut status, mut is_dead) = (0, false);
    loop {
        // SAFETY: `status` is ours; the child is ours, and is waited for here only.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        if !libc::WIFSTOPPED(status) {
            let is_traced = !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != NOT_TRACED;
            return is_traced.then_some(status);
        }
        if !is_dead && at_stop(child) == Then::Dies {
            is_dead = true;
            // SAFETY: the child is ours and unreaped, so the number is its.
            assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
            continue;
        }
        // SAFETY: the child is stopped, and traced by this thread. It fails where the child has been killed meanwhile.
        let _goes_on = unsafe { libc::ptrace(libc::PTRACE_SYSCALL, child, nothing, nothing) };
    }
}

/// The files of moved memory that a process has open, by their numbers: those of other tests are inherited.
fn files_of(process: libc::pid_t) -> Vec<(u64, std::path::PathBuf)> {
    let is_ours = |path: &std::path::Path| {
        std::fs::read_link(path).is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:rsccl-in-place"))
    };
    let number = |path: &std::path::Path| Some(std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(path).ok()?));
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten();
    let open = open.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_ours(path));
    open.filter_map(|path| Some((number(&path)?, path))).collect()
}

/// The file into which the child moves memory, by its number, and as a peer maps it. The child has inherited `others`.
fn mapped_from(child: libc::pid_t, others: &[u64]) -> Option<(u64, SharedMemory)> {
    let (number, path) = files_of(child).into_iter().find(|(number, _)| !others.contains(number))?;
    let file = std::fs::File::options().read(true).write(true).open(path).ok()?;
    let bytes = usize::try_from(file.metadata().ok()?.len()).ok()?;
    // Before it is sealed no peer gets it.
    Some((number, SharedMemory::from_peer(file.into(), bytes).ok()?))
}

/// What a peer reads is what has moved, or nothing yet, or no more.
fn reads_well(theirs: &SharedMemory, first: usize, bytes: Bytes) -> bool {
    let mut seen = Bytes { start: theirs.at(first, bytes.count), count: bytes.count };
    seen.slice().iter().enumerate().all(|(at, byte)| *byte == 0 || *byte == pattern(at, 1))
}

#[test]
fn a_process_that_is_stopped_or_killed_at_any_call_of_a_move_harms_nobody() {
    #[expect(clippy::disallowed_methods, reason = "how much is tested is no setting of the library")]
    let is_long = std::env::var_os("RSCCL_EXHAUSTIVE").is_some();
    // Each stop costs two turns of a processor, which is busy, and a child has seconds: so the kills of a long run are
    // those of several children.
    let (parts, step) = if is_long { (LONG_PARTS, Some(LONG_PARTS)) } else { (1, None) };
    for part in 0..parts {
        assert!(alone(|| stop_and_kill(1 + part, step)), "part {part}");
    }
}

/// Lets a child go through all stops, and then kills one at the stop `from`, and at each `step` after it.
fn stop_and_kill(from: usize, step: Option<usize>) -> bool {
    let mut bytes = across_pieces();
    bytes.fill(1);
    let first = bytes.addresses().start % PAGE;
    let own = libc::pid_t::try_from(std::process::id()).expect("numbers of processes are small");
    let others: Vec<u64> = files_of(own).into_iter().map(|(number, _)| number).collect();
    // The second move has a file of its own.
    let (mut stops, mut files, mut theirs, mut is_well) = (0usize, Vec::new(), None, true);
    let ended = stopped_at_each_call(bytes, |child| {
        stops += 1;
        if let Some((file, memory)) = mapped_from(child, &others)
            && !files.contains(&file)
        {
            files.push(file);
            theirs = Some(memory);
        }
        is_well &= theirs.as_ref().is_none_or(|theirs| reads_well(theirs, first, bytes));
        Then::GoesOn
    });
    let Some(status) = ended else {
        println!("skipped: this system lets no process trace its child");
        return true;
    };
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "status {status:#x} after {stops} stops");
    assert!(is_well && files.len() == 2 && stops > 60, "{stops} stops, files {files:?}");
    drop(theirs);
    for last in (from..stops).step_by(step.unwrap_or(stops / KILLS)) {
        let (mut stop, mut theirs) = (0, None);
        let status = stopped_at_each_call(bytes, |child| {
            stop += 1;
            if stop == last {
                theirs = mapped_from(child, &others);
            }
            if stop == last { Then::Dies } else { Then::GoesOn }
        });
        assert!(status.is_some_and(|status| libc::WIFSIGNALED(status)), "stop {last} of {stops}: {status:?}");
        // What has become the peer's alone stays readable and writable.
        if let Some((_, theirs)) = theirs {
            assert!(reads_well(&theirs, first, bytes), "stop {last}");
            Bytes { start: theirs.at(first, bytes.count), count: bytes.count }.fill(2);
        }
    }
    true
}

/// Kills in a run of all tests that is not a long one.
const KILLS: usize = 12;

/// Children among which a long run divides a kill at each stop.
const LONG_PARTS: usize = 32;
