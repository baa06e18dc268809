//! The time of plans without running them: every step of every rank, on the links of a [`Terrain`].
//!
//! Each link, and each GPU's memory, serves what comes in the order in which it comes. A step that moves bytes over
//! several links, say because it reads from seven peers, takes its part of each and ends when the last has served it.
//! Messages between domains go on while their lane does; all else is over when its step is.
//!
//! Ranks of equal domains may do the same things at the same times. Then [`Folding`] says so, and the plans of one of
//! these domains stand for all.

mod events;
mod fold;
mod script;

use std::time::Duration;

use super::terrain::Terrain;
use crate::plan::Plan;
use crate::types::Rank;
use crate::{Error, Result};

pub use fold::Folding;

/// What a simulation found.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulated {
    /// Microseconds until the last rank has finished.
    pub time: Duration,
    /// What went over each connection, by sender, receiver and channel. Of folded domains, what the first of them
    /// receives.
    pub traffic: Vec<Traffic>,
    /// What went over each link that was simulated.
    pub loads: Vec<LinkLoad>,
}

/// What went over a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Traffic {
    /// Who sent.
    pub from: Rank,
    /// Who received.
    pub to: Rank,
    /// On which channel.
    pub channel: u8,
    /// How many messages.
    pub messages: u64,
    /// How many bytes all of them together had.
    pub bytes: u64,
}

/// What went over a link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkLoad {
    /// Of which domain.
    pub domain: usize,
    /// Which of its links.
    pub link: usize,
    /// The part of the time for which it was busy, from 0 to 1.
    pub busy: f64,
}

/// Runs plans on a terrain: those of all ranks, or of the ranks of the domains that `fold` keeps. An element has
/// `element_bytes`.
///
/// # Errors
/// Those of the plans; `Internal` where the plans block one another, which [`prove`](crate::plan::check::prove)
/// explains.
pub fn simulate(
    plans: impl IntoIterator<Item = Result<Plan>>,
    element_bytes: u32,
    (terrain, fold): (&Terrain, Folding),
) -> Result<Simulated> {
    let mut script = script::Script::new(terrain, fold, element_bytes);
    for plan in plans {
        script.add(&plan?);
    }
    let end_us = events::Play::new(&script, terrain).run()?;
    let time = Duration::from_secs_f64(end_us.time_us / 1e6);
    Ok(Simulated { time, traffic: script.traffic(&end_us), loads: script.loads(&end_us) })
}

/// The plans of the ranks that `fold` keeps.
pub fn plans<'a>(
    terrain: &'a Terrain,
    fold: Folding,
    build: impl Fn(Rank) -> Result<Plan> + 'a,
) -> impl Iterator<Item = Result<Plan>> + 'a {
    let kept = (0..terrain.domains().len()).filter(move |domain| fold.keeps(*domain));
    kept.flat_map(|domain| terrain.domains()[domain].iter().copied()).map(build)
}

fn blocked() -> Error {
    Error::internal("the plans of this collective wait for one another")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Count, Layout, Limits, Spec, Windows};
    use crate::sync::primitive::Arc;
    use crate::tune::Costs;
    use crate::types::{Algorithm, Collective, Elements, Protocol, TransportKind, World};

    fn layout(hosts: Vec<Vec<Rank>>) -> Arc<Layout> {
        Layout::of_hosts(&hosts).unwrap().into()
    }

    fn time(algorithm: Algorithm, windows: Windows, elements: u64, hosts: u32) -> Duration {
        time_by_channels(algorithm, windows, elements, hosts, 2)
    }

    /// Half of an all-reduce is reductions, and copies stay as they are.
    #[test]
    fn slow_reductions_slow_down_what_reduces() {
        let time = |collective: Collective, costs: &Costs| {
            let spec = |rank| Spec {
                collective,
                world: World { rank, size: 4 },
                root: Rank::new(0),
                count: Count::Each(Elements(1 << 20)),
                in_place: false,
                algorithm: Algorithm::Ring,
                protocol: Protocol::Simple,
                windows: Windows::None,
                layout: layout(vec![(0..4).map(Rank::new).collect()]),
                limits: Limits { slot: Elements(1 << 16), slots: 4, scratch: Elements(1 << 20), channels: 1 },
            };
            let terrain = Terrain::of_hosts(spec(Rank::new(0)).layout.hosts(), TransportKind::Shm, costs);
            let plans = plans(&terrain, Folding::Exact, |rank| Plan::build(&spec(rank)));
            simulate(plans, 4, (&terrain, Folding::Exact)).unwrap().time.as_secs_f64()
        };
        let usual = Costs { reduce_bytes_per_us: 8_000.0, copy_bytes_per_us: 8_000.0, ..Costs::default() };
        let slow = Costs { reduce_bytes_per_us: 2_000.0, ..usual };
        let ratio = |collective| time(collective, &slow) / time(collective, &usual);
        assert!(ratio(Collective::AllReduce) > 1.5, "{}", ratio(Collective::AllReduce));
        assert!((ratio(Collective::AllGather) - 1.0).abs() < 1e-9, "{}", ratio(Collective::AllGather));
    }

    fn time_by_channels(algorithm: Algorithm, windows: Windows, elements: u64, hosts: u32, channels: u32) -> Duration {
        let size = 8;
        let edge = |host: u32| size * host / hosts;
        let spec = |rank| Spec {
            collective: Collective::AllReduce,
            world: World { rank, size },
            root: Rank::new(0),
            count: Count::Each(Elements(elements)),
            in_place: false,
            algorithm,
            protocol: Protocol::Simple,
            windows,
            layout: layout((0..hosts).map(|host| (edge(host)..edge(host + 1)).map(Rank::new).collect()).collect()),
            limits: Limits { slot: Elements(1 << 16), slots: 4, scratch: Elements(1 << 20), channels },
        };
        let terrain = Terrain::of_hosts(spec(Rank::new(0)).layout.hosts(), TransportKind::Shm, &Costs::default());
        let plans = plans(&terrain, Folding::Exact, |rank| Plan::build(&spec(rank)));
        simulate(plans, 4, (&terrain, Folding::Exact)).unwrap().time
    }

    #[test]
    fn windows_beat_slots_on_one_host() {
        for elements in [2, 1 << 12, 1 << 22] {
            let ring = time(Algorithm::Ring, Windows::None, elements, 1);
            let staged = time(Algorithm::Direct, Windows::Scratch, elements, 1);
            assert!(staged < ring, "{elements}: {staged:?} {ring:?}");
        }
        let staged = time(Algorithm::Direct, Windows::Scratch, 1 << 22, 1);
        assert!(time(Algorithm::Direct, Windows::User, 1 << 22, 1) < staged);
    }

    /// What `CHANNELS_FAR` rests on.
    #[test]
    fn a_second_lane_hides_the_messages_of_a_ring_of_hosts_and_a_third_gains_nothing() {
        let of = |channels| time_by_channels(Algorithm::Ring, Windows::None, 1 << 24, 8, channels).as_secs_f64() * 1e3;
        let [one, two, four] = [1, 2, 4].map(of);
        println!("64 MiB, ring of 8 hosts: {one:.1} ms with one lane, {two:.1} with two, {four:.1} with four");
        assert!(two < 0.7 * one && four > 0.97 * two, "{one} {two} {four}");
    }

    #[test]
    fn a_hierarchy_beats_a_flat_ring() {
        for elements in [2, 1 << 20] {
            let flat = time(Algorithm::Ring, Windows::None, elements, 2);
            assert!(time(Algorithm::Ring, Windows::Scratch, elements, 2) < flat);
        }
    }

    #[test]
    fn plans_that_block_are_an_error() {
        let spec = Spec {
            collective: Collective::Barrier,
            world: World { rank: Rank::new(0), size: 2 },
            root: Rank::new(0),
            count: Count::Each(Elements(0)),
            in_place: false,
            algorithm: Algorithm::Direct,
            protocol: Protocol::Simple,
            windows: Windows::None,
            layout: layout(vec![vec![Rank::new(0), Rank::new(1)]]),
            limits: Limits { slot: Elements(1), slots: 2, scratch: Elements(2), channels: 1 },
        };
        let mut silent = Plan::build(&Spec { world: World { rank: Rank::new(1), size: 2 }, ..spec.clone() }).unwrap();
        silent.lanes[0].steps = Arc::default();
        let plans = [Plan::build(&spec).unwrap(), silent];
        let terrain = Terrain::of_hosts(spec.layout.hosts(), TransportKind::Local, &Costs::default());
        assert!(simulate(plans.map(Ok), 1, (&terrain, Folding::Exact)).is_err());
    }
}
