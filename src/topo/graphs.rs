//! NCCL's graph files (`NCCL_GRAPH_FILE`, `NCCL_GRAPH_DUMP_FILE`): the channels of one domain, read and written.
//!
//! A ring's channel is `net, gpu, …, gpu, net`, a tree's `net, gpu, …`; inside one domain there is no `net`. Devices
//! are numbers on the host; where a domain spans hosts that use the same numbers, places in the domain. A file's widths
//! are what its writer believed: [`Graph::carries`] weighs the channels on a system.

use std::collections::HashMap;
use std::fmt::Write as _;

use roxmltree::Node;

use crate::error::{Error, Result, shown};
use crate::topo::bandwidth::Bandwidth;
use crate::topo::paths::{PathKind, Paths};
use crate::topo::search::between::{Channels, Hop};
use crate::topo::search::loads::{Loads, Weight};
use crate::topo::search::{Inside, MAX_CHANNELS};
use crate::topo::system::{NodeId, NodeKind, System};
use crate::topo::xml::{XmlSource, open};

/// The shape of a graph's channels, by NCCL's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphPattern {
    /// 1 to 3: a chain of GPUs; trees between hosts.
    Tree(u32),
    /// 4: a ring.
    Ring,
    /// 5, 6: for NVLink SHARP and SHARP, which rsccl does not have.
    Other(u32),
}

impl GraphPattern {
    const fn number(self) -> u32 {
        match self {
            GraphPattern::Tree(number) | GraphPattern::Other(number) => number,
            GraphPattern::Ring => 4,
        }
    }
}

/// Channels of one pattern in one domain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Graph {
    /// 0 for the ring and 1 for the tree, as NCCL counts them.
    pub id: u32,
    /// The shape of the channels.
    pub pattern: GraphPattern,
    /// Whether channels leave by other NICs than they enter by.
    pub crosses: bool,
    /// What each channel carries between GPUs.
    pub inside: Bandwidth,
    /// What each channel carries between domains.
    pub between: Bandwidth,
    /// The farthest way between two GPUs that follow each other.
    pub kind_inside: PathKind,
    /// The farthest way between a GPU and its NIC.
    pub kind_between: PathKind,
    /// The channels.
    pub channels: Vec<Channel>,
}

/// Devices of one channel, by their numbers on the host.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Channel {
    /// The NIC where data enter.
    pub enter: Option<u32>,
    /// The GPUs in their order.
    pub gpus: Vec<u32>,
    /// The NIC where data leave.
    pub exit: Option<u32>,
}

impl Graph {
    /// The rings and chains inside a domain.
    pub fn inside(system: &System, channels: &Inside, pattern: GraphPattern) -> Graph {
        let hop = |gpus: &Vec<NodeId>| (None, gpus.clone(), None);
        Graph::of(system, channels.width, pattern, channels.orders.iter().map(hop).collect())
    }

    /// What channels between domains do in the first of them.
    pub fn between(system: &System, channels: &Channels, pattern: GraphPattern) -> Graph {
        let hop = |hop: &Hop| {
            let exit = matches!(pattern, GraphPattern::Ring).then_some(hop.exit);
            (Some(hop.enter), hop.gpus.clone(), exit)
        };
        let hops = channels.channels.iter().filter_map(|channel| channel.first()).map(hop);
        let mut graph = Graph::of(system, channels.width, pattern, hops.collect());
        graph.crosses = channels.crosses;
        graph
    }

    fn of(
        system: &System,
        width: Bandwidth,
        pattern: GraphPattern,
        hops: Vec<(Option<NodeId>, Vec<NodeId>, Option<NodeId>)>,
    ) -> Graph {
        let (mut kind_inside, mut kind_between) = (PathKind::Loc, PathKind::Loc);
        let mut channels = Vec::with_capacity(hops.len());
        let mut paths = HashMap::new();
        let numbers = Numbers::of(system, hops.first().map_or(&[], |(_, gpus, _)| gpus));
        for (enter, gpus, exit) in hops {
            let mut kind = |from: NodeId, to: NodeId| {
                paths.entry(from).or_insert_with(|| Paths::from(system, from)).to(system, to).kind
            };
            for pair in gpus.windows(2) {
                kind_inside = kind_inside.max(kind(pair[0], pair[1]));
            }
            for (gpu, port) in [(gpus.first(), enter), (gpus.last(), exit)] {
                if let (Some(gpu), Some(port)) = (gpu, port) {
                    kind_between = kind_between.max(kind(*gpu, port));
                }
            }
            let port = |id: NodeId| numbers.number(id);
            let gpus = gpus.iter().map(|gpu| numbers.number(*gpu)).collect();
            channels.push(Channel { enter: enter.map(port), gpus, exit: exit.map(port) });
        }
        let id = u32::from(!matches!(pattern, GraphPattern::Ring));
        let (inside, between) = (width, width);
        Graph { id, pattern, crosses: false, inside, between, kind_inside, kind_between, channels }
    }

    /// The GPUs of each channel in the domain of `gpus`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for a GPU that the domain does not have.
    pub fn orders(&self, system: &System, gpus: &[NodeId]) -> Result<Vec<Vec<NodeId>>> {
        let numbers = Numbers::of(system, gpus);
        let gpu = |device: &u32| {
            gpus.iter().find(|gpu| numbers.number(**gpu) == *device).copied().ok_or_else(|| {
                Error::invalid_argument(format!("the graph names GPU {device}, which this host does not have"))
            })
        };
        self.channels.iter().map(|channel| channel.gpus.iter().map(gpu).collect()).collect()
    }

    /// The width that each channel can really have inside the domain of `gpus`, all channels at once.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for a GPU that the domain does not have.
    pub fn carries(&self, system: &System, gpus: &[NodeId]) -> Result<Option<Bandwidth>> {
        let mut loads = Loads::new(system);
        let paths: HashMap<NodeId, Paths> = gpus.iter().map(|gpu| (*gpu, Paths::from(system, *gpu))).collect();
        for (channel, order) in self.channels.iter().zip(self.orders(system, gpus)?) {
            let ring = matches!(self.pattern, GraphPattern::Ring) && channel.enter.is_none();
            let closing = (ring && order.len() > 1).then(|| (order[order.len() - 1], order[0]));
            for (from, to) in order.windows(2).map(|pair| (pair[0], pair[1])).chain(closing) {
                let part = if matches!(self.pattern, GraphPattern::Ring) { Weight::Whole } else { Weight::Half };
                loads.add(&paths[&from].to(system, to).nodes, part);
                if part == Weight::Half {
                    loads.add(&paths[&to].to(system, from).nodes, part);
                }
            }
        }
        Ok(loads.width())
    }
}

/// What a graph file calls the devices of a domain.
struct Numbers<'a> {
    system: &'a System,
    /// Places of devices, where hosts of the domain use the same numbers.
    places: Option<HashMap<NodeId, u32>>,
}

impl<'a> Numbers<'a> {
    fn of(system: &'a System, gpus: &[NodeId]) -> Numbers<'a> {
        let mut hosts: Vec<u32> = gpus.iter().map(|gpu| system.node(*gpu).host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        let here = |id: &NodeId| hosts.binary_search(&system.node(*id).host).is_ok();
        let places = (hosts.len() > 1).then(|| {
            let mut places: HashMap<NodeId, u32> = system.gpus().into_iter().filter(here).zip(0..).collect();
            places.extend(system.ports().into_iter().filter(here).zip(0..));
            places
        });
        Numbers { system, places }
    }

    fn number(&self, id: NodeId) -> u32 {
        match (&self.places, &self.system.node(id).kind) {
            (Some(places), _) => places.get(&id).copied().unwrap_or(u32::MAX),
            (None, NodeKind::Gpu { device, .. } | NodeKind::Port { device, .. }) => *device,
            (None, NodeKind::Pci | NodeKind::Switch | NodeKind::Cpu(_) | NodeKind::Nic) => id.0,
        }
    }
}

/// Writes a graph file. Equal graphs give equal bytes.
pub fn write(graphs: &[Graph]) -> String {
    let mut text = String::from("<graphs version=\"1\">\n");
    for graph in graphs {
        let attributes = [
            ("id", graph.id.to_string()),
            ("pattern", graph.pattern.number().to_string()),
            ("crossnic", u8::from(graph.crosses).to_string()),
            ("nchannels", graph.channels.len().to_string()),
            ("speedintra", graph.inside.gigabytes().to_string()),
            ("speedinter", graph.between.gigabytes().to_string()),
            ("latencyinter", "0".to_owned()),
            ("typeintra", graph.kind_inside.name().to_owned()),
            ("typeinter", graph.kind_between.name().to_owned()),
            ("samechannels", u8::from(graph.channels.windows(2).all(|pair| pair[0] == pair[1])).to_string()),
        ];
        open(&mut text, 1, "graph", &attributes);
        text.push_str(">\n");
        for channel in &graph.channels {
            text.push_str("    <channel>\n");
            let net = |port: &u32| ("net", *port);
            let devices = channel.enter.iter().map(net).chain(channel.gpus.iter().map(|gpu| ("gpu", *gpu)));
            for (kind, device) in devices.chain(channel.exit.iter().map(net)) {
                let _ = writeln!(text, "      <{kind} dev=\"{device}\"/>"); // writing to a String cannot fail
            }
            text.push_str("    </channel>\n");
        }
        text.push_str("  </graph>\n");
    }
    text.push_str("</graphs>\n");
    text
}

/// The remark that a graph file, which an option or variable names, is not used: it has the channels of one host.
pub fn unused((named_by, path): (&str, &str), hosts: usize) -> Option<String> {
    (hosts > 1).then(|| {
        format!(
            "{named_by}={path:?} is not used: it has the channels of one host, and these GPUs are on {hosts}, between \
             which channels are searched for"
        )
    })
}

/// Reads a graph file; `name` stands in errors.
///
/// # Errors
/// [`crate::error::Kind::InvalidArgument`] with line and column: no XML, no `<graphs>`, an attribute that is missing or
/// wrong, a channel without GPUs or with a GPU twice.
pub fn parse(name: &str, text: &str) -> Result<Vec<Graph>> {
    let document = XmlSource::document(name, text)?;
    let source = XmlSource { name, document: &document };
    let root = document.root_element();
    if root.tag_name().name() != "graphs" {
        let name = shown(root.tag_name().name());
        return Err(source.wrong(root, &format!("<{name}> where a graph file has <graphs>")));
    }
    root.children().filter(|child| child.has_tag_name("graph")).map(|child| graph(&source, child)).collect()
}

fn graph(source: &XmlSource<'_>, element: Node<'_, '_>) -> Result<Graph> {
    let id = source.number(element, "id")?;
    let pattern = match source.number(element, "pattern")? {
        number @ 1..=3 => GraphPattern::Tree(source.fit(element, "pattern", number)?),
        4 => GraphPattern::Ring,
        number @ 5..=6 => GraphPattern::Other(source.fit(element, "pattern", number)?),
        other => return Err(source.wrong(element, &format!("pattern=\"{other}\" is not one of 1 to 6"))),
    };
    let channels = element.children().filter(|child| child.has_tag_name("channel"));
    let channels: Vec<Channel> = channels.map(|child| channel(source, child)).collect::<Result<_>>()?;
    if channels.len() > MAX_CHANNELS {
        return Err(source.wrong(element, &format!("{} channels: at most {MAX_CHANNELS} can run", channels.len())));
    }
    let declared = source.number_or(element, "nchannels", channels.len() as u64)?;
    if declared != channels.len() as u64 {
        let what = format!("nchannels=\"{declared}\", but there are {} channels", channels.len());
        return Err(source.wrong(element, &what));
    }
    Ok(Graph {
        id: source.fit(element, "id", id)?,
        pattern,
        crosses: source.number_or(element, "crossnic", 0)? != 0,
        inside: width(source, element, "speedintra")?,
        between: width(source, element, "speedinter")?,
        kind_inside: kind(source, element, "typeintra")?,
        kind_between: kind(source, element, "typeinter")?,
        channels,
    })
}

fn channel(source: &XmlSource<'_>, element: Node<'_, '_>) -> Result<Channel> {
    let mut channel = Channel::default();
    for child in element.children().filter(Node::is_element) {
        // Older files count ranks where newer ones count devices.
        let attribute = if child.has_attribute("dev") || !child.has_attribute("rank") { "dev" } else { "rank" };
        let number = source.number(child, attribute)?;
        let device = source.fit(child, attribute, number)?;
        match child.tag_name().name() {
            "gpu" if channel.gpus.contains(&device) => {
                return Err(source.wrong(child, &format!("the channel has GPU {device} already")));
            }
            "gpu" => channel.gpus.push(device),
            "net" if channel.gpus.is_empty() => channel.enter = Some(device),
            "net" => channel.exit = Some(device),
            other => {
                let what = format!("<{}> where a channel has <net> or <gpu>", shown(other));
                return Err(source.wrong(child, &what));
            }
        }
    }
    if channel.gpus.is_empty() {
        return Err(source.wrong(element, "a channel without a GPU"));
    }
    Ok(channel)
}

/// GB/s with a fraction, as a whole number of MB/s.
fn width(source: &XmlSource<'_>, element: Node<'_, '_>, name: &str) -> Result<Bandwidth> {
    let text = source.text(element, name)?;
    let number: f64 = text.parse().unwrap_or(f64::NAN);
    if !(0.0..=1e6).contains(&number) {
        let text = shown(text);
        return Err(source.wrong(element, &format!("{name}=\"{text}\" is not a number of GB/s from 0 to 1000000")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1e9 by the line above")]
    let megabytes = (number * 1e3).round() as u64;
    Ok(Bandwidth(megabytes))
}

fn kind(source: &XmlSource<'_>, element: Node<'_, '_>, name: &str) -> Result<PathKind> {
    let text = source.text(element, name)?;
    let known = PathKind::ALL.into_iter().find(|kind| kind.name() == text);
    let wrong = || format!("{name}=\"{}\" is not a kind of path, such as NVL or PHB", shown(text));
    known.ok_or_else(|| source.wrong(element, &wrong()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::search::between::{CrossNic, search};
    use crate::topo::search::{chains_inside, rings};
    use crate::topo::{machines, xml};

    #[test]
    fn graphs_read_back_as_they_were_written() {
        for name in machines::ALL {
            let (machine, _) = xml::parse(name, machines::text(name)).unwrap();
            let system = System::new(&machine.repeated(2)).unwrap();
            let gpus: Vec<NodeId> = system.gpus().into_iter().filter(|id| system.node(*id).host == 0).collect();
            let (ring, chains) = (rings(&system, &gpus).unwrap(), chains_inside(&system, &gpus).unwrap());
            let found = search(&system, &[0, 1], CrossNic::IfBetter).unwrap();
            let graphs = [
                Graph::inside(&system, &ring, GraphPattern::Ring),
                Graph::inside(&system, &chains, GraphPattern::Tree(3)),
                Graph::between(&system, &found.ring, GraphPattern::Ring),
                Graph::between(&system, &found.tree, GraphPattern::Tree(3)),
            ];
            let text = write(&graphs);
            assert_eq!(parse(name, &text).unwrap(), graphs, "{name}");
            assert_eq!(write(&parse(name, &text).unwrap()), text, "{name}");
            for graph in &graphs[..2] {
                let carries = graph.carries(&system, &gpus).unwrap().unwrap();
                assert!(carries >= graph.inside, "{name}: {carries} of {}", graph.inside);
            }
        }
    }

    /// The graph that a cloud ships for a machine books 24 GB/s on links that an empty speed makes 12.
    #[test]
    fn a_file_may_promise_more_than_the_links_have() {
        let (machine, _) = xml::parse("ncv4", &machines::text("ncv4-gen4").replace("16 GT/s", "")).unwrap();
        let system = System::new(&machine).unwrap();
        let text = r#"<graphs version="1"><graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="12" speedinter="12"
            latencyinter="0" typeintra="SYS" typeinter="PIX" samechannels="0">
            <channel><gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/></channel>
            <channel><gpu rank="0"/><gpu rank="3"/><gpu rank="2"/><gpu rank="1"/></channel></graph></graphs>"#;
        let graph = &parse("ncv4", text).unwrap()[0];
        assert_eq!(graph.inside, Bandwidth(12_000));
        assert_eq!(graph.carries(&system, &system.gpus()).unwrap(), Some(Bandwidth(6_000)));
        let error = graph.carries(&system, &system.gpus()[..2]).unwrap_err();
        assert!(error.message().contains("GPU 2, which this host does not have"), "{error}");
    }

    /// A graph as an owner of such machines publishes it: rings and trees at 12 GB/s, though nothing is said of the links, so
    /// that they count as those of PCIe 3.
    #[test]
    fn the_graph_of_a_cloud_is_read_and_carries_less_than_it_says() {
        let machine = machines::text("ncv4-gen4");
        let unsaid = machine.replace("link_speed=\"16 GT/s\" link_width=\"16\"", "link_speed=\"\" link_width=\"0\"");
        assert_ne!(machine, unsaid);
        let system = System::new(&xml::parse("ncv4", &unsaid).unwrap().0).unwrap();
        let graph = |number: u32, pattern: u32, orders: &[[u32; 4]]| {
            let channel = |order: &[u32; 4]| {
                let gpus: String = order.iter().map(|gpu| format!("<gpu dev=\"{gpu}\"/>")).collect();
                format!("<channel>{gpus}</channel>")
            };
            let channels: String = orders.iter().map(channel).collect();
            format!(
                "<graph id=\"{number}\" pattern=\"{pattern}\" crossnic=\"0\" nchannels=\"{}\" speedintra=\"12\" speedinter=\"12\" \
                 latencyinter=\"0\" typeintra=\"SYS\" typeinter=\"PIX\" samechannels=\"0\">{channels}</graph>",
                orders.len()
            )
        };
        let four = [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0], [2, 3, 0, 1]];
        let text = [graph(0, 4, &[four[0], [0, 3, 2, 1]]), graph(1, 1, &four), graph(2, 3, &four)].concat();
        let graphs = parse("ncv4", &format!("<graphs version=\"1\">{text}</graphs>")).unwrap();
        let carried: Vec<_> = graphs.iter().map(|graph| graph.carries(&system, &system.gpus()).unwrap()).collect();
        assert!(graphs.iter().all(|graph| graph.inside == Bandwidth(12_000)));
        assert_eq!(carried, [6_000, 4_000, 4_000].map(|carries| Some(Bandwidth(carries))));
        assert!(graphs[0].pattern == GraphPattern::Ring && graphs[1].pattern != GraphPattern::Ring);
    }

    #[test]
    fn errors_name_line_and_column() {
        let graph = |attributes: &str, inner: &str| {
            format!(
                "<graphs>\n<graph id=\"0\" typeintra=\"NVL\" typeinter=\"PIX\" speedinter=\"1\" {attributes}>{inner}</graph></graphs>"
            )
        };
        let ring = "pattern=\"4\" speedintra=\"20\"";
        let cases = [
            ("<system/>".to_owned(), "f:1:1: <system> where a graph file has <graphs>"),
            (graph("pattern=\"9\" speedintra=\"20\"", ""), "f:2:1: pattern=\"9\" is not one of 1 to 6"),
            (graph("pattern=\"4\" speedintra=\"fast\"", ""), "f:2:1: speedintra=\"fast\" is not a number of GB/s"),
            (graph(ring, "\n<channel/>"), "f:3:1: a channel without a GPU"),
            (
                graph(ring, "<channel>\n<gpu dev=\"1\"/><gpu dev=\"1\"/></channel>"),
                "f:3:15: the channel has GPU 1 already",
            ),
            (graph(&format!("{ring} nchannels=\"2\""), ""), "f:2:1: nchannels=\"2\", but there are 0 channels"),
        ];
        for (text, expected) in cases {
            let error = parse("f", &text).unwrap_err();
            assert!(error.message().contains(expected), "{error} for {text}");
        }
    }
}
