//! Processes that share a device which runs the work of one of them at a time.
//!
//! A kernel of one process that waits for a kernel of another waits for its time slice, which takes milliseconds. So on
//! each device one process leads: it launches the collectives of all ranks there (`engine::across`).

use crate::reach::facts::Facts;
use crate::types::Rank;

/// How processes that share a device work there. The same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharers {
    /// Processes share no device, or only devices that run them side by side; or the user has asked for turns.
    Beside,
    /// On each device the process of the lowest rank leads.
    Led,
    /// These two ranks, perhaps others too, take turns on their device, each with kernels of its own that wait for
    /// others: nobody can lead, because some ranks share no memory.
    Turns(Rank, Rank),
}

impl Sharers {
    /// Decides from the facts of all ranks. `has_far` says that some ranks can share no memory with others.
    pub fn of(facts: &[Facts], has_far: bool) -> Sharers {
        for (rank, one) in (0..).zip(facts).filter(|(_, facts)| !facts.together) {
            let shares = |other: &Facts| other.device == one.device && other.process != one.process;
            let Some(other) = (0..).zip(facts).find(|(_, other)| shares(other)) else { continue };
            return if has_far { Sharers::Turns(Rank::new(rank), Rank::new(other.0)) } else { Sharers::Led };
        }
        Sharers::Beside
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::reach::facts::tests::facts;

    #[test]
    fn one_process_leads_where_all_ranks_share_memory() {
        assert_eq!(Sharers::of(&[facts(1, 1, true), facts(2, 1, true)], false), Sharers::Beside);
        assert_eq!(Sharers::of(&[facts(1, 1, false), facts(1, 1, false), facts(2, 2, false)], false), Sharers::Beside);
        assert_eq!(Sharers::of(&[facts(1, 1, false), facts(1, 1, false), facts(2, 1, false)], false), Sharers::Led);
        let two_devices = [facts(1, 1, false), facts(2, 2, false), facts(3, 1, false)];
        assert_eq!(Sharers::of(&two_devices, false), Sharers::Led);
        assert_eq!(Sharers::of(&two_devices, true), Sharers::Turns(Rank::new(0), Rank::new(2)));
    }
}
