//! Which algorithm, which protocol, how many channels: a model of what each would cost. Pure.
//!
//! [`choose`] computes the time of each algorithm that the user's filters leave and takes the least. [`simulate`] runs
//! the plans themselves on a model of the machines, step by step: on hosts of which only costs are known, or on the
//! links of a topology. [`RingSizes`] are those of communicators and of the model.

#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

mod calibration;
#[cfg(test)]
mod cores;
mod cost;
mod modelled;
mod rings;
mod simulation;
mod terrain;

pub use calibration::Calibration;
pub use cost::Costs;
pub use modelled::{Ask, Fidelity, MOST_EXACT, Modelled, SpecOf};
pub use rings::{BUFFER_BYTES, COLLECTIVE_SLOTS, RingSizes};
pub use simulation::{Folding, LinkLoad, Simulated, Traffic, plans, simulate};
pub use terrain::{BETWEEN_PROCESSES, Terrain};

use crate::plan::{Layout, Windows, algorithms};
use crate::types::{Algorithm, Bytes, Collective, Filter, Protocol, TransportKind};
use crate::{Error, Result};

/// Channels of a call, unless the user says otherwise; a plan has no lane that would not fill a slot, so small calls
/// use one. Between hosts one lane works while the other's message is on its way, and two lanes are the two trees of a
/// double tree. In the simulation (the test
/// `a_second_lane_hides_the_messages_of_a_ring_of_hosts_and_a_third_gains_nothing` prints it) a ring of 8 hosts takes
/// 72 ms for 64 MiB with one lane and 39 ms with two or four.
const CHANNELS: u32 = 2;

/// A direct plan is chosen unless another is more than a quarter faster, because its results have the same bits on
/// every layout.
const IN_FAVOUR_OF_DIRECT: f64 = 0.8;

/// What NICs of a rate carry, which move data without a processor's help.
pub fn bytes_per_us(rate_mbit: u64) -> f64 {
    f64::from(u32::try_from(rate_mbit).unwrap_or(u32::MAX)) / 8.0
}

/// What a collective does, and on which ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Query {
    /// Which collective.
    pub collective: Collective,
    /// Bytes of [`Count`](crate::plan::Count): of the whole buffer, or of one rank's block (the longest one).
    pub bytes: Bytes,
    /// Bytes of an element: plans go by elements.
    pub element_bytes: u32,
    /// Ranks in the communicator.
    pub ranks: u32,
    /// Hosts that they are on.
    pub hosts: u32,
    /// Teams that a hierarchy joins: hosts, or parts of hosts. 1 where the collective has no hierarchy.
    pub teams: u32,
    /// CPU cores that the ranks of a host share.
    pub cores: u32,
    /// What connects ranks of one host.
    pub near: TransportKind,
    /// Which memory of peers of the host is mapped.
    pub windows: Windows,
    /// The protocols that the executor has.
    pub protocols: &'static [Protocol],
    /// Whether results must have the same bits whatever the size, hosts and windows.
    pub reproducible: bool,
    /// The least and the most channels that the user allows.
    pub channels: (u32, u32),
    /// Whether the costs were measured, or come from these machines' links. Usual ones do not displace direct plans of
    /// ranks that map each other's memory.
    pub measured: bool,
}

/// How to plan a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// With which algorithm.
    pub algorithm: Algorithm,
    /// With which protocol.
    pub protocol: Protocol,
    /// On how many channels at most.
    pub channels: u32,
}

impl Choice {
    /// The same choice for a plan over slots: where channels were searched for, on as many lanes as use them all,
    /// within what the user allows.
    #[must_use]
    pub fn on_searched(self, layout: &Layout, (least, most): (u32, u32)) -> Choice {
        let channels = layout.lanes_of(self.algorithm).map_or(self.channels, |lanes| lanes.max(least).min(most));
        Choice { channels, ..self }
    }
}

/// The filters that a user has set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    /// Of `NCCL_ALGO`.
    pub algorithms: Filter<Algorithm>,
    /// Of `NCCL_PROTO`.
    pub protocols: Filter<Protocol>,
}

/// Chooses for a collective. Equal on all ranks if the queries and filters are.
///
/// # Errors
/// `InvalidArgument` where the filters leave nothing, or nothing that is reproducible, or plans do not do the
/// collective.
pub fn choose(query: &Query, filters: &Filters, costs: &Costs) -> Result<Choice> {
    let possible = algorithms(query.collective);
    if possible.is_empty() {
        return Err(Error::invalid_argument(format!("{} is not done by plans", query.collective)));
    }
    let is_mapped = query.hosts <= 1 && query.teams <= 1 && query.windows != Windows::None;
    if is_mapped && !query.measured && filters.algorithms.allows(query.collective, Algorithm::Direct) {
        let channels = channels(query.channels);
        return Ok(Choice { algorithm: Algorithm::Direct, protocol: Protocol::Simple, channels });
    }
    let mut left = filters.algorithms.choose(query.collective, possible)?;
    if query.reproducible && query.collective.reduces() {
        left.retain(|algorithm| *algorithm == Algorithm::Direct);
        if left.is_empty() {
            return Err(Error::invalid_argument(format!(
                "reproducible {} is done by {} only, which the filter of algorithms forbids",
                query.collective,
                Algorithm::Direct
            )));
        }
    }
    let protocols = filters.protocols.choose(query.collective, query.protocols)?;
    let pairs = left.iter().flat_map(|algorithm| protocols.iter().map(|protocol| (*algorithm, *protocol)));
    let weighed = |(algorithm, protocol): &(Algorithm, Protocol)| {
        let time = costs.time(query, *algorithm, *protocol);
        match algorithm {
            Algorithm::Direct => time.mul_f64(IN_FAVOUR_OF_DIRECT),
            Algorithm::Ring | Algorithm::Tree | Algorithm::Pat => time,
        }
    };
    let (algorithm, protocol) =
        pairs.min_by_key(weighed).ok_or_else(|| Error::internal("a filter chose nothing and said nothing"))?;
    let (least, most) = query.channels;
    Ok(Choice { algorithm, protocol, channels: costs.channels.max(least).min(most) })
}

/// The protocol of a call between devices: of those that are `left` for it the quickest. `block` is the longest block
/// that a rank has, which it may send to all others.
pub fn device_protocol(left: &[Protocol], block: Bytes, ranks: u32) -> Protocol {
    // In the order of latency; where none is for so much, the last of those that are left.
    let ordered = [Protocol::LowLatency, Protocol::LowLatency128, Protocol::Simple];
    let mut allowed = ordered.into_iter().filter(|protocol| left.contains(protocol)).peekable();
    loop {
        match allowed.next() {
            Some(protocol) if is_quick(protocol, block, ranks) || allowed.peek().is_none() => return protocol,
            Some(_) => {}
            None => return Protocol::Simple,
        }
    }
}

/// Whether a protocol between devices is quick for blocks of that length, which a rank may send to all others: by lines
/// in one hop or two, whatever longer ways would save in bytes.
pub fn is_quick(protocol: Protocol, block: Bytes, ranks: u32) -> bool {
    let sent = block.0.saturating_mul(u64::from(ranks.saturating_sub(1)));
    match protocol {
        Protocol::Simple => true,
        Protocol::LowLatency => ranks <= MOST_LINE_RANKS && sent <= MOST_LL_BYTES,
        Protocol::LowLatency128 => ranks <= MOST_LINE_RANKS && sent <= MOST_LL128_BYTES,
    }
}

/// Bytes that a rank sends by LL, all copies of a block together, unless the user asks for LL alone. Not measured:
/// NCCL's tuner books 0.6 µs for a hop by LL over NVLink, 1.9 by LL128 and 3.4 by Simple. Of windows, small calls take
/// two hops more than the one of lines, in all some 9 µs. A block of threads stores some 20 GB/s, and LL twice the
/// bytes, so that 64 KiB take some 6 µs.
const MOST_LL_BYTES: u64 = 64 << 10;
/// The same by LL128, which stores a fifteenth more than the bytes: 8 µs less its hop's.
const MOST_LL128_BYTES: u64 = 128 << 10;
/// Ranks that send to each other at once, each by a connection of its own.
const MOST_LINE_RANKS: u32 = 16;

/// The channels of a call, where the user allows from `least` to `most`.
pub fn channels((least, most): (u32, u32)) -> u32 {
    CHANNELS.max(least).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(collective: Collective, bytes: u64, ranks: u32, hosts: u32) -> Query {
        Query {
            collective,
            bytes: Bytes(bytes),
            element_bytes: 4,
            ranks,
            hosts,
            teams: hosts,
            cores: ranks,
            near: TransportKind::Shm,
            windows: Windows::Scratch,
            protocols: &[Protocol::Simple],
            reproducible: false,
            channels: (1, 64),
            measured: true,
        }
    }

    fn chosen(query: &Query) -> Algorithm {
        choose(query, &Filters::default(), &Costs::default()).unwrap().algorithm
    }

    #[test]
    fn one_host_goes_direct() {
        for bytes in [8, 4096, 1 << 20, 64 << 20] {
            for ranks in [2, 3, 8] {
                assert_eq!(
                    chosen(&query(Collective::AllReduce, bytes, ranks, 1)),
                    Algorithm::Direct,
                    "{bytes} {ranks}"
                );
            }
        }
    }

    /// Flags that take for ever: a file that says so is believed, usual costs never take ranks off direct plans.
    #[test]
    fn measured_costs_displace_direct_plans_inside_a_host_and_usual_ones_do_not() {
        let slow = Costs { flag_us: 1e6, ..Costs::default() };
        let chosen = |query: Query, filter: &str| {
            let filters = Filters { algorithms: Filter::parse(filter).unwrap(), ..Filters::default() };
            choose(&query, &filters, &slow).unwrap().algorithm
        };
        let near = query(Collective::AllReduce, 1 << 20, 4, 1);
        assert_eq!(chosen(Query { measured: false, ..near }, ""), Algorithm::Direct);
        assert_ne!(chosen(near, ""), Algorithm::Direct);
        assert_eq!(chosen(Query { measured: false, ..near }, "Ring"), Algorithm::Ring, "filters bind");
        assert_eq!(chosen(Query { reproducible: true, ..near }, ""), Algorithm::Direct);
    }

    #[test]
    fn between_hosts_small_goes_up_a_tree_and_large_around_a_ring() {
        assert_eq!(chosen(&query(Collective::AllReduce, 1 << 10, 128, 128)), Algorithm::Tree);
        assert_eq!(chosen(&query(Collective::AllReduce, 256 << 20, 16, 4)), Algorithm::Ring);
        assert_eq!(chosen(&query(Collective::AllGather, 64, 64, 64)), Algorithm::Pat);
        assert_eq!(chosen(&query(Collective::AllGather, 16 << 20, 32, 4)), Algorithm::Ring);
    }

    #[test]
    fn filters_and_reproducibility_bind() {
        let spread = query(Collective::AllReduce, 256 << 20, 16, 4);
        let ring = Filters { algorithms: Filter::parse("Ring").unwrap(), ..Filters::default() };
        let strict = Query { reproducible: true, ..spread };
        assert_eq!(chosen(&strict), Algorithm::Direct);
        assert_eq!(chosen(&Query { collective: Collective::AllGather, ..strict }), Algorithm::Ring);
        let error = choose(&strict, &ring, &Costs::default()).unwrap_err().to_string();
        assert_eq!(error, "reproducible all_reduce is done by Direct only, which the filter of algorithms forbids");
        let fast = Filters { protocols: Filter::parse("LL").unwrap(), ..Filters::default() };
        let error = choose(&spread, &fast, &Costs::default()).unwrap_err().to_string();
        assert!(error.contains("the filter allows LL, and the collective has Simple"), "{error}");
        let send = Query { collective: Collective::Send, ..spread };
        assert!(choose(&send, &ring, &Costs::default()).is_err());
    }

    #[test]
    fn slow_reductions_cost_what_reduces() {
        let slow = Costs { reduce_bytes_per_us: 4_000.0, ..Costs::default() };
        let times = |collective| {
            let query = query(collective, 256 << 20, 8, 1);
            [Costs::default(), slow].map(|costs| costs.time(&query, Algorithm::Ring, Protocol::Simple).as_secs_f64())
        };
        let ratio = |collective| times(collective)[1] / times(collective)[0];
        assert!((ratio(Collective::AllReduce) - 1.5).abs() < 0.01, "half of the way: {}", ratio(Collective::AllReduce));
        assert!((ratio(Collective::ReduceScatter) - 2.0).abs() < 0.01, "{}", ratio(Collective::ReduceScatter));
        assert_eq!(times(Collective::AllGather)[0], times(Collective::AllGather)[1]);
    }

    #[test]
    fn users_bound_the_channels() {
        let spread = query(Collective::AllReduce, 256 << 20, 16, 4);
        let channels = |allowed| {
            choose(&Query { channels: allowed, ..spread }, &Filters::default(), &Costs::default()).unwrap().channels
        };
        assert_eq!([(1, 64), (1, 1), (4, 64), (4, 4), (1, 2)].map(channels), [2, 1, 4, 4, 2]);
    }

    #[test]
    fn every_algorithm_has_a_time_that_grows() {
        let costs = Costs::default();
        for collective in Collective::ALL.iter().filter(|collective| **collective != Collective::Barrier) {
            for algorithm in algorithms(*collective) {
                for (ranks, hosts) in [(1, 1), (2, 1), (7, 1), (8, 2), (32, 4)] {
                    let time = |bytes| {
                        costs.time(&query(*collective, bytes, ranks, hosts), *algorithm, Protocol::Simple).as_secs_f64()
                    };
                    assert!(time(0) >= 0.0 && time(0) < 1e-3, "{collective} {algorithm} {ranks} {hosts}");
                    assert!(time(1 << 28) > 2.0 * time(1 << 26), "{collective} {algorithm} {ranks} {hosts}");
                }
            }
        }
    }

    #[test]
    fn protocols_of_devices_follow_the_bytes_that_a_rank_sends() {
        use Protocol::{LowLatency, LowLatency128, Simple};
        let chosen = |left: &[Protocol], kib: u64, ranks: u32| device_protocol(left, Bytes(kib << 10), ranks);
        let all = [Simple, LowLatency, LowLatency128];
        assert_eq!(
            [1, 64, 65, 128, 129].map(|kib| chosen(&all, kib, 2)),
            [LowLatency, LowLatency, LowLatency128, LowLatency128, Simple]
        );
        assert_eq!([8, 16, 32].map(|kib| chosen(&all, kib, 8)), [LowLatency, LowLatency128, Simple]);
        assert_eq!(chosen(&all, 1, 17), Simple, "that many connections take much memory");
        assert_eq!([64, 65].map(|kib| chosen(&[LowLatency, Simple], kib, 2)), [LowLatency, Simple]);
        // What the user leaves is used, whatever the bytes.
        assert_eq!(chosen(&[LowLatency], 1 << 20, 100), LowLatency);
        assert_eq!([1, 1 << 20].map(|kib| chosen(&[LowLatency128, LowLatency], kib, 2)), [LowLatency, LowLatency128]);
    }
}
