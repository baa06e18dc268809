//! `cuMemAlloc` and pools: allocations cut from blocks of 2 MiB, with a gap behind each.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::backing::{Request, Watch};
use super::state::{Kind, Record};
use super::{Backing, GRANULARITY, Inner, Piece, PieceKind, Space, round_up};
use crate::driver::{CUresult, Outcome};

/// Allocations begin at multiples of this many bytes, as in life.
const UNIT: u64 = 512;
/// What stays free behind each allocation, so that an access beyond its end hits nothing.
const RED_ZONE: u64 = 512;
/// Allocations from this size on have a block of their own.
const OWN_BLOCK: u64 = 1 << 20;

/// A block of device memory, cut into allocations.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) backing: Arc<Backing>,
    owner: Owner,
    /// Addresses it takes, the gap behind it included.
    span: u64,
    /// Free ranges, by offset.
    free: BTreeMap<u64, u64>,
}

/// Who may cut from a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The context, or 0 for a pool's block.
    pub context: u64,
    /// The pool, or 0 for a context's block.
    pub pool: u64,
    /// The GPU.
    pub gpu: u32,
}

/// Whether an allocation belongs to the program or to the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// The program made it and has to free it.
    Program,
    /// The driver made it, for a module's variables.
    Driver,
}

impl Block {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (at, length) = self.free.iter().find(|(_, length)| **length >= bytes).map(|(at, length)| (*at, *length))?;
        self.free.remove(&at);
        if length > bytes {
            self.free.insert(at + bytes, length - bytes);
        }
        Some(at)
    }

    fn give_back(&mut self, offset: u64, bytes: u64) {
        let (mut offset, mut bytes) = (offset, bytes);
        if let Some(after) = self.free.remove(&(offset + bytes)) {
            bytes += after;
        }
        if let Some((before, length)) = self.free.range(..offset).next_back().map(|(at, length)| (*at, *length))
            && before + length == offset
        {
            self.free.remove(&before);
            offset = before;
            bytes += length;
        }
        self.free.insert(offset, bytes);
    }

    fn is_unused(&self) -> bool {
        self.free.get(&0) == Some(&self.backing.bytes)
    }
}

impl Space {
    /// Allocates device memory for a context or a pool.
    ///
    /// # Errors
    ///
    /// `INVALID_VALUE` for no bytes, `OUT_OF_MEMORY` when the GPU, the addresses or the records are used up.
    pub fn allocate(&self, owner: Owner, bytes: u64, whose: Whose) -> Outcome<u64> {
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let taken =
            round_up(bytes, UNIT).and_then(|bytes| bytes.checked_add(RED_ZONE)).ok_or(CUresult::OUT_OF_MEMORY)?;
        let mut inner = self.write();
        let found = if bytes < OWN_BLOCK { inner.cut(owner, taken) } else { None };
        let (block, offset) = match found {
            Some((block, offset)) => {
                // A block's first contents are fresh; what was cut from it before is not.
                let backing = &inner.blocks[&block].backing;
                backing.refresh(offset, taken.min(backing.bytes - offset))?;
                (block, offset)
            }
            None => self.new_block(&mut inner, owner, bytes, taken)?,
        };
        let backing = Arc::clone(&inner.blocks[&block].backing);
        let start = block + offset;
        let id = self.state.next_id();
        let kind = if owner.pool == 0 { Kind::Allocation } else { Kind::PoolAllocation };
        let record = Record {
            file: backing.number,
            offset,
            bytes,
            gpu: owner.gpu,
            inode: start,
            ..Record::new(kind, self.state.pid(), id)
        };
        let record = (whose == Whose::Program).then(|| self.record(record)).transpose()?;
        let piece = Piece {
            start,
            bytes,
            kind: match owner.pool {
                0 => PieceKind::Allocation { block },
                pool => PieceKind::Pooled { block, pool },
            },
            context: owner.context,
            gpu: owner.gpu,
            buffer_id: id,
            sync_memops: false,
            data: inner.addresses.data(start),
            shadow: backing.shadow_at(offset),
            defined: backing.defined_at(offset),
            record,
        };
        inner.insert(piece);
        drop(inner);
        self.state.new_generation();
        Ok(start)
    }

    /// Frees an allocation of `cuMemAlloc` or of a pool by its first address; `None` if nothing of the kind begins there.
    /// The memory itself stays mapped until [`Space::unmap_buried`].
    pub fn free(&self, start: u64) -> Option<Piece> {
        let mut guard = self.write();
        let inner = &mut *guard;
        let (PieceKind::Allocation { block } | PieceKind::Pooled { block, .. }) = inner.pieces.get(&start)?.kind else {
            return None;
        };
        let piece = inner.remove(start)?;
        if let Some(record) = piece.record {
            self.state.lock().remove(record);
        }
        let taken = (round_up(piece.bytes, UNIT)? + RED_ZONE).min(inner.blocks[&block].backing.bytes - (start - block));
        if let Some(cut) = inner.blocks.get_mut(&block) {
            cut.give_back(start - block, taken);
            if cut.is_unused()
                && let Some(empty) = inner.blocks.remove(&block)
            {
                empty.backing.drop_user();
                inner.buried.push((block, empty.span, empty.backing));
            }
        }
        drop(guard);
        self.state.new_generation();
        Some(piece)
    }

    /// Frees all that a context has allocated, opened or pinned, and its peers' rights. None of its work runs.
    pub fn drop_context(&self, context: u64) {
        let of_context: Vec<Piece> =
            self.read().pieces.values().filter(|piece| piece.context == context).cloned().collect();
        for piece in of_context {
            match piece.kind {
                PieceKind::Allocation { .. } => drop(self.free(piece.start)),
                PieceKind::Host { .. } => drop(self.host_free(piece.start)),
                PieceKind::Registered { .. } => drop(self.unregister(piece.start)),
                PieceKind::Opened { .. } => while self.close_ipc(piece.start).is_ok() {},
                PieceKind::Pooled { .. } | PieceKind::Mapped { .. } => {}
            }
        }
        self.write().peers.retain(|(a, b)| *a != context && *b != context);
    }

    /// Frees all memory of a pool.
    pub fn drop_pool(&self, pool: u64) {
        let of_pool = |piece: &&Piece| matches!(piece.kind, PieceKind::Pooled { pool: other, .. } if other == pool);
        let starts: Vec<u64> = self.read().pieces.values().filter(of_pool).map(|piece| piece.start).collect();
        for start in starts {
            self.free(start);
        }
    }

    /// Bytes of a GPU's memory: free ones, and all.
    pub fn free_and_total(&self, gpu: u32) -> (u64, u64) {
        let total = self.total(gpu);
        (total.saturating_sub(self.state.used_bytes(gpu as usize)), total)
    }

    /// All bytes of a GPU's memory.
    pub fn total(&self, gpu: u32) -> u64 {
        crate::fault::memory_limit(gpu).unwrap_or(self.machine.gpus[gpu as usize].memory_bytes)
    }

    /// Which books this machine keeps.
    pub(super) fn watch(&self) -> Watch {
        Watch { weak: self.machine.weak, defined: self.machine.checks }
    }

    fn new_block(&self, inner: &mut Inner, owner: Owner, bytes: u64, taken: u64) -> Outcome<(u64, u64)> {
        let block_bytes = round_up(bytes, GRANULARITY).ok_or(CUresult::OUT_OF_MEMORY)?;
        let request = Request { gpu: owner.gpu, bytes: block_bytes, total: self.total(owner.gpu), types: 0 };
        let backing = Backing::create(&self.state, request, self.watch())?;
        let span = block_bytes + GRANULARITY;
        let start = inner.addresses.take(span, GRANULARITY, 0).ok_or(CUresult::OUT_OF_MEMORY)?;
        backing.add_user();
        inner.addresses.map(start, block_bytes, backing.fd()).map_err(|_| CUresult::OUT_OF_MEMORY)?;
        let mut block = Block { backing, owner, span, free: BTreeMap::from([(0, block_bytes)]) };
        block.take(taken.min(block_bytes));
        inner.blocks.insert(start, block);
        Ok((start, 0))
    }
}

impl Inner {
    /// Cuts from a block that its owner has already.
    fn cut(&mut self, owner: Owner, taken: u64) -> Option<(u64, u64)> {
        let mut blocks = self.blocks.iter_mut().filter(|(_, block)| block.owner == owner);
        blocks.find_map(|(start, block)| block.take(taken).map(|offset| (*start, offset)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::{Share, State};
    use super::*;
    use crate::machine::Machine;

    fn space() -> Space {
        let machine = Arc::new(Machine::load("2-nvswitch").expect("a ready machine"));
        Space::new(machine, Arc::new(State::open(None, Share::ALL).expect("a state"))).expect("addresses")
    }

    const OWNER: Owner = Owner { context: 7, pool: 0, gpu: 0 };

    #[test]
    fn small_allocations_share_a_block_with_gaps_between() {
        let space = space();
        let first = space.allocate(OWNER, 100, Whose::Program).expect("memory");
        let second = space.allocate(OWNER, 100, Whose::Program).expect("memory");
        assert_eq!(second, first + UNIT + RED_ZONE);
        assert_eq!(first % GRANULARITY, 0);
        assert!(space.piece(first + 100).is_none(), "bounds are exact");
        assert_eq!(space.state.used_bytes(0), GRANULARITY);
        assert!(space.free(first + 1).is_none(), "not the first address");
        assert!(space.free(first).is_some() && space.free(first).is_none());
        assert!(space.free(second).is_some());
        assert_eq!(space.state.used_bytes(0), 0);
        space.unmap_buried();
    }

    #[test]
    fn a_freed_address_has_another_buffer_id_when_it_is_used_again() {
        let space = space();
        let keep = space.allocate(OWNER, 64, Whose::Program).expect("memory");
        let first = space.allocate(OWNER, 64, Whose::Program).expect("memory");
        let id = space.piece(first).expect("a piece").buffer_id;
        space.free(first);
        let again = space.allocate(OWNER, 64, Whose::Program).expect("memory");
        assert_eq!(again, first);
        assert_ne!(space.piece(again).expect("a piece").buffer_id, id);
        space.free(keep);
    }

    #[test]
    fn memory_runs_out_and_comes_back() {
        let space = space();
        let total = space.total(1);
        let owner = Owner { gpu: 1, ..OWNER };
        let all = space.allocate(owner, total, Whose::Program).expect("all of it");
        assert_eq!(space.allocate(owner, 1, Whose::Program), Err(CUresult::OUT_OF_MEMORY));
        assert_eq!(space.free_and_total(1), (0, total));
        space.free(all);
        assert!(space.allocate(owner, 1, Whose::Program).is_ok());
        assert_eq!(space.allocate(OWNER, u64::MAX, Whose::Program), Err(CUresult::OUT_OF_MEMORY));
        assert_eq!(space.allocate(OWNER, 0, Whose::Program), Err(CUresult::INVALID_VALUE));
    }

    #[test]
    fn a_kernel_that_stores_is_a_step_of_the_machine() {
        // Else two kernels that answer each other's words, and sleep between, would be taken for a deadlock.
        let space = Arc::new(space());
        let view = super::super::View::new(Arc::clone(&space), OWNER.context, 0);
        let (moves, changes) = (space.state.moves(), space.state.changes());
        assert_eq!(crate::simt::GlobalMemory::bump(&view), changes + 1);
        assert!(space.state.moves() > moves);
    }

    #[test]
    fn fresh_memory_is_poison() {
        let space = space();
        let start = space.allocate(OWNER, 32, Whose::Program).expect("memory");
        let mut bytes = [0; 32];
        space.read_for_test(start, &mut bytes);
        assert!(bytes.iter().all(|byte| *byte == bytes[0] && *byte != 0));
    }
}
