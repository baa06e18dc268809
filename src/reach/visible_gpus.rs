//! What a process sees of its host's GPUs, as CUDA enumerates them: what `CUDA_VISIBLE_DEVICES` and MIG leave.
//!
//! What CUDA does with parts of GPUs stands in NVIDIA's guide to MIG: before the driver 570 a process sees one, and no
//! whole GPU beside it; from 570 on one compute instance of each GPU instance, and whole GPUs beside them. What numbers
//! of a list mean on such hosts it does not say: here they count GPUs, of which one that is split stands for its first
//! part.

use crate::config::{DeviceName, VisibleDevices};
use crate::sys::gpus::{Gpu, MAX_GPUS};
use crate::topo::affinity::Device;

/// How CUDA shows GPUs that MIG has split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitGpus {
    /// One part of one of them, and nothing else.
    OnePart,
    /// One part of each instance, and whole GPUs.
    EachInstance,
}

impl SplitGpus {
    /// What a driver of this branch does. Of one that is not known the first part is there in any case.
    pub fn of_driver(branch: Option<u32>) -> SplitGpus {
        if branch.is_some_and(|branch| branch >= EACH_INSTANCE) { SplitGpus::EachInstance } else { SplitGpus::OnePart }
    }
}

/// The devices that CUDA would show of `all`, which are in the order of the bus, where the user wants to see `wanted`.
pub fn visible(all: &[Gpu], shown: SplitGpus, wanted: &VisibleDevices) -> Vec<Device> {
    let entries = match wanted {
        VisibleDevices::All => all.iter().flat_map(entries_of).take(MAX_GPUS).collect(),
        VisibleDevices::Only(names) => listed(all, shown, names),
    };
    let part = entries.iter().find(|entry| entry.is_part);
    match (shown, part) {
        (SplitGpus::OnePart, Some(part)) => vec![part.device.clone()],
        _ => entries.into_iter().map(|entry| entry.device).collect(),
    }
}

/// A device of the list that CUDA makes.
#[derive(Debug, Clone)]
struct Entry {
    device: Device,
    is_part: bool,
    /// What would follow it has no certain ordinal.
    is_last: bool,
}

/// What a GPU is to CUDA: itself, or its parts.
fn entries_of(gpu: &Gpu) -> Vec<Entry> {
    let entry = |id, is_part| Entry { device: Device { id, node: gpu.node }, is_part, is_last: false };
    match &gpu.parts {
        None => vec![entry(gpu.bus_id.clone(), false)],
        Some(parts) => parts.iter().map(|part| entry(part.name(gpu), true)).collect(),
    }
}

/// What the list `names` leads to.
fn listed(all: &[Gpu], shown: SplitGpus, names: &[DeviceName]) -> Vec<Entry> {
    let mut seen: Vec<Entry> = Vec::new();
    for name in names {
        let entry = match name {
            DeviceName::Index(index) => {
                usize::try_from(*index).ok().and_then(|index| all.get(index)).and_then(first_of)
            }
            DeviceName::Uuid(prefix) => by_uuid(all, prefix),
            DeviceName::Mig(name) => (!all.is_empty()).then(|| by_name(all, name)),
        };
        // CUDA ends its list at an entry that names nothing, and shows none at all where one is named twice.
        let Some(entry) = entry else { break };
        if seen.iter().any(|other| other.device.id == entry.device.id) {
            return Vec::new();
        }
        let is_last = entry.is_last && shown == SplitGpus::EachInstance;
        seen.push(entry);
        if is_last || seen.len() == MAX_GPUS {
            break;
        }
    }
    seen
}

/// A GPU that is named as a whole; one that is split stands for its first part. Whether its other parts follow is not
/// known.
fn first_of(gpu: &Gpu) -> Option<Entry> {
    entries_of(gpu).into_iter().next().map(|entry| Entry { is_last: entry.is_part, ..entry })
}

/// The only GPU whose UUID begins with `prefix`.
fn by_uuid(all: &[Gpu], prefix: &str) -> Option<Entry> {
    let begins = |uuid: &str| uuid.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let mut named = all.iter().filter(|gpu| gpu.uuid.as_deref().is_some_and(begins));
    match (named.next(), named.next()) {
        (Some(gpu), None) => first_of(gpu),
        // The driver keeps a UUID to itself: CUDA may know the GPU all the same.
        (None, _) if all.iter().any(|gpu| gpu.uuid.is_none()) => {
            Some(Entry { device: Device { id: prefix.to_owned(), node: None }, is_part: false, is_last: false })
        }
        _ => None,
    }
}

/// A part by its own name, which only the driver's library could look up. CUDA shows one of each instance: where each
/// has but one, every part of the list is shown.
fn by_name(all: &[Gpu], name: &str) -> Entry {
    let mut parts = all.iter().filter_map(|gpu| gpu.parts.as_ref()).flatten().peekable();
    let are_apart = parts.peek().is_some() && parts.all(|part| part.is_only);
    Entry { device: Device { id: name.to_owned(), node: None }, is_part: true, is_last: !are_apart }
}

/// The first branch of the driver that shows a process several parts.
const EACH_INSTANCE: u32 = 570;

#[cfg(test)]
mod tests {
    use super::SplitGpus::{EachInstance, OnePart};
    use super::*;
    use crate::sys::gpus::Part;

    fn gpu(bus: &str, uuid: Option<&str>, node: u32) -> Gpu {
        Gpu { bus_id: format!("0000:{bus}:00.0"), uuid: uuid.map(str::to_owned), node: Some(node), parts: None }
    }

    fn whole() -> Vec<Gpu> {
        vec![gpu("01", Some("GPU-aa00-1"), 0), gpu("02", Some("GPU-aa11-2"), 0), gpu("81", None, 1)]
    }

    /// Not split; three instances, the last with two compute instances or one; split, but with nothing for this
    /// process; not split.
    fn split(is_only: bool) -> Vec<Gpu> {
        let part = |instance, is_only| Part { instance, compute: 0, is_only };
        let parts = vec![part(1, true), part(2, true), part(5, is_only)];
        let three = Gpu { parts: Some(parts), ..gpu("02", Some("GPU-b"), 1) };
        let none = Gpu { parts: Some(Vec::new()), ..gpu("03", Some("GPU-c"), 1) };
        vec![gpu("01", Some("GPU-a"), 0), three, none, gpu("04", Some("GPU-d"), 1)]
    }

    fn ids(all: &[Gpu], shown: SplitGpus, wanted: &VisibleDevices) -> Vec<String> {
        visible(all, shown, wanted).into_iter().map(|device| device.id).collect()
    }

    fn seen(all: &[Gpu], shown: SplitGpus, names: &[DeviceName]) -> Vec<String> {
        ids(all, shown, &VisibleDevices::Only(names.to_vec()))
    }

    fn index(number: u32) -> DeviceName {
        DeviceName::Index(number)
    }

    fn uuid(text: &str) -> DeviceName {
        DeviceName::Uuid(text.to_owned())
    }

    fn part(text: &str) -> DeviceName {
        DeviceName::Mig(text.to_owned())
    }

    #[test]
    fn what_is_visible_is_what_cuda_shows() {
        for shown in [OnePart, EachInstance] {
            assert_eq!(visible(&whole(), shown, &VisibleDevices::All).len(), 3);
            let seen = |names: &[DeviceName]| seen(&whole(), shown, names);
            assert_eq!(seen(&[]), [""; 0]);
            assert_eq!(seen(&[index(2), index(0)]), ["0000:81:00.0", "0000:01:00.0"]);
            assert_eq!(seen(&[index(1), index(3), index(0)]), ["0000:02:00.0"]);
            assert_eq!(seen(&[index(1), index(0), index(1)]), [""; 0], "one is named twice");
            assert_eq!(seen(&[uuid("GPU-AA11"), uuid("GPU-aa00-1")]), ["0000:02:00.0", "0000:01:00.0"]);
            assert_eq!(seen(&[uuid("GPU-aa")]), [""; 0], "two begin so");
            assert_eq!(seen(&[uuid("GPU-77")]), ["GPU-77"], "may be the one whose UUID is hidden");
            assert_eq!(seen(&[part("MIG-5"), part("MIG-7")]), ["MIG-5"], "no more is known of the parts");
        }
        assert_eq!(seen(&whole(), OnePart, &[index(0), part("MIG-5"), index(1)]), ["MIG-5"], "and no GPU beside it");
        assert_eq!(seen(&whole(), OnePart, &[part("MIG-5"), part("MIG-5")]), [""; 0], "one is named twice");
        assert_eq!(seen(&[], OnePart, &[part("MIG-5"), index(0)]), [""; 0]);
    }

    #[test]
    fn before_570_a_process_sees_one_part_and_nothing_else() {
        let (all, first) = (split(true), "MIG-GPU-b/1/0");
        assert_eq!(ids(&all, OnePart, &VisibleDevices::All), [first]);
        assert_eq!(seen(&all, OnePart, &[index(1)]), [first]);
        assert_eq!(seen(&all, OnePart, &[index(0), index(1)]), [first], "no whole GPU beside it");
        assert_eq!(seen(&all, OnePart, &[index(3), index(0)]), ["0000:04:00.0", "0000:01:00.0"], "none is split");
        assert_eq!(seen(&all, OnePart, &[uuid("GPU-b"), index(3)]), [first]);
        assert_eq!(seen(&all, OnePart, &[part("MIG-5"), part("MIG-7")]), ["MIG-5"]);
        assert_eq!(seen(&all, OnePart, &[index(2), index(0)]), [""; 0], "nothing of the first is for this process");
        assert_eq!(visible(&all, OnePart, &VisibleDevices::All)[0].node, Some(1), "the GPU's");
    }

    #[test]
    fn from_570_on_it_sees_a_part_of_each_instance_and_whole_gpus() {
        let all = split(true);
        let each = ["0000:01:00.0", "MIG-GPU-b/1/0", "MIG-GPU-b/2/0", "MIG-GPU-b/5/0", "0000:04:00.0"];
        assert_eq!(ids(&all, EachInstance, &VisibleDevices::All), each);
        assert_eq!(
            seen(&all, EachInstance, &[part("MIG-5"), part("MIG-7"), index(0)]),
            ["MIG-5", "MIG-7", "0000:01:00.0"]
        );
        // A number behind a GPU that is split may be counted in two ways.
        assert_eq!(seen(&all, EachInstance, &[index(0), index(1), index(3)]), ["0000:01:00.0", "MIG-GPU-b/1/0"]);
        assert_eq!(seen(&all, EachInstance, &[uuid("GPU-d"), uuid("GPU-b")]), ["0000:04:00.0", "MIG-GPU-b/1/0"]);
        // With two compute instances in one GPU instance, two names may be one device.
        let further = split(false);
        assert_eq!(ids(&further, EachInstance, &VisibleDevices::All), each);
        assert_eq!(seen(&further, EachInstance, &[index(0), part("MIG-5"), part("MIG-7")]), ["0000:01:00.0", "MIG-5"]);
    }

    #[test]
    fn there_are_no_more_devices_than_a_rank_may_tell_of() {
        let part = |instance| Part { instance, compute: 0, is_only: true };
        let all: Vec<Gpu> =
            (0..10).map(|_| Gpu { parts: Some((0..7).map(part).collect()), ..gpu("01", None, 0) }).collect();
        assert_eq!(visible(&all, EachInstance, &VisibleDevices::All).len(), MAX_GPUS);
    }

    #[test]
    fn the_driver_decides() {
        let of = |branch| SplitGpus::of_driver(branch);
        assert_eq!(
            [of(None), of(Some(565)), of(Some(570)), of(Some(580))],
            [OnePart, OnePart, EachInstance, EachInstance]
        );
    }
}
