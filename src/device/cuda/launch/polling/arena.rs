//! Memory for the images of programs and launches, and for status pages: pinned memory of the host, which the GPU reads
//! in place. All of it is allocated at set-up, because an allocation waits for the kernels that run.
//!
//! The images of a program are kept while there is room. The images of a launch are kept until the launch is done, or,
//! if the launch was captured, until its graph is destroyed.

use std::collections::HashMap;

use super::image::{self, Blocks, PartWords};
use crate::device::HostRegion;
use crate::device::cuda::active::{Active, Mark};
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::stream::StreamHandle;
use crate::device::cuda::launch::tables::{Pinned, User};
use crate::device::cuda::memory::pieces::{FreePieces, Piece};
use crate::device::cuda::memory::unshared::Unshared;
use crate::device::records::Records;
use crate::error::{Error, Result};
use crate::sync::primitive::{Arc, Mutex, MutexGuard};

/// Bytes of the memory: enough for hundreds of programs of eight ranks.
const BYTES: usize = 8 << 20;
/// Alignment of pieces in bytes: one line of status words.
const GRAIN: usize = 64;
/// Once a program's images have this many users, those that are done are removed. Usually each stream has one launch
/// under way.
const MANY_USERS: usize = 16;
/// Once there are images of this many launches, those of launches that are done are freed.
const MANY_LAUNCHES: usize = 16;

/// The memory, and which pieces of it are in use.
#[derive(Debug)]
pub(super) struct ImageMemory {
    memory: Arc<Whole>,
    primary: Arc<Primary>,
    state: Mutex<State>,
}

/// All of the memory; status pages keep it.
#[derive(Debug)]
struct Whole(Pinned);

#[derive(Debug)]
struct State {
    free: FreePieces,
    /// Keyed by the address of a program's records, which each entry keeps alive.
    programs: HashMap<usize, ProgramImages>,
    launches: Vec<(Piece, User)>,
    /// Counts launches, to find the program that was not used for the longest time.
    clock: u64,
}

/// The images of a program's lanes.
#[derive(Debug)]
struct ProgramImages {
    _records: Arc<Records>,
    piece: Piece,
    /// Where each lane's lies, as the GPU addresses it.
    places: Vec<u64>,
    users: Vec<User>,
    used: u64,
}

impl ImageMemory {
    pub(super) fn new(primary: &Arc<Primary>) -> Result<ImageMemory> {
        let memory = Arc::new(Whole(Pinned::new(primary, BYTES)?));
        let state = State { free: FreePieces::new(BYTES), programs: HashMap::new(), launches: Vec::new(), clock: 0 };
        Ok(ImageMemory { memory, primary: Arc::clone(primary), state: Mutex::new(state) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn address(&self, piece: Piece) -> u64 {
        self.memory.0.device() + piece.offset as u64
    }

    /// A page that the host and the GPU share, zeroed: as the host's memory, and by the GPU's address. It is reused
    /// after its last handle is dropped: by then all launches that read it have ended.
    pub(super) fn page(self: &Arc<ImageMemory>, bytes: usize) -> Result<(HostRegion, u64)> {
        let _entered = self.primary.enter()?;
        let piece = self.lock().take(bytes)?;
        self.write(piece, &vec![0; bytes / size_of::<u64>()]);
        let keep = Page { piece, arena: Arc::clone(self) };
        // SAFETY: the piece is the page's alone until `keep` is dropped, which keeps the memory.
        let region = unsafe { HostRegion::new(self.memory.0.at(piece.offset), bytes, Arc::new(Unshared(keep))) };
        Ok((region, self.address(piece)))
    }

    fn write(&self, piece: Piece, words: &[u64]) {
        assert!(size_of_val(words) <= piece.bytes, "images fit what was taken for them");
        let target = self.memory.0.at(piece.offset).cast::<u64>();
        // SAFETY: the piece lies in the memory and belongs to the caller, who took it; no kernel reads it now.
        unsafe { target.copy_from_nonoverlapping(std::ptr::NonNull::from(words).cast(), words.len()) };
    }

    /// Writes the images of a launch, and calls `start` with their places and the bytes of the launch's longest fold.
    /// The context must be current. Returns the end of the launch, unless nothing was launched or it is captured.
    pub(super) fn launch(
        &self,
        (active, stream): (&Arc<Active>, StreamHandle),
        parts: &[PartWords<'_>],
        start: impl FnOnce(Blocks, u64) -> Result<()>,
    ) -> Result<Option<Arc<Mark>>> {
        let mut state = self.lock();
        state.clock += 1;
        if state.launches.len() >= MANY_LAUNCHES {
            state.forget();
        }
        let mut lanes = Vec::with_capacity(parts.len());
        let mut most_bytes = 0;
        for rank in parts {
            let program = self.program(&mut state, &rank.part.records)?;
            lanes.push(program.places.clone());
            let longest = rank.part.numbers.longest;
            most_bytes = longest.saturating_mul(u64::from(rank.part.folding.data_type.size())).max(most_bytes);
        }
        // The length does not depend on the address.
        let length = size_of_val(&image::launch(parts, &lanes, 0)?.0[..]);
        let piece = state.take(length)?;
        let written = image::launch(parts, &lanes, self.address(piece));
        let outcome = written.and_then(|(words, blocks)| {
            self.write(piece, &words);
            if blocks.count == 0 {
                return Ok(None);
            }
            User::of(active, stream, || start(blocks, most_bytes)).map(Some)
        });
        let user = match outcome {
            Ok(Some(user)) => user,
            Ok(None) => {
                state.free.give_back(piece);
                return Ok(None);
            }
            Err(error) => {
                // The kernel may have been put into the stream before the failure, so the piece is never reused.
                return Err(error);
            }
        };
        for rank in parts {
            if let Some(program) = state.programs.get_mut(&key(&rank.part.records)) {
                if program.users.len() >= MANY_USERS {
                    program.users.retain(|user| !user.is_done());
                }
                program.users.push(user.clone());
            }
        }
        let end = user.end();
        state.launches.push((piece, user));
        Ok(end)
    }

    /// The images of a program, which are made if there are none yet.
    fn program<'s>(&self, state: &'s mut State, records: &Arc<Records>) -> Result<&'s ProgramImages> {
        let clock = state.clock;
        if !state.programs.contains_key(&key(records)) {
            let images = image::lanes(records)?;
            let piece = state.take(size_of_val(&images.words[..]))?;
            self.write(piece, &images.words);
            let address = self.address(piece);
            let places = images.places.iter().map(|place| address + place).collect();
            let program =
                ProgramImages { _records: Arc::clone(records), piece, places, users: Vec::new(), used: clock };
            state.programs.insert(key(records), program);
        }
        let program = state.programs.get_mut(&key(records)).ok_or_else(|| Error::internal("it was put there"))?;
        program.used = clock;
        Ok(program)
    }
}

fn key(records: &Arc<Records>) -> usize {
    Arc::as_ptr(records).addr()
}

impl State {
    /// A piece of at least `bytes`. If none is free, frees images of launches that are done, then of programs that no
    /// launch uses.
    fn take(&mut self, bytes: usize) -> Result<Piece> {
        let bytes = bytes.max(1).next_multiple_of(GRAIN);
        if let Some(piece) = self.free.take(bytes) {
            return Ok(piece);
        }
        self.forget();
        loop {
            if let Some(piece) = self.free.take(bytes) {
                return Ok(piece);
            }
            // Programs of this very launch have the current clock, and must stay.
            let clock = self.clock;
            let idle = |program: &ProgramImages| program.used != clock && program.users.iter().all(User::is_done);
            let oldest =
                self.programs.iter().filter(|(_, program)| idle(program)).min_by_key(|(_, program)| program.used);
            let oldest = oldest.map(|(key, _)| *key);
            let Some(gone) = oldest.and_then(|oldest| self.programs.remove(&oldest)) else {
                return Err(Error::invalid_usage(format!(
                    "launches that are under way or captured take all {BYTES} bytes that a GPU has for programs: \
                    wait for some of them"
                )));
            };
            self.free.give_back(gone.piece);
        }
    }

    /// Frees the images of launches that are done.
    fn forget(&mut self) {
        let done: Vec<Piece> =
            self.launches.extract_if(.., |(_, user)| user.is_done()).map(|(piece, _)| piece).collect();
        done.into_iter().for_each(|piece| self.free.give_back(piece));
    }
}

/// What keeps a status page.
#[derive(Debug)]
struct Page {
    piece: Piece,
    arena: Arc<ImageMemory>,
}

impl Drop for Page {
    fn drop(&mut self) {
        self.arena.lock().free.give_back(self.piece);
    }
}
