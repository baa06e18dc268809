//! The machine as a picture: hosts below each other, in each its NUMA nodes, bridges, GPUs and NICs as a tree with GB/s
//! at the links, the NVLinks below the GPUs, and the channels below those.
//!
//! A channel's line starts at the top and goes down one step with each device that it visits, so that its order can be
//! read. Where there are several hosts, NICs of one column stand below each other and coloured lines between hosts join
//! them.

use std::collections::HashMap;
use std::fmt::Write as _;

use rsccl::internals::topo::bandwidth::Bandwidth;
use rsccl::internals::topo::search::between::Channels;
use rsccl::internals::topo::system::{LinkKind, NodeId, NodeKind, System};

use super::found::Found;

/// The picture, with at most [`MAX_HOSTS`] hosts.
pub(crate) fn svg(system: &System, found: &Found) -> String {
    let mut picture =
        Picture { system, body: String::new(), words: String::new(), places: HashMap::new(), width: 0.0, y: MARGIN };
    let shown = system.hosts().min(MAX_HOSTS);
    let rings: Vec<Track> = tracks(found);
    for host in 0..shown {
        picture.host(host, &rings);
    }
    picture.between_hosts(found);
    if shown < system.hosts() {
        let more = system.hosts() - shown;
        picture.text(MARGIN, picture.y + LINE, &format!("and {more} more hosts"), "start");
        picture.y += 2.0 * LINE;
    }
    picture.legend(found);
    picture.finish()
}

/// The most hosts of a picture.
pub(crate) const MAX_HOSTS: u32 = 18;
/// The most channels that are drawn.
const MAX_TRACKS: usize = 12;
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

/// What a channel visits: devices in order.
struct Track {
    devices: Vec<NodeId>,
    closed: bool,
}

/// The rings inside the domains, or those between them where there are several.
fn tracks(found: &Found) -> Vec<Track> {
    if let Some(Ok(between)) = found.between() {
        return hops(&between.ring);
    }
    let rings = found.domains().iter().filter_map(|domain| domain.rings.as_ref());
    rings
        .flat_map(|rings| rings.orders.iter().take(MAX_TRACKS))
        .map(|order| Track { devices: order.clone(), closed: true })
        .collect()
}

fn hops(channels: &Channels) -> Vec<Track> {
    let shown = channels.channels.iter().take(MAX_TRACKS);
    let track = |hop: &rsccl::internals::topo::search::between::Hop| {
        let mut devices = vec![hop.enter];
        devices.extend(&hop.gpus);
        devices.push(hop.exit);
        Track { devices, closed: false }
    };
    shown.flat_map(|channel| channel.iter().map(track)).collect()
}

struct Picture<'a> {
    system: &'a System,
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
        self.body.insert_str(0, &frame);
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
                self.line((place.0, place.1 + BOX.1 / 2.0), (place.0, y), "#7a52a8", 2.5);
                self.label(place.0, y - 12.0, bandwidth.gigabytes());
            }
            let bar = format!(
                "<rect x=\"{from}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"#d9c8ee\" stroke=\"#7a52a8\"/>\n",
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
            self.line((one.0, one.1 + BOX.1 / 2.0), (one.0, y), "#7a52a8", 1.0);
            self.line((two.0, two.1 + BOX.1 / 2.0), (two.0, y), "#7a52a8", 1.0);
            let width = (bandwidth.gigabytes() / 20.0).clamp(1.0, 5.0);
            // Writing to a String cannot fail.
            let _ = writeln!(
                self.body,
                "<path d=\"M{} {y} C{} {} {} {} {} {y}\" fill=\"none\" stroke=\"#7a52a8\" stroke-width=\"{width}\"/>",
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

    /// The channels of this host: each a line that goes down a step with every device.
    fn tracks(&mut self, host: u32, tracks: &[Track]) {
        let here: Vec<&Track> =
            tracks.iter().filter(|track| track.devices.iter().any(|id| self.system.node(*id).host == host)).collect();
        for (number, track) in here.iter().enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            let mut devices: Vec<NodeId> = track.devices.clone();
            if track.closed {
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
            for pair in drawn.windows(2) {
                self.line(pair[0], pair[1], colour, 2.0);
            }
            for (x, y) in &drawn {
                // Writing to a String cannot fail.
                let _ = writeln!(self.body, "<circle cx=\"{x}\" cy=\"{y}\" r=\"2.6\" fill=\"{colour}\"/>");
            }
            self.y = drawn.last().map_or(self.y, |last| last.1) + 2.0 * STEP;
        }
        self.y += STEP;
    }

    /// From the NIC where a channel leaves a host to that where it enters the next, beside each other by channel.
    fn between_hosts(&mut self, found: &Found) {
        let Some(Ok(between)) = found.between() else { return };
        for (number, channel) in between.ring.channels.iter().take(MAX_TRACKS).enumerate() {
            let colour = COLOURS[number % COLOURS.len()];
            for pair in channel.windows(2) {
                let (Some(from), Some(to)) = (self.places.get(&pair[0].exit), self.places.get(&pair[1].enter)) else {
                    continue;
                };
                let x = from.0 + BOX.0 / 2.0 + 3.0;
                let across = to.0 + BOX.0 / 2.0 + 3.0;
                // Writing to a String cannot fail.
                let _ = writeln!(
                    self.body,
                    "<path d=\"M{} {} H{x} L{across} {} H{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" stroke-dasharray=\"5 3\"/>",
                    from.0 + BOX.0 / 2.0,
                    from.1,
                    to.1,
                    to.0 + BOX.0 / 2.0
                );
            }
        }
    }

    fn legend(&mut self, found: &Found) {
        let mut lines = Vec::new();
        if let Some(domain) = found.domains().first() {
            for (what, inside) in [("rings", &domain.rings), ("chains of trees", &domain.chains)] {
                if let Some(inside) = inside {
                    lines.push(format!(
                        "inside: {what}: {} x {} = {}",
                        inside.orders.len(),
                        inside.width,
                        inside.total()
                    ));
                }
            }
        }
        if let Some(Ok(between)) = found.between() {
            for (what, channels) in [("rings", &between.ring), ("trees", &between.tree)] {
                let (count, width) = (channels.channels.len(), channels.width);
                lines.push(format!("between hosts: {what}: {count} x {width} = {}", channels.total()));
            }
            let [one, other] = &between.parents;
            for (what, parents) in [("first tree", one), ("second tree", other)] {
                let edges: Vec<String> = parents
                    .iter()
                    .enumerate()
                    .filter_map(|(child, parent)| Some(format!("{child} below {}", (*parent)?)))
                    .take(usize::try_from(MAX_HOSTS).unwrap_or_default())
                    .collect();
                lines.push(format!("{what} of hosts: {}", edges.join(", ")));
            }
            lines.push(
                "lines below the GPUs: channels of the ring, from the NIC where they enter to that where they leave"
                    .to_owned(),
            );
        } else if !lines.is_empty() {
            lines.push("lines below the GPUs: the rings, from the first GPU back to it".to_owned());
        }
        lines.push("numbers at links: GB/s in each direction".to_owned());
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
            LinkKind::System => "#4a78b0",
            LinkKind::Network => "#c9801c",
            LinkKind::NvLink | LinkKind::Coherent | LinkKind::Pci => "#777",
        };
        let sideways = (from.1 - to.1).abs() < 1.0;
        let (start, end) = if sideways {
            ((from.0 + BOX.0 / 2.0, from.1), (to.0 - BOX.0 / 2.0, to.1))
        } else {
            ((from.0, from.1 + BOX.1 / 2.0), (to.0, to.1 - BOX.1 / 2.0))
        };
        self.line(start, end, colour, 1.5);
        let (x, y) = if sideways { ((start.0 + end.0) / 2.0, start.1 - 8.0) } else { (to.0, end.1 - 9.0) };
        self.label(x, y, link.bandwidth.gigabytes());
    }

    fn device(&mut self, x: f64, y: f64, name: &str, fill: &str) {
        let (left, top) = (x - BOX.0 / 2.0, y - BOX.1 / 2.0);
        // Writing to a String cannot fail.
        let _ = writeln!(
            self.body,
            "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{}\" rx=\"4\" fill=\"{fill}\" stroke=\"#444\"/>",
            BOX.0, BOX.1
        );
        self.text(x, y + 4.0, name, "middle");
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
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ =
            writeln!(self.words, "<text x=\"{x}\" y=\"{y}\" font-size=\"12\" text-anchor=\"{anchor}\">{text}</text>");
    }

    fn finish(self) -> String {
        let (width, height) = (self.width.max(640.0), self.y + MARGIN);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
             font-family=\"sans-serif\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}{}</svg>\n",
            self.body, self.words
        )
    }
}
