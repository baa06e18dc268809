//! What stands below the picture: what its lines mean, as far as they occur, and what the channels carry.

use rsccl::internals::topo::system::{LinkKind, NodeKind};

use super::{
    BLUE, COLOURS, GREEN, GREY, LEAST_WIDTH, LINE, MARGIN, MAX_RINGS, MAX_TREES, ORANGE, PURPLE, Picture, more,
};
use crate::topo::found::Found;

/// How wide a letter of the legend is, about.
const LETTER: f64 = 7.4;
/// The longest line of words.
const MOST_WIDTH: f64 = 900.0;

impl Picture<'_> {
    /// In lines that are as wide as the picture, or as its least width.
    pub(super) fn legend(&mut self, found: &Found) {
        self.y += LINE;
        let width = self.width.max(LEAST_WIDTH);
        let mut x = MARGIN;
        for (colour, dashes, what) in self.kinds(found) {
            let needed = 32.0 + LETTER * length(what) + LINE;
            if x > MARGIN && x + needed > width {
                x = MARGIN;
                self.y += LINE;
            }
            self.dashed((x, self.y - 4.0), (x + 26.0, self.y - 4.0), (colour, dashes));
            self.text(x + 32.0, self.y, what, "start");
            x += needed;
        }
        for line in self.said(found) {
            for part in wrapped(&line, (width.min(MOST_WIDTH) - 2.0 * MARGIN) / LETTER) {
                self.y += LINE;
                self.text(MARGIN, self.y, &part, "start");
            }
        }
    }

    /// The lines that occur: colour, dashes, meaning.
    fn kinds(&self, found: &Found) -> Vec<(&'static str, &'static str, &'static str)> {
        let links = || self.system.ids().flat_map(|id| self.system.links(id));
        let has = |kind: LinkKind| links().any(|link| link.kind == kind);
        let between = matches!(found.between(), Some(Ok(_)));
        let inside = found.domains().iter().any(|domain| domain.rings.is_some());
        let amd = self.system.gpus().iter().any(|gpu| {
            let generation = match self.system.node(*gpu).kind {
                NodeKind::Gpu { generation, .. } => Some(generation),
                _ => None,
            };
            matches!(generation, Some(rsccl::internals::topo::bandwidth::GpuGeneration::Amd { .. }))
        });
        let all = [
            (has(LinkKind::Pci), (GREY, "", "PCI Express")),
            (has(LinkKind::NvLink), (PURPLE, "", if amd { "xGMI" } else { "NVLink" })),
            (has(LinkKind::Coherent), (GREEN, "", "coherent link (C2C)")),
            (has(LinkKind::System), (BLUE, "", "between NUMA nodes")),
            (has(LinkKind::Network), (ORANGE, "", "network port")),
            (between || inside, (COLOURS[0], "", "a ring")),
            (between || inside, (COLOURS[0], "2 4", "a tree inside a host")),
            (between, (COLOURS[0], "5 3", "a ring from host to host")),
        ];
        all.into_iter().filter(|(occurs, _)| *occurs).map(|(_, kind)| kind).collect()
    }

    fn said(&self, found: &Found) -> Vec<String> {
        let mut lines = vec!["numbers at links: GB/s in each direction".to_owned()];
        let mut equal = self.equal_arcs.clone();
        equal.sort_unstable();
        equal.dedup();
        if !equal.is_empty() {
            let widths: Vec<String> = equal.iter().map(ToString::to_string).collect();
            lines.push(format!("each link between two GPUs: {}", widths.join(", ")));
        }
        if self.left_out > 0 {
            let what = "numbers have no room at their links: rsccl topo --paths has them";
            lines.push(format!("{} {what}", self.left_out));
        }
        let mut inside = 0;
        if let Some(domain) = found.domains().first() {
            let both = [("rings", MAX_RINGS, &domain.rings), ("chains of trees", MAX_TREES, &domain.chains)];
            for (what, most, channels) in both {
                let Some(channels) = channels else { continue };
                inside += 1;
                let shown = if found.between().is_some() { String::new() } else { more(channels.orders.len(), most) };
                let (count, width, total) = (channels.orders.len(), channels.width, channels.total());
                lines.push(format!("inside: {what}: {count} x {width} = {total}{shown}"));
            }
        }
        lines.extend(found.gaps(self.system));
        match found.between() {
            Some(Ok(between)) => {
                let both = [("rings", MAX_RINGS, &between.ring), ("trees", MAX_TREES, &between.tree)];
                for (what, most, channels) in both {
                    let (count, width, total) = (channels.channels.len(), channels.width, channels.total());
                    lines.push(format!("between hosts: {what}: {count} x {width} = {total}{}", more(count, most)));
                }
                let what = "lines below the GPUs: rings from the NIC where they enter to that where they leave, and \
                            trees from their NIC on; a ring's last host leads back to its first";
                lines.push(what.to_owned());
            }
            Some(Err(reason)) => lines.push(format!("no channels between hosts: {reason}")),
            None if inside > 0 => {
                let whole = "lines below the GPUs: rings from the first GPU back to it, and trees from their root on";
                let part = "lines below the GPUs: the first host's in the order in which rings and trees pass \
                            them, with those of other hosts between";
                lines.push(if self.system.hosts() > 1 { part } else { whole }.to_owned());
            }
            None => match self.system.gpus().len() {
                0 => lines.push("no channels: the machine has no GPU".to_owned()),
                1 => lines.push("no channels: the machine has one GPU".to_owned()),
                _ => {}
            },
        }
        lines
    }
}

/// The parts of a line, each of at most `most` letters where its words allow that.
fn wrapped(line: &str, most: f64) -> Vec<String> {
    let mut parts = vec![String::new()];
    for word in line.split(' ') {
        let last = parts.len() - 1;
        if !parts[last].is_empty() && length(&parts[last]) + 1.0 + length(word) > most {
            parts.push(word.to_owned());
        } else {
            if !parts[last].is_empty() {
                parts[last].push(' ');
            }
            parts[last].push_str(word);
        }
    }
    parts
}

fn length(text: &str) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a few letters")]
    let letters = text.chars().count() as f64;
    letters
}
