//! The collectives that are done by plans, by what moves from whom to whom.

use super::Buffer;
use crate::types::Collective;

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
        Some(match collective {
            Collective::AllReduce => Pattern::AllReduce,
            Collective::Broadcast => Pattern::Broadcast,
            Collective::Reduce => Pattern::Reduce,
            Collective::AllGather | Collective::AllGatherV => Pattern::AllGather,
            Collective::ReduceScatter | Collective::ReduceScatterV => Pattern::ReduceScatter,
            Collective::AllToAll => Pattern::AllToAll,
            Collective::Gather => Pattern::Gather,
            Collective::Scatter => Pattern::Scatter,
            Collective::Barrier => Pattern::Barrier,
            Collective::Send
            | Collective::Recv
            | Collective::AllToAllV
            | Collective::GatherV
            | Collective::ScatterV
            | Collective::Scan
            | Collective::Exscan => return None,
        })
    }

    /// The user's buffers in which peers work where these lie in symmetric windows. Every rank passes them, all of one
    /// length (with what vector forms have, of all ranks together), so that every rank knows from its own place where
    /// its peers' are.
    pub(crate) fn symmetric_buffers(self) -> &'static [Buffer] {
        match self {
            Pattern::AllReduce => &[Buffer::Input, Buffer::Output],
            Pattern::Reduce | Pattern::ReduceScatter | Pattern::AllToAll | Pattern::Gather => &[Buffer::Input],
            Pattern::Broadcast | Pattern::AllGather | Pattern::Scatter => &[Buffer::Output],
            Pattern::Barrier => &[],
        }
    }
}
