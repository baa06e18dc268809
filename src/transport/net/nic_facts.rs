//! What is known of a rank's NIC where no NIC is seen.

use crate::transport::net::request_nic::{DeviceMemoryAccess, FoundNic};

/// What is known of a rank's NIC, for those who choose the memory that it sends from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicFacts {
    /// What it is.
    pub words: String,
    /// What its library calls it.
    pub device: String,
    /// Its PCI bus id, where that is known.
    pub bus_id: Option<String>,
    /// Whether it takes memory of devices, and if so, whether it wants each receive flushed.
    pub takes_devices: Option<bool>,
}

impl NicFacts {
    pub(in crate::transport) fn of(nic: &dyn FoundNic) -> NicFacts {
        let takes_devices = match nic.promises().device_memory {
            DeviceMemoryAccess::None => None,
            DeviceMemoryAccess::WithFlush { is_forced } => Some(is_forced),
        };
        let (words, device) = (nic.description().to_string(), nic.description().device.clone());
        NicFacts { words, device, bus_id: nic.bus_id(), takes_devices }
    }
}
