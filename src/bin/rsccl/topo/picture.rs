//! The machine as a picture: hosts below each other, in each its NUMA nodes, bridges, GPUs and NICs as a tree with GB/s
//! at the links, the NVLinks below the GPUs, and the channels below those.
//!
//! A channel's line starts at the top and goes down one step with each device that it visits, so that its order can be
//! read: whole lines are rings, dotted ones the chains of trees. Where there are several hosts, NICs of one column stand
//! below each other and dashed lines between hosts join them, and the two trees of hosts stand below all hosts.

use std::collections::HashMap;
use std::fmt::Write as _;

use rsccl::internals::topo::bandwidth::Bandwidth;
use rsccl::internals::topo::channels::DomainChannels;
use rsccl::internals::topo::search::Inside;
use rsccl::internals::topo::search::between::{Channels, Hop};
use rsccl::internals::topo::system::{LinkKind, NodeId, NodeKind, System};

use super::found::Found;

/// The picture, with at most [`MAX_HOSTS`] hosts.
pub(crate) fn svg(system: &System, found: &Found) -> String {
    let mut picture = Picture {
        system,
        frames: String::new(),
        between: String::new(),
        body: String::new(),
        words: String::new(),
        places: HashMap::new(),
        width: 0.0,
        y: MARGIN,
    };
    let shown = system.hosts().min(MAX_HOSTS);
    let tracks = tracks(found);
    for host in 0..shown {
        picture.host(host, &tracks);
    }
    picture.between_hosts(found);
    if shown < system.hosts() {
        let more = system.hosts() - shown;
        picture.text(MARGIN, picture.y + LINE, &format!("and {more} more hosts"), "start");
        picture.y += 2.0 * LINE;
    }
    picture.trees_of_hosts(found);
    picture.legend(found);
    picture.finish()
}

/// The most hosts of a picture.
pub(crate) const MAX_HOSTS: u32 = 18;
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
    width: f64,
    y: f64,
}

impl Picture<'_> {
    fn host(&mut self, host: u32, tracks: &[Track]) {
        let top = self.y;
        let of_host = |id: &NodeId| self.system.node(*id).host == host;
        let cpus: Vec<NodeId> = self
            .system
            .ids()
            .filter(of_host)
            .filter(|id| matches!(self.system.node(*id).kind, NodeKind::Cpu(_)))
            .collect();
        let mut column = 0.0;
        let mut bottom = top;
        for cpu in &cpus {
            bottom = self.branch(*cpu, None, top + 2.0 * LINE + BOX.1 / 2.0, &mut column).max(bottom);
        }
        for pair in cpus.windows(2) {
            self.join(pair[0], pair[1]);
        }
        self.y = bottom + BOX.1;
        self.gpu_links(host);
        self.tracks(host, tracks);
        self.width = self.width.max(column * COLUMN + 2.0 * MARGIN);
        let (width, height) = (column * COLUMN + MARGIN, self.y - top);
        let frame = format!(
            "<rect x=\"{}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"#f6f6f4\" stroke=\"#999\"/>\n",
            MARGIN / 2.0
        );
        self.frames.push_str(&frame);
        self.text(MARGIN, top + LINE, &format!("host {host}"), "start");
        self.y += 2.0 * LINE;
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
        let (name, fill) = match &self.system.node(id).kind {
            NodeKind::Gpu { device, .. } => (format!("GPU {device}"), "#b7dfb0"),
            NodeKind::Cpu(_) => (format!("NUMA {}", self.system.node(id).numa), "#bcd4ee"),
            NodeKind::Port { name, device, .. } if name.is_empty() => (format!("NIC {device}"), "#f7d9a8"),
            NodeKind::Port { name, .. } => (name.clone(), "#f7d9a8"),
            NodeKind::Nic => ("card".to_owned(), "#fbeed5"),
            NodeKind::Pci | NodeKind::Switch => ("PCI".to_owned(), "#e4e0ea"),
        };
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
    fn gpu_links(&mut self, host: u32) {
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
            self.text((from + to) / 2.0, y + 17.0, "NVLink switches", "middle");
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
                self.label((one.0 + two.0) / 2.0, y + depth, bandwidth.gigabytes());
            }
            lowest = lowest.max(y + depth + LINE);
        }
        if let (Some((.., bandwidth)), true) = (arcs.first(), same) {
            let what = format!("each link between GPUs: {bandwidth}");
            self.text(MARGIN + 4.0, lowest + 4.0, &what, "start");
            lowest += LINE;
        }
        self.y = lowest;
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

    fn legend(&mut self, found: &Found) {
        self.y += LINE;
        let mut x = MARGIN;
        let kinds = [
            (GREY, "", "PCI Express"),
            (PURPLE, "", "NVLink, xGMI"),
            (BLUE, "", "between NUMA nodes"),
            (ORANGE, "", "network port"),
            (COLOURS[0], "", "a ring"),
            (COLOURS[0], "2 4", "a tree inside a host"),
            (COLOURS[0], "5 3", "a ring from host to host"),
        ];
        for (colour, dashes, what) in kinds {
            self.dashed((x, self.y - 4.0), (x + 26.0, self.y - 4.0), (colour, dashes));
            self.text(x + 32.0, self.y, what, "start");
            #[expect(clippy::cast_precision_loss, reason = "a few letters")]
            let letters = what.len() as f64;
            x += 32.0 + 7.0 * letters + LINE;
        }
        self.width = self.width.max(x);
        let mut lines = vec!["numbers at links: GB/s in each direction".to_owned()];
        if let Some(domain) = found.domains().first() {
            for (what, most, inside) in
                [("rings", MAX_RINGS, &domain.rings), ("chains of trees", MAX_TREES, &domain.chains)]
            {
                let Some(inside) = inside else { continue };
                let shown = if found.between().is_some() { String::new() } else { more(inside.orders.len(), most) };
                let (count, width, total) = (inside.orders.len(), inside.width, inside.total());
                lines.push(format!("inside: {what}: {count} x {width} = {total}{shown}"));
            }
        }
        match found.between() {
            Some(Ok(between)) => {
                for (what, most, channels) in [("rings", MAX_RINGS, &between.ring), ("trees", MAX_TREES, &between.tree)]
                {
                    let (count, width, total) = (channels.channels.len(), channels.width, channels.total());
                    lines.push(format!("between hosts: {what}: {count} x {width} = {total}{}", more(count, most)));
                }
                lines.push(
                    "lines below the GPUs: rings from the NIC where they enter to that where they leave, and trees from \
                     their NIC on; a ring's last host leads back to its first"
                        .to_owned(),
                );
            }
            Some(Err(_)) | None if lines.len() > 1 => {
                lines.push(
                    "lines below the GPUs: rings from the first GPU back to it, and trees from their root on"
                        .to_owned(),
                );
            }
            Some(Err(_)) | None => {}
        }
        for line in lines {
            self.y += LINE;
            self.text(MARGIN, self.y, &line, "start");
        }
    }

    fn join(&mut self, above: NodeId, below: NodeId) {
        let (Some(from), Some(to)) = (self.places.get(&above).copied(), self.places.get(&below).copied()) else {
            return;
        };
        let link = self.system.links(above).iter().filter(|link| link.to == below).max_by_key(|link| link.bandwidth);
        let Some(link) = link else { return };
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
            let (x, y) = if sideways { ((start.0 + end.0) / 2.0, start.1 - 8.0) } else { (to.0, end.1 - 9.0) };
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
        let (width, height) = (self.width.max(640.0), self.y + MARGIN);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}{}{}{}</svg>\n",
            self.frames, self.between, self.body, self.words
        )
    }
}
