//! NCCL's topology files: read into a [`Machine`], and written.
//!
//! RCCL's differ in the names of links (`xgmi`) and of architectures (`gcn`). What a file leaves open is assumed, and
//! told in notes: an empty speed is PCIe 3, a width of 0 is 16 lanes, a link of a GPU to itself is left out. What it
//! says twice counts once, as it stands first, and is told in a note as well. What it says wrongly is an error with line
//! and column. What looks like a mistake in a description that reads well is for [`super::doubts`].

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

use roxmltree::{Document, Node, ParsingOptions};

use crate::error::{Error, Result, shown};
use crate::topo::bandwidth::{GpuGeneration, PciSpeed, Processor};
use crate::topo::description::{Cpu, Function, Gpu, GpuLink, Machine, Nic, Pci, Port, ProcessorDetails};
use crate::topo::masks;
use crate::topo::notes::Notes;
use crate::topo::system::{BRIDGE_CLASS, SWITCH_CLASS};
use crate::wire;

/// The most devices of a file: more than any machine has, so that a broken file ends in an error and not in all memory.
pub const MAX_DEVICES: u32 = 65_536;
/// How deep bridges may stand in each other: PCI itself allows 256 buses.
pub const MAX_DEPTH: usize = 64;
/// The most NUMA nodes of one host, each of which has a link to each other, and of a file. The largest hosts have 32
/// sockets of four nodes.
const MAX_CPUS_OF_HOST: usize = 256;
const MAX_CPUS: usize = 16_384;
/// A faster port is taken for a speed in another unit, Mbit/s: fabrics are at 800 Gbit/s.
const MOST_MEGABITS: u64 = 6_400_000;
/// What NCCL takes for the speed of a port that has none.
const USUAL_MEGABITS: u64 = 10_000;
const MAX_FILE_BYTES: usize = 64 << 20;
/// Bounds of numbers, far above what machines have: sums and products of them fit 64 bits. A link has at most 32 lanes,
/// a GPU 18 links.
pub(super) const MAX_MEGABITS: u64 = 1_000_000_000_000;
pub(super) const MAX_LINKS: u64 = 1024;
pub(super) const MAX_LANES: u64 = 64;
const MAX_COHERENT_MEGABYTES: u64 = 1_000_000_000;
const MAX_RANK: u64 = i32::MAX as u64;
/// How much of what the parser of XML says an error shows.
const MOST_PARSER_BYTES: usize = 200;

/// Reads a topology file; `name` stands in errors. The notes say what was assumed.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] with line and column: no XML, no `<system>`, an attribute that is missing or
/// no number, a device twice, more than [`MAX_DEVICES`].
pub fn parse(name: &str, text: &str) -> Result<(Machine, Vec<String>)> {
    let document = XmlSource::document(name, text)?;
    read(XmlSource { name, document: &document })
}

/// [`parse`], of a document.
///
/// # Errors
/// As [`parse`].
pub(super) fn read(source: XmlSource<'_>) -> Result<(Machine, Vec<String>)> {
    let mut reader = ElementReader::new(source);
    let machine = reader.system(source.document.root_element())?;
    Ok((machine, reader.notes.lines()))
}

/// Reads elements of topology files.
pub(super) struct ElementReader<'a> {
    pub(super) source: XmlSource<'a>,
    /// What was assumed so far, and what was said twice.
    pub(super) notes: Notes,
    /// Host and bus id of every device so far, and whether it is a bridge.
    bus_ids: HashMap<(u64, String), bool>,
    devices: u32,
    /// The NUMA nodes of each host, and of all.
    cpus: HashMap<u64, usize>,
    all_cpus: usize,
    /// Every port so far: of which host, its name, number, port and guid.
    ports: HashSet<(u64, String, u32, u32, u64)>,
    /// Links of GPUs to other devices: host, from, to, and where in the file they stand.
    links: Vec<(u64, String, String, usize)>,
}

impl<'a> ElementReader<'a> {
    pub(super) fn new(source: XmlSource<'a>) -> ElementReader<'a> {
        ElementReader {
            source,
            notes: Notes::default(),
            bus_ids: HashMap::new(),
            devices: 0,
            cpus: HashMap::new(),
            all_cpus: 0,
            ports: HashSet::new(),
            links: Vec::new(),
        }
    }

    fn system(&mut self, root: Node<'_, '_>) -> Result<Machine> {
        if root.tag_name().name() != "system" {
            let name = shown(root.tag_name().name());
            return Err(self.source.wrong(root, &format!("<{name}> where a topology file has <system>")));
        }
        let mut machine = Machine::default();
        for element in root.children().filter(Node::is_element) {
            match element.tag_name().name() {
                "cpu" => {
                    let cpu = self.cpu(element)?;
                    machine.cpus.push(cpu);
                }
                _ => self.unknown(element),
            }
        }
        if machine.cpus.is_empty() {
            return Err(self.source.wrong(root, "<system> has no <cpu>"));
        }
        self.check_links()?;
        Ok(machine)
    }

    /// Every link leads to a device of its host. That the device is a GPU is checked when the machine is a graph: an
    /// overlay can still say so.
    fn check_links(&self) -> Result<()> {
        for (host, from, target, at) in &self.links {
            if !self.bus_ids.contains_key(&(*host, target.clone())) {
                let (from, target) = (shown(from), shown(target));
                let what =
                    format!("GPU {from} has links to {target}, which is not a GPU of its host, a switch or a bridge");
                return Err(self.source.wrong_at(*at, &what));
            }
        }
        Ok(())
    }

    fn cpu(&mut self, element: Node<'_, '_>) -> Result<Cpu> {
        let text = |name: &str| element.attribute(name).unwrap_or_default().to_owned();
        let host = self.source.number_or(element, "host_hash", 0)?;
        let numa = self.source.number_or(element, "numaid", 0)?;
        let identity = [text("arch"), text("vendor"), text("familyid"), text("modelid")];
        let model = self.source.number_or(element, "modelid", 0)?;
        let processor = processor(&identity, self.source.fit(element, "modelid", model)?);
        self.count_cpu(element, host)?;
        let numa = self.source.fit(element, "numaid", numa)?;
        let mut cpu = Cpu {
            host,
            clique: self.source.number_or(element, "clique", 0)?,
            numa,
            affinity: self.affinity(numa, &text("affinity")),
            processor,
            identity,
            details: ProcessorDetails::default(),
            devices: Vec::new(),
            nics: Vec::new(),
        };
        for child in element.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "pci" => cpu.devices.push(self.pci(child, host, 0)?),
                "nic" => {
                    let nic = self.nic(child, host)?;
                    cpu.nics.extend((!nic.ports.is_empty()).then_some(nic));
                }
                _ => self.unknown(child),
            }
        }
        Ok(cpu)
    }

    fn count_cpu(&mut self, element: Node<'_, '_>, host: u64) -> Result<()> {
        let of_host = self.cpus.entry(host).or_default();
        *of_host += 1;
        if *of_host > MAX_CPUS_OF_HOST {
            return Err(self.source.wrong(element, &format!("more than {MAX_CPUS_OF_HOST} <cpu> of one host")));
        }
        self.all_cpus += 1;
        if self.all_cpus > MAX_CPUS {
            return Err(self.source.wrong(element, &format!("more than {MAX_CPUS} <cpu>")));
        }
        Ok(())
    }

    /// The mask of a NUMA node's processors. A list of processors is taken for what it means.
    fn affinity(&mut self, numa: u32, text: &str) -> String {
        let about = format!("CPU {numa}");
        match masks::read(text) {
            masks::MaskText::Mask => text.to_owned(),
            masks::MaskText::List(mask) => {
                let (list, means) = (shown(text), shown(&mask));
                let what = format!("affinity={list:?} is a list of processors where a mask is due: {means}");
                self.notes.about(about, what);
                mask
            }
            masks::MaskText::Neither => {
                let shown = shown(text);
                self.notes.about(about, format!("affinity={shown:?} is no mask of processors: they are not known"));
                String::new()
            }
        }
    }

    fn pci(&mut self, element: Node<'_, '_>, host: u64, depth: usize) -> Result<Pci> {
        if depth == MAX_DEPTH {
            return Err(self.source.wrong(element, &format!("more than {MAX_DEPTH} bridges stand in each other")));
        }
        let bus_id = self.source.text(element, "busid")?.to_ascii_lowercase();
        let text = |name: &str| element.attribute(name).unwrap_or_default().to_owned();
        let class = self.source.number_or(element, "class", 0)?;
        let class = self.source.fit(element, "class", class)?;
        self.claim(element, host, (&bus_id, class >> 16 == BRIDGE_CLASS))?;
        let speed = self.speed(element, &bus_id);
        let lanes = self.lanes(element, &bus_id)?;
        let mut device = Pci {
            speed,
            class,
            ids: [text("vendor"), text("device"), text("subsystem_vendor"), text("subsystem_device")],
            lanes,
            function: Function::Bridge,
            devices: Vec::new(),
            bus_id,
        };
        for child in element.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "pci" => device.devices.push(self.pci(child, host, depth + 1)?),
                "gpu" => {
                    let gpu = self.gpu(child, (host, &device.bus_id))?;
                    self.becomes(&mut device, Function::Gpu(gpu));
                }
                "nic" => {
                    let nic = self.nic(child, host)?;
                    self.becomes(&mut device, Function::Nic(nic));
                }
                _ => self.unknown(child),
            }
        }
        self.widen_single_lane(&mut device);
        Ok(device)
    }

    /// Gives a bridge its function, or a NIC more ports. A device that has a function already keeps that one.
    fn becomes(&mut self, device: &mut Pci, function: Function) {
        match (&mut device.function, function) {
            (Function::Nic(known), Function::Nic(more)) => known.ports.extend(more.ports),
            (function @ Function::Bridge, new) => *function = new,
            (Function::Gpu(first), Function::Gpu(second)) => self.notes.about(
                &device.bus_id,
                format!(
                    "two <gpu> in one <pci>: GPU {} is left out, GPU {} counts (parts of one GPU are not told apart)",
                    second.device, first.device
                ),
            ),
            (Function::Gpu(_), _) => self.notes.about(&device.bus_id, "a <nic> beside a <gpu>: it is left out"),
            (Function::Nic(_), _) => self.notes.about(&device.bus_id, "a <gpu> beside a <nic>: it is left out"),
        }
    }

    /// Bridges of virtual machines, and some of real ones, say that they have one lane of an old generation above
    /// devices of 16: nothing passes them so slowly.
    fn widen_single_lane(&mut self, device: &mut Pci) {
        let Some(widest) = device.devices.iter().max_by_key(|below| below.width()) else { return };
        if device.function == Function::Bridge && device.lanes == 1 && widest.usual_lanes() > 1 {
            (device.speed, device.lanes) = (widest.speed, widest.usual_lanes());
            let text = "a bridge of one lane above wider links, as virtual bridges say: what is below it counts";
            self.notes.about(&device.bus_id, text);
        }
    }

    /// The lanes of a link; 0 where they are not known. Systems tell an unknown width as 0 or 255.
    fn lanes(&mut self, element: Node<'_, '_>, bus_id: &str) -> Result<u32> {
        let lanes = self.source.number_or(element, "link_width", 0)?;
        let known = u32::try_from(lanes).ok().filter(|known| (1..=MAX_LANES).contains(&u64::from(*known)));
        if known.is_none() {
            let text = match lanes {
                0 => "the width of its link is not known: 16 lanes are assumed".to_owned(),
                _ => format!("link_width=\"{lanes}\" is more than {MAX_LANES} lanes: 16 lanes are assumed"),
            };
            self.notes.about(bus_id, text);
        }
        Ok(known.unwrap_or(0))
    }

    fn speed(&mut self, element: Node<'_, '_>, bus_id: &str) -> Option<PciSpeed> {
        let text = element.attribute("link_speed").unwrap_or_default();
        let speed = PciSpeed::parse(text);
        if speed.is_none() {
            let text = shown(text);
            self.notes.about(bus_id, format!("the speed of its link is {text:?}: PCIe 3 (8 GT/s) is assumed"));
        }
        speed
    }

    pub(super) fn gpu(&mut self, element: Node<'_, '_>, (host, bus_id): (u64, &str)) -> Result<Gpu> {
        let device = self.source.number(element, "dev")?;
        let rank = match element.attribute("rank") {
            None => None,
            Some(text) if text.trim().starts_with('-') => None,
            Some(_) => {
                self.source.text(element, "rank")?;
                let rank = self.source.at_most(element, ("rank", MAX_RANK, ""), 0)?;
                Some(self.source.fit(element, "rank", rank)?)
            }
        };
        let mut gpu = Gpu {
            device: self.source.fit(element, "dev", device)?,
            rank,
            generation: self.generation(element)?,
            gdr: self.source.number_or(element, "gdr", 0)? != 0,
            links: Vec::new(),
            c2c: None,
            clique: element.attribute("clique").map(|_| self.source.number(element, "clique")).transpose()?,
        };
        let mut links = 0;
        for child in element.children().filter(Node::is_element) {
            match child.tag_name().name() {
                "nvlink" | "xgmi" => {
                    let link = self.gpu_link(child, (host, bus_id))?;
                    links += link.as_ref().map_or(0, |link| u64::from(link.count));
                    self.source.bound_links(child, links)?;
                    gpu.links.extend(link);
                }
                "c2c" => {
                    self.source.text(child, "bw")?;
                    let bandwidth = self.source.at_most(child, ("bw", MAX_COHERENT_MEGABYTES, " MB/s"), 0)?;
                    let count = self.source.at_most(child, ("count", MAX_LINKS, " links"), 1)?;
                    let told = (self.source.fit(child, "count", count)?, bandwidth);
                    if gpu.c2c.is_some_and(|first| first != told) {
                        self.notes.about(bus_id, "two <c2c> that differ: the first counts");
                    }
                    gpu.c2c = gpu.c2c.or(Some(told));
                }
                _ => self.unknown(child),
            }
        }
        Ok(gpu)
    }

    /// Links of a GPU to one other device; `None` of those to itself.
    fn gpu_link(&mut self, element: Node<'_, '_>, (host, bus_id): (u64, &str)) -> Result<Option<GpuLink>> {
        let target = self.source.text(element, "target")?.to_ascii_lowercase();
        let count = self.source.at_most(element, ("count", MAX_LINKS, " links"), 1)?;
        let class = self.source.number_or(element, "tclass", 0)?;
        if target == bus_id {
            self.notes.about(bus_id, "its links to itself are left out");
            return Ok(None);
        }
        let (count, target_class) =
            (self.source.fit(element, "count", count)?, self.source.fit(element, "tclass", class)?);
        if target_class != SWITCH_CLASS && target_class >> 16 != BRIDGE_CLASS {
            self.links.push((host, bus_id.to_owned(), target.clone(), element.range().start));
        }
        Ok(Some(GpuLink { target, target_class, count }))
    }

    /// A file of RCCL names the architecture in `gcn`; its `sm` is the number of compute units.
    pub(super) fn generation(&self, element: Node<'_, '_>) -> Result<GpuGeneration> {
        if let Some(gcn) = element.attribute("gcn") {
            let digits = gcn.trim().trim_start_matches("gfx");
            let digits = digits.split(':').next().unwrap_or_default();
            let gfx = u32::from_str_radix(digits, 16).map_err(|_| {
                self.source
                    .wrong(element, &format!("gcn=\"{}\" is not an architecture such as 908 or gfx942", shown(gcn)))
            })?;
            return Ok(GpuGeneration::Amd { gfx });
        }
        let capability = self.source.number(element, "sm")?;
        Ok(GpuGeneration::Nvidia { capability: self.source.fit(element, "sm", capability)? })
    }

    pub(super) fn nic(&mut self, element: Node<'_, '_>, host: u64) -> Result<Nic> {
        let mut nic = Nic::default();
        for child in element.children().filter(Node::is_element) {
            if child.tag_name().name() != "net" {
                self.unknown(child);
                continue;
            }
            let port = self.port(child)?;
            let same = (host, port.name.clone(), port.device, port.port, port.guid);
            if !self.ports.insert(same) {
                let text = "this NIC is listed twice with one name, number and guid: it counts where it stands first";
                self.notes.about(name_of(&port), text);
                continue;
            }
            nic.ports.push(port);
        }
        Ok(nic)
    }

    fn port(&mut self, element: Node<'_, '_>) -> Result<Port> {
        let device = self.source.number(element, "dev")?;
        let (port, connections) =
            (self.source.number_or(element, "port", 0)?, self.source.number_or(element, "maxconn", 0)?);
        let rail = match element.attribute("rail") {
            Some(_) => Some(self.source.number(element, "rail")?),
            None => None,
        };
        let speed = element.attribute("speed").map(str::trim);
        let unknown = speed.is_none_or(|text| text.is_empty() || text.starts_with('-'));
        let port = Port {
            name: element.attribute("name").unwrap_or_default().to_owned(),
            device: self.source.fit(element, "dev", device)?,
            megabits: if unknown { USUAL_MEGABITS } else { self.source.megabits(element)? },
            port: self.source.fit(element, "port", port)?,
            guid: self.source.number_or(element, "guid", 0)?,
            connections: self.source.fit(element, "maxconn", connections)?,
            gdr: self.source.number_or(element, "gdr", 0)? != 0,
            rail: rail.map(|rail| self.source.fit(element, "rail", rail)).transpose()?,
            latency: element.attribute("latency").unwrap_or_default().to_owned(),
        };
        let about = name_of(&port);
        match port.megabits {
            _ if unknown => {
                self.notes.about(about, format!("its speed is not known: {USUAL_MEGABITS} Mbit/s are assumed"));
            }
            0 => self.notes.about(about, "its speed is 0: no channel uses it"),
            MOST_MEGABITS.. => {
                let gigabits = port.megabits / 1000;
                let text = format!(
                    "speed=\"{}\" is {gigabits} Gbit/s, more than any port has: speeds are in Mbit/s",
                    port.megabits
                );
                self.notes.about(about, text);
            }
            _ => {}
        }
        Ok(port)
    }

    fn claim(&mut self, element: Node<'_, '_>, host: u64, (bus_id, is_bridge): (&str, bool)) -> Result<()> {
        // Place-holders of clouds that hide their switches: several devices have one such id.
        if let (Some(first), false) = (self.bus_ids.get(&(host, bus_id.to_owned())), bus_id.starts_with("ffff:")) {
            // RCCL takes files that give one bus id to each port of a switch.
            if !(*first && is_bridge) {
                return Err(self.source.wrong(element, &format!("a second device {} on one host", shown(bus_id))));
            }
            self.notes.about(bus_id, "a second bridge of this bus id: it is taken for another one");
        }
        if self.devices == MAX_DEVICES {
            return Err(self.source.wrong(element, &format!("more than {MAX_DEVICES} devices")));
        }
        self.devices += 1;
        self.bus_ids.insert((host, bus_id.to_owned()), is_bridge);
        Ok(())
    }

    pub(super) fn unknown(&mut self, element: Node<'_, '_>) {
        let name = shown(element.tag_name().name());
        self.notes.add(format!("<{name}> is not known here and left out"));
    }
}

/// A port by its name, or its number where it has none.
fn name_of(port: &Port) -> String {
    if port.name.is_empty() { format!("NIC {}", port.device) } else { port.name.clone() }
}

/// An XML document with its name: reads attributes, and says where what is wrong stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct XmlSource<'a> {
    pub(super) name: &'a str,
    pub(super) document: &'a Document<'a>,
}

impl<'a> XmlSource<'a> {
    /// Parses `text`. Documents with a DTD are refused, and so are those too large for any machine.
    pub(super) fn document(name: &str, text: &'a str) -> Result<Document<'a>> {
        if text.len() > MAX_FILE_BYTES {
            return Err(Error::invalid_argument(format!(
                "{name}: {} bytes: a topology file has at most {MAX_FILE_BYTES}",
                text.len()
            )));
        }
        let options = ParsingOptions { allow_dtd: false, nodes_limit: 4 * MAX_DEVICES, ..ParsingOptions::default() };
        Document::parse_with_options(text, options).map_err(|error| {
            let (line, column) = place_of(&error, text);
            let what = error.to_string();
            // Most of the parser's errors end in the place; it stands before all of ours.
            let what = what.strip_suffix(&format!(" at {line}:{column}")).unwrap_or(&what);
            let what = wire::cut(what, MOST_PARSER_BYTES);
            Error::invalid_argument(format!("{name}:{line}:{column}: {what}"))
        })
    }

    pub(super) fn text<'n>(&self, element: Node<'n, '_>, name: &str) -> Result<&'n str> {
        let missing =
            || self.wrong(element, &format!("<{}> has no attribute {name}", shown(element.tag_name().name())));
        element.attribute(name).map(str::trim).filter(|text| !text.is_empty()).ok_or_else(missing)
    }

    pub(super) fn number(&self, element: Node<'_, '_>, name: &str) -> Result<u64> {
        self.text(element, name)?;
        self.number_or(element, name, 0)
    }

    /// Decimal, or hexadecimal behind `0x`.
    pub(super) fn number_or(&self, element: Node<'_, '_>, name: &str, otherwise: u64) -> Result<u64> {
        let Some(text) = element.attribute(name).map(str::trim).filter(|text| !text.is_empty()) else {
            return Ok(otherwise);
        };
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let shown = shown(text);
        number.map_err(|_| self.wrong(element, &format!("{name}=\"{shown}\" is not a number")))
    }

    /// A number, or `otherwise`, that is no more than `most` of what `unit` says.
    pub(super) fn at_most(
        &self,
        element: Node<'_, '_>,
        (name, most, unit): (&str, u64, &str),
        otherwise: u64,
    ) -> Result<u64> {
        let number = self.number_or(element, name, otherwise)?;
        if number > most {
            return Err(self.wrong(element, &format!("{name}=\"{number}\" is more than {most}{unit}")));
        }
        Ok(number)
    }

    /// Checks how many links one GPU has, to all devices together: sums of them are widths.
    pub(super) fn bound_links(&self, element: Node<'_, '_>, links: u64) -> Result<()> {
        if links > MAX_LINKS {
            return Err(self.wrong(element, &format!("{links} links of one GPU are more than {MAX_LINKS}")));
        }
        Ok(())
    }

    /// The speed of a port.
    pub(super) fn megabits(&self, element: Node<'_, '_>) -> Result<u64> {
        self.text(element, "speed")?;
        self.at_most(element, ("speed", MAX_MEGABITS, " Mbit/s"), 0)
    }

    pub(super) fn fit(&self, element: Node<'_, '_>, name: &str, number: u64) -> Result<u32> {
        u32::try_from(number).map_err(|_| self.wrong(element, &format!("{name}=\"{number}\" is above {}", u32::MAX)))
    }

    pub(super) fn wrong(&self, element: Node<'_, '_>, what: &str) -> Error {
        self.wrong_at(element.range().start, what)
    }

    /// What is wrong at a byte of the file.
    pub(super) fn wrong_at(&self, at: usize, what: &str) -> Error {
        let place = self.document.text_pos_at(at);
        Error::invalid_argument(format!("{}:{}:{}: {what}", self.name, place.row, place.col))
    }
}

/// Line and column, from 1, of what a parser's error is about. Of some errors the parser tells no place: a document that
/// is not closed is wrong where it ends.
fn place_of(error: &roxmltree::Error, text: &str) -> (u32, u32) {
    use roxmltree::Error::{DtdDetected, NoRootNode, UnclosedRootNode, UnexpectedEndOfStream};
    let offset = match error {
        NoRootNode | UnclosedRootNode | UnexpectedEndOfStream => text.trim_end().len(),
        DtdDetected => text.find("<!DOCTYPE").unwrap_or_default(),
        _ => {
            let place = error.pos();
            return (place.row, place.col);
        }
    };
    let before = text.get(..offset).unwrap_or_default();
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |last| last.chars().count()) + 1;
    (u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(column).unwrap_or(u32::MAX))
}

/// The processor with these names.
pub fn processor([architecture, vendor, family, _]: &[String; 4], model: u32) -> Processor {
    match (&**architecture, &**vendor) {
        ("x86_64", "GenuineIntel") if matches!(&**family, "6" | "") => Processor::Intel { model },
        ("x86_64", "GenuineIntel") => Processor::Intel { model: u32::MAX },
        ("x86_64", "AuthenticAMD") => Processor::Amd,
        ("x86_64", "CentaurHauls" | "  Shanghai  ") => Processor::Zhaoxin,
        ("ppc64" | "ppc64le", _) => Processor::Power,
        ("arm64" | "aarch64", _) => Processor::Arm,
        _ => Processor::Other,
    }
}

/// Writes `machine` as a topology file. The same machine gives the same bytes.
pub fn write(machine: &Machine) -> String {
    let mut text = String::from("<system version=\"1\">\n");
    for cpu in &machine.cpus {
        let [architecture, vendor, family, model] = &cpu.identity;
        let mut attributes = vec![
            ("host_hash", format!("{:#x}", cpu.host)),
            ("numaid", cpu.numa.to_string()),
            ("affinity", cpu.affinity.clone()),
            ("arch", architecture.clone()),
            ("vendor", vendor.clone()),
            ("familyid", family.clone()),
            ("modelid", model.clone()),
        ];
        // Of hosts that do not share NVLink switches.
        attributes.extend((cpu.clique != 0).then(|| ("clique", format!("{:#x}", cpu.clique))));
        open(&mut text, 1, "cpu", &attributes);
        text.push_str(">\n");
        cpu.devices.iter().for_each(|device| write_pci(&mut text, 2, device));
        cpu.nics.iter().for_each(|nic| write_nic(&mut text, 2, nic));
        text.push_str("  </cpu>\n");
    }
    text.push_str("</system>\n");
    text
}

fn write_pci(text: &mut String, depth: usize, device: &Pci) {
    let [vendor, number, subsystem_vendor, subsystem_device] = &device.ids;
    open(
        text,
        depth,
        "pci",
        &[
            ("busid", device.bus_id.clone()),
            ("class", format!("{:#08x}", device.class)),
            ("vendor", vendor.clone()),
            ("device", number.clone()),
            ("subsystem_vendor", subsystem_vendor.clone()),
            ("subsystem_device", subsystem_device.clone()),
            ("link_speed", device.speed.map(speed_text).unwrap_or_default().to_owned()),
            ("link_width", device.lanes.to_string()),
        ],
    );
    if device.function == Function::Bridge && device.devices.is_empty() {
        text.push_str("/>\n");
        return;
    }
    text.push_str(">\n");
    match &device.function {
        Function::Bridge => {}
        Function::Gpu(gpu) => write_gpu(text, depth + 1, gpu),
        Function::Nic(nic) => write_nic(text, depth + 1, nic),
    }
    device.devices.iter().for_each(|below| write_pci(text, depth + 1, below));
    close(text, depth, "pci");
}

fn write_gpu(text: &mut String, depth: usize, gpu: &Gpu) {
    let (kind, links, link_name) = match gpu.generation {
        GpuGeneration::Nvidia { capability } => ("sm", capability.to_string(), "nvlink"),
        GpuGeneration::Amd { gfx } => ("gcn", format!("gfx{gfx:x}"), "xgmi"),
    };
    let mut attributes = vec![("dev", gpu.device.to_string()), (kind, links)];
    attributes.extend(gpu.rank.map(|rank| ("rank", rank.to_string())));
    attributes.push(("gdr", u8::from(gpu.gdr).to_string()));
    attributes.extend(gpu.clique.map(|clique| ("clique", format!("{clique:#x}"))));
    open(text, depth, "gpu", &attributes);
    if gpu.links.is_empty() && gpu.c2c.is_none() {
        text.push_str("/>\n");
        return;
    }
    text.push_str(">\n");
    for link in &gpu.links {
        let class = format!("{:#08x}", link.target_class);
        open(
            text,
            depth + 1,
            link_name,
            &[("target", link.target.clone()), ("count", link.count.to_string()), ("tclass", class)],
        );
        text.push_str("/>\n");
    }
    if let Some((count, bandwidth)) = gpu.c2c {
        open(text, depth + 1, "c2c", &[("bw", bandwidth.to_string()), ("count", count.to_string())]);
        text.push_str("/>\n");
    }
    close(text, depth, "gpu");
}

fn write_nic(text: &mut String, depth: usize, nic: &Nic) {
    open(text, depth, "nic", &[]);
    text.push_str(">\n");
    for port in &nic.ports {
        let mut attributes = vec![
            ("name", port.name.clone()),
            ("dev", port.device.to_string()),
            ("speed", port.megabits.to_string()),
            ("port", port.port.to_string()),
            ("latency", port.latency.clone()),
            ("guid", format!("{:#x}", port.guid)),
            ("maxconn", port.connections.to_string()),
            ("gdr", u8::from(port.gdr).to_string()),
        ];
        attributes.extend(port.rail.map(|rail| ("rail", rail.to_string())));
        open(text, depth + 1, "net", &attributes);
        text.push_str("/>\n");
    }
    close(text, depth, "nic");
}

const fn speed_text(speed: PciSpeed) -> &'static str {
    match speed {
        PciSpeed::Gen1 => "2.5 GT/s PCIe",
        PciSpeed::Gen2 => "5.0 GT/s PCIe",
        PciSpeed::Gen3 => "8.0 GT/s PCIe",
        PciSpeed::Gen4 => "16.0 GT/s PCIe",
        PciSpeed::Gen5 => "32.0 GT/s PCIe",
        PciSpeed::Gen6 => "64.0 GT/s PCIe",
    }
}

/// Begins an element, without its closing bracket.
pub(super) fn open(text: &mut String, depth: usize, name: &str, attributes: &[(&str, String)]) {
    let _ = write!(text, "{:width$}<{name}", "", width = 2 * depth); // writing to a String cannot fail
    for (name, value) in attributes {
        let value = value.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
        let _ = write!(text, " {name}=\"{value}\""); // writing to a String cannot fail
    }
}

fn close(text: &mut String, depth: usize, name: &str) {
    let _ = writeln!(text, "{:width$}</{name}>", "", width = 2 * depth); // writing to a String cannot fail
}

#[cfg(test)]
mod tests;
