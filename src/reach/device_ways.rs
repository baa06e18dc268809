//! By which way the ranks of a communicator reach each other's memory of devices: each rank says what it knows, and all
//! come to the same.

use crate::device::{self, DeviceIdentity, Home};
use crate::error::{Error, Result};
use crate::log;
use crate::reach::crossings::Crossings;
use crate::reach::device_sharing::Facts;
use crate::reach::gpu_distance::GpuDistances;
use crate::reach::peer_ways::{FarFacts, LeavesBy, PairFacts, PeerDecision, PeerWay};
use crate::reach::staging::{Access, Staged, ToPeer};
use crate::session::Session;
use crate::sync::Wait;
use crate::types::Rank;

/// Finds out which ranks reach each other's memory, and says how each peer is reached.
///
/// # Errors
/// [`crate::error::Kind::InvalidUsage`] on all ranks where a pair has no way.
pub fn agree(session: &Session, home: Home, known: Known<'_>, wait: &Wait) -> Result<Staged> {
    let (me, facts) = (session.world.rank, known.facts);
    // A wrong topology file is told in the exchange: whoever left before it would let the others wait.
    let decisions = known.decide(session, home);
    let accesses = match &decisions {
        Ok(decisions) => known.wants_reading(session, home).map(|wants| {
            let told = decisions.iter().zip(wants);
            told.map(|(decision, wants_reading)| ToPeer { access: decision.access().clone(), wants_reading }).collect()
        }),
        Err(error) => Err(error.duplicate()),
    };
    // Memory that left its process by a handle goes with that process, though others may still use it.
    let lends = |third: Rank, pair: [Rank; 2]| {
        let lender = &facts[third.index()];
        lender.leaves_by == LeavesBy::Descriptor
            || pair.iter().all(|rank| facts[rank.index()].process == lender.process)
    };
    let staged = Staged::agree(session, accesses, lends, wait)?;
    let mut decisions = decisions?;
    if let Some((one, other)) = staged.first().filter(|_| session.settings.policy.no_shm) {
        let mine = [(one, other), (other, one)].into_iter().find(|(rank, _)| *rank == me);
        let reason = mine.and_then(|(_, peer)| decisions[peer.index()].access().reason().cloned());
        return Err(Error::invalid_usage(format!(
            "nothing connects the devices of ranks {one} and {other}: P2P: {}; SHM: NCCL_SHM_DISABLE is set; place \
             these ranks on devices with peer access, or allow shared memory",
            reason.unwrap_or_else(|| "no peer access between them".to_owned())
        )));
    }
    let shares_device = |peer: Rank| !known.is_far(me, peer) && facts[peer.index()].device == facts[me.index()].device;
    for peer in session.world.ranks().filter(|peer| !shares_device(*peer)) {
        let decision = &mut decisions[peer.index()];
        if staged.parts(me, peer) && decision.way != PeerWay::Pinned {
            *decision = PeerDecision::pinned(Access::Unreached(format!("rank {peer} does not reach rank {me}")));
        }
        if let Some(third) = staged.between((me, peer)) {
            *decision = decision.clone().over(third);
        }
        if staged.reading_of(me).contains(&peer) {
            decision.note_reading();
        }
        match decision.way {
            PeerWay::Wire => log::info!(Net @ me, "GPU memory : {me} -> {peer} via {decision}"),
            PeerWay::Pinned => log::info!(Shm @ me, "GPU memory : {me} -> {peer} via {decision}"),
            _ => log::info!(P2p @ me, "GPU memory : {me} -> {peer} via {decision}"),
        }
    }
    Ok(staged)
}

/// What all ranks have told, before they tell what they reach.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known<'a> {
    pub facts: &'a [Facts],
    pub hosts: &'a [usize],
    pub crossings: &'a Crossings,
}

impl Known<'_> {
    fn is_far(&self, rank: Rank, peer: Rank) -> bool {
        self.hosts[peer.index()] != self.hosts[rank.index()]
    }

    /// What this rank alone can say of the way to each rank.
    fn decide(&self, session: &Session, home: Home) -> Result<Vec<PeerDecision>> {
        let (me, policy) = (session.world.rank, session.settings.policy);
        let (mine, own) = (&self.facts[me.index()], device::of(home)?);
        let distances = GpuDistances::of(&session.settings.searching)?;
        let forbidden = |device: DeviceIdentity| match (policy.no_local, &distances) {
            (true, _) => Some("NCCL_P2P_DISABLE is set".to_owned()),
            (false, distances) => distances.as_ref().and_then(|distances| distances.forbids(mine.device, device)),
        };
        let is_near_other = |peer: Rank| !self.is_far(me, peer) && self.facts[peer.index()].device != mine.device;
        let decide = |peer: Rank| -> Result<PeerDecision> {
            let theirs = self.facts[peer.index()];
            let forbidden = if is_near_other(peer) { forbidden(theirs.device) } else { None };
            let is_asked = is_near_other(peer) && forbidden.is_none();
            let without_pointers = [me, peer].into_iter().find(|rank| self.facts[rank.index()].without_pointers);
            let pair = PairFacts {
                peer,
                far: self.is_far(me, peer).then(|| FarFacts::new(policy, self.crossings.why_not(me, peer))),
                forbidden,
                unreached: if is_asked { own.reaches(theirs.device)?.err() } else { None },
                one_process: theirs.process == mine.process,
                // Ranks of one device need no way to each other's memory.
                without_pointers: without_pointers.filter(|_| theirs.device != mine.device),
                leaves_by: theirs.leaves_by,
            };
            Ok(pair.decide())
        };
        let mut decisions = session.world.ranks().map(decide).collect::<Result<Vec<PeerDecision>>>()?;
        // Nobody else has a use for the links.
        if decisions.iter().any(|decision| matches!(decision.access(), Access::Unreached(_))) {
            for (peer, decision) in session.world.ranks().zip(&mut decisions).filter(|(peer, _)| is_near_other(*peer)) {
                decision.note_links(own.is_linked(self.facts[peer.index()].device));
            }
        }
        Ok(decisions)
    }

    /// Of each rank, whether this rank wants the slots of connections with it at the sender.
    fn wants_reading(&self, session: &Session, home: Home) -> Result<Vec<bool>> {
        let (me, own) = (session.world.rank, device::of(home)?);
        let wants = |peer: Rank| {
            let device = self.facts[peer.index()].device;
            let is_other = !self.is_far(me, peer) && device != self.facts[me.index()].device;
            is_other && session.settings.slots_at_senders.unwrap_or_else(|| own.rather_reads(device))
        };
        Ok(session.world.ranks().map(wants).collect())
    }
}
