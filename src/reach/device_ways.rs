//! By which way the ranks of a communicator reach each other's memory of devices: each rank says what it knows, and all
//! come to the same.

use crate::device::{self, DeviceIdentity, Home};
use crate::error::{Error, Result};
use crate::log;
use crate::reach::crossings::Crossings;
use crate::reach::facts::Facts;
use crate::reach::gpu_distance::GpuDistances;
use crate::reach::staging::Staged;
use crate::session::Session;
use crate::sync::Wait;
use crate::topo::paths::PathKind;
use crate::topo::transport_choice::ladder::{
    Access, FarFacts, LeavesBy, PairAgreement, PairFacts, PeerDecision, PeerWay, Saying, WaySettings,
};
use crate::types::{Rank, World};

/// Finds out which ranks reach each other's memory, and says how each peer is reached.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] on all ranks where a pair has no way.
pub fn agree(session: &Session, home: Home, known: Known<'_>, wait: &Wait) -> Result<Staged> {
    let me = session.world.rank;
    // A wrong topology file is told in the exchange: whoever left before it would let the others wait.
    let decided = known.look(session, home);
    let sayings = match &decided {
        Ok((_, sayings)) => Ok(sayings.clone()),
        Err(error) => Err(error.duplicate()),
    };
    let staged = Staged::agree(session, sayings, |third, pair| known.lends(third, pair), wait)?;
    let (decisions, _) = decided?;
    if let Some((one, other)) = staged.first().filter(|_| session.settings.policy.no_shm) {
        let mine = [(one, other), (other, one)].into_iter().find(|(rank, _)| *rank == me);
        let reason = mine.and_then(|(_, peer)| decisions[peer.index()].access().reason().cloned());
        return Err(Error::invalid_usage(format!(
            "nothing connects the devices of ranks {one} and {other}: P2P: {}; SHM: NCCL_SHM_DISABLE is set; place \
             these ranks on devices with peer access, or allow shared memory",
            reason.unwrap_or_else(|| "no peer access between them".to_owned())
        )));
    }
    let others = session.world.ranks().zip(decisions).filter(|(peer, _)| !known.share_device(me, *peer));
    for (peer, decided) in others {
        let decision = settled(&staged, (me, peer), decided);
        match decision.way {
            PeerWay::Wire => log::info!(Net @ me, "GPU memory : {me} -> {peer} via {decision}"),
            PeerWay::Pinned => log::info!(Shm @ me, "GPU memory : {me} -> {peer} via {decision}"),
            _ => log::info!(P2p @ me, "GPU memory : {me} -> {peer} via {decision}"),
        }
    }
    Ok(staged)
}

/// The way between two ranks, of which the first has decided, by what all have told.
fn settled(staged: &Staged, (me, peer): (Rank, Rank), decided: PeerDecision) -> PeerDecision {
    let agreed = PairAgreement {
        is_parted: staged.parts(me, peer),
        third: staged.between((me, peer)),
        reads: staged.reading_of(me).contains(&peer),
    };
    decided.settled((me, peer), agreed)
}

/// What all ranks have told, before they tell what they reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub facts: &'a [Facts],
    pub hosts: &'a [usize],
    pub crossings: &'a Crossings,
}

/// What a rank sees of other devices of its host.
struct Sight<'a> {
    capability: Option<u32>,
    /// How far away a device is, as far as that counts and is known.
    kind: &'a dyn Fn(DeviceIdentity) -> Option<PathKind>,
    /// Whether its memory is reached; the reason where not.
    reaches: &'a dyn Fn(DeviceIdentity) -> Result<std::result::Result<(), String>>,
    is_linked: &'a dyn Fn(DeviceIdentity) -> bool,
}

impl Known<'_> {
    fn is_far(&self, rank: Rank, peer: Rank) -> bool {
        self.hosts[peer.index()] != self.hosts[rank.index()]
    }

    fn share_device(&self, rank: Rank, peer: Rank) -> bool {
        !self.is_far(rank, peer) && self.facts[peer.index()].device == self.facts[rank.index()].device
    }

    /// Whether the memory of `third` stays as long as a pair may use it: what left its process by a handle goes with
    /// that process, though others may still use it.
    fn lends(&self, third: Rank, pair: [Rank; 2]) -> bool {
        let lender = &self.facts[third.index()];
        lender.leaves_by == LeavesBy::Descriptor
            || pair.iter().all(|rank| self.facts[rank.index()].process == lender.process)
    }

    /// Looks at the devices of this host, and decides.
    fn look(&self, session: &Session, home: Home) -> Result<(Vec<PeerDecision>, Vec<Saying>)> {
        let (settings, own) = (&session.settings.ways, device::of(home)?);
        let mine = own.identity();
        let distances = settings.level.map(|_| GpuDistances::of(&session.settings.searching)).transpose()?;
        let sight = Sight {
            capability: own.capability(),
            kind: &|other| distances.as_ref()?.kind(mine, other),
            reaches: &|other| own.reaches(other),
            is_linked: &|other| own.is_linked(other),
        };
        self.decide(session.world, settings, &sight)
    }

    /// What this rank alone can say of the way to each rank, and what it tells all of it.
    fn decide(
        &self,
        world: World,
        settings: &WaySettings,
        sight: &Sight<'_>,
    ) -> Result<(Vec<PeerDecision>, Vec<Saying>)> {
        let me = world.rank;
        let mine = &self.facts[me.index()];
        let is_near_other = |peer: Rank| !self.is_far(me, peer) && self.facts[peer.index()].device != mine.device;
        let decide = |peer: Rank| -> Result<PeerDecision> {
            let theirs = self.facts[peer.index()];
            let forbidden = is_near_other(peer).then(|| settings.forbids((sight.kind)(theirs.device))).flatten();
            let is_asked = is_near_other(peer) && forbidden.is_none();
            let without_pointers = [me, peer].into_iter().find(|rank| self.facts[rank.index()].without_pointers);
            let far = || FarFacts::new((settings.no_p2p, settings.no_shm), self.crossings.why_not(me, peer));
            let pair = PairFacts {
                peer,
                far: self.is_far(me, peer).then(far),
                forbidden,
                unreached: if is_asked { (sight.reaches)(theirs.device)?.err() } else { None },
                one_process: theirs.process == mine.process,
                // Ranks of one device need no way to each other's memory.
                without_pointers: without_pointers.filter(|_| theirs.device != mine.device),
                leaves_by: theirs.leaves_by,
            };
            Ok(pair.decide())
        };
        let mut decisions = world.ranks().map(decide).collect::<Result<Vec<PeerDecision>>>()?;
        let device = |peer: Rank| self.facts[peer.index()].device;
        // Nobody else has a use for the links.
        if decisions.iter().any(|decision| matches!(decision.access(), Access::Unreached(_))) {
            for (peer, decision) in world.ranks().zip(&mut decisions).filter(|(peer, _)| is_near_other(*peer)) {
                decision.note_links((sight.is_linked)(device(peer)));
            }
        }
        let saying = |(peer, decision): (Rank, &PeerDecision)| Saying {
            access: decision.access().told(),
            wants_reading: is_near_other(peer)
                && settings.wants_reading(sight.capability, || (sight.is_linked)(device(peer))),
        };
        let sayings = world.ranks().zip(&decisions).map(saying).collect();
        Ok((decisions, sayings))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::reach::facts::tests::process_of_its_own;
    use crate::reach::staging::tell;
    use crate::topo::bandwidth::GpuGeneration;
    use crate::topo::paths::Paths;
    use crate::topo::system::{NodeKind, System};
    use crate::topo::transport_choice::described::{Described, assumed_unreached, no_driver, ranked};
    use crate::topo::{machine_file, machines};

    /// Every machine with GPUs: those of `topo::machines`, and those in tests/data.
    fn systems() -> Vec<(String, System)> {
        let parsed = |name: &str, text: &str| {
            let (machine, _) = machine_file::parse(name, text).unwrap();
            (name.to_owned(), System::new(&machine).unwrap())
        };
        let mut all: Vec<_> = machines::ALL.iter().map(|name| parsed(name, machines::text(name))).collect();
        let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        for folder in ["hives", "descriptions"] {
            for entry in std::fs::read_dir(data.join(folder)).unwrap() {
                let path = entry.unwrap().path();
                let (name, text) = (path.display().to_string(), std::fs::read_to_string(&path).unwrap());
                if name.ends_with(".xml") && !text.contains("<graphs") {
                    all.push(parsed(&name, &text));
                }
            }
        }
        all.retain(|(_, system)| !system.gpus().is_empty());
        all
    }

    /// Settings, each of which changes a way on some machine.
    fn wishes() -> Vec<WaySettings> {
        let usual = WaySettings::default();
        let levels = [PathKind::Loc, PathKind::Nvl, PathKind::Nvb, PathKind::Pxb, PathKind::Sys];
        let levels = levels.into_iter().map(|level| WaySettings { level: Some(level), ..usual });
        let others = [
            usual,
            WaySettings { no_p2p: true, ..usual },
            WaySettings { no_shm: true, ..usual },
            WaySettings { no_p2p: true, no_shm: true, ..usual },
            WaySettings { by_handle: true, ..usual },
            WaySettings { no_mnnvl: true, ..usual },
            WaySettings { reads: Some(true), ..usual },
            WaySettings { reads: Some(false), ..usual },
        ];
        levels.chain(others).collect()
    }

    /// The ways of all pairs as the ranks of a communicator find them: each sees its own devices, tells what it
    /// reaches, and settles what it has decided. A rank is on each GPU, with settings of its own.
    fn ways_of_ranks(
        system: &System,
        settings_of: &dyn Fn(usize) -> WaySettings,
        process_of: &dyn Fn(usize) -> u64,
    ) -> Vec<Vec<PeerDecision>> {
        let gpus = ranked(system);
        let kinds: Vec<Vec<PathKind>> = gpus
            .iter()
            .map(|gpu| Paths::from(system, *gpu))
            .map(|ways| gpus.iter().map(|to| ways.to(system, *to).kind).collect())
            .collect();
        let identity = |gpu: usize| DeviceIdentity([u8::try_from(gpu).unwrap(); 16]);
        let place = |device: DeviceIdentity| usize::from(device.0[0]);
        let facts: Vec<Facts> =
            (0..gpus.len()).map(|gpu| process_of_its_own(process_of(gpu), identity(gpu), &settings_of(gpu))).collect();
        let of_host = |gpu: usize| system.node(gpus[gpu]).host as usize;
        // Without shared memory each process is a host of its own.
        let hosts: Vec<usize> =
            (0..gpus.len()).map(|gpu| if settings_of(gpu).no_shm { gpu } else { of_host(gpu) }).collect();
        let clique = |gpu: usize| {
            let is_far = |other: &usize| of_host(*other) != of_host(gpu) && kinds[gpu][*other] != PathKind::Dis;
            let first = (0..gpus.len()).find(|other| kinds[gpu][*other] != PathKind::Dis);
            match (settings_of(gpu).forbids_crossing(), (0..gpus.len()).any(|other| is_far(&other))) {
                (Some(reason), _) => Err(reason.to_owned()),
                (None, false) => Err("no NVLinks lead to other hosts".to_owned()),
                (None, true) => Ok(u32::try_from(first.unwrap()).unwrap()),
            }
        };
        let devices: Vec<DeviceIdentity> = facts.iter().map(|facts| facts.device).collect();
        let cliques: Vec<_> = (0..gpus.len()).map(clique).collect();
        let crossings = Crossings::of_cliques(&devices, &hosts, &cliques);
        let known = Known { facts: &facts, hosts: &hosts, crossings: &crossings };
        let world = |rank: usize| World {
            rank: Rank::new(u32::try_from(rank).unwrap()),
            size: u32::try_from(gpus.len()).unwrap(),
        };
        let decided: Vec<_> = (0..gpus.len())
            .map(|gpu| {
                let capability = match system.node(gpus[gpu]).kind {
                    NodeKind::Gpu { generation: GpuGeneration::Nvidia { capability }, .. } => Some(capability),
                    _ => None,
                };
                let kind = |other: DeviceIdentity| kinds[gpu][place(other)];
                let sight = Sight {
                    capability,
                    kind: &|other| Some(kind(other)),
                    reaches: &|other| Ok(assumed_unreached(kind(other)).map_or(Ok(()), Err)),
                    is_linked: &|other| kind(other) == PathKind::Nvl,
                };
                known.decide(world(gpu), &settings_of(gpu), &sight).unwrap()
            })
            .collect();
        let told: Vec<Vec<u8>> = decided.iter().map(|(_, sayings)| tell(&Ok(sayings.clone()))).collect();
        let staged = Staged::of(world(0), &told, |third, pair| known.lends(third, pair)).unwrap();
        let of = |(rank, (decisions, _)): (usize, (Vec<PeerDecision>, Vec<Saying>))| {
            let me = world(rank).rank;
            world(0).ranks().zip(decisions).map(|(peer, own)| settled(&staged, (me, peer), own)).collect()
        };
        decided.into_iter().enumerate().map(of).collect()
    }

    /// What `rsccl topo --why` says of two GPUs is what ranks on them do, with the same reasons.
    #[test]
    fn tools_and_communicators_agree_on_every_machine() {
        let (mut ways, systems) = (std::collections::BTreeSet::new(), systems());
        assert!(systems.len() >= 18, "{}", systems.len());
        for (name, system) in systems {
            let hosts: Vec<u32> = ranked(&system).iter().map(|gpu| system.node(*gpu).host).collect();
            for settings in wishes() {
                let by_ranks = ways_of_ranks(&system, &|_| settings, &|gpu| gpu as u64);
                let described = Described::of(&system, (settings, &no_driver), &hosts);
                let ranks = || (0..hosts.len()).map(|rank| Rank::new(u32::try_from(rank).unwrap()));
                // Of a rack the pairs of the first GPUs of its hosts, and all of one host.
                let is_asked = |rank: &Rank| hosts.len() < 32 || rank.get() < 4 || rank.get().is_multiple_of(12);
                for one in ranks().filter(is_asked) {
                    for other in ranks().filter(is_asked).filter(|other| *other != one) {
                        let told = described.way(one, other);
                        let done = &by_ranks[one.index()][other.index()];
                        assert_eq!(told.to_string(), done.to_string(), "{name}: {one} to {other}, {settings:?}");
                        ways.insert(done.way.to_string().split('/').take(2).collect::<Vec<_>>().join("/"));
                    }
                }
            }
        }
        let all = ["NET/Socket", "P2P/CUMEM", "P2P/IPC", "P2P/MNNVL", "P2P/indirect", "SHM/pinned"];
        assert!(ways.iter().eq(all.iter()), "every way occurs: {ways:?}");
    }

    /// What both ends of a pair must say alike: each opens the other's memory by the handle that it has, and each
    /// direction may go over a GPU of its own.
    fn kind_of(decision: &PeerDecision) -> (&'static str, bool) {
        let way = match decision.way {
            PeerWay::Direct | PeerWay::CuMem | PeerWay::Ipc => "P2P",
            PeerWay::Indirect(_) => "P2P/indirect",
            PeerWay::Pinned => "SHM",
            PeerWay::Crossing => "P2P/MNNVL",
            PeerWay::Wire => "NET",
        };
        (way, decision.reads())
    }

    /// One rank with other settings than the rest, on every machine, as processes and as threads of one process a host.
    #[test]
    fn both_ends_agree_where_the_settings_of_one_rank_differ() {
        let usual = WaySettings::default();
        let odd = [
            WaySettings { no_pointers: true, ..usual },
            WaySettings { by_handle: true, ..usual },
            WaySettings { no_pointers: true, by_handle: true, ..usual },
            WaySettings { no_mnnvl: true, ..usual },
            WaySettings { reads: Some(true), ..usual },
            WaySettings { reads: Some(false), ..usual },
            // Init refuses these.
            WaySettings { level: Some(PathKind::Loc), ..usual },
            WaySettings { no_p2p: true, ..usual },
        ];
        let (mut kinds, mut changed) = (std::collections::BTreeSet::new(), 0);
        for (name, system) in systems().into_iter().filter(|(_, system)| system.gpus().len() <= 32) {
            let gpus = ranked(&system);
            let of_host = |gpu: usize| u64::from(system.node(gpus[gpu]).host);
            for process_of in [&|gpu: usize| gpu as u64, &of_host as &dyn Fn(usize) -> u64] {
                let alike = ways_of_ranks(&system, &|_| usual, process_of);
                for (settings, other) in
                    odd.iter().flat_map(|settings| [0, gpus.len() - 1].map(|rank| (*settings, rank)))
                {
                    let of = |rank: usize| if rank == other { settings } else { usual };
                    let ways = ways_of_ranks(&system, &of, process_of);
                    changed += usize::from(ways != alike);
                    for (one, row) in ways.iter().enumerate() {
                        for (peer, decision) in row.iter().enumerate().filter(|(peer, _)| *peer != one) {
                            let (mine, theirs) = (kind_of(decision), kind_of(&ways[peer][one]));
                            assert_eq!(mine, theirs, "{name}: {one} and {peer}, {settings:?} on rank {other}");
                            kinds.insert(mine);
                        }
                    }
                }
            }
        }
        assert!(kinds.len() >= 6 && changed > 100, "{kinds:?} {changed}");
    }
}
