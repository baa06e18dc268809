//! Freeing and launching take turns in a process.
//!
//! Most calls that free or unmap memory wait for the kernels of all GPUs of the process, and hold up their thread. A
//! kernel that begins meanwhile might wait for a launch of that thread, on whatever GPU. So memory is freed while no
//! GPU of the process has work of the library, and none gets any before it is done.

use crate::sync::primitive::{Condvar, Mutex, MutexGuard};

/// Many threads launch at a time, or one frees. Who frees waits for nobody: the memory can be freed later.
#[derive(Debug, Default)]
pub(in crate::device::cuda) struct Gate {
    state: Mutex<GateState>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    launches: usize,
    is_freeing: bool,
}

/// A kernel is launched that may wait for this process.
#[derive(Debug)]
pub(in crate::device::cuda) struct Launching<'a>(&'a Gate);

/// Memory is freed. No kernel begins that may wait for this process.
#[derive(Debug)]
pub(in crate::device::cuda) struct Freeing<'a>(&'a Gate);

impl Gate {
    fn lock(&self) -> MutexGuard<'_, GateState> {
        self.state.lock()
    }

    /// Waits until nobody frees memory.
    pub(in crate::device::cuda) fn launch(&self) -> Launching<'_> {
        let mut state = self.lock();
        while state.is_freeing {
            state = self.opened.wait(state);
        }
        state.launches += 1;
        Launching(self)
    }

    /// `None` while somebody launches or frees.
    pub(in crate::device::cuda) fn free(&self) -> Option<Freeing<'_>> {
        let mut state = self.lock();
        if state.launches > 0 || state.is_freeing {
            return None;
        }
        state.is_freeing = true;
        Some(Freeing(self))
    }
}

impl Drop for Launching<'_> {
    fn drop(&mut self) {
        self.0.lock().launches -= 1;
    }
}

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.0.lock().is_freeing = false;
        self.0.opened.notify_all();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn who_launches_waits_for_who_frees_and_not_the_other_way_round() {
        let gate = Gate::default();
        let (one, other) = (gate.launch(), gate.launch());
        drop(one);
        assert!(gate.free().is_none());
        drop(other);
        let freeing = gate.free().unwrap();
        assert!(gate.free().is_none());
        let steps = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _launching = gate.launch();
                steps.lock().push("launched");
            });
            steps.lock().push("freed");
            drop(freeing);
        });
        assert_eq!(*steps.lock(), ["freed", "launched"]);
        assert!(gate.free().is_some());
    }
}
