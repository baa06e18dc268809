//! The machine as text and as JSON.

use std::collections::HashMap;
use std::fmt::Write as _;

use rsccl::internals::topo::bandwidth::{Bandwidth, GpuGeneration};
use rsccl::internals::topo::description::{Cpu, Function, Machine, Pci, Port};
use rsccl::internals::topo::paths::{PathKind, Paths};
use rsccl::internals::topo::search::between::Hop;
use rsccl::internals::topo::system::{NodeId, NodeKind, System};
use rsccl::internals::topo::transport_choice::described::{self, DriverSays};
use rsccl::internals::topo::transport_choice::ladder::WaySettings;
use serde_json::{Value, json};

use super::found::Found;

/// Hosts, NUMA nodes and the devices below them, then the channels inside each domain and between them.
pub(crate) fn tree(machine: &Machine, system: &System, found: &Found) -> String {
    let mut text = String::new();
    let hosts = machine.hosts();
    for cpu in &machine.cpus {
        let host = hosts.iter().position(|host| *host == cpu.host).unwrap_or(0);
        let of_host = if hosts.len() > 1 { format!("host {host} ") } else { String::new() };
        line(&mut text, 0, &format!("{of_host}CPU {} ({})", cpu.numa, of_cpu(cpu)));
        cpu.devices.iter().for_each(|device| branch(&mut text, 1, device));
        for port in cpu.nics.iter().flat_map(|nic| &nic.ports) {
            line(&mut text, 1, &format!("NIC {}, no PCI device", of_port(port)));
        }
    }
    for (graphs, of_domain) in found.domains().iter().zip(&found.names) {
        for (what, inside) in [("rings", &graphs.rings), ("chains of trees", &graphs.chains)] {
            let Some(inside) = inside else { continue };
            let (count, width, total) = (inside.orders.len(), inside.width, inside.total());
            line(&mut text, 0, &format!("{of_domain}{what}: {count} x {width} = {total}"));
            inside.orders.iter().for_each(|order| line(&mut text, 1, &numbers(system, order)));
        }
    }
    match found.between() {
        Some(Ok(between)) => {
            for (what, channels) in [("rings", &between.ring), ("trees", &between.tree)] {
                let (count, width, total) = (channels.channels.len(), channels.width, channels.total());
                let crossed = if channels.crosses { ", NICs are crossed" } else { "" };
                line(&mut text, 0, &format!("between hosts: {what}: {count} x {width} = {total}{crossed}"));
                let hops = channels.channels.iter().filter_map(|channel| channel.first());
                hops.for_each(|hop| line(&mut text, 1, &hop_text(system, hop, what == "rings")));
            }
        }
        Some(Err(reason)) => line(&mut text, 0, &format!("between hosts: no channels: {reason}")),
        None => {}
    }
    text
}

/// What a NUMA node is, as far as that is known: architecture and vendor, package, processors, cores, memory, caches.
fn of_cpu(cpu: &Cpu) -> String {
    let [architecture, vendor, ..] = &cpu.identity;
    let named: Vec<&str> = [&**architecture, &**vendor].into_iter().filter(|word| !word.is_empty()).collect();
    let details = &cpu.details;
    let mut parts = vec![named.join(" ")];
    parts.extend(details.package.map(|package| format!("package {package}")));
    parts.push(processors(&cpu.affinity));
    parts.extend((details.cores > 0).then(|| count(details.cores, "core")));
    parts.extend((details.memory_bytes > 0).then(|| format!("{} of memory", binary(details.memory_bytes))));
    for cache in &details.caches {
        let times = if cache.count == 1 { String::new() } else { format!("{} x ", cache.count) };
        parts.push(format!("{times}L{} {}", cache.level, binary(cache.bytes)));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(", ")
}

fn count(number: u32, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Bytes in the largest unit of which there is at least one, with one decimal below ten.
fn binary(bytes: u64) -> String {
    let (unit, name) = [(1u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit)
        .unwrap_or((1, "bytes"));
    let tenths = u128::from(bytes) * 10 / u128::from(unit);
    if tenths < 100 && !tenths.is_multiple_of(10) {
        format!("{}.{} {name}", tenths / 10, tenths % 10)
    } else {
        format!("{} {name}", tenths / 10)
    }
}

/// A port's name, or its number, and its speed.
fn of_port(port: &Port) -> String {
    let name = if port.name.is_empty() { port.device.to_string() } else { port.name.clone() };
    match port.megabits {
        0 => format!("{name} without a link"),
        megabits if megabits.is_multiple_of(1000) => format!("{name} {} Gbit/s", megabits / 1000),
        megabits => format!("{name} {}.{:03} Gbit/s", megabits / 1000, megabits % 1000),
    }
}

/// The processors of a mask as sysfs and topology files write it, hexadecimal words with the last processors first:
/// `00ff,000000ff` is `processors 0-7,32-39`.
fn processors(mask: &str) -> String {
    if mask.trim().is_empty() {
        return "processors unknown".to_owned();
    }
    let words: Option<Vec<u32>> = mask.trim().split(',').map(|word| u32::from_str_radix(word, 16).ok()).collect();
    let Some(words) = words else { return format!("processors of mask {mask:?}") };
    let all: Vec<usize> = words
        .iter()
        .rev()
        .enumerate()
        .flat_map(|(place, word)| (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| 32 * place + bit))
        .collect();
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for processor in all {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == processor => *last = processor,
            _ => ranges.push((processor, processor)),
        }
    }
    let range = |(first, last): &(usize, usize)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    match &ranges[..] {
        [] => "no processor".to_owned(),
        ranges => format!("processors {}", ranges.iter().map(range).collect::<Vec<_>>().join(",")),
    }
}

/// A channel's piece of the first domain.
fn hop_text(system: &System, hop: &Hop, ring: bool) -> String {
    let exit = if ring { format!(" -> {}", system.name(hop.exit)) } else { String::new() };
    format!("{} -> {}{exit}", system.name(hop.enter), numbers(system, &hop.gpus))
}

fn numbers(system: &System, gpus: &[NodeId]) -> String {
    gpus.iter().map(|id| number(system, *id).to_string()).collect::<Vec<_>>().join(" ")
}

fn branch(text: &mut String, depth: usize, device: &Pci) {
    let link = match (device.speed, device.lanes) {
        (Some(speed), 0) => format!("{speed:?}, lanes unknown"),
        (Some(speed), lanes) => format!("{speed:?} x{lanes}"),
        (None, 0) => "PCI link unknown".to_owned(),
        (None, lanes) => format!("x{lanes}, PCI speed unknown"),
    };
    let what = match &device.function {
        Function::Bridge => format!("PCI {}", device.bus_id),
        Function::Gpu(gpu) => {
            let generation = match gpu.generation {
                GpuGeneration::Nvidia { capability: 0 } => "NVIDIA".to_owned(),
                GpuGeneration::Nvidia { capability } => format!("sm_{capability}"),
                GpuGeneration::Amd { gfx: 0 } => "AMD".to_owned(),
                GpuGeneration::Amd { gfx } => format!("gfx{gfx:x}"),
            };
            let links = gpu.links.iter().fold(0, |sum: u32, link| sum.saturating_add(link.count));
            let coherent = gpu
                .c2c
                .map_or_else(String::new, |(count, megabytes)| format!(", c2c {count} x {}", Bandwidth(megabytes)));
            format!("GPU {} {} ({generation}, {}{coherent})", gpu.device, device.bus_id, count(links, "link"))
        }
        Function::Nic(nic) => {
            let ports: Vec<String> = nic.ports.iter().map(|port| format!("NIC {}", of_port(port))).collect();
            let ports = if ports.is_empty() { "card without a NIC of its own".to_owned() } else { ports.join(", ") };
            format!("{ports} {}", device.bus_id)
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
pub(crate) fn why(
    system: &System,
    (from, to): (NodeId, NodeId),
    settings: (WaySettings, Option<PathKind>),
    driver: DriverSays<'_>,
) -> String {
    let known = described::known(system, (from, to), settings, driver);
    let way = Paths::from(system, from).to(system, to);
    let mut text = String::new();
    let (nodes, bandwidth) = match known.third {
        // The data take the links of the GPU between them, which the shortest way may not do.
        Some(third) => {
            let (mut there, on) =
                (Paths::from(system, from).to(system, third), Paths::from(system, third).to(system, to));
            there.nodes.extend(on.nodes.into_iter().skip(1));
            (there.nodes, there.bandwidth.min(on.bandwidth))
        }
        None => (way.nodes, way.bandwidth),
    };
    line(&mut text, 0, &format!("{} to {}: {}, {bandwidth}", system.name(from), system.name(to), way.kind));
    for pair in nodes.windows(2) {
        let links = system.links(pair[0]).iter().filter(|link| link.to == pair[1]);
        let link = links.max_by_key(|link| link.bandwidth);
        let what = link.map_or_else(String::new, |link| format!("{:?} {}", link.kind, link.bandwidth));
        line(&mut text, 1, &format!("{} -> {}: {what}", system.name(pair[0]), system.name(pair[1])));
    }
    known.lines.iter().for_each(|said| line(&mut text, 0, said));
    text
}

/// All of it for programs.
pub(crate) fn json(system: &System, found: &Found, notes: &[String]) -> Value {
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
    let graphs = graphs(system, found);
    json!({ "nodes": nodes, "paths": paths, "graphs": graphs, "notes": notes })
}

/// One object for each pattern in each domain (scope `host`), then for each pattern between domains (scope `system`).
/// Channels inside a host list device numbers; channels of the system list GPUs by their places among all GPUs, and
/// `nics` says by which NIC each host is entered and left.
fn graphs(system: &System, found: &Found) -> Vec<Value> {
    let mut graphs = Vec::new();
    for (place, domain) in found.domains().iter().enumerate() {
        for (pattern, inside) in [("ring", &domain.rings), ("tree", &domain.chains)] {
            let Some(inside) = inside else { continue };
            let channels: Vec<Vec<u32>> =
                inside.orders.iter().map(|order| order.iter().map(|id| number(system, *id)).collect()).collect();
            graphs.push(json!({
                "pattern": pattern, "scope": "host", "host": place, "channels": channels,
                "width_gbps": inside.width.gigabytes(), "total_gbps": inside.total().gigabytes(),
            }));
        }
    }
    let Some(Ok(between)) = found.between() else { return graphs };
    let ranks: HashMap<NodeId, usize> = system.gpus().into_iter().zip(0..).collect();
    for (pattern, found) in [("ring", &between.ring), ("tree", &between.tree)] {
        let of = |channel: &Vec<Hop>| -> Vec<usize> {
            channel.iter().flat_map(|hop| &hop.gpus).map(|id| ranks[id]).collect()
        };
        let nics = |channel: &Vec<Hop>| -> Vec<Value> {
            channel.iter().map(|hop| json!([system.name(hop.enter), system.name(hop.exit)])).collect()
        };
        let mut graph = json!({
            "pattern": pattern, "scope": "system", "channels": found.channels.iter().map(of).collect::<Vec<_>>(),
            "width_gbps": found.width.gigabytes(), "total_gbps": found.total().gigabytes(), "cross_nic": found.crosses,
            "nics": found.channels.iter().map(nics).collect::<Vec<_>>(),
        });
        if pattern == "tree" {
            graph["parents"] = json!(between.parents);
        }
        graphs.push(graph);
    }
    graphs
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
