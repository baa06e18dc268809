//! Devices: what a program may ask about a GPU.

use super::{CUresult, Driver, Outcome};
use crate::machine::{FabricAttr, Gpu};

/// A `CUdevice_attribute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceAttribute(pub i32);

/// A `CUdevice_P2PAttribute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerAttribute(pub i32);

impl Driver {
    /// `cuDeviceGetCount`.
    pub fn device_count(&self) -> i32 {
        i32::try_from(self.visible.len()).unwrap_or(0)
    }

    /// `cuDeviceGet`: checks an ordinal.
    pub fn device(&self, ordinal: i32) -> Outcome<i32> {
        self.gpu(ordinal).map(|_| ordinal)
    }

    /// The model behind a device.
    pub fn device_model(&self, ordinal: i32) -> Outcome<&Gpu> {
        let gpu = self.gpu(ordinal)?;
        self.machine.gpus.get(gpu as usize).ok_or(CUresult::INVALID_DEVICE)
    }

    /// `cuDeviceTotalMem`.
    pub fn device_total_memory(&self, ordinal: i32) -> Outcome<u64> {
        Ok(self.space.total(self.gpu(ordinal)?))
    }

    /// `cuDeviceGetByPCIBusId`: takes `domain:bus:device.function`, domain and function may be left out.
    pub fn device_by_bus_id(&self, text: &str) -> Outcome<i32> {
        let wanted = bus_numbers(text).ok_or(CUresult::INVALID_VALUE)?;
        let is_it = |gpu: &u32| self.machine.gpus[*gpu as usize].bus_numbers() == wanted;
        let gpu = self.visible.iter().copied().find(is_it).ok_or(CUresult::INVALID_DEVICE)?;
        Ok(self.ordinal(gpu))
    }

    /// `cuDeviceCanAccessPeer`.
    pub fn can_access_peer(&self, device: i32, peer: i32) -> Outcome<bool> {
        Ok(self.machine.can_access_peer(self.gpu(device)?, self.gpu(peer)?))
    }

    /// `cuDeviceGetP2PAttribute`.
    pub fn peer_attribute(&self, attribute: PeerAttribute, source: i32, target: i32) -> Outcome<i32> {
        let (a, b) = (self.gpu(source)?, self.gpu(target)?);
        if a == b {
            return Err(CUresult::INVALID_DEVICE);
        }
        let access = self.machine.can_access_peer(a, b);
        match attribute.0 {
            1 => Ok(i32::from(!self.machine.native_atomics(a, b))),
            2 | 4 => Ok(access.into()),
            3 => Ok((access && self.machine.native_atomics(a, b)).into()),
            _ => Err(CUresult::INVALID_VALUE),
        }
    }

    /// `cuDeviceGetAttribute`.
    pub fn device_attribute(&self, attribute: DeviceAttribute, ordinal: i32) -> Outcome<i32> {
        let gpu = self.device_model(ordinal)?;
        let limits = &gpu.limits;
        let (domain, bus, device) = gpu.bus_numbers();
        let maps = u32::from(self.machine.virtual_memory);
        let handle_types = u32::from(self.machine.posix_fd && self.machine.virtual_memory);
        let value = match attribute.0 {
            1..=3 => 1024,
            4 => 64,
            5 => u32::MAX >> 1,
            6 | 7 => 65_535,
            8 => limits.shared_bytes_per_block,
            9 => 65_536,
            10 => 32,
            11 => u32::MAX >> 1,
            12 | 82 => limits.registers_per_sm,
            13 => limits.clock_khz,
            14 => 512,
            16 => gpu.sms,
            33 => bus,
            34 => device,
            36 => limits.memory_clock_khz,
            37 => limits.memory_bus_bits,
            38 => limits.l2_bytes,
            39 => limits.threads_per_sm,
            40 => 3,
            50 => domain,
            75 => gpu.capability.0,
            76 => gpu.capability.1,
            81 => limits.shared_bytes_per_sm,
            87 => 2,
            97 => limits.shared_bytes_per_block_optin,
            102 => maps,
            115 => 1,
            103 => handle_types,
            // GPUDirect RDMA: of mapped memory, at all, as a DMA-BUF.
            110 | 116 | 124 => maps,
            106 => limits.blocks_per_sm,
            111 => limits.shared_bytes_reserved,
            119 => 0,
            128 => u32::from(self.machine.fabric != FabricAttr::None),
            133 => u32::from(self.machine.mps),
            134 => gpu.numa_node,
            _ => yes_or_no(attribute)?,
        };
        i32::try_from(value).map_err(|_| CUresult::INVALID_VALUE)
    }
}

/// Attributes that are the same for all GPUs of all machines here.
fn yes_or_no(attribute: DeviceAttribute) -> Outcome<u32> {
    match attribute.0 {
        // GPU_OVERLAP, CAN_MAP_HOST_MEMORY, CONCURRENT_KERNELS, ECC_ENABLED, UNIFIED_ADDRESSING, STREAM_PRIORITIES,
        // GLOBAL_L1_CACHE, LOCAL_L1_CACHE, COMPUTE_PREEMPTION, CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
        // COOPERATIVE_LAUNCH, HOST_REGISTER_SUPPORTED, READ_ONLY_HOST_REGISTER, 64_BIT_STREAM_MEM_OPS, WAIT_VALUE_NOR.
        15 | 19 | 31 | 32 | 41 | 78 | 79 | 80 | 90 | 91 | 95 | 99 | 113 | 122 | 123 => Ok(1),
        // Without these: timeouts, integrated GPUs, compute modes, managed memory, host atomics, pageable access,
        // memory operations of version 1 (92 to 94), clusters, GPUDirect, multicast and all others.
        1..=136 => Ok(0),
        _ => Err(CUresult::INVALID_VALUE),
    }
}

fn bus_numbers(text: &str) -> Option<(u32, u32, u32)> {
    let numbers: Option<Vec<u32>> =
        text.split('.').next()?.split(':').map(|part| u32::from_str_radix(part, 16).ok()).collect();
    match numbers?[..] {
        [domain, bus, device] => Some((domain, bus, device)),
        [bus, device] => Some((0, bus, device)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::bus_numbers;

    #[test]
    fn bus_ids_in_their_three_forms() {
        assert_eq!(bus_numbers("0000:1B:00.0"), Some((0, 0x1B, 0)));
        assert_eq!(bus_numbers("1:1b:2"), Some((1, 0x1B, 2)));
        assert_eq!(bus_numbers("1b:0"), Some((0, 0x1B, 0)));
        assert_eq!(bus_numbers("nonsense"), None);
    }
}
