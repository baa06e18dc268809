//! The processor's own counter, for times of single calls, and a histogram of them: `driver/ticks.hpp` in Rust.

use std::time::{Duration, Instant};

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use clock::ticks;
#[cfg(target_arch = "x86_64")]
pub(crate) use counter::ticks;

#[cfg(target_arch = "x86_64")]
mod counter {
    use std::arch::x86_64::{_mm_lfence, _rdtsc};

    /// The counter of this processor, not before everything above has ended: the processor would read it earlier.
    #[inline]
    pub(crate) fn ticks() -> u64 {
        // SAFETY: every x86-64 processor has the instruction; it touches no memory.
        unsafe { _mm_lfence() };
        // SAFETY: every x86-64 processor has the instruction, and Linux lets programs read the counter.
        unsafe { _rdtsc() }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod clock {
    use std::sync::LazyLock;
    use std::time::Instant;

    static BEGUN: LazyLock<Instant> = LazyLock::new(Instant::now);

    /// Nanoseconds of the system's clock.
    #[inline]
    pub(crate) fn ticks() -> u64 {
        u64::try_from(BEGUN.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// What one tick is in nanoseconds, against the system's clock.
pub(crate) fn tick_ns() -> f64 {
    let (begun, first) = (Instant::now(), ticks());
    std::thread::sleep(Duration::from_millis(50));
    let last = ticks();
    begun.elapsed().as_secs_f64() * 1e9 / (last - first) as f64
}

/// What two reads in a row are apart, as a rule: it is part of each time.
pub(crate) fn overhead_ticks() -> u64 {
    let mut apart = [0; 1001].map(|_: u64| {
        let first = ticks();
        ticks().saturating_sub(first)
    });
    apart.sort_unstable();
    apart[apart.len() / 2]
}

const BITS: u32 = 6;
const CLASSES: usize = 1 << BITS;

/// How often each time was met. A power of two has 64 classes, so a class is at most 1.6 % wide; what memory it touches stays in the
/// caches, as a list of all times would not.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
    calls: u64,
}

impl Histogram {
    pub(crate) fn new() -> Histogram {
        Histogram { counts: vec![0; CLASSES * (64 - BITS as usize + 1)], total: 0, calls: 0 }
    }

    pub(crate) fn add(&mut self, value: u64) {
        self.counts[class_of(value)] += 1;
        self.total += value;
        self.calls += 1;
    }

    pub(crate) fn calls(&self) -> u64 {
        self.calls
    }

    pub(crate) fn mean(&self) -> f64 {
        self.total as f64 / self.calls.max(1) as f64
    }

    /// The middle of the class that has the call below which `share` of all calls lie.
    pub(crate) fn quantile(&self, share: f64) -> f64 {
        let wanted = share * self.calls as f64;
        let mut seen = 0;
        let at = self.counts.iter().position(|count| {
            seen += count;
            seen as f64 > wanted
        });
        at.map_or(0.0, middle)
    }
}

fn class_of(value: u64) -> usize {
    let shift = (64 - BITS).saturating_sub(1 + value.leading_zeros());
    let class = usize::try_from(value >> shift).unwrap_or(usize::MAX);
    if class < CLASSES { class } else { CLASSES * (shift as usize + 1) + class - CLASSES }
}

fn middle(at: usize) -> f64 {
    let (power, class) = (at / CLASSES, at % CLASSES);
    match power.checked_sub(1) {
        None => class as f64,
        Some(shift) => {
            let width = (1_u64 << shift) as f64;
            (class + CLASSES) as f64 * width + (width - 1.0) / 2.0
        }
    }
}
