//! The path of a call on the memory of devices, its plan, and by what its messages travel.

use std::collections::HashMap;

use crate::device::lines;
use crate::engine::choose::{self, Chosen, Grounds, PlanPath, Question};
use crate::engine::programs::Programs;
use crate::error::{Error, Result};
use crate::exec::lower::MessageWay;
use crate::exec::{Call, Message, Program};
use crate::plan::{self, Layout, Windows};
use crate::reach::channel_search::{JoinedGpus, JoinedLinks, OnChannels};
use crate::reach::line_ways::LineWays;
use crate::sync::primitive::Arc;
use crate::tune::{self, Choice, Filters, Query};
use crate::types::{Algorithm, Bytes, Collective, Filter, Protocol, Rank, ReduceOp, World};

/// Chooses for the calls of one communicator on devices. All ranks make it from the same facts, between the same calls.
#[derive(Debug)]
pub(super) struct DeviceChooser {
    grounds: Arc<Grounds>,
    /// The layout on which calls are planned: the communicator's, with the channels that were searched for.
    layout: Arc<Layout>,
    programs: Programs,
    /// Which long calls follow the channels that were searched for, which pass along links.
    on_channels: OnChannels,
    /// What their links are like.
    links: JoinedLinks,
    /// The protocols by which ranks can send to each other.
    line_ways: LineWays,
    /// Of the ranks for which this one launches, by rank.
    led: HashMap<Rank, Programs>,
}

impl DeviceChooser {
    /// With the channels that rings and trees follow, if some were found.
    ///
    /// # Errors
    /// `InvalidArgument` for channels of other ranks.
    pub(super) fn new(
        grounds: &Arc<Grounds>,
        found: Option<JoinedGpus>,
        on_channels: OnChannels,
        line_ways: LineWays,
    ) -> Result<DeviceChooser> {
        let links = found.as_ref().map_or_else(JoinedLinks::default, |found| found.links);
        let layout = match found {
            Some(JoinedGpus { rails, orders, .. }) => {
                Arc::new(Layout::clone(&grounds.layout).with_rails(&rails).with_channels(orders)?)
            }
            None => Arc::clone(&grounds.layout),
        };
        let (grounds, programs, led) = (Arc::clone(grounds), Programs::default(), HashMap::new());
        Ok(DeviceChooser { grounds, layout, programs, on_channels, links, line_ways, led })
    }

    /// The program of a call. Unless the user's filters forbid it, ranks of a host send small calls as lines
    /// ([`crate::device::lines`]), and work in `windows` for others: each other's buffers or scratch; where each scales
    /// its input by a number of its own, in scratch.
    pub(super) fn program(&mut self, call: &Call<'_>, windows: Windows) -> Result<Arc<Program>> {
        let scales = matches!(call.op, Some(ReduceOp::PreMulSum(_)));
        let (choice, windows) = self.planned(Question::of(call), if scales { Windows::Scratch } else { windows })?;
        let (means, DeviceChooser { grounds, layout, programs, .. }) = (choose::means(choice, windows), self);
        let world = grounds.world;
        programs.of(call, world, means, || grounds.spec(call, means, (world, layout)))
    }

    /// The path of a call, the same on all ranks, which have met in `met` where they work in windows.
    fn path(&self, asked: Question<'_>, met: Windows) -> Result<PlanPath> {
        let direct = self.grounds.settings.algorithms.allows(asked.collective, Algorithm::Direct)
            && self.grounds.one_host()
            && !(self.on_channels == OnChannels::All && self.grounds.longest_block_bytes(asked) > MOST_STAGED_BYTES);
        let protocols = match self.protocol(asked, self.grounds.world.size)? {
            Protocol::Simple => {
                if let Some(choice) = self.along_channels(asked, met) {
                    return Ok(PlanPath::Slots(choice));
                }
                // A file has costs of processors and their memory: between GPUs of a host they count for nothing.
                return self.grounds.path_by_simple(asked, direct, false);
            }
            Protocol::LowLatency => &[Protocol::LowLatency],
            Protocol::LowLatency128 => &[Protocol::LowLatency128],
        };
        let (protocol, block) = (protocols[0], Bytes(self.grounds.longest_block_bytes(asked)));
        if self.grounds.settings.algorithms.allows(asked.collective, Algorithm::Direct)
            && tune::is_quick(protocol, block, self.grounds.world.size)
        {
            let channels = tune::channels(self.grounds.settings.channels);
            return Ok(PlanPath::Slots(Choice { algorithm: Algorithm::Direct, protocol, channels }));
        }
        let query = Query { protocols, ..self.grounds.query(asked, false) };
        let filters = Filters { protocols: Filter::default(), ..self.grounds.filters.clone() };
        self.grounds.choose(&query, &filters).map(PlanPath::Slots)
    }

    /// The choice of a long call that follows the channels; `None` for other calls, where no channels were found, and
    /// where the collective or the user's filters leave no algorithm that follows them. Costs are not asked: those of a
    /// communicator are of processors, their memory and TCP. By them all ranks would send to all, over links that other
    /// pairs use too, or rails would join the hosts. A ring comes first, because a tree of many ranks is deeper than
    /// its connections have slots; a long all-reduce of few ranks takes a tree where the links give trees more. Where
    /// all reach each other, three kinds follow them too: all, where an exchange of all with all crowds links that
    /// pairs share; those from or to one rank, where that one's link carries each block twice; those in scratch, which
    /// has two lanes, whose pieces fit a processor's cache, and leaves two thirds of the links of eight GPUs idle.
    /// Others send from all to all.
    fn along_channels(&self, asked: Question<'_>, met: Windows) -> Option<Choice> {
        let (grounds, collective) = (&self.grounds, asked.collective);
        let ranks = u64::from(grounds.world.size);
        let blocks = if plan::each_has_blocks(collective) { ranks } else { 1 };
        let bytes = grounds.longest_block_bytes(asked).saturating_mul(blocks);
        let is_ordered = grounds.settings.reproducible && collective.reduces();
        let rings = self.layout.channels().rings().len();
        let most = match self.on_channels {
            OnChannels::All => MOST_RANK_BYTES_OFF_CHANNELS,
            OnChannels::Reached if !grounds.one_host() => return None,
            OnChannels::Reached if self.links.is_crowded => MOST_RANK_BYTES_IN_CROWDS,
            OnChannels::Reached if collective.rooted() && ranks > 2 => match met {
                Windows::Scratch => MOST_RANK_BYTES_OFF_CHANNELS,
                _ => MOST_RANK_BYTES_OF_ROOT,
            },
            OnChannels::Reached
                if met == Windows::Scratch && rings > tune::channels(grounds.settings.channels) as usize =>
            {
                MOST_RANK_BYTES_IN_SCRATCH
            }
            OnChannels::Reached | OnChannels::None => return None,
        };
        if is_ordered || bytes <= ranks * most {
            return None;
        }
        let follows = |algorithm: &Algorithm| {
            self.layout.lanes_of(*algorithm).is_some()
                && plan::algorithms(collective).contains(algorithm)
                && grounds.settings.algorithms.allows(collective, *algorithm)
        };
        let prefers_trees = self.links.are_trees_wider
            && collective == Collective::AllReduce
            && bytes > ranks * MOST_RANK_BYTES_OFF_TREES
            && ranks <= u64::from(grounds.settings.sizes.shape.slots);
        let in_order =
            if prefers_trees { [Algorithm::Tree, Algorithm::Ring] } else { [Algorithm::Ring, Algorithm::Tree] };
        let algorithm = in_order.into_iter().find(follows)?;
        Some(Choice { algorithm, protocol: Protocol::Simple, channels: tune::channels(grounds.settings.channels) })
    }

    /// Those of the protocols `possible` that the user leaves for all of these collectives.
    fn protocols_left(&self, possible: &[Protocol], collectives: &[Collective]) -> Option<Vec<Protocol>> {
        let left = |filter: &Filter<Protocol>| {
            let allows = |protocol: &Protocol| collectives.iter().all(|asked| filter.allows(*asked, *protocol));
            possible.iter().copied().filter(allows).collect::<Vec<_>>()
        };
        // A wish that the devices cannot fulfil runs as one that host memory cannot: see `comm::filters`.
        [&self.grounds.settings.asked_protocols, &self.grounds.settings.protocols]
            .map(left)
            .into_iter()
            .find(|left| !left.is_empty())
    }

    /// The protocol of a call: of those that the user asks for and that all ranks can use the quickest for that much,
    /// where a rank sends its block to the others of so many `ranks`.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the user's filters leave nothing.
    fn protocol(&self, asked: Question<'_>, ranks: u32) -> Result<Protocol> {
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
        Ok(tune::device_protocol(&left, Bytes(self.grounds.longest_block_bytes(asked)), ranks))
    }

    /// The protocol of a scan, whose ranks are a chain: each sends to the next one alone. The same on all ranks.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the user's filters leave nothing.
    pub(super) fn scan_protocol(&self, asked: Question<'_>) -> Result<Protocol> {
        self.protocol(asked, 2)
    }

    /// By what a message travels that belongs to a collective, or is one by itself (`Send`): small ones as lines, where
    /// both ends can and the user's filters, of the collective and of `send`, allow it. Both ends find the same. Longer
    /// ones always go by Simple, which filters cannot take away.
    pub(super) fn message_way(&self, message: &Message<'_>, collective: Collective) -> MessageWay {
        let between = self.line_ways.between.get(message.peer().index()).map_or(&[][..], Vec::as_slice);
        let left = self.protocols_left(between, &[Collective::Send, collective]).unwrap_or_default();
        let quickest = [Protocol::LowLatency, Protocol::LowLatency128];
        let Some(by_lines) = quickest.into_iter().find(|protocol| left.contains(protocol)) else {
            return MessageWay::SIMPLE;
        };
        let bytes = message.count().saturating_mul(u64::from(message.data_type().size()));
        let most = self.grounds.settings.most_line_message_bytes;
        let protocol = if most > 0 && bytes <= most { by_lines } else { Protocol::Simple };
        MessageWay { protocol, possible: lines::bit(Protocol::Simple) | lines::bit(by_lines) }
    }

    /// How a call is run, as [`crate::engine::host_chooser::HostChooser::chosen`] says it of host memory.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where the user's filters leave nothing.
    pub(super) fn chosen(&self, asked: Question<'_>) -> Result<Chosen> {
        let (choice, windows) = self.planned(asked, Windows::Scratch)?;
        Ok(self.grounds.lanes(asked, choice, windows))
    }

    /// The choice of a call, and its windows where ranks have met in `met`.
    ///
    /// # Errors
    /// As [`DeviceChooser::chosen`].
    pub(super) fn planned(&self, asked: Question<'_>, met: Windows) -> Result<(Choice, Windows)> {
        Ok(match self.path(asked, met)? {
            PlanPath::Windows(choice) => (choice, met),
            PlanPath::Slots(choice) => (self.on_searched(choice), Windows::None),
        })
    }

    /// The layout on which calls are planned.
    pub(super) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    fn on_searched(&self, choice: Choice) -> Choice {
        choice.on_searched(&self.layout, self.grounds.settings.channels)
    }

    /// How ranks of one device work in each other's buffers in a call; `None` where the user's filters forbid it, or it
    /// needs more than buffers. The same on all ranks.
    ///
    /// # Errors
    /// As [`DeviceChooser::chosen`].
    pub(super) fn direct(&self, call: &Call<'_>) -> Result<Option<Choice>> {
        let asked = Question::of(call);
        let allowed = self.grounds.settings.algorithms.allows(asked.collective, Algorithm::Direct);
        Ok(match self.grounds.path_of_plans(asked, allowed, false)? {
            PlanPath::Windows(choice)
                if choice.algorithm == Algorithm::Direct && self.grounds.layout.teams().len() == 1 =>
            {
                Some(choice)
            }
            PlanPath::Windows(_) | PlanPath::Slots(_) => None,
        })
    }

    /// The program of a rank of this device for a call that works in these windows, which the leader launches for it.
    ///
    /// # Errors
    /// Where there is no plan.
    pub(super) fn led_program(
        &mut self,
        rank: Rank,
        call: &Call<'_>,
        (choice, windows): (Choice, Windows),
    ) -> Result<Arc<Program>> {
        let DeviceChooser { grounds, led, .. } = self;
        let (means, world) = (choose::means(choice, windows), World { rank, ..grounds.world });
        led.entry(rank).or_default().of(call, world, means, || grounds.spec(call, means, (world, &grounds.layout)))
    }

    /// Bytes that fit into a slot of a protocol between devices.
    pub(super) fn slot_bytes(&self, protocol: Protocol) -> u64 {
        lines::payload(protocol).unwrap_or(u64::from(self.grounds.settings.sizes.shape.slot_bytes))
    }

    /// Channels that calls use at most.
    pub(super) fn channels(&self) -> u32 {
        let (least, most) = self.grounds.settings.channels;
        let lanes = |algorithm| self.layout.lanes_of(algorithm).unwrap_or(0);
        let wanted = self.grounds.costs.channels.max(lanes(Algorithm::Ring)).max(lanes(Algorithm::Tree));
        wanted.max(tune::channels((1, u32::MAX))).max(least).min(most)
    }
}

/// Up to here latency counts for more than the way that data takes.
const MOST_STAGED_BYTES: u64 = 64 << 10;
/// The same of all blocks together, for each rank, where calls may follow channels: by simulations, a ring of the 8
/// GPUs of a mesh is as fast as an exchange of all with all at 1 MiB, and one of the 72 of a rack overtakes rails
/// between hosts from 8 MiB on.
const MOST_RANK_BYTES_OFF_CHANNELS: u64 = 128 << 10;
/// The same where ways of many pairs share links: by simulations of 8 GPUs on PCI Express.
const MOST_RANK_BYTES_IN_CROWDS: u64 = 64 << 10;
/// The same up to which an all-reduce follows rings, though trees have more of the links: by simulations of 8 GPUs that
/// two sockets share, a tree is as fast as a ring at 4 MiB.
const MOST_RANK_BYTES_OFF_TREES: u64 = 512 << 10;
/// The same where all reach each other and a call has a root and registered buffers: by simulations of 4 GPUs with
/// links and 8 at a switch.
const MOST_RANK_BYTES_OF_ROOT: u64 = 512 << 10;
/// The same where all reach each other and a call works in scratch: by simulations of eight GPUs at a switch, an
/// all-reduce of 1 MiB is twice as fast in scratch, one of 4 MiB half as fast, and one of 256 MiB takes three times as
/// long.
const MOST_RANK_BYTES_IN_SCRATCH: u64 = 256 << 10;
