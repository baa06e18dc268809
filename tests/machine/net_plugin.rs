//! A network plug-in in C as NCCL has them, over TCP, which surprises its callers as real ones do and checks them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds the stand-in as the file `name` in `folder`, with these options, such as `AGAIN_EVERY=3`
/// (`tests/machine/net_plugin/stand_in.c` explains them). `None` where there is no C compiler, which is told as a skip.
///
/// # Panics
/// Where it does not compile.
pub fn stand_in(folder: &Path, name: &str, options: &[&str]) -> Option<PathBuf> {
    let library = folder.join(name);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/net_plugin/stand_in.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-pthread", "-Wall", "-Werror", "-o"]).arg(&library).arg(source);
    compiler.args(options.iter().map(|option| format!("-D{option}")));
    built(compiler)?;
    Some(library)
}

/// A library that is no plug-in.
///
/// # Panics
/// As [`stand_in`].
pub fn none(folder: &Path) -> Option<PathBuf> {
    let (library, source) = (folder.join("none.so"), folder.join("none.c"));
    std::fs::write(&source, "int nothing;\n").expect("the folder can be written");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).args([&library, &source]);
    built(compiler)?;
    Some(library)
}

/// The numbers that a C program prints which includes our header of the interface, one for each expression.
///
/// # Panics
/// Where it does not compile or run.
pub fn numbers_of_header(folder: &Path, expressions: &[&str]) -> Option<Vec<usize>> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/net_plugin/net_plugin.h");
    let mut text = format!("#include \"{header}\"\n#include <stdio.h>\nint main(void) {{\n");
    text.extend(expressions.iter().map(|one| format!("printf(\"%zu\\n\", (size_t)({one}));\n")));
    text.push_str("return 0;\n}\n");
    let (source, program) = (folder.join("numbers.c"), folder.join("numbers"));
    std::fs::write(&source, text).expect("the folder can be written");
    let mut compiler = Command::new("cc");
    compiler.arg("-o").args([&program, &source]);
    built(compiler)?;
    let printed = Command::new(&program).output().expect("it was built");
    let lines = String::from_utf8_lossy(&printed.stdout).into_owned();
    Some(lines.lines().map(|line| line.parse().expect("a number")).collect())
}

fn built(mut compiler: Command) -> Option<()> {
    match compiler.output() {
        Ok(output) => {
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            Some(())
        }
        Err(error) => {
            // Past the capture of a test's output.
            writeln!(std::io::stderr(), "skipped: no C compiler: {error}").expect("standard error is open");
            None
        }
    }
}
