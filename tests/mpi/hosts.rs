//! several hosts
use crate::Act;
pub(crate) const ACTS: &[Act] = &[];
