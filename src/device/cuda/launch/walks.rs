//! Remembers what the walks through the programs of a GPU's last launches have yielded. A program that trains calls
//! the same collectives on the same buffers again and again, and a walk through the programs of eight ranks takes the
//! host many times as long as all else that it does for a call.

use super::levels::LevelLaunch;
use super::programs;
use crate::device::records::{LaunchPart, Numbers, PeerMemory, Records, Reduction, SlotQueue};
use crate::error::Result;
use crate::sync::primitive::{Arc, Mutex, MutexGuard};
use crate::types::{ReduceOp, Scalar};

/// The walks of the last launches, the latest at the end.
#[derive(Debug, Default)]
pub(in crate::device::cuda) struct Walks {
    known: Mutex<Vec<Walk>>,
}

/// What a walk was through, and what it has yielded.
#[derive(Debug)]
struct Walk {
    parts: Vec<WalkedPart>,
    launches: Arc<[LevelLaunch]>,
}

/// All of a part that a walk looks at, but what [`is_ordinary`] has looked at: labels, faults and aborts.
#[derive(Debug)]
struct WalkedPart {
    // Kept, so that nothing else comes to lie at their addresses.
    records: Arc<Records>,
    numbers: Arc<Numbers>,
    peers: Arc<[PeerMemory]>,
    folding: Reduction,
    rank: u32,
    bases: Vec<u64>,
    queues: Vec<SlotQueue>,
}

impl Walks {
    /// [`programs::launches`], which is asked where these parts are not those of one of the last launches.
    ///
    /// # Errors
    /// As there.
    pub(in crate::device::cuda) fn launches(&self, parts: &[LaunchPart]) -> Result<Option<Arc<[LevelLaunch]>>> {
        let ordinary = is_ordinary(parts);
        if ordinary {
            let mut known = self.lock();
            if let Some(place) = known.iter().rposition(|walk| walk.is_through(parts)) {
                // It becomes the latest.
                known[place..].rotate_left(1);
                return Ok(known.last().map(|walk| Arc::clone(&walk.launches)));
            }
        }
        let Some(launches) = programs::launches(parts)? else { return Ok(None) };
        let launches: Arc<[LevelLaunch]> = launches.into();
        if ordinary && launches.iter().map(|level| level.steps.len()).sum::<usize>() <= MOST_STEPS {
            let parts = parts.iter().map(WalkedPart::of).collect();
            let mut known = self.lock();
            if known.len() == MOST_WALKS {
                known.remove(0);
            }
            known.push(Walk { parts, launches: Arc::clone(&launches) });
        }
        Ok(Some(launches))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Walk>> {
        self.known.lock()
    }
}

/// Walks that a GPU remembers: those of some buffers of its communicators, each with a few collectives.
const MOST_WALKS: usize = 64;
/// Steps of a walk that is remembered. More of them move so much that the walk is little beside, and they take memory:
/// some 100 bytes each.
const MOST_STEPS: usize = 2048;

/// Whether all parts are of one collective, and no rank has met a fault. What else there is shows in the walk.
fn is_ordinary(parts: &[LaunchPart]) -> bool {
    let Some(first) = parts.first() else { return false };
    parts.iter().all(|part| {
        let alike = part.labels.len() == 1 && part.labels == first.labels;
        alike && !part.is_of_messages() && part.status.fault().is_none() && !part.status.is_aborted()
    })
}

impl Walk {
    fn is_through(&self, parts: &[LaunchPart]) -> bool {
        self.parts.len() == parts.len() && self.parts.iter().zip(parts).all(|(walked, part)| walked.is(part))
    }
}

impl WalkedPart {
    fn of(part: &LaunchPart) -> WalkedPart {
        WalkedPart {
            records: Arc::clone(&part.records),
            numbers: Arc::clone(&part.numbers),
            peers: Arc::clone(&part.peers),
            folding: part.folding,
            rank: part.rank,
            bases: part.bases.clone(),
            queues: part.queues.clone(),
        }
    }

    fn is(&self, part: &LaunchPart) -> bool {
        Arc::ptr_eq(&self.records, &part.records)
            && Arc::ptr_eq(&self.numbers, &part.numbers)
            && Arc::ptr_eq(&self.peers, &part.peers)
            && is_same(self.folding, part.folding)
            && self.rank == part.rank
            && self.bases == part.bases
            && self.queues == part.queues
    }
}

/// Whether both compute the same bits. The scalars 0 and -0 are equal, but give different bits.
fn is_same(one: Reduction, other: Reduction) -> bool {
    let bits = |folding: Reduction| match folding.op {
        Some(ReduceOp::PreMulSum(Scalar::Float(scalar))) => Some(scalar.to_bits()),
        _ => None,
    };
    match (bits(one), bits(other)) {
        (None, None) => one == other,
        (mine, theirs) => mine == theirs && (one.data_type, one.world) == (other.data_type, other.world),
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::device::records::ControlLayout;
    use crate::device::{LaunchFault, StatusPage};
    use crate::exec::lower::{self, Lowered};
    use crate::plan::{self, Windows};
    use crate::types::{DataType, Elements};

    /// A rank that copies from one address to another.
    fn part(lowered: &Lowered, peers: &Arc<[PeerMemory]>, (from, to): (u64, u64), sequence: u64) -> LaunchPart {
        LaunchPart {
            records: Arc::clone(&lowered.steps.records),
            numbers: Arc::clone(&lowered.numbers),
            folding: Reduction { data_type: DataType::U8, op: None, world: 1 },
            rank: 0,
            labels: vec![[1, 2, sequence]],
            bases: vec![from, to, 0],
            layout: ControlLayout { ranks: 1, lanes: 1 },
            peers: Arc::clone(peers),
            queues: Vec::new(),
            status: Arc::new(StatusPage::new().unwrap()),
            keep: Vec::new(),
            across: None,
        }
    }

    fn copy(bytes: u64) -> Lowered {
        lower::plan(&[plan::copy_lane(Elements(bytes)).unwrap()], Windows::None)
    }

    /// From where to where the launches copy how much.
    fn copies(launches: &[LevelLaunch]) -> Vec<(u64, u64, u64)> {
        launches.iter().map(|launch| (launch.operands[0].base, launch.operands[1].base, launch.bytes)).collect()
    }

    #[test]
    fn a_call_that_comes_again_is_not_walked_again() {
        let (short, long, peers) = (copy(10), copy(20), Arc::from([PeerMemory::default()]));
        let walks = Walks::default();
        let ask = |part: LaunchPart| walks.launches(&[part]).unwrap();
        let first = ask(part(&short, &peers, (1000, 2000), 7)).unwrap();
        assert_eq!(copies(&first), [(1000, 2000, 10)]);
        assert!(Arc::ptr_eq(&first, &ask(part(&short, &peers, (1000, 2000), 8)).unwrap()));
        for (lowered, places, expected) in [
            (&short, (1000, 3000), (1000, 3000, 10)),
            (&short, (4000, 2000), (4000, 2000, 10)),
            (&long, (1000, 2000), (1000, 2000, 20)),
        ] {
            assert_eq!(copies(&ask(part(lowered, &peers, places, 9)).unwrap()), [expected]);
        }
        // Programs that say the same, and are others.
        let again = ask(part(&copy(10), &peers, (1000, 2000), 10)).unwrap();
        assert!(!Arc::ptr_eq(&first, &again) && copies(&again) == copies(&first));
        assert!(Arc::ptr_eq(&first, &ask(part(&short, &peers, (1000, 2000), 11)).unwrap()));
        // A rank that has met a fault launches nothing more.
        let faulted = part(&short, &peers, (1000, 2000), 12);
        faulted.status.report(LaunchFault::Aborted);
        assert!(ask(faulted).is_none());
    }

    #[test]
    fn the_least_recently_used_walk_is_forgotten() {
        let (program, peers) = (copy(10), Arc::from([PeerMemory::default()]));
        let walks = Walks::default();
        let ask = |to: usize| walks.launches(&[part(&program, &peers, (0, to as u64), 0)]).unwrap().unwrap();
        let all: Vec<_> = (0..MOST_WALKS).map(ask).collect();
        // The first becomes the latest, and one more takes the place of the second.
        assert!(Arc::ptr_eq(&all[0], &ask(0)));
        let _more = ask(MOST_WALKS);
        assert!(Arc::ptr_eq(&all[0], &ask(0)) && Arc::ptr_eq(&all[2], &ask(2)));
        assert!(!Arc::ptr_eq(&all[1], &ask(1)));
        assert_eq!(walks.lock().len(), MOST_WALKS);
    }

    #[test]
    fn scalars_of_other_bits_are_others() {
        let by = |scalar: f64| Reduction { data_type: DataType::F32, op: Some(ReduceOp::premul_sum(scalar)), world: 2 };
        assert!(is_same(by(0.5), by(0.5)) && is_same(by(f64::NAN), by(f64::NAN)));
        assert!(!is_same(by(0.0), by(-0.0)) && !is_same(by(0.5), by(0.25)));
        let sum = Reduction { op: Some(ReduceOp::Sum), ..by(0.5) };
        assert!(is_same(sum, sum) && !is_same(sum, by(0.5)) && !is_same(by(0.5), sum));
        assert!(!is_same(by(0.5), Reduction { data_type: DataType::F64, ..by(0.5) }));
        assert!(!is_same(by(0.5), Reduction { world: 3, ..by(0.5) }));
        let whole = Reduction { op: Some(ReduceOp::premul_sum(3)), ..by(0.5) };
        assert!(is_same(whole, whole) && !is_same(whole, by(3.0)));
    }
}
