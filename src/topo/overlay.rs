//! What a topology file leaves out: GPUs, their links and NICs, from a second file.
//!
//! Files of clouds describe PCI trees only; on a real machine NVML and the NICs' drivers tell the rest. An overlay says
//! it in a test or on another machine:
//!
//! ```xml
//! <overlay>
//!   <gpus sm="80" gdr="1" switch="12"/>             every device of a GPU's class; 12 links of each to NVLink switches
//!   <links>0 1 / 1 0</links>                        or links between GPUs: a row for each, rows are parted by /
//!   <nics speed="100000" gdr="1"/>                  every device of a network card's class: one port each
//!   <gpu busid="0001:00:00.0" dev="0" sm="80"/>     one GPU, as topology files write it
//!   <nic busid="0101:00:00.0"><net …/></nic>        one NIC; cpu="1" in place of busid: on that NUMA node, with no PCI device
//!   <pci busid="ffff:ff:01.0" link_speed="16 GT/s"/>  what is not known of a device: class, link_speed, link_width
//! </overlay>
//! ```

use roxmltree::Node;

use crate::error::{Result, shown};
use crate::topo::bandwidth::PciSpeed;
use crate::topo::description::{self, Function, Gpu, GpuLink, Machine, Nic, Pci, Port, walk_mut};
use crate::topo::detect::{GPU_CLASS, SWITCHES};
use crate::topo::system::SWITCH_CLASS;
use crate::topo::xml::{ElementReader, MAX_LANES, MAX_LINKS, XmlSource};

/// Adds what the overlay says to `machine`; `name` stands in errors. The notes say what was assumed.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] with line and column: no XML, no `<overlay>`, an attribute that is missing
/// or wrong, a device that the machine does not have, a matrix that does not fit the GPUs.
pub fn apply(name: &str, text: &str, machine: &mut Machine) -> Result<Vec<String>> {
    let document = XmlSource::document(name, text)?;
    let source = XmlSource { name, document: &document };
    let mut reader = ElementReader::new(source);
    let root = document.root_element();
    if root.tag_name().name() != "overlay" {
        let name = shown(root.tag_name().name());
        return Err(source.wrong(root, &format!("<{name}> where an overlay has <overlay>")));
    }
    for element in root.children().filter(Node::is_element) {
        match element.tag_name().name() {
            "pci" => complete(&source, element, machine)?,
            "gpus" => all_gpus(&mut reader, element, machine)?,
            "nics" => all_nics(&source, element, machine)?,
            "gpu" => {
                let device = find(&source, element, machine)?;
                let gpu = reader.gpu(element, (0, &device.bus_id))?;
                replace(&mut reader, device, Function::Gpu(gpu));
            }
            "nic" if element.has_attribute("busid") => {
                let nic = reader.nic(element, 0)?;
                replace(&mut reader, find(&source, element, machine)?, Function::Nic(nic));
            }
            "nic" => {
                let number = source.number(element, "cpu")?;
                let nic = reader.nic(element, 0)?;
                let cpu = machine.cpus.iter_mut().find(|cpu| u64::from(cpu.numa) == number);
                cpu.ok_or_else(|| source.wrong(element, &format!("the machine has no CPU {number}")))?.nics.push(nic);
            }
            "links" => links(&source, element, machine)?,
            _ => reader.unknown(element),
        }
    }
    Ok(reader.notes.lines())
}

/// What an overlay says of one device takes the place of what was known.
fn replace(reader: &mut ElementReader<'_>, device: &mut Pci, function: Function) {
    let was = match &device.function {
        Function::Bridge => None,
        Function::Gpu(gpu) => Some(format!("GPU {}", gpu.device)),
        Function::Nic(nic) => Some(format!("NIC {}", shown(nic.ports.first().map_or("", |port| &port.name)))),
    };
    if let Some(was) = was {
        reader.notes.about(&device.bus_id, format!("the overlay takes the place of {was}, which it was before"));
    }
    device.function = function;
}

/// What the description lacks for a search, each with what to do about it; empty for a complete machine.
pub fn missing(machine: &Machine) -> Vec<String> {
    let (mut gpus, mut nics, mut ports) = (Vec::new(), Vec::new(), 0);
    for cpu in &machine.cpus {
        ports += cpu.nics.iter().map(|nic| nic.ports.len()).sum::<usize>();
        description::walk(&cpu.devices, &mut |device| match &device.function {
            Function::Bridge if is_gpu(device) => gpus.push(&*device.bus_id),
            Function::Bridge if is_nic(device) => nics.push(&*device.bus_id),
            Function::Nic(nic) => ports += nic.ports.len(),
            Function::Bridge | Function::Gpu(_) => {}
        });
    }
    let mut missing = Vec::new();
    for (what, tells, devices) in [("GPUs", "their kind and links", &gpus), ("NICs", "their ports and speed", &nics)] {
        if !devices.is_empty() {
            missing.push(format!(
                "{} devices are {what} by their class, but nothing says {tells}: {}; --overlay FILE can",
                devices.len(),
                devices.join(", ")
            ));
        }
    }
    let found = machine.gpus();
    if gpus.is_empty() && found.is_empty() {
        missing.push("there is no GPU: --overlay FILE can say which devices are".to_owned());
    }
    if found.len() > 1 && found.iter().all(|gpu| gpu.links.is_empty()) {
        missing.push("no GPU has NVLinks or xGMI links: data between GPUs go over PCI Express".to_owned());
    }
    if nics.is_empty() && ports == 0 {
        missing.push("there is no NIC: no channel leaves the machine".to_owned());
    }
    missing
}

/// Display controllers, 3D controllers, and what AMD's accelerators call themselves.
pub(super) fn is_gpu(device: &Pci) -> bool {
    matches!(device.class >> 8, 0x0300 | 0x0302 | 0x0380 | 0x1200)
}

/// Network controllers: Ethernet, InfiniBand and others.
pub(super) fn is_nic(device: &Pci) -> bool {
    device.class >> 16 == 0x02
}

fn find<'m>(source: &XmlSource<'_>, element: Node<'_, '_>, machine: &'m mut Machine) -> Result<&'m mut Pci> {
    let bus_id = source.text(element, "busid")?.to_ascii_lowercase();
    let found = machine.cpus.iter_mut().find_map(|cpu| below(&mut cpu.devices, &bus_id));
    found.ok_or_else(|| source.wrong(element, &format!("the machine has no device {}", shown(&bus_id))))
}

fn below<'m>(devices: &'m mut [Pci], bus_id: &str) -> Option<&'m mut Pci> {
    for device in devices {
        if device.bus_id == bus_id {
            return Some(device);
        }
        if let Some(found) = below(&mut device.devices, bus_id) {
            return Some(found);
        }
    }
    None
}

fn complete(source: &XmlSource<'_>, element: Node<'_, '_>, machine: &mut Machine) -> Result<()> {
    let class = source.number_or(element, "class", 0)?;
    let lanes = source.at_most(element, ("link_width", MAX_LANES, " lanes"), 0)?;
    let (class, lanes) = (source.fit(element, "class", class)?, source.fit(element, "link_width", lanes)?);
    let speed = match element.attribute("link_speed") {
        None => None,
        Some(text) => Some(PciSpeed::parse(text).ok_or_else(|| {
            let text = shown(text);
            source.wrong(element, &format!("link_speed=\"{text}\" is not a speed of PCI Express, such as 16 GT/s"))
        })?),
    };
    let device = find(source, element, machine)?;
    if class != 0 {
        device.class = class;
    }
    if lanes != 0 {
        device.lanes = lanes;
    }
    device.speed = speed.or(device.speed);
    Ok(())
}

fn all_gpus(reader: &mut ElementReader<'_>, element: Node<'_, '_>, machine: &mut Machine) -> Result<()> {
    let source = reader.source;
    let generation = reader.generation(element)?;
    let gdr = source.number_or(element, "gdr", 0)? != 0;
    let switch = source.at_most(element, ("switch", MAX_LINKS, " links"), 0)?;
    let switch = source.fit(element, "switch", switch)?;
    let mut device_number = 0;
    each_device(machine, &mut |device| {
        // hwloc's files, and sysfs, know GPUs but not their kind.
        let unknown = matches!(&device.function, Function::Gpu(gpu) if gpu.is_unknown());
        if unknown || device.function == Function::Bridge && is_gpu(device) {
            let to_switches = GpuLink { target: SWITCHES.to_owned(), target_class: SWITCH_CLASS, count: switch };
            let links = if switch > 0 { vec![to_switches] } else { Vec::new() };
            let rank = Some(device_number);
            device.function =
                Function::Gpu(Gpu { device: device_number, rank, generation, gdr, links, c2c: None, clique: None });
        }
        device_number += u32::from(matches!(device.function, Function::Gpu(_)));
    });
    Ok(())
}

fn all_nics(source: &XmlSource<'_>, element: Node<'_, '_>, machine: &mut Machine) -> Result<()> {
    let megabits = source.megabits(element)?;
    let gdr = source.number_or(element, "gdr", 0)? != 0;
    let mut device_number = 0;
    each_device(machine, &mut |device| {
        if device.function == Function::Bridge && is_nic(device) {
            let port = Port {
                name: format!("nic{device_number}"),
                device: device_number,
                megabits,
                port: 1,
                guid: u64::from(device_number) + 1,
                connections: 0,
                gdr,
                rail: None,
                latency: String::new(),
            };
            device.function = Function::Nic(Nic { ports: vec![port] });
        }
        device_number += u32::from(matches!(device.function, Function::Nic(_)));
    });
    Ok(())
}

fn links(source: &XmlSource<'_>, element: Node<'_, '_>, machine: &mut Machine) -> Result<()> {
    let mut bus_ids = Vec::new();
    each_device(machine, &mut |device| {
        if let Function::Gpu(_) = device.function {
            bus_ids.push(device.bus_id.clone());
        }
    });
    let text = element.text().unwrap_or_default();
    let rows: Vec<Vec<&str>> = text.split('/').map(|row| row.split_ascii_whitespace().collect()).collect();
    if rows.len() != bus_ids.len() || rows.iter().any(|row| row.len() != bus_ids.len()) {
        let what = format!("<links> is not a matrix of {0} rows of {0} numbers, one for each GPU", bus_ids.len());
        return Err(source.wrong(element, &what));
    }
    let mut counts = Vec::with_capacity(rows.len());
    for row in rows {
        let numbers: std::result::Result<Vec<u32>, _> = row.iter().map(|text| text.parse()).collect();
        let numbers = numbers.map_err(|_| source.wrong(element, "<links> has a word that is not a number"))?;
        if let Some(count) = numbers.iter().find(|count| u64::from(**count) > MAX_LINKS) {
            return Err(source.wrong(element, &format!("<links> has {count}, more than {MAX_LINKS} links")));
        }
        counts.push(numbers);
    }
    let (mut from, mut most) = (0, 0);
    each_device(machine, &mut |device| {
        let Function::Gpu(gpu) = &mut device.function else { return };
        // A GPU has no links to itself, whatever the diagonal says.
        let others =
            bus_ids.iter().zip(&counts[from]).filter(|(target, count)| **count > 0 && **target != device.bus_id);
        let link = |(target, count): (&String, &u32)| GpuLink {
            target: target.clone(),
            target_class: GPU_CLASS,
            count: *count,
        };
        gpu.links.extend(others.map(link));
        from += 1;
        most = most.max(gpu.links.iter().map(|link| u64::from(link.count)).sum());
    });
    source.bound_links(element, most)
}

fn each_device(machine: &mut Machine, each: &mut impl FnMut(&mut Pci)) {
    machine.cpus.iter_mut().for_each(|cpu| walk_mut(&mut cpu.devices, each));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::bandwidth::GpuGeneration;
    use crate::topo::search;
    use crate::topo::system::System;
    use crate::topo::xml;

    /// A cloud's file: PCI devices, and no word of what they are.
    const TREE: &str = r#"<system version="1"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
        <pci busid="ffff:ff:01.0" class="0x060400" link_speed="" link_width="0">
          <pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
          <pci busid="0002:00:00.0" class="0x038000" link_speed="16 GT/s" link_width="16"/>
          <pci busid="0101:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/></pci></cpu></system>"#;

    fn with(overlay: &str) -> Result<Machine> {
        let (mut machine, _) = xml::parse("tree", TREE)?;
        apply("over", &format!("<overlay>\n{overlay}</overlay>"), &mut machine)?;
        Ok(machine)
    }

    #[test]
    fn a_tree_of_devices_says_what_it_lacks() {
        let (machine, _) = xml::parse("tree", TREE).unwrap();
        let missing = missing(&machine);
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(missing[0].starts_with("2 devices are GPUs by their class") && missing[0].contains("0002:00:00.0"));
        assert!(missing[1].starts_with("1 devices are NICs by their class"));
        let whole = with(r#"<gpus sm="80" switch="12"/><nics speed="200000"/>"#).unwrap();
        assert_eq!(super::missing(&whole), [""; 0]);
    }

    #[test]
    fn all_devices_of_a_class_become_gpus_and_nics() {
        let machine = with(r#"<gpus sm="80" gdr="1" switch="12"/><nics speed="200000" gdr="1"/>"#).unwrap();
        let system = System::new(&machine).unwrap();
        assert_eq!((system.gpus().len(), system.ports().len()), (2, 1));
        assert_eq!(search::rings(&system, &system.gpus()).unwrap().total().gigabytes(), 240.0);
    }

    #[test]
    fn a_matrix_of_links_and_single_devices_are_taken() {
        let machine = with(
            "<pci busid=\"FFFF:ff:01.0\" link_speed=\"16.0 GT/s PCIe\" link_width=\"8\"/><gpus gcn=\"gfx942\"/>\
             <links>5 1 / 1 5</links>\
             <nic busid=\"0101:00:00.0\"><net name=\"a\" dev=\"0\" speed=\"100000\"/></nic>\
             <nic cpu=\"0\"><net name=\"b\" dev=\"1\" speed=\"10000\"/></nic>",
        )
        .unwrap();
        let bridge = &machine.cpus[0].devices[0];
        assert_eq!((bridge.speed, bridge.lanes), (Some(PciSpeed::Gen4), 8));
        let gpus = machine.gpus();
        assert_eq!(gpus[0].generation, GpuGeneration::Amd { gfx: 0x942 });
        assert_eq!((gpus[0].links.len(), &*gpus[0].links[0].target, gpus[0].links[0].count), (1, "0002:00:00.0", 1));
        let system = System::new(&machine).unwrap();
        assert_eq!(system.ports().len(), 2);
        assert_eq!(search::rings(&system, &system.gpus()).unwrap().total().gigabytes(), 48.0);
    }

    #[test]
    fn errors_name_line_and_column() {
        let cases = [
            ("<gpu busid=\"0009:00:00.0\" dev=\"0\" sm=\"80\"/>", "over:2:1: the machine has no device 0009:00:00.0"),
            ("<gpus/>", "over:2:1: <gpus> has no attribute sm"),
            ("<gpus sm=\"80\"/><links>0 1</links>", "over:2:16: <links> is not a matrix of 2 rows of 2 numbers"),
            ("<gpus sm=\"80\"/><links>0 x / 1 0</links>", "over:2:16: <links> has a word that is not a number"),
            ("<nics/>", "over:2:1: <nics> has no attribute speed"),
            ("<nics speed=\"18446744073709551615\"/>", "is more than 1000000000000 Mbit/s"),
            ("<gpus sm=\"80\" switch=\"4294967295\"/>", "switch=\"4294967295\" is more than 1024 links"),
            ("<gpus sm=\"80\"/><links>0 1025 / 1 0</links>", "<links> has 1025, more than 1024 links"),
            ("<gpus sm=\"80\" switch=\"9\"/><links>0 1 / 1016 0</links>", "1025 links of one GPU are more than 1024"),
            ("<gpus sm=\"80\"/><links>0 1 / 1 0</links><links>0 1 / 1024 0</links>", "1025 links of one GPU"),
            ("<pci busid=\"0001:00:00.0\" link_width=\"65\"/>", "link_width=\"65\" is more than 64 lanes"),
            ("<nic cpu=\"7\"/>", "over:2:1: the machine has no CPU 7"),
            ("<pci busid=\"0001:00:00.0\" link_speed=\"fast\"/>", "over:2:1: link_speed=\"fast\" is not a speed"),
        ];
        for (text, expected) in cases {
            let error = with(text).unwrap_err();
            assert!(error.message().contains(expected), "{error} for {text}");
        }
        let error = apply("over", "<system/>", &mut Machine::default()).unwrap_err();
        assert!(error.message().contains("over:1:1: <system> where an overlay has <overlay>"), "{error}");
    }
}
