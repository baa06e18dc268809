//! Contexts.

use vcuda::driver::{self, CUresult};

use crate::entry::{In, Out, entries};

entries! {
    cuDevicePrimaryCtxRetain(7000) (context: Out<u64>, device: i32) {
        context.check()?;
        context.put(driver::get()?.primary_retain(device)?)
    }

    cuDevicePrimaryCtxRelease_v2(11000) (device: i32) { driver::get()?.primary_release(device) }

    cuDevicePrimaryCtxReset_v2(11000) (device: i32) { driver::get()?.primary_reset(device) }

    cuDevicePrimaryCtxSetFlags_v2(11000) (device: i32, flags: u32) { driver::get()?.primary_set_flags(device, flags) }

    cuDevicePrimaryCtxGetState(7000) (device: i32, flags: Out<u32>, active: Out<i32>) {
        let state = driver::get()?.primary_state(device)?;
        flags.put(state.flags)?;
        active.put(state.active.into())
    }

    cuCtxCreate_v2(3020) (context: Out<u64>, flags: u32, device: i32) {
        context.check()?;
        context.put(driver::get()?.context_create(flags, device)?)
    }

    cuCtxCreate_v4(12050) (context: Out<u64>, parameters: In<u64>, flags: u32, device: i32) {
        context.check()?;
        if !parameters.is_null() {
            // Execution affinity and CIG: neither is promised by a job script.
            return Err(CUresult::NOT_SUPPORTED);
        }
        context.put(driver::get()?.context_create(flags, device)?)
    }

    cuCtxDestroy_v2(4000) (context: u64) { driver::get()?.context_destroy(context) }

    cuCtxPushCurrent_v2(4000) (context: u64) { driver::get()?.context_push(context) }

    cuCtxPopCurrent_v2(4000) (context: Out<u64>) {
        let popped = driver::get()?.context_pop()?;
        context.put_if(popped);
        Ok(())
    }

    cuCtxSetCurrent(4000) (context: u64) { driver::get()?.context_set_current(context) }

    cuCtxGetCurrent(4000) (context: Out<u64>) { context.put(driver::get()?.context_get_current()) }

    cuCtxGetDevice(2000) (device: Out<i32>) { device.put(driver::get()?.context_device()?) }

    cuCtxGetId(12000) (context: u64, id: Out<u64>) { id.put(driver::get()?.context_id(context)?) }

    cuCtxGetFlags(7000) (flags: Out<u32>) { flags.put(driver::get()?.context_flags()?) }

    cuCtxSetFlags(12010) (flags: u32) { driver::get()?.context_set_flags(flags) }

    cuCtxGetApiVersion(3020) (context: u64, version: Out<u32>) {
        driver::get()?.context_id(context)?;
        version.put(3020)
    }

    cuCtxSynchronize(2000) () { driver::get()?.context_synchronize() }

    cuCtxGetStreamPriorityRange(5050) (least: Out<i32>, greatest: Out<i32>) {
        driver::get()?.current()?;
        least.put_if(0);
        greatest.put_if(-5);
        Ok(())
    }

    cuCtxGetLimit(3010) (value: Out<u64>, limit: u32) { value.put(driver::get()?.context_limit(limit)?) }

    cuCtxSetLimit(3010) (limit: u32, value: u64) { driver::get()?.context_set_limit(limit, value) }

    cuCtxGetCacheConfig(3020) (config: Out<i32>) {
        driver::get()?.current()?;
        config.put(0)
    }

    cuCtxSetCacheConfig(3020) (config: i32) {
        driver::get()?.current()?;
        if (0..=3).contains(&config) { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
    }

    cuCtxEnablePeerAccess(4000) (peer: u64, flags: u32) { driver::get()?.enable_peer_access(peer, flags) }

    cuCtxDisablePeerAccess(4000) (peer: u64) { driver::get()?.disable_peer_access(peer) }
}
