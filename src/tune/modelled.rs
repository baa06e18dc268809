//! A collective on a modelled system: chosen by costs that come from its links, planned, and simulated.

use super::terrain::Terrain;
use super::{Choice, Costs, Filters, Folding, Query, RingSizes, Simulated, choose, plans, simulate};
use crate::Result;
use crate::plan::{Count, Layout, Limits, Plan, Spec, Windows};
use crate::sync::primitive::Arc;
use crate::topo::layout::ChannelOrders;
use crate::types::{Algorithm, Bytes, Collective, Elements, Protocol, Rank, TransportKind, World};

/// A collective to run on a modelled system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Which collective.
    pub collective: Collective,
    /// Elements of [`Count`]: of the whole buffer, or of one rank's block.
    pub elements: u64,
    /// Bytes of each.
    pub element_bytes: u32,
    /// The least and the most channels that the user allows.
    pub channels: (u32, u32),
    /// The rings by which ranks send.
    pub ring: RingSizes,
    /// Scratch of a rank.
    pub scratch_bytes: u64,
    /// What the user leaves to choose from.
    pub filters: Filters,
}

/// What each rank plans.
pub type SpecOf<'a> = Box<dyn Fn(Rank) -> Spec + 'a>;

/// How much of a system is simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fidelity {
    /// The ranks that the fold keeps.
    Folded(Folding),
    /// Trees of this many of the domains, and of half as many. The time of a tree grows by the same amount for each
    /// level that it gets deeper, so that these two say what it is for all domains.
    ByDepth(usize),
}

/// A system with a rank on each GPU, or on each of a description's cores.
#[derive(Debug, Clone)]
pub struct Modelled {
    terrain: Terrain,
    costs: Costs,
    layout: Arc<Layout>,
}

impl Modelled {
    /// The system of a terrain.
    pub fn new(terrain: Terrain) -> Modelled {
        let layout = Arc::new(Layout::of_checked(terrain.domains()));
        Modelled { costs: terrain.costs(), layout, terrain }
    }

    /// The same system, where rings and trees over slots pass the ranks in these orders.
    ///
    /// # Errors
    /// Where they are of other ranks.
    pub fn with_channels(self, channels: ChannelOrders) -> Result<Modelled> {
        let layout = Arc::new(Layout::clone(&self.layout).with_channels(channels)?);
        Ok(Modelled { layout, ..self })
    }

    /// Where the ranks stand.
    pub fn terrain(&self) -> &Terrain {
        &self.terrain
    }

    /// What the system's links cost.
    pub fn costs(&self) -> &Costs {
        &self.costs
    }

    /// Chooses how to run a collective.
    ///
    /// # Errors
    /// Those of [`choose`].
    pub fn choose(&self, ask: &Ask) -> Result<Choice> {
        let domains = self.terrain.domains();
        let least = domains.iter().map(Vec::len).min().unwrap_or(1);
        let query = Query {
            collective: ask.collective,
            bytes: Bytes(ask.elements.saturating_mul(u64::from(ask.element_bytes))),
            element_bytes: ask.element_bytes,
            ranks: self.terrain.size(),
            hosts: u32::try_from(domains.len()).unwrap_or(u32::MAX),
            teams: if self.terrain.is_even() { u32::try_from(domains.len()).unwrap_or(u32::MAX) } else { 1 },
            cores: u32::try_from(least).unwrap_or(u32::MAX),
            near: TransportKind::Shm,
            windows: self.windows(if domains.len() == 1 { Algorithm::Direct } else { Algorithm::Ring }),
            protocols: &[Protocol::Simple],
            reproducible: false,
            channels: ask.channels,
            measured: true,
        };
        // A pipeline of long messages has to be filled where lanes run side by side.
        let slot_bytes = if self.costs.side_by_side > 1.0 { f64::from(ask.ring.slot_bytes) } else { 0.0 };
        let chosen = choose(&query, &ask.filters, &Costs { slot_bytes, ..self.costs })?;
        let over_slots = self.windows(chosen.algorithm) == Windows::None;
        Ok(if over_slots { chosen.on_searched(&self.layout, ask.channels) } else { chosen })
    }

    /// If the ranks of a domain reach each other's memory, they work in it: a single domain with any algorithm, several
    /// domains as groups that rails join.
    fn windows(&self, algorithm: Algorithm) -> Windows {
        let domains = self.terrain.domains();
        let rails =
            matches!(algorithm, Algorithm::Ring | Algorithm::Tree) && self.terrain.is_even() && domains[0].len() > 1;
        let alone = domains.len() == 1 && algorithm == Algorithm::Direct;
        if self.terrain.maps() && (alone || (domains.len() > 1 && rails)) { Windows::User } else { Windows::None }
    }

    /// What a rank plans.
    pub fn spec(&self, ask: &Ask, choice: Choice, rank: Rank) -> Spec {
        let bytes = u64::from(ask.element_bytes.max(1));
        let tokens = ask.collective == Collective::Barrier && self.terrain.domains().len() > 1;
        let windows = if tokens { Windows::None } else { self.windows(choice.algorithm) };
        let most = if windows == Windows::None { choice.channels } else { choice.channels.min(WINDOW_CHANNELS) };
        Spec {
            collective: ask.collective,
            world: World { rank, size: self.terrain.size() },
            root: Rank::new(0),
            count: Count::Each(Elements(ask.elements)),
            in_place: false,
            algorithm: choice.algorithm,
            protocol: choice.protocol,
            windows,
            layout: Arc::clone(&self.layout),
            limits: Limits {
                slot: Elements((u64::from(ask.ring.slot_bytes) / bytes).max(1)),
                slots: ask.ring.slots,
                scratch: Elements(ask.scratch_bytes / bytes),
                channels: most,
            },
        }
    }

    /// How much is simulated: every rank, if there are at most [`MOST_EXACT`]. Beyond that, and if all domains are
    /// equal, one of them stands for all, or trees are simulated on a part of them. `spec` is what a rank plans.
    pub fn fidelity(&self, spec: &Spec) -> Fidelity {
        if self.terrain.size() <= MOST_EXACT {
            return Fidelity::Folded(Folding::Exact);
        }
        match self.alike(spec) {
            Folding::Exact => {
                let domains = self.terrain.domains();
                let fit = MOST_EXACT as usize / domains.iter().map(Vec::len).max().unwrap_or(1);
                self.by_depth(spec, fit).unwrap_or(Fidelity::Folded(Folding::Exact))
            }
            folded => Fidelity::Folded(folded),
        }
    }

    /// Whether one domain can stand for all, whatever the number of ranks.
    pub fn alike(&self, spec: &Spec) -> Folding {
        if has_own_orders(spec) { Folding::Exact } else { Folding::of(&self.terrain, spec) }
    }

    /// How trees on at most `most` domains stand for those on all; `None` if they cannot.
    fn by_depth(&self, spec: &Spec, most: usize) -> Option<Fidelity> {
        let trees = spec.algorithm == Algorithm::Tree && self.terrain.is_even() && !has_own_orders(spec);
        let part = 1 << most.checked_ilog2()?;
        (trees && part >= LEAST_DOMAINS && part < self.terrain.domains().len()).then_some(Fidelity::ByDepth(part))
    }

    /// The same system with the first of its domains alone.
    fn part(&self, domains: usize) -> Result<Modelled> {
        let terrain = self.terrain.first(domains)?;
        let layout = Arc::new(Layout::of_checked(terrain.domains()));
        Ok(Modelled { costs: self.costs, layout, terrain })
    }

    /// Runs the plans of a choice. By depth, traffic and loads are those of the part that is simulated.
    ///
    /// # Errors
    /// Those of the plans and of the simulation.
    pub fn run(&self, ask: &Ask, choice: Choice, fidelity: Fidelity) -> Result<Simulated> {
        let specs = |domains: usize| -> Result<SpecOf<'_>> {
            if domains == self.terrain.domains().len() {
                return Ok(Box::new(move |rank| self.spec(ask, choice, rank)));
            }
            let part = self.part(domains)?;
            Ok(Box::new(move |rank| part.spec(ask, choice, rank)))
        };
        self.play(&specs, ask.element_bytes, fidelity)
    }

    /// Runs the plans that `specs` asks for: of all domains, or of the first so many. By depth, traffic and loads are
    /// those of the part that is simulated.
    ///
    /// # Errors
    /// Those of the plans and of the simulation.
    pub fn play<'a>(
        &self,
        specs: &dyn Fn(usize) -> Result<SpecOf<'a>>,
        element_bytes: u32,
        fidelity: Fidelity,
    ) -> Result<Simulated> {
        let on = |terrain: &Terrain, fold: Folding| {
            let spec = specs(terrain.domains().len())?;
            let plans = plans(terrain, fold, |rank| Plan::build(&spec(rank)));
            simulate(plans, element_bytes, (terrain, fold))
        };
        match fidelity {
            Fidelity::Folded(fold) => on(&self.terrain, fold),
            Fidelity::ByDepth(domains) => {
                let half = on(&self.terrain.first(domains / 2)?, Folding::Exact)?;
                let whole = on(&self.terrain.first(domains)?, Folding::Exact)?;
                let levels = |domains: usize| usize::BITS - domains.saturating_sub(1).leading_zeros();
                let deeper = levels(self.terrain.domains().len()).saturating_sub(levels(domains));
                let time = whole.time + whole.time.saturating_sub(half.time) * deeper;
                Ok(Simulated { time, ..whole })
            }
        }
    }

    /// The most that an all-reduce's bus bandwidth can be, in bytes in a microsecond: what leaves each domain by its
    /// ports and what leaves each rank by its links must both have gone.
    pub fn all_reduce_bound(&self) -> f64 {
        let domains = self.terrain.domains();
        let seats = domains.iter().map(Vec::len).min().unwrap_or(1);
        let [seats, hosts, ranks] = [seats, domains.len(), domains.iter().map(Vec::len).sum::<usize>()].map(float);
        let bus = (ranks - 1.0) / ranks;
        let inside = if seats > 1.0 { self.terrain.link_egress() * seats / (seats - 1.0) } else { f64::INFINITY };
        let between = if hosts > 1.0 { self.terrain.network() * hosts / (hosts - 1.0) } else { f64::INFINITY };
        bus * inside.min(between)
    }
}

/// Channels that change NICs pass every second domain the other way round, and name the ranks of all domains.
fn has_own_orders(spec: &Spec) -> bool {
    spec.windows == Windows::None && spec.layout.lanes_of(spec.algorithm).is_some()
}

fn float(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Up to this many ranks, each rank is simulated by itself.
pub const MOST_EXACT: u32 = 512;
/// The fewest domains whose trees stand for larger ones.
const LEAST_DOMAINS: usize = 4;
/// Lanes of a plan with windows.
#[expect(clippy::cast_possible_truncation, reason = "a few")]
const WINDOW_CHANNELS: u32 = crate::plan::WINDOW_LANES as u32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topo::channels::SystemChannels;
    use crate::topo::machines;
    use crate::topo::search::between::CrossNic;
    use crate::topo::transport_choice::ladder::WaySettings;
    use crate::types::Filter;

    const EXACT: Fidelity = Fidelity::Folded(Folding::Exact);

    fn modelled(machine: &str, hosts: u32) -> Modelled {
        Modelled::new(Terrain::of_gpus(&machines::system(machine), hosts, WaySettings::default()).unwrap())
    }

    fn ask(collective: Collective, elements: u64, algorithms: &str) -> Ask {
        let filters = Filters { algorithms: Filter::parse(algorithms).unwrap(), ..Filters::default() };
        let (ring, scratch_bytes) = (RingSizes::of_collectives(None), crate::Config::default().scratch_bytes);
        Ask { collective, elements, element_bytes: 4, channels: (1, 64), ring, scratch_bytes, filters }
    }

    /// Where links and ports are to be filled messages are so long that no latency counts: of 1 MiB.
    fn long(ask: Ask) -> Ask {
        Ask { ring: RingSizes { slot_bytes: 1 << 20, ..ask.ring }, ..ask }
    }

    /// Bytes in a microsecond of each rank's link, as `rsccl perf` counts them.
    fn bus_bandwidth(system: &Modelled, ask: &Ask, simulated: &Simulated) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a gigabyte")]
        let bytes = (ask.elements * u64::from(ask.element_bytes)) as f64;
        let ranks = f64::from(system.terrain().size());
        2.0 * (ranks - 1.0) / ranks * bytes / (simulated.time.as_secs_f64() * 1e6)
    }

    /// The bounds are arithmetic: the ports of a domain together, and what leaves a GPU by its links, times G/(G-1),
    /// since a GPU does not send its own part.
    #[test]
    fn what_tune_chooses_for_a_gibibyte_fills_the_network_or_the_links() {
        let between =
            [("p4d", 48.0, [2, 16]), ("ndv4", 192.0, [2, 16]), ("h100x8", 384.0, [4, 16]), ("nvl72", 732.0, [2, 3])];
        for (machine, bound, hosts) in between {
            for hosts in hosts {
                let system = modelled(machine, hosts);
                let ask = long(ask(Collective::AllReduce, 1 << 28, ""));
                let choice = system.choose(&ask).unwrap();
                let reached = bus_bandwidth(&system, &ask, &system.run(&ask, choice, EXACT).unwrap()) / 1e3;
                let most = system.all_reduce_bound() / 1e3;
                let told =
                    format!("{machine} {hosts} hosts {choice:?}: {reached:.1} GB/s of {bound}, at most {most:.1}");
                println!("{told}");
                assert!(reached >= 0.95 * bound && reached <= 1.000_001 * most, "{told}");
            }
        }
        for (machine, egress) in [("p4d", 240.0), ("h100x8", 370.8), ("b200x8", 721.8), ("nvl72", 721.8)] {
            let system = modelled(machine, 1);
            let ask = long(ask(Collective::AllReduce, 1 << 28, ""));
            let choice = system.choose(&ask).unwrap();
            let reached = bus_bandwidth(&system, &ask, &system.run(&ask, choice, EXACT).unwrap()) / 1e3;
            println!("{machine} alone {choice:?}: {reached:.1} GB/s of {egress}");
            assert!(reached >= 0.95 * egress, "{machine} {reached}");
        }
    }

    /// A cube mesh has no link between half of its pairs. In the order of ranks a ring takes detours; the rings that
    /// were searched for take each link once, and carry what the links do.
    #[test]
    fn rings_that_were_searched_for_fill_the_links_of_a_mesh() {
        for (machine, bound) in [("dgx1v", 120.0), ("a100x4mesh", 240.0)] {
            let system = machines::system(machine);
            let plain = modelled(machine, 1);
            let channels = SystemChannels::search(&system, CrossNic::IfBetter).orders(&system.gpus()).unwrap().unwrap();
            let searched = plain.clone().with_channels(channels).unwrap();
            let ask = long(ask(Collective::AllReduce, 1 << 28, "Ring"));
            let [before, after] = [plain, searched].map(|system| {
                let choice = system.choose(&ask).unwrap();
                let simulated = system.run(&ask, choice, EXACT).unwrap();
                bus_bandwidth(&system, &ask, &simulated) / 1e3
            });
            println!("{machine}: {before:.1} GB/s in the order of ranks, {after:.1} of {bound} on searched rings");
            assert!(after >= 0.95 * bound && after > 1.5 * before, "{machine} {before} {after}");
        }
    }

    /// 256 ranks in 32 domains, each for itself and one for all.
    #[test]
    fn one_domain_stands_for_all() {
        let system = modelled("h100x8", 32);
        assert_eq!(system.terrain().size(), 256);
        let cases = [
            (Collective::AllReduce, 1 << 22, "Ring"),
            (Collective::AllGather, 1 << 14, "Ring"),
            (Collective::ReduceScatter, 1 << 12, "Ring"),
            (Collective::AllReduce, 1 << 16, "Direct"),
            (Collective::AllToAll, 1 << 10, ""),
            (Collective::Barrier, 0, "barrier:Direct"),
        ];
        for (collective, elements, algorithms) in cases {
            let ask = ask(collective, elements, algorithms);
            let choice = system.choose(&ask).unwrap();
            assert_eq!(system.alike(&system.spec(&ask, choice, Rank::new(0))), Folding::Rotation);
            let exact = system.run(&ask, choice, EXACT).unwrap();
            let folded = system.run(&ask, choice, Fidelity::Folded(Folding::Rotation)).unwrap();
            let (exact_us, folded_us) = (exact.time.as_secs_f64() * 1e6, folded.time.as_secs_f64() * 1e6);
            println!("{collective} {choice:?}: {exact_us:.3} us exactly, {folded_us:.3} by classes");
            assert!((exact_us / folded_us - 1.0).abs() < 0.02, "{collective} {choice:?}: {exact_us} {folded_us}");
            let received = exact.traffic.iter().filter(|traffic| traffic.to.get() < 8);
            assert!(received.eq(&folded.traffic), "{collective} {choice:?}");
        }
    }

    #[test]
    fn trees_roots_and_pat_are_simulated_rank_by_rank() {
        let system = modelled("h100x8", 2);
        for (collective, algorithms) in
            [(Collective::AllReduce, "Tree"), (Collective::Broadcast, "Ring"), (Collective::AllGather, "PAT")]
        {
            let ask = ask(collective, 1 << 20, algorithms);
            let choice = system.choose(&ask).unwrap();
            assert_eq!(system.alike(&system.spec(&ask, choice, Rank::new(0))), Folding::Exact);
            assert!(system.run(&ask, choice, EXACT).unwrap().traffic.iter().all(|traffic| traffic.bytes > 0));
        }
    }

    #[test]
    fn filters_are_obeyed_and_small_calls_go_up_a_tree() {
        let system = modelled("h100x8", 16);
        let chosen =
            |elements, filter: &str| system.choose(&ask(Collective::AllReduce, elements, filter)).unwrap().algorithm;
        assert_eq!(chosen(1 << 28, ""), Algorithm::Ring);
        assert_eq!(chosen(1 << 28, "Tree"), Algorithm::Tree);
        assert_eq!(chosen(1 << 12, "^Direct"), Algorithm::Tree);
        assert_eq!(
            modelled("nvl72", 1).choose(&ask(Collective::AllReduce, 1 << 28, "")).unwrap().algorithm,
            Algorithm::Direct
        );
        assert!(system.choose(&ask(Collective::AllReduce, 1, "PAT")).is_err());
    }

    /// Of 256 ranks every one is simulated, and then trees of half and of a quarter of the domains.
    #[test]
    fn trees_of_a_part_of_the_domains_tell_the_time_of_all() {
        for (collective, elements) in [
            (Collective::AllReduce, 1 << 14),
            (Collective::AllReduce, 1 << 22),
            (Collective::AllReduce, 1 << 26),
            (Collective::Broadcast, 1 << 24),
            (Collective::Reduce, 1 << 24),
        ] {
            let system = modelled("h100x8", 32);
            let ask = ask(collective, elements, "Tree");
            let choice = system.choose(&ask).unwrap();
            let exact = system.run(&ask, choice, EXACT).unwrap().time.as_secs_f64();
            assert_eq!(system.by_depth(&system.spec(&ask, choice, Rank::new(0)), 20), Some(Fidelity::ByDepth(16)));
            let told = system.run(&ask, choice, Fidelity::ByDepth(16)).unwrap().time.as_secs_f64();
            println!("{collective} of {elements} elements: {:.1} us, by depth {:.1} us", exact * 1e6, told * 1e6);
            assert!((told / exact - 1.0).abs() < 0.06, "{collective} of {elements} elements: {exact}, by depth {told}");
        }
    }

    #[test]
    fn ten_thousand_ranks_in_a_tree_are_simulated_by_depth() {
        let system = modelled("h100x8", 1250);
        let ask = ask(Collective::AllReduce, 1 << 20, "Tree");
        let choice = system.choose(&ask).unwrap();
        assert_eq!(system.fidelity(&system.spec(&ask, choice, Rank::new(0))), Fidelity::ByDepth(64));
        let time = system.run(&ask, choice, Fidelity::ByDepth(64)).unwrap().time;
        let part = modelled("h100x8", 64).run(&ask, choice, EXACT).unwrap().time;
        assert!(time > part, "{time:?} for 1,250 hosts, {part:?} for 64");
        assert_eq!(
            system.by_depth(&system.spec(&ask, choice, Rank::new(0)), 3),
            None,
            "two hosts say nothing about depth"
        );
    }

    #[test]
    fn a_machine_without_nics_is_one_domain() {
        let mut text = machines::text("h100x8").to_owned();
        while let Some((before, rest)) = text.split_once("<nic>").map(|(one, two)| (one.to_owned(), two.to_owned())) {
            text = before + rest.split_once("</nic>").unwrap().1;
        }
        let (machine, _) = crate::topo::xml::parse("bare", &text).unwrap();
        let system = crate::topo::system::System::new(&machine).unwrap();
        assert!(Terrain::of_gpus(&system, 1, WaySettings::default()).is_ok());
        let error = Terrain::of_gpus(&system, 2, WaySettings::default()).unwrap_err().to_string();
        assert!(error.contains("has no NIC that works"), "{error}");
    }
}
