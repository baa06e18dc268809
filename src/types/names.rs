//! The names of algorithms, protocols and transports, and what makes an enum of names.

/// An enum whose values have a name, and a number that travels.
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

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

pub(super) use named;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        assert_eq!(Algorithm::from_name("ring"), Some(Algorithm::Ring));
        assert_eq!(Protocol::from_code(Protocol::Simple.code()), Some(Protocol::Simple));
        assert_eq!(TransportKind::from_code(200), None);
    }
}
