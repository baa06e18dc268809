//! What a rank tells all others when they first meet on devices.

use crate::device::DeviceIdentity;
use crate::error::Result;
use crate::topo::transport_choice::ladder::LeavesBy;
use crate::types::Rank;
use crate::wire::{Reader, Writer};

/// What a rank tells all others when they first meet on devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    pub process: u64,
    /// The key under which threads of one process find what they share.
    pub(super) ticket: u64,
    pub device: DeviceIdentity,
    /// Whether it may be shared with other processes: [`crate::device::Device::runs_processes_together`], or
    /// `RSCCL_COHORT=split`.
    pub together: bool,
    pub(super) leaves_by: LeavesBy,
    /// `NCCL_P2P_DIRECT_DISABLE`
    pub(super) without_pointers: bool,
}

impl Facts {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u64(self.process).u64(self.ticket).raw(&self.device.0).u8(u8::from(self.together));
        writer.u8(self.leaves_by.code()).u8(u8::from(self.without_pointers));
        writer.finish()
    }

    pub(super) fn decode(rank: Rank, bytes: &[u8]) -> Result<Facts> {
        let read = || -> Result<Facts> {
            let mut reader = Reader::new(bytes, "a rank's device");
            let (process, ticket) = (reader.u64()?, reader.u64()?);
            let (device, together) = (DeviceIdentity(reader.array()?), reader.u8()? != 0);
            let leaves_by = LeavesBy::of_code(reader.u8()?);
            let leaves_by = leaves_by.ok_or_else(|| reader.malformed("its memory leaves it in an unknown way"))?;
            let without_pointers = reader.u8()? != 0;
            reader.finish()?;
            Ok(Facts { process, ticket, device, together, leaves_by, without_pointers })
        };
        read().map_err(|error| error.about(rank))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
pub(super) mod tests {
    use super::*;
    use crate::topo::transport_choice::ladder::WaySettings;

    pub(in crate::reach) fn facts(process: u64, device: u8, together: bool) -> Facts {
        let (device, leaves_by) = (DeviceIdentity([device; 16]), LeavesBy::HandleBySetting);
        Facts { process, ticket: 9, device, together, leaves_by, without_pointers: together }
    }

    /// A rank alone in its process, whose device has descriptors.
    pub(in crate::reach) fn process_of_its_own(process: u64, device: DeviceIdentity, settings: &WaySettings) -> Facts {
        let leaves_by = if settings.by_handle { LeavesBy::HandleBySetting } else { LeavesBy::Descriptor };
        let without_pointers = settings.no_pointers;
        Facts { process, ticket: 9, device, together: false, leaves_by, without_pointers }
    }

    #[test]
    fn facts_come_back_and_broken_ones_are_refused() {
        let mine = facts(7, 3, true);
        assert_eq!(Facts::decode(Rank::new(1), &mine.encode()).unwrap(), mine);
        for broken in [&mine.encode()[1..], &[], &[0; 36], &[9; 35]] {
            assert_eq!(Facts::decode(Rank::new(1), broken).unwrap_err().peer(), Some(1));
        }
    }
}
