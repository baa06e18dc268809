//! What communicators choose on a system that is described and not there, for `rsccl sim`: their own choosers, on facts
//! of a description in place of what ranks tell each other.

use crate::config::Config;
use crate::engine::choose::{self, Grounds, Question};
use crate::engine::device_chooser::DeviceChooser;
use crate::engine::host_chooser::HostChooser;
use crate::error::Result;
use crate::exec::CallCount;
use crate::plan::{Layout, Spec, Windows};
use crate::reach::channel_search::JoinedGpus;
pub use crate::reach::channel_search::{JoinedLinks, OnChannels};
use crate::reach::line_ways::LineWays;
use crate::session::settings::Settings;
use crate::sync::primitive::Arc;
use crate::topo::layout::ChannelOrders;
use crate::tune::{self, Choice, RingSizes};
use crate::types::{Algorithm, Collective, DataType, Protocol, Rank, World};

/// The choices of a communicator whose ranks are processes that stand where a description says.
#[derive(Debug)]
pub struct Foreseen {
    grounds: Arc<Grounds>,
    side: ForeseenSide,
    /// Whether users register their buffers.
    registered: bool,
}

#[derive(Debug)]
enum ForeseenSide {
    Host(HostChooser),
    Device(DeviceChooser),
}

/// Where the ranks stand, and by what they choose.
#[derive(Debug, Clone, Copy)]
pub struct ForeseenRanks<'a> {
    /// The ranks of each host, or of each part of one whose ranks share memory.
    pub hosts: &'a [Vec<Rank>],
    /// The least processors that a rank may use.
    pub cores: u32,
    /// Resolved.
    pub config: &'a Config,
    /// The slots of connections, where they are not those of `config`.
    pub ring: RingSizes,
    /// Whether users register their buffers.
    pub registered: bool,
}

/// What is known of the GPUs on which the ranks stand, one each.
#[derive(Debug, Clone)]
pub struct ForeseenGpus {
    /// The channels that were searched for.
    pub orders: Option<ChannelOrders>,
    /// The rail of each rank's nearest NIC.
    pub rails: Vec<Option<u32>>,
    /// Which long calls follow the channels.
    pub on_channels: OnChannels,
    /// What their links are like.
    pub links: JoinedLinks,
    /// The protocols by which all can send to all.
    pub protocols: Vec<Protocol>,
}

/// How a call runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeseenWay {
    /// What was chosen.
    pub choice: Choice,
    /// In which memory of peers the call works.
    pub windows: Windows,
    /// Whether it runs by flat slots, which are no plan: the choice is that of a plan which does the same.
    pub is_flat: bool,
}

/// A call of all ranks, with rank 0 as root where it has one.
#[derive(Debug, Clone)]
pub struct ForeseenCall {
    collective: Collective,
    count: CallCount,
}

impl ForeseenCall {
    /// A collective of so many elements of [`ELEMENT`]: of the whole buffer, or of one rank's block.
    pub fn new(collective: Collective, elements: u64) -> ForeseenCall {
        ForeseenCall { collective, count: CallCount::Each(elements) }
    }

    fn asked(&self) -> Question<'_> {
        Question { collective: self.collective, data_type: ELEMENT, count: &self.count }
    }
}

impl Foreseen {
    /// Ranks on the processors of hosts.
    ///
    /// # Errors
    /// Of settings and of the file of costs; where `hosts` do not have each rank once.
    pub fn on_processors(ranks: ForeseenRanks<'_>) -> Result<Foreseen> {
        let grounds = grounds(ranks)?;
        let side = ForeseenSide::Host(HostChooser::new(&grounds));
        Ok(Foreseen { grounds, side, registered: ranks.registered })
    }

    /// A rank on each GPU.
    ///
    /// # Errors
    /// As [`Foreseen::on_processors`]; for channels of other ranks.
    pub fn on_gpus(ranks: ForeseenRanks<'_>, gpus: ForeseenGpus) -> Result<Foreseen> {
        let ForeseenGpus { orders, rails, on_channels, links, protocols } = gpus;
        let grounds = grounds(ranks)?;
        let found = orders.map(|orders| JoinedGpus::described(orders, rails, links));
        let line_ways = LineWays { all: protocols, ..LineWays::simple(grounds.world.size) };
        let side = ForeseenSide::Device(DeviceChooser::new(&grounds, found, on_channels, line_ways)?);
        Ok(Foreseen { grounds, side, registered: ranks.registered })
    }

    /// How a call runs, by the same functions as in a communicator.
    ///
    /// # Errors
    /// Where the user's filters leave nothing.
    pub fn way(&self, call: &ForeseenCall) -> Result<ForeseenWay> {
        let asked = call.asked();
        let (windows, planned) = match &self.side {
            ForeseenSide::Host(chooser) => {
                let met = if self.registered { Windows::User } else { Windows::Scratch };
                (met, chooser.planned(asked, met)?)
            }
            ForeseenSide::Device(chooser) => {
                let met = if self.registered { Windows::Symmetric } else { Windows::Scratch };
                (met, Some(chooser.planned(asked, met)?))
            }
        };
        Ok(match planned {
            Some((choice, windows)) => ForeseenWay { choice, windows, is_flat: false },
            None => {
                let channels = tune::channels(self.grounds.settings.channels);
                let choice = Choice { algorithm: Algorithm::Direct, protocol: Protocol::Simple, channels };
                ForeseenWay { choice, windows, is_flat: true }
            }
        })
    }

    /// What a rank plans.
    pub fn spec(&self, call: &ForeseenCall, way: ForeseenWay, rank: Rank) -> Spec {
        let (means, layout) = (choose::means(way.choice, way.windows), self.layout());
        let world = World { rank, ..self.grounds.world };
        self.grounds.spec_of(call.asked(), (Rank::default(), false), means, (world, layout))
    }

    fn layout(&self) -> &Arc<Layout> {
        match &self.side {
            ForeseenSide::Host(_) => &self.grounds.layout,
            ForeseenSide::Device(chooser) => chooser.layout(),
        }
    }
}

fn grounds(ranks: ForeseenRanks<'_>) -> Result<Arc<Grounds>> {
    let ForeseenRanks { hosts, cores, config, ring, .. } = ranks;
    let layout = Layout::of_hosts(hosts)?;
    let mut settings = Settings::read(config)?;
    settings.sizes.shape.slots = ring.slots;
    settings.sizes.shape.slot_bytes = ring.slot_bytes;
    let world = World { rank: Rank::default(), size: u32::try_from(layout.size()).unwrap_or(u32::MAX) };
    Ok(Arc::new(Grounds::new(world, (layout, tune::BETWEEN_PROCESSES, cores), &settings)))
}

/// The type of the elements: the usual one of gradients.
pub const ELEMENT: DataType = DataType::F32;
