//! What the choice of a call's path stands on, for host memory and for devices: `HostChooser` and `DeviceChooser`.

use crate::config::Note;
use crate::device::lines;
use crate::engine::programs::Means;
use crate::error::{Error, Result};
use crate::exec::{Call, CallCount};
use crate::log;
use crate::plan::{self, Count, Layout, Limits, Spec, WINDOW_LANES, Windows};
use crate::session::settings::Settings;
use crate::session::settings::tuning::Tuning;
use crate::sync::primitive::Arc;
use crate::sys::float_mode;
use crate::transport::FLAT_BYTES;
use crate::tune::{self, Choice, Costs, Filters, Query};
use crate::types::{Algorithm, Bytes, Collective, DataType, Elements, Protocol, Rank, TransportKind, World};

/// How a plan runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PlanPath {
    /// It names windows inside hosts.
    Windows(Choice),
    /// It names slots alone.
    Slots(Choice),
}

/// What of a call the choice looks at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub(crate) collective: Collective,
    pub(crate) data_type: DataType,
    pub(crate) count: &'a CallCount,
}

impl<'a> Question<'a> {
    pub(crate) fn of(call: &'a Call<'_>) -> Question<'a> {
        Question { collective: call.collective, data_type: call.data_type, count: &call.count }
    }
}

/// How a collective is run, in the words of `NCCL_ALGO` and `NCCL_PROTO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Chosen {
    /// How the data travels.
    pub algorithm: Algorithm,
    /// How the news of its arrival does.
    pub protocol: Protocol,
    /// In how many parts, side by side.
    pub channels: u32,
}

/// What the choices of one communicator stand on: the same for all of its calls and, but for the rank, on all ranks.
#[derive(Debug)]
pub(super) struct Grounds {
    pub(super) world: World,
    /// The layout on which calls are planned.
    pub(super) layout: Arc<Layout>,
    near: TransportKind,
    cores: u32,
    pub(super) settings: Settings,
    pub(super) filters: Filters,
    pub(super) costs: Costs,
}

impl Grounds {
    /// The `layout`, what is `near` inside hosts, and the least `cores` of a rank are the same on all ranks.
    pub(super) fn new(
        world: World,
        (layout, near, cores): (Layout, TransportKind, u32),
        settings: &Settings,
    ) -> Grounds {
        let settings = settings.clone();
        let costs = Tuning::costs(settings.tuning.as_ref());
        let (direct, team) = settings.team_ranks.map_or((MOST_DIRECT, TEAM_RANKS), |ranks| (ranks, ranks));
        let crowded = layout.hosts().iter().any(|ranks| ranks.len() > direct);
        let layout = Arc::new(if crowded { layout.with_teams_of(team) } else { layout });
        let (least, shares) = (settings.channels.0, layout.hosts().iter().any(|ranks| ranks.len() > 1));
        if shares && least > WINDOW_CHANNELS {
            log::say_once(&Note::Warning(format!(
                "NCCL_MIN_NCHANNELS={least}: calls that work in memory which ranks of a host share have at most \
                 {WINDOW_CHANNELS} channels"
            )));
        }
        let filters = Filters { algorithms: settings.algorithms.clone(), protocols: settings.protocols.clone() };
        Grounds { world, layout, near, cores, settings, filters, costs }
    }

    /// With the rate of the NICs of a host in the place of a guess, where it is known and nobody has measured: the same
    /// on all ranks.
    pub(super) fn over_nics_of(mut self, host_mbit: Option<u64>) -> Grounds {
        if let Some(rate) = host_mbit.filter(|_| self.settings.tuning.is_none()) {
            self.costs.net.bytes_per_us = tune::bytes_per_us(rate);
        }
        self
    }

    /// Whether all ranks are on one host and map each other's memory.
    #[inline]
    pub(super) fn maps_peers(&self) -> bool {
        self.one_host() && self.world.size > 1 && self.layout.size() <= MOST_MAPPED
    }

    /// Whether peers may work in buffers that users register.
    pub(super) fn reaches_buffers(&self) -> bool {
        self.maps_peers() && self.layout.size() <= MOST_DIRECT
    }

    #[inline]
    pub(super) fn one_host(&self) -> bool {
        self.layout.hosts().len() == 1
    }

    /// Whether a collective works inside teams, whose ranks map each other's memory, and then between them.
    fn is_hierarchy(&self, collective: Collective) -> bool {
        let mapped = self.layout.hosts().iter().all(|ranks| ranks.len() <= MOST_MAPPED);
        mapped && plan::is_hierarchy(collective, &self.layout)
    }

    /// Whether the seats of a hierarchy, which do its work, are enough of the ranks, or the work is little: see
    /// `plan::team`. Where every rank has a block of its own, every rank has a seat.
    fn has_seats(&self, asked: Question<'_>) -> bool {
        if plan::each_has_blocks(asked.collective) {
            return true;
        }
        let sizes = || self.layout.teams().iter().map(Vec::len);
        let (seats, most) = (sizes().min().unwrap_or(1), sizes().max().unwrap_or(1));
        seats * 2 >= most || self.longest_block_bytes(asked) <= FEW_SEATS_BYTES
    }

    /// What is told of a choice.
    pub(super) fn lanes(&self, asked: Question<'_>, choice: Choice, windows: Windows) -> Chosen {
        let element_bytes = u64::from(asked.data_type.size());
        let limits = limits(means(choice, windows), element_bytes, &self.settings);
        let longest = Elements(self.longest_block_bytes(asked) / element_bytes);
        let channels = plan::lanes(asked.collective, longest, limits);
        Chosen { algorithm: choice.algorithm, protocol: choice.protocol, channels }
    }

    /// Bytes of a flat call at most. Threads reach each other's buffers at once, so that less is worth a copy into the
    /// flat slot.
    #[inline]
    pub(super) fn most_flat_bytes(&self) -> usize {
        if self.near == TransportKind::Local { LOCAL_FLAT_BYTES } else { FLAT_BYTES }
    }

    /// The path of a call that has none but by a plan by Simple, in each other's memory where it may be `direct`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the user's filters leave nothing.
    pub(super) fn path_of_plans(&self, asked: Question<'_>, direct: bool, measured: bool) -> Result<PlanPath> {
        if !self.settings.protocols.allows(asked.collective, Protocol::Simple) {
            return Err(Error::invalid_argument(format!(
                "the protocols to choose from (NCCL_PROTO, Config::with_proto, --proto) have none for this {}: on host \
                 memory Direct alone has LL, for up to {FLAT_BYTES} bytes between ranks that share memory (one host, without \
                 NCCL_SHM_DISABLE); Simple serves the rest",
                asked.collective
            )));
        }
        self.path_by_simple(asked, direct, measured)
    }

    /// Costs that are `measured` may take ranks of one host off direct plans.
    pub(super) fn path_by_simple(&self, asked: Question<'_>, direct: bool, measured: bool) -> Result<PlanPath> {
        let hierarchy = self.is_hierarchy(asked.collective) && self.has_seats(asked);
        let windows = if direct || hierarchy { Windows::Scratch } else { Windows::None };
        let chosen = self.choose(&Query { windows, measured, ..self.query(asked, hierarchy) }, &self.filters)?;
        let mapped = match chosen.algorithm {
            Algorithm::Ring | Algorithm::Tree => hierarchy,
            Algorithm::Direct => direct,
            Algorithm::Pat => false,
        };
        Ok(if mapped { PlanPath::Windows(chosen) } else { PlanPath::Slots(chosen) })
    }

    /// What is asked of the tuner.
    pub(super) fn query(&self, asked: Question<'_>, hierarchy: bool) -> Query {
        Query {
            collective: asked.collective,
            bytes: Bytes(self.longest_block_bytes(asked)),
            element_bytes: asked.data_type.size(),
            ranks: self.world.size,
            hosts: u32::try_from(self.layout.hosts().len()).unwrap_or(u32::MAX),
            teams: if hierarchy { u32::try_from(self.layout.teams().len()).unwrap_or(u32::MAX) } else { 1 },
            cores: self.cores,
            near: self.near,
            windows: Windows::None,
            protocols: &[Protocol::Simple],
            reproducible: self.settings.reproducible,
            channels: self.settings.channels,
            measured: false,
        }
    }

    /// Bytes of the longest block that one rank has.
    pub(super) fn longest_block_bytes(&self, asked: Question<'_>) -> u64 {
        let count = match asked.count {
            CallCount::Each(count) => *count,
            CallCount::PerRank(counts) => counts.iter().copied().max().unwrap_or(0),
        };
        count.saturating_mul(u64::from(asked.data_type.size()))
    }

    /// [`tune::choose`], alike on all ranks whatever the floating-point modes of their threads.
    pub(super) fn choose(&self, query: &Query, filters: &Filters) -> Result<Choice> {
        let _mode = float_mode::standard();
        tune::choose(query, filters, &self.costs)
    }

    /// What to plan for a call of the rank of `world`, on a layout.
    pub(super) fn spec(&self, call: &Call<'_>, means: Means, (world, layout): (World, &Arc<Layout>)) -> Spec {
        let places = (call.root.unwrap_or_default(), call.in_place(world));
        self.spec_of(Question::of(call), places, means, (world, layout))
    }

    /// The same of a question, with its root and whether input and output are one buffer.
    pub(super) fn spec_of(
        &self,
        asked: Question<'_>,
        (root, in_place): (Rank, bool),
        means: Means,
        (world, layout): (World, &Arc<Layout>),
    ) -> Spec {
        let Means { algorithm, protocol, windows, .. } = means;
        Spec {
            collective: asked.collective,
            world,
            root,
            count: match asked.count {
                CallCount::Each(count) => Count::Each(Elements(*count)),
                CallCount::PerRank(counts) => Count::PerRank(counts.iter().copied().map(Elements).collect()),
            },
            in_place,
            algorithm,
            protocol,
            windows,
            layout: Arc::clone(layout),
            limits: limits(means, u64::from(asked.data_type.size()), &self.settings),
        }
    }
}

/// With what a call of this choice travels.
pub(super) fn means(Choice { algorithm, protocol, channels }: Choice, windows: Windows) -> Means {
    let most = if windows == Windows::None { plan::MOST_CHANNELS } else { WINDOW_CHANNELS };
    Means { algorithm, protocol, windows, channels: channels.min(most) }
}

fn limits(means: Means, element_bytes: u64, settings: &Settings) -> Limits {
    let sizes = &settings.sizes;
    let scratch_bytes = (if means.windows == Windows::None { SMALL_SCRATCH } else { sizes.scratch_bytes }) as u64;
    let (slot_bytes, slots) = match lines::payload(means.protocol) {
        None => (u64::from(sizes.shape.slot_bytes), sizes.shape.slots),
        Some(payload) => (payload, lines::SLOTS),
    };
    Limits {
        slot: Elements(slot_bytes / element_bytes),
        slots,
        scratch: Elements(scratch_bytes / element_bytes),
        channels: means.channels,
    }
}

/// Ranks of a host that map each other; more use slots.
const MOST_MAPPED: usize = 384;
/// Ranks of a host up to which each works with every other at once; more work in teams.
const MOST_DIRECT: usize = 64;
/// Ranks of a team at most, on hosts of more ranks than [`MOST_DIRECT`].
const TEAM_RANKS: usize = 32;
/// What less than half of the ranks may do for all.
const FEW_SEATS_BYTES: u64 = 64 << 10;
/// Bytes of scratch of plans without windows: the tokens of a barrier.
pub(crate) const SMALL_SCRATCH: usize = 4096;
/// Where the flat path's copy costs threads as much as the two more flags of windows (measured with `rsccl perf`).
const LOCAL_FLAT_BYTES: usize = 8 << 10;
/// Lanes of a plan with windows.
#[expect(clippy::cast_possible_truncation, reason = "a few")]
const WINDOW_CHANNELS: u32 = WINDOW_LANES as u32;
