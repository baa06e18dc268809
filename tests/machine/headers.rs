//! What C headers say of layouts and constants.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// The numbers that a C program prints which includes one header of Debian's `package`, one for each expression; where
/// it is missing that is told as a skip.
///
/// # Panics
/// Where the program does not compile or run.
pub fn numbers_of_headers(header: &str, package: &str, expressions: &[&str]) -> Option<Vec<usize>> {
    numbers_of(&[header], package, expressions)
}

/// The same with several headers.
pub(crate) fn numbers_of(headers: &[&str], package: &str, expressions: &[&str]) -> Option<Vec<usize>> {
    let is_there = |header: &&str| {
        ["/usr/include", "/usr/local/include"].iter().any(|place| Path::new(place).join(header).exists())
    };
    if !headers.iter().all(is_there) {
        return skipped(&format!("no headers of Debian's {package}"));
    }
    let mut text: String = headers.iter().map(|header| format!("#include <{header}>\n")).collect();
    text.push_str("#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n");
    text.extend(expressions.iter().map(|one| format!("printf(\"%zu\\n\", (size_t)({one}));\n")));
    text.push_str("return 0;\n}\n");
    let turn = TURNS.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("rsccl-headers-{}-{turn}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a temporary folder");
    let (source, program) = (folder.join("numbers.c"), folder.join("numbers"));
    std::fs::write(&source, text).expect("the folder can be written");
    let built = Command::new("cc").arg("-o").args([&program, &source]).output();
    let printed = built.and_then(|built| {
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        Command::new(&program).output()
    });
    std::fs::remove_dir_all(&folder).expect("the folder was there");
    match printed {
        Ok(output) => {
            let lines = String::from_utf8_lossy(&output.stdout).into_owned();
            Some(lines.lines().map(|line| line.parse().expect("a number")).collect())
        }
        Err(error) => skipped(&format!("no C compiler: {error}")),
    }
}

static TURNS: AtomicU32 = AtomicU32::new(0);

/// Past the capture of a test's output.
fn skipped<T>(why: &str) -> Option<T> {
    writeln!(std::io::stderr(), "skipped: {why}").expect("standard error is open");
    None
}
