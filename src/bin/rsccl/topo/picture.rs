//! The machine as a picture: hosts below each other, in each its NUMA nodes, bridges, GPUs and NICs as a tree with GB/s
//! at the links, the NVLinks below the GPUs, and the channels below those.
//!
//! A channel's line starts at the top and goes down one step with each device that it visits, so that its order can be
//! read: whole lines are rings, dotted ones the chains of trees. Where there are several hosts, NICs of one column stand
//! below each other and dashed lines between hosts join them, and the two trees of hosts stand below all hosts. Of hosts
//! that share NVLink switches the first is drawn whole, the others by their GPUs.

mod legend;

use std::collections::HashMap;
use std::fmt::Write as _;

use rsccl::internals::topo::bandwidth::Bandwidth;
use rsccl::internals::topo::channels::DomainChannels;
use rsccl::internals::topo::search::Inside;
use rsccl::internals::topo::search::between::{Channels, Hop};
use rsccl::internals::topo::system::{LinkKind, NodeId, NodeKind, System};

use super::found::Found;

/// The picture, with at most [`MAX_HOSTS`] hosts drawn whole.
pub(crate) fn svg(system: &System, found: &Found) -> String {
    let mut picture = Picture {
        system,
        frames: String::new(),
        between: String::new(),
        body: String::new(),
        words: String::new(),
        places: HashMap::new(),
        labels: Vec::new(),
        left_out: 0,
        equal_arcs: Vec::new(),
        width: 0.0,
        y: MARGIN,
    };
    let tracks = tracks(found);
    let groups = hosts_of_domains(system);
    for hosts in groups.iter().take(MAX_HOSTS) {
        picture.host(hosts, &tracks);
    }
    picture.between_hosts(found);
    if groups.len() > MAX_HOSTS {
        let more: usize = groups[MAX_HOSTS..].iter().map(Vec::len).sum();
        picture.text(MARGIN, picture.y + LINE, &format!("and {more} more hosts"), "start");
        picture.y += 2.0 * LINE;
    }
    picture.trees_of_hosts(found);
    picture.legend(found);
    picture.finish()
}

/// The hosts of each domain, in the order of their first hosts; one that has no GPU stands alone.
fn hosts_of_domains(system: &System) -> Vec<Vec<u32>> {
    let mut groups: Vec<Vec<u32>> = Vec::new();
    for nodes in system.components() {
        let mut hosts: Vec<u32> = nodes.iter().map(|id| system.node(*id).host).collect();
        hosts.sort_unstable();
        hosts.dedup();
        // A component of a NIC or a NUMA node alone belongs to a host that is in the list already.
        match groups.iter_mut().find(|group| group.iter().any(|host| hosts.contains(host))) {
            Some(group) => group.extend(hosts.into_iter().filter(|host| !group.contains(host)).collect::<Vec<_>>()),
            None => groups.push(hosts),
        }
    }
    groups
}

/// The most hosts, or domains of several hosts, that are drawn whole: those behind them show nothing new.
pub(crate) const MAX_HOSTS: usize = 4;
/// The most hosts of a domain of which the GPUs are drawn.
const MAX_COMPACT: usize = 35;
/// The most rings that are drawn, and the most trees.
const MAX_RINGS: usize = 8;
const MAX_TREES: usize = 4;
/// The most hosts of a tree of hosts that is drawn.
const MAX_PLACES: usize = 64;
const MARGIN: f64 = 24.0;
const COLUMN: f64 = 84.0;
const BOX: (f64, f64) = (72.0, 26.0);
const LEVEL: f64 = 62.0;
const LINE: f64 = 16.0;
const STEP: f64 = 5.0;
/// Colours that people with colour blindness tell apart, then the same again, darker.
const COLOURS: [&str; 12] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#8a6d00", "#004b75", "#00664b", "#8f3f00",
    "#8a4a6d", "#357494",
];

const GREY: &str = "#777777";
const PURPLE: &str = "#7a52a8";
const BLUE: &str = "#4a78b0";
const ORANGE: &str = "#c9801c";
const GREEN: &str = "#2a8f5b";
/// Room above NUMA nodes for the bar that joins three or more.
const ABOVE: f64 = 26.0;
/// Room for the words of the legend, and for rows of hosts.
const LEAST_WIDTH: f64 = 420.0;
const COMPACT_WIDTH: f64 = 1440.0;
/// How large a number at a link is.
const LABEL: (f64, f64) = (30.0, 11.0);
/// Between hosts of a tree.
const PLACE: f64 = 28.0;
/// The letters of a device's name that are readable in its box.
const LONGEST_NAME: usize = 14;

/// A tree of hosts that is being drawn.
struct Drawing<'a> {
    parents: &'a [Option<usize>],
    hosts: &'a [u32],
    colour: &'static str,
    /// Where the next host stands.
    next: f64,
    lowest: f64,
}

/// Whether a number at `x` would stand in the gap between two columns, where lines from host to host run.
fn in_gap(x: f64) -> bool {
    !(0.16..0.78).contains(&((x - MARGIN) / COLUMN).fract())
}

/// What is not drawn of so many.
fn more(count: usize, most: usize) -> String {
    if count > most { format!(", of which {most} are drawn") } else { String::new() }
}

/// What a channel visits, or a part of it: devices in order.
#[derive(Debug, Clone)]
struct Track {
    name: String,
    number: usize,
    devices: Vec<NodeId>,
    pattern: Pattern,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pattern {
    /// From the last device back to the first.
    Ring,
    /// A ring's part of a host.
    Part,
    Chain,
}

/// The rings and trees inside the domains, or those between them where there are several.
fn tracks(found: &Found) -> Vec<Track> {
    if let Some(Ok(between)) = found.between() {
        return [hops(&between.ring, Pattern::Part), hops(&between.tree, Pattern::Chain)].concat();
    }
    let of = |inside: Option<&Inside>, pattern: Pattern| -> Vec<Track> {
        let orders = inside.into_iter().flat_map(|inside| inside.orders.iter().take(pattern.most()).enumerate());
        orders.map(|(number, order)| Track::new(number, order.clone(), pattern)).collect()
    };
    let both = |domain: &DomainChannels| {
        [of(domain.rings.as_ref(), Pattern::Ring), of(domain.chains.as_ref(), Pattern::Chain)].concat()
    };
    found.domains().iter().flat_map(both).collect()
}

fn hops(channels: &Channels, pattern: Pattern) -> Vec<Track> {
    let shown = channels.channels.iter().take(pattern.most()).enumerate();
    let track = |(number, hop): (usize, &Hop)| {
        let mut devices = vec![hop.enter];
        devices.extend(&hop.gpus);
        devices.extend((pattern == Pattern::Part).then_some(hop.exit));
        Track::new(number, devices, pattern)
    };
    shown.flat_map(|(number, channel)| channel.iter().map(move |hop| track((number, hop)))).collect()
}

impl Pattern {
    const fn most(self) -> usize {
        match self {
            Pattern::Ring | Pattern::Part => MAX_RINGS,
            Pattern::Chain => MAX_TREES,
        }
    }
}

impl Track {
    fn new(number: usize, devices: Vec<NodeId>, pattern: Pattern) -> Track {
        let name = if pattern == Pattern::Chain { "tree" } else { "ring" };
        Track { name: format!("{name} {number}"), number, devices, pattern }
    }
}

struct Picture<'a> {
    system: &'a System,
    /// Below all else: the frames of hosts, then what leads from host to host.
    frames: String,
    between: String,
    body: String,
    /// What is written, which stands above all lines.
    words: String,
    /// The middle of each device that is drawn.
    places: HashMap<NodeId, (f64, f64)>,
    /// Where numbers stand on arcs, and how many found no room.
    labels: Vec<(f64, f64)>,
    left_out: usize,
    /// What each arc of a host carries, where that is the same for all of them.
    equal_arcs: Vec<Bandwidth>,
    width: f64,
    y: f64,
}

impl Picture<'_> {
    /// The first of hosts that share links, whole, and the others.
    fn host(&mut self, hosts: &[u32], tracks: &[Track]) {
        let (host, top) = (hosts[0], self.y);
        let of_host = |id: &NodeId| self.system.node(*id).host == host;
        let is_cpu = |id: &NodeId| matches!(self.system.node(*id).kind, NodeKind::Cpu(_));
        let cpus: Vec<NodeId> = self.system.ids().filter(of_host).filter(is_cpu).collect();
        let above = if cpus.len() > 2 { ABOVE } else { 0.0 };
        let mut column = 0.0;
        let mut bottom = top;
        for cpu in &cpus {
            bottom = self.branch(*cpu, None, top + above + 2.0 * LINE + BOX.1 / 2.0, &mut column).max(bottom);
        }
        self.join_cpus(&cpus);
        self.coherent_links(host);
        self.y = bottom + BOX.1;
        self.gpu_links(host, hosts.len());
        let mut wide = column * COLUMN;
        if hosts.len() > 1 {
            wide = self.compact(&hosts[1..], wide);
        }
        self.tracks(host, tracks);
        self.width = self.width.max(wide + 2.0 * MARGIN);
        let (width, height) = (wide + MARGIN, self.y - top);
        let frame = format!(
            "<rect x=\"{}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#f6f6f4\" stroke=\"#999\"/>\n",
            MARGIN / 2.0
        );
        self.frames.push_str(&frame);
        let name = match hosts {
            [host] => format!("host {host}"),
            hosts => format!("hosts {} to {}, one NVLink domain; host {host}:", hosts[0], hosts[hosts.len() - 1]),
        };
        self.text(MARGIN, top + LINE, &name, "start");
        self.y += 2.0 * LINE;
    }

    /// Hosts of a domain behind its first, by their GPUs, beside each other and in rows; how wide that is.
    fn compact(&mut self, hosts: &[u32], wide: f64) -> f64 {
        let of = |host: u32| -> Vec<NodeId> {
            self.system.gpus().into_iter().filter(|id| self.system.node(*id).host == host).collect()
        };
        let gpus: Vec<(u32, Vec<NodeId>)> = hosts.iter().take(MAX_COMPACT).map(|host| (*host, of(*host))).collect();
        #[expect(clippy::cast_precision_loss, reason = "few devices")]
        let most = gpus.iter().map(|(_, gpus)| gpus.len()).max().unwrap_or(1).max(1) as f64;
        let cell = most * COLUMN + MARGIN;
        let beside = if hosts.len() < 4 { hosts.len() } else { 4 };
        #[expect(clippy::cast_precision_loss, reason = "at most 4")]
        let wide = wide.max(COMPACT_WIDTH.min(cell * beside as f64 - MARGIN));
        let (mut left, mut reached) = (0.0, 0.0_f64);
        for (host, gpus) in gpus {
            if left > 0.0 && left + cell > wide + MARGIN {
                left = 0.0;
                self.y += LEVEL + LINE;
            }
            let (x, y) = (MARGIN + left, self.y);
            let frame = format!(
                "<rect x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{LEVEL}\" rx=\"6\" fill=\"none\" stroke=\"{PURPLE}\"/>\n",
                x - 4.0,
                most * COLUMN
            );
            self.body.push_str(&frame);
            self.text(x, y + LINE - 2.0, &format!("host {host}"), "start");
            let mut middle = x + COLUMN / 2.0 - 4.0;
            for gpu in gpus {
                // What its sisters of the first host have is not taken for granted.
                let linked = self.system.links(gpu).iter().any(|link| link.kind == LinkKind::NvLink);
                let (name, fill) = (self.name(gpu), if linked { "#b7dfb0" } else { "#f2b8b0" });
                let name = if linked { name } else { format!("{name}, no link") };
                self.device(middle, y + LEVEL / 2.0 + 8.0, &name, fill);
                middle += COLUMN;
            }
            left += cell;
            reached = reached.max(left);
        }
        self.y += LEVEL + LINE;
        if hosts.len() > MAX_COMPACT {
            let what = format!("and {} more hosts of this domain", hosts.len() - MAX_COMPACT);
            self.text(MARGIN, self.y + LINE / 2.0, &what, "start");
            self.y += 2.0 * LINE;
        }
        wide.max(reached - MARGIN)
    }

    /// Every two NUMA nodes of a host are joined: two by a line, more by a bar above them.
    fn join_cpus(&mut self, cpus: &[NodeId]) {
        if let [one, other] = cpus {
            self.join(*one, *other);
        }
        let ([first, .., last], true) = (cpus, cpus.len() > 2) else { return };
        let links = cpus.iter().flat_map(|cpu| self.system.links(*cpu));
        let widths: Vec<Bandwidth> =
            links.filter(|link| link.kind == LinkKind::System).map(|link| link.bandwidth).collect();
        let (Some(least), Some(most)) = (widths.iter().min(), widths.iter().max()) else { return };
        let what = if least == most { least.to_string() } else { format!("{least} to {most}") };
        let (from, to) = (self.places[first], self.places[last]);
        let y = from.1 - BOX.1 / 2.0 - ABOVE / 2.0;
        for cpu in cpus {
            let place = self.places[cpu];
            self.line((place.0, y), (place.0, place.1 - BOX.1 / 2.0), BLUE, 1.5);
        }
        self.line((from.0, y), (to.0, y), BLUE, 3.0);
        self.text((from.0 + to.0) / 2.0, y - 5.0, &format!("each two of them: {what}"), "middle");
    }

    /// From each GPU with a coherent link past its bridges to its NUMA node.
    fn coherent_links(&mut self, host: u32) {
        for gpu in self.system.gpus().into_iter().filter(|id| self.system.node(*id).host == host) {
            let coherent = self.system.links(gpu).iter().find(|link| link.kind == LinkKind::Coherent);
            let Some(link) = coherent.copied() else { continue };
            let (Some(from), Some(to)) = (self.places.get(&gpu).copied(), self.places.get(&link.to).copied()) else {
                continue;
            };
            let (x, level) = (from.0 + BOX.0 / 2.0 + 5.0, to.1 + BOX.1 / 2.0 + 6.0);
            // Writing to a String cannot fail.
            let _ = writeln!(
                self.body,
                "<path d=\"M{} {} V{level} H{x} V{} H{}\" fill=\"none\" stroke=\"{GREEN}\" stroke-width=\"2.5\"/>",
                to.0 + BOX.0 / 4.0,
                to.1 + BOX.1 / 2.0,
                from.1,
                from.0 + BOX.0 / 2.0
            );
            self.label(x, from.1 - LEVEL / 2.0 - 6.0, link.bandwidth.gigabytes());
        }
    }

    fn name(&self, id: NodeId) -> String {
        match &self.system.node(id).kind {
            NodeKind::Gpu { device, .. } => format!("GPU {device}"),
            NodeKind::Cpu(_) => format!("CPU {}", self.system.node(id).numa),
            NodeKind::Port { name, device, .. } if name.is_empty() => format!("NIC {device}"),
            NodeKind::Port { name, .. } => name.clone(),
            NodeKind::Nic => "card".to_owned(),
            NodeKind::Pci | NodeKind::Switch => "PCI".to_owned(),
        }
    }

    /// A device and what hangs below it, from `column` on; the lowest place that it takes.
    fn branch(&mut self, id: NodeId, above: Option<NodeId>, y: f64, column: &mut f64) -> f64 {
        let below: Vec<NodeId> = self
            .system
            .links(id)
            .iter()
            .filter(|link| self.is_below(link.kind, link.to, above))
            .map(|link| link.to)
            .collect();
        let from = *column;
        let mut bottom = y;
        for child in &below {
            bottom = bottom.max(self.branch(*child, Some(id), y + LEVEL, column));
        }
        if below.is_empty() {
            *column += 1.0;
        }
        let x = MARGIN + (from + *column) / 2.0 * COLUMN;
        self.places.insert(id, (x, y));
        for child in &below {
            self.join(id, *child);
        }
        let fill = match &self.system.node(id).kind {
            NodeKind::Gpu { .. } => "#b7dfb0",
            NodeKind::Cpu(_) => "#bcd4ee",
            NodeKind::Port { .. } => "#f7d9a8",
            NodeKind::Nic => "#fbeed5",
            NodeKind::Pci | NodeKind::Switch => "#e4e0ea",
        };
        let name = self.name(id);
        self.device(x, y, &name, fill);
        bottom
    }

    /// Down the tree of PCI Express, and from cards to their ports.
    fn is_below(&self, kind: LinkKind, to: NodeId, above: Option<NodeId>) -> bool {
        let down = match self.system.node(to).kind {
            NodeKind::Cpu(_) | NodeKind::Switch => false,
            NodeKind::Gpu { .. } | NodeKind::Pci | NodeKind::Nic | NodeKind::Port { .. } => true,
        };
        down && Some(to) != above && matches!(kind, LinkKind::Pci | LinkKind::Network)
    }

    /// Below the GPUs: a bar for the switches with a line to each GPU, or arcs between GPUs, each with what it carries.
    fn gpu_links(&mut self, host: u32, hosts: usize) {
        let gpus: Vec<NodeId> =
            self.system.gpus().into_iter().filter(|id| self.system.node(*id).host == host).collect();
        let mut switched = Vec::new();
        let mut arcs = Vec::new();
        for gpu in &gpus {
            for link in self.system.links(*gpu).iter().filter(|link| link.kind == LinkKind::NvLink) {
                match &self.system.node(link.to).kind {
                    NodeKind::Switch => switched.push((*gpu, link.bandwidth)),
                    NodeKind::Gpu { .. } if *gpu < link.to => arcs.push((*gpu, link.to, link.bandwidth)),
                    _ => {}
                }
            }
        }
        if let (Some((first, _)), Some((last, _))) = (switched.first(), switched.last()) {
            let (from, to) = (self.places[first].0 - BOX.0 / 2.0, self.places[last].0 + BOX.0 / 2.0);
            let y = self.y + LEVEL / 2.0;
            for (gpu, bandwidth) in &switched {
                let place = self.places[gpu];
                self.line((place.0, place.1 + BOX.1 / 2.0), (place.0, y), PURPLE, 2.5);
                self.label(place.0, y - 12.0, bandwidth.gigabytes());
            }
            let bar = format!(
                "<rect x=\"{from}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"#d9c8ee\" stroke=\"{PURPLE}\"/>\n",
                to - from,
                BOX.1
            );
            self.body.push_str(&bar);
            let what =
                if hosts > 1 { format!("NVLink switches of {hosts} hosts") } else { "NVLink switches".to_owned() };
            self.text((from + to) / 2.0, y + 17.0, &what, "middle");
            self.y = y + BOX.1 + LINE;
        }
        self.arcs(&arcs);
    }

    /// Links between two GPUs each, below everything that stands in the tree, so that no arc runs over a NIC.
    fn arcs(&mut self, arcs: &[(NodeId, NodeId, Bandwidth)]) {
        let same = arcs.windows(2).all(|pair| pair[0].2 == pair[1].2);
        let mut lowest = self.y;
        for (from, to, bandwidth) in arcs {
            let (one, two) = (self.places[from], self.places[to]);
            let depth = 18.0 + (two.0 - one.0).abs() / COLUMN * 9.0;
            let y = self.y;
            self.line((one.0, one.1 + BOX.1 / 2.0), (one.0, y), PURPLE, 1.0);
            self.line((two.0, two.1 + BOX.1 / 2.0), (two.0, y), PURPLE, 1.0);
            let width = (bandwidth.gigabytes() / 20.0).clamp(1.0, 5.0);
            // Writing to a String cannot fail.
            let _ = writeln!(
                self.body,
                "<path d=\"M{} {y} C{} {} {} {} {} {y}\" fill=\"none\" stroke=\"{PURPLE}\" stroke-width=\"{width}\"/>",
                one.0,
                one.0,
                y + depth * 1.33,
                two.0,
                y + depth * 1.33,
                two.0
            );
            if !same {
                self.arc_label((one.0, two.0), (y, depth), bandwidth.gigabytes());
            }
            lowest = lowest.max(y + depth + LINE);
        }
        // Said in the legend, where nothing runs through it.
        self.equal_arcs.extend(arcs.first().filter(|_| same).map(|(.., bandwidth)| *bandwidth));
        self.y = lowest;
    }

    /// What an arc carries, where on it there is room: not in the gaps between columns, where lines to other hosts run.
    fn arc_label(&mut self, (from, to): (f64, f64), (y, depth): (f64, f64), gigabytes: f64) {
        const PLACES: [f64; 9] = [0.3, 0.7, 0.24, 0.76, 0.36, 0.64, 0.5, 0.18, 0.82];
        for part in PLACES {
            // The arc is a Bézier curve, whose ends and handles stand above each other.
            let x = from + (to - from) * part * part * (3.0 - 2.0 * part);
            let at = (x, y + 3.0 * part * (1.0 - part) * depth * 1.33);
            let is_taken =
                self.labels.iter().any(|other| (other.0 - at.0).abs() < LABEL.0 && (other.1 - at.1).abs() < LABEL.1);
            if !in_gap(x) && !is_taken {
                self.labels.push(at);
                self.label(at.0, at.1 + 3.5, gigabytes);
                return;
            }
        }
        self.left_out += 1;
    }

    /// The channels of this host: each a line that goes down a step with every device, with its name before it.
    fn tracks(&mut self, host: u32, tracks: &[Track]) {
        let on_host = |id: &NodeId| self.system.node(*id).host == host;
        let here: Vec<&Track> = tracks.iter().filter(|track| track.devices.iter().any(on_host)).collect();
        for track in here {
            let colour = COLOURS[track.number % COLOURS.len()];
            let mut devices: Vec<NodeId> = track.devices.iter().copied().filter(on_host).collect();
            if track.pattern == Pattern::Ring && devices.len() == track.devices.len() {
                devices.extend(track.devices.first());
            }
            let drawn: Vec<(f64, f64)> = devices
                .iter()
                .filter_map(|id| self.places.get(id))
                .enumerate()
                .map(|(step, place)| {
                    #[expect(clippy::cast_precision_loss, reason = "few devices")]
                    let down = step as f64 * STEP;
                    (place.0, self.y + down)
                })
                .collect();
            let dashes = if track.pattern == Pattern::Chain { "2 4" } else { "" };
            for pair in drawn.windows(2) {
                self.dashed(pair[0], pair[1], (colour, dashes));
            }
            for (x, y) in &drawn {
                // Writing to a String cannot fail.
                let _ = writeln!(self.body, "<circle cx=\"{x}\" cy=\"{y}\" r=\"2.6\" fill=\"{colour}\"/>");
            }
            self.written(MARGIN - 7.0, self.y + 4.0, (&track.name, "start", 10.0));
            self.y = drawn.last().map_or(self.y, |last| last.1) + 2.0 * STEP;
        }
        self.y += STEP;
    }

    /// From the NIC where a channel leaves a host to that where it enters the next, beside each other by channel.
    fn between_hosts(&mut self, found: &Found) {
        let Some(Ok(between)) = found.between() else { return };
        for (number, channel) in between.ring.channels.iter().take(MAX_RINGS).enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            for pair in channel.windows(2) {
                let (Some(from), Some(to)) = (self.places.get(&pair[0].exit), self.places.get(&pair[1].enter)) else {
                    continue;
                };
                let x = from.0 + BOX.0 / 2.0 + 3.0;
                let across = to.0 + BOX.0 / 2.0 + 3.0;
                // Writing to a String cannot fail.
                let _ = writeln!(
                    self.between,
                    "<path d=\"M{} {} H{x} L{across} {} H{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"5 3\"/>",
                    from.0 + BOX.0 / 2.0,
                    from.1,
                    to.1,
                    to.0 + BOX.0 / 2.0
                );
            }
        }
    }

    /// The two trees that join the hosts in every tree's channel, beside each other where there is room.
    fn trees_of_hosts(&mut self, found: &Found) {
        let Some(Ok(between)) = found.between() else { return };
        let [one, other] = &between.parents;
        if one.len() > MAX_PLACES {
            self.y += LINE;
            let what = format!("two trees of {} hosts: --json has them", one.len());
            self.text(MARGIN, self.y, &what, "start");
            return;
        }
        let hosts: Vec<u32> = between
            .tree
            .channels
            .first()
            .map_or_else(Vec::new, |channel| channel.iter().map(|hop| self.system.node(hop.enter).host).collect());
        let (top, mut left, mut lowest) = (self.y + LINE, MARGIN, self.y);
        for (what, parents, colour) in [("first", one, COLOURS[0]), ("second", other, COLOURS[3])] {
            self.text(left, top, &format!("{what} tree of hosts"), "start");
            let mut drawing = Drawing { parents, hosts: &hosts, colour, next: left + PLACE / 2.0, lowest: 0.0 };
            if let Some(root) = parents.iter().position(Option::is_none) {
                self.subtree(&mut drawing, root, top + PLACE);
            }
            lowest = lowest.max(drawing.lowest);
            left = (drawing.next + PLACE).max(left + 8.0 * PLACE);
        }
        self.width = self.width.max(left + MARGIN);
        self.y = lowest + PLACE;
    }

    /// A host of a tree and all below it; where it stands.
    fn subtree(&mut self, drawing: &mut Drawing<'_>, place: usize, y: f64) -> f64 {
        let below: Vec<usize> =
            (0..drawing.parents.len()).filter(|child| drawing.parents[*child] == Some(place)).collect();
        let (before, after) = below.split_at(below.len() / 2);
        let down = |picture: &mut Self, drawing: &mut Drawing<'_>, children: &[usize]| -> Vec<f64> {
            children.iter().map(|child| picture.subtree(drawing, *child, y + 1.5 * PLACE)).collect()
        };
        let mut stand = down(self, drawing, before);
        let x = drawing.next;
        drawing.next += PLACE;
        stand.extend(down(self, drawing, after));
        for child in stand {
            self.line((x, y), (child, y + 1.5 * PLACE), drawing.colour, 2.0);
        }
        drawing.lowest = drawing.lowest.max(y);
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.words,
            "<circle cx=\"{x}\" cy=\"{y}\" r=\"10\" fill=\"#fff\" stroke=\"{}\" stroke-width=\"2\"/>",
            drawing.colour
        );
        let name = drawing.hosts.get(place).map_or_else(String::new, u32::to_string);
        self.written(x, y + 4.0, (&name, "middle", 10.0));
        x
    }

    fn join(&mut self, above: NodeId, below: NodeId) {
        let (Some(from), Some(to)) = (self.places.get(&above).copied(), self.places.get(&below).copied()) else {
            return;
        };
        // Links of GPUs are drawn by themselves.
        let is_drawn = |kind: LinkKind| matches!(kind, LinkKind::System | LinkKind::Network | LinkKind::Pci);
        let mut links = self.system.links(above).iter().filter(|link| link.to == below);
        let Some(link) = links.find(|link| is_drawn(link.kind)) else { return };
        let colour = match link.kind {
            LinkKind::System => BLUE,
            LinkKind::Network => ORANGE,
            LinkKind::NvLink | LinkKind::Coherent | LinkKind::Pci => GREY,
        };
        let sideways = (from.1 - to.1).abs() < 1.0;
        let (start, end) = if sideways {
            ((from.0 + BOX.0 / 2.0, from.1), (to.0 - BOX.0 / 2.0, to.1))
        } else {
            ((from.0, from.1 + BOX.1 / 2.0), (to.0, to.1 - BOX.1 / 2.0))
        };
        self.line(start, end, colour, 1.5);
        // A card without a PCI device hangs on the processor by nothing that could be measured.
        if link.bandwidth < Bandwidth::LOCAL {
            let beside = [20.0, 30.0, 40.0, 50.0].map(|more| start.0 + more).into_iter().find(|x| !in_gap(*x));
            let beside = beside.filter(|x| *x < end.0).unwrap_or((start.0 + end.0) / 2.0);
            let (x, y) = if sideways { (beside, start.1 - 8.0) } else { (to.0, end.1 - 9.0) };
            self.label(x, y, link.bandwidth.gigabytes());
        }
    }

    fn device(&mut self, x: f64, y: f64, name: &str, fill: &str) {
        let (left, top) = (x - BOX.0 / 2.0, y - BOX.1 / 2.0);
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.body,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{fill}\" stroke=\"#444\"/>",
            BOX.0, BOX.1
        );
        // Long names in smaller letters, which are about 0.6 as wide as high; the end of a name tells most.
        let letters: Vec<char> = name.chars().collect();
        let name = match letters.len() {
            0..=LONGEST_NAME => name.to_owned(),
            count => format!("…{}", letters[count - LONGEST_NAME + 1..].iter().collect::<String>()),
        };
        #[expect(clippy::cast_precision_loss, reason = "a few letters")]
        let size = ((BOX.0 - 6.0) / 0.6 / letters.len().clamp(1, LONGEST_NAME) as f64).min(12.0);
        self.written(x, y + 4.0, (&name, "middle", size));
    }

    fn dashed(&mut self, from: (f64, f64), to: (f64, f64), (colour, dashes): (&str, &str)) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.body,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"{dashes}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    fn line(&mut self, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.body,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{colour}\" stroke-width=\"{width}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// A link's GB/s on white, so that it can be read over lines.
    fn label(&mut self, x: f64, y: f64, gigabytes: f64) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.words,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"10\" text-anchor=\"middle\" fill=\"#222\" stroke=\"#fff\" stroke-width=\"3\" paint-order=\"stroke\">{gigabytes}</text>"
        );
    }

    fn text(&mut self, x: f64, y: f64, text: &str, anchor: &str) {
        self.written(x, y, (text, anchor, 12.0));
    }

    fn written(&mut self, x: f64, y: f64, (text, anchor, size): (&str, &str, f64)) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.words,
            "<text x=\"{x}\" y=\"{y}\" font-size=\"{size:.1}\" text-anchor=\"{anchor}\">{text}</text>"
        );
    }

    fn finish(self) -> String {
        let (width, height) = (self.width.max(LEAST_WIDTH), self.y + MARGIN);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}{}{}{}</svg>\n",
            self.frames, self.between, self.body, self.words
        )
    }
}
