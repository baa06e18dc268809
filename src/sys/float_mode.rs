//! The floating-point mode of a thread: how it rounds, and whether it takes subnormal numbers for zero.
//!
//! A program, or a library that it loads, may change the mode of its threads: compilers do so for `-ffast-math`,
//! runtimes of machine learning to be quicker. New threads begin with the mode of the thread that makes them. Results
//! that must not depend on the mode are computed inside [`standard`].
//!
//! | architecture | register | bits that count |
//! |---|---|---|
//! | x86-64 | MXCSR | rounding (13, 14), flush to zero (15), denormals are zero (6) |
//! | AArch64 | FPCR | rounding (22, 23), FZ (24), FZ16 (19), DN (25), FIZ (0), AH (1), NEP (2) |
//!
//! In the standard mode all of them are 0: to nearest, ties to even, subnormal numbers kept. All other bits (raised
//! flags, traps) stay what the program has made them.

use std::marker::PhantomData;

use control::MODE;

/// The register, or its low half.
type Word = u64;

/// Puts the mode of this thread back when it is dropped.
#[derive(Debug)]
#[must_use = "the mode is put back when this is dropped"]
pub struct Mode {
    /// The bits of the mode before; `None` where nothing was changed.
    before: Option<Word>,
    /// The mode is that of one thread.
    _of_thread: PhantomData<*const ()>,
}

/// Sets the standard mode for this thread until the result is dropped. In a thread that has it, reads one register.
#[inline]
pub fn standard() -> Mode {
    set(0)
}

/// The mode of a thread, for another one that computes in its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OtherMode(Word);

/// The mode of this thread.
pub fn of_this_thread() -> OtherMode {
    OtherMode(control::read() & MODE)
}

/// Sets the mode of the thread for which this one computes, until the result is dropped.
pub fn in_place_of(thread: OtherMode) -> Mode {
    set(thread.0)
}

/// Rounds towards positive infinity and takes subnormal numbers for zero, in operands and results: for tests. Between
/// the call and the drop, code of this crate may compute with another mode than the compiler assumes.
#[doc(hidden)]
pub fn unusual() -> Mode {
    set(control::UNUSUAL)
}

/// Whether this thread computes in the standard mode.
pub fn is_standard() -> bool {
    control::read() & MODE == 0
}

#[inline]
fn set(mode: Word) -> Mode {
    let word = control::read();
    let before = word & MODE;
    if before != mode {
        control::write((word & !MODE) | mode);
    }
    Mode { before: (before != mode).then_some(before), _of_thread: PhantomData }
}

impl Drop for Mode {
    #[inline]
    fn drop(&mut self) {
        if let Some(before) = self.before {
            control::write((control::read() & !MODE) | before);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod control {
    use std::arch::asm;

    use super::Word;

    const FLUSH_TO_ZERO: Word = 1 << 15;
    const DENORMALS_ARE_ZERO: Word = 1 << 6;
    const ROUND_UP: Word = 0b10 << 13;
    pub(super) const MODE: Word = FLUSH_TO_ZERO | DENORMALS_ARE_ZERO | 0b11 << 13;
    pub(super) const UNUSUAL: Word = FLUSH_TO_ZERO | DENORMALS_ARE_ZERO | ROUND_UP;

    // No `nomem`: computations whose operands are in memory stay on their side of these instructions.

    #[inline]
    pub(super) fn read() -> Word {
        let mut word: u32 = 0;
        // SAFETY: stores the register's 4 bytes into the variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word.into()
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the register has 32 bits")]
    pub(super) fn write(word: Word) {
        let word = word as u32;
        // SAFETY: the word is one that was read from the register, with other bits of the mode: none is reserved. The
        // mode that the compiler assumes is the standard one. Only `Mode::drop` and `in_place_of` leave it, for one
        // that the program had set, and no computation of this crate's that counts on the mode comes after.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack, preserves_flags)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod control {
    use std::arch::asm;

    use super::Word;

    const FLUSH_TO_ZERO: Word = 1 << 24;
    const ROUND_UP: Word = 0b01 << 22;
    /// FZ, FZ16, DN, rounding; and FIZ, AH, NEP, which read as 0 where the processor does not have them.
    pub(super) const MODE: Word = FLUSH_TO_ZERO | 1 << 19 | 1 << 25 | 0b11 << 22 | 0b111;
    pub(super) const UNUSUAL: Word = FLUSH_TO_ZERO | ROUND_UP;

    #[inline]
    pub(super) fn read() -> Word {
        let word: Word;
        // SAFETY: reads a register that every thread may read. Not `nomem`: see x86-64.
        unsafe { asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: as for x86-64.
        unsafe { asm!("msr fpcr, {}", in(reg) word, options(nostack, preserves_flags)) };
    }
}

/// Architectures whose mode is not known here: nothing is changed. Miri has the standard mode alone.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod control {
    use super::Word;

    pub(super) const MODE: Word = 0;
    pub(super) const UNUSUAL: Word = 0;

    pub(super) fn read() -> Word {
        0
    }

    pub(super) fn write(_word: Word) {}
}

#[cfg(test)]
#[cfg(not(any(miri, loom)))]
mod tests {
    use std::hint::black_box;

    use super::*;

    /// What a thread in the mode computes: a subnormal sum, and one that is rounded.
    fn sums() -> (u32, u32) {
        let least = f32::from_bits(1);
        let subnormal = black_box(least) + black_box(least);
        let rounded = black_box(1.0f32) + black_box(f32::EPSILON / 4.0);
        (subnormal.to_bits(), rounded.to_bits())
    }

    #[test]
    fn the_standard_mode_is_set_and_the_other_put_back() {
        let usual = (2, 1.0f32.to_bits());
        assert!(is_standard());
        assert_eq!(sums(), usual);
        {
            let _unusual = unusual();
            let other = sums();
            assert_ne!(other.0, usual.0, "subnormal numbers are zero");
            assert_ne!(other.1, usual.1, "rounded up");
            {
                let _standard = standard();
                assert!(is_standard());
                assert_eq!(sums(), usual);
            }
            assert!(!is_standard());
            assert_eq!(sums(), other);
        }
        assert_eq!(sums(), usual);
    }

    #[test]
    fn flags_and_traps_stay_the_programs() {
        let traps = |word: Word| word & !MODE & !FLAGS;
        let before = control::read();
        let _unusual = unusual();
        {
            let _standard = standard();
            black_box(black_box(1.0f32) / black_box(3.0));
        }
        assert_eq!(traps(control::read()), traps(before));
        #[cfg(target_arch = "x86_64")]
        assert_ne!(control::read() & 1 << 5, 0, "the inexact quotient has raised its flag");
    }

    #[cfg(target_arch = "x86_64")]
    const FLAGS: Word = 0x3f;
    #[cfg(not(target_arch = "x86_64"))]
    const FLAGS: Word = 0;
}
