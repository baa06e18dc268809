//! What the ranks of my host see of its GPUs, as all ranks tell each other in init: a placement follows from it without
//! a message, also in the children of splits and shrinks.

use crate::error::{Error, Result};
use crate::sys::gpus::MAX_GPUS;
use crate::topo::affinity::{Device, Seat};
use crate::transport::PeerInfo;
use crate::types::Rank;
use crate::wire::{Reader, Writer};

/// The ranks of my host, in rank order, and what each sees.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostSeats(Vec<(Rank, Seat)>);

impl HostSeats {
    /// From what all ranks told behind their [`PeerInfo`], in rank order: of those on the host of `mine`.
    ///
    /// # Errors
    /// [`crate::error::Kind::Remote`] where one has told something else than a seat.
    pub fn gathered<'a>(
        mine: &PeerInfo,
        told: impl IntoIterator<Item = (&'a PeerInfo, &'a [u8])>,
    ) -> Result<HostSeats> {
        let here = told.into_iter().filter(|(peer, _)| peer.host == mine.host);
        let seat = |(PeerInfo { rank, .. }, bytes): (&PeerInfo, &[u8])| {
            let broken = |error: Error| {
                Error::remote(*rank, format!("rank {rank} does not tell its place: {}", error.message()))
            };
            Ok((*rank, decode(bytes).map_err(broken)?))
        };
        here.map(seat).collect::<Result<_>>().map(HostSeats)
    }

    /// Those of a child whose rank i is rank `members[i]` here.
    pub fn of_child(&self, members: &[Rank]) -> HostSeats {
        let seat_of = |member: Rank| self.0.iter().find(|(rank, _)| *rank == member).map(|(_, seat)| seat.clone());
        let seats = (0..).map(Rank::new).zip(members).filter_map(|(rank, member)| Some((rank, seat_of(*member)?)));
        HostSeats(seats.collect())
    }

    /// The seats, in rank order.
    pub fn seats(&self) -> Vec<Seat> {
        self.0.iter().map(|(_, seat)| seat.clone()).collect()
    }
}

/// A seat, as a rank tells it behind its [`PeerInfo`].
pub fn encode(seat: &Seat) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.u64(encode_node(seat.node));
    for device in &seat.devices {
        writer.text(&device.id).u64(encode_node(device.node));
    }
    writer.finish()
}

fn decode(bytes: &[u8]) -> Result<Seat> {
    let mut reader = Reader::new(bytes, "what a rank tells of its place");
    let node = decode_node(reader.u64()?);
    let mut devices = Vec::new();
    while !reader.rest().is_empty() {
        if devices.len() == MAX_GPUS {
            return Err(reader.malformed("more GPUs than a host may have"));
        }
        devices.push(Device { id: reader.text(MAX_ID_BYTES)?, node: decode_node(reader.u64()?) });
    }
    reader.finish()?;
    Ok(Seat { node, devices })
}

fn encode_node(node: Option<u32>) -> u64 {
    node.map_or(0, |node| u64::from(node) + 1)
}

fn decode_node(value: u64) -> Option<u32> {
    value.checked_sub(1).and_then(|node| u32::try_from(node).ok())
}

/// Longer than what names a GPU or a part of one in `CUDA_VISIBLE_DEVICES` (`MIG-GPU-…/1/0`, 52 bytes).
const MAX_ID_BYTES: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Kind;
    use crate::sys::numa::ThreadHome;
    use crate::transport::SWITCH_LAYERS;
    use proptest::collection;
    use proptest::prelude::*;

    fn peer(rank: u32, host: u64) -> PeerInfo {
        PeerInfo {
            rank: Rank::new(rank),
            host,
            process: 0,
            pid: 0,
            space: 0,
            cores: 1,
            settings: 0,
            tuning: 0,
            home: ThreadHome::default(),
            switches: [0; SWITCH_LAYERS],
            is_traced: false,
        }
    }

    fn seat(node: u32) -> Seat {
        Seat { node: Some(node), devices: vec![Device { id: format!("0000:0{node}:00.0"), node: Some(node) }] }
    }

    #[test]
    fn a_child_has_the_seats_of_its_ranks_on_my_host() {
        let peers = [9, 4, 9, 9].into_iter().zip(0..).map(|(host, rank)| peer(rank, host)).collect::<Vec<_>>();
        let told: Vec<Vec<u8>> = (0..4).map(|node| encode(&seat(node))).collect();
        let all = HostSeats::gathered(&peers[0], peers.iter().zip(told.iter().map(Vec::as_slice))).unwrap();
        assert_eq!(all.seats(), [seat(0), seat(2), seat(3)]);
        let child = all.of_child(&[Rank::new(3), Rank::new(1), Rank::new(0)]);
        assert_eq!(child.seats(), [seat(3), seat(0)]);
        assert_eq!(child.of_child(&[Rank::new(2)]).seats(), [seat(0)], "rank 2 there is rank 0 here");
    }

    #[test]
    fn a_rank_that_tells_nothing_is_named() {
        let peers = [peer(0, 1), peer(1, 1)];
        let told = [encode(&seat(0)), Vec::new()];
        let error = HostSeats::gathered(&peers[0], peers.iter().zip(told.iter().map(Vec::as_slice))).unwrap_err();
        assert_eq!((error.kind(), error.peer()), (Kind::Remote, Some(1)));
    }

    proptest! {
        #[test]
        fn seats_come_back(node: Option<u32>, devices in collection::vec(("[ -~]{0,64}", any::<u32>()), 0..9)) {
            let node_of = |number: u32| number.is_multiple_of(2).then_some(number);
            let devices = devices.into_iter().map(|(id, node)| Device { id, node: node_of(node) }).collect();
            let seat = Seat { node, devices };
            prop_assert_eq!(decode(&encode(&seat)).unwrap(), seat);
        }

        #[test]
        fn any_bytes_are_a_seat_or_an_error(bytes in collection::vec(any::<u8>(), 0..200)) {
            let _refused = decode(&bytes);
        }
    }
}
