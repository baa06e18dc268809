//! Plans as text.
//!
//! ```text
//! all_reduce Direct Simple: rank 1 of 3, 2500 elements, scratch windows
//! lane 0: channel 0, 12 rounds
//!   +0 833 by 70: input[0..] -> scratch[0.. cycle 3]
//!   +0 signal 0
//!   +1 wait for flag 0 of rank 2
//!   +1 834 by 70: rank 0 scratch[210.. cycle 3] + input[833..] + … -> output[833..], scratch[420.. cycle 3]; finish
//! ```
//! A step begins with its lag; a combine then has its block and its piece.

use std::fmt;

use super::{Action, Combine, Count, LaneSizes, Operand, Plan, RankBuffer, Span, Windows};
use crate::types::Collective;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let spec = &self.spec;
        let world = spec.world;
        let in_place = if spec.in_place { ", in place" } else { "" };
        write!(f, "{} {} {}: rank {} of {}", spec.collective, spec.algorithm, spec.protocol, world.rank, world.size)?;
        match &spec.count {
            _ if spec.collective == Collective::Barrier => {}
            Count::Each(count) => write!(f, ", {count} elements{in_place}")?,
            Count::PerRank(counts) => {
                let counts: Vec<String> = counts.iter().map(ToString::to_string).collect();
                write!(f, ", {} elements{in_place}", counts.join("+"))?;
            }
        }
        if spec.collective.rooted() {
            write!(f, ", root {}", spec.root)?;
        }
        f.write_str(match spec.windows {
            Windows::None => "",
            Windows::Scratch => ", scratch windows",
            Windows::User => ", user windows",
            Windows::Symmetric => ", symmetric windows",
        })?;
        let (hosts, teams) = (spec.layout.hosts().len(), spec.layout.teams().len());
        if hosts > 1 {
            write!(f, ", {hosts} hosts")?;
        }
        if teams > hosts {
            write!(f, ", {teams} teams")?;
        }
        writeln!(f)?;
        for (number, lane) in self.lanes.iter().enumerate() {
            writeln!(f, "lane {number}: channel {}, {} rounds", lane.channel, lane.sizes.rounds)?;
            for step in &*lane.steps {
                writeln!(f, "  +{} {}", step.lag, action(&step.action, &lane.sizes))?;
            }
        }
        Ok(())
    }
}

fn action(action: &Action, sizes: &LaneSizes) -> String {
    match action {
        Action::Enter { peers } => format!("enter with {}", ranks(peers)),
        Action::Combine(combine) => combined(combine, sizes),
        Action::Signal { flag, listeners } => format!("signal {flag} to {}", ranks(listeners)),
        Action::Wait { peer, flag } => format!("wait for flag {flag} of rank {peer}"),
    }
}

fn ranks(named: &[crate::types::Rank]) -> String {
    let numbers: Vec<String> = named.iter().map(|rank| rank.to_string()).collect();
    format!("{} {}", if named.len() == 1 { "rank" } else { "ranks" }, numbers.join(", "))
}

fn combined(combine: &Combine, sizes: &LaneSizes) -> String {
    let list = |operands: &[Operand], peer: &str, between: &str| {
        let operand = |operand: &Operand| match operand {
            Operand::Local(span) => place(span, sizes),
            Operand::Slot(rank) => format!("{peer} rank {rank}"),
            Operand::Window(rank, span) => format!("rank {rank} {}", place(span, sizes)),
        };
        operands.iter().map(operand).collect::<Vec<_>>().join(between)
    };
    let (block, piece) = (sizes.block(combine), sizes.piece(combine));
    let elements = if piece < block { format!("{block} by {piece}") } else { block.to_string() };
    let (sources, targets) = (list(&combine.sources, "from", " + "), list(&combine.targets, "to", ", "));
    let finish = if combine.finish { "; finish" } else { "" };
    format!("{elements}: {sources} -> {targets}{finish}")
}

fn place(span: &Span, sizes: &LaneSizes) -> String {
    let name = match span.buffer {
        RankBuffer::Input => "input",
        RankBuffer::Output => "output",
        RankBuffer::Scratch => "scratch",
    };
    let cycle = sizes.cycle(span).map(|depth| format!(" cycle {depth}")).unwrap_or_default();
    format!("{name}[{}..{cycle}]", sizes.start(span))
}
