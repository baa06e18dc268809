//! This host as a topology: what sysfs and NVML show, put together.

use std::path::Path;

use crate::sys::{devices, interfaces, nvml};
use crate::topo::description::Machine;
use crate::topo::detect;

/// This host.
#[derive(Debug, Clone, Default)]
pub struct ThisHost {
    /// Its NUMA nodes and devices.
    pub machine: Machine,
    /// What was assumed, and what nobody tells.
    pub notes: Vec<String>,
    /// UUID and bus id of each GPU that NVML shows.
    pub gpus: Vec<([u8; 16], String)>,
}

/// Looks at this host. `root` is `/`, or what stands for it in tests. What cannot be read is left out. The machine of
/// `file`, where there is one, takes the place of what sysfs shows; NVML tells what it leaves out of GPUs. Where NVML
/// can be loaded, this takes as long as its start does: on hosts with many GPUs some tenths of a second.
pub fn look(root: &Path, file: Option<Machine>) -> ThisHost {
    let (mut machine, mut notes) = file.map_or_else(|| shown(root), |machine| (machine, Vec::new()));
    let Some(gpus) = nvml::gpus() else { return ThisHost { machine, notes, gpus: Vec::new() } };
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
    notes.retain(|note| !gpus.iter().any(|gpu| note.starts_with(&gpu.bus_id)));
    let gpus = gpus.into_iter().filter_map(|gpu| Some((gpu.uuid?, gpu.bus_id))).collect();
    ThisHost { machine, notes, gpus }
}

/// What sysfs shows.
fn shown(root: &Path) -> (Machine, Vec<String>) {
    let host = devices::scan(root);
    // Without addresses no subnet is known.
    let addresses = interfaces::list().unwrap_or_default();
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
