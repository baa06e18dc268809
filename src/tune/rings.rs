//! The rings by which ranks send: the one home of their numbers, for communicators and for the simulation.

/// The slots of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingSizes {
    /// How many there are.
    pub slots: u32,
    /// The most bytes of a message in one.
    pub slot_bytes: u32,
}

impl RingSizes {
    /// `slots` slots that have `bytes` together, each a multiple of 64.
    pub fn of(slots: u32, bytes: u64) -> RingSizes {
        let slot_bytes = u32::try_from(bytes / u64::from(slots)).unwrap_or(u32::MAX) / 64 * 64;
        RingSizes { slots, slot_bytes: slot_bytes.max(64) }
    }

    /// The rings of collectives. `bytes` is what the user says of the slots together (`NCCL_BUFFSIZE`).
    pub fn of_collectives(bytes: Option<u64>) -> RingSizes {
        RingSizes::of(COLLECTIVE_SLOTS, bytes.unwrap_or(BUFFER_BYTES))
    }
}

/// Slots of a ring by which collectives travel.
pub const COLLECTIVE_SLOTS: u32 = 8;
/// Bytes of a ring's slots together: they stay in the second-level cache.
pub const BUFFER_BYTES: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_share_the_bytes_in_whole_lines() {
        let of = |bytes| RingSizes::of_collectives(bytes).slot_bytes;
        assert_eq!([of(None), of(Some(1 << 20)), of(Some(4 << 20))], [128 << 10, 128 << 10, 512 << 10]);
        assert_eq!([of(Some(0)), of(Some(1000)), of(Some(u64::MAX))], [64, 64, u32::MAX / 64 * 64]);
    }
}
