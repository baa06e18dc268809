//! This host as a topology: what sysfs and NVML show, put together.

use std::path::Path;

pub use crate::session::settings::standing::{SwitchesTold, switches_of};
use crate::sys::{devices, interfaces, nvml};
use crate::topo::description::{CpuCaches, Machine, ProcessorDetails};
use crate::topo::notes::Notes;
use crate::topo::{detect, doubts};

/// This host.
#[derive(Debug, Clone, Default)]
pub struct ThisHost {
    /// Its NUMA nodes and devices.
    pub machine: Machine,
    /// What was assumed, and what nobody tells.
    pub notes: Vec<String>,
    /// What looks like a mistake, or like a fault of the machine.
    pub doubts: Vec<String>,
    /// UUID and bus id of each GPU that NVML shows.
    pub gpus: Vec<([u8; 16], String)>,
}

/// Looks at this host. `root` is `/`, or what stands for it in tests. What cannot be read is left out. The machine of
/// `file`, where there is one, takes the place of what sysfs shows; NVML tells what it leaves out of GPUs. Where NVML
/// can be loaded, this takes as long as its start does: on hosts with many GPUs some tenths of a second.
pub fn look(root: &Path, file: Option<Machine>) -> ThisHost {
    let (mut machine, mut notes) = file.map_or_else(|| shown(root), |machine| (machine, Notes::default()));
    let Some(gpus) = nvml::gpus() else {
        let doubts = doubts::of(&machine);
        return ThisHost { machine, notes: notes.lines(), doubts, gpus: Vec::new() };
    };
    // Without a channel this process cannot map memory of GPUs of other hosts, whatever their links.
    let spans_hosts = nvml::has_imex_channel(root);
    let rdma = devices::gpu_rdma(root);
    let told = gpus.iter().map(|gpu| detect::NvidiaGpu {
        bus_id: &gpu.bus_id,
        capability: gpu.capability,
        pcie: gpu.pcie,
        links: &gpu.links,
        clique: gpu.clique.filter(|_| spans_hosts).map(|clique| detect::clique_of(clique.cluster, clique.number)),
        rdma,
    });
    detect::add_nvidia(&mut machine, &told.collect::<Vec<_>>());
    // NVML has told what sysfs lacks, so the note about that GPU goes.
    gpus.iter().for_each(|gpu| notes.forget(&gpu.bus_id));
    let gpus = gpus.into_iter().filter_map(|gpu| Some((gpu.uuid?, gpu.bus_id))).collect();
    let doubts = doubts::of(&machine);
    ThisHost { machine, notes: notes.lines(), doubts, gpus }
}

/// Another host, whose `/sys` and `/proc` stand in this folder: what sysfs shows of it.
pub fn of_folder(root: &Path) -> (Machine, Vec<String>) {
    let (mut machine, notes) = shown(root);
    add_details(root, &mut machine);
    (machine, notes.lines())
}

/// What sysfs shows.
fn shown(root: &Path) -> (Machine, Notes) {
    let host = devices::scan(root);
    // Without addresses no subnet is known: those of this host say nothing of a folder's.
    let addresses = if root == Path::new("/") { interfaces::list().unwrap_or_default() } else { Vec::new() };
    let subnets: Vec<Vec<String>> = host
        .devices
        .iter()
        .map(|device| device.networks.iter().map(|port| port.subnet(&addresses)).collect())
        .collect();
    let nodes: Vec<(u32, &str)> = host.nodes.iter().map(|node| (node.number, &*node.cpus)).collect();
    let found = host.devices.iter().zip(&subnets).map(|(device, subnets)| detect::Device {
        path: &device.path,
        texts: device.texts.each_ref().map(|text| &**text),
        link: device.link.each_ref().map(|text| &**text),
        numa: device.numa,
        rdma: host.gpu_rdma,
        networks: device
            .networks
            .iter()
            .zip(subnets)
            .map(|(port, subnet)| detect::PortShown {
                name: &port.name,
                megabits: port.megabits,
                subnet,
                rdma: port.rdma,
            })
            .collect(),
    });
    let found: Vec<detect::Device<'_>> = found.collect();
    let processor = host.processor.each_ref().map(|text| &**text);
    detect::host(std::env::consts::ARCH, processor, &nodes, &found)
}

/// Adds the memory, cores and caches of NUMA nodes to a machine of one host, which people want to see and ranks do not.
pub fn add_details(root: &Path, machine: &mut Machine) {
    for cpu in &mut machine.cpus {
        let parts = devices::parts_of_node(root, cpu.numa);
        let caches =
            parts.caches.iter().map(|(level, bytes, count)| CpuCaches { level: *level, bytes: *bytes, count: *count });
        cpu.details = ProcessorDetails {
            package: parts.package,
            memory_bytes: parts.memory_bytes,
            cores: parts.cores,
            caches: caches.collect(),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::machine_file;

    /// What looks wrong in a file that settings name is told to ranks: see `channel_search`.
    #[test]
    fn a_files_doubts_are_told() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/descriptions/two-trays-less-links.xml");
        let (machine, _) = machine_file::parse("trays", &std::fs::read_to_string(path).unwrap()).unwrap();
        let host = look(Path::new("/nowhere"), Some(machine));
        assert!(host.doubts.iter().any(|doubt| doubt.contains("it has no NVLinks")), "{:?}", host.doubts);
    }
}
