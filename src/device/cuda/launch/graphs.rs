//! Keeps alive what captured launches need. A graph runs them any number of times, so it keeps their memory, tables,
//! kernels and context until it is destroyed.

use std::ffi::c_void;
use std::mem::ManuallyDrop;

use cudarc::driver::sys::{CUgraph, CUuserObject};

use crate::device::cuda::active::Active;
use crate::device::cuda::driver::context::Primary;
use crate::device::cuda::driver::result::call;
use crate::device::cuda::driver::stream::Capture;
use crate::device::{Region, StatusPage};
use crate::error::Result;
use crate::sync::primitive::{Arc, Mutex, Weak};
use crate::sys::thread;

/// What one graph keeps. The driver has the only lasting reference, which it gives back when the last copy of the graph
/// is destroyed.
#[derive(Debug)]
pub(in crate::device::cuda) struct GraphKeep {
    // Dropped before `_active`, which frees the memory of regions that have gone.
    regions: Mutex<Vec<Region>>,
    /// The pages and the seats of the ranks: kernels look at a page, and write to it, in each replay.
    pages: Mutex<Vec<Arc<StatusPage>>>,
    /// Kept, not read: the kernels, tables and context of the launches.
    _active: Arc<Active>,
}

/// The captures under way and the graphs made from them, keyed by capture number, which the driver does not use twice.
#[derive(Debug, Default)]
pub(in crate::device::cuda) struct Captures {
    kept: Mutex<Vec<(u64, Weak<GraphKeep>)>>,
}

impl Captures {
    /// Makes the graph of a capture keep `regions` and `pages`, and keep the GPU in use. The returned reference dies
    /// with the graph. The context must be current.
    pub(in crate::device::cuda) fn keep(
        &self,
        active: &Arc<Active>,
        capture: Capture,
        (regions, pages): (Vec<Region>, Vec<Arc<StatusPage>>),
    ) -> Result<Weak<GraphKeep>> {
        let mut kept = self.kept.lock();
        kept.retain(|(_, keep)| keep.strong_count() > 0);
        if let Some((_, known)) = kept.iter().find(|(id, _)| *id == capture.id)
            && let Some(keep) = known.upgrade()
        {
            keep.regions.lock().extend(regions);
            keep.pages.lock().extend(pages);
            return Ok(Arc::downgrade(&keep));
        }
        let keep = GraphKeep { regions: Mutex::new(regions), pages: Mutex::new(pages), _active: Arc::clone(active) };
        let keep = Arc::new(keep);
        let known = Arc::downgrade(&keep);
        give_to_graph(active.primary(), capture.graph, keep)?;
        kept.push((capture.id, Weak::clone(&known)));
        Ok(known)
    }
}

fn give_to_graph(primary: &Primary, graph: CUgraph, keep: Arc<GraphKeep>) -> Result<()> {
    let kept = Arc::into_raw(keep).cast_mut().cast::<c_void>();
    let mut object: CUuserObject = std::ptr::null_mut();
    let made =
        // SAFETY: the place is ours; `destroyed` is called once with `kept`, which is an `Arc` that it owns.
        unsafe { call!(primary, cuUserObjectCreate(&raw mut object, kept, destroyed, 1, NO_DESTRUCTOR_SYNC)) };
    if let Err(failure) = made {
        // SAFETY: the driver has not taken it.
        drop(unsafe { Arc::from_raw(kept.cast::<GraphKeep>()) });
        return Err(primary.error(failure));
    }
    // SAFETY: the graph is being captured, so it lives; our one reference goes over to it.
    let moved = unsafe { call!(primary, cuGraphRetainUserObject(graph, object, 1, MOVE)) };
    if let Err(failure) = moved {
        // SAFETY: the reference is still ours; this calls `destroyed`.
        primary.give_back(|| unsafe { call!(primary, cuUserObjectRelease(object, 1)) });
        return Err(primary.error(failure));
    }
    Ok(())
}

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`
const NO_DESTRUCTOR_SYNC: u32 = 1;
/// `CU_GRAPH_USER_OBJECT_MOVE`
const MOVE: u32 = 1;

/// The driver calls this when a graph is destroyed. Giving memory back calls the driver, which a callback must not do,
/// so a thread of its own does it.
unsafe extern "C" fn destroyed(kept: *mut c_void) {
    // SAFETY: the pointer is that of `give_to_graph`, and the driver calls once.
    let kept = ManuallyDrop::new(unsafe { Arc::from_raw(kept.cast::<GraphKeep>()) });
    // If no thread starts, the memory leaks: freeing it here could block the driver for ever.
    let _started = thread::spawn("rsccl graph", move || drop(ManuallyDrop::into_inner(kept)));
}
