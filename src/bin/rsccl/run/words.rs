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
    let mut is_marked = false;
    while let Some(word) = rest.next() {
        is_marked = word == "--";
        if is_marked || !is_option(&word) {
            spelt.push("--".into());
            spelt.extend((!is_marked).then_some(word));
            break;
        }
        let Given { name, meaning, mut values } = Given::read(&word, &mut rest)?;
        let only = values.first().cloned().unwrap_or_default();
        match meaning {
            Meaning::Help => spelt.push("--help".into()),
            Meaning::Bare => spelt.push(BARE.into()),
            Meaning::Own(option) => {
                spelt.push(option.into());
                // Where the value is missing, clap says so.
                spelt.extend(values.pop().map(|value| if option == BIND { binding(value) } else { value }));
            }
            Meaning::Variable => spelt.extend([VARIABLE.into(), variable(&name, &values)?]),
            Meaning::Hosts => only_this_host(&name, &only)?,
            Meaning::OneHost => one_host(&name, &only)?,
            Meaning::Output => tagged(&name, &only)?,
            Meaning::Refused { why, .. } => return Err(Error::invalid_argument(format!("run: {name}: {why}"))),
            Meaning::Granted => {}
        }
    }
    let arguments: Vec<OsString> = rest.collect();
    let mut ends = (0..arguments.len()).filter(|place| arguments[*place] == ":");
    if !is_marked && ends.any(|place| is_program(&arguments[place + 1..])) {
        return Err(Error::invalid_argument(format!("run: {SEVERAL}")));
    }
    spelt.extend(arguments);
    Ok(spelt)
}

fn is_option(word: &OsStr) -> bool {
    word.as_bytes().starts_with(b"-") && word != "-"
}

/// Whether `words`, which stand behind a colon, are how mpirun is given a further program: its options, with the number
/// of ranks or hosts among them, and its name. Other words are arguments of the program before the colon.
fn is_program(words: &[OsString]) -> bool {
    let mut rest = words.iter().cloned();
    let mut has_place = false;
    while let Some(word) = rest.next() {
        if !is_option(&word) {
            return has_place;
        }
        let Ok(Given { meaning, values, .. }) = Given::read(&word, &mut rest) else { return false };
        let is_number =
            || values.first().is_some_and(|value| value.to_str().is_some_and(|text| text.parse::<u32>().is_ok()));
        match meaning {
            Meaning::Own(RANKS) if !is_number() => return false,
            Meaning::Own(RANKS) | Meaning::Hosts => has_place = true,
            _ => {}
        }
    }
    false
}

/// An option as it was given.
struct Given {
    name: String,
    meaning: Meaning,
    /// At most as many as the option has: the last words of a command line may be missing.
    values: Vec<OsString>,
}

impl Given {
    /// Reads the option `word`, with those of its values that are words of their own.
    ///
    /// # Errors
    /// For an option that is not known, and for a value where the option has none.
    fn read(word: &OsStr, rest: &mut impl Iterator<Item = OsString>) -> Result<Given> {
        let (name, attached) = halves(word);
        let meaning = meaning(&name)?;
        let count = meaning.values();
        if let (0, Some(_)) = (count, &attached) {
            let told = format!("run: {}: {name} has no value", word.to_string_lossy());
            return Err(Error::invalid_argument(told));
        }
        let mut values: Vec<OsString> = attached.into_iter().collect();
        while values.len() < count {
            // Hydra takes a variable and its value in one word too.
            if meaning == Meaning::Variable && values.iter().any(|value| value.as_bytes().contains(&b'=')) {
                break;
            }
            let Some(value) = rest.next() else { break };
            values.push(value);
        }
        Ok(Given { name, meaning, values })
    }
}

/// What an option means here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    Help,
    /// Output without prefixes.
    Bare,
    /// An option of `rsccl run`, which has a value.
    Own(&'static str),
    /// A variable and its value, in two words or, with `=` between them, in one.
    Variable,
    /// Names of hosts.
    Hosts,
    /// The number of hosts.
    OneHost,
    /// Open MPI's list of what is done with the output.
    Output,
    /// What `rsccl run` does anyway.
    Granted,
    /// What `rsccl run` does not do, and why; with the number of its values.
    Refused {
        why: &'static str,
        values: usize,
    },
}

impl Meaning {
    /// How many values the option has.
    fn values(self) -> usize {
        match self {
            Meaning::Help | Meaning::Bare | Meaning::Granted => 0,
            Meaning::Own(_) | Meaning::Hosts | Meaning::OneHost | Meaning::Output => 1,
            Meaning::Variable => 2,
            Meaning::Refused { values, .. } => values,
        }
    }
}

/// The name of an option and the value that is attached to it: by `=`, or as in `-n4`, `-xNAME=value` and `-Hnode7`.
fn halves(word: &OsStr) -> (String, Option<OsString>) {
    let bytes = word.as_bytes();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for name in ["-np", "-n", "-N", "-x", "-H"] {
        let Some(value) = bytes.strip_prefix(name.as_bytes()) else { continue };
        let is_value = match name {
            "-x" => value.first().is_some_and(|letter| is_of_name(*letter)) && !LONG_BEHIND_X.contains(&value),
            "-H" => value.first().is_some_and(|letter| *letter != b'='),
            _ => !value.is_empty() && value.iter().all(u8::is_ascii_digit),
        };
        if is_value {
            return (name.to_owned(), Some(OsString::from_vec(value.to_vec())));
        }
    }
    match bytes.iter().position(|byte| *byte == b'=') {
        Some(place) => (text(&bytes[..place]), Some(OsString::from_vec(bytes[place + 1..].to_vec()))),
        None => (text(bytes), None),
    }
}

/// Whether the name of a variable may begin with `letter`.
fn is_of_name(letter: u8) -> bool {
    letter.is_ascii_alphabetic() || letter == b'_'
}

fn meaning(name: &str) -> Result<Meaning> {
    // Hydra, and Open MPI of old, spell long names with one dash.
    let bare = name.trim_start_matches('-');
    let refused = |why: &'static str| Ok(Meaning::Refused { why, values: 1 });
    match bare {
        "h" | "help" => Ok(Meaning::Help),
        "n" | "np" | "ranks" | "ntasks" | "nproc-per-node" | "nproc_per_node" => Ok(Meaning::Own(RANKS)),
        "bind" | "bind-to" | "cpu-bind" => Ok(Meaning::Own(BIND)),
        "log-dir" => Ok(Meaning::Own("--log-dir")),
        "timeout" => Ok(Meaning::Own("--timeout")),
        "no-prefix" => Ok(Meaning::Bare),
        "x" | "env" if name != "-env" => Ok(Meaning::Own(VARIABLE)),
        "genv" | "env" => Ok(Meaning::Variable),
        "H" | "host" | "hosts" => Ok(Meaning::Hosts),
        "N" | "nodes" | "nnodes" => Ok(Meaning::OneHost),
        "output" => Ok(Meaning::Output),
        "oversubscribe" | "allow-run-as-root" | "tag-output" | "prepend-rank" | "label" | "l" | "genvall"
        | "envall" | "standalone" => Ok(Meaning::Granted),
        "hostfile" | "machinefile" | "f" | "nodelist" | "w" => refused(ELSEWHERE),
        "ppn" | "perhost" | "npernode" | "ntasks-per-node" => {
            refused("all ranks are on this host: give their number by -n")
        }
        "map-by" | "rank-by" => refused("ranks are placed by --bind core, --bind numa or --bind none"),
        "mca" | "gmca" | "pmixmca" | "prtemca" => {
            let why = "rsccl has no parameters of Open MPI; `rsccl env` lists the variables that it has";
            Ok(Meaning::Refused { why, values: 2 })
        }
        "output-filename" | "outfile-pattern" => refused(OUTPUT),
        "xterm" => refused("ranks have no windows: --log-dir FOLDER writes each rank's output to a file"),
        "wdir" | "wd" | "chdir" => {
            refused("ranks start in the folder in which `rsccl run` is started: cd there before")
        }
        _ => Err(unknown(name)),
    }
}

fn unknown(name: &str) -> Error {
    let near = nearest(name.trim_start_matches('-'), ["ranks", "bind", "log-dir", "timeout", "help", "no-prefix"]);
    let hint = match near {
        Some(near) => format!("did you mean --{near}?"),
        None => {
            "it has -n, -x, --bind, --log-dir, --no-prefix and --timeout, and a program that begins with a dash stands \
             behind --"
                .to_owned()
        }
    };
    Error::invalid_argument(format!("run: there is no option {name}; {hint}"))
}

/// The assignment that Hydra's `-genv NAME VALUE` makes.
fn variable(option: &str, values: &[OsString]) -> Result<OsString> {
    match values {
        [variable, value] => {
            let mut assignment = variable.clone();
            assignment.push("=");
            assignment.push(value);
            Ok(assignment)
        }
        [assignment] if assignment.as_bytes().contains(&b'=') => Ok(assignment.clone()),
        _ => {
            let told = format!("run: {option}: a variable and its value are wanted: {option} NAME VALUE");
            Err(Error::invalid_argument(told))
        }
    }
}

/// Accepts of Open MPI's `--output` that each line has its rank in front, which `rsccl run` does anyway.
fn tagged(name: &str, list: &OsStr) -> Result<()> {
    if list == "tag" || list == "rank" {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("run: {name} {}: {OUTPUT}", list.to_string_lossy())))
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
        // Slots of a host stand behind a colon, and IPv6's address then in brackets.
        let host = match entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None if entry == "::1" => entry,
            None => entry.split(':').next().unwrap_or_default(),
        };
        ["localhost", "127.0.0.1", "::1"].contains(&host) || (!own.is_empty() && (host == own || host == short(&own)))
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
/// What to do about several programs.
const SEVERAL: &str = "`rsccl run` starts one program: to run several, start a script that chooses one by RSCCL_RANK; \
     if the colon is an argument of the program, write -- before the program";
const OUTPUT: &str = "each line has its rank in front, --no-prefix leaves that out, and --log-dir FOLDER writes each \
     rank's output to a file";
/// Options of Open MPI that look like `-x` with the name of a variable.
const LONG_BEHIND_X: [&[u8]; 2] = [b"term", b"ml"];
const RANKS: &str = "--ranks";
const BARE: &str = "--no-prefix";
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
            ("rsccl run -n 2 -genv A=1 a b", "rsccl run --ranks 2 --env A=1 -- a b"),
            ("rsccl run -env A=b=c -env B c=d -n 2 a", "rsccl run --env A=b=c --env B=c=d --ranks 2 -- a"),
            ("rsccl run -env=A=1 -genv=B 2 -n 2 a", "rsccl run --env A=1 --env B=2 --ranks 2 -- a"),
            ("rsccl run -xA=1 -xB -n 1 env", "rsccl run --env A=1 --env B --ranks 1 -- env"),
            ("rsccl run -N1 -Hlocalhost -n 1 a", "rsccl run --ranks 1 -- a"),
            ("rsccl run --no-prefix -n 2 a", "rsccl run --no-prefix --ranks 2 -- a"),
            ("rsccl run -n 2 --output tag -prepend-rank a", "rsccl run --ranks 2 -- a"),
            ("rsccl run -H [::1]:2,::1 -n 2 a", "rsccl run --ranks 2 -- a"),
            ("rsccl run --help", "rsccl run --help"),
            ("rsccl run -n 1 -help", "rsccl run --ranks 1 --help"),
            ("rsccl run --h", "rsccl run --help"),
            ("rsccl run -h a", "rsccl run --help -- a"),
            ("rsccl run a -n 2", "rsccl run -- a -n 2"),
            ("rsccl run -n", "rsccl run --ranks"),
            ("rsccl perf all_reduce -n 4", "rsccl perf all_reduce -n 4"),
            ("rsccl run -n 1 a : b", "rsccl run --ranks 1 -- a : b"),
            // A program's own colons, and options behind them.
            ("rsccl run -n 1 -- echo : -nothing", "rsccl run --ranks 1 -- echo : -nothing"),
            ("rsccl run -n 1 -- a : -n 2 b", "rsccl run --ranks 1 -- a : -n 2 b"),
            ("rsccl run -n 1 echo : -nothing", "rsccl run --ranks 1 -- echo : -nothing"),
            ("rsccl run -n 1 sort -t : -n file", "rsccl run --ranks 1 -- sort -t : -n file"),
            ("rsccl run -n 1 cut -d : -f 1 file", "rsccl run --ranks 1 -- cut -d : -f 1 file"),
            ("rsccl run -n 1 grep : -H file", "rsccl run --ranks 1 -- grep : -H file"),
            ("rsccl run -n 1 a :", "rsccl run --ranks 1 -- a :"),
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
            ("rsccl run -N2 a", "-N 2: `rsccl run` starts"),
            ("rsccl run -xterm 0 -n 2 a", "-xterm: "),
            ("rsccl run --xA=1 -n 2 a", "there is no option --xA"),
            ("rsccl run --oversubscribe=false -n 2 a", "--oversubscribe=false: --oversubscribe has no value"),
            ("rsccl run --help=run", "--help=run: --help has no value"),
            ("rsccl run -n 2 -genv A", "-genv: a variable and its value are wanted: -genv NAME VALUE"),
            ("rsccl run -genv", "-genv: a variable and its value are wanted: -genv NAME VALUE"),
            ("rsccl run -n 1 a : -n 1 b", SEVERAL),
            ("rsccl run -n 1 a b : --np 2 ./b", SEVERAL),
            ("rsccl run -n 1 a : -H b ./b", SEVERAL),
            ("rsccl run -n 1 a : -np2 b : -n 3 c", SEVERAL),
            ("rsccl run -n 1 a : -x A=1 --bind-to core -n 2 b", SEVERAL),
            ("rsccl run -n 1 a : -env A 1 -n 2 b", SEVERAL),
            ("rsccl run -n 1 a : --hostfile f -n 2 b", SEVERAL),
            ("rsccl run --no-prefix=1 -n 2 a", "--no-prefix=1: --no-prefix has no value"),
            ("rsccl run --no-prefx -n 2 a", "did you mean --no-prefix?"),
            ("rsccl run --output=dir=x -n 2 a", "--output dir=x: each line has its rank in front, --no-prefix"),
            ("rsccl perf all_reduce -np 4", "perf: -np: --ranks is the number of ranks"),
            ("rsccl run --wdir /tmp a", "--wdir: ranks start in the folder"),
        ] {
            let error = spelt(line).unwrap_err();
            assert!(error.contains(told), "{line}: {error}");
        }
    }
}
