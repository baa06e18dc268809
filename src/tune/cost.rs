//! What things cost.

use std::time::Duration;

use super::Query;
use crate::plan::{Pattern, Windows, is_one_shot, read_the_root};
use crate::types::{Algorithm, Collective, Elements, Holding, Protocol, TransportKind};

/// A way between two ranks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Link {
    /// Microseconds from a message's publication to its being seen.
    pub latency_us: f64,
    /// Bytes in a microsecond (that is, MB/s).
    pub bytes_per_us: f64,
}

/// What things cost on these machines.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Between ranks of one process.
    pub local: Link,
    /// Between ranks of one host.
    pub shm: Link,
    /// Between hosts; the bandwidth is a host's.
    pub net: Link,
    /// Microseconds of a core for sending a message to another host, and for receiving one.
    pub net_message_us: f64,
    /// Microseconds from a flag's raising to its being seen.
    pub flag_us: f64,
    /// Microseconds of a step besides its bytes.
    pub step_us: f64,
    /// Bytes that a core reads and writes again in a microsecond.
    pub copy_bytes_per_us: f64,
    /// The same for bytes that stay in the core's cache.
    pub cached_bytes_per_us: f64,
    /// Bytes that a core reduces in a microsecond: those that it reads and those that it writes count half each, as for
    /// copies.
    pub reduce_bytes_per_us: f64,
    /// How many bytes stay in the core's cache.
    pub cache_bytes: f64,
    /// Microseconds until a waiting rank gets a core, if there are more ranks than cores.
    pub switch_us: f64,
    /// The cost of a byte in a peer's memory, as a multiple of a byte in the rank's own.
    pub peer_factor: f64,
    /// Moving and sending overlap, except for this fraction (1/n) of the shorter of the two.
    pub overlap: f64,
    /// How many lanes work at once: while one waits, the others move and send. One if a single core runs all lanes.
    pub side_by_side: f64,
    /// The most bytes of a message, if a pipeline of long messages has to be filled; 0 if messages are short.
    pub slot_bytes: f64,
    /// Channels of a call, unless the user says otherwise.
    pub channels: u32,
}

impl Default for Costs {
    /// Figures of the order of a present server's; to be calibrated by `bench/`. Latencies: a cache line's way between
    /// two cores is 0.05 to 0.1 µs, and a hand-over takes two or three; TCP over a data-centre network takes some 15
    /// µs, and a system call with its copy 3. Copying: one core of a server moves 8 to 12 GB/s, some four times that in
    /// its second-level cache of which a quarter of a megabyte is safely ours. Network: 25 Gbit/s.
    fn default() -> Costs {
        Costs {
            local: Link { latency_us: 0.2, bytes_per_us: 8_000.0 },
            shm: Link { latency_us: 0.2, bytes_per_us: 8_000.0 },
            net: Link { latency_us: 15.0, bytes_per_us: 3_000.0 },
            net_message_us: 3.0,
            flag_us: 0.15,
            step_us: 0.05,
            copy_bytes_per_us: 8_000.0,
            cached_bytes_per_us: 32_000.0,
            reduce_bytes_per_us: 8_000.0,
            cache_bytes: 262_144.0,
            switch_us: 3.0,
            peer_factor: 1.0,
            overlap: 4.0,
            side_by_side: 1.0,
            slot_bytes: 0.0,
            channels: super::CHANNELS,
        }
    }
}

/// What an algorithm does on its critical path.
#[derive(Debug, Clone, Copy, Default)]
struct Work {
    /// Messages one after the other between ranks of a host.
    near: f64,
    /// Messages one after the other between hosts.
    far: f64,
    /// Flags waited for one after the other.
    flags: f64,
    /// Bytes that a rank reads and writes.
    moved: f64,
    /// How many of them are in peers' memory.
    peers: f64,
    /// Bytes that a host sends.
    sent: f64,
    /// Steps of a rank.
    steps: f64,
    /// Messages that a rank sends to or receives from other hosts, while others wait for it.
    calls: f64,
}

impl Costs {
    /// The link between ranks over this transport.
    pub fn link(&self, transport: TransportKind) -> Link {
        match transport {
            TransportKind::Local => self.local,
            TransportKind::Shm => self.shm,
            TransportKind::Net => self.net,
        }
    }

    /// Microseconds in which a core reads and writes `bytes` bytes.
    fn moving_us(&self, bytes: f64) -> f64 {
        bytes.min(self.cache_bytes) / self.cached_bytes_per_us
            + (bytes - self.cache_bytes).max(0.0) / self.copy_bytes_per_us
    }

    /// The time that the model gives an algorithm.
    pub fn time(&self, query: &Query, algorithm: Algorithm, protocol: Protocol) -> Duration {
        // Collectives that are messages have no plan, and so no cost here; `choose` refuses them.
        let of = |pattern| work((query, self.slot_bytes), pattern, algorithm);
        let work = Pattern::of(query.collective).map(of).unwrap_or_default();
        // Half the bytes of an LL slot are flags, so no separate flag has to be seen.
        let (lines, news) = match protocol {
            Protocol::Simple => (1.0, 1.0),
            Protocol::LowLatency => (2.0, 0.5),
            Protocol::LowLatency128 => (128.0 / 120.0, 0.7),
        };
        let per_host = f64::from(query.ranks) / f64::from(query.hosts.max(1));
        let crowd = (per_host / f64::from(query.cores.max(1))).max(1.0);
        let switch = if crowd > 1.0 { self.switch_us * crowd } else { 0.0 };
        let near = self.link(query.near);
        let waiting = work.near * (near.latency_us * news + switch)
            + work.far * (self.net.latency_us * news + switch)
            + work.flags * (self.flag_us * news + switch);
        let reduced = reduced(query.collective) * (self.reduction_factor() - 1.0);
        let moved = (work.moved + work.peers * (self.peer_factor - 1.0)) * (1.0 + reduced);
        let moving =
            crowd * (self.moving_us(moved * lines) + work.steps * self.step_us + work.calls * self.net_message_us);
        let sending = work.sent * lines / self.net.bytes_per_us;
        let busy = moving.max(sending) + moving.min(sending) / self.overlap;
        Duration::from_secs_f64(busy.max(waiting + busy / self.side_by_side) / 1e6)
    }

    /// How many times as long a reduction takes as a copy of as many bytes.
    pub(super) fn reduction_factor(&self) -> f64 {
        (self.copy_bytes_per_us / self.reduce_bytes_per_us).max(1.0)
    }
}

/// The part of what a collective moves that it reduces.
fn reduced(collective: Collective) -> f64 {
    match (collective.reduces(), collective) {
        (false, _) => 0.0,
        // Half of the way the data is reduced, the other half handed round.
        (true, Collective::AllReduce) => 0.5,
        (true, _) => 1.0,
    }
}

/// Pieces that are sent until a piece has moved one hop further in a tree: the lags of plans send it on two rounds
/// later.
const TURNS_PER_HOP: f64 = 2.0;

/// The ranks, hosts and sizes of the collective whose cost is computed.
#[derive(Debug, Clone, Copy)]
struct Stand {
    ranks: f64,
    hosts: f64,
    /// Ranks of a host.
    seats: f64,
    /// Bytes: of the whole buffer, or of all ranks' blocks.
    whole: f64,
    staged: bool,
    /// Bytes of a message of a pipeline.
    piece: f64,
    /// Whether plans of a reduction take one hop in place of two.
    one_shot: bool,
    /// Whether the ranks of a broadcast read the root's scratch themselves.
    from_root: bool,
}

fn work((query, slot_bytes): (&Query, f64), pattern: Pattern, algorithm: Algorithm) -> Work {
    let ranks = f64::from(query.ranks);
    let hosts = f64::from(query.hosts.max(1));
    #[expect(clippy::cast_precision_loss, reason = "a model's bytes need no more than 53 bits")]
    let bytes = query.bytes.0 as f64;
    let mut stand = Stand {
        ranks,
        hosts,
        seats: ranks / hosts,
        whole: if of_blocks(query.collective) { bytes * ranks } else { bytes },
        staged: query.windows == Windows::Scratch,
        piece: slot_bytes,
        one_shot: is_one_shot(Elements(query.bytes.0 / u64::from(query.element_bytes.max(1))), query.ranks),
        from_root: read_the_root(query.ranks),
    };
    if query.ranks <= 1 {
        return Work { moved: stand.whole, steps: 1.0, ..Work::default() };
    }
    if pattern == Pattern::Barrier {
        return barrier(query, stand, algorithm);
    }
    let mapped = query.windows != Windows::None;
    match algorithm {
        Algorithm::Direct if mapped && query.hosts <= 1 => through_windows(pattern, stand),
        Algorithm::Direct => through_mesh(pattern, stand),
        Algorithm::Pat => through_pat(stand),
        Algorithm::Ring | Algorithm::Tree if mapped && query.teams > 1 => {
            // The seats of a team share the work on the rails and the host's network.
            let teams = f64::from(query.teams);
            let seats = ranks / teams;
            let inside = Stand { ranks: seats, hosts: 1.0, seats, one_shot: false, from_root: false, ..stand };
            let inside = through_windows(pattern, inside);
            let rail = Stand { ranks: teams, seats: teams / hosts, whole: stand.whole / seats, ..stand };
            let inside = if seats > 1.0 { inside } else { Work::default() };
            let rail = along(pattern, rail, algorithm);
            Work {
                near: rail.near,
                far: rail.far,
                flags: inside.flags,
                moved: inside.moved + rail.moved,
                peers: inside.peers,
                sent: rail.sent * seats,
                steps: inside.steps + rail.steps,
                calls: rail.calls,
            }
        }
        Algorithm::Ring | Algorithm::Tree => {
            stand.seats = stand.ranks / stand.hosts;
            along(pattern, stand, algorithm)
        }
    }
}

/// Whether a buffer has the blocks of all ranks.
fn of_blocks(collective: Collective) -> bool {
    let definition = collective.definition();
    definition.input == Holding::Each || definition.output == Holding::Each
}

fn barrier(query: &Query, stand: Stand, algorithm: Algorithm) -> Work {
    let rounds = stand.ranks.log2().ceil();
    let far = query.hosts > 1;
    match algorithm {
        Algorithm::Direct if query.windows != Windows::None && !far => {
            Work { flags: 1.0, steps: stand.ranks, ..Work::default() }
        }
        Algorithm::Direct if far => {
            let steps = 2.0 * stand.ranks;
            Work { far: 1.0, steps, calls: 2.0 * (stand.ranks - stand.seats), ..Work::default() }
        }
        Algorithm::Direct => Work { near: 1.0, steps: 2.0 * stand.ranks, ..Work::default() },
        Algorithm::Tree | Algorithm::Ring | Algorithm::Pat if far => {
            Work { far: rounds, steps: 2.0 * rounds, calls: 2.0 * rounds, ..Work::default() }
        }
        Algorithm::Tree | Algorithm::Ring | Algorithm::Pat => {
            Work { near: rounds, steps: 2.0 * rounds, ..Work::default() }
        }
    }
}

/// Reading and writing count half each: a copy of b bytes moves b.
fn through_windows(pattern: Pattern, stand: Stand) -> Work {
    use Pattern::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    let Stand { ranks, whole, staged, .. } = stand;
    let others = whole * (ranks - 1.0) / ranks;
    let share = whole / ranks;
    let reduce = share * (ranks + 1.0) / 2.0;
    let (flags, moved) = match (pattern, staged) {
        (AllReduce, true) if stand.one_shot => (1.0, whole + whole * (ranks + 1.0) / 2.0),
        (AllReduce, true) => (2.0, 2.0 * others + reduce + share / 2.0),
        (AllReduce, false) => (2.0, whole),
        (ReduceScatter, true) => (1.0, others + reduce),
        (ReduceScatter, false) => (2.0, reduce),
        (AllGather, true) => (1.0, 1.5 * share + others),
        (AllGather, false) => (2.0, share * (ranks + 1.0) / 2.0),
        (Broadcast, true) if stand.from_root => (1.0, 2.0 * whole),
        (Broadcast, true) => (2.0, 2.0 * others + 1.5 * share),
        (Broadcast, false) => (2.0, share * (ranks + 1.0) / 2.0),
        (Reduce, true) => (2.0, 2.0 * others + reduce),
        (Reduce, false) => (2.0, reduce),
        (AllToAll | Gather | Scatter | Barrier, true) => (1.0, 2.0 * whole),
        (AllToAll | Gather | Scatter | Barrier, false) => (2.0, whole),
    };
    // A wait for each peer with each flag, and some copies where data is staged.
    let steps = flags * (ranks + 1.0) + if staged { ranks } else { 1.0 };
    Work { flags, moved, peers: moved * (ranks - 1.0) / ranks, steps, ..Work::default() }
}

fn through_mesh(pattern: Pattern, stand: Stand) -> Work {
    use Pattern::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    let Stand { ranks, hosts, seats, whole, .. } = stand;
    let others = whole * (ranks - 1.0) / ranks;
    let share = whole / ranks;
    // Of what a rank sends, this part leaves its host.
    let leaving = if ranks > 1.0 { (ranks - seats) / (ranks - 1.0) } else { 0.0 };
    let once = ranks == 2.0 || stand.one_shot;
    let (hops, moved, sent) = match pattern {
        AllReduce if once => (1.0, whole * ranks, seats * whole * (ranks - 1.0)),
        AllReduce => (2.0, 3.0 * others, 2.0 * seats * others),
        Reduce if once => (1.0, whole * ranks, seats * whole),
        Reduce => (2.0, 3.0 * others, seats * (others + share)),
        Broadcast => (1.0, whole * ranks, whole * (ranks - 1.0)),
        Gather | Scatter => (1.0, whole, others),
        AllToAll => (1.0, 2.0 * whole, seats * others),
        AllGather | ReduceScatter | Barrier => (1.0, 2.0 * others, seats * others),
    };
    let far = hosts > 1.0;
    let hops = if far { (0.0, hops) } else { (hops, 0.0) };
    Work {
        near: hops.0,
        far: hops.1,
        flags: 0.0,
        moved,
        peers: 0.0,
        sent: if far { sent * leaving } else { 0.0 },
        steps: 3.0 * ranks,
        calls: if far { hops.1 * 2.0 * (ranks - seats) } else { 0.0 },
    }
}

fn through_pat(stand: Stand) -> Work {
    let Stand { ranks, hosts, seats, whole, .. } = stand;
    let rounds = ranks.log2().ceil();
    let others = whole * (ranks - 1.0) / ranks;
    let far = if hosts > 1.0 { rounds } else { 0.0 };
    Work {
        near: rounds - far,
        far,
        flags: 0.0,
        moved: 2.5 * others,
        peers: 0.0,
        sent: far.min(1.0) * seats * others,
        steps: 2.0 * rounds,
        calls: 2.0 * far,
    }
}

/// Along a ring or a tree through slots; every host is entered once.
fn along(pattern: Pattern, stand: Stand, algorithm: Algorithm) -> Work {
    use Pattern::{AllGather, AllReduce, AllToAll, Barrier, Broadcast, Gather, Reduce, ReduceScatter, Scatter};
    let Stand { ranks, hosts, whole, .. } = stand;
    let crosses = if hosts > 1.0 { 1.0 } else { 0.0 };
    let others = whole * (ranks - 1.0) / ranks;
    let share = whole / ranks;
    // A message to a rank of the same host takes the link of that host once.
    let inside = if stand.seats > 1.0 { 0.5 } else { 0.0 };
    let depth = |nodes: f64| nodes.log2().ceil();
    match (algorithm, pattern) {
        (Algorithm::Tree, AllReduce) => Work {
            near: 2.0 * depth(stand.seats),
            far: 2.0 * depth(hosts),
            flags: 0.0,
            // Two children above, a parent, and the way back, in one of two trees each.
            moved: 2.5 * whole,
            peers: inside * 2.0 * whole,
            sent: crosses * (2.0 * whole + 2.0 * TURNS_PER_HOP * depth(hosts) * stand.piece.min(whole)),
            steps: 2.0 * depth(ranks),
            calls: 6.0 * crosses,
        },
        (Algorithm::Tree, _) => Work {
            near: depth(stand.seats),
            far: depth(hosts),
            flags: 0.0,
            moved: 1.5 * whole,
            peers: inside * whole,
            sent: crosses * (whole + TURNS_PER_HOP * depth(hosts) * stand.piece.min(whole)),
            steps: depth(ranks),
            calls: 3.0 * crosses,
        },
        (Algorithm::Ring | Algorithm::Direct | Algorithm::Pat, pattern) => {
            let (turns, moved) = match pattern {
                AllReduce => (2.0, 3.0 * others + share),
                Broadcast | Reduce => (1.0, 1.5 * whole),
                AllGather | ReduceScatter | AllToAll | Gather | Scatter | Barrier => (1.0, 1.5 * others + share),
            };
            let far = if hosts > 1.0 { hosts - 1.0 } else { 0.0 };
            let passed = if matches!(pattern, Broadcast | Reduce) { whole } else { turns * others };
            Work {
                near: turns * (ranks - 1.0 - far),
                far: turns * far,
                flags: 0.0,
                moved,
                peers: inside * passed,
                sent: crosses * passed,
                steps: turns * ranks,
                calls: crosses * 2.0 * turns * (ranks - 1.0),
            }
        }
    }
}
