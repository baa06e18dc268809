//! Channels between hosts, against bounds that are arithmetic of the machine, and against what NCCL 2.30.7 finds on the
//! same files.

use std::collections::HashMap;

use super::*;
use crate::topo::bandwidth::GpuGeneration;
use crate::topo::description::{Function, GpuLink, Machine, Nic, Pci, walk_mut};
use crate::topo::paths::{Paths, share_of_links};
use crate::topo::system::NodeKind;
use crate::topo::{machines, xml};

fn machine(name: &str) -> Machine {
    xml::parse(name, machines::text(name)).unwrap().0
}

fn hosts(machine: &Machine, count: u32) -> System {
    System::new(&machine.repeated(count)).unwrap()
}

fn in_order(system: &System) -> Vec<usize> {
    (0..Domain::all(system).len()).collect()
}

fn found(system: &System, cross: CrossNic) -> Between {
    let found = search(system, &in_order(system), cross).unwrap();
    hold(system, &found);
    found
}

fn each_device(machine: &mut Machine, each: &mut impl FnMut(&mut Pci)) {
    machine.cpus.iter_mut().for_each(|cpu| walk_mut(&mut cpu.devices, each));
}

fn each_port(machine: &mut Machine, mut each: impl FnMut(&mut crate::topo::description::Port)) {
    each_device(machine, &mut |device| {
        if let Function::Nic(nic) = &mut device.function {
            nic.ports.iter_mut().for_each(&mut each);
        }
    });
}

/// Every hop visits each GPU of its domain once; hops leave where the next one enters, where rails are told; and no
/// link carries more than it can. The ways are found anew here, on the whole system.
fn hold(system: &System, found: &Between) {
    let domains = Domain::all(system);
    let rail = |port: NodeId| match &system.node(port).kind {
        NodeKind::Port { rail, .. } => *rail,
        other => panic!("{other:?} is no port"),
    };
    let mut paths: HashMap<NodeId, Paths> = HashMap::new();
    let mut loads: HashMap<(NodeId, NodeId), (Bandwidth, u64)> = HashMap::new();
    let mut add = |from: NodeId, to: NodeId, backwards: bool| {
        let mut nodes = paths.entry(from).or_insert_with(|| Paths::from(system, from)).to(system, to).nodes;
        if backwards {
            nodes.reverse();
        }
        for share in share_of_links(system, &nodes) {
            loads.entry(share.link).or_insert((share.bandwidth, 0)).1 += share.fifths * found.ring.width.0;
        }
    };
    for channel in &found.ring.channels {
        assert_eq!(channel.len(), domains.len());
        for (place, (hop, domain)) in channel.iter().zip(&domains).enumerate() {
            let mut gpus = hop.gpus.clone();
            gpus.sort_unstable();
            let all: Vec<NodeId> = domain
                .nodes
                .iter()
                .copied()
                .filter(|id| matches!(system.node(*id).kind, NodeKind::Gpu { .. }))
                .collect();
            assert_eq!(gpus, all);
            assert!(domain.nodes.contains(&hop.enter) && domain.nodes.contains(&hop.exit));
            assert_eq!(rail(hop.exit), rail(channel[(place + 1) % channel.len()].enter));
            hop.gpus.windows(2).for_each(|pair| add(pair[0], pair[1], false));
            add(hop.gpus[0], hop.enter, true);
            let last = hop.gpus[hop.gpus.len() - 1];
            // A GPU far from the NIC may pass its data on over the one that is near, by NVLink.
            let near = hop.gpus.iter().min_by_key(|gpu| Paths::from(system, **gpu).to(system, hop.exit).kind);
            let near = *near.unwrap();
            let switched = |gpu| Paths::from(system, gpu).to(system, near).kind == crate::topo::paths::PathKind::Nvl;
            if switched(last) {
                add(last, near, false);
                add(near, hop.exit, false);
            } else {
                add(last, hop.exit, false);
            }
        }
    }
    for (link, (bandwidth, load)) in loads {
        let of = format!("{} to {}", system.name(link.0), system.name(link.1));
        assert!(
            load <= bandwidth.0 * 5,
            "{of} carries {bandwidth} and gets {load} fifths of a MB/s: {:#?}",
            found.ring
        );
    }
    for channel in &found.tree.channels {
        assert!(channel.iter().all(|hop| hop.enter == hop.exit || found.ring.crosses));
    }
}

/// Eight GPUs of AMD with a link between each two and eight NICs.
fn mesh() -> Machine {
    let mut machine = machine("h100x8");
    let bus_ids: Vec<String> = (1..=8).map(|number| format!("0000:{number:02x}:00.0")).collect();
    each_device(&mut machine, &mut |device| {
        if let Function::Gpu(gpu) = &mut device.function {
            let others = bus_ids.iter().filter(|other| **other != device.bus_id);
            gpu.generation = GpuGeneration::Amd { gfx: 0x942 };
            gpu.links =
                others.map(|target| GpuLink { target: target.clone(), target_class: 0x030200, count: 1 }).collect();
        }
    });
    machine
}

/// What the NICs of one domain carry: of each card the lesser of its PCI link and its ports.
fn network_bound(system: &System) -> f64 {
    let domain = &Domain::all(system)[0];
    let card = |card: &NodeId| {
        let of = |network: bool| -> u64 {
            let links = system.links(*card).iter();
            links
                .filter(|link| (link.kind == crate::topo::system::LinkKind::Network) == network)
                .map(|l| l.bandwidth.0)
                .sum()
        };
        of(true).min(of(false))
    };
    let cards = domain.nodes.iter().filter(|id| system.node(**id).kind == NodeKind::Nic);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let total = cards.map(card).sum::<u64>() as f64;
    total / 1e3
}

/// All GPUs of a domain pass everything on but what the last one of each chain gives to the network.
fn inside_bound(system: &System) -> f64 {
    let domain = &Domain::all(system)[0];
    let ways = Ways::new(&domain.part);
    #[expect(clippy::cast_precision_loss, reason = "small")]
    let gpus = ways.gpus.len() as f64;
    ways.rings().unwrap().total().gigabytes() * gpus / (gpus - 1.0)
}

/// The bound, and what NCCL 2.30.7 finds for ring and tree.
#[test]
fn channels_between_hosts_reach_the_bound_and_are_never_below_nccl() {
    let nccl = [
        ("a100bridge", 40.0, 20.0),
        ("a100x4mesh", 96.0, 96.0),
        ("b200x8", 384.0, 384.0),
        ("dgx1p", 48.0, 48.0),
        ("dgx1v", 48.0, 48.0),
        ("h100x8", 384.0, 384.0),
        ("ncv4-gen4", 12.0, 12.0),
        ("ndv4", 192.0, 192.0),
        ("nvl72", 721.6, 721.6),
        ("p4d", 48.0, 48.0),
        ("r4p3l", 1.2, 1.2),
        ("r8pcie", 10.0, 7.0),
    ];
    assert_eq!(nccl.map(|(name, ..)| name), machines::ALL);
    let mut said = String::new();
    let mut short = Vec::new();
    for (name, ring, tree) in nccl {
        let system = hosts(&machine(name), 2);
        let found = found(&system, CrossNic::IfBetter);
        let (got_ring, got_tree) = (found.ring.total().gigabytes(), found.tree.total().gigabytes());
        let bound = match name {
            "r4p3l" => 1.25, // one of its two NICs hangs on a link of 0.19 GB/s
            _ => network_bound(&system).min(inside_bound(&system)),
        };
        said += &format!("{name}: ring {got_ring}, tree {got_tree}, bound {bound}, NCCL {ring} and {tree}\n");
        let reached = ring < 0.97 * bound || got_ring >= 0.97 * bound;
        if !reached || got_ring < ring - 0.001 || got_tree < tree - 0.001 {
            short.push(name);
        }
    }
    assert!(short.is_empty(), "{short:?} are short:\n{said}");
}

#[test]
fn crossing_nics_is_a_choice() {
    let system = hosts(&machine("h100x8"), 2);
    let total = |system: &System, cross| found(system, cross).ring.total().gigabytes();
    // Every GPU sends to the next one and, as the last of its chain, over the one near the NIC: 8 channels of 18 links
    // of 20.6.
    assert!((total(&system, CrossNic::Never) - 18.0 * 20.6).abs() < 0.05);
    assert_eq!(total(&system, CrossNic::IfBetter), 8.0 * 48.0);
    assert_eq!(total(&system, CrossNic::Allowed), 8.0 * 48.0);
    // Two GPUs share a NIC on p4d: the second is the last one, and nothing crosses unless it is allowed to at no gain.
    let system = hosts(&machine("p4d"), 2);
    let crosses = |cross| found(&system, cross).ring.crosses;
    assert_eq!([CrossNic::Never, CrossNic::IfBetter, CrossNic::Allowed].map(crosses), [false, false, true]);
}

#[test]
fn zigzags_use_every_link_of_a_full_mesh_once() {
    let system = hosts(&mesh(), 2);
    let crossed = found(&system, CrossNic::IfBetter);
    assert_eq!((crossed.ring.channels.len(), crossed.ring.total().gigabytes()), (8, 8.0 * 48.0));
    let mut arcs: Vec<(NodeId, NodeId)> = crossed
        .ring
        .channels
        .iter()
        .flat_map(|channel| channel[0].gpus.windows(2).map(|pair| (pair[0], pair[1])))
        .collect();
    arcs.sort_unstable();
    arcs.dedup();
    assert_eq!(arcs.len(), 56);
    assert_eq!(found(&system, CrossNic::Never).ring.total().gigabytes(), 7.0 * 48.0);
}

/// On rails that do not meet, an odd number of hosts still closes its rings: the first three hosts' exchanges undo each
/// other.
#[test]
fn rings_close_on_rails_with_any_number_of_hosts() {
    for mut machine in [mesh(), machine("h100x8")] {
        let mut rail = 0;
        each_port(&mut machine, |port| {
            port.rail = Some(7 - rail);
            rail += 1;
        });
        for count in [2, 3, 4, 5] {
            let system = hosts(&machine, count);
            assert_eq!(found(&system, CrossNic::IfBetter).ring.total().gigabytes(), 384.0, "{count} hosts");
        }
    }
}

/// One host names its NICs in the other direction: lanes follow the rails, not the order.
#[test]
fn lanes_are_rails_and_not_numbers() {
    let (mut one, mut two) = (machine("p4d"), machine("p4d"));
    let mut next = 0;
    each_port(&mut one, |port| (port.rail, next) = (Some(10 + next), next + 1));
    each_port(&mut two, |port| (port.rail, next) = (Some(10 + 7 - next), next + 1));
    two.cpus.iter_mut().for_each(|cpu| cpu.host = 77);
    let both = Machine { cpus: one.cpus.iter().chain(&two.cpus).cloned().collect() };
    let mut both = both;
    both.cpus.iter_mut().for_each(|cpu| cpu.clique = cpu.host);
    let system = System::new(&both).unwrap();
    let result = found(&system, CrossNic::Never);
    assert_eq!(result.ring.total().gigabytes(), 48.0);
    for cpu in both.cpus.iter_mut().filter(|cpu| cpu.host == 77) {
        walk_mut(&mut cpu.devices, &mut |device| {
            if let Function::Nic(nic) = &mut device.function {
                nic.ports.iter_mut().for_each(|port| port.rail = port.rail.map(|rail| rail + 100));
            }
        });
    }
    let error = search(&System::new(&both).unwrap(), &[0, 1], CrossNic::Never).unwrap_err();
    assert!(error.contains("share no rail"), "{error}");
}

#[test]
fn a_dead_nic_costs_its_own_share() {
    let mut machine = machine("b200x8");
    each_port(&mut machine, |port| {
        if port.device == 3 {
            port.megabits = 0;
        }
    });
    let system = hosts(&machine, 2);
    let result = found(&system, CrossNic::IfBetter);
    assert_eq!(result.ring.total().gigabytes(), 7.0 * 48.0);
    assert_eq!(result.tree.total().gigabytes(), 7.0 * 48.0);
    each_port(&mut machine, |port| port.megabits = 0);
    let error = search(&hosts(&machine, 2), &[0, 1], CrossNic::IfBetter).unwrap_err();
    assert!(error.contains("has no NIC that works"), "{error}");
}

/// Two hosts of 8 GPUs and 8 NICs and one of 4 and 4: the small one's NICs serve two channels each.
#[test]
fn the_narrowest_host_sets_the_width() {
    let large = machine("b200x8");
    let mut small = large.clone();
    let keeps = |bridge: &Pci| {
        bridge.devices.iter().all(|device| match &device.function {
            Function::Gpu(gpu) => gpu.device < 4,
            Function::Nic(Nic { ports }) => ports.iter().all(|port| port.device < 4),
            Function::Bridge => true,
        })
    };
    small.cpus.iter_mut().for_each(|cpu| cpu.devices.retain(keeps));
    assert_eq!(small.gpus().len(), 4);
    let mut cpus = large.repeated(2).cpus;
    cpus.extend(small.cpus.into_iter().map(|cpu| crate::topo::description::Cpu { host: 99, clique: 99, ..cpu }));
    let system = System::new(&Machine { cpus }).unwrap();
    let result = found(&system, CrossNic::IfBetter);
    assert_eq!(result.ring.total().gigabytes(), 4.0 * 48.0);
    assert_eq!(result.tree.total().gigabytes(), 4.0 * 48.0);
}

#[test]
fn a_host_alone_has_no_channel_between_hosts() {
    let system = machines::system("h100x8");
    assert!(search(&system, &[0], CrossNic::Never).unwrap_err().contains("one domain"));
}

/// Channels are found for each class of equal hosts and then only walked: many hosts have the channels of two.
#[test]
fn many_hosts_have_the_channels_of_two() {
    let machine = machine("h100x8");
    let [few, many] = [2, 64].map(|count| {
        let system = hosts(&machine, count);
        search(&system, &in_order(&system), CrossNic::IfBetter).unwrap()
    });
    assert_eq!((few.ring.width, few.ring.channels.len()), (many.ring.width, many.ring.channels.len()));
    assert_eq!(many.ring.channels[0].len(), 64);
}
