//! Contexts: primary ones by reference, others by handle; the stack of each thread; limits; peers.

use std::cell::RefCell;

use super::{CUresult, Current, Driver, Outcome};
use crate::schedule::Reason;
use crate::space::state::{Kind, Record};

/// A device's primary context.
#[derive(Debug, Default)]
pub(super) struct Primary {
    context: u64,
    references: u32,
    flags: u32,
}

/// What `cuDevicePrimaryCtxGetState` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrimaryState {
    /// The flags.
    pub flags: u32,
    /// Whether it exists.
    pub active: bool,
}

thread_local! {
    /// Contexts of this thread, the current one last; 0 stands for none.
    static STACK: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Flags that a context may have: scheduling (0 to 4), `MAP_HOST`, `LMEM_RESIZE_TO_MAX`, `SYNC_MEMOPS`.
const FLAGS: u32 = 0x07 | 0x08 | 0x10 | 0x80;

/// The current context of this thread, 0 for none.
pub(super) fn current_handle() -> u64 {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

fn check_flags(flags: u32) -> Outcome {
    let schedule = flags & 7;
    if flags & !FLAGS != 0 || !matches!(schedule, 0 | 1 | 2 | 4) { Err(CUresult::INVALID_VALUE) } else { Ok(()) }
}

impl Driver {
    /// `cuDevicePrimaryCtxRetain`.
    pub fn primary_retain(&self, ordinal: i32) -> Outcome<u64> {
        let gpu = self.gpu(ordinal)?;
        if let Some(code) = crate::fault::lost(gpu) {
            return Err(CUresult(code));
        }
        let mut tables = self.tables();
        let primary = tables.primary.entry(gpu).or_default();
        if primary.context == 0 {
            let record = self.context_record(gpu)?;
            let mut world = self.engine.lock();
            primary.context = world.add_context(&self.surroundings(), gpu, primary.flags, Some(record));
            if let Some(context) = world.contexts.get_mut(&primary.context) {
                context.primary = true;
            }
        }
        primary.references += 1;
        Ok(primary.context)
    }

    /// `cuDevicePrimaryCtxRelease`: with the last reference the context is destroyed.
    pub fn primary_release(&self, ordinal: i32) -> Outcome {
        let gpu = self.gpu(ordinal)?;
        let mut tables = self.tables();
        let primary = tables.primary.get_mut(&gpu).filter(|primary| primary.references > 0);
        let primary = primary.ok_or(CUresult::INVALID_CONTEXT)?;
        primary.references -= 1;
        if primary.references > 0 {
            return Ok(());
        }
        let context = std::mem::take(&mut primary.context);
        drop(tables);
        self.destroy(Current { context, gpu })
    }

    /// `cuDevicePrimaryCtxReset`: destroys the context's things, whoever holds references.
    pub fn primary_reset(&self, ordinal: i32) -> Outcome {
        let gpu = self.gpu(ordinal)?;
        let mut tables = self.tables();
        let Some(primary) = tables.primary.get_mut(&gpu) else { return Ok(()) };
        let context = std::mem::take(&mut primary.context);
        primary.references = 0;
        drop(tables);
        if context == 0 { Ok(()) } else { self.destroy(Current { context, gpu }) }
    }

    /// `cuDevicePrimaryCtxGetState`.
    pub fn primary_state(&self, ordinal: i32) -> Outcome<PrimaryState> {
        let gpu = self.gpu(ordinal)?;
        let tables = self.tables();
        let primary = tables.primary.get(&gpu);
        Ok(PrimaryState {
            flags: primary.map_or(0, |primary| primary.flags),
            active: primary.is_some_and(|primary| primary.context != 0),
        })
    }

    /// `cuDevicePrimaryCtxSetFlags`.
    pub fn primary_set_flags(&self, ordinal: i32, flags: u32) -> Outcome {
        check_flags(flags)?;
        let gpu = self.gpu(ordinal)?;
        let mut tables = self.tables();
        let primary = tables.primary.entry(gpu).or_default();
        primary.flags = flags;
        let context = primary.context;
        if let Some(context) = self.engine.lock().contexts.get_mut(&context) {
            context.flags = flags;
        }
        Ok(())
    }

    /// `cuCtxCreate`: the new context becomes current.
    pub fn context_create(&self, flags: u32, ordinal: i32) -> Outcome<u64> {
        check_flags(flags)?;
        let gpu = self.gpu(ordinal)?;
        if let Some(code) = crate::fault::lost(gpu) {
            return Err(CUresult(code));
        }
        let record = self.context_record(gpu)?;
        let context = self.engine.lock().add_context(&self.surroundings(), gpu, flags, Some(record));
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(context)
    }

    fn context_record(&self, gpu: u32) -> Outcome<crate::space::state::RecordId> {
        let state = self.space.state();
        self.space.record(Record { gpu, ..Record::new(Kind::Context, state.pid(), state.next_id()) })
    }

    /// `cuCtxDestroy`: primary contexts are released instead.
    pub fn context_destroy(&self, context: u64) -> Outcome {
        let world = self.engine.lock();
        let entry = world.contexts.get(&context).ok_or(CUresult::INVALID_CONTEXT)?;
        if entry.primary {
            return Err(CUresult::INVALID_CONTEXT);
        }
        let current = Current { context, gpu: entry.gpu };
        drop(world);
        STACK.with_borrow_mut(|stack| {
            if stack.last() == Some(&context) {
                stack.pop();
            }
        });
        self.destroy(current)
    }

    /// Destroys a context: its work ends first (unless it has met an error), then all that belongs to it goes.
    fn destroy(&self, current: Current) -> Outcome {
        // A context that has met an error is destroyed like any other.
        let _ = self.wait_for_all(current, Reason::Asked);
        self.drop_modules(current.context);
        self.drop_captures(current.context);
        let mut world = self.engine.lock();
        let removed = world.remove_context(current.context);
        drop(world);
        if let Some((_, records)) = removed {
            let mut guard = self.space.state().lock();
            for record in records {
                guard.remove(record);
            }
        }
        self.engine.wait_for_workers();
        self.space.drop_context(current.context);
        self.tidy_memory();
        Ok(())
    }

    /// `cuCtxPushCurrent`.
    pub fn context_push(&self, context: u64) -> Outcome {
        self.check_handle(context)?;
        STACK.with_borrow_mut(|stack| stack.push(context));
        Ok(())
    }

    /// `cuCtxPopCurrent`.
    pub fn context_pop(&self) -> Outcome<u64> {
        STACK.with_borrow_mut(|stack| stack.pop()).filter(|context| *context != 0).ok_or(CUresult::INVALID_CONTEXT)
    }

    /// `cuCtxSetCurrent`: 0 takes the current one off.
    pub fn context_set_current(&self, context: u64) -> Outcome {
        if context != 0 {
            self.check_handle(context)?;
        }
        STACK.with_borrow_mut(|stack| {
            stack.pop();
            if context != 0 {
                stack.push(context);
            }
        });
        Ok(())
    }

    /// `cuCtxGetCurrent`: 0 for none.
    pub fn context_get_current(&self) -> u64 {
        current_handle()
    }

    fn check_handle(&self, context: u64) -> Outcome {
        if self.engine.lock().contexts.contains_key(&context) { Ok(()) } else { Err(CUresult::INVALID_CONTEXT) }
    }

    /// `cuCtxGetDevice`: works also after an error of the context.
    pub fn context_device(&self) -> Outcome<i32> {
        let context = current_handle();
        if context == 0 {
            return Err(CUresult::INVALID_CONTEXT);
        }
        let world = self.engine.lock();
        let gpu = world.contexts.get(&context).map(|context| context.gpu).ok_or(CUresult::CONTEXT_IS_DESTROYED)?;
        Ok(self.ordinal(gpu))
    }

    /// `cuCtxGetId`: of a context, or of the current one for 0.
    pub fn context_id(&self, context: u64) -> Outcome<u64> {
        let context = if context == 0 { current_handle() } else { context };
        let world = self.engine.lock();
        if world.contexts.contains_key(&context) { Ok(context >> 4) } else { Err(CUresult::INVALID_CONTEXT) }
    }

    /// `cuCtxGetFlags`.
    pub fn context_flags(&self) -> Outcome<u32> {
        let current = self.current()?;
        Ok(self.engine.lock().contexts.get(&current.context).map_or(0, |context| context.flags))
    }

    /// `cuCtxSetFlags`.
    pub fn context_set_flags(&self, flags: u32) -> Outcome {
        check_flags(flags)?;
        let current = self.current()?;
        if let Some(context) = self.engine.lock().contexts.get_mut(&current.context) {
            context.flags = flags;
        }
        Ok(())
    }

    /// `cuCtxSynchronize`.
    pub fn context_synchronize(&self) -> Outcome {
        let current = self.current()?;
        self.guard_capture()?;
        self.wait_for_all(current, Reason::Asked)?;
        self.tidy_memory();
        Ok(())
    }

    /// `cuCtxGetLimit`.
    pub fn context_limit(&self, limit: u32) -> Outcome<u64> {
        let current = self.current()?;
        let usual = usual_limit(limit)?;
        let world = self.engine.lock();
        Ok(world
            .contexts
            .get(&current.context)
            .and_then(|context| context.limits.get(&limit).copied())
            .unwrap_or(usual))
    }

    /// The stack of a thread of the current context's kernels.
    pub(super) fn stack_bytes(&self) -> Outcome<u32> {
        u32::try_from(self.context_limit(0)?).map_err(|_| CUresult::INVALID_VALUE)
    }

    /// `cuCtxSetLimit`.
    pub fn context_set_limit(&self, limit: u32, value: u64) -> Outcome {
        let current = self.current()?;
        usual_limit(limit)?;
        if limit == 0 && value > MOST_STACK_BYTES {
            return Err(CUresult::INVALID_VALUE);
        }
        if let Some(context) = self.engine.lock().contexts.get_mut(&current.context) {
            context.limits.insert(limit, value);
        }
        Ok(())
    }

    /// `cuCtxEnablePeerAccess`: the current context may touch the memory of `peer` from now on.
    pub fn enable_peer_access(&self, peer: u64, flags: u32) -> Outcome {
        let current = self.current()?;
        if flags != 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        let gpu = self.engine.lock().contexts.get(&peer).map(|context| context.gpu).ok_or(CUresult::INVALID_CONTEXT)?;
        if peer == current.context {
            return Err(CUresult::INVALID_CONTEXT);
        }
        if !self.machine.can_access_peer(current.gpu, gpu) {
            return Err(CUresult::PEER_ACCESS_UNSUPPORTED);
        }
        if self.space.enable_peer(current.context, peer) { Ok(()) } else { Err(CUresult::PEER_ACCESS_ALREADY_ENABLED) }
    }

    /// `cuCtxDisablePeerAccess`.
    pub fn disable_peer_access(&self, peer: u64) -> Outcome {
        let current = self.current()?;
        self.check_handle(peer)?;
        if self.space.disable_peer(current.context, peer) { Ok(()) } else { Err(CUresult::PEER_ACCESS_NOT_ENABLED) }
    }
}

/// Local memory of a thread, at most: the stack is a part of it.
const MOST_STACK_BYTES: u64 = 512 << 10;

/// Limits by `CUlimit`: stack size, printf buffer, malloc heap, launch depth and pending launches, L2 granularity, L2.
fn usual_limit(limit: u32) -> Outcome<u64> {
    match limit {
        0 => Ok(1024),
        1 => Ok(1 << 20),
        2 => Ok(8 << 20),
        3 => Ok(2),
        4 => Ok(2048),
        5 => Ok(64),
        6 => Ok(0),
        7.. => Err(CUresult::UNSUPPORTED_LIMIT),
    }
}
