//! Start, version, names of errors, and the search for entry points.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char};
use std::sync::Mutex;

use vcuda::driver::{self, CUresult, Outcome};

use crate::entry::{Entry, In, Out, Text, entries};
use crate::{context, device, graph, memory, module, stream, vmm};

/// `CU_GET_PROC_ADDRESS_SUCCESS`, `SYMBOL_NOT_FOUND`, `VERSION_NOT_SUFFICIENT`.
const FOUND: i32 = 0;
const NOT_FOUND: i32 = 1;
const VERSION_NOT_SUFFICIENT: i32 = 2;
/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`.
const PER_THREAD: u64 = 2;

entries! {
    cuInit(2000) (flags: u32) { driver::init(flags) }

    cuDriverGetVersion(2020) (version: Out<i32>) {
        version.put(i32::try_from(driver::version()).unwrap_or(0))
    }

    cuGetErrorName(6000) (code: i32, text: Out<*const c_char>) { put_text(CUresult(code).name(), text) }

    cuGetErrorString(6000) (code: i32, text: Out<*const c_char>) { put_text(CUresult(code).text(), text) }

    cuGetProcAddress(11030) (symbol: Text, place: Out<*const ()>, version: i32, flags: u64) {
        place.check()?;
        let (code, _) = find(symbol.get()?, version, flags)?;
        place.put(code)?;
        if code.is_null() { Err(CUresult::NOT_FOUND) } else { Ok(()) }
    }

    cuGetProcAddress_v2(12000) (symbol: Text, place: Out<*const ()>, version: i32, flags: u64, status: Out<i32>) {
        place.check()?;
        let (code, found) = find(symbol.get()?, version, flags)?;
        status.put_if(found);
        place.put(code)
    }

    cuGetExportTable(3000) (place: Out<*const ()>, id: In<[u8; 16]>) {
        place.put_if(std::ptr::null());
        let _ = id;
        once("the CUDA runtime (libcudart) asks for undocumented tables of the driver (cuGetExportTable): vcuda runs programs of the driver API only");
        Err(CUresult::NOT_SUPPORTED)
    }
}

fn put_text(text: Option<&'static CStr>, place: Out<*const c_char>) -> Outcome {
    place.put(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    if text.is_some() { Ok(()) } else { Err(CUresult::INVALID_VALUE) }
}

/// Prints a sentence, once a process.
fn once(sentence: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut said = SAID.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if said.insert(sentence.to_owned()) {
        eprintln!("vcuda: {sentence}");
    }
}

/// Tells of an entry point that vcuda lacks. Bindings ask for all that they know, used or not: one line says so, and each
/// name is told where calls are printed too.
fn missing(symbol: &str) {
    if driver::prints_calls() {
        eprintln!("vcuda: cuGetProcAddress: {symbol} is not among the entry points that vcuda has");
    } else {
        once(
            "cuGetProcAddress: the program asks for entry points that vcuda does not have (VCUDA_DEBUG=1 lists them); a call of one fails",
        );
    }
}

fn all() -> impl Iterator<Item = &'static Entry> {
    let tables = [
        ENTRIES,
        device::ENTRIES,
        context::ENTRIES,
        memory::ENTRIES,
        vmm::ENTRIES,
        stream::ENTRIES,
        module::ENTRIES,
        graph::ENTRIES,
    ];
    tables.into_iter().flatten()
}

/// The name that `cuGetProcAddress` knows an entry point by: without the number of its version.
fn base(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, number)) if number.parse::<u32>().is_ok() => base,
        _ => name,
    }
}

/// The newest form of an entry point that a version of CUDA had.
fn find(symbol: &str, version: i32, flags: u64) -> Outcome<(*const (), i32)> {
    if flags > PER_THREAD || symbol.is_empty() {
        return Err(CUresult::INVALID_VALUE);
    }
    if flags == PER_THREAD {
        once("cuGetProcAddress: vcuda has no forms of the calls for per-thread default streams; pass stream 2 instead");
        return Ok((std::ptr::null(), NOT_FOUND));
    }
    let driver = i32::try_from(driver::version()).unwrap_or(0);
    let mut known = all().filter(|entry| base(entry.name) == symbol).peekable();
    if known.peek().is_none() {
        missing(symbol);
        return Ok((std::ptr::null(), NOT_FOUND));
    }
    let fitting = known.filter(|entry| entry.since <= version && entry.since <= driver);
    match fitting.max_by_key(|entry| entry.since) {
        Some(entry) => Ok((entry.code.0, FOUND)),
        None => Ok((std::ptr::null(), VERSION_NOT_SUFFICIENT)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_form_that_a_version_had_is_found() {
        let find = |symbol, version| find(symbol, version, 0).expect("a proper question");
        assert_eq!(find("cuMemAlloc", 12000).0, memory::cuMemAlloc_v2 as *const ());
        assert_eq!(find("cuMemAlloc", 2000), (std::ptr::null(), VERSION_NOT_SUFFICIENT));
        assert_eq!(find("cuStreamGetCaptureInfo", 12000).0, graph::cuStreamGetCaptureInfo_v2 as *const ());
        assert_eq!(find("cuStreamGetCaptureInfo", 12080).0, graph::cuStreamGetCaptureInfo_v3 as *const ());
        assert_eq!(find("cuMulticastCreate", 12080), (std::ptr::null(), NOT_FOUND));
        assert_eq!(find("cuMemAlloc_v2", 12080), (std::ptr::null(), NOT_FOUND), "base names only");
    }

    #[test]
    fn every_entry_point_stands_once() {
        let mut names = BTreeSet::new();
        for entry in all() {
            assert!(names.insert(entry.name), "{} stands twice", entry.name);
        }
        assert!(names.len() >= 150, "{} entry points", names.len());
    }
}
