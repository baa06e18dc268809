//! The ids under which the ranks have failed to meet, and the failures to make one that ranks of this process were
//! told, as far as this process knows. A store may still hold such an entry when the ranks try again under the same
//! key: whoever finds it there waits for the next one.

use std::collections::VecDeque;

use super::UniqueId;
use crate::sys::handed_down::HandedDown;
use crate::types::Rank;

/// Notes that the ranks of `id` have failed to meet.
pub(super) fn note(id: &UniqueId) {
    remember(&SPENT, id.number());
}

/// Whether the ranks of `id` have failed to meet.
pub(super) fn holds(id: &UniqueId) -> bool {
    SPENT.lock().contains(&id.number())
}

/// Notes that `rank` of this process has read why there is no id, in the record with this `number`.
pub(super) fn note_told(number: u64, rank: Rank) {
    remember(&TOLD, (number, rank.get()));
}

/// Whether `rank` of this process has read the record with this `number`, which says why there is no id.
pub(super) fn is_told(number: u64, rank: Rank) -> bool {
    TOLD.lock().contains(&(number, rank.get()))
}

fn remember<T: Send>(list: &HandedDown<VecDeque<T>>, entry: T) {
    let mut list = list.lock();
    if list.len() == MOST_SPENT {
        list.pop_front();
    }
    list.push_back(entry);
}

/// The failures to make an id that ranks of this process were told, by the number of the record.
static TOLD: HandedDown<VecDeque<(u64, u32)>> = HandedDown::new(VecDeque::new, VecDeque::clone);

/// The numbers of the latest ids. They are random, so an id of another try is never among them.
static SPENT: HandedDown<VecDeque<u64>> = HandedDown::new(VecDeque::new, VecDeque::clone);

/// A store holds one id under each key: of a few keys, and ranks that are threads, the latest are enough.
const MOST_SPENT: usize = 256;
