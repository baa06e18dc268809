//! The names of collectives, algorithms, protocols and transports.

use std::fmt;

macro_rules! named {
    ($(#[$doc:meta])* $type:ident { $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum $type { $($(#[$variant_doc])* $variant,)+ }

        impl $type {
            /// All values, in order.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// The name in configuration, tables and errors.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name,)+ }
            }

            /// The value with this name, in any case.
            pub fn from_name(name: &str) -> Option<$type> {
                Self::ALL.iter().copied().find(|known| known.name().eq_ignore_ascii_case(name))
            }

            /// The number on the wire.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The value with this number on the wire.
            pub fn from_code(code: u8) -> Option<$type> {
                Self::ALL.get(usize::from(code)).copied()
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

named! {
    /// The operations of a communicator. Vector forms have a count for each rank.
    Collective {
        /// Every rank gets the reduction of all.
        AllReduce = "all_reduce",
        /// Every rank gets the root's buffer.
        Broadcast = "broadcast",
        /// The root gets the reduction of all.
        Reduce = "reduce",
        /// Every rank gets every rank's block, in rank order.
        AllGather = "all_gather",
        /// Rank r gets block r of the reduction of all.
        ReduceScatter = "reduce_scatter",
        /// Rank r gets block r of every rank, in rank order.
        AllToAll = "all_to_all",
        /// The root gets every rank's block, in rank order.
        Gather = "gather",
        /// Rank r gets block r of the root's buffer.
        Scatter = "scatter",
        /// No rank returns before every rank has called it.
        Barrier = "barrier",
        /// One message to one peer.
        Send = "send",
        /// One message from one peer.
        Recv = "recv",
        /// `AllGather` with a count for each rank.
        AllGatherV = "all_gather_v",
        /// `ReduceScatter` with a count for each rank.
        ReduceScatterV = "reduce_scatter_v",
        /// `AllToAll` with a count for each pair.
        AllToAllV = "all_to_all_v",
        /// `Gather` with a count for each rank.
        GatherV = "gather_v",
        /// `Scatter` with a count for each rank.
        ScatterV = "scatter_v",
        /// Rank r gets the reduction of ranks 0 to r.
        Scan = "scan",
        /// Rank r gets the reduction of the ranks below it.
        Exscan = "exscan",
    }
}

named! {
    /// How a collective's data travels.
    Algorithm {
        /// Around a ring of all ranks: fewest bytes, latency linear in the number of ranks.
        Ring = "Ring",
        /// Up and down a double binary tree: logarithmic latency.
        Tree = "Tree",
        /// Every rank with every rank, in one or two hops; all ranks get the same bits, at every size.
        Direct = "Direct",
        /// Parallel aggregated trees for all-gather and reduce-scatter: logarithmic latency.
        Pat = "PAT",
    }
}

named! {
    /// How data and its arrival flags share the memory of a connection.
    Protocol {
        /// Data and flag in one word: lowest latency, half the bandwidth.
        LowLatency = "LL",
        /// 120 bytes of data and 8 bytes of flag in a line of 128 bytes.
        LowLatency128 = "LL128",
        /// Large slots, one flag each: full bandwidth.
        Simple = "Simple",
    }
}

named! {
    /// How bytes get from one rank to another.
    TransportKind {
        /// Ranks of one process: direct pointers.
        Local = "local",
        /// Ranks of one host: shared memory.
        Shm = "shm",
        /// All other ranks: TCP.
        Net = "net",
    }
}

impl Collective {
    /// Whether the collective reduces (and so takes an operator).
    pub fn reduces(self) -> bool {
        use Collective::{AllReduce, Exscan, Reduce, ReduceScatter, ReduceScatterV, Scan};
        matches!(self, AllReduce | Reduce | ReduceScatter | ReduceScatterV | Scan | Exscan)
    }

    /// Whether the collective has a root.
    pub fn rooted(self) -> bool {
        use Collective::{Broadcast, Gather, GatherV, Reduce, Scatter, ScatterV};
        matches!(self, Broadcast | Gather | GatherV | Reduce | Scatter | ScatterV)
    }

    /// Whether it runs as messages without a plan, so that no algorithm is chosen for it.
    pub fn is_messages(self) -> bool {
        use Collective::{AllToAllV, Exscan, GatherV, Recv, Scan, ScatterV, Send};
        matches!(self, Send | Recv | AllToAllV | GatherV | ScatterV | Scan | Exscan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_lead_back() {
        for collective in Collective::ALL {
            assert_eq!(Collective::from_name(collective.name()), Some(*collective));
            assert_eq!(Collective::from_code(collective.code()), Some(*collective));
        }
        assert_eq!(Algorithm::from_name("ring"), Some(Algorithm::Ring));
        assert_eq!(Collective::from_code(200), None);
    }
}
