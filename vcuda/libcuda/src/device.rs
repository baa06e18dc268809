//! Devices.

use std::ffi::c_char;

use vcuda::driver::{self, CUresult, DeviceAttribute, PeerAttribute};

use crate::entry::{Out, Text, entries};

entries! {
    cuDeviceGetCount(2000) (count: Out<i32>) { count.put(driver::get()?.device_count()) }

    cuDeviceGet(2000) (device: Out<i32>, ordinal: i32) { device.put(driver::get()?.device(ordinal)?) }

    cuDeviceGetName(2000) (name: Out<c_char>, length: i32, device: i32) {
        let model = driver::get()?.device_model(device)?;
        put_text(name, length, &model.name)
    }

    cuDeviceGetUuid(9020) (uuid: Out<[u8; 16]>, device: i32) { uuid.put(driver::get()?.device_model(device)?.uuid) }

    cuDeviceGetUuid_v2(11040) (uuid: Out<[u8; 16]>, device: i32) { uuid.put(driver::get()?.device_model(device)?.uuid) }

    cuDeviceTotalMem_v2(3020) (bytes: Out<u64>, device: i32) {
        bytes.put(driver::get()?.device_total_memory(device)?)
    }

    cuDeviceGetAttribute(2000) (value: Out<i32>, attribute: i32, device: i32) {
        value.check()?;
        value.put(driver::get()?.device_attribute(DeviceAttribute(attribute), device)?)
    }

    cuDeviceGetPCIBusId(4010) (text: Out<c_char>, length: i32, device: i32) {
        let model = driver::get()?.device_model(device)?;
        put_text(text, length, &model.bus_id)
    }

    cuDeviceGetByPCIBusId(4010) (device: Out<i32>, text: Text) {
        device.check()?;
        device.put(driver::get()?.device_by_bus_id(text.get()?)?)
    }

    cuDeviceComputeCapability(2000) (major: Out<i32>, minor: Out<i32>, device: i32) {
        let driver = driver::get()?;
        major.put(driver.device_attribute(DeviceAttribute(75), device)?)?;
        minor.put(driver.device_attribute(DeviceAttribute(76), device)?)
    }

    cuDeviceCanAccessPeer(4000) (can: Out<i32>, device: i32, peer: i32) {
        can.put(driver::get()?.can_access_peer(device, peer)?.into())
    }

    cuDeviceGetP2PAttribute(8000) (value: Out<i32>, attribute: i32, source: i32, target: i32) {
        value.check()?;
        value.put(driver::get()?.peer_attribute(PeerAttribute(attribute), source, target)?)
    }

    cuDeviceGetDefaultMemPool(11020) (pool: Out<u64>, device: i32) { pool.put(driver::get()?.default_pool(device)?) }

    cuDeviceGetMemPool(11020) (pool: Out<u64>, device: i32) { pool.put(driver::get()?.device_pool(device)?) }

    cuDeviceSetMemPool(11020) (device: i32, pool: u64) { driver::get()?.set_device_pool(device, pool) }
}

/// Stores a text, cut to the room there is, with a zero byte behind it.
fn put_text(place: Out<c_char>, length: i32, text: &str) -> driver::Outcome {
    let room = usize::try_from(length).ok().filter(|room| *room > 0).ok_or(CUresult::INVALID_VALUE)?;
    let bytes = text.bytes().take(room - 1).chain([0]);
    place.put_all(bytes.map(|byte| c_char::from_ne_bytes([byte])))
}
