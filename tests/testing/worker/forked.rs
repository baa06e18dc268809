//! What a worker does in children that it forks: nothing at all, a communicator of their own, or what they must not do
//! with its own. Used by `worker.rs`.

use std::path::Path;
use std::time::Duration;

use rsccl::error::Kind;
use rsccl::internals::sys::{clock, poller};
use rsccl::store::{AbortFlag, FileStore, Store, TcpStore, Wait, share_id};
use rsccl::types::{Rank, World};
use rsccl::{Communicator, Config, Error, ReduceOp, Result};

/// Forks a child that does nothing until it is killed, with the group of this process.
pub(super) fn idle() {
    if fork() == 0 {
        loop {
            // SAFETY: a plain call.
            unsafe { libc::pause() };
        }
    }
}

/// The same by a bare `clone`, of which the C library knows nothing.
pub(super) fn bare_clone() {
    let no_stack: usize = 0;
    // SAFETY: as `fork`: the child has a copy of the memory and of this stack.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, no_stack, no_stack, no_stack, no_stack) };
    assert!(child >= 0, "clone: {}", std::io::Error::last_os_error());
    if child == 0 {
        loop {
            // SAFETY: a plain call.
            unsafe { libc::pause() };
        }
    }
}

/// The children of one job that is to succeed in each of them.
pub(super) struct Children<'a> {
    folder: &'a Path,
    numbers: Vec<libc::pid_t>,
}

impl<'a> Children<'a> {
    /// None yet; what they say of their failures they leave in `folder`.
    pub(super) fn new(folder: &'a Path) -> Children<'a> {
        Children { folder, numbers: Vec::new() }
    }

    /// Forks one more, which runs `body` and ends.
    pub(super) fn fork(&mut self, body: impl FnOnce() -> Result<()>) {
        let number = self.numbers.len();
        let child = fork();
        if child != 0 {
            self.numbers.push(child);
            return;
        }
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        let why = match done {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("it panicked".to_owned()),
        };
        // Not on a standard stream, whose lock a thread of the parent may have.
        if let Some(why) = &why {
            drop(std::fs::write(self.folder.join(format!("child-{number}")), why));
        }
        // SAFETY: ends the process; destructors and buffers are the parent's.
        unsafe { libc::_exit(i32::from(why.is_some())) }
    }

    /// Waits for all; the first failure.
    pub(super) fn reap(self) -> Result<()> {
        let until = clock::now() + PATIENCE;
        let mut failed = Ok(());
        for (number, child) in self.numbers.into_iter().enumerate() {
            let mut status = 0;
            // SAFETY: the child is ours, and is waited for here only.
            while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
                if clock::now() > until {
                    // SAFETY: as above: it is not reaped.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                }
                poller::pause(Duration::from_millis(1));
            }
            if status != 0 && failed.is_ok() {
                let told = std::fs::read_to_string(self.folder.join(format!("child-{number}")));
                let told = told.unwrap_or_else(|_| "it said nothing".to_owned());
                failed = Err(Error::internal(format!("child {number} ended with status {status:#x}: {told}")));
            }
        }
        failed
    }
}

/// Far above what a child takes, below the patience of the test.
const PATIENCE: Duration = Duration::from_secs(25);

fn fork() -> libc::pid_t {
    // SAFETY: the C library keeps its allocator usable in the child; what the child does is the test.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork: {}", std::io::Error::last_os_error());
    child
}

/// `count` children, which make a communicator among themselves; before each fork this process does `between`.
pub(super) fn workers(count: u32, folder: &Path, between: impl Fn() -> Result<()>) -> Result<()> {
    let mut children = Children::new(folder);
    for rank in 0..count {
        between()?;
        children.fork(|| meet(&FileStore::open(folder, &soon())?, rank, count));
    }
    children.reap()
}

/// The same, over a store that this process serves and has used.
pub(super) fn workers_over_tcp(count: u32, folder: &Path) -> Result<()> {
    let store = TcpStore::serve("127.0.0.1:0".parse().expect("an address"), &rsccl::store::StoreConfig::default())?;
    store.set("before", b"the fork", &soon())?;
    let mut children = Children::new(folder);
    for rank in 0..count {
        children.fork(|| {
            assert_eq!(store.get("before", &soon())?, b"the fork");
            meet(&store, rank, count)
        });
    }
    children.reap()?;
    store.get("before", &soon()).map(drop)
}

/// A child that is a server of forks: it has a communicator, then forks workers, then has one again.
pub(super) fn server(count: u32, folder: &Path) -> Result<()> {
    let mut children = Children::new(folder);
    children.fork(|| {
        rsccl::local::run(2, |comm| comm.barrier())?;
        let inner = folder.join("inner");
        std::fs::create_dir(&inner).map_err(|error| Error::internal(error.to_string()))?;
        workers(count, &inner, || rsccl::local::run(2, |comm| comm.barrier()).map(drop))?;
        rsccl::local::run(2, |comm| comm.barrier()).map(drop)
    });
    children.reap()
}

/// Joins a world that meets in `store`, and uses it: a sum, one in long buffers, a child.
fn meet(store: &dyn Store, rank: u32, size: u32) -> Result<()> {
    let config = Config::default();
    let id =
        share_id(store, "id", World { rank: Rank::new(rank), size }, || Communicator::unique_id(&config), &soon())?;
    let comm = Communicator::init(&id, rank, size, &config)?;
    sums(&comm)?;
    let child = comm.split(Some(rank % 2), 0)?.expect("a color was passed");
    sums(&child)?;
    child.finalize()?;
    comm.finalize()
}

fn sums(comm: &Communicator) -> Result<()> {
    for length in [1, 100_000] {
        let mut values = vec![comm.rank() + 1; length];
        comm.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
        let sum = comm.size() * (comm.size() + 1) / 2;
        assert!(values.iter().all(|value| *value == sum), "{:?}", values[0]);
    }
    Ok(())
}

/// Whether what a child does with its parent's communicator is refused.
pub(super) fn is_refused(comm: &Communicator) -> bool {
    comm.abort("by a child");
    let refused = |error: &Error| error.kind() == Kind::InvalidUsage && error.message().contains("forked");
    comm.barrier().is_err_and(|error| refused(&error)) && comm.async_error().is_some_and(|error| refused(&error))
}

fn soon() -> Wait {
    Wait::new(Duration::from_secs(20), &AbortFlag::new())
}
