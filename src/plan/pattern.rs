//! The collectives that are done by plans, by what moves from whom to whom.

use super::RankBuffer;
use crate::types::{CarriedBy, Collective, Folded, Holding, RootSide};

/// What moves from whom to whom. A vector form has the pattern of its plain form: only its counts differ.
///
/// Planners match this in place of [`Collective`], so that no planner needs an arm for collectives that it never sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Every rank gets the reduction of all.
    AllReduce,
    /// Every rank gets the root's buffer.
    Broadcast,
    /// The root gets the reduction of all.
    Reduce,
    /// Every rank gets the blocks of all ranks.
    AllGather,
    /// Every rank gets its block of the reduction of all.
    ReduceScatter,
    /// Every rank gets its block of every rank's buffer.
    AllToAll,
    /// The root gets the blocks of all ranks.
    Gather,
    /// Every rank gets its block of the root's buffer.
    Scatter,
    /// Nothing moves; no rank leaves before every rank has come.
    Barrier,
}

impl Pattern {
    /// The pattern of a collective; `None` where it is done by messages.
    pub(crate) fn of(collective: Collective) -> Option<Pattern> {
        use Holding::{Each, Nothing, One};
        let definition = collective.definition();
        if definition.carried != CarriedBy::Plan {
            return None;
        }
        match (definition.input, definition.output, definition.root, definition.folded) {
            (One, One, RootSide::Neither, Folded::All) => Some(Pattern::AllReduce),
            (One, One, RootSide::Input, Folded::No) => Some(Pattern::Broadcast),
            (One, One, RootSide::Output, Folded::All) => Some(Pattern::Reduce),
            (One, Each, RootSide::Neither, Folded::No) => Some(Pattern::AllGather),
            (Each, One, RootSide::Neither, Folded::All) => Some(Pattern::ReduceScatter),
            (Each, Each, RootSide::Neither, Folded::No) => Some(Pattern::AllToAll),
            (One, Each, RootSide::Output, Folded::No) => Some(Pattern::Gather),
            (Each, One, RootSide::Input, Folded::No) => Some(Pattern::Scatter),
            (Nothing, Nothing, RootSide::Neither, Folded::No) => Some(Pattern::Barrier),
            // No planner does such a collective: it has to be carried by messages, or needs a pattern.
            _ => None,
        }
    }

    /// The user's buffers in which peers work where these lie in symmetric windows. Every rank passes them, all of one
    /// length (with what vector forms have, of all ranks together), so that every rank knows from its own place where
    /// its peers' are.
    pub(crate) fn symmetric_buffers(self) -> &'static [RankBuffer] {
        match self {
            Pattern::AllReduce => &[RankBuffer::Input, RankBuffer::Output],
            Pattern::Reduce | Pattern::ReduceScatter | Pattern::AllToAll | Pattern::Gather => &[RankBuffer::Input],
            Pattern::Broadcast | Pattern::AllGather | Pattern::Scatter => &[RankBuffer::Output],
            Pattern::Barrier => &[],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A collective that is to be planned, and that no planner knows, is found here and not by its first caller.
    #[test]
    fn every_collective_that_is_carried_by_plans_has_a_pattern() {
        for collective in Collective::ALL {
            let is_planned = collective.definition().carried == CarriedBy::Plan;
            assert_eq!(Pattern::of(*collective).is_some(), is_planned, "{collective}");
            assert_eq!(crate::plan::algorithms(*collective).is_empty(), !is_planned, "{collective}");
        }
    }
}
