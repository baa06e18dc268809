//! Which path a call takes, and its plan.

use std::collections::HashMap;

use crate::config::Note;
use crate::device::lines;
use crate::engine::programs::{Means, Programs};
use crate::error::{Error, Result};
use crate::exec::lower::MessageWay;
use crate::exec::{Call, CallCount, Message, Program};
use crate::log;
use crate::plan::{self, Count, Layout, Limits, Spec, WINDOW_LANES, Windows};
use crate::reach::channel_search::JoinedGpus;
use crate::reach::line_ways::LineWays;
use crate::session::settings::Settings;
use crate::session::settings::tuning::Tuning;
use crate::sync::primitive::Arc;
use crate::sys::float_mode;
use crate::transport::FLAT_BYTES;
use crate::tune::{self, Choice, Costs, Filters, Query};
use crate::types::{
    Algorithm, Bytes, Collective, DataType, Elements, Filter, Protocol, Rank, ReduceOp, TransportKind, World,
};

/// How a call is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Path {
    /// By flat slots: small, inside one host.
    Flat,
    /// By a plan that names windows inside hosts.
    Windows(Choice),
    /// By a plan over slots alone.
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

/// Chooses for one communicator.
#[derive(Debug)]
pub(crate) struct Chooser {
    world: World,
    layout: Arc<Layout>,
    near: TransportKind,
    cores: u32,
    settings: Settings,
    filters: Filters,
    costs: Costs,
    programs: Programs,
    /// Of calls on devices whose channels were searched for.
    searched: Option<(Arc<Layout>, Programs)>,
    /// See [`Chooser::set_partly_staged`].
    partly_staged: bool,
    /// See [`Chooser::set_line_ways`].
    line_ways: LineWays,
    /// Of the ranks for which this one launches, by rank.
    led: HashMap<Rank, Programs>,
}

impl Chooser {
    /// The `layout`, what is `near` inside hosts, and the least `cores` of a rank are the same on all ranks.
    pub(crate) fn new(
        world: World,
        (layout, near, cores): (Layout, TransportKind, u32),
        settings: &Settings,
    ) -> Chooser {
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
        Chooser {
            world,
            layout,
            near,
            cores,
            settings,
            filters,
            costs,
            programs: Programs::default(),
            searched: None,
            partly_staged: false,
            line_ways: LineWays::simple(world.size),
            led: HashMap::new(),
        }
    }

    /// The layout on which all calls are planned.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether all ranks are on one host and map each other's memory.
    pub(crate) fn maps_peers(&self) -> bool {
        self.one_host() && self.world.size > 1 && self.layout.size() <= MOST_MAPPED
    }

    /// Whether peers may work in buffers that users register.
    pub(crate) fn reaches_buffers(&self) -> bool {
        self.maps_peers() && self.layout.size() <= MOST_DIRECT
    }

    fn one_host(&self) -> bool {
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

    /// How a call is run, the same on all ranks.
    ///
    /// # Errors
    /// As [`Chooser::path`].
    pub(crate) fn chosen(&self, asked: Question<'_>) -> Result<Chosen> {
        let (choice, windows) = match self.path(asked)? {
            Path::Flat => {
                return Ok(Chosen { algorithm: Algorithm::Direct, protocol: Protocol::LowLatency, channels: 1 });
            }
            Path::Windows(choice) => (choice, Windows::Scratch),
            Path::Slots(choice) => (choice, Windows::None),
        };
        Ok(self.lanes(asked, choice, windows))
    }

    fn lanes(&self, asked: Question<'_>, choice: Choice, windows: Windows) -> Chosen {
        let element_bytes = u64::from(asked.data_type.size());
        let limits = limits(means(choice, windows), element_bytes, &self.settings);
        let longest = Elements(self.longest_block_bytes(asked) / element_bytes);
        let channels = plan::lanes(asked.collective, longest, limits);
        Chosen { algorithm: choice.algorithm, protocol: choice.protocol, channels }
    }

    /// The path of a call, the same on all ranks.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the user's filters leave nothing.
    pub(crate) fn path(&self, asked: Question<'_>) -> Result<Path> {
        let bytes = self.flat_bytes(asked);
        let direct = self.maps_peers() && self.settings.algorithms.allows(asked.collective, Algorithm::Direct);
        let low_latency = self.settings.protocols.allows(asked.collective, Protocol::LowLatency);
        if direct && low_latency && bytes.is_some_and(|bytes| bytes <= self.most_flat_bytes()) {
            return Ok(Path::Flat);
        }
        self.path_of_plans(asked, direct, self.settings.tuning.is_some())
    }

    /// Threads reach each other's buffers at once, so that less is worth a copy into the flat slot.
    fn most_flat_bytes(&self) -> usize {
        if self.near == TransportKind::Local { LOCAL_FLAT_BYTES } else { FLAT_BYTES }
    }

    fn path_of_plans(&self, asked: Question<'_>, direct: bool, measured: bool) -> Result<Path> {
        if !self.settings.protocols.allows(asked.collective, Protocol::Simple) {
            return Err(Error::invalid_argument(format!(
                "the protocols to choose from (NCCL_PROTO, Config::with_proto, --proto) have none for this {}: on host memory LL \
                 serves up to {FLAT_BYTES} bytes inside one host, and Simple the rest",
                asked.collective
            )));
        }
        self.path_by_simple(asked, direct, measured)
    }

    /// Costs that are `measured` may take ranks of one host off direct plans.
    fn path_by_simple(&self, asked: Question<'_>, direct: bool, measured: bool) -> Result<Path> {
        let hierarchy = self.is_hierarchy(asked.collective) && self.has_seats(asked);
        let windows = if direct || hierarchy { Windows::Scratch } else { Windows::None };
        let chosen = self.choose(&Query { windows, measured, ..self.query(asked, hierarchy) }, &self.filters)?;
        let mapped = match chosen.algorithm {
            Algorithm::Ring | Algorithm::Tree => hierarchy,
            Algorithm::Direct => direct,
            Algorithm::Pat => false,
        };
        Ok(if mapped { Path::Windows(chosen) } else { Path::Slots(chosen) })
    }

    fn query(&self, asked: Question<'_>, hierarchy: bool) -> Query {
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
    fn longest_block_bytes(&self, asked: Question<'_>) -> u64 {
        let count = match asked.count {
            CallCount::Each(count) => *count,
            CallCount::PerRank(counts) => counts.iter().copied().max().unwrap_or(0),
        };
        count.saturating_mul(u64::from(asked.data_type.size()))
    }

    /// The most bytes that any rank would write into a flat slot; `None` on overflow.
    fn flat_bytes(&self, asked: Question<'_>) -> Option<usize> {
        let ranks = u64::from(self.world.size);
        let elements = match (asked.count, asked.collective) {
            (CallCount::Each(count), Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter) => {
                count.checked_mul(ranks)?
            }
            (CallCount::Each(count), _) => *count,
            (CallCount::PerRank(counts), Collective::ReduceScatterV) => {
                counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count))?
            }
            (CallCount::PerRank(counts), _) => counts.iter().copied().max().unwrap_or(0),
        };
        usize::try_from(elements.checked_mul(u64::from(asked.data_type.size()))?).ok()
    }

    /// The program of `call`.
    pub(crate) fn program(&mut self, call: &Call<'_>, choice: Choice, windows: Windows) -> Result<Arc<Program>> {
        let means = means(choice, windows);
        let Chooser { world, layout, settings, programs, .. } = self;
        programs.of(call, *world, means, || spec(call, means, *world, layout, settings))
    }

    /// The program of a call on the memory of devices. Unless the user's filters forbid it, ranks of a host send small
    /// calls as lines ([`crate::device::lines`]), and work in `windows` for others: each other's buffers or scratch;
    /// where each scales its input by a number of its own, in scratch.
    pub(crate) fn device_program(&mut self, call: &Call<'_>, windows: Windows) -> Result<Arc<Program>> {
        let raw = !matches!(call.op, Some(ReduceOp::PreMulSum(_)));
        let (choice, windows) = match self.device_path(Question::of(call))? {
            Path::Windows(choice) => (choice, if raw { windows } else { Windows::Scratch }),
            Path::Flat => return Err(Error::internal("a flat call on a device")),
            Path::Slots(choice) => (choice, Windows::None),
        };
        let Chooser { world, settings, searched, .. } = self;
        let Some((layout, programs)) = searched else { return self.program(call, choice, windows) };
        let over_slots = windows == Windows::None;
        let choice = if over_slots { choice.on_searched(layout, settings.channels) } else { choice };
        let means = means(choice, windows);
        programs.of(call, *world, means, || spec(call, means, *world, layout, settings))
    }

    /// The path of a call on the memory of devices, the same on all ranks.
    fn device_path(&self, asked: Question<'_>) -> Result<Path> {
        let direct = self.settings.algorithms.allows(asked.collective, Algorithm::Direct)
            && self.one_host()
            && !(self.partly_staged && self.longest_block_bytes(asked) > MOST_STAGED_BYTES);
        let protocols = match self.device_protocol(asked, self.world.size)? {
            // A file has costs of processors and their memory: between GPUs of a host they count for nothing.
            Protocol::Simple => return self.path_by_simple(asked, direct, false),
            Protocol::LowLatency => &[Protocol::LowLatency],
            Protocol::LowLatency128 => &[Protocol::LowLatency128],
        };
        let (protocol, block) = (protocols[0], Bytes(self.longest_block_bytes(asked)));
        if self.settings.algorithms.allows(asked.collective, Algorithm::Direct)
            && tune::is_quick(protocol, block, self.world.size)
        {
            let channels = tune::channels(self.settings.channels);
            return Ok(Path::Slots(Choice { algorithm: Algorithm::Direct, protocol, channels }));
        }
        let query = Query { protocols, ..self.query(asked, false) };
        let filters = Filters { protocols: Filter::default(), ..self.filters.clone() };
        self.choose(&query, &filters).map(Path::Slots)
    }

    /// [`tune::choose`], alike on all ranks whatever the floating-point modes of their threads.
    fn choose(&self, query: &Query, filters: &Filters) -> Result<Choice> {
        let _mode = float_mode::standard();
        tune::choose(query, filters, &self.costs)
    }

    /// Those of the protocols `possible` that the user leaves for all of these collectives.
    fn protocols_left(&self, possible: &[Protocol], collectives: &[Collective]) -> Option<Vec<Protocol>> {
        let left = |filter: &Filter<Protocol>| {
            let allows = |protocol: &Protocol| collectives.iter().all(|asked| filter.allows(*asked, *protocol));
            possible.iter().copied().filter(allows).collect::<Vec<_>>()
        };
        // A wish that the devices cannot fulfil runs as one that host memory cannot: see `comm::filters`.
        [&self.settings.asked_protocols, &self.settings.protocols].map(left).into_iter().find(|left| !left.is_empty())
    }

    /// The protocol of a call on the memory of devices: of those that the user asks for and that all ranks can use the
    /// quickest for that much, where a rank sends its block to the others of so many `ranks`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the user's filters leave nothing.
    fn device_protocol(&self, asked: Question<'_>, ranks: u32) -> Result<Protocol> {
        let Some(left) = self.protocols_left(&self.line_ways.all, &[asked.collective]) else {
            let possible: Vec<&str> = self.line_ways.all.iter().map(|protocol| protocol.name()).collect();
            return Err(Error::invalid_argument(format!(
                "the protocols to choose from (NCCL_PROTO, Config::with_proto, --proto) have none for this {}: between \
                 these devices it runs by {}",
                asked.collective,
                possible.join(", ")
            )));
        };
        // Flags without data are all that a barrier needs.
        if asked.collective == Collective::Barrier {
            return Ok(Protocol::Simple);
        }
        Ok(tune::device_protocol(&left, Bytes(self.longest_block_bytes(asked)), ranks))
    }

    /// The protocol of a scan on the memory of devices, whose ranks are a chain: each sends to the next one alone. The
    /// same on all ranks.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the user's filters leave nothing.
    pub(crate) fn scan_protocol(&self, asked: Question<'_>) -> Result<Protocol> {
        self.device_protocol(asked, 2)
    }

    /// By what a message on the memory of devices travels that belongs to a collective, or is one by itself (`Send`):
    /// small ones as lines, where both ends can and the user's filters, of the collective and of `send`, allow it. Both
    /// ends find the same. Longer ones always go by Simple, which filters cannot take away.
    pub(crate) fn message_way(&self, message: &Message<'_>, collective: Collective) -> MessageWay {
        let between = self.line_ways.between.get(message.peer().index()).map_or(&[][..], Vec::as_slice);
        let left = self.protocols_left(between, &[Collective::Send, collective]).unwrap_or_default();
        let quickest = [Protocol::LowLatency, Protocol::LowLatency128];
        let Some(by_lines) = quickest.into_iter().find(|protocol| left.contains(protocol)) else {
            return MessageWay::SIMPLE;
        };
        let bytes = message.count().saturating_mul(u64::from(message.data_type().size()));
        let most = self.settings.most_line_message_bytes;
        let protocol = if most > 0 && bytes <= most { by_lines } else { Protocol::Simple };
        MessageWay { protocol, possible: lines::bit(Protocol::Simple) | lines::bit(by_lines) }
    }

    /// How a call on the memory of devices is run, as [`Chooser::chosen`] says it of host memory.
    ///
    /// # Errors
    /// As [`Chooser::path`].
    pub(crate) fn chosen_on_device(&self, asked: Question<'_>) -> Result<Chosen> {
        let (choice, windows) = match self.device_path(asked)? {
            Path::Windows(choice) => (choice, Windows::Scratch),
            Path::Flat => return Err(Error::internal("a flat call on a device")),
            Path::Slots(choice) => (self.on_searched(choice), Windows::None),
        };
        Ok(self.lanes(asked, choice, windows))
    }

    fn on_searched(&self, choice: Choice) -> Choice {
        match &self.searched {
            Some((layout, _)) => choice.on_searched(layout, self.settings.channels),
            None => choice,
        }
    }

    /// How ranks of one device work in each other's buffers in a call; `None` where the user's filters forbid it, or it
    /// needs more than buffers. The same on all ranks.
    ///
    /// # Errors
    /// As [`Chooser::path`].
    pub(crate) fn direct(&self, call: &Call<'_>) -> Result<Option<Choice>> {
        let asked = Question::of(call);
        let allowed = self.settings.algorithms.allows(asked.collective, Algorithm::Direct);
        Ok(match self.path_of_plans(asked, allowed, false)? {
            Path::Windows(choice) if choice.algorithm == Algorithm::Direct && self.layout.teams().len() == 1 => {
                Some(choice)
            }
            Path::Windows(_) | Path::Flat | Path::Slots(_) => None,
        })
    }

    /// The program of a rank of this device for a call that works in these windows, which the leader launches for it.
    ///
    /// # Errors
    /// Where there is no plan.
    pub(crate) fn led_program(
        &mut self,
        rank: Rank,
        call: &Call<'_>,
        (choice, windows): (Choice, Windows),
    ) -> Result<Arc<Program>> {
        let (means, world) = (means(choice, windows), World { rank, ..self.world });
        let Chooser { layout, settings, led, .. } = self;
        led.entry(rank).or_default().of(call, world, means, || spec(call, means, world, layout, settings))
    }

    /// From now on rings and trees of calls on devices follow these channels. All ranks do the same between the same
    /// calls.
    ///
    /// # Errors
    /// `InvalidArgument` for channels of other ranks.
    pub(crate) fn set_channels(&mut self, found: JoinedGpus) -> Result<()> {
        let layout = Layout::clone(&self.layout).with_rails(&found.rails).with_channels(found.orders)?;
        self.searched = Some((Arc::new(layout), Programs::default()));
        Ok(())
    }

    /// Some ranks' devices reach each other's memory, and some do not: long calls on devices follow channels from now
    /// on, which pass along links, and do not work in scratch, which lies in the host's memory then. All ranks do the
    /// same between the same calls.
    pub(crate) fn set_partly_staged(&mut self, partly_staged: bool) {
        self.partly_staged = partly_staged;
    }

    /// The protocols by which ranks can send to each other on devices. All ranks do the same between the same calls.
    pub(crate) fn set_line_ways(&mut self, ways: LineWays) {
        self.line_ways = ways;
    }

    /// Bytes that fit into a slot of a protocol between devices.
    pub(crate) fn slot_bytes(&self, protocol: Protocol) -> u64 {
        lines::payload(protocol).unwrap_or(u64::from(self.settings.sizes.shape.slot_bytes))
    }

    /// Channels that calls on devices use at most.
    pub(crate) fn device_channels(&self) -> u32 {
        let (least, most) = self.settings.channels;
        let lanes = |algorithm| self.searched.as_ref().and_then(|(layout, _)| layout.lanes_of(algorithm)).unwrap_or(0);
        let wanted = self.costs.channels.max(lanes(Algorithm::Ring)).max(lanes(Algorithm::Tree));
        wanted.max(tune::channels((1, u32::MAX))).max(least).min(most)
    }

    /// Windows of a plan for several teams: users' buffers can be reached on one host and not on the other, scratch
    /// always.
    pub(crate) fn windows_across_teams(&self, met: Windows) -> Windows {
        if self.layout.teams().len() == 1 { met } else { Windows::Scratch }
    }
}

/// What to plan for a call.
fn spec(call: &Call<'_>, means: Means, world: World, layout: &Arc<Layout>, settings: &Settings) -> Spec {
    let Means { algorithm, protocol, windows, .. } = means;
    Spec {
        collective: call.collective,
        world,
        root: call.root.unwrap_or_default(),
        count: match &call.count {
            CallCount::Each(count) => Count::Each(Elements(*count)),
            CallCount::PerRank(counts) => Count::PerRank(counts.iter().copied().map(Elements).collect()),
        },
        in_place: call.in_place(world),
        algorithm,
        protocol,
        windows,
        layout: Arc::clone(layout),
        limits: limits(means, u64::from(call.data_type.size()), settings),
    }
}

/// With what a call of this choice travels.
fn means(Choice { algorithm, protocol, channels }: Choice, windows: Windows) -> Means {
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
/// Up to here latency counts for more than the way that data takes.
const MOST_STAGED_BYTES: u64 = 64 << 10;
/// What less than half of the ranks may do for all.
const FEW_SEATS_BYTES: u64 = 64 << 10;
/// Bytes of scratch of plans without windows: the tokens of a barrier.
pub(crate) const SMALL_SCRATCH: usize = 4096;
/// Where the flat path's copy costs threads as much as the two more flags of windows (measured with `rsccl perf`).
const LOCAL_FLAT_BYTES: usize = 8 << 10;
/// Lanes of a plan with windows.
#[expect(clippy::cast_possible_truncation, reason = "a few")]
const WINDOW_CHANNELS: u32 = WINDOW_LANES as u32;
