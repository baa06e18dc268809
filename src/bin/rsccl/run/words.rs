//! The options of `rsccl run` as users of mpirun, srun and torchrun spell them, as far as they mean something on one
//! host. Every word before the program is an option that is known here, or an error that names it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rsccl::internals::config::nearest;
use rsccl::internals::sys::host;
use rsccl::{Error, Result};

/// The command line with the options of `rsccl run` in its own spelling and `--` before the program, whose arguments
/// stay unchanged. Other commands stay as they are.
///
/// # Errors
/// [`rsccl::error::Kind::InvalidArgument`] for an option that `rsccl run` does not have, and for one that makes no
/// sense on one host; it says what to use.
pub(crate) fn translated(words: Vec<OsString>) -> Result<Vec<OsString>> {
    match words.get(1).and_then(|word| word.to_str()) {
        Some("run") => {}
        Some("perf") if words.iter().skip(2).any(|word| word == "-np") => {
            let told = "perf: -np: --ranks is the number of ranks, and -n the number of iterations, as in nccl-tests";
            return Err(Error::invalid_argument(told));
        }
        Some(_) | None => return Ok(words),
    }
    let mut rest = words.into_iter();
    let mut spelt: Vec<OsString> = rest.by_ref().take(2).collect();
    while let Some(word) = rest.next() {
        let is_option = word.as_bytes().starts_with(b"-") && word != "-";
        if word == "--" || !is_option {
            spelt.push("--".into());
            spelt.extend((word != "--").then_some(word));
            break;
        }
        let (name, attached) = halves(&word);
        let mut value = || attached.clone().or_else(|| rest.next());
        match meaning(&name)? {
            Meaning::Help => spelt.push(word),
            Meaning::Own(option) => {
                spelt.push(option.into());
                // Where the value is missing, clap says so.
                spelt.extend(value().map(|value| if option == BIND { binding(value) } else { value }));
            }
            Meaning::TwoWords => {
                let (variable, value) = (value().unwrap_or_default(), rest.next().unwrap_or_default());
                let mut assignment = variable;
                assignment.push("=");
                assignment.push(value);
                spelt.extend([VARIABLE.into(), assignment]);
            }
            Meaning::Hosts => only_this_host(&name, &value().unwrap_or_default())?,
            Meaning::OneHost => one_host(&name, &value().unwrap_or_default())?,
            Meaning::Granted => {}
        }
    }
    let arguments: Vec<OsString> = rest.collect();
    if arguments.windows(2).any(|pair| pair[0] == ":" && pair[1].as_bytes().starts_with(b"-n")) {
        return Err(Error::invalid_argument(
            "run: several programs (./a : -n 2 ./b) are no world here: start a script that chooses by RSCCL_RANK",
        ));
    }
    spelt.extend(arguments);
    Ok(spelt)
}

/// What an option means here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Help,
    /// An option of `rsccl run`, which has a value.
    Own(&'static str),
    /// A variable and its value, in two words.
    TwoWords,
    /// Names of hosts.
    Hosts,
    /// The number of hosts.
    OneHost,
    /// What `rsccl run` does anyway.
    Granted,
}

/// The name of an option and the value that is attached to it: by `=`, or as the digits of `-n4`.
fn halves(word: &OsStr) -> (String, Option<OsString>) {
    let bytes = word.as_bytes();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if let Some(place) = bytes.iter().position(|byte| *byte == b'=') {
        return (text(&bytes[..place]), Some(OsString::from_vec(bytes[place + 1..].to_vec())));
    }
    for name in ["-np", "-n"] {
        if let Some(digits) = bytes.strip_prefix(name.as_bytes())
            && !digits.is_empty()
            && digits.iter().all(u8::is_ascii_digit)
        {
            return (name.to_owned(), Some(OsString::from_vec(digits.to_vec())));
        }
    }
    (text(bytes), None)
}

fn meaning(name: &str) -> Result<Meaning> {
    // Hydra, and Open MPI of old, spell long names with one dash.
    let bare = name.trim_start_matches('-');
    let refused = |why: &str| Err(Error::invalid_argument(format!("run: {name}: {why}")));
    match bare {
        "h" | "help" => Ok(Meaning::Help),
        "n" | "np" | "ranks" | "ntasks" | "nproc-per-node" | "nproc_per_node" => Ok(Meaning::Own("--ranks")),
        "bind" | "bind-to" | "cpu-bind" => Ok(Meaning::Own(BIND)),
        "log-dir" => Ok(Meaning::Own("--log-dir")),
        "timeout" => Ok(Meaning::Own("--timeout")),
        "x" | "env" if name != "-env" => Ok(Meaning::Own(VARIABLE)),
        "genv" | "env" => Ok(Meaning::TwoWords),
        "H" | "host" | "hosts" => Ok(Meaning::Hosts),
        "N" | "nodes" | "nnodes" => Ok(Meaning::OneHost),
        "oversubscribe" | "allow-run-as-root" | "tag-output" | "label" | "l" | "genvall" | "envall" | "standalone" => {
            Ok(Meaning::Granted)
        }
        "hostfile" | "machinefile" | "f" | "nodelist" | "w" => refused(ELSEWHERE),
        "ppn" | "perhost" | "npernode" | "ntasks-per-node" => {
            refused("all ranks are on this host: give their number by -n")
        }
        "map-by" | "rank-by" => refused("ranks are placed by --bind core, --bind numa or --bind none"),
        "mca" | "gmca" | "pmixmca" | "prtemca" => {
            refused("rsccl has no parameters of Open MPI; `rsccl env` lists the variables that it has")
        }
        "output-filename" | "outfile-pattern" => refused("--log-dir FOLDER writes each rank's output to a file"),
        "wdir" | "wd" | "chdir" => {
            refused("ranks start in the folder in which `rsccl run` is started: cd there before")
        }
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> Error {
    let near = nearest(name.trim_start_matches('-'), ["ranks", "bind", "log-dir", "timeout", "help"]);
    let hint = match near {
        Some(near) => format!("did you mean --{near}?"),
        None => {
            "it has -n, -x, --bind, --log-dir and --timeout, and a program that begins with a dash stands behind --"
                .to_owned()
        }
    };
    Error::invalid_argument(format!("run: there is no option {name}; {hint}"))
}

/// What other launchers call the places that `--bind` knows.
fn binding(value: OsString) -> OsString {
    match value.to_str() {
        Some("cores") => "core".into(),
        Some("ldoms" | "ldom" | "NUMA") => "numa".into(),
        _ => value,
    }
}

/// Accepts a list of hosts which are all this one: `localhost:4`, `node7`.
fn only_this_host(name: &str, list: &OsStr) -> Result<()> {
    let list = list.to_string_lossy();
    let own = host::hostname().unwrap_or_default();
    let short = |host: &str| host.split('.').next().unwrap_or_default().to_owned();
    let is_here = |entry: &str| {
        // Slots of a host stand behind a colon.
        let host = entry.split(':').next().unwrap_or_default();
        ["localhost", "127.0.0.1"].contains(&host) || (!own.is_empty() && (host == own || host == short(&own)))
    };
    match list.split(',').find(|entry| !is_here(entry)) {
        None => Ok(()),
        Some(other) => {
            Err(Error::invalid_argument(format!("run: {name} {list}: {other:?} is not this host: {ELSEWHERE}")))
        }
    }
}

fn one_host(name: &str, count: &OsStr) -> Result<()> {
    match count.to_str() {
        Some("1" | "1:1") => Ok(()),
        _ => Err(Error::invalid_argument(format!("run: {name} {}: {ELSEWHERE}", count.to_string_lossy()))),
    }
}

/// What to do about ranks on other hosts.
const ELSEWHERE: &str = "`rsccl run` starts ranks on this host alone; on several mpirun, srun or torchrun does, or ssh \
     with RSCCL_RANK, RSCCL_WORLD_SIZE and MASTER_ADDR set";
const BIND: &str = "--bind";
const VARIABLE: &str = "--env";

#[cfg(test)]
mod tests {
    use super::*;

    fn spelt(line: &str) -> std::result::Result<String, String> {
        let words = translated(line.split(' ').map(OsString::from).collect()).map_err(|error| error.to_string())?;
        Ok(words.iter().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn spellings_of_other_launchers_are_taken_before_the_program_and_not_behind() {
        for (line, own) in [
            ("rsccl run -np 4 program -np 3", "rsccl run --ranks 4 -- program -np 3"),
            ("rsccl run --timeout 5 -np 4 -- -np", "rsccl run --timeout 5 --ranks 4 -- -np"),
            ("rsccl run --bind=core -n2 program -np 3", "rsccl run --bind core --ranks 2 -- program -np 3"),
            ("rsccl run -n=2 a", "rsccl run --ranks 2 -- a"),
            ("rsccl run -np16 a", "rsccl run --ranks 16 -- a"),
            ("rsccl run --nproc_per_node=2 --standalone a", "rsccl run --ranks 2 -- a"),
            ("rsccl run -n 2 --bind-to core a -- b", "rsccl run --ranks 2 --bind core -- a -- b"),
            ("rsccl run --cpu-bind=cores -n 2 a", "rsccl run --bind core --ranks 2 -- a"),
            ("rsccl run -x A=1 -x B --n 2 a", "rsccl run --env A=1 --env B --ranks 2 -- a"),
            ("rsccl run -genv A 1 -n 2 a", "rsccl run --env A=1 --ranks 2 -- a"),
            ("rsccl run -H localhost:2,127.0.0.1 --oversubscribe -n 2 a", "rsccl run --ranks 2 -- a"),
            ("rsccl run --help", "rsccl run --help"),
            ("rsccl run a -n 2", "rsccl run -- a -n 2"),
            ("rsccl run -n", "rsccl run --ranks"),
            ("rsccl perf all_reduce -n 4", "rsccl perf all_reduce -n 4"),
            ("rsccl run -n 1 a : b", "rsccl run --ranks 1 -- a : b"),
            ("rsccl", "rsccl"),
        ] {
            assert_eq!(spelt(line).as_deref(), Ok(own), "{line}");
        }
    }

    #[test]
    fn what_one_host_does_not_have_is_named_with_what_to_use() {
        for (line, told) in [
            ("rsccl run --timeot 3 -n 2 a", "there is no option --timeot; did you mean --timeout?"),
            ("rsccl run -n 2 --bin core a", "there is no option --bin; did you mean --bind?"),
            ("rsccl run -q a", "there is no option -q; it has -n"),
            ("rsccl run -4 a", "there is no option -4; it has -n"),
            ("rsccl run -H a,localhost -n 2 a", "-H a,localhost: \"a\" is not this host: `rsccl run` starts"),
            ("rsccl run --hostfile=f -n 2 a", "--hostfile: `rsccl run` starts ranks on this host alone"),
            ("rsccl run -ppn 2 a", "-ppn: all ranks are on this host"),
            ("rsccl run --nnodes=2 a", "--nnodes 2: `rsccl run` starts"),
            ("rsccl run --mca btl self a", "--mca: rsccl has no parameters of Open MPI"),
            ("rsccl run --map-by socket a", "--map-by: ranks are placed by --bind core"),
            ("rsccl run -n 1 a : -n 1 b", "start a script that chooses by RSCCL_RANK"),
            ("rsccl perf all_reduce -np 4", "perf: -np: --ranks is the number of ranks"),
            ("rsccl run --wdir /tmp a", "--wdir: ranks start in the folder"),
        ] {
            let error = spelt(line).unwrap_err();
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
