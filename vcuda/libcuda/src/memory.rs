//! Memory: allocations, pinned memory, copies, fills, attributes of pointers, pools, legacy IPC.

use vcuda::driver::{self, CUresult, CopyRequest, CreateRequest, Direction, Outcome, PointerAttribute, PointerValue};
use vcuda::space::{IPC_HANDLE_BYTES, IpcHandle};

use crate::entry::{In, Out, entries};
use crate::vmm::PoolProperties;

entries! {
    cuMemGetInfo_v2(3020) (free: Out<u64>, total: Out<u64>) {
        let (free_bytes, total_bytes) = driver::get()?.memory_info()?;
        free.put(free_bytes)?;
        total.put(total_bytes)
    }

    cuMemAlloc_v2(3020) (address: Out<u64>, bytes: u64) {
        address.check()?;
        address.put(driver::get()?.allocate(bytes)?)
    }

    cuMemFree_v2(3020) (address: u64) { driver::get()?.free(address) }

    cuMemAllocManaged(6000) (address: Out<u64>, bytes: u64, flags: u32) {
        let _ = (address, bytes, flags);
        driver::get()?.current()?;
        Err(CUresult::NOT_SUPPORTED)
    }

    cuMemAllocAsync(11020) (address: Out<u64>, bytes: u64, stream: u64) {
        address.check()?;
        address.put(driver::get()?.allocate_async(bytes, None, stream)?)
    }

    cuMemAllocFromPoolAsync(11020) (address: Out<u64>, bytes: u64, pool: u64, stream: u64) {
        address.check()?;
        address.put(driver::get()?.allocate_async(bytes, Some(pool), stream)?)
    }

    cuMemFreeAsync(11020) (address: u64, stream: u64) { driver::get()?.free_async(address, stream) }

    cuMemHostAlloc(2020) (address: Out<u64>, bytes: u64, flags: u32) {
        address.check()?;
        address.put(driver::get()?.host_allocate(bytes, flags)?)
    }

    cuMemAllocHost_v2(3020) (address: Out<u64>, bytes: u64) {
        address.check()?;
        address.put(driver::get()?.host_allocate(bytes, 0)?)
    }

    cuMemFreeHost(2000) (address: u64) { driver::get()?.host_free(address) }

    cuMemHostRegister_v2(6050) (address: u64, bytes: u64, flags: u32) {
        driver::get()?.host_register(address, bytes, flags)
    }

    cuMemHostUnregister(4000) (address: u64) { driver::get()?.host_unregister(address) }

    cuMemHostGetDevicePointer_v2(3020) (device: Out<u64>, host: u64, flags: u32) {
        device.check()?;
        device.put(driver::get()?.host_device_pointer(host, flags)?)
    }

    cuMemHostGetFlags(2030) (flags: Out<u32>, host: u64) { flags.put(driver::get()?.host_flags(host)?) }

    cuMemGetAddressRange_v2(3020) (base: Out<u64>, size: Out<u64>, address: u64) {
        let (start, bytes) = driver::get()?.address_range(address)?;
        base.put_if(start);
        size.put_if(bytes);
        Ok(())
    }

    cuPointerGetAttribute(4000) (data: Out<u8>, attribute: i32, address: u64) {
        data.check()?;
        put_value(data, driver::get()?.pointer_attribute(PointerAttribute(attribute), address)?)
    }

    cuPointerGetAttributes(7000) (count: u32, attributes: In<i32>, data: In<Out<u8>>, address: u64) {
        if count == 0 {
            return Err(CUresult::INVALID_VALUE);
        }
        for index in 0..count as usize {
            let attribute = PointerAttribute(attributes.get_at(index)?);
            put_value(data.get_at(index)?, driver::get()?.pointer_attributes(attribute, address)?)?;
        }
        Ok(())
    }

    cuPointerSetAttribute(6000) (value: In<u32>, attribute: i32, address: u64) {
        driver::get()?.set_pointer_attribute(PointerAttribute(attribute), address, value.get()? != 0)
    }

    cuMemPoolCreate(11020) (pool: Out<u64>, properties: In<PoolProperties>) {
        pool.check()?;
        let properties = properties.get()?;
        let request = CreateRequest {
            kind: properties.kind,
            handle_types: properties.handle_types,
            location: properties.location.into(),
            for_nics: false,
        };
        pool.put(driver::get()?.pool_create(request)?)
    }

    cuMemPoolDestroy(11020) (pool: u64) { driver::get()?.pool_destroy(pool) }

    cuMemPoolSetAttribute(11020) (pool: u64, attribute: i32, value: In<u64>) {
        let narrow = (1..=3).contains(&attribute);
        // The first three are ints in C, the others have 64 bits.
        let value = if narrow { u64::from(value.at::<u32>().get()?) } else { value.get()? };
        driver::get()?.set_pool_attribute(pool, attribute, value)
    }

    cuMemPoolGetAttribute(11020) (pool: u64, attribute: i32, value: Out<u64>) {
        value.check()?;
        let found = driver::get()?.pool_attribute(pool, attribute)?;
        if (1..=3).contains(&attribute) { value.at::<u32>().put(u32::from(found != 0)) } else { value.put(found) }
    }

    cuMemPoolTrimTo(11020) (pool: u64, bytes: u64) {
        let _ = bytes;
        driver::get()?.pool_trim(pool)
    }

    cuIpcGetMemHandle(4010) (handle: Out<[u8; IPC_HANDLE_BYTES]>, address: u64) {
        handle.check()?;
        handle.put(driver::get()?.ipc_handle(address)?.to_bytes())
    }

    cuIpcOpenMemHandle_v2(11000) (address: Out<u64>, handle: Shared, flags: u32) {
        address.check()?;
        address.put(driver::get()?.ipc_open(IpcHandle::from_bytes(&handle.0), flags)?)
    }

    cuIpcCloseMemHandle(4010) (address: u64) { driver::get()?.ipc_close(address) }

    cuMemcpy(4000) (target: u64, source: u64, bytes: u64) { copy(target, source, bytes, Direction::Any, None) }

    cuMemcpyAsync(4000) (target: u64, source: u64, bytes: u64, stream: u64) {
        copy(target, source, bytes, Direction::Any, Some(stream))
    }

    cuMemcpyHtoD_v2(3020) (target: u64, source: u64, bytes: u64) {
        copy(target, source, bytes, Direction::HostToDevice, None)
    }

    cuMemcpyHtoDAsync_v2(3020) (target: u64, source: u64, bytes: u64, stream: u64) {
        copy(target, source, bytes, Direction::HostToDevice, Some(stream))
    }

    cuMemcpyDtoH_v2(3020) (target: u64, source: u64, bytes: u64) {
        copy(target, source, bytes, Direction::DeviceToHost, None)
    }

    cuMemcpyDtoHAsync_v2(3020) (target: u64, source: u64, bytes: u64, stream: u64) {
        copy(target, source, bytes, Direction::DeviceToHost, Some(stream))
    }

    cuMemcpyDtoD_v2(3020) (target: u64, source: u64, bytes: u64) {
        copy(target, source, bytes, Direction::DeviceToDevice, None)
    }

    cuMemcpyDtoDAsync_v2(3020) (target: u64, source: u64, bytes: u64, stream: u64) {
        copy(target, source, bytes, Direction::DeviceToDevice, Some(stream))
    }

    cuMemcpyPeer(4000) (target: u64, target_context: u64, source: u64, source_context: u64, bytes: u64) {
        let request = CopyRequest { target, source, bytes, direction: Direction::DeviceToDevice };
        driver::get()?.copy_peer(request, [target_context, source_context], None)
    }

    cuMemcpyPeerAsync(4000) (target: u64, target_context: u64, source: u64, source_context: u64, bytes: u64, stream: u64) {
        let request = CopyRequest { target, source, bytes, direction: Direction::DeviceToDevice };
        driver::get()?.copy_peer(request, [target_context, source_context], Some(stream))
    }

    cuMemsetD8_v2(3020) (target: u64, value: u8, count: u64) { driver::get()?.fill(target, &[value], count) }

    cuMemsetD16_v2(3020) (target: u64, value: u16, count: u64) {
        driver::get()?.fill(target, &value.to_ne_bytes(), count)
    }

    cuMemsetD32_v2(3020) (target: u64, value: u32, count: u64) {
        driver::get()?.fill(target, &value.to_ne_bytes(), count)
    }

    cuMemsetD8Async(3020) (target: u64, value: u8, count: u64, stream: u64) {
        driver::get()?.fill_async(target, &[value], count, stream)
    }

    cuMemsetD16Async(3020) (target: u64, value: u16, count: u64, stream: u64) {
        driver::get()?.fill_async(target, &value.to_ne_bytes(), count, stream)
    }

    cuMemsetD32Async(3020) (target: u64, value: u32, count: u64, stream: u64) {
        driver::get()?.fill_async(target, &value.to_ne_bytes(), count, stream)
    }
}

/// `CUipcMemHandle`, which C passes by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Shared([u8; IPC_HANDLE_BYTES]);

fn copy(target: u64, source: u64, bytes: u64, direction: Direction, stream: Option<u64>) -> Outcome {
    let request = CopyRequest { target, source, bytes, direction };
    match stream {
        Some(stream) => driver::get()?.copy_async(request, stream),
        None => driver::get()?.copy(request),
    }
}

fn put_value(place: Out<u8>, value: PointerValue) -> Outcome {
    match value {
        PointerValue::Wide(value) => place.at::<u64>().put(value),
        PointerValue::Narrow(value) => place.at::<u32>().put(value),
        PointerValue::Flag(value) => place.put(value.into()),
    }
}
