//! How much memory a rank holds, by what it is for: on its page, for those who look from outside, and for the program.

use crate::device::Home;
use crate::engine::device_side::DeviceSide;
use crate::session::Session;
use crate::session::page::MemoryKind;
use crate::transport::{Fabric, FabricBytes};

/// Looks anew.
pub(super) fn note(session: &Session, fabric: &Fabric, side: Option<&DeviceSide>) {
    let (page, of_fabric) = (&session.page, FabricBytes::of(fabric));
    page.note_connections(of_fabric);
    let Some(side) = side else { return };
    let bytes = side.memory_bytes();
    page.holds(MemoryKind::Windows, bytes.windows);
    page.holds(MemoryKind::Pinned, bytes.pinned);
    page.holds(MemoryKind::Gpu, bytes.device + of_fabric.queues);
    if let Home::Device(gpu) = side.home {
        page.works_on(gpu.0);
    }
}
