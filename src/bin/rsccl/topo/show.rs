//! The machine as text and as JSON.

use std::fmt::Write as _;

use rsccl::internals::topo::bandwidth::GpuGeneration;
use rsccl::internals::topo::description::{Function, Machine, Pci};
use rsccl::internals::topo::paths::{PathKind, Paths};
use rsccl::internals::topo::reach::{self, Verdict};
use rsccl::internals::topo::search;
use rsccl::internals::topo::system::{NodeId, NodeKind, System};
use serde_json::{Value, json};

/// Hosts, NUMA nodes and the devices below them, then the rings of each host.
pub(crate) fn tree(machine: &Machine, system: &System) -> String {
    let mut text = String::new();
    let hosts = machine.hosts();
    for cpu in &machine.cpus {
        let host = hosts.iter().position(|host| *host == cpu.host).unwrap_or(0);
        let of_host = if hosts.len() > 1 { format!("host {host} ") } else { String::new() };
        let [architecture, vendor, ..] = &cpu.identity;
        line(
            &mut text,
            0,
            &format!("{of_host}CPU {} ({architecture} {vendor}, processors {})", cpu.numa, cpu.affinity),
        );
        cpu.devices.iter().for_each(|device| branch(&mut text, 1, device));
        for port in cpu.nics.iter().flat_map(|nic| &nic.ports) {
            line(&mut text, 1, &format!("NIC {} {} Gbit/s, no PCI device", port.name, port.megabits / 1000));
        }
    }
    for host in 0..system.hosts() {
        let gpus = gpus_of(system, host);
        let of_host = if hosts.len() > 1 { format!("host {host}: ") } else { String::new() };
        let Some(rings) = search::rings(system, &gpus) else { continue };
        line(&mut text, 0, &format!("{of_host}rings: {} x {} = {}", rings.orders.len(), rings.width, rings.total()));
        for order in &rings.orders {
            line(&mut text, 1, &order.iter().map(|id| number(system, *id).to_string()).collect::<Vec<_>>().join(" "));
        }
    }
    text
}

fn branch(text: &mut String, depth: usize, device: &Pci) {
    let speed = device.speed.map_or_else(|| "speed unknown".to_owned(), |speed| format!("{speed:?}"));
    let link = format!("{speed} x{}", device.lanes);
    let what = match &device.function {
        Function::Bridge => format!("PCI {}", device.bus_id),
        Function::Gpu(gpu) => {
            let generation = match gpu.generation {
                GpuGeneration::Nvidia { capability: 0 } => "NVIDIA".to_owned(),
                GpuGeneration::Nvidia { capability } => format!("sm_{capability}"),
                GpuGeneration::Amd { gfx } => format!("gfx{gfx:x}"),
            };
            let links: u32 = gpu.links.iter().map(|link| link.count).sum();
            format!("GPU {} {} ({generation}, {links} links)", gpu.device, device.bus_id)
        }
        Function::Nic(nic) => {
            let ports = nic.ports.iter().map(|port| format!("NIC {} {} Gbit/s", port.name, port.megabits / 1000));
            format!("{} {}", ports.collect::<Vec<_>>().join(", "), device.bus_id)
        }
    };
    line(text, depth, &format!("{what}, {link}"));
    device.devices.iter().for_each(|below| branch(text, depth + 1, below));
}

/// One row for each GPU; columns are GPUs, then NICs.
pub(crate) fn paths(system: &System) -> String {
    let (gpus, ports) = (system.gpus(), system.ports());
    let columns: Vec<NodeId> = gpus.iter().chain(&ports).copied().collect();
    let mut rows =
        vec![std::iter::once(String::new()).chain(columns.iter().map(|id| system.name(*id))).collect::<Vec<_>>()];
    for gpu in &gpus {
        let ways = Paths::from(system, *gpu);
        let cell = |to: &NodeId| {
            let way = ways.to(system, *to);
            match way.kind {
                PathKind::Loc => "LOC".to_owned(),
                PathKind::Dis => "DIS".to_owned(),
                kind => format!("{kind} {}", way.bandwidth.gigabytes()),
            }
        };
        rows.push(std::iter::once(system.name(*gpu)).chain(columns.iter().map(cell)).collect());
    }
    let widths: Vec<usize> =
        (0..=columns.len()).map(|at| rows.iter().map(|row| row[at].len()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(&mut text, 0, cells.collect::<Vec<_>>().join("  ").trim_end());
    }
    text
}

/// The way between two devices, and what may use it.
pub(crate) fn why(system: &System, from: NodeId, to: NodeId) -> String {
    let way = Paths::from(system, from).to(system, to);
    let mut text = String::new();
    line(&mut text, 0, &format!("{} to {}: {}, {}", system.name(from), system.name(to), way.kind, way.bandwidth));
    for pair in way.nodes.windows(2) {
        let links = system.links(pair[0]).iter().filter(|link| link.to == pair[1]);
        let link = links.max_by_key(|link| link.bandwidth);
        let what = link.map_or_else(String::new, |link| format!("{:?} {}", link.kind, link.bandwidth));
        line(&mut text, 1, &format!("{} -> {}: {what}", system.name(pair[0]), system.name(pair[1])));
    }
    for (name, verdict) in reach::verdicts(system, from, to) {
        match verdict {
            Verdict::Yes(reason) => line(&mut text, 0, &format!("{name}: yes, {reason}")),
            Verdict::No(reason) => line(&mut text, 0, &format!("{name}: no, {reason}")),
        }
    }
    text
}

/// All of it for programs.
pub(crate) fn json(system: &System, notes: &[String]) -> Value {
    let nodes: Vec<Value> = system
        .ids()
        .map(|id| json!({ "name": system.name(id), "host": system.node(id).host, "bus_id": system.node(id).bus_id }))
        .collect();
    let mut paths = Vec::new();
    for gpu in system.gpus() {
        let ways = Paths::from(system, gpu);
        for to in system.gpus().into_iter().chain(system.ports()).filter(|to| *to != gpu) {
            let way = ways.to(system, to);
            paths.push(json!({
                "from": system.name(gpu), "to": system.name(to), "kind": way.kind.name(), "gbps": way.bandwidth.gigabytes(),
            }));
        }
    }
    let graph = |host| {
        let rings = search::rings(system, &gpus_of(system, host))?;
        let channels: Vec<Vec<u32>> =
            rings.orders.iter().map(|order| order.iter().map(|id| number(system, *id)).collect()).collect();
        Some(json!({
            "pattern": "ring", "scope": "host", "host": host, "channels": channels, "width_gbps": rings.width.gigabytes(),
        }))
    };
    let graphs: Vec<Value> = (0..system.hosts()).filter_map(graph).collect();
    json!({ "nodes": nodes, "paths": paths, "graphs": graphs, "notes": notes })
}

fn gpus_of(system: &System, host: u32) -> Vec<NodeId> {
    system.gpus().into_iter().filter(|id| system.node(*id).host == host).collect()
}

fn number(system: &System, gpu: NodeId) -> u32 {
    match system.node(gpu).kind {
        NodeKind::Gpu { device, .. } => device,
        _ => gpu.0,
    }
}

fn line(text: &mut String, depth: usize, what: &str) {
    let _ = writeln!(text, "{:width$}{what}", "", width = 2 * depth); // writing to a String cannot fail
}
