//! Which ranks of different hosts reach each other's GPU memory: over the NVSwitches of a rack (multi-node NVLink).
//!
//! NVML says which GPUs are of one clique. Whether memory crosses depends on more: a channel and a daemon of IMEX on
//! both hosts, the fabric's state, a container's rights. A rank's import of its own handle proves nothing of another
//! host. So each rank makes a little memory, and all ranks of its clique on other hosts map it and read its length
//! there, which is random. A pair works in each other's memory if both could do that; any failure leaves the pair to
//! NET.

use crate::device::{self, DeviceIdentity, FabricClique, FabricHandle, Home, Region, Sharing};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::sync::Wait;
use crate::sys::random;
use crate::topo::transport_choice::ladder::OTHER_CLIQUE;
use crate::types::{Rank, World};
use crate::wire::{self, Reader, Writer};

/// The pairs that do, the same on all ranks, and why the others do not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Crossings {
    /// The device of each rank.
    devices: Vec<DeviceIdentity>,
    /// The host of each rank.
    hosts: Vec<usize>,
    /// Of each rank the peers, in order.
    peers: Vec<Vec<Rank>>,
    /// What each rank has offered; none where all ranks are on one host.
    offers: Vec<Offer>,
    /// What each rank could map; none where nobody had anything to map.
    trials: Vec<Trial>,
}

/// What a rank tells all others first.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Offer {
    /// Whether it is an error if it does not reach all ranks of other hosts.
    must: bool,
    /// Memory to try; else why there is none.
    memory: std::result::Result<OfferedMemory, String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OfferedMemory {
    clique: FabricClique,
    handle: FabricHandle,
    bytes: u32,
}

/// What came of the attempts of a rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Trial {
    /// Of each rank whether its memory was mapped.
    mapped: Vec<bool>,
    /// The first failure; empty if there was none.
    reason: String,
}

impl Crossings {
    /// All ranks, of these devices and hosts, find out together. It is no error where a pair does not reach each other,
    /// unless a rank insists. Collective.
    ///
    /// # Errors
    /// Of the exchange; [`crate::error::Kind::InvalidUsage`] on all ranks where one insists.
    pub fn find(
        session: &Session,
        home: Home,
        (devices, hosts): (&[DeviceIdentity], &[usize]),
        wait: &Wait,
    ) -> Result<Crossings> {
        let (world, bootstrap) = (session.world, &session.bootstrap);
        let mut found = Crossings {
            devices: devices.to_vec(),
            hosts: hosts.to_vec(),
            peers: vec![Vec::new(); hosts.len()],
            offers: Vec::new(),
            trials: Vec::new(),
        };
        if hosts.iter().all(|host| *host == hosts[0]) {
            return Ok(found);
        }
        let prepared = prepare(session, home);
        let must = session.settings.needs_mnnvl;
        let mine = Offer { must, memory: prepared.as_ref().map(|(offered, _)| *offered).map_err(Clone::clone) };
        let told = bootstrap.all_gather(&mine.encode(), wait)?;
        let offers = world.ranks().zip(&told).map(|(rank, bytes)| Offer::decode(rank, bytes));
        found.offers = offers.collect::<Result<_>>()?;
        let is_tried = |rank: Rank, peer: Rank| found.tried(rank, peer).is_some();
        if world.ranks().any(|rank| world.ranks().any(|peer| is_tried(rank, peer))) {
            let mine = found.try_all(world, home);
            let told = bootstrap.all_gather(&mine.encode(), wait)?;
            let trials = world.ranks().zip(&told).map(|(rank, bytes)| Trial::decode((rank, told.len()), bytes));
            found.trials = trials.collect::<Result<_>>()?;
        }
        // The others have mapped what they could by now.
        drop(prepared);
        found.join();
        found.check(world)?;
        Ok(found)
    }

    /// Ranks of which those of one clique have mapped each other's memory, and those without one offer none.
    #[cfg(all(test, not(loom)))]
    pub(super) fn of_cliques(
        devices: &[DeviceIdentity],
        hosts: &[usize],
        cliques: &[std::result::Result<u32, String>],
    ) -> Crossings {
        let memory = |number: u32| OfferedMemory {
            clique: FabricClique { cluster: [1; 16], number },
            handle: FabricHandle([0; 64]),
            bytes: 1,
        };
        let offer =
            |clique: &std::result::Result<u32, String>| Offer { must: false, memory: clique.clone().map(memory) };
        let trial = Trial { mapped: vec![true; hosts.len()], reason: String::new() };
        let mut found = Crossings {
            devices: devices.to_vec(),
            hosts: hosts.to_vec(),
            peers: vec![Vec::new(); hosts.len()],
            offers: cliques.iter().map(offer).collect(),
            trials: vec![trial; hosts.len()],
        };
        found.join();
        found
    }

    /// The memory of `peer` that `rank` tries to map; `None` where there is nothing to try.
    fn tried(&self, rank: Rank, peer: Rank) -> Option<OfferedMemory> {
        let (one, other) = (rank.index(), peer.index());
        if self.hosts[one] == self.hosts[other] || self.devices[one] == self.devices[other] {
            return None;
        }
        let offered = |rank: usize| self.offers.get(rank)?.memory.as_ref().ok().copied();
        let (mine, theirs) = (offered(one)?, offered(other)?);
        (mine.clique == theirs.clique).then_some(theirs)
    }

    /// Maps what the peers have offered, for a moment.
    fn try_all(&self, world: World, home: Home) -> Trial {
        let mut trial = Trial { mapped: vec![false; self.offers.len()], reason: String::new() };
        for peer in world.ranks() {
            let Some(offered) = self.tried(world.rank, peer) else { continue };
            // Importing reads the length that the owner has written into the memory, and compares it.
            let imported =
                device::fabric_of(home).and_then(|own| own.import_fabric(&offered.handle, offered.bytes as usize));
            match imported {
                Ok(_mapped) => trial.mapped[peer.index()] = true,
                Err(error) if trial.reason.is_empty() => {
                    wire::cut(error.message(), MOST_REASON_BYTES).clone_into(&mut trial.reason);
                }
                Err(_further) => {}
            }
        }
        trial
    }

    /// Notes the pairs of which each has mapped the other's memory.
    fn join(&mut self) {
        let ranks = || (0..).map(Rank::new).take(self.offers.len());
        let mapped = |rank: Rank, peer: Rank| self.has_mapped(rank, peer) && self.tried(rank, peer).is_some();
        let of = |rank: Rank| ranks().filter(|peer| mapped(rank, *peer) && mapped(*peer, rank)).collect();
        self.peers = ranks().map(of).collect();
    }

    /// # Errors
    /// Where a rank insists on what there is not.
    fn check(&self, world: World) -> Result<()> {
        for rank in world.ranks().filter(|rank| self.offers[rank.index()].must) {
            let is_far = |peer: &Rank| self.hosts[peer.index()] != self.hosts[rank.index()];
            let apart = |peer: Rank| Some((peer, self.why_not(rank, peer)?));
            if let Some((peer, why)) = world.ranks().filter(is_far).find_map(apart) {
                return Err(Error::invalid_usage(format!(
                    "NCCL_MNNVL_ENABLE is 1 on rank {rank}, which does not reach the GPU memory of rank {peer} on \
                     another host: {why}; set it to 2 to go by NET where NVLinks do not lead"
                )));
            }
        }
        Ok(())
    }

    /// Whether two ranks of different hosts reach each other's memory.
    pub fn joins(&self, rank: Rank, peer: Rank) -> bool {
        self.peers_of(rank).binary_search(&peer).is_ok()
    }

    /// Whether ranks of different hosts all reach each other's memory; not where all are on one host.
    pub fn join_all(&self) -> bool {
        let near = |rank: usize| self.hosts.iter().filter(|host| **host == self.hosts[rank]).count();
        let ranks = self.hosts.len();
        (0..ranks).all(|rank| near(rank) < ranks && near(rank) + self.peers[rank].len() == ranks)
    }

    /// The ranks of other hosts whose memory `rank` reaches, and they its, in order.
    pub(super) fn peers_of(&self, rank: Rank) -> &[Rank] {
        &self.peers[rank.index()]
    }

    /// Why two ranks of different hosts do not; `None` where they do.
    pub(super) fn why_not(&self, rank: Rank, peer: Rank) -> Option<String> {
        if self.joins(rank, peer) {
            return None;
        }
        if self.devices[rank.index()] == self.devices[peer.index()] {
            return Some("both ranks are on one GPU".to_owned());
        }
        for rank in [rank, peer] {
            if let Some(Err(reason)) = self.offers.get(rank.index()).map(|offer| &offer.memory) {
                return Some(format!("rank {rank}: {reason}"));
            }
        }
        if self.tried(rank, peer).is_none() {
            return Some(OTHER_CLIQUE.to_owned());
        }
        let has_failed = |(one, other): &(Rank, Rank)| !self.has_mapped(*one, *other);
        let (one, other) = [(rank, peer), (peer, rank)].into_iter().find(has_failed)?;
        // A rank tells its first failure alone.
        let reason = self.trials.get(one.index()).map_or("", |trial| &trial.reason);
        Some(format!("rank {one} could not map memory of rank {other}: {reason}"))
    }

    fn has_mapped(&self, rank: Rank, peer: Rank) -> bool {
        let told = self.trials.get(rank.index()).and_then(|trial| trial.mapped.get(peer.index()));
        told == Some(&true)
    }
}

/// A little memory for others to try, and what tells of it; or why there is none.
fn prepare(session: &Session, home: Home) -> std::result::Result<(OfferedMemory, Region), String> {
    let settings = &session.settings;
    if let Some(reason) = settings.ways.forbids_crossing() {
        return Err(reason.to_owned());
    }
    let device = device::of(home).map_err(|error| error.message().to_owned())?;
    let fabric = device.fabric_memory().ok_or_else(|| device::no_fabric(home))?;
    let clique = fabric.fabric_clique()?;
    let make = || -> Result<(OfferedMemory, Region)> {
        let bytes = trial_bytes()?;
        let memory = device.allocate(bytes as usize, Sharing::Hosts)?;
        Ok((OfferedMemory { clique, handle: fabric.fabric_handle(&memory)?, bytes }, memory))
    };
    make().map_err(|error| wire::cut(error.message(), MOST_REASON_BYTES).to_owned())
}

/// A random length that leaves room behind it, where its device notes it.
fn trial_bytes() -> Result<u32> {
    let random = u32::from_le_bytes(random::bytes()?);
    Ok(random % MOST_TRIAL_BYTES / LENGTH_STEP * LENGTH_STEP + 1)
}

impl Offer {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.u8(u8::from(self.must)).u8(u8::from(self.memory.is_ok()));
        match &self.memory {
            Ok(OfferedMemory { clique, handle, bytes }) => {
                writer.raw(&clique.cluster).u32(clique.number).raw(&handle.0).u32(*bytes);
            }
            Err(reason) => _ = writer.text(wire::cut(reason, MOST_REASON_BYTES)),
        }
        writer.finish()
    }

    fn decode(rank: Rank, bytes: &[u8]) -> Result<Offer> {
        let read = || -> Result<Offer> {
            let mut reader = Reader::new(bytes, "what a rank offers to other hosts");
            let must = reader.u8()? != 0;
            let memory = if reader.u8()? == 0 {
                Err(reader.text(MOST_REASON_BYTES)?)
            } else {
                let clique = FabricClique { cluster: reader.array()?, number: reader.u32()? };
                let (handle, bytes) = (FabricHandle(reader.array()?), reader.u32()?);
                if bytes == 0 || bytes > MOST_TRIAL_BYTES {
                    return Err(reader.malformed("its memory has a length that none has"));
                }
                Ok(OfferedMemory { clique, handle, bytes })
            };
            reader.finish()?;
            Ok(Offer { must, memory })
        };
        read().map_err(|error| error.about(rank))
    }
}

impl Trial {
    fn encode(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.text(&self.reason);
        let mapped: Vec<u8> = self.mapped.iter().map(|mapped| u8::from(*mapped)).collect();
        writer.raw(&mapped);
        writer.finish()
    }

    fn decode((rank, ranks): (Rank, usize), bytes: &[u8]) -> Result<Trial> {
        let read = || -> Result<Trial> {
            let mut reader = Reader::new(bytes, "what a rank could map of other hosts");
            let reason = reader.text(MOST_REASON_BYTES)?;
            let mapped: Vec<bool> = reader.rest().iter().map(|mapped| *mapped != 0).collect();
            if mapped.len() != ranks {
                return Err(reader.malformed("it tells of another number of ranks"));
            }
            Ok(Trial { mapped, reason })
        };
        read().map_err(|error| error.about(rank))
    }
}

/// Of the memory that is tried: less than any granule of a GPU, which 2 MiB are.
const MOST_TRIAL_BYTES: u32 = 1 << 20;
/// Lengths are one more than a multiple of this, so that they end well before the end of a granule.
const LENGTH_STEP: u32 = 64;
/// Of the driver's words in a message.
const MOST_REASON_BYTES: usize = 512;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    fn offered(number: u32) -> Offer {
        let clique = FabricClique { cluster: [5; 16], number };
        Offer { must: false, memory: Ok(OfferedMemory { clique, handle: FabricHandle([9; 64]), bytes: 65 }) }
    }

    fn trial(mapped: [bool; 4], reason: &str) -> Trial {
        Trial { mapped: mapped.to_vec(), reason: reason.to_owned() }
    }

    #[test]
    fn messages_come_back_and_broken_ones_are_refused() {
        let refused = Offer { must: true, memory: Err("no".to_owned()) };
        let rank = Rank::new(2);
        for offer in [offered(1), refused] {
            let bytes = offer.encode();
            assert_eq!(Offer::decode(rank, &bytes).unwrap(), offer);
            for broken in [&bytes[1..], &bytes[..bytes.len() - 1], &[], &[0; 200]] {
                assert_eq!(Offer::decode(rank, broken).unwrap_err().peer(), Some(2));
            }
        }
        let mut large = offered(1);
        large.memory.as_mut().unwrap().bytes = MOST_TRIAL_BYTES + 1;
        assert!(Offer::decode(rank, &large.encode()).is_err());
        let told = trial([true, false, true, false], "why");
        assert_eq!(Trial::decode((rank, 4), &told.encode()).unwrap(), told);
        assert!(Trial::decode((rank, 3), &told.encode()).is_err() && Trial::decode((rank, 4), &[9]).is_err());
        for _ in 0..99 {
            let bytes = trial_bytes().unwrap();
            assert!(bytes % LENGTH_STEP == 1 && bytes <= MOST_TRIAL_BYTES);
        }
    }

    /// Ranks 0 and 1 are on one host, 2 and 3 on the other; rank 3 is of another clique.
    #[test]
    fn a_pair_crosses_where_each_has_mapped_the_others_memory() {
        let (devices, hosts) = ([1, 2, 3, 4].map(|number| DeviceIdentity([number; 16])).to_vec(), vec![0, 0, 1, 1]);
        let world = World { rank: Rank::new(0), size: 4 };
        let offers = vec![offered(1), offered(1), offered(1), offered(2)];
        let mut found = Crossings { devices, hosts, peers: vec![Vec::new(); 4], offers, trials: Vec::new() };
        // Rank 1 says too much, and rank 2 could not map memory of rank 1.
        let first = [trial([false, false, true, false], ""), trial([true; 4], "")];
        let second = [trial([true, false, false, false], "rank 1's is gone"), trial([false; 4], "")];
        found.trials = [first, second].concat();
        found.join();
        let [a, b, c, d] = [0, 1, 2, 3].map(Rank::new);
        assert_eq!([a, b, c, d].map(|rank| found.peers_of(rank).to_vec()), [vec![c], vec![], vec![a], vec![]]);
        assert!(found.joins(c, a) && !found.joins(a, b) && !found.joins(c, b));
        let why = |found: &Crossings, rank, peer| found.why_not(rank, peer).unwrap_or_default();
        assert_eq!(found.why_not(c, a), None);
        assert_eq!(why(&found, b, c), "rank 2 could not map memory of rank 1: rank 1's is gone");
        assert!(why(&found, a, d).contains("different NVLink cliques"));
        found.check(world).unwrap();
        found.offers[0].must = true;
        let error = found.check(world).unwrap_err();
        assert!(error.message().contains("rank 0, which does not reach the GPU memory of rank 3"), "{error}");
        found.offers[1] = Offer { must: false, memory: Err("NCCL_MNNVL_ENABLE is 0".to_owned()) };
        found.join();
        assert!(found.joins(a, c) && found.peers_of(b).is_empty());
        assert_eq!(why(&found, c, b), "rank 1: NCCL_MNNVL_ENABLE is 0");
        found.devices = vec![found.devices[0]; 4];
        found.join();
        assert!(found.peers_of(a).is_empty() && why(&found, a, c).contains("one GPU"));
    }

    #[test]
    fn all_are_joined_where_each_reaches_all_other_hosts() {
        let devices = [1, 2, 3].map(|number| DeviceIdentity([number; 16]));
        let joined =
            |hosts: [usize; 3], cliques: [u32; 3]| Crossings::of_cliques(&devices, &hosts, &cliques.map(Ok)).join_all();
        assert!(joined([0, 0, 1], [7; 3]) && joined([0, 1, 2], [7; 3]));
        assert!(!joined([0, 0, 1], [7, 8, 7]), "rank 1 goes by the network");
        assert!(!joined([0; 3], [7; 3]), "nothing crosses");
    }
}
