//! Symbols in place of data.

use std::rc::Rc;

/// What one element holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Value {
    /// Which element of the inputs.
    pub(super) index: u64,
    /// The ranks whose elements were reduced, in that order.
    pub(super) ranks: Rc<[u32]>,
    /// How many combines have reduced into this value.
    pub(super) reductions: u32,
    /// Whether an average has been divided.
    pub(super) finished: bool,
    /// Whether this is a user's input to which no operator's scalar has been applied.
    pub(super) raw: bool,
}

impl Value {
    /// An element of a rank's input.
    pub(super) fn input(rank: u32, index: u64) -> Value {
        Value { index, ranks: Rc::from([rank]), reductions: 0, finished: false, raw: true }
    }

    /// The value that is `by` elements further on.
    pub(super) fn ahead(&self, by: u64) -> Value {
        Value { index: self.index + by, ..self.clone() }
    }

    /// The reduction of several values.
    pub(super) fn reduce(values: &[Value]) -> Result<Value, String> {
        let (first, rest) = values.split_first().ok_or("a combine without sources")?;
        let mut ranks = first.ranks.to_vec();
        for value in rest {
            if value.index != first.index {
                return Err(format!("adds element {} to element {}", value.index, first.index));
            }
            for rank in value.ranks.iter() {
                if ranks.contains(rank) {
                    return Err(format!("adds rank {rank}'s contribution to element {} twice", first.index));
                }
                ranks.push(*rank);
            }
        }
        if values.iter().any(|value| value.finished) {
            return Err(format!("adds to element {}, which is final", first.index));
        }
        let reductions = values.iter().map(|value| value.reductions).max().unwrap_or(0) + 1;
        Ok(Value { ranks: ranks.into(), reductions, ..first.clone() })
    }
}

/// Neighbouring elements: the value of the first, from which the indices of the others count on; `None` if nothing has
/// been written there.
#[derive(Debug, Clone)]
pub(super) struct Strip {
    pub(super) length: u64,
    pub(super) value: Option<Value>,
}

/// Walks several contents of equal length together, cut into strips that no boundary of any content divides.
pub(super) fn side_by_side(contents: &[Vec<Strip>]) -> Vec<(u64, Vec<Option<Value>>)> {
    let mut places = vec![(0_usize, 0_u64); contents.len()];
    let mut strips = Vec::new();
    loop {
        let heads: Option<Vec<&Strip>> =
            contents.iter().zip(&places).map(|(strips, (index, _))| strips.get(*index)).collect();
        let Some(heads) = heads.filter(|heads| !heads.is_empty()) else { return strips };
        let left = heads.iter().zip(&places).map(|(strip, (_, used))| strip.length - used);
        let length = left.min().unwrap_or(0);
        let values = heads.iter().zip(&places).map(|(strip, (_, used))| strip.value.as_ref().map(|v| v.ahead(*used)));
        strips.push((length, values.collect()));
        for (strip, (index, used)) in heads.iter().zip(&mut places) {
            *used += length;
            if *used == strip.length {
                (*index, *used) = (*index + 1, 0);
            }
        }
    }
}
