//! Faults on demand: any call of the driver fails on its n-th time, a GPU falls off the bus, memory runs out, a kernel hangs.
//!
//! `VCUDA_FAIL` lists them, separated by commas; each process counts its own calls:
//!
//! | entry | effect |
//! |---|---|
//! | `cuMemAlloc_v2:3:2` | the third `cuMemAlloc_v2` answers 2 (`OUT_OF_MEMORY`) |
//! | `cuMemAlloc_v2:3+:2` | so do all that follow |
//! | `cuMemAlloc_v2:3` | the code is 999 (`UNKNOWN`) |
//! | `any:40:999` | the fortieth call, whichever it is |
//! | `lost:1:40` | GPU 1 falls off the bus at the fortieth call, for all processes of the host |
//! | `memory:1:64M` | GPU 1 has 64 MiB (`K`, `M`, `G`, or bytes) |
//! | `hang:KERNEL:2` | the second launch of that function never ends |
//!
//! The driver asks [`check`] at the entry of each call, [`lost`] for the GPU that the call is about, [`memory_limit`] where it
//! counts memory, and [`hangs`] at each launch.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// `CUDA_ERROR_INVALID_VALUE`: what every call answers when the list of faults has a mistake.
const INVALID_VALUE: i32 = 1;
/// `CUDA_ERROR_UNKNOWN`: what a failing call answers unless the list says otherwise, and what a lost GPU answers.
const UNKNOWN: i32 = 999;

/// The faults of a process.
#[derive(Debug, Default)]
pub struct Faults {
    calls: Vec<Call>,
    lost: Vec<Lost>,
    memory: Vec<(u32, u64)>,
    hangs: Vec<Call>,
    /// All calls so far.
    total: AtomicU64,
}

/// A name that is counted, and what happens at a count.
#[derive(Debug)]
struct Call {
    /// `any` counts all.
    name: String,
    nth: u64,
    onwards: bool,
    code: i32,
    seen: AtomicU64,
}

#[derive(Debug)]
struct Lost {
    gpu: u32,
    at_call: u64,
}

impl Faults {
    /// Reads a list as `VCUDA_FAIL` holds it; the empty list is no faults.
    ///
    /// # Errors
    /// An entry has another form than those of the module's table: the text repeats it.
    ///
    /// # Examples
    /// ```
    /// let faults = vcuda::fault::Faults::parse("cuMemAlloc_v2:2:2")?;
    /// assert_eq!(faults.check("cuMemAlloc_v2"), None);
    /// assert_eq!(faults.check("cuMemAlloc_v2"), Some(2));
    /// # Ok::<(), String>(())
    /// ```
    pub fn parse(list: &str) -> Result<Faults, String> {
        let mut faults = Faults::default();
        for entry in list.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            faults.add(entry).map_err(|what| {
                format!("VCUDA_FAIL: {entry:?}: {what}; an entry is like cuMemAlloc_v2:3:2, cuMemAlloc_v2:3+, any:40, lost:0:40, memory:0:64M or hang:kernel:1")
            })?;
        }
        Ok(faults)
    }

    fn add(&mut self, entry: &str) -> Result<(), String> {
        let parts: Vec<&str> = entry.split(':').collect();
        match parts[..] {
            ["lost", gpu, at] => self.lost.push(Lost { gpu: number(gpu)?, at_call: number(at)? }),
            ["memory", gpu, bytes] => self.memory.push((number(gpu)?, bytes_of(bytes)?)),
            ["hang", kernel, nth] => self.hangs.push(Call::new(kernel, nth, 0)?),
            ["lost" | "memory" | "hang", ..] => return Err("two values belong behind it".to_owned()),
            [name, nth] => self.calls.push(Call::new(name, nth, UNKNOWN)?),
            [name, nth, code] => self.calls.push(Call::new(name, nth, number(code)?)?),
            _ => return Err("it has too few or too many parts".to_owned()),
        }
        Ok(())
    }

    /// Counts a call; the code that it has to answer at once, if it is to fail.
    pub fn check(&self, name: &str) -> Option<i32> {
        self.total.fetch_add(1, Ordering::Relaxed);
        // All entries count, also behind one that fails.
        let counted = self.calls.iter().filter(|call| call.name == "any" || call.name == name);
        counted.filter_map(|call| call.count().then_some(call.code)).fold(None, |first, code| first.or(Some(code)))
    }

    fn has_fallen(&self, gpu: u32) -> bool {
        let total = self.total.load(Ordering::Relaxed);
        self.lost.iter().any(|lost| lost.gpu == gpu && total >= lost.at_call)
    }

    /// Counts a launch of a function; whether this launch never ends.
    pub fn hangs(&self, kernel: &str) -> bool {
        let counted = self.hangs.iter().filter(|call| call.name == kernel);
        counted.filter(|call| call.count()).count() > 0
    }

    /// The memory that a GPU has by the list, if it says so.
    #[must_use]
    pub fn memory_limit(&self, gpu: u32) -> Option<u64> {
        self.memory.iter().find(|(limited, _)| *limited == gpu).map(|(_, bytes)| *bytes)
    }
}

impl Call {
    fn new(name: &str, nth: &str, code: i32) -> Result<Call, String> {
        let onwards = nth.ends_with('+');
        let nth = number(nth.trim_end_matches('+'))?;
        if nth == 0 {
            return Err("calls are counted from 1".to_owned());
        }
        if name.is_empty() {
            return Err("it names no call".to_owned());
        }
        Ok(Call { name: name.to_owned(), nth, onwards, code, seen: AtomicU64::new(0) })
    }

    /// Counts; whether this is the time.
    fn count(&self) -> bool {
        let seen = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        if self.onwards { seen >= self.nth } else { seen == self.nth }
    }
}

/// Counts a call of the driver by its exported name; `Some(code)`: the call answers this `CUresult` and does nothing.
pub fn check(name: &str) -> Option<i32> {
    match of_process() {
        Ok(faults) => faults.check(name),
        Err(_) => Some(INVALID_VALUE),
    }
}

/// The `CUresult` of everything that touches a GPU which has fallen off the bus; `None` while it is there.
///
/// It is lost for all processes of the host, from the moment that the list names or from `vcuda lose GPU` on.
#[must_use]
pub fn lost(gpu: u32) -> Option<i32> {
    let faults = of_process().as_ref().ok()?;
    let marker = marker_of(gpu);
    if faults.has_fallen(gpu) && marker.as_ref().is_some_and(|marker| !marker.exists()) {
        // Without the marker the other processes still see the GPU: the test that waits for them says so.
        let _ = marker.as_ref().map(|marker| fs::write(marker, b""));
    }
    let lost = faults.has_fallen(gpu) || marker.is_some_and(|marker| marker.exists());
    lost.then_some(UNKNOWN)
}

/// The memory that a GPU has by the list of faults; `None`: as the machine file says.
#[must_use]
pub fn memory_limit(gpu: u32) -> Option<u64> {
    of_process().as_ref().ok()?.memory_limit(gpu)
}

/// Counts a launch of a function by name; true: this launch never ends.
pub fn hangs(kernel: &str) -> bool {
    of_process().as_ref().is_ok_and(|faults| faults.hangs(kernel))
}

/// The list of this process, read once; a mistake is printed once.
fn of_process() -> &'static Result<Faults, String> {
    static FAULTS: OnceLock<Result<Faults, String>> = OnceLock::new();
    FAULTS.get_or_init(|| {
        let faults = Faults::parse(&env::var("VCUDA_FAIL").unwrap_or_default());
        if let Err(what) = &faults {
            eprintln!("vcuda: {what}");
        }
        faults
    })
}

/// The file in a state folder that says for all processes of a host that a GPU is lost.
#[must_use]
pub fn marker(state: &Path, gpu: u32) -> PathBuf {
    state.join(format!("lost.{gpu}"))
}

fn marker_of(gpu: u32) -> Option<PathBuf> {
    env::var_os("VCUDA_STATE").map(|state| marker(Path::new(&state), gpu))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no number of its range"))
}

fn bytes_of(text: &str) -> Result<u64, String> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'M') => (&text[..text.len() - 1], 1 << 20),
        Some(b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    let count: u64 = number(digits)?;
    count.checked_mul(unit).ok_or_else(|| format!("{text:?} is more than a GPU can have"))
}

#[cfg(test)]
mod tests {
    use super::Faults;

    #[test]
    fn a_call_fails_on_its_nth_time_alone() {
        let faults = Faults::parse("cuMemAlloc_v2:3:2, cuStreamCreate:1").unwrap();
        let codes: Vec<_> = (0..5).map(|_| faults.check("cuMemAlloc_v2")).collect();
        assert_eq!(codes, [None, None, Some(2), None, None]);
        assert_eq!(faults.check("cuStreamCreate"), Some(999));
        assert_eq!(faults.check("cuStreamCreate"), None);
    }

    #[test]
    fn from_a_time_on_and_calls_of_any_name() {
        let faults = Faults::parse("cuInit:2+:100,any:4:7").unwrap();
        assert_eq!(faults.check("cuInit"), None);
        assert_eq!(faults.check("cuInit"), Some(100));
        assert_eq!(faults.check("cuDeviceGet"), None);
        assert_eq!(faults.check("cuDeviceGet"), Some(7), "the fourth of all");
        assert_eq!(faults.check("cuInit"), Some(100));
    }

    #[test]
    fn a_gpu_is_lost_from_a_call_on() {
        let faults = Faults::parse("lost:1:2").unwrap();
        faults.check("cuInit");
        assert!(!faults.has_fallen(1));
        faults.check("cuInit");
        assert!(faults.has_fallen(1) && !faults.has_fallen(0));
    }

    #[test]
    fn memory_and_hangs() {
        let faults = Faults::parse("memory:0:64M,hang:spin:2").unwrap();
        assert_eq!((faults.memory_limit(0), faults.memory_limit(1)), (Some(64 << 20), None));
        assert_eq!([faults.hangs("spin"), faults.hangs("add"), faults.hangs("spin")], [false, false, true]);
    }

    #[test]
    fn a_mistake_repeats_the_entry() {
        for entry in
            ["cuInit", "cuInit:0", "cuInit:x", "cuInit:1:y", "a:1:2:3", "lost:1", "memory:0:1T", "hang:k:0", ":1"]
        {
            let error = Faults::parse(&format!("cuInit:1,{entry}")).unwrap_err();
            assert!(error.contains(&format!("{entry:?}")), "{error}");
        }
    }
}
