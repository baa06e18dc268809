//! Tables of steps and operands that are too large for the parameter of a launch. They lie in pinned host memory, which
//! the kernel reads in place.
//!
//! A table is free again when its launch is done. The table of a captured launch belongs to its graph, which may run
//! any number of times, until the graph is destroyed.

use std::ptr::NonNull;

use cudarc::driver::sys::CUdeviceptr;

use super::arguments::{self, Arguments, FoldOperand, FoldStep};
use super::graphs::GraphKeep;
use crate::device::Event;
use crate::device::cuda::active::{Active, Mark};
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::result::call;
use crate::device::cuda::driver::stream::StreamHandle;
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard, Weak};

/// Bytes of a table: a step of some 2,000 sources and as many targets.
const TABLE_BYTES: usize = 64 << 10;
const TABLE_WORDS: usize = TABLE_BYTES / size_of::<u64>();
/// The most launches with tables that may be under way or captured at the same time.
const MOST_TABLES: usize = 256;

/// The tables of a context. The first is made at set-up; another is made when all are in use. That waits for kernels
/// that run, which is safe here because these are copies and folds, which wait for nobody.
#[derive(Debug)]
pub(in crate::device::cuda) struct Tables {
    tables: Mutex<Vec<Table>>,
}

#[derive(Debug)]
struct Table {
    memory: Pinned,
    user: User,
}

/// Who needs the content of a table.
#[derive(Debug, Clone)]
pub(in crate::device::cuda) enum User {
    Nobody,
    /// A launch, until the mark is done.
    Launch(Arc<Mark>),
    /// A graph, until the reference is dead.
    Graph(Weak<GraphKeep>),
}

impl User {
    /// Calls `start`, which puts a launch into `stream`, and returns the user of what the launch reads: the launch
    /// until it is done or, if it was captured, its graph until that is destroyed. The context must be current.
    pub(in crate::device::cuda) fn of(
        active: &Arc<Active>,
        stream: StreamHandle,
        start: impl FnOnce() -> Result<()>,
    ) -> Result<User> {
        match stream.capture(active.primary())? {
            None => {
                start()?;
                Ok(User::Launch(active.mark(stream)?))
            }
            Some(capture) => {
                // The graph takes its share first, so that nothing has been captured if that fails.
                let user = User::Graph(active.keep_for_graph(capture, Default::default())?);
                start()?;
                Ok(user)
            }
        }
    }

    /// The end of a launch.
    pub(in crate::device::cuda) fn end(&self) -> Option<Arc<Mark>> {
        match self {
            User::Launch(mark) => Some(Arc::clone(mark)),
            User::Nobody | User::Graph(_) => None,
        }
    }

    /// Whether the content is needed no more.
    pub(in crate::device::cuda) fn is_done(&self) -> bool {
        match self {
            User::Nobody => true,
            User::Launch(mark) => matches!(mark.is_done(), Ok(true)),
            User::Graph(keep) => keep.strong_count() == 0,
        }
    }
}

impl Tables {
    pub(in crate::device::cuda) fn new(primary: &Arc<Primary>) -> Result<Tables> {
        let first = Table { memory: Pinned::new(primary, TABLE_BYTES)?, user: User::Nobody };
        Ok(Tables { tables: Mutex::new(vec![first]) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Table>> {
        self.tables.lock()
    }

    /// Writes the tables, and calls `start` with the arguments that name them. The context must be current.
    pub(in crate::device::cuda) fn launch(
        &self,
        active: &Arc<Active>,
        stream: StreamHandle,
        (steps, operands): (&[FoldStep], &[FoldOperand]),
        start: impl FnOnce(Arguments) -> Result<()>,
    ) -> Result<()> {
        let words = arguments::table_words(steps, operands);
        if words > TABLE_WORDS {
            return Err(Error::internal(format!("a launch with a table of {words} words; {TABLE_WORDS} fit")));
        }
        let mut tables = self.lock();
        let index = free_table(&mut tables, active.primary())?;
        let table = &mut tables[index];
        arguments::write_tables(steps, operands, &mut table.memory.words()[..words]);
        let arguments = Arguments::apart(table.memory.device, steps.len());
        table.user = User::of(active, stream, || start(arguments))?;
        Ok(())
    }
}

/// The place of a table that is not in use; makes one if there is none.
fn free_table(tables: &mut Vec<Table>, primary: &Arc<Primary>) -> Result<usize> {
    let is_free = |table: &Table| table.user.is_done();
    if let Some(index) = tables.iter().position(is_free) {
        return Ok(index);
    }
    if tables.len() == MOST_TABLES {
        let message = format!("{MOST_TABLES} launches for many ranks are under way or captured: wait for some of them");
        return Err(Error::invalid_usage(message));
    }
    tables.push(Table { memory: Pinned::new(primary, TABLE_BYTES)?, user: User::Nobody });
    Ok(tables.len() - 1)
}

/// Pinned host memory, which the GPU can read and write; zeroed when new.
#[derive(Debug)]
pub(in crate::device::cuda) struct Pinned {
    primary: Arc<Primary>,
    host: NonNull<u64>,
    device: CUdeviceptr,
    bytes: usize,
}

// SAFETY: the memory is ours; it is reached by `&mut`, or by pointers whose users keep their own order.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`
const PORTABLE_MAPPED: u32 = 1 | 2;

impl Pinned {
    /// Call it during set-up: the allocation waits for kernels that run.
    pub(in crate::device::cuda) fn new(primary: &Arc<Primary>, bytes: usize) -> Result<Pinned> {
        let _entered = primary.enter()?;
        let mut host = std::ptr::null_mut();
        // SAFETY: the place is ours, and the context is current.
        let made = unsafe { call!(primary, cuMemHostAlloc(&raw mut host, bytes, PORTABLE_MAPPED)) };
        made.map_err(|failure| primary.error(failure))?;
        let host = NonNull::new(host.cast()).ok_or_else(|| Error::internal("pinned memory at address 0"))?;
        let mut memory = Pinned { primary: Arc::clone(primary), host, device: 0, bytes };
        // SAFETY: the memory was mapped for the GPU, as its flags say, and the place is ours.
        let asked =
            unsafe { call!(primary, cuMemHostGetDevicePointer(&raw mut memory.device, host.as_ptr().cast(), 0)) };
        asked.map_err(|failure| primary.error(failure))?;
        // SAFETY: as many bytes were allocated, and nobody else has them.
        unsafe { host.cast::<u8>().write_bytes(0, bytes) };
        Ok(memory)
    }

    fn words(&mut self) -> &mut [u64] {
        let words = self.bytes / size_of::<u64>();
        // SAFETY: the memory is ours, was filled when it was made, and no kernel reads it now: see `User`.
        unsafe { std::slice::from_raw_parts_mut(self.host.as_ptr(), words) }
    }

    /// Where it begins, as the GPU addresses it.
    pub(in crate::device::cuda) fn device(&self) -> u64 {
        self.device
    }

    /// The byte at `offset`.
    pub(in crate::device::cuda) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.bytes, "byte {offset} of {} pinned ones", self.bytes);
        // SAFETY: inside of the allocation, by the assertion.
        unsafe { self.host.cast::<u8>().add(offset) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: the memory is ours; the driver waits for kernels that read it.
        self.primary.give_back(|| unsafe { call!(self.primary, cuMemFreeHost(self.host.as_ptr().cast())) });
    }
}
