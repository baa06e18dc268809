//! Programs against the CUDA driver: the same binary runs on a virtual machine and on a real one.
//!
//! `programs NAME` runs one, prints what it found out as lines `what: value`, and ends with 0 if all was right. Tests start
//! them by `vcuda run MACHINE -- programs NAME`; `check-real` runs them on the real driver and compares the lines.
#![allow(clippy::print_stdout, reason = "what they print is what they are for")]

mod deadlocks;
mod driver;
mod lines;
mod nvml;
mod one;
mod processes;
mod safe_api;
mod small_floats;
mod two;
mod wrong;

use std::process::ExitCode;

use driver::Driver;

/// A program: its name, whether a real GPU survives it, and what it does.
struct Program {
    name: &'static str,
    /// Real drivers hang or differ by intent; `check-real` leaves these out.
    virtual_only: bool,
    run: fn(&Driver) -> Result<(), String>,
}

const fn everywhere(name: &'static str, run: fn(&Driver) -> Result<(), String>) -> Program {
    Program { name, virtual_only: false, run }
}

const fn virtually(name: &'static str, run: fn(&Driver) -> Result<(), String>) -> Program {
    Program { name, virtual_only: true, run }
}

const PROGRAMS: &[Program] = &[
    everywhere("devices", one::devices),
    everywhere("refusals", one::refusals),
    everywhere("vector_add", one::vector_add),
    everywhere("reduce", one::reduce),
    everywhere("histogram", one::histogram),
    everywhere("convert", small_floats::convert),
    everywhere("pair", two::pair),
    everywhere("lines", lines::lines),
    everywhere("processes", processes::processes),
    everywhere("ping_pong", processes::ping_pong),
    everywhere("safe_api", safe_api::safe_api),
    everywhere("memory_runs_out", one::memory_runs_out),
    virtually("leaks", one::leaks),
    everywhere("illegal_address", wrong::illegal_address),
    everywhere("misaligned", wrong::misaligned),
    everywhere("trap", wrong::trap),
    virtually("freed", wrong::freed),
    virtually("out_of_bounds", wrong::out_of_bounds),
    virtually("uninitialised", wrong::uninitialised),
    virtually("uninitialised_copied", wrong::uninitialised_copied),
    virtually("race", wrong::race),
    virtually("null_stream", deadlocks::null_stream),
    everywhere("null_stream_mended", deadlocks::null_stream_mended),
    virtually("aliased_queues", deadlocks::aliased_queues),
    everywhere("aliased_queues_mended", deadlocks::aliased_queues_mended),
    virtually("lazy_loading", deadlocks::lazy_loading),
    everywhere("lazy_loading_mended", deadlocks::lazy_loading_mended),
    virtually("free_under_kernel", deadlocks::free_under_kernel),
    everywhere("free_under_kernel_mended", deadlocks::free_under_kernel_mended),
    virtually("half_resident", deadlocks::half_resident),
    everywhere("half_resident_mended", deadlocks::half_resident_mended),
];

/// Exit status of a program that found something wrong, and of a wrong command line.
const FAILED: u8 = 1;
const WRONG: u8 = 2;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        ["--list"] => {
            println!("nvml");
            for program in PROGRAMS.iter().filter(|program| !program.virtual_only) {
                println!("{}", program.name);
            }
            ExitCode::SUCCESS
        }
        // It needs no driver.
        ["nvml"] => report(nvml::nvml()),
        ["child", handle, words, depth, rounds] => {
            report(Driver::open().and_then(|driver| processes::child(&driver, handle, [words, depth, rounds])))
        }
        [name] => match PROGRAMS.iter().find(|program| program.name == name) {
            Some(program) => report(Driver::open().and_then(|driver| (program.run)(&driver))),
            None => wrong(),
        },
        _ => wrong(),
    }
}

fn report(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("failed: {what}");
            ExitCode::from(FAILED)
        }
    }
}

fn wrong() -> ExitCode {
    let names: Vec<&str> = PROGRAMS.iter().map(|program| program.name).collect();
    eprintln!("programs NAME, one of {}; or --list", names.join(" "));
    ExitCode::from(WRONG)
}
