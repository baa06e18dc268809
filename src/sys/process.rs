//! Processes: children in groups of their own, signals as readable events, waiting for pipes. For launchers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use std::time::Duration;

use crate::error::{Error, Result};
use crate::sys::{alive, limits, open, writing};

/// A signal's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Signal(i32);

macro_rules! signals {
    ($($(#[$doc:meta])* $name:ident = $number:ident;)+) => {
        impl Signal {
            $($(#[$doc])* pub const $name: Signal = Signal(libc::$number);)+

            /// The name as `kill -l` prints it, with SIG before it.
            pub fn name(self) -> String {
                match self.0 {
                    $(libc::$number => stringify!($number).to_owned(),)+
                    number => format!("signal {number}"),
                }
            }
        }
    };
}

signals! {
    /// A child changed its state.
    CHILD = SIGCHLD;
    /// The terminal was closed.
    HANGUP = SIGHUP;
    /// Control-C.
    INTERRUPT = SIGINT;
    /// Control-\.
    QUIT = SIGQUIT;
    /// The usual request to terminate.
    TERMINATE = SIGTERM;
    /// For the program's own use.
    USER_1 = SIGUSR1;
    /// For the program's own use.
    USER_2 = SIGUSR2;
    /// Ends the process; it cannot be caught.
    KILL = SIGKILL;
    /// The process called `abort`.
    ABORT = SIGABRT;
    /// An access to unmapped or protected memory.
    SEGMENTATION = SIGSEGV;
    /// An access to a page whose backing is gone.
    BUS = SIGBUS;
    /// An illegal instruction.
    ILLEGAL = SIGILL;
    /// An arithmetic error.
    ARITHMETIC = SIGFPE;
    /// A write to a pipe without reader.
    PIPE = SIGPIPE;
    /// A breakpoint.
    TRAP = SIGTRAP;
    /// Stops the process until [`Signal::CONTINUE`]; it cannot be caught.
    STOP = SIGSTOP;
    /// Continues a stopped process.
    CONTINUE = SIGCONT;
}

impl Signal {
    /// Its number.
    pub fn number(self) -> i32 {
        self.0
    }
}

/// Signals of this thread, received as events. They are blocked in this thread, and in threads and children that it
/// starts later; [`Group::start`] unblocks them in its children.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Receives `signals` from now on. A signal that the process ignored from its start (`nohup`, a shell's background
    /// job) stays ignored, here and in children; except [`Signal::CHILD`], which must arrive.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn take_over(signals: &[Signal]) -> Result<Signals> {
        // An ignored signal would be queued while it is blocked.
        let heeded: Vec<Signal> =
            signals.iter().copied().filter(|signal| *signal == Signal::CHILD || !is_ignored(*signal)).collect();
        let set = signal_set(&heeded);
        // SAFETY: SIG_DFL is a disposition, no handler of ours is involved.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        // SAFETY: `set` is an initialised set; no old mask is asked for.
        let status = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        if status != 0 {
            return Err(Error::system("pthread_sigmask", io::Error::from_raw_os_error(status)));
        }
        // SAFETY: `set` is an initialised set; -1 asks for a new descriptor.
        let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        // SAFETY: it is what the call has just returned.
        unsafe { open::own(fd) }.map(Signals).map_err(|error| Error::system("signalfd", error))
    }

    /// The next signal that has arrived, without waiting.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn next(&self) -> Result<Option<Signal>> {
        // SAFETY: the structure is made of integers, for which zero is a value.
        let mut info: libc::signalfd_siginfo = unsafe { std::mem::zeroed() };
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` is ours and writable for `size` bytes.
        let count = unsafe { libc::read(self.0.as_raw_fd(), (&raw mut info).cast(), size) };
        if usize::try_from(count) == Ok(size) {
            return Ok(i32::try_from(info.ssi_signo).ok().map(Signal));
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
            _ => Err(Error::system("reading from a signalfd", error)),
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// It returned this code.
    Code(i32),
    /// This signal ended it.
    Signal(Signal),
}

/// A child process and all processes that it starts, as one process group with the child's number.
///
/// The child is reaped only when this value is dropped; so its number cannot become another group's while signals are
/// sent to it. Dropping kills the whole group.
#[derive(Debug)]
pub struct Group {
    child: Child,
    exit: Option<Exit>,
}

impl Group {
    /// Starts `command` in a group of its own, with no signal blocked, and with the limit of open files that this
    /// process found ([`limits::OpenFiles`]). The child is killed when the calling thread ends, for whatever reason.
    ///
    /// # Errors
    /// The error of [`Command::spawn`].
    pub fn start(command: &mut Command) -> io::Result<Group> {
        Group::start_on(command, &[])
    }

    /// [`Group::start`] of a child that may run only on `processors`; if that is empty, wherever this process may run.
    ///
    /// # Errors
    /// The error of [`Command::spawn`]; also if a processor does not exist.
    pub fn start_on(command: &mut Command, processors: &[u32]) -> io::Result<Group> {
        let places = processor_set(processors);
        let parent = libc::pid_t::try_from(std::process::id()).map_err(io::Error::other)?;
        let none = signal_set(&[]);
        let files = limits::found_open_files();
        let prepare = move || {
            // SAFETY: the option takes one number; it concerns this new process alone.
            if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } != 0 {
                return Err(io::Error::last_os_error());
            }
            // SAFETY: the call has no arguments and cannot fail.
            if unsafe { libc::getppid() } != parent {
                // The launcher ended before the line above, so its death signal will never come.
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            writing::heed_the_limit_of_files();
            if let Some(files) = &files {
                limits::set_open_files(files)?;
            }
            if let Some(places) = &places {
                // SAFETY: `places` is an initialised set of that size; 0 is the calling process.
                if unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), places) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            // SAFETY: `none` is an initialised set; no old mask is asked for.
            match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut()) } {
                0 => Ok(()),
                status => Err(io::Error::from_raw_os_error(status)),
            }
        };
        command.process_group(0);
        // SAFETY: between fork and exec the closure makes async-signal-safe calls only and allocates nothing.
        let child = unsafe { command.pre_exec(prepare) }.spawn()?;
        Ok(Group { child, exit: None })
    }

    /// The child's number.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// A descriptor that is readable once the child has ended.
    ///
    /// # Errors
    /// The system's error: no descriptor is left, or a kernel before Linux 5.3.
    pub fn handle(&self) -> io::Result<OwnedFd> {
        alive::handle(libc::pid_t::try_from(self.child.id()).map_err(io::Error::other)?)
    }

    /// The pipe to the command's input, once, if it has one.
    pub fn take_input(&mut self) -> Option<ChildStdin> {
        self.child.stdin.take()
    }

    /// The pipes from the command's output, each once, if it has them.
    pub fn take_output(&mut self) -> (Option<ChildStdout>, Option<ChildStderr>) {
        (self.child.stdout.take(), self.child.stderr.take())
    }

    /// How the child ended, or `None` while it runs. Does not wait.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`].
    pub fn exit(&mut self) -> Result<Option<Exit>> {
        if self.exit.is_some() {
            return Ok(self.exit);
        }
        // SAFETY: the structure is made of integers and pointers, for which zero is a value.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // Left unreaped: see the type's documentation.
        let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: `info` is ours and writable.
        let status = unsafe { libc::waitid(libc::P_PID, self.child.id(), &raw mut info, options) };
        if status != 0 {
            return Err(Error::last_os(format!("waitid of process {}", self.child.id())));
        }
        // SAFETY: a siginfo of waitid has the child's number, or zero where no child has ended.
        if unsafe { info.si_pid() } == 0 {
            return Ok(None);
        }
        // SAFETY: a siginfo of waitid has the child's status.
        let status = unsafe { info.si_status() };
        let by_itself = info.si_code == libc::CLD_EXITED;
        self.exit = Some(if by_itself { Exit::Code(status) } else { Exit::Signal(Signal(status)) });
        Ok(self.exit)
    }

    /// Sends `signal` to every process of the group. A group without processes is not an error.
    ///
    /// # Errors
    /// [`crate::error::Kind::System`], such as for a process that now belongs to another user.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let group = libc::pid_t::try_from(self.child.id())
            .map_err(|_| Error::internal(format!("process {} has an impossible number", self.child.id())))?;
        // SAFETY: the call takes two numbers. The group is the child's: it is not reaped, so its number is not reused.
        if unsafe { libc::kill(-group, signal.0) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::ESRCH) => Ok(()),
            _ => Err(Error::system(format!("sending {} to the process group {group}", signal.name()), error)),
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // After SIGKILL the wait is short; an error means that there is nothing to kill or to reap.
        drop(self.signal(Signal::KILL));
        drop(self.child.wait());
    }
}

/// The readiness to wait for on a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Bytes to read, or the end of the stream.
    Read,
    /// Room to write; on a pipe, at least [`PIPE_ROOM_BYTES`].
    Write,
}

/// Waits until one of `wants` is ready, or `timeout` has passed; yields for each whether it is ready. For a few
/// descriptors of any kind, including regular files, which `epoll` does not accept.
///
/// # Errors
/// [`crate::error::Kind::System`].
pub fn wait_ready(wants: &[(BorrowedFd<'_>, Want)], timeout: Option<Duration>) -> Result<Vec<bool>> {
    let entry = |(fd, want): &(BorrowedFd<'_>, Want)| libc::pollfd {
        fd: fd.as_raw_fd(),
        events: if *want == Want::Read { libc::POLLIN } else { libc::POLLOUT },
        revents: 0,
    };
    let mut entries: Vec<libc::pollfd> = wants.iter().map(entry).collect();
    // Rounded up: a wait that ends slightly too early would be repeated at once.
    let milliseconds = timeout
        .map_or(-1, |time| i32::try_from(time.as_nanos().div_ceil(NANOSECONDS_PER_MILLISECOND)).unwrap_or(i32::MAX));
    let count = libc::nfds_t::try_from(entries.len()).map_err(|_| Error::internal("more descriptors than numbers"))?;
    // SAFETY: the entries are ours and live through the call; the descriptors are borrowed, so open.
    let ready = unsafe { libc::poll(entries.as_mut_ptr(), count, milliseconds) };
    if ready < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(Error::system("poll", error));
        }
        return Ok(vec![false; wants.len()]);
    }
    Ok(entries.iter().map(|entry| entry.revents != 0).collect())
}

/// Whether this process may read `fd`: the terminal stops a process in a background group that reads from it.
pub fn may_read(fd: impl AsFd) -> bool {
    let fd = fd.as_fd().as_raw_fd();
    // SAFETY: the call takes a number; the descriptor is borrowed, so open.
    if unsafe { libc::isatty(fd) } == 0 {
        return true;
    }
    // SAFETY: as above.
    let foreground = unsafe { libc::tcgetpgrp(fd) };
    // SAFETY: the call has no arguments and cannot fail.
    foreground == unsafe { libc::getpgrp() }
}

/// Whether this process ignores `signal`.
fn is_ignored(signal: Signal) -> bool {
    // SAFETY: the structure is made of integers and pointers, for all of which zero is a value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: no new action is given, and `action` is ours and writable.
    let status = unsafe { libc::sigaction(signal.0, std::ptr::null(), &raw mut action) };
    status == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// The set of `processors`; `None` if there are none.
fn processor_set(processors: &[u32]) -> Option<libc::cpu_set_t> {
    if processors.is_empty() {
        return None;
    }
    // SAFETY: a set is made of integers, for which zero is a value.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let room = 8 * size_of::<libc::cpu_set_t>();
    let fitting = processors.iter().filter_map(|number| usize::try_from(*number).ok()).filter(|number| *number < room);
    for number in fitting {
        // SAFETY: `set` is initialised, and the number is below its bits.
        unsafe { libc::CPU_SET(number, &mut set) };
    }
    Some(set)
}

fn signal_set(signals: &[Signal]) -> libc::sigset_t {
    // SAFETY: a set is made of integers, for which zero is a value.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is ours and writable.
    unsafe { libc::sigemptyset(&raw mut set) };
    for signal in signals {
        // SAFETY: `set` is initialised; the numbers are libc's own.
        unsafe { libc::sigaddset(&raw mut set, signal.0) };
    }
    set
}

/// How many bytes a ready pipe accepts without blocking.
pub const PIPE_ROOM_BYTES: usize = libc::PIPE_BUF;
const NANOSECONDS_PER_MILLISECOND: u128 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::clock;
    use std::io::Read;
    use std::process::Stdio;

    fn shell(script: &str) -> Group {
        Group::start(Command::new("/bin/sh").args(["-c", script]).stdout(Stdio::piped())).unwrap()
    }

    /// Waits for the child's end, which the end of its pipe announces; bounded by the test's own limit.
    fn exit_of(group: &mut Group) -> Exit {
        let began = clock::now();
        loop {
            if let Some(exit) = group.exit().unwrap() {
                return exit;
            }
            assert!(clock::now().duration_since(began) < Duration::from_secs(20), "the child does not end");
            wait_ready(&[], Some(Duration::from_millis(1))).unwrap();
        }
    }

    #[test]
    fn exits_are_told_apart() {
        assert_eq!(exit_of(&mut shell("exit 3")), Exit::Code(3));
        let exit = exit_of(&mut shell("kill -9 $$"));
        assert_eq!(exit, Exit::Signal(Signal::KILL));
        assert_eq!(Signal::KILL.name(), "SIGKILL");
        assert_eq!(Signal(63).name(), "signal 63");
    }

    #[test]
    fn the_group_ends_with_its_owner() {
        // The background process keeps the pipe open, so the pipe's end proves its death.
        let mut group = shell("sleep 1000 & echo started; exit 0");
        let (stdout, _) = group.take_output();
        let mut stdout = stdout.unwrap();
        assert_eq!(exit_of(&mut group), Exit::Code(0));
        drop(group);
        let mut text = String::new();
        stdout.read_to_string(&mut text).unwrap();
        assert_eq!(text, "started\n");
    }

    #[test]
    fn a_pipe_is_ready_when_it_has_bytes_and_not_before() {
        let (reader, writer) = io::pipe().unwrap();
        let wants = [(reader.as_fd(), Want::Read), (writer.as_fd(), Want::Write)];
        assert_eq!(wait_ready(&wants, Some(Duration::ZERO)).unwrap(), [false, true]);
        io::Write::write_all(&mut &writer, b"x").unwrap();
        assert_eq!(wait_ready(&wants, None).unwrap(), [true, true]);
    }
}
