//! hwloc's XML of its version 2 and newer (`lstopo --of xml`), which machines of processors have: packages, NUMA nodes
//! with memory, cores and caches, PCI bridges, GPUs and NICs. It knows neither the kind of a GPU and its links nor the
//! speed of a NIC: an overlay can tell.
//!
//! ```text
//!   topology ─ Machine ─ Package ─┬─ NUMANode                 memory stands beside what it is near to
//!                                 ├─ L3Cache ─ … ─ Core ─ PU
//!                                 └─ Bridge ─ Bridge ─ PCIDev ─ OSDev
//! ```
//!
//! Each object names the NUMA nodes that it is in (`nodeset`); a device is in those of what it hangs on.

use std::collections::{BTreeMap, HashMap, HashSet};

use roxmltree::Node;

use crate::error::{Result, shown};
use crate::topo::bandwidth::{GpuGeneration, PciSpeed};
use crate::topo::description::{Cpu, CpuCaches, Function, Gpu, Machine, Nic, Pci, Port, ProcessorDetails};
use crate::topo::masks;
use crate::topo::notes::Notes;
use crate::topo::overlay;
use crate::topo::xml::{self, MAX_DEPTH, XmlSource};

/// Reads a document whose root is `<topology>`. The notes say what was assumed, and what is not read.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] with line and column: the format of hwloc 1, no NUMA node, more than 256, an
/// attribute that is missing or wrong, two devices of one bus id, bridges that stand too deep.
pub(super) fn parse(source: XmlSource<'_>) -> Result<(Machine, Vec<String>)> {
    let root = source.document.root_element();
    let version = root.attribute("version").and_then(|text| text.split('.').next()?.parse::<u32>().ok());
    let Some(2..) = version else {
        let what = "this is the format of hwloc 1: write it anew by lstopo --of xml of hwloc 2 or newer";
        return Err(source.wrong(root, what));
    };
    let mut reader = HwlocReader {
        source,
        bitmask_types: version > Some(2),
        notes: Notes::default(),
        machine: Machine::default(),
        nodes: HashMap::new(),
        bus_ids: HashSet::new(),
        names: HashSet::new(),
        gpus: 0,
        ports: 0,
    };
    reader.numa_nodes(root)?;
    reader.processors(root)?;
    reader.devices(root)?;
    for element in root.children().filter(Node::is_element) {
        let name = element.attribute("name").unwrap_or_default();
        if element.tag_name().name().starts_with("distances2") && name.ends_with("Bandwidth") {
            let name = shown(name);
            reader.notes.add(format!("its matrix {name} is not read: --overlay can tell links of GPUs"));
        }
    }
    Ok((reader.machine, reader.notes.lines()))
}

/// The most NUMA nodes: more than the largest hosts have.
const MAX_NODES: usize = 256;
/// What is assumed for a port, whose speed hwloc does not know: that of a virtual one.
const USUAL_MEGABITS: u64 = 10_000;

struct HwlocReader<'a> {
    source: XmlSource<'a>,
    /// Since version 3 a device of the system has a set of types, and before one.
    bitmask_types: bool,
    notes: Notes,
    machine: Machine,
    /// By their numbers, their places in the machine.
    nodes: HashMap<usize, usize>,
    /// Of every device so far.
    bus_ids: HashSet<String>,
    /// Of every network device so far.
    names: HashSet<String>,
    gpus: u32,
    ports: u32,
}

impl HwlocReader<'_> {
    fn numa_nodes(&mut self, root: Node<'_, '_>) -> Result<()> {
        let infos: HashMap<&str, &str> = root
            .descendants()
            .filter(|element| element.has_tag_name("info"))
            .filter_map(|info| Some((info.attribute("name")?, info.attribute("value")?)))
            .collect();
        let info = |name: &str| infos.get(name).copied().unwrap_or_default().to_owned();
        let (mut architecture, vendor) = (info("Architecture"), info("CPUVendor"));
        if architecture.is_empty() && matches!(&*vendor, "GenuineIntel" | "AuthenticAMD" | "CentaurHauls") {
            "x86_64".clone_into(&mut architecture);
        }
        let identity = [architecture, vendor, info("CPUFamilyNumber"), info("CPUModelNumber")];
        let model = identity[3].parse().unwrap_or_default();
        for element in objects(root, "NUMANode") {
            if self.machine.cpus.len() == MAX_NODES {
                return Err(self.source.wrong(element, &format!("more than {MAX_NODES} NUMA nodes")));
            }
            let number = self.source.number(element, "os_index")?;
            let numa = self.source.fit(element, "os_index", number)?;
            if self.nodes.insert(numa as usize, self.machine.cpus.len()).is_some() {
                return Err(self.source.wrong(element, &format!("a second NUMA node {numa}")));
            }
            let set = element.attribute("cpuset").unwrap_or_default();
            let affinity = masks::of_hwloc(set).map(|all| masks::write(all.into_iter())).unwrap_or_default();
            let memory_bytes = self.source.number_or(element, "local_memory", 0)?;
            self.machine.cpus.push(Cpu {
                host: 0,
                clique: 0,
                numa,
                affinity,
                processor: xml::processor(&identity, model),
                identity: identity.clone(),
                details: ProcessorDetails { memory_bytes, ..ProcessorDetails::default() },
                devices: Vec::new(),
                nics: Vec::new(),
            });
        }
        if self.machine.cpus.is_empty() {
            return Err(self.source.wrong(root, "<topology> has no object of type NUMANode"));
        }
        Ok(())
    }

    /// Packages, cores and caches, each counted in the first NUMA node that it names.
    fn processors(&mut self, root: Node<'_, '_>) -> Result<()> {
        for package in objects(root, "Package") {
            let number = self.source.number_or(package, "os_index", 0)?;
            let number = self.source.fit(package, "os_index", number)?;
            for node in self.nodes_of(package) {
                self.machine.cpus[node].details.package = Some(number);
            }
        }
        for core in objects(root, "Core") {
            let node = self.node_of(core);
            self.machine.cpus[node].details.cores += 1;
        }
        let mut counts: BTreeMap<(usize, u32, u64), u32> = BTreeMap::new();
        let is_cache = |element: &Node<'_, '_>| {
            element.attribute("type").is_some_and(|kind| kind.ends_with("Cache") && !kind.ends_with("iCache"))
        };
        for cache in root.descendants().filter(|element| element.has_tag_name("object")).filter(is_cache) {
            let (level, bytes) =
                (self.source.number_or(cache, "depth", 0)?, self.source.number_or(cache, "cache_size", 0)?);
            let level = self.source.fit(cache, "depth", level)?;
            *counts.entry((self.node_of(cache), level, bytes)).or_default() += 1;
        }
        // The largest first: levels and sizes fall.
        for ((node, level, bytes), count) in counts.into_iter().rev() {
            self.machine.cpus[node].details.caches.push(CpuCaches { level, bytes, count });
        }
        Ok(())
    }

    /// The first NUMA node of an object, by its place.
    fn node_of(&self, element: Node<'_, '_>) -> usize {
        self.nodes_of(element).first().copied().unwrap_or_default()
    }

    /// The NUMA nodes of an object, by their places.
    fn nodes_of(&self, element: Node<'_, '_>) -> Vec<usize> {
        let numbers = element.attribute("nodeset").and_then(masks::of_hwloc).unwrap_or_default();
        numbers.into_iter().filter_map(|number| self.nodes.get(&number).copied()).collect()
    }

    /// Devices hang on processors, caches or the whole machine, and then on each other.
    fn devices(&mut self, root: Node<'_, '_>) -> Result<()> {
        let on_processor = |element: &Node<'_, '_>| {
            let above = element.parent_element().and_then(|above| above.attribute("type")).unwrap_or_default();
            is_device(*element) && !matches!(above, "Bridge" | "PCIDev" | "OSDev")
        };
        for element in root.descendants().filter(on_processor) {
            let near = element.parent_element().map(|above| self.nodes_of(above)).unwrap_or_default();
            let node = near.first().copied().unwrap_or_default();
            if element.attribute("type") == Some("OSDev") {
                if let Some(port) = self.port(element, false) {
                    self.machine.cpus[node].nics.push(Nic { ports: vec![port] });
                }
                continue;
            }
            let mut found = Vec::new();
            self.below(element, 0, &mut found)?;
            if let (Some(device), true) = (found.first(), near.len() > 1 && self.machine.cpus.len() > 1) {
                let first = self.machine.cpus[node].numa;
                let text =
                    format!("several NUMA nodes are equally near to it: it is taken for a device of node {first}");
                self.notes.about(&device.bus_id, text);
            }
            self.machine.cpus[node].devices.extend(found);
        }
        Ok(())
    }

    /// A bridge or device with all below it. A bridge of the host itself has no link, so what is below it counts alone,
    /// and so it is where nothing below a bridge plays a part.
    fn below(&mut self, element: Node<'_, '_>, depth: usize, into: &mut Vec<Pci>) -> Result<()> {
        if depth == MAX_DEPTH {
            return Err(self.source.wrong(element, &format!("more than {MAX_DEPTH} bridges stand in each other")));
        }
        let mut devices = Vec::new();
        let is_pci = |child: &Node<'_, '_>| is_device(*child) && child.attribute("type") != Some("OSDev");
        for child in element.children().filter(is_pci) {
            self.below(child, depth + 1, &mut devices)?;
        }
        let Some(bus_id) = element.attribute("pci_busid") else {
            into.append(&mut devices);
            return Ok(());
        };
        let bus_id = bus_id.to_ascii_lowercase();
        if !self.bus_ids.insert(bus_id.clone()) {
            return Err(self.source.wrong(element, &format!("a second device {}", shown(&bus_id))));
        }
        let (class, ids) = self.kind(element)?;
        let function = self.function(element, (class, &ids), &bus_id);
        let mut device = Pci { bus_id, class, ids, speed: None, lanes: 0, function, devices };
        let is_named = device.function != Function::Bridge || overlay::is_gpu(&device) || overlay::is_nic(&device);
        if !is_named && device.devices.is_empty() {
            return Ok(());
        }
        (device.speed, device.lanes) = self.link(element, &device.bus_id);
        into.push(device);
        Ok(())
    }

    /// `0302 [10de:1db8] [10de:131d] a1 00`: class, vendor and device, those of the subsystem.
    fn kind(&self, element: Node<'_, '_>) -> Result<(u32, [String; 4])> {
        let text = self.source.text(element, "pci_type")?;
        let mut words = text.split_ascii_whitespace();
        let class = words.next().and_then(|word| u32::from_str_radix(word, 16).ok()).filter(|class| *class <= 0xffff);
        let class = class.ok_or_else(|| {
            let text = shown(text);
            self.source.wrong(element, &format!("pci_type=\"{text}\" is not a class and ids, such as 0302 [10de:1db8]"))
        })?;
        let mut pair = || {
            let inner = words.next().and_then(|word| word.strip_prefix('[')?.strip_suffix(']')?.split_once(':'));
            inner.map_or([String::new(), String::new()], |(one, two)| [one, two].map(|id| format!("0x{id}")))
        };
        let ([vendor, device], [subsystem_vendor, subsystem]) = (pair(), pair());
        Ok((class << 8, [vendor, device, subsystem_vendor, subsystem]))
    }

    fn function(&mut self, element: Node<'_, '_>, (class, ids): (u32, &[String; 4]), bus_id: &str) -> Function {
        let generation = match (class >> 8, &*ids[0]) {
            (0x0300 | 0x0302, "0x10de") => GpuGeneration::Nvidia { capability: 0 },
            (0x0300 | 0x0302 | 0x0380 | 0x1200, "0x1002") => GpuGeneration::Amd { gfx: 0 },
            (0x0200..=0x02ff, _) => {
                // Where a card has both, its InfiniBand devices carry our data.
                let of = |reader: &mut Self, rdma| -> Vec<Port> {
                    let devices = element.children().filter(|child| child.attribute("type") == Some("OSDev"));
                    devices.filter_map(|child| reader.port(child, rdma)).collect()
                };
                let mut ports = of(self, true);
                if ports.is_empty() {
                    ports = of(self, false);
                }
                return if ports.is_empty() { Function::Bridge } else { Function::Nic(Nic { ports }) };
            }
            _ => return Function::Bridge,
        };
        let text = "hwloc's file does not tell what kind of GPU it is, nor its links: --overlay can";
        self.notes.about(bus_id, text);
        self.gpus += 1;
        let device = self.gpus - 1;
        Function::Gpu(Gpu {
            device,
            rank: Some(device),
            generation,
            gdr: false,
            links: Vec::new(),
            c2c: None,
            clique: None,
        })
    }

    /// A network port: an InfiniBand device where `rdma`, or else an interface.
    fn port(&mut self, element: Node<'_, '_>, rdma: bool) -> Option<Port> {
        let kind: u32 = element.attribute("osdev_type")?.parse().ok()?;
        let is_wanted = match (self.bitmask_types, rdma) {
            (false, false) => kind == 2,
            (false, true) => kind == 3,
            (true, false) => kind & 1 << 4 != 0 && kind & 1 << 5 == 0,
            (true, true) => kind & 1 << 5 != 0,
        };
        let name = element.attribute("name").filter(|_| is_wanted)?;
        if !self.names.insert(name.to_owned()) {
            let text = "this NIC is listed twice with one name: it counts where it stands first";
            self.notes.about(name, text);
            return None;
        }
        self.notes.about(name, format!("its speed is not known: {USUAL_MEGABITS} Mbit/s are assumed"));
        self.ports += 1;
        Some(Port {
            name: name.to_owned(),
            device: self.ports - 1,
            megabits: USUAL_MEGABITS,
            port: 1,
            guid: 0,
            connections: 0,
            gdr: rdma,
            rail: None,
            latency: String::new(),
        })
    }

    /// hwloc tells what a link carries, in GB/s: the product of its speed and its lanes, of which the form with most
    /// lanes, up to 16, is taken. 0 is unknown.
    fn link(&mut self, element: Node<'_, '_>, bus_id: &str) -> (Option<PciSpeed>, u32) {
        /// GB/s of one lane of each generation.
        const LANE: [f64; 6] = [0.25, 0.5, 0.984_615, 1.969_231, 3.938_462, 7.562_5];
        const LANES: [u32; 7] = [16, 8, 4, 2, 1, 32, 12];
        let text = element.attribute("pci_link_speed").unwrap_or_default();
        let gigabytes: f64 = text.parse().unwrap_or(f64::NAN);
        let all =
            LANES.iter().flat_map(|lanes| (1..).zip(LANE).map(move |(generation, lane)| (generation, lane, *lanes)));
        let fits = |lane: f64, lanes: u32| (lane * f64::from(lanes) / gigabytes - 1.0).abs() < 0.02;
        let found = all.into_iter().find(|(_, lane, lanes)| fits(*lane, *lanes));
        if let Some((generation, _, lanes)) = found {
            return (PciSpeed::of_generation(generation), lanes);
        }
        let text =
            if gigabytes == 0.0 || text.is_empty() { "not known".to_owned() } else { format!("{:?}", shown(text)) };
        self.notes.about(bus_id, format!("the speed of its link is {text}: 16 lanes of PCIe 3 are assumed"));
        (None, 0)
    }
}

fn objects<'n, 'd>(root: Node<'n, 'd>, kind: &'static str) -> impl Iterator<Item = Node<'n, 'd>> {
    root.descendants().filter(move |element| element.has_tag_name("object") && element.attribute("type") == Some(kind))
}

fn is_device(element: Node<'_, '_>) -> bool {
    matches!(element.attribute("type"), Some("Bridge" | "PCIDev" | "OSDev"))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::topo::machine_file::parse;

    /// Two packages of one NUMA node of two cores each, a V100 behind a switch, a disk behind another, and a NIC.
    static FILE: LazyLock<String> = LazyLock::new(|| {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/descriptions/hwloc.xml");
        std::fs::read_to_string(path).unwrap()
    });
    const INTERFACE: &str = "<object type=\"OSDev\" name=\"ens1\" osdev_type=\"2\"/>";

    #[test]
    fn packages_nodes_caches_and_devices_are_read() {
        let (machine, notes) = parse("f", &FILE).unwrap();
        let cpus = &machine.cpus;
        let of = |cpu: &Cpu| (cpu.numa, cpu.details.package, cpu.details.cores, cpu.details.memory_bytes);
        assert_eq!(cpus.iter().map(of).collect::<Vec<_>>(), [(0, Some(0), 2, 64 << 30), (1, Some(1), 2, 64 << 30)]);
        assert_eq!([&[0, 1][..], &[3], &[1, 2]].map(|all| machine.node_of(all)), [Some(0), Some(1), None]);
        let cache = |cache: &CpuCaches| (cache.level, cache.bytes, cache.count);
        let caches: Vec<(u32, u64, u32)> = cpus[1].details.caches.iter().map(cache).collect();
        assert_eq!(caches, [(3, 32 << 20, 1), (2, 1 << 20, 2), (1, 32 << 10, 2)]);
        assert_eq!(cpus[0].processor, crate::topo::bandwidth::Processor::Intel { model: 85 });
        // The bridge above a disk is left out; the host's own bridges have no link.
        let ([bridge], [card]) = (&cpus[0].devices[..], &cpus[1].devices[..]) else { panic!("{machine:?}") };
        let gpu = &bridge.devices[0];
        assert_eq!((&*gpu.bus_id, gpu.speed, gpu.lanes), ("0000:34:00.0", Some(PciSpeed::Gen3), 16));
        assert!(gpu.class == 0x03_0200 && matches!(&gpu.function, Function::Gpu(gpu) if gpu.is_unknown()));
        // A link's speed of 0 is an unknown one.
        assert_eq!((card.speed, card.lanes), (None, 0));
        let expected = [
            "0000:34:00.0: hwloc's file does not tell what kind of GPU it is, nor its links: --overlay can",
            "ens1: its speed is not known: 10000 Mbit/s are assumed",
            "0000:81:00.0: the speed of its link is not known: 16 lanes of PCIe 3 are assumed",
        ];
        assert_eq!(notes, expected);
    }

    /// Where a card has an interface and an InfiniBand device, the latter carries our data, in both versions.
    #[test]
    fn an_infiniband_device_goes_before_its_interface() {
        let infiniband = "<object type=\"OSDev\" name=\"mlx5_0\" osdev_type=\"3\"/>";
        let two = FILE.replace(INTERFACE, &format!("{INTERFACE}{infiniband}"));
        let three = two.replace("version=\"2.0\"", "version=\"3.0\"").replace("osdev_type=\"2\"", "osdev_type=\"16\"");
        let three = three.replace("osdev_type=\"3\"", "osdev_type=\"32\"");
        for text in [two, three] {
            let (machine, _) = parse("f", &text).unwrap();
            let Function::Nic(nic) = &machine.cpus[1].devices[0].function else { panic!("{machine:?}") };
            assert_eq!((nic.ports.len(), &*nic.ports[0].name, nic.ports[0].gdr), (1, "mlx5_0", true));
        }
    }

    #[test]
    fn what_is_not_read_or_not_sure_is_told() {
        let package = "os_index=\"1\" cpuset=\"0x0000000c\" nodeset=\"0x00000002\">\n        <info";
        let text = FILE.replace(package, &package.replace("0x00000002", "0x00000003"));
        let text = text.replace("</topology>", "<distances2hetero name=\"NVLinkBandwidth\"/></topology>");
        let (_, notes) = parse("f", &text).unwrap();
        let near = "0000:81:00.0: several NUMA nodes are equally near to it: it is taken for a device of node 0";
        let matrix = "its matrix NVLinkBandwidth is not read: --overlay can tell links of GPUs";
        assert!(notes.iter().any(|note| note == near) && notes.iter().any(|note| note == matrix), "{notes:?}");
    }

    /// A network device that stands twice, as below two NUMA nodes, counts once.
    #[test]
    fn a_nic_that_is_listed_twice_counts_once() {
        let (machine, notes) = parse("f", &FILE.replace(INTERFACE, &INTERFACE.repeat(2))).unwrap();
        let Function::Nic(nic) = &machine.cpus[1].devices[0].function else { panic!("{machine:?}") };
        assert_eq!(nic.ports.len(), 1);
        let twice = "ens1: this NIC is listed twice with one name: it counts where it stands first";
        assert!(notes.iter().any(|note| note == twice), "{notes:?}");
    }

    /// An overlay tells the kind of GPUs and their links.
    #[test]
    fn an_overlay_completes_it() {
        let (mut machine, _) = parse("f", &FILE).unwrap();
        overlay::apply("o", "<overlay><gpus sm=\"70\" switch=\"6\"/></overlay>", &mut machine).unwrap();
        let gpu = machine.gpus()[0];
        assert_eq!((gpu.generation, gpu.links.len()), (GpuGeneration::Nvidia { capability: 70 }, 1));
    }

    #[test]
    fn other_formats_and_broken_files_are_refused() {
        let deep = |count: usize| {
            let bridge = "<object type=\"Bridge\" pci_busid=\"0000:00:00.0\" pci_type=\"0604\">";
            format!(
                "<topology version=\"2.0\"><object type=\"NUMANode\" os_index=\"0\"/>{}{}</topology>",
                bridge.repeat(count),
                "</object>".repeat(count)
            )
        };
        let node = "<object type=\"NUMANode\" os_index=\"0\"/>";
        let cases = [
            ("<topology/>".to_owned(), "f:1:1: this is the format of hwloc 1"),
            ("<topology version=\"2.0\"/>".to_owned(), "f:1:1: <topology> has no object of type NUMANode"),
            (format!("<topology version=\"2.0\">\n{node}{node}</topology>"), "f:2:39: a second NUMA node 0"),
            (
                "<topology version=\"2.0\">\n<object type=\"NUMANode\"/></topology>".to_owned(),
                "f:2:1: <object> has no attribute os_index",
            ),
            (deep(65), "more than 64 bridges stand in each other"),
            (deep(3).replace("0604", "bridge"), "pci_type=\"bridge\" is not a class and ids"),
            (FILE.replace("0000:81:00.0", "0000:34:00.0"), "f:58:11: a second device 0000:34:00.0"),
            (FILE.replace("0000:2d:00.0", "0000:2C:00.0"), "a second device 0000:2c:00.0"),
        ];
        for (text, expected) in cases {
            let error = parse("f", &text).unwrap_err();
            assert!(error.message().contains(expected), "{error} for {text}");
        }
    }
}
