//! The state that all processes of a machine share: a file in the machine's folder, mapped by each of them.
//!
//! It holds one lock that survives the death of its owner, counters that sleepers wait on, a line per GPU (memory in
//! use, whose turn it is), a line per process, and a table of records: files, allocations, who holds which file, and
//! every object that a program has made and not yet destroyed. `vcuda run` reads the leaks from that table.
//!
//! Without a folder (`VCUDA_STATE` is not set) the state is an anonymous file: the process is alone on its machine.
//!
//! Hosts whose memory crosses a fabric share one state, so that they have one clock and one set of numbers. Each has its
//! own lines of GPUs there ([`Share`]). The records of files and of who holds them name a GPU by its line; all others
//! name it by its number on their host.

mod lock;
mod records;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

pub use lock::Guard;
pub use records::{Kind, Record, RecordId};

use lock::RobustLock;

/// GPUs of a machine, at most.
pub const MAX_GPUS: usize = LINES as usize;
const LINES: u32 = 64;
/// Processes of a machine that live at one time, at most.
pub const MAX_PROCESSES: usize = 256;
/// Records: files, allocations and objects of all processes, at most.
pub const MAX_RECORDS: usize = 65_536;
/// What a process publishes of its waits, at most.
pub const MAX_WAIT_TEXT: usize = 8192;

/// Version of the layout: a folder made by another one is refused.
const LAYOUT: u64 = 0x7663_7564_6100_0003;

/// Flag of a `File` record: a descriptor or key of it has been given away.
pub(crate) const FLAG_EXPORTED: u64 = 1 << 32;

/// The part of a state's lines of GPUs that is one host's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    first: u32,
    lines: u32,
}

impl Share {
    /// The state is one host's alone.
    pub const ALL: Share = Share { first: 0, lines: LINES };

    /// The part of one of several hosts.
    ///
    /// # Errors
    ///
    /// If the host has more GPUs than there are lines for each.
    pub fn of_host(host: u32, hosts: u32, gpus: usize) -> io::Result<Share> {
        let lines = Share::ALL.lines / hosts.max(1);
        if gpus > lines as usize || host >= hosts {
            return Err(io::Error::other(format!(
                "{gpus} GPUs on host {host} of {hosts} that share memory: {lines} each"
            )));
        }
        Ok(Share { first: host * lines, lines })
    }
}

/// Begins the numbers of GPUs of other hosts, as a process sees them: above the numbers of all GPUs that it can have.
const FOREIGN: u32 = 1 << 16;

/// The mapped state of one machine.
#[derive(Debug)]
pub struct State {
    folder: Option<PathBuf>,
    share: Share,
    shared: NonNull<Shared>,
    slot: usize,
    pid: u32,
}

// SAFETY: `shared` points at a mapping that lives as long as the process; all its fields are atomics, or are touched
// under its lock only.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Sync for State {}

/// The file's layout. Plain fields are touched under `lock` only.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Shared {
    layout: AtomicU64,
    lock: RobustLock,
    /// Counts visible changes of memory; sleepers wait on its low half.
    changes: AtomicU64,
    /// Counts changes of who may touch which memory: cached extents are stale when it differs.
    generation: AtomicU64,
    /// Counts steps of anything: a machine on which it stands still is stuck.
    moves: AtomicU64,
    next_id: AtomicU64,
    /// Not 0 if a thread has gone to sleep in [`State::sleep_until_change`] since all were woken last. With 0, a change
    /// costs no call of the kernel.
    sleepers: AtomicU64,
    gpus: [GpuLine; MAX_GPUS],
    processes: [ProcessLine; MAX_PROCESSES],
    records: records::Table,
}

/// What processes share about a GPU.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct GpuLine {
    /// Slot + 1 of the process whose kernels run; 0 = nobody's.
    owner: AtomicU32,
    reserved: AtomicU32,
    used_bytes: AtomicU64,
    /// One bit per process slot that has kernels to run.
    wanted: [AtomicU64; MAX_PROCESSES / 64],
}

/// What a process publishes about itself.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct ProcessLine {
    pid: AtomicU32,
    wait_bytes: AtomicU32,
    wait_text: [AtomicU8; MAX_WAIT_TEXT],
}

impl State {
    /// Opens the state of `folder`, making it where it is not there yet; with no folder, a state of this process alone.
    ///
    /// # Errors
    ///
    /// If the file cannot be made or mapped, was made by another version, or too many processes are on the machine.
    pub fn open(folder: Option<&Path>, share: Share) -> io::Result<State> {
        let file = match folder {
            Some(folder) => {
                File::options().read(true).write(true).create(true).truncate(false).open(folder.join("state"))?
            }
            None => File::from(anonymous_file("vcuda-state")?),
        };
        let shared = map_state(&file)?;
        let folder = folder.map(Path::to_owned);
        let mut state = State { folder, share, shared, slot: usize::MAX, pid: std::process::id() };
        state.slot = state.claim_slot()?;
        Ok(state)
    }

    /// Opens the state of `folder` to look at it: takes no place among the processes.
    ///
    /// # Errors
    ///
    /// As [`State::open`].
    pub fn inspect(folder: &Path) -> io::Result<State> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(folder.join("state"))?;
        let shared = map_state(&file)?;
        let (folder, share) = (Some(folder.to_owned()), Share::ALL);
        Ok(State { folder, share, shared, slot: usize::MAX, pid: std::process::id() })
    }

    /// The machine's folder, if there is one.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The lock over the table of records.
    pub fn lock(&self) -> Guard<'_> {
        Guard::new(self.shared())
    }

    /// A number that no other object of the machine has.
    pub fn next_id(&self) -> u64 {
        self.shared().next_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// How often memory has changed.
    pub fn changes(&self) -> u64 {
        // Acquire: pairs with the release of `bump`, so that whoever sees the count sees the memory.
        self.shared().changes.load(Ordering::Acquire)
    }

    /// Counts a change of memory, wakes those who sleep until there is one, and returns the new count.
    pub fn bump(&self) -> u64 {
        let changes = &self.shared().changes;
        // SeqCst pairs with the sleeper's: it announces itself before it looks at the count. With less, both could miss.
        let count = changes.fetch_add(1, Ordering::SeqCst) + 1;
        let sleepers = &self.shared().sleepers;
        // One call wakes all who sleep: the changes that follow, until somebody sleeps again, are free of it.
        if sleepers.load(Ordering::SeqCst) != 0 && sleepers.swap(0, Ordering::SeqCst) != 0 {
            // A thread that announced itself after the count above has seen that count, and is about to sleep until the next
            // one. The flag is unset now, so the next one would not wake it: therefore this counts once more. If this thread
            // is killed before it wakes them, their time-outs end their sleep.
            changes.fetch_add(1, Ordering::SeqCst);
            let word = changes.as_ptr().cast::<u32>();
            // SAFETY: the address of a live word in a shared mapping; FUTEX_WAKE reads and writes nothing of it.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
        }
        count
    }

    /// Sleeps until memory has changed since `seen`, or for `timeout`.
    pub fn sleep_until_change(&self, seen: u64, timeout: Duration) {
        let shared = self.shared();
        shared.sleepers.store(1, Ordering::SeqCst);
        if shared.changes.load(Ordering::SeqCst) == seen {
            let low = u32::try_from(seen & u64::from(u32::MAX)).unwrap_or(0);
            let wait = libc::timespec {
                tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
                tv_nsec: timeout.subsec_nanos().into(),
            };
            let word = shared.changes.as_ptr().cast::<u32>();
            // SAFETY: the word lives in a shared mapping and the time on this stack; the kernel only reads both.
            unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, low, &raw const wait) };
        }
    }

    /// How often the rights to memory have changed.
    pub fn generation(&self) -> u64 {
        self.shared().generation.load(Ordering::Acquire)
    }

    /// Makes all cached extents of all processes stale.
    pub fn new_generation(&self) {
        self.shared().generation.fetch_add(1, Ordering::AcqRel);
    }

    /// How many steps the machine has made.
    pub fn moves(&self) -> u64 {
        self.shared().moves.load(Ordering::Relaxed)
    }

    /// Counts a step: the machine is not stuck.
    pub fn moved(&self) {
        self.shared().moves.fetch_add(1, Ordering::Relaxed);
    }

    /// The line of a GPU of this host.
    pub(crate) fn line_of(&self, gpu: u32) -> u32 {
        self.share.first + gpu
    }

    /// The GPU of a line, as this host's processes number it. One of another host has a number that no GPU here has.
    pub(crate) fn gpu_of(&self, line: u32) -> u32 {
        let is_here = (self.share.first..self.share.first + self.share.lines).contains(&line);
        if is_here { line - self.share.first } else { FOREIGN + line }
    }

    /// Whether a GPU is another host's.
    pub(crate) fn is_foreign(gpu: u32) -> bool {
        gpu >= FOREIGN
    }

    fn gpu_line(&self, gpu: usize) -> &GpuLine {
        &self.shared().gpus[self.share.first as usize + gpu]
    }

    /// Bytes of the GPU's memory that are in use, by all processes.
    pub fn used_bytes(&self, gpu: usize) -> u64 {
        self.gpu_line(gpu).used_bytes.load(Ordering::Relaxed)
    }

    /// Takes `bytes` of the GPU of a line that has `total`; false if they are not there.
    pub(crate) fn take_bytes(&self, line: u32, bytes: u64, total: u64) -> bool {
        let used = &self.shared().gpus[line as usize].used_bytes;
        let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= total);
        used.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).is_ok()
    }

    pub(crate) fn return_bytes(&self, line: u32, bytes: u64) {
        self.shared().gpus[line as usize].used_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }

    /// Asks for the GPU's turn; true if this process has it.
    pub fn want_turn(&self, gpu: usize) -> bool {
        let line = self.gpu_line(gpu);
        line.wanted[self.slot / 64].fetch_or(1 << (self.slot % 64), Ordering::AcqRel);
        let mine = self.slot_word();
        match line.owner.compare_exchange(0, mine, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(owner) if owner == mine => true,
            Err(owner) => {
                if !self.is_alive(owner) {
                    // The owner died in its turn: whoever notices first takes over.
                    return line.owner.compare_exchange(owner, mine, Ordering::AcqRel, Ordering::Acquire).is_ok();
                }
                false
            }
        }
    }

    /// Whether the turn is this process's.
    pub fn owns_turn(&self, gpu: usize) -> bool {
        self.gpu_line(gpu).owner.load(Ordering::Acquire) == self.slot_word()
    }

    /// Whether another process, dead or alive, has asked for the turn.
    pub fn others_want(&self, gpu: usize) -> bool {
        let wanted = &self.gpu_line(gpu).wanted;
        wanted.iter().enumerate().any(|(index, bits)| {
            let own = if index == self.slot / 64 { 1 << (self.slot % 64) } else { 0 };
            bits.load(Ordering::Acquire) & !own != 0
        })
    }

    /// Gives the turn to the next process that wants it; false if nobody else does.
    pub fn pass_turn(&self, gpu: usize) -> bool {
        let line = self.gpu_line(gpu);
        for step in 1..MAX_PROCESSES {
            let slot = (self.slot + step) % MAX_PROCESSES;
            let wants = line.wanted[slot / 64].load(Ordering::Acquire) >> (slot % 64) & 1 == 1;
            let word = u32::try_from(slot + 1).unwrap_or(u32::MAX);
            if wants && !self.is_alive(word) {
                // It died in want of the turn; whoever has its place next asks anew.
                line.wanted[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::AcqRel);
            } else if wants {
                let mine = self.slot_word();
                let passed = line.owner.compare_exchange(mine, word, Ordering::AcqRel, Ordering::Relaxed).is_ok();
                self.bump();
                return passed;
            }
        }
        false
    }

    /// This process has no more kernels on the GPU.
    pub fn leave_turn(&self, gpu: usize) {
        let line = self.gpu_line(gpu);
        line.wanted[self.slot / 64].fetch_and(!(1 << (self.slot % 64)), Ordering::AcqRel);
        if line.owner.load(Ordering::Acquire) == self.slot_word() && !self.pass_turn(gpu) {
            line.owner.store(0, Ordering::Release);
            self.bump();
        }
    }

    /// Publishes what this process waits for; an empty text says that it waits for nothing.
    pub fn publish_waits(&self, text: &str) {
        let _guard = self.lock();
        let bytes = text.len().min(MAX_WAIT_TEXT);
        let line = &self.shared().processes[self.slot];
        for (place, byte) in line.wait_text.iter().zip(&text.as_bytes()[..bytes]) {
            place.store(*byte, Ordering::Relaxed);
        }
        self.shared().processes[self.slot].wait_bytes.store(u32::try_from(bytes).unwrap_or(0), Ordering::Release);
    }

    /// What the other live processes have published of their waits: pid and text.
    pub fn waits_of_others(&self) -> Vec<(u32, String)> {
        let _guard = self.lock();
        let mut waits = Vec::new();
        for (slot, process) in self.shared().processes.iter().enumerate() {
            let pid = process.pid.load(Ordering::Acquire);
            let bytes = process.wait_bytes.load(Ordering::Acquire) as usize;
            if slot == self.slot || pid == 0 || bytes == 0 || !pid_is_alive(pid) {
                continue;
            }
            let places = &process.wait_text[..bytes.min(MAX_WAIT_TEXT)];
            let text: Vec<u8> = places.iter().map(|place| place.load(Ordering::Relaxed)).collect();
            waits.push((pid, String::from_utf8_lossy(&text).into_owned()));
        }
        waits
    }

    /// The pid of every process that has a place on the machine, dead or alive.
    pub fn processes(&self) -> Vec<u32> {
        let pids = self.shared().processes.iter().map(|line| line.pid.load(Ordering::Acquire));
        pids.filter(|pid| *pid != 0).collect()
    }

    /// What dead processes have left: objects of their programs that nobody destroyed.
    pub fn leaks(&self) -> Vec<Record> {
        let records = self.lock().all();
        let left = records.into_iter().map(|(_, record)| record);
        left.filter(|record| record.kind().is_some_and(Kind::is_programs_own) && !pid_is_alive(record.pid)).collect()
    }

    /// Takes away what dead processes have left, their hold on memory included; returns what [`State::leaks`] lists.
    pub fn reap(&self) -> Vec<Record> {
        let leaks = self.leaks();
        self.reap_memory();
        let mut guard = self.lock();
        for (id, record) in guard.all() {
            if record.kind() != Some(Kind::File) && !pid_is_alive(record.pid) {
                guard.remove(id);
            }
        }
        leaks
    }

    /// Ends the hold of dead processes on memory; their objects stay in the list of leaks.
    pub(crate) fn reap_memory(&self) {
        let mut guard = self.lock();
        for (id, record) in guard.all() {
            if record.kind() == Some(Kind::Hold) && !pid_is_alive(record.pid) {
                guard.remove(id);
                self.drop_file_without_holders(&mut guard, record.file);
            }
        }
        drop(guard);
        self.new_generation();
    }

    /// Gives up the memory of a file that no process holds. Its name stays where a descriptor may still be about.
    pub(crate) fn drop_file_without_holders(&self, guard: &mut Guard<'_>, file: u64) {
        if guard.find(Kind::Hold, |hold| hold.file == file).is_some() {
            return;
        }
        let Some((id, record)) = guard.find(Kind::File, |record| record.file == file && record.references != 0) else {
            return;
        };
        self.return_bytes(record.gpu, record.bytes);
        guard.change(id, |record| record.references = 0);
        if record.flags & FLAG_EXPORTED == 0 {
            guard.remove(id);
            if let Some(path) = self.file_path(file) {
                // Whoever cleans the folder removes what cannot be removed now.
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Where the file of device memory with this number lies; `None` on a machine without a folder.
    pub(crate) fn file_path(&self, file: u64) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(format!("memory.{file}")))
    }

    /// This process's id, as records name it.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    fn shared(&self) -> &Shared {
        // SAFETY: mapped at opening with the whole layout, never unmapped; plain fields inside are `UnsafeCell`s.
        unsafe { self.shared.as_ref() }
    }

    fn slot_word(&self) -> u32 {
        u32::try_from(self.slot + 1).unwrap_or(u32::MAX)
    }

    fn is_alive(&self, slot_word: u32) -> bool {
        let Some(line) = self.shared().processes.get((slot_word as usize).wrapping_sub(1)) else { return false };
        let pid = line.pid.load(Ordering::Acquire);
        pid != 0 && pid_is_alive(pid)
    }

    fn claim_slot(&self) -> io::Result<usize> {
        let guard = self.lock();
        let lines = &self.shared().processes;
        let free = |line: &ProcessLine| {
            let pid = line.pid.load(Ordering::Acquire);
            pid == 0 || (!pid_is_alive(pid) && !guard.owns_records(pid))
        };
        let slot = lines.iter().position(free).ok_or_else(|| {
            io::Error::other(format!("{MAX_PROCESSES} processes are on this machine: there is room for no more"))
        })?;
        lines[slot].wait_bytes.store(0, Ordering::Relaxed);
        lines[slot].pid.store(self.pid, Ordering::Release);
        for gpu in &self.shared().gpus {
            gpu.wanted[slot / 64].fetch_and(!(1 << (slot % 64)), Ordering::AcqRel);
        }
        Ok(slot)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // The mapping stays: other threads may hold copies of pointers into it until the process ends.
        if self.slot != usize::MAX {
            self.shared().processes[self.slot].wait_bytes.store(0, Ordering::Release);
        }
    }
}

/// Whether a process with this id runs (a dead one whose parent has not looked yet does not).
pub(crate) fn pid_is_alive(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(text) => !text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with(['Z', 'X'])),
        Err(_) => false,
    }
}

/// A file in memory that nobody else can open by a name.
pub(crate) fn anonymous_file(name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name).map_err(io::Error::other)?;
    // SAFETY: a terminated name and no other pointer.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Maps the state; the first to come lays it out, under a lock on the file.
fn map_state(file: &File) -> io::Result<NonNull<Shared>> {
    let bytes = size_of::<Shared>();
    // SAFETY: flock takes no pointers.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let fresh = file.metadata()?.len() == 0;
    if fresh {
        file.set_len(bytes as u64)?;
    }
    if file.metadata()?.len() != bytes as u64 {
        return Err(io::Error::other("the state of this folder was made by another version of vcuda"));
    }
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new shared mapping of a file of exactly this length, at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    let shared = NonNull::new(address.cast::<Shared>()).ok_or_else(|| io::Error::other("mapped at address 0"))?;
    // SAFETY: zeroed or laid out, and every field is valid when zero; the mapping is never taken away.
    let view = unsafe { shared.as_ref() };
    if fresh {
        view.lock.initialise()?;
        view.layout.store(LAYOUT, Ordering::Release);
    } else if view.layout.load(Ordering::Acquire) != LAYOUT {
        return Err(io::Error::other("the state of this folder was made by another version of vcuda"));
    }
    // SAFETY: flock takes no pointers.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
    Ok(shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_gpu_are_taken_until_they_are_gone() {
        let state = State::open(None, Share::ALL).expect("an anonymous state");
        assert!(state.take_bytes(0, 60, 100));
        assert!(!state.take_bytes(0, 60, 100));
        state.return_bytes(0, 60);
        assert!(state.take_bytes(0, 100, 100));
        assert_eq!(state.used_bytes(0), 100);
    }

    #[test]
    fn the_turn_is_nobodys_once_its_owner_leaves() {
        let state = State::open(None, Share::ALL).expect("an anonymous state");
        assert!(state.want_turn(3));
        assert!(state.want_turn(3));
        assert!(!state.pass_turn(3), "nobody else wants it");
        state.leave_turn(3);
        assert_eq!(state.shared().gpus[3].owner.load(Ordering::Relaxed), 0);
    }
}
