//! The order in which channels pass the ranks of a communicator, where a search has found one.

use crate::error::{Error, Result};
use crate::topo::layout::Layout;
use crate::types::{Algorithm, Rank};

/// The order of one channel: the ranks of each domain, and the domains after each other. A domain is a host, or the
/// hosts of an NVLink clique.
pub type ChannelOrder = Vec<Vec<Rank>>;

/// In which order each channel passes the ranks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChannelOrders {
    rings: Vec<ChannelOrder>,
    chains: Vec<ChannelOrder>,
}

/// Where a lane stands among channels that were searched for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SearchedLane<'a> {
    /// The ranks, domain by domain. The last rank of a ring sends to the first. Of a tree, each domain's ranks are a
    /// chain, whose first rank talks to other domains.
    pub order: &'a ChannelOrder,
    /// Whether the lane uses the second of the two trees between domains.
    pub second_tree: bool,
}

impl ChannelOrders {
    /// The orders of `ranks` ranks: of rings, and of the chains that trees are made of.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] where a channel does not pass each rank once.
    pub fn new(ranks: usize, rings: Vec<ChannelOrder>, chains: Vec<ChannelOrder>) -> Result<ChannelOrders> {
        for (name, orders) in [("ring", &rings), ("chain", &chains)] {
            for (channel, order) in orders.iter().enumerate() {
                let mut seen = vec![0_u32; ranks];
                for rank in order.iter().flatten() {
                    if let Some(times) = seen.get_mut(rank.index()) {
                        *times += 1;
                    }
                }
                let of_others = order.iter().map(Vec::len).sum::<usize>() != ranks || order.iter().any(Vec::is_empty);
                if let Some(rank) = seen.iter().position(|times| *times != 1).or_else(|| of_others.then_some(ranks)) {
                    let times = seen.get(rank).copied().unwrap_or_default();
                    let what = format!("the {name} of channel {channel} passes rank {rank} {times} times");
                    return Err(Error::invalid_argument(format!("{what}: each of {ranks} ranks must be passed once")));
                }
            }
        }
        Ok(ChannelOrders { rings, chains })
    }

    /// The order of each ring.
    pub fn rings(&self) -> &[ChannelOrder] {
        &self.rings
    }

    /// The order of each tree's chains.
    pub fn chains(&self) -> &[ChannelOrder] {
        &self.chains
    }

    fn of(&self, algorithm: Algorithm) -> &[ChannelOrder] {
        match algorithm {
            Algorithm::Ring => &self.rings,
            Algorithm::Tree => &self.chains,
            Algorithm::Direct | Algorithm::Pat => &[],
        }
    }
}

impl Layout {
    /// The same layout, whose rings and trees over slots pass the ranks in these orders.
    ///
    /// # Errors
    /// [`crate::error::Kind::InvalidArgument`] for orders of another number of ranks.
    #[doc(hidden)]
    pub fn with_channels(self, channels: ChannelOrders) -> Result<Layout> {
        let all = channels.rings.iter().chain(&channels.chains);
        let mut others =
            all.map(|order| order.iter().map(Vec::len).sum::<usize>()).filter(|ranks| *ranks != self.size());
        match others.next() {
            Some(ranks) => {
                let size = self.size();
                Err(Error::invalid_argument(format!("channels of {ranks} ranks for a layout of {size}")))
            }
            None => Ok(Layout { channels, ..self }),
        }
    }

    /// The same layout, in whose teams the ranks stand by `rails`, so that the ranks of one seat are on one rail in all
    /// teams. Where a rank has no rail, or the teams do not all have the same rails, it stays as it is.
    #[doc(hidden)]
    #[must_use]
    pub fn with_rails(self, rails: &[Option<u32>]) -> Layout {
        let of = |rank: &Rank| rails.get(rank.index()).copied().flatten();
        let mut teams = self.teams.clone();
        teams.iter_mut().for_each(|team| team.sort_by_key(of));
        let seated = |team: &Vec<Rank>| team.iter().map(of).collect::<Option<Vec<u32>>>();
        let seats: Vec<Option<Vec<u32>>> = teams.iter().map(seated).collect();
        let same = seats.first().is_some_and(|first| first.is_some() && seats.iter().all(|seats| seats == first));
        if same { Layout { teams, ..self } } else { self }
    }

    /// The orders that were searched for; empty where none were.
    #[doc(hidden)]
    pub fn channels(&self) -> &ChannelOrders {
        &self.channels
    }

    /// How many lanes use all that a search has found for an algorithm. Between domains that is one for each ring, and
    /// two for each chain, since there are two trees. Inside one it is one for each chain and, where rings are few, two
    /// for each ring: while one lane waits for the rank before it, its links would idle (`bench/NOTES.md`, "Two lanes
    /// on each ring"). `None` where nothing was searched for.
    #[doc(hidden)]
    pub fn lanes_of(&self, algorithm: Algorithm) -> Option<u32> {
        let found = self.channels.of(algorithm);
        let is_between = found.iter().any(|order| order.len() > 1);
        let lanes = match algorithm {
            Algorithm::Tree if is_between => 2,
            Algorithm::Ring if !is_between && found.len() * 2 <= MOST_DOUBLED_LANES => 2,
            Algorithm::Ring | Algorithm::Tree | Algorithm::Direct | Algorithm::Pat => 1,
        };
        u32::try_from(found.len() * lanes).ok().filter(|lanes| *lanes > 0)
    }

    /// Which channel a lane of an algorithm over slots follows; `None` where nothing was searched for.
    #[doc(hidden)]
    pub fn searched(&self, algorithm: Algorithm, lane: usize) -> Option<SearchedLane<'_>> {
        let found = self.channels.of(algorithm);
        let channel = lane.checked_rem(found.len())?;
        // Two lanes of one channel are on different trees, and so are lanes that follow each other.
        Some(SearchedLane { order: &found[channel], second_tree: (lane / found.len() + channel) % 2 == 1 })
    }
}

/// Lanes up to which each ring inside a domain has two. Each lane is a block of threads, and by simulations twelve
/// rings of a mesh gain 1 % by a second lane each.
const MOST_DOUBLED_LANES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn ranks(numbers: &[u32]) -> Vec<Rank> {
        numbers.iter().copied().map(Rank::new).collect()
    }

    #[test]
    fn every_channel_passes_every_rank_once() {
        let good = vec![ranks(&[1, 0]), ranks(&[2])];
        assert!(ChannelOrders::new(3, vec![good.clone()], vec![good.clone()]).is_ok());
        for wrong in [
            vec![ranks(&[0, 1])],
            vec![ranks(&[0, 1, 1])],
            vec![ranks(&[0, 1, 2, 3])],
            vec![ranks(&[0, 1, 2]), ranks(&[])],
        ] {
            let error = ChannelOrders::new(3, vec![good.clone()], vec![wrong]).unwrap_err();
            assert!(error.message().contains("the chain of channel 0 passes rank"), "{error}");
        }
        let layout = Layout::of_hosts(&[ranks(&[0, 1])]).unwrap();
        let orders = ChannelOrders::new(3, vec![good.clone()], vec![good]).unwrap();
        assert!(layout.with_channels(orders).unwrap_err().message().contains("channels of 3 ranks for a layout of 2"));
    }

    #[test]
    fn lanes_take_channels_in_turn_and_both_trees_of_each() {
        let order = |first: u32| vec![ranks(&[first, 1 - first]), ranks(&[2])];
        let orders = ChannelOrders::new(3, vec![order(0)], vec![order(0), order(1), order(0)]).unwrap();
        let layout = Layout::of_hosts(&[ranks(&[0, 1]), ranks(&[2])]).unwrap().with_channels(orders).unwrap();
        assert_eq!((layout.lanes_of(Algorithm::Ring), layout.lanes_of(Algorithm::Tree)), (Some(1), Some(6)));
        assert_eq!((layout.lanes_of(Algorithm::Direct), layout.searched(Algorithm::Pat, 0)), (None, None));
        for channel in 0..3 {
            let [one, two] = [channel, channel + 3].map(|lane| layout.searched(Algorithm::Tree, lane).unwrap());
            assert_eq!(one.order, two.order);
            assert_ne!(one.second_tree, two.second_tree, "channel {channel}");
        }
    }

    #[test]
    fn seats_follow_rails_where_all_teams_have_the_same() {
        let layout = || Layout::of_hosts(&[ranks(&[0, 1]), ranks(&[2, 3])]).unwrap();
        let teams = |rails: &[Option<u32>]| layout().with_rails(rails).teams().to_vec();
        // The cables of the second host are the other way round.
        assert_eq!(teams(&[Some(7), Some(9), Some(9), Some(7)]), [ranks(&[0, 1]), ranks(&[3, 2])]);
        assert_eq!(teams(&[Some(7), Some(9), Some(9), None]), layout().teams());
        assert_eq!(teams(&[Some(7), Some(9), Some(9), Some(8)]), layout().teams());
    }
}
