//! PMIx, the interface of process managers: the few functions of its client library by which ranks give each other
//! values, loaded while the program runs. The binary interface is that of `libpmix.so.2`, which versions 3.2 to 6.1
//! have in common.
//!
//! Calls block for as long as the process manager likes: [`PmixClient`] belongs to a thread that nothing waits for.

use std::ffi::{CStr, CString, c_char, c_void};

use crate::sys::library::Library;

/// A status of PMIx that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PmixStatus(pub i32);

impl PmixStatus {
    /// Whether a value may come later: it was not found, not in time, or not where this rank could ask.
    pub fn is_not_yet(self) -> bool {
        const ERROR: i32 = -1;
        const TIMEOUT: i32 = -24;
        const NOT_FOUND: i32 = -46;
        [ERROR, TIMEOUT, NOT_FOUND].contains(&self.0)
    }
}

impl std::fmt::Display for PmixStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words = match self.0 {
            -7 => "a process of the job has ended",
            -24 => "timed out",
            -25 => "no server answers: the variables of PMIx are left over",
            -31 => "not initialised",
            -46 => "not found",
            -50 | -52 => "a process of the job has ended or left",
            _ => "PMIx's own code",
        };
        write!(f, "{} ({words})", self.0)
    }
}

/// The functions that are used, of a loaded library.
#[derive(Debug, Clone, Copy)]
pub struct PmixLibrary {
    init: unsafe extern "C" fn(*mut ProcessName, *mut Info, usize) -> i32,
    finalize: unsafe extern "C" fn(*const Info, usize) -> i32,
    put: unsafe extern "C" fn(u8, *const c_char, *mut Value) -> i32,
    commit: unsafe extern "C" fn() -> i32,
    fence: unsafe extern "C" fn(*const ProcessName, usize, *const Info, usize) -> i32,
    get: unsafe extern "C" fn(*const ProcessName, *const c_char, *const Info, usize, *mut *mut Value) -> i32,
}

/// A process that is a client of its process manager.
#[derive(Debug)]
pub struct PmixClient {
    library: PmixLibrary,
    me: ProcessName,
}

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct ProcessName {
    space: [u8; 256],
    rank: u32,
}

/// `pmix_value_t`. `data` is a union; its first word is the number, or the address of the text.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Value {
    kind: u16,
    data: [u64; 3],
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [u8; 512],
    flags: u32,
    value: Value,
}

const _: () = {
    assert!(size_of::<ProcessName>() == 260 && std::mem::offset_of!(ProcessName, rank) == 256);
    assert!(size_of::<Value>() == 32 && std::mem::offset_of!(Value, data) == 8);
    assert!(size_of::<Info>() == 552 && std::mem::offset_of!(Info, value) == 520);
};

impl PmixLibrary {
    /// The library: the one that this process has loaded already (an MPI's, which speaks to the same process manager),
    /// else by its name.
    ///
    /// # Errors
    /// What the loader says.
    pub fn load() -> Result<PmixLibrary, String> {
        let library = match Library::loaded(NAME) {
            Some(library) => library,
            None => Library::open(NAME)?,
        };
        macro_rules! function {
            ($name:literal) => {{
                // SAFETY: the field has the type that pmix.h gives the function, in all versions of this interface.
                let function = unsafe { library.function($name) };
                function.ok_or_else(|| format!("libpmix.so.2 has no {}", $name.to_string_lossy()))?
            }};
        }
        Ok(PmixLibrary {
            init: function!(c"PMIx_Init"),
            finalize: function!(c"PMIx_Finalize"),
            put: function!(c"PMIx_Put"),
            commit: function!(c"PMIx_Commit"),
            fence: function!(c"PMIx_Fence"),
            get: function!(c"PMIx_Get"),
        })
    }

    /// Makes this process a client. Once a process: after a failure the library must not be called again.
    ///
    /// # Errors
    /// Any status but success, also one with which the library calls itself initialised: then it is alone.
    pub fn init(self) -> Result<PmixClient, PmixStatus> {
        let mut me = ProcessName { space: [0; 256], rank: u32::MAX };
        // SAFETY: it writes one name, and reads no options.
        checked(unsafe { (self.init)(&raw mut me, std::ptr::null_mut(), 0) })?;
        Ok(PmixClient { library: self, me })
    }
}

impl PmixClient {
    /// This process's rank in its job.
    pub fn rank(&self) -> u32 {
        self.me.rank
    }

    /// The name of the job.
    pub fn job(&self) -> String {
        let end = self.me.space.iter().position(|byte| *byte == 0).unwrap_or(self.me.space.len());
        String::from_utf8_lossy(&self.me.space[..end]).into_owned()
    }

    /// How many ranks the job has; `None` if PMIx does not tell it as a number.
    ///
    /// # Errors
    /// PMIx's.
    pub fn job_size(&self) -> Result<Option<u32>, PmixStatus> {
        match self.ask(EVERYONE, JOB_SIZE)? {
            Told::Number(number) => Ok(u32::try_from(number).ok()),
            Told::Text(_) | Told::Other => Ok(None),
        }
    }

    /// Puts a text under a key of this rank, for all others.
    ///
    /// # Errors
    /// PMIx's.
    pub fn put(&self, key: &CStr, text: &CStr) -> Result<(), PmixStatus> {
        let mut value = Value { kind: STRING, data: [address_of(text), 0, 0] };
        // SAFETY: key and text end in a zero byte; PMIx copies both before it returns.
        checked(unsafe { (self.library.put)(GLOBAL, key.as_ptr(), &raw mut value) })
    }

    /// Sends what was put to the process manager.
    ///
    /// # Errors
    /// PMIx's.
    pub fn commit(&self) -> Result<(), PmixStatus> {
        // SAFETY: it takes nothing.
        checked(unsafe { (self.library.commit)() })
    }

    /// Waits for all ranks of the job, and collects what they have committed. Success does not mean that all have come.
    ///
    /// # Errors
    /// PMIx's.
    pub fn fence(&self) -> Result<(), PmixStatus> {
        let mut collect = Info { key: [0; 512], flags: 0, value: Value { kind: BOOL, data: [1, 0, 0] } };
        let name = COLLECT.to_bytes();
        collect.key[..name.len()].copy_from_slice(name);
        // SAFETY: no names mean all ranks of this job; the option is read while the call lasts.
        checked(unsafe { (self.library.fence)(std::ptr::null(), 0, &raw const collect, 1) })
    }

    /// The text under a key of `rank`; `None` if it is not there yet, or is no text.
    ///
    /// # Errors
    /// PMIx's.
    pub fn get(&self, rank: u32, key: &CStr) -> Result<Option<String>, PmixStatus> {
        match self.ask(rank, key) {
            Ok(Told::Text(text)) => Ok(Some(text)),
            Ok(Told::Number(_) | Told::Other) => Ok(None),
            Err(status) if status.is_not_yet() => Ok(None),
            Err(status) => Err(status),
        }
    }

    fn ask(&self, rank: u32, key: &CStr) -> Result<Told, PmixStatus> {
        let (whose, mut value) = (ProcessName { rank, ..self.me }, std::ptr::null_mut::<Value>());
        // SAFETY: name and key are read while the call lasts, with no options; it writes one address.
        let status = unsafe { (self.library.get)(&raw const whose, key.as_ptr(), std::ptr::null(), 0, &raw mut value) };
        checked(status)?;
        if value.is_null() {
            return Ok(Told::Other);
        }
        // SAFETY: after success PMIx has allocated a value there.
        let told = unsafe { value.read() };
        // SAFETY: PMIx allocates it by `malloc`, for the caller to free.
        unsafe { libc::free(value.cast()) };
        let number = told.data[0];
        Ok(match told.kind {
            STRING => text_at(number),
            UINT16 => Told::Number(number & 0xffff),
            INT | UINT32 | PROC_RANK => Told::Number(number & 0xffff_ffff),
            SIZE | UINT64 => Told::Number(number),
            _ => Told::Other,
        })
    }

    /// Leaves the process manager. Once a process, at its end.
    ///
    /// # Errors
    /// PMIx's.
    pub fn finalize(self) -> Result<(), PmixStatus> {
        // SAFETY: it reads no options.
        checked(unsafe { (self.library.finalize)(std::ptr::null(), 0) })
    }
}

/// A value in PMIx's hands.
enum Told {
    Text(String),
    Number(u64),
    Other,
}

fn address_of(text: &CStr) -> u64 {
    u64::try_from(text.as_ptr().addr()).unwrap_or(0)
}

/// The text that PMIx has allocated at an address, at most [`MOST_TEXT_BYTES`] of it; frees it.
fn text_at(address: u64) -> Told {
    let Some(address) = usize::try_from(address).ok().filter(|address| *address != 0) else { return Told::Other };
    let place = std::ptr::with_exposed_provenance_mut::<c_char>(address);
    // SAFETY: a text of PMIx ends in a zero byte, and no more than the bound is looked at.
    let length = unsafe { libc::strnlen(place, MOST_TEXT_BYTES) };
    // SAFETY: that many bytes were looked at, and belong to this call until they are freed.
    let bytes = unsafe { std::slice::from_raw_parts(place.cast::<u8>(), length) };
    let text = String::from_utf8_lossy(bytes).into_owned();
    // SAFETY: PMIx allocates texts by `malloc`, for the caller to free; nothing holds the bytes any more.
    unsafe { libc::free(place.cast::<c_void>()) };
    Told::Text(text)
}

fn checked(status: i32) -> Result<(), PmixStatus> {
    if status == 0 { Ok(()) } else { Err(PmixStatus(status)) }
}

/// `text` for PMIx, which takes none with a zero byte inside.
pub fn c_text(text: &str) -> Option<CString> {
    CString::new(text).ok()
}

const NAME: &CStr = c"libpmix.so.2";
const JOB_SIZE: &CStr = c"pmix.job.size";
const COLLECT: &CStr = c"pmix.collect";
/// `PMIX_GLOBAL`.
const GLOBAL: u8 = 3;
/// `PMIX_RANK_WILDCARD`: facts of the job are asked of nobody in particular.
const EVERYONE: u32 = 0xffff_fffe;
/// The longest text that is read: values stay far below.
const MOST_TEXT_BYTES: usize = 64 << 10;
/// `pmix_data_type_t`.
const BOOL: u16 = 1;
const STRING: u16 = 3;
const SIZE: u16 = 4;
const INT: u16 = 6;
const UINT16: u16 = 13;
const UINT32: u16 = 14;
const UINT64: u16 = 15;
const PROC_RANK: u16 = 40;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn statuses_say_what_they_mean() {
        assert_eq!(PmixStatus(-25).to_string(), "-25 (no server answers: the variables of PMIx are left over)");
        assert!(PmixStatus(-46).is_not_yet() && !PmixStatus(-25).is_not_yet());
        assert_eq!(checked(0), Ok(()));
    }

    #[test]
    fn a_text_is_copied_and_freed_and_none_is_none() {
        // SAFETY: the text ends in a zero byte; the copy is the call's below.
        let copy = unsafe { libc::strdup(c"rank 0".as_ptr()) };
        let told = text_at(u64::try_from(copy.expose_provenance()).unwrap());
        assert!(matches!(told, Told::Text(text) if text == "rank 0"));
        assert!(matches!(text_at(0), Told::Other));
    }
}
