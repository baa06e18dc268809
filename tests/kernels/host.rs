//! The kernels' headers as g++ compiles them for the host.

use std::ffi::CString;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

use rsccl::types::DataType;

use crate::{Operand, Step};

/// The headers as a library of the host.
pub(crate) struct Host {
    run: unsafe extern "C" fn(u32, u32, *const Step, *const Operand, u64, u64, u64),
    pub(crate) places: unsafe extern "C" fn(*mut u64),
    pub(crate) program: unsafe extern "C" fn(*mut u64, u32, u32),
}

impl Host {
    pub(crate) fn run(
        &self,
        data_type: DataType,
        entry: usize,
        step: &Step,
        operands: &[Operand],
        members: std::ops::Range<u64>,
        size: u64,
    ) {
        let (code, entry) = (u32::from(data_type.code()), u32::try_from(entry).expect("nine"));
        // SAFETY: the operands' places have the bytes that the step names, and nobody else uses them meanwhile.
        unsafe { (self.run)(code, entry, step, operands.as_ptr(), members.start, members.end, size) };
    }
}

/// The library, compiled once; None, with a printed reason, where there is no g++.
pub(crate) fn host() -> Option<&'static Host> {
    static HOST: OnceLock<Option<Host>> = OnceLock::new();
    HOST.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a folder");
        let library = folder.path().join("libkernels.so");
        let mut command = Command::new("g++");
        command.args(["-std=c++17", "-O2", "-fPIC", "-shared", "-ffp-contract=off", "-Wall", "-Wextra", "-Werror"]);
        command.args(["-Wno-unknown-pragmas", "-fno-strict-aliasing", "-I"]).arg(crate::folder());
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("host.cpp")).arg("-o").arg(&library);
        let Ok(output) = command.output() else {
            writeln!(std::io::stderr(), "skipped: no g++, so the kernels' headers do not run on the host")
                .expect("stderr");
            return None;
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = CString::new(library.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: loads the library compiled above, which runs no code when it is loaded.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null(), "{} cannot be loaded", library.display());
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: the library is loaded, and the name ends with a zero byte.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            assert!(!address.is_null(), "{name:?} is not exported");
            address
        };
        let (run, places) = (symbol(c"kernels_host_run"), symbol(c"kernels_host_places"));
        // SAFETY: host.cpp defines the function with this signature.
        let run = unsafe {
            std::mem::transmute::<
                *mut libc::c_void,
                unsafe extern "C" fn(u32, u32, *const Step, *const Operand, u64, u64, u64),
            >(run)
        };
        // SAFETY: as above.
        let places = unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(*mut u64)>(places) };
        let program = symbol(c"kernels_host_program");
        // SAFETY: as above.
        let program =
            unsafe { std::mem::transmute::<*mut libc::c_void, unsafe extern "C" fn(*mut u64, u32, u32)>(program) };
        Some(Host { run, places, program })
    })
    .as_ref()
}
