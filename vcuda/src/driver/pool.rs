//! Pools: stream-ordered memory, which cannot be exported.

use std::collections::HashMap;

use super::{CUresult, Driver, Outcome};
use crate::schedule::Work;
use crate::space::state::{Kind, Record, RecordId};
use crate::space::{Owner, PieceKind, Whose};

use super::vmm::CreateRequest;

/// The pools of a process.
#[derive(Debug, Default)]
pub(super) struct Pools {
    pools: HashMap<u64, Pool>,
    /// Default pool by GPU.
    default: HashMap<u32, u64>,
    /// Pool in use by GPU, where it is not the default one.
    used: HashMap<u32, u64>,
}

#[derive(Debug)]
struct Pool {
    gpu: u32,
    record: Option<RecordId>,
    /// Attributes that were set.
    attributes: HashMap<i32, u64>,
    used_bytes: u64,
    used_high: u64,
}

/// `CU_MEMPOOL_ATTR_*`: release threshold, then counters.
const RELEASE_THRESHOLD: i32 = 4;

impl Driver {
    /// `cuDeviceGetDefaultMemPool`.
    pub fn default_pool(&self, ordinal: i32) -> Outcome<u64> {
        let gpu = self.gpu(ordinal)?;
        Ok(self.default_pool_of(gpu))
    }

    fn default_pool_of(&self, gpu: u32) -> u64 {
        let mut tables = self.tables();
        if let Some(pool) = tables.pools.default.get(&gpu) {
            return *pool;
        }
        let handle = self.engine.lock().new_handle();
        tables.pools.default.insert(gpu, handle);
        tables.pools.pools.insert(handle, Pool::new(gpu, None));
        handle
    }

    /// `cuDeviceGetMemPool`.
    pub fn device_pool(&self, ordinal: i32) -> Outcome<u64> {
        let gpu = self.gpu(ordinal)?;
        let used = self.tables().pools.used.get(&gpu).copied();
        Ok(used.unwrap_or_else(|| self.default_pool_of(gpu)))
    }

    /// `cuDeviceSetMemPool`.
    pub fn set_device_pool(&self, ordinal: i32, pool: u64) -> Outcome {
        let gpu = self.gpu(ordinal)?;
        let mut tables = self.tables();
        if tables.pools.pools.get(&pool).is_none_or(|pool| pool.gpu != gpu) {
            return Err(CUresult::INVALID_VALUE);
        }
        tables.pools.used.insert(gpu, pool);
        Ok(())
    }

    /// `cuMemPoolCreate`: pools here have no handle types.
    pub fn pool_create(&self, request: CreateRequest) -> Outcome<u64> {
        if request.kind != 1 || request.location.kind != 1 {
            return Err(CUresult::INVALID_VALUE);
        }
        if request.handle_types != 0 {
            return Err(CUresult::NOT_SUPPORTED);
        }
        let gpu = self.gpu(request.location.id)?;
        let state = self.space.state();
        let record = self.space.record(Record { gpu, ..Record::new(Kind::Pool, state.pid(), state.next_id()) })?;
        let handle = self.engine.lock().new_handle();
        self.tables().pools.pools.insert(handle, Pool::new(gpu, Some(record)));
        Ok(handle)
    }

    /// `cuMemPoolDestroy`: default pools stay.
    pub fn pool_destroy(&self, pool: u64) -> Outcome {
        let mut tables = self.tables();
        if tables.pools.default.values().any(|default| *default == pool) {
            return Err(CUresult::INVALID_VALUE);
        }
        let removed = tables.pools.pools.remove(&pool).ok_or(CUresult::INVALID_VALUE)?;
        tables.pools.used.retain(|_, used| *used != pool);
        drop(tables);
        if let Some(record) = removed.record {
            self.space.state().lock().remove(record);
        }
        self.space.drop_pool(pool);
        self.tidy_memory();
        Ok(())
    }

    /// `cuMemPoolSetAttribute`.
    pub fn set_pool_attribute(&self, pool: u64, attribute: i32, value: u64) -> Outcome {
        let mut tables = self.tables();
        let pool = tables.pools.pools.get_mut(&pool).ok_or(CUresult::INVALID_VALUE)?;
        match attribute {
            1..=RELEASE_THRESHOLD => {
                pool.attributes.insert(attribute, value);
                Ok(())
            }
            8 if value == 0 => {
                pool.used_high = pool.used_bytes;
                Ok(())
            }
            6 if value == 0 => Ok(()),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    /// `cuMemPoolGetAttribute`.
    pub fn pool_attribute(&self, pool: u64, attribute: i32) -> Outcome<u64> {
        let tables = self.tables();
        let pool = tables.pools.pools.get(&pool).ok_or(CUresult::INVALID_VALUE)?;
        match attribute {
            1..=3 => Ok(pool.attributes.get(&attribute).copied().unwrap_or(1)),
            RELEASE_THRESHOLD => Ok(pool.attributes.get(&attribute).copied().unwrap_or(0)),
            5 | 7 => Ok(pool.used_bytes),
            6 | 8 => Ok(pool.used_high),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    /// `cuMemPoolTrimTo`: pools here keep nothing that is free.
    pub fn pool_trim(&self, pool: u64) -> Outcome {
        if self.tables().pools.pools.contains_key(&pool) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    /// `cuMemAllocAsync`, and `cuMemAllocFromPoolAsync` where a pool is named.
    pub fn allocate_async(&self, bytes: u64, pool: Option<u64>, stream: u64) -> Outcome<u64> {
        let (stream, current) = self.stream(stream)?;
        if bytes == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        self.refuse_capturing(stream)?;
        let pool = match pool {
            Some(pool) => pool,
            None => self.device_pool(self.ordinal(current.gpu))?,
        };
        let gpu = self.tables().pools.pools.get(&pool).map(|pool| pool.gpu).ok_or(CUresult::INVALID_VALUE)?;
        let address = self.space.allocate(Owner { context: 0, pool, gpu }, bytes, Whose::Program)?;
        if let Some(pool) = self.tables().pools.pools.get_mut(&pool) {
            pool.used_bytes += bytes;
            pool.used_high = pool.used_high.max(pool.used_bytes);
        }
        Ok(address)
    }

    /// `cuMemFreeAsync`: memory of pools alone.
    pub fn free_async(&self, address: u64, stream: u64) -> Outcome {
        let (stream, _) = self.stream(stream)?;
        let piece = self.space.piece(address).filter(|piece| piece.start == address).ok_or(CUresult::INVALID_VALUE)?;
        let PieceKind::Pooled { pool, .. } = piece.kind else { return Err(CUresult::INVALID_VALUE) };
        self.refuse_capturing(stream)?;
        if let Some(pool) = self.tables().pools.pools.get_mut(&pool) {
            pool.used_bytes = pool.used_bytes.saturating_sub(piece.bytes);
        }
        self.engine.submit(stream, Work::PoolFree { address }, &[]).map(|_| ())
    }
}

impl Pool {
    fn new(gpu: u32, record: Option<RecordId>) -> Pool {
        Pool { gpu, record, attributes: HashMap::new(), used_bytes: 0, used_high: 0 }
    }
}
