//! The collectives that the benches compare between libraries, with their names.

use std::fmt;

/// A collective that rsccl and its peers have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Collective {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    AllToAll,
    /// A message to and fro between ranks 0 and 1, 2 and 3, and so on; half of the round trip counts.
    SendRecv,
}

impl Collective {
    pub(crate) const ALL: [Collective; 7] = [
        Collective::AllReduce,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::SendRecv,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::SendRecv => "send_recv",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Collective> {
        Collective::ALL.into_iter().find(|collective| collective.name() == name)
    }
}

impl fmt::Display for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
