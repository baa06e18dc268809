//! Recognises loops that only read the same words until somebody else changes them.

/// What a group of lanes has read since its last jump back.
#[derive(Debug, Clone, Default)]
pub(super) struct Poll {
    hash: u64,
    last: u64,
    has_read: bool,
    /// Something happened that others can see, or the loads were not of memory's present state.
    moved: bool,
    same: u32,
    /// Equal rounds still to make before it sleeps again.
    spare: u32,
    words: Vec<u64>,
    polled: Vec<u64>,
    line: u32,
}

/// Equal rounds after which a loop sleeps.
const ROUNDS: u32 = 2;
/// Rounds that a loop may make each time it is woken: loops that also count must reach their end.
const ROUNDS_AWAKE: u32 = 16;
/// Words that a report names.
const WORDS: usize = 8;

impl Poll {
    /// A load of memory that others can write.
    #[inline]
    pub(super) fn read(&mut self, address: u64, value: u64, line: u32) {
        self.has_read = true;
        self.line = line;
        self.hash = (self.hash ^ address ^ value.rotate_left(23)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
        if self.words.len() < WORDS && !self.words.contains(&address) {
            self.words.push(address);
        }
    }

    /// Anything that is more than looking.
    #[inline]
    pub(super) fn moved(&mut self) {
        self.moved = true;
    }

    /// A jump back; whether the group should sleep.
    pub(super) fn round(&mut self) -> bool {
        if !self.has_read && !self.moved {
            return false;
        }
        let is_same = self.has_read && !self.moved && self.hash == self.last;
        self.same = if is_same { self.same + 1 } else { 0 };
        self.last = self.hash;
        self.hash = 0;
        self.has_read = false;
        self.moved = false;
        self.polled.clear();
        self.polled.append(&mut self.words);
        self.same >= ROUNDS + self.spare
    }

    pub(super) fn wake(&mut self) {
        self.same = 0;
        self.spare = ROUNDS_AWAKE;
    }

    /// The words of the last round, and the line of the last load.
    pub(super) fn polled(&self) -> (&[u64], u32) {
        (&self.polled, self.line)
    }
}
