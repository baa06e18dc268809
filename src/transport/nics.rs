//! The NICs of all ranks, as they told each other in init, and which of them two ranks use between them.

use std::collections::HashMap;
use std::fmt;

use crate::error::{Error, Result};
use crate::sync::primitive::Arc;
use crate::topo::Topology;
use crate::topo::rails::{self, DataNic, Rails, Receiving};
use crate::transport::PeerInfo;
use crate::transport::connection::{Channel, Way};
use crate::types::Rank;
use crate::wire::{Reader, Writer};

/// Whether a channel may enter a host by another NIC than it leaves by (`NCCL_CROSS_NIC`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crossing {
    /// It stays on one rail in all hosts: the channels take turns.
    Never,
    /// It enters by a NIC of its receiver: the receivers of a host take turns too.
    Allowed,
}

/// The NICs of all ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicTable {
    me: Rank,
    /// By rank. Ranks of one host mostly have the same.
    ranks: Vec<RankNics>,
    crossing: Crossing,
}

/// What each rank has told of its NICs, in rank order. Ranks of one host mostly share a list.
pub type ToldNics = Vec<Arc<[DataNic]>>;

/// What the table has of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RankNics {
    nics: Arc<[DataNic]>,
    host: u64,
    /// Its NUMA node.
    node: Option<u32>,
    /// Its place among the ranks of its host.
    place: usize,
}

/// The rails between this rank and a peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct PeerRails {
    pub(super) mine: Arc<[DataNic]>,
    pub(super) theirs: Arc<[DataNic]>,
    pub(super) rails: Rails,
}

impl NicTable {
    /// Of the ranks `peers`, in rank order, and what each of them told behind its [`PeerInfo`].
    pub fn new(me: Rank, peers: &[PeerInfo], told: ToldNics, crossing: Crossing) -> NicTable {
        let hosts = Topology::new(peers.iter().map(|peer| peer.host));
        let rank = |(peer, nics): (&PeerInfo, Arc<[DataNic]>)| RankNics {
            nics,
            host: peer.host,
            node: peer.home.node,
            place: hosts.local_ranks(peer.rank).binary_search(&peer.rank).unwrap_or(0),
        };
        NicTable { me, ranks: peers.iter().zip(told).map(rank).collect(), crossing }
    }

    /// The rails between this rank and `peer`; none inside a host.
    pub(super) fn rails(&self, peer: Rank) -> PeerRails {
        let [mine, theirs] = [self.me, peer].map(|rank| self.of(rank));
        let [own, others] =
            [mine, theirs].map(|rank| rank.map_or_else(|| Arc::from([]), |rank| Arc::clone(&rank.nics)));
        let is_far = mine.zip(theirs).is_some_and(|(mine, theirs)| mine.host != theirs.host);
        let rails = if is_far { rails::between(&own, &others) } else { Rails::default() };
        PeerRails { mine: own, theirs: others, rails }
    }

    /// Who receives what this rank's connection with `peer` carries.
    pub(super) fn receiving(&self, (peer, channel): (Rank, Channel), way: Way) -> Receiving {
        let receiver = if way == Way::Receive { self.me } else { peer };
        let (place, node) = self.of(receiver).map_or((0, None), |rank| (rank.place, rank.node));
        let is_me = way == Way::Receive;
        match self.crossing {
            Crossing::Never => Receiving { is_me, node: None, turn: channel.place() },
            Crossing::Allowed => Receiving { is_me, node, turn: place + channel.place() },
        }
    }

    /// A number that two ranks have if they are on one host.
    pub(super) fn host(&self, rank: Rank) -> Option<u64> {
        self.of(rank).map(|rank| rank.host)
    }

    fn of(&self, rank: Rank) -> Option<&RankNics> {
        self.ranks.get(rank.index())
    }
}

impl PeerRails {
    /// This rank's interfaces, rail by rail.
    pub(super) fn names(&self) -> String {
        let names: Vec<&str> = self.rails.used.iter().map(|rail| &*self.mine[rail.mine].name).collect();
        names.join(", ")
    }
}

impl fmt::Display for PeerRails {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.rails.described((&self.mine, &self.theirs)).join(", "))
    }
}

/// What a rank tells of its NICs, behind its [`PeerInfo`].
pub fn encode(nics: &[DataNic]) -> Vec<u8> {
    let mut writer = Writer::new();
    rails::encode(nics, &mut writer);
    writer.finish()
}

/// Reads what each rank has told of its NICs, in rank order, and returns it with what stands behind it.
///
/// # Errors
/// [`crate::error::Kind::Remote`] where a rank has told something else.
pub fn decode<'a>(told: impl IntoIterator<Item = (Rank, &'a [u8])>) -> Result<(ToldNics, Vec<&'a [u8]>)> {
    // A list for each host, and not for each of ten thousand ranks.
    let mut known: HashMap<&[u8], Arc<[DataNic]>> = HashMap::new();
    let (mut all, mut rests): (ToldNics, _) = (Vec::new(), Vec::new());
    let mut before: &[u8] = &[];
    for (rank, bytes) in told {
        // Mostly the ranks of a host follow each other. What begins with a whole list is that list: its first word says
        // how long it is.
        if let (Some(rest), Some(list)) = (bytes.strip_prefix(before), all.last()) {
            all.push(Arc::clone(list));
            rests.push(rest);
            continue;
        }
        let mut reader = Reader::new(bytes, "what a rank tells of its network interfaces");
        let nics = rails::decode(&mut reader).map_err(|error| {
            Error::remote(rank, format!("rank {rank} does not tell its interfaces: {}", error.message()))
        })?;
        let rest = reader.rest();
        before = &bytes[..bytes.len() - rest.len()];
        let list = known.entry(before).or_insert_with(|| nics.into());
        all.push(Arc::clone(list));
        rests.push(rest);
    }
    Ok((all, rests))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::sys::numa::ThreadHome;

    fn peers(hosts: &[u64]) -> Vec<PeerInfo> {
        let peer = |(number, host): (u32, &u64)| PeerInfo {
            rank: Rank::new(number),
            host: *host,
            process: number.into(),
            pid: number,
            space: 0,
            cores: 1,
            settings: 0,
            tuning: 0,
            home: ThreadHome { node: Some(number % 2), ..ThreadHome::default() },
            switches: [0; 4],
            is_traced: false,
        };
        (0..).zip(hosts).map(peer).collect()
    }

    fn nics(host: u8) -> Vec<DataNic> {
        let nic = |subnet: u8| DataNic {
            name: format!("eth{subnet}"),
            address: [10, subnet, 0, host].into(),
            subnet_bits: 24,
            rate_mbit: None,
            node: None,
            rail: None,
        };
        (0..2).map(nic).collect()
    }

    fn table(me: u32, hosts: &[u64], crossing: Crossing) -> NicTable {
        let told = hosts.iter().map(|host| nics(u8::try_from(*host).unwrap()).into()).collect();
        NicTable::new(Rank::new(me), &peers(hosts), told, crossing)
    }

    #[test]
    fn there_are_rails_between_hosts_and_none_inside_one() {
        let table = table(0, &[1, 2, 1], Crossing::Allowed);
        assert_eq!(table.rails(Rank::new(1)).rails.used.len(), 2);
        assert_eq!(table.rails(Rank::new(2)).rails, Rails::default());
    }

    #[test]
    fn receivers_of_a_host_take_turns_unless_channels_must_keep_their_rail() {
        let hosts = [1, 2, 2, 2];
        let turn =
            |crossing, way, peer, channel| table(0, &hosts, crossing).receiving((Rank::new(peer), channel), way).turn;
        let (message, second) = (Channel::PointToPoint, Channel::Collective(1));
        let sends = [1, 2, 3].map(|peer| turn(Crossing::Allowed, Way::Send, peer, message));
        assert_eq!(sends, [0, 1, 2]);
        assert_eq!(turn(Crossing::Allowed, Way::Send, 2, second), 3);
        assert_eq!(turn(Crossing::Allowed, Way::Receive, 3, message), 0, "this rank is the first of its host");
        assert_eq!([1, 3].map(|peer| turn(Crossing::Never, Way::Send, peer, second)), [2, 2]);
        // Both ends say the same.
        let ends = [(0, 2, Way::Send), (2, 0, Way::Receive)]
            .map(|(me, peer, way)| table(me, &hosts, Crossing::Allowed).receiving((Rank::new(peer), second), way));
        assert_eq!((ends[0].turn, ends[0].node), (ends[1].turn, ends[1].node));
    }

    #[test]
    fn what_ranks_tell_is_kept_once_and_what_is_broken_names_its_rank() {
        let mut one = encode(&nics(1));
        let two = encode(&nics(2));
        one.extend(b"rest");
        let ranks = || (0..).map(Rank::new);
        let (lists, rests) = decode(ranks().zip([&*one, &two, &one])).unwrap();
        assert!(Arc::ptr_eq(&lists[0], &lists[2]) && *lists[1] == *nics(2));
        assert_eq!(rests, [&b"rest"[..], b"", b"rest"]);
        let error = decode(ranks().zip([&*two, &two[..7]])).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)));
    }
}
