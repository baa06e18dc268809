//! Domains that do the same things at the same times, of which one is simulated.

use crate::plan::Spec;
use crate::tune::terrain::Terrain;
use crate::types::{Algorithm, Rank};

/// Which domains of a terrain are simulated, and for which others they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Folding {
    /// Every domain for itself.
    Exact,
    /// Domain 0 for all: domains are equal, and each does what the one before it does, one place further on. What goes
    /// from domain 0 to another comes to domain 0 from one that is as far behind.
    Rotation,
}

impl Folding {
    /// The fold of a collective on a terrain. It takes equal domains, no root, and an algorithm without an end: rings,
    /// and exchanges of all with all, turn into themselves. Every place in the two trees of a double tree is unlike
    /// every other; PAT parts its messages where rank 0 follows the last rank.
    pub fn of(terrain: &Terrain, spec: &Spec) -> Folding {
        let turns = match spec.algorithm {
            Algorithm::Ring | Algorithm::Direct => !spec.collective.rooted(),
            Algorithm::Tree | Algorithm::Pat => false,
        };
        if turns && terrain.is_even() && terrain.domains().len() > 1 { Folding::Rotation } else { Folding::Exact }
    }

    /// Whether a domain is simulated.
    pub fn keeps(self, domain: usize) -> bool {
        self.kept(domain) == domain
    }

    /// The domain that is simulated for another.
    pub(super) fn kept(self, domain: usize) -> usize {
        match self {
            Folding::Exact => domain,
            Folding::Rotation => 0,
        }
    }

    /// A connection with its receiver in a domain that is simulated.
    pub(super) fn seen_by_receiver(self, terrain: &Terrain, (from, to): (Rank, Rank)) -> (Rank, Rank) {
        match self {
            Folding::Exact => (from, to),
            Folding::Rotation => {
                let ((source, seat), (target, other)) = (terrain.place(from), terrain.place(to));
                let domains = terrain.domains();
                let behind = (source + domains.len() - target) % domains.len();
                (domains[behind][seat], domains[0][other])
            }
        }
    }
}
