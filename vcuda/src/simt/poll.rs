//! Recognises loops that only read the same words until somebody else changes them.

/// What a group of lanes has read, and the rounds of its loop: a round ends with a jump back. A loop may look at
/// several places in turn, so a few rounds make a cycle; it polls when cycle after cycle reads the same.
#[derive(Debug, Clone, Default)]
pub(super) struct Poll {
    /// Of the round so far.
    hash: u64,
    has_read: bool,
    /// Something happened that others can see, or the loads were not of memory's present state.
    moved: bool,
    /// The round with which each cycle ends, and the rounds since it was there.
    end: u64,
    rounds: u32,
    /// Rounds after which another one is taken for the end.
    patience: u32,
    /// Of the cycle so far, and of the one before it.
    cycle: u64,
    last: u64,
    /// Cycles that were equal.
    same: u32,
    /// Equal cycles still to make before it sleeps again.
    spare: u32,
    /// Words read since it last did more than look, without those that have changed; and when, counted in rounds.
    words: Vec<(Word, u32)>,
    next: usize,
    /// Words for which there was no room.
    more: bool,
    clock: u32,
    /// When the last whole cycle began.
    began: u32,
    line: u32,
}

/// A word as a load found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) address: u64,
    pub(super) bytes: u32,
    pub(super) value: u64,
    /// Of the block's shared memory.
    pub(super) is_shared: bool,
}

/// Equal cycles after which a loop sleeps.
const CYCLES: u32 = 2;
/// Equal cycles more when it is woken though no word has changed.
const CYCLES_AWAKE: u32 = 16;
/// Rounds of a cycle.
const LONGEST: u32 = 32;
/// Words that are remembered: a warp's loads of two words each, and as many besides.
const WORDS: usize = 4 * super::warp::LANES;

impl Poll {
    /// A load of memory that others can write.
    #[inline]
    pub(super) fn read(&mut self, word: Word, line: u32) {
        let Word { address, value, .. } = word;
        self.has_read = true;
        self.line = line;
        self.hash = mixed(self.hash ^ address ^ value.rotate_left(23));
        // A loop reads its words in the same order each time.
        let is_next = self.words.get(self.next).is_some_and(|(known, _)| known.address == address);
        let known =
            if is_next { Some(self.next) } else { self.words.iter().position(|(known, _)| known.address == address) };
        if let Some(at) = known {
            self.words[at] = (word, self.clock);
            self.next = at + 1;
        } else if self.words.len() < WORDS {
            self.words.push((word, self.clock));
            self.next = self.words.len();
        } else {
            self.more = true;
        }
        if self.next == self.words.len() {
            self.next = 0;
        }
    }

    /// Anything that is more than looking.
    #[inline]
    pub(super) fn moved(&mut self) {
        self.moved = true;
    }

    /// A jump back; whether the group should sleep.
    pub(super) fn round(&mut self) -> bool {
        if std::mem::take(&mut self.moved) {
            // The memory of the words is used again.
            *self = Self { words: std::mem::take(&mut self.words), line: self.line, ..Self::default() };
            self.words.clear();
            return false;
        }
        if !std::mem::take(&mut self.has_read) {
            return false;
        }
        let hash = std::mem::take(&mut self.hash);
        self.clock += 1;
        self.rounds += 1;
        self.cycle = mixed(self.cycle ^ hash);
        if hash == self.end {
            self.same = if self.cycle == self.last { self.same + 1 } else { 0 };
            self.last = std::mem::take(&mut self.cycle);
            self.began = self.clock - std::mem::take(&mut self.rounds);
        } else if self.rounds > self.patience {
            (self.end, self.rounds, self.cycle, self.last, self.same) = (hash, 0, 0, 0, 0);
            self.patience = (2 * self.patience).clamp(1, LONGEST);
        }
        self.same >= CYCLES + self.spare
    }

    /// A word that it polls has changed.
    pub(super) fn wake(&mut self, has_changed: impl Fn(&Word) -> bool) {
        (self.same, self.spare) = (0, 0);
        // What it does not read again is no longer of interest.
        self.words.retain(|(word, _)| !has_changed(word));
        (self.next, self.more) = (0, false);
    }

    /// It looks again though no word is known to have changed: loops that also count, or look at a clock, must reach
    /// their end.
    pub(super) fn wake_anyhow(&mut self) {
        (self.same, self.spare) = (0, CYCLES_AWAKE);
    }

    /// The words on which it depends how the loop goes on, None where there were too many.
    pub(super) fn watched(&self) -> Option<impl Iterator<Item = &Word>> {
        (!self.more).then(|| self.words.iter().map(|(word, _)| word))
    }

    /// The addresses of the last cycle's words and the line of the last load, for a report.
    pub(super) fn polled(&self) -> (impl Iterator<Item = u64>, u32) {
        let of_cycle = self.words.iter().filter(|(_, read)| *read >= self.began);
        (of_cycle.map(|(word, _)| word.address), self.line)
    }
}

fn mixed(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(address: u64, value: u64) -> Word {
        Word { address, bytes: 4, value, is_shared: false }
    }

    /// Rounds of a loop that looks at one of `words` after the other, until it sleeps.
    fn rounds_until_sleep(poll: &mut Poll, words: &[Word]) -> Option<usize> {
        (1..1000).find(|round| {
            poll.read(words[round % words.len()], 7);
            poll.round()
        })
    }

    #[test]
    fn a_loop_over_several_words_sleeps_and_remembers_them_all() {
        for many in [1, 2, 5, 16] {
            let words: Vec<Word> = (0..many).map(|i| word(64 * i, i)).collect();
            let mut poll = Poll::default();
            let rounds = rounds_until_sleep(&mut poll, &words).expect("it sleeps");
            assert!(rounds <= 8 * words.len() + 8, "{rounds} rounds of {many} words");
            let mut watched: Vec<u64> = poll.watched().expect("few words").map(|word| word.address).collect();
            watched.sort_unstable();
            assert_eq!(watched, words.iter().map(|word| word.address).collect::<Vec<_>>());
            assert_eq!(poll.polled().1, 7);
        }
    }

    #[test]
    fn a_loop_whose_words_change_or_that_does_more_than_look_does_not_sleep() {
        let mut poll = Poll::default();
        for value in 0..500 {
            poll.read(word(0, value), 1);
            assert!(!poll.round(), "each round reads something else");
        }
        let mut poll = Poll::default();
        for _ in 0..500 {
            poll.read(word(0, 3), 1);
            poll.moved();
            assert!(!poll.round(), "each round does something");
        }
    }

    #[test]
    fn news_wake_for_the_least_and_other_calls_for_some_cycles() {
        let words = [word(0, 1), word(64, 1)];
        let mut poll = Poll::default();
        rounds_until_sleep(&mut poll, &words).expect("it sleeps");
        poll.wake_anyhow();
        let anyhow = rounds_until_sleep(&mut poll, &words).expect("it sleeps again");
        poll.wake(|word| word.address == 0);
        assert!(
            poll.watched().expect("few words").all(|word| word.address == 64),
            "what has changed is looked at anew"
        );
        let at_news = rounds_until_sleep(&mut poll, &words).expect("it sleeps again");
        assert!(at_news < anyhow, "{at_news} and {anyhow}");
        assert!(anyhow >= 2 * (CYCLES_AWAKE as usize));
    }

    #[test]
    fn more_words_than_are_remembered_cannot_be_watched() {
        let mut poll = Poll::default();
        for address in 0..=(WORDS as u64) {
            poll.read(word(64 * address, 0), 1);
        }
        assert!(poll.watched().is_none());
    }
}
