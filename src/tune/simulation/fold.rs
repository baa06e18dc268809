//! Domains that do the same things at the same times, of which one is simulated.

use crate::plan::Spec;
use crate::tune::stage::Stage;
use crate::types::{Algorithm, Rank};

/// Which domains of a stage are simulated, and for which others they stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fold {
    /// Every domain for itself.
    Exact,
    /// Domain 0 for all: domains are equal, and each does what the one before it does, one place further on. What goes from domain 0 to
    /// another comes to domain 0 from one that is as far behind.
    Rotation,
}

impl Fold {
    /// The fold of a collective on a stage. It takes equal domains, no root, and an algorithm without an end: rings, and exchanges of all
    /// with all, turn into themselves. Every place in the two trees of a double tree is unlike every other; PAT parts its messages where
    /// rank 0 follows the last rank.
    pub fn of(stage: &Stage, spec: &Spec) -> Fold {
        let turns = match spec.algorithm {
            Algorithm::Ring | Algorithm::Direct => !spec.collective.rooted(),
            Algorithm::Tree | Algorithm::Pat => false,
        };
        if turns && stage.is_even() && stage.domains().len() > 1 { Fold::Rotation } else { Fold::Exact }
    }

    /// Whether a domain is simulated.
    pub fn keeps(self, domain: usize) -> bool {
        self.kept(domain) == domain
    }

    /// The domain that is simulated for another.
    pub(super) fn kept(self, domain: usize) -> usize {
        match self {
            Fold::Exact => domain,
            Fold::Rotation => 0,
        }
    }

    /// A connection with its receiver in a domain that is simulated.
    pub(super) fn seen_by_receiver(self, stage: &Stage, (from, to): (Rank, Rank)) -> (Rank, Rank) {
        match self {
            Fold::Exact => (from, to),
            Fold::Rotation => {
                let ((source, seat), (target, other)) = (stage.place(from), stage.place(to));
                let domains = stage.domains();
                let behind = (source + domains.len() - target) % domains.len();
                (domains[behind][seat], domains[0][other])
            }
        }
    }
}
