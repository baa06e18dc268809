//! How much memory a rank's connections hold.

use crate::transport::fabric::Fabric;
use crate::transport::windows::HostWindows;

/// Bytes of memory that a rank's connections hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FabricBytes {
    /// What its host's ranks map of it: flat slots, flags and scratch.
    pub arenas: usize,
    /// Of rings of messages.
    pub rings: usize,
    /// Of its own registered buffers.
    pub registered: usize,
    /// Of queues on its device.
    pub queues: usize,
}

impl FabricBytes {
    /// Those of this fabric.
    pub fn of(fabric: &Fabric) -> FabricBytes {
        let of_windows = |windows: &HostWindows| {
            let mine = windows.registered.iter().flatten().filter_map(|all| all.memory.get(windows.me));
            mine.map(|memory| memory.bytes()).sum()
        };
        let windows = fabric.windows.as_deref();
        FabricBytes {
            arenas: windows.map_or(0, |_| fabric.arena_stride()),
            rings: fabric.links.ring_bytes(),
            registered: windows.map_or(0, of_windows),
            queues: fabric.queues.own_bytes(),
        }
    }
}
