//! Memory of devices between hosts whose devices hang on the same switches: by fabric handles, which the bootstrap
//! carries and the driver looks up.
//!
//! An offer is the handle alone. It is good as long as the memory lives, so its owner keeps the memory until the taker
//! has said, or shown, that it has mapped it. Who could read the bootstrap's connections could map the memory.

use crate::device::{self, FabricHandle, Region};
use crate::error::{Error, Result};
use crate::transport::routes::unreachable;
use crate::transport::table::PeerOffer;

/// What peers on other hosts need to map `memory`, which was allocated for them.
///
/// # Errors
/// Where the driver gave it no handle.
pub(super) fn offer(memory: &Region) -> Result<Vec<u8>> {
    Ok(device::fabric_of(memory.home())?.fabric_handle(memory)?.0.to_vec())
}

/// Maps the `wanted` memory that its owner offered.
///
/// # Errors
/// [`crate::error::Kind::Remote`] of a broken offer, and where it does not lead to that memory; of this process, where
/// it lacks descriptors or memory.
pub(super) fn import(wanted: PeerOffer, offer: &[u8]) -> Result<Region> {
    let PeerOffer { owner, home, bytes } = wanted;
    let handle: [u8; FabricHandle::BYTES] = offer
        .try_into()
        .map_err(|_| Error::remote(owner, format!("rank {owner} offered memory by {} bytes", offer.len())))?;
    let imported = device::fabric_of(home).and_then(|device| device.import_fabric(&FabricHandle(handle), bytes));
    imported.map_err(|error| unreachable(owner, &error))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::{DeviceMemory, Home, HostMemory, Sharing};
    use crate::error::Kind;
    use crate::types::Rank;

    #[test]
    fn offers_of_another_length_are_broken_and_memory_without_a_handle_is_not_offered() {
        let wanted = PeerOffer { owner: Rank::new(3), home: Home::Host, bytes: 64 };
        for length in [0, 1, 63, 65, 256] {
            let error = import(wanted, &vec![7; length]).unwrap_err();
            assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(3)), "{length}");
        }
        let memory = HostMemory.allocate(64, Sharing::Hosts).unwrap();
        assert!(offer(&memory).is_err());
    }

    /// Regression: it was this rank's usage that was wrong, which ends no communicator.
    #[test]
    fn a_handle_for_memory_that_has_none_is_the_peers_fault() {
        let wanted = PeerOffer { owner: Rank::new(3), home: Home::Host, bytes: 64 };
        let error = import(wanted, &[7; FabricHandle::BYTES]).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(3)), "{error}");
        assert!(error.message().contains("rank 3") && error.message().contains("no fabric handles"), "{error}");
    }
}
