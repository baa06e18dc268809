//! A libfabric in C that asks for what only hardware asks and checks that it gets it, and the libfabrics of this machine.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::headers::numbers_of;

/// Builds the stand-in with these options, such as `REORDER=1` (`tests/machine/libfabric/stand_in.c` explains them); its
/// sockets and itself lie in `folder`, whose path is at most 80 bytes long. `None` where there is no C compiler, which is
/// told as a skip.
///
/// # Panics
/// Where it does not compile.
pub fn stand_in(folder: &Path, options: &[&str]) -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/libfabric/stand_in.c");
    let (library, versions) = (folder.join("libfabric.so.1"), folder.join("versions"));
    std::fs::write(&versions, VERSIONS).expect("the folder can be written");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-pthread", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
    compiler.arg(format!("-Wl,--version-script={}", versions.display()));
    compiler.arg(format!("-DFOLDER=\"{}\"", folder.display()));
    compiler.args(options.iter().map(|option| format!("-D{option}")));
    match compiler.output() {
        Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => return skipped(&format!("no C compiler: {error}")),
    }
    Some(library)
}

/// Debian's libfabric; where it is missing that is told as a skip.
pub fn installed() -> Option<PathBuf> {
    let places = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let found = places.iter().map(|place| Path::new(place).join("libfabric.so.1")).find(|path| path.exists());
    found.or_else(|| skipped("no libfabric of the system (Debian: libfabric1)"))
}

/// The libfabric in PyPI's MPICH, of release 2; where nobody has downloaded it that is told as a skip.
pub fn of_mpich() -> Option<PathBuf> {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/local/mpich/lib/mpich"));
    let path = folder.join("libfabric.so.1");
    if path.exists() { Some(path) } else { skipped("no peers for the contest: libfabric 2 comes with PyPI's MPICH") }
}

/// The numbers that a C program prints which includes libfabric's headers, one for each expression; where they are
/// missing that is told as a skip.
///
/// # Panics
/// Where the program does not compile or run.
pub fn numbers_of_headers(expressions: &[&str]) -> Option<Vec<usize>> {
    let names = ["fabric", "fi_cm", "fi_domain", "fi_endpoint", "fi_eq", "fi_errno", "fi_tagged"];
    let names = names.map(|name| format!("rdma/{name}.h"));
    numbers_of(&names.each_ref().map(String::as_str), "libfabric-dev", expressions)
}

/// Past the capture of a test's output.
fn skipped<T>(why: &str) -> Option<T> {
    writeln!(std::io::stderr(), "skipped: {why}").expect("standard error is open");
    None
}

/// The versions of its functions, as releases have them.
const VERSIONS: &str = "
FABRIC_1.0 { global: fi_version; fi_strerror; stand_in_fault; stand_in_open; local: *; };
FABRIC_1.1 { global: fi_fabric; } FABRIC_1.0;
FABRIC_1.3 { global: fi_getinfo; fi_freeinfo; } FABRIC_1.1;
";
