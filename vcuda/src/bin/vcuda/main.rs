//! The command `vcuda`: starts programs on virtual machines of GPUs.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use vcuda::machine::Machine;
use vcuda::run::Job;

const HELP: &str = "vcuda: a virtual machine of any number of NVIDIA GPUs

  vcuda run [--seed N] [--strict] MACHINE -- PROGRAM ARGS   starts a program on a machine (once a host)
  vcuda machines                                            lists the ready machines
  vcuda show MACHINE                                        prints a machine's file
  vcuda lose GPU                                            inside a run: that GPU falls off the bus

MACHINE is the name of a ready machine or the path of a TOML file. --strict: what leaks makes the run fail, with status 97.
VCUDA_FAIL lists faults, like cuMemAlloc_v2:3:2; VCUDA_LIBRARIES is the folder of libcuda.so, if not that of this command.
";
/// The command line, the machine or its folder is wrong; programs of their own use this status seldom.
const WRONG: u8 = 125;
const USUAL_SEED: u64 = 1;

fn main() -> ExitCode {
    let words: Vec<OsString> = env::args_os().skip(1).collect();
    match command(&words) {
        Ok(status) => ExitCode::from(status),
        Err(what) => {
            eprintln!("vcuda: {what}");
            ExitCode::from(WRONG)
        }
    }
}

fn command(words: &[OsString]) -> Result<u8, String> {
    let texts: Vec<&str> = words.iter().map(|word| word.to_str().unwrap_or("")).collect();
    match texts[..] {
        ["run", ..] => {
            let job = job(&words[1..])?;
            let outcome = job.run()?;
            eprint!("{}", outcome.report(&job));
            Ok(outcome.status)
        }
        ["machines"] => print(&Machine::ready().join("\n")),
        ["show", machine] => print(Machine::text(machine)?.trim_end()),
        ["lose", gpu] => lose(gpu),
        ["help" | "--help" | "-h"] => print(HELP.trim_end()),
        _ => Err(format!("unknown command\n{HELP}")),
    }
}

fn job(words: &[OsString]) -> Result<Job, String> {
    let separator = words.iter().position(|word| word == "--").ok_or("`--` stands between machine and program")?;
    let (mut seed, mut strict, mut machine) = (seed_of_environment()?, false, None);
    let mut options = words[..separator].iter().map(|word| word.to_str().unwrap_or(""));
    while let Some(option) = options.next() {
        match option {
            "--strict" => strict = true,
            "--seed" => seed = seed_of(options.next().ok_or("--seed takes a number")?)?,
            option if option.starts_with('-') => return Err(format!("unknown option {option:?}\n{HELP}")),
            name if machine.is_none() => machine = Some(name.to_owned()),
            name => return Err(format!("{name:?} is one machine too many")),
        }
    }
    let program = words[separator + 1..].to_vec();
    if program.is_empty() {
        return Err("no program follows `--`".to_owned());
    }
    let machine = machine.ok_or_else(|| format!("no machine; ready are {}", Machine::ready().join(", ")))?;
    Ok(Job { machine, seed, strict, libraries: libraries()?, program })
}

fn seed_of_environment() -> Result<u64, String> {
    env::var("VCUDA_SEED").map_or(Ok(USUAL_SEED), |text| seed_of(&text))
}

fn seed_of(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("seed {text:?} is no whole number from 0 on"))
}

/// cargo puts the libraries beside the command.
fn libraries() -> Result<PathBuf, String> {
    if let Some(folder) = env::var_os("VCUDA_LIBRARIES") {
        return Ok(PathBuf::from(folder));
    }
    let here = env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    Ok(here.parent().unwrap_or(Path::new(".")).to_owned())
}

fn lose(gpu: &str) -> Result<u8, String> {
    let state = env::var_os("VCUDA_STATE").ok_or("VCUDA_STATE is not set: `vcuda lose` belongs inside `vcuda run`")?;
    let machine = Machine::load(&PathBuf::from(&state).join("machine.toml").to_string_lossy())?;
    let count = machine.gpus.len();
    let number: usize =
        gpu.parse().ok().filter(|number| *number < count).ok_or_else(|| format!("GPU {gpu:?} (0 to {})", count - 1))?;
    let marker = vcuda::fault::marker(Path::new(&state), u32::try_from(number).unwrap_or(u32::MAX));
    fs::write(&marker, b"").map_err(|error| format!("cannot write {}: {error}", marker.display()))?;
    Ok(0)
}

fn print(text: &str) -> Result<u8, String> {
    writeln!(std::io::stdout(), "{text}").map_err(|error| format!("cannot print: {error}"))?;
    Ok(0)
}
