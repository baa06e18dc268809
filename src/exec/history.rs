//! The history of a rank's calls, which finds mismatches: the labels of its latest collectives, and a hash of all of
//! them.
//!
//! Each label carries that hash. The root of a broadcast waits for nobody, so two ranks that both believe to be the
//! root go on. From then on their labels differ, and the next call in which one of them reads the other's label reports
//! the mismatch.

use crate::error::Error;
use crate::exec::operation::{Operation, SEQUENCE, describe_in, is_send, same_call, sequence};
use crate::sync::primitive::{AtomicBool, AtomicU64, Ordering, fence};
use crate::sync::ring::Label;
use crate::sys::rank_page::{LABELS, RankPage};
use crate::types::Rank;

/// The collectives that a rank has begun. One thread begins them, and any thread may compare, also of another process
/// that looks at this one's pages.
#[derive(Debug)]
pub struct History {
    /// Has the labels of the latest collectives; number n is at index n mod [`REMEMBERED`].
    page: RankPage,
    hash: AtomicU64,
    /// Whether a mismatch was found whose cause is an earlier call, of which this rank does not have the peer's label.
    is_unnamed: AtomicBool,
}

/// The words of a label that one thread replaces while others read it: call, count, one more than the number with its
/// past (0: no label), and what the count is mixed with: [`Operation::windows`](crate::exec::Operation::windows).
///
/// The writer clears the number first and writes it last. So a reader that finds the same number before and after has
/// read one label, and not parts of two.
struct Remembered<'a>(&'a [AtomicU64; 4]);

impl Remembered<'_> {
    #[inline]
    fn set(&self, label: Label, windows_sum: u64) {
        let [call, count, number, windows] = self.0;
        number.store(0, Ordering::Relaxed);
        // Pairs with the acquire fence in `get`: a reader that finds one of the new words finds the number gone.
        fence(Ordering::Release);
        call.store(label[0], Ordering::Relaxed);
        count.store(label[1], Ordering::Relaxed);
        windows.store(windows_sum, Ordering::Relaxed);
        // Pairs with the acquire in `get`: a reader that finds the number finds the words that belong to it.
        number.store(label[2].wrapping_add(1), Ordering::Release);
    }

    /// The label; `None` if there is none yet, or if another one was set meanwhile.
    fn get(&self) -> Option<(Label, u64)> {
        let [call, count, number, windows] = self.0;
        let found = number.load(Ordering::Acquire);
        let (call, count) = (call.load(Ordering::Relaxed), count.load(Ordering::Relaxed));
        let windows = windows.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let is_whole = number.load(Ordering::Relaxed) == found && found != 0;
        is_whole.then_some(([call, count, found.wrapping_sub(1)], windows))
    }
}

impl Default for History {
    fn default() -> History {
        History::on(RankPage::hidden())
    }
}

impl History {
    /// That of a rank whose page it is; no collective yet.
    pub fn on(page: RankPage) -> History {
        History { page, hash: AtomicU64::new(0), is_unnamed: AtomicBool::new(false) }
    }

    #[inline(always)]
    fn label(&self, number: u64) -> Remembered<'_> {
        Remembered(&self.page.labels[place(number)])
    }

    /// A hash of all collectives so far, for the label of the next one. Two ranks whose calls differ have the same hash
    /// with probability 1/65,536, at each call that follows.
    #[inline]
    pub fn past(&self) -> u64 {
        // Relaxed, as in `begin`: only the thread that begins collectives uses it.
        self.hash.load(Ordering::Relaxed) & !SEQUENCE
    }

    /// Remembers the collective that begins. One thread at a time calls this.
    #[inline]
    pub fn begin(&self, operation: &Operation) {
        self.begin_as(operation.label(), operation.windows);
    }

    /// [`History::begin`] of an operation with this label.
    #[inline]
    pub fn begin_as(&self, label: Label, windows: u64) {
        self.label(sequence(label)).set(label, windows);
        let call = label[0] ^ label[1].rotate_left(32);
        let hash = (self.hash.load(Ordering::Relaxed).rotate_left(5) ^ call).wrapping_mul(SPREAD);
        self.hash.store(hash, Ordering::Relaxed);
    }

    /// The label of the collective of this number, while it is remembered.
    pub fn at(&self, number: u64) -> Option<Label> {
        self.remembered(number).map(|(label, _)| label)
    }

    fn remembered(&self, number: u64) -> Option<(Label, u64)> {
        self.label(number).get().filter(|(label, _)| sequence(*label) == number)
    }

    /// The error for a peer whose label is not `mine`. If the label is of an earlier collective, that is the call in
    /// which the two ranks differ: the peer's message of that call was never taken. Sends have numbers of their own.
    #[cold]
    pub fn mismatch(&self, mine: Label, peer: Rank, theirs: Label) -> Error {
        let then = if is_send(theirs) { None } else { self.at(sequence(theirs)) };
        let then = then.filter(|mine| !same_call(*mine, theirs)).unwrap_or(mine);
        // Relaxed: the flag stands alone.
        self.is_unnamed.store(same_call(then, theirs), Ordering::Relaxed);
        self.differs(then, peer, theirs)
    }

    /// The error for a peer that called `theirs` where this rank called `mine`.
    #[cold]
    pub fn differs(&self, mine: Label, peer: Rank, theirs: Label) -> Error {
        let windows =
            self.remembered(sequence(mine)).filter(|(label, _)| *label == mine).map_or(0, |(_, windows)| windows);
        mismatch_in(mine, peer, theirs, windows)
    }

    /// Whether [`History::mismatch`] could not name the calls that differ: a peer can, when it is told of
    /// [`History::latest`].
    pub fn is_unnamed(&self) -> bool {
        self.is_unnamed.load(Ordering::Relaxed)
    }

    /// The labels of the latest `most` collectives, the oldest first.
    pub fn latest(&self, most: usize) -> Vec<Label> {
        let mut latest: Vec<Label> =
            self.page.labels.iter().filter_map(|words| Remembered(words).get().map(|(label, _)| label)).collect();
        latest.sort_unstable_by_key(|label| sequence(*label));
        latest.split_off(latest.len().saturating_sub(most))
    }
}

/// The label in four words of a page of another process, of which `word` reads the one of a number: as
/// [`Remembered::get`] finds it in this one's.
pub fn foreign_label(word: impl Fn(usize) -> u64) -> Option<Label> {
    let found = word(2);
    let label = [word(0), word(1), found.wrapping_sub(1)];
    (found != 0 && word(2) == found).then_some(label)
}

/// The error for a peer that called another operation.
#[cold]
pub fn mismatch(mine: Label, peer: Rank, theirs: Label) -> Error {
    mismatch_in(mine, peer, theirs, 0)
}

/// [`mismatch`] of a call whose places in windows have this check sum here.
fn mismatch_in(mine: Label, peer: Rank, theirs: Label, windows: u64) -> Error {
    let (this, that) = (describe_in(mine, windows), describe_in(theirs, windows));
    let text = if same_call(mine, theirs) {
        format!("this rank and rank {peer} called different operations before {this}")
    } else {
        format!("this rank called {this}, rank {peer} called {that}")
    };
    Error::mismatch(text).about(peer)
}

fn place(number: u64) -> usize {
    usize::try_from(number % REMEMBERED as u64).expect("below a few hundred")
}

/// Collectives that a rank can compare with a peer's.
const REMEMBERED: usize = LABELS;
/// An odd number whose bits have no pattern: 2^64 divided by the golden ratio.
const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::types::{Collective, DataType};

    fn call(root: u32, number: u64, history: &History) -> Label {
        let operation = Operation {
            collective: Collective::Broadcast,
            data_type: DataType::U8,
            op: None,
            root: Some(Rank::new(root)),
            count: 4,
            sequence: number,
            past: history.past(),
            on_device: false,
            windows: 0,
        };
        history.begin(&operation);
        operation.label()
    }

    #[test]
    fn a_difference_stays_in_every_label_that_follows() {
        let (mine, theirs) = (History::default(), History::default());
        assert_eq!(call(0, 0, &mine), call(0, 0, &theirs));
        assert!(!same_call(call(0, 1, &mine), call(1, 1, &theirs)));
        for number in 2..1000 {
            let (mine, theirs) = (call(0, number, &mine), call(0, number, &theirs));
            assert!(same_call(mine, theirs));
            assert_ne!(mine, theirs, "call {number}");
        }
    }

    #[test]
    fn a_label_of_an_earlier_call_is_compared_with_that_call() {
        let mine = History::default();
        assert_eq!(mine.at(0), None);
        call(0, 0, &mine);
        let now = call(0, 1, &mine);
        let theirs = call(2, 0, &History::default());
        let error = mine.mismatch(now, Rank::new(2), theirs);
        assert_eq!(
            error.message(),
            "this rank called broadcast #0 (count 4, uint8, root 0), rank 2 called broadcast #0 (count 4, uint8, root 2)"
        );
        let sent = |count| {
            let (collective, data_type) = (Collective::Send, DataType::U8);
            let (op, root, sequence, past, on_device, windows) = (None, None, 0, 0, true, 0);
            Operation { collective, data_type, op, root, count, sequence, past, on_device, windows }.label()
        };
        let error = mine.mismatch(sent(1), Rank::new(2), sent(2));
        let text = "this rank called send #0 (count 1, uint8, on a device), rank 2 called send #0 (count 2, uint8, on a device)";
        assert_eq!(error.message(), text, "a send is none of the collectives, whatever its number");
        let before = History::default();
        call(1, 0, &before);
        let error = mine.mismatch(now, Rank::new(2), call(0, 1, &before));
        let text = "this rank and rank 2 called different operations before broadcast #1 (count 4, uint8, root 0)";
        assert_eq!(error.message(), text);
        assert!(mine.is_unnamed());
        assert_eq!(mine.latest(1), [now]);
        assert_eq!(mine.latest(9).len(), 2);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::primitive::Arc;
    use crate::sys::futex::{Membarrier, model};

    #[test]
    fn a_reader_finds_a_whole_label_or_none() {
        model(Membarrier::Works, || {
            let remembered: Arc<[AtomicU64; 4]> = Arc::new(std::array::from_fn(|_| AtomicU64::new(0)));
            let written = Arc::clone(&remembered);
            let set = move |word| Remembered(&written).set([word; 3], word);
            let writer = loom::thread::spawn(move || [1, 2].into_iter().for_each(set));
            if let Some(([call, count, number], windows)) = Remembered(&remembered).get() {
                assert_eq!((call, count, windows), (number, number, number));
            }
            writer.join().expect("loom ends the model before a panic comes here");
            assert_eq!(Remembered(&remembered).get(), Some(([2; 3], 2)));
        });
    }
}
